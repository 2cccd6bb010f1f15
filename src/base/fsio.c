/* Owns how bytes reach the disk: a file is complete under its name or not there at all. */
#include "base/fsio.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/status.h"

#define FSIO_BUF ((size_t)1 << 20)

/* Calls until the first that fails, and the one behind the last; both count down. */
static atomic_llong fsio_first[FSIO_NOPS], fsio_last[FSIO_NOPS];
static atomic_int fsio_faulty;

void fsio_fail_at(enum fsio_op op, int64_t k, int64_t times)
{
    atomic_store(&fsio_first[op], k);
    atomic_store(&fsio_last[op], k ? k + times : 0);
    atomic_store(&fsio_faulty, 1);
}

int fsio_may_fail(void)
{
    return atomic_load(&fsio_faulty);
}

int fsio_fails(enum fsio_op op)
{
    long long last;

    if (!atomic_load(&fsio_faulty) || atomic_load(&fsio_last[op]) <= 0) {
        return 0;
    }
    last = atomic_fetch_sub(&fsio_last[op], 1) - 1;
    if (atomic_fetch_sub(&fsio_first[op], 1) - 1 > 0 || last <= 0) {
        return 0;
    }
    errno = op == FSIO_WRITE ? ENOSPC : EIO;
    return 1;
}

int fsio_fail_parse(const char *text, struct err *e)
{
    static const char *const names[FSIO_NOPS] = {"write", "sync", "rename"};
    const char *colon = strchr(text, ':');
    long long k = 0, times = 1;
    int used = 0;

    for (int op = 0; colon && op < FSIO_NOPS; op++) {
        if (strncmp(text, names[op], (size_t)(colon - text)) != 0 || names[op][colon - text] != 0) {
            continue;
        }
        if ((sscanf(colon, ":%lld%n", &k, &used) == 1 && !colon[used]) ||
            (sscanf(colon, ":%lld:%lld%n", &k, &times, &used) == 2 && !colon[used])) {
            fsio_fail_at((enum fsio_op)op, k, times);
            return STATUS_OK;
        }
    }
    return ERR(e, STATUS_INPUT, "%s is not write:K, sync:K or rename:K, with :TIMES behind it",
               text);
}

int64_t fsio_room(const char *path)
{
    return fsio_sys_room(path);
}

int fsio_is_remote(const char *path)
{
    static const uint32_t magic[] = {
        0x6969,     /* NFS */
        0xff534d42, /* CIFS */
        0xfe534d42, /* SMB2 */
        0x517b,     /* SMB */
        0x65735546, /* FUSE: sshfs, gcsfuse, s3fs and others */
        0x0bd00bd0, /* Lustre */
        0x47504653, /* GPFS */
        0x19830326, /* BeeGFS */
        0x00c36400, /* Ceph */
        0x5346414f, /* AFS */
        0x01021997, /* 9P */
        0x7461636f, /* OCFS2 */
        0x01161970, /* GFS2 */
        0x73757245, /* Coda */
    };
    struct statfs st;

    for (size_t i = 0; statfs(path, &st) == 0 && i < sizeof magic / sizeof magic[0]; i++) {
        if ((uint32_t)st.f_type == magic[i]) {
            return 1;
        }
    }
    return 0;
}

static int fsio_fail(struct err *e, const char *what, const char *path)
{
    return ERR(e, errno == ENOENT ? STATUS_NOTFOUND : STATUS_IO, "cannot %s %s: %s", what, path,
               strerror(errno));
}

char *fsio_join(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    char *p = mem_alloc(n + m + 2);
    memcpy(p, a, n);
    if (n && p[n - 1] != '/') {
        p[n++] = '/';
    }
    memcpy(p + n, b, m + 1);
    return p;
}

int fsio_is_dir(const char *path)
{
    return fsio_sys_kind(path, 1) == FSIO_FOLDER;
}

int fsio_is_file(const char *path)
{
    return fsio_sys_kind(path, 1) == FSIO_FILE;
}

