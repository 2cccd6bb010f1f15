/* The user's losses, corrections and reducers against the built-in formulas. */
#include "support.h"

#include <math.h>

#include "base/conf.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "rl/extend.h"
#include "rl/port.h"
#include "rl/sample.h"
#include "rl/train_opts.h"
#include "train/trainer.h"

#define PLUGIN_SO TEST_BUILD_DIR "/plugin_loss.so"
#define HOOKS_SO  TEST_BUILD_DIR "/plugin_hooks.so"

enum { N = 4, MAX = 9 };
static const int lengths[N] = {5, 0, 9, 3};

struct fixture {
    struct conf *conf;
    struct train_opts o;
    struct extend *x;
    struct train_sample t[N];
    int32_t tokens[N][MAX + 2];
    uint8_t mask[N][MAX];
    float logp[N][MAX], old[N][MAX], roll[N][MAX], adv[N][MAX], entropy[N][MAX];
    struct arena mem;
    struct trainer_port actor;
    json_t *row;
    int scored;
};

static uint32_t seed = 7;

static float draw(float lo, float hi)
{
    seed = seed * 1664525u + 1013904223u;
    return lo + (hi - lo) * (float)(seed >> 8) / 16777216.0f;
}

static int fake_score(void *self, struct train_sample *s, int n, struct err *e)
{
    struct fixture *f = self;
    (void)e;
    assert_int_equal(n, N);
    f->scored++;
    for (int i = 0; i < n; i++) {
        memcpy(s[i].logp_out, f->logp[i], sizeof(float) * (size_t)lengths[i]);
        if (s[i].entropy_out) {
            memcpy(s[i].entropy_out, f->entropy[i], sizeof(float) * (size_t)lengths[i]);
        }
    }
    return STATUS_OK;
}

/* Options as a user gives them, and N samples; the last two share a rollout. */
static void fixture_open(struct fixture *f, int argc, char **argv)
{
    static char *base[] = {"--rollout-max-response-len",
                           "9",
                           "--rollout-batch-size",
                           "2",
                           "--n-samples-per-prompt",
                           "2",
                           "--num-rollout",
                           "1",
                           "--hf-checkpoint",
                           "m",
                           "--prompt-data",
                           "p",
                           "--rm-type",
                           "f1"};
    char *all[64];
    int n = (int)(sizeof base / sizeof *base);
    struct err e = {0};

    memset(f, 0, sizeof *f);
    memcpy(all, base, sizeof base);
    for (int i = 0; i < argc; i++) {
        all[n + i] = argv[i];
    }
    f->conf = conf_new();
    conf_add(f->conf, train_opts_table, &f->o);
    if (conf_parse(f->conf, n + argc, all, &e) != 0 || train_opts_validate(&f->o, &e) != 0 ||
        extend_open(&(struct extend_opts){.o = &f->o}, &f->x, &e) != 0) {
        fail_msg("%s", e.msg);
    }
    for (int i = 0; i < N; i++) {
        struct train_sample *t = &f->t[i];
        t->tokens = f->tokens[i];
        t->prompt = 2;
        t->response = lengths[i];
        t->mask = i == 3 ? NULL : f->mask[i];
        t->rollout = i < 3 ? i : 2;
        t->denom = i >= 2 ? 8 : 0;
        for (int j = 0; j < lengths[i]; j++) {
            f->mask[i][j] = draw(0, 1) > 0.3f;
            f->old[i][j] = draw(-3, 0);
            f->logp[i][j] = f->old[i][j] + draw(-0.5f, 0.5f);
            f->roll[i][j] = f->old[i][j] + draw(-1, 1);
            f->adv[i][j] = draw(-2, 2);
            f->entropy[i][j] = draw(0, 2);
        }
        t->old = f->old[i];
        t->roll = f->roll[i];
        t->adv = f->adv[i];
    }
    arena_init(&f->mem, 1 << 16);
    f->actor = (struct trainer_port){.score = fake_score, .self = f};
    f->row = json_object();
}

static void fixture_close(struct fixture *f)
{
    json_decref(f->row);
    arena_fini(&f->mem);
    extend_close(f->x);
    conf_free(f->conf);
}

