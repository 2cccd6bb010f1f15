/* Owns the calls of an outside reward service: which wait, which are on their way, and what an
 * answer is worth. Calls wait here and not in the HTTP client, so that the time of a call begins
 * when it is sent and a long queue is no time-out. */
#include "reward/remote.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "net/http_client.h"

enum {
    DEFAULT_INFLIGHT = 64,
    MAX_INFLIGHT = 4096,
    TRIES = 1000,           /* time ends it, not their number */
    TRIES_5XX = 3,          /* of a service that is there and fails: more would fail too */
    RESPONSE_MAX = 4 << 20, /* bytes of one answer */
    REQUEST_MAX = 256 << 20 /* bytes of one call */
};

struct call {
    struct call *next;
    void *user;
    char *body;
    size_t len;
};

struct remote {
    struct http_client *client;
    char *url;
    double timeout_s;
    int inflight, metadata;
    struct call *head, *tail; /* not yet sent */
    int sent, pending;
};

int remote_open(const struct remote_opts *o, struct remote **out, struct err *e)
{
    struct http_client_opts co = {.max_calls = MAX_INFLIGHT, .max_inflight = MAX_INFLIGHT};
    struct remote *r;
    int rc;

    if (!o->url || (strncmp(o->url, "http://", 7) != 0 && strncmp(o->url, "https://", 8) != 0)) {
        return ERR(e, STATUS_INPUT, "%s is no http:// or https:// address",
                   o->url && *o->url ? o->url : "\"\"");
    }
    r = mem_alloc(sizeof *r);
    r->url = mem_strdup(o->url);
    r->timeout_s = o->timeout_s > 0 ? o->timeout_s : 60;
    r->inflight = o->inflight > 0 ? o->inflight : DEFAULT_INFLIGHT;
    r->inflight = r->inflight < MAX_INFLIGHT ? r->inflight : MAX_INFLIGHT;
    r->metadata = o->metadata;
    rc = http_client_new(&r->client, &co, e);
    if (rc != STATUS_OK) {
        remote_close(r);
        return rc;
    }
    *out = r;
    return STATUS_OK;
}

/* ---- sending ---- */

static json_t *field(const json_t *sample, const char *key)
{
    json_t *v = json_object_get(sample, key);
    return v ? json_incref(v) : json_null();
}

int remote_submit(struct remote *r, void *user, const json_t *sample, struct err *e)
{
    json_t *body = json_pack("{s:o,s:o,s:o}", "prompt", field(sample, "prompt"), "response",
                             field(sample, "response"), "label", field(sample, "label"));
    struct call *c;
    char *text;
    size_t n;

    if (r->metadata) {
        json_object_set_new(body, "metadata", field(sample, "metadata"));
    }
    text = json_dumps(body, JSON_COMPACT);
    json_decref(body);
    n = text ? strlen(text) : 0;
    if (!text || n > REQUEST_MAX) {
        free(text);
        return ERR(e, STATUS_INPUT, "the sample is larger than %d bytes", (int)REQUEST_MAX);
    }
    c = mem_alloc(sizeof *c);
    c->user = user;
    c->body = text;
    c->len = n;
    if (r->tail) {
        r->tail->next = c;
    } else {
        r->head = c;
    }
    r->tail = c;
    r->pending++;
    return STATUS_OK;
}

/* Sends what waits while there is room. */
static int send_waiting(struct remote *r, struct err *e)
{
    static const struct http_header headers[] = {{"Content-Type", "application/json"},
                                                 {"Accept", "application/json"}};

    while (r->head && r->sent < r->inflight) {
        struct call *c = r->head;
        struct http_client_request q = {.method = "POST",
                                        .url = r->url,
                                        .headers = headers,
                                        .nheaders = 2,
                                        .body = c->body,
                                        .len = c->len,
                                        .connect_s = r->timeout_s < 10 ? r->timeout_s : 10,
                                        .total_s = r->timeout_s,
                                        .max_response = RESPONSE_MAX,
                                        .tries = TRIES,
                                        .idempotent = 1,
                                        .retry_5xx = TRIES_5XX,
                                        .user = c->user};
        int rc = http_client_start(r->client, &q, NULL, e);
        if (rc != STATUS_OK) {
            return rc;
        }
        r->head = c->next;
        r->tail = r->head ? r->tail : NULL;
        r->sent++;
        free(c->body);
        mem_free(c);
    }
    return STATUS_OK;
}

