/* Choosing a token: a pure function of the logit row, the parameters, what has been said and one
 * uniform number (contract C3). Candidates are walked by (logit descending, id ascending) until
 * their f64 sum of exp(logit - max) reaches u times the total.
 *
 *     if (sampler_adjusts(&q, &past)) {
 *         max = sampler_adjust(s, &q, &past, x, n, &x, &p);
 *     }
 *     token = sampler_pick(s, &q, x, p, n, max, u); */
#ifndef ENGINE_SAMPLER_H
#define ENGINE_SAMPLER_H

#include <stdint.h>

struct sampler_bias {
    int32_t id;
    float value; /* added to the logit before the temperature */
};

struct sampler_params {
    float temperature; /* 0: greedy, the first of the largest logits */
    float top_p;       /* 1: off */
    float min_p;       /* 0: off */
    int top_k;         /* -1 or 0: off */
    /* Of tokens in the response so far, in SGLang's order: a logit loses `frequency` for each time
     * and `presence` once; if it is above 0 then, it is divided by `repetition`, else multiplied
     * with it. */
    float repetition_penalty; /* 1 or 0: off */
    float frequency_penalty, presence_penalty;
    int nbias;
    const struct sampler_bias *bias;
};

/* The response so far, and tokens that may not come next. */
struct sampler_past {
    const int32_t *tokens;
    int n;
    const int32_t *banned;
    int nbanned;
};

/* Scratch for one thread; `n` is the vocabulary. */
struct sampler;
struct sampler *sampler_new(int n);
void sampler_free(struct sampler *s);

/* 1 when logits are to be adjusted before a token is chosen. */
int sampler_adjusts(const struct sampler_params *q, const struct sampler_past *past);
/* Penalties, bias and bans. x (n): logits already divided by the temperature; so are penalties and
 * bias. *y (n) are the adjusted logits, *p (n) exp(y - max), in s until its next call; the maximum
 * is returned. *p is not set when greedy. */
float sampler_adjust(struct sampler *s, const struct sampler_params *q,
                     const struct sampler_past *past, const float *x, int n, const float **y,
                     const float **p);

/* x (n): logits already divided by the temperature; p (n): exp(x - max). u in (0, 1). */
int32_t sampler_pick(struct sampler *s, const struct sampler_params *q, const float *x,
                     const float *p, int n, float max, double u);

/* The k first candidates in order, k <= n. */
void sampler_top(struct sampler *s, const float *x, int n, float max, int k, int32_t *ids);

#endif
