/* What a version of weights is made of, as a JSON text that anybody may keep and pass on: its
 * tensors with the hash of each, and the chunks that make them of the version before, or of
 * nothing.
 *
 *     struct wmanifest *m;
 *     rc = wmanifest_read(text, len, &m, &e);
 *     ... m->tensors[i].sum ...
 *     wmanifest_free(m);
 *
 * Hashes are xxh3-128. `sum` is one over all tensors: two sets of weights with the same sum are the
 * same. A manifest names the hash of the manifest that it builds on, so who knows the hash of the
 * newest can trust the whole chain, whoever carried it. */
#ifndef MODEL_WMANIFEST_H
#define MODEL_WMANIFEST_H

#include <stddef.h>
#include <stdint.h>

#include "model/wdelta.h"

struct buf;
struct err;
struct weights;

struct wmanifest_tensor {
    char name[96];
    int64_t count; /* bf16 values */
    char sum[WDELTA_HASH];
};

struct wmanifest_chunk {
    char hash[WDELTA_HASH]; /* and its name */
    int64_t bytes;
};

struct wmanifest {
    int64_t version;
    int64_t base; /* version that it changes; -1: it is whole */
    enum wdelta_encoding encoding;
    char sum[WDELTA_HASH];
    char base_sum[WDELTA_HASH], base_hash[WDELTA_HASH]; /* of the base and its manifest, or "" */
    int64_t changed;                                    /* values */
    struct wmanifest_tensor *tensors;                   /* of the model, in its order */
    int ntensors;
    struct wmanifest_chunk *chunks;
    size_t nchunks, cap_chunks;
    char hash[WDELTA_HASH]; /* of the text itself; set by the two below */
};

/* The model's tensors without sums. */
struct wmanifest *wmanifest_new(const struct weights *w);
void wmanifest_free(struct wmanifest *m); /* NULL is fine */
void wmanifest_add_chunk(struct wmanifest *m, const char *hash, int64_t bytes);
int64_t wmanifest_bytes(const struct wmanifest *m);      /* of its chunks */
int64_t wmanifest_full_bytes(const struct wmanifest *m); /* of all values as they are */
int64_t wmanifest_largest(const struct wmanifest *m);    /* values of its largest tensor */
/* Makes m->sum from those of the tensors. */
void wmanifest_seal(struct wmanifest *m);

/* out must be initialised. */
int wmanifest_write(struct wmanifest *m, struct buf *out, struct err *e);
/* STATUS_FORMAT when the text is no manifest, or one whose sums do not fit together. */
int wmanifest_read(const char *text, size_t len, struct wmanifest **out, struct err *e);
/* The tensors are w's, or an error that names the first that differs. */
int wmanifest_fits(const struct wmanifest *m, const struct weights *w, struct err *e);
/* Name of version's file: 24 bytes are enough for out. */
void wmanifest_name(int64_t version, char *out, size_t size);

#endif
