/* One server behind a router: whether it may be asked, as its health checks and its answers say.
 * Nothing here touches the network or looks at a clock: `now` is given, in seconds.
 *
 *     w = router_worker_new("http://10.0.0.7:30000", NULL, &opts, now);
 *     if (router_worker_usable(w, now)) {
 *         router_worker_began(w, now);
 *         ... its answer, or none ...
 *         router_worker_ended(w, ROUTER_WORKER_GOOD, now);
 *     }
 *     if (now >= w->next_check) ... router_worker_checked(w, ok, now);
 *
 * Two judges, and both must agree. Health checks: a new worker starts with its first good check;
 * one that fails `health_failures` in a row is out until it passes `health_successes` in a row.
 * The breaker: `cb_failures` bad answers in a row within `cb_window_s` open it; after `cb_open_s` a
 * few requests may try, and when `cb_successes` of them went well it is closed. */
#ifndef SERVE_ROUTER_WORKER_H
#define SERVE_ROUTER_WORKER_H

#include <stdint.h>

struct http_req;

struct router_worker_opts {
    int no_checks; /* workers are taken for healthy */
    int health_failures, health_successes;
    double check_s;         /* between two checks of a worker in a known state */
    double startup_check_s; /* of one that has not started yet */
    double startup_s;       /* one that has not started by then is given up */
    int no_breaker;
    int cb_failures, cb_successes;
    double cb_open_s, cb_window_s;
};

/* Between two checks while it is not decided whether a worker is up or down. */
#define ROUTER_WORKER_DOUBT_S 1.0

enum router_worker_health { ROUTER_WORKER_STARTING, ROUTER_WORKER_UP, ROUTER_WORKER_DOWN };
enum router_worker_breaker { ROUTER_WORKER_CLOSED, ROUTER_WORKER_OPEN, ROUTER_WORKER_HALF_OPEN };
/* How a request went: as far as the worker is concerned. */
enum router_worker_end {
    ROUTER_WORKER_GOOD,
    ROUTER_WORKER_BAD,    /* no connection, cut off, late, 5xx */
    ROUTER_WORKER_NEUTRAL /* nothing can be said: the client left, or the request was moved */
};

struct router_worker {
    const struct router_worker_opts *o;
    char *url, *api_key; /* the latter NULL when it has none of its own */
    uint64_t id, url_hash;
    uint16_t slot;
    int refs; /* the list of workers, requests on their way, a check on its way */
    int removed;
    int stale;  /* it missed a change of weights that others made */
    int unsure; /* it is being asked for the version of its weights */

    enum router_worker_health health;
    int fails, passes; /* checks in a row */
    int checking;      /* one is on its way */
    double next_check, added;
    char reason[128];       /* why the last check failed; "" */
    struct http_req *adder; /* who added it is answered after its first check; or NULL */

    enum router_worker_breaker breaker;
    int cb_bad, cb_good, cb_trying;
    double cb_first, cb_until;

    int load; /* requests on their way */
    uint64_t sent, good, bad, opened;
};

/* `url` is copied, without slashes at its end. */
struct router_worker *router_worker_new(const char *url, const char *api_key,
                                        const struct router_worker_opts *o, double now);
void router_worker_ref(struct router_worker *w);
void router_worker_unref(struct router_worker *w); /* NULL is fine */

/* May open the way for a try of a breaker that was open long enough. */
int router_worker_usable(struct router_worker *w, double now);
void router_worker_began(struct router_worker *w, double now);
void router_worker_ended(struct router_worker *w, enum router_worker_end how, double now);
/* A connection failed: look at once. */
void router_worker_suspect(struct router_worker *w, double now);
/* A check came back. 1: it is up now and was not; -1: it is down now and was up. */
int router_worker_checked(struct router_worker *w, int ok, const char *reason, double now);

const char *router_worker_health_name(const struct router_worker *w);
const char *router_worker_breaker_name(const struct router_worker *w);

#endif
