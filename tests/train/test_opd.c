/* Top-k distillation: the sets of each strategy and their weights, by hand. */
#include "support.h"

#include <math.h>

#include "base/status.h"
#include "train/opd.h"

static struct err e;

/* Student: tokens 1, 2 with .6, .4; teacher: 2, 3 with .7, .3; of the others' tokens .1 and .2. */
static const int32_t s_ids[] = {1, 2}, t_ids[] = {2, 3}, s_more[] = {3}, t_more[] = {1};
static float s_lp[2], t_lp[2], s_more_lp[1], t_more_lp[1];

static int delta(enum opd_strategy strategy, enum opd_weight weight, float *out)
{
    struct opd_opts o = {strategy, weight};
    struct opd_side s = {s_ids, s_lp, 2, s_more, s_more_lp, 1};
    struct opd_side t = {t_ids, t_lp, 2, t_more, t_more_lp, 1};

    s_lp[0] = logf(.6f);
    s_lp[1] = logf(.4f);
    t_lp[0] = logf(.7f);
    t_lp[1] = logf(.3f);
    s_more_lp[0] = logf(.1f);
    t_more_lp[0] = logf(.2f);
    return opd_delta(&o, &s, &t, out, &e);
}

static void is(enum opd_strategy strategy, enum opd_weight weight, double want)
{
    float got;
    assert_ok(delta(strategy, weight, &got), &e);
    if (fabs((double)got - want) > 1e-6) {
        fail_msg("strategy %d, weight %d: %.9g, not %.9g", strategy, weight, (double)got, want);
    }
}

static void sets_and_weights(void **state)
{
    double a = log(.6 / .2), b = log(.4 / .7), c = log(.1 / .3); /* of tokens 1, 2, 3 */
    (void)state;
    is(OPD_ONLY_STUDENT, OPD_STUDENT_P, .6 * a + .4 * b);
    is(OPD_ONLY_STUDENT, OPD_TEACHER_P, (.2 * a + .7 * b) / .9);
    is(OPD_ONLY_STUDENT, OPD_NONE, (a + b) / 2);
    is(OPD_ONLY_TEACHER, OPD_TEACHER_P, .7 * b + .3 * c);
    is(OPD_ONLY_TEACHER, OPD_STUDENT_P, (.4 * b + .1 * c) / .5);
    is(OPD_INTERSECTION, OPD_STUDENT_P, b);
    is(OPD_UNION, OPD_STUDENT_P, (.6 * a + .4 * b + .1 * c) / 1.1);
    is(OPD_UNION, OPD_NONE, (a + b + c) / 3);
    is(OPD_XOR, OPD_STUDENT_P, .6 * a + .1 * c); /* probabilities as they are */
    is(OPD_XOR, OPD_TEACHER_P, .2 * a + .3 * c);
    is(OPD_XOR, OPD_NONE, a + c);
}

static void odd_ones(void **state)
{
    struct opd_opts o = {OPD_INTERSECTION, OPD_STUDENT_P};
    struct opd_side s = {s_ids, s_lp, 1, NULL, NULL, 0}, t = {t_ids, t_lp, 2, NULL, NULL, 0};
    float out = 9;
    (void)state;
    assert_ok(opd_delta(&o, &s, &t, &out, &e), &e);
    assert_true(out == 0); /* nothing in common */
    o.strategy = OPD_ONLY_STUDENT;
    assert_int_equal(opd_delta(&o, &s, &t, &out, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "token 1 has no log-prob of the teacher"));
    o.strategy = OPD_ONLY_TEACHER;
    assert_int_equal(opd_delta(&o, &s, &t, &out, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "of the student"));
    t_lp[0] = INFINITY;
    s.n = 2;
    o.strategy = OPD_INTERSECTION;
    assert_int_equal(opd_delta(&o, &s, &t, &out, &e), STATUS_NUMERIC);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sets_and_weights),
                                       cmocka_unit_test(odd_ones)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
