/* `miles train` and `miles train-async`: opens everything a run needs, in order, and turns the
 * loop. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fsio.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/patience.h"
#include "base/plugin.h"
#include "base/status.h"
#include "base/thread.h"
#include "base/world.h"
#include "cli/cmd.h"
#include "cli/known_flags.h"
#include "cli/known_inproc.h"
#include "cli/known_sglang.h"
#include "cli/progress.h"
#include "cli/train_int.h"
#include "miles_plugin.h"
#include "model/weights.h"
#include "model/wfile.h"
#include "reward/hub.h"
#include "rl/details.h"
#include "rl/evalset.h"
#include "rl/extend.h"
#include "rl/filter.h"
#include "rl/keeper.h"
#include "rl/loop.h"
#include "rl/modelargs.h"
#include "rl/port_hook.h"
#include "rl/port_native.h"
#include "rl/promptenc.h"
#include "rl/prompts.h"
#include "rl/teacher.h"
#include "run/cmdline.h"
#include "run/durable.h"
#include "run/engines.h"
#include "run/metriccheck.h"
#include "run/place.h"
#include "run/runfolder.h"
#include "run/secret.h"
#include "run/watch.h"
#include "serve/session_api.h"
#include "train/ckpt.h"
#include "train/optim.h"

static const char *isa_names[] = {"auto", "scalar", "avx2", "avx512", "amx"};

/* Folder that the first weights come from when there is no checkpoint: --ref-load, then
 * --hf-checkpoint. */
static const char *train_source(const struct train_opts *o)
{
    return o->ref_load ? o->ref_load : o->hf_checkpoint;
}

/* A dry run looks at shapes only. */
static int train_open_file(const struct train_opts *o, const char *path, struct wfile **out,
                           struct err *e)
{
    return o->dry_run ? wfile_open_shape(path, out, e) : wfile_open(path, out, e);
}

/* The teacher must speak of the same tokens. */
static int train_open_teacher(struct train *t, struct err *e)
{
    int rc = train_open_file(&t->o, t->o.opd_teacher_load, &t->teacher_file, e);
    const struct arch *a = wfile_arch(t->file), *b;

    if (rc != STATUS_OK) {
        return err_prefix(e, "--opd-teacher-load");
    }
    b = wfile_arch(t->teacher_file);
    if (a->vocab != b->vocab) {
        return ERR(e, STATUS_INPUT,
                   "--opd-teacher-load %.200s has a vocabulary of %d tokens, the model one of %d",
                   t->o.opd_teacher_load, b->vocab, a->vocab);
    }
    if (b->max_positions < t->positions) {
        return ERR(e, STATUS_INPUT,
                   "--opd-teacher-load %.200s has a context of %d tokens, the run one of %d: give "
                   "--sglang-context-length",
                   t->o.opd_teacher_load, b->max_positions, t->positions);
    }
    return STATUS_OK;
}

/* A family of models that a shared object describes. */
static int train_add_family(struct train *t, struct err *e)
{
    const struct plugin_hook *h = plugin_hook("custom-model-provider-path");
    const char *path = t->o.custom_model_provider_path;
    struct miles_why why = {""};
    struct plugin_ref ref = {0};
    struct plugin *p = NULL;
    char *row = NULL;
    int rc = STATUS_OK;

    if (!path) {
        return rc;
    }
    if (t->place.backend != PLACE_IN_PROCESS) {
        return ERR(e, STATUS_UNSUPPORTED,
                   "--custom-model-provider-path: engines of their own do not know the family; "
                   "sample in this process");
    }
    rc = plugin_resolve(h, path, &ref, e);
    rc = rc == STATUS_OK ? plugin_open(h, &ref, "{}", &p, e) : rc;
    if (rc == STATUS_OK && plugin_table(p)->model(plugin_self(p), &row, &why) != 0) {
        rc = plugin_failed(p, why.text, e);
    }
    if (rc == STATUS_OK) {
        rc = arch_add(row ? row : "", e);
        rc = rc == STATUS_OK ? rc : err_prefix(e, "--custom-model-provider-path %.200s", path);
    }
    free(row);
    plugin_close(p);
    plugin_ref_fini(&ref);
    return rc;
}

