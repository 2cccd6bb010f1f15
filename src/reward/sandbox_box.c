/* Owns one sandbox from its start to its end, and the case that runs in it.
 *
 * Bubblewrap is two processes: the outer half, our child, and the namespace's first process, which
 * becomes our init or the Python interpreter. Killing the second ends every process inside, the
 * kernel waits for the last of them before the outer half hears of it, and the outer half ends
 * then: once that is reaped nothing is left. The second's pid comes from the kernel (credentials of
 * its hello), not from what it says. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/status.h"
#include "reward/sandbox_int.h"

enum { LOG_BYTES = 4096, MAX_LOOK = 512, MAX_INODES = 100000, END_MS = 5000 };

#define ZYGOTE "/zygote.pyc"

static void close_fd(int *fd)
{
    if (*fd >= 0) {
        close(*fd);
    }
    *fd = -1;
}

/* ---- start ---- */

/* A file for the words of bubblewrap that cannot grow, whoever writes into it. */
static int make_log(void)
{
    int fd = memfd_create("sandbox-log", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd >= 0 && (ftruncate(fd, LOG_BYTES) != 0 ||
                    fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0)) {
        close_fd(&fd);
    }
    return fd;
}

int sandbox_box_start(struct sandbox_box *b, const struct sandbox_cage *c,
                      enum sandbox_box_kind kind, struct err *e)
{
    const char *words[8 + SANDBOX_BINDS];
    struct proc_opts o = {.request_fd = -1, .reply_fd = -1, .life_fd = -1};
    int pair[2] = {-1, -1}, share[1][2], one = 1, n = 0, rc;

    memset(b, 0, sizeof *b);
    b->control = b->init_pidfd = b->out_fd = b->err_fd = -1;
    b->kind = kind;
    b->log_fd = make_log();
    if (b->log_fd < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0 ||
        setsockopt(pair[0], SOL_SOCKET, SO_PASSCRED, &one, sizeof one) != 0) {
        rc = ERR(e, STATUS_IO, "cannot make a sandbox's socket: %s", strerror(errno));
        goto out;
    }
    fcntl(pair[0], F_SETFL, O_NONBLOCK);
    if (kind == SANDBOX_BOX_PYTHON) {
        words[n++] = c->python;
        words[n++] = "-S";
        words[n++] = "-s";
        words[n++] = "-B";
        words[n++] = ZYGOTE;
        for (int i = 0; i < c->nlibs; i++) {
            words[n++] = c->libs[i];
        }
    } else {
        words[n++] = "/init";
    }
    words[n] = NULL;
    share[0][0] = pair[1];
    share[0][1] = SANDBOX_WIRE_FD;
    o.shares = (const int(*)[2])share;
    o.nshares = 1;
    o.log_fd = b->log_fd;
    rc = kind == SANDBOX_BOX_PYTHON
             ? sandbox_cage_spawn(c, &o, words, c->code_fds[SANDBOX_CODE_ZYGOTE], ZYGOTE, &b->proc,
                                  e)
             : sandbox_cage_spawn(c, &o, words, c->init_fd, "/init", &b->proc, e);
    if (rc == 0) {
        b->control = pair[0];
        pair[0] = -1;
        b->state = SANDBOX_BOX_STARTING;
        b->started = proc_now();
    }
out:
    close_fd(&pair[0]);
    close_fd(&pair[1]);
    if (rc != 0) {
        close_fd(&b->log_fd);
    }
    return rc;
}

/* Why it did not start, from bubblewrap's own words. */
static int start_failed(struct sandbox_box *b, struct err *e)
{
    char said[LOG_BYTES], clean[400];
    ssize_t n = pread(b->log_fd, said, sizeof said - 1, 0);
    char *end;

    said[n > 0 ? n : 0] = 0;
    end = said + strlen(said);
    while (end > said && (end[-1] == '\n' || end[-1] == ' ')) {
        *--end = 0;
    }
    sandbox_compare_quote(clean, sizeof clean, said, strlen(said));
    if (strstr(said, "No permissions to creat") || strstr(said, "setting up uid map") ||
        strstr(said, "Creating new namespace failed")) {
        return ERR(e, STATUS_UNSUPPORTED,
                   "this system lets no ordinary user make a sandbox (%s): allow user namespaces "
                   "(sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces, "
                   "kernel.apparmor_restrict_unprivileged_userns=0, or the container's profile)",
                   clean);
    }
    return ERR(e, STATUS_CHILD, "a sandbox did not start: %s", *clean ? clean : "it said nothing");
}

