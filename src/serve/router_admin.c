/* Owns what the router answers itself: its workers, its health, its figures. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/proc.h"
#include "base/status.h"
#include "net/http_req.h"
#include "serve/jfield.h"
#include "serve/router_int.h"

/* ---- health ---- */

static void do_health(struct router *rt, struct http_req *r)
{
    if (router_usable(rt, proc_now()) > 0) {
        http_req_reply(r, 200, "text/plain", "", 0);
    } else {
        http_req_fail(r, 503, "no worker is available");
    }
}

void router_admin_health(void *arg, struct http_req *r)
{
    router_order(arg, r, do_health);
}

static void do_live(struct router *rt, struct http_req *r)
{
    (void)rt;
    http_req_reply(r, 200, "text/plain", "OK", 2);
}

void router_admin_live(void *arg, struct http_req *r)
{
    router_order(arg, r, do_live);
}

static void do_ready(struct router *rt, struct http_req *r)
{
    int n = router_usable(rt, proc_now());

    jfield_reply(r, n > 0 ? 200 : 503,
                 json_pack("{s:s,s:i,s:i}", "status", n > 0 ? "ready" : "not_ready",
                           "healthy_workers", n, "total_workers", rt->nworkers));
}

void router_admin_ready(void *arg, struct http_req *r)
{
    router_order(arg, r, do_ready);
}

/* ---- workers ---- */

static void id_text(const struct router_worker *w, char out[32])
{
    snprintf(out, 32, "%llu", (unsigned long long)w->id);
}

static json_t *worker_json(struct router *rt, const struct router_worker *w)
{
    size_t known =
        rt->policy.cache && !w->removed ? router_cache_blocks_of(rt->policy.cache, w->slot) : 0;
    char id[32];

    id_text(w, id);
    return json_pack("{s:s,s:s,s:s,s:s,s:b,s:s,s:s,s:i,s:I,s:I,s:I,s:I,s:s}", "id", id, "url",
                     w->url, "worker_type", "regular", "connection_mode", "Http", "is_healthy",
                     !w->removed && !w->stale && w->health == ROUTER_WORKER_UP, "state",
                     router_worker_health_name(w), "circuit_breaker", router_worker_breaker_name(w),
                     "load", w->load, "requests", (json_int_t)w->sent, "failures",
                     (json_int_t)w->bad, "opened", (json_int_t)w->opened, "known_blocks",
                     (json_int_t)known, "reason", w->reason);
}

static void answer_added(struct router *rt, struct http_req *r, const struct router_worker *w)
{
    json_t *o = worker_json(rt, w);
    int up = w->health == ROUTER_WORKER_UP && !w->removed;

    json_object_set_new(o, "status", json_string("success"));
    json_object_set_new(o, "worker_id", json_incref(json_object_get(o, "id")));
    json_object_set_new(
        o, "message",
        json_sprintf("%s %s",
                     up ? "Successfully added worker:" : "Added, not yet healthy:", w->url));
    jfield_reply(r, 200, o);
}

void router_admin_added(struct router *rt, struct router_worker *w)
{
    if (w->adder) {
        struct http_req *r = w->adder;
        w->adder = NULL;
        answer_added(rt, r, w);
    }
}

/* The address and the key of a worker: arguments of the query, or a JSON object as body. *body is
 * the caller's; url and key live as long as it and r do. */
static int read_worker(const struct http_req *r, json_t **body, const char **url, const char **key,
                       struct err *e)
{
    static const char *const known[] = {"url",         "worker_url", "api_key",
                                        "worker_type", "model_id",   "priority",
                                        "cost",        "labels",     NULL};
    const char *type = NULL;
    int rc;

