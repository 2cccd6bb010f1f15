/* Server-sent events: what the format's text says, wherever the input is cut, and within bounds. */
#include "support.h"

#include "base/rng.h"
#include "base/status.h"
#include "net/sse.h"

/* Events as "type=data|" in one string; a LF in the data shows as '/'. */
static int collect(void *arg, const struct sse_event *ev, struct err *e)
{
    struct buf *b = arg;
    (void)e;
    buf_printf(b, "%s=", ev->type);
    for (size_t i = 0; i < ev->len; i++) {
        buf_char(b, ev->data[i] == '\n' ? '/' : ev->data[i]);
    }
    buf_str(b, ev->done ? "!|" : "|");
    assert_int_equal(ev->data[ev->len], 0);
    return STATUS_OK;
}

/* The events of `in`, fed in pieces of n bytes (0: all at once). */
static int feed(const char *in, size_t len, size_t n, size_t max, struct buf *out)
{
    struct sse p;
    struct err e = {0};
    int rc = STATUS_OK;
    buf_clear(out);
    sse_init(&p, max);
    for (size_t i = 0; i < len && rc == STATUS_OK;) {
        size_t k = n == 0 || n > len - i ? len - i : n;
        rc = sse_feed(&p, in + i, k, collect, out, &e);
        i += k;
    }
    sse_fini(&p);
    return rc;
}

static void events(void **state)
{
    static const struct {
        const char *in, *out;
    } c[] = {
        {"data: a\n\n", "=a|"},
        {"data:a\n\ndata:  b\n\n", "=a|= b|"},
        {"data: a\r\n\r\ndata: b\r\rdata: c\n\r\n", "=a|=b|=c|"},
        {"data: a\ndata: b\ndata\n\n", "=a/b/|"},
        {"data\n\n", "=|"},
        {"data:\n\n\n\n", "=|"},
        {": comment\n\n:\ndata: a\n:x\n\n", "=a|"},
        {"event: t\ndata: a\n\ndata: b\n\n", "t=a|=b|"},
        {"event: t\n\ndata: b\n\n", "=b|"}, /* no data: not told, and its name forgotten */
        {"event: t\nevent: u\ndata: b\n\n", "u=b|"},
        {"id: 3\nretry: 5\nunknown: x\ndata: a\n\n", "=a|"},
        {"data: a", ""},
        {"data: a\n", ""},
        {"data: a\n\ndata: lost\n", "=a|"},
        {"\xEF\xBB\xBF"
         "data: a\n\n",
         "=a|"},
        {"\n\xEF\xBB\xBF"
         "data: a\n\n",
         ""}, /* only at the very start */
        {"data: [DONE]\n\n", "=[DONE]!|"},
        {"data: [DONE] \n\n", "=[DONE] |"},
        {" data: a\nDATA: b\ndatas: c\ndat: d\n\n", ""},
        {"data: {\"a\": \"x: y\"}\n\n", "={\"a\": \"x: y\"}|"},
        {"\r\n\r\n\n\r", ""},
        {"", ""},
    };
    struct buf out;
    (void)state;
    buf_init(&out, 1 << 16);
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) {
        for (size_t n = 0; n <= strlen(c[i].in); n++) {
            assert_int_equal(feed(c[i].in, strlen(c[i].in), n, 1000, &out), STATUS_OK);
            assert_string_equal(out.data, c[i].out);
        }
    }
    buf_fini(&out);
}

