/* Owns what happens between a rollout and new weights: the order of the passes, what each sample
 * brings into them, and the metrics of it. */
#include "rl/learn.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "base/metric.h"
#include "base/patience.h"
#include "base/status.h"
#include "base/world.h"
#include "num/exact.h"
#include "rl/details.h"
#include "rl/extend.h"
#include "rl/opdtop.h"
#include "rl/rollmetric.h"
#include "rl/steps.h"
#include "rl/teacher.h"
#include "train/adv.h"
#include "train/lrsched.h"
#include "train/trainer.h"

/* Everything a rollout's training holds, freed together. */
struct learn_work {
    const struct learn_in *in;
    json_t *row; /* borrowed */
    int n;
    struct train_sample *t;
    struct train_sample *value; /* with a critic: the samples as it sees them */
    float **teacher; /* with a teacher: its log-probs of each sample, or top-k differences */
    float *shaped, *raw;
    int64_t *group, *rollout;
    struct steps steps;
    struct learn_in made; /* in, when a function made other samples of it */
    struct extend_converted converted;
    struct arena mem;
};

static double learn_now(const struct learn *l)
{
    return l->c.world->now(l->c.world->self);
}

static float *learn_floats(struct learn_work *w, int n)
{
    return arena_alloc(&w->mem, sizeof(float) * (size_t)(n ? n : 1));
}

/* Denominators: active tokens of each rollout, over the samples that share it. */
static void learn_denoms(struct learn_work *w)
{
    struct map sums;
    map_init(&sums);
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < w->n; i++) {
            struct train_sample *t = &w->t[i];
            const char *key = (const char *)&w->rollout[i];
            int64_t sum = 0;
            map_get(&sums, key, sizeof w->rollout[i], &sum);
            if (pass == 1) {
                t->denom = sum;
                continue;
            }
            for (int j = 0; j < t->response; j++) {
                sum += !t->mask || t->mask[j];
            }
            map_put(&sums, key, sizeof w->rollout[i], sum);
        }
    }
    map_fini(&sums);
}

/* The user's function in place of the normalisation: raw and shaped rewards of all samples.
 * STATUS_END: there is none. */
static int learn_shape(struct learn *l, struct learn_work *w, struct err *e)
{
    double *raw = arena_alloc(&w->mem, sizeof *raw * (size_t)(w->n + 1));
    double *shaped = arena_alloc(&w->mem, sizeof *shaped * (size_t)(w->n + 1));
    int rc = extend_shape(l->c.extend, w->in->s, w->n, raw, shaped, e);

    for (int i = 0; rc == STATUS_OK && i < w->n; i++) {
        w->in->s[i]->reward = raw[i];
        w->raw[i] = (float)raw[i];
        w->shaped[i] = (float)shaped[i];
    }
    return rc;
}

/* A hook has changed the model: nothing was drawn from it as it is now. */
static void learn_moved(struct train_sample *t, int64_t n, int changed)
{
    for (int64_t i = 0; changed && i < n; i++) {
        t[i].exact = t[i].on_policy = 0;
    }
}

