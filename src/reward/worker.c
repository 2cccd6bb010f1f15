/* Owns the pool of Python workers: who has which call, until when, and what becomes of a call whose
 * worker dies. Every process is a slot with two pipes; all waiting is one poll over all slots with
 * the nearest deadline as limit, so nothing here blocks longer than the caller allows. */
#include "reward/worker.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/proc.h"
#include "base/status.h"
#include "reward/pyside.h"

enum {
    MAX_SLOTS = 128,
    MAX_ASYNC = 4096,
    MAX_START_FAILURES = 3, /* in a row, then the slot is left alone for REST_S */
    MAX_START_DEATHS = 10,  /* the same for a worker that somebody killed while it started */
    REPLY_MAX = 4 << 20,    /* bytes of one reply; the Python side refuses larger ones itself */
    SHARE_AS = 6
};
static const double REST_S = 5;
static const char LATE[] = "no reward within";       /* worker.py says it too */
static const char LATE_HOOK[] = "no answer within";  /* the same of hooks */
static const size_t REQUEST_MAX = (size_t)256 << 20; /* bytes of one call */
static const size_t QUEUE_BYTES = (size_t)1 << 30;   /* bytes of all waiting calls */

struct call {
    struct call *next;
    int64_t id, serial; /* the caller's number; ours, unique */
    char *line;         /* JSON with newline */
    size_t len;
    double deadline;
    int alone;    /* its worker died with others in it: now it gets one for itself */
    size_t group; /* samples of a group; 0: a single sample */
    int hook;     /* its value may be anything */
};

struct done {
    struct done *next;
    struct worker_result r;
};

enum slot_state { SLOT_DEAD, SLOT_STARTING, SLOT_READY, SLOT_BROKEN };

struct slot {
    struct proc proc;
    enum slot_state state;
    struct buf in, out;
    size_t out_off;
    struct call *calls; /* in this worker now */
    int ncalls;
    double start_deadline;
    int start_failures;
    double retry_at; /* of a broken one */
    char start_error[512];
};

struct worker_pool {
    int (*spawn)(void *arg, const struct proc_opts *o, struct proc *p, struct err *e);
    void *spawn_arg;
    int (*ask)(void *arg, int64_t id, const char *what, const json_t *argv, json_t **out,
               struct err *e);
    void *ask_arg;
    int share_fd;
    size_t reply_max;
    const char *late;            /* how a reason for being late begins */
    char *path, *python, *setup; /* setup: the first line to each worker */
    int nslots, queue_max, async_calls, capacity;
    double timeout_s, start_timeout_s;
    struct slot *slots;
    struct call *head, *tail; /* waiting */
    struct done *first, *last;
    size_t queued_bytes;
    int pending, restarts;
    int64_t serial;
};

/* ---- results ---- */

/* Copies at most n - 1 bytes, not cutting a UTF-8 sequence. */
static void copy_text(char *out, size_t n, const char *text)
{
    size_t len = strlen(text);
    if (len >= n) {
        len = n - 1;
        while (len > 0 && ((unsigned char)text[len] & 0xc0) == 0x80) {
            len--;
        }
    }
    memcpy(out, text, len);
    out[len] = 0;
}

/* Takes the call out of the world and queues its result; value is taken over. */
static void finish(struct worker_pool *w, struct call *c, json_t *value, const char *reason)
{
    struct done *d = mem_alloc(sizeof *d);

    d->r.id = c->id;
    d->r.failed = reason != NULL;
    d->r.late = reason && strncmp(reason, w->late, strlen(w->late)) == 0;
    d->r.value = value;
    copy_text(d->r.reason, sizeof d->r.reason, reason ? reason : "");
    if (w->last) {
        w->last->next = d;
    } else {
        w->first = d;
    }
    w->last = d;
    mem_free(c->line);
    mem_free(c);
}

static void enqueue(struct worker_pool *w, struct call *c)
{
    c->next = NULL;
    if (w->tail) {
        w->tail->next = c;
    } else {
        w->head = c;
    }
    w->tail = c;
    w->queued_bytes += c->len;
}

static struct call *dequeue(struct worker_pool *w)
{
    struct call *c = w->head;
    w->head = c->next;
    if (!w->head) {
        w->tail = NULL;
    }
    w->queued_bytes -= c->len;
    c->next = NULL;
    return c;
}

/* ---- a slot's life ---- */

