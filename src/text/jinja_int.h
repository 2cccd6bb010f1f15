/* What the files of the template interpreter share: tokens, syntax tree, values, the state of a
 * render. Private to src/text/jinja*.c; chat.c reads code points with it.
 *
 * Ownership: the syntax tree lives in the arena of `struct jinja`; every value of a render lives in
 * the arena of `struct jinja_run` and is freed with it. Nothing is freed one by one, so functions
 * return straight away on error. Fallible functions return STATUS_*, with the cause in r->err. */
#ifndef TEXT_JINJA_INT_H
#define TEXT_JINJA_INT_H

#include <stddef.h>
#include <stdint.h>

#include "base/map.h"
#include "base/mem.h"
#include "text/jinja.h"

#define JINJA_TRY(x)                                                                               \
    do {                                                                                           \
        int rc_ = (x);                                                                             \
        if (rc_) {                                                                                 \
            return rc_;                                                                            \
        }                                                                                          \
    } while (0)

/* ---- values ---- */

enum jinja_type {
    JINJA_MISSING, /* an argument not given, a variable not set; never seen by templates */
    JINJA_ABSENT,  /* a variable that its scope does not have: outer scopes are asked */
    JINJA_UNDEF,
    JINJA_NONE,
    JINJA_BOOL,
    JINJA_INT,
    JINJA_FLOAT,
    JINJA_STR,
    JINJA_LIST,
    JINJA_TUPLE,
    JINJA_RANGE,
    JINJA_DICT,
    JINJA_VIEW, /* dict.items(), keys(), values() */
    JINJA_ITER, /* Python's one-pass iterators: map, select, reverse ... */
    JINJA_NS,
    JINJA_MACRO,
    JINJA_FUNC,
    JINJA_METHOD,
    JINJA_LOOP,
    JINJA_JOINER,
    JINJA_CYCLER
};

struct jinja_str;
struct jinja_list;
struct jinja_dict;
struct jinja_view;
struct jinja_iter;
struct jinja_undef;
struct jinja_macro;
struct jinja_func;
struct jinja_method;
struct jinja_loop;
struct jinja_cycler;

struct jinja_val {
    enum jinja_type t;
    union {
        int64_t i; /* INT and BOOL */
        double f;
        struct jinja_str *s;
        struct jinja_list *l; /* LIST, TUPLE, RANGE */
        struct jinja_dict *d; /* DICT, NS */
        struct jinja_view *view;
        struct jinja_iter *iter;
        struct jinja_undef *u;
        struct jinja_macro *macro;
        const struct jinja_func *func;
        struct jinja_method *method;
        struct jinja_loop *loop;
        struct jinja_cycler *cycler; /* CYCLER, JOINER */
    };
};

/* Spare room behind a string or list that was grown by `a + b`: the next append to the same end
 * goes there, so that a loop of appends costs linear and not quadratic memory. */
struct jinja_tail {
    size_t used, cap; /* bytes or values from the start of the block */
};
struct jinja_str {
    const char *p; /* UTF-8, not NUL-terminated */
    size_t n;
    int64_t ncp; /* code points, -1 when not yet counted */
    struct jinja_tail *tail;
    int markup; /* made by |safe or |escape: `+` escapes what is joined to it */
};
struct jinja_list {
    struct jinja_val *v;
    size_t n;
    struct jinja_tail *tail;
    int64_t start, stop, step; /* RANGE only */
};
struct jinja_pair {
    struct jinja_val k, v;
    uint64_t hash;
};
struct jinja_dict {
    struct jinja_pair *e; /* in insertion order */
    size_t n, cap;
    uint32_t *slots; /* 1 + index into e, 0 = free; NULL while small */
    size_t nslots;
};
struct jinja_view {
    struct jinja_dict *d;
    char kind; /* 'k', 'v', 'i' */
};
struct jinja_iter {
    struct jinja_list *items;
    size_t pos;
    const char *kind;   /* "generator", ...: for messages */
    struct err *failed; /* what goes wrong behind the last item, when it is asked for; or NULL */
};
struct jinja_undef {
    const char *hint;     /* the whole message, or NULL */
    const char *obj_type; /* "dict object" when an attribute of it is missing, or NULL */
    struct jinja_val name;
};
struct jinja_cycler {
    struct jinja_list *items; /* JOINER: one item, the separator */
    size_t pos;
};

