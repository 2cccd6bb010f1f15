/* Owns how the state of a trainer is summed: blocks of rows on all threads, then the sums of the
 * blocks. A block's size is fixed, so threads change nothing. */
#include "train/statesum.h"

#include <stdio.h>
#include <string.h>
#define XXH_STATIC_LINKING_ONLY /* a state on the stack */
#include <xxhash.h>

#include "base/mem.h"
#include "base/status.h"
#include "base/thread.h"
#include "model/weights.h"
#include "model/wsum.h"
#include "train/optim.h"

#define STATESUM_ROWS  256 /* of a block */
#define STATESUM_CHUNK 512 /* rows that are unpacked at a time, a multiple of the above */

struct statesum_work {
    const struct tensor *t; /* rows to sum, in the host's memory */
    int64_t rows;           /* of t */
    int64_t col0, cols;
    uint64_t *block; /* sums, one for each block */
};

static void statesum_block(void *arg, int task, int worker)
{
    const struct statesum_work *w = arg;
    int64_t from = (int64_t)task * STATESUM_ROWS, to = from + STATESUM_ROWS;
    size_t one = dtype_size(w->t->dtype);
    XXH3_state_t x;

    (void)worker;
    XXH3_64bits_reset(&x);
    for (int64_t r = from; r < to && r < w->rows; r++) {
        const char *row = device_host_row(w->t, r);
        XXH3_64bits_update(&x, row + (size_t)w->col0 * one, (size_t)w->cols * one);
    }
    w->block[task] = XXH3_64bits_digest(&x);
}

static int statesum_blocks(int64_t rows)
{
    return (int)((rows + STATESUM_ROWS - 1) / STATESUM_ROWS);
}

/* Sums of the blocks of all rows of t from col0 on. */
static void statesum_rows(struct pool *pool, const struct tensor *t, int64_t rows, int64_t col0,
                          int64_t cols, uint64_t *block)
{
    struct statesum_work w = {t, rows, col0, cols, block};
    pool_run(pool, statesum_block, &w, statesum_blocks(rows));
}

/* The weights of a part of a parameter that is kept packed. */
static int statesum_packed(struct optim *o, const struct param *p, const struct weights_part *part,
                           struct tensor *room, uint64_t *block, struct err *e)
{
    struct device *d = o->w->dev;

    if (room->cols != p->cols) {
        int rc;
        device_tensor_free(room);
        rc = device_tensor(d, room, device_half(d), STATESUM_CHUNK, p->cols, e);
        if (rc != STATUS_OK) {
            room->cols = 0;
            return rc;
        }
    }
    for (int64_t r = 0; r < part->rows; r += STATESUM_CHUNK) {
        int64_t n = part->rows - r < STATESUM_CHUNK ? part->rows - r : STATESUM_CHUNK;
        struct tensor t = tensor_rows(room, 0, n);
        d->ops->unpack(d, &p->view, part->row0 + r, &t);
        statesum_rows(d->pool, &t, n, 0, p->cols, block + r / STATESUM_ROWS);
    }
    return STATUS_OK;
}

/* Values that are not in the host's memory come as f32, and are summed as what they are there. */
static int statesum_far(struct optim *o, enum statesum_part part, int i,
                        const struct weights_part *t, uint64_t *sum, struct err *e)
{
    static const enum optim_part parts[] = {OPTIM_WEIGHT, OPTIM_WEIGHT, OPTIM_MASTER, OPTIM_M,
                                            OPTIM_V};
    const struct param *p = &o->w->params[i];
    int vector = p->kind == WEIGHTS_VECTOR;
    int64_t rows = vector ? 1 : t->rows, cols = vector && p->nparts > 1 ? t->rows : p->cols;
    float *x = mem_alloc(sizeof *x * (size_t)OPTIM_ROWS * (size_t)p->cols);
    XXH3_state_t h;
    int rc = STATUS_OK;

    XXH3_64bits_reset(&h);
    for (int64_t r = 0; rc == STATUS_OK && r < rows; r += OPTIM_ROWS) {
        int64_t n = rows - r < OPTIM_ROWS ? rows - r : OPTIM_ROWS;
        rc = optim_read(o, parts[part], i, vector ? 0 : t->row0 + r, n, x, e);
        XXH3_64bits_update(&h, x + (vector && p->nparts > 1 ? t->row0 : 0),
                           sizeof *x * (size_t)(n * cols));
    }
    *sum = XXH3_64bits_digest(&h);
    mem_free(x);
    return rc;
}

/* One tensor of a parameter. */
static int statesum_part(struct optim *o, enum statesum_part part, int i,
                         const struct weights_part *t, struct tensor *room, uint64_t *sum,
                         struct err *e)
{
    const struct param *p = &o->w->params[i];
    const struct tensor *own = part == STATESUM_WEIGHT   ? &p->w16
                               : part == STATESUM_MASTER ? &o->master[i]
                               : part == STATESUM_M      ? &o->m[i]
                                                         : &o->v[i];
    int vector = p->kind == WEIGHTS_VECTOR;
    int64_t rows = vector ? 1 : t->rows, cols = vector && p->nparts > 1 ? t->rows : p->cols;
    int64_t col0 = vector && p->nparts > 1 ? t->row0 : 0;
    int blocks = statesum_blocks(rows), rc = STATUS_OK;
    uint64_t *block;

    if (o->w->dev->mem) {
        return statesum_far(o, part, i, t, sum, e);
    }
    block = mem_alloc(sizeof *block * (size_t)blocks);
    if (own->data) {
        struct tensor v = tensor_rows(own, vector ? 0 : t->row0, rows);
        statesum_rows(o->w->dev->pool, &v, rows, col0, cols, block);
    } else {
        rc = statesum_packed(o, p, t, room, block, e);
    }
    *sum = XXH3_64bits(block, sizeof *block * (size_t)blocks);
    mem_free(block);
    return rc;
}

static void statesum_room(struct statesum *s, int n)
{
    s->name = mem_alloc(sizeof *s->name * (size_t)(n + 1));
    s->sum = mem_alloc(sizeof *s->sum * (size_t)(n + 1));
}

int statesum_take(struct optim *o, enum statesum_part part, struct statesum *out, struct err *e)
{
    const struct weights *w = o->w;
    struct statesum s = {0};
    struct tensor room = {0};
    int n = 0, rc = STATUS_OK;

    for (int i = 0; i < w->nparams; i++) {
        n += part == STATESUM_GRAD ? 1 : w->params[i].nparts;
    }
    statesum_room(&s, n);
    for (int i = 0; rc == STATUS_OK && i < w->nparams; i++) {
        const struct param *p = &w->params[i];
        if (part == STATESUM_GRAD) {
            if (o->step_sums > 0) {
                wsum_name(p, s.name[s.n]);
                s.sum[s.n++] = o->grad_sum[i];
            }
            continue;
        }
        for (int j = 0; rc == STATUS_OK && j < p->nparts; j++, s.n++) {
            snprintf(s.name[s.n], sizeof s.name[s.n], "%s", p->part[j].name);
            rc = statesum_part(o, part, i, &p->part[j], &room, &s.sum[s.n], e);
        }
    }
    device_tensor_free(&room);
    if (rc != STATUS_OK) {
        statesum_fini(&s);
        return rc;
    }
    *out = s;
    return STATUS_OK;
}

void statesum_fini(struct statesum *s)
{
    mem_free(s->name);
    mem_free(s->sum);
    memset(s, 0, sizeof *s);
}
