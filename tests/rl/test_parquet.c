/* Parquet files of the fuzzer's corpus as lines, exactly; what is refused, by name; and the small
 * decoders on bytes of their own. tests/live/data.sh compares with pyarrow at length. */
#include "support.h"

#include <unistd.h>

#include "base/fsio.h"
#include "base/mem.h"
#include "base/status.h"
#include "rl/parquet.h"
#include "rl/parquet_int.h"
#include "rl/spool.h"

static struct err e;

/* The lines of a file's bytes with these columns (NULL-ended); free with mem_free. */
static int lines_of(const char *data, size_t n, const char *const *columns, char **out)
{
    struct spool s;
    size_t len;
    int ncolumns = 0, rc, fd;
    while (columns[ncolumns]) {
        ncolumns++;
    }
    memset(&e, 0, sizeof e);
    assert_ok(spool_open(&s, "t", 1 << 20, &e), &e);
    rc = parquet_bytes_to_lines((const uint8_t *)data, n, "t.parquet", columns, ncolumns, &s, &e);
    len = (size_t)s.written;
    if (rc == 0) {
        fd = spool_take(&s, &e);
        *out = mem_alloc(len + 1);
        assert_int_equal(pread(fd, *out, len, 0), len);
        close(fd);
    }
    spool_close(&s);
    return rc;
}

static void expect(const char *name, const char *const *columns, const char *want)
{
    char *data, *got = NULL, path[1024];
    size_t n;
    snprintf(path, sizeof path, "%s/tests/fuzz/corpus/parquet/%s", TEST_SOURCE_DIR, name);
    assert_ok(fsio_read(path, 1 << 20, &data, &n, &e), &e);
    assert_ok(lines_of(data, n, columns, &got), &e);
    assert_string_equal(got, want);
    mem_free(got);
    mem_free(data);
}

static void rows(void **state)
{
    static const char *const all[] = {"metadata", "prompt", "label", "tools", NULL};
    static const char *const label[] = {"label", "absent", NULL};
    static const char *const files[] = {"nested_none", "nested_snappy", "nested_gzip",
                                        "nested_zstd", "nested_v2"};
    (void)state;
    for (int i = 0; i < 5; i++) {
        expect(files[i], all,
               "{\"prompt\":[{\"role\":\"user\",\"content\":\"h\xc3\xa9\"},{\"role\":\"a\","
               "\"content\":null}],\"label\":\"1\",\"metadata\":{\"k\":1,\"l\":[[1],[],null],"
               "\"d\":\"2020-02-29\",\"b\":true}}\n"
               "{\"prompt\":[],\"label\":null,\"metadata\":null}\n"
               "{\"prompt\":[{\"role\":\"user\",\"content\":\"xxxxxxxxxxxxxxxxxxxx\"}],"
               "\"label\":\"1\",\"metadata\":{\"k\":null,\"l\":[],\"d\":null,\"b\":null}}\n");
        expect(files[i], label, "{\"label\":\"1\"}\n{\"label\":null}\n{\"label\":\"1\"}\n");
    }
    expect("types", all,
           "{\"prompt\":\"1.23\",\"label\":\"2020-01-02T03:04:05.000006+00:00\",\"tools\":"
           "\"01:02:03.000004\",\"metadata\":[[\"k\",1]]}\n"
           "{\"prompt\":\"-0.01\",\"label\":null,\"tools\":null,\"metadata\":[]}\n"
           "{\"prompt\":null,\"label\":\"0001-01-01T00:00:00+00:00\",\"tools\":\"00:00:00\","
           "\"metadata\":null}\n");
    expect("int96", all,
           "{\"prompt\":1.5,\"label\":\"2020-01-02T00:00:00\",\"metadata\":1}\n"
           "{\"prompt\":2.0,\"label\":\"2020-01-02T00:00:00\",\"metadata\":255}\n");
}

static void encodings(void **state)
{
    static const char *const all[] = {"prompt", "label", "tools", "metadata", NULL};
    static const char *const files[] = {"delta", "delta_length", "checksum"};
    char want[1024] = "";
    (void)state;
    for (int i = 0; i < 3; i++) {
        strcat(want, "{\"prompt\":\"a\",\"label\":1,\"tools\":1.5,\"metadata\":true}\n"
                     "{\"prompt\":\"ab\",\"label\":2,\"tools\":2.5,\"metadata\":false}\n"
                     "{\"prompt\":\"abc\",\"label\":3,\"tools\":null,\"metadata\":null}\n"
                     "{\"prompt\":\"abd\",\"label\":null,\"tools\":0.0,\"metadata\":true}\n");
    }
    for (int i = 0; i < 3; i++) {
        expect(files[i], all, want);
    }
}

