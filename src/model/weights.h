/* The weights of a model as the forward pass reads them: one image per version, immutable while
 * anybody holds it.
 *
 *     struct weights *w;
 *     weights_open(file, dev, 0, 0, &w, &e);       0: not trainable, 0: all positions
 *     ...
 *     weights_release(w);
 *
 * A parameter is a matrix of rows (fused where layers share an input: q, k, v; gate, up). It knows
 * the Hugging Face tensors that it is made of. Linear layers read only the packed view of a
 * parameter. */
#ifndef MODEL_WEIGHTS_H
#define MODEL_WEIGHTS_H

#include <stdint.h>

#include "model/arch.h"
#include "num/device.h"

struct err;
struct wfile;
struct wshare;

enum weights_kind { WEIGHTS_LINEAR, WEIGHTS_VECTOR, WEIGHTS_EMBED };

struct weights_part {
    char name[96];  /* Hugging Face tensor */
    int row0, rows; /* of a matrix; of a vector, columns */
};

struct param {
    enum weights_kind kind;
    int rows, cols;
    int decay; /* 1: weight decay applies (matrices) */
    int nparts;
    struct weights_part part[3];
    struct tensor w16; /* (rows, cols) bf16; freed after packing when the view says it all */
    struct wview view; /* linear layers, and the embedding when it is the output layer too */
};

/* Adapter slot of a linear layer: unmerged low-rank updates, one id per row. None exist yet. */
struct linear {
    struct param *w;
    struct param *bias; /* or NULL */
};

struct weights_layer {
    struct param *attn_norm, *mlp_norm;
    struct param *attn_post, *mlp_post; /* norms of the outputs, or NULL */
    struct param *q_norm, *k_norm;      /* or NULL */
    struct linear qkv, o, gate_up, down;
    const struct weights_rope *rope;
};

struct weights_rope {
    struct tensor cos, sin; /* (positions, rot / 2) f32 */
};

struct weights {
    struct arch arch;
    struct device *dev;
    int trainable, transposes; /* transposes: kept beside the forward form */
    int64_t version;           /* raised by one each time new values are published */
    int refs;
    int nparams;
    struct param *params;
    struct weights_layer *layers; /* (n_layers) */
    struct param *embed, *final_norm;
    struct linear lm_head;                     /* w is embed when tied */
    struct leafset vocab_leaves;               /* leaves of the sums over the vocabulary */
    int positions;                             /* longest sequence that may be run */
    struct weights_rope rope[ARCH_ATTN_KINDS]; /* the second is empty when all layers share one */
    int dropped;                               /* 1: there are no values (weights_drop) */
    struct wshare *share; /* the image that other processes map, or NULL: memory of our own */
    int attached;         /* 1: the image is somebody else's, read-only here */
};

/* The number of leaves a run of this model uses by default (contract C1). */
int weights_default_leaves(const struct arch *a);

/* The longest context of a run that asks for `context` tokens (0: no wish): the model's own length,
 * or more where its rope is made to stretch (`dynamic`). */
int weights_positions(const struct arch *a, int64_t context);

enum weights_use {
    WEIGHTS_TRAIN = 1,         /* gradients will be taken and values change */
    WEIGHTS_NO_TRANSPOSES = 2, /* the device makes a weight's transpose each time it is needed */
    WEIGHTS_SHARED =
        4 /* other processes of this host may attach; a device with the host's memory */
};

/* Reads and packs all parameters. dev's plan says R and the rounding. use: 0 or WEIGHTS_*.
 * `positions` is the longest context of the run, 0: the model's; it bounds the rope tables, and
 * rope of the kind `dynamic` depends on it (model/ropes.h). One reference is the caller's. */
int weights_open(const struct wfile *f, struct device *dev, int use, int positions,
                 struct weights **out, struct err *e);
/* A critic: the model with a value head instead of its output layer. The head is the file's
 * score.weight and score.bias where it has them, else drawn from a normal distribution of
 * deviation 0.02 by `seed`, its bias 0. */
int weights_open_critic(const struct wfile *f, struct device *dev, int use, int positions,
                        uint64_t seed, struct weights **out, struct err *e);
