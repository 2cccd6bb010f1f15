/* Owns reading of formulas and the zero test.
 *
 * No simplifier: a formula is a rational function over the integers in its variables, pi, square
 * roots of primes and logarithms of primes, which are algebraically independent but for r*r = q.
 * It is zero exactly if it is zero in a finite field after putting random elements for the
 * variables and a square root of q for each root, but for a chance of about degree/p. Four fields
 * of 31-bit primes, chosen such that all roots exist, decide. (Which of the two roots is taken does
 * not matter: all choices are conjugate.)
 *
 * Roots of something that is not a number (sqrt(x+1), sqrt(2+sqrt(3))) do not fit this; formulas
 * with such a root are computed at complex sample points instead, with the main branch. Functions
 * we know nothing of (x!, 2^x) are values that depend on their arguments only.
 *
 * Nodes are stored children first, so evaluation is one loop and depth costs no stack. */
#include "reward/mathexpr.h"

#include <float.h>
#include <stdint.h>
#include <string.h>
#include <utf8proc.h>

#include "base/mem.h"

enum {
    MAX_DEPTH = 400, /* two a parenthesis, one a power; Python stops at 200 of them */
    MAX_ROOTS = 8,   /* different primes under roots */
    MAX_FACTORIAL = 20000,
    MAX_WORK = 200000,    /* multiplications of all factorials together */
    TRIAL_LIMIT = 100000, /* trial division up to here */
    MAX_HARD = 64,        /* roots and logarithms of numbers, each of which is factored */
    FIELDS = 4,
    POINTS = 8,
    MAX_SYMBOLS = 64
};

enum op {
    OP_NUM,
    OP_SYM,
    OP_PI,
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_NEG,
    OP_POW,
    OP_SQRT,
    OP_LN,
    OP_FACT,
    OP_CSC
};

struct rat {
    int64_t n, d; /* d > 0, lowest terms; d = 0: not known */
};

struct node {
    enum op op;
    int a, b;        /* children; OP_SYM: a is the number of the symbol */
    const char *num; /* OP_NUM: the literal */
    int len;
    struct rat value;
};

enum kind { T_END, T_NUM, T_SYM, T_PI, T_SQRT, T_LN, T_CSC, T_CHAR, T_POWER };

struct token {
    enum kind kind;
    int c, len; /* T_CHAR: the character */
    const char *s;
};

struct parser {
    struct token *tokens; /* ends with T_END */
    int ntokens, at;
    struct node *nodes;
    int n, max, depth, failed;
    int unsure; /* it failed at something that sympy can read */
    struct {
        const char *name;
        int len;
    } symbols[MAX_SYMBOLS];
    int nsymbols;
};

/* ---- small exact rationals; overflow gives "not known" ---- */

static const struct rat rat_none = {0, 0};

static int64_t gcd64(int64_t a, int64_t b)
{
    while (b) {
        int64_t t = a % b;
        a = b;
        b = t;
    }
    return a < 0 ? -a : a;
}

static int mul64(int64_t a, int64_t b, int64_t *out)
{
    if (a != 0 && (b > INT64_MAX / (a < 0 ? -a : a) || b < -(INT64_MAX / (a < 0 ? -a : a)))) {
        return 0;
    }
    *out = a * b;
    return 1;
}

static int add64(int64_t a, int64_t b, int64_t *out)
{
    if ((b > 0 && a > INT64_MAX - b) || (b < 0 && a < -INT64_MAX - b)) {
        return 0;
    }
    *out = a + b;
    return 1;
}

static struct rat rat_make(int64_t n, int64_t d)
{
    struct rat r = {n, d};
    int64_t g;
    if (d == 0) {
        return rat_none;
    }
    g = gcd64(n, d);
    r.n = (d < 0 ? -n : n) / g;
    r.d = (d < 0 ? -d : d) / g;
    return r;
}

static struct rat rat_mul(struct rat a, struct rat b)
{
    int64_t n, d;
    if (!a.d || !b.d || !mul64(a.n, b.n, &n) || !mul64(a.d, b.d, &d)) {
        return rat_none;
    }
    return rat_make(n, d);
}

static struct rat rat_inv(struct rat a)
{
    return a.d && a.n ? rat_make(a.d, a.n) : rat_none;
}

static struct rat rat_add(struct rat a, struct rat b, int sign)
{
    int64_t x, y, n, d;
    if (!a.d || !b.d || !mul64(a.n, b.d, &x) || !mul64(b.n, a.d, &y) ||
        !add64(x, sign < 0 ? -y : y, &n) || !mul64(a.d, b.d, &d)) {
        return rat_none;
    }
    return rat_make(n, d);
}

static struct rat rat_pow(struct rat a, struct rat e)
{
    struct rat r = {1, 1};
    int64_t k = e.n < 0 ? -e.n : e.n;

    if (!a.d || e.d != 1 || (k > 64 && (a.d != 1 || a.n > 1 || a.n < -1))) {
        return rat_none;
    }
    if (k > 64) {
        k = k % 2 ? 1 : 2; /* of 0, 1 and -1 */
    }
    for (; k > 0 && r.d; k--) {
        r = rat_mul(r, a);
    }
    return e.n < 0 ? rat_inv(r) : r;
}

