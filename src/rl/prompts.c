/* Owns the order in which rows are served and the cursor. The order of an epoch is a function of
 * (seed, epoch, rows), so the cursor is four numbers. */
#include "rl/prompts.h"

#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"
#include "rl/prompts_int.h"

#define MAX_NEXT ((int64_t)1 << 24)

static void reorder(struct prompts *p)
{
    struct rng_py r;

    if (p->shuffle) {
        for (int64_t i = 0; i < p->n; i++) {
            p->order[i] = (uint32_t)i;
        }
        rng_py_seed(&r, p->seed + (uint64_t)p->epoch);
        rng_py_shuffle32(&r, p->order, p->n);
    }
}

int prompts_open(struct prompts **out, const struct prompts_opts *o, struct err *e)
{
    struct prompts *p;
    int rc;

    if (!o->path || !*o->path) {
        return ERR(e, STATUS_INPUT, "no prompt file is given (--prompt-data)");
    }
    if (o->group_size < 1) {
        return ERR(e, STATUS_INPUT, "%lld samples per prompt", (long long)o->group_size);
    }
    p = mem_alloc(sizeof *p);
    p->names[0] = mem_strdup(o->input_key);
    p->names[1] = mem_strdup(o->label_key);
    p->names[2] = mem_strdup(o->metadata_key);
    p->names[3] = mem_strdup(o->tool_key);
    promptrow_keys(&p->keys, p->names[0], p->names[1], p->names[2], p->names[3]);
    p->shuffle = o->shuffle;
    p->seed = o->seed;
    p->group_size = o->group_size;
    buf_init(&p->text, ROWFILE_MAX_ROW);
    rc = prompts_load(p, o, e);
    if (rc) {
        prompts_close(p);
        return rc;
    }
    if (p->shuffle) {
        p->order = mem_alloc((size_t)p->n * sizeof *p->order);
    }
    reorder(p);
    *out = p;
    return 0;
}

static void drop_served(struct prompts *p)
{
    for (int64_t i = 0; i < p->nserved; i++) {
        promptrow_fini(&p->served[i]);
    }
    mem_free(p->served);
    p->served = NULL;
    p->nserved = 0;
}

void prompts_close(struct prompts *p)
{
    if (!p) {
        return;
    }
    drop_served(p);
    promptrow_fini(&p->one);
    for (int i = 0; i < p->nfiles; i++) {
        rowfile_close(&p->files[i]);
    }
    for (int i = 0; i < 4; i++) {
        mem_free(p->names[i]);
    }
    buf_fini(&p->text);
    mem_free(p->files);
    mem_free(p->place);
    mem_free(p->order);
    mem_free(p);
}

int64_t prompts_count(const struct prompts *p)
{
    return p->n;
}

int64_t prompts_dropped(const struct prompts *p)
{
    return p->dropped;
}

int64_t prompts_skipped(const struct prompts *p)
{
    return p->skipped;
}

int64_t prompts_measured(const struct prompts *p)
{
    return p->measured;
}

int prompts_row(struct prompts *p, int64_t i, const struct prompts_row **row, struct err *e)
{
    int rc;

    ASSERT(i >= 0 && i < p->n);
    promptrow_fini(&p->one);
    rc = prompts_read(p, p->place[i], &p->text, &p->one, e);
    if (rc == 0) {
        *row = &p->one;
    }
    return rc;
}

int prompts_next(struct prompts *p, int64_t n, struct prompts_group *out, struct err *e)
{
    int64_t offset = p->offset, epoch = p->epoch;
    int rc = 0;

    if (n < 0 || n > MAX_NEXT || p->group_index > INT64_MAX / 2 - n ||
        p->index > INT64_MAX / 2 - n * p->group_size) {
        return ERR(e, STATUS_INPUT, "%lld prompts cannot be served at once", (long long)n);
    }
    drop_served(p);
    p->served = mem_alloc((size_t)(n ? n : 1) * sizeof *p->served);
    p->nserved = n;
    for (int64_t i = 0; rc == 0 && i < n; i++) {
        if (p->offset == p->n) {
            p->offset = 0;
            p->epoch++;
            reorder(p);
        }
        out[i].row_index = p->order ? (int64_t)p->order[p->offset] : p->offset;
        p->offset++;
        rc = prompts_read(p, p->place[out[i].row_index], &p->text, &p->served[i], e);
        out[i].row = &p->served[i];
        out[i].group_index = p->group_index + i;
        out[i].index = p->index + i * p->group_size;
        out[i].epoch = p->epoch;
    }
    if (rc) {
        p->offset = offset;
        if (p->epoch != epoch) {
            p->epoch = epoch;
            reorder(p);
        }
        return rc;
    }
    p->group_index += n;
    p->index += n * p->group_size;
    return 0;
}

/* --- cursor --- */

json_t *prompts_state(const struct prompts *p)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I}", "sample_offset", (json_int_t)p->offset,
                     "epoch_id", (json_int_t)p->epoch, "sample_group_index",
                     (json_int_t)p->group_index, "sample_index", (json_int_t)p->index, "rows",
                     (json_int_t)p->n);
}

static int get_count(const json_t *state, const char *key, int64_t *out, struct err *e)
{
    const json_t *v = json_object_get(state, key);
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > INT64_MAX / 4) {
        return ERR(e, STATUS_FORMAT, "prompt cursor: \"%s\" is not a count", key);
    }
    *out = json_integer_value(v);
    return 0;
}

int prompts_restore(struct prompts *p, const json_t *state, struct err *e)
{
    int64_t offset, epoch, group, index, rows;
    int rc = get_count(state, "sample_offset", &offset, e);

    rc = rc ? rc : get_count(state, "epoch_id", &epoch, e);
    rc = rc ? rc : get_count(state, "sample_group_index", &group, e);
    rc = rc ? rc : get_count(state, "sample_index", &index, e);
    rc = rc ? rc : get_count(state, "rows", &rows, e);
    if (rc) {
        return rc;
    }
    if (offset > p->n) {
        return ERR(e, STATUS_INPUT,
                   "the checkpoint stands at prompt %lld of %lld, the data has %lld",
                   (long long)offset, (long long)rows, (long long)p->n);
    }
    if (rows != p->n) {
        log_warn(prompts,
                 "the checkpoint was made with %lld prompts, the data has %lld: the order "
                 "goes on differently",
                 (long long)rows, (long long)p->n);
    }
    p->offset = offset;
    p->group_index = group;
    p->index = index;
    if (p->epoch != epoch) {
        p->epoch = epoch;
        reorder(p);
    }
    return 0;
}
