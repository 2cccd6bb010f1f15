/* Owns arithmetic with Python's rules: floor division, true division, repetition, and the append
 * trick that keeps `text = text + more` linear. Integers are 64-bit; beyond that is an error. */
#include <math.h>
#include <string.h>

#include "text/jinja_int.h"

static int ops_is_int(struct jinja_val v)
{
    return v.t == JINJA_INT || v.t == JINJA_BOOL;
}

static int add_overflows(int64_t a, int64_t b)
{
    return b > 0 ? a > INT64_MAX - b : a < INT64_MIN - b;
}

static int mul_overflows(int64_t a, int64_t b)
{
    if (a == 0 || b == 0) {
        return 0;
    }
    if (a == -1 || b == -1) {
        return a == INT64_MIN || b == INT64_MIN;
    }
    return a > 0 ? (b > 0 ? a > INT64_MAX / b : b < INT64_MIN / a)
                 : (b > 0 ? a < INT64_MIN / b : a < INT64_MAX / b);
}

static int ops_overflow(struct jinja_run *r)
{
    return jinja_fail(r, STATUS_UNSUPPORTED, "an integer exceeds 64 bits");
}

static int ops_type_error(struct jinja_run *r, const char *op, struct jinja_val a,
                          struct jinja_val b)
{
    if (a.t == JINJA_UNDEF || b.t == JINJA_UNDEF) {
        return jinja_value_undef_error(r, a.t == JINJA_UNDEF ? a : b);
    }
    if (op[0] == '+' && a.t == JINJA_STR) {
        return jinja_fail(r, STATUS_INPUT, "can only concatenate str (not \"%s\") to str",
                          jinja_value_type(b));
    }
    return jinja_fail(r, STATUS_INPUT, "unsupported operand type(s) for %s: '%s' and '%s'", op,
                      jinja_value_type(a), jinja_value_type(b));
}

/* a + b, in the spare room behind a when a is the last thing there. */
static int concat_str(struct jinja_run *r, struct jinja_str *a, struct jinja_str *b,
                      struct jinja_val *out)
{
    struct jinja_tail *t = a->tail;
    const char *p = a->p;

    if (b->n > JINJA_MAX_OUTPUT || a->n > JINJA_MAX_OUTPUT - b->n) {
        return jinja_fail(r, STATUS_NOMEM, "a string grows beyond %d MiB", JINJA_MAX_OUTPUT >> 20);
    }
    if (t && t->used == a->n && t->cap - t->used >= b->n) {
        memcpy((char *)p + a->n, b->p, b->n);
    } else {
        size_t cap = 2 * (a->n + b->n) + 16;
        char *q = jinja_alloc(r, cap);
        t = jinja_alloc(r, sizeof *t);
        if (!q || !t) {
            return STATUS_NOMEM;
        }
        memcpy(q, a->p, a->n);
        memcpy(q + a->n, b->p, b->n);
        t->cap = cap;
        p = q;
        JINJA_TRY(jinja_charge(r, a->n));
    }
    t->used = a->n + b->n;
    JINJA_TRY(jinja_value_str(r, p, a->n + b->n, out));
    out->s->tail = t;
    out->s->markup = a->markup;
    if (a->ncp >= 0 && b->ncp >= 0) {
        out->s->ncp = a->ncp + b->ncp;
    }
    return jinja_charge(r, b->n);
}

static int concat_list(struct jinja_run *r, struct jinja_val a, struct jinja_list *b,
                       struct jinja_val *out)
{
    struct jinja_tail *t = a.l->tail;
    size_t n = a.l->n + b->n;
    struct jinja_val *v = a.l->v;

    JINJA_TRY(jinja_value_list(r, a.t, 0, out));
    if (t && t->used == a.l->n && t->cap - t->used >= b->n) {
        if (b->n) {
            memcpy(v + a.l->n, b->v, b->n * sizeof *v);
        }
    } else {
        size_t cap = 2 * n + 4;
        v = cap < JINJA_MAX_MEMORY / sizeof *v ? jinja_alloc(r, cap * sizeof *v) : NULL;
        t = jinja_alloc(r, sizeof *t);
        if (!v || !t) {
            return jinja_fail(r, STATUS_NOMEM, "a list is too long");
        }
        if (a.l->n) {
            memcpy(v, a.l->v, a.l->n * sizeof *v);
        }
        if (b->n) {
            memcpy(v + a.l->n, b->v, b->n * sizeof *v);
        }
        t->cap = cap;
        JINJA_TRY(jinja_charge(r, a.l->n * 8));
    }
    t->used = n;
    out->l->v = v;
    out->l->n = n;
    out->l->tail = t;
    return jinja_charge(r, b->n * 8);
}