static uint64_t isqrt(uint64_t m)
{
    uint64_t lo = 0, hi = 3037000499u; /* its square is the largest below 2^63 */
    while (lo < hi) {
        uint64_t mid = lo + (hi - lo + 1) / 2;
        if (mid * mid <= m) {
            lo = mid;
        } else {
            hi = mid - 1;
        }
    }
    return lo;
}

/* The root of a square. */
static struct rat rat_sqrt(struct rat a)
{
    int64_t n, d;

    if (!a.d || a.n < 0) {
        return rat_none;
    }
    n = (int64_t)isqrt((uint64_t)a.n);
    d = (int64_t)isqrt((uint64_t)a.d);
    return n * n == a.n && d * d == a.d ? rat_make(n, d) : rat_none;
}

/* The value of a decimal literal, when small. */
static struct rat rat_literal(const char *s, int len)
{
    struct rat r = {0, 1};
    int point = 0;
    for (int i = 0; i < len; i++) {
        if (s[i] == '.' || s[i] == '_') {
            point |= s[i] == '.';
            continue;
        }
        if (s[i] < '0' || s[i] > '9' || r.n > INT64_MAX / 10 - 10 || r.d > INT64_MAX / 100) {
            return rat_none; /* an exponent, or too many digits */
        }
        r.n = r.n * 10 + (s[i] - '0');
        r.d *= point ? 10 : 1;
    }
    return rat_make(r.n, r.d);
}

/* ---- tokens ---- */

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* A byte that can be part of a name: letters, '_' and everything beyond ASCII. */
static int is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (unsigned char)c >= 0x80;
}

static void add_token(struct parser *p, enum kind kind, int c, const char *s, size_t len)
{
    struct token *t = &p->tokens[p->ntokens++];
    t->kind = kind;
    t->c = c;
    t->s = s;
    t->len = (int)len;
}

/* Past the digits at q; Python lets one '_' stand between two of them. */
static const char *skip_digits(const char *q, const char *end)
{
    const char *start = q;
    while (q < end && (is_digit(*q) || (*q == '_' && q > start && is_digit(q[-1]) && q + 1 < end &&
                                        is_digit(q[1])))) {
        q++;
    }
    return q;
}

/* The length of the number at s, 0 when Python would not read one there. */
static size_t number_length(const char *s, const char *end)
{
    const char *q = skip_digits(s, end);

    if (q - s > 1 && *s == '0' && (q == end || *q != '.')) {
        return 0; /* 007 */
    }
    if (q - s == 1 && *s == '0' && end - q > 1 && strchr("xob", *q) && is_digit(q[1])) {
        return 0; /* 0x1f, which sympy reads */
    }
    if (q < end && *q == '.') {
        q = skip_digits(q + 1, end);
        if (q - s == 1) {
            return 0; /* a point alone */
        }
    }
    if (end - q > 1 && *q == 'e') {
        const char *t = q + 1 + (end - q > 2 && (q[1] == '-' || q[1] == '+'));
        if (is_digit(*t)) {
            q = skip_digits(t, end);
        }
    }
    return (size_t)(q - s);
}

static int same(const char *s, size_t n, const char *word)
{
    return strlen(word) == n && memcmp(s, word, n) == 0;
}

static int in_list(const char *s, size_t n, const char *const *list)
{
    for (; *list; list++) {
        if (same(s, n, *list)) {
            return 1;
        }
    }
    return 0;
}

/* 1 when all characters beyond ASCII are letters or marks: what Python takes in a name. */
static int is_word(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        utf8proc_int32_t c;
        utf8proc_ssize_t k =
            utf8proc_iterate((const utf8proc_uint8_t *)s + i, (utf8proc_ssize_t)(n - i), &c);
        if (k <= 0) {
            return 0;
        }
        if (c >= 0x80) {
            utf8proc_category_t cat = utf8proc_category(c);
            if ((cat < UTF8PROC_CATEGORY_LU || cat > UTF8PROC_CATEGORY_LO) &&
                (i == 0 || (cat != UTF8PROC_CATEGORY_MN && cat != UTF8PROC_CATEGORY_MC))) {
                return 0;
            }
        }
        i += (size_t)k;
    }
    return 1;
}

/* A run of letters and digits. A word that sympy knows is that word, or an error; any other falls
 * apart into letters and numbers. */
