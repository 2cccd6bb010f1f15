/* Owns groups in flight. Completion order never shows: samples are handed out sorted by index, and
 * a group's fate depends on its own samples only (contract C6). */
#include "rl/batch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "reward/hub.h"
#include "rl/promptenc.h"
#include "rl/prompts.h"

struct batch_group {
    int32_t *prompt;
    int nprompt;
    struct sample **s; /* (n) */
    int max_new;
    int64_t index, line; /* of its first sample, of its prompt in the file */
    int answered, scored, failed;
};

struct batch {
    struct batch_cfg cfg;
    struct batch_group *groups;
    int ngroups, cap;
    int sent;    /* groups that the port has; the rest wait for it to have room */
    int open;    /* groups not complete */
    int rewards; /* rewards outstanding */
    int answers;
    int newly_failed;
    char reason[256];
    struct sample **sorted;
    int waiting_head, nwaiting; /* answers the hub had no room for: ring of sample ids */
    int64_t *waiting;
    int waiting_cap;
};

struct batch *batch_new(const struct batch_cfg *cfg)
{
    struct batch *b = mem_alloc(sizeof *b);
    b->cfg = *cfg;
    return b;
}

/* Forgets the last group. */
static void batch_pop(struct batch *b)
{
    struct batch_group *q = &b->groups[--b->ngroups];
    for (int i = 0; i < b->cfg.n; i++) {
        sample_free(q->s[i]);
    }
    mem_free(q->s);
    mem_free(q->prompt);
}

void batch_free(struct batch *b)
{
    if (!b) {
        return;
    }
    while (b->ngroups) {
        batch_pop(b);
    }
    mem_free(b->groups);
    mem_free(b->sorted);
    mem_free(b->waiting);
    mem_free(b);
}

/* Submits groups, in order, as long as the port takes them. */
static int batch_send(struct batch *b, struct err *e)
{
    while (b->sent < b->ngroups) {
        const struct batch_group *q = &b->groups[b->sent];
        struct port_group g = b->cfg.proto;
        int rc;
        g.id = b->sent;
        g.tokens = q->prompt;
        g.ntokens = q->nprompt;
        g.n = b->cfg.n;
        g.sample = q->index;
        g.max_new = q->max_new;
        rc = b->cfg.port->submit(b->cfg.port->self, &g, e);
        if (rc == STATUS_AGAIN) {
            break;
        }
        if (rc != STATUS_OK) {
            err_prefix(e, "prompt of line %lld", (long long)q->line);
            return rc;
        }
        b->sent++;
    }
    return STATUS_OK;
}

int batch_add(struct batch *b, const struct batch_item *item, struct err *e)
{
    struct batch_group *q;
    int rc;

    if (b->ngroups == b->cap) {
        int cap = b->cap ? b->cap * 2 : 64;
        b->groups = mem_realloc(b->groups, sizeof *b->groups * (size_t)b->cap,
                                sizeof *b->groups * (size_t)cap);
        b->cap = cap;
    }
    q = &b->groups[b->ngroups];
    memset(q, 0, sizeof *q);
    rc = promptenc_encode(b->cfg.enc, item->row->prompt, item->row->tools, &q->prompt, &q->nprompt,
                          e);
    if (rc != STATUS_OK) {
        err_prefix(e, "prompt of line %lld", (long long)item->row->line);
        return rc;
    }
    q->index = item->index;
    q->line = item->row->line;
    q->max_new = b->cfg.proto.max_new;
    if (b->cfg.max_context > 0 && q->nprompt + q->max_new > b->cfg.max_context) {
        q->max_new = b->cfg.max_context - q->nprompt;
    }
    q->s = mem_alloc(sizeof *q->s * (size_t)b->cfg.n);
    for (int i = 0; i < b->cfg.n; i++) {
        struct sample *s = q->s[i] = sample_new();
        s->index = s->rollout_id = item->index + i;
        s->group_index = item->group_index;
        s->prompt = json_incref(item->row->prompt);
        s->label = json_incref(item->row->label);
        s->metadata = json_incref(item->row->metadata);
    }
    b->ngroups++;
    rc = batch_send(b, e);
    if (rc != STATUS_OK) {
        batch_pop(b); /* what is refused is not waited for */
    } else {
        b->open++;
    }
    return rc;
}

static struct sample *batch_sample(struct batch *b, int64_t id)
{
    return b->groups[id / b->cfg.n].s[id % b->cfg.n];
}

static void batch_scored(struct batch *b, struct batch_group *q)
{
    if (++q->scored == b->cfg.n) {
        b->open--;
        b->newly_failed += q->failed;
    }
}

/* Asks for the reward of a sample, or of the group that begins with it. 0 when the hub took it,
 * STATUS_AGAIN when it is full. */
static int batch_ask(struct batch *b, int64_t id, struct err *e)
{
    int n = b->cfg.group_rm ? b->cfg.n : 1, rc;
    json_t *j = b->cfg.group_rm ? json_array() : sample_to_json(batch_sample(b, id));
    for (int i = 0; b->cfg.group_rm && i < n; i++) {
        json_array_append_new(j, sample_to_json(batch_sample(b, id + i)));
    }
    rc = hub_submit(b->cfg.hub, &(struct hub_request){id, j}, e);
    json_decref(j);
    if (rc == STATUS_OK) {
        b->rewards += n;
    }
    return rc;
}

