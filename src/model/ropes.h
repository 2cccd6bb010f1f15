/* Rope's angles from its description: how fast each pair of dimensions turns.
 *
 *     float f[64];
 *     double scale = ropes_frequencies(&a->rope[0], a->rot, limit, f);
 *
 * A position's angle for pair i is position * f[i], in f32 as the reference implementations have
 * it; its cos and sin are multiplied by the returned factor (1 but for yarn).
 *
 * `limit` is the longest context of the run. Only the kind `dynamic` looks at it: inside the
 * model's own length its frequencies are the plain ones, beyond they are those of the limit. They
 * never depend on how long a sequence is at the moment, because then a token's numbers would change
 * while its sequence grows (contract C1). */
#ifndef MODEL_ROPES_H
#define MODEL_ROPES_H

#include "model/arch.h"

/* f (rot / 2); rot even, at least 2. Computed in f64, rounded once. */
double ropes_frequencies(const struct arch_rope *r, int rot, int limit, float *f);

/* cos and sin of positions [0, n), (n, rot / 2) each. */
void ropes_tables(const struct arch_rope *r, int rot, int limit, int n, float *cos, float *sin);

#endif
