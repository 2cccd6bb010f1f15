/* A stop-watch around every operation of a device: it replaces the device's table by one that times
 * each call, remembers the fastest of several equal runs, and can run the products alone.
 *
 *     struct bench_prof p;
 *     bench_prof_init(&p, dev);
 *     for (round = 0; round < 5; round++) {
 *         bench_prof_begin(&p);
 *         forward_run(...);                  the same calls each time
 *         bench_prof_end(&p);
 *         bench_prof_bare(&p);               its products again, with nothing between them
 *     }
 *     bench_prof_seconds(&p), bench_prof_bare_seconds(&p); bench_prof_print(&p, ...);
 *     bench_prof_fini(&p);                   puts the device's own table back
 *
 * Times are sums over the calls of each call's shortest time, or of the shortest of its kind (the
 * same operation on the same shape), so that a machine that is disturbed now and then still gives
 * what the code takes. One profile exists at a time. */
#ifndef CLI_BENCH_PROF_H
#define CLI_BENCH_PROF_H

#include "num/device.h"

enum bench_op {
    BENCH_LINEAR,
    BENCH_LINEAR_DX,
    BENCH_LINEAR_DW,
    BENCH_BIAS_DW,
    BENCH_RMSNORM,
    BENCH_RMSNORM_BWD,
    BENCH_ROPE_KV,
    BENCH_ROPE_KV_BWD,
    BENCH_ATTN,
    BENCH_ATTN_BWD,
    BENCH_GLU,
    BENCH_GLU_BWD,
    BENCH_EMBED,
    BENCH_EMBED_BWD,
    BENCH_LOGP,
    BENCH_LOGP_BWD,
    BENCH_EXPS,
    BENCH_GATHER,
    BENCH_SCATTER,
    BENCH_COPY,
    BENCH_CONVERT,
    BENCH_SUMSQ,
    BENCH_ADAMW,
    BENCH_PACK,
    BENCH_NOPS
};

/* One call of the run. */
struct bench_call {
    enum bench_op op;
    int m, n, k;         /* products: y (m, n) over k terms; others: rows, columns, 0 */
    double flops, bytes; /* work, and memory that must be touched at least once */
    double best, bare;   /* shortest seconds; bare: products alone, 0 for the others */
    double theirs;       /* the same product by oneDNN; 0: not known */
    int again;           /* 1: a product that was computed before (no part of the limit) */
    /* a product's arguments */
    struct tensor a, b, c;
    const struct wview *w;
    struct leaf_rows leaves;
};

struct bench_prof {
    struct device *dev;
    const struct device_ops *real;
    int n, cap;
    struct bench_call *call;
    int rounds, at;
    double t0, spent;  /* of the round under way: its start, seconds inside calls */
    double rest;       /* shortest time of a round outside the calls */
    double best_round; /* shortest whole round */
    int bare_rounds;
    int by_kind; /* 1: a call counts as the shortest of its kind; 0: as its own shortest */
};

void bench_prof_init(struct bench_prof *p, struct device *d);
void bench_prof_fini(struct bench_prof *p);
void bench_prof_begin(struct bench_prof *p);
void bench_prof_end(struct bench_prof *p);
/* Marks products beyond the first `rows` rows of one weight as computed again. */
void bench_prof_once(struct bench_prof *p, const struct wview *w, int64_t rows);
/* Runs every product of the run once more, without bias and residual. */
void bench_prof_bare(struct bench_prof *p);

double bench_prof_seconds(const struct bench_prof *p);
/* Of the products, each as the faster of ours and oneDNN computes it. */
double bench_prof_bare_seconds(const struct bench_prof *p);
/* How much of that are attention's, at the speed of the fastest of the others. */
double bench_prof_attn_seconds(const struct bench_prof *p);
/* Best speed of a bare product, in operations per second; 0 before bench_prof_bare. */
double bench_prof_rate(const struct bench_prof *p);
/* A table of the run by operation. The bounds are `rate`, and `read`, the memory's speed in bytes
 * per second. */
void bench_prof_print(const struct bench_prof *p, const char *title, double rate, double read);

#endif
