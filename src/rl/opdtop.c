/* Owns the lists of both sides while a rollout is compared. For position p of a sample all lists
 * have k entries at p * k. */
#include "rl/opdtop.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "rl/port.h"
#include "rl/sample.h"
#include "rl/teacher.h"
#include "train/trainer.h"

/* One sample's lists. */
struct opdtop_lists {
    int32_t *own;    /* (response, k) the model's candidates */
    float *own_logp; /* (response, k) */
    float *own_far;  /* (response, k) the teacher's log-probs of them */
    int32_t *far;    /* (response, k) the teacher's candidates */
    float *far_logp; /* (response, k) */
    float *far_own;  /* (response, k) the model's log-probs of them */
};

struct opdtop_work {
    const struct opdtop *c;
    struct opdtop_lists *l;
    int second; /* 1: the pass over the teacher's candidates */
};

/* The k largest of a row, by (logit descending, id ascending). */
static void opdtop_best(const float *x, int vocab, int k, int32_t *ids)
{
    int have = 0;
    for (int32_t v = 0; v < vocab; v++) {
        int at = have;
        if (have == k && !(x[v] > x[ids[k - 1]])) {
            continue;
        }
        at = have < k ? have++ : k - 1;
        while (at > 0 && x[v] > x[ids[at - 1]]) {
            ids[at] = ids[at - 1];
            at--;
        }
        ids[at] = v;
    }
}

static void opdtop_row(void *arg, const struct trainer_row *r)
{
    struct opdtop_work *w = arg;
    int k = w->c->k;
    size_t from = (size_t)r->at * (size_t)k;
    struct opdtop_lists *l = &w->l[r->sample];
    const int32_t *ids = (w->second ? l->far : l->own) + from;
    float *out = (w->second ? l->far_own : l->own_logp) + from;

    if (!w->second) {
        opdtop_best(r->x, r->vocab, k, l->own + from);
    }
    for (int i = 0; i < k; i++) {
        out[i] = (r->x[ids[i]] - r->max) - r->logz;
    }
}

static int opdtop_pass(struct opdtop_work *w, struct train_sample *t, int n, int second,
                       struct err *e)
{
    const struct trainer_port *a = w->c->actor;
    w->second = second;
    for (int i = 0; i < n; i++) {
        t[i].logp_out = t[i].entropy_out = NULL;
    }
    return a->score_rows(a->self, t, n, opdtop_row, w, e);
}

static int opdtop_sample(const struct opdtop *c, const struct opdtop_lists *l, int response,
                         float *out, struct err *e)
{
    int rc = STATUS_OK;
    for (int p = 0; rc == STATUS_OK && p < response; p++) {
        size_t at = (size_t)p * (size_t)c->k;
        struct opd_side student = {l->own + at, l->own_logp + at, c->k,
                                   l->far + at, l->far_own + at,  c->k};
        struct opd_side teacher = {l->far + at, l->far_logp + at, c->k,
                                   l->own + at, l->own_far + at,  c->k};
        if (!opd_uses_teacher(c->o.strategy)) { /* nobody asked for its candidates */
            teacher.n = student.nmore = 0;
        }
        if (!opd_uses_student(c->o.strategy)) {
            student.n = teacher.nmore = 0;
        }
        rc = opd_delta(&c->o, &student, &teacher, &out[p], e);
    }
    return rc;
}

static void opdtop_room(struct arena *mem, struct opdtop_lists *l, size_t n)
{
    l->own = arena_alloc(mem, sizeof *l->own * (n + 1));
    l->own_logp = arena_alloc(mem, sizeof *l->own_logp * (n + 1));
    l->own_far = arena_alloc(mem, sizeof *l->own_far * (n + 1));
    l->far = arena_alloc(mem, sizeof *l->far * (n + 1));
    l->far_logp = arena_alloc(mem, sizeof *l->far_logp * (n + 1));
    l->far_own = arena_alloc(mem, sizeof *l->far_own * (n + 1));
}

int opdtop_delta(const struct opdtop *c, struct sample *const *s, struct train_sample *t, int n,
                 float *const *out, struct err *e)
{
    struct opdtop_work w = {.c = c};
    struct teacher_lists *ask;
    struct arena mem;
    int rc = STATUS_OK;

    arena_init(&mem, 1 << 20);
    w.l = arena_alloc(&mem, sizeof *w.l * (size_t)(n + 1));
    ask = arena_alloc(&mem, sizeof *ask * (size_t)(n + 1));
    for (int i = 0; i < n; i++) {
        opdtop_room(&mem, &w.l[i], (size_t)t[i].response * (size_t)c->k);
        ask[i] = (struct teacher_lists){.k = c->k, .per_position = c->per_position};
        if (opd_uses_student(c->o.strategy)) {
            ask[i].own = w.l[i].own;
            ask[i].own_logp = w.l[i].own_far;
        }
        if (opd_uses_teacher(c->o.strategy)) {
            ask[i].top = w.l[i].far;
            ask[i].top_logp = w.l[i].far_logp;
        }
    }
    if (opd_uses_student(c->o.strategy)) {
        rc = opdtop_pass(&w, t, n, 0, e);
    }
    if (rc == STATUS_OK) {
        rc = teacher_top(c->teacher, s, n, ask, e);
    }
    if (rc == STATUS_OK && opd_uses_teacher(c->o.strategy)) {
        rc = opdtop_pass(&w, t, n, 1, e);
    }
    for (int i = 0; rc == STATUS_OK && i < n; i++) {
        rc = opdtop_sample(c, &w.l[i], t[i].response, out[i], e);
        if (rc != STATUS_OK) {
            err_prefix(e, "sample %lld", (long long)s[i]->index);
        }
    }
    arena_fini(&mem);
    return rc;
}
