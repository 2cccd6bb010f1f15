/* Sums of a trainer's state: the same for every instruction set and number of threads, and another
 * one for the tensor in which a single bit differs. */
#include "model/tinymodel.h"

#include "base/log.h"
#include "train/optim.h"
#include "train/statesum.h"

/* qwen2: biases of three parts, an output layer of its own; rows that are no multiple of a block.
 */
static const struct tinymodel_spec spec = {"qwen2", 0, 1, 64, 2, 1, 32, 64, 530, 128, 0};
static const struct optim_hyper hyper = {1e-2, 0.9, 0.98, 1e-8, 0.1, 1.0};
static char model_dir[300];
static struct err e;

struct side {
    struct tinymodel m;
    struct optim *o;
    struct tensor *g;
};

static void side_open(struct side *s, const char *isa, int threads)
{
    tinymodel_open(&s->m, model_dir, "cpu", isa, threads, 2, 0, 1);
    assert_ok(optim_open(s->m.w, NULL, &s->o, &e), &e);
    s->g = mem_alloc(sizeof *s->g * (size_t)s->m.w->nparams);
    for (int i = 0; i < s->m.w->nparams; i++) {
        assert_ok(device_tensor(s->m.dev, &s->g[i], DTYPE_I64, s->m.w->params[i].rows,
                                s->m.w->params[i].cols, &e),
                  &e);
    }
}

static void side_close(struct side *s)
{
    for (int i = 0; i < s->m.w->nparams; i++) {
        device_tensor_free(&s->g[i]);
    }
    mem_free(s->g);
    optim_close(s->o);
    tinymodel_close(&s->m);
}

/* One step; one value of parameter `odd` is another by a quantum (-1: none). */
static void side_step(struct side *s, int odd)
{
    uint64_t seed = (uint64_t)s->o->step + 100;
    double norm;
    for (int i = 0; i < s->m.w->nparams; i++) {
        for (int64_t r = 0; r < s->g[i].rows; r++) {
            for (int64_t c = 0; c < s->g[i].cols; c++) {
                ((int64_t *)s->g[i].data)[r * s->g[i].ld + c] =
                    (int64_t)(tinymodel_value(&seed) * 0x1p38f);
            }
        }
        if (i == odd) {
            ((int64_t *)s->g[i].data)[0] += 1ll << 30;
        }
    }
    assert_ok(optim_step(s->o, s->g, &hyper, &norm, &e), &e);
}

static struct statesum sums(struct side *s, enum statesum_part part)
{
    struct statesum out;
    assert_ok(statesum_take(s->o, part, &out, &e), &e);
    return out;
}

/* Tensors of which the sums differ; the first one's name in *name. */
static int differ(const struct statesum *a, const struct statesum *b, const char **name)
{
    int n = 0;
    assert_int_equal(a->n, b->n);
    for (int i = 0; i < a->n; i++) {
        assert_string_equal(a->name[i], b->name[i]);
        if (a->sum[i] != b->sum[i] && n++ == 0 && name) {
            *name = a->name[i];
        }
    }
    return n;
}

static void same_everywhere(void **state)
{
    const char *isas[] = {"scalar", "avx2", "avx512", "amx"};
    (void)state;
    for (int k = 0; k < 4; k++) {
        if (!device_has_isa(isas[k])) {
            continue;
        }
        struct side a, b;
        side_open(&a, "scalar", 1);
        side_open(&b, isas[k], 3);
        for (int step = 0; step < 2; step++) {
            side_step(&a, -1);
            side_step(&b, -1);
        }
        for (int part = STATESUM_GRAD; part <= STATESUM_V; part++) {
            struct statesum x = sums(&a, (enum statesum_part)part);
            struct statesum y = sums(&b, (enum statesum_part)part);
            assert_int_equal(differ(&x, &y, NULL), 0);
            assert_true(x.n > 5);
            statesum_fini(&x);
            statesum_fini(&y);
        }
        side_close(&a);
        side_close(&b);
    }
}

static void one_value_is_seen(void **state)
{
    struct side a, b;
    (void)state;
    side_open(&a, "auto", 2);
    side_open(&b, "auto", 2);
    for (int odd = 0; odd < a.m.w->nparams; odd++) {
        const char *name = NULL;
        struct statesum x, y;
        side_step(&a, -1);
        side_step(&b, odd);
        x = sums(&a, STATESUM_GRAD);
        y = sums(&b, STATESUM_GRAD);
        assert_int_equal(differ(&x, &y, &name), 1);
        assert_string_equal(name, x.name[odd]);
        statesum_fini(&x);
        statesum_fini(&y);
        x = sums(&a, STATESUM_M);
        y = sums(&b, STATESUM_M);
        assert_true(differ(&x, &y, &name) >= 1);
        statesum_fini(&x);
        statesum_fini(&y);
    }
    side_close(&a);
    side_close(&b);
}

/* Each value of each part of the weights and of the state counts. */
static void every_place_counts(void **state)
{
    struct side a;
    (void)state;
    side_open(&a, "auto", 2);
    side_step(&a, -1);
    for (int part = STATESUM_WEIGHT; part <= STATESUM_V; part++) {
        for (int i = 0; i < a.m.w->nparams; i++) {
            const struct param *p = &a.m.w->params[i];
            static const enum optim_part to[] = {0, OPTIM_MASTER, OPTIM_MASTER, OPTIM_M, OPTIM_V};
            size_t n = (size_t)p->rows * (size_t)p->cols, at = (size_t)(i * 7919) % n;
            float *v = mem_alloc(4 * n), old;
            struct statesum x = sums(&a, (enum statesum_part)part), y;
            for (int64_t r = 0; r < p->rows; r += OPTIM_ROWS) {
                int64_t k = p->rows - r < OPTIM_ROWS ? p->rows - r : OPTIM_ROWS;
                assert_ok(optim_read(a.o, to[part], i, r, k, v + r * p->cols, &e), &e);
            }
            old = v[at];
            /* a weight moves by more than the master alone, a master by less than the weight sees
             */
            v[at] += part == STATESUM_MASTER ? old * 0x1p-20f : old * 0.25f + 1.0f;
            assert_ok(optim_write(a.o, to[part], i, v, &e), &e);
            y = sums(&a, (enum statesum_part)part);
            assert_int_equal(differ(&x, &y, NULL), 1);
            statesum_fini(&y);
            v[at] = old;
            assert_ok(optim_write(a.o, to[part], i, v, &e), &e);
            y = sums(&a, (enum statesum_part)part);
            assert_int_equal(differ(&x, &y, NULL), 0);
            statesum_fini(&x);
            statesum_fini(&y);
            mem_free(v);
        }
    }
    side_close(&a);
}

static void nothing_before_the_first_step(void **state)
{
    struct side a;
    struct statesum x;
    (void)state;
    side_open(&a, "auto", 1);
    x = sums(&a, STATESUM_GRAD);
    assert_int_equal(x.n, 0);
    statesum_fini(&x);
    side_close(&a);
}

static int setup(void **state)
{
    log_set_level(LOG_ERROR);
    if (fixture_setup(state)) {
        return -1;
    }
    snprintf(model_dir, sizeof model_dir, "%s", tinymodel_write(&spec));
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_everywhere),
        cmocka_unit_test(one_value_is_seen),
        cmocka_unit_test(every_place_counts),
        cmocka_unit_test(nothing_before_the_first_step),
    };
    return cmocka_run_group_tests(tests, setup, fixture_teardown);
}
