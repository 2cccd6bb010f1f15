/* Owns `x.name` and `x[key]`, the methods of dict, list and tuple, and the global functions.
 *
 * The sandbox is jinja2's immutable one: methods that change a list or dict in place, and names
 * that begin with an underscore, give an undefined value whose use is an error. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "text/jinja_int.h"

enum { OBJECT_MAX_RANGE = 100000 };

static int name_is(const char *p, size_t n, const char *s)
{
    return strlen(s) == n && memcmp(p, s, n) == 0;
}

int jinja_object_bind(struct jinja_run *r, const struct jinja_args *a, const char *what,
                      const char *names, int required, struct jinja_val *out)
{
    size_t i, n = 0, k;
    const char *p = names;

    while (*p) {
        size_t len = strcspn(p, " ");
        out[n] = n < a->npos ? a->pos[n] : jinja_missing();
        for (k = 0; k < a->nkw; k++) {
            if (a->kw[k].n == len && memcmp(a->kw[k].name, p, len) == 0) {
                if (out[n].t != JINJA_MISSING) {
                    return jinja_fail(r, STATUS_INPUT, "%s() got multiple values for '%.*s'", what,
                                      (int)len, p);
                }
                out[n] = a->kw[k].v;
            }
        }
        if ((int)n < required && out[n].t == JINJA_MISSING) {
            return jinja_fail(r, STATUS_INPUT, "%s() misses the argument '%.*s'", what, (int)len,
                              p);
        }
        n++;
        p += len + (p[len] == ' ');
    }
    if (a->npos > n) {
        return jinja_fail(r, STATUS_INPUT, "%s() takes at most %zu arguments, %zu given", what, n,
                          a->npos);
    }
    for (k = 0; k < a->nkw; k++) {
        for (i = 0, p = names; *p; i++) {
            size_t len = strcspn(p, " ");
            if (a->kw[k].n == len && memcmp(a->kw[k].name, p, len) == 0) {
                break;
            }
            p += len + (p[len] == ' ');
        }
        if (i == n) {
            return jinja_fail(r, STATUS_INPUT, "%s() got an unexpected keyword argument '%.*s'",
                              what, (int)a->kw[k].n, a->kw[k].name);
        }
    }
    return 0;
}

/* ---- dict methods ---- */

static int m_get(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                 struct jinja_val *out)
{
    struct jinja_val arg[2], *v;

    JINJA_TRY(jinja_object_bind(r, a, "get", "key default", 1, arg));
    if (a->nkw) {
        return jinja_fail(r, STATUS_INPUT, "dict.get() takes no keyword arguments");
    }
    JINJA_TRY(jinja_value_get(r, self.d, arg[0], &v));
    *out = v ? *v : arg[1].t == JINJA_MISSING ? jinja_none() : arg[1];
    return 0;
}

static int make_view(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                     char kind, struct jinja_val *out)
{
    struct jinja_view *v;

    JINJA_TRY(jinja_object_bind(r, a, "items", "", 0, NULL));
    v = jinja_alloc(r, sizeof *v);
    if (!v) {
        return STATUS_NOMEM;
    }
    v->d = self.d;
    v->kind = kind;
    out->t = JINJA_VIEW;
    out->view = v;
    return 0;
}

static int m_items(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                   struct jinja_val *out)
{
    return make_view(r, self, a, 'i', out);
}

static int m_keys(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                  struct jinja_val *out)
{
    return make_view(r, self, a, 'k', out);
}

static int m_values(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                    struct jinja_val *out)
{
    return make_view(r, self, a, 'v', out);
}

static int m_copy(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                  struct jinja_val *out)
{
    JINJA_TRY(jinja_object_bind(r, a, "copy", "", 0, NULL));
    *out = self; /* nothing can change it in place, so the copy may be the same */
    return 0;
}

/* ---- list and tuple methods ---- */

