/* Owns the hooks of a run: which option opens which, and the calls whose arguments are plain data.
 */
#include "rl/extend_int.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/plugin.h"
#include "base/status.h"
#include "reward/hookcall.h"
#include "rl/sample.h"
#include "rl/train_opts.h"
#include "train/trainer.h"

#define EXTEND_ROLLOUT_S 604800.0 /* a week: a whole rollout may be in one call */

static const struct {
    const char *flag;
    size_t offset; /* of the path in struct train_opts */
    int memory;    /* it is given arrays */
    int rollout;   /* wanted with --debug-rollout-only too */
} table[EXTEND_NHOOKS] = {
#define AT(field) offsetof(struct train_opts, field)
    [EXTEND_LOSS] = {"custom-loss-function-path", AT(custom_loss_function_path), 1, 0},
    [EXTEND_TIS] = {"custom-tis-function-path", AT(custom_tis_function_path), 1, 0},
    [EXTEND_REDUCE] = {"custom-pg-loss-reducer-function-path",
                       AT(custom_pg_loss_reducer_function_path), 1, 0},
    [EXTEND_INIT] = {"custom-megatron-init-path", AT(custom_megatron_init_path), 0, 0},
    [EXTEND_BEFORE_SCORES] = {"custom-megatron-before-log-prob-hook-path",
                              AT(custom_megatron_before_log_prob_hook_path), 1, 0},
    [EXTEND_BEFORE_STEP] = {"custom-megatron-before-train-step-hook-path",
                            AT(custom_megatron_before_train_step_hook_path), 1, 0},
    [EXTEND_SAVED] = {"custom-megatron-post-save-hook-path",
                      AT(custom_megatron_post_save_hook_path), 0, 0},
    [EXTEND_ROLLOUT_LOG] = {"custom-rollout-log-function-path",
                            AT(custom_rollout_log_function_path), 0, 1},
    [EXTEND_EVAL_LOG] = {"custom-eval-rollout-log-function-path",
                         AT(custom_eval_rollout_log_function_path), 0, 1},
    [EXTEND_POSTPROCESS] = {"rollout-data-postprocess-path", AT(rollout_data_postprocess_path), 0,
                            0},
    [EXTEND_CONVERT] = {"custom-convert-samples-to-train-data-path",
                        AT(custom_convert_samples_to_train_data_path), 0, 0},
    [EXTEND_SHAPE] = {"custom-reward-post-process-path", AT(custom_reward_post_process_path), 0, 0},
    [EXTEND_ROLLOUT] = {"rollout-function-path", AT(rollout_function_path), 0, 1},
    [EXTEND_EVAL] = {"eval-function-path", AT(eval_function_path), 0, 1},
    [EXTEND_SOURCE] = {"data-source-path", AT(data_source_path), 0, 1},
#undef AT
};

static const char *path_of(const struct train_opts *o, int i)
{
    const char *p;
    memcpy(&p, (const char *)o + table[i].offset, sizeof p);
    return p && *p ? p : NULL;
}

/* A name of ours is no call: its code is elsewhere. */
static int open_hook(struct extend *x, int i, const json_t *args, struct err *e)
{
    const char *path = path_of(x->o, i);
    struct hookcall_opts h = {.flag = table[i].flag,
                              .path = path,
                              .python = x->o->reward_python,
                              .timeout_s = i == EXTEND_ROLLOUT || i == EXTEND_EVAL
                                               ? EXTEND_ROLLOUT_S
                                               : x->o->hook_timeout,
                              .args = args,
                              .memory = table[i].memory,
                              .ask = extend_answer,
                              .ask_arg = x};
    struct plugin_ref r;
    int rc, builtin;

    if (!path || (x->o->debug_rollout_only && !table[i].rollout)) {
        return STATUS_OK;
    }
    rc = plugin_resolve(plugin_hook(table[i].flag), path, &r, e);
    if (rc != STATUS_OK) {
        return rc;
    }
    builtin = r.kind == PLUGIN_BUILTIN;
    plugin_ref_fini(&r);
    x->named[i] = !builtin && x->journal && x->journal->closed;
    return builtin || x->named[i] ? STATUS_OK : hookcall_open(&h, &x->hook[i], e);
}

int extend_open(const struct extend_opts *o, struct extend **out, struct err *e)
{
    struct extend *x = mem_alloc(sizeof *x);
    int rc = STATUS_OK;

    x->o = o->o;
    for (int i = 0; rc == STATUS_OK && i < EXTEND_ROLLOUT; i++) {
        rc = open_hook(x, i, o->args, e);
    }
    if (rc != STATUS_OK) {
        extend_close(x);
        return rc;
    }
    *out = x;
    return STATUS_OK;
}

int extend_open_rollout(struct extend *x, const json_t *args, struct journal *j, struct err *e)
{
    int rc = STATUS_OK;

    if (x) {
        x->journal = j;
    }
    for (int i = EXTEND_ROLLOUT; x && rc == STATUS_OK && i < EXTEND_NHOOKS; i++) {
        rc = open_hook(x, i, args, e);
    }
    return rc;
}

