/* Owns the text-comparing rewards. Both follow published evaluation scripts step by step; each step
 * writes a new string, so that the order, which matters, can be read off. */
#include "reward/textgrade.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <utf8proc.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/status.h"

enum { DAPO_CHARS = 300, LABEL_MAX = 1 << 16 };

static size_t char_at(const char *s, const char *end, int32_t *code)
{
    utf8proc_int32_t c;
    utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)s, end - s, &c);

    *code = n > 0 ? c : -1;
    return n > 0 ? (size_t)n : 1;
}

static int is_space(int32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

/* ---- F1 ---- */

static int is_word_char(int32_t c)
{
    utf8proc_category_t k = c < 0 ? UTF8PROC_CATEGORY_CN : utf8proc_category(c);
    return c == '_' || (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO) ||
           (k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO);
}

static int is_article(const char *s, size_t n)
{
    return (n == 1 && s[0] == 'a') || (n == 2 && memcmp(s, "an", 2) == 0) ||
           (n == 3 && memcmp(s, "the", 3) == 0);
}

/* Lower case without ASCII punctuation. */
static void fold_case(const char *s, struct buf *out)
{
    const char *end = s + strlen(s);

    while (s < end) {
        int32_t c;
        size_t n = char_at(s, end, &c);
        char u[8];
        if (c >= 0x80) {
            buf_add(out, u, (size_t)utf8proc_encode_char(utf8proc_tolower(c), (uint8_t *)u));
        } else if (c < 0) {
            buf_char(out, *s);
        } else if (c >= 'A' && c <= 'Z') {
            buf_char(out, (char)(c + 32));
        } else if (!(c > ' ' && c < 127) || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) {
            buf_char(out, (char)c);
        }
        s += n;
    }
}

/* Replaces whole words that are articles by blanks, in place. */
static void blank_articles(char *s)
{
    char *end = s + strlen(s), *word = NULL;

    while (s <= end) {
        int32_t c = -1;
        size_t n = s < end ? char_at(s, end, &c) : 1;
        if (s < end && is_word_char(c)) {
            word = word ? word : s;
        } else if (word) {
            if (is_article(word, (size_t)(s - word))) {
                memset(word, ' ', (size_t)(s - word));
            }
            word = NULL;
        }
        s += n;
    }
}

struct words {
    char *text; /* one blank between words */
    char **item;
    size_t n;
};

static void make_words(const char *s, struct words *w)
{
    struct buf b;
    char *p, *end, *out;
    size_t len;

    buf_init(&b, 3 * strlen(s) + 16);
    fold_case(s, &b);
    w->text = buf_take(&b, &len);
    w->item = mem_alloc((len / 2 + 1) * sizeof *w->item);
    w->n = 0;
    blank_articles(w->text);
    end = w->text + len;
    for (p = out = w->text; p < end;) {
        int32_t c;
        size_t n = char_at(p, end, &c);
        if (is_space(c)) {
            p += n;
            continue;
        }
        if (w->n) {
            *out++ = 0;
        }
        w->item[w->n++] = out;
        while (p < end && (n = char_at(p, end, &c)) > 0 && !is_space(c)) {
            memmove(out, p, n);
            out += n;
            p += n;
        }
    }
    *out = 0;
}

static void free_words(struct words *w)
{
    mem_free(w->text);
    mem_free(w->item);
}

static int compare_words(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* One of the words that must be met exactly, and the other side is different. */
static int contradicts(const struct words *a, const struct words *b)
{
    static const char *const exact[] = {"yes", "no", "noanswer"};

    for (int i = 0; i < 3; i++) {
        if (a->n == 1 && strcmp(a->item[0], exact[i]) == 0) {
            return b->n != 1 || strcmp(b->item[0], exact[i]) != 0;
        }
    }
    return 0;
}

double textgrade_f1(const char *answer, const char *truth, struct textgrade_words *w)
{
    struct words a, t;
    size_t i = 0, k = 0, common = 0;
    double f1 = 0;

    make_words(answer, &a);
    make_words(truth, &t);
    w->contradicts = contradicts(&a, &t) || contradicts(&t, &a);
    if (!w->contradicts) {
        qsort(a.item, a.n, sizeof *a.item, compare_words);
        qsort(t.item, t.n, sizeof *t.item, compare_words);
        while (i < a.n && k < t.n) {
            int c = strcmp(a.item[i], t.item[k]);
            common += c == 0;
            i += c <= 0;
            k += c >= 0;
        }
    }
    if (common) {
        double p = (double)common / (double)a.n, r = (double)common / (double)t.n;
        f1 = 2 * p * r / (p + r);
    }
    w->answer = a.n;
    w->truth = t.n;
    w->common = common;
    free_words(&a);
    free_words(&t);
    return f1;
}

/* ---- dapo ---- */

static char *replace(char *s, const char *from, const char *to)
{
    size_t nf = strlen(from);
    struct buf b;
    char *hit, *at = s;

    if (!strstr(s, from)) {
        return s;
    }
    buf_init(&b, (size_t)8 * LABEL_MAX);
    while ((hit = strstr(at, from)) != NULL) {
        buf_add(&b, at, (size_t)(hit - at));
        buf_str(&b, to);
        at = hit + nf;
    }
    buf_str(&b, at);
    mem_free(s);
    return buf_take(&b, NULL);
}

/* Each line with two dollar signs becomes $what is between the first two$. */
static char *keep_dollars(char *s)
{
    struct buf b;
    char *line = s;

    buf_init(&b, (size_t)8 * LABEL_MAX);
    while (*line) {
        size_t n = strcspn(line, "\n");
        char *first = memchr(line, '$', n);
        char *second = first ? memchr(first + 1, '$', n - (size_t)(first + 1 - line)) : NULL;
        if (second) {
            buf_add(&b, first, (size_t)(second - first) + 1);
        } else {
            buf_add(&b, line, n);
        }
        line += n;
        if (*line) {
            buf_char(&b, *line++);
        }
    }
    mem_free(s);
    return buf_take(&b, NULL);
}

/* open...} -> ..., to the first closing brace of the line, or to the last when greedy. */
static char *unwrap(char *s, const char *open, int greedy)
{
    size_t no = strlen(open);
    struct buf b;
    char *at = s, *hit;

    buf_init(&b, (size_t)8 * LABEL_MAX);
    while ((hit = strstr(at, open)) != NULL) {
        char *in = hit + no, *close;
        size_t n = strcspn(in, "\n");
        close = greedy ? memrchr(in, '}', n) : memchr(in, '}', n);
        if (!close) {
            buf_add(&b, at, (size_t)(hit - at) + 1);
            at = hit + 1;
            continue;
        }
        buf_add(&b, at, (size_t)(hit - at));
        buf_add(&b, in, (size_t)(close - in));
        at = close + 1;
    }
    buf_str(&b, at);
    mem_free(s);
    return buf_take(&b, NULL);
}

/* fracXY -> frac{X}{Y} with args 2, sqrtX -> sqrt{X} with args 1; X is any character but '{'. */
static char *brace_args(char *s, const char *word, int args)
{
    size_t nw = strlen(word);
    const char *end = s + strlen(s);
    struct buf b;
    char *at = s, *hit;

    buf_init(&b, (size_t)8 * LABEL_MAX);
    while ((hit = strstr(at, word)) != NULL) {
        char *in = hit + nw;
        int32_t c;
        size_t n = in < end ? char_at(in, end, &c) : 0, m = 0;
        int ok = n > 0 && *in != '{';
        if (ok && args == 2) {
            ok = in + n < end && in[n] != '\n';
            m = ok ? char_at(in + n, end, &c) : 0;
        }
        buf_add(&b, at, (size_t)(in - at));
        at = in;
        if (ok) {
            buf_str(&b, "{");
            buf_add(&b, in, n);
            buf_str(&b, "}");
            if (args == 2) {
                buf_str(&b, "{");
                buf_add(&b, in + n, m);
                buf_str(&b, "}");
            }
            at = in + n + m;
        }
    }
    buf_str(&b, at);
    mem_free(s);
    return buf_take(&b, NULL);
}

static char *trim(char *s)
{
    char *end = s + strlen(s), *from = s, *to = s, *p, *out;
    int32_t c;
    size_t n;

    while (from < end && (n = char_at(from, end, &c)) > 0 && is_space(c)) {
        from += n;
    }
    to = from;
    for (p = from; p < end; p += n) {
        n = char_at(p, end, &c);
        if (!is_space(c)) {
            to = p + n;
        }
    }
    out = mem_strndup(from, (size_t)(to - from));
    mem_free(s);
    return out;
}

char *textgrade_dapo_form(const char *answer)
{
    static const char *const swaps[][2] = {{"an ", ""},          {"a ", ""},
                                           {".$", "$"},          {"\\$", ""},
                                           {"\\ ", ""},          {" ", ""},
                                           {"mbox", "text"},     {",\\text{and}", ","},
                                           {"\\text{and}", ","}, {"\\text{m}", "\\text{}"}};
    static const char *const drops[] = {
        "square",     "ways",       "integers",     "dollars",      "mph",
        "inches",     "hours",      "km",           "units",        "\\ldots",
        "sue",        "points",     "feet",         "minutes",      "digits",
        "cents",      "degrees",    "cm",           "gm",           "pounds",
        "meters",     "meals",      "edges",        "students",     "childrentickets",
        "multiples",  "\\text{s}",  "\\text{.}",    "\\text{\ns}",  "\\text{}^2",
        "\\text{}^3", "\\text{\n}", "\\text{}",     "\\mathrm{th}", "^\\circ",
        "^{\\circ}",  "\\;",        ",\\!",         "{,}",          "\"",
        "\\dots",     "<|im_end|>", "<|endoftext|>"};
    const char *equals = strrchr(answer, '=');
    char *s;
    size_t digits = 0;

    s = mem_strdup(equals ? equals + 1 : answer);
    for (size_t i = 0; i < sizeof swaps / sizeof *swaps; i++) {
        s = replace(s, swaps[i][0], swaps[i][1]);
    }
    for (size_t i = 0; i < sizeof drops / sizeof *drops; i++) {
        s = replace(s, drops[i], "");
    }
    s = keep_dollars(s);
    s = unwrap(s, "\\text{", 0);
    s = unwrap(s, "\\textbf{", 0);
    s = unwrap(s, "\\overline{", 0);
    s = unwrap(s, "\\boxed{", 1);
    s = brace_args(s, "frac", 2);
    s = brace_args(s, "sqrt", 1);
    s = replace(s, "$", "");
    for (const char *p = s; *p; p++) {
        digits += *p >= '0' && *p <= '9';
    }
    if (digits && strspn(s, "0123456789,") == strlen(s)) {
        s = replace(s, ",", "");
    }
    return trim(s);
}

/* The text of the last match of (?i)answer\s*:\s*([^\n]+), searched from left to right without
 * overlap. 1 when there is one. */
static int last_answer(const char *s, const char *end, const char **from, const char **to)
{
    int found = 0;

    for (const char *p = s; end - p >= 6;) {
        const char *q = p + 6, *lineless = NULL, *stop;
        int32_t c;
        size_t n;
        if (strncasecmp(p, "answer", 6) != 0) {
            p++;
            continue;
        }
        while (q < end && (n = char_at(q, end, &c)) > 0 && is_space(c)) {
            q += n;
        }
        if (q == end || *q != ':') {
            p++;
            continue;
        }
        for (q++; q < end && (n = char_at(q, end, &c)) > 0 && is_space(c); q += n) {
            lineless = *q != '\n' ? q : lineless;
        }
        if (q == end) {
            q = lineless; /* blanks only: the last of them stands for the answer */
        }
        if (!q) {
            p++;
            continue;
        }
        stop = memchr(q, '\n', (size_t)(end - q));
        *from = q;
        *to = stop ? stop : end;
        found = 1;
        p = *to;
    }
    return found;
}

/* The integer part of the number in s, as digits. */
static int label_int(const char *s, char *out, size_t n)
{
    char *end;
    double x;

    if (!*s || strspn(s, "+-0123456789.eE") != strlen(s)) {
        return 0;
    }
    x = strtod(s, &end);
    if (*end || !(x > -1e308 && x < 1e308)) {
        return 0;
    }
    if (x > -4503599627370496.0 && x < 4503599627370496.0) {
        x = (double)(int64_t)x + 0.0;
    }
    snprintf(out, n, "%.0f", x);
    if (strcmp(out, "-0") == 0) {
        strcpy(out, "0");
    }
    return 1;
}

int textgrade_dapo(const char *response, size_t n, const char *label, json_t **out, struct err *e)
{
    const char *end = response + n, *from = end, *a, *b;
    char *text, *pred = NULL, *truth = NULL, number[340];
    int rc = 0, right;

    if (strnlen(label, LABEL_MAX + 1) > LABEL_MAX) {
        return ERR(e, STATUS_INPUT, "the label is longer than %d bytes", (int)LABEL_MAX);
    }
    for (int chars = 0; from > response && chars < DAPO_CHARS; chars++) {
        do {
            from--;
        } while (from > response && ((unsigned char)*from & 0xc0) == 0x80);
    }
    if (last_answer(from, end, &a, &b) && !memchr(a, 0, (size_t)(b - a))) {
        text = mem_strndup(a, (size_t)(b - a));
    } else {
        text = mem_strdup("[INVALID]");
    }
    pred = textgrade_dapo_form(text);
    truth = textgrade_dapo_form(label);
    mem_free(text);
    if (!label_int(truth, number, sizeof number)) {
        rc = ERR(e, STATUS_INPUT, "the label %.100s is not a number, which the dapo reward needs",
                 label);
        goto out;
    }
    right = strcmp(pred, number) == 0;
    *out = json_pack("{s:f, s:b, s:s}", "score", right ? 1.0 : -1.0, "acc", right, "pred", pred);
    if (!*out) { /* the cut at 300 characters or a rule split a character */
        *out = json_pack("{s:f, s:b, s:s}", "score", right ? 1.0 : -1.0, "acc", right, "pred", "");
    }
    rc = *out ? 0 : ERR(e, STATUS_NOMEM, "no memory for a reward");
out:
    mem_free(pred);
    mem_free(truth);
    return rc;
}