struct jinja_kwval {
    const char *name;
    size_t n;
    struct jinja_val v;
};
struct jinja_args {
    struct jinja_val *pos;
    size_t npos;
    struct jinja_kwval *kw;
    size_t nkw;
};

struct jinja_run;
typedef int jinja_func_fn(struct jinja_run *r, const struct jinja_args *a, struct jinja_val *out);
typedef int jinja_method_fn(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                            struct jinja_val *out);
typedef int jinja_test_fn(struct jinja_run *r, struct jinja_val v, const struct jinja_args *a,
                          int *yes);

struct jinja_func {
    const char *name;
    jinja_func_fn *fn;
};
struct jinja_method_def {
    const char *name;
    jinja_method_fn *fn; /* NULL: Python has it, we do not */
    int mutates;         /* refused by the sandbox */
};
struct jinja_method {
    struct jinja_val self;
    const struct jinja_method_def *def;
};
struct jinja_filter {
    const char *name;
    jinja_method_fn *fn;
};
struct jinja_test {
    const char *name;
    jinja_test_fn *fn;
};

/* ---- tokens ---- */

enum jinja_tok_type {
    JINJA_TOK_EOF,
    JINJA_TOK_DATA,
    JINJA_TOK_VAR_BEGIN,
    JINJA_TOK_VAR_END,
    JINJA_TOK_BLOCK_BEGIN,
    JINJA_TOK_BLOCK_END,
    JINJA_TOK_NAME,
    JINJA_TOK_STRING,
    JINJA_TOK_INT,
    JINJA_TOK_FLOAT,
    JINJA_TOK_ADD,
    JINJA_TOK_SUB,
    JINJA_TOK_MUL,
    JINJA_TOK_DIV,
    JINJA_TOK_FLOORDIV,
    JINJA_TOK_MOD,
    JINJA_TOK_POW,
    JINJA_TOK_TILDE,
    JINJA_TOK_LBRACKET,
    JINJA_TOK_RBRACKET,
    JINJA_TOK_LPAREN,
    JINJA_TOK_RPAREN,
    JINJA_TOK_LBRACE,
    JINJA_TOK_RBRACE,
    JINJA_TOK_EQ,
    JINJA_TOK_NE,
    JINJA_TOK_GT,
    JINJA_TOK_GE,
    JINJA_TOK_LT,
    JINJA_TOK_LE,
    JINJA_TOK_ASSIGN,
    JINJA_TOK_DOT,
    JINJA_TOK_COLON,
    JINJA_TOK_PIPE,
    JINJA_TOK_COMMA,
    JINJA_TOK_SEMICOLON
};
struct jinja_tok {
    enum jinja_tok_type type;
    int line;
    const char *p; /* DATA, NAME, STRING: the value; operators: the source */
    size_t n;
    int64_t i;
    double f;
};

/* ---- syntax tree ---- */

struct jinja_ref;

/* A name, one object per spelling and template: scopes compare pointers. */
struct jinja_name {
    const char *p;
    size_t n;
    const struct jinja_func *global; /* range, namespace ... or NULL */
    struct jinja_ref *refs;          /* of jinja_scope.c while it runs: scopes that know it */
};
struct jinja_names {
    const struct jinja_name **v;
    size_t n, cap;
};

