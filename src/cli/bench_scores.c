/* Owns the limit of attention: scores (queries by keys over a head's terms), values (queries by a
 * head over keys) and, of the backward pass, keys by a head over queries. Blocks of 64 queries of a
 * group, as the pages have them, so that operands and results stay in the caches. */
#include "cli/bench_scores.h"

#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "cli/bench.h"
#include "cli/bench_rand.h"
#include "num/device.h"

#define SCORES_CALLS 8 /* of a product in a row */

enum { SCORES, VALUES, KEYS, NPRODUCTS };

struct bench_scores {
    struct device *dev;
    struct {
        struct tensor x, y;
        struct wview w;
        double best; /* seconds of one call */
    } p[NPRODUCTS];
    int rounds;
};

/* y (m, n) over k terms, of random values. */
static void scores_product(struct bench_scores *s, int i, int m, int n, int k, enum dtype out)
{
    struct tensor w;
    struct err e;
    uint64_t seed = 3;
    size_t size = (size_t)(m > n ? m : n) * (size_t)k;
    float *v = mem_alloc(sizeof *v * size);

    for (size_t j = 0; j < size; j++) {
        v[j] = bench_rand_value(&seed);
    }
    ASSERT(device_tensor(s->dev, &s->p[i].x, DTYPE_BF16, m, k, &e) == STATUS_OK &&
           device_tensor(s->dev, &s->p[i].y, out, m, n, &e) == STATUS_OK &&
           device_tensor(s->dev, &w, DTYPE_BF16, n, k, &e) == STATUS_OK &&
           device_wview(s->dev, &s->p[i].w, n, k, 0, &e) == STATUS_OK);
    device_upload_f32(&s->p[i].x, v);
    device_upload_f32(&w, v);
    s->dev->ops->pack(s->dev, &w, &s->p[i].w);
    device_tensor_free(&w);
    mem_free(v);
}

struct bench_scores *bench_scores_new(struct device *d, int group, int head_dim, int keys)
{
    struct bench_scores *s = mem_alloc(sizeof *s);
    int queries = group * PLAN_KV_BLOCK;
    keys = (keys + 31) / 32 * 32;
    s->dev = d;
    scores_product(s, SCORES, queries, keys, head_dim, DTYPE_F32);
    scores_product(s, VALUES, queries, head_dim, keys, DTYPE_F32);
    scores_product(s, KEYS, keys, head_dim, queries, DTYPE_F32);
    return s;
}

void bench_scores_round(struct bench_scores *s)
{
    for (int i = 0; i < NPRODUCTS; i++) {
        double t0 = bench_now(), t;
        for (int j = 0; j < SCORES_CALLS; j++) {
            s->dev->ops->linear(s->dev, &s->p[i].x, &s->p[i].w, NULL, NULL, &s->p[i].y);
        }
        t = (bench_now() - t0) / SCORES_CALLS;
        s->p[i].best = s->rounds == 0 || t < s->p[i].best ? t : s->p[i].best;
    }
    s->rounds++;
}

double bench_scores_seconds(const struct bench_scores *s, double flops, int backward)
{
    const struct tensor *y = &s->p[SCORES].y;
    double one = 2.0 * (double)y->rows * (double)y->cols * (double)s->p[SCORES].x.cols;
    if (!s->rounds) {
        return 0.0;
    }
    if (backward) { /* scores and their gradient, queries' gradient, keys' and values' */
        return flops / 5.0 / one *
               (2.0 * s->p[SCORES].best + s->p[VALUES].best + 2.0 * s->p[KEYS].best);
    }
    return flops / 2.0 / one * (s->p[SCORES].best + s->p[VALUES].best);
}

void bench_scores_free(struct bench_scores *s)
{
    if (s) {
        for (int i = 0; i < NPRODUCTS; i++) {
            device_tensor_free(&s->p[i].x);
            device_tensor_free(&s->p[i].y);
            device_wview_free(&s->p[i].w);
        }
        mem_free(s);
    }
}
