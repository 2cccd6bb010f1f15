/* The template interpreter: jinja2's own answers on small templates
 * (tests/golden/jinja_snippets.json, written by tests/live/templates.py --golden), bounds on
 * hostile templates, damaged input. */
#include "support.h"

#include <jansson.h>
#include <pthread.h>

#include "base/buf.h"
#include "text/jinja.h"

/* Renders with the variables in `vars` (JSON text, NULL for none); the text is in `out`. */
static int render(const char *tmpl, const char *vars, struct buf *out, struct err *e)
{
    struct jinja *j = NULL;
    json_t *v = vars ? json_loads(vars, 0, NULL) : NULL;
    int rc;

    memset(e, 0, sizeof *e);
    assert_true(!vars || v);
    buf_init(out, 1 << 27);
    rc = jinja_compile(tmpl, &j, e);
    if (rc == 0) {
        rc = jinja_render(j, v, out, e);
    }
    jinja_free(j);
    json_decref(v);
    return rc;
}

static void expect_text(const char *tmpl, const char *vars, const char *want)
{
    struct buf out;
    struct err e;

    assert_ok(render(tmpl, vars, &out, &e), &e);
    assert_string_equal(out.data, want);
    buf_fini(&out);
}

/* Fails with `code` (0: whichever), and the message holds `words`. */
static void expect_error(const char *tmpl, const char *vars, int code, const char *words)
{
    struct buf out;
    struct err e;

    int rc = render(tmpl, vars, &out, &e);
    if (rc >= 0 || (code && rc != code) || e.code != rc || !strstr(e.msg, words)) {
        fail_msg("%s\n  gave %d '%s', wanted %d '%s'", tmpl, rc, e.msg, code, words);
    }
    assert_int_equal(out.len, 0);
    buf_fini(&out);
}

static void golden_one(const json_t *c, const json_t *vars, int64_t now)
{
    const char *tmpl = json_string_value(json_object_get(c, "template"));
    const json_t *text = json_object_get(c, "text"), *raised = json_object_get(c, "raised");
    struct jinja *j = NULL;
    struct buf out;
    struct err e = {0};
    int rc;

    buf_init(&out, 1 << 20);
    rc = jinja_compile(tmpl, &j, &e);
    if (rc == 0) {
        rc = jinja_render_opts(j, vars, &(struct jinja_opts){.now = now}, &out, &e);
    }
    if (text) {
        if (rc) {
            fail_msg("%s\n  failed: %s", tmpl, e.msg);
        }
        if (out.len != json_string_length(text) ||
            memcmp(out.data, json_string_value(text), out.len) != 0) {
            fail_msg("%s\n  gave   %s\n  wanted %s", tmpl, out.data, json_string_value(text));
        }
    } else {
        if (rc >= 0) {
            fail_msg("%s\n  gave %s where jinja2 fails", tmpl, out.data);
        }
        assert_true(e.msg[0] != 0);
        if (raised) {
            assert_int_equal(rc, STATUS_INPUT);
            assert_string_equal(e.msg, json_string_value(raised));
        }
    }
    jinja_free(j);
    buf_fini(&out);
}

static void test_golden(void **state)
{
    json_error_t je;
    json_t *root = json_load_file(TEST_GOLDEN_DIR "/jinja_snippets.json", 0, &je);
    json_t *vars = json_object_get(root, "vars"), *cases = json_object_get(root, "cases"), *c;
    size_t i;

    (void)state;
    if (!root) {
        fail_msg("%s:%d", je.text, je.line);
    }
    /* the script passes these beside its variables */
    json_object_set_new(vars, "messages",
                        json_pack("[{s:s, s:s}]", "role", "user", "content", "x"));
    assert_true(json_array_size(cases) > 250);
    json_array_foreach(cases, i, c)
    {
        golden_one(c, vars, json_integer_value(json_object_get(root, "now")));
    }
    json_decref(root);
}

