/* Owns the mapping from GGUF's names and hyper-parameters to Hugging Face's: config.json follows
 * what transformers makes of the same keys. The tokenizer's texts are model/gguf_vocab.c's. */
#include "model/gguf_text.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/status.h"
#include "model/gguf.h"
#include "model/gguf_vocab.h"
#include "model/jtext.h"

#define GGUF_TEXT_MAX_TOKENIZER (256u << 20)
#define GGUF_TEXT_MAX_SMALL     (4u << 20)

/* ---- tensor names ---- */

int gguf_text_name(const char *name, char *out, int out_size, struct err *e)
{
    static const char *const whole[][2] = {
        {"token_embd.weight", "model.embed_tokens.weight"},
        {"output_norm.weight", "model.norm.weight"},
        {"output.weight", "lm_head.weight"},
    };
    static const char *const layer[][2] = {
        {"attn_norm.weight", "input_layernorm.weight"},
        {"ffn_norm.weight", "post_attention_layernorm.weight"},
        {"attn_q.weight", "self_attn.q_proj.weight"},
        {"attn_k.weight", "self_attn.k_proj.weight"},
        {"attn_v.weight", "self_attn.v_proj.weight"},
        {"attn_output.weight", "self_attn.o_proj.weight"},
        {"attn_q.bias", "self_attn.q_proj.bias"},
        {"attn_k.bias", "self_attn.k_proj.bias"},
        {"attn_v.bias", "self_attn.v_proj.bias"},
        {"attn_q_norm.weight", "self_attn.q_norm.weight"},
        {"attn_k_norm.weight", "self_attn.k_norm.weight"},
        {"ffn_gate.weight", "mlp.gate_proj.weight"},
        {"ffn_up.weight", "mlp.up_proj.weight"},
        {"ffn_down.weight", "mlp.down_proj.weight"},
    };
    int n = 0, used = 0;

    for (size_t i = 0; i < sizeof whole / sizeof whole[0]; i++) {
        if (strcmp(name, whole[i][0]) == 0) {
            snprintf(out, (size_t)out_size, "%s", whole[i][1]);
            return STATUS_OK;
        }
    }
    if (sscanf(name, "blk.%5d.%n", &n, &used) == 1 && used && n >= 0) {
        for (size_t i = 0; i < sizeof layer / sizeof layer[0]; i++) {
            if (strcmp(name + used, layer[i][0]) == 0) {
                snprintf(out, (size_t)out_size, "model.layers.%d.%s", n, layer[i][1]);
                return STATUS_OK;
            }
        }
    }
    if (strcmp(name, "rope_freqs.weight") == 0) {
        return ERR(e, STATUS_UNSUPPORTED,
                   "tensor rope_freqs.weight: the model scales its rope, which is not supported");
    }
    return ERR(e, STATUS_UNSUPPORTED, "tensor %.200s belongs to no supported dense layer", name);
}

/* ---- reading keys ---- */

struct gguf_text_ctx {
    const struct gguf *g;
    char arch[16];
    struct err *e;
};

/* The key "<arch>.<tail>", or NULL. */
static const struct gguf_kv *gguf_text_key(const struct gguf_text_ctx *c, const char *tail,
                                           char full[96])
{
    snprintf(full, 96, "%s.%s", c->arch, tail);
    return gguf_kv(c->g, full);
}

static int gguf_text_is_int(const struct gguf_kv *kv)
{
    return kv->type != GGUF_F32 && kv->type != GGUF_F64 && kv->type != GGUF_STRING &&
           kv->type != GGUF_ARRAY && kv->type != GGUF_BOOL;
}

/* An integer from 1; absent gives def, or an error when def is 0. */
static int gguf_text_int(const struct gguf_text_ctx *c, const char *tail, int64_t def, int64_t *out)
{
    char full[96];
    const struct gguf_kv *kv = gguf_text_key(c, tail, full);

    if (!kv) {
        *out = def;
        return def ? STATUS_OK
                   : ERR(c->e, STATUS_FORMAT, "%s: %s is missing", gguf_path(c->g), full);
    }
    if (!gguf_text_is_int(kv)) {
        return ERR(c->e, STATUS_UNSUPPORTED, "%s: %s is not one integer", gguf_path(c->g), full);
    }
    if (kv->i < 1 || kv->i > INT_MAX) {
        return ERR(c->e, STATUS_FORMAT, "%s: %s is %lld", gguf_path(c->g), full, (long long)kv->i);
    }
    *out = kv->i;
    return STATUS_OK;
}

