/* An HTTP/1.1 client for many requests at once: one thread of its own does the network, and what
 * comes of it is taken from a queue by the caller, in the caller's thread.
 *
 *     struct http_client *c;
 *     http_client_new(&c, &(struct http_client_opts){0}, e);
 *     http_client_start(c, &(struct http_client_request){.method = "POST", .url = url,
 *                       .body = json, .len = n, .total_s = 60, .user = sample}, &id, e);
 *     while ((ev = http_client_take(c, 0.1))) {
 *         if (ev->kind == HTTP_CLIENT_END && ev->outcome == HTTP_CLIENT_OK && ev->status == 200)
 * ... http_client_release(c, ev);
 *     }
 *     http_client_free(c);
 *
 * Every started request ends in exactly one event HTTP_CLIENT_END. A request with `stream` set
 * tells before it one HTTP_CLIENT_HEAD, when the headers of the answer are there, and its body in
 * pieces, HTTP_CLIENT_DATA; one without gets head and body with the end. Events of one request come
 * in order. A piece counts against the request's window until it is released: who holds pieces back
 * slows that one server down, and no other request.
 *
 * Starting and cancelling may be done in any thread; taking by one at a time. Redirects are not
 * followed, no proxy is used, and the environment is not looked at. */
#ifndef NET_HTTP_CLIENT_H
#define NET_HTTP_CLIENT_H

#include <stddef.h>
#include <stdint.h>

#include "net/http_req.h"

struct err;
struct http_client;
struct http_net;

/* Zero means the default in brackets. */
struct http_client_opts {
    int max_calls;    /* requests started and not ended; more is STATUS_AGAIN [8192] */
    int max_inflight; /* of these on the network at once, the others wait in order [1024] */
    int lanes;        /* one for every ten or twenty servers, at most 64, makes the end of a request
                         as cheap among many servers as among few; each keeps its share of
                         max_inflight connections open [1] */
    size_t max_bytes; /* of whole bodies held at once; more is HTTP_CLIENT_TOO_LARGE [1 GiB] */
    const char *ca_file; /* PEM, for https [the system's] */
    int insecure;        /* 1: certificates are not checked */
};

struct http_client_request {
    const char *method; /* [GET, or POST when there is a body] */
    const char *url;    /* http://... or https://... */
    const struct http_header *headers;
    int nheaders;
    const void *body; /* copied, as all the rest */
    size_t len;
    double connect_s;    /* to connect, TLS included [10] */
    double total_s;      /* from the start to the last byte, waiting and retries included [600] */
    double idle_s;       /* between two bytes of the answer, and before the first [total_s] */
    size_t max_response; /* bytes of the body; of a stream: no bound [256 MiB; stream: none] */
    int stream;          /* 1: the body in pieces */
    size_t window;       /* bytes of pieces not yet released [1 MiB] */
    /* How often it may be sent in all [1]. It is sent again, after 0.1, 0.2, 0.4 ... 5 seconds (or
     * what Retry-After says), when no connection came about or the answer was 429 or 503; with
     * `idempotent` also when the connection was cut before an answer and after 502 and 504. Never
     * once anything of the answer was told. */
    int tries;
    int idempotent;
    int retry_5xx; /* after any other 5xx too, until it was sent so often [0] */
    /* 1: on a new connection. One that was used before may have been closed by the server just now,
     * and the request is then sent on another without being counted; who may not risk that it is
     * seen twice asks for this. */
    int fresh;
    void *user; /* given back in events */
};

enum http_client_outcome {
    HTTP_CLIENT_OK,           /* a whole answer, of whatever status */
    HTTP_CLIENT_REFUSED,      /* no connection: refused, unreachable, no such host */
    HTTP_CLIENT_CONNECT_LATE, /* no connection within connect_s */
    HTTP_CLIENT_LATE,         /* not whole within total_s */
    HTTP_CLIENT_IDLE,         /* nothing came for idle_s */
    HTTP_CLIENT_CUT,          /* the connection broke before the answer was whole */
    HTTP_CLIENT_TOO_LARGE,    /* more than max_response, or than the client's max_bytes */
    HTTP_CLIENT_TLS,          /* certificate or handshake */
    HTTP_CLIENT_PROTOCOL,     /* what came is not HTTP */
    HTTP_CLIENT_CANCELLED,
    HTTP_CLIENT_FAILED /* anything else; `error` tells */
};

enum http_client_kind { HTTP_CLIENT_HEAD, HTTP_CLIENT_DATA, HTTP_CLIENT_END };

struct http_client_event {
    enum http_client_kind kind;
    uint64_t id;
    void *user;
    int status;                        /* of the answer; 0 when none came */
    const struct http_header *headers; /* HEAD; END of a request that is no stream */
    int nheaders;
    const char
        *data; /* DATA; END of a request that is no stream, what came of it. NUL-terminated */
    size_t len;
    /* END only. */
    enum http_client_outcome outcome;
    const char *error;            /* one line; "" when the outcome is HTTP_CLIENT_OK */
    int tries;                    /* how often it was sent or tried */
    int reached;                  /* 1: the server may have seen it */
    double first_byte_s, total_s; /* since the start; the former 0 when nothing came */
};

/* STATUS_INPUT: a request to the URL could not be started. */
int http_client_check(const char *url, struct err *e);

int http_client_new(struct http_client **out, const struct http_client_opts *o, struct err *e);
/* Ends the thread and what runs; no more events. All events must have been released. NULL is fine.
 */
void http_client_free(struct http_client *c);

/* Starts a request; *id (may be NULL) names it from now on, never 0 and never used again. Does not
 * block. STATUS_AGAIN when max_calls are running: take some first. STATUS_INPUT for an address or a
 * header that is none. */
int http_client_start(struct http_client *c, const struct http_client_request *q, uint64_t *id,
                      struct err *e);
/* Its end will come soon, HTTP_CLIENT_CANCELLED unless it ended before. Unknown ids are ignored. */
void http_client_cancel(struct http_client *c, uint64_t id);
/* The next event, waiting for it at most wait_s (0: only looks); NULL when there is none. */
struct http_client_event *http_client_take(struct http_client *c, double wait_s);
void http_client_release(struct http_client *c, struct http_client_event *ev);
/* The client as a table of calls; the client stays the caller's. */
struct http_net http_client_net(struct http_client *c);
/* Readable while there are events, for a caller that waits for other things too. */
int http_client_fd(const struct http_client *c);
/* Requests started whose end was not told yet. */
int http_client_running(struct http_client *c);
const char *http_client_outcome_name(enum http_client_outcome outcome);
/* The first header of that name in any case; NULL when there is none. */
const char *http_client_header(const struct http_client_event *ev, const char *name);

#endif
