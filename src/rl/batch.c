/* Owns groups in flight: what the port has, what the hub has, and what has come back. A group's
 * fate depends on its own samples only; in which order they came shows in the events and nowhere
 * else.
 *
 * The port gets units: the samples of a prompt together, or, of a group that goes on, each
 * unfinished sample by itself with its own beginning. */
#include "rl/batch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "reward/hub.h"
#include "rl/promptenc.h"
#include "rl/prompts.h"
#include "rl/recall.h"

enum batch_state { BATCH_OPEN, BATCH_IS_ANSWERED, BATCH_IS_SCORED };

struct batch_group {
    struct sample **s;        /* (n), or NULL when they are gone */
    uint8_t *state;           /* (n) enum batch_state */
    uint8_t *finish;          /* (n) enum sample_status that the engine left it in */
    int *had, *fresh;         /* (n) tokens of the response before, and of the answer */
    int *unit;                /* (n) */
    int64_t line;             /* of its prompt in the file; 0: none */
    int64_t rollout, version; /* when it was submitted */
    int answered, scored;
    char *failure;
};

struct batch_unit {
    int group, first, count;
    int max_new;
};

struct batch {
    struct batch_cfg cfg;
    struct recall *recall; /* NULL: no rewards */
    struct batch_group *groups;
    int ngroups, cap;
    struct batch_unit *units;
    int nunits, units_cap;
    int sent;    /* units that the port has had; the rest wait for it to have room */
    int flying;  /* samples that the port has */
    int open;    /* groups not complete */
    int rewards; /* outstanding */
    int answers;
    int aborted;
    struct batch_event *events; /* ring */
    int events_head, nevents, events_cap;
    int64_t *waiting; /* ring of samples that the hub had no room for */
    int waiting_head, nwaiting, waiting_cap;
};

/* Room for one more in a ring that begins at *head. */
static void *batch_ring(void *p, size_t size, int *head, int n, int *cap)
{
    int more = *cap ? *cap * 2 : 256;
    char *out;

    if (n < *cap) {
        return p;
    }
    out = mem_alloc(size * (size_t)more);
    for (int i = 0; i < n; i++) {
        memcpy(out + size * (size_t)i, (char *)p + size * (size_t)((*head + i) % *cap), size);
    }
    mem_free(p);
    *head = 0;
    *cap = more;
    return out;
}

struct batch *batch_new(const struct batch_cfg *cfg)
{
    struct batch *b = mem_alloc(sizeof *b);
    b->cfg = *cfg;
    if (cfg->hub || cfg->scored) {
        b->recall = recall_new(cfg->hub, cfg->journal, cfg->world);
    }
    return b;
}

static void batch_fini_group(struct batch *b, struct batch_group *q)
{
    for (int i = 0; q->s && i < b->cfg.n; i++) {
        sample_free(q->s[i]);
    }
    mem_free(q->s);
    mem_free(q->state);
    mem_free(q->finish);
    mem_free(q->had);
    mem_free(q->fresh);
    mem_free(q->unit);
    mem_free(q->failure);
    memset(q, 0, sizeof *q);
}

void batch_free(struct batch *b)
{
    if (!b) {
        return;
    }
    for (int i = 0; i < b->ngroups; i++) {
        batch_fini_group(b, &b->groups[i]);
    }
    recall_free(b->recall);
    mem_free(b->groups);
    mem_free(b->units);
    mem_free(b->events);
    mem_free(b->waiting);
    mem_free(b);
}

/* ---- to the port ---- */

/* Submits units, in order, as long as the port takes them. */
static int batch_send(struct batch *b, struct err *e)
{
    while (b->sent < b->nunits) {
        const struct batch_unit *u = &b->units[b->sent];
        const struct batch_group *q = &b->groups[u->group];
        const struct sample *s = q->s[u->first];
        struct port_group g = b->cfg.proto;
        int rc;
        g.id = b->sent;
        g.tokens = s->tokens;
        g.ntokens = s->prompt_len + s->response_len;
        g.n = u->count;
        g.sample = s->index;
        g.position = s->response_len;
        g.max_new = u->max_new;
        g.of = s;
        g.rollout = q->rollout;
        g.version = q->version;
        rc = b->cfg.port->submit(b->cfg.port->self, &g, e);
        if (rc == STATUS_AGAIN) {
            break;
        }
        if (rc != STATUS_OK) {
            return q->line ? err_prefix(e, "prompt of line %lld", (long long)q->line)
                           : err_prefix(e, "sample %lld", (long long)s->index);
        }
        b->flying += u->count;
        b->sent++;
    }
    return STATUS_OK;
}

