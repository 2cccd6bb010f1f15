/* Scores the samples of a file, one JSON object a line, and writes each back with its reward.
 *
 *     struct scorefile_stats st;
 *     scorefile_run(hub, in, "answers.jsonl", &(struct scorefile_opts){.out = out}, &st, &e);
 *
 * A row: {"prompt", "response", "label", "metadata"}; whatever else it has, a custom function sees
 * too. Rows come out in the order of the file, with "reward" (null when failed; a dict stays one,
 * with its number as "reward_value"), "failed", "reason" and "class" set. A line that is no row
 * comes out as {"line", "failed", "reason", "class": "bad_row"}. Blank lines are no rows, and the
 * head line of a rollout dump is not one either.
 *
 * Rows are streamed: a few thousand, and a bounded number of bytes, are held at a time. */
#ifndef REWARD_SCOREFILE_H
#define REWARD_SCOREFILE_H

#include <signal.h>
#include <stdint.h>
#include <stdio.h>

#include "reward/hub.h"

struct scorefile_opts {
    const char *prompt_key, *response_key, *label_key, *metadata_key; /* NULL: names as above */
    int group; /* 1: neighbours with the same group_index are scored together */
    FILE *out; /* NULL: rows are only counted */
    const volatile sig_atomic_t *stop;     /* not 0: what was read is finished, the rest is left */
    void (*tick)(void *arg, int64_t rows); /* now and then; NULL: none */
    void *arg;
};

struct scorefile_stats {
    int64_t rows;                  /* all, bad ones too */
    int64_t graded, failed, bad;   /* bad: lines that are no row */
    int64_t classes[HUB_NCLASSES]; /* of rows that are no bad ones */
    double sum, seconds;           /* of rewards; of the whole run */
};

/* A row that cannot be scored ends nothing: it is counted, and the first twenty are told in the
 * log. STATUS_IO when reading or writing fails. */
int scorefile_run(struct hub *h, FILE *in, const char *name, const struct scorefile_opts *o,
                  struct scorefile_stats *st, struct err *e);

#endif