static int learn_prepare(struct learn *l, struct learn_work *w, struct err *e)
{
    struct adv_reward_opts ro;
    int rc;

    train_opts_reward(l->c.o, &ro);
    w->n = w->in->n;
    w->t = arena_alloc(&w->mem, sizeof *w->t * (size_t)w->n);
    w->raw = learn_floats(w, w->n);
    w->shaped = learn_floats(w, w->n);
    w->group = arena_alloc(&w->mem, sizeof *w->group * (size_t)w->n);
    w->rollout = arena_alloc(&w->mem, sizeof *w->rollout * (size_t)w->n);
    for (int i = 0; i < w->n; i++) {
        struct sample *s = w->in->s[i];
        struct train_sample *t = &w->t[i];
        if (!isfinite(s->reward) && l->c.o->use_opd && !s->raw_reward) {
            s->reward = 0; /* the teacher is all there is to learn from */
        }
        if (!isfinite(s->reward)) {
            return ERR(e, STATUS_INPUT, "sample %lld has no reward", (long long)s->index);
        }
        w->raw[i] = (float)s->reward;
        if (l->c.o->overlong_buffer_len != CONF_UNSET) {
            w->raw[i] +=
                adv_overlong(s->response_len, l->c.o->rollout_max_response_len,
                             l->c.o->overlong_buffer_len, (float)l->c.o->overlong_penalty_factor);
        }
        w->group[i] = s->group_index;
        w->rollout[i] = s->rollout_id;
        t->tokens = s->tokens;
        t->prompt = s->prompt_len;
        t->response = s->response_len;
        t->mask = s->mask;
        if (s->remove) {
            t->mask = arena_alloc(&w->mem, (size_t)s->response_len + 1);
        }
        t->rollout = s->rollout_id;
        t->roll = s->logps;
        t->on_policy = s->logps != NULL;
        t->exact = t->on_policy && w->in->drawn;
        for (int k = 0; k < s->nsegments; k++) {
            t->on_policy =
                t->on_policy && s->segments[k].version == l->c.actor->version(l->c.actor->self);
            t->exact = t->exact && t->on_policy && s->segments[k].exact;
        }
    }
    learn_denoms(w);
    if (w->converted.s) {
        memcpy(w->shaped, w->converted.shaped, sizeof *w->shaped * (size_t)w->n);
        return STATUS_OK;
    }
    rc = learn_shape(l, w, e);
    if (rc != STATUS_END) {
        return rc;
    }
    return adv_rewards(&ro, w->n, w->raw, w->group, w->rollout, w->shaped, e);
}

/* Mean entropy of the rollout: over the tokens of each rollout, then over rollouts. */
static void learn_entropy(struct learn_work *w)
{
    struct exact sum;
    struct map ids;

    exact_init(&sum);
    map_init(&ids);
    for (int i = 0; i < w->n; i++) {
        struct train_sample *t = &w->t[i];
        for (int j = 0; j < t->response; j++) {
            if (!t->mask || t->mask[j]) {
                exact_add(&sum, (double)t->entropy_out[j] / (double)(t->denom ? t->denom : 1));
            }
        }
        map_put(&ids, (const char *)&w->rollout[i], sizeof w->rollout[i], 1);
        t->entropy_out = NULL;
    }
    metric_put(w->row, "rollout/entropy", exact_value(&sum) / (double)(ids.count ? ids.count : 1));
    map_fini(&ids);
}

/* Log-probs of the current weights, as old ones or beside them; those of exact samples are known.
 */
