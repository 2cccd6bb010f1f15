/* `miles router`: one address in front of many servers that speak SGLang's or OpenAI's API.
 *
 *     struct router_opts o = {...};
 *     struct router *rt;
 *     router_start(&o, &rt, &e);
 *     printf("port %d\n", router_port(rt));
 *     ... until somebody asks to end ...
 *     router_drain(rt, 30.0);
 *     router_stop(rt);
 *
 * A request goes to one worker, chosen by the policy; its answer comes back as it arrives, and a
 * client that reads slowly slows that worker's sending and nothing else. A client that leaves is
 * left by the worker too. A request that can be repeated without harm (GET, and what generates) is
 * sent to another worker when the first was lost or refused it before anything of its answer was
 * passed on. Requests that change the workers go to all of them, once. */
#ifndef SERVE_ROUTER_H
#define SERVE_ROUTER_H

#include <jansson.h>

#include "net/http_server.h"
#include "serve/router_policy.h"
#include "serve/router_worker.h"

struct router;

/* Strings are copied. */
struct router_opts {
    struct http_server_opts http; /* without routes and arg */
    struct router_worker_opts worker;
    struct router_policy_opts policy;
    const char *const *urls; /* of the first workers */
    int nurls;
    const char *worker_key;  /* that the workers ask for; NULL: the client's is passed on */
    const char *health_path; /* of the workers */
    const char *ca_file;     /* PEM, for workers with https; NULL: the system's */
    double check_timeout_s;
    double connect_s; /* to connect to a worker */
    double request_s; /* one request, retries included */
    int max_running;  /* requests forwarded at once; < 0: no limit */
    int queue_size;   /* of those that wait for one of these; more are answered with 429 */
    double queue_s;   /* and for so long at most, then 408 */
    int max_retries;
    double backoff_s, backoff_max_s, backoff_factor, jitter;
    const json_t *args; /* shown by /get_server_info, or NULL; borrowed */
};

/* STATUS_INPUT for an address that is none, and what http_server_start says. */
int router_start(const struct router_opts *o, struct router **out, struct err *e);
int router_port(const struct router *rt);
/* No new requests; waits for those that run. 0, or STATUS_TIMEOUT when some were cut. */
int router_drain(struct router *rt, double wait_s);
void router_stop(struct router *rt); /* NULL is fine */

#endif
