/* A teacher behind HTTP (--opd-type sglang): servers with SGLang's /generate say how likely they
 * find the tokens of samples (rl-math 6.5).
 *
 *     struct teacher *t;
 *     teacher_open(&(struct teacher_opts){.urls = v, .nurls = n, .key = "opd_teacher"}, &t, &e);
 *     teacher_now(t, rollout);
 *     teacher_score(t, samples, n, out, &e);        out[i]: (response_len) log-probs
 *     teacher_close(t);
 *
 * A sample's metadata may name its teacher; the one called "default" serves the others. Questions
 * are asked side by side, and again when a server is away; nothing is believed that does not speak
 * of the sample's own tokens. One thread. */
#ifndef RL_TEACHER_H
#define RL_TEACHER_H

#include <stdint.h>

struct err;
struct journal;
struct sample;
struct teacher;

struct teacher_opts {
    char *const *urls; /* NAME=URL; a path "/generate" is put behind where there is none */
    int64_t nurls;
    const char *key;  /* of the metadata */
    double timeout_s; /* for one answer, all tries together */
    int inflight;     /* questions at once; 0: 32 */
    /* Answers are recorded before they are told, and not asked for again (contract C5); called by
     * the thread that asks. NULL: not. */
    struct journal *journal;
};

int teacher_open(const struct teacher_opts *o, struct teacher **out, struct err *e);
void teacher_close(struct teacher *t); /* NULL is fine */
/* The rollout whose samples are asked for from now on. */
void teacher_now(struct teacher *t, int64_t rollout);
/* Log-probs of every response's tokens. STATUS_INPUT: a sample names a teacher that there is not;
 * STATUS_CHILD: a server does not answer, or not as it must. */
int teacher_score(struct teacher *t, struct sample *const *s, int n, float *const *out,
                  struct err *e);

/* Candidates of a sample's positions, k each. */
struct teacher_lists {
    int k;
    const int32_t *own; /* (response, k) tokens to be scored, or NULL */
    float *own_logp;    /* (response, k) out */
    int32_t *top;       /* (response, k) out: the teacher's best tokens, or NULL */
    float *top_logp;    /* (response, k) out */
    /* 1: each position is asked for its own tokens, which only `miles serve` understands; 0: every
     * position for the tokens of all, as in SGLang */
    int per_position;
};
/* Fills the lists of every sample. */
int teacher_top(struct teacher *t, struct sample *const *s, int n, const struct teacher_lists *l,
                struct err *e);

#endif
