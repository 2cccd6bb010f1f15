/* Part of kern_body.h: norms, elementwise operations, log-probs, AdamW. */
#ifndef CPU_KERN_ROWS_H
#define CPU_KERN_ROWS_H

/* ---- norms -------------------------------------------------------------------------------------
 */

static float kern_rstd(const uint16_t *x, int h, float eps)
{
    vf s = vf_zero();
    for (int i = 0; i < h; i += 16) {
        vf v = vf_loadbf(x + i);
        s = vf_fma(v, v, s);
    }
    return 1.0f / sqrtf(vf_hsum(s) / (float)h + eps);
}

/* Factors of columns [i, i + 16) of a norm. */
static inline vf kern_norm_factor(const struct norm *n, int i)
{
    vf w = vf_loadbf((const uint16_t *)n->w->data + i);
    return n->plus_one ? vf_add(vf_set1(1.0f), w) : w;
}

static void kern_rmsnorm(const uint16_t *x, const struct norm *n, int h, const uint16_t *residual,
                         uint16_t *y, float *rstd)
{
    float r = kern_rstd(x, h, n->eps);
    for (int i = 0; i < h; i += 16) {
        vf v = vf_mul(vf_mul(vf_loadbf(x + i), vf_set1(r)), kern_norm_factor(n, i));
        vf_storebf(y + i, residual ? vf_add(vf_loadbf(residual + i), v) : v);
    }
    if (rstd) {
        *rstd = r;
    }
}

static void kern_rmsnorm_bwd(const uint16_t *dy, const uint16_t *x, const struct norm *n, int h,
                             float rstd, float *dx)
{
    vf s = vf_zero(), r = vf_set1(rstd), c;
    for (int i = 0; i < h; i += 16) {
        vf dxh = vf_mul(vf_loadbf(dy + i), kern_norm_factor(n, i));
        s = vf_fma(dxh, vf_mul(vf_loadbf(x + i), r), s);
    }
    c = vf_set1(vf_hsum(s) / (float)h);
    for (int i = 0; i < h; i += 16) {
        vf dxh = vf_mul(vf_loadbf(dy + i), kern_norm_factor(n, i));
        vf xh = vf_mul(vf_loadbf(x + i), r);
        vf_store(dx + i, vf_add(vf_load(dx + i), vf_mul(r, vf_sub(dxh, vf_mul(xh, c)))));
    }
}

static int kern_rmsnorm_dw(const uint16_t *dy, int64_t lddy, const uint16_t *x, int64_t ldx,
                           const float *rstd, int r0, int r1, int c0, int64_t *grad, float scale)
{
    vf s = vf_zero();
    for (int r = r0; r < r1; r++) {
        vf xh = vf_mul(vf_loadbf(x + (size_t)r * (size_t)ldx + (size_t)c0), vf_set1(rstd[r]));
        s = vf_fma(vf_loadbf(dy + (size_t)r * (size_t)lddy + (size_t)c0), xh, s);
    }
    return vf_accumulate(grad + c0, s, scale);
}

static int kern_bias_dw(const uint16_t *dy, int64_t ld, int r0, int r1, int c0, int64_t *grad,
                        float scale)
{
    vf s = vf_zero();
    for (int r = r0; r < r1; r++) {
        s = vf_add(s, vf_loadbf(dy + (size_t)r * (size_t)ld + (size_t)c0));
    }
    return vf_accumulate(grad + c0, s, scale);
}

static int kern_heads_dw(const float *dn, int64_t ld, int n, int d, int r0, int r1, int64_t *grad,
                         float scale)
{
    int bad = 0;
    for (int h = 0; h < n; h++) {
        vf s = vf_zero();
        for (int r = r0; r < r1; r++) {
            s = vf_add(s, vf_load(dn + (size_t)r * (size_t)ld + (size_t)(h * d)));
        }
        bad |= vf_accumulate(grad, s, scale);
    }
    return bad;
}

/* ---- elementwise -------------------------------------------------------------------------------
 */

static inline vf kern_sigmoid(vf x)
{
    return vf_div(vf_set1(1.0f), vf_add(vf_set1(1.0f), vf_exp(vf_sub(vf_zero(), x))));
}

