/* Owns the grammar: tokens to syntax tree, one function per level of precedence, in jinja2's order
 * (filters and tests bind tighter than arithmetic, `~` between products and sums). */
#include <string.h>

#include "text/jinja_int.h"

enum { PARSE_MAX_NEST = 100, PARSE_MAX_CHAIN = 400 };

/* A macro or call block being parsed; names seen in its body decide which special arguments it
 * takes. */
struct macro_ctx {
    struct macro_ctx *outer;
    unsigned flags;
};

struct parser {
    struct jinja *j;
    struct err *e;
    size_t pos;
    int nest;                         /* open C recursion */
    int loops;                        /* open for bodies, for break and continue */
    int fors;                         /* open for statements, macros in between or not */
    int nmacros;                      /* macros and call blocks met so far */
    int soft;                         /* inside if: unknown filters fail only when reached */
    const struct jinja_node *unknown; /* first unknown filter or test that is not */
    struct macro_ctx *macros;
};

static const struct jinja_tok *cur(struct parser *p)
{
    return &p->j->toks[p->pos];
}

static const struct jinja_tok *look(struct parser *p)
{
    return &p->j->toks[p->pos + (cur(p)->type != JINJA_TOK_EOF)];
}

static const struct jinja_tok *next(struct parser *p)
{
    const struct jinja_tok *t = cur(p);
    if (t->type != JINJA_TOK_EOF) {
        p->pos++;
    }
    return t;
}

static int parse_fail(struct parser *p, int code, const char *what)
{
    return ERR(p->e, code, "template line %d: %s", cur(p)->line, what);
}

static int unexpected(struct parser *p, const char *wanted)
{
    const struct jinja_tok *t = cur(p);
    int n = t->n > 40 ? 40 : (int)t->n;

    if (t->type == JINJA_TOK_EOF) {
        return ERR(p->e, STATUS_INPUT, "template line %d: expected %s, got the end of the template",
                   t->line, wanted);
    }
    return ERR(p->e, STATUS_INPUT, "template line %d: expected %s, got '%.*s'", t->line, wanted, n,
               t->p);
}

static int tok_is(const struct jinja_tok *t, const char *name)
{
    return t->type == JINJA_TOK_NAME && t->n == strlen(name) && memcmp(t->p, name, t->n) == 0;
}

static int at_name(struct parser *p, const char *name)
{
    return tok_is(cur(p), name);
}

static int skip_name(struct parser *p, const char *name)
{
    if (at_name(p, name)) {
        p->pos++;
        return 1;
    }
    return 0;
}

static int skip(struct parser *p, enum jinja_tok_type type)
{
    if (cur(p)->type == type) {
        next(p);
        return 1;
    }
    return 0;
}

static int expect(struct parser *p, enum jinja_tok_type type, const char *wanted)
{
    return skip(p, type) ? 0 : unexpected(p, wanted);
}

static struct jinja_node *node_new(struct parser *p, enum jinja_kind kind, int line)
{
    struct jinja_node *n = arena_alloc(&p->j->arena, sizeof *n);
    n->kind = kind;
    n->line = line;
    n->depth = 1;
    return n;
}

static void deepen(struct jinja_node *n, const struct jinja_node *child)
{
    if (child && child->depth >= n->depth) {
        n->depth = child->depth + 1;
    }
}

/* Checks the height of a finished node: what is evaluated by recursion must have a bound. */
static int finish(struct parser *p, struct jinja_node *n, struct jinja_node **out)
{
    size_t i;

    deepen(n, n->x);
    deepen(n, n->y);
    deepen(n, n->z);
    deepen(n, n->w);
    deepen(n, n->star);
    deepen(n, n->star2);
    for (i = 0; i < n->list.n; i++) {
        deepen(n, n->list.v[i]);
    }
    for (i = 0; i < n->nkw; i++) {
        deepen(n, n->kw[i].value);
    }
    if (n->depth > PARSE_MAX_CHAIN) {
        return parse_fail(p, STATUS_INPUT, "an expression is too long or too deep");
    }
    *out = n;
    return 0;
}

static void push(struct parser *p, struct jinja_nodes *l, struct jinja_node *n)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 4;
        struct jinja_node **v = arena_alloc(&p->j->arena, cap * sizeof *v);
        if (l->n) {
            memcpy(v, l->v, l->n * sizeof *v);
        }
        l->v = v;
        l->cap = cap;
    }
    l->v[l->n++] = n;
}

static int enter(struct parser *p)
{
    if (++p->nest > PARSE_MAX_NEST) {
        return parse_fail(p, STATUS_INPUT, "the template is nested too deeply");
    }
    return 0;
}

static struct jinja_val const_str(struct parser *p, const char *s, size_t n)
{
    struct jinja_val v = {.t = JINJA_STR};
    v.s = arena_alloc(&p->j->arena, sizeof *v.s);
    v.s->p = s;
    v.s->n = n;
    v.s->ncp = (int64_t)jinja_uni_count(s, n); /* the tree is shared by threads: count here */
    return v;
}

