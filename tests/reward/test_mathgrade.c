/* The math reward against golden cases of the reference (normal forms, box, comparison), the zero
 * test of formulas, and hostile text. */
#include "support.h"

#include <time.h>

#include <jansson.h>

#include "base/buf.h"
#include "base/mem.h"
#include "reward/detex.h"
#include "reward/mathexpr.h"
#include "reward/mathgrade.h"

static void box_is(const char *s, const char *want)
{
    const char *p = NULL;
    size_t n = 0;
    int found = mathgrade_box(s, strlen(s), &p, &n);
    if (found != (want != NULL) || (found && (n != strlen(want) || memcmp(p, want, n) != 0))) {
        fail_msg("box of %s is %.*s, not %s", s, (int)n, found ? p : "none", want ? want : "none");
    }
}

static void test_box(void **state)
{
    (void)state;
    box_is("The answer is \\boxed{42}", "42");
    box_is("\\boxed{x^2 + 1}", "x^2 + 1");
    box_is("So \\boxed{\\frac{1}{2}}", "\\frac{1}{2}");
    box_is("No boxed here", NULL);
    box_is("Multiple \\boxed{1} then \\boxed{final}", "final");
    box_is("\\boxed{nested {braces}}", "nested {braces}");
    box_is("\\fbox{fbox content}", NULL);
    box_is("\\boxed 5", NULL);
    box_is("\\boxed{1} and \\boxed{2", NULL); /* the last one counts, even unclosed */
    box_is("\\boxed{1} and \\boxed", NULL);
    box_is("\\boxed{1} and \\boxedx{2}", NULL);
    box_is("\\boxed{}", "");
    box_is("\\boxed{\\boxed{3}}", "3");
    box_is("", NULL);
    box_is("\\boxed", NULL);
    box_is("\\boxed{", NULL);
    box_is("\\boxed}{1}", NULL);
}

static void form_is(char *(*form)(const char *), const char *s, const char *want)
{
    char *got = form(s);
    if (strcmp(got, want) != 0) {
        fail_msg("%s becomes %s, not %s", s, got, want);
    }
    mem_free(got);
}

static void test_mathd_form(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {".5", "\\frac{1}{2}"},
        {"x = 5", "5"},
        {"xyz = 5", "xyz=5"},
        {"-1/2", "\\frac{-1}{2}"},
        {"01/2", "01/2"},
        {"3 \\text{ cm}", "3"},
        {"\\frac{1}2", "\\frac{1}2"},
        {"  42  ", "42"},
        {"0.5", "\\frac{1}{2}"},
        {"1/2", "\\frac{1}{2}"},
        {"1/-2", "\\frac{1}{-2}"},
        {"-0/2", "-0/2"},
        {"1/2/3", "1/2/3"},
        {"\\text{hello}", "hello"},
        {"\\text{a}\\text{b}", "a}\\text{b"},
        {"\\text{}", "\\text{}"},
        {"\\frac12", "\\frac{1}{2}"},
        {"\\frac1{72}", "\\frac{1}{72}"},
        {"\\tfrac12 + \\dfrac 34", "\\frac{1}{2}+\\frac{3}{4}"},
        {"\\frac1", "\\frac1"},
        {"5\\frac", "5\\frac"},
        {"a b\\frac", "a b\\frac"}, /* a rule fails: the trimmed text stays */
        {"\\sqrt3 x", "\\sqrt{3}x"},
        {"\\sqrt", "\\sqrt"},
        {"\\sqrt{2}\\sqrt 3", "\\sqrt{2}\\sqrt{}3"},
        {"3 \\text{ a} \\text{ b}", "3 \\text{ a} \\text{ b}"},
        {"\\left(1,\\right)2", "(1,)2"},
        {"90^\\circ", "90"},
        {"90^{\\circ}", "90"},
        {"\\$5", "5"},
        {"50\\%", "50"},
        {"{.5}", "{0.5}"},
        {"a .5", "a0.5"},
        {"1\\!000", "1000"},
        {"a\nb", "ab"},
        {"a\\\\b", "a\\b"},
        {"x=y=2", "x=y=2"},
        {"=5", "5"},
        {"\xc3\xa9\xc3\xa9=5", "5"}, /* two characters, four bytes */
        {"\\frac\xc3\xa9\xc3\xa8", "\\frac{\xc3\xa9}{\xc3\xa8}"},
        {"", ""},
        {"   ", ""},
        {"\\%", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        form_is(mathgrade_mathd, cases[i][0], cases[i][1]);
    }
}

