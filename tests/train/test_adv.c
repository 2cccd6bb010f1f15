/* Rewards and advantages against the golden values of the reference formulas. */
#include "support.h"

#include <math.h>

#include "base/status.h"
#include "train/adv.h"

static struct err e;

static void near_all(const float *got, const float *want, int n, float tol)
{
    for (int i = 0; i < n; i++) {
        if (!(fabsf(got[i] - want[i]) <= tol)) {
            fail_msg("element %d is %.8g, not %.8g", i, got[i], want[i]);
        }
    }
}

static struct adv_reward_opts grpo(int64_t n, int64_t batch)
{
    return (struct adv_reward_opts){ADV_GRPO, 1, 1, n, batch};
}

static void group_normalisation(void **state)
{
    struct adv_reward_opts o = grpo(4, 1);
    float a[] = {1, 0, 0, 1}, b[] = {1, 1, 1, 0}, c[] = {1, 2, 3, 4}, d[] = {0, 1}, z[] = {1, 1, 1};
    float out[4];
    (void)state;
    assert_ok(adv_rewards(&o, 4, a, NULL, NULL, out, &e), &e);
    near_all(out, (float[]){.8660239f, -.8660239f, -.8660239f, .8660239f}, 4, 1e-7f);
    assert_ok(adv_rewards(&o, 4, b, NULL, NULL, out, &e), &e);
    near_all(out, (float[]){.499999f, .499999f, .499999f, -1.499997f}, 4, 2e-7f);
    assert_ok(adv_rewards(&o, 4, c, NULL, NULL, out, &e), &e);
    near_all(out, (float[]){-1.1618941f, -.3872980f, .3872980f, 1.1618941f}, 4, 2e-7f);
    assert_ok(adv_rewards(&o, 2, d, NULL, NULL, out, &e), &e);
    near_all(out, (float[]){-.7071058f, .7071058f}, 2, 1e-7f);
    assert_ok(adv_rewards(&o, 3, z, NULL, NULL, out, &e), &e); /* no spread: zero, not NaN */
    near_all(out, (float[]){0, 0, 0}, 3, 0);
    o.std = 0;
    assert_ok(adv_rewards(&o, 4, b, NULL, NULL, out, &e), &e);
    near_all(out, (float[]){.25f, .25f, .25f, -.75f}, 4, 0);
    o.std = 1;
    o.estimator = ADV_REINFORCE_PP_BASELINE; /* never divides */
    assert_ok(adv_rewards(&o, 4, b, NULL, NULL, out, &e), &e);
    near_all(out, (float[]){.25f, .25f, .25f, -.75f}, 4, 0);
    o.estimator = ADV_REINFORCE_PP;
    assert_ok(adv_rewards(&o, 4, b, NULL, NULL, out, &e), &e);
    near_all(out, b, 4, 0);
    o = grpo(4, 1);
    o.normalize = 0;
    assert_ok(adv_rewards(&o, 4, b, NULL, NULL, b, &e), &e); /* in place */
    near_all(b, (float[]){1, 1, 1, 0}, 4, 0);
}

/* Held against the mean of the others; without the spread; and cispo as grpo. */
static void field_estimators(void **state)
{
    struct adv_reward_opts o = grpo(4, 1);
    float r[] = {1, 0, 0, 4}, out[4], grpo_out[4];
    const int64_t rollout[] = {7, 8, 8, 9}, group[] = {1, 1, 1, 2};
    (void)state;
    assert_ok(adv_rewards(&o, 4, r, NULL, NULL, grpo_out, &e), &e);
    o.estimator = ADV_CISPO;
    assert_ok(adv_rewards(&o, 4, r, NULL, NULL, out, &e), &e);
    near_all(out, grpo_out, 4, 0);
    o.estimator = ADV_DR_GRPO; /* std asks for nothing here */
    assert_ok(adv_rewards(&o, 4, r, NULL, NULL, out, &e), &e);
    near_all(out, (float[]){-.25f, -1.25f, -1.25f, 2.75f}, 4, 0);
    o.estimator = ADV_RLOO;
    assert_ok(adv_rewards(&o, 4, r, NULL, NULL, out, &e), &e);
    near_all(out, (float[]){1 - 4 / 3.f, -5 / 3.f, -5 / 3.f, 4 - 1 / 3.f}, 4, 1e-6f);
    assert_ok(adv_rewards(&o, 4, r, NULL, rollout, out, &e), &e); /* rows 1 and 2 are one */
    near_all(out, (float[]){-1, -2.5f, -2.5f, 3.5f}, 4, 1e-6f);
    assert_ok(adv_rewards(&o, 4, r, group, NULL, out, &e), &e); /* alone: nothing to learn */
    near_all(out, (float[]){1, -.5f, -.5f, 0}, 4, 1e-6f);
}

