/* The options of `miles train`: Miles' defaults, derivations, refusals, and what modules get. */
#include "support.h"

#include <math.h>

#include "base/conf.h"
#include "base/status.h"
#include "cli/known_flags.h"
#include "rl/train_opts.h"

static struct conf *c;
static struct train_opts o;
static struct err e;

#define BASE                                                                                       \
    "--hf-checkpoint m --prompt-data p --num-rollout 10 --rollout-batch-size 8 "                   \
    "--rollout-max-response-len 64 --rm-type math "

/* Parses and validates; the parse itself must succeed. */
static int train_async; /* which command it is */

static int run(const char *line)
{
    char **argv;
    int argc = support_words(line, &argv);
    conf_free(c);
    memset(&o, 0x5a, sizeof o);
    memset(&e, 0, sizeof e);
    o.train_async = train_async;
    c = conf_new();
    conf_add(c, train_opts_table, &o);
    conf_add_known(c, known_flags);
    int rc = conf_parse(c, argc, argv, &e);
    return rc ? rc : train_opts_validate(&o, &e);
}

static void refused(const char *line, int status, const char *part)
{
    int rc = run(line);
    if (rc != status || !strstr(e.msg, part)) {
        fail_msg("%s: status %d, \"%s\" lacks \"%s\"", line, rc, e.msg, part);
    }
}

static void defaults(void **state)
{
    (void)state;
    assert_ok(run(BASE), &e);
    assert_int_equal(o.n_samples_per_prompt, 1);
    assert_int_equal(o.global_batch_size, 8);
    assert_int_equal(o.num_steps_per_rollout, 1);
    assert_int_equal(o.micro_batch_size, 1);
    assert_int_equal(o.rollout_seed, 42);
    assert_int_equal(o.seed, 1234);
    assert_true(o.rollout_temperature == 1 && o.rollout_top_p == 1 && o.rollout_top_k == -1);
    assert_int_equal(o.advantage_estimator, ADV_GRPO);
    assert_int_equal(o.loss_type, LOSS_POLICY);
    assert_true(o.eps_clip == 0.2 && o.eps_clip_high == 0.2 && isnan(o.eps_clip_c));
    assert_true(o.kl_coef == 0 && o.kl_loss_coef == 0 && !o.use_kl_loss);
    assert_int_equal(o.kl_loss_type, LOSS_K1);
    assert_true(o.gamma == 1 && o.lambd == 1);
    assert_int_equal(o.rewards_normalization, 1);
    assert_int_equal(o.grpo_std_normalization, 0); /* a group of one has no spread */
    assert_true(o.tis_clip == 2 && o.tis_clip_low == 0 && o.opsm_delta == 1e-4);
    assert_true(o.lr == 1e-6 && o.clip_grad == 1 && o.adam_beta1 == 0.9 && o.adam_eps == 1e-8);
    assert_string_equal(o.input_key, "input");
    assert_string_equal(o.metadata_key, "metadata");
    assert_string_equal(o.tool_key, "tools");
    assert_true(o.rollout_max_prompt_len == CONF_UNSET);
    assert_int_equal(o.over_sampling_batch_size, 8);
    assert_int_equal(o.isa, TRAIN_OPTS_ISA_AUTO);
    assert_true(train_opts_needs_old_pass(&o));
    assert_false(train_opts_needs_ref(&o));
}

static void batch_rules(void **state)
{
    (void)state;
    assert_ok(run(BASE "--n-samples-per-prompt 4 --num-steps-per-rollout 2"), &e);
    assert_int_equal(o.global_batch_size, 16);
    assert_int_equal(o.grpo_std_normalization, 1);
    assert_ok(run(BASE "--n-samples-per-prompt 4 --global-batch-size 8"), &e);
    assert_int_equal(o.num_steps_per_rollout, 4);
    assert_int_equal(train_opts_train_iters(&o, 10), 40);
    assert_ok(run(BASE "--n-samples-per-prompt 4 --global-batch-size 16 --num-steps-per-rollout 2"),
              &e);
    refused(BASE "--n-samples-per-prompt 4 --global-batch-size 8 --num-steps-per-rollout 2",
            STATUS_INPUT, "--global-batch-size 8 is not 16");
    refused(BASE "--global-batch-size 3", STATUS_INPUT, "no multiple of --global-batch-size 3");
    refused(BASE "--global-batch-size 16", STATUS_INPUT, "more than the 8 samples");
    refused(BASE "--num-steps-per-rollout 9", STATUS_INPUT, "more than the 8 samples");
    refused("--hf-checkpoint m --prompt-data p --num-rollout 1 --rm-type math", STATUS_INPUT,
            "--rollout-batch-size is needed");
    refused(BASE "--use-dynamic-batch-size", STATUS_INPUT, "needs --max-tokens-per-gpu");
    refused(BASE "--max-tokens-per-gpu 100", STATUS_INPUT, "without --use-dynamic-batch-size");
    refused(BASE "--over-sampling-batch-size 4", STATUS_INPUT, "less than --rollout-batch-size 8");
    assert_ok(run(BASE "--over-sampling-batch-size 16"), &e);
    assert_int_equal(o.over_sampling_batch_size, 16);
}

