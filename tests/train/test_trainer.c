/* The trainer on small random models:
 *   - weights and moments after a step have the same bits for every packing, order of samples (or
 *     of groups of them with one prompt), number of threads and instruction set, and on the
 *     reference device (contract C4);
 *   - a rollout log-prob that should be exact and is not is STATUS_NUMERIC, and nothing moves;
 *   - the gradient is the derivative of the objective, computed here from scored log-probs, by
 *     finite differences in an f32 plan: masks, shared rollouts, both reductions, KL, entropy. */
#include "model/tinymodel.h"

#include <math.h>

#include "train/trainer.h"

static const struct tinymodel_spec specs[] = {
    {"llama", 1, 2, 64, 2, 1, 32, 96, 77, 640, 0},
    {"qwen2", 0, 1, 64, 2, 2, 32, 64, 50, 640, 0},
    {"gemma2", 1, 2, 64, 2, 1, 32, 96, 77, 640, 0}, /* norms behind attention and MLP */
};
static const char *dirs[3]; /* one folder a spec, written once */

enum { N = 7, LEN = 420 };

/* Lengths around the pages of 64 and the leaves of 256; one long prompt, one response of a single
 * token, one that is empty. */
static const int prompts[N] = {5, 63, 1, 250, 17, 30, 3};
static const int responses[N] = {9, 2, 90, 12, 1, 20, 0};

struct batch {
    int n;
    struct train_sample s[N];
    int32_t tokens[N][LEN];
    uint8_t mask[N][LEN];
    float roll[N][LEN], adv[N][LEN], ref[N][LEN], logp[N][LEN], entropy[N][LEN], old[N][LEN];
};

static struct err e;

static void batch_fill(struct batch *b, int vocab, uint64_t seed)
{
    memset(b, 0, sizeof *b);
    b->n = N;
    for (int i = 0; i < N; i++) {
        struct train_sample *s = &b->s[i];
        for (int t = 0; t < LEN; t++) {
            b->tokens[i][t] = tinymodel_below(&seed, vocab);
            b->adv[i][t] = tinymodel_value(&seed) * 2.0f;
            b->mask[i][t] = (uint8_t)(tinymodel_below(&seed, 4) != 0);
        }
        s->tokens = b->tokens[i];
        s->prompt = prompts[i];
        s->response = responses[i];
        s->rollout = i;
        s->adv = b->adv[i];
        s->logp_out = b->logp[i];
        s->entropy_out = b->entropy[i];
    }
}

/* The same samples as three groups with one prompt each: over pages and leaves, of a whole page, of
 * one token; the first has more tokens than a sample may have. */
static void batch_group(struct batch *b)
{
    static const int prompt[N] = {250, 250, 250, 64, 64, 1, 1};
    static const int response[N] = {100, 150, 1, 12, 90, 20, 0};
    for (int i = 0; i < N; i++) {
        int same = i > 0 && prompt[i] == prompt[i - 1];
        b->s[i].prompt = prompt[i];
        b->s[i].response = response[i];
        memcpy(b->tokens[i], same ? b->tokens[i - 1] : b->tokens[i], 4 * (size_t)prompt[i]);
    }
}

/* ---- a run: model, trainer, the state it ends in ---- */

struct run {
    struct tinymodel m;
    struct trainer *t;
};

static struct trainer_opts default_opts(void)
{
    struct trainer_opts o;
    memset(&o, 0, sizeof o);
    o.max_tokens = 300;
    o.max_len = LEN;
    o.temperature = 0.9f;
    o.loss.eps_clip = 0.2f;
    o.loss.eps_clip_high = 0.28f;
    return o;
}

static int use = WEIGHTS_TRAIN;
static int bundle_rows = PLAN_BUNDLE;
static int grouped; /* check_way: batch_group, whose groups it puts in order number `rotate` */

static void run_open(struct run *r, int spec, const char *device, const char *isa, int threads,
                     int f32, const struct trainer_opts *o)
{
    tinymodel_open(&r->m, dirs[spec], device, isa, threads, 2, f32, use);
    r->m.dev->plan.bundle_rows = bundle_rows;
    assert_ok(trainer_open(r->m.w, o, &r->t, &e), &e);
}

static void run_close(struct run *r)
{
    trainer_close(r->t);
    tinymodel_close(&r->m);
}

/* Masters, moments and rounded weights as one array. */
static float *run_state(struct run *r, size_t *bytes)
{
    struct optim *o = trainer_optim(r->t);
    int64_t n = weights_count(r->m.w);
    float *out = mem_alloc(16 * (size_t)n), *p = out;
    for (int i = 0; i < r->m.w->nparams; i++) {
        const struct param *q = &r->m.w->params[i];
        for (int k = 0; k < 4; k++) {
            for (int64_t at = 0; at < q->rows; at += OPTIM_ROWS) {
                int64_t some = q->rows - at < OPTIM_ROWS ? q->rows - at : OPTIM_ROWS;
                assert_ok(optim_read(o, (enum optim_part)k, i, at, some, p, &e), &e);
                p += some * q->cols;
            }
        }
    }
    *bytes = 16 * (size_t)n;
    return out;
}

