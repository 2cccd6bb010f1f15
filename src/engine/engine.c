/* Owns requests, samples and their life: who waits, who runs, who is done. Which rows a step
 * computes is decided in roster.c, what becomes of their logits in emit.c. Prompts are computed up
 * to their last token, whose row gives the logits of the first new token; after that a sample is
 * one row per step. */
#include "engine/engine.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/status.h"
#include "base/thread.h"
#include "engine/engine_int.h"

static void engine_defaults(const struct weights *w, struct engine_opts *o)
{
    o->max_running = o->max_running > 0 ? o->max_running : 256;
    o->max_context = o->max_context > 0 ? o->max_context : w->positions;
    o->chunk = o->chunk > 0 ? o->chunk : 512;
}

/* Rows of logits at a time: one for each sample, and enough to score a prompt by blocks. */
static int engine_logit_rows(int running)
{
    return running < 32 ? 32 : running;
}

/* Rows of exponentials at a time: few enough to stay in the caches until their tokens are chosen. A
 * device that hands copies out is asked once. */
static int engine_probs_rows(const struct weights *w, int running)
{
    int n = 4 * pool_size(w->dev->pool);
    return n < running && !w->dev->mem ? n : running;
}

/* Bytes of a sample's tokens, log-probs, versions and marks. */
static size_t engine_text_bytes(int max_context)
{
    size_t one = sizeof(int64_t) + sizeof(int32_t) + sizeof(float) + 1;
    return ((size_t)max_context * one + 63) / 64 * 64;
}

/* Pages that the options ask for: a budget, a share of what is free, or what all samples need, up
 * to half of the machine's memory. Never more: what is too long for them is refused. */
static int64_t engine_page_count(const struct weights *w, const struct engine_opts *o)
{
    const struct arch *a = &w->arch;
    int64_t page = (int64_t)device_kv_page_bytes(w->dev, a->n_layers, a->n_kv_heads, a->head_dim);
    int64_t memory = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    int64_t pages = (int64_t)engine_blocks(o->max_context) * o->max_running + 1;

    if (o->kv_tokens > 0) {
        pages = o->kv_tokens / PLAN_KV_BLOCK;
    } else if (o->kv_bytes > 0) {
        pages = o->kv_bytes / page;
    } else if (o->mem_fraction > 0.0) {
        int64_t left = mem_available();
        pages = (int64_t)(o->mem_fraction * (double)(left > 0 ? left : memory)) / page;
    } else if (pages > memory / 2 / page) {
        pages = memory / 2 / page;
    }
    pages = pages > 1 ? pages : 1;
    return pages < 1 << 30 ? pages : 1 << 30;
}

double engine_pages(int prompt, int max_new, int n)
{
    /* the last token is sampled, not read; a prompt's full pages are held once, and every sample
     * has a copy of what is not full */
    int full = (prompt - 1) / PLAN_KV_BLOCK;
    return engine_blocks(prompt + max_new - 1) - full + (double)full / n;
}

int64_t engine_bytes(const struct weights *w, const struct engine_opts *opts, int running,
                     double pages)
{
    struct engine_opts o = *opts;
    int64_t page = (int64_t)device_kv_page_bytes(w->dev, w->arch.n_layers, w->arch.n_kv_heads,
                                                 w->arch.head_dim);
    double most;

    engine_defaults(w, &o);
    running = running < o.max_running ? running : o.max_running;
    most = (double)engine_page_count(w, &o);
    pages = pages * running < most ? pages * running : most;
    return forward_bytes(w, running + o.chunk, 0, FORWARD_KEEP_ALL, 0) +
           device_tensor_bytes(DTYPE_F32, running, w->arch.vocab) +
           device_tensor_bytes(DTYPE_F32, engine_probs_rows(w, running), w->arch.vocab) +
           (int64_t)((double)page * pages) + (int64_t)engine_text_bytes(o.max_context) * running;
}

