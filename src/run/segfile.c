/* Owns the segment files. A piece is a head (magic, length, checksum) and its data, so that a file
 * can be checked without the database that points into it. */
#include "run/segfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "base/buf.h"
#include "base/fsio.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"

#define SEGFILE_MAGIC 0x4745534du         /* "MSEG" */
#define SEGFILE_BYTES ((int64_t)32 << 20) /* a segment is followed by the next from here on */
#define SEGFILE_MOST  ((size_t)1 << 32)   /* bytes that wait for one sync */
#define SEGFILE_PIECE ((uint32_t)1 << 30) /* longest piece */

struct segfile_head {
    uint32_t magic, length;
    uint64_t sum;
};

struct segfile {
    char *dir;
    int fd;          /* of the segment being written, -1: not open yet */
    int64_t segment; /* its number */
    int64_t synced;  /* its bytes on disk */
    struct buf wait; /* behind them */
    int read_fd;     /* of the segment read last, -1: none */
    int64_t read_segment;
};

static char *segfile_path(const struct segfile *s, int64_t segment)
{
    char name[32];
    snprintf(name, sizeof name, "%04lld.seg", (long long)segment);
    return fsio_join(s->dir, name);
}

int segfile_open(const char *dir, struct segfile **out, struct err *e)
{
    struct segfile *s;
    int rc = fsio_mkdirs(dir, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    s = mem_alloc(sizeof *s);
    s->dir = mem_strdup(dir);
    s->fd = s->read_fd = -1;
    buf_init(&s->wait, SEGFILE_MOST);
    *out = s;
    return STATUS_OK;
}

void segfile_close(struct segfile *s)
{
    if (s) {
        if (s->fd >= 0) {
            fsio_sys_close(s->fd);
        }
        if (s->read_fd >= 0) {
            fsio_sys_close(s->read_fd);
        }
        buf_fini(&s->wait);
        mem_free(s->dir);
        mem_free(s);
    }
}

static int segfile_fail(const struct segfile *s, const char *what, struct err *e)
{
    char *path = segfile_path(s, s->segment);
    int rc = ERR(e, STATUS_IO, "cannot %s %s: %s", what, path, strerror(errno));
    mem_free(path);
    return rc;
}

/* Opens the segment being written, and syncs the folder when it is new. */
static int segfile_begin(struct segfile *s, struct err *e)
{
    char *path = segfile_path(s, s->segment);
    int rc = STATUS_OK;

    s->fd = fsio_sys_open(path, O_RDWR | O_CREAT);
    if (s->fd < 0) {
        rc = segfile_fail(s, "open", e);
    } else {
        rc = fsio_sync_dir(s->dir, e);
    }
    if (rc != STATUS_OK && s->fd >= 0) {
        fsio_sys_close(s->fd);
        s->fd = -1;
    }
    mem_free(path);
    return rc;
}

/* Length of the whole pieces from the front of a file, up to `most` bytes. */
static int64_t segfile_whole(const char *p, int64_t size, int64_t most)
{
    int64_t at = 0;
    while (at < most && at + (int64_t)sizeof(struct segfile_head) <= size) {
        struct segfile_head h;
        memcpy(&h, p + at, sizeof h);
        if (h.magic != SEGFILE_MAGIC || at + (int64_t)sizeof h + h.length > size ||
            XXH3_64bits(p + at + sizeof h, h.length) != h.sum) {
            break;
        }
        at += (int64_t)sizeof h + h.length;
    }
    return at < most ? at : most;
}

int segfile_resume(struct segfile *s, int64_t segment, int64_t *length, struct err *e)
{
    char *path = segfile_path(s, segment);
    char *p = NULL;
    size_t size = 0;
    int64_t whole = 0;
    int rc = fsio_is_file(path) ? fsio_read(path, SEGFILE_MOST, &p, &size, e) : STATUS_OK;

    if (rc == STATUS_OK) {
        whole = segfile_whole(p, (int64_t)size, *length);
        mem_free(p);
        if (whole < *length) {
            log_error(LEDGER, "%s is whole up to byte %lld of %lld: what follows is lost", path,
                      (long long)whole, (long long)*length);
        } else if ((int64_t)size > whole) {
            log_info(LEDGER, "%s: %lld bytes that were being written at the crash are cut off",
                     path, (long long)size - whole);
        }
        s->segment = segment;
        s->synced = *length = whole;
        rc = segfile_begin(s, e);
    }
    if (rc == STATUS_OK && fsio_sys_truncate(s->fd, whole) != 0) {
        rc = segfile_fail(s, "cut", e);
    }
    mem_free(path);
    return rc;
}

void segfile_end(const struct segfile *s, int64_t *segment, int64_t *length)
{
    *segment = s->segment;
    *length = s->synced + (int64_t)s->wait.len;
}

void segfile_append(struct segfile *s, const void *data, size_t n, struct segfile_at *at)
{
    struct segfile_head h = {SEGFILE_MAGIC, (uint32_t)n, XXH3_64bits(data, n)};

    ASSERT(n <= SEGFILE_PIECE);
    if (!s->wait.len && s->synced >= SEGFILE_BYTES) {
        fsio_sys_close(s->fd);
        s->fd = -1;
        s->segment++;
        s->synced = 0;
    }
    *at = (struct segfile_at){s->segment, s->synced + (int64_t)s->wait.len, (int64_t)n, h.sum};
    buf_add(&s->wait, &h, sizeof h);
    buf_add(&s->wait, data, n);
}

int segfile_sync(struct segfile *s, struct err *e)
{
    size_t done = 0;
    int rc = buf_status(&s->wait);

    if (rc != STATUS_OK) {
        return ERR(e, rc, "no memory for the ledger's answers");
    }
    rc = s->fd < 0 ? segfile_begin(s, e) : STATUS_OK;
    while (rc == STATUS_OK && done < s->wait.len) {
        long k = fsio_sys_pwrite(s->fd, s->wait.data + done, s->wait.len - done,
                                 s->synced + (int64_t)done);
        if (k < 0 && errno == EINTR) {
            continue;
        }
        if (k < 0) {
            rc = segfile_fail(s, "write", e);
        }
        done += k > 0 ? (size_t)k : 0;
    }
    if (rc == STATUS_OK && s->wait.len && fsio_sys_sync(s->fd) != 0) {
        rc = segfile_fail(s, "sync", e);
    }
    if (rc == STATUS_OK) {
        s->synced += (int64_t)s->wait.len;
        buf_clear(&s->wait);
    } else if (s->fd >= 0 && fsio_sys_truncate(s->fd, s->synced) != 0) {
        log_debug(LEDGER, "the torn end of a segment stays until the next try");
    }
    return rc;
}

int segfile_read(struct segfile *s, const struct segfile_at *at, void **data, struct err *e)
{
    struct segfile_head h;
    char *path = segfile_path(s, at->segment), *p = NULL;
    int rc = STATUS_OK;

    if (s->read_fd < 0 || s->read_segment != at->segment) {
        if (s->read_fd >= 0) {
            fsio_sys_close(s->read_fd);
        }
        s->read_segment = at->segment;
        s->read_fd = fsio_sys_open(path, O_RDONLY);
    }
    if (s->read_fd < 0) {
        rc = ERR(e, STATUS_NOTFOUND, "cannot open %s: %s", path, strerror(errno));
        goto out;
    }
    p = at->length >= 0 && at->length <= SEGFILE_PIECE ? mem_try((size_t)at->length + 1) : NULL;
    if (!p || fsio_sys_read(s->read_fd, &h, sizeof h, at->offset) != (long)sizeof h ||
        h.magic != SEGFILE_MAGIC || h.length != at->length || h.sum != at->sum ||
        fsio_sys_read(s->read_fd, p, h.length, at->offset + (int64_t)sizeof h) != (long)h.length ||
        XXH3_64bits(p, h.length) != h.sum) {
        rc =
            ERR(e, STATUS_FORMAT, "%s: the %lld bytes from %lld on are not those that were written",
                path, (long long)at->length, (long long)at->offset);
        mem_free(p);
        goto out;
    }
    *data = p;
out:
    mem_free(path);
    return rc;
}

int segfile_remove(struct segfile *s, int64_t segment, struct err *e)
{
    char *path = segfile_path(s, segment);
    int rc = STATUS_OK;

    if (s->read_fd >= 0 && s->read_segment == segment) {
        fsio_sys_close(s->read_fd);
        s->read_fd = -1;
    }
    if (segment != s->segment && fsio_sys_unlink(path) != 0 && errno != ENOENT) {
        rc = ERR(e, STATUS_IO, "cannot remove %s: %s", path, strerror(errno));
    }
    mem_free(path);
    return rc;
}
