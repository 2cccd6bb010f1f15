/* One rollout of a run, or one evaluation set: from the data to samples that are ready, with the
 * metrics of the way. Between loop and rollout: it knows the options and the data source, not what
 * comes before and after it.
 *
 *     struct turn t = {0};
 *     turn_begin(&t, &loop_cfg, buffer, 7, &e);
 *     while ((rc = turn_tick(&t, &e)) == STATUS_AGAIN) { }
 *     turn_samples(&t, &n), t.row                 0: they are there
 *     turn_fini(&t);
 *
 * A turn that is whole can wait in a checkpoint until it is trained (turn_state, turn_restore). */
#ifndef RL_TURN_H
#define RL_TURN_H

#include <jansson.h>
#include <stdint.h>

struct buffer;
struct err;
struct evalset;
struct loop_cfg;
struct rollout;
struct sample;
struct stream;

struct turn {
    const struct loop_cfg *c; /* borrowed; NULL: there is no turn */
    struct buffer *buffer;    /* borrowed: unfinished groups, or NULL */
    int64_t id;               /* of the rollout */
    int eval;                 /* number of the evaluation set, -1: a rollout that is trained */
    struct rollout *roll;     /* or: */
    struct stream *stream;    /* borrowed; or: */
    struct sample **given;    /* from a file, a checkpoint or the stream */
    int ngiven;
    int asked;    /* 1: a function of the user's is making the samples */
    int64_t gets; /* calls of the user's data source so far */
    int drawn;    /* 1: by this run's engines; 0: read from a file of the user's */
    int whole;    /* 1: the samples are there */
    double began;
    json_t *row; /* metrics; who emits it takes it */
};

int turn_begin(struct turn *t, const struct loop_cfg *c, struct buffer *buffer, int64_t id,
               struct err *e);
/* The same out of a stream, which goes on behind it. */
void turn_begin_stream(struct turn *t, const struct loop_cfg *c, struct stream *s, int64_t id);
/* The set's prompts, all of them; id is the step that it is made at. */
void turn_begin_eval(struct turn *t, const struct loop_cfg *c, int set, int64_t id);
/* Does a piece of work. STATUS_AGAIN: more to do; 0: whole. */
int turn_tick(struct turn *t, struct err *e);
struct sample **turn_samples(struct turn *t, int *n); /* owned by the turn */
int turn_done_samples(const struct turn *t);          /* answers so far */
void turn_fini(struct turn *t);                       /* and there is no turn */

/* A whole turn, bit for bit; the caller owns it. */
json_t *turn_state(struct turn *t);
int turn_restore(struct turn *t, const struct loop_cfg *c, const json_t *state, struct err *e);

/* What a stream of the run takes its prompts with; it must outlive the stream. */
struct turn_feed {
    const struct loop_cfg *c;
    const int64_t *rollout; /* that is trained next, or now: events are recorded under it */
};
struct stream *turn_open_stream(const struct turn_feed *f);

/* Records an event of the run, if it has a journal. Takes data. */
int turn_record(const struct loop_cfg *c, int event, int64_t rollout, json_t *data, struct err *e);

#endif
