/* Owns what custom losses see and give: one block of arrays over all samples of an optimizer step.
 * A Python function finds the block in shared memory, a shared object in its struct miles_batch;
 * both read the same bytes. The call is made once a step, before the first micro-batch, so that
 * micro-batches never show in it (contract C4): that costs a pass that scores the samples. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/metric.h"
#include "base/plugin.h"
#include "base/status.h"
#include "miles_plugin.h"
#include "reward/hookcall.h"
#include "rl/extend_int.h"
#include "rl/port.h"
#include "rl/train_opts.h"
#include "train/trainer.h"

/* ---- the block ---- */

enum array {
    A_START,
    A_TOTAL,
    A_DENOM,
    A_ROLLOUT,
    A_TOKENS,
    A_MASK,
    A_LOGP,
    A_OLD,
    A_REF,
    A_ROLL,
    A_TRAIN,
    A_ENTROPY,
    A_ADV,
    A_PG_LOSS,
    A_DLOGP,
    A_DENTROPY,
    A_WEIGHT,
    A_KEEP,
    A_COEF,
    NARRAYS
};

enum per { PER_SAMPLE, PER_SAMPLE_1, PER_SEQUENCE, PER_TOKEN };

static const struct {
    const char *name;
    enum per per;
    const char *dtype;
    size_t size;
} shapes[NARRAYS] = {
    [A_START] = {"start", PER_SAMPLE_1, "i64", 8},
    [A_TOTAL] = {"total_lengths", PER_SAMPLE, "i64", 8},
    [A_DENOM] = {"denom", PER_SAMPLE, "i64", 8},
    [A_ROLLOUT] = {"rollout_ids", PER_SAMPLE, "i64", 8},
    [A_TOKENS] = {"tokens", PER_SEQUENCE, "i32", 4},
    [A_MASK] = {"loss_mask", PER_TOKEN, "u8", 1},
    [A_LOGP] = {"log_probs", PER_TOKEN, "f32", 4},
    [A_OLD] = {"old_log_probs", PER_TOKEN, "f32", 4},
    [A_REF] = {"ref_log_probs", PER_TOKEN, "f32", 4},
    [A_ROLL] = {"rollout_log_probs", PER_TOKEN, "f32", 4},
    [A_TRAIN] = {"train_log_probs", PER_TOKEN, "f32", 4},
    [A_ENTROPY] = {"entropy", PER_TOKEN, "f32", 4},
    [A_ADV] = {"advantages", PER_TOKEN, "f32", 4},
    [A_PG_LOSS] = {"pg_loss", PER_TOKEN, "f32", 4},
    [A_DLOGP] = {"dlog_probs", PER_TOKEN, "f32", 4},
    [A_DENTROPY] = {"dentropy", PER_TOKEN, "f32", 4},
    [A_WEIGHT] = {"weight", PER_TOKEN, "f32", 4},
    [A_KEEP] = {"keep", PER_TOKEN, "u8", 1},
    [A_COEF] = {"coef", PER_TOKEN, "f32", 4},
};

/* What a step is, before and beside the arrays. */
struct step {
    struct extend *x;
    struct train_sample *t;
    int n;
    struct arena *mem;
    json_t *row;
    struct loss_step div;
    struct loss_opts lo;
    int64_t ntokens, nsequence;
    float **logp, **entropy; /* (n) of the weights of now; entropy NULL: not known */
    const uint8_t *keep;     /* (ntokens) of the correction, or NULL */
};

/* The arrays of one call. */
struct block {
    char *base;
    size_t size, at[NARRAYS];
    int64_t count[NARRAYS];
    int has[NARRAYS];
};

static void *array_of(const struct block *b, enum array a)
{
    return b->has[a] ? b->base + b->at[a] : NULL;
}

static void block_plan(struct block *b, const struct step *s)
{
    int64_t counts[] = {s->n, s->n + 1, s->nsequence, s->ntokens};

    b->size = 0;
    for (int i = 0; i < NARRAYS; i++) {
        if (b->has[i]) {
            b->count[i] = counts[shapes[i].per];
            b->at[i] = b->size;
            b->size += ((size_t)b->count[i] * shapes[i].size + 63) / 64 * 64;
        }
    }
    b->size += b->size ? 0 : 64;
}