void extend_close(struct extend *x)
{
    if (!x) {
        return;
    }
    for (int i = 0; i < EXTEND_NHOOKS; i++) {
        hookcall_close(x->hook[i]);
    }
    json_decref(x->known);
    mem_free(x);
}

int extend_trainer(struct extend *x, struct trainer *t, struct err *e)
{
    if (!x) {
        return STATUS_OK;
    }
    x->optim = trainer_optim(t);
    return extend_rows(x, t, e);
}

int extend_has(const struct extend *x, const char *flag)
{
    for (int i = 0; x && i < EXTEND_NHOOKS; i++) {
        if (strcmp(table[i].flag, flag) == 0) {
            return x->hook[i] || x->named[i];
        }
    }
    return 0;
}

int extend_call(struct extend *x, enum extend_hook i, json_t *argv, json_t **out, struct err *e)
{
    int rc = STATUS_OK;

    *out = NULL;
    if (x && x->hook[i]) {
        rc = hookcall_run(x->hook[i], argv, out, e);
    }
    json_decref(argv);
    return rc;
}

/* The same for a hook that answers nothing. */
static int extend_tell(struct extend *x, enum extend_hook i, json_t *argv, struct err *e)
{
    json_t *out;
    int rc = extend_call(x, i, argv, &out, e);
    json_decref(out);
    return rc;
}

int extend_init(struct extend *x, struct err *e)
{
    return extend_tell(x, EXTEND_INIT, json_array(), e);
}

int extend_postprocess(struct extend *x, struct err *e)
{
    return extend_tell(x, EXTEND_POSTPROCESS, json_array(), e);
}

int extend_saved(struct extend *x, int64_t rollout, const char *ckpt_dir, const char *hf_dir,
                 struct err *e)
{
    return extend_tell(x, EXTEND_SAVED,
                       json_pack("[I,s?,s?]", (json_int_t)rollout, ckpt_dir, hf_dir), e);
}

static json_t *samples_json(struct sample *const *s, int n)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++) {
        json_array_append_new(list, sample_to_json(s[i]));
    }
    return list;
}

int extend_log_rollout(struct extend *x, int64_t rollout, struct sample *const *s, int n,
                       const json_t *row, double seconds, int *quiet, struct err *e)
{
    json_t *out = NULL;
    int rc;

    *quiet = 0;
    if (!x || !x->hook[EXTEND_ROLLOUT_LOG]) {
        return STATUS_OK;
    }
    rc = extend_call(x, EXTEND_ROLLOUT_LOG,
                     json_pack("[I,o,O,f]", (json_int_t)rollout, samples_json(s, n), row, seconds),
                     &out, e);
    *quiet = json_is_true(out);
    json_decref(out);
    return rc;
}

int extend_log_eval(struct extend *x, int64_t rollout, const json_t *data, const json_t *row,
                    int *quiet, struct err *e)
{
    json_t *out = NULL;
    int rc;

    *quiet = 0;
    if (!x || !x->hook[EXTEND_EVAL_LOG]) {
        return STATUS_OK;
    }
    rc = extend_call(x, EXTEND_EVAL_LOG, json_pack("[I,O,O]", (json_int_t)rollout, data, row), &out,
                     e);
    *quiet = json_is_true(out);
    json_decref(out);
    return rc;
}

int extend_shape(struct extend *x, struct sample *const *s, int n, double *raw, double *shaped,
                 struct err *e)
{
    json_t *out = NULL;
    int rc;

    if (!x || !x->hook[EXTEND_SHAPE]) {
        return STATUS_END;
    }
    rc = extend_call(x, EXTEND_SHAPE, json_pack("[o]", samples_json(s, n)), &out, e);
    for (int i = 0; rc == STATUS_OK && i < n; i++) {
        const json_t *pair = json_array_get(out, (size_t)i);
        const json_t *a = json_object_get(pair, "raw"), *b = json_object_get(pair, "reward");
        if (!json_is_number(a) || !json_is_number(b)) {
            rc = ERR(e, STATUS_CHILD, "--%s: reward %d of its lists is no number",
                     table[EXTEND_SHAPE].flag, i);
        } else {
            raw[i] = json_number_value(a);
            shaped[i] = json_number_value(b);
        }
    }
    json_decref(out);
    return rc;
}

/* ---- converted samples ---- */

enum { C_TOKENS, C_LENGTHS, C_REWARDS, C_RAW, C_MASKS, C_LOGPS, C_ROLLOUTS, C_INDICES, C_N };
static const char *const convert_keys[C_N] = {
    "tokens",     "response_lengths",  "rewards",     "raw_reward",
    "loss_masks", "rollout_log_probs", "rollout_ids", "sample_indices"};

/* The sample that entry i was made of, by its index, else by its place. */
static struct sample *convert_source(struct sample **s, int n, const json_t *const l[C_N], int i)
{
    const json_t *at = l[C_INDICES] ? json_array_get(l[C_INDICES], (size_t)i) : NULL;
    for (int k = 0; at && k < n; k++) {
        if (s[k]->index == json_integer_value(at)) {
            return s[k];
        }
    }
    return s[i < n ? i : n - 1];
}

