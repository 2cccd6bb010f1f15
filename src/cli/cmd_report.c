/* Owns `miles report RUN`: what a bug report needs, in one archive. */
#include <stddef.h>
#include <stdio.h>

#include "base/conf.h"
#include "base/mem.h"
#include "base/status.h"
#include "cli/cmd.h"
#include "run/bugreport.h"

struct cmd_report {
    char *output;
};

static const struct conf_opt cmd_report_table[] = {
    {"output", CONF_STR, NULL, NULL,
     "archive to write: .tar.gz, .tgz or .tar.zst; miles-report-NAME.tar.gz here when unset",
     offsetof(struct cmd_report, output), "what", NULL},
    {0}};

int cmd_report(int argc, char **argv)
{
    struct cmd_report r;
    struct err e = {0};
    struct conf *c = conf_new();
    char *path = NULL;
    int rc, files = 0;

    conf_add(c, cmd_report_table, &r);
    conf_positional(c, 1, 1);
    rc = conf_parse(c, argc - 1, argv + 1, &e);
    if (rc == STATUS_END) {
        cmd_help("miles report RUN [--output FILE]", c);
        conf_free(c);
        return CMD_OK;
    }
    if (rc == STATUS_OK) {
        path = r.output ? mem_strdup(r.output) : bugreport_name(conf_arg(c, 0));
        rc = bugreport_write(conf_arg(c, 0), path, &files, &e);
    }
    if (rc == STATUS_OK) {
        printf("report=%s files=%d\n", path, files);
    }
    mem_free(path);
    conf_free(c);
    return rc == STATUS_OK ? CMD_OK : cmd_fail(rc, &e);
}
