/* Owns which disk is behind a path: the operating system's, or one that stands in for it
 * (fsio_sys_use), and which calls of a test's choice fail. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/fsio.h"

static const struct fsio_disk *fsio_sys_disk;

void fsio_sys_use(const struct fsio_disk *d)
{
    fsio_sys_disk = d;
}

int fsio_sys_simulated(const char *path)
{
    const struct fsio_disk *d = fsio_sys_disk;
    size_t n = d ? strlen(d->root) : 0;

    return d && strncmp(path, d->root, n) == 0 && (!path[n] || path[n] == '/');
}

/* The disk that gave the file's number; NULL: the system. */
static const struct fsio_disk *fsio_sys_of(int fd)
{
    return fd >= FSIO_DISK_FD ? fsio_sys_disk : NULL;
}

int fsio_sys_open(const char *path, int flags)
{
    return fsio_sys_simulated(path) ? fsio_sys_disk->open(fsio_sys_disk->self, path, flags)
                                    : open(path, flags | O_CLOEXEC, 0666);
}

int fsio_sys_close(int fd)
{
    const struct fsio_disk *d = fsio_sys_of(fd);
    return d ? d->close(d->self, fd) : close(fd);
}

long fsio_sys_read(int fd, void *p, size_t n, int64_t at)
{
    const struct fsio_disk *d = fsio_sys_of(fd);
    return d ? d->read(d->self, fd, p, n, at) : pread(fd, p, n, at);
}

long fsio_sys_write(int fd, const void *p, size_t n)
{
    const struct fsio_disk *d = fsio_sys_of(fd);

    if (fsio_fails(FSIO_WRITE)) {
        return -1;
    }
    return d ? d->write(d->self, fd, p, n, -1) : write(fd, p, n);
}

long fsio_sys_pwrite(int fd, const void *p, size_t n, int64_t at)
{
    const struct fsio_disk *d = fsio_sys_of(fd);

    if (fsio_fails(FSIO_WRITE)) {
        return -1;
    }
    return d ? d->write(d->self, fd, p, n, at) : pwrite(fd, p, n, at);
}

int fsio_sys_sync(int fd)
{
    const struct fsio_disk *d = fsio_sys_of(fd);

    if (fsio_fails(FSIO_SYNC)) {
        return -1;
    }
    return d ? d->sync(d->self, fd) : fsync(fd);
}

int fsio_sys_truncate(int fd, int64_t size)
{
    const struct fsio_disk *d = fsio_sys_of(fd);
    return d ? d->truncate(d->self, fd, size) : ftruncate(fd, size);
}

int64_t fsio_sys_size(int fd)
{
    const struct fsio_disk *d = fsio_sys_of(fd);
    struct stat st;

    if (d) {
        return d->size(d->self, fd);
    }
    return fstat(fd, &st) == 0 ? (int64_t)st.st_size : -1;
}

int fsio_sys_lock(int fd)
{
    return fsio_sys_of(fd) ? 0 : flock(fd, LOCK_EX | LOCK_NB);
}

int fsio_sys_rename(const char *from, const char *to)
{
    if (fsio_fails(FSIO_RENAME)) {
        return -1;
    }
    return fsio_sys_simulated(to) ? fsio_sys_disk->rename(fsio_sys_disk->self, from, to, 0)
                                  : rename(from, to);
}

int fsio_sys_exchange(const char *a, const char *b)
{
    if (fsio_fails(FSIO_RENAME)) {
        return -1;
    }
    return fsio_sys_simulated(b) ? fsio_sys_disk->rename(fsio_sys_disk->self, a, b, 1)
                                 : renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE);
}

int fsio_sys_unlink(const char *path)
{
    return fsio_sys_simulated(path) ? fsio_sys_disk->unlink(fsio_sys_disk->self, path)
                                    : unlink(path);
}

int fsio_sys_rmdir(const char *path)
{
    return fsio_sys_simulated(path) ? fsio_sys_disk->unlink(fsio_sys_disk->self, path)
                                    : rmdir(path);
}

int fsio_sys_mkdir(const char *path)
{
    return fsio_sys_simulated(path) ? fsio_sys_disk->mkdir(fsio_sys_disk->self, path)
                                    : mkdir(path, 0777);
}

int64_t fsio_sys_room(const char *path)
{
    struct statvfs st;

    if (fsio_sys_simulated(path)) {
        return fsio_sys_disk->room(fsio_sys_disk->self);
    }
    return statvfs(path, &st) == 0 ? (int64_t)st.f_bavail * (int64_t)st.f_frsize : -1;
}

enum fsio_kind fsio_sys_kind(const char *path, int follow)
{
    struct stat st;

    if (fsio_sys_simulated(path)) {
        return fsio_sys_disk->kind(fsio_sys_disk->self, path);
    }
    if ((follow ? stat(path, &st) : lstat(path, &st)) != 0) {
        return FSIO_NOTHING;
    }
    return S_ISDIR(st.st_mode) ? FSIO_FOLDER : S_ISREG(st.st_mode) ? FSIO_FILE : FSIO_OTHER;
}

int fsio_sys_list(const char *path, void (*fn)(void *arg, const char *name), void *arg)
{
    const struct fsio_disk *s = fsio_sys_disk;
    struct dirent *de;
    DIR *d;

    if (fsio_sys_simulated(path)) {
        return s->list(s->self, path, fn, arg);
    }
    d = opendir(path);
    if (!d) {
        return -1;
    }
    while ((de = readdir(d))) {
        if (strcmp(de->d_name, ".") != 0 && strcmp(de->d_name, "..") != 0) {
            fn(arg, de->d_name);
        }
    }
    closedir(d);
    return 0;
}