/* 1 when each token is what was sampled, so that what is known of it holds on. */
static int convert_kept(const struct sample *a, const struct sample *b)
{
    size_t n = (size_t)(a->prompt_len + a->response_len), r = (size_t)a->response_len;
    return a->prompt_len == b->prompt_len && a->response_len == b->response_len &&
           memcmp(a->tokens, b->tokens, sizeof *a->tokens * n) == 0 && a->logps && b->logps &&
           memcmp(a->logps, b->logps, sizeof *a->logps * r) == 0;
}

static int convert_one(const struct sample *from, int i, const json_t *const l[C_N],
                       struct sample **out, struct err *e)
{
    static const struct {
        int list;
        const char *key;
    } fields[] = {
        {C_TOKENS, "tokens"},   {C_LENGTHS, "response_length"}, {C_RAW, "reward"},
        {C_MASKS, "loss_mask"}, {C_LOGPS, "rollout_log_probs"}, {C_ROLLOUTS, "rollout_id"}};
    json_t *j = sample_to_json(from);
    int rc;

    for (size_t k = 0; k < sizeof fields / sizeof *fields; k++) {
        json_t *v = l[fields[k].list] ? json_array_get(l[fields[k].list], (size_t)i) : NULL;
        if (v && !json_is_null(v)) {
            json_object_set(j, fields[k].key, v);
        }
    }
    rc = sample_from_json(j, out, e);
    json_decref(j);
    if (rc == STATUS_OK && convert_kept(*out, from)) {
        size_t bytes = sizeof *from->segments * (size_t)from->nsegments;
        mem_free((*out)->segments);
        (*out)->segments = mem_alloc(bytes ? bytes : 1);
        if (bytes) {
            memcpy((*out)->segments, from->segments, bytes);
        }
        (*out)->nsegments = from->nsegments;
    }
    return rc;
}

static int convert_lists(const json_t *d, const json_t *l[C_N], int *n, struct err *e)
{
    const char *flag = table[EXTEND_CONVERT].flag;

    for (int k = 0; k < C_N; k++) {
        l[k] = json_object_get(d, convert_keys[k]);
        l[k] = json_is_array(l[k]) ? l[k] : NULL;
    }
    if (!l[C_TOKENS] || !l[C_LENGTHS] || !l[C_REWARDS] || json_array_size(l[C_TOKENS]) == 0) {
        return ERR(e, STATUS_CHILD, "--%s: its dict needs lists tokens, response_lengths, rewards",
                   flag);
    }
    *n = (int)json_array_size(l[C_TOKENS]);
    for (int k = 0; k < C_N; k++) {
        if (l[k] && (int)json_array_size(l[k]) != *n) {
            return ERR(e, STATUS_CHILD, "--%s: list %s has %zu entries, tokens has %d", flag,
                       convert_keys[k], json_array_size(l[k]), *n);
        }
    }
    return STATUS_OK;
}

void extend_converted_free(struct extend_converted *c)
{
    for (int i = 0; i < c->n; i++) {
        sample_free(c->s[i]);
    }
    mem_free(c->s);
    mem_free(c->shaped);
    memset(c, 0, sizeof *c);
}

static int convert_all(const json_t *d, struct sample **s, int n, struct extend_converted *c,
                       struct err *e)
{
    const json_t *l[C_N];
    int total, rc = convert_lists(d, l, &total, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    c->s = mem_alloc(sizeof *c->s * (size_t)total);
    c->shaped = mem_alloc(sizeof *c->shaped * (size_t)total);
    for (int i = 0; rc == STATUS_OK && i < total; i++) {
        const json_t *r = json_array_get(l[C_REWARDS], (size_t)i);
        if (!json_is_number(r)) {
            return ERR(e, STATUS_CHILD, "--%s: rewards[%d] is no number",
                       table[EXTEND_CONVERT].flag, i);
        }
        c->shaped[i] = (float)json_number_value(r);
        rc = convert_one(convert_source(s, n, l, i), i, l, &c->s[i], e);
        c->n += rc == STATUS_OK;
    }
    return rc == STATUS_OK ? rc : err_prefix(e, "--%s", table[EXTEND_CONVERT].flag);
}

int extend_convert(struct extend *x, struct sample **s, int n, struct extend_converted *out,
                   struct err *e)
{
    json_t *answer = NULL;
    int rc;

    memset(out, 0, sizeof *out);
    if (!x || !x->hook[EXTEND_CONVERT] || n == 0) {
        return STATUS_OK;
    }
    rc = extend_call(x, EXTEND_CONVERT, json_pack("[o]", samples_json(s, n)), &answer, e);
    rc = rc == STATUS_OK ? convert_all(answer, s, n, out, e) : rc;
    json_decref(answer);
    if (rc != STATUS_OK) {
        extend_converted_free(out);
    }
    return rc;
}