/* Both activations are x sigmoid(e(x)); *slope is x e'(x). See gate_exponent in ops_ref.c. */
static inline vf kern_gate_exponent(enum act act, vf x, vf *slope)
{
    vf x2, lim = vf_set1(VMATH_GELU_MAX), neg = vf_set1(-VMATH_GELU_MAX);
    if (act == ACT_SILU) {
        *slope = x;
        return x;
    }
    x = vf_select_gt(x, lim, lim, x);
    x = vf_select_gt(neg, x, neg, x);
    x2 = vf_mul(x, x);
    *slope = vf_mul(x, vf_fma(x2, vf_set1(VMATH_GELU_3C), vf_set1(VMATH_GELU_1)));
    return vf_mul(x, vf_fma(x2, vf_set1(VMATH_GELU_C), vf_set1(VMATH_GELU_1)));
}

static void kern_glu(const uint16_t *gu, enum act act, int inter, uint16_t *y)
{
    for (int i = 0; i < inter; i += 16) {
        vf g = vf_loadbf(gu + i), u = vf_loadbf(gu + inter + i), slope;
        vf s = kern_sigmoid(kern_gate_exponent(act, g, &slope));
        vf_storebf(y + i, vf_mul(vf_mul(g, s), u));
    }
}

static void kern_glu_bwd(const uint16_t *dy, const uint16_t *gu, enum act act, int inter,
                         uint16_t *dgu)
{
    for (int i = 0; i < inter; i += 16) {
        vf g = vf_loadbf(gu + i), u = vf_loadbf(gu + inter + i), d = vf_loadbf(dy + i), slope;
        vf s = kern_sigmoid(kern_gate_exponent(act, g, &slope)), one = vf_set1(1.0f);
        vf ds = vf_mul(s, vf_fma(slope, vf_sub(one, s), one));
        vf_storebf(dgu + i, vf_mul(vf_mul(d, u), ds));
        vf_storebf(dgu + inter + i, vf_mul(d, vf_mul(g, s)));
    }
}

/* Rows are padded to whole vectors, and the padding is zero. */
static void kern_scale_row(const uint16_t *x, int n, float scale, uint16_t *y)
{
    for (int i = 0; i < n; i += 16) {
        vf_storebf(y + i, vf_mul(vf_loadbf(x + i), vf_set1(scale)));
    }
}

static int kern_add_row(const float *dy, int n, float mul, int64_t *grad, float scale)
{
    int bad = 0;
    for (int i = 0; i < n; i += 16) {
        bad |= vf_accumulate(grad + i, vf_mul(vf_load(dy + i), vf_set1(mul)), scale);
    }
    return bad;
}

static vf kern_load_tail(const float *x, int n, float fill)
{
    float t[16];
    for (int i = 0; i < 16; i++) {
        t[i] = i < n ? x[i] : fill;
    }
    return vf_load(t);
}

/* The spec in place: soft cap, then temperature. */
static void kern_logits_spec(float *x, int n, const struct logit_spec *spec)
{
    vf cap = vf_set1(spec->softcap), t = vf_set1(spec->temperature);
    int capped = spec->softcap != 0.0f;
    int cooled = spec->temperature > 0.0f && spec->temperature != 1.0f;

    for (int i = 0; (capped || cooled) && i < n; i += 16) {
        float tail[16];
        vf v = i + 16 <= n ? vf_load(x + i) : kern_load_tail(x + i, n - i, 0.0f);
        v = capped ? vf_mul(cap, vf_tanh(vf_div(v, cap))) : v;
        v = cooled ? vf_div(v, t) : v;
        if (i + 16 <= n) {
            vf_store(x + i, v);
        } else {
            vf_store(tail, v);
            memcpy(x + i, tail, (size_t)(n - i) * sizeof *x);
        }
    }
}