static int slot_start(struct worker_pool *w, struct slot *s, struct err *e)
{
    const char *argv[] = {w->python, "-u", "-c", pyside_boot, NULL};
    struct proc_opts o = {.argv = argv,
                          .request_fd = 3,
                          .reply_fd = 4,
                          .life_fd = 5,
                          .share_fd = w->share_fd,
                          .share_as = w->share_fd > 0 ? SHARE_AS : 0};
    int rc;

    buf_clear(&s->in);
    buf_clear(&s->out);
    s->out_off = 0;
    rc = w->spawn ? w->spawn(w->spawn_arg, &o, &s->proc, e) : proc_spawn(&s->proc, &o, e);
    if (rc != 0) {
        return rc;
    }
    buf_str(&s->out, w->setup);
    s->state = SLOT_STARTING;
    s->start_deadline = proc_now() + w->start_timeout_s;
    return 0;
}

/* A start that came to nothing: try again a few times, then not for a while. */
static void slot_start_failed(struct slot *s, const char *why, int most)
{
    proc_end(&s->proc);
    copy_text(s->start_error, sizeof s->start_error, why);
    s->start_failures++;
    s->state = s->start_failures < most ? SLOT_DEAD : SLOT_BROKEN;
    s->retry_at = proc_now() + REST_S;
    log_warn(REWARD, "a worker did not start (%d of %d): %s", s->start_failures, most, why);
}

/* The worker is lost. Its only call fails for `why`; of several none is known to be guilty, so each
 * gets a second try alone. */
static void slot_lost(struct worker_pool *w, struct slot *s, const char *why)
{
    int several = s->ncalls > 1;

    if (s->state == SLOT_STARTING) {
        slot_start_failed(s, why, MAX_START_DEATHS);
        return;
    }
    proc_end(&s->proc);
    s->state = SLOT_DEAD;
    while (s->calls) {
        struct call *c = s->calls;
        s->calls = c->next;
        if (several && !c->alone) {
            c->alone = 1;
            enqueue(w, c);
        } else {
            finish(w, c, NULL, why);
        }
    }
    log_warn(REWARD, "WorkerCrashed: a %s was lost%s: %s",
             w->late == LATE ? "reward worker" : "worker of a function",
             several     ? " with several calls, which are tried again one by one"
             : s->ncalls ? " in a call"
                         : " while idle",
             why);
    s->ncalls = 0;
}

static void slot_died(struct worker_pool *w, struct slot *s)
{
    struct proc *p = &s->proc;
    char how[128], why[256];
    int status, want = 0, got;

    proc_poll(&p, &want, &got, 1, 0.1); /* its pipe may close an instant before it is gone */
    if (proc_ended(&s->proc, &status)) {
        proc_describe(status, how, sizeof how);
        snprintf(why, sizeof why, "the worker process died: %s", how);
    } else {
        snprintf(why, sizeof why, "the worker process closed its pipe");
    }
    slot_lost(w, s, why);
}

/* ---- what a worker says ---- */

static struct call *take_call(struct slot *s, int64_t serial)
{
    for (struct call **at = &s->calls; *at; at = &(*at)->next) {
        struct call *c = *at;
        if (c->serial == serial) {
            *at = c->next;
            s->ncalls--;
            return c;
        }
    }
    return NULL;
}

static int is_reward(const json_t *v)
{
    return json_is_number(v) || json_is_object(v);
}

/* Is this what a call of that kind returns? */
static int fits(const struct call *c, const json_t *v)
{
    size_t i;
    json_t *item;

    if (c->hook) {
        return v != NULL;
    }
    if (!c->group) {
        return is_reward(v);
    }
    json_array_foreach((json_t *)v, i, item)
    {
        if (!is_reward(item)) {
            return 0;
        }
    }
    return json_array_size(v) == c->group;
}

/* A question of a running call. Returns NULL, or what is wrong with it. */
static const char *answer_question(struct worker_pool *w, struct slot *s, const json_t *msg)
{
    json_int_t serial = json_integer_value(json_object_get(msg, "id"));
    const char *what = json_string_value(json_object_get(msg, "ask"));
    const struct call *c = s->calls;
    struct err e = {0};
    json_t *value = NULL, *reply;
    char *text;
    int rc;

    while (c && c->serial != serial) {
        c = c->next;
    }
    if (!c) {
        return "the worker process asked in the name of a call it was not given";
    }
    rc = w->ask ? w->ask(w->ask_arg, c->id, what, json_object_get(msg, "argv"), &value, &e)
                : ERR(&e, STATUS_UNSUPPORTED, "%.100s is not to be had here", what);
    reply = json_pack("{s:I}", "id", serial);
    if (rc == STATUS_OK) {
        json_object_set_new(reply, "reply", value ? value : json_null());
    } else {
        json_object_set_new(reply, "refused", json_string(e.msg));
    }
    text = json_dumps(reply, JSON_COMPACT);
    buf_str(&s->out, text ? text : "");
    buf_str(&s->out, "\n");
    free(text);
    json_decref(reply);
    return buf_status(&s->out) == 0 ? NULL : "no memory for the answer to a question";
}

