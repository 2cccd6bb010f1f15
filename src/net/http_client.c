/* The client: one thread drives libcurl's multi interface by epoll, so that the cost of an event
 * does not grow with the number of requests in flight.
 *
 * A call lives from http_client_start to the posting of its end. Callers reach it only by its
 * number, under the lock, so that none can outlive it; everything of libcurl is touched by the
 * thread alone. The limits on total and idle time are checked here and not by libcurl: they include
 * the time in our own queue and between retries, and a request that its caller holds back by its
 * window is not idle. */
#include "net/http_client.h"

#include <curl/curl.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/proc.h"
#include "base/status.h"

#define TICK_S 0.02 /* how often the limits of time are looked at */

enum {
    EVENTS = 256,
    MAX_HEADERS = 256,
    KEEP_EASY = 256, /* handles kept for the next requests */
    CONN_AGE_S = 60  /* idle connections older than this are not used again: servers close them */
};

enum call_state { CALL_WAITING, CALL_FLYING, CALL_PAUSING /* until its next try */ };

struct call {
    struct call *next, **link; /* in the list of its state */
    struct http_client *c;
    uint64_t id;
    int slot;
    enum call_state state;
    void *user;
    /* The request. */
    char *method, *url;
    struct curl_slist *headers;
    char *body;
    size_t len;
    double connect_s, idle_s, t_start, deadline;
    size_t max_response, window;
    int stream, tries_left, idempotent;
    /* The try. */
    CURL *easy;
    char error[CURL_ERROR_SIZE];
    int tries;
    double t_first, t_byte, t_next; /* first byte, last byte, next try */
    int status, head_done, told;    /* told: something was posted */
    int discard;                    /* of this answer nothing is told: it will be tried again */
    int reached;
    double retry_after; /* -1: not given */
    struct arena mem;   /* headers of the answer */
    struct http_header *answer;
    int nanswer;
    struct buf in;
    int forced; /* outcome + 1 that ends the transfer, whatever libcurl calls it */
    /* Under the lock. */
    size_t unreleased;
    int paused, cancelled;
};

struct event {
    struct http_client_event ev; /* first: what the caller holds */
    struct event *next;
    struct arena mem;
    struct buf data;
    size_t counted; /* bytes of the window it holds */
};

struct http_client {
    CURLM *multi;
    int epfd, wakefd, queuefd, max_inflight, max_calls, insecure;
    char *ca_file;
    pthread_t thread;

    /* The thread only. */
    struct call *waiting, **waiting_end, *flying, *pausing;
    int nflying;
    double timer; /* when libcurl wants to be called; < 0 never */
    double next_tick;
    CURL *spare[KEEP_EASY];
    int nspare;

    pthread_mutex_t mu;
    struct call **slots; /* max_calls, NULL where free */
    int *free_slots, nfree;
    uint64_t next_id;
    struct call *fresh, **fresh_end; /* started, not yet seen by the thread */
    struct event *first, **last;     /* the queue to take from */
    int woken, look;                 /* look: something was cancelled or released */
    atomic_int stop;
};

/* ---- lists of calls, the thread's ---- */

static void unlink_call(struct call *k)
{
    if (k->c->waiting_end == &k->next) {
        k->c->waiting_end = k->link;
    }
    *k->link = k->next;
    if (k->next) {
        k->next->link = k->link;
    }
    k->next = NULL;
    k->link = NULL;
}

static void push_call(struct call **list, struct call *k)
{
    k->next = *list;
    k->link = list;
    if (k->next) {
        k->next->link = &k->next;
    }
    *list = k;
}

static void push_waiting(struct call *k)
{
    k->state = CALL_WAITING;
    k->next = NULL;
    k->link = k->c->waiting_end;
    *k->link = k;
    k->c->waiting_end = &k->next;
}

/* ---- events ---- */

static struct event *new_event(const struct call *k, enum http_client_kind kind)
{
    struct event *x = mem_alloc(sizeof *x);
    x->ev.kind = kind;
    x->ev.id = k->id;
    x->ev.user = k->user;
    x->ev.status = k->status;
    x->ev.data = x->ev.error = "";
    arena_init(&x->mem, 1024);
    buf_init(&x->data, (size_t)-1 / 2);
    return x;
}