static void refusals(void **state)
{
    static const char *const other[] = {"x", "y", NULL};
    static const char *const label[] = {"label", NULL};
    static const char *const prompt[] = {"prompt", NULL};
    char *word, *data, *got = NULL, path[1024];
    size_t n;
    (void)state;
    snprintf(path, sizeof path, "%s/tests/fuzz/corpus/parquet/checksum", TEST_SOURCE_DIR);
    assert_ok(fsio_read(path, 1 << 20, &data, &n, &e), &e);
    assert_int_equal(lines_of(data, n, other, &got), STATUS_INPUT);
    assert_string_equal(e.msg, "t.parquet: no column is named x, y; the file has prompt, label, "
                               "tools, metadata");
    assert_int_equal(lines_of(data, n - 1, label, &got), STATUS_FORMAT);
    assert_non_null(strstr(e.msg, "the footer is missing"));
    assert_int_equal(lines_of(data, 5, label, &got), STATUS_FORMAT);
    for (size_t i = 4; i < n - 8; i++) {
        data[i] ^= 0x10;
        if (lines_of(data, n, label, &got) == 0) {
            mem_free(got);
        } else {
            assert_true(e.code < 0 && strncmp(e.msg, "t.parquet: ", 11) == 0);
        }
        data[i] ^= 0x10;
    }
    word = memmem(data, n, "abd", 3);
    assert_non_null(word);
    word[1] ^= 1;
    assert_int_equal(lines_of(data, n, prompt, &got), STATUS_FORMAT);
    assert_string_equal(e.msg, "t.parquet: row group 0, column prompt, row 1: a page's checksum is "
                               "wrong: the file is damaged");
    mem_free(data);
}

static void snappy(void **state)
{
    uint8_t out[16];
    (void)state;
    /* "ab", then a copy of ten bytes from two back: it repeats what it writes */
    assert_true(parquet_unsnap((const uint8_t *)"\x0c\x04"
                                                "ab\x19\x02",
                               6, out, 12));
    assert_memory_equal(out, "abababababab", 12);
    assert_false(parquet_unsnap((const uint8_t *)"\x0c\x04"
                                                 "ab\x19\x03",
                                6, out, 12)); /* from before the start */
    assert_false(parquet_unsnap((const uint8_t *)"\x0c\x04"
                                                 "ab\x1d\x02",
                                6, out, 12)); /* one byte too many */
    assert_false(parquet_unsnap((const uint8_t *)"\x0c\x04"
                                                 "ab",
                                4, out, 12));
    assert_false(parquet_unsnap((const uint8_t *)"\x02\x04"
                                                 "ab",
                                4, out, 12));
    assert_false(parquet_unsnap((const uint8_t *)"\x02\xf4", 2, out, 2));
    assert_true(parquet_unsnap((const uint8_t *)"\x00", 1, out, 0));
}

static void runs_and_deltas(void **state)
{
    struct parquet_runs r;
    struct parquet_delta d;
    uint32_t v;
    int64_t i;
    (void)state;
    /* three fives, then eight numbers 0 to 7 in three bits each */
    parquet_runs_init(&r, (const uint8_t *)"\x06\x05\x03\x88\xc6\xfa", 6, 3);
    for (int k = 0; k < 11; k++) {
        assert_true(parquet_runs_next(&r, &v));
        assert_int_equal(v, k < 3 ? 5 : k - 3);
    }
    assert_false(parquet_runs_next(&r, &v));
    /* blocks of 128 in 4, five values: 7 5 3 1 2 (deltas -2 -2 -2 1: least -2, then 0 0 0 3) */
    assert_true(parquet_delta_init(
        &d, (const uint8_t *)"\x80\x01\x04\x05\x0e\x03\x02\0\0\0\xc0\0\0\0\0\0\0\0", 18));
    for (int k = 0; k < 5; k++) {
        static const int want[] = {7, 5, 3, 1, 2};
        assert_true(parquet_delta_next(&d, &i));
        assert_int_equal(i, want[k]);
    }
    assert_false(parquet_delta_next(&d, &i));
    assert_false(parquet_delta_init(&d, (const uint8_t *)"\x80\x01\x00\x05\x0e", 5));
    assert_false(parquet_delta_init(&d, (const uint8_t *)"\x07\x01\x05\x0e", 4));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows),   cmocka_unit_test(encodings),       cmocka_unit_test(refusals),
        cmocka_unit_test(snappy), cmocka_unit_test(runs_and_deltas),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
