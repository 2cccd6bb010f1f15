/* Child processes: start with pipes of their own, talk without blocking, end without a trace.
 *
 *     const char *argv[] = {"python3", "-c", script, NULL};
 *     struct proc_opts o = {.argv = argv, .request_fd = 3, .reply_fd = 4, .life_fd = -1};
 *     struct proc p;
 *     if (proc_spawn(&p, &o, e) == 0) {
 *         proc_write(&p, line, n, &done, e);
 *         proc_read_line(&p, &in, proc_now() + 5.0, &len, e);
 *         proc_end(&p);
 *     }
 *
 * Every child leads a process group of its own and is killed by that group. It dies with us
 * (PDEATHSIG) even if we are killed by SIGKILL. The kernel ties PDEATHSIG to the *thread* that
 * called proc_spawn: that thread must live as long as the child is wanted. The first spawn makes
 * this process a sub-reaper, so that what a child leaves behind comes to us and is reaped in
 * proc_end. A struct proc belongs to one thread at a time. */
#ifndef BASE_PROC_H
#define BASE_PROC_H

#include <stddef.h>

struct buf;
struct err;

struct proc_opts {
    const char *const *argv; /* NULL at the end; argv[0] is looked up in PATH */
    int request_fd;   /* descriptor on which the child reads what we write; -1 none, 0 its stdin */
    int reply_fd;     /* descriptor on which the child writes what we read; -1 none, 1 its stdout */
    int life_fd;      /* descriptor that gives the child end of file when we are gone; -1 none */
    const char *path; /* file to run instead of looking argv[0] up */
    int log_fd;       /* ours: the child's stderr, and its stdout unless that is a pipe; 0 none */
    int share_fd;     /* ours: the child has it as share_as; counts when share_as is not 0 */
    int share_as;
    const int (*shares)[2]; /* more of them: {ours, its number in the child}; at most 8 */
    int nshares;
    /* Called in the child before exec; our descriptors are still there. It runs in our memory:
     * system calls only, and of those that glibc makes more of (setuid) the bare one. Not 0 is an
     * errno that ends the start. */
    int (*prepare)(void *arg);
    void *prepare_arg;
    int own_death; /* 1: the program sees to it itself that it dies with us */
};

struct proc {
    int pid;      /* also the number of its process group; 0 when there is no child */
    int to, from; /* our ends, non-blocking; -1 when absent */
    int life;     /* our end of the life line; -1 when absent */
    int pidfd;    /* readable once the child has ended; -1 where the kernel has none */
};

enum { PROC_READ = 1, PROC_WRITE = 2, PROC_ENDED = 4 };

/* Starts a child. Its stdin is /dev/null, its stdout and stderr are our stderr unless the options
 * say otherwise; no other descriptor is inherited. STATUS_NOTFOUND when the program
 * does not exist, STATUS_CHILD when it cannot be started. */
int proc_spawn(struct proc *p, const struct proc_opts *o, struct err *e);

/* Writes what fits. *done bytes were taken (maybe fewer than n). STATUS_AGAIN when none fits now,
 * STATUS_CHILD when the child does not read any more. */
int proc_write(struct proc *p, const void *data, size_t n, size_t *done, struct err *e);

/* Appends what has arrived to b, at most 1 MB a call. STATUS_AGAIN when nothing is there,
 * STATUS_END at end of file, STATUS_NOMEM when b's ceiling is reached. */
int proc_read(struct proc *p, struct buf *b, struct err *e);

/* Waits until b holds a whole line; *len is its length with the newline. The caller takes it out
 * with buf_shift. STATUS_TIMEOUT after `deadline` (on the clock of proc_now), STATUS_END when the
 * child ended or closed its side before, STATUS_NOMEM when the line is longer than b may be. */
int proc_read_line(struct proc *p, struct buf *b, double deadline, size_t *len, struct err *e);

/* Waits at most wait_s seconds (0 looks only) until one of n children has something: want[i] says
 * what is of interest (PROC_READ, PROC_WRITE; PROC_ENDED always is), got[i] what happened. Entries
 * with pid 0 are skipped. Returns how many have something; 0 after the wait, also when a signal
 * interrupted it. A closed pipe counts as readable or writable. */
int proc_poll(struct proc *const *ps, const int *want, int *got, int n, double wait_s);

/* 1 when the child has ended (it stays a zombie until proc_end), with its wait status. */
int proc_ended(const struct proc *p, int *status);

/* Asks the child, and it alone, to end: SIGTERM. */
void proc_term(const struct proc *p);

/* Kills the child, its process group and all its descendants, reaps them, closes our ends. Takes
 * NULL, and a proc that is zero or already ended. Waits for the kernel, milliseconds as a rule and
 * 30 seconds at the very most. A descendant that left the group *and* lost its parent before this
 * call is not found. */
void proc_end(struct proc *p);

/* Descendants of process `root` that stand in a line of parents up to it, at most max; their
 * number.
 */
size_t proc_below(int root, int *pids, size_t max);
/* Kills and reaps every descendant of this process, whatever started it; for a process that wants
 * to keep none. 0, or STATUS_TIMEOUT when some are left after wait_s. */
int proc_sweep(double wait_s);

/* "exit status 3", "killed by signal 11 (Segmentation fault)" into out. */
void proc_describe(int status, char *out, size_t n);

/* Seconds on the monotonic clock, for deadlines. */
double proc_now(void);

/* Lets this process open as many files as the system lets it have: raises the soft limit to the
 * hard one, at most to `want` (0: 65536). Returns the limit that holds then. */
long proc_raise_files(long want);

#endif
