/* Owns the yardstick of the products inside a model: one oneDNN primitive per shape, timed on its
 * own. A weight's gradient gets both operands as they lie in memory, as ours does. */
#include "cli/bench_peer.h"

#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "base/status.h"
#include "cli/bench.h"
#include "cli/bench_prof.h"
#include "cli/bench_rand.h"
#include "cli/onednn.h"

#define PEER_BLOCK  ((size_t)640 << 20) /* bytes of weights that the products walk over */
#define PEER_SHAPES 32
#define PEER_CALLS  3 /* of a shape in one round */

struct peer_shape {
    const struct bench_call *c; /* the first such call */
    struct onednn_matmul *mm;
    double best;
};

struct bench_peer {
    int n;
    struct peer_shape shape[PEER_SHAPES];
    struct bench_call call[PEER_SHAPES]; /* copies: the profile's own may move */
    char *block, *y;
    size_t at, ysize;
};

static int peer_same(const struct bench_call *a, const struct bench_call *b)
{
    return a->op == b->op && a->m == b->m && a->n == b->n && a->k == b->k;
}

static int peer_find(const struct bench_peer *b, const struct bench_call *c)
{
    int i = 0;
    while (i < b->n && !peer_same(b->shape[i].c, c)) {
        i++;
    }
    return i;
}

/* A product whose operands lie without gaps. */
static int peer_takes(const struct bench_call *c)
{
    return c->op <= BENCH_LINEAR_DW && c->a.ld == c->a.cols && c->b.ld == c->b.cols;
}

static void peer_add(struct bench_peer *b, struct onednn *lib, const struct bench_call *c)
{
    struct peer_shape *s = &b->shape[b->n];
    struct err e = {0};
    size_t y = (size_t)c->m * (size_t)c->n * 4;
    int rc = c->op == BENCH_LINEAR_DW ? onednn_matmul_new_grad(lib, c->m, c->n, c->k, &s->mm, &e)
                                      : onednn_matmul_new(lib, c->m, c->n, c->k, &s->mm, &e);
    if (rc == STATUS_OK) {
        b->call[b->n] = *c;
        s->c = &b->call[b->n++];
        b->ysize = y > b->ysize ? y : b->ysize;
    }
}

struct bench_peer *bench_peer_new(struct onednn *lib, const struct bench_prof *p)
{
    struct bench_peer *b = mem_alloc(sizeof *b);
    uint64_t s = 3;

    for (int i = 0; i < p->n && b->n < PEER_SHAPES; i++) {
        if (peer_takes(&p->call[i]) && peer_find(b, &p->call[i]) == b->n) {
            peer_add(b, lib, &p->call[i]);
        }
    }
    b->block = mem_map(PEER_BLOCK);
    b->y = mem_map(b->ysize + 64);
    if (!b->block || !b->y) {
        bench_peer_free(b);
        return NULL;
    }
    for (size_t i = 0; i < PEER_BLOCK / 2; i++) {
        ((uint16_t *)(void *)b->block)[i] = dtype_to_bf16(0.05f * bench_rand_value(&s));
    }
    return b;
}

void bench_peer_free(struct bench_peer *b)
{
    if (b) {
        for (int i = 0; i < b->n; i++) {
            onednn_matmul_free(b->shape[i].mm);
        }
        mem_unmap(b->block, PEER_BLOCK);
        mem_unmap(b->y, b->ysize + 64);
        mem_free(b);
    }
}

/* The next weight of the block. */
static const void *peer_weight(struct bench_peer *b, const struct onednn_matmul *mm)
{
    size_t n = (onednn_matmul_size(mm) + 4095) / 4096 * 4096;
    if (b->at + n > PEER_BLOCK) {
        b->at = 0;
    }
    b->at += n;
    return b->block + b->at - n;
}

void bench_peer_round(struct bench_peer *b)
{
    struct timespec pause = {0, 3000000}; /* idle threads fall asleep meanwhile */
    nanosleep(&pause, NULL);
    for (int i = 0; i < b->n; i++) {
        struct peer_shape *s = &b->shape[i];
        if (onednn_matmul_size(s->mm) > PEER_BLOCK) {
            continue;
        }
        for (int k = 0; k < PEER_CALLS; k++) {
            const void *w = s->c->op == BENCH_LINEAR_DW ? s->c->b.data : peer_weight(b, s->mm);
            double t0 = bench_now(), t;
            onednn_matmul_run(s->mm, s->c->a.data, w, b->y);
            t = bench_now() - t0;
            s->best = s->best <= 0.0 || t < s->best ? t : s->best;
        }
    }
    nanosleep(&pause, NULL);
}

void bench_peer_apply(const struct bench_peer *b, struct bench_prof *p)
{
    for (int i = 0; i < p->n; i++) {
        int k = peer_find(b, &p->call[i]);
        if (k < b->n) {
            p->call[i].theirs = b->shape[k].best;
        }
    }
}
