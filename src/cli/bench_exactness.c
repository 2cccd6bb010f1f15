/* Owns `miles bench exactness`: contracts C1 and C4 tried on random cases. For each family a tiny
 * random model and a dozen texts; the reference device computes each text alone and whole, once:
 * hidden states, logits, log-probs, entropies, and the gradient of every parameter. A case then
 * runs some of the texts in one random way: instruction set, threads, emulated tensor-parallel
 * ranks, mix of sequences, chunks from one token (decode) to all (prefill), pages in any order, and
 * for gradients micro-batches, their order and the room for logits. Everything must have the
 * reference's bits. A gradient must be the integer sum of the gradients of its texts. A text is
 * learned from as a whole, or as a bundle: what follows its prompt is cut into responses that all
 * go on from it.
 *
 * A case is a function of the seed and its number alone, and is run again alone by
 * --seed S --case I. */
#include <stdio.h>
#include <string.h>

#include "base/conf.h"
#include "base/mem.h"
#include "base/status.h"
#include "cli/bench.h"
#include "cli/bench_rand.h"
#include "cli/bench_tp.h"
#include "cli/cmd.h"
#include "model/backward.h"

#define EXACT_LEAVES 8    /* R */
#define EXACT_ROWS   640  /* of a pass with gradients */
#define EXACT_LONG   1090 /* one text crosses an attention segment */
#define EXACT_PAGES  128
#define EXACT_SHOWN  20 /* mismatches printed */
#define EXACT_KEEPS  3  /* ways of recomputing: enum forward_recompute */
#define EXACT_PARTS  3  /* responses of a bundle */

static const int exact_len[] = {1, 2, 5, 31, 33, 64, 65, 100, 129, 260, EXACT_LONG};
#define EXACT_TEXTS ((int)(sizeof exact_len / sizeof exact_len[0]))
#define EXACT_GRADS (EXACT_TEXTS - 1) /* texts that gradients are taken of (and no lone token) */

/* A family as its config.json says it; windows are shorter than the texts. */
static const struct {
    const char *name, *config;
} exact_family[] = {
    {"llama", "\"model_type\": \"llama\", \"num_key_value_heads\": 4, \"hidden_act\": \"silu\","
              " \"tie_word_embeddings\": true"},
    {"llama3", "\"model_type\": \"llama\", \"num_key_value_heads\": 2, \"hidden_act\": \"silu\","
               " \"tie_word_embeddings\": false, \"attention_bias\": true, \"mlp_bias\": true,"
               " \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0,"
               " \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0,"
               " \"original_max_position_embeddings\": 64}"},
    {"qwen2", "\"model_type\": \"qwen2\", \"num_key_value_heads\": 2, \"hidden_act\": \"silu\","
              " \"rope_theta\": 1000000.0, \"tie_word_embeddings\": false"},
    {"qwen3", "\"model_type\": \"qwen3\", \"num_key_value_heads\": 8, \"hidden_act\": \"silu\","
              " \"rope_theta\": 1000000.0, \"tie_word_embeddings\": true"},
    {"mistral", "\"model_type\": \"mistral\", \"num_key_value_heads\": 4, \"hidden_act\": \"silu\","
                " \"tie_word_embeddings\": false, \"sliding_window\": 37"},
    {"gemma2", "\"model_type\": \"gemma2\", \"num_key_value_heads\": 4,"
               " \"hidden_activation\": \"gelu_pytorch_tanh\", \"tie_word_embeddings\": true,"
               " \"sliding_window\": 70, \"attn_logit_softcapping\": 2.5,"
               " \"final_logit_softcapping\": 3.0, \"query_pre_attn_scalar\": 48"},
    {"gemma3", "\"model_type\": \"gemma3_text\", \"num_key_value_heads\": 2,"
               " \"hidden_activation\": \"gelu_pytorch_tanh\", \"tie_word_embeddings\": true,"
               " \"sliding_window\": 70, \"sliding_window_pattern\": 2,"
               " \"query_pre_attn_scalar\": 24"},
    {"glm4", "\"model_type\": \"glm4\", \"num_key_value_heads\": 8, \"hidden_act\": \"silu\","
             " \"tie_word_embeddings\": false"},
};
#define EXACT_FAMILIES ((int)(sizeof exact_family / sizeof exact_family[0]))

