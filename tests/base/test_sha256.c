/* SHA-256 against the FIPS 180-4 / NIST example vectors, at every split of the input, in plain C
 * and with the machine's instructions. */
#include "support.h"

#include "base/sha256.h"

struct vector {
    const char *text, *hex;
};
static const struct vector vectors[] = {
    {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
    {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
    {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
     "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmno"
     "pqrsmnopqrstnopqrstu",
     "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
};

static void test_vectors(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        const struct vector *v = &vectors[i];
        size_t n = strlen(v->text);
        char hex[65];
        sha256_hex(v->text, n, hex);
        assert_string_equal(hex, v->hex);
        for (size_t cut = 0; cut <= n; cut++) {
            struct sha256 s;
            uint8_t d[32];
            sha256_init(&s);
            sha256_update(&s, v->text, cut);
            sha256_update(&s, NULL, 0);
            sha256_update(&s, v->text + cut, n - cut);
            sha256_final(&s, d);
            sha256_digits(d, hex);
            assert_string_equal(hex, v->hex);
        }
    }
}

static void test_million_a(void **state)
{
    (void)state;
    struct sha256 s;
    uint8_t d[32];
    char block[1000], hex[65];
    memset(block, 'a', sizeof block);
    sha256_init(&s);
    for (int i = 0; i < 1000; i++) {
        sha256_update(&s, block, sizeof block);
    }
    sha256_final(&s, d);
    sha256_digits(d, hex);
    assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

/* Lengths around the padding boundary: every length 0..200 in one call equals byte by byte. */
static void test_lengths(void **state)
{
    (void)state;
    uint8_t data[200], d[32];
    char one[65], many[65];
    for (size_t i = 0; i < sizeof data; i++) {
        data[i] = (uint8_t)(i * 7 + 3);
    }
    for (size_t n = 0; n <= sizeof data; n++) {
        struct sha256 s;
        sha256_hex(data, n, one);
        sha256_init(&s);
        for (size_t i = 0; i < n; i++) {
            sha256_update(&s, data + i, 1);
        }
        sha256_final(&s, d);
        sha256_digits(d, many);
        assert_string_equal(one, many);
    }
    /* 55, 56 and 64 bytes of 'a', from sha256sum. */
    char a[64], hex[65];
    memset(a, 'a', sizeof a);
    sha256_hex(a, 55, hex);
    assert_string_equal(hex, "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318");
    sha256_hex(a, 56, hex);
    assert_string_equal(hex, "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a");
    sha256_hex(a, 64, hex);
    assert_string_equal(hex, "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_million_a),
        cmocka_unit_test(test_lengths),
    };
    int failed;
    sha256_use_plain(1);
    failed = cmocka_run_group_tests_name("plain", tests, NULL, NULL);
    sha256_use_plain(0);
    return failed + cmocka_run_group_tests_name("fast", tests, NULL, NULL);
}
