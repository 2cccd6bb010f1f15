/* The client's thread: it drives libcurl's multi interface by epoll, so that the cost of an event
 * does not grow with the number of requests in flight.
 *
 * A call lives from http_client_start to the posting of its end. Callers reach it only by its
 * number, under the lock, so that none can outlive it; everything of libcurl is touched by the
 * thread alone. The limits on total and idle time are checked here and not by libcurl: they include
 * the time in our own queue and between retries, and a request that its caller holds back by its
 * window is not idle. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/log.h"
#include "base/proc.h"
#include "base/status.h"
#include "net/http_client_int.h"

enum {
    EVENTS = 256,
    MAX_HEADERS = 256,
    MAX_TRUST = 1 << 20, /* bytes of a body that are made room for because its head says so */
    CONN_AGE_S = 60 /* idle connections older than this are not used again: servers close them */
};

/* ---- limits of time ---- */

/* Something must be looked at then; all calls are, when the first such time has come. */
static void look_at(struct http_client *c, double when)
{
    c->soonest = when < c->soonest ? when : c->soonest;
}

/* When a call on the network is given up if nothing more comes. */
static double limit_of(const struct http_client_call *k)
{
    double idle = k->t_byte + k->idle_s;
    return idle < k->deadline ? idle : k->deadline;
}

/* ---- lists of calls, the thread's ---- */

static void unlink_call(struct http_client_call *k)
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

static void push_call(struct http_client_call **list, struct http_client_call *k)
{
    k->next = *list;
    k->link = list;
    if (k->next) {
        k->next->link = &k->next;
    }
    *list = k;
}

static void push_waiting(struct http_client_call *k)
{
    k->state = HTTP_CLIENT_WAITING;
    k->next = NULL;
    k->link = k->c->waiting_end;
    *k->link = k;
    k->c->waiting_end = &k->next;
    look_at(k->c, k->deadline);
}

static void push_pausing(struct http_client_call *k)
{
    k->state = HTTP_CLIENT_PAUSING;
    push_call(&k->c->pausing, k);
    look_at(k->c, k->t_next < k->deadline ? k->t_next : k->deadline);
}

/* ---- events ---- */

static struct http_client_item *new_event(const struct http_client_call *k,
                                          enum http_client_kind kind)
{
    struct http_client_item *x = mem_alloc(sizeof *x);
    x->ev.kind = kind;
    x->ev.id = k->id;
    x->ev.user = k->user;
    x->ev.status = k->status;
    x->ev.data = x->ev.error = "";
    arena_init(&x->mem, 1024);
    buf_init(&x->data, (size_t)-1 / 2);
    return x;
}

void http_client_free_item(struct http_client *c, struct http_client_item *x)
{
    atomic_fetch_sub(&c->bytes, x->whole);
    arena_fini(&x->mem);
    buf_fini(&x->data);
    mem_free(x);
}

/* Appends to the queue; the lock is held. */
static void post(struct http_client *c, struct http_client_item *x)
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

static void copy_headers(struct http_client_item *x, const struct http_client_call *k)
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
static int wants_retry(const struct http_client_call *k, double wait)
{
    int status = k->status;
    return k->tries_left > 0 && !k->told && proc_now() + wait < k->deadline &&
           (status == 429 || status == 503 || (k->idempotent && (status == 502 || status == 504)) ||
            (status >= 500 && k->tries < k->retry_5xx));
}

static double backoff(const struct http_client_call *k)
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

static void end_head(struct http_client_call *k)
{
    k->head_done = 1;
    k->discard = wants_retry(k, backoff(k));
    if (k->stream && !k->discard) {
        struct http_client_item *x = new_event(k, HTTP_CLIENT_HEAD);
        copy_headers(x, k);
        k->told = 1;
        pthread_mutex_lock(&k->c->mu);
        post(k->c, x);
        pthread_mutex_unlock(&k->c->mu);
    }
}

static void add_header(struct http_client_call *k, const char *line, size_t n)
{
    const char *colon = memchr(line, ':', n), *end = line + n, *value;
    struct http_header *h;
    if (!colon || k->nanswer == MAX_HEADERS) {
        return;
    }
    if (!k->answer) { /* many calls wait for their answer for long, and hold nothing for it */
        k->answer = arena_alloc(&k->mem, sizeof *k->answer * MAX_HEADERS);
    }
    h = &k->answer[k->nanswer];
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
    } else if (strcasecmp(h->name, "Content-Length") == 0) {
        k->length = strtoul(h->value, NULL, 10);
    }
}

