/* `miles guard`: a command that leaves no process behind. */
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/conf.h"
#include "base/mem.h"
#include "base/status.h"
#include "cli/cmd.h"
#include "run/guard.h"

struct guarded {
    int64_t life_fd;
    int private_tmp;
};

#define O(f) offsetof(struct guarded, f)
static const struct conf_opt guarded_table[] = {
    {"life-fd", CONF_INT, NULL, "[3,1048576]",
     "descriptor whose end of file ends everything; unset: the end of the parent process",
     O(life_fd), "guard", NULL},
    {"private-tmp", CONF_SWITCH, NULL, NULL,
     "a TMPDIR for the command alone, removed with all that is in it at the end", O(private_tmp),
     "guard", NULL},
    {0}};

int cmd_guard(int argc, char **argv)
{
    struct guarded o;
    struct guard_opts g;
    struct err e = {0};
    struct conf *c = conf_new();
    const char **words;
    int rc, status = 0;

    conf_add(c, guarded_table, &o);
    conf_positional(c, 1, 1 << 20);
    rc = conf_parse(c, argc - 1, argv + 1, &e);
    if (rc == STATUS_END) {
        cmd_help("miles guard [--flag value ...] -- COMMAND [ARGUMENT ...]", c);
        conf_free(c);
        return CMD_OK;
    }
    if (rc == STATUS_OK) {
        words = mem_alloc(((size_t)conf_nargs(c) + 1) * sizeof *words);
        for (int i = 0; i < conf_nargs(c); i++) {
            words[i] = conf_arg(c, i);
        }
        g = (struct guard_opts){words, o.life_fd == CONF_UNSET ? -1 : (int)o.life_fd,
                                o.private_tmp};
        rc = guard_run(&g, &status, &e);
        mem_free(words);
    }
    conf_free(c);
    if (rc != STATUS_OK) {
        return cmd_fail(rc, &e);
    }
    if (WIFSIGNALED(status)) { /* the one who asked is to see what the command came to */
        signal(WTERMSIG(status), SIG_DFL);
        kill(getpid(), WTERMSIG(status));
    }
    return WEXITSTATUS(status);
}
