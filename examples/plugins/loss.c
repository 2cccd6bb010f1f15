/* Losses in C over the same arrays that a Python loss gets: --custom-loss-function-path
 * loss.so:ppo,
 * --custom-tis-function-path loss.so:soft_tis, --custom-pg-loss-reducer-function-path
 * loss.so:over_longest; and one that needs all logits of a token, --custom-loss-function-path
 * loss.so:sharp.
 *
 *     cc -shared -fPIC -I include -o loss.so examples/plugins/loss.c -lm */
#include <math.h>
#include <stdio.h>

#include "miles_plugin.h"

static const double EPS_CLIP = 0.2;

/* Weight of a token in the sum over samples: 1 over the active tokens of its rollout. */
static double share(const struct miles_batch *b, int64_t i)
{
    return b->per_token ? 1.0 : 1.0 / (double)b->denom[i];
}

/* The clipped policy loss. */
static int ppo_loss(void *self, const struct miles_batch *b, struct miles_loss *out,
                    struct miles_why *why)
{
    double clipped = 0;

    (void)self;
    if (!b->advantages) {
        snprintf(why->text, sizeof why->text, "no advantages");
        return 1;
    }
    for (int64_t i = 0; i < b->nsamples; i++) {
        for (int64_t t = b->start[i]; t < b->start[i + 1]; t++) {
            double a = b->advantages[t], r, plain, held;
            if (!b->loss_mask[t]) {
                continue;
            }
            r = exp((double)b->log_probs[t] - (double)b->old_log_probs[t]);
            plain = -r * a;
            held = -fmin(fmax(r, 1 - EPS_CLIP), 1 + EPS_CLIP) * a;
            out->loss += fmax(plain, held) * share(b, i);
            out->dlog_probs[t] = plain >= held ? (float)(plain * share(b, i)) : 0.0f;
            clipped += (held > plain) * share(b, i);
        }
    }
    out->metric(out->metrics, "pg_loss", out->loss);
    out->metric(out->metrics, "pg_clipfrac", clipped);
    return 0;
}

/* Weights between 1/2 and 2. */
static int soft(void *self, const struct miles_batch *b, float *weight, uint8_t *keep,
                struct miles_loss *out, struct miles_why *why)
{
    double sum = 0;

    (void)self, (void)why, (void)keep;
    for (int64_t i = 0; i < b->nsamples; i++) {
        for (int64_t t = b->start[i]; t < b->start[i + 1]; t++) {
            double r = exp((double)b->old_log_probs[t] - (double)b->rollout_log_probs[t]);
            weight[t] = (float)fmin(fmax(r, 0.5), 2.0);
            sum += b->loss_mask[t] ? weight[t] * share(b, i) : 0;
        }
    }
    out->metric(out->metrics, "soft_tis", sum);
    return 0;
}

/* Every response is divided by the longest one's length. */
static int over_longest_coef(void *self, const struct miles_batch *b, float *coef,
                             struct miles_why *why)
{
    int64_t longest = 1;

    (void)self, (void)why;
    for (int64_t i = 0; i < b->nsamples; i++) {
        int64_t n = b->start[i + 1] - b->start[i];
        longest = n > longest ? n : longest;
    }
    for (int64_t t = 0; t < b->ntokens; t++) {
        coef[t] = b->loss_mask[t] ? 1.0f / (float)longest : 0.0f;
    }
    return 0;
}

/* The cross entropy of the sampled token, weighted by its advantage, from the logits themselves: a
 * loss that could be anything else over the row. Equal to a policy gradient without clipping. */
static int sharp_row(void *self, const struct miles_row *r, float *dlogits, double *loss,
                     struct miles_why *why)
{
    double max = r->logits[0], sum = 0, w = (double)r->advantage / (double)r->denom;

    (void)self, (void)why;
    for (int v = 1; v < r->vocab; v++) {
        max = fmax(max, r->logits[v]);
    }
    for (int v = 0; v < r->vocab; v++) {
        sum += exp(r->logits[v] - max);
    }
    *loss = -w * (r->logits[r->target] - max - log(sum));
    for (int v = 0; v < r->vocab; v++) {
        dlogits[v] += (float)(w * (exp(r->logits[v] - max) / sum - (v == r->target)));
    }
    return 0;
}

#define PLUGIN .abi = MILES_PLUGIN_ABI, .size = sizeof(struct miles_plugin)

const struct miles_plugin ppo = {PLUGIN, .name = "ppo", .loss = ppo_loss};
const struct miles_plugin soft_tis = {PLUGIN, .name = "soft_tis", .correct = soft};
const struct miles_plugin sharp = {PLUGIN, .name = "sharp", .row = sharp_row};
const struct miles_plugin over_longest = {PLUGIN, .name = "over_longest",
                                          .reduce = over_longest_coef};
