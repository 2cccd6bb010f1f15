/* Owns the rules between the options of `miles train`. What Miles leaves to its parser is checked
 * here, once, so that the loop never meets a combination it does not know. */
#include "rl/train_opts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "rl/agent_opts.h"
#include "rl/algo_opts.h"
#include "rl/correction.h"
#include "rl/details.h"

#define TRAIN_OPTS_MAX_STOPS 64 /* as many as servers take */

static int is_set(int64_t v)
{
    return v != CONF_UNSET;
}

/* --- rules, one subject each --- */

/* samples = rollout batch x group = global batch x steps. */
static int derive_batch(struct train_opts *o, struct err *e)
{
    int64_t samples;

    if (!is_set(o->rollout_batch_size)) {
        return ERR(e, STATUS_INPUT, "--rollout-batch-size is needed");
    }
    samples = o->rollout_batch_size * o->n_samples_per_prompt;
    if (is_set(o->num_steps_per_rollout)) {
        int64_t gbs = samples / o->num_steps_per_rollout;
        if (gbs < 1) {
            return ERR(e, STATUS_INPUT,
                       "--num-steps-per-rollout %lld is more than the %lld samples of a rollout",
                       (long long)o->num_steps_per_rollout, (long long)samples);
        }
        if (is_set(o->global_batch_size) && o->global_batch_size != gbs) {
            return ERR(e, STATUS_INPUT,
                       "--global-batch-size %lld is not %lld: --rollout-batch-size %lld x "
                       "--n-samples-per-prompt %lld / --num-steps-per-rollout %lld",
                       (long long)o->global_batch_size, (long long)gbs,
                       (long long)o->rollout_batch_size, (long long)o->n_samples_per_prompt,
                       (long long)o->num_steps_per_rollout);
        }
        o->global_batch_size = gbs;
    } else if (!is_set(o->global_batch_size)) {
        o->global_batch_size = samples;
    }
    if (samples < o->global_batch_size) {
        return ERR(e, STATUS_INPUT,
                   "--global-batch-size %lld is more than the %lld samples of a rollout",
                   (long long)o->global_batch_size, (long long)samples);
    }
    if (samples % o->global_batch_size != 0 && !o->allow_partial_train_step) {
        return ERR(e, STATUS_INPUT,
                   "a rollout of %lld samples is no multiple of --global-batch-size %lld",
                   (long long)samples, (long long)o->global_batch_size);
    }
    o->num_steps_per_rollout = (samples + o->global_batch_size - 1) / o->global_batch_size;
    return 0;
}

static int check_packing(const struct train_opts *o, struct err *e)
{
    if (o->use_dynamic_batch_size && !is_set(o->max_tokens_per_gpu)) {
        return ERR(e, STATUS_INPUT, "--use-dynamic-batch-size needs --max-tokens-per-gpu");
    }
    if (!o->use_dynamic_batch_size && is_set(o->max_tokens_per_gpu)) {
        return ERR(e, STATUS_INPUT,
                   "--max-tokens-per-gpu has no effect without --use-dynamic-batch-size");
    }
    return 0;
}

static int check_memory(const struct train_opts *o, struct err *e)
{
    if ((o->exp_avg_dtype || o->exp_avg_sq_dtype) && !o->use_precision_aware_optimizer) {
        return ERR(e, STATUS_INPUT,
                   "--exp-avg-dtype and --exp-avg-sq-dtype bf16 need "
                   "--use-precision-aware-optimizer");
    }
    if (o->recompute_granularity != 0 &&
        (o->recompute_method != -1 || is_set(o->recompute_num_layers))) {
        return ERR(e, STATUS_INPUT,
                   "--recompute-method and --recompute-num-layers need "
                   "--recompute-granularity full");
    }
    if (o->recompute_method == 1 && !is_set(o->recompute_num_layers)) {
        return ERR(e, STATUS_INPUT, "--recompute-method block needs --recompute-num-layers");
    }
    if (o->recompute_method != 1 && is_set(o->recompute_num_layers) &&
        o->recompute_num_layers != 1) {
        return ERR(e, STATUS_UNSUPPORTED,
                   "--recompute-num-layers %lld: with --recompute-method uniform every layer's "
                   "input is kept, which is 1",
                   (long long)o->recompute_num_layers);
    }
    return 0;
}

