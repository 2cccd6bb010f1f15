/* TensorBoard's event files, read back by hand; tests/live/debugging.sh has TensorBoard read them.
 */
#include "runkit.h"

#include <math.h>

#include "base/metric.h"
#include "run/tbevents.h"

static struct err e;

static void known_checksums(void **state)
{
    unsigned char zeros[32] = {0};
    (void)state;
    assert_int_equal(tbevents_crc("123456789", 9), 0xe3069283u);
    assert_int_equal(tbevents_crc(zeros, 32), 0x8a9136aau); /* RFC 3720, B.4 */
    assert_int_equal(tbevents_crc("", 0), 0);
}

static uint64_t little(const unsigned char *p, int n)
{
    uint64_t v = 0;
    for (int i = n; i-- > 0;) {
        v = v << 8 | p[i];
    }
    return v;
}

static uint32_t masked(const void *p, size_t n)
{
    uint32_t c = tbevents_crc(p, n);
    return (c >> 15 | c << 17) + 0xa282ead8u;
}

static uint64_t varint(const unsigned char **p)
{
    uint64_t v = 0;
    for (int i = 0;; i += 7) {
        v |= (uint64_t)(**p & 127) << i;
        if (!(*(*p)++ & 128)) {
            return v;
        }
    }
}

/* All scalars of a file as "tag@step=value " in order, and other records by a word. */
static void read_events(const unsigned char *p, const unsigned char *end, char *out, size_t size)
{
    size_t at = 0;
    out[0] = 0;
    while (p < end) {
        uint64_t n = little(p, 8), step = 0;
        const unsigned char *d = p + 12, *stop = d + n;
        assert_int_equal(little(p + 8, 4), masked(p, 8));
        assert_true(stop + 4 <= end);
        assert_int_equal(little(stop, 4), masked(d, n));
        while (d < stop) {
            uint64_t key = varint(&d), len;
            const unsigned char *in;
            if (key == (1 << 3 | 1)) {
                double wall;
                memcpy(&wall, d, 8);
                assert_true(wall > 1.6e9 && wall < 4e9);
                d += 8;
            } else if (key == (2 << 3)) {
                step = varint(&d);
            } else if (key == (3 << 3 | 2)) {
                len = varint(&d);
                at += (size_t)snprintf(out + at, size - at, "%.*s ", (int)len, (const char *)d);
                d += len;
            } else if (key == (7 << 3 | 2)) {
                len = varint(&d);
                assert_int_equal(len, 2);
                assert_memory_equal(d, "\x08\x01", 2);
                at += (size_t)snprintf(out + at, size - at, "start@%d ", (int)step);
                d += len;
            } else {
                assert_int_equal(key, 5 << 3 | 2);
                len = varint(&d);
                for (in = d + len; d < in;) {
                    float v;
                    const char *tag;
                    uint64_t ntag;
                    assert_int_equal(varint(&d), 1 << 3 | 2);
                    varint(&d);
                    assert_int_equal(varint(&d), 1 << 3 | 2);
                    ntag = varint(&d);
                    tag = (const char *)d;
                    d += ntag;
                    assert_int_equal(varint(&d), 2 << 3 | 5);
                    memcpy(&v, d, 4);
                    d += 4;
                    at += (size_t)snprintf(out + at, size - at, "%.*s@%d=%g ", (int)ntag, tag,
                                           (int)step, (double)v);
                }
            }
        }
        p = stop + 4;
    }
}

static void rows_have_their_axis(void **state)
{
    struct tbevents *t;
    char *data, out[4096];
    size_t len;
    json_t *row = json_object();
    (void)state;
    assert_ok(tbevents_open(runkit_at("tb"), 3, &t, &e), &e);
    metric_put_int(row, "rollout/step", 300);
    metric_put_int(row, "train/step", 601);
    metric_put(row, "train/loss", 0.25);
    metric_put(row, "perf/step_time", 8.5);
    metric_put(row, "train/odd", NAN);
    json_object_set_new(row, "rollout/text", json_string("no number"));
    metric_emit(row);
    row = json_object();
    metric_put_int(row, "eval/step", 4);
    metric_put(row, "eval/gsm8k", 0.5);
    metric_emit(row);
    assert_ok(fsio_read(tbevents_path(t), 1 << 20, &data, &len, &e), &e);
    tbevents_close(t);
    metric_emit(json_pack("{s:i}", "rollout/step", 5)); /* nobody listens */
    read_events((unsigned char *)data, (unsigned char *)data + len, out, sizeof out);
    mem_free(data);
    assert_string_equal(out, "brain.Event:2 start@3 rollout/step@300=300 perf/step_time@300=8.5 "
                             "train/step@601=601 train/loss@601=0.25 train/odd@601=nan "
                             "eval/step@4=4 eval/gsm8k@4=0.5 ");
}

static void a_folder_that_cannot_be(void **state)
{
    struct tbevents *t;
    (void)state;
    runkit_put("file", "x");
    assert_int_equal(tbevents_open(runkit_at("file/tb"), 0, &t, &e), STATUS_IO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_checksums),
        cmocka_unit_test(rows_have_their_axis),
        cmocka_unit_test(a_folder_that_cannot_be),
    };
    return cmocka_run_group_tests(tests, runkit_setup, runkit_teardown);
}