static void lex_name(struct parser *p, const char *s, size_t n, int call)
{
    static const char *const greek[] = {"mu", "nu", "xi", NULL};
    static const char *const words[] = {
        "all", "as", "csc", "eye", "ff",  "fft", "fu", "gff", "id", "if", "im",   "in",  "is",
        "jn",  "li", "ln",  "nan", "ntt", "oo",  "or", "re",  "rf", "yn", "sqrt", "zoo", NULL};

    if (!is_word(s, n)) {
        p->failed = 1;
    } else if (call && same(s, n, "sqrt")) {
        add_token(p, T_SQRT, 0, s, n);
    } else if (call && same(s, n, "ln")) {
        add_token(p, T_LN, 0, s, n);
    } else if (call && same(s, n, "csc")) {
        add_token(p, T_CSC, 0, s, n);
    } else if (in_list(s, n, words)) {
        p->failed = p->unsure = 1;
    } else if (same(s, n, "pi")) {
        add_token(p, T_PI, 0, s, n);
    } else if (in_list(s, n, greek) || memchr(s, '_', n)) {
        add_token(p, T_SYM, 0, s, n);
    } else {
        for (size_t i = 0, k; i < n; i += k) {
            int digit = is_digit(s[i]);
            k = 1;
            while (i + k < n &&
                   (digit ? is_digit(s[i + k]) : ((unsigned char)s[i + k] & 0xc0) == 0x80)) {
                k++;
            }
            add_token(p, digit ? T_NUM : T_SYM, 0, s + i, k);
        }
    }
}

static void lex(struct parser *p, const char *s, const char *end)
{
    while (s < end && !p->failed) {
        size_t n = 1;
        if (is_digit(*s) || *s == '.') {
            n = number_length(s, end);
            add_token(p, T_NUM, 0, s, n);
            p->failed |= n == 0;
            p->unsure |= n == 0 && end - s > 2 && *s == '0' && strchr("xob", s[1]);
        } else if (is_name(*s)) {
            while (s + n < end && (is_name(s[n]) || is_digit(s[n]))) {
                n++;
            }
            lex_name(p, s, n, s + n < end && s[n] == '(');
        } else if (*s == '^') {
            add_token(p, T_POWER, 0, s, 1);
        } else if (*s == '*' && s + 1 < end && s[1] == '*') {
            n = 2;
            add_token(p, T_POWER, 0, s, 2);
        } else if (*s == '/' && s + 1 < end && s[1] == '/') {
            p->failed = p->unsure = 1; /* Python's whole division */
        } else if (strchr("+-*/()!", *s) && *s) {
            add_token(p, T_CHAR, *s, s, 1);
        } else if (*s != ' ') {
            p->failed = 1;
        }
        s += n;
    }
    add_token(p, T_END, 0, end, 0);
}

/* ---- reading ---- */

static int parse_sum(struct parser *p);

static struct rat fold(const struct parser *p, enum op op, int a, int b)
{
    struct rat x = p->nodes[a].value, y = p->nodes[b].value, one = {1, 1};

    switch (op) {
    case OP_ADD: return rat_add(x, y, 1);
    case OP_SUB: return rat_add(x, y, -1);
    case OP_MUL: return rat_mul(x, y);
    case OP_DIV: return rat_mul(x, rat_inv(y));
    case OP_NEG: return rat_mul(x, (struct rat){-1, 1});
    case OP_POW: return rat_pow(x, y);
    case OP_SQRT: return rat_sqrt(x);
    case OP_FACT:
        if (x.d != 1 || x.n < 0 || x.n > 20) {
            return rat_none;
        }
        for (int64_t i = 2; i <= x.n; i++) {
            one.n *= i;
        }
        return one;
    default: return rat_none;
    }
}

static int add_node(struct parser *p, enum op op, int a, int b)
{
    struct node *x;

    if (p->failed || p->n >= p->max) {
        p->failed = 1;
        return 0;
    }
    x = &p->nodes[p->n];
    memset(x, 0, sizeof *x);
    x->op = op;
    x->a = a;
    x->b = b;
    if (op >= OP_ADD) {
        x->value = fold(p, op, a, b);
    }
    return p->n++;
}

static const struct token *peek(const struct parser *p)
{
    return &p->tokens[p->at];
}

static int is_char(const struct parser *p, int c)
{
    return peek(p)->kind == T_CHAR && peek(p)->c == c;
}

static int parse_symbol(struct parser *p, const struct token *t)
{
    int i = 0;

    while (i < p->nsymbols &&
           (p->symbols[i].len != t->len || memcmp(p->symbols[i].name, t->s, (size_t)t->len) != 0)) {
        i++;
    }
    if (i == MAX_SYMBOLS) {
        p->failed = 1;
        return 0;
    }
    if (i == p->nsymbols) {
        p->symbols[i].name = t->s;
        p->symbols[i].len = t->len;
        p->nsymbols++;
    }
    return add_node(p, OP_SYM, i, 0);
}

static int parse_group(struct parser *p)
{
    int id;

    p->at++;
    id = parse_sum(p);
    if (!is_char(p, ')')) {
        p->failed = 1;
        return 0;
    }
    p->at++;
    return id;
}

static int parse_atom(struct parser *p)
{
    const struct token *t = peek(p);
    int id;

    if (is_char(p, '(')) {
        return parse_group(p);
    }
    p->at++;
    switch (t->kind) {
    case T_NUM:
        id = add_node(p, OP_NUM, 0, 0);
        p->nodes[id].num = t->s;
        p->nodes[id].len = t->len;
        p->nodes[id].value = rat_literal(t->s, t->len);
        return id;
    case T_SYM: return parse_symbol(p, t);
    case T_PI: return add_node(p, OP_PI, 0, 0);
    case T_SQRT: return add_node(p, OP_SQRT, parse_group(p), 0);
    case T_LN: return add_node(p, OP_LN, parse_group(p), 0);
    case T_CSC: return add_node(p, OP_CSC, parse_group(p), 0);
    default:
        p->at--;
        p->failed = 1;
        return 0;
    }
}

