/* The server's side: one thread that owns the HTTP library's daemon and all its connections.
 *
 * The library is driven from outside (its epoll descriptor sits in an epoll of ours), so every call
 * into it, every callback out of it, and every suspension and resumption of a connection happen on
 * this one thread; other threads only fill answers and put requests on the list of the woken. Our
 * epoll also watches each socket for the peer's closing, because the library does not look at
 * connections that are suspended, which is where a request spends the time of its generation.
 *
 * All limits of time are ours, too: the library's own time-out restarts with every byte, which lets
 * a slow sender stay for ever. A connection whose time is over is shut down at the socket, and the
 * library finds it closed. Each request ends in on_completed, whatever happened before. */
#include "net/http_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <jansson.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/fsio.h"
#include "base/log.h"
#include "base/proc.h"
#include "base/sha256.h"
#include "base/status.h"
#include "net/http_server_int.h"

#define TICK_S 0.05 /* how often the limits of time are looked at */
#define REST_S 1.0  /* to read what a client sent before it closed its side */

enum {
    SMALL_BODY = 64 * 1024, /* whole answers up to this are given to the library in one piece */
    SPARE_FDS = 64,         /* descriptors left to the rest of the process */
    EVENTS = 256,
    MAX_PEM = 1 << 20,         /* bytes of a certificate or key file */
    SWALLOW_MORE = 1024 * 1024 /* of a refused body is read at most this beyond max_body */
};

enum phase { PHASE_IDLE, PHASE_READ, PHASE_WORK };

struct http_server_conn {
    struct http_server_conn *next, **link;
    struct MHD_Connection *mc;
    int fd;
    enum phase phase;
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
    pthread_cond_t idle; /* active became 0 */
    struct http_req *woken;

    atomic_size_t bodies; /* bytes of bodies held */
    atomic_ullong connections, requests, refused, ended[8], bytes_in, bytes_out;
    atomic_llong open, active, held;
};

/* ---- shared with http_req.c ---- */

void http_server_wake(struct http_server *s, struct http_req *r)
{
    uint64_t one = 1;
    int first;
    if (r->on_list) {
        return;
    }
    r->on_list = 1;
    http_req_ref(r);
    pthread_mutex_lock(&s->mu);
    first = s->woken == NULL;
    r->next_woken = s->woken;
    s->woken = r;
    pthread_mutex_unlock(&s->mu);
    if (first && write(s->evfd, &one, sizeof one) < 0) {
        log_error(HTTP, "cannot wake the server: %s", strerror(errno));
    }
}

size_t http_server_stream_buffer(const struct http_server *s)
{
    return s->o.stream_buffer;
}

static const char *error_type(int status)
{
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    default: return status < 500 ? "invalid_request_error" : "server_error";
    }
}

void http_server_error_body(struct http_server *s, int status, const char *msg, struct buf *out,
                            const char **type)
{
    json_t *j;
    char *text;
    if (s->o.error_fn) {
        *type = s->o.error_fn(s->o.arg, status, msg, out);
        return;
    }
    /* A message may quote what a client sent: where that is not UTF-8 it is left out. */
    j = json_pack("{s:{s:s,s:s,s:n,s:i}}", "error", "message", msg, "type", error_type(status),
                  "param", "code", status);
    if (!j) {
        j = json_pack("{s:{s:s,s:s,s:n,s:i}}", "error", "message", "the request was refused",
                      "type", error_type(status), "param", "code", status);
    }
    text = j ? json_dumps(j, JSON_COMPACT) : NULL;
    buf_str(out, text ? text : "{}");
    free(text);
    json_decref(j);
    *type = "application/json";
}

void http_server_hold(struct http_server *s)
{
    atomic_fetch_add(&s->refs, 1);
    atomic_fetch_add(&s->held, 1);
}

static void unref(struct http_server *s)
{
    if (atomic_fetch_sub(&s->refs, 1) == 1) {
        for (int i = 0; i < s->o.nroutes; i++) {
            mem_free((char *)s->routes[i].method);
            mem_free((char *)s->routes[i].path);
        }
        mem_free(s->routes);
        mem_free(s->key_hash);
        mem_free((char *)s->o.host);
        mem_free(s->cert);
        if (s->key) {
            explicit_bzero(s->key, strlen(s->key));
        }
        mem_free(s->key);
        pthread_mutex_destroy(&s->mu);
        pthread_cond_destroy(&s->idle);
        if (s->evfd >= 0) {
            close(s->evfd);
        }
        if (s->epfd >= 0) {
            close(s->epfd);
        }
        mem_free(s);
    }
}

void http_server_drop(struct http_server *s, size_t body_bytes)
{
    atomic_fetch_sub(&s->bodies, body_bytes);
    atomic_fetch_sub(&s->held, 1);
    unref(s);
}

/* ---- connections ---- */

static void suspend(struct http_server_conn *c)
{
    c->suspended = 1;
    MHD_suspend_connection(c->mc);
}

static void resume(struct http_server_conn *c)
{
    if (c->suspended) {
        c->suspended = 0;
        MHD_resume_connection(c->mc);
    }
}

