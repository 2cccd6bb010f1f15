/* Owns the choice between the types of models. */
#include "text/tokmodel.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "text/base64.h"
#include "text/bpe.h"
#include "text/jscan.h"
#include "text/unicode.h"
#include "text/unigram.h"
#include "text/vocab.h"
#include "text/wordpiece.h"

#define TOKEN_MAX 4096 /* bytes of a token of a tiktoken file */

struct tokmodel {
    struct vocab *v;
    struct bpe *bpe;
    struct unigram *unigram; /* only when the vocabulary is a list */
    struct wordpiece *wordpiece;
};

struct tokmodel *tokmodel_new(size_t bytes)
{
    struct tokmodel *m = mem_alloc(sizeof *m);

    m->v = vocab_new();
    vocab_reserve(m->v, bytes / 48); /* a token and its merge take about so much */
    m->bpe = bpe_new(m->v);
    return m;
}

void tokmodel_free(struct tokmodel *m)
{
    if (m) {
        wordpiece_free(m->wordpiece);
        unigram_free(m->unigram);
        bpe_free(m->bpe);
        vocab_free(m->v);
        mem_free(m);
    }
}

const struct vocab *tokmodel_words(const struct tokmodel *m)
{
    return m->v;
}

int tokmodel_vocab(struct tokmodel *m, struct jscan *s, struct err *e)
{
    if (jscan_peek(s) != '[') {
        return vocab_read(m->v, s, e);
    }
    if (!m->unigram) {
        m->unigram = unigram_new(m->v);
    }
    return unigram_read(m->unigram, s, e);
}

int tokmodel_merges(struct tokmodel *m, struct jscan *s, struct err *e)
{
    return bpe_read_merges(m->bpe, s, e);
}

void tokmodel_prefix(struct tokmodel *m, const char *prefix)
{
    bpe_set_prefix(m->bpe, prefix);
}

/* ---- tiktoken's format ---- */

struct split {
    int32_t left, right;
    size_t at;
};

static int by_parts(const void *x, const void *y)
{
    const struct split *a = x;
    const struct split *b = y;

    return a->left != b->left ? (a->left < b->left ? -1 : 1)
                              : (a->right > b->right) - (a->right < b->right);
}

/* A token spelled in the byte alphabet; `end` of each byte. */
static size_t spell(const char *raw, size_t n, char *out, size_t *end)
{
    size_t i;
    size_t o = 0;

    for (i = 0; i < n; i++) {
        o += unicode_put(unicode_byte_char((uint8_t)raw[i]), out + o);
        end[i] = o;
    }
    return o;
}

/* Every way to make the token of two others, in the order of those. */
static int split_merges(struct tokmodel *m, const char *s, size_t n, const size_t *end,
                        size_t nbytes, struct split *split, struct err *e)
{
    size_t count = 0;
    size_t i;
    int rc = 0;

    for (i = 0; i + 1 < nbytes; i++) {
        int32_t left = vocab_id(m->v, s, end[i]);
        int32_t right = left < 0 ? -1 : vocab_id(m->v, s + end[i], n - end[i]);
        if (right >= 0) {
            split[count].left = left;
            split[count].right = right;
            split[count++].at = end[i];
        }
    }
    qsort(split, count, sizeof *split, by_parts);
    for (i = 0; i < count && rc == 0; i++) {
        rc = bpe_merge(m->bpe, s, split[i].at, s + split[i].at, n - split[i].at, e);
    }
    return rc;
}

/* "base64 rank"; 0 at the end of the text. */
static int next_line(const char **p, const char *end, const char **line, size_t *n)
{
    while (*p < end) {
        const char *nl = memchr(*p, '\n', (size_t)(end - *p));
        *line = *p;
        *n = (size_t)((nl ? nl : end) - *p);
        *p = nl ? nl + 1 : end;
        while (*n > 0 && ((*line)[*n - 1] == '\r' || (*line)[*n - 1] == ' ')) {
            (*n)--;
        }
        if (*n > 0) {
            return 1;
        }
    }
    return 0;
}

static int tiktoken_line(const char *line, size_t n, char *raw, size_t *nraw, int64_t *rank)
{
    const char *sp = memchr(line, ' ', n);
    size_t i;

    if (!sp || (size_t)(sp - line) > TOKEN_MAX ||
        !base64_decode(line, (size_t)(sp - line), raw, nraw)) {
        return 0;
    }
    i = (size_t)(sp + 1 - line);
    if (i == n || n - i > 9) {
        return 0;
    }
    for (*rank = 0; i < n; i++) {
        if (line[i] < '0' || line[i] > '9') {
            return 0;
        }
        *rank = *rank * 10 + (line[i] - '0');
    }
    return 1;
}

int tokmodel_tiktoken(struct tokmodel *m, const char *text, size_t len, struct err *e)
{
    char *raw = mem_alloc(TOKEN_MAX + 4);
    char *spelled = mem_alloc(2 * TOKEN_MAX + 8);
    size_t *end = mem_alloc((TOKEN_MAX + 4) * sizeof *end);
    struct split *split = mem_alloc((TOKEN_MAX + 4) * sizeof *split);
    const char *p = text;
    const char *line;
    size_t n, nraw, number = 0;
    int64_t rank;
    int32_t id;
    int rc = 0;

    while (rc == 0 && next_line(&p, text + len, &line, &n)) {
        number++;
        if (!tiktoken_line(line, n, raw, &nraw, &rank) || rank > VOCAB_ID_MAX) {
            rc = ERR(e, STATUS_FORMAT, "token %zu is not base64, a blank and a rank: '%.*s'",
                     number, (int)(n > 100 ? 100 : n), line);
        } else {
            rc = vocab_put(m->v, spelled, spell(raw, nraw, spelled, end), (int32_t)rank, e);
        }
    }
    rc = rc ? rc : vocab_finish(m->v, e);
    for (id = 0; rc == 0 && id <= vocab_max_id(m->v); id++) {
        const char *s = vocab_text(m->v, id, &n);
        size_t i = 0;
        nraw = 0;
        while (s && i < n) {
            i += unicode_width((unsigned char)s[i]);
            end[nraw++] = i;
        }
        rc = s ? split_merges(m, s, n, end, nraw, split, e) : 0;
    }
    mem_free(raw);
    mem_free(spelled);
    mem_free(end);
    mem_free(split);
    return rc;
}

