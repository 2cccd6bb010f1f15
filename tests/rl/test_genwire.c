/* /generate as the port writes and reads it: what is asked for, exact numbers, and answers that are
 * not what was asked for. */
#include "support.h"

#include <jansson.h>
#include <math.h>

#include "base/buf.h"
#include "base/rng.h"
#include "base/status.h"
#include "rl/genwire.h"

static const int32_t prompt[] = {5, 1, 49151};

static struct port_group group(void)
{
    return (struct port_group){.id = 3,
                               .tokens = prompt,
                               .ntokens = 3,
                               .n = 4,
                               .max_new = 7,
                               .temperature = 0.7f,
                               .top_p = 0.9f,
                               .top_k = -1,
                               .nstop = 2,
                               .stop = {2, 11},
                               .seed = 18446744073709551615ull,
                               .stream = 1,
                               .sample = 1000};
}

static json_t *request(const struct genwire_ask *q)
{
    struct buf b;
    json_t *o;
    buf_init(&b, 1 << 20);
    genwire_request(&b, q);
    assert_int_equal(buf_status(&b), 0);
    o = json_loadb(b.data, b.len, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(o);
    buf_fini(&b);
    return o;
}

static json_int_t number(const json_t *o, const char *a, const char *b)
{
    o = json_object_get(o, a);
    o = b ? json_object_get(o, b) : o;
    assert_true(json_is_integer(o));
    return json_integer_value(o);
}

static void test_request(void **state)
{
    struct port_group g = group();
    struct genwire_ask q = {.g = &g, .first = 2, .count = 2, .rid = "miles-1-2", .miles = 1};
    json_t *o = request(&q), *sp = json_object_get(o, "sampling_params");
    json_t *key = json_object_get(o, "miles_key");
    (void)state;

    assert_string_equal(json_string_value(json_object_get(o, "rid")), "miles-1-2");
    assert_int_equal(json_array_size(json_object_get(o, "input_ids")), 3);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(o, "input_ids"), 2)), 49151);
    assert_true(json_is_true(json_object_get(o, "return_logprob")));
    assert_true(json_is_true(json_object_get(o, "miles_ids_only")));
    assert_true(json_is_true(json_object_get(o, "miles_forget")));
    assert_int_equal(number(o, "sampling_params", "n"), 2);
    assert_int_equal(number(o, "sampling_params", "max_new_tokens"), 7);
    assert_true((float)json_number_value(json_object_get(sp, "temperature")) == 0.7f);
    assert_true((float)json_number_value(json_object_get(sp, "top_p")) == 0.9f);
    assert_int_equal(json_array_size(json_object_get(sp, "stop_token_ids")), 2);
    assert_string_equal(json_string_value(json_object_get(key, "seed")), "18446744073709551615");
    assert_string_equal(json_string_value(json_object_get(key, "sample")), "1002");
    assert_int_equal(number(o, "miles_key", "stream"), 1);
    assert_null(json_object_get(o, "return_routed_experts"));
    json_decref(o);

    q.miles = 0;
    q.count = 1;
    q.experts = 1;
    g.top_k = 20;
    g.ignore_eos = 1;
    o = request(&q);
    sp = json_object_get(o, "sampling_params");
    assert_null(json_object_get(sp, "n"));
    assert_null(json_object_get(o, "miles_key"));
    assert_true(json_is_true(json_object_get(o, "return_routed_experts")));
    assert_true(json_is_true(json_object_get(sp, "ignore_eos")));
    assert_int_equal(number(o, "sampling_params", "top_k"), 20);
    assert_int_equal(number(o, "sampling_params", "sampling_seed"), genwire_seed(g.seed, 1, 1002));
    json_decref(o);
}

/* Every part of the key counts, and the number fits SGLang's signed 64 bits. */
static void test_seed(void **state)
{
    int64_t a = genwire_seed(42, 0, 7);
    (void)state;
    assert_true(a >= 0);
    assert_int_equal(a, genwire_seed(42, 0, 7));
    assert_true(a != genwire_seed(43, 0, 7));
    assert_true(a != genwire_seed(42, 1, 7));
    assert_true(a != genwire_seed(42, 0, 8));
    assert_true(a != genwire_seed(42, 0, 7 | 1ull << 32));
}

static int parse(const char *text, int count, struct genwire_sample *s, struct err *e)
{
    struct port_group g = group();
    struct genwire_ask q = {.g = &g, .count = count, .miles = count > 1};
    memset(e, 0, sizeof *e);
    return genwire_parse(text, strlen(text), &q, s, e);
}

#define META(finish, lps, more)                                                                    \
    "\"meta_info\":{\"id\":\"x\",\"finish_reason\":{\"type\":\"" finish "\"},"                     \
    "\"weight_version\":\"12\",\"output_token_logprobs\":" lps more "}"
