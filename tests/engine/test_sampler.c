/* The sampler against contract C3 as written: all candidates sorted by (logit descending, id
 * ascending), cut by top-k, top-p and min-p, walked until the f64 sum reaches u times the total.
 * Plus what follows from it: frequencies equal probabilities. */
#include "support.h"

#include <math.h>

#include "base/mem.h"
#include "base/rng.h"
#include "engine/sampler.h"
#include "num/vmath.h"

enum { MAX_VOCAB = 3000 };

/* ---- the definition ----------------------------------------------------------------------------
 */

static const float *naive_x;

static int naive_order(const void *a, const void *b)
{
    int i = *(const int *)a, k = *(const int *)b;
    if (naive_x[i] != naive_x[k]) {
        return naive_x[i] > naive_x[k] ? -1 : 1;
    }
    return i < k ? -1 : 1;
}

/* How many of the sorted candidates are kept. A candidate of weight 0 is none. */
static int naive_kept(const struct sampler_params *q, const int *order, const float *p, int n)
{
    double all = 0.0, sum = 0.0;
    int kept = 0;

    for (int i = 0; i < n; i++) {
        all += (double)p[i];
    }
    while (kept < n && p[order[kept]] > 0.0f) {
        if (q->top_k > 0 && kept == q->top_k) {
            break;
        }
        if (kept && q->min_p > 0.0f && p[order[kept]] < q->min_p) {
            break;
        }
        if (kept && q->top_p < 1.0f && sum >= (double)q->top_p * all) {
            break;
        }
        sum += (double)p[order[kept++]];
    }
    return kept;
}

static int32_t naive_pick(const struct sampler_params *q, const float *x, const float *p, int n,
                          double u)
{
    static int order[MAX_VOCAB];
    static char in[MAX_VOCAB];
    double total = 0.0, sum = 0.0;
    int kept;

    for (int i = 0; i < n; i++) {
        order[i] = i;
        in[i] = 0;
    }
    naive_x = x;
    qsort(order, (size_t)n, sizeof *order, naive_order);
    if (q->temperature <= 0.0f) {
        return order[0];
    }
    kept = naive_kept(q, order, p, n);
    for (int i = 0; i < kept; i++) {
        in[order[i]] = 1;
    }
    if (q->top_p < 1.0f || q->min_p > 0.0f) {
        for (int i = 0; i < kept; i++) {
            total += (double)p[order[i]];
        }
    } else {
        for (int i = 0; i < n; i++) {
            total += in[i] ? (double)p[i] : 0.0;
        }
    }
    for (int i = 0; i < kept; i++) {
        sum += (double)p[order[i]];
        if (sum >= u * total) {
            return order[i];
        }
    }
    return order[kept - 1];
}

/* ---- random rows -------------------------------------------------------------------------------
 */

static uint64_t rand_state = 3;