/* Closes a connection from our side; the library notices at its next step. */
static void doom(struct http_server_conn *c, enum http_req_end why)
{
    if (c->req) {
        int open = HTTP_REQ_OPEN;
        pthread_mutex_lock(&c->req->mu);
        atomic_compare_exchange_strong(&c->req->over, &open, (int)why);
        pthread_mutex_unlock(&c->req->mu);
    }
    if (!c->doomed) {
        c->doomed = 1;
        shutdown(c->fd, SHUT_RDWR);
    }
    resume(c);
}

static void on_connection(void *cls, struct MHD_Connection *mc, void **ctx,
                          enum MHD_ConnectionNotificationCode code)
{
    struct http_server *s = cls;
    struct http_server_conn *c = *ctx;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(mc, MHD_CONNECTION_INFO_CONNECTION_FD);
        struct epoll_event ev = {.events = EPOLLRDHUP | EPOLLET};
        int on = 1;
        c = mem_alloc(sizeof *c);
        c->mc = mc;
        c->fd = info->connect_fd;
        c->phase = PHASE_READ;
        c->limit = proc_now() + s->o.read_s;
        c->next = s->conns;
        c->link = &s->conns;
        if (c->next) {
            c->next->link = &c->next;
        }
        s->conns = c;
        *ctx = c;
        ev.data.ptr = c;
        if (epoll_ctl(s->epfd, EPOLL_CTL_ADD, c->fd, &ev)) {
            log_warn(HTTP, "cannot watch a connection: %s", strerror(errno));
        }
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        setsockopt(c->fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
        atomic_fetch_add(&s->connections, 1);
        atomic_fetch_add(&s->open, 1);
    } else if (c) {
        ASSERT(!c->req);
        epoll_ctl(s->epfd, EPOLL_CTL_DEL, c->fd, NULL);
        *c->link = c->next;
        if (c->next) {
            c->next->link = c->link;
        }
        mem_free(c->target);
        mem_free(c);
        *ctx = NULL;
        s->run_again = 1;
        atomic_fetch_sub(&s->open, 1);
    }
}

static struct http_server_conn *conn_of(struct MHD_Connection *mc)
{
    return MHD_get_connection_info(mc, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
}

/* The request line has come: the clock of the request starts. */
static void *on_uri(void *cls, const char *uri, struct MHD_Connection *mc)
{
    struct http_server *s = cls;
    struct http_server_conn *c = conn_of(mc);
    mem_free(c->target);
    c->target = mem_strdup(uri);
    if (c->phase == PHASE_IDLE) {
        c->limit = proc_now() + s->o.read_s;
    }
    c->phase = PHASE_READ;
    return NULL;
}

/* ---- the head of a request ---- */

struct copy {
    struct http_req *r;
    struct http_header *h;
    int n;
};

static enum MHD_Result copy_pair(void *cls, enum MHD_ValueKind kind, const char *name,
                                 const char *value)
{
    struct copy *c = cls;
    (void)kind;
    c->h[c->n].name = arena_strdup(&c->r->mem, name);
    c->h[c->n++].value = arena_strdup(&c->r->mem, value ? value : "");
    return MHD_YES;
}

static struct http_header *copy_pairs(struct http_req *r, struct MHD_Connection *mc,
                                      enum MHD_ValueKind kind, int *n)
{
    int count = MHD_get_connection_values(mc, kind, NULL, NULL);
    struct copy c = {.r = r};
    c.h = arena_alloc(&r->mem, sizeof *c.h * (size_t)(count > 0 ? count : 1));
    MHD_get_connection_values(mc, kind, copy_pair, &c);
    *n = c.n;
    return c.h;
}

static const char *peer_name(struct http_req *r, struct MHD_Connection *mc)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mc, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    char host[INET6_ADDRSTRLEN] = "?", text[INET6_ADDRSTRLEN + 16];
    unsigned port = 0;
    if (info && info->client_addr && info->client_addr->sa_family == AF_INET) {
        const struct sockaddr_in *a = (const void *)info->client_addr;
        inet_ntop(AF_INET, &a->sin_addr, host, sizeof host);
        port = ntohs(a->sin_port);
    } else if (info && info->client_addr && info->client_addr->sa_family == AF_INET6) {
        const struct sockaddr_in6 *a = (const void *)info->client_addr;
        inet_ntop(AF_INET6, &a->sin6_addr, host, sizeof host);
        port = ntohs(a->sin6_port);
    }
    snprintf(text, sizeof text, "%s:%u", host, port);
    return arena_strdup(&r->mem, text);
}

static int path_fits(const struct http_server_route *t, const char *path)
{
    size_t n = strlen(t->path);
    if (n >= 3 && strcmp(t->path + n - 3, "...") == 0) {
        return strncmp(t->path, path, n - 3) == 0;
    }
    return strcmp(t->path, path) == 0;
}

