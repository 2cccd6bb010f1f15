/* Jobs for an engine and what they must answer: shared by the tests of engine/. The small model is
 * one per process, `model`; every answer can be derived again from a whole-sequence pass.
 *
 *     job_add(b, ntokens, n, max_new, seed);
 *     batch_run(b, model.w, &opts, NULL);
 *     oracle_batch(b); */
#ifndef TESTS_ENGINE_JOBS_H
#define TESTS_ENGINE_JOBS_H

#include "model/tinymodel.h"

#include <limits.h>

#include "base/rng.h"
#include "engine/engine.h"
#include "model/forward.h"

enum { CONTEXT = 256, MAX_JOBS = 16, MAX_N = 6, MAX_STEPS = 20000, VOCAB = 97, TOP = 4 };

static const struct tinymodel_spec spec = {"qwen3", 1, 2, 64, 2, 1, 32, 96, VOCAB, CONTEXT, 2.0f};
static char folder[256];
static struct tinymodel model; /* trainable: tests publish versions of it */

static inline int jobs_setup(void **state)
{
    if (fixture_setup(state) != 0) {
        return -1;
    }
    snprintf(folder, sizeof folder, "%s", tinymodel_write(&spec));
    tinymodel_open(&model, folder, "cpu", "auto", 1, 2, 0, 1);
    return 0;
}

static inline int jobs_teardown(void **state)
{
    tinymodel_close(&model);
    return fixture_teardown(state);
}

/* ---- jobs and answers --------------------------------------------------------------------------
 */

struct answer {
    int taken, n;
    enum engine_finish finish;
    int64_t version;
    int cached;
    int32_t tokens[CONTEXT];
    float logps[CONTEXT];
    int64_t versions[CONTEXT];
    uint8_t mixed[CONTEXT];
    int32_t top_ids[CONTEXT * TOP];
    float top_logps[CONTEXT * TOP];
    int nprompt;
    float prompt_logps[CONTEXT];
    int32_t prompt_top_ids[CONTEXT * TOP];
    float prompt_top_logps[CONTEXT * TOP];
};

struct job {
    struct engine_group q;
    int32_t prompt[CONTEXT];
    struct answer answer[MAX_N];
};

struct batch {
    int n;
    struct job job[MAX_JOBS];
    struct engine_stats stats; /* at the end */
};

static inline struct job *job_add(struct batch *b, int ntokens, int n, int max_new, uint64_t seed)
{
    struct job *j = &b->job[b->n];
    uint64_t s = seed + 99;

    assert_true(b->n < MAX_JOBS && n <= MAX_N && ntokens + max_new <= CONTEXT);
    memset(j, 0, sizeof *j);
    for (int i = 0; i < ntokens; i++) {
        j->prompt[i] = tinymodel_below(&s, VOCAB);
    }
    j->q.id = 1000 + b->n++;
    j->q.tokens = j->prompt;
    j->q.ntokens = ntokens;
    j->q.n = n;
    j->q.max_new = max_new;
    j->q.sampling =
        (struct sampler_params){.temperature = 1.0f, .top_p = 1.0f, .min_p = 0.0f, .top_k = -1};
    j->q.key = (struct engine_key){.seed = 7, .sample = seed * 64};
    return j;
}

static inline void batch_clear(struct batch *b)
{
    for (int i = 0; i < b->n; i++) {
        memset(b->job[i].answer, 0, sizeof b->job[i].answer);
    }
}

static inline void answer_copy(struct answer *a, const struct engine_result *r)
{
    size_t n = (size_t)r->ntokens;
    a->n = r->ntokens;
    a->finish = r->finish;
    a->version = r->weight_version;
    a->cached = r->cached_tokens;
    if (n) {
        memcpy(a->tokens, r->tokens, sizeof(int32_t) * n);
        memcpy(a->logps, r->logps, sizeof(float) * n);
        memcpy(a->versions, r->versions, sizeof(int64_t) * n);
        memcpy(a->mixed, r->mixed, n);
        if (r->top) {
            memcpy(a->top_ids, r->top_ids, sizeof(int32_t) * n * (size_t)r->top);
            memcpy(a->top_logps, r->top_logps, sizeof(float) * n * (size_t)r->top);
        }
    }
    n = (size_t)(a->nprompt = r->nprompt);
    if (n) {
        memcpy(a->prompt_logps, r->prompt_logps, sizeof(float) * n);
        if (r->top) {
            memcpy(a->prompt_top_ids, r->prompt_top_ids, sizeof(int32_t) * n * (size_t)r->top);
            memcpy(a->prompt_top_logps, r->prompt_top_logps, sizeof(float) * n * (size_t)r->top);
        }
    }
}

