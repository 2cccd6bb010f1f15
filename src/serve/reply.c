/* Owns the order between the one who answers and the network's thread. The request is touched under
 * the lock only. What a slow reader has no room for waits here; when the reader vanishes with the
 * answer complete, the service's thread ends the request, because the network's may not. */
#include "serve/reply.h"

#include <string.h>

#include "base/status.h"
#include "model/jtext.h"
#include "net/http_req.h"
#include "net/sse.h"
#include "serve/service.h"

#define REPLY_MAX_PENDING (64u << 20)

static void reply_drop(struct reply *p)
{
    if (atomic_fetch_sub(&p->refs, 1) == 1) {
        buf_fini(&p->pending);
        pthread_mutex_destroy(&p->mu);
        p->free(p->arg);
    }
}

/* Ends the stream when all has gone; under mu. 1: the owner's reference is to be dropped. */
static int reply_try_end(struct reply *p)
{
    if (!p->r || !p->ending || (p->pending.len && !p->over)) {
        return 0;
    }
    http_req_end(p->r);
    p->r = NULL;
    return 1;
}

/* Under mu. */
static void reply_push(struct reply *p)
{
    if (p->r && p->pending.len && !p->over) {
        int rc = http_req_push(p->r, p->pending.data, p->pending.len);
        if (rc != STATUS_AGAIN) {
            p->over = p->over || rc != STATUS_OK;
            buf_clear(&p->pending);
        }
    }
}

static void reply_room(void *arg, struct http_req *r)
{
    struct reply *p = arg;
    int drop;

    (void)r;
    pthread_mutex_lock(&p->mu);
    reply_push(p);
    drop = reply_try_end(p);
    pthread_mutex_unlock(&p->mu);
    if (drop) {
        reply_drop(p);
    }
}

static void reply_close(void *arg, struct service *s)
{
    struct reply *p = arg;
    int drop;

    (void)s;
    pthread_mutex_lock(&p->mu);
    drop = reply_try_end(p);
    pthread_mutex_unlock(&p->mu);
    if (drop) {
        reply_drop(p);
    }
    reply_drop(p);
}

/* On the network's thread: nothing more will be sent. */
static void reply_done(void *arg, struct http_req *r, enum http_req_end how)
{
    struct reply *p = arg;
    int close;

    (void)r;
    (void)how;
    pthread_mutex_lock(&p->mu);
    p->over = 1;
    if (p->watch) {
        service_cancel(p->s, p->watch);
    }
    close = p->r && p->ending;
    pthread_mutex_unlock(&p->mu);
    if (close) {
        service_run(p->s, reply_close, p); /* takes the network's reference */
    } else {
        reply_drop(p);
    }
}

void reply_init(struct reply *p, struct http_req *r, struct service *s, void (*free)(void *arg),
                void *arg)
{
    atomic_init(&p->refs, 2);
    p->r = r;
    p->s = s;
    p->free = free;
    p->arg = arg;
    p->watch = NULL;
    p->begun = p->ending = p->over = 0;
    pthread_mutex_init(&p->mu, NULL);
    buf_init(&p->pending, REPLY_MAX_PENDING);
    http_req_on_done(r, reply_done, p);
}

void reply_watch(struct reply *p, struct service_call *c)
{
    pthread_mutex_lock(&p->mu);
    p->watch = c;
    if (c && p->over) {
        service_cancel(p->s, c);
    }
    pthread_mutex_unlock(&p->mu);
}

/* Under mu. */
static void reply_begin(struct reply *p)
{
    static const struct http_header headers[] = {{"Cache-Control", "no-cache"}};
    struct http_req_answer a = {.status = 200,
                                .type = "text/event-stream; charset=utf-8",
                                .headers = headers,
                                .nheaders = 1};
    p->begun = 1;
    if (http_req_begin(p->r, &a, HTTP_REQ_WAIT_FULL, reply_room, p) != STATUS_OK) {
        p->over = 1;
    }
}

