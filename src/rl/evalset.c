/* Owns what an evaluation set is told and what it inherits. */
#include "rl/evalset.h"

#include <math.h>
#include <string.h>

#include "base/conf_file.h"
#include "base/mem.h"
#include "base/status.h"
#include "rl/train_opts.h"

#define EVALSET_MOST 256

static void evalset_fini(struct evalset *s)
{
    mem_free(s->name);
    mem_free(s->path);
    mem_free(s->input_key);
    mem_free(s->label_key);
    mem_free(s->tool_key);
    mem_free(s->metadata_key);
    json_decref(s->metadata);
}

void evalset_free(struct evalset *s, int n)
{
    for (int i = 0; i < n; i++) {
        evalset_fini(&s[i]);
    }
    mem_free(s);
}

/* What --eval-* and the training rollout say. */
static void evalset_inherit(const struct train_opts *o, struct evalset *s)
{
    memset(s, 0, sizeof *s);
    s->input_key = mem_strdup(o->eval_input_key);
    s->label_key = mem_strdup(o->eval_label_key);
    s->tool_key = mem_strdup(o->eval_tool_key);
    s->metadata_key = mem_strdup(o->metadata_key);
    s->n = o->n_samples_per_eval_prompt;
    s->temperature = o->eval_temperature;
    s->top_p = o->eval_top_p;
    s->top_k = o->eval_top_k;
    s->max_response_len = o->eval_max_response_len;
    for (int64_t i = 0; i < o->rollout_stop_token_ids.n && i < 16; i++) {
        s->stop[s->nstop++] = (int32_t)o->rollout_stop_token_ids.v[i];
    }
}

/* ---- values ---- */

static int evalset_text(const json_t *v, const char *key, char **out, struct err *e)
{
    if (!json_is_string(v) || !json_string_length(v)) {
        return ERR(e, STATUS_INPUT, "%s is not a text", key);
    }
    mem_free(*out);
    *out = mem_strdup(json_string_value(v));
    return STATUS_OK;
}

/* Numbers of YAML's top level come as texts. */
static int evalset_number(const json_t *v, const char *key, double least, double most, double *out,
                          struct err *e)
{
    double x = json_number_value(v);

    if (!json_is_number(v) &&
        (!json_is_string(v) || conf_parse_float(json_string_value(v), &x) != STATUS_OK)) {
        return ERR(e, STATUS_INPUT, "%s is not a number", key);
    }
    if (!(x >= least && x <= most)) {
        return ERR(e, STATUS_INPUT, "%s is %g, it must be from %g to %g", key, x, least, most);
    }
    *out = x;
    return STATUS_OK;
}

static int evalset_count(const json_t *v, const char *key, double least, double most, int64_t *out,
                         struct err *e)
{
    double x = 0.0;
    int rc = evalset_number(v, key, least, most, &x, e);

    if (rc == STATUS_OK && x != floor(x)) {
        rc = ERR(e, STATUS_INPUT, "%s is %g, not a whole number", key, x);
    }
    *out = rc == STATUS_OK ? (int64_t)x : *out;
    return rc;
}

static int evalset_stops(const json_t *v, struct evalset *s, struct err *e)
{
    const json_t *x;
    size_t i;

    if (!json_is_array(v) || json_array_size(v) > 16) {
        return ERR(e, STATUS_INPUT, "stop_token_ids is not a list of at most 16 tokens");
    }
    s->nstop = 0;
    json_array_foreach(v, i, x)
    {
        int64_t id = 0;
        int rc = evalset_count(x, "stop_token_ids", 0, 16777216, &id, e);
        if (rc != STATUS_OK) {
            return rc;
        }
        s->stop[s->nstop++] = (int32_t)id;
    }
    return STATUS_OK;
}

static void evalset_note(struct evalset *s, const char *key, json_t *v)
{
    if (!s->metadata) {
        s->metadata = json_object();
    }
    json_object_set(s->metadata, key, v);
}

static int evalset_overrides(const json_t *v, struct evalset *s, struct err *e)
{
    const char *key;
    json_t *x;

    if (!json_is_object(v)) {
        return ERR(e, STATUS_INPUT, "metadata_overrides is not a mapping");
    }
    json_object_foreach((json_t *)(uintptr_t)v, key, x)
    {
        evalset_note(s, key, x);
    }
    return STATUS_OK;
}

static int evalset_key(struct evalset *s, const char *key, json_t *v, struct err *e)
{
    struct {
        const char *key;
        char **text;
    } texts[] = {{"name", &s->name},           {"path", &s->path},
                 {"input_key", &s->input_key}, {"label_key", &s->label_key},
                 {"tool_key", &s->tool_key},   {"metadata_key", &s->metadata_key}};
    struct {
        const char *key;
        double least;
        int64_t *count;
    } counts[] = {{"n_samples_per_eval_prompt", 1, &s->n},
                  {"top_k", -1, &s->top_k},
                  {"max_response_len", 1, &s->max_response_len}};

    if (json_is_null(v)) {
        return STATUS_OK;
    }
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (strcmp(key, texts[i].key) == 0) {
            return evalset_text(v, key, texts[i].text, e);
        }
    }
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        if (strcmp(key, counts[i].key) == 0) {
            return evalset_count(v, key, counts[i].least, 16777216, counts[i].count, e);
        }
    }
    if (strcmp(key, "temperature") == 0) {
        return evalset_number(v, key, 0, 100, &s->temperature, e);
    }
    if (strcmp(key, "top_p") == 0) {
        return evalset_number(v, key, 1e-9, 1, &s->top_p, e);
    }
    if (strcmp(key, "stop_token_ids") == 0) {
        return evalset_stops(v, s, e);
    }
    if (strcmp(key, "metadata_overrides") == 0) {
        return evalset_overrides(v, s, e);
    }
    if (strcmp(key, "rm_type") == 0) {
        if (!json_is_string(v)) {
            return ERR(e, STATUS_INPUT, "rm_type is not a text");
        }
        evalset_note(s, key, v);
        return STATUS_OK;
    }
    if (strcmp(key, "stop") == 0 || strcmp(key, "min_new_tokens") == 0 ||
        strcmp(key, "custom_generate_function_path") == 0) {
        return ERR(e, STATUS_UNSUPPORTED, "%s is known, not supported yet", key);
    }
    return ERR(e, STATUS_INPUT,
               "%s is none of name, path, rm_type, input_key, label_key, tool_key, metadata_key, "
               "n_samples_per_eval_prompt, temperature, top_p, top_k, max_response_len, "
               "stop_token_ids, metadata_overrides",
               key);
}

