/* Owns the router's thread, its workers and their health checks. The thread has three inboxes: what
 * the server's thread leaves (new requests, clients that left, streams that have room again), what
 * workers answer, and the clock. Everything else happens on it, so that workers, policies and
 * requests need no locks. */
#include "serve/router.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/proc.h"
#include "base/status.h"
#include "serve/router_int.h"

enum {
    MAX_URL = 1024,
    MAX_CALLS = 65536, /* to workers, at once */
    EVENTS = 512       /* taken before the other inboxes are looked at */
};

const double router_bounds[ROUTER_BUCKETS] = {0.001, 0.005, 0.01, 0.05, 0.1, 0.5,
                                              1,     2,     5,    10,   30,  60};

/* ---- orders ---- */

void router_nudge(struct router *rt)
{
    uint64_t one = 1;

    if (write(rt->wakefd, &one, sizeof one) < 0 && errno != EAGAIN) {
        log_error(ROUTER, "cannot wake the router: %s", strerror(errno));
    }
}

void router_order(struct router *rt, struct http_req *r, router_fn *fn)
{
    struct router_order *o = mem_alloc(sizeof *o);
    int first;

    o->fn = fn;
    o->r = r;
    pthread_mutex_lock(&rt->mu);
    first = rt->orders == NULL;
    *rt->orders_end = o;
    rt->orders_end = &o->next;
    pthread_mutex_unlock(&rt->mu);
    if (first) {
        router_nudge(rt);
    }
}

static void take_orders(struct router *rt)
{
    struct router_order *o, *next;

    pthread_mutex_lock(&rt->mu);
    o = rt->orders;
    rt->orders = NULL;
    rt->orders_end = &rt->orders;
    pthread_mutex_unlock(&rt->mu);
    for (; o; o = next) {
        next = o->next;
        o->fn(rt, o->r);
        mem_free(o);
    }
}

void router_due(struct router *rt, double t)
{
    rt->due = t < rt->due ? t : rt->due;
}

/* ---- requests to workers ---- */

/* Headers of a client's request that its worker is not given. */
static int is_ours(const char *name, int has_key)
{
    return http_req_hop_header(name) || strcasecmp(name, "Host") == 0 ||
           strcasecmp(name, "Content-Length") == 0 || strcasecmp(name, "Expect") == 0 ||
           (has_key && strcasecmp(name, "Authorization") == 0);
}

static void link_task(struct router *rt, struct router_task *task, uint64_t id)
{
    task->id = id;
    task->next = rt->tasks;
    task->link = &rt->tasks;
    if (task->next) {
        task->next->link = &task->next;
    }
    rt->tasks = task;
}

static void unlink_task(struct router_task *task)
{
    *task->link = task->next;
    if (task->next) {
        task->next->link = task->link;
    }
}

int router_send(struct router *rt, const struct router_worker *w, struct router_task *task,
                struct http_client_request *q, const struct http_req *from, const char *target,
                uint64_t *id, struct err *e)
{
    const char *key = w->api_key ? w->api_key : rt->worker_key;
    int n = 0, nheaders = 0, rc;
    const struct http_header *in = from ? http_req_headers(from, &n) : NULL;
    struct http_header *out = mem_alloc(sizeof *out * (size_t)(n + 1));
    struct buf url, bearer;

    buf_init(&url, 1 << 20);
    buf_init(&bearer, 1 << 16);
    buf_printf(&url, "%s%s%s", w->url, *target == '/' ? "" : "/", target);
    buf_printf(&bearer, "Bearer %s", key ? key : "");
    for (int i = 0; i < n; i++) {
        if (!is_ours(in[i].name, key != NULL)) {
            out[nheaders++] = in[i];
        }
    }
    if (key) {
        out[nheaders++] = (struct http_header){"Authorization", bearer.data};
    }
    q->url = url.data;
    q->headers = out;
    q->nheaders = nheaders;
    q->connect_s = rt->o.connect_s;
    q->user = task;
    rc = buf_status(&url) ? ERR(e, STATUS_INPUT, "the address is too long")
                          : http_client_start(rt->client, q, id, e);
    if (rc == STATUS_AGAIN) {
        rc = ERR(e, STATUS_NOMEM, "%d requests are on their way to workers", MAX_CALLS);
    }
    rt->live += rc == STATUS_OK;
    if (rc == STATUS_OK && task->kind != ROUTER_TASK_CALL) {
        link_task(rt, task, *id);
    }
    mem_free(out);
    buf_fini(&url);
    buf_fini(&bearer);
    return rc;
}

/* ---- workers ---- */

