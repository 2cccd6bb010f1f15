/* Owns a training step: packing, the passes over micro-batches, the exactness check against the
 * rollout, the update. */
#include "train/trainer.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "base/status.h"
#include "model/backward.h"
#include "train/bundle.h"
#include "train/pack.h"

#define TRAINER_LOGIT_BYTES ((int64_t)512 << 20)

struct trainer {
    struct weights *w;
    struct trainer_opts o;
    struct forward *f;
    struct backward *b; /* NULL: scoring only */
    struct optim *opt;
    struct tensor score_logits; /* scoring only */
    struct kv_store kv;
    int max_rows;
    size_t page_room; /* of pages */
    /* a micro-batch: rows, sequences, leaves, tokens to score */
    struct row_seq *seq;
    int32_t *tok, *pos, *pages, *leaf, *idx, *target, *req_leaf;
    float *logp, *entropy, *g, *ge;
    int nseq, rows, nleaf, nreq, nreq_leaf;
    trainer_row_fn *row; /* of trainer_score_rows, else NULL */
    void *row_arg;
    int32_t *req_sample, *req_at;      /* with row: which token each request is */
    trainer_logit_loss_fn *logit_loss; /* of trainer_add_logit_loss, else NULL */
    void *logit_loss_arg;
};

static double trainer_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int trainer_logit_rows(const struct weights *w, const struct trainer_opts *o, int max_rows)
{
    int64_t n = TRAINER_LOGIT_BYTES / ((int64_t)arch_outputs(&w->arch) * 4);
    n = o->max_scored > 0 && o->max_scored < n ? o->max_scored : n;
    n = o->logit_rows > 0 && o->logit_rows < n ? o->logit_rows : n;
    n = n < PLAN_LEAF ? PLAN_LEAF : n;
    return (int)(n < max_rows ? n : max_rows);
}

int trainer_rows(const struct trainer_opts *o)
{
    int rows = o->max_tokens > o->max_len ? o->max_tokens : o->max_len;
    return rows > o->max_bundle ? rows : o->max_bundle;
}

int trainer_rows_planned(const struct trainer_opts *o)
{
    struct trainer_opts planned = *o;

    if (o->max_rows > 0 && o->max_rows < o->max_tokens) {
        planned.max_tokens = o->max_rows;
    }
    return trainer_rows(&planned);
}

/* The largest scratch of a weight gradient, and of an input gradient without transposes. */
static int64_t trainer_scratch(const struct weights *w, int rows, int logit_rows)
{
    int64_t dw = 0, dx = 0;
    for (int i = 0; i < w->nparams; i++) {
        const struct param *p = &w->params[i];
        int n = p == w->lm_head.w ? logit_rows : rows;
        int64_t b;
        if (weights_packed(w, p)) {
            b = device_dw_bytes(w->dev, p->rows, p->cols, n, n / PLAN_LEAF);
            dw = b > dw ? b : dw;
            b = w->transposes ? 0 : device_dx_bytes(w->dev, p->rows, p->cols);
            dx = b > dx ? b : dx;
        }
    }
    return dw + dx;
}

int64_t trainer_bytes(const struct weights *w, const struct trainer_opts *o,
                      struct trainer_bytes *parts)
{
    int rows = trainer_rows_planned(o), logit_rows = trainer_logit_rows(w, o, rows);
    int len = o->max_len < rows ? o->max_len : rows;
    int64_t pages = o->pages > 0 ? o->pages : (int64_t)(rows / len + 1) * (len / PLAN_KV_BLOCK + 1);
    int64_t page = (int64_t)device_kv_page_bytes(w->dev, w->arch.n_layers, w->arch.n_kv_heads,
                                                 w->arch.head_dim);
    struct trainer_bytes b;

    b.grads = backward_grad_bytes(w);
    b.optim = optim_bytes(w, &o->optim);
    b.logits = backward_bytes(w, 0, logit_rows);
    b.activations = forward_bytes(w, rows, 1, o->recompute, o->recompute_layers) +
                    backward_bytes(w, rows, 0) + page * pages;
    b.scratch = trainer_scratch(w, rows, logit_rows);
    if (parts) {
        *parts = b;
    }
    return b.grads + b.optim + b.logits + b.activations + b.scratch;
}

/* Arrays of a micro-batch; scoring and training use the same. */
static void trainer_arrays(struct trainer *t)
{
    size_t n = (size_t)t->max_rows;
    t->seq = mem_alloc(sizeof *t->seq * n);
    t->tok = mem_alloc(4 * n);
    t->pos = mem_alloc(4 * n);
    t->leaf = mem_alloc(4 * (n + 1));
    t->idx = mem_alloc(4 * n);
    t->target = mem_alloc(4 * n);
    t->req_leaf = mem_alloc(4 * (n + 1));
    t->logp = mem_alloc(4 * n);
    t->entropy = mem_alloc(4 * n);
    t->g = mem_alloc(4 * n);
    t->ge = mem_alloc(4 * n);
}

