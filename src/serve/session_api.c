/* Owns the session server: its table of sessions, and requests between agents and engines. The
 * server's thread only finds the session; bodies are read, tokenised and put together by the
 * front's threads; one more thread takes the engines' answers and forgets sessions that nobody
 * uses. */
#include "serve/session_api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/proc.h"
#include "base/status.h"
#include "net/http_client.h"
#include "net/http_req.h"
#include "serve/front.h"
#include "serve/jfield.h"
#include "serve/session_api_int.h"

enum { FRONT_THREADS = 2, TRIES = 4, OPEN_MAX = 64 << 10 /* bytes of a POST /sessions */ };

/* ---- the table ---- */

static struct session_api_entry **slot_of(struct session_api *a, const char *id)
{
    uint32_t h = 2166136261u;
    struct session_api_entry **at;

    for (const char *p = id; *p; p++) {
        h = (h ^ (unsigned char)*p) * 16777619u;
    }
    at = &a->table[h % SESSION_API_BUCKETS];
    while (*at && strcmp((*at)->id, id) != 0) {
        at = &(*at)->next;
    }
    return at;
}

static void entry_drop(struct session_api_entry *in)
{
    if (in && atomic_fetch_sub(&in->refs, 1) == 1) {
        session_free(in->s);
        json_decref(in->params);
        pthread_mutex_destroy(&in->mu);
        mem_free(in);
    }
}

/* The session of that name with a reference, or NULL. */
static struct session_api_entry *entry_find(struct session_api *a, const char *id)
{
    struct session_api_entry *in;

    pthread_mutex_lock(&a->mu);
    in = *slot_of(a, id);
    if (in) {
        atomic_fetch_add(&in->refs, 1);
        in->used = proc_now();
    }
    pthread_mutex_unlock(&a->mu);
    return in;
}

/* Takes it out of the table; what still uses it learns that it is gone. Under a->mu. */
static void entry_remove(struct session_api *a, struct session_api_entry **at)
{
    struct session_api_entry *in = *at;

    *at = in->next;
    a->nsessions--;
    pthread_mutex_lock(&in->mu);
    in->deleted = 1;
    pthread_mutex_unlock(&in->mu);
    entry_drop(in);
}

static void forget_idle(struct session_api *a)
{
    double now = proc_now();

    pthread_mutex_lock(&a->mu);
    for (int i = 0; i < SESSION_API_BUCKETS; i++) {
        struct session_api_entry **at = &a->table[i];
        while (*at) {
            if (atomic_load(&(*at)->refs) == 1 && now - (*at)->used > a->o.idle_s) {
                a->expired++;
                entry_remove(a, at);
            } else {
                at = &(*at)->next;
            }
        }
    }
    pthread_mutex_unlock(&a->mu);
}

/* ---- calls ---- */

static void call_drop(struct session_api_call *c)
{
    if (atomic_fetch_sub(&c->refs, 1) == 1) {
        entry_drop(c->in);
        json_decref(c->body);
        session_ask_fini(&c->ask);
        buf_fini(&c->reply);
        mem_free(c->type);
        mem_free(c->error);
        mem_free(c);
    }
}

/* The client has its answer, or has left: what the engines still do for it is ended. */
static void on_done(void *arg, struct http_req *r, enum http_req_end how)
{
    struct session_api_call *c = arg;
    uint64_t id;

    (void)r;
    pthread_mutex_lock(&c->a->mu);
    c->gone = how != HTTP_REQ_SENT;
    id = c->gone ? c->id : 0;
    pthread_mutex_unlock(&c->a->mu);
    if (id) {
        http_client_cancel(c->a->client, id);
    }
    call_drop(c);
}

static struct session_api_call *call_new(struct session_api *a, struct http_req *r,
                                         enum session_api_kind kind, struct session_api_entry *in)
{
    struct session_api_call *c = mem_alloc(sizeof *c);

    c->a = a;
    c->r = r;
    c->kind = kind;
    c->in = in;
    atomic_init(&c->refs, 2); /* the owner's and on_done's */
    buf_init(&c->reply, (size_t)1 << 30);
    http_req_on_done(r, on_done, c);
    return c;
}