static const char exact_shape[] =
    "\"hidden_size\": 64, \"num_hidden_layers\": 2, \"num_attention_heads\": 8, \"head_dim\": 32,"
    " \"intermediate_size\": 288, \"vocab_size\": 263, \"max_position_embeddings\": 2048,"
    " \"rms_norm_eps\": 1e-05, \"bos_token_id\": 1, \"eos_token_id\": 2";

struct exact_opts {
    int64_t seed, cases, one;
    char *family;
};

#define O(f) offsetof(struct exact_opts, f)
static const struct conf_opt exact_table[] = {
    {"seed", CONF_INT, "1", "[0,9223372036854775807]", "of the random cases", O(seed), "cases",
     NULL},
    {"cases", CONF_INT, "2000", "[1,100000000]", "how many", O(cases), "cases", NULL},
    {"case", CONF_INT, "-1", "[-1,100000000]", "run this one alone; -1 runs all", O(one), "cases",
     NULL},
    {"family", CONF_STR, NULL, NULL, "only this family", O(family), "cases", NULL},
    {0}};

/* ---- texts and what the reference says of them -------------------------------------------------
 */

/* What is learned from a text: as a whole (0), or as a bundle (1). */
struct exact_learned {
    int known;             /* the reference ran */
    float *logp, *entropy; /* (len) */
    int64_t *grads;        /* every parameter, one after the other */
};

struct exact_text {
    int len, prompt; /* tokens from `prompt` on are scored */
    int known;       /* the reference ran */
    int32_t *tok;
    float *g, *ge;    /* (len) loss gradients of position i's token */
    uint16_t *hidden; /* (len, H) */
    float *logits;    /* (len, V) */
    struct exact_learned learned[2];
};

/* A model on a device with what passes need. */
struct exact_world {
    struct device *dev;
    struct weights *w;
    struct forward *f;                  /* without what gradients need */
    struct forward *keeps[EXACT_KEEPS]; /* with it, or part of it */
    struct backward *bs[EXACT_KEEPS];
    struct forward *keep; /* those of the case */
    struct backward *b;
    struct kv_store kv;
    struct tensor logits;
};

struct exact {
    const struct exact_opts *o;
    struct arch arch;
    int family;
    struct exact_text text[EXACT_TEXTS];
    struct exact_world ref, plain, now;
    struct bench_tp *tp[PLAN_MAX_LEAVES + 1];
    int64_t count; /* parameters */
    int64_t *sum;  /* expected gradient */
    int64_t bad;   /* mismatched cases */
    int shown;
    /* the case under way */
    int64_t at;
    char what[160];
    int differs;
};

static int world_open(struct exact *x, struct exact_world *w, const char *device, const char *isa,
                      int threads, int leaves, struct err *e)
{
    const struct arch *a = &x->arch;
    struct plan plan;
    int rc;

    plan_init(&plan, leaves, 0);
    rc = device_open(device, isa, threads, &plan, &w->dev, e);
    if (rc == STATUS_OK) {
        /* transposes are packed, or made when they are needed */
        rc = bench_rand_weights(a, (uint64_t)x->family + 1, w->dev,
                                WEIGHTS_TRAIN | (threads == 3 ? WEIGHTS_NO_TRANSPOSES : 0),
                                EXACT_LONG + 64, &w->w, e);
    }
    if (rc == STATUS_OK) {
        rc = forward_open(w->w, EXACT_LONG, 0, &w->f, e);
    }
    for (int i = 0; i < EXACT_KEEPS; i++) {
        if (rc == STATUS_OK) {
            rc = forward_open_recompute(w->w, EXACT_ROWS, (enum forward_recompute)i, 0,
                                        &w->keeps[i], e);
        }
        if (rc == STATUS_OK) {
            rc = backward_open(w->keeps[i], EXACT_ROWS, &w->bs[i], e);
        }
    }
    w->keep = w->keeps[0];
    w->b = w->bs[0];
    if (rc == STATUS_OK) {
        rc = device_kv(w->dev, &w->kv, a->n_layers, a->n_kv_heads, a->head_dim, EXACT_PAGES, e);
    }
    if (rc == STATUS_OK) {
        rc = device_tensor(w->dev, &w->logits, DTYPE_F32, EXACT_LONG, a->vocab, e);
    }
    return rc;
}

static void world_close(struct exact_world *w)
{
    device_tensor_free(&w->logits);
    device_kv_free(&w->kv);
    for (int i = 0; i < EXACT_KEEPS; i++) {
        backward_close(w->bs[i]);
        forward_close(w->keeps[i]);
    }
    forward_close(w->f);
    weights_release(w->w);
    device_close(w->dev);
    memset(w, 0, sizeof *w);
}