static int derive_sampling(struct train_opts *o, struct err *e)
{
    if (!is_set(o->over_sampling_batch_size)) {
        o->over_sampling_batch_size = o->rollout_batch_size;
    }
    if (o->over_sampling_batch_size < o->rollout_batch_size) {
        return ERR(e, STATUS_INPUT,
                   "--over-sampling-batch-size %lld is less than --rollout-batch-size %lld",
                   (long long)o->over_sampling_batch_size, (long long)o->rollout_batch_size);
    }
    if (o->rollout_top_k == 0) {
        return ERR(e, STATUS_INPUT, "--rollout-top-k 0 leaves no token; -1 is all");
    }
    if (is_set(o->rollout_max_context_len)) {
        int64_t max = o->rollout_max_context_len - 1;
        if (!is_set(o->rollout_max_prompt_len)) {
            o->rollout_max_prompt_len = max;
        }
        if (o->rollout_max_prompt_len > max || max < 1) {
            return ERR(e, STATUS_INPUT,
                       "--rollout-max-prompt-len %lld leaves no room in "
                       "--rollout-max-context-len %lld",
                       (long long)o->rollout_max_prompt_len, (long long)o->rollout_max_context_len);
        }
    }
    if (!is_set(o->rollout_max_response_len) && !o->debug_train_only &&
        (o->loss_type != LOSS_SFT || is_set(o->eval_interval))) {
        return ERR(e, STATUS_INPUT, "--rollout-max-response-len is needed");
    }
    return 0;
}

static int check_rollout(struct train_opts *o, struct err *e)
{
    if (o->rollout_submission_granularity < 0) {
        o->rollout_submission_granularity = o->fully_async ? TRAIN_BY_SAMPLE : TRAIN_BY_GROUP;
    }
    if (o->mask_offpolicy_in_partial_rollout && !o->partial_rollout) {
        return ERR(e, STATUS_INPUT,
                   "--mask-offpolicy-in-partial-rollout has no effect without --partial-rollout");
    }
    if (o->buffer_filter_path && !o->partial_rollout) {
        return ERR(e, STATUS_INPUT, "--buffer-filter-path has no effect without --partial-rollout");
    }
    if (o->partial_rollout && o->load_debug_rollout_data) {
        return ERR(e, STATUS_INPUT,
                   "--partial-rollout and --load-debug-rollout-data exclude each other");
    }
    return 0;
}

static int check_fully_async(const struct train_opts *o, struct err *e)
{
    const char *other = o->partial_rollout                    ? "--partial-rollout"
                        : o->rollout_all_samples_process_path ? "--rollout-all-samples-process-path"
                        : o->rollout_function_path            ? "--rollout-function-path"
                        : o->load_debug_rollout_data          ? "--load-debug-rollout-data"
                        : o->debug_rollout_only               ? "--debug-rollout-only"
                                                              : NULL;
    if (!o->fully_async) {
        if (is_set(o->max_weight_staleness) || is_set(o->async_max_concurrent_samples)) {
            return ERR(e, STATUS_INPUT,
                       "--max-weight-staleness and --async-max-concurrent-samples have no effect "
                       "without --fully-async");
        }
        return 0;
    }
    if (!o->train_async) {
        return ERR(e, STATUS_INPUT, "--fully-async needs `miles train-async`");
    }
    if (other) {
        return ERR(e, STATUS_INPUT, "--fully-async and %s exclude each other", other);
    }
    if (is_set(o->async_max_concurrent_samples) &&
        o->async_max_concurrent_samples < o->n_samples_per_prompt) {
        return ERR(e, STATUS_INPUT,
                   "--async-max-concurrent-samples %lld is less than --n-samples-per-prompt %lld",
                   (long long)o->async_max_concurrent_samples, (long long)o->n_samples_per_prompt);
    }
    return 0;
}

