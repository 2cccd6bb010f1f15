/* What the controller may know of the world outside: time, chance, and whether it was asked to
 * stop. The loop gets it through this table, so a simulator can stand in for the operating system.
 */
#ifndef BASE_WORLD_H
#define BASE_WORLD_H

#include <stdint.h>

struct world {
    double (*now)(void *self);   /* seconds, monotonic */
    int (*stopping)(void *self); /* 1 once the user asked to stop (SIGINT, SIGTERM) */
    void *self;
    void (*sleep)(void *self, double seconds); /* NULL: the operating system's */
    uint64_t (*random)(void *self);            /* the same */
};

void world_sleep(const struct world *w, double seconds);
uint64_t world_random(const struct world *w);

/* The operating system. Installs handlers for SIGINT and SIGTERM on the first call; a second signal
 * ends the process at once. */
const struct world *world_system(void);
/* From the first such signal on the process has so many seconds to end by itself; then it is ended,
 * with exit code 1 and `text` on stderr. 0: it may take its time. text is borrowed. */
void world_stop_within(double seconds, const char *text);

#endif