static int m_index(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                   struct jinja_val *out)
{
    struct jinja_val arg[3];
    int64_t i, n = (int64_t)self.l->n, from, to;
    int yes;

    JINJA_TRY(jinja_object_bind(r, a, "index", "value start stop", 1, arg));
    from = arg[1].t == JINJA_INT ? arg[1].i : 0;
    to = arg[2].t == JINJA_INT ? arg[2].i : n;
    from = from < -n ? 0 : from < 0 ? from + n : from;
    to = to < -n ? 0 : to < 0 ? to + n : to > n ? n : to;
    for (i = from; i < to; i++) {
        JINJA_TRY(jinja_value_eq(r, self.l->v[i], arg[0], &yes));
        if (yes) {
            *out = jinja_int(i);
            return 0;
        }
    }
    return jinja_fail(r, STATUS_INPUT, "the value is not in the list");
}

static int m_count(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                   struct jinja_val *out)
{
    struct jinja_val arg;
    size_t i;
    int yes;

    JINJA_TRY(jinja_object_bind(r, a, "count", "value", 1, &arg));
    *out = jinja_int(0);
    for (i = 0; i < self.l->n; i++) {
        JINJA_TRY(jinja_value_eq(r, self.l->v[i], arg, &yes));
        out->i += yes;
    }
    return 0;
}

static int m_is_integer(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                        struct jinja_val *out)
{
    JINJA_TRY(jinja_object_bind(r, a, "is_integer", "", 0, NULL));
    *out = jinja_bool(self.f >= -9e18 && self.f <= 9e18 && (double)(int64_t)self.f == self.f);
    return 0;
}

/* ---- cycler, joiner ---- */

static int m_cycler_next(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                         struct jinja_val *out)
{
    struct jinja_cycler *c = self.cycler;

    JINJA_TRY(jinja_object_bind(r, a, "next", "", 0, NULL));
    *out = c->items->v[c->pos];
    c->pos = (c->pos + 1) % c->items->n;
    return 0;
}

static int m_cycler_reset(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                          struct jinja_val *out)
{
    JINJA_TRY(jinja_object_bind(r, a, "reset", "", 0, NULL));
    self.cycler->pos = 0;
    *out = jinja_none();
    return 0;
}

int jinja_object_cycler_call(struct jinja_run *r, struct jinja_val v, struct jinja_val *out)
{
    if (v.cycler->pos++ == 0) {
        return jinja_value_str(r, "", 0, out);
    }
    *out = v.cycler->items->v[0];
    return 0;
}

static const struct jinja_method_def dict_methods[] = {
    {"get", m_get, 0},    {"items", m_items, 0},   {"keys", m_keys, 0}, {"values", m_values, 0},
    {"copy", m_copy, 0},  {"fromkeys", NULL, 0},   {"clear", NULL, 1},  {"pop", NULL, 1},
    {"popitem", NULL, 1}, {"setdefault", NULL, 1}, {"update", NULL, 1}, {NULL, NULL, 0}};
static const struct jinja_method_def list_methods[] = {
    {"index", m_index, 0}, {"count", m_count, 0}, {"copy", m_copy, 0},  {"append", NULL, 1},
    {"clear", NULL, 1},    {"pop", NULL, 1},      {"reverse", NULL, 1}, {"insert", NULL, 1},
    {"sort", NULL, 1},     {"extend", NULL, 1},   {"remove", NULL, 1},  {NULL, NULL, 0}};
static const struct jinja_method_def tuple_methods[] = {
    {"index", m_index, 0}, {"count", m_count, 0}, {NULL, NULL, 0}};
static const struct jinja_method_def float_methods[] = {{"is_integer", m_is_integer, 0},
                                                        {"hex", NULL, 0},
                                                        {"as_integer_ratio", NULL, 0},
                                                        {"conjugate", NULL, 0},
                                                        {NULL, NULL, 0}};
static const struct jinja_method_def int_methods[] = {
    {"bit_length", NULL, 0}, {"to_bytes", NULL, 0}, {"conjugate", NULL, 0}, {NULL, NULL, 0}};
static const struct jinja_method_def cycler_methods[] = {
    {"next", m_cycler_next, 0}, {"reset", m_cycler_reset, 0}, {NULL, NULL, 0}};
