/* One writer of a run folder at a time, and a name for it.
 *
 *     runlock_take(dir, &lock, &e);       STATUS_INPUT names the process that has it
 *     runlock_drop(lock);
 *
 * The lock goes with the process, however that ends. */
#ifndef RUN_RUNLOCK_H
#define RUN_RUNLOCK_H

struct err;
struct runlock;

/* Waits a second for a process that is just ending, and for room on a full disk. */
int runlock_take(const char *dir, struct runlock **out, struct err *e);
void runlock_drop(struct runlock *l); /* NULL is fine */

#endif
