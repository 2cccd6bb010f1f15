/* Saved samples, looked at once more: is the reward what the reward function gives, are the tokens
 * what tokenizer and template make of prompt and response, are the log-probs those of the weights?
 *
 *     struct audit a = {.enc = &enc, .hub = hub, .w = weights, .temperature = 1, .out = stdout};
 *     audit_samples(&a, rollout, samples, n, &e);          any number of times
 *     ... a.sums ...
 *
 * What is NULL is not looked at. Each disagreement is a line of the table on `out`; `show` of them
 * at most, the rest is counted. */
#ifndef RL_AUDIT_H
#define RL_AUDIT_H

#include <stdint.h>
#include <stdio.h>

struct err;
struct hub;
struct promptenc;
struct sample;
struct weights;

struct audit_sums {
    int64_t samples;
    int64_t graded, reward_changed;
    int64_t token_mismatch; /* samples with a token that is none, or with another text or prompt */
    int64_t respelled;      /* whose text has other tokens when it is tokenised again */
    int64_t scored_tokens;  /* log-probs that were compared */
    double logp_max_diff;   /* NAN: one is no number */
    int64_t logp_samples;   /* with a difference above 0 */
};

struct audit {
    const struct promptenc *enc;
    struct hub *hub;
    int check_prompt; /* 1: the prompt is rendered and tokenised again */
    int any_end;      /* 1: responses may go on behind a token that ends them */
    struct weights *w;
    int vocab;      /* of the model: tokens from here on are none */
    int max_tokens; /* of a pass; 0: 4096 */
    double temperature;
    double tolerance; /* differences of log-probs up to this are not lines of the table */
    int show;
    FILE *out;
    struct audit_sums sums;
    int shown;
};

int audit_samples(struct audit *a, int64_t rollout, struct sample *const *s, int n, struct err *e);

#endif