static const struct optim_hyper hyper = {1e-3, 0.9, 0.98, 1e-8, 0.1, 1.0};

/* Scores, then two steps: the first exact, the second off-policy. Fills the metrics of both. With a
 * correction the rollout's log-probs are others, and no step is exact. */
static void two_steps(struct run *r, struct batch *b, const struct trainer_opts *o,
                      double metrics[2][LOSS_NMETRICS + 1])
{
    assert_ok(trainer_score(r->t, b->s, b->n, &e), &e);
    for (int i = 0; i < b->n; i++) {
        int at = (int)(b->s[i].tokens - b->tokens[0]) / LEN;
        memcpy(b->roll[at], b->s[i].logp_out, 4 * (size_t)b->s[i].response);
        b->s[i].roll = b->s[i].old = b->roll[at];
        b->s[i].exact = 1;
        if (o->loss.tis) {
            memcpy(b->old[at], b->roll[at], sizeof b->old[at]);
            b->s[i].old = b->old[at];
            for (int t = 0; t < b->s[i].response; t++) {
                b->roll[at][t] += 0.15f * (float)((at * 7 + t * 13) % 11 - 5);
            }
        }
    }
    for (int k = 0; k < 2; k++) {
        struct trainer_report rep;
        int64_t tokens = 0, rows = 0;
        int exact = k == 0 && !o->loss.tis;
        for (int i = 0; i < b->n; i++) {
            b->s[i].exact = exact;
            tokens += b->s[i].response;
            rows += b->s[i].response + b->s[i].prompt;
        }
        assert_ok(trainer_step(r->t, b->s, b->n, &hyper, &rep, &e), &e);
        assert_true(rep.max_diff == 0.0f);
        assert_int_equal(rep.exact_tokens, exact ? tokens : 0);
        assert_int_equal(rep.tokens, tokens);
        assert_int_equal(rep.rows, rows);
        assert_int_equal(rep.step.rollouts, b->n);
        assert_true(rep.sums.max_diff > 0.7f || !o->loss.tis);
        for (int m = 0; m < LOSS_NMETRICS; m++) {
            double v = 0.0;
            metrics[k][m] =
                loss_metric(&o->loss, &rep.step, &rep.sums, (enum loss_metric)m, &v) ? v : -12345.0;
        }
        metrics[k][LOSS_NMETRICS] = rep.grad_norm;
    }
}

struct want {
    float *state;
    size_t bytes;
    double metrics[2][LOSS_NMETRICS + 1];
    float logp[N][LEN];
};

/* Runs two steps in this way and compares everything with the first such run. */
static void check_way(struct want *want, int spec, const char *device, const char *isa, int threads,
                      const struct trainer_opts *o, int rotate, int swap)
{
    static struct batch b;
    static struct train_sample order[N];
    struct run r;
    double metrics[2][LOSS_NMETRICS + 1];
    float *state;
    size_t bytes;
    run_open(&r, spec, device, isa, threads, 0, o);
    batch_fill(&b, r.m.w->arch.vocab, 7);
    if (grouped) {
        batch_group(&b);
    }
    for (int i = 0; i < N; i++) {
        static const int groups[3][N] = {
            {0, 1, 2, 3, 4, 5, 6}, {3, 4, 0, 1, 2, 5, 6}, {5, 6, 3, 4, 0, 1, 2}};
        order[i] = b.s[grouped ? groups[rotate][i] : (i + rotate) % N];
    }
    if (swap) {
        struct train_sample x = order[0];
        order[0] = order[swap];
        order[swap] = x;
    }
    memcpy(b.s, order, sizeof order);
    two_steps(&r, &b, o, metrics);
    state = run_state(&r, &bytes);
    if (!want->state) {
        want->state = state;
        want->bytes = bytes;
        memcpy(want->metrics, metrics, sizeof metrics);
        memcpy(want->logp, b.logp, sizeof b.logp);
    } else {
        if (memcmp(state, want->state, bytes) != 0) {
            fail_msg("%s %s, %d threads, max_tokens %d, micro_batch %d, order %d %d: other bits",
                     device, isa, threads, o->max_tokens, o->micro_batch, rotate, swap);
        }
        assert_memory_equal(metrics, want->metrics, sizeof metrics);
        assert_memory_equal(b.logp, want->logp, sizeof b.logp);
        mem_free(state);
    }
    run_close(&r);
}

