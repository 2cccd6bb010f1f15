/* The reader of server-sent events against any bytes: however they are cut, the events and the
 * outcome are the same, and within its bounds. */
#ifndef TESTS_FUZZ_FUZZ_SSE_H
#define TESTS_FUZZ_FUZZ_SSE_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/sha256.h"
#include "base/status.h"
#include "net/sse.h"

struct fuzz_sse {
    struct sha256 hash; /* of the events told */
    size_t max;
};

static int fuzz_sse_event(void *arg, const struct sse_event *ev, struct err *e)
{
    struct fuzz_sse *f = arg;
    (void)e;
    if (ev->len > f->max || ev->data[ev->len] != 0 || strlen(ev->type) > f->max) {
        abort();
    }
    sha256_update(&f->hash, ev->type, strlen(ev->type) + 1);
    sha256_update(&f->hash, &ev->len, sizeof ev->len);
    sha256_update(&f->hash, ev->data, ev->len);
    return STATUS_OK;
}

/* Feeds pieces of `piece` bytes (0: of 1, 2, 3, ... bytes); the outcome and the hash of the events.
 */
static int fuzz_sse_run(const uint8_t *data, size_t n, size_t piece, size_t max, uint8_t out[32])
{
    struct fuzz_sse f = {.max = max};
    struct sse p;
    int rc = STATUS_OK;
    size_t at = 0, k = piece;
    sha256_init(&f.hash);
    sse_init(&p, max);
    while (at < n && rc == STATUS_OK) {
        k = piece ? piece : k + 1;
        k = k < n - at ? k : n - at;
        rc = sse_feed(&p, data + at, k, fuzz_sse_event, &f, NULL);
        at += k;
    }
    sse_fini(&p);
    sha256_final(&f.hash, out);
    return rc;
}

static void fuzz_sse_one(const uint8_t *data, size_t n)
{
    for (size_t max = 16; max <= 4096; max *= 16) {
        uint8_t want[32], got[32];
        int rc = fuzz_sse_run(data, n, n ? n : 1, max, want);
        for (size_t piece = 0; piece < 4; piece++) {
            if (fuzz_sse_run(data, n, piece, max, got) != rc || memcmp(got, want, 32) != 0) {
                abort();
            }
        }
    }
}

#endif