    *url = http_req_query(r, "url");
    *url = *url ? *url : http_req_query(r, "worker_url");
    *key = http_req_query(r, "api_key");
    rc = jfield_body(r, *url != NULL, body, e);
    if (rc != STATUS_OK || (rc = jfield_known(*body, "worker", known, e)) ||
        (rc = jfield_text(*body, "worker_url", url, e)) ||
        (rc = jfield_text(*body, "url", url, e)) || (rc = jfield_text(*body, "api_key", key, e)) ||
        (rc = jfield_text(*body, "worker_type", &type, e))) {
        return rc;
    }
    if (type && strcmp(type, "regular") != 0) {
        return ERR(e, STATUS_INPUT, "worker_type %.40s: this router has regular workers only",
                   type);
    }
    return *url ? STATUS_OK : ERR(e, STATUS_INPUT, "url is missing");
}

static void add_worker(struct router *rt, struct http_req *r, int wait)
{
    const char *url, *key;
    struct router_worker *w = NULL;
    struct err e = {0};
    json_t *body = NULL;
    int rc = read_worker(r, &body, &url, &key, &e);

    if (rc == STATUS_OK) {
        rc = router_add(rt, url, key, &w, &e);
    }
    if (rc != STATUS_OK) {
        http_req_fail(r, rc == STATUS_NOMEM ? 503 : 400, "%s", e.msg);
    } else if (!wait) {
        char id[32];
        id_text(w, id);
        jfield_reply(r, 202,
                     json_pack("{s:s,s:s,s:s,s:o,s:s}", "status", "accepted", "worker_id", id,
                               "url", w->url, "location", json_sprintf("/workers/%s", id),
                               "message", "Worker addition queued for background processing"));
    } else if (rt->o.worker.no_checks) {
        answer_added(rt, r, w);
    } else {
        w->adder = r; /* answered after its first check */
    }
    json_decref(body);
}

static void do_add(struct router *rt, struct http_req *r)
{
    add_worker(rt, r, 1);
}

void router_admin_add(void *arg, struct http_req *r)
{
    router_order(arg, r, do_add);
}

static void remove_worker(struct router *rt, struct http_req *r, const char *name)
{
    struct router_worker *w = router_find(rt, name);
    json_t *o;

    if (!w) {
        http_req_fail(r, 404, "there is no worker %.200s", name);
        return;
    }
    router_worker_ref(w);
    router_remove(rt, w, "asked for");
    o = worker_json(rt, w);
    json_object_set_new(o, "status", json_string("success"));
    json_object_set_new(o, "message", json_sprintf("Successfully removed worker: %s", w->url));
    jfield_reply(r, 200, o);
    router_worker_unref(w);
}

static void do_remove(struct router *rt, struct http_req *r)
{
    const char *url, *key;
    struct err e = {0};
    json_t *body = NULL;
    int rc = read_worker(r, &body, &url, &key, &e);

    if (rc == STATUS_OK) {
        remove_worker(rt, r, url);
    } else {
        http_req_fail(r, rc == STATUS_NOMEM ? 503 : 400, "%s", e.msg);
    }
    json_decref(body);
}

void router_admin_remove(void *arg, struct http_req *r)
{
    router_order(arg, r, do_remove);
}

static void do_list(struct router *rt, struct http_req *r)
{
    json_t *urls = json_array();

    for (int i = 0; i < rt->nworkers; i++) {
        json_array_append_new(urls, json_string(rt->workers[i]->url));
    }
    jfield_reply(r, 200, json_pack("{s:o}", "urls", urls));
}

void router_admin_list(void *arg, struct http_req *r)
{
    router_order(arg, r, do_list);
}

static json_t *workers_json(struct router *rt)
{
    json_t *list = json_array();

    for (int i = 0; i < rt->nworkers; i++) {
        json_array_append_new(list, worker_json(rt, rt->workers[i]));
    }
    return list;
}

static void do_workers(struct router *rt, struct http_req *r)
{
    const char *method = http_req_method(r);

    if (strcmp(method, "POST") == 0) {
        add_worker(rt, r, 0);
    } else if (strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0) {
        jfield_reply(r, 200,
                     json_pack("{s:o,s:i,s:{s:i,s:i,s:i}}", "workers", workers_json(rt), "total",
                               rt->nworkers, "stats", "prefill_count", 0, "decode_count", 0,
                               "regular_count", rt->nworkers));
    } else {
        http_req_fail(r, 405, "/workers takes GET and POST");
    }
}

