/* Owns the choice of rows for a step and of who holds pages. Samples are served in the order in
 * which they began; one that finds no page takes back the youngest sample that has any, so the
 * oldest always goes on and nothing waits for ever. A sample that was taken back has lost no more
 * than rows: it goes on as a prompt of all its tokens, and what the cache still has of it is not
 * computed again.
 *
 * A pass writes the keys and values of all its rows in a layer before it reads any. So a page that
 * will be full in this step can be shared at once with samples that begin in the same step. */
#include <string.h>

#include "engine/engine_int.h"

void roster_release(struct engine *g, struct engine_sample *s, int keep)
{
    if (keep && !s->foreign) {
        radix_insert(&g->tree, g->version, s->tokens, s->have, s->pages, 1);
    }
    for (int i = 0; i < s->npages; i++) {
        kv_give(&g->kv, s->pages[i]);
    }
    s->npages = 0;
    s->have = 0;
    s->foreign = 0;
}

/* A page, if need be one that only the cache holds. */
static int roster_page(struct engine *g)
{
    int page = kv_take(&g->kv, g->version);
    if (page < 0 && radix_evict(&g->tree)) {
        page = kv_take(&g->kv, g->version);
    }
    return page;
}

/* Pages that a sample may start with: those that nobody uses, less what running samples still need
 * for the tokens they have and one for each, so that it will not be taken back soon. */
static int roster_spare(const struct engine *g, const struct engine_sample *s, int *alone)
{
    int spare = g->kv.free + g->kv.idle;
    *alone = 1;
    for (int i = 0; i < g->nlive; i++) {
        const struct engine_sample *x = g->live[i];
        if (x != s && x->npages) {
            int more = engine_blocks(x->len) - x->npages;
            spare -= 1 + (more > 0 ? more : 0);
            *alone = 0;
        }
    }
    return spare;
}

/* Rows that the cache may give: all but the last, whose logits are needed; none whose logits give
 * a log-prob that is still wanted. */
static int roster_match_limit(const struct engine_sample *s)
{
    return engine_to_score(s->req) ? s->req->scored - 1 : s->len - 1;
}

/* A sample without pages looks into the cache and begins, if there is memory for it. */
static int roster_admit(struct engine *g, struct engine_sample *s, int room)
{
    int part, npart, alone, spare;
    int n = radix_match(&g->tree, g->version, s->tokens, roster_match_limit(s), s->pages, &part,
                        &npart);
    int have = n * PLAN_KV_BLOCK + npart, ok = room > 0 || s->len - have == 1;

    s->npages = n;
    spare = roster_spare(g, s, &alone);
    ok = ok && (alone || spare >= engine_blocks(s->len) - n);
    if (ok && part >= 0) {
        int page = roster_page(g);
        if (page >= 0) {
            kv_copy(&g->kv, part, page);
            s->pages[s->npages++] = page;
        } else {
            have -= npart;
        }
    }
    if (part >= 0) {
        kv_give(&g->kv, part);
    }
    if (!ok) {
        roster_release(g, s, 0);
        return 0;
    }
    s->have = have;
    if (s->cached < 0) {
        s->cached = have;
    }
    g->stats.cached_tokens += have;
    return 1;
}

/* Pages for the first `upto` tokens of the sample at place i. 0 when it was taken back itself. */
static int roster_grow(struct engine *g, struct engine_sample *s, int i, int upto)
{
    while (s->npages < engine_blocks(upto)) {
        int page = roster_page(g), k = g->nlive - 1;
        if (page >= 0) {
            s->pages[s->npages++] = page;
            continue;
        }
        while (k > i && !g->live[k]->npages) {
            k--;
        }
        roster_release(g, g->live[k], 1);
        g->stats.preempted++;
        if (k == i) {
            return 0;
        }
    }
    return 1;
}

/* Of n rows from `row` on, those that precede a prompt token whose log-prob is wanted. */
static void roster_score(struct engine *g, const struct engine_sample *s, int row, int n)
{
    struct engine_request *q = s->req;
    while (engine_to_score(q) && q->scored - 1 >= s->have && q->scored - 1 < s->have + n) {
        g->score[g->nscore] = (struct engine_score){q, q->scored};
        g->score_idx[g->nscore] = row + q->scored - 1 - s->have;
        g->score_target[g->nscore++] = q->q.tokens[q->scored];
        q->scored++;
    }
}

