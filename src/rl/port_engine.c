/* Owns the life of an engine as the port sees it: from its start over its proof that it holds the
 * right weights to the day it is lost and comes back, or is taken out. One request at a time drives
 * it from state to state; each state has a deadline, and an engine that misses it is lost and
 * starts over. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/backoff.h"
#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "net/http_client.h"
#include "num/plan.h"
#include "rl/port_http_int.h"

#define PORT_ENGINE_PROBE_S   0.25 /* between two looks at an engine that starts */
#define PORT_ENGINE_FIRST_S   0.1  /* first and longest wait before an engine is started again */
#define PORT_ENGINE_BACKOFF_S 30.0
#define PORT_ENGINE_SICK      3    /* bad words of SGLang about its health that are believed */
#define PORT_ENGINE_LEAVE_S   30.0 /* for the router to let go of an engine */

const char *port_engine_name(const struct port_engine *en)
{
    static char text[4][320];
    static int next;

    next = (next + 1) % 4;
    snprintf(text[next], sizeof text[next], "engine %d (%s)", en->index,
             en->url ? en->url : "no address yet");
    return text[next];
}

const char *port_engine_waits(const struct port_engine *en)
{
    switch (en->state) {
    case PORT_ENGINE_DOWN: return "its next start";
    case PORT_ENGINE_STARTING: return en->url ? "its first sign of health" : "its address";
    case PORT_ENGINE_INFO: return "what it says of its numbers";
    case PORT_ENGINE_UP: return "weights";
    case PORT_ENGINE_TAKE: return "taking the weights";
    case PORT_ENGINE_CHECK: return "the proof of its weights";
    case PORT_ENGINE_JOIN: return "the router";
    case PORT_ENGINE_READY: return "samples";
    case PORT_ENGINE_FREE: return "nothing: it was taken out";
    default: return "nothing: it was given up";
    }
}

const char *port_engine_state_name(const struct port_engine *en)
{
    static const char *const names[] = {"down",  "starting", "starting", "up",   "syncing",
                                        "proof", "joining",  "ready",    "gone", "removed"};
    return names[en->state];
}

int port_engine_is_up(const struct port_engine *en)
{
    return en->state >= PORT_ENGINE_UP && en->state <= PORT_ENGINE_READY;
}

/* The message of an error's body, in whichever shape. */
static void port_engine_message(const char *body, size_t len, char *out, size_t size)
{
    json_t *o = json_loadb(body, len, 0, NULL), *inner = json_object_get(o, "error");
    const char *s = json_string_value(json_object_get(o, "message"));

    s = s ? s : json_string_value(json_object_get(inner, "message"));
    s = s ? s : json_string_value(inner);
    snprintf(out, size, "%.400s", s ? s : len ? body : "without a word");
    for (char *c = out; *c; c++) {
        *c = *c == '\n' || *c == '\r' ? ' ' : *c;
    }
    json_decref(o);
}

void port_engine_told(const struct http_client_event *ev, char *out, size_t size)
{
    char text[512];

    if (ev->outcome != HTTP_CLIENT_OK) {
        snprintf(out, size, "%s%s%.300s", http_client_outcome_name(ev->outcome),
                 ev->error[0] ? ": " : "", ev->error);
    } else {
        port_engine_message(ev->data, ev->len, text, sizeof text);
        snprintf(out, size, "status %d: %s", ev->status, text);
    }
}

static void port_engine_enter(struct port_http *p, struct port_engine *en,
                              enum port_engine_state state)
{
    static const char *const names[] = {
        [PORT_ENGINE_DOWN] = "down",
        [PORT_ENGINE_STARTING] = "start",
        [PORT_ENGINE_INFO] = "start",
        [PORT_ENGINE_UP] = "up",
        [PORT_ENGINE_TAKE] = "weight_sync: take",
        [PORT_ENGINE_CHECK] = "weight_sync: proof",
        [PORT_ENGINE_JOIN] = "join the router",
        [PORT_ENGINE_READY] = "ready",
        [PORT_ENGINE_GONE] = NULL,
        [PORT_ENGINE_FREE] = NULL,
    };
    char lane[32];

