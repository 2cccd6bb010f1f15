/* Owns SQLite's file functions over the fsio_sys calls. The index of a WAL is kept in memory and
 * ends with the connection, as after the death of the only process that had the database open: the
 * next one makes it anew from the WAL. */
#include "run/ledger_disk.h"

#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <string.h>

#include "base/fsio.h"
#include "base/mem.h"

#define DISK_REGIONS 64 /* of a WAL's index, 32 KiB each */

struct ledger_disk_file {
    sqlite3_file base;
    int fd;
    char *gone; /* removed when it is closed, or NULL */
    char *dir;  /* synced with its first sync, as SQLite's own functions do for journals; or NULL */
    void *region[DISK_REGIONS];
};

static int fd_of(sqlite3_file *f)
{
    return ((struct ledger_disk_file *)f)->fd;
}

static int disk_shm_unmap(sqlite3_file *f, int remove)
{
    struct ledger_disk_file *x = (struct ledger_disk_file *)f;
    (void)remove;
    for (int i = 0; i < DISK_REGIONS; i++) {
        mem_free(x->region[i]);
        x->region[i] = NULL;
    }
    return SQLITE_OK;
}

static int disk_close(sqlite3_file *f)
{
    struct ledger_disk_file *x = (struct ledger_disk_file *)f;

    disk_shm_unmap(f, 0);
    fsio_sys_close(x->fd);
    if (x->gone) {
        fsio_sys_unlink(x->gone);
    }
    mem_free(x->gone);
    mem_free(x->dir);
    return SQLITE_OK;
}

static int disk_read(sqlite3_file *f, void *p, int n, sqlite3_int64 at)
{
    long got = fsio_sys_read(fd_of(f), p, (size_t)n, at);

    if (got < 0) {
        return SQLITE_IOERR_READ;
    }
    if (got < n) {
        memset((char *)p + got, 0, (size_t)(n - got));
        return SQLITE_IOERR_SHORT_READ;
    }
    return SQLITE_OK;
}

static int disk_write(sqlite3_file *f, const void *p, int n, sqlite3_int64 at)
{
    if (fsio_sys_pwrite(fd_of(f), p, (size_t)n, at) == n) {
        return SQLITE_OK;
    }
    return errno == ENOSPC ? SQLITE_FULL : SQLITE_IOERR_WRITE;
}

static int disk_truncate(sqlite3_file *f, sqlite3_int64 size)
{
    return fsio_sys_truncate(fd_of(f), size) == 0 ? SQLITE_OK : SQLITE_IOERR_TRUNCATE;
}

static int disk_sync(sqlite3_file *f, int flags)
{
    struct ledger_disk_file *x = (struct ledger_disk_file *)f;

    (void)flags;
    if (fsio_sys_sync(x->fd) != 0) {
        return SQLITE_IOERR_FSYNC;
    }
    if (x->dir && fsio_sync_dir(x->dir, NULL) != 0) {
        return SQLITE_IOERR_DIR_FSYNC;
    }
    mem_free(x->dir);
    x->dir = NULL;
    return SQLITE_OK;
}

static int disk_size(sqlite3_file *f, sqlite3_int64 *size)
{
    *size = fsio_sys_size(fd_of(f));
    return *size >= 0 ? SQLITE_OK : SQLITE_IOERR_FSTAT;
}

static int disk_lock(sqlite3_file *f, int level)
{
    (void)f, (void)level;
    return SQLITE_OK;
}

static int disk_reserved(sqlite3_file *f, int *out)
{
    (void)f;
    *out = 0;
    return SQLITE_OK;
}

static int disk_control(sqlite3_file *f, int op, void *arg)
{
    (void)f, (void)op, (void)arg;
    return SQLITE_NOTFOUND;
}

static int disk_sector(sqlite3_file *f)
{
    (void)f;
    return 4096;
}

static int disk_device(sqlite3_file *f)
{
    (void)f;
    return SQLITE_IOCAP_POWERSAFE_OVERWRITE;
}

static int disk_shm_map(sqlite3_file *f, int page, int size, int extend, void volatile **p)
{
    struct ledger_disk_file *x = (struct ledger_disk_file *)f;

    *p = NULL;
    if (page >= DISK_REGIONS) {
        return SQLITE_FULL;
    }
    if (!x->region[page] && extend) {
        x->region[page] = mem_alloc((size_t)size);
    }
    *p = x->region[page];
    return SQLITE_OK;
}

