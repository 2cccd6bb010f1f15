/* Owns the bytes of a session's samples: a safetensors file in memory with the tensors
 * `{i}.tokens` (int32), `{i}.loss_mask` (uint8) and `{i}.rollout_log_probs` (float32) of each
 * sample, and what else is known of them as JSON in the uint8 tensor `_samples_meta`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "serve/session_api_int.h"

static const size_t BLOB_MAX = (size_t)1 << 30;

struct blob {
    json_t *header;
    struct buf data;
};

static void blob_tensor(struct blob *b, int i, const char *name, const char *dtype, size_t n,
                        const void *values, size_t bytes)
{
    char key[64];
    json_t *t;

    snprintf(key, sizeof key, i < 0 ? "%.0d%s" : "%d.%s", i < 0 ? 0 : i, name);
    t = json_pack("{s:s,s:[I],s:[I,I]}", "dtype", dtype, "shape", (json_int_t)n, "data_offsets",
                  (json_int_t)b->data.len, (json_int_t)(b->data.len + bytes));
    json_object_set_new(b->header, key, t);
    buf_add(&b->data, values, bytes);
}

/* The header is padded, so that the first tensor begins at a multiple of 8 bytes. */
static void blob_write(struct blob *b, struct buf *out)
{
    char *text = json_dumps(b->header, JSON_COMPACT);
    size_t len = text ? strlen(text) : 0, all = (len + 7) / 8 * 8;
    uint8_t head[8];

    for (int i = 0; i < 8; i++) {
        head[i] = (uint8_t)(all >> (8 * i));
    }
    buf_add(out, head, sizeof head);
    buf_add(out, text ? text : "", len);
    buf_add(out, "        ", all - len);
    buf_add(out, b->data.data, b->data.len);
    free(text);
}

int session_blob(const struct session_sample *list, int n, const char *version, struct buf *out,
                 struct err *e)
{
    struct blob b = {.header = json_object()};
    json_t *metas = json_array(), *meta;
    char *text;
    int failed;

    buf_init(&b.data, BLOB_MAX);
    for (int i = 0; i < n; i++) {
        const struct session_sample *x = &list[i];
        size_t all = (size_t)(x->prompt + x->response), r = (size_t)x->response;
        blob_tensor(&b, i, "tokens", "I32", all, x->ids, 4 * all);
        blob_tensor(&b, i, "rollout_log_probs", "F32", r, x->logps, 4 * r);
        json_array_append(metas, x->meta);
    }
    for (int i = 0; i < n; i++) {
        blob_tensor(&b, i, "loss_mask", "U8", (size_t)list[i].response, list[i].mask,
                    (size_t)list[i].response);
    }
    meta = json_pack("{s:o,s:s}", "samples", metas, "session_version", version);
    text = json_dumps(meta, JSON_COMPACT);
    blob_tensor(&b, -1, "_samples_meta", "U8", text ? strlen(text) : 0, text ? text : "",
                text ? strlen(text) : 0);
    blob_write(&b, out);
    failed = !text || buf_status(&b.data) || buf_status(out);
    free(text);
    json_decref(meta);
    json_decref(b.header);
    buf_fini(&b.data);
    return failed ? ERR(e, STATUS_NOMEM, "the samples have more than %zu bytes", BLOB_MAX)
                  : STATUS_OK;
}
