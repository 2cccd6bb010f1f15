/* Owns the sizes of a run: micro-batches, samples at a time, and the memory that all of it takes,
 * told before it is taken. */
#include "cli/train_int.h"

#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "model/wfile.h"
#include "rl/teacher.h"
#include "rl/wsync_delta.h"

/* The most rows that bundles of `group` samples, with whole responses, take of `cap`. The rest of a
 * prompt's samples is a smaller bundle. */
static int64_t train_bundle_rows(const struct train_prompts *p, int64_t group, int64_t cap)
{
    int64_t rest = p->group % group;
    int64_t least = p->shortest + (rest ? rest : group) * p->response;
    int64_t most = p->longest + group * p->response, fit = cap / least;

    return fit > 1 && fit * most < cap ? fit * most : fit > 1 ? cap : most;
}

/* What training and scoring take: these share a prompt among as many samples as fit. */
static int64_t train_micro_rows(const struct train_prompts *p, int64_t group, int64_t cap)
{
    int64_t fits = (cap - p->longest) / p->response;
    int64_t train = train_bundle_rows(p, group, cap);
    int64_t score = train_bundle_rows(p, fits < 1 ? 1 : fits < p->group ? fits : p->group, cap);

    return train > score ? train : score;
}

/* Rows, scored tokens and pages of a micro-batch, bounded by the prompts that were read and the
 * samples of a step. Nothing is known of samples that are read from files. */
static void train_batch_opts(struct train *t, int64_t samples)
{
    const struct train_prompts *p = &t->train;
    struct trainer_opts *to = &t->trainer;
    int64_t rows, scored, group, bundle, all;

    to->max_len = t->rollout || t->o.loss_type == LOSS_SFT
                      ? (int)train_context(t, (int64_t)p->longest + p->response)
                      : t->positions;
    if (to->micro_batch) {
        to->max_tokens = to->max_len * to->micro_batch;
        samples = to->micro_batch;
    }
    if (!t->rollout || !p->n || !p->response) {
        return;
    }
    group = (t->o.numeric_bundle - p->longest) / p->response; /* samples of a bundle */
    group = group < 1 ? 1 : group < p->group ? group : p->group;
    bundle = p->longest + (int64_t)p->group * p->response;
    bundle = bundle < t->o.numeric_bundle ? bundle : t->o.numeric_bundle;
    to->max_bundle = p->group > 1 ? (int)bundle : 0;
    samples = samples > group ? samples : group;
    all = (samples + group - 1) / group * (p->longest + group * p->response);
    if (!to->micro_batch && to->max_tokens > all) {
        to->max_tokens = (int)all;
    }
    if (!to->micro_batch) {
        to->max_rows = (int)train_micro_rows(p, group, to->max_tokens);
    }
    rows = trainer_rows_planned(to);
    scored = rows * group * p->response / (p->shortest + group * p->response) + 1;
    to->max_scored = (int)(scored < samples * p->response ? scored : samples * p->response);
    to->pages = (int)((double)rows * (double)group * (group > 1 ? p->running : p->pages) /
                      ((double)p->tokens + (double)(p->n * (group - 1) * p->response))) +
                1;
}

int train_port_opts(struct train *t, struct err *e)
{
    const struct train_opts *o = &t->o;
    struct engine_opts *eo = &t->engine;
    struct trainer_opts *to = &t->trainer;
    const struct train_prompts *most = &t->train;
    int64_t longest, samples = o->rollout_batch_size * o->n_samples_per_prompt;
    int64_t flight = o->over_sampling_batch_size * o->n_samples_per_prompt;

    t->rollout = !o->debug_train_only && !o->load_debug_rollout_data &&
                 (o->loss_type != LOSS_SFT || t->nevals);
    t->remote = t->rollout && t->place.backend != PLACE_IN_PROCESS && !durable_replays(&t->durable);
    if (t->nevals &&
        (int64_t)t->eval.longest + t->eval.response > (int64_t)most->longest + most->response) {
        most = &t->eval;
    }
    longest = train_context(t, (int64_t)most->longest + most->response);
    if (t->rollout && longest > t->positions) {
        return ERR(e, STATUS_INPUT,
                   "prompt of %d and %d new tokens exceed the model's context of %d", most->longest,
                   most->response, t->positions);
    }
    eo->max_running =
        (int)(o->sglang_max_running_requests != CONF_UNSET ? o->sglang_max_running_requests
              : flight < 256                               ? (flight < 64 ? 64 : flight)
                                                           : 256);
    eo->max_context = (int)longest;
    eo->mem_fraction = o->sglang_mem_fraction_static; /* not a number when unset: no share */
    to->max_tokens = o->use_dynamic_batch_size ? (int)o->max_tokens_per_gpu : 1;
    to->micro_batch = o->use_dynamic_batch_size ? 0 : (int)o->micro_batch_size;
    train_batch_opts(t, samples);
    to->temperature = (float)o->rollout_temperature;
    train_opts_loss(o, &to->loss);
    to->entropy = to->loss.entropy || to->loss.entropy_coef != 0.0f || o->use_rollout_entropy ||
                  o->custom_loss_function_path;
    to->logit_rows = o->log_probs_chunk_size > 0 ? (int)o->log_probs_chunk_size : 0;
    to->score_tokens =
        o->log_probs_max_tokens_per_gpu != CONF_UNSET ? (int)o->log_probs_max_tokens_per_gpu : 0;
    to->by_flops = o->balance_by_flops;
    to->optim.m_bf16 = o->exp_avg_dtype;
    to->optim.v_bf16 = o->exp_avg_sq_dtype;
    to->recompute = o->recompute_granularity == 0   ? FORWARD_FULL
                    : o->recompute_granularity == 1 ? FORWARD_SELECTIVE
                                                    : FORWARD_KEEP_ALL;
    to->recompute_layers = o->recompute_method == 1 ? (int)o->recompute_num_layers : 0;
    return STATUS_OK;
}

