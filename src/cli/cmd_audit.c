/* Owns `miles audit RUN|DUMP...`: saved samples are graded, tokenised and scored once more. What it
 * needs comes from flags, else from the configuration of the run. */
#include <dirent.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/conf.h"
#include "base/fsio.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/thread.h"
#include "cli/cmd.h"
#include "cli/genmodel.h"
#include "model/safetensors.h"
#include "model/weights.h"
#include "model/wfile.h"
#include "reward/hub.h"
#include "rl/audit.h"
#include "rl/dump.h"
#include "rl/sample.h"

enum { AUDIT_FOUND = 3 };
#define AUDIT_FILES 65536

struct audit_flags {
    struct genmodel_opts model;
    char *load, *rm_type, *custom_rm_path, *reward_key, *python, *rm_url, *chat_template_path;
    json_t *kwargs;
    int64_t rollout, show, iteration;
    double temperature, tolerance, timeout_s;
    int apply, no_reward, no_logp, no_tokens;
};

#define O(f) offsetof(struct audit_flags, f)
static const struct conf_opt audit_table[] = {
    {"load", CONF_STR, NULL, NULL, "folder of trainer checkpoints to score with; the run's own",
     O(load), "model", NULL},
    {"iteration", CONF_INT, "-1", "[-1,1000000000000]",
     "the checkpoint of --load; -1: the one that each sample was drawn with", O(iteration), "model",
     NULL},
    {"rollout", CONF_INT, "-1", "[-1,1000000000000]", "only this rollout of a run; -1: all",
     O(rollout), "what", NULL},
    {"show", CONF_INT, "20", "[0,1000000000]", "disagreements to show", O(show), "what", NULL},
    {"tolerance", CONF_FLOAT, "0", "[0,inf)", "log-probs may differ by so much", O(tolerance),
     "what", NULL},
    {"no-reward", CONF_SWITCH, NULL, NULL, "do not grade", O(no_reward), "what", NULL},
    {"no-logp", CONF_SWITCH, NULL, NULL, "do not compute log-probs", O(no_logp), "what", NULL},
    {"no-tokens", CONF_SWITCH, NULL, NULL, "do not tokenise", O(no_tokens), "what", NULL},
    {"rm-type", CONF_STR, NULL, NULL, "built-in reward", O(rm_type), "reward", NULL},
    {"custom-rm-path", CONF_STR, NULL, NULL, "reward function: pkg.module.fn or FILE.py:fn",
     O(custom_rm_path), "reward", NULL},
    {"reward-key", CONF_STR, NULL, NULL, "key of the reward when the function returns an object",
     O(reward_key), "reward", NULL},
    {"rm-url", CONF_STR, NULL, NULL, "service that --rm-type remote_rm asks", O(rm_url), "reward",
     NULL},
    {"reward-python", CONF_STR, NULL, NULL, "interpreter of Python rewards", O(python), "reward",
     NULL},
    {"reward-timeout", CONF_FLOAT, "30", "(0,86400]", "seconds for one reward call", O(timeout_s),
     "reward", NULL},
    {"rollout-temperature", CONF_FLOAT, NULL, "[0,100]", "that the samples were drawn with",
     O(temperature), "sampling", NULL},
    {"apply-chat-template", CONF_SWITCH, NULL, NULL, "prompts are rendered with the chat template",
     O(apply), "sampling", NULL},
    {"apply-chat-template-kwargs", CONF_JSON, NULL, NULL, "variables for the template", O(kwargs),
     "sampling", NULL},
    {"chat-template-path", CONF_STR, NULL, NULL, "template file instead of the model's",
     O(chat_template_path), "sampling", NULL},
    {0}};
#undef O

struct audit_file {
    char *path;
    int64_t rollout;
};

struct audit_cmd {
    struct audit_flags f;
    json_t *config; /* of the run, or NULL */
    const json_t *opts;
    struct audit_file *files;
    int nfiles;
    struct genmodel m;
    struct hub *hub;
    struct audit a;
    int64_t weights; /* iteration that m.w holds; -1: those of --hf-checkpoint, -2: nobody's */
    int64_t unscored;
};