static void trainer_arrays_free(struct trainer *t)
{
    mem_free(t->seq);
    mem_free(t->tok);
    mem_free(t->pos);
    mem_free(t->leaf);
    mem_free(t->idx);
    mem_free(t->target);
    mem_free(t->req_leaf);
    mem_free(t->logp);
    mem_free(t->entropy);
    mem_free(t->g);
    mem_free(t->ge);
}

/* Both passes and their arrays, for max_rows rows. */
static int trainer_passes(struct trainer *t, struct err *e)
{
    int rc =
        forward_open_recompute(t->w, t->max_rows, t->o.recompute, t->o.recompute_layers, &t->f, e);
    if (rc == STATUS_OK) {
        rc = backward_open(t->f, trainer_logit_rows(t->w, &t->o, t->max_rows), &t->b, e);
    }
    trainer_arrays(t);
    return rc;
}

int trainer_open(struct weights *w, const struct trainer_opts *o, struct trainer **out,
                 struct err *e)
{
    struct trainer *t = mem_alloc(sizeof *t);
    int rc;

    t->w = w;
    t->o = *o;
    t->max_rows = trainer_rows_planned(o);
    rc = trainer_passes(t, e);
    if (rc == STATUS_OK) {
        rc = optim_open(w, &o->optim, &t->opt, e);
    }
    if (rc != STATUS_OK) {
        trainer_close(t);
        return rc;
    }
    *out = t;
    return STATUS_OK;
}

void trainer_close(struct trainer *t)
{
    if (!t) {
        return;
    }
    optim_close(t->opt);
    backward_close(t->b);
    forward_close(t->f);
    device_kv_free(&t->kv);
    device_tensor_free(&t->score_logits);
    trainer_arrays_free(t);
    mem_free(t->pages);
    mem_free(t);
}

/* Between steps: passes of at least `rows` rows, and of all that the flags allow: not a little more
 * every time. */
static int trainer_grow(struct trainer *t, int64_t rows, struct err *e)
{
    int most = trainer_rows(&t->o);

    if (rows <= t->max_rows) {
        return STATUS_OK;
    }
    backward_close(t->b);
    forward_close(t->f);
    trainer_arrays_free(t);
    t->b = NULL;
    t->f = NULL;
    t->max_rows = rows > most ? (int)rows : most;
    return trainer_passes(t, e);
}

struct optim *trainer_optim(struct trainer *t)
{
    return t->opt;
}

/* A sample can be a row range of this trainer's passes. */
static int trainer_check(const struct trainer *t, const struct train_sample *x, struct err *e)
{
    int len = x->prompt + x->response;
    if (len > t->max_rows || len > t->w->positions) {
        return ERR(e, STATUS_INPUT, "a sample of %d tokens is longer than the planned %d", len,
                   t->max_rows);
    }
    for (int i = 0; i < len; i++) {
        if (x->tokens[i] < 0 || x->tokens[i] >= t->w->arch.vocab) {
            return ERR(e, STATUS_INPUT, "token %d is outside the vocabulary of %d", x->tokens[i],
                       t->w->arch.vocab);
        }
    }
    return STATUS_OK;
}

/* At least n pages, whose content may be lost, and room for the numbers of `list`. */
static int trainer_pages(struct trainer *t, int n, size_t list, struct err *e)
{
    const struct arch *a = &t->w->arch;
    if (list > t->page_room) {
        mem_free(t->pages);
        t->page_room = list + list / 4;
        t->pages = mem_alloc(sizeof *t->pages * t->page_room);
    }
    if (n <= t->kv.n_pages) {
        return STATUS_OK;
    }
    device_kv_free(&t->kv);
    return device_kv(t->w->dev, &t->kv, a->n_layers, a->n_kv_heads, a->head_dim, n + n / 4 + 16, e);
}

/* ---- the rows of a micro-batch -----------------------------------------------------------------
 *
 * A bundle of one sample is one sequence. One of several is the prompt, then each response as a
 * sequence that goes on from it; the token that is sampled first is predicted by the prompt's last
 * row in all of them. A response's last token predicts nothing and has no row. Leaves are chunks of
 * PLAN_LEAF rows from a bundle's start, and those of the scored tokens begin where the last row of
 * the prompt is among them. */

/* Samples s[pick[i]] in bundles: number b is picks [start[b], start[b + 1]). */
struct trainer_batch {
    struct train_sample *s;
    const int64_t *pick, *start;
    int64_t samples, bundles;
};

static int trainer_blocks(int tokens)
{
    return (tokens + PLAN_KV_BLOCK - 1) / PLAN_KV_BLOCK;
}

/* Tokens of a sample that have a row: all but the last of a response. */
static int trainer_len(const struct train_sample *x)
{
    return x->prompt + (x->response ? x->response - 1 : 0);
}