static int parse_expr(struct parser *p, int with_cond, struct jinja_node **out);
static int parse_unary(struct parser *p, int with_filter, struct jinja_node **out);
static int parse_postfix(struct parser *p, struct jinja_node *n, struct jinja_node **out);
static int parse_body(struct parser *p, const char *const *ends, struct jinja_nodes *out);

/* ---- expressions ---- */

static int tuple_end(struct parser *p, const char *extra)
{
    enum jinja_tok_type t = cur(p)->type;
    return t == JINJA_TOK_VAR_END || t == JINJA_TOK_BLOCK_END || t == JINJA_TOK_RPAREN ||
           (extra && at_name(p, extra));
}

static int parse_primary(struct parser *p, int with_ns, struct jinja_node **out);

enum { TUPLE_COND = 1, TUPLE_SIMPLE = 2, TUPLE_PAREN = 4, TUPLE_NS = 8 };

static int parse_tuple(struct parser *p, int how, const char *extra, struct jinja_node **out)
{
    struct jinja_node *t = node_new(p, JINJA_TUPLE_LIT, cur(p)->line), *item;
    int is_tuple = 0;

    for (;;) {
        if (t->list.n) {
            JINJA_TRY(expect(p, JINJA_TOK_COMMA, "','"));
        }
        if (tuple_end(p, extra)) {
            break;
        }
        if (how & TUPLE_SIMPLE) {
            JINJA_TRY(parse_primary(p, how & TUPLE_NS, &item));
        } else {
            JINJA_TRY(parse_expr(p, how & TUPLE_COND, &item));
        }
        push(p, &t->list, item);
        if (cur(p)->type != JINJA_TOK_COMMA) {
            break;
        }
        is_tuple = 1;
    }
    if (!is_tuple) {
        if (t->list.n) {
            *out = t->list.v[0];
            return 0;
        }
        if (!(how & TUPLE_PAREN)) {
            return unexpected(p, "an expression");
        }
    }
    return finish(p, t, out);
}

static int parse_list(struct parser *p, struct jinja_node **out)
{
    struct jinja_node *n = node_new(p, JINJA_LIST_LIT, next(p)->line), *item;

    while (cur(p)->type != JINJA_TOK_RBRACKET) {
        if (n->list.n) {
            JINJA_TRY(expect(p, JINJA_TOK_COMMA, "',' or ']'"));
        }
        if (cur(p)->type == JINJA_TOK_RBRACKET) {
            break;
        }
        JINJA_TRY(parse_expr(p, 1, &item));
        push(p, &n->list, item);
    }
    next(p);
    return finish(p, n, out);
}

/* Keys and values alternate in the list. */
static int parse_dict(struct parser *p, struct jinja_node **out)
{
    struct jinja_node *n = node_new(p, JINJA_DICT_LIT, next(p)->line), *item;

    while (cur(p)->type != JINJA_TOK_RBRACE) {
        if (n->list.n) {
            JINJA_TRY(expect(p, JINJA_TOK_COMMA, "',' or '}'"));
        }
        if (cur(p)->type == JINJA_TOK_RBRACE) {
            break;
        }
        JINJA_TRY(parse_expr(p, 1, &item));
        push(p, &n->list, item);
        JINJA_TRY(expect(p, JINJA_TOK_COLON, "':'"));
        JINJA_TRY(parse_expr(p, 1, &item));
        push(p, &n->list, item);
    }
    next(p);
    return finish(p, n, out);
}

static void note_macro_name(struct parser *p, const struct jinja_tok *t)
{
    unsigned f = tok_is(t, "caller")    ? JINJA_USES_CALLER
                 : tok_is(t, "kwargs")  ? JINJA_USES_KWARGS
                 : tok_is(t, "varargs") ? JINJA_USES_VARARGS
                                        : 0;
    struct macro_ctx *m;

    for (m = f ? p->macros : NULL; m; m = m->outer) {
        m->flags |= f;
    }
}

static int parse_name(struct parser *p, int with_ns, struct jinja_node **out)
{
    const struct jinja_tok *t = next(p);
    struct jinja_node *n = node_new(p, JINJA_CONST, t->line);

    if (tok_is(t, "true") || tok_is(t, "True")) {
        n->value = jinja_bool(1);
    } else if (tok_is(t, "false") || tok_is(t, "False")) {
        n->value = jinja_bool(0);
    } else if (tok_is(t, "none") || tok_is(t, "None")) {
        n->value = jinja_none();
    } else {
        n->kind = JINJA_NAME;
        n->name = jinja_lex_intern(p->j, t->p, t->n);
        note_macro_name(p, t);
        if (with_ns && skip(p, JINJA_TOK_DOT)) {
            if (cur(p)->type != JINJA_TOK_NAME) {
                return unexpected(p, "a name");
            }
            n->kind = JINJA_NSREF;
            n->attr = jinja_lex_intern(p->j, cur(p)->p, cur(p)->n);
            next(p);
        }
    }
    *out = n;
    return 0;
}

