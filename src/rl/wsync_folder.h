/* Weight sync through Hugging Face folders on a disk that trainer and engines see, for engines that
 * know no other way: SGLang's /update_weights_from_disk.
 *
 *     struct wsync_folder_opts o = {.dir = "run/weights", .w = w, .train = &ports.train};
 *     struct wsync_folder *s;
 *     wsync_folder_open(&o, &s, &e);
 *     ... wsync_folder_sync(s) ...
 *     wsync_folder_close(s);
 *
 * Version 7 is written once, as DIR/weights_v7: under another name until it is whole. The newest
 * `keep` folders stay; what a killed run left is removed at open. What is proven at each publish:
 * sums over all tensors that the engine computes of what it holds (/weights_checker) equal the
 * trainer's own. */
#ifndef RL_WSYNC_FOLDER_H
#define RL_WSYNC_FOLDER_H

#include <stdint.h>

#include "rl/wsync.h"

struct trainer_port;
struct weights;
struct wsync_folder;

/* Borrowed until close. */
struct wsync_folder_opts {
    const char *dir; /* made when missing; weights_v* in it are ours alone */
    struct weights *w;
    const struct trainer_port *train; /* writes the folder (export_hf) */
    int keep;                         /* folders; 0: 1 */
    int spoil; /* 1: before the first version is taken the engine fills its tensors with noise
                  (--check-weight-update-equal) */
};

int wsync_folder_open(const struct wsync_folder_opts *o, struct wsync_folder **out, struct err *e);
const struct wsync *wsync_folder_sync(struct wsync_folder *s);
/* Bytes of the folders that stand now. */
int64_t wsync_folder_bytes(const struct wsync_folder *s);
/* Removes the folders. NULL is fine. */
void wsync_folder_close(struct wsync_folder *s);

#endif
