/* Owns what a run is held to by --ci-*. It is one more sink of the metrics, so nothing of the loop
 * knows of it; what it finds is told at the end, when all rows are there. */
#include "run/metriccheck.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fsio.h"
#include "base/mem.h"
#include "base/metric.h"
#include "base/status.h"

#define METRICCHECK_KL   1e-9 /* at the first step, where old and new policy are one */
#define METRICCHECK_LOGP 0.03 /* between engine and trainer */
#define METRICCHECK_NORM 0.03 /* of a gradient's norm against a saved one, relative */
#define METRICCHECK_MAX  (64u << 20)

#define O(f) offsetof(struct metriccheck_opts, f)
const struct conf_opt metriccheck_table[] = {
    {"ci-test", CONF_SWITCH, NULL, NULL,
     "the run fails when train/ppo_kl of the first step is above 1e-9, or log-probs of engine and "
     "trainer are 0.03 apart",
     O(test), "assertions", NULL},
    {"ci-disable-kl-checker", CONF_SWITCH, NULL, NULL, "--ci-test without the first of these",
     O(no_kl), "assertions", NULL},
    {"ci-disable-logprobs-checker", CONF_SWITCH, NULL, NULL, "--ci-test without the second",
     O(no_logprobs), "assertions", NULL},
    {"ci-metric-checker-key", CONF_STR, NULL, NULL,
     "the run fails when this metric never reaches --ci-metric-checker-threshold", O(key),
     "assertions", NULL},
    {"ci-metric-checker-threshold", CONF_FLOAT, NULL, "(-inf,inf)", "what it must reach",
     O(threshold), "assertions", NULL},
    {"ci-save-grad-norm", CONF_STR, NULL, NULL, "file for the gradients' norms of all steps",
     O(save_norm), "assertions", NULL},
    {"ci-load-grad-norm", CONF_STR, NULL, NULL,
     "such a file: the run fails when a norm is more than 3% away", O(load_norm), "assertions",
     NULL},
    {0}};

struct metriccheck {
    const struct metriccheck_opts *o;
    json_t *norms; /* of this run, in order */
    json_t *want;  /* of the file, or NULL */
    double best;   /* of the key; NAN: not seen */
    int steps;     /* training rows heard */
    struct err failed;
};

static double metriccheck_value(const json_t *row, const char *name)
{
    const json_t *v = json_object_get(row, name);
    return json_is_number(v) ? json_number_value(v) : (double)NAN;
}

/* Only the first failure is kept: what follows may follow from it. */
static void metriccheck_fail(struct metriccheck *m, const char *name, double value,
                             const char *rule)
{
    if (!m->failed.code) {
        ERR(&m->failed, STATUS_FAIL, "%s is %g in step %d: %s", name, value, m->steps, rule);
    }
}

static void metriccheck_norm(struct metriccheck *m, double norm)
{
    size_t i = json_array_size(m->norms);
    const json_t *v = m->want ? json_array_get(m->want, i) : NULL;
    double want = json_number_value(v);

    json_array_append_new(m->norms, json_real(norm));
    if (m->want && !v) {
        metriccheck_fail(m, "train/grad_norm", norm, "--ci-load-grad-norm has no such step");
    } else if (v && !(fabs(norm - want) <= METRICCHECK_NORM * fabs(want))) {
        char rule[96];
        snprintf(rule, sizeof rule, "--ci-load-grad-norm has %g, more than 3%% away", want);
        metriccheck_fail(m, "train/grad_norm", norm, rule);
    }
}

static void metriccheck_row(void *arg, const json_t *row)
{
    struct metriccheck *m = arg;
    const struct metriccheck_opts *o = m->o;
    double norm = metriccheck_value(row, "train/grad_norm");
    double v;

    if (o->key && !isnan(v = metriccheck_value(row, o->key)) && !(v <= m->best)) {
        m->best = v;
    }
    if (isnan(norm)) {
        return;
    }
    v = metriccheck_value(row, "train/ppo_kl");
    if (o->test && !o->no_kl && m->steps == 0 && !isnan(v) && fabs(v) > METRICCHECK_KL) {
        metriccheck_fail(m, "train/ppo_kl", v, "--ci-test allows 1e-9 at the first");
    }
    v = metriccheck_value(row, "train/train_rollout_logprob_abs_diff");
    if (o->test && !o->no_logprobs && !isnan(v) && v > METRICCHECK_LOGP) {
        metriccheck_fail(m, "train/train_rollout_logprob_abs_diff", v, "--ci-test allows 0.03");
    }
    metriccheck_norm(m, norm);
    m->steps++;
}

static int metriccheck_load(struct metriccheck *m, struct err *e)
{
    const char *path = m->o->load_norm;
    json_error_t je;
    char *text;
    size_t len;
    int rc = path ? fsio_read(path, METRICCHECK_MAX, &text, &len, e) : STATUS_OK;

    if (rc != STATUS_OK || !path) {
        return rc == STATUS_OK ? rc : err_prefix(e, "--ci-load-grad-norm");
    }
    m->want = json_loadb(text, len, 0, &je);
    mem_free(text);
    if (!json_is_array(m->want)) {
        return ERR(e, STATUS_FORMAT, "--ci-load-grad-norm %s: no list of norms", path);
    }
    return STATUS_OK;
}

int metriccheck_open(const struct metriccheck_opts *o, struct metriccheck **out, struct err *e)
{
    struct metriccheck *m;
    int rc;

    *out = NULL;
    if ((o->key != NULL) != !isnan(o->threshold)) {
        return ERR(e, STATUS_INPUT,
                   "--ci-metric-checker-key and --ci-metric-checker-threshold go together");
    }
    if (!o->test && !o->key && !o->save_norm && !o->load_norm) {
        return STATUS_OK;
    }
    m = mem_alloc(sizeof *m);
    m->o = o;
    m->best = (double)NAN;
    m->norms = json_array();
    rc = metriccheck_load(m, e);
    rc = rc == STATUS_OK ? metric_add_sink(metriccheck_row, m) : rc;
    if (rc != STATUS_OK) {
        metriccheck_close(m);
        return rc;
    }
    *out = m;
    return STATUS_OK;
}

int metriccheck_end(struct metriccheck *m, struct err *e)
{
    int rc = STATUS_OK;

    if (!m) {
        return rc;
    }
    if (m->o->save_norm) {
        char *text = json_dumps(m->norms, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
        rc = text ? fsio_write_atomic(m->o->save_norm, text, strlen(text), e)
                  : ERR(e, STATUS_NOMEM, "no memory for %zu norms", json_array_size(m->norms));
        free(text);
    }
    if (rc == STATUS_OK && m->failed.code) {
        rc = ERR(e, STATUS_FAIL, "%s", m->failed.msg);
    }
    if (rc == STATUS_OK && m->o->key && !(m->best >= m->o->threshold)) {
        rc = isnan(m->best) ? ERR(e, STATUS_FAIL, "no metric %s was reported", m->o->key)
                            : ERR(e, STATUS_FAIL, "%s came to %g at most, not %g", m->o->key,
                                  m->best, m->o->threshold);
    }
    return rc;
}

void metriccheck_close(struct metriccheck *m)
{
    if (m) {
        metric_remove_sink(metriccheck_row, m);
        json_decref(m->norms);
        json_decref(m->want);
        mem_free(m);
    }
}
