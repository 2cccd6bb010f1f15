/* A request for samples on its way from JSON to the engine and back: what both APIs share.
 *
 *     struct gencall *g = gencall_new(api, r);            in the handler; the body comes later
 *     gencall_sampling(g, o, &names, e); ...              in a front thread
 *     gencall_add_ids(g, ids, n, e); ...                  the prompts
 *     gencall_go(g, on_event, x, e);
 *
 * Whatever is alloc'ed from g->mem lives as long as the request. */
#ifndef SERVE_GENCALL_H
#define SERVE_GENCALL_H

#include <jansson.h>

#include "base/mem.h"
#include "serve/reply.h"
#include "serve/service.h"

struct api;

enum { GENCALL_MAX_PROMPTS = 65536 };

struct gencall {
    struct reply rp;
    struct service_call call;
    struct api *api;
    struct arena mem;
    json_t *body; /* owned: texts point into it */
    struct http_req *r;

    /* What the prompts that are added next ask for. */
    struct engine_group base; /* n, max_new, ... */
    struct service_ask ask;
    int max_given; /* max_new was asked for by the client */
    int stream;
    int prompts_cap;
    struct service_ask *asks;
    const char **rids;

    /* The answer as it comes together. */
    struct buf *out; /* (samples) one text each, in order */
    int nout;
    int done; /* finished samples */
    int64_t prompt_tokens, cached_tokens, new_tokens;
    void *user; /* the API's, from mem */
};

/* Names that differ between the APIs. */
struct gencall_names {
    const char *max_new[2]; /* the first that is there */
    const char *min_new;
    const char *seed;
    int default_max; /* new tokens where the client says nothing; 0: as many as fit */
    int null_fits;   /* 1: a null in place of a number means as many as fit, too */
};

/* Takes the request; answers it with an error itself when it can do nothing else. */
struct gencall *gencall_new(struct api *api, struct http_req *r);
/* Ends the request with the error. g is gone after it. */
void gencall_fail(struct gencall *g, int rc, const struct err *e);

/* temperature, top_p, ..., stop, seed, n: into base and ask, whatever was there before. */
int gencall_sampling(struct gencall *g, const json_t *o, const struct gencall_names *names,
                     struct err *e);
/* Adds a prompt. The ids are copied. */
int gencall_add(struct gencall *g, const int32_t *ids, size_t n, const char *rid, struct err *e);
int gencall_add_ids(struct gencall *g, const json_t *list, const char *rid, struct err *e);
int gencall_add_text(struct gencall *g, const char *text, size_t len, int special, const char *rid,
                     struct err *e);
/* Hands the call to the service; from a negative return on g is still the caller's. */
int gencall_go(struct gencall *g, service_event_fn *fn, struct err *e);

/* A name for a request that has none: 32 hexadecimal digits, in g's memory. */
const char *gencall_name(struct gencall *g, const char *prefix);
/* Which sample of all an event speaks of. */
int gencall_index(const struct gencall *g, const struct service_event *ev);
/* Adds a finished sample to the counts. */
void gencall_count(struct gencall *g, const struct service_event *ev);

#endif
