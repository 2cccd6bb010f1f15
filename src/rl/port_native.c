/* Owns the engine and the trainer of a one-process run. Trainer and engine read the same packed
 * weights, so publishing a version copies nothing. */
#include "rl/port_native.h"

#include <string.h>

#include "base/span.h"
#include "base/status.h"
#include "model/hfdir.h"
#include "model/weights.h"
#include "model/wfile.h"
#include "train/ckpt.h"
#include "train/statesum.h"

static int native_submit(void *self, const struct port_group *g, struct err *e)
{
    struct port_native *p = self;
    struct engine_group q;
    int rc;

    if (!p->engine) {
        return ERR(e, STATUS_INPUT, "the engine's memory is released");
    }
    memset(&q, 0, sizeof q);
    q.id = g->id;
    q.tokens = g->tokens;
    q.ntokens = g->ntokens;
    q.n = g->n;
    q.max_new = g->max_new;
    q.sampling.temperature = g->temperature;
    q.sampling.top_p = g->top_p;
    q.sampling.top_k = g->top_k;
    q.ignore_eos = g->ignore_eos;
    q.nstop = g->ignore_eos ? 0 : g->nstop;
    memcpy(q.stop, g->stop, sizeof q.stop);
    q.key.seed = g->seed;
    q.key.stream = g->stream;
    q.key.sample = (uint64_t)g->sample;
    q.key.position = (uint32_t)g->position;
    q.forget = 1;
    rc = engine_submit(p->engine, &q, e);
    if (rc == STATUS_OK) {
        span_enter(&p->busy, "engine 0", "generate", -1);
        p->running += g->n;
    }
    return rc == STATUS_OK ? stopwatch_add(&p->stops, g, e) : rc;
}

static int native_poll(void *self, struct port_answer *a, struct err *e)
{
    struct port_native *p = self;
    struct engine_result r;
    int rc;

    if (!engine_take(p->engine, &r)) {
        rc = engine_step(p->engine, e);
        rc = rc == STATUS_OK ? stopwatch_look(&p->stops, p->engine, e) : rc;
        if (rc != STATUS_OK) {
            return rc;
        }
        if (!engine_take(p->engine, &r)) {
            return STATUS_AGAIN;
        }
    }
    rc = stopwatch_taken(&p->stops, &r, e);
    if (rc != STATUS_OK) {
        return rc;
    }
    a->group = r.group;
    a->sample = r.sample;
    a->tokens = r.tokens;
    a->logps = r.logps;
    a->ntokens = r.ntokens;
    a->finish = (enum port_finish)r.finish;
    a->version = r.weight_version;
    a->experts = NULL;
    a->made = NULL;
    a->nexperts = 0;
    if (--p->running == 0) {
        span_enter(&p->busy, "engine 0", NULL, -1);
    }
    a->exact = (p->w->dev->caps & DEVICE_ROW_EXACT) != 0;
    for (int i = 0; i < r.ntokens; i++) {
        a->exact &= r.versions[i] == r.weight_version && !r.mixed[i];
    }
    return STATUS_OK;
}

static void native_abort(void *self, int64_t group)
{
    struct port_native *p = self;
    if (group >= 0) {
        engine_abort(p->engine, group);
    } else {
        engine_pause(p->engine, ENGINE_PAUSE_ABORT);
        engine_resume(p->engine);
    }
}

static int native_progress(void *self, int64_t group, int sample)
{
    struct port_native *p = self;
    return engine_progress(p->engine, group, sample);
}

static int native_control(void *self, enum port_control what, struct err *e)
{
    struct port_native *p = self;

    if (what == PORT_PAUSE) {
        engine_pause(p->engine, ENGINE_PAUSE_RETRACT);
    } else if (what == PORT_CONTINUE) {
        engine_resume(p->engine);
    } else if (what == PORT_RELEASE && p->engine) {
        if (engine_busy(p->engine)) {
            return ERR(e, STATUS_INPUT, "the engine's memory is in use");
        }
        engine_close(p->engine);
        p->engine = NULL;
    } else if (what == PORT_RESTORE && !p->engine) {
        return engine_open(p->w, &p->engine_opts, &p->engine, e);
    }
    return STATUS_OK;
}

static int native_score(void *self, struct train_sample *s, int n, struct err *e)
{
    struct port_native *p = self;
    double t0 = span_now();
    int rc = trainer_score(p->trainer, s, n, e);

    span_emit(p->lane, "log_probs", t0, span_now(), -1);
    return rc;
}

static int native_score_ref(void *self, struct train_sample *s, int n, struct err *e)
{
    struct port_native *p = self;
    double t0 = span_now();
    int rc = trainer_score_with(p->ref, p->max_tokens, p->temperature, s, n, e);

    span_emit(p->lane, "ref_log_probs", t0, span_now(), -1);
    return rc;
}

static int native_score_teacher(void *self, struct train_sample *s, int n, struct err *e)
{
    struct port_native *p = self;
    double t0 = span_now();
    int rc = trainer_score_with(p->teacher, p->max_tokens, p->temperature, s, n, e);

    span_emit(p->lane, "teacher_log_probs", t0, span_now(), -1);
    return rc;
}

