/* Assertions over a run's metrics, as Miles' --ci-* flags make them: a run that breaks one ends
 * with an error that names it.
 *
 *     conf_add(c, metriccheck_table, &o);
 *     metriccheck_open(&o, &m, &e);             hears every row from here on
 *     ... the run ...
 *     rc = metriccheck_end(m, &e);              STATUS_FAIL: the first that did not hold
 *     metriccheck_close(m); */
#ifndef RUN_METRICCHECK_H
#define RUN_METRICCHECK_H

#include "base/conf.h"

struct err;
struct metriccheck;

struct metriccheck_opts {
    int test, no_kl, no_logprobs;
    char *key, *save_norm, *load_norm;
    double threshold;
};
extern const struct conf_opt metriccheck_table[];

/* *out is NULL when nothing is asserted. o is borrowed. */
int metriccheck_open(const struct metriccheck_opts *o, struct metriccheck **out, struct err *e);
/* When the run has ended well. Writes the norms of --ci-save-grad-norm. m may be NULL. */
int metriccheck_end(struct metriccheck *m, struct err *e);
void metriccheck_close(struct metriccheck *m); /* NULL is fine */

#endif