static int gguf_text_real(const struct gguf_text_ctx *c, const char *tail, double def, double *out)
{
    char full[96];
    const struct gguf_kv *kv = gguf_text_key(c, tail, full);

    *out = def;
    if (!kv) {
        return STATUS_OK;
    }
    if ((kv->type != GGUF_F32 && kv->type != GGUF_F64) || !isfinite(kv->f) || !(kv->f > 0)) {
        return ERR(c->e, STATUS_FORMAT, "%s: %s is not a positive number", gguf_path(c->g), full);
    }
    *out = kv->f;
    return STATUS_OK;
}

/* ---- config.json ---- */

/* Keys whose presence means a computation we do not have. */
static int gguf_text_refusals(const struct gguf_text_ctx *c)
{
    static const char *const zero[] = {"expert_count", "attention.sliding_window",
                                       "rope.scaling.orig_ctx_len", NULL};
    const struct gguf_kv *kv;
    char full[96];

    kv = gguf_text_key(c, "rope.scaling.type", full);
    if (kv && (kv->type != GGUF_STRING || kv->str.n != 4 || memcmp(kv->str.s, "none", 4) != 0)) {
        return ERR(c->e, STATUS_UNSUPPORTED, "%s: %s is \"%.*s\"; only unscaled rope is supported",
                   gguf_path(c->g), full, (int)(kv->str.n < 32 ? kv->str.n : 32),
                   kv->type == GGUF_STRING ? kv->str.s : "");
    }
    kv = gguf_text_key(c, "rope.scale_linear", full);
    if (kv && kv->f != 1.0) {
        return ERR(c->e, STATUS_UNSUPPORTED, "%s: %s is %g; only unscaled rope is supported",
                   gguf_path(c->g), full, kv->f);
    }
    for (int i = 0; zero[i]; i++) {
        kv = gguf_text_key(c, zero[i], full);
        if (kv && (!gguf_text_is_int(kv) || kv->i != 0)) {
            return ERR(c->e, STATUS_UNSUPPORTED, "%s: %s is %lld; only 0 is supported",
                       gguf_path(c->g), full, (long long)kv->i);
        }
    }
    return STATUS_OK;
}

static void gguf_text_id(struct buf *b, const char *key, int64_t id)
{
    if (id >= 0) {
        buf_printf(b, "  \"%s\": %lld,\n", key, (long long)id);
    }
}

static int gguf_text_head_dim(const struct gguf_text_ctx *c, int64_t hidden, int64_t heads,
                              int64_t *out)
{
    int64_t key, value, rope;
    int rc;

    if ((rc = gguf_text_int(c, "attention.key_length", hidden / heads > 0 ? hidden / heads : 1,
                            &key)) ||
        (rc = gguf_text_int(c, "attention.value_length", key, &value)) ||
        (rc = gguf_text_int(c, "rope.dimension_count", key, &rope))) {
        return rc;
    }
    if (key != value || key != rope) {
        return ERR(c->e, STATUS_UNSUPPORTED,
                   "%s: key length %lld, value length %lld and rope dimensions %lld differ",
                   gguf_path(c->g), (long long)key, (long long)value, (long long)rope);
    }
    *out = key;
    return STATUS_OK;
}