static void bounds(void **state)
{
    struct buf in, out;
    struct sse p;
    struct err e = {0};
    (void)state;
    buf_init(&in, 1 << 20);
    buf_init(&out, 1 << 20);
    for (size_t n = 1; n <= 40; n++) { /* "data: " + 14 is 20 bytes */
        buf_clear(&in);
        buf_str(&in, "data: 12345678901234\n\n");
        assert_int_equal(feed(in.data, in.len, n, 20, &out), STATUS_OK);
        assert_string_equal(out.data, "=12345678901234|");
        buf_clear(&in);
        buf_str(&in, "data: 123456789012345\n\n");
        assert_int_equal(feed(in.data, in.len, n, 20, &out), STATUS_FORMAT);
        assert_int_equal(out.len, 0);
        /* Several lines: 10 + LF + 9 are 20 bytes, one more is too much. */
        buf_clear(&in);
        buf_str(&in, "data:1234567890\ndata:123456789\n\n");
        assert_int_equal(feed(in.data, in.len, n, 20, &out), STATUS_OK);
        buf_clear(&in);
        buf_str(&in, "data:1234567890\ndata:1234567890\n\n");
        assert_int_equal(feed(in.data, in.len, n, 20, &out), STATUS_FORMAT);
        buf_clear(&in);
        buf_str(&in, "data:1234567890\ndata:123456789012345\n\n");
        assert_int_equal(feed(in.data, in.len, n, 20, &out), STATUS_FORMAT);
    }
    /* It stays failed. */
    sse_init(&p, 4);
    assert_int_equal(sse_feed(&p, "data: a\n\n", 9, collect, &out, &e), STATUS_FORMAT);
    assert_int_equal(sse_feed(&p, "\n", 1, collect, &out, &e), STATUS_FORMAT);
    sse_fini(&p);
    buf_fini(&in);
    buf_fini(&out);
}

static int stop_at_b(void *arg, const struct sse_event *ev, struct err *e)
{
    collect(arg, ev, e);
    return ev->data[0] == 'b' ? ERR(e, STATUS_INPUT, "b is not wanted") : STATUS_OK;
}

static void callback_stops(void **state)
{
    struct buf out;
    struct sse p;
    struct err e = {0};
    static const char in[] = "data: a\n\ndata: b\n\ndata: c\n\n";
    (void)state;
    buf_init(&out, 1 << 16);
    sse_init(&p, 100);
    assert_int_equal(sse_feed(&p, in, sizeof in - 1, stop_at_b, &out, &e), STATUS_INPUT);
    assert_string_equal(e.msg, "b is not wanted");
    assert_string_equal(out.data, "=a|=b|");
    sse_fini(&p);
    sse_fini(NULL);
    buf_fini(&out);
}

static void writes(void **state)
{
    struct buf b;
    (void)state;
    buf_init(&b, 1 << 16);
    sse_data(&b, "{}", 2);
    sse_comment(&b, "ping");
    sse_data(&b, "a\nb\r\nc\rd", 8);
    sse_data(&b, "", 0);
    sse_data(&b, "x\n", 2);
    sse_done(&b);
    assert_string_equal(b.data, "data: {}\n\n: ping\n\ndata: a\ndata: b\ndata: c\ndata: d\n\n"
                                "data: \n\ndata: x\ndata: \n\ndata: [DONE]\n\n");
    buf_fini(&b);
}

/* Random texts written, then read in random pieces: the same texts. */
static void round_trip(void **state)
{
    static const char letters[] = "ab :\n[]{}\"\xE2\x82\xAC";
    struct buf wire, want, got;
    struct err e = {0};
    struct rng_py g;
    (void)state;
    buf_init(&wire, 1 << 20);
    buf_init(&want, 1 << 20);
    buf_init(&got, 1 << 20);
    rng_py_seed(&g, 7);
    for (int round = 0; round < 300; round++) {
        struct sse p;
        buf_clear(&wire);
        buf_clear(&want);
        buf_clear(&got);
        for (int i = (int)(rng_py_u32(&g) % 8); i > 0; i--) {
            char text[64];
            size_t n = rng_py_u32(&g) % sizeof text;
            for (size_t k = 0; k < n; k++) {
                text[k] = letters[rng_py_u32(&g) % (sizeof letters - 1)];
            }
            sse_data(&wire, text, n);
            buf_char(&want, '=');
            for (size_t k = 0; k < n; k++) {
                buf_char(&want, text[k] == '\n' ? '/' : text[k]);
            }
            buf_char(&want, '|');
        }
        sse_init(&p, 1000);
        for (size_t i = 0; i < wire.len;) {
            size_t k = 1 + rng_py_u32(&g) % 20;
            k = k > wire.len - i ? wire.len - i : k;
            assert_ok(sse_feed(&p, wire.data + i, k, collect, &got, &e), &e);
            i += k;
        }
        sse_fini(&p);
        assert_string_equal(got.data, want.data);
    }
    buf_fini(&wire);
    buf_fini(&want);
    buf_fini(&got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events), cmocka_unit_test(bounds),     cmocka_unit_test(callback_stops),
        cmocka_unit_test(writes), cmocka_unit_test(round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
