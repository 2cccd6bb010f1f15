/* A disk that is lost as a real one is: what was not synced when the power went is there, not
 * there, or torn. Held against base/fsio.h as struct fsio_disk, so that segment files, checkpoints
 * and SQLite's own files lie on it.
 *
 *     struct simdisk *d = simdisk_new(&sim);
 *     fsio_sys_use(simdisk_table(d));                 every path under /sim
 *     ... the controller ends ...
 *     simdisk_restart(d, power);                      what the next one finds
 *     simdisk_free(d);
 *
 * A new file or folder is durable with its own sync, or its folder's; a rename or removal with that
 * of the folder. All of it may happen earlier. */
#ifndef SIM_SIMDISK_H
#define SIM_SIMDISK_H

#include <stddef.h>
#include <stdint.h>

struct fsio_disk;
struct sim;
struct simdisk;

#define SIMDISK_ROOT "/sim"

struct simdisk *simdisk_new(struct sim *s);
void simdisk_free(struct simdisk *d); /* NULL is fine */
const struct fsio_disk *simdisk_table(struct simdisk *d);
/* The controller has ended and is gone; power 1: with the machine. */
void simdisk_restart(struct simdisk *d, int power);
/* Somebody else puts a file there, whole and durable: no event of the controller's. Its folder is
 * there. */
void simdisk_place(struct simdisk *d, const char *path, const void *p, size_t n);
/* A byte of the file is another from now on. 0: there is no such file, or nothing in it. */
int simdisk_spoil(struct simdisk *d, const char *path, uint64_t at);
/* There is no room for so many seconds. */
void simdisk_fill(struct simdisk *d, double seconds);
int simdisk_full(const struct simdisk *d);
/* Bytes of all files. */
int64_t simdisk_bytes(const struct simdisk *d);

#endif
