/* Owns evaluation: expressions, statements, scopes, macros and loops, walking the syntax tree.
 *
 * Scopes are linked frames; a macro keeps the frame it was defined in, so what it reads is what
 * that frame holds when it runs, as with jinja2's closures. `if` opens no scope; loops, macros,
 * with, set blocks and generation do. */
#include <string.h>

#include "text/jinja_int.h"

/* How a body ended; positive, so that JINJA_TRY passes them up like errors. */
enum { EVAL_BREAK = 1001, EVAL_CONTINUE = 1002 };

struct jinja_loop {
    struct jinja_run *r;
    const struct jinja_node *node;
    struct jinja_frame *outer;
    struct jinja_list *items;
    size_t pos; /* next item to test */
    int64_t index0;
    int has_after;
    struct jinja_val before, current, after;
    int64_t length; /* -1: not known yet */
    struct jinja_val changed;
    int depth0;
};

static int eval(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n,
                struct jinja_val *out);

/* ---- scopes ---- */

/* A scope below `parent`; the names in `unset` (may be NULL) hide outer ones until they are set. */
static struct jinja_frame *frame_new(struct jinja_run *r, struct jinja_frame *parent,
                                     const struct jinja_names *unset)
{
    size_t n = unset ? unset->n : 0, i;
    struct jinja_frame *f = jinja_alloc(r, sizeof *f + n * sizeof(struct jinja_var));
    struct jinja_var *v;

    if (!f) {
        return NULL;
    }
    f->parent = parent;
    v = (struct jinja_var *)(f + 1);
    for (i = 0; i < n; i++) {
        v[i].name = unset->v[i];
        v[i].v = jinja_missing();
        v[i].next = f->vars;
        f->vars = &v[i];
    }
    f->set = f->vars;
    return f;
}

/* Makes the scope what it was when opened, so that a loop's next pass needs no new one. */
static void frame_reset(struct jinja_frame *f)
{
    struct jinja_var *x;

    for (x = f->vars; x; x = x->next) {
        x->v = jinja_missing();
    }
    for (x = f->vars; x != f->set; x = x->next) {
        x->v.t = JINJA_ABSENT;
    }
}

static int frame_set(struct jinja_run *r, struct jinja_frame *f, const struct jinja_name *name,
                     struct jinja_val v)
{
    struct jinja_var *x;
    size_t seen = 0;

    for (x = f->vars; x && x->name != name; x = x->next) {
        seen++;
    }
    JINJA_TRY(jinja_charge(r, seen * 2));
    if (x) {
        x->v = v;
        return 0;
    }
    x = jinja_alloc(r, sizeof *x);
    if (!x) {
        return STATUS_NOMEM;
    }
    x->name = name;
    x->v = v;
    x->next = f->vars;
    f->vars = x;
    return 0;
}

/* The value in the nearest scope that has the name; NULL when none has. */
static const struct jinja_val *lookup_frames(struct jinja_run *r, struct jinja_frame *f,
                                             const struct jinja_name *name)
{
    const struct jinja_var *x;
    size_t seen = 0;

    for (; f; f = f->parent) {
        for (x = f->vars; x; x = x->next, seen++) {
            if (x->name == name && x->v.t != JINJA_ABSENT) {
                r->steps += (int64_t)(seen / 8); /* checked with the next step */
                return &x->v;
            }
        }
    }
    r->steps += (int64_t)(seen / 8);
    return NULL;
}

static int lookup(struct jinja_run *r, struct jinja_frame *f, const struct jinja_name *name,
                  struct jinja_val *out)
{
    const struct jinja_val *v = lookup_frames(r, f, name);

    if (!v) {
        v = jinja_value_getn(r->vars, name->p, name->n);
        if (!v && name->global) {
            out->t = JINJA_FUNC;
            out->func = name->global;
            return 0;
        }
    }
    if (v && v->t != JINJA_MISSING) {
        *out = *v;
        return 0;
    }
    JINJA_TRY(jinja_value_undef(r, NULL, out));
    return jinja_value_str(r, name->p, name->n, &out->u->name);
}

static int assign(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *target,
                  struct jinja_val v)
{
    struct jinja_list *items;
    size_t i;