/* Strings beside each other are one. */
static int parse_strings(struct parser *p, struct jinja_node **out)
{
    const struct jinja_tok *t = cur(p), *last;
    size_t n = 0;
    char *both;

    for (last = t; last->type == JINJA_TOK_STRING; last++) {
        n += last->n;
    }
    *out = node_new(p, JINJA_CONST, t->line);
    if (last == t + 1) {
        (*out)->value = const_str(p, t->p, t->n);
        next(p);
        return 0;
    }
    both = arena_alloc(&p->j->arena, n + 1);
    for (n = 0; cur(p)->type == JINJA_TOK_STRING; next(p)) {
        memcpy(both + n, cur(p)->p, cur(p)->n);
        n += cur(p)->n;
    }
    (*out)->value = const_str(p, both, n);
    return 0;
}

static int parse_primary(struct parser *p, int with_ns, struct jinja_node **out)
{
    const struct jinja_tok *t = cur(p);

    switch (t->type) {
    case JINJA_TOK_NAME: return parse_name(p, with_ns, out);
    case JINJA_TOK_STRING: return parse_strings(p, out);
    case JINJA_TOK_INT:
    case JINJA_TOK_FLOAT:
        next(p);
        *out = node_new(p, JINJA_CONST, t->line);
        (*out)->value = t->type == JINJA_TOK_INT ? jinja_int(t->i) : jinja_float(t->f);
        return 0;
    case JINJA_TOK_LPAREN:
        next(p);
        JINJA_TRY(parse_tuple(p, TUPLE_COND | TUPLE_PAREN, NULL, out));
        return expect(p, JINJA_TOK_RPAREN, "')'");
    case JINJA_TOK_LBRACKET: return parse_list(p, out);
    case JINJA_TOK_LBRACE: return parse_dict(p, out);
    default: return unexpected(p, "an expression");
    }
}

static void push_kw(struct parser *p, struct jinja_node *n, const struct jinja_name *name,
                    struct jinja_node *value)
{
    if (n->nkw == n->kwcap) {
        size_t cap = n->kwcap ? 2 * n->kwcap : 4;
        struct jinja_kwarg *kw = arena_alloc(&p->j->arena, cap * sizeof *kw);
        if (n->nkw) {
            memcpy(kw, n->kw, n->nkw * sizeof *kw);
        }
        n->kw = kw;
        n->kwcap = cap;
    }
    n->kw[n->nkw].name = name;
    n->kw[n->nkw++].value = value;
}

static int parse_call_args(struct parser *p, struct jinja_node *n)
{
    int comma = 0;

    JINJA_TRY(expect(p, JINJA_TOK_LPAREN, "'('"));
    while (cur(p)->type != JINJA_TOK_RPAREN) {
        struct jinja_node *v;
        if (comma) {
            JINJA_TRY(expect(p, JINJA_TOK_COMMA, "',' or ')'"));
            if (cur(p)->type == JINJA_TOK_RPAREN) {
                break;
            }
        }
        comma = 1;
        if (cur(p)->type == JINJA_TOK_MUL && !n->star && !n->star2) {
            next(p);
            JINJA_TRY(parse_expr(p, 1, &n->star));
        } else if (cur(p)->type == JINJA_TOK_POW && !n->star2) {
            next(p);
            JINJA_TRY(parse_expr(p, 1, &n->star2));
        } else if (cur(p)->type == JINJA_TOK_NAME && look(p)->type == JINJA_TOK_ASSIGN &&
                   !n->star2) {
            const struct jinja_tok *name = next(p);
            next(p);
            JINJA_TRY(parse_expr(p, 1, &v));
            push_kw(p, n, jinja_lex_intern(p->j, name->p, name->n), v);
        } else if (!n->star && !n->star2 && !n->nkw) {
            JINJA_TRY(parse_expr(p, 1, &v));
            push(p, &n->list, v);
        } else {
            return parse_fail(p, STATUS_INPUT, "invalid syntax for a function call");
        }
    }
    next(p);
    return 0;
}

static int parse_call(struct parser *p, struct jinja_node *fn, struct jinja_node **out)
{
    struct jinja_node *n = node_new(p, JINJA_CALL, cur(p)->line);

    n->x = fn;
    JINJA_TRY(parse_call_args(p, n));
    return finish(p, n, out);
}

static int opt_expr(struct parser *p, struct jinja_node **out)
{
    enum jinja_tok_type t = cur(p)->type;
    if (t == JINJA_TOK_COLON || t == JINJA_TOK_RBRACKET || t == JINJA_TOK_COMMA) {
        *out = NULL;
        return 0;
    }
    return parse_expr(p, 1, out);
}

