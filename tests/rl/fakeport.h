/* Ports, a tokenizer, a world and a data file for the tests of rl/ that need no model.
 *
 *     struct fakeport f;
 *     fakeport_open(&f, 3);                 answers come in an order drawn from seed 3
 *     ... &f.rollout, &f.train, &f.world, &f.enc ...
 *     fakeport_close(&f);
 *
 * An answer is a pure function of the prompt, the seed, the stream and the sample's number, as with
 * the real engine; which answer comes next is not. The trainer's "weights" are a digest of
 * everything it was ever given, so that two runs that trained the same things in the same order
 * have equal digests, and no others. */
#ifndef TESTS_RL_FAKEPORT_H
#define TESTS_RL_FAKEPORT_H

#include "support.h"

#include <unistd.h>

#include "base/buf.h"
#include "base/fsio.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "base/status.h"
#include "base/world.h"
#include "rl/port.h"
#include "rl/promptenc.h"
#include "text/tokenizer.h"
#include "train/trainer.h"

/* ---- a scratch folder ---- */

static char fakeport_dir[64];

static inline int fakeport_setup(void **state)
{
    (void)state;
    log_set_level(LOG_ERROR);
    /* files are synced when written: in memory that costs nothing */
    strcpy(fakeport_dir, "/dev/shm/miles-test-rl-XXXXXX");
    if (mkdtemp(fakeport_dir)) {
        return 0;
    }
    strcpy(fakeport_dir, "/tmp/miles-test-rl-XXXXXX");
    return mkdtemp(fakeport_dir) ? 0 : -1;
}

static inline int fakeport_teardown(void **state)
{
    (void)state;
    return fsio_remove_tree(fakeport_dir, NULL);
}

static inline const char *fakeport_path(const char *name)
{
    static char path[16][256];
    static int next;
    next = (next + 1) % 16;
    snprintf(path[next], sizeof path[next], "%s/%s", fakeport_dir, name);
    return path[next];
}

static inline void fakeport_text(const char *name, const char *text)
{
    struct err e = {0};
    assert_ok(fsio_write_atomic(fakeport_path(name), text, strlen(text), &e), &e);
}

/* ---- a tokenizer of digits and small letters ---- */

/* Ids 0-9 digits, 10-35 letters, 36 the blank, 37 the end token. */
enum { FAKEPORT_VOCAB = 38, FAKEPORT_END = 37 };