static int engine_slots(struct engine *g, struct err *e)
{
    size_t n = (size_t)g->o.max_running, len = (size_t)g->o.max_context;
    size_t one = engine_text_bytes(g->o.max_context);
    char *at;

    g->text_size = n * one;
    g->text = mem_map(g->text_size); /* touched only as far as samples grow */
    if (!g->text) {
        return ERR(e, STATUS_NOMEM, "no memory for %d samples of %d tokens", g->o.max_running,
                   g->o.max_context);
    }
    g->slots = mem_alloc(sizeof *g->slots * n);
    g->live = mem_alloc(sizeof *g->live * n);
    at = g->text;
    for (size_t i = 0; i < n; i++, at += one) {
        struct engine_sample *s = &g->slots[i];
        s->versions = (int64_t *)(void *)at;
        s->tokens = (int32_t *)(void *)(at + len * sizeof(int64_t));
        s->logps = (float *)(void *)(s->tokens + len);
        s->mixed = (uint8_t *)(s->logps + len);
        s->pages = mem_alloc(sizeof *s->pages * (size_t)g->pages_per_sample);
    }
    return STATUS_OK;
}

static int engine_open_logits(struct engine *g, struct err *e)
{
    struct weights *w = g->w;
    size_t n = (size_t)g->logit_rows;
    int rc = device_tensor(w->dev, &g->logits, DTYPE_F32, (int64_t)n, w->arch.vocab, e);

    if (rc == STATUS_OK) {
        rc = device_tensor(w->dev, &g->probs, DTYPE_F32, g->probs_rows, w->arch.vocab, e);
    }
    if (rc != STATUS_OK) {
        return rc;
    }
    for (int i = 0; i < 2 && w->dev->mem; i++) {
        g->host[i] = mem_alloc(sizeof(float) * n * (size_t)w->arch.vocab);
    }
    g->score_logp = mem_alloc(sizeof(float) * n);
    g->max = mem_alloc(sizeof(float) * n);
    g->logz = mem_alloc(sizeof(float) * n);
    g->samplers = mem_alloc(sizeof *g->samplers * (size_t)pool_size(w->dev->pool));
    for (int i = 0; i < pool_size(w->dev->pool); i++) {
        g->samplers[i] = sampler_new(w->arch.vocab);
    }
    return STATUS_OK;
}

int engine_open(struct weights *w, const struct engine_opts *o, struct engine **out, struct err *e)
{
    struct engine *g = mem_alloc(sizeof *g);
    size_t rows;
    int rc;

    g->w = w;
    g->o = *o;
    g->version = w->version;
    engine_defaults(w, &g->o);
    if (g->o.max_context > w->positions) {
        rc = ERR(e, STATUS_INPUT, "a context of %d tokens, the model has positions for %d",
                 g->o.max_context, w->positions);
        mem_free(g);
        return rc;
    }
    g->pages_per_sample = engine_blocks(g->o.max_context);
    g->logit_rows = engine_logit_rows(g->o.max_running);
    g->probs_rows = engine_probs_rows(w, g->o.max_running);
    rows = (size_t)g->o.max_running + (size_t)g->o.chunk;
    rc = forward_open(w, (int)rows, 0, &g->f, e);
    if (rc == STATUS_OK) {
        rc = kv_open(&g->kv, w, (int)engine_page_count(w, &g->o), e);
    }
    if (rc == STATUS_OK) {
        radix_open(&g->tree, &g->kv);
        rc = engine_open_logits(g, e);
    }
    if (rc == STATUS_OK) {
        rc = engine_slots(g, e);
    }
    if (rc != STATUS_OK) {
        engine_close(g);
        return rc;
    }
    g->seq = mem_alloc(sizeof *g->seq * rows);
    g->pos = mem_alloc(sizeof(int32_t) * rows);
    g->tok = mem_alloc(sizeof(int32_t) * rows);
    g->idx = mem_alloc(sizeof(int32_t) * (size_t)g->o.max_running);
    g->sampled = mem_alloc(sizeof *g->sampled * (size_t)g->o.max_running);
    g->score = mem_alloc(sizeof *g->score * (size_t)g->o.chunk);
    g->score_idx = mem_alloc(sizeof(int32_t) * (size_t)g->o.chunk);
    g->score_target = mem_alloc(sizeof(int32_t) * (size_t)g->o.chunk);
    *out = g;
    return STATUS_OK;
}

