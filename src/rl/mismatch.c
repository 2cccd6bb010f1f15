/* Owns the reading of the mismatch: classes of its KL, and a remedy for each. The figures come from
 * loss.c, which the metrics come from too. */
#include "rl/mismatch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "train/trainer.h"

enum mismatch_class mismatch_classify(const struct mismatch_figures *f)
{
    if (!f->compared) {
        return f->exact_tokens ? MISMATCH_IS_EXACT : MISMATCH_UNKNOWN;
    }
    if (f->max_diff == 0.0) {
        return MISMATCH_IS_EXACT;
    }
    if (!isfinite(f->max_diff) || !(f->kl <= MISMATCH_WRONG)) {
        return MISMATCH_IS_WRONG;
    }
    return f->kl < MISMATCH_JITTER   ? MISMATCH_IS_JITTER
           : f->kl < MISMATCH_PROMPT ? MISMATCH_IS_KERNELS
                                     : MISMATCH_IS_PROMPT;
}

static const char *mismatch_meaning(enum mismatch_class c, const struct mismatch_figures *f)
{
    switch (c) {
    case MISMATCH_IS_JITTER: return "numeric jitter of other kernels, no correction needed";
    case MISMATCH_IS_KERNELS:
        if (f->older && !f->current) {
            return f->corrected ? "all samples are of older weights, which the correction weighs"
                                : "all samples are of older weights than the trainer's: add "
                                  "--use-tis to weigh that";
        }
        return f->corrected
                   ? "the engine computes with other kernels or another precision, which the "
                     "correction weighs"
               : f->engine_is_old
                   ? "the engine computes with other kernels or another precision: "
                     "--use-rollout-logprobs clips against it; or take --use-tis instead, "
                     "or engines of miles serve, which make it 0"
                   : "the engine computes with other kernels or another precision: add "
                     "--use-tis, or take engines of miles serve, which make it 0";
    case MISMATCH_IS_PROMPT:
        return "about 0.8 means that engine and trainer do not see the same prompt: compare chat "
               "template, special tokens and truncation of both";
    case MISMATCH_IS_WRONG:
        return "the engine has other weights or another tokenizer than the trainer: check its "
               "model, weight_sync and the weight versions of the answers";
    default: return "";
    }
}

void mismatch_words(const struct mismatch_figures *f, char *out, size_t size)
{
    enum mismatch_class c = mismatch_classify(f);
    char older[96] = "";

    if (c == MISMATCH_UNKNOWN) {
        snprintf(out, size, "%s", "");
        return;
    }
    if (f->older && f->current) {
        snprintf(older, sizeof older, "; %lld samples are of older weights, which adds to it",
                 (long long)f->older);
    }
    if (c == MISMATCH_IS_EXACT) {
        snprintf(out, size,
                 "mismatch: exact: rollout and trainer agree bit for bit on %lld tokens (kl 0), no "
                 "correction needed",
                 (long long)(f->compared + f->exact_tokens));
    } else if (!isfinite(f->max_diff)) {
        snprintf(out, size, "mismatch: log-probs that are no numbers among %lld tokens: %s",
                 (long long)f->compared, mismatch_meaning(c, f));
    } else {
        snprintf(out, size,
                 "mismatch: kl %.3g per token between rollout and trainer, largest difference of a "
                 "log-prob %.3g, over %lld tokens: %s%s",
                 f->kl, f->max_diff, (long long)f->compared, mismatch_meaning(c, f), older);
    }
}

void mismatch_step(struct mismatch *m, const struct loss_opts *o, const struct trainer_report *r,
                   const struct train_sample *s, int n)
{
    struct mismatch_figures f = {.exact_tokens = r->exact_tokens,
                                 .compared = r->sums.compared,
                                 .corrected = o->tis != LOSS_TIS_OFF && !o->tis_observe};
    enum mismatch_class c;
    char text[512];

    loss_metric(o, &r->step, &r->sums, LOSS_MISMATCH_KL, &f.kl);
    loss_metric(o, &r->step, &r->sums, LOSS_MAX_DIFF, &f.max_diff);
    for (int i = 0; i < n; i++) {
        f.older += s[i].roll && !s[i].on_policy && !s[i].exact;
        f.current += s[i].roll && s[i].on_policy && !s[i].exact;
        f.engine_is_old |= s[i].roll && s[i].old == s[i].roll && !s[i].exact;
    }
    c = mismatch_classify(&f);
    if (c == MISMATCH_UNKNOWN || c == m->said || m->lines >= MISMATCH_LINES) {
        return;
    }
    mismatch_words(&f, text, sizeof text);
    m->said = c;
    m->lines++;
    log_write(c > MISMATCH_IS_KERNELS || (c == MISMATCH_IS_KERNELS && !f.corrected) ? LOG_WARN
                                                                                    : LOG_INFO,
              "train", "%s", text);
}
