/* Owns the operating system's side of struct world. */
#include "base/world.h"

#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/random.h>
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

static void world_rest(double seconds)
{
    struct timespec t = {(time_t)seconds, (long)((seconds - floor(seconds)) * 1e9)};
    nanosleep(&t, NULL);
}

void world_sleep(const struct world *w, double seconds)
{
    if (w && w->sleep) {
        w->sleep(w->self, seconds);
    } else {
        world_rest(seconds);
    }
}

uint64_t world_random(const struct world *w)
{
    uint64_t x;

    if (w && w->random) {
        return w->random(w->self);
    }
    if (getrandom(&x, sizeof x, GRND_NONBLOCK) != sizeof x) {
        x = (uint64_t)(world_now(NULL) * 1e9) * 0x9e3779b97f4a7c15ull;
    }
    return x;
}

const struct world *world_system(void)
{
    static const struct world w = {.now = world_now, .stopping = world_stopping};
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