/* One line of the worker. Returns NULL, or what is wrong with it. */
static const char *hear(struct worker_pool *w, struct slot *s, const char *line, size_t len)
{
    json_error_t je;
    json_t *msg = json_loadb(line, len, JSON_ALLOW_NUL, &je);
    const char *error = json_string_value(json_object_get(msg, "error"));
    const char *load_error = json_string_value(json_object_get(msg, "load_error"));
    json_t *value = json_object_get(msg, "value");
    const char *bad = NULL;

    if (s->state == SLOT_STARTING) {
        if (load_error) {
            slot_start_failed(s, load_error, MAX_START_FAILURES);
        } else if (json_is_true(json_object_get(msg, "ready"))) {
            w->capacity = json_is_true(json_object_get(msg, "async")) ? w->async_calls : 1;
            s->state = SLOT_READY;
        } else {
            bad = "the worker process broke the protocol while starting";
        }
    } else if (json_is_string(json_object_get(msg, "ask"))) {
        bad = answer_question(w, s, msg);
    } else {
        json_t *id = json_object_get(msg, "id");
        struct call *c = json_is_integer(id) ? take_call(s, json_integer_value(id)) : NULL;
        if (c && error) {
            finish(w, c, NULL, error);
        } else if (c && fits(c, value)) {
            s->start_failures = 0;
            finish(w, c, json_incref(value), NULL);
        } else if (c) {
            finish(w, c, NULL, "the worker process sent neither a value nor an error");
        } else {
            bad = msg ? "the worker process answered a call it was not given"
                      : "the worker process sent what is not JSON, or a number out of range";
        }
    }
    json_decref(msg);
    return bad;
}

/* All whole lines that have arrived. */
static void hear_lines(struct worker_pool *w, struct slot *s)
{
    size_t at = 0;
    const char *bad = NULL;

    while (!bad && (s->state == SLOT_STARTING || s->state == SLOT_READY) && at < s->in.len) {
        char *nl = memchr(s->in.data + at, '\n', s->in.len - at);
        if (!nl) {
            break;
        }
        bad = hear(w, s, s->in.data + at, (size_t)(nl - s->in.data) - at);
        at = (size_t)(nl - s->in.data) + 1;
    }
    buf_shift(&s->in, at);
    if (bad) {
        slot_lost(w, s, bad);
    }
}

static int slot_alive(const struct slot *s)
{
    return s->state == SLOT_STARTING || s->state == SLOT_READY;
}

static void slot_read(struct worker_pool *w, struct slot *s, int ended)
{
    int rc;

    do {
        rc = proc_read(&s->proc, &s->in, NULL);
        if (rc == 0) {
            hear_lines(w, s);
        }
    } while (rc == 0 && ended && slot_alive(s));
    if (!slot_alive(s)) {
        return;
    }
    if (rc == STATUS_NOMEM) {
        slot_lost(w, s, "the worker process sent an answer that is too long");
    } else if (rc < 0 || rc == STATUS_END || ended) {
        slot_died(w, s);
    }
}

static void slot_write(struct worker_pool *w, struct slot *s)
{
    size_t n = 0;

    while (s->out_off < s->out.len) {
        int rc = proc_write(&s->proc, s->out.data + s->out_off, s->out.len - s->out_off, &n, NULL);
        if (rc == STATUS_AGAIN) {
            return;
        }
        if (rc != 0) {
            slot_read(w, s, 1); /* its last words, then its end */
            return;
        }
        s->out_off += n;
    }
    if (s->out.cap > (1u << 20)) {
        buf_fini(&s->out); /* one huge sample must not hold its memory for the whole run */
    }
    buf_clear(&s->out);
    s->out_off = 0;
}

/* ---- dispatch ---- */

/* The slot that shall take c now, or NULL. */
static struct slot *choose(struct worker_pool *w, const struct call *c)
{
    struct slot *best = NULL;