/* Gradients of all samples under these options, and the sums. */
static void gradients(struct fixture *f, const struct loss_opts *o, float out[N][MAX],
                      struct loss_sums *sums, struct loss_step *st)
{
    struct err e = {0};
    loss_sums_init(sums);
    trainer_step_of(f->t, N, st);
    for (int i = 0; i < N; i++) {
        float dent[MAX];
        struct loss_sample s = {.len = lengths[i],
                                .mask = f->t[i].mask,
                                .denom = f->t[i].denom,
                                .logp = f->logp[i],
                                .old = f->old[i],
                                .roll = f->roll[i],
                                .adv = f->adv[i],
                                .entropy = f->entropy[i],
                                .weight = f->t[i].weight,
                                .weight_mask = f->t[i].keep,
                                .coef = f->t[i].coef,
                                .given_dlogp = f->t[i].given_dlogp,
                                .given_dentropy = f->t[i].given_dentropy,
                                .dlogp = out[i],
                                .dentropy = dent};
        assert_int_equal(loss_sample(o, st, &s, sums, &e), 0);
    }
}

static void near(float a[N][MAX], float b[N][MAX], double tol)
{
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < lengths[i]; j++) {
            if (fabs((double)a[i][j] - (double)b[i][j]) > tol * (1e-3 + fabs((double)b[i][j]))) {
                fail_msg("sample %d token %d: %g and %g", i, j, (double)a[i][j], (double)b[i][j]);
            }
        }
    }
}

static double metric(const struct fixture *f, const char *name)
{
    json_t *v = json_object_get(f->row, name);
    assert_non_null(v);
    return json_number_value(v);
}

/* A loss in C that is the built-in one: the same gradients and the same value. */
static void custom_loss(void **state)
{
    static char *args[] = {"--loss-type", "custom_loss", "--custom-loss-function-path",
                           PLUGIN_SO ":ppo", "--calculate-per-token-loss"};
    (void)state;
    for (int per_token = 0; per_token < 2; per_token++) {
        struct fixture f;
        struct loss_opts custom, policy;
        struct loss_sums sums;
        struct loss_step st;
        struct err e = {0};
        float a[N][MAX] = {{0}}, b[N][MAX] = {{0}};
        double want;

        fixture_open(&f, 4 + per_token, args);
        train_opts_loss(&f.o, &custom);
        policy = custom;
        policy.type = LOSS_POLICY;
        assert_int_equal(extend_loss(f.x, &f.actor, f.t, N, &f.mem, f.row, &e), 0);
        assert_int_equal(f.scored, 1);
        gradients(&f, &custom, a, &sums, &st);
        gradients(&f, &policy, b, &sums, &st);
        near(a, b, 1e-5);
        assert_int_equal(loss_metric(&policy, &st, &sums, LOSS_PG_LOSS, &want), 1);
        assert_true(fabs(metric(&f, "train/loss") - want) < 1e-6);
        assert_true(fabs(metric(&f, "train/pg_loss") - want) < 1e-6);
        fixture_close(&f);
    }
}

static void correction(void **state)
{
    static char *args[] = {"--use-tis", "--custom-tis-function-path", PLUGIN_SO ":soft_tis"};
    struct fixture f;
    struct loss_opts o, tis;
    struct loss_sums sums;
    struct loss_step st;
    struct err e = {0};
    float a[N][MAX] = {{0}}, b[N][MAX] = {{0}};

    (void)state;
    fixture_open(&f, 3, args);
    train_opts_loss(&f.o, &o);
    assert_int_equal(o.tis, LOSS_TIS_OFF);
    assert_int_equal(extend_loss(f.x, &f.actor, f.t, N, &f.mem, f.row, &e), 0);
    gradients(&f, &o, a, &sums, &st);
    tis = o;
    tis.tis = LOSS_TIS_TRUNCATE;
    tis.tis_clip = 2.0f;
    tis.tis_clip_low = 0.5f;
    for (int i = 0; i < N; i++) {
        f.t[i].weight = NULL;
        f.t[i].keep = NULL;
    }
    gradients(&f, &tis, b, &sums, &st);
    near(a, b, 1e-5);
    assert_true(metric(&f, "train/soft_tis") > 0.5 && metric(&f, "train/soft_tis") < 2.0);
    fixture_close(&f);
}

