/* Owns a layer over SQLite's own file functions. All is passed on; a write or a sync that a test
 * has chosen answers as a full or broken disk would. */
#include "run/ledger_vfs.h"

#include <errno.h>
#include <sqlite3.h>
#include <string.h>

#include "base/fsio.h"

struct ledger_vfs_file {
    sqlite3_file base;
    sqlite3_file *real; /* behind this struct, in the same block */
};

static sqlite3_file *real_of(sqlite3_file *f)
{
    return ((struct ledger_vfs_file *)f)->real;
}

static int vfs_close(sqlite3_file *f)
{
    return real_of(f)->pMethods->xClose(real_of(f));
}

static int vfs_read(sqlite3_file *f, void *p, int n, sqlite3_int64 at)
{
    return real_of(f)->pMethods->xRead(real_of(f), p, n, at);
}

static int vfs_write(sqlite3_file *f, const void *p, int n, sqlite3_int64 at)
{
    if (fsio_fails(FSIO_WRITE)) {
        return errno == ENOSPC ? SQLITE_FULL : SQLITE_IOERR_WRITE;
    }
    return real_of(f)->pMethods->xWrite(real_of(f), p, n, at);
}

static int vfs_truncate(sqlite3_file *f, sqlite3_int64 size)
{
    return real_of(f)->pMethods->xTruncate(real_of(f), size);
}

static int vfs_sync(sqlite3_file *f, int flags)
{
    return fsio_fails(FSIO_SYNC) ? SQLITE_IOERR_FSYNC
                                 : real_of(f)->pMethods->xSync(real_of(f), flags);
}

static int vfs_size(sqlite3_file *f, sqlite3_int64 *size)
{
    return real_of(f)->pMethods->xFileSize(real_of(f), size);
}

static int vfs_lock(sqlite3_file *f, int level)
{
    return real_of(f)->pMethods->xLock(real_of(f), level);
}

static int vfs_unlock(sqlite3_file *f, int level)
{
    return real_of(f)->pMethods->xUnlock(real_of(f), level);
}

static int vfs_reserved(sqlite3_file *f, int *out)
{
    return real_of(f)->pMethods->xCheckReservedLock(real_of(f), out);
}

static int vfs_control(sqlite3_file *f, int op, void *arg)
{
    return real_of(f)->pMethods->xFileControl(real_of(f), op, arg);
}

static int vfs_sector(sqlite3_file *f)
{
    return real_of(f)->pMethods->xSectorSize(real_of(f));
}

static int vfs_device(sqlite3_file *f)
{
    return real_of(f)->pMethods->xDeviceCharacteristics(real_of(f));
}

static int vfs_shm_map(sqlite3_file *f, int page, int size, int extend, void volatile **p)
{
    return real_of(f)->pMethods->xShmMap(real_of(f), page, size, extend, p);
}

static int vfs_shm_lock(sqlite3_file *f, int offset, int n, int flags)
{
    return real_of(f)->pMethods->xShmLock(real_of(f), offset, n, flags);
}

static void vfs_shm_barrier(sqlite3_file *f)
{
    real_of(f)->pMethods->xShmBarrier(real_of(f));
}

static int vfs_shm_unmap(sqlite3_file *f, int remove)
{
    return real_of(f)->pMethods->xShmUnmap(real_of(f), remove);
}

/* Version 2: without memory maps, so that every write is seen. */
static const sqlite3_io_methods ledger_vfs_methods = {
    .iVersion = 2,
    .xClose = vfs_close,
    .xRead = vfs_read,
    .xWrite = vfs_write,
    .xTruncate = vfs_truncate,
    .xSync = vfs_sync,
    .xFileSize = vfs_size,
    .xLock = vfs_lock,
    .xUnlock = vfs_unlock,
    .xCheckReservedLock = vfs_reserved,
    .xFileControl = vfs_control,
    .xSectorSize = vfs_sector,
    .xDeviceCharacteristics = vfs_device,
    .xShmMap = vfs_shm_map,
    .xShmLock = vfs_shm_lock,
    .xShmBarrier = vfs_shm_barrier,
    .xShmUnmap = vfs_shm_unmap,
};

static int vfs_open(sqlite3_vfs *v, const char *name, sqlite3_file *f, int flags, int *out)
{
    sqlite3_vfs *own = v->pAppData;
    struct ledger_vfs_file *x = (struct ledger_vfs_file *)f;
    int rc;

    x->real = (sqlite3_file *)(x + 1);
    memset(x->real, 0, (size_t)own->szOsFile);
    rc = own->xOpen(own, name, x->real, flags, out);
    x->base.pMethods = x->real->pMethods ? &ledger_vfs_methods : NULL;
    return rc;
}

const char *ledger_vfs(void)
{
    static sqlite3_vfs v;
    static int made;
    sqlite3_vfs *own;

    if (!fsio_may_fail()) {
        return NULL;
    }
    if (!made) {
        own = sqlite3_vfs_find(NULL);
        v = *own;
        v.zName = "miles-faults";
        v.pAppData = own;
        v.szOsFile = (int)sizeof(struct ledger_vfs_file) + own->szOsFile;
        v.xOpen = vfs_open;
        made = sqlite3_vfs_register(&v, 0) == SQLITE_OK;
    }
    return made ? v.zName : NULL;
}
