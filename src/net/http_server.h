/* An HTTP/1.1 server: one thread of its own, epoll, many connections.
 *
 *     static const struct http_server_route routes[] = {
 *         {"GET", "/health", on_health, HTTP_SERVER_OPEN},
 *         {"POST", "/generate", on_generate, 0},
 *         {"*", "/v1/...", on_v1, 0},               every method, every path that starts with /v1/
 *     };
 *     struct http_server_opts o = {.host = "127.0.0.1", .port = 0, .routes = routes, .nroutes = 3};
 *     struct http_server *s;
 *     if (http_server_start(&s, &o, e) == 0) {
 *         printf("port %d\n", http_server_port(s));
 *         ... wait for SIGTERM ...
 *         http_server_drain(s, 30.0);
 *         http_server_free(s);
 *     }
 *
 * Handlers are called on the server's thread with the whole request and must return soon: what
 * takes longer goes to another thread, which answers later (net/http_req.h). What a client does
 * wrong (bad syntax, no key, too large, too slow) is answered or cut here and no handler hears of
 * it. Every request that a handler got ends in one call of its done function.
 *
 * A client that closes its half of the connection counts as gone, as in the common servers, unless
 * its answer is already complete. */
#ifndef NET_HTTP_SERVER_H
#define NET_HTTP_SERVER_H

#include <stddef.h>
#include <stdint.h>

#include "net/http_req.h"

struct buf;
struct err;
struct http_server;

typedef void http_server_fn(void *arg, struct http_req *r);

enum { HTTP_SERVER_OPEN = 1 /* needs no API key */ };

struct http_server_route {
    const char *method; /* "GET" also answers HEAD; "*" is any */
    const char *path;   /* exact; with "..." at its end any path that starts so */
    http_server_fn *fn;
    int flags;
};

/* Fills the body of an error answer; returns its content type. */
typedef const char *http_server_error_fn(void *arg, int status, const char *msg, struct buf *out);

/* Zero means the default in brackets. Strings and routes are copied. */
struct http_server_opts {
    const char *host;                       /* address or name to listen on [127.0.0.1] */
    int port;                               /* 0 picks a free one */
    const struct http_server_route *routes; /* the first that fits is taken */
    int nroutes;
    void *arg;                      /* given to handlers and the error function */
    http_server_error_fn *error_fn; /* [OpenAI's shape of an error] */

    const char *const
        *keys; /* API keys, any of which serves, as `Authorization: Bearer KEY` [none] */
    int nkeys;
    const char *cert_file, *key_file; /* PEM; both or none: TLS */

    int max_connections;  /* further ones wait in the system's queue [4096] */
    size_t max_header;    /* bytes of request line and headers [32 KiB]; more is 431 or 414 */
    size_t max_body;      /* bytes of one body [64 MiB]; more is 413 */
    size_t max_bodies;    /* bytes of all bodies held [1 GiB]; more is 503 */
    size_t stream_buffer; /* bytes queued for one streamed answer [256 KiB] */
    double read_s;        /* from its first line to the end of its body a request may take [60] */
    double idle_s;        /* a connection without a request is closed after [75] */
    double stall_s;       /* an answer of which no byte can be sent is cut after [30] */
    double request_s;     /* a request not answered whole is cut (504 if not begun) after [3600] */
};

struct http_server_stats {
    uint64_t connections, requests; /* so far */
    uint64_t refused;               /* answered by the server itself: 400 to 431, 503 */
    uint64_t ended[8];              /* by enum http_req_end, of requests that a handler got */
    uint64_t bytes_in, bytes_out;   /* of bodies */
    int64_t open;                   /* connections now */
    int64_t active;                 /* requests with a handler now */
    int64_t held;                   /* struct http_req not yet freed, the owners' too */
};

/* Listens and starts the thread. STATUS_IO when the address is taken or cannot be used,
 * STATUS_INPUT for options that make no sense (a certificate without a key, ...). */
int http_server_start(struct http_server **out, const struct http_server_opts *o, struct err *e);
int http_server_port(const struct http_server *s);
void http_server_stats(const struct http_server *s, struct http_server_stats *out);
/* Stops listening, closes idle connections, answers new requests on the others with 503, and waits
 * until the running ones are done, `wait_s` at most; what then still runs is cut. Returns 0 when
 * all ended by themselves, STATUS_TIMEOUT when some were cut. Not from a handler or done function.
 */
int http_server_drain(struct http_server *s, double wait_s);
int http_server_draining(const struct http_server *s);
/* Cuts what runs, stops the thread, frees. Requests still owned by other threads stay valid until
 * these end them. Takes NULL. Not from a handler or done function. */
void http_server_free(struct http_server *s);

#endif
