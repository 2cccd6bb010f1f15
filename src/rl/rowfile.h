/* A data file as rows of JSON text that are read by their place in the file: JSON lines, a JSON
 * array, either of them packed with gzip or zstd, or Parquet. What is not plain text is unpacked
 * into a temporary file without a name first; nothing is held in memory.
 *
 *     struct rowfile f;
 *     rowfile_open(&f, "train.jsonl", columns, 4, &e);
 *     struct rowfile_index x;
 *     rowfile_index(&f, pool, good, arg, &x, &e);
 *     buf_init(&b, ROWFILE_MAX_ROW);
 *     rowfile_read(&f, x.off[3], &b, &e);
 *     rowfile_index_fini(&x);
 *     rowfile_close(&f);
 *
 * Reading is safe from many threads once the index is there. */
#ifndef RL_ROWFILE_H
#define RL_ROWFILE_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>

struct buf;
struct err;
struct pool;

#define ROWFILE_MAX_ROW  ((size_t)65 << 20)
#define ROWFILE_MAX_ROWS ((int64_t)1 << 28)

struct rowfile {
    char *path;
    int fd;
    int64_t size;   /* of the text */
    int array;      /* one JSON array, not lines */
    int parquet;    /* a line of the text is a row of the file */
    int spooled;    /* the text is a temporary file */
    int64_t *lines; /* line ends before each piece of the text */
    int64_t npieces;
    struct timespec mtime;
};

struct rowfile_index {
    uint64_t *off; /* where each row starts, ascending */
    int64_t n, cap;
    int64_t *bad; /* positions in off of rows that are not good, ascending */
    int64_t nbad, bad_cap;
};

/* columns: the top-level columns wanted of a Parquet file; those that it lacks are left out. */
int rowfile_open(struct rowfile *f, const char *path, const char *const *columns, int ncolumns,
                 struct err *e);
void rowfile_close(struct rowfile *f);

/* Finds all rows; blank lines are none. good() is called for each, from several threads, and
 * decides whether it goes to `bad` too. A JSON array whose brackets do not match is an error with
 * its place. */
int rowfile_index(struct rowfile *f, struct pool *pool,
                  int (*good)(void *arg, const char *text, size_t n), void *arg,
                  struct rowfile_index *x, struct err *e);
void rowfile_index_fini(struct rowfile_index *x);

/* The text of the row that starts at off, into b (cleared before). */
int rowfile_read(const struct rowfile *f, uint64_t off, struct buf *b, struct err *e);
/* Line of a place in the text and its column, both from 1; -1 when it cannot be read. */
void rowfile_where(const struct rowfile *f, uint64_t off, int64_t *line, int64_t *column);

#endif
