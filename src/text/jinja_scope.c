/* Owns one rule of jinja2's compiler that templates can see: it decides per scope, before anything
 * runs, which variable a name means. A name whose first mention in a scope is an unconditional
 * assignment belongs to that scope from its start, so a loop or macro that reads it earlier finds
 * it undefined, even if the caller passed a variable of that name. This pass lists such names per
 * scope; the evaluator marks them as unset when it opens the scope.
 *
 * A scope is read in two passes, as in jinja2: first its own statements, then the scopes inside. */
#include <string.h>

#include "text/jinja_int.h"

struct scope {
    struct scope *parent;
    struct jinja_ref *mine; /* names this scope knows, to forget them at its end */
    struct jinja_names *unset;
    int branch; /* open if branches */
};

/* One entry of a name's stack of scopes, innermost first. */
struct jinja_ref {
    const struct scope *scope;
    struct jinja_name *name;
    struct jinja_ref *below; /* the next outer scope of the same name */
    struct jinja_ref *next;  /* the next name of the same scope */
};

static void visit(struct jinja *j, struct scope *s, const struct jinja_node *n);
static void visit_list(struct jinja *j, struct scope *s, const struct jinja_nodes *l);
static void inner_scopes(struct jinja *j, struct scope *s, const struct jinja_nodes *body);

static void know(struct jinja *j, struct scope *s, const struct jinja_name *name)
{
    struct jinja_ref *r = arena_alloc(&j->arena, sizeof *r);

    r->scope = s;
    r->name = (struct jinja_name *)name;
    r->below = name->refs;
    r->next = s->mine;
    r->name->refs = r;
    s->mine = r;
}

static void load(struct jinja *j, struct scope *s, const struct jinja_name *name)
{
    if (!name->refs) {
        know(j, s, name);
    }
}

static void param(struct jinja *j, struct scope *s, const struct jinja_name *name)
{
    if (!name->refs || name->refs->scope != s) {
        know(j, s, name);
    }
}

static void store(struct jinja *j, struct scope *s, const struct jinja_name *name)
{
    int outer = name->refs != NULL;

    if (outer && name->refs->scope == s) {
        return;
    }
    know(j, s, name);
    if (!outer && !s->branch) {
        struct jinja_names *u = s->unset;
        if (u->n == u->cap) {
            size_t cap = u->cap ? 2 * u->cap : 4;
            const struct jinja_name **v = arena_alloc(&j->arena, cap * sizeof *v);
            if (u->n) {
                memcpy(v, u->v, u->n * sizeof *v);
            }
            u->v = v;
            u->cap = cap;
        }
        u->v[u->n++] = name;
    }
}

/* An assignment target: stored, or declared as the scope's own parameter. */
static void target(struct jinja *j, struct scope *s, const struct jinja_node *n, int as_param)
{
    size_t i;

    if (n->kind == JINJA_NSREF) {
        load(j, s, n->name);
    } else if (n->kind == JINJA_NAME) {
        (as_param ? param : store)(j, s, n->name);
    } else {
        for (i = 0; i < n->list.n; i++) {
            target(j, s, n->list.v[i], as_param);
        }
    }
}

static void visit_expr(struct jinja *j, struct scope *s, const struct jinja_node *n)
{
    size_t i;

    if (!n) {
        return;
    }
    if (n->kind == JINJA_NAME) {
        load(j, s, n->name);
    }
    visit_expr(j, s, n->x);
    visit_expr(j, s, n->y);
    visit_expr(j, s, n->z);
    visit_expr(j, s, n->w);
    visit_expr(j, s, n->star);
    visit_expr(j, s, n->star2);
    for (i = 0; i < n->list.n; i++) {
        visit_expr(j, s, n->list.v[i]);
    }
    for (i = 0; i < n->nkw; i++) {
        visit_expr(j, s, n->kw[i].value);
    }
}