static void test_norm_form(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"1,000", "1000"},
        {"10,00", "10,00"},
        {"1e3", "1000"},
        {"2.50", "2.50"},
        {"1 1/2", "1+1/2"},
        {"5 million", "5*10^6"},
        {"monthly", "ly"},
        {"\\text{hello}", "hello"},
        {"  42  ", "42"},
        {"100%", "100"},
        {"\\$50", "50"},
        {"HELLO", "hello"},
        {"1,234,567", "1234567"},
        {"1,234,567,890", "1,234,567,890"}, /* as the reference has it */
        {"2.0000001", "2"},
        {"2.000001", "2.000001"},
        {"-0.0", "0"},
        {"1_000", "1000"},
        {"12345678901234567890", "12345678901234567168"},
        {"\\frac{1}{2}", "1/2"},
        {"1\\frac{1}{2}", "1+1/2"},
        {"\\frac{x+1}{2}", "x+1/2"},
        {"3\\sqrt{2}", "3sqrt(2)"},
        {"\\sqrt[3]{2}", "sqrt(2)"},
        {"2\\pi", "2pi"},
        {"(-\\infty, 3]", "(-inf,3]"},
        {"[0,1]\\cup[2,3]", "[0,1]u[2,3]"},
        {"2 \\cdot 3 \\times 4", "2*3*4"},
        {"5 degrees^2", "5"},
        {"90^\\circ", "90"},
        {"90^ \\circ", "90"},
        {"10,\\! 000", "10000"},
        {"{7}", "7"},
        {"- 3", "-3"},
        {"1 2 3", "1+23"},
        {"1 or 2", "1,2"},
        {"\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "[1;2]"},
        {"\\begin{pmatrix} a & b \\\\ \\frac{1}{2} & \\pi \\end{pmatrix}", "[ab;1/2pi]"},
        {"\\left\\{1\\right\\}", "1"},
        {"x \\in \\mathbb{R}", "x\xe2\x88\x88\xe2\x84\x9d"},
        {"\\Delta", "\xce\xb4"},
        {"\\unknown{x}", "x"},
        {"", ""},
        {"{", ""},
        {"{}", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        form_is(mathgrade_norm, cases[i][0], cases[i][1]);
    }
}

struct pair {
    const char *given, *truth;
    int want;
};

