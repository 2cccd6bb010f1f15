/* A temporary file without a name: written once from front to back, then read anywhere. It is gone
 * when it is closed or when the process dies, however that happens.
 *
 *     struct spool s;
 *     spool_open(&s, "train.jsonl.gz", limit, &e);
 *     spool_write(&s, p, n, &e);
 *     fd = spool_take(&s, &e);            the caller closes it; -1 on failure
 *     spool_close(&s);                    after failures too
 *
 * It lies in $TMPDIR, else /var/tmp, else /tmp. One thread. */
#ifndef RL_SPOOL_H
#define RL_SPOOL_H

#include <stddef.h>
#include <stdint.h>

struct err;

struct spool {
    int fd;
    const char *what; /* for messages, borrowed */
    char *buf;
    size_t used;
    int64_t written, limit; /* bytes */
};

int spool_open(struct spool *s, const char *what, int64_t limit, struct err *e);
/* More than the limit is STATUS_INPUT with its size: a small file must not fill a disk. */
int spool_write(struct spool *s, const void *p, size_t n, struct err *e);
int spool_take(struct spool *s, struct err *e);
void spool_close(struct spool *s);

/* What a file of this many packed bytes may unpack to: a hundredfold, and a gibibyte for small
 * ones. */
int64_t spool_limit(int64_t packed);

#endif