static int train_open_device(struct train *t, struct err *e)
{
    const struct train_opts *o = &t->o;
    struct plan plan;
    int rc = train_add_family(t, e);

    rc = rc == STATUS_OK ? train_open_file(o, train_source(o), &t->file, e) : rc;

    if (rc == STATUS_OK) {
        rc = modelargs_check(&t->shape_flags, wfile_arch(t->file), e);
    }
    if (rc != STATUS_OK) {
        return rc;
    }
    t->positions = weights_positions(
        wfile_arch(t->file), o->sglang_context_length != CONF_UNSET ? o->sglang_context_length : 0);
    plan_init(&plan,
              o->numeric_leaves > 0 ? (int)o->numeric_leaves
                                    : weights_default_leaves(wfile_arch(t->file)),
              0);
    plan.bundle_rows = (int)o->numeric_bundle;
    rc = device_open(o->device, strcmp(o->device, "cpu") == 0 ? isa_names[o->isa] : o->libtorch,
                     (int)o->threads, &plan, &t->dev, e);
    if (rc == STATUS_OK) {
        rc = weights_shape(wfile_arch(t->file), t->dev, train_use(o), &t->shape, e);
    }
    return rc == STATUS_OK && o->use_opd && o->opd_type == TRAIN_OPD_HERE && !o->debug_rollout_only
               ? train_open_teacher(t, e)
               : rc;
}

static int train_open_model(struct train *t, struct err *e)
{
    int use = train_use(&t->o) | (t->remote ? engines_use(&t->place, &t->o) : 0);
    int rc = weights_open(t->file, t->dev, use, t->positions, &t->w, e);
    if (rc == STATUS_OK && train_has_ref(&t->o)) {
        rc = weights_open(t->file, t->dev, 0, t->positions, &t->ref, e);
    }
    if (rc == STATUS_OK && t->teacher_file) {
        rc = weights_open(t->teacher_file, t->dev, 0, t->positions, &t->teacher, e);
    }
    if (rc == STATUS_OK && train_has_critic(&t->o)) {
        rc = weights_open_critic(t->file, t->dev, train_use(&t->o), t->positions,
                                 (uint64_t)t->o.seed, &t->critic, e);
    }
    return rc;
}

/* The user's functions of the rollout. */
static int train_open_filters(struct train *t, const json_t *args, struct err *e)
{
    const struct train_opts *o = &t->o;
    const struct filter_opts f = {o->reward_python, o->reward_timeout, args};
    const struct {
        enum filter_kind kind;
        const char *path;
        struct filter **out;
    } all[] = {{FILTER_DYNAMIC, o->dynamic_sampling_filter_path, &t->dynamic},
               {FILTER_SAMPLE, o->rollout_sample_filter_path, &t->sample_filter},
               {FILTER_ALL, o->rollout_all_samples_process_path, &t->all_samples},
               {FILTER_BUFFER, o->buffer_filter_path, &t->buffer_filter}};
    int rc = STATUS_OK;

    for (int i = 0; rc == STATUS_OK && i < 4 && !o->load_debug_rollout_data; i++) {
        rc = all[i].path ? filter_open(all[i].kind, all[i].path, &f, all[i].out, e) : rc;
    }
    return rc;
}

