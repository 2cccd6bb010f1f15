/* Chat rendering. With --render the program is a filter for tests/live/templates.py. Lines in:
 *   {"define": NAME, "template": TEXT}  or  {"define": NAME, "messages", "tools", "kwargs",
 *   "documents", "special", "add_generation_prompt", "continue", "now"}  name what is used later;
 *   {"render": [TEMPLATE_NAME, CHAT_NAME]}  or one object of the above with "template" or
 *   "template_path" renders. Lines out, one a render: {"text", "spans"} or {"error", "status"}. */
#include "support.h"

#include <jansson.h>

#include "base/fsio.h"
#include "base/mem.h"
#include "text/chat.h"
#include "text/jinja.h"

static json_t *render(const struct chat_template *t, const json_t *in)
{
    struct chat_opts o = {
        .tools = json_object_get(in, "tools"),
        .documents = json_object_get(in, "documents"),
        .kwargs = json_object_get(in, "kwargs"),
        .special = json_object_get(in, "special"),
        .add_generation_prompt = json_is_true(json_object_get(in, "add_generation_prompt")),
        .continue_field = json_string_value(json_object_get(in, "continue")),
        .now = json_integer_value(json_object_get(in, "now")),
    };
    struct chat_text x = {0};
    struct err e = {0};
    json_t *out, *spans = json_array();
    int rc = chat_apply(t, json_object_get(in, "messages"), &o, &x, &e);

    for (size_t i = 0; i < x.nspans; i++) {
        json_array_append_new(spans, json_pack("[ii]", (int)x.spans[i].start, (int)x.spans[i].end));
    }
    if (rc == 0) {
        out = json_pack("{s:o, s:O}", "text", json_stringn(x.text, x.len), "spans", spans);
    } else {
        out = json_pack("{s:s, s:s}", "error", e.msg, "status", status_name(rc));
    }
    json_decref(spans);
    chat_text_fini(&x);
    return out;
}

/* A render whose template is given with it. */
static json_t *render_line(const json_t *in)
{
    const char *path = json_string_value(json_object_get(in, "template_path"));
    const char *tmpl = json_string_value(json_object_get(in, "template"));
    struct chat_template *t = NULL;
    char *file = NULL;
    size_t len;
    struct err e = {0};
    json_t *out;
    int rc = 0;

    if (path) {
        rc = fsio_read(path, 1 << 24, &file, &len, &e);
        tmpl = file;
    }
    if (rc == 0) {
        rc = chat_template_new(tmpl, &t, &e);
    }
    out = rc == 0 ? render(t, in)
                  : json_pack("{s:s, s:s}", "error", e.msg, "status", status_name(rc));
    chat_template_free(t);
    mem_free(file);
    return out;
}

/* What {"define": ...} lines named: chats as they are, templates compiled when they are used. */
struct filter {
    json_t *defs;
    struct chat_template *t;
    char *name;  /* of the template compiled last */
    json_t *bad; /* why it does not compile, or NULL */
};

static json_t *filter_named(struct filter *f, const json_t *pair)
{
    const char *name = json_string_value(json_array_get(pair, 0));
    const char *chat = json_string_value(json_array_get(pair, 1));
    struct err e = {0};
    int rc;

    if (!name || !chat || !json_object_get(f->defs, name) || !json_object_get(f->defs, chat)) {
        return NULL;
    }
    if (!f->name || strcmp(f->name, name) != 0) {
        chat_template_free(f->t);
        json_decref(f->bad);
        mem_free(f->name);
        f->t = NULL;
        f->bad = NULL;
        f->name = mem_strdup(name);
        rc = chat_template_new(
            json_string_value(json_object_get(json_object_get(f->defs, name), "template")), &f->t,
            &e);
        if (rc) {
            f->bad = json_pack("{s:s, s:s}", "error", e.msg, "status", status_name(rc));
        }
    }
    return f->bad ? json_incref(f->bad) : render(f->t, json_object_get(f->defs, chat));
}

/* 0: a line was answered or taken in. */
static int filter_line(struct filter *f, const char *line, size_t n)
{
    json_error_t je;
    json_t *in = json_loadb(line, n, JSON_ALLOW_NUL, &je), *out, *pair;
    const char *name = json_string_value(json_object_get(in, "define"));

    if (!in) {
        fprintf(stderr, "bad line: %s\n", je.text);
        return 2;
    }
    if (name) {
        json_object_set(f->defs, name, in);
        json_decref(in);
        return 0;
    }
    pair = json_object_get(in, "render");
    out = pair ? filter_named(f, pair) : render_line(in);
    json_decref(in);
    if (!out) {
        fprintf(stderr, "a line names what is not there, or its result is no JSON\n");
        return 2;
    }
    json_dumpf(out, stdout, JSON_COMPACT | JSON_ENSURE_ASCII);
    putchar('\n');
    json_decref(out);
    return 0;
}

