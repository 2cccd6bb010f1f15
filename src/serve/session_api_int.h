/* What the files of the session server share. */
#ifndef SERVE_SESSION_API_INT_H
#define SERVE_SESSION_API_INT_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/buf.h"
#include "serve/session_api.h"

struct front;
struct http_client;
struct http_client_event;

enum { SESSION_API_BUCKETS = 1024, SESSION_API_ID = 64 };

/* A session with its name. Held by the table and by each request that uses it. */
struct session_api_entry {
    struct session_api_entry *next;
    char id[SESSION_API_ID + 1];
    atomic_int refs;
    pthread_mutex_t mu; /* of what follows */
    struct session *s;
    json_t *params; /* of sampling, where a request says nothing */
    uint64_t seed;
    int seeded;  /* 1: turns have seeds of their own, made of it */
    int asked;   /* requests so far */
    int busy;    /* completions that run */
    double used; /* when, for the last time */
    int deleted;
};

struct session_api {
    struct session_api_opts o;
    char *upstream, *key_header, *model;
    struct http_server *http;
    struct http_client *client;
    struct front *front;
    pthread_t taker;
    int taking;
    pthread_mutex_t mu; /* of what follows */
    struct session_api_entry *table[SESSION_API_BUCKETS];
    int nsessions, stop;
    uint64_t opened, expired, turns, sampled, refused[6]; /* by hundreds of their status */
    uint64_t samples, mismatched;
};

enum session_api_kind { SESSION_API_CHAT, SESSION_API_PROXY };

/* A request that waits for the engines. Held by its owner and by the server until it is done. */
struct session_api_call {
    struct session_api *a;
    atomic_int refs;
    enum session_api_kind kind;
    struct http_req *r;
    struct session_api_entry *in; /* or NULL */
    /* Under the server's lock. */
    uint64_t id; /* of the request to the engines; 0: none */
    int gone;    /* the client has left */

    json_t *body;
    struct session_ask ask;
    struct buf reply; /* what the engines said */
    int status, failed;
    char *type, *error;
    int stream, usage, tools, opens, exact;
    char name[64];
};

/* Sends the call to `path` of the engines; its end comes to session_api_call_end. */
int session_api_send(struct session_api_call *c, const char *method, const char *path,
                     const char *body, size_t len, struct err *e);
/* Ends the client's request with an error, and the call. */
void session_api_fail(struct session_api_call *c, int http, const char *msg);
void session_api_done(struct session_api_call *c); /* the client's request was ended */

/* In session_chat.c: a chat completion, before and after the engines; both on front threads. */
void session_chat_prepare(void *call);
void session_chat_finish(struct session_api_call *c);
/* In session_blob.c: samples as a safetensors file. */
int session_blob(const struct session_sample *list, int n, const char *version, struct buf *out,
                 struct err *e);

#endif
