/* Starts the engines of a run and the router in front of them, and leaves nothing of them behind:
 * the host of rl/port_http.h.
 *
 *     struct launch_opts o = {.kind = PORT_HTTP_MILES, .nengines = 2, .words = words, ...};
 *     launch_open(&o, &l, &e);
 *     launch_router_start(l, &e);                    where there is one
 *     ... launch_host(l) to port_http_open ...
 *     launch_close(l);                               SIGTERM, and after a while SIGKILL
 *
 * `miles serve` and `miles router` are this very program. An SGLang server is a command of the
 * user's, held by `miles guard` (run/guard.h). Each writes what it says into a log file of its own;
 * the last lines of one that has ended are part of what alive says. Children die with this process,
 * even by SIGKILL.
 *
 * All calls are made by one thread, which must live as long as the children are wanted
 * (base/proc.h).
 */
#ifndef RUN_LAUNCH_H
#define RUN_LAUNCH_H

#include <stddef.h>

#include "rl/port_http.h"

struct cmdline;
struct err;
struct launch;

#define LAUNCH_SHARE_FD 3 /* of the child: what share_fd is here */

/* Names in braces in an SGLang command. */
#define LAUNCH_NAMES "{model} {host} {port} {nccl_port} {gpus} {first_gpu} {threads} {engine}"

/* Borrowed until launch_close, but words, which are copied. */
struct launch_opts {
    enum port_http_kind kind;
    int nengines;
    /* MILES: "serve" and its flags, without host and port. SGLANG: the command, with names in
     * braces. */
    const struct cmdline *words;
    const struct cmdline *router; /* "router" and its flags; NULL: none */
    const char *program;          /* this program's file; NULL: the one that runs */
    const char *model;            /* for {model} */
    int gpus, threads;            /* of one engine: for {gpus}, {first_gpu}, {threads} */
    const char *log_dir;          /* made when missing: engine_0.log, ..., router.log */
    int share_fd;                 /* of ours, for MILES engines to have; -1: none */
    double end_s; /* from SIGTERM to SIGKILL [20; SGLang, which takes its time: 60] */
};

/* STATUS_INPUT for a name in braces that is none. Nothing is started. */
int launch_open(const struct launch_opts *o, struct launch **out, struct err *e);
/* Starts the router and waits until it listens. It is started again, on the same port, when it
 * ends.
 */
int launch_router_start(struct launch *l, struct err *e);
const char *launch_router_url(const struct launch *l); /* NULL: there is none */
const struct port_http_host *launch_host(struct launch *l);
/* The last line in the log of an engine, "" when there is none: what a slow start is at. */
void launch_last_line(const struct launch *l, int engine, char *out, size_t size);
void launch_close(struct launch *l); /* NULL is fine */

#endif
