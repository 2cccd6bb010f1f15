/* Any bytes as a safetensors file: every tensor that opening accepts can be read whole. */
#ifndef TESTS_FUZZ_FUZZ_SAFETENSORS_H
#define TESTS_FUZZ_FUZZ_SAFETENSORS_H

#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "fuzz/fuzz_file.h"
#include "model/safetensors.h"

static void fuzz_safetensors_read(const struct safetensors_tensor *t)
{
    struct err e = {0};
    size_t n = (size_t)t->count;
    double *to = mem_alloc((n + 1) * sizeof *to);
    int f32 = safetensors_read_f32(t, (float *)(void *)to, t->count, &e);
    int bf16 = safetensors_read_bf16(t, (uint16_t *)(void *)to, t->count, &e);
    int i64 = safetensors_read_i64(t, (int64_t *)(void *)to, t->count, &e);
    FUZZ_FILE_CHECK(f32 == bf16);
    FUZZ_FILE_CHECK((t->dtype <= SAFETENSORS_BF16) == (f32 == 0));
    FUZZ_FILE_CHECK((t->dtype == SAFETENSORS_I64) == (i64 == 0));
    FUZZ_FILE_CHECK(safetensors_read_f32(t, (float *)(void *)to, t->count + 1, &e) < 0);
    mem_free(to);
}

static void fuzz_safetensors_one(const uint8_t *data, size_t n)
{
    struct err e = {0};
    struct safetensors *f = NULL;
    size_t bytes = 0;
    int rc = safetensors_open(fuzz_file(data, n), &f, &e);
    if (rc != 0) {
        FUZZ_FILE_CHECK(rc < 0 && e.code == rc && e.msg[0] && !f);
        return;
    }
    for (int i = 0; i < safetensors_count(f); i++) {
        const struct safetensors_tensor *t = safetensors_at(f, i);
        bytes += t->nbytes;
        FUZZ_FILE_CHECK(t->count >= 0 && bytes <= n);
        FUZZ_FILE_CHECK(safetensors_find(f, t->name) == t);
        if (t->count <= 1 << 20) { /* packed types may count more values than bytes */
            fuzz_safetensors_read(t);
        }
    }
    safetensors_meta(f, "format");
    FUZZ_FILE_CHECK(!safetensors_find(f, "no such tensor"));
    safetensors_close(f);
}

#endif
