/* Shared inside num/: the tables of the devices. */
#ifndef NUM_DEVICE_INT_H
#define NUM_DEVICE_INT_H

#include "num/device.h"

extern const struct device_ops ops_ref_table;

#define DEVICE_PANEL (64 << 20) /* bytes of a weight's transpose that are made at a time */

struct err;
int cpu_open(struct device *d, const char *isa, struct err *e);
void cpu_close(struct device *d);
int cpu_take_fault(struct device *d); /* 1: an exact sum overflowed since the last call */

/* Opens "cpu", "cuda" or "cuda:N" of libtorch, looked for in dir (NULL: see torch_lib.c). */
int torch_open(struct device *d, const char *name, const char *dir, struct err *e);

/* What a device with memory of its own does instead of device.c. The host never looks into it. */
struct device_mem {
    void (*close)(struct device *d);
    int (*fault)(struct device *d, struct err *e);  /* tells what failed since the last call */
    void *(*alloc)(struct device *d, size_t bytes); /* zeroed; NULL when there is none */
    void (*free)(struct device *d, void *data);     /* NULL is fine */
    void (*upload)(struct tensor *x, const void *src, enum dtype from); /* rows without padding */
    void (*download)(const struct tensor *x, float *dst);
    void (*zero)(struct tensor *x);
    void (*kv_copy)(struct kv_store *kv, int from, int to);
};

/* Offsets inside a kv_store, in elements. Keys are stored pairwise interleaved over the head's
 * dimension, (d/2, 64 tokens, 2), values over the tokens, (64 / 2, d, 2): the forms that matrix
 * units multiply by. */
static inline size_t kv_head_elems(const struct kv_store *kv)
{
    return (size_t)PLAN_KV_BLOCK * (size_t)kv->head_dim * 2;
}
static inline size_t kv_key_offset(const struct kv_store *kv, int page, int layer, int head)
{
    return (((size_t)page * (size_t)kv->n_layers + (size_t)layer) * (size_t)kv->n_kv_heads +
            (size_t)head) *
           kv_head_elems(kv);
}
static inline size_t kv_value_offset(const struct kv_store *kv, int page, int layer, int head)
{
    return kv_key_offset(kv, page, layer, head) + (size_t)PLAN_KV_BLOCK * (size_t)kv->head_dim;
}
static inline size_t kv_key_index(int d, int slot)
{
    return (size_t)(d / 2) * (PLAN_KV_BLOCK * 2) + (size_t)slot * 2 + (size_t)(d & 1);
}
static inline size_t kv_value_index(int d, int slot, int head_dim)
{
    return (size_t)(slot / 2) * ((size_t)head_dim * 2) + (size_t)d * 2 + (size_t)(slot & 1);
}

#endif
