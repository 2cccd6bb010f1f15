/* Owns how a sandbox is made: which host folders it sees, the words for bubblewrap, the user it
 * runs as.
 *
 * Root is a special case. Files of root would be readable inside, RLIMIT_NPROC does not bind it,
 * and whoever broke out would be root: so bubblewrap is started as nobody. Folders that nobody
 * cannot reach (an interpreter under /root) are mounted by root, in a mount namespace of that one
 * child, at a place that nobody can. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/status.h"
#include "reward/sandbox_int.h"

enum { NOBODY = 65534, MAX_WORDS = 192, FILTER_FD = 60, DATA_FD = 61, STACK = 8 << 20 };

#define INSTALL_BWRAP                                                                              \
    "the sandbox needs bubblewrap: install it (apt install bubblewrap, dnf install bubblewrap)"

int sandbox_memfd(const void *data, size_t n)
{
    const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING, exec = 0x10; /* MFD_EXEC, Linux 6.3 */
    int fd = memfd_create("sandbox", flags | exec);
    const char *at = data;

    if (fd < 0) { /* older, or a system that lets nothing in memory be run */
        fd = memfd_create("sandbox", flags);
    }
    while (fd >= 0 && n > 0) {
        ssize_t w = write(fd, at, n);
        if (w < 0 && errno != EINTR) {
            int saved = errno;
            close(fd);
            errno = saved;
            return -1;
        }
        at += w > 0 ? w : 0;
        n -= w > 0 ? (size_t)w : 0;
    }
    if (fd >= 0) {
        lseek(fd, 0, SEEK_SET);
        fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
    }
    return fd;
}

/* ---- what is found once ---- */

/* 1 when path is dir or lies in it. */
static int inside(const char *path, const char *dir)
{
    size_t n = strlen(dir);
    return strncmp(path, dir, n) == 0 && (path[n] == 0 || path[n] == '/');
}

static int add_bind(struct sandbox_cage *c, const char *path, struct err *e)
{
    if (path[0] != '/' || strcmp(path, "/") == 0) {
        return ERR(e, STATUS_INPUT,
                   "the sandbox cannot show the folder \"%s\": give an absolute path below /",
                   path);
    }
    if (inside(path, "/usr")) {
        return 0;
    }
    for (int i = 0; i < c->nbinds; i++) {
        if (inside(path, c->binds[i])) {
            return 0;
        }
    }
    if (c->nbinds == SANDBOX_BINDS) {
        return ERR(e, STATUS_INPUT, "more than %d folders for the sandbox", (int)SANDBOX_BINDS);
    }
    if (access(path, F_OK) != 0) {
        return ERR(e, STATUS_NOTFOUND, "cannot show %s to the sandbox: %s", path, strerror(errno));
    }
    c->binds[c->nbinds++] = mem_strdup(path);
    return 0;
}

/* The interpreter's own answer about where its parts are, and our Python files as it compiles them:
 * compiling them at each start would cost more than the rest of the start. */
static int ask_python(const char *python, json_t **out, struct err *e)
{
    static const char script[] =
        "import sys, os, json, marshal, importlib.util as u\n"
        "names = ('<string>', 'harness', 'harness', 'harness')\n"
        "code = [marshal.dumps(compile(t, n, 'exec', dont_inherit=True))\n"
        "        for t, n in zip(sys.argv[1:], names)]\n"
        "code[0] = u.MAGIC_NUMBER + bytes(12) + code[0]\n"
        "print(json.dumps({'exe': sys.executable, 'prefix': sys.prefix, 'base': sys.base_prefix,\n"
        "                  'real': os.path.realpath(sys.executable),\n"
        "                  'path': [p for p in sys.path if p], 'code': [c.hex() for c in "
        "code]}))\n";
    const char *argv[] = {python,
                          "-I",
                          "-c",
                          script,
                          sandbox_blob_zygote,
                          sandbox_blob_call,
                          sandbox_blob_serve,
                          sandbox_blob_judge,
                          NULL};
    struct proc_opts o = {.argv = argv, .request_fd = -1, .reply_fd = 1, .life_fd = -1};
    struct proc p;
    struct buf b;
    size_t len = 0;
    int rc = proc_spawn(&p, &o, e);

    if (rc != 0) {
        return rc;
    }
    buf_init(&b, 1 << 20);
    rc = proc_read_line(&p, &b, proc_now() + 30, &len, e);
    if (rc == 0) {
        *out = json_loadb(b.data, len, 0, NULL);
        rc = *out ? 0 : ERR(e, STATUS_CHILD, "%s did not say where its folders are", python);
    } else if (rc == STATUS_END) {
        rc = ERR(e, STATUS_CHILD, "%s ended without saying where its folders are", python);
    }
    proc_end(&p);
    buf_fini(&b);
    return rc;
}

