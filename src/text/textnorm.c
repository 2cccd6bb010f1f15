/* Owns the normalizer: a flat list of steps, each from one text to the next. Most text needs none
 * of them (plain ASCII under NFC), so a step says when it changes nothing and no copy is made. */
#include "text/textnorm.h"

#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/status.h"
#include "text/charsmap.h"
#include "text/rx.h"
#include "text/unicode.h"

#define STEPS_MAX 64
#define DEPTH_MAX 8

enum step_kind {
    STEP_FORM,
    STEP_PREPEND,
    STEP_REPLACE,
    STEP_STRIP,
    STEP_MAP, /* each character becomes none, one or a few */
    STEP_CHARSMAP,
    STEP_BYTES
};

struct step {
    enum step_kind kind;
    enum unicode_form form;
    char *find; /* REPLACE: the literal, unless rx */
    size_t nfind;
    struct rx *rx;
    char *put; /* PREPEND, REPLACE */
    size_t nput;
    int left, right;                             /* STRIP */
    size_t (*map)(uint32_t cp, uint32_t out[3]); /* MAP: how many characters */
    struct charsmap *charsmap;
};
struct textnorm {
    struct step step[STEPS_MAX];
    int n;
};

/* Copies a JSON string; an absent one is an error naming the key. */
static int take_string(const json_t *o, const char *key, char **s, size_t *n, struct err *e)
{
    const json_t *v = json_object_get(o, key);

    if (!json_is_string(v)) {
        return ERR(e, STATUS_FORMAT, "normalizer: '%s' is not a string", key);
    }
    *n = json_string_length(v);
    *s = mem_strndup(json_string_value(v), *n);
    return 0;
}

static int read_replace(struct step *st, const json_t *spec, struct err *e)
{
    const json_t *pattern = json_object_get(spec, "pattern");
    const json_t *rx = json_object_get(pattern, "Regex");
    int rc = take_string(spec, "content", &st->put, &st->nput, e);

    st->kind = STEP_REPLACE;
    if (rc) {
        return rc;
    }
    if (json_is_string(rx)) {
        return rx_open(json_string_value(rx), json_string_length(rx), &st->rx, e);
    }
    rc = take_string(pattern, "String", &st->find, &st->nfind, e);
    if (rc == 0 && st->nfind == 0) {
        rc = ERR(e, STATUS_UNSUPPORTED, "normalizer: Replace of an empty string");
    }
    return rc;
}

/* ---- maps of single characters ---- */

static size_t map_lower(uint32_t cp, uint32_t out[3])
{
    return unicode_lower(cp, out);
}

static size_t map_accents(uint32_t cp, uint32_t out[3])
{
    out[0] = cp;
    return !unicode_is_mark(cp);
}

static size_t map_nonspacing(uint32_t cp, uint32_t out[3])
{
    out[0] = cp;
    return !unicode_is_nonspacing(cp);
}

static size_t map_clean(uint32_t cp, uint32_t out[3])
{
    int line = cp == '\t' || cp == '\n' || cp == '\r';

    out[0] = line || unicode_is_space(cp) ? ' ' : cp;
    return line || !unicode_is_dropped(cp);
}

/* Spaces around the characters of Chinese; the gap after U+2B81F is the package's own. */
static size_t map_chinese(uint32_t cp, uint32_t out[3])
{
    if ((cp >= 0x4E00 && cp <= 0x9FFF) || (cp >= 0x3400 && cp <= 0x4DBF) ||
        (cp >= 0x20000 && cp <= 0x2A6DF) || (cp >= 0x2A700 && cp <= 0x2B81F) ||
        (cp >= 0x2B920 && cp <= 0x2CEAF) || (cp >= 0xF900 && cp <= 0xFAFF) ||
        (cp >= 0x2F800 && cp <= 0x2FA1F)) {
        out[0] = out[2] = ' ';
        out[1] = cp;
        return 3;
    }
    out[0] = cp;
    return 1;
}

static size_t map_nmt(uint32_t cp, uint32_t out[3])
{
    out[0] = cp;
    if ((cp >= 1 && cp <= 8) || cp == 0xB || (cp >= 0xE && cp <= 0x1F) || cp == 0x7F ||
        cp == 0x8F || cp == 0x9F) {
        return 0;
    }
    if (cp == 9 || cp == 0xA || cp == 0xC || cp == 0xD || cp == 0x1680 ||
        (cp >= 0x200B && cp <= 0x200F) || cp == 0x2028 || cp == 0x2029 || cp == 0x2581 ||
        cp == 0xFEFF || cp == 0xFFFD) {
        out[0] = ' ';
    }
    return 1;
}

/* ---- reading the description ---- */

static struct step *add_step(struct textnorm *t, enum step_kind kind, struct err *e)
{
    if (t->n == STEPS_MAX) {
        ERR(e, STATUS_UNSUPPORTED, "normalizer with more than %d steps", STEPS_MAX);
        return NULL;
    }
    t->step[t->n].kind = kind;
    return &t->step[t->n++];
}

