/* Owns scheduling: which rows the next forward pass holds. Prompts are computed but for their last
 * token; every sample starts by computing that token itself, which makes its first step an ordinary
 * decode step and needs no stored logits. A sample is admitted only when pages for its whole length
 * are there, so a running sample never waits for memory. */
#include "engine/engine.h"

#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"
#include "base/thread.h"
#include "engine/kv.h"
#include "model/forward.h"

struct engine_queued {
    struct engine_group q; /* tokens is our copy */
    int32_t *pages;        /* prompt pages, NULL until the first chunk */
    int done;              /* prompt rows computed, of ntokens - 1 */
    int started;           /* samples started */
    int finished;          /* samples finished: the group goes with the last */
    struct engine_queued *next;
};

struct engine_sample {
    struct engine_queued *group; /* NULL: the slot is free */
    int index;
    int32_t *pages;  /* (pages_per_sample) */
    int npages;      /* held */
    int32_t *tokens; /* response (max_context) */
    float *logps;
    int n;
    enum engine_finish finish;
    int done;
};

struct engine {
    struct weights *w;
    struct engine_opts o;
    struct forward *f;
    struct kv_pool kv;
    struct tensor logits, probs; /* (max_running, V) f32 */
    float *host[2];              /* their copies where the host cannot read the device's memory */
    float *max, *logz;
    struct sampler **samplers; /* one per thread */
    struct engine_queued *head, *tail;
    struct engine_sample *slots;           /* (max_running) */
    int running, waiting, reserved, taken; /* reserved: pages promised to running samples */
    int pages_per_sample;
    int64_t version; /* of the weights that wrote the pages in use */
    /* rows of a step */
    struct row_seq *seq;
    int32_t *pos, *tok, *idx;
    int *slot_of; /* slot of decode row i */
    int ndecode;
    struct engine_stats stats;
};

static int pages_for(int tokens)
{
    return (tokens + PLAN_KV_BLOCK - 1) / PLAN_KV_BLOCK;
}

/* Pages a sample may come to hold of its own: all but the prompt's full pages, which are shared. */
static int engine_own_pages(const struct engine_queued *q)
{
    return pages_for(q->q.ntokens + q->q.max_new) - (q->q.ntokens - 1) / PLAN_KV_BLOCK;
}

static void engine_defaults(const struct weights *w, struct engine_opts *o)
{
    o->max_running = o->max_running > 0 ? o->max_running : 256;
    o->max_context = o->max_context > 0 ? o->max_context : w->positions;
    o->chunk = o->chunk > 0 ? o->chunk : 512;
}

double engine_pages(int prompt, int max_new, int n)
{
    /* the last token is sampled, not read; a prompt's pages are held once, until its last sample
     * has begun and took a copy of what is not full */
    int full = (prompt - 1) / PLAN_KV_BLOCK;
    return pages_for(prompt + max_new - 1) - full + (double)full / n;
}

int64_t engine_bytes(const struct weights *w, const struct engine_opts *opts, int running,
                     double pages)
{
    struct engine_opts o = *opts;
    int64_t page = (int64_t)device_kv_page_bytes(w->dev, w->arch.n_layers, w->arch.n_kv_heads,
                                                 w->arch.head_dim);
    engine_defaults(w, &o);
    running = running < o.max_running ? running : o.max_running;
    return forward_bytes(w, running + o.chunk, 0, FORWARD_KEEP_ALL, 0) +
           2 * device_tensor_bytes(DTYPE_F32, running, w->arch.vocab) +
           (int64_t)((double)page * pages * running);
}

