/* Owns the walk over candidates. The order is total (logit, then id), so it is enough to put the
 * candidates above a falling threshold into a heap and take them from it until the walk ends: the
 * tail is rarely looked at. Passes over the whole vocabulary are what a token costs here, so they
 * go by vectors. */
#include "engine/sampler.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "num/vmath.h"

struct sampler_cand {
    float x;
    int32_t id;
};
struct sampler {
    struct sampler_cand *cand; /* (n) */
    float *y, *p;              /* (n) the adjusted row and its exponentials */
    int32_t *count;            /* (n) 0 between calls */
};

struct sampler *sampler_new(int n)
{
    struct sampler *s = mem_alloc(sizeof *s);
    s->cand = mem_alloc(sizeof *s->cand * (size_t)n);
    s->y = mem_alloc(sizeof *s->y * (size_t)n);
    s->p = mem_alloc(sizeof *s->p * (size_t)n);
    s->count = mem_alloc(sizeof *s->count * (size_t)n);
    return s;
}

void sampler_free(struct sampler *s)
{
    if (s) {
        mem_free(s->cand);
        mem_free(s->y);
        mem_free(s->p);
        mem_free(s->count);
        mem_free(s);
    }
}

/* 1 when a comes before b. */
static inline int sampler_before(const struct sampler_cand *a, const struct sampler_cand *b)
{
    return a->x != b->x ? a->x > b->x : a->id < b->id;
}

static int sampler_penalizes(const struct sampler_params *q)
{
    return (q->repetition_penalty != 0.0f && q->repetition_penalty != 1.0f) ||
           q->frequency_penalty != 0.0f || q->presence_penalty != 0.0f;
}

int sampler_adjusts(const struct sampler_params *q, const struct sampler_past *past)
{
    return q->nbias > 0 || past->nbanned > 0 || (past->n > 0 && sampler_penalizes(q));
}

static void sampler_penalize(struct sampler *s, const struct sampler_params *q,
                             const struct sampler_past *past, float t)
{
    float r = q->repetition_penalty != 0.0f ? q->repetition_penalty : 1.0f;

    for (int i = 0; i < past->n; i++) {
        s->count[past->tokens[i]]++;
    }
    for (int i = 0; i < past->n; i++) {
        int32_t id = past->tokens[i];
        if (s->count[id]) {
            float loss = q->frequency_penalty * (float)s->count[id] + q->presence_penalty;
            float v = s->y[id] - loss / t;
            s->y[id] = v > 0.0f ? v / r : v * r;
            s->count[id] = 0;
        }
    }
}

float sampler_adjust(struct sampler *s, const struct sampler_params *q,
                     const struct sampler_past *past, const float *x, int n, const float **y,
                     const float **p)
{
    float t = q->temperature > 0.0f ? q->temperature : 1.0f, max = -INFINITY;

    memcpy(s->y, x, sizeof *x * (size_t)n);
    if (sampler_penalizes(q)) {
        sampler_penalize(s, q, past, t);
    }
    for (int i = 0; i < q->nbias; i++) {
        s->y[q->bias[i].id] += q->bias[i].value / t;
    }
    for (int i = 0; i < past->nbanned; i++) {
        s->y[past->banned[i]] = -INFINITY;
    }
    for (int i = 0; i < n; i++) {
        max = s->y[i] > max ? s->y[i] : max;
    }
    *y = s->y;
    if (q->temperature > 0.0f) {
        for (int i = 0; i < n; i++) {
            s->p[i] = vmath_expf(s->y[i] - max);
        }
        *p = s->p;
    }
    return max;
}

/* ---- candidates in order -----------------------------------------------------------------------
 */

typedef float sampler_f4 __attribute__((vector_size(16)));
typedef int32_t sampler_i4 __attribute__((vector_size(16)));
typedef double sampler_d4 __attribute__((vector_size(32)));

#define SAMPLER_BLOCK 32

