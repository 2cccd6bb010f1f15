/* Rewards over HTTP, groups, and types that run in workers: through the hub, against a server that
 * answers rightly, wrongly, late and not at all. */
#include "support.h"

#include <stdatomic.h>
#include <unistd.h>

#include "base/fsio.h"
#include "base/log.h"
#include "base/proc.h"
#include "base/status.h"
#include "net/http_req.h"
#include "net/http_server.h"
#include "reward/hub.h"

static struct http_server *server;
static char url[64];
static atomic_int calls;
static _Atomic(struct http_req *) held; /* a request that is answered by the next one */

/* The response of the sample says what to do: "= TEXT" answers TEXT with 200, "S TEXT" with the
 * status S, "twice S TEXT" with S at first and then TEXT with 200, "hold" waits for the next. */
static void on_post(void *arg, struct http_req *r)
{
    static char seen[64];
    const char *text, *s;
    char *end;
    size_t n;
    json_t *j;
    int status = 200;

    (void)arg;
    calls++;
    text = http_req_body(r, &n);
    j = json_loadb(text, n, 0, NULL);
    s = json_string_value(json_object_get(j, "response"));
    if (!s || strcmp(http_req_header(r, "content-type"), "application/json") != 0) {
        http_req_reply(r, 400, "text/plain", "no response", 11);
    } else if (strncmp(s, "= ", 2) == 0) {
        http_req_reply(r, 200, "application/json", s + 2, strlen(s + 2));
    } else if (strncmp(s, "echo", 4) == 0) {
        json_t *o = json_pack("{s:O,s:i}", "body", j, "score", (int)json_object_size(j));
        char *out = json_dumps(o, 0);
        http_req_reply(r, 200, "application/json", out, strlen(out));
        free(out);
        json_decref(o);
    } else if (strcmp(s, "cut") == 0) {
        http_req_cut(r);
    } else if (strcmp(s, "hold") == 0) {
        if (held) {
            http_req_reply(held, 200, "application/json", "1", 1);
            http_req_reply(r, 200, "application/json", "2", 1);
            held = NULL;
        } else {
            held = r;
        }
    } else {
        const char *t = strncmp(s, "twice ", 6) == 0 ? s + 6 : s;
        status = (int)strtol(t, &end, 10);
        if (t != s && strcmp(seen, s) == 0) {
            status = 200;
        }
        snprintf(seen, sizeof seen, "%s", s);
        http_req_reply(r, status, "application/json", end + 1, strlen(end + 1));
    }
    json_decref(j);
}

static int set_up(void **state)
{
    static const struct http_server_route routes[] = {{"POST", "/rm", on_post, 0}};
    struct http_server_opts o = {.routes = routes, .nroutes = 1};
    struct err e = {0};

    (void)state;
    assert_ok(http_server_start(&server, &o, &e), &e);
    snprintf(url, sizeof url, "http://127.0.0.1:%d/rm", http_server_port(server));
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    http_server_free(server);
    return 0;
}

static struct hub *open_hub(const struct hub_opts *o)
{
    struct hub *h = NULL;
    struct err e = {0};
    assert_ok(hub_open(o, &h, &e), &e);
    return h;
}

static struct hub_result ask(struct hub *h, const char *response)
{
    json_t *s = json_pack("{s:s,s:[{s:s,s:s}],s:s,s:{s:i}}", "response", response, "prompt", "role",
                          "user", "content", "hi", "label", "42", "metadata", "x", 7);
    struct hub_result r;
    struct err e = {0};

    assert_ok(hub_submit(h, &(struct hub_request){5, s}, &e), &e);
    json_decref(s);
    assert_ok(hub_poll(h, 60, &r, &e), &e);
    assert_int_equal(r.id, 5);
    assert_int_equal(hub_pending(h), 0);
    return r;
}

static void gives(struct hub *h, const char *response, double want)
{
    struct hub_result r = ask(h, response);
    if (r.failed || r.reward != want) {
        fail_msg("%s gives %g (%s), not %g", response, r.reward, r.reason, want);
    }
    assert_true(r.reason[0] && r.why == HUB_SCORED);
    json_decref(r.raw);
}