static int train_open_hubs(struct train *t, struct err *e)
{
    const struct train_opts *o = &t->o;
    json_t *args = conf_dump_json(t->conf);
    struct hub_opts h;
    const struct prompts_row *first;
    int rc = STATUS_OK;

    if (t->data && !t->own_types && o->loss_type != LOSS_SFT &&
        prompts_row(t->data, 0, &first, e) == STATUS_OK) {
        /* lengths that are known from an earlier start are not counted, so no row was looked at */
        rc = train_reward_type(t, first, e);
    }
    if (rc == STATUS_OK && t->own_types && t->untyped) {
        rc = ERR(e, STATUS_INPUT, "line %lld: no rm_type in the metadata, and no --rm-type",
                 (long long)t->untyped);
    }
    secret_hide_named(args);
    memset(&h, 0, sizeof h);
    h.rm_type = o->rm_type;
    h.custom_rm_path = o->custom_rm_path;
    h.reward_key = o->reward_key;
    h.python = o->reward_python;
    h.workers = (int)o->reward_workers;
    h.timeout_s = o->reward_timeout;
    h.rm_url = o->rm_url;
    h.rm_inflight = (int)o->rm_max_inflight;
    h.rm_metadata = o->rm_send_metadata;
    h.code_share = o->code_share;
    h.code_timeout_s = o->code_timeout;
    h.code_memory_mb = o->code_memory;
    h.args = args;
    if (rc == STATUS_OK && !o->load_debug_rollout_data &&
        (o->rm_type || o->custom_rm_path || t->own_types)) {
        t->scored = durable_replays(&t->durable);
        rc = t->scored ? rc : hub_open(&h, &t->hub, e);
    }
    t->eval_hub = t->hub;
    if (rc == STATUS_OK && t->hub && o->eval_reward_key &&
        (!o->reward_key || strcmp(o->eval_reward_key, o->reward_key) != 0)) {
        h.reward_key = o->eval_reward_key;
        t->eval_hub = NULL;
        rc = hub_open(&h, &t->eval_hub, e);
    }
    if (rc == STATUS_OK && !t->hub && !t->scored && !o->load_debug_rollout_data &&
        !o->debug_rollout_only && !o->use_opd && o->loss_type != LOSS_SFT &&
        !o->custom_agent_function_path) { /* which may give rewards itself */
        rc =
            ERR(e, STATUS_INPUT,
                "training needs a reward: give --rm-type or --custom-rm-path, or an rm_type in the "
                "metadata of every prompt");
    }
    if (rc == STATUS_OK) {
        struct extend_opts x = {.o = o, .args = args};
        rc = extend_open(&x, &t->extend, e);
    }
    rc = rc == STATUS_OK ? train_open_filters(t, args, e) : rc;
    json_decref(args);
    return rc;
}

static int train_open_ports(struct train *t, struct err *e)
{
    struct trainer_opts critic = t->trainer;
    int rc;

    t->ports_open = 1;
    rc = port_native_open(&t->ports, t->w, t->ref, t->file,
                          t->rollout && !t->remote && !durable_replays(&t->durable) ? &t->engine
                                                                                    : NULL,
                          t->o.debug_rollout_only ? NULL : &t->trainer, e);
    t->ports.teacher = t->teacher;
    stopwatch_init(&t->ports.stops, t->enc.tok);
    if (rc == STATUS_OK && t->o.keep_old_actor) {
        rc = copies_open(&t->ports.copies, COPIES_MAX, e);
    }
    if (rc == STATUS_OK && t->o.use_opd && t->o.opd_type == TRAIN_OPD_HTTP) {
        struct teacher_opts to = {.urls = t->o.opd_teacher_urls.v,
                                  .nurls = t->o.opd_teacher_urls.n,
                                  .key = t->o.opd_teacher_key,
                                  .timeout_s = t->o.opd_timeout,
                                  .journal = durable_journal(&t->durable)};
        rc = teacher_open(&to, &t->far, e);
    }
    if (rc == STATUS_OK && t->critic) {
        t->critic_open = 1;
        critic.entropy = 0;
        train_opts_value_loss(&t->o, &critic.loss);
        rc = port_native_open(&t->critic_ports, t->critic, NULL, t->file, NULL, &critic, e);
        t->critic_ports.lane = "critic";
    }
    return rc;
}

/* The critic of the same iteration, which --critic-load must have. */
static int train_resume_critic(struct train *t, const char *dir, int64_t it, struct err *e)
{
    json_t *state = NULL;
    int with_optim, rc;

    if (!t->critic) {
        return STATUS_OK;
    }
    rc = ckpt_load(dir, it, trainer_optim(t->critic_ports.trainer), &with_optim, &state, e);
    json_decref(state);
    t->critic_pos = json_integer_value(json_object_get(t->state, "critic_sched_pos"));
    return rc == STATUS_OK ? rc
                           : err_prefix(e, "critic of iteration %lld in %s", (long long)it, dir);
}

/* The reference that --ref-update-interval had made of the model. */
static int train_resume_ref(struct train *t, const char *load, struct err *e)
{
    const json_t *at = json_object_get(t->state, "ref_rollout");
    char *dir;
    int rc;

    if (!json_is_integer(at) || json_integer_value(at) < 0) {
        return STATUS_OK;
    }
    t->ref_rollout = json_integer_value(at);
    dir = keeper_ref(load, t->ref_rollout);
    rc = copies_read_ref(&t->ports.copies, dir, e);
    mem_free(dir);
    return rc;
}

