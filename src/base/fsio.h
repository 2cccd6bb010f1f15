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

int fsio_mkdirs(const char *path, struct err *e);                     /* like mkdir -p */
int fsio_rename_dir(const char *from, const char *to, struct err *e); /* and syncs the parent */
/* Puts folder `from` in the place of `to` in one step, so that `to` is the old or the new one at
 * every instant; the old contents are removed afterwards. `to` need not exist. */
int fsio_replace_dir(const char *from, const char *to, struct err *e);
int fsio_remove_tree(const char *path, struct err *e); /* a missing path is fine */
int fsio_sync_dir(const char *path, struct err *e);
int fsio_is_dir(const char *path);
int fsio_is_file(const char *path);
/* "a" + "b" -> "a/b"; free with mem_free. */
char *fsio_join(const char *a, const char *b);

#endif
