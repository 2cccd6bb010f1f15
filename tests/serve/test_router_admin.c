/* What the router answers itself, and requests that go to all workers. */
#include "serve/routerkit.h"

#define W routerkit_w

static json_t *get(const char *target)
{
    assert_int_equal(routerkit_ask("GET", target, ""), 200);
    return routerkit_json();
}

static int count(void)
{
    json_t *o = get("/list_workers");
    int n = (int)json_array_size(json_object_get(o, "urls"));
    json_decref(o);
    return n;
}

/* ---- workers ---- */

static void workers_come_and_go(void **state)
{
    struct router_opts o = routerkit_opts();
    char text[256];
    json_t *a, *b;
    (void)state;
    routerkit_start(&o, 1);
    for (int i = 1; i < 4; i++) {
        routerkit_worker_start(&W[i], i, 0);
    }
    /* As an argument, percent-encoded and plain; its first check is done when it is answered. */
    snprintf(text, sizeof text, "/add_worker?url=http%%3A%%2F%%2F127.0.0.1%%3A%d%%2F", W[1].port);
    assert_int_equal(routerkit_ask("POST", text, ""), 200);
    a = routerkit_json();
    assert_string_equal(json_string_value(json_object_get(a, "url")), W[1].url);
    assert_true(json_is_true(json_object_get(a, "is_healthy")));
    json_decref(a);
    snprintf(text, sizeof text, "/add_worker?url=%s", W[2].url);
    assert_int_equal(routerkit_ask("POST", text, ""), 200);
    /* As a body, by SGLang's newer way. */
    snprintf(text, sizeof text, "{\"url\": \"%s\", \"worker_type\": \"regular\"}", W[3].url);
    assert_int_equal(routerkit_ask("POST", "/workers", text), 202);
    assert_int_equal(count(), 4);
    routerkit_wait("active_workers", 4);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(routerkit_ask("POST", "/generate", "{}"), 200);
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(atomic_load(&W[i].asked), 2);
    }
    /* The same again is the same worker, begun anew. */
    snprintf(text, sizeof text, "{\"url\": \"%s\"}", W[3].url);
    assert_int_equal(routerkit_ask("POST", "/add_worker", text), 200);
    assert_int_equal(count(), 4);
    /* By address in all forms, and by id. */
    snprintf(text, sizeof text, "/remove_worker?url=%s", W[1].url);
    assert_int_equal(routerkit_ask("POST", text, ""), 200);
    assert_int_equal(routerkit_ask("POST", text, ""), 404);
    snprintf(text, sizeof text, "/workers/http%%3A%%2F%%2F127.0.0.1%%3A%d", W[2].port);
    assert_int_equal(routerkit_ask("DELETE", text, ""), 200);
    a = get("/workers");
    assert_int_equal(json_integer_value(json_object_get(a, "total")), 2);
    b = json_array_get(json_object_get(a, "workers"), 1);
    assert_string_equal(json_string_value(json_object_get(b, "url")), W[3].url);
    snprintf(text, sizeof text, "/workers/%s", json_string_value(json_object_get(b, "id")));
    json_decref(a);
    assert_int_equal(routerkit_ask("GET", text, ""), 200);
    assert_int_equal(routerkit_ask("PATCH", text, ""), 405);
    assert_int_equal(routerkit_ask("DELETE", text, ""), 200);
    assert_int_equal(routerkit_ask("GET", text, ""), 404);
    assert_int_equal(count(), 1);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(routerkit_ask("POST", "/generate", "{}"), 200);
        assert_int_equal(routerkit_who(), 0);
    }
    routerkit_stop(4);
}

