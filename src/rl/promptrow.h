/* One row of data as JSON text into a prompts_row, and what is wrong with it.
 *
 *     struct promptrow_keys k;
 *     promptrow_keys(&k, "prompt", "label", NULL, NULL);
 *     struct prompts_row r;
 *     struct promptrow_fault f;
 *     if (promptrow_parse(&k, text, n, &r, &f) == 0) { ... promptrow_fini(&r); }
 *
 * Any thread. */
#ifndef RL_PROMPTROW_H
#define RL_PROMPTROW_H

#include <stddef.h>

#include "rl/rowscan.h"

struct prompts_row;

#define PROMPTROW_MAX ((size_t)64 << 20) /* bytes of a row's text */

struct promptrow_keys {
    const char *input, *label, *metadata, *tools; /* borrowed; label NULL: no labels */
    struct rowscan_keys scan;
};

struct promptrow_fault {
    int line, column; /* inside the text, from 1; 0: the row as a whole */
    char why[320];
};

/* NULL takes the default key; no label key means no labels. */
void promptrow_keys(struct promptrow_keys *k, const char *input, const char *label,
                    const char *metadata, const char *tools);
/* 0, or STATUS_INPUT with the fault; r is filled on success only (its line stays 0). */
int promptrow_parse(const struct promptrow_keys *k, const char *text, size_t n,
                    struct prompts_row *r, struct promptrow_fault *f);
/* 1 when promptrow_parse would take the text. */
int promptrow_good(const struct promptrow_keys *k, const char *text, size_t n);
void promptrow_fini(struct prompts_row *r); /* an empty one is fine */

#endif
