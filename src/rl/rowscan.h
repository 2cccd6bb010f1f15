/* A first look at rows of JSON text, many times faster than parsing them: it recognises rows that
 * are surely good, and finds where a value ends. What it does not recognise is left to the parser,
 * which alone decides that a row is bad.
 *
 *     struct rowscan_keys k;
 *     rowscan_keys(&k, "prompt", "label", "metadata", "tools");
 *     if (!rowscan_sure(&k, line, n)) { ... parse it ... }
 *
 * Pure functions; any thread. */
#ifndef RL_ROWSCAN_H
#define RL_ROWSCAN_H

#include <stddef.h>

enum { ROWSCAN_INPUT, ROWSCAN_LABEL, ROWSCAN_METADATA, ROWSCAN_TOOLS, ROWSCAN_NKEYS };

struct rowscan_keys {
    const char *key[ROWSCAN_NKEYS]; /* borrowed; label may be NULL: not asked */
    size_t len[ROWSCAN_NKEYS];
};

void rowscan_keys(struct rowscan_keys *k, const char *input, const char *label,
                  const char *metadata, const char *tools);

/* 1: the n bytes are one JSON object, valid for jansson, with the prompt (text or a list of
 * messages that have roles), the label where it is asked, metadata that is an object or null, and
 * tools that are a list or null. 0: perhaps not. */
int rowscan_sure(const struct rowscan_keys *k, const char *p, size_t n);

/* Bytes of the JSON value that starts at p, by its brackets and strings alone; 0: it does not end
 * within n bytes, or none starts here. */
size_t rowscan_value(const char *p, size_t n);

/* 1 when the n bytes are blanks. */
int rowscan_blank(const char *p, size_t n);

#endif