static int evalset_keys(struct evalset *s, const json_t *o, struct err *e)
{
    const char *key;
    json_t *v;
    int rc = STATUS_OK;

    json_object_foreach((json_t *)(uintptr_t)o, key, v)
    {
        rc = rc == STATUS_OK ? evalset_key(s, key, v, e) : rc;
    }
    return rc;
}

/* ---- sets ---- */

static int evalset_one(const struct train_opts *o, const json_t *defaults, const char *name,
                       const json_t *set, struct evalset *s, struct err *e)
{
    int rc;

    evalset_inherit(o, s);
    s->name = mem_strdup(name);
    rc = evalset_keys(s, defaults, e);
    if (rc != STATUS_OK) {
        return err_prefix(e, "defaults");
    }
    if (!json_is_object(set)) {
        rc = ERR(e, STATUS_INPUT, "it is not a mapping");
    }
    rc = rc == STATUS_OK ? evalset_keys(s, set, e) : rc;
    if (rc == STATUS_OK && (!s->name || !s->path)) {
        rc = ERR(e, STATUS_INPUT, "it has no %s", s->name ? "path" : "name");
    }
    if (rc == STATUS_OK && s->top_k == 0) {
        rc = ERR(e, STATUS_INPUT, "top_k 0 leaves no token; -1 is all");
    }
    return rc == STATUS_OK ? rc : err_prefix(e, "dataset %s", s->name ? s->name : "without a name");
}

static int evalset_twice(const struct evalset *s, int n, struct err *e)
{
    for (int i = 0; i < n; i++) {
        if (strcmp(s[i].name, s[n].name) == 0) {
            return ERR(e, STATUS_INPUT, "dataset %s is there twice", s[n].name);
        }
    }
    return STATUS_OK;
}

int evalset_parse(const struct train_opts *o, const json_t *root, const char *name,
                  struct evalset **out, int *n, struct err *e)
{
    const json_t *in = json_object_get(root, "eval") ? json_object_get(root, "eval") : root;
    const json_t *list = json_object_get(in, "datasets");
    const json_t *defaults = json_object_get(in, "defaults");
    struct evalset *s = mem_alloc(sizeof *s * EVALSET_MOST);
    const char *key;
    json_t *v;
    int rc = STATUS_OK, k = 0;
    size_t i;

    json_object_foreach((json_t *)(uintptr_t)in, key, v)
    {
        if (strcmp(key, "datasets") != 0 && strcmp(key, "defaults") != 0) {
            rc = ERR(e, STATUS_INPUT, "%s is neither defaults nor datasets", key);
        }
    }
    if (rc == STATUS_OK &&
        (json_is_array(list) ? json_array_size(list) : json_object_size(list)) - 1u >=
            EVALSET_MOST) {
        rc = ERR(e, STATUS_INPUT, "datasets has no entries, or more than %d", EVALSET_MOST);
    }
    json_array_foreach(list, i, v)
    {
        if (rc == STATUS_OK) {
            rc = evalset_one(o, defaults, NULL, v, &s[k], e);
            rc = rc == STATUS_OK ? evalset_twice(s, k, e) : rc;
            k++;
        }
    }
    json_object_foreach((json_t *)(uintptr_t)list, key, v)
    {
        if (rc == STATUS_OK) {
            rc = evalset_one(o, defaults, key, v, &s[k], e);
            rc = rc == STATUS_OK ? evalset_twice(s, k, e) : rc;
            k++;
        }
    }
    if (rc != STATUS_OK) {
        evalset_free(s, k);
        return err_prefix(e, "%s", name);
    }
    *out = s;
    *n = k;
    return STATUS_OK;
}

int evalset_read(const struct train_opts *o, struct evalset **out, int *n, struct err *e)
{
    struct evalset *s;
    json_t *root;
    int rc;

    if (o->eval_config) {
        rc = conf_file_read(o->eval_config, &root, NULL, e);
        if (rc != STATUS_OK) {
            return err_prefix(e, "--eval-config");
        }
        rc = evalset_parse(o, root, o->eval_config, out, n, e);
        json_decref(root);
        return rc == STATUS_OK ? rc : err_prefix(e, "--eval-config");
    }
    *n = (int)(o->eval_prompt_data.n / 2);
    *out = s = mem_alloc(sizeof *s * (size_t)(*n + 1));
    for (int i = 0; i < *n; i++) {
        evalset_inherit(o, &s[i]);
        s[i].name = mem_strdup(o->eval_prompt_data.v[2 * i]);
        s[i].path = mem_strdup(o->eval_prompt_data.v[2 * i + 1]);
    }
    return STATUS_OK;
}
