/* Questions of algebra for sympy, in Python processes of their own.
 *
 *     struct mathsym *m;
 *     mathsym_open(&(struct mathsym_opts){.workers = 2, .timeout_s = 5}, &m, &e);
 *     mathsym_submit(m, 7, verdict.ask, &e);                 ask: of an unknown struct mathverdict
 *     while (mathsym_poll(m, 0.1, &r, &e) == 0) { use(r.id, &r.v); mathverdict_fini(&r.v); }
 *     mathsym_close(m);
 *
 * Nothing blocks but open and a poll with a wait. A question that takes too long, too much memory
 * or that sympy cannot decide comes back unknown (-1) with its reason, never as wrong. Answers are
 * kept, the newest `cache` of them, and a question that is already under way is not asked twice.
 * The processes run in sandboxes (sandbox.h), without network and with bounded memory.
 * One thread owns it, and lives as long as it (see base/proc.h). */
#ifndef REWARD_MATHSYM_H
#define REWARD_MATHSYM_H

#include <stdint.h>

#include "reward/mathverdict.h"

struct err;
struct mathsym;

struct mathsym_opts {
    const char *python; /* interpreter with sympy; NULL is python3 */
    int workers;        /* processes; 0 is 1 */
    double timeout_s;   /* of one question; 0 is 5 */
    int cache;          /* answers kept; 0 is 65536 */
};

struct mathsym_result {
    int64_t id;
    struct mathverdict v; /* the caller's to mathverdict_fini; ask is NULL */
};

/* Starts the processes and waits until sympy is loaded in each. STATUS_INPUT with Python's message
 * when there is no sympy, STATUS_NOTFOUND without an interpreter. */
int mathsym_open(const struct mathsym_opts *o, struct mathsym **out, struct err *e);
/* STATUS_AGAIN when the queue is full: poll first. STATUS_INPUT when ask is no question. */
int mathsym_submit(struct mathsym *m, int64_t id, const char *ask, struct err *e);
/* 0 with a result, STATUS_AGAIN when none came within wait_s seconds; at once when nothing is
 * pending. */
int mathsym_poll(struct mathsym *m, double wait_s, struct mathsym_result *out, struct err *e);
/* Questions submitted and not yet polled. */
int mathsym_pending(const struct mathsym *m);
/* Questions answered from what was kept. */
int64_t mathsym_hits(const struct mathsym *m);
/* How many times a process had to be started again. */
int mathsym_restarts(const struct mathsym *m);
/* 1 when the processes run in a sandbox; 0 where none can be had (which open has warned of): then
 * only memory and time are bounded. */
int mathsym_boxed(const struct mathsym *m);
void mathsym_close(struct mathsym *m); /* NULL is fine */

#endif
