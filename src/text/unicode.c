/* Owns Unicode for the tokenizer: what is a valid character, what class it has, what its normal
 * form is. Tokens must equal those of the `tokenizers` package bit for bit, and that package mixes
 * Unicode versions (regex 16, digits 17, normal forms 9). The libraries linked here have others, so
 * unicode_int.h lists the differences and this file applies them. */
#include "text/unicode.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include <utf8proc.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/status.h"
#include "text/unicode_int.h"

#define COUNT(a) (sizeof(a) / sizeof(a)[0])

/* Length of the valid character at s, or 0. A second result tells how many bytes are a correct
 * start of one: they are replaced together. */
static size_t char_length(const unsigned char *s, size_t n, size_t *bad)
{
    unsigned c = s[0];
    unsigned lo = 0x80;
    unsigned hi = 0xBF;
    size_t want, i;

    *bad = 1;
    if (c < 0x80) {
        return 1;
    }
    if (c < 0xC2 || c > 0xF4) {
        return 0;
    }
    want = c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
    if (c == 0xE0) {
        lo = 0xA0;
    } else if (c == 0xED) {
        hi = 0x9F;
    } else if (c == 0xF0) {
        lo = 0x90;
    } else if (c == 0xF4) {
        hi = 0x8F;
    }
    for (i = 1; i < want; i++) {
        if (i >= n || s[i] < lo || s[i] > hi) {
            *bad = i;
            return 0;
        }
        lo = 0x80;
        hi = 0xBF;
    }
    return want;
}

static size_t ascii_prefix(const char *s, size_t n)
{
    size_t i = 0;

    while (n - i >= 8) {
        uint64_t w;
        memcpy(&w, s + i, 8);
        if (w & UINT64_C(0x8080808080808080)) {
            break;
        }
        i += 8;
    }
    while (i < n && (unsigned char)s[i] < 0x80) {
        i++;
    }
    return i;
}

size_t unicode_valid_prefix(const char *s, size_t n)
{
    size_t i = 0;

    while (i < n) {
        size_t bad, k;
        i += ascii_prefix(s + i, n - i);
        if (i == n) {
            break;
        }
        k = char_length((const unsigned char *)s + i, n - i, &bad);
        if (!k) {
            return i;
        }
        i += k;
    }
    return i;
}

char *unicode_lossy(const char *s, size_t n, size_t *len)
{
    size_t i = 0;
    size_t o = 0;
    char *out;

    if (n > SIZE_MAX / 3 - 1) {
        return NULL;
    }
    out = mem_try(3 * n + 1);
    if (!out) {
        return NULL;
    }
    while (i < n) {
        size_t bad;
        size_t k = unicode_valid_prefix(s + i, n - i);
        memcpy(out + o, s + i, k);
        o += k;
        i += k;
        if (i < n) {
            char_length((const unsigned char *)s + i, n - i, &bad);
            memcpy(out + o, "\xEF\xBF\xBD", 3);
            o += 3;
            i += bad;
        }
    }
    out[o] = 0;
    *len = o;
    return out;
}

size_t unicode_width(unsigned char c)
{
    return c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
}

size_t unicode_next(const char *s, uint32_t *cp)
{
    const unsigned char *p = (const unsigned char *)s;

    if (p[0] < 0x80) {
        *cp = p[0];
        return 1;
    }
    if (p[0] < 0xE0) {
        *cp = (p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu);
        return 2;
    }
    if (p[0] < 0xF0) {
        *cp = (p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
        return 3;
    }
    *cp = (p[0] & 0x07u) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
    return 4;
}

size_t unicode_prev(const char *s, size_t n, uint32_t *cp)
{
    size_t k = 1;

    while (k < n && ((unsigned char)s[n - k] & 0xC0) == 0x80) {
        k++;
    }
    unicode_next(s + n - k, cp);
    return k;
}

size_t unicode_put(uint32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}

static int in_ranges(const struct unicode_range *r, size_t n, uint32_t cp)
{
    size_t lo = 0;
    size_t hi = n;

    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (cp > r[mid].last) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo < n && cp >= r[lo].first;
}

/* The older character of the same class, or cp itself. */
static uint32_t standin(uint32_t cp)
{
    size_t lo = 0;
    size_t hi = COUNT(unicode_young);

    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (cp > unicode_young[mid].last) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    if (lo < COUNT(unicode_young) && cp >= unicode_young[lo].first) {
        return unicode_young[lo].standin;
    }
    return cp;
}

int unicode_is_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || cp == 0x20 || cp == 0x85 || cp == 0xA0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 || cp == 0x202F ||
           cp == 0x205F || cp == 0x3000;
}

