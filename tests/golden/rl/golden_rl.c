/* Runs the RL mathematics on the cases of oracle.py and compares: golden_rl FILE.jsonl
 *
 * Last line: rl_cases=N failed=F, and the exit code is 0 when F is 0. A wrong number is told with
 * its case, name and place, the first few of a case.
 *
 * The tolerance. We compute in f32 (unit roundoff u = 6e-8), the oracle in f64 on the same f32
 * inputs. A result is a sum of few products of rounded factors, so its error is a small multiple of
 * u times the sum of the terms' sizes, which the oracle gives as `scale`: a log-ratio x carries an
 * error of u |x| into exp, e^-d - 1 + d one of u (1 + |d|) (1 + e^-d), a whitened value one of u
 * times the largest advantage over the spread. Allowed are 16 u times scale and 64 u times the
 * result; what f32 flushes to zero (1e-37) is zero. A wrong branch, mask, factor or sign is off by
 * 1e-3 and more: the oracle draws again whatever comes nearer than 1e-4 to a threshold. */
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "num/device_int.h"
#include "num/exact.h"
#include "train/adv.h"
#include "train/loss.h"
#include "train/opd.h"
#include "train/pack.h"

#define REL   4e-6
#define SCALE 1e-6
#define FLUSH 1e-37
#define SHOWN 4 /* wrong numbers told per case */

/* The case in work. */
static struct {
    long long id;
    const char *kind;
    int wrong;
} now;
static struct arena mem; /* emptied behind each case */
static struct device *dev;