static const struct jinja_method_def loop_methods[] = {
    {"cycle", jinja_eval_loop_cycle, 0}, {"changed", jinja_eval_loop_changed, 0}, {NULL, NULL, 0}};

static const struct jinja_method_def dict_type_methods[] = {{"fromkeys", jinja_rare_fromkeys, 0},
                                                            {NULL, NULL, 0}};

static const struct jinja_method_def *find_method(struct jinja_val v, const char *p, size_t n)
{
    const struct jinja_method_def *m;

    switch (v.t) {
    case JINJA_STR: return jinja_str_method(p, n);
    case JINJA_DICT: m = dict_methods; break;
    case JINJA_LIST: m = list_methods; break;
    case JINJA_TUPLE:
    case JINJA_RANGE: m = tuple_methods; break;
    case JINJA_FLOAT: m = float_methods; break;
    case JINJA_INT:
    case JINJA_BOOL: m = int_methods; break;
    case JINJA_CYCLER: m = cycler_methods; break;
    case JINJA_LOOP: m = loop_methods; break;
    case JINJA_FUNC:
        if (strcmp(v.func->name, "dict") != 0) {
            return NULL;
        }
        m = dict_type_methods;
        break;
    default: return NULL;
    }
    for (; m->name; m++) {
        if (name_is(p, n, m->name)) {
            return m;
        }
    }
    return NULL;
}

/* ---- attributes and items ---- */

static int no_such(struct jinja_run *r, struct jinja_val v, struct jinja_val name,
                   struct jinja_val *out)
{
    const char *type = v.t == JINJA_NONE ? "None" : jinja_value_type(v);

    JINJA_TRY(jinja_value_undef(r, NULL, out));
    out->u->obj_type = type;
    out->u->name = name;
    return 0;
}

static int unsafe(struct jinja_run *r, struct jinja_val v, const char *p, size_t n,
                  struct jinja_val *out)
{
    char *text = jinja_alloc(r, 200);

    if (!text) {
        return STATUS_NOMEM;
    }
    snprintf(text, 200, "access to attribute '%.*s' of '%s' object is unsafe.",
             n > 60 ? 60 : (int)n, p, jinja_value_type(v));
    return jinja_value_undef(r, text, out);
}

/* What Python's getattr finds; *found is 0 when there is no such attribute. */
static int real_attr(struct jinja_run *r, struct jinja_val v, const char *p, size_t n,
                     struct jinja_val *out, int *found)
{
    const struct jinja_method_def *m;
    struct jinja_val *hit;

    *found = 1;
    if (v.t == JINJA_UNDEF) {
        return jinja_value_undef_error(r, v);
    }
    if (v.t == JINJA_NS) {
        hit = jinja_value_getn(v.d, p, n);
        if (hit) {
            *out = *hit;
            return 0;
        }
    }
    if (v.t == JINJA_LOOP) {
        JINJA_TRY(jinja_eval_loop_attr(r, v.loop, p, n, out, found));
        if (*found) {
            return 0;
        }
        *found = 1;
    }
    if (v.t == JINJA_RANGE &&
        (name_is(p, n, "start") || name_is(p, n, "stop") || name_is(p, n, "step"))) {
        *out = jinja_int(p[2] == 'a' ? v.l->start : p[2] == 'o' ? v.l->stop : v.l->step);
        return 0;
    }
    if (v.t == JINJA_CYCLER && name_is(p, n, "current")) {
        *out = v.cycler->items->v[v.cycler->pos];
        return 0;
    }
    if (v.t == JINJA_MACRO && name_is(p, n, "name") && v.macro->node->name) {
        return jinja_value_str(r, v.macro->node->name->p, v.macro->node->name->n, out);
    }
    m = find_method(v, p, n);
    if (m && m->mutates) {
        return unsafe(r, v, p, n, out);
    }
    if (m) {
        struct jinja_method *b = jinja_alloc(r, sizeof *b);
        if (!b) {
            return STATUS_NOMEM;
        }
        b->self = v;
        b->def = m;
        out->t = JINJA_METHOD;
        out->method = b;
        return 0;
    }
    if (n > 4 && p[0] == '_' && p[1] == '_' &&
        (name_is(p, n, "__class__") || name_is(p, n, "__init__") || name_is(p, n, "__doc__") ||
         name_is(p, n, "__dict__"))) {
        return unsafe(r, v, p, n, out);
    }
    *found = 0;
    return 0;
}