static void test_errors_name_line_and_cause(void **state)
{
    (void)state;
    expect_error("a\nb\n{{ x.y }}", NULL, STATUS_INPUT, "line 3: 'x' is undefined");
    expect_error("{{ d.x.y }}", "{\"d\": {}}", STATUS_INPUT, "'dict object' has no attribute 'x'");
    expect_error("{% if x %}", NULL, STATUS_INPUT, "end of the template");
    expect_error("\n{% fi %}", NULL, STATUS_INPUT, "line 2: unknown or misplaced tag 'fi'");
    expect_error("{% include 'x' %}", NULL, STATUS_UNSUPPORTED, "'include'");
    expect_error("{% import 'x' as y %}", NULL, STATUS_UNSUPPORTED, "'import'");
    expect_error("{% extends 'x' %}", NULL, STATUS_UNSUPPORTED, "'extends'");
    expect_error("{% block x %}{% endblock %}", NULL, STATUS_UNSUPPORTED, "'block'");
    expect_error("{{ raise_exception('no: ' ~ 5) }}", NULL, STATUS_INPUT, "no: 5");
    expect_error("{{ 'a'|frobnicate }}", NULL, STATUS_INPUT, "no filter named 'frobnicate'");
    expect_error("{{ [].append(1) }}", NULL, STATUS_INPUT, "unsafe");
    expect_error("{{ 'a'.translate({}) }}", NULL, STATUS_UNSUPPORTED, "'translate'");
    expect_error("{{ 9223372036854775807 + 1 }}", NULL, STATUS_UNSUPPORTED, "64 bits");
    expect_error("{{ 3037000500 * 3037000500 }}", NULL, STATUS_UNSUPPORTED, "64 bits");
    expect_error("{{ -9223372036854775807 - 2 }}", NULL, STATUS_UNSUPPORTED, "64 bits");
    expect_error("{{ 2 ** 63 }}", NULL, STATUS_UNSUPPORTED, "64 bits");
    expect_error("a\xff", NULL, STATUS_INPUT, "UTF-8");
}

static void test_raise_message_is_alone(void **state)
{
    struct buf out;
    struct err e;

    (void)state;
    assert_int_equal(render("x{{ raise_exception('Only user roles!') }}", NULL, &out, &e),
                     STATUS_INPUT);
    assert_string_equal(e.msg, "Only user roles!");
    assert_int_equal(out.len, 0);
    buf_fini(&out);
}

/* Templates that would run for ever, eat the memory or the stack. */
static void test_bounds(void **state)
{
    (void)state;
    expect_error("{% for i in range(10**12) %}{% endfor %}", NULL, STATUS_INPUT, "Range too big");
    expect_error("{% set r = range(99999) %}{% for i in r %}{% for k in r %}{% set x = k %}"
                 "{% endfor %}{% endfor %}",
                 NULL, STATUS_INPUT, "steps");
    expect_error("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}", NULL, STATUS_INPUT,
                 "recurses too deeply");
    expect_error("{{ 'x' * 10**9 }}", NULL, STATUS_NOMEM, "64 MiB");
    expect_error("{{ [1] * 10**9 }}", NULL, STATUS_NOMEM, "too long");
    expect_error("{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s "
                 "%}{% endfor %}",
                 NULL, STATUS_NOMEM, "64 MiB");
    expect_error("{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s "
                 "%}{% endfor %}",
                 NULL, 0, "");
    expect_error("{% set ns = namespace(s=[]) %}{% for i in range(9999) %}{% set ns.s = [ns.s] "
                 "%}{% endfor %}{{ ns.s }}",
                 NULL, STATUS_INPUT, "nested too deeply");
    expect_error("{% set ns = namespace(s=[]) %}{% for i in range(9999) %}{% set ns.s = [ns.s] "
                 "%}{% endfor %}{{ ns.s == ns.s }}",
                 NULL, STATUS_INPUT, "nested too deeply");
    expect_error("{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}", NULL, STATUS_INPUT,
                 "nested too deeply");
    expect_error("{{ 'a'.center(10**15) }}", NULL, STATUS_NOMEM, "");
    expect_error("{{ '%0999999999d' % 1 }}", NULL, STATUS_INPUT, "too large");
    expect_error("{{ '{:>999999999}'.format(1) }}", NULL, STATUS_INPUT, "too large");
    expect_error("{{ {}|tojson(indent=10**15) }}", NULL, STATUS_NOMEM, "");
    expect_error("{% set x = 'a' * 60000000 %}{{ x }}{{ x }}", NULL, STATUS_NOMEM, "64 MiB");
    expect_error("{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}", NULL, STATUS_INPUT,
                 "recurses too deeply");
}

static void nest(struct buf *b, const char *open, const char *mid, const char *close, int n)
{
    int i;

    buf_init(b, 1 << 24);
    buf_str(b, "{{ ");
    for (i = 0; i < n; i++) {
        buf_str(b, open);
    }
    buf_str(b, mid);
    for (i = 0; i < n; i++) {
        buf_str(b, close);
    }
    buf_str(b, " }}");
}

