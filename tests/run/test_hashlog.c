/* The file of hashes: what a run that goes on keeps, adds and complains of. */
#include "runkit.h"

#include "run/hashlog.h"

static struct err e;
#define HEAD(w)                                                                                    \
    "{\"format\":\"miles-hashes\",\"version\":1,\"rollout\":0,\"weights\":[\"" w "\"]}\n"

static void put(struct hashlog *h, const char *text)
{
    json_t *j = json_loads(text, 0, NULL);
    assert_non_null(j);
    hashlog_put(h, j);
}

static void expect(const char *name, const char *want)
{
    char *got = runkit_text(name);
    assert_string_equal(got, want);
    mem_free(got);
}

static void one_run(void **state)
{
    struct hashlog *h;
    (void)state;
    runkit_put("one", "old\n");
    assert_ok(hashlog_open(runkit_at("one"), 0, &h, &e), &e);
    put(h, HEAD("a"));
    put(h, "{\"rollout\":0,\"step\":0,\"gradients\":[\"n\"]}");
    hashlog_close(h);
    expect("one", HEAD("a") "{\"rollout\":0,\"step\":0,\"gradients\":[\"n\"]}\n");
}

/* Stopped in rollout 1: that is made again, with the same rows. */
static void a_run_that_goes_on(void **state)
{
    struct hashlog *h;
    (void)state;
    runkit_put("on", HEAD("a") "{\"rollout\":0,\"gradients\":[\"n\"],\"weights\":[\"b\"]}\n"
                               "{\"rollout\":1,\"weights\":[\"c\"]}\n{\"rollout\":2,\"wei");
    runkit_listen();
    assert_ok(hashlog_open(runkit_at("on"), 1, &h, &e), &e);
    put(h, "{\"format\":\"miles-hashes\",\"version\":1,\"rollout\":1,\"weights\":[\"b\"]}");
    put(h, "{\"rollout\":1,\"gradients\":[\"n\"],\"weights\":[\"d\"]}");
    hashlog_close(h);
    assert_string_equal(runkit_lines, "");
    expect("on", HEAD("a") "{\"rollout\":0,\"gradients\":[\"n\"],\"weights\":[\"b\"]}\n"
                           "{\"rollout\":1,\"weights\":[\"d\"]}\n");
    assert_ok(hashlog_open(runkit_at("on"), 2, &h, &e), &e); /* with weights of somebody else */
    put(h, "{\"format\":\"miles-hashes\",\"version\":1,\"rollout\":2,\"weights\":[\"x\"]}");
    hashlog_close(h);
    runkit_deaf();
    assert_non_null(strstr(runkit_lines, "are not those that it had after rollout 1"));
}

/* A run that was stopped before its first step has a head only, and its names are still to come. */
static void only_a_head(void **state)
{
    struct hashlog *h;
    (void)state;
    runkit_put("head", HEAD("a"));
    assert_ok(hashlog_open(runkit_at("head"), 1, &h, &e), &e);
    put(h, HEAD("a"));
    put(h, "{\"rollout\":1,\"gradients\":[\"n\"]}");
    hashlog_close(h);
    expect("head", HEAD("a") "{\"rollout\":1,\"gradients\":[\"n\"]}\n");
    assert_int_equal(hashlog_open(runkit_at("no/folder"), 0, &h, &e), STATUS_IO);
}

static void a_full_disk_is_told(void **state)
{
    struct hashlog *h;
    (void)state;
    if (access("/dev/full", W_OK) != 0) {
        skip();
    }
    runkit_listen();
    assert_ok(hashlog_open("/dev/full", 0, &h, &e), &e);
    put(h, HEAD("a"));
    put(h, HEAD("a"));
    hashlog_close(h);
    runkit_deaf();
    assert_non_null(strstr(runkit_lines, "No space left"));
    assert_null(strstr(strchr(runkit_lines, '\n') + 1, "No space left")); /* once */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_run),
        cmocka_unit_test(a_run_that_goes_on),
        cmocka_unit_test(only_a_head),
        cmocka_unit_test(a_full_disk_is_told),
    };
    return cmocka_run_group_tests(tests, runkit_setup, runkit_teardown);
}
