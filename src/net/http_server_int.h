/* What the files of the server and http_req.c share: the server, its connections, and the request
 * as both sides see it.
 *
 * A request has two sides. The server's thread reads it, calls the handler, and moves the answer to
 * the connection; the owner, in any thread, makes the answer. What both touch is under `mu`. Each
 * side holds a reference, the list of requests to be woken holds a third while one is on it. */
#ifndef NET_HTTP_SERVER_INT_H
#define NET_HTTP_SERVER_INT_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/buf.h"
#include "base/mem.h"
#include "net/http_server.h"

enum http_server_phase { HTTP_SERVER_IDLE, HTTP_SERVER_READ, HTTP_SERVER_WORK };

struct http_server_conn {
    struct http_server_conn *next, **link;
    struct MHD_Connection *mc;
    int fd;
    enum http_server_phase phase;
    double limit;         /* when an idle or reading connection is closed */
    struct http_req *req; /* between its headers and its end */
    char *target;         /* of the request being read */
    int suspended;
    int half_closed; /* the peer has closed its side */
    int doomed;      /* shut down by us */
};

struct http_server {
    atomic_int refs;
    struct http_server_opts o; /* with defaults filled in; strings owned */
    struct http_server_route *routes;
    uint8_t (*key_hash)[32];
    char *cert, *key;
    int port, epfd, evfd;
    struct MHD_Daemon *mhd;
    pthread_t thread;

    /* The server's thread only. */
    struct http_server_conn *conns;
    double next_tick;
    uint64_t next_id;
    int quiesced;
    int run_again; /* a connection closed: the library listens again only in its next step */

    atomic_int draining, cut_all, stop;
    pthread_mutex_t mu;
    pthread_cond_t idle; /* begun became 0 */
    struct http_req *woken;

    atomic_size_t bodies; /* bytes of bodies held */
    atomic_ullong connections, requests, refused, ended[8], bytes_in, bytes_out;
    atomic_llong open, active, held;
    atomic_llong begun; /* requests whose head has come and that are not over */
};

enum { HTTP_SERVER_NO_ANSWER, HTTP_SERVER_WHOLE, HTTP_SERVER_STREAM };

struct http_req {
    atomic_int refs;
    struct http_server *s; /* with a reference, for counters and the list of the woken */
    uint64_t id;
    double t_open; /* headers were complete */

    /* Written by the server's thread before the handler is called, then constant. */
    struct arena mem;
    const char *method, *path, *target, *peer;
    struct http_header *headers, *args;
    int nheaders, nargs;
    struct buf body;
    http_req_done_fn *done;
    void *done_arg;

    /* The server's thread only. */
    struct http_server_conn *conn; /* NULL once the request is over for the network */
    const struct http_server_route *route;
    int refusal; /* status with which the server itself answers; 0: the handler does */
    const char *refusal_msg;
    size_t swallowed;         /* bytes of a refused body */
    int handed;               /* the handler was called */
    int queued;               /* the answer was given to the library */
    double t_handed, t_moved; /* the latter: when bytes last went to the connection, or from there
                                 to the client */
    int unsent;               /* bytes that the system held back for the client when last looked */
    size_t sent;

    pthread_mutex_t mu;
    /* Under mu. */
    int answer; /* HTTP_SERVER_* */
    int status;
    struct http_header *out_headers; /* in mem */
    int nout_headers;
    struct buf out; /* the body, or what is queued of the stream */
    size_t head;    /* bytes of out that have gone */
    int ended;      /* no more pushes will come */
    int parked;     /* the connection waits for the owner: wake it */
    int on_list;    /* it is on the list of the woken */
    enum http_req_full full;
    int wants_room; /* told STATUS_AGAIN */
    http_req_room_fn *room;
    void *room_arg;
    struct http_req *next_woken; /* under the server's lock */
    /* Written under mu, read anywhere: why nobody listens any more. */
    atomic_int over;
};

struct http_req *http_req_new(struct http_server *s);
void http_req_ref(struct http_req *r);
void http_req_unref(struct http_req *r);
/* Sets the answer of r to an error, from the server's thread or the owner's. Under mu. */
void http_req_set_error(struct http_req *r, int status, const char *msg);

/* Puts r on the list of requests whose connection has something to do; r->mu is held. */
void http_server_wake(struct http_server *s, struct http_req *r);
size_t http_server_stream_buffer(const struct http_server *s);
void http_server_error_body(struct http_server *s, int status, const char *msg, struct buf *out,
                            const char **type);
/* The server's memory lives until its last request is gone. */
void http_server_hold(struct http_server *s);
void http_server_drop(struct http_server *s, size_t body_bytes);

/* ---- http_server_head.c: what is asked ---- */

/* Opens the request whose headers are complete. */
struct http_req *http_server_open_req(struct http_server *s, struct http_server_conn *c,
                                      const char *url, const char *method);
/* Finds the route and what can be refused before the body is read (r->refusal). Returns 1 when
 * nothing of the body is wanted at all, because its length is in doubt, or too much, or the client
 * asked before sending it. */
int http_server_check_head(struct http_server *s, struct http_req *r, const char *version);
/* Takes a piece of the body. MHD_NO closes the connection. */
enum MHD_Result http_server_take_body(struct http_server *s, struct http_req *r, const char *data,
                                      size_t n);

/* ---- http_server_io.c: the thread, and what the library calls on it ---- */

void *http_server_loop(void *server);
void http_server_on_connection(void *cls, struct MHD_Connection *mc, void **ctx,
                               enum MHD_ConnectionNotificationCode code);
void *http_server_on_uri(void *cls, const char *uri, struct MHD_Connection *mc);
enum MHD_Result http_server_on_request(void *cls, struct MHD_Connection *mc, const char *url,
                                       const char *method, const char *version, const char *data,
                                       size_t *size, void **ctx);
void http_server_on_completed(void *cls, struct MHD_Connection *mc, void **ctx,
                              enum MHD_RequestTerminationCode code);

#endif
