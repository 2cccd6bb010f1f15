/* A few threads between the network's and the engine's: bodies are parsed and prompts tokenised
 * here, so that a large one holds up neither.
 *
 *     struct front *f = front_new(2);
 *     front_run(f, fn, arg);          from any thread; in order of asking, several at a time
 *     front_free(f);                  what was asked for is done first */
#ifndef SERVE_FRONT_H
#define SERVE_FRONT_H

struct front;
typedef void front_fn(void *arg);

struct front *front_new(int nthreads);
void front_run(struct front *f, front_fn *fn, void *arg);
void front_free(struct front *f); /* NULL is fine */

#endif
