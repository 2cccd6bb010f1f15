/* Owns the making of tokenizer.json from GGUF metadata. The structure (normalizer, pre-tokenizer,
 * post-processor, decoder) is the published one of each pre-tokenizer the file can name, because
 * the merges were learned under it. */
#include "model/gguf_vocab.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/status.h"
#include "model/jtext.h"

/* ggml's token types: found in text as a whole are the control tokens and the user-defined ones. */
#define GGUF_VOCAB_NORMAL    1
#define GGUF_VOCAB_CONTROL   3
#define GGUF_VOCAB_USER      4
#define GGUF_VOCAB_MAX_TOKEN 65536

/* The three switches of a ByteLevel step. */
#define GGUF_VOCAB_PREFIX 1 /* add_prefix_space */
#define GGUF_VOCAB_TRIM   2 /* trim_offsets */
#define GGUF_VOCAB_REGEX  4 /* use_regex */
#define GGUF_VOCAB_ABSENT (-1)

struct gguf_vocab_pre {
    const char *names[4]; /* values of tokenizer.ggml.pre */
    const char *normalizer;
    int digits;        /* 1: single digits are split off first */
    const char *split; /* regex, or NULL for ByteLevel's own */
    int byte_level, post, decoder;
    int ignore_merges;
    int bos; /* 1: bos before a text unless the file says otherwise */
};

static const struct gguf_vocab_pre gguf_vocab_pres[] = {
    {{"smollm"},
     NULL,
     1,
     NULL,
     GGUF_VOCAB_TRIM | GGUF_VOCAB_REGEX,
     GGUF_VOCAB_ABSENT,
     GGUF_VOCAB_PREFIX | GGUF_VOCAB_TRIM | GGUF_VOCAB_REGEX,
     0,
     0},
    {{"qwen2", "deepseek-r1-qwen"},
     "NFC",
     0,
     "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
     "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     0,
     0,
     0,
     0,
     0},
    {{"llama-bpe", "llama3", "llama-v3"},
     NULL,
     0,
     "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"
     "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     GGUF_VOCAB_TRIM,
     GGUF_VOCAB_PREFIX | GGUF_VOCAB_REGEX,
     GGUF_VOCAB_PREFIX | GGUF_VOCAB_TRIM | GGUF_VOCAB_REGEX,
     1,
     1},
    {{"gpt-2"},
     NULL,
     0,
     NULL,
     GGUF_VOCAB_TRIM | GGUF_VOCAB_REGEX,
     GGUF_VOCAB_PREFIX | GGUF_VOCAB_REGEX,
     GGUF_VOCAB_PREFIX | GGUF_VOCAB_TRIM | GGUF_VOCAB_REGEX,
     0,
     0},
};

/* ---- reading ---- */

static int gguf_vocab_find_pre(struct gguf_vocab *v, struct err *e)
{
    const struct gguf_kv *model = gguf_kv(v->g, "tokenizer.ggml.model");
    const struct gguf_kv *pre = gguf_kv(v->g, "tokenizer.ggml.pre");

    if (!model || model->type != GGUF_STRING || !pre || pre->type != GGUF_STRING) {
        return ERR(e, STATUS_UNSUPPORTED,
                   "%s: %s is missing, so how text is split is not known; give the Hugging Face "
                   "folder of this model",
                   gguf_path(v->g), model ? "tokenizer.ggml.pre" : "tokenizer.ggml.model");
    }
    if (model->str.n != 4 || memcmp(model->str.s, "gpt2", 4) != 0) {
        return ERR(e, STATUS_UNSUPPORTED,
                   "%s: tokenizer.ggml.model is %.*s; only gpt2 (byte-level bpe) is supported",
                   gguf_path(v->g), (int)(model->str.n < 32 ? model->str.n : 32), model->str.s);
    }
    for (size_t i = 0; i < sizeof gguf_vocab_pres / sizeof gguf_vocab_pres[0]; i++) {
        for (int k = 0; k < 4 && gguf_vocab_pres[i].names[k]; k++) {
            const char *name = gguf_vocab_pres[i].names[k];
            if (pre->str.n == strlen(name) && memcmp(pre->str.s, name, pre->str.n) == 0) {
                v->pre = &gguf_vocab_pres[i];
                return STATUS_OK;
            }
        }
    }
    return ERR(e, STATUS_UNSUPPORTED,
               "%s: tokenizer.ggml.pre is %.*s; only smollm, qwen2, llama-bpe and gpt-2 are "
               "supported",
               gguf_path(v->g), (int)(pre->str.n < 32 ? pre->str.n : 32), pre->str.s);
}

