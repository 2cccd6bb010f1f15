/* Choosing a token: a pure function of the logit row, the parameters and one uniform number
 * (contract C3). Candidates are walked by (logit descending, id ascending) until their f64 sum of
 * exp(logit - max) reaches u times the total. */
#ifndef ENGINE_SAMPLER_H
#define ENGINE_SAMPLER_H

#include <stdint.h>

struct sampler_params {
    float temperature; /* 0: greedy, the first of the largest logits */
    float top_p;       /* 1: off */
    float min_p;       /* 0: off */
    int top_k;         /* -1 or 0: off */
};

/* Scratch for one thread; `n` is the vocabulary. */
struct sampler;
struct sampler *sampler_new(int n);
void sampler_free(struct sampler *s);

/* x (n): logits already divided by the temperature; p (n): exp(x - max). u in (0, 1). */
int32_t sampler_pick(struct sampler *s, const struct sampler_params *q, const float *x,
                     const float *p, int n, float max, double u);

#endif