    for (int i = 0; i < w->nslots; i++) {
        struct slot *s = &w->slots[i];
        int room = c->alone ? s->ncalls == 0 : s->ncalls < w->capacity;
        if (s->state == SLOT_READY && room && !(s->calls && s->calls->alone) &&
            (!best || s->ncalls < best->ncalls)) {
            best = s;
        }
    }
    return best;
}

static void dispatch(struct worker_pool *w)
{
    while (w->head) {
        struct slot *s = choose(w, w->head);
        struct call *c;
        if (!s) {
            return;
        }
        c = dequeue(w);
        c->deadline = proc_now() + w->timeout_s;
        if (w->capacity > 1) {
            /* The worker keeps the time of async calls itself and need not be killed for one; this
             * is for one whose event loop hangs. */
            c->deadline += 1.0 + 0.1 * w->timeout_s;
        }
        c->next = s->calls;
        s->calls = c;
        s->ncalls++;
        buf_add(&s->out, c->line, c->len);
        if (buf_status(&s->out) != 0) {
            slot_lost(w, s, "no memory to send the call");
            continue;
        }
        slot_write(w, s);
    }
}

/* Starts slots again while there is work for them. While all are broken, nothing can be done. */
static void revive(struct worker_pool *w)
{
    int hope = 0, busy = 0;
    struct err e = {0};

    for (int i = 0; i < w->nslots; i++) {
        struct slot *s = &w->slots[i];
        if (s->state == SLOT_BROKEN && w->head && proc_now() >= s->retry_at) {
            s->state = SLOT_DEAD;
            s->start_failures = 0;
        }
        if (s->state == SLOT_DEAD && w->head) {
            w->restarts++;
            if (slot_start(w, s, &e) != 0) {
                slot_start_failed(s, e.msg, MAX_START_FAILURES);
            }
        }
        hope |= s->state != SLOT_BROKEN;
        busy |= s->ncalls > 0;
    }
    while (!hope && !busy && w->head) {
        char why[256];
        snprintf(why, sizeof why, "no worker process can be started: %.200s",
                 w->slots[0].start_error);
        finish(w, dequeue(w), NULL, why);
    }
}

static void check_deadlines(struct worker_pool *w, double now)
{
    for (int i = 0; i < w->nslots; i++) {
        struct slot *s = &w->slots[i];
        char why[128];
        if (s->state == SLOT_STARTING && now >= s->start_deadline) {
            snprintf(why, sizeof why, "not ready within %g s", w->start_timeout_s);
            slot_start_failed(s, why, MAX_START_FAILURES);
        }
        for (const struct call *c = s->calls; c; c = c->next) {
            if (now >= c->deadline) {
                snprintf(why, sizeof why, "%s %g s", w->late, w->timeout_s);
                slot_lost(w, s, why);
                break;
            }
        }
    }
}

static double next_deadline(const struct worker_pool *w, double limit)
{
    for (int i = 0; i < w->nslots; i++) {
        const struct slot *s = &w->slots[i];
        if (s->state == SLOT_STARTING && s->start_deadline < limit) {
            limit = s->start_deadline;
        }
        for (const struct call *c = s->calls; c; c = c->next) {
            limit = c->deadline < limit ? c->deadline : limit;
        }
    }
    return limit;
}

/* One round: act on what is there, wait at most until `limit` for something new. */
static void turn(struct worker_pool *w, double limit)
{
    struct proc *ps[MAX_SLOTS];
    int want[MAX_SLOTS], got[MAX_SLOTS];
    double now = proc_now();
    int alive = 0, dead = 0;

    check_deadlines(w, now);
    revive(w);
    dispatch(w);
    for (int i = 0; i < w->nslots; i++) {
        struct slot *s = &w->slots[i];
        if (s->state == SLOT_STARTING && s->out_off < s->out.len) {
            slot_write(w, s);
        }
        alive += slot_alive(s);
        dead += s->state == SLOT_DEAD;
        ps[i] = &s->proc;
        want[i] = PROC_READ | (s->out_off < s->out.len ? PROC_WRITE : 0);
    }
    if (w->first || !alive || (dead && w->head)) {
        limit = now; /* there is something to do: look, do not wait */
    }
    limit = next_deadline(w, limit);
    if (proc_poll(ps, want, got, w->nslots, limit - proc_now()) == 0) {
        return;
    }
    for (int i = 0; i < w->nslots; i++) {
        struct slot *s = &w->slots[i];
        if (slot_alive(s) && (got[i] & (PROC_READ | PROC_ENDED))) {
            slot_read(w, s, (got[i] & PROC_ENDED) != 0);
        }
        if (slot_alive(s) && (got[i] & PROC_WRITE)) {
            slot_write(w, s);
        }
    }
}