static void kern_logits_row(float *x, int n, const struct logit_spec *spec,
                            const struct leafset *leaves, float *max, float sums[2],
                            int want_entropy)
{
    vf az[PLAN_MAX_LEAVES], as[PLAN_MAX_LEAVES];
    float z[PLAN_MAX_LEAVES], s[PLAN_MAX_LEAVES];
    vf top = vf_set1(-INFINITY), m;
    int i;

    kern_logits_spec(x, n, spec);
    for (i = 0; i + 16 <= n; i += 16) {
        top = vf_max(top, vf_load(x + i));
    }
    if (i < n) {
        top = vf_max(top, kern_load_tail(x + i, n - i, -INFINITY));
    }
    *max = vf_hmax(top);
    m = vf_set1(*max);
    for (int l = 0; l < leaves->leaves; l++) {
        az[l] = vf_zero();
        as[l] = vf_zero();
    }
    for (int l = 0; l < leaves->n; l++) { /* a leaf of several ranges has one accumulator */
        vf zl = az[leaves->r[l].leaf], sl = as[leaves->r[l].leaf];
        int end = leaves->r[l].end;
        for (i = leaves->r[l].start; i < end; i += 16) {
            vf v = vf_sub(
                i + 16 <= end ? vf_load(x + i) : kern_load_tail(x + i, end - i, -INFINITY), m);
            vf e = vf_exp(v);
            zl = vf_add(zl, e);
            if (want_entropy) {
                sl = vf_fma(e, vf_max(v, vf_set1(-1e30f)), sl);
            }
        }
        az[leaves->r[l].leaf] = zl;
        as[leaves->r[l].leaf] = sl;
    }
    for (int l = 0; l < leaves->leaves; l++) {
        z[l] = vf_hsum(az[l]);
        s[l] = vf_hsum(as[l]);
    }
    for (int w = 1; w < leaves->leaves; w *= 2) {
        for (i = 0; i + w < leaves->leaves; i += 2 * w) {
            z[i] = z[i] + z[i + w];
            s[i] = s[i] + s[i + w];
        }
    }
    sums[0] = z[0];
    sums[1] = s[0];
}

static void kern_dlogits_row(const float *x, int n, int ld, const struct logit_spec *spec,
                             int target, float max, float logz, float entropy, float g, float ge,
                             uint16_t *out)
{
    float t = spec->temperature > 0.0f ? spec->temperature : 1.0f, inverse = 1.0f / t;
    float back = spec->softcap != 0.0f ? t / spec->softcap : 0.0f;

    for (int i = 0; i < ld; i += 16) {
        vf raw, lp, p, d;
        if (i >= n) {
            vf_storebf(out + i, vf_zero());
            continue;
        }
        raw = i + 16 <= n ? vf_load(x + i) : kern_load_tail(x + i, n - i, -INFINITY);
        lp = vf_sub(vf_sub(raw, vf_set1(max)), vf_set1(logz));
        p = vf_exp(lp);
        d = vf_mul(p, vf_set1(-g));
        if (ge != 0.0f) {
            lp = vf_max(lp, vf_set1(-1e30f));
            d = vf_sub(d, vf_mul(vf_mul(p, vf_add(lp, vf_set1(entropy))), vf_set1(ge)));
        }
        if (target >= i && target < i + 16) {
            float lane[16];
            vf_store(lane, d);
            lane[target - i] = lane[target - i] + g;
            d = vf_load(lane);
        }
        d = vf_mul(d, vf_set1(inverse));
        if (back != 0.0f) {
            vf h = vf_mul(raw, vf_set1(back));
            d = vf_mul(d, vf_fma(vf_sub(vf_zero(), h), h, vf_set1(1.0f)));
        }
        vf_storebf(out + i, vf_first(n - i, d, vf_zero())); /* a row's padding is zero */
    }
}

static void kern_to_bf16(const float *x, int n, uint16_t *y)
{
    for (int i = 0; i < n; i += 16) {
        vf_storebf_any(y + i, vf_load(x + i));
    }
}

static double kern_sumsq32(const int64_t *g, double quantum)
{
    return vf_sumsq32(g, quantum);
}

static void kern_exps(const float *x, int n, float sub, float *y)
{
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        vf_store(y + i, vf_exp(vf_sub(vf_load(x + i), vf_set1(sub))));
    }
    for (; i < n; i++) {
        y[i] = vmath_expf(x[i] - sub);
    }
}

#endif
