/* Owns the questions of evaluations and the list of what was told of them. */
#include "sim/simeval.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/metric.h"
#include "base/status.h"
#include "rl/evalset.h"
#include "rl/loop.h"
#include "rl/prompts.h"
#include "sim/sim.h"

struct simeval {
    struct sim *s;
    struct simeval_told *told;
    struct evalset *sets;
    int nsets, fd;
    struct loop_eval_set open[SIMEVAL_SETS];
    int now[SIMEVAL_STEPS][SIMEVAL_SETS]; /* made by this run */
};

static void simeval_hear(struct simeval *v, int64_t step, int set, double mean)
{
    double *told = &v->told->mean[step][set];

    v->s->did[v->now[step][set] ? SIM_EVALUATED_AGAIN : SIM_EVALUATED]++;
    v->now[step][set] = 1;
    if (v->told->known[step][set] && mean != *told) {
        sim_broken(v->s, "the evaluation of set %d after %lld rollouts says %.6f, and said %.6f",
                   set, (long long)step, mean, *told);
    }
    v->told->known[step][set] = 1;
    *told = mean;
}

static void simeval_row(void *arg, const json_t *row)
{
    struct simeval *v = arg;
    const json_t *at = json_object_get(row, "eval/step");
    int64_t step = json_integer_value(at);
    char name[32];

    for (int i = 0; at && step < SIMEVAL_STEPS && !v->s->dead && i < v->nsets; i++) {
        const json_t *mean;
        snprintf(name, sizeof name, "eval/set%d", i);
        mean = json_object_get(row, name);
        if (mean) { /* null: not one of its rewards was to be had */
            simeval_hear(v, step, i, json_is_null(mean) ? -1 : json_number_value(mean));
        }
    }
}

int simeval_open(struct simeval *v, struct err *e)
{
    char path[64];
    int rc = STATUS_OK;

    snprintf(path, sizeof path, "/proc/self/fd/%d", v->fd);
    for (int i = 0; rc == STATUS_OK && i < v->nsets; i++) {
        struct prompts_opts o = {
            .path = path, .input_key = "q", .group_size = v->sets[i].n, .threads = 1};
        v->open[i].set = &v->sets[i];
        rc = prompts_open(&v->open[i].data, &o, e);
    }
    return rc;
}

void simeval_close(struct simeval *v)
{
    for (int i = 0; i < v->nsets; i++) {
        prompts_close(v->open[i].data);
        v->open[i].data = NULL;
    }
}

struct loop_eval_set *simeval_sets(struct simeval *v, int *n)
{
    *n = v->nsets;
    return v->open;
}

int simeval_new(struct sim *s, const struct train_opts *o, int fd, struct simeval_told *told,
                struct simeval **out, struct err *e)
{
    struct simeval *v = mem_alloc(sizeof *v);
    int rc;

    v->s = s;
    v->told = told;
    v->fd = fd;
    *out = v;
    rc = evalset_read(o, &v->sets, &v->nsets, e);
    ASSERT(v->nsets <= SIMEVAL_SETS);
    return rc == STATUS_OK ? metric_add_sink(simeval_row, v) : rc;
}

void simeval_free(struct simeval *v)
{
    if (v) {
        metric_remove_sink(simeval_row, v);
        simeval_close(v);
        evalset_free(v->sets, v->nsets);
        mem_free(v);
    }
}