static int gguf_vocab_lists(struct gguf_vocab *v, int64_t rows, struct err *e)
{
    const uint8_t *at;

    v->tokens = gguf_kv(v->g, "tokenizer.ggml.tokens");
    v->types = gguf_kv(v->g, "tokenizer.ggml.token_type");
    v->merges = gguf_kv(v->g, "tokenizer.ggml.merges");
    if (!v->tokens || v->tokens->type != GGUF_ARRAY || v->tokens->elem != GGUF_STRING ||
        v->tokens->count == 0 || v->tokens->count > (uint64_t)rows) {
        return ERR(e, STATUS_FORMAT,
                   "%s: tokenizer.ggml.tokens is not a list of 1 to %lld strings (the rows of the "
                   "embedding)",
                   gguf_path(v->g), (long long)rows);
    }
    if (!v->merges || v->merges->type != GGUF_ARRAY || v->merges->elem != GGUF_STRING) {
        return ERR(e, STATUS_FORMAT, "%s: tokenizer.ggml.merges is not a list of strings",
                   gguf_path(v->g));
    }
    if (v->types && (v->types->type != GGUF_ARRAY || v->types->elem != GGUF_I32 ||
                     v->types->count != v->tokens->count)) {
        return ERR(e, STATUS_FORMAT, "%s: tokenizer.ggml.token_type does not fit the tokens",
                   gguf_path(v->g));
    }
    /* Each string takes 8 bytes and more of the file, so its size bounds this. */
    v->token = mem_alloc(v->tokens->count * sizeof *v->token);
    at = v->tokens->data;
    for (uint64_t i = 0; i < v->tokens->count; i++) {
        v->token[i] = gguf_next_string(&at);
        if (v->token[i].n > GGUF_VOCAB_MAX_TOKEN || memchr(v->token[i].s, 0, v->token[i].n) ||
            !jtext_utf8(v->token[i].s, v->token[i].n)) {
            return ERR(e, STATUS_FORMAT, "%s: token %llu is not a utf-8 text", gguf_path(v->g),
                       (unsigned long long)i);
        }
    }
    return STATUS_OK;
}

static int gguf_vocab_ids(struct gguf_vocab *v, struct err *e)
{
    static const char *const keys[] = {
        "tokenizer.ggml.bos_token_id",     "tokenizer.ggml.eos_token_id",
        "tokenizer.ggml.eot_token_id",     "tokenizer.ggml.padding_token_id",
        "tokenizer.ggml.unknown_token_id",
    };
    int64_t *ids[] = {&v->bos, &v->eos, &v->eot, &v->pad, &v->unk};
    const struct gguf_kv *kv;

    for (int i = 0; i < 5; i++) {
        *ids[i] = -1;
        kv = gguf_kv(v->g, keys[i]);
        if (kv && (kv->type == GGUF_STRING || kv->type == GGUF_ARRAY || kv->type == GGUF_F32 ||
                   kv->type == GGUF_F64 || kv->i < 0 || (uint64_t)kv->i >= v->tokens->count)) {
            return ERR(e, STATUS_FORMAT, "%s: %s is not a token id below %llu", gguf_path(v->g),
                       keys[i], (unsigned long long)v->tokens->count);
        }
        if (kv) {
            *ids[i] = kv->i;
        }
    }
    kv = gguf_kv(v->g, "tokenizer.ggml.add_bos_token");
    v->add_bos = (kv && kv->type == GGUF_BOOL ? kv->i != 0 : v->pre->bos) && v->bos >= 0;
    return STATUS_OK;
}

