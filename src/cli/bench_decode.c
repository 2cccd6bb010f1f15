/* Owns `miles bench decode`: how fast the engine samples, with 1, 8, 32 and 128 sequences at once,
 * and how near that is to what the machine gives. A turn is one call of the engine for so many
 * prompts, text in and text out, the model loaded before. Its limit is the work that no engine can
 * leave out, done bare and as often as the turn does it: the weights read once a step (one
 * sequence) or the products of all layers (more), and the keys and values read. Turns and limits
 * alternate, because the speed of a shared machine wanders.
 *
 * With --stdin turns are asked for on standard input, one line each, so that another program's
 * turns can lie between them (bench/decode_peer.py):
 *
 *     turn N SEED      -> turn batch=N tokens=... prompt_tokens=... seconds=...
 *     limit N          -> limit batch=N seconds=...           of the last turn of N sequences
 *     profile N        -> a table of a turn by operation, then: profile batch=N seconds=... */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/conf.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/thread.h"
#include "cli/bench.h"
#include "cli/bench_prof.h"
#include "cli/bench_read.h"
#include "cli/genmodel.h"
#include "model/weights.h"

#define DECODE_MOST    256                /* sequences at once */
#define DECODE_CONTEXT 2048               /* tokens of a sequence */
#define DECODE_KV      ((int64_t)4 << 30) /* bytes of keys and values */
#define DECODE_CHUNK   512                /* prompt rows of a step */
#define DECODE_ROUNDS  64

struct decode_opts {
    struct genmodel_opts model;
    char *prompts;
    int64_t max_tokens, rounds;
    int lines;
};

#define O(f) offsetof(struct decode_opts, f)
static const struct conf_opt decode_table[] = {
    {"hf-checkpoint", CONF_STR, NULL, NULL, "model: a Hugging Face folder or a GGUF file",
     O(model.hf_checkpoint), "model", NULL},
    {"prompts", CONF_STR, NULL, NULL,
     "file of questions, one JSON string a line; unset: a question about clips sold to N friends",
     O(prompts), "work", NULL},
    {"max-tokens", CONF_INT, "128", "[2,1024]", "new tokens of each sequence", O(max_tokens),
     "work", NULL},
    {"rounds", CONF_INT, "3", "[1,64]", "turns of each size", O(rounds), "work", NULL},
    {"stdin", CONF_SWITCH, NULL, NULL, "take turns as standard input says, one line each", O(lines),
     "work", NULL},
    {"threads", CONF_INT, "0", "[0,4096]", "0 takes all cores", O(model.threads), "machine", NULL},
    {"isa", CONF_STR, "auto", NULL, "auto, scalar, avx2, avx512 or amx", O(model.isa), "machine",
     NULL},
    {0}};

struct decode {
    const struct decode_opts *o;
    struct genmodel m;
    json_t *questions[DECODE_MOST];
    int nquestions;
    /* of the last turn of n sequences */
    struct decode_work {
        int64_t prompt_rows; /* computed, those that give a first token too */
        int64_t prompt_tokens;
    } work[DECODE_MOST + 1];
    struct tensor x, y, logits; /* inputs and outputs of bare products */
    void *kv;                   /* as many bytes as the keys and values of a turn have */
    size_t kv_size;
};

/* ---- a turn ------------------------------------------------------------------------------------
 */

static int decode_submit(struct decode *d, int i, uint64_t seed, struct err *e)
{
    struct engine_group q;
    int32_t *ids = NULL;
    int rc;

    memset(&q, 0, sizeof q);
    rc = promptenc_encode(&d->m.enc, d->questions[i % d->nquestions], NULL, &ids, &q.ntokens, e);
    if (rc == STATUS_OK) {
        q.id = i;
        q.tokens = ids;
        q.n = 1;
        q.max_new = (int)d->o->max_tokens;
        q.sampling.temperature = 1.0f;
        q.sampling.top_p = 1.0f;
        q.sampling.top_k = -1;
        q.ignore_eos = 1;
        q.key.seed = seed;
        q.key.sample = (uint64_t)i;
        rc = engine_submit(d->m.engine, &q, e);
    }
    mem_free(ids);
    return rc;
}

