/* The kernels, written once on 16-lane vectors (`vf`, from vec_*.h, which must be included first).
 * Lanes and their order are part of the definition of a result: a sum over a row is 16 running lane
 * sums joined by a fixed tree, on every instruction set. */
#ifndef CPU_KERN_BODY_H
#define CPU_KERN_BODY_H

#include <limits.h>
#include <string.h>

#include "num/cpu/kern.h"
#include "num/device_int.h"
#include "num/vmath.h"

static inline vf vf_exp(vf x)
{
    vf t = vf_fma(x, vf_set1(VMATH_LOG2E), vf_set1(VMATH_MAGIC));
    vf n = vf_sub(t, vf_set1(VMATH_MAGIC));
    vf r = vf_fma(n, vf_set1(-VMATH_LN2_HI), x);
    vf p, y;
    r = vf_fma(n, vf_set1(-VMATH_LN2_LO), r);
    p = vf_fma(vf_set1(VMATH_E0), r, vf_set1(VMATH_E1));
    p = vf_fma(p, r, vf_set1(VMATH_E2));
    p = vf_fma(p, r, vf_set1(VMATH_E3));
    p = vf_fma(p, r, vf_set1(VMATH_E4));
    p = vf_fma(p, r, vf_set1(VMATH_E5));
    y = vf_add(vf_fma(p, vf_mul(r, r), r), vf_set1(1.0f));
    y = vf_scale2(y, t, VMATH_MAGIC);
    y = vf_select_gt(x, vf_set1(VMATH_EXP_MAX), vf_set1(INFINITY), y);
    return vf_select_gt(vf_set1(VMATH_EXP_MIN), x, vf_zero(), y);
}

static inline vf vf_tanh(vf x)
{
    vf a = vf_max(x, vf_sub(vf_zero(), x)), z = vf_mul(x, x), one = vf_set1(1.0f);
    vf p = vf_fma(vf_set1(VMATH_T0), z, vf_set1(VMATH_T1)), big;
    p = vf_fma(p, z, vf_set1(VMATH_T2));
    p = vf_fma(p, z, vf_set1(VMATH_T3));
    p = vf_fma(p, z, vf_set1(VMATH_T4));
    p = vf_fma(vf_mul(p, z), x, x);
    big = vf_sub(one, vf_div(vf_set1(2.0f), vf_add(vf_exp(vf_add(a, a)), one)));
    big = vf_select_gt(vf_zero(), x, vf_sub(vf_zero(), big), big);
    return vf_select_gt(a, vf_set1(VMATH_TANH_SMALL), big, p);
}

#include "num/cpu/kern_gemm.h"
#include "num/cpu/kern_optim.h"
#include "num/cpu/kern_rows.h"

#include "num/cpu/kern_attn.h"
#include "num/cpu/kern_rope.h"

#define KERN_TABLE                                                                                 \
    {                                                                                              \
        .name = VEC_NAME, .rows = VEC_ROWS, .gemm = kern_gemm_fn, .dw = kern_dw_fn,                \
        .pack_dyt = kern_pack_dyt, .pack_xp = kern_pack_xp, .pack_fwd = kern_pack_fwd,             \
        .pack_bwd = kern_pack_bwd, .rmsnorm = kern_rmsnorm, .rmsnorm_bwd = kern_rmsnorm_bwd,       \
        .rmsnorm_dw = kern_rmsnorm_dw, .bias_dw = kern_bias_dw, .heads_dw = kern_heads_dw,         \
        .rope_rows = kern_rope_rows, .rope_head_bwd = kern_rope_head_bwd, .attn = kern_attn_fn,    \
        .attn_join = kern_attn_join, .attn_bwd = kern_attn_bwd_fn,                                 \
        .attn_bwd_join = kern_attn_bwd_join, .glu = kern_glu, .glu_bwd = kern_glu_bwd,             \
        .scale_row = kern_scale_row, .add_row = kern_add_row, .logits_row = kern_logits_row,       \
        .dlogits_row = kern_dlogits_row, .to_bf16 = kern_to_bf16, .sumsq32 = kern_sumsq32,         \
        .adamw = kern_adamw_row, .exps = kern_exps, .unpack_fwd = kern_unpack_fwd,                 \
        .fwd_to_bwd = kern_fwd_to_bwd,                                                             \
    }

#endif