    snprintf(lane, sizeof lane, "engine %d", en->index);
    span_enter(&en->span, lane, names[state], -1);
    en->state = state;
    en->since = en->next_try = port_http_now(p);
    en->said[0] = 0;
    p->look = 1;
}

/* ---- the router ---- */

/* url as the value of a query's argument. */
static void port_engine_escape(struct buf *b, const char *url)
{
    for (; *url; url++) {
        int plain = (*url >= '0' && *url <= '9') || (*url >= 'a' && *url <= 'z') ||
                    (*url >= 'A' && *url <= 'Z') || strchr("-._~", *url);
        buf_printf(b, plain ? "%c" : "%%%02X", (unsigned char)*url);
    }
}

static struct port_http_call *port_engine_ask_router(struct port_http *p, struct port_engine *en,
                                                     enum port_http_ask kind, double total_s)
{
    struct port_http_call *k;
    struct buf path;

    buf_init(&path, 4096);
    buf_str(&path, kind == PORT_HTTP_JOIN ? "/add_worker?url=" : "/remove_worker?url=");
    port_engine_escape(&path, en->url);
    k = port_http_send(p, kind, en->index, "POST", p->router, path.data, NULL, 0, total_s);
    buf_fini(&path);
    return k;
}

static void port_engine_leave(struct port_http *p, struct port_engine *en)
{
    if (en->joined && en->url) {
        en->joined = 0;
        en->leaving = port_engine_ask_router(p, en, PORT_HTTP_LEAVE, PORT_ENGINE_LEAVE_S);
    }
}

/* ---- loss ---- */

static void port_engine_give_up(struct port_http *p, struct port_engine *en)
{
    struct buf all;

    log_error(ENGINE, "%s is given up: %s", port_engine_name(en), en->why);
    port_engine_enter(p, en, PORT_ENGINE_GONE);
    for (int i = 0; i < p->o.nengines; i++) {
        if (p->engines[i].state < PORT_ENGINE_GONE) {
            return;
        }
    }
    if (p->o.room > 0 && p->started) {
        return; /* one may be added; port_http_tick waits for it, and not for ever */
    }
    buf_init(&all, 900);
    for (int i = 0; i < p->o.nengines; i++) {
        buf_printf(&all, "%s%s: %.300s", i ? "; " : "", port_engine_name(&p->engines[i]),
                   p->engines[i].why);
    }
    port_http_fail(p, STATUS_CHILD, "no engine is left: %s", all.data);
    buf_fini(&all);
}

/* The engine is not to be trusted any more. final: it is not worth another try. broke: it answered,
 * and wrongly; else it did not answer. */
static void port_engine_lose(struct port_http *p, struct port_engine *en, int final, int broke,
                             const char *fmt, ...) __attribute__((format(printf, 5, 6)));

static void port_engine_lose(struct port_http *p, struct port_engine *en, int final, int broke,
                             const char *fmt, ...)
{
    int host = en->host != NULL, back;
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(en->why, sizeof en->why, fmt, ap);
    va_end(ap);
    port_http_drop(p, &en->call);
    port_http_drop(p, &en->health);
    back = p->router[0] ? 0 : port_http_take_back(p, en->index, en->why);
    log_error(ENGINE, "WorkerCrashed: %s: %s; %d sample%s wait%s for another", port_engine_name(en),
              en->why, back, back == 1 ? "" : "s", back == 1 ? "s" : "");
    port_engine_leave(p, en);
    if (host) {
        en->host->kill(en->host->self, en->index);
        mem_free(en->url);
        en->url = NULL;
    }
    p->stats.lost++;
    en->lost_at = en->lost_at > 0.0 ? en->lost_at : port_http_now(p);
    port_pace_reset(p, en);
    en->failures += host || broke;
    en->version = -1;
    en->suspect = en->control = 0;
    en->probes = en->sick = 0;
    if (final || en->failures > p->o.restarts) {
        port_engine_give_up(p, en);
        return;
    }
    port_engine_enter(p, en, PORT_ENGINE_DOWN);
    en->next_try += backoff_s(PORT_ENGINE_FIRST_S, 2 * (en->failures - 1), PORT_ENGINE_BACKOFF_S,
                              port_pace_chance(p));
}

