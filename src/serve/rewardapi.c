/* Owns the way between HTTP requests and a reward hub. Requests are read on the server's thread and
 * put into an inbox; the hub's own thread takes them from there, submits their samples, and answers
 * when the last result of a request has come. */
#include "serve/rewardapi.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/proc.h"
#include "base/status.h"
#include "net/http_req.h"
#include "serve/jfield.h"

/* Bytes of the bodies of all samples that wait or are scored: parsed, they take some times more. */
static const size_t QUEUED_BYTES = (size_t)128 << 20;

enum { BATCH_MAX = 1024, DEFAULT_QUEUED = 1024, MAX_QUEUED = 4096, ID_BITS = 12 };

/* A request with its samples. */
struct job {
    struct job *next;
    struct http_req *r;
    json_t *samples; /* list */
    int n, sent, left;
    int batch, slot;
    size_t bytes; /* of its body */
    double start;
    struct hub_result *results; /* (n) */
};

struct figures {
    uint64_t requests, samples, refused, classes[HUB_NCLASSES];
    double seconds; /* of answered requests, from their arrival */
    int restarts;
};

struct rewardapi {
    struct http_server *http;
    struct hub *hub;
    pthread_t thread;
    int max_queued, group, keyed, running;

    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t more;  /* the inbox has something, or the hub is open, or stop */
    struct job *inbox, *inbox_last;
    int queued; /* samples taken and not answered */
    size_t queued_bytes;
    int stop, opened, closed, open_rc;
    struct err open_err;
    struct figures f;
    const struct hub_opts *hub_opts;

    struct job *jobs[MAX_QUEUED]; /* in the hub, by slot; the hub's thread only */
    struct job *wait, *wait_last; /* taken from the inbox, not wholly submitted */
};

/* ---- answers ---- */

static int is_ours_to_blame(enum hub_class c)
{
    return c == HUB_LATE || c == HUB_BROKEN;
}

/* The number under the reward key where there is one, else all of a dict. */
static json_t *reward_json(const struct rewardapi *a, const struct hub_result *r)
{
    return r->raw && !a->keyed ? json_incref(r->raw) : json_real(r->reward);
}

/* Text that a header may have. */
static void header_text(char *out, size_t size, const char *s)
{
    size_t n = 0;

    for (; *s && n + 1 < size; s++) {
        if (((unsigned char)*s & 0xc0) != 0x80) {
            out[n++] = *s >= ' ' && *s < 127 ? *s : '?';
        }
    }
    out[n] = 0;
}

