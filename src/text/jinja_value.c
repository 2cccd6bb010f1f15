/* Owns values: how they are made, compared, hashed, iterated and sliced, with Python's rules. All
 * memory comes from the render's arena, under one ceiling. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "text/jinja_int.h"

enum { VALUE_MAX_NEST = 200, VALUE_SMALL_DICT = 8 };

int jinja_fail(struct jinja_run *r, int code, const char *fmt, ...)
{
    char msg[800];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    return err_set(r->err, code, "jinja", "template line %d: %s", r->line, msg);
}

void *jinja_alloc(struct jinja_run *r, size_t n)
{
    if (n > r->max_memory || r->arena.total > r->max_memory - n) {
        jinja_fail(r, STATUS_NOMEM, "the render needs more than %zu MiB", r->max_memory >> 20);
        return NULL;
    }
    return arena_alloc(&r->arena, n);
}

int jinja_charge(struct jinja_run *r, size_t n)
{
    r->steps += 1 + (int64_t)(n / 16);
    if (r->steps > r->max_steps) {
        return jinja_fail(r, STATUS_INPUT, "the template does not end within %lld steps",
                          (long long)r->max_steps);
    }
    return 0;
}

/* ---- string builder ---- */

int jinja_sb_add(struct jinja_run *r, struct jinja_sb *b, const char *p, size_t n)
{
    if (n > JINJA_MAX_OUTPUT || b->n > JINJA_MAX_OUTPUT - n) {
        return jinja_fail(r, STATUS_NOMEM, "a string grows beyond %d MiB", JINJA_MAX_OUTPUT >> 20);
    }
    if (b->cap - b->n < n) {
        size_t cap = b->cap ? 2 * b->cap : 64;
        char *q;
        while (cap < b->n + n) {
            cap *= 2;
        }
        q = jinja_alloc(r, cap);
        if (!q) {
            return STATUS_NOMEM;
        }
        if (b->n) {
            memcpy(q, b->p, b->n);
        }
        b->p = q;
        b->cap = cap;
    }
    if (n) {
        memcpy(b->p + b->n, p, n);
        b->n += n;
    }
    return jinja_charge(r, n);
}

int jinja_sb_char(struct jinja_run *r, struct jinja_sb *b, char c)
{
    return jinja_sb_add(r, b, &c, 1);
}

int jinja_sb_cp(struct jinja_run *r, struct jinja_sb *b, uint32_t cp)
{
    char u[4];
    size_t n = jinja_uni_put(cp, u);
    return jinja_sb_add(r, b, u, n);
}

int jinja_sb_cstr(struct jinja_run *r, struct jinja_sb *b, const char *s)
{
    return jinja_sb_add(r, b, s, strlen(s));
}

int jinja_sb_str(struct jinja_run *r, struct jinja_sb *b, struct jinja_val *out)
{
    return jinja_value_str(r, b->p ? b->p : "", b->n, out);
}

/* ---- making values ---- */

int jinja_value_str(struct jinja_run *r, const char *p, size_t n, struct jinja_val *out)
{
    struct jinja_str *s = jinja_alloc(r, sizeof *s);

    if (!s) {
        return STATUS_NOMEM;
    }
    s->p = p;
    s->n = n;
    s->ncp = -1;
    out->t = JINJA_STR;
    out->s = s;
    return 0;
}

int jinja_value_copy(struct jinja_run *r, const char *p, size_t n, struct jinja_val *out)
{
    char *q = jinja_alloc(r, n + 1);

    if (!q) {
        return STATUS_NOMEM;
    }
    memcpy(q, p, n);
    return jinja_value_str(r, q, n, out);
}

int jinja_value_sub(struct jinja_run *r, const struct jinja_str *base, size_t off, size_t n,
                    struct jinja_val *out)
{
    int markup = base->markup;

    JINJA_TRY(jinja_value_str(r, base->p + off, n, out));
    out->s->markup = markup;
    return 0;
}

int jinja_value_markup(struct jinja_run *r, struct jinja_val v, int markup, struct jinja_val *out)
{
    struct jinja_str *s = v.s;

    if (s->markup == markup) {
        *out = v;
        return 0;
    }
    JINJA_TRY(jinja_value_str(r, s->p, s->n, out));
    out->s->markup = markup;
    out->s->ncp = s->ncp;
    return 0;
}

