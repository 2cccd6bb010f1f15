/* The prefix cache against what it stands for: a page found must hold exactly the rows of the
 * tokens asked for, which is followed here by writing into every row a name of its whole prefix.
 * What is found must be the longest there is; what goes first must have been used longest ago. */
#include "model/tinymodel.h"

#include "engine/radix.h"

enum { PAGES = 40, LONGEST = 400, SEQS = 64, VERSION = 7 };

static const struct tinymodel_spec spec = {"llama", 1, 1, 64, 1, 1, 32, 64, 40, 256, 0};
static struct tinymodel model;
static struct kv_pool pool;
static struct radix tree;
static uint64_t rows[PAGES][PLAN_KV_BLOCK]; /* name of the prefix that ends in this row */

static int setup(void **state)
{
    if (fixture_setup(state) != 0) {
        return -1;
    }
    tinymodel_open(&model, tinymodel_write(&spec), "cpu", "scalar", 1, 1, 0, 0);
    return 0;
}

static int teardown(void **state)
{
    tinymodel_close(&model);
    return fixture_teardown(state);
}

static void open_tree(void)
{
    struct err e = {0};
    assert_ok(kv_open(&pool, model.w, PAGES, &e), &e);
    radix_open(&tree, &pool);
    memset(rows, 0, sizeof rows);
}

static void close_tree(void)
{
    struct err e = {0};
    assert_ok(radix_check(&tree, &e), &e);
    radix_clear(&tree);
    assert_int_equal(tree.count, 0);
    assert_int_equal(pool.free, PAGES);
    radix_close(&tree);
    kv_close(&pool);
}

/* ---- a sequence, as the engine would hold it ---- */

struct seq {
    int n, have, npages;
    int32_t tokens[LONGEST], pages[LONGEST / PLAN_KV_BLOCK + 1];
};

static uint64_t name_of(const int32_t *tokens, int n)
{
    uint64_t h = 1469598103934665603ull;
    for (int i = 0; i < n; i++) {
        h = (h ^ (uint64_t)(uint32_t)tokens[i]) * 1099511628211ull;
    }
    return h;
}

static int seq_page(void)
{
    int p = kv_take(&pool, VERSION);
    if (p < 0 && radix_evict(&tree)) {
        p = kv_take(&pool, VERSION);
    }
    return p;
}

/* Looks into the cache for all but the last token. Every row that it gives must be ours. */
static void seq_match(struct seq *s)
{
    int part, npart;
    s->npages = radix_match(&tree, VERSION, s->tokens, s->n - 1, s->pages, &part, &npart);
    s->have = s->npages * PLAN_KV_BLOCK;
    for (int i = 0; i < s->have; i++) {
        assert_true(rows[s->pages[i / PLAN_KV_BLOCK]][i % PLAN_KV_BLOCK] ==
                    name_of(s->tokens, i + 1));
    }
    if (part >= 0) {
        int p = seq_page();
        assert_in_range(npart, 1, PLAN_KV_BLOCK - 1);
        for (int i = 0; i < npart; i++) {
            assert_true(rows[part][i] == name_of(s->tokens, s->have + i + 1));
        }
        if (p >= 0) {
            memcpy(rows[p], rows[part], sizeof rows[p]);
            s->pages[s->npages++] = p;
            s->have += npart;
        }
        kv_give(&pool, part);
    }
    assert_true(s->have < s->n);
}

/* Computes rows up to `upto`; 0 when pages ran out. */
static int seq_compute(struct seq *s, int upto)
{
    for (; s->have < upto; s->have++) {
        int i = s->have / PLAN_KV_BLOCK;
        if (i == s->npages) {
            int p = seq_page();
            if (p < 0) {
                return 0;
            }
            s->pages[s->npages++] = p;
        }
        rows[s->pages[i]][s->have % PLAN_KV_BLOCK] = name_of(s->tokens, s->have + 1);
    }
    return 1;
}

static void seq_give(struct seq *s)
{
    for (int i = 0; i < s->npages; i++) {
        kv_give(&pool, s->pages[i]);
    }
    s->npages = s->have = 0;
}

static void seq_run(struct seq *s)
{
    struct err e = {0};
    seq_match(s);
    assert_true(seq_compute(s, s->n));
    radix_insert(&tree, VERSION, s->tokens, s->n, s->pages, 1);
    seq_give(s);
    assert_ok(radix_check(&tree, &e), &e);
    radix_tick(&tree);
}

static void seq_make(struct seq *s, int n, int first)
{
    s->n = n;
    s->have = s->npages = 0;
    for (int i = 0; i < n; i++) {
        s->tokens[i] = first + i;
    }
}

/* ---- tests ---- */

static void test_empty(void **state)
{
    struct seq s;
    (void)state;
    open_tree();
    seq_make(&s, 100, 0);
    seq_match(&s);
    assert_int_equal(s.have, 0);
    assert_int_equal(radix_evict(&tree), 0);
    radix_insert(&tree, VERSION, s.tokens, 0, s.pages, 1);
    assert_int_equal(tree.count, 0);
    close_tree();
}

