/* safetensors files: a reader over a map, and a streaming writer.
 *
 *     struct safetensors *f;
 *     if (safetensors_open("model.safetensors", &f, &e) == 0) {
 *         const struct safetensors_tensor *t = safetensors_find(f, "model.norm.weight");
 *         safetensors_read_f32(t, dst, t->count, &e);
 *         safetensors_close(f);
 *     }
 *
 *     struct safetensors_writer *w;
 *     safetensors_writer_open("out.safetensors", &w, &e);
 *     safetensors_writer_add(w, "a", SAFETENSORS_F32, 2, (int64_t[]){4, 8}, &e);    every tensor
 *     safetensors_writer_begin(w, &e);                                              the header
 *     safetensors_writer_write(w, values, 4 * 8 * 4, &e);          their bytes, in the same order
 *     safetensors_writer_commit(w, &e);                            or safetensors_writer_abort(w)
 *
 * Reading is thread-safe while the file is open; a writer belongs to one thread. */
#ifndef MODEL_SAFETENSORS_H
#define MODEL_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

struct err;
struct safetensors;
struct safetensors_writer;

#define SAFETENSORS_MAX_DIMS 8

/* Those we write and read as values; every other dtype of a file is SAFETENSORS_OTHER, which can be
 * listed but not read. */
enum safetensors_dtype {
    SAFETENSORS_F32,
    SAFETENSORS_F16,
    SAFETENSORS_BF16,
    SAFETENSORS_I64,
    SAFETENSORS_OTHER
};

struct safetensors_tensor {
    const char *name;
    enum safetensors_dtype dtype;
    char dtype_name[16]; /* as the file spells it: "BF16" */
    int ndim;            /* 0 for a scalar */
    int64_t dim[SAFETENSORS_MAX_DIMS];
    int64_t count;       /* product of dim */
    const uint8_t *data; /* inside the map, of any alignment, little-endian */
    size_t nbytes;
};

/* Maps the file and checks its whole header: sizes, shapes, offsets inside the file, no overlap and
 * no gap, no name twice. */
int safetensors_open(const char *path, struct safetensors **out, struct err *e);
void safetensors_close(struct safetensors *f); /* NULL is fine */

/* In the order of the data in the file. */
int safetensors_count(const struct safetensors *f);
const struct safetensors_tensor *safetensors_at(const struct safetensors *f, int i);
const struct safetensors_tensor *safetensors_find(const struct safetensors *f, const char *name);
/* xxh3 of all bytes of the file: that of its writer, unless it was changed since. */
uint64_t safetensors_sum(const struct safetensors *f);
/* The text of __metadata__'s key, NULL when there is none. */
const char *safetensors_meta(const struct safetensors *f, const char *key);

/* Reads all `count` values of t. F32, F16 and BF16 convert to either type (to bf16 by rounding to
 * nearest even); another dtype is STATUS_UNSUPPORTED naming it, another count STATUS_INPUT. */
int safetensors_read_f32(const struct safetensors_tensor *t, float *dst, int64_t count,
                         struct err *e);
int safetensors_read_bf16(const struct safetensors_tensor *t, uint16_t *dst, int64_t count,
                          struct err *e);
int safetensors_read_i64(const struct safetensors_tensor *t, int64_t *dst, int64_t count,
                         struct err *e);

/* The file appears under `path` at commit, whole and synced, and not before. Metadata is
 * {"format": "pt"} plus what safetensors_writer_meta adds. */
int safetensors_writer_open(const char *path, struct safetensors_writer **out, struct err *e);
int safetensors_writer_meta(struct safetensors_writer *w, const char *key, const char *value,
                            struct err *e);
/* Declares the next tensor. Its data must start at a multiple of its element size, because readers
 * map the file: declare wider types first, or keep counts even. */
int safetensors_writer_add(struct safetensors_writer *w, const char *name,
                           enum safetensors_dtype dtype, int ndim, const int64_t *dim,
                           struct err *e);
int safetensors_writer_begin(struct safetensors_writer *w, struct err *e);
/* Any chunking; the sum must be the declared size. */
int safetensors_writer_write(struct safetensors_writer *w, const void *data, size_t nbytes,
                             struct err *e);
/* Before the commit: xxh3 of all that was written. */
uint64_t safetensors_writer_sum(const struct safetensors_writer *w);
int safetensors_writer_commit(struct safetensors_writer *w, struct err *e); /* frees w always */
void safetensors_writer_abort(struct safetensors_writer *w);                /* NULL is fine */

#endif