static inline sampler_f4 sampler_load(const float *x)
{
    sampler_f4 v;
    memcpy(&v, x, sizeof v);
    return v;
}

/* 1 when one of SAMPLER_BLOCK values is in [lo, hi). */
static inline int sampler_any(const float *x, float lo, float hi)
{
    const sampler_f4 a = {lo, lo, lo, lo}, b = {hi, hi, hi, hi};
    sampler_i4 in = {0};
    int64_t half[2];
    for (int i = 0; i < SAMPLER_BLOCK; i += 4) {
        sampler_f4 v = sampler_load(x + i);
        in |= (v >= a) & (v < b);
    }
    memcpy(half, &in, sizeof half);
    return (half[0] | half[1]) != 0;
}

/* Moves the candidate at i of a heap of k down to its place. */
static void sampler_sink(struct sampler_cand *c, int k, int i)
{
    struct sampler_cand v = c[i];
    for (int child = 2 * i + 1; child < k; child = 2 * i + 1) {
        if (child + 1 < k && sampler_before(&c[child + 1], &c[child])) {
            child++;
        }
        if (!sampler_before(&c[child], &v)) {
            break;
        }
        c[i] = c[child];
        i = child;
    }
    c[i] = v;
}

/* Makes a heap of the candidates with lo <= x < hi; returns how many. */
static int sampler_band(struct sampler *s, const float *x, int n, float lo, float hi)
{
    int k = 0;
    for (int i = 0; i < n; i += SAMPLER_BLOCK) {
        int end = i + SAMPLER_BLOCK < n ? i + SAMPLER_BLOCK : n;
        if (end - i == SAMPLER_BLOCK && !sampler_any(x + i, lo, hi)) {
            continue;
        }
        for (int j = i; j < end; j++) {
            if (x[j] >= lo && x[j] < hi) {
                s->cand[k].x = x[j];
                s->cand[k].id = j;
                k++;
            }
        }
    }
    for (int i = k / 2 - 1; i >= 0; i--) {
        sampler_sink(s->cand, k, i);
    }
    return k;
}

/* Takes the first of the *k candidates left. */
static int32_t sampler_next(struct sampler *s, int *k)
{
    int32_t id = s->cand[0].id;
    s->cand[0] = s->cand[--*k];
    sampler_sink(s->cand, *k, 0);
    return id;
}

/* Walks in order through bands of falling logits; stops when `stop` says so. */
struct sampler_walk {
    double sum;       /* of candidates walked */
    double target;    /* stop when sum reaches it; the candidate there is the pick */
    double keep;      /* top-p: stop after the candidate that brings the sum to it; < 0 off */
    float floor;      /* min-p: candidates with p below are out */
    int count, limit; /* candidates walked; top-k limit, 0 off */
    int32_t last;     /* candidate last walked */
};

static void sampler_run(struct sampler *s, struct sampler_walk *w, const float *x, const float *p,
                        int n, float max)
{
    static const float depth[] = {3.0f, 8.0f, 16.0f, 1e30f};
    float hi = max + 1.0f;
    hi = hi > max ? hi : 3.4e38f;
    for (int b = 0; b < 4; b++) {
        float lo = b == 3 ? -3.4e38f : max - depth[b];
        int k;
        if (lo >= hi) {
            continue;
        }
        k = sampler_band(s, x, n, lo, hi);
        while (k > 0) {
            int32_t id;
            if (w->limit && w->count == w->limit) {
                return;
            }
            id = sampler_next(s, &k);
            if (w->count && p[id] < w->floor) {
                return;
            }
            w->sum += (double)p[id];
            w->count++;
            w->last = p[id] > 0.0f || w->count == 1 ? id : w->last;
            if (w->sum >= w->target || (w->keep >= 0.0 && w->sum >= w->keep)) {
                return;
            }
        }
        hi = lo;
    }
}

static double sampler_total(const float *p, int n)
{
    double t = 0.0;
    for (int i = 0; i < n; i++) {
        t += (double)p[i];
    }
    return t;
}

