/* The answer to one HTTP request that another thread gives, whole or as a stream of events, to a
 * client that may read slowly or vanish.
 *
 *     reply_init(&x->rp, r, s, x_free, x);         in the handler
 *     reply_watch(&x->rp, &x->call);               before service_submit: a vanished client
 *                                                  cancels the call
 *     ... in the call's events: reply_event(&x->rp, json, n, 0) ...
 *     reply_end(&x->rp) or reply_whole(...) or reply_fail(...);     once; x may be gone after it
 *
 * All functions may be called in any thread, one at a time but for those of the network. */
#ifndef SERVE_REPLY_H
#define SERVE_REPLY_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/buf.h"

struct http_req;
struct service;
struct service_call;

struct reply {
    atomic_int refs;
    struct service *s;
    void (*free)(void *arg);
    void *arg;
    pthread_mutex_t mu;
    /* Under mu. */
    struct http_req *r;         /* NULL once it is ended */
    struct service_call *watch; /* cancelled when the client vanishes; NULL: none */
    struct buf pending;         /* of the stream, what had no room */
    int begun, ending, over;
};

/* `free` is called with arg when the answer is given and the network is done with it. */
void reply_init(struct reply *p, struct http_req *r, struct service *s, void (*free)(void *arg),
                void *arg);
/* From here on a vanished client cancels the call; NULL: no more. */
void reply_watch(struct reply *p, struct service_call *c);
/* One server-sent event. newest: it says all that events before it said, and takes the place of
 * those that are still waiting for a slow reader. */
void reply_event(struct reply *p, const char *data, size_t n, int newest);
int reply_begun(struct reply *p); /* 1: events were sent */
int reply_gone(struct reply *p);  /* 1: nobody waits for the answer any more */

/* Each ends the answer. */
void reply_end(struct reply *p); /* after the events */
void reply_whole(struct reply *p, int status, const char *type, struct buf *body);
/* The error as the whole answer, or as the last event of a stream that has begun. */
void reply_fail(struct reply *p, int status, const char *msg);
/* The body of an error: clients of OpenAI read {"error": {"message": ...}}, as do those of SGLang's
 * /generate; SGLang's other paths answer {"object": "error", "message": ...}. It is both. */
void reply_error(struct buf *out, int status, const char *msg);
/* The HTTP status that says what a STATUS_* is to a client. */
int reply_status(int status);

#endif
