/* Packing against the partitions that the reference code gives, and its invariants on random input.
 */
#include "support.h"

#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"
#include "train/pack.h"

static struct err e;

/* "[[1,3],[0]]" of a partition. */
static const char *show(int64_t n, const int64_t *start, const int64_t *items)
{
    static char text[4096];
    int at = snprintf(text, sizeof text, "[");
    for (int64_t b = 0; b < n; b++) {
        at += snprintf(text + at, sizeof text - (size_t)at, "%s[", b ? "," : "");
        for (int64_t i = start[b]; i < start[b + 1]; i++) {
            at += snprintf(text + at, sizeof text - (size_t)at, "%s%lld", i > start[b] ? "," : "",
                           (long long)items[i]);
        }
        at += snprintf(text + at, sizeof text - (size_t)at, "]");
    }
    snprintf(text + at, sizeof text - (size_t)at, "]");
    return text;
}

static void expect_kk(const int64_t *w, int64_t n, int64_t k, int equal, const char *want)
{
    struct pack_bins b = {0};
    assert_ok(pack_karmarkar_karp(w, n, k, equal, &b, &e), &e);
    assert_string_equal(show(b.n, b.start, b.items), want);
    pack_bins_fini(&b);
}

static void karmarkar_karp(void **state)
{
    int64_t a[] = {8, 7, 6, 5, 4}, one[] = {1, 2, 3, 4, 5, 6, 7, 8}, five[] = {5, 5, 5, 5, 5, 5};
    int64_t big[] = {100, 1, 1, 1}, two[] = {3, 3}, mix[] = {10, 200, 30, 400, 50, 600, 70, 800};
    struct pack_bins b = {0};
    (void)state;
    expect_kk(a, 5, 2, 0, "[[1,3,4],[0,2]]");
    expect_kk(a, 5, 3, 0, "[[1,4],[2,3],[0]]");
    expect_kk(one, 8, 2, 1, "[[1,2,4,7],[0,3,5,6]]");
    expect_kk(one, 8, 4, 1, "[[0,7],[1,6],[2,5],[3,4]]");
    expect_kk(five, 6, 3, 0, "[[0,5],[1,4],[2,3]]");
    expect_kk(five, 6, 3, 1, "[[0,5],[1,4],[2,3]]");
    expect_kk(big, 4, 2, 0, "[[0],[1,2,3]]");
    expect_kk(big, 4, 2, 1, "[[0,1],[2,3]]");
    expect_kk(two, 2, 2, 1, "[[1],[0]]");
    expect_kk(mix, 8, 3, 0, "[[7],[1,2,3,4],[0,5,6]]");
    expect_kk(mix, 8, 4, 1, "[[0,7],[2,5],[3,4],[1,6]]");
    expect_kk(a, 5, 1, 0, "[[0,1,2,3,4]]");
    assert_int_equal(pack_karmarkar_karp(a, 5, 2, 1, &b, &e), STATUS_INPUT);
    assert_int_equal(pack_karmarkar_karp(a, 5, 6, 0, &b, &e), STATUS_INPUT);
    a[0] = -1;
    assert_int_equal(pack_karmarkar_karp(a, 5, 2, 0, &b, &e), STATUS_INPUT);
}

static void first_fit_and_split(void **state)
{
    int64_t a[] = {100, 200, 300}, b[] = {15, 3, 3, 3, 3, 3, 3, 3}, c[] = {4, 8, 1, 4, 2, 1, 10};
    int64_t len[] = {9, 5, 4, 3, 8, 7}, start[] = {0, 4, 6}, items[] = {0, 1, 2, 3, 4, 5};
    struct pack_bins out = {0}, s = {0};
    (void)state;
    assert_ok(pack_first_fit(a, 3, 300, 1, &out, &e), &e);
    assert_string_equal(show(out.n, out.start, out.items), "[[2],[1,0]]");
    pack_bins_fini(&out);
    assert_ok(pack_first_fit(b, 8, 10, 1, &out, &e), &e);
    assert_string_equal(show(out.n, out.start, out.items), "[[0],[1,2,3],[4,5,6],[7]]");
    pack_bins_fini(&out);
    assert_ok(pack_first_fit(c, 7, 10, 1, &out, &e), &e);
    assert_string_equal(show(out.n, out.start, out.items), "[[6],[1,4],[0,3,2,5]]");
    pack_bins_fini(&out);
    assert_ok(pack_first_fit(c, 7, 10, 0, &out, &e), &e);
    assert_string_equal(show(out.n, out.start, out.items), "[[0,2,3,5],[1,4],[6]]");
    pack_bins_fini(&out);

    s.n = 2;
    s.start = mem_alloc(sizeof start);
    s.items = mem_alloc(sizeof items);
    memcpy(s.start, start, sizeof start);
    memcpy(s.items, items, sizeof items);
    assert_ok(pack_split(len, &s, 4, &e), &e);
    assert_string_equal(show(s.n, s.start, s.items), "[[0,3],[4],[1,2],[5]]");
    assert_int_equal(pack_split(len, &s, 7, &e), STATUS_INPUT); /* 6 items */
    assert_string_equal(show(s.n, s.start, s.items), "[[0,3],[4],[1,2],[5]]");
    pack_bins_fini(&s);
}

