/* A thread that trains while the caller goes on sampling. One for a run, so that what it starts
 * (base/proc.h) lives as long as the run does.
 *
 *     struct trainjob *j;
 *     trainjob_open(&j, &e);
 *     trainjob_start(j, fn, arg);                    fn(arg, &err) runs in the thread
 *     while ((rc = trainjob_wait(j, 0.1, &e)) == STATUS_AGAIN) { ... }
 *     trainjob_close(j);                             waits for what is running
 *
 * The caller sees what fn wrote when trainjob_wait has returned something else than STATUS_AGAIN,
 * and must not touch it between. */
#ifndef RL_TRAINJOB_H
#define RL_TRAINJOB_H

struct err;
struct trainjob;

int trainjob_open(struct trainjob **out, struct err *e);
void trainjob_close(struct trainjob *j); /* NULL is fine */
/* Nothing may be running. */
void trainjob_start(struct trainjob *j, int (*fn)(void *arg, struct err *e), void *arg);
/* Its status, once; STATUS_AGAIN when it is not done within wait_s. */
int trainjob_wait(struct trainjob *j, double wait_s, struct err *e);

#endif
