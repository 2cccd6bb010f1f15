/* GGUF files: the metadata, the list of tensors, and their values dequantised.
 *
 *     struct gguf *g;
 *     if (gguf_open("model.gguf", &g, &e) == 0) {
 *         const struct gguf_kv *kv = gguf_kv(g, "llama.block_count");
 *         const struct gguf_tensor *t = gguf_tensor_at(g, 0);
 *         gguf_rows_f32(t, 0, t->dim[1], dst, &e);
 *         gguf_close(g);
 *     }
 *
 * Names and order of dimensions are GGUF's own (the fastest dimension first); model/wfile.h gives
 * Hugging Face's. The file stays mapped while open; all reading is thread-safe. */
#ifndef MODEL_GGUF_H
#define MODEL_GGUF_H

#include <stddef.h>
#include <stdint.h>

struct err;
struct gguf;

/* The format's numbers for the types of metadata values. */
enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64
};

/* Bytes inside the map, not NUL-terminated. */
struct gguf_str {
    const char *s;
    size_t n;
};

struct gguf_kv {
    const char *key;
    enum gguf_type type;
    int64_t i;           /* integers and booleans; a u64 above INT64_MAX is refused at open */
    double f;            /* F32, F64 */
    struct gguf_str str; /* STRING */
    enum gguf_type elem; /* ARRAY: type of its elements, */
    uint64_t count;      /* their number, */
    const uint8_t *data; /* and their bytes, checked to lie inside the file */
};

struct gguf_tensor {
    const char *name;
    int ndim;
    int64_t dim[4]; /* fastest first; unused ones are 1 */
    int64_t count;
    uint32_t type;         /* ggml's number */
    const char *type_name; /* "Q4_1"; a number we do not know is "type 99" */
    int readable;          /* 1: gguf_rows_* can give its values */
    const uint8_t *data;   /* NULL when not readable */
    size_t row_bytes;      /* bytes of one row of dim[0] values */
};

/* Maps and checks the whole file: every string, array and tensor lies inside it. Types that cannot
 * be dequantised (those not in model/gguf_quant.h) do not fail here but when they are read. */
int gguf_open(const char *path, struct gguf **out, struct err *e);
void gguf_close(struct gguf *g); /* NULL is fine */

const char *gguf_path(const struct gguf *g);
const struct gguf_kv *gguf_kv(const struct gguf *g, const char *key); /* NULL: absent */
int gguf_tensor_count(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, int i); /* in file order */
const struct gguf_tensor *gguf_find(const struct gguf *g, const char *name);

/* Walks the strings of an ARRAY of STRING: start with *at = kv->data, call kv->count times. */
struct gguf_str gguf_next_string(const uint8_t **at);
/* Element i of an ARRAY of integers or booleans. */
int64_t gguf_array_int(const struct gguf_kv *kv, uint64_t i);

/* Rows [row0, row0 + nrows) of dim[0] values each; a tensor has count / dim[0] rows. Values are
 * computed in f32 as ggml defines them (d * q + m, each step rounded); bf16 is that value rounded
 * to nearest even. STATUS_UNSUPPORTED names the type when it is not readable. */
int gguf_rows_f32(const struct gguf_tensor *t, int64_t row0, int64_t nrows, float *dst,
                  struct err *e);
int gguf_rows_bf16(const struct gguf_tensor *t, int64_t row0, int64_t nrows, uint16_t *dst,
                   struct err *e);

#endif
