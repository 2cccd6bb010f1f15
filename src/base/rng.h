/* Random numbers that are pure functions (contract C3), and CPython's generator for data order.
 *
 * rng_uniform takes everything that identifies a draw and keeps no state, so a preempted, moved or
 * re-run sample draws the same numbers. rng_py_* repeats `random.seed(int)` / `random.shuffle`. */
#ifndef BASE_RNG_H
#define BASE_RNG_H

#include <stdint.h>

enum { RNG_TRAIN = 0, RNG_EVAL = 1, RNG_INIT = 2 }; /* streams; the last for first weights */

/* Philox4x32 with 10 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"). */
void rng_philox(const uint32_t ctr[4], const uint32_t key[2], uint32_t out[4]);

/* A double in (0,1) of 53 random bits. */
double rng_uniform(uint64_t seed, uint32_t stream, uint64_t sample, uint32_t branch,
                   uint32_t position);

/* MT19937 seeded and drawn as CPython's `random` module does. */
struct rng_py {
    uint32_t mt[624];
    int next;
};
void rng_py_seed(struct rng_py *r, uint64_t seed); /* random.seed(seed) */
uint32_t rng_py_u32(struct rng_py *r);             /* 32 bits */
/* random.randrange(n); n in [1, 2^63). */
int64_t rng_py_randbelow(struct rng_py *r, int64_t n);
/* random.shuffle(idx): Fisher-Yates from the end. */
void rng_py_shuffle(struct rng_py *r, int64_t *idx, int64_t n);
void rng_py_shuffle32(struct rng_py *r, uint32_t *idx, int64_t n); /* the same order */

#endif
