/* Owns the reading of config.json into `struct arch`, and the table of families. Everything that
 * changes the computation is looked at here, once: a key we do not compute is refused by name,
 * because a model that runs with a silently ignored switch gives plausible, wrong numbers. */
#include "model/arch.h"

#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "num/vmath.h"

/* Far above any published model; keeps every product of two of these inside int64. */
#define ARCH_MAX_DIM (1 << 24)

/* ---- the table ---- */

/* Which projections have a bias. */
enum arch_bias {
    ARCH_BIAS_NEVER,
    ARCH_BIAS_QKV,      /* q, k and v always */
    ARCH_BIAS_KEY_QKV,  /* q, k and v, when attention_bias says so (it does by default) */
    ARCH_BIAS_KEY_QKVO, /* those and o, when attention_bias says so */
};

/* Which layers slide where layer_types says nothing. */
enum arch_slide {
    ARCH_SLIDE_NEVER,
    ARCH_SLIDE_ALL,  /* all, when sliding_window is set */
    ARCH_SLIDE_LAST, /* those from max_window_layers on, when use_sliding_window is true */
    ARCH_SLIDE_MOST, /* all but each n-th: sliding_window_pattern */
};

enum {
    ARCH_QK_NORM = 1,
    ARCH_PLUS_ONE = 2,
    ARCH_SCALED_EMBED = 4,
    ARCH_QUERY_SCALAR = 8,   /* query_pre_attn_scalar */
    ARCH_ATTN_SOFTCAP = 16,  /* attn_logit_softcapping */
    ARCH_FINAL_SOFTCAP = 32, /* final_logit_softcapping */
    ARCH_INTERLEAVED = 64,
    ARCH_PARTIAL = 128,  /* partial_rotary_factor */
    ARCH_FUSED = 256,    /* gate_up_proj */
    ARCH_MLP_BIAS = 512, /* mlp_bias */
    ARCH_GELU = 1024,
    ARCH_TIED = 2048,      /* tie_word_embeddings is true by default */
    ARCH_TWO_ROPES = 4096, /* sliding layers have a rope of their own */
};

struct arch_family {
    const char *name;    /* config.json's model_type */
    const char *section; /* the object of config.json that has the text model's keys, or NULL */
    const char *prefix[3], *head[3]; /* spellings of tensor names; "model.", "lm_head.weight" */
    unsigned switches;
    enum arch_bias bias;
    enum arch_slide slide;
    int slide_every;                             /* default of sliding_window_pattern */
    const char *attn_post, *mlp_norm, *mlp_post; /* norms; post ones NULL without */
    /* transformers' defaults where they are not the usual ones; 0: usual */
    int head_dim, heads, kv_heads, vocab, positions, window;
    double theta, partial, attn_softcap, final_softcap, rms_eps;
    enum arch_attn attn;
    enum arch_mlp mlp;
};

#define ARCH_LLAMA_NORMS .mlp_norm = "post_attention_layernorm.weight"
#define ARCH_GEMMA_NORMS                                                                           \
    .attn_post = "post_attention_layernorm.weight",                                                \
    .mlp_norm = "pre_feedforward_layernorm.weight",                                                \
    .mlp_post = "post_feedforward_layernorm.weight"
#define ARCH_GEMMA3                                                                                \
    ARCH_GEMMA_NORMS,                                                                              \
        .bias = ARCH_BIAS_KEY_QKVO, .slide = ARCH_SLIDE_MOST, .slide_every = 6,                    \
        .switches = ARCH_QK_NORM | ARCH_PLUS_ONE | ARCH_SCALED_EMBED | ARCH_QUERY_SCALAR |         \
                    ARCH_FINAL_SOFTCAP | ARCH_GELU | ARCH_TIED | ARCH_TWO_ROPES,                   \
        .head_dim = 256, .heads = 8, .kv_heads = 4, .vocab = 262208, .positions = 131072,          \
        .window = 4096, .theta = 1e6

