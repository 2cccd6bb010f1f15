/* Owns the checks of a run's first step and their words. Thresholds of the KL are those of
 * rl/mismatch.h. */
#include "rl/firststep.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "rl/mismatch.h"
#include "rl/promptenc.h"
#include "rl/sample.h"
#include "rl/train_opts.h"
#include "text/chat.h"
#include "text/chatcheck.h"
#include "text/tokenizer.h"
#include "train/trainer.h"

#define FIRSTSTEP_SAME 256 /* prompts that are rendered again */

static int firststep_active(const struct train_sample *t, int j)
{
    return !t->mask || t->mask[j];
}

static int firststep_reference(const struct firststep *f, const struct firststep_in *in, char *out,
                               size_t size)
{
    double sum = 0.0, most = 0.0, kl;
    long long tokens = 0;
    const char *why;

    for (int i = 0; i < in->n; i++) {
        const struct train_sample *t = &in->t[i];
        for (int j = 0; t->ref && t->old && j < t->response; j++) {
            double d = (double)t->ref[j] - (double)t->old[j];
            if (firststep_active(t, j)) {
                sum += exp(d) - 1.0 - d; /* k3: never below 0, and 0 where they agree */
                most = !(fabs(d) <= most) ? fabs(d) : most;
                tokens++;
            }
        }
    }
    if (!tokens || !f->fresh) {
        return 0; /* nobody asked for a reference, or the actor has moved away from it */
    }
    kl = sum / (double)tokens;
    if (most == 0.0) {
        snprintf(out, size,
                 "actor and reference agree bit for bit on %lld tokens (kl 0): they are the same "
                 "weights, as they must be in the first step",
                 tokens);
        return 1;
    }
    if (kl < MISMATCH_JITTER) {
        snprintf(out, size,
                 "actor and reference differ by kl %.3g per token: numeric jitter of kernels, "
                 "acceptable",
                 kl);
        return 1;
    }
    why = !(kl <= MISMATCH_WRONG)
              ? "they are not the same model: compare --ref-load with --hf-checkpoint and --load, "
                "and the precision of both"
          : kl >= MISMATCH_PROMPT
              ? "about 0.8 a token means that the two do not see the same prompt: compare chat "
                "template and tokenizer of both models (miles template check)"
              : "they should be the same weights: is --ref-load the model that --hf-checkpoint or "
                "--load has?";
    snprintf(out, size, "actor and reference differ by kl %.3g per token in the first step: %s", kl,
             why);
    return -1;
}

static int firststep_exact(const struct firststep_in *in, char *out, size_t size)
{
    if (!in->r->exact_tokens) {
        return 0;
    }
    snprintf(out, size, "forward_logp_max_diff %g over %lld tokens of rollout and trainer",
             (double)in->r->max_diff, (long long)in->r->exact_tokens);
    return in->r->max_diff == 0.0f ? 1 : -1;
}

static int firststep_gradient(const struct firststep *f, const struct firststep_in *in, char *out,
                              size_t size)
{
    double norm = in->r->grad_norm;

    if (!isfinite(norm)) {
        snprintf(out, size,
                 "the gradient is not finite: look at the chat template, at rewards that are no "
                 "numbers and at the learning rate");
        return -1;
    }
    if (norm == 0.0) {
        snprintf(out, size,
                 "the gradient is 0: no sample has an advantage, so nothing is learned from this "
                 "step (see the check of rewards)");
        return -1;
    }
    if (norm > FIRSTSTEP_GRAD) {
        snprintf(out, size,
                 "the gradient's norm is %.3g, which is large for a first step%s: check the scale "
                 "of the rewards, the loss mask and the chat template",
                 norm, f->o->clip_grad > 0 ? "" : " and not clipped (--clip-grad)");
        return -1;
    }
    snprintf(out, size, "the gradient's norm is %.3g, in range for a first step", norm);
    return 1;
}

/* Groups, and those whose rewards are all the same. */
static void firststep_groups(const struct firststep_in *in, int *groups, int *flat)
{
    *groups = *flat = 0;
    for (int i = 0, j; i < in->n; i = j) {
        int same = 1;
        for (j = i; j < in->n && in->s[j]->group_index == in->s[i]->group_index; j++) {
            same &= in->s[j]->reward == in->s[i]->reward;
        }
        ++*groups;
        *flat += same;
    }
}

static int firststep_no_label(const struct firststep_in *in)
{
    int n = 0;
    for (int i = 0; i < in->n; i++) {
        n += !in->s[i]->label || json_is_null(in->s[i]->label);
    }
    return n;
}