/* Long but flat sources stay linear in time and memory: each ends within the test's time-out. */
static void test_wide_source(void **state)
{
    static const char *const parts[][3] = {
        {"{{ f(", "a=1,", ") }}"},
        {"{{ ", "'a' ", "}}"},
        {"{{ [", "1,", "] }}"},
        {"{{ dict(", "a=1,", ") }}"},
        {"", "{{a}}", ""},
        {"", "{%set a=1%}", ""},
        {"{{ 1", "~1", " }}"},
        {"", "{#", "#}"},
        {"{% if 0 %}", "{% elif 0 %}", "{% endif %}"},
        {"{% macro m(x) %}", "{% set y = x %}", "{% endmacro %}"},
        {"{{ 1", " < 1", " }}"}};
    struct buf b, out;
    struct err e;
    size_t i;

    (void)state;
    for (i = 0; i < sizeof parts / sizeof *parts; i++) {
        int rc;
        buf_init(&b, 1 << 20);
        buf_str(&b, parts[i][0]);
        while (b.len < 1000000) {
            buf_str(&b, parts[i][1]);
        }
        buf_str(&b, parts[i][2]);
        rc = render(b.data, NULL, &out, &e);
        assert_true(rc == 0 || (rc < 0 && e.msg[0]));
        buf_fini(&out);
        buf_fini(&b);
    }
    buf_init(&b, 1 << 22);
    while (b.len <= JINJA_MAX_SOURCE) {
        buf_str(&b, "abcdefghij");
    }
    assert_int_equal(render(b.data, NULL, &out, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "at most"));
    buf_fini(&out);
    buf_fini(&b);
    /* many different names in one scope */
    buf_init(&b, 1 << 20);
    for (i = 0; i < 30000; i++) {
        buf_printf(&b, "{%% set v%zu = 1 %%}{{ v%zu }}", i, i);
    }
    assert_int_equal(render(b.data, NULL, &out, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "steps"));
    buf_fini(&out);
    buf_fini(&b);
}

static void test_deep_source(void **state)
{
    static const char *const kinds[][3] = {
        {"(", "1", ")"},           {"[", "1", "]"},
        {"{1:", "1", "}"},         {"-", "1", ""},
        {"not ", "1", ""},         {"1 + ", "1", ""},
        {"", "x", ".y"},           {"", "1", "|abs"},
        {"a(", "1", ")"},          {"1 if ", "1", ""},
        {"", "1", "[0]"},          {"", "f", "()"},
        {"1 and ", "1", ""},       {"x is defined or ", "1", ""},
        {"1 if 1 else ", "1", ""},
    };
    struct buf b, s;
    struct err e;
    size_t i;

    (void)state;
    for (i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct buf out;
        nest(&b, kinds[i][0], kinds[i][1], kinds[i][2], 60000);
        assert_int_equal(render(b.data, NULL, &out, &e), STATUS_INPUT);
        assert_true(strstr(e.msg, "deep") || strstr(e.msg, "long"));
        buf_fini(&out);
        buf_fini(&b);
    }
    buf_init(&s, 1 << 24);
    for (i = 0; i < 100000; i++) {
        buf_str(&s, "{% if 1 %}");
    }
    assert_int_equal(render(s.data, NULL, &b, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "nested too deeply"));
    buf_fini(&b);
    buf_fini(&s);
}

/* Appending in a loop is linear: a quadratic copy would need far more than the memory ceiling. */
static void test_append_is_linear(void **state)
{
    struct buf out;
    struct err e;

    (void)state;
    assert_ok(
        render("{% set ns = namespace(s='', l=[]) %}{% for i in range(20000) %}"
               "{% set ns.s = ns.s + 'abcdefghij' * 10 %}{% set ns.l = ns.l + [i] %}"
               "{% endfor %}{{ ns.s|length }} {{ ns.l|length }} {{ ns.s[-3:] }} {{ ns.l[-1] }}",
               NULL, &out, &e),
        &e);
    assert_string_equal(out.data, "2000000 20000 hij 19999");
    buf_fini(&out);
    /* the shared tail must not leak between two appends to the same prefix */
    expect_text(
        "{% set a = 'x' + 'y' %}{% set b = a + '1' %}{% set c = a + '2' %}{% set d = b + '3' "
        "%}{{ a }} {{ b }} {{ c }} {{ d }}{% set l = [1] + [2] %}{% set m = l + [3] %}{% set n "
        "= l + [4] %} {{ l }} {{ m }} {{ n }}",
        NULL, "xy xy1 xy2 xy13 [1, 2] [1, 2, 3] [1, 2, 4]");
}

static void test_variables(void **state)
{
    struct buf out;
    struct err e = {0};
    struct jinja *j;
    json_t *bad = json_array();

    (void)state;
    expect_text("{{ a }}{{ b.c[1] }}{{ x is defined }}",
                "{\"a\": 1, \"b\": {\"c\": [0, \"\\u00e9\"]}}",
                "1\xc3\xa9"
                "False");
    expect_text("{{ range }}", "{\"range\": \"mine\"}", "mine");
    assert_ok(jinja_compile("{{ a }}", &j, &e), &e);
    buf_init(&out, 100);
    assert_int_equal(jinja_render(j, bad, &out, &e), STATUS_INPUT);
    assert_ok(jinja_render(j, NULL, &out, &e), &e);
    assert_int_equal(out.len, 0);
    jinja_free(j);
    /* a buffer that is too small: an error, not a cut text */
    assert_ok(jinja_compile("{{ 'x' * 101 }}", &j, &e), &e);
    assert_int_equal(jinja_render(j, NULL, &out, &e), STATUS_NOMEM);
    assert_int_equal(out.len, 0);
    jinja_free(j);
    jinja_free(NULL);
    json_decref(bad);
    buf_fini(&out);
}