int unicode_is_numeric(uint32_t cp)
{
    if (cp < 0x80) {
        return cp >= '0' && cp <= '9';
    }
    return in_ranges(unicode_numeric, COUNT(unicode_numeric), cp);
}

int unicode_is_word(uint32_t cp)
{
    if (cp == 0x200C || cp == 0x200D || (cp >= 0x24B6 && cp <= 0x24E9) ||
        (cp >= 0x1F130 && cp <= 0x1F149) || (cp >= 0x1F150 && cp <= 0x1F169) ||
        (cp >= 0x1F170 && cp <= 0x1F189)) {
        return 1; /* join controls; circled and squared letters are alphabetic symbols */
    }
    switch (utf8proc_category((utf8proc_int32_t)standin(cp))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return 1;
    default: return 0;
    }
}

int unicode_is_dropped(uint32_t cp)
{
    return in_ranges(unicode_dropped, COUNT(unicode_dropped), cp);
}

int unicode_is_nonspacing(uint32_t cp)
{
    return in_ranges(unicode_nonspacing, COUNT(unicode_nonspacing), cp);
}

int unicode_is_mark(uint32_t cp)
{
    return in_ranges(unicode_marks, COUNT(unicode_marks), cp);
}

int unicode_is_punct(uint32_t cp)
{
    return in_ranges(unicode_puncts, COUNT(unicode_puncts), cp);
}

size_t unicode_lower(uint32_t cp, uint32_t out[2])
{
    size_t lo = 0;
    size_t hi = COUNT(unicode_lowers);

    out[0] = cp;
    if (cp < 0x80) {
        out[0] = cp >= 'A' && cp <= 'Z' ? cp + 32 : cp;
        return 1;
    }
    if (cp == 0x130) { /* the one capital with two */
        out[0] = 'i';
        out[1] = 0x307;
        return 2;
    }
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (cp > unicode_lowers[mid].last) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    if (lo < COUNT(unicode_lowers) && cp >= unicode_lowers[lo].first &&
        (cp - unicode_lowers[lo].first) % unicode_lowers[lo].step == 0) {
        out[0] = (uint32_t)((int64_t)cp + unicode_lowers[lo].add);
    }
    return 1;
}

size_t unicode_grapheme(const char *s, size_t n)
{
    utf8proc_int32_t state = 0;
    uint32_t cp, next;
    size_t i = unicode_next(s, &cp);

    while (i < n) {
        size_t k = unicode_next(s + i, &next);
        if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)cp, (utf8proc_int32_t)next,
                                             &state)) {
            break;
        }
        cp = next;
        i += k;
    }
    return i;
}

enum unicode_class unicode_class(uint32_t cp)
{
    if (cp == '\r' || cp == '\n') {
        return UNICODE_NEWLINE;
    }
    if (unicode_is_space(cp)) {
        return UNICODE_SPACE;
    }
    switch (utf8proc_category((utf8proc_int32_t)standin(cp))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT: return UNICODE_UPPER;
    case UTF8PROC_CATEGORY_LL: return UNICODE_LOWER;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: return UNICODE_CASELESS;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME: return UNICODE_MARK;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO: return UNICODE_NUMBER;
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO: return UNICODE_PUNCT;
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK:
    case UTF8PROC_CATEGORY_SO: return UNICODE_SYMBOL;
    default: return UNICODE_OTHER;
    }
}

char *unicode_shadow(const char *s, size_t n, int *oom)
{
    char *out = NULL;
    size_t i = 0;

    *oom = 0;
    while (i < n) {
        uint32_t cp, old;
        size_t k;
        i += ascii_prefix(s + i, n - i);
        if (i == n) {
            break;
        }
        k = unicode_next(s + i, &cp);
        /* The oldest young character, and the bulk of everyday scripts that has none. */
        if (cp >= 0x897 && !(cp >= 0x3200 && cp < 0xA7CB)) {
            old = standin(cp);
            if (old != cp) {
                if (!out) {
                    out = mem_try(n + 1);
                    if (!out) {
                        *oom = 1;
                        return NULL;
                    }
                    memcpy(out, s, n);
                }
                unicode_put(old, out + i);
            }
        }
        i += k;
    }
    return out;
}

