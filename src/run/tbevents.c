/* Owns the format of TensorBoard's event files: records framed by their length and masked CRC-32C,
 * each one a protocol buffer `Event`. Only what scalars need is written:
 *
 *     Event    { double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary =
 * 5; SessionLog session_log = 7; } Summary  { repeated Value value = 1; }     Value { string tag =
 * 1; float simple_value = 2; } SessionLog { enum status = 1; }            START is 1
 *
 * A picture must not end a run: what cannot be written is lost, and told once. */
#include "run/tbevents.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fsio.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/metric.h"
#include "base/status.h"

#define TBEVENTS_RECORD ((size_t)4 << 20)

enum { TBEVENTS_VARINT = 0, TBEVENTS_F64 = 1, TBEVENTS_BYTES = 2, TBEVENTS_F32 = 5 };

struct tbevents {
    char *path;
    int fd, failed;
    struct buf event, summary, value, record;
};

/* ---- framing ---- */

uint32_t tbevents_crc(const void *p, size_t n)
{
    static uint32_t table[256];
    const unsigned char *b = p;
    uint32_t crc = 0xffffffffu;

    if (!table[1]) {
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t c = i;
            for (int k = 0; k < 8; k++) {
                c = c & 1 ? c >> 1 ^ 0x82f63b78u : c >> 1;
            }
            table[i] = c;
        }
    }
    for (size_t i = 0; i < n; i++) {
        crc = table[(crc ^ b[i]) & 255] ^ crc >> 8;
    }
    return ~crc;
}

static uint32_t tbevents_masked(const void *p, size_t n)
{
    uint32_t crc = tbevents_crc(p, n);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static void tbevents_little(struct buf *b, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++) {
        buf_char(b, (char)(v >> 8 * i & 255));
    }
}

/* One record with t->event as its data, in one write. */
static void tbevents_flush(struct tbevents *t)
{
    struct buf *r = &t->record;
    uint32_t crc;

    buf_clear(r);
    tbevents_little(r, t->event.len, 8);
    crc = tbevents_masked(r->data, 8);
    tbevents_little(r, crc, 4);
    buf_add(r, t->event.data, t->event.len);
    tbevents_little(r, tbevents_masked(t->event.data, t->event.len), 4);
    if (t->failed || buf_status(&t->event) != STATUS_OK || buf_status(r) != STATUS_OK) {
        return;
    }
    if (write(t->fd, r->data, r->len) != (ssize_t)r->len) {
        log_warn(TRACE, "%s is not written on: %s", t->path, strerror(errno));
        t->failed = 1;
    }
}

/* ---- protocol buffers ---- */

static void tbevents_varint(struct buf *b, uint64_t v)
{
    for (; v >= 128; v >>= 7) {
        buf_char(b, (char)((v & 127) | 128));
    }
    buf_char(b, (char)v);
}

static void tbevents_key(struct buf *b, int field, int type)
{
    tbevents_varint(b, (uint64_t)(field << 3 | type));
}

static void tbevents_bytes(struct buf *b, int field, const void *p, size_t n)
{
    tbevents_key(b, field, TBEVENTS_BYTES);
    tbevents_varint(b, n);
    buf_add(b, p, n);
}

static void tbevents_begin(struct tbevents *t, int64_t step)
{
    struct timespec now;
    double wall;
    uint64_t bits;

    clock_gettime(CLOCK_REALTIME, &now);
    wall = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
    memcpy(&bits, &wall, sizeof bits);
    buf_clear(&t->event);
    tbevents_key(&t->event, 1, TBEVENTS_F64);
    tbevents_little(&t->event, bits, 8);
    tbevents_key(&t->event, 2, TBEVENTS_VARINT);
    tbevents_varint(&t->event, (uint64_t)step);
}

static void tbevents_scalar(struct tbevents *t, const char *tag, double v)
{
    float f = (float)v;
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    buf_clear(&t->value);
    tbevents_bytes(&t->value, 1, tag, strlen(tag));
    tbevents_key(&t->value, 2, TBEVENTS_F32);
    tbevents_little(&t->value, bits, 4);
    tbevents_bytes(&t->summary, 1, t->value.data, t->value.len);
}

/* ---- rows ---- */

/* Which axis a value belongs to. */
static int tbevents_axis(const char *name)
{
    return strncmp(name, "train/", 6) == 0 ? 1 : strncmp(name, "eval/", 5) == 0 ? 2 : 0;
}

static void tbevents_row(void *arg, const json_t *row)
{
    static const char *const steps[] = {"rollout/step", "train/step", "eval/step"};
    struct tbevents *t = arg;

    for (int axis = 0; axis < 3; axis++) {
        json_t *step = json_object_get(row, steps[axis]);
        const char *name;
        json_t *v;
        /* values without their own axis are on another that the row has */
        for (int k = 0; !step && k < 3; k++) {
            step = json_object_get(row, steps[k]);
        }
        buf_clear(&t->summary);
        json_object_foreach((json_t *)(uintptr_t)row, name, v)
        {
            if (tbevents_axis(name) == axis && (json_is_number(v) || json_is_null(v))) {
                tbevents_scalar(t, name, json_is_null(v) ? NAN : json_number_value(v));
            }
        }
        if (step && t->summary.len) {
            tbevents_begin(t, json_integer_value(step));
            tbevents_bytes(&t->event, 5, t->summary.data, t->summary.len);
            tbevents_flush(t);
        }
    }
}

int tbevents_open(const char *dir, int64_t from, struct tbevents **out, struct err *e)
{
    struct tbevents *t;
    char host[128] = "localhost", name[256];
    static int serial;
    int rc = fsio_mkdirs(dir, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    t = mem_alloc(sizeof *t);
    gethostname(host, sizeof host - 1);
    snprintf(name, sizeof name, "events.out.tfevents.%010lld.%s.%ld.%d", (long long)time(NULL),
             host, (long)getpid(), serial++);
    t->path = fsio_join(dir, name);
    buf_init(&t->event, TBEVENTS_RECORD);
    buf_init(&t->summary, TBEVENTS_RECORD);
    buf_init(&t->value, TBEVENTS_RECORD);
    buf_init(&t->record, TBEVENTS_RECORD + 64);
    t->fd = open(t->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (t->fd < 0) {
        rc = ERR(e, STATUS_IO, "cannot write %s: %s", t->path, strerror(errno));
        tbevents_close(t);
        return rc;
    }
    tbevents_begin(t, 0);
    tbevents_bytes(&t->event, 3, "brain.Event:2", 13);
    tbevents_flush(t);
    if (from >= 0) {
        tbevents_begin(t, from);
        tbevents_bytes(&t->event, 7, "\x08\x01", 2);
        tbevents_flush(t);
    }
    if (metric_add_sink(tbevents_row, t) != STATUS_OK) {
        rc = ERR(e, STATUS_NOMEM, "too many places for metrics");
        tbevents_close(t);
        return rc;
    }
    *out = t;
    return STATUS_OK;
}

const char *tbevents_path(const struct tbevents *t)
{
    return t->path;
}

void tbevents_close(struct tbevents *t)
{
    if (t) {
        metric_remove_sink(tbevents_row, t);
        if (t->fd >= 0) {
            close(t->fd);
        }
        buf_fini(&t->event);
        buf_fini(&t->summary);
        buf_fini(&t->value);
        buf_fini(&t->record);
        mem_free(t->path);
        mem_free(t);
    }
}
