/* The reward server: what a client gets for good samples, bad ones, hostile bodies, when it is full
 * and when it stops. */
#include "support.h"

#include "base/fsio.h"
#include "base/log.h"
#include "base/proc.h"
#include "base/status.h"
#include "net/http_client.h"
#include "serve/rewardapi.h"

static struct http_client *client;
static struct rewardapi *api;
static char dir[] = "/tmp/miles_rewardapi_XXXXXX";

static const char functions[] = "import os, time\n"
                                "def slow(args, sample):\n"
                                "    time.sleep(float(sample.response))\n"
                                "    return 2\n"
                                "def odd(args, sample):\n"
                                "    return eval(sample.response)\n"
                                "def best(args, samples):\n"
                                "    return [len(s.response) for s in samples]\n";

static void start(const struct hub_opts *h, int max_queued, int group)
{
    struct rewardapi_opts o = {.hub = *h, .max_queued = max_queued, .group = group};
    struct err e = {0};
    assert_ok(rewardapi_start(&o, &api, &e), &e);
}

static void stop(void)
{
    assert_int_equal(rewardapi_drain(api, 20), 0);
    rewardapi_stop(api);
    api = NULL;
}

static void post(const char *path, const char *body, size_t n)
{
    char url[100];
    struct err e = {0};
    snprintf(url, sizeof url, "http://127.0.0.1:%d%s", rewardapi_port(api), path);
    assert_ok(
        http_client_start(
            client,
            &(struct http_client_request){
                .method = body ? "POST" : "GET", .url = url, .body = body, .len = n, .total_s = 60},
            NULL, &e),
        &e);
}

/* The answer's body, parsed when it is JSON; the caller's. */
static json_t *take(int status)
{
    struct http_client_event *ev = http_client_take(client, 60);
    json_t *j;
    assert_non_null(ev);
    assert_int_equal(ev->outcome, HTTP_CLIENT_OK);
    if (ev->status != status) {
        fail_msg("status %d, not %d: %s", ev->status, status, ev->data);
    }
    if (status == 503) {
        assert_string_equal(http_client_header(ev, "retry-after"), "1");
    }
    j = json_loadb(ev->data, ev->len, JSON_DECODE_ANY, NULL);
    http_client_release(client, ev);
    return j;
}

static json_t *ask(const char *path, const char *body, int status)
{
    post(path, body, body ? strlen(body) : 0);
    return take(status);
}

static void gives(const char *body, double want)
{
    json_t *j = ask("/", body, 200);
    assert_true(json_is_number(j) && json_number_value(j) == want);
    json_decref(j);
}

static void fails(const char *path, const char *body, int status, const char *reason)
{
    json_t *j = ask(path, body, status);
    const char *s = json_string_value(json_object_get(j, "reason"));
    s = s ? s : json_string_value(json_object_get(json_object_get(j, "error"), "message"));
    if (!s || !strstr(s, reason)) {
        fail_msg("%s: \"%s\", not \"%s\"", body, s ? s : "(none)", reason);
    }
    json_decref(j);
}

