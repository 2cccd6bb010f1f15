/* The critic on small random models: a value head instead of the output layer.
 *   - values, weights and moments have the same bits for every packing, instruction set and device;
 *   - the gradient is the derivative of the value loss, by finite differences in an f32 plan;
 *   - the head is drawn from the seed and learns what positions are worth. */
#include "model/tinymodel.h"

#include <math.h>

#include "train/trainer.h"

enum { N = 5, LEN = 330 };

static const int prompts[N] = {5, 63, 1, 200, 17};
static const int responses[N] = {9, 2, 90, 70, 0};
static const struct tinymodel_spec spec = {"qwen3", 1, 2, 64, 2, 1, 32, 96, 77, 640, 0};
static const char *dir;
static struct err e;

struct batch {
    struct train_sample s[N];
    int32_t tokens[N][LEN];
    uint8_t mask[N][LEN];
    float old[N][LEN], returns[N][LEN], value[N][LEN];
};

static void fill(struct batch *b, uint64_t seed)
{
    memset(b, 0, sizeof *b);
    for (int i = 0; i < N; i++) {
        for (int t = 0; t < LEN; t++) {
            b->tokens[i][t] = tinymodel_below(&seed, spec.vocab);
            b->returns[i][t] = tinymodel_value(&seed) * 4.0f;
            b->mask[i][t] = (uint8_t)(tinymodel_below(&seed, 4) != 0);
        }
        b->s[i] = (struct train_sample){.tokens = b->tokens[i],
                                        .prompt = prompts[i],
                                        .response = responses[i],
                                        .mask = b->mask[i],
                                        .rollout = i,
                                        .old = b->old[i],
                                        .adv = b->returns[i],
                                        .logp_out = b->value[i]};
    }
}

/* Opens the model as a critic. */
static void critic_open(struct tinymodel *m, const char *device, const char *isa, int threads,
                        int f32, uint64_t seed)
{
    struct plan plan;
    assert_ok(wfile_open(dir, &m->file, &e), &e);
    plan_init(&plan, 2, f32);
    assert_ok(device_open(device, isa, threads, &plan, &m->dev, &e), &e);
    assert_ok(weights_open_critic(m->file, m->dev, WEIGHTS_TRAIN, 0, seed, &m->w, &e), &e);
}

static struct trainer_opts opts(int max_tokens)
{
    struct trainer_opts o;
    memset(&o, 0, sizeof o);
    o.max_tokens = max_tokens;
    o.max_len = LEN;
    o.temperature = 0.7f; /* of no effect on values */
    o.loss.type = LOSS_VALUE;
    o.loss.value_clip = 0.2f;
    return o;
}

static float *masters(struct tinymodel *m, struct trainer *t, enum optim_part part)
{
    float *x = mem_alloc(4 * (size_t)weights_count(m->w)), *p = x;
    for (int i = 0; i < m->w->nparams; i++) {
        const struct param *q = &m->w->params[i];
        for (int64_t at = 0; at < q->rows; at += OPTIM_ROWS) {
            int64_t n = q->rows - at < OPTIM_ROWS ? q->rows - at : OPTIM_ROWS;
            assert_ok(optim_read(trainer_optim(t), part, i, at, n, p, &e), &e);
            p += n * q->cols;
        }
    }
    return x;
}

