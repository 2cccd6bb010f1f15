/* The reader and the writer of server-sent events. The reader keeps one unfinished line and one
 * unfinished event, both bounded, and looks at each byte once; where a piece of input is cut makes
 * no difference to the events told. */
#include "net/sse.h"

#include <string.h>

#include "base/status.h"

static const unsigned char bom_bytes[3] = {0xEF, 0xBB, 0xBF};

void sse_init(struct sse *p, size_t max)
{
    memset(p, 0, sizeof *p);
    p->max = max;
    /* One byte more than is allowed, so that too long is told apart from no memory. */
    buf_init(&p->line, max + 1);
    buf_init(&p->data, max + 2);
    buf_init(&p->type, max + 1);
}

void sse_fini(struct sse *p)
{
    if (p) {
        buf_fini(&p->line);
        buf_fini(&p->data);
        buf_fini(&p->type);
    }
}

static int check(struct sse *p, struct err *e)
{
    if (buf_status(&p->line) || buf_status(&p->data) || buf_status(&p->type)) {
        return ERR(e, STATUS_NOMEM, "no memory for an event");
    }
    if (p->line.len > p->max) {
        return ERR(e, STATUS_FORMAT, "a line of the event stream is longer than %zu bytes", p->max);
    }
    if (p->data.len > p->max + 1) { /* a LF follows each data line until the event is told */
        return ERR(e, STATUS_FORMAT, "an event of the stream is longer than %zu bytes", p->max);
    }
    return STATUS_OK;
}

/* The empty line: tells the event, if it has data. */
static int dispatch(struct sse *p, sse_event_fn *fn, void *arg, struct err *e)
{
    int rc = STATUS_OK;
    if (p->has_data) {
        struct sse_event ev;
        p->data.len--; /* the LF after the last data line */
        p->data.data[p->data.len] = 0;
        ev.type = p->type.data;
        ev.data = p->data.data;
        ev.len = p->data.len;
        ev.done = ev.len == 6 && memcmp(ev.data, "[DONE]", 6) == 0;
        rc = fn(arg, &ev, e);
    }
    buf_clear(&p->data);
    buf_clear(&p->type);
    p->has_data = 0;
    return rc < 0 ? rc : STATUS_OK;
}

static int end_line(struct sse *p, sse_event_fn *fn, void *arg, struct err *e)
{
    const char *s = p->line.data, *value, *colon;
    size_t n = p->line.len, name_len, value_len;
    int rc = STATUS_OK;
    if (!p->bom) { /* a mark may stand at the very start, before the first line */
        p->bom = 1;
        if (n >= 3 && memcmp(s, bom_bytes, 3) == 0) {
            s += 3;
            n -= 3;
        }
    }
    if (n == 0) {
        rc = dispatch(p, fn, arg, e);
        buf_clear(&p->line);
        return rc;
    }
    colon = memchr(s, ':', n);
    name_len = colon ? (size_t)(colon - s) : n;
    value = colon ? colon + 1 : s + n;
    value_len = (size_t)(s + n - value);
    if (value_len > 0 && *value == ' ') {
        value++;
        value_len--;
    }
    if (name_len == 4 && memcmp(s, "data", 4) == 0) {
        buf_add(&p->data, value, value_len);
        buf_char(&p->data, '\n');
        p->has_data = 1;
        /* The ceiling of the buffer is the bound of the event. */
        if (p->data.failed && p->data.len + value_len + 1 > p->max + 1) {
            return ERR(e, STATUS_FORMAT, "an event of the stream is longer than %zu bytes", p->max);
        }
    } else if (name_len == 5 && memcmp(s, "event", 5) == 0) {
        buf_clear(&p->type);
        buf_add(&p->type, value, value_len);
    }
    rc = check(p, e);
    buf_clear(&p->line);
    return rc;
}

int sse_feed(struct sse *p, const void *bytes, size_t n, sse_event_fn *fn, void *arg, struct err *e)
{
    const char *s = bytes, *end = s + n;
    int rc = STATUS_OK;
    if (p->failed) {
        return ERR(e, p->failed, "the event stream has already failed");
    }
    while (s < end && rc == STATUS_OK) {
        const char *stop = s;
        if (p->after_cr) {
            p->after_cr = 0;
            if (*s == '\n') {
                s++;
                continue;
            }
        }
        while (stop < end && *stop != '\n' && *stop != '\r') {
            stop++;
        }
        if ((size_t)(stop - s) > p->max - p->line.len) {
            rc = ERR(e, STATUS_FORMAT, "a line of the event stream is longer than %zu bytes",
                     p->max);
            break;
        }
        buf_add(&p->line, s, (size_t)(stop - s));
        rc = check(p, e);
        if (stop == end || rc) {
            break;
        }
        p->after_cr = *stop == '\r';
        s = stop + 1;
        rc = end_line(p, fn, arg, e);
    }
    p->failed = rc;
    return rc;
}

void sse_data(struct buf *b, const char *data, size_t n)
{
    const char *end = data + n;
    for (;;) {
        const char *stop = data;
        while (stop < end && *stop != '\n' && *stop != '\r') {
            stop++;
        }
        buf_str(b, "data: ");
        buf_add(b, data, (size_t)(stop - data));
        buf_char(b, '\n');
        if (stop == end) {
            break;
        }
        data = stop + (stop + 1 < end && stop[0] == '\r' && stop[1] == '\n' ? 2 : 1);
    }
    buf_char(b, '\n');
}

void sse_done(struct buf *b)
{
    buf_str(b, "data: [DONE]\n\n");
}

void sse_comment(struct buf *b, const char *text)
{
    buf_str(b, ": ");
    buf_str(b, text);
    buf_str(b, "\n\n");
}
