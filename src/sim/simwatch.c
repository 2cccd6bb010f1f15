/* Owns the list of what the controller was told is on disk. */
#include "sim/simwatch.h"

#include <string.h>
#include <xxhash.h>

#include "base/map.h"
#include "base/mem.h"
#include "base/status.h"
#include "sim/sim.h"
#include "sim/simtrain.h"

enum { SIMWATCH_LEN = 32 }; /* most tokens of an answer */

struct simwatch_entry {
    enum journal_event kind;
    struct journal_key k;
    uint64_t sum; /* of its data */
};

/* A group of an evaluation that is asked for. */
struct simwatch_eval {
    int64_t group, sample, version;
};

struct simwatch {
    struct sim *s;
    struct simtrain *train;
    struct journal *ledger, journal;
    const struct rollout_port *engines, *recorder;
    struct rollout_port inner, outer;
    struct simwatch_entry *e;
    size_t n, safe, cap; /* those before `safe` are committed */
    int64_t pruned;
    struct map answers, rewards; /* committed, by what a question is known by */
    struct port_answer again;    /* the plant: the last answer, taken for another sample too */
    int32_t tokens[SIMWATCH_LEN];
    float logps[SIMWATCH_LEN];
    int64_t lost;                /* engine losses seen */
    struct simwatch_eval *evals; /* of this life */
    size_t nevals, cap_evals;
};

/* ---- the journal ---- */

struct simwatch_asked {
    int64_t rollout, sample, version;
    int32_t set, start;
};

static struct simwatch_asked simwatch_asked(int64_t rollout, int64_t sample, int64_t version,
                                            int set, int start)
{
    struct simwatch_asked a;
    memset(&a, 0, sizeof a);
    a.rollout = rollout;
    a.sample = sample;
    a.version = version;
    a.set = set;
    a.start = start;
    return a;
}

static int simwatch_record(void *self, enum journal_event ev, int64_t rollout, const json_t *data,
                           struct err *e)
{
    struct simwatch *w = self;
    return w->ledger->record(w->ledger->self, ev, rollout, data, e);
}

static int simwatch_put(void *self, enum journal_event kind, const struct journal_key *k,
                        const void *data, size_t n, struct err *e)
{
    struct simwatch *w = self;
    int rc = w->ledger->put(w->ledger->self, kind, k, data, n, e);

    if (rc == STATUS_OK) {
        if (w->n == w->cap) {
            ASSERT(mem_grow((void **)&w->e, &w->cap, 256, sizeof *w->e));
        }
        w->e[w->n++] = (struct simwatch_entry){kind, *k, XXH3_64bits(data, n)};
        if (kind == JOURNAL_DECISION) {
            sim_note(w->s, "decision: rollout %lld, %lld: %.*s", (long long)k->rollout,
                     (long long)k->sample, (int)n, (const char *)data);
        }
    }
    return rc;
}

static int simwatch_find(void *self, enum journal_event kind, const struct journal_key *k,
                         void **data, size_t *n, struct err *e)
{
    struct simwatch *w = self;
    return w->ledger->find(w->ledger->self, kind, k, data, n, e);
}

static void simwatch_promised(struct simwatch *w)
{
    for (; w->safe < w->n; w->safe++) {
        const struct simwatch_entry *x = &w->e[w->safe];
        struct simwatch_asked a =
            simwatch_asked(x->k.rollout, x->k.sample, x->k.version, x->k.set, x->k.start);
        uint64_t reward[2] = {(uint64_t)x->k.sample, x->k.ask};
        if (x->kind == JOURNAL_ANSWER) {
            map_put(&w->answers, (const char *)&a, sizeof a, 1);
        } else if (x->kind == JOURNAL_REWARD && x->k.set == 0) {
            map_put(&w->rewards, (const char *)reward, sizeof reward, x->k.rollout);
        }
    }
}

static int simwatch_commit(void *self, struct err *e)
{
    struct simwatch *w = self;
    int rc = w->ledger->commit(w->ledger->self, e);

    if (rc == STATUS_OK && !w->s->dead) {
        simwatch_promised(w);
    }
    return rc;
}

static int simwatch_prune(void *self, int64_t rollout, struct err *e)
{
    struct simwatch *w = self;
    w->pruned = rollout > w->pruned ? rollout : w->pruned;
    return w->ledger->prune(w->ledger->self, rollout, e);
}

