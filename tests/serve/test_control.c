/* What the server does beside generation: information, weights and their versions, memory, limits,
 * slow readers, and its end. */
#include "serve/servekit.h"

#include <unistd.h>

static struct servekit kit;

static int setup(void **state)
{
    struct api_opts o = {.service = {.engine = {.max_running = 4}, .max_queued = 6}};
    (void)state;
    servekit_start(&kit, &o);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    servekit_stop(&kit);
    return 0;
}

#define ASK                                                                                        \
    "{\"input_ids\":[9,8,7,6],\"return_logprob\":true,\"sampling_params\":{"                       \
    "\"max_new_tokens\":20,\"ignore_eos\":true,\"sampling_seed\":4}}"

/* What a fresh server over the second model says. */
static json_t *other_model(void)
{
    struct servekit k;
    char first[256];
    json_t *o;

    strcpy(first, servekit_dir[0]);
    strcpy(servekit_dir[0], servekit_dir[1]);
    servekit_start(&k, NULL);
    o = servekit_ok(&k, "/generate", ASK);
    servekit_stop(&k);
    strcpy(servekit_dir[0], first);
    return o;
}

static json_t *logps(json_t *o)
{
    return servekit_at(o, "meta_info", "output_token_logprobs");
}

static void update(int which, const char *version)
{
    char q[512];
    snprintf(q, sizeof q, "{\"model_path\":\"%s\",\"weight_version\":\"%s\"}", servekit_dir[which],
             version);
    json_decref(servekit_ok(&kit, "/update_weights_from_disk", q));
}

static void test_weights(void **state)
{
    json_t *want[2], *o;
    int status;

    (void)state;
    want[0] = servekit_ok(&kit, "/generate", ASK);
    want[1] = other_model();
    assert_false(json_equal(logps(want[0]), logps(want[1])));
    json_decref(servekit_ok(&kit, "/weights_checker", "{\"action\":\"snapshot\"}"));
    for (int i = 1; i <= 4; i++) {
        char version[16];
        snprintf(version, sizeof version, "%d", i);
        update(i % 2, version);
        o = servekit_ok(&kit, "/generate", ASK);
        assert_true(json_equal(logps(o), logps(want[i % 2])));
        assert_string_equal(servekit_text(o, "meta_info", "weight_version"), version);
        json_decref(o);
        o = servekit_post(&kit, "/weights_checker", "{\"action\":\"compare\"}", &status);
        assert_int_equal(status, i % 2 ? 400 : 200);
        assert_int_equal(json_is_true(servekit_at(o, "success", NULL)), i % 2 == 0);
        json_decref(o);
    }
    o = servekit_ok(&kit, "/get_weights_by_name", "{\"name\":\"model.norm.weight\"}");
    assert_int_equal(json_array_size(o), 64);
    json_decref(o);
    o = servekit_ok(&kit, "/get_weights_by_name",
                    "{\"name\":\"model.norm.weight\",\"truncate_size\":5}");
    assert_int_equal(json_array_size(o), 5);
    json_decref(o);
    o = servekit_ok(&kit, "/weights_checker", "");
    assert_int_equal(json_object_size(servekit_at(json_array_get(servekit_at(o, "ranks", NULL), 0),
                                                  "checksums", NULL)),
                     kit.m.w->nparams);
    assert_int_equal(strlen(servekit_text(o, "per_engine_checksum", NULL)), 64);
    json_decref(o);
    o = servekit_ok(&kit, "/get_weights_by_name",
                    "{\"name\":\"model.layers.1.self_attn.k_proj.weight\",\"truncate_size\":3}");
    assert_int_equal(json_array_size(o), 3);
    assert_int_equal(json_array_size(json_array_get(o, 0)), 64);
    json_decref(o);
    json_decref(servekit_post(&kit, "/get_weights_by_name", "{\"name\":\"none\"}", &status));
    assert_int_equal(status, 400);
    o = servekit_post(&kit, "/update_weights_from_disk", "{\"model_path\":\"/nowhere\"}", &status);
    assert_int_equal(status, 400);
    assert_true(json_is_false(servekit_at(o, "success", NULL)));
    json_decref(o);
    json_decref(servekit_ok(&kit, "/update_weight_version", "{\"new_version\":\"x\"}"));
    o = servekit_get(&kit, "/get_model_info", &status);
    assert_string_equal(servekit_text(o, "weight_version", NULL), "x");
    json_decref(o);
    json_decref(want[0]);
    json_decref(want[1]);
}