static void texts_new(struct exact *x)
{
    uint64_t s = 1234567u + (uint64_t)x->family;
    for (int i = 0; i < EXACT_TEXTS; i++) {
        struct exact_text *t = &x->text[i];
        size_t n = (size_t)exact_len[i];
        memset(t, 0, sizeof *t);
        t->len = exact_len[i];
        t->prompt = 1 + bench_rand_below(&s, t->len > 2 ? t->len / 2 : 1);
        t->tok = mem_alloc(4 * n);
        t->g = mem_alloc(4 * n);
        t->ge = mem_alloc(4 * n);
        for (int k = 0; k < 2; k++) {
            t->learned[k].logp = mem_alloc(4 * n);
            t->learned[k].entropy = mem_alloc(4 * n);
        }
        t->hidden = mem_alloc(2 * n * (size_t)x->arch.hidden);
        t->logits = mem_alloc(4 * n * (size_t)x->arch.vocab);
        for (int k = 0; k < t->len; k++) {
            t->tok[k] = bench_rand_below(&s, x->arch.vocab);
            t->g[k] = bench_rand_value(&s);
            t->ge[k] = i % 3 == 0 ? 0.01f * bench_rand_value(&s) : 0.0f;
        }
    }
}

static void texts_free(struct exact *x)
{
    for (int i = 0; i < EXACT_TEXTS; i++) {
        struct exact_text *t = &x->text[i];
        mem_free(t->tok);
        mem_free(t->g);
        mem_free(t->ge);
        for (int k = 0; k < 2; k++) {
            mem_free(t->learned[k].logp);
            mem_free(t->learned[k].entropy);
            mem_free(t->learned[k].grads);
        }
        mem_free(t->hidden);
        mem_free(t->logits);
        memset(t, 0, sizeof *t);
    }
}

/* ---- a pass ------------------------------------------------------------------------------------
 */

struct exact_pass {
    int n, nseq, nleaf, nreq, nreq_leaf, ntext;
    struct row_seq seq[EXACT_TEXTS * (EXACT_PARTS + 1)];
    int who[EXACT_TEXTS], bundled[EXACT_TEXTS]; /* the texts of the pass */
    int32_t pages[EXACT_TEXTS][(EXACT_LONG + 63) / 64 + 1];
    int32_t own[EXACT_TEXTS][EXACT_PARTS][EXACT_ROWS / 64 + 1]; /* of a bundle's responses */
    int32_t tok[EXACT_LONG], pos[EXACT_LONG], row_text[EXACT_LONG];
    int32_t leaf[EXACT_LONG + 1], idx[EXACT_LONG], target[EXACT_LONG], req_leaf[EXACT_LONG + 1];
    float logp[EXACT_LONG], entropy[EXACT_LONG], g[EXACT_LONG], ge[EXACT_LONG];
};

static void pass_clear(struct exact_pass *p)
{
    p->n = p->nseq = p->nleaf = p->nreq = p->nreq_leaf = p->ntext = 0;
}

/* One of a text's tokens that are scored, which row `row` predicts; `at`: see pass_add. */
static void pass_request(struct exact_pass *p, const struct exact_text *t, int k, int row, int at)
{
    if (at == t->prompt - 1 || at % PLAN_LEAF == 0) {
        p->req_leaf[p->nreq_leaf++] = p->nreq;
    }
    p->idx[p->nreq] = row;
    p->target[p->nreq] = t->tok[k];
    p->g[p->nreq] = t->g[k];
    p->ge[p->nreq++] = t->ge[k];
}

/* Tokens [from, from + n) of text i as rows at positions from `pos` on. */
static void pass_rows(struct exact_pass *p, const struct exact *x, int i, int from, int n, int pos,
                      const int32_t *pages, int base)
{
    p->seq[p->nseq++] = (struct row_seq){p->n, n, pos, pages, base};
    for (int k = 0; k < n; k++, p->n++) {
        p->tok[p->n] = x->text[i].tok[from + k];
        p->pos[p->n] = pos + k;
        p->row_text[p->n] = i;
    }
}

/* Leaves of the rows from row0 on; all that was added is whole. */
static void pass_leaves(struct exact_pass *p, int row0)
{
    for (int r = row0; r < p->n; r += PLAN_LEAF) {
        p->leaf[p->nleaf++] = r;
    }
    p->leaf[p->nleaf] = p->n;
    p->req_leaf[p->nreq_leaf] = p->nreq;
}