static int decode_results(struct decode *d, int64_t *tokens, int64_t *prompt, struct err *e)
{
    struct engine_result r;
    int rc = STATUS_OK;
    while (rc == STATUS_OK && engine_take(d->m.engine, &r)) {
        char *text = NULL;
        rc = promptenc_decode(&d->m.enc, r.tokens, r.ntokens, 1, &text, e);
        mem_free(text);
        *tokens += r.ntokens;
        *prompt += r.prompt_tokens;
    }
    return rc;
}

/* The engine knows nothing of earlier turns' prompts. */
static int decode_turn(struct decode *d, int n, uint64_t seed, double *seconds, int64_t *tokens,
                       struct err *e)
{
    struct engine_stats before, after;
    int64_t prompt = 0;
    double t0;
    int rc = STATUS_OK;

    *tokens = 0;
    engine_flush(d->m.engine);
    engine_get_stats(d->m.engine, &before);
    t0 = bench_now();
    for (int i = 0; rc == STATUS_OK && i < n; i++) {
        rc = decode_submit(d, i, seed, e);
    }
    while (rc == STATUS_OK && engine_busy(d->m.engine)) {
        rc = engine_step(d->m.engine, e);
        if (rc == STATUS_OK) {
            rc = decode_results(d, tokens, &prompt, e);
        }
    }
    *seconds = bench_now() - t0;
    engine_get_stats(d->m.engine, &after);
    d->work[n].prompt_rows = after.prompt_rows - before.prompt_rows + n;
    d->work[n].prompt_tokens = prompt;
    return rc;
}

/* ---- its limit ---------------------------------------------------------------------------------
 */

static void decode_product(struct decode *d, const struct param *p, int rows, struct tensor *y)
{
    struct device *dev = d->m.dev;
    struct tensor a = tensor_rows(&d->x, 0, rows), c = tensor_rows(y, 0, rows);
    a.cols = p->cols;
    a.ld = (p->cols + 31) / 32 * 32;
    c.cols = p->rows;
    c.ld = (p->rows + 31) / 32 * 32;
    dev->ops->linear(dev, &a, &p->view, NULL, NULL, &c);
}

/* The layers' products for so many rows; with none, a plain read of the weights. */
static void decode_layers(struct decode *d, int rows)
{
    const struct weights *w = d->m.w;
    for (int i = 0; i < w->arch.n_layers; i++) {
        const struct weights_layer *l = &w->layers[i];
        const struct param *p[] = {l->qkv.w, l->o.w, l->gate_up.w, l->down.w};
        for (int k = 0; k < 4; k++) {
            if (rows) {
                decode_product(d, p[k], rows, &d->y);
            } else {
                bench_read(d->m.dev->pool, p[k]->view.fwd, p[k]->view.fwd_size);
            }
        }
    }
}

static void decode_head(struct decode *d, int rows)
{
    const struct param *p = d->m.w->lm_head.w;
    if (rows) {
        decode_product(d, p, rows, &d->logits);
    } else {
        bench_read(d->m.dev->pool, p->view.fwd, p->view.fwd_size);
    }
}

static int decode_kv_room(struct decode *d, size_t size, struct err *e)
{
    if (d->kv_size >= size) {
        return STATUS_OK;
    }
    mem_unmap(d->kv, d->kv_size);
    d->kv_size = 0;
    d->kv = mem_map(size);
    if (!d->kv) {
        return ERR(e, STATUS_NOMEM, "no memory for %zu bytes of keys and values", size);
    }
    d->kv_size = size;
    memset(d->kv, 1, size);
    return STATUS_OK;
}

static int decode_limit(struct decode *d, int n, double *seconds, struct err *e)
{
    const struct arch *a = &d->m.w->arch;
    const struct decode_work *work = &d->work[n];
    size_t token =
        device_kv_page_bytes(d->m.dev, a->n_layers, a->n_kv_heads, a->head_dim) / PLAN_KV_BLOCK;
    size_t most = (size_t)(work->prompt_tokens + n * d->o->max_tokens) * token;
    int rows = n > 1 ? n : 0, rc = decode_kv_room(d, most, e);
    double t0;

    if (rc == STATUS_OK && !work->prompt_rows) {
        rc = ERR(e, STATUS_INPUT, "no turn of %d sequences came before its limit", n);
    }
    if (rc != STATUS_OK) {
        return rc;
    }
    t0 = bench_now();
    for (int64_t left = work->prompt_rows; left > 0; left -= DECODE_CHUNK) {
        decode_layers(d, (int)(left < DECODE_CHUNK ? left : DECODE_CHUNK));
    }
    decode_head(d, rows);
    for (int64_t i = 1; i < d->o->max_tokens; i++) {
        decode_layers(d, rows);
        decode_head(d, rows);
        bench_read(d->m.dev->pool, d->kv, (size_t)(work->prompt_tokens + n * i) * token);
    }
    *seconds = bench_now() - t0;
    return STATUS_OK;
}

