/* Owns the split of a template into tokens, white-space control included.
 *
 * It follows jinja2's lexer rule by rule (which end tag eats which newline, when a line's indent
 * goes), because every byte of white space reaches the model. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_int.h"

struct lexer {
    struct jinja *j;
    struct err *e;
    const char *begin, *p, *end; /* source with \n newlines only; p is the next byte */
    int line;
    int line_starting; /* the last match ended in a newline */
    size_t cap;
    char balance[256]; /* open brackets; end tags count only when none is open */
    int nbalance;
};

static int lex_fail(struct lexer *l, const char *what)
{
    return ERR(l->e, STATUS_INPUT, "template line %d: %s", l->line, what);
}

struct jinja_name *jinja_lex_intern(struct jinja *j, const char *p, size_t n)
{
    struct jinja_name *x;
    int64_t at;

    if (map_get(&j->names, p, n, &at)) {
        return (struct jinja_name *)(intptr_t)at;
    }
    x = arena_alloc(&j->arena, sizeof *x);
    x->p = arena_strndup(&j->arena, p, n);
    x->n = n;
    x->global = jinja_object_global(p, n);
    map_put(&j->names, p, n, (int64_t)(intptr_t)x);
    return x;
}

static struct jinja_tok *lex_emit(struct lexer *l, enum jinja_tok_type type, const char *p,
                                  size_t n)
{
    struct jinja *j = l->j;
    struct jinja_tok *t;

    if (j->ntoks == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 256;
        struct jinja_tok *v = arena_alloc(&j->arena, cap * sizeof *v);
        if (j->ntoks) {
            memcpy(v, j->toks, j->ntoks * sizeof *v);
        }
        j->toks = v;
        l->cap = cap;
    }
    t = &j->toks[j->ntoks++];
    memset(t, 0, sizeof *t);
    t->type = type;
    t->line = l->line;
    t->p = p;
    t->n = n;
    return t;
}

static void lex_count_lines(struct lexer *l, const char *from, const char *to)
{
    for (; from < to; from++) {
        l->line += *from == '\n';
    }
}

/* Moves to `to`, counting lines, and notes whether what was passed ended a line. */
static void lex_move(struct lexer *l, const char *to)
{
    lex_count_lines(l, l->p, to);
    if (to > l->p) {
        l->line_starting = to[-1] == '\n';
    }
    l->p = to;
}

static const char *lex_skip_space(const char *p, const char *end)
{
    while (p < end) {
        uint32_t cp;
        size_t k = jinja_uni_next(p, end, &cp);
        if (!jinja_uni_space(cp)) {
            break;
        }
        p += k;
    }
    return p;
}

static const char *lex_rstrip(const char *begin, const char *p)
{
    while (p > begin) {
        uint32_t cp;
        size_t k = jinja_uni_prev(begin, p, &cp);
        if (!jinja_uni_space(cp)) {
            break;
        }
        p -= k;
    }
    return p;
}

static int lex_starts(const char *p, const char *end, const char *s)
{
    size_t n = strlen(s);
    return (size_t)(end - p) >= n && memcmp(p, s, n) == 0;
}

/* The end of "%}" with its variants at p: after the tag and what it eats, or NULL. `plus` says
 * whether "+%}" is allowed, `trim` whether a bare end eats one newline. */
static const char *lex_tag_end(const char *p, const char *end, const char *tag, int plus, int trim)
{
    if (plus && p < end && *p == '+' && lex_starts(p + 1, end, tag)) {
        return p + 3;
    }
    if (p < end && *p == '-' && lex_starts(p + 1, end, tag)) {
        return lex_skip_space(p + 3, end);
    }
    if (lex_starts(p, end, tag)) {
        p += 2;
        return trim && p < end && *p == '\n' ? p + 1 : p;
    }
    return NULL;
}

/* Emits the text before a tag, cut as its sign ('-', '+' or 0) and lstrip_blocks say. */
static void lex_text(struct lexer *l, const char *begin, const char *end, char sign, int lstrip)
{
    if (sign == '-') {
        end = lex_rstrip(begin, end);
    } else if (sign != '+' && lstrip) {
        const char *bol = end;
        while (bol > begin && bol[-1] != '\n') {
            bol--;
        }
        if ((bol > begin || l->line_starting) && bol < end && lex_skip_space(bol, end) == end) {
            end = bol;
        }
    }
    if (end > begin) {
        lex_emit(l, JINJA_TOK_DATA, begin, (size_t)(end - begin));
    }
}