int fsio_read(const char *path, size_t max, char **data, size_t *len, struct err *e)
{
    int fd = fsio_sys_open(path, O_RDONLY | O_NONBLOCK); /* a pipe's open would wait */
    char *p = NULL;
    size_t n = 0;
    int64_t size;
    int rc = STATUS_OK;

    if (fd < 0) {
        return fsio_fail(e, "open", path);
    }
    if (!fsio_is_file(path)) {
        rc = ERR(e, STATUS_INPUT, "%s is %s, a file is needed", path,
                 fsio_is_dir(path) ? "a folder" : "a pipe or a device");
        goto out;
    }
    size = fsio_sys_size(fd);
    if (size < 0) {
        rc = fsio_fail(e, "stat", path);
        goto out;
    }
    if ((uint64_t)size > max) {
        rc = ERR(e, STATUS_INPUT, "%s has %lld bytes, at most %zu are read", path, (long long)size,
                 max);
        goto out;
    }
    p = mem_try((size_t)size + 1);
    if (!p) {
        rc = ERR(e, STATUS_NOMEM, "no memory to read %s (%lld bytes)", path, (long long)size);
        goto out;
    }
    while (n < (size_t)size) {
        long got = fsio_sys_read(fd, p + n, (size_t)size - n, (int64_t)n);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            rc = fsio_fail(e, "read", path);
            goto out;
        }
        if (got == 0) {
            break;
        }
        n += (size_t)got;
    }
    *data = p;
    *len = n;
    p = NULL;
out:
    mem_free(p);
    fsio_sys_close(fd);
    return rc;
}

int fsio_map(const char *path, const uint8_t **data, size_t *len, struct err *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    void *p;

    if (fd < 0) {
        return fsio_fail(e, "open", path);
    }
    if (fstat(fd, &st) != 0) {
        close(fd);
        return fsio_fail(e, "stat", path);
    }
    if (!S_ISREG(st.st_mode)) {
        close(fd);
        return ERR(e, STATUS_INPUT, "%s is not a regular file", path);
    }
    if (st.st_size == 0) {
        close(fd);
        *data = (const uint8_t *)"";
        *len = 0;
        return STATUS_OK;
    }
    p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (p == MAP_FAILED) {
        return fsio_fail(e, "map", path);
    }
    *data = p;
    *len = (size_t)st.st_size;
    return STATUS_OK;
}

void fsio_forget(const uint8_t *p, size_t n)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = ((uintptr_t)p + page - 1) / page * page, to = ((uintptr_t)p + n) / page * page;
    if (from < to) {
        madvise((void *)from, to - from, MADV_DONTNEED);
    }
}

void fsio_unmap(const uint8_t *data, size_t len)
{
    if (data && len) {
        munmap((void *)(uintptr_t)data, len);
    }
}

int fsio_sync_dir(const char *path, struct err *e)
{
    int fd = fsio_sys_open(path, O_RDONLY | O_DIRECTORY);
    int rc = STATUS_OK;
    if (fd < 0) {
        return fsio_fail(e, "open folder", path);
    }
    if (fsio_sys_sync(fd) != 0 && errno != EINVAL) {
        rc = fsio_fail(e, "sync folder", path);
    }
    fsio_sys_close(fd);
    return rc;
}

/* Syncs the folder that holds path. */
static int fsio_sync_parent(const char *path, struct err *e)
{
    const char *slash = strrchr(path, '/');
    char *dir =
        slash ? mem_strndup(path, (size_t)(slash - path) + (slash == path)) : mem_strdup(".");
    int rc = fsio_sync_dir(dir, e);
    mem_free(dir);
    return rc;
}

int fsio_out_open(struct fsio_out *o, const char *path, struct err *e)
{
    size_t n = strlen(path);
    memset(o, 0, sizeof *o);
    o->path = mem_strdup(path);
    o->tmp = mem_alloc(n + 5);
    memcpy(o->tmp, path, n);
    memcpy(o->tmp + n, ".tmp", 5);
    o->fd = fsio_sys_open(o->tmp, O_WRONLY | O_CREAT | O_TRUNC);
    if (o->fd < 0) {
        int rc = fsio_fail(e, "create", o->tmp);
        mem_free(o->path);
        mem_free(o->tmp);
        memset(o, 0, sizeof *o);
        o->fd = -1;
        return rc;
    }
    o->buf = mem_alloc(FSIO_BUF);
    return STATUS_OK;
}