/* What cannot be while a rollout is sampled ahead of the training. */
static int check_async(const struct train_opts *o, struct err *e)
{
    int rc = check_fully_async(o, e);

    if (rc || !o->train_async) {
        return rc;
    }
    if (o->colocate) {
        return ERR(e, STATUS_INPUT,
                   "miles train-async and --colocate exclude each other: one samples while the "
                   "other trains");
    }
    if (o->advantage_estimator == ADV_PPO && !o->use_rollout_logprobs && !o->use_tis &&
        !o->keep_old_actor) {
        return ERR(e, STATUS_INPUT,
                   "miles train-async with --advantage-estimator ppo needs --use-rollout-logprobs, "
                   "--use-tis or --keep-old-actor: samples are of older weights");
    }
    return 0;
}

static void inherit_str(char **field, const char *from)
{
    if (!*field && from) {
        *field = mem_strdup(from);
    }
}

static int derive_eval(struct train_opts *o, struct err *e)
{
    if (o->eval_prompt_data.n % 2 != 0) {
        return ERR(e, STATUS_INPUT,
                   "--eval-prompt-data takes pairs of name and file, %lld words "
                   "were given",
                   (long long)o->eval_prompt_data.n);
    }
    for (int64_t i = 0; i < o->eval_prompt_data.n; i += 2) {
        for (int64_t j = 0; j < i; j += 2) {
            if (strcmp(o->eval_prompt_data.v[i], o->eval_prompt_data.v[j]) == 0) {
                return ERR(e, STATUS_INPUT, "--eval-prompt-data names %.200s twice",
                           o->eval_prompt_data.v[i]);
            }
        }
    }
    if (is_set(o->eval_interval) && o->eval_prompt_data.n == 0 && !o->eval_config &&
        !o->eval_function_path) {
        return ERR(e, STATUS_INPUT, "--eval-interval needs --eval-prompt-data or --eval-config");
    }
    if (o->eval_config && o->eval_prompt_data.n) {
        return ERR(e, STATUS_INPUT, "--eval-prompt-data and --eval-config exclude each other");
    }
    inherit_str(&o->eval_input_key, o->input_key);
    inherit_str(&o->eval_label_key, o->label_key);
    inherit_str(&o->eval_tool_key, o->tool_key);
    inherit_str(&o->eval_reward_key, o->reward_key);
    o->eval_temperature = isnan(o->eval_temperature) ? o->rollout_temperature : o->eval_temperature;
    o->eval_top_p = isnan(o->eval_top_p) ? o->rollout_top_p : o->eval_top_p;
    o->eval_top_k = is_set(o->eval_top_k) ? o->eval_top_k : o->rollout_top_k;
    if (!is_set(o->eval_max_response_len)) {
        o->eval_max_response_len = o->rollout_max_response_len;
    }
    if (!is_set(o->eval_max_prompt_len)) {
        o->eval_max_prompt_len = o->rollout_max_prompt_len;
    }
    if (o->eval_top_k == 0) {
        return ERR(e, STATUS_INPUT, "--eval-top-k 0 leaves no token; -1 is all");
    }
    return 0;
}

static int check_skip_forward(const struct train_opts *o, struct err *e)
{
    if (!o->skip_actor_forward_only) {
        return 0;
    }
    if (o->num_steps_per_rollout != 1) {
        return ERR(e, STATUS_INPUT,
                   "--skip-actor-forward-only needs one optimizer step per rollout, there are %lld",
                   (long long)o->num_steps_per_rollout);
    }
    if (o->kl_coef != 0) {
        return ERR(e, STATUS_INPUT,
                   "--skip-actor-forward-only leaves nothing for --kl-coef to "
                   "compare");
    }
    return 0;
}

static char *behind(const char *path, const char *tail)
{
    size_t n = strlen(path), m = strlen(tail) + 1;
    char *s;
    while (n > 1 && path[n - 1] == '/') {
        n--;
    }
    s = mem_alloc(n + m);
    memcpy(s, path, n);
    memcpy(s + n, tail, m);
    return s;
}