static void layout_changes_no_bit(void **state)
{
    (void)state;
    for (int spec = 0; spec < 2; spec++) {
        static const int tokens[] = {1, 300, 340, 2000};
        static const int micro[] = {1, 2, 3, 7};
        struct trainer_opts o = default_opts();
        struct want want = {0};
        o.entropy = 1;
        o.loss.entropy = 1;
        o.loss.entropy_coef = 0.01f;
        o.loss.per_token = spec;
        for (int i = 0; i < 4; i++) {
            o.max_tokens = tokens[i];
            o.max_scored = i % 2;         /* 1: as few logits at a time as there may be */
            o.max_rows = i == 3 ? 64 : 0; /* fewer rows than come: memory is taken then */
            if (spec && i == 2) {
                continue;
            }
            check_way(&want, spec, "cpu", "auto", 1 + i % 2, &o, i * 2, i);
        }
        o.max_tokens = 2000;
        o.max_rows = 0;
        for (int i = 0; i < 4; i += 1 + spec) {
            o.micro_batch = micro[i];
            check_way(&want, spec, "cpu", "auto", 2 - i % 2, &o, i, 0);
        }
        mem_free(want.state);
    }
}

/* Weights of a correction, averaging 1 over the step, and its rejections: the same bits for every
 * packing; and they do something. */
static void corrections_change_no_bit(void **state)
{
    struct trainer_opts o = default_opts();
    float *plain = NULL;
    (void)state;
    o.loss.tis = LOSS_TIS_MIS;
    for (int k = 0; k < 3; k++) {
        static const int tokens[] = {1, 300, 2000};
        static const int micro[] = {2, 7};
        struct want want = {0};
        o.loss.mis = (struct mis_opts){.level = k == 1 ? MIS_SEQUENCE : MIS_TOKEN,
                                       .mode = k == 1 ? MIS_CLIP : MIS_TRUNCATE,
                                       .lo = 0.5f,
                                       .hi = 1.3f,
                                       .rs = k == 2,
                                       .rs_lo = 0.6f,
                                       .rs_hi = 2,
                                       .normalize = 1,
                                       .observe = k == 0};
        o.micro_batch = 0;
        for (int i = 0; i < 3; i++) {
            o.max_tokens = tokens[i];
            check_way(&want, 0, "cpu", "auto", 1 + i % 2, &o, i * 2, i);
        }
        for (int i = 0; k && i < 2; i++) {
            o.micro_batch = micro[i];
            check_way(&want, 0, "cpu", "auto", 2 - i % 2, &o, i, 0);
        }
        if (k) {
            const double *m = want.metrics[0] + LOSS_MIS;
            assert_true(m[MIS_FINAL_MEAN] != m[MIS_RATIO_MEAN]); /* normalised */
            assert_true(memcmp(want.state, plain, want.bytes) != 0);
            mem_free(plain);
        }
        plain = want.state;
    }
    mem_free(plain);
}

static void machine_changes_no_bit(void **state)
{
    static const char *const isas[] = {"scalar", "avx2", "avx512", "amx"};
    struct trainer_opts o = default_opts();
    struct want want = {0};
    (void)state;
    check_way(&want, 0, "ref", "auto", 2, &o, 0, 0);
    for (int i = 0; i < 4; i++) {
        if (device_has_isa(isas[i])) {
            check_way(&want, 0, "cpu", isas[i], 1 + i % 2, &o, 0, 0);
        } else {
            print_message("not run: %s\n", isas[i]);
        }
    }
    mem_free(want.state);
}

/* Activations computed again, weights without transposes and whole masters: less or more memory,
 * the same bits. */
static void memory_changes_no_bit(void **state)
{
    (void)state;
    for (int spec = 0; spec < 3; spec += 2) {
        struct trainer_opts o = default_opts();
        struct want want = {0};
        for (int k = 0; k < 8; k++) {
            o.recompute = (enum forward_recompute)(k % 4 < 2 ? k % 4 : 2);
            o.recompute_layers = k % 4 == 3 ? 1 : 0;
            o.optim.f32_master = k == 6;
            use = k < 4 ? WEIGHTS_TRAIN : WEIGHTS_TRAIN | WEIGHTS_NO_TRANSPOSES;
            check_way(&want, spec, "cpu", "auto", 2, &o, 0, 0);
        }
        mem_free(want.state);
    }
    use = WEIGHTS_TRAIN;
}

/* Samples that share a prompt: its rows are computed once, whoever else is in the micro-batch. */
static void groups_change_no_bit(void **state)
{
    static const char *const isas[] = {"scalar", "avx2", "avx512", "amx"};
    static const int tokens[] = {1, 300, 700, 2000};
    static const int micro[] = {1, 4};
    (void)state;
    grouped = 1;
    for (int spec = 0; spec < 3; spec++) {
        struct trainer_opts o = default_opts();
        struct want want = {0}, alone = {0};
        o.entropy = 1;
        o.loss.entropy = 1;
        o.loss.entropy_coef = 0.01f;
        check_way(&want, spec, "ref", "auto", 2, &o, 0, 0);
        for (int i = 0; i < 4; i++) {
            o.max_tokens = tokens[i];
            o.max_bundle = i == 2 ? 600 : 0;
            o.max_rows = i == 3 ? 64 : 0;
            o.recompute = i == 1 ? FORWARD_FULL : FORWARD_KEEP_ALL;
            if (device_has_isa(isas[i])) {
                check_way(&want, spec, "cpu", isas[i], 1 + i % 2, &o, i % 3, 0);
            }
        }
        for (int i = 0; i < 2; i++) {
            o.micro_batch = micro[i];
            check_way(&want, spec, "cpu", "auto", 2 + i, &o, 2 - i, 0);
        }
        /* each by itself: the same log-probs, other roundings in the gradient */
        bundle_rows = 0;
        check_way(&alone, spec, "cpu", "auto", 2, &o, 0, 0);
        assert_memory_equal(alone.metrics[0], want.metrics[0],
                            LOSS_NMETRICS * sizeof alone.metrics[0][0]);
        assert_int_not_equal(memcmp(alone.state, want.state, alone.bytes), 0);
        bundle_rows = PLAN_BUNDLE;
        mem_free(want.state);
        mem_free(alone.state);
    }
    grouped = 0;
}