static inline void take_answers(struct engine *g, struct batch *b, int *left)
{
    struct engine_result r;
    while (engine_take(g, &r)) {
        struct job *j;
        struct answer *a;
        assert_in_range(r.group, 1000, 1000 + b->n - 1);
        j = &b->job[r.group - 1000];
        assert_in_range(r.sample, 0, j->q.n - 1);
        a = &j->answer[r.sample];
        assert_int_equal(a->taken++, 0); /* once */
        assert_in_range(r.ntokens, r.finish == ENGINE_STOP, j->q.max_new);
        answer_copy(a, &r);
        assert_int_equal(r.prompt_tokens, j->q.ntokens);
        (*left)--;
    }
}

/* Runs all jobs in the given order of submission. */
static inline void batch_run(struct batch *b, struct weights *w, const struct engine_opts *o,
                             const int *order)
{
    struct engine *g;
    struct err e = {0};
    int left = 0;

    batch_clear(b);
    assert_ok(engine_open(w, o, &g, &e), &e);
    for (int i = 0; i < b->n; i++) {
        struct job *j = &b->job[order ? order[i] : i];
        int32_t copy[CONTEXT];
        struct engine_group q = j->q;
        /* the engine keeps a copy: ours goes away */
        memcpy(copy, j->prompt, sizeof copy);
        q.tokens = copy;
        assert_ok(engine_submit(g, &q, &e), &e);
        memset(copy, 0xff, sizeof copy);
        left += q.n;
    }
    engine_get_stats(g, &b->stats);
    assert_int_equal(b->stats.waiting, left);
    for (int i = 0; engine_busy(g); i++) {
        assert_true(i < MAX_STEPS);
        assert_ok(engine_step(g, &e), &e);
        engine_get_stats(g, &b->stats);
        assert_true(b->stats.running <= (o->max_running ? o->max_running : 256));
        assert_in_range(b->stats.pages_free, 0, b->stats.pages);
        assert_ok(engine_check(g, &e), &e);
        take_answers(g, b, &left);
        assert_ok(engine_check(g, &e), &e);
    }
    assert_int_equal(left, 0);
    assert_int_equal(engine_step(g, &e), STATUS_END);
    engine_get_stats(g, &b->stats);
    assert_int_equal(b->stats.running, 0);
    assert_int_equal(b->stats.waiting, 0);
    assert_int_equal(b->stats.pages_free + b->stats.pages_cached, b->stats.pages);
    assert_ok(engine_check(g, &e), &e);
    engine_flush(g);
    engine_get_stats(g, &b->stats);
    assert_int_equal(b->stats.pages_free, b->stats.pages);
    engine_close(g);
}

/* 1 when the answers agree in their first n tokens, and in all of the prompt's log-probs. */
static inline int answer_equal(const struct answer *x, const struct answer *y, int n, int top)
{
    size_t t = (size_t)(n * top), m = (size_t)x->nprompt, mt = m * (size_t)top;
    return memcmp(x->tokens, y->tokens, sizeof(int32_t) * (size_t)n) == 0 &&
           memcmp(x->logps, y->logps, sizeof(float) * (size_t)n) == 0 &&
           memcmp(x->top_ids, y->top_ids, sizeof(int32_t) * t) == 0 &&
           memcmp(x->top_logps, y->top_logps, sizeof(float) * t) == 0 && x->nprompt == y->nprompt &&
           memcmp(x->prompt_logps, y->prompt_logps, sizeof(float) * m) == 0 &&
           memcmp(x->prompt_top_ids, y->prompt_top_ids, sizeof(int32_t) * mt) == 0 &&
           memcmp(x->prompt_top_logps, y->prompt_top_logps, sizeof(float) * mt) == 0;
}

