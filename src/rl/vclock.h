/* The virtual clock of a rollout (contract C6): in which order samples finish when each running one
 * gains a token a tick, so many run at once, and the rest wait in the order in which they came.
 * What is kept, dropped, submitted or cut follows from it, and not from which engine was faster.
 *
 *     struct vclock *v = vclock_new(64);
 *     int a = vclock_add(v, 10), b = vclock_add(v, 11);
 *     vclock_finish(v, b, 7);                        b's answer is here: 7 tokens
 *     while ((rc = vclock_next(v, &job)) == 0) { ... }   job has finished, in order
 *     rc STATUS_AGAIN: it depends on `job`, of which too little is known
 *     vclock_reach(v, a, 7);                         a has 7 tokens and goes on
 *     vclock_free(v);
 *
 * The order of vclock_next depends on the adds, on when they came between its answers, and on the
 * lengths; never on the order of the calls that tell lengths. Samples that finish in one tick do so
 * by their key. One thread. */
#ifndef RL_VCLOCK_H
#define RL_VCLOCK_H

#include <stdint.h>

struct vclock;

struct vclock *vclock_new(int64_t concurrency); /* at least 1 */
void vclock_free(struct vclock *v);             /* NULL is fine */

/* A sample waits from now on, and runs as soon as there is a place. Its number, from 0 on. */
int vclock_add(struct vclock *v, int64_t key);
/* It finishes after its n-th token, n >= 1. Told once, at any time. */
void vclock_finish(struct vclock *v, int job, int64_t n);
/* It has n tokens and is not finished: it will have one more at least. 1 when that is news. */
int vclock_reach(struct vclock *v, int job, int64_t n);

/* Moves on to the next sample that finishes. 0: *job has. STATUS_AGAIN: nobody knows yet; *job is
 * the sample whose length or progress is wanted, -1 when a length is and progress would not help.
 * STATUS_END: none is running. */
int vclock_next(struct vclock *v, int *job);

int64_t vclock_now(const struct vclock *v); /* ticks */
/* Tokens that the sample has now: 0 while it waits, all when it has finished. */
int64_t vclock_tokens(const struct vclock *v, int job);
int vclock_done(const struct vclock *v, int job); /* 1: these are all it will have */
/* 1 when it is known that the sample has vclock_tokens of them, finished or not. */
int vclock_known(const struct vclock *v, int job);

#endif