static json_t *block_layout(const struct block *b, const struct step *s)
{
    json_t *arrays = json_object();
    for (int i = 0; i < NARRAYS; i++) {
        if (b->has[i]) {
            json_object_set_new(arrays, shapes[i].name,
                                json_pack("[I,I,s]", (json_int_t)b->at[i], (json_int_t)b->count[i],
                                          shapes[i].dtype));
        }
    }
    return json_pack("{s:I,s:b,s:o}", "size", (json_int_t)b->size, "per_token", s->lo.per_token,
                     "arrays", arrays);
}

static double step_divisor(const struct step *s)
{
    return (double)(s->lo.per_token ? s->div.tokens : s->div.rollouts);
}

/* ---- filling ---- */

/* The array of sample i that a token array is filled from; NULL: zeros. */
static const float *source_of(const struct step *s, enum array a, int i)
{
    const struct train_sample *t = &s->t[i];
    const float *old = t->old ? t->old : s->logp ? s->logp[i] : NULL;
    switch (a) {
    case A_LOGP: return s->logp[i];
    case A_OLD: return old;
    case A_REF: return t->ref;
    case A_ROLL: return t->roll;
    case A_TRAIN: return t->train ? t->train : old;
    case A_ENTROPY: return s->entropy[i];
    case A_ADV: return t->adv;
    default: return NULL;
    }
}

/* Which of the optional inputs every sample has. */
static int all_have(const struct step *s, enum array a)
{
    for (int i = 0; i < s->n; i++) {
        if (s->t[i].response && !source_of(s, a, i)) {
            return 0;
        }
    }
    return 1;
}

/* The policy loss of each token, as loss.c has it. */
static void fill_pg_loss(const struct step *s, int i, float *out)
{
    const struct train_sample *t = &s->t[i];
    const float *old = source_of(s, A_OLD, i), *logp = s->logp[i];
    double sum = 0;
    int64_t active = 0;

    for (int j = 0; j < t->response; j++) {
        if (!t->mask || t->mask[j]) {
            sum += (double)(old[j] - logp[j]);
            active++;
        }
    }
    for (int j = 0; j < t->response; j++) {
        float k = s->lo.gspo ? (float)(sum / (double)(active ? active : 1)) : old[j] - logp[j];
        k = isfinite(k) ? k : 0.0f;
        out[j] = s->lo.cispo ? loss_cispo_token(&s->lo, k, logp[j], t->adv[j], NULL, NULL)
                             : loss_ppo_token(&s->lo, k, t->adv[j], NULL, NULL, NULL);
    }
}

static void fill_sample(const struct step *s, struct block *b, int i, int64_t at, int64_t seq)
{
    const struct train_sample *t = &s->t[i];
    size_t n = (size_t)t->response, len = (size_t)(t->prompt + t->response);
    int64_t active = loss_norm_tokens(t->mask, t->response);

    ((int64_t *)array_of(b, A_TOTAL))[i] = (int64_t)len;
    ((int64_t *)array_of(b, A_DENOM))[i] = t->denom > 0 ? t->denom : active;
    ((int64_t *)array_of(b, A_ROLLOUT))[i] = t->rollout;
    memcpy((int32_t *)array_of(b, A_TOKENS) + seq, t->tokens, 4 * len);
    if (t->mask) {
        memcpy((uint8_t *)array_of(b, A_MASK) + at, t->mask, n);
    } else {
        memset((uint8_t *)array_of(b, A_MASK) + at, 1, n);
    }
    for (int a = A_LOGP; a <= A_ADV; a++) {
        if (b->has[a] && n) {
            memcpy((float *)array_of(b, (enum array)a) + at, source_of(s, (enum array)a, i), 4 * n);
        }
    }
    if (b->has[A_PG_LOSS]) {
        fill_pg_loss(s, i, (float *)array_of(b, A_PG_LOSS) + at);
    }
}