int engine_open(struct weights *w, const struct engine_opts *o, struct engine **out, struct err *e)
{
    struct engine *g = mem_alloc(sizeof *g);
    int64_t page = (int64_t)device_kv_page_bytes(w->dev, w->arch.n_layers, w->arch.n_kv_heads,
                                                 w->arch.head_dim);
    int64_t memory = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE), pages;
    int rows, rc;

    g->w = w;
    g->o = *o;
    engine_defaults(w, &g->o);
    if (g->o.max_context > w->positions) {
        rc = ERR(e, STATUS_INPUT, "a context of %d tokens, the model has positions for %d",
                 g->o.max_context, w->positions);
        mem_free(g);
        return rc;
    }
    g->pages_per_sample = pages_for(g->o.max_context);
    pages = (int64_t)g->pages_per_sample * g->o.max_running;
    if (o->kv_bytes > 0) {
        pages = o->kv_bytes / page;
    } else if (pages * page > memory / 2) {
        pages = memory / 2 / page;
    }
    pages = pages < g->pages_per_sample + 1 ? g->pages_per_sample + 1 : pages;
    rows = g->o.max_running + g->o.chunk;
    rc = forward_open(w, rows, 0, &g->f, e);
    if (rc == STATUS_OK) {
        rc = kv_open(&g->kv, w, (int)pages, e);
    }
    if (rc == STATUS_OK) {
        rc = device_tensor(w->dev, &g->logits, DTYPE_F32, g->o.max_running, w->arch.vocab, e);
    }
    if (rc == STATUS_OK) {
        rc = device_tensor(w->dev, &g->probs, DTYPE_F32, g->o.max_running, w->arch.vocab, e);
    }
    if (rc != STATUS_OK) {
        engine_close(g);
        return rc;
    }
    for (int i = 0; i < 2 && !device_host_row(&g->logits, 0); i++) {
        g->host[i] = mem_alloc(sizeof(float) * (size_t)g->o.max_running * (size_t)w->arch.vocab);
    }
    g->max = mem_alloc(sizeof(float) * (size_t)g->o.max_running);
    g->logz = mem_alloc(sizeof(float) * (size_t)g->o.max_running);
    g->samplers = mem_alloc(sizeof *g->samplers * (size_t)pool_size(w->dev->pool));
    for (int i = 0; i < pool_size(w->dev->pool); i++) {
        g->samplers[i] = sampler_new(w->arch.vocab);
    }
    g->slots = mem_alloc(sizeof *g->slots * (size_t)g->o.max_running);
    for (int i = 0; i < g->o.max_running; i++) {
        g->slots[i].pages = mem_alloc(sizeof(int32_t) * (size_t)g->pages_per_sample);
    }
    g->seq = mem_alloc(sizeof *g->seq * (size_t)rows);
    g->pos = mem_alloc(sizeof(int32_t) * (size_t)rows);
    g->tok = mem_alloc(sizeof(int32_t) * (size_t)rows);
    g->idx = mem_alloc(sizeof(int32_t) * (size_t)g->o.max_running);
    g->slot_of = mem_alloc(sizeof(int) * (size_t)g->o.max_running);
    *out = g;
    return STATUS_OK;
}

static void engine_drop_group(struct engine *g, struct engine_queued *q)
{
    struct engine_queued **at = &g->head;
    g->tail = NULL;
    while (*at) {
        if (*at == q) {
            *at = q->next;
        } else {
            g->tail = *at;
            at = &(*at)->next;
        }
    }
    if (q->pages) {
        for (int i = 0; i < pages_for(q->q.ntokens - 1); i++) {
            kv_give(&g->kv, q->pages[i]);
        }
    }
    mem_free(q->pages);
    mem_free((void *)(uintptr_t)q->q.tokens);
    mem_free(q);
}

void engine_close(struct engine *g)
{
    if (!g) {
        return;
    }
    while (g->head) {
        engine_drop_group(g, g->head);
    }
    for (int i = 0; g->slots && i < g->o.max_running; i++) {
        mem_free(g->slots[i].pages);
        mem_free(g->slots[i].tokens);
        mem_free(g->slots[i].logps);
    }
    for (int i = 0; g->samplers && i < pool_size(g->w->dev->pool); i++) {
        sampler_free(g->samplers[i]);
    }
    forward_close(g->f);
    kv_close(&g->kv);
    device_tensor_free(&g->logits);
    device_tensor_free(&g->probs);
    mem_free(g->host[0]);
    mem_free(g->host[1]);
    mem_free(g->max);
    mem_free(g->logz);
    mem_free(g->samplers);
    mem_free(g->slots);
    mem_free(g->seq);
    mem_free(g->pos);
    mem_free(g->tok);
    mem_free(g->idx);
    mem_free(g->slot_of);
    mem_free(g);
}