static void fails(struct hub *h, const char *response, enum hub_class why, const char *reason)
{
    struct hub_result r = ask(h, response);
    if (!r.failed || r.why != why || !strstr(r.reason, reason)) {
        fail_msg("%s is %d %s \"%s\", not %s \"%s\"", response, r.failed, hub_class_name(r.why),
                 r.reason, hub_class_name(why), reason);
    }
    assert_true(r.reward == 0);
    json_decref(r.raw);
}

static void test_answers(void **state)
{
    (void)state;
    struct hub *h =
        open_hub(&(struct hub_opts){.rm_type = "remote_rm", .rm_url = url, .reward_key = "score"});
    struct hub_result r;

    gives(h, "= 0.30000000000000004", 0.1 + 0.2); /* to the bit */
    gives(h, "= -3", -3);
    gives(h, "= true", 1);
    gives(h, "=  {\"score\": 2.5, \"x\": []} ", 2.5);
    fails(h, "= {\"points\": 1}", HUB_BAD_VALUE, "a dict without the key score");
    fails(h, "= {\"score\": \"1\"}", HUB_BAD_VALUE, "no number under the key score");
    fails(h, "= NaN", HUB_BAD_VALUE, "not JSON");
    fails(h, "= 1e999", HUB_BAD_VALUE, "not JSON");
    fails(h, "= \"1\"", HUB_BAD_VALUE, "the answer is text");
    fails(h, "= null", HUB_BAD_VALUE, "the answer is null");
    fails(h, "= [1]", HUB_BAD_VALUE, "the answer is a list");
    fails(h, "= ", HUB_BAD_VALUE, "not JSON");
    fails(h, "404 nobody", HUB_BAD_VALUE, "answers 404: nobody");
    fails(h, "422 {\"reason\": \"the label is no number\"}", HUB_BAD_VALUE,
          "answers 422: the label is no number");
    r = ask(h, "echo");
    assert_true(r.reward == 3);
    json_t *b = json_object_get(r.raw, "body");
    assert_string_equal(json_string_value(json_object_get(b, "label")), "42");
    assert_string_equal(json_string_value(json_object_get(
                            json_array_get(json_object_get(b, "prompt"), 0), "content")),
                        "hi");
    json_decref(r.raw);
    hub_close(h);
    h = open_hub(&(struct hub_opts){
        .rm_type = "remote_rm", .rm_url = url, .reward_key = "score", .rm_metadata = 1});
    gives(h, "echo", 4);
    hub_close(h);
    h = open_hub(&(struct hub_opts){.rm_type = "boxed_remote_rm", .rm_url = url});
    gives(h, "so \\boxed{= 17} it is", 17);
    hub_close(h);
}

/* What may pass is tried again, what will not is not. */
static void test_retries(void **state)
{
    (void)state;
    struct hub *h =
        open_hub(&(struct hub_opts){.rm_type = "remote_rm", .rm_url = url, .timeout_s = 1.5});
    int before = calls;

    gives(h, "twice 503 1", 1);
    gives(h, "twice 500 2", 2);
    gives(h, "twice 502 3", 3);
    assert_int_equal(calls - before, 6);
    before = calls;
    fails(h, "500 broken", HUB_BROKEN, "answers 500: broken");
    assert_int_equal(calls - before, 3);
    before = calls;
    fails(h, "400 no", HUB_BAD_VALUE, "answers 400: no");
    assert_int_equal(calls - before, 1);
    before = calls;
    fails(h, "cut", HUB_BROKEN, "no answer within 1.5 s");
    assert_true(calls - before > 2);
    double t = proc_now();
    fails(h, "hold", HUB_LATE, "no answer within 1.5 s");
    assert_true(proc_now() - t > 1.4 && proc_now() - t < 10);
    hub_close(h);
    http_req_cut(held);
    held = NULL;
    h = open_hub(&(struct hub_opts){
        .rm_type = "remote_rm", .rm_url = "http://127.0.0.1:1/", .timeout_s = 2});
    fails(h, "= 1", HUB_BROKEN, "no answer within 2 s");
    hub_close(h);
}