/* "{% raw %}" at p: the first byte of the raw text, or NULL. */
static const char *lex_raw_begin(const char *p, const char *end)
{
    p += 2;
    if (p < end && (*p == '-' || *p == '+')) {
        p++;
    }
    p = lex_skip_space(p, end);
    if (!lex_starts(p, end, "raw")) {
        return NULL;
    }
    p = lex_skip_space(p + 3, end);
    return lex_tag_end(p, end, "%}", 0, 0);
}

static int lex_raw(struct lexer *l)
{
    const char *q;

    for (q = l->p; q + 1 < l->end; q++) {
        const char *s, *after;
        char sign = 0;
        if (q[0] != '{' || q[1] != '%') {
            continue;
        }
        s = q + 2;
        if (s < l->end && (*s == '-' || *s == '+')) {
            sign = *s++;
        }
        s = lex_skip_space(s, l->end);
        if (!lex_starts(s, l->end, "endraw")) {
            continue;
        }
        s = lex_skip_space(s + 6, l->end);
        after = lex_tag_end(s, l->end, "%}", 1, 1);
        if (after) {
            lex_text(l, l->p, q, sign, 1);
            lex_move(l, after);
            return 0;
        }
    }
    return lex_fail(l, "missing end of raw directive");
}

static int lex_comment(struct lexer *l)
{
    const char *q;

    for (q = l->p; q < l->end; q++) {
        const char *after = lex_tag_end(q, l->end, "#}", 1, 1);
        if (after) {
            lex_move(l, after);
            return 0;
        }
    }
    return lex_fail(l, "missing end of comment tag");
}

static int lex_escape_hex(const char **p, const char *end, int digits, uint32_t *cp)
{
    uint32_t v = 0;
    int i;

    if (end - *p < digits) {
        return 0;
    }
    for (i = 0; i < digits; i++) {
        char c = (*p)[i];
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0) {
            return 0;
        }
        v = v * 16 + (uint32_t)d;
    }
    *p += digits;
    *cp = v;
    return 1;
}

/* One escape after the backslash, as Python's unicode-escape reads it. Returns bytes written to
 * out (at most 4), or -1 when malformed. */
static int lex_unescape_one(const char **pp, const char *end, char out[4])
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    const char *p = *pp, *hit;
    char c = *p++;
    uint32_t cp = 0;
    int n = 1;

    hit = c ? strchr(from, c) : NULL;
    if (hit) {
        out[0] = to[hit - from];
    } else if (c == '\n') {
        n = 0;
    } else if (c >= '0' && c <= '7') {
        int k;
        cp = (uint32_t)(c - '0');
        for (k = 0; k < 2 && p < end && *p >= '0' && *p <= '7'; k++) {
            cp = cp * 8 + (uint32_t)(*p++ - '0');
        }
        n = (int)jinja_uni_put(cp, out);
    } else if (c == 'x' || c == 'u' || c == 'U') {
        if (!lex_escape_hex(&p, end,
                            c == 'x'   ? 2
                            : c == 'u' ? 4
                                       : 8,
                            &cp) ||
            cp > 0x10ffff || (cp >= 0xd800 && cp <= 0xdfff)) {
            return -1;
        }
        n = (int)jinja_uni_put(cp, out);
    } else if (c == 'N') {
        return -1;
    } else {
        out[0] = '\\';
        p--;
    }
    *pp = p;
    return n;
}

static int lex_string(struct lexer *l)
{
    const char quote = *l->p, *p = l->p + 1, *q;
    char *out;
    size_t n = 0;

    for (q = p; q < l->end && *q != quote; q++) {
        if (*q == '\\') {
            q++;
        }
    }
    if (q >= l->end) {
        return lex_fail(l, "a string is not closed");
    }
    out = arena_alloc(&l->j->arena, (size_t)(q - p) + 5);
    while (p < q) {
        if (*p != '\\') {
            out[n++] = *p++;
        } else {
            int k;
            p++;
            k = lex_unescape_one(&p, q, out + n);
            if (k < 0) {
                return lex_fail(l, "malformed escape in a string");
            }
            n += (size_t)k;
        }
    }
    lex_emit(l, JINJA_TOK_STRING, out, n);
    lex_move(l, q + 1);
    return 0;
}