static void block_fill(const struct step *s, struct block *b)
{
    int64_t *start = array_of(b, A_START), at = 0, seq = 0;

    for (int i = 0; i < s->n; i++) {
        start[i] = at;
        fill_sample(s, b, i, at, seq);
        at += s->t[i].response;
        seq += s->t[i].prompt + s->t[i].response;
    }
    start[s->n] = at;
    for (int a = A_DLOGP; a < NARRAYS; a++) { /* results: nothing yet */
        if (b->has[a] && a != A_KEEP && a != A_WEIGHT) {
            memset(array_of(b, (enum array)a), 0, (size_t)b->count[a] * shapes[a].size);
        }
    }
    for (int64_t j = 0; b->has[A_WEIGHT] && j < s->ntokens; j++) {
        ((float *)array_of(b, A_WEIGHT))[j] = 1.0f;
    }
    if (b->has[A_KEEP] && s->keep) {
        memcpy(array_of(b, A_KEEP), s->keep, (size_t)s->ntokens);
    } else if (b->has[A_KEEP]) {
        memcpy(array_of(b, A_KEEP), array_of(b, A_MASK), (size_t)s->ntokens);
    }
}

/* Plans, gets memory for and fills the arrays of a call of hook h. */
static int block_make(const struct step *s, struct hookcall *h, struct block *b, struct err *e)
{
    static const enum array always[] = {A_START, A_TOTAL, A_DENOM, A_ROLLOUT, A_TOKENS, A_MASK};
    void *p;

    for (size_t i = 0; i < sizeof always / sizeof *always; i++) {
        b->has[always[i]] = 1;
    }
    block_plan(b, s);
    if (hookcall_plugin(h)) {
        b->base = arena_alloc(s->mem, b->size);
    } else {
        int rc = hookcall_memory(h, b->size, &p, e);
        if (rc != STATUS_OK) {
            return rc;
        }
        b->base = p;
    }
    block_fill(s, b);
    return STATUS_OK;
}

/* ---- calls ---- */

static void put_metric(void *arg, const char *name, double value)
{
    const struct step *s = arg;
    char full[160];
    snprintf(full, sizeof full, "train/%.140s", name);
    metric_put(s->row, full, value / step_divisor(s));
}

static void view_batch(const struct step *s, const struct block *b, struct miles_batch *v)
{
    *v = (struct miles_batch){.size = sizeof *v,
                              .per_token = s->lo.per_token,
                              .nsamples = s->n,
                              .ntokens = s->ntokens,
                              .start = array_of(b, A_START),
                              .total_lengths = array_of(b, A_TOTAL),
                              .denom = array_of(b, A_DENOM),
                              .rollout_ids = array_of(b, A_ROLLOUT),
                              .tokens = array_of(b, A_TOKENS),
                              .loss_mask = array_of(b, A_MASK),
                              .log_probs = array_of(b, A_LOGP),
                              .old_log_probs = array_of(b, A_OLD),
                              .ref_log_probs = array_of(b, A_REF),
                              .rollout_log_probs = array_of(b, A_ROLL),
                              .entropy = array_of(b, A_ENTROPY),
                              .advantages = array_of(b, A_ADV),
                              .divisor = step_divisor(s)};
}

static int call_plugin(struct step *s, enum extend_hook i, const struct block *b, double *loss,
                       struct err *e)
{
    struct plugin *p = hookcall_plugin(s->x->hook[i]);
    const struct miles_plugin *t = plugin_table(p);
    struct miles_why why = {""};
    struct miles_batch v;
    struct miles_loss out = {.size = sizeof out,
                             .dlog_probs = array_of(b, A_DLOGP),
                             .dentropy = array_of(b, A_DENTROPY),
                             .metrics = s,
                             .metric = put_metric};
    int rc;

    view_batch(s, b, &v);
    rc = i == EXTEND_LOSS  ? t->loss(plugin_self(p), &v, &out, &why)
         : i == EXTEND_TIS ? t->correct(plugin_self(p), &v, array_of(b, A_WEIGHT),
                                        array_of(b, A_KEEP), &out, &why)
                           : t->reduce(plugin_self(p), &v, array_of(b, A_COEF), &why);
    why.text[sizeof why.text - 1] = 0;
    *loss = out.loss;
    return rc == 0 ? STATUS_OK : plugin_failed(p, why.text, e);
}

