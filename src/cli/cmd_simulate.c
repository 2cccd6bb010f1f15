/* Owns `miles simulate`: the controller against a world that is a program (src/sim), seed by seed.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/conf.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/proc.h"
#include "base/status.h"
#include "cli/cmd.h"
#include "sim/simhunt.h"

struct cmd_simulate {
    int64_t seed, jobs, most;
    char *seeds;
    int plant, trace, verbose;
};

#define O(f) offsetof(struct cmd_simulate, f)

static const struct conf_opt cmd_simulate_table[] = {
    {"seed", CONF_INT, NULL, "[0,4611686018427387904]", "one seed, in this process", O(seed),
     "simulate", NULL},
    {"seeds", CONF_STR, NULL, NULL, "A:B, the seeds from A to B - 1", O(seeds), "simulate", NULL},
    {"jobs", CONF_INT, NULL, "[1,64]", "processes at once; unset: one for each core", O(jobs),
     "simulate", NULL},
    {"most", CONF_INT, "10", "[0,1000000000]", "violations after which it ends; 0: goes on",
     O(most), "simulate", NULL},
    {"trace", CONF_SWITCH, NULL, NULL, "print every event of the seed", O(trace), "simulate", NULL},
    {"verbose", CONF_SWITCH, NULL, NULL, "the controller's own log, too", O(verbose), "simulate",
     NULL},
    {"plant", CONF_CHOICE, "none",
     "none|requeue|fsync|staleness|twice|stale|gone|crawl|eval|room|delta",
     "a bug that the seeds are to find", O(plant), "simulate", NULL},
    {0}};

static void simulate_violation(const struct simhunt_violation *v)
{
    printf("seed %lld (%s): event %lld: %s\n", (long long)v->seed, v->what, (long long)v->event,
           v->broken);
    for (int i = 0; i < SIM_LAST; i++) {
        if (v->last[i][0]) {
            printf("    %s\n", v->last[i]);
        }
    }
}

/* The table of faults, and of what was done about them; the number of kinds that were met. */
static int simulate_table(const int64_t *hits, const int64_t *did)
{
    int kinds = 0;

    printf("%-44s %12s\n", "fault", "hits");
    for (int i = 0; i < SIM_NFAULTS; i++) {
        printf("%-44s %12lld\n", sim_fault_name((enum sim_fault)i), (long long)hits[i]);
        kinds += hits[i] > 0;
    }
    printf("%-44s %12s\n", "seen to be done", "times");
    for (int i = 0; i < SIM_NDEEDS; i++) {
        printf("%-44s %12lld\n", sim_deed_name((enum sim_deed)i), (long long)did[i]);
    }
    return kinds;
}

static int simulate_one(const struct cmd_simulate *c, struct err *e)
{
    static struct simrun_result r;
    static struct simhunt_violation v;
    struct simrun_shared sh;
    int rc = simrun_share(&sh, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    simrun_seed(&sh, (uint64_t)c->seed, (enum sim_plant)c->plant, c->trace, &r);
    simrun_unshare(&sh);
    printf("seed %lld: %s: %lld starts, %lld events, %.0f s\n", (long long)c->seed, r.what,
           (long long)r.starts, (long long)r.event, r.seconds);
    if (r.broken[0]) {
        v.seed = c->seed;
        v.event = r.event;
        memcpy(v.broken, r.broken, sizeof v.broken);
        memcpy(v.what, r.what, sizeof v.what);
        if (!c->trace) {
            memcpy(v.last, r.last, sizeof v.last);
        }
        simulate_violation(&v);
    }
    printf("seeds=1 violations=%d\n", r.broken[0] != 0);
    return r.broken[0] ? STATUS_FAIL : STATUS_OK;
}

static int simulate_many(const struct cmd_simulate *c, struct err *e)
{
    static struct simhunt_found f;
    struct simhunt_opts o = {.jobs = c->jobs == CONF_UNSET ? (int)sysconf(_SC_NPROCESSORS_ONLN)
                                                           : (int)c->jobs,
                             .most = c->most,
                             .plant = (enum sim_plant)c->plant};
    double t0 = proc_now();
    char *end = NULL;
    int kinds, rc;

    o.from = strtoll(c->seeds, &end, 10);
    if (*end != ':' || (o.to = strtoll(end + 1, &end, 10)) <= o.from || *end || o.from < 0) {
        return ERR(e, STATUS_INPUT, "--seeds %s is not A:B with A < B", c->seeds);
    }
    o.jobs = o.jobs < SIMHUNT_JOBS ? o.jobs : SIMHUNT_JOBS;
    rc = simhunt_run(&o, &f, e);
    if (rc != STATUS_OK) {
        return rc;
    }
    for (int i = 0; i < f.nkept; i++) {
        simulate_violation(&f.kept[i]);
    }
    kinds = simulate_table(f.hits, f.did);
    printf("%lld events, %lld starts of the controller, %lld samples trained, %.0f s simulated in "
           "%.1f s\n",
           (long long)f.events, (long long)f.starts, (long long)f.samples, f.seconds,
           proc_now() - t0);
    printf("seeds=%lld violations=%lld kinds=%d\n", (long long)f.seeds, (long long)f.violations,
           kinds);
    return f.violations ? STATUS_FAIL : STATUS_OK;
}

int cmd_simulate(int argc, char **argv)
{
    struct cmd_simulate s;
    struct err e = {0};
    struct conf *c = conf_new();
    int rc;

    conf_add(c, cmd_simulate_table, &s);
    rc = conf_parse(c, argc - 1, argv + 1, &e);
    if (rc == STATUS_END) {
        cmd_help("miles simulate --seed S [--trace] | --seeds A:B [--jobs N]", c);
        conf_free(c);
        return CMD_OK;
    }
    if (rc == STATUS_OK && (s.seed == CONF_UNSET) == !s.seeds) {
        rc = ERR(&e, STATUS_INPUT, "give --seed S or --seeds A:B");
    }
    if (rc == STATUS_OK) {
        log_set_level(s.verbose ? LOG_INFO : LOG_NONE);
        rc = s.seeds ? simulate_many(&s, &e) : simulate_one(&s, &e);
    }
    conf_free(c);
    if (rc == STATUS_FAIL && !e.code) { /* the violations were shown */
        return CMD_FAILED;
    }
    return rc == STATUS_OK ? CMD_OK : cmd_fail(rc, &e);
}
