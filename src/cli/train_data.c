/* Owns how `miles train` comes to its prompts: data files and evaluation sets are opened and
 * measured, so that memory can be planned before the first sample. */
#include "cli/train_int.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/fsio.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/plugin.h"
#include "base/sha256.h"
#include "base/status.h"
#include "model/wfile.h"
#include "reward/hub.h"
#include "rl/evalset.h"
#include "rl/prompts.h"
#include "rl/sftdata.h"

#define TRAIN_GUESS_PROMPT 1024 /* tokens, where nothing says how long prompts are */

static void train_count(const struct train *t, struct train_prompts *p, int tokens)
{
    int len = (int)train_context(t, (int64_t)tokens + p->response);
    len = len > tokens ? len : tokens;
    p->longest = tokens > p->longest ? tokens : p->longest;
    p->shortest = !p->n || tokens < p->shortest ? tokens : p->shortest;
    p->n++;
    p->tokens += len;
    p->pages += (len + PLAN_KV_BLOCK - 1) / PLAN_KV_BLOCK;
    p->running += engine_pages(tokens, len - tokens, p->group);
}

int train_reward_type(struct train *t, const struct prompts_row *row, struct err *e)
{
    const char *type = json_string_value(json_object_get(row->metadata, "rm_type"));
    int64_t first = atomic_load(&t->untyped);
    int rc = STATUS_OK;

    if (t->o.custom_rm_path || t->o.load_debug_rollout_data) {
        return rc;
    }
    if (type && *type) {
        atomic_store(&t->own_types, 1);
        rc = hub_type_check(type, e);
    } else if (!t->o.rm_type && !t->eval_typed) {
        while ((!first || row->line < first) &&
               !atomic_compare_exchange_weak(&t->untyped, &first, row->line)) {
        }
    }
    return rc == STATUS_OK ? rc : err_prefix(e, "line %lld", (long long)row->line);
}

/* 1: the set being read is one of conversations to train on as they are. */
static int train_is_sft(const struct train *t)
{
    return t->o.loss_type == LOSS_SFT && t->reading == &t->train;
}

/* Tokens of a row's prompt, or of its conversation; called from several threads. */
static int train_tokens(void *arg, const struct prompts_row *row, struct err *e)
{
    struct train *t = arg;
    int32_t *ids;
    int n, rc;
    if (train_is_sft(t)) {
        struct sftdata d = {&t->enc, t->o.loss_mask_type, 0};
        rc = sftdata_tokens(&d, row, &n, e);
        return rc == STATUS_OK ? n : rc;
    }
    rc = promptenc_encode(&t->enc, row->prompt, row->tools, &ids, &n, e);
    if (rc != STATUS_OK) {
        return rc;
    }
    mem_free(ids);
    rc = train_reward_type(t, row, e);
    return rc == STATUS_OK ? n : rc;
}

static void train_seen(void *arg, int tokens)
{
    struct train *t = arg;
    train_count(t, t->reading, tokens);
}

static void train_hash_text(struct sha256 *s, const char *text)
{
    sha256_update(s, text ? text : "", text ? strlen(text) : 0);
    sha256_update(s, text ? "t" : "n", 1);
}

/* What the tokens of a prompt depend on besides the prompt. */
static void train_lengths_key(const struct train *t, char hex[65])
{
    const struct train_opts *o = &t->o;
    char *kwargs = json_dumps(o->apply_chat_template_kwargs, JSON_SORT_KEYS | JSON_ENCODE_ANY);
    char *tmpl = NULL;
    uint8_t hash[32];
    struct sha256 s;
    size_t n;

    if (o->chat_template_path) {
        fsio_read(o->chat_template_path, 4 << 20, &tmpl, &n, NULL);
    }
    sha256_init(&s);
    train_hash_text(&s, MILES_VERSION);
    train_hash_text(&s, wfile_tokenizer_json(t->file));
    train_hash_text(&s, wfile_tokenizer_config_json(t->file));
    train_hash_text(&s, wfile_chat_template(t->file));
    train_hash_text(&s, tmpl);
    train_hash_text(&s, kwargs);
    train_hash_text(&s, o->apply_chat_template ? "apply" : "");
    if (o->loss_type == LOSS_SFT) {
        train_hash_text(&s, "sft");
        sha256_update(&s, &o->loss_mask_type, sizeof o->loss_mask_type);
    }
    sha256_final(&s, hash);
    sha256_digits(hash, hex);
    mem_free(tmpl);
    free(kwargs);
}

