/* A reward hub behind HTTP, in Miles' `remote_rm` protocol.
 *
 *     POST /  or /reward   {"prompt", "response", "label", "metadata"}
 *                          200: the reward, a number or an object
 *                          422: this sample cannot be scored; 500: no reward could be had
 *                          {"failed": true, "reason": text, "class": name}
 *     POST /batch          a list of these, or {"samples": [...]}
 *                          200: {"results": [{"reward", "failed", "reason", "class"}, ...]}
 *     GET  /health         200 when rewards can be asked for
 *     GET  /metrics        Prometheus text
 *
 * Beyond max_queued samples a request is answered with 503 and Retry-After. A failed reward is
 * never a 0. The hub has a thread of its own; see reward/hub.h for who scores a sample. */
#ifndef SERVE_REWARDAPI_H
#define SERVE_REWARDAPI_H

#include "net/http_server.h"
#include "reward/hub.h"

struct err;
struct rewardapi;

struct rewardapi_opts {
    struct http_server_opts http; /* address, keys, limits; routes are filled in here */
    struct hub_opts hub;          /* used until start returns */
    int max_queued;               /* samples waiting or being scored; 0: 1024. At most 4096 */
    int group;                    /* 1: a batch is a group, for a function that takes lists */
};

/* Returns when the hub is open (with its functions loaded) and the port listens. */
int rewardapi_start(const struct rewardapi_opts *o, struct rewardapi **out, struct err *e);
int rewardapi_port(const struct rewardapi *a);
/* No new requests; waits for those that run. 0, or STATUS_TIMEOUT when some were cut. */
int rewardapi_drain(struct rewardapi *a, double wait_s);
void rewardapi_stop(struct rewardapi *a); /* NULL is fine */

#endif
