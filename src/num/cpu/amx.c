/* Products on AMX tiles. TDPBF16PS multiplies a (16, 32) by a (32, 16) block in exactly the order
 * that defines our products (even and odd chains from zero, their sum added), so results equal
 * those of the other tables bit for bit; everything that is not a product is the AVX-512 kernel. */
#include "num/cpu/vec_avx512.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "num/cpu/amx_int.h"
#include "num/cpu/kern_body.h"

static const struct kern amx_base = KERN_TABLE;

#define AMX_XFEATURE_TILEDATA   18
#define AMX_ARCH_REQ_XCOMP_PERM 0x1023

/* ---- products ----------------------------------------------------------------------------------
 *
 * A block is 32 rows and 32 columns: tiles 0-3 accumulate it, 4 and 5 hold rows of a, 6 and 7
 * columns of b (tiles 0, 1 and 4 alone where a block has up to 16 rows). Accumulators can be put
 * away and loaded again without a changed bit, so rows of a that would not stay in the second-level
 * cache are cut along the contraction into chunks: a chunk of them is packed and passes all columns
 * before the next one begins.
 *
 * Leaves join as soon as both sides of a node of the tree are there: leaf i is stored in the slot
 * after those of the open nodes before it, as many as i has bits set. Joins and results are
 * computed from memory while the tiles are busy with the next leaf, a few rows after each step. */

#define AMX_BLOCK 1024 /* values of a block */
#define AMX_SLOTS 4    /* open nodes of a tree of eight leaves, and the newest leaf */
#define AMX_CACHE                                                                                  \
    (3 << 19)          /* bytes of the second-level cache for rows of a and 64 columns of b        \
                        */
#define AMX_ROWS  512  /* most rows at a time */
#define AMX_CUT   256  /* rows when a is cut into chunks */
#define AMX_STATE 512  /* blocks of accumulators that are kept from chunk to chunk */
#define AMX_AHEAD 4096 /* bytes of b to ask for in advance when it is read only once */
#define AMX_APART 4    /* ... and of so many lines one: the processor asks for their neighbours */
#define AMX_SLICE 8    /* rows of a join between two steps, at least */
#define AMX_DELAY 2    /* steps after which stored tiles are read */
#define AMX_SEGS  (PLAN_MAX_RANGES + 2)

enum { AMX_ZERO, AMX_LOAD, AMX_KEEP };

/* A stretch of a leaf inside one chunk. */
struct amx_seg {
    int k, steps; /* first term, blocks of 32 terms */
    int begin;    /* the accumulators start from zero, from the slot, or go on */
    int slot;     /* of the leaf */
    int store;    /* 0: the next stretch goes on with the accumulators */
    int fold;     /* slots [slot - fold, slot] are joined then */
    int last;     /* ... and are the block's result */
};

/* What is to be done with accumulators after they are stored: joins of slots, rows [row, rows). */
struct amx_work {
    float *slot; /* the first of fold + 1; the accumulators go to the last of them */
    int fold, last, row, rows;
    int slice;      /* rows at a time */
    int m, n, cols; /* where a result goes */
};

struct amx_job {
    const struct kern_gemm *g;
    struct amx_seg seg[AMX_SEGS];
    int nseg;
    int slots;      /* of a block */
    int steps;      /* of the chunk */
    uint16_t *pack; /* a's chunk as tiles (rows / 16, steps), or NULL: a as it is */
    struct amx_work
        due; /* of the finished accumulators, which are still in the tiles; rows 0: none */
    struct amx_work work; /* of accumulators that are stored */
    int rows;             /* of the configured block */
    int turn;
};

/* Rounds two registers to 32 bf16 values. Tile products hold no denormals, so the instruction
 * equals our own rounding. */
static inline void amx_store32(uint16_t *out, __m512 lo, __m512 hi)
{
    _mm512_storeu_si512((void *)out, (__m512i)_mm512_cvtne2ps_pbh(hi, lo));
}

enum { AMX_NODE, AMX_PLAIN, AMX_STREAM, AMX_RESIDUAL, AMX_OTHER }; /* where joined values go */

