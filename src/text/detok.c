/* Owns the way back from tokens to text. For byte-level models that is a concatenation of bytes;
 * for SentencePiece-style ones a chain of steps over the list of token texts, run as the package
 * does so that the result is equal also where tokens are odd (half characters, leading spaces). */
#include "text/detok.h"

#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/status.h"
#include "text/rx.h"
#include "text/unicode.h"

#define STEPS_MAX  32
#define DEPTH_MAX  8
#define TEXT_MAX   ((size_t)1 << 31)
#define TOKEN_ROOM 1024

enum step_kind {
    STEP_BYTES,
    STEP_REPLACE,
    STEP_FALLBACK,
    STEP_FUSE,
    STEP_STRIP,
    STEP_METASPACE,
    STEP_WORDPIECE,
    STEP_SUFFIX, /* BPEDecoder */
    STEP_CTC
};

struct step {
    enum step_kind kind;
    char *find, *put; /* REPLACE; CTC: pad and delimiter; others: find */
    size_t nfind, nput;
    struct rx *rx;      /* REPLACE of an expression */
    int cleanup;        /* WORDPIECE, CTC: English punctuation moves to the word before */
    size_t start, stop; /* STRIP: at most so many at each end */
    int keep_first;     /* METASPACE: the first token keeps its leading space */
};
struct detok {
    struct step step[STEPS_MAX];
    int n;
    int none; /* no decoder given */
};

static int take_string(const json_t *o, const char *key, char **s, size_t *n, struct err *e)
{
    const json_t *v = json_object_get(o, key);

    if (!json_is_string(v)) {
        return ERR(e, STATUS_FORMAT, "decoder: '%s' is not a string", key);
    }
    *n = json_string_length(v);
    *s = mem_strndup(json_string_value(v), *n);
    return 0;
}

static int read_replace(struct step *st, const json_t *spec, struct err *e)
{
    const json_t *pattern = json_object_get(spec, "pattern");
    int rc;

    st->kind = STEP_REPLACE;
    if (json_is_string(json_object_get(pattern, "Regex"))) {
        const json_t *rx = json_object_get(pattern, "Regex");
        rc = take_string(spec, "content", &st->put, &st->nput, e);
        return rc ? rc : rx_open(json_string_value(rx), json_string_length(rx), &st->rx, e);
    }
    rc = take_string(pattern, "String", &st->find, &st->nfind, e);
    rc = rc ? rc : take_string(spec, "content", &st->put, &st->nput, e);
    if (rc == 0 && st->nfind == 0) {
        rc = ERR(e, STATUS_UNSUPPORTED, "decoder: Replace of an empty string");
    }
    return rc;
}

static int read_strip(struct step *st, const json_t *spec, struct err *e)
{
    json_int_t a = json_integer_value(json_object_get(spec, "start"));
    json_int_t b = json_integer_value(json_object_get(spec, "stop"));
    int rc = take_string(spec, "content", &st->find, &st->nfind, e);

    st->kind = STEP_STRIP;
    if (rc == 0 && (st->nfind == 0 || a < 0 || b < 0)) {
        rc = ERR(e, STATUS_FORMAT, "decoder: Strip without content or with a negative count");
    }
    st->start = (size_t)a;
    st->stop = (size_t)b;
    return rc;
}

static int read_metaspace(struct step *st, const json_t *spec, struct err *e)
{
    const char *scheme = json_string_value(json_object_get(spec, "prepend_scheme"));
    int rc = take_string(spec, "replacement", &st->find, &st->nfind, e);

    st->kind = STEP_METASPACE;
    st->keep_first = scheme ? strcmp(scheme, "never") == 0
                            : json_is_false(json_object_get(spec, "add_prefix_space"));
    if (rc == 0 && st->nfind == 0) {
        rc = ERR(e, STATUS_FORMAT, "decoder: Metaspace without a replacement");
    }
    return rc;
}

static int read_wordpiece(struct step *st, const json_t *spec, struct err *e)
{
    st->kind = STEP_WORDPIECE;
    st->cleanup = !json_is_false(json_object_get(spec, "cleanup"));
    return take_string(spec, "prefix", &st->find, &st->nfind, e);
}