#define GOOD                                                                                       \
    "{\"output_ids\":[4,9]," META("stop", "[[-0.100000001,4,null],[-2.5e-07,9,null]]", "") "}"

static void test_answer(void **state)
{
    struct genwire_sample s[2];
    struct err e;
    (void)state;

    assert_ok(parse(GOOD, 1, s, &e), &e);
    assert_int_equal(s[0].ntokens, 2);
    assert_int_equal(s[0].tokens[1], 9);
    assert_true(s[0].logps[0] == -0.1f && s[0].logps[1] == -2.5e-07f);
    assert_int_equal(s[0].finish, PORT_STOP);
    assert_string_equal(s[0].version, "12");
    assert_int_equal(s[0].many_versions, 0);
    assert_null(s[0].experts);
    genwire_fini(&s[0]);

    assert_ok(parse("[" GOOD ",{\"text\":\"x\",\"output_ids\":[]," META("abort", "[]", "") "}]", 2,
                    s, &e),
              &e);
    assert_int_equal(s[1].ntokens, 0);
    assert_int_equal(s[1].finish, PORT_ABORT);
    genwire_fini(&s[0]);
    genwire_fini(&s[1]);

    /* a list of one, as a server may answer n = 1 */
    assert_ok(parse("[" GOOD "]", 1, s, &e), &e);
    genwire_fini(&s[0]);
}

static void test_versions(void **state)
{
    static const char *const more[] = {
        ",\"weight_versions\":[{\"version\":\"12\",\"start\":0,\"end\":1}]",
        (",\"weight_versions\":[{\"version\":\"11\",\"start\":0,\"end\":1},"
         "{\"version\":\"12\",\"start\":1,\"end\":2}]"),
        ",\"miles_mixed_tokens\":1"};
    struct genwire_sample s;
    struct err e;
    char text[512];
    (void)state;

    for (int i = 0; i < 3; i++) {
        snprintf(text, sizeof text,
                 "{\"output_ids\":[4],\"meta_info\":{\"finish_reason\":{\"type\":\"length\"},"
                 "\"weight_version\":\"12\",\"output_token_logprobs\":[[-1,4,null]]%s}}",
                 more[i]);
        assert_ok(parse(text, 1, &s, &e), &e);
        assert_int_equal(s.many_versions, i > 0);
        genwire_fini(&s);
    }
}

/* What an SGLang with --enable-return-routed-experts says: int32 of (tokens, layers, chosen). */
static void test_experts(void **state)
{
    struct genwire_sample s;
    struct err e;
    (void)state;

    assert_ok(parse("{\"output_ids\":[4]," META("length", "[[-1,4,null]]",
                                                ",\"routed_experts\":\"AQAAAP8AAAAAAQAA\"") "}",
                    1, &s, &e),
              &e);
    assert_int_equal(s.nexperts, 3);
    assert_int_equal(s.experts[0], 1);
    assert_int_equal(s.experts[1], 255);
    assert_int_equal(s.experts[2], 256);
    genwire_fini(&s);
    /* one number: its base64 ends with two signs of equality */
    assert_ok(parse("{\"output_ids\":[4]," META("length", "[[-1,4,null]]",
                                                ",\"routed_experts\":\"BwAAAA==\"") "}",
                    1, &s, &e),
              &e);
    assert_int_equal(s.nexperts, 1);
    assert_int_equal(s.experts[0], 7);
    genwire_fini(&s);
}

