/* What the two files of the client share: a call as the thread and its callers see it, and the
 * queue of events between them. */
#ifndef NET_HTTP_CLIENT_INT_H
#define NET_HTTP_CLIENT_INT_H

#include <curl/curl.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/buf.h"
#include "base/mem.h"
#include "net/http_client.h"

enum {
    HTTP_CLIENT_SPARE = 256, /* handles kept for the next requests */
    HTTP_CLIENT_LANES = 64   /* at most; a lane's number and 1 are kept in a byte */
};

/* One of libcurl's books of connections. libcurl 7.88 looks through all connections of a book at
 * the end of each request in it, so a client of many servers spreads them over several. */
struct http_client_lane {
    struct http_client *c;
    CURLM *multi;
    double timer; /* when libcurl wants to be called; < 0 never */
};

enum http_client_state {
    HTTP_CLIENT_WAITING,
    HTTP_CLIENT_FLYING,
    HTTP_CLIENT_PAUSING /* until its next try */
};

struct http_client_call {
    struct http_client_call *next, **link; /* in the list of its state */
    struct http_client *c;
    struct http_client_lane *lane; /* of its server */
    uint64_t id;
    int slot;
    enum http_client_state state;
    void *user;
    /* The request. */
    char *method, *url;
    struct curl_slist *headers;
    char *body;
    size_t len;
    double connect_s, idle_s, t_start, deadline;
    size_t max_response, window;
    int stream, tries_left, idempotent, retry_5xx, fresh;
    int named; /* 1: the host is a name, which must be looked up */
    /* The try. */
    CURL *easy;
    char error[CURL_ERROR_SIZE];
    int tries;
    double t_first, t_byte, t_next; /* first byte, last byte, next try */
    int status, head_done, told;    /* told: something was posted */
    int discard;                    /* of this answer nothing is told: it will be tried again */
    int reached;
    double retry_after;         /* -1: not given */
    struct arena mem;           /* headers of the answer */
    struct http_header *answer; /* NULL before the first */
    int nanswer;
    size_t length; /* of the answer's body as its head says; 0: it does not */
    struct buf in;
    int forced; /* outcome + 1 that ends the transfer, whatever libcurl calls it */
    /* Under the lock. */
    size_t unreleased;
    int paused, cancelled;
};

struct http_client_item {
    struct http_client_event ev; /* first: what the caller holds */
    struct http_client_item *next;
    struct arena mem;
    struct buf data;
    size_t counted; /* bytes of the window it holds */
    size_t whole;   /* bytes of a whole body, of c->bytes */
};

struct http_client {
    struct http_client_lane lanes[HTTP_CLIENT_LANES];
    int nlanes;
    int epfd, wakefd, queuefd, max_inflight, max_calls, insecure;
    char *ca_file;
    pthread_t thread;

    /* The thread only. */
    struct http_client_call *waiting, **waiting_end, *flying, *pausing;
    int nflying;
    double soonest; /* before it no call reaches a limit of time */
    CURL *spare[HTTP_CLIENT_SPARE];
    int nspare;
    uint8_t *watched; /* (nwatched) by descriptor: 1 + its lane while epfd knows it, else 0 */
    int nwatched;

    pthread_mutex_t mu;
    struct http_client_call **slots; /* max_calls, NULL where free */
    int *free_slots, nfree;
    uint64_t next_id;
    struct http_client_call *fresh, **fresh_end; /* started, not yet seen by the thread */
    struct http_client_item *first, **last;      /* the queue to take from */
    int woken, look;                             /* look: something was cancelled or released */
    atomic_int stop;
    atomic_size_t bytes; /* of whole bodies, come so far and not yet released */
    size_t max_bytes;
};

/* The thread, until c->stop is set; what still runs then is ended. */
void *http_client_work(void *client);
void http_client_free_call(struct http_client_call *k);
void http_client_free_item(struct http_client *c, struct http_client_item *x);

#endif
