/* Owns the sets and weights of top-k distillation. The lists are short, so a token is looked for by
 * walking them; sums run in the order of the set, in doubles. */
#include "train/opd.h"

#include <math.h>
#include <stddef.h>

#include "base/status.h"
#include "num/vmath.h"

int opd_uses_student(enum opd_strategy s)
{
    return s != OPD_ONLY_TEACHER;
}

int opd_uses_teacher(enum opd_strategy s)
{
    return s != OPD_ONLY_STUDENT;
}

static const float *opd_find(const int32_t *ids, const float *logps, int n, int32_t id)
{
    for (int i = 0; i < n; i++) {
        if (ids[i] == id) {
            return &logps[i];
        }
    }
    return NULL;
}

static int opd_names(const struct opd_side *s, int32_t id)
{
    return opd_find(s->ids, s->logps, s->n, id) != NULL;
}

/* Its log-prob of a token; NULL when it was not told. */
static const float *opd_score(const struct opd_side *s, int32_t id)
{
    const float *own = opd_find(s->ids, s->logps, s->n, id);
    return own ? own : opd_find(s->more_ids, s->more_logps, s->nmore, id);
}

/* Member i of the set, the student's candidates first; -1 when candidate i is not in it. */
static int32_t opd_member(const struct opd_opts *o, const struct opd_side *student,
                          const struct opd_side *teacher, int i)
{
    int mine = i < student->n;
    int32_t id = mine ? student->ids[i] : teacher->ids[i - student->n];
    int both = mine ? opd_names(teacher, id) : opd_names(student, id);
    int in;

    switch (o->strategy) {
    case OPD_ONLY_STUDENT: in = mine; break;
    case OPD_ONLY_TEACHER: in = !mine; break;
    case OPD_INTERSECTION: in = mine && both; break;
    case OPD_UNION: in = mine || !both; break;
    default: in = !both; break;
    }
    return in ? id : -1;
}

int opd_delta(const struct opd_opts *o, const struct opd_side *student,
              const struct opd_side *teacher, float *delta, struct err *e)
{
    double top = -INFINITY, sum = 0, z = 0;
    int all = student->n + teacher->n;

    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < all; i++) {
            int32_t id = opd_member(o, student, teacher, i);
            const float *s, *t;
            double x, w;
            if (id < 0) {
                continue;
            }
            s = opd_score(student, id);
            t = opd_score(teacher, id);
            if (!s || !t) {
                return ERR(e, STATUS_INPUT, "token %d has no log-prob of the %s", (int)id,
                           s ? "teacher" : "student");
            }
            if (!isfinite(*s) || !isfinite(*t)) {
                return ERR(e, STATUS_NUMERIC, "a log-prob of token %d is not finite", (int)id);
            }
            x = o->weight == OPD_NONE ? 0.0 : (double)(o->weight == OPD_STUDENT_P ? *s : *t);
            if (pass == 0) {
                top = x > top ? x : top;
                continue;
            }
            /* xor weighs by the probability itself, the others by its share of the set */
            w = vmath_exp(o->strategy == OPD_XOR ? x : x - top);
            z += w;
            sum += w * ((double)*s - (double)*t);
        }
    }
    *delta = (float)(o->strategy == OPD_XOR || z == 0 ? sum : sum / z);
    return STATUS_OK;
}
