/* Chat rendering. With --render the program is a filter for tests/live/template_parity.py: JSON
 * lines in {"template_path", "messages", "tools", "kwargs", "add_generation_prompt", "bos", "eos"}
 * ("template" may give the text itself), JSON lines out {"text"} or {"error", "status"}. */
#include "support.h"

#include <jansson.h>

#include "base/fsio.h"
#include "base/mem.h"
#include "text/chat.h"

static json_t *render_line(const json_t *in)
{
    const char *path = json_string_value(json_object_get(in, "template_path"));
    const char *tmpl = json_string_value(json_object_get(in, "template"));
    const json_t *tools = json_object_get(in, "tools");
    char *file = NULL, *text = NULL;
    size_t len = 0;
    struct err e = {0};
    json_t *out;
    int rc = 0;

    if (path) {
        rc = fsio_read(path, 1 << 24, &file, &len, &e);
        tmpl = file;
    }
    if (rc == 0) {
        rc =
            chat_render(tmpl, json_object_get(in, "messages"), tools, json_object_get(in, "kwargs"),
                        json_is_true(json_object_get(in, "add_generation_prompt")),
                        json_string_value(json_object_get(in, "bos")),
                        json_string_value(json_object_get(in, "eos")), &text, &len, &e);
    }
    if (rc == 0) {
        out = json_pack("{s:o}", "text", json_stringn(text, len));
    } else {
        out = json_pack("{s:s, s:s}", "error", e.msg, "status", status_name(rc));
    }
    mem_free(text);
    mem_free(file);
    return out;
}

static int render_filter(void)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;

    while ((n = getline(&line, &cap, stdin)) > 0) {
        json_error_t je;
        json_t *in = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, &je), *out;
        if (!in) {
            fprintf(stderr, "bad line: %s\n", je.text);
            free(line);
            return 2;
        }
        out = render_line(in);
        json_decref(in);
        if (!out) {
            fprintf(stderr, "a result cannot be written as JSON\n");
            free(line);
            return 2;
        }
        json_dumpf(out, stdout, JSON_COMPACT | JSON_ENSURE_ASCII);
        putchar('\n');
        json_decref(out);
    }
    free(line);
    return 0;
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
    size_t i, texts = 0;

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
            texts++;
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
    assert_ok(chat(all, "[]", "{\"eos_token\": \"E\", \"documents\": []}", 0, &text, &e), &e);
    assert_string_equal(text, "0|True|False|False||E|");
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
    json_t *array = json_array(), *object = json_object();
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
    assert_null(text);
    assert_ok(chat_render("a", array, NULL, NULL, 0, NULL, NULL, &text, NULL, &e), &e);
    assert_string_equal(text, "a");
    mem_free(text);
    json_decref(array);
    json_decref(object);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_variables),
        cmocka_unit_test(test_chatml),
        cmocka_unit_test(test_bad_input),
        cmocka_unit_test(test_golden),
    };

    if (argc > 1 && strcmp(argv[1], "--render") == 0) {
        return render_filter();
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