static void test_longest(void **state)
{
    struct seq s;
    (void)state;
    open_tree();
    seq_make(&s, 150, 0);
    seq_run(&s);
    assert_int_equal(tree.count, 3);
    seq_match(&s); /* all but the last token */
    assert_int_equal(s.have, 149);
    seq_give(&s);
    s.tokens[100] = -5; /* parts in the middle of the second page */
    seq_run(&s);
    assert_int_equal(tree.count, 5);
    seq_match(&s);
    assert_int_equal(s.have, 149);
    seq_give(&s);
    s.tokens[0] = -5;
    seq_match(&s);
    assert_int_equal(s.have, 0);
    /* a page that goes on where another ends takes its place */
    seq_make(&s, 170, 0);
    seq_run(&s);
    assert_int_equal(tree.count, 5);
    close_tree();
}

/* The page that its owner still writes becomes known further as it fills. */
static void test_grows(void **state)
{
    struct seq s, t;
    (void)state;
    open_tree();
    seq_make(&s, 200, 0);
    radix_tick(&tree);
    for (int n = 10; n <= 200; n += 19) {
        assert_true(seq_compute(&s, n));
        radix_insert(&tree, VERSION, s.tokens, n, s.pages, 1);
        assert_int_equal(tree.count, (n + 63) / 64);
        radix_tick(&tree);
        seq_make(&t, 200, 0);
        seq_match(&t);
        assert_int_equal(t.have, n < 199 ? n : 199);
        seq_give(&t);
    }
    seq_give(&s);
    close_tree();
}

/* Rows that this step computes: a whole page can be shared, but nothing can be copied yet. */
static void test_unsettled(void **state)
{
    struct seq s, t;
    (void)state;
    open_tree();
    seq_make(&s, 150, 0);
    radix_tick(&tree);
    assert_true(seq_compute(&s, 150));
    radix_insert(&tree, VERSION, s.tokens, 150, s.pages, 0);
    assert_int_equal(tree.count, 2); /* not the part of a page */
    seq_make(&t, 150, 0);
    seq_match(&t);
    assert_int_equal(t.have, 128);
    /* its own page of the same rows is not exchanged: it may be written in this step */
    seq_give(&t);
    t.tokens[70] = -1;
    seq_match(&t);
    assert_int_equal(t.have, 64);
    seq_give(&t);
    radix_tick(&tree);
    seq_match(&t);
    assert_int_equal(t.have, 70);
    seq_give(&t);
    seq_give(&s);
    close_tree();
}

/* Two computed the same: the tree's pages stay, the other's are free again. */
static void test_same_twice(void **state)
{
    struct seq s, t;
    int32_t mine;
    (void)state;
    open_tree();
    seq_make(&s, 130, 0);
    seq_make(&t, 130, 0);
    radix_tick(&tree);
    assert_true(seq_compute(&s, 130) && seq_compute(&t, 130));
    mine = t.pages[0];
    radix_insert(&tree, VERSION, s.tokens, 130, s.pages, 0);
    radix_insert(&tree, VERSION, t.tokens, 130, t.pages, 0);
    assert_int_equal(t.pages[0], mine);
    radix_insert(&tree, VERSION, s.tokens, 130, s.pages, 1);
    radix_insert(&tree, VERSION, t.tokens, 130, t.pages, 1);
    assert_int_equal(t.pages[0], s.pages[0]);
    assert_int_equal(t.pages[1], s.pages[1]);
    assert_int_equal(pool.refs[mine], 0);
    assert_int_equal(pool.free, PAGES - 4);
    seq_give(&s);
    seq_give(&t);
    close_tree();
}

static void test_versions(void **state)
{
    struct seq s;
    int32_t pages[8];
    int part, npart;
    (void)state;
    open_tree();
    seq_make(&s, 150, 0);
    seq_run(&s);
    assert_int_equal(radix_match(&tree, VERSION + 1, s.tokens, 150, pages, &part, &npart), 0);
    assert_int_equal(part, -1);
    /* pages of mixed rows are not taken in */
    seq_make(&s, 150, 1000);
    assert_true(seq_compute(&s, 150));
    pool.version[s.pages[1]] = KV_MIXED;
    radix_insert(&tree, VERSION, s.tokens, 150, s.pages, 1);
    assert_int_equal(tree.count, 4);
    seq_give(&s);
    close_tree();
}

