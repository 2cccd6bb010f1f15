/* Owns the first process inside a sandbox of native programs. It is a program of its own, linked
 * without our libraries and carried in our binary (sandbox_blob.c): bubblewrap writes it into the
 * sandbox as /init. Being process 1 of the namespace, no signal from inside ends it, every orphan
 * comes to it, and its end is everybody's end.
 *
 * For each case (sandbox_wire.h): start the program, wait for it, kill whatever else there is, say
 * how it ended. It holds no secret: what it is told is what the program gets. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "reward/sandbox_wire.h"

enum { MAX_ARGS = 1024, STACK = 64 << 20 };

static union {
    struct sandbox_wire_case head;
    char bytes[sizeof(struct sandbox_wire_case) + SANDBOX_WIRE_BLOB];
} message;
static char *words[MAX_ARGS + 2];

static void limit(int what, int64_t soft, int64_t hard)
{
    struct rlimit r;

    if (getrlimit(what, &r) == 0) {
        rlim_t h = (rlim_t)hard < r.rlim_max ? (rlim_t)hard : r.rlim_max;
        r.rlim_cur = (rlim_t)soft < h ? (rlim_t)soft : h;
        r.rlim_max = h;
        setrlimit(what, &r);
    }
}

/* Receives a case. 0, or -1 at the end of the pool. */
static int receive(int fds[SANDBOX_WIRE_FDS], int *nfds)
{
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(SANDBOX_WIRE_FDS * sizeof(int))];
    } control;
    struct iovec part = {message.bytes, sizeof message.bytes - 1};
    struct msghdr m = {.msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = control.bytes,
                       .msg_controllen = sizeof control.bytes};
    ssize_t got;

    do {
        got = recvmsg(SANDBOX_WIRE_FD, &m, MSG_CMSG_CLOEXEC);
    } while (got < 0 && errno == EINTR);
    if (got < (ssize_t)sizeof message.head) {
        return -1;
    }
    message.bytes[got] = 0;
    *nfds = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
            *nfds = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
            memcpy(fds, CMSG_DATA(c), (size_t)*nfds * sizeof(int));
        }
    }
    return *nfds >= 4 ? 0 : -1;
}

static void run(const int *fds, int report)
{
    static char name[] = "program", *empty[] = {"PATH=/usr/bin:/bin", "HOME=/tmp", "LANG=C.UTF-8",
                                                "MALLOC_ARENA_MAX=1", NULL};
    const struct sandbox_wire_case *w = &message.head;
    char folder[] = "/tmp/case0000", *at = message.bytes + sizeof message.head;
    int64_t n = w->serial, nwords = w->nargs < MAX_ARGS ? w->nargs : MAX_ARGS;
    int error;

    for (int i = 0; i < 4; i++, n /= 10) {
        folder[12 - i] = (char)('0' + n % 10);
    }
    mkdir(folder, 0755);
    if (chdir(folder) != 0) {
        chdir("/tmp");
    }
    words[0] = name;
    for (int64_t i = 0; i < nwords; i++) {
        words[i + 1] = at;
        at += strlen(at) + 1;
    }
    words[nwords + 1] = NULL;
    for (int i = 0; i < 3; i++) {
        dup2(fds[i], i);
    }
    limit(RLIMIT_CPU, w->cpu_s, w->cpu_s + 1);
    limit(RLIMIT_FSIZE, w->file_size, w->file_size);
    limit(RLIMIT_NOFILE, w->files, w->files);
    limit(RLIMIT_STACK, STACK, STACK);
    limit(RLIMIT_CORE, 0, 0);
    limit(RLIMIT_MEMLOCK, 0, 0);
    limit(RLIMIT_MSGQUEUE, 0, 0);
    limit(RLIMIT_SIGPENDING, 256, 256);
    if (w->processes > 0) {
        limit(RLIMIT_NPROC, w->processes + 1, w->processes + 1); /* one is the init */
    }
    limit(RLIMIT_AS, w->memory, w->memory);
    syscall(SYS_execveat, fds[3], "", words, empty, 0x1000 /* AT_EMPTY_PATH */);
    if (errno == ENOENT) { /* a script: its interpreter opens the file by this name */
        fcntl(fds[3], F_SETFD, 0);
        syscall(SYS_execveat, fds[3], "", words, empty, 0x1000);
    }
    error = errno;
    (void)!write(report, &error, sizeof error);
    _exit(127);
}

int main(void)
{
    int fds[SANDBOX_WIRE_FDS], nfds;

    fcntl(SANDBOX_WIRE_FD, F_SETFD, FD_CLOEXEC);
    /* Its memory is closed to the others: what it says about a program's end must not be the
     * program's words. */
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    if (send(SANDBOX_WIRE_FD, "ready", 5, MSG_NOSIGNAL) != 5) {
        return 1;
    }
    while (receive(fds, &nfds) == 0) {
        struct sandbox_wire_reply r = {.status = -1};
        struct rusage use;
        int report[2], error = 0, status;
        pid_t pid, got;

        if (pipe2(report, O_CLOEXEC) != 0) {
            return 1;
        }
        pid = fork();
        if (pid == 0) {
            close(report[0]);
            run(fds, report[1]);
        }
        close(report[1]);
        for (int i = 0; i < nfds; i++) {
            close(fds[i]);
        }
        while (pid > 0 && (got = wait4(-1, &status, 0, &use)) != -1) {
            if (got == pid) {
                r.status = status;
                r.cpu_us = (use.ru_utime.tv_sec + use.ru_stime.tv_sec) * INT64_C(1000000) +
                           use.ru_utime.tv_usec + use.ru_stime.tv_usec;
                r.peak_kb = use.ru_maxrss;
                break;
            }
        }
        kill(-1, SIGKILL);
        while (wait4(-1, &status, 0, NULL) > 0) {
        }
        if (pid < 0 || read(report[0], &error, sizeof error) == (ssize_t)sizeof error) {
            r.status = -1;
            r.error = pid < 0 ? EAGAIN : error;
        }
        close(report[0]);
        if (send(SANDBOX_WIRE_FD, &r, sizeof r, MSG_NOSIGNAL) != (ssize_t)sizeof r) {
            return 1;
        }
    }
    return 0;
}
