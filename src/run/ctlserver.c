/* Owns the requests of operators between the thread that takes them and the one that may answer. */
#include "run/ctlserver.h"

#include <jansson.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/conf.h"
#include "base/mem.h"
#include "base/status.h"
#include "net/http_server.h"
#include "rl/port_http.h"
#include "run/fleetfile.h"

#define CTLSERVER_MOST   64    /* requests that wait for an answer */
#define CTLSERVER_WAIT_S 600.0 /* for it: an optimizer step may be long */
#define CTLSERVER_BODY   65536
#define CTLSERVER_ONE    "/engines/"

struct ctlserver {
    struct ctlserver_opts o;
    struct http_server *s;
    pthread_mutex_t mu;
    struct http_req *waiting[CTLSERVER_MOST]; /* under mu */
    int n, closed;                            /* under mu */
};

/* ---- the server's thread ---- */

static void ctlserver_health(void *arg, struct http_req *r)
{
    (void)arg;
    http_req_reply(r, 200, "application/json", "{\"status\":\"ok\"}", 15);
}

static void ctlserver_queue(void *arg, struct http_req *r)
{
    struct ctlserver *c = arg;
    int taken = 0;

    pthread_mutex_lock(&c->mu);
    if (c->n < CTLSERVER_MOST && !c->closed) {
        c->waiting[c->n++] = r;
        taken = 1;
    }
    pthread_mutex_unlock(&c->mu);
    if (!taken) {
        http_req_fail(r, 503, "the run ends, or %d requests wait already", CTLSERVER_MOST);
    }
}

/* ---- the port's thread ---- */

static void ctlserver_reply(struct http_req *r, int status, json_t *o)
{
    char *text = json_dumps(o, JSON_INDENT(1));

    http_req_reply(r, status, "application/json", text ? text : "{}", text ? strlen(text) : 2);
    free(text);
    json_decref(o);
}

static void ctlserver_fail(struct http_req *r, int rc, const struct err *e)
{
    http_req_fail(r,
                  rc == STATUS_NOTFOUND ? 404
                  : rc == STATUS_AGAIN  ? 503
                  : rc == STATUS_INPUT  ? 400
                                        : 500,
                  "%s", e->msg);
}

/* The engine that the path names, out of port_http_tell's. */
static int ctlserver_named(const struct http_req *r, const json_t *all, const json_t **one,
                           struct err *e)
{
    const char *text = http_req_path(r) + strlen(CTLSERVER_ONE);
    const json_t *x;
    int64_t n;
    size_t i;

    if (conf_parse_int(text, &n) != STATUS_OK) {
        return ERR(e, STATUS_INPUT, "%.40s is no number of an engine", text);
    }
    json_array_foreach(all, i, x)
    {
        if (json_integer_value(json_object_get(x, "engine")) == n) {
            *one = x;
            return STATUS_OK;
        }
    }
    return ERR(e, STATUS_NOTFOUND, "there is no engine %lld", (long long)n);
}

static int ctlserver_add(struct ctlserver *c, struct http_req *r, struct err *e)
{
    size_t len;
    const char *body = http_req_body(r, &len), *url;
    json_t *o = json_loadb(body, len, 0, NULL);
    int rc;

    url = json_string_value(json_object_get(o, "url"));
    if (!url) {
        rc = ERR(e, STATUS_INPUT, "send {\"url\": \"host:port\"}");
    } else if (!c->o.fleetfile) {
        rc = ERR(e, STATUS_INPUT,
                 "this run takes no further engines: start it with --rollout-engines-file");
    } else {
        rc = fleetfile_add(c->o.fleetfile, url, e);
    }
    if (rc == STATUS_OK) {
        ctlserver_reply(r, 202, json_pack("{s:s}", "added", url));
    }
    json_decref(o);
    return rc;
}

static int ctlserver_remove(struct ctlserver *c, struct http_req *r, const json_t *one,
                            struct err *e)
{
    int engine = (int)json_integer_value(json_object_get(one, "engine"));
    const char *url = json_string_value(json_object_get(one, "url"));
    int rc = STATUS_NOTFOUND;