static void test_sympy_equal(void **state)
{
    (void)state;
    static const struct pair cases[] = {
        {"1/2", ".5", 1},
        {"2.0000001", "2", 1},
        {"x^2+2*x+1", "(x+1)^2", 1},
        {"ab", "ba", 1},
        {"abc", "bca", 0},
        {"2^10", "1024", 0},
        {"(1,2]", "(1,2)", 0},
        {"7 3/4", "31/4", 1},
        {"42", "42", 1},
        {"x^2", "x^2", 1},
        {"1/2", "0.5", 1},
        {"\\frac{1}{2}", "0.5", 1},
        {"wrong", "42", 0},
        {"", "42", 0},
        {"(1,2)", "(1,2)", 1},
        {"(1,2,3)", "(1,2)", 0},
        {"2/4", "1/2", 0},
        {"\\frac{\\sqrt{8}}{2}", "\\sqrt{2}", 1},
        {"\\frac{1}{\\sqrt{2}}", "\\frac{\\sqrt{2}}{2}", 1},
        {"\\frac{\\pi}{2}", "0.5\\pi", 1},
        {"\\frac{\\pi}{2}", "1.5707963267948966", 0},
        {"(1/2, 3)", "(0.5,3)", 1},
        {"(3, 1/2)", "(0.5,3)", 0},
        {"[1,2]", "(1,2)", 0},
        {"(1,000, 2)", "(1000,2)", 1},
        {"(-\\infty, 1/2]", "(-\\infty, 0.5]", 1},
        {"(\\infty, 1/2]", "(-\\infty, 0.5]", 0},
        {"3", "3.5", 0},
        {"x", "3", 0},
        {"2x", "x*2", 1},
        {"x(x+1)", "x^2+x", 1},
        {"x=5", "5", 0},
        {"x^{10}", "x^9*x", 0},
        {"sqrt(2)", "1.41421356237310", 0},
        {"12_5", "(12_5)", 1},
        {"y+x", "x+y", 1},
        {"y+x+z", "x+y+z", 0},
        {"2>1", "1<2", 0},
        {"0.333333333333333", "1/3", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int got = mathgrade_sympy_equal(cases[i].given, cases[i].truth);
        if (got != cases[i].want) {
            fail_msg("%s against %s gives %d", cases[i].given, cases[i].truth, got);
        }
    }
}

static void test_rewards(void **state)
{
    (void)state;
    static const struct pair math[] = {
        {"\\boxed{42}", "42", 1},
        {"The answer is \\boxed{42}", "42", 1},
        {"\\boxed{1/2}", "\\frac{1}{2}", 1},
        {"\\boxed{wrong}", "42", 0},
        {"no boxed", "42", 0},
        {"\\boxed{42}", "\\boxed{42}", 1},
        {"", "42", 0},
        {"\\boxed{42}", "", 0},
        {"\\boxed{42}", NULL, 0},
        {"\\boxed{0}", "0", 1},
        {"\\boxed{}", "0", 0},
        {"\\boxed{42}", "\\boxed{42", 0},
    };
    static const struct pair deepscaler[] = {
        {"Let me analyze...</think>The answer is \\boxed{42}", "42", 1},
        {"Thinking...</think>The answer is \\boxed{wrong}", "42", 0},
        {"###Response\\boxed{42}", "42", 1},
        {"###Response\\boxed{wrong}", "42", 0},
        {"The answer is \\boxed{42}", "42", 0},
        {"</think>The answer is 42", "42", 0},
        {"</think>\\boxed{42}", "", 0},
        {"</think>\\boxed{42}", "\\boxed{42}", 1},
        {"</think>\\boxed{1/2}", "0.5", 1},
        {"</think>\\boxed{\\frac{1}{2}}", "0.5", 1},
        {"First</think>\\boxed{1}</think>\\boxed{42}", "42", 1},
        {"\\boxed{42}</think>", "42", 0},
        {"###Response\\boxed{1}###Response\\boxed{42}", "1", 1},
    };
    for (size_t i = 0; i < sizeof math / sizeof *math; i++) {
        const struct pair *c = &math[i];
        if (mathgrade_math(c->given, strlen(c->given), c->truth) != c->want) {
            fail_msg("math: %s against %s", c->given, c->truth ? c->truth : "none");
        }
    }
    for (size_t i = 0; i < sizeof deepscaler / sizeof *deepscaler; i++) {
        const struct pair *c = &deepscaler[i];
        if (mathgrade_deepscaler(c->given, strlen(c->given), c->truth) != c->want) {
            fail_msg("deepscaler: %s against %s", c->given, c->truth);
        }
    }
    const char *g = "thinking \\boxed{1}<channel|>\\boxed{2}";
    assert_int_equal(mathgrade_gemma(g, strlen(g), "2"), 1);
    assert_int_equal(mathgrade_gemma(g, strlen(g), "1"), 0);
    assert_int_equal(mathgrade_gemma("\\boxed{3}", 9, "3"), 1);
    assert_int_equal(mathgrade_math("\\boxed{42\0}", 11, "42"), 0); /* a NUL does not end it */
}

/* Every verdict says its rule; unknown brings the question that sympy has to answer. */
static void test_reasons(void **state)
{
    (void)state;
    static const struct {
        const char *response, *label;
        int want;
        const char *reason, *ask;
    } cases[] = {
        {"\\boxed{1/2}", "\\frac{1}{2}", 1, "equal text in the first normal form", NULL},
        {"\\boxed{1,000}", "1000", 1, "equal text in the second normal form", NULL},
        {"\\boxed{1/2}", ".50", 1, "equal by algebra", NULL},
        {"\\boxed{3x}", "4x", 0, "different by algebra: 3x != 4x", NULL},
        {"\\boxed{abc}", "bca", 0, "different text, not for algebra", NULL},
        {"\\boxed{2/4}", "\\frac12", 0, "fraction not as in the label: 2/4 != 1/2", NULL},
        {"\\boxed{3}", "3.5", 0, "only one is an integer: 3 != 3.5", NULL},
        {"\\boxed{(1,2]}", "(1,2)", 0, "different brackets", NULL},
        {"\\boxed{(1,2,3)}", "(1,2)", 0, "different number of elements: 3 != 2", NULL},
        {"42", "42", 0, "no closed \\boxed{} in the answer", NULL},
        {"\\boxed{42}", "\\boxed{42", 0, "no closed \\boxed{} in the label", NULL},
        {"\\boxed{42}", "", 0, "no label", NULL},
        {"\\boxed{}", "42", 0, "the answer is empty", NULL},
        {"\\boxed{2*2^x}", "2^x+2^x+0*x!", 1, "equal by algebra", NULL},
        {"\\boxed{(1,x*(x-1)!)}", "(1,x!)", 0, "different number of elements: 1 != 2", NULL},
        {"\\boxed{x*(x-1)!}", "x!", -1, "needs algebra",
         "{\"rule\":\"miles\",\"zero\":[\"(x!)-(x*(x-1)!)\"]}"},
        {"\\boxed{[2,x!]}", "[3,y!]", 0, "different by algebra", NULL},
        {"\\boxed{[x!,3]}", "[y!,4]", 0, "different by algebra", NULL},
        {"\\boxed{[2^x,x!]}", "[2^y,y!]", -1, "needs algebra",
         "{\"rule\":\"miles\",\"zero\":[\"(2^y)-(2^x)\",\"(y!)-(x!)\"]}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mathverdict v;
        mathgrade_math_why(cases[i].response, strlen(cases[i].response), cases[i].label, &v);
        if (v.right != cases[i].want || !strstr(v.reason, cases[i].reason) ||
            !v.ask != !cases[i].ask || (v.ask && strcmp(v.ask, cases[i].ask) != 0)) {
            fail_msg("%s against %s: %d, %s, asks %s", cases[i].response, cases[i].label, v.right,
                     v.reason, v.ask ? v.ask : "nothing");
        }
        assert_int_equal(
            mathgrade_math(cases[i].response, strlen(cases[i].response), cases[i].label),
            cases[i].want == 1);
        mathverdict_fini(&v);
    }
    struct mathverdict v;
    mathgrade_deepscaler_why("\\boxed{1}", 9, "1", &v);
    assert_string_equal(v.reason, "neither </think> nor ###Response in the answer");
    mathverdict_set(&v, 0, "a\nb\x1b[2J\xff%0300d", 7);
    assert_int_equal(strlen(v.reason), MATHVERDICT_REASON - 1);
    assert_memory_equal(v.reason, "a b?[2J?000", 11);
}

static void zero_is(const char *s, int want)
{
    int got = mathexpr_is_zero(s, strlen(s));
    if (got != want) {
        fail_msg("%s gives %d", s, got);
    }
}

static void test_zero(void **state)
{
    (void)state;
    static const char *const zero[] = {
        "0",
        "1-1",
        "x-x",
        "(x+1)^2-(x^2+2x+1)",
        "(x^2-1)/(x-1)-(x+1)",
        "sqrt(8)-2sqrt(2)",
        "sqrt(2)sqrt(3)-sqrt(6)",
        "1/(1+sqrt(2))-(sqrt(2)-1)",
        "sqrt(1/2)-sqrt(2)/2",
        "sqrt(-4)*sqrt(-9)+6",
        "sqrt(12345678987654321)-111111111",
        "sqrt(2+sqrt(3))-(sqrt(6)+sqrt(2))/2",
        "sqrt(3+2sqrt(2))-1-sqrt(2)",
        "sqrt(4x)-2sqrt(x)",
        "sqrt(x)^2-x",
        "sqrt(x+1)-sqrt(1+x)",
        "x^0.5-sqrt(x)",
        "2^0.5-sqrt(2)",
        "4^-0.5-1/2",
        "x**(3/2)-x*sqrt(x)",
        "5!-120",
        "3!!-720",
        "n!/n!-1",
        "ln(8)-3ln(2)",
        "ln(2/3)-ln(2)+ln(3)",
        "2pi-pi-pi",
        "0.1+0.2-0.3",
        "1e3-1000",
        "1.5e-3-0.0015",
        "1_000-1000",
        "-2^2+4",
        "2^-1-0.5",
        "--1-1",
        "2*-3+6",
        "2^3^2-512",
        "1/2x-x/2",
        "2^3x-8x",
        "x2-2x",
        "xy^2-xyy",
        "2^xy-y*2^x",
        "x^0-1",
        "0^0-1",
        "0*x",
        "99999999999999999999999999999999*10-999999999999999999999999999999990",
        "10^9^1-1000000000",
        "(9^9)^9-9^81",
        "\xce\xb8 + \xce\xb8 - 2\xce\xb8",
    };
    static const char *const other[] = {
        "1",
        "x",
        "x-y",
        "sqrt(2)-1.4142135623730950488",
        "sqrt(x^2)-x",
        "sqrt(x)*sqrt(y)-sqrt(x*y)",
        "sqrt(2)+sqrt(3)-sqrt(5)",
        "pi-3.14159265358979323846",
        "0.3333333333333333-1/3",
        "1/0",
        "0/0",
        "1/(x-x)",
        "0*(1/0)",
        "(-1)!",
        "1/0-1/0",
        "2^x-x^2",
        "99999999999999999999999999999999-99999999999999999999999999999998",
        "",
        "()",
        "(",
        ")",
        "1-",
        "*1",
        "1 1 1 )",
        "x=x",
        "1,1",
        "[0]",
        "0x1-1",
        "007-7",
        ".",
        "sqrt",
        "sqrt()",
        "im-im",
        "x\xc2\xb0-x\xc2\xb0",
        "0\xff",
        "mu-m*u",
        "xi-x*i",
        "2//2-1",
    };
    for (size_t i = 0; i < sizeof zero / sizeof *zero; i++) {
        zero_is(zero[i], 1);
    }
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        zero_is(other[i], 0);
    }
}

/* Where Miles' verdict hangs on sympy's floating point; each was tried with sympy 1.14. */
static void test_rounds(void **state)
{
    (void)state;
    static const char *const exact[] = {
        "(0.3)-(3/10)",      "(1.1x)-(11x/10)",  "(0.5pi)-(pi/2)",    "(2.5)-(5/2)",
        "(1.5e-3)-(0.0015)", "(3.14)-(314/100)", "(0.25+0.25)-(0.5)", "(0.5x+1.5x)-(2x)",
        "(1/3)-(2/6)",       "(-0.1)-(-1/10)"};
    static const char *const risky[] = {
        "(0.1+0.2)-(0.3)",  "(2.1*3)-(6.3)",      "(1.1+2.2)-(3.3)",
        "(0.7*0.1)-(0.07)", "(0.1x+0.2x)-(0.3x)", "(100*1.1)-(110)",
        "(1.1^2)-(1.21)",   "(x^0.5)-(sqrt(x))",  "(4.35*100)-(435)"};
    struct mathverdict v;

    for (size_t i = 0; i < sizeof exact / sizeof *exact; i++) {
        if (mathexpr_rounds(exact[i], strlen(exact[i]))) {
            /* asking sympy once too often does no harm, but these are what answers look like */
            assert_true(i == 7);
        }
    }
    for (size_t i = 0; i < sizeof risky / sizeof *risky; i++) {
        if (!mathexpr_rounds(risky[i], strlen(risky[i]))) {
            fail_msg("%s is said not to round", risky[i]);
        }
    }
    mathgrade_math_why("\\boxed{0.1+0.2}", 15, ".3", &v);
    assert_int_equal(v.right, -1);
    assert_non_null(v.ask);
    mathverdict_fini(&v);
}

static char *repeat(const char *s, size_t times)
{
    size_t n = strlen(s);
    char *out = mem_alloc(n * times + 1);
    for (size_t i = 0; i < times; i++) {
        memcpy(out + i * n, s, n);
    }
    out[n * times] = 0;
    return out;
}

/* Long and deep text ends soon, with "no" and without a crash. */
static void test_hostile(void **state)
{
    (void)state;
    static const char *const parts[] = {
        "{",          "}",        "(",        "-",     "\\frac", "\\frac{",     "\\sqrt{",
        "\\sqrt",     "\\text{ ", "\\text{",  "^",     "1,000,", "1 ",          "!",
        "sqrt(",      "x^",       "2**",      "=",     "\\",     "\\hat{",      "\\begin{pmatrix}",
        "\\mathbf{",  "month",    "\\boxed{", "[",     ",",      ".",           "\xff",
        "\xc3\xa9",   "1/",       "a",        "\\! ",  "- ",     "\\begin{a}&", "sqrt(2)+",
        "9!",         "1e99999+", "\\sqrt[",  "1+1/x", "x",      "\\\\",        "sqrt(x)",
        "sqrt(1e30)", "ln(7)",    "9**9**",   "((1)",  "\n",     "\xc2\xa0",
    };
    static const size_t times[] = {100, 3000, 400000};
    clock_t t0 = clock();

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        for (size_t k = 0; k < 3; k++) {
            char *s = repeat(parts[i], times[k]);
            struct buf t;
            buf_init(&t, 64u << 20);
            buf_printf(&t, "\\boxed{%s}", s);
            assert_int_equal(buf_status(&t), 0);
            assert_int_equal(mathgrade_math(t.data, t.len, "x+1"), 0);
            mathgrade_math(t.data, t.len, s);
            mathgrade_equal(s, "1/2");
            mathgrade_equal("1/2", s);
            mathgrade_deepscaler(s, strlen(s), "1");
            buf_clear(&t);
            buf_printf(&t, "%s-1", s);
            mathexpr_is_zero(t.data, t.len);
            buf_fini(&t);
            mem_free(s);
        }
    }
    char *deep = mem_alloc(1 << 20);
    for (int d = 1; d < 4000; d *= 2) {
        size_t n = 0;
        for (int i = 0; i < d; i++) {
            deep[n++] = '(';
        }
        deep[n++] = '7';
        for (int i = 0; i < d; i++) {
            deep[n++] = ')';
        }
        strcpy(deep + n, "-7");
        assert_int_equal(mathexpr_is_zero(deep, strlen(deep)), d <= 128);
    }
    mem_free(deep);
    if ((double)(clock() - t0) / CLOCKS_PER_SEC > 120) {
        fail_msg("hostile text took %.1f s", (double)(clock() - t0) / CLOCKS_PER_SEC);
    }
}

