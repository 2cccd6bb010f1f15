/* Files: whole reads, maps, atomic writes, folders. Every error names the path and the cause. */
#ifndef BASE_FSIO_H
#define BASE_FSIO_H

#include <stddef.h>
#include <stdint.h>

struct err;

/* Whole file into memory, NUL after the last byte; at most `max` bytes. Free with mem_free. */
int fsio_read(const char *path, size_t max, char **data, size_t *len, struct err *e);

/* Read-only map of a whole file. Unmap with fsio_unmap. An empty file maps to "" with len 0. */
int fsio_map(const char *path, const uint8_t **data, size_t *len, struct err *e);
/* Lets go of a map's pages in [p, p + n): they count as this process's memory no longer and come
 * from the file again when they are read. */
void fsio_forget(const uint8_t *p, size_t n);
void fsio_unmap(const uint8_t *data, size_t len);

/* Writes path.tmp, syncs it, renames it over path and syncs the folder: all or nothing. */
int fsio_write_atomic(const char *path, const void *data, size_t len, struct err *e);
/* Leaves of a text file the lines that keep says 1 to, all or nothing. It gets each line in order,
 * without its end; a last one that has none goes. */
int fsio_keep_lines(const char *path, int (*keep)(void *arg, const char *line, size_t n), void *arg,
                    struct err *e);

/* A file under construction, for large output: open, append, then commit (sync + rename) or abort.
 */
struct fsio_out {
    int fd;
    char *path, *tmp;
    char *buf;
    size_t used;
    uint64_t written;
};
int fsio_out_open(struct fsio_out *o, const char *path, struct err *e);
int fsio_out_write(struct fsio_out *o, const void *p, size_t n, struct err *e);
int fsio_out_commit(struct fsio_out *o, struct err *e); /* closes in any case */
void fsio_out_abort(struct fsio_out *o);                /* closes and removes the temporary file */

int fsio_mkdirs(const char *path, struct err *e); /* like mkdir -p */
/* STATUS_INPUT when the folder, or the nearest above it that is there, is none that this user may
 * write in: what no waiting mends. */
int fsio_may_write(const char *dir, struct err *e);
int fsio_rename_dir(const char *from, const char *to, struct err *e); /* and syncs the parent */
/* Puts folder `from` in the place of `to` in one step, so that `to` is the old or the new one at
 * every instant; the old contents are removed afterwards. `to` need not exist. */
int fsio_replace_dir(const char *from, const char *to, struct err *e);
int fsio_remove_tree(const char *path, struct err *e); /* a missing path is fine */
int fsio_sync_dir(const char *path, struct err *e);
/* Names of a folder, without . and .., in ascending order; also the caller's after a failure. */
struct fsio_names {
    char **name;
    size_t n, cap;
};
int fsio_list(const char *path, struct fsio_names *out, struct err *e);
void fsio_names_fini(struct fsio_names *l);
int fsio_is_dir(const char *path);
int fsio_is_file(const char *path);
/* The path, or the nearest above it that is there; free with mem_free. */
char *fsio_nearest(const char *path);
/* Bytes of a folder's files, not of those in folders below it; 0 for a missing one. */
int64_t fsio_folder_bytes(const char *dir);
/* Bytes that this user may still write where path is; -1 when the system does not say. */
int64_t fsio_room(const char *path);
/* 1: the file system is behind a network, or behind a program of its own. */
int fsio_is_remote(const char *path);

/* ---- the calls below ---- */

enum fsio_kind { FSIO_NOTHING, FSIO_FILE, FSIO_FOLDER, FSIO_OTHER };

/* A disk that stands in for the system's, for all paths under its root. The calls do as the
 * system's, errno included; numbers of files are FSIO_DISK_FD or above. Of `open` the flags
 * O_CREAT, O_TRUNC and O_DIRECTORY count. write: at -1 is behind the last one. rename: exchange 1
 * lets both change places. unlink takes empty folders too. */
#define FSIO_DISK_FD (1 << 24)
struct fsio_disk {
    const char *root;
    int (*open)(void *self, const char *path, int flags);
    int (*close)(void *self, int fd);
    long (*read)(void *self, int fd, void *p, size_t n, int64_t at);
    long (*write)(void *self, int fd, const void *p, size_t n, int64_t at);
    int (*sync)(void *self, int fd);
    int (*truncate)(void *self, int fd, int64_t size);
    int64_t (*size)(void *self, int fd);
    int (*rename)(void *self, const char *from, const char *to, int exchange);
    int (*unlink)(void *self, const char *path);
    int (*mkdir)(void *self, const char *path);
    enum fsio_kind (*kind)(void *self, const char *path);
    int (*list)(void *self, const char *path, void (*fn)(void *arg, const char *name), void *arg);
    int64_t (*room)(void *self); /* bytes */
    void *self;
};
/* Borrowed until the next call; NULL: the system's alone. Process-wide, before files are open. */
void fsio_sys_use(const struct fsio_disk *d);
int fsio_sys_simulated(const char *path); /* 1: it is under the root of such a disk */

/* Like the system's calls, and all that this file's functions write with: a test may have one of
 * them fail. */
enum fsio_op { FSIO_WRITE, FSIO_SYNC, FSIO_RENAME, FSIO_NOPS };
int fsio_sys_open(const char *path, int flags);
int fsio_sys_close(int fd);
long fsio_sys_read(int fd, void *p, size_t n, int64_t at);
long fsio_sys_write(int fd, const void *p, size_t n);
long fsio_sys_pwrite(int fd, const void *p, size_t n, int64_t at);
int fsio_sys_sync(int fd);
int fsio_sys_truncate(int fd, int64_t size);
int64_t fsio_sys_size(int fd);
int fsio_sys_lock(int fd); /* for this process alone, not waiting: flock */
int fsio_sys_rename(const char *from, const char *to);
int fsio_sys_exchange(const char *a, const char *b);
int fsio_sys_unlink(const char *path);
int fsio_sys_rmdir(const char *path);
int fsio_sys_mkdir(const char *path);
/* follow 0: a link is FSIO_OTHER; errno is set with FSIO_NOTHING */
enum fsio_kind fsio_sys_kind(const char *path, int follow);
int64_t fsio_sys_room(const char *path); /* as fsio_room */
int fsio_sys_list(const char *path, void (*fn)(void *arg, const char *name), void *arg);
/* The k-th such call from now on fails, and the `times` - 1 behind it: a full disk for writes, an
 * error of the device for the others. k 0: none. Process-wide. */
void fsio_fail_at(enum fsio_op op, int64_t k, int64_t times);
/* Counts a call that somebody else makes; 1: it is to fail, errno says how. */
int fsio_fails(enum fsio_op op);
int fsio_may_fail(void); /* 1: fsio_fail_at was called */
/* "write:K", "sync:K:TIMES", "rename:K": for fsio_fail_at. STATUS_INPUT for other texts. */
int fsio_fail_parse(const char *text, struct err *e);

/* "a" + "b" -> "a/b"; free with mem_free. */
char *fsio_join(const char *a, const char *b);

#endif