/* Where response q of a text as a bundle begins; its end is where the next one does. */
static int part_start(const struct exact_text *t, int q)
{
    int rest = t->len - t->prompt;
    return t->prompt + (q == 0 ? 0 : q == 1 ? rest / 2 : q == 2 ? rest / 2 + rest / 4 : rest);
}

/* Text i as a bundle. */
static void pass_add_bundle(struct exact_pass *p, const struct exact *x, int i)
{
    const struct exact_text *t = &x->text[i];
    int row0 = p->n, base = p->nseq + 1, at = t->prompt - 1;

    p->bundled[p->ntext] = 1;
    p->who[p->ntext++] = i;
    pass_rows(p, x, i, 0, t->prompt, 0, p->pages[i], 0);
    for (int q = 0; q < EXACT_PARTS; q++) {
        int from = part_start(t, q), n = part_start(t, q + 1) - from, own = p->n;
        if (n) {
            pass_rows(p, x, i, from, n, t->prompt, p->own[i][q], base);
        }
        for (int k = 0; k < n; k++, at++) {
            pass_request(p, t, from + k, k ? own + k - 1 : row0 + t->prompt - 1, at);
        }
    }
    pass_leaves(p, row0);
}

/* Rows [from, from + n) of text i; with a whole text also its leaves and scored tokens. */
static void pass_add(struct exact_pass *p, const struct exact *x, int i, int from, int n)
{
    const struct exact_text *t = &x->text[i];
    int row0 = p->n;

    p->bundled[p->ntext] = 0;
    p->who[p->ntext++] = i;
    pass_rows(p, x, i, from, n, from, p->pages[i], 0);
    for (int k = t->prompt; from == 0 && n == t->len && k < t->len; k++) {
        pass_request(p, t, k, row0 + k - 1, k - 1);
    }
    pass_leaves(p, row0);
}

/* Deals the pages out in the order given, or in a random one. */
static void pass_pages(struct exact_pass *p, const struct exact *x, uint64_t *s)
{
    int order[EXACT_PAGES], next = 0;
    for (int i = 0; i < EXACT_PAGES; i++) {
        order[i] = i;
    }
    for (int i = EXACT_PAGES - 1; s && i > 0; i--) {
        int k = bench_rand_below(s, i + 1), v = order[i];
        order[i] = order[k];
        order[k] = v;
    }
    for (int i = 0; i < EXACT_TEXTS; i++) {
        for (int k = 0; k * PLAN_KV_BLOCK < x->text[i].len; k++) {
            p->pages[i][k] = order[next++ % EXACT_PAGES];
        }
    }
    for (int i = 0; i < EXACT_GRADS * EXACT_PARTS; i++) {
        const struct exact_text *t = &x->text[i / EXACT_PARTS];
        int q = i % EXACT_PARTS, end = t->prompt + part_start(t, q + 1) - part_start(t, q);
        for (int k = 0; k * PLAN_KV_BLOCK < end; k++) {
            p->own[i / EXACT_PARTS][q][k] = k < t->prompt / PLAN_KV_BLOCK
                                                ? p->pages[i / EXACT_PARTS][k]
                                                : order[next++ % EXACT_PAGES];
        }
    }
    ASSERT(next <= EXACT_PAGES);
}

static void pass_forward(struct exact_world *w, struct forward *f, struct exact_pass *p)
{
    struct rows rows = {p->n, p->nseq, p->seq, p->pos};
    forward_run(f, &rows, p->tok, &w->kv);
}

static void pass_backward(struct exact_world *w, struct exact_pass *p)
{
    struct rows rows = {p->n, p->nseq, p->seq, p->pos};
    struct leaf_rows leaves = {p->nleaf, p->leaf};
    struct backward_req r = {.n = p->nreq,
                             .idx = p->idx,
                             .target = p->target,
                             .nleaf = p->nreq_leaf,
                             .leaf = p->req_leaf,
                             .temperature = 0.9f,
                             .logp = p->logp,
                             .entropy = p->entropy,
                             .g = p->g,
                             .ge = p->ge};
    backward_logp(w->b, &r);
    backward_run(w->b, &rows, p->tok, &w->kv, &leaves, &r);
}

/* ---- the reference -----------------------------------------------------------------------------
 */

