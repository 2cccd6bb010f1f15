/* Owns the table of hooks and the loading of shared objects. The table is here, below everything
 * that calls hooks, so that flags, documents and tests read the same rows. */
#include "base/plugin.h"

#include <ctype.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/status.h"
#include "miles_plugin.h"

/* ---- the table ---- */

static const struct plugin_name filter_names[] = {
    {"check_reward_nonzero_std", ".check_reward_nonzero_std"},
    {"check_no_aborted", ".check_no_aborted"},
    {NULL, NULL}};
static const struct plugin_name buffer_names[] = {{"pop_first", ".pop_first"}, {NULL, NULL}};
static const struct plugin_name tis_names[] = {
    {"tis", ".vanilla_tis_function"},
    {"icepop", ".icepop_function"},
    {"mis", ".train_infer_mismatch_helper.mis.compute_mis_weights"},
    {"mis", ".train_infer_mismatch_helper.mis.compute_mis_weights_with_cp"},
    {"mis", ".train_infer_mismatch_helper.mis.compute_mis_weights_fsdp"},
    {NULL, NULL}};
static const struct plugin_name rollout_names[] = {{"sft", ".sft_rollout.generate_rollout"},
                                                   {"rollout", ".sglang_rollout.generate_rollout"},
                                                   {"rollout", ".InferenceRolloutFn"},
                                                   {NULL, NULL}};
static const struct plugin_name source_names[] = {
    {"dataset", ".RolloutDataSourceWithBuffer"}, {"dataset", ".RolloutDataSource"}, {NULL, NULL}};
static const struct plugin_name generate_names[] = {{"single_turn", ".single_turn.generate"},
                                                    {"single_turn", ".sglang_rollout.generate"},
                                                    {"agent", ".agentic_tool_call.generate"},
                                                    {"tools", ".multi_turn.generate"},
                                                    {NULL, NULL}};

#define SLOT(f) #f, offsetof(struct miles_plugin, f)
#define ANY     (PLUGIN_PYTHON | PLUGIN_SO | PLUGIN_URL)
#define LOCAL   (PLUGIN_PYTHON | PLUGIN_SO)

static const struct plugin_hook hooks[] = {
    {"custom-rm-path", ANY, "fn(args, sample) or, with --group-rm, fn(args, samples)", SLOT(reward),
     NULL},
    {"custom-reward-post-process-path", ANY, "fn(args, samples) -> (raw, shaped)", SLOT(shape),
     NULL},
    {"custom-convert-samples-to-train-data-path", ANY, "fn(args, samples) -> dict of lists",
     SLOT(call), NULL},
    {"dynamic-sampling-filter-path", ANY | PLUGIN_BUILTIN,
     "fn(args, samples) -> DynamicFilterOutput or bool", SLOT(call), filter_names},
    {"buffer-filter-path", ANY | PLUGIN_BUILTIN,
     "fn(args, rollout_id, buffer, num_samples) -> groups", SLOT(call), buffer_names},
    {"rollout-sample-filter-path", ANY, "fn(args, groups), sets remove_sample", SLOT(call), NULL},
    {"rollout-all-samples-process-path", ANY, "fn(args, all_samples, data_source)", SLOT(call),
     NULL},
    {"rollout-data-postprocess-path", ANY, "fn(args)", SLOT(call), NULL},
    {"rollout-function-path", PLUGIN_PYTHON | PLUGIN_BUILTIN,
     "class(input), or fn(args, rollout_id, data_source, evaluation=False)", NULL, 0,
     rollout_names},
    {"eval-function-path", PLUGIN_PYTHON | PLUGIN_BUILTIN,
     "class(input), or fn(args, rollout_id, data_source, evaluation=True)", NULL, 0, rollout_names},
    {"custom-generate-function-path", ANY | PLUGIN_BUILTIN,
     "async fn(args, sample, sampling_params) or fn(input) -> sample or samples", SLOT(call),
     generate_names},
    {"custom-agent-function-path", PLUGIN_PYTHON,
     "async run(base_url, prompt, request_kwargs, metadata, **kwargs) -> reward, dict or None",
     NULL, 0, NULL},
    {"generate-execute-tool-function-path", PLUGIN_PYTHON, "async fn(name, params) -> text", NULL,
     0, NULL},
    {"data-source-path", ANY | PLUGIN_BUILTIN, "class(args)", SLOT(call), source_names},
    {"custom-rollout-log-function-path", ANY,
     "fn(rollout_id, args, samples, rollout_extra_metrics, rollout_time) -> bool", SLOT(call),
     NULL},
    {"custom-eval-rollout-log-function-path", ANY,
     "fn(rollout_id, args, data, extra_metrics) -> bool", SLOT(call), NULL},
    {"custom-loss-function-path", LOCAL,
     "fn(args, batch, logits, sum_of_sample_mean) -> (loss, metrics)", SLOT(loss), NULL},
    {"custom-tis-function-path", LOCAL | PLUGIN_BUILTIN,
     "fn(args, *, pg_loss, train_log_probs, rollout_log_probs, loss_masks, ...) -> (pg_loss, "
     "masks, metrics)",
     SLOT(correct), tis_names},
    {"custom-pg-loss-reducer-function-path", LOCAL,
     "fn(total_lengths, response_lengths, loss_masks, calculate_per_token_loss) -> reducer",
     SLOT(reduce), NULL},
    {"custom-model-provider-path", PLUGIN_SO, "(no Python: a row of the table of families)",
     SLOT(model), NULL},
    {"custom-megatron-init-path", ANY, "fn(args)", SLOT(call), NULL},
    {"custom-megatron-before-log-prob-hook-path", LOCAL, "fn(args, model, store_prefix)",
     SLOT(params), NULL},
    {"custom-megatron-before-train-step-hook-path", LOCAL,
     "fn(args, rollout_id, step_id, model, optimizer, opt_param_scheduler)", SLOT(params), NULL},
    {"custom-megatron-post-save-hook-path", ANY, "fn(args, rollout_id, ckpt_dir, hf_dir)",
     SLOT(call), NULL},
};

