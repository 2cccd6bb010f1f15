/* A seed from its first event to the verdict: the run without faults, the run with them over as
 * many ends of the controller as it takes, and the replay of its ledger.
 *
 *     struct simrun_shared sh;
 *     simrun_share(&sh, &e);                           once for a process
 *     struct simrun_result r;
 *     simrun_seed(&sh, seed, SIM_PLANT_NONE, 0, &r);
 *     r.broken[0] == 0                                 all promises were kept
 *     simrun_unshare(&sh); */
#ifndef SIM_SIMRUN_H
#define SIM_SIMRUN_H

#include <stdint.h>

#include "rl/promptenc.h"
#include "sim/sim.h"
#include "sim/simdelta.h"

struct err;

/* What all seeds use: a tokenizer, small models, and prompts in files of their own. */
struct simrun_shared {
    struct promptenc enc;
    struct simdelta_models models;
    int fd, eval_fd;
};

struct simrun_result {
    char broken[400]; /* the promise that was not kept; "" none */
    int64_t event;    /* at which; else how many there were */
    int64_t starts;   /* of the controller */
    int64_t samples;  /* trained */
    double seconds;   /* that passed in the world */
    int64_t hits[SIM_NFAULTS], did[SIM_NDEEDS];
    char last[SIM_LAST][SIM_LINE]; /* what happened before, the oldest first; "" none */
    char what[160];                /* the run that the seed stands for */
};

int simrun_share(struct simrun_shared *sh, struct err *e);
void simrun_unshare(struct simrun_shared *sh);
/* trace 1: every event goes to stdout. */
void simrun_seed(struct simrun_shared *sh, uint64_t seed, enum sim_plant plant, int trace,
                 struct simrun_result *out);

#endif
