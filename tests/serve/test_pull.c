/* Weights fetched over HTTP from a server that breaks off, lies and forgets, and the request that
 * has `miles serve` take them. */
#include "serve/servekit.h"

#include <poll.h>

#include "rl/wsync_delta.h"
#include "serve/pull.h"

static struct err e;

/* ---- a server of files, one request to a connection ---- */

static struct {
    int fd, port;
    pthread_t thread;
    atomic_int stop;
    const char *dir;
    /* what it does to the next so many answers */
    atomic_int cut, flip, refuse, gone;
    atomic_int no_range;         /* 1: always whole files */
    atomic_int requests, ranges; /* so far */
} peer;

static int fires(atomic_int *n)
{
    return atomic_load(n) > 0 && atomic_fetch_sub(n, 1) > 0;
}

static void peer_answer(int fd, const char *request)
{
    char path[600], name[256], head[200];
    const char *range = strstr(request, "Range: bytes=");
    long long from = range && !atomic_load(&peer.no_range) ? atoll(range + 13) : 0;
    char *data;
    size_t n, len;

    atomic_fetch_add(&peer.requests, 1);
    assert_int_equal(sscanf(request, "GET /w/%255s", name), 1);
    snprintf(path, sizeof path, "%s/%s", peer.dir, name);
    if (fires(&peer.gone) || fsio_read(path, 1 << 24, &data, &n, NULL) != STATUS_OK) {
        netpeer_text(fd, "HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n"
                         "Connection: close\r\n\r\ngone");
        return;
    }
    atomic_fetch_add(&peer.ranges, from > 0);
    len = n - (size_t)from;
    snprintf(head, sizeof head, "HTTP/1.1 %s\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
             from > 0 ? "206 Partial Content" : "200 OK", len);
    netpeer_text(fd, head);
    if (fires(&peer.flip)) {
        data[(size_t)from + len / 3] ^= 32;
    }
    netpeer_send(fd, data + from, fires(&peer.cut) ? len / 2 : len);
    mem_free(data);
}

static void *peer_run(void *arg)
{
    (void)arg;
    while (!atomic_load(&peer.stop)) {
        struct pollfd p = {.fd = peer.fd, .events = POLLIN};
        struct buf b;
        int fd;
        if (poll(&p, 1, 20) <= 0) {
            continue;
        }
        fd = accept(peer.fd, NULL, NULL);
        buf_init(&b, 1 << 16);
        while (!strstr(b.data, "\r\n\r\n") && netpeer_more(fd, &b) > 0) {
        }
        if (!fires(&peer.refuse) && b.len) {
            peer_answer(fd, b.data);
        }
        shutdown(fd, SHUT_WR);
        while (netpeer_more(fd, &b) > 0) {
        }
        close(fd);
        buf_fini(&b);
    }
    return NULL;
}

static void peer_start(const char *dir)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    socklen_t len = sizeof a;

    memset(&peer, 0, sizeof peer);
    peer.dir = dir;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    peer.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(peer.fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(peer.fd, 16), 0);
    assert_int_equal(getsockname(peer.fd, (struct sockaddr *)&a, &len), 0);
    peer.port = ntohs(a.sin_port);
    assert_int_equal(pthread_create(&peer.thread, NULL, peer_run, NULL), 0);
}

static void peer_stop(void)
{
    atomic_store(&peer.stop, 1);
    pthread_join(peer.thread, NULL);
    close(peer.fd);
}

/* ---- a trainer and an engine ---- */

static struct sharedmodel trainer;
static struct wsync_delta *delta;
static struct servekit kit;
static char *dir;

static void publish(void)
{
    const struct wsync *s = wsync_delta_sync(delta);
    assert_ok(s->prepare(s->self, trainer.m.w->version, &e), &e);
}

static int setup(void **state)
{
    struct wsync_delta_opts o = {.full_every = 3};

    if (servekit_setup(state) != 0) {
        return -1;
    }
    dir = mem_strdup(fixture_path("store"));
    servekit_start(&kit, NULL);
    sharedmodel_open(&trainer, servekit_dir[0], 1);
    o.w = trainer.m.w;
    o.store = (struct wstore_opts){.dir = dir, .keep_s = 1e9};
    assert_ok(wsync_delta_open(&o, &delta, &e), &e);
    for (int v = 0; v < 6; v++) { /* 0 and 3 are whole */
        publish();
        if (v < 5) {
            sharedmodel_step(&trainer);
        }
    }
    peer_start(dir);
    return 0;
}

static int teardown(void **state)
{
    peer_stop();
    servekit_stop(&kit);
    wsync_delta_close(delta);
    sharedmodel_close(&trainer);
    mem_free(dir);
    return fixture_teardown(state);
}

static json_t *take(int version, const char *more, int *status)
{
    char q[512];
    snprintf(q, sizeof q, "{\"source\":\"http://127.0.0.1:%d/w\",\"weight_version\":\"%d\"%s}",
             peer.port, version, more);
    return servekit_post(&kit, "/update_weights_from_delta", q, status);
}

static int number(json_t *o, const char *name)
{
    return (int)json_integer_value(json_object_get(o, name));
}