/* ---- answers ---- */

/* What an error answer says of its cause: our own {"reason"}, FastAPI's {"detail"}, OpenAI's
 * {"error": {"message"}}, or its first bytes. */
static void cause(const struct http_client_event *ev, char *out, size_t size)
{
    json_t *j = json_loadb(ev->data, ev->len, JSON_DECODE_ANY, NULL);
    const char *s = json_string_value(json_object_get(j, "reason"));

    s = s ? s : json_string_value(json_object_get(j, "detail"));
    s = s ? s : json_string_value(json_object_get(json_object_get(j, "error"), "message"));
    snprintf(out, size, "%.*s", s ? 1000 : (int)(ev->len < 100 ? ev->len : 100), s ? s : ev->data);
    json_decref(j);
}

static void judge(const struct remote *r, const struct http_client_event *ev,
                  struct remote_result *out)
{
    json_error_t je;
    char text[512] = "";

    if (ev->outcome != HTTP_CLIENT_OK) {
        out->failed = 1;
        out->late = ev->outcome == HTTP_CLIENT_LATE || ev->outcome == HTTP_CLIENT_IDLE ||
                    ev->outcome == HTTP_CLIENT_CONNECT_LATE;
        out->broken = !out->late;
        snprintf(out->reason, sizeof out->reason, "remote_rm: %s within %g s (%d tries): %.120s",
                 ev->status ? "no good answer" : "no answer", r->timeout_s, ev->tries, ev->error);
        return;
    }
    if (ev->status != 200) {
        cause(ev, text, sizeof text);
        out->failed = 1;
        out->broken = ev->status >= 500;
        snprintf(out->reason, sizeof out->reason, "remote_rm: the service answers %d: %.180s",
                 ev->status, text);
        return;
    }
    out->value = json_loadb(ev->data, ev->len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &je);
    if (!out->value) {
        out->failed = 1;
        snprintf(out->reason, sizeof out->reason, "remote_rm: the answer is not JSON: %.120s",
                 je.text);
    } else if (!json_is_number(out->value) && !json_is_boolean(out->value) &&
               !json_is_object(out->value)) {
        out->failed = 1;
        snprintf(out->reason, sizeof out->reason, "remote_rm: the answer is %s, not a reward",
                 json_is_null(out->value)     ? "null"
                 : json_is_string(out->value) ? "text"
                                              : "a list");
    }
    if (out->failed) {
        json_decref(out->value);
        out->value = NULL;
    }
}

int remote_poll(struct remote *r, double wait_s, struct remote_result *out, struct err *e)
{
    struct http_client_event *ev;
    int rc = send_waiting(r, e);

    if (rc != STATUS_OK && rc != STATUS_AGAIN) {
        return rc;
    }
    if (!r->pending) {
        return STATUS_AGAIN;
    }
    ev = http_client_take(r->client, wait_s > 0 ? wait_s : 0);
    if (!ev) {
        return STATUS_AGAIN;
    }
    memset(out, 0, sizeof *out);
    out->user = ev->user;
    judge(r, ev, out);
    http_client_release(r->client, ev);
    r->sent--;
    r->pending--;
    rc = send_waiting(r, e);
    return rc == STATUS_AGAIN ? STATUS_OK : rc;
}

int remote_pending(const struct remote *r)
{
    return r->pending;
}

void remote_close(struct remote *r)
{
    if (!r) {
        return;
    }
    http_client_free(r->client);
    while (r->head) {
        struct call *c = r->head;
        r->head = c->next;
        free(c->body);
        mem_free(c);
    }
    mem_free(r->url);
    mem_free(r);
}
