/* Every option of `miles train`, with Miles' names, types and defaults, the rules that derive one
 * from another, and the combinations that are refused.
 *
 *     struct train_opts o;
 *     conf_add(c, train_opts_table, &o);
 *     conf_parse(c, argc, argv, &e);
 *     train_opts_validate(&o, &e);        derives and refuses; call once, before use
 *
 * Strings, lists and json belong to the conf. An unset int is CONF_UNSET, an unset double NAN, an
 * unset string NULL; fields marked "derived" are always set after train_opts_validate. */
#ifndef RL_TRAIN_OPTS_H
#define RL_TRAIN_OPTS_H

#include <stdint.h>

#include "base/conf.h"
#include "train/adv.h"
#include "train/loss.h"
#include "train/lrsched.h"
#include "train/pack.h"

struct err;

struct train_opts {
    int train_async; /* no option: the command is `miles train-async` */

    /* model and checkpoint */
    char *hf_checkpoint, *load, *save, *ref_load, *save_hf;
    int64_t save_interval, start_rollout_id;
    int no_save_optim;

    /* durability */
    int ledger_mode; /* enum ledger_mode of run/ledger.h */
    int async_save;
    int64_t save_keep, save_keep_bytes;
    double disk_wait, stop_timeout; /* seconds */
    char *debug_fail_io, *debug_asked_log;
    int64_t debug_kill_at;
    char *debug_replay; /* run folder: what `miles replay` adds to a run's own command */
    int64_t debug_replay_from;

    /* data and batching */
    char *prompt_data, *input_key, *label_key, *metadata_key, *tool_key, *chat_template_path;
    int skip_bad_lines;
    int apply_chat_template;
    json_t *apply_chat_template_kwargs; /* object */
    int rollout_shuffle;
    int64_t num_rollout, num_epoch;
    int64_t rollout_batch_size, n_samples_per_prompt;
    int64_t global_batch_size;     /* derived */
    int64_t num_steps_per_rollout; /* derived */
    int64_t micro_batch_size;
    int use_dynamic_batch_size;
    int64_t max_tokens_per_gpu;
    int balance_data;
    int64_t over_sampling_batch_size; /* derived */

    /* rollout */
    int64_t rollout_seed, seed;
    double rollout_temperature, rollout_top_p;
    int64_t rollout_top_k;            /* -1: all */
    int64_t rollout_max_response_len; /* required unless --debug-train-only */
    int64_t rollout_max_prompt_len;   /* derived from the context cap when that is set */
    int64_t rollout_max_context_len;
    struct conf_strs rollout_stop;
    struct conf_ints rollout_stop_token_ids;
    int rollout_skip_special_tokens;
    int rollout_ignore_eos; /* ours: sample to the full length, for measurements */

    /* which groups a rollout keeps, and what becomes of the others */
    char *dynamic_sampling_filter_path, *buffer_filter_path;
    char *rollout_sample_filter_path, *rollout_all_samples_process_path;
    int rollout_submission_granularity; /* enum train_granularity; derived */
    int partial_rollout, mask_offpolicy_in_partial_rollout;
    int64_t rollout_logical_concurrency;

    /* sampling that never stops, with `miles train-async` */
    int fully_async;
    int64_t max_weight_staleness, async_max_concurrent_samples;
    double async_data_buffer_capacity_factor;
    int async_unused_samples_handler; /* enum train_unused */

    /* reward */
    char *rm_type, *custom_rm_path, *reward_key, *eval_reward_key, *reward_python;
    char *rm_url, *custom_reward_post_process_path;
    int group_rm, rm_send_metadata, code_share;
    int64_t reward_workers, rm_max_inflight;
    double reward_timeout; /* seconds per call */
    double code_timeout, code_memory;

    /* evaluation; eval_* are derived from the training ones where unset */
    int64_t eval_interval;
    struct conf_strs eval_prompt_data; /* name, path, name, path, ... */
    char *eval_config;                 /* instead of those: rl/evalset.h */
    int log_passrate;
    int skip_eval_before_train;
    char *eval_input_key, *eval_label_key, *eval_tool_key;
    int64_t n_samples_per_eval_prompt;
    double eval_temperature, eval_top_p;
    int64_t eval_top_k, eval_max_response_len, eval_max_prompt_len;

