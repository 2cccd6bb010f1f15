/* The extension points of a run that are not about sampling: functions that the user named by
 * --...-path options, opened once, called at their places.
 *
 *     struct extend *x;
 *     extend_open(&(struct extend_opts){.o = &opts, .args = options}, &x, &e);
 *     extend_init(x, &e);
 *     ... extend_loss, extend_before_step, ... at their places in rl/learn.c and rl/loop.c
 *     extend_close(x);
 *
 * Every call takes a NULL x and an x without that hook: then it does nothing. A hook that fails
 * ends the run with its flag and its reason. One thread. */
#ifndef RL_EXTEND_H
#define RL_EXTEND_H

#include <jansson.h>
#include <stdint.h>

struct arena;
struct err;
struct extend;
struct journal;
struct optim_hyper;
struct sample;
struct train_opts;
struct train_sample;
struct trainer;
struct trainer_port;

struct extend_opts {
    const struct train_opts *o; /* checked; borrowed until extend_close */
    const json_t *args;         /* all options, for the functions; read by open only */
};

int extend_open(const struct extend_opts *o, struct extend **out, struct err *e);
void extend_close(struct extend *x);
/* The trainer whose parameters hooks see and change, and which a loss over logits is added to;
 * before the first call of such a hook. */
int extend_trainer(struct extend *x, struct trainer *t, struct err *e);

/* 1 when there is a function of that flag (without dashes). */
int extend_has(const struct extend *x, const char *flag);

/* --custom-megatron-init-path: before the first rollout. */
int extend_init(struct extend *x, struct err *e);
/* --custom-megatron-post-save-hook-path: hf_dir may be NULL. */
int extend_saved(struct extend *x, int64_t rollout, const char *ckpt_dir, const char *hf_dir,
                 struct err *e);
/* --rollout-data-postprocess-path: before the passes over a rollout. */
int extend_postprocess(struct extend *x, struct err *e);
/* --custom-rollout-log-function-path: *quiet is 1 when the function logged in our place. */
int extend_log_rollout(struct extend *x, int64_t rollout, struct sample *const *s, int n,
                       const json_t *row, double seconds, int *quiet, struct err *e);
/* --custom-eval-rollout-log-function-path: data is {set: {"rewards", "truncated", "samples"}}. */
int extend_log_eval(struct extend *x, int64_t rollout, const json_t *data, const json_t *row,
                    int *quiet, struct err *e);
/* --custom-convert-samples-to-train-data-path: what the function made of the samples, a dict of
 * lists as Miles' trainer takes it: tokens, response_lengths and rewards (shaped), and where they
 * are raw_reward, loss_masks, rollout_log_probs, rollout_ids, sample_indices. There may be more or
 * fewer of them than samples. */
struct extend_converted {
    struct sample **s; /* NULL: there is no such function */
    float *shaped;
    int n;
};
int extend_convert(struct extend *x, struct sample **s, int n, struct extend_converted *out,
                   struct err *e);
void extend_converted_free(struct extend_converted *c);
/* --custom-reward-post-process-path: raw and shaped rewards, n of each. STATUS_END: there is none.
 */
int extend_shape(struct extend *x, struct sample *const *s, int n, double *raw, double *shaped,
                 struct err *e);

/* ---- rollouts: extend_rollout.c ---- */

/* Opens --rollout-function-path, --eval-function-path and --data-source-path, whose functions may
 * call engines: args has their address. What they answer is recorded in the journal (borrowed, or
 * NULL), and taken from there where it is recorded; in a replay they are not opened. */
int extend_open_rollout(struct extend *x, const json_t *args, struct journal *j, struct err *e);

/* The run's own prompts, for functions that ask for them; groups are lists of samples. Borrowed. */
struct extend_feed {
    int (*get)(void *self, int64_t n, json_t **groups, struct err *e);
    int (*add)(void *self, const json_t *groups, struct err *e);
    int64_t (*length)(void *self);
    void *self;
};
void extend_set_feed(struct extend *x, const struct extend_feed *f);

/* What a rollout function gave; the caller frees it. */
struct extend_rolled {
    struct sample **s; /* in the order in which it gave them */
    int n;
    json_t *metrics; /* object */
    json_t *data;    /* of an evaluation: {set: {"rewards", "truncated", "samples"}} */
    char *skip;      /* why there is no evaluation this time, or NULL */
};
/* Calls the rollout function, or that of evaluations; they may take hours, so they are polled:
 * STATUS_AGAIN until it has answered. version is of the weights that the engines have. A function
 * whose answer is recorded is not called: the prompts that it took are taken again. */
int extend_rollout_begin(struct extend *x, int64_t rollout, int64_t version, int evaluation,
                         struct err *e);
int extend_rollout_poll(struct extend *x, int evaluation, double wait_s, struct extend_rolled *out,
                        struct err *e);
void extend_rolled_free(struct extend_rolled *r);

/* --data-source-path: n groups, each a list of samples; and its own state, kept by itself under the
 * number of a rollout. get is the `call`-th of this rollout; where its answer is recorded the
 * source is asked too, to move on, and the recorded groups are given. */
int extend_source_get(struct extend *x, int64_t rollout, int64_t call, int64_t n, json_t **groups,
                      struct err *e);
int extend_source_add(struct extend *x, json_t *groups, struct err *e); /* takes groups */
int extend_source_save(struct extend *x, int64_t rollout, struct err *e);
int extend_source_load(struct extend *x, int64_t rollout, struct err *e);
/* Prompts in it, -1 when it does not say. */
int extend_source_length(struct extend *x, int64_t *out, struct err *e);

/* ---- the loss: extend_loss.c ---- */

/* What the custom loss, correction and reducer make of the samples of one optimizer step, in
 * weight, keep, coef and given_* of each; arrays live in mem or in x until the next call. Metrics
 * go into row. Scores the samples first where the functions need log-probs of the weights of now.
 */
int extend_loss(struct extend *x, const struct trainer_port *actor, struct train_sample *t, int n,
                struct arena *mem, json_t *row, struct err *e);
/* ---- the model: extend_model.c ---- */

/* --custom-megatron-before-log-prob-hook-path, before a pass that fills `prefix`log_probs.
 * *changed is 1 when the function changed the model, which then has a new version. */
int extend_before_scores(struct extend *x, const char *prefix, int *changed, struct err *e);
/* --custom-megatron-before-train-step-hook-path; numbers that it returns go into row. */
int extend_before_step(struct extend *x, int64_t rollout, int64_t step, const struct optim_hyper *h,
                       json_t *row, int *changed, struct err *e);

#endif
