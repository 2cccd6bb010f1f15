/* oneDNN on the products of a profiled run: how long the same shapes take there.
 *
 *     struct bench_peer *b = bench_peer_new(lib, &prof, &e);     after a first round of the profile
 *     bench_peer_round(b);                                       as often as one likes
 *     bench_peer_apply(b, &prof);                                shortest times into the calls
 *     bench_peer_free(b); */
#ifndef CLI_BENCH_PEER_H
#define CLI_BENCH_PEER_H

struct bench_peer;
struct bench_prof;
struct err;
struct onednn;

/* Activations are those of the run, which must still be in memory; weights are random values, read
 * from a block so large that no cache holds it. */
struct bench_peer *bench_peer_new(struct onednn *lib, const struct bench_prof *p);
void bench_peer_free(struct bench_peer *b); /* NULL is fine */
void bench_peer_round(struct bench_peer *b);
void bench_peer_apply(const struct bench_peer *b, struct bench_prof *p);

#endif
