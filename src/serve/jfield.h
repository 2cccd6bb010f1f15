/* Fields of a JSON object that somebody sent: typed, in range, or an error that names the field.
 *
 *     double t = 1.0;
 *     rc = jfield_real(o, "temperature", 0.0, 1e6, &t, e);        absent or null: t stays
 *     rc = jfield_known(o, "sampling_params", names, e);          unknown names are refused
 *
 * All errors are STATUS_INPUT. */
#ifndef SERVE_JFIELD_H
#define SERVE_JFIELD_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct http_req;

/* The body of a request as an object; an empty body is an empty object when `empty` is set. The
 * caller owns it. */
int jfield_body(const struct http_req *r, int empty, json_t **out, struct err *e);

int jfield_int(const json_t *o, const char *name, int64_t min, int64_t max, int64_t *out,
               struct err *e);
int jfield_real(const json_t *o, const char *name, double min, double max, double *out,
                struct err *e);
int jfield_bool(const json_t *o, const char *name, int *out, struct err *e);
/* *out is borrowed; texts with a NUL inside are refused. */
int jfield_text(const json_t *o, const char *name, const char **out, struct err *e);
/* The value when it is there and not null. */
const json_t *jfield_get(const json_t *o, const char *name);
/* Refuses names that are not in `known` (ends with NULL); `what` says where they were found. */
int jfield_known(const json_t *o, const char *what, const char *const *known, struct err *e);
/* Refuses fields that are known and not done here, unless they are absent, null, false, 0 or empty.
 */
int jfield_undone(const json_t *o, const char *const *names, struct err *e);

/* Numbers into buffers: log-probs as the shortest decimals that read back as the same float (null
 * when not finite). */
struct buf;
void jfield_put_float(struct buf *b, float v);
void jfield_put_text(struct buf *b, const char *s, size_t n);

/* Answers a request with o, which it takes. */
void jfield_reply(struct http_req *r, int status, json_t *o);

#endif