static int derive_critic(struct train_opts *o, struct err *e)
{
    if (o->advantage_estimator != ADV_PPO) {
        if (o->num_critic_only_steps || o->critic_load || o->critic_save || !isnan(o->critic_lr)) {
            return ERR(e, STATUS_INPUT,
                       "--num-critic-only-steps, --critic-load, --critic-save and --critic-lr have "
                       "no effect without --advantage-estimator ppo");
        }
        return 0;
    }
    if (o->kl_coef != 0) {
        return ERR(e, STATUS_INPUT, "--advantage-estimator ppo and --kl-coef exclude each other");
    }
    if (o->skip_actor_forward_only) {
        return ERR(e, STATUS_INPUT,
                   "--advantage-estimator ppo and --skip-actor-forward-only exclude each other");
    }
    if (o->critic_save && !o->save) {
        return ERR(e, STATUS_INPUT, "--critic-save needs --save");
    }
    if (o->load && !o->critic_load) {
        o->critic_load = behind(o->load, "_critic");
    }
    if (o->save && !o->critic_save) {
        o->critic_save = behind(o->save, "_critic");
    }
    o->critic_lr = isnan(o->critic_lr) ? o->lr : o->critic_lr;
    return 0;
}

/* Where the estimators of the field want more than Miles' own. */
static int check_estimator(struct train_opts *o, struct err *e)
{
    int est = o->advantage_estimator;

    if (est == ADV_RLOO && o->n_samples_per_prompt < 2) {
        return ERR(e, STATUS_INPUT,
                   "--advantage-estimator rloo needs --n-samples-per-prompt 2 or more: a sample is "
                   "held against the others of its group");
    }
    if (est == ADV_DR_GRPO && isnan(o->loss_divisor) && is_set(o->rollout_max_response_len)) {
        o->loss_divisor = (double)o->rollout_max_response_len;
    }
    if (est == ADV_DR_GRPO && isnan(o->loss_divisor)) {
        return ERR(e, STATUS_INPUT,
                   "--advantage-estimator dr_grpo needs --loss-divisor or "
                   "--rollout-max-response-len");
    }
    if (!isnan(o->loss_divisor) && o->calculate_per_token_loss) {
        return ERR(e, STATUS_INPUT,
                   "%s and --calculate-per-token-loss exclude each other: one divides by a "
                   "constant, one by the tokens of the step",
                   est == ADV_DR_GRPO ? "--advantage-estimator dr_grpo" : "--loss-divisor");
    }
    if (is_set(o->overlong_buffer_len) && (!is_set(o->rollout_max_response_len) ||
                                           o->overlong_buffer_len > o->rollout_max_response_len)) {
        return ERR(e, STATUS_INPUT,
                   "--overlong-buffer-len %lld is more than --rollout-max-response-len",
                   (long long)o->overlong_buffer_len);
    }
    if (est == ADV_CISPO && !isnan(o->eps_clip_c)) {
        return ERR(e, STATUS_INPUT, "--eps-clip-c has no effect with --advantage-estimator cispo");
    }
    return 0;
}

/* Functions of the user's and what they need. */
static int check_ext(const struct train_opts *o, struct err *e)
{
    int custom = o->loss_type == LOSS_CUSTOM;

    if (custom && !o->custom_loss_function_path) {
        return ERR(e, STATUS_INPUT, "--loss-type custom_loss needs --custom-loss-function-path");
    }
    if (!custom && o->custom_loss_function_path) {
        return ERR(e, STATUS_INPUT,
                   "--custom-loss-function-path has no effect without --loss-type custom_loss");
    }
    if (custom && (o->custom_tis_function_path || o->custom_pg_loss_reducer_function_path ||
                   o->use_tis || o->use_opsm)) {
        return ERR(e, STATUS_INPUT,
                   "--loss-type custom_loss takes the place of the policy loss: --use-tis, "
                   "--use-opsm, --custom-tis-function-path and "
                   "--custom-pg-loss-reducer-function-path have no effect with it");
    }
    if (o->custom_convert_samples_to_train_data_path && o->custom_reward_post_process_path) {
        return ERR(e, STATUS_INPUT,
                   "--custom-convert-samples-to-train-data-path gives the rewards itself: "
                   "--custom-reward-post-process-path has no effect with it");
    }
    return 0;
}