static int gguf_text_config(const struct gguf_text_ctx *c, const struct gguf_vocab *v,
                            int64_t vocab, struct buf *b)
{
    int64_t layers, hidden, heads, kv_heads, inter, ctx, head_dim = 0;
    double eps, theta;
    char class_name[32];
    int rc;

    if ((rc = gguf_text_refusals(c)) || (rc = gguf_text_int(c, "block_count", 0, &layers)) ||
        (rc = gguf_text_int(c, "embedding_length", 0, &hidden)) ||
        (rc = gguf_text_int(c, "feed_forward_length", 0, &inter)) ||
        (rc = gguf_text_int(c, "context_length", 0, &ctx)) ||
        (rc = gguf_text_int(c, "attention.head_count", 0, &heads)) ||
        (rc = gguf_text_int(c, "attention.head_count_kv", heads, &kv_heads)) ||
        (rc = gguf_text_head_dim(c, hidden, heads, &head_dim)) ||
        (rc = gguf_text_real(c, "attention.layer_norm_rms_epsilon", 1e-6, &eps)) ||
        (rc = gguf_text_real(c, "rope.freq_base", 10000.0, &theta))) {
        return rc;
    }
    snprintf(class_name, sizeof class_name, "%c%sForCausalLM", c->arch[0] - 'a' + 'A', c->arch + 1);
    buf_printf(b, "{\n  \"architectures\": [\n    \"%s\"\n  ],\n", class_name);
    buf_str(b, "  \"attention_bias\": false,\n  \"attention_dropout\": 0.0,\n");
    gguf_text_id(b, "bos_token_id", v->bos);
    buf_str(b, "  \"dtype\": \"bfloat16\",\n");
    gguf_text_id(b, "eos_token_id", v->eos);
    /* transformers' Qwen2 knows the key but does not write it where it says nothing new. */
    if (strcmp(c->arch, "qwen2") != 0 || head_dim * heads != hidden) {
        buf_printf(b, "  \"head_dim\": %lld,\n", (long long)head_dim);
    }
    buf_str(b, "  \"hidden_act\": \"silu\",\n");
    buf_printf(b, "  \"hidden_size\": %lld,\n  \"initializer_range\": 0.02,\n", (long long)hidden);
    buf_printf(b, "  \"intermediate_size\": %lld,\n", (long long)inter);
    buf_printf(b, "  \"max_position_embeddings\": %lld,\n", (long long)ctx);
    if (strcmp(c->arch, "llama") == 0) {
        buf_str(b, "  \"mlp_bias\": false,\n");
    }
    buf_printf(b, "  \"model_type\": \"%s\",\n", c->arch);
    buf_printf(b, "  \"num_attention_heads\": %lld,\n", (long long)heads);
    buf_printf(b, "  \"num_hidden_layers\": %lld,\n", (long long)layers);
    buf_printf(b, "  \"num_key_value_heads\": %lld,\n", (long long)kv_heads);
    gguf_text_id(b, "pad_token_id", v->pad);
    buf_str(b, "  \"rms_norm_eps\": ");
    jtext_real(b, eps);
    /* Both spellings: readers before transformers 5 know only the second. */
    buf_str(b, ",\n  \"rope_parameters\": {\n    \"rope_theta\": ");
    jtext_real(b, theta);
    buf_str(b, ",\n    \"rope_type\": \"default\"\n  },\n  \"rope_theta\": ");
    jtext_real(b, theta);
    buf_printf(b, ",\n  \"tie_word_embeddings\": %s,\n",
               gguf_find(c->g, "output.weight") ? "false" : "true");
    buf_str(b, "  \"use_cache\": true,\n");
    if (strcmp(c->arch, "llama") != 0) {
        buf_str(b, "  \"use_sliding_window\": false,\n");
    }
    buf_printf(b, "  \"vocab_size\": %lld\n}\n", (long long)vocab);
    return buf_status(b); /* a page of numbers: it fits */
}

/* eot, where the file has one, ends a turn as eos does. */
static int gguf_text_generation(const struct gguf_vocab *v, struct buf *b)
{
    buf_str(b, "{\n  \"_from_model_config\": true,\n");
    gguf_text_id(b, "bos_token_id", v->bos);
    if (v->eos >= 0 && v->eot >= 0 && v->eot != v->eos) {
        buf_printf(b, "  \"eos_token_id\": [\n    %lld,\n    %lld\n  ],\n", (long long)v->eos,
                   (long long)v->eot);
    } else {
        gguf_text_id(b, "eos_token_id", v->eos >= 0 ? v->eos : v->eot);
    }
    gguf_text_id(b, "pad_token_id", v->pad);
    buf_str(b, "  \"use_cache\": true\n}\n");
    return buf_status(b);
}

/* ---- all of it ---- */