    if (target->kind == JINJA_NAME) {
        return frame_set(r, f, target->name, v);
    }
    if (target->kind == JINJA_NSREF) {
        struct jinja_val ns, key;
        JINJA_TRY(lookup(r, f, target->name, &ns));
        if (ns.t != JINJA_NS) {
            return jinja_fail(r, STATUS_INPUT, "cannot assign attribute on non-namespace object");
        }
        if (target->attr->p[0] == '_') {
            return jinja_fail(r, STATUS_INPUT,
                              "chat templates cannot store underscore-prefixed attributes on a "
                              "namespace");
        }
        JINJA_TRY(jinja_value_str(r, target->attr->p, target->attr->n, &key));
        return jinja_value_put(r, ns.d, key, v);
    }
    if (!jinja_value_iterable(v) || v.t == JINJA_LOOP) {
        return jinja_fail(r, STATUS_INPUT, "cannot unpack non-iterable %s object",
                          jinja_value_type(v));
    }
    JINJA_TRY(jinja_value_items(r, v, &items));
    if (items->n != target->list.n) {
        return jinja_fail(r, STATUS_INPUT, "%s values to unpack (expected %zu, got %zu)",
                          items->n > target->list.n ? "too many" : "not enough", target->list.n,
                          items->n);
    }
    for (i = 0; i < items->n; i++) {
        JINJA_TRY(assign(r, f, target->list.v[i], items->v[i]));
    }
    return 0;
}

/* ---- calls ---- */

static int add_kw(struct jinja_run *r, struct jinja_args *a, const char *p, size_t n,
                  struct jinja_val v)
{
    size_t i;

    JINJA_TRY(jinja_charge(r, a->nkw * 8));
    for (i = 0; i < a->nkw; i++) {
        if (a->kw[i].n == n && memcmp(a->kw[i].name, p, n) == 0) {
            return jinja_fail(r, STATUS_INPUT, "got multiple values for keyword argument '%.*s'",
                              (int)n, p);
        }
    }
    a->kw[a->nkw].name = p;
    a->kw[a->nkw].n = n;
    a->kw[a->nkw++].v = v;
    return 0;
}

static int eval_args(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n,
                     struct jinja_args *a)
{
    struct jinja_val star, star2 = jinja_missing();
    struct jinja_list *more = NULL;
    size_t i, nkw = n->nkw, npos = n->list.n;

    memset(a, 0, sizeof *a);
    if (n->star) {
        JINJA_TRY(eval(r, f, n->star, &star));
        JINJA_TRY(jinja_value_items(r, star, &more));
        npos += more->n;
    }
    if (n->star2) {
        JINJA_TRY(eval(r, f, n->star2, &star2));
        if (star2.t != JINJA_DICT) {
            return jinja_fail(r, STATUS_INPUT, "the argument after ** must be a mapping");
        }
        nkw += star2.d->n;
    }
    a->pos = jinja_alloc(r, (npos + 1) * sizeof *a->pos);
    a->kw = jinja_alloc(r, (nkw + 1) * sizeof *a->kw); /* one spare, for caller */
    if (!a->pos || !a->kw) {
        return STATUS_NOMEM;
    }
    for (i = 0; i < n->list.n; i++) {
        JINJA_TRY(eval(r, f, n->list.v[i], &a->pos[a->npos]));
        a->npos++;
    }
    for (i = 0; more && i < more->n; i++) {
        a->pos[a->npos++] = more->v[i];
    }
    for (i = 0; i < n->nkw; i++) {
        struct jinja_val v;
        JINJA_TRY(eval(r, f, n->kw[i].value, &v));
        JINJA_TRY(add_kw(r, a, n->kw[i].name->p, n->kw[i].name->n, v));
    }
    for (i = 0; n->star2 && i < star2.d->n; i++) {
        struct jinja_val k = star2.d->e[i].k;
        if (k.t != JINJA_STR) {
            return jinja_fail(r, STATUS_INPUT, "keywords must be strings");
        }
        JINJA_TRY(add_kw(r, a, k.s->p, k.s->n, star2.d->e[i].v));
    }
    return 0;
}

static struct jinja_kwval *find_kw(const struct jinja_args *a, const char *p, size_t n)
{
    size_t i;

    for (i = 0; i < a->nkw; i++) {
        if (a->kw[i].n == n && memcmp(a->kw[i].name, p, n) == 0) {
            return &a->kw[i];
        }
    }
    return NULL;
}

/* caller, kwargs and varargs: what the declared parameters left over. `used` marks kw entries that
 * were bound. */