/* The same for a shape without a file: `read` puts the `count` bf16 values of each Hugging Face
 * tensor into dst. */
typedef int weights_read_fn(void *arg, const char *name, uint16_t *dst, int64_t count,
                            struct err *e);
int weights_build(const struct arch *a, weights_read_fn *read, void *arg, struct device *dev,
                  int use, int positions, struct weights **out, struct err *e);
/* The parameters' shapes without any memory behind them, for planning; release it as weights. */
int weights_shape(const struct arch *a, struct device *dev, int use, struct weights **out,
                  struct err *e);
/* Bytes that weights_open takes for these shapes. */
int64_t weights_bytes(const struct weights *w, int positions);
struct weights *weights_acquire(struct weights *w);
void weights_release(struct weights *w); /* frees at the last one; NULL is fine */

/* Packs w16 of every parameter again and raises the version. Nobody else may hold the image. */
int weights_publish(struct weights *w, struct err *e);

/* Takes all values anew through `read` and raises the version, as if the weights had been built so.
 * When a tensor cannot be read the version is raised too, and the values are those of neither: the
 * caller must not go on with them. Nobody else may hold the image. Not for trainable weights, whose
 * values the optimizer has beside these. */
int weights_reload(struct weights *w, weights_read_fn *read, void *arg, struct err *e);

/* Changes values where they are and raises the version: tensors are numbered as they come,
 * parameter by parameter and part by part, and of those with touched[i] the values are given to
 * `fn`, which cannot fail. Packs only what has to be. For want of memory the version is raised and
 * the values are those of neither; as for readers and training: like weights_reload. */
typedef void weights_patch_fn(void *arg, int tensor, uint16_t *values);
int weights_patch(struct weights *w, const uint8_t *touched, weights_patch_fn *fn, void *arg,
                  struct err *e);

/* Gives the memory of all values back and raises the version; shapes stay. Until weights_reload has
 * brought others nobody may compute with them. As for readers and training: like weights_reload. */
int weights_drop(struct weights *w, struct err *e);

/* ---- one image in several processes ---- */

/* The image of weights opened with WEIGHTS_SHARED, for weights_attach in a process that got the
 * descriptor by dup2; -1 for others. It lives as long as anybody has it mapped. */
int weights_share_fd(const struct weights *w);
/* The weights of another process, without a copy: values, packed forms and rope tables are where
 * they are there, and change when it changes them. `a` is the model's shape, which must be that of
 * the image; so must be dev's plan and form of packing. What differs is STATUS_INPUT with both
 * values. They cannot be reloaded, dropped or trained. They are the version that the image holds,
 * unless it is being written: nothing may be computed with them then before weights_follow. */
int weights_attach(int fd, const struct arch *a, struct device *dev, struct weights **out,
                   struct err *e);
/* Brackets every change of values: 1 before, 0 after. Calls may be nested. Without an image it
 * does nothing. */
void weights_writing(struct weights *w, int on);
/* Attached weights are `version` from here on, as the image says. STATUS_INPUT when it says
 * another one, STATUS_AGAIN when it is being written; w is as it was then. */
int weights_follow(struct weights *w, int64_t version, struct err *e);
/* 0: attached weights that have changed since the last weights_follow, or are changing now: nothing
 * may be computed with them before the next. 1 for all others. */
int weights_steady(const struct weights *w);

/* The parameter and first row that hold Hugging Face tensor `name`; NULL when there is none. */
struct param *weights_find(struct weights *w, const char *name, int *row0, int *rows);
/* bf16 values of one Hugging Face tensor. STATUS_NOTFOUND when there is none of that name, or when
 * the device cannot take it out of its packed view again. */
int weights_read_bf16(struct weights *w, const char *name, uint16_t *dst, int64_t count,
                      struct err *e);
/* 1: linear layers read this parameter through a packed view; linear_dw makes its gradient. */
int weights_packed(const struct weights *w, const struct param *p);
int64_t weights_count(const struct weights *w); /* parameters */
/* Values of a part: of one Hugging Face tensor. */
int64_t weights_part_count(const struct param *p, int part);

#endif
