/* Owns `miles data`: data files checked and shown in the order in which a run would take them. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/conf.h"
#include "base/fsio.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/proc.h"
#include "base/status.h"
#include "cli/cmd.h"
#include "rl/prompts.h"

#define SHOW_AT_ONCE 64

struct cmd_data {
    char *prompt_data, *input_key, *label_key, *metadata_key, *tool_key, *load_state, *save_state;
    int skip_bad_lines, shuffle, brief;
    int64_t seed, group, show, threads;
};

#define O(f) offsetof(struct cmd_data, f)

static const struct conf_opt cmd_data_table[] = {
    {"prompt-data", CONF_STR, NULL, NULL, "files, as `miles train` takes them", O(prompt_data),
     "data", NULL},
    {"input-key", CONF_STR, "input", NULL, "key of the prompt: text or messages", O(input_key),
     "data", NULL},
    {"label-key", CONF_STR, NULL, NULL, "key of the label", O(label_key), "data", NULL},
    {"metadata-key", CONF_STR, "metadata", NULL, "key of the metadata object", O(metadata_key),
     "data", NULL},
    {"tool-key", CONF_STR, "tools", NULL, "key of the tool list", O(tool_key), "data", NULL},
    {"skip-bad-lines", CONF_SWITCH, NULL, NULL, "bad rows are counted and left out",
     O(skip_bad_lines), "data", NULL},
    {"rollout-shuffle", CONF_SWITCH, NULL, NULL, "shuffle the prompts each epoch", O(shuffle),
     "order", NULL},
    {"rollout-seed", CONF_INT, "42", "[0,4611686018427387904]", "seed of shuffling", O(seed),
     "order", NULL},
    {"n-samples-per-prompt", CONF_INT, "1", "[1,65536]", "samples per prompt", O(group), "order",
     NULL},
    {"show", CONF_INT, "0", "[0,1000000000000]", "prompts to print, as JSON lines", O(show),
     "order", NULL},
    {"brief", CONF_SWITCH, NULL, NULL, "print numbers only, not the rows", O(brief), "order", NULL},
    {"load-state", CONF_STR, NULL, NULL, "cursor to go on from, a file of --save-state",
     O(load_state), "order", NULL},
    {"save-state", CONF_STR, NULL, NULL, "file for the cursor behind the last prompt shown",
     O(save_state), "order", NULL},
    {"threads", CONF_INT, "0", "[0,4096]", "threads; 0 takes the usable cores", O(threads), "order",
     NULL},
    {0}};

static int cmd_data_load(struct prompts *p, const char *path, struct err *e)
{
    char *text;
    size_t n;
    json_t *state;
    int rc = fsio_read(path, 1 << 20, &text, &n, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    state = json_loadb(text, n, 0, NULL);
    mem_free(text);
    rc = prompts_restore(p, state, e);
    json_decref(state);
    return rc == STATUS_OK ? rc : err_prefix(e, "%s", path);
}

static int cmd_data_save(const struct prompts *p, const char *path, struct err *e)
{
    json_t *state = prompts_state(p);
    char *text = json_dumps(state, 0);
    int rc = fsio_write_atomic(path, text, strlen(text), e);
    free(text);
    json_decref(state);
    return rc;
}

static void cmd_data_print(const struct prompts_group *g, int brief)
{
    json_t *o = json_pack("{s:I,s:I,s:I,s:I,s:I}", "group_index", (json_int_t)g->group_index,
                          "index", (json_int_t)g->index, "epoch", (json_int_t)g->epoch, "row",
                          (json_int_t)g->row_index, "line", (json_int_t)g->row->line);
    if (!brief) {
        json_object_set(o, "prompt", g->row->prompt);
        json_object_set(o, "label", g->row->label);
        json_object_set(o, "metadata", g->row->metadata);
        json_object_set(o, "tools", g->row->tools);
    }
    json_dumpf(o, stdout, JSON_COMPACT | JSON_REAL_PRECISION(17));
    putchar('\n');
    json_decref(o);
}

static int cmd_data_show(struct prompts *p, const struct cmd_data *d, struct err *e)
{
    struct prompts_group g[SHOW_AT_ONCE];
    int rc = STATUS_OK;

    for (int64_t left = d->show; rc == STATUS_OK && left > 0; left -= SHOW_AT_ONCE) {
        int64_t n = left < SHOW_AT_ONCE ? left : SHOW_AT_ONCE;
        rc = prompts_next(p, n, g, e);
        for (int64_t i = 0; rc == STATUS_OK && i < n; i++) {
            cmd_data_print(&g[i], d->brief);
        }
    }
    return rc;
}

static int cmd_data_run(const struct cmd_data *d, struct err *e)
{
    struct prompts_opts o = {.path = d->prompt_data,
                             .input_key = d->input_key,
                             .label_key = d->label_key,
                             .metadata_key = d->metadata_key,
                             .tool_key = d->tool_key,
                             .skip_bad = d->skip_bad_lines,
                             .shuffle = d->shuffle,
                             .seed = (uint64_t)d->seed,
                             .group_size = d->group,
                             .threads = (int)d->threads};
    struct prompts *p = NULL;
    double t0 = proc_now();
    int rc = prompts_open(&p, &o, e);

    if (rc == STATUS_OK) {
        log_info(DATA, "rows=%lld skipped=%lld seconds=%.3f resident_mib=%.1f",
                 (long long)prompts_count(p), (long long)prompts_skipped(p), proc_now() - t0,
                 (double)mem_resident() / 1048576.0);
    }
    if (rc == STATUS_OK && d->load_state) {
        rc = cmd_data_load(p, d->load_state, e);
    }
    if (rc == STATUS_OK) {
        rc = cmd_data_show(p, d, e);
    }
    if (rc == STATUS_OK && d->save_state) {
        rc = cmd_data_save(p, d->save_state, e);
    }
    prompts_close(p);
    return rc;
}

int cmd_data(int argc, char **argv)
{
    struct cmd_data d;
    struct err e = {0};
    struct conf *c = conf_new();
    int rc;

    conf_add(c, cmd_data_table, &d);
    rc = conf_parse(c, argc - 1, argv + 1, &e);
    if (rc == STATUS_END) {
        cmd_help("miles data --prompt-data FILE [--flag value ...]", c);
        conf_free(c);
        return CMD_OK;
    }
    if (rc == STATUS_OK) {
        rc = cmd_data_run(&d, &e);
    }
    conf_free(c);
    return rc == STATUS_OK ? CMD_OK : cmd_fail(rc, &e);
}
