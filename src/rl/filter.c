/* Owns the calls of a user's rollout functions: what they are given and what their answers mean.
 * How they are called is reward/hookcall.h's business; those of Miles are computed here. */
#include "rl/filter.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/plugin.h"
#include "base/status.h"
#include "reward/hookcall.h"
#include "rl/sample.h"

enum filter_builtin { FILTER_OWN, FILTER_NONZERO_STD, FILTER_NO_ABORTED, FILTER_POP_FIRST };

struct filter {
    enum filter_kind kind;
    enum filter_builtin builtin;
    struct hookcall *call; /* of FILTER_OWN: a function of the user's */
};

static const char *const filter_flags[] = {
    "dynamic-sampling-filter-path", "rollout-sample-filter-path",
    "rollout-all-samples-process-path", "buffer-filter-path"};

/* ---- opening ---- */

int filter_open(enum filter_kind kind, const char *path, const struct filter_opts *o,
                struct filter **out, struct err *e)
{
    struct hookcall_opts h = {.flag = filter_flags[kind],
                              .path = path,
                              .python = o->python,
                              .timeout_s = o->timeout_s,
                              .args = o->args};
    struct filter *f;
    struct plugin_ref r;
    int rc = plugin_resolve(plugin_hook(filter_flags[kind]), path, &r, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    f = mem_alloc(sizeof *f);
    f->kind = kind;
    if (r.kind == PLUGIN_BUILTIN) {
        f->builtin = strcmp(r.builtin, "pop_first") == 0          ? FILTER_POP_FIRST
                     : strcmp(r.builtin, "check_no_aborted") == 0 ? FILTER_NO_ABORTED
                                                                  : FILTER_NONZERO_STD;
    } else {
        rc = hookcall_open(&h, &f->call, e);
    }
    plugin_ref_fini(&r);
    if (rc != STATUS_OK) {
        filter_close(f);
        return rc;
    }
    *out = f;
    return STATUS_OK;
}

void filter_close(struct filter *f)
{
    if (f) {
        hookcall_close(f->call);
        mem_free(f);
    }
}

/* ---- calls ---- */

/* The function's answer to argv, which is taken over; the caller owns it. */
static int filter_call(struct filter *f, json_t *argv, json_t **out, struct err *e)
{
    int rc = hookcall_run(f->call, argv, out, e);
    json_decref(argv);
    return rc;
}

static json_t *filter_json(struct sample *const *s, int n)
{
    json_t *a = json_array();
    for (int i = 0; i < n; i++) {
        json_array_append_new(a, sample_to_json(s[i]));
    }
    return a;
}

/* The same as groups: lists of those that stand together and share a prompt. */
static json_t *filter_groups(struct sample *const *s, int n)
{
    json_t *all = json_array(), *g = NULL;
    for (int i = 0; i < n; i++) {
        if (!g || s[i]->group_index != s[i - 1]->group_index) {
            g = json_array();
            json_array_append_new(all, g);
        }
        json_array_append_new(g, sample_to_json(s[i]));
    }
    return all;
}

/* Keeps a group whose rewards differ: their spread is that of n - 1. One sample has none. */
static void filter_nonzero_std(struct sample *const *s, int n, struct filter_verdict *v)
{
    double mean = 0.0, sum = 0.0;

    for (int i = 0; i < n; i++) {
        mean += s[i]->reward / n;
    }
    for (int i = 0; i < n; i++) {
        sum += (s[i]->reward - mean) * (s[i]->reward - mean);
    }
    v->keep = n > 1 && sqrt(sum / (n - 1)) > 1e-8;
    if (!v->keep) {
        snprintf(v->reason, sizeof v->reason, "zero_std_%.1f", s[0]->reward);
    }
}

int filter_group(struct filter *f, struct sample *const *s, int n, struct filter_verdict *v,
                 struct err *e)
{
    json_t *out = NULL;
    const char *reason;
    int rc;