static void reducer(void **state)
{
    static char *args[] = {"--custom-pg-loss-reducer-function-path", PLUGIN_SO ":over_longest"};
    struct fixture f;
    struct loss_opts o, by_length;
    struct loss_sums sa, sb;
    struct loss_step st;
    struct err e = {0};
    float a[N][MAX] = {{0}}, b[N][MAX] = {{0}};
    double va, vb;

    (void)state;
    fixture_open(&f, 2, args);
    train_opts_loss(&f.o, &o);
    assert_int_equal(extend_loss(f.x, &f.actor, f.t, N, &f.mem, f.row, &e), 0);
    assert_int_equal(f.scored, 0); /* it needs no log-probs */
    gradients(&f, &o, a, &sa, &st);
    by_length = o;
    by_length.divisor = 9;
    for (int i = 0; i < N; i++) {
        f.t[i].coef = NULL;
    }
    gradients(&f, &by_length, b, &sb, &st);
    near(a, b, 1e-5);
    assert_int_equal(loss_metric(&o, &st, &sa, LOSS_PG_LOSS, &va), 1);
    assert_int_equal(loss_metric(&by_length, &st, &sb, LOSS_PG_LOSS, &vb), 1);
    assert_true(fabs(va - vb) < 1e-6);
    fixture_close(&f);
}

static void refusals(void **state)
{
    static const struct {
        char *args[8];
        const char *says;
    } t[] = {
        {{"--loss-type", "custom_loss"}, "needs --custom-loss-function-path"},
        {{"--custom-loss-function-path", PLUGIN_SO ":ppo"}, "no effect without --loss-type"},
        {{"--loss-type", "custom_loss", "--custom-loss-function-path", PLUGIN_SO ":ppo",
          "--use-tis"},
         "takes the place of the policy loss"},
        {{"--custom-tis-function-path", PLUGIN_SO ":soft_tis"}, "no effect without --use-tis"},
        {{"--custom-pg-loss-reducer-function-path", PLUGIN_SO ":ppo"}, "has no function `reduce`"},
        {{"--custom-megatron-init-path", "http://"}, NULL},
        {{"--custom-megatron-before-train-step-hook-path", "http://h/"}, "over the network"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct train_opts o;
        struct conf *c = conf_new();
        struct extend *x = NULL;
        struct err e = {0};
        char *all[32] = {"--hf-checkpoint",
                         "m",
                         "--prompt-data",
                         "p",
                         "--rm-type",
                         "f1",
                         "--rollout-max-response-len",
                         "9",
                         "--rollout-batch-size",
                         "2",
                         "--n-samples-per-prompt",
                         "2",
                         "--num-rollout",
                         "1"};
        int n = 14, rc;
        for (int k = 0; t[i].args[k]; k++) {
            all[n++] = t[i].args[k];
        }
        conf_add(c, train_opts_table, &o);
        rc = conf_parse(c, n, all, &e);
        rc = rc == 0 ? train_opts_validate(&o, &e) : rc;
        rc = rc == 0 ? extend_open(&(struct extend_opts){.o = &o}, &x, &e) : rc;
        if (t[i].says && (rc == 0 || !strstr(e.msg, t[i].says))) {
            fail_msg("case %zu: %d %s", i, rc, e.msg);
        }
        extend_close(x);
        conf_free(c);
    }
}

/* Without functions nothing is called and nothing changes. */
static void nothing(void **state)
{
    struct fixture f;
    struct extend_converted c;
    struct err e = {0};
    double raw[N], shaped[N];
    int flag;

    (void)state;
    fixture_open(&f, 0, NULL);
    assert_int_equal(extend_loss(f.x, &f.actor, f.t, N, &f.mem, f.row, &e), 0);
    assert_int_equal(extend_loss(NULL, &f.actor, f.t, N, &f.mem, f.row, &e), 0);
    assert_int_equal(extend_init(f.x, &e), 0);
    assert_int_equal(extend_saved(NULL, 1, "a", NULL, &e), 0);
    assert_int_equal(extend_before_scores(f.x, "", &flag, &e), 0);
    assert_int_equal(extend_shape(f.x, NULL, 0, raw, shaped, &e), STATUS_END);
    assert_int_equal(extend_convert(f.x, NULL, 0, &c, &e), 0);
    assert_null(c.s);
    assert_int_equal(f.scored, 0);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(custom_loss), cmocka_unit_test(correction),
                                       cmocka_unit_test(reducer), cmocka_unit_test(refusals),
                                       cmocka_unit_test(nothing)};
    log_set_level(LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