/* Bytes written as hexadecimal digits, as a memfd. */
static int hex_memfd(const char *hex)
{
    size_t n = hex ? strlen(hex) / 2 : 0;
    char *bytes = mem_alloc(n + 1);
    int fd;

    for (size_t i = 0; i < n; i++) {
        char two[3] = {hex[2 * i], hex[2 * i + 1], 0};
        bytes[i] = (char)strtoul(two, NULL, 16);
    }
    fd = sandbox_memfd(bytes, n);
    mem_free(bytes);
    return fd;
}

static int find_python(struct sandbox_cage *c, const char *name, struct err *e)
{
    static const char *const folders[] = {"base", "prefix"};
    char real_dir[PATH_MAX];
    json_t *j = NULL, *path;
    const char *exe, *real;
    size_t i;
    int rc = ask_python(name ? name : "python3", &j, e);

    if (rc == STATUS_NOTFOUND) {
        return ERR(e, STATUS_NOTFOUND, "the sandbox needs a Python interpreter: %s is not there",
                   name ? name : "python3");
    }
    exe = json_string_value(json_object_get(j, "exe"));
    real = json_string_value(json_object_get(j, "real"));
    if (rc == 0 && (!exe || !real || strlen(real) >= sizeof real_dir)) {
        rc = ERR(e, STATUS_CHILD, "%s did not say where its folders are", name);
    }
    for (i = 0; rc == 0 && i < 2; i++) {
        rc = add_bind(c, json_string_value(json_object_get(j, folders[i])), e);
    }
    if (rc == 0) {
        c->python = mem_strdup(exe);
        snprintf(real_dir, sizeof real_dir, "%s", real);
        *strrchr(real_dir, '/') = 0;
        rc = add_bind(c, real_dir, e);
    }
    json_array_foreach(json_object_get(j, "path"), i, path)
    {
        const char *p = json_string_value(path);
        int seen = p && inside(p, "/usr");
        for (int k = 0; p && k < c->nbinds; k++) {
            seen |= inside(p, c->binds[k]);
        }
        if (seen && c->nlibs < SANDBOX_BINDS && rc == 0) {
            c->libs[c->nlibs++] = mem_strdup(p);
        }
    }
    for (i = 0; rc == 0 && i < SANDBOX_CODES; i++) {
        const json_t *code = json_array_get(json_object_get(j, "code"), i);
        c->code_fds[i] = hex_memfd(json_string_value(code));
        if (c->code_fds[i] < 0 || json_string_length(code) < 100) {
            rc = ERR(e, STATUS_CHILD, "%s did not compile the sandbox's files", c->python);
        }
    }
    json_decref(j);
    return rc;
}

/* 1 when user nobody can walk to the path and read it. */
static int open_to_all(const char *path)
{
    char part[PATH_MAX];
    struct stat st;

    for (size_t i = 1; i < sizeof part; i++) {
        if (path[i] == '/' || path[i] == 0) {
            memcpy(part, path, i);
            part[i] = 0;
            if (stat(part, &st) != 0 || !(st.st_mode & S_IXOTH)) {
                return 0;
            }
        }
        if (path[i] == 0) {
            return 1;
        }
    }
    return 0;
}