static const struct arch_family arch_families[] = {
    {"llama", ARCH_LLAMA_NORMS, .bias = ARCH_BIAS_KEY_QKVO, .switches = ARCH_MLP_BIAS},
    {"mistral", ARCH_LLAMA_NORMS, .slide = ARCH_SLIDE_ALL, .window = 4096},
    {"qwen2", ARCH_LLAMA_NORMS, .bias = ARCH_BIAS_QKV, .slide = ARCH_SLIDE_LAST, .window = 4096},
    {"qwen3", ARCH_LLAMA_NORMS, .bias = ARCH_BIAS_KEY_QKVO, .slide = ARCH_SLIDE_LAST,
     .switches = ARCH_QK_NORM, .head_dim = 128, .window = 4096},
    {"gemma2", ARCH_GEMMA_NORMS, .bias = ARCH_BIAS_KEY_QKVO, .slide = ARCH_SLIDE_MOST,
     .slide_every = 2,
     .switches = ARCH_PLUS_ONE | ARCH_SCALED_EMBED | ARCH_QUERY_SCALAR | ARCH_ATTN_SOFTCAP |
                 ARCH_FINAL_SOFTCAP | ARCH_GELU | ARCH_TIED,
     .head_dim = 256, .window = 4096, .attn_softcap = 50.0, .final_softcap = 30.0},
    {"gemma3_text", ARCH_GEMMA3},
    {"gemma3", "text_config", ARCH_GEMMA3,
     .prefix = {"model.language_model.", "language_model.model."},
     .head = {"lm_head.weight", "language_model.lm_head.weight"}},
    {"glm4", .attn_post = "post_self_attn_layernorm.weight",
     .mlp_norm = "post_attention_layernorm.weight", .mlp_post = "post_mlp_layernorm.weight",
     .bias = ARCH_BIAS_KEY_QKV, .switches = ARCH_INTERLEAVED | ARCH_PARTIAL | ARCH_FUSED,
     .head_dim = 128, .partial = 0.5, .rms_eps = 1.5625e-07},
    /* to come: known by name, so that the refusal says what is missing */
    {"mixtral", .mlp = ARCH_MLP_EXPERTS},
    {"qwen2_moe", .mlp = ARCH_MLP_EXPERTS},
    {"qwen3_moe", .mlp = ARCH_MLP_EXPERTS},
    {"glm4_moe", .mlp = ARCH_MLP_EXPERTS},
    {"deepseek_v3", .attn = ARCH_ATTN_LATENT, .mlp = ARCH_MLP_EXPERTS},
    {"qwen3_next", .attn = ARCH_ATTN_LINEAR, .mlp = ARCH_MLP_EXPERTS},
};
#define ARCH_FAMILIES (int)(sizeof arch_families / sizeof arch_families[0])

/* Rows that plugins brought, for the life of the process; their texts live in the JSON. */
#define ARCH_MAX_ADDED 8
static struct arch_family arch_added[ARCH_MAX_ADDED];
static json_t *arch_added_json[ARCH_MAX_ADDED];
static int arch_nadded;

static const struct arch_family *arch_find(const char *name)
{
    for (int i = 0; name && i < arch_nadded; i++) {
        if (strcmp(name, arch_added[i].name) == 0) {
            return &arch_added[i];
        }
    }
    for (int i = 0; name && i < ARCH_FAMILIES; i++) {
        if (strcmp(name, arch_families[i].name) == 0) {
            return &arch_families[i];
        }
    }
    return NULL;
}

/* ---- rows from outside ---- */

static const struct {
    const char *name;
    unsigned bit;
} arch_switch_names[] = {{"qk_norm", ARCH_QK_NORM},
                         {"norm_plus_one", ARCH_PLUS_ONE},
                         {"embed_scale", ARCH_SCALED_EMBED},
                         {"query_pre_attn_scalar", ARCH_QUERY_SCALAR},
                         {"attn_logit_softcapping", ARCH_ATTN_SOFTCAP},
                         {"final_logit_softcapping", ARCH_FINAL_SOFTCAP},
                         {"interleaved_rope", ARCH_INTERLEAVED},
                         {"partial_rotary_factor", ARCH_PARTIAL},
                         {"gate_up_proj", ARCH_FUSED},
                         {"mlp_bias", ARCH_MLP_BIAS},
                         {"gelu", ARCH_GELU},
                         {"tie_word_embeddings", ARCH_TIED}};

static int arch_row_switch(struct arch_family *f, const char *key, const json_t *v)
{
    for (size_t i = 0; i < sizeof arch_switch_names / sizeof arch_switch_names[0]; i++) {
        if (strcmp(key, arch_switch_names[i].name) == 0 && json_is_boolean(v)) {
            f->switches &= ~arch_switch_names[i].bit;
            f->switches |= json_is_true(v) ? arch_switch_names[i].bit : 0;
            return 1;
        }
    }
    return 0;
}

/* Index of v in names, -1 when it is none of them. */
static int arch_row_choice(const json_t *v, const char *const *names, int n)
{
    for (int i = 0; json_is_string(v) && i < n; i++) {
        if (strcmp(json_string_value(v), names[i]) == 0) {
            return i;
        }
    }
    return -1;
}