static int firststep_reward(const struct firststep *f, const struct firststep_in *in, char *out,
                            size_t size)
{
    double lo = INFINITY, hi = -INFINITY;
    int groups, flat, bare = firststep_no_label(in);

    for (int i = 0; i < in->n; i++) {
        lo = in->s[i]->reward < lo ? in->s[i]->reward : lo;
        hi = in->s[i]->reward > hi ? in->s[i]->reward : hi;
    }
    firststep_groups(in, &groups, &flat);
    if (in->n < 2 || f->o->use_opd) {
        return 0;
    }
    if (lo == hi && lo == 0.0) {
        snprintf(out, size, "all %d rewards are 0: %s", in->n,
                 bare == in->n
                     ? "no sample has a label to compare with; is --label-key the right key?"
                     : "is --label-key the key of the answer, and does the reward function find an "
                       "answer in the responses? (miles reward shows what it makes of one)");
        return -1;
    }
    if (lo == hi) {
        snprintf(out, size,
                 "all %d rewards are %g: a reward function that tells no answer from another "
                 "teaches nothing; look at what it returns",
                 in->n, lo);
        return -1;
    }
    if (flat == groups && f->o->n_samples_per_prompt > 1) {
        snprintf(out, size,
                 "rewards are from %g to %g, but equal within every one of %d groups: prompts are "
                 "all too hard or too easy, or the reward does not look at the response",
                 lo, hi, groups);
        return -1;
    }
    snprintf(out, size, "rewards are from %g to %g; %d of %d groups tell answers apart", lo, hi,
             groups - flat, groups);
    return 1;
}

static int firststep_label(const struct firststep *f, const struct firststep_in *in, char *out,
                           size_t size)
{
    int bare = firststep_no_label(in);

    if (!f->o->label_key) {
        return 0; /* none is wanted; what the rewards come to says whether that was right */
    }
    if (!bare) {
        snprintf(out, size, "all %d samples have a label under --label-key %s", in->n,
                 f->o->label_key);
        return 1;
    }
    snprintf(out, size, "%d of %d samples have no label under --label-key %s: is it spelled so?",
             bare, in->n, f->o->label_key);
    return -1;
}

/* What a fit of template and tokenizer lacks for single turns; 0: nothing. */
static int firststep_unfit(const struct firststep *f, char *out, size_t size)
{
    const struct promptenc *enc = f->enc;
    const struct conf_ints *more = &f->o->rollout_stop_token_ids;
    int32_t stops[128];
    struct chatcheck_in c = {.chat = enc->chat,
                             .tooled = enc->tooled,
                             .tok = enc->tok,
                             .special = enc->special,
                             .kwargs = enc->kwargs};
    json_t *report = NULL, *row;
    const char *detail = NULL, *check = NULL;
    size_t i;
    int unfit;

    memcpy(stops, enc->stops, sizeof enc->stops);
    c.stops = stops;
    c.nstops = (size_t)enc->nstops;
    for (int64_t k = 0; k < more->n && k < 64; k++) {
        stops[c.nstops++] = (int32_t)more->v[k];
    }
    if (chatcheck_run(&c, &report, NULL) != STATUS_OK) {
        return 0;
    }
    unfit = !json_is_true(json_object_get(report, "single_turn"));
    json_array_foreach(json_object_get(report, "checks"), i, row)
    {
        const char *r = json_string_value(json_object_get(row, "result"));
        if (!check && r && strcmp(r, "fails") == 0) {
            check = json_string_value(json_object_get(row, "check"));
            detail = json_string_value(json_object_get(row, "detail"));
        }
    }
    if (unfit) {
        snprintf(out, size,
                 "the chat template is not fit for training (%s: %.200s); miles template check "
                 "tells more",
                 check ? check : "check", detail ? detail : "it fails");
    }
    json_decref(report);
    return unfit;
}

/* 1: the text has a token of the template in it, so somebody has rendered it before. */
static int firststep_rendered(const struct promptenc *enc, const struct sample *s)
{
    const char *text = json_string_value(s->prompt);
    return text && ((enc->bos && strstr(text, enc->bos)) || (enc->eos && strstr(text, enc->eos)) ||
                    strstr(text, "<|"));
}

/* Whether the tokens of the prompts are those that prompts and template give now. */
static int firststep_other_tokens(const struct promptenc *enc, const struct firststep_in *in,
                                  long long *index)
{
    for (int i = 0; i < in->n && i < FIRSTSTEP_SAME; i++) {
        const struct sample *s = in->s[i];
        int32_t *ids = NULL;
        int n = 0, same;
        if (!s->prompt || json_object_get(s->metadata, "tools") ||
            promptenc_encode(enc, s->prompt, NULL, &ids, &n, NULL) != STATUS_OK) {
            continue;
        }
        same = n == s->prompt_len && memcmp(ids, s->tokens, sizeof *ids * (size_t)n) == 0;
        mem_free(ids);
        if (!same) {
            *index = s->index;
            return 1;
        }
    }
    return 0;
}

