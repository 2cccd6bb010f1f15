/* Masked importance sampling: golden values, every mode, level and rejection rule, what is not
 * finite, and the same bits for every order and split of a step's samples.
 *
 * tests/live/mis_parity.sh asks for the loss of cases it made, to hold them against another
 * implementation:
 *
 *     test_mis --dump CASES.json OUT.json */
#include "losskit.h"

#include <float.h>
#include <jansson.h>
#include <math.h>

#include "base/rng.h"
#include "base/status.h"
#include "train/loss.h"

enum { MAXT = 24, MAXS = 8 };

static struct err e;

/* ---- a step's samples ---- */

struct batch {
    int n;
    int64_t len[MAXS], denom[MAXS];
    uint8_t mask[MAXS][MAXT];
    float logp[MAXS][MAXT], old[MAXS][MAXT], ref[MAXS][MAXT], roll[MAXS][MAXT], adv[MAXS][MAXT],
        ent[MAXS][MAXT], dlogp[MAXS][MAXT], dent[MAXS][MAXT];
    int no_old, no_ref, no_ent;
};

static struct loss_sample view(struct batch *b, int i)
{
    return (struct loss_sample){.len = b->len[i],
                                .mask = b->mask[i],
                                .denom = b->denom[i],
                                .logp = b->logp[i],
                                .old = b->no_old ? NULL : b->old[i],
                                .ref = b->no_ref ? NULL : b->ref[i],
                                .roll = b->roll[i],
                                .adv = b->adv[i],
                                .entropy = b->no_ent ? NULL : b->ent[i],
                                .dlogp = b->dlogp[i],
                                .dentropy = b->dent[i]};
}

static void random_batch(struct batch *b, double spread)
{
    memset(b, 0, sizeof *b);
    b->n = 1 + (int)rng_py_randbelow(&rng, MAXS);
    for (int i = 0; i < b->n; i++) {
        b->len[i] = rng_py_randbelow(&rng, MAXT + 1);
        for (int t = 0; t < b->len[i]; t++) {
            b->mask[i][t] = rng_py_randbelow(&rng, 4) != 0;
            b->logp[i][t] = (float)uniform(-4, -0.1);
            b->old[i][t] = b->logp[i][t] + (float)uniform(-0.3, 0.3);
            b->roll[i][t] = b->old[i][t] + (float)uniform(-spread, spread);
            b->adv[i][t] = (float)uniform(-2, 2);
        }
    }
    b->no_ref = b->no_ent = 1;
}

static struct loss_opts random_opts(void)
{
    struct loss_opts o = {.eps_clip = 0.2f, .eps_clip_high = 0.28f, .tis = LOSS_TIS_MIS};
    o.gspo = (int)rng_py_randbelow(&rng, 2);
    o.per_token = (int)rng_py_randbelow(&rng, 2);
    o.mis.level = (enum mis_level)rng_py_randbelow(&rng, 3);
    o.mis.mode = (enum mis_mode)rng_py_randbelow(&rng, 3);
    o.mis.lo = 0.5f;
    o.mis.hi = 2;
    o.mis.rs = (int)rng_py_randbelow(&rng, 2);
    o.mis.rs_level = (enum mis_level)rng_py_randbelow(&rng, 3);
    o.mis.rs_lo = 0.4f;
    o.mis.rs_hi = 2.5f;
    o.mis.veto = rng_py_randbelow(&rng, 2) ? 0.2f : 0;
    o.mis.normalize = o.mis.level != MIS_GEOMETRIC && rng_py_randbelow(&rng, 2);
    return o;
}

