/* Owns the pipeline between text and ids: added tokens are cut out, the rest is normalized, cut
 * into words and merged; a template adds its tokens at the ends. The file's two large parts,
 * vocabulary and merges, are read in place and cut out of the text that goes to the JSON library:
 * that keeps opening within a fraction of the time to the first token. */
#include "text/tokenizer.h"

#include <string.h>

#include <jansson.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/status.h"
#include "text/added.h"
#include "text/detok.h"
#include "text/jscan.h"
#include "text/pretok.h"
#include "text/textnorm.h"
#include "text/tokids.h"
#include "text/tokmodel.h"
#include "text/unicode.h"
#include "text/vocab.h"
#include "text/words.h"

#define TEXT_MAX   ((size_t)1 << 28)
#define BYTES_MAX  ((size_t)1 << 29)
#define NORM_MAX   ((size_t)1 << 31)
#define ADDED_MAX  (1u << 10)
#define PREFIX_MAX 256

/* One id: where its bytes are, and what it is. */
struct entry {
    uint32_t off, len;
    unsigned char used, special;
    unsigned char skip; /* left out of decoded text with skip_special */
    const char *text;   /* what an added token decodes to; NULL: the model's text */
    uint32_t ntext;
};
struct tokenizer {
    struct tokmodel *model;
    const struct vocab *vocab; /* the model's */
    struct textnorm *norm;
    struct pretok *pretok;
    struct detok *detok;
    struct added raw;    /* looked for in the text as given */
    struct added normal; /* looked for after normalizing */
    struct map by_text;  /* added tokens: text to id */
    struct arena texts;  /* of `entry` */
    struct entry *entry; /* by id */
    int32_t size;
    struct buf bytes; /* of all tokens */
    struct tokids prefix, suffix;
};

/* ---- opening: the two large parts ---- */

struct loader {
    struct jscan s;
    struct tokenizer *t;
    struct buf small;   /* the file without its large parts */
    const char *copied; /* up to here it is in `small` */
    const char *merges; /* merges seen before the vocabulary; NULL: none */
    int have_vocab, have_prefix;
};

/* Leaves the value that starts at `from` and ends at the scanner out of the small text. */
static void cut_value(struct loader *l, const char *from)
{
    buf_add(&l->small, l->copied, (size_t)(from - l->copied));
    buf_str(&l->small, "null");
    l->copied = l->s.p;
}

static int key_is(const char *key, size_t n, const char *want)
{
    return n == strlen(want) && memcmp(key, want, n) == 0;
}

/* The one setting that merges depend on; it stays in the small text. */
static int load_prefix(struct loader *l, int c, struct err *e)
{
    const char *text;
    size_t n = 0;

    l->have_prefix = 1;
    if (c != '"') {
        jscan_skip(&l->s);
    } else if (jscan_string(&l->s, &text, &n)) {
        char *copy = mem_strndup(text, n);
        tokmodel_prefix(l->t->model, n ? copy : NULL);
        mem_free(copy);
    }
    return n > PREFIX_MAX
               ? ERR(e, STATUS_UNSUPPORTED, "a continuing_subword_prefix of %zu bytes", n)
               : 0;
}

static int load_model(struct loader *l, struct err *e)
{
    struct jscan *s = &l->s;
    const char *key;
    size_t n;
    int rc = 0;

    jscan_open(s, '{');
    while (rc == 0 && !s->bad && jscan_more(s, '}') && jscan_string(s, &key, &n)) {
        int vocab = key_is(key, n, "vocab");
        int merges = key_is(key, n, "merges");
        int prefix = key_is(key, n, "continuing_subword_prefix");
        const char *from;
        int c;
        if (!jscan_colon(s)) {
            break;
        }
        c = jscan_peek(s);
        from = s->p;
        if (vocab && (c == '{' || c == '[')) {
            rc = tokmodel_vocab(l->t->model, s, e);
            l->have_vocab = 1;
        } else if (merges && c == '[' && l->have_vocab && l->have_prefix) {
            rc = tokmodel_merges(l->t->model, s, e);
        } else if (merges && c == '[') {
            jscan_skip(s);
            l->merges = from;
        } else {
            rc = prefix ? load_prefix(l, c, e) : 0;
            if (!prefix) {
                jscan_skip(s);
            }
            continue;
        }
        cut_value(l, from);
    }
    return rc;
}