static int check_algorithm(struct train_opts *o, struct err *e)
{
    int est = o->advantage_estimator, rc;

    rc = check_ext(o, e);
    if (rc) {
        return rc;
    }
    if (o->kl_coef != 0 && o->kl_loss_coef != 0) {
        return ERR(e, STATUS_INPUT, "--kl-coef and --kl-loss-coef are both set: choose one");
    }
    if (o->kl_loss_coef != 0 && !o->use_kl_loss) {
        return ERR(e, STATUS_INPUT, "--kl-loss-coef has no effect without --use-kl-loss");
    }
    if (o->use_rollout_logprobs && o->use_tis) {
        return ERR(e, STATUS_INPUT, "--use-rollout-logprobs and --use-tis exclude each other");
    }
    if ((est == ADV_REINFORCE_PP || est == ADV_REINFORCE_PP_BASELINE) && !o->normalize_advantages) {
        return ERR(e, STATUS_INPUT,
                   "--advantage-estimator reinforce_plus_plus* needs "
                   "--normalize-advantages");
    }
    if (o->tis_clip_low > o->tis_clip) {
        return ERR(e, STATUS_INPUT, "--tis-clip-low %g is above --tis-clip %g", o->tis_clip_low,
                   o->tis_clip);
    }
    rc = derive_critic(o, e);
    rc = rc ? rc : algo_opts_check(o, e);
    rc = rc ? rc : check_estimator(o, e);
    rc = rc ? rc : correction_check(o, e);
    if (rc) {
        return rc;
    }
    if (isnan(o->eps_clip_high)) {
        o->eps_clip_high = o->eps_clip;
    }
    if (o->n_samples_per_prompt == 1 && o->grpo_std_normalization) {
        o->grpo_std_normalization = 0;
    }
    return check_skip_forward(o, e);
}

static int check_schedule(struct train_opts *o, struct err *e)
{
    if (o->min_lr > o->lr) {
        return ERR(e, STATUS_INPUT, "--min-lr %g is above --lr %g", o->min_lr, o->lr);
    }
    if (!isnan(o->lr_warmup_fraction) && o->lr_warmup_iters != 0) {
        return ERR(e, STATUS_INPUT,
                   "--lr-warmup-fraction and --lr-warmup-iters exclude each other");
    }
    if (is_set(o->lr_decay_iters) && o->lr_warmup_iters >= o->lr_decay_iters) {
        return ERR(e, STATUS_INPUT, "--lr-warmup-iters %lld fills all of --lr-decay-iters %lld",
                   (long long)o->lr_warmup_iters, (long long)o->lr_decay_iters);
    }
    if (o->lr_decay_style == LRSCHED_WSD && !is_set(o->lr_wsd_decay_iters)) {
        return ERR(e, STATUS_INPUT, "--lr-decay-style WSD needs --lr-wsd-decay-iters");
    }
    if (o->weight_decay_incr_style == LRSCHED_WD_CONSTANT) {
        if (!isnan(o->start_weight_decay) || !isnan(o->end_weight_decay)) {
            return ERR(e, STATUS_INPUT,
                       "--start-weight-decay and --end-weight-decay have no effect "
                       "with --weight-decay-incr-style constant");
        }
        o->start_weight_decay = o->end_weight_decay = o->weight_decay;
    } else if (isnan(o->start_weight_decay) || isnan(o->end_weight_decay)) {
        return ERR(e, STATUS_INPUT,
                   "--weight-decay-incr-style needs --start-weight-decay and "
                   "--end-weight-decay");
    }
    return 0;
}