/* What is known before the first sample; the order of the samples is `order`, or as they are. */
static struct loss_step step_of(const struct loss_opts *o, const struct batch *b, const int *order)
{
    struct loss_step st = {.rollouts = b->n};
    struct mis_mean m;
    mis_mean_init(&m);
    for (int k = 0; k < b->n; k++) {
        int i = order ? order[k] : k;
        st.tokens += loss_norm_tokens(b->mask[i], b->len[i]);
        mis_mean_add(&m, &o->mis, b->len[i], b->mask[i], b->no_old ? b->logp[i] : b->old[i],
                     b->roll[i]);
    }
    if (o->tis == LOSS_TIS_MIS && o->mis.normalize && !o->mis.observe) {
        st.mis_mean = mis_mean_value(&m);
    }
    return st;
}

static void run(const struct loss_opts *o, const struct loss_step *st, struct batch *b,
                struct loss_sums *sums)
{
    loss_sums_init(sums);
    for (int i = 0; i < b->n; i++) {
        struct loss_sample s = view(b, i);
        assert_ok(loss_sample(o, st, &s, sums, &e), &e);
    }
}

static double metric(const struct loss_opts *o, const struct loss_step *st,
                     const struct loss_sums *sums, int m)
{
    double v = NAN;
    assert_int_equal(loss_metric(o, st, sums, (enum loss_metric)m, &v), 1);
    return v;
}

/* ---- one response ---- */

/* x = [.1, .5, -.1] of rl-math 10 */
static const float train3[] = {-1, -1, -1}, roll3[] = {-1.1f, -1.5f, -.9f};

static struct mis_opts wide(enum mis_level level)
{
    return (struct mis_opts){.level = level, .mode = MIS_CLIP, .lo = 0, .hi = 1e9f};
}

static void levels(void **state)
{
    static const double want[3][3] = {{1.1051709, 1.6487213, .9048374},
                                      {1.6487213, 1.6487213, 1.6487213},
                                      {1.1813604, 1.1813604, 1.1813604}};
    (void)state;
    for (int l = 0; l < 3; l++) {
        struct mis_opts o = wide((enum mis_level)l);
        struct mis_seq q;
        int keep;
        mis_seq_init(&q, &o, 3, NULL, train3, roll3, 1);
        for (int t = 0; t < 3; t++) {
            near_(mis_seq_weight(&q, t, &keep), want[l][t], 2e-7, "weight");
            assert_int_equal(keep, 1);
        }
    }
}