static uint64_t rand64(void)
{
    uint64_t z = rand_state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

static double unit(void)
{
    return (double)(rand64() >> 11) * 0x1p-53;
}

static int below(int n)
{
    return (int)(rand64() % (uint64_t)n);
}

/* About a normal distribution of deviation 1. */
static double bell(void)
{
    double s = -6.0;
    for (int i = 0; i < 12; i++) {
        s += unit();
    }
    return s;
}

enum row_kind { PLAIN, PEAKED, FLAT, TIES, FAR, MASKED, HUGE_VALUES, EDGES, ROW_KINDS };

static float row_value(enum row_kind kind)
{
    switch (kind) {
    case PEAKED: return (float)(8.0 * bell());
    case FLAT: return 1.5f;
    case TIES: return (float)below(6) * 0.5f - 20.0f;
    case FAR: return (float)(-100.0 * unit()) + (below(50) ? 0.0f : 100.0f);
    case MASKED: return below(3) ? -INFINITY : (float)bell();
    case HUGE_VALUES: return (below(2) ? 1e30f : -1e30f) * (float)(1 + below(3));
    case EDGES: /* on the depths at which the sampler cuts its bands */
        return (float)(below(5) * 4) - (below(2) ? 3.0f : 0.0f) + (below(4) ? 0.0f : 0x1p-20f);
    default: return (float)bell();
    }
}

struct row {
    int n;
    float max;
    float x[MAX_VOCAB], p[MAX_VOCAB];
};

static void row_exps(struct row *r)
{
    r->max = -INFINITY;
    for (int i = 0; i < r->n; i++) {
        r->max = r->x[i] > r->max ? r->x[i] : r->max;
    }
    for (int i = 0; i < r->n; i++) {
        r->p[i] = vmath_expf(r->x[i] - r->max);
    }
}

static void row_fill(struct row *r, enum row_kind kind, int n)
{
    r->n = n;
    for (int i = 0; i < n; i++) {
        r->x[i] = row_value(kind);
    }
    if (kind == MASKED) {
        r->x[below(n)] = 0.25f;
    }
    row_exps(r);
}

static double some_u(void)
{
    static const double ends[] = {0x1p-54, 0x1p-53, 1e-12,      1.0 - 0x1p-53, 1.0 - 0x1p-52,
                                  0.5,     0.25,    1.0 - 1e-9, 1e-300};
    return below(3) ? unit() * (1.0 - 0x1p-52) + 0x1p-53
                    : ends[below((int)(sizeof ends / sizeof *ends))];
}

static struct sampler_params some_params(void)
{
    static const float tops[] = {0.0f, 1e-6f, 0.1f, 0.5f, 0.9f, 0.95f, 0.999f, 0.9999999f};
    static const float mins[] = {1e-6f, 0.01f, 0.05f, 0.5f, 0.99f, 1.0f};
    static const int ks[] = {1, 2, 3, 20, 50, 1000, 100000, -1};
    struct sampler_params q = {.temperature = 1.0f, .top_p = 1.0f, .top_k = -1};
    int mix = below(8);

    q.top_k = mix & 1 ? ks[below(8)] : below(2) ? 0 : -1;
    q.top_p = mix & 2 ? tops[below(8)] : 1.0f;
    q.min_p = mix & 4 ? mins[below(6)] : 0.0f;
    return q;
}

/* ---- tests -------------------------------------------------------------------------------------
 */

static void check_row(struct sampler *s, const struct row *r, const struct sampler_params *q,
                      double u, int kind)
{
    int32_t got = sampler_pick(s, q, r->x, r->p, r->n, r->max, u);
    int32_t want = naive_pick(q, r->x, r->p, r->n, u);
    if (got != want) {
        fail_msg("kind %d, %d candidates, temperature %g, top-k %d, top-p %.9g, min-p %g, u %.17g:"
                 " %d (%.9g, p %g) and not %d (%.9g, p %g)",
                 kind, r->n, (double)q->temperature, q->top_k, (double)q->top_p, (double)q->min_p,
                 u, got, (double)r->x[got], (double)r->p[got], want, (double)r->x[want],
                 (double)r->p[want]);
    }
}

static void test_definition(void **state)
{
    static const int sizes[] = {1, 2, 3, 17, 64, 500, MAX_VOCAB};
    struct sampler *s = sampler_new(MAX_VOCAB);
    struct row *r = mem_alloc(sizeof *r);

    (void)state;
    for (int kind = 0; kind < ROW_KINDS; kind++) {
        for (int i = 0; i < 7; i++) {
            int rounds = sizes[i] > 500 ? 8 : 60;
            for (int k = 0; k < rounds; k++) {
                row_fill(r, (enum row_kind)kind, sizes[i]);
                for (int m = 0; m < 12; m++) {
                    struct sampler_params q = some_params();
                    check_row(s, r, &q, some_u(), kind);
                }
            }
        }
    }
    mem_free(r);
    sampler_free(s);
}

/* u exactly on, just below and just above each boundary of the walk. */
static void test_boundaries(void **state)
{
    struct sampler *s = sampler_new(MAX_VOCAB);
    struct row *r = mem_alloc(sizeof *r);
    struct sampler_params q = {.temperature = 1.0f, .top_p = 1.0f, .top_k = -1};

    (void)state;
    for (int kind = 0; kind < ROW_KINDS; kind++) {
        row_fill(r, (enum row_kind)kind, 64);
        for (int k = 0; k <= 64; k++) {
            double u = (double)k / 64.0;
            check_row(s, r, &q, u > 0.0 ? nextafter(u, 0.0) : 0x1p-60, kind);
            if (u > 0.0 && u < 1.0) {
                check_row(s, r, &q, u, kind);
                check_row(s, r, &q, nextafter(u, 1.0), kind);
            }
        }
    }
    /* four equal candidates: u in ((k-1)/4, k/4] is candidate k */
    for (int i = 0; i < 4; i++) {
        r->x[i] = 7.0f;
    }
    r->n = 4;
    row_exps(r);
    for (int k = 1; k <= 3; k++) {
        double u = (double)k / 4.0;
        assert_int_equal(sampler_pick(s, &q, r->x, r->p, 4, r->max, u), k - 1);
        assert_int_equal(sampler_pick(s, &q, r->x, r->p, 4, r->max, nextafter(u, 1.0)), k);
    }
    mem_free(r);
    sampler_free(s);
}

/* Greedy: the first of the largest, whatever the other parameters and u. */
static void test_greedy(void **state)
{
    struct sampler *s = sampler_new(MAX_VOCAB);
    struct row *r = mem_alloc(sizeof *r);

    (void)state;
    for (int kind = 0; kind < ROW_KINDS; kind++) {
        for (int k = 0; k < 50; k++) {
            struct sampler_params q = some_params();
            int first = 0;
            q.temperature = 0.0f;
            row_fill(r, (enum row_kind)kind, 1 + below(300));
            while (r->x[first] != r->max) {
                first++;
            }
            /* the engine does not compute exponentials for greedy rows */
            memset(r->p, 0xff, sizeof r->p);
            assert_int_equal(sampler_pick(s, &q, r->x, r->p, r->n, r->max, some_u()), first);
        }
    }
    mem_free(r);
    sampler_free(s);
}

/* A token that cannot happen is never chosen, however close u comes to 1. The sum of the walk and
 * the total are rounded in different orders, so the walk can end short of u times the total. */
static void test_impossible(void **state)
{
    struct sampler *s = sampler_new(MAX_VOCAB);
    struct row *r = mem_alloc(sizeof *r);
    struct sampler_params q = {.temperature = 1.0f, .top_p = 1.0f, .top_k = -1};

    (void)state;
    for (int k = 0; k < 2000; k++) {
        int32_t got;
        r->n = 2000;
        for (int i = 0; i < r->n; i++) {
            r->x[i] = below(2) ? (float)(12.0 * bell()) : -1000.0f - (float)below(100);
        }
        row_exps(r);
        got = sampler_pick(s, &q, r->x, r->p, r->n, r->max, 1.0 - 0x1p-53);
        assert_true(r->p[got] > 0.0f);
    }
    mem_free(r);
    sampler_free(s);
}

/* Chi-square of 200,000 draws over 40 candidates: below the 1e-6 point of 39 degrees (about 102).
 * The draws are a pure function, so this passes always or never. */
static double chi_square(const struct sampler_params *q, const struct row *r, const double *prob,
                         int draws)
{
    struct sampler *s = sampler_new(r->n);
    double count[64] = {0}, chi = 0.0;

    assert_true(r->n <= 64);
    for (int i = 0; i < draws; i++) {
        double u = rng_uniform(42, RNG_TRAIN, (uint64_t)(i / 100), 0, (uint32_t)(i % 100));
        count[sampler_pick(s, q, r->x, r->p, r->n, r->max, u)] += 1.0;
    }
    for (int i = 0; i < r->n; i++) {
        double want = prob[i] * draws;
        if (want == 0.0) {
            assert_true(count[i] == 0.0);
        } else {
            chi += (count[i] - want) * (count[i] - want) / want;
        }
    }
    sampler_free(s);
    return chi;
}

static void test_frequencies(void **state)
{
    struct row *r = mem_alloc(sizeof *r);
    struct sampler_params q = {.temperature = 1.0f, .top_p = 1.0f, .top_k = -1};
    double prob[64], total = 0.0, top = 0.0, chi;
    int rank[40];

    (void)state;
    r->n = 40;
    for (int i = 0; i < 40; i++) {
        r->x[i] = (float)bell();
    }
    row_exps(r);
    for (int i = 0; i < 40; i++) {
        total += exp((double)r->x[i]);
        rank[i] = 0;
        for (int k = 0; k < 40; k++) {
            rank[i] += r->x[k] > r->x[i];
        }
    }
    for (int i = 0; i < 40; i++) {
        prob[i] = exp((double)r->x[i]) / total;
    }
    chi = chi_square(&q, r, prob, 200000);
    assert_true(chi > 10.0 && chi < 102.0);
    /* top-k: the same odds among the ten best (9 degrees) */
    q.top_k = 10;
    for (int i = 0; i < 40; i++) {
        top += rank[i] < 10 ? prob[i] : 0.0;
    }
    for (int i = 0; i < 40; i++) {
        prob[i] = rank[i] < 10 ? prob[i] / top : 0.0;
    }
    chi = chi_square(&q, r, prob, 200000);
    assert_true(chi > 0.5 && chi < 45.0);
    mem_free(r);
}

/* Penalties, bias and bans as their definition says, token by token. */
static void test_adjust(void **state)
{
    struct sampler *s = sampler_new(MAX_VOCAB);
    struct row *r = mem_alloc(sizeof *r);
    float want[300];

    (void)state;
    for (int round = 0; round < 400; round++) {
        int32_t past[200], banned[3];
        struct sampler_bias bias[5];
        struct sampler_params q = {.top_p = 1.0f, .nbias = below(6), .bias = bias};
        struct sampler_past t = {past, below(200), banned, below(4)};
        const float *y, *p = NULL;
        float temperature, max, best = -INFINITY;

        row_fill(r, PLAIN, 5 + below(290));
        q.temperature = (float)below(3) * 0.8f;
        q.repetition_penalty = below(3) ? 0.5f + (float)unit() : (float)below(2);
        q.frequency_penalty = below(2) ? (float)bell() : 0.0f;
        q.presence_penalty = below(2) ? (float)bell() : 0.0f;
        for (int i = 0; i < t.n; i++) {
            past[i] = below(r->n);
        }
        for (int i = 0; i < 5; i++) {
            bias[i] = (struct sampler_bias){below(r->n), (float)(10.0 * bell())};
        }
        for (int i = 0; i < 3; i++) {
            banned[i] = below(r->n);
        }
        temperature = q.temperature > 0.0f ? q.temperature : 1.0f;
        for (int i = 0; i < r->n; i++) {
            int count = 0;
            want[i] = r->x[i];
            for (int k = 0; k < t.n; k++) {
                count += past[k] == i;
            }
            if (count) {
                want[i] -= (q.frequency_penalty * (float)count + q.presence_penalty) / temperature;
            }
            if (count && q.repetition_penalty > 0.0f) {
                want[i] = want[i] > 0.0f ? want[i] / q.repetition_penalty
                                         : want[i] * q.repetition_penalty;
            }
            for (int k = 0; k < q.nbias; k++) {
                want[i] += bias[k].id == i ? bias[k].value / temperature : 0.0f;
            }
            for (int k = 0; k < t.nbanned; k++) {
                want[i] = banned[k] == i ? -INFINITY : want[i];
            }
            best = want[i] > best ? want[i] : best;
        }
        if (!sampler_adjusts(&q, &t)) {
            assert_memory_equal(want, r->x, sizeof(float) * (size_t)r->n);
            continue;
        }
        max = sampler_adjust(s, &q, &t, r->x, r->n, &y, &p);
        assert_true(max == best);
        assert_memory_equal(y, want, sizeof(float) * (size_t)r->n);
        for (int i = 0; i < r->n && q.temperature > 0.0f; i++) {
            float e = vmath_expf(want[i] - best);
            assert_memory_equal(&p[i], &e, sizeof e);
        }
        for (int i = 0; i < t.nbanned; i++) {
            assert_int_not_equal(sampler_pick(s, &q, y, p, r->n, max, some_u()), banned[i]);
        }
    }
    mem_free(r);
    sampler_free(s);
}

/* The best candidates are the first of the sorted ones. */
static void test_top(void **state)
{
    static const int sizes[] = {1, 2, 17, 500, MAX_VOCAB};
    static int order[MAX_VOCAB];
    static int32_t ids[MAX_VOCAB];
    struct sampler *s = sampler_new(MAX_VOCAB);
    struct row *r = mem_alloc(sizeof *r);

    (void)state;
    for (int kind = 0; kind < ROW_KINDS; kind++) {
        for (int i = 0; i < 5; i++) {
            row_fill(r, (enum row_kind)kind, sizes[i]);
            for (int k = 0; k < r->n; k++) {
                order[k] = k;
            }
            naive_x = r->x;
            qsort(order, (size_t)r->n, sizeof *order, naive_order);
            for (int k = 1; k <= r->n; k = k < 20 ? k + 1 : k * 3) {
                sampler_top(s, r->x, r->n, r->max, k, ids);
                assert_memory_equal(ids, order, sizeof(int32_t) * (size_t)k);
            }
        }
    }
    mem_free(r);
    sampler_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_definition),  cmocka_unit_test(test_boundaries),
        cmocka_unit_test(test_greedy),      cmocka_unit_test(test_impossible),
        cmocka_unit_test(test_frequencies), cmocka_unit_test(test_adjust),
        cmocka_unit_test(test_top),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