/* A request that runs while the weights change goes on under the new ones and says so. */
static void test_change_under_way(void **state)
{
    int fd, status;
    json_t *o, *versions;
    char some[512];

    (void)state;
    fd = servekit_ask(kit.port, "POST", "/generate",
                      "{\"input_ids\":[4,4,4],\"stream\":true,\"sampling_params\":{"
                      "\"max_new_tokens\":240,\"ignore_eos\":true}}");
    assert_true(recv(fd, some, sizeof some, MSG_PEEK) > 0);
    update(1, "new");
    close(fd);
    json_decref(servekit_ok(&kit, "/pause_generation", "{\"mode\":\"in_place\"}"));
    fd = servekit_ask(kit.port, "POST", "/generate", ASK);
    update(0, "newer");
    json_decref(servekit_ok(&kit, "/continue_generation", "{}"));
    o = servekit_json(fd, &status);
    assert_int_equal(status, 200);
    assert_string_equal(servekit_text(o, "meta_info", "weight_version"), "newer");
    versions = json_object_get(json_object_get(o, "meta_info"), "weight_versions");
    assert_int_equal(json_array_size(versions), 1); /* it had not begun before */
    assert_string_equal(servekit_text(json_array_get(versions, 0), "version", NULL), "newer");
    assert_int_equal(json_integer_value(servekit_at(json_array_get(versions, 0), "end", NULL)),
                     json_integer_value(servekit_at(o, "meta_info", "completion_tokens")));
    json_decref(o);
}

static void test_memory(void **state)
{
    int status;
    json_t *o = servekit_ok(&kit, "/generate", ASK), *again;

    (void)state;
    json_decref(servekit_ok(&kit, "/release_memory_occupation", "{\"tags\":[\"kv_cache\"]}"));
    json_decref(servekit_post(&kit, "/generate", ASK, &status));
    assert_int_equal(status, 503);
    json_decref(servekit_ok(&kit, "/resume_memory_occupation", ""));
    again = servekit_ok(&kit, "/generate", ASK);
    assert_true(json_equal(logps(o), logps(again)));
    json_decref(servekit_post(&kit, "/release_memory_occupation", "{\"tags\":[\"x\"]}", &status));
    assert_int_equal(status, 400);
    json_decref(o);
    json_decref(again);
}

