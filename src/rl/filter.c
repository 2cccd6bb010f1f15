/* Owns the calls of a user's rollout functions. A Python function runs in a reward worker
 * (reward/worker.h): a few lines of Python before it turn the worker's call, a list of samples that
 * is answered by a list, into the arguments and results that Miles has for that kind of function.
 */
#include "rl/filter.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/status.h"
#include "reward/worker.h"
#include "rl/sample.h"

enum filter_builtin { FILTER_PYTHON, FILTER_NONZERO_STD, FILTER_NO_ABORTED, FILTER_POP_FIRST };

struct filter {
    enum filter_kind kind;
    enum filter_builtin builtin;
    struct worker_pool *pool;
};

static const struct {
    const char *name, *module;
    enum filter_kind kind;
    enum filter_builtin builtin;
} filter_builtins[] = {
    {"check_reward_nonzero_std", "miles.rollout.filter_hub.dynamic_sampling_filters.",
     FILTER_DYNAMIC, FILTER_NONZERO_STD},
    {"check_no_aborted", "miles.rollout.filter_hub.dynamic_sampling_filters.", FILTER_DYNAMIC,
     FILTER_NO_ABORTED},
    {"pop_first", "miles.rollout.data_source.", FILTER_BUFFER, FILTER_POP_FIRST},
};

static const char *const filter_flags[] = {
    "--dynamic-sampling-filter-path", "--rollout-sample-filter-path",
    "--rollout-all-samples-process-path", "--buffer-filter-path"};

/* What all kinds share. `load` is the worker program's own. Where Miles is not installed, the type
 * that its filters return is there none the less. */
static const char filter_prelude[] =
    "import inspect, sys, types\n"
    "import __main__\n"
    "try:\n"
    "    import miles.rollout.filter_hub.base_types\n"
    "except ImportError:\n"
    "    class DynamicFilterOutput:\n"
    "        def __init__(self, keep, reason=None):\n"
    "            self.keep, self.reason = keep, reason\n"
    "    for _name in ('miles.rollout', 'miles.rollout.filter_hub',\n"
    "                  'miles.rollout.filter_hub.base_types'):\n"
    "        _module = sys.modules.setdefault(_name, types.ModuleType(_name))\n"
    "        _module.__path__ = []\n"
    "        _module.DynamicFilterOutput = DynamicFilterOutput\n"
    "\n"
    "def call(*args):\n"
    "    value = fn(*args)\n"
    "    if inspect.isawaitable(value):\n"
    "        import asyncio\n"
    "        async def wait():\n"
    "            return await value\n"
    "        value = asyncio.run(wait())\n"
    "    return value\n"
    "\n"
    "def grouped(samples):\n"
    "    groups = []\n"
    "    for s in samples:\n"
    "        if not groups or groups[-1][0].group_index != s.group_index:\n"
    "            groups.append([])\n"
    "        groups[-1].append(s)\n"
    "    return groups\n"
    "\n";

static const char *const filter_calls[] = {
    /* keep flag and reason; a plain truth value is taken too */
    "def reward(args, samples):\n"
    "    out = call(args, samples)\n"
    "    keep, reason = out if isinstance(out, tuple) else (\n"
    "        getattr(out, 'keep', out), getattr(out, 'reason', None))\n"
    "    if keep is None:\n"
    "        raise TypeError('the filter returned None, not whether the group is kept')\n"
    "    first = {'keep': bool(keep), 'reason': None if reason is None else str(reason)}\n"
    "    return [first] + [0] * (len(samples) - 1)\n",
    /* mutates remove_sample */
    "def reward(args, samples):\n"
    "    call(args, grouped(samples))\n"
    "    return [int(bool(s.remove_sample)) for s in samples]\n",
    /* looks at all samples; there is no data source on this side */
    "def reward(args, samples):\n"
    "    call(args, grouped(samples), None)\n"
    "    return [0] * len(samples)\n",
    /* takes groups out of the list; the first of `samples` is the call itself */
    "def reward(args, samples):\n"
    "    head, buffer = samples[0], grouped(samples[1:])\n"
    "    before = list(buffer)\n"
    "    taken = call(args, head.rollout_id, buffer, head.metadata['want'])\n"
    "    where = {id(g): i for i, g in enumerate(before)}\n"
    "    order = []\n"
    "    for g in taken:\n"
    "        if id(g) not in where or where[id(g)] in order:\n"
    "            raise ValueError('the buffer filter returned what is no group of the buffer')\n"
    "        order.append(where[id(g)])\n"
    "    left = [where[id(g)] for g in buffer if id(g) in where and where[id(g)] not in order]\n"
    "    return [{'taken': order, 'left': left}] + [0] * (len(samples) - 1)\n"};

/* ---- opening ---- */