/* The gradient of one step, its scores, and the rows that it computed. */
static float *gradient(const char *device, int f32, const struct trainer_opts *o, float *logp,
                       int64_t *computed)
{
    static struct batch b;
    struct optim_hyper h = {0.0, 0.0, 0.5, 1e-8, 0.0, 0.0}; /* no move; exp_avg is the gradient */
    struct trainer_report rep;
    struct run r;
    float *g, *p;
    run_open(&r, 0, device, "auto", 2, f32, o);
    batch_fill(&b, r.m.w->arch.vocab, 41);
    batch_group(&b);
    assert_ok(trainer_step(r.t, b.s, b.n, &h, &rep, &e), &e);
    memcpy(logp, b.logp, sizeof b.logp);
    g = p = mem_alloc(4 * (size_t)weights_count(r.m.w));
    for (int i = 0; i < r.m.w->nparams; i++) {
        device_download_f32(&trainer_optim(r.t)->m[i], p);
        p += (size_t)r.m.w->params[i].rows * (size_t)r.m.w->params[i].cols;
    }
    *computed = rep.computed;
    run_close(&r);
    return g;
}

/* Shared prompts change the gradient by nothing but roundings, and rows are saved. */
static void groups_are_samples(void **state)
{
    static float logp[N][LEN], logp2[N][LEN];
    (void)state;
    for (int f32 = 0; f32 < 2; f32++) {
        struct trainer_opts o = default_opts();
        double diff = 0.0, norm = 0.0, bound = f32 ? 1e-5 : 0.02;
        int64_t rows, rows2, n;
        float *a = gradient(f32 ? "ref" : "cpu", f32, &o, logp[0], &rows), *b;
        struct run r;
        bundle_rows = 0;
        b = gradient(f32 ? "ref" : "cpu", f32, &o, logp2[0], &rows2);
        assert_int_equal(rows, 250 + 99 + 149 + 0 + 64 + 11 + 89 + 1 + 19);
        assert_int_equal(rows2, rows + 2 * 250 + 64); /* the last sample has nothing to learn */
        assert_memory_equal(logp, logp2, sizeof logp);
        run_open(&r, 0, "cpu", "auto", 1, 0, &o);
        n = weights_count(r.m.w);
        run_close(&r);
        for (int64_t i = 0; i < n; i++) {
            diff += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
            norm += (double)b[i] * b[i];
        }
        if (!(diff > 0.0 && norm > 1e-4 && sqrt(diff) < bound * sqrt(norm))) {
            fail_msg("f32 %d: gradients differ by %g of %g", f32, sqrt(diff), sqrt(norm));
        }
        bundle_rows = PLAN_BUNDLE;
        mem_free(a);
        mem_free(b);
    }
}

/* What planning says is what opening takes. */
static void planned_bytes(void **state)
{
    static const enum forward_recompute how[] = {FORWARD_KEEP_ALL, FORWARD_SELECTIVE, FORWARD_FULL,
                                                 FORWARD_FULL};
    struct tinymodel m;
    struct weights *shape;
    int64_t last = 0;
    (void)state;
    for (int k = 0; k < 3; k++) {
        int64_t sum = 0, plan;
        use = k == 0 ? 0 : k == 1 ? WEIGHTS_TRAIN : WEIGHTS_TRAIN | WEIGHTS_NO_TRANSPOSES;
        tinymodel_open(&m, dirs[0], "cpu", "auto", 1, 2, 0, use);
        assert_ok(weights_shape(&m.w->arch, m.dev, use, &shape, &e), &e);
        for (int i = 0; i < m.w->nparams; i++) {
            const struct param *p = &m.w->params[i];
            sum += (int64_t)(p->w16.size + p->view.fwd_size + p->view.bwd_size);
            assert_int_equal(shape->params[i].rows, p->rows);
        }
        for (int i = 0; i < ARCH_ATTN_KINDS; i++) {
            sum += (int64_t)(m.w->rope[i].cos.size + m.w->rope[i].sin.size);
        }
        assert_int_equal(weights_bytes(shape, 0), sum);
        for (int i = 0; k == 1 && i < 4; i++) {
            struct forward *f;
            int layers = i == 3 ? 1 : 0;
            assert_ok(forward_open_recompute(m.w, 700, how[i], layers, &f, &e), &e);
            sum = (int64_t)(f->h_out.size + f->hidden.size + f->picked.size);
            for (struct tensor *t = &f->shared.h_in; t <= &f->shared.rstd4; t++) {
                sum += (int64_t)t->size;
            }
            for (int l = 0; l < m.w->arch.n_layers; l++) {
                for (struct tensor *t = &f->layers[l].h_in; t <= &f->layers[l].rstd4; t++) {
                    sum += (int64_t)t->size;
                }
            }
            plan = forward_bytes(shape, 700, 1, how[i], layers);
            assert_in_range(plan, sum, sum + 8192);
            assert_true(i == 0 || i == 3 || plan < last);
            last = plan;
            forward_close(f);
        }
        weights_release(shape);
        tinymodel_close(&m);
    }
    use = WEIGHTS_TRAIN;
}

