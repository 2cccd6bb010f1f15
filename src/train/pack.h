/* Batch formation (rl-math 13): which samples train in which step, micro-batch and rank. Pure
 * integer work; contract C4 makes the result a matter of speed and memory, never of bits.
 *
 *     struct pack_opts o = {.dp = 1, .cp = 1, .global_batch = 32, .dynamic = 1, .max_tokens =
 * 4096}; struct pack_plan plan; if (pack_schedule(&o, n, total_len, rollout_id, &plan, &e) == 0) {
 *         for each step s, rank r, micro-batch b:
 *             const int64_t *idx; int64_t k = pack_micro(&plan, s, r, b, &idx);
 *     }
 *     pack_plan_fini(&plan); */
#ifndef TRAIN_PACK_H
#define TRAIN_PACK_H

#include <stdint.h>

struct err;

/* Sets of item indices: set b holds items[start[b] .. start[b+1]). Init by the callee. */
struct pack_bins {
    int64_t n;
    int64_t *start; /* n + 1 */
    int64_t *items;
};
void pack_bins_fini(struct pack_bins *b);

/* First fit (decreasing when `decreasing`), order stable; an oversize item sits alone. */
int pack_first_fit(const int64_t *len, int64_t n, int64_t cap, int decreasing,
                   struct pack_bins *out, struct err *e);
/* Splits the heaviest bins until there are `target`; STATUS_INPUT when too few items. In place. */
int pack_split(const int64_t *len, struct pack_bins *bins, int64_t target, struct err *e);
/* Karmarkar-Karp into k sets; equal demands equal item counts (n % k == 0). */
int pack_karmarkar_karp(const int64_t *weight, int64_t n, int64_t k, int equal,
                        struct pack_bins *out, struct err *e);

/* Shape of a dense model for the FLOPs weight (rl-math 13.7); q_lora etc. 0 when absent. */
struct pack_model {
    int64_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab;
    int64_t q_lora, kv_lora, qk_nope, qk_rope, v_dim; /* latent attention: kv_lora > 0 */
};
int64_t pack_flops(const struct pack_model *m, int64_t seq);

struct pack_opts {
    int64_t dp, cp;                 /* >= 1 */
    int64_t mb_group;               /* virtual pipeline group; 0 or 1 for none */
    int64_t global_batch;           /* rollouts per optimizer step */
    int dynamic;                    /* use_dynamic_batch_size */
    int64_t max_tokens;             /* per rank, dynamic only */
    int64_t micro_batch;            /* static only */
    int balance_data;               /* Karmarkar-Karp over ranks by tokens */
    const struct pack_model *flops; /* balance_by_flops; NULL for off */
    int allow_partial;              /* allow_partial_train_step */
};

struct pack_plan {
    int64_t nsteps, dp;
    int64_t *rollouts; /* per step: rollouts trained */
    int64_t *nmb;      /* per step: micro-batches per rank */
    int64_t *mb_first; /* per step: index of the step's first entry in mb, (nsteps + 1) */
    int64_t *mb;       /* entry e: items[mb[e] .. mb[e+1]); entries by step, rank, micro-batch */
    int64_t *items;    /* sample indices */
    int64_t nitems;
    int64_t dropped; /* samples that no step took */
};
void pack_plan_fini(struct pack_plan *p);

/* total_len: prompt + response tokens per sample; rollout_id: NULL takes the sample's index. */
int pack_schedule(const struct pack_opts *o, int64_t n, const int64_t *total_len,
                  const int64_t *rollout_id, struct pack_plan *out, struct err *e);
/* Micro-batch b of rank r in step s: sample indices, ascending within what the packer chose. */
int64_t pack_micro(const struct pack_plan *p, int64_t s, int64_t r, int64_t b, const int64_t **idx);

/* Samples kept when trimming to whole global batches (13.1); 0 samples is STATUS_INPUT. */
int pack_trim(int64_t n, int64_t global_batch, int64_t *kept, struct err *e);

#endif