static int ref_open(struct exact *x, struct err *e)
{
    int rc = STATUS_OK;
    if (!x->ref.dev) {
        rc = world_open(x, &x->ref, "ref", NULL, 0, EXACT_LEAVES, e);
        if (rc == STATUS_OK) {
            rc = world_open(x, &x->plain, "cpu", "scalar", 1, EXACT_LEAVES, e);
        }
        if (rc == STATUS_OK) {
            x->count = weights_count(x->ref.w);
            x->sum = mem_alloc(sizeof *x->sum * (size_t)x->count);
        }
    }
    return rc;
}

static void grads_copy(const struct exact_world *w, int64_t *out)
{
    for (int i = 0; i < w->w->nparams; i++) {
        const struct tensor *t = &w->b->grad[i];
        for (int64_t r = 0; r < t->rows; r++, out += t->cols) {
            memcpy(out, device_host_row(t, r), sizeof *out * (size_t)t->cols);
        }
    }
}

static void ref_text(struct exact *x, int i)
{
    struct exact_text *t = &x->text[i];
    struct exact_world *w = t->len < EXACT_LONG ? &x->ref : &x->plain;
    struct exact_pass *p;
    int32_t *all;

    if (t->known) {
        return;
    }
    p = mem_alloc(sizeof *p);
    all = mem_alloc(sizeof *all * (size_t)t->len);
    pass_pages(p, x, NULL);
    pass_clear(p);
    pass_add(p, x, i, 0, t->len);
    pass_forward(w, w->f, p);
    for (int r = 0; r < t->len; r++) {
        all[r] = r;
        memcpy(t->hidden + r * x->arch.hidden, device_host_row(&w->f->hidden, r),
               2 * (size_t)x->arch.hidden);
    }
    forward_logits(w->f, all, t->len, &w->logits);
    for (int r = 0; r < t->len; r++) {
        memcpy(t->logits + r * x->arch.vocab, device_host_row(&w->logits, r),
               4 * (size_t)x->arch.vocab);
    }
    t->known = 1;
    mem_free(all);
    mem_free(p);
}

/* Adds text i to the pass, in one of the ways to learn from it. */
static void pass_add_learned(struct exact_pass *p, const struct exact *x, int i, int bundled)
{
    if (bundled) {
        pass_add_bundle(p, x, i);
    } else {
        pass_add(p, x, i, 0, x->text[i].len);
    }
}

static const struct exact_learned *ref_learned(struct exact *x, int i, int bundled)
{
    struct exact_learned *t = &x->text[i].learned[bundled];
    struct exact_world *w = &x->ref;
    struct exact_pass *p;

    if (t->known) {
        return t;
    }
    p = mem_alloc(sizeof *p);
    pass_pages(p, x, NULL);
    pass_clear(p);
    pass_add_learned(p, x, i, bundled);
    backward_zero(w->b);
    pass_forward(w, w->keep, p);
    pass_backward(w, p);
    memcpy(t->logp, p->logp, 4 * (size_t)p->nreq);
    memcpy(t->entropy, p->entropy, 4 * (size_t)p->nreq);
    t->grads = mem_alloc(sizeof *t->grads * (size_t)x->count);
    grads_copy(w, t->grads);
    t->known = 1;
    mem_free(p);
    return t;
}

/* ---- comparing ---------------------------------------------------------------------------------
 */

static void case_differs(struct exact *x, const char *what, int text, int64_t at)
{
    if (!x->differs++ && x->shown < EXACT_SHOWN) {
        x->shown++;
        printf("mismatch: --seed %lld --case %lld%s%s: %s: %s, text %d, at %lld\n",
               (long long)x->o->seed, (long long)x->at, x->o->family ? " --family " : "",
               x->o->family ? x->o->family : "", x->what, what, text, (long long)at);
        fflush(stdout);
    }
}

static void compare_hidden(struct exact *x, const struct exact_pass *p, const struct forward *f)
{
    for (int r = 0; r < p->n; r++) {
        const struct exact_text *t = &x->text[p->row_text[r]];
        if (memcmp(t->hidden + p->pos[r] * x->arch.hidden, device_host_row(&f->hidden, r),
                   2 * (size_t)x->arch.hidden) != 0) {
            case_differs(x, "hidden state", p->row_text[r], p->pos[r]);
        }
    }
}

