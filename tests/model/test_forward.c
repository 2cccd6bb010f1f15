/* The whole model, forward and backward, on small random models of every family:
 *   - a row's numbers do not depend on chunks, batch, pages or threads (contract C1), bit for bit;
 *   - every instruction set of this machine equals the reference device, gradients included;
 *   - gradients do not depend on how sequences are grouped into passes (contract C4);
 *   - in an f32 plan they are the derivatives of the log-probs, by finite differences.
 *
 *     test_forward --dump MODEL_DIR TOKENS.json OUT.safetensors
 *
 * runs the sequences of {"sequences": [[ids], ...]} in an f32 plan on the reference device and
 * writes "logits" (all positions of all sequences, V) and, under its Hugging Face name, the
 * gradient of J = mean of all next-token log-probs for every parameter. tests/live/grad_parity.sh
 * compares them with transformers'. */
#include "tinymodel.h"

#include <jansson.h>

#include "model/backward.h"
#include "model/forward.h"

enum { MAX_LEN = 1200, MAX_PAGES = 20, MAX_TEXTS = 8 };

static const char *const isas[] = {"scalar", "avx2", "avx512", "amx"};

/* Sizes that fit no block: heads that leaves share unevenly (some get none at R = 4), a vocabulary
 * that ends inside a block of 32, 3 blocks of 32 in the hidden size. */
static const struct tinymodel_spec specs[] = {
    {"llama", 1, 2, 96, 3, 1, 32, 160, 77, 2048, 0},
    {"llama", 0, 1, 64, 4, 4, 32, 96, 130, 2048, 0},
    {"qwen2", 1, 1, 128, 2, 2, 64, 96, 64, 2048, 0},
    {"qwen2", 0, 2, 96, 3, 3, 32, 64, 50, 2048, 0},
    {"qwen3", 1, 2, 64, 4, 2, 32, 224, 77, 2048, 0},
    {"qwen3", 0, 1, 96, 2, 1, 96, 128, 33, 2048, 0},
    {"llama-bias", 1, 1, 96, 2, 1, 32, 64, 41, 2048, 0},
    {"mistral", 0, 1, 64, 4, 2, 32, 64, 40, 2048, 0},
    {"gemma2", 1, 2, 64, 4, 2, 32, 96, 77, 2048, 0},
    {"gemma3", 1, 2, 96, 2, 1, 64, 64, 50, 2048, 0},
    {"glm4", 0, 1, 64, 2, 1, 64, 96, 45, 2048, 0},
};
#define NSPECS (int)(sizeof specs / sizeof *specs)

/* ---- a model ready to run ----------------------------------------------------------------------
 */

struct world {
    struct tinymodel m;
    struct forward *f;
    struct backward *b; /* or NULL */
    struct kv_store kv;
    struct tensor logits;
};

static void world_open(struct world *w, const char *dir, const char *device, const char *isa,
                       int threads, int leaves, int f32, int rows, int keep, int logit_rows)
{
    const struct arch *a;
    struct err e = {0};

    memset(w, 0, sizeof *w);
    tinymodel_open(&w->m, dir, device, isa, threads, leaves, f32, keep);
    a = &w->m.w->arch;
    assert_ok(forward_open(w->m.w, rows, keep, &w->f, &e), &e);
    if (logit_rows) {
        assert_ok(backward_open(w->f, logit_rows, &w->b, &e), &e);
    }
    assert_ok(device_kv(w->m.dev, &w->kv, a->n_layers, a->n_kv_heads, a->head_dim,
                        MAX_TEXTS * MAX_PAGES, &e),
              &e);
    /* not a number in every key and value: what is read before it is written shows */
    memset(w->kv.data, 0xff, w->kv.size);
    assert_ok(device_tensor(w->m.dev, &w->logits, DTYPE_F32, rows, a->vocab, &e), &e);
}

static void world_close(struct world *w)
{
    device_tensor_free(&w->logits);
    device_kv_free(&w->kv);
    backward_close(w->b);
    forward_close(w->f);
    tinymodel_close(&w->m);
}

/* A sequence, its pages, and what a pass computed for its positions. */
struct text {
    int len;
    int prompt; /* tokens before the first that is scored, at least 1 */
    int32_t tok[MAX_LEN];
    int32_t pages[MAX_PAGES];
    float *hidden, *logits; /* (len, H) (len, V) */
};

/* `slot` chooses the pages: no two texts of a world may have the same. Pages are scattered. */
static struct text *text_new(const struct world *w, uint64_t seed, int len, int slot)
{
    struct text *t = mem_alloc(sizeof *t);
    const struct arch *a = &w->m.w->arch;
    uint64_t s = seed * 1000003u + 17u;

    assert_true(len <= MAX_LEN && slot < MAX_TEXTS);
    t->len = len;
    t->prompt = len > 3 ? len / 3 : 1;
    for (int i = 0; i < len; i++) {
        t->tok[i] = tinymodel_below(&s, a->vocab);
    }
    for (int i = 0; i < MAX_PAGES; i++) {
        t->pages[i] = ((MAX_PAGES - 1 - i) * MAX_TEXTS + slot) % (MAX_PAGES * MAX_TEXTS);
    }
    t->hidden = mem_alloc(sizeof(float) * (size_t)(len * a->hidden));
    t->logits = mem_alloc(sizeof(float) * (size_t)(len * a->vocab));
    return t;
}