/* ---- the exactness check ---- */

static void wrong_log_prob(void **state)
{
    static struct batch b;
    struct trainer_opts o = default_opts();
    struct trainer_report rep;
    struct run r;
    float *before, *after;
    size_t bytes;
    int64_t version;
    (void)state;
    run_open(&r, 0, "cpu", "auto", 2, 0, &o);
    batch_fill(&b, r.m.w->arch.vocab, 11);
    assert_ok(trainer_score(r.t, b.s, b.n, &e), &e);
    before = run_state(&r, &bytes);
    version = r.m.w->version;
    for (int k = 0; k < 4; k++) {
        float *at = &b.roll[2][k == 1 ? 89 : 31];
        for (int i = 0; i < N; i++) {
            memcpy(b.roll[i], b.logp[i], sizeof b.logp[i]);
            b.s[i].roll = b.s[i].old = b.roll[i];
            b.s[i].exact = 1;
        }
        /* one unit in the last place; the last token; a masked token; not a number */
        *at = k == 3 ? NAN : nextafterf(*at, 0.0f);
        if (k == 2) {
            b.mask[2][31] = 0;
            b.s[2].mask = b.mask[2];
        }
        memset(&e, 0, sizeof e);
        assert_int_equal(trainer_step(r.t, b.s, b.n, &hyper, &rep, &e), STATUS_NUMERIC);
        assert_non_null(strstr(e.msg, "bit for bit"));
        assert_int_equal(r.m.w->version, version);
        assert_int_equal(trainer_optim(r.t)->step, 0);
        assert_int_equal(r.m.w->refs, 1);
        after = run_state(&r, &bytes);
        assert_memory_equal(after, before, bytes);
        mem_free(after);
        /* the same number is no error where it was not promised */
        if (k == 0) {
            struct run other;
            run_open(&other, 0, "cpu", "auto", 1, 0, &o);
            b.s[2].exact = 0;
            assert_ok(trainer_step(other.t, b.s, b.n, &hyper, &rep, &e), &e);
            assert_int_equal(other.m.w->version, version + 1);
            run_close(&other);
        }
    }
    /* and after the refusals a right batch trains */
    for (int i = 0; i < N; i++) {
        memcpy(b.roll[i], b.logp[i], sizeof b.logp[i]);
    }
    assert_ok(trainer_step(r.t, b.s, b.n, &hyper, &rep, &e), &e);
    assert_int_equal(r.m.w->version, version + 1);
    mem_free(before);
    run_close(&r);
}

static void bad_samples(void **state)
{
    static struct batch b;
    struct trainer_opts o = default_opts();
    struct trainer_report rep;
    struct run r;
    (void)state;
    o.max_len = 400;
    o.max_tokens = 400;
    run_open(&r, 0, "cpu", "auto", 1, 0, &o);
    batch_fill(&b, r.m.w->arch.vocab, 13);
    b.tokens[2][50] = r.m.w->arch.vocab;
    assert_int_equal(trainer_step(r.t, b.s, b.n, &hyper, &rep, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "outside the vocabulary"));
    b.tokens[2][50] = -1;
    assert_int_equal(trainer_score(r.t, b.s, b.n, &e), STATUS_INPUT);
    b.tokens[2][50] = 0;
    b.s[2].response = 410;
    assert_int_equal(trainer_step(r.t, b.s, b.n, &hyper, &rep, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "411"));
    assert_int_equal(trainer_optim(r.t)->step, 0);
    assert_int_equal(r.m.w->refs, 1);
    b.s[2].response = 90;
    assert_ok(trainer_score(r.t, b.s, b.n, &e), &e);
    run_close(&r);
}

/* ---- masks and reductions, bit for bit ---- */

/* The state after one on-policy step over the batch. */
static float *one_step(struct batch *b, const struct trainer_opts *o, size_t *bytes)
{
    struct trainer_report rep;
    struct run r;
    float *state;
    run_open(&r, 0, "cpu", "auto", 2, 0, o);
    for (int i = 0; i < b->n; i++) {
        b->s[i].exact = 0;
        b->s[i].old = b->s[i].roll = NULL;
    }
    assert_ok(trainer_step(r.t, b->s, b->n, &hyper, &rep, &e), &e);
    assert_true(rep.grad_norm > 1e-3);
    state = run_state(&r, bytes);
    run_close(&r);
    return state;
}

