/* Models with random weights, made in memory for any shape.
 *
 *     struct weights *w;
 *     arch_parse(config_json, &arch, &e);
 *     bench_rand_weights(&arch, seed, dev, 1, 2048, &w, &e);
 *     ... weights_release(w);
 */
#ifndef CLI_BENCH_RAND_H
#define CLI_BENCH_RAND_H

#include <stdint.h>

struct arch;
struct device;
struct err;
struct weights;

/* A generator with 64 bits of state: splitmix64. */
static inline uint64_t bench_rand_next(uint64_t *s)
{
    uint64_t z = *s += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}
/* In [0, n); n >= 1. */
static inline int bench_rand_below(uint64_t *s, int n)
{
    return (int)(bench_rand_next(s) % (uint64_t)n);
}
/* In (-1, 1). */
static inline float bench_rand_value(uint64_t *s)
{
    return (float)((double)(bench_rand_next(s) >> 11) * 0x1p-52 - 1.0);
}

/* Values of a size that keeps the activations near 1. The values of a tensor depend on the seed and
 * on its name. */
int bench_rand_weights(const struct arch *a, uint64_t seed, struct device *dev, int trainable,
                       int positions, struct weights **out, struct err *e);

#endif