/* Adds rows of the sample at place i. 0: it waits for memory, and whoever is younger must not begin
 * before it. */
static int roster_rows(struct engine *g, int i, struct rows *r, int *room)
{
    struct engine_sample *s = g->live[i];
    struct row_seq *q = &g->seq[r->nseq];
    int need, n;

    if (!s->npages && !roster_admit(g, s, *room)) {
        return 0;
    }
    need = s->len - s->have;
    n = need == 1 || need < *room ? need : *room;
    if (n == 0) {
        return 1;
    }
    if (!roster_grow(g, s, i, s->have + n)) {
        return 0;
    }
    *q = (struct row_seq){r->n, n, s->have, s->pages, 0};
    for (int k = 0; k < n; k++) {
        g->pos[r->n + k] = s->have + k;
        g->tok[r->n + k] = s->tokens[s->have + k];
    }
    roster_score(g, s, r->n, n);
    r->n += n;
    r->nseq++;
    s->rows = n;
    s->fill = need > 1;
    s->have += n;
    g->stats.prompt_rows += n;
    if (s->have == s->len && s->req->q.max_new > 0) {
        g->idx[g->nsampled] = r->n - 1;
        g->sampled[g->nsampled++] = s;
        g->stats.prompt_rows--;
        g->stats.decode_rows++;
    }
    if (need > 1) {
        *room -= n;
        if (!s->foreign) {
            radix_insert(&g->tree, g->version, s->tokens, s->have, s->pages, 0);
        }
    }
    return 1;
}

/* The next sample of a request, in a free slot. */
static struct engine_sample *roster_slot(struct engine *g, struct engine_request *q)
{
    struct engine_sample *s = g->slots;
    while (s->req) {
        s++;
    }
    s->req = q;
    s->index = q->started;
    s->state = ENGINE_LIVE;
    s->len = q->q.ntokens;
    s->have = s->npages = s->rows = s->fill = s->got = s->foreign = 0;
    s->cached = -1;
    memcpy(s->tokens, q->q.tokens, sizeof *s->tokens * (size_t)s->len);
    return s;
}

/* Starts samples of waiting requests, first come first served, while there is room. */
static void roster_start(struct engine *g, struct rows *r, int *room)
{
    for (struct engine_request *q = g->head; q; q = q->next) {
        while (q->started < q->q.n && !q->lead && !q->aborted) {
            struct engine_sample *s;
            if (g->nlive == g->o.max_running) {
                return;
            }
            s = roster_slot(g, q);
            g->live[g->nlive++] = s;
            if (!roster_rows(g, g->nlive - 1, r, room)) {
                g->nlive--;
                s->req = NULL;
                return;
            }
            q->started++;
            g->waiting--;
            if (s->cached < q->q.ntokens - 1) {
                q->lead = s;
            }
        }
    }
}

void roster_plan(struct engine *g, struct rows *r)
{
    int room = g->o.chunk, all = 1;

    memset(r, 0, sizeof *r);
    r->seq = g->seq;
    r->pos = g->pos;
    g->nsampled = g->nscore = 0;
    radix_tick(&g->tree);
    for (int i = 0; i < g->nlive; i++) {
        if (g->live[i]->state == ENGINE_LIVE && (all || g->live[i]->npages)) {
            all &= roster_rows(g, i, r, &room);
        }
    }
    if (all) {
        roster_start(g, r, &room);
    }
}

void roster_settle(struct engine *g)
{
    for (int i = 0; i < g->nlive; i++) {
        struct engine_sample *s = g->live[i];
        if (s->fill && !s->foreign) {
            radix_insert(&g->tree, g->version, s->tokens, s->have, s->pages, 1);
        }
        if (s->req->lead == s && s->have >= s->req->q.ntokens - 1) {
            s->req->lead = NULL;
        }
        if (s->rows && s->have == s->len && s->req->q.max_new == 0) {
            s->state = ENGINE_DONE;
            s->finish = ENGINE_LENGTH;
        }
        if (s->state != ENGINE_LIVE && s->npages) {
            roster_release(g, s, !s->req->q.forget);
        }
    }
}