static void same_bits(void **state)
{
    static const struct {
        const char *device, *isa;
        int threads, max_tokens;
    } ways[] = {{"cpu", "scalar", 1, 4096},
                {"cpu", "auto", 2, 4096},
                {"cpu", "auto", 1, 100},
                {"cpu", "avx2", 2, 4096},
                {"ref", "auto", 1, 4096}};
    static struct batch b, first;
    float *want = NULL;
    size_t bytes = 0;
    (void)state;
    for (size_t k = 0; k < sizeof ways / sizeof ways[0]; k++) {
        struct trainer_opts o = opts(ways[k].max_tokens);
        struct optim_hyper h = {1e-3, 0.9, 0.98, 1e-8, 0.1, 1.0};
        struct trainer_report r;
        struct tinymodel m;
        struct trainer *t;
        float *got;
        if (!device_has_isa(strcmp(ways[k].isa, "auto") == 0 ? "scalar" : ways[k].isa)) {
            continue;
        }
        critic_open(&m, ways[k].device, ways[k].isa, ways[k].threads, 0, 5);
        assert_ok(trainer_open(m.w, &o, &t, &e), &e);
        fill(&b, 3);
        for (int step = 0; step < 2; step++) {
            assert_ok(trainer_score(t, b.s, N, &e), &e);
            memcpy(b.old, b.value, sizeof b.old);
            assert_ok(trainer_step(t, b.s, N, &h, &r, &e), &e);
            assert_memory_equal(b.old, b.value, sizeof b.old); /* the pass and the scoring */
        }
        assert_int_equal(r.sums.sanitised, 0);
        got = masters(&m, t, OPTIM_MASTER);
        bytes = 4 * (size_t)weights_count(m.w);
        if (!want) {
            want = got;
            first = b;
        } else {
            assert_memory_equal(got, want, bytes);
            assert_memory_equal(b.value, first.value, sizeof b.value);
            mem_free(got);
        }
        trainer_close(t);
        tinymodel_close(&m);
    }
    mem_free(want);
}

/* The loss of the values as they are, in doubles. */
static double objective(struct trainer *t, struct batch *b, const struct loss_opts *o)
{
    double sum = 0;
    assert_ok(trainer_score(t, b->s, N, &e), &e);
    for (int i = 0; i < N; i++) {
        double part = 0, n = 0;
        for (int j = 0; j < b->s[i].response; j++) {
            if (b->mask[i][j]) {
                double v = b->value[i][j], u = b->old[i][j], g = b->returns[i][j];
                double near = u + fmax(-o->value_clip, fmin(o->value_clip, v - u));
                part += fmax((v - g) * (v - g), (near - g) * (near - g));
                n++;
            }
        }
        sum += part / fmax(n, 1) / N;
    }
    return sum;
}

static void derivative(void **state)
{
    static struct batch b;
    struct trainer_opts o = opts(4096);
    struct optim_hyper h = {0.0, 0.0, 0.5, 1e-8, 0.0, 0.0}; /* no move; exp_avg is the gradient */
    struct trainer_report r;
    struct tinymodel m;
    struct trainer *t;
    double norm = 0, loss = 0, at[2], step;
    float *x, *g;
    (void)state;
    o.loss.value_clip = 0.4f;
    critic_open(&m, "ref", "auto", 2, 1, 5);
    assert_ok(trainer_open(m.w, &o, &t, &e), &e);
    fill(&b, 11);
    assert_ok(trainer_score(t, b.s, N, &e), &e);
    for (int i = 0; i < N; i++) {
        b.s[i].response = b.s[i].response > 20 ? 20 : b.s[i].response; /* the device is slow */
        b.s[i].prompt = b.s[i].prompt > 20 ? 20 : b.s[i].prompt;
    }
    assert_ok(trainer_score(t, b.s, N, &e), &e);
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < LEN; j++) { /* some beyond the clip, none at it */
            b.old[i][j] = b.value[i][j] + 0.15f * (float)((j * 7 + i) % 7 - 3);
        }
    }
    x = masters(&m, t, OPTIM_MASTER);
    assert_ok(trainer_step(t, b.s, N, &h, &r, &e), &e);
    g = masters(&m, t, OPTIM_M);
    for (int64_t i = 0; i < weights_count(m.w); i++) {
        norm += (double)g[i] * g[i];
    }
    norm = sqrt(norm);
    assert_true(norm > 1e-2);
    assert_true(loss_metric(&o.loss, &r.step, &r.sums, LOSS_VALUE_LOSS, &loss));
    assert_true(fabs(loss - objective(t, &b, &o.loss)) < 1e-4 * (1 + loss));
    step = 2e-3 / norm;
    for (int side = 0; side < 2; side++) {
        float *y = mem_alloc(4 * (size_t)weights_count(m.w)), *p = y;
        for (int64_t i = 0; i < weights_count(m.w); i++) {
            y[i] = (float)((double)x[i] + (side ? -step : step) * g[i] / norm);
        }
        for (int i = 0; i < m.w->nparams; i++) {
            assert_ok(optim_write(trainer_optim(t), OPTIM_MASTER, i, p, &e), &e);
            p += (int64_t)m.w->params[i].rows * m.w->params[i].cols;
        }
        at[side] = objective(t, &b, &o.loss);
        mem_free(y);
    }
    if (fabs((at[0] - at[1]) / (2 * step) - norm) > 0.01 * norm) {
        fail_msg("slope %.6g, the gradient's norm is %.6g", (at[0] - at[1]) / (2 * step), norm);
    }
    mem_free(x);
    mem_free(g);
    trainer_close(t);
    tinymodel_close(&m);
}