/* A text option: the flag, else what the run was told. */
static const char *audit_text(const struct audit_cmd *c, const char *flag, const char *name)
{
    return flag ? flag : json_string_value(json_object_get(c->opts, name));
}

/* ---- what is to be audited ---- */

static void audit_add(struct audit_cmd *c, char *path, int64_t rollout)
{
    c->files[c->nfiles++] = (struct audit_file){path, rollout};
}

static int audit_by_rollout(const void *a, const void *b)
{
    const struct audit_file *x = a, *y = b;
    return x->rollout < y->rollout ? -1 : x->rollout > y->rollout;
}

/* The dumps of a run: every file that its template makes of a number. */
static int audit_find(struct audit_cmd *c, const char *run, const char *pattern, struct err *e)
{
    const char *mark = strstr(pattern, "{rollout_id}"), *slash = mark;
    char *dir, *head;
    size_t hn;
    DIR *d;
    struct dirent *de;

    while (slash && slash > pattern && slash[-1] != '/') {
        slash--;
    }
    if (!mark) {
        audit_add(c, mem_strdup(pattern), -1);
        return STATUS_OK;
    }
    dir = slash > pattern ? mem_strndup(pattern, (size_t)(slash - pattern)) : mem_strdup(".");
    head = mem_strndup(slash, (size_t)(mark - slash));
    hn = strlen(head);
    d = opendir(dir);
    while (d && (de = readdir(d)) && c->nfiles < AUDIT_FILES) {
        char *end;
        long long id =
            strtoll(de->d_name + (strncmp(de->d_name, head, hn) == 0 ? hn : 0), &end, 10);
        if (strncmp(de->d_name, head, hn) == 0 && end > de->d_name + hn && id >= 0 &&
            strcmp(end, mark + strlen("{rollout_id}")) == 0 &&
            (c->f.rollout < 0 || c->f.rollout == id)) {
            audit_add(c, fsio_join(dir, de->d_name), id);
        }
    }
    if (d) {
        closedir(d);
    }
    mem_free(dir);
    mem_free(head);
    qsort(c->files, (size_t)c->nfiles, sizeof *c->files, audit_by_rollout);
    return c->nfiles ? STATUS_OK
                     : ERR(e, STATUS_INPUT, "%s: there is no sample file %s", run, pattern);
}

static int audit_run_folder(struct audit_cmd *c, const char *run, struct err *e)
{
    char *path = fsio_join(run, "config.json"), *given = NULL;
    const char *pattern, *details;
    json_error_t je;
    int rc;

    c->config = json_load_file(path, 0, &je);
    mem_free(path);
    if (!c->config) {
        return ERR(e, STATUS_INPUT, "%s is not the folder of a run: config.json: %s", run, je.text);
    }
    c->opts = json_object_get(c->config, "options");
    pattern = json_string_value(json_object_get(c->opts, "save_debug_rollout_data"));
    details = json_string_value(json_object_get(c->opts, "dump_details"));
    if (!pattern && details) {
        given = fsio_join(details, "rollout_data/{rollout_id}.jsonl");
        pattern = given;
    }
    rc = pattern ? audit_find(c, run, pattern, e)
                 : ERR(e, STATUS_INPUT,
                       "%s kept no samples: run it with --dump-details DIR or "
                       "--save-debug-rollout-data 'DIR/{rollout_id}.jsonl'",
                       run);
    mem_free(given);
    return rc;
}

/* ---- what is compared with ---- */