/* Reads vocabulary and merges into the model and everything else into *root. */
static int load_json(struct tokenizer *t, const char *json, json_t **root, struct err *e)
{
    struct loader l = {.t = t};
    json_error_t je;
    const char *key;
    size_t n;
    int rc = 0;

    jscan_init(&l.s, json, strlen(json));
    buf_init(&l.small, NORM_MAX);
    l.copied = json;
    jscan_open(&l.s, '{');
    while (rc == 0 && !l.s.bad && jscan_more(&l.s, '}') && jscan_string(&l.s, &key, &n)) {
        int model = key_is(key, n, "model");
        if (!jscan_colon(&l.s)) {
            break;
        }
        if (model && jscan_peek(&l.s) == '{') {
            rc = load_model(&l, e);
        } else {
            jscan_skip(&l.s);
        }
    }
    if (rc == 0 && !l.s.bad && l.merges) {
        const char *end = l.s.p;
        l.s.p = l.merges;
        rc = tokmodel_merges(t->model, &l.s, e);
        l.s.p = rc ? l.s.p : end;
    }
    if (rc == 0 && l.s.bad) {
        rc = ERR(e, STATUS_FORMAT, "%s at byte %zu", l.s.bad, (size_t)(l.s.p - json));
    }
    if (rc == 0) {
        buf_str(&l.small, l.copied);
        *root = buf_status(&l.small) ? NULL
                                     : json_loadb(l.small.data, l.small.len, JSON_ALLOW_NUL, &je);
        if (!*root) {
            rc = buf_status(&l.small) ? ERR(e, STATUS_NOMEM, "no memory to read the file")
                                      : ERR(e, STATUS_FORMAT, "%s", je.text);
        }
    }
    buf_fini(&l.small);
    jscan_fini(&l.s);
    return rc;
}

/* ---- opening: added tokens ---- */

static int flag(const json_t *o, const char *key, int absent)
{
    const json_t *v = json_object_get(o, key);

    return v ? json_is_true(v) : absent;
}

/* The id the package gives: that of the same text in the model, else the next after all ids. */
static int32_t added_id(const struct tokenizer *t, const char *s, size_t n, int32_t max_added)
{
    int32_t id = vocab_id(t->vocab, s, n);
    int64_t known;

    if (map_get(&t->by_text, s, n, &known)) {
        return (int32_t)known;
    }
    if (id >= 0) {
        return id;
    }
    return max_added >= (int32_t)vocab_count(t->vocab) ? max_added + 1
                                                       : (int32_t)vocab_count(t->vocab);
}

static int entries_room(struct tokenizer *t, int32_t id)
{
    if (id >= t->size) {
        int32_t size = id + 1 + id / 4;
        struct entry *p;
        p = mem_try((size_t)size * sizeof *p);
        if (!p) {
            return 0;
        }
        if (t->size) {
            memcpy(p, t->entry, (size_t)t->size * sizeof *p);
        }
        mem_free(t->entry);
        t->entry = p;
        t->size = size;
    }
    return 1;
}

/* Normalized tokens are looked for in normalized text, so their own text is normalized too; like
 * the package, they also decode to that. */
static int put_normalized(struct tokenizer *t, struct added_token *a, struct entry *en,
                          struct err *e)
{
    struct rx_scratch w;
    struct buf b;
    int changed;
    int rc;

    rx_scratch_init(&w);
    buf_init(&b, 64 * ADDED_MAX);
    rc = textnorm_apply(t->norm, a->text, a->len, &w, &b, &changed, e);
    if (rc == 0) {
        if (changed) {
            a->text = b.data;
            a->len = b.len;
        }
        en->text = arena_strndup(&t->texts, a->text, a->len);
        en->ntext = (uint32_t)a->len;
        rc = added_put(&t->normal, a) ? ERR(e, STATUS_NOMEM, "no memory for added tokens") : 0;
    }
    buf_fini(&b);
    rx_scratch_fini(&w);
    return rc;
}