int engine_submit(struct engine *g, const struct engine_group *q, struct err *e)
{
    struct engine_queued *n;
    int32_t *copy;

    if (q->ntokens < 1 || q->n < 1 || q->max_new < 1) {
        return ERR(e, STATUS_INPUT,
                   "a prompt of %d tokens, %d samples of %d new tokens: each must be at least 1",
                   q->ntokens, q->n, q->max_new);
    }
    if (!(q->sampling.temperature >= 0.0f && q->sampling.temperature <= 1e6f) ||
        !(q->sampling.top_p > 0.0f && q->sampling.top_p <= 1.0f) ||
        !(q->sampling.min_p >= 0.0f && q->sampling.min_p <= 1.0f)) {
        return ERR(e, STATUS_INPUT, "temperature %g, top_p %g, min_p %g: out of range",
                   (double)q->sampling.temperature, (double)q->sampling.top_p,
                   (double)q->sampling.min_p);
    }
    if (q->nstop < 0 || q->nstop > ENGINE_MAX_STOP) {
        return ERR(e, STATUS_INPUT, "%d stop tokens, at most %d are taken", q->nstop,
                   ENGINE_MAX_STOP);
    }
    if ((int64_t)q->ntokens + q->max_new > g->o.max_context) {
        return ERR(e, STATUS_INPUT,
                   "prompt of %d and %d new tokens do not fit a context of %d tokens", q->ntokens,
                   q->max_new, g->o.max_context);
    }
    for (int i = 0; i < q->ntokens; i++) {
        if (q->tokens[i] < 0 || q->tokens[i] >= g->w->arch.vocab) {
            return ERR(e, STATUS_INPUT, "prompt token %d is %d, outside the vocabulary of %d", i,
                       q->tokens[i], g->w->arch.vocab);
        }
    }
    if (pages_for(q->ntokens + q->max_new) + 1 > g->kv.n) {
        return ERR(e, STATUS_INPUT, "a sample of %d tokens needs %d KV pages, the engine has %d",
                   q->ntokens + q->max_new, pages_for(q->ntokens + q->max_new) + 1, g->kv.n);
    }
    n = mem_alloc(sizeof *n);
    n->q = *q;
    copy = mem_alloc(sizeof(int32_t) * (size_t)q->ntokens);
    memcpy(copy, q->tokens, sizeof(int32_t) * (size_t)q->ntokens);
    n->q.tokens = copy;
    if (g->tail) {
        g->tail->next = n;
    } else {
        g->head = n;
    }
    g->tail = n;
    g->waiting += q->n;
    return STATUS_OK;
}

/* Starts a sample of a group whose prompt is computed. 0 when there is no slot or no memory. */
static int engine_start(struct engine *g, struct engine_queued *q)
{
    int own = engine_own_pages(q), full = (q->q.ntokens - 1) / PLAN_KV_BLOCK;
    int last = q->q.ntokens - 1;
    struct engine_sample *s = NULL;

    if (g->kv.free - g->reserved < own) {
        return 0;
    }
    for (int i = 0; i < g->o.max_running && !s; i++) {
        s = g->slots[i].group ? NULL : &g->slots[i];
    }
    if (!s) {
        return 0;
    }
    s->group = q;
    s->index = q->started++;
    s->n = 0;
    s->done = 0;
    s->npages = 0;
    for (int i = 0; i < full; i++) {
        kv_share(&g->kv, q->pages[i]);
        s->pages[s->npages++] = q->pages[i];
    }
    s->pages[s->npages++] = kv_take(&g->kv);
    if (last % PLAN_KV_BLOCK) {
        kv_copy(&g->kv, q->pages[full], s->pages[full]);
    }
    g->reserved += own - 1;
    s->tokens = mem_alloc(sizeof(int32_t) * (size_t)q->q.max_new);
    s->logps = mem_alloc(sizeof(float) * (size_t)q->q.max_new);
    g->running++;
    g->waiting--;
    return 1;
}

/* Prompt rows of a group that fit into `room` rows; returns the rows taken. Pages are taken only
 * while `keep` stay free: what a sample of this group or of one before it needs to start. */
