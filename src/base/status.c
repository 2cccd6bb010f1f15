/* Owns the formatting of error records. Nothing here allocates: an error must be reportable when
 * memory is gone. */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int err_set(struct err *e, int code, const char *where, const char *fmt, ...)
{
    if (e) {
        va_list ap;
        e->code = code;
        e->where = where;
        va_start(ap, fmt);
        vsnprintf(e->msg, sizeof e->msg, fmt, ap);
        va_end(ap);
    }
    return code;
}

int err_prefix(struct err *e, const char *fmt, ...)
{
    char head[sizeof e->msg / 2], old[sizeof e->msg];
    va_list ap;

    if (!e) {
        return STATUS_FAIL;
    }
    memcpy(old, e->msg, sizeof old);
    va_start(ap, fmt);
    vsnprintf(head, sizeof head, fmt, ap);
    va_end(ap);
    snprintf(e->msg, sizeof e->msg, "%s: %.*s", head, (int)(sizeof old / 2) - 4, old);
    return e->code;
}

const char *status_name(int code)
{
    switch (code) {
    case STATUS_OK: return "ok";
    case STATUS_AGAIN: return "again";
    case STATUS_END: return "end";
    case STATUS_NOMEM: return "out of memory";
    case STATUS_IO: return "i/o";
    case STATUS_INPUT: return "input";
    case STATUS_FORMAT: return "format";
    case STATUS_UNSUPPORTED: return "unsupported";
    case STATUS_NOTFOUND: return "not found";
    case STATUS_TIMEOUT: return "time-out";
    case STATUS_CHILD: return "child process";
    case STATUS_NUMERIC: return "numeric";
    default: return "failed";
    }
}

void assert_failed(const char *expr, const char *where)
{
    fprintf(stderr, "miles: internal error at %s: %s does not hold\n", where, expr);
    abort();
}