static int learn_score_own(struct learn *l, struct learn_work *w, int beside, struct err *e)
{
    double t0 = learn_now(l);
    int changed, rc = extend_before_scores(l->c.extend, "", &changed, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    learn_moved(w->t, w->n, changed);
    for (int i = 0; i < w->n; i++) {
        struct train_sample *t = &w->t[i];
        t->logp_out = t->exact ? NULL : learn_floats(w, t->response);
        t->entropy_out = l->c.o->use_rollout_entropy ? learn_floats(w, t->response) : NULL;
    }
    rc = l->c.actor->score(l->c.actor->self, w->t, w->n, e);
    for (int i = 0; i < w->n; i++) {
        struct train_sample *t = &w->t[i];
        if (beside) {
            t->train = t->exact ? t->roll : t->logp_out;
        } else if (!t->old) {
            t->old = t->logp_out;
        }
        t->logp_out = NULL;
    }
    if (rc == STATUS_OK && l->c.o->use_rollout_entropy) {
        learn_entropy(w);
    }
    metric_put(w->row, "perf/log_probs_time", learn_now(l) - t0);
    return rc;
}

/* Samples that older weights drew: their old policy is those weights, of which the trainer keeps
 * copies. Where the engine has the trainer's bits, its own log-probs are what a pass would give. */
static int learn_score_kept(struct learn *l, struct learn_work *w, struct err *e)
{
    const struct trainer_port *actor = l->c.actor;
    int64_t now = actor->version(actor->self), missing = 0;
    int rc = STATUS_OK;

    for (int i = 0; rc == STATUS_OK && i < w->n; i++) {
        const struct sample *s = w->in->s[i];
        struct train_sample *t = &w->t[i];
        int64_t version = s->nsegments ? s->segments[0].version : now;
        int exact = w->in->drawn && t->roll, mixed = 0;
        for (int k = 0; k < s->nsegments; k++) {
            exact = exact && s->segments[k].exact;
            mixed |= s->segments[k].version != version;
        }
        if (t->exact || version == now) {
            continue;
        }
        if (exact) {
            t->old = t->roll;
            continue;
        }
        t->logp_out = learn_floats(w, t->response);
        rc = mixed ? STATUS_NOTFOUND : actor->score_kept(actor->self, version, t, 1, e);
        if (rc == STATUS_OK) {
            t->old = t->logp_out;
        } else if (rc == STATUS_NOTFOUND) {
            missing++; /* the current weights are the nearest that are known */
            rc = STATUS_OK;
        }
        t->logp_out = NULL;
    }
    metric_put_int(w->row, "train/old_actor_missing", missing);
    return rc;
}

/* Log-probs of other weights for every sample, into out[i]. */
static int learn_score_other(struct learn *l, struct learn_work *w,
                             int (*score)(void *self, struct train_sample *s, int n, struct err *e),
                             const char *metric, float **out, struct err *e)
{
    double t0 = learn_now(l);
    int rc;

    for (int i = 0; i < w->n; i++) {
        w->t[i].logp_out = out[i] = learn_floats(w, w->t[i].response);
    }
    rc = score(l->c.actor->self, w->t, w->n, e);
    for (int i = 0; i < w->n; i++) {
        w->t[i].logp_out = NULL;
    }
    metric_put(w->row, metric, learn_now(l) - t0);
    return rc;
}

/* What a teacher says, in this process or behind HTTP. */
static int learn_teacher(struct learn *l, struct learn_work *w, struct err *e)
{
    double t0 = learn_now(l);
    int rc;

    w->teacher = arena_alloc(&w->mem, sizeof *w->teacher * (size_t)(w->n + 1));
    if (!l->c.teacher) {
        return learn_score_other(l, w, l->c.actor->score_teacher, "perf/teacher_log_probs_time",
                                 w->teacher, e);
    }
    teacher_now(l->c.teacher, w->in->rollout);
    for (int i = 0; i < w->n; i++) {
        w->teacher[i] = learn_floats(w, w->t[i].response);
    }
    if (l->c.o->opd_log_prob_top_k) {
        struct opdtop c = {.o = {(enum opd_strategy)l->c.o->opd_top_k_strategy,
                                 (enum opd_weight)l->c.o->opd_reward_weight_mode},
                           .k = (int)l->c.o->opd_log_prob_top_k,
                           .per_position = l->c.o->opd_topk_per_position,
                           .actor = l->c.actor,
                           .teacher = l->c.teacher};
        rc = opdtop_delta(&c, w->in->s, w->t, w->n, w->teacher, e);
    } else {
        rc = teacher_score(l->c.teacher, w->in->s, w->n, w->teacher, e);
    }
    metric_put(w->row, "perf/teacher_log_probs_time", learn_now(l) - t0);
    return rc;
}

/* Old log-probs where the rollout's are not the policy's own, the trainer's own and the reference's
 * where asked. */
static int learn_score(struct learn *l, struct learn_work *w, struct err *e)
{
    const struct train_opts *o = l->c.o;
    int need = 0, beside = train_opts_needs_train_pass(o), rc;

    for (int i = 0; i < w->n; i++) {
        struct train_sample *t = &w->t[i];
        if (o->use_rollout_logprobs && !t->roll) {
            return ERR(e, STATUS_INPUT,
                       "--use-rollout-logprobs: sample %lld has no rollout log-probs",
                       (long long)w->in->s[i]->index);
        }
        if (t->exact || o->use_rollout_logprobs) {
            t->old = t->roll; /* equal to a recomputed pass, bit for bit */
        }
    }
    rc = o->keep_old_actor ? learn_score_kept(l, w, e) : STATUS_OK;
    for (int i = 0; i < w->n; i++) {
        need |= !w->t[i].old;
    }
    need |= extend_has(l->c.extend, "custom-megatron-before-log-prob-hook-path");
    if (rc != STATUS_OK) {
        return rc;
    }
    if (beside || o->use_rollout_entropy || (need && train_opts_needs_old_pass(o))) {
        rc = learn_score_own(l, w, beside, e);
    }
    if (rc == STATUS_OK && train_opts_needs_ref(o)) {
        float **ref = arena_alloc(&w->mem, sizeof *ref * (size_t)(w->n + 1));
        rc = learn_score_other(l, w, l->c.actor->score_ref, "perf/ref_log_probs_time", ref, e);
        for (int i = 0; i < w->n; i++) {
            w->t[i].ref = ref[i];
        }
    }
    return rc == STATUS_OK && o->use_opd ? learn_teacher(l, w, e) : rc;
}

static int learn_advantages(struct learn *l, struct learn_work *w, struct err *e)
{
    struct adv_opts ao;
    struct adv_sample *a = arena_alloc(&w->mem, sizeof *a * (size_t)w->n);
    struct exact gap; /* to the teacher, means of samples */
    int rc = STATUS_OK;

    exact_init(&gap);
    train_opts_adv(l->c.o, &ao);
    for (int i = 0; rc == STATUS_OK && i < w->n; i++) {
        struct train_sample *t = &w->t[i];
        float *kl = NULL;
        if (ao.kl_coef != 0.0f && t->ref) {
            kl = learn_floats(w, t->response);
            for (int j = 0; j < t->response; j++) {
                kl[j] =
                    loss_kl((enum loss_kl)l->c.o->kl_loss_type, t->old[j], t->ref[j], 1.0f, NULL);
            }
        }
        a[i].len = t->response;
        a[i].mask = t->mask;
        a[i].reward = w->shaped[i];
        a[i].kl = kl;
        a[i].adv = learn_floats(w, t->response);
        t->adv = a[i].adv;
        if (w->value) {
            a[i].values = w->value[i].old;
            a[i].returns = learn_floats(w, t->response);
            w->value[i].adv = a[i].returns;
        }
        rc = adv_fill(&ao, &a[i], e);
        if (rc == STATUS_OK && w->teacher) {
            double mean;
            /* of several candidates the difference is known already */
            const float *own = l->c.o->opd_log_prob_top_k ? w->teacher[i] : t->old;
            const float *far = own == t->old ? w->teacher[i] : learn_floats(w, t->response);
            rc = adv_distil(&a[i], own, far, (float)l->c.o->opd_kl_coef, &mean, e);
            exact_add(&gap, rc == STATUS_OK ? mean : 0.0);
        }
    }
    if (w->teacher) {
        metric_put(w->row, "train/opd_reverse_kl", exact_value(&gap) / (w->n ? w->n : 1));
    }
    if (rc == STATUS_OK && l->c.o->normalize_advantages) {
        rc = adv_whiten(a, w->n, e);
    }
    return rc;
}

/* What the critic holds each position to be worth, before it learns from this rollout. */
static int learn_values(struct learn *l, struct learn_work *w, struct err *e)
{
    double t0 = learn_now(l);
    int rc;

    w->value = arena_alloc(&w->mem, sizeof *w->value * (size_t)(w->n + 1));
    for (int i = 0; i < w->n; i++) {
        struct train_sample *v = &w->value[i];
        *v = w->t[i];
        v->roll = v->old = v->ref = v->train = v->adv = NULL;
        v->exact = v->on_policy = 0;
        v->entropy_out = NULL;
        v->logp_out = learn_floats(w, v->response);
    }
    rc = l->c.critic->score(l->c.critic->self, w->value, w->n, e);
    for (int i = 0; i < w->n; i++) {
        w->value[i].old = w->value[i].logp_out;
        w->value[i].logp_out = NULL;
    }
    metric_put(w->row, "perf/values_time", learn_now(l) - t0);
    return rc;
}

/* All that the loss needs beside the samples. */
static int learn_judge(struct learn *l, struct learn_work *w, struct err *e)
{
    int rc = learn_score(l, w, e);
    if (rc == STATUS_OK && l->c.critic) {
        rc = learn_values(l, w, e);
    }
    return rc == STATUS_OK ? learn_advantages(l, w, e) : rc;
}

static void learn_losses(struct learn_work *w, const char *prefix, const struct loss_opts *lo,
                         const struct trainer_report *r, const struct optim_hyper *h)
{
    char name[96];
    for (int m = 0; m < LOSS_NMETRICS; m++) {
        double v;
        if (loss_metric(lo, &r->step, &r->sums, (enum loss_metric)m, &v)) {
            snprintf(name, sizeof name, "%s%s", prefix, loss_metric_name((enum loss_metric)m));
            metric_put(w->row, name, v);
        }
    }
    if (lo->type == LOSS_CUSTOM && r->row_loss != 0.0) {
        double other = json_number_value(json_object_get(w->row, "train/loss"));
        metric_put(w->row, "train/loss", other + r->row_loss);
    }
    snprintf(name, sizeof name, "%sgrad_norm", prefix);
    metric_put(w->row, name, r->grad_norm);
    snprintf(name, sizeof name, "%slr-pg_0", prefix);
    metric_put(w->row, name, h->lr);
    if (r->sums.sanitised) {
        snprintf(name, sizeof name, "%snot_finite_tokens", prefix);
        metric_put_int(w->row, name, r->sums.sanitised);
    }
}

static void learn_report(struct learn_work *w, const struct trainer_report *r, int64_t step)
{
    metric_put_int(w->row, "train/step", step);
    if (r->exact_tokens) {
        metric_put(w->row, "train/forward_logp_max_diff", (double)r->max_diff);
    }
    metric_put_int(w->row, "train/exact_tokens", r->exact_tokens);
    metric_put(w->row, "perf/forward_time", r->forward_s);
    metric_put(w->row, "perf/backward_time", r->backward_s);
    metric_put(w->row, "perf/optimizer_time", r->optim_s);
    metric_put_int(w->row, "perf/micro_batches", r->micro_batches);
    metric_put_int(w->row, "perf/samples_without_gradient", r->idle_samples);
}

static struct optim_hyper learn_hyper(const struct train_opts *o, const struct lrsched *s,
                                      int64_t pos)
{
    return (struct optim_hyper){lrsched_lr(s, pos), o->adam_beta1,         o->adam_beta2,
                                o->adam_eps,        lrsched_wd_at(s, pos), o->clip_grad};
}

/* The critic's steps over the rollout. */
static int learn_critic(struct learn *l, struct learn_work *w, struct err *e)
{
    const struct train_opts *o = l->c.o;
    const struct steps *st = &w->steps;
    double t0 = learn_now(l);
    struct loss_opts lo;

    train_opts_value_loss(o, &lo);
    for (int k = 0; k < st->n; k++) {
        struct trainer_report r;
        struct optim_hyper h = learn_hyper(o, &l->critic_sched, l->critic_pos);
        int rc = l->c.critic->step(l->c.critic->self, w->value + st->start[k],
                                   st->start[k + 1] - st->start[k], &h, &r, e);
        if (rc != STATUS_OK) {
            return err_prefix(e, "critic");
        }
        l->critic_pos += r.step.rollouts;
        learn_losses(w, "train/critic-", &lo, &r, &h);
    }
    metric_put(w->row, "perf/critic_train_time", learn_now(l) - t0);
    return STATUS_OK;
}

/* The checks of a run's first step; its samples are in the order of the steps. */
static void learn_first(struct learn *l, struct learn_work *w, const struct train_sample *t, int n,
                        const struct trainer_report *r)
{
    struct sample **s = arena_alloc(&w->mem, sizeof *s * (size_t)(n + 1));
    struct firststep_in in = {s, t, n, r};

    for (int i = 0; i < n; i++) {
        s[i] = w->in->s[w->steps.order[i]];
    }
    firststep_run(&l->first, &in);
}

static int learn_actor(struct learn *l, struct learn_work *w, struct err *e)
{
    const struct train_opts *o = l->c.o;
    const struct steps *st = &w->steps;
    int64_t rows = 0;
    double t0 = learn_now(l);
    struct loss_opts lo;

    train_opts_loss(o, &lo);
    for (int k = 0; k < st->n; k++) {
        struct train_sample *t = w->t + st->start[k];
        int n = st->start[k + 1] - st->start[k], rc;
        struct trainer_report r;
        struct optim_hyper h = learn_hyper(o, &l->sched, l->sched_pos);
        int changed;
        if (l->c.progress) {
            l->c.progress(l->c.arg, k, st->n);
        }
        for (int i = 0; k > 0 && i < n; i++) {
            t[i].exact = t[i].on_policy = 0; /* the weights have moved since the rollout */
        }
        rc = extend_before_step(l->c.extend, w->in->rollout, k, &h, w->row, &changed, e);
        learn_moved(t, n, changed);
        if (rc == STATUS_OK) {
            rc = extend_loss(l->c.extend, l->c.actor, t, n, &w->mem, w->row, e);
        }
        if (rc == STATUS_OK) {
            rc = l->c.actor->step(l->c.actor->self, t, n, &h, &r, e);
        }
        if (rc != STATUS_OK) {
            return rc;
        }
        l->sched_pos += r.step.rollouts;
        rows += r.rows;
        learn_losses(w, "train/", &lo, &r, &h);
        learn_report(w, &r, w->in->rollout * o->num_steps_per_rollout + k);
        if (k == 0) {
            mismatch_step(&l->mismatch, &lo, &r, t, n);
            learn_first(l, w, t, n, &r);
        }
        rc = stephash_step(&l->hash, k, w->row, e);
        if (rc == STATUS_OK && l->c.stepped) {
            rc = l->c.stepped(l->c.arg, k, e);
        }
        if (rc != STATUS_OK) {
            return rc;
        }
    }
    metric_put(w->row, "perf/actor_train_time", learn_now(l) - t0);
    metric_put(w->row, "perf/actor_train_tok_per_s", (double)rows / (learn_now(l) - t0));
    return STATUS_OK;
}

/* The samples in the order of the steps. */
static struct train_sample *learn_order(struct learn_work *w, const struct train_sample *t)
{
    struct train_sample *out = arena_alloc(&w->mem, sizeof *out * (size_t)(w->n + 1));
    for (int i = 0; i < w->n; i++) {
        out[i] = t[w->steps.order[i]];
    }
    return out;
}

static int learn_cut(struct learn *l, struct learn_work *w, struct err *e)
{
    const struct train_opts *o = l->c.o;
    struct steps_opts so = {o->global_batch_size, o->use_dynamic_global_batch_size,
                            o->allow_partial_train_step};
    int rc = steps_cut(&so, w->rollout, w->n, &w->mem, &w->steps, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    w->t = learn_order(w, w->t);
    w->value = w->value ? learn_order(w, w->value) : NULL;
    if (w->steps.left) {
        metric_put_int(w->row, "train/samples_left_out", w->steps.left);
    }
    return STATUS_OK;
}

static int learn_steps(struct learn *l, struct learn_work *w, struct err *e)
{
    const struct trainer_port *actor = l->c.actor;
    int rc = learn_cut(l, w, e);

    if (rc == STATUS_OK && l->c.o->reset_optimizer_states) {
        rc = actor->refresh(actor->self, PORT_RESET_OPTIM, e);
        if (rc == STATUS_OK && l->c.critic) {
            rc = l->c.critic->refresh(l->c.critic->self, PORT_RESET_OPTIM, e);
        }
    }
    if (rc == STATUS_OK && l->c.critic) {
        rc = learn_critic(l, w, e);
    }
    if (rc == STATUS_OK && (!l->c.critic || w->in->rollout >= l->c.o->num_critic_only_steps)) {
        rc = learn_actor(l, w, e);
    }
    return rc;
}

void learn_init(struct learn *l, const struct learn_cfg *cfg)
{
    memset(l, 0, sizeof *l);
    l->c = *cfg;
    l->sched_pos = cfg->sched_pos;
    l->critic_pos = cfg->critic_pos;
    train_opts_sched(cfg->o, cfg->num_rollout, &l->sched);
    train_opts_critic_sched(cfg->o, cfg->num_rollout, &l->critic_sched);
    l->first.o = cfg->o;
    l->first.fresh = cfg->sched_pos == 0;
    l->hash.actor = cfg->actor;
    l->hash.full = cfg->o->debug_determinism;
}

/* Writes down what the steps are made of. */
static int learn_write_down(struct learn *l, const struct learn_work *w, struct err *e)
{
    struct stephash_rollout r = {w->in->rollout, w->in->s, w->t, w->raw, w->shaped, w->n};
    struct details_train d = {.rollout = w->in->rollout,
                              .s = w->in->s,
                              .t = w->t,
                              .value = w->value,
                              .teacher = w->teacher,
                              .raw = w->raw,
                              .shaped = w->shaped,
                              .n = w->n};
    struct patience wait = {0};
    int rc;

    do {
        rc = details_train(l->c.o, &d, e);
    } while (patience_again(&wait, rc, l->c.o->save_debug_train_data, e));
    return rc == STATUS_OK ? stephash_data(&l->hash, &r, e) : rc;
}

/* The samples that the user's function made of those that were drawn. */
static int learn_convert(struct learn *l, struct learn_work *w, struct err *e)
{
    int rc = extend_convert(l->c.extend, w->in->s, w->in->n, &w->converted, e);
    if (rc == STATUS_OK && w->converted.s) {
        w->made = *w->in;
        w->made.s = w->converted.s;
        w->made.n = w->converted.n;
        w->in = &w->made;
    }
    return rc;
}

int learn_rollout(struct learn *l, const struct learn_in *in, json_t *row, struct err *e)
{
    struct learn_work w;
    double t0 = learn_now(l);
    int rc;

    memset(&w, 0, sizeof w);
    w.in = in;
    w.row = row;
    arena_init(&w.mem, 1 << 20);
    rc = extend_postprocess(l->c.extend, e);
    rc = rc == STATUS_OK ? learn_convert(l, &w, e) : rc;
    rc = rc == STATUS_OK ? learn_prepare(l, &w, e) : rc;
    if (rc == STATUS_OK && l->c.o->compute_advantages_and_returns) {
        rollmetric_rollout(row, w.in->s, w.n, w.shaped);
        rc = learn_judge(l, &w, e);
    }
    if (rc == STATUS_OK) {
        rc = learn_write_down(l, &w, e);
    }
    if (rc == STATUS_OK) {
        rc = learn_steps(l, &w, e);
    }
    extend_converted_free(&w.converted);
    arena_fini(&w.mem);
    metric_put(row, "perf/train_time", learn_now(l) - t0);
    return rc;
}