int jinja_value_list(struct jinja_run *r, enum jinja_type t, size_t n, struct jinja_val *out)
{
    struct jinja_list *l = jinja_alloc(r, sizeof *l);

    if (!l || n > JINJA_MAX_MEMORY / sizeof *l->v) {
        return l ? jinja_fail(r, STATUS_NOMEM, "a list is too long") : STATUS_NOMEM;
    }
    if (n) {
        l->v = jinja_alloc(r, n * sizeof *l->v);
        if (!l->v) {
            return STATUS_NOMEM;
        }
    }
    l->n = n;
    out->t = t;
    out->l = l;
    return jinja_charge(r, n);
}

/* For lists still being built: l->tail holds the capacity. */
int jinja_value_append(struct jinja_run *r, struct jinja_list *l, struct jinja_val v)
{
    if (!l->tail || l->n == l->tail->cap) {
        size_t cap = l->n ? 2 * l->n : 4;
        struct jinja_val *q = jinja_alloc(r, cap * sizeof *q);
        struct jinja_tail *t = jinja_alloc(r, sizeof *t);
        if (!q || !t) {
            return STATUS_NOMEM;
        }
        if (l->n) {
            memcpy(q, l->v, l->n * sizeof *q);
        }
        l->v = q;
        l->tail = t;
        t->cap = cap;
    }
    l->v[l->n++] = v;
    l->tail->used = l->n;
    return jinja_charge(r, 1);
}

int jinja_value_iter(struct jinja_run *r, struct jinja_list *items, const char *kind,
                     struct jinja_val *out)
{
    struct jinja_iter *it = jinja_alloc(r, sizeof *it);

    if (!it) {
        return STATUS_NOMEM;
    }
    it->items = items;
    it->kind = kind;
    out->t = JINJA_ITER;
    out->iter = it;
    return 0;
}

int jinja_value_lazy(struct jinja_run *r, int rc, struct jinja_list *items, struct jinja_val *out)
{
    struct err *failed = NULL;

    if (rc && (rc == STATUS_NOMEM || r->steps > r->max_steps || r->depth > JINJA_MAX_DEPTH)) {
        return rc; /* a bound was reached: no later */
    }
    if (rc) {
        failed = jinja_alloc(r, sizeof *failed);
        if (!failed) {
            return STATUS_NOMEM;
        }
        if (r->err) {
            *failed = *r->err;
            memset(r->err, 0, sizeof *r->err);
        }
        failed->code = rc;
    }
    JINJA_TRY(jinja_value_iter(r, items, "generator", out));
    out->iter->failed = failed;
    return 0;
}

static int iter_end(struct jinja_run *r, const struct jinja_iter *it)
{
    if (!it->failed) {
        return 0;
    }
    if (r->err) {
        *r->err = *it->failed;
    }
    return it->failed->code;
}

int jinja_value_next(struct jinja_run *r, struct jinja_iter *it, struct jinja_val *out, int *got)
{
    *got = it->pos < it->items->n;
    if (!*got) {
        return iter_end(r, it);
    }
    *out = it->items->v[it->pos++];
    return 0;
}

int jinja_value_dict(struct jinja_run *r, struct jinja_val *out)
{
    struct jinja_dict *d = jinja_alloc(r, sizeof *d);

    if (!d) {
        return STATUS_NOMEM;
    }
    out->t = JINJA_DICT;
    out->d = d;
    return 0;
}

int jinja_value_undef(struct jinja_run *r, const char *hint, struct jinja_val *out)
{
    struct jinja_undef *u = jinja_alloc(r, sizeof *u);

    if (!u) {
        return STATUS_NOMEM;
    }
    u->hint = hint;
    out->t = JINJA_UNDEF;
    out->u = u;
    return 0;
}

static int value_from_object(struct jinja_run *r, const json_t *j, int depth, struct jinja_val *out)
{
    void *it;

    JINJA_TRY(jinja_value_dict(r, out));
    for (it = json_object_iter((json_t *)j); it; it = json_object_iter_next((json_t *)j, it)) {
        struct jinja_val k, v;
        const char *key = json_object_iter_key(it);
        JINJA_TRY(jinja_value_str(r, key, strlen(key), &k));
        JINJA_TRY(jinja_value_from_json(r, json_object_iter_value(it), depth + 1, &v));
        JINJA_TRY(jinja_value_put(r, out->d, k, v));
    }
    return 0;
}