static int method_fits(const struct http_server_route *t, const char *method)
{
    return strcmp(t->method, "*") == 0 || strcmp(t->method, method) == 0 ||
           (strcmp(t->method, "GET") == 0 && strcmp(method, "HEAD") == 0);
}

/* Finds the route. 0, 404 or 405; `allow` gets the methods of the path. */
static int find_route(struct http_server *s, struct http_req *r, struct buf *allow)
{
    int found = 404;
    for (int i = 0; i < s->o.nroutes; i++) {
        const struct http_server_route *t = &s->routes[i];
        if (!path_fits(t, r->path)) {
            continue;
        }
        if (method_fits(t, r->method)) {
            r->route = t;
            return 0;
        }
        found = 405;
        if (allow->len > 0) {
            buf_str(allow, ", ");
        }
        buf_str(allow, t->method);
    }
    return found;
}

/* Compares hashes, each to its end, and with every key: the time tells nothing of them. */
static int key_ok(struct http_server *s, const char *auth)
{
    struct sha256 h;
    uint8_t got[32];
    int ok = 0;
    if (!auth || strncasecmp(auth, "Bearer ", 7) != 0) {
        return 0;
    }
    sha256_init(&h);
    sha256_update(&h, auth + 7, strlen(auth + 7));
    sha256_final(&h, got);
    for (int i = 0; i < s->o.nkeys; i++) {
        unsigned diff = 0;
        for (int j = 0; j < 32; j++) {
            diff |= (unsigned)(got[j] ^ s->key_hash[i][j]);
        }
        ok |= diff == 0;
    }
    return ok;
}

static void refuse(struct http_req *r, int status, const char *msg)
{
    r->refusal = status;
    r->refusal_msg = msg;
}

/* How many headers of that name; the last one's value in *value. */
static int count_header(const struct http_req *r, const char *name, const char **value)
{
    int n = 0;
    for (int i = 0; i < r->nheaders; i++) {
        if (strcasecmp(r->headers[i].name, name) == 0) {
            *value = r->headers[i].value;
            n++;
        }
    }
    return n;
}

/* What can be refused before the body is read. Returns 1 when nothing of the body is wanted at all,
 * because its length is in doubt, or too much, or the client asked before sending it. */
