/* Parquet files as JSON lines. Not read yet: STATUS_UNSUPPORTED. */
#ifndef RL_PARQUET_H
#define RL_PARQUET_H

#include <stdint.h>

struct err;
struct spool;

/* Writes each row as one line with an object of the wanted top-level columns, in the file's order
 * of columns. A wanted column that the file lacks is left out. Memory: one page and one dictionary
 * of each column. */
int parquet_to_lines(int fd, const char *path, const char *const *columns, int ncolumns,
                     struct spool *s, struct err *e);

#endif
