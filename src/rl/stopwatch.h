/* Ends samples of the engine in this process where their text has a stop string (--rollout-stop),
 * as servers do it for theirs. A sample that goes on from earlier tokens is looked at from there
 * on.
 *
 *     stopwatch_init(&w, tok);
 *     stopwatch_add(&w, group, &e);            when a group that has stop strings is submitted
 *     engine_step(g, &e); stopwatch_look(&w, g, &e);
 *     while (engine_take(g, &r)) { stopwatch_taken(&w, &r, &e); ...; }
 *     stopwatch_fini(&w);
 *
 * One thread, the engine's. */
#ifndef RL_STOPWATCH_H
#define RL_STOPWATCH_H

#include "rl/port.h"

struct engine;
struct engine_result;
struct err;
struct stopwatch_group;
struct tokenizer;

struct stopwatch {
    const struct tokenizer *tok; /* borrowed */
    struct stopwatch_group **groups;
    int n, cap, last; /* last: where the search for a group begins */
};

void stopwatch_init(struct stopwatch *w, const struct tokenizer *tok);
void stopwatch_fini(struct stopwatch *w);
/* g->texts are borrowed until the last sample of the group is taken. A group without any is left
 * alone. STATUS_INPUT when there is no tokenizer. */
int stopwatch_add(struct stopwatch *w, const struct port_group *g, struct err *e);
/* After a step: ends the samples whose text has come to a stop string. */
int stopwatch_look(struct stopwatch *w, struct engine *g, struct err *e);
/* Of a sample that was taken: its finish becomes ENGINE_STOP when its last token completed one. */
int stopwatch_taken(struct stopwatch *w, struct engine_result *r, struct err *e);

#endif
