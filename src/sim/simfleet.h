/* Engines that speak the API of `miles serve`, and end, hang, slow down, fall ill, forget their
 * weights and say what is not so.
 *
 *     struct simfleet *f = simfleet_new(&sim, net, &(struct simfleet_opts){.engines = 4});
 *     ... simfleet_host(f) or simfleet_urls(f) ...
 *     simfleet_orphaned(f);                        the controller has ended
 *     simfleet_free(f);
 *
 * Own ones are started by the controller (struct port_http_host), and die with it; the others are
 * somebody else's, run all the time and come back by themselves. */
#ifndef SIM_SIMFLEET_H
#define SIM_SIMFLEET_H

#include "rl/port_http.h"

struct sim;
struct simdelta;
struct simfleet;
struct simnet;

struct simfleet_opts {
    int engines;            /* from the beginning */
    int own;                /* 1: they are the controller's */
    int more;               /* of others, behind them: somebody begins them */
    int crawl;              /* 1: some crawl now and then */
    struct simdelta *delta; /* weights come as changes; NULL: they come by themselves */
};

struct simfleet *simfleet_new(struct sim *s, struct simnet *n, const struct simfleet_opts *o);
void simfleet_free(struct simfleet *f);                         /* NULL is fine */
const struct port_http_host *simfleet_host(struct simfleet *f); /* NULL when they are not own */
const char *const *simfleet_urls(const struct simfleet *f);     /* NULL when they are */
/* Every request for samples that an engine works on. */
void simfleet_each_job(const struct simfleet *f, void (*fn)(void *arg, uint64_t call, int engine),
                       void *arg);
int simfleet_ailing(
    const struct simfleet *f); /* engines that hang, are slow or say they are sick */
void simfleet_orphaned(struct simfleet *f);
/* Somebody begins an engine, which is up after so many seconds, or ends it. */
void simfleet_begin(struct simfleet *f, int engine, double after);
void simfleet_end(struct simfleet *f, int engine);

#endif
