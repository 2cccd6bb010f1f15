/* The equality of answers: every kind of answer in equal and unequal pairs, what is taken as the
 * answer of a response, and hostile text, which must end soon and without a crash. */
#include "support.h"

#include <time.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/proc.h"
#include "reward/mathequal.h"

struct pair {
    const char *truth, *given;
};

static void verdict_is(const char *truth, const char *given, int want)
{
    struct mathverdict v;

    mathequal_compare(given, truth, &v);
    if (v.right != want || !v.reason[0] || (v.right >= 0 && v.ask)) {
        fail_msg("%s against %s gives %d: %s", given, truth, v.right, v.reason);
    }
    mathverdict_fini(&v);
}

#define ALL(list, want)                                                                            \
    for (size_t i = 0; i < sizeof(list) / sizeof *(list); i++) {                                   \
        verdict_is((list)[i].truth, (list)[i].given, want);                                        \
    }

static void test_numbers(void **state)
{
    (void)state;
    static const struct pair equal[] = {
        {"42", "42.0"},
        {"42", "$42$"},
        {"42", "42."},
        {"42", "\\text{42}"},
        {"42", "042"},
        {"-3", "- 3"},
        {"-3", "\xe2\x88\x92"
               "3"},
        {"0.5", "1/2"},
        {"0.5", ".5"},
        {"\\frac{1}{2}", "0.50"},
        {"\\frac{1}{2}", "\\frac12"},
        {"\\frac{1}{2}", "2/4"},
        {"\\dfrac{-1}{2}", "-\\tfrac{1}{2}"},
        {"\\frac{1}{2}", "\xc2\xbd"},
        {"-\\frac{1}{2}", "\\frac{1}{-2}"},
        {"1000", "1,000"},
        {"1234567", "1,234,567"},
        {"35,\\!280", "35280"},
        {"1{,}008{,}016", "1008016"},
        {"10\\,000", "10000"},
        {"11,\\! 111,\\! 111,\\! 100", "11111111100"},
        {"2\\frac{1}{2}", "2.5"},
        {"2\\frac12", "5/2"},
        {"1 1/2", "3/2"},
        {"-2\\frac{1}{2}", "-2.5"},
        {"7\\tfrac{3}{4}", "31/4"},
        {"0.\\overline{3}", "1/3"},
        {"0.1\\overline{6}", "\\frac16"},
        {"5.3e-9", "5.3 \\times 10^{-9}"},
        {"4e33", "4\\cdot 10^{33}"},
        {"1024", "2^{10}"},
        {"1024", "2^10"},
        {"\\frac{4 \\cdot 999^{4}}{27}", "4*999^4/27"},
        {"120", "5!"},
        {"10", "\\binom{5}{2}"},
        {"100!", "100! + 0"},
        {"2^{1000}", "4^{500}"},
        {"2^{100000}", "4^{50000}"},
        {"10^{10^{10}}", "10^{10000000000}"},
        {"123456789012345678901234567890", "123456789012345678901234567890.0"},
        {"0.333333", "1/3"},
        {"\\pi", "3.14159265"},
        {"\\sqrt{2}", "1.414214"},
        {"5", "\\lfloor 5.9 \\rfloor"},
        {"5", "|-5|"},
        {"5", "\\left|-5\\right|"},
        {"15", "\\sum_{k=1}^{5} k"},
        {"4", "\\gcd(12, 8)"},
    };
    static const struct pair other[] = {
        {"3", "4"},
        {"42", "-42"},
        {"0.5", "0.05"},
        {"1/2", "1/3"},
        {"1/3", "0.333"},
        {"1/3", "0.333334"},
        {"0.333333", "0.3333333"},
        {"2", "2.0000001"},
        {"1", "0.9999999"},
        {"\\pi", "3.14"},
        {"\\pi", "22/7"},
        {"1 1/2", "11/2"},
        {"2\\frac{1}{2}", "1"},
        {"1000", "1,00"},
        {"22,500", "22"},
        {"123456789012345678901234567890", "123456789012345678901234567891"},
        {"2^{1000}", "4^{501}"},
        {"10^{10^{10}}", "10^{10^{10}}+1"}, /* found by the exponent of the difference or unknown */
        {"5", ""},
        {"5", "five thousand"},
        {"15", "\\sum_{k=1}^{6} k"},
    };
    ALL(equal, 1);
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        struct mathverdict v;
        mathequal_compare(other[i].given, other[i].truth, &v);
        if (v.right == 1) {
            fail_msg("%s is said to equal %s: %s", other[i].given, other[i].truth, v.reason);
        }
        if (v.right < 0 && !strstr(other[i].truth, "10^{10^")) {
            fail_msg("%s against %s is unknown: %s", other[i].given, other[i].truth, v.reason);
        }
        mathverdict_fini(&v);
    }
}

