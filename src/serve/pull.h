/* Fetches versions of weights (model/wmanifest.h) from a folder, or by plain GETs from anything
 * that passes such a folder on: a web server, a cache, an object store.
 *
 *     struct pull_opts o = {.source = "https://host/weights", .version = 7, .hold = m, ...};
 *     rc = pull_open(&o, &p, &e);               blocks: the manifests from what is held, their
 * chunks
 *     ... pull_layers(p, &n) ...                oldest first, every chunk has its hash
 *     pull_close(p);
 *
 * Over HTTP several chunks come at once. One that breaks off goes on where it broke (Range); every
 * failure waits a little longer than the one before, by chance more or less, and a file that fails
 * PULL_TRIES times without a new byte is given up: STATUS_AGAIN, the caller may come again. A file
 * whose hash is wrong is fetched again, past caches, and given up after PULL_WRONG times:
 * STATUS_FAIL; so is one that is not there: STATUS_NOTFOUND. */
#ifndef SERVE_PULL_H
#define SERVE_PULL_H

#include "model/wpatch.h"

struct err;
struct pull;

#define PULL_TRIES 10
#define PULL_WRONG 4

/* Borrowed until pull_open returns. */
struct pull_opts {
    const char *source; /* a folder, or http:// or https:// */
    int64_t version;
    const char *manifest;         /* hash of the version's manifest, or NULL: not known */
    const struct wmanifest *held; /* what there is already */
    const char *held_name;        /* of its version, for errors */
    int only;                     /* 1: no other version than this is fetched */
    double timeout_s;             /* for all [600] */
    int (*stop)(void *arg);       /* 1: ends soon, STATUS_AGAIN; NULL: never asked */
    void *arg;
};

struct pull_figures {
    int64_t bytes;      /* of chunks and manifests */
    int files;          /* of them */
    int resumed, again; /* went on after a break; began anew after a wrong hash */
    double seconds;
};

/* With nothing to fetch, because the version is what is held, there are 0 layers. A version that
 * does not lead to what is held nor to a whole one is STATUS_INPUT with both versions. */
int pull_open(const struct pull_opts *o, struct pull **out, struct err *e);
const struct wpatch_layer *pull_layers(const struct pull *p, int *n);
const struct pull_figures *pull_figures(const struct pull *p);
void pull_close(struct pull *p); /* NULL is fine */

#endif
