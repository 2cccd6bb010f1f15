/* Debug rollout data: what is written is read back bit for bit; what is wrong is named by line. */
#include "fakeport.h"

#include <math.h>
#include <signal.h>
#include <sys/resource.h>

#include "rl/dump.h"
#include "rl/sample.h"

enum { N = 50 };

static struct err e;

static void make(struct sample **s)
{
    uint64_t x = 1;
    for (int i = 0; i < N; i++) {
        int32_t tokens[40];
        float logps[40];
        int prompt = 1 + i % 7, response = i % 30;
        for (int t = 0; t < 40; t++) {
            x = fakeport_mix(x);
            tokens[t] = (int32_t)(x % 49152);
            logps[t] = -(float)(x >> 40) * 0x1p-21f;
        }
        s[i] = sample_new();
        sample_set(s[i], tokens, prompt, tokens + prompt, i % 5 ? logps : NULL, response, i, 1);
        s[i]->index = s[i]->rollout_id = 1000 + i;
        s[i]->group_index = i / 5;
        s[i]->prompt = json_sprintf("prompt %d", i);
        s[i]->metadata = json_object();
        s[i]->response = mem_strdup(i % 2 ? "text \xe2\x9c\x93" : "");
        s[i]->reward = i % 9 ? (double)i / 7.0 : NAN;
        s[i]->status = (enum sample_status)(i % 5);
    }
}

static void drop(struct sample **s, int n)
{
    for (int i = 0; i < n; i++) {
        sample_free(s[i]);
    }
}

static void round_trip(void **state)
{
    struct sample *s[N], **t;
    const char *path = fakeport_path("a/b/7.jsonl");
    int n;
    (void)state;
    make(s);
    assert_ok(dump_write(path, 7, s, N, &e), &e);
    assert_ok(dump_read(path, &t, &n, &e), &e);
    assert_int_equal(n, N);
    for (int i = 0; i < N; i++) {
        assert_int_equal(t[i]->index, s[i]->index);
        assert_int_equal(t[i]->group_index, s[i]->group_index);
        assert_int_equal(t[i]->prompt_len, s[i]->prompt_len);
        assert_int_equal(t[i]->response_len, s[i]->response_len);
        assert_memory_equal(t[i]->tokens, s[i]->tokens,
                            4 * (size_t)(s[i]->prompt_len + s[i]->response_len));
        assert_int_equal(t[i]->logps != NULL, s[i]->logps != NULL);
        if (s[i]->logps) {
            assert_memory_equal(t[i]->logps, s[i]->logps, 4 * (size_t)s[i]->response_len);
        }
        assert_true(t[i]->reward == s[i]->reward || (isnan(t[i]->reward) && isnan(s[i]->reward)));
        assert_int_equal(t[i]->status, s[i]->status);
        assert_string_equal(t[i]->response, s[i]->response);
    }
    /* what was read is written as the same bytes: a dump is a fixed point */
    {
        const char *again = fakeport_path("again.jsonl");
        char *x, *y;
        size_t nx, ny;
        assert_ok(dump_write(again, 7, t, n, &e), &e);
        assert_ok(fsio_read(path, 1 << 24, &x, &nx, &e), &e);
        assert_ok(fsio_read(again, 1 << 24, &y, &ny, &e), &e);
        assert_int_equal(nx, ny);
        assert_memory_equal(x, y, nx);
        mem_free(x);
        mem_free(y);
    }
    drop(s, N);
    drop(t, n);
    mem_free(t);
}

#define HEAD   "{\"format\":\"miles-rollout\",\"version\":1,\"rollout_id\":0,\"samples\":2}\n"
#define SAMPLE "{\"tokens\":[1,2],\"response_length\":1}\n"

static void refused(const char *text, size_t len, const char *where, const char *why)
{
    const char *path = fakeport_path("bad.jsonl");
    struct sample **s = (struct sample **)1;
    int n = 77, rc;
    assert_ok(fsio_write_atomic(path, text, len, &e), &e);
    memset(&e, 0, sizeof e);
    rc = dump_read(path, &s, &n, &e);
    if (rc == STATUS_OK || !strstr(e.msg, path) || !strstr(e.msg, where) || !strstr(e.msg, why)) {
        fail_msg("%.60s: status %d, \"%s\"; %s and %s were expected", text, rc, e.msg, where, why);
    }
    assert_true(s == (struct sample **)1 && n == 77);
}

