/* OpenAI's API through real sockets: chats and completions, whole and streamed, log-probs, usage,
 * and errors in its shape. */
#include "serve/servekit.h"

static struct servekit kit;

static int suite_setup(void **state)
{
    struct api_opts o = {.service = {.engine = {.max_running = 8}}};
    if (servekit_setup(state) != 0) {
        return -1;
    }
    servekit_start(&kit, &o);
    return 0;
}

static int suite_teardown(void **state)
{
    servekit_stop(&kit);
    return fixture_teardown(state);
}

static json_t *choice(json_t *o, size_t i)
{
    json_t *c = json_array_get(servekit_at(o, "choices", NULL), i);
    assert_non_null(c);
    return c;
}

/* A chat is the native API's answer to its rendered prompt. */
static void test_chat(void **state)
{
    static const char prompt[] = "{\"text\":\"<s>user: hi\\n<s>assistant:\",\"sampling_params\":{"
                                 "\"max_new_tokens\":20,\"sampling_seed\":3,\"n\":2},"
                                 "\"return_logprob\":true}";
    static const char ask[] =
        "{\"model\":\"tiny\",\"messages\":[{\"role\":\"user\",\"content\":%s}],\"max_tokens\":20,"
        "\"seed\":3,\"n\":2,\"logprobs\":true,\"top_logprobs\":2}";
    char q[512];
    json_t *want = servekit_ok(&kit, "/generate", prompt), *o;
    static const char *const contents[] = {"\"hi\"", "[{\"type\":\"text\",\"text\":\"hi\"}]"};

    (void)state;
    for (int i = 0; i < 2; i++) {
        int tokens = 0;
        snprintf(q, sizeof q, ask, contents[i]);
        o = servekit_ok(&kit, "/v1/chat/completions", q);
        assert_string_equal(servekit_text(o, "object", NULL), "chat.completion");
        for (size_t k = 0; k < 2; k++) {
            json_t *c = choice(o, k), *w = json_array_get(want, k);
            json_t *lp = servekit_at(c, "logprobs", "content");
            json_t *wlp = servekit_at(w, "meta_info", "output_token_logprobs");
            assert_string_equal(servekit_text(c, "message", "content"),
                                servekit_text(w, "text", NULL));
            assert_int_equal(json_array_size(lp), json_array_size(wlp));
            tokens += (int)json_array_size(lp);
            for (size_t j = 0; j < json_array_size(lp); j++) {
                assert_true(json_real_value(servekit_at(json_array_get(lp, j), "logprob", NULL)) ==
                            json_real_value(json_array_get(json_array_get(wlp, j), 0)));
                assert_int_equal(
                    json_array_size(servekit_at(json_array_get(lp, j), "top_logprobs", NULL)), 2);
            }
        }
        assert_int_equal(json_integer_value(servekit_at(o, "usage", "completion_tokens")), tokens);
        json_decref(o);
    }
    json_decref(want);
}

