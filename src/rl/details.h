/* What a run writes down of its samples beside the rollouts themselves (rl/dump.h): what the
 * trainer made of them, conversations for people, and the tokenizer they were written with.
 *
 *     --dump-details DIR
 *         DIR/rollout_data/{rollout_id}.jsonl      --save-debug-rollout-data
 *         DIR/train_data/{rollout_id}_{rank}.jsonl --save-debug-train-data
 *         DIR/trajectory/{rollout_id}.jsonl        --save-debug-trajectory-data
 *         DIR/tokenizer/                           tokenizer.json, its config, the chat template
 *
 * All files are JSON lines; docs/rollout-data.md describes them. */
#ifndef RL_DETAILS_H
#define RL_DETAILS_H

#include <stdint.h>

struct err;
struct sample;
struct train_opts;
struct train_sample;
struct wfile;

/* Names that --dump-details gives to what was not named. Called by train_opts_validate. */
void details_derive(struct train_opts *o);

/* What the trainer holds of one rollout, before its first step. */
struct details_train {
    int64_t rollout;
    struct sample *const *s;
    const struct train_sample *t;
    const struct train_sample *value; /* the critic's view, or NULL */
    float *const *teacher;            /* log-probs, or NULL */
    const float *raw, *shaped;        /* rewards */
    int n;
};
/* Both do nothing when nobody asked for them. */
int details_train(const struct train_opts *o, const struct details_train *d, struct err *e);
int details_trajectory(const struct train_opts *o, int64_t rollout, struct sample *const *s, int n,
                       struct err *e);
int details_tokenizer(const struct train_opts *o, const struct wfile *f, struct err *e);

/* Keeps about this share of the groups, from the beginning and the end in equal parts and at least
 * one; frees the others. The number of samples that are left. */
int details_subsample(struct sample **s, int n, double share);

#endif
