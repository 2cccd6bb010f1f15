/* Owns questions for rewards until their answers are taken. */
#include "sim/simreward.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "base/mem.h"
#include "base/status.h"
#include "reward/hub.h"
#include "sim/sim.h"

enum { SIMREWARD_MOST = 4096 };

struct simreward_call {
    double at; /* when it is known */
    struct hub_result r;
};

struct simreward {
    struct sim *s;
    struct simreward_opts o;
    struct hub_scorer scorer;
    struct simreward_call *calls;
    size_t n, cap;
};

static uint64_t simreward_hash(const json_t *sample)
{
    const json_t *tokens = json_object_get(sample, "tokens"), *v;
    size_t n = json_array_size(tokens), i;
    int32_t *ids = mem_alloc(sizeof *ids * (n + 1));
    uint64_t h;

    json_array_foreach(tokens, i, v)
    {
        ids[i] = (int32_t)json_integer_value(v);
    }
    h = XXH3_64bits(ids, sizeof *ids * n);
    mem_free(ids);
    return h;
}

/* group: what the others of its group add to it, 0 when it is scored alone. */
static void simreward_ask(struct simreward *r, int64_t id, const json_t *sample, uint64_t group,
                          double at)
{
    uint64_t h = simreward_hash(sample);
    int64_t index = json_integer_value(json_object_get(sample, "index"));
    struct simreward_call *c;

    if (r->o.asked) {
        r->o.asked(r->o.arg, index, h);
    }
    if (r->n == r->cap) {
        ASSERT(mem_grow((void **)&r->calls, &r->cap, 64, sizeof *r->calls));
    }
    c = &r->calls[r->n++];
    memset(c, 0, sizeof *c);
    c->at = at;
    c->r.id = id;
    h = group ? sim_mix(h, group) : h;
    c->r.reward = (double)(h % 3) / 2;
    c->r.why = HUB_SCORED;
    c->r.failed =
        (r->o.some_fail && h % 23 == 0) || (r->o.chance && sim_fault(r->s, SIM_REWARD_FAILS));
    snprintf(c->r.reason, sizeof c->r.reason, c->r.failed ? "no reward in time" : "scored");
    if (c->r.failed) {
        c->r.reward = 0;
        c->r.why = HUB_LATE;
    }
    sim_event(r->s, "reward: sample %lld is asked for", (long long)index);
}

static int simreward_submit(void *self, const struct hub_request *q, struct err *e)
{
    struct simreward *r = self;
    double at = r->s->now + sim_between(r->s, 0.001, 0.05); /* those of a group come together */
    uint64_t group = 0;
    const json_t *one;
    size_t i;

    if (r->s->dead) {
        return ERR(e, STATUS_FAIL, "the controller has ended");
    }
    if (r->n >= SIMREWARD_MOST) {
        return STATUS_AGAIN;
    }
    if (sim_fault(r->s, SIM_REWARD_SLOW)) {
        at += sim_between(r->s, 0.1, 30);
    }
    if (!json_is_array(q->sample)) {
        simreward_ask(r, q->id, q->sample, 0, at);
    }
    json_array_foreach(q->sample, i, one)
    {
        group = sim_mix(group, simreward_hash(one));
    }
    json_array_foreach(q->sample, i, one)
    {
        simreward_ask(r, q->id + (int64_t)i, one, group, at);
    }
    return STATUS_OK;
}

static size_t simreward_first(const struct simreward *r)
{
    size_t best = 0;
    for (size_t i = 1; i < r->n; i++) {
        best = r->calls[i].at < r->calls[best].at ? i : best;
    }
    return best;
}

static int simreward_ready(void *arg)
{
    const struct simreward *r = arg;
    return r->n && r->calls[simreward_first(r)].at <= r->s->now;
}

static int simreward_poll(void *self, double wait_s, struct hub_result *out, struct err *e)
{
    struct simreward *r = self;
    size_t i;

    (void)e;
    if (!r->n || r->s->dead) {
        return STATUS_AGAIN;
    }
    i = simreward_first(r);
    if (r->calls[i].at > r->s->now && wait_s > 0) {
        double left = r->calls[i].at - r->s->now;
        sim_wait(r->s, left < wait_s ? left : wait_s, NULL, NULL);
    }
    if (!simreward_ready(r) || r->s->dead) {
        return STATUS_AGAIN;
    }
    *out = r->calls[i].r;
    memmove(&r->calls[i], &r->calls[i + 1], sizeof *r->calls * (--r->n - i));
    sim_event(r->s, "reward: %lld is %s", (long long)out->id,
              out->failed ? "not to be had" : "told");
    return STATUS_OK;
}

struct simreward *simreward_new(struct sim *s, const struct simreward_opts *o)
{
    struct simreward *r = mem_alloc(sizeof *r);

    r->s = s;
    r->o = *o;
    r->scorer = (struct hub_scorer){simreward_submit, simreward_poll, r};
    return r;
}

void simreward_free(struct simreward *r)
{
    if (r) {
        mem_free(r->calls);
        mem_free(r);
    }
}

const struct hub_scorer *simreward_scorer(struct simreward *r)
{
    return &r->scorer;
}

void simreward_reset(struct simreward *r)
{
    r->n = 0;
}