static inline void assert_same_answers(const struct batch *a, const struct batch *b,
                                       const char *what)
{
    assert_int_equal(a->n, b->n);
    for (int i = 0; i < a->n; i++) {
        for (int k = 0; k < a->job[i].q.n; k++) {
            const struct answer *x = &a->job[i].answer[k], *y = &b->job[i].answer[k];
            if (x->n != y->n || x->finish != y->finish ||
                !answer_equal(x, y, x->n, a->job[i].q.top)) {
                fail_msg("%s: job %d, sample %d is another (%d and %d tokens)", what, i, k, x->n,
                         y->n);
            }
        }
    }
}

/* ---- the answers derived again -----------------------------------------------------------------
 */

struct oracle {
    struct forward *f;
    struct kv_store kv;
    struct tensor logits, probs;
    struct sampler *s;
    int32_t pages[CONTEXT / PLAN_KV_BLOCK];
    int stops; /* answers that ended with one of the model's own end tokens */
};

static inline void oracle_open(struct oracle *o)
{
    const struct arch *a = &model.w->arch;
    struct err e = {0};

    memset(o, 0, sizeof *o);
    assert_ok(forward_open(model.w, CONTEXT, 0, &o->f, &e), &e);
    assert_ok(device_kv(model.dev, &o->kv, a->n_layers, a->n_kv_heads, a->head_dim, 8, &e), &e);
    assert_ok(device_tensor(model.dev, &o->logits, DTYPE_F32, CONTEXT, VOCAB, &e), &e);
    assert_ok(device_tensor(model.dev, &o->probs, DTYPE_F32, CONTEXT, VOCAB, &e), &e);
    o->s = sampler_new(VOCAB);
    for (int i = 0; i < CONTEXT / PLAN_KV_BLOCK; i++) {
        o->pages[i] = 7 - 2 * i;
    }
}

static inline void oracle_close(struct oracle *o)
{
    forward_close(o->f);
    device_kv_free(&o->kv);
    device_tensor_free(&o->logits);
    device_tensor_free(&o->probs);
    sampler_free(o->s);
}

static inline int is_one_of(int32_t t, const int32_t *list, int n)
{
    for (int i = 0; i < n; i++) {
        if (list[i] == t) {
            return 1;
        }
    }
    return 0;
}

/* Where the answer had to end, and why. */
static inline void oracle_finish(struct oracle *o, const struct job *j, const struct answer *a)
{
    static const int32_t eos[] = {2, 5};
    for (int i = 0; i < a->n; i++) {
        int own = !j->q.ignore_eos && is_one_of(a->tokens[i], eos, 2);
        int stop = own || is_one_of(a->tokens[i], j->q.stop, j->q.nstop);
        assert_int_equal(stop, i == a->n - 1 && a->finish == ENGINE_STOP);
        o->stops += own;
    }
    if (a->finish != ENGINE_STOP) {
        assert_int_equal(a->finish, ENGINE_LENGTH);
        assert_int_equal(a->n, j->q.max_new);
    }
}

/* The token that comes i-th, from the model's row. */
static inline int32_t oracle_pick(struct oracle *o, const struct job *j, int sample, int i,
                                  const float *x, const float *p, float max)
{
    static const int32_t eos[] = {2, 5};
    const struct answer *a = &j->answer[sample];
    double u = rng_uniform(j->q.key.seed, j->q.key.stream, j->q.key.sample + (uint64_t)sample, 0,
                           (uint32_t)i);
    int32_t banned[2 + ENGINE_MAX_STOP];
    struct sampler_past past = {a->tokens, i, banned, 0};

    if (i < j->q.min_new) {
        memcpy(banned, eos, sizeof eos);
        memcpy(banned + 2, j->q.stop, sizeof(int32_t) * (size_t)j->q.nstop);
        past.banned += 2 * j->q.ignore_eos;
        past.nbanned = 2 * !j->q.ignore_eos + j->q.nstop;
    }
    if (sampler_adjusts(&j->q.sampling, &past)) {
        max = sampler_adjust(o->s, &j->q.sampling, &past, x, VOCAB, &x, &p);
    }
    return sampler_pick(o->s, &j->q.sampling, x, p, VOCAB, max, u);
}

/* The best candidates of a row by looking for each of them. */
static inline void oracle_top(const float *x, float max, float logz, int top, const int32_t *ids,
                              const float *logps)
{
    int used[VOCAB] = {0};
    for (int k = 0; k < top; k++) {
        int best = -1;
        float logp;
        for (int i = 0; i < VOCAB; i++) {
            best = !used[i] && (best < 0 || x[i] > x[best]) ? i : best;
        }
        used[best] = 1;
        logp = (x[best] - max) - logz;
        assert_int_equal(ids[k], best);
        assert_memory_equal(&logps[k], &logp, sizeof logp);
    }
}