static void distillation(void **state)
{
    float adv[] = {1, 1, 1, 1}, own[] = {-1, -2, -3, -4}, teacher[] = {-2, -2, -1, -4.5f};
    const uint8_t mask[] = {1, 1, 0, 1};
    struct adv_sample s = {.len = 4, .mask = mask, .adv = adv};
    double mean = 9;
    (void)state;
    assert_ok(adv_distil(&s, own, teacher, 0.5f, &mean, &e), &e);
    near_all(adv, (float[]){.5f, 1, 2, .75f}, 4, 0); /* masked tokens too */
    assert_true(mean == 0.5);                        /* of the active ones: 1, 0 and 0.5 */
    teacher[1] = NAN;
    assert_int_equal(adv_distil(&s, own, teacher, 0.5f, &mean, &e), STATUS_NUMERIC);
    s.len = 0;
    assert_ok(adv_distil(&s, own, teacher, 0.5f, &mean, &e), &e);
    assert_true(mean == 0);
}

static void overlong(void **state)
{
    (void)state;
    assert_true(adv_overlong(0, 100, 20, 1) == 0);
    assert_true(adv_overlong(80, 100, 20, 1) == 0);
    assert_true(adv_overlong(85, 100, 20, 1) == -.25f);
    assert_true(adv_overlong(85, 100, 20, 2) == -.5f);
    assert_true(adv_overlong(100, 100, 20, 1) == -1);
    assert_true(adv_overlong(130, 100, 20, 1) == -1);
    assert_true(adv_overlong(100, 100, 0, 1) == 0);
}

static void grouping_rules(void **state)
{
    struct adv_reward_opts o = grpo(2, 2);
    float r[] = {0, 1, 5, 7}, out[4];
    int64_t inter[] = {8, 3, 8, 3};
    (void)state;
    o.std = 0;
    assert_ok(adv_rewards(&o, 4, r, NULL, NULL, out, &e), &e); /* 2 x 2: blocks */
    near_all(out, (float[]){-.5f, .5f, -1, 1}, 4, 0);
    assert_ok(adv_rewards(&o, 4, r, inter, NULL, out, &e), &e); /* by value, interleaved */
    near_all(out, (float[]){-2.5f, -3, 2.5f, 3}, 4, 0);
    o.rollout_batch_size = 3; /* neither: one group */
    assert_ok(adv_rewards(&o, 4, r, NULL, NULL, out, &e), &e);
    near_all(out, (float[]){-3.25f, -2.25f, 1.75f, 3.75f}, 4, 0);
}

/* Unequal fan-out: a rollout's samples share a reward and count once. */
static void rollouts_count_once(void **state)
{
    struct adv_reward_opts o = grpo(2, 2);
    float r[] = {0, 1, 1, 1, 2, 2, 4}, out[7], bad[] = {0, 1};
    int64_t group[] = {0, 0, 0, 0, 1, 1, 1}, id[] = {10, 11, 11, 11, 12, 12, 13};
    int64_t same[] = {5, 5};
    (void)state;
    o.std = 0;
    assert_ok(adv_rewards(&o, 7, r, group, id, out, &e), &e);
    near_all(out, (float[]){-.5f, .5f, .5f, .5f, -1, -1, 1}, 7, 0);
    o.std = 1;
    assert_ok(adv_rewards(&o, 7, r, group, id, out, &e), &e);
    near_all(
        out,
        (float[]){-.7071058f, .7071058f, .7071058f, .7071058f, -.7071063f, -.7071063f, .7071063f},
        7, 1e-6f);
    assert_int_equal(adv_rewards(&o, 2, bad, NULL, same, out, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "belong to rollout 5 but have rewards 0 and 1"));
    bad[1] = NAN;
    assert_int_equal(adv_rewards(&o, 2, bad, NULL, NULL, out, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "reward of sample 1"));
}