/* ---- public ---- */

/* Queues {"id", key: data}. */
static int submit(struct worker_pool *w, int64_t id, const char *key, const json_t *data,
                  struct err *e)
{
    struct call *c;
    char *text;
    size_t len;
    struct buf b;

    if (w->pending >= w->queue_max || (w->head && w->queued_bytes > QUEUE_BYTES)) {
        return STATUS_AGAIN;
    }
    text = json_dumps(data, JSON_COMPACT);
    if (!text) {
        return ERR(e, STATUS_NOMEM, "no memory for the %s of a call", key);
    }
    buf_init(&b, REQUEST_MAX);
    buf_printf(&b, "{\"id\":%lld,\"%s\":", (long long)++w->serial, key);
    buf_str(&b, text);
    buf_str(&b, "}\n");
    free(text);
    if (buf_status(&b) != 0) {
        buf_fini(&b);
        return ERR(e, STATUS_INPUT, "the %s of a call is larger than %zu bytes", key, REQUEST_MAX);
    }
    c = mem_alloc(sizeof *c);
    c->id = id;
    c->serial = w->serial;
    c->hook = strcmp(key, "argv") == 0;
    c->group = c->hook ? 0 : json_array_size(data);
    c->line = buf_take(&b, &len);
    c->len = len;
    enqueue(w, c);
    w->pending++;
    dispatch(w);
    return 0;
}

int worker_submit(struct worker_pool *w, int64_t id, const json_t *sample, struct err *e)
{
    if (!json_is_object(sample) && json_array_size(sample) == 0) {
        return ERR(e, STATUS_INPUT, "the sample of a reward call is not a JSON object");
    }
    return submit(w, id, json_is_array(sample) ? "group" : "sample", sample, e);
}

int worker_call(struct worker_pool *w, int64_t id, const json_t *argv, struct err *e)
{
    ASSERT(json_is_array(argv));
    return submit(w, id, "argv", argv, e);
}

int worker_poll(struct worker_pool *w, double wait_s, struct worker_result *out, struct err *e)
{
    double deadline = proc_now() + (wait_s > 0 ? wait_s : 0);

    (void)e;
    for (;;) {
        turn(w, w->pending ? deadline : 0);
        if (w->first) {
            struct done *d = w->first;
            w->first = d->next;
            if (!w->first) {
                w->last = NULL;
            }
            *out = d->r;
            mem_free(d);
            w->pending--;
            return 0;
        }
        if (!w->pending || proc_now() >= deadline) {
            return STATUS_AGAIN;
        }
    }
}

int worker_pending(const struct worker_pool *w)
{
    return w->pending;
}

int worker_restarts(const struct worker_pool *w)
{
    return w->restarts;
}

static int start_all(struct worker_pool *w, struct err *e)
{
    int ready = 0;

    for (int i = 0; i < w->nslots; i++) {
        int rc = slot_start(w, &w->slots[i], e);
        if (rc != 0) {
            return rc;
        }
    }
    while (ready < w->nslots) {
        turn(w, proc_now() + 3600);
        ready = 0;
        for (int i = 0; i < w->nslots; i++) {
            struct slot *s = &w->slots[i];
            if (s->start_failures) {
                return ERR(e, STATUS_INPUT, "%s %s: %s",
                           w->late == LATE ? "reward function" : "function", w->path,
                           s->start_error);
            }
            ready += s->state == SLOT_READY;
        }
    }
    return 0;
}

static int make_setup(struct worker_pool *w, const struct worker_opts *o, struct err *e)
{
    json_t *none = json_object();
    json_t *setup =
        json_pack("{s:s, s:s?, s:O, s:f, s:I, s:s?, s:o}", "path", w->path, "source", o->source,
                  "args", o->args ? o->args : none, "timeout", w->timeout_s, "limit",
                  (json_int_t)(w->reply_max / 2), "hook", o->hook, "modules", pyside_modules());
    char *text = setup ? json_dumps(setup, JSON_COMPACT) : NULL;
    struct buf b;
    int rc = 0;

    buf_init(&b, REQUEST_MAX);
    if (text) {
        buf_str(&b, text);
        buf_str(&b, "\n");
    }
    if (!text || buf_status(&b) != 0) {
        rc = ERR(e, STATUS_INPUT, "the path or the arguments of reward function %s are not text",
                 w->path);
    } else {
        w->setup = buf_take(&b, NULL);
    }
    buf_fini(&b);
    free(text);
    json_decref(setup);
    json_decref(none);
    return rc;
}

