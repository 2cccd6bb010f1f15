/* A model on disk, read as it is: a Hugging Face folder (config.json, safetensors, tokenizer.json,
 * chat template) or a GGUF file. Tensor names are Hugging Face's in both cases.
 *
 *     struct wfile *w;
 *     if (wfile_open("DIR-or-FILE.gguf", &w, &e) == 0) {
 *         wfile_read_bf16(w, "model.norm.weight", dst, count, &e);
 *         wfile_close(w);
 *     }
 *
 * The file stays mapped while open; reading is thread-safe. */
#ifndef MODEL_WFILE_H
#define MODEL_WFILE_H

#include <stddef.h>
#include <stdint.h>

#include "model/arch.h"

struct err;
struct wfile;

struct wfile_tensor {
    const char *name;
    int ndim;
    int64_t dim[4]; /* Hugging Face order: rows first */
    int64_t count;  /* product of dim */
};

int wfile_open(const char *path, struct wfile **out, struct err *e);
/* The texts alone: no weights are looked for, any architecture will do, and a folder needs only a
 * tokenizer.json. wfile_arch and the tensors are empty. */
int wfile_open_texts(const char *path, struct wfile **out, struct err *e);
/* Texts and architecture, without the weights: a folder needs only a config.json. */
int wfile_open_shape(const char *path, struct wfile **out, struct err *e);
void wfile_close(struct wfile *w); /* NULL is fine */

const struct arch *wfile_arch(const struct wfile *w);
int wfile_tensor_count(const struct wfile *w);
const struct wfile_tensor *wfile_tensor_at(const struct wfile *w, int i);
const struct wfile_tensor *wfile_find(const struct wfile *w, const char *name); /* NULL: absent */

/* Reads a whole tensor of exactly `count` values. GGUF values are dequantised in f32 first; bf16 is
 * that value rounded to nearest even. A missing name or another count is an error. */
int wfile_read_f32(const struct wfile *w, const char *name, float *dst, int64_t count,
                   struct err *e);
int wfile_read_bf16(const struct wfile *w, const char *name, uint16_t *dst, int64_t count,
                    struct err *e);

/* Texts, valid until close; NULL where the model has none. From a GGUF file they are made from its
 * metadata and are what `miles import` writes. */
const char *wfile_config_json(const struct wfile *w);
const char *wfile_tokenizer_json(const struct wfile *w);
const char *wfile_tokenizer_config_json(const struct wfile *w);
const char *wfile_generation_config_json(const struct wfile *w);
const char *wfile_chat_template(const struct wfile *w);
/* The template named tool_use, which is for chats with tools where a model has more than one. */
const char *wfile_tool_template(const struct wfile *w);

#endif
