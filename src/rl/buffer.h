/* The data buffer: groups that were left over and go on before fresh prompts are taken (rl-math
 * 14.4). First in, first out, or as --buffer-filter-path chooses.
 *
 *     struct buffer *b = buffer_new(group_size, filter);
 *     buffer_put(b, samples);                     the list and the samples are the buffer's
 *     buffer_take(b, rollout, 4, &groups, &n, &e) up to four; each is the caller's
 *     state = buffer_state(b);                    for the checkpoint: a run goes on exactly
 *     buffer_free(b); */
#ifndef RL_BUFFER_H
#define RL_BUFFER_H

#include <jansson.h>
#include <stdint.h>

struct buffer;
struct err;
struct filter;
struct sample;

struct buffer *buffer_new(int group_size, struct filter *filter); /* NULL: the first ones */
void buffer_free(struct buffer *b);                               /* NULL is fine */
int buffer_groups(const struct buffer *b);
/* Groups that the filter threw away since the last call. */
int buffer_thrown(struct buffer *b);
void buffer_put(struct buffer *b, struct sample **s);
/* *groups is a list of *n lists, the caller's to free with mem_free, as each of them is. */
int buffer_take(struct buffer *b, int64_t rollout, int64_t want, struct sample ****groups, int *n,
                struct err *e);

/* A group of n samples, bit for bit, and back; list and samples are the caller's. */
json_t *buffer_group_state(struct sample *const *s, int n);
int buffer_group_restore(const json_t *state, int n, struct sample ***out, struct err *e);
/* All groups, bit for bit. The caller owns it. */
json_t *buffer_state(const struct buffer *b);
/* Puts those of a state into an empty buffer; NULL and null are none. */
int buffer_restore(struct buffer *b, const json_t *state, struct err *e);

#endif
