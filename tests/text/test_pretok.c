/* Cutting text into words and the regex dialect behind it, against pieces the package made. */
#include "support.h"

#include <jansson.h>

#include "base/buf.h"
#include "base/status.h"
#include "text/pretok.h"

static int golden_file(const char *path)
{
    json_error_t je;
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, &je);
    struct pretok_work w;
    size_t i, k;

    assert_non_null(root);
    pretok_work_init(&w);
    for (i = 0; i < json_array_size(root); i++) {
        json_t *row = json_array_get(root, i);
        json_t *spec = json_array_get(row, 0);
        json_t *text = json_array_get(row, 1);
        json_t *want = json_array_get(row, 2);
        struct pretok *p = NULL;
        struct err e = {0};
        char *shown = json_dumps(spec, JSON_COMPACT);
        assert_ok(pretok_open(spec, &p, &e), &e);
        assert_false(pretok_is_byte_level(p));
        assert_ok(pretok_run(p, json_string_value(text), json_string_length(text), 1, &w, &e), &e);
        if (w.n != json_array_size(want)) {
            fail_msg("%s: '%s': %zu pieces, not %zu", shown, json_string_value(text), w.n,
                     json_array_size(want));
        }
        for (k = 0; k < w.n; k++) {
            const json_t *s = json_array_get(want, k);
            if (w.piece[k].n != json_string_length(s) ||
                memcmp(w.piece[k].s, json_string_value(s), w.piece[k].n) != 0) {
                fail_msg("%s: '%s': piece %zu is '%.*s', not '%s'", shown, json_string_value(text),
                         k, (int)w.piece[k].n, w.piece[k].s, json_string_value(s));
            }
        }
        free(shown);
        pretok_close(p);
    }
    pretok_work_fini(&w);
    i = json_array_size(root);
    json_decref(root);
    return (int)i;
}

static void test_split_goldens(void **state)
{
    (void)state;
    assert_true(golden_file(TEST_GOLDEN_DIR "/pretok.json") > 400);
}

/* "a|b|c": the pieces of a text under a pre-tokenizer. */
static const char *cut(const char *spec, const char *text)
{
    static char out[1000];
    json_error_t je;
    json_t *j = json_loads(spec, JSON_DECODE_ANY, &je);
    struct pretok_work w;
    struct pretok *p = NULL;
    struct err e = {0};
    size_t i;

    assert_non_null(j);
    pretok_work_init(&w);
    assert_ok(pretok_open(j, &p, &e), &e);
    assert_ok(pretok_run(p, text, strlen(text), 1, &w, &e), &e);
    out[0] = 0;
    for (i = 0; i < w.n; i++) {
        sprintf(out + strlen(out), "%s%.*s", i ? "|" : "", (int)w.piece[i].n, w.piece[i].s);
    }
    pretok_close(p);
    pretok_work_fini(&w);
    json_decref(j);
    return out;
}

static void test_kinds(void **state)
{
    (void)state;
    assert_string_equal(cut("{\"type\":\"Digits\",\"individual_digits\":true}", "a12b \xC2\xBD"),
                        "a|1|2|b |\xC2\xBD");
    assert_string_equal(cut("{\"type\":\"Digits\",\"individual_digits\":false}", "a12b \xC2\xBD"),
                        "a|12|b |\xC2\xBD");
    assert_string_equal(
        cut("{\"type\":\"ByteLevel\",\"add_prefix_space\":false}", "I'll be  there"),
        "I|'ll| be| | there");
    assert_string_equal(cut("{\"type\":\"ByteLevel\",\"add_prefix_space\":true}", "a b"), " a| b");
    assert_string_equal(
        cut("{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":false}", "a b"),
        " a b");
    /* a stage after ByteLevel sees the byte alphabet, the words leave as bytes */
    assert_string_equal(
        cut("{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\","
            "\"add_prefix_space\":false},{\"type\":\"Split\",\"pattern\":{\"String\":"
            "\"\\u0120\"},\"behavior\":\"Isolated\",\"invert\":false}]}",
            "a b\xC3\xA9"),
        "a| |b\xC3\xA9");
    assert_string_equal(cut("{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":"
                            "\"first\",\"split\":true}",
                            "a b"),
                        "_a|_b");
    assert_string_equal(cut("null", "a b"), "a b");
    assert_string_equal(cut("{\"type\":\"Sequence\",\"pretokenizers\":[]}", ""), "");
}