static int check_sources(const struct train_opts *o, struct err *e)
{
    if (!o->hf_checkpoint) {
        return ERR(e, STATUS_INPUT, "--hf-checkpoint is needed");
    }
    if (o->debug_train_only && o->debug_rollout_only) {
        return ERR(e, STATUS_INPUT,
                   "--debug-train-only and --debug-rollout-only exclude each other");
    }
    if (o->debug_train_only && !o->load_debug_rollout_data && o->loss_type != LOSS_SFT) {
        return ERR(e, STATUS_INPUT, "--debug-train-only needs --load-debug-rollout-data");
    }
    if (!o->rollout_global_dataset) {
        if (!o->data_source_path && !o->rollout_function_path) {
            return ERR(e, STATUS_INPUT,
                       "--disable-rollout-global-dataset needs --data-source-path or "
                       "--rollout-function-path");
        }
        if (!is_set(o->num_rollout)) {
            return ERR(e, STATUS_INPUT, "--disable-rollout-global-dataset needs --num-rollout");
        }
        if (o->prompt_data) {
            log_info(opts, "--prompt-data %s: not read with --disable-rollout-global-dataset",
                     o->prompt_data);
        }
    } else if (!o->prompt_data && !o->load_debug_rollout_data && !o->data_source_path) {
        return ERR(e, STATUS_INPUT, "--prompt-data is needed");
    }
    if (!is_set(o->num_rollout) && !is_set(o->num_epoch)) {
        return ERR(e, STATUS_INPUT, "--num-rollout or --num-epoch is needed");
    }
    if (is_set(o->save_interval) && !o->save) {
        return ERR(e, STATUS_INPUT, "--save-interval needs --save");
    }
    if (o->apply_chat_template_kwargs && !json_is_object(o->apply_chat_template_kwargs)) {
        return ERR(e, STATUS_INPUT, "--apply-chat-template-kwargs is not a JSON object");
    }
    if (o->numeric_leaves & (o->numeric_leaves - 1)) {
        return ERR(e, STATUS_INPUT, "--numeric-leaves %lld is no power of two",
                   (long long)o->numeric_leaves);
    }
    if (o->ref_load && !train_opts_needs_ref(o) && !o->load) {
        log_debug(opts, "--ref-load gives the first weights only: no KL is asked for");
    }
    return 0;
}

static int check_debug(struct train_opts *o, struct err *e)
{
    if (!isnan(o->load_debug_rollout_data_subsample) && !o->load_debug_rollout_data) {
        return ERR(e, STATUS_INPUT,
                   "--load-debug-rollout-data-subsample needs --load-debug-rollout-data");
    }
    details_derive(o);
    if (o->debug_rollout_only && o->load_debug_rollout_data) {
        return ERR(e, STATUS_INPUT,
                   "--debug-rollout-only and --load-debug-rollout-data exclude each other");
    }
    if (o->rollout_stop.n > TRAIN_OPTS_MAX_STOPS) {
        return ERR(e, STATUS_INPUT, "--rollout-stop: %lld texts, at most %d are taken",
                   (long long)o->rollout_stop.n, TRAIN_OPTS_MAX_STOPS);
    }
    for (int64_t i = 0; i < o->rollout_stop.n; i++) {
        if (!o->rollout_stop.v[i][0] || strlen(o->rollout_stop.v[i]) > 4096) {
            return ERR(e, STATUS_INPUT, "--rollout-stop: each must be a text of 1 to 4096 bytes");
        }
    }
    return STATUS_OK;
}

/* Flags of Miles that are other names or repeat another. */
static int check_scripts(struct train_opts *o, struct err *e)
{
    if (!isnan(o->tis_threshold)) {
        if (o->tis_clip != atof(TRAIN_OPTS_TIS_CLIP) && o->tis_clip != o->tis_threshold) {
            return ERR(e, STATUS_INPUT, "--tis-threshold %g and --tis-clip %g are one bound",
                       o->tis_threshold, o->tis_clip);
        }
        o->tis_clip = o->tis_threshold;
    }
    if (o->gradient_checkpointing == 1) {
        if (o->recompute_granularity == 1) {
            return ERR(e, STATUS_INPUT,
                       "--gradient-checkpointing and --recompute-granularity selective exclude "
                       "each other");
        }
        o->recompute_granularity = 0;
    }
    if (o->debug_disable_optimizer) {
        o->lr = o->min_lr = o->lr_warmup_init = 0.0;
        o->critic_lr = isnan(o->critic_lr) ? o->critic_lr : 0.0;
    }
    if (o->save_trigger_sentinel && !o->save) {
        return ERR(e, STATUS_INPUT, "--save-trigger-sentinel needs --save");
    }
    if (!o->load && (o->finetune || o->no_load_optim || is_set(o->ckpt_step))) {
        return ERR(e, STATUS_INPUT, "%s needs --load",
                   o->finetune        ? "--finetune"
                   : o->no_load_optim ? "--no-load-optim"
                                      : "--ckpt-step");
    }
    return STATUS_OK;
}

