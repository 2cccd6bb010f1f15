/* Owns `miles bench model`: how near whole passes come to what the machine gives. Prefill and
 * training are held against their own products (attention's too) run one after the other with
 * nothing between them, decode of one sequence against a plain parallel read of the packed weights;
 * both sides take turns in one process. Models: the one given, and a random one of Llama-3.2-1B's
 * shape, whose training runs 16 layers over the weights of 2 to save memory (the products are the
 * same). */
#include <stdio.h>
#include <string.h>

#include "base/conf.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/thread.h"
#include "cli/bench.h"
#include "cli/bench_peer.h"
#include "cli/bench_prof.h"
#include "cli/bench_rand.h"
#include "cli/bench_read.h"
#include "cli/cmd.h"
#include "cli/onednn.h"
#include "model/backward.h"
#include "model/wfile.h"
#include "train/trainer.h"

#define MODEL_ROWS   2048 /* tokens of a training pass, and the longest sequence */
#define MODEL_SHARED 2    /* layers that the random model's 16 share when it trains */
#define MODEL_LOGITS ((int64_t)512 << 20)

struct model_opts {
    char *hf_checkpoint, *isa;
    int64_t threads, rounds, seconds, batch, length;
    int what, run;
    int only_given;
};

enum { MODEL_LIMITS, MODEL_TRAIN, MODEL_PREFILL };
enum { MODEL_ALL, MODEL_ONLY_PREFILL, MODEL_ONLY_TRAIN, MODEL_ONLY_DECODE };

#define O(f) offsetof(struct model_opts, f)
static const struct conf_opt model_table[] = {
    {"hf-checkpoint", CONF_STR, NULL, NULL, "model: a Hugging Face folder or a GGUF file",
     O(hf_checkpoint), "model", NULL},
    {"only-given", CONF_SWITCH, NULL, NULL, "leave the random 1B model out", O(only_given), "model",
     NULL},
    {"run", CONF_CHOICE, "limits", "limits|train|prefill",
     "limits: shares of the machine's limits; train, prefill: tokens per second of one step",
     O(run), "work", NULL},
    {"pass", CONF_CHOICE, "all", "all|prefill|train|decode", "which passes limits measures",
     O(what), "work", NULL},
    {"batch", CONF_INT, "8", "[1,4096]", "sequences of a step (train, prefill)", O(batch), "work",
     NULL},
    {"length", CONF_INT, "256", "[2,32768]", "tokens of a sequence (train, prefill)", O(length),
     "work", NULL},
    {"rounds", CONF_INT, "3", "[1,1000]", "turns of each side at least", O(rounds), "work", NULL},
    {"seconds", CONF_INT, "8", "[0,100000]", "measure each pass at least so long", O(seconds),
     "work", NULL},
    {"threads", CONF_INT, "0", "[0,4096]", "0 takes all cores", O(threads), "machine", NULL},
    {"isa", CONF_STR, "auto", NULL, "auto, scalar, avx2, avx512 or amx", O(isa), "machine", NULL},
    {0}};

static const char model_1b[] =
    "{\"model_type\": \"llama\", \"hidden_size\": 2048, \"num_hidden_layers\": 16,"
    " \"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"head_dim\": 64,"
    " \"intermediate_size\": 8192, \"vocab_size\": 128256, \"max_position_embeddings\": 131072,"
    " \"rms_norm_eps\": 1e-05, \"rope_theta\": 500000.0, \"hidden_act\": \"silu\","
    " \"tie_word_embeddings\": true, \"bos_token_id\": 128000, \"eos_token_id\": 128001}";

/* ---- a model and the rows of a pass ------------------------------------------------------------
 */

struct model {
    const struct model_opts *o;
    struct onednn *peer; /* NULL: our own products alone make the limit */
    const char *name;
    struct wfile *file; /* NULL: random */
    struct arch arch;
    struct device *dev;
    struct weights *w;
    struct forward *f;
    struct backward *b;
    struct kv_store kv;
    struct tensor logits;
    double rate; /* best speed of a product so far */
    /* rows */
    int n, nseq, nleaf, nreq;
    int32_t *tok, *pos, *pages, *idx, *target, *leaf;
    struct row_seq *seq;
    float *logp, *g;
};

static int model_device(struct model *m, struct err *e)
{
    struct plan plan;
    plan_init(&plan, weights_default_leaves(&m->arch), 0);
    return device_open("cpu", m->o->isa, (int)m->o->threads, &plan, &m->dev, e);
}

/* `shared` layers of weights stand for all of the model's: w->layers points at them again and
 * again. */