static struct batch_group *batch_begin(struct batch *b)
{
    struct batch_group *q;
    size_t n = (size_t)b->cfg.n;

    b->groups = mem_room(b->groups, sizeof *b->groups, b->ngroups, &b->cap);
    q = &b->groups[b->ngroups++];
    b->open++;
    memset(q, 0, sizeof *q);
    q->rollout = b->cfg.proto.rollout;
    q->version = b->cfg.proto.version;
    q->s = mem_alloc(sizeof *q->s * n);
    q->state = mem_alloc(n);
    q->finish = mem_alloc(n);
    q->had = mem_alloc(sizeof *q->had * n);
    q->fresh = mem_alloc(sizeof *q->fresh * n);
    q->unit = mem_alloc(sizeof *q->unit * n);
    return q;
}

/* What is refused is not waited for. */
static int batch_undo(struct batch *b, int units, int rc)
{
    b->open--;
    b->nunits = units;
    batch_fini_group(b, &b->groups[--b->ngroups]);
    return rc;
}

/* Samples of the last group that the port gets together. */
static void batch_unit_of(struct batch *b, int first, int count, int max_new)
{
    struct batch_group *q = &b->groups[b->ngroups - 1];

    b->units = mem_room(b->units, sizeof *b->units, b->nunits, &b->units_cap);
    for (int i = first; i < first + count; i++) {
        q->unit[i] = b->nunits;
    }
    b->units[b->nunits++] = (struct batch_unit){b->ngroups - 1, first, count, max_new};
}

/* New tokens that a sample may still get. */
static int batch_left(const struct batch *b, const struct sample *s)
{
    int left = b->cfg.proto.max_new - s->response_len;
    int room = b->cfg.max_context - s->prompt_len - s->response_len;
    return b->cfg.max_context > 0 && room < left ? room : left;
}

int batch_add(struct batch *b, const struct batch_item *item, struct err *e)
{
    struct batch_group *q = batch_begin(b);
    int32_t *prompt;
    int nprompt, units = b->nunits;
    int rc =
        promptenc_encode(b->cfg.enc, item->row->prompt, item->row->tools, &prompt, &nprompt, e);

    if (rc != STATUS_OK) {
        err_prefix(e, "prompt of line %lld", (long long)item->row->line);
        return batch_undo(b, units, rc);
    }
    q->line = item->row->line;
    for (int i = 0; i < b->cfg.n; i++) {
        struct sample *s = q->s[i] = sample_new();
        s->index = s->rollout_id = item->index + i;
        s->group_index = item->group_index;
        s->prompt = json_incref(item->row->prompt);
        s->label = json_incref(item->row->label);
        s->metadata = json_incref(item->row->metadata);
        sample_set(s, prompt, nprompt, NULL, NULL, 0, -1, 0);
    }
    mem_free(prompt);
    batch_unit_of(b, 0, b->cfg.n, batch_left(b, q->s[0]));
    rc = batch_send(b, e);
    return rc == STATUS_OK || b->sent < units ? rc : batch_undo(b, units, rc);
}

/* ---- what has become known ---- */

static void batch_tell(struct batch *b, struct batch_event ev)
{
    b->events = batch_ring(b->events, sizeof ev, &b->events_head, b->nevents, &b->events_cap);
    b->events[(b->events_head + b->nevents++) % b->events_cap] = ev;
}

int batch_event(struct batch *b, struct batch_event *ev)
{
    if (!b->nevents) {
        return 0;
    }
    *ev = b->events[b->events_head];
    b->events_head = (b->events_head + 1) % b->events_cap;
    b->nevents--;
    return 1;
}