int jinja_object_attr(struct jinja_run *r, struct jinja_val v, const char *p, size_t n,
                      struct jinja_val *out)
{
    struct jinja_val name, *hit;
    int found;

    JINJA_TRY(real_attr(r, v, p, n, out, &found));
    if (found) {
        return 0;
    }
    if (v.t == JINJA_DICT) {
        hit = jinja_value_getn(v.d, p, n);
        if (hit) {
            *out = *hit;
            return 0;
        }
    }
    JINJA_TRY(jinja_value_str(r, p, n, &name));
    return no_such(r, v, name, out);
}

static int index_into(struct jinja_run *r, struct jinja_val v, int64_t i, struct jinja_val *out,
                      int *found)
{
    int64_t n;

    JINJA_TRY(jinja_value_len(r, v, &n));
    i = i < 0 ? i + n : i;
    *found = i >= 0 && i < n;
    if (!*found) {
        return 0;
    }
    if (v.t == JINJA_STR) {
        return jinja_value_slice(r, v, jinja_int(i), jinja_int(i + 1), jinja_missing(), out);
    }
    *out = v.l->v[i];
    return 0;
}

/* Whether a dict may have such a key: lists and dicts may not, nor tuples that hold one. */
static int hashable(struct jinja_val v, int depth)
{
    int yes = v.t != JINJA_LIST && v.t != JINJA_DICT && v.t != JINJA_VIEW && depth < 100;

    for (size_t i = 0; yes && v.t == JINJA_TUPLE && i < v.l->n; i++) {
        yes = hashable(v.l->v[i], depth + 1);
    }
    return yes;
}

int jinja_object_item(struct jinja_run *r, struct jinja_val v, struct jinja_val key,
                      struct jinja_val *out)
{
    int found = 0;

    if (v.t == JINJA_UNDEF) {
        return jinja_value_undef_error(r, v);
    }
    if (v.t == JINJA_DICT) {
        struct jinja_val *hit = NULL;
        if (hashable(key, 0)) {
            JINJA_TRY(jinja_value_get(r, v.d, key, &hit));
        }
        if (hit) {
            *out = *hit;
            return 0;
        }
    } else if ((key.t == JINJA_INT || key.t == JINJA_BOOL) &&
               (v.t == JINJA_STR || v.t == JINJA_LIST || v.t == JINJA_TUPLE ||
                v.t == JINJA_RANGE)) {
        JINJA_TRY(index_into(r, v, key.i, out, &found));
        if (found) {
            return 0;
        }
    }
    if (key.t == JINJA_STR) {
        JINJA_TRY(real_attr(r, v, key.s->p, key.s->n, out, &found));
        if (found) {
            return 0;
        }
    }
    return no_such(r, v, key, out);
}

/* ---- global functions ---- */

