/* Answers of the user's functions with a memory: JSON that is recorded before the run acts on it,
 * and found again by a run that goes on (contract C5).
 *
 *     rc = memo_find(journal, &key, &value, &e);         STATUS_NOTFOUND: ask, then
 *     memo_put(journal, &key, value, &e);
 *
 * Without a journal, or with one that only listens, nothing is kept and nothing is found. The key's
 * `start` is this module's: it numbers the pieces of a long text. */
#ifndef RL_MEMO_H
#define RL_MEMO_H

#include <jansson.h>

struct err;
struct journal;
struct journal_key;

/* *out is the caller's. STATUS_NOTFOUND leaves e alone, but in a replay, where nobody can be asked:
 * then it says what is missing. */
int memo_find(struct journal *j, const struct journal_key *k, json_t **out, struct err *e);
/* It is on disk when this returns 0. value is borrowed. */
int memo_put(struct journal *j, const struct journal_key *k, const json_t *value, struct err *e);

#endif