struct journal *simwatch_journal(struct simwatch *w, struct journal *inner)
{
    w->ledger = inner;
    w->journal = (struct journal){simwatch_record, simwatch_put,   simwatch_find,
                                  simwatch_commit, simwatch_prune, w,
                                  inner->closed};
    return &w->journal;
}

void simwatch_restart(struct simwatch *w)
{
    w->n = w->safe;
    w->nevals = 0;
    w->again.group = -1;
}

void simwatch_check(struct simwatch *w)
{
    for (size_t i = 0; i < w->safe && !w->s->broken[0]; i++) {
        const struct simwatch_entry *x = &w->e[i];
        struct err e = {0};
        void *data = NULL;
        size_t n = 0;
        int rc;
        if (x->k.rollout <= w->pruned) {
            continue;
        }
        rc = w->ledger->find(w->ledger->self, x->kind, &x->k, &data, &n, &e);
        if (rc != STATUS_OK) {
            sim_broken(w->s,
                       "an entry of kind %d that was committed is gone: rollout %lld, sample "
                       "%lld, version %lld, start %d: %s",
                       (int)x->kind, (long long)x->k.rollout, (long long)x->k.sample,
                       (long long)x->k.version, x->k.start, e.msg[0] ? e.msg : "it is not found");
        } else if (x->kind == JOURNAL_ANSWER && XXH3_64bits(data, n) != x->sum) {
            sim_broken(w->s, "the answer of sample %lld is another than was committed",
                       (long long)x->k.sample);
        }
        mem_free(data);
    }
}

/* ---- questions ---- */

void simwatch_reward(void *self, int64_t sample, uint64_t ask)
{
    struct simwatch *w = self;
    uint64_t key[2] = {(uint64_t)sample, ask};
    int64_t rollout;

    if (map_get(&w->rewards, (const char *)key, sizeof key, &rollout) && rollout > w->pruned) {
        sim_broken(w->s, "the reward of sample %lld is recorded and asked for again",
                   (long long)sample);
    }
}

static int simwatch_in_submit(void *self, const struct port_group *g, struct err *e)
{
    struct simwatch *w = self;

    for (int i = 0; i < g->n; i++) {
        struct simwatch_asked a =
            simwatch_asked(g->rollout, g->sample + i, g->version, g->set, g->position);
        if (g->rollout > w->pruned && map_get(&w->answers, (const char *)&a, sizeof a, NULL)) {
            sim_broken(w->s, "sample %lld of rollout %lld is recorded and asked for again",
                       (long long)g->sample + i, (long long)g->rollout);
        }
    }
    return w->engines->submit(w->engines->self, g, e);
}

static int64_t simwatch_losses(const struct sim *s)
{
    return s->hits[SIM_CRASH] + s->hits[SIM_CUT] + s->hits[SIM_FORGETS];
}

static int simwatch_in_poll(void *self, struct port_answer *a, struct err *e)
{
    struct simwatch *w = self;
    int rc = w->engines->poll(w->engines->self, a, e);

    if (rc == STATUS_OK && w->s->plant == SIM_PLANT_REQUEUE && simwatch_losses(w->s) > w->lost) {
        w->lost = simwatch_losses(w->s);
        return STATUS_AGAIN;
    }
    return rc;
}

static void simwatch_in_abort(void *self, int64_t group)
{
    struct simwatch *w = self;
    w->engines->abort(w->engines->self, group);
}

static int simwatch_in_control(void *self, enum port_control what, struct err *e)
{
    struct simwatch *w = self;
    return w->engines->control(w->engines->self, what, e);
}

static int simwatch_in_publish(void *self, int64_t version, struct err *e)
{
    struct simwatch *w = self;
    return w->engines->publish(w->engines->self, version, e);
}

const struct rollout_port *simwatch_inner(struct simwatch *w, const struct rollout_port *inner)
{
    w->engines = inner;
    w->lost = simwatch_losses(w->s);
    w->inner = (struct rollout_port){.submit = simwatch_in_submit,
                                     .poll = simwatch_in_poll,
                                     .abort = simwatch_in_abort,
                                     .control = simwatch_in_control,
                                     .publish = simwatch_in_publish,
                                     .self = w};
    return &w->inner;
}