static void count_refused(struct session_api *a, int http)
{
    pthread_mutex_lock(&a->mu);
    a->refused[http / 100 < 6 ? http / 100 : 5]++;
    pthread_mutex_unlock(&a->mu);
}

void session_api_done(struct session_api_call *c)
{
    call_drop(c);
}

void session_api_fail(struct session_api_call *c, int http, const char *msg)
{
    count_refused(c->a, http);
    http_req_fail(c->r, http, "%s", msg);
    call_drop(c);
}

int session_api_send(struct session_api_call *c, const char *method, const char *path,
                     const char *body, size_t len, struct err *e)
{
    struct session_api *a = c->a;
    const char *type = http_req_header(c->r, "Content-Type");
    struct http_header h[3] = {{"Content-Type", type ? type : "application/json"}};
    char url[4096];
    struct http_client_request q = {.method = method,
                                    .url = url,
                                    .headers = h,
                                    .body = len ? body : NULL,
                                    .len = len,
                                    .total_s = a->o.request_s,
                                    .tries = c->kind == SESSION_API_CHAT ? TRIES : 1,
                                    .idempotent = c->kind == SESSION_API_CHAT,
                                    .user = c};
    uint64_t id = 0;
    int n = 1, rc;

    if ((size_t)snprintf(url, sizeof url, "%s%s", a->upstream, path) >= sizeof url) {
        return ERR(e, STATUS_INPUT, "the address is too long");
    }
    if (c->in) {
        h[n++] = (struct http_header){"X-SMG-Routing-Key", c->in->id};
    }
    if (a->key_header) {
        h[n++] = (struct http_header){"Authorization", a->key_header};
    }
    q.nheaders = n;
    pthread_mutex_lock(&a->mu); /* also against its own end, which may come at once */
    rc = a->stop ? ERR(e, STATUS_FAIL, "the session server ends")
                 : http_client_start(a->client, &q, &id, e);
    c->id = id;
    if (id && c->gone) {
        http_client_cancel(a->client, id);
    }
    pthread_mutex_unlock(&a->mu);
    return rc;
}

/* ---- what the engines say ---- */

static void proxy_finish(struct session_api_call *c)
{
    struct http_req_answer to = {.status = c->status, .type = c->type};

    if (c->failed) {
        session_api_fail(c, 502, c->error);
        return;
    }
    http_req_reply_buf(c->r, &to, &c->reply);
    call_drop(c);
}

static void call_finish(void *arg)
{
    struct session_api_call *c = arg;

    if (c->kind == SESSION_API_CHAT) {
        session_chat_finish(c);
    } else {
        proxy_finish(c);
    }
}

static void take(struct session_api *a, struct http_client_event *ev)
{
    struct session_api_call *c = ev->user;
    const char *type = http_client_header(ev, "Content-Type");

    pthread_mutex_lock(&a->mu); /* whoever sent it is done with it */
    pthread_mutex_unlock(&a->mu);
    c->failed = ev->outcome != HTTP_CLIENT_OK;
    c->status = ev->status >= 200 ? ev->status : 502;
    c->error = mem_strdup(ev->error ? ev->error : "");
    c->type = type ? mem_strdup(type) : NULL;
    buf_add(&c->reply, ev->data ? ev->data : "", ev->len);
    http_client_release(a->client, ev);
    front_run(a->front, call_finish, c);
}

static void *taker(void *arg)
{
    struct session_api *a = arg;
    double swept = proc_now();
    int stop = 0;

    while (!stop || http_client_running(a->client)) {
        struct http_client_event *ev = http_client_take(a->client, 0.2);
        if (ev) {
            take(a, ev);
        }
        if (proc_now() - swept > 1.0) {
            swept = proc_now();
            forget_idle(a);
        }
        pthread_mutex_lock(&a->mu);
        stop = a->stop;
        pthread_mutex_unlock(&a->mu);
    }
    return NULL;
}

/* ---- handlers ---- */

static void on_health(void *arg, struct http_req *r)
{
    struct session_api *a = arg;
    int n;

    pthread_mutex_lock(&a->mu);
    n = a->nsessions;
    pthread_mutex_unlock(&a->mu);
    jfield_reply(r, 200, json_pack("{s:s,s:i}", "status", "ok", "sessions", n));
}