/* ---- where a turn's time goes ------------------------------------------------------------------
 */

static int decode_profile(struct decode *d, int n, double *seconds, struct err *e)
{
    struct bench_prof p;
    int64_t tokens;
    char title[64];
    int rc;

    bench_prof_init(&p, d->m.dev);
    bench_prof_begin(&p);
    rc = decode_turn(d, n, 1, seconds, &tokens, e);
    bench_prof_end(&p);
    snprintf(title, sizeof title, "%d sequences, %" PRId64 " tokens", n, tokens);
    bench_prof_print(&p, title, 0.0, 1e30);
    bench_prof_fini(&p);
    return rc;
}

/* ---- opening -----------------------------------------------------------------------------------
 */

static int decode_questions(struct decode *d, struct err *e)
{
    FILE *f = NULL;
    char line[65536];

    if (!d->o->prompts) {
        for (int i = 0; i < DECODE_MOST; i++) {
            d->questions[d->nquestions++] =
                json_sprintf("Natalia sold clips to %d of her friends in April, and then she sold "
                             "half as many clips in May. How many clips did Natalia sell "
                             "altogether in April and May?",
                             40 + i);
        }
        return STATUS_OK;
    }
    f = fopen(d->o->prompts, "re");
    if (!f) {
        return ERR(e, STATUS_IO, "cannot open %s", d->o->prompts);
    }
    while (d->nquestions < DECODE_MOST && fgets(line, sizeof line, f)) {
        json_t *q = json_loads(line, JSON_DECODE_ANY, NULL);
        if (!json_is_string(q)) {
            json_decref(q);
            fclose(f);
            return ERR(e, STATUS_INPUT, "%s line %d is not a JSON string", d->o->prompts,
                       d->nquestions + 1);
        }
        d->questions[d->nquestions++] = q;
    }
    fclose(f);
    return d->nquestions ? STATUS_OK : ERR(e, STATUS_INPUT, "%s has no lines", d->o->prompts);
}

static int64_t decode_widest(const struct weights *w, int rows)
{
    int64_t n = 0;
    for (int i = 0; i < w->arch.n_layers; i++) {
        const struct weights_layer *l = &w->layers[i];
        const struct param *p[] = {l->qkv.w, l->o.w, l->gate_up.w, l->down.w, w->lm_head.w};
        for (int k = 0; k < 5; k++) {
            int64_t wide = rows && k < 4 ? p[k]->rows : p[k]->cols;
            n = wide > n ? wide : n;
        }
    }
    return n;
}

static int decode_open(struct decode *d, struct err *e)
{
    struct engine_opts eo = {.max_running = DECODE_MOST,
                             .max_context = DECODE_CONTEXT,
                             .kv_bytes = DECODE_KV,
                             .chunk = DECODE_CHUNK};
    struct genmodel_opts mo = d->o->model;
    int rc = decode_questions(d, e);

    mo.device = "cpu";
    bench_pin(mo.threads > 0 ? (int)mo.threads : pool_cores());
    if (rc == STATUS_OK) {
        rc = genmodel_open(&d->m, &mo, &eo, 1, e);
    }
    if (rc == STATUS_OK) {
        rc = device_tensor(d->m.dev, &d->x, DTYPE_BF16, DECODE_CHUNK, decode_widest(d->m.w, 0), e);
    }
    if (rc == STATUS_OK) {
        rc = device_tensor(d->m.dev, &d->y, DTYPE_BF16, DECODE_CHUNK, decode_widest(d->m.w, 1), e);
    }
    if (rc == STATUS_OK) {
        rc = device_tensor(d->m.dev, &d->logits, DTYPE_F32, DECODE_MOST, d->m.w->arch.vocab, e);
    }
    return rc;
}