/* atom, factorials, and a power, whose exponent may have a sign: 2^-3 */
static int parse_power(struct parser *p)
{
    int id, minus = 0;

    if (++p->depth > MAX_DEPTH) {
        p->failed = 1;
    }
    id = p->failed ? 0 : parse_atom(p);
    while (!p->failed && is_char(p, '!')) {
        p->at++;
        id = add_node(p, OP_FACT, id, 0);
    }
    if (!p->failed && peek(p)->kind == T_POWER) {
        int e;
        p->at++;
        while (is_char(p, '-') || is_char(p, '+')) {
            minus ^= peek(p)->c == '-';
            p->at++;
        }
        e = parse_power(p);
        if (minus) {
            e = add_node(p, OP_NEG, e, 0);
        }
        id = add_node(p, OP_POW, id, e);
    }
    p->depth--;
    return id;
}

static int starts_atom(const struct parser *p)
{
    const struct token *t = peek(p);
    return (t->kind >= T_NUM && t->kind <= T_CSC) || is_char(p, '(');
}

/* -x^2 is -(x^2), and a sign may stand after * and /. */
static int parse_signed(struct parser *p)
{
    int minus = 0, id;

    while (is_char(p, '-') || is_char(p, '+')) {
        minus ^= peek(p)->c == '-';
        p->at++;
    }
    id = parse_power(p);
    return minus ? add_node(p, OP_NEG, id, 0) : id;
}

static int parse_product(struct parser *p)
{
    int id = parse_signed(p);

    while (!p->failed) {
        if (is_char(p, '*') || is_char(p, '/')) {
            enum op op = peek(p)->c == '*' ? OP_MUL : OP_DIV;
            p->at++;
            id = add_node(p, op, id, parse_signed(p));
        } else if (starts_atom(p)) {
            id = add_node(p, OP_MUL, id, parse_power(p));
        } else {
            break;
        }
    }
    return id;
}

static int parse_sum(struct parser *p)
{
    int id;

    if (++p->depth > MAX_DEPTH) {
        p->failed = 1;
        return 0;
    }
    id = parse_product(p);
    while (!p->failed && (is_char(p, '+') || is_char(p, '-'))) {
        enum op op = peek(p)->c == '+' ? OP_ADD : OP_SUB;
        p->at++;
        id = add_node(p, op, id, parse_product(p));
    }
    p->depth--;
    return id;
}

/* ---- finite fields ---- */

struct field {
    uint64_t p; /* a prime below 2^31 */
    uint64_t salt;
    int guessed; /* a value came from opaque: not zero does not mean much */
    int nroots;
    uint64_t prime[MAX_ROOTS]; /* p - 1 stands for -1 */
    uint64_t root[MAX_ROOTS];
};

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint64_t pow_mod(uint64_t b, uint64_t e, uint64_t p)
{
    uint64_t r = 1;
    for (b %= p; e; e >>= 1) {
        if (e & 1) {
            r = r * b % p;
        }
        b = b * b % p;
    }
    return r;
}

static uint64_t inv_mod(uint64_t a, uint64_t p)
{
    return pow_mod(a, p - 2, p);
}

/* Miller-Rabin; these three bases decide for all numbers below 4,759,123,141. */
static int is_prime(uint64_t n)
{
    static const uint64_t bases[] = {2, 7, 61};
    uint64_t d = n - 1;
    int s = 0;

    if (n < 100 || n % 2 == 0) {
        return 0;
    }
    while (d % 2 == 0) {
        d /= 2;
        s++;
    }
    for (int i = 0; i < 3; i++) {
        uint64_t x = pow_mod(bases[i], d, n);
        int ok = x == 1 || x == n - 1;
        for (int k = 1; k < s && !ok; k++) {
            x = x * x % n;
            ok = x == n - 1;
        }
        if (!ok) {
            return 0;
        }
    }
    return 1;
}

/* A square root of a, which is a square, by Tonelli and Shanks. */
static uint64_t sqrt_mod(uint64_t a, uint64_t p)
{
    uint64_t q = p - 1, z = 2, m = 0, c, t, r;

    while (q % 2 == 0) {
        q /= 2;
        m++;
    }
    while (pow_mod(z, (p - 1) / 2, p) != p - 1) {
        z++;
    }
    c = pow_mod(z, q, p);
    t = pow_mod(a, q, p);
    r = pow_mod(a, (q + 1) / 2, p);
    while (t > 1) {
        uint64_t i = 0, b = c;
        for (uint64_t x = t; x != 1; x = x * x % p) {
            i++;
        }
        for (uint64_t k = 0; k + i + 1 < m; k++) {
            b = b * b % p;
        }
        m = i;
        c = b * b % p;
        t = t * c % p;
        r = r * b % p;
    }
    return t == 0 ? 0 : r;
}

/* Splits |n| into primes and calls back for each with its exponent; what is left above the limit of
 * trial division counts as a prime, after a look whether it is a square. */