static int read_added(struct tokenizer *t, const json_t *spec, int32_t *max_added, struct err *e)
{
    const json_t *content = json_object_get(spec, "content");
    const json_t *wanted = json_object_get(spec, "id");
    int special = flag(spec, "special", 0);
    struct added_token a = {0};
    struct entry *en;

    if (!json_is_string(content)) {
        return ERR(e, STATUS_FORMAT, "an added token has no content");
    }
    a.text = json_string_value(content);
    a.len = json_string_length(content);
    if (a.len == 0) {
        return 0;
    }
    if (a.len > ADDED_MAX) {
        return ERR(e, STATUS_FORMAT, "an added token of %zu bytes is too long", a.len);
    }
    a.id = added_id(t, a.text, a.len, *max_added);
    if (a.id > VOCAB_ID_MAX || !entries_room(t, a.id)) {
        return ERR(e, STATUS_NOMEM, "added token '%.100s': no room for id %d", a.text, a.id);
    }
    if (json_is_integer(wanted) && json_integer_value(wanted) != a.id) {
        log_warn(TEXT, "added token '%.100s' has id %d by its place, not %lld as the file says",
                 a.text, a.id, (long long)json_integer_value(wanted));
    }
    *max_added = a.id > *max_added ? a.id : *max_added;
    map_put(&t->by_text, a.text, a.len, a.id);
    en = &t->entry[a.id];
    en->used = 1;
    en->special |= (unsigned char)special;
    a.single_word = (unsigned char)flag(spec, "single_word", 0);
    a.lstrip = (unsigned char)flag(spec, "lstrip", 0);
    a.rstrip = (unsigned char)flag(spec, "rstrip", 0);
    if (flag(spec, "normalized", !special)) {
        return put_normalized(t, &a, en, e);
    }
    en->text = arena_strndup(&t->texts, a.text, a.len);
    en->ntext = (uint32_t)a.len;
    return added_put(&t->raw, &a) ? ERR(e, STATUS_NOMEM, "no memory for added tokens") : 0;
}

static int open_added(struct tokenizer *t, const json_t *list, struct err *e)
{
    int32_t max_added = -1;
    size_t i;
    int rc = 0;

    if (list && !json_is_null(list) && !json_is_array(list)) {
        return ERR(e, STATUS_FORMAT, "added_tokens is not a list");
    }
    for (i = 0; i < json_array_size(list) && rc == 0; i++) {
        rc = read_added(t, json_array_get(list, i), &max_added, e);
    }
    added_finish(&t->raw);
    added_finish(&t->normal);
    for (i = 0; i < t->by_text.count; i++) {
        struct entry *en = &t->entry[t->by_text.entries[i].value];
        int64_t id;
        /* What is skipped goes by the text that would be shown. */
        en->skip =
            en->text && map_get(&t->by_text, en->text, en->ntext, &id) && t->entry[id].special;
    }
    return rc;
}

/* The text of an id as the file has it; NULL if the id is free. */
static const char *token_text(const struct tokenizer *t, int32_t id, size_t *n)
{
    if (id < 0 || id >= t->size || !t->entry[id].used) {
        return NULL;
    }
    if (t->entry[id].text) {
        *n = t->entry[id].ntext;
        return t->entry[id].text;
    }
    return vocab_text(t->vocab, id, n);
}

