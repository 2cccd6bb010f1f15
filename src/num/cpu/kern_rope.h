/* Part of kern_body.h: rope, and how keys and values come into the pages of a cache. */
#ifndef CPU_KERN_ROPE_H
#define CPU_KERN_ROPE_H

#define KERN_ROPE_ROWS 16

/* Columns [i, i + 16) of a head, normed where there is a norm. */
static inline vf kern_rope_in(const uint16_t *x, const struct norm *norm, vf r, int i)
{
    vf v = vf_loadbf(x + i);
    return norm ? vf_mul(vf_mul(v, r), kern_norm_factor(norm, i)) : v;
}

/* One head: optional norm, then rope. */
static void kern_rope_head(const uint16_t *x, const struct norm *norm, const float *cos,
                           const float *sin, const struct attn_shape *s, uint16_t *out)
{
    int d = s->head_dim, half = s->rot / 2;
    vf r = norm ? vf_set1(kern_rstd(x, d, norm->eps)) : vf_zero();

    if (s->interleaved || half % 16) {
        float y[KERN_MAX_HEAD];
        for (int i = 0; i < d; i += 16) {
            vf_store(y + i, kern_rope_in(x, norm, r, i));
        }
        for (int i = 0; i < half; i++) {
            int j = s->interleaved ? 2 * i : i, k = s->interleaved ? 2 * i + 1 : half + i;
            float a = y[j], b = y[k];
            y[j] = a * cos[i] - b * sin[i];
            y[k] = b * cos[i] + a * sin[i];
        }
        kern_to_bf16(y, d, out);
        return;
    }
    for (int i = 0; i < half; i += 16) {
        vf a = kern_rope_in(x, norm, r, i), b = kern_rope_in(x, norm, r, half + i);
        vf c = vf_load(cos + i), sn = vf_load(sin + i);
        vf_storebf(out + i, vf_sub(vf_mul(a, c), vf_mul(b, sn)));
        vf_storebf(out + half + i, vf_add(vf_mul(b, c), vf_mul(a, sn)));
    }
    for (int i = s->rot; i < d; i += 16) {
        vf_storebf(out + i, kern_rope_in(x, norm, r, i));
    }
}

/* Keys of n tokens, rows of ld, into (d / 2, 64, 2) from a slot on. Reads 16 rows. */
static void kern_page_keys(const uint16_t *x, size_t ld, int n, int d, uint16_t *page, int slot)
{
    int whole = d / 32 * 32;

    for (int c = 0; c < whole; c += 32) {
        uint16_t t[16][32]; /* (pairs of c, tokens, 2) */
        kern_turn(x + c, ld * 2, t, sizeof t[0]);
        for (int u = 0; u < 16; u++) {
            uint16_t *out = page + kv_key_index(c + 2 * u, slot);
            if (n == 16) { /* the compiler knows the length */
                memcpy(out, t[u], 64);
            } else {
                memcpy(out, t[u], (size_t)n * 4);
            }
        }
    }
    for (int c = whole; c < d; c++) {
        for (int i = 0; i < n; i++) {
            page[kv_key_index(c, slot + i)] = x[(size_t)i * ld + (size_t)c];
        }
    }
}

/* Values of n tokens, rows of ld, into (64 / 2, d, 2) from a slot on. */
static void kern_page_values(const uint16_t *x, size_t ld, int n, int d, uint16_t *page, int slot)
{
    for (int i = 0; i < n;) {
        const uint16_t *a = x + (size_t)i * ld, *b = a + ld;
        uint16_t *out = page + kv_value_index(0, slot + i, d);
        if ((slot + i) % 2 == 0 && i + 1 < n) {
            for (int c = 0; c < d; c++) {
                out[2 * c] = a[c];
                out[2 * c + 1] = b[c];
            }
            i += 2;
        } else {
            for (int c = 0; c < d; c++) {
                out[2 * c] = a[c];
            }
            i++;
        }
    }
}

/* A single token's key goes to as many lines as the head has pairs: all are asked for before the
 * first is written, or each store would wait for its own. */
static inline void kern_page_ask(const uint16_t *keys, const uint16_t *values, int d, int slot)
{
    for (int c = 0; c < d; c += 2) {
        __builtin_prefetch(keys + kv_key_index(c, slot), 1);
    }
    for (int c = 0; c < d; c += 16) {
        __builtin_prefetch(values + kv_value_index(c, slot, d), 1);
    }
}

static inline void kern_page_key(const uint16_t *x, int d, uint16_t *page, int slot)
{
    for (int c = 0; c < d; c += 2) {
        memcpy(page + kv_key_index(c, slot), x + c, 4);
    }
}

