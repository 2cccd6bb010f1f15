/* RUN/hashes.jsonl: the hashes of every step (rl/stephash.h), for `miles diff`.
 *
 *     struct hashlog *h;
 *     hashlog_open("RUN/hashes.jsonl", 12, &h, &e);     rows of rollout 12 and later are removed
 *     loop_cfg.hashes = hashlog_put; loop_cfg.hashes_arg = h;
 *     ...
 *     hashlog_close(h);
 *
 * A run that goes on compares the weights that it read with those that it had: that they differ is
 * a warning. */
#ifndef RUN_HASHLOG_H
#define RUN_HASHLOG_H

#include <jansson.h>
#include <stdint.h>

struct err;
struct hashlog;

int hashlog_open(const char *path, int64_t from, struct hashlog **out, struct err *e);
void hashlog_put(void *h, json_t *row); /* takes the row */
void hashlog_close(struct hashlog *h);  /* NULL is fine */

#endif