static int call_python(struct step *s, enum extend_hook i, const struct block *b, double *loss,
                       struct err *e)
{
    json_t *out = NULL, *value;
    const char *name;
    int rc = extend_call(s->x, i, json_pack("[o]", block_layout(b, s)), &out, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    *loss = json_number_value(json_object_get(out, "loss"));
    json_object_foreach(json_object_get(out, "metrics"), name, value)
    {
        put_metric(s, name, json_is_number(value) ? json_number_value(value) : NAN);
    }
    json_decref(out);
    return STATUS_OK;
}

static int call_hook(struct step *s, enum extend_hook i, struct block *b, double *loss,
                     struct err *e)
{
    int rc = block_make(s, s->x->hook[i], b, e);
    if (rc != STATUS_OK) {
        return rc;
    }
    return hookcall_plugin(s->x->hook[i]) ? call_plugin(s, i, b, loss, e)
                                          : call_python(s, i, b, loss, e);
}

/* A result that is no number has no place in a gradient. */
static int check_finite(const struct block *b, enum array a, const char *flag, struct err *e)
{
    const float *x = array_of(b, a);
    for (int64_t i = 0; x && i < b->count[a]; i++) {
        if (!isfinite(x[i])) {
            return ERR(e, STATUS_NUMERIC, "--%s: %s of token %lld is %g", flag, shapes[a].name,
                       (long long)i, (double)x[i]);
        }
    }
    return STATUS_OK;
}

static int do_loss(struct step *s, struct err *e)
{
    struct block b = {.has = {[A_LOGP] = 1, [A_OLD] = 1, [A_DLOGP] = 1}};
    const struct plugin *p = hookcall_plugin(s->x->hook[EXTEND_LOSS]);
    double loss = 0;
    int rc;

    b.has[A_REF] = all_have(s, A_REF);
    b.has[A_ROLL] = all_have(s, A_ROLL);
    b.has[A_ADV] = all_have(s, A_ADV);
    b.has[A_ENTROPY] = b.has[A_DENTROPY] = s->entropy != NULL;
    if (p && !plugin_table(p)->loss) {
        rc = block_make(s, s->x->hook[EXTEND_LOSS], &b, e);
    } else {
        rc = call_hook(s, EXTEND_LOSS, &b, &loss, e);
    }
    rc = rc == STATUS_OK ? check_finite(&b, A_DLOGP, "custom-loss-function-path", e) : rc;
    rc = rc == STATUS_OK ? check_finite(&b, A_DENTROPY, "custom-loss-function-path", e) : rc;
    if (rc != STATUS_OK) {
        return rc;
    }
    for (int i = 0; i < s->n; i++) {
        int64_t at = ((int64_t *)array_of(&b, A_START))[i];
        s->t[i].given_dlogp = (float *)array_of(&b, A_DLOGP) + at;
        s->t[i].given_dentropy = b.has[A_DENTROPY] ? (float *)array_of(&b, A_DENTROPY) + at : NULL;
    }
    put_metric(s, "loss", loss);
    return STATUS_OK;
}

static int do_correction(struct step *s, struct err *e)
{
    struct block b = {.has = {[A_LOGP] = 1,
                              [A_OLD] = 1,
                              [A_ROLL] = 1,
                              [A_TRAIN] = 1,
                              [A_ADV] = 1,
                              [A_PG_LOSS] = 1,
                              [A_WEIGHT] = 1,
                              [A_KEEP] = 1}};
    double loss;
    int rc;

    if (!all_have(s, A_ROLL) || !all_have(s, A_ADV)) {
        return ERR(e, STATUS_INPUT,
                   "--custom-tis-function-path needs log-probs of the rollout and advantages of "
                   "every sample");
    }
    rc = call_hook(s, EXTEND_TIS, &b, &loss, e);
    rc = rc == STATUS_OK ? check_finite(&b, A_WEIGHT, "custom-tis-function-path", e) : rc;
    for (int i = 0; rc == STATUS_OK && s->x->o->use_tis && i < s->n; i++) {
        int64_t at = ((int64_t *)array_of(&b, A_START))[i];
        s->t[i].weight = (float *)array_of(&b, A_WEIGHT) + at;
        s->t[i].keep = (uint8_t *)array_of(&b, A_KEEP) + at;
    }
    s->keep = s->x->o->use_tis ? array_of(&b, A_KEEP) : NULL;
    return rc;
}

static int do_reducer(struct step *s, struct err *e)
{
    struct block b = {.has = {[A_KEEP] = 1, [A_COEF] = 1}};
    double loss;
    int rc = call_hook(s, EXTEND_REDUCE, &b, &loss, e);

    rc = rc == STATUS_OK ? check_finite(&b, A_COEF, "custom-pg-loss-reducer-function-path", e) : rc;
    for (int i = 0; rc == STATUS_OK && i < s->n; i++) {
        s->t[i].coef = (float *)array_of(&b, A_COEF) + ((int64_t *)array_of(&b, A_START))[i];
    }
    return rc;
}

/* ---- a loss over rows of logits ---- */

static int call_row(void *arg, const struct trainer_logits *r, float *dlogits, double *loss,
                    struct err *e)
{
    struct plugin *p = arg;
    struct miles_row v = {.size = sizeof v,
                          .vocab = r->vocab,
                          .sample = r->s,
                          .token = r->t,
                          .target = r->target,
                          .log_prob = r->logp,
                          .entropy = r->entropy,
                          .denom = r->sample->denom > 0
                                       ? r->sample->denom
                                       : loss_norm_tokens(r->sample->mask, r->sample->response),
                          .advantage = r->sample->adv ? r->sample->adv[r->t] : 0.0f,
                          .logits = r->logits};
    struct miles_why why = {""};
    int rc = plugin_table(p)->row(plugin_self(p), &v, dlogits, loss, &why);

