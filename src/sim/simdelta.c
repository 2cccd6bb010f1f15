/* Owns the tensors behind a simulated run's weights, and an engine's way from a manifest's name to
 * other values. */
#include "sim/simdelta.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/fsio.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/status.h"
#include "model/arch.h"
#include "model/weights.h"
#include "model/wpatch.h"
#include "model/wsum.h"
#include "num/plan.h"
#include "rl/wsync_delta.h"
#include "sim/sim.h"
#include "sim/simdisk.h"
#include "sim/simtrain.h"

#define SIMDELTA_DIR   SIMDISK_ROOT "/weights"
#define SIMDELTA_CARRY "model.norm.weight" /* the tensor that carries the 64 bits */
#define SIMDELTA_MAX   (1u << 20)          /* bytes of a file */

enum { SIMDELTA_WIDTH = 32, SIMDELTA_LAYERS = 64 };

static const char simdelta_config[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":32,"
    "\"intermediate_size\":32,\"num_hidden_layers\":1,\"num_attention_heads\":1,"
    "\"num_key_value_heads\":1,\"vocab_size\":32,\"max_position_embeddings\":64,"
    "\"rms_norm_eps\":1e-5,\"rope_theta\":10000,\"tie_word_embeddings\":true,"
    "\"hidden_act\":\"silu\",\"bos_token_id\":0,\"eos_token_id\":1}";

struct simdelta {
    struct sim *s;
    struct simdelta_opts o;
    struct wsync sync;
    struct wsync_delta *inner; /* of this life */
    uint64_t sums[1 + SIMDELTA_ENGINES];
    int known[1 + SIMDELTA_ENGINES]; /* 1: the tensors are of that sum */
    struct wpatch_held held[1 + SIMDELTA_ENGINES];
    int spoiled; /* 1: somebody has laid hands on the folder */
};

/* Versions that an engine has fetched, the newest first. */
struct simdelta_chain {
    struct wmanifest *m[SIMDELTA_LAYERS];
    uint8_t **chunks[SIMDELTA_LAYERS];
    int n;
};

/* ---- tensors ---- */

static int simdelta_read(void *arg, const char *name, uint16_t *dst, int64_t count, struct err *e)
{
    uint64_t sum = *(const uint64_t *)arg;

    (void)e;
    for (int64_t i = 0; i < count; i++) {
        dst[i] = (uint16_t)(0x3f00 + (i * 7 + (int64_t)strlen(name)) % 200);
    }
    for (int i = 0; i < 8 && strcmp(name, SIMDELTA_CARRY) == 0; i++) {
        dst[i] = (uint16_t)(0x3f00 + (sum >> (8 * i) & 255));
    }
    return STATUS_OK;
}

static uint64_t simdelta_sum(struct weights *w)
{
    uint16_t v[SIMDELTA_WIDTH];
    uint64_t sum = 0;

    ASSERT(weights_read_bf16(w, SIMDELTA_CARRY, v, SIMDELTA_WIDTH, NULL) == STATUS_OK);
    for (int i = 0; i < 8; i++) {
        sum |= (uint64_t)(v[i] - 0x3f00) << (8 * i);
    }
    return sum;
}

/* The tensors become those of the sum; 0 is the trainer, 1 + k engine k. */
static struct weights *simdelta_of(struct simdelta *d, int i, uint64_t sum)
{
    struct weights *w = d->o.models->w[i];

    if (!d->known[i] || d->sums[i] != sum) {
        ASSERT(weights_reload(w, simdelta_read, &sum, NULL) == STATUS_OK);
        wpatch_held_fini(&d->held[i]);
        d->sums[i] = sum;
        d->known[i] = 1;
    }
    return w;
}

int simdelta_models(struct simdelta_models *m, struct err *e)
{
    uint64_t none = 0;
    struct plan plan;
    struct arch a;
    int rc = arch_parse(simdelta_config, &a, e);

    memset(m, 0, sizeof *m);
    plan_init(&plan, 1, 0);
    rc = rc == STATUS_OK ? device_open("cpu", "scalar", 1, &plan, &m->dev, e) : rc;
    for (int i = 0; rc == STATUS_OK && i <= SIMDELTA_ENGINES; i++) {
        rc = weights_build(&a, simdelta_read, &none, m->dev, 0, 0, &m->w[i], e);
    }
    return rc;
}

void simdelta_models_fini(struct simdelta_models *m)
{
    for (int i = 0; i <= SIMDELTA_ENGINES; i++) {
        weights_release(m->w[i]);
    }
    device_close(m->dev);
}

/* ---- an engine fetches ---- */

static void simdelta_chain_fini(struct simdelta_chain *c)
{
    for (int i = 0; i < c->n; i++) {
        for (size_t k = 0; c->chunks[i] && k < c->m[i]->nchunks; k++) {
            mem_free(c->chunks[i][k]);
        }
        mem_free(c->chunks[i]);
        wmanifest_free(c->m[i]);
    }
}

static int simdelta_manifest(int64_t version, const char *hash, struct wmanifest **out,
                             struct err *e)
{
    char name[32], path[96], *text = NULL;
    size_t n = 0;
    int rc;

    wmanifest_name(version, name, sizeof name);
    snprintf(path, sizeof path, "%s/%s", SIMDELTA_DIR, name);
    rc = fsio_read(path, SIMDELTA_MAX, &text, &n, e);
    rc = rc == STATUS_OK ? wmanifest_read(text, n, out, e) : rc;
    mem_free(text);
    if (rc == STATUS_OK && strcmp((*out)->hash, hash) != 0) {
        rc = ERR(e, STATUS_FAIL, "%s has hash %s, not %s", name, (*out)->hash, hash);
        wmanifest_free(*out);
    }
    return rc;
}

/* What may befall a chunk; quiet: nothing does. */
static int simdelta_chunk(struct simdelta *d, const char *hash, int quiet, uint8_t **out,
                          struct err *e)
{
    char path[128], is[WDELTA_HASH], *data = NULL;
    size_t n = 0;
    int rc;

    snprintf(path, sizeof path, "%s/chunks/%s", SIMDELTA_DIR, hash);
    if (!quiet && sim_fault(d->s, SIM_CHUNK_ROTS)) {
        d->spoiled |= simdisk_spoil(d->o.disk, path, sim_u64(d->s));
    }
    if (!quiet && sim_fault(d->s, SIM_CHUNK_LOST)) {
        return ERR(e, STATUS_AGAIN, "chunk %s does not come", hash);
    }
    rc = fsio_read(path, SIMDELTA_MAX, &data, &n, e);
    if (rc == STATUS_OK && n && !quiet && sim_fault(d->s, SIM_CHUNK_BAD)) {
        data[sim_below(d->s, (int64_t)n)] ^= 16;
    }
    if (rc == STATUS_OK) {
        wdelta_hash(data, n, is);
        rc = strcmp(is, hash) == 0 ? STATUS_OK
                                   : ERR(e, STATUS_FAIL, "chunk %s came with hash %s", hash, is);
    }
    if (rc == STATUS_OK) {
        *out = (uint8_t *)data;
    } else {
        mem_free(data);
    }
    return rc;
}

/* From the version back to what is held, or to a whole one. held "": nothing is. */
static int simdelta_fetch(struct simdelta *d, int64_t version, const char *hash, const char *held,
                          int quiet, struct simdelta_chain *c, struct err *e)
{
    char want[WDELTA_HASH];
    int rc = STATUS_OK, done = 0;

    snprintf(want, sizeof want, "%s", hash);
    while (rc == STATUS_OK && !done) {
        struct wmanifest *m = NULL;
        ASSERT(c->n < SIMDELTA_LAYERS);
        rc = simdelta_manifest(version, want, &m, e);
        if (rc != STATUS_OK) {
            break;
        }
        if (strcmp(m->sum, held) == 0) { /* it is there already */
            wmanifest_free(m);
            break;
        }
        c->m[c->n] = m;
        c->chunks[c->n++] = mem_alloc(sizeof(uint8_t *) * (m->nchunks + 1));
        for (size_t k = 0; rc == STATUS_OK && k < m->nchunks; k++) {
            rc = simdelta_chunk(d, m->chunks[k].hash, quiet, &c->chunks[c->n - 1][k], e);
        }
        done = m->base < 0;
        version = m->base;
        snprintf(want, sizeof want, "%s", m->base_hash);
    }
    return rc;
}

static int simdelta_apply(struct simdelta *d, int i, struct weights *w,
                          const struct simdelta_chain *c, struct err *e)
{
    struct wpatch_layer layers[SIMDELTA_LAYERS];
    struct wpatch *p = NULL;
    int rc;

    if (!c->n) {
        return STATUS_OK;
    }
    for (int k = 0; k < c->n; k++) {
        layers[k] = (struct wpatch_layer){c->m[c->n - 1 - k],
                                          (const uint8_t *const *)c->chunks[c->n - 1 - k]};
    }
    rc = wpatch_open(w, &d->held[i], layers, c->n, &p, e);
    rc = rc ? rc : wpatch_verify(p, e);
    rc = rc ? rc : wpatch_commit(p, e);
    wpatch_close(p);
    return rc;
}

int simdelta_take(struct simdelta *d, int engine, const json_t *body, uint64_t *sum, struct err *e)
{
    int i = 1 + engine;
    struct weights *w = simdelta_of(d, i, *sum);
    const char *hash = json_string_value(json_object_get(body, "manifest"));
    int64_t version = strtoll(json_string_value(json_object_get(body, "weight_version")), NULL, 10);
    struct simdelta_chain c = {.n = 0};
    int rc = wpatch_hold(w, &d->held[i], e);

    rc = rc ? rc : simdelta_fetch(d, version, hash, d->held[i].m->sum, 0, &c, e);
    rc = rc ? rc : simdelta_apply(d, i, w, &c, e);
    if (rc == STATUS_OK) {
        d->s->did[c.n && c.m[c.n - 1]->base < 0 ? SIM_TOOK_WHOLE : SIM_TOOK_CHANGES]++;
        *sum = d->sums[i] = simdelta_sum(w);
    } else {
        sim_note(d->s, "engine %d does not take version %lld: %s", engine, (long long)version,
                 e->msg);
    }
    simdelta_chain_fini(&c);
    return rc;
}

void simdelta_checksums(struct simdelta *d, int engine, uint64_t sum, const json_t *body,
                        const char *version, struct buf *out)
{
    const json_t *draw = json_object_get(body, "miles_draw");
    struct wsum_opts o = {.seed = (uint64_t)json_integer_value(json_object_get(draw, "seed")),
                          .bytes = json_integer_value(json_object_get(draw, "bytes"))};
    struct map sums;

    map_init(&sums);
    ASSERT(wsum_take(simdelta_of(d, 1 + engine, sum), &o, &sums, NULL) == STATUS_OK);
    buf_printf(out, "{\"success\":true,\"weight_version\":\"%s\",\"ranks\":[{\"checksums\":{",
               version);
    for (size_t i = 0; i < sums.count; i++) {
        buf_printf(out, "%s\"%s\":\"%016llx\"", i ? "," : "", sums.entries[i].key,
                   (unsigned long long)sums.entries[i].value);
    }
    buf_str(out, "}}]}");
    map_fini(&sums);
}

/* ---- the controller's side ---- */

static const struct wsync *simdelta_inner(void *self)
{
    return wsync_delta_sync(((struct simdelta *)self)->inner);
}

static int simdelta_prepare(void *self, int64_t version, struct err *e)
{
    struct simdelta *d = self;
    const struct wsync *t = simtrain_sync(d->o.train), *in = simdelta_inner(d);
    int64_t of = d->s->plant == SIM_PLANT_DELTA && version ? version - 1 : version;
    struct weights *w = simdelta_of(d, 0, simtrain_weights_of(d->o.train, of));
    int rc = t->prepare(t->self, version, e);

    w->version = version;
    return rc == STATUS_OK ? in->prepare(in->self, version, e) : rc;
}

static int simdelta_ask_take(void *self, int64_t version, struct wsync_request *r, struct err *e)
{
    const struct wsync *in = simdelta_inner(self);
    return in->take(in->self, version, r, e);
}

static int simdelta_ask_proof(void *self, int64_t version, int k, struct wsync_request *r,
                              struct err *e)
{
    const struct wsync *in = simdelta_inner(self);
    return in->check(in->self, version, k, r, e);
}

static int simdelta_judge(void *self, int64_t version, int k, const json_t *answer, struct err *e)
{
    const struct wsync *in = simdelta_inner(self);
    return in->judge(in->self, version, k, answer, e);
}

static void simdelta_doubt(void *self, int64_t version)
{
    const struct wsync *in = simdelta_inner(self);
    if (in->doubt) {
        in->doubt(in->self, version);
    }
}

/* An engine that has nothing must find all it needs. */
static void simdelta_check(struct simdelta *d, int64_t version)
{
    const struct wsync *in = simdelta_inner(d);
    struct simdelta_chain c = {.n = 0};
    struct wsync_request r = {{0}, NULL};
    struct err e = {0};
    int rc = in->take(in->self, version, &r, &e);

    if (rc == STATUS_OK) {
        rc = simdelta_fetch(d, version, json_string_value(json_object_get(r.body, "manifest")), "",
                            1, &c, &e);
    }
    if (rc != STATUS_OK && !d->spoiled && !d->s->dead) {
        sim_broken(d->s, "version %lld cannot be taken by an engine that has nothing: %.250s",
                   (long long)version, e.msg);
    }
    json_decref(r.body);
    simdelta_chain_fini(&c);
}

static void simdelta_settled(void *self, int64_t version)
{
    struct simdelta *d = self;
    const struct wsync *in = simdelta_inner(d);

    in->settled(in->self, version);
    simdelta_check(d, version);
}

/* ---- beginning and end ---- */

int simdelta_open(struct simdelta *d, struct err *e)
{
    struct wsync_delta_opts o = {.store = {.dir = SIMDELTA_DIR, .keep_s = d->o.keep_s},
                                 .w = d->o.models->w[0],
                                 .world = &d->s->world,
                                 .encoding = d->o.overwrite ? WDELTA_OVERWRITE : WDELTA_XOR,
                                 .full_every = d->o.full_every};
    d->spoiled = 0;
    return wsync_delta_open(&o, &d->inner, e);
}

void simdelta_close(struct simdelta *d)
{
    wsync_delta_close(d->inner);
    d->inner = NULL;
}

const struct wsync *simdelta_sync(struct simdelta *d)
{
    return &d->sync;
}

struct simdelta *simdelta_new(struct sim *s, const struct simdelta_opts *o)
{
    struct simdelta *d = mem_alloc(sizeof *d);

    d->s = s;
    d->o = *o;
    d->sync = (struct wsync){.prepare = simdelta_prepare,
                             .take = simdelta_ask_take,
                             .check = simdelta_ask_proof,
                             .judge = simdelta_judge,
                             .doubt = simdelta_doubt,
                             .settled = simdelta_settled,
                             .self = d};
    return d;
}

void simdelta_free(struct simdelta *d)
{
    if (d) {
        simdelta_close(d);
        for (int i = 0; i <= SIMDELTA_ENGINES; i++) {
            wpatch_held_fini(&d->held[i]);
        }
        mem_free(d);
    }
}