static void check_rx(const char *pattern, int code, const char *want)
{
    struct err e = {0};
    struct rx *r = NULL;
    struct buf b;
    int rc;

    buf_init(&b, 1000);
    rc = rx_translate(pattern, strlen(pattern), &b, &e);
    if (rc == 0 && !want) {
        rc = rx_open(pattern, strlen(pattern), &r, &e);
    }
    if (rc != code) {
        fail_msg("%s: status %d (%s), not %d", pattern, rc, e.msg, code);
    }
    if (want) {
        assert_string_equal(b.data, want);
    } else {
        assert_true(e.msg[0] != 0);
    }
    assert_null(r);
    buf_fini(&b);
}

#define SPACES                                                                                     \
    "\\x{9}-\\x{D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}"    \
    "\\x{205F}\\x{3000}"

static void test_dialect(void **state)
{
    (void)state;
    check_rx("\\s+[\\s\\n]", 0, "[" SPACES "]+[" SPACES "\\n]");
    check_rx("\\d\\.[\\D]", 0, "\\p{Nd}\\.[\\P{Nd}]");
    check_rx("\\h\\v\\u0041\\x41", 0, "[0-9a-fA-F]\\x{B}\\x{41}\\x{41}");
    check_rx("\\p{L}\\p{^N}\\p{Han}", 0, "\\p{L}\\P{N}\\p{sc:Han}");
    check_rx("\\p{N}{1,3}+x", 0, "(?:\\p{N}{1,3})+x");
    check_rx("(ab){2}?{", 0, "(?:(?:ab){2})?\\{");
    check_rx("a{,3}b{2,}?", 0, "a{0,3}b{2,}?");
    check_rx("[]a][^]b]", 0, "[\\]a][^\\]b]");

    /* what would mean something else, or nothing, is refused by name */
    check_rx("[a[bc]]", STATUS_UNSUPPORTED, NULL);
    check_rx("[a-z&&[aeiou]]", STATUS_UNSUPPORTED, NULL);
    check_rx("[\\W]", STATUS_UNSUPPORTED, NULL);
    check_rx("(?m:a.b)", STATUS_UNSUPPORTED, NULL);
    check_rx("a(?i)b|c", STATUS_UNSUPPORTED, NULL);
    check_rx("(a)\\1", STATUS_UNSUPPORTED, NULL);
    check_rx("\\xE9", STATUS_UNSUPPORTED, NULL);
    check_rx("\\ud800", STATUS_UNSUPPORTED, NULL);
    check_rx("\\p{L", STATUS_UNSUPPORTED, NULL);
    check_rx("\\p{NoSuchScript}", STATUS_FORMAT, NULL);
    check_rx("a\\", STATUS_UNSUPPORTED, NULL);
    check_rx("[abc", STATUS_FORMAT, NULL);
    check_rx("(a", STATUS_FORMAT, NULL);
    check_rx("a)", STATUS_FORMAT, NULL);
    check_rx("*a", STATUS_FORMAT, NULL);
    check_rx("\xff", STATUS_FORMAT, NULL);
}

static void test_refusals(void **state)
{
    static const struct {
        const char *spec;
        int code;
        const char *word;
    } cases[] = {
        {"{\"type\":\"UnicodeScripts\"}", STATUS_UNSUPPORTED, "UnicodeScripts"},
        {"{}", STATUS_FORMAT, "type"},
        {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Odd\"}", STATUS_FORMAT,
         "Odd"},
        {"{\"type\":\"Split\",\"pattern\":{},\"behavior\":\"Removed\"}", STATUS_FORMAT, "pattern"},
        {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?m:a)\"},\"behavior\":\"Removed\"}",
         STATUS_UNSUPPORTED, "(?m:a)"},
        {"{\"type\":\"Metaspace\",\"replacement\":\"ab\"}", STATUS_FORMAT, "replacement"},
        {"{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"},{\"type\":"
         "\"ByteLevel\"}]}",
         STATUS_UNSUPPORTED, "twice"},
        {"{\"type\":\"Sequence\"}", STATUS_FORMAT, "Sequence"},
    };
    size_t i;
    (void)state;

    for (i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_error_t je;
        json_t *j = json_loads(cases[i].spec, 0, &je);
        struct pretok *p = NULL;
        struct err e = {0};
        assert_int_equal(pretok_open(j, &p, &e), cases[i].code);
        assert_non_null(strstr(e.msg, cases[i].word));
        assert_null(p);
        json_decref(j);
    }
}

static const char *golden_arg;

static void test_golden_arg(void **state)
{
    (void)state;
    print_message("%d rows\n", golden_file(golden_arg));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split_goldens),
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_dialect),
        cmocka_unit_test(test_refusals),
    };
    const struct CMUnitTest one[] = {cmocka_unit_test(test_golden_arg)};

    if (argc == 3 && strcmp(argv[1], "--golden") == 0) {
        golden_arg = argv[2];
        return cmocka_run_group_tests(one, NULL, NULL);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
