/* Text token by token against text as a whole, in many scripts and for every kind of decoder. */
#include "support.h"

#include <jansson.h>

#include "base/buf.h"
#include "base/fsio.h"
#include "base/mem.h"
#include "base/status.h"
#include "text/tokenizer.h"
#include "text/tokstream.h"

static const char *const families[] = {"smollm2", "qwen3",   "llama-3.1",
                                       "llama-2", "gemma-4", "mistral-7b-v0.3"};

static char *read_data(const char *rel)
{
    struct err e = {0};
    size_t len;
    char *s;
    assert_ok(fsio_read(support_data(rel), (size_t)1 << 30, &s, &len, &e), &e);
    return s;
}

static struct tokenizer *open_family(const char *family)
{
    struct err e = {0};
    struct tokenizer *t;
    char rel[200], *json;

    snprintf(rel, sizeof rel, "tokenizers/%s/tokenizer.json", family);
    json = read_data(rel);
    assert_ok(tokenizer_open(json, &t, &e), &e);
    mem_free(json);
    return t;
}

/* 1 when the bytes end inside a character. */
static int is_cut(const char *s, size_t n)
{
    size_t k = 0;
    while (k < n && k < 4 && ((unsigned char)s[n - 1 - k] & 0xc0) == 0x80) {
        k++;
    }
    if (k == n || k == 4) {
        return k > 0;
    }
    unsigned char lead = (unsigned char)s[n - 1 - k];
    return lead >= 0xc0 && k + 1 < (lead >= 0xf0 ? 4u : lead >= 0xe0 ? 3u : 2u);
}

static void check(const struct tokenizer *t, const int32_t *ids, size_t n, size_t most)
{
    struct err e = {0};
    struct tokstream s;
    struct buf out;
    char *want;
    size_t len, pieces = 0;

    assert_ok(tokenizer_decode(t, ids, n, 1, &want, &len, &e), &e);
    buf_init(&out, 1 << 24);
    tokstream_init(&s, t, 1);
    for (size_t i = 0, step = 1; i < n; i += step) {
        size_t before = out.len;
        step = 1 + i % most;
        step = step < n - i ? step : n - i;
        assert_ok(tokstream_push(&s, ids, i + step, &out, &e), &e);
        assert_false(is_cut(out.data, out.len));
        pieces += out.len > before;
    }
    assert_ok(tokstream_end(&s, ids, n, &out, &e), &e);
    assert_ok(tokstream_end(&s, ids, n, &out, &e), &e); /* nothing is left */
    assert_string_equal(out.data, want);
    assert_int_equal(out.len, len);
    assert_true(n < 100 || pieces > n / most / 4); /* it does come in pieces */
    buf_fini(&out);
    mem_free(want);
}

static void check_text(const struct tokenizer *t, const char *text, size_t len)
{
    struct err e = {0};
    int32_t *ids;
    size_t n;
    assert_ok(tokenizer_encode(t, text, len, 0, &ids, &n, &e), &e);
    check(t, ids, n, 1);
    check(t, ids, n, 5);
    mem_free(ids);
}

static void test_scripts(void **state)
{
    static const char *const files[] = {"eng", "amh", "arb", "cmn_hans", "ben", "fuf_adlm"};
    (void)state;
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        struct tokenizer *t = open_family(families[f]);
        for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
            char rel[64], *s;
            size_t n;
            snprintf(rel, sizeof rel, "text/udhr/%s.txt", files[i]);
            s = read_data(rel);
            n = strlen(s) < 3000 ? strlen(s) : 3000; /* may end inside a character */
            check_text(t, s, n);
            mem_free(s);
        }
        tokenizer_close(t);
    }
}

static void test_edges(void **state)
{
    char *all = read_data("text/edge_cases.jsonl");
    (void)state;
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        struct tokenizer *t = open_family(families[f]);
        int cases = 0;
        for (char *s = all, *end; cases < 150 && (end = strchr(s, '\n')); s = end + 1) {
            json_t *line = json_loadb(s, (size_t)(end - s), JSON_ALLOW_NUL, NULL);
            const json_t *text = json_object_get(line, "text");
            assert_true(json_is_string(text));
            if (!memchr(json_string_value(text), 0, json_string_length(text))) {
                check_text(t, json_string_value(text), json_string_length(text));
                cases++;
            }
            json_decref(line);
        }
        assert_int_equal(cases, 150);
        tokenizer_close(t);
    }
    mem_free(all);
}

/* Special tokens in between are left out and hold nothing up. */
static void test_special(void **state)
{
    struct tokenizer *t = open_family("smollm2");
    struct err e = {0};
    int32_t *ids;
    size_t n;
    static const char text[] =
        "<|im_start|>user\nWie geht's? \xf0\x9f\x98\x80<|im_end|>\n<|im_start|>";

    (void)state;
    assert_ok(tokenizer_encode(t, text, strlen(text), 0, &ids, &n, &e), &e);
    assert_true(tokenizer_is_special(t, ids[0]));
    check(t, ids, n, 1);
    check(t, ids, n, 3);
    check(t, ids, 0, 1);
    mem_free(ids);
    tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scripts),
        cmocka_unit_test(test_edges),
        cmocka_unit_test(test_special),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
