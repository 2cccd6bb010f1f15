/* Status codes and the error record that every fallible function fills.
 *
 * A fallible function returns 0 when done, a negative STATUS_* on error and a positive one for "not
 * yet". The first function that knows the cause fills `struct err`; callers pass it up untouched.
 *
 *     int load(const char *path, struct err *e)
 *     {
 *         if (!path) {
 *             return ERR(e, STATUS_INPUT, "no path given");
 *         }
 *         ...
 *     }
 *
 * `struct err *` may be NULL where the caller does not want the text. */
#ifndef BASE_STATUS_H
#define BASE_STATUS_H

enum {
    STATUS_OK = 0,
    STATUS_AGAIN = 1,        /* not yet: call again */
    STATUS_END = 2,          /* no more items */
    STATUS_FAIL = -1,        /* an error of no more precise kind */
    STATUS_NOMEM = -2,       /* memory or a planned budget is exhausted */
    STATUS_IO = -3,          /* the operating system refused a read, write, open */
    STATUS_INPUT = -4,       /* the user's flag, data line or request is wrong */
    STATUS_FORMAT = -5,      /* a file's bytes are not what its format says */
    STATUS_UNSUPPORTED = -6, /* well formed, but not something we do */
    STATUS_NOTFOUND = -7,
    STATUS_TIMEOUT = -8,
    STATUS_CHILD = -9,   /* a child process died or broke its protocol */
    STATUS_NUMERIC = -10 /* NaN, overflow of an exact sum, a broken exactness promise */
};

struct err {
    int code;          /* STATUS_*; 0 means unset */
    const char *where; /* "file.c:123", static storage */
    char msg[1024];    /* one line, lower case, the exact cause */
};

/* Fills e (if not NULL) and returns code, so that it can stand in a return statement. */
int err_set(struct err *e, int code, const char *where, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Puts "text: " before the message already in e: the caller's part of the cause. Returns e->code.
 */
int err_prefix(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* "io", "input", ...: the name of a status code, for logs and exit messages. */
const char *status_name(int code);

#define ERR_STR2(x)       #x
#define ERR_STR(x)        ERR_STR2(x)
#define ERR(e, code, ...) err_set((e), (code), __FILE__ ":" ERR_STR(__LINE__), __VA_ARGS__)

/* Guards our own bugs; stays on in release builds. Never for bad input. */
void assert_failed(const char *expr, const char *where) __attribute__((noreturn));
#define ASSERT(x) ((x) ? (void)0 : assert_failed(#x, __FILE__ ":" ERR_STR(__LINE__)))

#endif