int jinja_value_from_json(struct jinja_run *r, const json_t *j, int depth, struct jinja_val *out)
{
    size_t i;

    if (depth > VALUE_MAX_NEST) {
        return jinja_fail(r, STATUS_INPUT, "the variables are nested more than %d deep",
                          VALUE_MAX_NEST);
    }
    JINJA_TRY(jinja_charge(r, 1));
    switch (json_typeof(j)) {
    case JSON_OBJECT: return value_from_object(r, j, depth, out);
    case JSON_ARRAY:
        JINJA_TRY(jinja_value_list(r, JINJA_LIST, json_array_size(j), out));
        for (i = 0; i < out->l->n; i++) {
            JINJA_TRY(jinja_value_from_json(r, json_array_get(j, i), depth + 1, &out->l->v[i]));
        }
        return 0;
    case JSON_STRING: {
        const char *s = json_string_value(j);
        size_t n = json_string_length(j);
        if (!jinja_uni_valid(s, n)) {
            return jinja_fail(r, STATUS_INPUT, "a variable holds text that is not UTF-8");
        }
        return jinja_value_str(r, s, n, out);
    }
    case JSON_INTEGER: *out = jinja_int(json_integer_value(j)); return 0;
    case JSON_REAL: *out = jinja_float(json_real_value(j)); return 0;
    case JSON_TRUE: *out = jinja_bool(1); return 0;
    case JSON_FALSE: *out = jinja_bool(0); return 0;
    default: *out = jinja_none(); return 0;
    }
}

/* ---- dict ---- */

static uint64_t hash_bytes(const char *p, size_t n)
{
    uint64_t h = 1469598103934665603u;
    size_t i;

    for (i = 0; i < n; i++) {
        h = (h ^ (unsigned char)p[i]) * 1099511628211u;
    }
    return h ^ h >> 29;
}

static int value_hash(struct jinja_run *r, struct jinja_val v, int depth, uint64_t *h)
{
    size_t i;

    if (depth > VALUE_MAX_NEST) {
        return jinja_fail(r, STATUS_INPUT, "a value is nested too deeply");
    }
    switch (v.t) {
    case JINJA_STR: *h = hash_bytes(v.s->p, v.s->n); return jinja_charge(r, v.s->n);
    case JINJA_FLOAT:
        if (v.f >= -9e18 && v.f <= 9e18 && v.f == floor(v.f)) {
            v.i = (int64_t)v.f; /* equal numbers hash alike */
            *h = (uint64_t)v.i * 0x9e3779b97f4a7c15u;
            return 0;
        }
        *h = hash_bytes((const char *)&v.f, sizeof v.f);
        return 0;
    case JINJA_INT:
    case JINJA_BOOL: *h = (uint64_t)v.i * 0x9e3779b97f4a7c15u; return 0;
    case JINJA_NONE: *h = 77; return 0;
    case JINJA_UNDEF: *h = 78; return 0;
    case JINJA_TUPLE: {
        uint64_t x, sum = 79;
        for (i = 0; i < v.l->n; i++) {
            JINJA_TRY(value_hash(r, v.l->v[i], depth + 1, &x));
            sum = (sum ^ x) * 1099511628211u;
        }
        *h = sum;
        return 0;
    }
    case JINJA_LIST:
    case JINJA_DICT:
    case JINJA_VIEW:
        return jinja_fail(r, STATUS_INPUT, "unhashable type: '%s'", jinja_value_type(v));
    default: *h = (uint64_t)(uintptr_t)v.d; return 0;
    }
}

/* The slot of the key, or a free one. */
static int dict_probe(struct jinja_run *r, struct jinja_dict *d, struct jinja_val k, uint64_t h,
                      size_t *index)
{
    size_t i;
    int yes;

    *index = d->n;
    if (!d->slots) {
        for (i = 0; i < d->n; i++) {
            if (d->e[i].hash == h) {
                JINJA_TRY(jinja_value_eq(r, d->e[i].k, k, &yes));
                if (yes) {
                    *index = i;
                    return 0;
                }
            }
        }
        return 0;
    }
    for (i = h & (d->nslots - 1); d->slots[i]; i = (i + 1) & (d->nslots - 1)) {
        struct jinja_pair *e = &d->e[d->slots[i] - 1];
        r->steps++;
        if (e->hash == h) {
            JINJA_TRY(jinja_value_eq(r, e->k, k, &yes));
            if (yes) {
                *index = d->slots[i] - 1;
                return 0;
            }
        }
    }
    return 0;
}

