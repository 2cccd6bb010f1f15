/* Owns requests that concern every worker: they go to all of them at once, one time each, and are
 * answered when the last has answered. What came of it at each worker is told under "workers"; the
 * other fields are those of the first worker that did it.
 *
 * A change of weights that some workers made and others missed would mix versions unseen: those
 * that missed it get no more requests until a change of weights reaches them, or they are added
 * again. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/proc.h"
#include "base/status.h"
#include "net/http_req.h"
#include "serve/jfield.h"
#include "serve/router_int.h"

enum { MAX_ANSWER = 64 << 20 };

enum {
    FAN_LENIENT = 1, /* a worker that is down has nothing to do */
    FAN_WEIGHTS = 2, /* all must have done it, or some are stale */
    FAN_ALONE = 4,   /* makes sense for one worker only: the body is different for each */
    FAN_INFO = 8,
    FAN_METRICS = 16,
    FAN_FLUSH = 32 /* the workers' prefix caches are empty afterwards */
};

struct fan_rule {
    const char *path;
    int flags;
};

static const struct fan_rule rules[] = {
    {"/flush_cache", FAN_LENIENT | FAN_FLUSH},
    {"/abort_request", FAN_LENIENT},
    {"/pause_generation", 0},
    {"/continue_generation", 0},
    {"/update_weights_from_disk", FAN_WEIGHTS | FAN_FLUSH},
    {"/update_weight_version", FAN_WEIGHTS},
    {"/begin_weight_update", 0},
    {"/end_weight_update", 0},
    {"/pull_weights", 0},
    {"/release_memory_occupation", FAN_FLUSH},
    {"/resume_memory_occupation", 0},
    {"/weights_checker", 0},
    {"/load_lora_adapter", 0},
    {"/unload_lora_adapter", 0},
    {"/start_profile", 0},
    {"/stop_profile", 0},
    {"/init_weights_update_group", FAN_ALONE},
    {"/destroy_weights_update_group", FAN_ALONE},
    {"/update_weights_from_distributed", FAN_ALONE},
    {"/update_weights_from_tensor", FAN_ALONE},
    {"/get_server_info", FAN_INFO},
    {"/server_info", FAN_INFO},
    {"/engine_metrics", FAN_METRICS},
};

struct fan_part {
    struct router_task task;
    struct router_fan *fan;
    struct router_worker *w;
    int status;  /* 0: no answer */
    int skipped; /* it was down, and need not be reached */
    char *text;  /* the answer, or why there is none */
    size_t len;
};

struct router_fan {
    struct http_req *r;
    const struct fan_rule *rule;
    int n, left;
    struct fan_part parts[];
};

static int is_good(const struct fan_part *p)
{
    return p->status >= 200 && p->status < 300;
}

/* ---- the answer ---- */

static json_t *part_json(const struct fan_part *p, int full)
{
    json_t *o = json_pack("{s:s,s:i,s:b}", "url", p->w->url, "status", p->status, "success",
                          is_good(p)),
           *answer;

    if (p->status == 0) {
        json_object_set_new(o, p->skipped ? "skipped" : "error",
                            json_stringn_nocheck(p->text, p->len));
    } else if (full) {
        answer = json_loadb(p->text, p->len, JSON_DECODE_ANY, NULL);
        json_object_set_new(o, "answer", answer ? answer : json_stringn(p->text, p->len));
    }
    return o;
}

/* 200 when all did it; their common status when none did it and all say the same; else 502. */
static int joint_status(const struct router_fan *f)
{
    int good = 0, bad = 0, status = -1;

    for (int i = 0; i < f->n; i++) {
        const struct fan_part *p = &f->parts[i];
        if (is_good(p)) {
            good++;
        } else if (!p->skipped) {
            bad++;
            status = status < 0 || status == p->status ? p->status : 502;
        }
    }
    if (bad == 0) {
        return good > 0 ? 200 : 502;
    }
    return good > 0 || status < 300 ? 502 : status;
}

/* What the first worker that did it (or the first that answered) said, if it is an object. */
static json_t *first_answer(const struct router_fan *f)
{
    json_t *o = NULL;

    for (int want = 1; want >= 0 && !o; want--) {
        for (int i = 0; i < f->n && !o; i++) {
            if (is_good(&f->parts[i]) >= want && f->parts[i].status) {
                o = json_loadb(f->parts[i].text, f->parts[i].len, 0, NULL);
            }
        }
    }
    if (!json_is_object(o)) {
        json_decref(o);
        o = json_object();
    }
    return o;
}