/* Goes on from the run's own checkpoint, or from --load when there is one. */
static int train_resume(struct train *t, struct err *e)
{
    const struct train_opts *o = &t->o;
    struct durable_from from;
    int with_optim = 0, rc = durable_from(&t->durable, &from, e);
    int64_t it = from.iteration;

    if (rc != STATUS_OK || !from.dir || o->debug_rollout_only) {
        return rc;
    }
    rc = ckpt_load(from.dir, it, trainer_optim(t->ports.trainer), &with_optim, &t->state, e);
    if (rc == STATUS_OK) {
        rc = train_resume_critic(t, from.critic, it, e);
    }
    if (rc == STATUS_OK && t->ref) {
        rc = train_resume_ref(t, from.dir, e);
    }
    if (rc != STATUS_OK) {
        return rc;
    }
    if (!t->durable.own && (o->no_load_optim || o->finetune)) {
        optim_reset(trainer_optim(t->ports.trainer));
        if (t->critic) {
            optim_reset(trainer_optim(t->critic_ports.trainer));
        }
        with_optim = 0;
    }
    if (!t->durable.own && o->finetune) {
        log_info(TRAIN, "Loaded checkpoint from %s, iteration %lld: its weights alone", o->load,
                 (long long)it);
        t->critic_pos = 0;
        return rc;
    }
    t->start = it + 1;
    t->sched_pos = json_integer_value(json_object_get(t->state, "sched_pos"));
    weights_writing(t->w, 1); /* engines that map the weights are told of the version too */
    t->w->version = json_integer_value(json_object_get(t->state, "weight_version"));
    weights_writing(t->w, 0);
    if (t->data && json_is_object(json_object_get(t->state, "dataset"))) {
        rc = prompts_restore(t->data, json_object_get(t->state, "dataset"), e);
    }
    log_info(TRAIN, "resuming after rollout %lld from %s%s", (long long)it, from.dir,
             with_optim ? "" : " (without optimizer state)");
    return rc;
}

/* The run's record, before anything of it is made. */
static int train_open_durable(struct train *t, struct err *e)
{
    struct train_opts *o = &t->o;
    json_t *options = conf_dump_json(t->conf);
    int rc;

    secret_hide(options);
    t->run_dir = o->run_dir ? mem_strdup(o->run_dir)
                 : o->save  ? fsio_join(o->save, "run")
                            : runfolder_default();
    rc = durable_open(&t->durable, o, t->run_dir, t->argc, t->argv, options, world_system(), e);
    json_decref(options);
    return rc;
}

static int train_dump_tokenizer(const struct train *t, struct err *e)
{
    struct patience wait = {0};
    int rc;

    do {
        rc = details_tokenizer(&t->o, t->file, e);
    } while (patience_again(&wait, rc, t->o.dump_details, e));
    return rc;
}

static int train_open_run(struct train *t, struct err *e)
{
    const struct train_opts *o = &t->o;
    const char *dir = t->durable.own ? o->save : o->load; /* of the checkpoint, if there was one */
    json_t *config =
        json_pack("{s:o,s:o,s:o}", "options", conf_dump_json(t->conf), "sources",
                  conf_dump_sources(t->conf), "without_effect", conf_dump_noted(t->conf));
    json_t *manifest;
    int rc;

    t->manifest = plan_manifest(&t->dev->plan);
    manifest = plan_train_manifest(&t->dev->plan);
    secret_hide(json_object_get(config, "options"));
    json_object_set_new(manifest, "version", json_string(MILES_VERSION));
    json_object_set_new(manifest, "device", json_string(t->dev->name));
    json_object_set_new(manifest, "isa", json_string(t->dev->isa));
    if (t->w->positions != t->w->arch.max_positions) { /* a stretched rope's bits depend on it */
        json_object_set_new(manifest, "positions", json_integer(t->w->positions));
    }
    rc = durable_replays(&t->durable)
             ? STATUS_OK
             : runfolder_open(t->run_dir, config, manifest, t->start, &t->run, e);
    if (rc == STATUS_OK) {
        log_info(TRAIN, "Loaded checkpoint from %s%s", t->state ? dir : train_source(o),
                 t->state ? "" : ": the first weights");
        log_info(TRAIN, "%s, %.1fM parameters, %s on %d threads, run folder %s", t->w->arch.family,
                 (double)weights_count(t->w) / 1e6, t->dev->isa, pool_size(t->dev->pool),
                 t->run_dir);
    }
    if (rc == STATUS_OK && t->run) { /* a replay writes nothing into the folder that it replays */
        struct watch_run r = {.dir = t->run_dir,
                              .python = o->reward_python,
                              .config = json_object_get(config, "options"),
                              .from = t->start,
                              .one_step = o->num_steps_per_rollout == 1};
        rc = watch_open(&t->watching, &r, &t->watch, e);
        rc = rc == STATUS_OK ? train_dump_tokenizer(t, e) : rc;
    }
    json_decref(config);
    json_decref(manifest);
    return rc;
}

