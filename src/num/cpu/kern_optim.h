/* Part of kern_body.h: the optimizer. */
#ifndef CPU_KERN_OPTIM_H
#define CPU_KERN_OPTIM_H

static void kern_adamw_row(const struct kern_adamw *a)
{
    const struct adam_step *s = a->s;
    vf keep = vf_set1(1.0f - s->lr * s->weight_decay), step = vf_set1(s->lr / s->bias1);
    vf b1 = vf_set1(s->beta1), b2 = vf_set1(s->beta2), inv2 = vf_set1(s->bias2_sqrt);
    vf c1 = vf_set1(1.0f - s->beta1), c2 = vf_set1(1.0f - s->beta2), eps = vf_set1(s->eps);
    vf scale = vf_set1(s->grad_scale);

    for (int i = 0; i < a->n; i += 16) {
        vf g = vf_mul(vf_from_i64(a->grad + i, a->quantum), scale), den;
        vf x = a->p ? vf_load(a->p + i) : vf_join(a->w16 + i, a->rem + i);
        vf m = a->m ? vf_load(a->m + i) : vf_loadbf(a->m16 + i);
        vf v = a->v ? vf_load(a->v + i) : vf_loadbf(a->v16 + i);
        int16_t rem[16];
        m = vf_fma(b1, m, vf_mul(c1, g));
        v = vf_fma(b2, v, vf_mul(c2, vf_mul(g, g)));
        den = vf_add(vf_div(vf_sqrt(v), inv2), eps);
        if (a->decay) {
            x = vf_mul(x, keep);
        }
        x = vf_sub(x, vf_mul(step, vf_div(m, den)));
        vf_split(a->w16 + i, a->p ? rem : a->rem + i, x);
        if (a->p) {
            vf_store(a->p + i, vf_join(a->w16 + i, rem));
        }
        if (a->m && a->v) {
            vf_store(a->m + i, m);
            vf_store(a->v + i, v);
        } else {
            vu h = vu_hash(a->key, a->index + (uint32_t)i);
            if (a->m) {
                vf_store(a->m + i, m);
            } else {
                vf_storebf_rand(a->m16 + i, m, vu_low(h));
            }
            if (a->v) {
                vf_store(a->v + i, v);
            } else {
                vf_storebf_rand(a->v16 + i, v, vu_high(h));
            }
        }
    }
}

#endif