/* Writes the bytes of every token into one block, and finds the highest id. */
static int open_bytes(struct tokenizer *t, struct err *e)
{
    int32_t top = -1;
    int32_t id;
    size_t n;

    for (id = 0; id < t->size; id++) {
        struct entry *en = &t->entry[id];
        const char *s;
        if (vocab_text(t->vocab, id, &n)) {
            en->used = 1;
        }
        s = token_text(t, id, &n);
        if (s) {
            top = id;
            en->off = (uint32_t)t->bytes.len;
            detok_token(t->detok, s, n, &t->bytes);
            en->len = (uint32_t)(t->bytes.len - en->off);
        }
    }
    t->size = top + 1;
    if (buf_status(&t->bytes)) {
        return ERR(e, STATUS_NOMEM, "no memory for the bytes of %d tokens", t->size);
    }
    return 0;
}

/* ---- opening: the post-processor ---- */

static int ids_add(struct tokids *l, const json_t *id, struct err *e)
{
    json_int_t k = json_is_integer(id) ? json_integer_value(id) : -1;
    int32_t v = (int32_t)k;

    if (k < 0 || k > VOCAB_ID_MAX) {
        return ERR(e, STATUS_FORMAT, "post-processor: a token id is not a number from 0 to %d",
                   VOCAB_ID_MAX);
    }
    return tokids_add(l, &v, 1) ? ERR(e, STATUS_NOMEM, "no memory for the post-processor") : 0;
}

/* Puts ids outside what is there: before the prefix, after the suffix. */
static int wrap(struct tokenizer *t, struct tokids *before, const struct tokids *after,
                struct err *e)
{
    struct tokids old = t->prefix;

    if (tokids_add(before, old.v, old.n) || tokids_add(&t->suffix, after->v, after->n)) {
        return ERR(e, STATUS_NOMEM, "no memory for the post-processor");
    }
    t->prefix = *before;
    *before = old;
    return 0;
}

/* The "single" template: special tokens around the sequence A. */
static int read_template(struct tokenizer *t, const json_t *spec, struct err *e)
{
    const json_t *list = json_object_get(spec, "single");
    const json_t *table = json_object_get(spec, "special_tokens");
    struct tokids side[2] = {{0}};
    int seen = 0;
    size_t i, k;
    int rc = 0;

    if (!json_is_array(list)) {
        return ERR(e, STATUS_FORMAT, "post-processor: TemplateProcessing without a template");
    }
    for (i = 0; i < json_array_size(list) && rc == 0; i++) {
        const json_t *item = json_array_get(list, i);
        const json_t *sp = json_object_get(item, "SpecialToken");
        const char *name = json_string_value(json_object_get(sp, "id"));
        const json_t *ids = json_object_get(json_object_get(table, name ? name : ""), "ids");
        if (json_object_get(item, "Sequence")) {
            seen++;
        } else if (!name || !json_is_array(ids)) {
            rc = ERR(e, STATUS_FORMAT, "post-processor: the template's item %zu names no token", i);
        }
        for (k = 0; k < json_array_size(ids) && rc == 0; k++) {
            rc = ids_add(&side[seen ? 1 : 0], json_array_get(ids, k), e);
        }
    }
    if (rc == 0 && seen != 1) {
        rc = ERR(e, STATUS_UNSUPPORTED, "post-processor: the template has the text %d times", seen);
    }
    rc = rc ? rc : wrap(t, &side[0], &side[1], e);
    mem_free(side[0].v);
    mem_free(side[1].v);
    return rc;
}

/* RobertaProcessing and BertProcessing: [cls] text [sep]. */
static int read_cls_sep(struct tokenizer *t, const json_t *spec, struct err *e)
{
    const json_t *cls = json_array_get(json_object_get(spec, "cls"), 1);
    const json_t *sep = json_array_get(json_object_get(spec, "sep"), 1);
    struct tokids side[2] = {{0}};
    int rc = ids_add(&side[0], cls, e);

    rc = rc ? rc : ids_add(&side[1], sep, e);
    rc = rc ? rc : wrap(t, &side[0], &side[1], e);
    mem_free(side[0].v);
    mem_free(side[1].v);
    return rc;
}