/* The function that makes samples, if there is one: the user's own, or an agent. */
static int train_open_generate(struct train *t, const json_t *args, struct err *e)
{
    const struct train_opts *o = &t->o;
    struct port_hook_opts p = {.python = o->reward_python,
                               .timeout_s = o->hook_timeout,
                               .args = args,
                               .inner = t->engines ? engines_port(t->engines) : NULL};

    if (o->custom_agent_function_path) {
        p.flag = "custom-agent-function-path";
        p.path = o->custom_agent_function_path;
    } else if (o->generate_execute_tool_function_path) {
        p.flag = "generate-execute-tool-function-path";
        p.path = o->generate_execute_tool_function_path;
    } else if (train_named("custom-generate-function-path", o->custom_generate_function_path)) {
        p.path = o->custom_generate_function_path;
    }
    p.spare = p.flag != NULL; /* what an agent does is the world's business */
    if (!t->rollout || !p.path || durable_replays(&t->durable)) {
        return STATUS_OK; /* a replay has what was made in its ledger */
    }
    return t->engines ? port_hook_open(&p, &t->generate, e)
                      : ERR(e, STATUS_INPUT,
                            "--%s needs engines that it can call: give --rollout-backend miles or "
                            "sglang",
                            p.flag ? p.flag : "custom-generate-function-path");
}

/* Where this program is, for functions that start another of it (miles_c.sandbox). */
static json_t *train_program(void)
{
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path);

    return n > 0 && n < (ssize_t)sizeof path ? json_stringn(path, (size_t)n) : json_string("miles");
}

/* Functions that sample, with the address of the engines: Miles' names for it. */
static int train_open_samplers(struct train *t, struct err *e)
{
    const char *url = t->engines ? engines_url(t->engines) : NULL;
    const char *host = url ? strstr(url, "://") : NULL, *port = url ? strrchr(url, ':') : NULL;
    json_t *args = conf_dump_json(t->conf);
    int rc = STATUS_OK;

    secret_hide_named(args);
    if (host && port > host) {
        json_object_set_new(args, "sglang_router_ip",
                            json_stringn(host + 3, (size_t)(port - host) - 3));
        json_object_set_new(args, "sglang_router_port", json_integer(strtol(port + 1, NULL, 10)));
    }
    json_object_set_new(args, "miles_program", train_program());
    json_object_set_new(args, "sglang_router_url", url ? json_string(url) : json_null());
    rc = t->rollout && url ? train_open_sessions(t, url, args, e) : STATUS_OK;
    rc = rc == STATUS_OK ? train_open_generate(t, args, e) : rc;
    rc = rc == STATUS_OK ? extend_open_rollout(t->extend, args, durable_journal(&t->durable), e)
                         : rc;
    if (rc == STATUS_OK && t->start > 0 && extend_has(t->extend, "data-source-path")) {
        rc = extend_source_load(t->extend, t->start - 1, e);
    }
    json_decref(args);
    return rc;
}

static int train_open_engines(struct train *t, struct err *e)
{
    struct engines_opts g = {.place = &t->place,
                             .train = &t->o,
                             .w = t->w,
                             .trainer = &t->ports.train,
                             .manifest = t->manifest,
                             .run_dir = t->run_dir,
                             .max_running = t->engine.max_running,
                             .max_context = t->engine.max_context,
                             .world = world_system()};
    return t->remote ? engines_open(&g, &t->engines, e) : STATUS_OK;
}