static void nonsense_is_refused(void **state)
{
    static const char *const targets[] = {"/add_worker?url=",
                                          "/add_worker?url=ftp://x",
                                          "/add_worker?url=http://",
                                          "/add_worker?url=http:///x",
                                          "/add_worker?url=http://a%20b",
                                          "/add_worker?url=http://a%3Fb",
                                          "/add_worker?url=http://a%22b"};
    static const char *const bodies[] = {"",
                                         "{}",
                                         "[]",
                                         "{\"url\": 3}",
                                         "{\"url\": \"x\"}",
                                         "{",
                                         "{\"url\": \"http://a\", \"worker_type\": \"prefill\"}",
                                         "{\"url\": \"http://a\", \"colour\": \"red\"}"};
    struct router_opts o = routerkit_opts();
    struct router *rt;
    struct err e = {0};
    const char *urls[] = {"not an address"};
    (void)state;
    routerkit_start(&o, 0);
    for (size_t i = 0; i < sizeof targets / sizeof targets[0]; i++) {
        assert_int_equal(routerkit_ask("POST", targets[i], ""), 400);
    }
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        assert_int_equal(routerkit_ask("POST", "/add_worker", bodies[i]), 400);
        assert_int_equal(routerkit_ask("POST", "/workers", bodies[i]), 400);
    }
    assert_int_equal(count(), 0);
    routerkit_stop(0);
    o.urls = urls;
    o.nurls = 1;
    assert_int_equal(router_start(&o, &rt, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "not an address"));
}

static void late_starters(void **state)
{
    struct router_opts o = routerkit_opts();
    char text[256];
    int port;
    (void)state;
    o.worker.startup_s = 3;
    routerkit_start(&o, 0);
    routerkit_worker_start(&W[0], 0, 0);
    port = W[0].port;
    snprintf(text, sizeof text, "/add_worker?url=%s", W[0].url);
    routerkit_worker_kill(&W[0]);
    assert_int_equal(routerkit_ask("POST", text, ""), 200); /* known, and not yet healthy */
    assert_non_null(strstr(routerkit_body.data, "\"state\":\"starting\""));
    assert_int_equal(routerkit_ask("GET", "/health", ""), 503);
    pthread_mutex_destroy(&W[0].mu);
    routerkit_worker_start(&W[0], 0, port);
    routerkit_wait("active_workers", 1);
    assert_int_equal(routerkit_ask("GET", "/health", ""), 200);
    /* One that never starts is given up. */
    assert_int_equal(routerkit_ask("POST", "/add_worker?url=http://127.0.0.1:1", ""), 200);
    assert_int_equal(count(), 2);
    routerkit_wait("workers", 1);
    routerkit_stop(1);
}

static void removed_workers_finish(void **state)
{
    struct router_opts o = routerkit_opts();
    struct http_req *r;
    struct buf rest;
    char text[256];
    json_t *a;
    int fd;
    (void)state;
    routerkit_start(&o, 1);
    buf_init(&rest, 1 << 20);
    atomic_store(&W[0].mode, ROUTERKIT_HOLD);
    fd = netpeer_connect(routerkit_port);
    netpeer_text(fd, "POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}");
    r = routerkit_take(&W[0]);
    snprintf(text, sizeof text, "/remove_worker?url=%s", W[0].url);
    assert_int_equal(routerkit_ask("POST", text, ""), 200);
    a = routerkit_json();
    assert_int_equal(json_integer_value(json_object_get(a, "load")), 1);
    snprintf(text, sizeof text, "/workers/%s", json_string_value(json_object_get(a, "id")));
    json_decref(a);
    assert_int_equal(count(), 0);
    assert_int_equal(routerkit_ask("POST", "/generate", "{}"), 503);
    assert_int_equal(routerkit_ask("GET", text, ""), 200); /* until it is done */
    assert_non_null(strstr(routerkit_body.data, "\"state\":\"draining\""));
    http_req_reply(r, 200, "text/plain", "whole", 5);
    assert_int_equal(netpeer_answer(fd, &rest, &routerkit_head, &routerkit_body, 0), 200);
    assert_string_equal(routerkit_body.data, "whole");
    routerkit_wait("draining_workers", 0);
    assert_int_equal(routerkit_ask("GET", text, ""), 404);
    close(fd);
    buf_fini(&rest);
    routerkit_stop(1);
}