/* One pass over the first n tokens of prompt and answer; x are the logits of `rows` rows from
 * `first` on. */
static inline struct tensor oracle_pass(struct oracle *o, const struct job *j, int sample, int n,
                                        int first, int rows_)
{
    int32_t tok[CONTEXT], pos[CONTEXT], idx[CONTEXT];
    struct row_seq seq = {0, n, 0, o->pages, 0};
    struct rows rows = {n, 1, &seq, pos};

    for (int i = 0; i < n; i++) {
        tok[i] = i < j->q.ntokens ? j->prompt[i] : j->answer[sample].tokens[i - j->q.ntokens];
        pos[i] = i;
    }
    for (int i = 0; i < rows_; i++) {
        idx[i] = first + i;
    }
    memset(o->kv.data, 0xff, o->kv.size);
    forward_run(o->f, &rows, tok, &o->kv);
    forward_logits(o->f, idx, rows_, &o->logits);
    return tensor_rows(&o->logits, 0, rows_);
}

/* Tokens [from, to) of an answer must be what the weights in force say. */
static inline void oracle_span(struct oracle *o, const struct job *j, int sample, int from, int to)
{
    const struct answer *a = &j->answer[sample];
    struct device *d = model.dev;
    float logp[CONTEXT], max[CONTEXT], logz[CONTEXT];
    struct tensor x = oracle_pass(o, j, sample, j->q.ntokens + a->n - 1, j->q.ntokens - 1, a->n);
    struct tensor p = tensor_rows(&o->probs, 0, a->n);
    struct logit_spec spec = {.temperature = j->q.sampling.temperature};

    assert_true(a->n >= 1);
    d->ops->logp(d, &x, &spec, a->tokens, &model.w->vocab_leaves, logp, max, logz, NULL);
    d->ops->exps(d, &x, max, &p);
    for (int i = from; i < to; i++) {
        assert_int_equal(a->tokens[i], oracle_pick(o, j, sample, i, device_host_row(&x, i),
                                                   device_host_row(&p, i), max[i]));
        oracle_top(device_host_row(&x, i), max[i], logz[i], j->q.top, a->top_ids + i * j->q.top,
                   a->top_logps + i * j->q.top);
    }
    assert_true(logp[0] < 0.0f);
    assert_memory_equal(a->logps + from, logp + from, sizeof(float) * (size_t)(to - from));
}

/* The prompt's log-probs. */
static inline void oracle_prompt(struct oracle *o, const struct job *j, int sample)
{
    const struct answer *a = &j->answer[sample];
    int from = j->q.prompt_from > 0 ? j->q.prompt_from : 1, n = j->q.ntokens - from;
    struct logit_spec spec = {.temperature = j->q.prompt_temperature};
    float logp[CONTEXT], max[CONTEXT], logz[CONTEXT];
    struct tensor x;

    assert_int_equal(a->nprompt, n);
    if (n == 0) {
        return;
    }
    x = oracle_pass(o, j, sample, j->q.ntokens, from - 1, n);
    model.dev->ops->logp(model.dev, &x, &spec, j->prompt + from, &model.w->vocab_leaves, logp, max,
                         logz, NULL);
    assert_memory_equal(a->prompt_logps, logp, sizeof(float) * (size_t)n);
    for (int i = 0; i < n; i++) {
        oracle_top(device_host_row(&x, i), max[i], logz[i], j->q.top,
                   a->prompt_top_ids + i * j->q.top, a->prompt_top_logps + i * j->q.top);
    }
}

static inline void oracle_check(struct oracle *o, const struct job *j, int sample)
{
    if (j->q.max_new > 0) {
        oracle_span(o, j, sample, 0, j->answer[sample].n);
    }
    if (j->q.prompt_logps) {
        oracle_prompt(o, j, sample);
    }
    oracle_finish(o, j, &j->answer[sample]);
}

static inline int oracle_batch(const struct batch *b)
{
    struct oracle o;
    oracle_open(&o);
    for (int i = 0; i < b->n; i++) {
        for (int k = 0; k < b->job[i].q.n; k++) {
            oracle_check(&o, &b->job[i], k);
        }
    }
    oracle_close(&o);
    return o.stops;
}

#endif