/* Not all prompts were measured: memory is planned for longer ones than were seen. */
static void train_guess_longest(struct train *t)
{
    struct train_prompts *p = &t->train;
    int64_t most = (int64_t)t->positions - p->response;
    int seen = p->longest;

    if (seen < most) {
        p->longest = (int)(2 * (int64_t)seen < most ? 2 * (int64_t)seen : most);
    }
    log_info(DATA,
             "%lld prompts, of which %lld were measured: %d tokens at most. Room is made for %d; a "
             "longer one ends the run, or give --rollout-max-prompt-len",
             (long long)prompts_count(t->data), (long long)prompts_measured(t->data), seen,
             p->longest);
}

/* The sets of evaluations, where there are to be any. */
static int train_open_evals(struct train *t, struct prompts_opts *p, struct err *e)
{
    const struct train_opts *o = &t->o;
    int rc = STATUS_OK;

    if (o->eval_interval == CONF_UNSET || o->debug_train_only) {
        return STATUS_OK;
    }
    t->evals = mem_alloc(sizeof *t->evals * (size_t)(t->nsets + 1));
    t->reading = &t->eval;
    p->max_tokens = o->eval_max_prompt_len == CONF_UNSET ? 0 : o->eval_max_prompt_len;
    p->shuffle = 0;
    for (int i = 0; rc == STATUS_OK && i < t->nsets; i++) {
        const struct evalset *set = &t->sets[i];
        const char *type = json_string_value(json_object_get(set->metadata, "rm_type"));
        p->path = set->path;
        p->input_key = set->input_key;
        p->label_key = set->label_key;
        p->tool_key = set->tool_key;
        p->metadata_key = set->metadata_key;
        p->group_size = set->n;
        t->eval_typed = type != NULL;
        if (type && !o->custom_rm_path) {
            rc = hub_type_check(type, e);
            atomic_store(&t->own_types, 1);
        }
        rc = rc == STATUS_OK ? prompts_open(&t->evals[i].data, p, e) : rc;
        if (rc != STATUS_OK) {
            return err_prefix(e, "evaluation set %s", set->name);
        }
        if (prompts_dropped(t->evals[i].data)) {
            log_warn(DATA, "%lld prompts of %s are too long and were left out",
                     (long long)prompts_dropped(t->evals[i].data), set->name);
        }
        t->evals[i].set = set;
        t->nevals++;
    }
    t->eval_typed = 0;
    return rc;
}

int train_named(const char *flag, const char *path)
{
    struct plugin_ref r;
    int own = 0;

    if (path && plugin_resolve(plugin_hook(flag), path, &r, NULL) == STATUS_OK) {
        own = r.kind != PLUGIN_BUILTIN;
        plugin_ref_fini(&r);
    }
    return own;
}

/* Prompts come from a class of the user's, or a function of theirs makes rollouts without any. */
static int train_own_data(const struct train *t)
{
    const struct train_opts *o = &t->o;
    return !o->rollout_global_dataset || train_named("data-source-path", o->data_source_path) ||
           (train_named("rollout-function-path", o->rollout_function_path) && !o->prompt_data);
}

/* Nothing is known of prompts that are yet to be made. */
static int train_source_opts(struct train *t, struct err *e)
{
    const struct train_opts *o = &t->o;

    if (o->rollout_max_prompt_len == CONF_UNSET) {
        return ERR(e, STATUS_INPUT,
                   "--data-source-path and --rollout-function-path need --rollout-max-prompt-len, "
                   "to make room");
    }
    t->train.longest = (int)o->rollout_max_prompt_len;
    return STATUS_OK;
}

