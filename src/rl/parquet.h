/* Parquet files as JSON lines.
 *
 *     spool_open(&s, path, limit, &e);
 *     parquet_to_lines(fd, path, (const char *[]){"prompt", "label"}, 2, &s, &e);
 *
 * Understood is what pyarrow, datasets and pandas write: flat and nested columns (lists, structs,
 * maps), nulls, all physical types, pages of both versions in the encodings PLAIN, RLE, dictionary,
 * DELTA_BINARY_PACKED, DELTA_LENGTH_BYTE_ARRAY, DELTA_BYTE_ARRAY and BYTE_STREAM_SPLIT, codecs
 * none, snappy, gzip, zstd. What is not understood is STATUS_UNSUPPORTED by name; damaged bytes are
 * STATUS_FORMAT with the column and row group. */
#ifndef RL_PARQUET_H
#define RL_PARQUET_H

#include <stddef.h>
#include <stdint.h>

struct err;
struct spool;

/* Writes each row as one line with an object of the wanted top-level columns, in the file's order
 * of columns. A wanted column that the file lacks is left out. Memory: one page and one dictionary
 * of each column. Dates and times become ISO 8601 text, decimals text, maps lists of pairs, as
 * Python would show them; a value that JSON has no form for (NaN, text that is not UTF-8) is
 * STATUS_INPUT with its row. */
int parquet_to_lines(int fd, const char *path, const char *const *columns, int ncolumns,
                     struct spool *s, struct err *e);
/* The same from the bytes of a file. */
int parquet_bytes_to_lines(const uint8_t *data, size_t len, const char *path,
                           const char *const *columns, int ncolumns, struct spool *s,
                           struct err *e);

#endif