static void answer_control(const struct router_fan *f)
{
    int status = joint_status(f), done = 0;
    json_t *o = first_answer(f), *list = json_array();

    for (int i = 0; i < f->n; i++) {
        json_array_append_new(list, part_json(&f->parts[i], 1));
        done += is_good(&f->parts[i]);
    }
    json_object_set_new(o, "success", json_boolean(status == 200));
    if (status != 200 || !json_object_get(o, "message")) {
        json_object_set_new(
            o, "message",
            json_sprintf("%s: done by %d of %d workers", f->rule->path + 1, done, f->n));
    }
    json_object_set_new(o, "workers", list);
    jfield_reply(f->r, status, o);
}

static void answer_info(struct router *rt, const struct router_fan *f)
{
    json_t *o = first_answer(f), *list = json_array(), *states = json_array();

    for (int i = 0; i < f->n; i++) {
        json_t *one = json_loadb(f->parts[i].text, f->parts[i].len, 0, NULL);
        json_array_append_new(list, part_json(&f->parts[i], 0));
        if (is_good(&f->parts[i])) {
            json_array_extend(states, json_object_get(one, "internal_states"));
        }
        json_decref(one);
    }
    json_object_set_new(o, "internal_states", states);
    json_object_set_new(o, "workers", list);
    json_object_set_new(o, "router", router_admin_info(rt));
    jfield_reply(f->r, 200, o);
}

/* ---- metrics of all workers ---- */

/* Prometheus wants all lines of one metric together: they are gathered by the name that the
 * comments before them are about, or by their own where there are none. */
struct family {
    struct buf lines;
};

struct families {
    struct map names;
    struct family *all;
    int n, cap;
};

static struct family *family_of(struct families *s, const char *name, size_t len)
{
    int64_t at;

    if (!map_get(&s->names, name, len, &at)) {
        if (s->n == s->cap) {
            int cap = s->cap ? 2 * s->cap : 64;
            s->all =
                mem_realloc(s->all, sizeof *s->all * (size_t)s->cap, sizeof *s->all * (size_t)cap);
            s->cap = cap;
        }
        at = s->n++;
        buf_init(&s->all[at].lines, MAX_ANSWER);
        map_put(&s->names, name, len, at);
    }
    return &s->all[at];
}

/* A sample with the label worker="url" put first. */
static void add_sample(struct buf *b, const char *line, size_t len, size_t name, const char *url)
{
    int labelled = name < len && line[name] == '{';

    buf_add(b, line, name);
    buf_printf(b, "{worker=\"%s\"%s", url,
               !labelled                                 ? "} "
               : name + 1 < len && line[name + 1] == '}' ? ""
                                                         : ",");
    name += 1;
    if (name < len) {
        buf_add(b, line + name, len - name);
    }
    buf_char(b, '\n');
}

static void add_metrics(struct families *s, const struct fan_part *p)
{
    const char *at = p->text, *end = p->text + p->len, *eol, *current = "";
    size_t current_len = 0;

    for (; at < end; at = eol + 1) {
        size_t len, name = 0;
        eol = memchr(at, '\n', (size_t)(end - at));
        eol = eol ? eol : end;
        len = (size_t)(eol - at);
        if (len > 7 && (memcmp(at, "# HELP ", 7) == 0 || memcmp(at, "# TYPE ", 7) == 0)) {
            struct family *f;
            current = at + 7;
            current_len = strcspn(current, " \n");
            f = family_of(s, current, current_len);
            if (!memmem(f->lines.data, f->lines.len, at, 7)) { /* once each */
                buf_add(&f->lines, at, len);
                buf_char(&f->lines, '\n');
            }
        } else if (len > 0 && *at != '#') {
            while (name < len && at[name] != '{' && at[name] != ' ') {
                name++;
            }
            if (name < current_len || memcmp(at, current, current_len) != 0) {
                current = at;
                current_len = name;
            }
            add_sample(&family_of(s, current, current_len)->lines, at, len, name, p->w->url);
        }
    }
}

static void answer_metrics(const struct router_fan *f)
{
    struct http_req_answer a = {.status = 200, .type = "text/plain; version=0.0.4"};
    struct families s = {0};
    struct buf b;

    map_init(&s.names);
    buf_init(&b, 4 * (size_t)MAX_ANSWER);
    for (int i = 0; i < f->n; i++) {
        if (is_good(&f->parts[i])) {
            add_metrics(&s, &f->parts[i]);
        }
    }
    for (int i = 0; i < s.n; i++) {
        buf_add(&b, s.all[i].lines.data, s.all[i].lines.len);
        buf_fini(&s.all[i].lines);
    }
    http_req_reply_buf(f->r, &a, &b);
    buf_fini(&b);
    mem_free(s.all);
    map_fini(&s.names);
}

/* ---- from start to end ---- */

