/* Owns the tests of `x is name(args)`. */
#include <string.h>

#include "text/jinja_int.h"

static int no_args(struct jinja_run *r, const struct jinja_args *a)
{
    return jinja_object_bind(r, a, "test", "", 0, NULL);
}

#define TYPE_TEST(name, expr)                                                                      \
    static int t_##name(struct jinja_run *r, struct jinja_val v, const struct jinja_args *a,       \
                        int *yes)                                                                  \
    {                                                                                              \
        *yes = (expr);                                                                             \
        return no_args(r, a);                                                                      \
    }
TYPE_TEST(defined, v.t != JINJA_UNDEF)
TYPE_TEST(undefined, v.t == JINJA_UNDEF)
TYPE_TEST(none, v.t == JINJA_NONE)
TYPE_TEST(boolean, v.t == JINJA_BOOL)
TYPE_TEST(true, v.t == JINJA_BOOL && v.i)
TYPE_TEST(false, v.t == JINJA_BOOL && !v.i)
TYPE_TEST(integer, v.t == JINJA_INT)
TYPE_TEST(float, v.t == JINJA_FLOAT)
TYPE_TEST(number, v.t == JINJA_INT || v.t == JINJA_FLOAT || v.t == JINJA_BOOL)
TYPE_TEST(string, v.t == JINJA_STR)
TYPE_TEST(mapping, v.t == JINJA_DICT)
TYPE_TEST(iterable, jinja_value_iterable(v))
/* len() and __getitem__; undefined has both */
TYPE_TEST(sequence, v.t == JINJA_STR || v.t == JINJA_LIST || v.t == JINJA_TUPLE ||
                        v.t == JINJA_RANGE || v.t == JINJA_DICT || v.t == JINJA_UNDEF)
TYPE_TEST(callable, v.t == JINJA_MACRO || v.t == JINJA_FUNC || v.t == JINJA_METHOD ||
                        v.t == JINJA_LOOP || v.t == JINJA_JOINER || v.t == JINJA_UNDEF)
TYPE_TEST(escaped, v.t == JINJA_STR && v.s->markup)
TYPE_TEST(filter, v.t == JINJA_STR && jinja_filter_find(v.s->p, v.s->n))
TYPE_TEST(test, v.t == JINJA_STR && jinja_test_find(v.s->p, v.s->n))

static int case_test(struct jinja_run *r, struct jinja_val v, const struct jinja_args *a,
                     const char *method, int *yes)
{
    const struct jinja_method_def *m = jinja_str_method(method, strlen(method));
    struct jinja_val out;

    JINJA_TRY(jinja_print_soft(r, v, &v));
    JINJA_TRY(m->fn(r, v, a, &out));
    *yes = (int)out.i;
    return 0;
}

static int t_lower(struct jinja_run *r, struct jinja_val v, const struct jinja_args *a, int *yes)
{
    return case_test(r, v, a, "islower", yes);
}

static int t_upper(struct jinja_run *r, struct jinja_val v, const struct jinja_args *a, int *yes)
{
    return case_test(r, v, a, "isupper", yes);
}

static int mod_is(struct jinja_run *r, struct jinja_val v, struct jinja_val by, int64_t want,
                  int *yes)
{
    struct jinja_val m;

    JINJA_TRY(jinja_ops_binary(r, JINJA_TOK_MOD, v, by, &m));
    return jinja_value_eq(r, m, jinja_int(want), yes);
}

static int t_odd(struct jinja_run *r, struct jinja_val v, const struct jinja_args *a, int *yes)
{
    JINJA_TRY(no_args(r, a));
    return mod_is(r, v, jinja_int(2), 1, yes);
}

static int t_even(struct jinja_run *r, struct jinja_val v, const struct jinja_args *a, int *yes)
{
    JINJA_TRY(no_args(r, a));
    return mod_is(r, v, jinja_int(2), 0, yes);
}

static int t_divisibleby(struct jinja_run *r, struct jinja_val v, const struct jinja_args *a,
                         int *yes)
{
    struct jinja_val by;
    JINJA_TRY(jinja_object_bind(r, a, "divisibleby", "num", 1, &by));
    return mod_is(r, v, by, 0, yes);
}

