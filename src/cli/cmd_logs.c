/* Owns `miles logs RUN`: the logs of a run and of its engines as one. */
#include <stddef.h>
#include <stdio.h>

#include "base/conf.h"
#include "base/status.h"
#include "base/world.h"
#include "cli/cmd.h"
#include "run/logmerge.h"

struct cmd_logs {
    int follow, level;
    char *grep;
};

#define O(f) offsetof(struct cmd_logs, f)

static const struct conf_opt cmd_logs_table[] = {
    {"follow", CONF_SWITCH, NULL, NULL, "go on with what is written, until Ctrl-C", O(follow),
     "what", NULL},
    {"level", CONF_CHOICE, "info", "debug|info|warn|error", "lines of this level and above",
     O(level), "what", NULL},
    {"grep", CONF_STR, NULL, NULL, "only lines that match this extended regular expression",
     O(grep), "what", NULL},
    {0}};

int cmd_logs(int argc, char **argv)
{
    struct cmd_logs l;
    struct logmerge_opts o = {0};
    struct err e = {0};
    struct conf *c = conf_new();
    int rc;

    conf_add(c, cmd_logs_table, &l);
    conf_positional(c, 1, 1);
    rc = conf_parse(c, argc - 1, argv + 1, &e);
    if (rc == STATUS_END) {
        cmd_help("miles logs RUN [--follow] [--level LEVEL] [--grep REGEX]", c);
        conf_free(c);
        return CMD_OK;
    }
    if (rc == STATUS_OK) {
        o.run = conf_arg(c, 0);
        o.level = (enum log_level)l.level;
        o.grep = l.grep;
        o.follow = l.follow;
        o.world = l.follow ? world_system() : NULL;
        rc = logmerge_run(&o, stdout, &e);
    }
    conf_free(c);
    return rc == STATUS_OK ? CMD_OK : cmd_fail(rc, &e);
}
