/* Owns the last hold on processes that somebody else's program starts. The kernel kills only our
 * direct child when we die (PDEATHSIG), and that may be a shell or a launcher; so a small process
 * of ours stands between. It is the sub-reaper of all that comes from the command, therefore finds
 * all of it, and it learns of our end by an end of file, which no way of dying can prevent. */
#include "run/guard.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/conf.h"
#include "base/fsio.h"
#include "base/log.h"
#include "base/proc.h"
#include "base/status.h"

#define GUARD_SWEEP_S  30.0
#define GUARD_LOOK_MS  1000 /* between two looks at orphans that have ended */
#define GUARD_TMP_LONG 60   /* a socket's path has 107 bytes: names inside need their share */

struct guard {
    struct proc child;
    pid_t parent;
    int signals; /* descriptor */
    char tmp[128];
};

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
        struct pollfd fds[3] = {
            {g->child.pidfd, POLLIN, 0}, {g->signals, POLLIN, 0}, {life_fd, POLLIN, 0}};
        poll(fds, 3, g->child.pidfd < 0 ? 20 : GUARD_LOOK_MS);
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
            proc_term(&g->child);
        }
        if (life_fd < 0 && getppid() != g->parent) {
            return;
        }
        guard_reap(g);
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
    struct guard g = {.signals = -1, .parent = getppid()};
    sigset_t set, old;
    int rc = STATUS_OK;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &set, &old);
    g.signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
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
        proc_end(&g.child);
        if (proc_sweep(GUARD_SWEEP_S) != STATUS_OK) {
            log_warn(GUARD, "processes of %s did not end after a kill", o->argv[0]);
        }
    }
    if (g.tmp[0]) {
        fsio_remove_tree(g.tmp, NULL);
    }
    close(g.signals);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}