static void answer(struct http_req *r, const struct http_req_answer *a, json_t *body)
{
    char *text = json_dumps(body, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
    struct buf b;

    json_decref(body);
    buf_init(&b, (size_t)1 << 30);
    buf_str(&b, text ? text : "");
    free(text);
    if (b.len && buf_status(&b) == 0) {
        http_req_reply_buf(r, a, &b);
    } else {
        http_req_fail(r, 500, "no memory for the answer");
    }
    buf_fini(&b);
}

static void answer_one(const struct rewardapi *a, struct job *j)
{
    const struct hub_result *v = &j->results[0];
    char reason[256];
    struct http_header h[] = {{"X-Reward-Reason", reason}, {"X-Reward-Class", NULL}};
    struct http_req_answer to = {200, "application/json", h, 2};

    header_text(reason, sizeof reason, v->reason);
    h[1].value = hub_class_name(v->why);
    if (v->failed) {
        to.status = is_ours_to_blame(v->why) ? 500 : 422;
        answer(j->r, &to,
               json_pack("{s:b,s:s,s:s}", "failed", 1, "reason", v->reason, "class", h[1].value));
    } else {
        answer(j->r, &to, reward_json(a, v));
    }
}

static void answer_batch(const struct rewardapi *a, struct job *j)
{
    struct http_req_answer to = {200, "application/json", NULL, 0};
    json_t *list = json_array();

    for (int i = 0; i < j->n; i++) {
        const struct hub_result *v = &j->results[i];
        json_array_append_new(list, json_pack("{s:o,s:b,s:s,s:s}", "reward",
                                              v->failed ? json_null() : reward_json(a, v), "failed",
                                              v->failed, "reason", v->reason, "class",
                                              hub_class_name(v->why)));
    }
    answer(j->r, &to, json_pack("{s:o}", "results", list));
}

static void free_job(struct job *j)
{
    for (int i = 0; i < j->n; i++) {
        json_decref(j->results[i].raw);
    }
    json_decref(j->samples);
    mem_free(j->results);
    mem_free(j);
}

/* ---- requests ---- */

/* Refuses what is no sample, so that the hub sees only what a reward could be had for. */
static int check_sample(const json_t *s, struct err *e)
{
    if (!json_is_object(s)) {
        return ERR(e, STATUS_INPUT, "a sample must be a JSON object");
    }
    if (!json_is_string(json_object_get(s, "response"))) {
        return ERR(e, STATUS_INPUT, "response is missing or no text");
    }
    return STATUS_OK;
}

/* The samples of a body; *out is the caller's. */
static int read_samples(const struct http_req *r, int batch, json_t **out, struct err *e)
{
    size_t n, i;
    const char *text = http_req_body(r, &n);
    json_error_t je;
    json_t *body = json_loadb(text, n, 0, &je), *list, *s;
    int rc = STATUS_OK;

    if (!body) {
        return ERR(e, STATUS_INPUT, "the body is not JSON: line %d column %d: %s", je.line,
                   je.column, je.text);
    }
    if (batch) {
        list = json_is_object(body) ? json_object_get(body, "samples") : body;
        list = json_is_array(list) ? json_incref(list) : NULL;
    } else {
        list = json_array();
        json_array_append(list, body);
    }
    json_decref(body);
    if (!list) {
        return ERR(e, STATUS_INPUT, "a batch is a list of samples, or {\"samples\": [...]}");
    }
    if (json_array_size(list) > BATCH_MAX) {
        rc = ERR(e, STATUS_INPUT, "%zu samples in a batch: at most %d are taken",
                 json_array_size(list), (int)BATCH_MAX);
    }
    json_array_foreach(list, i, s)
    {
        rc = rc == STATUS_OK ? check_sample(s, e) : rc;
        if (rc != STATUS_OK && batch && json_array_size(list) <= BATCH_MAX) {
            err_prefix(e, "sample %zu", i);
            break;
        }
    }
    if (rc != STATUS_OK) {
        json_decref(list);
        return rc;
    }
    *out = list;
    return STATUS_OK;
}

static void refuse_full(struct http_req *r, int queued)
{
    static const struct http_header h[] = {{"Retry-After", "1"}};
    struct http_req_answer a = {503, "application/json", h, 1};

    answer(r, &a,
           json_pack("{s:b,s:o,s:s}", "failed", 1, "reason",
                     json_sprintf("%d samples wait already: try again later", queued), "class",
                     "full"));
}

static void take(struct rewardapi *a, struct http_req *r, int batch)
{
    struct err e = {0};
    json_t *samples = NULL;
    struct job *j;
    int full, queued;

    if (read_samples(r, batch, &samples, &e) != STATUS_OK) {
        http_req_fail(r, 400, "%s", e.msg);
        return;
    }
    j = mem_alloc(sizeof *j);
    j->r = r;
    j->samples = samples;
    j->n = j->left = (int)json_array_size(samples);
    j->batch = batch;
    http_req_body(r, &j->bytes);
    j->start = proc_now();
    j->results = mem_alloc(sizeof *j->results * (size_t)(j->n + 1));
    pthread_mutex_lock(&a->lock);
    a->f.requests++;
    queued = a->queued;
    full = queued && (queued + j->n > a->max_queued || a->queued_bytes + j->bytes > QUEUED_BYTES);
    if (full) {
        a->f.refused++;
    } else {
        a->queued += j->n;
        a->queued_bytes += j->bytes;
        a->f.samples += (uint64_t)j->n;
        if (a->inbox_last) {
            a->inbox_last->next = j;
        } else {
            a->inbox = j;
        }
        a->inbox_last = j;
        pthread_cond_signal(&a->more);
    }
    pthread_mutex_unlock(&a->lock);
    if (full) {
        refuse_full(r, queued);
        free_job(j);
    } else {
        hub_wake(a->hub);
    }
}

static void on_reward(void *arg, struct http_req *r)
{
    take(arg, r, 0);
}

static void on_batch(void *arg, struct http_req *r)
{
    take(arg, r, 1);
}

static void on_health(void *arg, struct http_req *r)
{
    struct rewardapi *a = arg;
    int stop;

    pthread_mutex_lock(&a->lock);
    stop = a->stop;
    pthread_mutex_unlock(&a->lock);
    if (stop) {
        http_req_fail(r, 503, "the server is stopping");
    } else {
        http_req_reply(r, 200, "application/json", "{\"status\":\"ok\"}", 15);
    }
}

static void on_metrics(void *arg, struct http_req *r)
{
    struct rewardapi *a = arg;
    struct http_req_answer ans = {200, "text/plain; version=0.0.4", NULL, 0};
    struct figures f;
    struct buf b;
    int queued;

    pthread_mutex_lock(&a->lock);
    f = a->f;
    queued = a->queued;
    pthread_mutex_unlock(&a->lock);
    buf_init(&b, 1 << 16);
    buf_printf(&b, "# TYPE miles_reward_requests_total counter\nmiles_reward_requests_total %llu\n",
               (unsigned long long)f.requests);
    buf_printf(&b, "# TYPE miles_reward_samples_total counter\nmiles_reward_samples_total %llu\n",
               (unsigned long long)f.samples);
    buf_printf(&b, "# TYPE miles_reward_refused_total counter\nmiles_reward_refused_total %llu\n",
               (unsigned long long)f.refused);
    buf_printf(&b, "# TYPE miles_reward_queued gauge\nmiles_reward_queued %d\n", queued);
    buf_printf(&b, "# TYPE miles_reward_seconds_total counter\nmiles_reward_seconds_total %.6f\n",
               f.seconds);
    buf_printf(&b,
               "# TYPE miles_reward_worker_restarts_total counter\n"
               "miles_reward_worker_restarts_total %d\n",
               f.restarts);
    buf_str(&b, "# TYPE miles_reward_results_total counter\n");
    for (int i = 0; i < HUB_NCLASSES; i++) {
        buf_printf(&b, "miles_reward_results_total{class=\"%s\"} %llu\n",
                   hub_class_name((enum hub_class)i), (unsigned long long)f.classes[i]);
    }
    http_req_reply_buf(r, &ans, &b);
    buf_fini(&b);
}

/* ---- the hub's thread ---- */

/* Answers a request whose last result has come. */
static void finish(struct rewardapi *a, struct job *j)
{
    pthread_mutex_lock(&a->lock);
    a->queued -= j->n;
    a->queued_bytes -= j->bytes;
    a->f.seconds += proc_now() - j->start;
    a->f.restarts = hub_restarts(a->hub);
    for (int i = 0; i < j->n; i++) {
        a->f.classes[j->results[i].why]++;
    }
    pthread_mutex_unlock(&a->lock);
    if (j->batch) {
        answer_batch(a, j);
    } else {
        answer_one(a, j);
    }
    if (j->slot >= 0) {
        a->jobs[j->slot] = NULL;
    }
    free_job(j);
}

static int free_slot(const struct rewardapi *a)
{
    for (int i = 0; i < MAX_QUEUED; i++) {
        if (!a->jobs[i]) {
            return i;
        }
    }
    return -1;
}

static void set_failed(struct job *j, int i, const char *why)
{
    j->results[i].failed = 1;
    j->results[i].why = HUB_BROKEN;
    snprintf(j->results[i].reason, sizeof j->results[i].reason, "%.200s", why);
    j->left--;
}

/* Submits what is not yet in the hub of a request. 1 when all of it is, 0 when there is no room. */
static int submit(struct rewardapi *a, struct job *j)
{
    int group = a->group && j->batch;
    struct err e = {0};

    while (j->sent < j->n) {
        struct hub_request q = {((int64_t)j->slot << ID_BITS) + j->sent,
                                group ? j->samples : json_array_get(j->samples, (size_t)j->sent)};
        int rc = hub_submit(a->hub, &q, &e);
        if (rc == STATUS_AGAIN) {
            return 0;
        }
        for (int i = 0; rc != STATUS_OK && i < (group ? j->n : 1); i++) {
            set_failed(j, j->sent + i, e.msg);
        }
        j->sent += group ? j->n : 1;
    }
    return 1;
}

/* Gives the hub what waits, as far as it takes it. */
static void submit_waiting(struct rewardapi *a)
{
    while (a->wait) {
        struct job *j = a->wait;
        if (j->slot < 0 && j->n > 0) {
            j->slot = free_slot(a);
            if (j->slot < 0) {
                return;
            }
            a->jobs[j->slot] = j;
        }
        if (!submit(a, j)) {
            return;
        }
        a->wait = j->next;
        a->wait_last = a->wait ? a->wait_last : NULL;
        j->next = NULL;
        if (j->left == 0) {
            finish(a, j);
        }
    }
}

/* Moves the inbox behind what waits; waits for one to come when there is nothing to do. 0 at the
 * end. */
static int take_inbox(struct rewardapi *a)
{
    int go_on;

    pthread_mutex_lock(&a->lock);
    while (!a->inbox && !a->stop && !a->wait && hub_pending(a->hub) == 0) {
        pthread_cond_wait(&a->more, &a->lock);
    }
    for (struct job *j = a->inbox; j; j = j->next) {
        j->slot = -1;
    }
    if (a->inbox && a->wait_last) {
        a->wait_last->next = a->inbox;
    } else if (a->inbox) {
        a->wait = a->inbox;
    }
    a->wait_last = a->inbox ? a->inbox_last : a->wait_last;
    a->inbox = a->inbox_last = NULL;
    go_on = !a->stop;
    pthread_mutex_unlock(&a->lock);
    return go_on;
}

static void take_results(struct rewardapi *a)
{
    struct hub_result r;
    struct err e = {0};
    double wait_s = 1.0;
    int rc;

    while ((rc = hub_poll(a->hub, wait_s, &r, &e)) == STATUS_OK) {
        struct job *j = a->jobs[r.id >> ID_BITS];
        j->results[r.id & ((1 << ID_BITS) - 1)] = r;
        j->left--;
        if (j->left == 0 && j->sent == j->n) {
            finish(a, j);
        }
        wait_s = 0;
    }
    if (rc < 0) {
        log_error(REWARD, "the hub failed: %s", e.msg);
    }
}

static void drop(struct job *j)
{
    while (j) {
        struct job *next = j->next;
        http_req_fail(j->r, 503, "the server is stopping");
        free_job(j);
        j = next;
    }
}

static void *thread_main(void *arg)
{
    struct rewardapi *a = arg;
    struct err e = {0};
    int rc = hub_open(a->hub_opts, &a->hub, &e);

    pthread_mutex_lock(&a->lock);
    a->opened = 1;
    a->open_rc = rc;
    a->open_err = e;
    pthread_cond_broadcast(&a->more);
    pthread_mutex_unlock(&a->lock);
    while (rc == STATUS_OK && take_inbox(a)) {
        submit_waiting(a);
        take_results(a);
    }
    /* what is left was cut by the server already, or the server is not drained */
    for (struct job *j = a->wait; j; j = j->next) {
        if (j->slot >= 0) {
            a->jobs[j->slot] = NULL;
        }
    }
    drop(a->wait);
    for (int i = 0; i < MAX_QUEUED; i++) {
        drop(a->jobs[i]);
    }
    pthread_mutex_lock(&a->lock);
    drop(a->inbox);
    a->inbox = NULL;
    a->closed = 1;
    pthread_mutex_unlock(&a->lock);
    hub_close(a->hub);
    return NULL;
}

/* ---- public ---- */

static int open_hub(struct rewardapi *a, struct err *e)
{
    int rc = pthread_create(&a->thread, NULL, thread_main, a);

    if (rc != 0) {
        return ERR(e, STATUS_NOMEM, "no thread for rewards: %s", strerror(rc));
    }
    a->running = 1;
    pthread_mutex_lock(&a->lock);
    while (!a->opened) {
        pthread_cond_wait(&a->more, &a->lock);
    }
    if (a->open_rc != STATUS_OK && e) {
        *e = a->open_err;
    }
    rc = a->open_rc;
    pthread_mutex_unlock(&a->lock);
    return rc;
}

int rewardapi_start(const struct rewardapi_opts *o, struct rewardapi **out, struct err *e)
{
    static const struct http_server_route routes[] = {
        {"POST", "/", on_reward, 0},
        {"POST", "/reward", on_reward, 0},
        {"POST", "/batch", on_batch, 0},
        {"GET", "/health", on_health, HTTP_SERVER_OPEN},
        {"GET", "/metrics", on_metrics, HTTP_SERVER_OPEN},
    };
    struct http_server_opts http = o->http;
    struct hub_opts hub = o->hub;
    struct rewardapi *a = mem_alloc(sizeof *a);
    int rc;

    a->max_queued = o->max_queued > 0 ? o->max_queued : DEFAULT_QUEUED;
    a->max_queued = a->max_queued < MAX_QUEUED ? a->max_queued : MAX_QUEUED;
    a->group = o->group;
    a->keyed = hub.reward_key && *hub.reward_key;
    hub.shared = 1;
    hub.keep_dict = 1;
    hub.sample_functions = 0; /* what a client sends is never a program to run here */
    a->hub_opts = &hub;
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->more, NULL);
    http.routes = routes;
    http.nroutes = sizeof routes / sizeof *routes;
    http.arg = a;
    rc = open_hub(a, e);
    if (rc == STATUS_OK) {
        rc = http_server_start(&a->http, &http, e);
    }
    a->hub_opts = NULL;
    if (rc != STATUS_OK) {
        rewardapi_stop(a);
        return rc;
    }
    *out = a;
    return STATUS_OK;
}

int rewardapi_port(const struct rewardapi *a)
{
    return http_server_port(a->http);
}

int rewardapi_drain(struct rewardapi *a, double wait_s)
{
    return http_server_drain(a->http, wait_s);
}

void rewardapi_stop(struct rewardapi *a)
{
    if (!a) {
        return;
    }
    http_server_free(a->http); /* from here on no handler wakes the hub */
    pthread_mutex_lock(&a->lock);
    a->stop = 1;
    pthread_cond_broadcast(&a->more);
    if (a->hub && !a->closed) {
        hub_wake(a->hub);
    }
    pthread_mutex_unlock(&a->lock);
    if (a->running) {
        pthread_join(a->thread, NULL);
    }
    pthread_cond_destroy(&a->more);
    pthread_mutex_destroy(&a->lock);
    mem_free(a);
}
