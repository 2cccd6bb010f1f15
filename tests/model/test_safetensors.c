/* The safetensors reader and writer: values through a round trip, half-precision against first
 * principles, and files that are cut, corrupted or contradict themselves. */
#include "fixture.h"

#include <math.h>

#include "model/safetensors.h"

/* Writes the header text and data bytes as a file. */
static const char *raw_file(const char *header, size_t data_len)
{
    struct buf b;
    const char *path = fixture_path("raw.safetensors");

    buf_init(&b, 1 << 20);
    fixture_le(&b, strlen(header), 8);
    buf_str(&b, header);
    for (size_t i = 0; i < data_len; i++) {
        buf_char(&b, (char)i);
    }
    fixture_write(path, b.data, b.len);
    buf_fini(&b);
    return path;
}

static void raw_bad(const char *header, size_t data_len, const char *word)
{
    struct err e = {0};
    struct safetensors *f = NULL;
    int rc = safetensors_open(raw_file(header, data_len), &f, &e);
    if (rc != STATUS_FORMAT && rc != STATUS_UNSUPPORTED) {
        fail_msg("status %d for %s", rc, header);
    }
    if (!strstr(e.msg, word)) {
        fail_msg("message \"%s\" lacks \"%s\"", e.msg, word);
    }
    assert_null(f);
}

static void test_round_trip(void **state)
{
    const float f32[6] = {1.0f, -2.5f, 3.14159274f, 1e-40f, INFINITY, -0.0f};
    const uint16_t bf16[4] = {0x3f80, 0xc040, 0x7f80, 0x0001};
    const uint16_t f16[2] = {0x3c00, 0xbc00};
    const int64_t i64[2] = {INT64_MIN, 1234567890123456789};
    const char *path = fixture_path("a.safetensors");
    struct safetensors_writer *w;
    struct safetensors *f;
    const struct safetensors_tensor *t;
    struct err e = {0};
    int64_t back[2];
    float got[6];
    (void)state;

    assert_ok(safetensors_writer_open(path, &w, &e), &e);
    assert_ok(safetensors_writer_meta(w, "step", "7 \"x\"\n", &e), &e);
    assert_ok(safetensors_writer_add(w, "i", SAFETENSORS_I64, 1, (int64_t[]){2}, &e), &e);
    assert_ok(safetensors_writer_add(w, "f \"q\"", SAFETENSORS_F32, 2, (int64_t[]){2, 3}, &e), &e);
    assert_ok(safetensors_writer_add(w, "empty", SAFETENSORS_F32, 2, (int64_t[]){0, 3}, &e), &e);
    assert_ok(safetensors_writer_add(w, "b", SAFETENSORS_BF16, 3, (int64_t[]){2, 1, 2}, &e), &e);
    assert_ok(safetensors_writer_add(w, "h", SAFETENSORS_F16, 1, (int64_t[]){2}, &e), &e);
    assert_ok(safetensors_writer_begin(w, &e), &e);
    assert_ok(safetensors_writer_write(w, i64, sizeof i64, &e), &e);
    assert_ok(safetensors_writer_write(w, f32, 5, &e), &e);
    assert_ok(safetensors_writer_write(w, (const char *)f32 + 5, sizeof f32 - 5, &e), &e);
    assert_ok(safetensors_writer_write(w, bf16, sizeof bf16, &e), &e);
    assert_ok(safetensors_writer_write(w, f16, sizeof f16, &e), &e);
    assert_false(fsio_is_file(path));
    assert_ok(safetensors_writer_commit(w, &e), &e);

    assert_ok(safetensors_open(path, &f, &e), &e);
    assert_int_equal(safetensors_count(f), 5);
    assert_string_equal(safetensors_meta(f, "format"), "pt");
    assert_string_equal(safetensors_meta(f, "step"), "7 \"x\"\n");
    assert_null(safetensors_meta(f, "none"));
    assert_string_equal(safetensors_at(f, 0)->name, "i");
    assert_null(safetensors_find(f, "x"));
    t = safetensors_find(f, "f \"q\"");
    assert_non_null(t);
    assert_int_equal(t->ndim, 2);
    assert_int_equal(t->dim[0], 2);
    assert_int_equal(t->dim[1], 3);
    assert_string_equal(t->dtype_name, "F32");
    assert_int_equal((uintptr_t)t->data % 4, 0);
    assert_ok(safetensors_read_f32(t, got, 6, &e), &e);
    assert_memory_equal(got, f32, sizeof f32);
    assert_ok(safetensors_read_i64(safetensors_find(f, "i"), back, 2, &e), &e);
    assert_memory_equal(back, i64, sizeof i64);
    assert_ok(safetensors_read_f32(safetensors_find(f, "h"), got, 2, &e), &e);
    assert_true(got[0] == 1.0f && got[1] == -1.0f);
    assert_ok(safetensors_read_f32(safetensors_find(f, "empty"), NULL, 0, &e), &e);
    safetensors_close(f);
}