static int bind_special(struct jinja_run *r, const struct jinja_node *n, struct jinja_frame *f,
                        const struct jinja_args *a, const char *used)
{
    struct jinja_val rest, extra, caller;
    const char *name = n->name ? n->name->p : "caller";
    int explicit_caller = 0;
    size_t i;

    for (i = 0; i < n->list.n; i++) {
        explicit_caller |= strcmp(n->list.v[i]->name->p, "caller") == 0;
    }
    JINJA_TRY(jinja_value_dict(r, &rest));
    JINJA_TRY(jinja_value_undef(r, "No caller defined", &caller));
    for (i = 0; i < a->nkw; i++) {
        struct jinja_val k;
        if (used[i]) {
            continue;
        }
        if ((n->flags & JINJA_USES_CALLER) && !explicit_caller && a->kw[i].n == 6 &&
            memcmp(a->kw[i].name, "caller", 6) == 0) {
            caller = a->kw[i].v;
            continue;
        }
        if (!(n->flags & JINJA_USES_KWARGS)) {
            return jinja_fail(r, STATUS_INPUT, "macro '%s' takes no keyword argument '%.*s'", name,
                              (int)a->kw[i].n, a->kw[i].name);
        }
        JINJA_TRY(jinja_value_str(r, a->kw[i].name, a->kw[i].n, &k));
        JINJA_TRY(jinja_value_put(r, rest.d, k, a->kw[i].v));
    }
    if ((n->flags & JINJA_USES_CALLER) && !explicit_caller) {
        JINJA_TRY(frame_set(r, f, r->j->caller, caller));
    }
    if (n->flags & JINJA_USES_KWARGS) {
        JINJA_TRY(frame_set(r, f, r->j->kwargs, rest));
    }
    if (n->flags & JINJA_USES_VARARGS) {
        size_t over = a->npos > n->list.n ? a->npos - n->list.n : 0;
        JINJA_TRY(jinja_value_list(r, JINJA_TUPLE, over, &extra));
        for (i = 0; i < over; i++) {
            extra.l->v[i] = a->pos[n->list.n + i];
        }
        JINJA_TRY(frame_set(r, f, r->j->varargs, extra));
    } else if (a->npos > n->list.n) {
        return jinja_fail(r, STATUS_INPUT, "macro '%s' takes not more than %zu argument(s)", name,
                          n->list.n);
    }
    return 0;
}

static int call_macro(struct jinja_run *r, const struct jinja_macro *m, const struct jinja_args *a,
                      struct jinja_val *out)
{
    const struct jinja_node *n = m->node;
    struct jinja_frame *f = frame_new(r, m->closure, &n->unset);
    struct jinja_sb b = {0};
    char *used = jinja_alloc(r, a->nkw + 1);
    size_t i, first_default = n->list.n - n->other.n;

    if (!f || !used) {
        return STATUS_NOMEM;
    }
    for (i = 0; i < n->list.n; i++) {
        const struct jinja_name *p = n->list.v[i]->name;
        struct jinja_kwval *kw = i < a->npos ? NULL : find_kw(a, p->p, p->n);
        struct jinja_val v;
        JINJA_TRY(jinja_charge(r, a->nkw * 8));
        if (i < a->npos) {
            v = a->pos[i];
        } else if (kw) {
            v = kw->v;
            used[kw - a->kw] = 1;
        } else if (i >= first_default) {
            JINJA_TRY(eval(r, f, n->other.v[i - first_default], &v));
        } else {
            JINJA_TRY(jinja_value_undef(r, NULL, &v));
            JINJA_TRY(jinja_value_str(r, p->p, p->n, &v.u->name));
        }
        JINJA_TRY(frame_set(r, f, p, v));
    }
    JINJA_TRY(bind_special(r, n, f, a, used));
    JINJA_TRY(jinja_eval_body(r, f, &n->body, &b));
    return jinja_sb_str(r, &b, out);
}

static int loop_call(struct jinja_run *r, struct jinja_loop *l, const struct jinja_args *a,
                     struct jinja_val *out);

int jinja_eval_call(struct jinja_run *r, struct jinja_val fn, const struct jinja_args *a,
                    struct jinja_val *out)
{
    switch (fn.t) {
    case JINJA_FUNC: return fn.func->fn(r, a, out);
    case JINJA_METHOD:
        if (!fn.method->def->fn) {
            return jinja_fail(r, STATUS_UNSUPPORTED, "the method '%s' is not supported",
                              fn.method->def->name);
        }
        return fn.method->def->fn(r, fn.method->self, a, out);
    case JINJA_MACRO: return call_macro(r, fn.macro, a, out);
    case JINJA_LOOP: return loop_call(r, fn.loop, a, out);
    case JINJA_JOINER: return jinja_object_cycler_call(r, fn, out);
    case JINJA_UNDEF: return jinja_value_undef_error(r, fn);
    default:
        return jinja_fail(r, STATUS_INPUT, "'%s' object is not callable", jinja_value_type(fn));
    }
}

/* ---- expressions ---- */

static int eval_const(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n,
                      struct jinja_val *out)
{
    (void)r;
    (void)f;
    *out = n->value;
    return 0;
}

static int eval_name(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n,
                     struct jinja_val *out)
{
    return lookup(r, f, n->name, out);
}

static int eval_sequence(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n,
                         struct jinja_val *out)
{
    struct jinja_val l;
    size_t i;