static int engine_prefill(struct engine *g, struct engine_queued *q, int row, int nseq, int room,
                          int keep)
{
    int total = q->q.ntokens - 1, n = total - q->done < room ? total - q->done : room;
    struct row_seq *s = &g->seq[nseq];

    if (!q->pages) {
        int pages = pages_for(total);
        if (g->kv.free - g->reserved < pages + keep) {
            return 0;
        }
        q->pages = mem_alloc(sizeof(int32_t) * (size_t)(pages ? pages : 1));
        for (int i = 0; i < pages; i++) {
            q->pages[i] = kv_take(&g->kv);
        }
    }
    s->row0 = row;
    s->nrows = n;
    s->pos0 = q->done;
    s->pages = q->pages;
    for (int i = 0; i < n; i++) {
        g->pos[row + i] = q->done + i;
        g->tok[row + i] = q->q.tokens[q->done + i];
    }
    q->done += n;
    return n;
}

/* Decode rows first, then prompt chunks of waiting groups. */
static void engine_plan(struct engine *g, struct rows *r)
{
    int room = g->o.chunk, keep = 0;

    memset(r, 0, sizeof *r);
    for (struct engine_queued *q = g->head; q; q = q->next) {
        int ok = 1;
        while (ok && q->started < q->q.n && q->done >= q->q.ntokens - 1) {
            if (q->q.ntokens == 1 && !q->pages) {
                q->pages = mem_alloc(sizeof(int32_t));
            }
            ok = engine_start(g, q);
        }
        if (q->started < q->q.n) {
            break; /* first come, first served */
        }
    }
    g->ndecode = 0;
    for (int i = 0; i < g->o.max_running; i++) {
        struct engine_sample *s = &g->slots[i];
        struct row_seq *q = &g->seq[r->nseq];
        int pos;
        if (!s->group || s->done) {
            continue;
        }
        pos = s->group->q.ntokens - 1 + s->n;
        if (pos / PLAN_KV_BLOCK >= s->npages) {
            s->pages[s->npages++] = kv_take(&g->kv);
            g->reserved--;
        }
        q->row0 = r->n;
        q->nrows = 1;
        q->pos0 = pos;
        q->pages = s->pages;
        g->pos[r->n] = pos;
        g->tok[r->n] = s->n ? s->tokens[s->n - 1] : s->group->q.tokens[pos];
        g->idx[g->ndecode] = r->n;
        g->slot_of[g->ndecode++] = i;
        r->n++;
        r->nseq++;
    }
    for (struct engine_queued *q = g->head; q && room > 0; q = q->next) {
        if (q->started < q->q.n && engine_own_pages(q) > keep) {
            keep = engine_own_pages(q);
        }
        if (q->done < q->q.ntokens - 1) {
            int n = engine_prefill(g, q, r->n, r->nseq, room, keep);
            if (!n) {
                break;
            }
            r->n += n;
            r->nseq++;
            room -= n;
            g->stats.prompt_rows += n;
        }
    }
    r->seq = g->seq;
    r->pos = g->pos;
}

static int engine_is_stop(const struct engine *g, const struct engine_group *q, int32_t token)
{
    for (int i = 0; i < q->nstop; i++) {
        if (q->stop[i] == token) {
            return 1;
        }
    }
    for (int i = 0; !q->ignore_eos && i < g->w->arch.n_eos; i++) {
        if (g->w->arch.eos_id[i] == token) {
            return 1;
        }
    }
    return 0;
}

static void engine_sample_task(void *arg, int task, int worker)
{
    struct engine *g = arg;
    struct engine_sample *s = &g->slots[g->slot_of[task]];
    const struct engine_group *q = &s->group->q;
    size_t at = (size_t)task * (size_t)g->w->arch.vocab;
    const float *x = g->host[0] ? g->host[0] + at : device_host_row(&g->logits, task);
    const float *p = g->host[1] ? g->host[1] + at : device_host_row(&g->probs, task);
    double u = rng_uniform(q->key.seed, q->key.stream, q->key.sample + (uint64_t)s->index, 0,
                           (uint32_t)s->n);
    int32_t t =
        sampler_pick(g->samplers[worker], &q->sampling, x, p, g->w->arch.vocab, g->max[task], u);
    s->tokens[s->n] = t;
    s->logps[s->n] = (x[t] - g->max[task]) - g->logz[task];
    s->n++;
    if (engine_is_stop(g, q, t)) {
        s->done = 1;
        s->finish = ENGINE_STOP;
    } else if (s->n == q->max_new) {
        s->done = 1;
        s->finish = ENGINE_LENGTH;
    }
}