static void text_free(struct text *t)
{
    mem_free(t->hidden);
    mem_free(t->logits);
    mem_free(t);
}

/* The rows of one forward pass. */
struct pass {
    int n, nseq;
    struct row_seq seq[MAX_TEXTS];
    struct text *text[MAX_TEXTS];
    int32_t pos[2 * MAX_LEN], tok[2 * MAX_LEN];
};

static void pass_add(struct pass *p, struct text *t, int from, int n)
{
    assert_true(p->nseq < MAX_TEXTS && p->n + n <= 2 * MAX_LEN && from + n <= t->len);
    p->seq[p->nseq] = (struct row_seq){p->n, n, from, t->pages, 0};
    p->text[p->nseq++] = t;
    for (int i = 0; i < n; i++) {
        p->pos[p->n] = from + i;
        p->tok[p->n++] = t->tok[from + i];
    }
}

static struct rows pass_rows(const struct pass *p)
{
    return (struct rows){p->n, p->nseq, p->seq, p->pos};
}

/* Runs the pass and leaves hidden states and logits of its rows with their texts. */
static void world_run(struct world *w, const struct pass *p)
{
    const struct arch *a = &w->m.w->arch;
    struct rows rows = pass_rows(p);
    int32_t *idx = mem_alloc(sizeof *idx * (size_t)p->n);

    for (int i = 0; i < p->n; i++) {
        idx[i] = i;
    }
    forward_run(w->f, &rows, p->tok, &w->kv);
    forward_logits(w->f, idx, p->n, &w->logits);
    for (int i = 0; i < p->nseq; i++) {
        const struct row_seq *s = &p->seq[i];
        struct tensor h = tensor_rows(&w->f->hidden, s->row0, s->nrows);
        struct tensor l = tensor_rows(&w->logits, s->row0, s->nrows);
        device_download_f32(&h, p->text[i]->hidden + (size_t)(s->pos0 * a->hidden));
        device_download_f32(&l, p->text[i]->logits + (size_t)(s->pos0 * a->vocab));
    }
    mem_free(idx);
}

static void world_run_one(struct world *w, struct text *t, int from, int n)
{
    struct pass *p = mem_alloc(sizeof *p);
    pass_add(p, t, from, n);
    world_run(w, p);
    mem_free(p);
}

static void assert_finite(const float *x, int n, const char *what)
{
    for (int i = 0; i < n; i++) {
        if (!isfinite(x[i])) {
            fail_msg("%s: value %d is %g", what, i, (double)x[i]);
        }
    }
}

/* Bit for bit, and not trivially so. */
static void assert_same_values(const float *a, const float *b, int rows, int cols, const char *what)
{
    assert_finite(a, rows * cols, what);
    for (int i = 0; i < rows * cols; i++) {
        uint32_t x, y;
        memcpy(&x, &a[i], 4);
        memcpy(&y, &b[i], 4);
        if (x != y) {
            fail_msg("%s: row %d of %d, column %d: %.9g and %.9g", what, i / cols, rows, i % cols,
                     (double)a[i], (double)b[i]);
        }
    }
}

static void assert_same_text(const struct world *w, const struct text *a, const struct text *b,
                             const char *what)
{
    assert_int_equal(a->len, b->len);
    assert_memory_equal(a->tok, b->tok, sizeof(int32_t) * (size_t)a->len);
    assert_same_values(a->hidden, b->hidden, a->len, w->m.w->arch.hidden, what);
    assert_same_values(a->logits, b->logits, a->len, w->m.w->arch.vocab, what);
}

/* ---- rows are rows (C1) ------------------------------------------------------------------------
 */

/* Prefill in chunks of `chunk`, then one token at a time from `decode` on. */
static void run_chunked(struct world *w, struct text *t, int chunk, int decode)
{
    int at = 0;
    while (at < t->len) {
        int n = at < decode ? (decode - at < chunk ? decode - at : chunk) : 1;
        world_run_one(w, t, at, n);
        at += n;
    }
}

static void check_chunks(const char *dir, const char *device, int threads, int len)
{
    static const struct {
        int chunk, decode;
    } ways[] = {{1, 0}, {7, 100}, {64, 128}, {65, 90}, {1 << 20, 63}, {13, 1 << 20}};
    struct world w, engine;
    struct text *whole;

    world_open(&w, dir, device, "auto", threads, 2, 0, len, 1, 0);
    whole = text_new(&w, 5, len, 0);
    world_run_one(&w, whole, 0, len);
    for (int i = 0; i < (int)(sizeof ways / sizeof *ways); i++) {
        struct text *t;
        int decode = ways[i].decode < len ? ways[i].decode : len;
        world_open(&engine, dir, device, "auto", threads, 2, 0, len, 0, 0);
        t = text_new(&engine, 5, len, 1 + i % 3);
        run_chunked(&engine, t, ways[i].chunk, decode);
        assert_same_text(&w, whole, t, "whole pass and chunks");
        text_free(t);
        world_close(&engine);
    }
    text_free(whole);
    world_close(&w);
}