/* Makes room for the pages of a micro-batch. */
static int trainer_room(struct trainer *t, const struct trainer_batch *m, struct err *e)
{
    int pages = 0, rc = STATUS_OK;
    size_t list = 0;

    for (int64_t b = 0; b < m->bundles; b++) {
        int64_t n = m->start[b + 1] - m->start[b];
        for (int64_t i = m->start[b]; rc == STATUS_OK && i < m->start[b + 1]; i++) {
            const struct train_sample *x = &m->s[m->pick[i]];
            int all = trainer_blocks(trainer_len(x)), first = i == m->start[b] && n > 1;
            rc = trainer_check(t, x, e);
            pages += n > 1 ? all - x->prompt / PLAN_KV_BLOCK : all;
            pages += first ? trainer_blocks(x->prompt) : 0;
            list += (size_t)(first ? trainer_blocks(x->prompt) + all : all);
        }
    }
    return rc == STATUS_OK ? trainer_pages(t, pages, list, e) : rc;
}

/* Rows for tokens [from, to) of a sample. */
static void trainer_add_rows(struct trainer *t, const struct train_sample *x, int from, int to,
                             const int32_t *pages, int base)
{
    t->seq[t->nseq++] = (struct row_seq){t->rows, to - from, from, pages, base};
    for (int i = from; i < to; i++, t->rows++) {
        t->tok[t->rows] = x->tokens[i];
        t->pos[t->rows] = i;
    }
}

/* The tokens of sample k's response: row `prompt` predicts the first, those from `own` on the rest.
 * `at` is where the first stands among the bundle's, counted from the prompt's last row on. */
static void trainer_add_requests(struct trainer *t, const struct train_sample *x, int64_t k,
                                 int prompt, int own, int at)
{
    for (int i = 0; i < x->response; i++, t->nreq++) {
        if ((at + i) % PLAN_LEAF == 0 || at + i == x->prompt - 1) {
            t->req_leaf[t->nreq_leaf++] = t->nreq;
        }
        if (t->row) {
            t->req_sample[t->nreq] = (int32_t)k;
            t->req_at[t->nreq] = i;
        }
        t->idx[t->nreq] = i ? own + i - 1 : prompt;
        t->target[t->nreq] = x->tokens[x->prompt + i];
    }
}

/* Lays out the picks [from, to) of a micro-batch, a bundle. *page and *list: the next page, the
 * next place for its number. */
static void trainer_add_bundle(struct trainer *t, const struct trainer_batch *m, int64_t from,
                               int64_t to, int *page, int *list)
{
    const struct train_sample *first = &m->s[m->pick[from]];
    const int32_t *prompt = t->pages + *list;
    int row0 = t->rows, shared = to - from > 1, full = first->prompt / PLAN_KV_BLOCK;
    int base = shared ? t->nseq + 1 : 0, at = first->prompt - 1;

    for (int i = 0; shared && i < trainer_blocks(first->prompt); i++) {
        t->pages[(*list)++] = (*page)++;
    }
    if (shared) {
        trainer_add_rows(t, first, 0, first->prompt, prompt, 0);
    }
    for (int64_t i = from; i < to; i++) {
        const struct train_sample *x = &m->s[m->pick[i]];
        int len = trainer_len(x), own = shared ? t->rows : row0 + x->prompt;
        const int32_t *pages = t->pages + *list;
        if (!shared || len > x->prompt) {
            for (int k = 0; k < trainer_blocks(len); k++) {
                t->pages[(*list)++] = shared && k < full ? prompt[k] : (*page)++;
            }
            trainer_add_rows(t, x, shared ? x->prompt : 0, len, pages, base);
        }
        trainer_add_requests(t, x, m->pick[i], row0 + x->prompt - 1, own, at);
        at += x->response;
    }
    for (int r = row0; r < t->rows; r += PLAN_LEAF) {
        t->leaf[t->nleaf++] = r;
    }
}

static int trainer_layout(struct trainer *t, const struct trainer_batch *m, struct err *e)
{
    int page = 0, list = 0, rc = trainer_room(t, m, e);

    t->nseq = t->rows = t->nleaf = t->nreq = t->nreq_leaf = 0;
    for (int64_t b = 0; rc == STATUS_OK && b < m->bundles; b++) {
        int64_t from = m->start[b], to = m->start[b + 1];
        ASSERT(t->rows + bundle_tokens(m->s, m->pick + from, to - from) <= t->max_rows);
        trainer_add_bundle(t, m, from, to, &page, &list);
    }
    t->leaf[t->nleaf] = t->rows;
    t->req_leaf[t->nreq_leaf] = t->nreq;
    return rc;
}

