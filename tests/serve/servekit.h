/* A server over a small random model for the tests of serve/, and a client that speaks to it
 * through a real socket.
 *
 *     struct servekit k;
 *     servekit_start(&k, NULL);
 *     json_t *o = servekit_post(&k, "/generate", "{...}", &status);
 *     servekit_stop(&k); */
#ifndef TESTS_SERVE_SERVEKIT_H
#define TESTS_SERVE_SERVEKIT_H

#include "model/sharedmodel.h"

#include <jansson.h>
#include <pthread.h>

#include "net/netpeer.h"
#include "net/sse.h"
#include "serve/api.h"
#include "serve/printable.h"
#include "text/tokenizer.h"

enum { SERVEKIT_VOCAB = 97, SERVEKIT_CONTEXT = 256 };

static const struct tinymodel_spec servekit_spec = {
    "qwen3", 1, 2, 64, 2, 1, 32, 96, SERVEKIT_VOCAB, SERVEKIT_CONTEXT, 2.0f};
static char servekit_dir[2][256]; /* two models of one shape */
static const char
    *servekit_generation; /* generation_config.json of servers to be started, or NULL */

static int servekit_fd = -1; /* shared weights that servers to be started attach; -1: none */

static const char servekit_template[] =
    "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if tools %}tools:{% for t in tools %} {{ t.function.name }}{% endfor %}\n{% endif %}"
    "{% if enable_thinking is defined %}think:{{ enable_thinking }},{{ reasoning_effort }}{% endif "
    "%}"
    "{% if add_generation_prompt %}<s>assistant:{% endif %}";

static inline int servekit_setup(void **state)
{
    if (fixture_setup(state) != 0) {
        return -1;
    }
    for (int i = 0; i < 2; i++) {
        snprintf(servekit_dir[i], sizeof servekit_dir[i], "%s", tinymodel_write(&servekit_spec));
    }
    return 0;
}

struct servekit {
    struct tinymodel m;
    struct tokenizer *tok;
    struct api *api;
    int port;
};

static inline void servekit_start(struct servekit *k, const struct api_opts *opts)
{
    struct api_opts o = {0};
    struct api_model m = {0};
    struct err e = {0};
    struct buf b;

    memset(k, 0, sizeof *k);
    if (servekit_fd < 0) {
        tinymodel_open(&k->m, servekit_dir[0], "cpu", "auto", 1, 2, 0, 0);
    } else {
        sharedmodel_attach(&k->m, servekit_dir[0], servekit_fd, "auto", 2);
    }
    buf_init(&b, 1 << 20);
    printable_tokenizer(&b);
    assert_ok(tokenizer_open(b.data, &k->tok, &e), &e);
    buf_fini(&b);
    if (opts) {
        o = *opts;
    }
    m.served = (struct service_model){k->m.w, k->tok};
    m.tmpl = servekit_template;
    m.path = servekit_dir[0];
    m.name = "tiny";
    m.config_json = wfile_config_json(k->m.file);
    m.generation_json = servekit_generation;
    assert_ok(api_start(&m, &o, &k->api, &e), &e);
    k->port = api_port(k->api);
}

static inline void servekit_check(void *arg, struct service *s)
{
    struct err e = {0};
    int rc = service_check(s, &e);
    if (rc != 0) {
        fprintf(stderr, "%s\n", e.msg);
    }
    atomic_store((atomic_int *)arg, rc);
}

/* Nothing runs any more, and no page was lost. */
static inline void servekit_idle(struct servekit *k)
{
    struct service_stats st;
    atomic_int rc = 1;

    for (double end = proc_now() + 20; proc_now() < end;) {
        service_get_stats(k->api->service, &st);
        if (st.load == 0) {
            break;
        }
        netpeer_sleep(0.005);
    }
    assert_int_equal(st.load, 0);
    service_run(k->api->service, servekit_check, &rc);
    for (double end = proc_now() + 20; proc_now() < end && atomic_load(&rc) == 1;) {
        netpeer_sleep(0.005);
    }
    assert_int_equal(atomic_load(&rc), 0);
}

static inline void servekit_stop(struct servekit *k)
{
    servekit_idle(k);
    api_stop(k->api);
    tokenizer_close(k->tok);
    tinymodel_close(&k->m);
}

/* ---- the client ---- */

