/* Owns temporary files. They have no name from the first moment on (O_TMPFILE, or unlinked at
 * once), so nothing is left after a kill. */
#include "rl/spool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/conf.h"
#include "base/mem.h"
#include "base/status.h"

#define SPOOL_BUF ((size_t)1 << 16)

static int spool_in(const char *dir)
{
    char path[1024];
    int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

    if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
        snprintf(path, sizeof path, "%.900s/miles-XXXXXX", dir);
        fd = mkostemp(path, O_CLOEXEC);
        if (fd >= 0) {
            unlink(path);
        }
    }
    return fd;
}

int64_t spool_limit(int64_t packed)
{
    return packed > INT64_MAX / 200 ? INT64_MAX / 2 : ((int64_t)1 << 30) + packed * 100;
}

int spool_open(struct spool *s, const char *what, int64_t limit, struct err *e)
{
    const char *dirs[] = {conf_env("TMPDIR"), "/var/tmp", "/tmp"};

    memset(s, 0, sizeof *s);
    s->fd = -1;
    s->what = what;
    s->limit = limit;
    for (size_t i = 0; i < sizeof dirs / sizeof dirs[0] && s->fd < 0; i++) {
        s->fd = dirs[i] ? spool_in(dirs[i]) : -1;
    }
    if (s->fd < 0) {
        return ERR(e, STATUS_IO, "%.400s: no temporary file in TMPDIR, /var/tmp or /tmp: %s", what,
                   strerror(errno));
    }
    s->buf = mem_alloc(SPOOL_BUF);
    return STATUS_OK;
}

static int spool_flush(struct spool *s, struct err *e)
{
    size_t at = 0;
    while (at < s->used) {
        ssize_t n = write(s->fd, s->buf + at, s->used - at);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return ERR(e, STATUS_IO, "%.400s: cannot unpack into a temporary file (%lld bytes): %s",
                       s->what, (long long)s->written, strerror(errno));
        }
        at += (size_t)n;
    }
    s->used = 0;
    return STATUS_OK;
}

int spool_write(struct spool *s, const void *p, size_t n, struct err *e)
{
    const char *from = p;

    if (n > (size_t)(s->limit - s->written)) {
        return ERR(e, STATUS_INPUT, "%.400s: unpacks to more than %lld bytes, which is refused",
                   s->what, (long long)s->limit);
    }
    s->written += (int64_t)n;
    while (n > 0) {
        size_t k = n < SPOOL_BUF - s->used ? n : SPOOL_BUF - s->used;
        int rc;
        memcpy(s->buf + s->used, from, k);
        s->used += k;
        from += k;
        n -= k;
        rc = s->used == SPOOL_BUF ? spool_flush(s, e) : STATUS_OK;
        if (rc != STATUS_OK) {
            return rc;
        }
    }
    return STATUS_OK;
}

int spool_take(struct spool *s, struct err *e)
{
    int fd = spool_flush(s, e) == STATUS_OK ? s->fd : -1;
    if (fd >= 0) {
        s->fd = -1;
    }
    return fd;
}

void spool_close(struct spool *s)
{
    if (s->fd >= 0) {
        close(s->fd);
    }
    mem_free(s->buf);
    memset(s, 0, sizeof *s);
    s->fd = -1;
}