static void expect_equal(struct batch *a, const struct trainer_opts *oa, struct batch *b,
                         const struct trainer_opts *ob, int equal)
{
    size_t na, nb;
    float *x = one_step(a, oa, &na), *y = one_step(b, ob, &nb);
    assert_int_equal(na, nb);
    assert_int_equal(memcmp(x, y, na) == 0, equal);
    mem_free(x);
    mem_free(y);
}

static void masks(void **state)
{
    static struct batch a, b;
    struct trainer_opts o = default_opts(), o2;
    (void)state;
    batch_fill(&a, 77, 17);
    batch_fill(&b, 77, 17);
    /* all ones is no mask */
    for (int i = 0; i < N; i++) {
        memset(b.mask[i], 1, sizeof b.mask[i]);
        b.s[i].mask = b.mask[i];
    }
    expect_equal(&a, &o, &b, &o, 1);
    /* what a masked token earns does not matter; what another earns does */
    batch_fill(&b, 77, 17);
    for (int i = 0; i < N; i++) {
        a.s[i].mask = a.mask[i];
        b.s[i].mask = b.mask[i];
        for (int t = 0; t < LEN; t++) {
            b.adv[i][t] = b.mask[i][t] ? b.adv[i][t] : 1e6f;
        }
    }
    expect_equal(&a, &o, &b, &o, 1);
    for (int t = 0; t < LEN; t++) {
        if (b.mask[2][t]) {
            b.adv[2][t] += 0.25f;
            break;
        }
    }
    expect_equal(&a, &o, &b, &o, 0);
    /* a rollout told by its samples' own lengths, or by the denominator */
    batch_fill(&b, 77, 17);
    for (int i = 0; i < N; i++) {
        int64_t active = 0;
        b.s[i].mask = b.mask[i];
        for (int t = 0; t < b.s[i].response; t++) {
            active += b.mask[i][t];
        }
        b.s[i].denom = active;
    }
    expect_equal(&a, &o, &b, &o, 1);
    b.s[3].denom += 1;
    expect_equal(&a, &o, &b, &o, 0);
    /* both reductions are one where all responses have one length, and differ elsewhere */
    batch_fill(&b, 77, 17);
    batch_fill(&a, 77, 17);
    o2 = o;
    o2.loss.per_token = 1;
    expect_equal(&a, &o, &b, &o2, 0);
    for (int i = 0; i < N; i++) {
        a.s[i].response = b.s[i].response = 33;
    }
    expect_equal(&a, &o, &b, &o2, 1);
}

/* ---- the gradient is the derivative ---- */

struct objective {
    const struct trainer_opts *o;
    float old[N][LEN];
};

/* The objective from scored log-probs and entropies, in doubles, as rl-math writes it (no clipping:
 * the ratios stay near 1). */
static double objective_value(struct run *r, struct batch *b, const struct objective *j)
{
    const struct loss_opts *l = &j->o->loss;
    double sum = 0.0, tokens = 0.0;
    int rollouts = 0;
    assert_ok(trainer_score(r->t, b->s, b->n, &e), &e);
    for (int i = 0; i < b->n; i++) {
        int seen = 0, active = 0;
        for (int k = 0; k < i; k++) {
            seen |= b->s[k].rollout == b->s[i].rollout;
        }
        for (int t = 0; t < b->s[i].response; t++) {
            active += !b->s[i].mask || b->s[i].mask[t];
        }
        rollouts += !seen;
        tokens += active > 1 ? active : 1;
    }
    for (int i = 0; i < b->n; i++) {
        const struct train_sample *s = &b->s[i];
        double part = 0.0, denom = (double)s->denom;
        int active = 0;
        for (int t = 0; t < s->response; t++) {
            double lp = b->logp[i][t], ratio = exp(lp - j->old[i][t]), x;
            if (s->mask && !s->mask[t]) {
                continue;
            }
            active++;
            x = -ratio * s->adv[t];
            if (l->use_kl_loss) {
                double d = (double)s->ref[t] - lp;
                x += l->kl_loss_coef * (exp(d) - d - 1.0);
            }
            if (l->entropy_coef != 0.0f) {
                x -= l->entropy_coef * b->entropy[i][t];
            }
            part += x;
        }
        denom = denom > 0.0 ? denom : active > 1 ? active : 1;
        sum += l->per_token ? part / tokens : part / denom / rollouts;
    }
    return sum;
}