/* After '[': an index or a slice. */
static int parse_index(struct parser *p, struct jinja_node *obj, int line, struct jinja_node **out)
{
    struct jinja_node *n = node_new(p, JINJA_GETITEM, line), *item;

    n->x = obj;
    JINJA_TRY(opt_expr(p, &n->y));
    if (skip(p, JINJA_TOK_COLON)) {
        n->kind = JINJA_SLICE;
        JINJA_TRY(opt_expr(p, &n->z));
        if (skip(p, JINJA_TOK_COLON)) {
            JINJA_TRY(opt_expr(p, &n->w));
        }
    } else if (!n->y) {
        return unexpected(p, "an index");
    } else if (cur(p)->type == JINJA_TOK_COMMA) {
        struct jinja_node *t = node_new(p, JINJA_TUPLE_LIT, line);
        push(p, &t->list, n->y);
        while (skip(p, JINJA_TOK_COMMA)) {
            JINJA_TRY(parse_expr(p, 1, &item));
            push(p, &t->list, item);
        }
        JINJA_TRY(finish(p, t, &n->y));
    }
    JINJA_TRY(expect(p, JINJA_TOK_RBRACKET, "']'"));
    return finish(p, n, out);
}

static int parse_subscript(struct parser *p, struct jinja_node *obj, struct jinja_node **out)
{
    const struct jinja_tok *t = next(p), *attr;
    struct jinja_node *n;

    if (t->type == JINJA_TOK_LBRACKET) {
        return parse_index(p, obj, t->line, out);
    }
    attr = cur(p);
    n = node_new(p, JINJA_GETATTR, t->line);
    n->x = obj;
    if (attr->type == JINJA_TOK_NAME) {
        n->attr = jinja_lex_intern(p->j, attr->p, attr->n);
    } else if (attr->type == JINJA_TOK_INT) {
        n->kind = JINJA_GETITEM;
        n->y = node_new(p, JINJA_CONST, t->line);
        n->y->value = jinja_int(attr->i);
    } else {
        return unexpected(p, "a name or a number");
    }
    next(p);
    return finish(p, n, out);
}

static int parse_postfix(struct parser *p, struct jinja_node *n, struct jinja_node **out)
{
    for (;;) {
        enum jinja_tok_type t = cur(p)->type;
        if (t == JINJA_TOK_DOT || t == JINJA_TOK_LBRACKET) {
            JINJA_TRY(parse_subscript(p, n, &n));
        } else if (t == JINJA_TOK_LPAREN) {
            JINJA_TRY(parse_call(p, n, &n));
        } else {
            *out = n;
            return 0;
        }
    }
}

/* The name of a filter or test; dots belong to it. */
static int parse_dotted(struct parser *p, const struct jinja_name **out)
{
    char text[128];
    size_t n = 0;

    for (;;) {
        const struct jinja_tok *t = cur(p);
        if (t->type != JINJA_TOK_NAME) {
            return unexpected(p, "a name");
        }
        if (n + t->n + 1 >= sizeof text) {
            return parse_fail(p, STATUS_INPUT, "a filter name is too long");
        }
        memcpy(text + n, t->p, t->n);
        n += t->n;
        next(p);
        if (!skip(p, JINJA_TOK_DOT)) {
            break;
        }
        text[n++] = '.';
    }
    *out = jinja_lex_intern(p->j, text, n);
    return 0;
}

static int parse_filter_one(struct parser *p, struct jinja_node *in, struct jinja_node **out)
{
    struct jinja_node *n = node_new(p, JINJA_FILTER, cur(p)->line);

    n->x = in;
    JINJA_TRY(parse_dotted(p, &n->name));
    n->filter = jinja_filter_find(n->name->p, n->name->n);
    if (!n->filter && !p->soft && !p->unknown) {
        p->unknown = n;
    }
    if (cur(p)->type == JINJA_TOK_LPAREN) {
        JINJA_TRY(parse_call_args(p, n));
    }
    return finish(p, n, out);
}

static int parse_test(struct parser *p, struct jinja_node *in, struct jinja_node **out)
{
    struct jinja_node *n = node_new(p, JINJA_TEST, next(p)->line), *arg;
    int negated = skip_name(p, "not");
    const struct jinja_tok *t;

    n->x = in;
    JINJA_TRY(parse_dotted(p, &n->name));
    n->test = jinja_test_find(n->name->p, n->name->n);
    if (!n->test && !p->soft && !p->unknown) {
        p->unknown = n;
    }
    t = cur(p);
    if (t->type == JINJA_TOK_LPAREN) {
        JINJA_TRY(parse_call_args(p, n));
    } else if ((t->type == JINJA_TOK_NAME || t->type == JINJA_TOK_STRING ||
                t->type == JINJA_TOK_INT || t->type == JINJA_TOK_FLOAT ||
                t->type == JINJA_TOK_LBRACKET || t->type == JINJA_TOK_LBRACE) &&
               !tok_is(t, "else") && !tok_is(t, "or") && !tok_is(t, "and")) {
        if (tok_is(t, "is")) {
            return parse_fail(p, STATUS_INPUT, "tests cannot be chained with is");
        }
        JINJA_TRY(parse_primary(p, 0, &arg));
        JINJA_TRY(parse_postfix(p, arg, &arg));
        push(p, &n->list, arg);
    }
    JINJA_TRY(finish(p, n, out));
    if (negated) {
        n = node_new(p, JINJA_NOT, (*out)->line);
        n->x = *out;
        return finish(p, n, out);
    }
    return 0;
}

