/* Server-sent events: the stream format of SGLang's and OpenAI's APIs.
 *
 *     sse_data(&b, json, n);                       "data: {...}\n\n" appended to b
 *     sse_done(&b);                                "data: [DONE]\n\n"
 *
 *     struct sse p; sse_init(&p, 1 << 20);
 *     while (bytes arrive) rc = sse_feed(&p, bytes, n, on_event, arg, e);
 *     sse_fini(&p);
 *
 * The parser follows the WHATWG text: lines end in LF, CR or CRLF, the pieces may be cut anywhere,
 * several data lines of one event are joined by LF, lines that start with a colon are comments, a
 * byte order mark at the start is skipped, an event without data is not told, and an event whose
 * empty line never came is dropped. A struct sse belongs to one thread at a time. */
#ifndef NET_SSE_H
#define NET_SSE_H

#include <stddef.h>

#include "base/buf.h"

struct err;

struct sse_event {
    const char *type; /* "" when the stream names none; NUL-terminated */
    const char *data; /* NUL-terminated, may hold other NULs; valid during the call */
    size_t len;
    int done; /* 1 when the data is exactly [DONE] */
};

/* A negative status ends sse_feed, which returns it. */
typedef int sse_event_fn(void *arg, const struct sse_event *ev, struct err *e);

struct sse {
    struct buf line, data, type;
    size_t max; /* bytes of a line, and of the data of an event */
    int after_cr, has_data, bom;
    int failed; /* the status that ended the stream, repeated by later calls */
};

void sse_init(struct sse *p, size_t max);
void sse_fini(struct sse *p);
/* STATUS_FORMAT when a line or an event's data is longer than `max`, STATUS_NOMEM without memory,
 * or what fn returned. The parser stays failed then: a stream that lost bytes is not read on. */
int sse_feed(struct sse *p, const void *bytes, size_t n, sse_event_fn *fn, void *arg,
             struct err *e);

/* One event. Each line of the data (LF, CR or CRLF) becomes a data line of its own. */
void sse_data(struct buf *b, const char *data, size_t n);
void sse_done(struct buf *b);
/* ": text\n\n", which readers skip: keeps proxies from closing a quiet stream. */
void sse_comment(struct buf *b, const char *text);

#endif