static void model_repeat(struct weights *w, int layers)
{
    int have = w->arch.n_layers;
    struct weights_layer *l = mem_alloc(sizeof *l * (size_t)layers);
    for (int i = 0; i < layers; i++) {
        l[i] = w->layers[i % have];
    }
    mem_free(w->layers);
    w->layers = l;
    w->arch.n_layers = layers;
}

static int model_weights(struct model *m, int trainable, int positions, struct err *e)
{
    struct arch a = m->arch;
    int rc;
    if (m->file) {
        return weights_open(m->file, m->dev, trainable, positions, &m->w, e);
    }
    if (trainable) {
        a.n_layers = MODEL_SHARED;
    }
    rc = bench_rand_weights(&a, 1, m->dev, trainable, positions, &m->w, e);
    if (rc == STATUS_OK && trainable) {
        model_repeat(m->w, m->arch.n_layers);
    }
    return rc;
}

static void model_arrays(struct model *m, int rows)
{
    size_t n = (size_t)rows + 1;
    m->tok = mem_alloc(4 * n);
    m->pos = mem_alloc(4 * n);
    m->pages = mem_alloc(4 * n);
    m->idx = mem_alloc(4 * n);
    m->target = mem_alloc(4 * n);
    m->leaf = mem_alloc(4 * n);
    m->logp = mem_alloc(4 * n);
    m->g = mem_alloc(4 * n);
    m->seq = mem_alloc(sizeof *m->seq * n);
}

static int model_logit_rows(const struct model *m, int rows)
{
    int64_t n = MODEL_LOGITS / ((int64_t)m->arch.vocab * 4);
    n = n < PLAN_LEAF ? PLAN_LEAF : n;
    return (int)(n < rows ? n : rows);
}

/* Weights, activations of up to `rows` rows and pages for them. */
static int model_open(struct model *m, int trainable, int rows, struct err *e)
{
    const struct arch *a = &m->arch;
    int rc = model_device(m, e);
    if (rc == STATUS_OK) {
        rc = model_weights(m, trainable, MODEL_ROWS + 64, e);
    }
    if (rc == STATUS_OK) {
        rc = forward_open(m->w, rows, trainable, &m->f, e);
    }
    if (rc == STATUS_OK && trainable) {
        rc = backward_open(m->f, model_logit_rows(m, rows), &m->b, e);
    }
    if (rc == STATUS_OK) {
        rc = device_kv(m->dev, &m->kv, a->n_layers, a->n_kv_heads, a->head_dim,
                       rows / PLAN_KV_BLOCK + 8 + (int)m->o->batch, e);
    }
    if (rc == STATUS_OK) {
        rc = device_tensor(m->dev, &m->logits, DTYPE_F32, m->o->batch, a->vocab, e);
    }
    model_arrays(m, rows);
    return rc;
}

static void model_close(struct model *m)
{
    device_tensor_free(&m->logits);
    device_kv_free(&m->kv);
    backward_close(m->b);
    forward_close(m->f);
    weights_release(m->w);
    device_close(m->dev);
    mem_free(m->tok);
    mem_free(m->pos);
    mem_free(m->pages);
    mem_free(m->idx);
    mem_free(m->target);
    mem_free(m->leaf);
    mem_free(m->logp);
    mem_free(m->g);
    mem_free(m->seq);
    m->b = NULL;
    m->f = NULL;
    m->w = NULL;
    m->dev = NULL;
}

/* `nseq` sequences of `len` random tokens; every token but a sequence's first is scored. */
static void model_rows(struct model *m, int nseq, int len)
{
    uint64_t s = 7;
    int page = 0;
    m->n = m->nseq = m->nleaf = m->nreq = 0;
    for (int q = 0; q < nseq; q++) {
        m->seq[m->nseq++] = (struct row_seq){m->n, len, 0, m->pages + page, 0};
        for (int i = 0; i < len; i++) {
            if (i % PLAN_KV_BLOCK == 0) {
                m->pages[page] = page;
                page++;
            }
            if (i % PLAN_LEAF == 0) {
                m->leaf[m->nleaf++] = m->n;
            }
            m->tok[m->n] = bench_rand_below(&s, m->arch.vocab);
            m->pos[m->n] = i;
            m->idx[m->nreq] = m->n;
            m->target[m->nreq] = bench_rand_below(&s, m->arch.vocab);
            m->g[m->nreq++] = bench_rand_value(&s) * 1e-3f;
            m->n++;
        }
    }
    m->leaf[m->nleaf] = m->n;
}

/* ---- passes ------------------------------------------------------------------------------------
 */

