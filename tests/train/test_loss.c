/* The loss against golden values, against a second implementation in doubles (value), and against
 * finite differences of that one (gradient). */
#include "losskit.h"

#include <math.h>

#include "base/rng.h"
#include "base/status.h"
#include "train/loss.h"

enum { MAXT = 16, MAXS = 6 };

static struct err e;

static void kl_goldens(void **state)
{
    static const struct {
        double d, k2, k3, low;
    } g[] = {{-0.1, .005, .0051709181, .0051709181},
             {0.1, .005, .0048374180, .0048374180},
             {2, 2, 1.1353352832, 1.1353352832},
             {-2, 2, 4.3890560989, 4.3890560989},
             {-5, 12.5, 142.4131591, 10},
             {25, 312.5, 24.0, 10}};
    float d;
    (void)state;
    for (size_t i = 0; i < sizeof g / sizeof *g; i++) {
        float x = (float)g[i].d;
        near_(loss_kl(LOSS_K1, x, 0, 1, NULL), g[i].d, 1e-7, "k1");
        near_(loss_kl(LOSS_K2, x, 0, 1, NULL), g[i].k2, 1e-6, "k2");
        near_(loss_kl(LOSS_K3, x, 0, 1, NULL), g[i].k3, 1e-6, "k3");
        near_(loss_kl(LOSS_LOW_VAR_KL, x, 0, 1, NULL), g[i].low, 1e-6, "low_var_kl");
    }
    /* no gradient where a clamp is active */
    loss_kl(LOSS_LOW_VAR_KL, -5, 0, 1, &d);
    assert_true(d == 0);
    loss_kl(LOSS_LOW_VAR_KL, 25, 0, 1, &d);
    assert_true(d == 0);
    loss_kl(LOSS_LOW_VAR_KL, 0.5f, 0, 1, &d);
    near_(d, 1 - exp(-0.5), 1e-6, "derivative");
    assert_true(isfinite(loss_kl(LOSS_LOW_VAR_KL, -1000, 0, 1, NULL)));
    assert_true(loss_kl(LOSS_LOW_VAR_KL, NAN, 0, 1, NULL) == 0);
    assert_true(loss_kl(LOSS_LOW_VAR_KL, -INFINITY, 0, 1, NULL) == 10);
    /* a ratio multiplies before the clamp */
    near_(loss_kl(LOSS_LOW_VAR_KL, -2, 0, 2, NULL), 8.7781121978, 1e-6, "2 k");
    assert_true(loss_kl(LOSS_LOW_VAR_KL, -2, 0, 3, NULL) == 10);
}

