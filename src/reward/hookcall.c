/* Owns the three ways to call a hook, behind one set of functions. A shared object is called inside
 * submit, and its answer waits in a queue like those of the others. */
#include "reward/hookcall.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/plugin.h"
#include "base/proc.h"
#include "base/status.h"
#include "miles_plugin.h"
#include "net/http_client.h"
#include "reward/hookcall_int.h"

static const size_t REPLY_MAX = (size_t)512 << 20;
enum { INFLIGHT = 64, TRIES = 1000, TRIES_5XX = 3 };

struct done {
    struct done *next;
    struct worker_result r;
};

struct hookcall {
    const struct plugin_hook *hook;
    struct plugin_ref ref;
    struct worker_pool *workers; /* of PLUGIN_PYTHON */
    struct plugin *plugin;       /* of PLUGIN_SO */
    struct http_client *client;  /* of PLUGIN_URL */
    json_t *args;
    double timeout_s;
    int pending;
    struct done *first, *last; /* of PLUGIN_SO */
    int fd;                    /* of the shared memory; 0: none */
    char *base;
    size_t size;
};

/* ---- opening ---- */

static int open_memory(struct hookcall *h, struct err *e)
{
    int fd = memfd_create("miles-hook", MFD_CLOEXEC);
    if (fd < 0) {
        return ERR(e, STATUS_IO, "no shared memory for a hook: %s", strerror(errno));
    }
    h->fd = fd;
    return STATUS_OK;
}

static int open_python(struct hookcall *h, const struct hookcall_opts *o, struct err *e)
{
    struct worker_opts w = {.path = o->path,
                            .python = o->python,
                            .count = o->count,
                            .timeout_s = h->timeout_s,
                            .args = o->args,
                            .hook = o->flag,
                            .reply_max = REPLY_MAX,
                            .ask = o->ask,
                            .ask_arg = o->ask_arg};
    int rc = o->memory ? open_memory(h, e) : STATUS_OK;

    w.share_fd = h->fd;
    rc = rc == STATUS_OK ? worker_open(&w, &h->workers, e) : rc;
    return rc == STATUS_OK ? rc : err_prefix(e, "--%s", o->flag);
}

static int open_so(struct hookcall *h, struct err *e)
{
    char *args = h->args ? json_dumps(h->args, JSON_COMPACT) : NULL;
    int rc = plugin_open(h->hook, &h->ref, args ? args : "{}", &h->plugin, e);
    free(args);
    return rc;
}

int hookcall_open(const struct hookcall_opts *o, struct hookcall **out, struct err *e)
{
    struct http_client_opts co = {.max_calls = 4096, .max_inflight = INFLIGHT};
    struct hookcall *h = mem_alloc(sizeof *h);
    int rc;

    h->hook = plugin_hook(o->flag);
    ASSERT(h->hook);
    h->timeout_s = o->timeout_s > 0 ? o->timeout_s : 600;
    h->args = o->args ? json_deep_copy(o->args) : NULL;
    rc = plugin_resolve(h->hook, o->path, &h->ref, e);
    if (rc == STATUS_OK) {
        switch (h->ref.kind) {
        case PLUGIN_PYTHON: rc = open_python(h, o, e); break;
        case PLUGIN_SO: rc = open_so(h, e); break;
        case PLUGIN_URL: rc = http_client_new(&h->client, &co, e); break;
        default: rc = ERR(e, STATUS_INPUT, "--%s %s is built in and has no call", o->flag, o->path);
        }
    }
    if (rc != STATUS_OK) {
        hookcall_close(h);
        return rc;
    }
    *out = h;
    return STATUS_OK;
}

void hookcall_close(struct hookcall *h)
{
    if (!h) {
        return;
    }
    worker_close(h->workers);
    plugin_close(h->plugin);
    http_client_free(h->client);
    while (h->first) {
        struct done *d = h->first;
        h->first = d->next;
        json_decref(d->r.value);
        mem_free(d);
    }
    if (h->base) {
        munmap(h->base, h->size);
    }
    if (h->fd > 0) {
        close(h->fd);
    }
    json_decref(h->args);
    plugin_ref_fini(&h->ref);
    mem_free(h);
}

struct plugin *hookcall_plugin(struct hookcall *h)
{
    return h->plugin;
}

int hookcall_memory(struct hookcall *h, size_t bytes, void **out, struct err *e)
{
    size_t size = (bytes + 4095) / 4096 * 4096;
    void *p;

    ASSERT(h->fd > 0);
    if (size > h->size) {
        if (h->base) {
            munmap(h->base, h->size);
            h->base = NULL;
            h->size = 0;
        }
        if (ftruncate(h->fd, (off_t)size) != 0) {
            return ERR(e, STATUS_NOMEM, "--%s: no %zu bytes of shared memory: %s", h->hook->flag,
                       size, strerror(errno));
        }
        p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, h->fd, 0);
        if (p == MAP_FAILED) {
            return ERR(e, STATUS_NOMEM, "--%s: %zu bytes of shared memory cannot be mapped: %s",
                       h->hook->flag, size, strerror(errno));
        }
        h->base = p;
        h->size = size;
    }
    *out = h->base;
    return STATUS_OK;
}

/* ---- shared objects ---- */

static void push(struct hookcall *h, int64_t id, json_t *value, const char *why)
{
    struct done *d = mem_alloc(sizeof *d);
    d->r.id = id;
    d->r.value = value;
    d->r.failed = value == NULL;
    snprintf(d->r.reason, sizeof d->r.reason, "%s",
             value  ? ""
             : *why ? why
                    : "it failed and gave no reason");
    if (h->last) {
        h->last->next = d;
    } else {
        h->first = d;
    }
    h->last = d;
}