/* Moves the weights by h along the unit gradient and pushes them. */
static void move(struct run *r, const float *from, const float *dir, double norm, double h)
{
    struct optim *o = trainer_optim(r->t);
    float *x = mem_alloc(4 * (size_t)weights_count(r->m.w));
    int64_t k = 0;
    for (int i = 0; i < r->m.w->nparams; i++) {
        int64_t n = o->master[i].rows * o->master[i].cols;
        for (int64_t c = 0; c < n; c++) {
            x[c] = (float)((double)from[k + c] + h * dir[k + c] / norm);
        }
        assert_ok(optim_write(o, OPTIM_MASTER, i, x, &e), &e);
        k += n;
    }
    mem_free(x);
}

static void check_derivative(int spec, const struct trainer_opts *o, int masked, int shared)
{
    static struct batch b;
    static struct objective j;
    struct optim_hyper h = {0.0, 0.0, 0.5, 1e-8, 0.0, 0.0}; /* no move; exp_avg is the gradient */
    struct trainer_report rep;
    struct run r;
    int64_t n, k = 0;
    float *x, *g;
    double norm = 0.0, step, want, got, value = 0.0;
    run_open(&r, spec, "ref", "auto", 2, 1, o);
    batch_fill(&b, r.m.w->arch.vocab, 23);
    b.n = 5;
    for (int i = 0; i < b.n; i++) {
        b.s[i].response = responses[i] > 30 ? 30 : responses[i]; /* the device is slow */
        b.s[i].prompt = prompts[i] > 20 ? 20 : prompts[i];
        b.s[i].mask = masked ? b.mask[i] : NULL;
        b.s[i].rollout = shared ? i / 2 : i;
        b.s[i].ref = b.ref[i];
        if (shared) { /* one prompt for all */
            b.s[i].prompt = 20;
            memcpy(b.tokens[i], b.tokens[0], 4 * 20);
        }
    }
    assert_ok(trainer_score(r.t, b.s, b.n, &e), &e);
    for (int i = 0; i < b.n; i++) {
        int64_t active = 0;
        for (int t = 0; t < LEN; t++) {
            j.old[i][t] = b.logp[i][t] + 0.05f * (float)((t * 7 + i) % 5 - 2);
            b.ref[i][t] = b.logp[i][t] + 0.2f * (float)((t * 3 + i) % 7 - 3);
        }
        b.s[i].old = j.old[i];
        for (int q = 0; shared && q < b.n; q++) {
            for (int t = 0; q / 2 == i / 2 && t < b.s[q].response; t++) {
                active += !masked || b.mask[q][t];
            }
        }
        b.s[i].denom = active;
    }
    j.o = o;
    x = mem_alloc(4 * (size_t)weights_count(r.m.w));
    g = mem_alloc(4 * (size_t)weights_count(r.m.w));
    for (int i = 0; i < r.m.w->nparams; i++) {
        device_download_f32(&trainer_optim(r.t)->master[i], x + k);
        k += (int64_t)r.m.w->params[i].rows * r.m.w->params[i].cols;
    }
    n = k;
    assert_ok(trainer_step(r.t, b.s, b.n, &h, &rep, &e), &e);
    k = 0;
    for (int i = 0; i < r.m.w->nparams; i++) {
        device_download_f32(&trainer_optim(r.t)->m[i], g + k);
        k += (int64_t)r.m.w->params[i].rows * r.m.w->params[i].cols;
    }
    for (int64_t i = 0; i < n; i++) {
        norm += (double)g[i] * g[i];
    }
    norm = sqrt(norm);
    assert_true(fabs(norm - rep.grad_norm) < 1e-5 * norm);
    assert_true(norm > 1e-2);
    /* the value that is reported is the objective's */
    want = objective_value(&r, &b, &j);
    assert_true(loss_metric(&o->loss, &rep.step, &rep.sums, LOSS_LOSS, &value));
    if (fabs(value - want) > 1e-4 * (1.0 + fabs(want))) {
        fail_msg("loss %.9g, the objective is %.9g", value, want);
    }
    step = 4e-3 / norm;
    move(&r, x, g, norm, step);
    got = objective_value(&r, &b, &j);
    move(&r, x, g, norm, -step);
    got = (got - objective_value(&r, &b, &j)) / (2.0 * step);
    if (fabs(got - norm) > 0.01 * norm) {
        fail_msg("slope along the gradient is %.6g, its norm %.6g", got, norm);
    }
    mem_free(x);
    mem_free(g);
    run_close(&r);
}

static void derivative(void **state)
{
    (void)state;
    for (int k = 0; k < 5; k++) {
        struct trainer_opts o = default_opts();
        o.max_len = 80;
        o.max_tokens = 100;
        o.loss.eps_clip = 1.0f;
        o.loss.eps_clip_high = 10.0f;
        o.loss.per_token = k == 1 || k == 4;
        if (k >= 2) {
            o.entropy = 1;
            o.loss.entropy = 1;
            o.loss.entropy_coef = k == 3 ? 0.5f : 0.0f;
        }
        if (k >= 3) {
            o.loss.use_kl_loss = 1;
            o.loss.kl_loss_coef = 0.7f;
            o.loss.kl_loss_type = LOSS_LOW_VAR_KL;
        }
        check_derivative(k % 2, &o, k >= 1, k >= 2);
    }
}