static int g_range(struct jinja_run *r, const struct jinja_args *a, struct jinja_val *out)
{
    int64_t v[3] = {0, 0, 1}, n, i;

    if (a->nkw || a->npos < 1 || a->npos > 3) {
        return jinja_fail(r, STATUS_INPUT, "range expected 1 to 3 arguments");
    }
    for (i = 0; i < (int64_t)a->npos; i++) {
        struct jinja_val x = a->pos[i];
        if (x.t == JINJA_UNDEF) {
            return jinja_value_undef_error(r, x);
        }
        if (x.t != JINJA_INT && x.t != JINJA_BOOL) {
            return jinja_fail(r, STATUS_INPUT, "'%s' object cannot be interpreted as an integer",
                              jinja_value_type(x));
        }
        v[a->npos == 1 ? 1 : i] = x.i;
    }
    if (v[2] == 0) {
        return jinja_fail(r, STATUS_INPUT, "range() arg 3 must not be zero");
    }
    if (v[2] > 0) {
        n = v[1] > v[0] ? (int64_t)(((uint64_t)v[1] - (uint64_t)v[0] - 1) / (uint64_t)v[2]) : -1;
    } else {
        n = v[0] > v[1] ? (int64_t)(((uint64_t)v[0] - (uint64_t)v[1] - 1) / (0 - (uint64_t)v[2]))
                        : -1;
    }
    if (n >= OBJECT_MAX_RANGE || n < -1) {
        return jinja_fail(r, STATUS_INPUT,
                          "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).",
                          OBJECT_MAX_RANGE);
    }
    JINJA_TRY(jinja_value_list(r, JINJA_RANGE, (size_t)(n + 1), out));
    for (i = 0; i <= n; i++) {
        out->l->v[i] = jinja_int(v[0] + i * v[2]);
    }
    out->l->start = v[0];
    out->l->stop = v[1];
    out->l->step = v[2];
    return 0;
}

/* dict(mapping or pairs, **more) */
static int build_dict(struct jinja_run *r, const struct jinja_args *a, struct jinja_val *out)
{
    struct jinja_list *items, *pair;
    size_t i;

    JINJA_TRY(jinja_value_dict(r, out));
    if (a->npos > 1) {
        return jinja_fail(r, STATUS_INPUT, "dict expected at most 1 argument, got %zu", a->npos);
    }
    if (a->npos == 1 && a->pos[0].t == JINJA_DICT) {
        struct jinja_dict *d = a->pos[0].d;
        for (i = 0; i < d->n; i++) {
            JINJA_TRY(jinja_value_put(r, out->d, d->e[i].k, d->e[i].v));
        }
    } else if (a->npos == 1) {
        JINJA_TRY(jinja_value_items(r, a->pos[0], &items));
        for (i = 0; i < items->n; i++) {
            JINJA_TRY(jinja_value_items(r, items->v[i], &pair));
            if (pair->n != 2) {
                return jinja_fail(r, STATUS_INPUT, "dict() needs pairs");
            }
            JINJA_TRY(jinja_value_put(r, out->d, pair->v[0], pair->v[1]));
        }
    }
    for (i = 0; i < a->nkw; i++) {
        struct jinja_val k;
        JINJA_TRY(jinja_value_str(r, a->kw[i].name, a->kw[i].n, &k));
        JINJA_TRY(jinja_value_put(r, out->d, k, a->kw[i].v));
    }
    return 0;
}

static int g_namespace(struct jinja_run *r, const struct jinja_args *a, struct jinja_val *out)
{
    size_t i;

    JINJA_TRY(build_dict(r, a, out));
    for (i = 0; i < out->d->n; i++) {
        struct jinja_val k = out->d->e[i].k;
        if (k.t == JINJA_STR && k.s->n && k.s->p[0] == '_') {
            return jinja_fail(r, STATUS_INPUT,
                              "chat templates cannot store underscore-prefixed attributes on a "
                              "namespace");
        }
    }
    out->t = JINJA_NS;
    return 0;
}

static int g_raise(struct jinja_run *r, const struct jinja_args *a, struct jinja_val *out)
{
    struct jinja_sb b = {0};
    struct jinja_val msg;
    size_t n;

    (void)out;
    JINJA_TRY(jinja_object_bind(r, a, "raise_exception", "message", 1, &msg));
    JINJA_TRY(jinja_print_str(r, &b, msg));
    n = b.n > sizeof r->err->msg - 1 ? sizeof r->err->msg - 1 : b.n;
    return err_set(r->err, STATUS_INPUT, "jinja", "%.*s", (int)n, b.p ? b.p : "");
}

/* What Python's datetime fills in before the C library sees the format: microseconds, and nothing
 * for the zone, since datetime.now() has none. */