static int add_map(struct textnorm *t, size_t (*map)(uint32_t, uint32_t[3]), struct err *e)
{
    struct step *st = add_step(t, STEP_MAP, e);

    if (!st) {
        return STATUS_UNSUPPORTED;
    }
    st->map = map;
    return 0;
}

/* clean_text, handle_chinese_chars, strip_accents (null: as lowercase), lowercase, in that order.
 */
static int read_bert(struct textnorm *t, const json_t *spec, struct err *e)
{
    const json_t *strip = json_object_get(spec, "strip_accents");
    int lower = !json_is_false(json_object_get(spec, "lowercase"));
    int accents = json_is_boolean(strip) ? json_is_true(strip) : lower;
    int rc = 0;

    if (!json_is_false(json_object_get(spec, "clean_text"))) {
        rc = add_map(t, map_clean, e);
    }
    if (rc == 0 && !json_is_false(json_object_get(spec, "handle_chinese_chars"))) {
        rc = add_map(t, map_chinese, e);
    }
    if (rc == 0 && accents) {
        struct step *st = add_step(t, STEP_FORM, e);
        rc = st ? 0 : STATUS_UNSUPPORTED;
        if (st) {
            st->form = UNICODE_NFD;
        }
        rc = rc ? rc : add_map(t, map_nonspacing, e);
    }
    return rc == 0 && lower ? add_map(t, map_lower, e) : rc;
}

static int read_charsmap(struct textnorm *t, const json_t *spec, struct err *e)
{
    const json_t *map = json_object_get(spec, "precompiled_charsmap");
    struct step *st;

    if (!json_is_string(map)) {
        return ERR(e, STATUS_FORMAT, "normalizer: Precompiled without a precompiled_charsmap");
    }
    st = add_step(t, STEP_CHARSMAP, e);
    return st ? charsmap_open(json_string_value(map), json_string_length(map), &st->charsmap, e)
              : STATUS_UNSUPPORTED;
}

static int read_step(struct textnorm *t, const json_t *spec, int depth, struct err *e)
{
    static const char *const forms[] = {"NFC", "NFD", "NFKC", "NFKD"};
    const char *type = json_string_value(json_object_get(spec, "type"));
    struct step *st;
    int i;

    if (!type) {
        return ERR(e, STATUS_FORMAT, "normalizer without a type");
    }
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list = json_object_get(spec, "normalizers");
        size_t k;
        int rc = 0;
        if (!json_is_array(list) || depth >= DEPTH_MAX) {
            return ERR(e, STATUS_FORMAT, "normalizer: Sequence without a list, or nested too deep");
        }
        for (k = 0; k < json_array_size(list) && rc == 0; k++) {
            rc = read_step(t, json_array_get(list, k), depth + 1, e);
        }
        return rc;
    }
    if (strcmp(type, "Lowercase") == 0) {
        return add_map(t, map_lower, e);
    }
    if (strcmp(type, "StripAccents") == 0) {
        return add_map(t, map_accents, e);
    }
    if (strcmp(type, "Nmt") == 0) {
        return add_map(t, map_nmt, e);
    }
    if (strcmp(type, "BertNormalizer") == 0) {
        return read_bert(t, spec, e);
    }
    if (strcmp(type, "Precompiled") == 0) {
        return read_charsmap(t, spec, e);
    }
    st = add_step(t, STEP_FORM, e);
    if (!st) {
        return STATUS_UNSUPPORTED;
    }
    for (i = 0; i < 4; i++) {
        if (strcmp(type, forms[i]) == 0) {
            st->kind = STEP_FORM;
            st->form = (enum unicode_form)i;
            return 0;
        }
    }
    if (strcmp(type, "Prepend") == 0) {
        st->kind = STEP_PREPEND;
        return take_string(spec, "prepend", &st->put, &st->nput, e);
    }
    if (strcmp(type, "Replace") == 0) {
        return read_replace(st, spec, e);
    }
    if (strcmp(type, "Strip") == 0) {
        st->kind = STEP_STRIP;
        st->left = json_is_true(json_object_get(spec, "strip_left"));
        st->right = json_is_true(json_object_get(spec, "strip_right"));
        return 0;
    }
    if (strcmp(type, "ByteLevel") == 0) {
        st->kind = STEP_BYTES;
        return 0;
    }
    return ERR(e, STATUS_UNSUPPORTED, "normalizer '%.100s' is not supported", type);
}

int textnorm_open(const json_t *spec, struct textnorm **out, struct err *e)
{
    struct textnorm *t = mem_alloc(sizeof *t);
    int rc = 0;

    if (spec && !json_is_null(spec)) {
        rc = read_step(t, spec, 0, e);
    }
    if (rc) {
        textnorm_close(t);
        return rc;
    }
    *out = t;
    return 0;
}

void textnorm_close(struct textnorm *t)
{
    int i;

    if (!t) {
        return;
    }
    for (i = 0; i < t->n; i++) {
        mem_free(t->step[i].find);
        mem_free(t->step[i].put);
        rx_close(t->step[i].rx);
        charsmap_close(t->step[i].charsmap);
    }
    mem_free(t);
}