/* SGLang's flags where the engine is in this process: each has an answer. */
static int train_judge_sglang(const struct train *t, struct err *e)
{
    struct conf *c = conf_new();
    int rc;

    conf_add_known(c, known_sglang);
    conf_add_known(c, known_inproc);
    rc = conf_parse(c, (int)t->place.sglang.n, t->place.sglang.v, e);
    conf_free(c);
    return rc;
}

/* What only an engine can promise that has the trainer's forward pass. */
static int train_place_exact(const struct train *t, struct err *e)
{
    const char *flag = t->o.true_on_policy_mode              ? "--true-on-policy-mode"
                       : t->o.recompute_logprobs_via_prefill ? "--recompute-logprobs-via-prefill"
                                                             : NULL;
    if (!flag || t->place.backend != PLACE_SGLANG) {
        return STATUS_OK;
    }
    return ERR(e, STATUS_UNSUPPORTED,
               "%s and SGLang engines: their log-probs are not the trainer's bits, and they are "
               "not asked for a second pass; the native engine needs none",
               flag);
}

/* The ranks that a script speaks of must be a layout that Megatron could have: else it is a slip.
 */
static int train_check_layout(const struct train *t, struct err *e)
{
    static const char *const parts[] = {"tensor-model-parallel-size",
                                        "pipeline-model-parallel-size", "context-parallel-size"};
    const char *nodes = conf_noted(t->conf, "actor-num-nodes");
    const char *gpus = conf_noted(t->conf, "actor-num-gpus-per-node");
    int64_t ranks = (nodes ? atoll(nodes) : 1) * (gpus ? atoll(gpus) : 8), split = 1;

    for (int i = 0; i < 3; i++) {
        const char *n = conf_noted(t->conf, parts[i]);
        split *= n ? atoll(n) : 1;
    }
    if (ranks % split != 0) {
        return ERR(e, STATUS_INPUT,
                   "--actor-num-nodes x --actor-num-gpus-per-node are %lld ranks, no multiple of "
                   "tensor x pipeline x context parallel sizes, which are %lld",
                   (long long)ranks, (long long)split);
    }
    return STATUS_OK;
}

/* Where samples are drawn; flags for other programs are checked as those would. */
static int train_place(struct train *t, struct err *e)
{
    struct place_run r = {0, 0, -1};
    struct cmdline words = {0};
    int rc = place_resolve(&t->place, &t->o, e);

    if (rc == STATUS_OK && t->o.fully_async && t->place.backend == PLACE_IN_PROCESS) {
        return ERR(e, STATUS_INPUT,
                   "--fully-async needs engines of their own, which sample while the trainer "
                   "trains: give --rollout-num-gpus or --rollout-external");
    }
    rc = rc == STATUS_OK ? train_place_exact(t, e) : rc;
    rc = rc == STATUS_OK ? train_check_sessions(t, e) : rc;
    rc = rc == STATUS_OK ? train_check_layout(t, e) : rc;
    if (rc == STATUS_OK && t->o.debug_skip_weight_update && t->place.backend == PLACE_IN_PROCESS) {
        rc = ERR(e, STATUS_INPUT,
                 "--debug-skip-weight-update needs engines of their own (--rollout-num-gpus): the "
                 "one in this process reads the trainer's weights");
    }
    if (rc == STATUS_OK && t->place.backend == PLACE_IN_PROCESS) {
        t->o.update_weights_interval = 1; /* it always has the trainer's */
        return train_judge_sglang(t, e);
    }
    if (rc == STATUS_OK && t->place.backend == PLACE_MILES && !t->place.external) {
        rc = place_engine_words(&t->place, &t->o, &r, &words, e);
        rc = rc == STATUS_OK ? cmd_serve_check(words.n, words.v, e) : rc;
        cmdline_fini(&words);
    }
    if (rc == STATUS_OK && t->place.use_router) {
        place_router_words(&t->place, &words);
        rc = cmd_router_check(words.n, words.v, e);
        cmdline_fini(&words);
    }
    return rc;
}

