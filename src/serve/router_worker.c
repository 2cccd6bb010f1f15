/* Owns the two state machines that decide whether a worker is asked. */
#include "serve/router_worker.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "serve/router_key.h"

struct router_worker *router_worker_new(const char *url, const char *api_key,
                                        const struct router_worker_opts *o, double now)
{
    struct router_worker *w = mem_alloc(sizeof *w);
    size_t n = strlen(url);

    while (n > 0 && url[n - 1] == '/') {
        n--;
    }
    w->o = o;
    w->url = mem_strndup(url, n);
    w->api_key = mem_strdup(api_key);
    w->url_hash = router_key_hash(0, w->url, n);
    w->refs = 1;
    w->health = o->no_checks ? ROUTER_WORKER_UP : ROUTER_WORKER_STARTING;
    w->added = w->next_check = now;
    return w;
}

void router_worker_ref(struct router_worker *w)
{
    w->refs++;
}

void router_worker_unref(struct router_worker *w)
{
    if (w && --w->refs == 0) {
        ASSERT(!w->adder);
        mem_free(w->url);
        mem_free(w->api_key);
        mem_free(w);
    }
}

int router_worker_usable(struct router_worker *w, double now)
{
    if (w->removed || w->stale || w->unsure || w->health != ROUTER_WORKER_UP) {
        return 0;
    }
    if (w->breaker == ROUTER_WORKER_OPEN && now >= w->cb_until) {
        w->breaker = ROUTER_WORKER_HALF_OPEN;
        w->cb_good = w->cb_trying = 0;
    }
    return w->breaker == ROUTER_WORKER_CLOSED ||
           (w->breaker == ROUTER_WORKER_HALF_OPEN && w->cb_trying < w->o->cb_successes);
}

void router_worker_began(struct router_worker *w, double now)
{
    (void)now;
    w->load++;
    w->sent++;
    w->cb_trying += w->breaker == ROUTER_WORKER_HALF_OPEN;
    w->refs++;
}

static void open_breaker(struct router_worker *w, double now)
{
    w->breaker = ROUTER_WORKER_OPEN;
    w->cb_until = now + w->o->cb_open_s;
    w->cb_bad = w->cb_trying = 0;
    w->opened++;
}

static void count_bad(struct router_worker *w, double now)
{
    w->bad++;
    if (w->o->no_breaker || w->breaker == ROUTER_WORKER_OPEN) {
        return;
    }
    if (w->breaker == ROUTER_WORKER_HALF_OPEN) {
        open_breaker(w, now);
        return;
    }
    if (w->cb_bad == 0 || now - w->cb_first > w->o->cb_window_s) {
        w->cb_bad = 0;
        w->cb_first = now;
    }
    if (++w->cb_bad >= w->o->cb_failures) {
        open_breaker(w, now);
    }
}

static void count_good(struct router_worker *w)
{
    w->good++;
    w->cb_bad = 0;
    if (w->breaker == ROUTER_WORKER_HALF_OPEN && ++w->cb_good >= w->o->cb_successes) {
        w->breaker = ROUTER_WORKER_CLOSED;
    }
}

void router_worker_ended(struct router_worker *w, enum router_worker_end how, double now)
{
    ASSERT(w->load > 0);
    w->load--;
    w->cb_trying -= w->cb_trying > 0;
    if (how == ROUTER_WORKER_BAD) {
        count_bad(w, now);
    } else if (how == ROUTER_WORKER_GOOD) {
        count_good(w);
    }
    router_worker_unref(w);
}

void router_worker_suspect(struct router_worker *w, double now)
{
    if (w->health == ROUTER_WORKER_UP && w->fails == 0 && now < w->next_check) {
        w->next_check = now;
    }
}

/* When the next check is due: soon while it is not decided. */
static void plan_check(struct router_worker *w, double now)
{
    int doubt = w->health == ROUTER_WORKER_UP ? w->fails > 0 : w->passes > 0;
    double s = w->health == ROUTER_WORKER_STARTING ? w->o->startup_check_s : w->o->check_s;

    w->next_check = now + (doubt && s > ROUTER_WORKER_DOUBT_S ? ROUTER_WORKER_DOUBT_S : s);
}

int router_worker_checked(struct router_worker *w, int ok, const char *reason, double now)
{
    int change = 0;

    w->fails = ok ? 0 : w->fails + 1;
    w->passes = ok ? w->passes + 1 : 0;
    snprintf(w->reason, sizeof w->reason, "%s", ok ? "" : reason);
    if (ok && w->health != ROUTER_WORKER_UP &&
        (w->health == ROUTER_WORKER_STARTING || w->passes >= w->o->health_successes)) {
        w->health = ROUTER_WORKER_UP;
        change = 1;
    } else if (!ok && w->health == ROUTER_WORKER_UP && w->fails >= w->o->health_failures) {
        w->health = ROUTER_WORKER_DOWN;
        change = -1;
    }
    plan_check(w, now);
    return change;
}

const char *router_worker_health_name(const struct router_worker *w)
{
    return w->removed                            ? "draining"
           : w->stale                            ? "stale"
           : w->health == ROUTER_WORKER_UP       ? "healthy"
           : w->health == ROUTER_WORKER_STARTING ? "starting"
                                                 : "unhealthy";
}

const char *router_worker_breaker_name(const struct router_worker *w)
{
    return w->breaker == ROUTER_WORKER_CLOSED ? "closed"
           : w->breaker == ROUTER_WORKER_OPEN ? "open"
                                              : "half_open";
}
