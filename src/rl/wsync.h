/* How weights get into engines that are not in this process, seen from the port that talks to them.
 * What is to be sent is made here; sending, deadlines and retries are the port's (rl/port_http.h).
 *
 *     sync->prepare(sync->self, version, e);                    once for a version
 *     for (k = 0; sync->before(sync->self, version, k, &request, e) == STATUS_OK; k++)
 *         ... sent, to each engine, before:
 *     sync->take(sync->self, version, &request, e);             for each engine, then sent
 *     for (k = 0; sync->check(sync->self, version, k, &request, e) == STATUS_OK; k++)
 *         ... sent; sync->judge(sync->self, version, k, answer, e)
 *     sync->doubt(sync->self, version);                         one did not take or prove it
 *     sync->settled(sync->self, version);                       every engine has it
 *
 * In an engine a version is named by its number in decimal: weight_version of its answers.
 * Three kinds: wsync_shared.h for engines on this host that map the trainer's memory,
 * wsync_folder.h for those that read a Hugging Face folder, wsync_delta.h for those that fetch what
 * changed. */
#ifndef RL_WSYNC_H
#define RL_WSYNC_H

#include <jansson.h>
#include <stdint.h>

struct err;
struct map;

struct wsync_request {
    char path[64]; /* of the engine's API, such as /update_weights_from_disk */
    json_t *body;  /* the caller's from here on */
};

struct wsync {
    /* Makes the trainer's weights, which are `version` and stay so, ready to be taken. */
    int (*prepare)(void *self, int64_t version, struct err *e);
    /* The k-th request that an engine gets before it takes them, such as one that spoils what it
     * holds, so that equal values afterwards can only have come from here; it succeeds as `take`
     * does. STATUS_END when there is no k-th. NULL: none. */
    int (*before)(void *self, int64_t version, int k, struct wsync_request *r, struct err *e);
    /* The request that makes an engine take them. It succeeds with status 200, and "success" true
     * where the answer has that. */
    int (*take)(void *self, int64_t version, struct wsync_request *r, struct err *e);
    /* The k-th question that proves what an engine holds; STATUS_END when there is no k-th. */
    int (*check)(void *self, int64_t version, int k, struct wsync_request *r, struct err *e);
    /* STATUS_OK when the answer is right; else the error names tensor and both values. */
    int (*judge)(void *self, int64_t version, int k, const json_t *answer, struct err *e);
    /* An engine did not take the version, or did not prove it: what it was given may be damaged,
     * and is made good before the next try where that can be. NULL: nothing is left lying about. */
    void (*doubt)(void *self, int64_t version);
    /* All engines have it: what only older versions need may go. */
    void (*settled)(void *self, int64_t version);
    /* Puts figures of the versions prepared since the last call into a row of metrics. NULL: none.
     */
    void (*report)(void *self, json_t *row);
    void *self;
};

/* ---- shared by the kinds ---- */

/* Makes the folder; *out is its real path, to be freed with mem_free. An error when nothing can be
 * written there. */
int wsync_home(const char *dir, char **out, struct err *e);
/* Removes what is ours by its name, such as what a killed run left behind. say 1: the log has each.
 */
int wsync_clean(const char *dir, int (*ours)(const char *name), int say, struct err *e);
/* Fills r; takes the body, which may be NULL for want of memory. */
int wsync_ask(struct wsync_request *r, const char *path, json_t *body, struct err *e);
/* The trainer's own sums (model/wsum.h) of what rank tp_rank of tp_size holds, 0 of 1: all; valid
 * until the next call. NULL with the cause. */
typedef const struct map *wsync_sums_fn(void *arg, int tp_rank, int tp_size, struct err *e);
/* An answer of /weights_checker against those: every tensor must be there and equal, in each rank,
 * or, where ranks hold some of the layers each (pp_size), in one of them. The error names the
 * tensor and both sums; it is STATUS_FAIL when a tensor has another sum. */
int wsync_judge_sums(wsync_sums_fn *sums, void *arg, const json_t *answer, struct err *e);

#endif
