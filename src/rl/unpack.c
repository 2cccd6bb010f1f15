/* Owns zlib and libzstd. Input and output go through buffers of fixed size; how much comes out is
 * bounded by the spool. */
#include "rl/unpack.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <zlib.h>
#include <zstd.h>

#include "base/mem.h"
#include "base/status.h"
#include "rl/spool.h"

#define UNPACK_BUF ((size_t)1 << 18)

struct unpack {
    struct spool *s;
    int fd;
    const char *path;
    uint8_t *in, *out; /* UNPACK_BUF each */
    size_t len;        /* bytes in `in`; 0: the file has ended */
    int64_t at;        /* bytes read from the file */
    struct err *e;
};

enum unpack_kind unpack_kind(const uint8_t *head, size_t n)
{
    if (n >= 4 && head[0] == 0x1f && head[1] == 0x8b && head[2] == 8) {
        return UNPACK_GZIP;
    }
    if (n >= 4 && head[1] == 0xb5 && head[2] == 0x2f && head[3] == 0xfd && head[0] == 0x28) {
        return UNPACK_ZSTD;
    }
    /* a skippable frame, as pzstd and seekable files begin */
    if (n >= 4 && (head[0] & 0xf0) == 0x50 && head[1] == 0x2a && head[2] == 0x4d &&
        head[3] == 0x18) {
        return UNPACK_ZSTD;
    }
    return UNPACK_NONE;
}

static int unpack_more(struct unpack *u)
{
    ssize_t n;
    do {
        n = pread(u->fd, u->in, UNPACK_BUF, u->at);
    } while (n < 0 && errno == EINTR);
    if (n < 0) {
        return ERR(u->e, STATUS_IO, "cannot read %.400s: %s", u->path, strerror(errno));
    }
    u->len = (size_t)n;
    u->at += n;
    return STATUS_OK;
}

static int unpack_bad(const struct unpack *u, const char *what, const char *why)
{
    return ERR(u->e, STATUS_FORMAT, "%.400s: %s before byte %lld: %s", u->path, what,
               (long long)u->at, why ? why : "unknown");
}

/* One read's worth of input through inflate; *open says that a member is under way. */
static int unpack_inflate(struct unpack *u, z_stream *z, int *open)
{
    z->next_in = u->in;
    z->avail_in = (uInt)u->len;
    do {
        int rc, zrc;
        if (!*open && z->avail_in) {
            if (*z->next_in == 0) { /* padding behind a member, as tar leaves it */
                z->next_in++;
                z->avail_in--;
                continue;
            }
            inflateReset(z);
            *open = 1;
        }
        z->next_out = u->out;
        z->avail_out = (uInt)UNPACK_BUF;
        zrc = *open ? inflate(z, Z_NO_FLUSH) : Z_OK;
        if (zrc != Z_OK && zrc != Z_STREAM_END && zrc != Z_BUF_ERROR) {
            return unpack_bad(u, "damaged gzip data", z->msg);
        }
        rc = spool_write(u->s, u->out, UNPACK_BUF - z->avail_out, u->e);
        if (rc != STATUS_OK) {
            return rc;
        }
        *open = *open && zrc != Z_STREAM_END;
    } while (z->avail_in || (*open && z->avail_out == 0));
    return STATUS_OK;
}

static int unpack_gzip(struct unpack *u)
{
    z_stream z = {0};
    int open = 1, rc = STATUS_OK;

    if (inflateInit2(&z, 15 + 16) != Z_OK) {
        return ERR(u->e, STATUS_NOMEM, "%.400s: zlib does not start", u->path);
    }
    while (rc == STATUS_OK && u->len) {
        rc = unpack_inflate(u, &z, &open);
        rc = rc == STATUS_OK ? unpack_more(u) : rc;
    }
    if (rc == STATUS_OK && open) {
        rc = unpack_bad(u, "the gzip data ends too early", "the file is cut");
    }
    inflateEnd(&z);
    return rc;
}

static int unpack_zstd(struct unpack *u)
{
    ZSTD_DStream *z = ZSTD_createDStream();
    size_t left = 0;
    int rc = z ? STATUS_OK : ERR(u->e, STATUS_NOMEM, "%.400s: zstd does not start", u->path);

    while (rc == STATUS_OK && u->len) {
        ZSTD_inBuffer in = {u->in, u->len, 0};
        ZSTD_outBuffer out;
        do {
            out = (ZSTD_outBuffer){u->out, UNPACK_BUF, 0};
            left = ZSTD_decompressStream(z, &out, &in);
            if (ZSTD_isError(left)) {
                rc = unpack_bad(u, "damaged zstd data", ZSTD_getErrorName(left));
            } else {
                rc = spool_write(u->s, u->out, out.pos, u->e);
            }
        } while (rc == STATUS_OK && (in.pos < in.size || out.pos == out.size));
        rc = rc == STATUS_OK ? unpack_more(u) : rc;
    }
    if (rc == STATUS_OK && left) {
        rc = unpack_bad(u, "the zstd data ends too early", "the file is cut");
    }
    ZSTD_freeDStream(z);
    return rc;
}

int unpack_to(struct spool *s, enum unpack_kind kind, int fd, const char *path, struct err *e)
{
    struct unpack u = {.s = s, .fd = fd, .path = path, .e = e};
    int rc;

    u.in = mem_alloc(UNPACK_BUF);
    u.out = mem_alloc(UNPACK_BUF);
    rc = unpack_more(&u);
    if (rc == STATUS_OK) {
        rc = kind == UNPACK_GZIP ? unpack_gzip(&u) : unpack_zstd(&u);
    }
    mem_free(u.in);
    mem_free(u.out);
    return rc;
}

static int unpack_block_gzip(const uint8_t *in, size_t len, uint8_t *out, size_t n)
{
    z_stream z = {0};
    int zrc;

    if (len > UINT32_MAX || n > UINT32_MAX || inflateInit2(&z, 15 + 32) != Z_OK) {
        return 0;
    }
    z.next_in = (Bytef *)(uintptr_t)in;
    z.avail_in = (uInt)len;
    z.next_out = out;
    z.avail_out = (uInt)n;
    zrc = inflate(&z, Z_FINISH);
    n = z.avail_out;
    inflateEnd(&z);
    return zrc == Z_STREAM_END && n == 0;
}

int unpack_block(enum unpack_kind kind, const uint8_t *in, size_t len, uint8_t *out, size_t n,
                 struct err *e)
{
    int ok = kind == UNPACK_GZIP ? unpack_block_gzip(in, len, out, n)
                                 : ZSTD_decompress(out, n, in, len) == n;
    return ok ? STATUS_OK
              : ERR(e, STATUS_FORMAT, "damaged %s block", kind == UNPACK_GZIP ? "gzip" : "zstd");
}