static void rollout_rules(void **state)
{
    (void)state;
    assert_ok(run(BASE), &e);
    assert_int_equal(o.over_sampling_batch_size, 8);
    assert_int_equal(o.rollout_submission_granularity, TRAIN_BY_GROUP);
    assert_int_equal(o.rollout_logical_concurrency, 512);
    assert_ok(run(BASE "--rollout-submission-granularity sample --partial-rollout "
                       "--mask-offpolicy-in-partial-rollout --buffer-filter-path pop_first"),
              &e);
    assert_int_equal(o.rollout_submission_granularity, TRAIN_BY_SAMPLE);
    refused(BASE "--mask-offpolicy-in-partial-rollout", STATUS_INPUT, "without --partial-rollout");
    refused(BASE "--buffer-filter-path pop_first", STATUS_INPUT, "without --partial-rollout");
    refused(BASE "--partial-rollout --load-debug-rollout-data x", STATUS_INPUT,
            "exclude each other");
    refused(BASE "--rollout-submission-granularity token", STATUS_INPUT, "group");
    assert_ok(run(BASE "--advantage-estimator ppo"), &e);
    assert_ok(run(BASE "--colocate"), &e);
    train_async = 1;
    assert_ok(run(BASE), &e);
    refused(BASE "--colocate", STATUS_INPUT, "train-async and --colocate exclude each other");
    refused(BASE "--advantage-estimator ppo", STATUS_INPUT, "--use-tis or --keep-old-actor");
    assert_ok(run(BASE "--advantage-estimator ppo --use-tis"), &e);
    assert_ok(run(BASE "--fully-async --max-weight-staleness 2 --async-max-concurrent-samples 16 "
                       "--async-unused-samples-handler retry"),
              &e);
    assert_int_equal(o.rollout_submission_granularity, TRAIN_BY_SAMPLE);
    assert_int_equal(o.async_unused_samples_handler, TRAIN_UNUSED_RETRY);
    assert_true(o.async_data_buffer_capacity_factor == 2.0);
    refused(BASE "--fully-async --colocate", STATUS_INPUT, "--colocate");
    refused(BASE "--fully-async --partial-rollout", STATUS_INPUT, "exclude each other");
    refused(BASE "--fully-async --rollout-all-samples-process-path x.py:f", STATUS_INPUT,
            "exclude each other");
    refused(BASE "--fully-async --n-samples-per-prompt 4 --async-max-concurrent-samples 3",
            STATUS_INPUT, "less than --n-samples-per-prompt 4");
    refused(BASE "--max-weight-staleness 2", STATUS_INPUT, "without --fully-async");
    train_async = 0;
    refused(BASE "--fully-async", STATUS_INPUT, "needs `miles train-async`");
}

static void memory_rules(void **state)
{
    (void)state;
    assert_ok(run(BASE), &e);
    assert_true(o.recompute_granularity == -1 && o.exp_avg_dtype == 0 && !o.no_weight_transposes);
    assert_ok(run(BASE "--use-precision-aware-optimizer --exp-avg-sq-dtype bf16"), &e);
    assert_true(o.exp_avg_dtype == 0 && o.exp_avg_sq_dtype == 1);
    assert_ok(run(BASE "--recompute-granularity full --recompute-method uniform "
                       "--recompute-num-layers 1"),
              &e);
    assert_ok(run(BASE "--recompute-granularity full --recompute-method block "
                       "--recompute-num-layers 3"),
              &e);
    assert_true(o.recompute_granularity == 0 && o.recompute_method == 1);
    refused(BASE "--exp-avg-dtype bf16", STATUS_INPUT, "--use-precision-aware-optimizer");
    refused(BASE "--recompute-method uniform", STATUS_INPUT, "--recompute-granularity full");
    refused(BASE "--recompute-granularity selective --recompute-num-layers 1", STATUS_INPUT,
            "--recompute-granularity full");
    refused(BASE "--recompute-granularity full --recompute-method block", STATUS_INPUT,
            "--recompute-num-layers");
    refused(BASE "--recompute-granularity full --recompute-num-layers 2", STATUS_UNSUPPORTED,
            "every layer's input");
}