/* The weights' memory is given back; they come again from their files, or others do. */
static void test_weights_memory(void **state)
{
    static const char weights[] = "{\"tags\":[\"weights\"]}";
    json_t *o, *again;
    char q[512], away[300];
    int status;

    (void)state;
    update(0, "w0");
    o = servekit_ok(&kit, "/generate", ASK);
    json_decref(servekit_ok(&kit, "/release_memory_occupation", weights));
    assert_null(kit.m.w->params[0].w16.data);
    assert_true(kit.m.w->dropped);
    json_decref(servekit_post(&kit, "/generate", ASK, &status));
    assert_int_equal(status, 503);
    json_decref(
        servekit_post(&kit, "/get_weights_by_name", "{\"name\":\"model.norm.weight\"}", &status));
    assert_int_equal(status, 503);
    json_decref(servekit_post(&kit, "/weights_checker", "{\"action\":\"reset_tensors\"}", &status));
    assert_int_equal(status, 503);
    json_decref(servekit_ok(&kit, "/release_memory_occupation", weights)); /* once is enough */
    json_decref(servekit_ok(&kit, "/resume_memory_occupation", weights));
    again = servekit_ok(&kit, "/generate", ASK);
    assert_true(json_equal(logps(o), logps(again)));
    assert_string_equal(servekit_text(again, "meta_info", "weight_version"), "w0");
    json_decref(again);

    /* all of it, and new weights instead of the old ones */
    json_decref(servekit_ok(&kit, "/release_memory_occupation", "{}"));
    update(1, "w1");
    json_decref(servekit_post(&kit, "/generate", ASK, &status));
    assert_int_equal(status, 503); /* the cache is not back */
    json_decref(servekit_ok(&kit, "/resume_memory_occupation", "{\"tags\":[\"kv_cache\"]}"));
    again = servekit_ok(&kit, "/generate", ASK);
    assert_false(json_equal(logps(o), logps(again)));
    assert_string_equal(servekit_text(again, "meta_info", "weight_version"), "w1");
    json_decref(again);

    /* files that are gone, or not what they were: told, and they may come later */
    json_decref(servekit_ok(&kit, "/release_memory_occupation", weights));
    snprintf(away, sizeof away, "%s.away", servekit_dir[1]);
    assert_int_equal(rename(servekit_dir[1], away), 0);
    json_decref(servekit_post(&kit, "/resume_memory_occupation", weights, &status));
    assert_true(status >= 400);
    assert_int_equal(symlink(servekit_dir[0], servekit_dir[1]), 0);
    again = servekit_post(&kit, "/resume_memory_occupation", weights, &status);
    assert_int_equal(status, 400);
    assert_non_null(strstr(servekit_text(again, "error", "message"), "were released"));
    json_decref(again);
    assert_true(kit.m.w->dropped);
    assert_int_equal(unlink(servekit_dir[1]), 0);
    assert_int_equal(rename(away, servekit_dir[1]), 0);
    json_decref(servekit_ok(&kit, "/resume_memory_occupation", ""));
    snprintf(q, sizeof q, "{\"model_path\":\"%s\"}", servekit_dir[0]);
    json_decref(servekit_ok(&kit, "/update_weights_from_disk", q));
    again = servekit_ok(&kit, "/generate", ASK);
    assert_true(json_equal(logps(o), logps(again)));
    json_decref(again);
    json_decref(o);
}

static void test_queue_is_bounded(void **state)
{
    int fd[6], status;

    (void)state;
    json_decref(servekit_ok(&kit, "/pause_generation", "{\"mode\":\"in_place\"}"));
    for (int i = 0; i < 6; i++) {
        struct service_stats st;
        fd[i] = servekit_ask(kit.port, "POST", "/generate", ASK);
        do {
            service_get_stats(kit.api->service, &st);
            netpeer_sleep(0.001);
        } while (st.load <= i);
    }
    json_decref(servekit_post(&kit, "/generate", ASK, &status));
    assert_int_equal(status, 503);
    json_decref(servekit_post(&kit, "/generate", "{\"text\":\"a\",\"sampling_params\":{\"n\":7}}",
                              &status));
    assert_int_equal(status, 400);
    json_decref(servekit_ok(&kit, "/continue_generation", ""));
    for (int i = 0; i < 6; i++) {
        json_t *o = servekit_json(fd[i], &status);
        assert_int_equal(status, 200);
        json_decref(o);
    }
    json_decref(servekit_ok(&kit, "/generate", ASK));
}