    /* algorithm */
    int advantage_estimator; /* enum adv_estimator */
    int loss_type;           /* enum loss_type */
    double eps_clip;
    double eps_clip_high; /* derived */
    double eps_clip_c;    /* NAN: off */
    double kl_coef;
    int use_kl_loss;
    double kl_loss_coef;
    int kl_loss_type; /* enum loss_kl */
    int use_unbiased_kl;
    double entropy_coef;
    int observe_training_entropy;
    double gamma, lambd;
    int normalize_advantages;
    int use_opd;
    int opd_type; /* enum train_opd, -1 when unset */
    double opd_kl_coef;
    char *opd_teacher_load;
    double value_clip;
    int64_t num_critic_only_steps;
    char *critic_load, *critic_save; /* derived: --load and --save with _critic behind */
    double critic_lr;                /* derived: --lr */
    int64_t critic_lr_warmup_iters;
    double loss_divisor; /* derived: --rollout-max-response-len for dr_grpo; NAN: lengths */
    int64_t overlong_buffer_len;
    double overlong_penalty_factor;
    int grpo_std_normalization; /* derived: off when n_samples_per_prompt is 1 */
    int rewards_normalization;
    int calculate_per_token_loss;
    int use_rollout_logprobs, skip_actor_forward_only;
    int use_tis, get_mismatch_metrics;
    double tis_clip, tis_clip_low;
    char *custom_tis_function_path;
    char *custom_loss_function_path, *custom_pg_loss_reducer_function_path;
    int tis_function; /* enum loss_tis; derived */
    /* of the correction "mis", see rl/correction.h; choices are -1 when unset, derived otherwise */
    int tis_level, tis_mode, rs_level; /* enum mis_level, enum mis_mode */
    double tis_lower_bound, tis_upper_bound, rs_lower_bound, rs_upper_bound, rs_veto_threshold;
    int tis_batch_normalize, use_rs;
    int use_opsm;
    double opsm_delta;
    /* rules of these: rl/algo_opts.h */
    char *rollout_function_path;
    int loss_mask_type; /* enum chatmask_kind */
    int compute_advantages_and_returns;
    int64_t ref_update_interval;
    int reset_optimizer_states, use_rollout_entropy, keep_old_actor;
    int balance_by_flops, allow_partial_train_step, rollout_trim_samples;
    int use_dynamic_global_batch_size;
    int64_t log_probs_chunk_size; /* -1: no bound */
    int64_t log_probs_max_tokens_per_gpu;
    int64_t opd_log_prob_top_k;
    int opd_top_k_strategy, opd_reward_weight_mode; /* enum opd_strategy, enum opd_weight */
    int opd_topk_per_position;
    struct conf_strs opd_teacher_urls; /* NAME=URL */
    char *opd_teacher_key;
    double opd_timeout;

    /* optimizer */
    double lr, min_lr, lr_warmup_init, lr_warmup_fraction;
    int lr_decay_style; /* enum lrsched_style */
    int64_t lr_decay_iters, lr_warmup_iters;
    int lr_wsd_decay_style; /* enum lrsched_wsd */
    int64_t lr_wsd_decay_iters;
    double weight_decay, start_weight_decay, end_weight_decay; /* the latter two derived */
    int weight_decay_incr_style;                               /* enum lrsched_wd */
    double adam_beta1, adam_beta2, adam_eps, clip_grad;
    int use_precision_aware_optimizer;
    int exp_avg_dtype, exp_avg_sq_dtype; /* 0 fp32, 1 bf16 */

    /* placement and engine */
    int colocate;
    int64_t update_weights_interval;
    int64_t sglang_max_running_requests; /* CONF_UNSET: the engine chooses */
    double sglang_mem_fraction_static;
    int64_t sglang_context_length;

    /* debug */
    int debug_rollout_only, debug_train_only;
    char *save_debug_rollout_data, *load_debug_rollout_data;
    int64_t debug_exit_after_rollout;
    int debug_determinism;
    double load_debug_rollout_data_subsample;
    char *dump_details, *save_debug_train_data, *save_debug_trajectory_data;

    /* memory */
    int recompute_granularity; /* -1 none, 0 full, 1 selective */
    int recompute_method;      /* -1 unset, 0 uniform, 1 block */
    int64_t recompute_num_layers;

    /* extension points, see rl/extend.h */
    char *eval_function_path, *data_source_path;
    char *custom_generate_function_path, *custom_model_provider_path;