typedef int factor_fn(void *arg, int64_t prime, int exponent);

static int factor(int64_t n, factor_fn *fn, void *arg)
{
    uint64_t m = n < 0 ? (uint64_t)-n : (uint64_t)n, r;
    int ok = 1;

    for (uint64_t q = 2; q <= TRIAL_LIMIT && q * q <= m && ok; q += q == 2 ? 1 : 2) {
        int e = 0;
        while (m % q == 0) {
            m /= q;
            e++;
        }
        ok = e == 0 || fn(arg, (int64_t)q, e);
    }
    if (m == 1 || !ok) {
        return ok;
    }
    r = isqrt(m);
    return r * r == m ? fn(arg, (int64_t)r, 2) : fn(arg, (int64_t)m, 1);
}

struct root_list {
    int64_t prime[MAX_ROOTS];
    int n;
};

static int note_root(void *arg, int64_t prime, int exponent)
{
    struct root_list *l = arg;

    if (exponent % 2 == 0) {
        return 1;
    }
    for (int i = 0; i < l->n; i++) {
        if (l->prime[i] == prime) {
            return 1;
        }
    }
    if (l->n == MAX_ROOTS) {
        return 0;
    }
    l->prime[l->n++] = prime;
    return 1;
}

/* The primes under all roots of numbers. 0 when there are too many; *odd is set when there is a
 * root of something else. */
static int collect_roots(const struct parser *p, struct root_list *l, int *odd)
{
    for (int i = 0; i < p->n; i++) {
        struct rat v;
        if (p->nodes[i].op != OP_SQRT) {
            continue;
        }
        v = p->nodes[p->nodes[i].a].value;
        if (!v.d) {
            *odd = 1;
            continue;
        }
        if (v.n == 0) {
            continue;
        }
        if ((v.n < 0 && !note_root(l, -1, 1)) || !factor(v.n, note_root, l) ||
            !factor(v.d, note_root, l)) {
            return 0;
        }
    }
    return 1;
}

/* The next prime after `from` in which all roots exist. */
static int find_field(struct field *f, const struct root_list *l, uint64_t from)
{
    f->nroots = l->n;
    for (uint64_t p = from | 1; p < 2147483647u; p += 2) {
        int ok = is_prime(p);
        for (int i = 0; i < l->n && ok; i++) {
            uint64_t q = l->prime[i] < 0 ? p - 1 : (uint64_t)l->prime[i] % p;
            ok = pow_mod(q, (p - 1) / 2, p) == 1;
        }
        if (ok) {
            f->p = p;
            for (int i = 0; i < l->n; i++) {
                uint64_t q = l->prime[i] < 0 ? p - 1 : (uint64_t)l->prime[i] % p;
                f->prime[i] = (uint64_t)l->prime[i];
                f->root[i] = sqrt_mod(q, p);
            }
            return 1;
        }
    }
    return 0;
}

struct product {
    const struct field *f;
    uint64_t value;
};

static int times_root(void *arg, int64_t prime, int exponent)
{
    struct product *x = arg;
    const struct field *f = x->f;

    x->value = x->value * pow_mod((uint64_t)prime % f->p, (uint64_t)exponent / 2, f->p) % f->p;
    for (int i = 0; exponent % 2 && i < f->nroots; i++) {
        if (f->prime[i] == (uint64_t)prime) {
            x->value = x->value * f->root[i] % f->p;
        }
    }
    return 1;
}

static int plus_log(void *arg, int64_t prime, int exponent)
{
    struct product *x = arg;
    const struct field *f = x->f;
    uint64_t log_q = mix(mix((uint64_t)prime) ^ f->salt ^ 0x106u) % f->p;

    x->value = (x->value + log_q * (uint64_t)exponent) % f->p;
    return 1;
}

static uint64_t field_sqrt(const struct field *f, struct rat v)
{
    struct product n = {f, 1}, d = {f, 1};

    if (v.n == 0) {
        return 0;
    }
    if (v.n < 0) {
        times_root(&n, -1, 1);
    }
    factor(v.n, times_root, &n);
    factor(v.d, times_root, &d);
    return n.value * inv_mod(d.value, f->p) % f->p;
}

static uint64_t field_number(const struct field *f, const char *s, int len)
{
    uint64_t p = f->p, v = 0, down = 1, e = 0;
    int point = 0, i, minus = 0;

    for (i = 0; i < len && s[i] != 'e'; i++) {
        if (!is_digit(s[i])) {
            point |= s[i] == '.';
        } else {
            v = (v * 10 + (uint64_t)(s[i] - '0')) % p;
            down = point ? down * 10 % p : down;
        }
    }
    for (i++; i < len; i++) {
        if (is_digit(s[i])) {
            e = (e * 10 + (uint64_t)(s[i] - '0')) % (p - 1);
        } else {
            minus |= s[i] == '-';
        }
    }
    e = pow_mod(10, e, p);
    v = v * inv_mod(down, p) % p;
    return v * (minus ? inv_mod(e, p) : e) % p;
}

/* A value of which nothing is known but its arguments. */
static uint64_t opaque(struct field *f, enum op op, uint64_t a, uint64_t b)
{
    f->guessed = 1;
    return mix(mix(a * 16 + (uint64_t)op) ^ mix(b + 77) ^ f->salt) % f->p;
}