static int lex_is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Digits with single underscores between them. */
static const char *lex_digits(const char *p, const char *end)
{
    while (p < end && (lex_is_digit(*p) || (*p == '_' && p + 1 < end && lex_is_digit(p[1])))) {
        p++;
    }
    return p;
}

static int lex_number(struct lexer *l)
{
    const char *p = l->p, *q = lex_digits(p, l->end), *s;
    char text[64];
    size_t n = 0;
    int is_float = 0, base = 10;
    struct jinja_tok *t;

    if (q == p + 1 && *p == '0' && q + 1 < l->end && strchr("xXoObB", *q)) {
        base = (*q | 32) == 'x' ? 16 : (*q | 32) == 'o' ? 8 : 2;
        for (q++; q < l->end &&
                  (*q == '_' || (*q >= '0' && *q <= '9') || ((*q | 32) >= 'a' && (*q | 32) <= 'f'));
             q++) {
        }
        p += 2;
    } else {
        if (q + 1 < l->end && *q == '.' && lex_is_digit(q[1]) && p > l->begin && p[-1] != '.') {
            q = lex_digits(q + 1, l->end);
            is_float = 1;
        }
        if (q < l->end && (*q | 32) == 'e') {
            s = q + 1;
            if (s < l->end && (*s == '+' || *s == '-')) {
                s++;
            }
            if (s < l->end && lex_is_digit(*s)) {
                q = lex_digits(s, l->end);
                is_float = 1;
            }
        }
    }
    for (s = p; s < q; s++) {
        if (*s != '_') {
            if (n + 1 >= sizeof text) {
                return lex_fail(l, "a number is too long");
            }
            text[n++] = *s;
        }
    }
    text[n] = 0;
    t = lex_emit(l, is_float ? JINJA_TOK_FLOAT : JINJA_TOK_INT, l->p, (size_t)(q - l->p));
    if (is_float) {
        t->f = strtod(text, NULL);
    } else {
        char *stop;
        errno = 0;
        t->i = strtoll(text, &stop, base);
        if (errno || *stop || n == 0 || (base == 10 && n > 1 && text[0] == '0' && t->i != 0)) {
            return lex_fail(l, "malformed or too large integer");
        }
    }
    lex_move(l, q);
    return 0;
}

static int lex_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || lex_is_digit(c) ||
           (unsigned char)c >= 0x80;
}

static int lex_operator(struct lexer *l)
{
    static const struct {
        const char *s;
        enum jinja_tok_type t;
    } ops[] = {{"//", JINJA_TOK_FLOORDIV}, {"**", JINJA_TOK_POW},     {"==", JINJA_TOK_EQ},
               {"!=", JINJA_TOK_NE},       {">=", JINJA_TOK_GE},      {"<=", JINJA_TOK_LE},
               {"+", JINJA_TOK_ADD},       {"-", JINJA_TOK_SUB},      {"/", JINJA_TOK_DIV},
               {"*", JINJA_TOK_MUL},       {"%", JINJA_TOK_MOD},      {"~", JINJA_TOK_TILDE},
               {"[", JINJA_TOK_LBRACKET},  {"]", JINJA_TOK_RBRACKET}, {"(", JINJA_TOK_LPAREN},
               {")", JINJA_TOK_RPAREN},    {"{", JINJA_TOK_LBRACE},   {"}", JINJA_TOK_RBRACE},
               {">", JINJA_TOK_GT},        {"<", JINJA_TOK_LT},       {"=", JINJA_TOK_ASSIGN},
               {".", JINJA_TOK_DOT},       {":", JINJA_TOK_COLON},    {"|", JINJA_TOK_PIPE},
               {",", JINJA_TOK_COMMA},     {";", JINJA_TOK_SEMICOLON}};
    size_t i;

    for (i = 0; i < sizeof ops / sizeof *ops; i++) {
        const char *open, c = *ops[i].s;
        if (!lex_starts(l->p, l->end, ops[i].s)) {
            continue;
        }
        if (c == '(' || c == '[' || c == '{') {
            if (l->nbalance == (int)sizeof l->balance) {
                return lex_fail(l, "brackets are nested too deeply");
            }
            l->balance[l->nbalance++] = c;
        } else if (c == ')' || c == ']' || c == '}') {
            open = c == ')' ? "(" : c == ']' ? "[" : "{";
            if (!l->nbalance || l->balance[--l->nbalance] != *open) {
                return ERR(l->e, STATUS_INPUT, "template line %d: unexpected '%c'", l->line, c);
            }
        }
        lex_emit(l, ops[i].t, l->p, strlen(ops[i].s));
        lex_move(l, l->p + strlen(ops[i].s));
        return 0;
    }
    return ERR(l->e, STATUS_INPUT, "template line %d: unexpected character '%.*s'", l->line,
               (int)(jinja_uni_next(l->p, l->end, &(uint32_t){0})), l->p);
}