    JINJA_TRY(
        jinja_value_list(r, n->kind == JINJA_LIST_LIT ? JINJA_LIST : JINJA_TUPLE, n->list.n, &l));
    for (i = 0; i < n->list.n; i++) {
        JINJA_TRY(eval(r, f, n->list.v[i], &l.l->v[i]));
    }
    *out = l;
    return 0;
}

static int eval_dict(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n,
                     struct jinja_val *out)
{
    struct jinja_val d, k, v;
    size_t i;

    JINJA_TRY(jinja_value_dict(r, &d));
    for (i = 0; i < n->list.n; i += 2) {
        JINJA_TRY(eval(r, f, n->list.v[i], &k));
        JINJA_TRY(eval(r, f, n->list.v[i + 1], &v));
        JINJA_TRY(jinja_value_put(r, d.d, k, v));
    }
    *out = d;
    return 0;
}

static int eval_binop(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n,
                      struct jinja_val *out)
{
    struct jinja_val a, b;

    JINJA_TRY(eval(r, f, n->x, &a));
    JINJA_TRY(eval(r, f, n->y, &b));
    r->line = n->line;
    return jinja_ops_binary(r, n->op, a, b, out);
}

static int eval_unop(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n,
                     struct jinja_val *out)
{
    struct jinja_val a;

    JINJA_TRY(eval(r, f, n->x, &a));
    return jinja_ops_unary(r, n->op, a, out);
}

static int eval_logic(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n,
                      struct jinja_val *out)
{
    JINJA_TRY(eval(r, f, n->x, out));
    if (jinja_value_truth(*out) == (n->kind == JINJA_OR)) {
        return 0;
    }
    return eval(r, f, n->y, out);
}

static int eval_not(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n,
                    struct jinja_val *out)
{
    JINJA_TRY(eval(r, f, n->x, out));
    *out = jinja_bool(!jinja_value_truth(*out));
    return 0;
}

static int eval_cond(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n,
                     struct jinja_val *out)
{
    JINJA_TRY(eval(r, f, n->y, out));
    if (jinja_value_truth(*out)) {
        return eval(r, f, n->x, out);
    }
    if (n->z) {
        return eval(r, f, n->z, out);
    }
    return jinja_value_undef(
        r, "the inline if-expression evaluated to false and no else section was defined.", out);
}

static int eval_concat(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n,
                       struct jinja_val *out)
{
    struct jinja_val first, v;
    struct jinja_sb b = {0};
    size_t i;

    JINJA_TRY(eval(r, f, n->list.v[0], &first));
    JINJA_TRY(jinja_print_soft(r, first, &first));
    JINJA_TRY(jinja_value_markup(r, first, 0, &first));
    for (i = 1; i < n->list.n; i++) {
        JINJA_TRY(eval(r, f, n->list.v[i], &v));
        JINJA_TRY(jinja_print_str(r, &b, v));
    }
    JINJA_TRY(jinja_sb_str(r, &b, &v));
    return jinja_ops_binary(r, JINJA_TOK_ADD, first, v, out); /* appends in place if it can */
}

static int compare_one(struct jinja_run *r, int op, struct jinja_val a, struct jinja_val b,
                       int *yes)
{
    int c;

    switch (op) {
    case JINJA_TOK_EQ: return jinja_value_eq(r, a, b, yes);
    case JINJA_TOK_NE:
        JINJA_TRY(jinja_value_eq(r, a, b, yes));
        *yes = !*yes;
        return 0;
    case JINJA_TOK_NAME: return jinja_value_in(r, a, b, yes);
    case JINJA_TOK_EOF:
        JINJA_TRY(jinja_value_in(r, a, b, yes));
        *yes = !*yes;
        return 0;
    default: break;
    }
    JINJA_TRY(jinja_value_cmp(r, a, b, &c));
    *yes = c != 2 && (op == JINJA_TOK_GT   ? c > 0
                      : op == JINJA_TOK_GE ? c >= 0
                      : op == JINJA_TOK_LT ? c < 0
                                           : c <= 0);
    return 0;
}

static int eval_compare(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n,
                        struct jinja_val *out)
{
    struct jinja_val a, b;
    int yes = 1;
    size_t i;

    JINJA_TRY(eval(r, f, n->x, &a));
    for (i = 0; yes && i < n->list.n; i++) {
        JINJA_TRY(eval(r, f, n->list.v[i]->x, &b));
        r->line = n->line;
        JINJA_TRY(compare_one(r, n->list.v[i]->op, a, b, &yes));
        a = b;
    }
    *out = jinja_bool(yes);
    return 0;
}

static int eval_getattr(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n,
                        struct jinja_val *out)
{
    struct jinja_val v;

    JINJA_TRY(eval(r, f, n->x, &v));
    r->line = n->line;
    return jinja_object_attr(r, v, n->attr->p, n->attr->n, out);
}