    if (json_is_true(json_object_get(one, "leaving"))) {
        return ERR(e, STATUS_NOTFOUND, "engine %d is leaving already", engine);
    }
    if (c->o.fleetfile && url) {
        rc = fleetfile_drop(c->o.fleetfile, url, e);
    }
    if (rc == STATUS_NOTFOUND) { /* of the run's own, or of its flags */
        rc = port_http_remove(c->o.engines, engine, e);
    }
    if (rc == STATUS_OK) {
        ctlserver_reply(r, 202, json_pack("{s:i}", "removed", engine));
    }
    return rc;
}

static void ctlserver_answer(struct ctlserver *c, struct http_req *r)
{
    const char *method = http_req_method(r);
    int many = strcmp(http_req_path(r), "/engines") == 0, rc = STATUS_OK;
    json_t *all = port_http_tell(c->o.engines);
    const json_t *one = NULL;
    struct err e = {0};

    if (many && strcmp(method, "POST") == 0) {
        rc = ctlserver_add(c, r, &e);
    } else if (many) {
        ctlserver_reply(r, 200, json_pack("{s:O}", "engines", all));
    } else if ((rc = ctlserver_named(r, all, &one, &e)) != STATUS_OK) {
        rc = e.code;
    } else if (strcmp(method, "DELETE") == 0) {
        rc = ctlserver_remove(c, r, one, &e);
    } else {
        ctlserver_reply(r, 200, json_deep_copy(one));
    }
    if (rc != STATUS_OK) {
        ctlserver_fail(r, rc, &e);
    }
    json_decref(all);
}

void ctlserver_attend(struct ctlserver *c)
{
    struct http_req *now[CTLSERVER_MOST];
    int n;

    pthread_mutex_lock(&c->mu);
    n = c->n;
    memcpy(now, c->waiting, sizeof now[0] * (size_t)n);
    c->n = 0;
    pthread_mutex_unlock(&c->mu);
    for (int i = 0; i < n; i++) {
        if (http_req_state(now[i]) == HTTP_REQ_OPEN) {
            ctlserver_answer(c, now[i]);
        } else {
            http_req_cut(now[i]); /* who asked has gone: nothing is done behind their back */
        }
    }
}

/* ---- open and close ---- */

int ctlserver_open(const struct ctlserver_opts *o, struct ctlserver **out, struct err *e)
{
    static const struct http_server_route routes[] = {
        {"GET", "/health", ctlserver_health, 0},
        {"GET", "/api/v1/health", ctlserver_health, 0}, /* as in Miles */
        {"GET", "/engines", ctlserver_queue, 0},
        {"POST", "/engines", ctlserver_queue, 0},
        {"GET", CTLSERVER_ONE "...", ctlserver_queue, 0},
        {"DELETE", CTLSERVER_ONE "...", ctlserver_queue, 0},
    };
    struct ctlserver *c = mem_alloc(sizeof *c);
    struct http_server_opts so = {.port = o->port,
                                  .routes = routes,
                                  .nroutes = sizeof routes / sizeof routes[0],
                                  .arg = c,
                                  .max_body = CTLSERVER_BODY,
                                  .request_s = CTLSERVER_WAIT_S};
    int rc;

    c->o = *o;
    pthread_mutex_init(&c->mu, NULL);
    rc = http_server_start(&c->s, &so, e);
    if (rc == STATUS_OK) {
        *out = c;
    } else {
        ctlserver_close(c);
        err_prefix(e, "--control-server-port");
    }
    return rc;
}

int ctlserver_port(const struct ctlserver *c)
{
    return http_server_port(c->s);
}

void ctlserver_close(struct ctlserver *c)
{
    if (!c) {
        return;
    }
    pthread_mutex_lock(&c->mu);
    for (int i = 0; i < c->n; i++) {
        http_req_fail(c->waiting[i], 503, "the run ends");
    }
    c->n = 0;
    c->closed = 1;
    pthread_mutex_unlock(&c->mu);
    http_server_free(c->s);
    pthread_mutex_destroy(&c->mu);
    mem_free(c);
}