    why.text[sizeof why.text - 1] = 0;
    return rc == 0 ? STATUS_OK : plugin_failed(p, why.text, e);
}

int extend_rows(struct extend *x, struct trainer *t, struct err *e)
{
    struct hookcall *h = x->hook[EXTEND_LOSS];
    struct plugin *p = h ? hookcall_plugin(h) : NULL;
    return p && plugin_table(p)->row ? trainer_add_logit_loss(t, call_row, p, e) : STATUS_OK;
}

/* ---- a step ---- */

/* Log-probs, and with them entropies where the trainer computes them, of the weights of now. */
static int score(struct step *s, const struct trainer_port *actor, struct err *e)
{
    int want = s->x->hook[EXTEND_LOSS] != NULL, rc;

    s->logp = arena_alloc(s->mem, sizeof *s->logp * (size_t)(s->n + 1));
    s->entropy = want ? arena_alloc(s->mem, sizeof *s->entropy * (size_t)(s->n + 1)) : NULL;
    for (int i = 0; i < s->n; i++) {
        size_t bytes = sizeof(float) * (size_t)(s->t[i].response + 1);
        s->t[i].logp_out = s->logp[i] = arena_alloc(s->mem, bytes);
        if (want) {
            s->t[i].entropy_out = s->entropy[i] = arena_alloc(s->mem, bytes);
        }
    }
    rc = actor->score(actor->self, s->t, s->n, e);
    for (int i = 0; i < s->n; i++) {
        s->t[i].logp_out = s->t[i].entropy_out = NULL;
    }
    return rc;
}

int extend_loss(struct extend *x, const struct trainer_port *actor, struct train_sample *t, int n,
                struct arena *mem, json_t *row, struct err *e)
{
    struct step s = {.x = x, .t = t, .n = n, .mem = mem, .row = row};
    int rc = STATUS_OK;

    if (!x || (!x->hook[EXTEND_LOSS] && !x->hook[EXTEND_TIS] && !x->hook[EXTEND_REDUCE])) {
        return STATUS_OK;
    }
    train_opts_loss(x->o, &s.lo);
    trainer_step_of(t, n, &s.div);
    for (int i = 0; i < n; i++) {
        s.ntokens += t[i].response;
        s.nsequence += t[i].prompt + t[i].response;
    }
    if (x->hook[EXTEND_LOSS] || x->hook[EXTEND_TIS]) {
        rc = score(&s, actor, e);
    }
    if (rc == STATUS_OK && x->hook[EXTEND_LOSS]) {
        return do_loss(&s, e); /* the others are parts of the policy loss */
    }
    if (rc == STATUS_OK && x->hook[EXTEND_TIS]) {
        rc = do_correction(&s, e);
    }
    if (rc == STATUS_OK && x->hook[EXTEND_REDUCE]) {
        rc = do_reducer(&s, e);
    }
    return rc;
}
