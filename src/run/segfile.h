/* Append-only files of checksummed pieces, for what is too bulky for a database: RUN/segments/
 * 0000.seg, 0001.seg, ... A place in them is recorded elsewhere, after the bytes are on disk.
 *
 *     segfile_open(dir, &s, &e);
 *     segfile_resume(s, number, length, &e);        where the record ends; what is behind is cut
 *     segfile_append(s, data, n, &at);              into memory
 *     segfile_sync(s, &e);                          on disk; may be called again after a failure
 *     segfile_read(s, &at, &data, &e);
 *     segfile_close(s);
 *
 * One thread, one writer (run/runlock.h). */
#ifndef RUN_SEGFILE_H
#define RUN_SEGFILE_H

#include <stddef.h>
#include <stdint.h>

struct err;
struct segfile;

struct segfile_at {
    int64_t segment, offset, length; /* offset of the piece's head, length of its data */
    uint64_t sum;                    /* xxh3 of its data */
};

int segfile_open(const char *dir, struct segfile **out, struct err *e);
void segfile_close(struct segfile *s); /* NULL is fine; what was not synced is gone */
/* Goes on behind `length` bytes of the segment. Whole pieces behind them, and a piece torn by a
 * crash, are cut off; a piece before them that is not whole is cut off too, with all that follow,
 * and *length is what is left. A segment that is not there begins empty. */
int segfile_resume(struct segfile *s, int64_t segment, int64_t *length, struct err *e);
/* Where the record would end if all of this were synced. */
void segfile_end(const struct segfile *s, int64_t *segment, int64_t *length);
void segfile_append(struct segfile *s, const void *data, size_t n, struct segfile_at *at);
int segfile_sync(struct segfile *s, struct err *e);
/* *data is to be freed with mem_free. STATUS_FORMAT when the bytes are not those that were written,
 * STATUS_NOTFOUND when the file is gone. */
int segfile_read(struct segfile *s, const struct segfile_at *at, void **data, struct err *e);
/* Removes a segment that is not the one being written; a missing one is fine. */
int segfile_remove(struct segfile *s, int64_t segment, struct err *e);

#endif