static enum filter_builtin filter_find(enum filter_kind kind, const char *path)
{
    for (size_t i = 0; i < sizeof filter_builtins / sizeof filter_builtins[0]; i++) {
        size_t n = strlen(filter_builtins[i].module);
        const char *name = strncmp(path, filter_builtins[i].module, n) == 0 ? path + n : path;
        if (filter_builtins[i].kind == kind && strcmp(name, filter_builtins[i].name) == 0) {
            return filter_builtins[i].builtin;
        }
    }
    return FILTER_PYTHON;
}

int filter_open(enum filter_kind kind, const char *path, const struct filter_opts *o,
                struct filter **out, struct err *e)
{
    struct filter *f = mem_alloc(sizeof *f);
    int rc = STATUS_OK;

    f->kind = kind;
    f->builtin = filter_find(kind, path);
    if (f->builtin == FILTER_PYTHON) {
        json_t *name = json_string(path);
        char *quoted = json_dumps(name, JSON_ENCODE_ANY);
        struct buf source;
        struct worker_opts w = {
            .path = path, .python = o->python, .timeout_s = o->timeout_s, .args = o->args};
        buf_init(&source, 1 << 20);
        buf_str(&source, filter_prelude);
        buf_printf(&source, "fn = __main__.load(%s, None)\n\n", quoted ? quoted : "''");
        buf_str(&source, filter_calls[kind]);
        w.source = source.data;
        rc = worker_open(&w, &f->pool, e);
        buf_fini(&source);
        free(quoted);
        json_decref(name);
        rc = rc == STATUS_OK ? rc : err_prefix(e, "%s", filter_flags[kind]);
    }
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
        worker_close(f->pool);
        mem_free(f);
    }
}

/* ---- calls ---- */

/* The function's list for a list of samples, of the same length; the caller owns it. */
static int filter_call(struct filter *f, json_t *samples, json_t **out, struct err *e)
{
    struct worker_result r = {0};
    int rc = worker_submit(f->pool, 0, samples, e);

    while (rc == STATUS_OK && (rc = worker_poll(f->pool, 1.0, &r, e)) == STATUS_AGAIN) {
        rc = STATUS_OK; /* its time-out ends it */
    }
    if (rc == STATUS_OK && r.failed) {
        rc = ERR(e, STATUS_CHILD, "%s: %s", filter_flags[f->kind], r.reason);
    }
    if (rc == STATUS_OK) {
        *out = r.value;
    }
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
    json_t *in, *out = NULL;
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
    in = filter_json(s, n);
    rc = filter_call(f, in, &out, e);
    json_decref(in);
    if (rc != STATUS_OK) {
        return rc;
    }
    v->keep = json_is_true(json_object_get(json_array_get(out, 0), "keep"));
    reason = json_string_value(json_object_get(json_array_get(out, 0), "reason"));
    snprintf(v->reason, sizeof v->reason, "%s", reason && *reason ? reason : "no_reason");
    for (char *c = v->reason; *c; c++) {
        *c = isalnum((unsigned char)*c) || strchr("_-.", *c) ? *c : '_';
    }
    json_decref(out);
    return STATUS_OK;
}

int filter_samples(struct filter *f, struct sample *const *s, int count, struct err *e)
{
    json_t *in = filter_json(s, count), *out = NULL;
    int rc = count ? filter_call(f, in, &out, e) : STATUS_OK;

    for (int i = 0; rc == STATUS_OK && f->kind == FILTER_SAMPLE && i < count; i++) {
        s[i]->remove = json_integer_value(json_array_get(out, (size_t)i)) != 0;
    }
    json_decref(in);
    json_decref(out);
    return rc;
}

int filter_buffer(struct filter *f, int64_t rollout, int64_t want, struct sample *const *s,
                  int count, int n, int *taken, int *kept, struct err *e)
{
    int groups = count / n, rc, k = 0;
    json_t *in, *out = NULL, *head, *list, *x;
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
    head = json_pack("{s:s,s:I,s:{s:I}}", "status", "pending", "rollout_id", (json_int_t)rollout,
                     "metadata", "want", (json_int_t)want);
    in = filter_json(s, count);
    json_array_insert_new(in, 0, head);
    rc = filter_call(f, in, &out, e);
    json_decref(in);
    if (rc != STATUS_OK) {
        return rc;
    }
    list = json_object_get(json_array_get(out, 0), "taken");
    if ((int64_t)json_array_size(list) > want) {
        rc = ERR(e, STATUS_CHILD, "%s: it returned %zu groups, %lld were wanted",
                 filter_flags[f->kind], json_array_size(list), (long long)want);
    }
    for (int g = 0; g < groups; g++) {
        kept[g] = 0;
    }
    json_array_foreach(json_object_get(json_array_get(out, 0), "left"), i, x)
    {
        kept[json_integer_value(x) % groups] = 1;
    }
    json_array_foreach(list, i, x)
    {
        taken[k] = (int)(json_integer_value(x) % groups);
        kept[taken[k]] = 1;
        k += k < groups;
    }
    taken[k] = -1;
    json_decref(out);
    return rc;
}