static void test_chunks(void **state)
{
    (void)state;
    for (int i = 0; i < NSPECS; i++) {
        check_chunks(tinymodel_write(&specs[i]), "cpu", 1 + i % 2, 131);
    }
    check_chunks(tinymodel_write(&specs[0]), "ref", 1, 70);
}

/* Over the end of an attention segment (1024) and of gradient leaves. */
static void test_long(void **state)
{
    const char *dir = tinymodel_write(&specs[1]);
    struct world w;
    struct text *whole, *parts;

    (void)state;
    world_open(&w, dir, "cpu", "auto", 2, 2, 0, MAX_LEN, 0, 0);
    whole = text_new(&w, 9, 1100, 0);
    parts = text_new(&w, 9, 1100, 1);
    world_run_one(&w, whole, 0, 1100);
    run_chunked(&w, parts, 300, 1010);
    assert_same_text(&w, whole, parts, "a long text whole and in parts");
    text_free(whole);
    text_free(parts);
    world_close(&w);
}

/* Sequences of a batch against each alone; then a batch as an engine has it: single rows of some
 * sequences beside a prompt chunk of another. */
static void check_batch(const char *dir)
{
    static const int lens[] = {1, 5, 64, 65, 130};
    struct world w, one;
    struct text *alone[5], *t[5];
    struct pass *p = mem_alloc(sizeof *p);

    world_open(&w, dir, "cpu", "auto", 2, 4, 0, 2 * MAX_LEN, 0, 0);
    world_open(&one, dir, "cpu", "auto", 1, 4, 0, 2 * MAX_LEN, 0, 0);
    for (int i = 0; i < 5; i++) {
        alone[i] = text_new(&one, (uint64_t)i, lens[i], 7);
        world_run_one(&one, alone[i], 0, lens[i]);
        t[i] = text_new(&w, (uint64_t)i, lens[i], i);
        pass_add(p, t[i], 0, lens[i]);
    }
    world_run(&w, p);
    for (int i = 0; i < 5; i++) {
        assert_same_text(&w, alone[i], t[i], "alone and in a batch");
        memset(t[i]->hidden, 0, sizeof(float) * (size_t)(lens[i] * w.m.w->arch.hidden));
    }
    memset(w.kv.data, 0xff, w.kv.size);
    world_run_one(&w, t[2], 0, 40);
    world_run_one(&w, t[3], 0, 62);
    for (int step = 0; step < 26; step++) {
        memset(p, 0, sizeof *p);
        if (step < 24) {
            pass_add(p, t[2], 40 + step, 1);
        }
        if (step < 3) {
            pass_add(p, t[3], 62 + step, 1);
        }
        pass_add(p, t[4], step * 5, 5);
        world_run(&w, p);
    }
    for (int i = 2; i < 5; i++) {
        assert_same_text(&w, alone[i], t[i], "alone and in mixed steps");
    }
    for (int i = 0; i < 5; i++) {
        text_free(alone[i]);
        text_free(t[i]);
    }
    mem_free(p);
    world_close(&w);
    world_close(&one);
}

static void test_batch(void **state)
{
    (void)state;
    for (int i = 0; i < NSPECS; i++) {
        check_batch(tinymodel_write(&specs[i]));
    }
}

/* ---- gradients ---------------------------------------------------------------------------------
 */

/* What a backward pass reads beside the rows. */
struct want {
    int n, nleaf, nrow_leaf;
    int32_t idx[2 * MAX_LEN], target[2 * MAX_LEN], leaf[64], row_leaf[64];
    float g[2 * MAX_LEN], ge[2 * MAX_LEN], logp[2 * MAX_LEN], entropy[2 * MAX_LEN];
};

/* The weight of a token in the objective: a function of the token alone, whatever the layout. */
static float token_weight(const struct text *t, int at, int salt)
{
    uint64_t s = (uint64_t)(t->tok[0] * 7919 + t->len * 104729 + at * 31 + salt);
    return tinymodel_value(&s);
}

/* Leaves are cut every PLAN_LEAF positions of a sequence, for rows and for scored tokens. */
static void want_fill(struct want *q, const struct pass *p)
{
    memset(q, 0, sizeof *q);
    for (int i = 0; i < p->nseq; i++) {
        const struct text *t = p->text[i];
        int last = -1;
        for (int at = 0; at < t->len; at += PLAN_LEAF) {
            q->row_leaf[q->nrow_leaf++] = p->seq[i].row0 + at;
        }
        for (int at = t->prompt - 1; at + 1 < t->len; at++) {
            if (at / PLAN_LEAF != last) {
                last = at / PLAN_LEAF;
                q->leaf[q->nleaf++] = q->n;
            }
            q->idx[q->n] = p->seq[i].row0 + at;
            q->target[q->n] = t->tok[at + 1];
            q->g[q->n] = token_weight(t, at, 1);
            q->ge[q->n] = 0.1f * token_weight(t, at, 2);
            q->n++;
        }
    }
    q->row_leaf[q->nrow_leaf] = p->n;
    q->leaf[q->nleaf] = q->n;
}