/* Which folders root has to mount where nobody can reach them, and where. */
static int find_hidden(struct sandbox_cage *c, struct err *e)
{
    static const char *const places[] = {"/mnt", "/media", "/srv", "/opt", "/tmp"};
    int any = 0;

    for (int i = 0; geteuid() == 0 && i < c->nbinds; i++) {
        c->hidden[i] = !open_to_all(c->binds[i]);
        any |= c->hidden[i];
    }
    for (size_t k = 0; any && !c->stage && k < sizeof places / sizeof *places; k++) {
        int free_place = access(places[k], F_OK) == 0;
        for (int i = 0; i < c->nbinds; i++) {
            free_place &= !inside(c->binds[i], places[k]);
        }
        c->stage = free_place ? mem_strdup(places[k]) : NULL;
    }
    if (any && !c->stage) {
        return ERR(e, STATUS_UNSUPPORTED, "no place to show nobody a folder of root");
    }
    return 0;
}

static int kernel_at_least(int major, int minor)
{
    struct utsname u;
    int a = 0, b = 0;

    return uname(&u) == 0 && sscanf(u.release, "%d.%d", &a, &b) == 2 &&
           (a > major || (a == major && b >= minor));
}

static void no_fds(struct sandbox_cage *c)
{
    c->init_fd = c->filter_fd = -1;
    for (int i = 0; i < SANDBOX_CODES; i++) {
        c->code_fds[i] = -1;
    }
}

/* The usual places first: with PATH alone, root's own folders would be tried as nobody. */
static char *find_bwrap(const char *name)
{
    static const char *const places[] = {"/usr/bin/bwrap", "/usr/local/bin/bwrap", "/bin/bwrap"};

    for (size_t i = 0; !name && i < sizeof places / sizeof *places; i++) {
        if (access(places[i], X_OK) == 0) {
            return mem_strdup(places[i]);
        }
    }
    return mem_strdup(name ? name : "bwrap");
}

int sandbox_cage_init(struct sandbox_cage *c, const struct sandbox_opts *o, struct err *e)
{
    int rc = 0;

    memset(c, 0, sizeof *c);
    no_fds(c);
    c->limits = o->limits;
    c->proc_ok = 1;
    c->nproc_ok = kernel_at_least(5, 14);
    c->bwrap = find_bwrap(o->bwrap);
    for (int i = 0; rc == 0 && o->binds && o->binds[i]; i++) {
        rc = add_bind(c, o->binds[i], e);
    }
    if (rc == 0) {
        rc = find_python(c, o->python, e);
    }
    if (rc == 0) {
        rc = find_hidden(c, e);
    }
    if (rc == 0) {
        c->filter_fd = sandbox_filter_fd();
        c->init_fd =
            sandbox_memfd(sandbox_blob_init, (size_t)(sandbox_blob_init_end - sandbox_blob_init));
        if (c->filter_fd < 0 || c->init_fd < 0) {
            rc = ERR(e, STATUS_IO, "cannot make a memory file: %s", strerror(errno));
        }
    }
    if (rc != 0) {
        sandbox_cage_fini(c);
    }
    return rc;
}

void sandbox_cage_fini(struct sandbox_cage *c)
{
    for (int i = 0; i < c->nbinds; i++) {
        mem_free(c->binds[i]);
    }
    for (int i = 0; i < c->nlibs; i++) {
        mem_free(c->libs[i]);
    }
    mem_free(c->bwrap);
    mem_free(c->python);
    mem_free(c->stage);
    if (c->init_fd >= 0) {
        close(c->init_fd);
    }
    if (c->filter_fd >= 0) {
        close(c->filter_fd);
    }
    for (int i = 0; i < SANDBOX_CODES; i++) {
        if (c->code_fds[i] >= 0) {
            close(c->code_fds[i]);
        }
    }
    memset(c, 0, sizeof *c);
    no_fds(c);
}

/* ---- the words for bubblewrap ---- */

struct words {
    const char *w[MAX_WORDS];
    char text[40 + SANDBOX_BINDS][PATH_MAX]; /* what had to be made */
    int n, ntext;
};

static void word(struct words *w, const char *s)
{
    ASSERT(w->n < MAX_WORDS - 1);
    w->w[w->n++] = s;
}

static void words3(struct words *w, const char *a, const char *b, const char *c)
{
    word(w, a);
    word(w, b);
    word(w, c);
}

static const char *text(struct words *w, const char *fmt, long long x)
{
    char *t = w->text[w->ntext++];
    snprintf(t, PATH_MAX, fmt, x);
    return t;
}