static int parse_unary(struct parser *p, int with_filter, struct jinja_node **out)
{
    const struct jinja_tok *t = cur(p);
    struct jinja_node *n;

    JINJA_TRY(enter(p));
    if (t->type == JINJA_TOK_SUB || t->type == JINJA_TOK_ADD) {
        next(p);
        n = node_new(p, JINJA_UNOP, t->line);
        n->op = t->type;
        JINJA_TRY(parse_unary(p, 0, &n->x));
        JINJA_TRY(finish(p, n, &n));
    } else {
        JINJA_TRY(parse_primary(p, 0, &n));
    }
    JINJA_TRY(parse_postfix(p, n, &n));
    while (with_filter) {
        if (cur(p)->type == JINJA_TOK_PIPE) {
            next(p);
            JINJA_TRY(parse_filter_one(p, n, &n));
        } else if (at_name(p, "is")) {
            JINJA_TRY(parse_test(p, n, &n));
        } else if (cur(p)->type == JINJA_TOK_LPAREN) {
            JINJA_TRY(parse_call(p, n, &n));
        } else {
            break;
        }
    }
    p->nest--;
    *out = n;
    return 0;
}

static int binary(struct parser *p, enum jinja_kind kind, int op, struct jinja_node *left,
                  struct jinja_node *right, struct jinja_node **out)
{
    struct jinja_node *n = node_new(p, kind, left->line);
    n->op = op;
    n->x = left;
    n->y = right;
    return finish(p, n, out);
}

static int parse_pow(struct parser *p, struct jinja_node **out)
{
    struct jinja_node *right;

    JINJA_TRY(parse_unary(p, 1, out));
    while (skip(p, JINJA_TOK_POW)) {
        JINJA_TRY(parse_unary(p, 1, &right));
        JINJA_TRY(binary(p, JINJA_BINOP, JINJA_TOK_POW, *out, right, out));
    }
    return 0;
}

static int parse_product(struct parser *p, struct jinja_node **out)
{
    struct jinja_node *right;

    JINJA_TRY(parse_pow(p, out));
    for (;;) {
        enum jinja_tok_type t = cur(p)->type;
        if (t != JINJA_TOK_MUL && t != JINJA_TOK_DIV && t != JINJA_TOK_FLOORDIV &&
            t != JINJA_TOK_MOD) {
            return 0;
        }
        next(p);
        JINJA_TRY(parse_pow(p, &right));
        JINJA_TRY(binary(p, JINJA_BINOP, (int)t, *out, right, out));
    }
}

static int parse_concat(struct parser *p, struct jinja_node **out)
{
    struct jinja_node *n, *item;

    JINJA_TRY(parse_product(p, out));
    if (cur(p)->type != JINJA_TOK_TILDE) {
        return 0;
    }
    n = node_new(p, JINJA_CONCAT, (*out)->line);
    push(p, &n->list, *out);
    while (skip(p, JINJA_TOK_TILDE)) {
        JINJA_TRY(parse_product(p, &item));
        push(p, &n->list, item);
    }
    return finish(p, n, out);
}

static int parse_sum(struct parser *p, struct jinja_node **out)
{
    struct jinja_node *right;

    JINJA_TRY(parse_concat(p, out));
    for (;;) {
        enum jinja_tok_type t = cur(p)->type;
        if (t != JINJA_TOK_ADD && t != JINJA_TOK_SUB) {
            return 0;
        }
        next(p);
        JINJA_TRY(parse_concat(p, &right));
        JINJA_TRY(binary(p, JINJA_BINOP, (int)t, *out, right, out));
    }
}

/* The comparison at the cursor, eaten; -1 when there is none. `in` is TOK_NAME, `not in` TOK_EOF.
 */
static int compare_op(struct parser *p)
{
    enum jinja_tok_type t = cur(p)->type;

    if (t >= JINJA_TOK_EQ && t <= JINJA_TOK_LE) {
        next(p);
        return (int)t;
    }
    if (skip_name(p, "in")) {
        return JINJA_TOK_NAME;
    }
    if (at_name(p, "not") && tok_is(look(p), "in")) {
        p->pos += 2;
        return JINJA_TOK_EOF;
    }
    return -1;
}

