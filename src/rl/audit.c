/* Owns what an audit compares. */
#include "rl/audit.h"

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "model/weights.h"
#include "reward/hub.h"
#include "rl/promptenc.h"
#include "rl/sample.h"
#include "text/tokenizer.h"
#include "train/trainer.h"

#define AUDIT_TOKENS 4096

static void audit_row(struct audit *a, int64_t rollout, const struct sample *s, const char *what,
                      const char *fmt, ...) __attribute__((format(printf, 5, 6)));

static void audit_row(struct audit *a, int64_t rollout, const struct sample *s, const char *what,
                      const char *fmt, ...)
{
    va_list ap;

    if (a->shown++ >= a->show) {
        return;
    }
    if (a->shown == 1) {
        fprintf(a->out, "%8s %8s  %-8s %s\n", "rollout", "sample", "what", "detail");
    }
    fprintf(a->out, "%8lld %8lld  %-8s ", (long long)rollout, (long long)s->index, what);
    va_start(ap, fmt);
    vfprintf(a->out, fmt, ap);
    va_end(ap);
    fputc('\n', a->out);
}

/* ---- rewards ---- */

static void audit_reward(struct audit *a, int64_t rollout, const struct sample *s,
                         const struct hub_result *r)
{
    a->sums.graded++;
    if (r->failed && isnan(s->reward)) {
        return; /* it failed then, too */
    }
    if (r->failed) {
        a->sums.reward_changed++;
        audit_row(a, rollout, s, "reward", "%g, and now it fails: %.120s", s->reward, r->reason);
    } else if (isnan(s->reward)) {
        a->sums.reward_changed++;
        audit_row(a, rollout, s, "reward", "none, and now %g: %.120s", r->reward, r->reason);
    } else if (r->reward != s->reward) {
        a->sums.reward_changed++;
        audit_row(a, rollout, s, "reward", "%g, and now %g: %.120s", s->reward, r->reward,
                  r->reason);
    }
}

static int audit_take(struct audit *a, int64_t rollout, struct sample *const *s, double wait_s,
                      struct err *e)
{
    struct hub_result r;
    int rc = hub_poll(a->hub, wait_s, &r, e);

    if (rc == STATUS_OK) {
        audit_reward(a, rollout, s[r.id], &r);
        json_decref(r.raw);
    }
    return rc;
}

static int audit_rewards(struct audit *a, int64_t rollout, struct sample *const *s, int n,
                         struct err *e)
{
    int rc = STATUS_OK;

    for (int i = 0; rc == STATUS_OK && i < n; i++) {
        struct hub_request q = {i, sample_to_json(s[i])};
        /* what it was given then is no part of what it is asked now */
        json_object_set_new(q.sample, "reward", json_null());
        while ((rc = hub_submit(a->hub, &q, e)) == STATUS_AGAIN) {
            rc = audit_take(a, rollout, s, 0.1, e);
            if (rc < 0) {
                break;
            }
        }
        json_decref(q.sample);
    }
    while (rc == STATUS_OK && hub_pending(a->hub)) {
        rc = audit_take(a, rollout, s, 1.0, e);
        rc = rc == STATUS_AGAIN ? STATUS_OK : rc;
    }
    return rc;
}

/* ---- tokens ---- */

/* 1: all are tokens of the model. */
static int audit_ids(const struct audit *a, const struct sample *s, int *bad)
{
    for (int i = 0; i < s->prompt_len + s->response_len; i++) {
        if (s->tokens[i] < 0 || (a->vocab && s->tokens[i] >= a->vocab)) {
            *bad = i;
            return 0;
        }
    }
    return 1;
}

/* Whether the tokens of the response spell its text, with special tokens or without. */
static int audit_text(const struct audit *a, const struct sample *s)
{
    int same = 0;

    for (int skip = 0; !same && skip < 2; skip++) {
        char *text = NULL;
        if (promptenc_decode(a->enc, s->tokens + s->prompt_len, s->response_len, skip, &text,
                             NULL) == STATUS_OK) {
            same = strcmp(text, s->response ? s->response : "") == 0;
        }
        mem_free(text);
    }
    return same;
}

static int audit_prompt(const struct audit *a, const struct sample *s, int *have)
{
    int32_t *ids = NULL;
    int n = 0, same;
    const json_t *tools = json_object_get(s->metadata, "tools");

    if (!s->prompt || json_is_null(s->prompt) ||
        promptenc_encode(a->enc, s->prompt, tools, &ids, &n, NULL) != STATUS_OK) {
        return 1; /* nothing to compare with */
    }
    *have = n;
    same = n == s->prompt_len && memcmp(ids, s->tokens, sizeof *ids * (size_t)n) == 0;
    mem_free(ids);
    return same;
}

/* Whether the response's own text has these tokens again. */
static int audit_respells(const struct audit *a, const struct sample *s)
{
    char *text = NULL;
    int32_t *ids = NULL;
    size_t n = 0;
    int same = 1;

    if (promptenc_decode(a->enc, s->tokens + s->prompt_len, s->response_len, 0, &text, NULL) ==
            STATUS_OK &&
        tokenizer_encode(a->enc->tok, text, strlen(text), 0, &ids, &n, NULL) == STATUS_OK) {
        same = n == (size_t)s->response_len &&
               memcmp(ids, s->tokens + s->prompt_len, sizeof *ids * n) == 0;
        mem_free(ids);
    }
    mem_free(text);
    return same;
}

