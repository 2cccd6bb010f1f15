/* The numeric plan of a run: every constant that a result's bits depend on. It is written to the
 * run folder and into checkpoints as the numeric manifest; two parties with different plans refuse
 * each other. What is not named here never changes a bit. */
#ifndef NUM_PLAN_H
#define NUM_PLAN_H

#include <jansson.h>
#include <stdint.h>

#define PLAN_VERSION    4    /* raised when an order of operations changes */
#define PLAN_KBLOCK     32   /* terms of a product's inner block */
#define PLAN_KV_BLOCK   64   /* tokens of a KV page: one attention block */
#define PLAN_KV_SEGMENT 1024 /* tokens of an attention segment */
#define PLAN_LEAF       256  /* tokens of a weight-gradient leaf, from the sequence's start */
#define PLAN_QUANTUM    45   /* gradients are summed in units of 2^-45 */
#define PLAN_BUNDLE     4096 /* rows of a bundle: samples trained with one pass over their prompt */
#define PLAN_MAX_LEAVES 8    /* largest R */
#define PLAN_MAX_RANGES (3 * PLAN_MAX_LEAVES)

struct plan {
    int version;
    int leaves; /* R: leaves of a contraction that tensor parallelism may split */
    int kblock, kv_block, kv_segment, leaf_tokens, quantum_log2;
    int f32;         /* 1: no bf16 rounding anywhere (reference device only) */
    int bundle_rows; /* of a training step (train/bundle.h); 0: each sample by itself */
};

/* A contraction's leaves: ranges of the contracted index, in ascending leaf number. A leaf with
 * several ranges runs over them in order with one accumulator. Bounds are multiples of PLAN_KBLOCK
 * (but for the end of the last range). */
struct leafset {
    int leaves;
    int n; /* ranges */
    struct {
        int start, end, leaf;
    } r[PLAN_MAX_RANGES];
};

/* One leaf over [0, n). */
void plan_leafset_one(struct leafset *s, int n);
/* Appends to leaf i of R the units floor(iU/R)..floor((i+1)U/R), each `unit` wide, from `base`.
 * Call once per part (q, k, v; gate, up), then plan_leafset_sort. */
void plan_leafset_add(struct leafset *s, int leaves, int units, int unit, int base, int end);
void plan_leafset_sort(struct leafset *s);
/* Default R: the largest power of two up to 8 that leaves at least 128 of `smallest_k` to a leaf.
 */
int plan_default_leaves(int smallest_k);
void plan_init(struct plan *p, int leaves, int f32);

/* The numeric manifest as JSON; the caller owns it. That of a training run also names what engines
 * know nothing of. */
json_t *plan_manifest(const struct plan *p);
json_t *plan_train_manifest(const struct plan *p);
/* Where two manifests part: a name and both values, in JSON. */
struct plan_clash {
    char key[48], have[80], want[80];
};
/* 1 when `have` shows everything that `want` names, with the same values; else 0 and the first that
 * differs. `have` may be NULL: it then shows nothing. */
int plan_agree(const json_t *have, const json_t *want, struct plan_clash *c);

#endif