/* ---- the byte alphabet ---- */

/* Printable Latin-1 bytes stand for themselves; the other 68 become U+0100 and up, in byte order.
 */
static int byte_is_plain(unsigned b)
{
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
}

uint32_t unicode_byte_char(uint8_t b)
{
    if (byte_is_plain(b)) {
        return b;
    }
    if (b <= 0x20) {
        return 0x100u + b;
    }
    return b == 0xAD ? 0x143u : 0x100u + 0x21u + (b - 0x7Fu);
}

int unicode_char_byte(uint32_t cp)
{
    if (cp < 0x100) {
        return byte_is_plain(cp) ? (int)cp : -1;
    }
    if (cp <= 0x120) {
        return (int)(cp - 0x100);
    }
    if (cp <= 0x142) {
        return (int)(cp - 0x121 + 0x7F);
    }
    return cp == 0x143 ? 0xAD : -1;
}

/* ---- normal forms ---- */

static int form_options(enum unicode_form form)
{
    switch (form) {
    case UNICODE_NFC: return UTF8PROC_STABLE | UTF8PROC_COMPOSE;
    case UNICODE_NFD: return UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
    case UNICODE_NFKC: return UTF8PROC_STABLE | UTF8PROC_COMPAT | UTF8PROC_COMPOSE;
    default: return UTF8PROC_STABLE | UTF8PROC_COMPAT | UTF8PROC_DECOMPOSE;
    }
}

/* ---- the quick look: which characters can be left alone ---- */

/* For NFC and NFKC each character has its combining class, or QUICK_NO when it may change or join
 * the one before it. Filled a page at a time when a character of it is first met. */
#define QUICK_NO   255
#define SECOND_MAX 0x20000 /* all characters that join backwards are below */

struct quick {
    uint8_t value[0x110000];
    atomic_uchar ready[0x1100];
};
static struct quick quick_nfc, quick_nfkc;
static uint64_t quick_second[SECOND_MAX / 64];
static pthread_once_t quick_once = PTHREAD_ONCE_INIT;
static pthread_mutex_t quick_lock = PTHREAD_MUTEX_INITIALIZER;

static size_t decompose(uint32_t cp, int options, utf8proc_int32_t out[32])
{
    int boundclass = UTF8PROC_BOUNDCLASS_START;
    utf8proc_ssize_t n =
        utf8proc_decompose_char((utf8proc_int32_t)cp, out, 32,
                                (utf8proc_option_t)(options | UTF8PROC_DECOMPOSE), &boundclass);

    return n < 0 || n > 32 ? 0 : (size_t)n;
}

/* Marks what stands behind the first character of a decomposition: all that can join backwards, and
 * some more, which does no harm. */
static void quick_seconds(void)
{
    uint32_t cp;
    size_t i, n;

    for (cp = 0xC0; cp < SECOND_MAX; cp++) {
        utf8proc_int32_t d[32];
        if ((cp >= 0x3400 && cp < 0xA000) || (cp >= 0xAC00 && cp < 0xF900)) {
            continue; /* ideographs have none, syllables are below */
        }
        n = decompose(cp, UTF8PROC_STABLE, d);
        for (i = 1; i < n; i++) {
            if (d[i] < SECOND_MAX) {
                quick_second[d[i] / 64] |= (uint64_t)1 << d[i] % 64;
            }
        }
    }
    for (cp = 0x1161; cp <= 0x11C2; cp++) { /* the second and third parts of syllables */
        quick_second[cp / 64] |= (uint64_t)1 << cp % 64;
    }
}