static void test_answers(void **state)
{
    (void)state;
    json_t *j, *list;
    start(&(struct hub_opts){.rm_type = "math", .threads = 2}, 0, 0);
    gives("{\"prompt\": \"1+1\", \"response\": \"\\\\boxed{2}\", \"label\": \"2\"}", 1);
    gives("{\"prompt\": null, \"response\": \"\\\\boxed{3}\", \"label\": 2}", 0);
    gives("{\"response\": \"cat\", \"label\": \"a cat\", \"metadata\": {\"rm_type\": \"f1\"}}", 1);
    j = ask("/reward",
            "{\"response\": \"Answer: 3\", \"label\": 2, \"metadata\": {\"rm_type\": \"dapo\"}}",
            200);
    assert_true(json_real_value(json_object_get(j, "score")) == -1);
    json_decref(j);
    fails("/", "{\"response\": \"x\", \"label\": [2]}", 422, "neither text nor a number");
    fails("/", "{\"response\": \"x\", \"metadata\": {\"rm_type\": \"none\"}}", 422,
          "unknown reward");
    fails("/", "{\"response\": \"x\", \"metadata\": {\"rm_type\": \"remote_rm\"}}", 422,
          "--rm-url");
    fails("/", "{\"response\": \"x\", \"reward_spec\": {\"custom_rm_path\": \"os.system\"}}", 422,
          "not allowed");
    fails("/", "{\"label\": \"2\"}", 400, "response is missing");
    fails("/", "{\"response\": 3}", 400, "response is missing");
    fails("/", "[]", 400, "must be a JSON object");
    fails("/", "3", 400, "not JSON");
    fails("/", "", 400, "not JSON");
    fails("/", "{\"response\": \"\xff\"}", 400, "not JSON");
    fails("/batch", "{\"response\": \"x\"}", 400, "a list of samples");
    fails("/batch", "[{\"response\": \"x\"}, 7]", 400, "sample 1: a sample must be");
    fails("/nowhere", "{}", 404, "");
    j = ask(
        "/batch",
        "{\"samples\": [{\"response\": \"\\\\boxed{2}\", \"label\": 2},"
        " {\"response\": \"\\\\boxed{3}\", \"label\": 2}, {\"response\": \"x\", \"label\": {}}]}",
        200);
    list = json_object_get(j, "results");
    assert_int_equal(json_array_size(list), 3);
    assert_true(json_real_value(json_object_get(json_array_get(list, 0), "reward")) == 1);
    assert_true(json_real_value(json_object_get(json_array_get(list, 1), "reward")) == 0);
    assert_string_equal(json_string_value(json_object_get(json_array_get(list, 1), "reason")),
                        "math: different by algebra: 3 != 2");
    assert_true(json_is_null(json_object_get(json_array_get(list, 2), "reward")));
    assert_true(json_is_true(json_object_get(json_array_get(list, 2), "failed")));
    json_decref(j);
    j = ask("/batch", "[]", 200);
    assert_int_equal(json_array_size(json_object_get(j, "results")), 0);
    json_decref(j);
    json_decref(ask("/health", NULL, 200));
    json_decref(ask("/metrics", NULL, 200));
    stop();
    start(&(struct hub_opts){.rm_type = "dapo", .reward_key = "acc"}, 0, 0);
    gives("{\"response\": \"Answer: 2\", \"label\": 2}", 1);
    stop();
}

/* Many requests at once, each with its own answer. */
static void test_many(void **state)
{
    (void)state;
    enum { N = 500 };
    char body[100];
    double sum = 0;
    start(&(struct hub_opts){.rm_type = "f1", .threads = 2}, 4096, 0);
    for (int i = 0; i < N; i++) {
        post("/", body,
             (size_t)sprintf(body, "{\"response\": \"%d\", \"label\": \"%d\"}", i, i % 2 ? i : -1));
    }
    for (int i = 0; i < N; i++) {
        json_t *j = take(200);
        sum += json_number_value(j);
        json_decref(j);
    }
    assert_true(sum == N / 2);
    stop();
}

static char *function(const char *name)
{
    static char path[300];
    snprintf(path, sizeof path, "%s/f.py:%s", dir, name);
    return path;
}

