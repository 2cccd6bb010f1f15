/* `miles replay`: the command of a run again, with the ledger in the place of engines and rewards.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/conf.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "cli/cmd.h"
#include "run/ledger.h"

struct replay_opts {
    int64_t from, threads;
};

#define O(f) offsetof(struct replay_opts, f)

static const struct conf_opt replay_table[] = {
    {"from", CONF_INT, NULL, "[0,1000000000]",
     "begin behind the checkpoint of this rollout instead of the oldest that is recorded", O(from),
     "replay", NULL},
    {"threads", CONF_INT, NULL, "[1,4096]", "threads instead of the run's own number", O(threads),
     "replay", NULL},
    {0}};

/* A list of words for `miles train`, NULL at the end. */
struct replay_words {
    char *v[4096];
    int n;
};

static void replay_add(struct replay_words *w, const char *word)
{
    if (w->n < 4095) {
        w->v[w->n++] = mem_strdup(word);
    }
}

static void replay_add_int(struct replay_words *w, const char *flag, int64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    replay_add(w, flag);
    replay_add(w, text);
}

/* The run's last command and the folder it was given in. */
static int replay_command(const char *run, json_t **command, struct err *e)
{
    struct ledger_opts o = {.dir = run, .closed = 1};
    struct ledger *l;
    json_t *options = NULL;
    int rc = ledger_open(&o, &l, e);

    if (rc == STATUS_OK) {
        rc = ledger_last(l, command, &options, e);
        json_decref(options);
        ledger_close(l, NULL);
        rc = rc == STATUS_NOTFOUND ? ERR(e, rc, "%s has a ledger without a start", run) : rc;
    }
    return rc;
}

static int replay_run(const char *run, const struct replay_opts *o, struct err *e)
{
    struct replay_words *w = mem_alloc(sizeof *w);
    json_t *command = NULL, *word;
    const char *cwd, *name;
    size_t i;
    int rc = replay_command(run, &command, e);

    if (rc == STATUS_OK) {
        cwd = json_string_value(json_object_get(command, "cwd"));
        name = json_string_value(json_object_get(command, "command"));
        replay_add(w, name ? name : "train");
        json_array_foreach(json_object_get(command, "words"), i, word)
        {
            replay_add(w, json_is_string(word) ? json_string_value(word) : "");
        }
        replay_add(w, "--debug-replay");
        replay_add(w, run);
        if (o->from != CONF_UNSET) {
            replay_add_int(w, "--debug-replay-from", o->from);
        }
        if (o->threads != CONF_UNSET) {
            replay_add_int(w, "--threads", o->threads);
        }
        if (cwd && *cwd && chdir(cwd) != 0) {
            log_warn(TRAIN, "the folder %s that the run was started in is not there", cwd);
        }
        rc = cmd_train(w->n, w->v);
    } else {
        rc = cmd_fail(rc, e);
    }
    for (int k = 0; k < w->n; k++) {
        mem_free(w->v[k]);
    }
    mem_free(w);
    json_decref(command);
    return rc;
}

int cmd_replay(int argc, char **argv)
{
    static const char usage[] = "miles replay RUN [--flag value ...]";
    struct conf *c = conf_new();
    struct replay_opts o;
    struct err e = {0};
    char *run = NULL;
    int rc;

    conf_add(c, replay_table, &o);
    conf_positional(c, 1, 1);
    rc = conf_parse(c, argc - 1, argv + 1, &e);
    if (rc == STATUS_END) {
        cmd_help(usage, c);
        rc = CMD_OK;
    } else if (rc != STATUS_OK) {
        rc = cmd_fail(rc, &e);
    } else if (!(run = realpath(conf_arg(c, 0), NULL))) {
        ERR(&e, STATUS_INPUT, "there is no run folder %s", conf_arg(c, 0));
        rc = cmd_fail(STATUS_INPUT, &e);
    } else {
        rc = replay_run(run, &o, &e);
    }
    free(run);
    conf_free(c);
    return rc;
}
