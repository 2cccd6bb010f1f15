/* Owns the tar format (ustar), as far as plain files need it. */
#include "run/tarfile.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <zlib.h>
#include <zstd.h>

#include "base/fsio.h"
#include "base/mem.h"
#include "base/status.h"

#define TARFILE_BLOCK 512

void tarfile_init(struct tarfile *t, size_t max)
{
    buf_init(&t->b, max);
    t->when = (long)time(NULL);
}

void tarfile_add(struct tarfile *t, const char *name, const void *data, size_t n)
{
    char h[TARFILE_BLOCK + 1] = {0};
    static const char zeros[TARFILE_BLOCK];
    unsigned sum = 0;

    snprintf(h, 100, "%s", name);
    snprintf(h + 100, 8, "%07o", 0644);
    snprintf(h + 108, 8, "%07o", 0);
    snprintf(h + 116, 8, "%07o", 0);
    snprintf(h + 124, 12, "%011llo", (unsigned long long)n);
    snprintf(h + 136, 12, "%011lo", (unsigned long)t->when);
    memset(h + 148, ' ', 8); /* counts as blanks in its own sum */
    h[156] = '0';
    memcpy(h + 257, "ustar\00000", 8);
    for (int i = 0; i < TARFILE_BLOCK; i++) {
        sum += (unsigned char)h[i];
    }
    snprintf(h + 148, 8, "%06o", sum & 0777777u);
    h[155] = ' ';
    buf_add(&t->b, h, TARFILE_BLOCK);
    buf_add(&t->b, data, n);
    buf_add(&t->b, zeros, (TARFILE_BLOCK - n % TARFILE_BLOCK) % TARFILE_BLOCK);
}

static int tarfile_gzip(const struct buf *in, char **out, size_t *n)
{
    z_stream z = {0};
    size_t room;
    int rc;

    if (deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
        return 0;
    }
    room = deflateBound(&z, in->len);
    *out = mem_alloc(room);
    z.next_in = (Bytef *)in->data;
    z.avail_in = (uInt)in->len;
    z.next_out = (Bytef *)*out;
    z.avail_out = (uInt)room;
    rc = deflate(&z, Z_FINISH);
    *n = z.total_out;
    deflateEnd(&z);
    return rc == Z_STREAM_END;
}

static int tarfile_zstd(const struct buf *in, char **out, size_t *n)
{
    size_t room = ZSTD_compressBound(in->len);

    *out = mem_alloc(room);
    *n = ZSTD_compress(*out, room, in->data, in->len, 10);
    return !ZSTD_isError(*n);
}

static int tarfile_ends(const char *path, const char *end)
{
    size_t n = strlen(path), k = strlen(end);
    return n > k && strcmp(path + n - k, end) == 0;
}

int tarfile_write(struct tarfile *t, const char *path, struct err *e)
{
    char end[2 * TARFILE_BLOCK] = {0}, *out = NULL;
    size_t n = 0;
    int zst = tarfile_ends(path, ".tar.zst"), rc;

    if (!zst && !tarfile_ends(path, ".tar.gz") && !tarfile_ends(path, ".tgz")) {
        return ERR(e, STATUS_INPUT, "%s: an archive is a .tar.zst, .tar.gz or .tgz", path);
    }
    buf_add(&t->b, end, sizeof end);
    if (buf_status(&t->b) != STATUS_OK) {
        return ERR(e, STATUS_NOMEM, "%s: more than %zu bytes to pack", path, t->b.max);
    }
    rc = (zst ? tarfile_zstd : tarfile_gzip)(&t->b, &out, &n)
             ? fsio_write_atomic(path, out, n, e)
             : ERR(e, STATUS_FAIL, "%s: the compressor failed", path);
    mem_free(out);
    return rc;
}

void tarfile_fini(struct tarfile *t)
{
    buf_fini(&t->b);
}