static int call_so(struct hookcall *h, int64_t id, const json_t *argv)
{
    struct miles_why why = {""};
    json_t *value = hookcall_so(h->plugin, h->hook, argv, &why);

    why.text[sizeof why.text - 1] = 0;
    push(h, id, value, why.text);
    return STATUS_OK;
}

/* ---- services ---- */

static int call_url(struct hookcall *h, int64_t id, const json_t *argv, struct err *e)
{
    static const struct http_header headers[] = {{"Content-Type", "application/json"},
                                                 {"Accept", "application/json"}};
    json_t *body = json_pack("{s:s,s:O}", "hook", h->hook->flag, "argv", (json_t *)argv);
    char *text = json_dumps(body, JSON_COMPACT);
    struct http_client_request q = {.method = "POST",
                                    .url = h->ref.path,
                                    .headers = headers,
                                    .nheaders = 2,
                                    .body = text,
                                    .len = text ? strlen(text) : 0,
                                    .connect_s = h->timeout_s < 10 ? h->timeout_s : 10,
                                    .total_s = h->timeout_s,
                                    .max_response = REPLY_MAX,
                                    .tries = TRIES,
                                    .idempotent = 1,
                                    .retry_5xx = TRIES_5XX,
                                    .user = (void *)(intptr_t)id};
    int rc;

    rc = text ? http_client_start(h->client, &q, NULL, e)
              : ERR(e, STATUS_NOMEM, "--%s: no memory for the arguments", h->hook->flag);
    free(text);
    json_decref(body);
    return rc;
}

/* {"value": answer} or {"error": text}. */
static void judge(const struct http_client_event *ev, double timeout_s, struct worker_result *out)
{
    json_error_t je;
    json_t *j;
    const char *error;

    out->failed = 1;
    if (ev->outcome != HTTP_CLIENT_OK) {
        out->late = ev->outcome == HTTP_CLIENT_LATE || ev->outcome == HTTP_CLIENT_IDLE ||
                    ev->outcome == HTTP_CLIENT_CONNECT_LATE;
        snprintf(out->reason, sizeof out->reason, "no answer within %g s (%d tries): %.200s",
                 timeout_s, ev->tries, ev->error);
        return;
    }
    j = json_loadb(ev->data, ev->len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &je);
    error = json_string_value(json_object_get(j, "error"));
    if (error) {
        snprintf(out->reason, sizeof out->reason, "%.400s", error);
    } else if (ev->status != 200) {
        snprintf(out->reason, sizeof out->reason, "the service answers %d: %.200s", ev->status,
                 ev->data);
    } else if (!json_object_get(j, "value")) {
        snprintf(out->reason, sizeof out->reason, "the service's answer has no \"value\": %.200s",
                 j ? ev->data : je.text);
    } else {
        out->failed = 0;
        out->value = json_incref(json_object_get(j, "value"));
    }
    json_decref(j);
}

static int poll_url(struct hookcall *h, double wait_s, struct worker_result *out)
{
    struct http_client_event *ev = http_client_take(h->client, wait_s > 0 ? wait_s : 0);

    if (!ev) {
        return STATUS_AGAIN;
    }
    memset(out, 0, sizeof *out);
    out->id = (int64_t)(intptr_t)ev->user;
    judge(ev, h->timeout_s, out);
    http_client_release(h->client, ev);
    return STATUS_OK;
}

/* ---- calls ---- */

int hookcall_submit(struct hookcall *h, int64_t id, const json_t *argv, struct err *e)
{
    int rc = h->workers  ? worker_call(h->workers, id, argv, e)
             : h->plugin ? call_so(h, id, argv)
                         : call_url(h, id, argv, e);
    h->pending += rc == STATUS_OK;
    return rc;
}

int hookcall_poll(struct hookcall *h, double wait_s, struct worker_result *out, struct err *e)
{
    int rc = STATUS_AGAIN;

    if (!h->pending) {
        return rc;
    }
    if (h->workers) {
        rc = worker_poll(h->workers, wait_s, out, e);
    } else if (h->client) {
        rc = poll_url(h, wait_s, out);
    } else if (h->first) {
        struct done *d = h->first;
        h->first = d->next;
        h->last = h->first ? h->last : NULL;
        *out = d->r;
        mem_free(d);
        rc = STATUS_OK;
    }
    h->pending -= rc == STATUS_OK;
    return rc;
}

int hookcall_pending(const struct hookcall *h)
{
    return h->pending;
}

int hookcall_restarts(const struct hookcall *h)
{
    return h->workers ? worker_restarts(h->workers) : 0;
}

int hookcall_run(struct hookcall *h, const json_t *argv, json_t **answer, struct err *e)
{
    /* beyond what the way itself allows, for one that breaks its word */
    double until = proc_now() + 2 * h->timeout_s + 330;
    struct worker_result r;
    int rc;

    ASSERT(!h->pending);
    rc = hookcall_submit(h, 0, argv, e);
    if (rc != STATUS_OK) {
        return rc;
    }
    while ((rc = hookcall_poll(h, 1.0, &r, e)) == STATUS_AGAIN && proc_now() < until) {
    }
    if (rc == STATUS_AGAIN) {
        return ERR(e, STATUS_TIMEOUT, "--%s %.300s: no answer", h->hook->flag, h->ref.path);
    }
    if (rc != STATUS_OK) {
        return rc;
    }
    if (r.failed) {
        return ERR(e, r.late ? STATUS_TIMEOUT : STATUS_CHILD, "--%s %.300s: %s", h->hook->flag,
                   h->ref.path, r.reason);
    }
    *answer = r.value;
    return STATUS_OK;
}
