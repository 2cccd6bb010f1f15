/* Groups in flight: they are submitted to the rollout port, answers come back in any order, and
 * each goes to the reward hub.
 *
 *     struct batch *b = batch_new(&cfg);
 *     batch_add(b, &item, &e);                  a group: prompt row, numbers, sampling
 *     batch_resume(b, samples, &e);             one that goes on from what it has
 *     while ((rc = batch_tick(b, &e)) == STATUS_AGAIN) {
 *         while (batch_event(b, &ev)) { ... }   what has become known
 *     }
 *     batch_free(b);
 *
 * What becomes of a group when it is complete is not decided here (rl/rollout.h). */
#ifndef RL_BATCH_H
#define RL_BATCH_H

#include <stdint.h>

#include "rl/port.h"
#include "rl/sample.h"

struct err;
struct hub;
struct journal;
struct promptenc;
struct prompts_row;
struct world;

struct batch_cfg {
    const struct rollout_port *port;
    struct hub *hub;           /* NULL: no rewards */
    struct journal *journal;   /* rewards are recorded, and recalled; NULL: not */
    const struct world *world; /* NULL: the system's */
    int scored;                /* 1: without a hub the journal alone has the rewards */
    const struct promptenc *enc;
    int n;                   /* samples per group */
    struct port_group proto; /* sampling parameters, seed and stream */
    int max_context;         /* 0: no bound beside the engine's */
    int skip_special;
    int group_rm; /* 1: a group goes to the hub as one request, when it is answered whole */
    int mask_old; /* 1: tokens that a resumed sample has already are not trained */
};

struct batch_item {
    const struct prompts_row *row; /* needed during batch_add only */
    int64_t group_index, index;    /* of the first sample */
};

struct batch_event {
    enum { BATCH_ANSWER, BATCH_SCORED } kind; /* a sample is answered; a group is scored whole */
    int group, sample;
    int ntokens; /* new ones of the answer */
};

struct batch;
struct batch *batch_new(const struct batch_cfg *cfg);
void batch_free(struct batch *b);
/* Groups are numbered from 0 in the order in which they are added; what is refused has none. */
int batch_add(struct batch *b, const struct batch_item *item, struct err *e);
/* The samples (n) are the batch's from now on; the list is copied. */
int batch_resume(struct batch *b, struct sample *const *s, struct err *e);
/* Does a piece of work. STATUS_AGAIN: more to do; 0: every group is answered and scored. */
int batch_tick(struct batch *b, struct err *e);
int batch_event(struct batch *b, struct batch_event *ev);

int batch_groups(const struct batch *b);
/* The samples (n) of a group; NULL when it was forgotten or handed over. */
struct sample **batch_group(struct batch *b, int group);
/* 1: the sample needs nothing more of the engine: it came finished, or its answer is here. */
int batch_answered(const struct batch *b, int group, int sample);
int batch_is_scored(const struct batch *b, int group, int sample);
/* NULL, or why the group has no rewards. */
const char *batch_failure(const struct batch *b, int group);
/* Tokens that an unanswered sample has got so far, 0 when nobody knows. */
int batch_progress(const struct batch *b, int group, int sample);
/* New tokens that the answer of a sample had. */
int batch_fresh(const struct batch *b, int group, int sample);
/* Frees a group's samples; and gives them away: list and samples are the caller's. */
void batch_forget(struct batch *b, int group);
struct sample **batch_hand_over(struct batch *b, int group);
/* And nothing of the group will be asked for again. */
void batch_release(struct batch *b, int group);

/* Ends what is in flight. After it no reward is asked for, and batch_tick is 0 when the engines and
 * the hub have nothing of this batch any more. Samples that were not answered keep the tokens they
 * have got, and are SAMPLE_ABORTED. */
void batch_abort(struct batch *b);
/* Leaves an aborted group's sample with its first n new tokens. */
int batch_cut(struct batch *b, int group, int sample, int n, struct err *e);
/* Takes a finished sample's reward away, or its failure. */
void batch_unscore(struct batch *b, int group, int sample);
/* In which rollout groups are submitted from now on, and the weights that engines have then: what
 * answers and rewards are recorded under, and as old as a sample may be. Of a group: as it was. */
void batch_now(struct batch *b, int64_t rollout, int64_t version);
void batch_when(const struct batch *b, int group, int64_t *rollout, int64_t *version);
/* 1: neither engines nor the hub have anything of it. */
int batch_idle(const struct batch *b);
int batch_done_samples(const struct batch *b); /* answers so far, for progress */

#endif
