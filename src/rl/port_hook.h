/* A rollout port that draws no samples itself: a function of the user's makes each of them
 * (--custom-generate-function-path, --custom-agent-function-path), as a rule by calling the engines
 * of the port behind it.
 *
 *     struct port_hook *p;
 *     port_hook_open(&(struct port_hook_opts){.path = path, .inner = engines_port(g), ...}, &p,
 * &e);
 *     ... port_hook_port(p) ...
 *     port_hook_close(p);
 *
 * The function is called with the sample that is to be filled and the sampling parameters, and
 * answers with it. Nobody knows how far a sample is before it is there, and what has begun is
 * awaited: an abort drops the answers. */
#ifndef RL_PORT_HOOK_H
#define RL_PORT_HOOK_H

#include <jansson.h>

#include "rl/port.h"

struct err;
struct port_hook;

struct port_hook_opts {
    const char *flag; /* whose function it is; NULL: custom-generate-function-path */
    /* 1: a call that raises, dies or takes too long is a failed sample; 0: it ends the run */
    int spare;
    const char *path;
    const char *python;
    double timeout_s;   /* of one sample */
    int workers;        /* processes of a Python function; 0: 1 */
    const json_t *args; /* all options, with sglang_router_ip and sglang_router_port */
    const struct rollout_port *inner; /* its engines get weights and pause; may be NULL */
};

int port_hook_open(const struct port_hook_opts *o, struct port_hook **out, struct err *e);
const struct rollout_port *port_hook_port(struct port_hook *p);
void port_hook_close(struct port_hook *p); /* NULL is fine */

#endif
