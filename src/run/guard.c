/* Owns the last hold on processes that somebody else's program starts. The kernel kills only our
 * direct child when we die (PDEATHSIG), and that may be a shell or a launcher; so a small process
 * of ours stands between. It is the sub-reaper of all that comes from the command, therefore finds
 * all of it, and it learns of our end by an end of file, which no way of dying can prevent. */
#include "run/guard.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/conf.h"
#include "base/fsio.h"
#include "base/log.h"
#include "base/proc.h"
#include "base/status.h"

#define GUARD_SWEEP_S  30.0
#define GUARD_LOOK_MS  1000 /* between two looks at orphans that have ended */
#define GUARD_TMP_LONG 60   /* a socket's path has 107 bytes: names inside need their share */

#define GUARD_SHM_S   10.0 /* between two looks at what is mapped */
#define GUARD_NEW_S   0.1  /* from a new file in /dev/shm to a look: by then it is mapped */
#define GUARD_SHM_MAX 256
#define GUARD_SHM_DIR "/dev/shm/"

struct guard {
    struct proc child;
    pid_t parent;
    int signals; /* descriptor */
    int news;    /* of files that appear in /dev/shm; -1: none to be had */
    char tmp[128];
    time_t since;
    double next_shm;
    int nshm;
    char shm[GUARD_SHM_MAX][96]; /* names in /dev/shm */
};

/* ---- shared memory ---- */

static int guard_shm_ours(const char *name, size_t n)
{
    static const char *const begin[] = {"sglang_",   "sgl_shm", "multi_tokenizer_args_",
                                        "sem.mp-",   "psm_",    "sem.loky-",
                                        "cuda.shm.", "nccl-",   "torch_"};
    for (size_t i = 0; i < sizeof begin / sizeof begin[0]; i++) {
        size_t k = strlen(begin[i]);
        if (n > k && memcmp(name, begin[i], k) == 0 && !memchr(name, '/', n)) {
            return 1;
        }
    }
    return 0;
}

static void guard_shm_add(struct guard *g, const char *name, size_t n)
{
    if (n >= sizeof g->shm[0] || g->nshm == GUARD_SHM_MAX || !guard_shm_ours(name, n)) {
        return;
    }
    for (int i = 0; i < g->nshm; i++) {
        if (strlen(g->shm[i]) == n && memcmp(g->shm[i], name, n) == 0) {
            return;
        }
    }
    memcpy(g->shm[g->nshm], name, n);
    g->shm[g->nshm++][n] = 0;
}

/* Notes what the command's processes have mapped now. */
static void guard_shm_look(struct guard *g)
{
    enum { MOST = 1024 };
    int pids[MOST];
    size_t n = proc_below(getpid(), pids, MOST);

    for (size_t i = 0; i < n; i++) {
        char path[64], *line = NULL, *at;
        size_t cap = 0;
        FILE *f;
        snprintf(path, sizeof path, "/proc/%d/maps", pids[i]);
        f = fopen(path, "re");
        while (f && getline(&line, &cap, f) > 0) {
            at = strstr(line, " " GUARD_SHM_DIR);
            if (at) {
                at += sizeof GUARD_SHM_DIR;
                guard_shm_add(g, at, strcspn(at, " \n"));
            }
        }
        free(line);
        if (f) {
            fclose(f);
        }
    }
    g->next_shm = proc_now() + GUARD_SHM_S;
}

/* Files have appeared: whoever made one may be killed before the next look, so look soon. */
static void guard_shm_news(struct guard *g)
{
    _Alignas(struct inotify_event) char buf[4096];
    ssize_t n;

    while ((n = read(g->news, buf, sizeof buf)) > 0) {
        for (ssize_t at = 0; at < n;) {
            const struct inotify_event *ev = (const struct inotify_event *)(buf + at);
            double soon = proc_now() + GUARD_NEW_S;
            if (ev->len && guard_shm_ours(ev->name, strlen(ev->name)) && soon < g->next_shm) {
                g->next_shm = soon;
            }
            at += (ssize_t)(sizeof *ev + ev->len);
        }
    }
}

static void guard_shm_remove(const struct guard *g)
{
    for (int i = 0; i < g->nshm; i++) {
        char path[128];
        struct stat st;
        snprintf(path, sizeof path, GUARD_SHM_DIR "%s", g->shm[i]);
        if (lstat(path, &st) == 0 && st.st_uid == geteuid() && S_ISREG(st.st_mode) &&
            st.st_ctime >= g->since) {
            unlink(path);
        }
    }
}

