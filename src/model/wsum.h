/* Sums of a model's tensors, by which two programs tell that they hold the same weights. Names,
 * shapes and sums are those that SGLang's /weights_checker tells: layers that share an input are
 * one tensor (qkv_proj, gate_up_proj), and a sum is that of its bf16 values in rows.
 *
 *     struct map sums;
 *     map_init(&sums);
 *     wsum_take(w, &(struct wsum_opts){0}, &sums, &e);
 *     ... map_get(&sums, "model.norm.weight", 17, &sum) ...
 *     map_fini(&sums); */
#ifndef MODEL_WSUM_H
#define MODEL_WSUM_H

#include <stddef.h>
#include <stdint.h>

#include "model/weights.h"

struct map;

enum wsum_kind {
    WSUM_SHA256, /* the first 8 bytes of SHA-256: tensors in the host's memory */
    WSUM_GPU     /* what SGLang computes of tensors on a GPU: 64 bits, no proof against malice */
};

/* Zero: all tensors, whole, as they are in w. */
struct wsum_opts {
    enum wsum_kind kind;
    int pad; /* rows of the embedding and the output layer are filled up with zeros to a multiple
                of it, as SGLang keeps them; 0: not */
    int tp_rank, tp_size; /* only what this rank of tensor parallelism holds in SGLang; 0: whole */
    /* Only some tensors, drawn by seed, until they come to so many bytes; 0: all. A draw proves
     * that the two hold equal weights where it looked; which tensors it looks at, who holds other
     * ones cannot know before. */
    int64_t bytes;
    uint64_t seed;
    /* Values from elsewhere, such as a folder of other weights of the same shape; NULL: w's own. */
    weights_read_fn *read;
    void *arg;
};

/* Puts the sum of each tensor under its name. Runs on all threads of the weights' device.
 * STATUS_AGAIN when their memory is released, STATUS_UNSUPPORTED when the model cannot be split so.
 */
int wsum_take(struct weights *w, const struct wsum_opts *o, struct map *sums, struct err *e);
/* The sum over names and sums, in order of names: SGLang's per_gpu_checksum. */
void wsum_total(const struct map *sums, char hex[65]);

/* A parameter's name there. */
void wsum_name(const struct param *p, char out[112]);
/* One sum over n bytes. */
uint64_t wsum_bytes(enum wsum_kind kind, const void *data, size_t n);

#endif