static void visit(struct jinja *j, struct scope *s, const struct jinja_node *n)
{
    size_t i;

    switch (n->kind) {
    case JINJA_OUTPUT: visit_expr(j, s, n); break;
    case JINJA_IF:
        for (i = 0; i < n->list.n; i++) {
            visit_expr(j, s, n->list.v[i]->x);
            s->branch++; /* every further test is inside the branches before it, too */
            visit_list(j, s, &n->list.v[i]->body);
        }
        visit_list(j, s, &n->other);
        s->branch -= (int)n->list.n;
        break;
    case JINJA_FOR: visit_expr(j, s, n->y); break;
    case JINJA_SET:
        visit_expr(j, s, n->y);
        target(j, s, n->x, 0);
        break;
    case JINJA_SET_BLOCK: target(j, s, n->x, 0); break;
    case JINJA_WITH:
        for (i = 0; i < n->other.n; i++) {
            visit_expr(j, s, n->other.v[i]);
        }
        break;
    case JINJA_MACRO_DEF: store(j, s, n->name); break;
    case JINJA_CALL_BLOCK:
    case JINJA_FILTER_BLOCK: visit_expr(j, s, n->x); break;
    default: break;
    }
}

static void visit_list(struct jinja *j, struct scope *s, const struct jinja_nodes *l)
{
    size_t i;

    for (i = 0; i < l->n; i++) {
        visit(j, s, l->v[i]);
    }
}

/* The body of a scope whose parameters are declared; closes the scope. */
static void finish(struct jinja *j, struct scope *s, const struct jinja_nodes *body)
{
    visit_list(j, s, body);
    inner_scopes(j, s, body);
    for (; s->mine; s->mine = s->mine->next) {
        s->mine->name->refs = s->mine->below;
    }
}

/* The scopes a statement opens inside s. */
static void open_scopes(struct jinja *j, struct scope *s, struct jinja_node *n)
{
    struct scope in = {.parent = s, .unset = &n->unset};
    struct scope other = {.parent = s, .unset = &n->unset_other};
    size_t i;

    switch (n->kind) {
    case JINJA_IF: /* no scope of its own, but scopes in its branches */
        for (i = 0; i < n->list.n; i++) {
            inner_scopes(j, s, &n->list.v[i]->body);
        }
        inner_scopes(j, s, &n->other);
        return;
    case JINJA_FOR:
        param(j, &in, j->loop);
        target(j, &in, n->x, 1);
        finish(j, &in, &n->body);
        finish(j, &other, &n->other);
        return;
    case JINJA_MACRO_DEF:
    case JINJA_CALL_BLOCK:
        for (i = 0; i < n->list.n; i++) {
            param(j, &in, n->list.v[i]->name);
        }
        for (i = 0; i < n->other.n; i++) {
            visit_expr(j, &in, n->other.v[i]);
        }
        if (n->flags & JINJA_USES_CALLER) {
            param(j, &in, j->caller);
        }
        if (n->flags & JINJA_USES_KWARGS) {
            param(j, &in, j->kwargs);
        }
        if (n->flags & JINJA_USES_VARARGS) {
            param(j, &in, j->varargs);
        }
        finish(j, &in, &n->body);
        return;
    case JINJA_WITH:
        for (i = 0; i < n->list.n; i++) {
            target(j, &in, n->list.v[i], 1);
        }
        finish(j, &in, &n->body);
        return;
    case JINJA_SET_BLOCK:
    case JINJA_FILTER_BLOCK:
    case JINJA_SCOPE: finish(j, &in, &n->body); return;
    default: return;
    }
}

static void inner_scopes(struct jinja *j, struct scope *s, const struct jinja_nodes *body)
{
    size_t i;

    for (i = 0; i < body->n; i++) {
        open_scopes(j, s, body->v[i]);
    }
}

void jinja_scope(struct jinja *j)
{
    struct scope root = {.unset = &j->unset};
    finish(j, &root, &j->body);
}