static int dict_grow(struct jinja_run *r, struct jinja_dict *d)
{
    size_t cap = d->cap ? 2 * d->cap : 4, i, s;
    struct jinja_pair *e = jinja_alloc(r, cap * sizeof *e);

    if (!e) {
        return STATUS_NOMEM;
    }
    if (d->n) {
        memcpy(e, d->e, d->n * sizeof *e);
    }
    d->e = e;
    d->cap = cap;
    if (cap <= VALUE_SMALL_DICT) {
        return 0;
    }
    d->nslots = 2 * cap;
    d->slots = jinja_alloc(r, d->nslots * sizeof *d->slots);
    if (!d->slots) {
        return STATUS_NOMEM;
    }
    for (i = 0; i < d->n; i++) {
        for (s = e[i].hash & (d->nslots - 1); d->slots[s]; s = (s + 1) & (d->nslots - 1)) {
        }
        d->slots[s] = (uint32_t)i + 1;
    }
    return jinja_charge(r, d->n);
}

int jinja_value_put(struct jinja_run *r, struct jinja_dict *d, struct jinja_val k,
                    struct jinja_val v)
{
    uint64_t h;
    size_t i;

    JINJA_TRY(value_hash(r, k, 0, &h));
    JINJA_TRY(dict_probe(r, d, k, h, &i));
    if (i < d->n) {
        d->e[i].v = v;
        return 0;
    }
    if (d->n == d->cap) {
        JINJA_TRY(dict_grow(r, d));
    }
    d->e[d->n] = (struct jinja_pair){.k = k, .v = v, .hash = h};
    if (d->slots) {
        for (i = h & (d->nslots - 1); d->slots[i]; i = (i + 1) & (d->nslots - 1)) {
        }
        d->slots[i] = (uint32_t)d->n + 1;
    }
    d->n++;
    return 0;
}

int jinja_value_get(struct jinja_run *r, struct jinja_dict *d, struct jinja_val k,
                    struct jinja_val **found)
{
    uint64_t h;
    size_t i;

    JINJA_TRY(value_hash(r, k, 0, &h));
    JINJA_TRY(dict_probe(r, d, k, h, &i));
    *found = i < d->n ? &d->e[i].v : NULL;
    return 0;
}

struct jinja_val *jinja_value_getn(struct jinja_dict *d, const char *p, size_t n)
{
    uint64_t h = hash_bytes(p, n);
    size_t i;

    if (!d->slots) {
        for (i = 0; i < d->n; i++) {
            struct jinja_pair *e = &d->e[i];
            if (e->hash == h && e->k.t == JINJA_STR && e->k.s->n == n &&
                memcmp(e->k.s->p, p, n) == 0) {
                return &e->v;
            }
        }
        return NULL;
    }
    for (i = h & (d->nslots - 1); d->slots[i]; i = (i + 1) & (d->nslots - 1)) {
        struct jinja_pair *e = &d->e[d->slots[i] - 1];
        if (e->hash == h && e->k.t == JINJA_STR && e->k.s->n == n && memcmp(e->k.s->p, p, n) == 0) {
            return &e->v;
        }
    }
    return NULL;
}

/* ---- questions ---- */

const char *jinja_value_type(struct jinja_val v)
{
    switch (v.t) {
    case JINJA_NONE: return "NoneType";
    case JINJA_BOOL: return "bool";
    case JINJA_INT: return "int";
    case JINJA_FLOAT: return "float";
    case JINJA_STR: return v.s->markup ? "Markup" : "str";
    case JINJA_LIST: return "list";
    case JINJA_TUPLE: return "tuple";
    case JINJA_RANGE: return "range";
    case JINJA_DICT: return "dict";
    case JINJA_VIEW:
        return v.view->kind == 'k'   ? "dict_keys"
               : v.view->kind == 'v' ? "dict_values"
                                     : "dict_items";
    case JINJA_ITER: return v.iter->kind;
    case JINJA_NS: return "Namespace";
    case JINJA_MACRO: return "Macro";
    case JINJA_FUNC: return "function";
    case JINJA_METHOD: return "builtin_function_or_method";
    case JINJA_LOOP: return "LoopContext";
    case JINJA_JOINER: return "Joiner";
    case JINJA_CYCLER: return "Cycler";
    default: return "Undefined";
    }
}