static void batch_scored(struct batch *b, int group, int i)
{
    struct batch_group *q = &b->groups[group];
    q->state[i] = BATCH_IS_SCORED;
    if (++q->scored == b->cfg.n) {
        b->open--;
        batch_tell(b, (struct batch_event){BATCH_SCORED, group, 0, 0});
    }
}

static void batch_fail(struct batch_group *q, const char *why)
{
    if (!q->failure) {
        q->failure = mem_strdup(why);
    }
}

/* ---- rewards ---- */

/* Asks for the reward of a sample, or of the group that begins with it. 0 when the hub took it,
 * STATUS_AGAIN when it is full. */
static int batch_ask(struct batch *b, int64_t id, struct err *e)
{
    int n = b->cfg.group_rm ? b->cfg.n : 1;
    const struct batch_group *q = &b->groups[id / b->cfg.n];
    int rc = recall_submit(b->recall, id, q->rollout, b->cfg.proto.set, q->s + id % b->cfg.n, n,
                           b->cfg.group_rm, e);
    if (rc == STATUS_OK) {
        b->rewards += n;
    }
    return rc;
}

/* The sample is all there: its reward is asked for, now or when the hub has room. */
static int batch_complete(struct batch *b, int group, int i, struct err *e)
{
    struct batch_group *q = &b->groups[group];
    int64_t id = (int64_t)group * b->cfg.n + (b->cfg.group_rm ? 0 : i);
    int rc;

    if (!b->recall) {
        batch_scored(b, group, i);
        return STATUS_OK;
    }
    if (b->aborted || (b->cfg.group_rm && q->answered < b->cfg.n)) {
        return STATUS_OK;
    }
    rc = b->nwaiting ? STATUS_AGAIN : batch_ask(b, id, e);
    if (rc == STATUS_AGAIN) {
        b->waiting =
            batch_ring(b->waiting, sizeof id, &b->waiting_head, b->nwaiting, &b->waiting_cap);
        b->waiting[(b->waiting_head + b->nwaiting++) % b->waiting_cap] = id;
        rc = STATUS_OK;
    }
    return rc;
}

static void batch_reward(struct batch *b, const struct hub_result *r)
{
    int group = (int)(r->id / b->cfg.n), i = (int)(r->id % b->cfg.n);
    struct batch_group *q = &b->groups[group];
    struct sample *s = q->s[i];

    if (r->failed) {
        s->status = SAMPLE_FAILED;
        batch_fail(q, r->reason);
    } else {
        s->reward = r->reward;
    }
    json_decref(s->raw_reward);
    mem_free(s->reason);
    s->raw_reward = r->raw;
    s->reason = mem_strdup(r->reason);
    batch_scored(b, group, i);
}

