/* The session server in front of a real server, through real sockets: turns, samples, errors, what
 * is passed on, and requests that end with it. */
#include "serve/servekit.h"

#include "serve/session_api.h"
#include "text/chat.h"

static struct servekit kit;
static struct chat_template *chat;
static struct session_api *api;
static int port;

static const char template_text[] =
    "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}";
/* Answers that end soon: </s> is likely. */
static const char open_body[] =
    "{\"seed\":7,\"sampling_params\":{\"temperature\":1,\"logit_bias\":{\"2\":100.0}}}";

static struct session_api *start(const char *upstream, int tree)
{
    struct session_api_opts o = {
        .env = {.tok = kit.tok, .chat = chat, .tree = tree, .max_tokens = SERVEKIT_CONTEXT},
        .upstream = upstream,
        .request_s = 5,
        .max_sessions = 3};
    struct session_api *a;
    struct err e = {0};

    assert_ok(session_api_start(&o, &a, &e), &e);
    return a;
}

static int suite_setup(void **state)
{
    char url[64];
    struct err e = {0};

    if (servekit_setup(state) != 0) {
        return -1;
    }
    servekit_start(&kit, NULL);
    assert_ok(chat_template_new(template_text, &chat, &e), &e);
    snprintf(url, sizeof url, "http://127.0.0.1:%d/", kit.port);
    api = start(url, 0);
    port = session_api_port(api);
    return 0;
}

static int suite_teardown(void **state)
{
    session_api_stop(api);
    chat_template_free(chat);
    servekit_stop(&kit);
    return fixture_teardown(state);
}

static json_t *call(const char *method, const char *path, const char *body, int want)
{
    int status;
    json_t *o = servekit_json(servekit_ask(port, method, path, body), &status);

    if (status != want) {
        char *text = o ? json_dumps(o, JSON_ENCODE_ANY) : NULL;
        fail_msg("%s %s: %d, not %d: %s", method, path, status, want, text ? text : "");
    }
    return o;
}

static void open_session(char *path, size_t size)
{
    json_t *o = call("POST", "/sessions", open_body, 200);
    snprintf(path, size, "/sessions/%s", json_string_value(json_object_get(o, "session_id")));
    json_decref(o);
}

static void drop_session(const char *path)
{
    struct buf b;

    buf_init(&b, 1 << 16);
    assert_int_equal(servekit_answer(servekit_ask(port, "DELETE", path, ""), &b), 204);
    buf_fini(&b);
}

/* A turn of `messages`, which gets the answer and another question behind it. */
static json_t *turn(const char *session, json_t *messages)
{
    json_t *body = json_pack("{s:O,s:i}", "messages", messages, "max_tokens", 8), *o, *m;
    char *text = json_dumps(body, 0), path[200];

    snprintf(path, sizeof path, "%s/v1/chat/completions", session);
    o = call("POST", path, text, 200);
    m = json_object_get(json_array_get(json_object_get(o, "choices"), 0), "message");
    assert_non_null(m);
    json_array_append(messages, m);
    json_array_append_new(messages, json_pack("{s:s,s:s}", "role", "user", "content", "more"));
    free(text);
    json_decref(body);
    return o;
}

/* The tokens of two turns, as the answers told them, are those of the sample with mask 1. */
static void test_turns(void **state)
{
    json_t *messages = json_pack("[{s:s,s:s}]", "role", "user", "content", "hi"), *header, *meta;
    char path[200], blob[240];
    struct buf b;
    uint64_t size;
    int32_t told[32];
    int n = 0, at = 0;

    (void)state;
    open_session(path, sizeof path);
    for (int i = 0; i < 2; i++) {
        json_t *o = turn(path, messages), *list;
        list = servekit_at(json_array_get(json_object_get(o, "choices"), 0), "logprobs", "content");
        for (size_t k = 0; k < json_array_size(list); k++) {
            told[n++] =
                (int32_t)json_integer_value(json_object_get(json_array_get(list, k), "token_id"));
        }
        json_decref(o);
    }
    snprintf(blob, sizeof blob, "%s/samples", path);
    buf_init(&b, 1 << 20);
    assert_int_equal(servekit_answer(servekit_ask(port, "POST", blob, ""), &b), 200);
    memcpy(&size, b.data, 8);
    header = json_loadb(b.data + 8, size, 0, NULL);
    assert_non_null(header);
    meta = json_object_get(header, "0.tokens");
    assert_string_equal(json_string_value(json_object_get(meta, "dtype")), "I32");
    {
        json_t *mask = json_object_get(json_object_get(header, "0.loss_mask"), "data_offsets");
        const char *data = b.data + 8 + size;
        const char *bits = data + json_integer_value(json_array_get(mask, 0));
        int response = (int)(json_integer_value(json_array_get(mask, 1)) -
                             json_integer_value(json_array_get(mask, 0)));
        int total = (int)json_integer_value(json_array_get(json_object_get(meta, "shape"), 0));
        const int32_t *ids = (const int32_t *)(const void *)data;
        for (int i = 0; i < response; i++) {
            if (bits[i]) {
                assert_true(at < n);
                assert_int_equal(ids[total - response + i], told[at++]);
            }
        }
    }
    assert_int_equal(at, n);
    json_decref(header);
    buf_fini(&b);
    json_decref(messages);
    drop_session(path);
}

static void test_errors(void **state)
{
    static const char user[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}";
    char path[3][200], q[260];
    json_t *messages = json_pack("[{s:s,s:s}]", "role", "user", "content", "hi");

    (void)state;
    json_decref(call("POST", "/sessions/none/v1/chat/completions", user, 404));
    for (int i = 0; i < 3; i++) {
        open_session(path[i], sizeof path[i]);
    }
    json_decref(call("POST", "/sessions", "", 503));
    json_decref(call("POST", "/sessions", "[", 400));
    json_decref(turn(path[0], messages));
    json_decref(turn(path[0], messages));
    snprintf(q, sizeof q, "%s/v1/chat/completions", path[0]);
    json_decref(call("POST", q, user, 409));
    json_decref(call("POST", q, "{\"messages\":[]}", 400));
    json_decref(
        call("POST", q, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"n\":2}", 400));
    json_decref(call("PUT", path[0], "", 405));
    json_decref(call("GET", path[0], "", 200));
    for (int i = 0; i < 3; i++) {
        drop_session(path[i]);
    }
    json_decref(call("GET", path[0], "", 404));
    json_decref(call("GET", "/v1/models", "", 200));
    json_decref(call("GET", "/health", "", 200));
    json_decref(messages);
}

/* A server whose engines are not there, and one that is stopped under a request. */
static void test_upstream(void **state)
{
    static const char user[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
                               "\"ignore_eos\":true}";
    char url[64], path[200], q[260];
    struct session_api *other = start("http://127.0.0.1:9", 1);
    int was = port, fd;

    (void)state;
    port = session_api_port(other);
    open_session(path, sizeof path);
    snprintf(q, sizeof q, "%s/v1/chat/completions", path);
    json_decref(call("POST", q, user, 502));
    session_api_stop(other);
    snprintf(url, sizeof url, "http://127.0.0.1:%d", kit.port);
    other = start(url, 1);
    port = session_api_port(other);
    open_session(path, sizeof path);
    snprintf(q, sizeof q, "%s/v1/chat/completions", path);
    fd = servekit_ask(port, "POST", q, user);
    session_api_stop(other);
    close(fd);
    servekit_idle(&kit);
    port = was;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_turns), cmocka_unit_test(test_errors),
                                       cmocka_unit_test(test_upstream)};
    return cmocka_run_group_tests(tests, suite_setup, suite_teardown);
}