void router_admin_workers(void *arg, struct http_req *r)
{
    router_order(arg, r, do_workers);
}

/* Also one that was removed and has requests on their way. */
static struct router_worker *find_any(struct router *rt, const char *name)
{
    struct router_worker *w = router_find(rt, name);
    char id[32];

    for (int i = 0; i < rt->nleaving && !w; i++) {
        id_text(rt->leaving[i], id);
        if (strcmp(rt->leaving[i]->url, name) == 0 || strcmp(id, name) == 0) {
            w = rt->leaving[i];
        }
    }
    return w;
}

static void do_worker(struct router *rt, struct http_req *r)
{
    const char *method = http_req_method(r), *name = http_req_path(r) + strlen("/workers/");
    struct router_worker *w;

    if (strcmp(method, "DELETE") == 0) {
        remove_worker(rt, r, name);
    } else if (strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0) {
        w = find_any(rt, name);
        if (w) {
            jfield_reply(r, 200, worker_json(rt, w));
        } else {
            http_req_fail(r, 404, "there is no worker %.200s", name);
        }
    } else {
        http_req_fail(r, 405, "/workers/ID takes GET and DELETE");
    }
}

void router_admin_worker(void *arg, struct http_req *r)
{
    router_order(arg, r, do_worker);
}

static void do_loads(struct router *rt, struct http_req *r)
{
    json_t *list = json_array();

    for (int i = 0; i < rt->nworkers; i++) {
        json_array_append_new(list, json_pack("{s:s,s:i}", "worker", rt->workers[i]->url, "load",
                                              rt->workers[i]->load));
    }
    jfield_reply(r, 200, json_pack("{s:o}", "workers", list));
}

void router_admin_loads(void *arg, struct http_req *r)
{
    router_order(arg, r, do_loads);
}

/* ---- figures ---- */

json_t *router_admin_info(struct router *rt)
{
    json_t *o = rt->o.args ? json_deep_copy(rt->o.args) : json_object(), *more;

    more = json_pack("{s:s,s:f,s:i,s:i,s:i,s:I,s:I,s:o}", "version", MILES_VERSION, "uptime_s",
                     proc_now() - rt->started, "running", rt->running, "queued", rt->queue.n,
                     "draining_workers", rt->nleaving, "requests", (json_int_t)rt->stats.requests,
                     "retries", (json_int_t)rt->stats.retries, "workers", workers_json(rt));
    json_object_update(o, more);
    json_decref(more);
    return o;
}

static void head(struct buf *b, const char *name, const char *type, const char *help)
{
    buf_printf(b, "# HELP sgl_router_%s %s\n# TYPE sgl_router_%s %s\n", name, help, name, type);
}

static void number(struct buf *b, const char *name, const char *type, const char *help, double v)
{
    head(b, name, type, help);
    buf_printf(b, "sgl_router_%s %.17g\n", name, v);
}

static void times(struct buf *b, const struct router_stats *st)
{
    static const char name[] = "request_duration_seconds";
    uint64_t n = 0;

    head(b, name, "histogram", "Until a request's last byte was passed on.");
    for (int i = 0; i < ROUTER_BUCKETS; i++) {
        n += st->time[i];
        buf_printf(b, "sgl_router_%s_bucket{le=\"%g\"} %llu\n", name, router_bounds[i],
                   (unsigned long long)n);
    }
    n += st->time[ROUTER_BUCKETS];
    buf_printf(b,
               "sgl_router_%s_bucket{le=\"+Inf\"} %llu\nsgl_router_%s_sum %.9g\n"
               "sgl_router_%s_count %llu\n",
               name, (unsigned long long)n, name, st->time_sum, name, (unsigned long long)n);
}