static int check_head(struct http_server *s, struct http_req *r, const char *version)
{
    const char *len = NULL, *enc = NULL, *expect = NULL;
    int nlen = count_header(r, "Content-Length", &len);
    int nenc = count_header(r, "Transfer-Encoding", &enc);
    int nexpect = count_header(r, "Expect", &expect);
    double bytes = len ? strtod(len, NULL) : 0; /* the library has checked that it is a number */
    struct buf allow;
    int found;
    if (strncmp(version, "HTTP/1.", 7) != 0) {
        refuse(r, 505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
        return 1;
    }
    if (nlen > 1 || nenc > 1 || (nlen && nenc)) {
        refuse(r, 400, "the length of the body is given twice");
        return 1;
    }
    if (nenc && strcasecmp(enc, "chunked") != 0) {
        refuse(r, 501, "the only transfer encoding known is chunked");
        return 1;
    }
    if (strstr(r->target, "%00")) {
        refuse(r, 400, "the path has a NUL");
        return 1;
    }
    if (nexpect && strcasecmp(expect, "100-continue") != 0) {
        refuse(r, 417, "the only expectation known is 100-continue");
        return 1;
    }
    buf_init(&allow, 256);
    found = find_route(s, r, &allow);
    if (s->o.nkeys && !(r->route && (r->route->flags & HTTP_SERVER_OPEN)) &&
        !key_ok(s, http_req_header(r, "Authorization"))) {
        refuse(r, 401, "no valid API key");
    } else if (found == 404) {
        refuse(r, 404, "no such path");
    } else if (found == 405) {
        char *msg = arena_alloc(&r->mem, 320);
        snprintf(msg, 320, "method not allowed here: %s", allow.data);
        refuse(r, 405, msg);
    } else if (atomic_load(&s->draining)) {
        refuse(r, 503, "the server is shutting down");
    } else if (bytes > (double)s->o.max_body) {
        refuse(r, 413, "the body is too large");
    }
    buf_fini(&allow);
    return r->refusal && (nexpect || bytes > (double)(s->o.max_body + SWALLOW_MORE));
}

/* Opens the request whose headers are complete. */
static struct http_req *open_req(struct http_server *s, struct http_server_conn *c, const char *url,
                                 const char *method)
{
    struct http_req *r = http_req_new(s);
    r->id = ++s->next_id;
    r->t_open = proc_now();
    r->conn = c;
    c->req = r;
    buf_init(&r->body, s->o.max_body + 1);
    r->method = arena_strdup(&r->mem, method);
    r->path = arena_strdup(&r->mem, url);
    r->target = arena_strdup(&r->mem, c->target ? c->target : url);
    r->peer = peer_name(r, c->mc);
    r->headers = copy_pairs(r, c->mc, MHD_HEADER_KIND, &r->nheaders);
    r->args = copy_pairs(r, c->mc, MHD_GET_ARGUMENT_KIND, &r->nargs);
    atomic_fetch_add(&s->requests, 1);
    return r;
}

/* A piece of the body. MHD_NO closes the connection: of a refused body not everything is read. */
static enum MHD_Result take_body(struct http_server *s, struct http_req *r, const char *data,
                                 size_t n)
{
    atomic_fetch_add(&s->bytes_in, n);
    if (!r->refusal && n > s->o.max_body - r->body.len) {
        refuse(r, 413, "the body is too large");
    } else if (!r->refusal && atomic_load(&s->bodies) + n > s->o.max_bodies) {
        refuse(r, 503, "too many bodies at once");
    }
    if (r->refusal) {
        r->swallowed += r->body.len + n;
        atomic_fetch_sub(&s->bodies, r->body.len);
        buf_fini(&r->body);
        buf_init(&r->body, s->o.max_body + 1);
        return r->swallowed <= s->o.max_body + SWALLOW_MORE ? MHD_YES : MHD_NO;
    }
    buf_add(&r->body, data, n);
    if (buf_status(&r->body)) {
        atomic_fetch_sub(&s->bodies, r->body.len);
        buf_clear(&r->body);
        refuse(r, 503, "no memory for the body");
        return MHD_YES;
    }
    atomic_fetch_add(&s->bodies, n);
    return MHD_YES;
}

/* ---- the answer ---- */

/* Gives the library the next bytes of a streamed or large answer, or parks the connection. */
static ssize_t on_read(void *cls, uint64_t pos, char *out, size_t max)
{
    struct http_req *r = cls;
    ssize_t n;
    int room = 0;
    (void)pos;
    pthread_mutex_lock(&r->mu);
    r->t_moved = proc_now();
    if (atomic_load(&r->over)) {
        n = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (r->out.len > r->head) {
        size_t left = r->out.len - r->head;
        size_t take = left < max ? left : max;
        memcpy(out, r->out.data + r->head, take);
        r->head += take;
        r->sent += take;
        n = (ssize_t)take;
        if (r->wants_room && (left - take) * 2 <= r->s->o.stream_buffer) {
            r->wants_room = 0;
            room = 1;
        }
    } else if (r->ended) {
        n = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        r->parked = 1;
        n = 0;
    }
    pthread_mutex_unlock(&r->mu);
    if (n == 0) {
        suspend(r->conn); /* whoever wakes it since then has only put it on the list */
    }
    if (room && r->room) {
        r->room(r->room_arg, r);
    }
    return n;
}

/* Makes the library's answer of ours and queues it. What it reads of the answer does not change any
 * more; the lock is not held, because the library takes its own around on_read. */
static enum MHD_Result queue_answer(struct http_req *r)
{
    struct http_server *s = r->s;
    struct MHD_Response *m;
    enum MHD_Result rc;
    if (r->answer == HTTP_SERVER_STREAM) {
        m = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 32 * 1024, on_read, r, NULL);
    } else if (r->out.len > SMALL_BODY) {
        m = MHD_create_response_from_callback(r->out.len, 64 * 1024, on_read, r, NULL);
    } else {
        m = MHD_create_response_from_buffer(r->out.len, r->out.data, MHD_RESPMEM_PERSISTENT);
        r->sent = r->out.len;
    }
    if (!m) {
        return MHD_NO;
    }
    for (int i = 0; i < r->nout_headers; i++) {
        if (MHD_add_response_header(m, r->out_headers[i].name, r->out_headers[i].value) !=
            MHD_YES) {
            log_warn(HTTP, "a header of the answer was left out: %s", r->out_headers[i].name);
        }
    }
    if (r->refusal == 401) {
        MHD_add_response_header(m, "WWW-Authenticate", "Bearer");
    }
    if (r->refusal == 405) {
        MHD_add_response_header(m, "Allow", strchr(r->refusal_msg, ':') + 2);
    }
    if (atomic_load(&s->draining) || (r->refusal && r->refusal != 404 && r->refusal != 401)) {
        MHD_add_response_header(m, "Connection", "close");
    }
    r->queued = 1;
    r->t_moved = proc_now();
    rc = MHD_queue_response(r->conn->mc, (unsigned)r->status, m);
    MHD_destroy_response(m);
    return rc;
}

static enum MHD_Result answer_refused(struct http_req *r)
{
    pthread_mutex_lock(&r->mu);
    http_req_set_error(r, r->refusal, r->refusal_msg);
    pthread_mutex_unlock(&r->mu);
    atomic_fetch_add(&r->s->refused, 1);
    return queue_answer(r);
}

/* Queues the answer if there is one, else parks the connection until there is. */
static enum MHD_Result answer_or_park(struct http_req *r)
{
    int over, answer;
    pthread_mutex_lock(&r->mu);
    answer = r->answer;
    if (answer == HTTP_SERVER_NO_ANSWER && r->conn->half_closed) {
        int open = HTTP_REQ_OPEN;
        atomic_compare_exchange_strong(&r->over, &open, HTTP_REQ_GONE);
    }
    over = atomic_load(&r->over);
    r->parked = !over && answer == HTTP_SERVER_NO_ANSWER;
    pthread_mutex_unlock(&r->mu);
    if (over && !(over == HTTP_REQ_LATE && answer == HTTP_SERVER_WHOLE)) {
        return MHD_NO;
    }
    if (answer != HTTP_SERVER_NO_ANSWER) {
        return queue_answer(r);
    }
    suspend(r->conn);
    return MHD_YES;
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *mc, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *size, void **ctx)
{
    struct http_server *s = cls;
    struct http_req *r = *ctx;
    if (!r) {
        *ctx = r = open_req(s, conn_of(mc), url, method);
        return check_head(s, r, version) ? answer_refused(r) : MHD_YES;
    }
    if (*size > 0) {
        size_t n = *size;
        *size = 0;
        return take_body(s, r, data, n);
    }
    if (r->refusal) {
        return r->queued ? MHD_YES : answer_refused(r);
    }
    if (atomic_load(&s->cut_all)) {
        return MHD_NO;
    }
    if (!r->handed) {
        r->handed = 1;
        r->t_handed = proc_now();
        r->conn->phase = PHASE_WORK;
        atomic_fetch_add(&s->active, 1);
        http_req_ref(r); /* the owner's */
        r->route->fn(s->o.arg, r);
    }
    return answer_or_park(r);
}

/* ---- the end of a request ---- */

static void log_access(const struct http_req *r, enum http_req_end how)
{
    char target[160];
    size_t n = 0;
    for (const char *p = r->target; *p && n + 1 < sizeof target; p++) {
        target[n++] = (unsigned char)*p < 0x21 || (unsigned char)*p > 0x7e ? '?' : *p;
    }
    target[n] = 0;
    log_debug(HTTP, "%s %.16s %s %d in=%zu out=%zu %.1f ms %s", r->peer, r->method, target,
              r->queued ? r->status : 0, r->body.len, r->sent, 1e3 * (proc_now() - r->t_open),
              http_req_end_name(how));
}

static void on_completed(void *cls, struct MHD_Connection *mc, void **ctx,
                         enum MHD_RequestTerminationCode code)
{
    struct http_server *s = cls;
    struct http_server_conn *c = conn_of(mc);
    struct http_req *r = *ctx;
    enum http_req_end how = code == MHD_REQUEST_TERMINATED_COMPLETED_OK      ? HTTP_REQ_SENT
                            : code == MHD_REQUEST_TERMINATED_DAEMON_SHUTDOWN ? HTTP_REQ_CLOSED
                                                                             : HTTP_REQ_GONE;
    *ctx = NULL;
    if (c) {
        c->req = NULL;
        c->phase = PHASE_IDLE;
        c->limit = proc_now() + s->o.idle_s;
    }
    if (!r) {
        return;
    }
    pthread_mutex_lock(&r->mu);
    if (atomic_load(&r->over)) {
        how = (enum http_req_end)atomic_load(&r->over);
    }
    atomic_store(&r->over, (int)how);
    r->parked = 0;
    r->conn = NULL;
    pthread_mutex_unlock(&r->mu);
    atomic_fetch_add(&s->bytes_out, r->sent);
    log_access(r, how);
    if (r->handed) {
        if (r->done) {
            r->done(r->done_arg, r, how);
        }
        atomic_fetch_add(&s->ended[how], 1);
        pthread_mutex_lock(&s->mu);
        if (atomic_fetch_sub(&s->active, 1) == 1) {
            pthread_cond_broadcast(&s->idle);
        }
        pthread_mutex_unlock(&s->mu);
    }
    http_req_unref(r);
}

/* ---- the thread ---- */

/* Resumes the connections whose owners have done something. */
static void take_woken(struct http_server *s)
{
    struct http_req *r, *next;
    pthread_mutex_lock(&s->mu);
    r = s->woken;
    s->woken = NULL;
    pthread_mutex_unlock(&s->mu);
    for (; r; r = next) {
        int over;
        next = r->next_woken;
        pthread_mutex_lock(&r->mu);
        r->on_list = 0;
        over = atomic_load(&r->over);
        pthread_mutex_unlock(&r->mu);
        if (r->conn && over) {
            doom(r->conn, (enum http_req_end)over);
        } else if (r->conn) {
            resume(r->conn);
        }
        http_req_unref(r);
    }
}

/* The request has had its time: 504 when nothing was answered yet, else a cut. */
static void expire_request(struct http_server_conn *c)
{
    struct http_req *r = c->req;
    int answer;
    pthread_mutex_lock(&r->mu);
    answer = r->answer;
    if (answer == HTTP_SERVER_NO_ANSWER && !atomic_load(&r->over)) {
        atomic_store(&r->over, HTTP_REQ_LATE);
        http_req_set_error(r, 504, "the request took too long");
        r->parked = 0;
        r->t_handed = proc_now(); /* and as much again to take the answer */
    }
    pthread_mutex_unlock(&r->mu);
    if (answer == HTTP_SERVER_NO_ANSWER) {
        resume(c);
    } else {
        doom(c, HTTP_REQ_LATE);
    }
}

static void check_times(struct http_server *s, double now)
{
    int draining = atomic_load(&s->draining), cut = atomic_load(&s->cut_all);
    for (struct http_server_conn *c = s->conns; c; c = c->next) {
        struct http_req *r = c->req;
        if (c->doomed) {
            continue;
        }
        if (cut) {
            doom(c, HTTP_REQ_CLOSED);
        } else if (c->phase != PHASE_WORK) {
            if (now > c->limit || (draining && c->phase == PHASE_IDLE)) {
                doom(c, HTTP_REQ_GONE);
            }
        } else if (r->queued && !c->suspended && now > r->t_moved + s->o.stall_s) {
            doom(c, HTTP_REQ_STALLED);
        } else if (now > r->t_handed + s->o.request_s) {
            expire_request(c);
        }
    }
}

static void quiesce(struct http_server *s)
{
    if (!s->quiesced) {
        MHD_socket fd = MHD_quiesce_daemon(s->mhd);
        s->quiesced = 1;
        if (fd != MHD_INVALID_SOCKET) {
            close(fd);
        }
    }
}

/* How long to wait, in milliseconds; -1 for ever: without connections there is nothing to time. */
static int wait_ms(struct http_server *s)
{
    MHD_UNSIGNED_LONG_LONG lib;
    double ms = -1;
    if (s->run_again) {
        s->run_again = 0;
        return 0;
    }
    if (s->conns) {
        ms = (s->next_tick - proc_now()) * 1e3 + 1;
        ms = ms < 0 ? 0 : ms;
    }
    if (MHD_get_timeout(s->mhd, &lib) == MHD_YES && (ms < 0 || (double)lib < ms)) {
        ms = (double)lib;
    }
    return ms > 1000 ? 1000 : (int)ms;
}

static void take_events(struct http_server *s, const struct epoll_event *ev, int n)
{
    for (int i = 0; i < n; i++) {
        if (ev[i].data.ptr == &s->evfd) {
            uint64_t count;
            if (read(s->evfd, &count, sizeof count) < 0 && errno != EAGAIN) {
                log_error(HTTP, "cannot read the wake-up counter: %s", strerror(errno));
            }
        } else if (ev[i].data.ptr != &s->mhd) {
            struct http_server_conn *c = ev[i].data.ptr;
            struct http_req *r = c->req;
            int whole = 0;
            c->half_closed = 1;
            if (c->phase == PHASE_READ && c->limit > proc_now() + REST_S) {
                /* What was sent before is here already; the library may miss that no more comes. */
                c->limit = proc_now() + REST_S;
            }
            if (r && r->handed) {
                pthread_mutex_lock(&r->mu);
                whole = r->ended;
                pthread_mutex_unlock(&r->mu);
                /* A reset means nobody reads; a half-closed side may still read the rest. */
                if (!whole || (ev[i].events & (EPOLLHUP | EPOLLERR))) {
                    doom(c, HTTP_REQ_GONE);
                }
            }
        }
    }
}

static void *serve(void *arg)
{
    struct http_server *s = arg;
    struct epoll_event ev[EVENTS];
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    while (!atomic_load(&s->stop)) {
        double now;
        int n;
        take_woken(s);
        MHD_run(s->mhd);
        now = proc_now();
        if (atomic_load(&s->draining)) {
            quiesce(s);
        }
        if (now >= s->next_tick) {
            check_times(s, now);
            s->next_tick = now + TICK_S;
        }
        n = epoll_wait(s->epfd, ev, EVENTS, wait_ms(s));
        if (n < 0 && errno != EINTR) {
            log_error(HTTP, "cannot wait for connections: %s", strerror(errno));
            break;
        }
        take_events(s, ev, n);
    }
    quiesce(s);
    atomic_store(&s->cut_all, 1);
    check_times(s, proc_now());
    MHD_run(s->mhd);
    /* The library refuses to stop over suspended connections, and dooming has resumed all. */
    MHD_stop_daemon(s->mhd);
    s->mhd = NULL;
    take_woken(s);
    ASSERT(!s->conns);
    return NULL;
}

/* ---- starting and stopping ---- */

static void log_library(void *arg, const char *fmt, va_list ap)
{
    char line[512];
    size_t n;
    (void)arg;
    vsnprintf(line, sizeof line, fmt, ap);
    n = strlen(line);
    while (n > 0 && (unsigned char)line[n - 1] <= ' ') {
        line[--n] = 0;
    }
    log_debug(HTTP, "%s", line);
}

/* Listens; *fd and *port are set on success. */
static int listen_on(const char *host, int port, int *out_fd, int *out_port, struct err *e)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
    struct sockaddr_storage bound;
    socklen_t len = sizeof bound;
    char service[16];
    int rc, fd = -1, on = 1;
    snprintf(service, sizeof service, "%d", port);
    rc = getaddrinfo(host, service, &hints, &list);
    if (rc) {
        return ERR(e, STATUS_INPUT, "cannot listen on %s: %s", host, gai_strerror(rc));
    }
    for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0) {
            rc = errno;
            continue;
        }
        /* So that a restart does not wait for connections of the last run to be forgotten. */
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(fd, a->ai_addr, a->ai_addrlen) || listen(fd, SOMAXCONN) ||
            getsockname(fd, (void *)&bound, &len)) {
            rc = errno;
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(list);
    if (fd < 0) {
        return ERR(e, STATUS_IO, "cannot listen on %s port %d: %s", host, port, strerror(rc));
    }
    *out_fd = fd;
    *out_port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                                  : ((struct sockaddr_in *)&bound)->sin_port);
    return STATUS_OK;
}