/* Rank r's samples over all steps, and "[[..],[..]]" of its micro-batches as local positions. */
static void expect_rank(const struct pack_plan *p, int64_t r, const char *samples,
                        const char *micro)
{
    int64_t items[256], local[256], start[256], n = 0, nb = 0;
    char text[4096];
    start[0] = 0;
    for (int64_t s = 0; s < p->nsteps; s++) {
        for (int64_t b = 0; b < p->nmb[s]; b++) {
            const int64_t *idx;
            int64_t k = pack_micro(p, s, r, b, &idx);
            for (int64_t i = 0; i < k; i++) {
                local[n] = n;
                items[n++] = idx[i];
            }
            start[++nb] = n;
        }
    }
    snprintf(text, sizeof text, "%s", show(1, (int64_t[]){0, n}, items));
    assert_string_equal(text, samples);
    if (micro) {
        assert_string_equal(show(nb, start, local), micro);
    }
}

static void schedule_goldens(void **state)
{
    struct pack_opts o = {.dp = 4, .cp = 1, .global_batch = 16, .micro_batch = 2};
    struct pack_plan p;
    int64_t ten[16], ramp[16], a[] = {15, 3, 3, 3, 3, 3, 3, 3}, b[] = {9, 2, 7, 3, 8, 1, 6, 4};
    (void)state;
    for (int i = 0; i < 16; i++) {
        ten[i] = 10;
        ramp[i] = i < 8 ? i + 1 : 16 - i;
    }
    assert_ok(pack_schedule(&o, 16, ten, NULL, &p, &e), &e);
    assert_int_equal(p.nsteps, 1);
    assert_int_equal(p.nmb[0], 2);
    assert_int_equal(p.rollouts[0], 16);
    expect_rank(&p, 0, "[[0,1,8,9]]", "[[0,1],[2,3]]");
    expect_rank(&p, 1, "[[2,3,10,11]]", NULL);
    expect_rank(&p, 2, "[[4,5,12,13]]", NULL);
    expect_rank(&p, 3, "[[6,7,14,15]]", NULL);
    pack_plan_fini(&p);

    o = (struct pack_opts){
        .dp = 2, .cp = 1, .global_batch = 8, .micro_batch = 2, .balance_data = 1};
    assert_ok(pack_schedule(&o, 16, ramp, NULL, &p, &e), &e);
    assert_int_equal(p.nsteps, 2);
    assert_int_equal(p.nmb[0], 2);
    assert_int_equal(p.nmb[1], 2);
    expect_rank(&p, 0, "[[0,1,6,7,10,11,12,13]]", NULL);
    expect_rank(&p, 1, "[[2,3,4,5,8,9,14,15]]", NULL);
    pack_plan_fini(&p);

    o = (struct pack_opts){.dp = 2, .cp = 1, .global_batch = 8, .dynamic = 1, .max_tokens = 10};
    assert_ok(pack_schedule(&o, 8, a, NULL, &p, &e), &e);
    expect_rank(&p, 0, "[[0,4,5,6]]", "[[0],[1,2,3]]");
    expect_rank(&p, 1, "[[1,2,3,7]]", "[[0,1,2],[3]]");
    pack_plan_fini(&p);

    o.balance_data = 1;
    assert_ok(pack_schedule(&o, 8, b, NULL, &p, &e), &e);
    expect_rank(&p, 0, "[[0,5,6,7]]", NULL);
    expect_rank(&p, 1, "[[4,1,2,3]]", NULL);
    pack_plan_fini(&p);
}