static void malformed(void **state)
{
    static const struct {
        const char *text, *where, *why;
    } cases[] = {
        {"", "", "0 samples"},
        {"\n", "line 1", ""},
        {"{}\n", "line 1", "not a miles-rollout"},
        {"[]\n", "line 1", "not a miles-rollout"},
        {"{\"format\":\"miles-rollout\",\"version\":2,\"samples\":1}\n", "line 1", "version"},
        {"{\"format\":\"miles-rollout\",\"version\":1}\n", "line 1", "samples"},
        {"{\"format\":\"miles-rollout\",\"version\":1,\"samples\":-5}\n", "line 1", "-5"},
        {HEAD, "", "0 samples"},
        {HEAD SAMPLE, "", "1 samples"},
        {HEAD SAMPLE SAMPLE SAMPLE, "line 4", "more samples"},
        {HEAD SAMPLE "{\"tokens\":[1,2], oops}\n", "line 3", ""},
        {HEAD SAMPLE "{\"index\":5,\"tokens\":[1,-2],\"response_length\":1}\n", "line 3",
         "sample 5"},
        {HEAD SAMPLE "\n" SAMPLE, "line 3", ""},
        {HEAD SAMPLE "{\"tokens\":[1,2],\"response_length\":1", "line 3", ""},
    };
    struct sample **s;
    int n;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        refused(cases[i].text, strlen(cases[i].text), cases[i].where, cases[i].why);
    }
    assert_int_equal(dump_read(fakeport_path("none.jsonl"), &s, &n, &e), STATUS_NOTFOUND);
    assert_int_equal(dump_read(fakeport_dir, &s, &n, &e), STATUS_INPUT);
    /* a last line without its newline is whole */
    fakeport_text("ok.jsonl", HEAD SAMPLE "{\"tokens\":[1,2],\"response_length\":1}");
    assert_ok(dump_read(fakeport_path("ok.jsonl"), &s, &n, &e), &e);
    assert_int_equal(n, 2);
    drop(s, n);
    mem_free(s);
}

/* The number in the header is not believed before the lines are there. */
static void boasting_header(void **state)
{
    static const char text[] = "{\"format\":\"miles-rollout\",\"version\":1,\"rollout_id\":0,"
                               "\"samples\":100000000}\n" SAMPLE;
    struct rlimit old, low;
    (void)state;
#if defined(__SANITIZE_ADDRESS__)
    skip();
#endif
    getrlimit(RLIMIT_AS, &old);
    low = old;
    low.rlim_cur = (rlim_t)600 << 20;
    assert_int_equal(setrlimit(RLIMIT_AS, &low), 0);
    refused(text, sizeof text - 1, "", "");
    setrlimit(RLIMIT_AS, &old);
}

static void write_plain(const char *path, const char *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    fclose(f);
}

/* Random damage: an error or a sound list, never a crash. */
static void fuzz(void **state)
{
    struct sample *s[N];
    const char *path = fakeport_path("fuzz.jsonl");
    char *data;
    size_t len;
    uint64_t x = 9;
    (void)state;
    make(s);
    assert_ok(dump_write(path, 1, s, 6, &e), &e);
    assert_ok(fsio_read(path, 1 << 20, &data, &len, &e), &e);
    for (int k = 0; k < 1500; k++) {
        size_t at;
        char old;
        struct sample **t;
        int n;
        x = fakeport_mix(x);
        at = x % len;
        old = data[at];
        data[at] = "0-.eE\"[]{},: n\n\0x"[x / 65536 % 17];
        write_plain(path, data, k % 3 ? len : at + 1);
        if (dump_read(path, &t, &n, &e) == STATUS_OK) {
            for (int i = 0; i < n; i++) {
                assert_true(t[i]->prompt_len >= 1 && t[i]->response_len >= 0);
            }
            drop(t, n);
            mem_free(t);
        }
        data[at] = old;
    }
    mem_free(data);
    drop(s, N);
}

static void full_disk(void **state)
{
    struct sample *s[N];
    const char *path = fakeport_path("full.jsonl");
    struct rlimit old, low;
    int rc;
    (void)state;
    make(s);
    signal(SIGXFSZ, SIG_IGN);
    fakeport_text("full.jsonl", "what was there");
    getrlimit(RLIMIT_FSIZE, &old);
    low = old;
    low.rlim_cur = 1000;
    setrlimit(RLIMIT_FSIZE, &low);
    rc = dump_write(path, 1, s, N, &e);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(rc, STATUS_IO);
    assert_false(fsio_is_file(fakeport_path("full.jsonl.tmp")));
    {
        char *data;
        size_t len;
        assert_ok(fsio_read(path, 100, &data, &len, &e), &e);
        assert_string_equal(data, "what was there");
        mem_free(data);
    }
    assert_int_equal(dump_write(fakeport_path("full.jsonl/x/y"), 1, s, N, &e), STATUS_IO);
    drop(s, N);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),      cmocka_unit_test(malformed),
        cmocka_unit_test(boasting_header), cmocka_unit_test(fuzz),
        cmocka_unit_test(full_disk),
    };
    return cmocka_run_group_tests(tests, fakeport_setup, fakeport_teardown);
}