static int train_run(struct train *t, struct err *e)
{
    struct progress bar;
    struct loop_cfg c;
    struct loop *l = NULL;
    int rc;

    memset(&c, 0, sizeof c);
    c.o = &t->o;
    rc = durable_port(&t->durable,
                      t->generate       ? port_hook_port(t->generate)
                      : t->engines      ? engines_port(t->engines)
                      : t->ports.engine ? &t->ports.rollout
                                        : NULL,
                      &c.rollout, e);
    if (rc != STATUS_OK) {
        return rc;
    }
    c.journal = durable_journal(&t->durable);
    c.scored = t->scored;
    c.train = t->ports.trainer ? &t->ports.train : NULL;
    c.critic = t->critic ? &t->critic_ports.train : NULL;
    c.hub = t->hub;
    c.eval_hub = t->eval_hub;
    c.extend = t->extend;
    c.dynamic = t->dynamic;
    c.sample_filter = t->sample_filter;
    c.all_samples = t->all_samples;
    c.buffer_filter = t->buffer_filter;
    c.buffer = json_object_get(t->state, "buffer");
    c.waiting = json_object_get(t->state, "waiting");
    c.stream = json_object_get(t->state, "stream");
    c.ahead = t->o.train_async;
    c.overlap = t->remote;
    c.away = durable_replays(&t->durable) && t->place.backend != PLACE_IN_PROCESS;
    c.enc = &t->enc;
    c.data = t->data;
    c.evals = t->evals;
    c.nevals = t->nevals;
    c.world = world_system();
    c.start_rollout = t->start;
    c.num_rollout = t->num_rollout;
    c.sched_pos = t->sched_pos;
    c.critic_pos = t->critic_pos;
    c.ref_rollout = t->ref_rollout;
    c.teacher = t->far;
    c.progress = progress_show;
    c.progress_arg = &bar;
    c.hashes = t->watch ? watch_hashes : NULL;
    c.hashes_arg = t->watch;
    progress_open(&bar);
    rc = loop_open(&c, &l, e);
    rc = rc == STATUS_OK ? STATUS_AGAIN : rc;
    while (rc == STATUS_AGAIN) {
        rc = loop_tick(l, e);
        if (rc == STATUS_AGAIN && t->run && runfolder_status(t->run, e) != STATUS_OK) {
            rc = e->code;
        }
        if (rc == STATUS_AGAIN && durable_status(&t->durable, e) != STATUS_OK) {
            rc = durable_status(&t->durable, e);
            rc = rc == STATUS_END ? STATUS_OK : rc;
        }
    }
    progress_close(&bar);
    loop_close(l);
    log_info(TRAIN, "memory used: %.1f MiB at most, %.1f MiB were planned",
             (double)mem_peak() / 1048576.0, (double)t->planned / 1048576.0);
    return rc;
}

static void train_close(struct train *t, int rc)
{
    metriccheck_close(t->checks);
    durable_close(&t->durable, rc);
    port_hook_close(t->generate);
    session_api_stop(t->sessions);
    engines_close(t->engines);
    watch_close(t->watch);
    if (t->ports_open) {
        port_native_close(&t->ports);
    }
    if (t->critic_open) {
        port_native_close(&t->critic_ports);
    }
    if (t->eval_hub != t->hub) {
        hub_close(t->eval_hub);
    }
    hub_close(t->hub);
    teacher_close(t->far);
    extend_close(t->extend);
    filter_close(t->dynamic);
    filter_close(t->sample_filter);
    filter_close(t->all_samples);
    filter_close(t->buffer_filter);
    for (int i = 0; i < t->nevals; i++) {
        prompts_close(t->evals[i].data);
    }
    mem_free(t->evals);
    evalset_free(t->sets, t->nsets);
    prompts_close(t->data);
    promptenc_close(&t->enc);
    weights_release(t->teacher);
    weights_release(t->critic);
    weights_release(t->ref);
    weights_release(t->w);
    weights_release(t->shape);
    device_close(t->dev);
    wfile_close(t->teacher_file);
    wfile_close(t->file);
    json_decref(t->state);
    json_decref(t->manifest);
    runfolder_close(t->run);
    mem_free(t->run_dir);
}

