/* Owns the run's prompts as the user's functions see them: groups of samples, taken in the run's
 * order and recorded. */
#include "base/mem.h"
#include "base/status.h"
#include "rl/buffer.h"
#include "rl/journal.h"
#include "rl/loop_int.h"
#include "rl/promptenc.h"
#include "rl/prompts.h"
#include "rl/sample.h"

#define LOOP_FEED_MAX 1000000 /* groups that a function may take at once */

/* n groups of samples with their prompts' tokens, as the run itself would take them. */
static int loop_feed_get(void *self, int64_t n, json_t **groups, struct err *e)
{
    struct loop *l = self;
    int rc = l->c.data ? STATUS_OK : ERR(e, STATUS_INPUT, "the run has no --prompt-data");

    if (rc == STATUS_OK && (n < 0 || n > LOOP_FEED_MAX)) {
        rc = ERR(e, STATUS_INPUT, "get_samples(%lld)", (long long)n);
    }
    *groups = json_array();
    for (int64_t i = 0; rc == STATUS_OK && i < n; i++) {
        struct prompts_group g;
        json_t *list = json_array();
        int32_t *ids = NULL;
        int len = 0;
        rc = prompts_next(l->c.data, 1, &g, e);
        rc = rc == STATUS_OK
                 ? turn_record(&l->c, JOURNAL_PROMPTS, l->rollout,
                               json_pack("{s:I,s:I,s:I,s:b}", "row", (json_int_t)g.row_index,
                                         "group", (json_int_t)g.group_index, "index",
                                         (json_int_t)g.index, "resumed", 0),
                               e)
                 : rc;
        rc = rc == STATUS_OK
                 ? promptenc_encode(l->c.enc, g.row->prompt, g.row->tools, &ids, &len, e)
                 : rc;
        for (int64_t k = 0; rc == STATUS_OK && k < l->c.o->n_samples_per_prompt; k++) {
            struct sample *s = sample_new();
            s->index = s->rollout_id = g.index + k;
            s->group_index = g.group_index;
            s->prompt = json_incref(g.row->prompt);
            s->label = json_incref(g.row->label);
            s->metadata = json_incref(g.row->metadata);
            sample_set(s, ids, len, NULL, NULL, 0, -1, 0);
            json_array_append_new(list, sample_to_json(s));
            sample_free(s);
        }
        mem_free(ids);
        json_array_append_new(*groups, list);
    }
    if (rc != STATUS_OK) {
        json_decref(*groups);
        *groups = NULL;
    }
    return rc;
}

static int loop_feed_add(void *self, const json_t *groups, struct err *e)
{
    (void)self, (void)groups;
    return ERR(e, STATUS_UNSUPPORTED, "add_samples: this run keeps no groups for later");
}

static int64_t loop_feed_length(void *self)
{
    const struct loop *l = self;
    return l->buffer ? buffer_groups(l->buffer) : 0;
}

void loop_feed(struct loop *l)
{
    l->feed = (struct extend_feed){loop_feed_get, loop_feed_add, loop_feed_length, l};
    extend_set_feed(l->c.extend, &l->feed);
}
