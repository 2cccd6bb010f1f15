/* oneDNN's bf16 matrix product, the yardstick of the benchmarks: opened at run time, so that
 * building needs nothing of it. tools/setup.sh onednn installs the library.
 *
 *     struct onednn *lib; struct onednn_matmul *mm;
 *     onednn_open(NULL, &lib, &e);
 *     onednn_matmul_new(lib, m, n, k, &mm, &e);
 *     onednn_matmul_pack(mm, w, packed, &e);       packed: onednn_matmul_size(mm) bytes
 *     onednn_matmul_run(mm, x, packed, y);
 *
 * Threads are the library's own: as many as the cores that the process may use when it is opened.
 * One thread at a time. */
#ifndef CLI_ONEDNN_H
#define CLI_ONEDNN_H

#include <stddef.h>
#include <stdint.h>

struct err;
struct onednn;
struct onednn_matmul;

/* path NULL: the file named by MILES_ONEDNN, else the one that tools/setup.sh put into the cache,
 * else the system's. STATUS_NOTFOUND says what to install. */
int onednn_open(const char *path, struct onednn **out, struct err *e);
void onednn_close(struct onednn *lib);              /* NULL is fine; the library stays loaded */
const char *onednn_about(const struct onednn *lib); /* version and threading, one line */

/* y (m, n) = x (m, k) W^T, all bf16, W (n, k) in the layout that the library prefers. */
int onednn_matmul_new(struct onednn *lib, int m, int n, int k, struct onednn_matmul **out,
                      struct err *e);
/* y (n, k) f32 = dy (t, n)^T x (t, k), a weight's gradient; run it with dy, x and y. */
int onednn_matmul_new_grad(struct onednn *lib, int n, int k, int t, struct onednn_matmul **out,
                           struct err *e);
void onednn_matmul_free(struct onednn_matmul *mm);         /* NULL is fine */
size_t onednn_matmul_size(const struct onednn_matmul *mm); /* bytes of a packed weight */
const char *onednn_matmul_kernel(const struct onednn_matmul *mm);
int onednn_matmul_pack(struct onednn_matmul *mm, const uint16_t *w, void *packed, struct err *e);
void onednn_matmul_run(struct onednn_matmul *mm, const uint16_t *x, const void *packed, void *y);

#endif