static void test_conversions(void **state)
{
    /* f32 halfway cases round to even; bf16 passes through; f16 goes over f32. */
    const uint32_t f32[6] = {0x3f808000, 0x3f818000, 0x3f808001,
                             0x7f7fffff, 0x7fc00001, 0xff800000};
    const uint16_t want[6] = {0x3f80, 0x3f82, 0x3f81, 0x7f80, 0x7fc0, 0xff80};
    const char *path = fixture_path("c.safetensors");
    static uint16_t all[65536], out[65536];
    static float wide[65536];
    struct safetensors_writer *w;
    struct safetensors *f;
    struct err e = {0};
    (void)state;

    for (int i = 0; i < 65536; i++) {
        all[i] = (uint16_t)i;
    }
    assert_ok(safetensors_writer_open(path, &w, &e), &e);
    assert_ok(safetensors_writer_add(w, "f", SAFETENSORS_F32, 1, (int64_t[]){6}, &e), &e);
    assert_ok(safetensors_writer_add(w, "b", SAFETENSORS_BF16, 1, (int64_t[]){65536}, &e), &e);
    assert_ok(safetensors_writer_add(w, "h", SAFETENSORS_F16, 1, (int64_t[]){65536}, &e), &e);
    assert_ok(safetensors_writer_begin(w, &e), &e);
    assert_ok(safetensors_writer_write(w, f32, sizeof f32, &e), &e);
    assert_ok(safetensors_writer_write(w, all, sizeof all, &e), &e);
    assert_ok(safetensors_writer_write(w, all, sizeof all, &e), &e);
    assert_ok(safetensors_writer_commit(w, &e), &e);
    assert_ok(safetensors_open(path, &f, &e), &e);
    assert_ok(safetensors_read_bf16(safetensors_find(f, "f"), out, 6, &e), &e);
    assert_memory_equal(out, want, sizeof want);
    assert_ok(safetensors_read_bf16(safetensors_find(f, "b"), out, 65536, &e), &e);
    assert_memory_equal(out, all, sizeof all);
    assert_ok(safetensors_read_f32(safetensors_find(f, "b"), wide, 65536, &e), &e);
    for (int i = 0; i < 65536; i++) {
        uint32_t u;
        memcpy(&u, &wide[i], 4);
        assert_int_equal(u, (uint32_t)i << 16);
    }
    assert_ok(safetensors_read_f32(safetensors_find(f, "h"), wide, 65536, &e), &e);
    for (int i = 0; i < 65536; i++) {
        int exp = i >> 10 & 31, man = i & 1023;
        double v = exp ? ldexp(1024 + man, exp - 25) : ldexp(man, -24);
        if (exp == 31) {
            assert_true(man ? isnan(wide[i]) : isinf(wide[i]));
        } else {
            assert_true((double)wide[i] == (i & 0x8000 ? -v : v));
        }
        assert_true((signbit(wide[i]) != 0) == (i >= 0x8000));
    }
    safetensors_close(f);
}

