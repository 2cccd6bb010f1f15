/* One request that a server has received, and its answer.
 *
 * A handler (see net/http_server.h) gets a struct http_req and owns it until it gives it back with
 * exactly one call that ends the answer: http_req_reply, http_req_fail, http_req_end or
 * http_req_cut. That may happen inside the handler or any time later in any other thread.
 *
 *     static void on_health(void *arg, struct http_req *r)
 *     {
 *         http_req_reply(r, 200, "application/json", "{}", 2);
 *     }
 *
 *     static void on_generate(void *arg, struct http_req *r)
 *     {
 *         http_req_on_done(r, stop_generating, my);
 *         hand r to the engine's thread;
 *     }
 *     ... there, for each token: rc = http_req_push(r, text, n);   then http_req_end(r);
 *
 * The client may vanish at any time. The struct stays valid until its owner ends it: pushes then
 * return STATUS_END and do nothing. So a producer needs no lock against the network: it pushes
 * until it is told STATUS_END (or its done function told it), and ends the request as always.
 *
 * A request is used by one thread at a time, of any kind; http_req_state alone may be called by
 * others as long as the owner has not ended it. No function here blocks. */
#ifndef NET_HTTP_REQ_H
#define NET_HTTP_REQ_H

#include <stddef.h>
#include <stdint.h>

struct buf;
struct http_req;

struct http_header {
    const char *name, *value;
};

/* How a request ended. */
enum http_req_end {
    HTTP_REQ_OPEN = 0,     /* not yet */
    HTTP_REQ_SENT = 1,     /* the whole answer was handed to the system */
    HTTP_REQ_GONE = 2,     /* the client closed or broke the connection */
    HTTP_REQ_OVERFLOW = 3, /* a stream of HTTP_REQ_CUT_FULL had no room left */
    HTTP_REQ_STALLED = 4,  /* the client took no byte for the server's stall_s */
    HTTP_REQ_LATE = 5,     /* no whole answer within the server's request_s */
    HTTP_REQ_ABORTED = 6,  /* http_req_cut */
    HTTP_REQ_CLOSED = 7    /* the server was stopped */
};

/* Called exactly once for each request a handler got, on the server's thread, when nothing more
 * will be sent: the answer is out, or the client is gone, or it was cut. It may come before or
 * after the owner ended the request; `r` is valid during the call in both cases, and may be read.
 * It must not block, and must not end r (the owner still does). */
typedef void http_req_done_fn(void *arg, struct http_req *r, enum http_req_end how);
/* Called on the server's thread when a stream that answered STATUS_AGAIN has room again: at most
 * once after each STATUS_AGAIN. It may push. */
typedef void http_req_room_fn(void *arg, struct http_req *r);

/* ---- what was asked; constant, valid until the request is ended ---- */

uint64_t http_req_id(const struct http_req *r); /* 1, 2, 3, ... in order of arrival */
const char *http_req_method(const struct http_req *r);
const char *http_req_path(const struct http_req *r);   /* percent-decoded, without the query */
const char *http_req_target(const struct http_req *r); /* as received, with the query */
const char *http_req_peer(const struct http_req *r);   /* "127.0.0.1:4711" */
/* The value of the first header or query argument of that name (headers: in any case), NULL if
 * there is none. A query argument without '=' is "". */
const char *http_req_header(const struct http_req *r, const char *name);
const char *http_req_query(const struct http_req *r, const char *name);
const struct http_header *http_req_headers(const struct http_req *r, int *n);
/* The whole body, NUL-terminated; *n its length. */
const char *http_req_body(const struct http_req *r, size_t *n);

/* ---- the answer ---- */

/* Only in the handler, before it hands r on. */
void http_req_on_done(struct http_req *r, http_req_done_fn *fn, void *arg);

struct http_req_answer {
    int status;                        /* 200 to 599 */
    const char *type;                  /* Content-Type; NULL for none */
    const struct http_header *headers; /* more of them; copied */
    int nheaders;
};

/* Whole answers; they end r. Body and headers are copied (http_req_reply_buf takes the bytes out of
 * b). Content-Length, Date and Connection are the server's; those of the caller, and others that
 * belong to one connection only (http_req_hop_header), are left out. 0, or STATUS_END when nobody
 * is there to read it. */
int http_req_reply(struct http_req *r, int status, const char *type, const void *body, size_t n);
int http_req_reply_buf(struct http_req *r, const struct http_req_answer *a, struct buf *b);
/* {"error":{"message":...,"type":...,"param":null,"code":status}}, or what the server's error
 * function makes of it. */
int http_req_fail(struct http_req *r, int status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

enum http_req_full {
    HTTP_REQ_CUT_FULL,  /* no room: the connection is cut, push returns STATUS_NOMEM */
    HTTP_REQ_WAIT_FULL, /* no room: push takes nothing and returns STATUS_AGAIN */
};
/* Begins a streamed answer (chunked). `room` may be NULL. 0 or STATUS_END. */
int http_req_begin(struct http_req *r, const struct http_req_answer *a, enum http_req_full full,
                   http_req_room_fn *room, void *arg);
/* Takes all n bytes (they are copied) or none. They go out as soon as the client reads. STATUS_END:
 * the client is gone or the stream was cut; STATUS_NOMEM, STATUS_AGAIN: see http_req_full. A push
 * larger than the server's stream_buffer fits only into an empty queue. */
int http_req_push(struct http_req *r, const void *data, size_t n);
/* Bytes pushed and not yet given to the connection. */
size_t http_req_queued(struct http_req *r);
/* Ends the stream after what was pushed; ends r. */
void http_req_end(struct http_req *r);
/* Closes the connection without a proper end, so that the client sees a broken answer; ends r. Also
 * for a request whose answer was not begun. */
void http_req_cut(struct http_req *r);
/* HTTP_REQ_OPEN while there is somebody to answer to. */
enum http_req_end http_req_state(const struct http_req *r);
const char *http_req_end_name(enum http_req_end how);

/* 1 for headers that a proxy must not pass on: Connection, Keep-Alive, Transfer-Encoding, ... */
int http_req_hop_header(const char *name);

#endif