static size_t on_header(char *line, size_t size, size_t n, void *arg)
{
    struct http_client_call *k = arg;
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
        k->length = 0;
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
    struct http_client_call *k = arg;
    struct http_client_item *x;
    n *= size;
    k->t_byte = proc_now();
    if (k->discard) {
        return n;
    }
    if (!k->stream) {
        if (n > k->max_response - k->in.len || atomic_load(&k->c->bytes) + n > k->c->max_bytes) {
            k->forced = HTTP_CLIENT_TOO_LARGE + 1;
            return 0;
        }
        buf_reserve(&k->in, k->length < MAX_TRUST ? k->length : MAX_TRUST);
        buf_add(&k->in, data, n);
        if (buf_status(&k->in)) {
            return 0;
        }
        atomic_fetch_add(&k->c->bytes, n);
        return n;
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
        http_client_free_item(k->c, x);
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

static void forget_socket(struct http_client *c, int fd)
{
    if (fd >= 0 && fd < c->nwatched && c->watched[fd]) {
        c->watched[fd] = 0;
        epoll_ctl(c->epfd, EPOLL_CTL_DEL, fd, NULL);
    }
}

/* libcurl 7.88 may close a connection first and tell on_socket afterwards, when its number can be
 * somebody else's already: it is forgotten here. */
static int on_close(void *arg, curl_socket_t fd)
{
    forget_socket(arg, fd);
    return close(fd);
}

/* Sets up a handle for the next try of k. */
static void set_options(struct http_client_call *k)
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
    curl_easy_setopt(h, CURLOPT_CLOSESOCKETFUNCTION, on_close);
    curl_easy_setopt(h, CURLOPT_CLOSESOCKETDATA, c);
    curl_easy_setopt(h, CURLOPT_MAXAGE_CONN, (long)CONN_AGE_S);
    curl_easy_setopt(h, CURLOPT_FRESH_CONNECT, (long)k->fresh);
    if (!k->named) {
        /* At the end of each transfer libcurl looks through all hosts for those that are due to be
         * looked up again; a number never is. */
        curl_easy_setopt(h, CURLOPT_DNS_CACHE_TIMEOUT, -1L);
    }
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
static int fly(struct http_client_call *k)
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
    k->answer = NULL;
    k->length = 0;
    atomic_fetch_sub(&c->bytes, k->in.len);
    buf_clear(&k->in);
    set_options(k);
    if (curl_multi_add_handle(k->lane->multi, k->easy) != CURLM_OK) {
        curl_easy_cleanup(k->easy);
        k->easy = NULL;
        return 0;
    }
    k->state = HTTP_CLIENT_FLYING;
    push_call(&c->flying, k);
    look_at(c, limit_of(k));
    c->nflying++;
    return 1;
}

/* Takes k off the network. */
static void land(struct http_client_call *k)
{
    struct http_client *c = k->c;
    long sent = 0;
    if (!k->easy) {
        return;
    }
    curl_easy_getinfo(k->easy, CURLINFO_REQUEST_SIZE, &sent);
    k->reached |= sent > 0;
    curl_multi_remove_handle(k->lane->multi, k->easy);
    if (c->nspare < HTTP_CLIENT_SPARE) {
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

void http_client_free_call(struct http_client_call *k)
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
static void finish(struct http_client_call *k, enum http_client_outcome outcome, const char *error)
{
    struct http_client *c = k->c;
    struct http_client_item *x = new_event(k, HTTP_CLIENT_END);
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
        x->ev.len = x->whole = x->data.len;
    }
    pthread_mutex_lock(&c->mu);
    c->slots[k->slot] = NULL;
    c->free_slots[c->nfree++] = k->slot;
    post(c, x);
    pthread_mutex_unlock(&c->mu);
    http_client_free_call(k);
}

static enum http_client_outcome outcome_of(const struct http_client_call *k, CURLcode code)
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
static void try_ended(struct http_client_call *k, CURLcode code)
{
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
    k->t_next = proc_now() + wait;
    push_pausing(k);
}

/* Ends a call from our side. */
static void give_up(struct http_client_call *k, enum http_client_outcome o)
{
    if (k->state == HTTP_CLIENT_FLYING) {
        land(k);
    } else {
        unlink_call(k);
    }
    finish(k, o, http_client_outcome_name(o));
}

/* ---- the thread ---- */

static int on_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *sockp)
{
    const struct http_client_lane *lane = arg;
    struct http_client *c = lane->c;
    struct epoll_event ev = {.data.fd = fd};
    (void)easy;
    (void)sockp;
    if (what == CURL_POLL_REMOVE) {
        forget_socket(c, fd);
        return 0;
    }
    if (fd >= c->nwatched) {
        int n = fd < 512 ? 1024 : 2 * fd;
        c->watched = mem_realloc(c->watched, (size_t)c->nwatched, (size_t)n);
        c->nwatched = n;
    }
    ev.events = (what & CURL_POLL_IN ? EPOLLIN : 0u) | (what & CURL_POLL_OUT ? EPOLLOUT : 0u);
    if (epoll_ctl(c->epfd, c->watched[fd] ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &ev) &&
        epoll_ctl(c->epfd, c->watched[fd] ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &ev)) {
        log_error(HTTP, "cannot watch a connection: %s", strerror(errno));
    } else {
        c->watched[fd] = (uint8_t)(1 + (lane - c->lanes));
    }
    return 0;
}

static int on_timer(CURLM *multi, long ms, void *arg)
{
    struct http_client_lane *lane = arg;
    (void)multi;
    lane->timer = ms < 0 ? -1 : proc_now() + (double)ms * 1e-3;
    return 0;
}

/* Does what was ordered of the calls of a list: cancels them, lets those go on that have room. */
static void obey(struct http_client *c, struct http_client_call *k)
{
    struct http_client_call *next;
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
            look_at(c, limit_of(k));
            curl_easy_pause(k->easy, CURLPAUSE_CONT);
        }
    }
}

