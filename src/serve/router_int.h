/* What the files of the router share. All of it belongs to the router's own thread, but for what is
 * said to be under the lock: the network's threads only leave things in the inbox. */
#ifndef SERVE_ROUTER_INT_H
#define SERVE_ROUTER_INT_H

#include <pthread.h>
#include <stdatomic.h>

#include "net/http_client.h"
#include "serve/router.h"

struct router_call;
struct router_fan;

/* What a request to a worker was made for; the first member of what its events carry. */
enum router_task_kind { ROUTER_TASK_CALL, ROUTER_TASK_FAN, ROUTER_TASK_CHECK };
struct router_task {
    enum router_task_kind kind;
    /* Of fans and checks, which are one request each: in the list of those on their way. */
    struct router_task *next, **link;
    uint64_t id;
};

/* A request that the router answers itself, on its thread. */
typedef void router_fn(struct router *rt, struct http_req *r);
struct router_order {
    struct router_order *next;
    router_fn *fn;
    struct http_req *r;
};

struct router_list {
    struct router_call *first, *last;
    int n;
};

enum { ROUTER_BUCKETS = 12 };
extern const double router_bounds[ROUTER_BUCKETS]; /* seconds */

struct router_stats {
    uint64_t requests;
    uint64_t answers[6]; /* by status / 100; 0: none, the client left or was cut */
    uint64_t retries, moved, queue_full, queue_late, fans, checks, checks_failed;
    uint64_t time[ROUTER_BUCKETS + 1];
    double time_sum;
};

struct router {
    struct router_opts o;
    char *worker_key, *health_path;
    struct http_server *http;
    struct http_client *client;
    pthread_t thread;
    int has_thread, wakefd;
    double started;
    atomic_int stop;
    char *version; /* that the last change of weights through this router named; or NULL */

    pthread_mutex_t mu;
    struct router_call *inbox, **inbox_end;    /* under mu */
    struct router_order *orders, **orders_end; /* under mu */

    struct router_policy policy;
    struct router_worker **workers, **usable; /* ROUTER_CACHE_SLOTS; the latter is scratch */
    int nworkers;
    struct router_worker **leaving; /* removed, with requests on their way; ROUTER_CACHE_SLOTS */
    int nleaving;
    uint8_t *slots; /* taken */
    uint64_t next_id;
    struct router_list flying, pausing, queue;
    int running;               /* requests forwarded or about to be: not those in the queue */
    int live;                  /* requests to workers whose end was not told yet */
    struct router_task *tasks; /* fans and checks among these */
    double due;                /* when something is to be done at the latest */
    struct router_stats stats;
};

/* ---- router.c ---- */

void router_nudge(struct router *rt);
/* Runs fn on the router's thread; it ends r. */
void router_order(struct router *rt, struct http_req *r, router_fn *fn);
/* Something is to be done at t. */
void router_due(struct router *rt, double t);
/* A request to a worker: its url and `target`, the headers of `from` that belong to it (NULL:
 * none), the key that it asks for. The answer's events carry `task`. */
int router_send(struct router *rt, const struct router_worker *w, struct router_task *task,
                struct http_client_request *q, const struct http_req *from, const char *target,
                uint64_t *id, struct err *e);
/* Adds a worker; one of the same address is replaced. STATUS_INPUT for what is no address,
 * STATUS_NOMEM when there are too many. */
int router_add(struct router *rt, const char *url, const char *api_key, struct router_worker **out,
               struct err *e);
/* No more requests for it; it is gone when those on their way are done. */
void router_remove(struct router *rt, struct router_worker *w, const char *why);
/* By address, or by id as text; NULL when there is none. */
struct router_worker *router_find(struct router *rt, const char *name);
/* The workers that may be asked, in rt->usable; their number. */
int router_usable(struct router *rt, double now);

/* ---- router_call.c: a request that is forwarded to one worker ---- */

http_server_fn router_call_handle;
/* Takes what the network's threads left. */
void router_call_take(struct router *rt);
void router_call_event(struct router *rt, struct http_client_event *ev);
/* Those whose time has come. */
void router_call_tick(struct router *rt, double now);
/* Those that may leave the queue. */
void router_call_pump(struct router *rt);
/* Moves what nothing was heard of from a worker that is down. */
void router_call_move(struct router *rt, struct router_worker *w, double now);
void router_call_stop(struct router *rt);

/* ---- router_fan.c: a request that goes to all workers ---- */

/* 1 when requests of that path are. */
int router_fan_is(const char *path);
http_server_fn router_fan_handle;
void router_fan_event(struct router *rt, struct http_client_event *ev);

/* ---- router_admin.c: what the router answers itself ---- */

http_server_fn router_admin_health, router_admin_live, router_admin_ready, router_admin_add,
    router_admin_remove, router_admin_list, router_admin_workers, router_admin_worker,
    router_admin_loads, router_admin_metrics;
/* Answers who added the worker, after its first check. */
void router_admin_added(struct router *rt, struct router_worker *w);
json_t *router_admin_info(struct router *rt);

#endif
