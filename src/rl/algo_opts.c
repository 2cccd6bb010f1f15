/* Owns what goes together with supervised training, distillation, copies of the model and the way
 * a rollout is cut into steps. What would be without effect is refused: a run must not look like
 * one that it is not. */
#include "rl/algo_opts.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/plugin.h"
#include "base/status.h"
#include "rl/train_opts.h"
#include "train/opd.h"

static int algo_is_set(int64_t v)
{
    return v != CONF_UNSET;
}

static int algo_ends_with(const char *text, const char *end)
{
    size_t n = text ? strlen(text) : 0, k = strlen(end);
    return n >= k && strcmp(text + n - k, end) == 0;
}

/* ---- supervised training ---- */

/* The first option that means nothing to the supervised loss, or NULL. */
static const char *algo_sft_stray(const struct train_opts *o)
{
    return o->advantage_estimator != ADV_GRPO    ? "--advantage-estimator"
           : o->use_kl_loss                      ? "--use-kl-loss"
           : o->kl_coef != 0                     ? "--kl-coef"
           : o->entropy_coef != 0                ? "--entropy-coef"
           : o->normalize_advantages             ? "--normalize-advantages"
           : o->use_tis                          ? "--use-tis"
           : o->get_mismatch_metrics             ? "--get-mismatch-metrics"
           : o->use_opsm                         ? "--use-opsm"
           : o->use_opd                          ? "--use-opd"
           : o->use_rollout_logprobs             ? "--use-rollout-logprobs"
           : o->keep_old_actor                   ? "--keep-old-actor"
           : algo_is_set(o->overlong_buffer_len) ? "--overlong-buffer-len"
           : !isnan(o->loss_divisor)             ? "--loss-divisor"
                                                 : NULL;
}

static int algo_sft(struct train_opts *o, struct err *e)
{
    const char *path = o->rollout_function_path, *stray;
    struct plugin_ref ref;
    int named = 0;

    if (path) {
        int rc = plugin_resolve(plugin_hook("rollout-function-path"), path, &ref, e);
        if (rc != STATUS_OK) {
            return rc;
        }
        named = ref.kind == PLUGIN_BUILTIN && strcmp(ref.builtin, "sft") == 0;
        plugin_ref_fini(&ref);
    }
    if (o->loss_type != LOSS_SFT) {
        if (named) {
            return ERR(e, STATUS_INPUT,
                       "--rollout-function-path sft needs --loss-type sft_loss: there are no "
                       "rewards and no log-probs for another one");
        }
        if (!o->compute_advantages_and_returns) {
            return ERR(e, STATUS_INPUT,
                       "--disable-compute-advantages-and-returns leaves nothing for --loss-type "
                       "policy_loss to learn from");
        }
        return STATUS_OK;
    }
    o->compute_advantages_and_returns = 0;
    stray = algo_sft_stray(o);
    if (stray) {
        return ERR(e, STATUS_INPUT, "%s has no effect with --loss-type sft_loss", stray);
    }
    if (o->n_samples_per_prompt != 1) {
        return ERR(e, STATUS_INPUT,
                   "--loss-type sft_loss trains on a conversation once: --n-samples-per-prompt 1");
    }
    if (o->rollout_temperature != 1.0) {
        return ERR(e, STATUS_INPUT,
                   "--rollout-temperature %g would divide the logits of --loss-type sft_loss: "
                   "leave it at 1 (evaluations have --eval-temperature)",
                   o->rollout_temperature);
    }
    if (o->debug_rollout_only) {
        return ERR(e, STATUS_INPUT, "--debug-rollout-only leaves nothing of --loss-type sft_loss");
    }
    o->apply_chat_template = 1; /* data is conversations */
    return STATUS_OK;
}

/* ---- distillation ---- */

static char *algo_join(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b) + 1;
    char *s = mem_alloc(n + m);
    memcpy(s, a, n);
    memcpy(s + n, b, m);
    return s;
}

/* Miles' own scripts name the teacher as a reward service with functions of its on-policy
 * distillation: the same is built in. */
static void algo_opd_of_miles(struct train_opts *o)
{
    if (algo_ends_with(o->custom_rm_path, "on_policy_distillation.reward_func")) {
        mem_free(o->custom_rm_path);
        o->custom_rm_path = NULL;
    }
    if (algo_ends_with(o->custom_reward_post_process_path,
                       "on_policy_distillation.post_process_rewards")) {
        mem_free(o->custom_reward_post_process_path);
        o->custom_reward_post_process_path = NULL;
    }
    if (!o->opd_teacher_urls.n && o->rm_url && !o->rm_type && !o->custom_rm_path) {
        o->opd_teacher_urls.v = mem_alloc(sizeof *o->opd_teacher_urls.v);
        o->opd_teacher_urls.v[0] = algo_join("default=", o->rm_url);
        o->opd_teacher_urls.n = 1;
        mem_free(o->rm_url);
        o->rm_url = NULL;
    }
}