static void rollouts_stay_together(void **state)
{
    struct pack_opts o = {.dp = 1, .cp = 1, .global_batch = 1, .dynamic = 1, .max_tokens = 12};
    int64_t len[9] = {3, 3, 3, 3, 3, 3, 3, 3, 3}, id[] = {0, 0, 0, 1, 1, 2, 2, 2, 2};
    int64_t five[] = {0, 0, 1, 2, 2, 3, 4, 4}, interleaved[] = {7, 9, 7, 9};
    struct pack_plan p;
    const int64_t *idx;
    (void)state;
    assert_ok(pack_schedule(&o, 9, len, id, &p, &e), &e);
    assert_int_equal(p.nsteps, 3);
    assert_int_equal(pack_micro(&p, 0, 0, 0, &idx), 3);
    assert_int_equal(idx[0], 0);
    assert_int_equal(pack_micro(&p, 1, 0, 0, &idx), 2);
    assert_int_equal(idx[1], 4);
    assert_int_equal(pack_micro(&p, 2, 0, 0, &idx), 4);
    assert_int_equal(p.dropped, 0);
    pack_plan_fini(&p);

    o.global_batch = 2; /* the fifth rollout fills no step */
    assert_ok(pack_schedule(&o, 8, len, five, &p, &e), &e);
    assert_int_equal(p.nsteps, 2);
    assert_int_equal(p.dropped, 2);
    assert_int_equal(p.nitems, 6);
    pack_plan_fini(&p);
    o.allow_partial = 1;
    assert_ok(pack_schedule(&o, 8, len, five, &p, &e), &e);
    assert_int_equal(p.nsteps, 3);
    assert_int_equal(p.rollouts[2], 1);
    assert_int_equal(p.dropped, 0);
    pack_plan_fini(&p);

    o.allow_partial = 0;
    o.global_batch = 1;
    assert_ok(pack_schedule(&o, 4, len, interleaved, &p, &e), &e);
    assert_int_equal(p.nsteps, 2);
    assert_int_equal(pack_micro(&p, 1, 0, 0, &idx), 2);
    assert_int_equal(idx[0], 1);
    assert_int_equal(idx[1], 3);
    pack_plan_fini(&p);
}

static void refusals(void **state)
{
    struct pack_opts o = {.dp = 2, .cp = 1, .global_batch = 8, .micro_batch = 3};
    int64_t len[] = {3, 3, 3, 3, 3, 3, 3, 3}, id[] = {0, 0, 1, 1, 2, 2, 2, 2}, kept;
    struct pack_plan p;
    (void)state;
    assert_int_equal(pack_schedule(&o, 8, len, NULL, &p, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "no multiple of 2"));
    o.micro_batch = 0;
    assert_int_equal(pack_schedule(&o, 8, len, NULL, &p, &e), STATUS_INPUT);
    o = (struct pack_opts){.dp = 1, .cp = 1, .global_batch = 4, .dynamic = 1, .max_tokens = 12};
    assert_int_equal(pack_schedule(&o, 8, len, id, &p, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "3 rollouts do not fill one step of 4"));
    o.max_tokens = 0;
    assert_int_equal(pack_schedule(&o, 8, len, NULL, &p, &e), STATUS_INPUT);
    /* 1 sample cannot feed 2 ranks */
    o = (struct pack_opts){.dp = 2, .cp = 1, .global_batch = 1, .dynamic = 1, .max_tokens = 12};
    assert_int_equal(pack_schedule(&o, 1, len, NULL, &p, &e), STATUS_INPUT);
    assert_int_equal(pack_trim(3, 4, &kept, &e), STATUS_INPUT);
    assert_ok(pack_trim(11, 4, &kept, &e), &e);
    assert_int_equal(kept, 8);
}