static int repeat(struct jinja_run *r, struct jinja_val a, int64_t times, struct jinja_val *out)
{
    size_t i, k = times < 0 ? 0 : (size_t)times;

    if (a.t == JINJA_STR) {
        char *p;
        if (a.s->n && k > JINJA_MAX_OUTPUT / a.s->n) {
            return jinja_fail(r, STATUS_NOMEM, "a string grows beyond %d MiB",
                              JINJA_MAX_OUTPUT >> 20);
        }
        k = a.s->n ? k : 0;
        p = jinja_alloc(r, a.s->n * k + 1);
        if (!p) {
            return STATUS_NOMEM;
        }
        for (i = 0; i < k; i++) {
            memcpy(p + i * a.s->n, a.s->p, a.s->n);
        }
        JINJA_TRY(jinja_value_str(r, p, a.s->n * k, out));
        out->s->markup = a.s->markup;
        return jinja_charge(r, a.s->n * k);
    }
    if (a.l->n && k > JINJA_MAX_MEMORY / sizeof *a.l->v / a.l->n) {
        return jinja_fail(r, STATUS_NOMEM, "a list is too long");
    }
    JINJA_TRY(jinja_value_list(r, a.t, a.l->n * k, out));
    for (i = 0; i < out->l->n; i++) {
        out->l->v[i] = a.l->v[i % a.l->n];
    }
    return 0;
}

static int ops_add(struct jinja_run *r, struct jinja_val a, struct jinja_val b,
                   struct jinja_val *out)
{
    if (ops_is_int(a) && ops_is_int(b)) {
        if (add_overflows(a.i, b.i)) {
            return ops_overflow(r);
        }
        *out = jinja_int(a.i + b.i);
        return 0;
    }
    if (a.t == JINJA_STR && b.t == JINJA_STR) {
        if (a.s->markup != b.s->markup) {
            JINJA_TRY(jinja_print_escape(r, a.s->markup ? b : a, a.s->markup ? &b : &a));
        }
        return concat_str(r, a.s, b.s, out);
    }
    if (a.t == b.t && (a.t == JINJA_LIST || a.t == JINJA_TUPLE)) {
        return concat_list(r, a, b.l, out);
    }
    return ops_type_error(r, "+", a, b);
}

static int ops_mul(struct jinja_run *r, struct jinja_val a, struct jinja_val b,
                   struct jinja_val *out)
{
    if (ops_is_int(a) && ops_is_int(b)) {
        if (mul_overflows(a.i, b.i)) {
            return ops_overflow(r);
        }
        *out = jinja_int(a.i * b.i);
        return 0;
    }
    if ((a.t == JINJA_STR || a.t == JINJA_LIST || a.t == JINJA_TUPLE) && ops_is_int(b)) {
        return repeat(r, a, b.i, out);
    }
    if ((b.t == JINJA_STR || b.t == JINJA_LIST || b.t == JINJA_TUPLE) && ops_is_int(a)) {
        return repeat(r, b, a.i, out);
    }
    return ops_type_error(r, "*", a, b);
}

static int ops_pow_int(struct jinja_run *r, int64_t base, int64_t exp, struct jinja_val *out)
{
    int64_t v = 1;

    if (exp < 0) {
        if (base == 0) {
            return jinja_fail(r, STATUS_INPUT, "0 cannot be raised to a negative power");
        }
        *out = jinja_float(pow((double)base, (double)exp));
        return 0;
    }
    if (base == 0 || base == 1) {
        *out = jinja_int(exp == 0 ? 1 : base);
        return 0;
    }
    if (base == -1) {
        *out = jinja_int(exp % 2 ? -1 : 1);
        return 0;
    }
    for (; exp > 0; exp--) { /* at most 63 rounds before the overflow */
        if (mul_overflows(v, base)) {
            return ops_overflow(r);
        }
        v *= base;
    }
    *out = jinja_int(v);
    return 0;
}