static void on_metrics(void *arg, struct http_req *r)
{
    struct session_api *a = arg;
    struct buf b;
    struct http_req_answer to = {.status = 200, .type = "text/plain; version=0.0.4"};

    buf_init(&b, 1 << 16);
    pthread_mutex_lock(&a->mu);
    buf_printf(&b,
               "miles_session_open %d\nmiles_session_opened_total %llu\n"
               "miles_session_expired_total %llu\nmiles_session_turns_total %llu\n"
               "miles_session_tokens_total %llu\nmiles_session_samples_total %llu\n"
               "miles_session_mismatched_samples_total %llu\n"
               "miles_session_refused_total{class=\"4xx\"} %llu\n"
               "miles_session_refused_total{class=\"5xx\"} %llu\n",
               a->nsessions, (unsigned long long)a->opened, (unsigned long long)a->expired,
               (unsigned long long)a->turns, (unsigned long long)a->sampled,
               (unsigned long long)a->samples, (unsigned long long)a->mismatched,
               (unsigned long long)a->refused[4], (unsigned long long)a->refused[5]);
    pthread_mutex_unlock(&a->mu);
    http_req_reply_buf(r, &to, &b);
    buf_fini(&b);
}

static void refuse(struct session_api *a, struct http_req *r, int http, const char *msg)
{
    count_refused(a, http);
    http_req_fail(r, http, "%s", msg);
}

/* A name of 32 hexadecimal digits. */
static int draw_name(char *id)
{
    uint8_t raw[16];

    if (getrandom(raw, sizeof raw, 0) != (ssize_t)sizeof raw) {
        return 0;
    }
    for (int i = 0; i < 16; i++) {
        snprintf(id + 2 * i, 3, "%02x", raw[i]);
    }
    return 1;
}

static int read_open(const struct http_req *r, struct session_api_entry *in, struct err *e)
{
    json_t *body = NULL;
    const json_t *params;
    int64_t seed = 0;
    size_t n;
    int rc;

    http_req_body(r, &n);
    if (n > OPEN_MAX) {
        return ERR(e, STATUS_INPUT, "the body has more than %d bytes", OPEN_MAX);
    }
    rc = jfield_body(r, 1, &body, e);
    if (rc != STATUS_OK) {
        return rc;
    }
    params = jfield_get(body, "sampling_params");
    rc = jfield_int(body, "seed", INT64_MIN, INT64_MAX, &seed, e);
    if (rc == STATUS_OK && params && !json_is_object(params)) {
        rc = ERR(e, STATUS_INPUT, "sampling_params is not an object");
    }
    in->params = rc == STATUS_OK ? json_incref((json_t *)params) : NULL;
    in->seed = (uint64_t)seed;
    in->seeded = jfield_get(body, "seed") != NULL;
    json_decref(body);
    return rc;
}

static void on_open(void *arg, struct http_req *r)
{
    struct session_api *a = arg;
    struct session_api_entry *in = mem_alloc(sizeof *in);
    struct err e = {0};
    int full, bad;

    atomic_init(&in->refs, 1);
    pthread_mutex_init(&in->mu, NULL);
    in->s = session_new(&a->o.env);
    in->used = proc_now();
    bad = read_open(r, in, &e) != STATUS_OK || !draw_name(in->id);
    pthread_mutex_lock(&a->mu);
    full = a->nsessions >= a->o.max_sessions;
    if (!full && !bad) {
        struct session_api_entry **at = slot_of(a, in->id);
        in->next = *at;
        *at = in;
        a->nsessions++;
        a->opened++;
        atomic_fetch_add(&in->refs, 1); /* for the answer below */
    }
    pthread_mutex_unlock(&a->mu);
    if (bad) {
        refuse(a, r, e.code ? 400 : 500, e.code ? e.msg : "the system gave no random name");
    } else if (full) {
        refuse(a, r, 503, "too many sessions are open");
    } else {
        jfield_reply(r, 200, json_pack("{s:s}", "session_id", in->id));
    }
    entry_drop(in);
}

