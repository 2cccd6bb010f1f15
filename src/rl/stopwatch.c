/* Owns the texts of running samples that stop strings are looked for in. Groups come and go in
 * about the order in which the engine shows them, so a search that begins at the last one found is
 * short.
 */
#include "rl/stopwatch.h"

#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "engine/engine.h"
#include "text/stoptext.h"

#define STOPWATCH_MAX_TEXT ((size_t)256 << 20)

struct stopwatch_group {
    int64_t id;
    int n, left; /* samples, and those not taken yet */
    struct stoptext_stop *stops;
    struct stoptext *texts; /* (n) */
};

void stopwatch_init(struct stopwatch *w, const struct tokenizer *tok)
{
    memset(w, 0, sizeof *w);
    w->tok = tok;
}

static void stopwatch_free(struct stopwatch_group *g)
{
    for (int i = 0; i < g->n; i++) {
        stoptext_fini(&g->texts[i]);
    }
    mem_free(g->texts);
    mem_free(g->stops);
    mem_free(g);
}

void stopwatch_fini(struct stopwatch *w)
{
    for (int i = 0; i < w->n; i++) {
        stopwatch_free(w->groups[i]);
    }
    mem_free(w->groups);
    memset(w, 0, sizeof *w);
}

int stopwatch_add(struct stopwatch *w, const struct port_group *g, struct err *e)
{
    struct stopwatch_group *x;

    if (!g->ntexts) {
        return STATUS_OK;
    }
    if (!w->tok) {
        return ERR(e, STATUS_INPUT, "stop strings need a tokenizer");
    }
    w->groups = mem_room(w->groups, sizeof *w->groups, w->n, &w->cap);
    x = mem_alloc(sizeof *x);
    x->id = g->id;
    x->n = x->left = g->n;
    x->stops = mem_alloc(sizeof *x->stops * (size_t)g->ntexts);
    x->texts = mem_alloc(sizeof *x->texts * (size_t)g->n);
    for (int i = 0; i < g->ntexts; i++) {
        x->stops[i] = (struct stoptext_stop){g->texts[i], strlen(g->texts[i])};
    }
    for (int i = 0; i < g->n; i++) {
        /* special tokens have a text too, and may be what a user stops at */
        stoptext_init(&x->texts[i], w->tok, 0, x->stops, g->ntexts, STOPWATCH_MAX_TEXT);
    }
    w->groups[w->n++] = x;
    return STATUS_OK;
}

static struct stopwatch_group *stopwatch_find(struct stopwatch *w, int64_t id)
{
    for (int k = 0; k < w->n; k++) {
        int i = w->last + k < w->n ? w->last + k : w->last + k - w->n;
        if (w->groups[i]->id == id) {
            w->last = i;
            return w->groups[i];
        }
    }
    return NULL;
}

int stopwatch_look(struct stopwatch *w, struct engine *g, struct err *e)
{
    struct engine_result r;

    for (int i = 0; w->n && engine_peek(g, &i, &r);) {
        struct stopwatch_group *x = stopwatch_find(w, r.group);
        int rc =
            x ? stoptext_push(&x->texts[r.sample], r.tokens, (size_t)r.ntokens, 0, e) : STATUS_OK;
        if (rc < 0) {
            return rc;
        }
        if (rc == STATUS_END) {
            engine_end(g, r.group, r.sample, r.ntokens, ENGINE_STOP);
        }
    }
    return STATUS_OK;
}

int stopwatch_taken(struct stopwatch *w, struct engine_result *r, struct err *e)
{
    struct stopwatch_group *x = w->n ? stopwatch_find(w, r->group) : NULL;
    int rc;

    if (!x) {
        return STATUS_OK;
    }
    rc = stoptext_push(&x->texts[r->sample], r->tokens, (size_t)r->ntokens, 1, e);
    if (rc == STATUS_END && r->finish == ENGINE_LENGTH) {
        r->finish = ENGINE_STOP;
    }
    if (--x->left == 0) {
        stopwatch_free(x);
        w->groups[w->last] = w->groups[--w->n];
        w->last = 0;
    }
    return rc < 0 ? rc : STATUS_OK;
}