static void test_read_errors(void **state)
{
    static const char *const other[] = {"F64", "U8", "F8_E4M3", "F4_X9"};
    struct safetensors *f;
    struct err e = {0};
    float v[4];
    int64_t i[4];
    (void)state;

    for (int k = 0; k < 4; k++) {
        char header[256];
        int size = k == 0 ? 8 : 1;
        snprintf(header, sizeof header,
                 "{\"x\":{\"dtype\":\"%s\",\"shape\":[2],\"data_offsets\":[0,%d]}}", other[k],
                 2 * size);
        assert_ok(safetensors_open(raw_file(header, (size_t)(2 * size)), &f, &e), &e);
        assert_int_equal(safetensors_read_f32(safetensors_at(f, 0), v, 2, &e), STATUS_UNSUPPORTED);
        assert_non_null(strstr(e.msg, other[k]));
        assert_int_equal(safetensors_read_i64(safetensors_at(f, 0), i, 2, &e), STATUS_UNSUPPORTED);
        safetensors_close(f);
    }
    assert_ok(safetensors_open(
                  raw_file("{\"x\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8),
                  &f, &e),
              &e);
    assert_int_equal(safetensors_read_f32(safetensors_at(f, 0), v, 1, &e), STATUS_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "I64"));
    assert_int_equal(safetensors_read_i64(safetensors_at(f, 0), i, 2, &e), STATUS_INPUT);
    safetensors_close(f);
}

static void test_bad_headers(void **state)
{
    char deep[3000];
    (void)state;

    raw_bad("", 0, "json");
    raw_bad("[]", 0, "object");
    raw_bad("{", 0, "json");
    raw_bad("{\"a\":3}", 0, "dtype");
    raw_bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "data_offsets");
    raw_bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "data_offsets");
    raw_bad("{\"a\":{\"dtype\":\"F32\",\"shape\":3,\"data_offsets\":[0,4]}}", 4, "shape");
    raw_bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "dimension 0");
    raw_bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4, "dimension 0");
    raw_bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,8]}}", 4, "outside");
    raw_bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "outside");
    raw_bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", 4, "outside");
    raw_bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "bytes");
    raw_bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 5, "data bytes");
    raw_bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}",
            0, "overflows");
    raw_bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4,
            "dimensions");
    raw_bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
            "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
            8, "duplicate");
    raw_bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
            "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}",
            12, "overlaps");
    raw_bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
            "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]}}",
            12, "gap");
    raw_bad("{\"__metadata__\":3}", 0, "__metadata__");
    raw_bad("{\"__metadata__\":{\"a\":3}}", 0, "__metadata__");
    memset(deep, '[', sizeof deep);
    deep[sizeof deep - 1] = 0;
    raw_bad(deep, 0, "json");
}

/* A file with two tensors, for the fault loops. */
static void good_file(struct buf *b)
{
    const char *h = "{\"__metadata__\":{\"format\":\"pt\"},"
                    "\"aa\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]},"
                    "\"bb\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[16,24]}}";
    fixture_le(b, strlen(h), 8);
    buf_str(b, h);
    for (int i = 0; i < 24; i++) {
        buf_char(b, (char)(i * 7));
    }
}

static void test_truncated(void **state)
{
    const char *path = fixture_path("cut.safetensors");
    struct safetensors *f = NULL;
    struct err e = {0};
    struct buf b;
    (void)state;

    buf_init(&b, 4096);
    good_file(&b);
    for (size_t n = 0; n < b.len; n++) {
        fixture_write(path, b.data, n);
        assert_int_equal(safetensors_open(path, &f, &e), STATUS_FORMAT);
        assert_non_null(strstr(e.msg, path));
    }
    fixture_write(path, b.data, b.len);
    assert_ok(safetensors_open(path, &f, &e), &e);
    safetensors_close(f);
    buf_fini(&b);
    assert_int_equal(safetensors_open(fixture_path("absent"), &f, &e), STATUS_NOTFOUND);
}