/* The pieces of a stream, put together, are the whole. */
static void test_stream(void **state)
{
    static const char *const paths[] = {"/v1/chat/completions", "/v1/completions"};
    static const char *const asks[] = {
        "{\"messages\":[{\"role\":\"system\",\"content\":\"x\"},{\"role\":\"user\",\"content\":"
        "\"hello\"}],\"max_tokens\":30,\"seed\":%d%s}",
        "{\"prompt\":\"hello\",\"max_tokens\":30,\"seed\":%d,\"echo\":true%s}"};
    char q[512];

    (void)state;
    for (int i = 0; i < 2; i++) {
        for (int seed = 0; seed < 4; seed++) {
            json_t *whole, *list, *c;
            const char *want, *finish = NULL;
            struct buf b;
            buf_init(&b, 1 << 20);
            snprintf(q, sizeof q, asks[i], seed, "");
            whole = servekit_ok(&kit, paths[i], q);
            c = choice(whole, 0);
            want = i ? servekit_text(c, "text", NULL) : servekit_text(c, "message", "content");
            snprintf(q, sizeof q, asks[i], seed,
                     ",\"stream\":true,\"stream_options\":{\"include_usage\":true}");
            list = servekit_stream(&kit, paths[i], q);
            for (size_t k = 0; k < json_array_size(list); k++) {
                json_t *ev = json_array_get(list, k), *d;
                if (k + 1 == json_array_size(list)) {
                    assert_true(json_equal(servekit_at(ev, "usage", "completion_tokens"),
                                           servekit_at(whole, "usage", "completion_tokens")));
                    continue;
                }
                assert_null(finish);
                d = i ? choice(ev, 0) : servekit_at(choice(ev, 0), "delta", NULL);
                d = json_object_get(d, i ? "text" : "content");
                buf_str(&b, d ? json_string_value(d) : "");
                finish = json_string_value(servekit_at(choice(ev, 0), "finish_reason", NULL));
            }
            assert_string_equal(b.data, want);
            assert_string_equal(finish, servekit_text(c, "finish_reason", NULL));
            json_decref(whole);
            json_decref(list);
            buf_fini(&b);
        }
    }
}

static void test_completions(void **state)
{
    json_t *o = servekit_ok(&kit, "/v1/completions",
                            "{\"prompt\":[\"abc\",\"de\"],\"max_tokens\":5,\"logprobs\":2,"
                            "\"echo\":true,\"temperature\":0,\"ignore_eos\":true}");
    json_t *lp = servekit_at(choice(o, 0), "logprobs", NULL);
    const char *text = servekit_text(choice(o, 0), "text", NULL);

    (void)state;
    assert_int_equal(json_array_size(servekit_at(o, "choices", NULL)), 2);
    assert_memory_equal(text, "abc", 3);
    assert_memory_equal(servekit_text(choice(o, 1), "text", NULL), "de", 2);
    assert_int_equal(json_array_size(servekit_at(lp, "tokens", NULL)), 8);
    assert_true(json_is_null(json_array_get(servekit_at(lp, "token_logprobs", NULL), 0)));
    assert_true(json_number_value(json_array_get(servekit_at(lp, "token_logprobs", NULL), 1)) < 0);
    assert_int_equal(json_object_size(json_array_get(servekit_at(lp, "top_logprobs", NULL), 7)), 2);
    assert_int_equal(json_integer_value(servekit_at(o, "usage", "prompt_tokens")), 5);
    assert_int_equal(json_integer_value(servekit_at(o, "usage", "completion_tokens")), 10);
    json_decref(o);
    /* tokens as prompts */
    o = servekit_ok(&kit, "/v1/completions", "{\"prompt\":[5,6,7],\"max_tokens\":3}");
    assert_int_equal(json_integer_value(servekit_at(o, "usage", "prompt_tokens")), 3);
    json_decref(o);
    o = servekit_ok(&kit, "/v1/completions", "{\"prompt\":[[5,6,7],[8]],\"max_tokens\":3}");
    assert_int_equal(json_array_size(servekit_at(o, "choices", NULL)), 2);
    json_decref(o);
}

static void test_models(void **state)
{
    int status;
    json_t *o = servekit_get(&kit, "/v1/models", &status);

    (void)state;
    assert_string_equal(servekit_text(json_array_get(servekit_at(o, "data", NULL), 0), "id", NULL),
                        "tiny");
    json_decref(o);
    o = servekit_get(&kit, "/v1/models/tiny", &status);
    assert_int_equal(status, 200);
    json_decref(o);
    json_decref(servekit_get(&kit, "/v1/models/other", &status));
    assert_int_equal(status, 404);
}

#define USER "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]"