int gguf_vocab_init(struct gguf_vocab *v, const struct gguf *g, int64_t rows, struct err *e)
{
    int rc;

    memset(v, 0, sizeof *v);
    v->g = g;
    if ((rc = gguf_vocab_find_pre(v, e)) || (rc = gguf_vocab_lists(v, rows, e)) ||
        (rc = gguf_vocab_ids(v, e))) {
        gguf_vocab_fini(v);
    }
    return rc;
}

void gguf_vocab_fini(struct gguf_vocab *v)
{
    mem_free(v->token);
    memset(v, 0, sizeof *v);
}

/* ---- the byte alphabet ---- */

/* In a byte-level vocabulary each byte is one character: itself where it prints, else one from
 * U+0100 on. Fills the character of every byte. */
static void gguf_vocab_alphabet(int of_byte[256])
{
    int n = 0;
    for (int b = 0; b < 256; b++) {
        int prints = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        of_byte[b] = prints ? b : 0x100 + n++;
    }
}

/* 1 when every character of the UTF-8 text is one that stands for a byte. */
static int gguf_vocab_is_spelled(struct gguf_str t)
{
    for (size_t i = 0; i < t.n; i++) {
        unsigned char c = (unsigned char)t.s[i];
        unsigned code;
        if (c >= 0x21 && c <= 0x7e) {
            continue;
        }
        if (c < 0xc2 || c > 0xc5) {
            return 0;
        }
        code = (c & 0x1fu) << 6 | ((unsigned char)t.s[++i] & 0x3fu);
        if (code < 0xa1 || code == 0xad || code > 0x143) {
            return 0;
        }
    }
    return 1;
}

static void gguf_vocab_spell(struct buf *b, const int of_byte[256], struct gguf_str t)
{
    for (size_t i = 0; i < t.n; i++) {
        int c = of_byte[(unsigned char)t.s[i]];
        if (c < 0x80) {
            buf_char(b, (char)c);
        } else {
            buf_char(b, (char)(0xc0 | c >> 6));
            buf_char(b, (char)(0x80 | (c & 0x3f)));
        }
    }
}

/* ---- writing tokenizer.json ---- */

static int gguf_vocab_type(const struct gguf_vocab *v, uint64_t id)
{
    return v->types ? (int)gguf_array_int(v->types, id) : GGUF_VOCAB_NORMAL;
}

static void gguf_vocab_token(const struct gguf_vocab *v, int64_t id, struct buf *b)
{
    jtext_string(b, v->token[id].s, v->token[id].n);
}

static void gguf_vocab_added(const struct gguf_vocab *v, struct buf *b)
{
    const char *comma = "";

    buf_str(b, "\"added_tokens\":[");
    for (uint64_t i = 0; i < v->tokens->count; i++) {
        int type = gguf_vocab_type(v, i);
        if ((type != GGUF_VOCAB_CONTROL && type != GGUF_VOCAB_USER) || v->token[i].n == 0) {
            continue;
        }
        buf_printf(b, "%s{\"id\":%llu,\"content\":", comma, (unsigned long long)i);
        gguf_vocab_token(v, (int64_t)i, b);
        buf_printf(b,
                   ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                   "\"normalized\":false,\"special\":%s}",
                   type == GGUF_VOCAB_CONTROL ? "true" : "false");
        comma = ",";
    }
    buf_char(b, ']');
}

static void gguf_vocab_byte_level(struct buf *b, int flags)
{
    buf_printf(b,
               "{\"type\":\"ByteLevel\",\"add_prefix_space\":%s,\"trim_offsets\":%s,"
               "\"use_regex\":%s}",
               flags & GGUF_VOCAB_PREFIX ? "true" : "false",
               flags & GGUF_VOCAB_TRIM ? "true" : "false",
               flags & GGUF_VOCAB_REGEX ? "true" : "false");
}