/* A row of a finished block that is neither whole nor bf16, or has a bias. */
static void amx_other(const struct kern_gemm *g, int row, int n, int cols, __m512 lo, __m512 hi)
{
    if (cols == 32 && g->c_f32 && !g->bias && !g->residual) {
        float *out = (float *)g->c + (size_t)row * (size_t)g->ldc + (size_t)n;
        if (g->stream) {
            _mm512_stream_ps(out, lo);
            _mm512_stream_ps(out + 16, hi);
            return;
        }
        vf_store(out, lo);
        vf_store(out + 16, hi);
        return;
    }
    kern_store(g, row, n, cols < 16 ? cols : 16, lo);
    if (cols > 16) {
        kern_store(g, row, n + 16, cols - 16, hi);
    }
}

/* Joins rows [from, to) of fold + 1 slots. */
static inline __attribute__((always_inline)) void
amx_join(const struct kern_gemm *g, const struct amx_work *w, int from, int to, int fold, int kind)
{
    float *slot = w->slot + from * 32;
    size_t row = (size_t)(w->m + from), n = (size_t)w->n;
    uint16_t *out = (uint16_t *)g->c + row * (size_t)g->ldc + n;
    const uint16_t *res = (const uint16_t *)g->residual;

    if (kind == AMX_RESIDUAL) {
        res += row * (size_t)g->ldr + n;
    }
    for (int r = from; r < to; r++, slot += 32) {
        __m512 lo = _mm512_load_ps(slot + fold * AMX_BLOCK);
        __m512 hi = _mm512_load_ps(slot + fold * AMX_BLOCK + 16);
        for (int i = fold - 1; i >= 0; i--) {
            lo = _mm512_add_ps(_mm512_load_ps(slot + i * AMX_BLOCK), lo);
            hi = _mm512_add_ps(_mm512_load_ps(slot + i * AMX_BLOCK + 16), hi);
        }
        if (kind == AMX_NODE) {
            _mm512_store_ps(slot, lo);
            _mm512_store_ps(slot + 16, hi);
        } else if (kind == AMX_PLAIN) {
            amx_store32(out, lo, hi);
            out += g->ldc;
        } else if (kind == AMX_STREAM) {
            _mm512_stream_si512((void *)out, (__m512i)_mm512_cvtne2ps_pbh(hi, lo));
            out += g->ldc;
        } else if (kind == AMX_RESIDUAL) {
            amx_store32(out, vf_add(vf_loadbf(res), lo), vf_add(vf_loadbf(res + 16), hi));
            out += g->ldc;
            res += g->ldr;
        } else {
            amx_other(g, w->m + r, w->n, w->cols, lo, hi);
        }
    }
}

static inline __attribute__((always_inline)) void
amx_join_kind(const struct kern_gemm *g, const struct amx_work *w, int from, int to, int kind)
{
    switch (w->fold) {
    case 0: amx_join(g, w, from, to, 0, kind); break;
    case 1: amx_join(g, w, from, to, 1, kind); break;
    case 2: amx_join(g, w, from, to, 2, kind); break;
    default: amx_join(g, w, from, to, 3, kind); break;
    }
}

/* Does the next rows of the joins. */
static __attribute__((noinline)) void amx_slice(const struct kern_gemm *g, struct amx_work *w,
                                                int rows)
{
    int from = w->row, to = from + rows < w->rows ? from + rows : w->rows;
    if (from >= to) {
        return;
    }
    w->row = to;
    if (!w->last) {
        amx_join_kind(g, w, from, to, AMX_NODE);
    } else if (w->cols < 32 || g->bias || g->c_f32) {
        amx_join_kind(g, w, from, to, AMX_OTHER);
    } else if (g->residual) {
        amx_join_kind(g, w, from, to, AMX_RESIDUAL);
    } else if (g->stream) {
        amx_join_kind(g, w, from, to, AMX_STREAM);
    } else {
        amx_join_kind(g, w, from, to, AMX_PLAIN);
    }
}

static inline void amx_load(const float *c, int one)
{
    AMX_BARRIER;
    _tile_loadd(0, c, 128);
    _tile_loadd(1, c + 16, 128);
    if (!one) {
        _tile_loadd(2, c + 16 * 32, 128);
        _tile_loadd(3, c + 16 * 32 + 16, 128);
    }
}

