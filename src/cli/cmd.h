/* The commands of the program. Each gets its own arguments (argv[0] is the command's name) and
 * returns the exit code: 0 done, 1 failed, 2 wrong usage. */
#ifndef CLI_CMD_H
#define CLI_CMD_H

#include "base/conf.h"

struct err;

int cmd_train(int argc, char **argv);
int cmd_replay(int argc, char **argv);
int cmd_generate(int argc, char **argv);
int cmd_chat(int argc, char **argv);
int cmd_serve(int argc, char **argv);
int cmd_router(int argc, char **argv);
int cmd_session(int argc, char **argv);
int cmd_reward(int argc, char **argv);
int cmd_sandbox(int argc, char **argv);
int cmd_guard(int argc, char **argv);
int cmd_import(int argc, char **argv);
int cmd_data(int argc, char **argv);
int cmd_template(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);
int cmd_flags(int argc, char **argv);
int cmd_diff(int argc, char **argv);
int cmd_audit(int argc, char **argv);
int cmd_logs(int argc, char **argv);
int cmd_report(int argc, char **argv);
int cmd_simulate(int argc, char **argv);

/* Whether `miles serve` or `miles router` would take these arguments; argv[0] is the command's
 * name. Nothing is started. */
int cmd_serve_check(int argc, char *const *argv, struct err *e);
int cmd_router_check(int argc, char *const *argv, struct err *e);

/* Their tables, for `miles flags`. */
extern const struct conf_opt cmd_serve_table[], cmd_router_table[];
extern const struct conf_known cmd_router_known[];

enum { CMD_OK = 0, CMD_FAILED = 1, CMD_USAGE = 2 };

/* Prints "miles: cause" and gives the exit code of a status. */
int cmd_fail(int status, const struct err *e);
/* What --help (or --help-markdown, for docs/flags.md) asked for. */
void cmd_help(const char *usage, const struct conf *c);

#endif