static void test_units(void **state)
{
    (void)state;
    static const struct pair equal[] = {
        {"18\\%", "18"},
        {"18\\%", "18%"},
        {"18\\%", "0.18"},
        {"0.18", "18\\%"},
        {"73\\%", "73 percent"},
        {"10\\text{ cm}", "10"},
        {"10", "10 cm"},
        {"10\\text{ cm}", "0.1 m"},
        {"10\\text{ cm}", "10\\,\\mathrm{cm}"},
        {"1 \\text{ hour}", "60 minutes"},
        {"2400 \\mbox{ cm}^2", "2400 square centimeters"},
        {"2400 \\mbox{ cm}^2", "0.24 \\text{ m}^2"},
        {"428\\text{ square centimeters}", "428"},
        {"16\\text{ daps}", "16"},
        {"240\\text{ ways.}", "240"},
        {"\\$5.50", "5.5"},
        {"\\$5.50", "\\$5.50"},
        {"\\$32,\\!348", "32348 \\text{ dollars}"},
        {"382 \\text{ dollars}", "\\$382"},
        {"62^\\circ", "62"},
        {"62^\\circ", "62^{\\circ}"},
        {"62^\\circ", "62 degrees"},
        {"62^\\circ", "62\xc2\xb0"},
        {"180^\\circ", "\\pi"},
        {"\\frac{270}7\\text{ degrees}", "270/7"},
        {"50 \\text{ mph}", "50 miles per hour"},
        {"\\approx 8.24 \\text{ mph}", "8.24"},
        {"5 \\text{ m/s}", "18 \\text{ km/h}"},
    };
    static const struct pair other[] = {
        {"18\\%", "1.8"},
        {"0.18", "18"},
        {"10\\text{ cm}", "10 m"},
        {"10\\text{ cm}", "10 \\text{ kg}"},
        {"10\\text{ cm}^2", "10 \\text{ cm}"},
        {"62^\\circ", "63^\\circ"},
        {"180", "\\pi"},
        {"\\$5.50", "\\$5.05"},
    };
    ALL(equal, 1);
    ALL(other, 0);
}