/* Worth 1 behind even tokens, -1 behind odd ones: to be read off the position alone. */
static void learns(void **state)
{
    static struct batch b;
    struct trainer_opts o = opts(4096);
    struct optim_hyper h = {3e-3, 0.9, 0.98, 1e-8, 0.0, 1.0};
    struct trainer_report r;
    struct tinymodel m;
    struct trainer *t;
    double loss = 0, before = 0;
    (void)state;
    critic_open(&m, "cpu", "auto", 2, 0, 5);
    assert_ok(trainer_open(m.w, &o, &t, &e), &e);
    fill(&b, 29);
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < b.s[i].response; j++) {
            b.returns[i][j] = b.tokens[i][b.s[i].prompt + j - 1] % 2 ? -1.0f : 1.0f;
        }
    }
    for (int k = 0; k < 60; k++) {
        assert_ok(trainer_score(t, b.s, N, &e), &e);
        memcpy(b.old, b.value, sizeof b.old);
        assert_ok(trainer_step(t, b.s, N, &h, &r, &e), &e);
        assert_true(loss_metric(&o.loss, &r.step, &r.sums, LOSS_VALUE_LOSS, &loss));
        before = k == 0 ? loss : before;
    }
    assert_true(before > 0.5 && loss < 0.1 * before);
    trainer_close(t);
    tinymodel_close(&m);
}

static void head(void **state)
{
    uint16_t a[64], b[64], bias = 1;
    double sum = 0, sq = 0;
    struct tinymodel m;
    (void)state;
    critic_open(&m, "cpu", "auto", 1, 0, 5);
    assert_ok(weights_read_bf16(m.w, "score.weight", a, 64, &e), &e);
    assert_ok(weights_read_bf16(m.w, "score.bias", &bias, 1, &e), &e);
    assert_int_equal(bias, 0);
    tinymodel_close(&m);
    critic_open(&m, "cpu", "auto", 1, 0, 6);
    assert_ok(weights_read_bf16(m.w, "score.weight", b, 64, &e), &e);
    assert_true(memcmp(a, b, sizeof a) != 0);
    tinymodel_close(&m);
    for (int i = 0; i < 64; i++) {
        double v = dtype_from_bf16(a[i]);
        sum += v;
        sq += v * v;
    }
    assert_true(fabs(sum / 64) < 0.01 && fabs(sqrt(sq / 64) - 0.02) < 0.006);
}

static int setup(void **state)
{
    int rc = fixture_setup(state);
    dir = rc == 0 ? tinymodel_write(&spec) : NULL;
    return rc;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits),
        cmocka_unit_test(derivative),
        cmocka_unit_test(learns),
        cmocka_unit_test(head),
    };
    return cmocka_run_group_tests(tests, setup, fixture_teardown);
}