/* Weights and kept tokens of x with ratios 1.105, 1.649, 0.905. */
static void bounds(void **state)
{
    static const struct {
        struct mis_opts o;
        double w[3];
        int keep[3];
    } g[] = {
        {{.mode = MIS_TRUNCATE, .lo = 1, .hi = 1.5f}, {1.1051709, 1.5, .9048374}, {1, 1, 1}},
        {{.mode = MIS_CLIP, .lo = 1, .hi = 1.5f}, {1.1051709, 1.5, 1}, {1, 1, 1}},
        {{.mode = MIS_MASK, .lo = 1, .hi = 1.5f}, {1.1051709, 1.6487213, .9048374}, {1, 0, 0}},
        {{.mode = MIS_TRUNCATE, .hi = 9, .rs = 1, .rs_lo = 1, .rs_hi = 9},
         {1.1051709, 1.6487213, .9048374},
         {1, 1, 0}},
        /* the response as a whole is out of the rejection's bounds */
        {{.mode = MIS_TRUNCATE, .hi = 9, .rs = 1, .rs_level = MIS_SEQUENCE, .rs_hi = 1.6f},
         {1.1051709, 1.6487213, .9048374},
         {0, 0, 0}},
        {{.mode = MIS_TRUNCATE, .hi = 9, .rs = 1, .rs_level = MIS_GEOMETRIC, .rs_hi = 1.6f},
         {1.1051709, 1.6487213, .9048374},
         {1, 1, 1}},
        /* one token below the veto takes all with it */
        {{.mode = MIS_TRUNCATE, .hi = 9, .rs = 1, .rs_hi = 9, .veto = .95f},
         {1.1051709, 1.6487213, .9048374},
         {0, 0, 0}},
        {{.mode = MIS_TRUNCATE, .hi = 9, .rs = 1, .rs_hi = 9, .veto = .9f},
         {1.1051709, 1.6487213, .9048374},
         {1, 1, 1}},
        /* without rejection there is no veto */
        {{.mode = MIS_TRUNCATE, .hi = 9, .veto = .95f},
         {1.1051709, 1.6487213, .9048374},
         {1, 1, 1}},
        {{.mode = MIS_CLIP, .lo = 5, .hi = 9, .rs = 1, .observe = 1}, {1, 1, 1}, {1, 1, 1}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof g / sizeof *g; i++) {
        struct mis_seq q;
        mis_seq_init(&q, &g[i].o, 3, NULL, train3, roll3, 1);
        for (int t = 0; t < 3; t++) {
            int keep;
            near_(mis_seq_weight(&q, t, &keep), g[i].w[t], 2e-7, "weight");
            if (keep != g[i].keep[t]) {
                fail_msg("row %zu, token %d: kept is %d", i, t, keep);
            }
        }
    }
}

static void bounds_are_inclusive(void **state)
{
    static const float train[] = {0, 0}, roll[] = {0, 0};
    struct mis_opts o = {.mode = MIS_MASK, .lo = 1, .hi = 1, .rs = 1, .rs_lo = 1, .rs_hi = 1};
    struct mis_seq q;
    int keep;
    (void)state;
    mis_seq_init(&q, &o, 2, NULL, train, roll, 1);
    assert_true(mis_seq_weight(&q, 0, &keep) == 1.0f && keep);
}

static void masked_tokens_have_no_part(void **state)
{
    static const float train[] = {-1, NAN, -1, -9, -1}, roll[] = {-1.1f, -1, -1.5f, -1, -.9f};
    static const uint8_t mask[] = {1, 0, 1, 0, 1};
    struct mis_opts o = wide(MIS_SEQUENCE);
    struct mis_seq q;
    int keep;
    (void)state;
    o.rs = 1;
    o.rs_hi = 9;
    o.veto = .01f;
    mis_seq_init(&q, &o, 5, mask, train, roll, 1);
    near_(mis_seq_weight(&q, 4, &keep), 1.6487213, 2e-7, "weight");
    assert_int_equal(keep, 1);
    assert_int_equal(q.n, 3);
    assert_int_equal(q.undefined + q.vetoes, 0);
}

static void what_is_not_finite(void **state)
{
    /* a difference beyond all bounds, one that is no number, an ordinary one */
    static const float train[] = {0, -INFINITY, NAN, -1, -INFINITY};
    static const float roll[] = {-INFINITY, 0, -1, -1, -INFINITY};
    struct mis_opts o = {.mode = MIS_CLIP, .lo = .5f, .hi = 2};
    struct mis_seq q;
    int keep;
    (void)state;
    mis_seq_init(&q, &o, 5, NULL, train, roll, 1);
    assert_true(mis_seq_weight(&q, 0, &keep) == 2 && keep);
    assert_true(mis_seq_weight(&q, 1, &keep) == .5f && keep);
    assert_true(mis_seq_weight(&q, 2, &keep) == 0 && !keep);
    assert_true(mis_seq_weight(&q, 3, &keep) == 1 && keep);
    assert_true(mis_seq_weight(&q, 4, &keep) == 0 && !keep);
    assert_int_equal(q.undefined, 2);
    o.level = MIS_SEQUENCE;
    mis_seq_init(&q, &o, 5, NULL, train, roll, 1);
    assert_true(mis_seq_weight(&q, 3, &keep) == 0 && !keep);
    mis_seq_init(&q, &o, 1, NULL, train, roll, 1);
    assert_true(mis_seq_weight(&q, 0, &keep) == 2 && keep);
    mis_seq_init(&q, &o, 2, NULL, train, roll, 1); /* +inf and -inf */
    assert_true(mis_seq_weight(&q, 0, &keep) == 0 && !keep);
    /* no figure becomes null */
    for (int observe = 0; observe < 2; observe++) {
        struct exact sums[MIS_NMETRICS];
        for (int m = 0; m < MIS_NMETRICS; m++) {
            exact_init(&sums[m]);
        }
        o = (struct mis_opts){.mode = MIS_MASK, .lo = .5f, .hi = 2, .rs = 1, .rs_hi = 9};
        o.veto = 1e-4f;
        o.observe = observe;
        mis_seq_init(&q, &o, 5, NULL, train, roll, 1);
        mis_seq_terms(&q, 5, sums);
        for (int m = 0; m < MIS_NMETRICS; m++) {
            assert_true(isfinite(exact_value(&sums[m])));
        }
        assert_true(exact_value(&sums[MIS_K3_KL]) > 1e37);
    }
}

/* ---- the mean of a step ---- */

static void mean_of_a_step(void **state)
{
    struct mis_opts o = wide(MIS_TOKEN);
    static const float far[] = {-30, -30}, near[] = {-1, -1};
    struct mis_mean m;
    (void)state;
    mis_mean_init(&m);
    assert_true(mis_mean_value(&m) == 1.0);
    mis_mean_add(&m, &o, 3, NULL, train3, roll3);
    near_(mis_mean_value(&m), 1.2195765, 1e-7, "mean");
    mis_mean_add(&m, &o, 2, NULL, near, near);
    near_(mis_mean_value(&m), (3 * 1.2195765 + 2) / 5, 1e-7, "mean over tokens");
    o.level = MIS_SEQUENCE;
    mis_mean_init(&m);
    mis_mean_add(&m, &o, 3, NULL, train3, roll3);
    mis_mean_add(&m, &o, 2, NULL, near, near);
    near_(mis_mean_value(&m), (1.6487213 + 1) / 2, 1e-7, "mean over responses");
    mis_mean_add(&m, &o, 0, NULL, NULL, NULL); /* counts, as a response of weight 0 */
    near_(mis_mean_value(&m), (1.6487213 + 1) / 3, 1e-7, "with an empty one");
    /* too small to divide by: left out */
    o.level = MIS_TOKEN;
    mis_mean_init(&m);
    mis_mean_add(&m, &o, 2, NULL, far, near);
    assert_true(mis_mean_value(&m) == 1.0);
}

static void normalised_weights_average_one(void **state)
{
    (void)state;
    for (int round = 0; round < 50; round++) {
        struct batch b;
        struct loss_opts o = random_opts();
        struct loss_step st;
        struct loss_sums sums;
        int64_t tokens = 0;
        random_batch(&b, 1);
        o.mis.level = MIS_TOKEN;
        o.mis.normalize = 1;
        o.per_token = 1;
        st = step_of(&o, &b, NULL);
        run(&o, &st, &b, &sums);
        for (int i = 0; i < b.n; i++) {
            for (int t = 0; t < b.len[i]; t++) {
                tokens += b.mask[i][t];
            }
        }
        if (tokens) {
            near_(metric(&o, &st, &sums, LOSS_MIS + MIS_FINAL_MEAN) * (double)st.tokens,
                  (double)tokens, 1e-6, "sum of weights");
            near_(metric(&o, &st, &sums, LOSS_MIS + MIS_NORM_FACTOR) * (double)st.tokens,
                  (double)tokens * st.mis_mean, 1e-12, "factor");
        }
    }
}

/* ---- in the loss ---- */

/* Numerators lose what is rejected, denominators do not (rl-math 10.4). */
static void denominators_stay(void **state)
{
    struct loss_opts o = {.eps_clip = .2f, .eps_clip_high = .2f, .tis = LOSS_TIS_MIS};
    struct loss_step st = {.rollouts = 1, .tokens = 3};
    float adv[] = {1, 1, 1}, d[3], h[] = {1, 1, 1}, dh[3];
    struct loss_sample s = {.len = 3,
                            .logp = train3,
                            .old = train3,
                            .roll = roll3,
                            .ref = roll3,
                            .adv = adv,
                            .entropy = h,
                            .dlogp = d,
                            .dentropy = dh};
    (void)state;
    o.mis = (struct mis_opts){.mode = MIS_MASK, .lo = 1, .hi = 1.5f};
    o.entropy_coef = 1;
    o.use_kl_loss = 1;
    o.kl_loss_coef = 1;
    for (int per_token = 0; per_token < 2; per_token++) {
        struct loss_sums sums;
        o.per_token = per_token;
        loss_sums_init(&sums);
        assert_ok(loss_sample(&o, &st, &s, &sums, &e), &e);
        near_(metric(&o, &st, &sums, LOSS_PG_LOSS), -1.1051709 / 3, 1e-6, "pg_loss");
        near_(metric(&o, &st, &sums, LOSS_ENTROPY_LOSS), 1.0 / 3, 1e-9, "entropy");
        near_(metric(&o, &st, &sums, LOSS_KL_LOSS), .1 / 3, 1e-6, "kl");
        near_(metric(&o, &st, &sums, LOSS_LOGPROB_ABS_DIFF), .1 / 3, 1e-6, "of what is kept");
        near_(metric(&o, &st, &sums, LOSS_MIS + MIS_KL), -.5 / 3, 1e-6, "of all");
        near_(metric(&o, &st, &sums, LOSS_MISMATCH_KL), (exp(.1) + exp(.5) + exp(-.1) - 3 - .5) / 3,
              1e-6, "of all");
        near_(metric(&o, &st, &sums, LOSS_MAX_DIFF), .5, 1e-6, "of all");
        near_(metric(&o, &st, &sums, LOSS_MIS + MIS_MASK_LOW), 1.0 / 3, 1e-9, "low");
        near_(metric(&o, &st, &sums, LOSS_MIS + MIS_MASK_HIGH), 1.0 / 3, 1e-9, "high");
        near_(metric(&o, &st, &sums, LOSS_OIS), 1, 1e-9, "ois");
        near_(d[0], -1.1051709 / 3 + 1.0 / 3, 1e-6, "d0");
        assert_true(d[1] == 0 && d[2] == 0 && dh[1] == 0 && dh[2] == 0);
        near_(dh[0], -1.0 / 3, 1e-7, "dh0");
    }
}

/* Only figures: loss and gradient have the bits that they have without a correction. */
static void observing_changes_nothing(void **state)
{
    (void)state;
    for (int round = 0; round < 60; round++) {
        static struct batch a, b;
        struct loss_opts o = random_opts(), plain;
        struct loss_step st;
        struct loss_sums x, y;
        int kind = round % 3;
        random_batch(&a, 2);
        b = a;
        o.mis.observe = o.tis_observe = 1;
        o.tis_clip = 1.5f;
        o.tis = kind == 0 ? LOSS_TIS_MIS : kind == 1 ? LOSS_TIS_ICEPOP : LOSS_TIS_TRUNCATE;
        plain = o;
        plain.tis = LOSS_TIS_OFF;
        st = step_of(&o, &a, NULL);
        run(&o, &st, &a, &x);
        run(&plain, &st, &b, &y);
        assert_memory_equal(a.dlogp, b.dlogp, sizeof a.dlogp);
        assert_true(metric(&o, &st, &x, LOSS_LOSS) == metric(&plain, &st, &y, LOSS_LOSS));
        if (kind == 0) {
            assert_true(metric(&o, &st, &x, LOSS_MIS + MIS_LOG_PPL_ABS_DIFF) >= 0);
        } else if (a.len[0]) {
            assert_true(metric(&o, &st, &x, LOSS_TIS) > 0);
        }
    }
}

static void icepop(void **state)
{
    struct loss_opts o = {
        .eps_clip = .2f, .eps_clip_high = .2f, .tis = LOSS_TIS_ICEPOP, .tis_clip = 1.5f};
    struct loss_step st = {.rollouts = 1};
    float adv[] = {1, 1, 1}, d[3], one[] = {-1, -1, -1};
    struct loss_sample s = {
        .len = 3, .logp = train3, .old = train3, .roll = roll3, .adv = adv, .dlogp = d};
    struct loss_sums sums;
    (void)state;
    o.tis_clip_low = 1;
    loss_sums_init(&sums);
    assert_ok(loss_sample(&o, &st, &s, &sums, &e), &e);
    near_(d[0], -1.1051709 / 3, 1e-6, "inside: the ratio");
    assert_true(d[1] == 0 && d[2] == 0);
    near_(metric(&o, &st, &sums, LOSS_TIS_CLIPFRAC), 2.0 / 3, 1e-9, "tis_clipfrac");
    near_(metric(&o, &st, &sums, LOSS_TIS), 1.2195765, 1e-6, "tis");
    near_(metric(&o, &st, &sums, LOSS_TIS_ABS), (.1051709 + .6487213 + .0951626) / 3, 1e-6, "abs");
    near_(metric(&o, &st, &sums, LOSS_PG_CLIPFRAC), 0, 1e-9, "masks are unchanged");
    /* the bounds belong to the range */
    o.tis_clip = 1;
    s.roll = one;
    loss_sums_init(&sums);
    assert_ok(loss_sample(&o, &st, &s, &sums, &e), &e);
    near_(d[1], -1.0 / 3, 1e-7, "inclusive");
    /* a ratio that no float holds */
    s.roll = (float[]){-200, -INFINITY, 300};
    o.tis_clip = 2;
    o.tis_clip_low = 0;
    loss_sums_init(&sums);
    assert_ok(loss_sample(&o, &st, &s, &sums, &e), &e);
    assert_true(d[0] == 0 && d[1] == 0 && d[2] == 0);
    assert_true(isfinite(metric(&o, &st, &sums, LOSS_TIS)));
    o.tis = LOSS_TIS_TRUNCATE;
    loss_sums_init(&sums);
    assert_ok(loss_sample(&o, &st, &s, &sums, &e), &e);
    near_(d[0], -2.0 / 3, 1e-7, "an infinite ratio has the bound's weight");
    near_(d[1], -2.0 / 3, 1e-7, "the same");
}

/* Any order and any split of a step: the same bits in mean, gradients and metrics. */
static void plans_are_free(void **state)
{
    int rejected = 0;
    (void)state;
    for (int round = 0; round < 300; round++) {
        static struct batch a, b;
        struct loss_opts o = random_opts();
        struct loss_step st, other;
        struct loss_sums all, part[3];
        int order[MAXS];
        random_batch(&a, round % 2 ? 1 : 0.3);
        b = a;
        for (int i = 0; i < a.n; i++) {
            int j = (int)rng_py_randbelow(&rng, i + 1);
            order[i] = order[j];
            order[j] = i;
        }
        st = step_of(&o, &a, NULL);
        other = step_of(&o, &a, order);
        assert_true(memcmp(&st.mis_mean, &other.mis_mean, sizeof st.mis_mean) == 0);
        run(&o, &st, &a, &all);
        for (int k = 0; k < 3; k++) {
            loss_sums_init(&part[k]);
        }
        for (int k = 0; k < b.n; k++) {
            struct loss_sample s = view(&b, order[k]);
            assert_ok(loss_sample(&o, &other, &s, &part[rng_py_randbelow(&rng, 3)], &e), &e);
        }
        loss_sums_merge(&part[1], &part[2]);
        loss_sums_merge(&part[0], &part[1]);
        assert_memory_equal(a.dlogp, b.dlogp, sizeof a.dlogp);
        for (int m = 0; m < LOSS_NMETRICS; m++) {
            double x = 0, y = 0;
            assert_int_equal(loss_metric(&o, &st, &all, m, &x),
                             loss_metric(&o, &st, &part[0], m, &y));
            assert_true(memcmp(&x, &y, sizeof x) == 0);
        }
        rejected += o.mis.rs && metric(&o, &st, &all, LOSS_MIS + MIS_RS_HIGH) > 0;
    }
    assert_true(rejected > 20);
}

static void names(void **state)
{
    (void)state;
    for (int m = 0; m < MIS_NMETRICS; m++) {
        const char *a = loss_metric_name((enum loss_metric)(LOSS_MIS + m));
        assert_true(strncmp(a, "mis_", 4) == 0);
        for (int k = 0; k < LOSS_MIS + m; k++) {
            assert_string_not_equal(a, loss_metric_name((enum loss_metric)k));
        }
    }
    assert_string_equal(mis_metric_name(MIS_FINAL_MAX), "mis_is_ratio_max_final");
    assert_string_equal(mis_metric_name(MIS_CHI2_SEQ), "mis_chi2_seq");
    assert_string_equal(mis_metric_name(MIS_RS_LOW), "mis_rs_mask_fraction_low");
    assert_true(mis_metric_present(&(struct mis_opts){.observe = 1}, MIS_CHI2_SEQ));
    assert_false(mis_metric_present(&(struct mis_opts){.observe = 1}, MIS_WEIGHT_BEFORE));
    assert_false(mis_metric_present(&(struct mis_opts){.veto = 1}, MIS_VETO_SEQ));
    assert_false(mis_metric_present(&(struct mis_opts){.mode = MIS_MASK}, MIS_CLIP_LOW));
}

/* ---- the dump for mis_parity ---- */

static double opt(const json_t *o, const char *name)
{
    const json_t *v = json_object_get(o, name);
    return json_is_true(v) ? 1 : json_number_value(v);
}

static struct loss_opts dump_opts(const json_t *j)
{
    const json_t *m = json_object_get(j, "mis");
    return (struct loss_opts){.gspo = (int)opt(j, "gspo"),
                              .cispo = (int)opt(j, "cispo"),
                              .divisor = opt(j, "divisor"),
                              .eps_clip = (float)opt(j, "eps_clip"),
                              .eps_clip_high = (float)opt(j, "eps_clip_high"),
                              .eps_clip_c = (float)opt(j, "eps_clip_c"),
                              .use_kl_loss = (int)opt(j, "use_kl_loss"),
                              .kl_loss_coef = (float)opt(j, "kl_loss_coef"),
                              .kl_loss_type = (enum loss_kl)opt(j, "kl_loss_type"),
                              .unbiased_kl = (int)opt(j, "unbiased_kl"),
                              .entropy_coef = (float)opt(j, "entropy_coef"),
                              .per_token = (int)opt(j, "per_token"),
                              .tis = (enum loss_tis)opt(j, "tis"),
                              .tis_observe = (int)opt(j, "tis_observe"),
                              .tis_clip = (float)opt(j, "tis_clip"),
                              .tis_clip_low = (float)opt(j, "tis_clip_low"),
                              .opsm = (int)opt(j, "opsm"),
                              .opsm_delta = (float)opt(j, "opsm_delta"),
                              .mis = {.level = (enum mis_level)opt(m, "level"),
                                      .mode = (enum mis_mode)opt(m, "mode"),
                                      .lo = (float)opt(m, "lo"),
                                      .hi = (float)opt(m, "hi"),
                                      .rs = (int)opt(m, "rs"),
                                      .rs_level = (enum mis_level)opt(m, "rs_level"),
                                      .rs_lo = (float)opt(m, "rs_lo"),
                                      .rs_hi = (float)opt(m, "rs_hi"),
                                      .veto = (float)opt(m, "veto"),
                                      .normalize = (int)opt(m, "normalize"),
                                      .observe = (int)opt(j, "tis_observe")}};
}

/* Values stand in a text, blank between: JSON has no inf and no nan. */
static int dump_floats(const json_t *j, const char *name, float *out)
{
    const char *p = json_string_value(json_object_get(j, name));
    char *end;
    int n = 0;
    while (p && n < MAXT) {
        out[n] = strtof(p, &end);
        if (end == p) {
            break;
        }
        p = end;
        n++;
    }
    return n;
}

static void dump_batch(const json_t *list, struct batch *b)
{
    size_t i;
    json_t *j;
    memset(b, 0, sizeof *b);
    b->no_old = !json_object_get(json_array_get(list, 0), "old");
    json_array_foreach(list, i, j)
    {
        float mask[MAXT] = {0};
        if (i == MAXS) {
            break;
        }
        b->len[i] = dump_floats(j, "mask", mask);
        for (int t = 0; t < MAXT; t++) {
            b->mask[i][t] = mask[t] != 0;
        }
        b->denom[i] = json_integer_value(json_object_get(j, "denom"));
        dump_floats(j, "logp", b->logp[i]);
        dump_floats(j, "old", b->old[i]);
        dump_floats(j, "ref", b->ref[i]);
        dump_floats(j, "roll", b->roll[i]);
        dump_floats(j, "adv", b->adv[i]);
        dump_floats(j, "ent", b->ent[i]);
        b->n++;
    }
}

static json_t *dump_array(const float *v, int64_t n)
{
    json_t *out = json_array();
    char text[40];
    for (int64_t t = 0; t < n; t++) {
        snprintf(text, sizeof text, "%.9g", (double)v[t]);
        json_array_append_new(out, json_string(text));
    }
    return out;
}

static json_t *dump_case(const json_t *j)
{
    static struct batch b;
    struct loss_opts o = dump_opts(json_object_get(j, "opts"));
    struct loss_step st;
    struct loss_sums sums;
    json_t *metrics = json_object(), *d = json_array(), *dh = json_array();

    dump_batch(json_object_get(j, "samples"), &b);
    st = step_of(&o, &b, NULL);
    st.rollouts = json_integer_value(json_object_get(j, "rollouts"));
    run(&o, &st, &b, &sums);
    for (int m = 0; m < LOSS_NMETRICS; m++) {
        double v;
        char text[40];
        if (loss_metric(&o, &st, &sums, (enum loss_metric)m, &v)) {
            snprintf(text, sizeof text, "%.17g", v);
            json_object_set_new(metrics, loss_metric_name((enum loss_metric)m), json_string(text));
        }
    }
    for (int i = 0; i < b.n; i++) {
        json_array_append_new(d, dump_array(b.dlogp[i], b.len[i]));
        json_array_append_new(dh, dump_array(b.dent[i], b.len[i]));
    }
    return json_pack("{s:o,s:o,s:o}", "metrics", metrics, "dlogp", d, "dentropy", dh);
}

static int dump_main(const char *in, const char *out)
{
    json_error_t je;
    json_t *root = json_load_file(in, 0, &je), *list = json_array(), *j;
    size_t i;
    int rc;
    if (!json_is_array(root)) {
        fprintf(stderr, "%s: %s\n", in, je.text);
        return 1;
    }
    json_array_foreach(root, i, j)
    {
        json_array_append_new(list, dump_case(j));
    }
    rc = json_dump_file(list, out, JSON_COMPACT);
    json_decref(list);
    json_decref(root);
    return rc != 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels),
        cmocka_unit_test(bounds),
        cmocka_unit_test(bounds_are_inclusive),
        cmocka_unit_test(masked_tokens_have_no_part),
        cmocka_unit_test(what_is_not_finite),
        cmocka_unit_test(mean_of_a_step),
        cmocka_unit_test(normalised_weights_average_one),
        cmocka_unit_test(denominators_stay),
        cmocka_unit_test(observing_changes_nothing),
        cmocka_unit_test(icepop),
        cmocka_unit_test(plans_are_free),
        cmocka_unit_test(names),
    };
    if (argc == 4 && strcmp(argv[1], "--dump") == 0) {
        return dump_main(argv[2], argv[3]);
    }
    rng_py_seed(&rng, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