static int audit_open_model(struct audit_cmd *c, struct err *e)
{
    struct audit_flags *f = &c->f;
    const char *hf = audit_text(c, f->model.hf_checkpoint, "hf_checkpoint");
    const char *ref = f->model.hf_checkpoint ? NULL : audit_text(c, NULL, "ref_load");
    const json_t *kwargs =
        f->kwargs ? f->kwargs : json_object_get(c->opts, "apply_chat_template_kwargs");
    int apply = f->apply || json_is_true(json_object_get(c->opts, "apply_chat_template"));
    struct plan plan;
    int rc;

    if (!hf && !f->no_logp) {
        return ERR(e, STATUS_INPUT,
                   "--hf-checkpoint is needed to compute log-probs (or give --no-logp)");
    }
    if (!hf) {
        return STATUS_OK;
    }
    rc = wfile_open(ref ? ref : hf, &c->m.file, e);
    if (rc == STATUS_OK && !f->no_tokens) {
        rc = promptenc_open(&c->m.enc, c->m.file,
                            audit_text(c, f->chat_template_path, "chat_template_path"), apply,
                            kwargs, e);
        c->a.enc = rc == STATUS_OK ? &c->m.enc : NULL;
        c->a.check_prompt = apply || c->opts != NULL;
    }
    if (rc != STATUS_OK) {
        return rc;
    }
    c->a.vocab = wfile_arch(c->m.file)->vocab;
    if (f->no_logp) {
        return STATUS_OK;
    }
    plan_init(
        &plan,
        f->model.leaves ? (int)f->model.leaves : weights_default_leaves(wfile_arch(c->m.file)), 0);
    rc = device_open(f->model.device,
                     strcmp(f->model.device, "cpu") == 0 ? f->model.isa : f->model.libtorch,
                     (int)f->model.threads, &plan, &c->m.dev, e);
    rc = rc == STATUS_OK ? weights_open(c->m.file, c->m.dev, 0, 0, &c->m.w, e) : rc;
    c->weights = -1;
    return rc;
}

static int audit_open_hub(struct audit_cmd *c, int typed, struct err *e)
{
    const struct audit_flags *f = &c->f;
    struct hub_opts h = {.rm_type = audit_text(c, f->rm_type, "rm_type"),
                         .custom_rm_path = audit_text(c, f->custom_rm_path, "custom_rm_path"),
                         .reward_key = audit_text(c, f->reward_key, "reward_key"),
                         .python = audit_text(c, f->python, "reward_python"),
                         .rm_url = audit_text(c, f->rm_url, "rm_url"),
                         .workers = pool_cores() < 128 ? pool_cores() : 128,
                         .timeout_s = f->timeout_s,
                         .args = c->opts};

    if (f->rm_type) {
        h.custom_rm_path = f->custom_rm_path;
    }
    if (f->no_reward || json_is_true(json_object_get(c->opts, "group_rm"))) {
        return STATUS_OK; /* a group's reward cannot be had of one sample */
    }
    if (!h.rm_type && !h.custom_rm_path && !typed) {
        log_info(AUDIT, "no --rm-type and no --custom-rm-path: rewards are not looked at");
        return STATUS_OK;
    }
    return hub_open(&h, &c->hub, e);
}

/* ---- weights of a sample ---- */

static int audit_read(void *arg, const char *name, uint16_t *dst, int64_t count, struct err *e)
{
    const struct safetensors_tensor *t = safetensors_find(arg, name);
    return t ? safetensors_read_bf16(t, dst, count, e)
             : ERR(e, STATUS_FORMAT, "the checkpoint has no tensor %s", name);
}

static int audit_first_read(void *arg, const char *name, uint16_t *dst, int64_t count,
                            struct err *e)
{
    return wfile_read_bf16(arg, name, dst, count, e);
}

/* The iteration whose weights have this version, in a folder of checkpoints; -2: none. */
static int64_t audit_iteration(const char *dir, int64_t version)
{
    DIR *d = opendir(dir);
    struct dirent *de;
    int64_t found = -2;

    while (d && found == -2 && (de = readdir(d))) {
        char *path, *state;
        long long it;
        json_t *j, *v;
        int n = 0;
        if (sscanf(de->d_name, "iter_%lld%n", &it, &n) != 1 || de->d_name[n]) {
            continue;
        }
        path = fsio_join(dir, de->d_name);
        state = fsio_join(path, "state.json");
        j = json_load_file(state, 0, NULL);
        v = json_object_get(json_object_get(j, "state"), "weight_version");
        found = json_is_integer(v) && json_integer_value(v) == version ? it : found;
        json_decref(j);
        mem_free(state);
        mem_free(path);
    }
    if (d) {
        closedir(d);
    }
    return found;
}