static void source_rules(void **state)
{
    int64_t n;
    (void)state;
    refused("--rollout-batch-size 8", STATUS_INPUT, "--hf-checkpoint is needed");
    refused("--hf-checkpoint m", STATUS_INPUT, "--prompt-data is needed");
    refused("--hf-checkpoint m --prompt-data p", STATUS_INPUT, "--num-rollout or --num-epoch");
    refused("--hf-checkpoint m --prompt-data p --num-epoch 1 --rm-type math --rollout-batch-size 8",
            STATUS_INPUT, "--rollout-max-response-len is needed");
    refused(BASE "--save-interval 5", STATUS_INPUT, "--save-interval needs --save");
    refused(BASE "--debug-train-only", STATUS_INPUT, "needs --load-debug-rollout-data");
    refused(BASE "--debug-train-only --debug-rollout-only", STATUS_INPUT, "exclude each other");
    refused(BASE "--apply-chat-template-kwargs [1]", STATUS_INPUT, "not a JSON object");
    refused(BASE "--numeric-leaves 3", STATUS_INPUT, "no power of two");
    assert_ok(run("--hf-checkpoint m --num-rollout 1 --rollout-batch-size 8 --debug-train-only "
                  "--load-debug-rollout-data d/{rollout_id}.json"),
              &e);
    assert_ok(run(BASE), &e);
    assert_ok(train_opts_num_rollout(&o, 3, &n, &e), &e);
    assert_int_equal(n, 10);
    assert_ok(run("--hf-checkpoint m --prompt-data p --num-epoch 3 --rollout-batch-size 8 "
                  "--rollout-max-response-len 4 --rm-type math"),
              &e);
    assert_ok(train_opts_num_rollout(&o, 100, &n, &e), &e);
    assert_int_equal(n, 37);
    assert_int_equal(train_opts_num_rollout(&o, 2, &n, &e), STATUS_INPUT);
}

static void own_prompts(void **state)
{
#define OWN                                                                                        \
    "--hf-checkpoint m --num-rollout 1 --rollout-batch-size 8 --rollout-max-response-len 4 "       \
    "--rm-type math "
    (void)state;
    refused(OWN, STATUS_INPUT, "--prompt-data is needed");
    assert_ok(run(OWN "--data-source-path a.b"), &e);
    assert_int_equal(o.rollout_global_dataset, 1);
    refused(OWN "--disable-rollout-global-dataset", STATUS_INPUT, "needs --data-source-path");
    assert_ok(run(OWN "--disable-rollout-global-dataset --data-source-path a.b"), &e);
    assert_int_equal(o.rollout_global_dataset, 0);
    refused("--hf-checkpoint m --num-epoch 1 --rollout-batch-size 8 --rollout-max-response-len 4 "
            "--rm-type math --disable-rollout-global-dataset --data-source-path a.b",
            STATUS_INPUT, "needs --num-rollout");
#undef OWN
}