/* /bin, /lib...: links into /usr on most systems, folders on others. */
static void system_folders(struct words *w)
{
    static const char *const names[] = {"/bin", "/sbin", "/lib", "/lib64", "/lib32"};

    words3(w, "--ro-bind", "/usr", "/usr");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *to = w->text[w->ntext];
        ssize_t n = readlink(names[i], to, PATH_MAX - 1);
        if (n > 0) {
            to[n] = 0;
            w->ntext++;
            words3(w, "--symlink", to, names[i]);
        } else {
            words3(w, "--ro-bind-try", names[i], names[i]);
        }
    }
    words3(w, "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache");
    words3(w, "--ro-bind-try", "/etc/alternatives", "/etc/alternatives");
}

static void devices(struct words *w, int64_t scratch)
{
    static const char *const names[] = {"/dev/null", "/dev/zero", "/dev/full", "/dev/random",
                                        "/dev/urandom"};

    word(w, "--size");
    word(w, "65536");
    word(w, "--tmpfs");
    word(w, "/dev");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        words3(w, "--dev-bind", names[i], names[i]);
    }
    words3(w, "--symlink", "/proc/self/fd", "/dev/fd");
    words3(w, "--symlink", "/proc/self/fd/0", "/dev/stdin");
    words3(w, "--symlink", "/proc/self/fd/1", "/dev/stdout");
    words3(w, "--symlink", "/proc/self/fd/2", "/dev/stderr");
    words3(w, "--size", text(w, "%lld", scratch), "--tmpfs");
    word(w, "/dev/shm");
    words3(w, "--remount-ro", "/dev", "--size");
    words3(w, text(w, "%lld", scratch), "--tmpfs", "/tmp");
}

static void environment(struct words *w)
{
    static const char *const names[][2] = {
        {"PATH", "/usr/bin:/bin"},
        {"HOME", "/tmp"},
        {"LANG", "C.UTF-8"},
        {"PYTHONHASHSEED", "0"},   /* the same verdict every time */
        {"MALLOC_ARENA_MAX", "1"}, /* each thread's own would count as 64 MB */
        {"OMP_NUM_THREADS", "1"},
        {"OPENBLAS_NUM_THREADS", "1"},
        {"PYTHONDONTWRITEBYTECODE", "1"}};

    word(w, "--clearenv");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        words3(w, "--setenv", names[i][0], names[i][1]);
    }
}

static void make_words(struct words *w, const struct sandbox_cage *c, const char *const *program,
                       const char *data_path)
{
    static const char *const start[] = {"--unshare-all", "--unshare-user",
                                        "--new-session", "--die-with-parent",
                                        "--hostname",    "sandbox",
                                        "--uid",         "1000",
                                        "--gid",         "1000"};

    w->n = w->ntext = 0;
    word(w, c->bwrap);
    for (size_t i = 0; i < sizeof start / sizeof *start; i++) {
        word(w, start[i]);
    }
    if (data_path) {
        word(w, "--as-pid-1");
    }
    environment(w);
    system_folders(w);
    for (int i = 0; i < c->nbinds; i++) {
        const char *from = c->binds[i];
        if (c->hidden[i]) {
            char *t = w->text[w->ntext++];
            snprintf(t, PATH_MAX, "%s/%d", c->stage, i);
            from = t;
        }
        words3(w, "--ro-bind", from, c->binds[i]);
    }
    if (c->proc_ok) {
        word(w, "--proc");
        word(w, "/proc");
    }
    devices(w, c->limits.scratch);
    if (data_path) {
        words3(w, "--perms", "0555", "--ro-bind-data");
        word(w, text(w, "%lld", DATA_FD));
        word(w, data_path);
    }
    words3(w, "--remount-ro", "/", "--chdir");
    words3(w, "/tmp", "--seccomp", text(w, "%lld", FILTER_FD));
    word(w, "--");
    while (*program) {
        word(w, *program++);
    }
    w->w[w->n] = NULL;
}

/* ---- start ---- */

struct prepare {
    const struct sandbox_cage *c;
    int64_t memory; /* memory 0: the init sets it for each case */
    int root;
    char stage_dirs[SANDBOX_BINDS][64];
};

