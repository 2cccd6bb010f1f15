/* The session server: an OpenAI-compatible endpoint for each conversation of an agent, in front of
 * an engine or a router, that records tokens exactly (serve/session.h).
 *
 *     GET    /health
 *     POST   /sessions                            {"session_id": id}
 *     GET    /sessions/{id}                       turns and messages so far
 *     DELETE /sessions/{id}                       204
 *     POST   /sessions/{id}/v1/chat/completions   as OpenAI's; log-probs and meta_info are always
 * there POST   /sessions/{id}/samples               safetensors: what is trained GET    /metrics
 * Prometheus text any other path                              passed on to the engines
 *
 * 404: no such session; 400: the request is wrong; 409: it does not go on from the session's
 * history, or another one of this session runs; 422: the chat template does not take it; 500; 502:
 * the engines gave no answer; 503: too many sessions.
 *
 *     struct session_api *a;
 *     session_api_start(&opts, &a, &e);
 *     printf("port %d\n", session_api_port(a));
 *     session_api_drain(a, 5.0);
 *     session_api_stop(a); */
#ifndef SERVE_SESSION_API_H
#define SERVE_SESSION_API_H

#include "net/http_server.h"
#include "serve/session.h"

struct session_api;

struct session_api_opts {
    struct http_server_opts http; /* without routes and arg */
    struct session_env env;
    const char *upstream;     /* "http://host:port" of an engine or a router; copied */
    const char *upstream_key; /* that it asks for; NULL: none. Copied */
    const char *model;        /* the name that answers have; copied */
    int max_sessions;         /* 0: 4096 */
    double idle_s;            /* a session that nobody used for so long is forgotten; 0: 3600 */
    double request_s;         /* an answer of the engines may take; 0: 600 */
    int tool_parser, reasoning_parser; /* 1: answers are taken apart (serve/outparse.h) */
    int exact; /* 1: the engines' log-probs are the trainer's bits at the session's temperature */
};

int session_api_start(const struct session_api_opts *o, struct session_api **out, struct err *e);
int session_api_port(const struct session_api *a);
/* No new requests; waits for those that run. 0, or STATUS_TIMEOUT when some were cut. */
int session_api_drain(struct session_api *a, double wait_s);
void session_api_stop(struct session_api *a); /* NULL is fine */

#endif
