/* Owns how children begin and end. vfork instead of fork: a trainer holds many gigabytes, and
 * copying its page tables (or being refused for overcommit) for a small helper is a waste. Between
 * vfork and exec the child shares our memory, so it makes system calls only. */
#include "base/proc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"

enum {
    FD_FLOOR = 64,       /* our copies for the child lie above any number it may want */
    FD_LEAST = 96,       /* files that we may have open at least, to start one */
    MAX_CHILDREN = 256,  /* of one proc_poll */
    MAX_PROCS = 1 << 17, /* of the whole system, in a scan for descendants */
    READ_MAX = 1 << 20,  /* bytes of one proc_read */
    MAX_SHARES = 8,      /* of proc_opts.shares */
    SLICE_MS = 20        /* look-again period where the kernel has no pidfd */
};

double proc_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

long proc_raise_files(long want)
{
    struct rlimit r;
    rlim_t most = (rlim_t)(want > 0 ? want : 65536);

    if (getrlimit(RLIMIT_NOFILE, &r)) {
        return 0;
    }
    most = r.rlim_max != RLIM_INFINITY && r.rlim_max < most ? r.rlim_max : most;
    if (r.rlim_cur < most) {
        rlim_t before = r.rlim_cur;
        r.rlim_cur = most;
        r.rlim_cur = setrlimit(RLIMIT_NOFILE, &r) ? before : most;
    }
    return (long)r.rlim_cur;
}

static void nap_ms(int ms)
{
    struct timespec t = {0, ms * 1000000L};
    nanosleep(&t, NULL);
}

/* ---- start ---- */

struct launch {
    const char *path, *const *argv;
    int from[16], to[16], n; /* dup2(from, to) in the child */
    int (*prepare)(void *arg);
    void *prepare_arg;
    int own_death;
    pid_t parent;
    volatile int error; /* errno of the exec that failed; memory is shared under vfork */
};

/* Runs in the child, in our memory: system calls only, no return. */
static __attribute__((noinline, noreturn)) void child_main(struct launch *l)
{
    struct sigaction dfl;
    struct rlimit no_core = {0, 0};
    sigset_t none;

    memset(&dfl, 0, sizeof dfl);
    dfl.sa_handler = SIG_DFL;
    for (int s = 1; s < 65; s++) {
        sigaction(s, &dfl, NULL);
    }
    setpgid(0, 0);
    setrlimit(RLIMIT_CORE, &no_core);
    if (l->prepare && (l->error = l->prepare(l->prepare_arg)) != 0) {
        _exit(127);
    }
    /* After prepare: a change of user takes the death signal away. */
    if (!l->own_death && (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != l->parent)) {
        _exit(127);
    }
#ifdef SYS_close_range
    /* What some library opened without CLOEXEC must not leak. 4 is CLOSE_RANGE_CLOEXEC; the
     * table of descriptors is the child's own. */
    syscall(SYS_close_range, 3U, ~0U, 4U);
#endif
    for (int i = 0; i < l->n; i++) {
        if (dup2(l->from[i], l->to[i]) < 0) {
            l->error = errno;
            _exit(127);
        }
    }
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execvp(l->path, (char *const *)l->argv);
    l->error = errno;
    _exit(127);
}

static __attribute__((noinline)) pid_t launch_child(struct launch *l)
{
    pid_t pid = vfork();
    if (pid == 0) {
        child_main(l);
    }
    return pid;
}

/* A pipe whose child end lies above FD_FLOOR; ends[0] is read, ends[1] written. */
static int pipe_pair(int ends[2], int child_end, struct err *e)
{
    int high;

    if (pipe2(ends, O_CLOEXEC) != 0) {
        ends[0] = ends[1] = -1;
        return ERR(e, STATUS_IO, "cannot make a pipe: %s", strerror(errno));
    }
    high = fcntl(ends[child_end], F_DUPFD_CLOEXEC, FD_FLOOR);
    if (high < 0) {
        return ERR(e, STATUS_IO, "cannot copy a descriptor: %s", strerror(errno));
    }
    close(ends[child_end]);
    ends[child_end] = high;
    fcntl(ends[!child_end], F_SETFL, O_NONBLOCK);
    return 0;
}