/* ---- the settings ---- */

/* A setting that must be absent, null, false, zero or "" for us. */
static int must_be_off(const json_t *spec, const char *key, struct err *e)
{
    const json_t *v = json_object_get(spec, key);

    if (!v || json_is_null(v) || json_is_false(v) ||
        (json_is_string(v) && json_string_length(v) == 0) ||
        (json_is_number(v) && json_number_value(v) == 0)) {
        return 0;
    }
    return ERR(e, STATUS_UNSUPPORTED, "BPE model with %s is not supported", key);
}

/* A string that is not empty, or NULL. */
static const char *text_of(const json_t *spec, const char *key)
{
    const char *s = json_string_value(json_object_get(spec, key));

    return s && *s ? s : NULL;
}

static int open_bpe(struct tokmodel *m, const json_t *spec, int byte_level, struct err *e)
{
    struct bpe_options o = {0};
    int rc = must_be_off(spec, "dropout", e);

    if (rc) {
        return rc;
    }
    o.byte_level = byte_level;
    o.byte_fallback = json_is_true(json_object_get(spec, "byte_fallback"));
    o.fuse_unk = json_is_true(json_object_get(spec, "fuse_unk"));
    o.ignore_merges = json_is_true(json_object_get(spec, "ignore_merges"));
    o.unk_token = json_string_value(json_object_get(spec, "unk_token"));
    o.prefix = text_of(spec, "continuing_subword_prefix");
    o.suffix = text_of(spec, "end_of_word_suffix");
    if (o.byte_level && o.byte_fallback) {
        return ERR(e, STATUS_UNSUPPORTED, "byte_fallback with a ByteLevel pre-tokenizer");
    }
    if (o.byte_fallback && (o.prefix || o.suffix)) {
        return ERR(e, STATUS_UNSUPPORTED,
                   "byte_fallback with continuing_subword_prefix or end_of_word_suffix");
    }
    return bpe_finish(m->bpe, &o, e);
}

static int open_unigram(struct tokmodel *m, const json_t *spec, struct err *e)
{
    const json_t *unk = json_object_get(spec, "unk_id");

    if (!m->unigram) {
        return ERR(e, STATUS_FORMAT, "the vocabulary of a Unigram model is not a list");
    }
    return unigram_finish(m->unigram, json_is_integer(unk) ? json_integer_value(unk) : -1,
                          json_is_true(json_object_get(spec, "byte_fallback")), e);
}

static int open_wordpiece(struct tokmodel *m, const json_t *spec, int whole, struct err *e)
{
    const json_t *max = json_object_get(spec, "max_input_chars_per_word");
    struct wordpiece_options o = {.max_chars = 100, .whole = whole};

    if (json_is_integer(max) && json_integer_value(max) >= 0) {
        o.max_chars = (size_t)json_integer_value(max);
    }
    o.unk_token = json_string_value(json_object_get(spec, "unk_token"));
    o.prefix = json_string_value(json_object_get(spec, "continuing_subword_prefix"));
    m->wordpiece = wordpiece_new(m->v);
    return wordpiece_finish(m->wordpiece, &o, e);
}

static int type_is(const json_t *spec, const char *name)
{
    const char *type = json_string_value(json_object_get(spec, "type"));

    return type && strcmp(type, name) == 0;
}

int tokmodel_takes_bytes(const json_t *spec)
{
    return !type_is(spec, "Unigram") && !type_is(spec, "WordPiece") && !type_is(spec, "WordLevel");
}

int tokmodel_open(struct tokmodel *m, const json_t *spec, int byte_level, struct err *e)
{
    const json_t *type = json_object_get(spec, "type");
    int rc;

    if (!json_is_object(spec)) {
        return ERR(e, STATUS_FORMAT, "there is no model in it");
    }
    rc = vocab_finish(m->v, e);
    if (rc) {
        return rc;
    }
    if (type_is(spec, "Unigram")) {
        return open_unigram(m, spec, e);
    }
    if (m->unigram) {
        unigram_free(m->unigram);
        m->unigram = NULL;
        return ERR(e, STATUS_FORMAT,
                   "the vocabulary is a list, and the model is not of type Unigram");
    }
    if (type_is(spec, "WordPiece")) {
        return open_wordpiece(m, spec, 0, e);
    }
    if (type_is(spec, "WordLevel")) {
        return open_wordpiece(m, spec, 1, e);
    }
    if (type && !type_is(spec, "BPE")) {
        return ERR(e, STATUS_UNSUPPORTED, "model of type '%.100s' is not supported",
                   json_is_string(type) ? json_string_value(type) : "?");
    }
    return open_bpe(m, spec, byte_level, e);
}

int tokmodel_encode(const struct tokmodel *m, const char *word, size_t len, struct tokids *out,
                    struct err *e)
{
    if (m->unigram) {
        return unigram_encode(m->unigram, word, len, out, e);
    }
    if (m->wordpiece) {
        return wordpiece_encode(m->wordpiece, word, len, out, e);
    }
    return bpe_encode(m->bpe, word, len, out, e);
}
