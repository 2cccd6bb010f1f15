/* Owns the space of runs that seeds are drawn from. */
#include "sim/simplan.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "sim/sim.h"
#include "sim/simdisk.h"

static void simplan_word(struct simplan *p, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static void simplan_word(struct simplan *p, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(p->words[p->argc], sizeof p->words[0], fmt, ap);
    va_end(ap);
    p->argv[p->argc] = p->words[p->argc];
    p->argc++;
}

static void simplan_flag(struct simplan *p, const char *name, int64_t value)
{
    simplan_word(p, "--%s", name);
    simplan_word(p, "%lld", (long long)value);
}

static void simplan_text(struct simplan *p, const char *name, const char *value)
{
    simplan_word(p, "--%s", name);
    simplan_word(p, "%s", value);
}

const char *simplan_mode_name(enum simplan_mode m)
{
    static const char *const names[] = {"sync", "dynamic", "partial", "train-async", "fully-async"};
    return names[m];
}

/* Sampling in the mode of the seed, and how old a token may be when it is trained. */
static void simplan_mode(struct simplan *p, struct sim *s)
{
    int64_t every = p->every = sim_below(s, 3) ? 1 : 2;

    simplan_flag(p, "update-weights-interval", every);
    p->staleness = every - 1;
    if (p->mode == SIMPLAN_DYNAMIC || sim_below(s, 4) == 0) {
        simplan_text(p, "dynamic-sampling-filter-path", "check_reward_nonzero_std");
        simplan_flag(p, "over-sampling-batch-size", p->groups + sim_below(s, 3));
    } else if (p->mode == SIMPLAN_PARTIAL) {
        simplan_flag(p, "over-sampling-batch-size", p->groups + 1 + sim_below(s, 3));
    }
    if (p->mode == SIMPLAN_PARTIAL) {
        simplan_word(p, "--partial-rollout");
        p->staleness = 1000; /* a sample may wait in the buffer for long */
        if (sim_below(s, 2)) {
            simplan_word(p, "--mask-offpolicy-in-partial-rollout");
        }
    }
    if (p->mode == SIMPLAN_AHEAD) {
        p->staleness = every;
    }
    if (p->mode == SIMPLAN_ASYNC) {
        int64_t most = sim_below(s, 3);
        simplan_word(p, "--fully-async");
        simplan_flag(p, "max-weight-staleness", most);
        simplan_text(p, "async-unused-samples-handler", sim_below(s, 2) ? "drop" : "retry");
        simplan_flag(p, "async-max-concurrent-samples", p->samples * (1 + sim_below(s, 6)));
        p->staleness = most + every;
    }
    if (sim_below(s, 4) == 0) {
        simplan_text(p, "rollout-submission-granularity", sim_below(s, 2) ? "sample" : "group");
    }
    if (sim_below(s, 6) == 0) {
        simplan_word(p, "--group-rm");
    }
    if (sim_below(s, 4) == 0) {
        simplan_flag(p, "rollout-logical-concurrency", p->samples * (1 + sim_below(s, 3)));
    }
}

/* Engines that come and go beside those that the run begins with, or in their place. */
static void simplan_crew(struct simplan *p, struct sim *s)
{
    if (sim_below(s, 3)) {
        return;
    }
    p->places = 1 + (int)sim_below(s, 3);
    p->listed = (int)sim_below(s, p->places + 1);
    if (!p->own && sim_below(s, 2)) {
        p->places += p->engines;
        p->listed += p->engines;
        p->engines = 0;
    }
}

/* Weights that come as changes. */
static void simplan_delta(struct simplan *p, struct sim *s)
{
    static const double keep[] = {0, 3, 1000};

    if (sim_below(s, 6) == 0) {
        p->delta = 1 + (int)sim_below(s, 4);
        p->overwrite = sim_below(s, 2) == 0;
        p->keep_s = keep[sim_below(s, 3)];
    }
}

/* Evaluations before, between and behind the rollouts. */
static void simplan_evals(struct simplan *p, struct sim *s)
{
    if (sim_below(s, 4)) {
        return;
    }
    p->evals = 1 + (int)sim_below(s, 2);
    simplan_word(p, "--eval-prompt-data");
    for (int i = 0; i < p->evals; i++) {
        simplan_word(p, "set%d", i);
        simplan_word(p, "simulated");
    }
    simplan_flag(p, "eval-interval", 1 + sim_below(s, 2));
    simplan_flag(p, "n-samples-per-eval-prompt", 1 + sim_below(s, 2));
    if (sim_below(s, 3) == 0) {
        simplan_word(p, "--skip-eval-before-train");
    }
}

/* Slow engines are found out by their answers: there must be many. */
static void simplan_slow(struct simplan *p, struct sim *s)
{
    p->slow = sim_below(s, 8) == 0;
    if (p->slow) {
        p->engines += p->engines < 2;
        p->rollouts += 3;
        p->groups += 2;
    }
}

static void simplan_faults(struct simplan *p, struct sim *s)
{
    static const double rates[] = {0.2, 0.5, 1.0, 2.0};

    p->rate = rates[sim_below(s, 4)];
    p->faults = 4 + sim_below(s, 40);
    p->ends = sim_below(s, 4);
    p->stop_at = sim_below(s, 4) ? 0 : 1 + sim_below(s, 1500);
    p->jump_at = sim_below(s, 5) ? 0 : sim_between(s, 0.1, 30);
    p->some_fail = sim_below(s, 3) == 0;
    p->chance = sim_below(s, 5) == 0;
    p->beside = sim_below(s, 2) == 0;
}

void simplan_draw(struct simplan *p, uint64_t seed)
{
    struct sim s;
    int64_t keep;

    memset(p, 0, sizeof *p);
    sim_init(&s, sim_mix(seed, 1));
    p->seed = seed;
    p->mode = (enum simplan_mode)sim_below(&s, SIMPLAN_NMODES);
    p->engines = 1 + (int)sim_below(&s, 4);
    p->own = sim_below(&s, 2) == 0;
    p->concurrency = sim_below(&s, 3) ? 512 : 1 + (int)sim_below(&s, 8);
    p->rollouts = 2 + sim_below(&s, 4);
    p->groups = 1 + sim_below(&s, 3);
    p->samples = 2 + sim_below(&s, 3);
    simplan_slow(p, &s);
    simplan_text(p, "hf-checkpoint", "simulated");
    simplan_text(p, "prompt-data", "simulated");
    simplan_text(p, "input-key", "q");
    simplan_text(p, "rm-type", "f1");
    simplan_word(p, "--rollout-shuffle");
    simplan_text(p, "save", SIMDISK_ROOT "/save");
    simplan_flag(p, "num-rollout", p->rollouts);
    simplan_flag(p, "rollout-batch-size", p->groups);
    simplan_flag(p, "n-samples-per-prompt", p->samples);
    simplan_flag(p, "rollout-max-response-len", 2 + sim_below(&s, 8));
    simplan_flag(p, "rollout-seed", (int64_t)(seed % 1000000));
    if (sim_below(&s, 4)) {
        simplan_flag(p, "save-interval", 1 + sim_below(&s, 2));
    }
    keep = sim_below(&s, 4);
    if (keep == 1) {
        simplan_flag(p, "save-keep", 1);
        p->prunes = 1;
    }
    simplan_text(p, "ledger-mode", sim_below(&s, 2) ? "wal" : "rollback");
    simplan_mode(p, &s);
    simplan_evals(p, &s);
    simplan_delta(p, &s);
    simplan_crew(p, &s);
    simplan_faults(p, &s);
    sim_fini(&s);
}