static struct backward_req want_req(struct want *q, int entropy, float temperature)
{
    return (struct backward_req){.n = q->n,
                                 .idx = q->idx,
                                 .target = q->target,
                                 .nleaf = q->nleaf,
                                 .leaf = q->leaf,
                                 .temperature = temperature,
                                 .logp = q->logp,
                                 .entropy = entropy ? q->entropy : NULL,
                                 .g = q->g,
                                 .ge = entropy ? q->ge : NULL};
}

/* Adds the gradients of the pass's texts; log-probs and entropies are left in q. */
static void world_backward(struct world *w, const struct pass *p, struct want *q, int entropy,
                           float temperature)
{
    struct rows rows = pass_rows(p);
    struct leaf_rows leaves;
    struct backward_req r;
    struct err e = {0};

    want_fill(q, p);
    leaves = (struct leaf_rows){q->nrow_leaf, q->row_leaf};
    r = want_req(q, entropy, temperature);
    forward_run(w->f, &rows, p->tok, &w->kv);
    backward_logp(w->b, &r);
    backward_run(w->b, &rows, p->tok, &w->kv, &leaves, &r);
    assert_ok(device_fault(w->m.dev, &e), &e);
}

static void assert_same_grads(const struct world *a, const struct world *b, const char *what)
{
    assert_int_equal(a->m.w->nparams, b->m.w->nparams);
    for (int i = 0; i < a->m.w->nparams; i++) {
        const struct param *p = &a->m.w->params[i];
        int nonzero = 0;
        for (int r = 0; r < p->rows; r++) {
            const int64_t *x = device_host_row(&a->b->grad[i], r);
            const int64_t *y = device_host_row(&b->b->grad[i], r);
            for (int c = 0; c < p->cols; c++) {
                nonzero += x[c] != 0;
                if (x[c] != y[c]) {
                    fail_msg("%s, R %d: gradient of %s (%d, %d): %lld and %lld", what,
                             a->m.dev->plan.leaves, p->part[0].name, r, c, (long long)x[c],
                             (long long)y[c]);
                }
            }
        }
        if (nonzero < p->cols / 2) {
            fail_msg("%s: the gradient of %s is zero", what, p->part[0].name);
        }
    }
}

/* Three texts in one pass; the last is `longest`. */
static void fill_texts(struct world *w, struct pass *p, struct text *t[3], int longest)
{
    const int lens[] = {2, 33, longest};
    memset(p, 0, sizeof *p);
    for (int i = 0; i < 3; i++) {
        t[i] = text_new(w, (uint64_t)(20 + i), lens[i], i);
        pass_add(p, t[i], 0, lens[i]);
    }
}

static void check_isas(const char *dir, int leaves, int longest)
{
    struct world ref;
    struct text *t[3], *u[3];
    struct pass *p = mem_alloc(sizeof *p), *pu = mem_alloc(sizeof *pu);
    struct want *q = mem_alloc(sizeof *q), *qu = mem_alloc(sizeof *qu);

    world_open(&ref, dir, "ref", NULL, 2, leaves, 0, 2 * MAX_LEN, 1, 2 * MAX_LEN);
    fill_texts(&ref, p, t, longest);
    world_run(&ref, p);
    world_backward(&ref, p, q, 1, 0.7f);
    for (int i = 0; i < (int)(sizeof isas / sizeof *isas); i++) {
        struct world w;
        if (!device_has_isa(isas[i])) {
            print_message("no %s on this machine\n", isas[i]);
            continue;
        }
        world_open(&w, dir, "cpu", isas[i], 1 + i % 2, leaves, 0, 2 * MAX_LEN, 1, 2 * MAX_LEN);
        fill_texts(&w, pu, u, longest);
        world_run(&w, pu);
        world_backward(&w, pu, qu, 1, 0.7f);
        for (int k = 0; k < 3; k++) {
            assert_same_text(&ref, t[k], u[k], isas[i]);
            text_free(u[k]);
        }
        assert_int_equal(q->n, qu->n);
        assert_same_values(q->logp, qu->logp, 1, q->n, isas[i]);
        assert_same_values(q->entropy, qu->entropy, 1, q->n, isas[i]);
        assert_same_grads(&ref, &w, isas[i]);
        world_close(&w);
    }
    for (int k = 0; k < 3; k++) {
        text_free(t[k]);
    }
    mem_free(p);
    mem_free(pu);
    mem_free(q);
    mem_free(qu);
    world_close(&ref);
}

static void test_isas(void **state)
{
    (void)state;
    for (int i = 0; i < NSPECS; i++) {
        const char *dir = tinymodel_write(&specs[i]);
        check_isas(dir, 1 << i % 3, 66);
        check_isas(dir, 1 << (i + 1) % 3, 20);
        check_isas(dir, 1 << (i + 2) % 3, 20);
    }
}

/* Over a leaf's end: the reference takes its time with it, so once. */
static void test_isas_leaf(void **state)
{
    (void)state;
    check_isas(tinymodel_write(&specs[3]), 2, PLAN_LEAF + 20);
}

