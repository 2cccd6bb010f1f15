/* Bundles: samples of a step that follow each other and have the same prompt. The prompt is
 * computed once for all of them, forward and backward. A bundle is also what the leaves of a
 * gradient are cut from (contract C4), so it is made from the samples alone, whatever the
 * micro-batches, memory and threads.
 *
 *     int64_t n = bundle_cut(s, pick, k, cap, start);
 *     for each b < n: samples s[pick[start[b]]] .. s[pick[start[b + 1] - 1]] */
#ifndef TRAIN_BUNDLE_H
#define TRAIN_BUNDLE_H

#include <stdint.h>

struct train_sample;

/* Cuts samples s[pick[0..n)] into bundles: start (n + 1) is filled, the number of bundles returned.
 * A bundle has at most `cap` tokens, its prompt counted once; a sample with more is alone. */
int64_t bundle_cut(const struct train_sample *s, const int64_t *pick, int64_t n, int64_t cap,
                   int64_t *start);
/* Tokens of a bundle: its prompt once, all responses. */
int64_t bundle_tokens(const struct train_sample *s, const int64_t *pick, int64_t n);

#endif
