/* gzip and zstd files into a spool.
 *
 *     if (unpack_kind(head, n)) { rc = unpack_to(&spool, unpack_kind(head, n), fd, path, &e); }
 */
#ifndef RL_UNPACK_H
#define RL_UNPACK_H

#include <stddef.h>
#include <stdint.h>

struct err;
struct spool;

enum unpack_kind { UNPACK_NONE, UNPACK_GZIP, UNPACK_ZSTD };

/* By the file's first bytes (at least four, else UNPACK_NONE), whatever its name is. */
enum unpack_kind unpack_kind(const uint8_t *head, size_t n);

/* Reads fd from its start; several members or frames one after the other are one text. A damaged
 * or cut file is STATUS_FORMAT. */
int unpack_to(struct spool *s, enum unpack_kind kind, int fd, const char *path, struct err *e);

/* The same from memory to memory: fills out[0, n) exactly, else STATUS_FORMAT. */
int unpack_block(enum unpack_kind kind, const uint8_t *in, size_t len, uint8_t *out, size_t n,
                 struct err *e);

#endif
