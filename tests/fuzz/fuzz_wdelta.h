/* Any bytes as a manifest of weights, and as a chunk: what is accepted has its sums and can be
 * written and read again; pieces stay inside their values. */
#ifndef TESTS_FUZZ_FUZZ_WDELTA_H
#define TESTS_FUZZ_FUZZ_WDELTA_H

#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/status.h"
#include "fuzz/fuzz_file.h"
#include "model/wmanifest.h"

static void fuzz_wdelta_manifest(const uint8_t *data, size_t n)
{
    struct wmanifest *m = NULL, *again = NULL;
    struct err e = {0};
    struct buf b;
    int rc = wmanifest_read((const char *)data, n, &m, &e);

    if (rc != 0) {
        FUZZ_FILE_CHECK(rc < 0 && e.code == rc && e.msg[0] && !m);
        return;
    }
    buf_init(&b, 1 << 24);
    FUZZ_FILE_CHECK(wmanifest_write(m, &b, &e) == 0);
    FUZZ_FILE_CHECK(wmanifest_read(b.data, b.len, &again, &e) == 0);
    FUZZ_FILE_CHECK(again->ntensors == m->ntensors && again->nchunks == m->nchunks);
    FUZZ_FILE_CHECK(strcmp(again->sum, m->sum) == 0 && again->base == m->base);
    buf_fini(&b);
    wmanifest_free(m);
    wmanifest_free(again);
}

static void fuzz_wdelta_chunk(const uint8_t *data, size_t n)
{
    struct wdelta *d = wdelta_new();
    struct wdelta_piece p;
    struct err e = {0};

    for (size_t pos = 0; pos < n && wdelta_next(data, n, &pos, &p, &e) == 0;) {
        uint16_t *values = mem_alloc(2 * (size_t)p.at.count);
        FUZZ_FILE_CHECK(pos <= n && p.at.count > 0 && p.at.count <= WDELTA_PIECE);
        (void)wdelta_apply(d, &p, values, &e);
        mem_free(values);
    }
    wdelta_free(d);
}

static void fuzz_wdelta_one(const uint8_t *data, size_t n)
{
    if (n && data[0] == '{') {
        fuzz_wdelta_manifest(data, n);
    } else {
        fuzz_wdelta_chunk(data, n);
    }
}

#endif