/* One block's operands: tiles of a and where the next ones are, b, what to ask for in advance. */
struct amx_operands {
    const uint16_t *a;
    size_t stride; /* bytes from row to row of a tile */
    size_t second; /* values from the first tile to the one of rows 16-31 */
    size_t step;   /* values from a block of 32 terms to the next */
    const uint16_t *b;
    const char *ahead; /* of the same step */
    int lines, apart;  /* cache lines of it, every so many */
};

/* Accumulators that are due go to their slot. */
static void amx_put(struct amx_job *j)
{
    if (j->due.rows) {
        amx_slice(j->g, &j->work, 32);
        amx_store(j->due.slot + j->due.fold * AMX_BLOCK, j->due.rows <= 16);
        j->work = j->due;
        j->due.rows = 0;
    }
}

/* Nothing is left in the tiles, and no join open. */
static void amx_settle(struct amx_job *j)
{
    amx_put(j);
    amx_slice(j->g, &j->work, 32);
}

/* b stays in the first-level cache for the next rows; with several leaves their sums need the room,
 * and it is loaded past it (far, a constant at every call). */
#define AMX_LOAD_B(tile, p)                                                                        \
    do {                                                                                           \
        if (far) {                                                                                 \
            _tile_stream_loadd(tile, p, 64);                                                       \
        } else {                                                                                   \
            _tile_loadd(tile, p, 64);                                                              \
        }                                                                                          \
    } while (0)

/* The first step of a leaf: the accumulators of the one before are stored between its products, so
 * that the tiles never wait for all four stores. */
static inline __attribute__((always_inline)) void amx_first(struct amx_job *j,
                                                            const struct amx_operands *o,
                                                            const uint16_t *a, const uint16_t *b,
                                                            int one, int far)
{
    float *c = j->due.slot + j->due.fold * AMX_BLOCK;
    size_t stride = o->stride;

    AMX_LOAD_B(6, b);
    _tile_stored(0, c, 128);
    _tile_zero(0);
    _tile_stream_loadd(4, a, stride);
    _tile_dpbf16ps(0, 4, 6);
    if (!one) {
        _tile_stored(2, c + 16 * 32, 128);
        _tile_zero(2);
        _tile_stream_loadd(5, a + o->second, stride);
        _tile_dpbf16ps(2, 5, 6);
    }
    _tile_stored(1, c + 16, 128);
    _tile_zero(1);
    AMX_LOAD_B(7, b + 512);
    _tile_dpbf16ps(1, 4, 7);
    if (!one) {
        _tile_stored(3, c + 16 * 32 + 16, 128);
        _tile_zero(3);
        _tile_dpbf16ps(3, 5, 7);
    }
    j->work = j->due;
    j->due.rows = 0;
}

static inline void amx_ask(const struct amx_operands *o, const char *ahead)
{
    for (int l = 0; l < o->lines; l += o->apart) {
        __builtin_prefetch(ahead + l * 64, 0, 2);
    }
}

static inline __attribute__((always_inline)) void
amx_steps(struct amx_job *j, const struct amx_operands *o, const uint16_t *a,
          const struct amx_seg *s, int one, int far)
{
    const uint16_t *b = o->b + (size_t)(s->k / 32) * 1024;
    const char *ahead = o->ahead + (size_t)(s->k / 32) * 2048;
    size_t stride = o->stride;
    int i = 0;

    if (s->begin == AMX_ZERO && s->steps && j->due.rows) {
        amx_first(j, o, a, b, one, far);
        amx_ask(o, ahead);
        a += o->step;
        b += 1024;
        ahead += 2048;
        i = 1;
    } else if (s->begin == AMX_ZERO) {
        amx_put(j);
        amx_zero();
    }
    for (; i < s->steps; i++, a += o->step, b += 1024, ahead += 2048) {
        AMX_LOAD_B(6, b);
        _tile_stream_loadd(4, a, stride);
        _tile_dpbf16ps(0, 4, 6);
        if (!one) {
            _tile_stream_loadd(5, a + o->second, stride);
            _tile_dpbf16ps(2, 5, 6);
        }
        AMX_LOAD_B(7, b + 512);
        _tile_dpbf16ps(1, 4, 7);
        if (!one) {
            _tile_dpbf16ps(3, 5, 7);
        }
        amx_ask(o, ahead);
        if (i >= AMX_DELAY && j->work.row < j->work.rows) {
            amx_slice(j->g, &j->work, j->work.slice);
        }
    }
}