static void trainer_request(struct trainer *t, struct backward_req *r)
{
    memset(r, 0, sizeof *r);
    r->n = t->nreq;
    r->idx = t->idx;
    r->target = t->target;
    r->nleaf = t->nreq_leaf;
    r->leaf = t->req_leaf;
    r->temperature = t->o.temperature;
    r->logp = t->logp;
    r->entropy = t->o.entropy ? t->entropy : NULL;
}

static void trainer_forward(struct trainer *t)
{
    struct rows rows = {t->rows, t->nseq, t->seq, t->pos};
    forward_run(t->f, &rows, t->tok, &t->kv);
}

/* ---- micro-batches ----------------------------------------------------------------------------
 */

/* Micro-batch m is bundles [micro[m], micro[m + 1]) of `all`. */
struct trainer_plan {
    struct trainer_batch all;
    int64_t n, *micro, *pick, *start;
};

static void trainer_plan_fini(struct trainer_plan *p)
{
    mem_free(p->micro);
    mem_free(p->pick);
    mem_free(p->start);
}

static struct trainer_batch trainer_micro_batch(const struct trainer_plan *p, int64_t m)
{
    struct trainer_batch b = p->all;
    b.start = p->start + p->micro[m];
    b.bundles = p->micro[m + 1] - p->micro[m];
    return b;
}

/* Rows of the largest micro-batch. A sample by itself does not count: it is as long as was planned.
 */
static int64_t trainer_plan_rows(const struct trainer_plan *p)
{
    int64_t most = 0;

    for (int64_t i = 0; i < p->n; i++) {
        struct trainer_batch m = trainer_micro_batch(p, i);
        int64_t samples = m.start[m.bundles] - m.start[0], rows = 0;
        for (int64_t b = 0; b < m.bundles; b++) {
            rows += bundle_tokens(m.s, m.pick + m.start[b], m.start[b + 1] - m.start[b]);
        }
        most = samples > 1 && rows > most ? rows : most;
    }
    return most;
}

/* Work of a bundle: a prompt that is shared is done once. */
static int64_t trainer_work(const struct pack_model *m, const struct train_sample *s,
                            const int64_t *pick, int64_t n)
{
    int64_t work = -(n - 1) * pack_flops(m, s[pick[0]].prompt);
    for (int64_t i = 0; i < n; i++) {
        work += pack_flops(m, s[pick[i]].prompt + s[pick[i]].response);
    }
    return work;
}

/* Bins of even work. The packer balances without a bound; memory has one, so there are as many bins
 * as it takes until none is above it. */
static int trainer_even(const struct trainer *t, const struct trainer_batch *x, const int64_t *len,
                        int64_t cap, struct pack_bins *bins, struct err *e)
{
    const struct arch *a = &t->w->arch;
    struct pack_model m = {.layers = a->n_layers,
                           .hidden = a->hidden,
                           .heads = a->n_heads,
                           .kv_heads = a->n_kv_heads,
                           .head_dim = a->head_dim,
                           .ffn = a->intermediate,
                           .vocab = a->vocab};
    int64_t n = x->bundles, *work = mem_alloc(sizeof *work * (size_t)n), total = 0, k;
    int rc = STATUS_OK, fits = 0;

    for (int64_t i = 0; i < n; i++) {
        work[i] = trainer_work(&m, x->s, x->pick + x->start[i], x->start[i + 1] - x->start[i]);
        total += len[i];
    }
    for (k = (total + cap - 1) / cap; rc == STATUS_OK && !fits; k++) {
        pack_bins_fini(bins);
        *bins = (struct pack_bins){0, NULL, NULL};
        rc = pack_karmarkar_karp(work, n, k < n ? (k > 0 ? k : 1) : n, 0, bins, e);
        fits = 1;
        for (int64_t b = 0; rc == STATUS_OK && b < bins->n; b++) {
            int64_t sum = 0;
            for (int64_t i = bins->start[b]; i < bins->start[b + 1]; i++) {
                sum += len[bins->items[i]];
            }
            fits = fits && (sum <= cap || bins->start[b + 1] - bins->start[b] == 1);
        }
    }
    mem_free(work);
    return rc;
}

/* Bundles in their order, of micro_batch samples together at most. */
static void trainer_static(const struct trainer *t, const struct trainer_batch *x,
                           struct pack_bins *bins)
{
    int64_t have = 0;

    bins->start = mem_alloc(sizeof *bins->start * (size_t)(x->bundles + 1));
    bins->items = mem_alloc(sizeof *bins->items * (size_t)(x->bundles + 1));
    for (int64_t b = 0; b < x->bundles; b++) {
        int64_t n = x->start[b + 1] - x->start[b];
        if (b == 0 || have + n > t->o.micro_batch) {
            bins->start[bins->n++] = b;
            have = 0;
        }
        have += n;
        bins->items[b] = b;
    }
    bins->start[bins->n] = x->bundles;
}

