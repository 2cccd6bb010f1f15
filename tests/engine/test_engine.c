/* The engine on a small model: what a sample says depends on its weights, prompt, parameters and
 * key alone (contracts C1 to C3). Every answer is derived again from whole-sequence passes, token
 * by token and log-prob by log-prob, bit for bit; limits, chunks, memory and order must not show.
 */
#include "model/tinymodel.h"

#include <limits.h>

#include "base/rng.h"
#include "engine/engine.h"
#include "model/forward.h"

enum { CONTEXT = 256, MAX_JOBS = 16, MAX_N = 6, MAX_STEPS = 20000, VOCAB = 97 };

static const struct tinymodel_spec spec = {"qwen3", 1, 2, 64, 2, 1, 32, 96, VOCAB, CONTEXT, 2.0f};
static char folder[256];
static struct tinymodel model; /* trainable: the last test publishes */

static int setup(void **state)
{
    if (fixture_setup(state) != 0) {
        return -1;
    }
    snprintf(folder, sizeof folder, "%s", tinymodel_write(&spec));
    tinymodel_open(&model, folder, "cpu", "auto", 1, 2, 0, 1);
    return 0;
}

static int teardown(void **state)
{
    tinymodel_close(&model);
    return fixture_teardown(state);
}

/* ---- jobs and answers --------------------------------------------------------------------------
 */

struct answer {
    int n; /* 0: none yet */
    enum engine_finish finish;
    int64_t version;
    int32_t tokens[CONTEXT];
    float logps[CONTEXT];
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

static struct job *job_add(struct batch *b, int ntokens, int n, int max_new, uint64_t seed)
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
    j->q.sampling = (struct sampler_params){1.0f, 1.0f, 0.0f, -1};
    j->q.key = (struct engine_key){7, 0, seed * 64};
    return j;
}

/* Prompts around the ends of pages, all ways of sampling, groups of several sizes. */
static void batch_usual(struct batch *b)
{
    struct job *j;

    b->n = 0;
    job_add(b, 1, 3, 70, 1);
    job_add(b, 2, 2, 30, 2)->q.ignore_eos = 1;
    j = job_add(b, 63, 4, 5, 3);
    j->q.sampling = (struct sampler_params){0.7f, 1.0f, 0.0f, 20};
    j = job_add(b, 64, 1, 66, 4);
    j->q.sampling = (struct sampler_params){1.2f, 0.9f, 0.0f, -1};
    j->q.ignore_eos = 1;
    j = job_add(b, 65, 3, 2, 5);
    j->q.sampling = (struct sampler_params){0.0f, 1.0f, 0.0f, -1};
    j = job_add(b, 130, 5, 64, 6);
    j->q.sampling = (struct sampler_params){1.0f, 0.95f, 0.02f, 50};
    j->q.nstop = 2;
    j->q.stop[0] = 11;
    j->q.stop[1] = 12;
    j->q.ignore_eos = 1;
    job_add(b, 1, 1, 1, 7)->q.key.stream = 1;
    job_add(b, 129, 1, 127, 8);
}

static void batch_clear(struct batch *b)
{
    for (int i = 0; i < b->n; i++) {
        memset(b->job[i].answer, 0, sizeof b->job[i].answer);
    }
}

static void take_answers(struct engine *g, struct batch *b, int *left)
{
    struct engine_result r;
    while (engine_take(g, &r)) {
        struct job *j;
        struct answer *a;
        assert_in_range(r.group, 1000, 1000 + b->n - 1);
        j = &b->job[r.group - 1000];
        assert_in_range(r.sample, 0, j->q.n - 1);
        a = &j->answer[r.sample];
        assert_int_equal(a->n, 0); /* once */
        assert_in_range(r.ntokens, 1, j->q.max_new);
        a->n = r.ntokens;
        a->finish = r.finish;
        a->version = r.weight_version;
        memcpy(a->tokens, r.tokens, sizeof(int32_t) * (size_t)r.ntokens);
        memcpy(a->logps, r.logps, sizeof(float) * (size_t)r.ntokens);
        (*left)--;
    }
}

