/* From data rows to tokens: texts, messages, and that nothing is handed out with an error. */
#include "fakeport.h"

#include "base/thread.h"
#include "model/wfile.h"
#include "text/chat.h"

static struct err e;

static const char chat[] = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }}{% endfor %}";

static void expect(const struct promptenc *p, const char *json, const int32_t *want, int n)
{
    json_t *j = json_loads(json, JSON_DECODE_ANY, NULL);
    int32_t *ids = NULL;
    int got = -1;
    assert_non_null(j);
    assert_ok(promptenc_encode(p, j, NULL, &ids, &got, &e), &e);
    assert_int_equal(got, n);
    assert_memory_equal(ids, want, 4 * (size_t)n);
    mem_free(ids);
    json_decref(j);
}

static void refused(const struct promptenc *p, const char *json, const char *why)
{
    json_t *j = json_loads(json, JSON_DECODE_ANY, NULL);
    int32_t *ids = (int32_t *)8;
    int n = 77;
    assert_non_null(j);
    memset(&e, 0, sizeof e);
    assert_int_equal(promptenc_encode(p, j, NULL, &ids, &n, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, why));
    assert_true(ids == (int32_t *)8 && n == 77); /* the caller frees nothing */
    json_decref(j);
}

static void texts(void **state)
{
    struct promptenc p = {.tok = fakeport_tokenizer()};
    (void)state;
    expect(&p, "\"ab 7\"", (int32_t[]){10, 11, 36, 7}, 4);
    expect(&p, "\"a<end>\"", (int32_t[]){10, 37}, 2);
    refused(&p, "\"\"", "0 tokens");
    refused(&p, "[{\"role\": \"user\", \"content\": \"a\"}]", "--apply-chat-template");
    refused(&p, "7", "--apply-chat-template");
    promptenc_close(&p);
    promptenc_close(&p);
}

static void messages(void **state)
{
    struct promptenc p = {.tok = fakeport_tokenizer(), .apply = 1};
    (void)state;
    assert_ok(chat_template_new(chat, &p.chat, &e), &e);
    expect(&p, "[{\"role\": \"b\", \"content\": \"1\"}]", (int32_t[]){11, 36, 1}, 3);
    expect(&p, "\"1\"", (int32_t[]){30, 28, 14, 27, 36, 1}, 6); /* a user's message */
    refused(&p, "[]", "");
    promptenc_close(&p);
}

struct many {
    struct promptenc p;
    json_t *prompt[64];
    int want[64];
    _Atomic int wrong;
};

static void many_task(void *arg, int task, int worker)
{
    struct many *m = arg;
    int32_t *ids;
    int n, k = task % 64;
    (void)worker;
    if (promptenc_encode(&m->p, m->prompt[k], NULL, &ids, &n, NULL) != 0) {
        m->wrong++;
        return;
    }
    m->wrong += n != m->want[k];
    mem_free(ids);
}

/* Data files are measured with several threads at one encoder. */
static void threads(void **state)
{
    static struct many m;
    json_t *kwargs = json_pack("{s:s}", "extra", "7 7");
    struct pool *pool = pool_new(4);
    (void)state;
    m.p = (struct promptenc){.tok = fakeport_tokenizer(), .apply = 1, .kwargs = kwargs};
    assert_ok(chat_template_new("{{ extra }}{% for m in messages %}{{ m.content }}{% endfor %}",
                                &m.p.chat, &e),
              &e);
    for (int i = 0; i < 64; i++) {
        char text[80];
        memset(text, 'a' + i % 26, sizeof text);
        text[i + 1] = 0;
        m.prompt[i] = json_string(text);
        m.want[i] = 3 + i + 1;
    }
    pool_run(pool, many_task, &m, 4000);
    assert_int_equal(m.wrong, 0);
    pool_free(pool);
    for (int i = 0; i < 64; i++) {
        json_decref(m.prompt[i]);
    }
    promptenc_close(&m.p);
    json_decref(kwargs);
}

/* A folder without weights: special tokens by name, and the template for tools where there is one.
 */
static void opens(void **state)
{
    char dir[] = "/tmp/miles-test-promptenc-XXXXXX", *file;
    static const char text[] = /* with the model_max_length that transformers writes */
        "{\"bos_token\": null, \"eos_token\": {\"content\": \"<end>\"}, \"model_max_length\": "
        "1000000000000000019884624838656, \"chat_template\": [{\"name\": \"default\", "
        "\"template\": \"plain {{ eos_token }}{{ 1 if bos_token is defined else 0 }}\"}, "
        "{\"name\": \"tool_use\", \"template\": \"tools {{ tools|length }} {{ x }}\"}]}";
    json_t *kwargs = json_pack("{s:i}", "x", 7), *prompt = json_string("hi"),
           *tools = json_pack("[{}]");
    char *got;
    struct buf tok;
    struct promptenc p;
    struct wfile *w;
    int32_t *ids;
    int n;
    (void)state;

    assert_non_null(mkdtemp(dir));
    file = fsio_join(dir, "tokenizer.json");
    assert_int_equal(wfile_open_texts(dir, &w, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "no tokenizer.json"));
    fakeport_tokenizer_json(&tok);
    assert_ok(fsio_write_atomic(file, tok.data, tok.len, &e), &e);
    mem_free(file);
    file = fsio_join(dir, "tokenizer_config.json");
    assert_ok(fsio_write_atomic(file, text, strlen(text), &e), &e);
    assert_ok(wfile_open_texts(dir, &w, &e), &e);
    assert_ok(promptenc_open(&p, w, NULL, 1, kwargs, &e), &e);
    assert_string_equal(p.eos, "<end>");
    assert_null(p.bos);
    for (int i = 0; i < 2; i++) {
        assert_ok(promptenc_encode(&p, prompt, i ? tools : NULL, &ids, &n, &e), &e);
        assert_ok(promptenc_decode(&p, ids, n, 0, &got, &e), &e);
        assert_string_equal(got, i ? "tools 1 7" : "plain <end>0");
        mem_free(ids);
        mem_free(got);
    }
    promptenc_close(&p);
    assert_int_equal(promptenc_open(&p, w, file, 1, NULL, &e), STATUS_OK); /* any text will do */
    promptenc_close(&p);
    assert_ok(fsio_write_atomic(file, "{% if %}", 8, &e), &e);
    assert_int_equal(promptenc_open(&p, w, file, 1, NULL, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "tokenizer_config.json: template line 1"));
    wfile_close(w);
    mem_free(file);
    buf_fini(&tok);
    json_decref(kwargs);
    json_decref(prompt);
    json_decref(tools);
    assert_ok(fsio_remove_tree(dir, &e), &e);
}

static void decodes(void **state)
{
    struct promptenc p = {.tok = fakeport_tokenizer()};
    static const int32_t ids[] = {10, 36, 9, 37};
    char *text = NULL;
    (void)state;
    assert_ok(promptenc_decode(&p, ids, 4, 0, &text, &e), &e);
    assert_string_equal(text, "a 9<end>");
    mem_free(text);
    assert_ok(promptenc_decode(&p, ids, 4, 1, &text, &e), &e);
    assert_string_equal(text, "a 9");
    mem_free(text);
    assert_ok(promptenc_decode(&p, ids, 0, 1, &text, &e), &e);
    assert_string_equal(text, "");
    mem_free(text);
    promptenc_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts), cmocka_unit_test(messages), cmocka_unit_test(threads),
        cmocka_unit_test(opens), cmocka_unit_test(decodes),
    };
    return cmocka_run_group_tests(tests, fakeport_setup, fakeport_teardown);
}