/* Random bytes from an alphabet that provokes every rule. */
static void test_random_text(void **state)
{
    (void)state;
    static const char *const words[] = {"\\frac",
                                        "{",
                                        "}",
                                        "1",
                                        "2",
                                        "x",
                                        "\\sqrt",
                                        "(",
                                        ")",
                                        "/",
                                        "-",
                                        "+",
                                        "*",
                                        "^",
                                        " ",
                                        ",",
                                        "\\text{",
                                        ".",
                                        "pi",
                                        "\\pi",
                                        "=",
                                        "!",
                                        "000",
                                        "cm",
                                        "\\left",
                                        "\\",
                                        "sqrt(",
                                        "e",
                                        "\\!",
                                        "[",
                                        "]",
                                        "\\infty",
                                        "\\\\",
                                        "&",
                                        "\\begin{pmatrix}",
                                        "\\end{pmatrix}",
                                        "_",
                                        "\xc3\xa9"};
    uint64_t r = 12345;
    int same = 0;

    for (int i = 0; i < 20000; i++) {
        char s[2][256];
        for (int k = 0; k < 2; k++) {
            size_t n = 0;
            int len = 1 + (int)(r % 12);
            s[k][0] = 0;
            for (int w = 0; w < len; w++) {
                r = r * 6364136223846793005u + 1442695040888963407u;
                const char *t = words[(r >> 33) % (sizeof words / sizeof *words)];
                n += (size_t)snprintf(s[k] + n, sizeof s[k] - n, "%s", t);
            }
        }
        same += mathgrade_equal(s[0], s[1]);
        assert_int_equal(mathgrade_equal(s[0], s[0]), 1);
    }
    assert_true(same < 2000);
}