static void workers_are_forgotten(void **state)
{
    struct router_opts o = routerkit_opts();
    char text[256];
    (void)state;
    o.policy.kind = ROUTER_POLICY_CACHE_AWARE;
    routerkit_start(&o, 2);
    snprintf(text, sizeof text, "{\"text\": \"%0200d\"}", 1);
    assert_int_equal(routerkit_ask("POST", "/generate", text), 200);
    assert_true(routerkit_metric("tree_size") == 2);
    assert_int_equal(routerkit_ask("POST", "/generate", text), 200);
    assert_true(routerkit_metric("cache_hits_total") == 1);
    snprintf(text, sizeof text, "/remove_worker?url=%s", W[atomic_load(&W[0].asked) ? 0 : 1].url);
    assert_int_equal(routerkit_ask("POST", text, ""), 200);
    assert_true(routerkit_metric("tree_size") == 0);
    /* And what is flushed is not known either. */
    snprintf(text, sizeof text, "{\"text\": \"%0200d\"}", 1);
    assert_int_equal(routerkit_ask("POST", "/generate", text), 200);
    assert_true(routerkit_metric("tree_size") == 2);
    assert_int_equal(routerkit_ask("POST", "/flush_cache", ""), 200);
    assert_true(routerkit_metric("tree_size") == 0);
    routerkit_stop(2);
}

/* ---- requests to all ---- */

static void all_are_told(void **state)
{
    static const char *const paths[] = {"/flush_cache", "/abort_request", "/pause_generation",
                                        "/update_weights_from_disk"};
    struct router_opts o = routerkit_opts();
    (void)state;
    routerkit_start(&o, 3);
    for (int k = 0; k < 4; k++) {
        json_t *a, *list;
        assert_int_equal(routerkit_ask("POST", paths[k], "{\"x\": 1}"), 200);
        a = routerkit_json();
        list = json_object_get(a, "workers");
        assert_true(json_is_true(json_object_get(a, "success")));
        assert_string_equal(json_string_value(json_object_get(a, "message")), "done");
        assert_int_equal(json_array_size(list), 3);
        for (int i = 0; i < 3; i++) {
            json_t *w = json_array_get(list, (size_t)i);
            assert_string_equal(json_string_value(json_object_get(w, "url")), W[i].url);
            assert_int_equal(
                json_integer_value(json_object_get(json_object_get(w, "answer"), "of")), i);
            assert_int_equal(atomic_load(&W[i].controlled), k + 1);
        }
        json_decref(a);
    }
    assert_true(routerkit_metric("fanouts_total") == 4);
    /* They all say no: so does the router, and asks nobody twice. */
    for (int i = 0; i < 3; i++) {
        atomic_store(&W[i].mode, ROUTERKIT_STATUS);
        atomic_store(&W[i].status, 400);
    }
    assert_int_equal(routerkit_ask("POST", "/pause_generation", "{}"), 400);
    assert_non_null(strstr(routerkit_body.data, "\"success\":false"));
    atomic_store(&W[0].status, 503);
    assert_int_equal(routerkit_ask("POST", "/pause_generation", "{}"), 502); /* not all the same */
    for (int i = 0; i < 3; i++) {
        assert_int_equal(atomic_load(&W[i].controlled), 6);
    }
    /* What is made for one worker is not for three. */
    assert_int_equal(routerkit_ask("POST", "/update_weights_from_tensor", "{}"), 400);
    routerkit_stop(3);
}