static void free_event(struct event *x)
{
    arena_fini(&x->mem);
    buf_fini(&x->data);
    mem_free(x);
}

/* Appends to the queue; the lock is held. */
static void post(struct http_client *c, struct event *x)
{
    uint64_t one = 1;
    int was_empty = c->first == NULL;
    x->next = NULL;
    *c->last = x;
    c->last = &x->next;
    if (was_empty && write(c->queuefd, &one, sizeof one) < 0) {
        log_error(HTTP, "cannot tell of an event: %s", strerror(errno));
    }
}

static void copy_headers(struct event *x, const struct call *k)
{
    struct http_header *h = arena_alloc(&x->mem, sizeof *h * (size_t)(k->nanswer + 1));
    for (int i = 0; i < k->nanswer; i++) {
        h[i].name = arena_strdup(&x->mem, k->answer[i].name);
        h[i].value = arena_strdup(&x->mem, k->answer[i].value);
    }
    x->ev.headers = h;
    x->ev.nheaders = k->nanswer;
}

/* ---- what libcurl tells of an answer ---- */

/* 1 when this answer will not be told but the request sent again. */
static int wants_retry(const struct call *k, double wait)
{
    int status = k->status;
    return k->tries_left > 0 && !k->told && proc_now() + wait < k->deadline &&
           (status == 429 || status == 503 || (k->idempotent && (status == 502 || status == 504)));
}

static double backoff(const struct call *k)
{
    double s = 0.1;
    if (k->retry_after >= 0) {
        return k->retry_after;
    }
    for (int i = 1; i < k->tries && s < 5; i++) {
        s *= 2;
    }
    return s < 5 ? s : 5;
}

static void end_head(struct call *k)
{
    k->head_done = 1;
    k->discard = wants_retry(k, backoff(k));
    if (k->stream && !k->discard) {
        struct event *x = new_event(k, HTTP_CLIENT_HEAD);
        copy_headers(x, k);
        k->told = 1;
        pthread_mutex_lock(&k->c->mu);
        post(k->c, x);
        pthread_mutex_unlock(&k->c->mu);
    }
}

static void add_header(struct call *k, const char *line, size_t n)
{
    const char *colon = memchr(line, ':', n), *end = line + n, *value;
    struct http_header *h = &k->answer[k->nanswer];
    if (!colon || k->nanswer == MAX_HEADERS) {
        return;
    }
    value = colon + 1;
    while (value < end && (*value == ' ' || *value == '\t')) {
        value++;
    }
    while (end > value && (unsigned char)end[-1] <= ' ') {
        end--;
    }
    h->name = arena_strndup(&k->mem, line, (size_t)(colon - line));
    h->value = arena_strndup(&k->mem, value, (size_t)(end - value));
    k->nanswer++;
    if (strcasecmp(h->name, "Retry-After") == 0 && *h->value >= '0' && *h->value <= '9') {
        k->retry_after = (double)strtoul(h->value, NULL, 10);
    }
}

static size_t on_header(char *line, size_t size, size_t n, void *arg)
{
    struct call *k = arg;
    long status = 0;
    n *= size;
    k->t_byte = proc_now();
    if (k->t_first == 0) {
        k->t_first = k->t_byte;
    }
    if (k->head_done) { /* trailers */
        return n;
    }
    if (n >= 5 && memcmp(line, "HTTP/", 5) == 0) {
        k->nanswer = 0;
        k->retry_after = -1;
    } else if (n <= 2 && (line[0] == '\r' || line[0] == '\n')) {
        curl_easy_getinfo(k->easy, CURLINFO_RESPONSE_CODE, &status);
        k->status = (int)status;
        if (status >= 200) {
            end_head(k);
        }
    } else {
        add_header(k, line, n);
    }
    return n;
}

