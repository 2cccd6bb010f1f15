/* The one stable header for plugins of `miles`: shared objects that take the place of Python
 * functions. An option --...-path takes `FILE.so:symbol`, where symbol is a struct miles_plugin:
 *
 *     #include <string.h>
 *     #include "miles_plugin.h"
 *
 *     static int reward(void *self, const struct miles_sample *s, int n, double *out,
 *                       struct miles_why *why)
 *     {
 *         (void)self, (void)why;
 *         for (int i = 0; i < n; i++) {
 *             out[i] = strstr(s[i].response, "42") ? 1.0 : 0.0;
 *         }
 *         return 0;
 *     }
 *
 *     const struct miles_plugin forty_two = {
 *         .abi = MILES_PLUGIN_ABI, .size = sizeof(struct miles_plugin),
 *         .name = "forty_two", .reward = reward};
 *
 *     cc -shared -fPIC -I include -o reward.so reward.c
 *     miles train --custom-rm-path ./reward.so:forty_two ...
 *
 * Rules of the house: structs only grow, at their end, and `size` says how far the plugin or the
 * program knows them; MILES_PLUGIN_ABI is raised when an older plugin cannot work any more, and a
 * plugin of another ABI is refused with both numbers. Everything that a function is given is
 * readable during the call only and not to be freed. A function returns 0, or anything else with
 * the reason in why->text; the run then ends, or the sample counts as failed, with that reason.
 * Plugins run inside the program: what they crash is the run. Calls come from one thread. */
#ifndef MILES_PLUGIN_H
#define MILES_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#define MILES_PLUGIN_ABI 1

/* Where a function says why it failed: one line of UTF-8 with a zero behind it. */
struct miles_why {
    char text[512];
};

enum miles_status { MILES_PENDING, MILES_COMPLETED, MILES_TRUNCATED, MILES_ABORTED, MILES_FAILED };

/* One answer to a prompt; the fields are Miles' Sample. */
struct miles_sample {
    uint32_t size;
    int32_t status; /* enum miles_status */
    int64_t index, group_index, rollout_id;
    const char *prompt; /* text, or the JSON of a list of messages */
    const char *response;
    const char *label;     /* JSON: "\"42\"", "null" */
    const char *metadata;  /* JSON object */
    const int32_t *tokens; /* prompt and response */
    int32_t ntokens, response_length;
    const float *rollout_log_probs; /* (response_length) or NULL */
    const uint8_t *loss_mask;       /* (response_length) or NULL: all ones */
    double reward;                  /* not a number until it is scored */
};

/* The samples of one optimizer step, in the order of their numbers, whatever the micro-batches are.
 * Arrays of tokens hold the response tokens of all samples one after the other: those of sample i
 * are [start[i], start[i + 1]). */
struct miles_batch {
    uint32_t size;
    int32_t per_token; /* 1: --calculate-per-token-loss */
    int64_t nsamples, ntokens;
    const int64_t *start;         /* (nsamples + 1) */
    const int64_t *total_lengths; /* (nsamples) tokens of prompt and response */
    const int64_t *denom;         /* (nsamples) active tokens of the sample's rollout, at least 1 */
    const int64_t *rollout_ids;   /* (nsamples) */
    const int32_t *tokens;        /* whole sequences one after the other; the response is the end */
    const uint8_t *loss_mask;     /* (ntokens) */
    const float *log_probs;       /* (ntokens) of the policy that learns */
    const float *old_log_probs;   /* of the policy before the rollout's steps */
    const float *ref_log_probs;   /* NULL without a reference model */
    const float *rollout_log_probs; /* NULL when the engine told none */
    const float *entropy;           /* NULL when it is not computed */
    const float *advantages;        /* NULL of --loss-type sft_loss */
    double divisor; /* what the batch's sum is divided by: rollouts, or tokens with per_token */
};

/* What a loss gives. The loss is a sum over samples, as Miles' functions return it: the program
 * divides loss, gradients and metrics by miles_batch.divisor. */
struct miles_loss {
    uint32_t size;
    double loss;
    float *dlog_probs; /* (ntokens) out: d loss / d log_probs; zero at first */
    float *dentropy;   /* (ntokens) out, or NULL when entropies are not computed */
    void *metrics;     /* for metric() */
    void (*metric)(void *metrics, const char *name, double value);
};

/* A parameter of the model, by the name of its Hugging Face tensor. */
struct miles_param {
    const char *name;
    int64_t rows, cols; /* a vector has one row */
    float *data;        /* (rows, cols): the optimizer's f32 masters; may be written */
};

/* One row of logits of a loss that needs them all. */
struct miles_row {
    uint32_t size;
    int32_t vocab;
    int64_t sample, token; /* of the batch; its response token */
    int32_t target;        /* the token that was sampled */
    float log_prob, entropy, advantage;
    int64_t denom;       /* active tokens of the sample's rollout, at least 1 */
    const float *logits; /* (vocab), divided by the temperature */
};

struct miles_plugin {
    uint32_t abi;  /* MILES_PLUGIN_ABI */
    uint32_t size; /* sizeof(struct miles_plugin) */
    const char *name;
    /* Called once before all others; args is the JSON of all options. NULL: nothing to open. */
    int (*open)(const char *args, void **self, struct miles_why *why);
    void (*close)(void *self);

    /* --custom-rm-path: rewards of n samples; n > 1 is a group (--group-rm). */
    int (*reward)(void *self, const struct miles_sample *s, int n, double *rewards,
                  struct miles_why *why);
    /* --custom-reward-post-process-path: raw and shaped rewards of all samples of a rollout. */
    int (*shape)(void *self, const struct miles_sample *s, int n, double *raw, double *shaped,
                 struct miles_why *why);
    /* Hooks whose arguments are plain data (docs/extending.md lists them): argv is a JSON list,
     * *answer JSON, allocated with malloc and freed by the program. */
    int (*call)(void *self, const char *argv, char **answer, struct miles_why *why);
    /* --custom-loss-function-path. */
    int (*loss)(void *self, const struct miles_batch *b, struct miles_loss *out,
                struct miles_why *why);
    /* --custom-tis-function-path: the weight of each token in the policy loss (1 at first), and
     * which tokens stay in it (1 at first); out has metrics only. */
    int (*correct)(void *self, const struct miles_batch *b, float *weight, uint8_t *keep,
                   struct miles_loss *out, struct miles_why *why);
    /* --custom-pg-loss-reducer-function-path: what each token's policy loss is multiplied by before
     * they are summed (without the batch's divisor). */
    int (*reduce)(void *self, const struct miles_batch *b, float *coef, struct miles_why *why);
    /* --custom-megatron-before-...-hook-path: argv is the JSON list of the hook's other arguments.
     * What is written into data is the model from here on. */
    int (*params)(void *self, const char *argv, struct miles_param *p, int n,
                  struct miles_why *why);
    /* --custom-loss-function-path, beside loss or without it: the loss of one row of logits, and
     * its gradient, added to dlogits (vocab). Rows come in any order and must not depend on each
     * other. */
    int (*row)(void *self, const struct miles_row *r, float *dlogits, double *loss,
               struct miles_why *why);
    /* --custom-model-provider-path: a family of models that the program does not know. *row is
     * JSON, allocated with malloc, that says which known family it is like and what differs:
     * {"model_type": "mine", "like": "llama", "qk_norm": true, ...}; src/model/arch.h lists the
     * keys, docs/extending.md explains them. */
    int (*model)(void *self, char **row, struct miles_why *why);
};

#endif
