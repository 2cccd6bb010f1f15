/* Owns the reading of config.json into `struct arch`. Everything that changes the computation is
 * looked at here, once: a key we do not compute is refused by name, because a model that runs with
 * a silently ignored switch gives plausible, wrong numbers. */
#include "model/arch.h"

#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"

/* Far above any published model; keeps every product of two of these inside int64. */
#define ARCH_MAX_DIM    (1 << 24)
#define ARCH_MAX_LAYERS 4096

/* The value as it stands in the file, cut to a length that fits a message. */
static const char *arch_show(const json_t *v, char out[64])
{
    char *s = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
    snprintf(out, 64, "%.60s", s ? s : "?");
    free(s);
    return out;
}

static int arch_refuse(const char *key, const json_t *v, const char *need, struct err *e)
{
    char text[64];
    return ERR(e, STATUS_UNSUPPORTED, "config.json: %s is %s; only %s is supported", key,
               arch_show(v, text), need);
}

/* A key that is absent or null counts as absent: transformers writes null for "not set". */
static const json_t *arch_get(const json_t *root, const char *key)
{
    const json_t *v = json_object_get(root, key);
    return v && !json_is_null(v) ? v : NULL;
}

/* An integer in [lo, hi]; an absent key gives `def`, or an error when def is below lo. */
static int arch_int(const json_t *root, const char *key, int lo, int hi, int def, int *out,
                    struct err *e)
{
    const json_t *v = arch_get(root, key);
    char text[64];

    if (!v) {
        if (def < lo) {
            return ERR(e, STATUS_FORMAT, "config.json: %s is missing", key);
        }
        *out = def;
        return STATUS_OK;
    }
    if (!json_is_integer(v) || json_integer_value(v) < lo || json_integer_value(v) > hi) {
        return ERR(e, STATUS_FORMAT, "config.json: %s is %s, not an integer from %d to %d", key,
                   arch_show(v, text), lo, hi);
    }
    *out = (int)json_integer_value(v);
    return STATUS_OK;
}

static int arch_positive(const json_t *root, const char *key, double def, double *out,
                         struct err *e)
{
    const json_t *v = arch_get(root, key);
    char text[64];

    if (!v) {
        *out = def;
        return STATUS_OK;
    }
    if (!json_is_number(v) || !(json_number_value(v) > 0) || !isfinite(json_number_value(v))) {
        return ERR(e, STATUS_FORMAT, "config.json: %s is %s, not a positive number", key,
                   arch_show(v, text));
    }
    *out = json_number_value(v);
    return STATUS_OK;
}

static int arch_bool(const json_t *root, const char *key, int def, int *out, struct err *e)
{
    const json_t *v = arch_get(root, key);
    char text[64];

    if (v && !json_is_boolean(v)) {
        return ERR(e, STATUS_FORMAT, "config.json: %s is %s, not true or false", key,
                   arch_show(v, text));
    }
    *out = v ? json_is_true(v) : def;
    return STATUS_OK;
}

/* Refuses a key that is true. */
static int arch_must_be_false(const json_t *root, const char *key, struct err *e)
{
    int on = 0;
    int rc = arch_bool(root, key, 0, &on, e);
    if (rc == STATUS_OK && on) {
        rc = arch_refuse(key, json_object_get(root, key), "false", e);
    }
    return rc;
}

/* A rope object is plain when its type is "default" and it scales nothing. */
static int arch_rope_object(const json_t *rope, const char *key, struct err *e)
{
    const char *names[] = {"rope_type", "type"};
    const json_t *v;
    char full[64];

    if (!json_is_object(rope)) {
        return arch_refuse(key, rope, "an object", e);
    }
    for (int i = 0; i < 2; i++) {
        v = arch_get(rope, names[i]);
        if (v && (!json_is_string(v) || strcmp(json_string_value(v), "default") != 0)) {
            snprintf(full, sizeof full, "%s.%s", key, names[i]);
            return arch_refuse(full, v, "\"default\"", e);
        }
    }
    v = arch_get(rope, "partial_rotary_factor");
    if (v && json_number_value(v) != 1.0) {
        snprintf(full, sizeof full, "%s.partial_rotary_factor", key);
        return arch_refuse(full, v, "1.0", e);
    }
    v = arch_get(rope, "factor");
    if (v && json_number_value(v) != 1.0) {
        snprintf(full, sizeof full, "%s.factor", key);
        return arch_refuse(full, v, "1.0", e);
    }
    return STATUS_OK;
}

