/* Owns the operating system's side of struct world. */
#include "base/world.h"

#include <math.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t world_stop;

static volatile sig_atomic_t world_seconds;
static const char *volatile world_text;

static void world_signal(int sig)
{
    if (world_stop) {
        signal(sig, SIG_DFL);
        raise(sig);
    }
    world_stop = 1;
    if (world_seconds) {
        alarm((unsigned)world_seconds);
    }
}

static void world_late(int sig)
{
    const char *text = world_text;
    (void)sig;
    if (text && write(STDERR_FILENO, text, strlen(text)) < 0) {
        _exit(1);
    }
    _exit(1);
}

void world_stop_within(double seconds, const char *text)
{
    struct sigaction a;

    memset(&a, 0, sizeof a);
    a.sa_handler = world_late;
    sigaction(SIGALRM, &a, NULL);
    world_text = text;
    world_seconds = seconds > 0 ? (int)ceil(seconds) : 0;
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