static int field_power(struct field *f, struct rat base, struct rat e, uint64_t x, uint64_t y,
                       uint64_t *out)
{
    if (e.d == 2 && base.d && base.n >= 0 && e.n > -1000 && e.n < 1000 && base.n) {
        uint64_t r = pow_mod(field_sqrt(f, base), (uint64_t)(e.n < 0 ? -e.n : e.n), f->p);
        *out = e.n < 0 ? inv_mod(r, f->p) : r;
        return 1;
    }
    if (e.d != 1) {
        *out = opaque(f, OP_POW, x, y);
        return 1;
    }
    if (x == 0 && e.n < 0) {
        return 0;
    }
    *out = pow_mod(x, (uint64_t)(e.n < 0 ? -e.n : e.n), f->p);
    if (e.n < 0) {
        *out = inv_mod(*out, f->p);
    }
    return 1;
}

static int field_log(struct field *f, struct rat v, uint64_t x, uint64_t *out)
{
    struct product n = {f, 0}, d = {f, 0};

    if (x == 0) {
        return 0;
    }
    if (v.d && v.n > 0) {
        factor(v.n, plus_log, &n);
        factor(v.d, plus_log, &d);
        *out = (n.value + f->p - d.value) % f->p;
    } else {
        *out = opaque(f, OP_LN, x, 0);
    }
    return 1;
}

static int field_factorial(struct field *f, struct rat v, uint64_t x, uint64_t *out)
{
    uint64_t r = 1;

    if (v.d != 1) {
        *out = opaque(f, OP_FACT, x, 0);
        return 1;
    }
    if (v.n < 0 || v.n > MAX_FACTORIAL) {
        f->guessed |= v.n > 0;
        return 0;
    }
    for (int64_t i = 2; i <= v.n; i++) {
        r = r * (uint64_t)i % f->p;
    }
    *out = r;
    return 1;
}

/* 1 when the formula is zero in the field; 0 when not or when it has no value. */
static int zero_in_field(const struct parser *p, struct field *f, uint64_t *val)
{
    uint64_t m = f->p;

    for (int i = 0; i < p->n; i++) {
        const struct node *x = &p->nodes[i];
        uint64_t a = x->op >= OP_ADD ? val[x->a] : 0, b = x->op >= OP_ADD ? val[x->b] : 0;
        struct rat va = p->nodes[x->a].value, vb = p->nodes[x->b].value;
        int ok = 1;
        switch (x->op) {
        case OP_NUM: val[i] = field_number(f, x->num, x->len); break;
        case OP_SYM: val[i] = mix(f->salt ^ mix((uint64_t)x->a + 1)) % m; break;
        case OP_PI: val[i] = mix(f->salt ^ 0x314159u) % m; break;
        case OP_ADD: val[i] = (a + b) % m; break;
        case OP_SUB: val[i] = (a + m - b) % m; break;
        case OP_MUL: val[i] = a * b % m; break;
        case OP_DIV:
            ok = b != 0;
            val[i] = a * inv_mod(b, m) % m;
            break;
        case OP_NEG: val[i] = (m - a) % m; break;
        case OP_POW: ok = field_power(f, va, vb, a, b, &val[i]); break;
        case OP_SQRT: val[i] = field_sqrt(f, va); break;
        case OP_LN: ok = field_log(f, va, a, &val[i]); break;
        case OP_FACT: ok = field_factorial(f, va, a, &val[i]); break;
        case OP_CSC: val[i] = opaque(f, OP_CSC, a, 0); break;
        }
        if (!ok) {
            return 0;
        }
    }
    return val[p->n - 1] == 0;
}

/* ---- complex samples ---- */

struct cplx {
    long double re, im, size; /* size: how large the parts were, for the rounding error */
};

static long double ld_abs(long double x)
{
    return x < 0 ? -x : x;
}

static long double ld_sqrt(long double x)
{
    long double scale = 1, r = 1;

    if (!(x > 0)) {
        return 0;
    }
    while (x > 4) {
        x /= 4;
        scale *= 2;
    }
    while (x < 1) {
        x *= 4;
        scale /= 2;
    }
    for (int i = 0; i < 8; i++) {
        r = (r + x / r) / 2;
    }
    return r * scale;
}

static struct cplx c_make(long double re, long double im, long double size)
{
    struct cplx c = {re, im, ld_abs(re) + ld_abs(im)};
    c.size = size > c.size ? size : c.size;
    return c;
}

static struct cplx c_mul(struct cplx a, struct cplx b)
{
    return c_make(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re, a.size * b.size);
}

static struct cplx c_inv(struct cplx a)
{
    long double n = a.re * a.re + a.im * a.im;
    return c_make(a.re / n, -a.im / n, a.size / n);
}

/* The main branch: real part not negative. The larger part comes from a sum, the smaller by
 * division, so that nothing cancels. */
