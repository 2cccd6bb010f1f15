/* What the files of the HTTP port share: port_http.c has the samples, port_engine.c the engines,
 * port_pace.c the judgement on how these do. Everything is the caller's thread's. */
#ifndef RL_PORT_HTTP_INT_H
#define RL_PORT_HTTP_INT_H

#include "base/span.h"
#include "base/status.h"
#include "net/http_net.h"
#include "rl/breaker.h"
#include "rl/genwire.h"
#include "rl/port_http.h"
#include "rl/port_pick.h"

struct http_client;
struct http_client_event;

/* A ring through structs that begin with it. */
struct port_http_link {
    struct port_http_link *prev, *next;
};

/* A submitted group until its last sample is answered. */
struct port_http_set {
    struct port_http_link link;
    struct port_group g;
    int32_t *tokens;
    int open; /* samples without an answer */
    int aborted;
};

struct port_http_call;

/* Samples of one group that travel together: [first, first + count). */
struct port_http_unit {
    struct port_http_link link; /* waiting, later or flying */
    struct port_http_set *set;
    int first, count;
    int tries;       /* answers that were no good */
    int cuts;        /* connections that ended under it */
    int busy;        /* answers that said to come later, in a row */
    double deadline; /* 0: never sent */
    double sent;     /* last, on port_pace_clock */
    double not_before;
    struct port_http_call *call;  /* while flying */
    double abort_next, abort_end; /* while it is being aborted: ask again, give up; else 0 */
    char cause[256];              /* why it was asked again */
};

/* What a request on its way is about. */
enum port_http_ask {
    PORT_HTTP_GENERATE,
    PORT_HTTP_HEALTH,
    PORT_HTTP_INFO,
    PORT_HTTP_TAKE,
    PORT_HTTP_CHECK,
    PORT_HTTP_WAKE,
    PORT_HTTP_JOIN,
    PORT_HTTP_LEAVE,
    PORT_HTTP_CONTROL,
    PORT_HTTP_ABORT
};

struct port_http_call {
    struct port_http_link link;
    enum port_http_ask kind;
    int engine;                  /* -1: the router */
    struct port_http_unit *unit; /* of PORT_HTTP_GENERATE; NULL: its samples went elsewhere */
    uint64_t id;
    int64_t version; /* of the weights when it was sent */
    int stale;       /* 1: nobody waits for it any more */
    char rid[48];
};

enum port_engine_state {
    PORT_ENGINE_DOWN,     /* until next_try */
    PORT_ENGINE_STARTING, /* until it says that it is healthy */
    PORT_ENGINE_INFO,     /* asked for its numbers */
    PORT_ENGINE_UP,       /* its weights are not those of the last publish, or nobody knows */
    PORT_ENGINE_TAKE,     /* takes them */
    PORT_ENGINE_CHECK,    /* proves that it has */
    PORT_ENGINE_JOIN,     /* the router is told of it */
    PORT_ENGINE_READY,    /* has samples, or may get some */
    PORT_ENGINE_GONE,     /* given up */
    PORT_ENGINE_FREE      /* taken out: its place is another's to take */
};

/* How long answers take, newer ones with more weight. */
struct port_pace {
    double seconds, tokens, n; /* of answers */
    double expected;           /* of an engine: seconds that the others would have taken */
    int answers;               /* since it was judged last */
};

struct port_engine {
    int index;
    enum port_engine_state state;
    const struct port_http_host *host; /* who starts it; NULL: somebody else's, at: */
    char *at;
    int added;       /* 1: while the port was open; it is not waited for */
    char *url;       /* NULL: not known */
    char why[768];   /* why it was lost last */
    char said[256];  /* what came of the last thing it was asked while it starts */
    double since;    /* of the state */
    double deadline; /* of the state, where it has one */
    double next_try; /* of what the state does */
    double next_check;
    struct port_http_call *call;    /* of the state; one at a time */
    struct port_http_call *health;  /* of READY */
    struct port_http_call *leaving; /* to the router */
    int failures;                   /* losses without a finished sample between */
    int probes;
    int sick;       /* health checks in a row that said it is not well */
    int load;       /* samples on their way to it */
    int suspect;    /* a connection broke: no new samples before its next good check */
    int wake;       /* 1: it may have been told to pause by who knew it before */
    int removed;    /* 1: it is to go when its samples are done */
    double lost_at; /* 0: it was not lost since it was ready last */
    double slow_at; /* since when its answers are too slow, on port_pace_clock; 0: they
                        are not */
    double move_at; /* its samples are taken back then; 0: they are not */
    struct breaker gate;
    struct port_pace pace;
    int joined;      /* the router knows it */
    int row_exact;   /* it promises the trainer's bits */
    int64_t version; /* that it has proven to hold; -1: none */
    int check_k;
    int before_k; /* of what is asked before it takes them; -1: it has been asked for all of it */
    int control;  /* of the running control: 0 no part of it, 1 to be asked, 2 asked, 3 done */
    struct span_lane span;
};