/* In the child, before exec: system calls only. */
static int prepare(void *arg)
{
    const struct prepare *p = arg;
    const struct sandbox_cage *c = p->c;
    struct rlimit none = {0, 0}, stack;

    setrlimit(RLIMIT_CORE, &none);
    /* The size of every thread's stack, which counts as address space; a case may use more of it in
     * its first thread. */
    if (getrlimit(RLIMIT_STACK, &stack) == 0 && stack.rlim_cur > STACK) {
        stack.rlim_cur = STACK;
        setrlimit(RLIMIT_STACK, &stack);
    }
    if (p->memory > 0) {
        struct rlimit r = {(rlim_t)p->memory, (rlim_t)p->memory};
        setrlimit(RLIMIT_AS, &r);
    }
    if (!p->root) {
        return 0;
    }
    if (c->stage) {
        if (syscall(SYS_unshare, CLONE_NEWNS) != 0 ||
            mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
            mount("tmpfs", c->stage, "tmpfs", MS_NOSUID | MS_NODEV, "size=64k,mode=755") != 0) {
            return errno;
        }
        for (int i = 0; i < c->nbinds; i++) {
            if (c->hidden[i] &&
                (mkdir(p->stage_dirs[i], 0755) != 0 ||
                 mount(c->binds[i], p->stage_dirs[i], NULL, MS_BIND | MS_REC, NULL) != 0)) {
                return errno;
            }
        }
    }
    if (syscall(SYS_setgroups, 0, NULL) != 0 ||
        syscall(SYS_setresgid, NOBODY, NOBODY, NOBODY) != 0 ||
        syscall(SYS_setresuid, NOBODY, NOBODY, NOBODY) != 0) {
        return errno;
    }
    return 0;
}

/* An independent reader of a memfd: each bubblewrap reads from the start to the end. */
static int reopen(int fd)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return open(path, O_RDONLY | O_CLOEXEC);
}

int sandbox_cage_spawn(const struct sandbox_cage *c, const struct proc_opts *o,
                       const char *const *program, int data_fd, const char *data_path,
                       struct proc *p, struct err *e)
{
    struct words *w = mem_alloc(sizeof *w);
    struct prepare prep = {
        .c = c, .root = geteuid() == 0, .memory = data_path ? 0 : c->limits.memory};
    int shares[8][2], n = 0, rc = 0;
    struct proc_opts own = *o;

    make_words(w, c, program, data_path);
    for (int i = 0; i < c->nbinds; i++) {
        if (c->hidden[i]) {
            snprintf(prep.stage_dirs[i], sizeof prep.stage_dirs[i], "%s/%d", c->stage, i);
        }
    }
    for (int i = 0; i < o->nshares && i < 6; i++) {
        shares[n][0] = o->shares[i][0];
        shares[n++][1] = o->shares[i][1];
    }
    shares[n][0] = reopen(c->filter_fd);
    shares[n++][1] = FILTER_FD;
    if (data_path) {
        shares[n][0] = reopen(data_fd);
        shares[n++][1] = DATA_FD;
    }
    for (int i = o->nshares; i < n; i++) {
        rc = shares[i][0] < 0 ? ERR(e, STATUS_IO, "cannot open a memory file: %s", strerror(errno))
                              : rc;
    }
    if (rc == 0) {
        own.argv = w->w;
        own.path = NULL;
        own.shares = (const int(*)[2])shares;
        own.nshares = n;
        /* Bubblewrap does that (--die-with-parent). A signal while it is starting would kill its
         * outer half only, and the inner one, which waits for a word of it, would stay for ever:
         * better it comes up, finds nobody at the other end of its socket, and ends. */
        own.own_death = 1;
        own.prepare = prepare;
        own.prepare_arg = &prep;
        rc = proc_spawn(p, &own, e);
        if (rc == STATUS_NOTFOUND) {
            rc = ERR(e, STATUS_NOTFOUND, INSTALL_BWRAP);
        } else if (rc != 0 && prep.root && c->stage) {
            rc = ERR(e, STATUS_UNSUPPORTED,
                     "sandboxes run as nobody, who cannot be shown the interpreter's folder here: "
                     "use one that every user can reach, as /usr/bin/python3 (%s)",
                     c->python);
        }
    }
    for (int i = o->nshares; i < n; i++) {
        if (shares[i][0] >= 0) {
            close(shares[i][0]);
        }
    }
    mem_free(w);
    return rc;
}
