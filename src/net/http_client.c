/* The callers' side of the client: starting, cancelling and taking, and the client's own beginning
 * and end. The network is the thread's, in http_client_io.c. */
#include "net/http_client.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/log.h"
#include "base/proc.h"
#include "base/status.h"
#include "net/http_client_int.h"
#include "net/http_net.h"

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
    c->max_bytes = o->max_bytes ? o->max_bytes : (size_t)1 << 30;
    c->ca_file = mem_strdup(o->ca_file);
    c->insecure = o->insecure;
    c->nlanes = o->lanes < 1 ? 1 : o->lanes > HTTP_CLIENT_LANES ? HTTP_CLIENT_LANES : o->lanes;
    c->waiting_end = &c->waiting;
    c->fresh_end = &c->fresh;
    c->last = &c->first;
    c->slots = mem_alloc(sizeof *c->slots * (size_t)c->max_calls);
    c->free_slots = mem_alloc(sizeof *c->free_slots * (size_t)c->max_calls);
    while (c->nfree < c->max_calls) {
        c->free_slots[c->nfree] = c->max_calls - 1 - c->nfree;
        c->nfree++;
    }
    for (int i = 0; i < c->nlanes; i++) {
        c->lanes[i] = (struct http_client_lane){.c = c, .multi = curl_multi_init(), .timer = -1.0};
        rc = c->lanes[i].multi ? rc : ERR(e, STATUS_NOMEM, "no memory for an HTTP client");
    }
    c->epfd = epoll_create1(EPOLL_CLOEXEC);
    c->wakefd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    c->queuefd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    ev.data.fd = c->wakefd;
    if (rc == STATUS_OK && (c->epfd < 0 || c->wakefd < 0 || c->queuefd < 0 ||
                            epoll_ctl(c->epfd, EPOLL_CTL_ADD, c->wakefd, &ev))) {
        rc = ERR(e, STATUS_IO, "no descriptors for an HTTP client: %s", strerror(errno));
    } else if (rc == STATUS_OK && pthread_create(&c->thread, NULL, http_client_work, c)) {
        rc = ERR(e, STATUS_NOMEM, "no thread for an HTTP client");
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
    struct http_client_item *x, *next;
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
        http_client_free_item(c, x);
    }
    while (c->nspare > 0) {
        curl_easy_cleanup(c->spare[--c->nspare]);
    }
    for (int i = 0; i < c->nlanes; i++) {
        if (c->lanes[i].multi) {
            curl_multi_cleanup(c->lanes[i].multi);
        }
    }
    for (int i = 0; i < 3; i++) {
        int fd = i == 0 ? c->epfd : i == 1 ? c->wakefd : c->queuefd;
        if (fd >= 0) {
            close(fd);
        }
    }
    mem_free(c->watched);
    mem_free(c->slots);
    mem_free(c->free_slots);
    mem_free(c->ca_file);
    pthread_mutex_destroy(&c->mu);
    mem_free(c);
}

/* *named: 1 when its host is a name, 0 when it is a number. */
static int check_url(const char *url, int *named, struct err *e)
{
    CURLU *u = curl_url();
    char *scheme = NULL, *host = NULL;
    int ok = url && u && curl_url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK &&
             curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
             curl_url_get(u, CURLUPART_HOST, &host, 0) == CURLUE_OK &&
             (strcmp(scheme, "http") == 0 || strcmp(scheme, "https") == 0);
    *named = ok && host[0] != '[' && host[strspn(host, "0123456789.")];
    curl_free(scheme);
    curl_free(host);
    curl_url_cleanup(u);
    return ok ? STATUS_OK
              : ERR(e, STATUS_INPUT, "not an address of http or https: %.200s", url ? url : "");
}

int http_client_check(const char *url, struct err *e)
{
    int named;
    return check_url(url, &named, e);
}

/* The lane of the server that an address names. */
static struct http_client_lane *lane_of(struct http_client *c, const char *url)
{
    const char *host = strstr(url, "://");
    host = host ? host + 3 : url;
    return &c->lanes[XXH3_64bits(host, strcspn(host, "/?#")) % (unsigned)c->nlanes];
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
    struct http_client_call *k;
    int named, rc = check_url(q->url, &named, e);
    if (rc) {
        return rc;
    }
    k = mem_alloc(sizeof *k);
    k->named = named;
    arena_init(&k->mem, 16 * 1024);
    k->c = c;
    k->lane = lane_of(c, q->url);
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
    k->retry_5xx = q->retry_5xx;
    k->fresh = q->fresh;
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
        http_client_free_call(k);
    }
    return rc;
}

/* The call of that number, if it still runs; the lock is held. */
static struct http_client_call *find(struct http_client *c, uint64_t id)
{
    struct http_client_call *k = c->slots[id % (uint64_t)c->max_calls];
    return k && k->id == id ? k : NULL;
}

void http_client_cancel(struct http_client *c, uint64_t id)
{
    struct http_client_call *k;
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
        struct http_client_item *x;
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
    struct http_client_item *x = (struct http_client_item *)ev;
    if (!ev) {
        return;
    }
    if (x->counted) {
        struct http_client_call *k;
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
    http_client_free_item(c, x);
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

/* ---- as a table ---- */

static int net_start(void *self, const struct http_client_request *q, uint64_t *id, struct err *e)
{
    return http_client_start(self, q, id, e);
}

static void net_cancel(void *self, uint64_t id)
{
    http_client_cancel(self, id);
}

static struct http_client_event *net_take(void *self, double wait_s)
{
    return http_client_take(self, wait_s);
}

static void net_release(void *self, struct http_client_event *ev)
{
    http_client_release(self, ev);
}

struct http_net http_client_net(struct http_client *c)
{
    return (struct http_net){net_start, net_cancel, net_take, net_release, c};
}