/* The bundles of x, bin by bin, become those of the plan. */
static void trainer_plan_take(struct trainer_plan *p, const struct trainer_batch *x,
                              const struct pack_bins *bins)
{
    int64_t b = 0, k = 0;

    p->micro = mem_alloc(sizeof *p->micro * (size_t)(bins->n + 1));
    p->pick = mem_alloc(sizeof *p->pick * (size_t)(x->samples + 1));
    p->start = mem_alloc(sizeof *p->start * (size_t)(x->bundles + 1));
    p->n = bins->n;
    for (int64_t m = 0; m < bins->n; m++) {
        p->micro[m] = b;
        for (int64_t i = bins->start[m]; i < bins->start[m + 1]; i++, b++) {
            int64_t from = x->start[bins->items[i]], n = x->start[bins->items[i] + 1] - from;
            p->start[b] = k;
            memcpy(p->pick + k, x->pick + from, sizeof *p->pick * (size_t)n);
            k += n;
        }
    }
    p->micro[p->n] = b;
    p->start[b] = k;
    p->all = (struct trainer_batch){x->s, p->pick, p->start, k, b};
}

/* Cuts the chosen samples into bundles of at most `bundle` tokens and these into micro-batches of
 * at most `cap`. */
static int trainer_plan(const struct trainer *t, struct train_sample *s, const int64_t *pick, int n,
                        int64_t bundle, int64_t cap, struct trainer_plan *p, struct err *e)
{
    int64_t *start = mem_alloc(sizeof *start * (size_t)(n + 1)), *len;
    struct trainer_batch x = {s, pick, start, n, bundle_cut(s, pick, n, bundle, start)};
    struct pack_bins bins = {0, NULL, NULL};
    int rc = STATUS_OK;

    memset(p, 0, sizeof *p);
    len = mem_alloc(sizeof *len * (size_t)(x.bundles + 1));
    for (int64_t b = 0; b < x.bundles; b++) {
        len[b] = bundle_tokens(s, pick + start[b], start[b + 1] - start[b]);
    }
    if (t->o.micro_batch > 0) {
        trainer_static(t, &x, &bins);
    } else if (x.bundles && t->o.by_flops) {
        rc = trainer_even(t, &x, len, cap, &bins, e);
    } else if (x.bundles) {
        rc = pack_first_fit(len, x.bundles, cap, 1, &bins, e);
    }
    if (rc == STATUS_OK) {
        trainer_plan_take(p, &x, &bins);
    }
    pack_bins_fini(&bins);
    mem_free(len);
    mem_free(start);
    return rc;
}

/* Hands out what the pass made of a micro-batch's samples. */
static void trainer_hand_out(const struct trainer *t, const struct trainer_batch *m)
{
    int at = 0;
    for (int64_t i = m->start[0]; i < m->start[m->bundles]; i++) {
        const struct train_sample *x = &m->s[m->pick[i]];
        size_t bytes = sizeof(float) * (size_t)x->response;
        if (x->logp_out) {
            memcpy(x->logp_out, t->logp + at, bytes);
        }
        if (x->entropy_out && t->o.entropy) {
            memcpy(x->entropy_out, t->entropy + at, bytes);
        }
        at += x->response;
    }
}

/* ---- scoring -----------------------------------------------------------------------------------
 */

static void trainer_tell_row(void *arg, int i, const float *x, float max, float logz)
{
    const struct trainer *t = arg;
    struct trainer_row r = {t->req_sample[i], t->req_at[i], x, t->w->arch.vocab, max, logz};
    t->row(t->row_arg, &r);
}

/* Log-probs (and entropies) of a micro-batch's responses, one after the other. */
static int trainer_score_batch(struct trainer *t, const struct trainer_batch *m, struct err *e)
{
    struct backward_req r;
    int rc = trainer_layout(t, m, e);

    trainer_request(t, &r);
    r.row = t->row ? trainer_tell_row : NULL;
    r.row_arg = t;
    if (rc == STATUS_OK && t->nreq) {
        trainer_forward(t);
        backward_score(t->f, t->b ? &t->b->logits : &t->score_logits, &r);
    }
    return rc;
}

/* A row's result depends on its own sequence alone (contract C1), so bundles may be as large as
 * they fit. */
static int trainer_score_all(struct trainer *t, struct train_sample *s, int n, struct err *e)
{
    struct trainer_plan p;
    int64_t *pick = mem_alloc(sizeof *pick * (size_t)(n + 1));
    int cap = t->o.score_tokens > 0 && t->o.score_tokens < t->o.max_tokens ? t->o.score_tokens
                                                                           : t->o.max_tokens;
    int rc;

    for (int i = 0; i < n; i++) {
        pick[i] = i;
    }
    rc = trainer_plan(t, s, pick, n, cap, cap, &p, e);
    rc = rc == STATUS_OK ? trainer_grow(t, trainer_plan_rows(&p), e) : rc;
    for (int64_t b = 0; rc == STATUS_OK && b < p.n; b++) {
        struct trainer_batch m = trainer_micro_batch(&p, b);
        rc = trainer_score_batch(t, &m, e);
        if (rc == STATUS_OK) {
            trainer_hand_out(t, &m);
        }
    }
    trainer_plan_fini(&p);
    mem_free(pick);
    return rc;
}

