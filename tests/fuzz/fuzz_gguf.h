/* Any bytes as a GGUF file: metadata that can be walked, tensors that can be read, and texts made
 * of it that are JSON. */
#ifndef TESTS_FUZZ_FUZZ_GGUF_H
#define TESTS_FUZZ_FUZZ_GGUF_H

#include <jansson.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "fuzz/fuzz_file.h"
#include "model/gguf.h"
#include "model/gguf_text.h"

static void fuzz_gguf_tensor(const struct gguf_tensor *t)
{
    struct err e = {0};
    float *row;
    char name[256];
    int64_t rows = t->dim[0] > 0 ? t->count / t->dim[0] : 0;
    gguf_text_name(t->name, name, sizeof name, &e);
    FUZZ_FILE_CHECK(t->readable || gguf_rows_f32(t, 0, 1, NULL, &e) < 0);
    if (!t->readable || t->dim[0] > 1 << 20) {
        return;
    }
    row = mem_alloc(((size_t)t->dim[0] + 1) * sizeof *row);
    for (int64_t i = 0; i < rows; i += 1 + rows / 4) {
        FUZZ_FILE_CHECK(gguf_rows_f32(t, i, 1, row, &e) == 0);
        FUZZ_FILE_CHECK(gguf_rows_bf16(t, i, 1, (uint16_t *)(void *)row, &e) == 0);
    }
    FUZZ_FILE_CHECK(gguf_rows_f32(t, rows, 1, row, &e) < 0);
    mem_free(row);
}

static void fuzz_gguf_kv(const struct gguf_kv *kv)
{
    const uint8_t *at;
    if (!kv || kv->type != GGUF_ARRAY) {
        return;
    }
    at = kv->data;
    for (uint64_t i = 0; i < kv->count && i < 4096; i++) {
        if (kv->elem == GGUF_STRING) {
            struct gguf_str s = gguf_next_string(&at);
            FUZZ_FILE_CHECK(s.n == 0 || s.s[0] == s.s[0]);
        } else if (kv->elem <= GGUF_I32 || kv->elem == GGUF_BOOL) {
            gguf_array_int(kv, i);
        }
    }
}

static void fuzz_gguf_json(const char *text)
{
    json_error_t je;
    json_t *o = text ? json_loads(text, JSON_ALLOW_NUL, &je) : NULL;
    FUZZ_FILE_CHECK(!text || o);
    json_decref(o);
}

static void fuzz_gguf_one(const uint8_t *data, size_t n)
{
    struct err e = {0};
    struct gguf *g = NULL;
    struct gguf_text t;
    int rc = gguf_open(fuzz_file(data, n), &g, &e);
    if (rc != 0) {
        FUZZ_FILE_CHECK(rc < 0 && e.code == rc && e.msg[0] && !g);
        return;
    }
    for (int i = 0; i < gguf_tensor_count(g); i++) {
        fuzz_gguf_tensor(gguf_tensor_at(g, i));
    }
    fuzz_gguf_kv(gguf_kv(g, "tokenizer.ggml.tokens"));
    fuzz_gguf_kv(gguf_kv(g, "tokenizer.ggml.token_type"));
    if (gguf_text_make(g, &t, &e) == 0) {
        fuzz_gguf_json(t.config);
        fuzz_gguf_json(t.generation_config);
        fuzz_gguf_json(t.tokenizer);
        fuzz_gguf_json(t.tokenizer_config);
        gguf_text_fini(&t);
    }
    gguf_close(g);
}

#endif