/* 1 when the key is one of a row's and its value fits. */
static int arch_row_key(struct arch_family *f, const char *key, const json_t *v)
{
    static const char *const biases[] = {"never", "qkv", "attention_bias_qkv",
                                         "attention_bias_qkvo"};
    static const char *const slides[] = {"never", "all", "last", "most"};
    const struct {
        const char *key, **to;
    } texts[] = {{"section", &f->section},   {"prefix", &f->prefix[0]},
                 {"head", &f->head[0]},      {"attn_post", &f->attn_post},
                 {"mlp_norm", &f->mlp_norm}, {"mlp_post", &f->mlp_post}};
    const struct {
        const char *key;
        int *to;
    } ints[] = {{"sliding_every", &f->slide_every},
                {"head_dim", &f->head_dim},
                {"heads", &f->heads},
                {"kv_heads", &f->kv_heads},
                {"vocab", &f->vocab},
                {"positions", &f->positions},
                {"window", &f->window}};
    const struct {
        const char *key;
        double *to;
    } reals[] = {{"theta", &f->theta},
                 {"partial", &f->partial},
                 {"attn_softcap", &f->attn_softcap},
                 {"final_softcap", &f->final_softcap},
                 {"rms_eps", &f->rms_eps}};
    int k;

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (strcmp(key, texts[i].key) == 0) {
            *texts[i].to = json_string_value(v);
            return json_is_string(v) || json_is_null(v);
        }
    }
    for (size_t i = 0; i < sizeof ints / sizeof ints[0]; i++) {
        if (strcmp(key, ints[i].key) == 0) {
            *ints[i].to = (int)json_integer_value(v);
            return json_is_integer(v) && json_integer_value(v) > 0 &&
                   json_integer_value(v) <= ARCH_MAX_DIM;
        }
    }
    for (size_t i = 0; i < sizeof reals / sizeof reals[0]; i++) {
        if (strcmp(key, reals[i].key) == 0) {
            *reals[i].to = json_number_value(v);
            return json_is_number(v) && json_number_value(v) > 0;
        }
    }
    if (strcmp(key, "bias") == 0 && (k = arch_row_choice(v, biases, 4)) >= 0) {
        f->bias = (enum arch_bias)k;
        return 1;
    }
    if (strcmp(key, "sliding") == 0 && (k = arch_row_choice(v, slides, 4)) >= 0) {
        f->slide = (enum arch_slide)k;
        return 1;
    }
    return arch_row_switch(f, key, v);
}

int arch_add(const char *row_json, struct err *e)
{
    json_error_t je;
    json_t *j = json_loads(row_json, 0, &je), *v;
    const char *name = json_string_value(json_object_get(j, "model_type"));
    const char *like = json_string_value(json_object_get(j, "like")), *key;
    const struct arch_family *base = arch_find(like);
    struct arch_family f;
    int rc = STATUS_OK;

    if (!j) {
        return ERR(e, STATUS_INPUT, "the row of an architecture is not JSON: %s", je.text);
    }
    if (!name || !*name || strlen(name) >= sizeof((struct arch *)0)->family) {
        rc = ERR(e, STATUS_INPUT, "the row of an architecture has no model_type");
    } else if (!base || base->mlp != ARCH_MLP_DENSE || base->attn != ARCH_ATTN_FULL) {
        rc = ERR(e, STATUS_INPUT, "architecture %s is like \"%s\", which is no family of ours",
                 name, like ? like : "");
    } else if (arch_find(name)) {
        rc = ERR(e, STATUS_INPUT, "architecture %s is known already", name);
    } else if (arch_nadded == ARCH_MAX_ADDED) {
        rc = ERR(e, STATUS_NOMEM, "more than %d architectures are added", ARCH_MAX_ADDED);
    }
    if (rc == STATUS_OK) {
        f = *base;
        f.name = name;
        json_object_foreach(j, key, v)
        {
            if (strcmp(key, "model_type") != 0 && strcmp(key, "like") != 0 &&
                !arch_row_key(&f, key, v)) {
                rc = ERR(e, STATUS_INPUT,
                         "architecture %s: key %.60s is not one of a row, or its "
                         "value does not fit",
                         name, key);
                break;
            }
        }
    }
    if (rc != STATUS_OK) {
        json_decref(j);
        return rc;
    }
    arch_added[arch_nadded] = f;
    arch_added_json[arch_nadded++] = j;
    return STATUS_OK;
}

static int arch_on(const struct arch_family *f, int which)
{
    return (f->switches & (unsigned)which) != 0;
}

