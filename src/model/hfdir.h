/* Writes a model as a Hugging Face folder: config.json, generation_config.json, tokenizer.json,
 * tokenizer_config.json, chat_template.jinja and bf16 safetensors.
 *
 *     static int get(void *arg, const char *name, uint16_t *dst, int64_t count, struct err *e)
 *     {
 *         return wfile_read_bf16(arg, name, dst, count, e);
 *     }
 *     ...
 *     hfdir_write("out", src, get, src, &e);
 *
 * The folder is built as DIR.tmp and renamed when all of it is on disk, so a half-written model
 * never stands under its name. */
#ifndef MODEL_HFDIR_H
#define MODEL_HFDIR_H

#include <stdint.h>

struct err;
struct wfile;

/* Puts the `count` values of a tensor into dst; called once for each tensor, in order. */
typedef int hfdir_tensor_fn(void *arg, const char *name, uint16_t *dst, int64_t count,
                            struct err *e);

/* Writes the tensors of `src` in their order, with values from get_bf16 and texts from src
 * (config.json's dtype becomes bfloat16). `dir` must not exist, or be an empty folder; missing
 * parents are made. Left-overs of an interrupted write (DIR.tmp) are removed. Weights above 5 GB go
 * to several files with an index. */
int hfdir_write(const char *dir, const struct wfile *src, hfdir_tensor_fn *get_bf16, void *arg,
                struct err *e);

/* The same with another limit on a weights file, in bytes (a tensor above it has its own file). */
int hfdir_write_shards(const char *dir, const struct wfile *src, hfdir_tensor_fn *get_bf16,
                       void *arg, int64_t shard_bytes, struct err *e);

#endif