static void test_formulas(void **state)
{
    (void)state;
    static const struct pair equal[] = {
        {"\\sqrt{8}", "2\\sqrt{2}"},
        {"\\frac{1}{\\sqrt{2}}", "\\frac{\\sqrt{2}}{2}"},
        {"\\sqrt{3+2\\sqrt{2}}", "1+\\sqrt{2}"},
        {"\\sqrt[3]{-8}", "-2"},
        {"5 \\sqrt[3]{4}", "5 \\cdot 4^{1/3}"},
        {"\\frac{\\sqrt6}2", "sqrt(6)/2"},
        {"2\\sqrt3", "2 \xe2\x88\x9a"
                     "3"},
        {"6\\pi", "6pi"},
        {"\\frac{\\pi}{2}", "0.5\\pi"},
        {"\\frac{\\pi}{2}", "\xcf\x80/2"},
        {"e^2", "\\exp(2)"},
        {"\\ln 8", "3\\ln 2"},
        {"\\log_2 8", "3"},
        {"\\log 100", "2"},
        {"\\log_2 n", "log(n, 2)"},
        {"\\binom{2n}{n}", "binomial(2*n, n)"},
        {"\\frac{100!}{2^{50}}", "factorial(100)/(2**50)"},
        {"\\ln 2", "\\log 2"},
        {"6-3i", "-3i+6"},
        {"i^2", "-1"},
        {"\\frac{1}{1+i}", "\\frac{1-i}{2}"},
        {"-\\frac34i", "-0.75i"},
        {"e^{i\\pi}", "-1"},
        {"\\sin 30^\\circ", "1/2"},
        {"\\cos\\frac{\\pi}{3}", "0.5"},
        {"\\tan^{-1}(1)", "\\frac{\\pi}{4}"},
        {"\\arcsin 1", "\\pi/2"},
        {"np.arcsin(10/13)", "\\arcsin\\frac{10}{13}"},
        {"(x+1)^2", "x^2+2x+1"},
        {"x^2+2x+1", "x\xc2\xb2 + 2x + 1"},
        {"9(2-x)(2+x)", "36-9x^2"},
        {"\\sin 2x", "2\\sin x\\cos x"},
        {"\\cos^2\\alpha", "1-\\sin^2 \\alpha"},
        {"\\frac{11+9a}{20}", "(9a+11)/20"},
        {"10p^3 \\sqrt{3p}", "10 \\sqrt{3} p^{7/2}"},
        {"2^{k-1}", "\\frac{2^k}{2}"},
        {"\\binom{2n}{n}", "\\frac{(2n)!}{n!^2}"},
        {"\\frac{1}{4} n(n+1)", "\\frac{n^2+n}{4}"},
        {"xy", "yx"},
        {"|x|", "\\sqrt{x^2}"},
        {"\\frac{e^{-2 t}}{15}+C_{1} e^{t}", "C_1 e^t + \\frac{1}{15 e^{2t}}"},
        {"\\sqrt{4 \\pi G \\rho_{0} r_{0}^{2}}", "\\sqrt{4\\pi G r_0^2 \\rho_0}"},
        {"\\frac{\\omega}{2\\pi}", "\\omega/(2\\pi)"},
        {"x^{1/3}", "\\sqrt[3]{x}"},
    };
    static const struct pair other[] = {
        {"\\sqrt{8}", "2\\sqrt{3}"},
        {"\\sqrt{2}+\\sqrt{3}", "\\sqrt{5}"},
        {"\\sqrt{x^2}", "x"},
        {"6\\pi", "6"},
        {"e^2", "2e"},
        {"\\ln 8", "2\\ln 3"},
        {"6-3i", "6+3i"},
        {"(x+1)^2", "x^2+1"},
        {"x", "y"},
        {"x", "5"},
        {"\\sin 2x", "2\\sin x"},
        {"2^{k-1}", "2^k-1"},
        {"LQSX", "LQXS"},
        {"\\lfloor\\sqrt{n-1}\\rfloor", "\\lfloor\\sqrt{n}\\rfloor"},
        {"\\lceil \\frac{n}{2} \\rceil", "\\lfloor \\frac{n}{2} \\rfloor"},
        {"f(0)", "g(0)"},
        {"e^{\\pi\\sqrt{163}}", "262537412640768744"}, /* they differ by 7.5e-13 */
    };
    ALL(equal, 1);
    ALL(other, 0);
}