enum jinja_kind {
    /* expressions */
    JINJA_CONST,
    JINJA_NAME,
    JINJA_TUPLE_LIT,
    JINJA_LIST_LIT,
    JINJA_DICT_LIT,
    JINJA_BINOP,
    JINJA_UNOP,
    JINJA_AND,
    JINJA_OR,
    JINJA_NOT,
    JINJA_COND,
    JINJA_CONCAT,
    JINJA_COMPARE,
    JINJA_GETATTR,
    JINJA_GETITEM,
    JINJA_SLICE,
    JINJA_CALL,
    JINJA_FILTER,
    JINJA_TEST,
    JINJA_NSREF, /* assignment target ns.attr */
    /* statements */
    JINJA_DATA,
    JINJA_OUTPUT,
    JINJA_IF,
    JINJA_FOR,
    JINJA_SET,
    JINJA_SET_BLOCK,
    JINJA_WITH,
    JINJA_MACRO_DEF,
    JINJA_CALL_BLOCK,
    JINJA_FILTER_BLOCK,
    JINJA_SCOPE, /* generation: the body in a scope of its own */
    JINJA_BREAK,
    JINJA_CONTINUE
};

struct jinja_node;
struct jinja_nodes {
    struct jinja_node **v;
    size_t n, cap;
};
struct jinja_kwarg {
    const struct jinja_name *name;
    struct jinja_node *value;
};
enum {
    JINJA_USES_CALLER = 1,
    JINJA_USES_KWARGS = 2,
    JINJA_USES_VARARGS = 4,
    JINJA_RECURSIVE = 8,
    JINJA_HAS_MACRO = 16 /* the body defines a macro, which may keep the body's scope */
};

/* One shape for all kinds; which fields mean what:
 *   NAME name; NSREF name, attr; CONST value; BINOP op x y; UNOP op x; AND/OR x y; NOT x
 *   COND x if y else z(may be NULL); CONCAT list; COMPARE x, list of operands each with op
 *   GETATTR x attr; GETITEM x y; SLICE x[y:z:w]; CALL x(list, kw, star, star2)
 *   FILTER x|filter(list ...), x NULL inside a filter block; TEST the same with test
 *   DATA value; OUTPUT list; IF list of tests, each with its body in .body; other = else
 *   FOR x target, y iterable, z condition, body, other; SET x = y
 *   SET_BLOCK x target, y filter or NULL, body; WITH list targets, other values, body
 *   MACRO_DEF name, list params, other defaults, body; CALL_BLOCK x call, list, other, body
 *   FILTER_BLOCK x filter, body; SCOPE body */
struct jinja_node {
    enum jinja_kind kind;
    int line;
    int depth; /* longest chain of children, bounded so that evaluation is */
    int op;    /* an enum jinja_tok_type, or for `in` and `not in` JINJA_TOK_NAME / _EOF */
    unsigned flags;
    const struct jinja_name *name;
    const struct jinja_name *attr;
    struct jinja_val value;
    struct jinja_node *x, *y, *z, *w;
    struct jinja_nodes list, body, other;
    struct jinja_kwarg *kw;
    size_t nkw, kwcap;
    struct jinja_node *star, *star2;
    const struct jinja_filter *filter;
    const struct jinja_test *test;
    struct jinja_names unset, unset_other; /* see jinja_scope.c; of the body, of a for's else */
};

struct jinja {
    struct arena arena;
    struct map names; /* text to struct jinja_name * */
    const struct jinja_name *loop, *caller, *kwargs, *varargs;
    struct jinja_names unset;
    struct jinja_tok *toks;
    size_t ntoks;
    struct jinja_nodes body;
    int marks; /* a generation block was seen */
};

/* ---- a render ---- */

