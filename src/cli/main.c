/* The program: picks the command. Only this file may call exit. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/conf.h"
#include "base/status.h"
#include "cli/cmd.h"
#include "num/device.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *doc;
} commands[] = {
    {"train", cmd_train, "train a model by reinforcement learning"},
    {"train-async", cmd_train, "the same, sampling the next rollout while one is trained"},
    {"replay", cmd_replay, "run a training again from its ledger alone, and compare"},
    {"generate", cmd_generate, "sample an answer to a prompt"},
    {"chat", cmd_chat, "talk to a model in the terminal"},
    {"serve", cmd_serve, "serve a model over HTTP: SGLang's API and OpenAI's"},
    {"router", cmd_router, "one address in front of many such servers"},
    {"session", cmd_session, "an endpoint for each agent, which records its tokens"},
    {"reward", cmd_reward, "score answers: a file, or over HTTP for any framework"},
    {"sandbox", cmd_sandbox, "run Python programs in sandboxes, for the tools of agents"},
    {"guard", cmd_guard, "run a command that leaves no process behind"},
    {"diff", cmd_diff, "name the first step in which two runs differ"},
    {"audit", cmd_audit, "grade, tokenise and score saved samples once more"},
    {"logs", cmd_logs, "the logs of a run and its engines, merged by time"},
    {"simulate", cmd_simulate, "the controller against simulated engines, network and disk"},
    {"report", cmd_report, "pack what a bug report needs of a run"},
    {"import", cmd_import, "write a GGUF file as a Hugging Face folder"},
    {"data", cmd_data, "check data files and show the order of prompts"},
    {"template", cmd_template, "render and check a model's chat template"},
    {"tokenize", cmd_tokenize, "turn text into tokens and back"},
    {"flags", cmd_flags, "what becomes of each flag of Miles here"},
    {"bench", cmd_bench, "measure this machine and this program"},
};

#define NCOMMANDS ((int)(sizeof commands / sizeof commands[0]))

int cmd_fail(int status, const struct err *e)
{
    fprintf(stderr, "miles: %s\n", e->msg);
    return status == STATUS_INPUT ? CMD_USAGE : CMD_FAILED;
}

void cmd_help(const char *usage, const struct conf *c)
{
    if (conf_wants_markdown(c)) {
        printf("# `%s`\n", usage);
        conf_markdown(c, stdout);
    } else {
        printf("usage: %s\n\n", usage);
        conf_help(c, stdout);
    }
}

static void usage(FILE *out)
{
    fprintf(out, "usage: miles COMMAND [--flag value ...]\n\n");
    for (int i = 0; i < NCOMMANDS; i++) {
        fprintf(out, "  %-12s %s\n", commands[i].name, commands[i].doc);
    }
    fprintf(
        out,
        "\n`miles COMMAND --help` lists the flags of a command; `miles --version` the version.\n");
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        usage(stderr);
        return CMD_USAGE;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("miles %s (%s)\n", MILES_VERSION, device_best_isa());
        return CMD_OK;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        usage(stdout);
        return CMD_OK;
    }
    for (int i = 0; i < NCOMMANDS; i++) {
        if (strcmp(argv[1], commands[i].name) == 0) {
            int rc = commands[i].run(argc - 1, argv + 1);
            if (fflush(stdout) != 0 || ferror(stdout)) {
                fprintf(stderr, "miles: cannot write the output: %s\n", strerror(errno));
                return rc == CMD_OK ? CMD_FAILED : rc;
            }
            return rc;
        }
    }
    fprintf(stderr, "miles: unknown command %s\n\n", argv[1]);
    usage(stderr);
    return CMD_USAGE;
}