/* A finished sample that is not handed out yet. */
struct port_http_ready {
    struct port_http_ready *next;
    struct port_answer a;
    struct genwire_sample s;
};

struct port_http_stats {
    int64_t requests, retries, lost, wrong, drained;
    double wait_s;
};

struct port_http {
    struct port_http_opts o; /* nengines: places that are or were taken */
    struct rollout_port port;
    struct http_client *c; /* NULL: the network is the caller's */
    struct http_net net;
    struct port_engine *engines;
    struct port_pick pick; /* of those that may get samples */
    struct port_http_link sets, waiting, later, flying, calls;
    int nwaiting;     /* units */
    int nflying;      /* units */
    int max_flying;   /* units: as many connections as the system gives */
    int aborting;     /* flying units that are being aborted */
    int router_load;  /* samples on their way to the router */
    int open_samples; /* submitted and not handed out */
    struct port_http_ready *ready, **ready_end, *handed;
    int64_t version; /* of the last publish; -1: none yet */
    int publishing, paused, released, started;
    int controlling;    /* 1 + enum port_control while one is under way */
    double control_end; /* an engine that still says to come later is lost then */
    char router[256];
    char tag[16];
    uint64_t serial;
    double opened, last_tick, last_up;
    double away;           /* seconds in which the caller was busy with something else */
    double next_pace;      /* look at the oldest samples */
    struct port_pace pace; /* of all engines: the sum of theirs */
    struct port_pace past; /* of one that was started anew: how long answers took */
    int look;              /* an engine has answered or is in another state: it may go on at once */
    struct err fatal;      /* code 0: none */
    struct err refused;    /* of the running control */
    struct port_http_stats stats;
};

/* ---- port_http.c ---- */

double port_http_now(const struct port_http *p);
/* Starts a request; the call is its handle until port_http's event loop has its end. NULL: there is
 * no room now, or the port has failed. body may be NULL. */
struct port_http_call *port_http_send(struct port_http *p, enum port_http_ask kind, int engine,
                                      const char *method, const char *base, const char *path,
                                      const char *body, size_t len, double total_s);
/* Nobody waits for it any more; NULL is fine. Its place is cleared. */
void port_http_drop(struct port_http *p, struct port_http_call **call);
/* The samples that are on their way to the engine wait again, before all others. Their number. */
int port_http_take_back(struct port_http *p, int engine, const char *why);
/* The port cannot go on; the first cause stays. */
void port_http_fail(struct port_http *p, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- port_engine.c ---- */

/* "engine 1 (http://127.0.0.1:30001)", in one of four static buffers. */
const char *port_engine_name(const struct port_engine *en);
/* What the answer or its absence says, in one line. */
void port_engine_told(const struct http_client_event *ev, char *out, size_t size);
/* Does what the engine's state wants next. */
void port_engine_tick(struct port_http *p, struct port_engine *en, double now);
/* The end of a request that is not PORT_HTTP_GENERATE. */
void port_engine_event(struct port_http *p, struct port_http_call *k,
                       const struct http_client_event *ev);
/* A connection of a sample's broke: look at the engine before it gets others. */
void port_engine_suspect(struct port_http *p, struct port_engine *en);
/* It answered with other weights than it has proven to hold. */
void port_engine_doubt(struct port_http *p, struct port_engine *en);
int port_engine_is_up(const struct port_engine *en);         /* it answers */
const char *port_engine_waits(const struct port_engine *en); /* for what, in words */
const char *port_engine_state_name(const struct port_engine *en);
/* A place for an engine, which is somebody else's when host is NULL. */
void port_engine_place(struct port_http *p, struct port_engine *en,
                       const struct port_http_host *host, const char *at);
/* It gets no more samples and goes when those it has are done or moved. */
void port_engine_remove(struct port_http *p, struct port_engine *en);

/* ---- port_pace.c ---- */

/* In [0, 1), from the world. */
double port_pace_chance(struct port_http *p);
/* Time without that in which nobody looked at the port. */
double port_pace_clock(const struct port_http *p);
/* May it get a sample now? */
int port_pace_usable(const struct port_http *p, struct port_engine *en, double now);
/* An engine's answer was good and has so many tokens, the longest of its samples. */
void port_pace_answered(struct port_http *p, struct port_engine *en, int tokens, double seconds);
/* It was not, or none came. */
void port_pace_failed(struct port_http *p, struct port_engine *en, const char *why);
/* Finds samples that an engine is far too long about, and moves those of engines that are drained.
 */
void port_pace_tick(struct port_http *p, double now);
/* Forgets all: it is another process now. */
void port_pace_reset(struct port_http *p, struct port_engine *en);
/* How many times as long as the others it takes; 0: not known. */
double port_pace_behind(const struct port_engine *en);
double port_pace_mean(const struct port_engine *en); /* seconds of an answer; 0: not known */

#endif
