/* Owns the pool of sympy processes, the answers that were had, and who waits for which. A question
 * is its text: equal text is asked once, the answer goes to all who wait. Answers live in a ring,
 * so the oldest goes when the ring is full; unknown answers that came of a time-out or a lost
 * process are not kept, because another time they may be had. */
#include "reward/mathsym.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/proc.h"
#include "base/status.h"
#include "reward/mathask.h"
#include "reward/sandbox.h"
#include "reward/worker.h"

enum { QUEUE_MAX = 8192, ASK_MAX = 1 << 18 };
static const int64_t MEMORY = (int64_t)3 << 30; /* address space; sympy itself takes a tenth */

struct waiter {
    struct waiter *next;
    int64_t id;
};

/* A question: on its way while it has waiters, then an answer. */
struct entry {
    struct entry *next; /* of its bucket */
    char *ask;
    uint64_t hash;
    struct waiter *waiters;
    int right;
    char reason[MATHVERDICT_REASON];
};

struct done {
    struct done *next;
    struct mathsym_result r;
};

struct mathsym {
    struct worker_pool *workers;
    char *python;
    int boxed; /* the processes run in a sandbox */
    struct entry **bucket;
    size_t nbuckets;
    struct entry **ring; /* answers, the oldest at `at` when full */
    size_t nring, at, kept;
    struct done *first, *last;
    int pending;
    int64_t hits;
};

/* ---- processes ---- */

static int spawn_boxed(void *arg, const struct proc_opts *o, struct proc *p, struct err *e)
{
    const struct mathsym *m = arg;
    struct sandbox_opts so = {.python = m->python, .limits = {.memory = MEMORY}};

    return sandbox_spawn(&so, o, p, e);
}

