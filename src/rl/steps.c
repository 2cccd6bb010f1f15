/* Owns the cut of a rollout into steps. */
#include "rl/steps.h"

#include "base/map.h"
#include "base/mem.h"
#include "base/status.h"

/* Samples by rollout, rollouts by first appearance: begin[r] .. begin[r + 1] of order are those of
 * rollout r. Returns the number of rollouts. */
static int steps_group(const int64_t *rollout, int n, struct arena *mem, int *order, int **begin)
{
    int64_t *id = arena_alloc(mem, sizeof *id * (size_t)(n + 1));
    int *at = arena_alloc(mem, sizeof *at * (size_t)(n + 2)), count;
    struct map m;

    map_init(&m);
    for (int i = 0; i < n; i++) {
        const char *key = (const char *)&rollout[i];
        if (!map_get(&m, key, sizeof *rollout, &id[i])) {
            id[i] = (int64_t)m.count;
            map_put(&m, key, sizeof *rollout, id[i]);
        }
        at[id[i] + 1]++;
    }
    count = (int)m.count;
    map_fini(&m);
    for (int r = 0; r < count; r++) {
        at[r + 1] += at[r];
    }
    *begin = arena_alloc(mem, sizeof **begin * (size_t)(count + 1));
    for (int r = 0; r <= count; r++) {
        (*begin)[r] = at[r];
    }
    for (int i = 0; i < n; i++) {
        order[at[id[i]]++] = i;
    }
    return count;
}

int steps_cut(const struct steps_opts *o, const int64_t *rollout, int n, struct arena *mem,
              struct steps *out, struct err *e)
{
    int *begin, rollouts;
    int64_t each, whole;

    out->order = arena_alloc(mem, sizeof *out->order * (size_t)(n + 1));
    rollouts = steps_group(rollout, n, mem, out->order, &begin);
    each = o->whole && rollouts ? rollouts : o->global_batch;
    whole = rollouts / each;
    out->n = (int)(o->partial ? (rollouts + each - 1) / each : whole);
    if (out->n < 1) {
        return ERR(e, STATUS_INPUT, "%d rollouts do not fill a global batch of %lld", rollouts,
                   (long long)each);
    }
    out->start = arena_alloc(mem, sizeof *out->start * (size_t)(out->n + 1));
    for (int k = 0; k <= out->n; k++) {
        int64_t r = k * each < rollouts ? k * each : rollouts;
        out->start[k] = begin[r];
    }
    out->left = n - out->start[out->n];
    return STATUS_OK;
}
