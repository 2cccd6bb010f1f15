/* Stretches of time with a name: a phase of the loop, a pass of the trainer, an engine that takes
 * weights. They go to the sinks that the run (or a test) registered; without one they cost nothing.
 *
 *     double t0 = span_now();
 *     ...
 *     span_emit("trainer", "score", t0, span_now(), -1);
 *
 * A lane is a line of the picture: spans of one lane do not overlap, or lie inside each other. Any
 * thread may emit. */
#ifndef BASE_SPAN_H
#define BASE_SPAN_H

#include <stdint.h>

struct span {
    const char *lane, *name; /* valid for the call */
    double t0, t1;           /* seconds of span_now */
    int64_t rollout;         /* -1: none in particular */
};

typedef void span_sink_fn(void *arg, const struct span *s);

double span_now(void); /* seconds, monotonic */
void span_emit(const char *lane, const char *name, double t0, double t1, int64_t rollout);
/* At most 4 sinks; 0 or STATUS_NOMEM. */
int span_add_sink(span_sink_fn *fn, void *arg);
void span_remove_sink(span_sink_fn *fn, void *arg);

/* Phases that follow each other in one lane: entering one ends the one before. The same name again
 * changes nothing; NULL ends the last one. Zero is a lane without a phase. */
struct span_lane {
    const char *name; /* static storage, or NULL */
    double t0;
    int64_t rollout;
};
void span_enter(struct span_lane *l, const char *lane, const char *name, int64_t rollout);

#endif
