/* Owns RUN/trace.json. A picture must not end a run: what cannot be written is lost, and told once.
 */
#include "run/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/span.h"
#include "base/status.h"

#define TRACE_LANES 256
#define TRACE_TAIL  4096 /* bytes of the end that may be half a line */

struct trace {
    char *path;
    int fd;
    int64_t size;
    double offset; /* from span_now to seconds since 1970 */
    int stopped;
    struct map lanes; /* name -> number, from 1 on */
    struct buf line;
};

static void trace_stop(struct trace *t, const char *why)
{
    if (!t->stopped) {
        log_warn(TRACE, "%s is not written on: %s", t->path, why);
    }
    t->stopped = 1;
}

static void trace_write(struct trace *t)
{
    if (t->stopped || buf_status(&t->line) != STATUS_OK) {
        return;
    }
    if (t->size + (int64_t)t->line.len > TRACE_MAX - 256) { /* room for the end */
        trace_stop(t, "it has its full size");
    } else if (write(t->fd, t->line.data, t->line.len) != (ssize_t)t->line.len) {
        trace_stop(t, strerror(errno));
    } else {
        t->size += (int64_t)t->line.len;
    }
}

static void trace_text(struct buf *b, const char *text)
{
    for (; *text; text++) {
        if ((unsigned char)*text < 32 || *text == '"' || *text == '\\') {
            buf_printf(b, "\\u%04x", (unsigned char)*text);
        } else {
            buf_char(b, *text);
        }
    }
}

/* The number of a lane; a new one is introduced by an event of its own. */
static int64_t trace_lane(struct trace *t, const char *name)
{
    int64_t id = 0;

    if (map_get(&t->lanes, name, strlen(name), &id)) {
        return id;
    }
    if (t->lanes.count >= TRACE_LANES) {
        return TRACE_LANES;
    }
    id = (int64_t)t->lanes.count + 1;
    map_put(&t->lanes, name, strlen(name), id);
    buf_clear(&t->line);
    buf_printf(&t->line,
               "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%ld,\"tid\":%lld,"
               "\"args\":{\"name\":\"",
               (long)getpid(), (long long)id);
    trace_text(&t->line, name);
    buf_str(&t->line, "\"}},\n");
    trace_write(t);
    return id;
}

static void trace_span(void *arg, const struct span *s)
{
    struct trace *t = arg;
    int64_t lane;

    if (t->stopped) {
        return;
    }
    lane = trace_lane(t, s->lane);
    buf_clear(&t->line);
    buf_str(&t->line, "{\"name\":\"");
    trace_text(&t->line, s->name);
    buf_printf(&t->line, "\",\"ph\":\"X\",\"ts\":%.0f,\"dur\":%.0f,\"pid\":%ld,\"tid\":%lld",
               (s->t0 + t->offset) * 1e6, (s->t1 - s->t0) * 1e6, (long)getpid(), (long long)lane);
    if (s->rollout >= 0) {
        buf_printf(&t->line, ",\"args\":{\"rollout\":%lld}", (long long)s->rollout);
    }
    buf_str(&t->line, "},\n");
    trace_write(t);
}

/* Cuts the end off that a new event cannot follow: the closing bracket, or half a line. What then
 * has to be written first goes into *first. */
static int trace_mend(struct trace *t, const char **first)
{
    char tail[TRACE_TAIL];
    int64_t from = t->size > TRACE_TAIL ? t->size - TRACE_TAIL : 0;
    ssize_t n = pread(t->fd, tail, sizeof tail, from), keep = n;

    *first = "";
    if (n < 2) {
        keep = 0;
        *first = "[\n";
    } else if (n >= 4 && memcmp(tail + n - 4, "}\n]\n", 4) == 0) {
        keep = n - 3;
        *first = ",\n";
    } else {
        while (keep > 0 && tail[keep - 1] != '\n') {
            keep--;
        }
    }
    t->size = from + keep;
    return ftruncate(t->fd, t->size) == 0 && lseek(t->fd, t->size, SEEK_SET) == t->size;
}

int trace_open(const char *path, int resume, struct trace **out, struct err *e)
{
    struct trace *t = mem_alloc(sizeof *t);
    struct timespec now;
    struct stat st;
    const char *first = "[\n";

    t->path = mem_strdup(path);
    map_init(&t->lanes);
    buf_init(&t->line, 65536);
    t->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | (resume ? 0 : O_TRUNC), 0644);
    if (t->fd < 0 || fstat(t->fd, &st) != 0) {
        int rc = ERR(e, STATUS_IO, "cannot write %s: %s", path, strerror(errno));
        trace_close(t);
        return rc;
    }
    t->size = st.st_size;
    if (!trace_mend(t, &first)) {
        trace_stop(t, strerror(errno));
    }
    clock_gettime(CLOCK_REALTIME, &now);
    t->offset = (double)now.tv_sec + (double)now.tv_nsec * 1e-9 - span_now();
    buf_printf(&t->line,
               "%s{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%ld,\"args\":{\"name\":"
               "\"miles train\"}},\n",
               first, (long)getpid());
    trace_write(t);
    if (span_add_sink(trace_span, t) != STATUS_OK) {
        trace_stop(t, "too many places for spans");
    }
    *out = t;
    return STATUS_OK;
}

void trace_close(struct trace *t)
{
    if (!t) {
        return;
    }
    span_remove_sink(trace_span, t);
    if (t->fd >= 0) {
        /* also behind a full file: the bracket has its room kept */
        char end[160];
        int n = snprintf(end, sizeof end,
                         "{\"name\":\"end\",\"ph\":\"i\",\"ts\":%.0f,\"pid\":%ld,\"tid\":1,"
                         "\"s\":\"p\"}\n]\n",
                         (span_now() + t->offset) * 1e6, (long)getpid());
        if (ftruncate(t->fd, t->size) != 0 || lseek(t->fd, t->size, SEEK_SET) != t->size ||
            write(t->fd, end, (size_t)n) != n) { /* without half an event before it */
            trace_stop(t, strerror(errno));
        }
        close(t->fd);
    }
    map_fini(&t->lanes);
    buf_fini(&t->line);
    mem_free(t->path);
    mem_free(t);
}