/* 200 calls with four at once: none is lost, and waiting in the queue is no time-out. */
static void test_queue(void **state)
{
    (void)state;
    struct hub *h = open_hub(&(struct hub_opts){
        .rm_type = "remote_rm", .rm_url = url, .rm_inflight = 2, .timeout_s = 30});
    struct err e = {0};
    struct hub_result r;
    char seen[200] = {0};

    for (int i = 0; i < 200; i++) {
        json_t *s = json_pack("{s:s}", "response", "hold");
        assert_ok(hub_submit(h, &(struct hub_request){i, s}, &e), &e);
        json_decref(s);
    }
    assert_int_equal(hub_pending(h), 200);
    for (int i = 0; i < 200; i++) {
        assert_ok(hub_poll(h, 60, &r, &e), &e);
        assert_int_equal(r.failed, 0);
        assert_int_equal(seen[r.id]++, 0);
    }
    for (int i = 0; i < 20; i++) {
        json_t *s = json_pack("{s:s}", "response", "= 1");
        assert_ok(hub_submit(h, &(struct hub_request){i, s}, &e), &e);
        json_decref(s);
    }
    hub_close(h); /* with calls in it */
}

/* ---- groups and functions of single samples ---- */

static const char functions[] = "def best(args, samples):\n"
                                "    r = [len(s.response) for s in samples]\n"
                                "    return [1.0 if x == max(r) else 0.0 for x in r]\n"
                                "def odd(args, samples):\n"
                                "    return eval(samples[0].response)\n"
                                "async def later(args, samples):\n"
                                "    return {'score': 1} if not isinstance(samples, list) else \\\n"
                                "        [{'score': i, 'reason': 'number %d' % i}\n"
                                "         for i in range(len(samples))]\n"
                                "def length(args, sample):\n"
                                "    return len(sample.response)\n";

static char dir[] = "/tmp/miles_remote_XXXXXX";

static char *function_path(const char *name)
{
    static char path[300];
    snprintf(path, sizeof path, "%s/f.py:%s", dir, name);
    return path;
}

static json_t *group(int n, const char *const *responses)
{
    json_t *a = json_array();
    for (int i = 0; i < n; i++) {
        json_array_append_new(
            a, json_pack("{s:s,s:s,s:i}", "response", responses[i], "label", "b b", "index", i));
    }
    return a;
}

/* Submits a group with ids from 10 on; results in order of ids. */
static void ask_group(struct hub *h, json_t *g, struct hub_result *r)
{
    size_t n = json_array_size(g);
    struct err e = {0};
    struct hub_result one;
    int seen = 0;

    assert_ok(hub_submit(h, &(struct hub_request){10, g}, &e), &e);
    assert_int_equal(hub_pending(h), n);
    for (size_t i = 0; i < n; i++) {
        assert_ok(hub_poll(h, 60, &one, &e), &e);
        assert_true(one.id >= 10 && one.id < 10 + (int64_t)n);
        seen |= 1 << (one.id - 10);
        r[one.id - 10] = one;
    }
    assert_int_equal(seen, (1 << n) - 1);
    assert_int_equal(hub_pending(h), 0);
    json_decref(g);
}

static void test_groups(void **state)
{
    (void)state;
    static const char *const words[] = {"b", "bbb", "b c"};
    static const char *const odd[][2] = {{"[1, 2]", "2 rewards for a group of 3"},
                                         {"7", "of type int, not a list"},
                                         {"None", "is None, not a list"},
                                         {"[1, None, 2]", "the reward is None"},
                                         {"[1, 2, float('inf')]", "the reward is inf"},
                                         {"1/0", "ZeroDivisionError"}};
    struct hub_result r[3];
    struct hub *h = open_hub(&(struct hub_opts){.custom_rm_path = function_path("best")});

    ask_group(h, group(3, words), r);
    assert_true(r[0].reward == 0 && r[1].reward == 1 && r[2].reward == 1);
    hub_close(h);
    h = open_hub(&(struct hub_opts){.custom_rm_path = function_path("odd")});
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        const char *const three[] = {odd[i][0], "x", "y"};
        ask_group(h, group(3, three), r);
        for (int k = 0; k < 3; k++) {
            assert_int_equal(r[k].failed, 1);
            if (!strstr(r[k].reason, odd[i][1])) {
                fail_msg("%s: %s", odd[i][0], r[k].reason);
            }
        }
    }
    const char *const good[] = {"(1, True, 0.5)", "x", "y"};
    ask_group(h, group(3, good), r);
    assert_true(r[0].reward == 1 && r[1].reward == 1 && r[2].reward == 0.5);
    hub_close(h);
    h = open_hub(
        &(struct hub_opts){.custom_rm_path = function_path("later"), .reward_key = "score"});
    ask_group(h, group(3, words), r);
    for (int i = 0; i < 3; i++) {
        assert_true(r[i].reward == i);
        assert_int_equal(r[i].reason[7], '0' + i);
        json_decref(r[i].raw);
    }
    gives(h, "x", 1);
    hub_close(h);
    /* built-in types score each by itself */
    h = open_hub(&(struct hub_opts){.rm_type = "f1"});
    ask_group(h, group(3, words), r);
    assert_true(r[0].reward == 2.0 / 3.0 && r[1].reward == 0 && r[2].reward == 0.5);
    json_t *none = json_array();
    struct err e = {0};
    assert_int_equal(hub_submit(h, &(struct hub_request){1, none}, &e), STATUS_INPUT);
    json_array_append_new(none, json_integer(3));
    assert_int_equal(hub_submit(h, &(struct hub_request){1, none}, &e), STATUS_INPUT);
    json_decref(none);
    hub_close(h);
}