static int native_saved(void *self, int wait, struct err *e)
{
    struct port_native *p = self;
    int rc = p->writer ? ckpt_poll(p->writer, wait, e) : STATUS_OK;
    if (p->writer && rc != STATUS_AGAIN) {
        span_emit("checkpoint", "save_model", p->save_t0, span_now(), -1);
    }
    p->writer = rc == STATUS_AGAIN ? p->writer : NULL;
    return rc;
}

static int native_step(void *self, struct train_sample *s, int n, const struct optim_hyper *h,
                       struct trainer_report *r, struct err *e)
{
    struct port_native *p = self;
    int rc = native_saved(p, 1, e); /* the step changes what is being written */
    double t0 = span_now();

    rc = rc == STATUS_OK ? trainer_step(p->trainer, s, n, h, r, e) : rc;
    span_emit(p->lane, "train_step", t0, span_now(), -1);
    return rc;
}

static int native_save(void *self, const char *dir, int64_t iteration, int with_optim,
                       const json_t *state, struct err *e)
{
    struct port_native *p = self;
    int rc = native_saved(p, 1, e);

    p->save_t0 = span_now();
    return rc == STATUS_OK ? ckpt_begin(dir, iteration, trainer_optim(p->trainer), with_optim,
                                        state, &p->writer, e)
                           : rc;
}

/* What is not trained, such as the vision part of a larger model, is exported as it was read. */
static int native_tensor(void *arg, const char *name, uint16_t *dst, int64_t count, struct err *e)
{
    struct port_native *p = arg;
    int rc = weights_read_bf16(p->w, name, dst, count, e);
    return rc == STATUS_NOTFOUND ? wfile_read_bf16(p->src, name, dst, count, e) : rc;
}

static int native_export(void *self, const char *dir, struct err *e)
{
    struct port_native *p = self;
    double t0 = span_now();
    int rc = hfdir_write(dir, p->src, native_tensor, p, e);

    span_emit(p->lane, "export_hf", t0, span_now(), -1);
    return rc;
}

static int64_t native_version(void *self)
{
    struct port_native *p = self;
    return p->w->version;
}

static int native_refresh(void *self, enum port_refresh what, struct err *e)
{
    struct port_native *p = self;
    int rc = native_saved(p, 1, e); /* what is being written must not change */

    if (rc != STATUS_OK) {
        return rc;
    }
    switch (what) {
    case PORT_REF: return copies_update_ref(&p->copies, e);
    case PORT_KEEP: return copies_keep(&p->copies, e);
    default: optim_reset(trainer_optim(p->trainer)); return STATUS_OK;
    }
}

static int native_score_kept(void *self, int64_t version, struct train_sample *s, int n,
                             struct err *e)
{
    struct port_native *p = self;
    struct weights *w = copies_find(&p->copies, version);

    if (!w) {
        return STATUS_NOTFOUND;
    }
    return trainer_score_with(w, p->max_tokens, p->temperature, s, n, e);
}

static int native_score_rows(void *self, struct train_sample *s, int n,
                             void (*fn)(void *arg, const struct trainer_row *r), void *arg,
                             struct err *e)
{
    struct port_native *p = self;
    return trainer_score_rows(p->trainer, s, n, fn, arg, e);
}

static int native_export_ref(void *self, const char *dir, struct err *e)
{
    struct port_native *p = self;
    return copies_write_ref(&p->copies, dir, e);
}

static int native_sums(void *self, int part, struct statesum *out, struct err *e)
{
    struct port_native *p = self;
    return statesum_take(trainer_optim(p->trainer), (enum statesum_part)part, out, e);
}

int port_native_open(struct port_native *p, struct weights *w, struct weights *ref,
                     const struct wfile *src, const struct engine_opts *eo,
                     const struct trainer_opts *to, struct err *e)
{
    int rc = STATUS_OK;
    memset(p, 0, sizeof *p);
    p->w = w;
    p->ref = ref;
    p->src = src;
    p->rollout = (struct rollout_port){.submit = native_submit,
                                       .poll = native_poll,
                                       .abort = native_abort,
                                       .control = native_control,
                                       .progress = native_progress,
                                       .self = p};
    p->train = (struct trainer_port){.score = native_score,
                                     .score_ref = native_score_ref,
                                     .score_teacher = native_score_teacher,
                                     .step = native_step,
                                     .save = native_save,
                                     .saved = native_saved,
                                     .export_hf = native_export,
                                     .version = native_version,
                                     .sums = native_sums,
                                     .self = p};
    p->lane = "trainer";
    p->train.refresh = native_refresh;
    p->train.score_kept = native_score_kept;
    p->train.score_rows = native_score_rows;
    p->train.export_ref = native_export_ref;
    p->copies = (struct copies){.actor = w, .ref = ref, .src = src};
    if (eo) {
        p->engine_opts = *eo;
        rc = engine_open(w, eo, &p->engine, e);
    }
    if (rc == STATUS_OK && to) {
        p->max_tokens = to->max_tokens;
        p->temperature = to->temperature;
        rc = trainer_open(w, to, &p->trainer, e);
    }
    if (rc != STATUS_OK) {
        port_native_close(p);
    }
    return rc;
}

void port_native_close(struct port_native *p)
{
    stopwatch_fini(&p->stops);
    native_saved(p, 1, NULL);
    engine_close(p->engine);
    trainer_close(p->trainer);
    p->engine = NULL;
    p->trainer = NULL;
    copies_close(&p->copies);
}