static void algorithm_rules(void **state)
{
    (void)state;
    refused(BASE "--advantage-estimator ppo --kl-coef 0.1", STATUS_INPUT, "exclude each other");
    refused(BASE "--advantage-estimator ppo --skip-actor-forward-only", STATUS_INPUT,
            "exclude each other");
    refused(BASE "--advantage-estimator ppo --critic-save c", STATUS_INPUT, "needs --save");
    refused(BASE "--critic-lr 1e-5", STATUS_INPUT, "--advantage-estimator ppo");
    refused(BASE "--use-opd", STATUS_INPUT, "needs --opd-type");
    refused(BASE "--use-opd --opd-type megatron", STATUS_INPUT, "--opd-teacher-load");
    refused(BASE "--opd-teacher-load x", STATUS_INPUT, "without --use-opd");
    refused(BASE "--use-opd --opd-type megatron --opd-teacher-load x --skip-actor-forward-only",
            STATUS_INPUT, "nothing for --use-opd");
    assert_ok(run(BASE "--advantage-estimator ppo --save a/b/ --load x --lr 2e-6"), &e);
    assert_string_equal(o.critic_save, "a/b_critic");
    assert_string_equal(o.critic_load, "x_critic");
    assert_true(o.critic_lr == 2e-6);
    refused(BASE "--loss-type custom_loss", STATUS_INPUT, "needs --custom-loss-function-path");
    refused(BASE "--kl-coef 0.1 --kl-loss-coef 0.1 --use-kl-loss", STATUS_INPUT, "choose one");
    refused(BASE "--kl-loss-coef 0.1", STATUS_INPUT, "without --use-kl-loss");
    refused(BASE "--use-rollout-logprobs --use-tis", STATUS_INPUT, "exclude each other");
    refused(BASE "--advantage-estimator rloo", STATUS_INPUT, "--n-samples-per-prompt 2");
    refused(BASE "--advantage-estimator dr_grpo --calculate-per-token-loss", STATUS_INPUT,
            "exclude each other");
    refused(BASE "--loss-divisor 10 --calculate-per-token-loss", STATUS_INPUT, "--loss-divisor");
    refused(BASE "--advantage-estimator cispo --eps-clip-c 3", STATUS_INPUT, "no effect");
    refused(BASE "--overlong-buffer-len 1000000", STATUS_INPUT, "--rollout-max-response-len");
    refused(BASE "--advantage-estimator reinforce_plus_plus", STATUS_INPUT,
            "needs --normalize-advantages");
    refused(BASE "--advantage-estimator reinforce_plus_plus_baseline", STATUS_INPUT,
            "needs --normalize-advantages");
    refused(BASE "--skip-actor-forward-only --num-steps-per-rollout 2", STATUS_INPUT,
            "one optimizer step per rollout, there are 2");
    refused(BASE "--eps-clip-c 1", STATUS_INPUT, "--eps-clip-c: 1 is outside (1,inf)");
    refused(BASE "--tis-clip 1 --tis-clip-low 2", STATUS_INPUT, "above --tis-clip");
    refused(BASE "--rollout-top-k 0", STATUS_INPUT, "leaves no token");
    refused(BASE "--gamma 1.5", STATUS_INPUT, "--gamma: 1.5 is outside [0,1]");
    refused(BASE "--min-lr 1", STATUS_INPUT, "above --lr");
    refused(BASE "--lr-warmup-iters 5 --lr-decay-iters 5", STATUS_INPUT, "fills all");
    refused(BASE "--lr-warmup-iters 5 --lr-warmup-fraction 0.1", STATUS_INPUT, "exclude");
    refused(BASE "--lr-decay-style WSD", STATUS_INPUT, "needs --lr-wsd-decay-iters");
    refused(BASE "--weight-decay-incr-style linear", STATUS_INPUT, "needs --start-weight-decay");
    assert_ok(run(BASE "--eps-clip-high 0.28 --use-kl-loss --kl-loss-coef 0.01 --kl-loss-type k3"),
              &e);
    assert_true(o.eps_clip_high == 0.28);
    assert_true(train_opts_needs_ref(&o));
}

static void eval_rules(void **state)
{
    (void)state;
    assert_ok(run(BASE "--eval-interval 5 --eval-prompt-data a x.jsonl b y.jsonl --label-key l "
                       "--rollout-temperature 0.7 --eval-top-k 1 --rollout-max-context-len 100"),
              &e);
    assert_int_equal(o.eval_prompt_data.n, 4);
    assert_string_equal(o.eval_label_key, "l");
    assert_string_equal(o.eval_input_key, "input");
    assert_true(o.eval_temperature == 0.7 && o.eval_top_p == 1 && o.eval_top_k == 1);
    assert_int_equal(o.eval_max_response_len, 64);
    assert_int_equal(o.rollout_max_prompt_len, 99);
    assert_int_equal(o.eval_max_prompt_len, 99);
    refused(BASE "--eval-interval 5", STATUS_INPUT, "needs --eval-prompt-data");
    refused(BASE "--eval-prompt-data a", STATUS_INPUT, "pairs of name and file, 1 words");
    refused(BASE "--eval-prompt-data a x a y", STATUS_INPUT, "names a twice");
    refused(BASE "--eval-prompt-data a x --eval-config y", STATUS_INPUT, "exclude each other");
    assert_ok(run(BASE "--eval-interval 5 --eval-config y --log-passrate"), &e);
    refused(BASE "--rollout-max-context-len 10 --rollout-max-prompt-len 10", STATUS_INPUT,
            "leaves no room");
}

