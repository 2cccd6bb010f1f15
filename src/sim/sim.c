/* Owns time, order, chance and the end of the controller. Time moves only while somebody waits, and
 * a little with every look at the clock, so that a loop that waits for nothing runs into the limit
 * instead of running for ever. */
#include "sim/sim.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"

/* Name, and how likely the fault is where it may happen, at rate 1. */
static const struct {
    const char *name;
    double chance;
} sim_faults[SIM_NFAULTS] = {
    [SIM_REFUSED] = {"connection refused", 0.02},
    [SIM_CONNECT_LATE] = {"connection too slow", 0.01},
    [SIM_LOST] = {"request lost", 0.006},
    [SIM_ANSWER_LOST] = {"answer lost", 0.006},
    [SIM_CUT] = {"answer cut", 0.03},
    [SIM_DELAYED] = {"message delayed", 0.06},
    [SIM_TWICE] = {"request delivered twice", 0.03},
    [SIM_GARBAGE] = {"garbage for an answer", 0.01},
    [SIM_TRUNCATED] = {"truncated JSON", 0.01},
    [SIM_STATUS_500] = {"status 500", 0.01},
    [SIM_STATUS_503] = {"status 503", 0.02},
    [SIM_STATUS_429] = {"status 429", 0.02},
    [SIM_CRASH] = {"engine ended", 0.02},
    [SIM_HANG] = {"engine hung", 0.01},
    [SIM_SLOW] = {"engine slow", 0.02},
    [SIM_CRAWLS] = {"engine crawls", 0.05},
    [SIM_SICK] = {"health check says sick", 0.02},
    [SIM_FORGETS] = {"engine restarted unseen, without weights", 0.01},
    [SIM_FALLS_BACK] = {"engine fell back to older weights", 0.02},
    [SIM_MISLABELS] = {"wrong version told", 0.01},
    [SIM_KEEPS_OLD] = {"new weights said to be taken, and not", 0.04},
    [SIM_TAKES_LATE] = {"new weights taken late", 0.04},
    [SIM_TAKES_WRONG] = {"new weights taken wrongly", 0.04},
    [SIM_GIVES_UP] = {"engine gave samples up", 0.01},
    [SIM_NO_START] = {"engine does not start", 0.05},
    [SIM_CHUNK_LOST] = {"chunk of weights lost", 0.03},
    [SIM_CHUNK_BAD] = {"chunk of weights came damaged", 0.03},
    [SIM_CHUNK_ROTS] = {"chunk of weights damaged where it lies", 0.01},
    [SIM_ADDED] = {"engine added", 0.3},
    [SIM_REMOVED] = {"engine taken out", 0.3},
    [SIM_ADDED_NOBODY] = {"an address added where nobody is", 0.05},
    [SIM_SLIP] = {"half a line in the file of engines", 0.05},
    [SIM_REWARD_FAILS] = {"reward failed", 0.01},
    [SIM_REWARD_SLOW] = {"reward slow", 0.05},
    [SIM_WRITE_FAILS] = {"write failed", 0.004},
    [SIM_SYNC_FAILS] = {"sync failed", 0.01},
    [SIM_RENAME_FAILS] = {"rename failed", 0.03},
    [SIM_DISK_FULL] = {"disk full", 0.002},
    [SIM_FULL_AT_START] = {"disk full when the controller starts", 0.05},
    [SIM_DISK_SLOW] = {"disk slow", 0.01},
    [SIM_TORN] = {"unsynced write lost or torn", 0},
    [SIM_KILLED] = {"controller killed", 0},
    [SIM_POWER_LOST] = {"power lost", 0},
    [SIM_STOPPED] = {"asked to stop", 0},
    [SIM_CLOCK_JUMPS] = {"clock jumped", 0},
};

static const char *const sim_plants[SIM_NPLANTS] = {"none",  "requeue", "fsync", "staleness",
                                                    "twice", "stale",   "gone",  "crawl",
                                                    "eval",  "room",    "delta"};

const char *sim_fault_name(enum sim_fault f)
{
    return sim_faults[f].name;
}

const char *sim_deed_name(enum sim_deed d)
{
    static const char *const names[SIM_NDEEDS] = {
        [SIM_DRAINED] = "engine gets no samples for a while",
        [SIM_READMITTED] = "engine gets samples again",
        [SIM_EVALUATED] = "evaluation of a set",
        [SIM_EVALUATED_AGAIN] = "evaluation made again from the record",
        [SIM_TOOK_CHANGES] = "weights taken as changes",
        [SIM_TOOK_WHOLE] = "weights taken whole, and changes since",
    };
    return names[d];
}

const char *sim_plant_name(enum sim_plant p)
{
    return sim_plants[p];
}

/* ---- chance ---- */

