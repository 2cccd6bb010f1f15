/* Owns the rules by which a request's JSON becomes values: a field of the wrong type or outside its
 * range is told by name, never taken for something near it. */
#include "serve/jfield.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/status.h"
#include "model/jtext.h"
#include "net/http_req.h"

/* Deeper JSON than this is nobody's request; the parser's own limit is 2048. */
#define JFIELD_MAX_NAME 64

int jfield_body(const struct http_req *r, int empty, json_t **out, struct err *e)
{
    json_error_t at;
    size_t n;
    const char *body = http_req_body(r, &n);
    json_t *o;

    if (n == 0 && empty) {
        *out = json_object();
        return STATUS_OK;
    }
    o = json_loadb(body, n, JSON_REJECT_DUPLICATES, &at);
    if (!o) {
        return ERR(e, STATUS_INPUT, "the body is not JSON: %s at line %d, column %d", at.text,
                   at.line, at.column);
    }
    if (!json_is_object(o)) {
        json_decref(o);
        return ERR(e, STATUS_INPUT, "the body is not a JSON object");
    }
    *out = o;
    return STATUS_OK;
}

const json_t *jfield_get(const json_t *o, const char *name)
{
    const json_t *v = json_object_get(o, name);
    return v && !json_is_null(v) ? v : NULL;
}

int jfield_int(const json_t *o, const char *name, int64_t min, int64_t max, int64_t *out,
               struct err *e)
{
    const json_t *v = jfield_get(o, name);
    int64_t n;

    if (!v) {
        return STATUS_OK;
    }
    if (json_is_real(v) && json_real_value(v) == floor(json_real_value(v)) &&
        fabs(json_real_value(v)) < 9e15) {
        n = (int64_t)json_real_value(v);
    } else if (json_is_integer(v)) {
        n = json_integer_value(v);
    } else {
        return ERR(e, STATUS_INPUT, "%s is not an integer", name);
    }
    if (n < min || n > max) {
        return ERR(e, STATUS_INPUT, "%s is %lld, not in [%lld, %lld]", name, (long long)n,
                   (long long)min, (long long)max);
    }
    *out = n;
    return STATUS_OK;
}

int jfield_real(const json_t *o, const char *name, double min, double max, double *out,
                struct err *e)
{
    const json_t *v = jfield_get(o, name);
    double x;

    if (!v) {
        return STATUS_OK;
    }
    if (!json_is_number(v)) {
        return ERR(e, STATUS_INPUT, "%s is not a number", name);
    }
    x = json_number_value(v);
    if (!(x >= min && x <= max)) {
        return ERR(e, STATUS_INPUT, "%s is %g, not in [%g, %g]", name, x, min, max);
    }
    *out = x;
    return STATUS_OK;
}

int jfield_bool(const json_t *o, const char *name, int *out, struct err *e)
{
    const json_t *v = jfield_get(o, name);

    if (!v) {
        return STATUS_OK;
    }
    if (!json_is_boolean(v)) {
        return ERR(e, STATUS_INPUT, "%s is neither true nor false", name);
    }
    *out = json_is_true(v);
    return STATUS_OK;
}

int jfield_text(const json_t *o, const char *name, const char **out, struct err *e)
{
    const json_t *v = jfield_get(o, name);

    if (!v) {
        return STATUS_OK;
    }
    if (!json_is_string(v) || strlen(json_string_value(v)) != json_string_length(v)) {
        return ERR(e, STATUS_INPUT, "%s is not a text", name);
    }
    *out = json_string_value(v);
    return STATUS_OK;
}

static int jfield_is_one(const char *const *names, const char *name)
{
    while (*names && strcmp(*names, name) != 0) {
        names++;
    }
    return *names != NULL;
}

int jfield_known(const json_t *o, const char *what, const char *const *known, struct err *e)
{
    const char *name;
    const json_t *v;

    json_object_foreach((json_t *)(uintptr_t)o, name, v)
    {
        if (!jfield_is_one(known, name)) {
            return ERR(e, STATUS_INPUT, "%s: unknown field %.*s", what, JFIELD_MAX_NAME, name);
        }
    }
    return STATUS_OK;
}

/* What says nothing: as good as absent. */
static int jfield_nothing(const json_t *v)
{
    return !v || json_is_null(v) || json_is_false(v) ||
           (json_is_number(v) && json_number_value(v) == 0.0) ||
           (json_is_string(v) && json_string_length(v) == 0) ||
           (json_is_array(v) && json_array_size(v) == 0) ||
           (json_is_object(v) && json_object_size(v) == 0);
}

int jfield_undone(const json_t *o, const char *const *names, struct err *e)
{
    for (; *names; names++) {
        if (!jfield_nothing(json_object_get(o, *names))) {
            return ERR(e, STATUS_INPUT, "%s is not supported by this server", *names);
        }
    }
    return STATUS_OK;
}

void jfield_put_float(struct buf *b, float v)
{
    if (isfinite(v)) {
        buf_printf(b, "%.9g", (double)v);
    } else {
        buf_str(b, "null");
    }
}

void jfield_put_text(struct buf *b, const char *s, size_t n)
{
    size_t at = b->len;

    if (jtext_string(b, s, n) != 0) { /* a token that is part of a character has no text */
        b->len = at;
        b->data[at] = 0;
        buf_str(b, "\"\xef\xbf\xbd\"");
    }
}

void jfield_reply(struct http_req *r, int status, json_t *o)
{
    char *text = json_dumps(o, JSON_COMPACT | JSON_ENCODE_ANY);

    json_decref(o);
    if (text) {
        http_req_reply(r, status, "application/json", text, strlen(text));
    } else {
        http_req_fail(r, 500, "no memory for the answer");
    }
    free(text);
}