static void test_errors(void **state)
{
    static const char *const bodies[] = {
        "{\"messages\":[]}",
        "{\"messages\":\"a\"}",
        "{\"messages\":[1]}",
        "{\"messages\":[{\"content\":\"a\"}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":1}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}",
        "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{}]}]}",
        "{" USER ",\"tools\":[{}]}",
        "{" USER ",\"tools\":1}",
        "{" USER ",\"tool_choice\":\"required\"}",
        "{" USER ",\"top_logprobs\":2}",
        "{" USER ",\"logprobs\":3}",
        "{" USER ",\"input_ids\":[3]}",
        "{\"messages\":[{\"role\":\"wizard\",\"content\":\"a\"}]}",
        "{\"messages\":[{\"role\":\"user\"}]}",
        "{" USER ",\"response_format\":{\"type\":\"json_object\"}}",
        "{" USER ",\"response_format\":{}}",
        "{" USER ",\"stream_options\":3}",
        "{" USER ",\"chat_template_kwargs\":3}",
        "{" USER ",\"reasoning_effort\":\"extreme\"}",
        "{" USER ",\"reasoning_effort\":true}",
        "{" USER ",\"reasoning_effort\":1}",
        "{" USER ",\"max_tokens\":100000}",
        "{" USER ",\"rid\":\"a\\\"b\"}",
        "{" USER ",\"n\":0}",
    };
    static const char *const prompts[] = {"{}",
                                          "{\"prompt\":[]}",
                                          "{\"prompt\":5}",
                                          "{\"prompt\":[{}]}",
                                          "{\"prompt\":[[]]}",
                                          "{\"prompt\":\"a\",\"max_tokens\":0}",
                                          "{\"prompt\":\"a\",\"logprobs\":true}"};
    size_t n = sizeof bodies / sizeof *bodies;

    (void)state;
    for (size_t i = 0; i < n + sizeof prompts / sizeof *prompts; i++) {
        int status;
        json_t *o = servekit_post(&kit, i < n ? "/v1/chat/completions" : "/v1/completions",
                                  i < n ? bodies[i] : prompts[i - n], &status);
        if (status != 400) {
            fail_msg("%s: %d", i < n ? bodies[i] : prompts[i - n], status);
        }
        assert_true(strlen(servekit_text(o, "error", "message")) > 0);
        assert_int_equal(json_integer_value(servekit_at(o, "error", "code")), 400);
        json_decref(o);
    }
    /* unknown fields are nobody's error, and an answer that only called tools has no content */
    json_decref(
        servekit_ok(&kit, "/v1/chat/completions",
                    "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},"
                    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c\","
                    "\"type\":\"function\",\"function\":{\"name\":\"f\","
                    "\"arguments\":\"{}\"}}]},{\"role\":\"tool\",\"content\":\"b\"}],"
                    "\"nonsense\":3,\"max_tokens\":2}"));
    /* what comes with tools is rendered */
    json_decref(servekit_ok(&kit, "/v1/chat/completions",
                            "{" USER ",\"max_tokens\":2,\"tools\":[{\"type\":\"function\","
                            "\"function\":{\"name\":\"f\"}}]}"));
}

/* A request that ends before its prompt was read: nothing is known of the prompt's log-probs. */
static void test_aborted_echo(void **state)
{
    static const char ask[] = "{\"prompt\":\"abc\",\"echo\":true,\"logprobs\":2,\"max_tokens\":4}";
    struct service_stats st = {0};
    json_t *o, *choice, *list;
    int fd, status;

    (void)state;
    json_decref(servekit_ok(&kit, "/pause_generation", "{\"mode\":\"in_place\"}"));
    fd = servekit_ask(kit.port, "POST", "/v1/completions", ask);
    for (double end = proc_now() + 20; st.load != 1 && proc_now() < end;) {
        service_get_stats(kit.api->service, &st);
        netpeer_sleep(0.005);
    }
    json_decref(servekit_ok(&kit, "/abort_request", "{\"abort_all\":true}"));
    o = servekit_json(fd, &status);
    assert_int_equal(status, 200);
    choice = json_array_get(json_object_get(o, "choices"), 0);
    assert_string_equal(servekit_text(choice, "finish_reason", NULL), "abort");
    list = json_object_get(json_object_get(choice, "logprobs"), "token_logprobs");
    assert_int_equal(json_array_size(list), 3);
    for (size_t i = 0; i < 3; i++) {
        assert_true(json_is_null(json_array_get(list, i)));
    }
    json_decref(o);
    json_decref(servekit_ok(&kit, "/continue_generation", "{}"));
}