static int algo_opd_http(struct train_opts *o, struct err *e)
{
    algo_opd_of_miles(o);
    if (o->opd_teacher_load) {
        return ERR(e, STATUS_INPUT, "--opd-teacher-load has no effect with --opd-type sglang");
    }
    if (!o->opd_teacher_urls.n) {
        return ERR(e, STATUS_INPUT, "--opd-type sglang needs --opd-teacher-urls default=URL");
    }
    for (int64_t i = 0; i < o->opd_teacher_urls.n; i++) {
        const char *eq = strchr(o->opd_teacher_urls.v[i], '=');
        if (!eq || eq == o->opd_teacher_urls.v[i] || !eq[1]) {
            return ERR(e, STATUS_INPUT, "--opd-teacher-urls %.200s is not NAME=URL",
                       o->opd_teacher_urls.v[i]);
        }
    }
    if (o->opd_topk_per_position && !o->opd_log_prob_top_k) {
        return ERR(e, STATUS_INPUT,
                   "--opd-topk-per-position has no effect without --opd-log-prob-top-k");
    }
    return STATUS_OK;
}

static int algo_opd(struct train_opts *o, struct err *e)
{
    if (!o->use_opd) {
        if (o->opd_type != -1 || o->opd_teacher_load || o->opd_teacher_urls.n ||
            o->opd_log_prob_top_k) {
            return ERR(e, STATUS_INPUT,
                       "--opd-type, --opd-teacher-load, --opd-teacher-urls and "
                       "--opd-log-prob-top-k have no effect without --use-opd");
        }
        return STATUS_OK;
    }
    if (o->opd_type == -1) {
        return ERR(e, STATUS_INPUT, "--use-opd needs --opd-type");
    }
    if (o->skip_actor_forward_only && !o->use_rollout_logprobs) {
        return ERR(e, STATUS_INPUT,
                   "--skip-actor-forward-only leaves nothing for --use-opd to compare");
    }
    if (o->opd_type == TRAIN_OPD_HTTP) {
        return algo_opd_http(o, e);
    }
    if (!o->opd_teacher_load) {
        return ERR(e, STATUS_INPUT, "--opd-type megatron needs --opd-teacher-load");
    }
    if (o->opd_teacher_urls.n || o->opd_log_prob_top_k) {
        return ERR(e, STATUS_INPUT, "%s needs --opd-type sglang",
                   o->opd_teacher_urls.n ? "--opd-teacher-urls" : "--opd-log-prob-top-k");
    }
    return STATUS_OK;
}

/* ---- copies and batches ---- */

static int algo_copies(const struct train_opts *o, struct err *e)
{
    if (algo_is_set(o->ref_update_interval) && !train_opts_needs_ref(o)) {
        return ERR(e, STATUS_INPUT,
                   "--ref-update-interval has no effect without --use-kl-loss or --kl-coef");
    }
    if (o->keep_old_actor && o->use_rollout_logprobs) {
        return ERR(e, STATUS_INPUT,
                   "--keep-old-actor and --use-rollout-logprobs exclude each other: each says "
                   "what the old policy is");
    }
    if (o->keep_old_actor && o->skip_actor_forward_only) {
        return ERR(e, STATUS_INPUT,
                   "--keep-old-actor needs the pass that --skip-actor-forward-only leaves out");
    }
    if (o->use_rollout_entropy && o->skip_actor_forward_only) {
        return ERR(e, STATUS_INPUT,
                   "--use-rollout-entropy needs the pass that --skip-actor-forward-only leaves "
                   "out");
    }
    return STATUS_OK;
}

static int algo_batches(const struct train_opts *o, struct err *e)
{
    if (o->balance_by_flops && !o->use_dynamic_batch_size) {
        return ERR(e, STATUS_INPUT, "--balance-by-flops needs --use-dynamic-batch-size");
    }
    if (o->allow_partial_train_step && !o->use_dynamic_batch_size) {
        return ERR(e, STATUS_INPUT, "--allow-partial-train-step needs --use-dynamic-batch-size");
    }
    if (o->use_dynamic_global_batch_size && !o->use_dynamic_batch_size) {
        return ERR(e, STATUS_INPUT,
                   "--use-dynamic-global-batch-size needs --use-dynamic-batch-size");
    }
    if (o->log_probs_chunk_size == 0) {
        return ERR(e, STATUS_INPUT, "--log-probs-chunk-size 0 leaves no row; -1 is no bound");
    }
    if (algo_is_set(o->log_probs_max_tokens_per_gpu) &&
        (!o->use_dynamic_batch_size || o->log_probs_max_tokens_per_gpu > o->max_tokens_per_gpu)) {
        return ERR(e, STATUS_INPUT,
                   "--log-probs-max-tokens-per-gpu %lld is more than --max-tokens-per-gpu, for "
                   "which memory is planned",
                   (long long)o->log_probs_max_tokens_per_gpu);
    }
    return STATUS_OK;
}

int algo_opts_check(struct train_opts *o, struct err *e)
{
    int rc = algo_sft(o, e);
    rc = rc ? rc : algo_opd(o, e);
    rc = rc ? rc : algo_copies(o, e);
    return rc ? rc : algo_batches(o, e);
}