#define NHOOKS ((int)(sizeof hooks / sizeof *hooks))

const struct plugin_hook *plugin_hook_at(int i)
{
    return i >= 0 && i < NHOOKS ? &hooks[i] : NULL;
}

const struct plugin_hook *plugin_hook(const char *flag)
{
    for (int i = 0; i < NHOOKS; i++) {
        if (strcmp(hooks[i].flag, flag) == 0) {
            return &hooks[i];
        }
    }
    return NULL;
}

/* ---- what a text names ---- */

static int ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), k = strlen(end);
    return n >= k && strcmp(text + n - k, end) == 0;
}

/* "a/b.py:f" is "a.b.f". */
static void dotted(const char *path, char *out, size_t size)
{
    size_t n = 0;
    for (const char *p = path; *p && n + 1 < size; p++) {
        if (strncmp(p, ".py:", 4) == 0) {
            p += 3;
        }
        out[n++] = *p == '/' || *p == ':' ? '.' : *p;
    }
    out[n] = 0;
}

/* Only paths into Miles itself: a function of the user's may have the same name. */
static const char *find_builtin(const struct plugin_hook *h, const char *text)
{
    char path[512];

    dotted(text, path, sizeof path);
    for (const struct plugin_name *n = h->names; n && n->name; n++) {
        int ours = strncmp(path, "miles.", 6) == 0 || strncmp(path, "examples.", 9) == 0;
        if (strcmp(text, n->name) == 0 || (ours && ends_with(path, n->ends))) {
            return n->name;
        }
    }
    return NULL;
}

/* A dotted path of Python names, with at least one dot. */
static int is_dotted(const char *text)
{
    int dots = 0, fresh = 1;
    for (const char *p = text; *p; p++) {
        if (*p == '.') {
            dots++;
            if (fresh) {
                return 0;
            }
            fresh = 1;
        } else if (*p == '_' || isalpha((unsigned char)*p) || (unsigned char)*p >= 128 ||
                   (!fresh && isdigit((unsigned char)*p))) {
            fresh = 0;
        } else {
            return 0;
        }
    }
    return dots && !fresh;
}