static int fsio_put(struct fsio_out *o, const char *p, size_t n, struct err *e)
{
    while (n) {
        ssize_t k = fsio_sys_write(o->fd, p, n);
        if (k < 0 && errno == EINTR) {
            continue;
        }
        if (k < 0) {
            return fsio_fail(e, "write", o->tmp);
        }
        p += k;
        n -= (size_t)k;
    }
    return STATUS_OK;
}

int fsio_out_write(struct fsio_out *o, const void *p, size_t n, struct err *e)
{
    int rc = STATUS_OK;
    o->written += n;
    if (o->used + n > FSIO_BUF) {
        rc = fsio_put(o, o->buf, o->used, e);
        o->used = 0;
    }
    if (rc == STATUS_OK && n > FSIO_BUF) {
        return fsio_put(o, p, n, e);
    }
    if (rc == STATUS_OK) {
        memcpy(o->buf + o->used, p, n);
        o->used += n;
    }
    return rc;
}

static void fsio_out_free(struct fsio_out *o)
{
    mem_free(o->path);
    mem_free(o->tmp);
    mem_free(o->buf);
    memset(o, 0, sizeof *o);
    o->fd = -1;
}

int fsio_out_commit(struct fsio_out *o, struct err *e)
{
    int rc = fsio_put(o, o->buf, o->used, e);
    if (rc == STATUS_OK && fsio_sys_sync(o->fd) != 0) {
        rc = fsio_fail(e, "sync", o->tmp);
    }
    if (fsio_sys_close(o->fd) != 0 && rc == STATUS_OK) {
        rc = fsio_fail(e, "close", o->tmp);
    }
    if (rc == STATUS_OK && fsio_sys_rename(o->tmp, o->path) != 0) {
        rc = fsio_fail(e, "rename to", o->path);
    }
    if (rc == STATUS_OK) {
        rc = fsio_sync_parent(o->path, e);
    } else {
        fsio_sys_unlink(o->tmp);
    }
    fsio_out_free(o);
    return rc;
}

void fsio_out_abort(struct fsio_out *o)
{
    if (o->fd >= 0 && o->tmp) {
        fsio_sys_close(o->fd);
        fsio_sys_unlink(o->tmp);
        fsio_out_free(o);
    }
}

int fsio_write_atomic(const char *path, const void *data, size_t len, struct err *e)
{
    struct fsio_out o;
    int rc = fsio_out_open(&o, path, e);
    if (rc != STATUS_OK) {
        return rc;
    }
    rc = fsio_out_write(&o, data, len, e);
    if (rc != STATUS_OK) {
        fsio_out_abort(&o);
        return rc;
    }
    return fsio_out_commit(&o, e);
}