/* One block over the stretches of the chunk. state: its slots. */
static inline __attribute__((always_inline)) void amx_block(struct amx_job *j,
                                                            const struct amx_operands *o,
                                                            float *state, int m, int n, int rows,
                                                            int cols, int one, int far)
{
    const uint16_t *packed = o->a;
    for (int i = 0; i < j->nseg; i++) {
        const struct amx_seg *s = &j->seg[i];
        if (s->begin == AMX_LOAD) {
            amx_put(j);
            amx_load(state + s->slot * AMX_BLOCK, one);
        }
        amx_steps(j, o, j->pack ? packed : o->a + s->k, s, one, far);
        packed += (size_t)s->steps * o->step;
        if (s->store) {
            int busy = s->steps > AMX_DELAY ? s->steps - AMX_DELAY : 1;
            int slice = (rows + busy - 1) / busy;
            struct amx_work w = {state + (s->slot - s->fold) * AMX_BLOCK,
                                 s->fold,
                                 s->last,
                                 s->fold || s->last ? 0 : rows,
                                 rows,
                                 slice < AMX_SLICE ? AMX_SLICE : slice,
                                 m,
                                 n,
                                 cols};
            if (j->work.row < j->work.rows) {
                amx_slice(j->g, &j->work, 32);
            }
            j->due = w;
        }
    }
}

/* Adds a stretch of `leaf` to the chunk. */
static void amx_seg_add(struct amx_job *j, int leaf, int k, int steps, int begin)
{
    struct amx_seg *s = &j->seg[j->nseg++];
    s->k = k;
    s->steps = steps;
    s->begin = begin;
    s->slot = __builtin_popcount((unsigned)leaf);
    s->store = s->fold = s->last = 0;
}

static int amx_range_steps(const struct leafset *l, int r)
{
    return (l->r[r].end - l->r[r].start + 31) / 32;
}

static int amx_total_steps(const struct leafset *l)
{
    int n = 0;
    for (int r = 0; r < l->n; r++) {
        n += amx_range_steps(l, r);
    }
    return n;
}

/* The stretches of steps [from, to), counted over the ranges in their order. */
static void amx_chunk(struct amx_job *j, int from, int to)
{
    const struct leafset *l = j->g->leaves;
    int at = 0, r = 0, total = amx_total_steps(l);

    j->nseg = 0;
    j->steps = to - from;
    for (int leaf = 0; leaf < l->leaves; leaf++) {
        int begun = 0, here = 0, done = 1;
        if ((r == l->n || l->r[r].leaf != leaf) &&
            ((at >= from && at < to) || (at == total && to == total))) {
            amx_seg_add(j, leaf, 0, 0, AMX_ZERO); /* a leaf without terms */
            here = 1;
        }
        for (; r < l->n && l->r[r].leaf == leaf; r++) {
            int end = at + amx_range_steps(l, r);
            int lo = at > from ? at : from, hi = end < to ? end : to;
            if (lo < hi) {
                amx_seg_add(j, leaf, l->r[r].start + (lo - at) * 32, hi - lo,
                            here                ? AMX_KEEP
                            : begun || lo != at ? AMX_LOAD
                                                : AMX_ZERO);
                here = 1;
            }
            begun = begun || at < from;
            done = end <= to;
            at = end;
        }
        if (here) {
            struct amx_seg *s = &j->seg[j->nseg - 1];
            s->store = 1;
            s->last = done && leaf + 1 == l->leaves;
            s->fold = s->last ? s->slot : done ? __builtin_ctz(~(unsigned)leaf) : 0;
        }
    }
}