static double worker_figure(const struct router_worker *w, int which)
{
    switch (which) {
    case 0: return w->load;
    case 1: return w->health == ROUTER_WORKER_UP && !w->stale;
    case 2:
        return w->breaker == ROUTER_WORKER_CLOSED ? 0 : w->breaker == ROUTER_WORKER_OPEN ? 1 : 2;
    case 3: return (double)w->sent;
    case 4: return (double)w->bad;
    default: return (double)w->opened;
    }
}

static void of_workers(struct buf *b, const struct router *rt)
{
    static const char *const names[][3] = {
        {"running_requests", "gauge", "Requests on their way to a worker."},
        {"worker_health", "gauge", "1 when its health checks say it is up."},
        {"cb_state", "gauge", "Circuit breaker: 0 closed, 1 open, 2 half open."},
        {"processed_requests_total", "counter", "Requests sent to a worker."},
        {"worker_failures_total", "counter", "Requests that a worker failed."},
        {"cb_opened_total", "counter", "Times its circuit breaker opened."}};

    for (int k = 0; k < 6; k++) {
        head(b, names[k][0], names[k][1], names[k][2]);
        for (int i = 0; i < rt->nworkers; i++) {
            buf_printf(b, "sgl_router_%s{worker=\"%s\"} %.17g\n", names[k][0], rt->workers[i]->url,
                       worker_figure(rt->workers[i], k));
        }
    }
}

static void do_metrics(struct router *rt, struct http_req *r)
{
    const struct router_stats *st = &rt->stats;
    const struct router_policy *p = &rt->policy;
    struct http_req_answer a = {.status = 200, .type = "text/plain; version=0.0.4"};
    struct buf b;

    buf_init(&b, 16 << 20);
    number(&b, "requests_total", "counter", "Requests to forward.", (double)st->requests);
    head(&b, "responses_total", "counter", "Answers by class of status; none: cut or left.");
    for (int i = 0; i < 6; i++) {
        buf_printf(&b, "sgl_router_responses_total{class=\"%s\"} %llu\n",
                   (const char *const[]){"none", "1xx", "2xx", "3xx", "4xx", "5xx"}[i],
                   (unsigned long long)st->answers[i]);
    }
    number(&b, "retries_total", "counter", "Times a request was sent again.", (double)st->retries);
    number(&b, "moved_total", "counter", "Requests taken from a worker that went down.",
           (double)st->moved);
    number(&b, "fanouts_total", "counter", "Requests sent to all workers.", (double)st->fans);
    number(&b, "active_requests", "gauge", "Requests being forwarded.", rt->running);
    number(&b, "queued_requests", "gauge", "Requests that wait for their turn.", rt->queue.n);
    number(&b, "queue_full_total", "counter", "Requests refused for want of a place.",
           (double)st->queue_full);
    number(&b, "queue_late_total", "counter", "Requests that waited too long.",
           (double)st->queue_late);
    number(&b, "active_workers", "gauge", "Workers that may be asked.",
           router_usable(rt, proc_now()));
    number(&b, "workers", "gauge", "Workers known.", rt->nworkers);
    number(&b, "draining_workers", "gauge", "Workers removed, with requests on their way.",
           rt->nleaving);
    number(&b, "health_checks_total", "counter", "Health checks.", (double)st->checks);
    number(&b, "health_checks_failed_total", "counter", "Health checks that failed.",
           (double)st->checks_failed);
    number(&b, "cache_hits_total", "counter", "Prompts sent where their beginning was known.",
           (double)p->hits);
    number(&b, "cache_misses_total", "counter", "Prompts known nowhere.", (double)p->misses);
    number(&b, "load_balancing_events_total", "counter",
           "Prompts placed by load because loads were apart.", (double)p->balanced);
    number(&b, "tree_size", "gauge", "Blocks of prompts, or sessions, remembered.",
           p->cache ? (double)router_cache_blocks(p->cache) : 0);
    times(&b, st);
    of_workers(&b, rt);
    http_req_reply_buf(r, &a, &b);
    buf_fini(&b);
}

void router_admin_metrics(void *arg, struct http_req *r)
{
    router_order(arg, r, do_metrics);
}
