/* A small tar archive, compressed by its name: .tar.zst, .tgz or .tar.gz.
 *
 *     struct tarfile t;
 *     tarfile_init(&t, 64 << 20);                 at most so many bytes before compression
 *     tarfile_add(&t, "report/log.txt", text, n);
 *     tarfile_write(&t, "report.tar.zst", &e);    all or nothing
 *     tarfile_fini(&t); */
#ifndef RUN_TARFILE_H
#define RUN_TARFILE_H

#include <stddef.h>

#include "base/buf.h"

struct err;

struct tarfile {
    struct buf b;
    long when; /* seconds since 1970, of all files */
};

void tarfile_init(struct tarfile *t, size_t max);
/* name: at most 99 bytes. What does not fit makes tarfile_write fail. */
void tarfile_add(struct tarfile *t, const char *name, const void *data, size_t n);
int tarfile_write(struct tarfile *t, const char *path, struct err *e);
void tarfile_fini(struct tarfile *t);

#endif