/* ---- scoring ---- */

/* Scores do not depend on who computes them, and entropies are those of a distribution. */
static void scores(void **state)
{
    static struct batch a, b;
    struct trainer_opts o = default_opts(), full;
    struct run r;
    struct tinymodel frozen;
    (void)state;
    o.entropy = 1;
    o.max_tokens = 2000;
    full = o;
    o.max_rows = 64; /* more come */
    run_open(&r, 0, "cpu", "auto", 2, 0, &o);
    batch_fill(&a, r.m.w->arch.vocab, 29);
    batch_fill(&b, r.m.w->arch.vocab, 29);
    assert_ok(trainer_score(r.t, a.s, a.n, &e), &e);
    tinymodel_open(&frozen, dirs[0], "cpu", "auto", 1, 2, 0, 0);
    assert_ok(trainer_score_with(frozen.w, 50, o.temperature, b.s, b.n, &e), &e);
    for (int i = 0; i < N; i++) {
        for (int t = 0; t < LEN; t++) {
            assert_true(a.logp[i][t] == b.logp[i][t]);
            if (t < a.s[i].response) {
                assert_true(a.logp[i][t] < 0.0f);
                assert_true(a.entropy[i][t] > 0.0f && a.entropy[i][t] < 4.35f); /* log 77 */
            } else {
                assert_true(a.logp[i][t] == 0.0f && a.entropy[i][t] == 0.0f);
            }
        }
    }
    assert_int_equal(frozen.w->refs, 1);
    tinymodel_close(&frozen);
    assert_true(trainer_bytes(r.m.w, &o, NULL) > optim_bytes(r.m.w, NULL));
    assert_true(trainer_bytes(r.m.w, &o, NULL) < trainer_bytes(r.m.w, &full, NULL));
    run_close(&r);
    trainer_close(NULL);
}

/* Samples that share a prompt are scored from one pass over it, with the bits of whole sequences:
 * an update that computes them whole accepts the scores as exact. */
static void shared_prompts(void **state)
{
    static const int prompt[N] = {64, 64, 64, 40, 40, 1, 1};
    static const int response[N] = {26, 1, 9, 2, 50, 1, 80};
    static struct batch b;
    struct trainer_opts o = default_opts();
    struct trainer_report rep;
    struct run r;
    float alone[N][LEN];
    (void)state;
    o.entropy = 1;
    run_open(&r, 0, "cpu", "auto", 2, 0, &o);
    batch_fill(&b, r.m.w->arch.vocab, 31);
    for (int i = 0; i < N; i++) {
        int same = i > 0 && prompt[i] == prompt[i - 1];
        b.s[i].prompt = prompt[i];
        b.s[i].response = response[i];
        b.s[i].denom = 0;
        assert_true(prompt[i] + response[i] <= LEN);
        memcpy(b.tokens[i], same ? b.tokens[i - 1] : b.tokens[i], 4 * (size_t)prompt[i]);
    }
    for (int i = 0; i < N; i++) {
        assert_ok(trainer_score(r.t, &b.s[i], 1, &e), &e);
        memcpy(alone[i], b.s[i].logp_out, sizeof(float) * (size_t)response[i]);
    }
    assert_ok(trainer_score(r.t, b.s, N, &e), &e);
    for (int i = 0; i < N; i++) {
        assert_memory_equal(alone[i], b.s[i].logp_out, sizeof(float) * (size_t)response[i]);
        memcpy(b.roll[i], b.s[i].logp_out, sizeof(float) * (size_t)response[i]);
        b.s[i].roll = b.s[i].old = b.roll[i];
        b.s[i].exact = 1;
    }
    assert_ok(trainer_step(r.t, b.s, N, &hyper, &rep, &e), &e);
    assert_true(rep.max_diff == 0.0f);
    assert_int_equal(rep.idle_samples, 0);
    assert_int_equal(rep.exact_tokens, 26 + 1 + 9 + 2 + 50 + 1 + 80);
    run_close(&r);
}

static int setup(void **state)
{
    static char name[3][300];
    int rc = fixture_setup(state);
    for (int i = 0; rc == 0 && i < 3; i++) {
        snprintf(name[i], sizeof name[i], "%s", tinymodel_write(&specs[i]));
        dirs[i] = name[i];
    }
    return rc;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layout_changes_no_bit),
        cmocka_unit_test(corrections_change_no_bit),
        cmocka_unit_test(machine_changes_no_bit),
        cmocka_unit_test(memory_changes_no_bit),
        cmocka_unit_test(groups_change_no_bit),
        cmocka_unit_test(groups_are_samples),
        cmocka_unit_test(planned_bytes),
        cmocka_unit_test(wrong_log_prob),
        cmocka_unit_test(bad_samples),
        cmocka_unit_test(masks),
        cmocka_unit_test(derivative),
        cmocka_unit_test(scores),
        cmocka_unit_test(shared_prompts),
    };
    return cmocka_run_group_tests(tests, setup, fixture_teardown);
}