int trainer_score(struct trainer *t, struct train_sample *s, int n, struct err *e)
{
    int rc;
    weights_acquire(t->w);
    rc = trainer_score_all(t, s, n, e);
    weights_release(t->w);
    return rc;
}

int trainer_score_rows(struct trainer *t, struct train_sample *s, int n, trainer_row_fn *fn,
                       void *arg, struct err *e)
{
    int most = trainer_rows(&t->o), rc; /* passes may grow to so many rows */

    most = most > t->max_rows ? most : t->max_rows;
    t->req_sample = mem_alloc(sizeof *t->req_sample * (size_t)most);
    t->req_at = mem_alloc(sizeof *t->req_at * (size_t)most);
    t->row = fn;
    t->row_arg = arg;
    rc = trainer_score(t, s, n, e);
    t->row = NULL;
    mem_free(t->req_sample);
    mem_free(t->req_at);
    t->req_sample = t->req_at = NULL;
    return rc;
}

int trainer_score_with(struct weights *w, int max_tokens, float temperature, struct train_sample *s,
                       int n, struct err *e)
{
    struct trainer *t = mem_alloc(sizeof *t);
    int rc;

    t->w = w;
    t->o.temperature = temperature;
    t->o.max_tokens = max_tokens;
    t->max_rows = max_tokens;
    for (int i = 0; i < n; i++) {
        int len = s[i].prompt + s[i].response;
        t->max_rows = len > t->max_rows ? len : t->max_rows;
    }
    trainer_arrays(t);
    rc = forward_open(w, t->max_rows, 0, &t->f, e);
    if (rc == STATUS_OK) {
        rc = device_tensor(w->dev, &t->score_logits, DTYPE_F32,
                           trainer_logit_rows(w, &t->o, t->max_rows), arch_outputs(&w->arch), e);
    }
    if (rc == STATUS_OK) {
        rc = trainer_score(t, s, n, e);
    }
    trainer_close(t);
    return rc;
}

/* The loss of every sample of a micro-batch, the gradients of their tokens, the exactness check. */
static int trainer_loss(struct trainer *t, const struct trainer_batch *m, struct trainer_report *r,
                        struct err *e)
{
    int at = 0;
    for (int64_t i = m->start[0]; i < m->start[m->bundles]; i++) {
        const struct train_sample *x = &m->s[m->pick[i]];
        struct loss_sample l;
        int rc;
        memset(&l, 0, sizeof l);
        l.len = x->response;
        l.mask = x->mask;
        l.denom = x->denom;
        l.logp = t->logp + at;
        l.old = x->old;
        l.ref = x->ref;
        l.roll = x->roll;
        l.train = x->train;
        l.on_policy = x->on_policy && !x->exact;
        l.adv = x->adv;
        l.entropy = t->o.entropy ? t->entropy + at : NULL;
        l.weight = x->weight;
        l.weight_mask = x->keep;
        l.coef = x->coef;
        l.given_dlogp = x->given_dlogp;
        l.given_dentropy = x->given_dentropy;
        l.dlogp = t->g + at;
        l.dentropy = t->ge + at;
        if (x->exact && x->roll) {
            for (int j = 0; j < x->response; j++) {
                float d = t->logp[at + j] - x->roll[j];
                if (x->mask && !x->mask[j] && x->roll[j] == 0.0f) {
                    continue; /* inserted: nobody sampled it */
                }
                d = d < 0 ? -d : d;
                r->max_diff = d > r->max_diff || d != d ? d : r->max_diff;
                r->exact_tokens++;
            }
        }
        rc = loss_sample(&t->o.loss, &r->step, &l, &r->sums, e);
        if (rc != STATUS_OK) {
            return rc;
        }
        at += x->response;
        r->rows += x->prompt + x->response;
    }
    trainer_hand_out(t, m);
    if (r->max_diff != 0.0f) {
        return ERR(
            e, STATUS_NUMERIC,
            "rollout and trainer disagree by %g in a log-prob that must be equal bit for bit",
            (double)r->max_diff);
    }
    return STATUS_OK;
}

/* ---- a loss over rows of logits ---- */

int trainer_add_logit_loss(struct trainer *t, trainer_logit_loss_fn *fn, void *arg, struct err *e)
{
    if (t->w->arch.final_softcap != 0.0f) {
        return ERR(e, STATUS_UNSUPPORTED,
                   "a loss over rows of logits cannot be had for a model that caps its logits");
    }
    t->logit_loss = fn;
    t->logit_loss_arg = arg;
    return STATUS_OK;
}

