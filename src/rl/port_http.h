/* A rollout port over engines that speak SGLang's HTTP API: `miles serve` and SGLang itself, one or
 * many, straight or behind a router. One thread does the network (net/http_client.h); everything
 * here happens in the caller's calls.
 *
 *     struct port_http *p;
 *     port_http_open(&opts, &p, &e);
 *     while ((rc = port_http_start(p, &e)) == STATUS_AGAIN) { }         engines are up
 *     ... port_http_port(p) ...
 *     port_http_close(p);
 *
 * An engine is used when it answers, shows the numbers it must show, and has proven that it holds
 * the weights of the last publish. One that ends, does not answer its health checks or breaks its
 * word is lost: its samples go to the others (`miles serve`: the same tokens, contract C3), it is
 * started again, and used again when it fulfils all of that. One that fails sample after sample or
 * is far slower than the others gets none for a while, and then one to try. Engines may be added
 * and taken out at any time. Every wait has a deadline and a name. */
#ifndef RL_PORT_HTTP_H
#define RL_PORT_HTTP_H

#include "rl/port.h"
#include "rl/wsync.h"

struct err;
struct http_net;
struct port_http;
struct world;

enum port_http_kind { PORT_HTTP_MILES, PORT_HTTP_SGLANG };

/* Who starts engines. Every call returns at once, and is made by the thread that calls the port. */
struct port_http_host {
    int (*start)(void *self, int engine, struct err *e); /* also one that has ended */
    /* 1 while it is starting or running, 0 when it has ended: `why` then says how. */
    int (*alive)(void *self, int engine, char *why, size_t size);
    /* Where it listens, such as http://127.0.0.1:30000; NULL as long as that is not known. */
    const char *(*url)(void *self, int engine);
    void (*kill)(void *self, int engine); /* by SIGKILL, and reaped */
    void *self;
};

/* An answer of weights other than those asked for: asked again, or taken and marked as not exact.
 */
enum port_http_policy { PORT_HTTP_REFUSE, PORT_HTTP_MARK };
#define PORT_HTTP_POLICY_CHOICES "refuse|mark"

/* Borrowed until port_http_close. Zero means the default in brackets. */
struct port_http_opts {
    enum port_http_kind kind;
    int nengines;                      /* at first; may be 0 with room */
    int room;                          /* for engines that are added later [0] */
    const char *const *urls;           /* of engines that are somebody else's, or NULL and: */
    const struct port_http_host *host; /* who starts them */
    const char *router;       /* takes the samples, and engines are its workers; NULL: none */
    const char *api_key;      /* of the engines and the router, or NULL */
    const struct wsync *sync; /* NULL: engines keep the weights they have; nothing is published, and
                                 no answer is exact */
    const json_t *manifest;   /* what `miles serve` must show of its numbers, or NULL: anything */
    enum port_http_policy policy;
    const struct world *world;
    const struct http_net *net; /* what requests go over; NULL: a client of its own */
    int concurrency;            /* samples at one engine at once; more wait here [512] */
    double start_s;             /* for an engine to come up [1800] */
    double request_s;           /* for a sample [14400] */
    double sync_s;              /* for one engine to take new weights and prove it [600] */
    double check_s;             /* between two health checks [30] */
    double check_timeout_s;     /* for the answer of one [30] */
    double check_first_s;       /* without them when an engine has come up [0] */
    /* Losses of one engine without a finished sample between, then it is given up; an engine of
     * somebody else's that only does not answer is not, as long as others do [3]. With the last one
     * given up the port ends with an error that names all. */
    int restarts;
    int tries;    /* of one sample after errors that name it, then an error [5] */
    int say_sync; /* 1: the log has every request of a weight sync and its answer */
    int experts;  /* 1: SGLang is asked for the experts it chose (models that have some) */
    /* An engine whose answers take so many times as long as those of the others for slow_s gets no
     * samples, and those it has are moved slow_s later. 0: slow engines are borne. */
    double slow_factor;
    double slow_s;              /* [60] */
    void (*attend)(void *self); /* called now and then while the port is, for who adds and takes out
                                   engines; may be NULL */
    void *attend_self;
};

int port_http_open(const struct port_http_opts *o, struct port_http **out, struct err *e);
/* Waits a little for the engines; STATUS_AGAIN until all of them are up. */
int port_http_start(struct port_http *p, struct err *e);
/* Engines that are up, for progress; `said` gets what the others wait for. */
int port_http_ready(const struct port_http *p, char *said, size_t size);
const struct rollout_port *port_http_port(struct port_http *p);
/* An engine of somebody else's from now on; its number goes to *engine (may be NULL). It is not
 * waited for. STATUS_AGAIN: there is no room. */
int port_http_add(struct port_http *p, const char *url, int *engine, struct err *e);
/* Gets no more samples, may finish those it has within slow_s, and is gone; one of the run's own is
 * ended. STATUS_NOTFOUND: there is no such engine. */
int port_http_remove(struct port_http *p, int engine, struct err *e);
/* The number of the engine at the address; -1: none. */
int port_http_find(const struct port_http *p, const char *url);
/* What is known of the engines, for an operator: an array, the caller's. */
json_t *port_http_tell(const struct port_http *p);
/* Ends requests; who started engines ends them. NULL is fine. */
void port_http_close(struct port_http *p);

#endif