static json_t *taken(int version)
{
    json_t *o, *label;
    int status = 0;

    o = take(version, "", &status);
    if (status != 200) {
        fail_msg("version %d: %s", version, json_dumps(o, 0));
    }
    label = servekit_get(&kit, "/get_weight_version", &status);
    assert_int_equal(atoi(json_string_value(json_object_get(label, "weight_version"))), version);
    json_decref(label);
    return o;
}

static void refused(int version, const char *more, int want, const char *why)
{
    json_t *before =
               servekit_post(&kit, "/weights_checker", "{\"action\":\"checksum\"}", &(int){0}),
           *after, *o;
    int status = 0;

    o = take(version, more, &status);
    if (status != want || !strstr(json_string_value(json_object_get(o, "message")), why)) {
        fail_msg("status %d, not %d with \"%s\": %s", status, want, why, json_dumps(o, 0));
    }
    after = servekit_post(&kit, "/weights_checker", "{\"action\":\"checksum\"}", &status);
    assert_true(json_equal(before, after)); /* sums and version are what they were */
    json_decref(before);
    json_decref(after);
    json_decref(o);
}

static void test_versions(void **state)
{
    json_t *o = taken(0);

    (void)state;
    assert_int_equal(number(o, "versions"), 0); /* it has them */
    assert_int_equal(number(o, "files"), 1);
    json_decref(o);
    o = taken(2);
    assert_int_equal(number(o, "versions"), 2);
    assert_int_equal(number(o, "files"), 4);
    json_decref(o);
    o = taken(5);
    assert_int_equal(number(o, "versions"), 3); /* 3 is whole */
    json_decref(o);
    servekit_idle(&kit);
    for (int i = 0; i < trainer.m.w->nparams; i++) {
        const struct param *p = &trainer.m.w->params[i];
        int64_t n = weights_part_count(p, 0);
        uint16_t *a = mem_alloc(2 * (size_t)n), *b = mem_alloc(2 * (size_t)n);
        assert_ok(weights_read_bf16(trainer.m.w, p->part[0].name, a, n, &e), &e);
        assert_ok(weights_read_bf16(kit.m.w, p->part[0].name, b, n, &e), &e);
        assert_memory_equal(a, b, 2 * (size_t)n);
        mem_free(a);
        mem_free(b);
    }
}

/* Broken off, refused, damaged: it goes on, with Range where that helps. */
static void test_faults(void **state)
{
    int before = atomic_load(&peer.ranges);
    json_t *o;

    (void)state;
    json_decref(taken(0));
    atomic_store(&peer.cut, 3);
    o = taken(1);
    assert_int_equal(number(o, "resumed"), 3);
    assert_int_equal(atomic_load(&peer.ranges) - before, 3);
    assert_int_equal(number(o, "fetched_again"), 0);
    json_decref(o);
    atomic_store(&peer.no_range, 1); /* a relay that knows no Range begins anew */
    atomic_store(&peer.cut, 2);
    o = taken(2);
    assert_int_equal(number(o, "resumed"), 0);
    json_decref(o);
    atomic_store(&peer.no_range, 0);
    atomic_store(&peer.refuse, 2);
    json_decref(taken(3));
    json_decref(taken(2));
    atomic_store(&peer.gone, 2);
    json_decref(taken(0));
}

static void test_refusals(void **state)
{
    (void)state;
    json_decref(taken(1));
    refused(5, ",\"only\":true", 400, "version 5 changes version 4 with sum ");
    refused(5, ",\"only\":true", 400, "this engine has version 1 with sum ");
    refused(77, "", 400, "there is no http");
    refused(2, ",\"manifest\":\"00000000000000000000000000000000\"", 500, "a wrong hash");
    refused(2, ",\"manifest\":\"../../x\"", 400, "manifest is not the hash");
    refused(2, ",\"sauce\":1", 400, "sauce");
    atomic_store(&peer.refuse,
                 1000); /* nothing comes: not now, says the engine, and the port asks again */
    refused(2, ",\"timeout_s\":0.5", 503, "were not there after");
    atomic_store(&peer.refuse, 0);
    atomic_store(&peer.flip, 1000);
    refused(2, "", 400, "no manifest");
    atomic_store(&peer.flip, 0);
    json_decref(taken(2));
}

/* A damaged chunk comes again. The hash of the manifest is known here, as it is in a run. */
static void test_damaged(void **state)
{
    struct wsync_request r;
    const struct wsync *s = wsync_delta_sync(delta);
    char more[128];
    json_t *o;
    int status = 0;

    (void)state;
    json_decref(taken(4));
    assert_ok(s->take(s->self, 5, &r, &e), &e);
    snprintf(more, sizeof more, ",\"manifest\":\"%s\"",
             json_string_value(json_object_get(r.body, "manifest")));
    json_decref(r.body);
    atomic_store(&peer.flip, 2);
    o = take(5, more, &status);
    assert_int_equal(status, 200);
    assert_int_equal(number(o, "fetched_again"), 2);
    json_decref(o);
    json_decref(taken(4));
    atomic_store(&peer.flip, 1000);
    refused(5, more, 500, "times with a wrong hash");
    atomic_store(&peer.flip, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_versions),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_damaged),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