static int gguf_text_arch(struct gguf_text_ctx *c)
{
    static const char *const known[] = {"llama", "qwen2", "qwen3"};
    const struct gguf_kv *kv = gguf_kv(c->g, "general.architecture");

    if (!kv || kv->type != GGUF_STRING) {
        return ERR(c->e, STATUS_FORMAT, "%s: general.architecture is missing", gguf_path(c->g));
    }
    for (int i = 0; i < 3; i++) {
        if (kv->str.n == 5 && memcmp(kv->str.s, known[i], 5) == 0) {
            memcpy(c->arch, known[i], 6);
            return STATUS_OK;
        }
    }
    return ERR(c->e, STATUS_UNSUPPORTED,
               "%s: general.architecture is %.*s; only llama, qwen2 and qwen3 are supported",
               gguf_path(c->g), (int)(kv->str.n < 32 ? kv->str.n : 32), kv->str.s);
}

static int gguf_text_chat(const struct gguf *g, char **out, struct err *e)
{
    const struct gguf_kv *kv = gguf_kv(g, "tokenizer.chat_template");

    *out = NULL;
    if (!kv) {
        return STATUS_OK;
    }
    if (kv->type != GGUF_STRING || kv->str.n > GGUF_TEXT_MAX_SMALL / 8 ||
        memchr(kv->str.s, 0, kv->str.n) || !jtext_utf8(kv->str.s, kv->str.n)) {
        return ERR(e, STATUS_FORMAT, "%s: tokenizer.chat_template is not a text", gguf_path(g));
    }
    *out = mem_strndup(kv->str.s, kv->str.n);
    return STATUS_OK;
}

/* Config, generation config, tokenizer, tokenizer config, in this order. */
static int gguf_text_fill(const struct gguf_text_ctx *c, const struct gguf_vocab *v, int64_t rows,
                          const char *chat_template, struct buf b[4])
{
    int64_t ctx = 0;
    int rc;

    if ((rc = gguf_text_config(c, v, rows, &b[0])) || (rc = gguf_text_generation(v, &b[1])) ||
        (rc = gguf_text_int(c, "context_length", 0, &ctx)) ||
        (rc = gguf_vocab_tokenizer(v, &b[2], c->e))) {
        return rc;
    }
    return gguf_vocab_config(v, ctx, chat_template, &b[3], c->e);
}

int gguf_text_make(const struct gguf *g, struct gguf_text *t, struct err *e)
{
    struct gguf_text_ctx c = {g, "", e};
    const struct gguf_tensor *embd = gguf_find(g, "token_embd.weight");
    struct gguf_vocab v;
    struct buf b[4];
    int rc = gguf_text_arch(&c);

    memset(t, 0, sizeof *t);
    if (rc != STATUS_OK) {
        return rc;
    }
    if (!embd || embd->ndim != 2 || embd->dim[1] > INT_MAX) {
        return ERR(e, STATUS_FORMAT, "%s: tensor token_embd.weight is missing", gguf_path(g));
    }
    rc = gguf_vocab_init(&v, g, embd->dim[1], e);
    if (rc != STATUS_OK) {
        return rc;
    }
    for (int i = 0; i < 4; i++) {
        buf_init(&b[i], i == 2 ? GGUF_TEXT_MAX_TOKENIZER : GGUF_TEXT_MAX_SMALL);
    }
    rc = gguf_text_chat(g, &t->chat_template, e);
    if (rc == STATUS_OK) {
        rc = gguf_text_fill(&c, &v, embd->dim[1], t->chat_template, b);
    }
    if (rc == STATUS_OK) {
        t->config = buf_take(&b[0], NULL);
        t->generation_config = buf_take(&b[1], NULL);
        t->tokenizer = buf_take(&b[2], NULL);
        t->tokenizer_config = buf_take(&b[3], NULL);
    }
    for (int i = 0; i < 4; i++) {
        buf_fini(&b[i]);
    }
    gguf_vocab_fini(&v);
    if (rc != STATUS_OK) {
        gguf_text_fini(t);
    }
    return rc;
}

void gguf_text_fini(struct gguf_text *t)
{
    mem_free(t->config);
    mem_free(t->generation_config);
    mem_free(t->tokenizer);
    mem_free(t->tokenizer_config);
    mem_free(t->chat_template);
    memset(t, 0, sizeof *t);
}