static void engine_drop(struct engine_request *q)
{
    mem_free((void *)(uintptr_t)q->q.tokens);
    mem_free((void *)(uintptr_t)q->q.sampling.bias);
    mem_free(q->prompt_logps);
    mem_free(q->prompt_top_ids);
    mem_free(q->prompt_top_logps);
    mem_free((void *)(uintptr_t)q->q.wanted);
    mem_free(q->prompt_wanted);
    mem_free(q->top_ids);
    mem_free(q->top_logps);
    mem_free(q);
}

void engine_close(struct engine *g)
{
    if (!g) {
        return;
    }
    while (g->head) {
        struct engine_request *q = g->head;
        g->head = q->next;
        engine_drop(q);
    }
    for (int i = 0; g->slots && i < g->o.max_running; i++) {
        mem_free(g->slots[i].pages);
    }
    for (int i = 0; g->samplers && i < pool_size(g->w->dev->pool); i++) {
        sampler_free(g->samplers[i]);
    }
    forward_close(g->f);
    radix_close(&g->tree);
    kv_close(&g->kv);
    device_tensor_free(&g->logits);
    device_tensor_free(&g->probs);
    mem_unmap(g->text, g->text_size);
    mem_free(g->host[0]);
    mem_free(g->host[1]);
    mem_free(g->max);
    mem_free(g->logz);
    mem_free(g->samplers);
    mem_free(g->slots);
    mem_free(g->live);
    mem_free(g->seq);
    mem_free(g->pos);
    mem_free(g->tok);
    mem_free(g->idx);
    mem_free(g->sampled);
    mem_free(g->score);
    mem_free(g->score_idx);
    mem_free(g->score_target);
    mem_free(g->score_logp);
    mem_free(g);
}

static int engine_check_sampling(const struct engine *g, const struct engine_group *q,
                                 struct err *e)
{
    const struct sampler_params *p = &q->sampling;

    if (!(p->temperature >= 0.0f && p->temperature <= 1e6f) ||
        !(p->top_p > 0.0f && p->top_p <= 1.0f) || !(p->min_p >= 0.0f && p->min_p <= 1.0f) ||
        !(q->prompt_temperature >= 0.0f && q->prompt_temperature <= 1e6f)) {
        return ERR(e, STATUS_INPUT, "temperature %g, top_p %g, min_p %g: out of range",
                   (double)p->temperature, (double)p->top_p, (double)p->min_p);
    }
    if (!(p->repetition_penalty >= 0.0f && p->repetition_penalty <= 1e6f) ||
        !(fabsf(p->frequency_penalty) <= 1e6f) || !(fabsf(p->presence_penalty) <= 1e6f)) {
        return ERR(e, STATUS_INPUT, "penalties %g for repetition, %g, %g: out of range",
                   (double)p->repetition_penalty, (double)p->frequency_penalty,
                   (double)p->presence_penalty);
    }
    if (q->nstop < 0 || q->nstop > ENGINE_MAX_STOP) {
        return ERR(e, STATUS_INPUT, "%d stop tokens, at most %d are taken", q->nstop,
                   ENGINE_MAX_STOP);
    }
    if (q->top < 0 || q->top > ENGINE_MAX_TOP || q->top > g->w->arch.vocab) {
        return ERR(e, STATUS_INPUT, "%d candidates beside each token, at most %d of %d are given",
                   q->top, ENGINE_MAX_TOP, g->w->arch.vocab);
    }
    if (p->nbias < 0 || p->nbias > g->w->arch.vocab) {
        return ERR(e, STATUS_INPUT, "a bias for %d tokens of a vocabulary of %d", p->nbias,
                   g->w->arch.vocab);
    }
    for (int i = 0; i < p->nbias; i++) {
        if (p->bias[i].id < 0 || p->bias[i].id >= g->w->arch.vocab ||
            !(fabsf(p->bias[i].value) <= 1e6f)) {
            return ERR(e, STATUS_INPUT, "a bias of %g for token %d", (double)p->bias[i].value,
                       p->bias[i].id);
        }
    }
    return STATUS_OK;
}