static int eval_getitem(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n,
                        struct jinja_val *out)
{
    struct jinja_val v, k;

    JINJA_TRY(eval(r, f, n->x, &v));
    JINJA_TRY(eval(r, f, n->y, &k));
    r->line = n->line;
    return jinja_object_item(r, v, k, out);
}

static int eval_slice(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n,
                      struct jinja_val *out)
{
    struct jinja_val v, a = jinja_missing(), b = jinja_missing(), c = jinja_missing();

    JINJA_TRY(eval(r, f, n->x, &v));
    if (n->y) {
        JINJA_TRY(eval(r, f, n->y, &a));
    }
    if (n->z) {
        JINJA_TRY(eval(r, f, n->z, &b));
    }
    if (n->w) {
        JINJA_TRY(eval(r, f, n->w, &c));
    }
    r->line = n->line;
    return jinja_value_slice(r, v, a, b, c, out);
}

static int eval_call_node(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n,
                          struct jinja_val *out)
{
    struct jinja_val fn;
    struct jinja_args a;

    JINJA_TRY(eval(r, f, n->x, &fn));
    JINJA_TRY(eval_args(r, f, n, &a));
    r->line = n->line;
    return jinja_eval_call(r, fn, &a, out);
}

/* `in` is what stands before the first filter of a filter block, else NULL. */
static int eval_filter_on(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n,
                          const struct jinja_val *in, struct jinja_val *out)
{
    struct jinja_val v;
    struct jinja_args a;

    if (!n->x) {
        v = *in;
    } else if (in && n->x->kind == JINJA_FILTER) {
        JINJA_TRY(eval_filter_on(r, f, n->x, in, &v));
    } else {
        JINJA_TRY(eval(r, f, n->x, &v));
    }
    if (!n->filter) {
        return jinja_fail(r, STATUS_INPUT, "No filter named '%s' found.", n->name->p);
    }
    JINJA_TRY(eval_args(r, f, n, &a));
    r->line = n->line;
    return n->filter->fn(r, v, &a, out);
}

static int eval_filter(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n,
                       struct jinja_val *out)
{
    return eval_filter_on(r, f, n, NULL, out);
}

static int eval_test(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n,
                     struct jinja_val *out)
{
    struct jinja_val v;
    struct jinja_args a;
    int yes;

    JINJA_TRY(eval(r, f, n->x, &v));
    if (!n->test) {
        return jinja_fail(r, STATUS_INPUT, "No test named '%s' found.", n->name->p);
    }
    JINJA_TRY(eval_args(r, f, n, &a));
    r->line = n->line;
    JINJA_TRY(n->test->fn(r, v, &a, &yes));
    *out = jinja_bool(yes);
    return 0;
}

typedef int eval_fn(struct jinja_run *, struct jinja_frame *, const struct jinja_node *,
                    struct jinja_val *);
static eval_fn *const eval_table[] = {
    [JINJA_CONST] = eval_const,        [JINJA_NAME] = eval_name,
    [JINJA_TUPLE_LIT] = eval_sequence, [JINJA_LIST_LIT] = eval_sequence,
    [JINJA_DICT_LIT] = eval_dict,      [JINJA_BINOP] = eval_binop,
    [JINJA_UNOP] = eval_unop,          [JINJA_AND] = eval_logic,
    [JINJA_OR] = eval_logic,           [JINJA_NOT] = eval_not,
    [JINJA_COND] = eval_cond,          [JINJA_CONCAT] = eval_concat,
    [JINJA_COMPARE] = eval_compare,    [JINJA_GETATTR] = eval_getattr,
    [JINJA_GETITEM] = eval_getitem,    [JINJA_SLICE] = eval_slice,
    [JINJA_CALL] = eval_call_node,     [JINJA_FILTER] = eval_filter,
    [JINJA_TEST] = eval_test,
};

static int eval(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n,
                struct jinja_val *out)
{
    int rc;

    JINJA_TRY(jinja_charge(r, 0));
    if (++r->depth > JINJA_MAX_DEPTH) {
        return jinja_fail(r, STATUS_INPUT, "the template recurses too deeply");
    }
    rc = eval_table[n->kind](r, f, n, out);
    r->depth--;
    return rc;
}

/* What a filter or call block gives is joined as it is: only text can be. */
static int put_text(struct jinja_run *r, struct jinja_sb *out, struct jinja_val v)
{
    if (v.t != JINJA_STR) {
        return jinja_fail(r, STATUS_INPUT, "a block gives %s, not text", jinja_value_type(v));
    }
    return jinja_sb_add(r, out, v.s->p, v.s->n);
}

/* ---- loops ---- */

/* The next item that passes the loop's own `if`, evaluated only now: it may read what the body
 * changed. *got is 0 at the end. */