static void model_prefill(struct model *m)
{
    struct rows rows = {m->n, m->nseq, m->seq, m->pos};
    int32_t last[4096];
    for (int i = 0; i < m->nseq; i++) {
        last[i] = m->seq[i].row0 + m->seq[i].nrows - 1;
    }
    forward_run(m->f, &rows, m->tok, &m->kv);
    forward_logits(m->f, last, m->nseq, &m->logits);
}

/* One token after `len` others. */
static void model_decode(struct model *m, int len)
{
    struct row_seq seq = {0, 1, len, m->pages, 0};
    int32_t pos = len, tok = m->tok[0], row = 0;
    struct rows rows = {1, 1, &seq, &pos};
    forward_run(m->f, &rows, &tok, &m->kv);
    forward_logits(m->f, &row, 1, &m->logits);
}

static void model_train(struct model *m)
{
    struct rows rows = {m->n, m->nseq, m->seq, m->pos};
    struct leaf_rows leaves = {m->nleaf, m->leaf};
    struct backward_req r = {.n = m->nreq,
                             .idx = m->idx,
                             .target = m->target,
                             .nleaf = m->nleaf,
                             .leaf = m->leaf,
                             .temperature = 1.0f,
                             .logp = m->logp,
                             .g = m->g};
    forward_run(m->f, &rows, m->tok, &m->kv);
    backward_logp(m->b, &r);
    backward_run(m->b, &rows, m->tok, &m->kv, &leaves, &r);
}

/* ---- reading memory ----------------------------------------------------------------------------
 */

/* Bytes of the packed weights that one decode step reads, and the time of reading them plainly. */
struct model_bytes {
    double bytes, best;
    int rounds;
    double *part; /* shortest time of each weight */
};

static void model_read_one(struct model *m, struct model_bytes *b, int i, const struct param *p)
{
    double t0 = bench_now(), t;
    bench_read(m->dev->pool, p->view.fwd, p->view.fwd_size);
    t = bench_now() - t0;
    if (b->rounds == 0 || t < b->part[i]) {
        b->part[i] = t;
    }
    if (b->rounds == 0) {
        b->bytes += (double)p->view.fwd_size;
    }
}

static void model_read_all(struct model *m, struct model_bytes *b)
{
    int n = 0;
    if (!b->part) {
        b->part = mem_alloc(sizeof *b->part * (size_t)(4 * m->arch.n_layers + 1));
    }
    for (int i = 0; i < m->arch.n_layers; i++) {
        const struct weights_layer *l = &m->w->layers[i];
        model_read_one(m, b, n++, l->qkv.w);
        model_read_one(m, b, n++, l->o.w);
        model_read_one(m, b, n++, l->gate_up.w);
        model_read_one(m, b, n++, l->down.w);
    }
    model_read_one(m, b, n++, m->w->lm_head.w);
    b->rounds++;
    b->best = 0.0;
    for (int i = 0; i < n; i++) {
        b->best += b->part[i];
    }
}

/* ---- shares of the limits ----------------------------------------------------------------------
 */

struct model_shares {
    double prefill, train, decode;
};

static void share_take(double *worst, double share)
{
    if (*worst <= 0.0 || share < *worst) {
        *worst = share;
    }
}

static int model_more(const struct model *m, int round, double t0)
{
    return round < (int)m->o->rounds || bench_now() - t0 < (double)m->o->seconds;
}

/* The table of a pass; gives its share of the limit. */
static double model_print(struct model *m, struct bench_prof *p, const char *pass, int len,
                          double limit, double read)
{
    char title[128];
    double share = limit / bench_prof_seconds(p), rate = bench_prof_rate(p);
    m->rate = rate > m->rate ? rate : m->rate;
    snprintf(title, sizeof title, "%s, %s %d tokens", m->name, pass, len);
    bench_prof_print(p, title, m->rate, read);
    printf("%s: limit %.2f ms, share %.3f", title, limit * 1e3, share);
    if (bench_prof_attn_seconds(p) > 0.0) {
        double less = limit - bench_prof_attn_seconds(p);
        printf(" (without attention's products: %.2f ms, %.3f)", less * 1e3,
               less / bench_prof_seconds(p));
    }
    printf("\n");
    fflush(stdout);
    return share;
}

/* Products of the output layer that were computed a second time are no part of the limit. */
static void model_once(struct model *m, struct bench_prof *p)
{
    bench_prof_once(p, &m->w->lm_head.w->view, m->nreq);
}

