/* Rope's frequencies against transformers (tests/golden/ropes.json, made by gen_ropes.py), and what
 * the run's limit may and may not change. */
#include "support.h"

#include <jansson.h>
#include <math.h>

#include "base/status.h"
#include "model/arch.h"
#include "model/ropes.h"

static void arch_of(const json_t *rope, int dim, int positions, struct arch *a)
{
    json_t *c = json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:O}", "model_type", "llama",
                          "hidden_size", 2 * dim, "num_hidden_layers", 1, "num_attention_heads", 2,
                          "head_dim", dim, "intermediate_size", 32, "vocab_size", 32,
                          "max_position_embeddings", positions, "rope_parameters", rope);
    char *text = json_dumps(c, 0);
    struct err e = {0};
    assert_ok(arch_parse(text, a, &e), &e);
    free(text);
    json_decref(c);
}

static void test_golden(void **state)
{
    json_error_t je;
    json_t *list = json_load_file(TEST_GOLDEN_DIR "/ropes.json", 0, &je), *c;
    size_t i;

    (void)state;
    assert_int_equal(json_array_size(list), 8);
    json_array_foreach(list, i, c)
    {
        const json_t *want = json_object_get(c, "frequencies");
        int dim = (int)json_integer_value(json_object_get(c, "dim"));
        struct arch a;
        float f[64];
        double factor;
        arch_of(json_object_get(c, "rope"), dim,
                (int)json_integer_value(json_object_get(c, "positions")), &a);
        assert_int_equal(a.rot, dim);
        assert_int_equal(json_array_size(want), dim / 2);
        factor = ropes_frequencies(&a.rope[0], dim,
                                   (int)json_integer_value(json_object_get(c, "limit")), f);
        assert_true(fabs(factor - json_number_value(json_object_get(c, "factor"))) < 1e-12);
        for (int k = 0; k < dim / 2; k++) {
            double w = json_number_value(json_array_get(want, (size_t)k));
            if (fabs((double)f[k] - w) > 1e-6 * w) { /* theirs is computed in f32 */
                fail_msg("case %zu, pair %d: %.9g, transformers %.9g", i, k, (double)f[k], w);
            }
        }
    }
    json_decref(list);
}

/* The limit is nothing to the other kinds, nor to `dynamic` inside the model's length. */
static void test_limit(void **state)
{
    static const char *const texts[] = {"{\"rope_type\": \"dynamic\", \"factor\": 3.0}",
                                        "{\"rope_type\": \"linear\", \"factor\": 3.0}",
                                        "{\"rope_type\": \"yarn\", \"factor\": 3.0}",
                                        "{\"rope_type\": \"default\"}"};
    (void)state;
    for (int i = 0; i < 4; i++) {
        json_error_t je;
        json_t *rope = json_loads(texts[i], 0, &je);
        struct arch a;
        float f[16], g[16], h[16];
        arch_of(rope, 32, 1000, &a);
        ropes_frequencies(&a.rope[0], 32, 10, f);
        ropes_frequencies(&a.rope[0], 32, 1000, g);
        ropes_frequencies(&a.rope[0], 32, 1001, h);
        assert_memory_equal(f, g, sizeof f);
        assert_int_equal(memcmp(f, h, sizeof f) == 0, i != 0);
        json_decref(rope);
    }
}

static void test_tables(void **state)
{
    struct arch a;
    json_error_t je;
    json_t *rope = json_loads("{\"rope_type\": \"yarn\", \"factor\": 4.0}", 0, &je);
    float f[8], c[8 * 20], s[8 * 20];
    double factor;
    (void)state;

    arch_of(rope, 16, 64, &a);
    factor = ropes_frequencies(&a.rope[0], 16, 64, f);
    ropes_tables(&a.rope[0], 16, 64, 20, c, s);
    assert_true(factor > 1.0);
    for (int p = 0; p < 20; p++) {
        for (int i = 0; i < 8; i++) {
            double x = (double)((float)p * f[i]);
            assert_true(fabs((double)c[p * 8 + i] - cos(x) * factor) < 1e-7);
            assert_true(fabs((double)s[p * 8 + i] - sin(x) * factor) < 1e-7);
        }
    }
    json_decref(rope);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden), cmocka_unit_test(test_limit),
                                       cmocka_unit_test(test_tables)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
