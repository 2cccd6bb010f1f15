/* The data source: rows of data files in the order of Miles (shuffled per epoch with seed + epoch
 * by CPython's generator), group and sample counters, a cursor that goes into checkpoints.
 *
 *     struct prompts_opts o = {.path = "train.jsonl@[0:100],more.parquet", .input_key = "prompt",
 *                              .label_key = "label", .shuffle = 1, .seed = 42, .group_size = 8};
 *     struct prompts *p;
 *     if (prompts_open(&p, &o, &e) == 0) {
 *         struct prompts_group g[4];
 *         prompts_next(p, 4, g, &e);           (never fewer: epochs wrap as often as needed)
 *         ... g[0].row->prompt ...
 *     }
 *     prompts_close(p);
 *
 * Files are JSON lines, JSON arrays, either with gzip or zstd, or Parquet (rl/rowfile.h). Every row
 * is checked when opening, but only its place is kept: 8 bytes a row, 12 when shuffled. A row is
 * read and parsed when it is served. A bad row is an error with file:line:column and cause; with
 * skip_bad it is left out, counted and logged. Blank lines are not rows. One thread. */
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
    int64_t line;     /* 1-based line in its file; row of a Parquet file */
};

struct prompts_opts {
    /* FILE or FILE@[a:b], a Python slice over the rows; several with commas between them. A name
     * that holds a comma itself can stand alone. */
    const char *path;
    const char *input_key;    /* NULL: "input" */
    const char *label_key;    /* NULL: no labels; else every row must have it */
    const char *metadata_key; /* NULL: "metadata"; may be absent in a row */
    const char *tool_key;     /* NULL: "tools"; may be absent in a row */
    int skip_bad;             /* bad rows are left out; slices count the good ones */
    int shuffle;
    uint64_t seed;
    int64_t group_size; /* samples per prompt, >= 1: index advances by it per group */
    int threads;        /* for opening; 0: all cores */

    /* The length of a row's prompt in tokens, or a negative status that ends the opening (e may be
     * filled). Called while opening, from several threads. NULL: lengths do not matter. */
    int (*tokens)(void *arg, const struct prompts_row *row, struct err *e);
    /* Told the length of each row that was measured and kept, shortest first, from one thread. */
    void (*seen)(void *arg, int tokens);
    void *arg;
    /* Rows with more tokens are dropped; 0: none. All rows are measured then, but for those whose
     * text has at most sure_bytes bytes: the caller knows that they are short enough. */
    int64_t max_tokens, sure_bytes;
    /* Up to so many rows all are measured. Of more, where the filter does not need them all, some
     * thousands are: the longest texts and others spread evenly. 0: 200000. */
    int64_t full;
    /* A file that keeps what the filter found out about more than `full` rows for the next opening
     * of the same ones; NULL: none. cache_key stands for all that `tokens` depends on besides the
     * rows. */
    const char *cache, *cache_key;
};

struct prompts_group {
    const struct prompts_row *row; /* owned by the source, valid until the next prompts_next */
    int64_t row_index;             /* position in the data after slice and filter */
    int64_t group_index;           /* increases over the whole run */
    int64_t index;                 /* of the first of group_size samples, increases over the run */
    int64_t epoch;
};

struct prompts;

int prompts_open(struct prompts **out, const struct prompts_opts *o, struct err *e);
void prompts_close(struct prompts *p);             /* NULL is fine */
int64_t prompts_count(const struct prompts *p);    /* rows after slice and filter, >= 1 */
int64_t prompts_dropped(const struct prompts *p);  /* rows with too many tokens */
int64_t prompts_skipped(const struct prompts *p);  /* bad rows left out */
int64_t prompts_measured(const struct prompts *p); /* rows whose tokens were counted and kept */
/* Row i in file order, for evaluation. *row is valid until the next prompts_row or close. */
int prompts_row(struct prompts *p, int64_t i, const struct prompts_row **row, struct err *e);

/* The next n groups. A failure (a file that was changed) leaves the cursor where it was. */
int prompts_next(struct prompts *p, int64_t n, struct prompts_group *out, struct err *e);

/* The cursor: {sample_offset, epoch_id, sample_group_index, sample_index, rows}. The caller owns
 * the object. Restoring refuses a cursor that does not fit the rows. */
json_t *prompts_state(const struct prompts *p);
int prompts_restore(struct prompts *p, const json_t *state, struct err *e);

#endif