static int read_suffix(struct step *st, const json_t *spec, struct err *e)
{
    int rc = take_string(spec, "suffix", &st->find, &st->nfind, e);

    st->kind = STEP_SUFFIX;
    if (rc == 0 && st->nfind == 0) {
        rc = ERR(e, STATUS_UNSUPPORTED, "decoder: BPEDecoder without a suffix");
    }
    return rc;
}

static int read_ctc(struct step *st, const json_t *spec, struct err *e)
{
    int rc = take_string(spec, "pad_token", &st->find, &st->nfind, e);

    st->kind = STEP_CTC;
    st->cleanup = !json_is_false(json_object_get(spec, "cleanup"));
    rc = rc ? rc : take_string(spec, "word_delimiter_token", &st->put, &st->nput, e);
    if (rc == 0 && (st->nfind == 0 || st->nput == 0)) {
        rc = ERR(e, STATUS_UNSUPPORTED, "decoder: CTC with an empty token");
    }
    return rc;
}

static int read_step(struct detok *d, const json_t *spec, int depth, struct err *e)
{
    const char *type = json_string_value(json_object_get(spec, "type"));
    struct step *st;

    if (!type) {
        return ERR(e, STATUS_FORMAT, "decoder without a type");
    }
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list = json_object_get(spec, "decoders");
        size_t k;
        int rc = 0;
        if (!json_is_array(list) || depth >= DEPTH_MAX) {
            return ERR(e, STATUS_FORMAT, "decoder: Sequence without a list, or nested too deep");
        }
        for (k = 0; k < json_array_size(list) && rc == 0; k++) {
            rc = read_step(d, json_array_get(list, k), depth + 1, e);
        }
        return rc;
    }
    if (d->n == STEPS_MAX) {
        return ERR(e, STATUS_UNSUPPORTED, "decoder with more than %d steps", STEPS_MAX);
    }
    st = &d->step[d->n++];
    if (strcmp(type, "ByteLevel") == 0) {
        st->kind = STEP_BYTES;
    } else if (strcmp(type, "ByteFallback") == 0) {
        st->kind = STEP_FALLBACK;
    } else if (strcmp(type, "Fuse") == 0) {
        st->kind = STEP_FUSE;
    } else if (strcmp(type, "Replace") == 0) {
        return read_replace(st, spec, e);
    } else if (strcmp(type, "Strip") == 0) {
        return read_strip(st, spec, e);
    } else if (strcmp(type, "Metaspace") == 0) {
        return read_metaspace(st, spec, e);
    } else if (strcmp(type, "WordPiece") == 0) {
        return read_wordpiece(st, spec, e);
    } else if (strcmp(type, "BPEDecoder") == 0) {
        return read_suffix(st, spec, e);
    } else if (strcmp(type, "CTC") == 0) {
        return read_ctc(st, spec, e);
    } else {
        return ERR(e, STATUS_UNSUPPORTED, "decoder '%.100s' is not supported", type);
    }
    return 0;
}

int detok_open(const json_t *spec, struct detok **out, struct err *e)
{
    struct detok *d = mem_alloc(sizeof *d);
    int rc = 0;

    if (!spec || json_is_null(spec)) {
        d->none = 1;
    } else {
        rc = read_step(d, spec, 0, e);
    }
    if (rc) {
        detok_close(d);
        return rc;
    }
    *out = d;
    return 0;
}

void detok_close(struct detok *d)
{
    int i;

    if (!d) {
        return;
    }
    for (i = 0; i < d->n; i++) {
        mem_free(d->step[i].find);
        mem_free(d->step[i].put);
        rx_close(d->step[i].rx);
    }
    mem_free(d);
}

int detok_is_bytes(const struct detok *d)
{
    return d->n == 1 && d->step[0].kind == STEP_BYTES;
}

/* ---- one token ---- */

/* Bytes of a token spelled in the byte alphabet; a token with any other character stands for
 * itself. */
static void put_bytes(const char *s, size_t n, struct buf *out)
{
    size_t at = out->len;
    size_t i = 0;

    while (i < n) {
        uint32_t cp;
        int b;
        i += unicode_next(s + i, &cp);
        b = unicode_char_byte(cp);
        if (b < 0) {
            out->len = at;
            buf_add(out, s, n);
            return;
        }
        buf_char(out, (char)b);
    }
}