static int batch_answer(struct batch *b, const struct port_answer *a, struct err *e)
{
    struct batch_group *q = &b->groups[a->group];
    struct sample *s = q->s[a->sample];
    int64_t id = a->group * b->cfg.n + a->sample;
    int rc;

    sample_set(s, q->prompt, q->nprompt, a->tokens, a->logps, a->ntokens, a->version, a->exact);
    s->status = a->finish == PORT_STOP     ? SAMPLE_COMPLETED
                : a->finish == PORT_LENGTH ? SAMPLE_TRUNCATED
                                           : SAMPLE_ABORTED;
    rc = promptenc_decode(b->cfg.enc, a->tokens, a->ntokens, b->cfg.skip_special, &s->response, e);
    if (rc != STATUS_OK) {
        return rc;
    }
    q->answered++;
    b->answers++;
    if (!b->cfg.hub) {
        batch_scored(b, q);
        return STATUS_OK;
    }
    if (b->cfg.group_rm && q->answered < b->cfg.n) {
        return STATUS_OK;
    }
    id = b->cfg.group_rm ? a->group * b->cfg.n : id;
    rc = b->nwaiting ? STATUS_AGAIN : batch_ask(b, id, e);
    if (rc == STATUS_AGAIN) {
        if (b->nwaiting == b->waiting_cap) {
            int cap = b->waiting_cap ? b->waiting_cap * 2 : 256;
            int64_t *w = mem_alloc(sizeof *w * (size_t)cap);
            for (int i = 0; i < b->nwaiting; i++) {
                w[i] = b->waiting[(b->waiting_head + i) % b->waiting_cap];
            }
            mem_free(b->waiting);
            b->waiting = w;
            b->waiting_head = 0;
            b->waiting_cap = cap;
        }
        b->waiting[(b->waiting_head + b->nwaiting++) % b->waiting_cap] = id;
        rc = STATUS_OK;
    }
    return rc;
}

/* Takes the rewards that are ready; waits up to wait_s for the first. */
static int batch_rewards(struct batch *b, double wait_s, struct err *e)
{
    struct hub_result r;
    int rc;
    while (b->rewards && (rc = hub_poll(b->cfg.hub, wait_s, &r, e)) != STATUS_AGAIN) {
        struct sample *s;
        struct batch_group *q;
        if (rc != STATUS_OK) {
            return rc;
        }
        s = batch_sample(b, r.id);
        q = &b->groups[r.id / b->cfg.n];
        b->rewards--;
        wait_s = 0.0;
        if (r.failed) {
            s->status = SAMPLE_FAILED;
            snprintf(b->reason, sizeof b->reason, "%s", r.reason);
            q->failed |= b->cfg.drop_failed;
        } else {
            s->reward = r.reward;
        }
        s->raw_reward = r.raw;
        s->reason = mem_strdup(r.reason);
        batch_scored(b, q);
    }
    while (b->nwaiting) {
        rc = batch_ask(b, b->waiting[b->waiting_head], e);
        if (rc == STATUS_AGAIN) {
            break;
        }
        if (rc != STATUS_OK) {
            return rc;
        }
        b->waiting_head = (b->waiting_head + 1) % b->waiting_cap;
        b->nwaiting--;
    }
    return STATUS_OK;
}

int batch_tick(struct batch *b, struct err *e)
{
    struct port_answer a;
    int rc;

    if (!b->open) {
        return STATUS_OK;
    }
    rc = batch_send(b, e);
    if (rc != STATUS_OK) {
        return rc;
    }
    rc = b->cfg.port->poll(b->cfg.port->self, &a, e);
    if (rc == STATUS_OK) {
        rc = batch_answer(b, &a, e);
    } else if (rc == STATUS_END && b->sent == b->ngroups) {
        if (!b->rewards && !b->nwaiting) {
            return ERR(e, STATUS_FAIL, "the rollout stopped with %d groups unfinished", b->open);
        }
        return batch_rewards(b, 0.2, e) == STATUS_OK ? (b->open ? STATUS_AGAIN : STATUS_OK)
                                                     : e->code;
    } else if (rc == STATUS_AGAIN || rc == STATUS_END) {
        rc = STATUS_OK;
    }
    if (rc == STATUS_OK && b->cfg.hub) {
        rc = batch_rewards(b, 0.0, e);
    }
    if (rc != STATUS_OK) {
        return rc;
    }
    return b->open ? STATUS_AGAIN : STATUS_OK;
}

int batch_failed(struct batch *b, const char **reason)
{
    int n = b->newly_failed;
    b->newly_failed = 0;
    *reason = b->reason;
    return n;
}

static int batch_order(const void *x, const void *y)
{
    const struct sample *a = *(struct sample *const *)x, *b = *(struct sample *const *)y;
    return (a->index > b->index) - (a->index < b->index);
}

struct sample **batch_samples(struct batch *b, int *n)
{
    int k = 0;
    mem_free(b->sorted);
    b->sorted = mem_alloc(sizeof *b->sorted * (size_t)(b->ngroups * b->cfg.n + 1));
    for (int i = 0; i < b->ngroups; i++) {
        for (int j = 0; j < b->cfg.n && !b->groups[i].failed; j++) {
            b->sorted[k++] = b->groups[i].s[j];
        }
    }
    qsort(b->sorted, (size_t)k, sizeof *b->sorted, batch_order);
    *n = k;
    return b->sorted;
}

int batch_done_samples(const struct batch *b)
{
    return b->answers;
}