static int firststep_template(const struct firststep *f, const struct firststep_in *in, char *out,
                              size_t size)
{
    const struct promptenc *enc = f->enc;
    long long odd = 0;

    if (!enc || !enc->tok || !in->n) {
        return 0;
    }
    if (!enc->apply && enc->tmpl && !firststep_rendered(enc, in->s[0])) {
        snprintf(out, size,
                 "the model has a chat template and the prompts are plain text: an instruct model "
                 "wants --apply-chat-template");
        return -1;
    }
    if (!enc->apply) {
        return 0;
    }
    if (firststep_unfit(f, out, size)) {
        return -1;
    }
    if (f->o->load_debug_rollout_data && firststep_other_tokens(enc, in, &odd)) {
        snprintf(out, size,
                 "the prompt of sample %lld has other tokens than this model's template gives: the "
                 "samples were drawn with another template or tokenizer",
                 odd);
        return -1;
    }
    snprintf(out, size, "the chat template is fit for training");
    return 1;
}

static int firststep_truncated(const struct firststep *f, const struct firststep_in *in, char *out,
                               size_t size)
{
    int cut = 0;

    for (int i = 0; i < in->n; i++) {
        cut += in->s[i]->status == SAMPLE_TRUNCATED;
    }
    if (!in->n) {
        return 0;
    }
    if (cut == in->n) {
        snprintf(out, size,
                 "all %d responses were cut at --rollout-max-response-len %lld: does the model "
                 "know how to end (end token, chat template), or is the length too short?",
                 in->n, (long long)f->o->rollout_max_response_len);
        return -1;
    }
    if (cut >= FIRSTSTEP_TRUNC * in->n) {
        snprintf(out, size,
                 "%d of %d responses were cut (%.0f%%): a larger --rollout-max-response-len would "
                 "let them end",
                 cut, in->n, 100.0 * cut / in->n);
        return -1;
    }
    snprintf(out, size, "%d of %d responses were cut (%.0f%%)", cut, in->n, 100.0 * cut / in->n);
    return 1;
}

static int firststep_blank(const struct sample *s)
{
    const char *c = s->response;
    while (c && isspace((unsigned char)*c)) {
        c++;
    }
    return s->response_len == 0 || (c && !*c);
}

static int firststep_empty(const struct firststep_in *in, char *out, size_t size)
{
    int blank = 0;

    for (int i = 0; i < in->n; i++) {
        blank += firststep_blank(in->s[i]);
    }
    if (!in->n) {
        return 0;
    }
    if (blank * 10 >= in->n) {
        snprintf(out, size,
                 "%d of %d responses are empty: does the prompt end where an answer begins (chat "
                 "template, generation prompt), and is no stop token its first?",
                 blank, in->n);
        return -1;
    }
    snprintf(out, size, "%d of %d responses are empty", blank, in->n);
    return 1;
}

int firststep_words(const struct firststep *f, const struct firststep_in *in,
                    enum firststep_check which, char *out, size_t size)
{
    snprintf(out, size, "%s", "");
    switch (which) {
    case FIRSTSTEP_REFERENCE: return firststep_reference(f, in, out, size);
    case FIRSTSTEP_EXACT: return firststep_exact(in, out, size);
    case FIRSTSTEP_GRADIENT: return firststep_gradient(f, in, out, size);
    case FIRSTSTEP_REWARD: return firststep_reward(f, in, out, size);
    case FIRSTSTEP_LABEL: return firststep_label(f, in, out, size);
    case FIRSTSTEP_TEMPLATE: return firststep_template(f, in, out, size);
    case FIRSTSTEP_TRUNCATED: return firststep_truncated(f, in, out, size);
    case FIRSTSTEP_EMPTY: return firststep_empty(in, out, size);
    default: return 0;
    }
}

void firststep_run(struct firststep *f, const struct firststep_in *in)
{
    int said = 0, wrong = 0;

    if (f->done || !f->o) {
        return;
    }
    f->done = 1;
    for (int i = 0; i < FIRSTSTEP_CHECKS; i++) {
        char text[640];
        int rc = firststep_words(f, in, (enum firststep_check)i, text, sizeof text);
        if (rc) {
            log_write(rc < 0 ? LOG_WARN : LOG_INFO, "check", "%s", text);
            said++;
            wrong += rc < 0;
        }
    }
    log_info(CHECK, "first step: %d checks, %d with something to look at", said, wrong);
}
