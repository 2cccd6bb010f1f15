/* Memory that several processes of this host map at once: one of them makes it and writes, those
 * that inherit its descriptor read.
 *
 *     struct region r;
 *     region_create(&r, "weights", bytes, &e);
 *     p = region_take(&r, n);  q = region_take_top(&r, m);
 *     ... a child that got r.fd by dup2:
 *     region_attach(&r, fd, &e);  the same calls give the same places
 *     region_close(&r);
 *
 * The size never changes, and nobody but the maker can map it for writing: the kernel holds that
 * (file seals). Not thread-safe. */
#ifndef BASE_REGION_H
#define BASE_REGION_H

#include <stddef.h>

struct err;

struct region {
    int fd; /* closed on exec: a child gets it by dup2, or not at all */
    char *base;
    size_t size; /* bytes, whole huge pages */
    size_t low;  /* first free byte */
    size_t high; /* first byte above the free ones */
};

/* At least `bytes` bytes, zeroed, all of it backed by memory: what the machine cannot give is
 * STATUS_NOMEM here and not a signal later. Huge pages where the kernel has them. */
int region_create(struct region *r, const char *name, size_t bytes, struct err *e);
/* Read-only, with nothing taken. The descriptor is the caller's: it may be closed afterwards. A
 * descriptor of anything else, or one whose size may still change, is STATUS_INPUT. */
int region_attach(struct region *r, int fd, struct err *e);
/* The next n bytes from below or from above, at multiples of REGION_ALIGN; NULL when there are not
 * so many. */
void *region_take(struct region *r, size_t n);
void *region_take_top(struct region *r, size_t n);
void region_close(struct region *r); /* a zeroed one is fine */

#define REGION_ALIGN 64

#endif