/* Rounds of a pass, of its products alone and of the same products by oneDNN. */
static double model_rounds(struct model *m, void (*pass)(struct model *m), const char *name,
                           int len, double read)
{
    struct bench_prof p;
    struct bench_peer *peer = NULL;
    double t0, share;

    bench_prof_init(&p, m->dev);
    p.by_kind = 1;
    pass(m);
    t0 = bench_now();
    for (int i = 0; model_more(m, i, t0); i++) {
        if (m->b) {
            backward_zero(m->b);
        }
        bench_prof_begin(&p);
        pass(m);
        bench_prof_end(&p);
        bench_prof_bare(&p);
        if (m->peer && !peer) {
            peer = bench_peer_new(m->peer, &p);
        }
        if (peer) {
            bench_peer_round(peer);
        }
    }
    model_once(m, &p);
    if (peer) {
        bench_peer_apply(peer, &p);
    }
    share = model_print(m, &p, name, len, bench_prof_bare_seconds(&p), read);
    bench_peer_free(peer);
    bench_prof_fini(&p);
    return share;
}

static void model_share_prefill(struct model *m, int len, double read, struct model_shares *s)
{
    model_rows(m, 1, len);
    share_take(&s->prefill, model_rounds(m, model_prefill, "prefill of", len, read));
}

static void model_share_train(struct model *m, int len, double read, struct model_shares *s)
{
    model_rows(m, MODEL_ROWS / len, len);
    share_take(&s->train, model_rounds(m, model_train, "training, sequences of", len, read));
}

static void model_share_decode(struct model *m, int len, double read, struct model_shares *s)
{
    struct bench_prof p;
    struct model_bytes b = {0};
    double t0;
    bench_prof_init(&p, m->dev);
    model_rows(m, 1, len);
    m->pages[len / PLAN_KV_BLOCK] = len / PLAN_KV_BLOCK;
    model_prefill(m);
    t0 = bench_now();
    for (int i = 0; model_more(m, i, t0); i++) {
        bench_prof_begin(&p);
        model_decode(m, len);
        bench_prof_end(&p);
        model_read_all(m, &b);
    }
    share_take(&s->decode, model_print(m, &p, "decode after", len, b.best, read));
    printf("weights: %.1f MB, read in %.2f ms, %.1f GB/s\n", b.bytes * 1e-6, b.best * 1e3,
           b.bytes / b.best * 1e-9);
    bench_prof_fini(&p);
    mem_free(b.part);
}

/* Speed of reading all packed weights, in bytes per second. */
static double model_read_speed(struct model *m)
{
    struct model_bytes b = {0};
    double speed;
    for (int i = 0; i < 5; i++) {
        model_read_all(m, &b);
    }
    speed = b.bytes / b.best;
    mem_free(b.part);
    return speed;
}

static int model_shares(struct model *m, struct model_shares *s, struct err *e)
{
    static const int lengths[] = {256, MODEL_ROWS};
    int what = m->o->what, rc = STATUS_OK;
    double read = 0.0;

    if (what != MODEL_ONLY_TRAIN) {
        rc = model_open(m, 0, MODEL_ROWS, e);
        for (int i = 0; rc == STATUS_OK && i < 2; i++) {
            read = read > 0.0 ? read : model_read_speed(m);
            if (what == MODEL_ALL || what == MODEL_ONLY_PREFILL) {
                model_share_prefill(m, lengths[i], read, s);
            }
            if (what == MODEL_ALL || what == MODEL_ONLY_DECODE) {
                model_share_decode(m, lengths[i], read, s);
            }
        }
        model_close(m);
    }
    if (rc == STATUS_OK && (what == MODEL_ALL || what == MODEL_ONLY_TRAIN)) {
        rc = model_open(m, 1, MODEL_ROWS, e);
        for (int i = 0; rc == STATUS_OK && i < 2; i++) {
            model_share_train(m, lengths[i], model_read_speed(m), s);
        }
        if (rc == STATUS_OK) {
            rc = device_fault(m->dev, e);
        }
        model_close(m);
    }
    return rc;
}

/* ---- tokens per second -------------------------------------------------------------------------
 */

static int model_step_prefill(struct model *m, double *best, struct err *e)
{
    int rows = (int)(m->o->batch * m->o->length);
    int rc = model_open(m, 0, rows, e);
    if (rc == STATUS_OK) {
        model_rows(m, (int)m->o->batch, (int)m->o->length);
        model_prefill(m);
        for (int i = 0; i < (int)m->o->rounds; i++) {
            double t0 = bench_now(), t;
            model_prefill(m);
            t = bench_now() - t0;
            *best = i == 0 || t < *best ? t : *best;
        }
    }
    model_close(m);
    return rc;
}