/* Takes over what was started, cancelled and released since. */
static void take_orders(struct http_client *c)
{
    struct http_client_call *k, *next;
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
    struct http_client_call *k, *next;
    if (now < c->soonest) {
        return;
    }
    c->soonest = 1e300;
    for (k = c->flying; k; k = next) {
        int paused = 0;
        next = k->next;
        if (k->stream) {
            pthread_mutex_lock(&c->mu);
            paused = k->paused;
            pthread_mutex_unlock(&c->mu);
        }
        if (now > k->deadline) {
            give_up(k, HTTP_CLIENT_LATE);
        } else if (!paused && now > limit_of(k)) {
            give_up(k, HTTP_CLIENT_IDLE);
        } else {
            look_at(c, paused ? k->deadline : limit_of(k));
        }
    }
    for (k = c->waiting; k; k = next) {
        next = k->next;
        if (now > k->deadline) {
            give_up(k, HTTP_CLIENT_LATE);
        } else {
            look_at(c, k->deadline);
        }
    }
    for (k = c->pausing; k; k = next) {
        next = k->next;
        if (now > k->deadline) {
            give_up(k, HTTP_CLIENT_LATE);
        } else {
            unlink_call(k);
            if (now >= k->t_next) {
                push_waiting(k);
            } else {
                push_pausing(k);
            }
        }
    }
}

static void start_waiting(struct http_client *c)
{
    while (c->waiting && c->nflying < c->max_inflight) {
        struct http_client_call *k = c->waiting;
        unlink_call(k);
        if (!fly(k)) {
            finish(k, HTTP_CLIENT_FAILED, "no memory for a transfer");
        }
    }
}

static void take_ended(const struct http_client_lane *lane)
{
    CURLMsg *m;
    int left;
    while ((m = curl_multi_info_read(lane->multi, &left)) != NULL) {
        struct http_client_call *k = NULL;
        CURLcode code = m->data.result;
        if (m->msg == CURLMSG_DONE &&
            curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&k) == CURLE_OK && k) {
            try_ended(k, code);
        }
    }
}

static int wait_ms(const struct http_client *c)
{
    double now = proc_now(), t = c->soonest - now < 3600 ? c->soonest - now : 3600;
    for (int i = 0; i < c->nlanes; i++) {
        double timer = c->lanes[i].timer;
        t = timer >= 0 && timer - now < t ? timer - now : t;
    }
    return t <= 0 ? 0 : (int)(t * 1e3) + 1;
}

static void set_lanes(struct http_client *c)
{
    long most = (c->max_inflight + c->nlanes - 1) / c->nlanes;
    for (int i = 0; i < c->nlanes; i++) {
        struct http_client_lane *lane = &c->lanes[i];
        curl_multi_setopt(lane->multi, CURLMOPT_SOCKETFUNCTION, on_socket);
        curl_multi_setopt(lane->multi, CURLMOPT_SOCKETDATA, lane);
        curl_multi_setopt(lane->multi, CURLMOPT_TIMERFUNCTION, on_timer);
        curl_multi_setopt(lane->multi, CURLMOPT_TIMERDATA, lane);
        curl_multi_setopt(lane->multi, CURLMOPT_MAXCONNECTS, most);
    }
}

/* Something has come on a connection, or can be sent. */
static void act(struct http_client *c, const struct epoll_event *ev)
{
    int flags = (ev->events & (EPOLLIN | EPOLLHUP) ? CURL_CSELECT_IN : 0) |
                (ev->events & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
                (ev->events & EPOLLERR ? CURL_CSELECT_ERR : 0);
    int fd = ev->data.fd, running;
    uint64_t count;
    if (fd != c->wakefd) {
        if (c->watched[fd]) { /* else it was forgotten since */
            curl_multi_socket_action(c->lanes[c->watched[fd] - 1].multi, fd, flags, &running);
        }
    } else if (read(c->wakefd, &count, sizeof count) < 0 && errno != EAGAIN) {
        log_error(HTTP, "cannot read the wake-up counter: %s", strerror(errno));
    }
}

void *http_client_work(void *arg)
{
    struct http_client *c = arg;
    struct epoll_event ev[EVENTS];
    sigset_t all;
    int running;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    set_lanes(c);
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
            act(c, &ev[i]);
        }
        now = proc_now();
        for (int i = 0; i < c->nlanes; i++) {
            struct http_client_lane *lane = &c->lanes[i];
            if (lane->timer >= 0 && now >= lane->timer) {
                lane->timer = -1; /* libcurl sets it again when it wants */
                curl_multi_socket_action(lane->multi, CURL_SOCKET_TIMEOUT, 0, &running);
            }
            take_ended(lane);
        }
        check_times(c, now);
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