/* Where the interpreter is: a sandbox has no PATH to look it up in. */
static int find_python(struct mathsym *m, const char *name, struct err *e)
{
    const char *argv[] = {name, "-I", "-c", "import sys; print(sys.executable)", NULL};
    struct proc_opts o = {.argv = argv, .request_fd = -1, .reply_fd = 1, .life_fd = -1};
    struct proc p;
    struct buf b;
    size_t len = 0;
    int rc = proc_spawn(&p, &o, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    buf_init(&b, 1 << 14);
    rc = proc_read_line(&p, &b, proc_now() + 30, &len, e);
    if (rc == STATUS_OK && len > 1) {
        m->python = mem_strndup(b.data, len - 1);
    } else if (rc >= 0) {
        rc = ERR(e, STATUS_CHILD, "%s does not say where it is", name);
    }
    proc_end(&p);
    buf_fini(&b);
    return rc;
}

/* ---- answers ---- */

static uint64_t hash_of(const char *s)
{
    uint64_t h = 1469598103934665603u;

    for (; *s; s++) {
        h = (h ^ (unsigned char)*s) * 1099511628211u;
    }
    return h;
}

static struct entry *find(const struct mathsym *m, const char *ask, uint64_t hash)
{
    struct entry *x = m->bucket[hash % m->nbuckets];

    while (x && (x->hash != hash || strcmp(x->ask, ask) != 0)) {
        x = x->next;
    }
    return x;
}

static void drop(struct mathsym *m, struct entry *x)
{
    struct entry **at = &m->bucket[x->hash % m->nbuckets];

    while (*at != x) {
        at = &(*at)->next;
    }
    *at = x->next;
    mem_free(x->ask);
    mem_free(x);
}

static void keep(struct mathsym *m, struct entry *x)
{
    if (m->kept == m->nring) {
        drop(m, m->ring[m->at]);
    } else {
        m->kept++;
    }
    m->ring[m->at] = x;
    m->at = (m->at + 1) % m->nring;
}

static void tell(struct mathsym *m, int64_t id, int right, const char *reason)
{
    struct done *d = mem_alloc(sizeof *d);

    d->r.id = id;
    mathverdict_set(&d->r.v, right, "%s", reason);
    if (m->last) {
        m->last->next = d;
    } else {
        m->first = d;
    }
    m->last = d;
}

/* The pool has answered: all who wait hear it. */
static void land(struct mathsym *m, struct worker_result *w)
{
    struct entry *x = (struct entry *)(intptr_t)w->id;
    const char *reason = json_string_value(json_object_get(w->value, "reason"));
    const json_t *value = json_object_get(w->value, "value");
    int lost = w->failed || !json_is_number(value);

    x->right = lost ? -1 : (int)json_number_value(value);
    if (lost) {
        snprintf(x->reason, sizeof x->reason, "needs algebra, and sympy: %.200s",
                 w->failed ? w->reason : "no answer");
    } else {
        snprintf(x->reason, sizeof x->reason, "%s", reason ? reason : "by sympy");
    }
    while (x->waiters) {
        struct waiter *k = x->waiters;
        x->waiters = k->next;
        tell(m, k->id, x->right, x->reason);
        mem_free(k);
    }
    if (lost) {
        drop(m, x);
    } else {
        keep(m, x);
    }
    json_decref(w->value);
}

/* ---- public ---- */

int mathsym_submit(struct mathsym *m, int64_t id, const char *ask, struct err *e)
{
    uint64_t hash = hash_of(ask);
    struct entry *x = find(m, ask, hash);
    struct waiter *k;
    json_t *q, *sample;
    int rc;

    if (m->pending >= QUEUE_MAX) {
        return STATUS_AGAIN;
    }
    if (x && !x->waiters) {
        m->hits++;
        m->pending++;
        tell(m, id, x->right, x->reason);
        return STATUS_OK;
    }
    if (!x) {
        q = strnlen(ask, ASK_MAX + 1) <= ASK_MAX ? json_loads(ask, 0, NULL) : NULL;
        if (!json_is_object(q)) {
            json_decref(q);
            return ERR(e, STATUS_INPUT, "not a question of algebra, or longer than %d bytes",
                       (int)ASK_MAX);
        }
        x = mem_alloc(sizeof *x);
        sample = json_pack("{s:o}", "ask", q);
        rc = worker_submit(m->workers, (int64_t)(intptr_t)x, sample, e);
        json_decref(sample);
        if (rc != STATUS_OK) {
            mem_free(x);
            return rc;
        }
        x->ask = mem_strdup(ask);
        x->hash = hash;
        x->next = m->bucket[hash % m->nbuckets];
        m->bucket[hash % m->nbuckets] = x;
    }
    k = mem_alloc(sizeof *k);
    k->id = id;
    k->next = x->waiters;
    x->waiters = k;
    m->pending++;
    return STATUS_OK;
}

int mathsym_poll(struct mathsym *m, double wait_s, struct mathsym_result *out, struct err *e)
{
    struct worker_result w;
    struct done *d;

    if (!m->first && worker_pending(m->workers)) {
        int rc = worker_poll(m->workers, wait_s, &w, e);
        if (rc != STATUS_OK) {
            return rc;
        }
        land(m, &w);
    }
    d = m->first;
    if (!d) {
        return STATUS_AGAIN;
    }
    m->first = d->next;
    m->last = m->first ? m->last : NULL;
    *out = d->r;
    mem_free(d);
    m->pending--;
    return STATUS_OK;
}

int mathsym_pending(const struct mathsym *m)
{
    return m->pending;
}

int64_t mathsym_hits(const struct mathsym *m)
{
    return m->hits;
}

int mathsym_restarts(const struct mathsym *m)
{
    return worker_restarts(m->workers);
}

int mathsym_boxed(const struct mathsym *m)
{
    return m->boxed;
}

static int start(struct mathsym *m, const struct mathsym_opts *o, struct err *e)
{
    struct worker_opts w = {.path = "sympy",
                            .source = mathask_script,
                            .python = m->python,
                            .count = o->workers,
                            .timeout_s = o->timeout_s > 0 ? o->timeout_s : 5,
                            .start_timeout_s = 120,
                            .queue_max = QUEUE_MAX,
                            .spawn = spawn_boxed,
                            .spawn_arg = m};
    struct err why = {0};
    int rc;

    m->boxed = 1;
    rc = worker_open(&w, &m->workers, &why);
    if (rc == STATUS_NOTFOUND || rc == STATUS_UNSUPPORTED) {
        struct err plain = {0};
        log_warn(REWARD, "no sandbox for sympy, it runs with limits only: %s", why.msg);
        m->boxed = 0;
        w.spawn = NULL;
        rc = worker_open(&w, &m->workers, &plain);
        why = plain;
    }
    if (rc != STATUS_OK && e) {
        *e = why;
    }
    return rc;
}

int mathsym_open(const struct mathsym_opts *o, struct mathsym **out, struct err *e)
{
    struct mathsym *m = mem_alloc(sizeof *m);
    int rc;

    m->nring = o->cache > 0 ? (size_t)o->cache : 65536;
    m->ring = mem_alloc(m->nring * sizeof *m->ring);
    m->nbuckets = 2 * m->nring + 1;
    m->bucket = mem_alloc(m->nbuckets * sizeof(struct entry *));
    rc = find_python(m, o->python && *o->python ? o->python : "python3", e);
    rc = rc == STATUS_OK ? start(m, o, e) : rc;
    if (rc != STATUS_OK) {
        mathsym_close(m);
        return rc;
    }
    *out = m;
    return STATUS_OK;
}

void mathsym_close(struct mathsym *m)
{
    if (!m) {
        return;
    }
    worker_close(m->workers);
    for (size_t i = 0; i < m->nbuckets; i++) {
        while (m->bucket[i]) {
            struct entry *x = m->bucket[i];
            m->bucket[i] = x->next;
            while (x->waiters) {
                struct waiter *k = x->waiters;
                x->waiters = k->next;
                mem_free(k);
            }
            mem_free(x->ask);
            mem_free(x);
        }
    }
    while (m->first) {
        struct done *d = m->first;
        m->first = d->next;
        mathverdict_fini(&d->r.v);
        mem_free(d);
    }
    mem_free(m->bucket);
    mem_free(m->ring);
    mem_free(m->python);
    mem_free(m);
}