/* A chat that says nothing samples as the model's own configuration says; one that does is heard,
 * and completions follow OpenAI. */
static void test_defaults(void **state)
{
    static const char body[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],"
                               "\"max_tokens\":20,\"seed\":4%s}";
    static const char *const more[] = {"", ",\"temperature\":1.0,\"top_p\":1.0,\"top_k\":-1",
                                       ",\"temperature\":null",
                                       ",\"temperature\":0.25,\"top_p\":0.9,\"top_k\":7"};
    struct servekit own;
    char q[512];
    json_t *o[5];

    (void)state;
    servekit_generation = "{\"temperature\":0.25,\"top_p\":0.9,\"top_k\":7,\"min_p\":\"x\","
                          "\"do_sample\":true}";
    servekit_start(&own, NULL);
    servekit_generation = NULL;
    for (int i = 0; i < 4; i++) {
        snprintf(q, sizeof q, body, more[i]);
        o[i] = servekit_ok(&own, "/v1/chat/completions", q);
    }
    snprintf(q, sizeof q, body, "");
    o[4] = servekit_ok(&kit, "/v1/chat/completions", q);
    assert_string_equal(servekit_text(choice(o[0], 0), "message", "content"),
                        servekit_text(choice(o[3], 0), "message", "content"));
    assert_string_equal(servekit_text(choice(o[0], 0), "message", "content"),
                        servekit_text(choice(o[2], 0), "message", "content"));
    assert_string_equal(servekit_text(choice(o[1], 0), "message", "content"),
                        servekit_text(choice(o[4], 0), "message", "content"));
    assert_string_not_equal(servekit_text(choice(o[0], 0), "message", "content"),
                            servekit_text(choice(o[1], 0), "message", "content"));
    for (int i = 0; i < 5; i++) {
        json_decref(o[i]);
    }
    servekit_stop(&own);
}

/* What a reasoning_effort says reaches the template, and what the client says to it stays. */
static void test_effort(void **state)
{
    static const struct {
        const char *more, *prompt;
    } cases[] = {
        {"\"reasoning_effort\":\"none\"", "think:False,none"},
        {"\"reasoning_effort\":\"high\"", "think:True,high"},
        {"\"reasoning_effort\":0.5", "think:True,0.5"},
        {"\"reasoning_effort\":\"low\",\"chat_template_kwargs\":{\"enable_thinking\":false}",
         "think:False,low"},
        {"\"reasoning_effort\":null", ""},
    };
    char q[512];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *a, *b;
        snprintf(q, sizeof q, "{" USER ",\"max_tokens\":9,\"temperature\":0,%s}", cases[i].more);
        a = servekit_ok(&kit, "/v1/chat/completions", q);
        snprintf(q, sizeof q,
                 "{\"text\":\"<s>user: a\\n%s<s>assistant:\",\"sampling_params\":{"
                 "\"max_new_tokens\":9,\"temperature\":0}}",
                 cases[i].prompt);
        b = servekit_ok(&kit, "/generate", q);
        assert_int_equal(json_integer_value(servekit_at(a, "usage", "prompt_tokens")),
                         json_integer_value(servekit_at(b, "meta_info", "prompt_tokens")));
        assert_string_equal(servekit_text(choice(a, 0), "message", "content"),
                            servekit_text(b, "text", NULL));
        json_decref(a);
        json_decref(b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_aborted_echo), cmocka_unit_test(test_chat),
        cmocka_unit_test(test_stream),       cmocka_unit_test(test_completions),
        cmocka_unit_test(test_models),       cmocka_unit_test(test_errors),
        cmocka_unit_test(test_defaults),     cmocka_unit_test(test_effort),
    };
    return cmocka_run_group_tests(tests, suite_setup, suite_teardown);
}