static void module_views(void **state)
{
    struct adv_reward_opts r;
    struct adv_opts a;
    struct loss_opts l;
    struct pack_opts p;
    struct lrsched s;
    (void)state;
    assert_ok(run(BASE "--n-samples-per-prompt 4 --advantage-estimator gspo --eps-clip-c 3 "
                       "--use-dynamic-batch-size --max-tokens-per-gpu 512 --use-tis "
                       "--observe-training-entropy --lr 1e-3 --lr-decay-style cosine "
                       "--lr-warmup-fraction 0.1 --num-steps-per-rollout 2 --weight-decay 0.1"),
              &e);
    train_opts_reward(&o, &r);
    assert_true(r.estimator == ADV_GSPO && r.normalize && r.std && r.n_samples_per_prompt == 4);
    assert_int_equal(r.rollout_batch_size, 8);
    train_opts_adv(&o, &a);
    assert_true(a.gamma == 1 && a.kl_coef == 0);
    train_opts_loss(&o, &l);
    assert_true(l.gspo && l.eps_clip == 0.2f && l.eps_clip_high == 0.2f && l.eps_clip_c == 3);
    assert_true(l.tis && l.tis_clip == 2 && l.entropy && l.entropy_coef == 0);
    train_opts_pack(&o, &p);
    assert_true(p.dp == 1 && p.dynamic && p.max_tokens == 512 && p.global_batch == 16);
    train_opts_sched(&o, 10, &s);
    assert_int_equal(s.decay, 320); /* 10 rollouts x 2 steps x 16 */
    assert_int_equal(s.warmup, 32);
    assert_int_equal(s.wd_steps, 320);
    assert_true(s.max_lr == 1e-3 && s.style == LRSCHED_COSINE && s.wd_end == 0.1);
    assert_true(lrsched_lr(&s, 0) == 0);
    assert_true(lrsched_lr(&s, 32) == 1e-3);
    assert_ok(run(BASE "--n-samples-per-prompt 4 --advantage-estimator cispo"), &e);
    train_opts_loss(&o, &l);
    assert_true(l.cispo && !l.gspo && l.divisor == 0);
    assert_ok(run(BASE "--n-samples-per-prompt 4 --advantage-estimator dr_grpo"), &e);
    train_opts_loss(&o, &l);
    assert_true(!l.cispo && l.divisor == (double)o.rollout_max_response_len);
    assert_ok(run(BASE), &e);
    train_opts_loss(&o, &l);
    assert_true(l.eps_clip_c == 0 && !l.gspo && !l.entropy && l.divisor == 0);
    train_opts_sched(&o, 10, &s);
    assert_int_equal(s.style, LRSCHED_LINEAR);
    assert_int_equal(s.decay, 80);
}

/* use_tis and use_rs true, levels token, truncate, bounds 0.5, 2.0 and null, veto 1.0e-4,
 * normalised */
#define MIS_YAML                                                                                   \
    "dXNlX3RpczogdHJ1ZQp1c2VfcnM6IHRydWUKdGlzX2xldmVsOiAidG9rZW4iCnJzX2xldm"                       \
    "VsOiAidG9rZW4iCnRpc19tb2RlOiAidHJ1bmNhdGUiCnRpc19sb3dlcl9ib3VuZDogMC41"                       \
    "CnRpc191cHBlcl9ib3VuZDogMi4wCnJzX2xvd2VyX2JvdW5kOiBudWxsCnJzX3VwcGVyX2"                       \
    "JvdW5kOiBudWxsCnJzX3ZldG9fdGhyZXNob2xkOiAxLjBlLTQKdGlzX2JhdGNoX25vcm1h"                       \
    "bGl6ZTogdHJ1ZQo="

