/* Owns `miles diff RUN_A RUN_B`: where two runs part. */
#include <stddef.h>

#include "base/conf.h"
#include "base/status.h"
#include "cli/cmd.h"
#include "run/rundiff.h"

struct cmd_diff {
    int64_t steps;
};

static const struct conf_opt cmd_diff_table[] = {{"steps", CONF_INT, "0", "[0,1000000000000]",
                                                  "compare only so many steps; 0: all",
                                                  offsetof(struct cmd_diff, steps), "what", NULL},
                                                 {0}};

int cmd_diff(int argc, char **argv)
{
    struct cmd_diff d;
    struct rundiff_opts o = {0};
    struct err e = {0};
    struct conf *c = conf_new();
    int rc, equal = 0;

    conf_add(c, cmd_diff_table, &d);
    conf_positional(c, 2, 2);
    rc = conf_parse(c, argc - 1, argv + 1, &e);
    if (rc == STATUS_END) {
        cmd_help(
            "miles diff RUN_A RUN_B [--steps N]    exit 0: equal, 1: different, 2: cannot tell", c);
        conf_free(c);
        return CMD_OK;
    }
    if (rc == STATUS_OK) {
        o.a = conf_arg(c, 0);
        o.b = conf_arg(c, 1);
        o.steps = d.steps;
        rc = rundiff_run(&o, stdout, &equal, &e);
    }
    conf_free(c);
    if (rc != STATUS_OK) {
        cmd_fail(rc, &e);
        return CMD_USAGE;
    }
    return equal ? CMD_OK : CMD_FAILED;
}