/* Every label of the stored sets is right against itself, boxed, and against its own rewriting. */
static void test_labels(void **state)
{
    (void)state;
    static const char *const files[] = {"math/math500.jsonl", "math/aime24.jsonl",
                                        "math/olympiadbench.jsonl", "math/minerva_math.jsonl"};
    int n = 0, wrong = 0;

    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        FILE *f = fopen(support_data(files[i]), "r");
        char *line = NULL, *prev = NULL;
        size_t cap = 0;
        assert_non_null(f);
        while (getline(&line, &cap, f) > 0) {
            json_t *row = json_loads(line, 0, NULL);
            const char *label = json_string_value(json_object_get(row, "label"));
            struct buf text;
            assert_non_null(label);
            buf_init(&text, 1 << 20);
            buf_printf(&text, "so \\boxed{%s}.", label);
            assert_int_equal(mathgrade_math(text.data, text.len, label), 1);
            if (prev && strcmp(prev, label) != 0) {
                wrong += mathgrade_math(text.data, text.len, prev);
            }
            buf_fini(&text);
            free(prev);
            prev = strdup(label);
            json_decref(row);
            n++;
        }
        free(line);
        free(prev);
        fclose(f);
    }
    assert_int_equal(n, 500 + 30 + 675 + 272);
    assert_true(wrong <= 3); /* neighbours with equal values in other words */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_box),       cmocka_unit_test(test_mathd_form),
        cmocka_unit_test(test_norm_form), cmocka_unit_test(test_sympy_equal),
        cmocka_unit_test(test_rewards),   cmocka_unit_test(test_zero),
        cmocka_unit_test(test_hostile),   cmocka_unit_test(test_random_text),
        cmocka_unit_test(test_reasons),   cmocka_unit_test(test_rounds),
        cmocka_unit_test(test_labels), /* the last: it may skip all */
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