/* Leaves go first, in the order of their last use; what is held stays. */
static void test_order(void **state)
{
    /* page k of text i, as it was computed: {i, k} in the order in which they must go */
    static const int order[][2] = {{0, 1}, {2, 1}, {2, 0}, {3, 1}, {3, 0}, {0, 0}};
    int32_t page[4][2];
    struct seq s, held;

    (void)state;
    open_tree();
    for (int i = 0; i < 4; i++) {
        seq_make(&s, 128, i * 1000);
        assert_true(seq_compute(&s, 128));
        memcpy(page[i], s.pages, sizeof page[i]);
        radix_insert(&tree, VERSION, s.tokens, 128, s.pages, 1);
        seq_give(&s);
    }
    seq_make(&held, 129, 1000);
    seq_match(&held); /* the second is in use */
    seq_make(&s, 65, 0);
    seq_match(&s); /* the first was used last, but for its end */
    seq_give(&s);
    assert_int_equal(pool.idle, 6);
    for (int i = 0; i < 6; i++) {
        assert_true(pool.refs[page[order[i][0]][order[i][1]]] == 1);
        assert_int_equal(radix_evict(&tree), 1);
        assert_int_equal(pool.idle, 5 - i);
        assert_int_equal(pool.refs[page[order[i][0]][order[i][1]]], 0);
    }
    assert_int_equal(radix_evict(&tree), 0);
    assert_int_equal(tree.evicted, 6);
    seq_make(&s, 129, 1000);
    seq_match(&s);
    assert_int_equal(s.have, 128);
    seq_give(&s);
    seq_give(&held);
    close_tree();
}

/* What is forgotten goes from its end up to where somebody else goes on. */
static void test_forget(void **state)
{
    struct seq s, held;
    (void)state;
    open_tree();
    seq_make(&s, 150, 0);
    seq_run(&s);
    radix_forget(&tree, VERSION + 1, s.tokens, 150);
    radix_forget(&tree, VERSION, s.tokens, 149); /* more is known */
    radix_forget(&tree, VERSION, s.tokens, 128);
    assert_int_equal(tree.count, 3);
    radix_forget(&tree, VERSION, s.tokens, 150);
    assert_int_equal(tree.count, 0);
    seq_make(&s, 150, 0);
    seq_run(&s);
    s.tokens[140] = -1;
    seq_run(&s);
    radix_forget(&tree, VERSION, s.tokens, 150);
    assert_int_equal(tree.count, 3); /* the other's end stays */
    seq_make(&s, 150, 0);
    seq_make(&held, 100, 0);
    seq_match(&held); /* holds the first page */
    radix_forget(&tree, VERSION, s.tokens, 150);
    assert_int_equal(tree.count, 1);
    seq_give(&held);
    radix_forget(&tree, VERSION, s.tokens, 64);
    assert_int_equal(tree.count, 0);
    close_tree();
}

static int common(const struct seq *a, const struct seq *b)
{
    int k = 0;
    while (k < a->n && k < b->n && a->tokens[k] == b->tokens[k]) {
        k++;
    }
    return k;
}

/* Random texts that share beginnings: the rows found are right and, without evictions, as many as
 * any text before allows. */
static void random_texts(int keep, uint64_t seed)
{
    static struct seq old[SEQS];
    uint64_t r = seed;
    int nold = 0;

    open_tree();
    for (int round = 0; round < 300; round++) {
        struct seq s;
        int best = 0, from = nold ? tinymodel_below(&r, nold) : -1;
        s.n = 1 + tinymodel_below(&r, keep ? 60 : LONGEST - 1);
        s.have = s.npages = 0;
        for (int i = 0, same = tinymodel_below(&r, s.n + 1); i < s.n; i++) {
            s.tokens[i] = from >= 0 && i < same && i < old[from].n ? old[from].tokens[i]
                                                                   : tinymodel_below(&r, 3);
        }
        for (int i = 0; i < nold; i++) {
            int k = common(&s, &old[i]);
            best = k > best ? k : best;
        }
        if (keep && nold == 30) {
            break;
        }
        radix_tick(&tree);
        seq_match(&s);
        if (keep) {
            assert_int_equal(s.have, best < s.n - 1 ? best : s.n - 1);
        }
        if (seq_compute(&s, s.n)) {
            if (tinymodel_below(&r, 2)) {
                radix_insert(&tree, VERSION, s.tokens, s.n, s.pages, 0);
                radix_tick(&tree);
            }
            radix_insert(&tree, VERSION, s.tokens, s.n, s.pages, 1);
            old[nold < SEQS ? nold++ : tinymodel_below(&r, SEQS)] = s;
        }
        seq_give(&s);
        assert_int_equal(pool.free + pool.idle, PAGES);
        struct err e = {0};
        assert_ok(radix_check(&tree, &e), &e);
    }
    close_tree();
}

static void test_random(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 20; i++) {
        random_texts(1, 3 * i + 1);
        random_texts(0, 5 * i + 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_empty),      cmocka_unit_test(test_longest),
        cmocka_unit_test(test_grows),      cmocka_unit_test(test_unsettled),
        cmocka_unit_test(test_same_twice), cmocka_unit_test(test_versions),
        cmocka_unit_test(test_order),      cmocka_unit_test(test_forget),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