void train_opts_defaults(struct train_opts *o, const struct conf *c)
{
    if (o->train_backend != TRAIN_OPTS_FSDP) {
        return;
    }
    if (!conf_is_set(c, "lr-decay-style")) {
        o->lr_decay_style = LRSCHED_CONSTANT;
    }
    if (!conf_is_set(c, "weight-decay")) {
        o->weight_decay = 0.0;
    }
    if (!conf_is_set(c, "adam-beta2")) {
        o->adam_beta2 = 0.95;
    }
}

int train_opts_validate(struct train_opts *o, struct err *e)
{
    int rc = check_sources(o, e);
    rc = rc ? rc : check_scripts(o, e);
    rc = rc ? rc : agent_opts_check(o, e);
    rc = rc ? rc : check_debug(o, e);
    rc = rc ? rc : derive_batch(o, e);
    rc = rc ? rc : check_packing(o, e);
    rc = rc ? rc : check_memory(o, e);
    rc = rc ? rc : derive_sampling(o, e);
    rc = rc ? rc : check_rollout(o, e);
    rc = rc ? rc : check_async(o, e);
    rc = rc ? rc : derive_eval(o, e);
    rc = rc ? rc : check_algorithm(o, e);
    return rc ? rc : check_schedule(o, e);
}

int train_opts_num_rollout(const struct train_opts *o, int64_t prompts, int64_t *out, struct err *e)
{
    int64_t n = o->num_rollout;
    int64_t samples = o->rollout_batch_size * o->n_samples_per_prompt;

    if (!is_set(n)) {
        if (!is_set(o->num_epoch)) {
            return ERR(e, STATUS_INPUT, "--num-rollout or --num-epoch is needed");
        }
        if (prompts > INT64_MAX / o->num_epoch) {
            return ERR(e, STATUS_INPUT, "--num-epoch %lld is too many", (long long)o->num_epoch);
        }
        n = prompts * o->num_epoch / o->rollout_batch_size;
    }
    if (n > INT64_MAX / 4 / samples) {
        return ERR(e, STATUS_INPUT, "%lld rollouts of %lld samples are more than can be counted",
                   (long long)n, (long long)samples);
    }
    if (n < 1) {
        return ERR(e, STATUS_INPUT,
                   "--num-epoch %lld over %lld prompts does not fill one rollout of %lld",
                   (long long)o->num_epoch, (long long)prompts, (long long)o->rollout_batch_size);
    }
    *out = n;
    return 0;
}

int64_t train_opts_train_iters(const struct train_opts *o, int64_t num_rollout)
{
    return num_rollout * o->num_steps_per_rollout;
}

int train_opts_needs_old_pass(const struct train_opts *o)
{
    return o->compute_advantages_and_returns && !o->use_rollout_logprobs &&
           !o->skip_actor_forward_only && !o->debug_rollout_only;
}

int train_opts_needs_train_pass(const struct train_opts *o)
{
    return o->use_rollout_logprobs && o->get_mismatch_metrics && !o->debug_rollout_only;
}

int train_opts_needs_ref(const struct train_opts *o)
{
    return o->loss_type != LOSS_SFT && (o->use_kl_loss || o->kl_coef != 0);
}

/* --- views for the modules below --- */

void train_opts_reward(const struct train_opts *o, struct adv_reward_opts *out)
{
    *out = (struct adv_reward_opts){.estimator = (enum adv_estimator)o->advantage_estimator,
                                    .normalize = o->rewards_normalization,
                                    .std = o->grpo_std_normalization,
                                    .n_samples_per_prompt = o->n_samples_per_prompt,
                                    .rollout_batch_size = o->rollout_batch_size};
}

