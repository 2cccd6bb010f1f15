/* Shared by the files of weights. */
#ifndef MODEL_WEIGHTS_INT_H
#define MODEL_WEIGHTS_INT_H

#include "model/weights.h"

/* The memory that a parameter keeps: its own, or the next of the image. */
int weights_place(struct weights *w, struct param *p, struct err *e);
/* The leaves of each contraction that tensor parallelism may split (contract C1). */
void weights_leaves(struct weights *w);
/* One pair of tables for each rope that layers use; attached weights find theirs filled. */
int weights_ropes(struct weights *w, struct err *e);
/* Pairs of rope tables: equal ropes share theirs. */
int weights_rope_count(const struct weights *w);

/* Memory for an image of these shapes, and the page that lets others attach, once all is placed. */
int weights_image_make(struct weights *w, struct err *e);
void weights_image_ready(struct weights *w, int use);

#endif