static struct cplx c_sqrt(struct cplx a)
{
    if (ld_abs(a.im) <= 64 * LDBL_EPSILON * a.size) {
        a.im = 0; /* rounding must not choose the side of the cut */
    }
    long double r = ld_sqrt(a.re * a.re + a.im * a.im);
    long double big = ld_sqrt((r + ld_abs(a.re)) / 2);
    long double small = big > 0 ? ld_abs(a.im) / (2 * big) : 0;
    long double re = a.re < 0 ? small : big, im = a.re < 0 ? big : small;
    long double loss = r > 0 ? a.size / r : 1;

    return c_make(re, a.im < 0 ? -im : im, (re + im) * (loss > 1 ? loss : 1));
}

static struct cplx c_pow(struct cplx a, int64_t e)
{
    struct cplx r = {1, 0, 1};
    for (int64_t k = e < 0 ? -e : e; k > 0; k--) {
        r = c_mul(r, a);
    }
    return e < 0 ? c_inv(r) : r;
}

/* a^(n/d) on the main branch for d = 1, 2, 4, ...; 0 for other exponents. */
static int c_power(struct cplx a, struct rat e, struct cplx *out)
{
    if (!e.d || (e.d & (e.d - 1)) || e.d > 64 || e.n < -1000 || e.n > 1000) {
        return 0;
    }
    for (int64_t d = e.d; d > 1; d /= 2) {
        a = c_sqrt(a);
    }
    *out = c_pow(a, e.n);
    return 1;
}

static int c_factorial(struct rat v, struct cplx *out)
{
    long double r = 1;

    if (v.d != 1 || v.n < 0 || v.n > 150) {
        return 0;
    }
    for (int64_t i = 2; i <= v.n; i++) {
        r *= (long double)i;
    }
    *out = c_make(r, 0, 0);
    return 1;
}

static struct cplx c_number(const char *s, int len)
{
    long double v = 0, down = 1;
    int point = 0, i, e = 0, minus = 0;

    for (i = 0; i < len && s[i] != 'e'; i++) {
        if (!is_digit(s[i])) {
            point |= s[i] == '.';
        } else {
            v = v * 10 + (s[i] - '0');
            down *= point ? 10 : 1;
        }
    }
    for (i++; i < len; i++) {
        minus |= s[i] == '-';
        e = is_digit(s[i]) && e < 10000 ? e * 10 + (s[i] - '0') : e;
    }
    if (e > 4000) {
        return c_make(LDBL_MAX, 0, 0); /* too large to be compared */
    }
    for (v /= down; e > 0; e--) {
        v = minus ? v / 10 : v * 10;
    }
    return c_make(v, 0, 0);
}

static long double sample(uint64_t seed)
{
    return (long double)(mix(seed) >> 11) / (long double)(1ull << 53) * 4 - 2;
}

/* 1 zero (within rounding), 0 not zero, -1 there is something in it that has no number. */
static int zero_at_point(const struct parser *p, int point, struct cplx *val)
{
    const long double pi = 3.14159265358979323846264338327950288L;
    struct cplx last;

    for (int i = 0; i < p->n; i++) {
        const struct node *x = &p->nodes[i];
        struct cplx a = {0, 0, 0}, b = {0, 0, 0};
        struct rat e = p->nodes[x->b].value;
        uint64_t seed = (uint64_t)point * 1000 + (uint64_t)x->a * 2;
        int ok = 1;
        if (x->op >= OP_ADD) {
            a = val[x->a];
            b = val[x->b];
        }
        switch (x->op) {
        case OP_NUM: val[i] = c_number(x->num, x->len); break;
        case OP_SYM: val[i] = c_make(sample(seed), sample(seed + 1), 0); break;
        case OP_PI: val[i] = c_make(pi, 0, 0); break;
        case OP_ADD: val[i] = c_make(a.re + b.re, a.im + b.im, a.size + b.size); break;
        case OP_SUB: val[i] = c_make(a.re - b.re, a.im - b.im, a.size + b.size); break;
        case OP_MUL: val[i] = c_mul(a, b); break;
        case OP_DIV: val[i] = c_mul(a, c_inv(b)); break;
        case OP_NEG: val[i] = c_make(-a.re, -a.im, a.size); break;
        case OP_SQRT: val[i] = c_sqrt(a); break;
        case OP_POW: ok = c_power(a, e, &val[i]); break;
        case OP_FACT: ok = c_factorial(p->nodes[x->a].value, &val[i]); break;
        default: return -1;
        }
        if (!ok || !(val[i].size <= 1e300L)) {
            return -1;
        }
    }
    last = val[p->n - 1];
    return ld_abs(last.re) + ld_abs(last.im) <= 4096 * LDBL_EPSILON * last.size;
}

/* ---- the test ---- */

