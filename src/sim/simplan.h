/* What a seed stands for: the options of a run, its engines, and how much goes wrong.
 *
 *     struct simplan p;
 *     simplan_draw(&p, seed);
 *     conf_parse(conf, p.argc, p.argv, &e); */
#ifndef SIM_SIMPLAN_H
#define SIM_SIMPLAN_H

#include <stdint.h>

enum simplan_mode {
    SIMPLAN_SYNC,
    SIMPLAN_DYNAMIC,
    SIMPLAN_PARTIAL,
    SIMPLAN_AHEAD,
    SIMPLAN_ASYNC,
    SIMPLAN_NMODES
};

enum { SIMPLAN_WORDS = 64 };

struct simplan {
    uint64_t seed;
    enum simplan_mode mode;
    int engines, own, concurrency; /* engines that the run begins with, and whose they are */
    int slow;                      /* slow engines are drained */
    int places, listed;            /* of the file of engines that come and go; 0: there is none */
    int64_t rollouts, groups, samples;
    int delta;         /* weights come as changes; versions from one whole one to the next */
    int overwrite;     /* how changes are told */
    double keep_s;     /* for versions that nobody needs */
    int evals;         /* sets that are evaluated */
    int64_t staleness; /* versions that a trained token may be behind */
    int some_fail;     /* rewards of some answers fail, always */
    int chance;        /* others fail by chance: the run equals its replay, not the one without */
    int beside;        /* checkpoints are written beside the next rollout */
    int64_t every;     /* rollouts between two weight syncs */
    int prunes;        /* old checkpoints and what the ledger has of them go */
    int64_t ends;      /* times that the controller is ended */
    int64_t stop_at;   /* event at which it is asked to stop; 0: never */
    double jump_at;    /* seconds until the clock jumps; 0: never */
    double rate;       /* of faults */
    int64_t faults;    /* at most */
    int argc;
    char words[SIMPLAN_WORDS][40];
    char *argv[SIMPLAN_WORDS];
};

void simplan_draw(struct simplan *p, uint64_t seed);
const char *simplan_mode_name(enum simplan_mode m);

#endif