/* Corrections: built-in names, Miles' paths of them, keys, and what is refused. */
static void corrections(void **state)
{
    static const struct {
        const char *path;
        enum loss_tis want;
    } paths[] = {
        {"tis", LOSS_TIS_TRUNCATE},
        {"icepop", LOSS_TIS_ICEPOP},
        {"mis", LOSS_TIS_MIS},
        {"miles.backends.training_utils.loss.icepop_function", LOSS_TIS_ICEPOP},
        {"miles.backends.training_utils.loss.vanilla_tis_function", LOSS_TIS_TRUNCATE},
        {"examples.train_infer_mismatch_helper.mis.compute_mis_weights_with_cp", LOSS_TIS_MIS},
        {"examples.infra_features.train_infer_mismatch_helper.mis.compute_mis_weights_fsdp",
         LOSS_TIS_MIS},
        {"examples/train_infer_mismatch_helper/mis.py:compute_mis_weights_with_cp", LOSS_TIS_MIS},
    };
    struct loss_opts l;
    char line[512];
    (void)state;
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        snprintf(line, sizeof line, BASE "--use-tis --custom-tis-function-path %s", paths[i].path);
        assert_ok(run(line), &e);
        train_opts_loss(&o, &l);
        assert_int_equal(l.tis, paths[i].want);
        assert_false(l.tis_observe);
    }
    assert_ok(run(BASE), &e);
    train_opts_loss(&o, &l);
    assert_int_equal(l.tis, LOSS_TIS_OFF);
    /* defaults of mis: a token's ratio, capped at 2 */
    assert_ok(run(BASE "--use-tis --custom-tis-function-path mis"), &e);
    train_opts_loss(&o, &l);
    assert_true(l.mis.level == MIS_TOKEN && l.mis.mode == MIS_TRUNCATE && l.mis.hi == 2);
    assert_true(l.mis.lo == 0.5f && !l.mis.rs && l.mis.veto == 0 && !l.mis.normalize);
    assert_ok(run(BASE "--use-tis --custom-tis-function-path mis --tis-level sequence --tis-mode "
                       "mask --tis-upper-bound 4 --use-rs --rs-level geometric --rs-lower-bound "
                       "0.9 --rs-veto-threshold 1e-4 --tis-batch-normalize"),
              &e);
    train_opts_loss(&o, &l);
    assert_true(l.mis.level == MIS_SEQUENCE && l.mis.mode == MIS_MASK && l.mis.rs);
    assert_true(l.mis.lo == 0.25f && l.mis.hi == 4 && l.mis.rs_lo == 0.9f && l.mis.rs_hi == 4);
    assert_true(l.mis.rs_level == MIS_GEOMETRIC && l.mis.veto == 1e-4f && l.mis.normalize);
    /* Miles' file of keys */
    assert_ok(run(BASE "--custom-tis-function-path mis --custom-config-path base64:" MIS_YAML), &e);
    train_opts_loss(&o, &l);
    assert_true(l.tis == LOSS_TIS_MIS && !l.mis.observe && l.mis.rs && l.mis.normalize);
    assert_true(l.mis.lo == 0.5f && l.mis.hi == 2 && l.mis.rs_hi == 2 && l.mis.veto == 1e-4f);
    /* figures only */
    assert_ok(run(BASE "--get-mismatch-metrics --custom-tis-function-path mis"), &e);
    train_opts_loss(&o, &l);
    assert_true(l.tis == LOSS_TIS_MIS && l.tis_observe && l.mis.observe);
    assert_false(train_opts_needs_train_pass(&o));
    assert_ok(run(BASE "--get-mismatch-metrics --custom-tis-function-path icepop "
                       "--use-rollout-logprobs"),
              &e);
    assert_true(train_opts_needs_train_pass(&o) && !train_opts_needs_old_pass(&o));
    refused(BASE "--get-mismatch-metrics", STATUS_INPUT, "needs --custom-tis-function-path");
    refused(BASE "--get-mismatch-metrics --use-tis", STATUS_INPUT,
            "needs --custom-tis-function-path");
    refused(BASE "--custom-tis-function-path mis", STATUS_INPUT, "has no effect without --use-tis");
    assert_ok(run(BASE "--use-tis --custom-tis-function-path my.mod.icepop_function"), &e);
    assert_int_equal(o.tis_function, LOSS_TIS_OFF); /* a function of the user's gives weights */
    refused(BASE "--use-tis --custom-tis-function-path word", STATUS_INPUT,
            "one of tis, icepop, mis");
    refused(BASE "--use-tis --tis-mode clip", STATUS_INPUT,
            "--tis-mode has no effect without --custom-tis-function-path mis");
    refused(BASE "--use-tis --custom-tis-function-path icepop --use-rs", STATUS_INPUT,
            "--use-rs has no effect");