/* One pass over all texts; a pass for each; logits kept, or computed again in small chunks. */
static void check_layout(const char *dir, int entropy)
{
    struct world all, single, chunked;
    struct text *t[3], *u[3], *v[3];
    struct pass *p = mem_alloc(sizeof *p);
    struct want *q = mem_alloc(sizeof *q), *qs = mem_alloc(sizeof *qs);
    int at = 0;

    world_open(&all, dir, "cpu", "auto", 2, 2, 0, 2 * MAX_LEN, 1, 2 * MAX_LEN);
    world_open(&single, dir, "cpu", "auto", 1, 2, 0, MAX_LEN, 1, MAX_LEN);
    world_open(&chunked, dir, "cpu", "auto", 1, 2, 0, 2 * MAX_LEN, 1, PLAN_LEAF);
    fill_texts(&chunked, p, v, 600);
    world_backward(&chunked, p, qs, entropy, 1.0f);
    fill_texts(&all, p, t, 600);
    world_backward(&all, p, q, entropy, 1.0f);
    assert_true(q->n > PLAN_LEAF);
    assert_same_values(q->logp, qs->logp, 1, q->n, "logits in chunks");
    assert_same_grads(&all, &chunked, "logits in chunks");
    for (int k = 2; k >= 0; k--) {
        u[k] = text_new(&single, (uint64_t)(20 + k), t[k]->len, k);
        memset(p, 0, sizeof *p);
        pass_add(p, u[k], 0, u[k]->len);
        world_backward(&single, p, qs, entropy, 1.0f);
        at += qs->n;
        assert_same_values(q->logp + q->n - at, qs->logp, 1, qs->n, "texts one by one");
    }
    assert_int_equal(at, q->n);
    assert_same_grads(&all, &single, "texts one by one");
    backward_zero(all.b);
    for (int i = 0; i < all.m.w->nparams; i++) {
        const int64_t *x = device_host_row(&all.b->grad[i], 0);
        device_settle(&all.b->grad[i]);
        assert_int_equal(x[0], 0);
    }
    for (int k = 0; k < 3; k++) {
        text_free(t[k]);
        text_free(u[k]);
        text_free(v[k]);
    }
    mem_free(p);
    mem_free(q);
    mem_free(qs);
    world_close(&all);
    world_close(&single);
    world_close(&chunked);
}

static void test_layout(void **state)
{
    (void)state;
    check_layout(tinymodel_write(&specs[0]), 0);
    check_layout(tinymodel_write(&specs[3]), 1);
    check_layout(tinymodel_write(&specs[4]), 0);
}

/* backward_score is the same log-prob, whatever number of logit rows it is given. */
static void test_score(void **state)
{
    const char *dir = tinymodel_write(&specs[2]);
    struct world w;
    struct text *t[3];
    struct pass *p = mem_alloc(sizeof *p);
    struct want *q = mem_alloc(sizeof *q), *qs = mem_alloc(sizeof *qs);

    (void)state;
    world_open(&w, dir, "cpu", "auto", 1, 1, 0, 2 * MAX_LEN, 1, 2 * MAX_LEN);
    fill_texts(&w, p, t, 100);
    world_backward(&w, p, q, 1, 1.3f);
    want_fill(qs, p);
    for (int rows = 1; rows < 50; rows += 12) {
        struct tensor few = tensor_rows(&w.logits, 0, rows);
        struct backward_req r = want_req(qs, 1, 1.3f);
        memset(qs->logp, 0, sizeof qs->logp);
        backward_score(w.f, &few, &r);
        assert_same_values(q->logp, qs->logp, 1, q->n, "scored without a backward pass");
        assert_same_values(q->entropy, qs->entropy, 1, q->n, "entropy without a backward pass");
    }
    /* and it is the log-softmax of the logits that the pass gives */
    world_run(&w, p);
    for (int i = 0; i < q->n; i++) {
        const float *x = device_host_row(&w.logits, q->idx[i]);
        double z = 0.0, lp = 0.0, h = 0.0;
        int vocab = w.m.w->arch.vocab;
        for (int c = 0; c < vocab; c++) {
            z += exp((double)x[c] / 1.3);
        }
        for (int c = 0; c < vocab; c++) {
            double l = (double)x[c] / 1.3 - log(z);
            h -= exp(l) * l;
            lp = c == q->target[i] ? l : lp;
        }
        assert_true(fabs(lp - (double)q->logp[i]) < 1e-5);
        assert_true(fabs(h - (double)q->entropy[i]) < 1e-5);
    }
    for (int k = 0; k < 3; k++) {
        text_free(t[k]);
    }
    mem_free(p);
    mem_free(q);
    mem_free(qs);
    world_close(&w);
}

/* ---- finite differences ------------------------------------------------------------------------
 */