struct jinja_var {
    const struct jinja_name *name;
    struct jinja_val v;
    struct jinja_var *next;
};
struct jinja_frame {
    struct jinja_frame *parent;
    struct jinja_var *vars;
    struct jinja_var *set; /* vars up to here were set after the scope was opened */
};
struct jinja_macro {
    const struct jinja_node *node;
    struct jinja_frame *closure;
};
struct jinja_sb;
struct jinja_run {
    const struct jinja *j;
    struct arena arena;
    struct jinja_dict *vars; /* top-level variables */
    struct err *err;
    int64_t steps, max_steps;
    size_t max_memory;
    int64_t now; /* seconds since 1970; 0: ask the clock */
    int depth;
    int line;                    /* of the node being evaluated, for messages */
    const struct jinja_sb *root; /* the text itself, apart from what macros collect */
    size_t counted, counted_cps; /* so many bytes of it are so many code points */
    struct jinja_span *spans;
    size_t nspans, spancap;
};

/* A string being written, in the arena of the run. */
struct jinja_sb {
    char *p;
    size_t n, cap;
};

/* jinja_lex.c: fills j->toks. `text` must outlive the call only. */
int jinja_lex(struct jinja *j, const char *text, size_t n, struct err *e);
struct jinja_name *jinja_lex_intern(struct jinja *j, const char *p, size_t n);

/* jinja_parse.c: j->toks to j->body. */
int jinja_parse(struct jinja *j, struct err *e);

/* jinja_scope.c: finds, for each scope, the names that hide outer ones before they are set. */
void jinja_scope(struct jinja *j);

/* jinja_uni.c: code points. Decoding never reads past `end` and always moves at least one byte. */
size_t jinja_uni_next(const char *p, const char *end, uint32_t *cp);
size_t jinja_uni_prev(const char *begin, const char *p, uint32_t *cp);
size_t jinja_uni_put(uint32_t cp, char out[4]);
size_t jinja_uni_count(const char *p, size_t n);
int jinja_uni_valid(const char *p, size_t n);
int jinja_uni_space(uint32_t cp);
int jinja_uni_linebreak(uint32_t cp);
int jinja_uni_printable(uint32_t cp);
int jinja_uni_alpha(uint32_t cp);
int jinja_uni_digit(uint32_t cp);   /* str.isdigit */
int jinja_uni_decimal(uint32_t cp); /* str.isdecimal */
int jinja_uni_numeric(uint32_t cp); /* str.isnumeric */
int jinja_uni_upper(uint32_t cp);   /* is upper case */
int jinja_uni_lower(uint32_t cp);
int jinja_uni_title(uint32_t cp);
int jinja_uni_cased(uint32_t cp);
int jinja_uni_case_ignorable(uint32_t cp);
/* Full case mappings, 1 to 3 code points; the count is returned. */
int jinja_uni_to_upper(uint32_t cp, uint32_t out[3]);
int jinja_uni_to_lower(uint32_t cp, uint32_t out[3]);
int jinja_uni_to_title(uint32_t cp, uint32_t out[3]);

