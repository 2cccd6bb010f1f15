/* Requests to a session server, and what its engines say: an input is lines, each of which is sent
 * when it comes. The first byte says which server (its last bit: with branches or without), and the
 * first letter of a line where it goes:
 *
 *     o{...}   another session is opened with this body     s{...}   its samples
 *     e{...}   what the engines say from here on            E{...}   the same, with status 400
 *     g        the session is looked at                     any      the body of a chat completion
 *
 * Whatever they are, every request has one of the answers that are promised, and the tokens of the
 * session's samples are those of its turns. */
#ifndef TESTS_FUZZ_FUZZ_SESSION_H
#define TESTS_FUZZ_FUZZ_SESSION_H

#include <jansson.h>
#include <pthread.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/status.h"
#include "net/http_server.h"
#include "net/netpeer.h"
#include "serve/printable.h"
#include "serve/session_api.h"
#include "text/chat.h"
#include "text/tokenizer.h"

enum { FUZZ_SESSION_LINES = 24, FUZZ_SESSION_LINE = 1 << 14 };

static const char fuzz_session_template[] =
    "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "</s>{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}";
static const char fuzz_session_said[] =
    "{\"text\":\"ok\",\"meta_info\":{\"finish_reason\":{\"type\":\"stop\",\"matched\":2},"
    "\"output_token_logprobs\":[[-0.5,81,null],[-1.5,77,null],[-0.25,2,null]],"
    "\"weight_version\":\"3\",\"cached_tokens\":1}}";

static struct {
    struct http_server *engine;
    struct session_api *api[2];
    struct tokenizer *tok;
    struct chat_template *chat;
    int fd[2]; /* a connection to each that is kept */
    struct buf rest, head, body;
    long inputs, answered, refused; /* the last two: chat completions */
    pthread_mutex_t mu;             /* of what follows */
    char said[FUZZ_SESSION_LINE];
    size_t len;
    int status;
} fuzz_session = {.fd = {-1, -1}, .mu = PTHREAD_MUTEX_INITIALIZER};

#define FUZZ_SESSION_CHECK(x) ((x) ? (void)0 : abort())

static void fuzz_session_engine(void *arg, struct http_req *r)
{
    (void)arg;
    pthread_mutex_lock(&fuzz_session.mu);
    http_req_reply(r, fuzz_session.status, "application/json", fuzz_session.said, fuzz_session.len);
    pthread_mutex_unlock(&fuzz_session.mu);
}

static void fuzz_session_says(int status, const char *text, size_t n)
{
    pthread_mutex_lock(&fuzz_session.mu);
    fuzz_session.status = status;
    fuzz_session.len = n < sizeof fuzz_session.said ? n : sizeof fuzz_session.said;
    memcpy(fuzz_session.said, text, fuzz_session.len);
    pthread_mutex_unlock(&fuzz_session.mu);
}

static void fuzz_session_start(void)
{
    static const struct http_server_route routes[] = {{"*", "/...", fuzz_session_engine, 0}};
    struct http_server_opts h = {.routes = routes, .nroutes = 1};
    struct buf b;
    char url[64];

    log_set_level(LOG_ERROR);
    buf_init(&fuzz_session.rest, 64u << 20);
    buf_init(&fuzz_session.head, 1 << 20);
    buf_init(&fuzz_session.body, 64u << 20);
    buf_init(&b, 1 << 20);
    printable_tokenizer(&b);
    FUZZ_SESSION_CHECK(tokenizer_open(b.data, &fuzz_session.tok, NULL) == STATUS_OK);
    buf_fini(&b);
    FUZZ_SESSION_CHECK(chat_template_new(fuzz_session_template, &fuzz_session.chat, NULL) ==
                       STATUS_OK);
    FUZZ_SESSION_CHECK(http_server_start(&fuzz_session.engine, &h, NULL) == STATUS_OK);
    snprintf(url, sizeof url, "http://127.0.0.1:%d", http_server_port(fuzz_session.engine));
    for (int tree = 0; tree < 2; tree++) {
        struct session_api_opts o = {.env = {.tok = fuzz_session.tok,
                                             .chat = fuzz_session.chat,
                                             .tree = tree,
                                             .match = (enum session_match)(2 * tree),
                                             .max_tokens = 4096,
                                             .max_bytes = 1 << 16},
                                     .upstream = url,
                                     .request_s = 60,
                                     .tool_parser = 1,
                                     .reasoning_parser = 1};
        FUZZ_SESSION_CHECK(session_api_start(&o, &fuzz_session.api[tree], NULL) == STATUS_OK);
    }
}

/* One request; its status, with the answer in fuzz_session.body. */
static int fuzz_session_ask(int tree, const char *method, const char *path, const char *body,
                            size_t n)
{
    struct buf q;
    int status = 0;

    buf_init(&q, 1 << 20);
    buf_printf(&q, "%s %s HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n", method, path, n);
    buf_add(&q, body, n);
    for (int i = 0; i < 2 && !status; i++) { /* a connection that was kept may be over */
        if (fuzz_session.fd[tree] < 0) {
            fuzz_session.fd[tree] = netpeer_connect(session_api_port(fuzz_session.api[tree]));
            FUZZ_SESSION_CHECK(fuzz_session.fd[tree] >= 0);
        }
        buf_clear(&fuzz_session.rest);
        netpeer_send(fuzz_session.fd[tree], q.data, q.len);
        status = netpeer_answer(fuzz_session.fd[tree], &fuzz_session.rest, &fuzz_session.head,
                                &fuzz_session.body, 0);
        if (!status || strcasestr(fuzz_session.head.data, "\r\nConnection: close")) {
            close(fuzz_session.fd[tree]);
            fuzz_session.fd[tree] = -1;
        }
    }
    buf_fini(&q);
    return status;
}