int train_open_data(struct train *t, struct err *e)
{
    const struct train_opts *o = &t->o;
    char key[65], *cache = NULL;
    struct prompts_opts p;
    int rc = promptenc_open(&t->enc, t->file, o->chat_template_path, o->apply_chat_template,
                            o->apply_chat_template_kwargs, e);

    t->train.response = o->rollout_max_response_len == CONF_UNSET || o->loss_type == LOSS_SFT
                            ? 0
                            : (int)o->rollout_max_response_len;
    t->train.group = (int)o->n_samples_per_prompt;
    rc = rc == STATUS_OK ? evalset_read(o, &t->sets, &t->nsets, e) : rc;
    for (int i = 0; rc == STATUS_OK && i < t->nsets; i++) { /* memory is planned for the largest */
        const struct evalset *set = &t->sets[i];
        int len = set->max_response_len == CONF_UNSET ? 0 : (int)set->max_response_len;
        t->eval.response = t->eval.response > len ? t->eval.response : len;
        t->eval.group = t->eval.group > set->n ? t->eval.group : (int)set->n;
    }
    t->reading = &t->train;
    memset(&p, 0, sizeof p);
    p.max_tokens = o->rollout_max_prompt_len == CONF_UNSET ? 0 : o->rollout_max_prompt_len;
    p.threads = (int)o->threads;
    p.skip_bad = o->skip_bad_lines;
    p.input_key = o->input_key;
    p.label_key = o->label_key;
    p.metadata_key = o->metadata_key;
    p.tool_key = o->tool_key;
    p.seed = (uint64_t)o->rollout_seed;
    p.tokens = train_tokens;
    p.seen = train_seen;
    p.arg = t;
    if (rc == STATUS_OK && !o->load_debug_rollout_data && train_own_data(t)) {
        rc = train_source_opts(t, e);
    } else if (rc == STATUS_OK && !o->load_debug_rollout_data) {
        if (!o->prompt_data) {
            return ERR(e, STATUS_INPUT, "--prompt-data is needed");
        }
        p.path = o->prompt_data;
        p.shuffle = o->rollout_shuffle;
        p.group_size = o->n_samples_per_prompt;
        if (o->save) {
            train_lengths_key(t, key);
            cache = fsio_join(o->save, "prompts.lengths");
            p.cache = cache;
            p.cache_key = key;
        }
        rc = prompts_open(&t->data, &p, e);
        p.cache = NULL;
        mem_free(cache);
        if (rc == STATUS_OK && prompts_measured(t->data) < prompts_count(t->data)) {
            train_guess_longest(t);
        }
        if (rc == STATUS_OK && prompts_dropped(t->data)) {
            log_warn(DATA,
                     "%lld prompts are longer than --rollout-max-prompt-len and were left out",
                     (long long)prompts_dropped(t->data));
        }
    }
    return rc == STATUS_OK ? train_open_evals(t, &p, e) : rc;
}

int train_guesses(const struct train *t)
{
    return t->o.dry_run && !wfile_tokenizer_json(t->file);
}

int train_guess_prompts(struct train *t, struct err *e)
{
    const struct train_opts *o = &t->o;
    struct train_prompts *p = &t->train;
    int64_t tokens = o->rollout_max_prompt_len;
    int64_t n = o->over_sampling_batch_size;

    p->response = o->rollout_max_response_len == CONF_UNSET ? 0 : (int)o->rollout_max_response_len;
    p->group = (int)o->n_samples_per_prompt;
    if (tokens == CONF_UNSET) {
        tokens = TRAIN_GUESS_PROMPT;
    }
    if (!o->load_debug_rollout_data && !fsio_is_file(o->prompt_data) &&
        !strpbrk(o->prompt_data, "@,")) {
        return ERR(e, STATUS_NOTFOUND, "--prompt-data %.300s does not exist", o->prompt_data);
    }
    for (int64_t i = 0; i < n; i++) {
        train_count(t, p, (int)tokens);
    }
    log_info(DATA,
             "the model's folder has no tokenizer.json: memory is planned for prompts of %lld "
             "tokens",
             (long long)tokens);
    return STATUS_OK;
}
