/* Leaves of the numeric plan: bounds that SmolLM2 has, uneven and empty leaves, cover and order for
 * every small combination. */
#include "support.h"

#include "num/plan.h"

static void expect_range(const struct leafset *s, int i, int start, int end, int leaf)
{
    if (s->r[i].start != start || s->r[i].end != end || s->r[i].leaf != leaf) {
        fail_msg("range %d is %d-%d of leaf %d, not %d-%d of leaf %d", i, s->r[i].start,
                 s->r[i].end, s->r[i].leaf, start, end, leaf);
    }
}

/* SmolLM2 135M: 9 query heads and 3 kv heads of 64, hidden 576, MLP 1536, vocabulary 49152. */
static void test_smollm2(void **state)
{
    struct leafset s;
    (void)state;

    memset(&s, 0, sizeof s); /* attention output: 9 heads */
    plan_leafset_add(&s, 4, 9, 64, 0, 576);
    plan_leafset_sort(&s);
    assert_int_equal(s.leaves, 4);
    assert_int_equal(s.n, 4);
    expect_range(&s, 0, 0, 128, 0);
    expect_range(&s, 1, 128, 256, 1);
    expect_range(&s, 2, 256, 384, 2);
    expect_range(&s, 3, 384, 576, 3);

    memset(&s, 0, sizeof s); /* MLP down: 48 blocks */
    plan_leafset_add(&s, 4, 48, 32, 0, 1536);
    plan_leafset_sort(&s);
    assert_int_equal(s.n, 4);
    for (int i = 0; i < 4; i++) {
        expect_range(&s, i, 384 * i, 384 * (i + 1), i);
    }

    memset(&s, 0, sizeof s); /* input gradient of QKV: q, k and v heads of a leaf go together */
    plan_leafset_add(&s, 4, 9, 64, 0, 576);
    plan_leafset_add(&s, 4, 3, 64, 576, 768);
    plan_leafset_add(&s, 4, 3, 64, 768, 960);
    plan_leafset_sort(&s);
    assert_int_equal(s.n, 10); /* leaf 0 has no kv head: floor(3/4) = 0 */
    expect_range(&s, 0, 0, 128, 0);
    expect_range(&s, 1, 128, 256, 1);
    expect_range(&s, 2, 576, 640, 1);
    expect_range(&s, 3, 768, 832, 1);
    expect_range(&s, 4, 256, 384, 2);
    expect_range(&s, 5, 640, 704, 2);
    expect_range(&s, 6, 832, 896, 2);
    expect_range(&s, 7, 384, 576, 3);
    expect_range(&s, 8, 704, 768, 3);
    expect_range(&s, 9, 896, 960, 3);

    memset(&s, 0, sizeof s); /* gate and up */
    plan_leafset_add(&s, 4, 48, 32, 0, 1536);
    plan_leafset_add(&s, 4, 48, 32, 1536, 3072);
    plan_leafset_sort(&s);
    assert_int_equal(s.n, 8);
    expect_range(&s, 0, 0, 384, 0);
    expect_range(&s, 1, 1536, 1920, 0);
    expect_range(&s, 7, 2688, 3072, 3);
}

static void test_short_end(void **state)
{
    struct leafset s;
    (void)state;

    memset(&s, 0, sizeof s); /* a vocabulary of 500: 16 blocks, the last one short */
    plan_leafset_add(&s, 4, 16, 32, 0, 500);
    assert_int_equal(s.n, 4);
    expect_range(&s, 0, 0, 128, 0);
    expect_range(&s, 3, 384, 500, 3);

    memset(&s, 0, sizeof s); /* fewer units than leaves: empty leaves have no range */
    plan_leafset_add(&s, 8, 3, 32, 0, 96);
    assert_int_equal(s.leaves, 8);
    assert_int_equal(s.n, 3);
    expect_range(&s, 0, 0, 32, 2);
    expect_range(&s, 1, 32, 64, 5);
    expect_range(&s, 2, 64, 96, 7);

    plan_leafset_one(&s, 77);
    assert_int_equal(s.leaves, 1);
    assert_int_equal(s.n, 1);
    expect_range(&s, 0, 0, 77, 0);
}

/* Every unit is in exactly one leaf, leaves ascend, and splitting R leaves over any divisor of R
 * ranks cuts between leaves. */