/* Runs all jobs in the given order of submission. */
static void batch_run(struct batch *b, struct weights *w, const struct engine_opts *o,
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
        take_answers(g, b, &left);
    }
    assert_int_equal(left, 0);
    assert_int_equal(engine_step(g, &e), STATUS_END);
    engine_get_stats(g, &b->stats);
    assert_int_equal(b->stats.running, 0);
    assert_int_equal(b->stats.waiting, 0);
    assert_int_equal(b->stats.pages_free, b->stats.pages);
    engine_close(g);
}

static void assert_same_answers(const struct batch *a, const struct batch *b, const char *what)
{
    assert_int_equal(a->n, b->n);
    for (int i = 0; i < a->n; i++) {
        for (int k = 0; k < a->job[i].q.n; k++) {
            const struct answer *x = &a->job[i].answer[k], *y = &b->job[i].answer[k];
            if (x->n != y->n || x->finish != y->finish ||
                memcmp(x->tokens, y->tokens, sizeof(int32_t) * (size_t)x->n) != 0 ||
                memcmp(x->logps, y->logps, sizeof(float) * (size_t)x->n) != 0) {
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

static void oracle_open(struct oracle *o)
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

static void oracle_close(struct oracle *o)
{
    forward_close(o->f);
    device_kv_free(&o->kv);
    device_tensor_free(&o->logits);
    device_tensor_free(&o->probs);
    sampler_free(o->s);
}

static int is_one_of(int32_t t, const int32_t *list, int n)
{
    for (int i = 0; i < n; i++) {
        if (list[i] == t) {
            return 1;
        }
    }
    return 0;
}

/* Where the answer had to end, and why. */
static void oracle_finish(struct oracle *o, const struct job *j, const struct answer *a)
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

/* One pass over prompt and answer gives every logit row of the answer. */
static void oracle_check(struct oracle *o, const struct job *j, int sample)
{
    const struct answer *a = &j->answer[sample];
    struct device *d = model.dev;
    int n = j->q.ntokens + a->n - 1;
    int32_t tok[CONTEXT], pos[CONTEXT], idx[CONTEXT];
    float logp[CONTEXT], max[CONTEXT];
    struct row_seq seq = {0, n, 0, o->pages};
    struct rows rows = {n, 1, &seq, pos};
    struct tensor x = tensor_rows(&o->logits, 0, a->n), p = tensor_rows(&o->probs, 0, a->n);
    struct logit_spec spec = {0};

    assert_true(a->n >= 1);
    for (int i = 0; i < n; i++) {
        tok[i] = i < j->q.ntokens ? j->prompt[i] : a->tokens[i - j->q.ntokens];
        pos[i] = i;
    }
    for (int i = 0; i < a->n; i++) {
        idx[i] = j->q.ntokens - 1 + i;
    }
    spec.temperature = j->q.sampling.temperature;
    memset(o->kv.data, 0xff, o->kv.size);
    forward_run(o->f, &rows, tok, &o->kv);
    forward_logits(o->f, idx, a->n, &o->logits);
    d->ops->logp(d, &x, &spec, a->tokens, &model.w->vocab_leaves, logp, max, NULL, NULL);
    d->ops->exps(d, &x, max, &p);
    for (int i = 0; i < a->n; i++) {
        double u = rng_uniform(j->q.key.seed, j->q.key.stream, j->q.key.sample + (uint64_t)sample,
                               0, (uint32_t)i);
        assert_int_equal(a->tokens[i], sampler_pick(o->s, &j->q.sampling, device_host_row(&x, i),
                                                    device_host_row(&p, i), VOCAB, max[i], u));
    }
    assert_true(logp[0] < 0.0f);
    assert_memory_equal(a->logps, logp, sizeof(float) * (size_t)a->n);
    oracle_finish(o, j, a);
}

static int oracle_batch(const struct batch *b)
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

/* ---- tests -------------------------------------------------------------------------------------
 */

static void test_derived(void **state)
{
    struct batch *b = mem_alloc(sizeof *b);
    struct engine_opts o = {64, CONTEXT, 0, 512};
    int64_t prompts = 0, tokens = 0;

    (void)state;
    batch_usual(b);
    batch_run(b, model.w, &o, NULL);
    assert_true(oracle_batch(b) > 0);
    for (int i = 0; i < b->n; i++) {
        prompts += b->job[i].q.ntokens - 1;
        for (int k = 0; k < b->job[i].q.n; k++) {
            tokens += b->job[i].answer[k].n;
        }
    }
    /* a group's prompt is computed once */
    assert_int_equal(b->stats.prompt_rows, prompts);
    assert_int_equal(b->stats.decode_rows, tokens);
    /* samples of a group differ; the greedy group's do not */
    assert_memory_not_equal(b->job[5].answer[0].logps, b->job[5].answer[1].logps, sizeof(float));
    assert_memory_equal(b->job[4].answer[0].tokens, b->job[4].answer[2].tokens, sizeof(int32_t));
    mem_free(b);
}

/* Two threads and weights that cannot be trained: the same answers. */
static void test_threads(void **state)
{
    struct batch *b = mem_alloc(sizeof *b), *want = mem_alloc(sizeof *want);
    struct engine_opts o = {64, CONTEXT, 0, 512};
    struct tinymodel two;

    (void)state;
    batch_usual(want);
    batch_usual(b);
    tinymodel_open(&two, folder, "cpu", "auto", 2, 2, 0, 0);
    batch_run(want, model.w, &o, NULL);
    batch_run(b, two.w, &o, NULL);
    assert_same_answers(want, b, "threads");
    tinymodel_close(&two);
    mem_free(b);
    mem_free(want);
}

static void test_limits(void **state)
{
    static const int running[] = {1, 3, 64}, chunks[] = {1, 7, 64, 512};
    static const int orders[3][8] = {
        {0, 1, 2, 3, 4, 5, 6, 7}, {7, 6, 5, 4, 3, 2, 1, 0}, {3, 0, 7, 5, 1, 6, 4, 2}};
    struct batch *b = mem_alloc(sizeof *b), *want = mem_alloc(sizeof *want);
    struct engine_opts o = {0, 0, 0, 0};

    (void)state;
    batch_usual(want);
    batch_usual(b);
    assert_int_equal(b->n, 8);
    batch_run(want, model.w, &o, NULL);
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 4; k++) {
            /* memory for everything; for little more than the largest sample */
            for (int small = 0; small < 2; small++) {
                o = (struct engine_opts){running[i], CONTEXT, small, chunks[k]};
                batch_run(b, model.w, &o, orders[(i + k + small) % 3]);
                assert_same_answers(want, b, "limits");
                assert_true(!small || b->stats.pages == CONTEXT / PLAN_KV_BLOCK + 1);
            }
        }
    }
    mem_free(b);
    mem_free(want);
}

/* A prompt behind the first must not take the pages that the first needs to start. */
static void test_little_memory(void **state)
{
    static const struct {
        int ntokens, n, max_new;
    } jobs[][4] = {
        {{2, 1, 190}, {130, 1, 5}, {1, 1, 3}, {2, 2, 3}},
        {{1, 2, 250}, {60, 1, 190}, {190, 2, 60}, {1, 1, 255}},
        {{65, 3, 100}, {1, 1, 255}, {2, 1, 2}, {129, 2, 120}},
        {{64, 1, 2}, {1, 1, 200}, {2, 2, 100}, {3, 2, 100}},
        {{2, 6, 2}, {1, 1, 255}, {2, 1, 2}, {2, 1, 2}},
    };
    struct batch *b = mem_alloc(sizeof *b), *want = mem_alloc(sizeof *want);

    (void)state;
    for (int i = 0; i < (int)(sizeof jobs / sizeof *jobs); i++) {
        struct engine_opts o = {64, CONTEXT, 0, 512};
        b->n = want->n = 0;
        for (int k = 0; k < 4; k++) {
            uint64_t seed = (uint64_t)(50 + i * 4 + k);
            job_add(b, jobs[i][k].ntokens, jobs[i][k].n, jobs[i][k].max_new, seed)->q.ignore_eos =
                1;
            job_add(want, jobs[i][k].ntokens, jobs[i][k].n, jobs[i][k].max_new, seed)
                ->q.ignore_eos = 1;
        }
        batch_run(want, model.w, &o, NULL);
        for (int pages = 5; pages < 9; pages++) {
            o.kv_bytes = pages * (int64_t)device_kv_page_bytes(model.dev, 2, 1, 32);
            batch_run(b, model.w, &o, NULL);
            assert_int_equal(b->stats.pages, pages);
            assert_same_answers(want, b, "little memory");
        }
    }
    mem_free(b);
    mem_free(want);
}

/* Random batches under random limits. */
static void test_random(void **state)
{
    struct batch *b = mem_alloc(sizeof *b), *want = mem_alloc(sizeof *want);
    uint64_t s = 5;

    (void)state;
    for (int round = 0; round < 12; round++) {
        struct engine_opts o = {64, CONTEXT, 0, 512};
        int jobs = 1 + tinymodel_below(&s, 8);
        b->n = 0;
        for (int i = 0; i < jobs; i++) {
            int ntokens = 1 + tinymodel_below(&s, tinymodel_below(&s, 2) ? 8 : 180);
            int new = 1 + tinymodel_below(&s, tinymodel_below(&s, 3) ? 8 : CONTEXT - ntokens);
            struct job *j = job_add(b, ntokens, 1 + tinymodel_below(&s, MAX_N), new,
                                    (uint64_t)(1000 + round * 100 + i));
            j->q.sampling.temperature = (float)tinymodel_below(&s, 4) * 0.5f;
            j->q.sampling.top_k = tinymodel_below(&s, 3) * 10;
        }
        *want = *b;
        batch_run(want, model.w, &o, NULL);
        for (int k = 0; k < 3; k++) {
            o = (struct engine_opts){1 + tinymodel_below(&s, 8), CONTEXT,
                                     (int64_t)(1 + tinymodel_below(&s, 16)) * 16384,
                                     1 + tinymodel_below(&s, 100)};
            batch_run(b, model.w, &o, NULL);
            assert_same_answers(want, b, "random limits");
        }
    }
    mem_free(b);
    mem_free(want);
}

/* A stop token ends the same answer earlier; the longer limit only goes on. */
static void test_stop(void **state)
{
    struct batch *b = mem_alloc(sizeof *b);
    struct engine_opts o = {0, CONTEXT, 0, 0};
    struct answer full;
    int at = 10;

    (void)state;
    b->n = 0;
    job_add(b, 9, 1, 40, 3)->q.ignore_eos = 1;
    batch_run(b, model.w, &o, NULL);
    full = b->job[0].answer[0];
    assert_int_equal(full.n, 40);
    assert_int_equal(full.finish, ENGINE_LENGTH);
    while (is_one_of(full.tokens[at], full.tokens, at)) {
        at++;
        assert_true(at < 40);
    }
    b->job[0].q.nstop = ENGINE_MAX_STOP;
    for (int i = 0; i < ENGINE_MAX_STOP; i++) {
        b->job[0].q.stop[i] = i == ENGINE_MAX_STOP - 1 ? full.tokens[at] : VOCAB + i;
    }
    batch_run(b, model.w, &o, NULL);
    assert_int_equal(b->job[0].answer[0].n, at + 1); /* the stop token is part of it */
    assert_int_equal(b->job[0].answer[0].finish, ENGINE_STOP);
    assert_memory_equal(b->job[0].answer[0].tokens, full.tokens, sizeof(int32_t) * (size_t)at + 4);
    assert_memory_equal(b->job[0].answer[0].logps, full.logps, sizeof(float) * (size_t)at + 4);
    b->job[0].q.max_new = at; /* one short of the stop token */
    batch_run(b, model.w, &o, NULL);
    assert_int_equal(b->job[0].answer[0].n, at);
    assert_int_equal(b->job[0].answer[0].finish, ENGINE_LENGTH);
    mem_free(b);
}

static void expect_refused(struct engine *g, const struct engine_group *q, const char *what)
{
    struct err e = {0};
    struct engine_stats st;
    if (engine_submit(g, q, &e) != STATUS_INPUT) {
        fail_msg("not refused: %s", what);
    }
    assert_true(e.msg[0] != 0);
    engine_get_stats(g, &st);
    assert_int_equal(st.waiting, 0);
    assert_int_equal(engine_busy(g), 0);
}

static void test_refused(void **state)
{
    struct batch *b = mem_alloc(sizeof *b);
    struct engine_opts o = {4, CONTEXT, 0, 0};
    struct engine *g;
    struct err e = {0};
    struct engine_group good, q;
    int left = 1;

    (void)state;
    assert_ok(engine_open(model.w, &o, &g, &e), &e);
    assert_int_equal(engine_step(g, &e), STATUS_END);
    b->n = 0;
    good = job_add(b, 5, 1, 3, 1)->q;
#define REFUSED(field, value)                                                                      \
    do {                                                                                           \
        q = good;                                                                                  \
        q.field = (value);                                                                         \
        expect_refused(g, &q, #field " = " #value);                                                \
    } while (0)
    REFUSED(ntokens, 0);
    REFUSED(ntokens, -1);
    REFUSED(n, 0);
    REFUSED(n, -3);
    REFUSED(max_new, 0);
    REFUSED(max_new, CONTEXT - 4);
    REFUSED(max_new, INT_MAX);
    REFUSED(nstop, -1);
    REFUSED(nstop, ENGINE_MAX_STOP + 1);
    REFUSED(sampling.temperature, NAN);
    REFUSED(sampling.temperature, INFINITY);
    REFUSED(sampling.temperature, -1.0f);
    REFUSED(sampling.top_p, NAN);
    REFUSED(sampling.top_p, -0.5f);
    REFUSED(sampling.min_p, NAN);
    REFUSED(sampling.min_p, -0.5f);
#undef REFUSED
    b->job[0].prompt[3] = VOCAB;
    expect_refused(g, &good, "a token after the vocabulary");
    b->job[0].prompt[3] = -1;
    expect_refused(g, &good, "a negative token");
    b->job[0].prompt[3] = VOCAB - 1;
    good.max_new = CONTEXT - 5; /* the longest that fits */
    good.stop[0] = -1;
    assert_ok(engine_submit(g, &good, &e), &e);
    b->job[0].q.max_new = good.max_new;
    while (engine_busy(g)) {
        assert_ok(engine_step(g, &e), &e);
        take_answers(g, b, &left);
    }
    assert_int_equal(left, 0);
    b->job[0].q = good;
    b->job[0].q.tokens = b->job[0].prompt;
    oracle_batch(b);
    engine_close(g);
    mem_free(b);
}

/* A context beyond the model's positions would read past its rope table. */
static void test_long_context(void **state)
{
    struct engine_opts o = {4, CONTEXT + 1, 0, 0};
    struct engine *g = NULL;
    struct err e = {0};

    (void)state;
    assert_int_equal(engine_open(model.w, &o, &g, &e), STATUS_INPUT);
    assert_null(g);
    o.max_context = CONTEXT;
    assert_ok(engine_open(model.w, &o, &g, &e), &e);
    engine_close(g);
    engine_close(NULL);
}

/* Closed in the middle: everything goes with it (the sanitizer build looks). */
static void test_close_running(void **state)
{
    struct batch *b = mem_alloc(sizeof *b);
    struct engine_opts o = {3, CONTEXT, 0, 20};
    struct engine *g;
    struct err e = {0};
    int left = 100;

    (void)state;
    batch_usual(b);
    assert_ok(engine_open(model.w, &o, &g, &e), &e);
    for (int i = 0; i < b->n; i++) {
        assert_ok(engine_submit(g, &b->job[i].q, &e), &e);
    }
    for (int i = 0; i < 25; i++) {
        assert_ok(engine_step(g, &e), &e);
        take_answers(g, b, &left);
    }
    assert_true(engine_busy(g));
    engine_close(g);
    assert_int_equal(model.w->refs, 1);
    mem_free(b);
}

/* A step in which no sample starts and no prompt begins allocates nothing. */
static void test_no_allocation(void **state)
{
    struct batch *b = mem_alloc(sizeof *b);
    struct engine_opts o = {6, CONTEXT, 0, 16};
    struct engine *g;
    struct err e = {0};
    int left = 1000, quiet = 0;

    (void)state;
    batch_usual(b);
    assert_ok(engine_open(model.w, &o, &g, &e), &e);
    for (int i = 0; i < b->n; i++) {
        b->job[i].q.ignore_eos = 1; /* how many steps there are is not the model's choice */
        b->job[i].q.nstop = 0;
        assert_ok(engine_submit(g, &b->job[i].q, &e), &e);
    }
    while (engine_busy(g)) {
        struct engine_stats before, after;
        uint64_t count = mem_count();
        engine_get_stats(g, &before);
        assert_ok(engine_step(g, &e), &e);
        engine_get_stats(g, &after);
        if (before.waiting == after.waiting && before.prompt_rows == after.prompt_rows) {
            assert_int_equal(mem_count(), count);
            quiet++;
        }
        take_answers(g, b, &left);
    }
    assert_true(quiet > 100);
    engine_close(g);
    mem_free(b);
}

/* Answers name the version of the weights they were made with. */
static void test_version(void **state)
{
    struct batch *b = mem_alloc(sizeof *b), *want = mem_alloc(sizeof *want);
    struct engine_opts o = {0, CONTEXT, 0, 0};
    struct err e = {0};

    (void)state;
    batch_usual(b);
    batch_usual(want);
    batch_run(want, model.w, &o, NULL);
    assert_int_equal(want->job[0].answer[0].version, 0);
    assert_ok(weights_publish(model.w, &e), &e);
    batch_run(b, model.w, &o, NULL);
    assert_int_equal(b->job[0].answer[0].version, 1);
    assert_same_answers(want, b, "the same values published again");
    weights_acquire(model.w);
    assert_int_equal(weights_publish(model.w, &e), STATUS_FAIL);
    weights_release(model.w);
    assert_int_equal(model.w->version, 1);
    mem_free(b);
    mem_free(want);
}

/* Pages of one version are never read under another: a change while samples run is an error. */
static void test_version_changed(void **state)
{
    struct batch *b = mem_alloc(sizeof *b);
    struct engine_opts o = {0, CONTEXT, 0, 0};
    struct engine_result r;
    struct engine *g = NULL;
    struct err e = {0};

    (void)state;
    batch_usual(b);
    assert_ok(engine_open(model.w, &o, &g, &e), &e);
    assert_ok(engine_submit(g, &b->job[0].q, &e), &e);
    assert_ok(engine_step(g, &e), &e);
    assert_ok(weights_publish(model.w, &e), &e);
    assert_false(engine_take(g, &r));
    assert_int_equal(engine_step(g, &e), STATUS_NUMERIC);
    assert_non_null(strstr(e.msg, "running samples"));
    engine_close(g);
    mem_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_derived),       cmocka_unit_test(test_threads),
        cmocka_unit_test(test_limits),        cmocka_unit_test(test_little_memory),
        cmocka_unit_test(test_random),        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_refused),       cmocka_unit_test(test_long_context),
        cmocka_unit_test(test_close_running), cmocka_unit_test(test_no_allocation),
        cmocka_unit_test(test_version),       cmocka_unit_test(test_version_changed),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
