/* The functions that a user may put into a rollout: which finished groups are kept
 * (--dynamic-sampling-filter-path), which samples are trained (--rollout-sample-filter-path), who
 * looks at all of them (--rollout-all-samples-process-path), and which groups go on first
 * (--buffer-filter-path).
 *
 *     struct filter *f;
 *     filter_open(FILTER_DYNAMIC, path, &opts, &f, &e);
 *     filter_group(f, samples, n, &verdict, &e);
 *     filter_close(f);
 *
 * Miles' own functions are built in and known by its names, with or without the modules before
 * them: check_reward_nonzero_std, check_no_aborted, pop_first. Others are the user's own, Python,
 * shared objects or services (base/plugin.h); one that raises or takes too long ends the run with
 * its cause. Calls are made in logical order, one at a time. */
#ifndef RL_FILTER_H
#define RL_FILTER_H

#include <jansson.h>
#include <stdint.h>

struct err;
struct sample;

enum filter_kind { FILTER_DYNAMIC, FILTER_SAMPLE, FILTER_ALL, FILTER_BUFFER };

struct filter_opts {
    const char *python; /* interpreter; NULL: python3 */
    double timeout_s;   /* of one call; 0: 600 */
    const json_t *args; /* object: attributes of `args`; read by open only */
};

struct filter_verdict {
    int keep;
    char reason[64]; /* of a drop, fit for the name of a metric */
};

struct filter;
/* STATUS_INPUT when there is no such function. */
int filter_open(enum filter_kind kind, const char *path, const struct filter_opts *o,
                struct filter **out, struct err *e);
void filter_close(struct filter *f); /* NULL is fine */

/* Of FILTER_DYNAMIC: a group. */
int filter_group(struct filter *f, struct sample *const *s, int n, struct filter_verdict *v,
                 struct err *e);
/* Of FILTER_SAMPLE: groups one after the other; sets `remove`. Of FILTER_ALL: looks. */
int filter_samples(struct filter *f, struct sample *const *s, int count, struct err *e);
/* Of FILTER_BUFFER: of `count` samples, groups of n, it takes up to `want` groups for the rollout.
 * The numbers of those groups go into `taken`, which has room for all, and -1 ends them; 0 in
 * kept[group] marks those that it threw away beside them. */
int filter_buffer(struct filter *f, int64_t rollout, int64_t want, struct sample *const *s,
                  int count, int n, int *taken, int *kept, struct err *e);

#endif