static void estimators(void **state)
{
    struct adv_opts o = {ADV_GRPO, 0.1f, 0.9f, 0.95f};
    float kl[] = {.1f, .2f, .3f, .4f}, v[] = {.5f, -.2f, .3f, .1f}, adv[4], ret[4];
    uint8_t m1110[] = {1, 1, 1, 0}, m1011[] = {1, 0, 1, 1}, none[] = {0, 0, 0, 0};
    struct adv_sample s = {4, m1110, 2, kl, v, adv, ret};
    (void)state;
    assert_ok(adv_fill(&o, &s, &e), &e); /* kl_coef has no effect, masked tokens get it too */
    near_all(adv, (float[]){2, 2, 2, 2}, 4, 0);
    near_all(ret, (float[]){2, 2, 2, 2}, 4, 0);
    o.estimator = ADV_REINFORCE_PP;
    assert_ok(adv_fill(&o, &s, &e), &e);
    near_all(adv, (float[]){1.53854f, 1.7206f, 1.934f, -.04f}, 4, 3e-7f);
    near_all(ret, adv, 4, 0);
    o.estimator = ADV_REINFORCE_PP_BASELINE;
    assert_ok(adv_fill(&o, &s, &e), &e);
    near_all(adv, (float[]){1.99f, 1.98f, 1.97f, 1.96f}, 4, 3e-7f);
    o.estimator = ADV_REINFORCE_PP;
    s.mask = none;
    assert_int_equal(adv_fill(&o, &s, &e), STATUS_INPUT);

    o = (struct adv_opts){ADV_PPO, 0, 0.9f, 0.95f};
    s = (struct adv_sample){4, m1011, 1, NULL, v, adv, ret};
    assert_ok(adv_fill(&o, &s, &e), &e);
    near_all(adv, (float[]){.2483725f, 0, .5595f, .9f}, 4, 1e-6f);
    near_all(ret, (float[]){.7483725f, 0, .8595f, 1}, 4, 1e-6f);
    s.mask = none; /* all zero, the reward is dropped */
    assert_ok(adv_fill(&o, &s, &e), &e);
    near_all(adv, (float[]){0, 0, 0, 0}, 4, 0);
    s.values = NULL;
    assert_int_equal(adv_fill(&o, &s, &e), STATUS_INPUT);
    s.len = 0;
    assert_ok(adv_fill(&o, &s, &e), &e);
}

/* Mask 110010: the terminal reward sits on the last active token, a gap is crossed in one step. */
static void ppo_gap(void **state)
{
    struct adv_opts o = {ADV_PPO, 0, 0, 0.95f};
    float v[] = {.5f, .1f, .7f, .2f, .3f, .9f}, adv[6];
    uint8_t m[] = {1, 1, 0, 0, 1, 0};
    struct adv_sample s = {6, m, 10, NULL, v, adv, NULL};
    (void)state;
    assert_ok(adv_fill(&o, &s, &e), &e); /* gamma 0: reward minus value, nothing crosses */
    near_all(adv, (float[]){-.5f, -.1f, 0, 0, 9.7f, 0}, 6, 1e-6f);
    o.gamma = 1;
    o.lambd = 0.5f; /* the gap costs one factor, whatever its length */
    assert_ok(adv_fill(&o, &s, &e), &e);
    near_all(adv + 1, (float[]){.2f + .5f * 9.7f}, 1, 1e-6f);
}

static void whitening(void **state)
{
    float a[] = {1, 2, 3, 4}, left[] = {1, 2}, right[] = {3, 4}, one[] = {7};
    uint8_t m[] = {1, 1, 0, 1}, ml[] = {1, 1}, mr[] = {0, 1}, none[] = {0, 0, 0, 0};
    const float want[] = {-.8728716f, -.2182179f, .4364358f, 1.0910894f};
    struct adv_sample s = {.len = 4, .mask = m, .adv = a}, two[2];
    (void)state;
    assert_ok(adv_whiten(&s, 1, &e), &e);
    near_all(a, want, 4, 2e-7f);
    /* split over samples in the other order: the same bits */
    two[1] = (struct adv_sample){.len = 2, .mask = ml, .adv = left};
    two[0] = (struct adv_sample){.len = 2, .mask = mr, .adv = right};
    assert_ok(adv_whiten(two, 2, &e), &e);
    assert_memory_equal(left, a, sizeof left);
    assert_memory_equal(right, a + 2, sizeof right);
    s.mask = none;
    assert_int_equal(adv_whiten(&s, 1, &e), STATUS_INPUT);
    s = (struct adv_sample){.len = 1, .adv = one};
    assert_ok(adv_whiten(&s, 1, &e), &e); /* one token: zero, not NaN */
    assert_true(one[0] == 0);
    one[0] = INFINITY;
    assert_int_equal(adv_whiten(&s, 1, &e), STATUS_NUMERIC);
}

static void zero_std(void **state)
{
    float a[] = {1, 1, 1}, b[] = {1, 1, 0};
    (void)state;
    assert_true(adv_zero_std(a, 3));
    assert_false(adv_zero_std(b, 3));
    assert_true(adv_zero_std(b, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(group_normalisation), cmocka_unit_test(field_estimators),
        cmocka_unit_test(distillation),        cmocka_unit_test(overlong),
        cmocka_unit_test(grouping_rules),      cmocka_unit_test(rollouts_count_once),
        cmocka_unit_test(estimators),          cmocka_unit_test(ppo_gap),
        cmocka_unit_test(whitening),           cmocka_unit_test(zero_std),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