/* Tokens of a group's list `wanted`. */
static size_t engine_wanted(const struct engine_group *q)
{
    int from = q->prompt_from > 0 ? q->prompt_from : 1;
    return (size_t)q->nwanted * (size_t)(!q->wanted_each     ? 1
                                         : q->ntokens > from ? q->ntokens - from
                                                             : 0);
}

static int engine_check_wanted(const struct engine *g, const struct engine_group *q, struct err *e)
{
    int64_t room = (int64_t)q->ntokens * q->nwanted;

    if (q->nwanted < 0 || (q->nwanted && !q->prompt_logps) || room > ENGINE_MAX_WANTED) {
        return ERR(e, STATUS_INPUT,
                   "log-probs of %d tokens at each of %d of the prompt; at most %d are given, and "
                   "with the prompt's own",
                   q->nwanted, q->ntokens, ENGINE_MAX_WANTED);
    }
    for (size_t i = 0; q->nwanted && i < engine_wanted(q); i++) {
        if (q->wanted[i] < 0 || q->wanted[i] >= g->w->arch.vocab) {
            return ERR(e, STATUS_INPUT, "token %d is outside the vocabulary of %d", q->wanted[i],
                       g->w->arch.vocab);
        }
    }
    return STATUS_OK;
}

static int engine_check_group(const struct engine *g, const struct engine_group *q, struct err *e)
{
    int rc;

    if (q->ntokens < 1 || q->n < 1 || q->max_new < !q->prompt_logps) {
        return ERR(e, STATUS_INPUT,
                   "a prompt of %d tokens, %d samples of %d new tokens: each must be at least 1",
                   q->ntokens, q->n, q->max_new);
    }
    rc = engine_check_sampling(g, q, e);
    if (rc != STATUS_OK) {
        return rc;
    }
    if (q->prompt_logps && (q->prompt_from < 0 || q->prompt_from > q->ntokens)) {
        return ERR(e, STATUS_INPUT, "log-probs from token %d of a prompt of %d", q->prompt_from,
                   q->ntokens);
    }
    if ((int64_t)q->ntokens + q->max_new > g->o.max_context) {
        return ERR(e, STATUS_INPUT,
                   "prompt of %d and %d new tokens do not fit a context of %d tokens", q->ntokens,
                   q->max_new, g->o.max_context);
    }
    rc = engine_check_wanted(g, q, e);
    if (rc != STATUS_OK) {
        return rc;
    }
    for (int i = 0; i < q->ntokens; i++) {
        if (q->tokens[i] < 0 || q->tokens[i] >= g->w->arch.vocab) {
            return ERR(e, STATUS_INPUT, "prompt token %d is %d, outside the vocabulary of %d", i,
                       q->tokens[i], g->w->arch.vocab);
        }
    }
    if (engine_blocks(q->ntokens + q->max_new) > g->kv.n) {
        return ERR(e, STATUS_INPUT, "a sample of %d tokens needs %d KV pages, the engine has %d",
                   q->ntokens + q->max_new, engine_blocks(q->ntokens + q->max_new), g->kv.n);
    }
    return STATUS_OK;
}