static void show(struct session_api *a, struct http_req *r, struct session_api_entry *in)
{
    json_t *o;

    pthread_mutex_lock(&in->mu);
    o = session_show(in->s);
    json_object_set_new(o, "tokens", json_integer(session_tokens(in->s)));
    pthread_mutex_unlock(&in->mu);
    json_object_set_new(o, "session_id", json_string(in->id));
    json_object_set_new(o, "version", json_string(a->o.env.tree ? "v2" : "v1"));
    jfield_reply(r, 200, o);
}

static void on_delete(struct session_api *a, struct http_req *r, const char *id)
{
    struct session_api_entry **at;

    pthread_mutex_lock(&a->mu);
    at = slot_of(a, id);
    if (*at) {
        entry_remove(a, at);
    }
    pthread_mutex_unlock(&a->mu);
    http_req_reply(r, 204, NULL, "", 0);
}

struct collecting {
    struct session_api *a;
    struct session_api_entry *in;
    struct http_req *r;
};

static void count_samples(struct session_api *a, const struct session_sample *list, int n)
{
    pthread_mutex_lock(&a->mu);
    a->samples += (uint64_t)n;
    for (int i = 0; i < n; i++) {
        a->mismatched += json_is_string(json_object_get(list[i].meta, "mismatch"));
    }
    pthread_mutex_unlock(&a->mu);
}

/* On a front thread: the audit tokenises whole conversations. */
static void collect(void *arg)
{
    struct collecting *k = arg;
    struct http_req_answer to = {.status = 200, .type = "application/octet-stream"};
    struct session_sample *list = NULL;
    struct err e = {0};
    struct buf b;
    json_t *body = NULL;
    int n = 0, all = 0, http = 400;

    buf_init(&b, (size_t)1 << 30);
    if (jfield_body(k->r, 1, &body, &e) == STATUS_OK &&
        jfield_bool(body, "all", &all, &e) == STATUS_OK) {
        pthread_mutex_lock(&k->in->mu);
        http = session_samples(k->in->s, all, &list, &n, &e);
        pthread_mutex_unlock(&k->in->mu);
    }
    if (http == 200 && session_blob(list, n, k->a->o.env.tree ? "v2" : "v1", &b, &e)) {
        http = 500;
    }
    if (http == 200) {
        count_samples(k->a, list, n);
        http_req_reply_buf(k->r, &to, &b);
    } else {
        refuse(k->a, k->r, http, e.msg);
    }
    session_samples_free(list, n);
    entry_drop(k->in);
    json_decref(body);
    buf_fini(&b);
    mem_free(k);
}

static void proxy(struct session_api *a, struct http_req *r, struct session_api_entry *in,
                  const char *path)
{
    struct session_api_call *c = call_new(a, r, SESSION_API_PROXY, in);
    struct err e = {0};
    size_t n;
    const char *body = http_req_body(r, &n);

    if (session_api_send(c, http_req_method(r), path, body, n, &e) != STATUS_OK) {
        session_api_fail(c, 502, e.msg);
    }
}

/* What is asked of one session: the path behind its name. Takes the reference. */
static void on_path(struct session_api *a, struct http_req *r, struct session_api_entry *in,
                    const char *path)
{
    const char *method = http_req_method(r);
    int post = strcmp(method, "POST") == 0;

    if (post && strcmp(path, "/v1/chat/completions") == 0) {
        front_run(a->front, session_chat_prepare, call_new(a, r, SESSION_API_CHAT, in));
    } else if (post && strcmp(path, "/samples") == 0) {
        struct collecting *k = mem_alloc(sizeof *k);
        *k = (struct collecting){a, in, r};
        front_run(a->front, collect, k);
    } else if (*path == '/' && path[1]) {
        proxy(a, r, in, path);
    } else {
        if (strcmp(method, "GET") == 0) {
            show(a, r, in);
        } else if (strcmp(method, "DELETE") == 0) {
            on_delete(a, r, in->id);
        } else {
            refuse(a, r, 405, "a session can be read and deleted");
        }
        entry_drop(in);
    }
}