/* J = sum of g log p + ge H over the scored tokens, in f64. */
static double objective(struct world *w, const struct pass *p, struct want *q)
{
    struct rows rows = pass_rows(p);
    struct backward_req r = want_req(q, 1, 1.0f);
    double j = 0.0;

    forward_run(w->f, &rows, p->tok, &w->kv);
    backward_score(w->f, &w->logits, &r);
    for (int i = 0; i < q->n; i++) {
        j += (double)q->g[i] * (double)q->logp[i] + (double)q->ge[i] * (double)q->entropy[i];
    }
    return j;
}

static double objective_at(struct world *w, const struct pass *p, struct want *q, struct param *m,
                           float *at, float value)
{
    float old = *at;
    double j;

    *at = value;
    if (m->view.fwd) {
        w->m.dev->ops->pack(w->m.dev, &m->w16, &m->view);
    }
    j = objective(w, p, q);
    *at = old;
    if (m->view.fwd) {
        w->m.dev->ops->pack(w->m.dev, &m->w16, &m->view);
    }
    return j;
}

/* Central differences with steps h and h/2, combined so that the error of order h^2 cancels. */
static double derivative(struct world *w, const struct pass *p, struct want *q, struct param *m,
                         float *at)
{
    const float h = 0x1p-5f;
    float x = *at;
    double d1 = objective_at(w, p, q, m, at, x + h) - objective_at(w, p, q, m, at, x - h);
    double d2 = objective_at(w, p, q, m, at, x + h / 2) - objective_at(w, p, q, m, at, x - h / 2);
    return (4.0 * d2 / (double)h - d1 / (2.0 * (double)h)) / 3.0;
}

/* Two random values of every part of a parameter, and the one with the largest gradient. */
static void check_param(struct world *w, const struct pass *p, struct want *q, int i, uint64_t *s)
{
    struct param *m = &w->m.w->params[i];
    struct tensor *grad = &w->b->grad[i];
    float *g = mem_alloc(sizeof *g * (size_t)(m->rows * m->cols));
    int picks[8], n = 0, top = 0;
    double sum = 0.0, rms;

    device_download_f32(grad, g);
    for (int k = 0; k < m->rows * m->cols; k++) {
        top = fabsf(g[k]) > fabsf(g[top]) ? k : top;
        sum += (double)g[k] * (double)g[k];
    }
    rms = sqrt(sum / (m->rows * m->cols));
    assert_true(rms > 0.0);
    picks[n++] = top;
    for (int k = 0; k < m->nparts; k++) {
        int width = m->kind == WEIGHTS_VECTOR ? 1 : m->cols;
        int span = m->kind == WEIGHTS_VECTOR && m->nparts == 1 ? m->cols : m->part[k].rows * width;
        picks[n++] = m->part[k].row0 * width + tinymodel_below(s, span);
        picks[n++] = m->part[k].row0 * width + tinymodel_below(s, span);
    }
    for (int k = 0; k < n; k++) {
        int r = picks[k] / m->cols, c = picks[k] % m->cols;
        float *at = (float *)(uintptr_t)device_host_row(&m->w16, r) + c;
        double d = derivative(w, p, q, m, at);
        /* the f32 rounding of J's terms, over h, is about 1e-4; gradients are near 1 */
        double bound = 2e-3 * (fabs((double)g[top]) > 0.1 ? fabs((double)g[top]) : 0.1);
        if (fabs(d - (double)g[picks[k]]) > bound) {
            fail_msg("%s (%d, %d): gradient %g, by differences %g (largest %g)", m->part[0].name, r,
                     c, (double)g[picks[k]], d, (double)g[top]);
        }
    }
    mem_free(g);
}

static void test_differences(void **state)
{
    static const struct tinymodel_spec small[] = {
        {"llama", 1, 2, 32, 2, 1, 32, 64, 48, 64, 0},
        {"llama", 0, 1, 32, 2, 1, 32, 64, 48, 64, 0},
        {"qwen2", 1, 1, 64, 2, 1, 32, 32, 40, 64, 0},
        {"qwen3", 0, 2, 32, 2, 2, 32, 32, 33, 64, 0},
        {"llama-bias", 1, 1, 32, 2, 1, 32, 32, 33, 64, 0},
        {"gemma2", 1, 2, 32, 2, 1, 32, 32, 40, 64, 0},
        {"gemma3", 1, 2, 32, 2, 1, 32, 32, 36, 64, 0},
        {"glm4", 0, 1, 32, 2, 1, 32, 32, 34, 64, 0},
    };
    uint64_t s = 77;

    (void)state;
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
        struct world w;
        struct text *t[2];
        struct pass *p = mem_alloc(sizeof *p);
        struct want *q = mem_alloc(sizeof *q);
        world_open(&w, tinymodel_write(&small[i]), "ref", NULL, 1, 2, 1, 16, 1, 16);
        for (int k = 0; k < 2; k++) {
            t[k] = text_new(&w, (uint64_t)(40 + k), 6 + k, k);
            pass_add(p, t[k], 0, 6 + k);
        }
        world_backward(&w, p, q, 1, 1.0f);
        for (int k = 0; k < w.m.w->nparams; k++) {
            check_param(&w, p, q, k, &s);
        }
        text_free(t[0]);
        text_free(t[1]);
        mem_free(p);
        mem_free(q);
        world_close(&w);
    }
}