/* Copies what the group points to, and makes room for what its log-probs will be. */
static int engine_copy_group(struct engine_request *n, const struct engine_group *q, struct err *e)
{
    size_t tokens = (size_t)q->ntokens, bias = sizeof *q->sampling.bias * (size_t)q->sampling.nbias;
    size_t rows = (size_t)q->n * (size_t)q->max_new, top = (size_t)q->top;
    int32_t *copy = mem_try(sizeof(int32_t) * tokens);
    struct sampler_bias *b = bias ? mem_try(bias) : NULL;
    int ok = copy && (b || !bias);

    n->q = *q;
    n->q.tokens = copy;
    n->q.sampling.bias = b;
    n->q.wanted = NULL;
    n->q.prompt_from = q->prompt_from > 0 ? q->prompt_from : 1;
    n->scored = n->q.prompt_from;
    if (ok) {
        memcpy(copy, q->tokens, sizeof(int32_t) * tokens);
        if (bias) {
            memcpy(b, q->sampling.bias, bias);
        }
    }
    if (ok && q->prompt_logps) {
        ok = (n->prompt_logps = mem_try(sizeof(float) * tokens)) != NULL;
    }
    if (ok && q->prompt_logps && top) {
        ok = (n->prompt_top_ids = mem_try(sizeof(int32_t) * tokens * top)) != NULL &&
             (n->prompt_top_logps = mem_try(sizeof(float) * tokens * top)) != NULL;
    }
    if (ok && q->nwanted) {
        size_t wanted = engine_wanted(q);
        int32_t *list = mem_try(sizeof(int32_t) * (wanted + 1));
        n->q.wanted = list;
        n->prompt_wanted = mem_try(sizeof(float) * tokens * (size_t)q->nwanted);
        ok = list && n->prompt_wanted;
        if (ok && wanted) {
            memcpy(list, q->wanted, sizeof(int32_t) * wanted);
        }
    }
    if (ok && top && rows) {
        ok = (n->top_ids = mem_try(sizeof(int32_t) * rows * top)) != NULL &&
             (n->top_logps = mem_try(sizeof(float) * rows * top)) != NULL;
    }
    return ok ? STATUS_OK
              : ERR(e, STATUS_NOMEM, "no memory for a request of %d tokens and %d samples",
                    q->ntokens, q->n);
}