static void put_literal(const char *s, size_t n, const char *find, size_t nfind, const char *put,
                        size_t nput, struct buf *out)
{
    size_t i = 0;

    while (i < n) {
        const char *hit = memmem(s + i, n - i, find, nfind);
        size_t k = hit ? (size_t)(hit - s) : n;
        buf_add(out, s + i, k - i);
        if (hit) {
            buf_add(out, put, nput);
            k += nfind;
        }
        i = k;
    }
}

/* A token whose expression fails to run stands for itself. */
static void put_rx(const struct step *st, const char *s, size_t n, struct buf *out)
{
    struct rx_scratch w;
    struct rx_iter it;
    size_t i = 0;
    size_t a, b;
    int oom;
    char *shadow = unicode_shadow(s, n, &oom);

    rx_scratch_init(&w);
    rx_iter_init(&it, st->rx, shadow ? shadow : s, n);
    while (rx_next(&it, &w, &a, &b, NULL) == STATUS_OK) {
        buf_add(out, s + i, a - i);
        buf_add(out, st->put, st->nput);
        i = b;
    }
    buf_add(out, s + i, n - i);
    rx_scratch_fini(&w);
    mem_free(shadow);
}

static void put_replaced(const struct step *st, const char *s, size_t n, struct buf *out)
{
    if (st->rx) {
        put_rx(st, s, n, out);
    } else {
        put_literal(s, n, st->find, st->nfind, st->put, st->nput, out);
    }
}

/* English: no space before punctuation and short forms, one after the other. */
static void put_clean(const char *s, size_t n, struct buf *out)
{
    static const char *const pairs[][2] = {
        {" .", "."},   {" ?", "?"},     {" !", "!"},     {" ,", ","},
        {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},   {" do not", " don't"},
        {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
    };
    struct buf cur, next;
    size_t i;

    if (!memchr(s, ' ', n)) {
        buf_add(out, s, n);
        return;
    }
    buf_init(&cur, TEXT_MAX);
    buf_init(&next, TEXT_MAX);
    buf_add(&cur, s, n);
    for (i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        struct buf swap = cur;
        buf_clear(&next);
        put_literal(cur.data, cur.len, pairs[i][0], strlen(pairs[i][0]), pairs[i][1],
                    strlen(pairs[i][1]), &next);
        cur = next;
        next = swap;
    }
    buf_add(out, cur.data, cur.len);
    buf_fini(&cur);
    buf_fini(&next);
}

/* A part of a word sticks to the one before, a word is set off by a space. */
static void put_wordpiece(const struct step *st, const char *s, size_t n, int first,
                          struct buf *out)
{
    struct buf b;

    buf_init(&b, TEXT_MAX);
    if (first) {
        buf_add(&b, s, n);
    } else if (n >= st->nfind && memcmp(s, st->find, st->nfind) == 0) {
        buf_add(&b, s + st->nfind, n - st->nfind);
    } else {
        buf_char(&b, ' ');
        buf_add(&b, s, n);
    }
    if (st->cleanup) {
        put_clean(b.data, b.len, out);
    } else {
        buf_add(out, b.data, b.len);
    }
    buf_fini(&b);
}

/* Without the padding; the delimiter becomes a space. */
static void put_ctc(const struct step *st, const char *s, size_t n, struct buf *out)
{
    struct buf a, b;

    buf_init(&a, TEXT_MAX);
    buf_init(&b, TEXT_MAX);
    put_literal(s, n, st->find, st->nfind, "", 0, &a);
    if (st->cleanup) {
        put_clean(a.data, a.len, &b);
        put_literal(b.data, b.len, st->put, st->nput, " ", 1, out);
    } else {
        buf_add(out, a.data, a.len);
    }
    buf_fini(&a);
    buf_fini(&b);
}

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* The byte of a <0xNN> token, or -1. */
static int fallback_byte(const char *s, size_t n)
{
    if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>' || hex(s[3]) < 0 || hex(s[4]) < 0) {
        return -1;
    }
    return hex(s[3]) * 16 + hex(s[4]);
}