static int check_opts(const struct http_server_opts *o, struct err *e)
{
    if (o->port < 0 || o->port > 65535) {
        return ERR(e, STATUS_INPUT, "port %d is not between 0 and 65535", o->port);
    }
    if (!o->cert_file != !o->key_file) {
        return ERR(e, STATUS_INPUT, "TLS needs a certificate and a key, and only one is given");
    }
    if (o->nroutes < 1) {
        return ERR(e, STATUS_INPUT, "a server needs at least one route");
    }
    if (o->read_s < 0 || o->idle_s < 0 || o->stall_s < 0 || o->request_s < 0 ||
        o->max_connections < 0) {
        return ERR(e, STATUS_INPUT, "a limit of the server is negative");
    }
    for (int i = 0; i < o->nkeys; i++) {
        if (!o->keys[i] || !*o->keys[i]) {
            return ERR(e, STATUS_INPUT, "an API key is empty");
        }
    }
    if (o->cert_file && MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES) {
        return ERR(e, STATUS_UNSUPPORTED, "libmicrohttpd was built without TLS");
    }
    return STATUS_OK;
}

static void set_defaults(struct http_server_opts *o)
{
    struct rlimit files;
    o->host = mem_strdup(o->host ? o->host : "127.0.0.1");
    o->max_connections = o->max_connections ? o->max_connections : 4096;
    o->max_header = o->max_header ? o->max_header : 32 << 10;
    o->max_body = o->max_body ? o->max_body : 64 << 20;
    o->max_bodies = o->max_bodies ? o->max_bodies : (size_t)1 << 30;
    o->stream_buffer = o->stream_buffer ? o->stream_buffer : 256 << 10;
    o->read_s = o->read_s > 0 ? o->read_s : 60;
    o->idle_s = o->idle_s > 0 ? o->idle_s : 75;
    o->stall_s = o->stall_s > 0 ? o->stall_s : 30;
    o->request_s = o->request_s > 0 ? o->request_s : 3600;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur != RLIM_INFINITY) {
        long most = (long)files.rlim_cur - SPARE_FDS;
        most = most < 1 ? 1 : most;
        if (most < o->max_connections) {
            log_warn(HTTP, "at most %ld connections: the system allows %ld open files", most,
                     (long)files.rlim_cur);
            o->max_connections = (int)most;
        }
    }
}