/* A token that ends generation in the middle of a response; -1: none. A response with a mask may
 * have several turns. */
static int audit_stop(const struct audit *a, const struct sample *s)
{
    for (int i = 0; !a->any_end && !s->mask && i + 1 < s->response_len; i++) {
        for (int k = 0; k < a->enc->nstops; k++) {
            if (s->tokens[s->prompt_len + i] == a->enc->stops[k]) {
                return i;
            }
        }
    }
    return -1;
}

static void audit_tokens(struct audit *a, int64_t rollout, const struct sample *s)
{
    int bad = 0, have = 0, wrong = 0;

    if (!audit_ids(a, s, &bad)) {
        audit_row(a, rollout, s, "tokens", "token %d is %d, the vocabulary has %d", bad,
                  s->tokens[bad], a->vocab);
        a->sums.token_mismatch++;
        return;
    }
    if (!audit_text(a, s)) {
        audit_row(a, rollout, s, "tokens",
                  "the tokens of the response spell another text: \"%.60s\"",
                  s->response ? s->response : "");
        wrong = 1;
    }
    if (a->check_prompt && !audit_prompt(a, s, &have)) {
        audit_row(a, rollout, s, "tokens", "the prompt has %d tokens, and tokenised again %d%s",
                  s->prompt_len, have, have == s->prompt_len ? " others" : "");
        wrong = 1;
    }
    bad = audit_stop(a, s);
    if (bad >= 0) {
        audit_row(a, rollout, s, "tokens", "response token %d (%d) ends generation, and %d follow",
                  bad, s->tokens[s->prompt_len + bad], s->response_len - bad - 1);
        wrong = 1;
    }
    a->sums.token_mismatch += wrong;
    a->sums.respelled += !audit_respells(a, s);
}

/* ---- log-probs ---- */

static void audit_logps(struct audit *a, int64_t rollout, const struct sample *s, const float *now)
{
    double most = 0.0;
    int at = -1;

    for (int j = 0; j < s->response_len; j++) {
        double was = (double)s->logps[j], d;
        if (s->mask && !s->mask[j]) {
            continue; /* not sampled by the model */
        }
        a->sums.scored_tokens++;
        /* a dump has no infinity: the smallest float stands for it */
        d = was <= -(double)FLT_MAX && now[j] <= -FLT_MAX ? 0.0 : fabs((double)now[j] - was);
        if (!(d <= most)) {
            most = d;
            at = j;
        }
    }
    if (at < 0) {
        return;
    }
    a->sums.logp_samples++;
    if (!(most <= a->sums.logp_max_diff)) {
        a->sums.logp_max_diff = most;
    }
    if (!(most <= a->tolerance)) {
        audit_row(a, rollout, s, "logp", "token %d has %.7g, and now %.7g (%.3g)", at,
                  (double)s->logps[at], (double)now[at], most);
    }
}

static int audit_score(struct audit *a, int64_t rollout, struct sample *const *s, int n,
                       struct err *e)
{
    struct train_sample *t = mem_alloc(sizeof *t * (size_t)(n + 1));
    int *from = mem_alloc(sizeof *from * (size_t)(n + 1)), k = 0, bad, rc = STATUS_OK;

    for (int i = 0; i < n; i++) {
        int len = s[i]->prompt_len + s[i]->response_len;
        if (!s[i]->logps || !s[i]->response_len || !audit_ids(a, s[i], &bad)) {
            continue;
        }
        if (len > a->w->positions) {
            audit_row(a, rollout, s[i], "logp", "%d tokens, the model's context is %d", len,
                      a->w->positions);
            continue;
        }
        t[k] = (struct train_sample){
            .tokens = s[i]->tokens, .prompt = s[i]->prompt_len, .response = s[i]->response_len};
        t[k].logp_out = mem_alloc(sizeof(float) * (size_t)s[i]->response_len);
        from[k++] = i;
    }
    if (k) {
        rc = trainer_score_with(a->w, a->max_tokens > 0 ? a->max_tokens : AUDIT_TOKENS,
                                (float)a->temperature, t, k, e);
    }
    for (int i = 0; i < k; i++) {
        if (rc == STATUS_OK) {
            audit_logps(a, rollout, s[from[i]], t[i].logp_out);
        }
        mem_free(t[i].logp_out);
    }
    mem_free(from);
    mem_free(t);
    return rc;
}

int audit_samples(struct audit *a, int64_t rollout, struct sample *const *s, int n, struct err *e)
{
    int rc = a->hub ? audit_rewards(a, rollout, s, n, e) : STATUS_OK;

    for (int i = 0; rc == STATUS_OK && a->enc && i < n; i++) {
        audit_tokens(a, rollout, s[i]);
    }
    if (rc == STATUS_OK && a->w) {
        rc = audit_score(a, rollout, s, n, e);
    }
    a->sums.samples += n;
    return rc;
}