static int parse_compare(struct parser *p, struct jinja_node **out)
{
    struct jinja_node *n = NULL, *operand;
    int op;

    JINJA_TRY(parse_sum(p, out));
    while ((op = compare_op(p)) >= 0) {
        struct jinja_node *right;
        if (!n) {
            n = node_new(p, JINJA_COMPARE, (*out)->line);
            n->x = *out;
        }
        JINJA_TRY(parse_sum(p, &right));
        operand = node_new(p, JINJA_COMPARE, right->line);
        operand->op = op;
        operand->x = right;
        JINJA_TRY(finish(p, operand, &operand));
        push(p, &n->list, operand);
    }
    return n ? finish(p, n, out) : 0;
}

static int parse_not(struct parser *p, struct jinja_node **out)
{
    if (at_name(p, "not")) {
        struct jinja_node *n = node_new(p, JINJA_NOT, next(p)->line);
        JINJA_TRY(enter(p));
        JINJA_TRY(parse_not(p, &n->x));
        p->nest--;
        return finish(p, n, out);
    }
    return parse_compare(p, out);
}

static int parse_and(struct parser *p, struct jinja_node **out)
{
    struct jinja_node *right;

    JINJA_TRY(parse_not(p, out));
    while (skip_name(p, "and")) {
        JINJA_TRY(parse_not(p, &right));
        JINJA_TRY(binary(p, JINJA_AND, 0, *out, right, out));
    }
    return 0;
}

static int parse_or(struct parser *p, struct jinja_node **out)
{
    struct jinja_node *right;

    JINJA_TRY(parse_and(p, out));
    while (skip_name(p, "or")) {
        JINJA_TRY(parse_and(p, &right));
        JINJA_TRY(binary(p, JINJA_OR, 0, *out, right, out));
    }
    return 0;
}

static int parse_expr(struct parser *p, int with_cond, struct jinja_node **out)
{
    const struct jinja_node *unknown = p->unknown;

    JINJA_TRY(enter(p));
    JINJA_TRY(parse_or(p, out));
    while (with_cond && skip_name(p, "if")) {
        struct jinja_node *n = node_new(p, JINJA_COND, (*out)->line);
        n->x = *out;
        p->unknown = unknown; /* what was just read may never be evaluated */
        p->soft++;
        JINJA_TRY(parse_or(p, &n->y));
        if (skip_name(p, "else")) {
            JINJA_TRY(parse_expr(p, 1, &n->z));
        }
        p->soft--;
        JINJA_TRY(finish(p, n, out));
    }
    p->nest--;
    return 0;
}

/* ---- statements ---- */

static int check_target(struct parser *p, const struct jinja_node *n)
{
    size_t i;

    if (n->kind == JINJA_TUPLE_LIT) {
        for (i = 0; i < n->list.n; i++) {
            JINJA_TRY(check_target(p, n->list.v[i]));
        }
        return 0;
    }
    if (n->kind != JINJA_NAME && n->kind != JINJA_NSREF) {
        return parse_fail(p, STATUS_INPUT, "cannot assign to this expression");
    }
    if (p->fors && n->kind == JINJA_NAME && strcmp(n->name->p, "loop") == 0) {
        return parse_fail(p, STATUS_INPUT, "cannot assign to the special loop variable");
    }
    return 0;
}

static int parse_target(struct parser *p, int how, const char *extra, struct jinja_node **out)
{
    JINJA_TRY(parse_tuple(p, TUPLE_SIMPLE | how, extra, out));
    return check_target(p, *out);
}

/* The body of a statement: an optional colon, the end of the opening tag, then up to one of `ends`
 * (NULL-terminated), which stays the current token. */
static int parse_until(struct parser *p, const char *const *ends, struct jinja_nodes *out)
{
    skip(p, JINJA_TOK_COLON);
    JINJA_TRY(expect(p, JINJA_TOK_BLOCK_END, "the end of the tag"));
    JINJA_TRY(enter(p));
    JINJA_TRY(parse_body(p, ends, out));
    p->nest--;
    return 0;
}

static int parse_until1(struct parser *p, const char *end, struct jinja_nodes *out)
{
    const char *ends[2];
    ends[0] = end;
    ends[1] = NULL;
    JINJA_TRY(parse_until(p, ends, out));
    next(p);
    return 0;
}

static int parse_for(struct parser *p, struct jinja_node **out)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    struct jinja_node *n = node_new(p, JINJA_FOR, next(p)->line);
    int rc, nmacros = p->nmacros;

    p->fors++;
    JINJA_TRY(parse_target(p, 0, "in", &n->x));
    if (!skip_name(p, "in")) {
        return unexpected(p, "'in'");
    }
    JINJA_TRY(parse_tuple(p, 0, "recursive", &n->y));
    if (skip_name(p, "if")) {
        JINJA_TRY(parse_expr(p, 1, &n->z));
    }
    if (skip_name(p, "recursive")) {
        n->flags |= JINJA_RECURSIVE;
    }
    p->loops++;
    rc = parse_until(p, ends, &n->body);
    p->loops--;
    JINJA_TRY(rc);
    if (tok_is(next(p), "else")) {
        JINJA_TRY(parse_until1(p, "endfor", &n->other));
    }
    p->fors--;
    if (p->nmacros != nmacros) {
        n->flags |= JINJA_HAS_MACRO;
    }
    *out = n;
    return 0;
}