/* Samples that name different sources, at once. */
static void test_mixed(void **state)
{
    (void)state;
    struct hub *h = open_hub(
        &(struct hub_opts){.rm_type = "f1", .rm_url = url, .sample_functions = 1, .threads = 1});
    static const char *const wants[] = {"f1", "remote_rm", NULL, "nobody"};
    struct err e = {0};
    struct hub_result r;

    for (int i = 0; i < 400; i++) {
        json_t *s = json_pack("{s:s,s:s,s:{s:s?}}", "response", "= 7", "label", "7", "metadata",
                              "rm_type", wants[i % 4]);
        if (i % 4 == 2) {
            json_object_set_new(s, "reward_spec",
                                json_pack("{s:s}", "custom_rm_path", function_path("length")));
        }
        assert_ok(hub_submit(h, &(struct hub_request){i, s}, &e), &e);
        json_decref(s);
    }
    for (int i = 0; i < 400; i++) {
        static const double want[] = {1, 7, 3, 0};
        assert_ok(hub_poll(h, 60, &r, &e), &e);
        assert_true(r.reward == want[r.id % 4]);
        assert_int_equal(r.failed, r.id % 4 == 3);
    }
    hub_close(h);
    h = open_hub(&(struct hub_opts){.rm_type = "f1", .sample_functions = 1});
    json_t *s = json_pack("{s:s,s:{s:s}}", "response", "x", "reward_spec", "custom_rm_path",
                          function_path("missing"));
    for (int i = 0; i < 2; i++) { /* the second time without a start */
        assert_ok(hub_submit(h, &(struct hub_request){1, s}, &e), &e);
        assert_ok(hub_poll(h, 60, &r, &e), &e);
        assert_int_equal(r.why, HUB_BAD_TYPE);
        assert_non_null(strstr(r.reason, "has no function missing"));
    }
    json_decref(s);
    hub_close(h);
}

/* ---- ifbench ---- */

/* The part of the official checker that we call, with two instructions of its kind. */
static const char checker[] =
    "import dataclasses\n"
    "@dataclasses.dataclass\n"
    "class InputExample:\n"
    "    key: int\n"
    "    instruction_id_list: list\n"
    "    prompt: str\n"
    "    kwargs: list\n"
    "class Out: pass\n"
    "def test_instruction_following_strict(inp, prompt_to_response):\n"
    "    text = prompt_to_response[inp.prompt]\n"
    "    assert len(inp.kwargs) == len(inp.instruction_id_list)\n"
    "    out = Out()\n"
    "    out.follow_instruction_list = []\n"
    "    for i, kw in zip(inp.instruction_id_list, inp.kwargs):\n"
    "        assert None not in kw.values()\n"
    "        rules = {'count:min': lambda: len(text) >= kw['n'],\n"
    "                 'format:lower': lambda: text == text.lower(),\n"
    "                 'echo:prompt': lambda: inp.prompt in text and inp.key == 12}\n"
    "        out.follow_instruction_list.append(rules[i]())\n"
    "    out.follow_all_instructions = all(out.follow_instruction_list)\n"
    "    return out\n";