/* transformers 5 keeps rope in rope_parameters, older ones in rope_theta and rope_scaling. */
static int arch_rope(const json_t *root, struct arch *a, struct err *e)
{
    const char *keys[] = {"rope_parameters", "rope_scaling"};
    const json_t *partial = arch_get(root, "partial_rotary_factor");
    int rc = arch_positive(root, "rope_theta", 10000.0, &a->rope_theta, e);

    if (rc == STATUS_OK && partial && json_number_value(partial) != 1.0) {
        rc = arch_refuse("partial_rotary_factor", partial, "1.0", e);
    }
    for (int i = 0; i < 2 && rc == STATUS_OK; i++) {
        const json_t *rope = arch_get(root, keys[i]);
        if (rope) {
            rc = arch_rope_object(rope, keys[i], e);
        }
        if (rope && rc == STATUS_OK) {
            rc = arch_positive(rope, "rope_theta", a->rope_theta, &a->rope_theta, e);
        }
    }
    return rc;
}

/* One id or a list of ids; appends each once. */
static int arch_eos(const json_t *v, const char *file, struct arch *a, struct err *e)
{
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    char text[64];

    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(v) ? json_array_get(v, i) : v;
        int have = 0;
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= a->vocab) {
            return ERR(e, STATUS_FORMAT, "%s: eos_token_id %s is not a token id below %d", file,
                       arch_show(id, text), a->vocab);
        }
        for (int k = 0; k < a->n_eos; k++) {
            have |= a->eos_id[k] == (int)json_integer_value(id);
        }
        if (have) {
            continue;
        }
        if (a->n_eos == ARCH_MAX_EOS) {
            return ERR(e, STATUS_UNSUPPORTED, "%s: eos_token_id lists more than %d ids", file,
                       ARCH_MAX_EOS);
        }
        a->eos_id[a->n_eos++] = (int)json_integer_value(id);
    }
    return STATUS_OK;
}

static int arch_family(const json_t *root, struct arch *a, struct err *e)
{
    static const char *const families[] = {"llama", "qwen2", "qwen3"};
    const json_t *v = arch_get(root, "model_type");
    const char *name = json_string_value(v);

    if (!v) {
        return ERR(e, STATUS_FORMAT, "config.json: model_type is missing");
    }
    for (int i = 0; i < 3; i++) {
        if (name && strcmp(name, families[i]) == 0) {
            snprintf(a->family, sizeof a->family, "%s", name);
            a->qkv_bias = i == 1;
            a->qk_norm = i == 2;
            return STATUS_OK;
        }
    }
    return arch_refuse("model_type", v, "llama, qwen2 or qwen3", e);
}

/* layer_types lists the kind of attention of each layer in transformers 5. */
static int arch_layer_types(const json_t *root, struct err *e)
{
    const json_t *list = arch_get(root, "layer_types");
    size_t i;
    json_t *v;

    if (list && !json_is_array(list)) {
        return arch_refuse("layer_types", list, "a list", e);
    }
    json_array_foreach(list, i, v)
    {
        if (!json_is_string(v) || strcmp(json_string_value(v), "full_attention") != 0) {
            return arch_refuse("layer_types", v, "\"full_attention\"", e);
        }
    }
    return STATUS_OK;
}

/* Everything that would change the computation and that we do not compute. */
static int arch_refusals(const json_t *root, struct err *e)
{
    static const char *const off[] = {"attention_bias", "mlp_bias", "use_sliding_window"};
    const json_t *v = arch_get(root, "hidden_act");
    int rc = STATUS_OK;

    if (v && (!json_is_string(v) || strcmp(json_string_value(v), "silu") != 0)) {
        return arch_refuse("hidden_act", v, "\"silu\"", e);
    }
    v = arch_get(root, "quantization_config");
    if (v) {
        return ERR(e, STATUS_UNSUPPORTED,
                   "config.json: quantization_config is set (quant_method %s); give the model in "
                   "bf16, f16 or f32",
                   json_is_string(json_object_get(v, "quant_method"))
                       ? json_string_value(json_object_get(v, "quant_method"))
                       : "unknown");
    }
    for (int i = 0; i < 3 && rc == STATUS_OK; i++) {
        rc = arch_must_be_false(root, off[i], e);
    }
    return rc == STATUS_OK ? arch_layer_types(root, e) : rc;
}