uint64_t sim_mix(uint64_t a, uint64_t b)
{
    uint64_t x = a + 0x9e3779b97f4a7c15ull * (b + 1);
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

uint64_t sim_u64(struct sim *s)
{
    s->chance = sim_mix(s->chance, 0);
    return sim_mix(s->chance, 1);
}

int64_t sim_below(struct sim *s, int64_t n)
{
    return (int64_t)(sim_u64(s) % (uint64_t)n);
}

double sim_unit(struct sim *s)
{
    return (double)(sim_u64(s) >> 11) * 0x1p-53;
}

double sim_between(struct sim *s, double lo, double hi)
{
    return lo + (hi - lo) * sim_unit(s);
}

void sim_count(struct sim *s, enum sim_fault f)
{
    s->hits[f]++;
    s->hit++;
    sim_note(s, "fault: %s", sim_faults[f].name);
}

int sim_fault(struct sim *s, enum sim_fault f)
{
    if (s->dead || s->faults <= 0 || s->rate <= 0 ||
        sim_unit(s) >= s->rate * sim_faults[f].chance) {
        return 0;
    }
    s->faults--;
    sim_count(s, f);
    return 1;
}

/* ---- what is told ---- */

static void sim_line(struct sim *s, const char *fmt, va_list ap)
{
    char *line = s->last[s->nlast++ % SIM_LAST];
    int n = snprintf(line, SIM_LINE, "%7lld %12.6f ", (long long)s->event, s->now);

    vsnprintf(line + n, (size_t)(SIM_LINE - n), fmt, ap);
    if (s->trace) {
        puts(line);
    }
}

void sim_note(struct sim *s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    sim_line(s, fmt, ap);
    va_end(ap);
}

void sim_broken(struct sim *s, const char *fmt, ...)
{
    va_list ap;

    if (s->broken[0]) {
        return;
    }
    va_start(ap, fmt);
    vsnprintf(s->broken, sizeof s->broken, fmt, ap);
    va_end(ap);
    s->broken_event = s->event;
    sim_note(s, "broken: %s", s->broken);
    s->dead = 1; /* no more can be learned */
}

void sim_event(struct sim *s, const char *fmt, ...)
{
    va_list ap;

    if (s->dead) {
        return;
    }
    s->event++;
    va_start(ap, fmt);
    sim_line(s, fmt, ap);
    va_end(ap);
    if (s->event == s->end_at) {
        sim_count(s, s->power ? SIM_POWER_LOST : SIM_KILLED);
        s->dead = 1;
    } else if (s->event > s->max_event || s->now > s->max_now) {
        sim_broken(s, "a wait does not end: event %lld, %.0f s", (long long)s->event, s->now);
    }
}

/* ---- time ---- */

static int sim_before(const struct sim_timer *a, const struct sim_timer *b)
{
    return a->at < b->at || (a->at <= b->at && a->order < b->order);
}

void sim_at(struct sim *s, double at, void (*fn)(void *arg, int64_t n), void *arg, int64_t n)
{
    size_t i;

    if (s->ntimers == s->cap_timers) {
        ASSERT(mem_grow((void **)&s->timers, &s->cap_timers, 256, sizeof *s->timers));
    }
    i = s->ntimers++;
    s->timers[i] = (struct sim_timer){at, s->order++, fn, arg, n};
    while (i && sim_before(&s->timers[i], &s->timers[(i - 1) / 2])) {
        struct sim_timer t = s->timers[i];
        s->timers[i] = s->timers[(i - 1) / 2];
        s->timers[(i - 1) / 2] = t;
        i = (i - 1) / 2;
    }
}

static struct sim_timer sim_pop(struct sim *s)
{
    struct sim_timer top = s->timers[0];
    size_t i = 0, k;

    s->timers[0] = s->timers[--s->ntimers];
    while ((k = 2 * i + 1) < s->ntimers) {
        struct sim_timer t;
        k += k + 1 < s->ntimers && sim_before(&s->timers[k + 1], &s->timers[k]);
        if (!sim_before(&s->timers[k], &s->timers[i])) {
            break;
        }
        t = s->timers[i];
        s->timers[i] = s->timers[k];
        s->timers[k] = t;
        i = k;
    }
    return top;
}

void sim_wait(struct sim *s, double seconds, int (*ready)(void *arg), void *arg)
{
    double until = s->now + seconds;

    if (s->jump_at > 0 && s->now >= s->jump_at) {
        s->jump_at = 0;
        sim_count(s, SIM_CLOCK_JUMPS);
        s->now += sim_between(s, 5, 400);
        until = s->now + seconds;
    }
    while (!s->dead && s->ntimers && s->timers[0].at <= until && !(ready && ready(arg))) {
        struct sim_timer t = sim_pop(s);
        s->now = t.at > s->now ? t.at : s->now;
        t.fn(t.arg, t.n);
    }
    if (!s->dead && !(ready && ready(arg)) && until > s->now) {
        s->now = until;
    }
    if (s->now > s->max_now) {
        sim_event(s, "the last second");
    }
}

/* ---- as a world ---- */

static double sim_world_now(void *self)
{
    struct sim *s = self;
    s->now += 1e-6;
    return s->now;
}

static int sim_world_stopping(void *self)
{
    const struct sim *s = self;
    return s->stopping || s->dead;
}

static void sim_world_sleep(void *self, double seconds)
{
    sim_wait(self, seconds, NULL, NULL);
}

static uint64_t sim_world_random(void *self)
{
    return sim_u64(self);
}

void sim_init(struct sim *s, uint64_t seed)
{
    memset(s, 0, sizeof *s);
    s->seed = seed;
    s->chance = sim_mix(seed, 77);
    s->now = 1000;
    s->max_event = 400000;
    s->max_now = 200000;
    s->world = (struct world){.now = sim_world_now,
                              .stopping = sim_world_stopping,
                              .self = s,
                              .sleep = sim_world_sleep,
                              .random = sim_world_random};
}

void sim_fini(struct sim *s)
{
    mem_free(s->timers);
    s->timers = NULL;
    s->ntimers = s->cap_timers = 0;
}