static void ppo_goldens(void **state)
{
    static const struct {
        float k, a, lo, hi, c;
        double r, l;
        int clip;
    } g[] = {{-.1f, 1, .2f, .2f, 0, 1.1051709, -1.1051709, 0},
             {-.5f, 1, .2f, .2f, 0, 1.6487213, -1.2, 1},
             {-.5f, 1, .2f, .28f, 0, 1.6487213, -1.28, 1},
             {.5f, -1, .2f, .2f, 0, .6065307, .8, 1},
             {-.5f, -1, .2f, .2f, 0, 1.6487213, 1.6487213, 0},
             {-2, -1, .2f, .2f, 0, 7.3890561, 7.3890561, 0},
             {-2, -1, .2f, .2f, 3, 7.3890561, 3, 0},
             {-30, -1, .2f, .2f, 0, 4.851652e8, 4.851652e8, 0},
             {-1000, 0, .2f, .2f, 0, 4.851652e8, 0, 0},
             {NAN, 1, .2f, .2f, 0, 1, -1, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof g / sizeof *g; i++) {
        struct loss_opts o = {.eps_clip = g[i].lo, .eps_clip_high = g[i].hi, .eps_clip_c = g[i].c};
        float r, d;
        int clip;
        near_(loss_ppo_token(&o, g[i].k, g[i].a, &r, &clip, &d), g[i].l, 1e-6, "loss");
        near_(r, g[i].r, 1e-6, "ratio");
        assert_int_equal(clip, g[i].clip);
        if (clip || (g[i].c > 0) || fabsf(g[i].k) > 20 || isnan(g[i].k)) {
            assert_true(d == 0);
        } else {
            near_(d, -g[i].r * g[i].a, 1e-6, "derivative");
        }
    }
}

/* One batch, as the trainer would give it. */
struct batch {
    int n;
    int64_t len[MAXS], denom[MAXS];
    uint8_t mask[MAXS][MAXT];
    float logp[MAXS][MAXT], old[MAXS][MAXT], ref[MAXS][MAXT], roll[MAXS][MAXT], adv[MAXS][MAXT],
        ent[MAXS][MAXT], dlogp[MAXS][MAXT], dent[MAXS][MAXT];
};

static struct loss_sample view(struct batch *b, int i)
{
    return (struct loss_sample){.len = b->len[i],
                                .mask = b->mask[i],
                                .denom = b->denom[i],
                                .logp = b->logp[i],
                                .old = b->old[i],
                                .ref = b->ref[i],
                                .roll = b->roll[i],
                                .adv = b->adv[i],
                                .entropy = b->ent[i],
                                .dlogp = b->dlogp[i],
                                .dentropy = b->dent[i]};
}

static double clampd(double x, double lo, double hi)
{
    return x < lo ? lo : x > hi ? hi : x;
}

static double ref_kl(enum loss_kl type, double d, double w)
{
    double u = clampd(-d, -20, 20);
    switch (type) {
    case LOSS_K1: return w * d;
    case LOSS_K2: return w * d * d / 2;
    case LOSS_K3: return w * (exp(-d) - 1 + d);
    default: return clampd(w * (exp(u) - 1 - u), -10, 10);
    }
}

/* The objective of the specification in doubles; lp overrides the current log-probs, `fixed` is
 * what detached copies see. */
static double ref_objective(const struct loss_opts *o, const struct loss_step *st,
                            const struct batch *b, double lp[MAXS][MAXT], double ent[MAXS][MAXT])
{
    double pg = 0, en = 0, kl = 0;
    for (int i = 0; i < b->n; i++) {
        double n = 0, seq = 0, div, pg_div;
        for (int t = 0; t < b->len[i]; t++) {
            n += b->mask[i][t];
            seq += b->mask[i][t] ? b->old[i][t] - lp[i][t] : 0;
        }
        seq /= n > 1 ? n : 1;
        div = o->per_token ? 1 : b->denom[i] ? (double)b->denom[i] : n > 1 ? n : 1;
        pg_div = !o->per_token && o->divisor > 0 ? o->divisor : div;
        for (int t = 0; t < b->len[i]; t++) {
            double a = b->adv[i][t], k = o->gspo ? seq : b->old[i][t] - lp[i][t], r, l, w = 1;
            if (!b->mask[i][t]) {
                continue;
            }
            r = exp(clampd(-k, -20, 20));
            l = fmax(-r * a, -clampd(r, 1 - (double)o->eps_clip, 1 + (double)o->eps_clip_high) * a);
            if (o->eps_clip_c > 0 && a < 0) {
                l = fmin(l, -(double)o->eps_clip_c * a);
            }
            if (o->cispo) { /* the ratio is a constant */
                r = exp(clampd((double)b->logp[i][t] - b->old[i][t], -20, 20));
                l = -clampd(r, 1 - (double)o->eps_clip, 1 + (double)o->eps_clip_high) * a *
                    lp[i][t];
            }
            /* the drop is a constant: it looks at the unperturbed sequence */
            if (o->opsm) {
                double fixed = 0;
                for (int u = 0; u < b->len[i]; u++) {
                    fixed += b->mask[i][u] ? (double)b->old[i][u] - b->logp[i][u] : 0;
                }
                if (a < 0 && fixed / (n > 1 ? n : 1) > o->opsm_delta) {
                    l = 0;
                }
            }
            if (o->tis) {
                w = clampd(exp((double)b->old[i][t] - b->roll[i][t]), o->tis_clip_low, o->tis_clip);
            }
            pg += l * w / pg_div;
            en += ent[i][t] / div;
            if (o->use_kl_loss) {
                double v = o->unbiased_kl ? exp(lp[i][t] - b->old[i][t]) : 1;
                kl += ref_kl(o->kl_loss_type, lp[i][t] - b->ref[i][t], v) / div;
            }
        }
    }
    return (pg - (double)o->entropy_coef * en + (double)o->kl_loss_coef * kl) /
           (double)(o->per_token ? st->tokens : st->rollouts);
}

static void random_batch(struct batch *b, double spread)
{
    memset(b, 0, sizeof *b);
    b->n = 1 + (int)rng_py_randbelow(&rng, MAXS);
    for (int i = 0; i < b->n; i++) {
        int64_t n = 0;
        b->len[i] = rng_py_randbelow(&rng, MAXT + 1);
        for (int t = 0; t < b->len[i]; t++) {
            b->mask[i][t] = rng_py_randbelow(&rng, 4) != 0;
            b->logp[i][t] = (float)uniform(-4, -0.1);
            b->old[i][t] = b->logp[i][t] + (float)uniform(-spread, spread);
            b->ref[i][t] = b->logp[i][t] + (float)uniform(-1, 1);
            b->roll[i][t] = b->old[i][t] + (float)uniform(-1, 1);
            b->adv[i][t] = (float)uniform(-2, 2);
            b->ent[i][t] = (float)uniform(0, 3);
            n += b->mask[i][t];
        }
        b->denom[i] = rng_py_randbelow(&rng, 2) ? n + rng_py_randbelow(&rng, 5) : 0;
    }
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

static void value_and_gradient(void **state)
{
    int checked = 0;
    (void)state;
    for (int round = 0; round < 400; round++) {
        struct batch b;
        struct loss_sums sums;
        struct loss_opts o = {.eps_clip = 0.2f, .eps_clip_high = 0.28f};
        struct loss_step st = {.rollouts = 1 + rng_py_randbelow(&rng, 8)};
        double lp[MAXS][MAXT], ent[MAXS][MAXT], loss, j0;
        random_batch(&b, round % 3 ? 0.5 : 1.5);
        o.gspo = (int)rng_py_randbelow(&rng, 2);
        o.cispo = !o.gspo && rng_py_randbelow(&rng, 2);
        o.divisor = rng_py_randbelow(&rng, 3) ? 0 : 20;
        o.eps_clip_c = rng_py_randbelow(&rng, 2) ? 1.5f : 0;
        o.use_kl_loss = (int)rng_py_randbelow(&rng, 2);
        o.kl_loss_coef = (float)uniform(0, 1);
        o.kl_loss_type = (enum loss_kl)rng_py_randbelow(&rng, 4);
        o.unbiased_kl = (int)rng_py_randbelow(&rng, 2);
        o.entropy_coef = rng_py_randbelow(&rng, 2) ? 0.3f : 0;
        o.per_token = (int)rng_py_randbelow(&rng, 2);
        o.tis = (int)rng_py_randbelow(&rng, 2);
        o.tis_clip = 2;
        o.opsm = (int)rng_py_randbelow(&rng, 2);
        o.opsm_delta = 0.05f;
        for (int i = 0; i < b.n; i++) {
            st.tokens += loss_norm_tokens(b.mask[i], b.len[i]);
            for (int t = 0; t < b.len[i]; t++) {
                lp[i][t] = b.logp[i][t];
                ent[i][t] = b.ent[i][t];
            }
        }
        run(&o, &st, &b, &sums);
        j0 = ref_objective(&o, &st, &b, lp, ent);
        assert_int_equal(loss_metric(&o, &st, &sums, LOSS_LOSS, &loss), 1);
        near_(loss, j0, 2e-6, "loss");
        assert_int_equal(sums.sanitised, 0);
        for (int i = 0; i < b.n; i++) {
            for (int t = 0; t < b.len[i]; t++) {
                const double h = 1e-6;
                double up, down, left, right, x = lp[i][t];
                lp[i][t] = x + h;
                up = ref_objective(&o, &st, &b, lp, ent);
                lp[i][t] = x - h;
                down = ref_objective(&o, &st, &b, lp, ent);
                lp[i][t] = x;
                left = (j0 - down) / h;
                right = (up - j0) / h;
                if (fabs(left - right) > 1e-3) {
                    continue; /* a kink of clip or max */
                }
                near_(b.dlogp[i][t], (up - down) / (2 * h), 2e-5, "dlogp");
                ent[i][t] += h;
                near_(b.dent[i][t], (ref_objective(&o, &st, &b, lp, ent) - j0) / h, 1e-5,
                      "dentropy");
                ent[i][t] -= h;
                checked++;
            }
        }
    }
    assert_true(checked > 5000);
}

/* Any order and any split of the samples give the same bits, in sums and gradients. */
static void order_is_free(void **state)
{
    struct batch b;
    struct loss_sums all, one, two;
    struct loss_opts o = {.eps_clip = .2f, .eps_clip_high = .2f, .use_kl_loss = 1, .tis = 1};
    struct loss_step st = {.rollouts = 6};
    (void)state;
    o.kl_loss_type = LOSS_LOW_VAR_KL;
    o.tis_clip = 2;
    do {
        random_batch(&b, 0.5);
    } while (b.n < MAXS);
    run(&o, &st, &b, &all);
    loss_sums_init(&one);
    loss_sums_init(&two);
    for (int i = b.n; i-- > 0;) {
        struct loss_sample s = view(&b, i);
        assert_ok(loss_sample(&o, &st, &s, i % 2 ? &one : &two, &e), &e);
    }
    loss_sums_merge(&two, &one);
    for (int m = 0; m < LOSS_NMETRICS; m++) {
        double x = 0, y = 0;
        assert_int_equal(loss_metric(&o, &st, &all, m, &x), loss_metric(&o, &st, &two, m, &y));
        assert_true(x == y);
    }
    assert_int_equal(two.samples, all.samples);
    assert_int_equal(two.tokens, all.tokens);
}

static void gspo_golden(void **state)
{
    struct loss_opts o = {.gspo = 1, .eps_clip = .2f, .eps_clip_high = .2f};
    struct loss_step st = {.rollouts = 1};
    float logp[] = {-1, -2, -3}, old[] = {-1.2f, -1.9f, -2.5f}, adv[] = {1, 1, 1}, d[3];
    uint8_t m[] = {1, 0, 1};
    struct loss_sample s = {.len = 3, .mask = m, .logp = logp, .old = old, .adv = adv, .dlogp = d};
    struct loss_sums sums;
    double v;
    (void)state;
    loss_sums_init(&sums);
    assert_ok(loss_sample(&o, &st, &s, &sums, &e), &e);
    loss_metric(&o, &st, &sums, LOSS_PPO_KL, &v);
    near_(v, .15, 1e-6, "ppo_kl");
    loss_metric(&o, &st, &sums, LOSS_PG_LOSS, &v);
    near_(v, -.8607080, 1e-6, "pg_loss");
    /* every active token moves the one ratio by 1/n */
    near_(d[0], -.8607080 / 2, 1e-6, "d0");
    assert_true(d[1] == 0);
    near_(d[2], d[0], 0, "d2");
}

static void ess_and_metrics(void **state)
{
    struct loss_opts o = {.eps_clip = .2f, .eps_clip_high = .2f, .tis = 1, .tis_clip = 1.2f};
    struct loss_step st = {.rollouts = 1};
    float logp[] = {-1, -1, -1, -1}, old[] = {-1, -.9f, -1.2f, -.7f}, adv[] = {1, 1, 1, 1}, d[4];
    float roll[] = {-1, -1.2f, -1.1f, NAN};
    uint8_t m[] = {1, 1, 1, 0};
    struct loss_sample s = {
        .len = 4, .mask = m, .logp = logp, .old = old, .roll = roll, .adv = adv, .dlogp = d};
    struct loss_sums sums;
    double v;
    (void)state;
    loss_sums_init(&sums);
    assert_ok(loss_sample(&o, &st, &s, &sums, &e), &e);
    assert_int_equal(loss_metric(&o, &st, &sums, LOSS_ESS_RATIO, &v), 1);
    near_(v, 0.9840622, 1e-6, "ess_ratio"); /* k = [0, .1, -.2, .3] */
    loss_metric(&o, &st, &sums, LOSS_LOGPROB_ABS_DIFF, &v);
    near_(v, (0 + .3 + .1) / 3, 1e-6, "abs diff");
    loss_metric(&o, &st, &sums, LOSS_ROLLOUT_KL, &v);
    near_(v, ((exp(.3) - 1 - .3) + (exp(-.1) - 1 + .1)) / 3, 1e-6, "train_rollout_kl");
    loss_metric(&o, &st, &sums, LOSS_TIS, &v);
    near_(v, (1 + exp(.3) + exp(-.1)) / 3, 1e-6, "tis");
    loss_metric(&o, &st, &sums, LOSS_TIS_CLIPFRAC, &v);
    near_(v, 1.0 / 3, 1e-6, "tis_clipfrac");
    loss_metric(&o, &st, &sums, LOSS_TIS_ABS, &v);
    near_(v, (exp(.3) - 1 + 1 - exp(-.1)) / 3, 1e-6, "tis_abs");
    loss_metric(&o, &st, &sums, LOSS_OIS, &v);
    near_(v, (1 + exp(-.1) + exp(.2)) / 3, 1e-6, "ois");
    loss_metric(&o, &st, &sums, LOSS_PPO_KL, &v);
    near_(v, (.1 - .2) / 3, 1e-6, "ppo_kl");
    loss_metric(&o, &st, &sums, LOSS_MAX_DIFF, &v);
    near_(v, .3, 1e-6, "max diff");
    assert_int_equal(loss_metric(&o, &st, &sums, LOSS_KL_LOSS, &v), 0);
    assert_int_equal(loss_metric(&o, &st, &sums, LOSS_OPSM_CLIPFRAC, &v), 0);
    assert_string_equal(loss_metric_name(LOSS_LOGPROB_ABS_DIFF), "train_rollout_logprob_abs_diff");
    assert_string_equal(loss_metric_name(LOSS_MAX_DIFF), "forward_logp_max_diff_inexact");
}

/* Rollout denominators: x = [1,3 | 2,2,5] over one rollout of 5 tokens is 13/5, per sample 5. */
static void denominators(void **state)
{
    struct loss_opts o = {.eps_clip = .2f, .eps_clip_high = .2f};
    struct loss_step st = {.rollouts = 1, .tokens = 6};
    float lp[] = {-1, -1, -1}, a[] = {-1, -3, 0}, b[] = {-2, -2, -5}, d[3];
    uint8_t none[] = {0, 0, 0};
    struct loss_sample s = {.len = 2, .logp = lp, .adv = a, .dlogp = d};
    struct loss_sums sums;
    double v;
    (void)state;
    for (int shared = 0; shared < 3; shared++) {
        loss_sums_init(&sums);
        o.per_token = shared == 2;
        s.denom = shared == 1 ? 5 : 0;
        s.mask = NULL;
        s.len = 2;
        s.adv = a;
        assert_ok(loss_sample(&o, &st, &s, &sums, &e), &e);
        s.len = 3;
        s.adv = b;
        assert_ok(loss_sample(&o, &st, &s, &sums, &e), &e);
        near_(d[2], shared == 2 ? 5.0 / 6 : shared ? 1 : 5.0 / 3, 1e-6, "dlogp");
        s.mask = none; /* adds nothing to the sums, one to the tokens */
        assert_ok(loss_sample(&o, &st, &s, &sums, &e), &e);
        loss_metric(&o, &st, &sums, LOSS_LOSS, &v);
        near_(v, shared == 2 ? 13.0 / 6 : shared ? 13.0 / 5 : 5, 1e-6, "loss");
    }
    assert_int_equal(loss_norm_tokens(none, 3), 1);
    assert_int_equal(loss_norm_tokens(NULL, 3), 3);
    assert_int_equal(loss_norm_tokens(NULL, 0), 1);
}

/* No old policy given: ratio exactly 1, the gradient flows. */
static void skipped_old_pass(void **state)
{
    struct loss_opts o = {.eps_clip = .2f, .eps_clip_high = .2f};
    struct loss_step st = {.rollouts = 2};
    float lp[] = {-1.25f, -2}, adv[] = {.5f, -1}, d1[2], d2[2], roll[] = {-1.25f, -2};
    struct loss_sample s = {.len = 2, .logp = lp, .adv = adv, .roll = roll, .dlogp = d1};
    struct loss_sums sums;
    double v;
    (void)state;
    loss_sums_init(&sums);
    assert_ok(loss_sample(&o, &st, &s, &sums, &e), &e);
    near_(d1[0], -.5 / 4, 1e-7, "d0");
    near_(d1[1], 1.0 / 4, 1e-7, "d1");
    loss_metric(&o, &st, &sums, LOSS_PPO_KL, &v);
    assert_true(v == 0);
    loss_metric(&o, &st, &sums, LOSS_PG_CLIPFRAC, &v);
    assert_true(v == 0);
    loss_metric(&o, &st, &sums, LOSS_MAX_DIFF, &v);
    assert_true(v == 0);
    s.old = (float[]){-1.25f, -2}; /* the same as an explicit detached copy, to the bit */
    s.dlogp = d2;
    assert_ok(loss_sample(&o, &st, &s, &sums, &e), &e);
    assert_memory_equal(d1, d2, sizeof d1);
    roll[1] = NAN; /* a broken rollout log-prob must not pass as "no difference" */
    assert_ok(loss_sample(&o, &st, &s, &sums, &e), &e);
    loss_metric(&o, &st, &sums, LOSS_MAX_DIFF, &v);
    assert_true(isinf(v));
    /* with engine log-probs as the old policy only the first step can be compared */
    loss_sums_init(&sums);
    roll[1] = -2.5f;
    s.old = s.roll;
    assert_ok(loss_sample(&o, &st, &s, &sums, &e), &e);
    assert_int_equal(loss_metric(&o, &st, &sums, LOSS_MAX_DIFF, &v), 0);
    assert_int_equal(loss_metric(&o, &st, &sums, LOSS_MISMATCH_KL, &v), 0);
    s.on_policy = 1;
    assert_ok(loss_sample(&o, &st, &s, &sums, &e), &e);
    assert_int_equal(loss_metric(&o, &st, &sums, LOSS_MAX_DIFF, &v), 1);
    assert_true(v == 0.5);
    assert_int_equal(loss_metric(&o, &st, &sums, LOSS_MISMATCH_KL, &v), 1);
    near_(v, (exp(.5) - 1.5) / 2, 1e-12, "mismatch_kl");
    /* or what the trainer computed beside the old policy */
    s.on_policy = 0;
    s.train = (float[]){-1.25f, -1.5f};
    loss_sums_init(&sums);
    assert_ok(loss_sample(&o, &st, &s, &sums, &e), &e);
    assert_int_equal(loss_metric(&o, &st, &sums, LOSS_MAX_DIFF, &v), 1);
    assert_true(v == 1);
}

static void not_a_number_is_kept_out(void **state)
{
    struct loss_opts o = {.eps_clip = .2f, .eps_clip_high = .2f, .use_kl_loss = 1, .tis = 1};
    struct loss_step st = {.rollouts = 1};
    float lp[] = {NAN, -1, -1, NAN}, old[] = {-1, -INFINITY, -1, -1}, adv[] = {1, 1, NAN, NAN};
    float ref[] = {-1, -1, -1, NAN}, roll[] = {-1, -1, -1, NAN}, d[4];
    uint8_t m[] = {1, 1, 1, 0};
    struct loss_sample s = {.len = 4,
                            .mask = m,
                            .logp = lp,
                            .old = old,
                            .ref = ref,
                            .roll = roll,
                            .adv = adv,
                            .dlogp = d};
    struct loss_sums sums;
    double v;
    (void)state;
    o.tis_clip = 2;
    o.kl_loss_coef = 1;
    loss_sums_init(&sums);
    assert_ok(loss_sample(&o, &st, &s, &sums, &e), &e);
    for (int t = 0; t < 4; t++) {
        assert_true(isfinite(d[t]));
    }
    /* only the kl term of the two tokens whose log-probs are sound is left */
    assert_true(d[0] == 0 && d[3] == 0);
    assert_true(d[1] == (float)(1.0 / 3) && d[2] == d[1]);
    loss_metric(&o, &st, &sums, LOSS_LOSS, &v);
    assert_true(isfinite(v));
    assert_true(sums.sanitised >= 3);
}

static void opsm_metric(void **state)
{
    struct loss_opts o = {.eps_clip = .2f, .eps_clip_high = .2f, .opsm = 1, .opsm_delta = 1e-4f};
    struct loss_step st = {.rollouts = 1};
    float lp[] = {-2, -2, -2}, old[] = {-1.9f, -1.9f, -1.9f}, adv[] = {-1, 1, -1}, d[3];
    uint8_t m[] = {1, 1, 0};
    struct loss_sample s = {.len = 3, .mask = m, .logp = lp, .old = old, .adv = adv, .dlogp = d};
    struct loss_sums sums;
    double v;
    (void)state;
    loss_sums_init(&sums);
    assert_ok(loss_sample(&o, &st, &s, &sums, &e), &e);
    assert_true(d[0] == 0 && d[1] != 0);
    loss_metric(&o, &st, &sums, LOSS_OPSM_CLIPFRAC, &v);
    near_(v, 1, 1e-12, "opsm_clipfrac"); /* 2 drops, one of them masked, over 2 active tokens */
    loss_metric(&o, &st, &sums, LOSS_PG_LOSS, &v);
    near_(v, -exp(-.1) / 2, 1e-6, "pg_loss");
}

static void custom_correction(void **state)
{
    struct loss_opts o = {.eps_clip = .2f, .eps_clip_high = .2f};
    struct loss_step st = {.rollouts = 1};
    float lp[] = {-1, -1, -1}, adv[] = {1, 1, 1}, w[] = {2, 1, 5}, d[3];
    uint8_t m2[] = {1, 1, 0};
    struct loss_sample s = {.len = 3, .logp = lp, .adv = adv, .dlogp = d};
    struct loss_sums sums;
    double v;
    (void)state;
    s.weight = w;
    s.weight_mask = m2;
    loss_sums_init(&sums);
    assert_ok(loss_sample(&o, &st, &s, &sums, &e), &e);
    loss_metric(&o, &st, &sums, LOSS_PG_LOSS, &v);
    near_(v, -1, 1e-6, "pg_loss"); /* (2 + 1 + 0) / 3: the denominator keeps the rejected token */
    near_(d[0], -2.0 / 3, 1e-6, "d0");
    assert_true(d[2] == 0);
}

/* The larger of both squares; no gradient where the held value has the larger. */
static void values(void **state)
{
    static const struct {
        float v, u, g, loss, d;
        int clipped;
    } c[] = {{1, 1, 3, 4, -4, 0},
             {1.5f, 1, 3, 3.24f, 0, 1},
             {0.5f, 1, 3, 6.25f, -5, 1},
             {1.1f, 1, 3, 3.61f, -3.8f, 0},
             {4, 1, 1.1f, 8.41f, 5.8f, 1}};
    (void)state;
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) {
        int clipped;
        float d, l = loss_value_token(c[i].v, c[i].u, c[i].g, 0.2f, &clipped, &d);
        near_(l, c[i].loss, 1e-6, "value loss");
        near_(d, c[i].d, 1e-6, "its gradient");
        assert_int_equal(clipped, c[i].clipped);
    }
}

static void sft(void **state)
{
    struct loss_opts o = {.type = LOSS_SFT};
    struct loss_step st = {.rollouts = 2};
    float lp[] = {-1, -2, -3}, d[3];
    uint8_t m[] = {0, 1, 1};
    struct loss_sample s = {.len = 3, .mask = m, .logp = lp, .dlogp = d};
    struct loss_sums sums;
    double v;
    (void)state;
    loss_sums_init(&sums);
    assert_ok(loss_sample(&o, &st, &s, &sums, &e), &e);
    loss_metric(&o, &st, &sums, LOSS_LOSS, &v);
    near_(v, 1.25, 1e-9, "loss");
    assert_true(d[0] == 0 && d[1] == -.25f && d[2] == -.25f);
    assert_int_equal(loss_metric(&o, &st, &sums, LOSS_PG_LOSS, &v), 0);
}

static void missing_inputs(void **state)
{
    struct loss_opts o = {.eps_clip = .2f, .eps_clip_high = .2f};
    struct loss_step st = {.rollouts = 1};
    float lp[] = {-1}, d[1];
    struct loss_sample s = {.len = 1, .logp = lp, .dlogp = d};
    struct loss_sums sums;
    (void)state;
    loss_sums_init(&sums);
    assert_int_equal(loss_sample(&o, &st, &s, &sums, &e), STATUS_INPUT);
    s.adv = lp;
    o.use_kl_loss = 1;
    assert_int_equal(loss_sample(&o, &st, &s, &sums, &e), STATUS_INPUT);
    s.ref = lp;
    o.tis = 1;
    assert_int_equal(loss_sample(&o, &st, &s, &sums, &e), STATUS_INPUT);
    s.roll = lp;
    o.entropy_coef = 1;
    assert_int_equal(loss_sample(&o, &st, &s, &sums, &e), STATUS_INPUT);
    o.type = LOSS_CUSTOM;
    assert_int_equal(loss_sample(&o, &st, &s, &sums, &e), STATUS_INPUT);
    o = (struct loss_opts){.per_token = 1};
    assert_int_equal(loss_sample(&o, &st, &s, &sums, &e), STATUS_INPUT);
    st.tokens = 1;
    s.len = 0; /* an empty response is legal */
    assert_ok(loss_sample(&o, &st, &s, &sums, &e), &e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kl_goldens),
        cmocka_unit_test(ppo_goldens),
        cmocka_unit_test(value_and_gradient),
        cmocka_unit_test(order_is_free),
        cmocka_unit_test(gspo_golden),
        cmocka_unit_test(ess_and_metrics),
        cmocka_unit_test(denominators),
        cmocka_unit_test(skipped_old_pass),
        cmocka_unit_test(not_a_number_is_kept_out),
        cmocka_unit_test(opsm_metric),
        cmocka_unit_test(custom_correction),
        cmocka_unit_test(values),
        cmocka_unit_test(sft),
        cmocka_unit_test(missing_inputs),
    };
    rng_py_seed(&rng, 11);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