/* ---- the command ---- */

static int guard_tmp(struct guard *g, struct err *e)
{
    const char *base = conf_env("TMPDIR");
    if (!base || strlen(base) > GUARD_TMP_LONG) {
        base = "/tmp";
    }
    snprintf(g->tmp, sizeof g->tmp, "%s/miles-XXXXXX", base);
    if (!mkdtemp(g->tmp)) {
        int rc = ERR(e, STATUS_IO, "cannot make %s: %s", g->tmp, strerror(errno));
        g->tmp[0] = 0;
        return rc;
    }
    setenv("TMPDIR", g->tmp, 1);
    return STATUS_OK;
}

/* Takes in orphans that have ended, and leaves the command itself for proc_end. */
static void guard_reap(const struct guard *g)
{
    siginfo_t si;

    for (;;) {
        memset(&si, 0, sizeof si);
        if (waitid(P_ALL, 0, &si, WEXITED | WNOHANG | WNOWAIT) != 0 || !si.si_pid ||
            si.si_pid == g->child.pid) {
            return;
        }
        waitpid(si.si_pid, NULL, WNOHANG);
    }
}

/* Until the command has ended (its status is set), or is to be ended. */
static void guard_wait(struct guard *g, int life_fd, int *status)
{
    int asked = 0;

    for (;;) {
        struct pollfd fds[4] = {{g->child.pidfd, POLLIN, 0},
                                {g->signals, POLLIN, 0},
                                {life_fd, POLLIN, 0},
                                {g->news, POLLIN, 0}};
        double left = (g->next_shm - proc_now()) * 1000.0;
        int ms = left < 0 ? 0 : left < GUARD_LOOK_MS ? (int)left + 1 : GUARD_LOOK_MS;
        poll(fds, 4, g->child.pidfd < 0 && ms > 20 ? 20 : ms);
        if (proc_ended(&g->child, status)) {
            return;
        }
        if (fds[2].revents) {
            char c;
            if (read(life_fd, &c, 1) == 0) {
                return;
            }
        }
        if (fds[1].revents) {
            struct signalfd_siginfo si;
            if (read(g->signals, &si, sizeof si) == (ssize_t)sizeof si && asked++) {
                return; /* asked twice */
            }
            guard_shm_look(g);
            proc_term(&g->child);
        }
        if (life_fd < 0 && getppid() != g->parent) {
            return;
        }
        if (fds[3].revents) {
            guard_shm_news(g);
        }
        guard_reap(g);
        if (proc_now() >= g->next_shm) {
            guard_shm_look(g);
        }
    }
}

int guard_run(const struct guard_opts *o, int *status, struct err *e)
{
    struct proc_opts po = {.argv = o->argv,
                           .request_fd = -1,
                           .reply_fd = -1,
                           .life_fd = -1,
                           .share_fd = 1, /* its output is ours */
                           .share_as = 1};
    struct guard g = {.signals = -1,
                      .parent = getppid(),
                      .since = time(NULL),
                      .next_shm = proc_now() + GUARD_SHM_S / 2};
    sigset_t set, old;
    int rc = STATUS_OK;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &set, &old);
    g.signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    g.news = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (g.news >= 0) {
        inotify_add_watch(g.news, GUARD_SHM_DIR, IN_CREATE);
    }
    if (o->life_fd >= 0) {
        prctl(PR_SET_PDEATHSIG, 0); /* else we are killed first, and the others live */
    }
    if (o->private_tmp) {
        rc = guard_tmp(&g, e);
    }
    if (rc == STATUS_OK) {
        rc = proc_spawn(&g.child, &po, e);
    }
    if (rc == STATUS_OK) {
        *status = SIGKILL;
        guard_wait(&g, o->life_fd, status);
        guard_shm_look(&g);
        proc_end(&g.child);
        if (proc_sweep(GUARD_SWEEP_S) != STATUS_OK) {
            log_warn(GUARD, "processes of %s did not end after a kill", o->argv[0]);
        }
        guard_shm_remove(&g);
    }
    if (g.tmp[0]) {
        fsio_remove_tree(g.tmp, NULL);
    }
    close(g.signals);
    if (g.news >= 0) {
        close(g.news);
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}