static int render_filter(void)
{
    struct filter f = {.defs = json_object()};
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    int rc = 0;

    while (rc == 0 && (n = getline(&line, &cap, stdin)) > 0) {
        rc = filter_line(&f, line, (size_t)n);
    }
    free(line);
    chat_template_free(f.t);
    json_decref(f.bad);
    json_decref(f.defs);
    mem_free(f.name);
    return rc;
}

/* ---- tests ---- */

static int chat(const char *tmpl, const char *messages, const char *kwargs, int gen, char **text,
                struct err *e)
{
    json_t *m = json_loads(messages, 0, NULL), *k = kwargs ? json_loads(kwargs, 0, NULL) : NULL;
    size_t len = 0;
    int rc;

    *text = NULL;
    memset(e, 0, sizeof *e);
    rc = chat_render(tmpl, m, NULL, k, gen, NULL, "</s>", text, &len, e);
    if (rc == 0) {
        assert_int_equal(strlen(*text), len);
    }
    json_decref(m);
    json_decref(k);
    return rc;
}

/* tests/golden/chat.json: jinja2's answers on the templates of the first model families. */
static void test_golden(void **state)
{
    json_error_t je;
    json_t *cases = json_load_file(TEST_GOLDEN_DIR "/chat.json", 0, &je), *c, *out;
    size_t i, texts = 0, marked = 0;

    (void)state;
    if (!cases) {
        fail_msg("%s:%d", je.text, je.line);
    }
    assert_true(json_array_size(cases) >= 100);
    json_array_foreach(cases, i, c)
    {
        char rel[256];
        const char *name = json_string_value(json_object_get(c, "template"));
        const char *want = json_string_value(json_object_get(c, "text"));
        snprintf(rel, sizeof rel, "templates/%s", name);
        json_object_set_new(c, "template_path", json_string(support_data(rel)));
        out = render_line(c);
        if (want) {
            const char *got = json_string_value(json_object_get(out, "text"));
            const json_t *spans = json_object_get(c, "spans");
            texts++;
            if (spans && !json_equal(spans, json_object_get(out, "spans"))) {
                fail_msg("%s, %s: generation marks", name,
                         json_string_value(json_object_get(c, "name")));
            }
            marked += spans != NULL;
            if (!got || strcmp(got, want) != 0) {
                fail_msg("%s, %s\n  gave   %s\n  wanted %s", name,
                         json_string_value(json_object_get(c, "name")),
                         got ? got : json_string_value(json_object_get(out, "error")), want);
            }
        } else {
            const char *raised = json_string_value(json_object_get(c, "raised"));
            const char *error = json_string_value(json_object_get(out, "error"));
            assert_non_null(error);
            if (raised) {
                assert_string_equal(error, raised);
            }
        }
        json_decref(out);
    }
    assert_true(texts >= 80);
    assert_true(marked >= 5);
    json_decref(cases);
}

/* What every template may count on, whatever the caller gives. */
static void test_variables(void **state)
{
    static const char all[] = "{{ messages|length }}|{{ tools is none }}|{{ documents is none }}|"
                              "{{ add_generation_prompt }}|{{ bos_token }}|{{ eos_token }}|{{ x }}";
    struct err e;
    char *text;

    (void)state;
    assert_ok(chat(all, "[{}]", "{\"x\": [1, \"a\"]}", 1, &text, &e), &e);
    assert_string_equal(text, "1|True|True|True||</s>|[1, 'a']");
    mem_free(text);
    assert_ok(chat(all, "[{}, {}]", "{\"eos_token\": \"E\", \"documents\": []}", 0, &text, &e), &e);
    assert_string_equal(text, "2|True|False|False||E|");
    mem_free(text);
    /* a token that the model does not have is undefined, and the template is told so */
    assert_ok(
        chat("{{ bos_token is defined }}{{ eos_token is defined }}", "[{}]", NULL, 0, &text, &e),
        &e);
    assert_string_equal(text, "FalseTrue");
    mem_free(text);
}

static void test_chatml(void **state)
{
    static const char tmpl[] =
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
        "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
        "{{ '<|im_start|>assistant\n' }}{% endif %}";
    struct err e;
    char *text;

    (void)state;
    assert_ok(chat(tmpl,
                   "[{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": \"assistant\", "
                   "\"content\": \"yo\"}]",
                   NULL, 1, &text, &e),
              &e);
    assert_string_equal(text,
                        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyo<|im_end|>\n"
                        "<|im_start|>assistant\n");
    mem_free(text);
    /* a message without content: adding undefined is an error that names it */
    assert_int_equal(chat(tmpl, "[{\"role\": \"user\"}]", NULL, 1, &text, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "has no attribute 'content'"));
    assert_null(text);
}

