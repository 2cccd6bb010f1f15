/* The network between the controller and the engines, as struct http_net (net/http_net.h): requests
 * are refused, lost, late, cut, delivered twice, and answered with what nobody asked for.
 *
 *     struct simnet *n = simnet_new(&sim);
 *     simnet_serve(n, arrive, fleet);                  who gets what arrives
 *     ... simnet_table(n) ... arrive(fleet, id, ...) ... simnet_answer(n, id, 200, text);
 *     simnet_reset(n);                                 the controller has ended
 *     simnet_free(n);
 *
 * Engine k is http://engine-k. */
#ifndef SIM_SIMNET_H
#define SIM_SIMNET_H

#include <stdint.h>

struct http_net;
struct sim;
struct simnet;

struct simnet_request {
    uint64_t id;
    int engine;
    const char *path, *body; /* valid during the call; body "" when there is none */
};
/* A request has arrived. 0: nobody listens, the connection is refused. */
typedef int simnet_arrive_fn(void *arg, const struct simnet_request *r);
/* The connection of a request ended on the controller's side. */
typedef void simnet_gone_fn(void *arg, uint64_t id);
/* The controller asks an engine for something. */
typedef void simnet_watch_fn(void *arg, int engine, const char *path);

struct simnet *simnet_new(struct sim *s);
void simnet_free(struct simnet *n); /* NULL is fine */
void simnet_serve(struct simnet *n, simnet_arrive_fn *arrive, simnet_gone_fn *gone, void *arg);
void simnet_watch(struct simnet *n, simnet_watch_fn *watch, void *arg); /* NULL: nobody */
const struct http_net *simnet_table(struct simnet *n);
/* The engine's answer; text is copied. Unknown ids are ignored. */
void simnet_answer(struct simnet *n, uint64_t id, int status, const char *text);
/* The engine's end of the connection breaks; silent 1: nobody is told. */
void simnet_break(struct simnet *n, uint64_t id, int silent);
void simnet_reset(struct simnet *n);
int simnet_open(const struct simnet *n);        /* requests under way */
int64_t simnet_started(const struct simnet *n); /* requests so far */

#endif