int arch_spelling(struct arch *a, int i)
{
    const struct arch_family *f = arch_find(a->family);
    const char *prefix, *head;

    if (!f || i < 0 || i >= 3 || (i && !f->prefix[i])) {
        return 0;
    }
    prefix = f->prefix[i] ? f->prefix[i] : "model.";
    head = f->head[i] ? f->head[i] : "lm_head.weight";
    snprintf(a->prefix, sizeof a->prefix, "%s", prefix);
    snprintf(a->head, sizeof a->head, "%s", head);
    return 1;
}

void arch_layer_tensors(const struct arch *a, struct arch_tensor t[ARCH_ROLES])
{
    const struct arch_family *f = arch_find(a->family);
    int q = a->n_heads * a->head_dim, kv = a->n_kv_heads * a->head_dim;
    int h = a->hidden, m = a->intermediate;
    const struct {
        enum arch_role role;
        struct arch_tensor t;
        int have;
    } all[] = {
        {ARCH_ATTN_NORM, {"input_layernorm.weight", h, 0}, 1},
        {ARCH_Q, {"self_attn.q_proj.weight", q, h}, 1},
        {ARCH_K, {"self_attn.k_proj.weight", kv, h}, 1},
        {ARCH_V, {"self_attn.v_proj.weight", kv, h}, 1},
        {ARCH_O, {"self_attn.o_proj.weight", h, q}, 1},
        {ARCH_Q_BIAS, {"self_attn.q_proj.bias", q, 0}, a->qkv_bias},
        {ARCH_K_BIAS, {"self_attn.k_proj.bias", kv, 0}, a->qkv_bias},
        {ARCH_V_BIAS, {"self_attn.v_proj.bias", kv, 0}, a->qkv_bias},
        {ARCH_O_BIAS, {"self_attn.o_proj.bias", h, 0}, a->o_bias},
        {ARCH_Q_NORM, {"self_attn.q_norm.weight", a->head_dim, 0}, a->qk_norm},
        {ARCH_K_NORM, {"self_attn.k_norm.weight", a->head_dim, 0}, a->qk_norm},
        {ARCH_ATTN_POST, {f->attn_post, h, 0}, a->post_norms},
        {ARCH_MLP_NORM, {f->mlp_norm, h, 0}, 1},
        {ARCH_GATE, {"mlp.gate_proj.weight", m, h}, !a->fused_gate_up},
        {ARCH_UP, {"mlp.up_proj.weight", m, h}, !a->fused_gate_up},
        {ARCH_GATE_UP, {"mlp.gate_up_proj.weight", 2 * m, h}, a->fused_gate_up},
        {ARCH_DOWN, {"mlp.down_proj.weight", h, m}, 1},
        {ARCH_GATE_BIAS, {"mlp.gate_proj.bias", m, 0}, a->mlp_bias},
        {ARCH_UP_BIAS, {"mlp.up_proj.bias", m, 0}, a->mlp_bias},
        {ARCH_DOWN_BIAS, {"mlp.down_proj.bias", h, 0}, a->mlp_bias},
        {ARCH_MLP_POST, {f->mlp_post, h, 0}, a->post_norms},
    };

    memset(t, 0, sizeof *t * ARCH_ROLES);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (all[i].have) {
            t[all[i].role] = all[i].t;
        }
    }
}

/* ---- reading keys ---- */

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

/* A positive number; an absent key gives `def`, or an error when def is below 0. */
static int arch_positive(const json_t *root, const char *key, double def, double *out,
                         struct err *e)
{
    const json_t *v = arch_get(root, key);
    char text[64];