static void gguf_vocab_pre_tokenizer(const struct gguf_vocab_pre *p, struct buf *b)
{
    int steps = p->digits || p->split;

    buf_str(b, ",\"pre_tokenizer\":");
    if (steps) {
        buf_str(b, "{\"type\":\"Sequence\",\"pretokenizers\":[");
    }
    if (p->digits) {
        buf_str(b, "{\"type\":\"Digits\",\"individual_digits\":true},");
    }
    if (p->split) {
        buf_str(b, "{\"type\":\"Split\",\"pattern\":{\"Regex\":");
        jtext_string(b, p->split, strlen(p->split));
        buf_str(b, "},\"behavior\":\"Isolated\",\"invert\":false},");
    }
    gguf_vocab_byte_level(b, p->byte_level);
    if (steps) {
        buf_str(b, "]}");
    }
}

/* bos before each sequence, in the form of the tokenizers library. */
static void gguf_vocab_template(const struct gguf_vocab *v, struct buf *b)
{
    static const char *const parts[] = {
        "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":",
        (",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":["
         "{\"SpecialToken\":{\"id\":"),
        ",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"SpecialToken\":{\"id\":",
        ",\"type_id\":1}},{\"Sequence\":{\"id\":\"B\",\"type_id\":1}}],\"special_tokens\":{",
        ":{\"id\":",
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        buf_str(b, parts[i]);
        gguf_vocab_token(v, v->bos, b);
    }
    buf_printf(b, ",\"ids\":[%lld],\"tokens\":[", (long long)v->bos);
    gguf_vocab_token(v, v->bos, b);
    buf_str(b, "]}}}");
}

static void gguf_vocab_post(const struct gguf_vocab *v, struct buf *b)
{
    int sequence = v->add_bos && v->pre->post != GGUF_VOCAB_ABSENT;

    buf_str(b, ",\"post_processor\":");
    if (sequence) {
        buf_str(b, "{\"type\":\"Sequence\",\"processors\":[");
    }
    if (v->pre->post != GGUF_VOCAB_ABSENT) {
        gguf_vocab_byte_level(b, v->pre->post);
    }
    if (sequence) {
        buf_char(b, ',');
    }
    if (v->add_bos) {
        gguf_vocab_template(v, b);
    }
    if (sequence) {
        buf_str(b, "]}");
    }
    if (!v->add_bos && v->pre->post == GGUF_VOCAB_ABSENT) {
        buf_str(b, "null");
    }
}

/* A normal token that is not spelled in the byte alphabet stands as plain text in the file and is
 * spelled here, as transformers does. */
static int gguf_vocab_entries(const struct gguf_vocab *v, struct buf *b, struct err *e)
{
    int of_byte[256];
    struct buf spelled;
    struct map seen;
    int rc = STATUS_OK;

    gguf_vocab_alphabet(of_byte);
    buf_init(&spelled, 2 * GGUF_VOCAB_MAX_TOKEN);
    map_init(&seen);
    for (uint64_t i = 0; i < v->tokens->count && rc == STATUS_OK; i++) {
        struct gguf_str t = v->token[i];
        int type = gguf_vocab_type(v, i);
        if (type != GGUF_VOCAB_CONTROL && type != GGUF_VOCAB_USER && !gguf_vocab_is_spelled(t)) {
            buf_clear(&spelled);
            gguf_vocab_spell(&spelled, of_byte, t);
            t.s = spelled.data;
            t.n = spelled.len;
        }
        if (!map_put(&seen, t.s, t.n, (int64_t)i)) {
            rc = ERR(e, STATUS_FORMAT, "%s: token %llu has the same text as another",
                     gguf_path(v->g), (unsigned long long)i);
        }
        if (i) {
            buf_char(b, ',');
        }
        jtext_string(b, t.s, t.n);
        buf_printf(b, ":%llu", (unsigned long long)i);
    }
    buf_fini(&spelled);
    map_fini(&seen);
    return rc;
}

static int gguf_vocab_merges(const struct gguf_vocab *v, struct buf *b, struct err *e)
{
    const uint8_t *at = v->merges->data;

    for (uint64_t i = 0; i < v->merges->count; i++) {
        struct gguf_str m = gguf_next_string(&at);
        const char *space = m.n ? memchr(m.s, ' ', m.n) : NULL;
        if (i) {
            buf_char(b, ',');
        }
        if (!space || space == m.s || space == m.s + m.n - 1 || memchr(m.s, 0, m.n) ||
            jtext_string(b, m.s, m.n) != STATUS_OK) {
            return ERR(e, STATUS_FORMAT, "%s: merge %llu is not two tokens with a space between",
                       gguf_path(v->g), (unsigned long long)i);
        }
    }
    return STATUS_OK;
}

static int gguf_vocab_done(const struct gguf_vocab *v, const struct buf *b, struct err *e)
{
    return buf_status(b) == STATUS_OK
               ? STATUS_OK
               : ERR(e, STATUS_NOMEM, "%s: the tokenizer's text exceeds %zu bytes", gguf_path(v->g),
                     b->max);
}

int gguf_vocab_tokenizer(const struct gguf_vocab *v, struct buf *b, struct err *e)
{
    int rc;

    buf_str(b, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,");
    gguf_vocab_added(v, b);
    buf_str(b, ",\"normalizer\":");
    if (v->pre->normalizer) {
        buf_printf(b, "{\"type\":\"%s\"}", v->pre->normalizer);
    } else {
        buf_str(b, "null");
    }
    gguf_vocab_pre_tokenizer(v->pre, b);
    gguf_vocab_post(v, b);
    buf_str(b, ",\"decoder\":");
    gguf_vocab_byte_level(b, v->pre->decoder);
    buf_printf(b,
               ",\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
               "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":false,"
               "\"byte_fallback\":false,\"ignore_merges\":%s,\"vocab\":{",
               v->pre->ignore_merges ? "true" : "false");
    rc = gguf_vocab_entries(v, b, e);
    buf_str(b, "},\"merges\":[");
    if (rc == STATUS_OK) {
        rc = gguf_vocab_merges(v, b, e);
    }
    buf_str(b, "]}}");
    return rc == STATUS_OK ? gguf_vocab_done(v, b, e) : rc;
}

/* ---- writing tokenizer_config.json ---- */

static void gguf_vocab_config_token(const struct gguf_vocab *v, const char *key, int64_t id,
                                    struct buf *b)
{
    if (id >= 0) {
        buf_printf(b, "  \"%s\": ", key);
        gguf_vocab_token(v, id, b);
        buf_str(b, ",\n");
    }
}

int gguf_vocab_config(const struct gguf_vocab *v, int64_t max_length, const char *chat_template,
                      struct buf *b, struct err *e)
{
    buf_printf(b, "{\n  \"add_bos_token\": %s,\n  \"add_prefix_space\": false,\n",
               v->add_bos ? "true" : "false");
    gguf_vocab_config_token(v, "bos_token", v->bos, b);
    if (chat_template) {
        buf_str(b, "  \"chat_template\": ");
        jtext_string(b, chat_template, strlen(chat_template));
        buf_str(b, ",\n");
    }
    buf_str(b, "  \"clean_up_tokenization_spaces\": false,\n");
    gguf_vocab_config_token(v, "eos_token", v->eos, b);
    buf_printf(b, "  \"model_max_length\": %lld,\n", (long long)max_length);
    gguf_vocab_config_token(v, "pad_token", v->pad, b);
    gguf_vocab_config_token(v, "unk_token", v->unk, b);
    /* The class that takes tokenizer.json as it stands; a model's own class would rebuild it. */
    buf_str(b, "  \"tokenizer_class\": \"PreTrainedTokenizerFast\"\n}\n");
    return gguf_vocab_done(v, b, e);
}