/* A reader that takes nothing for long gets the end all the same, and holds nobody up. */
static void test_slow_reader(void **state)
{
    struct buf rest, head, body;
    int fd = netpeer_connect_small(kit.port, 2048), status;
    static const char q[] = "{\"input_ids\":[3],\"stream\":true,\"return_logprob\":true,"
                            "\"top_logprobs_num\":40,\"sampling_params\":{"
                            "\"max_new_tokens\":250,\"ignore_eos\":true}}";
    char http[512];

    (void)state;
    snprintf(http, sizeof http,
             "POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s", strlen(q), q);
    assert_int_equal(netpeer_text(fd, http), 0);
    for (int i = 0; i < 5; i++) {
        json_decref(servekit_ok(&kit, "/generate", ASK));
    }
    servekit_idle(&kit);
    buf_init(&rest, 256u << 20);
    buf_init(&head, 1 << 20);
    buf_init(&body, 256u << 20);
    status = netpeer_answer(fd, &rest, &head, &body, 0);
    assert_int_equal(status, 200);
    assert_non_null(strstr(body.data, "\"completion_tokens\":250"));
    assert_string_equal(body.data + body.len - 14, "data: [DONE]\n\n");
    close(fd);
    /* and one that never comes back */
    fd = netpeer_connect_small(kit.port, 2048);
    assert_int_equal(netpeer_text(fd, http), 0);
    netpeer_sleep(0.2);
    close(fd);
    buf_fini(&rest);
    buf_fini(&head);
    buf_fini(&body);
}

static void test_information(void **state)
{
    struct buf b;
    json_t *o;
    int status;

    (void)state;
    json_decref(servekit_ok(&kit, "/generate", ASK));
    servekit_idle(&kit); /* the step that gave the answer is over, and counted */
    o = servekit_get(&kit, "/get_server_info", &status);
    assert_int_equal(json_integer_value(servekit_at(o, "context_length", NULL)), SERVEKIT_CONTEXT);
    assert_int_equal(json_array_size(servekit_at(o, "internal_states", NULL)), 1);
    json_decref(o);
    buf_init(&b, 1 << 20);
    /* an answer may be there a moment before the figures of its last step */
    for (struct service_stats st = {0}; st.finished == 0; netpeer_sleep(0.001)) {
        service_get_stats(kit.api->service, &st);
    }
    assert_int_equal(servekit_answer(servekit_ask(kit.port, "GET", "/metrics", ""), &b), 200);
    assert_non_null(strstr(b.data, "sglang:generation_tokens_total{model_name=\"tiny\"} 20\n"));
    assert_non_null(
        strstr(b.data, "sglang:e2e_request_latency_seconds_count{model_name=\"tiny\"} 1\n"));
    assert_int_equal(servekit_answer(servekit_ask(kit.port, "GET", "/flush_cache", ""), &b), 200);
    assert_int_equal(servekit_answer(servekit_ask(kit.port, "GET", "/nothing", ""), &b), 404);
    buf_fini(&b);
}

/* Requests that run at the end are answered; so are those that a stop ends. */
static void test_drain(void **state)
{
    struct servekit k;
    struct buf b;
    int fd;

    (void)state;
    servekit_start(&k, NULL);
    fd = servekit_ask(k.port, "POST", "/generate", ASK);
    for (struct service_stats st = {0}; st.load == 0 && st.finished == 0; netpeer_sleep(0.001)) {
        service_get_stats(k.api->service, &st);
    }
    assert_int_equal(api_drain(k.api, 30.0), 0);
    buf_init(&b, 1 << 20);
    assert_int_equal(servekit_answer(fd, &b), 200);
    servekit_stop(&k);
    /* ended in the middle */
    servekit_start(&k, NULL);
    fd = servekit_ask(k.port, "POST", "/generate", ASK);
    netpeer_sleep(0.01);
    api_stop(k.api);
    tokenizer_close(k.tok);
    tinymodel_close(&k.m);
    close(fd);
    buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_weights, setup, teardown),
        cmocka_unit_test_setup_teardown(test_change_under_way, setup, teardown),
        cmocka_unit_test_setup_teardown(test_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(test_weights_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(test_queue_is_bounded, setup, teardown),
        cmocka_unit_test_setup_teardown(test_slow_reader, setup, teardown),
        cmocka_unit_test_setup_teardown(test_information, setup, teardown),
        cmocka_unit_test(test_drain),
    };
    return cmocka_run_group_tests(tests, servekit_setup, fixture_teardown);
}