/* Metaspace is a replacement by a space, but for the first token. */
static void put_metaspace(const struct step *st, const char *s, size_t n, int drop, struct buf *out)
{
    struct step by = *st;

    by.put = " ";
    by.nput = drop ? 0 : 1;
    put_replaced(&by, s, n, out);
}

void detok_token(const struct detok *d, const char *text, size_t len, struct buf *out)
{
    struct buf cur, next;
    int i;

    if (detok_is_bytes(d)) {
        put_bytes(text, len, out);
        return;
    }
    buf_init(&cur, 64 * len + TOKEN_ROOM); /* a chain of replacements may grow without end */
    buf_init(&next, 64 * len + TOKEN_ROOM);
    buf_add(&cur, text, len);
    for (i = 0; i < d->n; i++) {
        const struct step *st = &d->step[i];
        struct buf swap;
        int b;
        buf_clear(&next);
        switch (st->kind) {
        case STEP_BYTES: put_bytes(cur.data, cur.len, &next); break;
        case STEP_REPLACE: put_replaced(st, cur.data, cur.len, &next); break;
        case STEP_METASPACE: put_metaspace(st, cur.data, cur.len, 0, &next); break;
        case STEP_WORDPIECE: put_wordpiece(st, cur.data, cur.len, 0, &next); break;
        case STEP_SUFFIX: put_literal(cur.data, cur.len, st->find, st->nfind, " ", 1, &next); break;
        case STEP_CTC: put_ctc(st, cur.data, cur.len, &next); break;
        case STEP_FALLBACK:
            b = fallback_byte(cur.data, cur.len);
            if (b < 0) {
                buf_add(&next, cur.data, cur.len);
            } else {
                buf_char(&next, (char)b);
                i = d->n; /* a byte is not text for later steps */
            }
            break;
        default: buf_add(&next, cur.data, cur.len); break;
        }
        swap = cur;
        cur = next;
        next = swap;
    }
    buf_add(out, cur.data, cur.len);
    out->failed |= buf_status(&cur) != 0;
    buf_fini(&cur);
    buf_fini(&next);
}

/* ---- the whole chain ---- */

/* A list of strings in one buffer; string i ends at end[i]. */
struct list {
    struct buf text;
    size_t *end;
    size_t n;
};

static void list_close(struct list *l)
{
    l->end[l->n++] = l->text.len;
}

/* Writes gathered bytes as one string if they are UTF-8, else one U+FFFD for each of them. */
static void flush_bytes(struct buf *bytes, struct list *to)
{
    size_t i;

    if (bytes->len == 0) {
        return;
    }
    if (unicode_valid_prefix(bytes->data, bytes->len) == bytes->len) {
        buf_add(&to->text, bytes->data, bytes->len);
        list_close(to);
    } else {
        for (i = 0; i < bytes->len; i++) {
            buf_str(&to->text, "\xEF\xBF\xBD");
            list_close(to);
        }
    }
    buf_clear(bytes);
}

static void run_fallback(const struct list *from, struct list *to)
{
    struct buf bytes;
    size_t i;
    size_t a = 0;

    buf_init(&bytes, TEXT_MAX);
    for (i = 0; i < from->n; a = from->end[i++]) {
        int b = fallback_byte(from->text.data + a, from->end[i] - a);
        if (b >= 0) {
            buf_char(&bytes, (char)b);
        } else {
            flush_bytes(&bytes, to);
            buf_add(&to->text, from->text.data + a, from->end[i] - a);
            list_close(to);
        }
    }
    flush_bytes(&bytes, to);
    buf_fini(&bytes);
}

static void run_strip(const struct step *st, const char *s, size_t n, struct buf *out)
{
    size_t k;

    for (k = 0; k < st->start && n >= st->nfind && memcmp(s, st->find, st->nfind) == 0; k++) {
        s += st->nfind;
        n -= st->nfind;
    }
    for (k = 0;
         k < st->stop && n >= st->nfind && memcmp(s + n - st->nfind, st->find, st->nfind) == 0;
         k++) {
        n -= st->nfind;
    }
    buf_add(out, s, n);
}