static void close_fd(int *fd)
{
    if (*fd >= 0) {
        close(*fd);
    }
    *fd = -1;
}

static void add_fd(struct launch *l, int from, int to)
{
    l->from[l->n] = from;
    l->to[l->n++] = to;
}

static int start(struct proc *p, struct launch *l, struct err *e)
{
    sigset_t all, old;
    pid_t pid;

    prctl(PR_SET_CHILD_SUBREAPER, 1);
    l->parent = getpid();
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pid = launch_child(l);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (pid < 0) {
        return ERR(e, STATUS_CHILD, "cannot start %s: %s", l->path, strerror(errno));
    }
    if (l->error) {
        waitpid(pid, NULL, 0);
        return ERR(e, l->error == ENOENT ? STATUS_NOTFOUND : STATUS_CHILD, "cannot start %s: %s",
                   l->path, strerror(l->error));
    }
    p->pid = pid;
#ifdef SYS_pidfd_open
    p->pidfd = (int)syscall(SYS_pidfd_open, pid, 0U);
#endif
    return 0;
}

int proc_spawn(struct proc *p, const struct proc_opts *o, struct err *e)
{
    struct launch l = {.path = o->path ? o->path : o->argv[0],
                       .argv = o->argv,
                       .prepare = o->prepare,
                       .prepare_arg = o->prepare_arg,
                       .own_death = o->own_death};
    struct proc made = {0, -1, -1, -1, -1};
    int req[2] = {-1, -1}, rep[2] = {-1, -1}, life[2] = {-1, -1};
    int null_fd = -1, err_fd = -1, share_fd = -1, more[MAX_SHARES], nmore = 0;
    int rc = 0;

    ASSERT(o->nshares >= 0 && o->nshares <= MAX_SHARES);
    memset(p, 0, sizeof *p);
    p->to = p->from = p->life = p->pidfd = -1;
    if (proc_raise_files(FD_LEAST) < FD_LEAST) {
        return ERR(e, STATUS_CHILD,
                   "cannot start %s: it takes %d open files, and the limit is %ld (ulimit -n)",
                   l.path, FD_LEAST, proc_raise_files(0));
    }
    null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null_fd >= 0 && null_fd < FD_FLOOR) {
        int high = fcntl(null_fd, F_DUPFD_CLOEXEC, FD_FLOOR);
        close(null_fd);
        null_fd = high;
    }
    if (null_fd < 0) {
        rc = ERR(e, STATUS_IO, "cannot open /dev/null: %s", strerror(errno));
        goto out;
    }
    err_fd = fcntl(o->log_fd > 0 ? o->log_fd : 2, F_DUPFD_CLOEXEC, FD_FLOOR);
    add_fd(&l, null_fd, 0);
    add_fd(&l, err_fd >= 0 ? err_fd : null_fd, 1);
    add_fd(&l, err_fd >= 0 ? err_fd : null_fd, 2);
    if (o->request_fd >= 0) {
        if ((rc = pipe_pair(req, 0, e)) != 0) {
            goto out;
        }
        add_fd(&l, req[0], o->request_fd);
    }
    if (o->reply_fd >= 0) {
        if ((rc = pipe_pair(rep, 1, e)) != 0) {
            goto out;
        }
        add_fd(&l, rep[1], o->reply_fd);
    }
    if (o->life_fd >= 0) {
        if ((rc = pipe_pair(life, 0, e)) != 0) {
            goto out;
        }
        add_fd(&l, life[0], o->life_fd);
    }
    if (o->share_as > 0) {
        share_fd = fcntl(o->share_fd, F_DUPFD_CLOEXEC, FD_FLOOR);
        if (share_fd < 0) {
            rc = ERR(e, STATUS_IO, "cannot share descriptor %d: %s", o->share_fd, strerror(errno));
            goto out;
        }
        add_fd(&l, share_fd, o->share_as);
    }
    for (int i = 0; i < o->nshares; i++) {
        more[nmore] = fcntl(o->shares[i][0], F_DUPFD_CLOEXEC, FD_FLOOR);
        if (more[nmore] < 0) {
            rc = ERR(e, STATUS_IO, "cannot share descriptor %d: %s", o->shares[i][0],
                     strerror(errno));
            goto out;
        }
        add_fd(&l, more[nmore++], o->shares[i][1]);
    }
    rc = start(&made, &l, e);
    if (rc == 0) {
        made.to = req[1];
        made.from = rep[0];
        made.life = life[1];
        req[1] = rep[0] = life[1] = -1;
        *p = made;
    }