int jinja_value_undef_error(struct jinja_run *r, struct jinja_val v)
{
    const struct jinja_undef *u = v.u;

    if (u->hint) {
        return jinja_fail(r, STATUS_INPUT, "%s", u->hint);
    }
    if (u->name.t == JINJA_STR) {
        int n = u->name.s->n > 200 ? 200 : (int)u->name.s->n;
        if (!u->obj_type) {
            return jinja_fail(r, STATUS_INPUT, "'%.*s' is undefined", n, u->name.s->p);
        }
        return jinja_fail(r, STATUS_INPUT, "'%s object' has no attribute '%.*s'", u->obj_type, n,
                          u->name.s->p);
    }
    if (u->name.t == JINJA_INT) {
        return jinja_fail(r, STATUS_INPUT, "%s object has no element %lld", u->obj_type,
                          (long long)u->name.i);
    }
    return jinja_fail(r, STATUS_INPUT, "%s object has no such element",
                      u->obj_type ? u->obj_type : "an");
}

int jinja_value_truth(struct jinja_val v)
{
    switch (v.t) {
    case JINJA_MISSING:
    case JINJA_UNDEF:
    case JINJA_NONE: return 0;
    case JINJA_BOOL:
    case JINJA_INT: return v.i != 0;
    case JINJA_FLOAT: return v.f != 0;
    case JINJA_STR: return v.s->n != 0;
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_RANGE: return v.l->n != 0;
    case JINJA_DICT: return v.d->n != 0;
    case JINJA_VIEW: return v.view->d->n != 0;
    default: return 1;
    }
}

int64_t jinja_value_ncp(struct jinja_str *s)
{
    if (s->ncp < 0) {
        s->ncp = (int64_t)jinja_uni_count(s->p, s->n);
    }
    return s->ncp;
}

int jinja_value_iterable(struct jinja_val v)
{
    switch (v.t) {
    case JINJA_UNDEF:
    case JINJA_STR:
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_RANGE:
    case JINJA_DICT:
    case JINJA_VIEW:
    case JINJA_LOOP:
    case JINJA_ITER: return 1;
    default: return 0;
    }
}

int jinja_value_len(struct jinja_run *r, struct jinja_val v, int64_t *n)
{
    switch (v.t) {
    case JINJA_UNDEF: *n = 0; return 0;
    case JINJA_STR:
        if (v.s->ncp < 0) {
            JINJA_TRY(jinja_charge(r, v.s->n));
        }
        *n = jinja_value_ncp(v.s);
        return 0;
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_RANGE: *n = (int64_t)v.l->n; return 0;
    case JINJA_DICT: *n = (int64_t)v.d->n; return 0;
    case JINJA_VIEW: *n = (int64_t)v.view->d->n; return 0;
    default:
        return jinja_fail(r, STATUS_INPUT, "object of type '%s' has no len()", jinja_value_type(v));
    }
}

static int is_num(struct jinja_val v)
{
    return v.t == JINJA_INT || v.t == JINJA_BOOL || v.t == JINJA_FLOAT;
}

static double as_double(struct jinja_val v)
{
    return v.t == JINJA_FLOAT ? v.f : (double)v.i;
}

/* Compares numbers exactly; 2 when one is nan. */
static int num_cmp(struct jinja_val a, struct jinja_val b)
{
    double x, y;

    if (a.t != JINJA_FLOAT && b.t != JINJA_FLOAT) {
        return (a.i > b.i) - (a.i < b.i);
    }
    x = as_double(a);
    y = as_double(b);
    if (x != x || y != y) {
        return 2;
    }
    return (x > y) - (x < y);
}

static int str_cmp(const struct jinja_str *a, const struct jinja_str *b)
{
    size_t n = a->n < b->n ? a->n : b->n;
    int c = n ? memcmp(a->p, b->p, n) : 0;
    return c ? c : (a->n > b->n) - (a->n < b->n);
}

static int list_eq(struct jinja_run *r, struct jinja_list *a, struct jinja_list *b, int *yes)
{
    size_t i;

    *yes = a->n == b->n;
    for (i = 0; *yes && i < a->n; i++) {
        JINJA_TRY(jinja_value_eq(r, a->v[i], b->v[i], yes));
    }
    return 0;
}

static int dict_eq(struct jinja_run *r, struct jinja_dict *a, struct jinja_dict *b, int *yes)
{
    size_t i;

    *yes = a->n == b->n;
    for (i = 0; *yes && i < a->n; i++) {
        struct jinja_val *v;
        JINJA_TRY(jinja_value_get(r, b, a->e[i].k, &v));
        *yes = v != NULL;
        if (v) {
            JINJA_TRY(jinja_value_eq(r, a->e[i].v, *v, yes));
        }
    }
    return 0;
}