int engine_submit(struct engine *g, const struct engine_group *q, struct err *e)
{
    struct engine_request *n;
    int rc = engine_check_group(g, q, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    n = mem_alloc(sizeof *n);
    rc = engine_copy_group(n, q, e);
    if (rc != STATUS_OK) {
        engine_drop(n);
        return rc;
    }
    if (g->tail) {
        g->tail->next = n;
    } else {
        g->head = n;
    }
    g->tail = n;
    g->waiting += q->n;
    return STATUS_OK;
}

/* Frees what the caller took since the last step. */
static void engine_reap(struct engine *g)
{
    struct engine_request **at = &g->head;
    int n = 0;

    for (int i = 0; i < g->nlive; i++) {
        struct engine_sample *s = g->live[i];
        if (s->state == ENGINE_TAKEN) {
            s->req->ended++;
            s->req = NULL;
        } else {
            g->live[n++] = s;
        }
    }
    g->nlive = n;
    g->taken = 0;
    g->tail = NULL;
    while (*at) {
        struct engine_request *q = *at;
        if (q->ended == q->q.n) {
            *at = q->next;
            if (q->q.forget) {
                radix_forget(&g->tree, g->version, q->q.tokens, q->q.ntokens);
            }
            engine_drop(q);
        } else {
            g->tail = q;
            at = &q->next;
        }
    }
}

/* The weights may have changed since the last step: rows of other versions are not read again, but
 * where a pause said that samples keep theirs. */
static int engine_update(struct engine *g, struct err *e)
{
    int holders = 0;

    for (int i = 0; i < g->nlive; i++) {
        holders += g->live[i]->npages > 0;
    }
    if (g->version != g->w->version) {
        if (holders && !g->in_place) {
            return ERR(e, STATUS_NUMERIC,
                       "weights went from version %lld to %lld under %d running samples",
                       (long long)g->version, (long long)g->w->version, holders);
        }
        radix_clear(&g->tree);
        for (int i = 0; i < g->nlive; i++) {
            struct engine_sample *s = g->live[i];
            s->foreign = s->npages > 0;
            for (int k = 0; k < s->npages; k++) {
                g->kv.version[s->pages[k]] = KV_MIXED;
            }
        }
        /* a prompt's log-probs are of one version */
        for (struct engine_request *q = g->head; q && !g->in_place; q = q->next) {
            q->scored = engine_to_score(q) ? q->q.prompt_from : q->scored;
        }
        g->version = g->w->version;
    }
    g->in_place = 0;
    return STATUS_OK;
}

int engine_step(struct engine *g, struct err *e)
{
    struct rows r;
    int rc;

    engine_reap(g);
    for (int i = 0; i < g->nlive; i++) {
        g->live[i]->rows = g->live[i]->fill = g->live[i]->got = 0;
    }
    if (g->paused || !weights_steady(g->w)) {
        return STATUS_AGAIN;
    }
    rc = engine_update(g, e);
    if (rc != STATUS_OK) {
        return rc;
    }
    roster_plan(g, &r);
    if (r.n == 0) {
        for (int i = 0; i < g->nlive; i++) {
            ASSERT(g->live[i]->state != ENGINE_LIVE);
        }
        return STATUS_END;
    }
    weights_acquire(g->w);
    forward_run(g->f, &r, g->tok, &g->kv.store);
    emit_tokens(g);
    emit_scores(g);
    weights_release(g->w);
    roster_settle(g);
    g->stats.steps++;
    if (!weights_steady(g->w)) {
        return ERR(e, STATUS_NUMERIC,
                   "the run that the weights belong to changed them under %d running samples",
                   r.nseq);
    }
    return device_fault(g->w->dev, e);
}

int engine_busy(const struct engine *g)
{
    return g->nlive > 0 || g->waiting > 0;
}

static void engine_fill(const struct engine *g, const struct engine_sample *s,
                        struct engine_result *r)
{
    const struct engine_group *q = &s->req->q;
    memset(r, 0, sizeof *r);
    r->group = q->id;
    r->sample = s->index;
    r->tokens = s->tokens + q->ntokens;
    r->logps = s->logps;
    r->versions = s->versions;
    r->mixed = s->mixed;
    r->ntokens = s->len - q->ntokens;
    r->top = q->top;
    r->prompt_from = q->prompt_from;
    if (q->prompt_logps) {
        r->nprompt = s->req->scored - q->prompt_from;
        r->prompt_logps = s->req->prompt_logps;
        r->prompt_top_ids = s->req->prompt_top_ids;
        r->prompt_top_logps = s->req->prompt_top_logps;
        r->prompt_wanted = s->req->prompt_wanted;
    }
    if (s->req->top_ids) {
        size_t at = (size_t)s->index * (size_t)q->max_new * (size_t)q->top;
        r->top_ids = s->req->top_ids + at;
        r->top_logps = s->req->top_logps + at;
    }
    r->finish = s->state == ENGINE_LIVE ? ENGINE_RUNNING : s->finish;
    r->weight_version = r->ntokens ? s->versions[r->ntokens - 1] : g->version;
    r->prompt_tokens = q->ntokens;
    r->cached_tokens = s->cached > 0 ? s->cached : 0;
}

int engine_take(struct engine *g, struct engine_result *r)
{
    while (g->taken < g->nlive) {
        struct engine_sample *s = g->live[g->taken++];
        if (s->state == ENGINE_DONE) {
            engine_fill(g, s, r);
            s->state = ENGINE_TAKEN;
            return 1;
        }
    }
    for (struct engine_request *q = g->head; q; q = q->next) {
        if (q->aborted && q->started < q->q.n) { /* they never began */
            memset(r, 0, sizeof *r);
            r->group = q->q.id;
            r->sample = q->started++;
            r->tokens = q->q.tokens + q->q.ntokens; /* none, but an address to count from */
            r->prompt_from = q->q.prompt_from;
            r->finish = ENGINE_ABORT;
            r->weight_version = g->version;
            r->prompt_tokens = q->q.ntokens;
            q->ended++;
            g->waiting--;
            return 1;
        }
    }
    engine_reap(g);
    return 0;
}

int engine_peek(const struct engine *g, int *at, struct engine_result *r)
{
    while (*at < g->nlive) {
        const struct engine_sample *s = g->live[(*at)++];
        if (s->state == ENGINE_LIVE && s->got) {
            engine_fill(g, s, r);
            return 1;
        }
    }
    return 0;
}

static void engine_finish_sample(struct engine *g, struct engine_sample *s,
                                 enum engine_finish finish)
{
    roster_release(g, s, !s->req->q.forget);
    if (s->req->lead == s) {
        s->req->lead = NULL;
    }
    s->state = ENGINE_DONE;
    s->finish = finish;
    g->taken = 0;
}

static int engine_abort_request(struct engine *g, struct engine_request *q)
{
    int n = q->aborted ? 0 : q->q.n - q->started;
    q->aborted = 1;
    for (int i = 0; i < g->nlive; i++) {
        struct engine_sample *s = g->live[i];
        if (s->req == q && s->state == ENGINE_LIVE) {
            engine_finish_sample(g, s, ENGINE_ABORT);
            n++;
        }
    }
    return n;
}

int engine_abort(struct engine *g, int64_t group)
{
    int n = 0;
    for (struct engine_request *q = g->head; q; q = q->next) {
        if (q->q.id == group) {
            n += engine_abort_request(g, q);
        }
    }
    return n;
}

int engine_end(struct engine *g, int64_t group, int sample, int ntokens, enum engine_finish finish)
{
    for (int i = 0; i < g->nlive; i++) {
        struct engine_sample *s = g->live[i];
        if (s->req->q.id == group && s->index == sample && s->state == ENGINE_LIVE) {
            int n = s->len - s->req->q.ntokens;
            engine_finish_sample(g, s, finish);
            s->len = s->req->q.ntokens + (ntokens < n ? ntokens : n);
            return 1;
        }
    }
    return 0;
}

void engine_pause(struct engine *g, enum engine_pause how)
{
    g->paused = 1;
    g->in_place = how == ENGINE_PAUSE_IN_PLACE;
    for (struct engine_request *q = g->head; q && how == ENGINE_PAUSE_ABORT; q = q->next) {
        engine_abort_request(g, q);
    }
    for (int i = 0; i < g->nlive && how == ENGINE_PAUSE_RETRACT; i++) {
        roster_release(g, g->live[i], 1);
    }
}

void engine_resume(struct engine *g)
{
    g->paused = 0;
}

int engine_progress(const struct engine *g, int64_t group, int sample)
{
    for (int i = 0; i < g->nlive; i++) {
        const struct engine_sample *s = g->live[i];
        if (s->req && s->req->q.id == group && s->index == sample) {
            return s->state == ENGINE_LIVE ? s->len - s->req->q.ntokens : -1;
        }
    }
    for (const struct engine_request *q = g->head; q; q = q->next) {
        if (q->q.id == group) {
            return sample >= q->started && !q->aborted ? 0 : -1;
        }
    }
    return -1;
}

void engine_flush(struct engine *g)
{
    radix_clear(&g->tree);
}

void engine_get_stats(const struct engine *g, struct engine_stats *s)
{
    *s = g->stats;
    s->running = g->nlive;
    s->waiting = g->waiting;
    s->pages = g->kv.n;
    s->pages_free = g->kv.free;
    s->pages_cached = g->kv.idle;
    s->evicted = g->tree.evicted;
}

int engine_check(const struct engine *g, struct err *e)
{
    int rc = radix_check(&g->tree, e);

    for (int p = 0; rc == STATUS_OK && p < g->kv.n; p++) {
        int refs = g->kv.cached[p], free = 0;
        for (int i = 0; i < g->nlive; i++) {
            for (int k = 0; k < g->live[i]->npages; k++) {
                refs += g->live[i]->pages[k] == p;
            }
        }
        for (int i = 0; i < g->kv.free; i++) {
            free += g->kv.stack[i] == p;
        }
        if (refs != g->kv.refs[p] || free != (refs == 0)) {
            rc = ERR(e, STATUS_FAIL, "page %d counts %d holders and has %d; it is free %d times", p,
                     g->kv.refs[p], refs, free);
        }
    }
    return rc;
}