static void test_bad_input(void **state)
{
    json_t *array = json_pack("[{}]"), *object = json_object(), *empty = json_array();
    struct err e = {0};
    char *text = NULL;
    size_t len;

    (void)state;
    assert_int_equal(chat_render(NULL, array, NULL, NULL, 0, NULL, NULL, &text, &len, &e),
                     STATUS_INPUT);
    assert_int_equal(chat_render("", object, NULL, NULL, 0, NULL, NULL, &text, &len, &e),
                     STATUS_INPUT);
    assert_int_equal(chat_render("", NULL, NULL, NULL, 0, NULL, NULL, &text, &len, &e),
                     STATUS_INPUT);
    assert_int_equal(chat_render("", array, object, NULL, 0, NULL, NULL, &text, &len, &e),
                     STATUS_INPUT);
    assert_int_equal(chat_render("", array, NULL, array, 0, NULL, NULL, &text, &len, &e),
                     STATUS_INPUT);
    assert_int_equal(chat_render("", array, NULL, NULL, 0, "\xff", NULL, &text, &len, &e),
                     STATUS_INPUT);
    assert_non_null(strstr(e.msg, "bos_token"));
    json_object_set_new(object, "messages", json_array());
    assert_int_equal(chat_render("", array, NULL, object, 0, NULL, NULL, &text, &len, &e),
                     STATUS_INPUT);
    assert_non_null(strstr(e.msg, "messages is given twice"));
    assert_int_equal(chat_render("", empty, NULL, NULL, 0, NULL, NULL, &text, &len, &e),
                     STATUS_INPUT);
    assert_non_null(strstr(e.msg, "at least one message"));
    assert_null(text);
    assert_ok(chat_render("a", array, NULL, NULL, 0, NULL, NULL, &text, NULL, &e), &e);
    assert_string_equal(text, "a");
    mem_free(text);
    json_decref(array);
    json_decref(object);
    json_decref(empty);
}

/* What apply_chat_template takes for itself is never a variable by accident. */
static void test_kwargs(void **state)
{
    struct err e;
    char *text;

    (void)state;
    assert_int_equal(chat("", "[{}]", "{\"chat_template\": \"x\"}", 0, &text, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "--chat-template-path"));
    assert_int_equal(chat("", "[{}]", "{\"padding\": true}", 0, &text, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "padding"));
    assert_int_equal(chat("", "[{}]", "{\"tokenize\": true}", 0, &text, &e), STATUS_INPUT);
    assert_int_equal(chat("", "[{}]", "{\"documents\": [1]}", 0, &text, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "documents[0]"));
    assert_int_equal(chat("", "[3]", NULL, 0, &text, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "messages[0]"));
    assert_ok(chat("{{ messages[0].content }}!", "[{\"content\": \"ab \"}]",
                   "{\"continue_final_message\": true}", 0, &text, &e),
              &e);
    assert_string_equal(text, "ab ");
    mem_free(text);
    assert_int_equal(chat("{{ messages[0].content }}", "[{\"content\": \"ab \"}]",
                          "{\"continue_final_message\": true}", 1, &text, &e),
                     STATUS_INPUT);
    assert_int_equal(chat("{{ messages[0].content[:1] }}", "[{\"content\": \"ab\"}]",
                          "{\"continue_final_message\": true}", 0, &text, &e),
                     STATUS_INPUT);
    assert_non_null(strstr(e.msg, "drops or changes"));
}

static void test_special_tokens(void **state)
{
    json_t *cfg = json_loads("{\"bos_token\": null, \"eos_token\": {\"content\": \"</s>\"}, "
                             "\"pad_token\": \"<p>\", \"add_bos_token\": true, \"_token\": \"x\", "
                             "\"extra_special_tokens\": {\"image_token\": \"<i>\"}}",
                             0, NULL);
    json_t *want = json_loads("{\"eos_token\": \"</s>\", \"pad_token\": \"<p>\", "
                              "\"image_token\": \"<i>\"}",
                              0, NULL);
    json_t *got = chat_special_tokens(cfg), *none = chat_special_tokens(NULL);

    (void)state;
    assert_true(json_equal(got, want));
    assert_int_equal(json_object_size(none), 0);
    json_decref(cfg);
    json_decref(want);
    json_decref(got);
    json_decref(none);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_variables),      cmocka_unit_test(test_chatml),
        cmocka_unit_test(test_bad_input),      cmocka_unit_test(test_kwargs),
        cmocka_unit_test(test_special_tokens), cmocka_unit_test(test_golden),
    };

    setenv("TZ", "UTC", 1);
    if (argc > 1 && strcmp(argv[1], "--render") == 0) {
        return render_filter();
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