/* ---- answers ---- */

static int simwatch_out_submit(void *self, const struct port_group *g, struct err *e)
{
    struct simwatch *w = self;
    int rc = w->recorder->submit(w->recorder->self, g, e);

    for (size_t i = 0; rc == STATUS_OK && i < w->nevals; i++) {
        if (w->evals[i].group == g->id) { /* each rollout counts its groups anew */
            w->evals[i] = w->evals[--w->nevals];
            break;
        }
    }
    if (rc == STATUS_OK && g->set > 0) {
        if (w->nevals == w->cap_evals) {
            ASSERT(mem_grow((void **)&w->evals, &w->cap_evals, 32, sizeof *w->evals));
        }
        w->evals[w->nevals++] = (struct simwatch_eval){g->id, g->sample, g->version};
    }
    return rc;
}

static void simwatch_check_eval(struct simwatch *w, const struct port_answer *a)
{
    for (size_t i = 0; i < w->nevals; i++) {
        const struct simwatch_eval *v = &w->evals[i];
        if (v->group == a->group) {
            simtrain_check_eval(w->train, v->version, v->sample + a->sample, a->tokens, a->logps,
                                a->ntokens);
        }
    }
}

/* Now and then an answer is taken for the sample beside it as well. */
static void simwatch_double(struct simwatch *w, struct port_answer *a)
{
    if (w->again.group == a->group && w->again.ntokens && sim_below(w->s, 10) == 0) {
        w->again.sample = a->sample;
        *a = w->again;
        return;
    }
    w->again = *a;
    w->again.ntokens = a->ntokens < SIMWATCH_LEN ? a->ntokens : 0;
    if (w->again.ntokens) {
        memcpy(w->tokens, a->tokens, sizeof *a->tokens * (size_t)w->again.ntokens);
        memcpy(w->logps, a->logps, sizeof *a->logps * (size_t)w->again.ntokens);
    }
    w->again.tokens = w->tokens;
    w->again.logps = w->logps;
}

static int simwatch_out_poll(void *self, struct port_answer *a, struct err *e)
{
    struct simwatch *w = self;
    int rc = w->recorder->poll(w->recorder->self, a, e);

    if (rc == STATUS_OK) {
        sim_event(w->s, "answer: group %lld, sample %d, %d tokens of version %lld",
                  (long long)a->group, a->sample, a->ntokens, (long long)a->version);
    }
    if (rc == STATUS_OK && w->s->plant == SIM_PLANT_TWICE) {
        simwatch_double(w, a);
    }
    if (rc == STATUS_OK) {
        simwatch_check_eval(w, a);
    }
    return rc;
}

static void simwatch_out_abort(void *self, int64_t group)
{
    struct simwatch *w = self;
    w->recorder->abort(w->recorder->self, group);
}

static int simwatch_out_control(void *self, enum port_control what, struct err *e)
{
    struct simwatch *w = self;
    return w->recorder->control(w->recorder->self, what, e);
}

static int simwatch_out_publish(void *self, int64_t version, struct err *e)
{
    struct simwatch *w = self;
    return w->recorder->publish(w->recorder->self, version, e);
}

const struct rollout_port *simwatch_outer(struct simwatch *w, const struct rollout_port *inner)
{
    w->recorder = inner;
    w->outer = (struct rollout_port){.submit = simwatch_out_submit,
                                     .poll = simwatch_out_poll,
                                     .abort = simwatch_out_abort,
                                     .control = simwatch_out_control,
                                     .publish = inner->publish ? simwatch_out_publish : NULL,
                                     .self = w};
    return &w->outer;
}

struct simwatch *simwatch_new(struct sim *s, struct simtrain *t)
{
    struct simwatch *w = mem_alloc(sizeof *w);

    w->s = s;
    w->train = t;
    w->again.group = -1;
    w->pruned = -1;
    map_init(&w->answers);
    map_init(&w->rewards);
    return w;
}

void simwatch_free(struct simwatch *w)
{
    if (w) {
        map_fini(&w->answers);
        map_fini(&w->rewards);
        mem_free(w->e);
        mem_free(w->evals);
        mem_free(w);
    }
}
