/* Vocabulary, merges and the merging of one word, with small models written out here. */
#include "support.h"

#include "base/mem.h"
#include "base/status.h"
#include "text/bpe.h"
#include "text/jscan.h"
#include "text/vocab.h"

/* The vocabulary of the model that is open. */
static struct vocab *voc;

static struct bpe *new_bpe(void)
{
    voc = vocab_new();
    return bpe_new(voc);
}

static void free_bpe(struct bpe *b)
{
    bpe_free(b);
    vocab_free(voc);
}

static int load(struct bpe *b, const char *vocab, const char *merges, struct err *e)
{
    struct jscan s;
    int rc;

    jscan_init(&s, vocab, strlen(vocab));
    rc = vocab_read(voc, &s, e);
    rc = rc ? rc : vocab_finish(voc, e);
    jscan_fini(&s);
    if (rc) {
        return rc;
    }
    jscan_init(&s, merges, strlen(merges));
    rc = bpe_read_merges(b, &s, e);
    jscan_fini(&s);
    return rc;
}

static struct bpe *open_bpe(const char *vocab, const char *merges, const struct bpe_options *o)
{
    struct bpe *b = new_bpe();
    struct err e = {0};

    assert_ok(load(b, vocab, merges, &e), &e);
    assert_ok(bpe_finish(b, o, &e), &e);
    return b;
}

/* "1 2 3": the ids of a word. Twice, so that the cache answers too. */
static const char *encode(const struct bpe *b, const char *word)
{
    static char out[2][4000];
    int k;

    for (k = 0; k < 2; k++) {
        struct tokids ids = {0};
        struct err e = {0};
        size_t i;
        out[k][0] = 0;
        assert_ok(bpe_encode(b, word, strlen(word), &ids, &e), &e);
        for (i = 0; i < ids.n; i++) {
            sprintf(out[k] + strlen(out[k]), i ? " %d" : "%d", (int)ids.v[i]);
        }
        mem_free(ids.v);
    }
    assert_string_equal(out[0], out[1]);
    return out[0];
}

static void test_ranks(void **state)
{
    static const char vocab[] =
        "{\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"bc\":4,\"abc\":5,\"aa\":6,\"aaaa\":7}";
    struct bpe_options o = {.byte_level = 1};
    struct bpe *b;
    (void)state;

    /* the lower rank wins wherever it is; among equals the leftmost */
    b = open_bpe(vocab, "[\"b c\",\"a b\",\"a bc\",\"a a\",\"aa aa\"]", &o);
    assert_string_equal(encode(b, "abc"), "5");
    assert_string_equal(encode(b, "ab"), "3");
    assert_string_equal(encode(b, "aaa"), "6 0");
    assert_string_equal(encode(b, "aaaaa"), "7 0");
    assert_string_equal(encode(b, "aabc"), "0 5");
    assert_string_equal(encode(b, "cab"), "2 3");
    assert_string_equal(encode(b, ""), "");
    free_bpe(b);
    b = open_bpe(vocab, "[[\"a\",\"b\"],[\"b\",\"c\"],[\"a\",\"\\u0062c\"]]", &o);
    assert_string_equal(encode(b, "abc"), "3 2");
    assert_string_equal(encode(b, "bcabc"), "4 3 2");
    free_bpe(b);
    /* a pair given twice has the rank of its last mention */
    b = open_bpe(vocab, "[\"a b\",\"b c\",\"a b\"]", &o);
    assert_string_equal(encode(b, "abc"), "0 4");
    free_bpe(b);
}

static void test_lookup(void **state)
{
    struct bpe_options o = {0};
    struct bpe *b = open_bpe("{\"a\":7,\"\":3,\"\\ud83d\\ude00\":9,\"\\u00e9\\n\":1}", "[]", &o);
    size_t n;
    (void)state;

    assert_int_equal(vocab_count(voc), 4);
    assert_int_equal(vocab_max_id(voc), 9);
    assert_int_equal(vocab_id(voc, "a", 1), 7);
    assert_int_equal(vocab_id(voc, "", 0), 3);
    assert_int_equal(vocab_id(voc, "\xF0\x9F\x98\x80", 4), 9);
    assert_int_equal(vocab_id(voc, "\xC3\xA9\n", 3), 1);
    assert_int_equal(vocab_id(voc, "b", 1), -1);
    assert_string_equal(vocab_text(voc, 9, &n), "\xF0\x9F\x98\x80");
    assert_int_equal(n, 4);
    assert_null(vocab_text(voc, 0, &n));
    assert_null(vocab_text(voc, 10, &n));
    assert_null(vocab_text(voc, -1, &n));
    free_bpe(b);
}

static void test_unknown(void **state)
{
    static const char vocab[] = "{\"<unk>\":0,\"a\":1,\"b\":2,\"ab\":3,\"<0xC3>\":4,\"<0xA9>\":5}";
    struct bpe_options o = {0};
    struct bpe *b;
    (void)state;

    b = open_bpe(vocab, "[\"a b\"]", &o);
    assert_string_equal(encode(b, "axxb"), "3"); /* unknown characters vanish before merging */
    free_bpe(b);
    o.unk_token = "<unk>";
    b = open_bpe(vocab, "[\"a b\"]", &o);
    assert_string_equal(encode(b, "axxb\xC3\xA9"), "1 0 0 2 0");
    free_bpe(b);
    o.fuse_unk = 1;
    b = open_bpe(vocab, "[\"a b\"]", &o);
    assert_string_equal(encode(b, "axxb\xC3\xA9y"), "1 0 2 0");
    free_bpe(b);
    o.byte_fallback = 1;
    b = open_bpe(vocab, "[\"a b\"]", &o);
    assert_string_equal(encode(b, "ab\xC3\xA9x"), "3 4 5 0");
    free_bpe(b);
}

