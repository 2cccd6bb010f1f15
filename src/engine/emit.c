/* Owns what becomes of a step's logits: tokens and log-probs of samples, log-probs of prompts, best
 * candidates of both. Log-probs are those of the model's own row over the temperature (contract
 * C2); penalties, bias and all that narrows the choice come after. */
#include "base/rng.h"
#include "base/thread.h"
#include "engine/engine_int.h"

static const float *emit_row(const struct engine *g, int which, int row)
{
    size_t at;
    row -= which ? g->probs_at : 0;
    at = (size_t)row * (size_t)g->w->arch.vocab;
    if (g->host[which]) {
        return g->host[which] + at;
    }
    return device_host_row(which ? &g->probs : &g->logits, row);
}

/* The best candidates of a row and their log-probs. */
static void emit_top(struct engine *g, struct sampler *s, int row, int k, int32_t *ids,
                     float *logps)
{
    const float *x = emit_row(g, 0, row);
    sampler_top(s, x, g->w->arch.vocab, g->max[row], k, ids);
    for (int i = 0; i < k; i++) {
        logps[i] = (x[ids[i]] - g->max[row]) - g->logz[row];
    }
}

static int emit_add_stop(const struct engine *g, int32_t token, int32_t *stops, int n)
{
    if (token >= 0 && token < g->w->arch.vocab) {
        stops[n++] = token;
    }
    return n;
}

/* Tokens that would end the response of a group: its own and the model's. Their number. */
static int emit_stops(const struct engine *g, const struct engine_group *q, int32_t *stops)
{
    int n = 0;
    for (int i = 0; i < q->nstop; i++) {
        n = emit_add_stop(g, q->stop[i], stops, n);
    }
    for (int i = 0; !q->ignore_eos && i < g->w->arch.n_eos; i++) {
        n = emit_add_stop(g, g->w->arch.eos_id[i], stops, n);
    }
    return n;
}

static int emit_is_one(const int32_t *list, int n, int32_t token)
{
    int found = 0;
    for (int i = 0; i < n; i++) {
        found |= list[i] == token;
    }
    return found;
}

static void emit_token(void *arg, int task, int worker)
{
    struct engine *g = arg;
    struct sampler *sampler = g->samplers[worker];
    int row = g->probs_at + task;
    struct engine_sample *s = g->sampled[row];
    const struct engine_group *q = &s->req->q;
    const float *x = emit_row(g, 0, row), *y = x, *p = emit_row(g, 1, row);
    int n = s->len - q->ntokens;
    double u = rng_uniform(q->key.seed, q->key.stream, q->key.sample + (uint64_t)s->index, 0,
                           q->key.position + (uint32_t)n);
    int32_t stops[ENGINE_MAX_STOP + ARCH_MAX_EOS], t;
    int nstops = emit_stops(g, q, stops);
    struct sampler_past past = {s->tokens + q->ntokens, n, stops, n < q->min_new ? nstops : 0};
    float max = g->max[row];

    if (sampler_adjusts(&q->sampling, &past)) {
        max = sampler_adjust(sampler, &q->sampling, &past, x, g->w->arch.vocab, &y, &p);
    }
    t = sampler_pick(sampler, &q->sampling, y, p, g->w->arch.vocab, max, u);
    s->tokens[s->len++] = t;
    s->logps[n] = (x[t] - g->max[row]) - g->logz[row];
    s->versions[n] = g->version;
    s->mixed[n] = (uint8_t)s->foreign;
    s->got = 1;
    if (q->top) {
        size_t at = ((size_t)s->index * (size_t)q->max_new + (size_t)n) * (size_t)q->top;
        emit_top(g, sampler, row, q->top, s->req->top_ids + at, s->req->top_logps + at);
    }
    if (emit_is_one(stops, nstops, t)) {
        s->state = ENGINE_DONE;
        s->finish = ENGINE_STOP;
    } else if (n + 1 == q->max_new) {
        s->state = ENGINE_DONE;
        s->finish = ENGINE_LENGTH;
    }
}