static uint8_t quick_value(enum unicode_form form, uint32_t cp)
{
    utf8proc_int32_t d[32];
    utf8proc_ssize_t n;

    if (in_ranges(unicode_inert, COUNT(unicode_inert), cp)) {
        return 0;
    }
    if ((cp >= 0xD800 && cp < 0xE000) ||
        (cp < SECOND_MAX && (quick_second[cp / 64] >> cp % 64 & 1))) {
        return QUICK_NO;
    }
    n = (utf8proc_ssize_t)decompose(cp, form_options(form), d);
    if (n > 1) {
        n = utf8proc_normalize_utf32(d, n, (utf8proc_option_t)form_options(form));
    }
    if (n != 1 || d[0] != (utf8proc_int32_t)cp) {
        return QUICK_NO;
    }
    return (uint8_t)utf8proc_get_property((utf8proc_int32_t)cp)->combining_class;
}

static void __attribute__((noinline))
quick_fill(struct quick *q, enum unicode_form form, uint32_t page)
{
    uint32_t i;

    pthread_once(&quick_once, quick_seconds);
    pthread_mutex_lock(&quick_lock);
    if (!atomic_load_explicit(&q->ready[page], memory_order_relaxed)) {
        for (i = 0; i < 256; i++) {
            q->value[page << 8 | i] = quick_value(form, page << 8 | i);
        }
        atomic_store_explicit(&q->ready[page], 1, memory_order_release);
    }
    pthread_mutex_unlock(&quick_lock);
}

/* Length of the start of s that is its own normal form whatever follows, up to a character that is
 * never changed by what stands before it. */
static size_t quick_prefix(enum unicode_form form, const char *s, size_t n)
{
    struct quick *q = form == UNICODE_NFC ? &quick_nfc : &quick_nfkc;
    size_t starter = 0;
    size_t i = 0;
    unsigned last = 0;

    while (i < n) {
        uint32_t cp;
        size_t k = ascii_prefix(s + i, n - i);
        unsigned v;
        if (k > 0) {
            i += k;
            starter = i - 1;
            last = 0;
            continue;
        }
        k = unicode_next(s + i, &cp);
        if (!atomic_load_explicit(&q->ready[cp >> 8], memory_order_acquire)) {
            quick_fill(q, form, cp >> 8);
        }
        v = q->value[cp];
        if (v == QUICK_NO || (v && v < last)) {
            return starter;
        }
        if (v == 0) {
            starter = i;
        }
        last = v;
        i += k;
    }
    return n;
}

/* Where the next character is that nothing before it changes; s + i is looked at first. */
static size_t quick_next(enum unicode_form form, const char *s, size_t n, size_t i)
{
    struct quick *q = form == UNICODE_NFC ? &quick_nfc : &quick_nfkc;

    while (i < n) {
        uint32_t cp;
        size_t k = unicode_next(s + i, &cp);
        if (!atomic_load_explicit(&q->ready[cp >> 8], memory_order_acquire)) {
            quick_fill(q, form, cp >> 8);
        }
        if (q->value[cp] == 0) {
            break;
        }
        i += k;
    }
    return i;
}

int unicode_is_normal(enum unicode_form form, const char *s, size_t n)
{
    if (form != UNICODE_NFC && form != UNICODE_NFKC) {
        return ascii_prefix(s, n) == n;
    }
    return quick_prefix(form, s, n) == n;
}

/* ---- the long way ---- */

struct norm_run {
    utf8proc_int32_t *cp, *tmp;
    size_t n, cap;
    int options;
    struct buf *out;
};

static unsigned combining_class(utf8proc_int32_t cp)
{
    return utf8proc_get_property(cp)->combining_class;
}

/* Sorts one run of marks by combining class, keeping the order of equals: insertion for the usual
 * two or three, counting for long ones, so that hostile text stays linear. */
static void sort_marks(utf8proc_int32_t *a, utf8proc_int32_t *tmp, size_t n)
{
    size_t count[257] = {0};
    size_t i, j;

    if (n <= 16) {
        for (i = 1; i < n; i++) {
            utf8proc_int32_t c = a[i];
            unsigned cc = combining_class(c);
            for (j = i; j > 0 && combining_class(a[j - 1]) > cc; j--) {
                a[j] = a[j - 1];
            }
            a[j] = c;
        }
        return;
    }
    for (i = 0; i < n; i++) {
        count[(combining_class(a[i]) & 255u) + 1]++;
    }
    for (i = 1; i < 257; i++) {
        count[i] += count[i - 1];
    }
    for (i = 0; i < n; i++) {
        tmp[count[combining_class(a[i]) & 255u]++] = a[i];
    }
    memcpy(a, tmp, n * sizeof *a);
}