static void copy_opts(struct http_server *s, const struct http_server_opts *o)
{
    s->o = *o;
    set_defaults(&s->o);
    s->routes = mem_alloc(sizeof *s->routes * (size_t)o->nroutes);
    for (int i = 0; i < o->nroutes; i++) {
        s->routes[i] = o->routes[i];
        s->routes[i].method = mem_strdup(o->routes[i].method);
        s->routes[i].path = mem_strdup(o->routes[i].path);
    }
    s->key_hash = mem_alloc(32 * (size_t)(o->nkeys + 1));
    for (int i = 0; i < o->nkeys; i++) {
        struct sha256 h;
        sha256_init(&h);
        sha256_update(&h, o->keys[i], strlen(o->keys[i]));
        sha256_final(&h, s->key_hash[i]);
    }
    /* Not kept: what they point to is the caller's. */
    s->o.keys = NULL;
    s->o.routes = NULL;
    s->o.cert_file = s->o.key_file = NULL;
}

static int start_library(struct http_server *s, int fd, struct err *e)
{
    unsigned flags = MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
    struct MHD_OptionItem tls[] = {
        {MHD_OPTION_HTTPS_MEM_CERT, 0, s->cert},
        {MHD_OPTION_HTTPS_MEM_KEY, 0, s->key},
        {MHD_OPTION_END, 0, NULL},
    };
    if (s->cert) {
        flags |= MHD_USE_TLS;
    } else {
        tls[0].option = MHD_OPTION_END;
    }
    s->mhd = MHD_start_daemon(
        flags, 0, NULL, NULL, on_request, s, MHD_OPTION_EXTERNAL_LOGGER, log_library, NULL,
        MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_NOTIFY_COMPLETED, on_completed, s,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, s, MHD_OPTION_URI_LOG_CALLBACK, on_uri, s,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)s->o.max_connections,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, s->o.max_header, MHD_OPTION_CONNECTION_TIMEOUT, 0u,
        MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, MHD_OPTION_ARRAY,
        tls, MHD_OPTION_END);
    if (!s->mhd) {
        return ERR(e, STATUS_IO, "the HTTP library does not start%s",
                   s->cert ? ": are certificate and key PEM files that fit together?" : "");
    }
    return STATUS_OK;
}