int worker_open(const struct worker_opts *o, struct worker_pool **out, struct err *e)
{
    struct worker_pool *w;
    int rc;

    if (!o->path || !*o->path) {
        return ERR(e, STATUS_INPUT, "no reward function is named");
    }
    if (o->count < 0 || o->count > MAX_SLOTS) {
        return ERR(e, STATUS_INPUT, "%d reward workers: 1 to %d are possible", o->count,
                   (int)MAX_SLOTS);
    }
    if (!(o->timeout_s >= 0 && o->timeout_s <= 1e9) ||
        !(o->start_timeout_s >= 0 && o->start_timeout_s <= 1e9) || o->queue_max < 0 ||
        o->async_calls < 0 || o->async_calls > MAX_ASYNC) {
        return ERR(e, STATUS_INPUT, "a time-out or a limit of the reward workers is out of range");
    }
    if (o->args && !json_is_object(o->args)) {
        return ERR(e, STATUS_INPUT, "the arguments for the reward function are not an object");
    }
    w = mem_alloc(sizeof *w);
    w->path = mem_strdup(o->path);
    w->python = mem_strdup(o->python && *o->python ? o->python : "python3");
    w->nslots = o->count ? o->count : 1;
    w->timeout_s = o->timeout_s > 0 ? o->timeout_s : 60;
    w->start_timeout_s = o->start_timeout_s > 0 ? o->start_timeout_s : 300;
    w->queue_max = o->queue_max ? o->queue_max : 4096;
    w->async_calls = o->async_calls ? o->async_calls : 64;
    w->capacity = 1;
    w->late = o->hook ? LATE_HOOK : LATE;
    w->ask = o->ask;
    w->ask_arg = o->ask_arg;
    w->share_fd = o->share_fd;
    w->reply_max = o->reply_max ? o->reply_max : REPLY_MAX;
    w->spawn = o->spawn;
    w->spawn_arg = o->spawn_arg;
    w->slots = mem_alloc((size_t)w->nslots * sizeof *w->slots);
    for (int i = 0; i < w->nslots; i++) {
        buf_init(&w->slots[i].in, w->reply_max);
        buf_init(&w->slots[i].out, 4 * REQUEST_MAX);
    }
    rc = make_setup(w, o, e);
    if (rc == 0) {
        rc = start_all(w, e);
    }
    if (rc != 0) {
        worker_close(w);
        return rc;
    }
    *out = w;
    return 0;
}

static void free_calls(struct call *c)
{
    while (c) {
        struct call *next = c->next;
        mem_free(c->line);
        mem_free(c);
        c = next;
    }
}

/* Idle workers see the end of their requests and may leave by themselves. */
static void say_goodbye(struct worker_pool *w)
{
    struct proc *ps[MAX_SLOTS];
    int want[MAX_SLOTS] = {0}, got[MAX_SLOTS], n = 0;
    double deadline = proc_now() + 0.5;

    for (int i = 0; i < w->nslots; i++) {
        struct slot *s = &w->slots[i];
        if (s->state == SLOT_READY && s->ncalls == 0) {
            close(s->proc.to);
            s->proc.to = -1;
            ps[n++] = &s->proc;
        }
    }
    while (n > 0 && proc_now() < deadline) {
        int left = 0;
        proc_poll(ps, want, got, n, deadline - proc_now());
        for (int i = 0; i < n; i++) {
            if (!proc_ended(ps[i], NULL)) {
                ps[left++] = ps[i];
            }
        }
        n = left;
    }
}

void worker_close(struct worker_pool *w)
{
    if (!w) {
        return;
    }
    say_goodbye(w);
    for (int i = 0; i < w->nslots; i++) {
        proc_end(&w->slots[i].proc);
        buf_fini(&w->slots[i].in);
        buf_fini(&w->slots[i].out);
        free_calls(w->slots[i].calls);
    }
    free_calls(w->head);
    while (w->first) {
        struct done *d = w->first;
        w->first = d->next;
        json_decref(d->r.value);
        mem_free(d);
    }
    mem_free(w->slots);
    mem_free(w->setup);
    mem_free(w->path);
    mem_free(w->python);
    mem_free(w);
}