static void flops(void **state)
{
    struct pack_model m = {.layers = 2, .hidden = 16, .heads = 2, .kv_heads = 2, .head_dim = 8};
    struct pack_opts o = {.dp = 2, .cp = 1, .global_batch = 8, .dynamic = 1, .max_tokens = 600};
    int64_t len[] = {10, 20, 30, 700, 40, 800, 50, 600};
    struct pack_plan p;
    int64_t cost[2] = {0, 0};
    (void)state;
    m.ffn = 64;
    m.vocab = 32;
    assert_int_equal(pack_flops(&m, 10), 180480);
    assert_int_equal(pack_flops(&m, 100), 2380800);
    assert_int_equal(pack_flops(&m, 800), 54886400);
    o.flops = &m;
    assert_ok(pack_schedule(&o, 8, len, NULL, &p, &e), &e);
    assert_int_equal(p.nitems, 8);
    for (int64_t r = 0; r < 2; r++) {
        for (int64_t b = 0; b < p.nmb[0]; b++) {
            const int64_t *idx;
            int64_t k = pack_micro(&p, 0, r, b, &idx);
            assert_true(k >= 1);
            for (int64_t i = 0; i < k; i++) {
                cost[r] += pack_flops(&m, len[idx[i]]);
            }
        }
    }
    /* the three long ones dominate: two against the longest is the best split */
    assert_true(cost[0] < 2 * cost[1] && cost[1] < 2 * cost[0]);
    pack_plan_fini(&p);
}

/* Every kept sample once, equal micro-batch counts, no bin above the cap unless it is one sample.
 */
static void random_invariants(void **state)
{
    struct rng_py r;
    int planned = 0;
    (void)state;
    rng_py_seed(&r, 7);
    for (int round = 0; round < 300; round++) {
        int64_t dp = (int64_t)1 << rng_py_randbelow(&r, 3);
        struct pack_opts o = {.dp = dp, .cp = 1 + rng_py_randbelow(&r, 2), .dynamic = 1};
        int64_t len[400], id[400], n = 0, rollouts, seen[400] = {0}, total = 0;
        struct pack_plan p;
        o.global_batch = dp * (1 + rng_py_randbelow(&r, 8));
        o.mb_group = rng_py_randbelow(&r, 3);
        o.max_tokens = 20 + rng_py_randbelow(&r, 40);
        o.balance_data = (int)rng_py_randbelow(&r, 2);
        rollouts = o.global_batch * (1 + rng_py_randbelow(&r, 2)) + rng_py_randbelow(&r, 4);
        for (int64_t k = 0; k < rollouts; k++) {
            for (int64_t c = 1 + rng_py_randbelow(&r, 3); c; c--) {
                id[n] = 1000 + k;
                len[n++] = 1 + rng_py_randbelow(&r, 40);
            }
        }
        int rc = pack_schedule(&o, n, len, id, &p, &e);
        if (rc) { /* rounding up to whole rounds of ranks can ask for more bins than samples */
            assert_non_null(strstr(e.msg, "samples cannot fill the"));
            assert_true(dp * (o.mb_group > 1 ? o.mb_group : 1) > 1);
            continue;
        }
        planned++;
        assert_int_equal(p.nsteps, rollouts / o.global_batch);
        for (int64_t s = 0; s < p.nsteps; s++) {
            assert_int_equal(p.rollouts[s], o.global_batch);
            assert_int_equal(p.nmb[s] % (o.mb_group > 1 ? o.mb_group : 1), 0);
            for (int64_t k = 0; k < dp * p.nmb[s]; k++) {
                const int64_t *idx;
                int64_t c = pack_micro(&p, s, k / p.nmb[s], k % p.nmb[s], &idx), sum = 0;
                assert_true(c >= 1);
                for (int64_t i = 0; i < c; i++) {
                    seen[idx[i]]++;
                    sum += len[idx[i]];
                    total++;
                    assert_int_equal((id[idx[i]] - 1000) / o.global_batch, s);
                }
                assert_true(c == 1 || sum <= o.max_tokens * o.cp);
            }
        }
        assert_int_equal(total, p.nitems);
        assert_int_equal(p.dropped, n - total);
        for (int64_t i = 0; i < n; i++) {
            assert_int_equal(seen[i], id[i] - 1000 < p.nsteps * o.global_batch);
        }
        pack_plan_fini(&p);
    }
    assert_true(planned > 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(karmarkar_karp),    cmocka_unit_test(first_fit_and_split),
        cmocka_unit_test(schedule_goldens),  cmocka_unit_test(rollouts_stay_together),
        cmocka_unit_test(refusals),          cmocka_unit_test(flops),
        cmocka_unit_test(random_invariants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