static int open_post(struct tokenizer *t, const json_t *spec, int depth, struct err *e)
{
    const char *type = json_string_value(json_object_get(spec, "type"));
    int rc = 0;

    if (!spec || json_is_null(spec)) {
        return 0;
    }
    if (!type) {
        return ERR(e, STATUS_FORMAT, "post-processor without a type");
    }
    if (strcmp(type, "ByteLevel") == 0) {
        return 0; /* trims offsets, which we do not give */
    }
    if (strcmp(type, "TemplateProcessing") == 0) {
        return read_template(t, spec, e);
    }
    if (strcmp(type, "RobertaProcessing") == 0 || strcmp(type, "BertProcessing") == 0) {
        return read_cls_sep(t, spec, e);
    }
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list = json_object_get(spec, "processors");
        size_t i;
        if (!json_is_array(list) || depth >= 8) {
            return ERR(e, STATUS_FORMAT, "post-processor: Sequence without a list, or too deep");
        }
        for (i = 0; i < json_array_size(list) && rc == 0; i++) {
            rc = open_post(t, json_array_get(list, i), depth + 1, e);
        }
        return rc;
    }
    return ERR(e, STATUS_UNSUPPORTED, "post-processor '%.100s' is not supported", type);
}

/* ---- opening and closing ---- */

/* Everything but vocabulary and merges. */
static int open_parts(struct tokenizer *t, const json_t *root, struct err *e)
{
    const json_t *model = json_object_get(root, "model");
    int rc = pretok_open(json_object_get(root, "pre_tokenizer"), &t->pretok, e);

    if (rc == 0 && !tokmodel_takes_bytes(model)) {
        pretok_keep_spelled(t->pretok);
    }
    rc = rc ? rc : tokmodel_open(t->model, model, pretok_is_byte_level(t->pretok), e);
    rc = rc ? rc : textnorm_open(json_object_get(root, "normalizer"), &t->norm, e);
    rc = rc ? rc : detok_open(json_object_get(root, "decoder"), &t->detok, e);
    if (rc == 0 && !entries_room(t, vocab_max_id(t->vocab))) {
        rc = ERR(e, STATUS_NOMEM, "no memory for %d tokens", vocab_max_id(t->vocab));
    }
    rc = rc ? rc : open_added(t, json_object_get(root, "added_tokens"), e);
    rc = rc ? rc : open_bytes(t, e);
    return rc ? rc : open_post(t, json_object_get(root, "post_processor"), 0, e);
}

static struct tokenizer *tokenizer_new(size_t bytes)
{
    struct tokenizer *t = mem_alloc(sizeof *t);

    map_init(&t->by_text);
    arena_init(&t->texts, 1u << 14);
    buf_init(&t->bytes, BYTES_MAX);
    t->model = tokmodel_new(bytes);
    t->vocab = tokmodel_words(t->model);
    return t;
}

int tokenizer_open(const char *json, struct tokenizer **out, struct err *e)
{
    struct err local = {0};
    struct tokenizer *t = tokenizer_new(strlen(json));
    json_t *root = NULL;
    int rc;

    e = e ? e : &local;
    rc = load_json(t, json, &root, e);
    rc = rc ? rc : open_parts(t, root, e);
    json_decref(root);
    if (rc) {
        tokenizer_close(t);
        return err_prefix(e, "tokenizer.json");
    }
    *out = t;
    return 0;
}

int tokenizer_open_tiktoken(const char *text, size_t len, const char *pattern, const json_t *added,
                            struct tokenizer **out, struct err *e)
{
    struct err local = {0};
    struct tokenizer *t = tokenizer_new(len);
    json_t *root =
        json_pack("{s{ss s[{ss s{ss} ss sb}{ss sb sb}]} s{ss} s{ss sb} sO?}", "pre_tokenizer",
                  "type", "Sequence", "pretokenizers", "type", "Split", "pattern", "Regex", pattern,
                  "behavior", "Isolated", "invert", 0, "type", "ByteLevel", "add_prefix_space", 0,
                  "use_regex", 0, "decoder", "type", "ByteLevel", "model", "type", "BPE",
                  "ignore_merges", 1, "added_tokens", (json_t *)added);
    int rc;

