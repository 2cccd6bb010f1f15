/* Rewards from a service over HTTP, in Miles' `remote_rm` protocol: POST {"prompt", "response",
 * "label"}, the answer is the reward as JSON.
 *
 *     remote_open(&(struct remote_opts){.url = "http://host:port/"}, &r, e);
 *     remote_submit(r, me, sample, e);
 *     while (remote_poll(r, 0.1, &res, e) == 0) { use(&res); json_decref(res.value); }
 *     remote_close(r);
 *
 * A number, true, false or an object is a reward; anything else (another status, other JSON, no
 * JSON, NaN, no answer in time) is `failed` with the reason. When no connection comes about, it
 * breaks, or the answer is 429, 502, 503 or 504, the call is made again after 0.1, 0.2, 0.4 ... 5
 * seconds (or what Retry-After says) for as long as the call's time lasts; after another 5xx two
 * times at most. A reward is a question, so asking twice does no harm. One thread. */
#ifndef REWARD_REMOTE_H
#define REWARD_REMOTE_H

#include <jansson.h>

struct err;
struct remote;

struct remote_opts {
    const char *url;
    double timeout_s; /* of one call with all its tries, from when it is sent first; 0 is 60 */
    int inflight;     /* calls at once, others wait; 0 is 64 */
    int metadata;     /* 1: the sample's metadata is sent too */
};

struct remote_result {
    void *user;
    int failed, late, broken; /* late, broken: no answer in time, none at all */
    char reason[256];
    json_t *value; /* number, boolean or object, the caller's; NULL when failed */
};

/* STATUS_INPUT when url is no http:// or https:// address. Nothing is sent yet. */
int remote_open(const struct remote_opts *o, struct remote **out, struct err *e);
/* Takes a call; never waits. STATUS_INPUT for a sample that cannot be sent. */
int remote_submit(struct remote *r, void *user, const json_t *sample, struct err *e);
/* One finished call. STATUS_AGAIN when none came within wait_s; at once when nothing is pending. */
int remote_poll(struct remote *r, double wait_s, struct remote_result *out, struct err *e);
int remote_pending(const struct remote *r); /* submitted and not yet polled */
void remote_close(struct remote *r);        /* NULL is fine */

#endif
