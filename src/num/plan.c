/* Owns the arithmetic of leaves: who contracts what, independent of how many ranks there are. */
#include "num/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

void plan_init(struct plan *p, int leaves, int f32)
{
    memset(p, 0, sizeof *p);
    p->version = PLAN_VERSION;
    p->leaves = leaves;
    p->kblock = PLAN_KBLOCK;
    p->kv_block = PLAN_KV_BLOCK;
    p->kv_segment = PLAN_KV_SEGMENT;
    p->leaf_tokens = PLAN_LEAF;
    p->quantum_log2 = PLAN_QUANTUM;
    p->f32 = f32;
    p->bundle_rows = PLAN_BUNDLE;
}

json_t *plan_manifest(const struct plan *p)
{
    return json_pack("{s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:s}", "numerics_version", p->version, "leaves",
                     p->leaves, "kblock", p->kblock, "kv_block", p->kv_block, "kv_segment",
                     p->kv_segment, "leaf_tokens", p->leaf_tokens, "quantum_log2", p->quantum_log2,
                     "weights_dtype", p->f32 ? "float32" : "bfloat16");
}

json_t *plan_train_manifest(const struct plan *p)
{
    json_t *j = plan_manifest(p);
    json_object_set_new(j, "bundle_rows", json_integer(p->bundle_rows));
    return j;
}

static void plan_text(const json_t *v, char *out, size_t size)
{
    char *text = v ? json_dumps(v, JSON_ENCODE_ANY) : NULL;
    snprintf(out, size, "%s", text ? text : "nothing");
    free(text);
}

int plan_agree(const json_t *have, const json_t *want, struct plan_clash *c)
{
    const char *key;
    const json_t *v;

    json_object_foreach((json_t *)(uintptr_t)want, key, v)
    {
        const json_t *h = json_object_get(have, key);
        if (!h || !json_equal(h, v)) {
            snprintf(c->key, sizeof c->key, "%s", key);
            plan_text(h, c->have, sizeof c->have);
            plan_text(v, c->want, sizeof c->want);
            return 0;
        }
    }
    return 1;
}

int plan_default_leaves(int smallest_k)
{
    int r = 1;
    while (r < PLAN_MAX_LEAVES && smallest_k / (r * 2) >= 128) {
        r *= 2;
    }
    return r;
}

void plan_leafset_one(struct leafset *s, int n)
{
    memset(s, 0, sizeof *s);
    s->leaves = 1;
    s->n = 1;
    s->r[0].end = n;
}

void plan_leafset_add(struct leafset *s, int leaves, int units, int unit, int base, int end)
{
    s->leaves = leaves;
    for (int i = 0; i < leaves; i++) {
        int a = (int)((int64_t)i * units / leaves) * unit + base;
        int b = (int)((int64_t)(i + 1) * units / leaves) * unit + base;
        if (b > end) {
            b = end;
        }
        if (a < b) {
            ASSERT(s->n < PLAN_MAX_RANGES);
            s->r[s->n].start = a;
            s->r[s->n].end = b;
            s->r[s->n].leaf = i;
            s->n++;
        }
    }
}

void plan_leafset_sort(struct leafset *s)
{
    for (int i = 1; i < s->n; i++) {
        for (int j = i;
             j > 0 && (s->r[j].leaf < s->r[j - 1].leaf ||
                       (s->r[j].leaf == s->r[j - 1].leaf && s->r[j].start < s->r[j - 1].start));
             j--) {
            int a = s->r[j].start, b = s->r[j].end, l = s->r[j].leaf;
            s->r[j] = s->r[j - 1];
            s->r[j - 1].start = a;
            s->r[j - 1].end = b;
            s->r[j - 1].leaf = l;
        }
    }
}
