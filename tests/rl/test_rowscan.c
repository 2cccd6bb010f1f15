/* The fast look at rows against the parser: what it is sure of, jansson takes too; and it is sure
 * of ordinary rows, else it would be of no use. */
#include "support.h"

#include <jansson.h>

#include "base/fsio.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"
#include "rl/promptrow.h"
#include "rl/prompts.h"
#include "rl/rowscan.h"

static struct promptrow_keys keys;

static int parses(const char *text, size_t n)
{
    struct promptrow_fault f;
    struct prompts_row r;
    int ok = promptrow_parse(&keys, text, n, &r, &f) == 0;
    if (ok) {
        promptrow_fini(&r);
    }
    return ok;
}

static void ordinary_rows(void **state)
{
    static const char *const rows[] = {
        "{\"input\": \"a\", \"label\": 1}",
        "  { \"label\" : null , \"input\" : \"\\n\\u00e9 \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\" "
        "} \r",
        "{\"input\":[{\"role\":\"user\",\"content\":\"x\"},{\"content\":[{}],\"role\":\"a\"}],"
        "\"label\":-1.5e3,\"metadata\":{\"k\":[1,2,[]]},\"tools\":[],\"x\":{}}",
        "{\"input\":\"a\",\"label\":[true,false,null,0,-0,1e5,12.25],\"metadata\":null,"
        "\"tools\":null}",
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_true(parses(rows[i], strlen(rows[i])));
        assert_true(rowscan_sure(&keys.scan, rows[i], strlen(rows[i])));
    }
}

static void doubtful_rows(void **state)
{
    static const char *const rows[] = {
        "",
        "{",
        "{}",
        "[]",
        "{\"input\":\"a\"}",
        "{\"label\":1}",
        "{\"input\":1,\"label\":1}",
        "{\"input\":[],\"label\":1}",
        "{\"input\":[{}],\"label\":1}",
        "{\"input\":[{\"role\":1}],\"label\":1}",
        "{\"input\":\"a\",\"label\":1,}",
        "{\"input\":\"a\",\"label\":1}x",
        "{\"input\":\"a\" \"label\":1}",
        "{\"input\":\"a\",\"label\":01}",
        "{\"input\":\"a\",\"label\":1.}",
        "{\"input\":\"a\",\"label\":1e}",
        "{\"input\":\"a\",\"label\":-}",
        "{\"input\":\"a\",\"label\":.5}",
        "{\"input\":\"a\",\"label\":tru}",
        "{\"input\":\"a\\x\",\"label\":1}",
        "{\"input\":\"a\\u00g0\",\"label\":1}",
        "{\"input\":\"a\\u0000\",\"label\":1}",
        "{\"input\":\"\\ud800\",\"label\":1}",
        "{\"input\":\"a\tb\",\"label\":1}",
        "{\"input\":\"\x80\",\"label\":1}",
        "{\"input\":\"\xc3\",\"label\":1}",
        "{\"input\":\"\xed\xa0\x80\",\"label\":1}",
        "{\"input\":\"\xf5\x80\x80\x80\",\"label\":1}",
        "{\"input\":\"\xc0\x80\",\"label\":1}",
        "{\"input\":\"a\",\"label\":1,\"metadata\":[]}",
        "{\"input\":\"a\",\"label\":1,\"tools\":1}",
        "{\"input\":\"a\",\"label\":1,\"tools\":\"[\"}",
        "{\"input\":\"a\",\"label\":NaN}",
        "{\"input\":\"a\",\"label\":123456789012345678901234}",
        "{\"input\":\"a\",\"label\":1e400}",
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_false(parses(rows[i], strlen(rows[i])));
        assert_false(rowscan_sure(&keys.scan, rows[i], strlen(rows[i])));
    }
}

/* Changes of good rows, byte by byte: sure implies that the parser takes it. */
static void mutations(void **state)
{
    static const char alphabet[] = "{}[]\",:\\u0eE+-.tfn \t\n\r\x01\x80\xc3\xa9";
    static const char row[] =
        "{\"input\": [{\"role\": \"user\", \"content\": \"a\\n\\u00e9\xc3\xa9\"}], \"label\": "
        "[1, -2.5e1, \"x\", {}], \"metadata\": {\"k\": null}, \"tools\": [true], \"o\": \"\\\"\"}";
    struct rng_py g;
    int sure = 0, good = 0;
    (void)state;
    rng_py_seed(&g, 11);
    for (int round = 0; round < 200000; round++) {
        char text[sizeof row + 8];
        size_t n = sizeof row - 1;
        int is;
        memcpy(text, row, sizeof row);
        for (int k = (int)rng_py_randbelow(&g, 4); k > 0; k--) {
            size_t at = (size_t)rng_py_randbelow(&g, (int64_t)n);
            char c = alphabet[rng_py_randbelow(&g, (int64_t)sizeof alphabet - 1)];
            switch (rng_py_randbelow(&g, 3)) {
            case 0: text[at] = c; break;
            case 1:
                memmove(text + at, text + at + 1, n - at - 1);
                n--;
                break;
            default:
                memmove(text + at + 1, text + at, n - at);
                text[at] = c;
                n++;
                break;
            }
        }
        is = rowscan_sure(&keys.scan, text, n);
        if (parses(text, n)) {
            good++;
            sure += is;
            assert_int_equal(rowscan_value(text, n) > 0 || text[0] != '{', 1);
        } else {
            assert_false(is);
        }
    }
    assert_true(good > 50000 && sure > good * 9 / 10);
}

static void real_rows(void **state)
{
    static const char *const files[] = {"gsm8k/train_rl.jsonl", "math/math_train.jsonl",
                                        "math/olympiadbench.jsonl", "math/minerva_math.jsonl"};
    struct promptrow_keys k;
    struct err e = {0};
    (void)state;
    promptrow_keys(&k, "prompt", "label", NULL, NULL);
    for (int i = 0; i < 4; i++) {
        char *data, *p;
        size_t len;
        int rows = 0, sure = 0;
        assert_ok(fsio_read(support_data(files[i]), 1 << 27, &data, &len, &e), &e);
        for (p = data; *p;) {
            size_t n = strcspn(p, "\n");
            assert_int_equal(rowscan_value(p, n), n);
            sure += rowscan_sure(&k.scan, p, n);
            rows++;
            p += n + (p[n] == '\n');
        }
        assert_true(rows > 100);
        assert_int_equal(sure, rows);
        mem_free(data);
    }
}

static void values(void **state)
{
    static const struct {
        const char *text;
        size_t n;
    } t[] = {{"{}", 2}, {"[1,2] ,", 5}, {"\"a\\\"b\",", 6}, {"12,", 2},   {"{\"a\":\"}\"}]", 9},
             {"12", 0}, {"{", 0},       {"\"a", 0},         {"]", 0},     {",", 0},
             {"", 0},   {"\"\\", 0},    {"[\x01]", 0},      {"true]", 4}, {"[[[[]]]] ", 8},
             {" 1,", 0}};
    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
        assert_int_equal(rowscan_value(t[i].text, strlen(t[i].text)), t[i].n);
    }
    assert_true(rowscan_blank(" \t\r\f\v", 5));
    assert_false(rowscan_blank(" x", 2));
    assert_false(rowscan_blank("\0", 1));
    assert_true(rowscan_blank("", 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ordinary_rows), cmocka_unit_test(doubtful_rows),
        cmocka_unit_test(mutations),     cmocka_unit_test(real_rows),
        cmocka_unit_test(values),
    };
    promptrow_keys(&keys, NULL, "label", NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