static void test_structures(void **state)
{
    (void)state;
    static const struct pair equal[] = {
        {"(1,2)", "(1, 2)"},
        {"(1,2)", "\\left(1,\\frac{4}{2}\\right)"},
        {"\\left( 3, \\frac{\\pi}{2} \\right)", "(3, \\pi/2)"},
        {"(1,2)", "1, 2"},
        {"(1,2)", "x=1, y=2"},
        {"(22,500)", "(22, 500)"},
        {"(1,-2,3)", "\\begin{pmatrix} 1 \\\\ -2 \\\\ 3 \\end{pmatrix}"},
        {"\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "\\langle 1, 2\\rangle"},
        {"\\begin{pmatrix} 1/2 & 0 \\\\ 0 & 1 \\end{pmatrix}",
         "\\begin{bmatrix} 0.5 & 0 \\\\ 0 & 1 \\end{bmatrix}"},
        {"\\begin{pmatrix} 1/2 \\\\ 1 \\end{pmatrix}",
         "\\frac12\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}"},
        {"\\begin{pmatrix} 1 & -1 \\\\ 1 & \\phantom -1 \\end{pmatrix}",
         "\\begin{pmatrix} 1 & -1 \\\\ 1 & 1 \\end{pmatrix}"},
        {"(-\\infty,2) \\cup (2,4)", "(2,4)\\cup(-\\infty,2)"},
        {"(-\\infty,2) \\cup (2,4)", "(-\\infty, 2) U (2, 4)"},
        {"(-\\infty,2) \\cup (2,\\infty)", "\\mathbb{R}\\setminus\\{2\\}"},
        {"(-\\infty,2) \\cup (2,\\infty)", "x \\neq 2"},
        {"(0,2)", "(0,1] \\cup (1,2)"},
        {"[3,\\infty)", "x \\ge 3"},
        {"[3,\\infty)", "3 \\le x"},
        {"-80\\leq g(x)\\leq 82", "[-80,82]"},
        {"(0,1]", "0 < x \\le 1"},
        {"(-\\infty,2)\\cup(5,\\infty)", "x<2 or x>5"},
        {"(2,5)", "x>2 \\text{ and } x<5"},
        {"x \\in [-2,7]", "[-2,7]"},
        {"[0,\\pi]", "[0, 3\\pi/3]"},
        {"\\{1,2,3\\}", "\\{3,2,1\\}"},
        {"\\{1,2\\}", "\\{1,2,2\\}"},
        {"\\{1,2\\}", "2,1"},
        {"1,2", "2 \\text{ and } 1"},
        {"-1, \\; -5", "-5,-1"},
        {"1, 6, 3 + \\sqrt{2}, 3 - \\sqrt{2}", "3 \\pm \\sqrt{2}, 1, 6"},
        {"\\pm 2", "2, -2"},
        {"$x=\\pm 2$", "x=2 or x=-2"},
        {"\\emptyset", "\\{\\}"},
        {"(6,3),(9,3)", "(9,3),(6,3)"},
        {"$a=2$, $a=-6-4 \\sqrt{2}$", "2, -6-4\\sqrt2"},
        {"AB=9, CD=4", "CD = 4, AB = 9"},
        {"3:5", "6:10"},
        {"3:5", "\\frac35"},
        {"1:2:3", "2:4:6"},
        {"x=5", "5"},
        {"5", "x = 5"},
        {"5", "x + y = 5"},
        {"f(x)=x-1", "x-1"},
        {"f(x)=x-1", "y=x-1"},
        {"f(x)=x-1", "f(x) = x-1 \\text{ for all } x > 0"},
        {"2k+1", "2k+1, \\text{ where } k \\text{ is an integer}"},
        {"y = 2x + 3", "2x - y + 3 = 0"},
        {"y = 2x + 3", "y-3 = 2x"},
        {"x^2+y^2=1", "2x^2 + 2y^2 - 2 = 0"},
        {"x+y<3", "2x+2y < 6"},
        {"x+y<3", "3 > x+y"},
        {"1011_2", "1011_{2}"},
        {"1011_2", "1011"},
        {"1011_2", "11_{10}"},
        {"\\text{A5}_{11}", "115_{10}"},
        {"(0,4]", "t(0,4]"},
        {"\\$\\dfrac23 \\approx \\$0.67", "2/3"},
        {"0.56 = 56\\%", "56\\% = 0.56"},
        {"[-80,82]", "-80 \\leq g{\\left(x \\right)} \\wedge g{\\left(x \\right)} \\leq 82"},
        {"\\text{(B)}", "B"},
        {"B", "(B)"},
        {"B", "\\textbf{(B)}\\ 12"},
        {"\\text{B}", "b"},
        {"\\text{Sunday}", "sunday"},
        {"\\text{Evelyn}", "Evelyn"},
        {"\\text{A, D, F}", "A, D, F"},
        {"\\text{even}", "even"},
        {"3:30 \\text{ p.m.}", "3:30 PM"},
        {"3:30 \\text{ p.m.}", "15:30"},
        {"3:30 \\text{ p.m.}", "3:30"},
    };
    static const struct pair other[] = {
        {"(1,2)", "(2,1)"},
        {"(1,2)", "[1,2]"},
        {"(1,2)", "(1,2]"},
        {"(1,2)", "(1,2,3)"},
        {"(1,2)", "\\{1,2\\}"},
        {"(1,2)", "3"},
        {"[3,\\infty)", "x > 3"},
        {"[3,\\infty)", "x \\le 3"},
        {"(0,2)", "(0,1) \\cup (1,2)"},
        {"(-\\infty,2) \\cup (2,4)", "(-\\infty,4)"},
        {"\\{1,2,3\\}", "\\{1,2\\}"},
        {"\\{1,2\\}", "\\{1,2,3\\}"},
        {"1,2", "1,1"},
        {"1,2", "1"},
        {"\\pm 2", "2"},
        {"3:5", "5:3"},
        {"x=5", "6"},
        {"x=5", "x=6"},
        {"y = 2x + 3", "y = 2x - 3"},
        {"y = 2x + 3", "2x+y+3=0"},
        {"x+y<3", "x+y>3"},
        {"x+y<3", "x+y \\le 3"},
        {"f(x)=x-1", "x+1"},
        {"AB=9", "AC=9"},
        {"AB=9, CD=4", "CB=9, CD=4"},
        {"\\angle A B_1 = 90", "\\angle A B_2 = 90"},
        {"1011_2", "1010_2"},
        {"1011_2", "11"},
        {"\\text{(B)}", "C"},
        {"B", "\\textbf{(C)}\\ 12"},
        {"\\text{Sunday}", "Monday"},
        {"\\text{even}", "odd"},
        {"3:30 \\text{ p.m.}", "3:30 am"},
        {"\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "\\begin{pmatrix} 2 \\\\ 1 \\end{pmatrix}"},
        {"\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}", "(1,2,3,4)"},
        {"\\emptyset", "0"},
    };
    ALL(equal, 1);
    ALL(other, 0);
}

/* What C cannot decide is unknown, with a question where algebra can. */
static void test_unknown(void **state)
{
    (void)state;
    struct mathverdict v;

    mathequal_compare("\\frac{n(n+1)}{2}", "\\sum_{k=1}^{n} k", &v);
    assert_int_equal(v.right, -1);
    assert_non_null(v.ask);
    assert_non_null(strstr(v.ask, "\"sum\""));
    mathverdict_fini(&v);
    mathequal_compare("x = \\pm 2", "x^2=4", &v);
    assert_int_not_equal(v.right, 1);
    mathverdict_fini(&v);
    mathequal_compare("x^2-4=0", "x^3-4x=0", &v);
    assert_int_equal(v.right, -1);
    assert_non_null(v.ask);
    assert_non_null(strstr(v.ask, "\"equation\""));
    mathverdict_fini(&v);
    mathequal_compare("3", "\\begin{cases} 1 \\\\ 2 \\end{cases}", &v);
    assert_int_equal(v.right, -1);
    assert_non_null(strstr(v.reason, "label unreadable"));
    assert_null(v.ask);
    mathequal_compare("\\begin{cases} 1 \\\\ 2 \\end{cases}", "3", &v);
    assert_int_equal(v.right, 0);
    assert_non_null(strstr(v.reason, "answer unreadable"));
    mathequal_compare("3", "", &v);
    assert_int_equal(v.right, -1);
}

static void test_reasons(void **state)
{
    (void)state;
    static const struct {
        const char *truth, *given, *reason;
    } cases[] = {
        {"4", "3", "different number: 3 != 4"},
        {"\\frac34", "\\sqrt2", "different number: 1.414213562 != 3/4"},
        {"4", "x", "a number against a formula: formula != 4"},
        {"(1,2)", "(1,3)", "element 2: different number: 3 != 2"},
        {"(1,2)", "[1,2)", "different brackets: [ ) != ( )"},
        {"\\{1,2\\}", "\\{1,3\\}", "element 2 of the label is not in the answer"},
        {"\\{1\\}", "\\{1,3\\}", "element 2 of the answer is not in the label"},
        {"10 cm", "10 kg", "different units: kg and cm"},
        {"42", "42", "equal text"},
        {"1/2", "0.5", "equal number"},
        {"1/3", "0.3333333", "equal when rounded to the decimals given"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mathverdict v;
        mathequal_compare(cases[i].given, cases[i].truth, &v);
        assert_string_equal(v.reason, cases[i].reason);
        mathverdict_fini(&v);
    }
}

static void test_answer(void **state)
{
    (void)state;
    static const struct {
        const char *response, *label;
        int want;
        const char *reason;
    } cases[] = {
        {"so \\boxed{42}", "42", 1, "equal text"},
        {"\\boxed{1} or \\boxed{42}", "42", 1, "equal text"},
        {"<think>\\boxed{42}</think> \\boxed{41}", "42", 0, "different number: 41 != 42"},
        {"<think>\\boxed{41}</think> The answer is 42.", "42", 1, "equal text"},
        {"<think>\\boxed{42}</think> done", "42", 0, "no \\boxed{}"},
        {"\\boxed{1} then \\boxed{42", "42", 0, "not closed"},
        {"\\boxed{\\{1,2\\}}", "\\{2,1\\}", 1, "equal set"},
        {"\\fbox{42}", "42", 1, "equal text"},
        {"The final answer is $\\frac{1}{2}$. I hope it is correct.", "0.5", 1, "equal number"},
        {"**Answer:** 42", "42", 1, "equal text"},
        {"Answer: 3.5 apples", "3.5", 1, ""},
        {"5 * 2 = 10\n#### 10", "10", 1, "equal text"},
        {"forty-two", "42", 0, "no \\boxed{}"},
        {"\\boxed{42}", "\\boxed{42}", 1, "equal text"},
        {"\\boxed{42}", "", -1, "no label"},
        {"\\boxed{42}", "\\boxed{42", -1, "label unreadable"},
        {"\\boxed{}", "42", 0, "the answer is empty"},
    };
    struct mathverdict v;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mathequal_grade(cases[i].response, strlen(cases[i].response), cases[i].label, &v);
        if (v.right != cases[i].want || !strstr(v.reason, cases[i].reason)) {
            fail_msg("%s against %s: %d, %s", cases[i].response, cases[i].label, v.right, v.reason);
        }
        mathverdict_fini(&v);
    }
    mathequal_grade("\\boxed{4\0002}", 11, "42", &v);
    assert_int_equal(v.right, 0);
    mathequal_grade("\\boxed{42}", 10, NULL, &v);
    assert_int_equal(v.right, -1);
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

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SLOW = 20 };
#else
enum { SLOW = 1 };
#endif

static double worst;

/* Seconds of work of this thread: a busy machine does not count. */
static double work_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void soon(const char *truth, const char *given)
{
    struct mathverdict v;
    double t0 = work_now(), t;

    mathequal_compare(given, truth, &v);
    t = work_now() - t0;
    worst = t > worst ? t : worst;
    if (t > 0.1 * SLOW) {
        fail_msg("%.60s... against %.60s... took %.3f s: %s", given, truth, t, v.reason);
    }
    assert_true(v.right >= -1 && v.right <= 1 && v.reason[0]);
    mathverdict_fini(&v);
}

/* Towers, huge numbers, deep nests: the verdict comes within its budget. */
static void test_pathological(void **state)
{
    (void)state;
    static const char *const hard[] = {
        "10^{10^{10}}",
        "10^{10^{100}}",
        "10^{10^{10^{10}}}",
        "9^{9^{9^{9^{9}}}}",
        "((((10^{10^{10}})!)!)!)!",
        "1000000000!",
        "(10^{18})!",
        "\\binom{1000000000000}{500000000000}",
        "\\sin(10^{10^{10}})",
        "\\sin(10^{300})",
        "e^{e^{e^{e^{e^{e}}}}}",
        "\\sum_{k=1}^{1000000000} \\frac{1}{k}",
        "\\sum_{k=1}^{300} \\sum_{j=1}^{300} \\sum_{i=1}^{300} \\sin(ijk)",
        "\\prod_{k=1}^{300} (k^{300}+\\sqrt{k})",
        "1e999999999",
        "1e-999999999",
        "0.\\overline{142857142857142857142857142857142857}",
        "\\gcd(10^{1000}, 10^{999}+1)",
        "\\sqrt[1000000]{2}",
        "\\sqrt[10^{10}]{10}",
        "x^{x^{x^{x^{x^{x^{x}}}}}}",
        "x!!!!!!!!!!",
        "\\Gamma(x)",
        "\\frac{1}{0}",
        "0^0",
        "0^{-1}",
        "\\ln 0",
        "\\tan \\frac{\\pi}{2}",
        "(1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32)",
        "1 \\pm 2 \\pm 3 \\pm 4 \\pm 5 \\pm 6 \\pm 7 \\pm 8 \\pm 9",
        "x < y < z < w < a < b < c < d < e < f < g < h < i < j < k < l < m",
        "\\arcsin(\\sin(\\arccos(\\cos(\\arctan(\\tan(x))))))",
        "(x+1)^{4096}",
        "(x+1)^{1000000}",
        "\\cosh(10^{17})",
        "1^{10^{100}}",
        "(-1)^{10^{100}}",
        "\\lfloor \\pi \\cdot 10^{500} \\rfloor",
    };
    static const char *const parts[] = {
        "\\frac{1}{", "{",
        "}",          "(",
        "[",          "\\{",
        "-",          "\\frac",
        "\\sqrt{",    "\\sqrt",
        "\\text{ ",   "^",
        "1,000,",     "1 ",
        "!",          "sqrt(",
        "x^",         "2**",
        "=",          "\\",
        "\\hat{",     "\\begin{pmatrix}",
        "&",          "\\\\",
        "\\pm ",      "|",
        ",",          ".",
        "\xff",       "\xc3\xa9",
        "1/",         "a",
        "9",          "sin ",
        "\\sin ",     "\\sum_{k=1}^{300} ",
        "\\cup ",     "(1,2)\\cup ",
        "<",          "x<",
        "_",          "_{",
        "'",          "%",
        "\\%",        "^\\circ",
        ":",          "1:",
        "\\begin{",   "\\left(",
        "cm ",        "1e9",
        "0.1",        "\\overline{",
        "x,",         "(1,",
        "\\binom{",   "x!",
        "\\log_",     "\\sin^{-1}",
        "\\vec{",     "\n",
        "$",          "e^{",
        "10^{",       "\\{1,\\{",
        "((1,2),",    "x=",
        "x+",         "x*y+",
        "\\ln(",      "\\arcsin(x)+",
        "x^{0.3}+",   "\\binom{x}{y}+",
    };
    static const size_t times[] = {20, 140, 1000, 16000, 1000000};

    for (size_t i = 0; i < sizeof hard / sizeof *hard; i++) {
        char more[400];
        snprintf(more, sizeof more, "%s+0", hard[i]);
        soon(hard[i], more);
        soon("3", hard[i]);
        soon(hard[i], "3");
        snprintf(more, sizeof more, "(%s)(x+1)", hard[i]);
        soon(more, hard[i]);
        soon(hard[i], hard[(i + 1) % (sizeof hard / sizeof *hard)]);
    }
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        for (size_t k = 0; k < sizeof times / sizeof *times; k++) {
            char *s = repeat(parts[i], times[k] / strlen(parts[i]) + 1);
            struct buf b;
            buf_init(&b, 4u << 20);
            buf_printf(&b, "%s1", s);
            soon("1/2", s);
            soon(s, "1/2");
            soon(s, b.data);
            for (int d = 0; k < 2 && d < (int)times[k] / 8; d++) {
                buf_str(&b, strchr(parts[i], '{') ? "}" : strchr(parts[i], '(') ? ")" : "1");
            }
            soon(b.data, "x");
            soon("x", b.data);
            buf_fini(&b);
            mem_free(s);
        }
    }
    char *big = repeat("7", 1 << 20);
    struct mathverdict v;
    struct buf b;
    buf_init(&b, 4u << 20);
    buf_printf(&b, "\\boxed{%s}", big);
    mathequal_grade(b.data, b.len, "7", &v);
    assert_int_equal(v.right, 0);
    assert_non_null(strstr(v.reason, "too long"));
    mathequal_grade("\\boxed{7}", 9, big, &v);
    assert_int_equal(v.right, -1);
    buf_fini(&b);
    mem_free(big);
    print_message("worst verdict: %.1f ms\n", worst * 1e3);
}

/* Random text of words that provoke every rule; a pair of equal texts is always right. */
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
                                        "[",
                                        "]",
                                        "\\{",
                                        "\\}",
                                        "\\pi",
                                        "e",
                                        "i",
                                        "\\sin",
                                        "\\log",
                                        "_",
                                        "=",
                                        "<",
                                        "\\le",
                                        "\\cup",
                                        "\\pm",
                                        "%",
                                        "\\text{ cm}",
                                        "10",
                                        "0.5",
                                        "!",
                                        "|",
                                        "n",
                                        "\\infty",
                                        ":",
                                        "and",
                                        "\\begin{pmatrix}",
                                        "\\end{pmatrix}",
                                        "&",
                                        "\\\\",
                                        "\\sum_{k=1}^{3}",
                                        "k",
                                        "\\binom",
                                        "\\ln",
                                        "^\\circ",
                                        "A",
                                        "(B)",
                                        "\\mathbb{R}",
                                        "\\in",
                                        "1000",
                                        "\\arcsin"};
    unsigned seed = 12345;
    double t0 = proc_now();

    for (int i = 0; i < 40000; i++) {
        char s[2][400] = {"", ""};
        for (int side = 0; side < 2; side++) {
            int n = (int)((seed = seed * 1664525u + 1013904223u) >> 16) % 14 + 1;
            for (int k = 0; k < n; k++) {
                seed = seed * 1664525u + 1013904223u;
                strcat(s[side], words[(seed >> 12) % (sizeof words / sizeof *words)]);
            }
        }
        soon(s[0], s[1]);
        if (i % 16 == 0 && s[0][strspn(s[0], " ,$.")]) {
            verdict_is(s[0], s[0], 1);
        }
        if (proc_now() - t0 > 60) {
            break;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers),     cmocka_unit_test(test_units),
        cmocka_unit_test(test_formulas),    cmocka_unit_test(test_structures),
        cmocka_unit_test(test_unknown),     cmocka_unit_test(test_reasons),
        cmocka_unit_test(test_answer),      cmocka_unit_test(test_pathological),
        cmocka_unit_test(test_random_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