static void test_malformed(void **state)
{
    static const struct {
        const char *text, *why;
    } bad[] = {
        {"", "not JSON"},
        {"{\"output_ids\":[1]", "not JSON"},
        {"[" GOOD "," GOOD "]", "2 samples, 1 were asked for"},
        {"[]", "0 samples"},
        {"{\"output_ids\":[1]}", "without meta_info"},
        {"3", "not JSON"},
        {GOOD "]", "not JSON"},
        {GOOD GOOD, "not JSON"},
        {"[3]", "without meta_info"},
        {"{\"output_ids\":[1]," META("done", "[[-1,1,null]]", "") "}", "finish_reason is done"},
        {"{\"output_ids\":[1],\"meta_info\":{\"finish_reason\":null}}", "finish_reason is none"},
        {"{\"output_ids\":[1,2]," META("stop", "[[-1,1,null]]", "") "}", "2 tokens with 1 log-p"},
        {"{" META("stop", "[]", "") "}", "0 tokens"},
        {"{\"output_ids\":[]," META("stop", "[]", "") "}", "no tokens"},
        {"{\"output_ids\":[-1]," META("stop", "[[-1,-1,null]]", "") "}", "token 0 is none"},
        {"{\"output_ids\":[1.5]," META("stop", "[[-1,1,null]]", "") "}", "token 0 is none"},
        {"{\"output_ids\":[4294967296]," META("stop", "[[-1,4294967296,null]]", "") "}",
         "token 0 is none"},
        {"{\"output_ids\":[1]," META("stop", "[[null,1,null]]", "") "}", "no log-prob"},
        {"{\"output_ids\":[1]," META("stop", "[[-1e60,1,null]]", "") "}", "no log-prob"},
        {"{\"output_ids\":[1]," META("stop", "[[-1,2,null]]", "") "}", "no log-prob"},
        {"{\"output_ids\":[1]," META("stop", "[7]", "") "}", "no log-prob"},
        {"{\"output_ids\":[1,1,1,1,1,1,1,1]," META(
             "stop", "[[0,1],[0,1],[0,1],[0,1],[0,1],[0,1],[0,1],[0,1]]", "") "}",
         "8 tokens, 7 were asked for"},
        {"{\"output_ids\":[1]," META("stop", "[[-1,1,null]]", ",\"routed_experts\":\"AQ!A\"") "}",
         "not base64"},
        {"{\"output_ids\":[1]," META("stop", "[[-1,1,null]]", ",\"routed_experts\":\"AQAA\"") "}",
         "not base64"},
        {"{\"output_ids\":[1]," META("stop", "[[-1,1,null]]", ",\"routed_experts\":[1]") "}",
         "not a text"},
    };
    struct genwire_sample s[2];
    struct err e;
    (void)state;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (parse(bad[i].text, 1, s, &e) != STATUS_FORMAT || !strstr(e.msg, bad[i].why)) {
            fail_msg("%s: %d %s", bad[i].text, e.code, e.msg);
        }
        assert_null(s[0].tokens);
    }
}

/* Any order of keys, blanks, keys that nobody knows, escapes in names. */
static void test_shapes(void **state)
{
    static const char *const texts[] = {
        "{" META("stop", "[[-1,4],[-2,9,null,{\"x\":[1]}]]", "") ",\"output_ids\":[4,9]}",
        " [ { \"text\" : \"]}\\\"\" , \"output_ids\" : [ 4 , 9 ] , \"meta_info\" : { "
        "\"more\":{\"output_ids\":[1]}, \"weight_version\":\"12\", \"finish_reason\" : "
        "{\"type\":\"stop\"}, \"output_token_logprobs\":[ [ -1 , 4 , \"a\" ] ,[-2,9 ]] } }\n]\n",
        "{\"output\\u005fids\":[4,9]," META("stop", "[[-1e0,4,null],[-2.0,9,null]]", "") "}"};
    struct genwire_sample s;
    struct err e;
    (void)state;

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_ok(parse(texts[i], 1, &s, &e), &e);
        assert_int_equal(s.ntokens, 2);
        assert_true(s.tokens[0] == 4 && s.tokens[1] == 9);
        assert_true(s.logps[0] == -1.0f && s.logps[1] == -2.0f);
        assert_string_equal(s.version, "12");
        genwire_fini(&s);
    }
}

/* Cut anywhere it is refused; with bytes changed it is refused, or what comes out is sound. */
static void test_broken(void **state)
{
    static const char good[] = "[" GOOD "," GOOD "]";
    const uint32_t key[2] = {7, 7};
    struct genwire_sample s[2];
    struct err e;
    char text[sizeof good];
    (void)state;

    for (size_t n = 0; n < sizeof good - 1; n++) {
        memcpy(text, good, n);
        text[n] = 0;
        assert_int_equal(parse(text, 2, s, &e), STATUS_FORMAT);
    }
    for (uint32_t i = 0; i < 100000; i++) {
        uint32_t r[4], ctr[4] = {i, 0, 0, 0};
        rng_philox(ctr, key, r);
        memcpy(text, good, sizeof good);
        text[r[0] % (sizeof good - 1)] = (char)(1 + r[1] % 255);
        text[r[2] % (sizeof good - 1)] = "[]{}\",:0"[r[3] % 9];
        if (parse(text, 2, s, &e) != STATUS_OK) {
            assert_int_equal(e.code, STATUS_FORMAT);
            continue;
        }
        for (int k = 0; k < 2; k++) {
            assert_true(s[k].ntokens >= 1 && s[k].ntokens <= 7);
            for (int t = 0; t < s[k].ntokens; t++) {
                assert_true(s[k].tokens[t] >= 0 && isfinite(s[k].logps[t]));
            }
            genwire_fini(&s[k]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_request), cmocka_unit_test(test_seed),
        cmocka_unit_test(test_answer),  cmocka_unit_test(test_versions),
        cmocka_unit_test(test_experts), cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_shapes),  cmocka_unit_test(test_broken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