static int replace_literal(const struct step *st, const char *s, size_t n, struct buf *out)
{
    size_t i = 0;

    while (i < n) {
        const char *hit = memmem(s + i, n - i, st->find, st->nfind);
        size_t k = hit ? (size_t)(hit - s) : n;
        buf_add(out, s + i, k - i);
        if (hit) {
            buf_add(out, st->put, st->nput);
            k += st->nfind;
        }
        i = k;
    }
    return buf_status(out);
}

static int replace_rx(const struct step *st, const char *s, size_t n, struct rx_scratch *w,
                      struct buf *out, struct err *e)
{
    struct rx_iter it;
    size_t a, b;
    size_t i = 0;
    int oom;
    char *shadow = unicode_shadow(s, n, &oom);
    int rc;

    if (oom) {
        return ERR(e, STATUS_NOMEM, "no memory to normalize %zu bytes", n);
    }
    rx_iter_init(&it, st->rx, shadow ? shadow : s, n);
    while ((rc = rx_next(&it, w, &a, &b, e)) == STATUS_OK) {
        buf_add(out, s + i, a - i);
        buf_add(out, st->put, st->nput);
        i = b;
    }
    buf_add(out, s + i, n - i);
    mem_free(shadow);
    return rc == STATUS_END ? buf_status(out) : rc;
}

static void strip(const struct step *st, const char *s, size_t n, struct buf *out)
{
    uint32_t cp;
    size_t k;

    while (st->left && n > 0 && (k = unicode_next(s, &cp), unicode_is_space(cp))) {
        s += k;
        n -= k;
    }
    while (st->right && n > 0 && (k = unicode_prev(s, n, &cp), unicode_is_space(cp))) {
        n -= k;
    }
    buf_add(out, s, n);
}

static void map_chars(const struct step *st, const char *s, size_t n, struct buf *out)
{
    size_t i = 0;

    while (i < n) {
        uint32_t cp, to[3];
        char b[12];
        size_t k, o = 0, j;
        i += unicode_next(s + i, &cp);
        k = st->map(cp, to);
        for (j = 0; j < k; j++) {
            o += unicode_put(to[j], b + o);
        }
        buf_add(out, b, o);
    }
}

static void spell_bytes(const char *s, size_t n, struct buf *out)
{
    size_t i;

    for (i = 0; i < n; i++) {
        char b[4];
        buf_add(out, b, unicode_put(unicode_byte_char((uint8_t)s[i]), b));
    }
}

/* 1 when the step leaves this text alone. */
static int is_noop(const struct step *st, const char *s, size_t n)
{
    switch (st->kind) {
    case STEP_FORM: return unicode_is_normal(st->form, s, n);
    case STEP_PREPEND: return n == 0;
    case STEP_REPLACE: return !st->rx && !memmem(s, n, st->find, st->nfind);
    default: return 0;
    }
}

static int run_step(const struct step *st, const char *s, size_t n, struct rx_scratch *w,
                    struct buf *out, struct err *e)
{
    int rc;

    switch (st->kind) {
    case STEP_FORM: rc = unicode_normalize(st->form, s, n, out); break;
    case STEP_PREPEND:
        buf_add(out, st->put, st->nput);
        buf_add(out, s, n);
        rc = buf_status(out);
        break;
    case STEP_REPLACE:
        if (st->rx) {
            return replace_rx(st, s, n, w, out, e);
        }
        rc = replace_literal(st, s, n, out);
        break;
    case STEP_MAP:
        map_chars(st, s, n, out);
        rc = buf_status(out);
        break;
    case STEP_CHARSMAP:
        charsmap_apply(st->charsmap, s, n, out);
        rc = buf_status(out);
        break;
    case STEP_BYTES:
        spell_bytes(s, n, out);
        rc = buf_status(out);
        break;
    default:
        strip(st, s, n, out);
        rc = buf_status(out);
        break;
    }
    return rc ? ERR(e, rc, "text of %zu bytes cannot be normalized: too long or no memory", n) : 0;
}

int textnorm_apply(const struct textnorm *t, const char *s, size_t n, struct rx_scratch *w,
                   struct buf *out, int *changed, struct err *e)
{
    struct buf tmp;
    int rc = 0;
    int i;

    *changed = 0;
    buf_clear(out);
    buf_init(&tmp, out->max);
    for (i = 0; i < t->n && rc == 0; i++) {
        const struct step *st = &t->step[i];
        const char *from = *changed ? out->data : s;
        size_t k = *changed ? out->len : n;
        if (is_noop(st, from, k)) {
            continue;
        }
        buf_clear(&tmp);
        rc = run_step(st, from, k, w, &tmp, e);
        if (rc == 0) {
            struct buf swap = *out;
            *out = tmp;
            tmp = swap;
            *changed = 1;
        }
    }
    buf_fini(&tmp);
    return rc;
}