void port_engine_suspect(struct port_http *p, struct port_engine *en)
{
    if (en->state == PORT_ENGINE_READY) {
        en->suspect = 1;
        en->next_check = port_http_now(p);
    }
}

void port_engine_doubt(struct port_http *p, struct port_engine *en)
{
    if (en->state == PORT_ENGINE_READY) {
        en->version = -1;
        port_engine_enter(p, en, PORT_ENGINE_UP);
        /* it takes weights now: what it works on would be of two versions */
        snprintf(en->why, sizeof en->why, "it may hold other weights than version %lld",
                 (long long)p->version);
        port_http_take_back(p, en->index, en->why);
    }
}

/* ---- coming and going ---- */

void port_engine_place(struct port_http *p, struct port_engine *en,
                       const struct port_http_host *host, const char *at)
{
    int index = (int)(en - p->engines);

    *en =
        (struct port_engine){.index = index, .host = host, .version = -1, .next_try = p->last_tick};
    en->at = at ? mem_strdup(at) : NULL;
}

/* Its place is free. */
static void port_engine_clear(struct port_http *p, struct port_engine *en)
{
    port_http_drop(p, &en->call);
    port_http_drop(p, &en->health);
    en->control = 0;
    port_engine_leave(p, en);
    port_pace_reset(p, en);
    log_info(ENGINE, "%s is taken out", port_engine_name(en));
    if (en->host) {
        en->host->kill(en->host->self, en->index);
    }
    port_engine_enter(p, en, PORT_ENGINE_FREE);
    mem_free(en->url);
    mem_free(en->at);
    en->url = en->at = NULL;
}

void port_engine_remove(struct port_http *p, struct port_engine *en)
{
    en->removed = 1;
    en->move_at = port_http_now(p) + p->o.slow_s;
    if (en->load > 0) {
        log_info(ENGINE, "%s is to go: its %d samples are moved in %.0f s if it has not finished",
                 port_engine_name(en), en->load, p->o.slow_s);
    }
    p->look = 1;
}

/* ---- from start to use ---- */

static void port_engine_start(struct port_http *p, struct port_engine *en, double now)
{
    struct err e = {0};

    if (en->leaving) {
        return; /* the router must have let go of it */
    }
    port_engine_enter(p, en, PORT_ENGINE_STARTING);
    en->deadline = now + p->o.start_s;
    if (en->host && en->host->start(en->host->self, en->index, &e) != STATUS_OK) {
        port_engine_lose(p, en, 0, 1, "it cannot be started: %s", e.msg);
    }
}

/* 0: the process has ended, and the engine is lost. */
static int port_engine_alive(struct port_http *p, struct port_engine *en)
{
    char why[600] = "";

    if (!en->host || en->host->alive(en->host->self, en->index, why, sizeof why)) {
        return 1;
    }
    port_engine_lose(p, en, 0, 0, "it has ended%s%s", why[0] ? ": " : "", why);
    return 0;
}

/* An engine that does not come up within its time. One of somebody else's may come back when the
 * run has begun. */
static void port_engine_late(struct port_http *p, struct port_engine *en)
{
    int final = en->host || (!p->started && !en->added);

    port_engine_lose(p, en, final, 0, "it was not up after %.0f s%s%s", p->o.start_s,
                     en->said[0] ? ": " : "", en->said);
}

