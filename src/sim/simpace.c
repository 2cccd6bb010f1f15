/* Owns the ages of samples at engines, on a clock that stands while the controller is busy with
 * something else: that is no engine's fault, and the controller reckons so, too. */
#include "sim/simpace.h"

#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "rl/port_http.h"
#include "sim/sim.h"
#include "sim/simfleet.h"

#define SIMPACE_LOOK_S 1.0
#define SIMPACE_OLD_S                                                                              \
    120.0                   /* far more than the slowest answer that engines are judged by allows  \
                             */
#define SIMPACE_QUICK_S 3.0 /* for an answer, in the mean */
#define SIMPACE_LOOKS   10  /* in a row that another could have had them */

struct simpace_job {
    uint64_t call;
    int engine;
    double since; /* on the clock */
};

struct simpace {
    struct sim *s;
    struct simfleet *fleet;
    struct port_http *port;
    double clock, last, next_look;
    struct simpace_job *jobs, *before;
    size_t n, cap, nbefore, cap_before;
    int looks;     /* at which another could have had the oldest */
    uint32_t held; /* engines whose breaker is not closed, a bit each */
};

static void simpace_job(void *arg, uint64_t call, int engine)
{
    struct simpace *p = arg;
    struct simpace_job j = {call, engine, p->clock};

    for (size_t i = 0; i < p->nbefore; i++) {
        if (p->before[i].call == call) {
            j = p->before[i];
        }
    }
    if (p->n == p->cap) {
        ASSERT(mem_grow((void **)&p->jobs, &p->cap, 32, sizeof *p->jobs));
    }
    p->jobs[p->n++] = j;
}

/* The samples that are at engines now; the one that is there the longest, NULL: none. */
static const struct simpace_job *simpace_oldest(struct simpace *p)
{
    const struct simpace_job *old = NULL;
    struct simpace_job *jobs = p->before;
    size_t cap = p->cap_before;

    p->before = p->jobs;
    p->nbefore = p->n;
    p->cap_before = p->cap;
    p->jobs = jobs;
    p->cap = cap;
    p->n = 0;
    simfleet_each_job(p->fleet, simpace_job, p);
    for (size_t i = 0; i < p->n; i++) {
        old = !old || p->jobs[i].since < old->since ? &p->jobs[i] : old;
    }
    return old;
}

static int simpace_engine(const json_t *told)
{
    const char *url = json_string_value(json_object_get(told, "url"));
    return url ? atoi(url + strlen("http://engine-")) : -1;
}

static int simpace_says(const json_t *told, const char *name, const char *value)
{
    return strcmp(json_string_value(json_object_get(told, name)), value) == 0;
}

/* 1: an engine other than this one may be asked, and the controller knows how long answers take and
 * that none of the others is slow, too. */
static int simpace_other(const json_t *all, int engine)
{
    const json_t *one;
    int known = 0, other = 0, slow = 0;
    size_t i;

    json_array_foreach(all, i, one)
    {
        double answer = json_number_value(json_object_get(one, "answer_s"));
        known |= json_number_value(json_object_get(one, "behind")) > 0;
        if (simpace_engine(one) == engine) {
            continue;
        }
        slow |= answer > SIMPACE_QUICK_S;
        other |= answer > 0 && simpace_says(one, "state", "ready") &&
                 simpace_says(one, "breaker", "closed") &&
                 !json_is_true(json_object_get(one, "leaving"));
    }
    return known && other && !slow;
}

/* Engines that get no samples for a while, and those that get some again. */
static void simpace_count(struct simpace *p, const json_t *all)
{
    const json_t *one;
    size_t i;

    json_array_foreach(all, i, one)
    {
        int engine = simpace_engine(one);
        uint32_t bit = engine < 0 || engine > 31 ? 0 : 1u << engine;
        if (simpace_says(one, "breaker", "open")) {
            p->s->did[SIM_DRAINED] += bit && !(p->held & bit);
            p->held |= bit;
        } else if (simpace_says(one, "breaker", "closed")) {
            p->s->did[SIM_READMITTED] += (p->held & bit) && simpace_says(one, "state", "ready");
            p->held &= ~bit;
        }
    }
}

static void simpace_look(struct simpace *p)
{
    const struct simpace_job *old = simpace_oldest(p);
    json_t *all = port_http_tell(p->port);

    simpace_count(p, all);
    if (old && p->clock - old->since > SIMPACE_OLD_S && simpace_other(all, old->engine)) {
        p->looks++;
    } else {
        p->looks = 0;
    }
    if (p->looks >= SIMPACE_LOOKS) {
        sim_broken(p->s, "samples are at engine %d for %.0f s, and another is there for them",
                   old->engine, p->clock - old->since);
    }
    json_decref(all);
}

void simpace_attend(struct simpace *p)
{
    double away = p->s->now - p->last;

    p->clock += away > 1.0 ? 0.0 : away;
    p->last = p->s->now;
    if (p->clock >= p->next_look) {
        p->next_look = p->clock + SIMPACE_LOOK_S;
        simpace_look(p);
    }
}

void simpace_open(struct simpace *p, struct port_http *port)
{
    p->port = port;
    p->last = p->s->now;
    p->looks = 0;
    p->held = 0;
}

struct simpace *simpace_new(struct sim *s, struct simfleet *f)
{
    struct simpace *p = mem_alloc(sizeof *p);

    p->s = s;
    p->fleet = f;
    return p;
}

void simpace_free(struct simpace *p)
{
    if (p) {
        mem_free(p->jobs);
        mem_free(p->before);
        mem_free(p);
    }
}
