/* Owns the weights of a simulated run and what is promised of the samples that reach them: each
 * once, every token drawn from weights that are recent enough, and in the order of versions. */
#include "sim/simtrain.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fsio.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"
#include "sim/sim.h"
#include "train/ckpt.h"
#include "train/trainer.h"

struct simtrain {
    struct sim *s;
    struct simtrain_promises p;
    struct trainer_port port;
    struct wsync sync;
    uint64_t *weights; /* of each version, as this run made them */
    size_t cap;
    int64_t version, published;
    struct map trained; /* samples */
    struct map sums;    /* of the version that is published */
    /* A checkpoint that is being written beside. */
    char *dir, *text;
    int64_t iteration;
    double done_at;
};

struct simtrain_token simtrain_token(uint64_t weights, uint64_t seed, uint64_t stream,
                                     int64_t sample, int position)
{
    uint64_t h = sim_mix(sim_mix(sim_mix(seed, stream), (uint64_t)sample), (uint64_t)position);

    h = sim_mix(h, weights);
    return (struct simtrain_token){.id = (int32_t)(h % SIMTRAIN_VOCAB),
                                   .logp = -(float)(1 + (h >> 41)) * 0x1p-21f,
                                   .last = h >> 8 & 1 && h >> 9 & 1};
}

/* ---- promises ---- */

static int simtrain_is_of(const struct simtrain *t, int64_t version, const struct train_sample *x,
                          int i)
{
    struct simtrain_token k =
        simtrain_token(t->weights[version], t->p.seed, RNG_TRAIN, x->rollout, i);
    return k.id == x->tokens[x->prompt + i] && (!x->roll || k.logp == x->roll[i]);
}

/* Every token is of weights that may be that old, and none is of older ones than the one before. */
static void simtrain_check_tokens(struct simtrain *t, const struct train_sample *x)
{
    int64_t floor = t->version - t->p.staleness, v = floor < 0 ? 0 : floor;

    for (int i = 0; i < x->response; i++) {
        int64_t had = v;
        while (v <= t->version && !simtrain_is_of(t, v, x, i)) {
            v++;
        }
        if (v > t->version) {
            int64_t of = t->version;
            while (of >= 0 && !simtrain_is_of(t, of, x, i)) {
                of--;
            }
            sim_broken(t->s,
                       "sample %lld, token %d: %s %lld, the weights are version %lld and may be "
                       "%lld ahead; the token before is of %lld",
                       (long long)x->rollout, i,
                       of < 0 ? "it is of no version, not even of" : "it is of version",
                       (long long)of, (long long)t->version, (long long)t->p.staleness,
                       (long long)had);
            return;
        }
    }
}

void simtrain_check_eval(struct simtrain *t, int64_t version, int64_t sample, const int32_t *tokens,
                         const float *logps, int n)
{
    for (int i = 0; i < n; i++) {
        struct simtrain_token k =
            simtrain_token(t->weights[version], t->p.seed, RNG_EVAL, sample, i);
        if (k.id != tokens[i] || (logps && k.logp != logps[i])) {
            sim_broken(t->s, "sample %lld of an evaluation, token %d: it is not of version %lld",
                       (long long)sample, i, (long long)version);
            return;
        }
    }
}

static void simtrain_note(struct simtrain *t, int64_t sample)
{
    char key[32];
    int n = snprintf(key, sizeof key, "%lld", (long long)sample);

    if (!map_put(&t->trained, key, (size_t)n, 1)) {
        sim_broken(t->s, "sample %lld is trained twice", (long long)sample);
    }
}

/* ---- the port ---- */

static int simtrain_score(void *self, struct train_sample *x, int n, struct err *e)
{
    (void)self, (void)e;
    for (int i = 0; i < n; i++) {
        for (int k = 0; x[i].logp_out && k < x[i].response; k++) {
            x[i].logp_out[k] = -0.25f * (float)(x[i].tokens[x[i].prompt + k] + 1);
        }
    }
    return STATUS_OK;
}

static uint64_t simtrain_mix_bytes(uint64_t h, const void *p, size_t n)
{
    const uint8_t *b = p;
    for (size_t i = 0; i < n; i++) {
        h = (h ^ b[i]) * 0x100000001b3ull;
    }
    return sim_mix(h, n);
}

static void simtrain_learn(struct simtrain *t, const struct train_sample *x, uint64_t *h)
{
    size_t m = (size_t)x->response;

    simtrain_check_tokens(t, x);
    simtrain_note(t, x->rollout);
    *h = simtrain_mix_bytes(*h, x->tokens, 4 * ((size_t)x->prompt + m));
    *h = simtrain_mix_bytes(*h, x->adv, 4 * m);
    *h = simtrain_mix_bytes(*h, &x->denom, sizeof x->denom);
    *h = simtrain_mix_bytes(*h, &x->rollout, sizeof x->rollout);
    for (size_t i = 0; i < m; i++) {
        *h = sim_mix(*h, !x->mask || x->mask[i]);
    }
    if (x->roll) {
        *h = simtrain_mix_bytes(*h, x->roll, 4 * m);
    }
}

