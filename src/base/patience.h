/* Waiting for a disk that has no room, or that refuses a write: the run pauses and says so, tries
 * again every few seconds, and goes on when it can.
 *
 *     struct patience p = {0};
 *     do {
 *         rc = write_it(path, e);
 *     } while (patience_again(&p, rc, path, e));
 *
 * What is tried again must leave nothing half done. Before patience_set nobody waits. */
#ifndef BASE_PATIENCE_H
#define BASE_PATIENCE_H

struct err;
struct world;

struct patience {
    double since; /* of the first failure */
    int tries;
};

/* How long to wait for one write, in seconds; 0: not at all. Process-wide; w is borrowed. */
void patience_set(const struct world *w, double most_s);
/* 1: rc is STATUS_IO, some seconds were waited, and it is to be tried again. 0: it is done, it is
 * another failure, the time is over, or the user asks to stop; e then still tells the cause. Any
 * thread. */
int patience_again(struct patience *p, int rc, const char *path, struct err *e);
/* fsio_mkdirs that waits for room. A place where this user may not write is refused at once. */
int patience_mkdirs(const char *path, struct err *e);

#endif