/* Statistics of logit rows [from, end) at one temperature, and what the host reads of them. */
static void emit_stats(struct engine *g, int from, int end, float t, const int32_t *target,
                       int exps)
{
    struct device *d = g->w->dev;
    const struct logit_spec spec = forward_logit_spec(&g->w->arch, t);
    struct tensor x = tensor_rows(&g->logits, from, end - from);
    size_t at = (size_t)from * (size_t)g->w->arch.vocab;

    d->ops->logp(d, &x, &spec, target, &g->w->vocab_leaves, target ? g->score_logp + from : NULL,
                 g->max + from, g->logz + from, NULL);
    if (exps) {
        struct tensor p = tensor_rows(&g->probs, from - g->probs_at, end - from);
        d->ops->exps(d, &x, g->max + from, &p);
        if (g->host[1]) {
            device_download_f32(&p, g->host[1] +
                                        (size_t)(from - g->probs_at) * (size_t)g->w->arch.vocab);
        }
    }
    if (g->host[0]) {
        device_download_f32(&x, g->host[0] + at);
    }
}

/* A block of rows at a time, from its statistics to its tokens, while the caches have it. Rows of
 * one temperature are neighbours when all groups use the same, which is the rule. */
void emit_tokens(struct engine *g)
{
    if (!g->nsampled) {
        return;
    }
    forward_logits(g->f, g->idx, g->nsampled, &g->logits);
    for (g->probs_at = 0; g->probs_at < g->nsampled; g->probs_at += g->probs_rows) {
        int left = g->nsampled - g->probs_at, from = g->probs_at;
        int n = left < g->probs_rows ? left : g->probs_rows;
        while (from < g->probs_at + n) {
            float t = g->sampled[from]->req->q.sampling.temperature;
            int end = from + 1;
            while (end < g->probs_at + n && g->sampled[end]->req->q.sampling.temperature == t) {
                end++;
            }
            emit_stats(g, from, end, t, NULL, t > 0.0f);
            from = end;
        }
        pool_run(g->w->dev->pool, emit_token, g, n);
    }
}

static void emit_score(void *arg, int task, int worker)
{
    struct engine *g = arg;
    const struct engine_score *c = &g->score[g->score_at + task];
    int i = c->token - c->req->q.prompt_from, top = c->req->q.top;

    c->req->prompt_logps[i] = g->score_logp[task];
    if (top) {
        emit_top(g, g->samplers[worker], task, top,
                 c->req->prompt_top_ids + (size_t)i * (size_t)top,
                 c->req->prompt_top_logps + (size_t)i * (size_t)top);
    }
    if (c->req->q.nwanted) {
        int n = c->req->q.nwanted;
        const int32_t *ids = c->req->q.wanted + (c->req->q.wanted_each ? (size_t)i * (size_t)n : 0);
        const float *x = emit_row(g, 0, task);
        float *out = c->req->prompt_wanted + (size_t)i * (size_t)n;
        for (int k = 0; k < n; k++) {
            out[k] = (x[ids[k]] - g->max[task]) - g->logz[task];
        }
    }
}

/* After the tokens: the logits' memory is used again, a block of rows at a time. */
void emit_scores(struct engine *g)
{
    for (g->score_at = 0; g->score_at < g->nscore; g->score_at += g->logit_rows) {
        const struct engine_score *c = &g->score[g->score_at];
        int n = g->nscore - g->score_at, from = 0;
        n = n < g->logit_rows ? n : g->logit_rows;
        forward_logits(g->f, g->score_idx + g->score_at, n, &g->logits);
        while (from < n) {
            float t = c[from].req->q.prompt_temperature;
            int end = from + 1;
            while (end < n && c[end].req->q.prompt_temperature == t) {
                end++;
            }
            emit_stats(g, from, end, t, g->score_target + g->score_at + from, 0);
            from = end;
        }
        pool_run(g->w->dev->pool, emit_score, g, n);
    }
}