out:
    close_fd(&null_fd);
    close_fd(&err_fd);
    close_fd(&share_fd);
    for (int i = 0; i < nmore; i++) {
        close_fd(&more[i]);
    }
    for (int i = 0; i < 2; i++) {
        close_fd(&req[i]);
        close_fd(&rep[i]);
        close_fd(&life[i]);
    }
    return rc;
}

/* ---- talk ---- */

/* A write to a pipe nobody reads raises SIGPIPE; the signal is blocked in this thread and taken out
 * of its queue, so that the process's own disposition does not matter. */
static ssize_t write_quiet(int fd, const void *data, size_t n)
{
    sigset_t pipe_set, old, pending;
    struct timespec zero = {0, 0};
    int was_pending, saved;
    ssize_t done;

    sigemptyset(&pipe_set);
    sigaddset(&pipe_set, SIGPIPE);
    sigpending(&pending);
    was_pending = sigismember(&pending, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_set, &old);
    done = write(fd, data, n);
    saved = errno;
    if (done < 0 && saved == EPIPE && !was_pending) {
        while (sigtimedwait(&pipe_set, NULL, &zero) < 0 && errno == EINTR) {
        }
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    errno = saved;
    return done;
}

int proc_write(struct proc *p, const void *data, size_t n, size_t *done, struct err *e)
{
    ssize_t w;

    if (p->to < 0) {
        return ERR(e, STATUS_CHILD, "the child's request pipe is closed");
    }
    do {
        w = write_quiet(p->to, data, n);
    } while (w < 0 && errno == EINTR);
    if (w >= 0) {
        *done = (size_t)w;
        return 0;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
        *done = 0;
        return STATUS_AGAIN;
    }
    return ERR(e, STATUS_CHILD, "cannot write to child %d: %s", p->pid, strerror(errno));
}

int proc_read(struct proc *p, struct buf *b, struct err *e)
{
    char chunk[16384];
    size_t got = 0;

    if (p->from < 0) {
        return STATUS_END;
    }
    while (got < READ_MAX) {
        ssize_t r = read(p->from, chunk, sizeof chunk);
        if (r > 0) {
            buf_add(b, chunk, (size_t)r);
            if (buf_status(b) != 0) {
                return ERR(e, STATUS_NOMEM, "child %d sent more than %zu bytes at once", p->pid,
                           b->max);
            }
            got += (size_t)r;
        } else if (r == 0) {
            return got ? 0 : STATUS_END;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return got ? 0 : STATUS_AGAIN;
        } else if (errno != EINTR) {
            return ERR(e, STATUS_IO, "cannot read from child %d: %s", p->pid, strerror(errno));
        }
    }
    return 0;
}

int proc_read_line(struct proc *p, struct buf *b, double deadline, size_t *len, struct err *e)
{
    size_t seen = 0;

    for (;;) {
        char *nl = memchr(b->data + seen, '\n', b->len - seen);
        int want = PROC_READ, got, rc;
        double left = deadline - proc_now();
        if (nl) {
            *len = (size_t)(nl - b->data) + 1;
            return 0;
        }
        seen = b->len;
        rc = proc_read(p, b, e);
        if (rc < 0 || rc == STATUS_END) {
            return rc;
        }
        if (rc == 0) {
            continue;
        }
        if (left <= 0) {
            return ERR(e, STATUS_TIMEOUT, "child %d did not answer in time", p->pid);
        }
        proc_poll(&p, &want, &got, 1, left);
        if ((got & PROC_ENDED) && !(got & PROC_READ)) {
            /* What it wrote last may have come between the read and the end. */
            rc = proc_read(p, b, e);
            if (rc != 0) {
                return rc == STATUS_AGAIN ? STATUS_END : rc;
            }
        }
    }
}

static int poll_once(struct proc *const *ps, const int *want, int *got, int n, int ms)
{
    struct pollfd fds[3 * MAX_CHILDREN];
    int who[3 * MAX_CHILDREN], what[3 * MAX_CHILDREN];
    int nfds = 0, hits = 0, rc;

    for (int i = 0; i < n; i++) {
        const struct proc *p = ps[i];
        got[i] = 0;
        if (p->pid == 0) {
            continue;
        }
        struct {
            int fd, on, events, what;
        } ask[3] = {{p->from, want[i] & PROC_READ, POLLIN, PROC_READ},
                    {p->to, want[i] & PROC_WRITE, POLLOUT, PROC_WRITE},
                    {p->pidfd, 1, POLLIN, PROC_ENDED}};
        for (int k = 0; k < 3; k++) {
            if (ask[k].fd >= 0 && ask[k].on) {
                fds[nfds].fd = ask[k].fd;
                fds[nfds].events = (short)ask[k].events;
                fds[nfds].revents = 0;
                who[nfds] = i;
                what[nfds++] = ask[k].what;
            }
        }
    }
    rc = poll(fds, (nfds_t)nfds, ms);
    for (int k = 0; rc > 0 && k < nfds; k++) {
        if (fds[k].revents) {
            got[who[k]] |= what[k];
        }
    }
    for (int i = 0; i < n; i++) {
        if (ps[i]->pid && ps[i]->pidfd < 0 && proc_ended(ps[i], NULL)) {
            got[i] |= PROC_ENDED;
        }
        hits += got[i] != 0;
    }
    return rc < 0 && errno != EINTR && !hits ? -1 : hits;
}

int proc_poll(struct proc *const *ps, const int *want, int *got, int n, double wait_s)
{
    double deadline = proc_now() + (wait_s > 0 ? wait_s : 0);
    int blind = 0;

    ASSERT(n >= 0 && n <= MAX_CHILDREN);
    for (int i = 0; i < n; i++) {
        blind |= ps[i]->pid && ps[i]->pidfd < 0;
    }
    for (;;) {
        double left = deadline - proc_now();
        int ms = left <= 0 ? 0 : left > 1e6 ? 1000000000 : (int)(left * 1e3) + 1;
        int slice = blind && ms > SLICE_MS ? SLICE_MS : ms;
        int hits = poll_once(ps, want, got, n, slice);
        if (hits > 0 || left <= 0 || !blind) {
            return hits > 0 ? hits : 0;
        }
    }
}

/* ---- end ---- */

int proc_ended(const struct proc *p, int *status)
{
    siginfo_t si;

    memset(&si, 0, sizeof si);
    if (p->pid <= 0 || waitid(P_PID, (id_t)p->pid, &si, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        si.si_pid != p->pid) {
        return 0;
    }
    if (status) {
        *status = si.si_code == CLD_EXITED ? (si.si_status & 0xff) << 8 : si.si_status & 0x7f;
    }
    return 1;
}

void proc_describe(int status, char *out, size_t n)
{
    if (WIFSIGNALED(status)) {
        snprintf(out, n, "killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    } else {
        snprintf(out, n, "exit status %d", WEXITSTATUS(status));
    }
}

struct pair {
    pid_t pid, ppid;
};

/* pid and parent of every process of the system; the count. */
static size_t list_processes(struct pair *out, size_t max)
{
    DIR *d = opendir("/proc");
    struct dirent *ent;
    size_t n = 0;

    while (d && n < max && (ent = readdir(d)) != NULL) {
        char path[64], text[512], *close_paren;
        long pid = strtol(ent->d_name, NULL, 10);
        int fd, ppid;
        ssize_t r;
        if (pid <= 0) {
            continue;
        }
        snprintf(path, sizeof path, "/proc/%ld/stat", pid);
        fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0) {
            continue;
        }
        r = read(fd, text, sizeof text - 1);
        close(fd);
        if (r <= 0) {
            continue;
        }
        text[r] = 0;
        close_paren = strrchr(text, ')'); /* the name inside may hold anything */
        if (close_paren && sscanf(close_paren + 1, " %*c %d", &ppid) == 1) {
            out[n].pid = (pid_t)pid;
            out[n++].ppid = ppid;
        }
    }
    if (d) {
        closedir(d);
    }
    return n;
}

size_t proc_below(int root, int *pids, size_t max)
{
    struct pair *all = mem_alloc(MAX_PROCS * sizeof *all);
    size_t n = list_processes(all, MAX_PROCS), found = 0, next = 0;
    pid_t parent = root;

    for (;;) {
        for (size_t i = 0; i < n; i++) {
            if (all[i].ppid == parent && found < max) {
                pids[found++] = all[i].pid;
            }
        }
        if (next == found) {
            break;
        }
        parent = pids[next++];
    }
    mem_free(all);
    return found;
}

/* Kills what the child started, also in other sessions, while the child still stands as their
 * ancestor. Fills found with their pids; the count. */
static size_t kill_descendants(pid_t root, pid_t *found, size_t max)
{
    size_t n = proc_below(root, found, max);

    for (size_t i = 0; i < n; i++) {
        kill(found[i], SIGKILL);
    }
    return n;
}

/* Reaps the group and the listed processes, which come to us as sub-reaper once their own parents
 * are gone. */
static void reap_all(pid_t group, const pid_t *others, size_t nothers, double deadline)
{
    for (;;) {
        int left = 0;
        while (waitpid(-group, NULL, WNOHANG) > 0) {
        }
        if (kill(-group, SIGKILL) == 0) {
            left = 1;
        }
        for (size_t i = 0; i < nothers; i++) {
            pid_t r = waitpid(others[i], NULL, WNOHANG);
            left |= r == 0 || (r < 0 && kill(others[i], 0) == 0);
        }
        if (!left) {
            return;
        }
        if (proc_now() > deadline) {
            log_warn(PROC, "processes of group %d did not end after a kill", (int)group);
            return;
        }
        nap_ms(1);
    }
}

void proc_term(const struct proc *p)
{
    if (p->pid > 0) {
        kill(p->pid, SIGTERM);
        kill(p->pid, SIGCONT); /* a stopped one would not hear it */
    }
}

int proc_sweep(double wait_s)
{
    enum { MAX_FOUND = 4096 };
    pid_t *found = mem_alloc(MAX_FOUND * sizeof *found);
    double deadline = proc_now() + wait_s;
    int rc = STATUS_AGAIN;

    /* What loses its parent comes to us, the sub-reaper: without children there is nothing left. */
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    while (rc == STATUS_AGAIN) {
        pid_t r;
        while ((r = waitpid(-1, NULL, WNOHANG)) > 0) {
        }
        if (r < 0 && errno == ECHILD) {
            rc = STATUS_OK;
        } else if (proc_now() > deadline) {
            rc = STATUS_TIMEOUT;
        } else {
            kill_descendants(getpid(), found, MAX_FOUND);
            nap_ms(1);
        }
    }
    mem_free(found);
    return rc;
}

void proc_end(struct proc *p)
{
    enum { MAX_FOUND = 4096 };
    double deadline = proc_now() + 30.0; /* on a crowded machine even dying takes a while */

    if (!p) {
        return;
    }
    if (p->pid > 0) {
        pid_t *found = mem_alloc(MAX_FOUND * sizeof *found);
        size_t n;
        kill(-p->pid, SIGSTOP); /* so that it starts nothing new while we look */
        n = kill_descendants(p->pid, found, MAX_FOUND);
        kill(-p->pid, SIGKILL);
        kill(p->pid, SIGKILL); /* in case it moved to another group */
        while (waitpid(p->pid, NULL, WNOHANG) == 0 && proc_now() < deadline) {
            nap_ms(1);
        }
        reap_all(p->pid, found, n, deadline);
        mem_free(found);
        close_fd(&p->to);
        close_fd(&p->from);
        close_fd(&p->life);
        close_fd(&p->pidfd);
    }
    p->pid = 0;
    p->to = p->from = p->life = p->pidfd = -1;
}
