/* Owns the operating system's side of struct world. */
#include "base/world.h"

#include <signal.h>
#include <string.h>
#include <time.h>

static volatile sig_atomic_t world_stop;

static void world_signal(int sig)
{
    if (world_stop) {
        signal(sig, SIG_DFL);
        raise(sig);
    }
    world_stop = 1;
}

static double world_now(void *self)
{
    struct timespec t;
    (void)self;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int world_stopping(void *self)
{
    (void)self;
    return world_stop != 0;
}

const struct world *world_system(void)
{
    static const struct world w = {world_now, world_stopping, NULL};
    static int installed;
    if (!installed) {
        struct sigaction a;
        memset(&a, 0, sizeof a);
        a.sa_handler = world_signal;
        sigaction(SIGINT, &a, NULL);
        sigaction(SIGTERM, &a, NULL);
        signal(SIGPIPE, SIG_IGN);
        signal(SIGXFSZ, SIG_IGN); /* a write past the limit fails, and is reported, instead */
        installed = 1;
    }
    return &w;
}