/* The samples of a micro-batch while backward_run asks for their rows. */
struct trainer_logit_batch {
    struct trainer *t;
    const struct trainer_batch *m;
    double divisor;
    struct exact loss;
    int rc;
    struct err *e;
};

static void trainer_logit_row(void *arg, int i, int vocab, const float *logits, float *dlogits)
{
    struct trainer_logit_batch *r = arg;
    struct trainer_logits row = {.vocab = vocab, .logits = logits};
    double loss = 0;
    const int64_t *k = r->m->pick + r->m->start[0];
    int at = i;

    while (at >= r->m->s[*k].response) {
        at -= r->m->s[*k++].response;
    }
    row.sample = &r->m->s[*k];
    if (r->rc != STATUS_OK || (row.sample->mask && !row.sample->mask[at])) {
        return;
    }
    row.s = (int)*k;
    row.t = at;
    row.target = r->t->target[i];
    row.logp = r->t->logp[i];
    row.entropy = r->t->o.entropy ? r->t->entropy[i] : 0.0f;
    r->rc = r->t->logit_loss(r->t->logit_loss_arg, &row, dlogits, &loss, r->e);
    for (int v = 0; v < vocab; v++) {
        dlogits[v] = (float)((double)dlogits[v] / r->divisor);
    }
    exact_add(&r->loss, loss / r->divisor);
}

static int trainer_micro(struct trainer *t, const struct trainer_batch *m, struct trainer_report *r,
                         struct err *e)
{
    struct rows rows;
    struct leaf_rows leaves;
    struct backward_req q;
    struct trainer_logit_batch by_row = {.t = t, .m = m, .e = e};
    double t0 = trainer_now(), t1;
    int rc = trainer_layout(t, m, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    by_row.divisor = (double)(t->o.loss.per_token ? r->step.tokens : r->step.rollouts);
    rows = (struct rows){t->rows, t->nseq, t->seq, t->pos};
    leaves = (struct leaf_rows){t->nleaf, t->leaf};
    trainer_request(t, &q);
    trainer_forward(t);
    backward_logp(t->b, &q);
    rc = trainer_loss(t, m, r, e);
    if (rc != STATUS_OK) {
        return rc;
    }
    t1 = trainer_now();
    q.g = t->g;
    q.ge = t->o.loss.entropy_coef != 0.0f || (t->o.loss.type == LOSS_CUSTOM && t->o.entropy) ? t->ge
                                                                                             : NULL;
    q.row_loss = t->logit_loss ? trainer_logit_row : NULL;
    q.row_loss_arg = &by_row;
    exact_init(&by_row.loss);
    if (q.n) {
        backward_run(t->b, &rows, t->tok, &t->kv, &leaves, &q);
    }
    if (by_row.rc != STATUS_OK) {
        return by_row.rc;
    }
    exact_merge(&r->row_sum, &by_row.loss);
    r->forward_s += t1 - t0;
    r->backward_s += trainer_now() - t1;
    r->computed += t->rows;
    r->tokens += t->nreq;
    r->micro_batches++;
    return device_fault(t->w->dev, e);
}

/* The same without gradients. */
static int trainer_micro_idle(struct trainer *t, const struct trainer_batch *m,
                              struct trainer_report *r, struct err *e)
{
    double t0 = trainer_now();
    int rc = trainer_score_batch(t, m, e);
    if (rc == STATUS_OK) {
        rc = trainer_loss(t, m, r, e);
    }
    r->computed += t->nreq ? t->rows : 0;
    r->forward_s += trainer_now() - t0;
    r->tokens += t->nreq;
    r->micro_batches++;
    return rc;
}

/* 1 when the loss of the sample has no gradient: no advantage, and no other term in the loss. Its
 * leaves would add exact zeros, so the backward pass is left out. */
static int trainer_idle(const struct trainer *t, const struct train_sample *x)
{
    const struct loss_opts *o = &t->o.loss;
    if (o->type != LOSS_POLICY || (o->use_kl_loss && o->kl_loss_coef != 0.0f) ||
        o->entropy_coef != 0.0f) {
        return 0;
    }
    for (int i = 0; i < x->response; i++) {
        if (x->adv[i] != 0.0f && (!x->mask || x->mask[i])) {
            return 0;
        }
    }
    return 1;
}

/* Samples without a gradient (idle 1) or with one (idle 0); returns how many. */
static int trainer_choose(const struct trainer *t, const struct train_sample *s, int n, int idle,
                          int64_t *pick)
{
    int k = 0;
    for (int i = 0; i < n; i++) {
        if (trainer_idle(t, &s[i]) == idle) {
            pick[k++] = i;
        }
    }
    return k;
}

/* The micro-batches of a step's samples without a gradient (idle 1) or with one; *k: how many. */
static int trainer_plan_pass(const struct trainer *t, struct train_sample *s, int n, int idle,
                             struct trainer_plan *p, int *k, struct err *e)
{
    int64_t *pick = mem_alloc(sizeof *pick * (size_t)(n + 1));
    int64_t bundle = idle ? t->o.max_tokens : t->w->dev->plan.bundle_rows;
    int rc;

