/* Owns the values of random models: matrices uniform with a variance of 1 over their inputs, norms
 * around what leaves a row as it is, biases small. */
#include "cli/bench_rand.h"

#include <math.h>
#include <string.h>

#include "base/status.h"
#include "model/weights.h"

struct rand_source {
    const struct arch *a;
    uint64_t seed;
};

/* The size of a matrix's inputs, by its name. */
static int rand_inputs(const struct arch *a, const char *name)
{
    if (strstr(name, "o_proj")) {
        return a->n_heads * a->head_dim;
    }
    return strstr(name, "down_proj") ? a->intermediate : a->hidden;
}

static int rand_read(void *arg, const char *name, uint16_t *dst, int64_t count, struct err *e)
{
    const struct rand_source *r = arg;
    uint64_t s = r->seed;
    float mean = 0.0f, width;
    (void)e;

    for (const char *c = name; *c; c++) {
        s = s * 1000003u + (unsigned char)*c;
    }
    if (strstr(name, "norm")) {
        mean = r->a->norm_plus_one ? 0.0f : 1.0f;
        width = 0.3f;
    } else if (strstr(name, "bias")) {
        width = 0.3f;
    } else {
        width = sqrtf(3.0f / (float)rand_inputs(r->a, name));
    }
    for (int64_t i = 0; i < count; i++) {
        dst[i] = dtype_to_bf16(mean + width * bench_rand_value(&s));
    }
    return STATUS_OK;
}

int bench_rand_weights(const struct arch *a, uint64_t seed, struct device *dev, int trainable,
                       int positions, struct weights **out, struct err *e)
{
    struct rand_source r = {a, seed};
    return weights_build(a, rand_read, &r, dev, trainable, positions, out, e);
}
