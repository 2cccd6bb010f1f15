/* An image of weights that several processes of this host read: memory (base/region.h) that opens
 * with a page which says what lies in it and which version it is. model/weights.h fills and reads
 * it; nobody else has to.
 *
 * One process writes, in place. It says so before and after, so that a reader can tell whether what
 * it computed with was one version from beginning to end:
 *
 *     writer: wshare_writing(s, 1, 0); ... new values ...; wshare_writing(s, 0, version);
 *     reader: wshare_follow(s, version, e);  while (wshare_steady(s)) { ... compute ... } */
#ifndef MODEL_WSHARE_H
#define MODEL_WSHARE_H

#include <stddef.h>
#include <stdint.h>

#include "num/plan.h"

struct err;
struct region;
struct wshare;

/* What has to be equal for two programs to read the same numbers from one image. */
struct wshare_form {
    char packing[16];   /* how weights are packed: the device that did it */
    struct plan plan;   /* numeric plan */
    int32_t use;        /* WEIGHTS_* it was built with: which forms there are */
    int32_t positions;  /* rows of the rope tables */
    uint8_t layout[32]; /* SHA-256 over the model's shape, and every tensor's name and place */
};

/* Room for `bytes` bytes. */
int wshare_create(size_t bytes, struct wshare **out, struct err *e);
/* What stands behind the descriptor, read-only. STATUS_INPUT when it is no image, or one of another
 * program version, with both. */
int wshare_attach(int fd, struct wshare **out, struct err *e);
void wshare_close(struct wshare *s); /* NULL is fine */

/* Its descriptor; a child gets it by dup2. */
int wshare_fd(const struct wshare *s);
/* Where its tensors lie. */
struct region *wshare_region(struct wshare *s);
/* The maker, once all tensors have their place: from here on the image can be attached. */
void wshare_describe(struct wshare *s, const struct wshare_form *f);
const struct wshare_form *wshare_form(const struct wshare *s);

/* The maker, around each change: on 1, then 0 with the version that the values are from here on.
 * Calls may be nested: the outermost count. */
void wshare_writing(struct wshare *s, int on, int64_t version);
/* A reader computes with `version` from here on. STATUS_INPUT with both versions when the image
 * holds another one; STATUS_AGAIN when it is being written. */
int wshare_follow(struct wshare *s, int64_t version, struct err *e);
/* 1: nothing was written since the last wshare_follow. */
int wshare_steady(const struct wshare *s);
int64_t wshare_version(const struct wshare *s);

#endif
