/* The server's thread, which owns the HTTP library's daemon and all its connections.
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
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/proc.h"
#include "base/status.h"
#include "net/http_server_int.h"

#define TICK_S 0.05 /* how often the limits of time are looked at */
#define REST_S 1.0  /* to read what a client sent before it closed its side */
#define LOOK_S 0.2  /* without a move, how long until the system is asked for one */

enum {
    SMALL_BODY = 64 * 1024, /* whole answers up to this are given to the library in one piece */
    EVENTS = 256
};

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

void http_server_on_connection(void *cls, struct MHD_Connection *mc, void **ctx,
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
        c->phase = HTTP_SERVER_READ;
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
void *http_server_on_uri(void *cls, const char *uri, struct MHD_Connection *mc)
{
    struct http_server *s = cls;
    struct http_server_conn *c = conn_of(mc);
    mem_free(c->target);
    c->target = mem_strdup(uri);
    if (c->phase == HTTP_SERVER_IDLE) {
        c->limit = proc_now() + s->o.read_s;
    }
    c->phase = HTTP_SERVER_READ;
    return NULL;
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

enum MHD_Result http_server_on_request(void *cls, struct MHD_Connection *mc, const char *url,
                                       const char *method, const char *version, const char *data,
                                       size_t *size, void **ctx)
{
    struct http_server *s = cls;
    struct http_req *r = *ctx;
    if (!r) {
        *ctx = r = http_server_open_req(s, conn_of(mc), url, method);
        return http_server_check_head(s, r, version) ? answer_refused(r) : MHD_YES;
    }
    if (*size > 0) {
        size_t n = *size;
        *size = 0;
        return http_server_take_body(s, r, data, n);
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
        r->conn->phase = HTTP_SERVER_WORK;
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

void http_server_on_completed(void *cls, struct MHD_Connection *mc, void **ctx,
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
        c->phase = HTTP_SERVER_IDLE;
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
        atomic_fetch_sub(&s->active, 1);
    }
    http_req_unref(r);
    pthread_mutex_lock(&s->mu);
    if (atomic_fetch_sub(&s->begun, 1) == 1) {
        pthread_cond_broadcast(&s->idle);
    }
    pthread_mutex_unlock(&s->mu);
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

/* Looks whether the client has taken bytes of its answer. The library asks for more only when a
 * good part of the system's buffer is free, which holds megabytes: a slow reader's minutes. */
static void note_moves(struct http_server_conn *c, double now)
{
    struct http_req *r = c->req;
    int unsent;
    if (now > r->t_moved + LOOK_S && ioctl(c->fd, SIOCOUTQ, &unsent) == 0) {
        if (unsent < r->unsent) {
            r->t_moved = now;
        }
        r->unsent = unsent;
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
        if (c->phase == HTTP_SERVER_WORK && r->queued && !c->suspended) {
            note_moves(c, now);
        }
        if (cut) {
            doom(c, HTTP_REQ_CLOSED);
        } else if (c->phase != HTTP_SERVER_WORK) {
            if (now > c->limit || (draining && c->phase == HTTP_SERVER_IDLE)) {
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
            if (c->phase == HTTP_SERVER_READ && c->limit > proc_now() + REST_S) {
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

void *http_server_loop(void *arg)
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