/* Our epoll: the wake-up counter, and the library's own epoll inside it. */
static int start_events(struct http_server *s, struct err *e)
{
    struct epoll_event ev = {.events = EPOLLIN};
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(s->mhd, MHD_DAEMON_INFO_EPOLL_FD);
    if (!info) {
        return ERR(e, STATUS_UNSUPPORTED, "libmicrohttpd was built without epoll");
    }
    ev.data.ptr = &s->mhd;
    if (epoll_ctl(s->epfd, EPOLL_CTL_ADD, info->epoll_fd, &ev)) {
        return ERR(e, STATUS_IO, "cannot watch the HTTP library: %s", strerror(errno));
    }
    ev.data.ptr = &s->evfd;
    if (epoll_ctl(s->epfd, EPOLL_CTL_ADD, s->evfd, &ev)) {
        return ERR(e, STATUS_IO, "cannot watch the wake-up counter: %s", strerror(errno));
    }
    return STATUS_OK;
}

int http_server_start(struct http_server **out, const struct http_server_opts *o, struct err *e)
{
    struct http_server *s;
    pthread_condattr_t attr;
    size_t len;
    int fd = -1, rc = check_opts(o, e);
    if (rc) {
        return rc;
    }
    s = mem_alloc(sizeof *s);
    atomic_init(&s->refs, 1);
    pthread_mutex_init(&s->mu, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->idle, &attr);
    pthread_condattr_destroy(&attr);
    copy_opts(s, o);
    s->epfd = epoll_create1(EPOLL_CLOEXEC);
    s->evfd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->epfd < 0 || s->evfd < 0) {
        rc = ERR(e, STATUS_IO, "no descriptors for a server: %s", strerror(errno));
        goto out;
    }
    if (o->cert_file && ((rc = fsio_read(o->cert_file, MAX_PEM, &s->cert, &len, e)) ||
                         (rc = fsio_read(o->key_file, MAX_PEM, &s->key, &len, e)))) {
        goto out;
    }
    rc = listen_on(s->o.host, o->port, &fd, &s->port, e);
    if (rc) {
        goto out;
    }
    rc = start_library(s, fd, e);
    if (rc) {
        close(fd);
        goto out;
    }
    rc = start_events(s, e);
    if (rc == STATUS_OK && pthread_create(&s->thread, NULL, serve, s)) {
        rc = ERR(e, STATUS_NOMEM, "no thread for the server");
    }
    if (rc) {
        MHD_stop_daemon(s->mhd);
        goto out;
    }
    *out = s;
    return STATUS_OK;