static void wrong(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void wrong(const char *format, ...)
{
    va_list ap;
    if (now.wrong++ < SHOWN) {
        fprintf(stderr, "case %lld (%s): ", now.id, now.kind);
        va_start(ap, format);
        vfprintf(stderr, format, ap);
        va_end(ap);
        fputc('\n', stderr);
    }
}

static void near(double got, double want, double scale, const char *what, int64_t sample, int64_t t)
{
    double tol = REL * fabs(want) + SCALE * scale + FLUSH;
    int same = isnan(want) ? isnan(got)
               : isinf(want)
                   ? isinf(got) && (got > 0) == (want > 0)
                   : fabs(got - want) <= tol || (isinf(got) && fabs(want) > 3.4028234663852886e38);
    if (!same) {
        wrong("%s[%lld][%lld] is %.9g, not %.9g (allowed %.2g)", what, (long long)sample,
              (long long)t, got, want, tol);
    }
}

/* --- reading --- */

static const json_t *field(const json_t *o, const char *name)
{
    const json_t *v = json_object_get(o, name);
    return json_is_null(v) ? NULL : v;
}

static double number(const json_t *o, const char *name)
{
    const json_t *v = field(o, name);
    return json_is_string(v) ? strtod(json_string_value(v), NULL) : v ? json_number_value(v) : 0.0;
}

static int64_t whole(const json_t *o, const char *name)
{
    return (int64_t)number(o, name);
}

static const char *word(const json_t *o, const char *name)
{
    const char *s = json_string_value(field(o, name));
    return s ? s : "";
}

/* Numbers of a string; NULL when the field is null. */
static double *doubles(const json_t *o, const char *name, int64_t *n)
{
    const json_t *v = field(o, name);
    const char *p = json_string_value(v);
    double *out;
    int64_t count = 0;

    *n = 0;
    if (!p) {
        return NULL;
    }
    out = arena_alloc(&mem, (strlen(p) / 2 + 2) * sizeof *out);
    for (;;) {
        char *end;
        double x = strtod(p, &end);
        if (end == p) {
            break;
        }
        out[count++] = x;
        p = end;
    }
    *n = count;
    return out;
}

static float *floats(const json_t *o, const char *name)
{
    int64_t n;
    const double *d = doubles(o, name, &n);
    float *out = d ? arena_alloc(&mem, (size_t)(n + 1) * sizeof *out) : NULL;
    for (int64_t i = 0; i < n; i++) {
        out[i] = (float)d[i];
    }
    return out;
}

static uint8_t *mask(const json_t *o, const char *name)
{
    int64_t n;
    const double *d = doubles(o, name, &n);
    uint8_t *out = d ? arena_alloc(&mem, (size_t)(n + 1)) : NULL;
    for (int64_t i = 0; i < n; i++) {
        out[i] = d[i] != 0;
    }
    return out;
}

static int64_t *integers(const json_t *list)
{
    size_t n = json_array_size(list);
    int64_t *out = list ? arena_alloc(&mem, (n + 1) * sizeof *out) : NULL;
    for (size_t i = 0; i < n; i++) {
        out[i] = json_integer_value(json_array_get(list, i));
    }
    return out;
}

static float *room(int64_t n)
{
    return arena_alloc(&mem, (size_t)(n + 1) * sizeof(float));
}

/* Position in "a|b|c". */
static int choice(const char *choices, const char *name)
{
    size_t n = strlen(name);
    for (int i = 0;; i++) {
        const char *bar = strchr(choices, '|');
        size_t len = bar ? (size_t)(bar - choices) : strlen(choices);
        if (len == n && strncmp(choices, name, n) == 0) {
            return i;
        }
        if (!bar) {
            fprintf(stderr, "%s is no choice\n", name);
            exit(2);
        }
        choices = bar + 1;
    }
}

/* got[0..n) against the numbers of want.name, allowed by want.scale_name. */
static void compare(const float *got, int64_t n, const json_t *want, const char *name,
                    const char *scale_name, const char *what, int64_t sample)
{
    int64_t nw, ns;
    const double *w = doubles(want, name, &nw), *s = doubles(want, scale_name, &ns);

    if (nw != n || (s && ns != n)) {
        wrong("%s of sample %lld has %lld numbers, not %lld", what, (long long)sample, (long long)n,
              (long long)nw);
        return;
    }
    for (int64_t t = 0; t < n; t++) {
        near((double)got[t], w[t], s ? s[t] : fabs(w[t]), what, sample, t);
    }
}

/* --- the loss --- */

static void read_mis(const json_t *j, int observe, struct mis_opts *o)
{
    *o = (struct mis_opts){.level = (enum mis_level)choice(MIS_LEVEL_CHOICES, word(j, "level")),
                           .mode = (enum mis_mode)choice(MIS_MODE_CHOICES, word(j, "mode")),
                           .lo = (float)number(j, "lo"),
                           .hi = (float)number(j, "hi"),
                           .rs = (int)whole(j, "rs"),
                           .rs_level =
                               (enum mis_level)choice(MIS_LEVEL_CHOICES, word(j, "rs_level")),
                           .rs_lo = (float)number(j, "rs_lo"),
                           .rs_hi = (float)number(j, "rs_hi"),
                           .veto = (float)number(j, "veto"),
                           .normalize = (int)whole(j, "normalize"),
                           .observe = observe};
}

static void read_loss(const json_t *j, struct loss_opts *o)
{
    *o = (struct loss_opts){.type = LOSS_POLICY,
                            .gspo = (int)whole(j, "gspo"),
                            .cispo = (int)whole(j, "cispo"),
                            .eps_clip = (float)number(j, "eps_clip"),
                            .eps_clip_high = (float)number(j, "eps_clip_high"),
                            .eps_clip_c = (float)number(j, "eps_clip_c"),
                            .use_kl_loss = (int)whole(j, "use_kl_loss"),
                            .kl_loss_coef = (float)number(j, "kl_loss_coef"),
                            .kl_loss_type =
                                (enum loss_kl)choice(LOSS_KL_CHOICES, word(j, "kl_type")),
                            .unbiased_kl = (int)whole(j, "unbiased"),
                            .entropy_coef = (float)number(j, "entropy_coef"),
                            .entropy = (int)whole(j, "entropy"),
                            .per_token = (int)whole(j, "per_token"),
                            .divisor = number(j, "divisor"),
                            .tis = (enum loss_tis)choice("off|truncate|icepop|mis", word(j, "tis")),
                            .tis_observe = (int)whole(j, "observe"),
                            .tis_clip = (float)number(j, "tis_clip"),
                            .tis_clip_low = (float)number(j, "tis_clip_low"),
                            .opsm = (int)whole(j, "opsm"),
                            .opsm_delta = (float)number(j, "opsm_delta")};
    if (o->tis == LOSS_TIS_MIS) {
        read_mis(field(j, "mis"), o->tis_observe, &o->mis);
    }
}

static void read_sample(const json_t *j, struct loss_sample *s)
{
    *s = (struct loss_sample){.len = whole(j, "len"),
                              .mask = mask(j, "mask"),
                              .denom = whole(j, "denom"),
                              .logp = floats(j, "logp"),
                              .old = floats(j, "old"),
                              .ref = floats(j, "ref"),
                              .roll = floats(j, "roll"),
                              .train = floats(j, "train"),
                              .adv = floats(j, "adv"),
                              .entropy = floats(j, "entropy"),
                              .weight = floats(j, "weight"),
                              .weight_mask = mask(j, "weight_mask")};
    s->dlogp = room(s->len);
    s->dentropy = room(s->len);
}

static void metrics(const struct loss_opts *o, const struct loss_step *st,
                    const struct loss_sums *sums, const json_t *want)
{
    const char *name;
    json_t *pair;

    json_object_foreach((json_t *)want, name, pair)
    {
        double value, expect = json_is_array(pair) ? json_number_value(json_array_get(pair, 0))
                                                   : json_number_value(pair);
        double scale =
            json_is_array(pair) ? json_number_value(json_array_get(pair, 1)) : fabs(expect);
        int m = 0;
        while (m < LOSS_NMETRICS && strcmp(loss_metric_name((enum loss_metric)m), name) != 0) {
            m++;
        }
        if (m == LOSS_NMETRICS || !loss_metric(o, st, sums, (enum loss_metric)m, &value)) {
            wrong("there is no %s", name);
        } else {
            near(value, expect, scale, name, 0, 0);
        }
    }
}

/* Samples of a case through loss_sample: gradients and metrics. */
static void run_loss(const json_t *c, const struct loss_opts *o, struct loss_sample *s, size_t n)
{
    const json_t *list = field(c, "samples"), *step = field(c, "step");
    struct loss_step st = {.rollouts = whole(step, "rollouts"), .tokens = whole(step, "tokens")};
    struct loss_sums sums;
    struct mis_mean mean;
    struct err e = {0};

    mis_mean_init(&mean);
    for (size_t i = 0; o->tis == LOSS_TIS_MIS && i < n; i++) {
        const float *old = s[i].old ? s[i].old : s[i].logp;
        mis_mean_add(&mean, &o->mis, s[i].len, s[i].mask, s[i].train ? s[i].train : old, s[i].roll);
    }
    st.mis_mean = o->mis.normalize ? mis_mean_value(&mean) : 0.0;
    loss_sums_init(&sums);
    for (size_t i = 0; i < n; i++) {
        const json_t *j = json_array_get(list, i);
        if (loss_sample(o, &st, &s[i], &sums, &e) != STATUS_OK) {
            wrong("loss_sample: %s", e.msg);
            return;
        }
        compare(s[i].dlogp, s[i].len, j, "dlogp", "scale", "dlogp", (int64_t)i);
        if (field(j, "dentropy")) {
            compare(s[i].dentropy, s[i].len, j, "dentropy", "dentropy_scale", "dentropy",
                    (int64_t)i);
        }
    }
    metrics(o, &st, &sums, field(field(c, "want"), "metrics"));
}

static struct loss_sample *read_samples(const json_t *c, size_t *n)
{
    const json_t *list = field(c, "samples");
    struct loss_sample *s;

    *n = json_array_size(list);
    s = arena_alloc(&mem, (*n + 1) * sizeof *s);
    for (size_t i = 0; i < *n; i++) {
        read_sample(json_array_get(list, i), &s[i]);
    }
    return s;
}

static void run_policy(const json_t *c)
{
    struct loss_opts o;
    size_t n;
    struct loss_sample *s = read_samples(c, &n);

    read_loss(field(c, "loss"), &o);
    run_loss(c, &o, s, n);
}

static void run_value(const json_t *c)
{
    struct loss_opts o = {.type = LOSS_VALUE,
                          .value_clip = (float)number(c, "value_clip"),
                          .per_token = (int)whole(c, "per_token")};
    size_t n;
    struct loss_sample *s = read_samples(c, &n);
    run_loss(c, &o, s, n);
}

static void run_sft(const json_t *c)
{
    struct loss_opts o = {.type = LOSS_SFT, .per_token = (int)whole(c, "per_token")};
    size_t n;
    struct loss_sample *s = read_samples(c, &n);
    run_loss(c, &o, s, n);
}

/* --- rewards and advantages --- */

/* An error must come where the oracle has one, and nowhere else; 1 when the chain ends here. */
static int ended(int rc, const struct err *e, const char *stage, const char *want)
{
    int due = strcmp(want, stage) == 0;
    if (rc != STATUS_OK && !due) {
        wrong("%s: %s", stage, e->msg);
    } else if (rc == STATUS_OK && due) {
        wrong("%s was to be refused", stage);
    }
    return rc != STATUS_OK || due;
}

static int run_advantages(const json_t *c, const float *shaped, const char *error)
{
    const json_t *ao = field(c, "advantage"), *rows = field(c, "rows");
    size_t n = json_array_size(rows);
    struct adv_sample *a = arena_alloc(&mem, (n + 1) * sizeof *a);
    struct adv_opts o = {.estimator =
                             (enum adv_estimator)choice(ADV_CHOICES, word(ao, "estimator")),
                         .kl_coef = (float)number(ao, "kl_coef"),
                         .gamma = (float)number(ao, "gamma"),
                         .lambd = (float)number(ao, "lambd")};
    enum loss_kl type = (enum loss_kl)choice(LOSS_KL_CHOICES, word(ao, "kl_type"));
    float coef = (float)number(ao, "opd_coef");
    struct err e = {0};

    for (size_t i = 0; i < n; i++) {
        const json_t *j = json_array_get(rows, i);
        int64_t len = whole(j, "len");
        const float *own = floats(j, "own"), *ref = floats(j, "ref");
        float *kl = o.kl_coef != 0.0f ? room(len) : NULL;
        int last = i + 1 == n;
        for (int64_t t = 0; kl && t < len; t++) {
            kl[t] = loss_kl(type, own[t], ref[t], 1.0f, NULL);
        }
        a[i] = (struct adv_sample){.len = len,
                                   .mask = mask(j, "mask"),
                                   .reward = shaped[i],
                                   .kl = kl,
                                   .values = floats(j, "values"),
                                   .adv = room(len),
                                   .returns = room(len)};
        /* the oracle stops at the sample that is refused */
        if (ended(adv_fill(&o, &a[i], &e), &e, "advantages", last ? error : "")) {
            return 1;
        }
        compare(a[i].returns, len, j, "returns_want", "returns_scale", "returns", (int64_t)i);
        if (coef != 0.0f) {
            double mean;
            adv_distil(&a[i], own, floats(j, "teacher"), coef, &mean, &e);
            near(mean, number(j, "opd_want"), 1.0, "opd_reverse_kl", (int64_t)i, 0);
        }
        compare(a[i].adv, len, j, "adv_want", "adv_scale", "adv", (int64_t)i);
    }
    if (whole(ao, "whiten")) {
        if (ended(adv_whiten(a, (int64_t)n, &e), &e, "whiten", error)) {
            return 1;
        }
        for (size_t i = 0; i < n; i++) {
            compare(a[i].adv, a[i].len, json_array_get(rows, i), "white_want", "white_scale",
                    "whitened", (int64_t)i);
        }
    }
    return 0;
}

static void run_chain(const json_t *c)
{
    const json_t *r = field(c, "reward"), *want = field(c, "want"), *rows = field(c, "rows");
    const json_t *shape = field(c, "overlong");
    struct adv_reward_opts o = {.estimator =
                                    (enum adv_estimator)choice(ADV_CHOICES, word(r, "estimator")),
                                .normalize = (int)whole(r, "normalize"),
                                .std = (int)whole(r, "std"),
                                .n_samples_per_prompt = whole(r, "n_samples"),
                                .rollout_batch_size = whole(r, "batch")};
    const char *error = word(want, "error");
    int64_t n = 0, np = 0;
    const double *raw = doubles(c, "raw", &n), *punish = doubles(c, "overlong_want", &np);
    float *in = room(n), *out = room(n);
    struct err e = {0};

    for (int64_t i = 0; i < n; i++) {
        in[i] = (float)raw[i];
    }
    for (int64_t i = 0; i < np && i < (int64_t)json_array_size(rows); i++) {
        near((double)adv_overlong(whole(json_array_get(rows, (size_t)i), "len"),
                                  whole(shape, "max"), whole(shape, "buffer"),
                                  (float)number(shape, "factor")),
             punish[i], 1.0, "overlong", i, 0);
    }
    if (ended(adv_rewards(&o, n, in, integers(field(c, "group")), integers(field(c, "rollout")),
                          out, &e),
              &e, "rewards", error)) {
        return;
    }
    compare(out, n, want, "rewards", "rewards_scale", "reward", 0);
    if (!run_advantages(c, out, error)) {
        run_policy(c);
    }
}

/* --- single formulas --- */

static void run_kl(const json_t *c)
{
    const json_t *want = field(c, "want");
    float slope, v = loss_kl((enum loss_kl)choice(LOSS_KL_CHOICES, word(c, "type")),
                             (float)number(c, "new"), (float)number(c, "base"), 1.0f, &slope);
    near((double)v, number(want, "value"), number(want, "scale"), "value", 0, 0);
    near((double)slope, number(want, "slope"), number(want, "scale"), "slope", 0, 0);
}

static void read_list(const json_t *j, const int32_t **ids, const float **logps, int *n)
{
    int64_t count;
    const double *d = doubles(j, "ids", &count);
    int32_t *out = arena_alloc(&mem, (size_t)(count + 1) * sizeof *out);
    for (int64_t i = 0; i < count; i++) {
        out[i] = (int32_t)d[i];
    }
    *ids = out;
    *logps = floats(j, "logp");
    *n = (int)count;
}

static void run_topk(const json_t *c)
{
    struct opd_opts o = {(enum opd_strategy)choice(OPD_STRATEGIES, word(c, "strategy")),
                         (enum opd_weight)choice(OPD_WEIGHTS, word(c, "weight"))};
    const json_t *want = field(c, "want");
    struct opd_side s = {0}, t = {0};
    struct err e = {0};
    float delta;

    read_list(field(c, "student"), &s.ids, &s.logps, &s.n);
    read_list(field(c, "teacher"), &t.ids, &t.logps, &t.n);
    read_list(field(c, "cross_student"), &s.more_ids, &s.more_logps, &s.nmore);
    read_list(field(c, "cross_teacher"), &t.more_ids, &t.more_logps, &t.nmore);
    if (!ended(opd_delta(&o, &s, &t, &delta, &e), &e, "topk", word(want, "error"))) {
        near((double)delta, number(want, "delta"), number(want, "scale"), "delta", 0, 0);
    }
}

static void run_pack(const json_t *c)
{
    const json_t *want = field(field(c, "want"), "bins");
    int64_t n;
    const double *d = doubles(c, "lens", &n);
    int64_t *lens = arena_alloc(&mem, (size_t)(n + 1) * sizeof *lens);
    const char *what = word(c, "what");
    struct pack_bins b = {0};
    struct err e = {0};
    int rc;

    for (int64_t i = 0; i < n; i++) {
        lens[i] = (int64_t)d[i];
    }
    if (what[0] == 'k') {
        rc = pack_karmarkar_karp(lens, n, whole(c, "k"), strcmp(what, "kkeq") == 0, &b, &e);
    } else {
        rc = pack_first_fit(lens, n, whole(c, "cap"), 1, &b, &e);
        if (rc == STATUS_OK && strcmp(what, "split") == 0) {
            rc = pack_split(lens, &b, whole(c, "target"), &e);
        }
    }
    if ((rc == STATUS_OK) != (want != NULL)) {
        wrong("%s %s", what, want ? e.msg : "was to be refused");
    } else if (want && b.n != (int64_t)json_array_size(want)) {
        wrong("%s makes %lld bins, not %lld", what, (long long)b.n,
              (long long)json_array_size(want));
    }
    for (int64_t k = 0; want && !now.wrong && k < b.n; k++) {
        char text[512] = "";
        for (int64_t i = b.start[k]; i < b.start[k + 1]; i++) {
            size_t used = strlen(text);
            snprintf(text + used, sizeof text - used, "%s%lld", i == b.start[k] ? "" : " ",
                     (long long)b.items[i]);
        }
        if (strcmp(text, json_string_value(json_array_get(want, (size_t)k))) != 0) {
            wrong("%s: bin %lld is %s, not %s", what, (long long)k, text,
                  json_string_value(json_array_get(want, (size_t)k)));
        }
    }
    pack_bins_fini(&b);
}

/* One row of logits: log-prob, entropy, and the gradient of each. */
static void run_logp(const json_t *c)
{
    const json_t *want = field(c, "want");
    struct logit_spec spec = {(float)number(c, "tau"), 0.0f};
    int32_t target = (int32_t)whole(c, "target");
    float logp, max, logz, entropy;
    struct leafset leaves;
    struct tensor x, dx;
    struct err e = {0};
    int64_t n, k;
    const double *d = doubles(c, "logits", &n);

    memset(&leaves, 0, sizeof leaves);
    plan_leafset_add(&leaves, 2, (int)((n + 31) / 32), 32, 0, (int)n);
    if (device_tensor(dev, &x, DTYPE_F32, 1, (int)n, &e) != STATUS_OK ||
        device_tensor(dev, &dx, DTYPE_F32, 1, (int)n, &e) != STATUS_OK) {
        wrong("%s", e.msg);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        ((float *)x.data)[i] = (float)d[i];
    }
    dev->ops->logp(dev, &x, &spec, &target, &leaves, &logp, &max, &logz, &entropy);
    near((double)logp, number(want, "logp"), 4.0 * (1.0 + fabs((double)max)), "logp", 0, 0);
    near((double)entropy, number(want, "entropy"), 8.0, "entropy", 0, 0);
    for (int pass = 0; pass < 2; pass++) {
        float g = pass == 0, ge = pass == 1;
        const double *w = doubles(want, pass ? "dentropy" : "dlogp", &k);
        dev->ops->logp_bwd(dev, &x, &spec, &target, &max, &logz, &entropy, &g, &ge, &dx);
        for (int64_t i = 0; i < n; i++) {
            near((double)((float *)dx.data)[i], w[i], 8.0, pass ? "dentropy" : "dlogp", 0, i);
        }
    }
    device_tensor_free(&x);
    device_tensor_free(&dx);
}

static void run_case(const json_t *c)
{
    static const struct {
        const char *kind;
        void (*run)(const json_t *c);
    } kinds[] = {{"chain", run_chain}, {"loss", run_policy}, {"value", run_value},
                 {"sft", run_sft},     {"kl", run_kl},       {"topk", run_topk},
                 {"pack", run_pack},   {"logp", run_logp}};

    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(kinds[i].kind, now.kind) == 0) {
            kinds[i].run(c);
            return;
        }
    }
    wrong("is of no known kind");
}

int main(int argc, char **argv)
{
    FILE *f = argc == 2 ? fopen(argv[1], "r") : NULL;
    long long cases = 0, failed = 0;
    struct plan plan;
    char *line = NULL;
    size_t room_n = 0;

    if (!f) {
        fprintf(stderr, "golden_rl FILE.jsonl\n");
        return 2;
    }
    plan_init(&plan, 2, 1);
    if (device_open("ref", NULL, 1, &plan, &dev, NULL) != STATUS_OK) {
        return 2;
    }
    arena_init(&mem, 1 << 20);
    while (getline(&line, &room_n, f) > 0) {
        json_error_t je;
        json_t *c = json_loads(line, 0, &je);
        if (!c) {
            fprintf(stderr, "line %lld: %s\n", cases + 1, je.text);
            return 2;
        }
        now.id = whole(c, "id");
        now.kind = word(c, "kind");
        now.wrong = 0;
        run_case(c);
        cases++;
        failed += now.wrong > 0;
        json_decref(c);
        arena_reset(&mem);
    }
    arena_fini(&mem);
    free(line);
    fclose(f);
    device_close(dev);
    printf("rl_cases=%lld failed=%lld\n", cases, failed);
    return failed || !cases;
}