#define MIS BASE "--use-tis --custom-tis-function-path mis "
    refused(MIS "--tis-mode clip --tis-lower-bound 3", STATUS_INPUT, "--tis-lower-bound 3 is not");
    refused(MIS "--tis-mode mask --tis-upper-bound 0.5", STATUS_INPUT, "is not below");
    assert_ok(run(MIS "--tis-upper-bound 0.5"), &e); /* a cap has no lower bound */
    refused(MIS "--use-rs --rs-lower-bound 2", STATUS_INPUT, "--rs-lower-bound 2 is not below");
    assert_ok(run(MIS "--rs-lower-bound 9"), &e); /* no effect, as in Miles; a line says so */
    refused(MIS "--tis-level geometric --tis-batch-normalize", STATUS_INPUT, "exclude each other");
    refused(MIS "--tis-batch-normalize --skip-actor-forward-only", STATUS_INPUT,
            "--skip-actor-forward-only leaves out");
    assert_ok(run(MIS "--skip-actor-forward-only"), &e);
#undef MIS
}

/* Supervised training: what it takes as it is, and what it refuses. */
static void sft_rules(void **state)
{
#define SFT                                                                                        \
    "--hf-checkpoint m --prompt-data p --num-rollout 10 --rollout-batch-size 8 "                   \
    "--loss-type sft_loss "
    struct loss_opts l;
    (void)state;
    assert_ok(run(SFT), &e); /* no reward and no length of responses */
    train_opts_loss(&o, &l);
    assert_int_equal(l.type, LOSS_SFT);
    assert_false(o.compute_advantages_and_returns);
    assert_false(train_opts_needs_old_pass(&o));
    assert_true(o.apply_chat_template);
    assert_ok(run(SFT "--rollout-function-path miles.rollout.sft_rollout.generate_rollout "
                      "--debug-train-only --disable-compute-advantages-and-returns "
                      "--calculate-per-token-loss --loss-mask-type qwen3"),
              &e);
    refused(SFT "--rollout-function-path word", STATUS_INPUT, "one of sft");
    refused(SFT "--rollout-temperature 0.7", STATUS_INPUT, "--rollout-temperature 0.7");
    refused(SFT "--n-samples-per-prompt 2", STATUS_INPUT, "--n-samples-per-prompt 1");
    refused(SFT "--use-kl-loss", STATUS_INPUT, "--use-kl-loss has no effect");
    refused(SFT "--entropy-coef 0.1", STATUS_INPUT, "--entropy-coef has no effect");
    refused(SFT "--advantage-estimator gspo", STATUS_INPUT, "--advantage-estimator has no effect");
    refused(SFT "--use-opd --opd-type megatron --opd-teacher-load x", STATUS_INPUT, "--use-opd");
    refused(SFT "--eval-interval 2 --eval-prompt-data a b", STATUS_INPUT,
            "--rollout-max-response-len");
    refused(BASE "--rollout-function-path sft", STATUS_INPUT, "needs --loss-type sft_loss");
    refused(BASE "--disable-compute-advantages-and-returns", STATUS_INPUT, "nothing");
#undef SFT
}

static void distillation_rules(void **state)
{
#define OPD BASE "--use-opd --opd-type sglang "
    (void)state;
    refused(OPD, STATUS_INPUT, "--opd-teacher-urls default=URL");
    refused(OPD "--opd-teacher-urls http://x", STATUS_INPUT, "is not NAME=URL");
    refused(OPD "--opd-teacher-urls =http://x", STATUS_INPUT, "is not NAME=URL");
    refused(OPD "--opd-teacher-urls a=http://x --opd-teacher-load m", STATUS_INPUT,
            "--opd-teacher-load has no effect");
    refused(BASE "--opd-teacher-urls a=http://x", STATUS_INPUT, "without --use-opd");
    assert_ok(run(OPD "--opd-teacher-urls a=http://x?k=v default=http://y"), &e);
    assert_int_equal(o.opd_teacher_urls.n, 2);
    /* as Miles' own scripts have it */
    assert_ok(run("--hf-checkpoint m --prompt-data p --num-rollout 10 --rollout-batch-size 8 "
                  "--rollout-max-response-len 64 --use-opd --opd-type sglang --rm-url http://t:1 "
                  "--custom-rm-path miles.rollout.on_policy_distillation.reward_func "
                  "--custom-reward-post-process-path "
                  "miles.rollout.on_policy_distillation.post_process_rewards"),
              &e);
    assert_null(o.custom_rm_path);
    assert_null(o.custom_reward_post_process_path);
    assert_null(o.rm_url);
    assert_string_equal(o.opd_teacher_urls.v[0], "default=http://t:1");
#undef OPD
}