static void port_engine_probe(struct port_http *p, struct port_engine *en, double now)
{
    const char *url = en->host ? en->host->url(en->host->self, en->index) : en->at;

    if (now > en->deadline) {
        port_engine_late(p, en);
        return;
    }
    if (url && (!en->url || strcmp(url, en->url) != 0)) {
        mem_free(en->url);
        en->url = mem_strdup(url);
        for (size_t n = strlen(en->url); n && en->url[n - 1] == '/'; n--) {
            en->url[n - 1] = 0;
        }
    }
    if (en->url && !en->call && now >= en->next_try) {
        en->call = port_http_send(p, PORT_HTTP_HEALTH, en->index, "GET", en->url, "/health", NULL,
                                  0, p->o.check_timeout_s);
    }
}

static void port_engine_probed(struct port_http *p, struct port_engine *en,
                               const struct http_client_event *ev)
{
    double wait = PORT_ENGINE_PROBE_S;

    if (ev->outcome == HTTP_CLIENT_OK && ev->status == 200) {
        en->probes = 0;
        en->wake = !en->host;
        port_engine_enter(p, en, p->o.kind == PORT_HTTP_MILES ? PORT_ENGINE_INFO : PORT_ENGINE_UP);
        return;
    }
    if (!en->host) {
        wait = backoff_s(wait, en->probes++, PORT_ENGINE_PROBE_S * 16, port_pace_chance(p));
    }
    en->next_try = port_http_now(p) + wait;
    port_engine_told(ev, en->said, sizeof en->said);
}

/* The numbers it shows are the numbers it must show. */
static void port_engine_informed(struct port_http *p, struct port_engine *en,
                                 const struct http_client_event *ev)
{
    json_t *o = json_loadb(ev->data ? ev->data : "", ev->len, 0, NULL);
    const json_t *miles = json_object_get(o, "miles");
    struct plan_clash c;

    if (ev->outcome != HTTP_CLIENT_OK || ev->status != 200) {
        port_engine_told(ev, en->said, sizeof en->said);
        port_engine_lose(p, en, 0, 0, "it does not tell its numbers: %s", en->said);
    } else if (p->o.manifest &&
               !plan_agree(json_object_get(miles, "manifest"), p->o.manifest, &c)) {
        port_engine_lose(p, en, 1, 1,
                         "its numbers are not this run's: %s is %s there and %s here, and the bits "
                         "would differ",
                         c.key, c.have, c.want);
    } else {
        en->row_exact = json_is_true(json_object_get(miles, "row_exact"));
        en->next_check = port_http_now(p) + p->o.check_first_s;
        port_engine_enter(p, en, PORT_ENGINE_UP);
    }
    json_decref(o);
}

/* Sends what the weight sync wants said. */
static void port_engine_post(struct port_http *p, struct port_engine *en, enum port_http_ask kind,
                             struct wsync_request *r, double now)
{
    char *text = json_dumps(r->body ? r->body : json_null(), JSON_COMPACT | JSON_ENCODE_ANY);
    double left = en->deadline - now;

    if (p->o.say_sync) {
        log_info(WSYNC, "weight_sync: version %lld: %s is asked %s %.200s", (long long)p->version,
                 port_engine_name(en), r->path, text ? text : "");
    }
    if (text) {
        en->call = port_http_send(p, kind, en->index, "POST", en->url, r->path, text, strlen(text),
                                  left > 0.1 ? left : 0.1);
    }
    if (en->call) {
        en->call->version = p->version;
    }
    free(text);
    json_decref(r->body);
}

/* The next that an engine is asked for to get the weights into it. */
static int port_engine_to_take(struct port_http *p, struct port_engine *en, struct wsync_request *r,
                               struct err *e)
{
    const struct wsync *s = p->o.sync;