static int expand_format(struct jinja_run *r, const struct jinja_str *s, long usec,
                         struct jinja_sb *b)
{
    size_t i, used;

    for (i = 0; i < s->n; i += used) {
        const char *p = s->p + i;
        size_t left = s->n - i;
        used = p[0] == '%' && left > 1 ? 2 : 1;
        if (used == 1 || (p[1] != 'f' && p[1] != 'z' && p[1] != 'Z' && p[1] != ':')) {
            JINJA_TRY(jinja_sb_add(r, b, p, used));
        } else if (p[1] == 'f') {
            char digits[24];
            snprintf(digits, sizeof digits, "%06ld", usec);
            JINJA_TRY(jinja_sb_cstr(r, b, digits));
        } else if (p[1] == ':' && (left < 3 || p[2] != 'z')) {
            JINJA_TRY(jinja_sb_add(r, b, p, used));
        } else if (p[1] == ':') {
            used = 3;
        }
    }
    return jinja_sb_char(r, b, 0);
}

static int g_strftime(struct jinja_run *r, const struct jinja_args *a, struct jinja_val *out)
{
    struct jinja_val fmt;
    struct jinja_sb b = {0};
    char text[8192];
    struct timespec now = {.tv_sec = (time_t)r->now};
    struct tm tm;
    size_t n;

    JINJA_TRY(jinja_object_bind(r, a, "strftime_now", "format", 1, &fmt));
    if (!r->now) {
        clock_gettime(CLOCK_REALTIME, &now);
    }
    if (fmt.t != JINJA_STR || fmt.s->n > 1000 || memchr(fmt.s->p, 0, fmt.s->n) ||
        !localtime_r(&now.tv_sec, &tm)) {
        return jinja_fail(r, STATUS_INPUT, "strftime_now() needs a short format string");
    }
    JINJA_TRY(expand_format(r, fmt.s, now.tv_nsec / 1000, &b));
    n = strftime(text, sizeof text, b.p, &tm);
    return jinja_value_copy(r, text, n, out);
}

static int make_cycler(struct jinja_run *r, const struct jinja_args *a, enum jinja_type t,
                       struct jinja_val *out)
{
    struct jinja_cycler *c = jinja_alloc(r, sizeof *c);
    struct jinja_val l;

    if (!c) {
        return STATUS_NOMEM;
    }
    if (t == JINJA_JOINER) {
        JINJA_TRY(jinja_value_list(r, JINJA_LIST, 1, &l));
        JINJA_TRY(jinja_object_bind(r, a, "joiner", "sep", 0, l.l->v));
        if (l.l->v[0].t == JINJA_MISSING) {
            JINJA_TRY(jinja_value_str(r, ", ", 2, l.l->v));
        }
    } else {
        if (!a->npos || a->nkw) {
            return jinja_fail(r, STATUS_INPUT, "cycler() needs items");
        }
        JINJA_TRY(jinja_value_list(r, JINJA_LIST, a->npos, &l));
        memcpy(l.l->v, a->pos, a->npos * sizeof *a->pos);
    }
    c->items = l.l;
    out->t = t;
    out->cycler = c;
    return 0;
}

static int g_joiner(struct jinja_run *r, const struct jinja_args *a, struct jinja_val *out)
{
    return make_cycler(r, a, JINJA_JOINER, out);
}

static int g_cycler(struct jinja_run *r, const struct jinja_args *a, struct jinja_val *out)
{
    return make_cycler(r, a, JINJA_CYCLER, out);
}

const struct jinja_func *jinja_object_global(const char *p, size_t n)
{
    static const struct jinja_func funcs[] = {
        {"range", g_range},           {"dict", build_dict},         {"namespace", g_namespace},
        {"raise_exception", g_raise}, {"strftime_now", g_strftime}, {"joiner", g_joiner},
        {"cycler", g_cycler}};
    size_t i;

    for (i = 0; i < sizeof funcs / sizeof *funcs; i++) {
        if (name_is(p, n, funcs[i].name)) {
            return &funcs[i];
        }
    }
    return NULL;
}