/* The version that a change of weights names, if it does. */
static void keep_version(struct router *rt, const struct http_req *r)
{
    size_t n;
    const char *body = http_req_body(r, &n), *version;
    json_t *o = json_loadb(body, n, 0, NULL);

    version = json_string_value(json_object_get(o, "weight_version"));
    version = version ? version : json_string_value(json_object_get(o, "new_version"));
    if (version) {
        mem_free(rt->version);
        rt->version = mem_strdup(version);
    }
    json_decref(o);
}

static void mark_stale(struct router *rt, const struct router_fan *f)
{
    int good = 0;

    for (int i = 0; i < f->n; i++) {
        good += is_good(&f->parts[i]);
    }
    if (good > 0) {
        keep_version(rt, f->r);
    }
    for (int i = 0; i < f->n && good > 0; i++) {
        struct router_worker *w = f->parts[i].w;
        if (is_good(&f->parts[i])) {
            w->stale = 0;
        } else if (!w->stale) {
            w->stale = 1;
            log_warn(ROUTER, "worker %s missed %s: it gets no more requests", w->url,
                     f->rule->path);
        }
    }
}

static void fan_over(struct router *rt, struct router_fan *f)
{
    for (int i = 0; i < f->n; i++) {
        struct fan_part *p = &f->parts[i];
        if (f->rule->flags & FAN_FLUSH && is_good(p) && !p->w->removed) {
            router_policy_flush(&rt->policy, p->w->slot);
        }
    }
    if (f->rule->flags & FAN_WEIGHTS) {
        mark_stale(rt, f);
    }
    if (f->rule->flags & FAN_INFO) {
        answer_info(rt, f);
    } else if (f->rule->flags & FAN_METRICS) {
        answer_metrics(f);
    } else {
        answer_control(f);
    }
    for (int i = 0; i < f->n; i++) {
        router_worker_unref(f->parts[i].w);
        mem_free(f->parts[i].text);
    }
    mem_free(f);
}

static void part_over(struct router *rt, struct fan_part *p, int status, const char *text,
                      size_t len)
{
    struct router_fan *f = p->fan;

    p->status = status;
    p->text = mem_strndup(text, len);
    p->len = len;
    p->skipped = status == 0 && f->rule->flags & FAN_LENIENT && p->w->health != ROUTER_WORKER_UP;
    if (--f->left == 0) {
        fan_over(rt, f);
    }
}

void router_fan_event(struct router *rt, struct http_client_event *ev)
{
    struct fan_part *p = ev->user;

    if (ev->outcome == HTTP_CLIENT_OK) {
        part_over(rt, p, ev->status, ev->data, ev->len);
    } else {
        part_over(rt, p, 0, ev->error, strlen(ev->error));
    }
    http_client_release(rt->client, ev);
}

static void fan_begin(struct router *rt, struct http_req *r)
{
    const struct fan_rule *rule = NULL;
    struct router_fan *f;
    const char *target = http_req_target(r);

    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        if (strcmp(rules[i].path, http_req_path(r)) == 0) {
            rule = &rules[i];
        }
    }
    if (rt->nworkers == 0) {
        http_req_fail(r, 503, "there are no workers");
        return;
    }
    if (rule->flags & FAN_ALONE && rt->nworkers > 1) {
        http_req_fail(r, 400, "%s is different for each worker: ask those of /list_workers",
                      rule->path);
        return;
    }
    f = mem_alloc(sizeof *f + sizeof f->parts[0] * (size_t)rt->nworkers);
    f->r = r;
    f->rule = rule;
    f->n = rt->nworkers;
    f->left = f->n + 1; /* one for us */
    rt->stats.fans++;
    target = rule->flags & FAN_METRICS ? "/metrics" : target;
    for (int i = 0; i < f->n; i++) {
        struct fan_part *p = &f->parts[i];
        struct http_client_request q = {
            .method = http_req_method(r), .total_s = rt->o.request_s, .max_response = MAX_ANSWER};
        struct err e = {0};
        uint64_t id;
        p->task.kind = ROUTER_TASK_FAN;
        p->fan = f;
        p->w = rt->workers[i];
        router_worker_ref(p->w);
        q.body = http_req_body(r, &q.len);
        q.body = q.len > 0 ? q.body : NULL;
        if (router_send(rt, p->w, &p->task, &q, r, target, &id, &e) != STATUS_OK) {
            part_over(rt, p, 0, e.msg, strlen(e.msg));
        }
    }
    if (--f->left == 0) {
        fan_over(rt, f);
    }
}

void router_fan_handle(void *arg, struct http_req *r)
{
    router_order(arg, r, fan_begin);
}

int router_fan_is(const char *path)
{
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        if (strcmp(rules[i].path, path) == 0) {
            return 1;
        }
    }
    return 0;
}