    if (en->before_k >= 0) {
        int rc = s->before ? s->before(s->self, p->version, en->before_k, r, e) : STATUS_END;
        if (rc != STATUS_END) {
            return rc;
        }
        en->before_k = -1;
    }
    return s->take(s->self, p->version, r, e);
}

static void port_engine_take(struct port_http *p, struct port_engine *en, double now)
{
    struct wsync_request r = {{0}, NULL};
    struct err e = {0};

    if (en->state == PORT_ENGINE_UP) {
        port_engine_enter(p, en, PORT_ENGINE_TAKE);
        en->deadline = now + p->o.sync_s;
        en->before_k = 0;
    }
    if (now > en->deadline) {
        port_engine_lose(p, en, 0, 0, "it did not take weight version %lld within %.0f s%s%s",
                         (long long)p->version, p->o.sync_s, en->said[0] ? ": " : "", en->said);
    } else if (now >= en->next_try) {
        if (port_engine_to_take(p, en, &r, &e) == STATUS_OK) {
            port_engine_post(p, en, PORT_HTTP_TAKE, &r, now);
        } else {
            port_http_fail(p, e.code ? e.code : STATUS_FAIL, "weight version %lld for %s: %s",
                           (long long)p->version, port_engine_name(en), e.msg);
        }
    }
}

static void port_engine_check(struct port_http *p, struct port_engine *en, double now)
{
    struct wsync_request r = {{0}, NULL};
    struct err e = {0};
    int rc = p->o.sync->check ? p->o.sync->check(p->o.sync->self, p->version, en->check_k, &r, &e)
                              : STATUS_END;

    if (rc == STATUS_END) {
        en->version = p->version;
        port_engine_enter(p, en, PORT_ENGINE_JOIN);
        en->deadline = now + p->o.request_s;
    } else if (rc == STATUS_OK) {
        port_engine_post(p, en, PORT_HTTP_CHECK, &r, now);
    } else {
        port_http_fail(p, e.code ? e.code : STATUS_FAIL,
                       "the proof of weight version %lld for %s: %s", (long long)p->version,
                       port_engine_name(en), e.msg);
    }
}

/* With --debug-weight-sync: how an engine answered what port_engine_post asked. */
static void port_engine_say(const struct port_http *p, const struct port_engine *en,
                            const char *what, const struct http_client_event *ev)
{
    char told[512];

    if (p->o.say_sync) {
        port_engine_told(ev, told, sizeof told);
        log_info(WSYNC, "weight_sync: version %lld: %s answers the %s with %d%s%s",
                 (long long)p->version, port_engine_name(en), what, ev->status,
                 ev->status == 200 ? "" : ": ", ev->status == 200 ? "" : told);
    }
}

/* What it read may be at fault, not the engine. */
static void port_engine_doubt_sync(struct port_http *p, int answered)
{
    if (answered && p->o.sync->doubt) {
        p->o.sync->doubt(p->o.sync->self, p->version);
    }
}

static void port_engine_took(struct port_http *p, struct port_engine *en,
                             const struct port_http_call *k, const struct http_client_event *ev)
{
    json_t *o = json_loadb(ev->data ? ev->data : "", ev->len, 0, NULL);
    char told[512];

    port_engine_say(p, en, "update", ev);
    if (k->version != p->version) { /* another was published meanwhile */
        port_engine_enter(p, en, PORT_ENGINE_UP);
    } else if (ev->outcome == HTTP_CLIENT_OK && ev->status == 200 &&
               !json_is_false(json_object_get(o, "success")) && en->before_k >= 0) {
        en->before_k++;
        en->next_try = port_http_now(p);
    } else if (ev->outcome == HTTP_CLIENT_OK && ev->status == 200 &&
               !json_is_false(json_object_get(o, "success"))) {
        port_engine_enter(p, en, PORT_ENGINE_CHECK);
        en->check_k = 0;
    } else if (ev->outcome == HTTP_CLIENT_OK && ev->status == 503) { /* not now */
        en->next_try = port_http_now(p) + 0.25;
        port_engine_told(ev, en->said, sizeof en->said);
    } else {
        port_engine_told(ev, told, sizeof told);
        port_engine_doubt_sync(p, ev->outcome == HTTP_CLIENT_OK);
        port_engine_lose(p, en, 0, ev->outcome == HTTP_CLIENT_OK,
                         "it does not take weight version %lld: %s", (long long)p->version, told);
    }
    json_decref(o);
}