/* "pkg.module.name, FILE.py:name, FILE.so:symbol, a URL, or one of tis, icepop": what would do. */
static void say_kinds(const struct plugin_hook *h, char *out, size_t size)
{
    int n = snprintf(out, size, "%s%s%s%s",
                     h->kinds & PLUGIN_PYTHON ? "pkg.module.name, FILE.py:name" : "",
                     h->kinds & PLUGIN_SO ? ", FILE.so:symbol" : "",
                     h->kinds & PLUGIN_URL ? ", a URL" : "", h->names ? ", or one of" : "");
    const char *last = "";
    for (const struct plugin_name *b = h->names; b && b->name && n > 0 && (size_t)n < size; b++) {
        if (strcmp(b->name, last) != 0) {
            n += snprintf(out + n, size - (size_t)n, "%s %s", *last ? "," : "", b->name);
            last = b->name;
        }
    }
}

static int refuse(const struct plugin_hook *h, const char *text, const char *cause, struct err *e)
{
    char kinds[256];
    say_kinds(h, kinds, sizeof kinds);
    return ERR(e, STATUS_INPUT, "--%s %.300s: %s; it takes %s", h->flag, text, cause, kinds);
}

/* "FILE.so:symbol"; the last colon counts, and without one the symbol is miles_plugin. */
static int split_so(const struct plugin_hook *h, struct plugin_ref *r, struct err *e)
{
    char *colon;

    r->file = mem_strdup(r->path);
    colon = strrchr(r->file, ':');
    if (colon && strchr(colon, '/')) {
        colon = NULL;
    }
    if (colon) {
        *colon = 0;
    }
    r->symbol = mem_strdup(colon ? colon + 1 : "miles_plugin");
    if (!*r->symbol) {
        return refuse(h, r->path, "no symbol behind the colon", e);
    }
    return access(r->file, R_OK) == 0
               ? STATUS_OK
               : ERR(e, STATUS_INPUT, "--%s %.300s: no file %.300s", h->flag, r->path, r->file);
}

static int check_py(const struct plugin_hook *h, const char *text, struct err *e)
{
    const char *end = strstr(text, ".py:");
    char *file = mem_strdup(text);
    int rc = STATUS_OK;

    file[end - text + 3] = 0;
    if (!end[4]) {
        rc = refuse(h, text, "no name behind the colon", e);
    } else if (access(file, R_OK) != 0) {
        rc = ERR(e, STATUS_INPUT, "--%s %.300s: no file %.300s", h->flag, text, file);
    }
    mem_free(file);
    return rc;
}

static int resolve(const struct plugin_hook *h, struct plugin_ref *r, struct err *e)
{
    const char *text = r->path;

    r->builtin = find_builtin(h, text);
    if (r->builtin) {
        r->kind = PLUGIN_BUILTIN;
        return STATUS_OK;
    }
    if (strncmp(text, "http://", 7) == 0 || strncmp(text, "https://", 8) == 0) {
        r->kind = PLUGIN_URL;
    } else if (strstr(text, ".so:") || ends_with(text, ".so")) {
        r->kind = PLUGIN_SO;
    } else if (strstr(text, ".py:") || is_dotted(text)) {
        r->kind = PLUGIN_PYTHON;
    } else {
        return refuse(h, text, "not something that can be called", e);
    }
    if (!(h->kinds & (int)r->kind)) {
        return refuse(h, text,
                      r->kind == PLUGIN_URL  ? "this call cannot be made over the network"
                      : r->kind == PLUGIN_SO ? "a shared object cannot take this call"
                                             : "a Python function cannot take this call",
                      e);
    }
    if (r->kind == PLUGIN_SO) {
        return split_so(h, r, e);
    }
    return strstr(text, ".py:") && r->kind == PLUGIN_PYTHON ? check_py(h, text, e) : STATUS_OK;
}

int plugin_resolve(const struct plugin_hook *h, const char *text, struct plugin_ref *out,
                   struct err *e)
{
    struct plugin_ref r = {.path = mem_strdup(text)};
    int rc = resolve(h, &r, e);

    if (rc != STATUS_OK) {
        plugin_ref_fini(&r);
        return rc;
    }
    *out = r;
    return STATUS_OK;
}