    e = e ? e : &local;
    rc = root ? tokmodel_tiktoken(t->model, text, len, e)
              : ERR(e, STATUS_INPUT, "the pattern of a tiktoken file is not utf-8");
    rc = rc ? rc : open_parts(t, root, e);
    json_decref(root);
    if (rc) {
        tokenizer_close(t);
        return err_prefix(e, "tiktoken file");
    }
    *out = t;
    return 0;
}

void tokenizer_close(struct tokenizer *t)
{
    if (!t) {
        return;
    }
    tokmodel_free(t->model);
    textnorm_close(t->norm);
    pretok_close(t->pretok);
    detok_close(t->detok);
    added_fini(&t->raw);
    added_fini(&t->normal);
    map_fini(&t->by_text);
    arena_fini(&t->texts);
    buf_fini(&t->bytes);
    mem_free(t->entry);
    mem_free(t->prefix.v);
    mem_free(t->suffix.v);
    mem_free(t);
}

/* ---- looking up ---- */

int tokenizer_vocab_size(const struct tokenizer *t)
{
    return t->size;
}

int32_t tokenizer_id(const struct tokenizer *t, const char *token)
{
    size_t n = strlen(token);
    int64_t id;

    return map_get(&t->by_text, token, n, &id) ? (int32_t)id : vocab_id(t->vocab, token, n);
}

int tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->size && t->entry[id].special;
}

const char *tokenizer_token_bytes(const struct tokenizer *t, int32_t id, size_t *len)
{
    if (id < 0 || id >= t->size || !t->entry[id].used) {
        return NULL;
    }
    *len = t->entry[id].len;
    return t->bytes.data + t->entry[id].off;
}

/* ---- encoding ---- */

struct encoder {
    const struct tokenizer *t;
    struct pretok_work work;
    struct buf norm;
    struct tokids ids;
    struct err *e;
};

static int encode_words(struct encoder *c, const char *s, size_t n, int first)
{
    const struct words *w = pretok_words(c->t->pretok);
    size_t i;
    int rc = 0;

    if (w) { /* the everyday case: no list of words is made */
        size_t done = 0;
        size_t a = 0;
        size_t b;
        while (rc == 0 && words_next(w, s, n, &a, &b)) {
            rc = a > done ? tokmodel_encode(c->t->model, s + done, a - done, &c->ids, c->e) : 0;
            rc = rc ? rc : tokmodel_encode(c->t->model, s + a, b - a, &c->ids, c->e);
            a = done = b;
        }
        return rc || done == n ? rc
                               : tokmodel_encode(c->t->model, s + done, n - done, &c->ids, c->e);
    }
    rc = pretok_run(c->t->pretok, s, n, first, &c->work, c->e);

    for (i = 0; i < c->work.n && rc == 0; i++) {
        rc = tokmodel_encode(c->t->model, c->work.piece[i].s, c->work.piece[i].n, &c->ids, c->e);
    }
    return rc;
}

static int encode_part(struct encoder *c, const char *s, size_t n, int first, int normalized);

/* Walks text between added tokens: the gaps are encoded, the tokens are put. */
static int encode_split(struct encoder *c, const struct added *a, const char *s, size_t n,
                        int first, int normalized)
{
    struct added_pos pos = {0};
    struct added_hit hit;
    size_t done = 0;
    int rc = 0;

    while (rc == 0 && added_next(a, s, n, &pos, &hit)) {
        if (done < hit.start) {
            rc = encode_part(c, s + done, hit.start - done, first && done == 0, normalized);
        }
        /* A token all of whose text an earlier one took as its white space is gone with it. */
        if (rc == 0 && hit.start < hit.end && tokids_add(&c->ids, &hit.id, 1)) {
            rc = ERR(c->e, STATUS_NOMEM, "no memory for %zu tokens", c->ids.n);
        }
        done = hit.end;
    }
    if (rc == 0 && done < n) {
        rc = encode_part(c, s + done, n - done, first && done == 0, normalized);
    }
    return rc;
}