static void train_plan_row(struct train *t, const char *what, int64_t bytes)
{
    if (bytes > 0) {
        log_info(TRAIN, "memory plan: %9.1f MiB  %s", (double)bytes / 1048576.0, what);
        t->planned += bytes;
    }
}

/* Of an engine that samples `prompts` of these at once. */
static int64_t train_engine_bytes(const struct train *t, const struct train_prompts *p,
                                  int64_t prompts)
{
    int64_t samples = prompts * p->group;
    if (!p->n) {
        return 0;
    }
    samples = samples < t->engine.max_running ? samples : t->engine.max_running;
    return engine_bytes(t->shape, &t->engine, (int)samples, p->running / (double)p->n);
}

/* Engines of their own are not in the sum: they may take less, and be elsewhere. */
static void train_plan_rollout(struct train *t, int64_t bytes)
{
    if (!t->remote) {
        train_plan_row(t, "rollout: KV pages, activations, logits", bytes);
    } else if (t->place.backend == PLACE_MILES && !t->place.external) {
        log_info(TRAIN,
                 "memory plan: beside that, %d engines share up to %.1f MiB of KV pages, "
                 "activations and logits",
                 t->place.nengines, (double)bytes / 1048576.0);
    } else {
        log_info(TRAIN, "memory plan: what %d engines take is not planned here", t->place.nengines);
    }
}

/* The plan has whole responses; shorter ones may fill micro-batches that these do not. */
static void train_plan_short(const struct train *t, int64_t planned)
{
    struct trainer_opts full = t->trainer;
    struct trainer_bytes b;
    int64_t more;

    if (t->o.debug_rollout_only || trainer_rows_planned(&full) == trainer_rows(&full)) {
        return;
    }
    full.max_rows = 0;
    full.pages = 0;
    trainer_bytes(t->shape, &full, &b);
    more = b.activations + b.scratch - planned;
    log_info(TRAIN,
             "memory plan: beside that, up to %.1f MiB where shorter responses fill micro-batches "
             "of %d tokens; whole ones fill %d",
             (double)(more > 0 ? more : 0) / 1048576.0, trainer_rows(&full),
             trainer_rows_planned(&t->trainer));
}

void train_plan(struct train *t)
{
    const struct train_opts *o = &t->o;
    struct trainer_bytes b = {0};

    train_plan_row(t, "weights", weights_bytes(t->shape, t->positions));
    if (train_has_ref(o)) {
        struct weights *ref;
        if (weights_shape(&t->shape->arch, t->dev, 0, &ref, NULL) == STATUS_OK) {
            train_plan_row(t, "weights of the reference model", weights_bytes(ref, t->positions));
            weights_release(ref);
        }
    }
    if (o->keep_old_actor && !o->debug_rollout_only) {
        struct weights *kept;
        if (weights_shape(&t->shape->arch, t->dev, 0, &kept, NULL) == STATUS_OK) {
            train_plan_row(t, "weights of kept versions",
                           COPIES_MAX * weights_bytes(kept, t->positions));
            weights_release(kept);
        }
    }
    if (t->teacher_file) {
        struct weights *teacher;
        if (weights_shape(wfile_arch(t->teacher_file), t->dev, 0, &teacher, NULL) == STATUS_OK) {
            train_plan_row(t, "weights of the teacher", weights_bytes(teacher, t->positions));
            weights_release(teacher);
        }
    }
    if (train_has_critic(o)) {
        struct arch a = t->shape->arch;
        struct weights *critic;
        a.value_head = 1;
        if (weights_shape(&a, t->dev, train_use(o), &critic, NULL) == STATUS_OK) {
            train_plan_row(t, "critic: weights, gradients, optimizer, activations",
                           weights_bytes(critic, t->positions) +
                               trainer_bytes(critic, &t->trainer, NULL));
            weights_release(critic);
        }
    }
    if (!o->debug_rollout_only) {
        trainer_bytes(t->shape, &t->trainer, &b);
    }
    train_plan_row(t, "gradients", b.grads);
    train_plan_row(t, "optimizer", b.optim);
    train_plan_row(t, "activations", b.activations);
    train_plan_row(t, "logits", b.logits);
    train_plan_row(t, "scratch", b.scratch);
    train_plan_short(t, b.activations + b.scratch);
    if (t->rollout) {
        int64_t train = train_engine_bytes(t, &t->train, o->over_sampling_batch_size);
        int64_t eval = train_engine_bytes(t, &t->eval, t->eval.n);
        train_plan_rollout(t, train > eval ? train : eval);
        if (t->remote && t->place.transfer == PLACE_DISK_DELTA) {
            train_plan_row(t, "published weights, which changes are told against",
                           wsync_delta_bytes(t->shape));
        }
    }
    train_plan_row(t, "program, tokenizer, prompts", mem_resident());
    log_info(TRAIN, "memory plan: %9.1f MiB  in all", (double)t->planned / 1048576.0);
}
