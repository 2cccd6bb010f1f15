/* Says in words what the difference between the rollout's and the trainer's log-probs means, and
 * what to do about it: once at the first training step of a run, and again when it becomes
 * something else.
 *
 *     struct mismatch m = {0};
 *     mismatch_step(&m, &loss_opts, &report, samples, n);     after a rollout's first step
 *
 * The figure is train/mismatch_kl (loss.h: LOSS_MISMATCH_KL), the KL of the rollout against the
 * trainer per token. */
#ifndef RL_MISMATCH_H
#define RL_MISMATCH_H

#include <stddef.h>
#include <stdint.h>

struct loss_opts;
struct train_sample;
struct trainer_report;

#define MISMATCH_JITTER 1e-4 /* below: numeric jitter */
#define MISMATCH_PROMPT 0.5  /* from here to 1, about 0.8: other prompts */
#define MISMATCH_WRONG  1.0  /* above: another model */
#define MISMATCH_LINES  4    /* of a run at most */

enum mismatch_class {
    MISMATCH_UNKNOWN, /* nothing was compared */
    MISMATCH_IS_EXACT,
    MISMATCH_IS_JITTER,
    MISMATCH_IS_KERNELS,
    MISMATCH_IS_PROMPT,
    MISMATCH_IS_WRONG
};

struct mismatch_figures {
    double kl;       /* per token that was compared */
    double max_diff; /* largest difference of a log-prob; infinite: one is no number */
    int64_t compared, exact_tokens;
    int64_t older;     /* samples of weights that are not the trainer's any more */
    int64_t current;   /* samples of the trainer's weights whose bits are not the trainer's */
    int corrected;     /* the loss corrects for it */
    int engine_is_old; /* the engine's log-probs are the old policy */
};

struct mismatch {
    enum mismatch_class said;
    int lines;
};

enum mismatch_class mismatch_classify(const struct mismatch_figures *f);
/* The line for a log; "" for MISMATCH_UNKNOWN. */
void mismatch_words(const struct mismatch_figures *f, char *out, size_t size);
/* Logs a line when there is something new to say. */
void mismatch_step(struct mismatch *m, const struct loss_opts *o, const struct trainer_report *r,
                   const struct train_sample *s, int n);

#endif