static int train_all(struct train *t, struct err *e)
{
    int rc;

    train_opts_defaults(&t->o, t->conf);
    rc = train_opts_validate(&t->o, e);
    if (rc == STATUS_OK && !t->o.hf_checkpoint) {
        rc = ERR(e, STATUS_INPUT, "--hf-checkpoint is needed");
    }
    if (rc == STATUS_OK) {
        rc = watch_check(&t->watching, e);
    }
    if (rc == STATUS_OK) {
        rc = train_place(t, e);
    }
    if (rc == STATUS_OK && !t->o.dry_run) {
        rc = train_open_durable(t, e); /* first: what is tidied up below may be another's */
    }
    if (rc == STATUS_OK && !t->o.dry_run) {
        rc = durable_folder(t->o.save, e);
    }
    if (rc == STATUS_OK && train_has_critic(&t->o) && !t->o.dry_run) {
        rc = durable_folder(t->o.critic_save, e);
    }
    if (rc == STATUS_OK) {
        rc = train_open_device(t, e);
    }
    if (rc == STATUS_OK) {
        rc = train_guesses(t) ? train_guess_prompts(t, e) : train_open_data(t, e);
    }
    if (rc == STATUS_OK && !train_guesses(t)) {
        rc =
            train_opts_num_rollout(&t->o, t->data ? prompts_count(t->data) : 0, &t->num_rollout, e);
    }
    if (rc == STATUS_OK && !t->o.dry_run) {
        rc = train_open_hubs(t, e);
    }
    if (rc == STATUS_OK) {
        rc = train_port_opts(t, e);
    }
    if (rc == STATUS_OK) {
        train_plan(t);
    }
    if (rc == STATUS_OK && t->o.dry_run) {
        printf("dry_run=ok planned_mib=%.1f\n", (double)t->planned / 1048576.0);
        return rc;
    }
    if (rc == STATUS_OK) {
        rc = train_open_model(t, e);
    }
    if (rc == STATUS_OK) {
        rc = train_open_ports(t, e);
    }
    if (rc == STATUS_OK && t->ports.trainer) {
        rc = extend_trainer(t->extend, t->ports.trainer, e);
        rc = rc == STATUS_OK ? extend_init(t->extend, e) : rc;
    }
    if (rc == STATUS_OK) {
        rc = train_resume(t, e);
    }
    if (rc == STATUS_OK && t->o.start_rollout_id != CONF_UNSET && !t->durable.own) {
        t->start = t->o.start_rollout_id;
    }
    if (rc == STATUS_OK) {
        rc = train_open_run(t, e);
    }
    if (rc == STATUS_OK) {
        rc = durable_started(&t->durable, t->start, t->state,
                             t->ports.trainer ? trainer_optim(t->ports.trainer) : NULL, e);
    }
    if (rc == STATUS_OK) {
        rc = train_open_engines(t, e);
    }
    if (rc == STATUS_OK) {
        rc = train_open_samplers(t, e);
    }
    rc = rc == STATUS_OK ? metriccheck_open(&t->asserted, &t->checks, e) : rc;
    rc = rc == STATUS_OK ? train_run(t, e) : rc;
    return rc == STATUS_OK ? metriccheck_end(t->checks, e) : rc;
}

int cmd_train(int argc, char **argv)
{
    struct train *t = mem_alloc(sizeof *t);
    struct err e = {0};
    int rc;

    world_system();
    t->ref_rollout = -1;
    t->argc = argc;
    t->argv = argv;
    t->conf = conf_new();
    conf_add(t->conf, train_opts_table, &t->o);
    conf_add(t->conf, place_table, &t->place);
    conf_add(t->conf, modelargs_table, &t->shape_flags);
    conf_add(t->conf, metriccheck_table, &t->asserted);
    conf_add(t->conf, watch_table, &t->watching);
    conf_add_known(t->conf, known_flags);
    t->o.train_async = strcmp(argv[0], "train-async") == 0;
    rc = conf_parse(t->conf, argc - 1, argv + 1, &e);
    if (rc == STATUS_END) {
        cmd_help(t->o.train_async
                     ? "miles train-async --hf-checkpoint DIR --prompt-data FILE [--flag value ...]"
                     : "miles train --hf-checkpoint DIR --prompt-data FILE [--flag value ...]",
                 t->conf);
        rc = STATUS_OK;
    } else if (rc == STATUS_OK) {
        rc = train_all(t, &e);
        if (rc != STATUS_OK) {
            log_error(TRAIN, "%s", e.msg);
        }
    } else {
        cmd_fail(rc, &e);
    }
    train_close(t, rc);
    conf_free(t->conf);
    mem_free(t);
    return rc == STATUS_OK ? CMD_OK : rc == STATUS_INPUT ? CMD_USAGE : CMD_FAILED;
}