static void port_engine_proved(struct port_http *p, struct port_engine *en,
                               const struct port_http_call *k, const struct http_client_event *ev)
{
    json_t *o = json_loadb(ev->data ? ev->data : "", ev->len, JSON_DECODE_ANY, NULL);
    struct err e = {0};
    char told[512];

    port_engine_say(p, en, "proof", ev);
    if (k->version != p->version) {
        port_engine_enter(p, en, PORT_ENGINE_UP);
    } else if (ev->outcome != HTTP_CLIENT_OK || ev->status != 200) {
        port_engine_told(ev, told, sizeof told);
        port_engine_lose(p, en, 0, ev->outcome == HTTP_CLIENT_OK,
                         "it does not prove that it holds weight version %lld: %s",
                         (long long)p->version, told);
    } else if (p->o.sync->judge(p->o.sync->self, p->version, en->check_k, o, &e) != STATUS_OK) {
        port_engine_doubt_sync(p, 1);
        port_engine_lose(p, en, 0, 1, "it does not hold weight version %lld: %s",
                         (long long)p->version, e.msg);
    } else {
        en->check_k++;
        en->next_try = port_http_now(p);
    }
    json_decref(o);
}

static void port_engine_use(struct port_http *p, struct port_engine *en, double now)
{
    if (en->lost_at > 0.0) {
        log_info(ENGINE, "%s is back %.2f s after it was lost, with weight version %lld",
                 port_engine_name(en), now - en->lost_at, (long long)en->version);
        en->lost_at = 0.0;
    }
    port_engine_enter(p, en, PORT_ENGINE_READY);
    en->suspect = 0;
    if (en->next_check < now + p->o.check_s) {
        en->next_check = now + p->o.check_s;
    }
    log_debug(ENGINE, "%s is ready, weight version %lld", port_engine_name(en),
              (long long)en->version);
}

static void port_engine_join(struct port_http *p, struct port_engine *en, double now)
{
    if (!p->router[0] || en->joined) {
        port_engine_use(p, en, now);
    } else if (now > en->deadline) {
        port_http_fail(p, STATUS_TIMEOUT, "router %s did not take %s within %.0f s: %s", p->router,
                       port_engine_name(en), p->o.request_s, en->said);
    } else if (now >= en->next_try && !en->leaving) {
        en->call = port_engine_ask_router(p, en, PORT_HTTP_JOIN, PORT_ENGINE_LEAVE_S);
    }
}

static void port_engine_joined(struct port_http *p, struct port_engine *en,
                               const struct http_client_event *ev)
{
    double now = port_http_now(p);

    port_engine_told(ev, en->said, sizeof en->said);
    if (ev->outcome == HTTP_CLIENT_OK &&
        ((ev->status >= 200 && ev->status < 300) || strstr(en->said, "already"))) {
        en->joined = 1;
        port_engine_use(p, en, now);
    } else {
        log_warn(ENGINE, "router %s does not take %s yet: %s", p->router, port_engine_name(en),
                 en->said);
        en->next_try = now + 1.0;
    }
}

/* ---- in use ---- */

/* While it rests or takes part in something SGLang may be unable to show its health; `miles serve`
 * always can. */
static int port_engine_rests(const struct port_http *p, const struct port_engine *en)
{
    return p->o.kind != PORT_HTTP_MILES &&
           (en->call || p->paused || p->released || p->controlling || p->publishing);
}

