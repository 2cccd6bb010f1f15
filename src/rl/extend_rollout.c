/* Owns functions that make rollouts and give prompts: what they ask of the run, and what they
 * answer with. */
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "reward/hookcall.h"
#include "rl/extend_int.h"
#include "rl/sample.h"

void extend_set_feed(struct extend *x, const struct extend_feed *f)
{
    if (x) {
        x->feed = f;
    }
}

int extend_answer(void *arg, int64_t id, const char *what, const json_t *argv, json_t **out,
                  struct err *e)
{
    const struct extend *x = arg;
    const struct extend_feed *f = x->feed;

    (void)id;
    if (!f) {
        return ERR(e, STATUS_UNSUPPORTED, "this run has no data source to ask");
    }
    if (strcmp(what, "get_samples") == 0) {
        return f->get(f->self, json_integer_value(json_array_get(argv, 0)), out, e);
    }
    if (strcmp(what, "add_samples") == 0) {
        return f->add(f->self, json_array_get(argv, 0), e);
    }
    if (strcmp(what, "get_buffer_length") == 0) {
        *out = json_integer(f->length(f->self));
        return STATUS_OK;
    }
    return ERR(e, STATUS_UNSUPPORTED, "the data source has no %.60s", what);
}

/* ---- whole rollouts ---- */

static struct hookcall *rollout_hook(struct extend *x, int evaluation)
{
    struct hookcall *h = evaluation ? x->hook[EXTEND_EVAL] : NULL;
    return h ? h : x->hook[EXTEND_ROLLOUT];
}

int extend_rollout_begin(struct extend *x, int64_t rollout, int evaluation, struct err *e)
{
    json_t *argv = json_pack("[I,b]", (json_int_t)rollout, evaluation);
    int rc = hookcall_submit(rollout_hook(x, evaluation), 0, argv, e);

    json_decref(argv);
    return rc;
}

void extend_rolled_free(struct extend_rolled *r)
{
    for (int i = 0; i < r->n; i++) {
        sample_free(r->s[i]);
    }
    mem_free(r->s);
    json_decref(r->metrics);
    json_decref(r->data);
    mem_free(r->skip);
    memset(r, 0, sizeof *r);
}

/* The samples of groups, or of a plain list, one after the other. */
static int take_samples(const json_t *groups, struct extend_rolled *out, struct err *e)
{
    size_t total = 0;
    int rc = STATUS_OK;

    for (size_t i = 0; i < json_array_size(groups); i++) {
        const json_t *g = json_array_get(groups, i);
        total += json_is_array(g) ? json_array_size(g) : 1;
    }
    out->s = mem_alloc(sizeof *out->s * (total + 1));
    for (size_t i = 0; rc == STATUS_OK && i < json_array_size(groups); i++) {
        const json_t *g = json_array_get(groups, i);
        size_t n = json_is_array(g) ? json_array_size(g) : 1;
        for (size_t k = 0; rc == STATUS_OK && k < n; k++) {
            rc = sample_from_json(json_is_array(g) ? json_array_get(g, k) : g, &out->s[out->n], e);
            out->n += rc == STATUS_OK;
        }
    }
    return rc;
}

int extend_rollout_poll(struct extend *x, int evaluation, double wait_s, struct extend_rolled *out,
                        struct err *e)
{
    const char *flag =
        evaluation && x->hook[EXTEND_EVAL] ? "eval-function-path" : "rollout-function-path";
    struct worker_result r;
    const char *skip;
    int rc = hookcall_poll(rollout_hook(x, evaluation), wait_s, &r, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    if (r.failed) {
        return ERR(e, r.late ? STATUS_TIMEOUT : STATUS_CHILD, "--%s: %s", flag, r.reason);
    }
    memset(out, 0, sizeof *out);
    skip = json_string_value(json_object_get(r.value, "skip"));
    if (skip && !evaluation) {
        rc = ERR(e, STATUS_CHILD, "--%s: it skipped a rollout that is to be trained: %.200s", flag,
                 skip);
    }
    out->skip = skip ? mem_strdup(skip) : NULL;
    out->metrics = json_incref(json_object_get(r.value, "metrics"));
    out->data = json_incref(json_object_get(r.value, "data"));
    if (rc == STATUS_OK && !evaluation) {
        rc = take_samples(json_object_get(r.value, "samples"), out, e);
        rc = rc == STATUS_OK ? rc : err_prefix(e, "--%s", flag);
    }
    json_decref(r.value);
    if (rc != STATUS_OK) {
        extend_rolled_free(out);
    }
    return rc;
}

/* ---- prompts ---- */

int extend_source_get(struct extend *x, int64_t n, json_t **groups, struct err *e)
{
    int rc =
        extend_call(x, EXTEND_SOURCE, json_pack("[s,I]", "get_samples", (json_int_t)n), groups, e);

    if (rc == STATUS_OK && !json_is_array(*groups)) {
        rc = ERR(e, STATUS_CHILD, "--data-source-path: get_samples gave no list of groups");
    }
    for (size_t i = 0; rc == STATUS_OK && i < json_array_size(*groups); i++) {
        if (!json_is_object(json_array_get(json_array_get(*groups, i), 0))) {
            rc = ERR(e, STATUS_CHILD, "--data-source-path: group %zu of get_samples has no sample",
                     i);
        }
    }
    if (rc != STATUS_OK) {
        json_decref(*groups);
        *groups = NULL;
    }
    return rc;
}

static int source_tell(struct extend *x, json_t *argv, struct err *e)
{
    json_t *out;
    int rc = extend_call(x, EXTEND_SOURCE, argv, &out, e);
    json_decref(out);
    return rc;
}

int extend_source_add(struct extend *x, json_t *groups, struct err *e)
{
    return source_tell(x, json_pack("[s,o]", "add_samples", groups), e);
}

int extend_source_save(struct extend *x, int64_t rollout, struct err *e)
{
    return source_tell(x, json_pack("[s,I]", "save", (json_int_t)rollout), e);
}

int extend_source_load(struct extend *x, int64_t rollout, struct err *e)
{
    return source_tell(x, json_pack("[s,I]", "load", (json_int_t)rollout), e);
}

int extend_source_length(struct extend *x, int64_t *out, struct err *e)
{
    json_t *n = NULL;
    int rc = extend_call(x, EXTEND_SOURCE, json_pack("[s]", "length"), &n, e);

    *out = json_is_integer(n) ? json_integer_value(n) : -1;
    json_decref(n);
    return rc;
}
