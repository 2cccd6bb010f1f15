/* Shared by the files of control: requests whose work is done on the service's thread, between two
 * steps. */
#ifndef SERVE_CONTROL_INT_H
#define SERVE_CONTROL_INT_H

#include <jansson.h>

#include "serve/api.h"
#include "serve/reply.h"

struct buf;
struct control_op;
struct err;
struct http_req;

/* Does it, and puts the answer into `out`. STATUS_END: the op was given to somebody who will call
 * control_finish, and must not be touched any more. */
typedef int control_fn(struct control_op *op, struct buf *out, struct err *e);

struct control_op {
    struct reply rp;
    struct api *a;
    struct http_req *r;
    json_t *body;
    control_fn *fn;
    int failed_json; /* an error is told as {"success": false, ...} */
    const char *type;
};

/* Reads the body and has fn called there. The second tells errors as {"success": false, ...}. */
void control_start(struct api *a, struct http_req *r, control_fn *fn);
void control_start_success(struct api *a, struct http_req *r, control_fn *fn);

/* Weights that a run shares with this server are its own to change: STATUS_INPUT. */
int control_own_weights(const struct api *a, struct err *e);
/* Answers an op that was left for later; any thread. `out` is the body where rc is STATUS_OK. */
void control_finish(struct control_op *op, int rc, struct buf *out, const struct err *e);

#endif
