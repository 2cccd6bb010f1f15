/* The owner's side of a request: what was asked, and the making of the answer. It never calls the
 * HTTP library: it fills the answer under the request's lock and, when the connection is parked for
 * want of it, puts the request on the server's list of the woken. */
#include "net/http_req.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/status.h"
#include "net/http_server_int.h"

/* What is left at the head of a queue before it is moved to the front. */
enum { COMPACT = 64 * 1024 };

struct http_req *http_req_new(struct http_server *s)
{
    struct http_req *r = mem_alloc(sizeof *r);
    atomic_init(&r->refs, 1);
    atomic_init(&r->over, HTTP_REQ_OPEN);
    pthread_mutex_init(&r->mu, NULL);
    arena_init(&r->mem, 2048);
    buf_init(&r->body, 0);
    buf_init(&r->out, (size_t)-1 / 2);
    r->s = s;
    http_server_hold(s);
    return r;
}

void http_req_ref(struct http_req *r)
{
    atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed);
}

void http_req_unref(struct http_req *r)
{
    if (atomic_fetch_sub_explicit(&r->refs, 1, memory_order_acq_rel) == 1) {
        size_t body = r->body.len;
        struct http_server *s = r->s;
        pthread_mutex_destroy(&r->mu);
        buf_fini(&r->body);
        buf_fini(&r->out);
        arena_fini(&r->mem);
        mem_free(r);
        http_server_drop(s, body);
    }
}

/* ---- what was asked ---- */

uint64_t http_req_id(const struct http_req *r)
{
    return r->id;
}

const char *http_req_method(const struct http_req *r)
{
    return r->method;
}

const char *http_req_path(const struct http_req *r)
{
    return r->path;
}

const char *http_req_target(const struct http_req *r)
{
    return r->target;
}

const char *http_req_peer(const struct http_req *r)
{
    return r->peer;
}

const char *http_req_header(const struct http_req *r, const char *name)
{
    for (int i = 0; i < r->nheaders; i++) {
        if (strcasecmp(r->headers[i].name, name) == 0) {
            return r->headers[i].value;
        }
    }
    return NULL;
}

const char *http_req_query(const struct http_req *r, const char *name)
{
    for (int i = 0; i < r->nargs; i++) {
        if (strcmp(r->args[i].name, name) == 0) {
            return r->args[i].value;
        }
    }
    return NULL;
}

const struct http_header *http_req_headers(const struct http_req *r, int *n)
{
    *n = r->nheaders;
    return r->headers;
}

const char *http_req_body(const struct http_req *r, size_t *n)
{
    *n = r->body.len;
    return r->body.data;
}

void http_req_on_done(struct http_req *r, http_req_done_fn *fn, void *arg)
{
    r->done = fn;
    r->done_arg = arg;
}

/* ---- the answer ---- */

int http_req_hop_header(const char *name)
{
    static const char *const hop[] = {
        "Connection",
        "Keep-Alive",
        "Proxy-Connection",
        "Proxy-Authenticate",
        "Proxy-Authorization",
        "TE",
        "Trailer",
        "Transfer-Encoding",
        "Upgrade",
    };
    for (size_t i = 0; i < sizeof hop / sizeof hop[0]; i++) {
        if (strcasecmp(name, hop[i]) == 0) {
            return 1;
        }
    }
    return 0;
}

/* Copies status and headers of the answer; those of the connection are the server's to set. */
static void set_head(struct http_req *r, const struct http_req_answer *a)
{
    struct http_header *h =
        arena_alloc(&r->mem, sizeof *h * (size_t)(a->nheaders + (a->type != NULL)));
    int n = 0;
    if (a->type) {
        h[n].name = "Content-Type";
        h[n++].value = arena_strdup(&r->mem, a->type);
    }
    for (int i = 0; i < a->nheaders; i++) {
        const struct http_header *x = &a->headers[i];
        if (http_req_hop_header(x->name) || strcasecmp(x->name, "Content-Length") == 0 ||
            strcasecmp(x->name, "Date") == 0) {
            continue;
        }
        h[n].name = arena_strdup(&r->mem, x->name);
        h[n++].value = arena_strdup(&r->mem, x->value);
    }
    r->status = a->status;
    r->out_headers = h;
    r->nout_headers = n;
}

/* The connection waits for what was just done. Under mu. */
static void unpark(struct http_req *r)
{
    if (r->parked) {
        r->parked = 0;
        http_server_wake(r->s, r);
    }
}

int http_req_reply(struct http_req *r, int status, const char *type, const void *body, size_t n)
{
    struct http_req_answer a = {.status = status, .type = type};
    struct buf b;
    int rc;
    buf_init(&b, n + 1);
    buf_add(&b, body, n);
    rc = http_req_reply_buf(r, &a, &b);
    buf_fini(&b);
    return rc;
}