static int check_url(const char *url, struct err *e)
{
    size_t n = strlen(url), at = strncmp(url, "http://", 7) == 0    ? 7
                                 : strncmp(url, "https://", 8) == 0 ? 8
                                                                    : 0;

    if (at == 0 || n == at || n > MAX_URL || url[at] == '/') {
        return ERR(e, STATUS_INPUT, "not an address of http or https: %.200s", url);
    }
    for (const char *p = url; *p; p++) {
        if (*p <= ' ' || *p > '~' || strchr("?#\"\\", *p)) {
            return ERR(e, STATUS_INPUT, "not an address of http or https: %.200s", url);
        }
    }
    return STATUS_OK;
}

struct router_worker *router_find(struct router *rt, const char *name)
{
    size_t n = strlen(name);
    char id[32];

    while (n > 0 && name[n - 1] == '/') {
        n--;
    }
    for (int i = 0; i < rt->nworkers; i++) {
        struct router_worker *w = rt->workers[i];
        snprintf(id, sizeof id, "%llu", (unsigned long long)w->id);
        if ((strncmp(w->url, name, n) == 0 && w->url[n] == 0) || strcmp(id, name) == 0) {
            return w;
        }
    }
    return NULL;
}

int router_add(struct router *rt, const char *url, const char *api_key, struct router_worker **out,
               struct err *e)
{
    struct router_worker *w;
    uint16_t slot = 0;
    int rc = check_url(url, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    w = router_find(rt, url);
    if (w) {
        router_remove(rt, w, "added again");
    }
    while (slot < ROUTER_CACHE_SLOTS && rt->slots[slot]) {
        slot++;
    }
    if (slot == ROUTER_CACHE_SLOTS) {
        return ERR(e, STATUS_NOMEM, "there are %d workers already", ROUTER_CACHE_SLOTS);
    }
    w = router_worker_new(url, api_key, &rt->o.worker, proc_now());
    w->slot = slot;
    w->id = ++rt->next_id;
    rt->slots[slot] = 1;
    rt->workers[rt->nworkers++] = w;
    router_due(rt, w->next_check);
    log_info(ROUTER, "worker %s added", w->url);
    *out = w;
    return STATUS_OK;
}

/* Forgets a removed worker whose last request is done. */
static void forget_left(struct router *rt)
{
    for (int i = rt->nleaving - 1; i >= 0; i--) {
        struct router_worker *w = rt->leaving[i];
        if (w->load == 0) {
            log_info(ROUTER, "worker %s is gone", w->url);
            rt->leaving[i] = rt->leaving[--rt->nleaving];
            router_worker_unref(w);
        }
    }
}

void router_remove(struct router *rt, struct router_worker *w, const char *why)
{
    int i = 0;

    while (rt->workers[i] != w) {
        i++;
    }
    memmove(rt->workers + i, rt->workers + i + 1, sizeof w * (size_t)(rt->nworkers - i - 1));
    rt->nworkers--;
    rt->slots[w->slot] = 0;
    router_policy_forget(&rt->policy, w->slot);
    w->removed = 1;
    router_admin_added(rt, w);
    log_info(ROUTER, "worker %s removed (%s), %d requests on their way", w->url, why, w->load);
    if (rt->nleaving == ROUTER_CACHE_SLOTS) { /* it is still finished, but not listed */
        router_worker_unref(w);
        return;
    }
    rt->leaving[rt->nleaving++] = w;
}

int router_usable(struct router *rt, double now)
{
    int n = 0;

    for (int i = 0; i < rt->nworkers; i++) {
        if (router_worker_usable(rt->workers[i], now)) {
            rt->usable[n++] = rt->workers[i];
        }
    }
    return n;
}

/* ---- health checks ---- */

struct check {
    struct router_task task;
    struct router_worker *w;
    int verify; /* of the version of its weights */
};

static void begin_check(struct router *rt, struct router_worker *w, int verify);

static void after_check(struct router *rt, struct router_worker *w, int ok, const char *reason)
{
    int doubt = w->fails > 0 || w->health != ROUTER_WORKER_UP, change;
    double now = proc_now();

    w->checking = w->unsure = 0;
    rt->stats.checks++;
    rt->stats.checks_failed += !ok;
    if (w->removed) {
        return;
    }
    change = router_worker_checked(w, ok, reason, now);
    router_due(rt, w->next_check);
    if (change > 0) {
        log_info(ROUTER, "worker %s is healthy", w->url);
    } else if (change < 0) {
        log_warn(ROUTER, "worker %s is unhealthy: %s", w->url, reason);
        router_policy_forget(&rt->policy, w->slot);
        router_call_move(rt, w, now);
    } else if (w->health == ROUTER_WORKER_STARTING && now - w->added > rt->o.worker.startup_s) {
        log_warn(ROUTER, "worker %s has not started: %s", w->url, reason);
        router_remove(rt, w, "it has not started in time");
        return;
    }
    if (ok && doubt && w->health == ROUTER_WORKER_UP && rt->version && !w->stale) {
        begin_check(rt, w, 1); /* it may have been started again, with the weights of its files */
    } else {
        router_admin_added(rt, w);
    }
}

/* A worker that was away says what weights it has. Those that name no version are believed. */
static void after_verify(struct router *rt, struct router_worker *w,
                         const struct http_client_event *ev)
{
    json_t *o = json_loadb(ev->data, ev->len, 0, NULL);
    const char *version = json_string_value(json_object_get(o, "weight_version"));

    w->checking = w->unsure = 0;
    if (version && rt->version && strcmp(version, rt->version) != 0 && !w->removed) {
        w->stale = 1;
        log_warn(ROUTER, "worker %s has weights %s, not %s: it gets no requests", w->url, version,
                 rt->version);
    }
    json_decref(o);
    router_admin_added(rt, w);
}

static void begin_check(struct router *rt, struct router_worker *w, int verify)
{
    struct http_client_request q = {.total_s = rt->o.check_timeout_s, .max_response = 1 << 20};
    struct check *c = mem_alloc(sizeof *c);
    struct err e = {0};
    uint64_t id;

    c->task.kind = ROUTER_TASK_CHECK;
    c->w = w;
    c->verify = w->unsure = verify;
    w->checking = 1;
    router_worker_ref(w);
    if (router_send(rt, w, &c->task, &q, NULL, verify ? "/get_model_info" : rt->health_path, &id,
                    &e) != STATUS_OK) {
        after_check(rt, w, 0, e.msg);
        router_worker_unref(w);
        mem_free(c);
    }
}

static void check_event(struct router *rt, struct http_client_event *ev)
{
    struct check *c = ev->user;
    int answered = ev->outcome == HTTP_CLIENT_OK, ok = answered && ev->status / 100 == 2;
    char reason[128];

    if (answered) {
        snprintf(reason, sizeof reason, "status %d", ev->status);
    } else {
        snprintf(reason, sizeof reason, "%.120s", ev->error);
    }
    if (c->verify && ok) {
        after_verify(rt, c->w, ev);
    } else {
        after_check(rt, c->w, ok, reason); /* who cannot say what it has is not well */
    }
    router_worker_unref(c->w);
    mem_free(c);
}

static void check_workers(struct router *rt, double now)
{
    for (int i = rt->nworkers - 1; i >= 0 && !rt->o.worker.no_checks; i--) {
        struct router_worker *w = rt->workers[i];
        if (!w->checking && now >= w->next_check) {
            begin_check(rt, w, 0);
        } else if (!w->checking) {
            router_due(rt, w->next_check);
        }
    }
}

/* ---- the thread ---- */

static void take_events(struct router *rt)
{
    struct http_client_event *ev;

    for (int i = 0; i < EVENTS && (ev = http_client_take(rt->client, 0)) != NULL; i++) {
        struct router_task *task = ev->user;
        if (ev->kind == HTTP_CLIENT_END) {
            rt->live--;
            if (task->kind != ROUTER_TASK_CALL) {
                unlink_task(task);
            }
        }
        switch (task->kind) {
        case ROUTER_TASK_CALL: router_call_event(rt, ev); break;
        case ROUTER_TASK_FAN: router_fan_event(rt, ev); break;
        default:
            check_event(rt, ev);
            http_client_release(rt->client, ev);
            break;
        }
    }
}

static void *router_loop(void *arg)
{
    struct router *rt = arg;
    int stopping = 0;

    for (;;) {
        struct pollfd fds[2] = {{.fd = rt->wakefd, .events = POLLIN},
                                {.fd = http_client_fd(rt->client), .events = POLLIN}};
        double now = proc_now(), wait = rt->due - now;
        uint64_t count;
        if (atomic_load(&rt->stop)) {
            if (!stopping) {
                stopping = 1;
                take_orders(rt);
                router_call_take(rt);
                router_call_stop(rt);
                for (struct router_task *t = rt->tasks; t; t = t->next) {
                    http_client_cancel(rt->client, t->id);
                }
                while (rt->nworkers > 0) {
                    router_remove(rt, rt->workers[0], "the router ends");
                }
            }
            if (rt->live == 0) {
                break;
            }
            wait = wait < 0.1 ? wait : 0.1;
        }
        poll(fds, 2, wait <= 0 ? 0 : wait > 3600 ? 3600000 : (int)(wait * 1e3) + 1);
        if (fds[0].revents && read(rt->wakefd, &count, sizeof count) < 0 && errno != EAGAIN) {
            log_error(ROUTER, "cannot read the wake-up counter: %s", strerror(errno));
        }
        take_orders(rt);
        router_call_take(rt);
        take_events(rt);
        router_call_pump(rt);
        forget_left(rt);
        now = proc_now();
        if (now >= rt->due) {
            rt->due = now + 3600;
            check_workers(rt, now);
            router_call_tick(rt, now);
        }
    }
    forget_left(rt);
    return NULL;
}

/* ---- beginning and end ---- */

static const struct http_server_route routes[] = {
    {"GET", "/health", router_admin_health, HTTP_SERVER_OPEN},
    {"GET", "/ping", router_admin_health, HTTP_SERVER_OPEN},
    {"GET", "/liveness", router_admin_live, HTTP_SERVER_OPEN},
    {"GET", "/readiness", router_admin_ready, HTTP_SERVER_OPEN},
    {"GET", "/metrics", router_admin_metrics, HTTP_SERVER_OPEN},
    {"POST", "/add_worker", router_admin_add, 0},
    {"POST", "/remove_worker", router_admin_remove, 0},
    {"GET", "/list_workers", router_admin_list, 0},
    {"*", "/workers", router_admin_workers, 0},
    {"*", "/workers/...", router_admin_worker, 0},
    {"GET", "/get_loads", router_admin_loads, 0},
    {"*", "/...", router_call_handle, 0}, /* those for all workers too */
};

static int router_begin(struct router *rt, const struct router_opts *o, struct err *e)
{
    struct http_client_opts co = {
        .max_calls = MAX_CALLS, .max_inflight = MAX_CALLS, .ca_file = o->ca_file};
    int rc = http_client_new(&rt->client, &co, e);

    for (int i = 0; i < o->nurls && rc == STATUS_OK; i++) {
        struct router_worker *w;
        rc = router_add(rt, o->urls[i], NULL, &w, e);
    }
    rt->wakefd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (rc == STATUS_OK && rt->wakefd < 0) {
        rc = ERR(e, STATUS_IO, "no descriptor for the router: %s", strerror(errno));
    }
    if (rc == STATUS_OK && pthread_create(&rt->thread, NULL, router_loop, rt) != 0) {
        rc = ERR(e, STATUS_NOMEM, "no thread for the router");
    }
    rt->has_thread = rc == STATUS_OK;
    if (rc == STATUS_OK) {
        rc = http_server_start(&rt->http, &rt->o.http, e);
    }
    return rc;
}

int router_start(const struct router_opts *o, struct router **out, struct err *e)
{
    struct router *rt = mem_alloc(sizeof *rt);
    int rc;

    rt->o = *o;
    rt->worker_key = mem_strdup(o->worker_key);
    rt->health_path = mem_strdup(o->health_path);
    rt->wakefd = -1;
    rt->started = rt->due = proc_now();
    rt->o.http.routes = routes;
    rt->o.http.nroutes = sizeof routes / sizeof routes[0];
    rt->o.http.arg = rt;
    rt->inbox_end = &rt->inbox;
    rt->orders_end = &rt->orders;
    pthread_mutex_init(&rt->mu, NULL);
    router_policy_init(&rt->policy, &o->policy);
    rt->workers = mem_alloc(sizeof *rt->workers * ROUTER_CACHE_SLOTS);
    rt->usable = mem_alloc(sizeof *rt->usable * ROUTER_CACHE_SLOTS);
    rt->leaving = mem_alloc(sizeof *rt->leaving * ROUTER_CACHE_SLOTS);
    rt->slots = mem_alloc(ROUTER_CACHE_SLOTS);
    rc = router_begin(rt, o, e);
    if (rc != STATUS_OK) {
        router_stop(rt);
        return rc;
    }
    *out = rt;
    return STATUS_OK;
}

int router_port(const struct router *rt)
{
    return http_server_port(rt->http);
}

int router_drain(struct router *rt, double wait_s)
{
    return http_server_drain(rt->http, wait_s);
}

void router_stop(struct router *rt)
{
    if (!rt) {
        return;
    }
    http_server_free(rt->http);
    if (rt->has_thread) {
        atomic_store(&rt->stop, 1);
        router_nudge(rt);
        pthread_join(rt->thread, NULL);
    }
    while (rt->nworkers > 0) {
        router_worker_unref(rt->workers[--rt->nworkers]);
    }
    while (rt->nleaving > 0) {
        router_worker_unref(rt->leaving[--rt->nleaving]);
    }
    http_client_free(rt->client);
    if (rt->wakefd >= 0) {
        close(rt->wakefd);
    }
    router_policy_fini(&rt->policy);
    pthread_mutex_destroy(&rt->mu);
    mem_free(rt->workers);
    mem_free(rt->usable);
    mem_free(rt->leaving);
    mem_free(rt->slots);
    mem_free(rt->worker_key);
    mem_free(rt->health_path);
    mem_free(rt->version);
    mem_free(rt);
}