/* A request on a connection of its own; the connection, on which the answer will come. */
static inline int servekit_ask(int port, const char *method, const char *path, const char *body)
{
    struct buf q;
    int fd = netpeer_connect(port);

    assert_true(fd >= 0);
    buf_init(&q, 64u << 20);
    buf_printf(&q, "%s %s HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n", method, path,
               strlen(body));
    buf_str(&q, body);
    netpeer_send(fd, q.data, q.len);
    buf_fini(&q);
    return fd;
}

/* The answer's status and body; 0 when none came whole. */
static inline int servekit_answer(int fd, struct buf *body)
{
    struct buf rest, head;
    int status;

    buf_init(&rest, 256u << 20);
    buf_init(&head, 1 << 20);
    status = netpeer_answer(fd, &rest, &head, body, 0);
    buf_fini(&rest);
    buf_fini(&head);
    close(fd);
    return status;
}

static inline json_t *servekit_json(int fd, int *status)
{
    struct buf b;
    json_t *o;

    buf_init(&b, 256u << 20);
    *status = servekit_answer(fd, &b);
    o = json_loadb(b.data, b.len, JSON_DECODE_ANY, NULL);
    buf_fini(&b);
    return o;
}

static inline json_t *servekit_post(const struct servekit *k, const char *path, const char *body,
                                    int *status)
{
    return servekit_json(servekit_ask(k->port, "POST", path, body), status);
}

static inline json_t *servekit_get(const struct servekit *k, const char *path, int *status)
{
    return servekit_json(servekit_ask(k->port, "GET", path, ""), status);
}

/* A post that must succeed. */
static inline json_t *servekit_ok(const struct servekit *k, const char *path, const char *body)
{
    int status;
    json_t *o = servekit_post(k, path, body, &status);
    if (status != 200) {
        char *text = o ? json_dumps(o, 0) : NULL;
        fail_msg("%s %s: %d %s", path, body, status, text ? text : "");
    }
    return o;
}

/* Undoes a pause and a release of memory. Weights that were never in a file cannot come back. */
static inline void servekit_undo(const struct servekit *k)
{
    int status;

    json_decref(servekit_ok(k, "/continue_generation", "{}"));
    json_decref(servekit_post(k, "/resume_memory_occupation", "{}", &status));
    if (status != 200) {
        char q[512];
        assert_int_equal(status, 400);
        snprintf(q, sizeof q, "{\"model_path\":\"%s\"}", servekit_dir[0]);
        json_decref(servekit_ok(k, "/update_weights_from_disk", q));
        json_decref(servekit_ok(k, "/resume_memory_occupation", "{}"));
    }
}

struct servekit_events {
    json_t *list;
    int done;
};

static inline int servekit_on_event(void *arg, const struct sse_event *ev, struct err *e)
{
    struct servekit_events *x = arg;
    (void)e;
    assert_int_equal(x->done, 0);
    if (ev->done) {
        x->done = 1;
    } else {
        json_t *o = json_loadb(ev->data, ev->len, 0, NULL);
        assert_non_null(o);
        json_array_append_new(x->list, o);
    }
    return 0;
}

/* All events of a stream, as an array; it must end with [DONE]. */
static inline json_t *servekit_stream(const struct servekit *k, const char *path, const char *body)
{
    struct servekit_events x = {json_array(), 0};
    struct sse p;
    struct err e = {0};
    struct buf b;
    int status;

    buf_init(&b, 256u << 20);
    status = servekit_answer(servekit_ask(k->port, "POST", path, body), &b);
    if (status != 200) {
        fail_msg("%s %s: %d %s", path, body, status, b.data);
    }
    sse_init(&p, 64u << 20);
    assert_ok(sse_feed(&p, b.data, b.len, servekit_on_event, &x, &e), &e);
    sse_fini(&p);
    assert_int_equal(x.done, 1);
    buf_fini(&b);
    return x.list;
}

/* The value at a path of keys, which must be there. */
static inline json_t *servekit_at(json_t *o, const char *a, const char *b)
{
    o = json_object_get(o, a);
    if (b) {
        o = json_object_get(o, b);
    }
    assert_non_null(o);
    return o;
}

static inline const char *servekit_text(json_t *o, const char *a, const char *b)
{
    const char *s = json_string_value(servekit_at(o, a, b));
    assert_non_null(s);
    return s;
}

#endif