static void test_byte_level(void **state)
{
    /* U+0120 is a space, U+00C3 U+00A9 the two bytes of an e with acute */
    static const char vocab[] = "{\"\\u0120\":0,\"a\":1,\"\\u00c3\":2,\"\\u00a9\":3,"
                                "\"\\u0120a\":4,\"\\u00c3\\u00a9\":5,\"a\\u00c3\\u00a9\":6}";
    struct bpe_options o = {.byte_level = 1};
    struct bpe *b;
    (void)state;

    b = open_bpe(vocab, "[\"\\u0120 a\",\"\\u00c3 \\u00a9\"]", &o);
    assert_string_equal(encode(b, " a\xC3\xA9"), "4 5");
    assert_string_equal(encode(b, "a\xC3\xA9"), "1 5");
    free_bpe(b);
    o.ignore_merges = 1;
    b = open_bpe(vocab, "[\"\\u0120 a\",\"\\u00c3 \\u00a9\"]", &o);
    assert_string_equal(encode(b, "a\xC3\xA9"), "6");
    assert_string_equal(encode(b, "a\xC3\xA9 a"), "1 5 4");
    free_bpe(b);
}

/* Merging by heap equals the plain rule "merge the best pair, leftmost first, until none is left".
 */
static void test_against_plain_rule(void **state)
{
    static const char *const name[] = {"a", "b", "ab", "ba", "aba", "abab", "bb", "abb"};
    static const int merge[][3] = {{1, 0, 3}, {0, 1, 2}, {2, 0, 4},
                                   {1, 1, 6}, {2, 2, 5}, {2, 1, 7}};
    struct bpe_options o = {.byte_level = 1};
    char vocab[400] = "{";
    char merges[400] = "[";
    struct bpe *b;
    unsigned seed = 3;
    size_t i;
    int round;
    (void)state;

    for (i = 0; i < 8; i++) {
        sprintf(vocab + strlen(vocab), "%s\"%s\":%zu", i ? "," : "", name[i], i);
    }
    for (i = 0; i < 6; i++) {
        sprintf(merges + strlen(merges), "%s\"%s %s\"", i ? "," : "", name[merge[i][0]],
                name[merge[i][1]]);
    }
    strcat(vocab, "}");
    strcat(merges, "]");
    b = open_bpe(vocab, merges, &o);
    for (round = 0; round < 500; round++) {
        char word[301];
        int v[300];
        int n, k, r;
        char want[2000] = "";
        n = 1 + (int)((seed = seed * 1664525u + 1013904223u) >> 16) % (round % 2 ? 20 : 300);
        for (k = 0; k < n; k++) {
            v[k] = (int)((seed = seed * 1664525u + 1013904223u) >> 20) & 1;
            word[k] = v[k] ? 'b' : 'a';
        }
        word[n] = 0;
        for (r = 0; r < 6;) {
            for (k = 0; k + 1 < n && (v[k] != merge[r][0] || v[k + 1] != merge[r][1]); k++) {
            }
            if (k + 1 >= n) {
                r++;
                continue;
            }
            v[k] = merge[r][2];
            memmove(v + k + 1, v + k + 2, (size_t)(n - k - 2) * sizeof *v);
            n--;
            r = 0;
        }
        for (k = 0; k < n; k++) {
            sprintf(want + strlen(want), k ? " %d" : "%d", v[k]);
        }
        assert_string_equal(encode(b, word), want);
    }
    free_bpe(b);
}

static void test_refusals(void **state)
{
    static const struct {
        const char *vocab, *merges, *word;
    } cases[] = {
        {"[]", "[]", "object"},
        {"{\"a\":1", "[]", "comma"},
        {"{\"a\":1.5}", "[]", "whole number"},
        {"{\"a\":\"b\"}", "[]", "whole number"},
        {"{\"a\":12345678901234567890}", "[]", "too large"},
        {"{\"a\":16777216}", "[]", "16777216"},
        {"{\"a\" 1}", "[]", "colon"},
        {"{\"a\":1,}", "[]", "item"},
        {"{\"\\x\":1}", "[]", "escape"},
        {"{\"\\u12\":1}", "[]", "hex digits"},
        {"{\"\\udc00\":1}", "[]", "surrogate"},
        {"{\"a\n\":1}", "[]", "without an end"},
        {"{\"a\":1}", "{}", "array"},
        {"{\"a\":1}", "[\"a b\"]", "merge 0"},
        {"{\"a\":1,\"aa\":2}", "[\"a a\",\"aa a\"]", "merge 1"},
        {"{\"a\":1}", "[\"aa\"]", "two tokens"},
        {"{\"a\":1,\"aa\":2}", "[[\"a\",\"a\",\"a\"]]", "pair"},
        {"{\"a\":1}", "[3]", "string"},
        {"{\"a\":1}", "[", "item"},
    };
    size_t i;
    (void)state;

    for (i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bpe *b = new_bpe();
        struct err e = {0};
        int rc = load(b, cases[i].vocab, cases[i].merges, &e);
        if (rc != STATUS_FORMAT || !strstr(e.msg, cases[i].word)) {
            fail_msg("%s %s: status %d, '%s'", cases[i].vocab, cases[i].merges, rc, e.msg);
        }
        free_bpe(b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_lookup),
        cmocka_unit_test(test_unknown),
        cmocka_unit_test(test_byte_level),
        cmocka_unit_test(test_against_plain_rule),
        cmocka_unit_test(test_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