static void compare_logits(struct exact *x, struct exact_world *w, struct forward *f,
                           const struct exact_pass *p, uint64_t *s)
{
    int32_t idx[EXACT_LONG];
    int n = 0, some = bench_rand_below(s, 3);
    for (int r = 0; r < p->n; r++) {
        if (some == 0 || bench_rand_below(s, 1 + some * 4) == 0) {
            idx[n++] = r;
        }
    }
    for (int i = n - 1; i > 0; i--) {
        int k = bench_rand_below(s, i + 1), v = idx[i];
        idx[i] = idx[k];
        idx[k] = v;
    }
    if (!n) {
        return;
    }
    forward_logits(f, idx, n, &w->logits);
    for (int i = 0; i < n; i++) {
        int r = idx[i];
        const struct exact_text *t = &x->text[p->row_text[r]];
        if (memcmp(t->logits + p->pos[r] * x->arch.vocab, device_host_row(&w->logits, i),
                   4 * (size_t)x->arch.vocab) != 0) {
            case_differs(x, "logits", p->row_text[r], p->pos[r]);
        }
    }
}

static void compare_logp(struct exact *x, const struct exact_pass *p)
{
    int at = 0;
    for (int q = 0; q < p->ntext; q++) {
        const struct exact_text *t = &x->text[p->who[q]];
        const struct exact_learned *want = &t->learned[p->bundled[q]];
        size_t n = t->len > t->prompt ? (size_t)(t->len - t->prompt) : 0;
        if (memcmp(want->logp, p->logp + at, 4 * n) != 0) {
            case_differs(x, p->bundled[q] ? "log-probs of a bundle" : "log-probs", p->who[q], 0);
        }
        if (memcmp(want->entropy, p->entropy + at, 4 * n) != 0) {
            case_differs(x, p->bundled[q] ? "entropies of a bundle" : "entropies", p->who[q], 0);
        }
        at += (int)n;
    }
}

static void compare_grads(struct exact *x, struct exact_world *w)
{
    const int64_t *want = x->sum;
    for (int i = 0; i < w->w->nparams; i++) {
        struct tensor *t = &w->b->grad[i];
        int64_t from = want - x->sum;
        int bad = 0;
        device_settle(t); /* a case may have had nothing to learn from */
        for (int64_t r = 0; r < t->rows; r++, want += t->cols) {
            bad |= memcmp(want, device_host_row(t, r), sizeof *want * (size_t)t->cols) != 0;
        }
        if (bad) {
            case_differs(x, w->w->params[i].part[0].name, -1, from);
        }
    }
}

/* ---- a case ------------------------------------------------------------------------------------
 */

struct exact_case {
    int64_t number;
    int family, isa, threads, ranks, keep;
    uint64_t s; /* the generator after these were drawn */
};

static const char *const exact_isa[] = {"scalar", "avx2", "avx512", "amx"};

static struct exact_case case_draw(const struct exact_opts *o, int64_t number, const int *families,
                                   int n)
{
    static const int odds[] = {0, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3};
    struct exact_case c = {.number = number};
    c.s = (uint64_t)o->seed * 0x9e3779b97f4a7c15ull + (uint64_t)number * 0xd1b54a32d192ed03ull + 1;
    c.family = families[bench_rand_below(&c.s, n)];
    do {
        c.isa = odds[bench_rand_below(&c.s, 16)];
    } while (!device_has_isa(exact_isa[c.isa]));
    c.threads = 1 + bench_rand_below(&c.s, 3);
    c.ranks = 1 << bench_rand_below(&c.s, 4);
    c.keep = bench_rand_below(&c.s, EXACT_KEEPS);
    return c;
}

/* Texts of a case in a random order; few of them are long. */
static int case_texts(uint64_t *s, int limit, int *pick)
{
    int order[EXACT_TEXTS], n = 0, want = 1 + bench_rand_below(s, 6);
    for (int i = 0; i < limit; i++) {
        order[i] = i;
    }
    for (int i = limit - 1; i > 0; i--) {
        int k = bench_rand_below(s, i + 1), v = order[i];
        order[i] = order[k];
        order[k] = v;
    }
    for (int i = 0; i < limit && n < want; i++) {
        if (exact_len[order[i]] < EXACT_LONG || bench_rand_below(s, 4) == 0) {
            pick[n++] = order[i];
        }
    }
    return n;
}