int sandbox_box_hello(struct sandbox_box *b, struct err *e)
{
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(struct ucred))];
    } control;
    char text[16];
    struct iovec part = {text, sizeof text};
    struct msghdr m = {.msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = control.bytes,
                       .msg_controllen = sizeof control.bytes};
    ssize_t got = recvmsg(b->control, &m, MSG_CMSG_CLOEXEC);
    struct ucred cred = {0, 0, 0};

    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        return STATUS_AGAIN;
    }
    for (struct cmsghdr *c = got > 0 ? CMSG_FIRSTHDR(&m) : NULL; c; c = CMSG_NXTHDR(&m, c)) {
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_CREDENTIALS) {
            memcpy(&cred, CMSG_DATA(c), sizeof cred);
        }
    }
    if (got != 5 || memcmp(text, "ready", 5) != 0 || cred.pid <= 0) {
        struct proc *p = &b->proc;
        int want = 0, ended;
        proc_poll(&p, &want, &ended, 1, 0.2); /* its words come before its end */
        return start_failed(b, e);
    }
    b->init_pid = cred.pid;
    b->init_pidfd = (int)syscall(SYS_pidfd_open, cred.pid, 0U);
    if (b->init_pidfd < 0 || proc_ended(&b->proc, NULL)) {
        return ERR(e, STATUS_CHILD, "a sandbox ended while it started");
    }
    b->state = SANDBOX_BOX_WARM;
    return 0;
}

/* ---- end ---- */

void sandbox_box_end(struct sandbox_box *b)
{
    if (b->state == SANDBOX_BOX_NONE) {
        return;
    }
    if (b->init_pidfd >= 0 && b->proc.pidfd >= 0) {
        struct pollfd f = {.fd = b->proc.pidfd, .events = POLLIN};
        int left = 1;
        syscall(SYS_pidfd_send_signal, b->init_pidfd, SIGKILL, NULL, 0U);
        for (int i = 0; left && i < 10; i++) {
            left = poll(&f, 1, END_MS / 10) <= 0;
        }
        /* Gone, all of it: reaping the outer half needs no search for descendants. */
        if (!left && waitpid(b->proc.pid, NULL, 0) == b->proc.pid) {
            close_fd(&b->proc.pidfd);
            memset(&b->proc, 0, sizeof b->proc);
        }
    }
    if (b->proc.pid) {
        proc_end(&b->proc);
    }
    close_fd(&b->control);
    close_fd(&b->init_pidfd);
    close_fd(&b->log_fd);
    close_fd(&b->out_fd);
    close_fd(&b->err_fd);
    buf_fini(&b->out);
    memset(b, 0, sizeof *b);
    b->control = b->init_pidfd = b->out_fd = b->err_fd = b->log_fd = -1;
}

/* ---- a case ---- */