static void ifbench_is(struct hub *h, const char *response, const char *metadata, double want,
                       const char *reason)
{
    json_t *s = json_pack("{s:s,s:s,s:o}", "response", response, "prompt", "say", "metadata",
                          json_loads(metadata, 0, NULL));
    struct hub_result r;
    struct err e = {0};

    assert_ok(hub_submit(h, &(struct hub_request){5, s}, &e), &e);
    json_decref(s);
    assert_ok(hub_poll(h, 60, &r, &e), &e);
    if (r.reward != want || r.failed != (want < 0) || !strstr(r.reason, reason)) {
        fail_msg("%s: %s: %g, \"%s\"", response, metadata, r.reward, r.reason);
    }
}

static void test_ifbench(void **state)
{
    (void)state;
    struct hub_opts o = {.rm_type = "ifbench"};
    struct err e = {0};
    struct hub *h = NULL;
    char path[300];

    unsetenv("PYTHONPATH");
    assert_int_equal(hub_open(&o, &h, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "git clone https://github.com/allenai/IFBench"));
    snprintf(path, sizeof path, "%s/evaluation_lib.py", dir);
    assert_ok(fsio_write_atomic(path, checker, strlen(checker), &e), &e);
    setenv("PYTHONPATH", dir, 1);
    h = open_hub(&o);
    ifbench_is(h, "abc", "{\"instruction_id_list\": [\"format:lower\"]}", 1,
               "1 of 1 instructions followed");
    ifbench_is(h, "aBc", "{\"instruction_id_list\": [\"format:lower\"], \"kwargs\": null}", 0,
               "0 of 1 instructions followed, not format:lower");
    /* blank names are dropped, the last arguments stand for the rest, null is no argument */
    ifbench_is(h, "abcd",
               "{\"instruction_id_list\": [\" \", \"count:min\", null, \"count:min\"],"
               " \"kwargs\": [{\"n\": 3, \"m\": null}]}",
               1, "2 of 2");
    ifbench_is(h, "abcd",
               "{\"instruction_id_list\": [\"count:min\", \"count:min\", \"count:min\"],"
               " \"kwargs\": [{\"n\": 3}, {\"n\": 5}]}",
               0, "1 of 3");
    ifbench_is(h, "aBcd",
               "{\"instruction_id_list\": [\"count:min\", \"format:lower\"], \"kwargs\": {\"n\": "
               "3}}",
               0, "not format:lower");
    ifbench_is(h, "I say", "{\"instruction_id_list\": [\"echo:prompt\"], \"record_id\": 12}", 1,
               "1 of 1");
    ifbench_is(h, "I say so",
               "{\"instruction_id_list\": [\"echo:prompt\"], \"record_id\": 12,"
               " \"prompt_text\": \"so\"}",
               1, "1 of 1");
    ifbench_is(h, "abc", "{\"instruction_id_list\": [\" \"]}", 0, "no instructions");
    ifbench_is(h, "abc", "{}", 0, "no instructions");
    hub_close(h);
    /* what the checker does not know is a failure */
    h = open_hub(&o);
    json_t *s = json_pack("{s:s,s:{s:[s]}}", "response", "x", "metadata", "instruction_id_list",
                          "none:such");
    struct hub_result r;
    assert_ok(hub_submit(h, &(struct hub_request){5, s}, &e), &e);
    assert_ok(hub_poll(h, 60, &r, &e), &e);
    assert_true(r.failed && strstr(r.reason, "KeyError: 'none:such'"));
    json_decref(s);
    hub_close(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers), cmocka_unit_test(test_retries),
        cmocka_unit_test(test_queue),   cmocka_unit_test(test_groups),
        cmocka_unit_test(test_mixed),   cmocka_unit_test(test_ifbench),
    };
    char path[300];
    struct err e = {0};
    int rc;

    log_set_level(LOG_ERROR);
    if (!mkdtemp(dir)) {
        return 1;
    }
    snprintf(path, sizeof path, "%s/f.py", dir);
    if (fsio_write_atomic(path, functions, strlen(functions), &e) != 0) {
        return 1;
    }
    rc = cmocka_run_group_tests(tests, set_up, tear_down);
    return fsio_remove_tree(dir, &e) == 0 ? rc : 1;
}