static void copies_and_batches(void **state)
{
    (void)state;
    refused(BASE "--ref-update-interval 2", STATUS_INPUT, "without --use-kl-loss");
    assert_ok(run(BASE "--ref-update-interval 2 --use-kl-loss"), &e);
    refused(BASE "--keep-old-actor --use-rollout-logprobs", STATUS_INPUT, "exclude each other");
    refused(BASE "--keep-old-actor --skip-actor-forward-only", STATUS_INPUT, "leaves out");
    refused(BASE "--use-rollout-entropy --skip-actor-forward-only", STATUS_INPUT, "leaves");
    refused(BASE "--balance-by-flops", STATUS_INPUT, "--use-dynamic-batch-size");
    refused(BASE "--allow-partial-train-step", STATUS_INPUT, "--use-dynamic-batch-size");
    refused(BASE "--use-dynamic-global-batch-size", STATUS_INPUT, "--use-dynamic-batch-size");
    refused(BASE "--log-probs-chunk-size 0", STATUS_INPUT, "leaves no row");
    refused(BASE "--use-dynamic-batch-size --max-tokens-per-gpu 64 "
                 "--log-probs-max-tokens-per-gpu 65",
            STATUS_INPUT, "is more than --max-tokens-per-gpu");
    refused(BASE "--global-batch-size 3", STATUS_INPUT, "no multiple");
    assert_ok(run(BASE "--global-batch-size 3 --allow-partial-train-step --use-dynamic-batch-size "
                       "--max-tokens-per-gpu 64"),
              &e);
    assert_int_equal(o.num_steps_per_rollout, 3);
}

/* A known name is given once and has a sentence; where it is an option too, the option counts, and
 * `miles flags --check` tells it. */
static void tables_agree(void **state)
{
    int options = 0, known = 0;
    (void)state;
    for (const struct conf_known *k = known_flags; k->name; k++, known++) {
        assert_true(k->why && *k->why);
        for (const struct conf_known *j = known_flags; j < k; j++) {
            assert_string_not_equal(j->name, k->name);
        }
        assert_true(strncmp(k->name, "--", 2) != 0);
    }
    for (const struct conf_opt *t = train_opts_table; t->type != CONF_END; t++, options++) {
        assert_non_null(t->doc);
        assert_non_null(t->group);
    }
    assert_true(known > 200);
    assert_true(options > 100);
    refused(BASE "--use-prometheus", STATUS_UNSUPPORTED,
            "--use-prometheus is known, not supported yet");
    refused(BASE "--mtp-num-layers 2", STATUS_UNSUPPORTED, "known");
    refused(BASE "--optimizer sgd", STATUS_UNSUPPORTED, "does not apply here");
    refused(BASE "--tensor-model-parallel-size 0", STATUS_INPUT, "is outside");
    assert_ok(run(BASE "--tensor-model-parallel-size 2 --actor-num-nodes 4 --colocate "
                       "--moe-router-topk 2 --attention-backend flash --offload-train"),
              &e);
}

static int cleanup(void **state)
{
    (void)state;
    conf_free(c);
    c = NULL;
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),           cmocka_unit_test(batch_rules),
        cmocka_unit_test(source_rules),       cmocka_unit_test(memory_rules),
        cmocka_unit_test(algorithm_rules),    cmocka_unit_test(sft_rules),
        cmocka_unit_test(distillation_rules), cmocka_unit_test(copies_and_batches),
        cmocka_unit_test(eval_rules),         cmocka_unit_test(module_views),
        cmocka_unit_test(corrections),        cmocka_unit_test(tables_agree),
        cmocka_unit_test(own_prompts),        cmocka_unit_test(rollout_rules),
    };
    unsetenv("MILES_ISA"); /* the scalar run of CI sets it */
    return cmocka_run_group_tests(tests, NULL, cleanup);
}