/* Rows [m, m + rows) of a over the chunk's terms, as tiles (rows / 16, steps) of (16, 32). */
static void amx_pack_a(const struct amx_job *j, int m, int rows)
{
    for (int r = 0; r < rows; r++) {
        const uint16_t *a = j->g->a + (size_t)(m + r) * (size_t)j->g->lda;
        uint16_t *out = j->pack + (size_t)(r / 16) * (size_t)j->steps * 512 + (size_t)(r % 16) * 32;
        for (int i = 0; i < j->nseg; i++) {
            const uint16_t *p = a + j->seg[i].k;
            for (int s = 0; s < j->seg[i].steps; s++, p += 32, out += 512) {
                _mm512_store_si512((void *)out, _mm512_loadu_si512((const void *)p));
            }
        }
    }
    AMX_BARRIER;
}

/* Columns [n, n + 32) of the chunk for rows [m0, m1). ahead: what will be read after b. state: the
 * slots of each block, or of two blocks in turn when nothing is kept for another chunk. */
static void amx_columns(struct amx_job *j, int m0, int m1, int n, int n1, size_t ahead,
                        float *state, int kept)
{
    const struct kern_gemm *g = j->g;
    int cols = n1 - n < 32 ? n1 - n : 32, blocks = (m1 - m0 + 31) / 32;
    int far = g->leaves->leaves > 1;
    struct amx_operands o;

    o.stride = j->pack ? 64 : (size_t)g->lda * 2;
    o.second = j->pack ? (size_t)j->steps * 512 : (size_t)g->lda * 16;
    o.step = j->pack ? 512 : 32;
    o.b = g->b + (size_t)(n / 32) * (size_t)g->ktiles * 1024;
    o.apart = blocks > 1 ? 1 : AMX_APART;
    for (int i = 0; i < blocks; i++) {
        int m = m0 + i * 32, rows = m1 - m < 32 ? m1 - m : 32, line = i * 32 / blocks;
        float *slots = state + (size_t)(kept ? i : j->turn) * (size_t)j->slots * AMX_BLOCK;
        j->turn = !j->turn;
        o.a = j->pack ? j->pack + (size_t)(i * 2) * (size_t)j->steps * 512
                      : g->a + (size_t)m * (size_t)g->lda;
        o.lines = (i + 1) * 32 / blocks - line;
        o.ahead = (const char *)o.b + ahead + line * 64;
        if (rows != j->rows) {
            amx_put(j);
            amx_configure(rows);
            j->rows = rows;
        }
        if (rows > 16 && far) {
            amx_block(j, &o, slots, m, n, rows, cols, 0, 1);
        } else if (rows > 16) {
            amx_block(j, &o, slots, m, n, rows, cols, 0, 0);
        } else {
            amx_block(j, &o, slots, m, n, rows, cols, 1, 0);
        }
    }
}

/* Rows that stay in the second-level cache whole: all columns pass by them. */
static void amx_whole(struct amx_job *j, int m0, int m1, int n0, int n1, float *state)
{
    size_t panel = (size_t)j->g->ktiles * 2048;
    j->pack = NULL;
    amx_chunk(j, 0, amx_total_steps(j->g->leaves));
    for (int n = n0; n < n1; n += 32) {
        amx_columns(j, m0, m1, n, n1, m1 - m0 <= 32 ? AMX_AHEAD : panel, state, 0);
    }
}

/* Rows that are cut into chunks of `steps`, for as many columns as state has room for. */
static void amx_cut(struct amx_job *j, int m0, int m1, int n0, int n1, int steps, float *state,
                    uint16_t *pack)
{
    int blocks = (m1 - m0 + 31) / 32, total = amx_total_steps(j->g->leaves);
    int width = AMX_STATE / (blocks * j->slots) * 32;
    size_t panel = (size_t)j->g->ktiles * 2048;

    j->pack = pack;
    for (int p0 = n0; p0 < n1; p0 += width) {
        int p1 = p0 + width < n1 ? p0 + width : n1;
        for (int from = 0; from < total; from += steps) {
            amx_chunk(j, from, from + steps < total ? from + steps : total);
            amx_pack_a(j, m0, m1 - m0);
            for (int n = p0; n < p1; n += 32) {
                float *slots = state + (size_t)((n - p0) / 32 * blocks * j->slots) * AMX_BLOCK;
                amx_columns(j, m0, m1, n, n1, panel, slots, 1);
            }
            amx_settle(j);
        }
    }
}

