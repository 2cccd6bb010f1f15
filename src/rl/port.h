/* What the loop needs of engines and trainers, and nothing more. The loop knows no processes, no
 * sockets and no memory layout: one host, remote servers or an MPI gang stand behind these tables.
 *
 * Every call returns STATUS_* and must return soon; a port that computes in this process does a
 * bounded piece of work per call. */
#ifndef RL_PORT_H
#define RL_PORT_H

#include <jansson.h>
#include <stdint.h>

struct err;
struct sample;
struct train_sample;
struct statesum;
struct trainer_report;
struct trainer_row;
struct optim_hyper;

/* A prompt with n samples. */
struct port_group {
    int64_t id;
    const int32_t *tokens;
    int ntokens, n, max_new;
    float temperature, top_p;
    int top_k;
    int ignore_eos; /* 1: no token ends a response, as in SGLang */
    int nstop;
    int32_t stop[16];
    const char *const *texts; /* stop strings, which stay in the response; borrowed until the last
                                 sample was polled */
    int ntexts;
    uint64_t seed;
    uint32_t stream; /* RNG_TRAIN or RNG_EVAL */
    int64_t sample;  /* number of its first sample */
    int position;    /* tokens of the response that the prompt ends with: a sample that goes on */
    /* What the answers are recorded under (rl/journal.h); engines have no use for it. */
    int64_t rollout, version;
    int set;
    const struct sample *of; /* the first sample, for ports whose functions see samples; or NULL */
};

enum port_finish { PORT_STOP, PORT_LENGTH, PORT_ABORT };

struct port_answer {
    int64_t group;
    int sample;            /* 0 .. n-1 */
    const int32_t *tokens; /* valid until the next poll */
    const float *logps;
    int ntokens;
    enum port_finish finish;
    int64_t version; /* of the weights that the last token was sampled with */
    int exact;       /* 1: every token is one of `version`, computed by a device that promises the
                        trainer's bits */
    /* Experts that the engine chose, for models that have them and engines that tell: (tokens of
     * prompt and response but the last, layers, chosen). NULL: not told. */
    const int32_t *experts;
    int64_t nexperts;
    const struct sample *made; /* a function made it: taken whole, as it is; or NULL */
};

/* What may be asked of the engines between two calls of poll. */
enum port_control {
    PORT_PAUSE,    /* running samples rest with what they have; polls tell nothing new */
    PORT_CONTINUE, /* they go on; under new weights all that was computed is computed again */
    PORT_RELEASE,  /* the memory of the key-value cache is given back; nothing may be running */
    PORT_RESTORE   /* and taken again */
};

struct rollout_port {
    /* The tokens are copied. STATUS_AGAIN: no room now; poll first. */
    int (*submit)(void *self, const struct port_group *g, struct err *e);
    /* 0 with an answer; STATUS_AGAIN when none is ready yet (a port whose engines are elsewhere
     * waits for one, a fraction of a second); STATUS_END when nothing is running. */
    int (*poll)(void *self, struct port_answer *a, struct err *e);
    /* Ends what is left of a group, -1: of all. Its unfinished samples are polled as PORT_ABORT
     * with the tokens so far. */
    void (*abort)(void *self, int64_t group);
    /* STATUS_AGAIN until all engines have done it: call again. */
    int (*control)(void *self, enum port_control what, struct err *e);
    /* The trainer's weights are `version` now and stay so: engines take them, and the port proves
     * that they have. Called before the first rollout and when training has moved the weights, with
     * nothing running or all of it paused. STATUS_AGAIN until done: call again. NULL: the engine
     * reads the trainer's own memory. */
    int (*publish)(void *self, int64_t version, struct err *e);
    /* Tokens that an unfinished sample of the group has so far. NULL: a sample is not known before
     * its answer. */
    int (*progress)(void *self, int64_t group, int sample);
    /* Puts the port's figures since the last call into a row of metrics; may be NULL. */
    void (*report)(void *self, json_t *row);
    void *self;
};

/* Changes of what stands beside the trained weights. */
enum port_refresh {
    PORT_REF,        /* the reference becomes a copy of the model */
    PORT_KEEP,       /* the model as it is now is kept, in place of the oldest that is */
    PORT_RESET_OPTIM /* moments and step count of the optimizer begin anew */
};

struct trainer_port {
    /* Log-probs under the current weights, into logp_out of each sample. */
    int (*score)(void *self, struct train_sample *s, int n, struct err *e);
    /* The same under the reference weights; and under those of a teacher, where there is one. */
    int (*score_ref)(void *self, struct train_sample *s, int n, struct err *e);
    int (*score_teacher)(void *self, struct train_sample *s, int n, struct err *e);
    /* One optimizer step; new weights are visible to the rollout port afterwards. */
    int (*step)(void *self, struct train_sample *s, int n, const struct optim_hyper *h,
                struct trainer_report *r, struct err *e);
    /* A checkpoint of what is there now; `saved` tells when it is on disk. The next step waits for
     * it. */
    int (*save)(void *self, const char *dir, int64_t iteration, int with_optim, const json_t *state,
                struct err *e);
    /* How the last save went: STATUS_AGAIN when it is being written and wait is 0. NULL: save
     * returns when all is on disk. */
    int (*saved)(void *self, int wait, struct err *e);
    int (*export_hf)(void *self, const char *dir, struct err *e);
    int64_t (*version)(void *self);
    void *self;
    /* What --ref-update-interval, --keep-old-actor and --reset-optimizer-states ask for; NULL where
     * none of them is supported. */
    int (*refresh)(void *self, enum port_refresh what, struct err *e);
    /* Log-probs under a kept version; STATUS_NOTFOUND when it is not kept. */
    int (*score_kept)(void *self, int64_t version, struct train_sample *s, int n, struct err *e);
    /* Hands out every row of logits behind the responses (train/trainer.h); NULL: it cannot. */
    int (*score_rows)(void *self, struct train_sample *s, int n,
                      void (*fn)(void *arg, const struct trainer_row *r), void *arg, struct err *e);
    /* The reference as a Hugging Face folder. */
    int (*export_ref)(void *self, const char *dir, struct err *e);
    /* Sums of gradient, weights or optimizer state; part is one of enum statesum_part. NULL: there
     * are none. */
    int (*sums)(void *self, int part, struct statesum *out, struct err *e);
};

#endif