    /* agents, see docs/agents.md */
    char *custom_agent_function_path, *generate_execute_tool_function_path;
    char *generate_tool_specs_path;
    int generate_tool_call_parser; /* -1: none */
    int64_t generate_max_turns, max_seq_len;
    int use_session_server; /* -1 unset, 0 v1, 1 v2 */
    char *session_server_ip;
    struct conf_ints session_server_port;
    int tito_model, session_message_matcher;
    char *session_sample_picker_path, *session_sample_postprocessor_path;
    int log_multi_turn;
    char *custom_convert_samples_to_train_data_path, *rollout_data_postprocess_path;
    char *custom_rollout_log_function_path, *custom_eval_rollout_log_function_path;
    char *custom_megatron_init_path, *custom_megatron_post_save_hook_path;
    char *custom_megatron_before_log_prob_hook_path;
    char *custom_megatron_before_train_step_hook_path;
    double hook_timeout; /* seconds per call */

    /* of Miles' scripts and pages */
    int train_backend; /* enum train_opts_backend: whose defaults */
    int true_on_policy_mode, recompute_logprobs_via_prefill, gradient_checkpointing;
    double tis_threshold; /* another name of tis_clip */
    int64_t debug_weight_sync, debug_rollout_print_every;
    int debug_skip_weight_update, debug_disable_optimizer;
    char *save_trigger_sentinel, *log_reward_category;
    int finetune, no_load_optim;
    int rollout_global_dataset; /* 0: prompts are the user's functions' own */
    int64_t ckpt_step;
    int dry_run;

    /* ours */
    int no_weight_transposes;
    char *custom_config_path, *run_dir;
    char *device;           /* "cpu", "torch:cpu", "torch:cuda" */
    char *libtorch;         /* folder; NULL: looked for */
    int64_t threads;        /* 0: all cores */
    int isa;                /* enum train_opts_isa */
    int64_t numeric_leaves; /* R; 0: from the model */
    int64_t numeric_bundle; /* rows; 0: each sample by itself */
};

enum train_unused { TRAIN_UNUSED_DROP, TRAIN_UNUSED_RETRY }; /* order of the choices */
enum train_granularity { TRAIN_BY_GROUP, TRAIN_BY_SAMPLE };
enum train_opts_backend { TRAIN_OPTS_MEGATRON, TRAIN_OPTS_FSDP };
enum train_opd { TRAIN_OPD_HTTP, TRAIN_OPD_HERE }; /* order of --opd-type */
enum train_opts_isa {
    TRAIN_OPTS_ISA_AUTO,
    TRAIN_OPTS_ISA_SCALAR,
    TRAIN_OPTS_ISA_AVX2,
    TRAIN_OPTS_ISA_AVX512,
    TRAIN_OPTS_ISA_AMX
};

extern const struct conf_opt train_opts_table[];
#define TRAIN_OPTS_TIS_CLIP "2.0" /* default of --tis-clip */

/* What --train-backend fsdp has other defaults for, where c was not given a value. Before
 * train_opts_validate. */
void train_opts_defaults(struct train_opts *o, const struct conf *c);
/* Derives and refuses (STATUS_INPUT, or STATUS_UNSUPPORTED for what is well formed but not built).
 */
int train_opts_validate(struct train_opts *o, struct err *e);

/* num_rollout when given, else from num_epoch and the number of prompts; STATUS_INPUT when neither
 * is there. */
int train_opts_num_rollout(const struct train_opts *o, int64_t prompts, int64_t *out,
                           struct err *e);
/* Rollouts that train in one rollout step, in optimizer steps: num_rollout * batch * n / GBS. */
int64_t train_opts_train_iters(const struct train_opts *o, int64_t num_rollout);
/* 1 when the old-policy pass is needed: neither engine log-probs nor skip_actor_forward_only. */
int train_opts_needs_old_pass(const struct train_opts *o);
/* 1 when the trainer's own log-probs are needed beside the old policy's: for the figures of the
 * mismatch, when the engine's log-probs are the old policy. */
int train_opts_needs_train_pass(const struct train_opts *o);
/* 1 when reference log-probs are needed (KL in the loss or in the reward). */
int train_opts_needs_ref(const struct train_opts *o);

/* The options of the modules below, filled from validated ones. */
void train_opts_reward(const struct train_opts *o, struct adv_reward_opts *out);
void train_opts_adv(const struct train_opts *o, struct adv_opts *out);
/* Of the critic. */
void train_opts_value_loss(const struct train_opts *o, struct loss_opts *out);
void train_opts_critic_sched(const struct train_opts *o, int64_t num_rollout, struct lrsched *out);
void train_opts_loss(const struct train_opts *o, struct loss_opts *out);
void train_opts_pack(const struct train_opts *o, struct pack_opts *out);
void train_opts_sched(const struct train_opts *o, int64_t num_rollout, struct lrsched *out);

#endif