static int t_in(struct jinja_run *r, struct jinja_val v, const struct jinja_args *a, int *yes)
{
    struct jinja_val seq;
    JINJA_TRY(jinja_object_bind(r, a, "in", "seq", 1, &seq));
    return jinja_value_in(r, v, seq, yes);
}

static int t_sameas(struct jinja_run *r, struct jinja_val v, const struct jinja_args *a, int *yes)
{
    struct jinja_val o;

    JINJA_TRY(jinja_object_bind(r, a, "sameas", "other", 1, &o));
    if (v.t != o.t) {
        *yes = 0;
        return 0;
    }
    if (v.t == JINJA_STR) {
        *yes = v.s == o.s || (v.s->p == o.s->p && v.s->n == o.s->n);
    } else if (v.t == JINJA_NONE) {
        *yes = 1;
    } else if (v.t == JINJA_FLOAT) {
        *yes = 0;
    } else {
        *yes = v.i == o.i; /* all pointers share the union */
    }
    return 0;
}

static int t_eq(struct jinja_run *r, struct jinja_val v, const struct jinja_args *a, int *yes)
{
    struct jinja_val o;
    JINJA_TRY(jinja_object_bind(r, a, "eq", "other", 1, &o));
    return jinja_value_eq(r, v, o, yes);
}

static int t_ne(struct jinja_run *r, struct jinja_val v, const struct jinja_args *a, int *yes)
{
    JINJA_TRY(t_eq(r, v, a, yes));
    *yes = !*yes;
    return 0;
}

static int order(struct jinja_run *r, struct jinja_val v, const struct jinja_args *a, int *c)
{
    struct jinja_val o;
    JINJA_TRY(jinja_object_bind(r, a, "order", "other", 1, &o));
    return jinja_value_cmp(r, v, o, c);
}

#define ORDER_TEST(name, expr)                                                                     \
    static int t_##name(struct jinja_run *r, struct jinja_val v, const struct jinja_args *a,       \
                        int *yes)                                                                  \
    {                                                                                              \
        int c;                                                                                     \
        JINJA_TRY(order(r, v, a, &c));                                                             \
        *yes = c != 2 && (expr);                                                                   \
        return 0;                                                                                  \
    }
ORDER_TEST(gt, c > 0)
ORDER_TEST(ge, c >= 0)
ORDER_TEST(lt, c < 0)
ORDER_TEST(le, c <= 0)

static const struct jinja_test tests[] = {{"defined", t_defined},
                                          {"undefined", t_undefined},
                                          {"none", t_none},
                                          {"boolean", t_boolean},
                                          {"true", t_true},
                                          {"false", t_false},
                                          {"integer", t_integer},
                                          {"float", t_float},
                                          {"number", t_number},
                                          {"string", t_string},
                                          {"mapping", t_mapping},
                                          {"iterable", t_iterable},
                                          {"sequence", t_sequence},
                                          {"callable", t_callable},
                                          {"escaped", t_escaped},
                                          {"filter", t_filter},
                                          {"test", t_test},
                                          {"lower", t_lower},
                                          {"upper", t_upper},
                                          {"odd", t_odd},
                                          {"even", t_even},
                                          {"divisibleby", t_divisibleby},
                                          {"in", t_in},
                                          {"sameas", t_sameas},
                                          {"eq", t_eq},
                                          {"equalto", t_eq},
                                          {"==", t_eq},
                                          {"ne", t_ne},
                                          {"!=", t_ne},
                                          {"gt", t_gt},
                                          {"greaterthan", t_gt},
                                          {">", t_gt},
                                          {"ge", t_ge},
                                          {">=", t_ge},
                                          {"lt", t_lt},
                                          {"lessthan", t_lt},
                                          {"<", t_lt},
                                          {"le", t_le},
                                          {"<=", t_le}};

const struct jinja_test *jinja_test_find(const char *p, size_t n)
{
    size_t i;

    for (i = 0; i < sizeof tests / sizeof *tests; i++) {
        if (strlen(tests[i].name) == n && memcmp(tests[i].name, p, n) == 0) {
            return &tests[i];
        }
    }
    return NULL;
}