void train_opts_adv(const struct train_opts *o, struct adv_opts *out)
{
    *out = (struct adv_opts){.estimator = (enum adv_estimator)o->advantage_estimator,
                             .kl_coef = (float)o->kl_coef,
                             .gamma = (float)o->gamma,
                             .lambd = (float)o->lambd};
}

void train_opts_loss(const struct train_opts *o, struct loss_opts *out)
{
    *out = (struct loss_opts){.type = (enum loss_type)o->loss_type,
                              .gspo = o->advantage_estimator == ADV_GSPO,
                              .cispo = o->advantage_estimator == ADV_CISPO,
                              .eps_clip = (float)o->eps_clip,
                              .eps_clip_high = (float)o->eps_clip_high,
                              .eps_clip_c = isnan(o->eps_clip_c) ? 0.0f : (float)o->eps_clip_c,
                              .use_kl_loss = o->use_kl_loss,
                              .kl_loss_coef = (float)o->kl_loss_coef,
                              .kl_loss_type = (enum loss_kl)o->kl_loss_type,
                              .unbiased_kl = o->use_unbiased_kl,
                              .entropy_coef = (float)o->entropy_coef,
                              .entropy = o->entropy_coef != 0 || o->observe_training_entropy,
                              .per_token = o->calculate_per_token_loss,
                              .divisor = isnan(o->loss_divisor) ? 0.0 : o->loss_divisor,
                              .opsm = o->use_opsm,
                              .opsm_delta = (float)o->opsm_delta};
    correction_loss(o, out);
}

void train_opts_value_loss(const struct train_opts *o, struct loss_opts *out)
{
    *out = (struct loss_opts){.type = LOSS_VALUE,
                              .value_clip = (float)o->value_clip,
                              .per_token = o->calculate_per_token_loss};
}

void train_opts_pack(const struct train_opts *o, struct pack_opts *out)
{
    *out =
        (struct pack_opts){.dp = 1,
                           .cp = 1,
                           .global_batch = o->global_batch_size,
                           .dynamic = o->use_dynamic_batch_size,
                           .max_tokens = is_set(o->max_tokens_per_gpu) ? o->max_tokens_per_gpu : 0,
                           .micro_batch = o->micro_batch_size,
                           .balance_data = o->balance_data};
}

void train_opts_sched(const struct train_opts *o, int64_t num_rollout, struct lrsched *out)
{
    int64_t iters = train_opts_train_iters(o, num_rollout);
    int64_t decay = is_set(o->lr_decay_iters) ? o->lr_decay_iters : iters;
    int64_t gbs = o->global_batch_size;

    *out = (struct lrsched){.max_lr = o->lr,
                            .min_lr = o->min_lr,
                            .init_lr = o->lr_warmup_init,
                            .style = (enum lrsched_style)o->lr_decay_style,
                            .wsd = (enum lrsched_wsd)o->lr_wsd_decay_style,
                            .decay = decay * gbs,
                            .wd_start = o->start_weight_decay,
                            .wd_end = o->end_weight_decay,
                            .wd_style = (enum lrsched_wd)o->weight_decay_incr_style,
                            .wd_steps = iters * gbs};
    out->warmup = isnan(o->lr_warmup_fraction)
                      ? o->lr_warmup_iters * gbs
                      : (int64_t)(o->lr_warmup_fraction * (double)out->decay);
    out->wsd_decay = is_set(o->lr_wsd_decay_iters) ? o->lr_wsd_decay_iters * gbs : 0;
}

void train_opts_critic_sched(const struct train_opts *o, int64_t num_rollout, struct lrsched *out)
{
    train_opts_sched(o, num_rollout, out);
    out->max_lr = o->critic_lr;
    out->min_lr = o->min_lr < o->critic_lr ? o->min_lr : o->critic_lr;
    out->warmup = o->critic_lr_warmup_iters * o->global_batch_size;
}