static int disk_shm_lock(sqlite3_file *f, int offset, int n, int flags)
{
    (void)f, (void)offset, (void)n, (void)flags;
    return SQLITE_OK;
}

static void disk_shm_barrier(sqlite3_file *f)
{
    (void)f;
}

static const sqlite3_io_methods ledger_disk_methods = {
    .iVersion = 2,
    .xClose = disk_close,
    .xRead = disk_read,
    .xWrite = disk_write,
    .xTruncate = disk_truncate,
    .xSync = disk_sync,
    .xFileSize = disk_size,
    .xLock = disk_lock,
    .xUnlock = disk_lock,
    .xCheckReservedLock = disk_reserved,
    .xFileControl = disk_control,
    .xSectorSize = disk_sector,
    .xDeviceCharacteristics = disk_device,
    .xShmMap = disk_shm_map,
    .xShmLock = disk_shm_lock,
    .xShmBarrier = disk_shm_barrier,
    .xShmUnmap = disk_shm_unmap,
};

static char *disk_folder(const char *name)
{
    return mem_strndup(name, (size_t)(strrchr(name, '/') - name));
}

static int disk_open(sqlite3_vfs *v, const char *name, sqlite3_file *f, int flags, int *out)
{
    struct ledger_disk_file *x = (struct ledger_disk_file *)f;
    int made;
    (void)v;

    memset(x, 0, sizeof *x);
    if (!name) {
        return SQLITE_CANTOPEN; /* a spill of a large query: the ledger has none */
    }
    made = flags & (SQLITE_OPEN_MAIN_JOURNAL | SQLITE_OPEN_WAL);
    x->fd = fsio_sys_open(name, O_RDWR | (flags & SQLITE_OPEN_CREATE ? O_CREAT : 0));
    if (x->fd < 0) {
        return errno == ENOSPC ? SQLITE_FULL : SQLITE_CANTOPEN;
    }
    x->gone = flags & SQLITE_OPEN_DELETEONCLOSE ? mem_strdup(name) : NULL;
    x->dir = made ? disk_folder(name) : NULL;
    x->base.pMethods = &ledger_disk_methods;
    if (out) {
        *out = flags;
    }
    return SQLITE_OK;
}

static int disk_delete(sqlite3_vfs *v, const char *name, int sync_dir)
{
    (void)v;

    if (fsio_sys_unlink(name) != 0) {
        return errno == ENOENT ? SQLITE_IOERR_DELETE_NOENT : SQLITE_IOERR_DELETE;
    }
    if (sync_dir) {
        char *dir = disk_folder(name);
        int rc = fsio_sync_dir(dir, NULL);
        mem_free(dir);
        return rc == 0 ? SQLITE_OK : SQLITE_IOERR_DIR_FSYNC;
    }
    return SQLITE_OK;
}

/* An empty file is none, as SQLite has it: a journal without content needs no rollback. */
static int disk_access(sqlite3_vfs *v, const char *name, int flags, int *out)
{
    int fd = fsio_is_file(name) ? fsio_sys_open(name, O_RDONLY) : -1;
    (void)v;

    *out = fd >= 0 && (flags != SQLITE_ACCESS_EXISTS || fsio_sys_size(fd) > 0);
    if (fd >= 0) {
        fsio_sys_close(fd);
    }
    return SQLITE_OK;
}

static int disk_full_name(sqlite3_vfs *v, const char *name, int n, char *out)
{
    (void)v;
    sqlite3_snprintf(n, out, "%s", name);
    return SQLITE_OK;
}

static int disk_sleep(sqlite3_vfs *v, int us)
{
    (void)v;
    return us;
}

const char *ledger_disk(void)
{
    static sqlite3_vfs v;
    static int made;

    if (!made) {
        v = *sqlite3_vfs_find(NULL);
        v.pNext = NULL;
        v.zName = "miles-disk";
        v.szOsFile = (int)sizeof(struct ledger_disk_file);
        v.xOpen = disk_open;
        v.xDelete = disk_delete;
        v.xAccess = disk_access;
        v.xFullPathname = disk_full_name;
        v.xSleep = disk_sleep;
        made = sqlite3_vfs_register(&v, 0) == SQLITE_OK;
    }
    return made ? v.zName : NULL;
}
