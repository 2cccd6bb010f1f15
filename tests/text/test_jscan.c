/* Numbers as strtod reads them, bit for bit, in place and to the end of the text; what is none is
 * refused. */
#include "support.h"

#include "base/rng.h"
#include "text/jscan.h"

/* The number at the front of the text; 0: it was refused. *used is where the next value begins. */
static int number(const char *text, size_t n, double *v, size_t *used)
{
    struct jscan s;
    int rc;

    jscan_init(&s, text, n);
    rc = jscan_number(&s, v);
    *used = (size_t)(s.p - text);
    jscan_fini(&s);
    return rc;
}

static void same(const char *text)
{
    char more[96];
    double got, want = strtod(text, NULL);
    size_t used, n = strlen(text);

    for (int i = 0; i < 3; i++) { /* the text ends behind it, or something follows */
        snprintf(more, sizeof more, "%s%s", text, i == 0 ? "" : i == 1 ? ",7]" : " ]");
        if (!number(more, strlen(more), &got, &used) || used != n ||
            memcmp(&got, &want, sizeof got) != 0) {
            fail_msg("%s was read as %.17g, %zu bytes", more, got, used);
        }
    }
}

static void test_numbers(void **state)
{
    static const char *const texts[] = {"0",
                                        "-0",
                                        "7",
                                        "-1",
                                        "0.1",
                                        "-0.0",
                                        "123456789012345678",
                                        "1e5",
                                        "-2.5E-7",
                                        "1e-320",
                                        "0.30000000000000004",
                                        "9007199254740992",
                                        "9007199254740993",
                                        "900719925474099.1",
                                        "4503599627370497.5",
                                        "0.00000000000000000000001",
                                        "0.0000000000000000000001",
                                        "123456.7890123456789012345",
                                        "1.7976931348623157e308"};
    (void)state;

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        same(texts[i]);
    }
}

/* Decimals of all lengths, and floats as engines write them. */
static void test_random(void **state)
{
    const uint32_t key[2] = {1, 2};
    (void)state;

    for (uint32_t i = 0; i < 200000; i++) {
        uint32_t r[4], ctr[4] = {i, 0, 0, 0};
        char text[64];
        uint64_t m;
        float f;

        rng_philox(ctr, key, r);
        m = ((uint64_t)r[0] << 32 | r[1]) >> (r[2] % 64);
        snprintf(text, sizeof text, "%s%llu.%0*llu", r[2] & 1024 ? "-" : "",
                 (unsigned long long)(m >> (r[3] % 60)), (int)(1 + r[3] % 9),
                 (unsigned long long)(r[0] % 1000000000u));
        same(text);
        memcpy(&f, &r[1], sizeof f);
        if (f == f && f - f == 0) {
            snprintf(text, sizeof text, "%.9g", (double)f);
            same(text);
            snprintf(text, sizeof text, "%.7f", -(double)(r[0] % 100000) / 7919.0);
            same(text);
        }
    }
}

static void test_refused(void **state)
{
    static const char *const texts[] = {"",      "-",   ".5",   "+1", "1..2",  "1.2.3", "1-",
                                        "1e400", "nan", "null", "[",  "\"1\"", "1e",    "--1"};
    double v;
    size_t used;
    (void)state;

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (number(texts[i], strlen(texts[i]), &v, &used)) {
            fail_msg("%s was read as %.17g", texts[i], v);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
