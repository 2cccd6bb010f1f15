/* Owns memory files. The mapping starts at a multiple of a huge page, because the kernel maps a
 * huge page of a file only where address and offset agree. Systems that do not give huge pages to
 * memory files by themselves (the usual setting) give them when asked with MADV_COLLAPSE. */
#include "base/region.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/status.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#define REGION_HUGE  ((size_t)2 << 20)
#define REGION_SIZED (F_SEAL_SHRINK | F_SEAL_GROW)

/* Maps the whole file where a huge page could begin. */
static int region_map(struct region *r, int prot, struct err *e)
{
    size_t room = r->size + REGION_HUGE;
    char *p = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0), *at;

    if (p == MAP_FAILED) {
        return ERR(e, STATUS_NOMEM, "no addresses for %zu bytes of shared memory: %s", r->size,
                   strerror(errno));
    }
    at = p + (REGION_HUGE - (size_t)p % REGION_HUGE) % REGION_HUGE;
    if (at > p) {
        munmap(p, (size_t)(at - p));
    }
    munmap(at + r->size, (size_t)(p + room - (at + r->size)));
    if (mmap(at, r->size, prot, MAP_SHARED | MAP_FIXED, r->fd, 0) == MAP_FAILED) {
        int why = errno;
        munmap(at, r->size);
        return ERR(e, STATUS_NOMEM, "cannot map %zu bytes of shared memory: %s", r->size,
                   strerror(why));
    }
    madvise(at, r->size, MADV_HUGEPAGE);
    r->base = at;
    r->low = 0;
    r->high = r->size;
    return STATUS_OK;
}

/* Backs all of it. Where a huge page could be, one small page is enough to ask for it; what the
 * kernel does not give comes in small pages. */
static int region_back(const struct region *r, struct err *e)
{
    int why = 0;

    for (size_t at = 0; at < r->size && !why; at += REGION_HUGE) {
        why = posix_fallocate(r->fd, (off_t)at, 4096);
    }
    if (!why) {
        madvise(r->base, r->size, MADV_COLLAPSE);
        why = posix_fallocate(r->fd, 0, (off_t)r->size);
    }
    return why ? ERR(e, STATUS_NOMEM, "no memory for %zu shared bytes: %s", r->size, strerror(why))
               : STATUS_OK;
}

/* From here on the size stays, and other mappings can only be read. */
static int region_seal(const struct region *r, struct err *e)
{
    if (fcntl(r->fd, F_ADD_SEALS, REGION_SIZED | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0 &&
        fcntl(r->fd, F_ADD_SEALS, REGION_SIZED) != 0) { /* before Linux 5.1 */
        return ERR(e, STATUS_IO, "cannot seal shared memory: %s", strerror(errno));
    }
    return STATUS_OK;
}

int region_create(struct region *r, const char *name, size_t bytes, struct err *e)
{
    int rc;

    memset(r, 0, sizeof *r);
    r->size = (bytes + REGION_HUGE - 1) / REGION_HUGE * REGION_HUGE;
    r->size = r->size ? r->size : REGION_HUGE;
    r->fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (r->fd < 0) {
        rc = ERR(e, STATUS_IO, "cannot make shared memory: %s", strerror(errno));
        memset(r, 0, sizeof *r);
        return rc;
    }
    if (ftruncate(r->fd, (off_t)r->size) != 0) {
        rc = ERR(e, STATUS_NOMEM, "no shared memory of %zu bytes: %s", r->size, strerror(errno));
        region_close(r);
        return rc;
    }
    rc = region_map(r, PROT_READ | PROT_WRITE, e);
    if (rc == STATUS_OK) {
        rc = region_back(r, e);
    }
    if (rc == STATUS_OK) {
        rc = region_seal(r, e);
    }
    if (rc != STATUS_OK) {
        region_close(r);
    }
    return rc;
}

int region_attach(struct region *r, int fd, struct err *e)
{
    struct stat st;
    int seals, rc;

    memset(r, 0, sizeof *r);
    if (fstat(fd, &st) != 0) {
        return ERR(e, STATUS_INPUT, "descriptor %d: %s", fd, strerror(errno));
    }
    seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & REGION_SIZED) != REGION_SIZED) {
        return ERR(e, STATUS_INPUT, "descriptor %d is not shared memory of a fixed size", fd);
    }
    if (st.st_size <= 0 || (size_t)st.st_size % REGION_HUGE != 0) {
        return ERR(e, STATUS_INPUT, "descriptor %d is shared memory of %lld bytes: not ours", fd,
                   (long long)st.st_size);
    }
    r->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (r->fd < 0) {
        rc = ERR(e, STATUS_IO, "descriptor %d: %s", fd, strerror(errno));
        memset(r, 0, sizeof *r);
        return rc;
    }
    r->size = (size_t)st.st_size;
    rc = region_map(r, PROT_READ, e);
    if (rc != STATUS_OK) {
        region_close(r);
    }
    return rc;
}

static size_t region_round(size_t n)
{
    return (n + REGION_ALIGN - 1) / REGION_ALIGN * REGION_ALIGN;
}

void *region_take(struct region *r, size_t n)
{
    char *p = r->base + r->low;

    if (n > r->high - r->low || region_round(n) > r->high - r->low) {
        return NULL;
    }
    r->low += region_round(n);
    return p;
}

void *region_take_top(struct region *r, size_t n)
{
    if (n > r->high - r->low || region_round(n) > r->high - r->low) {
        return NULL;
    }
    r->high -= region_round(n);
    return r->base + r->high;
}

void region_close(struct region *r)
{
    if (r->base) {
        munmap(r->base, r->size);
    }
    if (r->size) {
        close(r->fd);
    }
    memset(r, 0, sizeof *r);
}