static int parse_if(struct parser *p, struct jinja_node **out)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct jinja_node *n = node_new(p, JINJA_IF, next(p)->line), *branch;

    p->soft++;
    for (;;) {
        const struct jinja_tok *t;
        branch = node_new(p, JINJA_IF, cur(p)->line);
        JINJA_TRY(parse_tuple(p, 0, NULL, &branch->x));
        JINJA_TRY(parse_until(p, ends, &branch->body));
        push(p, &n->list, branch);
        t = next(p);
        if (tok_is(t, "elif")) {
            continue;
        }
        if (tok_is(t, "else")) {
            JINJA_TRY(parse_until1(p, "endif", &n->other));
        }
        break;
    }
    p->soft--;
    *out = n;
    return 0;
}

static int parse_set(struct parser *p, struct jinja_node **out)
{
    struct jinja_node *n = node_new(p, JINJA_SET, next(p)->line);

    JINJA_TRY(parse_target(p, TUPLE_NS, NULL, &n->x));
    *out = n;
    if (skip(p, JINJA_TOK_ASSIGN)) {
        return parse_tuple(p, TUPLE_COND, NULL, &n->y);
    }
    n->kind = JINJA_SET_BLOCK;
    while (skip(p, JINJA_TOK_PIPE)) {
        JINJA_TRY(parse_filter_one(p, n->y, &n->y));
    }
    return parse_until1(p, "endset", &n->body);
}

static int parse_with(struct parser *p, struct jinja_node **out)
{
    struct jinja_node *n = node_new(p, JINJA_WITH, next(p)->line), *item;

    while (cur(p)->type != JINJA_TOK_BLOCK_END) {
        if (n->list.n) {
            JINJA_TRY(expect(p, JINJA_TOK_COMMA, "','"));
        }
        JINJA_TRY(parse_target(p, 0, NULL, &item));
        push(p, &n->list, item);
        JINJA_TRY(expect(p, JINJA_TOK_ASSIGN, "'='"));
        JINJA_TRY(parse_expr(p, 1, &item));
        push(p, &n->other, item);
    }
    *out = n;
    return parse_until1(p, "endwith", &n->body);
}

static int parse_signature(struct parser *p, struct jinja_node *n)
{
    struct jinja_node *v;

    JINJA_TRY(expect(p, JINJA_TOK_LPAREN, "'('"));
    while (cur(p)->type != JINJA_TOK_RPAREN) {
        if (n->list.n) {
            JINJA_TRY(expect(p, JINJA_TOK_COMMA, "',' or ')'"));
        }
        if (cur(p)->type != JINJA_TOK_NAME) {
            return unexpected(p, "a parameter name");
        }
        v = node_new(p, JINJA_NAME, cur(p)->line);
        v->name = jinja_lex_intern(p->j, cur(p)->p, cur(p)->n);
        push(p, &n->list, v);
        next(p);
        if (skip(p, JINJA_TOK_ASSIGN)) {
            JINJA_TRY(parse_expr(p, 1, &v));
            push(p, &n->other, v);
        } else if (n->other.n) {
            return parse_fail(p, STATUS_INPUT, "non-default argument follows default argument");
        }
    }
    next(p);
    return 0;
}

static int parse_macro_body(struct parser *p, struct jinja_node *n, const char *end)
{
    struct macro_ctx ctx = {.outer = p->macros};
    int rc, loops = p->loops;

    p->macros = &ctx;
    p->loops = 0;
    p->nmacros++;
    rc = parse_until1(p, end, &n->body);
    p->macros = ctx.outer;
    p->loops = loops;
    n->flags |= ctx.flags;
    return rc;
}

static int parse_macro(struct parser *p, struct jinja_node **out)
{
    struct jinja_node *n = node_new(p, JINJA_MACRO_DEF, next(p)->line);

    if (cur(p)->type != JINJA_TOK_NAME) {
        return unexpected(p, "a macro name");
    }
    n->name = jinja_lex_intern(p->j, cur(p)->p, cur(p)->n);
    next(p);
    JINJA_TRY(parse_signature(p, n));
    *out = n;
    return parse_macro_body(p, n, "endmacro");
}

static int parse_call_block(struct parser *p, struct jinja_node **out)
{
    struct jinja_node *n = node_new(p, JINJA_CALL_BLOCK, next(p)->line);

    if (cur(p)->type == JINJA_TOK_LPAREN) {
        JINJA_TRY(parse_signature(p, n));
    }
    JINJA_TRY(parse_expr(p, 1, &n->x));
    if (n->x->kind != JINJA_CALL) {
        return parse_fail(p, STATUS_INPUT, "a call block needs a call");
    }
    *out = n;
    return parse_macro_body(p, n, "endcall");
}