/* The inside of {{ }} or {% %}. */
static int lex_tag(struct lexer *l, int is_block)
{
    l->nbalance = 0;
    while (l->p < l->end) {
        const char *after = NULL, *q = lex_skip_space(l->p, l->end);
        if (q > l->p) {
            lex_move(l, q);
            continue;
        }
        if (!l->nbalance) {
            after = lex_tag_end(l->p, l->end, is_block ? "%}" : "}}", is_block, is_block);
        }
        if (after) {
            lex_emit(l, is_block ? JINJA_TOK_BLOCK_END : JINJA_TOK_VAR_END, l->p, 2);
            lex_move(l, after);
            return 0;
        }
        if (lex_is_digit(*l->p)) {
            JINJA_TRY(lex_number(l));
        } else if (lex_name_char(*l->p)) {
            for (q = l->p; q < l->end && lex_name_char(*q); q++) {
            }
            lex_emit(l, JINJA_TOK_NAME, l->p, (size_t)(q - l->p));
            lex_move(l, q);
        } else if (*l->p == '\'' || *l->p == '"') {
            JINJA_TRY(lex_string(l));
        } else {
            JINJA_TRY(lex_operator(l));
        }
    }
    return lex_fail(l, "unexpected end of template inside a tag");
}

static int lex_root(struct lexer *l)
{
    while (l->p < l->end) {
        const char *q = l->p, *raw, *begin = l->p;
        char sign = 0, kind;
        while (q < l->end &&
               !(*q == '{' && q + 1 < l->end && (q[1] == '%' || q[1] == '{' || q[1] == '#'))) {
            q++;
        }
        if (q == l->end) {
            lex_emit(l, JINJA_TOK_DATA, begin, (size_t)(q - begin));
            lex_move(l, q);
            break;
        }
        kind = q[1];
        if (q + 2 < l->end && (q[2] == '-' || q[2] == '+')) {
            sign = q[2];
        }
        lex_text(l, begin, q, sign, kind != '{');
        raw = kind == '%' ? lex_raw_begin(q, l->end) : NULL;
        if (raw) {
            lex_move(l, raw);
            JINJA_TRY(lex_raw(l));
            continue;
        }
        lex_move(l, q + 2 + (sign != 0));
        if (kind == '#') {
            JINJA_TRY(lex_comment(l));
        } else {
            lex_emit(l, kind == '%' ? JINJA_TOK_BLOCK_BEGIN : JINJA_TOK_VAR_BEGIN, q, 2);
            JINJA_TRY(lex_tag(l, kind == '%'));
        }
    }
    lex_emit(l, JINJA_TOK_EOF, l->end, 0);
    return 0;
}

int jinja_lex(struct jinja *j, const char *text, size_t n, struct err *e)
{
    struct lexer l = {.j = j, .e = e, .line = 1, .line_starting = 1};
    char *src = arena_alloc(&j->arena, n + 1);
    size_t i, m = 0;

    for (i = 0; i < n; i++) {
        if (text[i] != '\r') {
            src[m++] = text[i];
        } else {
            src[m++] = '\n';
            i += i + 1 < n && text[i + 1] == '\n';
        }
    }
    if (m && src[m - 1] == '\n') {
        m--;
    }
    l.begin = l.p = src;
    l.end = src + m;
    if (!jinja_uni_valid(src, m)) {
        return ERR(e, STATUS_INPUT, "the template is not valid UTF-8");
    }
    return lex_root(&l);
}