static void test_cover(void **state)
{
    (void)state;
    for (int leaves = 1; leaves <= PLAN_MAX_LEAVES; leaves *= 2) {
        for (int units = 1; units <= 70; units++) {
            struct leafset s;
            int at = 0, last = -1;
            memset(&s, 0, sizeof s);
            plan_leafset_add(&s, leaves, units, 32, 0, units * 32 - 5);
            plan_leafset_sort(&s);
            for (int i = 0; i < s.n; i++) {
                assert_int_equal(s.r[i].start, at);
                assert_true(s.r[i].end > at);
                assert_true(s.r[i].leaf > last && s.r[i].leaf < leaves);
                assert_int_equal(s.r[i].start, s.r[i].leaf * units / leaves * 32);
                at = s.r[i].end;
                last = s.r[i].leaf;
            }
            assert_int_equal(at, units * 32 - 5);
        }
    }
}

static void test_three_parts_fit(void **state)
{
    struct leafset s;
    (void)state;
    memset(&s, 0, sizeof s);
    for (int part = 0; part < 3; part++) {
        plan_leafset_add(&s, PLAN_MAX_LEAVES, 16, 64, part * 1024, (part + 1) * 1024);
    }
    plan_leafset_sort(&s);
    assert_int_equal(s.n, PLAN_MAX_RANGES);
    for (int i = 0; i < s.n; i++) {
        expect_range(&s, i, i % 3 * 1024 + i / 3 * 128, i % 3 * 1024 + (i / 3 + 1) * 128, i / 3);
    }
}

static void test_default_leaves(void **state)
{
    static const struct {
        int k, leaves;
    } t[] = {{1, 1},   {128, 1}, {255, 1},  {256, 2},  {511, 2},  {512, 4},
             {576, 4}, {960, 4}, {1023, 4}, {1024, 8}, {4096, 8}, {1 << 30, 8}};
    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        assert_int_equal(plan_default_leaves(t[i].k), t[i].leaves);
    }
}

static void test_init(void **state)
{
    struct plan p;
    (void)state;
    memset(&p, 0xff, sizeof p);
    plan_init(&p, 4, 1);
    assert_int_equal(p.version, PLAN_VERSION);
    assert_int_equal(p.leaves, 4);
    assert_int_equal(p.kblock, 32);
    assert_int_equal(p.kv_block, 64);
    assert_int_equal(p.kv_segment, 1024);
    assert_int_equal(p.leaf_tokens, 256);
    assert_int_equal(p.quantum_log2, 45);
    assert_int_equal(p.f32, 1);
    assert_int_equal(p.bundle_rows, 4096);
}

static void test_agree(void **state)
{
    struct plan p;
    struct plan_clash c;
    json_t *a, *b;
    (void)state;
    plan_init(&p, 4, 0);
    a = plan_manifest(&p);
    b = plan_manifest(&p);
    json_object_set_new(a, "positions", json_integer(4096)); /* more than is asked for */
    assert_int_equal(plan_agree(a, b, &c), 1);
    assert_int_equal(plan_agree(b, a, &c), 0);
    assert_string_equal(c.key, "positions");
    assert_string_equal(c.have, "nothing");
    assert_string_equal(c.want, "4096");
    json_decref(b);
    p.leaves = 8;
    b = plan_manifest(&p);
    assert_int_equal(plan_agree(a, b, &c), 0);
    assert_string_equal(c.key, "leaves");
    assert_string_equal(c.have, "4");
    assert_string_equal(c.want, "8");
    assert_int_equal(plan_agree(NULL, b, &c), 0);
    assert_int_equal(plan_agree(NULL, NULL, &c), 1);
    json_decref(a);
    a = plan_train_manifest(&p);
    assert_int_equal(plan_agree(a, b, &c), 1); /* an engine knows nothing of bundles */
    p.bundle_rows = 0;
    json_decref(b);
    b = plan_train_manifest(&p);
    assert_int_equal(plan_agree(a, b, &c), 0);
    assert_string_equal(c.key, "bundle_rows");
    json_decref(a);
    json_decref(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_smollm2),        cmocka_unit_test(test_short_end),
        cmocka_unit_test(test_cover),          cmocka_unit_test(test_three_parts_fit),
        cmocka_unit_test(test_default_leaves), cmocka_unit_test(test_init),
        cmocka_unit_test(test_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