/* Takes the rewards that are ready; waits up to wait_s for the first. */
static int batch_rewards(struct batch *b, double wait_s, struct err *e)
{
    struct hub_result r;
    int rc;
    while (b->rewards && (rc = recall_poll(b->recall, wait_s, &r, e)) != STATUS_AGAIN) {
        if (rc != STATUS_OK) {
            return rc;
        }
        b->rewards--;
        wait_s = 0.0;
        batch_reward(b, &r);
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

/* ---- from the port ---- */

static int batch_decode(const struct batch *b, struct sample *s, struct err *e)
{
    mem_free(s->response);
    s->response = NULL;
    return promptenc_decode(b->cfg.enc, s->tokens + s->prompt_len, s->response_len,
                            b->cfg.skip_special, &s->response, e);
}

static int batch_answer(struct batch *b, const struct port_answer *a, struct err *e)
{
    const struct batch_unit *u = &b->units[a->group];
    struct batch_group *q = &b->groups[u->group];
    int i = u->first + a->sample, rc;
    struct sample *s = q->s[i];

    b->flying--;
    b->answers++;
    if (a->made) {
        sample_take(s, a->made);
    } else { /* where the weights changed under it, it is as old as its first token */
        sample_append(s, a->tokens, a->logps, a->ntokens,
                      !a->exact && q->version < a->version ? q->version : a->version, a->exact);
    }
    s->status = a->finish == PORT_STOP     ? SAMPLE_COMPLETED
                : a->finish == PORT_LENGTH ? SAMPLE_TRUNCATED
                                           : SAMPLE_ABORTED;
    q->finish[i] = (uint8_t)s->status;
    q->fresh[i] = a->ntokens;
    rc = a->made && s->response ? STATUS_OK : batch_decode(b, s, e);
    if (rc != STATUS_OK || (b->aborted && s->status == SAMPLE_ABORTED)) {
        return rc;
    }
    q->state[i] = BATCH_IS_ANSWERED;
    q->answered++;
    batch_tell(b, (struct batch_event){BATCH_ANSWER, u->group, i, a->ntokens});
    if (s->status == SAMPLE_ABORTED) {
        batch_fail(q, a->made && a->made->reason ? a->made->reason : "the engine gave a sample up");
        batch_scored(b, u->group, i);
        return STATUS_OK;
    }
    if (a->made && isfinite(s->reward) && !b->cfg.group_rm) { /* the function scored it, too */
        batch_scored(b, u->group, i);
        return STATUS_OK;
    }
    return batch_complete(b, u->group, i, e);
}

/* What of the last group, which goes on, is finished already. */
static int batch_take_finished(struct batch *b, struct err *e)
{
    int group = b->ngroups - 1, rc = STATUS_OK, rewards = 1;
    struct batch_group *q = &b->groups[group];

    for (int i = 0; i < b->cfg.n; i++) {
        struct sample *s = q->s[i];
        if (s->status == SAMPLE_COMPLETED || s->status == SAMPLE_TRUNCATED ||
            batch_left(b, s) <= 0) {
            s->status = s->status == SAMPLE_COMPLETED ? s->status : SAMPLE_TRUNCATED;
            q->finish[i] = (uint8_t)s->status;
            q->state[i] = BATCH_IS_ANSWERED;
            q->answered++;
        }
        rewards &= isfinite(s->reward) != 0;
    }
    if (b->cfg.group_rm && !rewards) { /* a group is scored as a whole, when it is whole */
        return q->answered == b->cfg.n ? batch_complete(b, group, 0, e) : STATUS_OK;
    }
    for (int i = 0; rc == STATUS_OK && i < b->cfg.n; i++) {
        if (q->state[i] == BATCH_IS_ANSWERED && isfinite(q->s[i]->reward)) {
            batch_scored(b, group, i);
        } else if (q->state[i] == BATCH_IS_ANSWERED) {
            rc = batch_complete(b, group, i, e);
        }
    }
    return rc;
}

int batch_resume(struct batch *b, struct sample *const *s, struct err *e)
{
    struct batch_group *q = batch_begin(b);
    int rc;

    for (int i = 0; i < b->cfg.n; i++) {
        q->s[i] = s[i];
        q->had[i] = s[i]->response_len;
        if (b->cfg.mask_old && s[i]->response_len) {
            mem_free(s[i]->mask);
            s[i]->mask = mem_alloc((size_t)s[i]->response_len);
        }
    }
    rc = batch_take_finished(b, e);
    for (int i = 0; i < b->cfg.n; i++) {
        if (q->state[i] == BATCH_OPEN) {
            batch_unit_of(b, i, 1, batch_left(b, s[i]));
        }
    }
    return rc == STATUS_OK ? batch_send(b, e) : rc;
}

int batch_tick(struct batch *b, struct err *e)
{
    struct port_answer a = {0};
    int rc = STATUS_OK, idle;

    if (b->aborted ? !b->flying && !b->rewards : !b->open) {
        return STATUS_OK;
    }
    if (!b->aborted) {
        rc = batch_send(b, e);
    }
    if (rc != STATUS_OK) {
        return rc;
    }
    idle = !b->flying && b->sent == b->nunits;
    rc = idle ? STATUS_END : b->cfg.port->poll(b->cfg.port->self, &a, e);
    if (rc == STATUS_OK) {
        rc = batch_answer(b, &a, e);
    } else if (rc == STATUS_END) {
        if (b->flying || (!b->rewards && !b->nwaiting)) {
            return ERR(e, STATUS_FAIL, "the rollout stopped with %d groups unfinished", b->open);
        }
        rc = batch_rewards(b, 0.2, e);
    } else if (rc == STATUS_AGAIN) {
        rc = STATUS_OK;
    }
    if (rc == STATUS_OK && b->recall) {
        rc = batch_rewards(b, 0.0, e);
    }
    if (rc != STATUS_OK) {
        return rc;
    }
    return (b->aborted ? b->flying || b->rewards : b->open) ? STATUS_AGAIN : STATUS_OK;
}

/* ---- looking at groups, and ending them ---- */

int batch_groups(const struct batch *b)
{
    return b->ngroups;
}

struct sample **batch_group(struct batch *b, int group)
{
    return b->groups[group].s;
}

int batch_answered(const struct batch *b, int group, int sample)
{
    return b->groups[group].state[sample] != BATCH_OPEN;
}

int batch_is_scored(const struct batch *b, int group, int sample)
{
    return b->groups[group].state[sample] == BATCH_IS_SCORED;
}

const char *batch_failure(const struct batch *b, int group)
{
    return b->groups[group].failure;
}

int batch_progress(const struct batch *b, int group, int sample)
{
    const struct batch_group *q = &b->groups[group];
    const struct rollout_port *p = b->cfg.port;
    int unit = q->unit[sample], n = 0;

    if (p->progress && unit < b->sent) {
        n = p->progress(p->self, unit, sample - b->units[unit].first);
    }
    return n > 0 ? n : 0;
}

int batch_fresh(const struct batch *b, int group, int sample)
{
    return b->groups[group].fresh[sample];
}

void batch_forget(struct batch *b, int group)
{
    struct batch_group *q = &b->groups[group];
    for (int i = 0; q->s && i < b->cfg.n; i++) {
        sample_free(q->s[i]);
    }
    mem_free(q->s);
    q->s = NULL;
}

struct sample **batch_hand_over(struct batch *b, int group)
{
    struct sample **s = b->groups[group].s;
    b->groups[group].s = NULL;
    return s;
}

void batch_release(struct batch *b, int group)
{
    batch_fini_group(b, &b->groups[group]);
}

void batch_abort(struct batch *b)
{
    b->aborted = 1;
    b->nunits = b->sent;
    b->nwaiting = 0;
    if (b->flying) {
        b->cfg.port->abort(b->cfg.port->self, -1);
    }
    for (int g = 0; g < b->ngroups; g++) {
        struct batch_group *q = &b->groups[g];
        for (int i = 0; q->s && i < b->cfg.n; i++) {
            q->s[i]->status = q->state[i] == BATCH_OPEN ? SAMPLE_ABORTED : q->s[i]->status;
        }
    }
}

int batch_cut(struct batch *b, int group, int sample, int n, struct err *e)
{
    struct batch_group *q = &b->groups[group];
    struct sample *s = q->s[sample];

    if (q->fresh[sample] < n) {
        return ERR(e, STATUS_FAIL, "sample %lld has %d new tokens of %d that it had",
                   (long long)s->index, q->fresh[sample], n);
    }
    sample_cut(s, q->had[sample] + n);
    s->status = SAMPLE_ABORTED;
    return batch_decode(b, s, e);
}

void batch_unscore(struct batch *b, int group, int sample)
{
    struct batch_group *q = &b->groups[group];
    struct sample *s = q->s[sample];

    sample_cut(s, s->response_len);
    s->status = (enum sample_status)q->finish[sample];
}

void batch_now(struct batch *b, int64_t rollout, int64_t version)
{
    b->cfg.proto.rollout = rollout;
    b->cfg.proto.version = version;
}

void batch_when(const struct batch *b, int group, int64_t *rollout, int64_t *version)
{
    *rollout = b->groups[group].rollout;
    *version = b->groups[group].version;
}

int batch_idle(const struct batch *b)
{
    return !b->flying && !b->rewards && !b->nwaiting && b->sent == b->nunits;
}

int batch_done_samples(const struct batch *b)
{
    return b->answers;
}