static int ops_int(struct jinja_run *r, int op, int64_t a, int64_t b, struct jinja_val *out)
{
    int64_t v;

    switch (op) {
    case JINJA_TOK_SUB:
        if (b < 0 ? a > INT64_MAX + b : a < INT64_MIN + b) {
            return ops_overflow(r);
        }
        *out = jinja_int(a - b);
        return 0;
    case JINJA_TOK_POW: return ops_pow_int(r, a, b, out);
    default: break;
    }
    if (b == 0) {
        return jinja_fail(r, STATUS_INPUT, "division by zero");
    }
    if (op == JINJA_TOK_DIV) {
        *out = jinja_float((double)a / (double)b);
        return 0;
    }
    if (b == -1) { /* INT64_MIN / -1 would trap */
        if (op == JINJA_TOK_FLOORDIV && a == INT64_MIN) {
            return ops_overflow(r);
        }
        *out = jinja_int(op == JINJA_TOK_FLOORDIV ? -a : 0);
        return 0;
    }
    v = a % b;
    if (op == JINJA_TOK_MOD) {
        *out = jinja_int(v && (v < 0) != (b < 0) ? v + b : v);
    } else {
        *out = jinja_int(a / b - (v && (v < 0) != (b < 0)));
    }
    return 0;
}

static int ops_float(struct jinja_run *r, int op, double a, double b, struct jinja_val *out)
{
    double m;

    switch (op) {
    case JINJA_TOK_ADD: *out = jinja_float(a + b); return 0;
    case JINJA_TOK_SUB: *out = jinja_float(a - b); return 0;
    case JINJA_TOK_MUL: *out = jinja_float(a * b); return 0;
    case JINJA_TOK_POW:
        if (a < 0 && b != floor(b)) {
            return jinja_fail(r, STATUS_UNSUPPORTED, "complex numbers are not supported");
        }
        if (isfinite(a) && isfinite(b) && !isfinite(pow(a, b))) {
            return jinja_fail(r, STATUS_INPUT, "numerical result out of range");
        }
        *out = jinja_float(pow(a, b));
        return 0;
    default: break;
    }
    if (b == 0) {
        return jinja_fail(r, STATUS_INPUT, "float division by zero");
    }
    if (op == JINJA_TOK_DIV) {
        *out = jinja_float(a / b);
        return 0;
    }
    m = fmod(a, b);
    if (m != 0 && (m < 0) != (b < 0)) {
        m += b;
    }
    *out = jinja_float(op == JINJA_TOK_MOD ? m : floor((a - m) / b + 0.5));
    return 0;
}

int jinja_ops_binary(struct jinja_run *r, int op, struct jinja_val a, struct jinja_val b,
                     struct jinja_val *out)
{
    static const char *const text[] = {"+", "-", "*", "/", "//", "%", "**"};
    int numbers = (ops_is_int(a) || a.t == JINJA_FLOAT) && (ops_is_int(b) || b.t == JINJA_FLOAT);

    if (numbers && (a.t == JINJA_FLOAT || b.t == JINJA_FLOAT)) {
        return ops_float(r, op, a.t == JINJA_FLOAT ? a.f : (double)a.i,
                         b.t == JINJA_FLOAT ? b.f : (double)b.i, out);
    }
    if (op == JINJA_TOK_ADD) {
        return ops_add(r, a, b, out);
    }
    if (op == JINJA_TOK_MUL) {
        return ops_mul(r, a, b, out);
    }
    if (numbers) {
        return ops_int(r, op, a.i, b.i, out);
    }
    if (op == JINJA_TOK_MOD && a.t == JINJA_STR) {
        return jinja_format_percent(r, a, b, out);
    }
    return ops_type_error(r, text[op - JINJA_TOK_ADD], a, b);
}

int jinja_ops_unary(struct jinja_run *r, int op, struct jinja_val a, struct jinja_val *out)
{
    if (ops_is_int(a)) {
        if (op == JINJA_TOK_SUB && a.i == INT64_MIN) {
            return ops_overflow(r);
        }
        *out = jinja_int(op == JINJA_TOK_SUB ? -a.i : a.i);
        return 0;
    }
    if (a.t == JINJA_FLOAT) {
        *out = jinja_float(op == JINJA_TOK_SUB ? -a.f : a.f);
        return 0;
    }
    if (a.t == JINJA_UNDEF) {
        return jinja_value_undef_error(r, a);
    }
    return jinja_fail(r, STATUS_INPUT, "bad operand type for unary %c: '%s'",
                      op == JINJA_TOK_SUB ? '-' : '+', jinja_value_type(a));
}