/* Its tokenizer.json. */
static inline void fakeport_tokenizer_json(struct buf *b)
{
    buf_init(b, 1 << 16);
    buf_str(b, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[{"
               "\"id\":37,\"content\":\"<end>\",\"single_word\":false,\"lstrip\":false,"
               "\"rstrip\":false,\"normalized\":false,\"special\":true}],\"normalizer\":null,"
               "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
               "\"trim_offsets\":true,\"use_regex\":true},\"post_processor\":null,\"decoder\":{"
               "\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,"
               "\"use_regex\":true},\"model\":{\"type\":\"BPE\",\"dropout\":null,"
               "\"unk_token\":null,\"continuing_subword_prefix\":null,"
               "\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":false,"
               "\"ignore_merges\":false,\"vocab\":{");
    for (int i = 0; i < 36; i++) {
        buf_printf(b, "\"%c\":%d,", i < 10 ? '0' + i : 'a' + i - 10, i);
    }
    buf_str(b, "\"\\u0120\":36,\"<end>\":37},\"merges\":[]}}");
    assert_int_equal(buf_status(b), 0);
}

static inline struct tokenizer *fakeport_tokenizer(void)
{
    struct buf b;
    struct tokenizer *t = NULL;
    struct err e = {0};
    fakeport_tokenizer_json(&b);
    assert_ok(tokenizer_open(b.data, &t, &e), &e);
    buf_fini(&b);
    return t;
}

/* ---- the ports ---- */

enum { FAKEPORT_ANSWERS = 8192, FAKEPORT_LEN = 16, FAKEPORT_SAVES = 64 };

struct fakeport_answer {
    struct port_answer a;
    int got; /* tokens that it has, with slots */
    int32_t tokens[FAKEPORT_LEN];
    float logps[FAKEPORT_LEN];
};

struct fakeport {
    struct promptenc enc;
    struct rollout_port rollout;
    struct trainer_port train;
    struct world world;
    /* rollout */
    struct fakeport_answer *q; /* answers to come */
    int nq;
    struct fakeport_answer now; /* the one that was handed out last */
    uint64_t order;             /* 0: in the order of submission */
    int submitted, polls;       /* groups; calls of poll */
    int last_max_new;
    int fail_submit, end_early; /* the k-th submit fails; poll ends after so many answers */
    int room, turned_away; /* answers it holds at once, 0: any; groups that it had no room for */
    int slots;             /* samples that get tokens at a time; 0: answers are there at once */
    int spread;            /* most tokens of an answer; 0: 5 */
    int drift;             /* 1: tokens depend on the weights */
    int exact, aborts;
    int64_t sampled;  /* tokens that were handed out */
    int64_t *weights; /* the version that the engine samples with: &version, or &published */
    int64_t published;
    int paused;
    /* trainer */
    struct sha256 digest;
    int64_t version;
    _Atomic int steps; /* a loop may train in a thread of its own */
    unsigned step_us;  /* that a step lasts */
    int scored, scored_ref, saves, exports;
    int fail_step, fail_save, fail_export; /* the k-th such call fails */
    double lr[64];                         /* of the first steps */
    int64_t first_tokens[64];              /* tokens the step was given */
    int exact_samples[64], with_old[64];   /* samples of the step that are exact, have old */
    int idle[64];                          /* without a token to train */
    int on_policy[64], with_train[64];     /* that are of the trainer's weights, have train */
    int64_t saved_iteration[FAKEPORT_SAVES];
    char *saved_state[FAKEPORT_SAVES];
    char export_dir[256];
    void (*on_save)(void *arg, int64_t iteration); /* called by each save, or NULL */
    void *on_save_arg;
    /* world */
    _Atomic int64_t clock; /* quarters of a second */
    int stop_after_steps;  /* stopping once so many steps were made; -1 never */
};

static inline uint64_t fakeport_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

static inline int fakeport_submit(void *self, const struct port_group *g, struct err *e)
{
    struct fakeport *f = self;
    if (f->room && f->nq && f->nq + g->n > f->room) {
        f->turned_away++;
        return STATUS_AGAIN;
    }
    f->submitted++;
    f->last_max_new = g->max_new;
    if (f->fail_submit == f->submitted) {
        return ERR(e, STATUS_INPUT, "the engine has no room");
    }
    for (int i = 0; i < g->n; i++) {
        struct fakeport_answer *x = &f->q[f->nq];
        uint64_t h = fakeport_mix(g->seed * 31 + g->stream);
        assert_true(f->nq < FAKEPORT_ANSWERS);
        f->nq++;
        h = fakeport_mix(h ^ (uint64_t)(g->sample + i));
        for (int t = 0; t < g->ntokens - g->position; t++) {
            h = fakeport_mix(h ^ (uint64_t)g->tokens[t]);
        }
        memset(x, 0, sizeof *x);
        x->a.group = g->id;
        x->a.sample = i;
        x->a.ntokens = 1 + (int)(h % (uint64_t)(f->spread ? f->spread : 5)) - g->position;
        assert_true(x->a.ntokens > 0 && g->max_new > 0);
        x->a.ntokens = x->a.ntokens > g->max_new ? g->max_new : x->a.ntokens;
        x->a.finish = h % 7 ? PORT_STOP : PORT_LENGTH;
        x->a.version = *f->weights;
        x->a.exact = f->exact;
        for (int t = -g->position; t < x->a.ntokens; t++) {
            uint64_t v;
            h = fakeport_mix(h);
            v = f->drift ? fakeport_mix(h ^ (uint64_t)*f->weights) : h;
            if (t >= 0) {
                x->tokens[t] = (int32_t)(v % 36);
                x->logps[t] = -(float)(v >> 40) * 0x1p-22f;
            }
        }
    }
    return STATUS_OK;
}

static inline int fakeport_hand(struct fakeport *f, int pick, struct port_answer *a)
{
    f->now = f->q[pick];
    memmove(f->q + pick, f->q + pick + 1, sizeof *f->q * (size_t)(f->nq - pick - 1));
    f->nq--;
    *a = f->now.a;
    a->tokens = f->now.tokens;
    a->logps = f->now.logps;
    f->sampled += a->ntokens;
    return STATUS_OK;
}

/* An engine that works: some samples get some tokens; one that is finished is told. */
static inline int fakeport_poll_slots(struct fakeport *f, struct port_answer *a)
{
    int ready = -1, n = f->nq < f->slots ? f->nq : f->slots;
    for (int i = 0; i < n; i++) {
        f->order = fakeport_mix(f->order);
        f->q[i].got += (int)(f->order % 3);
    }
    for (int i = 0; i < f->nq; i++) {
        f->order = fakeport_mix(f->order);
        if (f->q[i].got >= f->q[i].a.ntokens && (ready < 0 || f->order % 2)) {
            ready = i;
        }
    }
    return ready < 0 || f->order % 5 == 0 ? STATUS_AGAIN : fakeport_hand(f, ready, a);
}

static inline int fakeport_poll(void *self, struct port_answer *a, struct err *e)
{
    struct fakeport *f = self;
    int pick = 0;
    (void)e;
    f->polls++;
    if (f->end_early && --f->end_early == 0) {
        f->nq = 0;
    }
    if (!f->nq) {
        return STATUS_END;
    }
    if (f->paused) {
        return STATUS_AGAIN;
    }
    if (f->slots) {
        return fakeport_poll_slots(f, a);
    }
    if (f->order) {
        f->order = fakeport_mix(f->order);
        if (f->order % 5 == 0) {
            return STATUS_AGAIN;
        }
        pick = (int)(f->order / 8 % (uint64_t)f->nq);
    }
    return fakeport_hand(f, pick, a);
}

/* Tokens of an unfinished sample; of one whose answer waits to be polled nothing is told. */
static inline int fakeport_progress(void *self, int64_t group, int sample)
{
    struct fakeport *f = self;
    for (int i = 0; i < f->nq; i++) {
        if (f->q[i].a.group == group && f->q[i].a.sample == sample) {
            return f->q[i].got < f->q[i].a.ntokens ? f->q[i].got : -1;
        }
    }
    return -1;
}

/* What is unfinished ends with what it has. */
static inline void fakeport_abort(void *self, int64_t group)
{
    struct fakeport *f = self;
    f->aborts++;
    for (int i = 0; i < f->nq; i++) {
        struct fakeport_answer *x = &f->q[i];
        if ((group < 0 || x->a.group == group) && x->got < x->a.ntokens) {
            x->a.ntokens = x->got;
            x->a.finish = PORT_ABORT;
        }
    }
}

static inline int fakeport_control(void *self, enum port_control what, struct err *e)
{
    struct fakeport *f = self;
    (void)e;
    f->paused = what == PORT_PAUSE || (f->paused && what != PORT_CONTINUE);
    return STATUS_OK;
}

/* An engine elsewhere, which has the weights that it was given. */
static inline int fakeport_publish(void *self, int64_t version, struct err *e)
{
    struct fakeport *f = self;
    (void)e;
    assert_true(f->nq == 0 || f->paused);
    f->published = version;
    return STATUS_OK;
}

static inline void fakeport_digest(struct fakeport *f, const void *p, size_t n)
{
    sha256_update(&f->digest, p, n);
}

static inline int fakeport_score(void *self, struct train_sample *s, int n, struct err *e)
{
    struct fakeport *f = self;
    (void)e;
    f->scored++;
    for (int i = 0; i < n; i++) {
        for (int t = 0; s[i].logp_out && t < s[i].response; t++) {
            s[i].logp_out[t] = -0.25f * (float)(s[i].tokens[s[i].prompt + t] + 1);
        }
    }
    return STATUS_OK;
}

static inline int fakeport_score_ref(void *self, struct train_sample *s, int n, struct err *e)
{
    struct fakeport *f = self;
    (void)e;
    f->scored_ref++;
    for (int i = 0; i < n; i++) {
        for (int t = 0; t < s[i].response; t++) {
            s[i].logp_out[t] = -0.125f * (float)(s[i].tokens[s[i].prompt + t] + 1);
        }
    }
    return STATUS_OK;
}

static inline int fakeport_step(void *self, struct train_sample *s, int n,
                                const struct optim_hyper *h, struct trainer_report *r,
                                struct err *e)
{
    struct fakeport *f = self;
    int k = f->steps % 64;
    usleep(f->step_us);
    f->steps++;
    if (f->fail_step == f->steps) {
        return ERR(e, STATUS_NUMERIC, "the gradient's norm is not finite");
    }
    memset(r, 0, sizeof *r);
    loss_sums_init(&r->sums);
    f->lr[k] = h->lr;
    f->first_tokens[k] = 0;
    f->exact_samples[k] = f->with_old[k] = f->on_policy[k] = f->with_train[k] = 0;
    f->idle[k] = 0;
    fakeport_digest(f, h, sizeof *h);
    for (int i = 0; i < n; i++) {
        size_t m = (size_t)s[i].response;
        int idle = 1;
        assert_true(s[i].prompt >= 1);
        fakeport_digest(f, s[i].tokens, 4 * ((size_t)s[i].prompt + m));
        fakeport_digest(f, s[i].adv, 4 * m);
        fakeport_digest(f, &s[i].denom, 8);
        fakeport_digest(f, &s[i].exact, sizeof s[i].exact);
        for (int t = 0; t < s[i].response; t++) {
            uint8_t on = !s[i].mask || s[i].mask[t];
            idle = idle && !on;
            fakeport_digest(f, &on, 1);
        }
        if (s[i].old) {
            fakeport_digest(f, s[i].old, 4 * m);
        }
        if (s[i].ref) {
            fakeport_digest(f, s[i].ref, 4 * m);
        }
        f->idle[k] += idle;
        f->first_tokens[k] += s[i].response;
        f->exact_samples[k] += s[i].exact;
        f->with_old[k] += s[i].old != NULL;
        f->on_policy[k] += s[i].on_policy;
        f->with_train[k] += s[i].train && s[i].old == s[i].roll;
        r->tokens += s[i].response;
        r->rows += s[i].response + s[i].prompt;
    }
    r->step.rollouts = n;
    r->step.tokens = r->tokens;
    r->grad_norm = 0.5;
    r->micro_batches = 1;
    f->version++;
    return STATUS_OK;
}

static inline int fakeport_save(void *self, const char *dir, int64_t iteration, int with_optim,
                                const json_t *state, struct err *e)
{
    struct fakeport *f = self;
    int k = f->saves;
    (void)dir;
    (void)with_optim;
    f->saves++;
    if (f->fail_save == f->saves) {
        return ERR(e, STATUS_IO, "cannot write: no space left");
    }
    assert_true(k < FAKEPORT_SAVES);
    if (f->on_save) {
        f->on_save(f->on_save_arg, iteration);
    }
    f->saved_iteration[k] = iteration;
    f->saved_state[k] = json_dumps(state, JSON_COMPACT);
    return STATUS_OK;
}

static inline int fakeport_export(void *self, const char *dir, struct err *e)
{
    struct fakeport *f = self;
    f->exports++;
    snprintf(f->export_dir, sizeof f->export_dir, "%s", dir);
    if (f->fail_export == f->exports) {
        return ERR(e, STATUS_IO, "cannot write the export");
    }
    return fsio_mkdirs(dir, e);
}

static inline int64_t fakeport_version(void *self)
{
    return ((struct fakeport *)self)->version;
}

static inline double fakeport_now(void *self)
{
    return (double)++((struct fakeport *)self)->clock / 4;
}

static inline int fakeport_stopping(void *self)
{
    struct fakeport *f = self;
    return f->stop_after_steps >= 0 && f->steps >= f->stop_after_steps;
}

static inline void fakeport_open(struct fakeport *f, uint64_t order)
{
    memset(f, 0, sizeof *f);
    f->q = mem_alloc(sizeof *f->q * FAKEPORT_ANSWERS);
    f->enc.tok = fakeport_tokenizer();
    f->order = order;
    f->exact = 1;
    f->weights = &f->version;
    f->stop_after_steps = -1;
    sha256_init(&f->digest);
    f->rollout = (struct rollout_port){.submit = fakeport_submit,
                                       .poll = fakeport_poll,
                                       .abort = fakeport_abort,
                                       .control = fakeport_control,
                                       .progress = fakeport_progress,
                                       .self = f};
    f->train = (struct trainer_port){.score = fakeport_score,
                                     .score_ref = fakeport_score_ref,
                                     .score_teacher = fakeport_score_ref,
                                     .step = fakeport_step,
                                     .save = fakeport_save,
                                     .export_hf = fakeport_export,
                                     .version = fakeport_version,
                                     .self = f};
    f->world = (struct world){.now = fakeport_now, .stopping = fakeport_stopping, .self = f};
}

static inline void fakeport_close(struct fakeport *f)
{
    for (int i = 0; i < FAKEPORT_SAVES; i++) {
        free(f->saved_state[i]);
    }
    mem_free(f->q);
    promptenc_close(&f->enc);
}

/* Hex digest of all that was trained so far. */
static inline const char *fakeport_weights(const struct fakeport *f, char out[65])
{
    struct sha256 s = f->digest;
    uint8_t d[32];
    sha256_final(&s, d);
    for (int i = 0; i < 32; i++) {
        snprintf(out + 2 * i, 3, "%02x", d[i]);
    }
    return out;
}

#endif
