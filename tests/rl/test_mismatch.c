/* The words about the mismatch of rollout and trainer: classes at their thresholds, what each says,
 * and when a line is written. */
#include "support.h"

#include <math.h>

#include "base/log.h"
#include "base/status.h"
#include "rl/mismatch.h"
#include "train/trainer.h"

static char lines[16][512];
static enum log_level line_levels[16];
static int nlines;

static void on_line(void *arg, enum log_level level, const char *comp, const char *text)
{
    (void)arg;
    assert_string_equal(comp, "train");
    assert_true(nlines < 16);
    line_levels[nlines] = level;
    snprintf(lines[nlines++], sizeof lines[0], "%s", text);
}

static struct mismatch_figures figures(double kl)
{
    return (struct mismatch_figures){.kl = kl, .max_diff = 0.25, .compared = 1000};
}

static void classes(void **state)
{
    static const struct {
        double kl;
        enum mismatch_class want;
    } g[] = {
        {0, MISMATCH_IS_JITTER}, /* a difference whose KL is less than can be told */
        {9.9e-5, MISMATCH_IS_JITTER}, {1e-4, MISMATCH_IS_KERNELS}, {0.013, MISMATCH_IS_KERNELS},
        {0.49, MISMATCH_IS_KERNELS},  {0.5, MISMATCH_IS_PROMPT},   {0.8, MISMATCH_IS_PROMPT},
        {1, MISMATCH_IS_PROMPT},      {1.01, MISMATCH_IS_WRONG},   {NAN, MISMATCH_IS_WRONG}};
    struct mismatch_figures f;
    (void)state;
    for (size_t i = 0; i < sizeof g / sizeof *g; i++) {
        f = figures(g[i].kl);
        if (mismatch_classify(&f) != g[i].want) {
            fail_msg("kl %g is class %d", g[i].kl, mismatch_classify(&f));
        }
    }
    f = figures(0);
    f.max_diff = 0;
    assert_int_equal(mismatch_classify(&f), MISMATCH_IS_EXACT);
    f.max_diff = INFINITY; /* a log-prob that is no number has no KL */
    assert_int_equal(mismatch_classify(&f), MISMATCH_IS_WRONG);
    f = (struct mismatch_figures){0};
    assert_int_equal(mismatch_classify(&f), MISMATCH_UNKNOWN);
    f.exact_tokens = 1;
    assert_int_equal(mismatch_classify(&f), MISMATCH_IS_EXACT);
}

static void says(struct mismatch_figures f, const char *const *parts)
{
    char text[512];
    mismatch_words(&f, text, sizeof text);
    assert_true(strlen(text) < sizeof text - 1); /* whole */
    for (; *parts; parts++) {
        if (!strstr(text, *parts)) {
            fail_msg("\"%s\" is not in \"%s\"", *parts, text);
        }
    }
}

static void words(void **state)
{
    struct mismatch_figures f = figures(2e-5);
    char text[512];
    (void)state;
    says(f, (const char *const[]){"kl 2e-05 per token", "0.25", "1000 tokens", "jitter", NULL});
    f = figures(3e-3);
    says(f, (const char *const[]){"other kernels", "--use-tis", "miles serve", NULL});
    f.corrected = 1;
    says(f, (const char *const[]){"which the correction weighs", NULL});
    f = figures(3e-3);
    f.engine_is_old = 1;
    says(f, (const char *const[]){"--use-rollout-logprobs", NULL});
    f.older = 1234567890123;
    f.current = 1;
    says(f, (const char *const[]){"1234567890123 samples are of older weights", NULL});
    f.current = 0;
    f.engine_is_old = 0;
    says(f, (const char *const[]){"all samples are of older weights", "--use-tis", NULL});
    mismatch_words(&f, text, sizeof text);
    assert_null(strstr(text, "kernels"));
    says(figures(0.8), (const char *const[]){"chat template", NULL});
    says(figures(5), (const char *const[]){"other weights", "tokenizer", NULL});
    f = figures(0);
    f.max_diff = INFINITY;
    says(f, (const char *const[]){"no numbers", "other weights", NULL});
    f = (struct mismatch_figures){.exact_tokens = 77};
    says(f, (const char *const[]){"bit for bit on 77 tokens", NULL});
    f.exact_tokens = 0;
    mismatch_words(&f, text, sizeof text);
    assert_string_equal(text, "");
}

/* A report of one sample whose two tokens differ by x. */
static void report(struct trainer_report *r, const struct loss_opts *o, float x)
{
    float lp[] = {-1, -1}, roll[] = {-1 - x, -1 - x}, adv[] = {1, 1}, d[2];
    struct loss_sample s = {.len = 2, .logp = lp, .old = lp, .roll = roll, .adv = adv, .dlogp = d};
    struct err e;
    memset(r, 0, sizeof *r);
    loss_sums_init(&r->sums);
    r->step.rollouts = 1;
    assert_ok(loss_sample(o, &r->step, &s, &r->sums, &e), &e);
}

static void speaks_when_it_changes(void **state)
{
    struct loss_opts o = {.eps_clip = .2f, .eps_clip_high = .2f};
    float roll[] = {-1}, old[] = {-1};
    struct train_sample s[2] = {{.roll = roll, .old = old, .on_policy = 1},
                                {.roll = roll, .old = old}};
    struct mismatch m = {0};
    struct trainer_report r;
    (void)state;
    nlines = 0;
    assert_int_equal(log_add_sink(on_line, NULL), 0);
    report(&r, &o, 0.1f); /* kl 5e-3 */
    mismatch_step(&m, &o, &r, s, 2);
    assert_int_equal(nlines, 1);
    assert_int_equal(line_levels[0], LOG_WARN);
    assert_non_null(strstr(lines[0], "kl 0.00517 per token"));
    assert_non_null(strstr(lines[0], "1 samples are of older weights, which adds to it"));
    assert_non_null(strstr(lines[0], "other kernels"));
    report(&r, &o, 0.2f);
    mismatch_step(&m, &o, &r, s, 2); /* the same class: silent */
    assert_int_equal(nlines, 1);
    report(&r, &o, 0.001f);
    mismatch_step(&m, &o, &r, s, 1);
    assert_int_equal(nlines, 2);
    assert_int_equal(line_levels[1], LOG_INFO);
    assert_non_null(strstr(lines[1], "jitter"));
    memset(&r, 0, sizeof r); /* nothing compared: silent */
    mismatch_step(&m, &o, &r, s, 1);
    r.exact_tokens = 5;
    mismatch_step(&m, &o, &r, s, 1);
    assert_int_equal(nlines, 3);
    o.tis = LOSS_TIS_TRUNCATE;
    o.tis_clip = 2;
    report(&r, &o, 0.1f);
    mismatch_step(&m, &o, &r, s, 1);
    assert_int_equal(nlines, 4);
    assert_int_equal(line_levels[3], LOG_INFO); /* corrected: no reason to worry */
    report(&r, &o, 3.0f);
    mismatch_step(&m, &o, &r, s, 1); /* enough said */
    assert_int_equal(nlines, MISMATCH_LINES);
    log_remove_sink(on_line, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classes),
        cmocka_unit_test(words),
        cmocka_unit_test(speaks_when_it_changes),
    };
    log_set_level(LOG_INFO);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