    *k = trainer_choose(t, s, n, idle, pick);
    rc = trainer_plan(t, s, pick, *k, bundle, t->o.max_tokens, p, e);
    mem_free(pick);
    return rc;
}

/* Forward, loss and, where there is a gradient, backward. */
static int trainer_pass(struct trainer *t, struct train_sample *s, int n, int idle,
                        struct trainer_report *r, struct err *e)
{
    struct trainer_plan p;
    int k, rc = trainer_plan_pass(t, s, n, idle, &p, &k, e);

    for (int64_t b = 0; rc == STATUS_OK && b < p.n; b++) {
        struct trainer_batch m = trainer_micro_batch(&p, b);
        rc = idle ? trainer_micro_idle(t, &m, r, e) : trainer_micro(t, &m, r, e);
    }
    if (idle) {
        r->idle_samples = k;
    }
    trainer_plan_fini(&p);
    return rc;
}

/* Passes that hold the largest micro-batch of the step. */
static int trainer_fit(struct trainer *t, struct train_sample *s, int n, struct err *e)
{
    int64_t most = 0;
    int rc = STATUS_OK;

    for (int idle = 0; rc == STATUS_OK && idle < 2; idle++) {
        struct trainer_plan p;
        int64_t rows;
        int k;
        rc = trainer_plan_pass(t, s, n, idle, &p, &k, e);
        rows = rc == STATUS_OK ? trainer_plan_rows(&p) : 0;
        most = rows > most ? rows : most;
        trainer_plan_fini(&p);
    }
    return rc == STATUS_OK ? trainer_grow(t, most, e) : rc;
}

static int trainer_order(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* Different rollouts among the samples. */
static int64_t trainer_rollouts(const struct train_sample *s, int n)
{
    int64_t *id = mem_alloc(sizeof *id * (size_t)(n ? n : 1)), k = 0;
    for (int i = 0; i < n; i++) {
        id[i] = s[i].rollout;
    }
    qsort(id, (size_t)n, sizeof *id, trainer_order);
    for (int i = 0; i < n; i++) {
        k += i == 0 || id[i] != id[i - 1];
    }
    mem_free(id);
    return k;
}

void trainer_step_of(const struct train_sample *s, int n, struct loss_step *st)
{
    *st = (struct loss_step){.rollouts = trainer_rollouts(s, n)};
    for (int i = 0; i < n; i++) {
        st->tokens += loss_norm_tokens(s[i].mask, s[i].response);
    }
}

/* The mean weight of the step's correction, before a micro-batch needs it. */
static int trainer_mis_mean(const struct trainer *t, const struct train_sample *s, int n,
                            struct loss_step *st, struct err *e)
{
    const struct loss_opts *o = &t->o.loss;
    struct mis_mean m;

    if (o->tis != LOSS_TIS_MIS || o->mis.observe || !o->mis.normalize) {
        return STATUS_OK;
    }
    mis_mean_init(&m);
    for (int i = 0; i < n; i++) {
        const float *train = s[i].train ? s[i].train : s[i].old;
        if (s[i].response && (!train || !s[i].roll)) {
            return ERR(e, STATUS_INPUT,
                       "weights that average 1 over a step need log-probs of trainer and rollout "
                       "for every sample");
        }
        mis_mean_add(&m, &o->mis, s[i].response, s[i].mask, train, s[i].roll);
    }
    st->mis_mean = mis_mean_value(&m);
    return STATUS_OK;
}

int trainer_step(struct trainer *t, struct train_sample *s, int n, const struct optim_hyper *h,
                 struct trainer_report *r, struct err *e)
{
    double t0;
    int rc;

    memset(r, 0, sizeof *r);
    loss_sums_init(&r->sums);
    exact_init(&r->row_sum);
    trainer_step_of(s, n, &r->step);
    rc = trainer_mis_mean(t, s, n, &r->step, e);
    rc = rc == STATUS_OK ? trainer_fit(t, s, n, e) : rc;
    if (rc != STATUS_OK) {
        return rc;
    }
    weights_acquire(t->w);
    backward_zero(t->b);
    rc = trainer_pass(t, s, n, 0, r, e);
    if (rc == STATUS_OK) {
        rc = trainer_pass(t, s, n, 1, r, e);
    }
    weights_release(t->w);
    if (rc != STATUS_OK) {
        return rc;
    }
    t0 = trainer_now();
    r->row_loss = exact_value(&r->row_sum);
    rc = optim_step(t->opt, t->b->grad, h, &r->grad_norm, e);
    r->optim_s = trainer_now() - t0;
    return rc;
}