/* ---- the dump for grad_parity ------------------------------------------------------------------
 */

struct dump {
    struct wfile *file;
    struct device *dev;
    struct weights *w;
    struct forward *f;
    struct backward *b;
    struct kv_store kv;
    struct tensor logits;
    struct safetensors_writer *out;
    int n, nseq, nreq;
    struct row_seq *seq;
    int32_t *tok, *pos, *pages, *idx, *target, *all;
    float *g, *logp;
};

/* Lays the sequences out as whole texts, one page list each; or as a bundle, where all go on from
 * the first. */
static int dump_layout(struct dump *d, const json_t *list, int bundle, struct err *e)
{
    size_t nseq = json_array_size(list), rows = 0;
    int page = 0, at = 0;

    for (size_t i = 0; i < nseq; i++) {
        rows += json_array_size(json_array_get(list, i));
    }
    if (!rows || rows > 1 << 20) {
        return ERR(e, STATUS_INPUT, "sequences hold %zu tokens", rows);
    }
    d->seq = mem_alloc(sizeof *d->seq * nseq);
    d->tok = mem_alloc(4 * rows);
    d->pos = mem_alloc(4 * rows);
    d->pages = mem_alloc(4 * nseq * (rows / PLAN_KV_BLOCK + 2));
    d->idx = mem_alloc(4 * rows);
    d->target = mem_alloc(4 * rows);
    d->all = mem_alloc(4 * rows);
    d->g = mem_alloc(4 * rows);
    d->logp = mem_alloc(4 * rows);
    for (size_t i = 0; i < nseq; i++) {
        const json_t *s = json_array_get(list, i);
        int len = (int)json_array_size(s), on = bundle && i > 0, pos0 = on ? d->seq[0].nrows : 0;
        d->seq[d->nseq++] = (struct row_seq){d->n, len, pos0, d->pages + at, on};
        for (int k = 0; k < pos0 / PLAN_KV_BLOCK; k++) {
            d->pages[at++] = d->pages[k];
        }
        for (int k = 0; k < len; k++) {
            json_int_t t = json_integer_value(json_array_get(s, (size_t)k));
            if (t < 0 || t >= d->w->arch.vocab || pos0 + len > d->w->positions) {
                return ERR(e, STATUS_INPUT, "sequence %zu, token %d is %lld", i, k, (long long)t);
            }
            if (k == 0 || (pos0 + k) % PLAN_KV_BLOCK == 0) {
                d->pages[at++] = page++;
            }
            if (k || on) {
                d->idx[d->nreq] = k ? d->n - 1 : pos0 - 1;
                d->target[d->nreq++] = (int32_t)t;
            }
            d->all[d->n] = d->n;
            d->pos[d->n] = pos0 + k;
            d->tok[d->n++] = (int32_t)t;
        }
    }
    for (int i = 0; i < d->nreq; i++) {
        d->g[i] = 1.0f / (float)d->nreq;
    }
    return STATUS_OK;
}

/* The gradient of one Hugging Face tensor: rows of a matrix, columns of a vector. */
static struct tensor dump_part(const struct param *p, const struct tensor *grad, int part)
{
    const struct weights_part *t = &p->part[part];
    struct tensor v = tensor_rows(grad, 0, 1);
    if (p->kind != WEIGHTS_VECTOR) {
        return tensor_rows(grad, t->row0, t->rows);
    }
    if (p->nparts > 1) {
        v.data = (char *)v.data + (size_t)t->row0 * dtype_size(v.dtype);
        v.cols = t->rows;
    }
    return v;
}

static int dump_values(struct dump *d, const struct tensor *t, struct err *e)
{
    size_t bytes = (size_t)(t->rows * t->cols) * 4;
    float *v = mem_alloc(bytes);
    int rc;
    device_download_f32(t, v);
    rc = safetensors_writer_write(d->out, v, bytes, e);
    mem_free(v);
    return rc;
}

static int dump_write(struct dump *d, const char *path, struct err *e)
{
    struct tensor logits = tensor_rows(&d->logits, 0, d->n);
    int rc = safetensors_writer_open(path, &d->out, e);

    if (rc == STATUS_OK) {
        rc = safetensors_writer_add(d->out, "logits", SAFETENSORS_F32, 2,
                                    (int64_t[]){logits.rows, logits.cols}, e);
    }
    for (int i = 0; i < d->w->nparams; i++) {
        const struct param *p = &d->w->params[i];
        for (int k = 0; rc == STATUS_OK && k < p->nparts; k++) {
            struct tensor v = dump_part(p, &d->b->grad[i], k);
            int vector = p->kind == WEIGHTS_VECTOR;
            rc = safetensors_writer_add(d->out, p->part[k].name, SAFETENSORS_F32, vector ? 1 : 2,
                                        (int64_t[]){vector ? v.cols : v.rows, v.cols}, e);
        }
    }
    if (rc == STATUS_OK) {
        rc = safetensors_writer_begin(d->out, e);
    }
    if (rc == STATUS_OK) {
        rc = dump_values(d, &logits, e);
    }
    for (int i = 0; i < d->w->nparams; i++) {
        const struct param *p = &d->w->params[i];
        for (int k = 0; rc == STATUS_OK && k < p->nparts; k++) {
            struct tensor v = dump_part(p, &d->b->grad[i], k);
            rc = dump_values(d, &v, e);
        }
    }
    if (rc == STATUS_OK) {
        rc = safetensors_writer_commit(d->out, e);
        d->out = NULL;
    }
    return rc;
}