/* Frees what the caller took since the last step. */
static void engine_reap(struct engine *g)
{
    for (int i = 0; i < g->o.max_running; i++) {
        struct engine_sample *s = &g->slots[i];
        if (s->group && s->done == 2) {
            struct engine_queued *q = s->group;
            int held = s->npages - (q->q.ntokens - 1) / PLAN_KV_BLOCK;
            for (int k = 0; k < s->npages; k++) {
                kv_give(&g->kv, s->pages[k]);
            }
            g->reserved -= engine_own_pages(q) - held;
            mem_free(s->tokens);
            mem_free(s->logps);
            s->tokens = NULL;
            s->logps = NULL;
            s->group = NULL;
            g->running--;
            if (++q->finished == q->q.n) {
                engine_drop_group(g, q);
            }
        }
    }
}

/* Log-prob statistics per sampling temperature: rows of one temperature are neighbours when all
 * groups use the same, which is the rule. */
static void engine_logits(struct engine *g)
{
    struct device *d = g->w->dev;
    int from = 0;
    while (from < g->ndecode) {
        float t = g->slots[g->slot_of[from]].group->q.sampling.temperature;
        int end = from + 1;
        const struct logit_spec spec = forward_logit_spec(&g->w->arch, t);
        struct tensor x, p;
        while (end < g->ndecode && g->slots[g->slot_of[end]].group->q.sampling.temperature == t) {
            end++;
        }
        x = tensor_rows(&g->logits, from, end - from);
        p = tensor_rows(&g->probs, from, end - from);
        d->ops->logp(d, &x, &spec, NULL, &g->w->vocab_leaves, NULL, g->max + from, g->logz + from,
                     NULL);
        if (t > 0.0f) {
            d->ops->exps(d, &x, g->max + from, &p);
        }
        if (g->host[0]) {
            size_t at = (size_t)from * (size_t)g->w->arch.vocab;
            device_download_f32(&x, g->host[0] + at);
            device_download_f32(&p, g->host[1] + at);
        }
        from = end;
    }
}

int engine_step(struct engine *g, struct err *e)
{
    struct rows r;

    engine_reap(g);
    if (g->kv.free == g->kv.n) {
        g->version = g->w->version;
    } else if (g->version != g->w->version) {
        return ERR(e, STATUS_NUMERIC,
                   "weights went from version %lld to %lld under %d running samples",
                   (long long)g->version, (long long)g->w->version, g->running);
    }
    engine_plan(g, &r);
    if (r.n == 0) {
        if (g->head && !g->running) {
            return ERR(e, STATUS_NOMEM, "the waiting prompt does not fit the engine's KV pages");
        }
        return STATUS_END;
    }
    weights_acquire(g->w);
    forward_run(g->f, &r, g->tok, &g->kv.store);
    if (g->ndecode) {
        forward_logits(g->f, g->idx, g->ndecode, &g->logits);
        engine_logits(g);
        pool_run(g->w->dev->pool, engine_sample_task, g, g->ndecode);
    }
    weights_release(g->w);
    g->stats.decode_rows += g->ndecode;
    g->stats.steps++;
    g->taken = 0;
    return device_fault(g->w->dev, e);
}

int engine_busy(const struct engine *g)
{
    return g->running > 0 || g->waiting > 0;
}

int engine_take(struct engine *g, struct engine_result *r)
{
    for (; g->taken < g->o.max_running; g->taken++) {
        struct engine_sample *s = &g->slots[g->taken];
        if (s->group && s->done == 1) {
            r->group = s->group->q.id;
            r->sample = s->index;
            r->tokens = s->tokens;
            r->logps = s->logps;
            r->ntokens = s->n;
            r->finish = s->finish;
            r->weight_version = g->version;
            s->done = 2;
            g->taken++;
            return 1;
        }
    }
    engine_reap(g);
    return 0;
}

void engine_get_stats(const struct engine *g, struct engine_stats *s)
{
    *s = g->stats;
    s->running = g->running;
    s->waiting = g->waiting;
    s->pages = g->kv.n;
    s->pages_free = g->kv.free;
}