int jinja_value_eq(struct jinja_run *r, struct jinja_val a, struct jinja_val b, int *yes)
{
    int rc;

    JINJA_TRY(jinja_charge(r, 0));
    *yes = 0;
    if (is_num(a) && is_num(b)) {
        *yes = num_cmp(a, b) == 0;
        return 0;
    }
    if (a.t != b.t) {
        return 0;
    }
    switch (a.t) {
    case JINJA_MISSING:
    case JINJA_UNDEF:
    case JINJA_NONE: *yes = 1; return 0;
    case JINJA_STR:
        *yes = a.s->n == b.s->n && memcmp(a.s->p, b.s->p, a.s->n) == 0;
        return jinja_charge(r, a.s->n);
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_RANGE:
    case JINJA_DICT:
        if (++r->depth > JINJA_MAX_DEPTH) {
            return jinja_fail(r, STATUS_INPUT, "values are nested too deeply to compare");
        }
        rc = a.t == JINJA_DICT ? dict_eq(r, a.d, b.d, yes) : list_eq(r, a.l, b.l, yes);
        r->depth--;
        return rc;
    case JINJA_METHOD: *yes = a.method == b.method; return 0;
    default: *yes = a.d == b.d; return 0;
    }
}

int jinja_value_cmp(struct jinja_run *r, struct jinja_val a, struct jinja_val b, int *c)
{
    size_t i;
    int yes, rc;

    JINJA_TRY(jinja_charge(r, 0));
    if (is_num(a) && is_num(b)) {
        *c = num_cmp(a, b);
        return 0;
    }
    if (a.t == JINJA_STR && b.t == JINJA_STR) {
        *c = str_cmp(a.s, b.s);
        *c = (*c > 0) - (*c < 0);
        return jinja_charge(r, a.s->n);
    }
    if (a.t == b.t && (a.t == JINJA_LIST || a.t == JINJA_TUPLE)) {
        for (i = 0; i < a.l->n && i < b.l->n; i++) {
            JINJA_TRY(jinja_value_eq(r, a.l->v[i], b.l->v[i], &yes));
            if (!yes) {
                if (++r->depth > JINJA_MAX_DEPTH) {
                    return jinja_fail(r, STATUS_INPUT, "values are nested too deeply to compare");
                }
                rc = jinja_value_cmp(r, a.l->v[i], b.l->v[i], c);
                r->depth--;
                return rc;
            }
        }
        *c = (a.l->n > b.l->n) - (a.l->n < b.l->n);
        return 0;
    }
    if (a.t == JINJA_UNDEF || b.t == JINJA_UNDEF) {
        return jinja_value_undef_error(r, a.t == JINJA_UNDEF ? a : b);
    }
    return jinja_fail(r, STATUS_INPUT, "'%s' and '%s' cannot be ordered", jinja_value_type(a),
                      jinja_value_type(b));
}

int jinja_value_in(struct jinja_run *r, struct jinja_val needle, struct jinja_val hay, int *yes)
{
    struct jinja_list *items;
    struct jinja_val *v;
    size_t i;

    *yes = 0;
    if (hay.t == JINJA_STR) {
        if (needle.t != JINJA_STR) {
            return jinja_fail(r, STATUS_INPUT,
                              "'in <string>' requires string as left operand, not %s",
                              jinja_value_type(needle));
        }
        *yes = !needle.s->n || memmem(hay.s->p, hay.s->n, needle.s->p, needle.s->n) != NULL;
        return jinja_charge(r, hay.s->n);
    }
    if (hay.t == JINJA_DICT || (hay.t == JINJA_VIEW && hay.view->kind == 'k')) {
        JINJA_TRY(jinja_value_get(r, hay.t == JINJA_DICT ? hay.d : hay.view->d, needle, &v));
        *yes = v != NULL;
        return 0;
    }
    if (!jinja_value_iterable(hay)) {
        return jinja_fail(r, STATUS_INPUT, "argument of type '%s' is not iterable",
                          jinja_value_type(hay));
    }
    if (hay.t == JINJA_ITER) { /* stops behind the match, as a generator does */
        struct jinja_val item;
        int got = 1;
        while (!*yes && got) {
            JINJA_TRY(jinja_value_next(r, hay.iter, &item, &got));
            if (got) {
                JINJA_TRY(jinja_value_eq(r, item, needle, yes));
            }
        }
        return 0;
    }
    JINJA_TRY(jinja_value_items(r, hay, &items));
    for (i = 0; !*yes && i < items->n; i++) {
        JINJA_TRY(jinja_value_eq(r, items->v[i], needle, yes));
    }
    return 0;
}