int http_req_reply_buf(struct http_req *r, const struct http_req_answer *a, struct buf *b)
{
    int rc = STATUS_END;
    pthread_mutex_lock(&r->mu);
    if (!atomic_load(&r->over)) {
        ASSERT(r->answer == HTTP_SERVER_NO_ANSWER);
        if (buf_status(b)) {
            http_req_set_error(r, 500, "the answer does not fit into memory");
        } else {
            set_head(r, a);
            buf_fini(&r->out);
            r->out = *b;
            buf_init(b, b->max);
        }
        r->answer = HTTP_SERVER_WHOLE;
        r->ended = 1;
        unpark(r);
        rc = STATUS_OK;
    }
    pthread_mutex_unlock(&r->mu);
    http_req_unref(r);
    return rc;
}

void http_req_set_error(struct http_req *r, int status, const char *msg)
{
    struct http_req_answer a = {.status = status};
    buf_clear(&r->out);
    r->head = 0;
    http_server_error_body(r->s, status, msg, &r->out, &a.type);
    set_head(r, &a);
    r->answer = HTTP_SERVER_WHOLE;
    r->ended = 1;
}

int http_req_fail(struct http_req *r, int status, const char *fmt, ...)
{
    char msg[1024];
    va_list ap;
    int rc = STATUS_END;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    pthread_mutex_lock(&r->mu);
    if (!atomic_load(&r->over)) {
        ASSERT(r->answer == HTTP_SERVER_NO_ANSWER);
        http_req_set_error(r, status, msg);
        unpark(r);
        rc = STATUS_OK;
    }
    pthread_mutex_unlock(&r->mu);
    http_req_unref(r);
    return rc;
}

int http_req_begin(struct http_req *r, const struct http_req_answer *a, enum http_req_full full,
                   http_req_room_fn *room, void *arg)
{
    int rc = STATUS_END;
    pthread_mutex_lock(&r->mu);
    if (!atomic_load(&r->over)) {
        ASSERT(r->answer == HTTP_SERVER_NO_ANSWER);
        set_head(r, a);
        r->full = full;
        r->room = room;
        r->room_arg = arg;
        r->answer = HTTP_SERVER_STREAM;
        unpark(r);
        rc = STATUS_OK;
    }
    pthread_mutex_unlock(&r->mu);
    return rc;
}

/* Room for n more bytes: always in an empty queue, so that one event of any size can pass. */
static int fits(const struct http_req *r, size_t n)
{
    size_t queued = r->out.len - r->head;
    size_t bound = http_server_stream_buffer(r->s);
    return queued == 0 || (queued < bound && n <= bound - queued);
}

int http_req_push(struct http_req *r, const void *data, size_t n)
{
    int rc = STATUS_END;
    pthread_mutex_lock(&r->mu);
    if (atomic_load(&r->over)) {
        goto out;
    }
    ASSERT(r->answer == HTTP_SERVER_STREAM && !r->ended);
    if (fits(r, n)) {
        if (r->head == r->out.len) {
            buf_clear(&r->out);
            r->head = 0;
        } else if (r->head > COMPACT) {
            buf_shift(&r->out, r->head);
            r->head = 0;
        }
        buf_add(&r->out, data, n);
        rc = buf_status(&r->out);
        if (rc == STATUS_OK && n > 0) {
            unpark(r);
        }
    } else if (r->full == HTTP_REQ_WAIT_FULL) {
        r->wants_room = 1;
        rc = STATUS_AGAIN;
    } else {
        rc = STATUS_NOMEM;
    }
    if (rc < 0) {
        atomic_store(&r->over, HTTP_REQ_OVERFLOW);
        http_server_wake(r->s, r);
    }
out:
    pthread_mutex_unlock(&r->mu);
    return rc;
}

size_t http_req_queued(struct http_req *r)
{
    size_t n;
    pthread_mutex_lock(&r->mu);
    n = r->out.len - r->head;
    pthread_mutex_unlock(&r->mu);
    return n;
}

void http_req_end(struct http_req *r)
{
    pthread_mutex_lock(&r->mu);
    if (!atomic_load(&r->over)) {
        ASSERT(r->answer == HTTP_SERVER_STREAM);
        r->ended = 1;
        unpark(r);
    }
    pthread_mutex_unlock(&r->mu);
    http_req_unref(r);
}

void http_req_cut(struct http_req *r)
{
    pthread_mutex_lock(&r->mu);
    if (!atomic_load(&r->over)) {
        atomic_store(&r->over, HTTP_REQ_ABORTED);
        http_server_wake(r->s, r);
    }
    pthread_mutex_unlock(&r->mu);
    http_req_unref(r);
}

enum http_req_end http_req_state(const struct http_req *r)
{
    return (enum http_req_end)atomic_load(&r->over);
}

const char *http_req_end_name(enum http_req_end how)
{
    static const char *const names[] = {"open",    "sent", "gone",    "overflow",
                                        "stalled", "late", "aborted", "closed"};
    return (unsigned)how < sizeof names / sizeof names[0] ? names[how] : "?";
}