/* The same in no particular order. Of n values that are not negative both sums are within n 2^-53
 * of the true one, so *off bounds how far they are from each other. */
static double sampler_total_about(const float *p, int n, double *off)
{
    sampler_d4 a = {0}, b = {0}, c = {0}, d = {0};
    double t = 0.0;
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        a += __builtin_convertvector(sampler_load(p + i), sampler_d4);
        b += __builtin_convertvector(sampler_load(p + i + 4), sampler_d4);
        c += __builtin_convertvector(sampler_load(p + i + 8), sampler_d4);
        d += __builtin_convertvector(sampler_load(p + i + 12), sampler_d4);
    }
    for (; i < n; i++) {
        t += (double)p[i];
    }
    a += b + (c + d);
    t += (a[0] + a[1]) + (a[2] + a[3]);
    *off = t * (double)n * 0x1p-51;
    return t;
}

/* The k-th largest candidate in order bounds the kept set; its sum is taken in ascending id. */
static double sampler_total_kept(const float *x, const float *p, int n, float edge, int32_t edge_id)
{
    double t = 0.0;
    for (int i = 0; i < n; i++) {
        if (x[i] > edge || (x[i] == edge && i <= edge_id)) {
            t += (double)p[i];
        }
    }
    return t;
}

void sampler_top(struct sampler *s, const float *x, int n, float max, int k, int32_t *ids)
{
    static const float depth[] = {3.0f, 8.0f, 16.0f};
    float hi = INFINITY;
    int have = 0;

    for (int b = 0; b < 4 && have < k; b++) {
        float lo = b == 3 ? -INFINITY : max - depth[b];
        int got;
        if (lo >= hi) {
            continue;
        }
        got = sampler_band(s, x, n, lo, hi);
        while (got > 0 && have < k) {
            ids[have++] = sampler_next(s, &got);
        }
        hi = lo;
    }
    while (have < k) { /* what is not a number has no place in the order */
        ids[have++] = 0;
    }
}

/* The walk's target is u times a total that is known up to `off`: 1 when the candidate that it
 * gives is the same wherever in that range the total lies. */
static int sampler_try(struct sampler *s, const float *x, const float *p, int n, float max,
                       double u, int32_t *pick)
{
    double off, total = sampler_total_about(p, n, &off);
    struct sampler_walk w = {0.0, u * (total - off), -1.0, -1.0f, 0, 0, 0};

    sampler_run(s, &w, x, p, n, max);
    *pick = w.last;
    return w.sum >= u * (total + off);
}

int32_t sampler_pick(struct sampler *s, const struct sampler_params *q, const float *x,
                     const float *p, int n, float max, double u)
{
    struct sampler_walk w = {0.0, 1e300, -1.0, -1.0f, 0, 0, 0};
    int limit = q->top_k > 0 && q->top_k < n ? q->top_k : 0;
    double total;

    if (q->temperature <= 0.0f) {
        for (int i = 0; i < n; i++) {
            if (x[i] == max) {
                return i;
            }
        }
        return 0;
    }
    w.limit = limit;
    if (q->top_p < 1.0f || q->min_p > 0.0f) {
        /* the kept set is a prefix of the walk: its own sum is the total */
        w.keep = q->top_p < 1.0f ? (double)q->top_p * sampler_total(p, n) : -1.0;
        w.floor = q->min_p > 0.0f ? q->min_p : -1.0f;
        sampler_run(s, &w, x, p, n, max);
        total = w.sum;
        limit = w.count;
    } else if (limit) {
        sampler_run(s, &w, x, p, n, max);
        total = sampler_total_kept(x, p, n, x[w.last], w.last);
    } else {
        int32_t pick;
        if (sampler_try(s, x, p, n, max, u, &pick)) {
            return pick;
        }
        total = sampler_total(p, n);
    }
    w = (struct sampler_walk){0.0, u * total, -1.0, -1.0f, 0, limit, 0};
    sampler_run(s, &w, x, p, n, max);
    return w.last;
}