static int loop_pull(struct jinja_loop *l, struct jinja_val *out, int *got)
{
    struct jinja_run *r = l->r;

    while (l->pos < l->items->n) {
        struct jinja_val v = l->items->v[l->pos++], yes;
        struct jinja_frame *f;
        *out = v;
        *got = 1;
        if (!l->node->z) {
            return 0;
        }
        f = frame_new(r, l->outer, NULL);
        if (!f) {
            return STATUS_NOMEM;
        }
        JINJA_TRY(assign(r, f, l->node->x, v));
        JINJA_TRY(eval(r, f, l->node->z, &yes));
        if (jinja_value_truth(yes)) {
            return 0;
        }
    }
    *got = 0;
    return 0;
}

static int loop_peek(struct jinja_loop *l)
{
    return l->has_after ? 0 : loop_pull(l, &l->after, &l->has_after);
}

static int loop_length(struct jinja_loop *l, int64_t *n)
{
    if (l->length < 0 && !l->node->z) {
        l->length = (int64_t)l->items->n;
    }
    if (l->length < 0) { /* a filtered loop: test the rest now and keep what passed */
        struct jinja_val rest, v;
        int got;
        JINJA_TRY(jinja_value_list(l->r, JINJA_LIST, 0, &rest));
        for (;;) {
            JINJA_TRY(loop_pull(l, &v, &got));
            if (!got) {
                break;
            }
            JINJA_TRY(jinja_value_append(l->r, rest.l, v));
        }
        l->length = (int64_t)rest.l->n + l->index0 + 1 + l->has_after;
        l->items = rest.l;
        l->pos = 0;
    }
    *n = l->length;
    return 0;
}

int jinja_eval_loop_attr(struct jinja_run *r, struct jinja_loop *l, const char *p, size_t n,
                         struct jinja_val *out, int *known)
{
    static const char *const names[] = {"index",    "index0",   "first",     "last",
                                        "length",   "revindex", "revindex0", "previtem",
                                        "nextitem", "depth",    "depth0"};
    int64_t len;
    size_t i;

    *known = 1;
    for (i = 0; i < sizeof names / sizeof *names; i++) {
        if (strlen(names[i]) == n && memcmp(names[i], p, n) == 0) {
            break;
        }
    }
    switch (i) {
    case 0: *out = jinja_int(l->index0 + 1); return 0;
    case 1: *out = jinja_int(l->index0); return 0;
    case 2: *out = jinja_bool(l->index0 == 0); return 0;
    case 3:
        JINJA_TRY(loop_peek(l));
        *out = jinja_bool(!l->has_after);
        return 0;
    case 4:
    case 5:
    case 6:
        JINJA_TRY(loop_length(l, &len));
        *out = jinja_int(i == 4 ? len : i == 5 ? len - l->index0 : len - l->index0 - 1);
        return 0;
    case 7:
        if (l->index0 == 0) {
            return jinja_value_undef(r, "there is no previous item", out);
        }
        *out = l->before;
        return 0;
    case 8:
        JINJA_TRY(loop_peek(l));
        if (!l->has_after) {
            return jinja_value_undef(r, "there is no next item", out);
        }
        *out = l->after;
        return 0;
    case 9: *out = jinja_int(l->depth0 + 1); return 0;
    case 10: *out = jinja_int(l->depth0); return 0;
    default: *known = 0; return 0;
    }
}

int jinja_eval_loop_cycle(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                          struct jinja_val *out)
{
    if (!a->npos) {
        return jinja_fail(r, STATUS_INPUT, "no items for cycling given");
    }
    *out = a->pos[(size_t)self.loop->index0 % a->npos];
    return 0;
}

int jinja_eval_loop_changed(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                            struct jinja_val *out)
{
    struct jinja_val now;
    size_t i;
    int same = 0;

    JINJA_TRY(jinja_value_list(r, JINJA_TUPLE, a->npos, &now));
    for (i = 0; i < a->npos; i++) {
        now.l->v[i] = a->pos[i];
    }
    if (self.loop->changed.t == JINJA_TUPLE) {
        JINJA_TRY(jinja_value_eq(r, self.loop->changed, now, &same));
    }
    self.loop->changed = now;
    *out = jinja_bool(!same);
    return 0;
}

/* Runs the loop over `over`; the body writes to `out`. */
static int run_loop(struct jinja_run *r, struct jinja_frame *outer, const struct jinja_node *n,
                    struct jinja_val over, int depth0, struct jinja_sb *out)
{
    struct jinja_loop *l = jinja_alloc(r, sizeof *l);
    struct jinja_val self = {.t = JINJA_LOOP, .loop = l};
    struct jinja_frame *f = NULL;
    int got, rc, finished = 0;