static void on_session(void *arg, struct http_req *r)
{
    struct session_api *a = arg;
    const char *name = http_req_target(r) + strlen("/sessions/");
    size_t n = strcspn(name, "/?");
    struct session_api_entry *in = NULL;
    char id[SESSION_API_ID + 1];

    if (n <= SESSION_API_ID) {
        memcpy(id, name, n);
        id[n] = 0;
        in = entry_find(a, id);
    }
    if (!in) {
        refuse(a, r, 404, "there is no such session");
        return;
    }
    on_path(a, r, in, name + n);
}

static void on_other(void *arg, struct http_req *r)
{
    proxy(arg, r, NULL, http_req_target(r));
}

/* ---- the server ---- */

static const struct http_server_route routes[] = {
    {"GET", "/health", on_health, HTTP_SERVER_OPEN},
    {"GET", "/metrics", on_metrics, HTTP_SERVER_OPEN},
    {"POST", "/sessions", on_open, 0},
    {"*", "/sessions/...", on_session, 0},
    {"*", "/...", on_other, 0},
};

static void set_defaults(struct session_api *a)
{
    struct session_api_opts *o = &a->o;

    o->max_sessions = o->max_sessions ? o->max_sessions : 4096;
    o->idle_s = o->idle_s > 0 ? o->idle_s : 3600;
    o->request_s = o->request_s > 0 ? o->request_s : 600;
    o->env.max_tokens = o->env.max_tokens ? o->env.max_tokens : 1 << 20;
    o->env.max_bytes = o->env.max_bytes ? o->env.max_bytes : (size_t)64 << 20;
    o->http.request_s = o->http.request_s > 0 ? o->http.request_s : o->request_s + 30;
    o->http.max_body = o->http.max_body ? o->http.max_body : (size_t)16 << 20;
    o->http.routes = routes;
    o->http.nroutes = (int)(sizeof routes / sizeof routes[0]);
    o->http.arg = a;
}

int session_api_start(const struct session_api_opts *o, struct session_api **out, struct err *e)
{
    struct session_api *a = mem_alloc(sizeof *a);
    int rc;

    a->o = *o;
    set_defaults(a);
    pthread_mutex_init(&a->mu, NULL);
    a->upstream = mem_strdup(o->upstream);
    a->model = mem_strdup(o->model ? o->model : "default");
    if (o->upstream_key) {
        size_t n = strlen(o->upstream_key) + 8;
        a->key_header = mem_alloc(n);
        snprintf(a->key_header, n, "Bearer %s", o->upstream_key);
    }
    for (size_t n = strlen(a->upstream); n && a->upstream[n - 1] == '/'; n--) {
        a->upstream[n - 1] = 0;
    }
    a->front = front_new(FRONT_THREADS);
    rc = http_client_new(&a->client, &(struct http_client_opts){0}, e);
    if (rc == STATUS_OK) {
        a->taking = pthread_create(&a->taker, NULL, taker, a) == 0;
        rc = a->taking ? http_server_start(&a->http, &a->o.http, e)
                       : ERR(e, STATUS_NOMEM, "no thread for sessions");
    }
    if (rc != STATUS_OK) {
        session_api_stop(a);
        return rc;
    }
    *out = a;
    return STATUS_OK;
}

int session_api_port(const struct session_api *a)
{
    return http_server_port(a->http);
}

int session_api_drain(struct session_api *a, double wait_s)
{
    return http_server_drain(a->http, wait_s);
}

void session_api_stop(struct session_api *a)
{
    if (!a) {
        return;
    }
    if (a->http) {
        http_server_drain(a->http, 0); /* cuts what runs: its calls are cancelled */
    }
    pthread_mutex_lock(&a->mu);
    a->stop = 1;
    pthread_mutex_unlock(&a->mu);
    if (a->taking) {
        pthread_join(a->taker, NULL);
    }
    front_free(a->front); /* what the engines said is answered first */
    http_client_free(a->client);
    http_server_free(a->http);
    for (int i = 0; i < SESSION_API_BUCKETS; i++) {
        while (a->table[i]) {
            entry_remove(a, &a->table[i]);
        }
    }
    mem_free(a->upstream);
    mem_free(a->key_header);
    mem_free(a->model);
    pthread_mutex_destroy(&a->mu);
    mem_free(a);
}