/* Advances the texts chunk by chunk until all are done. */
static void case_forward(struct exact *x, uint64_t *s)
{
    struct exact_world *w = &x->now;
    struct exact_pass *p = mem_alloc(sizeof *p);
    int pick[EXACT_TEXTS], done[EXACT_TEXTS] = {0}, n = case_texts(s, EXACT_TEXTS, pick), left = n;
    int style = bench_rand_below(s, 3); /* 0: small chunks, 1: large ones, 2: whole texts */

    pass_pages(p, x, s);
    for (int i = 0; i < n; i++) {
        ref_text(x, pick[i]);
    }
    while (left) {
        struct forward *f;
        int turn = bench_rand_below(s, n);
        pass_clear(p);
        for (int i = 0; i < n; i++) {
            int k = (i + turn) % n, rest = x->text[pick[k]].len - done[k], chunk;
            if (!rest || (p->n && bench_rand_below(s, 3) == 0)) {
                continue;
            }
            chunk = style == 2 ? rest
                               : 1 + bench_rand_below(s, style       ? rest
                                                         : rest < 70 ? rest
                                                                     : 70);
            if (style < 2 && bench_rand_below(s, 3) == 0 && rest < 70) {
                chunk = 1;
            }
            if (p->n + chunk > EXACT_LONG) {
                continue;
            }
            pass_add(p, x, pick[k], done[k], chunk);
            done[k] += chunk;
            left -= done[k] == x->text[pick[k]].len;
        }
        f = p->n <= EXACT_ROWS && bench_rand_below(s, 2) ? w->keep : w->f;
        pass_forward(w, f, p);
        compare_hidden(x, p, f);
        compare_logits(x, w, f, p, s);
    }
    mem_free(p);
}

/* Gradients of some texts, in micro-batches. */
static void case_backward(struct exact *x, uint64_t *s)
{
    struct exact_world *w = &x->now;
    struct exact_pass *p = mem_alloc(sizeof *p);
    int pick[EXACT_TEXTS], n = case_texts(s, EXACT_GRADS, pick), i = 0;
    int cap = 1 + bench_rand_below(s, EXACT_ROWS);

    memset(x->sum, 0, sizeof *x->sum * (size_t)x->count);
    backward_zero(w->b);
    w->b->logit_rows = PLAN_LEAF + bench_rand_below(s, EXACT_ROWS - PLAN_LEAF + 1);
    while (i < n) {
        pass_clear(p);
        pass_pages(p, x, s);
        for (; i < n; i++) {
            const struct exact_text *t = &x->text[pick[i]];
            const int64_t *grads;
            int bundled;
            if (t->len == 1) {
                continue;
            }
            if (p->n && p->n + t->len > cap) {
                break;
            }
            bundled = bench_rand_below(s, 2);
            grads = ref_learned(x, pick[i], bundled)->grads;
            for (int64_t k = 0; k < x->count; k++) {
                x->sum[k] += grads[k];
            }
            pass_add_learned(p, x, pick[i], bundled);
        }
        if (p->n) {
            pass_forward(w, w->keep, p);
            pass_backward(w, p);
            compare_logp(x, p);
        }
    }
    compare_grads(x, w);
    w->b->logit_rows = EXACT_ROWS;
    mem_free(p);
}

static int case_run(struct exact *x, struct exact_case *c, struct err *e)
{
    struct exact_world *w = &x->now;
    struct bench_tp *t = NULL;

    x->at = c->number;
    x->differs = 0;
    snprintf(x->what, sizeof x->what, "%s, %s, %d threads, %d ranks, recompute %d",
             exact_family[c->family].name, exact_isa[c->isa], c->threads, c->ranks, c->keep);
    w->keep = w->keeps[c->keep];
    w->b = w->bs[c->keep];
    /* what is read before it is written shows */
    memset(w->kv.data, 0xff, w->kv.size);
    if (c->ranks > 1) {
        if (!x->tp[c->ranks]) {
            x->tp[c->ranks] = bench_tp_new(w->w, c->ranks, &w->kv);
        }
        t = x->tp[c->ranks];
        bench_tp_poison(t);
        bench_tp_on(t, w->b->grad);
    }
    case_forward(x, &c->s);
    if (bench_rand_below(&c->s, 2)) {
        case_backward(x, &c->s);
    }
    if (t && bench_tp_off(t)) {
        case_differs(x, "sums over the vocabulary", -1, 0);
    }
    x->bad += x->differs != 0;
    return device_fault(w->dev, e);
}

/* ---- all cases ---------------------------------------------------------------------------------
 */

static void now_close(struct exact *x)
{
    for (int i = 0; i <= PLAN_MAX_LEAVES; i++) {
        bench_tp_free(x->tp[i]);
        x->tp[i] = NULL;
    }
    world_close(&x->now);
}