static void test_full_and_late(void **state)
{
    (void)state;
    int status[600] = {0};
    start(&(struct hub_opts){.custom_rm_path = function("slow"), .timeout_s = 1.0}, 2, 0);
    for (int i = 0; i < 5; i++) {
        post("/", "{\"response\": \"0.4\"}", 19);
    }
    for (int i = 0; i < 5; i++) {
        struct http_client_event *ev = http_client_take(client, 60);
        assert_non_null(ev);
        status[ev->status]++;
        http_client_release(client, ev);
    }
    assert_int_equal(status[200], 2);
    assert_int_equal(status[503], 3);
    fails("/", "{\"response\": \"60\"}", 500, "no reward within 1 s");
    gives("{\"response\": \"0\"}", 2);
    fails("/", "{\"response\": \"x\"}", 500, "could not convert string to float");
    stop();
    /* it stops with a request running: that is answered within the drain */
    start(&(struct hub_opts){.custom_rm_path = function("slow"), .timeout_s = 9}, 2, 0);
    post("/", "{\"response\": \"0.5\"}", 19);
    while (1) { /* until it is there */
        struct err e = {0};
        struct http_client *c2;
        struct http_client_event *ev;
        char url[100];
        int there;
        assert_ok(http_client_new(&c2, &(struct http_client_opts){0}, &e), &e);
        snprintf(url, sizeof url, "http://127.0.0.1:%d/metrics", rewardapi_port(api));
        assert_ok(http_client_start(c2, &(struct http_client_request){.url = url}, NULL, &e), &e);
        ev = http_client_take(c2, 20);
        assert_non_null(ev);
        there = strstr(ev->data, "miles_reward_queued 1\n") != NULL;
        http_client_release(c2, ev);
        http_client_free(c2);
        if (there) {
            break;
        }
    }
    stop();
    json_decref(take(200));
    /* and without a drain it is cut, at once */
    start(&(struct hub_opts){.custom_rm_path = function("slow"), .timeout_s = 60}, 2, 0);
    post("/", "{\"response\": \"50\"}", 18);
    struct http_client_event *ev = http_client_take(client, 0.5);
    assert_null(ev);
    double t = proc_now();
    rewardapi_stop(api);
    api = NULL;
    assert_true(proc_now() - t < 5);
    ev = http_client_take(client, 20);
    assert_non_null(ev);
    assert_true(ev->outcome != HTTP_CLIENT_OK || ev->status == 503);
    http_client_release(client, ev);
}

static void test_functions(void **state)
{
    (void)state;
    json_t *j;
    struct rewardapi_opts bad = {.hub = {.rm_type = "nothing"}};
    struct rewardapi *none = NULL;
    struct err e = {0};

    start(&(struct hub_opts){.custom_rm_path = function("odd"), .workers = 2}, 0, 0);
    gives("{\"response\": \"0.1 + 0.2\"}", 0.1 + 0.2);
    j = ask("/", "{\"response\": \"{'score': 1, 'why': 'x'}\"}", 200);
    assert_int_equal(json_integer_value(json_object_get(j, "score")), 1);
    json_decref(j);
    fails("/", "{\"response\": \"None\"}", 500, "the reward is None");
    fails("/", "{\"response\": \"float('nan')\"}", 500, "the reward is nan");
    fails("/", "{\"response\": \"os._exit(3)\"}", 500, "exit status 3");
    gives("{\"response\": \"7\"}", 7);
    stop();
    start(&(struct hub_opts){.custom_rm_path = function("best")}, 0, 1);
    j = ask("/batch", "[{\"response\": \"a\"}, {\"response\": \"abc\"}]", 200);
    assert_true(json_real_value(json_object_get(json_array_get(json_object_get(j, "results"), 1),
                                                "reward")) == 3);
    json_decref(j);
    stop();
    assert_int_equal(rewardapi_start(&bad, &none, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "unknown reward type \"nothing\""));
    bad.hub.rm_type = "math";
    bad.http.host = "999.0.0.1";
    assert_true(rewardapi_start(&bad, &none, &e) < 0);
    assert_null(none);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_full_and_late),
        cmocka_unit_test(test_functions),
    };
    char path[300];
    struct err e = {0};
    int rc;

    log_set_level(LOG_ERROR);
    if (!mkdtemp(dir) || http_client_new(&client, &(struct http_client_opts){0}, &e) != 0) {
        return 1;
    }
    snprintf(path, sizeof path, "%s/f.py", dir);
    if (fsio_write_atomic(path, functions, strlen(functions), &e) != 0) {
        return 1;
    }
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    http_client_free(client);
    return fsio_remove_tree(dir, &e) == 0 ? rc : 1;
}
