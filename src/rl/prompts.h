/* The data source: rows of a JSONL file in the order of Miles (shuffled per epoch with seed + epoch
 * by CPython's generator), group and sample counters, a cursor that goes into checkpoints.
 *
 *     struct prompts_opts o = {.path = "train.jsonl@[0:100]", .input_key = "prompt",
 *                              .label_key = "label", .shuffle = 1, .seed = 42, .group_size = 8};
 *     struct prompts *p;
 *     if (prompts_open(&p, &o, &e) == 0) {
 *         struct prompts_group g[4];
 *         prompts_next(p, 4, g, &e);           (never fewer: epochs wrap as often as needed)
 *         ... g[0].row->prompt ...
 *     }
 *     prompts_close(p);
 *
 * Nothing is tokenised here. A malformed line is an error with file:line and cause, never skipped;
 * blank lines are not rows. One thread. */
#ifndef RL_PROMPTS_H
#define RL_PROMPTS_H

#include <jansson.h>
#include <stdint.h>

struct err;

struct prompts_row {
    json_t *prompt;   /* string, or array of message objects; never NULL */
    json_t *label;    /* any; NULL when no label key was asked */
    json_t *metadata; /* object, maybe empty; never NULL */
    json_t *tools;    /* array, or NULL */
    int64_t line;     /* 1-based line in the file */
};

struct prompts_opts {
    const char *path;         /* FILE or FILE@[a:b], Python slice over the rows */
    const char *input_key;    /* NULL: "input" */
    const char *label_key;    /* NULL: no labels; else every row must have it */
    const char *metadata_key; /* NULL: "metadata"; may be absent in a row */
    const char *tool_key;     /* NULL: "tools"; may be absent in a row */
    int shuffle;
    uint64_t seed;
    int64_t group_size; /* samples per prompt, >= 1: index advances by it per group */
    /* Applied once at load; 0 drops the row (too long a prompt), 1 keeps it, negative is an error
     * that ends the load (e may be filled). NULL keeps all. */
    int (*keep)(void *arg, const struct prompts_row *row, struct err *e);
    void *keep_arg;
};

struct prompts_group {
    const struct prompts_row *row; /* owned by the source, valid until prompts_close */
    int64_t row_index;             /* position in the file after slice and filter */
    int64_t group_index;           /* increases over the whole run */
    int64_t index;                 /* of the first of group_size samples, increases over the run */
    int64_t epoch;
};

struct prompts;

int prompts_open(struct prompts **out, const struct prompts_opts *o, struct err *e);
void prompts_close(struct prompts *p);            /* NULL is fine */
int64_t prompts_count(const struct prompts *p);   /* rows after slice and filter, >= 1 */
int64_t prompts_dropped(const struct prompts *p); /* rows that keep() refused */
/* Row i in file order, for evaluation. */
const struct prompts_row *prompts_row(const struct prompts *p, int64_t i);

/* The next n groups. */
int prompts_next(struct prompts *p, int64_t n, struct prompts_group *out, struct err *e);

/* The cursor: {sample_offset, epoch_id, sample_group_index, sample_index, rows}. The caller owns
 * the object. Restoring refuses a cursor that does not fit the rows. */
json_t *prompts_state(const struct prompts *p);
int prompts_restore(struct prompts *p, const json_t *state, struct err *e);

#endif