static int arch_sizes(const json_t *root, struct arch *a, struct err *e)
{
    int rc, def;
    double eps = 0;

    if ((rc = arch_int(root, "num_hidden_layers", 1, ARCH_MAX_LAYERS, 0, &a->n_layers, e)) ||
        (rc = arch_int(root, "hidden_size", 1, ARCH_MAX_DIM, 0, &a->hidden, e)) ||
        (rc = arch_int(root, "num_attention_heads", 1, 1 << 16, 0, &a->n_heads, e)) ||
        (rc = arch_int(root, "num_key_value_heads", 1, 1 << 16, a->n_heads, &a->n_kv_heads, e)) ||
        (rc = arch_int(root, "intermediate_size", 1, ARCH_MAX_DIM, 0, &a->intermediate, e)) ||
        (rc = arch_int(root, "vocab_size", 1, ARCH_MAX_DIM, 0, &a->vocab, e)) ||
        (rc = arch_int(root, "max_position_embeddings", 1, INT_MAX, 0, &a->max_positions, e)) ||
        (rc = arch_positive(root, "rms_norm_eps", 1e-6, &eps, e))) {
        return rc;
    }
    a->rms_eps = (float)eps;
    /* transformers' own defaults: Qwen3 has 128, the others divide the hidden size. */
    def = a->qk_norm ? 128 : a->hidden / a->n_heads;
    if (!arch_get(root, "head_dim") && !a->qk_norm && a->hidden % a->n_heads != 0) {
        return ERR(e, STATUS_FORMAT,
                   "config.json: hidden_size %d is not a multiple of num_attention_heads %d",
                   a->hidden, a->n_heads);
    }
    if ((rc = arch_int(root, "head_dim", 1, 1 << 16, def, &a->head_dim, e))) {
        return rc;
    }
    if (a->n_heads % a->n_kv_heads != 0) {
        return ERR(e, STATUS_FORMAT,
                   "config.json: num_attention_heads %d is not a multiple of "
                   "num_key_value_heads %d",
                   a->n_heads, a->n_kv_heads);
    }
    if (a->head_dim % 2 != 0) {
        return ERR(e, STATUS_FORMAT, "config.json: head_dim %d is odd, rope needs pairs",
                   a->head_dim);
    }
    return STATUS_OK;
}

/* bos may be null or, in some folders, a list; a list has no single bos. */
static int arch_bos(const json_t *root, struct arch *a, struct err *e)
{
    const json_t *v = arch_get(root, "bos_token_id");
    a->bos_id = -1;
    return v ? arch_int(root, "bos_token_id", 0, a->vocab - 1, -1, &a->bos_id, e) : STATUS_OK;
}

static int arch_load(const char *text, const char *file, json_t **out, struct err *e)
{
    json_error_t je;
    json_t *root = json_loads(text, 0, &je);

    if (!root) {
        return ERR(e, STATUS_FORMAT, "%s: line %d: %s", file, je.line, je.text);
    }
    if (!json_is_object(root)) {
        json_decref(root);
        return ERR(e, STATUS_FORMAT, "%s is not a json object", file);
    }
    *out = root;
    return STATUS_OK;
}

int arch_parse(const char *config_json, struct arch *a, struct err *e)
{
    struct arch t;
    json_t *root = NULL;
    const json_t *eos;
    int rc = arch_load(config_json, "config.json", &root, e);

    memset(&t, 0, sizeof t);
    if (rc != STATUS_OK) {
        return rc;
    }
    if ((rc = arch_family(root, &t, e)) || (rc = arch_refusals(root, e)) ||
        (rc = arch_sizes(root, &t, e)) || (rc = arch_rope(root, &t, e)) ||
        (rc = arch_bool(root, "tie_word_embeddings", 0, &t.tie_embeddings, e)) ||
        (rc = arch_bos(root, &t, e))) {
        goto out;
    }
    eos = arch_get(root, "eos_token_id");
    if (eos) {
        rc = arch_eos(eos, "config.json", &t, e);
    }
out:
    json_decref(root);
    if (rc == STATUS_OK) {
        *a = t;
    }
    return rc;
}

int arch_merge_generation(const char *generation_config_json, struct arch *a, struct err *e)
{
    struct arch t = *a;
    json_t *root = NULL;
    const json_t *eos;
    int rc = arch_load(generation_config_json, "generation_config.json", &root, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    eos = arch_get(root, "eos_token_id");
    if (eos) {
        t.n_eos = 0;
        memset(t.eos_id, 0, sizeof t.eos_id);
        rc = arch_eos(eos, "generation_config.json", &t, e);
    }
    json_decref(root);
    if (rc == STATUS_OK) {
        *a = t;
    }
    return rc;
}