int fsio_keep_lines(const char *path, int (*keep)(void *arg, const char *line, size_t n), void *arg,
                    struct err *e)
{
    char *text, *line, *end;
    size_t len;
    struct fsio_out out;
    int rc = fsio_read(path, (size_t)1 << 32, &text, &len, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    rc = fsio_out_open(&out, path, e);
    for (line = text; rc == STATUS_OK && (end = memchr(line, '\n', len - (size_t)(line - text)));
         line = end + 1) {
        if (keep(arg, line, (size_t)(end - line))) {
            rc = fsio_out_write(&out, line, (size_t)(end - line) + 1, e);
        }
    }
    mem_free(text);
    if (rc == STATUS_OK) {
        return fsio_out_commit(&out, e);
    }
    fsio_out_abort(&out);
    return rc;
}

int fsio_mkdirs(const char *path, struct err *e)
{
    char *p = mem_strdup(path);
    int rc = STATUS_OK;
    for (char *s = p + 1; rc == STATUS_OK; s++) {
        char c = *s;
        if (c && c != '/') {
            continue;
        }
        *s = 0;
        if (*p && fsio_sys_mkdir(p) != 0 && errno != EEXIST) {
            rc = fsio_fail(e, "create folder", p);
        }
        *s = c;
        if (!c) {
            break;
        }
    }
    if (rc == STATUS_OK && !fsio_is_dir(path)) {
        rc = ERR(e, STATUS_IO, "%s exists and is not a folder", path);
    }
    mem_free(p);
    return rc;
}

char *fsio_nearest(const char *path)
{
    char *p = mem_strdup(path), *slash;

    while (fsio_sys_kind(p, 1) == FSIO_NOTHING && errno == ENOENT) {
        slash = strrchr(p, '/');
        if (!slash) { /* the first name of a relative path */
            mem_free(p);
            return mem_strdup(".");
        }
        slash[slash == p] = 0;
    }
    return p;
}

int fsio_may_write(const char *dir, struct err *e)
{
    char *p = fsio_nearest(dir);
    enum fsio_kind kind = fsio_sys_kind(p, 1);
    int rc = STATUS_OK;

    errno = kind == FSIO_FILE || kind == FSIO_OTHER ? ENOTDIR : errno;
    if (kind != FSIO_FOLDER || (!fsio_sys_simulated(p) && access(p, W_OK | X_OK) != 0)) {
        rc = ERR(e, STATUS_INPUT, "cannot write in %s: %s", p, strerror(errno));
    }
    mem_free(p);
    return rc;
}

int fsio_rename_dir(const char *from, const char *to, struct err *e)
{
    if (fsio_sys_rename(from, to) != 0) {
        return ERR(e, STATUS_IO, "cannot rename %s to %s: %s", from, to, strerror(errno));
    }
    return fsio_sync_parent(to, e);
}

int fsio_replace_dir(const char *from, const char *to, struct err *e)
{
    int rc;
    if (!fsio_is_dir(to)) {
        return fsio_rename_dir(from, to, e);
    }
    if (fsio_sys_exchange(from, to) != 0) {
        return ERR(e, STATUS_IO, "cannot put %s in the place of %s: %s", from, to, strerror(errno));
    }
    rc = fsio_sync_parent(to, e);
    return rc == STATUS_OK ? fsio_remove_tree(from, e) : rc;
}

static int fsio_by_name(const void *x, const void *y)
{
    return strcmp(*(char *const *)x, *(char *const *)y);
}

static void fsio_list_name(void *arg, const char *name)
{
    struct fsio_names *l = arg;

    if (l->n == l->cap) {
        ASSERT(mem_grow((void **)&l->name, &l->cap, 16, sizeof *l->name));
    }
    l->name[l->n++] = mem_strdup(name);
}

int fsio_list(const char *path, struct fsio_names *out, struct err *e)
{
    memset(out, 0, sizeof *out);
    if (fsio_sys_list(path, fsio_list_name, out) != 0) {
        return fsio_fail(e, "open folder", path);
    }
    if (out->n) {
        qsort(out->name, out->n, sizeof *out->name, fsio_by_name);
    }
    return STATUS_OK;
}

void fsio_names_fini(struct fsio_names *l)
{
    for (size_t i = 0; i < l->n; i++) {
        mem_free(l->name[i]);
    }
    mem_free(l->name);
    memset(l, 0, sizeof *l);
}

int64_t fsio_folder_bytes(const char *dir)
{
    struct fsio_names l;
    int64_t sum = 0;

    fsio_list(dir, &l, NULL);
    for (size_t i = 0; i < l.n; i++) {
        char *path = fsio_join(dir, l.name[i]);
        int fd = fsio_sys_kind(path, 0) == FSIO_FILE ? fsio_sys_open(path, O_RDONLY) : -1;
        if (fd >= 0) {
            sum += fsio_sys_size(fd);
            fsio_sys_close(fd);
        }
        mem_free(path);
    }
    fsio_names_fini(&l);
    return sum;
}

static int fsio_remove_folder(const char *path, struct err *e)
{
    struct fsio_names l;
    int rc = fsio_list(path, &l, e);

    for (size_t i = 0; rc == STATUS_OK && i < l.n; i++) {
        char *sub = fsio_join(path, l.name[i]);
        rc = fsio_remove_tree(sub, e);
        mem_free(sub);
    }
    fsio_names_fini(&l);
    if (rc == STATUS_OK && fsio_sys_rmdir(path) != 0) {
        rc = fsio_fail(e, "remove folder", path);
    }
    return rc;
}

int fsio_remove_tree(const char *path, struct err *e)
{
    switch (fsio_sys_kind(path, 0)) {
    case FSIO_NOTHING: return errno == ENOENT ? STATUS_OK : fsio_fail(e, "stat", path);
    case FSIO_FOLDER: return fsio_remove_folder(path, e);
    default: return fsio_sys_unlink(path) != 0 ? fsio_fail(e, "remove", path) : STATUS_OK;
    }
}