/* ---- sequences ---- */

static int items_of_str(struct jinja_run *r, const struct jinja_str *s, struct jinja_list *l)
{
    size_t i = 0;

    while (i < s->n) {
        uint32_t cp;
        struct jinja_val c;
        size_t k = jinja_uni_next(s->p + i, s->p + s->n, &cp);
        JINJA_TRY(jinja_value_sub(r, s, i, k, &c));
        c.s->markup = 0; /* str.__iter__ gives plain characters */
        JINJA_TRY(jinja_value_append(r, l, c));
        i += k;
    }
    return 0;
}

static int items_of_dict(struct jinja_run *r, struct jinja_dict *d, char kind, struct jinja_list *l)
{
    size_t i;

    for (i = 0; i < d->n; i++) {
        struct jinja_val v = kind == 'k' ? d->e[i].k : d->e[i].v;
        if (kind == 'i') {
            JINJA_TRY(jinja_value_list(r, JINJA_TUPLE, 2, &v));
            v.l->v[0] = d->e[i].k;
            v.l->v[1] = d->e[i].v;
        }
        JINJA_TRY(jinja_value_append(r, l, v));
    }
    return 0;
}

int jinja_value_items(struct jinja_run *r, struct jinja_val v, struct jinja_list **out)
{
    struct jinja_val l;

    if (v.t == JINJA_LIST || v.t == JINJA_TUPLE || v.t == JINJA_RANGE) {
        *out = v.l;
        return 0;
    }
    JINJA_TRY(jinja_value_list(r, JINJA_LIST, 0, &l));
    *out = l.l;
    switch (v.t) {
    case JINJA_UNDEF: return 0;
    case JINJA_STR: return items_of_str(r, v.s, l.l);
    case JINJA_DICT: return items_of_dict(r, v.d, 'k', l.l);
    case JINJA_VIEW: return items_of_dict(r, v.view->d, v.view->kind, l.l);
    case JINJA_ITER:
        l.l->n = v.iter->items->n - v.iter->pos;
        l.l->v = l.l->n ? v.iter->items->v + v.iter->pos : NULL;
        v.iter->pos = v.iter->items->n;
        return iter_end(r, v.iter);
    default: return jinja_fail(r, STATUS_INPUT, "'%s' object is not iterable", jinja_value_type(v));
    }
}

static int slice_bound(struct jinja_run *r, struct jinja_val v, int64_t dflt, int64_t n, int64_t lo,
                       int64_t hi, int64_t *out)
{
    if (v.t == JINJA_MISSING || v.t == JINJA_NONE) {
        *out = dflt;
        return 0;
    }
    if (v.t == JINJA_UNDEF) {
        return jinja_fail(r, STATUS_INPUT, "slice indices must be integers or none");
    }
    if (v.t != JINJA_INT && v.t != JINJA_BOOL) {
        return jinja_fail(r, STATUS_INPUT, "slice indices must be integers or none, not %s",
                          jinja_value_type(v));
    }
    *out = v.i < 0 ? (v.i < -n ? lo : v.i + n) : v.i;
    *out = *out < lo ? lo : *out > hi ? hi : *out;
    return 0;
}

static int slice_str(struct jinja_run *r, struct jinja_str *s, int64_t a, int64_t count,
                     int64_t step, struct jinja_val *out)
{
    struct jinja_sb b = {0};
    int ascii = jinja_value_ncp(s) == (int64_t)s->n;
    const char *p = s->p, *end = s->p + s->n;
    const char **at;
    uint32_t cp;
    int64_t i;

    JINJA_TRY(jinja_charge(r, s->n));
    if (step == 1) {
        const char *q;
        for (i = 0; !ascii && i < a; i++) {
            p += jinja_uni_next(p, end, &cp);
        }
        p = ascii ? p + a : p;
        q = ascii ? p + count : p;
        for (i = 0; !ascii && i < count; i++) {
            q += jinja_uni_next(q, end, &cp);
        }
        return jinja_value_sub(r, s, (size_t)(p - s->p), (size_t)(q - p), out);
    }
    at = jinja_alloc(r, ((size_t)s->ncp + 1) * sizeof *at);
    if (!at) {
        return STATUS_NOMEM;
    }
    for (i = 0; i < s->ncp; i++) {
        at[i] = p;
        p += jinja_uni_next(p, end, &cp);
    }
    at[i] = end;
    for (i = 0; i < count; i++) {
        const char *c = at[a + i * step];
        JINJA_TRY(jinja_sb_add(r, &b, c, (size_t)(at[a + i * step + 1] - c)));
    }
    JINJA_TRY(jinja_sb_str(r, &b, out));
    out->s->markup = s->markup;
    return 0;
}

