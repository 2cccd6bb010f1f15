/* Engines that speak the API of `miles serve`, and end, hang, slow down, fall ill, forget their
 * weights and say what is not so.
 *
 *     struct simfleet *f = simfleet_new(&sim, net, 4, own, 2);
 *     ... simfleet_host(f) or simfleet_urls(f) ...
 *     simfleet_orphaned(f);                        the controller has ended
 *     simfleet_free(f);
 *
 * own 1: the controller starts the first of them (struct port_http_host), and they die with it; 0:
 * they are somebody else's, run all the time and come back by themselves, as the `more` ones behind
 * them do when somebody has begun them. */
#ifndef SIM_SIMFLEET_H
#define SIM_SIMFLEET_H

#include "rl/port_http.h"

struct sim;
struct simfleet;
struct simnet;

struct simfleet *simfleet_new(struct sim *s, struct simnet *n, int engines, int own, int more);
void simfleet_free(struct simfleet *f);                         /* NULL is fine */
const struct port_http_host *simfleet_host(struct simfleet *f); /* NULL when they are not own */
const char *const *simfleet_urls(const struct simfleet *f);     /* NULL when they are */
void simfleet_orphaned(struct simfleet *f);
/* Somebody begins an engine, which is up after so many seconds, or ends it. */
void simfleet_begin(struct simfleet *f, int engine, double after);
void simfleet_end(struct simfleet *f, int engine);

#endif