static int send_case(struct sandbox_box *b, const struct sandbox_wire_case *w, const char *blob,
                     size_t blob_len, const int *fds, int nfds, struct err *e)
{
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(SANDBOX_WIRE_FDS * sizeof(int))];
    } control;
    struct iovec parts[2] = {{(void *)(uintptr_t)w, sizeof *w},
                             {(void *)(uintptr_t)blob, blob_len}};
    struct msghdr m = {.msg_iov = parts,
                       .msg_iovlen = 2,
                       .msg_control = control.bytes,
                       .msg_controllen = CMSG_SPACE((size_t)nfds * sizeof(int))};
    ssize_t sent;

    memset(&control, 0, sizeof control);
    control.head.cmsg_level = SOL_SOCKET;
    control.head.cmsg_type = SCM_RIGHTS;
    control.head.cmsg_len = CMSG_LEN((size_t)nfds * sizeof(int));
    memcpy(CMSG_DATA(&control.head), fds, (size_t)nfds * sizeof(int));
    do {
        sent = sendmsg(b->control, &m, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    if (sent != (ssize_t)(sizeof *w + blob_len)) {
        return ERR(e, STATUS_CHILD, "cannot hand a case to its sandbox: %s", strerror(errno));
    }
    return 0;
}

int sandbox_box_run(struct sandbox_box *b, const struct sandbox_wire_case *w, const char *blob,
                    size_t blob_len, const int fds[SANDBOX_WIRE_FDS], double wall_s,
                    int64_t output_max, struct err *e)
{
    int out[2] = {-1, -1}, err[2] = {-1, -1}, all[SANDBOX_WIRE_FDS], rc = 0;

    memcpy(all, fds, sizeof all);
    close_fd(&b->out_fd);
    close_fd(&b->err_fd);
    buf_fini(&b->out);
    /* One byte more than permitted shows that there was more. */
    buf_init(&b->out, (size_t)output_max + 1 + 65536);
    b->err_total = 0;
    b->over_output = b->told = 0;
    memset(&b->reply, 0, sizeof b->reply);
    if ((fds[1] < 0 && pipe2(out, O_CLOEXEC) != 0) || pipe2(err, O_CLOEXEC) != 0) {
        rc = ERR(e, STATUS_IO, "cannot make a pipe: %s", strerror(errno));
        goto out;
    }
    if (fds[1] < 0) {
        all[1] = out[1];
        fcntl(out[0], F_SETFL, O_NONBLOCK);
    }
    all[2] = err[1];
    fcntl(err[0], F_SETFL, O_NONBLOCK);
    rc = send_case(b, w, blob, blob_len, all, fds[4] >= 0 ? 5 : 4, e);
    if (rc == 0) {
        b->out_fd = out[0];
        b->err_fd = err[0];
        out[0] = err[0] = -1;
        b->state = SANDBOX_BOX_BUSY;
        b->began = proc_now();
        b->deadline = b->began + wall_s;
        b->next_look = b->began + 0.05;
    }
out:
    for (int i = 0; i < 2; i++) {
        close_fd(&out[i]);
        close_fd(&err[i]);
    }
    return rc;
}

/* Takes what the pipe of stdout has. */
static void read_out(struct sandbox_box *b, size_t most)
{
    char chunk[65536];

    while (b->out_fd >= 0) {
        ssize_t n = read(b->out_fd, chunk, sizeof chunk);
        if (n > 0) {
            buf_add(&b->out, chunk, (size_t)n);
            if (b->out.len > most) {
                b->over_output = 1;
                return;
            }
        } else if (n == 0) {
            close_fd(&b->out_fd);
        } else if (errno != EINTR) {
            return;
        }
    }
}

/* Of stderr the last bytes are kept: there Python says what happened. A bound for one call, so that
 * a program that does nothing but write cannot hold us. */
static void read_err(struct sandbox_box *b)
{
    char chunk[16384];

    for (int i = 0; b->err_fd >= 0 && i < 64; i++) {
        ssize_t n = read(b->err_fd, chunk, sizeof chunk);
        if (n > 0) {
            for (ssize_t k = 0; k < n; k++) {
                b->err[b->err_total++ % sizeof b->err] = chunk[k];
            }
        } else if (n == 0) {
            close_fd(&b->err_fd);
        } else if (errno != EINTR) {
            return;
        }
    }
}

int sandbox_box_read(struct sandbox_box *b, struct err *e)
{
    size_t most = b->out.max - 65536 - 1;
    ssize_t n;

    if (!b->told) {
        n = recv(b->control, &b->reply, sizeof b->reply, MSG_DONTWAIT);
        if (n == (ssize_t)sizeof b->reply) {
            b->told = 1;
        } else if (n >= 0 || (errno != EAGAIN && errno != EINTR)) {
            return ERR(e, STATUS_CHILD, "the sandbox ended or broke its protocol");
        }
    }
    /* After the init's answer nobody writes any more: what the pipes hold now is all. */
    read_out(b, most);
    read_err(b);
    if (b->over_output) {
        return 0;
    }
    if (b->told) {
        close_fd(&b->out_fd);
        close_fd(&b->err_fd);
        return 0;
    }
    return STATUS_AGAIN;
}

/* ---- bounds of the whole ---- */

static size_t read_file(const char *path, char *out, size_t n)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, out, n - 1) : -1;

    out[got > 0 ? got : 0] = 0;
    close_fd(&fd);
    return got > 0 ? (size_t)got : 0;
}

static int64_t field_kb(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    return at ? atoll(at + strlen(name)) : 0;
}

/* Appends the children of all threads of a process. */
static int add_children(pid_t *pids, int n, pid_t of)
{
    char path[96], text[8192];
    struct dirent *d;
    DIR *dir;

    snprintf(path, sizeof path, "/proc/%d/task", (int)of);
    dir = opendir(path);
    while (dir && (d = readdir(dir)) != NULL) {
        char *at = text, *end;
        if (d->d_name[0] == '.') {
            continue;
        }
        snprintf(path, sizeof path, "/proc/%d/task/%.16s/children", (int)of, d->d_name);
        read_file(path, text, sizeof text);
        for (long pid; n < MAX_LOOK && (pid = strtol(at, &end, 10)) > 0; at = end) {
            pids[n++] = (pid_t)pid;
        }
    }
    if (dir) {
        closedir(dir);
    }
    return n;
}

const char *sandbox_box_excess(const struct sandbox_box *b, const struct sandbox_limits *l)
{
    pid_t pids[MAX_LOOK];
    int n = 1, threads = 0;
    int64_t bytes = 0;
    char path[96], text[8192];
    struct statvfs fs;

    pids[0] = b->init_pid;
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof path, "/proc/%d/status", (int)pids[i]);
        if (i > 0 && read_file(path, text, sizeof text)) {
            bytes += (field_kb(text, "RssAnon:") + field_kb(text, "RssShmem:")) * 1024;
            threads += (int)field_kb(text, "Threads:");
        }
        n = add_children(pids, n, pids[i]);
    }
    if (bytes > l->memory) {
        return "memory";
    }
    if (n - 1 > l->processes || threads > l->processes) {
        return "processes";
    }
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "/proc/%d/root%s", (int)b->init_pid, i ? "/dev/shm" : "/tmp");
        if (statvfs(path, &fs) == 0 && fs.f_files - fs.f_ffree > MAX_INODES) {
            return "files";
        }
    }
    return NULL;
}