    if (!l) {
        return STATUS_NOMEM;
    }
    l->r = r;
    l->node = n;
    l->outer = outer;
    l->index0 = -1;
    l->length = -1;
    l->depth0 = depth0;
    JINJA_TRY(jinja_value_items(r, over, &l->items));
    for (;;) {
        struct jinja_val v = l->after;
        got = l->has_after;
        l->has_after = 0;
        if (!got) {
            JINJA_TRY(loop_pull(l, &v, &got));
        }
        if (!got) {
            break;
        }
        l->index0++;
        l->before = l->current;
        l->current = v;
        if (f && !(n->flags & JINJA_HAS_MACRO)) {
            frame_reset(f);
        } else if (!(f = frame_new(r, outer, &n->unset))) {
            return STATUS_NOMEM;
        }
        JINJA_TRY(frame_set(r, f, r->j->loop, self));
        JINJA_TRY(assign(r, f, n->x, v));
        rc = jinja_eval_body(r, f, &n->body, out);
        if (rc == EVAL_BREAK) {
            break;
        }
        if (rc && rc != EVAL_CONTINUE) {
            return rc;
        }
        finished |= rc == 0;
    }
    /* as in jinja2, `else` runs when no pass reached the end of the body */
    if (!finished && n->other.n) {
        f = frame_new(r, outer, &n->unset_other);
        return f ? jinja_eval_body(r, f, &n->other, out) : STATUS_NOMEM;
    }
    return 0;
}

static int loop_call(struct jinja_run *r, struct jinja_loop *l, const struct jinja_args *a,
                     struct jinja_val *out)
{
    struct jinja_sb b = {0};
    struct jinja_val over;

    if (!(l->node->flags & JINJA_RECURSIVE)) {
        return jinja_fail(r, STATUS_INPUT,
                          "the loop must have the 'recursive' marker to be called recursively");
    }
    JINJA_TRY(jinja_object_bind(r, a, "loop", "iterable", 1, &over));
    JINJA_TRY(run_loop(r, l->outer, l->node, over, l->depth0 + 1, &b));
    return jinja_sb_str(r, &b, out);
}

/* ---- statements ---- */

static int exec_if(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n,
                   struct jinja_sb *out)
{
    struct jinja_val v;
    size_t i;

    for (i = 0; i < n->list.n; i++) {
        JINJA_TRY(eval(r, f, n->list.v[i]->x, &v));
        if (jinja_value_truth(v)) {
            return jinja_eval_body(r, f, &n->list.v[i]->body, out);
        }
    }
    return jinja_eval_body(r, f, &n->other, out);
}

static int exec_for(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n,
                    struct jinja_sb *out)
{
    struct jinja_val over;

    JINJA_TRY(eval(r, f, n->y, &over));
    r->line = n->line;
    return run_loop(r, f, n, over, 0, out);
}

static int exec_set(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n,
                    struct jinja_sb *out)
{
    struct jinja_val v;

    (void)out;
    JINJA_TRY(eval(r, f, n->y, &v));
    r->line = n->line;
    return assign(r, f, n->x, v);
}

static int capture(struct jinja_run *r, struct jinja_frame *outer, const struct jinja_node *n,
                   struct jinja_frame **inner, struct jinja_val *out)
{
    struct jinja_sb b = {0};

    *inner = frame_new(r, outer, &n->unset);
    if (!*inner) {
        return STATUS_NOMEM;
    }
    JINJA_TRY(jinja_eval_body(r, *inner, &n->body, &b));
    return jinja_sb_str(r, &b, out);
}

static int exec_set_block(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n,
                          struct jinja_sb *out)
{
    struct jinja_frame *inner;
    struct jinja_val text, v;

    (void)out;
    JINJA_TRY(capture(r, f, n, &inner, &text));
    v = text;
    if (n->y) {
        JINJA_TRY(eval_filter_on(r, inner, n->y, &text, &v));
    }
    return assign(r, f, n->x, v);
}

static int exec_filter_block(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n,
                             struct jinja_sb *out)
{
    struct jinja_frame *inner;
    struct jinja_val text, v;

    JINJA_TRY(capture(r, f, n, &inner, &text));
    JINJA_TRY(eval_filter_on(r, inner, n->x, &text, &v));
    return put_text(r, out, v);
}

static int exec_with(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n,
                     struct jinja_sb *out)
{
    struct jinja_frame *inner = frame_new(r, f, &n->unset);
    struct jinja_val v;
    size_t i;

    if (!inner) {
        return STATUS_NOMEM;
    }
    for (i = 0; i < n->list.n; i++) {
        JINJA_TRY(eval(r, f, n->other.v[i], &v));
        JINJA_TRY(assign(r, inner, n->list.v[i], v));
    }
    return jinja_eval_body(r, inner, &n->body, out);
}