/* 1 zero, 0 not, -1 cannot be told. */
static int zero_everywhere(const struct parser *p)
{
    struct root_list roots = {.n = 0};
    struct field f = {0};
    int odd = 0, zero = 1, hard = 0;
    int64_t work = 0;

    for (int i = 0; i < p->n; i++) {
        const struct node *x = &p->nodes[i];
        struct rat e = p->nodes[x->b].value, base = p->nodes[x->a].value;
        hard += x->op == OP_SQRT || x->op == OP_LN || (x->op == OP_POW && e.d == 2);
        work += x->op == OP_FACT && base.d == 1 && base.n > 0 ? base.n : 0;
        if (hard > MAX_HARD || work > MAX_WORK) {
            return -1;
        }
        if (x->op == OP_POW && e.d > 1 && (e.d & (e.d - 1)) == 0) {
            if (!base.d || base.n <= 0 || e.d > 2) {
                odd = 1;
            } else if (!factor(base.n, note_root, &roots) || !factor(base.d, note_root, &roots)) {
                return -1;
            }
        }
    }
    if (!collect_roots(p, &roots, &odd)) {
        return -1;
    }
    if (odd) {
        struct cplx *val = mem_alloc((size_t)p->n * sizeof *val);
        for (int i = 0; i < POINTS && zero == 1; i++) {
            zero = zero_at_point(p, i, val);
        }
        mem_free(val);
        return zero;
    }
    uint64_t *val = mem_alloc((size_t)p->n * sizeof *val);
    uint64_t from = 1500000001u;
    for (int i = 0; i < FIELDS && zero == 1; i++) {
        if (!find_field(&f, &roots, from)) {
            zero = -1;
            break;
        }
        f.salt = mix((uint64_t)i + 1);
        from = f.p + 100000002u;
        zero = zero_in_field(p, &f, val);
    }
    mem_free(val);
    return zero == 0 && f.guessed ? -1 : zero;
}

/* ---- decimals as sympy takes them ---- */

static int is_decimal(const struct node *x)
{
    return x->op == OP_NUM &&
           (memchr(x->num, '.', (size_t)x->len) || memchr(x->num, 'e', (size_t)x->len));
}

/* A fraction that floating point holds exactly, also after a few operations. */
static int is_dyadic(struct rat v)
{
    return v.d && (v.d & (v.d - 1)) == 0 && v.d <= (1 << 20) && v.n < (1 << 30) && v.n > -(1 << 30);
}

/* What a node holds: DECIMALS; RISKY when an operation on them may round. */
enum { DECIMALS = 1, RISKY = 2 };

static int rounding_of(const struct parser *p, int i, const unsigned char *has)
{
    const struct node *x = &p->nodes[i];
    int a, b, both;

    if (x->op < OP_ADD) {
        return is_decimal(x) ? DECIMALS : 0;
    }
    a = has[x->a];
    b = x->op == OP_ADD || x->op == OP_SUB || x->op == OP_MUL || x->op == OP_DIV || x->op == OP_POW
            ? has[x->b]
            : 0;
    both = a | b;
    if (!both || x->op == OP_NEG) {
        return both;
    }
    if ((x->op == OP_ADD || x->op == OP_SUB || x->op == OP_MUL || x->op == OP_DIV) &&
        is_dyadic(p->nodes[x->a].value) && is_dyadic(p->nodes[x->b].value) && is_dyadic(x->value)) {
        return both;
    }
    if (x->op == OP_MUL && !(both & RISKY)) { /* a decimal times a letter */
        const struct node *other = &p->nodes[a ? x->b : x->a];
        if (!(a && b) && (other->op == OP_SYM || other->op == OP_PI)) {
            return both;
        }
    }
    if (x->op == OP_SUB && i == p->n - 1) { /* one term against another is compared, not rounded */
        return both;
    }
    return both | RISKY;
}

/* Room for the tokens and nodes of n bytes, and the tokens. */
static void parser_open(struct parser *p, const char *text, size_t n)
{
    *p = (struct parser){.max = 2 * (int)n + 16};
    p->tokens = mem_alloc((n + 2) * sizeof *p->tokens);
    p->nodes = mem_alloc((size_t)p->max * sizeof *p->nodes);
    lex(p, text, text + n);
}

static void parser_close(struct parser *p)
{
    mem_free(p->tokens);
    mem_free(p->nodes);
}

int mathexpr_rounds(const char *text, size_t n)
{
    struct parser p;
    int risky = 0;

    if (n == 0 || n > MATHEXPR_MAX || !(memchr(text, '.', n) || memchr(text, 'e', n))) {
        return 0;
    }
    parser_open(&p, text, n);
    if (!p.failed) {
        parse_sum(&p);
    }
    if (!p.failed && p.n > 0) {
        unsigned char *has = mem_alloc((size_t)p.n);
        for (int i = 0; i < p.n; i++) {
            has[i] = (unsigned char)rounding_of(&p, i, has);
        }
        risky = (has[p.n - 1] & RISKY) != 0;
        mem_free(has);
    }
    parser_close(&p);
    return risky;
}

/* ---- public ---- */

int mathexpr_is_zero(const char *text, size_t n)
{
    return mathexpr_zero(text, n) == 1;
}

int mathexpr_zero(const char *text, size_t n)
{
    struct parser p;
    int zero = 0;

    if (n == 0 || n > MATHEXPR_MAX) {
        return 0;
    }
    parser_open(&p, text, n);
    if (!p.failed) {
        parse_sum(&p);
        if (!p.failed && peek(&p)->kind == T_END) {
            zero = zero_everywhere(&p);
        }
    } else if (p.unsure) {
        zero = -1;
    }
    parser_close(&p);
    return zero;
}
