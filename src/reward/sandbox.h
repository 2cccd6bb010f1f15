/* Untrusted programs under bubblewrap, seccomp, rlimits and a wall clock.
 *
 *     struct sandbox_opts o = {.workers = 2};
 *     struct sandbox *s;
 *     struct sandbox_case c = {.input = "1 2\n", .input_len = 4, .expected = "3\n",
 *                              .expected_len = 2};
 *     struct sandbox_job j = {.id = 7, .source = text, .source_len = n, .cases = &c, .ncases = 1};
 *     struct sandbox_result r;
 *     if (sandbox_open(&o, &s, e) == 0) {
 *         sandbox_submit(s, &j, e);
 *         while (sandbox_poll(s, 1.0, &r, e) == 0) { use(&r); sandbox_result_fini(&r); }
 *         sandbox_close(s);
 *     }
 *
 * Every job has a sandbox of its own that nothing ran in before and nothing runs in after: its own
 * user, pid, network, ipc, uts and cgroup namespaces, a root of read-only system folders, a scratch
 * tmpfs with a bound, an empty environment, a list of permitted system calls. Sandboxes are started
 * ahead of the jobs, so a job waits for none of that. Expected outputs never enter the sandbox of
 * the program: outputs come out and are compared here; tests that are code (SANDBOX_ASSERT) run in
 * a second sandbox that talks to the program's by plain values only.
 *
 * What the program does wrong is a verdict; what the sandbox could not do is `failed`, and no
 * program can turn one into the other. Results come in any order. One thread owns a sandbox pool,
 * and lives as long as it (see base/proc.h). No call blocks longer than it says.
 *
 * Needs no root. Started by root, everything inside runs as the host's user 65534 (nobody). */
#ifndef REWARD_SANDBOX_H
#define REWARD_SANDBOX_H

#include <stddef.h>
#include <stdint.h>

struct err;
struct proc;
struct proc_opts;
struct sandbox;

/* Of one case; a field that is 0 takes the pool's, and there the default named here. */
struct sandbox_limits {
    double wall_s;   /* 12: from the case's start until all of it is gone */
    double cpu_s;    /* 6: of each process, rounded up to whole seconds */
    int64_t memory;  /* 1 GB: address space of a process, and resident bytes of all of them */
    int64_t scratch; /* 64 MB: each of /tmp and /dev/shm; a pool's limit, not a job's */
    int64_t output;  /* 1 MB: of stdout; of stderr the last 4 kB are kept */
    int processes;   /* 32: processes and threads at once */
    int files;       /* 64: open files of a process */
};

struct sandbox_opts {
    int workers;   /* jobs at the same time; 0: usable cores. At most 64 */
    int spares;    /* sandboxes of a kind held ready; 0: two per worker, -1: none. At most 32 */
    int queue_max; /* jobs submitted and not yet polled; 0: 4096 */
    const char *python;       /* interpreter; NULL: python3 in PATH */
    const char *bwrap;        /* program; NULL: bwrap in PATH */
    const char *const *binds; /* more host folders to be seen read-only; NULL-terminated, or NULL */
    int wake_fd;              /* sandbox_poll returns at once while this can be read; 0: none */
    struct sandbox_limits limits;
};

enum sandbox_language {
    SANDBOX_PYTHON,
    SANDBOX_NATIVE /* an executable: ELF, or a script whose interpreter is under /usr */
};

enum sandbox_style {
    SANDBOX_STDIO, /* the case's input is its stdin, its stdout is compared */
    SANDBOX_CALL,  /* Python: input is a JSON array of arguments of `entry`, expected its value */
    SANDBOX_ASSERT /* Python: input is test code (asserts) that uses the program's names */
};

enum sandbox_compare {
    SANDBOX_LINES,   /* equal but for blanks at line ends and blank lines at the end */
    SANDBOX_EXACT,   /* equal bytes */
    SANDBOX_NUMBERS, /* words of each line equal; a decimal fraction may differ by 1e-6 relative */
    SANDBOX_NOTHING  /* no comparison: whatever exits with 0 has passed (keep_output) */
};