static int audit_load(struct audit_cmd *c, const char *dir, int64_t it, struct err *e)
{
    char name[64], *folder, *path;
    struct safetensors *s = NULL;
    int rc;

    if (c->weights == it) {
        return STATUS_OK;
    }
    if (it < 0) {
        rc = weights_reload(c->m.w, audit_first_read, c->m.file, e);
    } else {
        snprintf(name, sizeof name, "iter_%07lld", (long long)it);
        folder = fsio_join(dir, name);
        path = fsio_join(folder, "model.safetensors");
        rc = safetensors_open(path, &s, e);
        rc = rc == STATUS_OK ? weights_reload(c->m.w, audit_read, s, e) : rc;
        safetensors_close(s);
        mem_free(path);
        mem_free(folder);
    }
    c->weights = rc == STATUS_OK ? it : -2;
    return rc;
}

/* Version that a sample was drawn with; -1: not told. */
static int64_t audit_version(const struct sample *s)
{
    return s->nsegments ? s->segments[0].version : -1;
}

/* Puts the weights into c->a that samples of this version were drawn with, or none. */
static int audit_weights(struct audit_cmd *c, int64_t version, struct err *e)
{
    const char *dir = c->f.load                  ? c->f.load
                      : c->f.model.hf_checkpoint ? NULL /* these and no others */
                                                 : audit_text(c, NULL, "save");
    int64_t it = -1;

    c->a.w = NULL;
    if (!c->m.w) {
        return STATUS_OK;
    }
    if (dir && c->f.iteration >= 0) {
        it = c->f.iteration;
    } else if (dir && version > 0) {
        it = audit_iteration(dir, version);
    } else if (!c->f.model.hf_checkpoint && version < 0) {
        it = -2;
    } else if (!dir && version > 0 && !c->f.model.hf_checkpoint) {
        it = -2;
    }
    if (it == -2) {
        return STATUS_OK;
    }
    c->a.w = c->m.w;
    return audit_load(c, dir, it, e);
}

/* ---- files ---- */

/* The number that a dict reward has under --reward-key, where the dump does not say it. */
static void audit_values(const struct audit_cmd *c, struct sample **s, int n)
{
    const char *key = audit_text(c, c->f.reward_key, "reward_key");

    for (int i = 0; i < n; i++) {
        const json_t *v = key ? json_object_get(s[i]->raw_reward, key) : NULL;
        if (isnan(s[i]->reward) && json_is_number(v)) {
            s[i]->reward = json_number_value(v);
        }
    }
}

/* Samples of one version at a time, which have the same weights. */
static int audit_parts(struct audit_cmd *c, int64_t rollout, struct sample **s, int n,
                       struct err *e)
{
    int rc = STATUS_OK;

    for (int i = 0, j; rc == STATUS_OK && i < n; i = j) {
        for (j = i + 1; j < n && audit_version(s[j]) == audit_version(s[i]); j++) {
        }
        rc = audit_weights(c, audit_version(s[i]), e);
        c->unscored += c->m.w && !c->a.w ? j - i : 0;
        rc = rc == STATUS_OK ? audit_samples(&c->a, rollout, s + i, j - i, e) : rc;
    }
    return rc;
}

static int audit_file_run(struct audit_cmd *c, const struct audit_file *f, struct err *e)
{
    struct sample **s = NULL;
    int n = 0, typed = 0, rc = dump_read(f->path, &s, &n, e);

    for (int i = 0; rc == STATUS_OK && i < n; i++) {
        typed |= json_is_string(json_object_get(s[i]->metadata, "rm_type"));
    }
    if (rc == STATUS_OK && !c->hub) {
        rc = audit_open_hub(c, typed, e);
        c->a.hub = c->hub;
    }
    if (rc == STATUS_OK) {
        audit_values(c, s, n);
        rc = audit_parts(c, f->rollout, s, n, e);
    }
    for (int i = 0; i < n; i++) {
        sample_free(s[i]);
    }
    mem_free(s);
    return rc;
}