static void port_engine_watch(struct port_http *p, struct port_engine *en, double now)
{
    if (en->health || now < en->next_check || port_engine_rests(p, en)) {
        return;
    }
    en->health = port_http_send(p, PORT_HTTP_HEALTH, en->index, "GET", en->url, "/health", NULL, 0,
                                p->o.check_timeout_s);
}

/* SGLang says that it is not well when no step ended within 20 s, which a long one may take: it is
 * believed when it says so again and again and no sample comes. */
static int port_engine_is_busy(const struct port_http *p, struct port_engine *en,
                               const struct http_client_event *ev)
{
    return p->o.kind == PORT_HTTP_SGLANG && ev->outcome == HTTP_CLIENT_OK && ev->status == 503 &&
           ++en->sick < PORT_ENGINE_SICK;
}

static void port_engine_checked(struct port_http *p, struct port_engine *en,
                                const struct http_client_event *ev)
{
    char told[512];

    if (ev->outcome == HTTP_CLIENT_OK && ev->status == 200) {
        en->next_check = port_http_now(p) + p->o.check_s;
        en->sick = 0;
        if (en->suspect && !en->host) { /* it may be another process, with other weights */
            port_engine_doubt(p, en);
        }
        en->suspect = 0;
    } else if (port_engine_is_up(en) && !port_engine_rests(p, en) && port_engine_alive(p, en)) {
        port_engine_told(ev, told, sizeof told);
        if (port_engine_is_busy(p, en, ev)) {
            log_warn(ENGINE, "%s: its health check failed, %d in a row: %s", port_engine_name(en),
                     en->sick, told);
            en->next_check = port_http_now(p) + (p->o.check_s < 1.0 ? p->o.check_s : 1.0);
        } else {
            port_engine_lose(p, en, 0, 0, "its health check failed: %s", told);
        }
    }
}

static void port_engine_control(struct port_http *p, struct port_engine *en)
{
    static const char *const paths[] = {"/pause_generation", "/continue_generation",
                                        "/release_memory_occupation", "/resume_memory_occupation"};
    static const char *const bodies[] = {"{\"mode\":\"retract\"}", "{}",
                                         "{\"tags\":[\"kv_cache\"]}", "{\"tags\":[\"kv_cache\"]}"};
    int what = p->controlling - 1;

    en->call = port_http_send(p, PORT_HTTP_CONTROL, en->index, "POST", en->url, paths[what],
                              bodies[what], strlen(bodies[what]), p->o.sync_s);
    en->control = en->call ? 2 : 1;
}

static void port_engine_controlled(struct port_http *p, struct port_engine *en,
                                   const struct http_client_event *ev)
{
    int ok = ev->outcome == HTTP_CLIENT_OK, st = ev->status;
    double now = port_http_now(p);
    char told[512];

    en->control = 3;
    if (ok && st == 200) {
        return;
    }
    if (ok && (st == 408 || st == 429 || st == 503) && now < p->control_end) { /* not now */
        en->control = 1;
        en->next_try = now + 0.25;
        return;
    }
    port_engine_told(ev, told, sizeof told);
    if (ok && st < 500 && st != 408 && st != 429) {
        ERR(&p->refused, STATUS_FAIL, "%s: %s", port_engine_name(en), told);
    } else {
        port_engine_lose(p, en, 0, ok, "it does not do as it is told: %s", told);
    }
}

/* Who drove it before may have been killed between a pause and its end: it must not rest for ever.
 */
static void port_engine_wake(struct port_http *p, struct port_engine *en)
{
    en->call = port_http_send(p, PORT_HTTP_WAKE, en->index, "POST", en->url, "/continue_generation",
                              "{}", 2, p->o.check_timeout_s);
}

