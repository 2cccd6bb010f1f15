/* Attention with its products on AMX tiles: the kernels of kern_attn.h over another kern_mul, with
 * the same bits. */
#include "num/cpu/vec_avx512.h"

#include <string.h>

#define KERN_MUL_TILES 1

struct amx_attn_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t colsb[16];
    uint8_t rows[16];
};

/* Eight tiles of 16 rows of 64 bytes. */
static inline void kern_mul_begin(void)
{
    struct amx_attn_config c;
    memset(&c, 0, sizeof c);
    c.palette = 1;
    for (int i = 0; i < 8; i++) {
        c.colsb[i] = 64;
        c.rows[i] = 16;
    }
    /* The intrinsic tells the compiler of the first 8 bytes only. */
    __asm__ volatile("" ::"r"(&c) : "memory");
    _tile_loadconfig(&c);
}

/* The compiler does not know that a tile load reads memory: what was stored before it must stay
 * before it. */
static inline void amx_attn_barrier(void)
{
    __asm__ volatile("" ::: "memory");
}

/* The pairs of 16 terms and as many zeros. */
static inline void amx_attn_half(const uint16_t *b, size_t bstep, uint16_t tile[512])
{
    memset(tile, 0, 1024);
    for (int i = 0; i < 8; i++) {
        memcpy(tile + i * 32, b + (size_t)i * bstep, 64);
    }
    amx_attn_barrier();
}

/* Tiles 0-3 accumulate (32, 32) of c; 4, 5 hold rows of a; 6, 7 columns of b. two_m, two_n: whether
 * rows and columns 16-31 exist. Constants at every call, so that no branch is left. */
static inline __attribute__((always_inline)) void
amx_attn_block(const uint16_t *a, size_t lda, const uint16_t *const *b, int span, size_t bstep,
               size_t col, int k, float *c, size_t ldc, int add, int two_m, int two_n)
{
    float *c2 = c + 16 * ldc;
    uint16_t half[512];

    if (add) {
        _tile_loadd(0, c, ldc * 4);
        if (two_n) {
            _tile_loadd(1, c + 16, ldc * 4);
        }
        if (two_m) {
            _tile_loadd(2, c2, ldc * 4);
        }
        if (two_m && two_n) {
            _tile_loadd(3, c2 + 16, ldc * 4);
        }
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int t = 0; t < k; t += 32) {
        const uint16_t *p = b[t / span] + (size_t)(t % span / 2) * bstep + 2 * col;
        const uint16_t *at = a + t;
        if (k - t < 32) {
            amx_attn_half(p, bstep, half);
            _tile_loadd(6, half, 64);
        } else {
            _tile_loadd(6, p, bstep * 2);
        }
        _tile_loadd(4, at, lda * 2);
        _tile_dpbf16ps(0, 4, 6);
        if (two_m) {
            _tile_loadd(5, at + 16 * lda, lda * 2);
            _tile_dpbf16ps(2, 5, 6);
        }
        if (two_n) {
            if (k - t < 32) {
                amx_attn_half(p + 32, bstep, half);
                _tile_loadd(7, half, 64);
            } else {
                _tile_loadd(7, p + 32, bstep * 2);
            }
            _tile_dpbf16ps(1, 4, 7);
            if (two_m) {
                _tile_dpbf16ps(3, 5, 7);
            }
        }
    }
    _tile_stored(0, c, ldc * 4);
    if (two_n) {
        _tile_stored(1, c + 16, ldc * 4);
    }
    if (two_m) {
        _tile_stored(2, c2, ldc * 4);
    }
    if (two_m && two_n) {
        _tile_stored(3, c2 + 16, ldc * 4);
    }
}

/* See kern_attn.h. */
static void kern_mul(const uint16_t *a, size_t lda, int m, const uint16_t *const *b, int span,
                     size_t bstep, int n, int k, float *c, size_t ldc, int add, float *tmp)
{
    (void)tmp;
    amx_attn_barrier();
    for (int j = 0; j < n; j += 32) {
        for (int i = 0; i < m; i += 32) {
            const uint16_t *ai = a + (size_t)i * lda;
            float *ci = c + (size_t)i * ldc + j;
            size_t col = (size_t)j;
            if (n - j > 16 && m - i > 16) {
                amx_attn_block(ai, lda, b, span, bstep, col, k, ci, ldc, add, 1, 1);
            } else if (n - j > 16) {
                amx_attn_block(ai, lda, b, span, bstep, col, k, ci, ldc, add, 0, 1);
            } else if (m - i > 16) {
                amx_attn_block(ai, lda, b, span, bstep, col, k, ci, ldc, add, 1, 0);
            } else {
                amx_attn_block(ai, lda, b, span, bstep, col, k, ci, ldc, add, 0, 0);
            }
        }
    }
}

#include "num/cpu/kern_body.h"

const struct kern amx_attn_kern = KERN_TABLE;