static int fuzz_session_open(int tree, const char *body, size_t n, char *path, size_t size)
{
    int status = fuzz_session_ask(tree, "POST", "/sessions", body, n);
    json_t *o;

    if (status == 200) {
        o = json_loadb(fuzz_session.body.data, fuzz_session.body.len, 0, NULL);
        snprintf(path, size, "/sessions/%s", json_string_value(json_object_get(o, "session_id")));
        json_decref(o);
    }
    return status;
}

static void fuzz_session_close(int tree, const char *path)
{
    FUZZ_SESSION_CHECK(fuzz_session_ask(tree, "DELETE", path, "", 0) == 204);
}

/* Tokens of all turns, as the session shows them. */
static long long fuzz_session_turns(int tree, const char *path)
{
    long long total = 0;
    json_t *o, *turn;
    size_t i;

    FUZZ_SESSION_CHECK(fuzz_session_ask(tree, "GET", path, "", 0) == 200);
    o = json_loadb(fuzz_session.body.data, fuzz_session.body.len, JSON_ALLOW_NUL, NULL);
    FUZZ_SESSION_CHECK(o);
    json_array_foreach(json_object_get(o, "turns"), i, turn)
    {
        total += json_integer_value(json_object_get(turn, "completion_tokens"));
    }
    json_decref(o);
    return total;
}

/* Tokens of all samples that have mask 1. */
static long long fuzz_session_trained(int tree, const char *path)
{
    static const char all[] = "{\"all\":true}";
    long long total = 0;
    char to[128], name[32];
    uint64_t size;
    json_t *header;

    snprintf(to, sizeof to, "%s/samples", path);
    FUZZ_SESSION_CHECK(fuzz_session_ask(tree, "POST", to, all, sizeof all - 1) == 200);
    FUZZ_SESSION_CHECK(fuzz_session.body.len > 8);
    memcpy(&size, fuzz_session.body.data, 8);
    FUZZ_SESSION_CHECK(size <= fuzz_session.body.len - 8);
    header = json_loadb(fuzz_session.body.data + 8, size, 0, NULL);
    FUZZ_SESSION_CHECK(header);
    for (int i = 0;; i++) {
        const json_t *at;
        size_t from, to_;
        snprintf(name, sizeof name, "%d.loss_mask", i);
        at = json_object_get(json_object_get(header, name), "data_offsets");
        if (!at) {
            break;
        }
        from = (size_t)json_integer_value(json_array_get(at, 0));
        to_ = (size_t)json_integer_value(json_array_get(at, 1));
        FUZZ_SESSION_CHECK(from <= to_ && to_ <= fuzz_session.body.len - 8 - size);
        for (size_t k = from; k < to_; k++) {
            total += fuzz_session.body.data[8 + size + k] != 0;
        }
    }
    json_decref(header);
    return total;
}

static void fuzz_session_line(int tree, char *path, size_t size, const char *line, size_t n)
{
    char to[128];
    int status;

    if (n && (line[0] == 'e' || line[0] == 'E')) {
        fuzz_session_says(line[0] == 'e' ? 200 : 400, line + 1, n - 1);
        return;
    }
    if (n && line[0] == 'o') {
        char other[100];
        status = fuzz_session_open(tree, line + 1, n - 1, other, sizeof other);
        FUZZ_SESSION_CHECK(status == 200 || status == 400);
        if (status == 200) {
            fuzz_session_close(tree, path);
            snprintf(path, size, "%s", other);
        }
    } else if (n && line[0] == 's') {
        snprintf(to, sizeof to, "%s/samples", path);
        status = fuzz_session_ask(tree, "POST", to, line + 1, n - 1);
        FUZZ_SESSION_CHECK(status == 200 || status == 400);
    } else if (n && line[0] == 'g') {
        FUZZ_SESSION_CHECK(fuzz_session_ask(tree, "GET", path, "", 0) == 200);
    } else {
        snprintf(to, sizeof to, "%s/v1/chat/completions", path);
        status = fuzz_session_ask(tree, "POST", to, line, n);
        if (status != 200 && status != 400 && status != 409 && status != 422 && status != 502) {
            fprintf(stderr, "%d %.*s\n", status, (int)fuzz_session.body.len,
                    fuzz_session.body.data);
            abort();
        }
        fuzz_session.answered += status == 200;
        fuzz_session.refused += status != 200;
    }
}

static void fuzz_session_one(const uint8_t *data, size_t n)
{
    const char *p = (const char *)data + 1, *end = (const char *)data + n;
    char path[100];
    int tree;

    if (!fuzz_session.engine) {
        fuzz_session_start();
    }
    if (n < 2) {
        return;
    }
    fuzz_session.inputs++;
    tree = data[0] & 1;
    fuzz_session_says(200, fuzz_session_said, sizeof fuzz_session_said - 1);
    FUZZ_SESSION_CHECK(fuzz_session_open(tree, "{\"seed\":1}", 10, path, sizeof path) == 200);
    for (int i = 0; i < FUZZ_SESSION_LINES && p < end; i++) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        size_t len = (size_t)((nl ? nl : end) - p);
        fuzz_session_line(tree, path, sizeof path, p,
                          len < FUZZ_SESSION_LINE ? len : FUZZ_SESSION_LINE);
        p += len + 1;
    }
    FUZZ_SESSION_CHECK(fuzz_session_trained(tree, path) == fuzz_session_turns(tree, path));
    fuzz_session_close(tree, path);
}

#endif