static void simtrain_grow(struct simtrain *t)
{
    while ((size_t)t->version + 2 > t->cap) {
        ASSERT(mem_grow((void **)&t->weights, &t->cap, 64, sizeof *t->weights));
    }
}

static int simtrain_step(void *self, struct train_sample *x, int n, const struct optim_hyper *hy,
                         struct trainer_report *r, struct err *e)
{
    struct simtrain *t = self;
    uint64_t h = t->weights[t->version];

    (void)hy;
    if (t->s->dead) {
        return ERR(e, STATUS_FAIL, "the controller has ended");
    }
    memset(r, 0, sizeof *r);
    loss_sums_init(&r->sums);
    for (int i = 0; i < n; i++) {
        simtrain_learn(t, &x[i], &h);
        r->tokens += x[i].response;
        r->rows += x[i].response + x[i].prompt;
    }
    r->step.rollouts = n;
    r->step.tokens = r->tokens;
    r->grad_norm = 0.5;
    r->micro_batches = 1;
    simtrain_grow(t);
    t->weights[++t->version] = h;
    sim_event(t->s, "train: %d samples, version %lld is %016llx", n, (long long)t->version,
              (unsigned long long)h);
    sim_wait(t->s, t->p.step_s, NULL, NULL);
    return t->s->dead ? ERR(e, STATUS_FAIL, "the controller has ended") : STATUS_OK;
}

static int64_t simtrain_version(void *self)
{
    return ((struct simtrain *)self)->version;
}

/* ---- checkpoints ---- */

static int simtrain_fill(void *arg, const char *tmp, struct err *e)
{
    const struct simtrain *t = arg;
    char *path = fsio_join(tmp, "state.json");
    int rc = fsio_write_atomic(path, t->text, strlen(t->text), e);
    mem_free(path);
    return rc;
}

static int simtrain_write(struct simtrain *t, struct err *e)
{
    int rc = ckpt_place(t->dir, t->iteration, simtrain_fill, t, e);

    sim_note(t->s, "checkpoint %lld: %s", (long long)t->iteration,
             rc == STATUS_OK ? "on disk" : "not written");
    return rc;
}

static json_t *simtrain_numbers(const struct simtrain *t)
{
    json_t *all = json_array();
    char text[20];

    for (int64_t v = 0; v <= t->version; v++) {
        snprintf(text, sizeof text, "%016llx", (unsigned long long)t->weights[v]);
        json_array_append_new(all, json_string(text));
    }
    return all;
}

static int simtrain_save(void *self, const char *dir, int64_t iteration, int with_optim,
                         const json_t *state, struct err *e)
{
    struct simtrain *t = self;
    json_t *trained = json_array(), *all;

    (void)with_optim;
    for (size_t i = 0; i < t->trained.count; i++) {
        json_array_append_new(trained, json_integer(atoll(t->trained.entries[i].key)));
    }
    all = json_pack("{s:o,s:o,s:O}", "weights", simtrain_numbers(t), "trained", trained, "state",
                    state);
    mem_free(t->dir);
    free(t->text);
    t->dir = mem_strdup(dir);
    t->text = json_dumps(all, JSON_COMPACT);
    t->iteration = iteration;
    t->done_at = t->s->now + sim_between(t->s, 0.01, 3);
    json_decref(all);
    return t->p.beside ? STATUS_OK : simtrain_write(t, e);
}

static int simtrain_saved(void *self, int wait, struct err *e)
{
    struct simtrain *t = self;

    if (!t->p.beside) {
        return STATUS_OK;
    }
    if (t->s->now < t->done_at && !wait) {
        return STATUS_AGAIN;
    }
    if (t->s->now < t->done_at) {
        sim_wait(t->s, t->done_at - t->s->now, NULL, NULL);
    }
    return simtrain_write(t, e);
}

void simtrain_begin(struct simtrain *t)
{
    map_fini(&t->trained);
    map_init(&t->trained);
    t->version = 0;
    t->published = -1;
    simtrain_grow(t);
    t->weights[0] = sim_mix(t->p.seed, 4711);
}

int simtrain_load(struct simtrain *t, const char *dir, int64_t iteration, json_t **state,
                  struct err *e)
{
    char name[48], *path, *text = NULL;
    const json_t *v;
    json_t *all = NULL;
    size_t len = 0, i;
    int rc;