/* Forward, cross-entropy of every token after a sequence's first, backward, AdamW. */
static int model_step_train(struct model *m, double *best, struct err *e)
{
    int batch = (int)m->o->batch, len = (int)m->o->length;
    struct trainer_opts to = {
        .max_tokens = batch * len, .max_len = len, .temperature = 1.0f, .loss = {.type = LOSS_SFT}};
    const struct optim_hyper h = {1e-6, 0.9, 0.999, 1e-8, 0.01, 0.0};
    struct train_sample *s = mem_alloc(sizeof *s * (size_t)batch);
    int32_t *tok = mem_alloc(sizeof *tok * (size_t)(batch * len));
    struct trainer *t = NULL;
    uint64_t seed = 7;
    int rc = model_device(m, e);

    if (rc == STATUS_OK) {
        rc = model_weights(m, 1, len, e);
    }
    if (rc == STATUS_OK) {
        rc = trainer_open(m->w, &to, &t, e);
    }
    for (int i = 0; i < batch * len; i++) {
        tok[i] = bench_rand_below(&seed, m->arch.vocab);
    }
    for (int i = 0; i < batch; i++) {
        s[i].tokens = tok + i * len;
        s[i].prompt = 1;
        s[i].response = len - 1;
        s[i].rollout = i;
    }
    for (int i = 0; rc == STATUS_OK && i <= (int)m->o->rounds; i++) {
        struct trainer_report r;
        double t0 = bench_now(), dt;
        rc = trainer_step(t, s, batch, &h, &r, e);
        dt = bench_now() - t0;
        if (i > 0 && rc == STATUS_OK) {
            *best = i == 1 || dt < *best ? dt : *best;
            printf("step %.4f s: forward %.3f, backward %.3f, optimizer %.3f\n", dt, r.forward_s,
                   r.backward_s, r.optim_s);
        }
    }
    trainer_close(t);
    mem_free(tok);
    mem_free(s);
    model_close(m);
    return rc;
}

/* ---- the command -------------------------------------------------------------------------------
 */

static int model_limits(struct model *m, struct err *e)
{
    struct model_shares s = {0};
    const struct model_opts *o = m->o;
    int rc = STATUS_OK;

    if (m->file) {
        m->name = o->hf_checkpoint;
        rc = model_shares(m, &s, e);
    }
    if (rc == STATUS_OK && !o->only_given) {
        struct model big = {.o = o, .peer = m->peer, .name = "random 1B"};
        rc = arch_parse(model_1b, &big.arch, e);
        if (rc == STATUS_OK) {
            rc = model_shares(&big, &s, e);
        }
    }
    if (rc == STATUS_OK) {
        printf("\nprefill_of_limit=%.3f train_of_limit=%.3f decode1_of_limit=%.3f\n", s.prefill,
               s.train, s.decode);
    }
    return rc;
}

static int model_run(const void *opts, struct err *e)
{
    const struct model_opts *o = opts;
    struct model m = {.o = o, .name = "random 1B"};
    double best = 0.0;
    int rc = arch_parse(model_1b, &m.arch, e);

    if (rc == STATUS_OK && o->hf_checkpoint) {
        rc = wfile_open(o->hf_checkpoint, &m.file, e);
        if (rc == STATUS_OK) {
            m.arch = *wfile_arch(m.file);
            m.name = o->hf_checkpoint;
        }
    }
    if (rc == STATUS_OK && o->run == MODEL_LIMITS) {
        struct err why = {0};
        bench_pin(o->threads > 0 ? (int)o->threads : pool_cores());
        if (onednn_open(NULL, &m.peer, &why) != STATUS_OK) {
            fprintf(stderr, "miles: the limits are those of our own products: %s\n", why.msg);
        }
        rc = model_limits(&m, e);
        onednn_close(m.peer);
    } else if (rc == STATUS_OK) {
        rc = o->run == MODEL_TRAIN ? model_step_train(&m, &best, e)
                                   : model_step_prefill(&m, &best, e);
        if (rc == STATUS_OK) {
            printf("%s_s=%.4f %s_tok_s=%.1f\n", o->run == MODEL_TRAIN ? "train" : "prefill", best,
                   o->run == MODEL_TRAIN ? "train" : "prefill",
                   (double)(o->batch * o->length) / best);
        }
    }
    wfile_close(m.file);
    return rc;
}

int bench_model(int argc, char **argv)
{
    struct model_opts o;
    return bench_main(argc, argv, model_table, &o, model_run);
}