static int make_macro(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n,
                      struct jinja_val *out)
{
    struct jinja_macro *m = jinja_alloc(r, sizeof *m);

    if (!m) {
        return STATUS_NOMEM;
    }
    m->node = n;
    m->closure = f;
    out->t = JINJA_MACRO;
    out->macro = m;
    return 0;
}

static int exec_macro(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n,
                      struct jinja_sb *out)
{
    struct jinja_val m;

    (void)out;
    JINJA_TRY(make_macro(r, f, n, &m));
    return frame_set(r, f, n->name, m);
}

static int exec_call_block(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n,
                           struct jinja_sb *out)
{
    struct jinja_val fn, caller, v;
    struct jinja_args a;

    JINJA_TRY(make_macro(r, f, n, &caller));
    JINJA_TRY(eval(r, f, n->x->x, &fn));
    JINJA_TRY(eval_args(r, f, n->x, &a));
    JINJA_TRY(add_kw(r, &a, "caller", 6, caller));
    r->line = n->line;
    JINJA_TRY(jinja_eval_call(r, fn, &a, &v));
    return put_text(r, out, v);
}

/* Where the text stands now, in code points. */
static size_t root_position(struct jinja_run *r)
{
    if (r->counted < r->root->n) {
        r->counted_cps += jinja_uni_count(r->root->p + r->counted, r->root->n - r->counted);
        r->counted = r->root->n;
    }
    return r->counted_cps;
}

static int add_span(struct jinja_run *r, size_t start, size_t len)
{
    if (r->nspans == r->spancap) {
        size_t cap = r->spancap ? 2 * r->spancap : 16;
        struct jinja_span *v = jinja_alloc(r, cap * sizeof *v);
        if (!v) {
            return STATUS_NOMEM;
        }
        if (r->nspans) {
            memcpy(v, r->spans, r->nspans * sizeof *v);
        }
        r->spans = v;
        r->spancap = cap;
    }
    r->spans[r->nspans].start = start;
    r->spans[r->nspans++].end = start + len;
    return 0;
}

/* generation: its text is made apart, so that the span starts where the text stood before it. */
static int exec_scope(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n,
                      struct jinja_sb *out)
{
    struct jinja_frame *inner;
    struct jinja_val text;

    JINJA_TRY(capture(r, f, n, &inner, &text));
    JINJA_TRY(add_span(r, root_position(r), jinja_uni_count(text.s->p, text.s->n)));
    return jinja_sb_add(r, out, text.s->p, text.s->n);
}

static int exec_output(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n,
                       struct jinja_sb *out)
{
    struct jinja_val v;
    size_t i;

    for (i = 0; i < n->list.n; i++) {
        JINJA_TRY(eval(r, f, n->list.v[i], &v));
        JINJA_TRY(jinja_print_str(r, out, v));
    }
    return 0;
}

static int exec(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n,
                struct jinja_sb *out)
{
    r->line = n->line;
    switch (n->kind) {
    case JINJA_DATA: return jinja_sb_add(r, out, n->value.s->p, n->value.s->n);
    case JINJA_OUTPUT: return exec_output(r, f, n, out);
    case JINJA_IF: return exec_if(r, f, n, out);
    case JINJA_FOR: return exec_for(r, f, n, out);
    case JINJA_SET: return exec_set(r, f, n, out);
    case JINJA_SET_BLOCK: return exec_set_block(r, f, n, out);
    case JINJA_WITH: return exec_with(r, f, n, out);
    case JINJA_MACRO_DEF: return exec_macro(r, f, n, out);
    case JINJA_CALL_BLOCK: return exec_call_block(r, f, n, out);
    case JINJA_FILTER_BLOCK: return exec_filter_block(r, f, n, out);
    case JINJA_SCOPE: return exec_scope(r, f, n, out);
    case JINJA_BREAK: return EVAL_BREAK;
    case JINJA_CONTINUE: return EVAL_CONTINUE;
    default: return jinja_fail(r, STATUS_FAIL, "unknown statement");
    }
}

int jinja_eval_body(struct jinja_run *r, struct jinja_frame *f, const struct jinja_nodes *body,
                    struct jinja_sb *out)
{
    size_t i;
    int rc = 0;

    if (++r->depth > JINJA_MAX_DEPTH) {
        return jinja_fail(r, STATUS_INPUT, "the template recurses too deeply");
    }
    for (i = 0; !rc && i < body->n; i++) {
        rc = exec(r, f, body->v[i], out);
    }
    r->depth--;
    return rc;
}

int jinja_eval_root(struct jinja_run *r, struct jinja_sb *out)
{
    struct jinja_frame *f = frame_new(r, NULL, &r->j->unset);
    return f ? jinja_eval_body(r, f, &r->j->body, out) : STATUS_NOMEM;
}