    *v = (struct filter_verdict){1, ""};
    if (f->builtin == FILTER_NONZERO_STD) {
        filter_nonzero_std(s, n, v);
        return STATUS_OK;
    }
    if (f->builtin == FILTER_NO_ABORTED) {
        for (int i = 0; i < n; i++) {
            v->keep &= s[i]->status != SAMPLE_ABORTED;
        }
        snprintf(v->reason, sizeof v->reason, "%s", v->keep ? "" : "aborted");
        return STATUS_OK;
    }
    rc = filter_call(f, json_pack("[o]", filter_json(s, n)), &out, e);
    if (rc == STATUS_OK && !json_is_boolean(json_object_get(out, "keep"))) {
        rc = ERR(e, STATUS_CHILD, "--%s: its answer does not say whether to keep the group",
                 filter_flags[f->kind]);
    }
    if (rc != STATUS_OK) {
        json_decref(out);
        return rc;
    }
    v->keep = json_is_true(json_object_get(out, "keep"));
    reason = json_string_value(json_object_get(out, "reason"));
    snprintf(v->reason, sizeof v->reason, "%s", reason && *reason ? reason : "no_reason");
    for (char *c = v->reason; *c; c++) {
        *c = isalnum((unsigned char)*c) || strchr("_-.", *c) ? *c : '_';
    }
    json_decref(out);
    return STATUS_OK;
}

int filter_samples(struct filter *f, struct sample *const *s, int count, struct err *e)
{
    json_t *out = NULL, *remove;
    int rc;

    if (!count) {
        return STATUS_OK;
    }
    rc = filter_call(f, json_pack("[o]", filter_groups(s, count)), &out, e);
    remove = json_object_get(out, "remove");
    if (rc == STATUS_OK && f->kind == FILTER_SAMPLE && (int)json_array_size(remove) != count) {
        rc = ERR(e, STATUS_CHILD, "--%s: its answer speaks of %zu samples, not of %d",
                 filter_flags[f->kind], json_array_size(remove), count);
    }
    for (int i = 0; rc == STATUS_OK && f->kind == FILTER_SAMPLE && i < count; i++) {
        s[i]->remove = json_is_true(json_array_get(remove, (size_t)i));
    }
    json_decref(out);
    return rc;
}

int filter_buffer(struct filter *f, int64_t rollout, int64_t want, struct sample *const *s,
                  int count, int n, int *taken, int *kept, struct err *e)
{
    int groups = count / n, rc, k = 0;
    json_t *out = NULL, *list, *x;
    size_t i;

    for (int g = 0; g < groups; g++) {
        kept[g] = 1;
    }
    if (f->builtin == FILTER_POP_FIRST) {
        for (; k < groups && k < want; k++) {
            taken[k] = k;
        }
        taken[k] = -1;
        return STATUS_OK;
    }
    rc = filter_call(
        f, json_pack("[I,o,I]", (json_int_t)rollout, filter_groups(s, count), (json_int_t)want),
        &out, e);
    if (rc != STATUS_OK) {
        return rc;
    }
    list = json_object_get(out, "take");
    if (!json_is_array(list) || (int64_t)json_array_size(list) > want) {
        rc = ERR(e, STATUS_CHILD, "--%s: it returned %zu groups, %lld were wanted",
                 filter_flags[f->kind], json_array_size(list), (long long)want);
    }
    for (int g = 0; g < groups; g++) {
        kept[g] = 0;
    }
    json_array_foreach(json_object_get(out, "rest"), i, x)
    {
        if (json_integer_value(x) >= 0 && json_integer_value(x) < groups) {
            kept[json_integer_value(x)] = 1;
        }
    }
    json_array_foreach(list, i, x)
    {
        int64_t at = json_integer_value(x);
        if (at < 0 || at >= groups) {
            rc = ERR(e, STATUS_CHILD, "--%s: it returned what is no group of the buffer",
                     filter_flags[f->kind]);
            break;
        }
        taken[k] = (int)at;
        kept[taken[k]] = 1;
        k += k < groups;
    }
    taken[k] = -1;
    json_decref(out);
    return rc;
}