out:
    unref(s);
    return rc;
}

int http_server_port(const struct http_server *s)
{
    return s->port;
}

void http_server_stats(const struct http_server *s, struct http_server_stats *out)
{
    out->connections = atomic_load(&s->connections);
    out->requests = atomic_load(&s->requests);
    out->refused = atomic_load(&s->refused);
    for (int i = 0; i < 8; i++) {
        out->ended[i] = atomic_load(&s->ended[i]);
    }
    out->bytes_in = atomic_load(&s->bytes_in);
    out->bytes_out = atomic_load(&s->bytes_out);
    out->open = atomic_load(&s->open);
    out->active = atomic_load(&s->active);
    out->held = atomic_load(&s->held);
}

int http_server_draining(const struct http_server *s)
{
    return atomic_load(&s->draining);
}

static void nudge(struct http_server *s)
{
    uint64_t one = 1;
    if (write(s->evfd, &one, sizeof one) < 0) {
        log_error(HTTP, "cannot wake the server: %s", strerror(errno));
    }
}

/* Waits until no request has a handler; 1 when that came about before the deadline. */
static int wait_idle(struct http_server *s, double deadline)
{
    struct timespec t = {.tv_sec = (time_t)deadline,
                         .tv_nsec = (long)((deadline - (double)(time_t)deadline) * 1e9)};
    int rc = 0, idle;
    pthread_mutex_lock(&s->mu);
    while (atomic_load(&s->active) > 0 && rc == 0) {
        rc = pthread_cond_timedwait(&s->idle, &s->mu, &t);
    }
    idle = atomic_load(&s->active) == 0;
    pthread_mutex_unlock(&s->mu);
    return idle;
}

int http_server_drain(struct http_server *s, double wait_s)
{
    atomic_store(&s->draining, 1);
    nudge(s);
    if (wait_idle(s, proc_now() + wait_s)) {
        return STATUS_OK;
    }
    atomic_store(&s->cut_all, 1);
    nudge(s);
    wait_idle(s, proc_now() + 10.0);
    return STATUS_TIMEOUT;
}

void http_server_free(struct http_server *s)
{
    if (s) {
        atomic_store(&s->stop, 1);
        nudge(s);
        pthread_join(s->thread, NULL);
        unref(s);
    }
}
