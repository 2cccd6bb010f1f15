/* The HTTP server of `miles serve`: SGLang's native API and OpenAI's over one service.
 *
 *     struct api_model m = {...}; struct api_opts o = {...};
 *     struct api *a;
 *     api_start(&m, &o, &a, &e);
 *     printf("port %d\n", api_port(a));
 *     ... until somebody asks to end ...
 *     api_drain(a, 30.0);
 *     api_stop(a); */
#ifndef SERVE_API_H
#define SERVE_API_H

#include <jansson.h>
#include <stdint.h>

#include "model/wpatch.h"
#include "net/http_server.h"
#include "serve/service.h"

struct front;
struct map;

/* Borrowed, and constant while the server runs. */
struct api_model {
    struct service_model served;
    const char *tmpl, *bos, *eos; /* chat template and its tokens' texts, or NULL */
    const char *path;             /* of the model's files */
    const char *name;             /* in OpenAI's API; NULL: the path */
    const char *config_json;      /* its config.json, or NULL */
    const char *generation_json;  /* its generation_config.json: what chats sample with when they do
                                     not  say otherwise; NULL: OpenAI's defaults */
};

struct api_opts {
    struct http_server_opts http; /* without routes and arg */
    struct service_opts service;
    int stream_interval;                        /* tokens between two events of a stream; 0: 1 */
    const json_t *args;                         /* shown by /get_server_info, or NULL; borrowed */
    const char *tool_parser, *reasoning_parser; /* names, or NULL: off */
};

/* What handlers get. */
struct api {
    struct api_model m;
    struct api_opts o;
    struct service *service;
    struct front *front;
    struct http_server *http;
    int64_t started;         /* seconds since 1970 */
    json_t *chat;            /* what chats sample with: temperature, top_p, ... */
    char *path;              /* where the weights came from; the service's thread */
    struct map *sums;        /* of /weights_checker's snapshot; the service's thread */
    struct map *kept;        /* sums of the weights whose memory is released, or NULL; likewise */
    struct wpatch_held held; /* what the weights are, for those that come as changes; likewise */
    struct front *puller;    /* one thread that fetches weights */
    atomic_int stopping;     /* 1: it ends what it does */
};

int api_start(const struct api_model *m, const struct api_opts *o, struct api **out, struct err *e);
int api_port(const struct api *a);
/* No new requests; waits for those that run. 0, or STATUS_TIMEOUT when some were cut. */
int api_drain(struct api *a, double wait_s);
void api_stop(struct api *a); /* NULL is fine */

/* The handlers, each in the file of its prefix. */
http_server_fn sglang_api_generate, openai_api_models, openai_api_completions, openai_api_chat;
http_server_fn control_health, control_health_generate, control_model_info, control_server_info,
    control_flush, control_abort, control_pause, control_continue, control_update_from_disk,
    control_update_from_shared, control_update_from_delta, control_update_version,
    control_get_version, control_get_weights, control_checker, control_release, control_resume,
    control_metrics;

#endif