static void port_engine_woken(struct port_http *p, struct port_engine *en,
                              const struct http_client_event *ev)
{
    char told[512];

    en->wake = 0;
    if (ev->outcome != HTTP_CLIENT_OK) {
        port_engine_told(ev, told, sizeof told);
        port_engine_lose(p, en, 0, 0, "it does not go on when told: %s", told);
    }
}

void port_engine_event(struct port_http *p, struct port_http_call *k,
                       const struct http_client_event *ev)
{
    struct port_engine *en = &p->engines[k->engine];

    if (k == en->leaving) {
        en->leaving = NULL;
        if (ev->outcome != HTTP_CLIENT_OK || (ev->status != 200 && ev->status != 404)) {
            char told[512];
            port_engine_told(ev, told, sizeof told);
            log_warn(ENGINE, "router %s does not let go of %s: %s", p->router, port_engine_name(en),
                     told);
        }
        return;
    }
    if (k == en->health) {
        en->health = NULL;
        port_engine_checked(p, en, ev);
        return;
    }
    if (k != en->call) {
        return; /* an abort, or of a state that has passed */
    }
    en->call = NULL;
    switch (k->kind) {
    case PORT_HTTP_HEALTH: port_engine_probed(p, en, ev); break;
    case PORT_HTTP_INFO: port_engine_informed(p, en, ev); break;
    case PORT_HTTP_TAKE: port_engine_took(p, en, k, ev); break;
    case PORT_HTTP_CHECK: port_engine_proved(p, en, k, ev); break;
    case PORT_HTTP_WAKE: port_engine_woken(p, en, ev); break;
    case PORT_HTTP_JOIN: port_engine_joined(p, en, ev); break;
    case PORT_HTTP_CONTROL: port_engine_controlled(p, en, ev); break;
    default: break;
    }
}

/* What an engine that answers does next. */
static void port_engine_go_on(struct port_http *p, struct port_engine *en, double now)
{
    if (en->control == 1) {
        if (now >= en->next_try) {
            port_engine_control(p, en);
        }
    } else if (en->wake && !p->paused && !p->controlling) {
        port_engine_wake(p, en);
    } else if (en->state == PORT_ENGINE_UP && !p->o.sync) {
        port_engine_enter(p, en, PORT_ENGINE_JOIN);
        en->deadline = now + p->o.request_s;
    } else if ((en->state == PORT_ENGINE_UP && p->version >= 0) || en->state == PORT_ENGINE_TAKE) {
        port_engine_take(p, en, now);
    } else if (en->state == PORT_ENGINE_CHECK) {
        port_engine_check(p, en, now);
    } else if (en->state == PORT_ENGINE_JOIN) {
        port_engine_join(p, en, now);
    } else if (en->state == PORT_ENGINE_READY) {
        port_engine_watch(p, en, now);
    }
}

void port_engine_tick(struct port_http *p, struct port_engine *en, double now)
{
    if (en->state == PORT_ENGINE_FREE) {
        return;
    }
    if (en->removed && (en->load == 0 || !port_engine_is_up(en))) {
        port_engine_clear(p, en);
        return;
    }
    if (en->state == PORT_ENGINE_GONE) {
        return;
    }
    if (en->state == PORT_ENGINE_DOWN) {
        if (now >= en->next_try) {
            port_engine_start(p, en, now);
        }
        return;
    }
    if (!port_engine_alive(p, en)) {
        return;
    }
    if (en->state == PORT_ENGINE_STARTING) {
        port_engine_probe(p, en, now);
    } else if (!en->call && en->state == PORT_ENGINE_INFO) {
        en->call = port_http_send(p, PORT_HTTP_INFO, en->index, "GET", en->url, "/get_server_info",
                                  NULL, 0, p->o.check_timeout_s);
    } else if (!en->call) {
        port_engine_go_on(p, en, now);
    } else if (port_engine_is_up(en)) { /* it was told something: is it still there? */
        port_engine_watch(p, en, now);
    }
}