/* Orders, composes and writes what has been gathered. */
static int run_flush(struct norm_run *r)
{
    size_t i = 0;
    utf8proc_ssize_t n;

    while (i < r->n) {
        size_t j = i;
        while (j < r->n && combining_class(r->cp[j]) != 0) {
            j++;
        }
        if (j - i > 1) {
            sort_marks(r->cp + i, r->tmp, j - i);
        }
        i = j + 1;
    }
    n = (utf8proc_ssize_t)r->n;
    if ((r->options & UTF8PROC_COMPOSE) && n > 0) {
        n = utf8proc_normalize_utf32(r->cp, n, (utf8proc_option_t)r->options);
        if (n < 0) {
            return STATUS_FAIL;
        }
    }
    for (i = 0; i < (size_t)n; i++) {
        char b[4];
        buf_add(r->out, b, unicode_put((uint32_t)r->cp[i], b));
    }
    r->n = 0;
    return buf_status(r->out);
}

static int run_add(struct norm_run *r, uint32_t cp)
{
    utf8proc_ssize_t k;
    int boundclass = UTF8PROC_BOUNDCLASS_START;

    if (r->cap - r->n < 32) { /* the longest decomposition has 18 characters */
        size_t cap = r->cap * 2;
        utf8proc_int32_t *p = mem_try(cap * sizeof *p);
        utf8proc_int32_t *t = mem_try(cap * sizeof *t);
        if (!p || !t) {
            mem_free(p);
            mem_free(t);
            return STATUS_NOMEM;
        }
        memcpy(p, r->cp, r->n * sizeof *p);
        mem_free(r->cp);
        mem_free(r->tmp);
        r->cp = p;
        r->tmp = t;
        r->cap = cap;
    }
    k = utf8proc_decompose_char((utf8proc_int32_t)cp, r->cp + r->n,
                                (utf8proc_ssize_t)(r->cap - r->n),
                                (utf8proc_option_t)(r->options | UTF8PROC_DECOMPOSE), &boundclass);
    if (k < 0 || (size_t)k > r->cap - r->n) {
        return STATUS_FAIL;
    }
    r->n += (size_t)k;
    return 0;
}

static int normalize_all(enum unicode_form form, const char *s, size_t n, struct buf *out)
{
    struct norm_run r = {.cap = 128, .options = form_options(form), .out = out};
    size_t i = 0;
    int rc = STATUS_NOMEM;

    r.cp = mem_try(r.cap * sizeof *r.cp);
    r.tmp = mem_try(r.cap * sizeof *r.tmp);
    if (!r.cp || !r.tmp) {
        goto out;
    }
    while (i < n) {
        uint32_t cp;
        size_t k = unicode_next(s + i, &cp);
        rc = 0;
        if (in_ranges(unicode_inert, COUNT(unicode_inert), cp)) {
            rc = run_flush(&r);
            buf_add(out, s + i, k);
        } else {
            /* Nothing composes backwards with ASCII: a place to empty the gathered run. */
            if (cp < 0x80 && r.n >= 64) {
                rc = run_flush(&r);
            }
            rc = rc ? rc : run_add(&r, cp);
        }
        if (rc) {
            goto out;
        }
        i += k;
    }
    rc = run_flush(&r);
out:
    mem_free(r.cp);
    mem_free(r.tmp);
    return rc;
}

int unicode_normalize(enum unicode_form form, const char *s, size_t n, struct buf *out)
{
    int rc = 0;

    if (form != UNICODE_NFC && form != UNICODE_NFKC) {
        return normalize_all(form, s, n, out);
    }
    /* In turn: what can stay, and what must be looked at, from the character before it on. */
    while (n > 0 && rc == 0) {
        size_t a = quick_prefix(form, s, n);
        size_t b = a;
        buf_add(out, s, a);
        if (a < n) {
            b = quick_next(form, s, n, a + unicode_width((unsigned char)s[a]));
            rc = normalize_all(form, s + a, b - a, out);
        }
        s += b;
        n -= b;
    }
    return rc ? rc : buf_status(out);
}
