/* On-policy distillation over several candidates of a position (rl-math 6.5): what the student has
 * over the teacher, averaged over a set of tokens instead of the sampled one alone.
 *
 *     struct opd_side student = {.ids = ids, .logps = logps, .n = k}, teacher = {...};
 *     rc = opd_delta(&o, &student, &teacher, &delta, &e);
 *
 * Pure functions; nothing is kept. */
#ifndef TRAIN_OPD_H
#define TRAIN_OPD_H

#include <stdint.h>

struct err;

enum opd_strategy { /* order of --opd-top-k-strategy */
                    OPD_ONLY_STUDENT,
                    OPD_ONLY_TEACHER,
                    OPD_INTERSECTION,
                    OPD_UNION,
                    OPD_XOR
};
#define OPD_STRATEGIES "only-student|only-teacher|intersection|union|xor"
enum opd_weight { OPD_STUDENT_P, OPD_TEACHER_P, OPD_NONE }; /* order of --opd-reward-weight-mode */
#define OPD_WEIGHTS "student_p|teacher_p|none"

struct opd_opts {
    enum opd_strategy strategy;
    enum opd_weight weight;
};

/* What one model says at one position; the arrays are the caller's. */
struct opd_side {
    const int32_t *ids; /* its own candidates, most likely first */
    const float *logps;
    int n;
    const int32_t *more_ids; /* its log-probs of tokens that the other one named */
    const float *more_logps;
    int nmore;
};

/* *delta = sum over the set of w (student - teacher): w adds to 1 but for xor, where it is the
 * probability itself (1 with OPD_NONE); an empty set gives 0. STATUS_INPUT when a token of the set
 * has a log-prob on one side only, STATUS_NUMERIC when one is not finite. */
int opd_delta(const struct opd_opts *o, const struct opd_side *student,
              const struct opd_side *teacher, float *delta, struct err *e);

/* Which lists a strategy looks at: the other side has to score what they name. */
int opd_uses_student(enum opd_strategy s);
int opd_uses_teacher(enum opd_strategy s);

#endif