int jinja_value_slice(struct jinja_run *r, struct jinja_val v, struct jinja_val a,
                      struct jinja_val b, struct jinja_val c, struct jinja_val *out)
{
    int64_t n, start, stop, step = 1, count, i;

    if (v.t == JINJA_UNDEF) {
        return jinja_value_undef_error(r, v);
    }
    if (v.t != JINJA_STR && v.t != JINJA_LIST && v.t != JINJA_TUPLE && v.t != JINJA_RANGE) {
        return jinja_fail(r, STATUS_INPUT, "'%s' object cannot be sliced", jinja_value_type(v));
    }
    JINJA_TRY(jinja_value_len(r, v, &n));
    if (c.t == JINJA_INT || c.t == JINJA_BOOL) {
        step = c.i;
    } else if (c.t != JINJA_MISSING && c.t != JINJA_NONE) {
        return jinja_fail(r, STATUS_INPUT, "slice indices must be integers or none");
    }
    if (step == 0) {
        return jinja_fail(r, STATUS_INPUT, "slice step cannot be zero");
    }
    if (step < -n - 1 || step > n + 1) {
        step = step < 0 ? -n - 1 : n + 1; /* the same items, without overflow */
    }
    JINJA_TRY(slice_bound(r, a, step < 0 ? n - 1 : 0, n, step < 0 ? -1 : 0, step < 0 ? n - 1 : n,
                          &start));
    JINJA_TRY(
        slice_bound(r, b, step < 0 ? -1 : n, n, step < 0 ? -1 : 0, step < 0 ? n - 1 : n, &stop));
    count = step > 0 ? (stop > start ? (stop - start - 1) / step + 1 : 0)
                     : (start > stop ? (start - stop - 1) / -step + 1 : 0);
    if (v.t == JINJA_STR) {
        return slice_str(r, v.s, start, count, step, out);
    }
    JINJA_TRY(jinja_value_list(r, v.t, (size_t)count, out));
    for (i = 0; i < count; i++) {
        out->l->v[i] = v.l->v[start + i * step];
    }
    if (v.t == JINJA_RANGE) {
        out->l->start = v.l->start + start * v.l->step;
        out->l->stop = v.l->start + stop * v.l->step;
        out->l->step = v.l->step * step;
    }
    return 0;
}

static int sort_merge(struct jinja_run *r, const struct jinja_val *keys, uint32_t *idx,
                      uint32_t *tmp, size_t n, int reverse)
{
    size_t half = n / 2, i = 0, j = half, k = 0;

    if (n < 2) {
        return 0;
    }
    JINJA_TRY(sort_merge(r, keys, idx, tmp, half, reverse));
    JINJA_TRY(sort_merge(r, keys, idx + half, tmp, n - half, reverse));
    while (i < half && j < n) {
        int c;
        JINJA_TRY(jinja_value_cmp(r, keys[idx[i]], keys[idx[j]], &c));
        c = c == 2 ? 0 : reverse ? -c : c;
        tmp[k++] = c <= 0 ? idx[i++] : idx[j++];
    }
    while (i < half) {
        tmp[k++] = idx[i++];
    }
    while (j < n) {
        tmp[k++] = idx[j++];
    }
    memcpy(idx, tmp, n * sizeof *idx);
    return 0;
}

int jinja_value_sort(struct jinja_run *r, struct jinja_val *keys, struct jinja_val *vals, size_t n,
                     int reverse)
{
    uint32_t *idx, *tmp;
    struct jinja_val *copy;
    size_t i;

    if (n < 2) {
        return 0;
    }
    idx = jinja_alloc(r, 2 * n * sizeof *idx);
    copy = jinja_alloc(r, n * sizeof *copy);
    if (!idx || !copy) {
        return STATUS_NOMEM;
    }
    tmp = idx + n;
    for (i = 0; i < n; i++) {
        idx[i] = (uint32_t)i;
        copy[i] = vals[i];
    }
    JINJA_TRY(sort_merge(r, keys, idx, tmp, n, reverse));
    for (i = 0; i < n; i++) {
        vals[i] = copy[idx[i]];
    }
    return 0;
}
