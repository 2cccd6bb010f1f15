/* `miles sandbox`: Python programs from stdin, run in sandboxes, for the tools of agents. A line of
 * JSON each way, results in any order:
 *
 *     {"id": 1, "code": "print(6 * 7)", "input": ""}
 *     {"id": 1, "output": "42\n", "verdict": "passed", "reason": "passed 1 of 1"}
 *
 * It ends when stdin does and all results are out. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/status.h"
#include "cli/cmd.h"
#include "reward/sandbox.h"

enum { LINE_MAX_BYTES = 4 << 20 };

struct sandbox_cmd_opts {
    char *python;
    int64_t workers, memory_mb, output;
    double timeout_s;
};

#define O(f) offsetof(struct sandbox_cmd_opts, f)
static const struct conf_opt sandbox_cmd_table[] = {
    {"reward-python", CONF_STR, "python3", NULL, "interpreter of the programs", O(python),
     "sandbox", NULL},
    {"workers", CONF_INT, "0", "[0,64]", "programs at the same time; 0: the machine's cores",
     O(workers), "sandbox", NULL},
    {"code-timeout", CONF_FLOAT, "6", "(0,1e6]", "cpu seconds of a program", O(timeout_s),
     "sandbox", NULL},
    {"code-memory", CONF_INT, "1024", "[16,1048576]", "its memory in MB", O(memory_mb), "sandbox",
     NULL},
    {"code-output", CONF_INT, "65536", "[1,1073741824]", "bytes of its output", O(output),
     "sandbox", NULL},
    {0}};

static void print_line(json_t *o)
{
    char *text = json_dumps(o, JSON_COMPACT);

    puts(text ? text : "{}");
    fflush(stdout);
    free(text);
    json_decref(o);
}

static void print_result(const struct sandbox_result *r)
{
    const struct sandbox_outcome *c = r->ncases ? &r->cases[0] : NULL;
    json_t *text = c && c->output ? json_stringn(c->output, c->output_len) : NULL;

    print_line(json_pack(
        "{s:I,s:o,s:s,s:s}", "id", (json_int_t)r->id, "output", text ? text : json_string(""),
        "verdict", r->failed ? "failed" : sandbox_verdict_name(r->verdict), "reason", r->reason));
}

/* One line: a program that is to be run. What is none is answered at once. */
static int submit(struct sandbox *s, const char *line, size_t len, struct err *e)
{
    json_t *o = json_loadb(line, len, 0, NULL);
    const json_t *code = json_object_get(o, "code"), *input = json_object_get(o, "input");
    struct sandbox_case c = {.input = json_string_value(input),
                             .input_len = json_string_length(input)};
    struct sandbox_job j = {.id = json_integer_value(json_object_get(o, "id")),
                            .source = json_string_value(code),
                            .source_len = json_string_length(code),
                            .compare = SANDBOX_NOTHING,
                            .cases = &c,
                            .ncases = 1,
                            .keep_output = 1};
    int rc = STATUS_OK;

    if (!json_is_string(code)) {
        print_line(json_pack("{s:I,s:s,s:s,s:s}", "id", (json_int_t)j.id, "output", "", "verdict",
                             "failed", "reason", "the line has no \"code\""));
    } else {
        rc = sandbox_submit(s, &j, e);
    }
    json_decref(o);
    return rc;
}

/* Takes whole lines out of what was read. STATUS_AGAIN: the pool has no room for the next one. */
static int take_lines(struct sandbox *s, struct buf *b, struct err *e)
{
    char *end;
    int rc = STATUS_OK;

    while (rc == STATUS_OK && (end = memchr(b->data, '\n', b->len))) {
        rc = end == b->data ? STATUS_OK : submit(s, b->data, (size_t)(end - b->data), e);
        if (rc == STATUS_OK) {
            buf_shift(b, (size_t)(end - b->data) + 1);
        }
    }
    return rc;
}

/* 0 at the end of stdin. */
static int read_more(int fd, struct buf *b, struct err *e)
{
    char chunk[65536];
    ssize_t n = read(fd, chunk, sizeof chunk);

    if (n < 0 && errno != EINTR && errno != EAGAIN) {
        ERR(e, STATUS_IO, "cannot read stdin: %s", strerror(errno));
        return 0;
    }
    buf_add(b, chunk, n > 0 ? (size_t)n : 0);
    return n != 0;
}

static int run(struct sandbox *s, int fd, struct err *e)
{
    struct sandbox_result r;
    struct buf b;
    int open = 1, rc = STATUS_OK;

    buf_init(&b, LINE_MAX_BYTES);
    while (rc >= 0 && (open || sandbox_pending(s))) {
        struct pollfd in = {.fd = fd, .events = POLLIN};
        if (open && b.len < LINE_MAX_BYTES / 2 && poll(&in, 1, sandbox_pending(s) ? 0 : 1000) > 0) {
            open = read_more(fd, &b, e);
        }
        rc = take_lines(s, &b, e);
        if (rc >= 0 && buf_status(&b)) {
            rc = ERR(e, STATUS_INPUT, "a line has more than %d bytes", LINE_MAX_BYTES);
        }
        if (rc >= 0 && (rc = sandbox_poll(s, 0.5, &r, e)) == STATUS_OK) {
            print_result(&r);
            sandbox_result_fini(&r);
        }
    }
    buf_fini(&b);
    return rc < 0 ? rc : STATUS_OK;
}

int cmd_sandbox(int argc, char **argv)
{
    struct sandbox_cmd_opts o;
    struct conf *c = conf_new();
    struct sandbox *s = NULL;
    struct err e = {0};
    int fd = -1, rc;

    conf_add(c, sandbox_cmd_table, &o);
    rc = conf_parse(c, argc - 1, argv + 1, &e);
    if (rc == STATUS_END) {
        cmd_help("miles sandbox [--flag value ...]", c);
        conf_free(c);
        return CMD_OK;
    }
    if (rc == STATUS_OK) {
        struct sandbox_opts so = {.workers = (int)o.workers,
                                  .python = o.python,
                                  .limits = {.cpu_s = o.timeout_s,
                                             .wall_s = 2 * o.timeout_s,
                                             .memory = o.memory_mb << 20,
                                             .output = o.output}};
        fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
        so.wake_fd = fd;
        rc = fd < 0 ? ERR(&e, STATUS_IO, "cannot read stdin: %s", strerror(errno))
                    : sandbox_open(&so, &s, &e);
    }
    rc = rc == STATUS_OK ? run(s, fd, &e) : rc;
    sandbox_close(s);
    if (fd >= 0) {
        close(fd);
    }
    conf_free(c);
    return rc == STATUS_OK ? CMD_OK : cmd_fail(rc, &e);
}
