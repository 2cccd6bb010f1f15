/* Owns logical time. Running samples are in one heap, by the earliest moment at which they may
 * finish: of a sample whose length is known that is when it does, of another it is one tick behind
 * what is known of it. The top of the heap is then either the next to finish, or the one sample
 * that must be asked about. */
#include "rl/vclock.h"

#include "base/mem.h"
#include "base/status.h"

enum vclock_state { VCLOCK_WAITS, VCLOCK_RUNS, VCLOCK_DONE };

struct vclock_job {
    int64_t key;
    int64_t start;
    int64_t len;   /* tokens; 0: not known */
    int64_t reach; /* tokens that it has at least */
    int at;        /* in the heap */
    enum vclock_state state;
};

struct vclock {
    struct vclock_job *jobs;
    int njobs, cap;
    int next;  /* first job that waits: they begin in the order of their numbers */
    int *heap; /* (cap) running jobs */
    int nheap;
    int known; /* running jobs of known length */
    int64_t concurrency, now;
};

struct vclock *vclock_new(int64_t concurrency)
{
    struct vclock *v = mem_alloc(sizeof *v);
    ASSERT(concurrency >= 1);
    v->concurrency = concurrency;
    return v;
}

void vclock_free(struct vclock *v)
{
    if (v) {
        mem_free(v->jobs);
        mem_free(v->heap);
        mem_free(v);
    }
}

/* The earliest tick at which it may finish. */
static int64_t vclock_end(const struct vclock_job *j)
{
    return j->start + (j->len ? j->len : j->reach + 1);
}

static int vclock_before(const struct vclock *v, int a, int b)
{
    const struct vclock_job *x = &v->jobs[a], *y = &v->jobs[b];
    int64_t s = vclock_end(x), t = vclock_end(y);
    return s < t || (s == t && (x->key < y->key || (x->key == y->key && a < b)));
}

static void vclock_put(struct vclock *v, int at, int job)
{
    v->heap[at] = job;
    v->jobs[job].at = at;
}

static void vclock_up(struct vclock *v, int at)
{
    int job = v->heap[at];
    while (at > 0 && vclock_before(v, job, v->heap[(at - 1) / 2])) {
        vclock_put(v, at, v->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    vclock_put(v, at, job);
}

static void vclock_down(struct vclock *v, int at)
{
    int job = v->heap[at];
    for (;;) {
        int c = 2 * at + 1;
        if (c + 1 < v->nheap && vclock_before(v, v->heap[c + 1], v->heap[c])) {
            c++;
        }
        if (c >= v->nheap || !vclock_before(v, v->heap[c], job)) {
            break;
        }
        vclock_put(v, at, v->heap[c]);
        at = c;
    }
    vclock_put(v, at, job);
}

/* Begins what waits, as far as there are places. */
static void vclock_begin(struct vclock *v)
{
    while (v->next < v->njobs && v->nheap < v->concurrency) {
        struct vclock_job *j = &v->jobs[v->next];
        j->start = v->now;
        j->state = VCLOCK_RUNS;
        v->known += j->len > 0;
        v->heap[v->nheap] = v->next++;
        vclock_up(v, v->nheap++);
    }
}

int vclock_add(struct vclock *v, int64_t key)
{
    int job = v->njobs;
    if (job == v->cap) {
        int cap = v->cap ? v->cap * 2 : 256;
        v->jobs =
            mem_realloc(v->jobs, sizeof *v->jobs * (size_t)v->cap, sizeof *v->jobs * (size_t)cap);
        v->heap =
            mem_realloc(v->heap, sizeof *v->heap * (size_t)v->cap, sizeof *v->heap * (size_t)cap);
        v->cap = cap;
    }
    v->jobs[v->njobs++] = (struct vclock_job){.key = key, .state = VCLOCK_WAITS};
    return job;
}

/* What is known of a running job has grown: it may only finish later than was thought. */
static void vclock_later(struct vclock *v, const struct vclock_job *j)
{
    if (j->state == VCLOCK_RUNS) {
        vclock_down(v, j->at);
    }
}

void vclock_finish(struct vclock *v, int job, int64_t n)
{
    struct vclock_job *j = &v->jobs[job];
    ASSERT(n >= 1 && n > j->reach && !j->len);
    j->len = n;
    v->known += j->state == VCLOCK_RUNS;
    vclock_later(v, j);
}

int vclock_reach(struct vclock *v, int job, int64_t n)
{
    struct vclock_job *j = &v->jobs[job];
    int news = !j->len && n > j->reach;
    if (news) {
        j->reach = n;
        vclock_later(v, j);
    }
    return news;
}

int vclock_next(struct vclock *v, int *job)
{
    struct vclock_job *j;

    vclock_begin(v);
    if (!v->nheap) {
        return STATUS_END;
    }
    *job = v->heap[0];
    j = &v->jobs[*job];
    if (!j->len) {
        *job = v->known ? *job : -1;
        return STATUS_AGAIN;
    }
    v->known--;
    v->now = vclock_end(j);
    j->state = VCLOCK_DONE;
    v->heap[0] = v->heap[--v->nheap];
    if (v->nheap) {
        vclock_put(v, 0, v->heap[0]);
        vclock_down(v, 0);
    }
    return STATUS_OK;
}

int64_t vclock_now(const struct vclock *v)
{
    return v->now;
}

int64_t vclock_tokens(const struct vclock *v, int job)
{
    const struct vclock_job *j = &v->jobs[job];
    return j->state == VCLOCK_DONE ? j->len : j->state == VCLOCK_RUNS ? v->now - j->start : 0;
}

int vclock_done(const struct vclock *v, int job)
{
    const struct vclock_job *j = &v->jobs[job];
    return j->len && vclock_tokens(v, job) == j->len;
}

int vclock_known(const struct vclock *v, int job)
{
    const struct vclock_job *j = &v->jobs[job];
    return j->len || j->reach >= vclock_tokens(v, job);
}