static int parse_filter_block(struct parser *p, struct jinja_node **out)
{
    struct jinja_node *n = node_new(p, JINJA_FILTER_BLOCK, next(p)->line);

    JINJA_TRY(parse_filter_one(p, NULL, &n->x));
    while (skip(p, JINJA_TOK_PIPE)) {
        JINJA_TRY(parse_filter_one(p, n->x, &n->x));
    }
    *out = n;
    return parse_until1(p, "endfilter", &n->body);
}

static int parse_print(struct parser *p, struct jinja_node **out)
{
    struct jinja_node *n = node_new(p, JINJA_OUTPUT, next(p)->line), *item;

    while (cur(p)->type != JINJA_TOK_BLOCK_END) {
        if (n->list.n) {
            JINJA_TRY(expect(p, JINJA_TOK_COMMA, "','"));
        }
        JINJA_TRY(parse_expr(p, 1, &item));
        push(p, &n->list, item);
    }
    *out = n;
    return 0;
}

static int parse_generation(struct parser *p, struct jinja_node **out)
{
    struct jinja_node *n = node_new(p, JINJA_SCOPE, next(p)->line);
    *out = n;
    p->j->marks = 1;
    return parse_macro_body(p, n, "endgeneration");
}

static int parse_loop_control(struct parser *p, struct jinja_node **out)
{
    int is_break = at_name(p, "break");

    if (!p->loops) {
        return parse_fail(p, STATUS_INPUT, "break or continue outside a loop");
    }
    *out = node_new(p, is_break ? JINJA_BREAK : JINJA_CONTINUE, next(p)->line);
    return 0;
}

static int parse_statement(struct parser *p, struct jinja_node **out)
{
    static const struct {
        const char *name;
        int (*fn)(struct parser *, struct jinja_node **);
    } tags[] = {{"if", parse_if},
                {"for", parse_for},
                {"set", parse_set},
                {"macro", parse_macro},
                {"call", parse_call_block},
                {"filter", parse_filter_block},
                {"with", parse_with},
                {"print", parse_print},
                {"generation", parse_generation},
                {"break", parse_loop_control},
                {"continue", parse_loop_control}};
    static const char *const refused[] = {"include", "import", "from",
                                          "extends", "block",  "autoescape"};
    const struct jinja_tok *t = cur(p);
    size_t i;

    if (t->type != JINJA_TOK_NAME) {
        return unexpected(p, "a tag name");
    }
    for (i = 0; i < sizeof tags / sizeof *tags; i++) {
        if (tok_is(t, tags[i].name)) {
            return tags[i].fn(p, out);
        }
    }
    for (i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (tok_is(t, refused[i])) {
            return ERR(p->e, STATUS_UNSUPPORTED, "template line %d: the tag '%s' is not supported",
                       t->line, refused[i]);
        }
    }
    return ERR(p->e, STATUS_INPUT, "template line %d: unknown or misplaced tag '%.*s'", t->line,
               t->n > 40 ? 40 : (int)t->n, t->p);
}

static int parse_body(struct parser *p, const char *const *ends, struct jinja_nodes *out)
{
    for (;;) {
        const struct jinja_tok *t = cur(p);
        struct jinja_node *n;
        size_t i;
        switch (t->type) {
        case JINJA_TOK_DATA:
            next(p);
            n = node_new(p, JINJA_DATA, t->line);
            n->value = const_str(p, t->p, t->n);
            push(p, out, n);
            break;
        case JINJA_TOK_VAR_BEGIN: {
            struct jinja_node *x;
            next(p);
            n = node_new(p, JINJA_OUTPUT, t->line);
            JINJA_TRY(parse_tuple(p, TUPLE_COND, NULL, &x));
            push(p, &n->list, x);
            JINJA_TRY(expect(p, JINJA_TOK_VAR_END, "'}}'"));
            push(p, out, n);
            break;
        }
        case JINJA_TOK_BLOCK_BEGIN:
            next(p);
            for (i = 0; ends && ends[i]; i++) {
                if (at_name(p, ends[i])) {
                    return 0;
                }
            }
            JINJA_TRY(parse_statement(p, &n));
            push(p, out, n);
            JINJA_TRY(expect(p, JINJA_TOK_BLOCK_END, "'%}'"));
            break;
        default: return ends ? unexpected(p, ends[0]) : 0;
        }
    }
}

int jinja_parse(struct jinja *j, struct err *e)
{
    struct parser p = {.j = j, .e = e};

    JINJA_TRY(parse_body(&p, NULL, &j->body));
    if (p.unknown) {
        return ERR(e, STATUS_INPUT, "template line %d: no %s named '%s'", p.unknown->line,
                   p.unknown->kind == JINJA_FILTER ? "filter" : "test", p.unknown->name->p);
    }
    return 0;
}