static void missed_weights_are_stale(void **state)
{
    struct router_opts o = routerkit_opts();
    (void)state;
    routerkit_start(&o, 2);
    atomic_store(&W[1].mode, ROUTERKIT_STATUS);
    atomic_store(&W[1].status, 400);
    assert_int_equal(routerkit_ask("POST", "/update_weights_from_disk", "{}"), 502);
    assert_non_null(strstr(routerkit_body.data, "done by 1 of 2 workers"));
    atomic_store(&W[1].mode, ROUTERKIT_ANSWER);
    assert_true(routerkit_metric("active_workers") == 1);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(routerkit_ask("POST", "/generate", "{}"), 200);
        assert_int_equal(routerkit_who(), 0);
    }
    assert_int_equal(routerkit_ask("GET", "/workers", ""), 200);
    assert_non_null(strstr(routerkit_body.data, "\"state\":\"stale\""));
    assert_int_equal(routerkit_ask("POST", "/update_weights_from_disk", "{}"), 200);
    assert_true(routerkit_metric("active_workers") == 2);
    /* All refuse: nobody has new weights, nobody is stale. */
    atomic_store(&W[0].mode, ROUTERKIT_STATUS);
    atomic_store(&W[0].status, 400);
    atomic_store(&W[1].mode, ROUTERKIT_STATUS);
    assert_int_equal(routerkit_ask("POST", "/update_weights_from_disk", "{}"), 400);
    assert_true(routerkit_metric("active_workers") == 2);
    routerkit_stop(2);
}

static void the_restarted_are_stale(void **state)
{
    struct router_opts o = routerkit_opts();
    char text[128];
    (void)state;
    routerkit_start(&o, 2);
    for (int i = 0; i < 2; i++) {
        routerkit_version(&W[i], "v3");
    }
    assert_int_equal(
        routerkit_ask("POST", "/update_weights_from_disk", "{\"weight_version\": \"v3\"}"), 200);
    /* Away and back, with the same weights. */
    atomic_store(&W[1].sick, 1);
    routerkit_wait("active_workers", 1);
    atomic_store(&W[1].sick, 0);
    routerkit_wait("active_workers", 2);
    /* Away and back, with others. */
    atomic_store(&W[1].sick, 1);
    routerkit_wait("active_workers", 1);
    routerkit_version(&W[1], "default");
    atomic_store(&W[1].sick, 0);
    for (double end = proc_now() + 10; proc_now() < end; netpeer_sleep(0.01)) {
        assert_int_equal(routerkit_ask("GET", "/workers", ""), 200);
        if (strstr(routerkit_body.data, "\"state\":\"stale\"")) {
            break;
        }
    }
    assert_non_null(strstr(routerkit_body.data, "\"state\":\"stale\""));
    assert_true(routerkit_metric("active_workers") == 1);
    /* To add it again is no help, to give it the weights is. */
    snprintf(text, sizeof text, "/add_worker?url=%s", W[1].url);
    assert_int_equal(routerkit_ask("POST", text, ""), 200);
    assert_non_null(strstr(routerkit_body.data, "\"state\":\"stale\""));
    assert_int_equal(routerkit_ask("POST", "/update_weight_version", "{\"new_version\": \"v4\"}"),
                     200);
    assert_true(routerkit_metric("active_workers") == 2);
    routerkit_stop(2);
}

static void the_dead_need_no_abort(void **state)
{
    struct router_opts o = routerkit_opts();
    (void)state;
    routerkit_start(&o, 2);
    routerkit_worker_kill(&W[1]);
    routerkit_wait("active_workers", 1);
    assert_int_equal(routerkit_ask("POST", "/abort_request", "{\"abort_all\": true}"), 200);
    assert_non_null(strstr(routerkit_body.data, "\"skipped\":"));
    assert_int_equal(routerkit_ask("POST", "/pause_generation", "{}"), 502);
    assert_non_null(strstr(routerkit_body.data, "\"error\":"));
    routerkit_stop(2);
}