/* Random bytes changed: either refused, or what is listed can be read without harm. */
static void test_corrupted(void **state)
{
    const char *path = fixture_path("rot.safetensors");
    struct buf b;
    int opened = 0, refused = 0;
    (void)state;

    buf_init(&b, 4096);
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        uint64_t s = seed * 0x9e3779b97f4a7c15ull;
        struct safetensors *f = NULL;
        struct err e = {0};
        buf_clear(&b);
        good_file(&b);
        for (uint32_t k = fixture_rand(&s) % 3 + 1; k; k--) {
            size_t at = fixture_rand(&s) % b.len;
            b.data[at] = fixture_rand(&s) % 2 ? (char)fixture_rand(&s)
                                              : "0123456789[]{}\",:"[fixture_rand(&s) % 17];
        }
        fixture_write(path, b.data, b.len);
        if (safetensors_open(path, &f, &e) != STATUS_OK) {
            assert_true(e.msg[0] != 0);
            refused++;
            continue;
        }
        opened++;
        for (int i = 0; i < safetensors_count(f); i++) {
            const struct safetensors_tensor *t = safetensors_at(f, i);
            float v[64];
            assert_true(t->count <= 64);
            safetensors_read_f32(t, v, t->count, NULL);
        }
        safetensors_close(f);
    }
    buf_fini(&b);
    assert_true(opened > 50 && refused > 500);
}

static void test_writer_errors(void **state)
{
    const char *path = fixture_path("w.safetensors");
    struct safetensors_writer *w;
    struct err e = {0};
    char tmp[300];
    (void)state;

    snprintf(tmp, sizeof tmp, "%s.tmp", path);
    assert_int_equal(safetensors_writer_open(fixture_path("no/such"), &w, &e), STATUS_NOTFOUND);
    assert_ok(safetensors_writer_open(path, &w, &e), &e);
    assert_ok(safetensors_writer_add(w, "a", SAFETENSORS_BF16, 1, (int64_t[]){3}, &e), &e);
    assert_int_equal(safetensors_writer_add(w, "a", SAFETENSORS_F32, 0, NULL, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "taken"));
    assert_int_equal(safetensors_writer_add(w, "b", SAFETENSORS_F32, 0, NULL, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "unaligned"));
    assert_int_equal(
        safetensors_writer_add(w, "c", SAFETENSORS_BF16, 2, (int64_t[]){INT64_MAX, 2}, &e),
        STATUS_INPUT);
    safetensors_writer_abort(w);
    assert_false(fsio_is_file(tmp));
    assert_false(fsio_is_file(path));

    /* Too few bytes: nothing appears; too many: refused at once. */
    assert_ok(safetensors_writer_open(path, &w, &e), &e);
    assert_ok(safetensors_writer_add(w, "a", SAFETENSORS_BF16, 1, (int64_t[]){3}, &e), &e);
    assert_ok(safetensors_writer_begin(w, &e), &e);
    assert_int_equal(safetensors_writer_write(w, "12345678", 8, &e), STATUS_INPUT);
    assert_ok(safetensors_writer_write(w, "1234", 4, &e), &e);
    assert_int_equal(safetensors_writer_commit(w, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "4 of 6"));
    assert_false(fsio_is_file(tmp));
    assert_false(fsio_is_file(path));
    safetensors_writer_abort(NULL);
    safetensors_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),    cmocka_unit_test(test_conversions),
        cmocka_unit_test(test_read_errors),   cmocka_unit_test(test_bad_headers),
        cmocka_unit_test(test_truncated),     cmocka_unit_test(test_corrupted),
        cmocka_unit_test(test_writer_errors),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