    if (!v) {
        *out = def;
        return def < 0 ? ERR(e, STATUS_FORMAT, "config.json: %s is missing", key) : STATUS_OK;
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

/* ---- rope ---- */

static int arch_rope_kind(const json_t *rope, const char *key, struct arch_rope *r, struct err *e)
{
    static const char *const names[] = {"default", "linear", "dynamic", "llama3", "yarn"};
    static const char *const keys[] = {"rope_type", "type"};
    char full[96];

    for (int k = 0; k < 2; k++) {
        const json_t *v = arch_get(rope, keys[k]);
        const char *name = json_string_value(v);
        if (!v) {
            continue;
        }
        for (int i = 0; name && i < 5; i++) {
            if (strcmp(name, names[i]) == 0) {
                r->kind = (enum arch_rope_kind)i;
                return STATUS_OK;
            }
        }
        snprintf(full, sizeof full, "%s.%s", key, keys[k]);
        return arch_refuse(full, v, "default, linear, dynamic, llama3 or yarn", e);
    }
    return STATUS_OK;
}

/* yarn's factor on cos and sin: given, or by the paper's formula. */
static int arch_yarn_attention(const json_t *rope, struct arch_rope *r, struct err *e)
{
    double m = 0, all = 0, l = r->factor > 1 ? 0.1 * vmath_log(r->factor) : 0;
    int rc;

    if ((rc = arch_positive(rope, "mscale", 0, &m, e)) ||
        (rc = arch_positive(rope, "mscale_all_dim", 0, &all, e))) {
        return rc;
    }
    return arch_positive(rope, "attention_factor",
                         m > 0 && all > 0 ? (m * l + 1) / (all * l + 1) : l + 1,
                         &r->attention_factor, e);
}

/* What a kind reads beside theta. `top` is where older files keep the original length. */
static int arch_rope_kind_keys(const json_t *rope, const json_t *top, struct arch *a,
                               struct arch_rope *r, struct err *e)
{
    const char *original = "original_max_position_embeddings";
    int rc = STATUS_OK, given = arch_get(top, original) != NULL;

    r->original = a->max_positions;
    if (r->kind == ARCH_ROPE_LLAMA3 || r->kind == ARCH_ROPE_YARN) {
        rc = arch_int(given ? top : rope, original, 1, INT_MAX, a->max_positions, &r->original, e);
    }
    if (rc == STATUS_OK) {
        rc =
            arch_positive(rope, "factor",
                          r->kind == ARCH_ROPE_YARN ? (double)a->max_positions / r->original : -1.0,
                          &r->factor, e);
    }
    if (rc == STATUS_OK && r->factor < 1.0) {
        rc = ERR(e, STATUS_FORMAT, "config.json: rope factor %g is below 1", r->factor);
    }
    if (rc == STATUS_OK && r->kind == ARCH_ROPE_LLAMA3 &&
        !(rc = arch_positive(rope, "low_freq_factor", -1.0, &r->low_freq, e)) &&
        !(rc = arch_positive(rope, "high_freq_factor", -1.0, &r->high_freq, e)) &&
        !(r->high_freq > r->low_freq)) {
        rc = ERR(e, STATUS_FORMAT,
                 "config.json: high_freq_factor %g is not above low_freq_factor %g", r->high_freq,
                 r->low_freq);
    }
    if (rc == STATUS_OK && r->kind == ARCH_ROPE_YARN &&
        !(rc = arch_positive(rope, "beta_fast", 32, &r->beta_fast, e)) &&
        !(rc = arch_positive(rope, "beta_slow", 1, &r->beta_slow, e)) &&
        !(rc = arch_bool(rope, "truncate", 1, &r->truncate, e))) {
        rc = arch_yarn_attention(rope, r, e);
    }
    return rc;
}

/* One rope object: its kind, theta and the share of a head that it turns. */
static int arch_rope_object(const json_t *rope, const char *key, const json_t *top,
                            const struct arch_family *f, struct arch *a, struct arch_rope *r,
                            double *partial, struct err *e)
{
    const json_t *v;
    char full[96];
    int rc;

    if (!json_is_object(rope)) {
        return arch_refuse(key, rope, "an object", e);
    }
    if ((rc = arch_rope_kind(rope, key, r, e)) ||
        (rc = arch_positive(rope, "rope_theta", r->theta, &r->theta, e)) ||
        (rc = arch_positive(rope, "partial_rotary_factor", *partial, partial, e))) {
        return rc;
    }
    if (*partial != 1.0 && !arch_on(f, ARCH_PARTIAL)) {
        snprintf(full, sizeof full, "%s.partial_rotary_factor", key);
        return arch_refuse(full, arch_get(rope, "partial_rotary_factor"), "1.0", e);
    }
    if (r->kind != ARCH_ROPE_DEFAULT) {
        return arch_rope_kind_keys(rope, top, a, r, e);
    }
    v = arch_get(rope, "factor");
    if (v && json_number_value(v) != 1.0) {
        snprintf(full, sizeof full, "%s.factor", key);
        return arch_refuse(full, v, "1.0 with the default rope", e);
    }
    return STATUS_OK;
}

/* Families whose sliding layers have a rope of their own nest one object for each. */
static int arch_rope_nested(const json_t *rope, const json_t *root, const struct arch_family *f,
                            struct arch *a, double *partial, struct err *e)
{
    static const char *const names[] = {"full_attention", "sliding_attention"};
    int rc = STATUS_OK, found = 0;

    for (int i = 0; i < 2 && rc == STATUS_OK; i++) {
        const json_t *v = arch_get(rope, names[i]);
        found += v != NULL;
        if (v) {
            rc = arch_rope_object(v, names[i], root, f, a, &a->rope[i], partial, e);
        }
    }
    if (rc == STATUS_OK && !found && json_object_size(rope)) {
        rc = arch_refuse("rope_parameters", rope, "an object for each kind of layer", e);
    }
    return rc;
}

/* transformers 5 keeps rope in rope_parameters, older ones in rope_theta and rope_scaling; there,
 * the scaling of a family with two ropes is that of the full layers. */
static int arch_ropes(const json_t *root, const struct arch_family *f, struct arch *a,
                      struct err *e)
{
    const json_t *scaling = arch_get(root, "rope_scaling"),
                 *params = arch_get(root, "rope_parameters");
    int two = arch_on(f, ARCH_TWO_ROPES), rc;
    double partial = f->partial > 0 ? f->partial : 1.0, dims;
    struct arch_rope *full = &a->rope[ARCH_ATTN_FULL], *local = &a->rope[ARCH_ATTN_SLIDING];

    if ((rc = arch_positive(root, "rope_theta", f->theta > 0 ? f->theta : 10000.0, &full->theta,
                            e)) ||
        (rc = arch_positive(root, "rope_local_base_freq", 10000.0, &local->theta, e)) ||
        (rc = arch_positive(root, "partial_rotary_factor", partial, &partial, e))) {
        return rc;
    }
    if (partial != 1.0 && !arch_on(f, ARCH_PARTIAL)) {
        return arch_refuse("partial_rotary_factor", arch_get(root, "partial_rotary_factor"), "1.0",
                           e);
    }
    if (scaling &&
        (rc = arch_rope_object(scaling, "rope_scaling", root, f, a, full, &partial, e))) {
        return rc;
    }
    if (params) {
        rc = two ? arch_rope_nested(params, root, f, a, &partial, e)
                 : arch_rope_object(params, "rope_parameters", root, f, a, full, &partial, e);
    }
    if (rc == STATUS_OK && !two) {
        *local = *full;
    }
    dims = a->head_dim * partial;
    if (rc == STATUS_OK && (partial > 1.0 || (int)dims < 2 || (int)dims % 2 != 0)) {
        rc = ERR(e, STATUS_FORMAT,
                 "config.json: partial_rotary_factor %g of head_dim %d is no even number of "
                 "dimensions from 2 to all",
                 partial, a->head_dim);
    }
    a->rot = (int)dims;
    return rc;
}

/* ---- layers ---- */

static int arch_row(const json_t *root, const struct arch_family **out, struct arch *a,
                    struct err *e)
{
    const json_t *v = arch_get(root, "model_type");
    const char *name = json_string_value(v);
    const struct arch_family *f = arch_find(name);
    char text[64];

    if (!v) {
        return ERR(e, STATUS_FORMAT, "config.json: model_type is missing");
    }
    if (!f) {
        return arch_refuse("model_type", v,
                           "llama, mistral, qwen2, qwen3, gemma2, gemma3 (text) or glm4", e);
    }
    if (f->attn >= ARCH_ATTN_KINDS || f->mlp != ARCH_MLP_DENSE) {
        return ERR(e, STATUS_UNSUPPORTED,
                   "config.json: model_type %s has %s%s%s, not supported yet", arch_show(v, text),
                   f->attn == ARCH_ATTN_LATENT   ? "latent attention"
                   : f->attn == ARCH_ATTN_LINEAR ? "linear attention"
                                                 : "",
                   f->attn >= ARCH_ATTN_KINDS && f->mlp ? " and " : "",
                   f->mlp ? "mixture-of-experts layers" : "");
    }
    snprintf(a->family, sizeof a->family, "%s", name);
    arch_spelling(a, 0);
    *out = f;
    return STATUS_OK;
}

/* The kind that the family's rule gives layer i. */
static enum arch_attn arch_layer_kind(const struct arch_family *f, const struct arch *a, int i,
                                      int every, int from)
{
    switch (f->slide) {
    case ARCH_SLIDE_ALL: return a->window ? ARCH_ATTN_SLIDING : ARCH_ATTN_FULL;
    case ARCH_SLIDE_LAST: return a->window && i >= from ? ARCH_ATTN_SLIDING : ARCH_ATTN_FULL;
    case ARCH_SLIDE_MOST: return (i + 1) % every ? ARCH_ATTN_SLIDING : ARCH_ATTN_FULL;
    default: return ARCH_ATTN_FULL;
    }
}

/* layer_types lists the kind of each layer; it may only say what the family can do. */
static int arch_layer_types(const json_t *root, const struct arch_family *f, struct arch *a,
                            struct err *e)
{
    const json_t *list = arch_get(root, "layer_types");
    size_t i;
    json_t *v;

    if (!list) {
        return STATUS_OK;
    }
    if (!json_is_array(list)) {
        return arch_refuse("layer_types", list, "a list", e);
    }
    json_array_foreach(list, i, v)
    {
        const char *name = json_string_value(v);
        int slides = name && strcmp(name, "sliding_attention") == 0;
        if (!slides && (!name || strcmp(name, "full_attention") != 0)) {
            return arch_refuse("layer_types", v, "full_attention or sliding_attention", e);
        }
        if ((int)i >= a->n_layers) {
            break;
        }
        if (slides != (a->attn[i] == ARCH_ATTN_SLIDING) &&
            (f->slide == ARCH_SLIDE_NEVER || f->slide == ARCH_SLIDE_ALL)) {
            return arch_refuse("layer_types", v,
                               f->slide == ARCH_SLIDE_NEVER ? "\"full_attention\""
                                                            : "what sliding_window says",
                               e);
        }
        a->attn[i] = slides ? ARCH_ATTN_SLIDING : ARCH_ATTN_FULL;
    }
    return STATUS_OK;
}

static int arch_layers(const json_t *root, const struct arch_family *f, struct arch *a,
                       struct err *e)
{
    const json_t *v = json_object_get(root, "sliding_window");
    int on = 1, every = 1, from = 0, slides = 0, rc = STATUS_OK;

    if (f->slide == ARCH_SLIDE_LAST) {
        rc = arch_bool(root, "use_sliding_window", 0, &on, e);
    } else {
        rc = arch_must_be_false(root, "use_sliding_window", e);
    }
    if (rc == STATUS_OK && f->slide != ARCH_SLIDE_NEVER && on && !json_is_null(v)) {
        rc = arch_int(root, "sliding_window", 1, INT_MAX, f->window, &a->window, e);
    }
    if (rc ||
        (rc = arch_int(root, "sliding_window_pattern", 1, INT_MAX,
                       f->slide_every ? f->slide_every : 1, &every, e)) ||
        (rc = arch_int(root, "max_window_layers", 0, INT_MAX, 28, &from, e))) {
        return rc;
    }
    for (int i = 0; i < a->n_layers; i++) {
        a->attn[i] = (uint8_t)arch_layer_kind(f, a, i, every, from);
    }
    rc = arch_layer_types(root, f, a, e);
    for (int i = 0; i < a->n_layers; i++) {
        slides |= a->attn[i] == ARCH_ATTN_SLIDING;
    }
    if (rc == STATUS_OK && slides && !a->window) {
        rc = ERR(e, STATUS_FORMAT, "config.json: layers slide, but sliding_window is not set");
    }
    return rc;
}

/* ---- switches ---- */

static int arch_biases(const json_t *root, const struct arch_family *f, struct arch *a,
                       struct err *e)
{
    int on = f->bias == ARCH_BIAS_KEY_QKV, rc = STATUS_OK;

    if (f->bias == ARCH_BIAS_NEVER) {
        rc = arch_must_be_false(root, "attention_bias", e);
    } else {
        rc = arch_bool(root, "attention_bias", on, &on, e);
    }
    a->qkv_bias = f->bias == ARCH_BIAS_QKV || (f->bias != ARCH_BIAS_NEVER && on);
    a->o_bias = f->bias == ARCH_BIAS_KEY_QKVO && on;
    if (rc != STATUS_OK) {
        return rc;
    }
    return arch_on(f, ARCH_MLP_BIAS) ? arch_bool(root, "mlp_bias", 0, &a->mlp_bias, e)
                                     : arch_must_be_false(root, "mlp_bias", e);
}

static int arch_softcap(const json_t *root, const char *key, int known, double def, float *out,
                        struct err *e)
{
    double cap = 0;
    int rc;

    if (!known) {
        return arch_get(root, key) ? arch_refuse(key, arch_get(root, key), "null", e) : STATUS_OK;
    }
    if (json_is_null(json_object_get(root, key))) { /* null switches off what is on by default */
        return STATUS_OK;
    }
    rc = arch_positive(root, key, def, &cap, e);
    *out = (float)cap;
    return rc;
}

static int arch_switches(const json_t *root, const struct arch_family *f, struct arch *a,
                         struct err *e)
{
    const char *key = arch_on(f, ARCH_GELU) ? "hidden_activation" : "hidden_act";
    const char *want = arch_on(f, ARCH_GELU) ? "gelu_pytorch_tanh" : "silu";
    const json_t *v = arch_get(root, key);
    double dim = a->head_dim;
    int rc;

    if (v && (!json_is_string(v) || strcmp(json_string_value(v), want) != 0)) {
        return arch_refuse(key, v, want, e);
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
    a->act = arch_on(f, ARCH_GELU) ? ACT_GELU_TANH : ACT_SILU;
    a->norm_plus_one = arch_on(f, ARCH_PLUS_ONE);
    a->qk_norm = arch_on(f, ARCH_QK_NORM);
    a->post_norms = f->attn_post != NULL;
    a->fused_gate_up = arch_on(f, ARCH_FUSED);
    a->embed_scale = arch_on(f, ARCH_SCALED_EMBED);
    a->interleaved = arch_on(f, ARCH_INTERLEAVED);
    if ((rc = arch_must_be_false(root, "use_bidirectional_attention", e)) ||
        (rc = arch_biases(root, f, a, e)) ||
        (rc = arch_softcap(root, "attn_logit_softcapping", arch_on(f, ARCH_ATTN_SOFTCAP),
                           f->attn_softcap, &a->attn_softcap, e)) ||
        (rc = arch_softcap(root, "final_logit_softcapping", arch_on(f, ARCH_FINAL_SOFTCAP),
                           f->final_softcap, &a->final_softcap, e)) ||
        (rc = arch_on(f, ARCH_QUERY_SCALAR)
                  ? arch_positive(root, "query_pre_attn_scalar", 256, &dim, e)
                  : STATUS_OK)) {
        return rc;
    }
    a->score_dim = (float)dim;
    return STATUS_OK;
}

/* ---- sizes, tokens ---- */

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

static int arch_sizes(const json_t *root, const struct arch_family *f, struct arch *a,
                      struct err *e)
{
    int rc, def;
    double eps = 0;

    if ((rc = arch_int(root, "num_hidden_layers", 1, ARCH_MAX_LAYERS, 0, &a->n_layers, e)) ||
        (rc = arch_int(root, "hidden_size", 1, ARCH_MAX_DIM, 0, &a->hidden, e)) ||
        (rc = arch_int(root, "num_attention_heads", 1, 1 << 16, f->heads, &a->n_heads, e)) ||
        (rc = arch_int(root, "num_key_value_heads", 1, 1 << 16,
                       f->kv_heads ? f->kv_heads : a->n_heads, &a->n_kv_heads, e)) ||
        (rc = arch_int(root, "intermediate_size", 1, ARCH_MAX_DIM, 0, &a->intermediate, e)) ||
        (rc = arch_int(root, "vocab_size", 1, ARCH_MAX_DIM, f->vocab, &a->vocab, e)) ||
        (rc = arch_int(root, "max_position_embeddings", 1, INT_MAX, f->positions, &a->max_positions,
                       e)) ||
        (rc = arch_positive(root, "rms_norm_eps", f->rms_eps > 0 ? f->rms_eps : 1e-6, &eps, e))) {
        return rc;
    }
    a->rms_eps = (float)eps;
    def = f->head_dim ? f->head_dim : a->hidden / a->n_heads;
    if (!arch_get(root, "head_dim") && !f->head_dim && a->hidden % a->n_heads != 0) {
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

/* The object that has the text model's keys. */
static int arch_section(const json_t *root, const struct arch_family *f, const json_t **out,
                        struct err *e)
{
    *out = f->section ? arch_get(root, f->section) : root;
    if (f->section && !json_is_object(*out)) {
        return ERR(e, STATUS_FORMAT, "config.json: %s is missing or no object", f->section);
    }
    return STATUS_OK;
}

/* A key of the text model, or where it has none, of the whole. */
static const json_t *arch_either(const json_t *text, const json_t *root, const char *key)
{
    return arch_get(text, key) ? text : root;
}

int arch_parse(const char *config_json, struct arch *a, struct err *e)
{
    const struct arch_family *f = NULL;
    const json_t *text = NULL, *eos;
    struct arch t;
    json_t *root = NULL;
    int rc = arch_load(config_json, "config.json", &root, e);

    memset(&t, 0, sizeof t);
    if (rc != STATUS_OK) {
        return rc;
    }
    if ((rc = arch_row(root, &f, &t, e)) || (rc = arch_section(root, f, &text, e)) ||
        (rc = arch_sizes(text, f, &t, e)) || (rc = arch_switches(text, f, &t, e)) ||
        (rc = arch_layers(text, f, &t, e)) || (rc = arch_ropes(text, f, &t, e)) ||
        (rc = arch_bool(arch_either(text, root, "tie_word_embeddings"), "tie_word_embeddings",
                        arch_on(f, ARCH_TIED), &t.tie_embeddings, e)) ||
        (rc = arch_bos(arch_either(text, root, "bos_token_id"), &t, e))) {
        goto out;
    }
    /* a whole model's own list wins over its text part's */
    eos = arch_get(arch_either(root, text, "eos_token_id"), "eos_token_id");
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