/* A figure, or - when nobody looked. */
static void audit_count(int known, int64_t n)
{
    if (known) {
        printf("%lld", (long long)n);
    } else {
        putchar('-');
    }
}

static void audit_print(const struct audit_cmd *c)
{
    const struct audit_sums *s = &c->a.sums;

    if (c->a.shown > c->f.show) {
        printf("... and %lld more\n", (long long)(c->a.shown - c->f.show));
    }
    if (s->respelled) {
        printf("%lld responses would have other tokens if their text were tokenised again, which "
               "nothing here does: they are trained as they were sampled\n",
               (long long)s->respelled);
    }
    if (c->unscored) {
        printf("%lld samples were drawn with weights that no checkpoint has: --save DIR "
               "--save-interval 1 would have kept them\n",
               (long long)c->unscored);
    }
    printf("samples=%lld reward_changed=", (long long)s->samples);
    audit_count(s->graded > 0, s->reward_changed);
    printf(" token_mismatch=");
    audit_count(c->a.enc != NULL, s->token_mismatch);
    printf(" logp_max_diff=");
    if (s->scored_tokens) {
        printf("%g\n", s->logp_max_diff);
    } else {
        printf("-\n");
    }
}

static int audit_all(struct audit_cmd *c, struct conf *conf, struct err *e)
{
    const json_t *t = NULL;
    int rc = STATUS_OK;

    c->files = mem_alloc(sizeof *c->files * (AUDIT_FILES + 256));
    for (int i = 0; rc == STATUS_OK && i < conf_nargs(conf); i++) {
        const char *given = conf_arg(conf, i);
        if (fsio_is_dir(given)) {
            rc = conf_nargs(conf) == 1 ? audit_run_folder(c, given, e)
                                       : ERR(e, STATUS_INPUT, "one run at a time: %s", given);
        } else if (!fsio_is_file(given)) {
            rc = ERR(e, STATUS_INPUT, "%s is neither a run folder nor a file of samples", given);
        } else {
            audit_add(c, mem_strdup(given), -1);
        }
    }
    t = json_object_get(c->opts, "rollout_temperature");
    c->a.temperature = !isnan(c->f.temperature) ? c->f.temperature
                       : json_is_number(t)      ? json_number_value(t)
                                                : 1.0;
    c->a.any_end = json_is_true(json_object_get(c->opts, "rollout_ignore_eos"));
    c->a.tolerance = c->f.tolerance;
    c->a.show = (int)c->f.show;
    c->a.out = stdout;
    if (rc == STATUS_OK) {
        rc = audit_open_model(c, e);
    }
    for (int i = 0; rc == STATUS_OK && i < c->nfiles; i++) {
        rc = audit_file_run(c, &c->files[i], e);
    }
    return rc;
}

static void audit_close(struct audit_cmd *c)
{
    for (int i = 0; i < c->nfiles; i++) {
        mem_free(c->files[i].path);
    }
    mem_free(c->files);
    hub_close(c->hub);
    genmodel_close(&c->m);
    json_decref(c->config);
}

int cmd_audit(int argc, char **argv)
{
    struct audit_cmd *c = mem_alloc(sizeof *c);
    struct conf *conf = conf_new();
    struct err e = {0};
    int rc, code = CMD_OK;

    conf_add(conf, genmodel_table, &c->f.model);
    conf_add(conf, audit_table, &c->f);
    conf_positional(conf, 1, 256);
    rc = conf_parse(conf, argc - 1, argv + 1, &e);
    if (rc == STATUS_END) {
        cmd_help("miles audit RUN|DUMP.jsonl ... [--flag value ...]    exit 3: disagreements",
                 conf);
    } else {
        rc = rc == STATUS_OK ? audit_all(c, conf, &e) : rc;
        if (rc == STATUS_OK) {
            audit_print(c);
            code = c->a.shown ? AUDIT_FOUND : CMD_OK;
        } else {
            code = cmd_fail(rc, &e);
        }
    }
    audit_close(c);
    conf_free(conf);
    mem_free(c);
    return code;
}
