/* What the controller may know of the world outside: time, and whether it was asked to stop. The
 * loop gets it through this table, so a simulator can stand in for the operating system. */
#ifndef BASE_WORLD_H
#define BASE_WORLD_H

struct world {
    double (*now)(void *self);   /* seconds, monotonic */
    int (*stopping)(void *self); /* 1 once the user asked to stop (SIGINT, SIGTERM) */
    void *self;
};

/* The operating system. Installs handlers for SIGINT and SIGTERM on the first call; a second signal
 * ends the process at once. */
const struct world *world_system(void);
/* From the first such signal on the process has so many seconds to end by itself; then it is ended,
 * with exit code 1 and `text` on stderr. 0: it may take its time. text is borrowed. */
void world_stop_within(double seconds, const char *text);

#endif