void plugin_ref_fini(struct plugin_ref *r)
{
    mem_free(r->path);
    mem_free(r->file);
    mem_free(r->symbol);
    memset(r, 0, sizeof *r);
}

/* ---- shared objects ---- */

struct plugin {
    const char *flag;
    char *path;
    void *handle;
    struct miles_plugin table; /* with zeros where the plugin's is shorter */
    void *self;
    int opened;
};

/* A name without a slash would be looked for in the system's folders. */
static void *load(const char *file)
{
    char *full = realpath(file, NULL);
    void *h = dlopen(full ? full : file, RTLD_NOW | RTLD_LOCAL);
    free(full);
    return h;
}

static int check_table(const struct plugin_hook *h, const struct plugin_ref *r,
                       const struct miles_plugin *t, struct plugin *p, struct err *e)
{
    void *fn;

    if (t->abi != MILES_PLUGIN_ABI) {
        return ERR(e, STATUS_INPUT,
                   "--%s %.300s: the plugin has ABI %u, this program has %d: build it with this "
                   "program's include/miles_plugin.h",
                   h->flag, r->path, (unsigned)t->abi, MILES_PLUGIN_ABI);
    }
    if (t->size < offsetof(struct miles_plugin, open) || t->size > 1u << 16) {
        return ERR(e, STATUS_INPUT,
                   "--%s %.300s: symbol %.100s is no struct miles_plugin (size %u)", h->flag,
                   r->path, r->symbol, (unsigned)t->size);
    }
    memcpy(&p->table, t, t->size < sizeof p->table ? t->size : sizeof p->table);
    memcpy(&fn, (const char *)&p->table + h->offset, sizeof fn);
    if (strcmp(h->slot, "loss") == 0 && p->table.row) {
        return STATUS_OK; /* either will do */
    }
    return fn ? STATUS_OK
              : ERR(e, STATUS_INPUT, "--%s %.300s: plugin %.100s has no function `%s`", h->flag,
                    r->path, t->name ? t->name : "", h->slot);
}

int plugin_open(const struct plugin_hook *h, const struct plugin_ref *r, const char *args,
                struct plugin **out, struct err *e)
{
    struct plugin *p = mem_alloc(sizeof *p);
    struct miles_why why = {""};
    const struct miles_plugin *t;
    int rc;

    ASSERT(r->kind == PLUGIN_SO && h->offset);
    p->flag = h->flag;
    p->path = mem_strdup(r->path);
    p->handle = load(r->file);
    if (!p->handle) {
        const char *cause = dlerror();
        rc = ERR(e, STATUS_INPUT, "--%s %.300s: %.500s", h->flag, r->path,
                 cause ? cause : "it cannot be loaded");
        plugin_close(p);
        return rc;
    }
    t = dlsym(p->handle, r->symbol);
    rc = t ? check_table(h, r, t, p, e)
           : ERR(e, STATUS_INPUT, "--%s %.300s: no symbol %.100s in %.300s", h->flag, r->path,
                 r->symbol, r->file);
    if (rc == STATUS_OK && p->table.open && p->table.open(args, &p->self, &why) != 0) {
        rc = plugin_failed(p, why.text, e);
    } else if (rc == STATUS_OK) {
        p->opened = 1;
    }
    if (rc != STATUS_OK) {
        plugin_close(p);
        return rc;
    }
    *out = p;
    return STATUS_OK;
}

const struct miles_plugin *plugin_table(const struct plugin *p)
{
    return &p->table;
}

void *plugin_self(const struct plugin *p)
{
    return p->self;
}

int plugin_failed(const struct plugin *p, const char *why, struct err *e)
{
    return ERR(e, STATUS_CHILD, "--%s %.200s: %.400s", p->flag, p->path,
               *why ? why : "it failed and gave no reason");
}

void plugin_close(struct plugin *p)
{
    if (!p) {
        return;
    }
    if (p->opened && p->table.close) {
        p->table.close(p->self);
    }
    if (p->handle) {
        dlclose(p->handle);
    }
    mem_free(p->path);
    mem_free(p);
}