static size_t on_data(char *data, size_t size, size_t n, void *arg)
{
    struct call *k = arg;
    struct event *x;
    n *= size;
    k->t_byte = proc_now();
    if (k->discard) {
        return n;
    }
    if (!k->stream) {
        if (n > k->max_response - k->in.len) {
            k->forced = HTTP_CLIENT_TOO_LARGE + 1;
            return 0;
        }
        buf_add(&k->in, data, n);
        return buf_status(&k->in) ? 0 : n;
    }
    pthread_mutex_lock(&k->c->mu);
    if (k->unreleased >= k->window) {
        k->paused = 1;
        pthread_mutex_unlock(&k->c->mu);
        return CURL_WRITEFUNC_PAUSE;
    }
    pthread_mutex_unlock(&k->c->mu);
    x = new_event(k, HTTP_CLIENT_DATA);
    buf_add(&x->data, data, n);
    if (buf_status(&x->data)) {
        free_event(x);
        return 0;
    }
    x->ev.data = x->data.data;
    x->ev.len = x->counted = n;
    k->told = 1;
    pthread_mutex_lock(&k->c->mu);
    k->unreleased += n;
    post(k->c, x);
    pthread_mutex_unlock(&k->c->mu);
    return n;
}

/* ---- sending ---- */

/* Sets up a handle for the next try of k. */
static void set_options(struct call *k)
{
    CURL *h = k->easy;
    struct http_client *c = k->c;
    curl_easy_setopt(h, CURLOPT_PRIVATE, k);
    curl_easy_setopt(h, CURLOPT_URL, k->url);
    curl_easy_setopt(h, CURLOPT_ERRORBUFFER, k->error);
    curl_easy_setopt(h, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(h, CURLOPT_PROXY, "");
    curl_easy_setopt(h, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(h, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(h, CURLOPT_USERAGENT, "miles/" MILES_VERSION);
    curl_easy_setopt(h, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(h, CURLOPT_MAXAGE_CONN, (long)CONN_AGE_S);
    curl_easy_setopt(h, CURLOPT_HTTPHEADER, k->headers);
    curl_easy_setopt(h, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(h, CURLOPT_HEADERDATA, k);
    curl_easy_setopt(h, CURLOPT_WRITEFUNCTION, on_data);
    curl_easy_setopt(h, CURLOPT_WRITEDATA, k);
    curl_easy_setopt(h, CURLOPT_CONNECTTIMEOUT_MS, (long)(k->connect_s * 1e3) + 1);
    if (c->ca_file) {
        curl_easy_setopt(h, CURLOPT_CAINFO, c->ca_file);
    }
    if (c->insecure) {
        curl_easy_setopt(h, CURLOPT_SSL_VERIFYPEER, 0L);
        curl_easy_setopt(h, CURLOPT_SSL_VERIFYHOST, 0L);
    }
    if (k->body || strcmp(k->method, "POST") == 0 || strcmp(k->method, "PUT") == 0) {
        curl_easy_setopt(h, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)k->len);
        curl_easy_setopt(h, CURLOPT_POSTFIELDS, k->body ? k->body : "");
    }
    if (strcmp(k->method, "HEAD") == 0) {
        curl_easy_setopt(h, CURLOPT_NOBODY, 1L);
    } else {
        curl_easy_setopt(h, CURLOPT_CUSTOMREQUEST, k->method);
    }
}

/* Puts k on the network; 0 when libcurl does not take it. */
static int fly(struct call *k)
{
    struct http_client *c = k->c;
    k->easy = c->nspare > 0 ? c->spare[--c->nspare] : curl_easy_init();
    if (!k->easy) {
        return 0;
    }
    k->error[0] = 0;
    k->tries++;
    k->tries_left--;
    k->status = k->head_done = k->discard = k->forced = k->nanswer = 0;
    k->retry_after = -1;
    k->t_byte = proc_now();
    arena_reset(&k->mem);
    k->answer = arena_alloc(&k->mem, sizeof *k->answer * MAX_HEADERS);
    buf_clear(&k->in);
    set_options(k);
    if (curl_multi_add_handle(c->multi, k->easy) != CURLM_OK) {
        curl_easy_cleanup(k->easy);
        k->easy = NULL;
        return 0;
    }
    k->state = CALL_FLYING;
    push_call(&c->flying, k);
    c->nflying++;
    return 1;
}

/* Takes k off the network. */
static void land(struct call *k)
{
    struct http_client *c = k->c;
    long sent = 0;
    if (!k->easy) {
        return;
    }
    curl_easy_getinfo(k->easy, CURLINFO_REQUEST_SIZE, &sent);
    k->reached |= sent > 0;
    curl_multi_remove_handle(c->multi, k->easy);
    if (c->nspare < KEEP_EASY) {
        curl_easy_reset(k->easy);
        c->spare[c->nspare++] = k->easy;
    } else {
        curl_easy_cleanup(k->easy);
    }
    k->easy = NULL;
    unlink_call(k);
    c->nflying--;
    pthread_mutex_lock(&c->mu);
    k->paused = 0;
    pthread_mutex_unlock(&c->mu);
}

static void free_call(struct call *k)
{
    mem_free(k->method);
    mem_free(k->url);
    mem_free(k->body);
    curl_slist_free_all(k->headers);
    arena_fini(&k->mem);
    buf_fini(&k->in);
    mem_free(k);
}

/* The end of k, which is on no list any more. */
static void finish(struct call *k, enum http_client_outcome outcome, const char *error)
{
    struct http_client *c = k->c;
    struct event *x = new_event(k, HTTP_CLIENT_END);
    x->ev.outcome = outcome;
    x->ev.error = arena_strdup(&x->mem, error);
    x->ev.tries = k->tries;
    x->ev.reached = k->reached;
    x->ev.first_byte_s = k->t_first > 0 ? k->t_first - k->t_start : 0;
    x->ev.total_s = proc_now() - k->t_start;
    if (!k->stream) {
        copy_headers(x, k);
        buf_fini(&x->data);
        x->data = k->in;
        buf_init(&k->in, 0);
        x->ev.data = x->data.data;
        x->ev.len = x->data.len;
    }
    pthread_mutex_lock(&c->mu);
    c->slots[k->slot] = NULL;
    c->free_slots[c->nfree++] = k->slot;
    post(c, x);
    pthread_mutex_unlock(&c->mu);
    free_call(k);
}

static enum http_client_outcome outcome_of(const struct call *k, CURLcode code)
{
    switch (code) {
    case CURLE_OK: /* libcurl is content with half a head */
        return k->head_done ? HTTP_CLIENT_OK : HTTP_CLIENT_CUT;
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_INTERFACE_FAILED: return HTTP_CLIENT_REFUSED;
    case CURLE_OPERATION_TIMEDOUT: return HTTP_CLIENT_CONNECT_LATE; /* libcurl times only that */
    case CURLE_RECV_ERROR:
        return strstr(k->error, "chunk") ? HTTP_CLIENT_PROTOCOL : HTTP_CLIENT_CUT;
    case CURLE_GOT_NOTHING:
    case CURLE_PARTIAL_FILE:
    case CURLE_SEND_ERROR: return HTTP_CLIENT_CUT;
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CIPHER:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR: return HTTP_CLIENT_TLS;
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_BAD_CONTENT_ENCODING: return HTTP_CLIENT_PROTOCOL;
    default: return HTTP_CLIENT_FAILED;
    }
}

/* A try is over: the end of the call, or a pause before the next one. */
static void try_ended(struct call *k, CURLcode code)
{
    struct http_client *c = k->c;
    enum http_client_outcome o =
        k->forced ? (enum http_client_outcome)(k->forced - 1) : outcome_of(k, code);
    char error[CURL_ERROR_SIZE];
    double wait;
    int again;
    snprintf(error, sizeof error, "%s",
             o == HTTP_CLIENT_OK             ? ""
             : k->forced || code == CURLE_OK ? http_client_outcome_name(o)
             : k->error[0] != 0              ? k->error
                                             : curl_easy_strerror(code));
    land(k);
    wait = backoff(k);
    again = k->discard;
    if (!k->told && k->tries_left > 0 && proc_now() + wait < k->deadline) {
        again |= o == HTTP_CLIENT_REFUSED || o == HTTP_CLIENT_CONNECT_LATE ||
                 (o == HTTP_CLIENT_CUT && k->idempotent);
    }
    if (!again) {
        finish(k, o, error);
        return;
    }
    k->state = CALL_PAUSING;
    k->t_next = proc_now() + wait;
    push_call(&c->pausing, k);
}

/* Ends a call from our side. */
static void give_up(struct call *k, enum http_client_outcome o)
{
    if (k->state == CALL_FLYING) {
        land(k);
    } else {
        unlink_call(k);
    }
    finish(k, o, http_client_outcome_name(o));
}

/* ---- the thread ---- */

static int on_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *sockp)
{
    struct http_client *c = arg;
    struct epoll_event ev = {.data.fd = fd};
    (void)easy;
    if (what == CURL_POLL_REMOVE) {
        /* A connection given up before it was made may be closed already (libcurl 7.88 tells of it
         * afterwards). The kernel has forgotten it then, and finds nothing of ours by that number.
         */
        epoll_ctl(c->epfd, EPOLL_CTL_DEL, fd, NULL);
        return 0;
    }
    ev.events = (what & CURL_POLL_IN ? EPOLLIN : 0u) | (what & CURL_POLL_OUT ? EPOLLOUT : 0u);
    if (sockp || epoll_ctl(c->epfd, EPOLL_CTL_ADD, fd, &ev)) {
        if (epoll_ctl(c->epfd, EPOLL_CTL_MOD, fd, &ev)) {
            log_error(HTTP, "cannot watch a connection: %s", strerror(errno));
        }
    }
    curl_multi_assign(c->multi, fd, c); /* known from now on */
    return 0;
}

static int on_timer(CURLM *multi, long ms, void *arg)
{
    struct http_client *c = arg;
    (void)multi;
    c->timer = ms < 0 ? -1 : proc_now() + (double)ms * 1e-3;
    return 0;
}

/* Does what was ordered of the calls of a list: cancels them, lets those go on that have room. */
static void obey(struct http_client *c, struct call *k)
{
    struct call *next;
    for (; k; k = next) {
        int cancelled, resume;
        next = k->next;
        pthread_mutex_lock(&c->mu);
        cancelled = k->cancelled;
        resume = k->paused && k->unreleased * 2 <= k->window;
        k->paused &= !resume;
        pthread_mutex_unlock(&c->mu);
        if (cancelled) {
            give_up(k, HTTP_CLIENT_CANCELLED);
        } else if (resume) {
            k->t_byte = proc_now();
            curl_easy_pause(k->easy, CURLPAUSE_CONT);
        }
    }
}

/* Takes over what was started, cancelled and released since. */
static void take_orders(struct http_client *c)
{
    struct call *k, *next;
    int look;
    pthread_mutex_lock(&c->mu);
    k = c->fresh;
    c->fresh = NULL;
    c->fresh_end = &c->fresh;
    look = c->look;
    c->look = c->woken = 0;
    pthread_mutex_unlock(&c->mu);
    for (; k; k = next) {
        next = k->next;
        push_waiting(k);
    }
    if (!look) {
        return;
    }
    obey(c, c->waiting);
    obey(c, c->flying);
    obey(c, c->pausing);
}

static void check_times(struct http_client *c, double now)
{
    struct call *k, *next;
    for (k = c->flying; k; k = next) {
        int paused;
        next = k->next;
        pthread_mutex_lock(&c->mu);
        paused = k->paused;
        pthread_mutex_unlock(&c->mu);
        if (now > k->deadline) {
            give_up(k, HTTP_CLIENT_LATE);
        } else if (!paused && now > k->t_byte + k->idle_s) {
            give_up(k, HTTP_CLIENT_IDLE);
        }
    }
    for (k = c->waiting; k; k = next) {
        next = k->next;
        if (now > k->deadline) {
            give_up(k, HTTP_CLIENT_LATE);
        }
    }
    for (k = c->pausing; k; k = next) {
        next = k->next;
        if (now > k->deadline) {
            give_up(k, HTTP_CLIENT_LATE);
        } else if (now >= k->t_next) {
            unlink_call(k);
            push_waiting(k);
        }
    }
}

static void start_waiting(struct http_client *c)
{
    while (c->waiting && c->nflying < c->max_inflight) {
        struct call *k = c->waiting;
        unlink_call(k);
        if (!fly(k)) {
            finish(k, HTTP_CLIENT_FAILED, "no memory for a transfer");
        }
    }
}

static void take_ended(struct http_client *c)
{
    CURLMsg *m;
    int left;
    while ((m = curl_multi_info_read(c->multi, &left)) != NULL) {
        struct call *k = NULL;
        CURLcode code = m->data.result;
        if (m->msg == CURLMSG_DONE &&
            curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&k) == CURLE_OK && k) {
            try_ended(k, code);
        }
    }
}

static int wait_ms(const struct http_client *c)
{
    double now = proc_now(), t = 3600;
    if (c->flying || c->waiting || c->pausing) {
        t = c->next_tick - now;
    }
    if (c->timer >= 0 && c->timer - now < t) {
        t = c->timer - now;
    }
    return t <= 0 ? 0 : (int)(t * 1e3) + 1;
}

static void *work(void *arg)
{
    struct http_client *c = arg;
    struct epoll_event ev[EVENTS];
    sigset_t all;
    int running;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    while (!atomic_load(&c->stop)) {
        double now;
        int n;
        take_orders(c);
        start_waiting(c);
        n = epoll_wait(c->epfd, ev, EVENTS, wait_ms(c));
        if (n < 0 && errno != EINTR) {
            log_error(HTTP, "cannot wait for connections: %s", strerror(errno));
            break;
        }
        for (int i = 0; i < n; i++) {
            int flags = (ev[i].events & (EPOLLIN | EPOLLHUP) ? CURL_CSELECT_IN : 0) |
                        (ev[i].events & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
                        (ev[i].events & EPOLLERR ? CURL_CSELECT_ERR : 0);
            if (ev[i].data.fd == c->wakefd) {
                uint64_t count;
                if (read(c->wakefd, &count, sizeof count) < 0 && errno != EAGAIN) {
                    log_error(HTTP, "cannot read the wake-up counter: %s", strerror(errno));
                }
            } else {
                curl_multi_socket_action(c->multi, ev[i].data.fd, flags, &running);
            }
        }
        now = proc_now();
        if (c->timer >= 0 && now >= c->timer) {
            c->timer = -1; /* libcurl sets it again when it wants */
            curl_multi_socket_action(c->multi, CURL_SOCKET_TIMEOUT, 0, &running);
        }
        take_ended(c);
        if (now >= c->next_tick) {
            check_times(c, now);
            c->next_tick = now + TICK_S;
        }
    }
    take_orders(c);
    while (c->flying || c->waiting || c->pausing) {
        give_up(c->flying    ? c->flying
                : c->waiting ? c->waiting
                             : c->pausing,
                HTTP_CLIENT_CANCELLED);
    }
    return NULL;
}

/* ---- the caller's side ---- */

static pthread_once_t curl_once = PTHREAD_ONCE_INIT;

static void init_curl(void)
{
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

int http_client_new(struct http_client **out, const struct http_client_opts *o, struct err *e)
{
    struct http_client *c = mem_alloc(sizeof *c);
    struct epoll_event ev = {.events = EPOLLIN};
    int rc = STATUS_OK;
    pthread_once(&curl_once, init_curl);
    pthread_mutex_init(&c->mu, NULL);
    c->max_calls = o->max_calls > 0 ? o->max_calls : 8192;
    c->max_inflight = o->max_inflight > 0 ? o->max_inflight : 1024;
    c->ca_file = mem_strdup(o->ca_file);
    c->insecure = o->insecure;
    c->timer = -1;
    c->waiting_end = &c->waiting;
    c->fresh_end = &c->fresh;
    c->last = &c->first;
    c->slots = mem_alloc(sizeof *c->slots * (size_t)c->max_calls);
    c->free_slots = mem_alloc(sizeof *c->free_slots * (size_t)c->max_calls);
    while (c->nfree < c->max_calls) {
        c->free_slots[c->nfree] = c->max_calls - 1 - c->nfree;
        c->nfree++;
    }
    c->multi = curl_multi_init();
    c->epfd = epoll_create1(EPOLL_CLOEXEC);
    c->wakefd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    c->queuefd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    ev.data.fd = c->wakefd;
    if (!c->multi || c->epfd < 0 || c->wakefd < 0 || c->queuefd < 0 ||
        epoll_ctl(c->epfd, EPOLL_CTL_ADD, c->wakefd, &ev)) {
        rc = ERR(e, STATUS_IO, "no descriptors for an HTTP client: %s", strerror(errno));
    } else {
        curl_multi_setopt(c->multi, CURLMOPT_SOCKETFUNCTION, on_socket);
        curl_multi_setopt(c->multi, CURLMOPT_SOCKETDATA, c);
        curl_multi_setopt(c->multi, CURLMOPT_TIMERFUNCTION, on_timer);
        curl_multi_setopt(c->multi, CURLMOPT_TIMERDATA, c);
        curl_multi_setopt(c->multi, CURLMOPT_MAXCONNECTS, (long)c->max_inflight);
        if (pthread_create(&c->thread, NULL, work, c)) {
            rc = ERR(e, STATUS_NOMEM, "no thread for an HTTP client");
        }
    }
    if (rc) {
        atomic_store(&c->stop, -1); /* there is no thread */
        http_client_free(c);
        return rc;
    }
    *out = c;
    return STATUS_OK;
}

/* Makes the thread look; the lock is held. */
static void wake(struct http_client *c)
{
    uint64_t one = 1;
    if (!c->woken) {
        c->woken = 1;
        if (write(c->wakefd, &one, sizeof one) < 0) {
            log_error(HTTP, "cannot wake the client: %s", strerror(errno));
        }
    }
}

void http_client_free(struct http_client *c)
{
    struct event *x, *next;
    if (!c) {
        return;
    }
    if (atomic_load(&c->stop) == 0) {
        atomic_store(&c->stop, 1);
        pthread_mutex_lock(&c->mu);
        wake(c);
        pthread_mutex_unlock(&c->mu);
        pthread_join(c->thread, NULL);
    }
    for (x = c->first; x; x = next) {
        next = x->next;
        free_event(x);
    }
    while (c->nspare > 0) {
        curl_easy_cleanup(c->spare[--c->nspare]);
    }
    if (c->multi) {
        curl_multi_cleanup(c->multi);
    }
    for (int i = 0; i < 3; i++) {
        int fd = i == 0 ? c->epfd : i == 1 ? c->wakefd : c->queuefd;
        if (fd >= 0) {
            close(fd);
        }
    }
    mem_free(c->slots);
    mem_free(c->free_slots);
    mem_free(c->ca_file);
    pthread_mutex_destroy(&c->mu);
    mem_free(c);
}

static int check_url(const char *url, struct err *e)
{
    CURLU *u = curl_url();
    char *scheme = NULL;
    int ok = url && u && curl_url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK &&
             curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
             (strcmp(scheme, "http") == 0 || strcmp(scheme, "https") == 0);
    curl_free(scheme);
    curl_url_cleanup(u);
    return ok ? STATUS_OK
              : ERR(e, STATUS_INPUT, "not an address of http or https: %.200s", url ? url : "");
}

/* The headers as libcurl wants them; NULL and *rc set when one is none. */
static struct curl_slist *make_headers(const struct http_client_request *q, int *rc, struct err *e)
{
    struct curl_slist *list = curl_slist_append(NULL, "Expect:"); /* no waiting for a go-ahead */
    struct buf line;
    int has_type = 0;
    buf_init(&line, 1 << 16);
    for (int i = 0; i < q->nheaders && *rc == STATUS_OK; i++) {
        const struct http_header *h = &q->headers[i];
        if (!*h->name || strpbrk(h->name, "\r\n:; ") || strpbrk(h->value, "\r\n")) {
            *rc = ERR(e, STATUS_INPUT, "not a header: %.100s", h->name);
            break;
        }
        has_type |= strcasecmp(h->name, "Content-Type") == 0;
        buf_clear(&line);
        /* "Name;" is how libcurl is given an empty value. */
        buf_printf(&line, *h->value ? "%s: %s" : "%s;%s", h->name, h->value);
        list = buf_status(&line) ? list : curl_slist_append(list, line.data);
        *rc = buf_status(&line) ? ERR(e, STATUS_INPUT, "header too long: %.100s", h->name) : 0;
    }
    if (!has_type) {
        list = curl_slist_append(list, "Content-Type:"); /* libcurl would say it is a form */
    }
    buf_fini(&line);
    return list;
}

int http_client_start(struct http_client *c, const struct http_client_request *q, uint64_t *id,
                      struct err *e)
{
    struct call *k;
    int rc = check_url(q->url, e);
    if (rc) {
        return rc;
    }
    k = mem_alloc(sizeof *k);
    arena_init(&k->mem, 16 * 1024);
    k->c = c;
    k->user = q->user;
    k->method = mem_strdup(q->method ? q->method : q->body ? "POST" : "GET");
    k->url = mem_strdup(q->url);
    k->headers = make_headers(q, &rc, e);
    k->t_start = proc_now();
    k->deadline = k->t_start + (q->total_s > 0 ? q->total_s : 600);
    k->connect_s = q->connect_s > 0 ? q->connect_s : 10;
    k->idle_s = q->idle_s > 0 ? q->idle_s : 1e9;
    k->max_response = q->max_response ? q->max_response : 256u << 20;
    k->window = q->window ? q->window : 1u << 20;
    k->stream = q->stream;
    k->tries_left = q->tries > 0 ? q->tries : 1;
    k->idempotent = q->idempotent;
    buf_init(&k->in, k->max_response);
    if (q->body && rc == STATUS_OK) {
        k->len = q->len;
        k->body = mem_try(q->len + 1);
        if (k->body) {
            memcpy(k->body, q->body, q->len);
        } else {
            rc = ERR(e, STATUS_NOMEM, "no memory for a body of %zu bytes", q->len);
        }
    }
    pthread_mutex_lock(&c->mu);
    if (rc == STATUS_OK && c->nfree == 0) {
        rc = STATUS_AGAIN;
    }
    if (rc == STATUS_OK) {
        k->slot = c->free_slots[--c->nfree];
        k->id = ++c->next_id * (uint64_t)c->max_calls + (uint64_t)k->slot;
        c->slots[k->slot] = k;
        if (id) {
            *id = k->id;
        }
        *c->fresh_end = k;
        c->fresh_end = &k->next;
        wake(c);
    }
    pthread_mutex_unlock(&c->mu);
    if (rc) {
        free_call(k);
    }
    return rc;
}

/* The call of that number, if it still runs; the lock is held. */
static struct call *find(struct http_client *c, uint64_t id)
{
    struct call *k = c->slots[id % (uint64_t)c->max_calls];
    return k && k->id == id ? k : NULL;
}

void http_client_cancel(struct http_client *c, uint64_t id)
{
    struct call *k;
    pthread_mutex_lock(&c->mu);
    k = find(c, id);
    if (k) {
        k->cancelled = 1;
        c->look = 1;
        wake(c);
    }
    pthread_mutex_unlock(&c->mu);
}

struct http_client_event *http_client_take(struct http_client *c, double wait_s)
{
    double end = proc_now() + wait_s;
    for (;;) {
        struct pollfd p = {.fd = c->queuefd, .events = POLLIN};
        struct event *x;
        uint64_t count;
        double left;
        pthread_mutex_lock(&c->mu);
        x = c->first;
        if (x) {
            c->first = x->next;
            if (!c->first) { /* the counter is 0 exactly when the queue is empty */
                c->last = &c->first;
                if (read(c->queuefd, &count, sizeof count) < 0) {
                    log_error(HTTP, "cannot read the event counter: %s", strerror(errno));
                }
            }
        }
        pthread_mutex_unlock(&c->mu);
        left = end - proc_now();
        if (x || left <= 0) {
            return x ? &x->ev : NULL;
        }
        poll(&p, 1, left > 1 ? 1000 : (int)(left * 1e3) + 1);
    }
}

void http_client_release(struct http_client *c, struct http_client_event *ev)
{
    struct event *x = (struct event *)ev;
    if (!ev) {
        return;
    }
    if (x->counted) {
        struct call *k;
        pthread_mutex_lock(&c->mu);
        k = find(c, ev->id);
        if (k) {
            k->unreleased -= x->counted;
            if (k->paused && k->unreleased * 2 <= k->window) {
                c->look = 1;
                wake(c);
            }
        }
        pthread_mutex_unlock(&c->mu);
    }
    free_event(x);
}

int http_client_fd(const struct http_client *c)
{
    return c->queuefd;
}

int http_client_running(struct http_client *c)
{
    int n;
    pthread_mutex_lock(&c->mu);
    n = c->max_calls - c->nfree;
    pthread_mutex_unlock(&c->mu);
    return n;
}

const char *http_client_outcome_name(enum http_client_outcome outcome)
{
    static const char *const names[] = {
        "ok",
        "no connection",
        "no connection in time",
        "not answered in time",
        "no byte in time",
        "cut off",
        "the answer is too large",
        "TLS",
        "not HTTP",
        "cancelled",
        "failed",
    };
    return (unsigned)outcome < sizeof names / sizeof names[0] ? names[outcome] : "?";
}

const char *http_client_header(const struct http_client_event *ev, const char *name)
{
    for (int i = 0; i < ev->nheaders; i++) {
        if (strcasecmp(ev->headers[i].name, name) == 0) {
            return ev->headers[i].value;
        }
    }
    return NULL;
}