    snprintf(name, sizeof name, "iter_%07lld/state.json", (long long)iteration);
    path = fsio_join(dir, name);
    rc = fsio_read(path, 64 << 20, &text, &len, e);
    mem_free(path);
    if (rc == STATUS_OK) {
        all = json_loadb(text, len, 0, NULL);
        rc = all ? STATUS_OK
                 : ERR(e, STATUS_FORMAT, "checkpoint %lld is not JSON", (long long)iteration);
    }
    mem_free(text);
    if (rc != STATUS_OK) {
        return rc;
    }
    simtrain_begin(t);
    json_array_foreach(json_object_get(all, "weights"), i, v)
    {
        t->version = (int64_t)i;
        simtrain_grow(t);
        t->weights[i] = strtoull(json_string_value(v), NULL, 16);
    }
    json_array_foreach(json_object_get(all, "trained"), i, v)
    {
        simtrain_note(t, json_integer_value(v));
    }
    *state = json_incref(json_object_get(all, "state"));
    json_decref(all);
    return STATUS_OK;
}

/* ---- to the engines ---- */

static int simtrain_prepare(void *self, int64_t version, struct err *e)
{
    struct simtrain *t = self;

    (void)e;
    if (version < t->published || version != t->version) {
        sim_broken(t->s, "version %lld is published, the last was %lld and the trainer's is %lld",
                   (long long)version, (long long)t->published, (long long)t->version);
    }
    t->published = version;
    map_fini(&t->sums);
    map_init(&t->sums);
    map_put(&t->sums, "weights", strlen("weights"), (int64_t)t->weights[version]);
    return STATUS_OK;
}

static int simtrain_take(void *self, int64_t version, struct wsync_request *r, struct err *e)
{
    const struct simtrain *t = self;
    char sum[20], name[24];

    snprintf(sum, sizeof sum, "%016llx", (unsigned long long)t->weights[version]);
    snprintf(name, sizeof name, "%lld", (long long)version);
    return wsync_ask(r, "/update_weights_from_disk",
                     json_pack("{s:s,s:s}", "weight_version", name, "weights", sum), e);
}

static int simtrain_proof(void *self, int64_t version, int k, struct wsync_request *r,
                          struct err *e)
{
    (void)self, (void)version;
    return k ? STATUS_END
             : wsync_ask(r, "/weights_checker", json_pack("{s:s}", "action", "checksum"), e);
}

static const struct map *simtrain_sums(void *arg, int tp_rank, int tp_size, struct err *e)
{
    (void)tp_rank, (void)tp_size, (void)e;
    return &((struct simtrain *)arg)->sums;
}

static int simtrain_judge(void *self, int64_t version, int k, const json_t *answer, struct err *e)
{
    (void)version, (void)k;
    return wsync_judge_sums(simtrain_sums, self, answer, e);
}

/* ---- beginning and end ---- */

struct simtrain *simtrain_new(struct sim *s, const struct simtrain_promises *p)
{
    struct simtrain *t = mem_alloc(sizeof *t);

    t->s = s;
    t->p = *p;
    map_init(&t->trained);
    map_init(&t->sums);
    t->port = (struct trainer_port){.score = simtrain_score,
                                    .score_ref = simtrain_score,
                                    .score_teacher = simtrain_score,
                                    .step = simtrain_step,
                                    .save = simtrain_save,
                                    .saved = simtrain_saved,
                                    .version = simtrain_version,
                                    .self = t};
    t->sync = (struct wsync){.prepare = simtrain_prepare,
                             .take = simtrain_take,
                             .check = simtrain_proof,
                             .judge = simtrain_judge,
                             .self = t};
    simtrain_begin(t);
    return t;
}

void simtrain_free(struct simtrain *t)
{
    if (t) {
        map_fini(&t->trained);
        map_fini(&t->sums);
        mem_free(t->weights);
        mem_free(t->dir);
        free(t->text);
        mem_free(t);
    }
}

const struct trainer_port *simtrain_port(struct simtrain *t)
{
    return &t->port;
}

const struct wsync *simtrain_sync(struct simtrain *t)
{
    return &t->sync;
}

uint64_t simtrain_weights(const struct simtrain *t)
{
    return t->weights[t->version];
}

uint64_t simtrain_weights_of(const struct simtrain *t, int64_t version)
{
    return t->weights[version];
}

int64_t simtrain_samples(const struct simtrain *t)
{
    return (int64_t)t->trained.count;
}

int simtrain_has(const struct simtrain *t, int64_t sample)
{
    char key[32];
    int n = snprintf(key, sizeof key, "%lld", (long long)sample);
    return map_get(&t->trained, key, (size_t)n, NULL);
}