/* jinja_value.c */
void *jinja_alloc(struct jinja_run *r, size_t n); /* NULL: the error is set */
int jinja_fail(struct jinja_run *r, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
int jinja_charge(struct jinja_run *r, size_t n); /* n bytes or items of work were done */
int jinja_sb_add(struct jinja_run *r, struct jinja_sb *b, const char *p, size_t n);
int jinja_sb_char(struct jinja_run *r, struct jinja_sb *b, char c);
int jinja_sb_cp(struct jinja_run *r, struct jinja_sb *b, uint32_t cp);
int jinja_sb_cstr(struct jinja_run *r, struct jinja_sb *b, const char *s);
int jinja_sb_str(struct jinja_run *r, struct jinja_sb *b, struct jinja_val *out);

int jinja_value_str(struct jinja_run *r, const char *p, size_t n, struct jinja_val *out);
int jinja_value_copy(struct jinja_run *r, const char *p, size_t n, struct jinja_val *out);
/* A view of bytes inside `base`, keeping its markup flag. */
int jinja_value_sub(struct jinja_run *r, const struct jinja_str *base, size_t off, size_t n,
                    struct jinja_val *out);
int jinja_value_markup(struct jinja_run *r, struct jinja_val v, int markup, struct jinja_val *out);
int jinja_value_list(struct jinja_run *r, enum jinja_type t, size_t n, struct jinja_val *out);
int jinja_value_append(struct jinja_run *r, struct jinja_list *l, struct jinja_val v);
int jinja_value_iter(struct jinja_run *r, struct jinja_list *items, const char *kind,
                     struct jinja_val *out);
/* A generator: when computing its items ended with rc, the error is kept until it is used up. */
int jinja_value_lazy(struct jinja_run *r, int rc, struct jinja_list *items, struct jinja_val *out);
/* The next item of an ITER; *got is 0 at its end. */
int jinja_value_next(struct jinja_run *r, struct jinja_iter *it, struct jinja_val *out, int *got);
int jinja_value_dict(struct jinja_run *r, struct jinja_val *out);
int jinja_value_undef(struct jinja_run *r, const char *hint, struct jinja_val *out);
int jinja_value_from_json(struct jinja_run *r, const json_t *j, int depth, struct jinja_val *out);

int jinja_value_put(struct jinja_run *r, struct jinja_dict *d, struct jinja_val k,
                    struct jinja_val v);
/* *found is NULL when absent. */
int jinja_value_get(struct jinja_run *r, struct jinja_dict *d, struct jinja_val k,
                    struct jinja_val **found);
struct jinja_val *jinja_value_getn(struct jinja_dict *d, const char *p, size_t n);

const char *jinja_value_type(struct jinja_val v); /* Python's type name */
int jinja_value_truth(struct jinja_val v);
int jinja_value_eq(struct jinja_run *r, struct jinja_val a, struct jinja_val b, int *yes);
/* *c is negative, 0 or positive; a TypeError where Python has no order. Nan compares as unequal. */
int jinja_value_cmp(struct jinja_run *r, struct jinja_val a, struct jinja_val b, int *c);
int jinja_value_in(struct jinja_run *r, struct jinja_val needle, struct jinja_val hay, int *yes);
int jinja_value_len(struct jinja_run *r, struct jinja_val v, int64_t *n);
int64_t jinja_value_ncp(struct jinja_str *s);
int jinja_value_iterable(struct jinja_val v);
/* All items as a list (borrowed where possible, so not to be changed). Consumes an ITER. */
int jinja_value_items(struct jinja_run *r, struct jinja_val v, struct jinja_list **out);
int jinja_value_slice(struct jinja_run *r, struct jinja_val v, struct jinja_val a,
                      struct jinja_val b, struct jinja_val c, struct jinja_val *out);
int jinja_value_sort(struct jinja_run *r, struct jinja_val *keys, struct jinja_val *vals, size_t n,
                     int reverse);
int jinja_value_undef_error(struct jinja_run *r, struct jinja_val v);

/* jinja_print.c: str(), repr(), json.dumps, numbers */
int jinja_print_str(struct jinja_run *r, struct jinja_sb *b, struct jinja_val v);
int jinja_print_repr(struct jinja_run *r, struct jinja_sb *b, struct jinja_val v, int depth);
int jinja_print_float(struct jinja_run *r, struct jinja_sb *b, double f);
/* str(v) as a string value; a string comes back as it is, markup flag included. */
int jinja_print_soft(struct jinja_run *r, struct jinja_val v, struct jinja_val *out);
int jinja_print_json(struct jinja_run *r, struct jinja_val v, const struct jinja_args *a,
                     struct jinja_val *out);
int jinja_print_escape(struct jinja_run *r, struct jinja_val v, struct jinja_val *out);

/* jinja_format.c: "%s" % x, "{}".format(x) */
int jinja_format_percent(struct jinja_run *r, struct jinja_val fmt, struct jinja_val arg,
                         struct jinja_val *out);
int jinja_format_method(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                        struct jinja_val *out);
int jinja_format_map_method(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                            struct jinja_val *out);

/* jinja_str.c: methods of str */
const struct jinja_method_def *jinja_str_method(const char *p, size_t n);
int jinja_str_strip(struct jinja_run *r, struct jinja_val self, const char *chars, size_t nchars,
                    int sides, struct jinja_val *out); /* chars NULL: white space; 1 left 2 right */
int jinja_str_replace(struct jinja_run *r, struct jinja_str *s, struct jinja_str *from,
                      struct jinja_str *to, int64_t count, struct jinja_val *out);
int jinja_str_case(struct jinja_run *r, struct jinja_val self, int mode, struct jinja_val *out);
int jinja_str_splitlines(struct jinja_run *r, struct jinja_val self, int keep,
                         struct jinja_val *out);
int jinja_str_parse_int(const char *p, size_t n, int base, int64_t *v); /* 1 ok 0 bad -1 too big */
int jinja_str_parse_float(const char *p, size_t n, double *v);

/* jinja_object.c: attributes, items, methods of dict and list, global functions */
int jinja_object_attr(struct jinja_run *r, struct jinja_val v, const char *p, size_t n,
                      struct jinja_val *out);
int jinja_object_item(struct jinja_run *r, struct jinja_val v, struct jinja_val key,
                      struct jinja_val *out);
const struct jinja_func *jinja_object_global(const char *p, size_t n);
int jinja_object_cycler_call(struct jinja_run *r, struct jinja_val v, struct jinja_val *out);
/* Python's argument binding: names is "old new count", the first `required` must be given; out[i]
 * is JINJA_MISSING for what was left out. */
int jinja_object_bind(struct jinja_run *r, const struct jinja_args *a, const char *what,
                      const char *names, int required, struct jinja_val *out);

/* jinja_filter.c, jinja_test.c */
const struct jinja_filter *jinja_filter_find(const char *p, size_t n);
const struct jinja_test *jinja_test_find(const char *p, size_t n);

/* jinja_rare.c: filters, a method of str and one of dict */
jinja_method_fn jinja_rare_filesizeformat, jinja_rare_urlencode, jinja_rare_xmlattr,
    jinja_rare_expandtabs, jinja_rare_fromkeys;

/* jinja_ops.c: + - * / // % ** */
int jinja_ops_binary(struct jinja_run *r, int op, struct jinja_val a, struct jinja_val b,
                     struct jinja_val *out);
int jinja_ops_unary(struct jinja_run *r, int op, struct jinja_val a, struct jinja_val *out);

/* jinja_eval.c */
int jinja_eval_root(struct jinja_run *r, struct jinja_sb *out);
int jinja_eval_body(struct jinja_run *r, struct jinja_frame *f, const struct jinja_nodes *body,
                    struct jinja_sb *out);
int jinja_eval_call(struct jinja_run *r, struct jinja_val fn, const struct jinja_args *a,
                    struct jinja_val *out);
int jinja_eval_loop_attr(struct jinja_run *r, struct jinja_loop *l, const char *p, size_t n,
                         struct jinja_val *out, int *known);
int jinja_eval_loop_cycle(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                          struct jinja_val *out);
int jinja_eval_loop_changed(struct jinja_run *r, struct jinja_val self, const struct jinja_args *a,
                            struct jinja_val *out);

static inline struct jinja_val jinja_none(void)
{
    return (struct jinja_val){.t = JINJA_NONE, .i = 0};
}
static inline struct jinja_val jinja_int(int64_t i)
{
    return (struct jinja_val){.t = JINJA_INT, .i = i};
}
static inline struct jinja_val jinja_bool(int yes)
{
    return (struct jinja_val){.t = JINJA_BOOL, .i = yes != 0};
}
static inline struct jinja_val jinja_float(double f)
{
    return (struct jinja_val){.t = JINJA_FLOAT, .f = f};
}
static inline struct jinja_val jinja_missing(void)
{
    return (struct jinja_val){.t = JINJA_MISSING, .i = 0};
}

#endif