static void figures_are_joined(void **state)
{
    struct router_opts o = routerkit_opts();
    json_t *a;
    char want[1024];
    (void)state;
    routerkit_start(&o, 2);
    a = get("/get_server_info");
    assert_int_equal(json_array_size(json_object_get(a, "internal_states")), 2);
    assert_int_equal(json_array_size(json_object_get(a, "workers")), 2);
    assert_int_equal(json_integer_value(json_object_get(a, "of")), 0);
    assert_int_equal(json_array_size(json_object_get(json_object_get(a, "router"), "workers")), 2);
    json_decref(a);
    assert_int_equal(routerkit_ask("GET", "/engine_metrics", ""), 200);
    snprintf(want, sizeof want,
             "# HELP a An a.\n# TYPE a gauge\n"
             "a{worker=\"%s\",m=\"x\"} 1\na{worker=\"%s\"} 2\n"
             "a{worker=\"%s\",m=\"x\"} 1\na{worker=\"%s\"} 2\n"
             "# HELP h An h.\n# TYPE h histogram\n"
             "h_bucket{worker=\"%s\",le=\"1\"} 3\nh_sum{worker=\"%s\"} 4\n"
             "h_bucket{worker=\"%s\",le=\"1\"} 3\nh_sum{worker=\"%s\"} 4\n",
             W[0].url, W[0].url, W[1].url, W[1].url, W[0].url, W[0].url, W[1].url, W[1].url);
    assert_string_equal(routerkit_body.data, want);
    a = get("/get_loads");
    assert_int_equal(json_array_size(json_object_get(a, "workers")), 2);
    json_decref(a);
    assert_int_equal(routerkit_ask("GET", "/readiness", ""), 200);
    assert_non_null(strstr(routerkit_body.data, "\"healthy_workers\":2"));
    routerkit_stop(2);
}

/* Whatever the order in which clients, workers and the router leave: nothing is left behind, which
 * the sanitizers check. */
static void ends_in_any_order(void **state)
{
    struct router_opts o = routerkit_opts();
    (void)state;
    for (int k = 0; k < 6; k++) {
        int fd[6];
        routerkit_start(&o, 2);
        atomic_store(&W[0].mode, ROUTERKIT_HOLD);
        atomic_store(&W[1].mode, k & 1 ? ROUTERKIT_HOLD : ROUTERKIT_STATUS);
        for (int i = 0; i < 6; i++) {
            fd[i] = netpeer_connect(routerkit_port);
            netpeer_text(fd[i],
                         "POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}");
        }
        netpeer_text(fd[5], "POST /pause_generation HTTP/1.1\r\nHost: x\r\n\r\n");
        netpeer_sleep(0.02 * k);
        if (k % 3 == 0) {
            router_stop(routerkit_rt);
            routerkit_worker_kill(&W[0]);
        } else if (k % 3 == 1) {
            for (int i = 0; i < 6; i++) {
                close(fd[i]);
                fd[i] = -1;
            }
            router_stop(routerkit_rt);
            routerkit_worker_kill(&W[0]);
        } else {
            routerkit_worker_kill(&W[0]);
            router_stop(routerkit_rt);
        }
        routerkit_worker_kill(&W[1]);
        for (int i = 0; i < 6; i++) {
            if (fd[i] >= 0) {
                close(fd[i]);
            }
        }
        pthread_mutex_destroy(&W[0].mu);
        pthread_mutex_destroy(&W[1].mu);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(workers_come_and_go),
        cmocka_unit_test(nonsense_is_refused),
        cmocka_unit_test(late_starters),
        cmocka_unit_test(removed_workers_finish),
        cmocka_unit_test(workers_are_forgotten),
        cmocka_unit_test(all_are_told),
        cmocka_unit_test(missed_weights_are_stale),
        cmocka_unit_test(the_restarted_are_stale),
        cmocka_unit_test(the_dead_need_no_abort),
        cmocka_unit_test(figures_are_joined),
        cmocka_unit_test(ends_in_any_order),
    };
    return cmocka_run_group_tests(tests, routerkit_setup, routerkit_teardown);
}