static void test_deep_variables(void **state)
{
    json_t *v = json_object(), *inner = json_array();
    struct jinja *j;
    struct buf out;
    struct err e = {0};
    int i;

    (void)state;
    for (i = 0; i < 1000; i++) {
        json_t *outer = json_array();
        json_array_append_new(outer, inner);
        inner = outer;
    }
    json_object_set_new(v, "x", inner);
    buf_init(&out, 1000);
    assert_ok(jinja_compile("{{ 1 }}", &j, &e), &e);
    assert_int_equal(jinja_render(j, v, &out, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "nested more than"));
    jinja_free(j);
    buf_fini(&out);
    json_decref(v);
}

struct job {
    const struct jinja *j;
    int ok;
};

static void *render_many(void *arg)
{
    struct job *job = arg;
    int i;

    job->ok = 1;
    for (i = 0; i < 200; i++) {
        struct buf out;
        buf_init(&out, 1000);
        job->ok &= jinja_render(job->j, NULL, &out, NULL) == 0 &&
                   strcmp(out.data, "n\xc3\xafve 5 \xc3\xaf 0,1,2,") == 0;
        buf_fini(&out);
    }
    return NULL;
}

/* One compiled template, several threads. */
static void test_threads(void **state)
{
    struct jinja *j;
    struct err e = {0};
    struct job jobs[4];
    pthread_t t[4];
    int i;

    (void)state;
    assert_ok(
        jinja_compile("{% set s = 'n\xc3\xafve' %}{{ s }} {{ 'abcd\xc3\xaf'|length }} {{ s[1] }} "
                      "{% macro m(x) %}{{ x }},{% endmacro %}{% for i in range(3) %}{{ m(i) }}"
                      "{% endfor %}",
                      &j, &e),
        &e);
    for (i = 0; i < 4; i++) {
        jobs[i].j = j;
        assert_int_equal(pthread_create(&t[i], NULL, render_many, &jobs[i]), 0);
    }
    for (i = 0; i < 4; i++) {
        pthread_join(t[i], NULL);
        assert_true(jobs[i].ok);
    }
    jinja_free(j);
}

static uint32_t next_random(uint32_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 17;
    *s ^= *s << 5;
    return *s;
}

/* Every golden template, cut at each of some places and with bytes changed: any status may come
 * back, but a status it must be, with a message. Sanitizers see the rest. */
static void test_damaged(void **state)
{
    json_t *root = json_load_file(TEST_GOLDEN_DIR "/jinja_snippets.json", 0, NULL);
    json_t *vars = json_object_get(root, "vars"), *cases = json_object_get(root, "cases"), *c;
    static const char bits[] = "{}%#()[]|.,:~+-*/'\"\\ \n0a_<=!";
    uint32_t seed = 12345;
    size_t i, ok = 0, bad = 0;
    int k;

    (void)state;
    assert_non_null(root);
    json_array_foreach(cases, i, c)
    {
        const char *text = json_string_value(json_object_get(c, "template"));
        size_t n = strlen(text);
        for (k = 0; n && k < 12; k++) {
            char *copy = strdup(text);
            struct jinja *j = NULL;
            struct err e = {0};
            struct buf out;
            int m, rc;
            if (k % 3 == 0) {
                copy[next_random(&seed) % n] = 0;
            }
            for (m = 0; m < 1 + k / 4; m++) {
                char *at = &copy[next_random(&seed) % n];
                if (*at) {
                    *at = bits[next_random(&seed) % (sizeof bits - 1)];
                }
            }
            buf_init(&out, 1 << 20);
            rc = jinja_compile(copy, &j, &e);
            if (rc == 0) {
                rc = jinja_render(j, vars, &out, &e);
            }
            assert_true(rc <= 0);
            assert_true(rc == 0 || e.code == rc);
            ok += rc == 0;
            bad += rc != 0;
            jinja_free(j);
            buf_fini(&out);
            free(copy);
        }
    }
    assert_true(ok > 100 && bad > 1000); /* the damage is neither void nor total */
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_errors_name_line_and_cause),
        cmocka_unit_test(test_raise_message_is_alone),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_deep_source),
        cmocka_unit_test(test_wide_source),
        cmocka_unit_test(test_append_is_linear),
        cmocka_unit_test(test_variables),
        cmocka_unit_test(test_deep_variables),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_damaged),
    };
    setenv("TZ", "UTC", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