static int encode_part(struct encoder *c, const char *s, size_t n, int first, int normalized)
{
    int changed;
    int rc;

    if (normalized) {
        return encode_words(c, s, n, first);
    }
    rc = textnorm_apply(c->t->norm, s, n, &c->work.rx, &c->norm, &changed, c->e);
    if (rc) {
        return rc;
    }
    if (changed) {
        s = c->norm.data;
        n = c->norm.len;
    }
    return encode_split(c, &c->t->normal, s, n, first, 1);
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, int add_special,
                     int32_t **ids, size_t *n, struct err *e)
{
    struct encoder c = {.t = t, .e = e};
    char *fixed = NULL;
    int rc = 0;

    if (len > TEXT_MAX) {
        return ERR(e, STATUS_INPUT, "text of %zu bytes is too long to tokenize, at most %zu", len,
                   TEXT_MAX);
    }
    pretok_work_init(&c.work);
    buf_init(&c.norm, len < NORM_MAX / 64 - 256 ? 64 * (len + 256) : NORM_MAX);
    if (unicode_valid_prefix(text, len) < len) {
        fixed = unicode_lossy(text, len, &len);
        text = fixed;
        rc = fixed ? 0 : ERR(e, STATUS_NOMEM, "no memory to tokenize text");
    }
    if (rc == 0 && tokids_add(&c.ids, t->prefix.v, add_special ? t->prefix.n : 0)) {
        rc = ERR(e, STATUS_NOMEM, "no memory to tokenize text");
    }
    rc = rc ? rc : encode_split(&c, &t->raw, text, len, 1, 0);
    if (rc == 0 && tokids_add(&c.ids, t->suffix.v, add_special ? t->suffix.n : 0)) {
        rc = ERR(e, STATUS_NOMEM, "no memory to tokenize text");
    }
    if (rc == 0) {
        *n = c.ids.n;
        *ids = c.ids.v ? c.ids.v : mem_alloc(sizeof **ids);
        c.ids.v = NULL;
    }
    mem_free(c.ids.v);
    mem_free(fixed);
    buf_fini(&c.norm);
    pretok_work_fini(&c.work);
    return rc;
}

/* ---- decoding ---- */

/* The general way: a list of token texts through the decoder's chain. */
static int decode_chain(const struct tokenizer *t, const int32_t *ids, size_t n, int skip_special,
                        struct buf *out, struct err *e)
{
    struct detok_string *list = mem_try((n + 1) * sizeof *list);
    size_t i;
    size_t k = 0;
    int rc;

    if (!list) {
        return ERR(e, STATUS_NOMEM, "no memory to decode %zu tokens", n);
    }
    for (i = 0; i < n; i++) {
        list[k].s = token_text(t, ids[i], &list[k].n);
        if (list[k].s && !(skip_special && t->entry[ids[i]].skip)) {
            k++;
        }
    }
    rc = detok_run(t->detok, list, k, out, e);
    mem_free(list);
    return rc;
}

int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, int skip_special,
                     char **text, size_t *len, struct err *e)
{
    struct buf b;
    size_t i;
    int rc = 0;

    buf_init(&b, NORM_MAX);
    if (!detok_is_bytes(t->detok)) {
        rc = decode_chain(t, ids, n, skip_special, &b, e);
    } else {
        for (i = 0; i < n; i++) {
            size_t k;
            const char *s = tokenizer_token_bytes(t, ids[i], &k);
            if (s && !(skip_special && t->entry[ids[i]].skip)) {
                buf_add(&b, s, k);
            }
        }
        rc = buf_status(&b) ? ERR(e, STATUS_NOMEM, "text of %zu tokens is too long", n) : 0;
    }
    if (rc == 0 && unicode_valid_prefix(b.data, b.len) == b.len) {
        *text = buf_take(&b, len);
    } else if (rc == 0) {
        *text = unicode_lossy(b.data, b.len, len);
        rc = *text ? 0 : ERR(e, STATUS_NOMEM, "no memory to decode %zu tokens", n);
    }
    buf_fini(&b);
    return rc;
}