/* All rows are one leaf: in f32 the grouping is free, and the slow device does half the work. */
static int dump_compute(struct dump *d, struct err *e)
{
    const struct arch *a = &d->w->arch;
    struct rows rows = {d->n, d->nseq, d->seq, d->pos};
    int32_t start[2] = {0, d->n}, req[2] = {0, d->nreq};
    struct leaf_rows leaves = {1, start};
    struct backward_req r = {.n = d->nreq,
                             .idx = d->idx,
                             .target = d->target,
                             .nleaf = d->nreq ? 1 : 0,
                             .leaf = req,
                             .temperature = 1.0f,
                             .logp = d->logp,
                             .g = d->g};
    const struct logit_spec spec = forward_logit_spec(a, 1.0f);
    int rc = forward_open(d->w, d->n, 1, &d->f, e);

    if (rc == STATUS_OK) {
        rc = backward_open(d->f, d->n, &d->b, e);
    }
    if (rc == STATUS_OK) {
        rc = device_kv(d->dev, &d->kv, a->n_layers, a->n_kv_heads, a->head_dim, d->n, e);
    }
    if (rc == STATUS_OK) {
        rc = device_tensor(d->dev, &d->logits, DTYPE_F32, d->n, a->vocab, e);
    }
    if (rc != STATUS_OK) {
        return rc;
    }
    forward_run(d->f, &rows, d->tok, &d->kv);
    forward_logits(d->f, d->all, d->n, &d->logits);
    d->dev->ops->logp(d->dev, &d->logits, &spec, NULL, &d->w->vocab_leaves, NULL, NULL, NULL,
                      NULL); /* a model's logits are those behind its soft cap */
    backward_logp(d->b, &r);
    backward_run(d->b, &rows, d->tok, &d->kv, &leaves, &r);
    return device_fault(d->dev, e);
}

/* tokens: {"sequences": [[id, ...], ...], "device": "ref" (float32, the default) or "cpu" (bf16),
 * "positions": longest context of the run, "bundle": true when the first is the others' prompt} */
static int dump_main(const char *model, const char *tokens, const char *out)
{
    struct dump d;
    struct plan plan;
    struct err e = {0};
    json_error_t je;
    json_t *root = json_load_file(tokens, 0, &je);
    const json_t *list = json_object_get(root, "sequences");
    const char *name = json_string_value(json_object_get(root, "device"));
    int positions = (int)json_integer_value(json_object_get(root, "positions"));
    int cpu = name && strcmp(name, "cpu") == 0;
    int rc = list ? STATUS_OK : ERR(&e, STATUS_INPUT, "%s: no sequences", tokens);

    memset(&d, 0, sizeof d);
    if (rc == STATUS_OK) {
        rc = wfile_open(model, &d.file, &e);
    }
    if (rc == STATUS_OK) {
        plan_init(&plan, weights_default_leaves(wfile_arch(d.file)), !cpu);
        rc = device_open(cpu ? "cpu" : "ref", cpu ? "auto" : NULL, 0, &plan, &d.dev, &e);
    }
    if (rc == STATUS_OK) {
        rc = weights_open(d.file, d.dev, 1, positions, &d.w, &e);
    }
    if (rc == STATUS_OK) {
        rc = dump_layout(&d, list, json_is_true(json_object_get(root, "bundle")), &e);
    }
    if (rc == STATUS_OK) {
        rc = dump_compute(&d, &e);
    }
    if (rc == STATUS_OK) {
        rc = dump_write(&d, out, &e);
    }
    if (rc != STATUS_OK) {
        fprintf(stderr, "test_forward: %s (%s)\n", e.msg, e.where);
    }
    safetensors_writer_abort(d.out);
    device_tensor_free(&d.logits);
    device_kv_free(&d.kv);
    backward_close(d.b);
    forward_close(d.f);
    weights_release(d.w);
    device_close(d.dev);
    wfile_close(d.file);
    json_decref(root);
    mem_free(d.seq);
    mem_free(d.tok);
    mem_free(d.pos);
    mem_free(d.pages);
    mem_free(d.idx);
    mem_free(d.target);
    mem_free(d.all);
    mem_free(d.g);
    mem_free(d.logp);
    return rc != STATUS_OK;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunks),    cmocka_unit_test(test_long),
        cmocka_unit_test(test_batch),     cmocka_unit_test(test_isas),
        cmocka_unit_test(test_isas_leaf), cmocka_unit_test(test_layout),
        cmocka_unit_test(test_score),     cmocka_unit_test(test_differences),
    };
    if (argc == 5 && strcmp(argv[1], "--dump") == 0) {
        return dump_main(argv[2], argv[3], argv[4]);
    }
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