void reply_event(struct reply *p, const char *data, size_t n, int newest)
{
    pthread_mutex_lock(&p->mu);
    if (!p->begun) {
        reply_begin(p);
    }
    if (newest) {
        buf_clear(&p->pending);
    }
    sse_data(&p->pending, data, n);
    if (buf_status(&p->pending) != STATUS_OK) { /* a reader that takes nothing, and very much */
        p->over = 1;
        buf_clear(&p->pending);
        if (p->watch) {
            service_cancel(p->s, p->watch);
        }
    }
    reply_push(p);
    pthread_mutex_unlock(&p->mu);
}

int reply_begun(struct reply *p)
{
    int begun;
    pthread_mutex_lock(&p->mu);
    begun = p->begun;
    pthread_mutex_unlock(&p->mu);
    return begun;
}

int reply_gone(struct reply *p)
{
    int over;
    pthread_mutex_lock(&p->mu);
    over = p->over;
    pthread_mutex_unlock(&p->mu);
    return over;
}

void reply_end(struct reply *p)
{
    int drop;

    pthread_mutex_lock(&p->mu);
    p->watch = NULL;
    if (!p->begun) {
        reply_begin(p);
    }
    p->ending = 1;
    drop = reply_try_end(p);
    pthread_mutex_unlock(&p->mu);
    if (drop) {
        reply_drop(p);
    }
}

void reply_whole(struct reply *p, int status, const char *type, struct buf *body)
{
    struct http_req_answer a = {.status = status, .type = type};

    pthread_mutex_lock(&p->mu);
    p->watch = NULL;
    if (buf_status(body) == STATUS_OK) {
        http_req_reply_buf(p->r, &a, body);
    } else {
        http_req_fail(p->r, 500, "the answer is too large");
    }
    p->r = NULL;
    pthread_mutex_unlock(&p->mu);
    reply_drop(p);
}

/* The fields of an error, without braces. */
static void reply_error_fields(struct buf *out, int status, const char *msg)
{
    size_t at = out->len;

    buf_str(out, "\"message\":");
    if (jtext_string(out, msg, strlen(msg)) != STATUS_OK) { /* it quotes what is no UTF-8 */
        out->len = at;
        buf_str(out, "\"message\":\"the request was refused\"");
    }
    buf_printf(out, ",\"type\":\"%s\",\"param\":null,\"code\":%d",
               status == 404   ? "not_found_error"
               : status == 401 ? "authentication_error"
               : status == 429 ? "rate_limit_error"
               : status < 500  ? "invalid_request_error"
                               : "server_error",
               status);
}

void reply_error(struct buf *out, int status, const char *msg)
{
    buf_str(out, "{\"object\":\"error\",");
    reply_error_fields(out, status, msg);
    buf_str(out, ",\"error\":{");
    reply_error_fields(out, status, msg);
    buf_str(out, "}}");
}

void reply_fail(struct reply *p, int status, const char *msg)
{
    struct buf b;

    if (!reply_begun(p)) {
        pthread_mutex_lock(&p->mu);
        p->watch = NULL;
        http_req_fail(p->r, status, "%s", msg);
        p->r = NULL;
        pthread_mutex_unlock(&p->mu);
        reply_drop(p);
        return;
    }
    buf_init(&b, 1 << 16);
    buf_str(&b, "{\"error\":{");
    reply_error_fields(&b, status, msg);
    buf_str(&b, "}}");
    reply_event(p, b.data, b.len, 0);
    buf_fini(&b);
    reply_event(p, "[DONE]", 6, 0);
    reply_end(p);
}

int reply_status(int status)
{
    switch (status) {
    case STATUS_AGAIN: return 503;
    case STATUS_INPUT:
    case STATUS_UNSUPPORTED:
    case STATUS_FORMAT:
    case STATUS_NOTFOUND: return 400;
    default: return 500;
    }
}
