/* Many seeds, in processes side by side.
 *
 *     struct simhunt_found f;
 *     simhunt_run(&(struct simhunt_opts){.from = 0, .to = 2000, .jobs = 2, .most = 10}, &f, &e);
 *     f.seeds, f.violations, f.hits[SIM_CUT] ...
 *
 * A process that ends by an assertion is a violation of its seed; another takes its place. */
#ifndef SIM_SIMHUNT_H
#define SIM_SIMHUNT_H

#include <stdint.h>

#include "sim/sim.h"
#include "sim/simrun.h"

struct err;

enum { SIMHUNT_JOBS = 64, SIMHUNT_KEPT = 16 };

struct simhunt_opts {
    int64_t from, to; /* seeds [from, to) */
    int jobs;
    int64_t most; /* violations after which it ends; 0: none */
    enum sim_plant plant;
};

struct simhunt_violation {
    int64_t seed, event;
    char broken[400], what[160];
    char last[SIM_LAST][SIM_LINE];
};

struct simhunt_found {
    int64_t seeds, violations, events, starts, samples;
    double seconds; /* of simulated time */
    int64_t hits[SIM_NFAULTS], did[SIM_NDEEDS];
    int nkept; /* the first of them, by seed in each process */
    struct simhunt_violation kept[SIMHUNT_KEPT];
};

int simhunt_run(const struct simhunt_opts *o, struct simhunt_found *out, struct err *e);

#endif
