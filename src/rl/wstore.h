/* A folder of versions of weights (model/wmanifest.h) that any web server can pass on: plain files
 * that never change once they are there (but for a damaged version, which is written again).
 *
 *     DIR/weight_v000007.json        the manifest of version 7
 *     DIR/chunks/HASH                bytes by their hash; several versions may share one
 *
 *     wstore_open(&(struct wstore_opts){.dir = dir}, &s, &e);
 *     wstore_put_chunk(s, m, data, n, &e); ...                 named in m
 *     wstore_put(s, m, &e);                                    takes m; the version is there
 *     wstore_collect(s, version, now, &e);
 *     wstore_close(s);
 *
 * What goes: versions older than the newest whole one that is not newer than `version` (who has
 * nothing needs that one and all since), once they are too old or all together too large. */
#ifndef RL_WSTORE_H
#define RL_WSTORE_H

#include "model/wmanifest.h"

struct err;
struct wstore;

struct wstore_opts {
    const char *dir;    /* made when missing; weight_v*.json and chunks/ in it are ours alone */
    double keep_s;      /* seconds that a version stays after it is not needed any more */
    int64_t keep_bytes; /* of all chunks, while there is something that is not needed; 0: any */
};

/* What an earlier run left is removed. */
int wstore_open(const struct wstore_opts *o, struct wstore **out, struct err *e);
/* Its absolute path. */
const char *wstore_dir(const struct wstore *s);
int wstore_put_chunk(struct wstore *s, struct wmanifest *m, const void *data, size_t n,
                     struct err *e);
/* Takes m only when it succeeds. One of the newest version takes that one's place. */
int wstore_put(struct wstore *s, struct wmanifest *m, struct err *e);
/* The manifest of the newest version; NULL when there is none. */
const struct wmanifest *wstore_newest(const struct wstore *s);
/* STATUS_OK when the files of the newest whole version and all since are what was written. Else the
 * error names the first that is not, and a chunk that is not is written when it is put again. */
int wstore_verify(struct wstore *s, struct err *e);
/* Engines have `version` or a newer one, or nothing. now: seconds of any clock. */
int wstore_collect(struct wstore *s, int64_t version, double now, struct err *e);
int64_t wstore_bytes(const struct wstore *s); /* of the chunks that are there */
int wstore_count(const struct wstore *s);     /* versions */
/* Removes all. NULL is fine. */
void wstore_close(struct wstore *s);

#endif
