/* Owns groups between two rollouts. There are never more than one rollout leaves over and the next
 * has not taken, so a list that is moved together is fast enough. */
#include "rl/buffer.h"

#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "rl/filter.h"
#include "rl/sample.h"

struct buffer {
    int size; /* samples of a group */
    struct filter *filter;
    struct sample ***groups;
    int n, cap;
    int thrown;
};

struct buffer *buffer_new(int group_size, struct filter *filter)
{
    struct buffer *b = mem_alloc(sizeof *b);
    b->size = group_size;
    b->filter = filter;
    return b;
}

static void buffer_free_group(const struct buffer *b, struct sample **s)
{
    for (int i = 0; i < b->size; i++) {
        sample_free(s[i]);
    }
    mem_free(s);
}

void buffer_free(struct buffer *b)
{
    if (b) {
        for (int i = 0; i < b->n; i++) {
            buffer_free_group(b, b->groups[i]);
        }
        mem_free(b->groups);
        mem_free(b);
    }
}

int buffer_groups(const struct buffer *b)
{
    return b->n;
}

int buffer_thrown(struct buffer *b)
{
    int n = b->thrown;
    b->thrown = 0;
    return n;
}

void buffer_put(struct buffer *b, struct sample **s)
{
    b->groups = mem_room(b->groups, sizeof *b->groups, b->n, &b->cap);
    b->groups[b->n++] = s;
}

/* Asks the filter: taken[] are groups in order, kept[] says who stays or is taken. */
static int buffer_choose(struct buffer *b, int64_t rollout, int64_t want, int *taken, int *kept,
                         struct err *e)
{
    struct sample **flat;
    int rc;

    if (!b->filter) {
        int k = 0;
        for (; k < b->n && k < want; k++) {
            taken[k] = k;
        }
        taken[k] = -1;
        for (int i = 0; i < b->n; i++) {
            kept[i] = 1;
        }
        return STATUS_OK;
    }
    flat = mem_alloc(sizeof *flat * (size_t)b->n * (size_t)b->size);
    for (int i = 0; i < b->n; i++) {
        memcpy(flat + (size_t)i * (size_t)b->size, b->groups[i], sizeof *flat * (size_t)b->size);
    }
    rc = filter_buffer(b->filter, rollout, want, flat, b->n * b->size, b->size, taken, kept, e);
    mem_free(flat);
    return rc;
}

int buffer_take(struct buffer *b, int64_t rollout, int64_t want, struct sample ****groups, int *n,
                struct err *e)
{
    int *taken = mem_alloc(sizeof *taken * (size_t)(b->n + 1));
    int *kept = mem_alloc(sizeof *kept * (size_t)(b->n + 1));
    struct sample ***out = mem_alloc(sizeof *out * (size_t)(b->n + 1));
    int rc = STATUS_OK, k = 0, left = 0;

    taken[0] = -1;
    if (b->n && want > 0) {
        rc = buffer_choose(b, rollout, want, taken, kept, e);
    }
    if (rc == STATUS_OK && b->n && want > 0) {
        for (; taken[k] >= 0; k++) {
            out[k] = b->groups[taken[k]];
            b->groups[taken[k]] = NULL;
        }
        for (int i = 0; i < b->n; i++) {
            if (b->groups[i] && !kept[i]) {
                buffer_free_group(b, b->groups[i]);
                b->thrown++;
            } else if (b->groups[i]) {
                b->groups[left++] = b->groups[i];
            }
        }
        b->n = left;
    }
    mem_free(taken);
    mem_free(kept);
    if (rc != STATUS_OK) {
        mem_free(out);
        return rc;
    }
    *groups = out;
    *n = k;
    return STATUS_OK;
}

json_t *buffer_group_state(struct sample *const *s, int n)
{
    json_t *group = json_array();
    for (int k = 0; k < n; k++) {
        json_t *j = sample_to_json(s[k]);
        json_object_set_new(j, "segments", sample_segments_json(s[k]));
        json_array_append_new(group, j);
    }
    return group;
}

int buffer_group_restore(const json_t *state, int n, struct sample ***out, struct err *e)
{
    struct sample **s;
    int rc = STATUS_OK;

    if (json_array_size(state) != (size_t)n) {
        return ERR(e, STATUS_INPUT,
                   "the checkpoint has a group of %zu samples, --n-samples-per-prompt is %d",
                   json_array_size(state), n);
    }
    s = mem_alloc(sizeof *s * (size_t)n);
    for (int k = 0; rc == STATUS_OK && k < n; k++) {
        rc = sample_from_json(json_array_get(state, (size_t)k), &s[k], e);
    }
    if (rc != STATUS_OK) {
        for (int k = 0; k < n; k++) {
            sample_free(s[k]);
        }
        mem_free(s);
        return rc;
    }
    *out = s;
    return STATUS_OK;
}

json_t *buffer_state(const struct buffer *b)
{
    json_t *all = json_array();
    for (int i = 0; i < b->n; i++) {
        json_array_append_new(all, buffer_group_state(b->groups[i], b->size));
    }
    return all;
}

int buffer_restore(struct buffer *b, const json_t *state, struct err *e)
{
    const json_t *group;
    size_t i;

    if (!state || json_is_null(state)) {
        return STATUS_OK;
    }
    json_array_foreach(state, i, group)
    {
        struct sample **s;
        int rc = buffer_group_restore(group, b->size, &s, e);
        if (rc != STATUS_OK) {
            return err_prefix(e, "unfinished group %zu of the checkpoint", i);
        }
        buffer_put(b, s);
    }
    return STATUS_OK;
}