static void amx_gemm(const struct kern_gemm *g, int m0, int m1, int n0, int n1, void *scratch)
{
    float *state = scratch;
    uint16_t *pack = (uint16_t *)(state + AMX_STATE * AMX_BLOCK);
    int total = amx_total_steps(g->leaves), whole = AMX_CACHE / (total * 64 + 1) - 64;
    struct amx_job j;

    memset(&j, 0, sizeof j);
    j.g = g;
    for (int l = 0; l < g->leaves->leaves; l++) {
        int slot = __builtin_popcount((unsigned)l);
        j.slots = slot + 1 > j.slots ? slot + 1 : j.slots;
    }
    whole = whole > AMX_ROWS ? AMX_ROWS : whole;
    if (m1 - m0 <= 32 || m1 - m0 <= whole || whole >= AMX_CUT) {
        int step = whole < 32 ? 32 : whole / 32 * 32;
        for (int m = m0; m < m1; m += step) {
            amx_whole(&j, m, m + step < m1 ? m + step : m1, n0, n1, state);
        }
    } else {
        for (int m = m0; m < m1; m += AMX_CUT) {
            int end = m + AMX_CUT < m1 ? m + AMX_CUT : m1, rows = (end - m + 31) / 32 * 32;
            int steps = AMX_CACHE / ((rows + 64) * 64);
            int chunks = (total + steps - 1) / steps;
            amx_cut(&j, m, end, n0, n1, (total + chunks - 1) / chunks, state, pack);
        }
    }
    amx_settle(&j);
    if (g->stream) {
        _mm_sfence(); /* other threads see the results when they see that this one is done */
    }
}

/* ---- packing on 512-bit registers --------------------------------------------------------------
 */

static void amx_pack_fwd(const uint16_t *w, int64_t ld, int n, int k, int nb, uint16_t *out)
{
    out += (size_t)(nb / 2) * (size_t)(k / 32) * 1024 + (size_t)(nb % 2) * 512;
    for (int kb = 0; kb < k / 32; kb++, out += 1024) {
        __m512i r[16];
        for (int i = 0; i < 16; i++) {
            const uint16_t *p = w + (size_t)(nb * 16 + i) * (size_t)ld + (size_t)kb * 32;
            r[i] = nb * 16 + i < n ? _mm512_loadu_si512((const void *)p) : _mm512_setzero_si512();
        }
        vec_transpose(r);
        for (int i = 0; i < 16; i++) {
            _mm512_storeu_si512((void *)(out + i * 32), r[i]);
        }
    }
}

static void amx_pack_bwd(const uint16_t *w, int64_t ld, int n, int k, int kb, uint16_t *out)
{
    int ntiles = (n + 31) / 32;
    (void)k;
    out += (size_t)(kb / 2) * (size_t)ntiles * 1024 + (size_t)(kb % 2) * 512;
    for (int row = 0; row < ntiles * 32; row += 2) {
        const uint16_t *p = w + (size_t)row * (size_t)ld + (size_t)kb * 16;
        _mm512_storeu_si512((void *)(out + (size_t)(row / 32) * 1024 + row % 32 * 16),
                            amx_pair(row < n ? p : NULL, row + 1 < n ? p + ld : NULL));
    }
}

int amx_fill(struct kern *k)
{
    if (syscall(SYS_arch_prctl, AMX_ARCH_REQ_XCOMP_PERM, AMX_XFEATURE_TILEDATA) != 0) {
        return 0;
    }
    *k = amx_base;
    k->name = "amx";
    k->rows = 32;
    k->gemm = amx_gemm;
    k->gemm_scratch = (size_t)AMX_STATE * AMX_BLOCK * 4 + AMX_CACHE;
    k->attn = amx_attn_kern.attn;
    k->attn_bwd = amx_attn_kern.attn_bwd;
    k->dw = amx_dw;
    k->dw_norms = amx_dw_norms;
    k->pack_dyt = amx_pack_dyt;
    k->pack_xp = amx_pack_xp;
    k->pack_fwd = amx_pack_fwd;
    k->pack_bwd = amx_pack_bwd;
    return 1;
}
