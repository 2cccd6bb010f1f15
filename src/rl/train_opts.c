/* Owns the option table of `miles train` and the rules between options. Names, types and defaults
 * are Miles' with its default (Megatron) trainer; what Miles leaves to its parser is checked here,
 * once, so that the loop never meets a combination it does not know. */
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
#include "text/chatmask.h"
#include "train/opd.h"

#define O(f)                 offsetof(struct train_opts, f)
#define COUNT                "[1,1000000000]"
#define TOKENS               "[1,16777216]"
#define TIS_CLIP             "2.0"
#define TRAIN_OPTS_MAX_STOPS 64 /* as many as servers take */

const struct conf_opt train_opts_table[] = {
    {"hf-checkpoint", CONF_STR, NULL, NULL, "model: a Hugging Face folder or a GGUF file",
     O(hf_checkpoint), "checkpoint", NULL},
    {"load", CONF_STR, NULL, NULL, "folder of trainer checkpoints to resume from", O(load),
     "checkpoint", NULL},
    {"save", CONF_STR, NULL, NULL, "folder for trainer checkpoints", O(save), "checkpoint", NULL},
    {"save-interval", CONF_INT, NULL, COUNT, "rollouts between checkpoints", O(save_interval),
     "checkpoint", NULL},
    {"no-save-optim", CONF_SWITCH, NULL, NULL, "leave the optimizer's state out of checkpoints",
     O(no_save_optim), "checkpoint", NULL},
    {"ref-load", CONF_STR, NULL, NULL,
     "reference model; also the first weights when --load is empty", O(ref_load), "checkpoint",
     NULL},
    {"save-hf", CONF_PATH, NULL, NULL, "Hugging Face export at each save, {rollout_id} in the name",
     O(save_hf), "checkpoint", NULL},
    {"save-trigger-sentinel", CONF_STR, NULL, NULL,
     "file that, when it is there at the end of a rollout, is removed and makes a checkpoint due",
     O(save_trigger_sentinel), "checkpoint", NULL},
    {"ckpt-step", CONF_INT, NULL, "[0,1000000000]",
     "iteration of --load to resume from; the newest when unset", O(ckpt_step), "checkpoint", NULL},
    {"no-load-optim", CONF_SWITCH, NULL, NULL,
     "leave the optimizer's moments in --load: they start at zero", O(no_load_optim), "checkpoint",
     NULL},
    {"finetune", CONF_SWITCH, NULL, NULL,
     "take only the weights from --load: rollouts, schedule, data and optimizer begin anew",
     O(finetune), "checkpoint", NULL},
    {"start-rollout-id", CONF_INT, NULL, "[0,1000000000]",
     "first rollout; from the checkpoint when unset", O(start_rollout_id), "checkpoint", NULL},

    {"ledger-mode", CONF_CHOICE, "auto", "auto|wal|rollback|off",
     "how a run with --save records answers and rewards in its run folder, so that the same "
     "command "
     "goes on where it was killed: SQLite with a write-ahead log, or, as network file systems need "
     "it, with a rollback journal; auto looks at the file system",
     O(ledger_mode), "durability", NULL},
    {"async-save", CONF_SWITCH, NULL, NULL,
     "checkpoints are written beside the next rollout (they are in any case)", O(async_save),
     "durability", NULL},
    {"save-keep", CONF_INT, NULL, COUNT,
     "newest checkpoints to keep in --save; older ones are removed when a new one is complete",
     O(save_keep), "durability", NULL},
    {"save-keep-bytes", CONF_INT, NULL, "[1,4611686018427387904]",
     "bytes of checkpoints to keep in --save; the newest is always kept", O(save_keep_bytes),
     "durability", NULL},
    {"disk-wait", CONF_FLOAT, "3600", "[0,31536000]",
     "seconds that a run waits for room on a full disk, or for one that refuses writes",
     O(disk_wait), "durability", NULL},
    {"stop-timeout", CONF_FLOAT, "30", "(0,86400]",
     "seconds from a stop signal to the end of the run at the latest", O(stop_timeout),
     "durability", NULL},
    {"debug-fail-io", CONF_STR, NULL, NULL,
     "for tests: the K-th write, sync or rename fails, as write:K or write:K:TIMES",
     O(debug_fail_io), "debug", NULL},
    {"debug-kill-at", CONF_INT, NULL, COUNT, "for tests: SIGKILL at the K-th point of the ledger",
     O(debug_kill_at), "debug", NULL},
    {"debug-replay", CONF_STR, NULL, NULL, "what miles replay adds: the run folder to replay",
     O(debug_replay), "debug", NULL},
    {"debug-replay-from", CONF_INT, NULL, "[0,1000000000]",
     "what miles replay adds: the checkpoint to begin behind", O(debug_replay_from), "debug", NULL},
    {"debug-asked-log", CONF_STR, NULL, NULL,
     "for tests: file that every sample asked of an engine is written to", O(debug_asked_log),
     "debug", NULL},

    {"prompt-data", CONF_STR, NULL, NULL,
     "JSON lines, a JSON array (also .gz, .zst) or Parquet; a slice as FILE@[a:b]; several with "
     "commas",
     O(prompt_data), "data", NULL},
    {"disable-rollout-global-dataset", CONF_OFF, NULL, NULL,
     "no prompts are read: --data-source-path or --rollout-function-path has its own",
     O(rollout_global_dataset), "data", "rollout_global_dataset"},
    {"skip-bad-lines", CONF_SWITCH, NULL, NULL,
     "rows that cannot be read are counted and left out instead of stopping the run",
     O(skip_bad_lines), "data", NULL},
    {"input-key", CONF_STR, "input", NULL, "key of the prompt: text or messages", O(input_key),
     "data", NULL},
    {"label-key", CONF_STR, NULL, NULL, "key of the label", O(label_key), "data", NULL},
    {"metadata-key", CONF_STR, "metadata", NULL, "key of the metadata object", O(metadata_key),
     "data", NULL},
    {"tool-key", CONF_STR, "tools", NULL, "key of the tool list", O(tool_key), "data", NULL},
    {"apply-chat-template", CONF_SWITCH, NULL, NULL, "render messages with the chat template",
     O(apply_chat_template), "data", NULL},
    {"apply-chat-template-kwargs", CONF_JSON, "{}", NULL, "variables for the template",
     O(apply_chat_template_kwargs), "data", NULL},
    {"chat-template-path", CONF_STR, NULL, NULL, "template file instead of the model's",
     O(chat_template_path), "data", NULL},
    {"rollout-shuffle", CONF_SWITCH, NULL, NULL, "shuffle the prompts each epoch",
     O(rollout_shuffle), "data", NULL},
    {"num-rollout", CONF_INT, NULL, COUNT, "rollouts in all", O(num_rollout), "data", NULL},
    {"num-epoch", CONF_INT, NULL, COUNT, "passes over the data, where --num-rollout is unset",
     O(num_epoch), "data", NULL},
    {"rollout-batch-size", CONF_INT, NULL, "[1,1048576]", "prompts per rollout",
     O(rollout_batch_size), "data", NULL},
    {"n-samples-per-prompt", CONF_INT, "1", "[1,65536]", "samples per prompt: the group",
     O(n_samples_per_prompt), "data", NULL},
    {"global-batch-size", CONF_INT, NULL, COUNT, "samples per optimizer step", O(global_batch_size),
     "data", NULL},
    {"num-steps-per-rollout", CONF_INT, NULL, COUNT, "optimizer steps per rollout",
     O(num_steps_per_rollout), "data", NULL},
    {"micro-batch-size", CONF_INT, "1", "[1,65536]",
     "samples per micro-batch without dynamic batches", O(micro_batch_size), "data", NULL},
    {"use-dynamic-batch-size", CONF_SWITCH, NULL, NULL, "fill micro-batches by tokens",
     O(use_dynamic_batch_size), "data", NULL},
    {"max-tokens-per-gpu", CONF_INT, NULL, TOKENS, "tokens in a dynamic micro-batch",
     O(max_tokens_per_gpu), "data", NULL},
    {"balance-data", CONF_SWITCH, NULL, NULL, "equal tokens for all data-parallel ranks",
     O(balance_data), "data", NULL},
    {"balance-by-flops", CONF_SWITCH, NULL, NULL,
     "even out micro-batches by their work, not their tokens", O(balance_by_flops), "data", NULL},
    {"allow-partial-train-step", CONF_SWITCH, NULL, NULL,
     "what does not fill --global-batch-size is a smaller step, not left out",
     O(allow_partial_train_step), "data", NULL},
    {"use-dynamic-global-batch-size", CONF_SWITCH, NULL, NULL,
     "one optimizer step over whatever a rollout brought", O(use_dynamic_global_batch_size), "data",
     NULL},
    {"disable-rollout-trim-samples", CONF_OFF, NULL, NULL,
     "do not cut a rollout to whole global batches before the steps are made of it",
     O(rollout_trim_samples), "data", "rollout_trim_samples"},
    {"log-probs-chunk-size", CONF_INT, "-1", "[-1,16777216]",
     "rows of logits at a time; -1 is what fits in 512 MiB", O(log_probs_chunk_size), "data", NULL},
    {"log-probs-max-tokens-per-gpu", CONF_INT, NULL, TOKENS,
     "--max-tokens-per-gpu of the passes without gradients, where less",
     O(log_probs_max_tokens_per_gpu), "data", NULL},
    {"over-sampling-batch-size", CONF_INT, NULL, "[1,1048576]",
     "prompts asked for at a time; --rollout-batch-size when unset", O(over_sampling_batch_size),
     "data", NULL},

    {"rollout-temperature", CONF_FLOAT, "1.0", "[0,100]",
     "sampling temperature; divides the trainer's logits too", O(rollout_temperature), "rollout",
     NULL},
    {"rollout-top-p", CONF_FLOAT, "1.0", "(0,1]", "nucleus", O(rollout_top_p), "rollout", NULL},
    {"rollout-top-k", CONF_INT, "-1", "[-1,16777216]", "candidates; -1 is all", O(rollout_top_k),
     "rollout", NULL},
    {"rollout-max-response-len", CONF_INT, NULL, TOKENS, "new tokens at most",
     O(rollout_max_response_len), "rollout", NULL},
    {"rollout-max-prompt-len", CONF_INT, NULL, TOKENS,
     "longer prompts are dropped at load and counted", O(rollout_max_prompt_len), "rollout", NULL},
    {"rollout-max-context-len", CONF_INT, NULL, TOKENS, "prompt and response together",
     O(rollout_max_context_len), "rollout", NULL},
    {"rollout-stop", CONF_STRS, NULL, NULL, "texts that end a response, and stay in it",
     O(rollout_stop), "rollout", NULL},
    {"rollout-stop-token-ids", CONF_INTS, NULL, "[0,16777216]", "tokens that end a response",
     O(rollout_stop_token_ids), "rollout", NULL},
    {"rollout-ignore-eos", CONF_SWITCH, NULL, NULL, "sample on past end tokens, for measurements",
     O(rollout_ignore_eos), "rollout", NULL},
    {"rollout-skip-special-tokens", CONF_SWITCH, NULL, NULL,
     "leave special tokens out of the response's text", O(rollout_skip_special_tokens), "rollout",
     NULL},
    {"rollout-seed", CONF_INT, "42", "[0,4611686018427387904]", "seed of shuffling and sampling",
     O(rollout_seed), "rollout", NULL},
    {"seed", CONF_INT, "1234", "[0,4611686018427387904]", "seed of the trainer", O(seed), "rollout",
     NULL},

    {"dynamic-sampling-filter-path", CONF_STR, NULL, NULL,
     "which finished groups are kept: check_reward_nonzero_std, check_no_aborted, or a function "
     "(args, samples)",
     O(dynamic_sampling_filter_path), "rollout", NULL},
    {"rollout-submission-granularity", CONF_CHOICE, NULL, "group|sample",
     "what makes room for more prompts: a finished group (unset), or a finished sample",
     O(rollout_submission_granularity), "rollout", NULL},
    {"partial-rollout", CONF_SWITCH, NULL, NULL,
     "groups that are unfinished when enough are kept go on in the next rollout",
     O(partial_rollout), "rollout", NULL},
    {"mask-offpolicy-in-partial-rollout", CONF_SWITCH, NULL, NULL,
     "of a sample that went on, train only the tokens of its last rollout",
     O(mask_offpolicy_in_partial_rollout), "rollout", NULL},
    {"buffer-filter-path", CONF_STR, NULL, NULL,
     "which unfinished groups go on: pop_first (unset), or a function (args, rollout_id, buffer, "
     "n)",
     O(buffer_filter_path), "rollout", NULL},
    {"rollout-sample-filter-path", CONF_STR, NULL, NULL,
     "function (args, groups) that marks samples which are not trained (remove_sample)",
     O(rollout_sample_filter_path), "rollout", NULL},
    {"rollout-all-samples-process-path", CONF_STR, NULL, NULL,
     "function (args, groups, None) that sees the kept groups and those that the filter dropped",
     O(rollout_all_samples_process_path), "rollout", NULL},
    {"rollout-logical-concurrency", CONF_INT, "512", "[1,1000000]",
     "samples that run at once on the virtual clock by which groups are kept and cut; engines may "
     "run more or fewer",
     O(rollout_logical_concurrency), "rollout", NULL},

    {"fully-async", CONF_SWITCH, NULL, NULL,
     "with `miles train-async`: sampling never stops, rollouts take what is finished",
     O(fully_async), "rollout", NULL},
    {"max-weight-staleness", CONF_INT, NULL, "[0,1000000000]",
     "--fully-async: weight versions that a group may be behind the engines; any when unset",
     O(max_weight_staleness), "rollout", NULL},
    {"async-max-concurrent-samples", CONF_INT, NULL, COUNT,
     "--fully-async: samples in flight; --rollout-batch-size groups when unset",
     O(async_max_concurrent_samples), "rollout", NULL},
    {"async-data-buffer-capacity-factor", CONF_FLOAT, "2.0", "(0,1000000]",
     "--fully-async: finished groups that may wait, in rollouts; with more nothing is submitted",
     O(async_data_buffer_capacity_factor), "rollout", NULL},
    {"async-unused-samples-handler", CONF_CHOICE, "drop", "drop|retry",
     "--fully-async: groups that are too old are dropped, or sampled again",
     O(async_unused_samples_handler), "rollout", NULL},

    {"rm-type", CONF_STR, NULL, NULL, "built-in reward", O(rm_type), "reward", NULL},
    {"custom-rm-path", CONF_STR, NULL, NULL, "reward function: pkg.module.fn or FILE.py:fn",
     O(custom_rm_path), "reward", NULL},
    {"reward-key", CONF_STR, NULL, NULL, "key of the reward when the function returns an object",
     O(reward_key), "reward", NULL},
    {"eval-reward-key", CONF_STR, NULL, NULL, "the same for evaluation", O(eval_reward_key),
     "reward", NULL},
    {"group-rm", CONF_SWITCH, NULL, NULL,
     "the reward function gets all samples of a prompt at once and returns a list", O(group_rm),
     "reward", NULL},
    {"rm-url", CONF_STR, NULL, NULL, "service that --rm-type remote_rm asks", O(rm_url), "reward",
     NULL},
    {"rm-max-inflight", CONF_INT, "64", "[1,4096]", "calls of remote_rm at once",
     O(rm_max_inflight), "reward", NULL},
    {"rm-send-metadata", CONF_SWITCH, NULL, NULL, "remote_rm also sends the sample's metadata",
     O(rm_send_metadata), "reward", NULL},
    {"custom-reward-post-process-path", CONF_STR, NULL, NULL,
     "function (args, samples) that returns raw and shaped rewards, in place of the normalisation",
     O(custom_reward_post_process_path), "reward", NULL},
    {"log-reward-category", CONF_STR, NULL, NULL,
     "key of the object that the reward function returns whose values are counted: "
     "rollout/error_cat/VALUE",
     O(log_reward_category), "reward", NULL},
    {"reward-workers", CONF_INT, "0", "[0,1024]", "processes for Python rewards; 0 chooses",
     O(reward_workers), "reward", NULL},
    {"reward-timeout", CONF_FLOAT, "30", "(0,86400]", "seconds for one reward call",
     O(reward_timeout), "reward", NULL},
    {"reward-python", CONF_STR, "python3", NULL, "interpreter of Python rewards", O(reward_python),
     "reward", NULL},
    {"code-share", CONF_SWITCH, NULL, NULL,
     "--rm-type code gives the share of passed cases, not 1 or 0", O(code_share), "reward", NULL},
    {"code-timeout", CONF_FLOAT, "6", "(0,3600]", "cpu seconds of a case of --rm-type code",
     O(code_timeout), "reward", NULL},
    {"code-memory", CONF_FLOAT, "1024", "[16,1048576]", "megabytes of a case of --rm-type code",
     O(code_memory), "reward", NULL},

    {"eval-interval", CONF_INT, NULL, COUNT, "rollouts between evaluations", O(eval_interval),
     "evaluation", NULL},
    {"eval-prompt-data", CONF_STRS, NULL, NULL, "pairs of name and file", O(eval_prompt_data),
     "evaluation", NULL},
    {"eval-config", CONF_STR, NULL, NULL,
     "YAML or JSON file of evaluation sets with their own keys and sampling, or base64: and its "
     "content",
     O(eval_config), "evaluation", NULL},
    {"log-passrate", CONF_SWITCH, NULL, NULL,
     "pass@k of the groups, k = 1, 2, 4, ...: passrate/ and eval/NAME-pass@k", O(log_passrate),
     "evaluation", NULL},
    {"skip-eval-before-train", CONF_SWITCH, NULL, NULL, "no evaluation before the first step",
     O(skip_eval_before_train), "evaluation", NULL},
    {"eval-input-key", CONF_STR, NULL, NULL, "as --input-key", O(eval_input_key), "evaluation",
     NULL},
    {"eval-label-key", CONF_STR, NULL, NULL, "as --label-key", O(eval_label_key), "evaluation",
     NULL},
    {"eval-tool-key", CONF_STR, NULL, NULL, "as --tool-key", O(eval_tool_key), "evaluation", NULL},
    {"n-samples-per-eval-prompt", CONF_INT, "1", "[1,65536]", "samples per evaluation prompt",
     O(n_samples_per_eval_prompt), "evaluation", NULL},
    {"eval-temperature", CONF_FLOAT, NULL, "[0,100]", "as --rollout-temperature",
     O(eval_temperature), "evaluation", NULL},
    {"eval-top-p", CONF_FLOAT, NULL, "(0,1]", "as --rollout-top-p", O(eval_top_p), "evaluation",
     NULL},
    {"eval-top-k", CONF_INT, NULL, "[-1,16777216]", "as --rollout-top-k", O(eval_top_k),
     "evaluation", NULL},
    {"eval-max-response-len", CONF_INT, NULL, TOKENS, "as --rollout-max-response-len",
     O(eval_max_response_len), "evaluation", NULL},
    {"eval-max-prompt-len", CONF_INT, NULL, TOKENS, "as --rollout-max-prompt-len",
     O(eval_max_prompt_len), "evaluation", NULL},

    {"advantage-estimator", CONF_CHOICE, "grpo", ADV_CHOICES, "how rewards become advantages",
     O(advantage_estimator), "algorithm", NULL},
    {"loss-type", CONF_CHOICE, "policy_loss", LOSS_TYPE_CHOICES, "objective", O(loss_type),
     "algorithm", NULL},
    {"eps-clip", CONF_FLOAT, "0.2", "[0,1]", "lower clip of the ratio", O(eps_clip), "algorithm",
     NULL},
    {"eps-clip-high", CONF_FLOAT, NULL, "[0,inf)", "upper clip; --eps-clip when unset",
     O(eps_clip_high), "algorithm", NULL},
    {"eps-clip-c", CONF_FLOAT, NULL, "(1,inf)", "dual clip for negative advantages", O(eps_clip_c),
     "algorithm", NULL},
    {"kl-coef", CONF_FLOAT, "0.0", "(-inf,inf)", "weight of the KL in the reward", O(kl_coef),
     "algorithm", NULL},
    {"use-kl-loss", CONF_SWITCH, NULL, NULL, "KL to the reference in the loss", O(use_kl_loss),
     "algorithm", NULL},
    {"kl-loss-coef", CONF_FLOAT, "0.0", "(-inf,inf)", "weight of the KL in the loss",
     O(kl_loss_coef), "algorithm", NULL},
    {"kl-loss-type", CONF_CHOICE, "k1", LOSS_KL_CHOICES, "KL estimator", O(kl_loss_type),
     "algorithm", NULL},
    {"use-unbiased-kl", CONF_SWITCH, NULL, NULL, "weight the KL by the importance ratio",
     O(use_unbiased_kl), "algorithm", NULL},
    {"entropy-coef", CONF_FLOAT, "0.0", "(-inf,inf)", "weight of the entropy bonus",
     O(entropy_coef), "algorithm", NULL},
    {"observe-training-entropy", CONF_SWITCH, NULL, NULL,
     "report the entropy although its weight is 0", O(observe_training_entropy), "algorithm", NULL},
    {"gamma", CONF_FLOAT, "1.0", "[0,1]", "discount", O(gamma), "algorithm", NULL},
    {"lambd", CONF_FLOAT, "1.0", "[0,1]", "lambda of generalised advantage estimation", O(lambd),
     "algorithm", NULL},
    {"normalize-advantages", CONF_SWITCH, NULL, NULL, "whiten advantages over the batch",
     O(normalize_advantages), "algorithm", NULL},
    {"disable-grpo-std-normalization", CONF_OFF, NULL, NULL, "do not divide by the group's spread",
     O(grpo_std_normalization), "algorithm", "grpo_std_normalization"},
    {"disable-rewards-normalization", CONF_OFF, NULL, NULL, "raw rewards", O(rewards_normalization),
     "algorithm", "rewards_normalization"},
    {"calculate-per-token-loss", CONF_SWITCH, NULL, NULL, "mean over tokens, not over rollouts",
     O(calculate_per_token_loss), "algorithm", NULL},
    {"use-opd", CONF_SWITCH, NULL, NULL,
     "on-policy distillation: advantages lose what the model has over a teacher's log-probs",
     O(use_opd), "algorithm", NULL},
    {"opd-type", CONF_CHOICE, NULL, "sglang|megatron",
     "where the teacher is: behind HTTP, or in this process (megatron)", O(opd_type), "algorithm",
     NULL},
    {"opd-kl-coef", CONF_FLOAT, "1.0", "(-inf,inf)", "weight of the distillation", O(opd_kl_coef),
     "algorithm", NULL},
    {"opd-teacher-load", CONF_STR, NULL, NULL,
     "the teacher in this process: a Hugging Face folder or a GGUF file", O(opd_teacher_load),
     "algorithm", NULL},
    {"value-clip", CONF_FLOAT, "0.2", "(0,inf)",
     "ppo: how far the critic's values may move before its loss stops following", O(value_clip),
     "algorithm", NULL},
    {"num-critic-only-steps", CONF_INT, "0", "[0,1000000000]",
     "ppo: first rollouts that train the critic alone", O(num_critic_only_steps), "algorithm",
     NULL},
    {"critic-load", CONF_STR, NULL, NULL,
     "ppo: folder of the critic's checkpoints; --load with _critic behind when unset",
     O(critic_load), "algorithm", NULL},
    {"critic-save", CONF_STR, NULL, NULL,
     "ppo: where they are written; --save with _critic behind when unset", O(critic_save),
     "algorithm", NULL},
    {"critic-lr", CONF_FLOAT, NULL, "[0,1000]", "ppo: the critic's learning rate; --lr when unset",
     O(critic_lr), "algorithm", NULL},
    {"critic-lr-warmup-iters", CONF_INT, "0", "[0,1000000000]", "ppo: the critic's warm-up steps",
     O(critic_lr_warmup_iters), "algorithm", NULL},
    {"loss-divisor", CONF_FLOAT, NULL, "(0,inf)",
     "a sample's policy terms are divided by this, not by its length; --rollout-max-response-len "
     "for dr_grpo",
     O(loss_divisor), "algorithm", NULL},
    {"overlong-buffer-len", CONF_INT, NULL, TOKENS,
     "responses within so many tokens of --rollout-max-response-len lose reward, in proportion",
     O(overlong_buffer_len), "algorithm", NULL},
    {"overlong-penalty-factor", CONF_FLOAT, "1.0", "[0,inf)",
     "what the longest response loses by --overlong-buffer-len", O(overlong_penalty_factor),
     "algorithm", NULL},
    {"use-rollout-logprobs", CONF_SWITCH, NULL, NULL, "the engine's log-probs are the old policy",
     O(use_rollout_logprobs), "algorithm", NULL},
    {"skip-actor-forward-only", CONF_SWITCH, NULL, NULL,
     "no old-policy pass (one step per rollout)", O(skip_actor_forward_only), "algorithm", NULL},
    {"use-tis", CONF_SWITCH, NULL, NULL, "truncated importance sampling", O(use_tis), "algorithm",
     NULL},
    {"tis-clip", CONF_FLOAT, TIS_CLIP, "[0,inf)", "upper bound of its weight", O(tis_clip),
     "algorithm", NULL},
    {"tis-threshold", CONF_FLOAT, NULL, "[0,inf)", "another name of --tis-clip", O(tis_threshold),
     "algorithm", NULL},
    {"tis-clip-low", CONF_FLOAT, "0", "[0,inf)", "lower bound of its weight", O(tis_clip_low),
     "algorithm", NULL},
    {"get-mismatch-metrics", CONF_SWITCH, NULL, NULL,
     "figures of --custom-tis-function-path without --use-tis: the loss stays as it is",
     O(get_mismatch_metrics), "algorithm", NULL},
    {"custom-tis-function-path", CONF_STR, NULL, NULL,
     "another correction: icepop, mis, or a function of yours", O(custom_tis_function_path),
     "algorithm", NULL},
    {"custom-loss-function-path", CONF_STR, NULL, NULL,
     "function that makes the loss of --loss-type custom_loss", O(custom_loss_function_path),
     "algorithm", NULL},
    {"custom-pg-loss-reducer-function-path", CONF_STR, NULL, NULL,
     "function that says how the policy loss of tokens is summed",
     O(custom_pg_loss_reducer_function_path), "algorithm", NULL},
    {"tis-level", CONF_CHOICE, NULL, MIS_LEVEL_CHOICES,
     "mis: ratio of each token (unset), of the response, or of its geometric mean", O(tis_level),
     "algorithm", NULL},
    {"tis-mode", CONF_CHOICE, NULL, MIS_MODE_CHOICES,
     "mis: cap the weight (unset), bound it on both sides, or leave out what is outside",
     O(tis_mode), "algorithm", NULL},
    {"tis-upper-bound", CONF_FLOAT, NULL, "(0,inf)", "mis: upper bound of the weight; 2 when unset",
     O(tis_upper_bound), "algorithm", NULL},
    {"tis-lower-bound", CONF_FLOAT, NULL, "[0,inf)",
     "mis: lower bound of the weight; 1 / --tis-upper-bound when unset", O(tis_lower_bound),
     "algorithm", NULL},
    {"tis-batch-normalize", CONF_SWITCH, NULL, NULL,
     "mis: the weights of an optimizer step average 1", O(tis_batch_normalize), "algorithm", NULL},
    {"use-rs", CONF_SWITCH, NULL, NULL, "mis: leave out tokens whose ratio is outside the bounds",
     O(use_rs), "algorithm", NULL},
    {"rs-level", CONF_CHOICE, NULL, MIS_LEVEL_CHOICES,
     "mis: ratio that --use-rs looks at; token when unset", O(rs_level), "algorithm", NULL},
    {"rs-lower-bound", CONF_FLOAT, NULL, "[0,inf)",
     "mis: its lower bound; that of the weight when unset", O(rs_lower_bound), "algorithm", NULL},
    {"rs-upper-bound", CONF_FLOAT, NULL, "(0,inf)",
     "mis: its upper bound; that of the weight when unset", O(rs_upper_bound), "algorithm", NULL},
    {"rs-veto-threshold", CONF_FLOAT, NULL, "(0,inf)",
     "mis: with --use-rs, one token of a smaller ratio leaves out its response",
     O(rs_veto_threshold), "algorithm", NULL},
    {"use-opsm", CONF_SWITCH, NULL, NULL, "mask sequences that left the policy", O(use_opsm),
     "algorithm", NULL},
    {"opsm-delta", CONF_FLOAT, "1e-4", "(-inf,inf)", "its threshold", O(opsm_delta), "algorithm",
     NULL},
    {"rollout-function-path", CONF_STR, NULL, NULL,
     "class or function of yours that makes whole rollouts; sft takes samples from the data as "
     "they are, for --loss-type sft_loss",
     O(rollout_function_path), "algorithm", NULL},
    {"loss-mask-type", CONF_CHOICE, "qwen", CHATMASK_KINDS,
     "sft_loss: how the tokens to train on are found in a conversation", O(loss_mask_type),
     "algorithm", NULL},
    {"disable-compute-advantages-and-returns", CONF_OFF, NULL, NULL,
     "leave advantages and the passes for them out; for sft_loss and custom_loss",
     O(compute_advantages_and_returns), "algorithm", "compute_advantages_and_returns"},
    {"ref-update-interval", CONF_INT, NULL, COUNT,
     "rollouts between two times that the reference becomes a copy of the model",
     O(ref_update_interval), "algorithm", NULL},
    {"reset-optimizer-states", CONF_SWITCH, NULL, NULL, "each rollout begins with a new optimizer",
     O(reset_optimizer_states), "algorithm", NULL},
    {"use-rollout-entropy", CONF_SWITCH, NULL, NULL,
     "report the entropy of each rollout before it is trained on", O(use_rollout_entropy),
     "algorithm", NULL},
    {"keep-old-actor", CONF_SWITCH, NULL, NULL,
     "the old policy of samples from older weights is those weights, of which copies are kept",
     O(keep_old_actor), "algorithm", NULL},
    {"opd-log-prob-top-k", CONF_INT, "0", "[0,128]",
     "candidates of each position that are compared; 0: the sampled token alone",
     O(opd_log_prob_top_k), "algorithm", NULL},
    {"opd-top-k-strategy", CONF_CHOICE, "only-student", OPD_STRATEGIES,
     "whose candidates --opd-log-prob-top-k takes", O(opd_top_k_strategy), "algorithm", NULL},
    {"opd-reward-weight-mode", CONF_CHOICE, "student_p", OPD_WEIGHTS,
     "what weighs these candidates", O(opd_reward_weight_mode), "algorithm", NULL},
    {"opd-topk-per-position", CONF_SWITCH, NULL, NULL,
     "ask the teacher for the candidates of each position alone; only miles serve can",
     O(opd_topk_per_position), "algorithm", NULL},
    {"opd-teacher-urls", CONF_STRS, NULL, NULL,
     "teachers behind HTTP, NAME=URL; the one called default serves all that name no other",
     O(opd_teacher_urls), "algorithm", NULL},
    {"opd-teacher-key", CONF_STR, "opd_teacher", NULL, "key of the metadata that names the teacher",
     O(opd_teacher_key), "algorithm", NULL},
    {"opd-timeout", CONF_FLOAT, "600", "(0,86400]", "seconds for an answer of a teacher",
     O(opd_timeout), "algorithm", NULL},

    {"lr", CONF_FLOAT, "1e-6", "[0,1000]", "learning rate", O(lr), "optimizer", NULL},
    {"min-lr", CONF_FLOAT, "0.0", "[0,1000]", "floor of the schedule", O(min_lr), "optimizer",
     NULL},
    {"lr-decay-style", CONF_CHOICE, "linear", LRSCHED_CHOICES, "shape of the schedule",
     O(lr_decay_style), "optimizer", NULL},
    {"lr-decay-iters", CONF_INT, NULL, COUNT, "steps of the schedule; the whole run when unset",
     O(lr_decay_iters), "optimizer", NULL},
    {"lr-warmup-iters", CONF_INT, "0", "[0,1000000000]", "warm-up steps", O(lr_warmup_iters),
     "optimizer", NULL},
    {"lr-warmup-fraction", CONF_FLOAT, NULL, "[0,1]", "warm-up as a share of the schedule",
     O(lr_warmup_fraction), "optimizer", NULL},
    {"lr-warmup-init", CONF_FLOAT, "0.0", "[0,1000]", "learning rate at the start of the warm-up",
     O(lr_warmup_init), "optimizer", NULL},
    {"lr-wsd-decay-style", CONF_CHOICE, "exponential", LRSCHED_WSD_CHOICES,
     "tail of the WSD schedule", O(lr_wsd_decay_style), "optimizer", NULL},
    {"lr-wsd-decay-iters", CONF_INT, NULL, COUNT, "steps of that tail", O(lr_wsd_decay_iters),
     "optimizer", NULL},
    {"weight-decay", CONF_FLOAT, "0.01", "[0,1000]", "weight decay", O(weight_decay), "optimizer",
     NULL},
    {"start-weight-decay", CONF_FLOAT, NULL, "[0,1000]", "weight decay at the start",
     O(start_weight_decay), "optimizer", NULL},
    {"end-weight-decay", CONF_FLOAT, NULL, "[0,1000]", "weight decay at the end",
     O(end_weight_decay), "optimizer", NULL},
    {"weight-decay-incr-style", CONF_CHOICE, "constant", LRSCHED_WD_CHOICES,
     "shape of the way from start to end", O(weight_decay_incr_style), "optimizer", NULL},
    {"adam-beta1", CONF_FLOAT, "0.9", "[0,1)", "decay of the first moment", O(adam_beta1),
     "optimizer", NULL},
    {"adam-beta2", CONF_FLOAT, "0.999", "[0,1)", "decay of the second moment", O(adam_beta2),
     "optimizer", NULL},
    {"adam-eps", CONF_FLOAT, "1e-8", "(0,1]", "added to the root of the second moment", O(adam_eps),
     "optimizer", NULL},
    {"use-precision-aware-optimizer", CONF_SWITCH, NULL, NULL,
     "lets --exp-avg-dtype and --exp-avg-sq-dtype be bf16; masters are always the bf16 weight and "
     "the 16 bits it lacks",
     O(use_precision_aware_optimizer), "optimizer", NULL},
    {"exp-avg-dtype", CONF_CHOICE, "fp32", "fp32|bf16",
     "type of the first moment; bf16 is rounded up or down by a counter, keeping the mean",
     O(exp_avg_dtype), "optimizer", NULL},
    {"exp-avg-sq-dtype", CONF_CHOICE, "fp32", "fp32|bf16",
     "type of the second moment, as --exp-avg-dtype: to nearest it would never fall with a beta2 "
     "above 0.998",
     O(exp_avg_sq_dtype), "optimizer", NULL},
    {"clip-grad", CONF_FLOAT, "1.0", "[0,inf)", "bound of the gradient's norm; 0 is none",
     O(clip_grad), "optimizer", NULL},

    {"train-backend", CONF_CHOICE, "megatron", "megatron|fsdp",
     "there is one trainer; fsdp: --lr-decay-style, --weight-decay and --adam-beta2 have that "
     "backend's defaults (constant, 0, 0.95)",
     O(train_backend), "placement", NULL},
    {"true-on-policy-mode", CONF_SWITCH, NULL, NULL,
     "insist on rollout log-probs of the trainer's own bits: always so with the native engine, "
     "refused with SGLang's",
     O(true_on_policy_mode), "placement", NULL},
    {"recompute-logprobs-via-prefill", CONF_SWITCH, NULL, NULL,
     "rollout log-probs of a pass over the whole response: the same bits with the native engine, "
     "refused with SGLang's",
     O(recompute_logprobs_via_prefill), "placement", NULL},
    {"colocate", CONF_SWITCH, NULL, NULL, "trainer and engine in one place", O(colocate),
     "placement", NULL},
    {"update-weights-interval", CONF_INT, "1", COUNT,
     "rollouts between two times that engines in other processes get the weights",
     O(update_weights_interval), "placement", NULL},
    {"sglang-max-running-requests", CONF_INT, NULL, "[1,65536]", "samples decoded together",
     O(sglang_max_running_requests), "placement", NULL},
    {"sglang-mem-fraction-static", CONF_FLOAT, NULL, "(0,1)",
     "share of free memory for the key-value cache", O(sglang_mem_fraction_static), "placement",
     NULL},
    {"sglang-context-length", CONF_INT, NULL, TOKENS,
     "context of the engine; the model's when unset", O(sglang_context_length), "placement", NULL},
    {"custom-model-provider-path", CONF_STR, NULL, NULL,
     "shared object that describes a family of models", O(custom_model_provider_path),
     "extension points", NULL},
    {"eval-function-path", CONF_STR, NULL, NULL, "the same for evaluations", O(eval_function_path),
     "extension points", NULL},
    {"data-source-path", CONF_STR, NULL, NULL,
     "class that gives prompts, in place of --prompt-data", O(data_source_path), "extension points",
     NULL},
    {"custom-generate-function-path", CONF_STR, NULL, NULL,
     "function that makes a sample; calls the engines itself", O(custom_generate_function_path),
     "extension points", NULL},
    {"custom-agent-function-path", CONF_STR, NULL, NULL,
     "function that talks to the policy through an OpenAI-compatible endpoint",
     O(custom_agent_function_path), "agents", NULL},
    {"generate-execute-tool-function-path", CONF_STR, NULL, NULL,
     "function that runs a tool: the built-in loop of answers and tools",
     O(generate_execute_tool_function_path), "agents", NULL},
    {"generate-tool-specs-path", CONF_STR, NULL, NULL,
     "its tools: a JSON file, or a list in Python", O(generate_tool_specs_path), "agents", NULL},
    {"generate-tool-call-parser", CONF_CHOICE, NULL, "hermes|qwen|qwen25",
     "<tool_call> in answers of sessions becomes tool_calls", O(generate_tool_call_parser),
     "agents", NULL},
    {"generate-max-turns", CONF_INT, "16", "[1,1024]", "answers of one sample in that loop",
     O(generate_max_turns), "agents", NULL},
    {"max-seq-len", CONF_INT, NULL, TOKENS, "tokens of an agent's conversation", O(max_seq_len),
     "agents", NULL},
    {"use-session-server", CONF_MODE, NULL, "v1|v2",
     "sessions of one line of turns, or with branches; agents take v1 when unset",
     O(use_session_server), "agents", NULL},
    {"session-server-ip", CONF_STR, "127.0.0.1", NULL, "address that the session server listens on",
     O(session_server_ip), "agents", NULL},
    {"session-server-port", CONF_INTS, NULL, "[0,65535]",
     "its port: of a range the first; unset: a free one", O(session_server_port), "agents", NULL},
    {"tito-model", CONF_CHOICE, "default", AGENT_OPTS_FAMILIES,
     "family of the model: of qwen3 and qwennext <think> and <tool_call> in answers of sessions "
     "are "
     "taken apart; what stands between turns is the chat template's for all",
     O(tito_model), "agents", NULL},
    {"session-message-matcher", CONF_CHOICE, "strict", "strict|loose_tool_call|role_content_only",
     "how messages that an agent sends again are compared", O(session_message_matcher), "agents",
     NULL},
    {"session-sample-picker-path", CONF_STR, NULL, NULL,
     "v2: function that chooses among the samples of a session; unset: drop_retries",
     O(session_sample_picker_path), "agents", NULL},
    {"session-sample-postprocessor-path", CONF_STR, NULL, NULL,
     "function that finishes the samples of a session", O(session_sample_postprocessor_path),
     "agents", NULL},
    {"log-multi-turn", CONF_SWITCH, NULL, NULL, "metrics of turns and of their lengths",
     O(log_multi_turn), "agents", NULL},
    {"custom-convert-samples-to-train-data-path", CONF_STR, NULL, NULL,
     "function that makes the training data of the samples",
     O(custom_convert_samples_to_train_data_path), "extension points", NULL},
    {"rollout-data-postprocess-path", CONF_STR, NULL, NULL,
     "function that is called before the passes over a rollout", O(rollout_data_postprocess_path),
     "extension points", NULL},
    {"custom-rollout-log-function-path", CONF_STR, NULL, NULL,
     "function that logs a rollout; true leaves our rollout metrics out",
     O(custom_rollout_log_function_path), "extension points", NULL},
    {"custom-eval-rollout-log-function-path", CONF_STR, NULL, NULL,
     "function that logs an evaluation; true leaves our metrics of it out",
     O(custom_eval_rollout_log_function_path), "extension points", NULL},
    {"custom-megatron-init-path", CONF_STR, NULL, NULL,
     "function that is called when the trainer is set up", O(custom_megatron_init_path),
     "extension points", NULL},
    {"custom-megatron-before-log-prob-hook-path", CONF_STR, NULL, NULL,
     "function that sees the model before each pass for log-probs",
     O(custom_megatron_before_log_prob_hook_path), "extension points", NULL},
    {"custom-megatron-before-train-step-hook-path", CONF_STR, NULL, NULL,
     "function that sees the model before each optimizer step",
     O(custom_megatron_before_train_step_hook_path), "extension points", NULL},
    {"custom-megatron-post-save-hook-path", CONF_STR, NULL, NULL,
     "function that is called when a checkpoint is on disk", O(custom_megatron_post_save_hook_path),
     "extension points", NULL},
    {"hook-timeout", CONF_FLOAT, "600", "(0,86400]", "seconds for one call of a function of yours",
     O(hook_timeout), "extension points", NULL},
    {"recompute-granularity", CONF_CHOICE, NULL, "full|selective",
     "activations computed again in the backward pass: full keeps each layer's input, selective "
     "all "
     "but norm outputs and activation products; never changes a bit",
     O(recompute_granularity), "placement", NULL},
    {"gradient-checkpointing", CONF_BOOL, "false", NULL, "as --recompute-granularity full",
     O(gradient_checkpointing), "placement", NULL},
    {"recompute-method", CONF_CHOICE, NULL, "uniform|block",
     "with full: every layer, or the first --recompute-num-layers", O(recompute_method),
     "placement", NULL},
    {"recompute-num-layers", CONF_INT, NULL, COUNT, "layers of --recompute-method block",
     O(recompute_num_layers), "placement", NULL},
    {"no-weight-transposes", CONF_SWITCH, NULL, NULL,
     "make transposed weights when the backward pass needs them, for 2 bytes less a parameter; "
     "never changes a bit",
     O(no_weight_transposes), "placement", NULL},
    {"threads", CONF_INT, "0", "[0,4096]", "threads; 0 takes the usable cores", O(threads),
     "placement", NULL},
    {"device", CONF_STR, "cpu", NULL,
     "cpu, or torch:cpu, torch:cuda, torch:cuda:N: ATen through libtorch", O(device), "placement",
     NULL},
    {"libtorch", CONF_STR, NULL, NULL,
     "folder of libtorch_cpu.so; unset: the system's, or that of python3's torch", O(libtorch),
     "placement", NULL},
    {"isa", CONF_CHOICE, "auto", "auto|scalar|avx2|avx512|amx",
     "instruction set; never changes a bit", O(isa), "placement", NULL},
    {"numeric-leaves", CONF_INT, "0", "[0,64]",
     "leaves of split contractions (R); 0 follows the model", O(numeric_leaves), "placement", NULL},
    {"numeric-bundle", CONF_INT, "4096", "[0,1048576]",
     "samples of one prompt are trained together, with one pass over it, while prompt and "
     "responses "
     "have at most these tokens; 0: each sample by itself",
     O(numeric_bundle), "placement", NULL},

    {"debug-rollout-only", CONF_SWITCH, NULL, NULL, "sample and score, do not train",
     O(debug_rollout_only), "debug", NULL},
    {"debug-train-only", CONF_SWITCH, NULL, NULL, "train on saved samples", O(debug_train_only),
     "debug", NULL},
    {"save-debug-rollout-data", CONF_PATH, NULL, NULL,
     "file for each rollout's samples, {rollout_id} in the name", O(save_debug_rollout_data),
     "debug", NULL},
    {"load-debug-rollout-data", CONF_PATH, NULL, NULL, "samples to train on instead of sampling",
     O(load_debug_rollout_data), "debug", NULL},
    {"debug-exit-after-rollout", CONF_INT, NULL, COUNT,
     "stop after so many rollouts, schedule unchanged", O(debug_exit_after_rollout), "debug", NULL},
    {"debug-determinism", CONF_SWITCH, NULL, NULL,
     "hashes.jsonl also has the optimizer's state and every sample, for `miles diff`",
     O(debug_determinism), "debug", NULL},
    {"load-debug-rollout-data-subsample", CONF_FLOAT, NULL, "(0,1]",
     "share of the groups of a loaded rollout to train on", O(load_debug_rollout_data_subsample),
     "debug", NULL},
    {"dump-details", CONF_STR, NULL, NULL,
     "folder for samples, the trainer's view of them, conversations and the tokenizer",
     O(dump_details), "debug", NULL},
    {"save-debug-train-data", CONF_STR, NULL, NULL,
     "file for the trainer's view of each rollout, {rollout_id} and {rank} in the name",
     O(save_debug_train_data), "debug", NULL},
    {"save-debug-trajectory-data", CONF_PATH, NULL, NULL,
     "file for each rollout's conversations, {rollout_id} in the name",
     O(save_debug_trajectory_data), "debug", NULL},

    {"debug-weight-sync", CONF_INT, "0", "[0,9]", "1: the log has every step of a weight transfer",
     O(debug_weight_sync), "debug", NULL},
    {"debug-rollout-print-every", CONF_INT, "0", "[0,1000000000]",
     "every so many rollouts, their samples go to stdout, a line of JSON each; 0: never",
     O(debug_rollout_print_every), "debug", NULL},
    {"debug-skip-weight-update", CONF_SWITCH, NULL, NULL,
     "engines in other processes keep the weights that the run began with",
     O(debug_skip_weight_update), "debug", NULL},
    {"debug-disable-optimizer", CONF_SWITCH, NULL, NULL,
     "gradients are computed and reported, the weights stay as they are: every learning rate is 0",
     O(debug_disable_optimizer), "debug", NULL},
    {"dry-run", CONF_SWITCH, NULL, NULL,
     "check the flags and the prompts, show the memory plan, and end: the model's weights need not "
     "be there",
     O(dry_run), "run", NULL},

    {"custom-config-path", CONF_STR, NULL, NULL, "YAML or JSON merged over the flags",
     O(custom_config_path), "run", NULL},
    {"run-dir", CONF_STR, NULL, NULL, "folder for configuration, metrics and logs", O(run_dir),
     "run", NULL},
    {0}};

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
        if (o->tis_clip != atof(TIS_CLIP) && o->tis_clip != o->tis_threshold) {
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