static void decode_close(struct decode *d)
{
    mem_unmap(d->kv, d->kv_size);
    device_tensor_free(&d->x);
    device_tensor_free(&d->y);
    device_tensor_free(&d->logits);
    genmodel_close(&d->m);
    for (int i = 0; i < d->nquestions; i++) {
        json_decref(d->questions[i]);
    }
}

/* ---- the command -------------------------------------------------------------------------------
 */

static int decode_line(struct decode *d, const char *line, struct err *e)
{
    char what[16];
    int n, rc;
    uint64_t seed = 1;
    double seconds;
    int64_t tokens;
    int given = sscanf(line, "%15s %d %" SCNu64, what, &n, &seed);

    if (given < 2 || n < 1 || n > DECODE_MOST) {
        return ERR(e, STATUS_INPUT, "a line must be turn N SEED, limit N or profile N: %s", line);
    }
    if (strcmp(what, "turn") == 0) {
        rc = decode_turn(d, n, seed, &seconds, &tokens, e);
        if (rc == STATUS_OK) {
            printf("turn batch=%d tokens=%" PRId64 " prompt_tokens=%" PRId64 " seconds=%.6f\n", n,
                   tokens, d->work[n].prompt_tokens, seconds);
        }
    } else if (strcmp(what, "limit") == 0 || strcmp(what, "profile") == 0) {
        rc = what[0] == 'l' ? decode_limit(d, n, &seconds, e) : decode_profile(d, n, &seconds, e);
        if (rc == STATUS_OK) {
            printf("%s batch=%d seconds=%.6f\n", what, n, seconds);
        }
    } else {
        rc = ERR(e, STATUS_INPUT, "unknown turn: %s", what);
    }
    fflush(stdout);
    return rc;
}

static int decode_lines(struct decode *d, struct err *e)
{
    char line[256];
    int rc = STATUS_OK;
    printf("ready isa=%s\n", d->m.dev->isa);
    fflush(stdout);
    while (rc == STATUS_OK && fgets(line, sizeof line, stdin)) {
        rc = decode_line(d, line, e);
    }
    return rc;
}

static int decode_order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double decode_median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, decode_order);
    return n % 2 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
}

static int decode_rounds(struct decode *d, struct err *e)
{
    static const int batch[] = {1, 8, 32, 128};
    double speed[4], share[4];
    int rc = STATUS_OK;

    for (int b = 0; rc == STATUS_OK && b < 4; b++) {
        double s[DECODE_ROUNDS], r[DECODE_ROUNDS];
        int rounds = (int)d->o->rounds;
        for (int i = 0; rc == STATUS_OK && i <= rounds; i++) { /* the first warms up */
            double mine = 0.0, bare = 0.0;
            int64_t tokens = 0;
            rc = decode_turn(d, batch[b], (uint64_t)i, &mine, &tokens, e);
            if (rc == STATUS_OK) {
                rc = decode_limit(d, batch[b], &bare, e);
            }
            if (i > 0) {
                s[i - 1] = (double)tokens / mine;
                r[i - 1] = bare / mine;
                printf("%4d sequences: %.1f tok/s, limit %.1f, share %.3f\n", batch[b], s[i - 1],
                       (double)tokens / bare, r[i - 1]);
                fflush(stdout);
            }
        }
        speed[b] = decode_median(s, rounds);
        share[b] = decode_median(r, rounds);
    }
    if (rc == STATUS_OK) {
        printf("limit_share_b1=%.3f b8=%.3f b32=%.3f b128=%.3f\n", share[0], share[1], share[2],
               share[3]);
        printf("decode_tok_s_b1=%.1f b8=%.1f b32=%.1f b128=%.1f\n", speed[0], speed[1], speed[2],
               speed[3]);
    }
    return rc;
}

static int decode_run(const void *opts, struct err *e)
{
    const struct decode_opts *o = opts;
    struct decode *d = mem_alloc(sizeof *d);
    int rc;

    d->o = o;
    rc = o->model.hf_checkpoint ? decode_open(d, e)
                                : ERR(e, STATUS_INPUT, "--hf-checkpoint is needed");
    if (rc == STATUS_OK) {
        rc = o->lines ? decode_lines(d, e) : decode_rounds(d, e);
    }
    decode_close(d);
    mem_free(d);
    return rc;
}

int bench_decode(int argc, char **argv)
{
    struct decode_opts o;
    memset(&o, 0, sizeof o);
    return bench_main(argc, argv, decode_table, &o, decode_run);
}
