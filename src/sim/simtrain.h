/* A trainer whose weights are a hash of all it was ever trained on, in order: a sample that is
 * lost, doubled or changed leaves other weights behind. As struct trainer_port and struct wsync.
 *
 *     struct simtrain *t = simtrain_new(&sim, &promises);
 *     ... simtrain_port(t), simtrain_sync(t) ...
 *     simtrain_load(t, dir, iteration, &state, &e)     after a restart; else simtrain_begin(t)
 *     simtrain_free(t);
 *
 * Tokens are a pure function of weights and key (simtrain_token): engines use it to answer, and the
 * trainer to see of which weights every token is that it is given. */
#ifndef SIM_SIMTRAIN_H
#define SIM_SIMTRAIN_H

#include <jansson.h>
#include <stdint.h>

#include "rl/port.h"
#include "rl/wsync.h"

struct err;
struct sim;
struct simtrain;

enum { SIMTRAIN_VOCAB = 36, SIMTRAIN_END = 37 };

struct simtrain_token {
    int32_t id;
    float logp; /* tells which weights it is of */
    int last;   /* 1: the response ends with it */
};
struct simtrain_token simtrain_token(uint64_t weights, uint64_t seed, uint64_t stream,
                                     int64_t sample, int position);

struct simtrain_promises {
    uint64_t seed;     /* of the sampling */
    int64_t staleness; /* versions that a token may be behind the weights it is trained into */
    double step_s;     /* that a step takes */
    int beside;        /* 1: checkpoints are written while the next rollout is sampled */
};

struct simtrain *simtrain_new(struct sim *s, const struct simtrain_promises *p);
void simtrain_free(struct simtrain *t); /* NULL is fine */
const struct trainer_port *simtrain_port(struct simtrain *t);
const struct wsync *simtrain_sync(struct simtrain *t);
/* The first weights. */
void simtrain_begin(struct simtrain *t);
/* Those of a checkpoint; *state is the loop's, the caller's to decref. */
int simtrain_load(struct simtrain *t, const char *dir, int64_t iteration, json_t **state,
                  struct err *e);
/* Tokens of an evaluation's sample must be those of the version's weights. */
void simtrain_check_eval(struct simtrain *t, int64_t version, int64_t sample, const int32_t *tokens,
                         const float *logps, int n);
/* The weights: a hash of everything. */
uint64_t simtrain_weights(const struct simtrain *t);
uint64_t simtrain_weights_of(const struct simtrain *t, int64_t version);
int64_t simtrain_samples(const struct simtrain *t); /* trained so far */
int simtrain_has(const struct simtrain *t, int64_t sample);

#endif
