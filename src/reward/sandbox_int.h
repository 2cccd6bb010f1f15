/* Shared by the files of the sandbox; see sandbox.h. */
#ifndef REWARD_SANDBOX_INT_H
#define REWARD_SANDBOX_INT_H

#include <sys/types.h>

#include "base/buf.h"
#include "base/proc.h"
#include "reward/sandbox.h"
#include "reward/sandbox_wire.h"

/* ---- sandbox_filter.c ---- */

/* The system call filter as bubblewrap's --seccomp wants it, in a new memfd at offset 0; -1 with
 * errno. */
int sandbox_filter_fd(void);

/* ---- sandbox_blob.c: files that come along in our binary ---- */

extern const char sandbox_blob_init[], sandbox_blob_init_end[];
extern const char sandbox_blob_zygote[]; /* NUL-terminated, as the next ones */
extern const char sandbox_blob_call[];
extern const char sandbox_blob_serve[];
extern const char sandbox_blob_judge[];

/* ---- sandbox_cage.c: how a sandbox is made ---- */

enum { SANDBOX_BINDS = 16 };
enum {
    SANDBOX_CODE_ZYGOTE, /* a .pyc file; the others are marshalled code */
    SANDBOX_CODE_CALL,
    SANDBOX_CODE_SERVE,
    SANDBOX_CODE_JUDGE,
    SANDBOX_CODES
};

/* What all sandboxes of a pool have in common. */
struct sandbox_cage {
    char *bwrap, *python; /* paths */
    char *binds[SANDBOX_BINDS];
    char *libs[SANDBOX_BINDS]; /* Python's module folders, in its order */
    int hidden[SANDBOX_BINDS]; /* a bind that nobody may not reach: root mounts it in stage */
    char *stage;               /* folder for that; NULL when there is none */
    int nbinds, nlibs;
    int init_fd, filter_fd;      /* memfds */
    int code_fds[SANDBOX_CODES]; /* memfds: our Python files, compiled by this interpreter */
    int proc_ok;                 /* an own /proc can be mounted here */
    int nproc_ok;                /* RLIMIT_NPROC counts a user namespace by itself here */
    struct sandbox_limits limits;
};

/* Finds bubblewrap and the interpreter. Errors as sandbox_open. */
int sandbox_cage_init(struct sandbox_cage *c, const struct sandbox_opts *o, struct err *e);
void sandbox_cage_fini(struct sandbox_cage *c);
/* Starts words (NULL at the end) inside. o as sandbox_spawn has it. With a data_path the bytes of
 * memfd data_fd are there as that file, and the program is the namespace's process 1 and sets the
 * limits of what it starts itself. */
int sandbox_cage_spawn(const struct sandbox_cage *c, const struct proc_opts *o,
                       const char *const *words, int data_fd, const char *data_path, struct proc *p,
                       struct err *e);
/* A memfd with these bytes, sealed, at offset 0; -1 with errno. */
int sandbox_memfd(const void *data, size_t n);

/* ---- sandbox_box.c: one sandbox and the case in it ---- */

enum sandbox_box_kind { SANDBOX_BOX_PYTHON, SANDBOX_BOX_NATIVE };
enum sandbox_box_state {
    SANDBOX_BOX_NONE,
    SANDBOX_BOX_STARTING, /* waiting for its hello */
    SANDBOX_BOX_WARM,
    SANDBOX_BOX_BUSY, /* a case runs */
    SANDBOX_BOX_TAKEN /* belongs to a job, between two cases */
};

struct sandbox_box {
    enum sandbox_box_kind kind;
    enum sandbox_box_state state;
    struct proc proc; /* bubblewrap's outer half */
    int control;      /* our end; -1 */
    int init_pidfd;   /* the namespace's first process; -1 before the hello */
    pid_t init_pid;
    int log_fd; /* what bubblewrap and the init said */
    double started;
    /* of the case that runs */
    int out_fd, err_fd;
    struct buf out;
    char err[4096]; /* the last of stderr, a ring */
    size_t err_total;
    double began, deadline, next_look;
    int over_output, told; /* told: the init has answered */
    struct sandbox_wire_reply reply;
};

/* Begins to start one. */
int sandbox_box_start(struct sandbox_box *b, const struct sandbox_cage *c,
                      enum sandbox_box_kind kind, struct err *e);
/* Reads the hello. 0 when it is warm, STATUS_AGAIN, STATUS_CHILD with the cause. */
int sandbox_box_hello(struct sandbox_box *b, struct err *e);
/* Kills all of it and waits until it is gone. Fine for a box that is NONE. */
void sandbox_box_end(struct sandbox_box *b);
/* Starts a case. fds are copied into the box: input, output, errors, source, harness or -1; where
 * output is -1 a pipe to us is made. STATUS_CHILD when the box cannot take it. */
int sandbox_box_run(struct sandbox_box *b, const struct sandbox_wire_case *w, const char *blob,
                    size_t blob_len, const int fds[SANDBOX_WIRE_FDS], double wall_s,
                    int64_t output_max, struct err *e);
/* Reads what has come. 0 when the case has ended (the reply is in b->reply), STATUS_AGAIN when not,
 * STATUS_CHILD when the box is gone. */
int sandbox_box_read(struct sandbox_box *b, struct err *e);
/* Memory, processes and files of all that runs inside: 0 when within bounds, else what exceeds. */
const char *sandbox_box_excess(const struct sandbox_box *b, const struct sandbox_limits *l);

/* ---- sandbox_compare.c ---- */

/* 1 when the output is right; else 0 with the place in why. */
int sandbox_compare_text(enum sandbox_compare rule, const char *got, size_t ngot, const char *want,
                         size_t nwant, char *why, size_t n);
/* The same of two JSON values as texts. */
int sandbox_compare_value(enum sandbox_compare rule, const char *got, size_t ngot, const char *want,
                          size_t nwant, char *why, size_t n);
/* Text of a program made fit for a message: one line, valid UTF-8, no control characters, at most
 * n - 1 bytes. */
void sandbox_compare_quote(char *out, size_t n, const char *text, size_t len);

#endif