static int family_arch(int family, struct arch *a, struct err *e)
{
    char text[2048];
    int n = snprintf(text, sizeof text, "{%s, %s}", exact_shape, exact_family[family].config);
    ASSERT(n > 0 && n < (int)sizeof text);
    return arch_parse(text, a, e);
}

static void family_close(struct exact *x)
{
    texts_free(x);
    world_close(&x->ref);
    world_close(&x->plain);
    mem_free(x->sum);
    x->sum = NULL;
}

/* The comparison itself must be able to fail: another number of leaves is another result. */
static int family_check(struct exact *x, struct err *e)
{
    struct exact_case c = {.number = -1, .family = x->family, .threads = 1, .ranks = 1, .s = 99};
    int shown = x->shown, rc = world_open(x, &x->now, "cpu", "auto", 1, 1, e);

    x->shown = EXACT_SHOWN;
    x->differs = 0;
    /* a few short texts may round alike */
    for (int i = 0; rc == STATUS_OK && !x->differs && i < 12; i++) {
        rc = case_run(x, &c, e);
        c.s++;
    }
    if (rc == STATUS_OK && !x->differs) {
        rc = ERR(e, STATUS_FAIL,
                 "%s: one leaf and %d leaves gave the same bits: the cases prove "
                 "nothing",
                 exact_family[x->family].name, EXACT_LEAVES);
    }
    x->bad = 0;
    x->shown = shown;
    now_close(x);
    return rc;
}

/* Runs the cases of one family, those of one device together. */
static int family_run(struct exact *x, struct exact_case *c, int64_t n, struct err *e)
{
    int64_t bad = x->bad;
    int rc = ref_open(x, e);

    texts_new(x);
    if (rc == STATUS_OK) {
        rc = family_check(x, e);
        x->bad = bad;
    }
    for (int isa = 0; isa < 4; isa++) {
        for (int threads = 1; threads <= 3; threads++) {
            int open = 0;
            for (int64_t i = 0; rc == STATUS_OK && i < n; i++) {
                if (c[i].family != x->family || c[i].isa != isa || c[i].threads != threads) {
                    continue;
                }
                if (!open) {
                    rc = world_open(x, &x->now, "cpu", exact_isa[isa], threads, EXACT_LEAVES, e);
                    open = 1;
                }
                if (rc == STATUS_OK) {
                    rc = case_run(x, &c[i], e);
                }
            }
            now_close(x);
        }
    }
    family_close(x);
    return rc;
}

static int exact_run(const void *opts, struct err *e)
{
    const struct exact_opts *o = opts;
    int families[EXACT_FAMILIES], nf = 0, rc = STATUS_OK;
    int64_t n = o->one >= 0 ? 1 : o->cases, ran = 0;
    struct exact_case *c = mem_alloc(sizeof *c * (size_t)n);
    struct exact *x = mem_alloc(sizeof *x);

    x->o = o;
    for (int i = 0; i < EXACT_FAMILIES; i++) {
        if (!o->family || strcmp(o->family, exact_family[i].name) == 0) {
            families[nf++] = i;
        }
    }
    if (!nf) {
        rc = ERR(e, STATUS_INPUT, "--family %s: there is no such family", o->family);
    }
    for (int64_t i = 0; nf && i < n; i++) {
        c[i] = case_draw(o, o->one >= 0 ? o->one : i, families, nf);
    }
    for (int i = 0; rc == STATUS_OK && i < nf; i++) {
        int64_t mine = 0;
        double t0 = bench_now();
        for (int64_t k = 0; k < n; k++) {
            mine += c[k].family == families[i];
        }
        if (!mine) {
            continue;
        }
        x->family = families[i];
        rc = family_arch(x->family, &x->arch, e);
        if (rc == STATUS_OK) {
            rc = family_run(x, c, n, e);
        }
        ran += mine;
        if (rc == STATUS_OK) {
            printf("%s: %lld cases, %.1f s\n", exact_family[x->family].name, (long long)mine,
                   bench_now() - t0);
            fflush(stdout);
        }
    }
    if (rc == STATUS_OK) {
        printf("cases=%lld mismatched=%lld\n", (long long)ran, (long long)x->bad);
        rc = x->bad ? ERR(e, STATUS_NUMERIC, "%lld cases differ", (long long)x->bad) : STATUS_OK;
    }
    mem_free(c);
    mem_free(x);
    return rc;
}

int bench_exactness(int argc, char **argv)
{
    struct exact_opts o;
    return bench_main(argc, argv, exact_table, &o, exact_run);
}