static void kern_rope_rows(const struct kern_rope *a, int page, int r0, int n)
{
    int d = a->s->head_dim, nh = a->s->n_heads, nkv = a->s->n_kv_heads;
    int pos = a->pos[r0], slot = pos % PLAN_KV_BLOCK;
    const uint16_t *x = a->qkv + (size_t)r0 * (size_t)a->ld;
    uint16_t k[KERN_ROPE_ROWS][KERN_MAX_HEAD];

    for (int h = 0; h < nkv && n == 1; h++) {
        const uint16_t *kv = a->kv->data;
        kern_page_ask(kv + kv_key_offset(a->kv, page, a->layer, h),
                      kv + kv_value_offset(a->kv, page, a->layer, h), d, slot);
    }
    for (int i = 0; i < n; i++) {
        const float *c = a->cos + (size_t)(pos + i) * (size_t)a->ldt;
        const float *s = a->sin + (size_t)(pos + i) * (size_t)a->ldt;
        uint16_t *q = a->q + (size_t)(r0 + i) * (size_t)a->ldq;
        for (int h = 0; h < nh; h++) {
            kern_rope_head(x + (size_t)i * (size_t)a->ld + h * d, a->qn, c, s, a->s, q + h * d);
        }
    }
    for (int h = 0; h < nkv; h++) {
        uint16_t *kv = a->kv->data;
        for (int i = 0; i < n; i++) {
            const float *c = a->cos + (size_t)(pos + i) * (size_t)a->ldt;
            const float *s = a->sin + (size_t)(pos + i) * (size_t)a->ldt;
            kern_rope_head(x + (size_t)i * (size_t)a->ld + (nh + h) * d, a->kn, c, s, a->s, k[i]);
        }
        if (n == 1) {
            kern_page_key(k[0], d, kv + kv_key_offset(a->kv, page, a->layer, h), slot);
        } else {
            kern_page_keys(k[0], KERN_MAX_HEAD, n, d, kv + kv_key_offset(a->kv, page, a->layer, h),
                           slot);
        }
        kern_page_values(x + (nh + nkv + h) * d, (size_t)a->ld, n, d,
                         kv + kv_value_offset(a->kv, page, a->layer, h), slot);
    }
}

/* The turn back: dx = rope's transpose of dy. */
static void kern_rope_back(const float *dy, const float *cos, const float *sin,
                           const struct attn_shape *s, float *dx)
{
    int d = s->head_dim, half = s->rot / 2;

    if (s->interleaved || half % 16) {
        for (int i = 0; i < half; i++) {
            int j = s->interleaved ? 2 * i : i, k = s->interleaved ? 2 * i + 1 : half + i;
            dx[j] = dy[j] * cos[i] + dy[k] * sin[i];
            dx[k] = dy[k] * cos[i] - dy[j] * sin[i];
        }
    } else {
        for (int i = 0; i < half; i += 16) {
            vf a = vf_load(dy + i), b = vf_load(dy + half + i);
            vf c = vf_load(cos + i), sn = vf_load(sin + i);
            vf_store(dx + i, vf_add(vf_mul(a, c), vf_mul(b, sn)));
            vf_store(dx + half + i, vf_sub(vf_mul(b, c), vf_mul(a, sn)));
        }
    }
    memcpy(dx + s->rot, dy + s->rot, sizeof(float) * (size_t)(d - s->rot));
}

static void kern_rope_head_bwd(const float *dy, const uint16_t *x, const struct norm *norm,
                               const float *cos, const float *sin, const struct attn_shape *s,
                               float *dx, float *dn)
{
    vf sum = vf_zero(), r, c;
    int d = s->head_dim;

    kern_rope_back(dy, cos, sin, s, dx);
    if (!norm) {
        return;
    }
    r = vf_set1(kern_rstd(x, d, norm->eps));
    for (int i = 0; i < d; i += 16) {
        vf xh = vf_mul(vf_loadbf(x + i), r), g = vf_load(dx + i);
        vf_store(dn + i, vf_mul(g, xh));
        g = vf_mul(g, kern_norm_factor(norm, i));
        vf_store(dx + i, g);
        sum = vf_fma(g, xh, sum);
    }
    c = vf_set1(vf_hsum(sum) / (float)d);
    for (int i = 0; i < d; i += 16) {
        vf xh = vf_mul(vf_loadbf(x + i), r);
        vf_store(dx + i, vf_mul(r, vf_sub(vf_load(dx + i), vf_mul(xh, c))));
    }
}

#endif