static int run_bytes(const struct list *from, struct list *to)
{
    struct buf raw;
    size_t i;
    size_t a = 0;
    size_t n;
    char *text;

    buf_init(&raw, TEXT_MAX);
    for (i = 0; i < from->n; a = from->end[i++]) {
        put_bytes(from->text.data + a, from->end[i] - a, &raw);
    }
    text = buf_status(&raw) ? NULL : unicode_lossy(raw.data, raw.len, &n);
    buf_fini(&raw);
    if (!text) {
        return STATUS_NOMEM;
    }
    buf_add(&to->text, text, n);
    list_close(to);
    mem_free(text);
    return 0;
}

/* Equal neighbours are one; what is empty then is left out. */
static void run_ctc(const struct step *st, const struct list *from, struct list *to)
{
    const char *last = NULL;
    size_t nlast = 0;
    size_t i;
    size_t a = 0;

    for (i = 0; i < from->n; a = from->end[i++]) {
        const char *s = from->text.data + a;
        size_t n = from->end[i] - a;
        size_t at = to->text.len;
        if (last && n == nlast && memcmp(s, last, n) == 0) {
            continue;
        }
        last = s;
        nlast = n;
        put_ctc(st, s, n, &to->text);
        if (to->text.len > at) {
            list_close(to);
        }
    }
}

static int run_step(const struct step *st, const struct list *from, struct list *to)
{
    size_t i;
    size_t a = 0;

    if (st->kind == STEP_FALLBACK) {
        run_fallback(from, to);
        return buf_status(&to->text);
    }
    if (st->kind == STEP_BYTES) {
        return run_bytes(from, to);
    }
    if (st->kind == STEP_CTC) {
        run_ctc(st, from, to);
        return buf_status(&to->text);
    }
    for (i = 0; i < from->n; a = from->end[i++]) {
        const char *s = from->text.data + a;
        size_t n = from->end[i] - a;
        switch (st->kind) {
        case STEP_REPLACE: put_replaced(st, s, n, &to->text); break;
        case STEP_METASPACE: put_metaspace(st, s, n, i == 0 && !st->keep_first, &to->text); break;
        case STEP_STRIP: run_strip(st, s, n, &to->text); break;
        case STEP_WORDPIECE: put_wordpiece(st, s, n, i == 0, &to->text); break;
        case STEP_SUFFIX:
            put_literal(s, n, st->find, st->nfind, " ", i + 1 < from->n, &to->text);
            break;
        default: buf_add(&to->text, s, n); break;
        }
        if (st->kind != STEP_FUSE || i + 1 == from->n) {
            list_close(to);
        }
    }
    return buf_status(&to->text);
}

int detok_run(const struct detok *d, const struct detok_string *tok, size_t n, struct buf *out,
              struct err *e)
{
    struct list l[2];
    size_t room = (size_t)1 << 14;
    size_t i;
    int cur = 0;
    int rc = 0;
    int k;

    memset(l, 0, sizeof l);
    for (i = 0; i < n; i++) {
        room += tok[i].n + 1;
    }
    for (k = 0; k < 2; k++) {
        buf_init(&l[k].text, room < TEXT_MAX / 64 ? 64 * room : TEXT_MAX);
        /* No step makes more strings than there are tokens. */
        l[k].end = mem_try((n + 1) * sizeof *l[k].end);
        if (!l[k].end) {
            rc = STATUS_NOMEM;
        }
    }
    for (i = 0; i < n && rc == 0; i++) {
        if (d->none && i > 0) {
            buf_char(&l[0].text, ' ');
        }
        buf_add(&l[0].text, tok[i].s, tok[i].n);
        list_close(&l[0]);
    }
    for (k = 0; k < d->n && rc == 0; k++) {
        buf_clear(&l[!cur].text);
        l[!cur].n = 0;
        rc = run_step(&d->step[k], &l[cur], &l[!cur]);
        cur = !cur;
    }
    rc = rc ? rc : buf_status(&l[cur].text);
    if (rc == 0) {
        buf_add(out, l[cur].text.data, l[cur].text.len);
        rc = buf_status(out);
    }
    if (rc) {
        rc = ERR(e, STATUS_NOMEM, "text of %zu tokens is too long, or no memory", n);
    }
    for (k = 0; k < 2; k++) {
        buf_fini(&l[k].text);
        mem_free(l[k].end);
    }
    return rc;
}
