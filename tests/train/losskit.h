/* What the tests of the loss share: numbers drawn from one seed, and how near two must be. */
#ifndef TESTS_TRAIN_LOSSKIT_H
#define TESTS_TRAIN_LOSSKIT_H

#include "support.h"

#include <math.h>

#include "base/rng.h"

static struct rng_py rng;

static inline void near_(double got, double want, double tol, const char *what)
{
    if (!(fabs(got - want) <= tol * (1 + fabs(want)))) {
        fail_msg("%s is %.9g, not %.9g", what, got, want);
    }
}

static inline double uniform(double lo, double hi)
{
    return lo + (hi - lo) * (rng_py_u32(&rng) / 4294967296.0);
}

#endif