enum sandbox_verdict {
    SANDBOX_PASSED,
    SANDBOX_WRONG,   /* another output, another value, a failed assertion */
    SANDBOX_TIMEOUT, /* wall clock or cpu seconds */
    SANDBOX_MEMORY,
    SANDBOX_OUTPUT,  /* more than the limit */
    SANDBOX_EXITED,  /* exit status that is not 0; an exception in Python */
    SANDBOX_CRASHED, /* ended by a signal */
    SANDBOX_REFUSED, /* ended by the system call filter */
    SANDBOX_SKIPPED  /* not run: one before it failed and the job said stop */
};

struct sandbox_case {
    const char *input; /* NULL: empty */
    size_t input_len;
    const char *expected; /* NULL: empty */
    size_t expected_len;
    const char *const *args; /* argv[1..], NULL-terminated; NULL: none */
};

/* Read during sandbox_submit only: all is copied. */
struct sandbox_job {
    int64_t id; /* the caller's, need not be unique */
    enum sandbox_language language;
    enum sandbox_style style;
    enum sandbox_compare compare;
    const char *source; /* Python text, or the bytes of an executable */
    size_t source_len;
    const char *path;  /* SANDBOX_NATIVE: a file of the host instead of bytes */
    const char *entry; /* SANDBOX_CALL: name of the function, or of a method of class Solution */
    const struct sandbox_case *cases;
    int ncases;
    int go_on;       /* run the cases after one that failed too */
    int keep_output; /* each outcome has the stdout */
    struct sandbox_limits limits;
};

struct sandbox_outcome {
    enum sandbox_verdict verdict;
    double seconds, cpu_seconds;
    int64_t peak; /* bytes of its largest process */
    int status;   /* as wait gives it; -1 when it had to be killed from outside */
    char *output; /* with keep_output, NUL-terminated; else NULL */
    size_t output_len;
};

struct sandbox_result {
    int64_t id;
    int failed;                    /* the sandbox, not the program: there is no verdict */
    int passed;                    /* cases; of asserts those that held */
    int total;                     /* cases; of asserts their number */
    int first_bad;                 /* index of the first case that did not pass, or -1 */
    enum sandbox_verdict verdict;  /* of that case; SANDBOX_PASSED when all did */
    double seconds;                /* from dispatch until the end */
    char reason[256];              /* one line, always there: "passed 3 of 3", "case 2: ..." */
    struct sandbox_outcome *cases; /* ncases; one for SANDBOX_ASSERT */
    int ncases;
};

/* Looks that a sandbox can be had here by starting one. STATUS_NOTFOUND without bubblewrap (with
 * the sentence what to install) or without the interpreter, STATUS_UNSUPPORTED where the system
 * forbids user namespaces (with the setting to change). */
int sandbox_open(const struct sandbox_opts *o, struct sandbox **out, struct err *e);
/* STATUS_AGAIN when the queue is full: poll first. STATUS_INPUT for a job that makes no sense. */
int sandbox_submit(struct sandbox *s, const struct sandbox_job *j, struct err *e);
/* 0 with a result, to be released with sandbox_result_fini; STATUS_AGAIN when none came within
 * wait_s seconds; at once when nothing is pending. */
int sandbox_poll(struct sandbox *s, double wait_s, struct sandbox_result *out, struct err *e);
int sandbox_pending(const struct sandbox *s); /* submitted and not yet polled */
/* Kills all that runs, reaps it, drops what is pending. Takes NULL. */
void sandbox_close(struct sandbox *s);
void sandbox_result_fini(struct sandbox_result *r);
const char *sandbox_verdict_name(enum sandbox_verdict v); /* "passed", "wrong output", ... */

/* For long-lived helpers of our own that handle hostile input (a computer algebra worker): like
 * proc_spawn, but the program runs in a sandbox. o->request_fd, reply_fd, life_fd and log_fd mean
 * what they mean there; o->argv[0] is a path that exists inside (see sandbox_opts.binds; the
 * folders of an interpreter named by `python` are added by themselves). Of the limits memory, files
 * and scratch hold; processes, cpu_s and wall_s are the caller's business, who ends it with
 * proc_end: that takes everything inside with it. Errors as sandbox_open. */
int sandbox_spawn(const struct sandbox_opts *so, const struct proc_opts *o, struct proc *p,
                  struct err *e);

#endif
