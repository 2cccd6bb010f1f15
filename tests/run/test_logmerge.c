/* Merged logs: forms of time, order, levels, patterns, and lines that come later. */
#include "runkit.h"

#include <math.h>
#include <pthread.h>
#include <time.h>

#include "base/world.h"
#include "run/logmerge.h"

static struct err e;
static char *said;

static void parse(const char *line, double want, const char *text, int level)
{
    const char *got;
    int lev;
    double when = logmerge_parse(line, &got, &lev);
    if ((isnan(want) ? !isnan(when) : fabs(when - want) > 1e-6) || strcmp(got, text) != 0 ||
        lev != level) {
        fail_msg("%s: %f '%s' %d", line, when, got, lev);
    }
}

static void forms_of_time(void **state)
{
    (void)state;
    setenv("TZ", "UTC", 1);
    tzset();
    parse("2026-01-31T23:59:59.123Z warn kv: evicted", 1769903999.123, "kv: evicted", LOG_WARN);
    parse("2026-01-31T23:59:59.123Z miles: error kv: x", 1769903999.123, "kv: x", LOG_ERROR);
    parse("2026-01-31 23:59:59 info train: y", 1769903999, "train: y", LOG_INFO);
    parse("=== 2026-01-31 23:59:59 starting: miles serve", 1769903999, "starting: miles serve", -1);
    parse("[2026-01-31 23:59:59] INFO: Uvicorn", 1769903999, "INFO: Uvicorn", LOG_INFO);
    parse("[2026-01-31 23:59:59 TP0] Load weight", 1769903999, "TP0] Load weight", -1);
    parse("2026-01-31 23:59:59,500 WARNING x", 1769903999.5, "WARNING x", LOG_WARN);
    parse("Traceback (most recent call last):", NAN,
          "Traceback (most recent call last):", LOG_ERROR);
    parse("miles: warn kv: without a time", NAN, "kv: without a time", LOG_WARN);
    parse("2026-13", NAN, "2026-13", -1);
    parse("", NAN, "", -1);
    setenv("TZ", "UTC-2", 1); /* local times are two hours ahead, ours are UTC */
    tzset();
    parse("2026-01-31 23:59:59 info y", 1769903999 - 7200, "y", LOG_INFO);
    parse("2026-01-31T23:59:59Z info y", 1769903999, "y", LOG_INFO);
    setenv("TZ", "UTC", 1);
    tzset();
}

static int merge(const struct logmerge_opts *o)
{
    FILE *f;
    size_t n;
    int rc;
    free(said);
    said = NULL;
    memset(&e, 0, sizeof e);
    f = open_memstream(&said, &n);
    rc = logmerge_run(o, f, &e);
    fclose(f);
    return rc;
}

static void write_run(void)
{
    runkit_put("run/log.txt", "2026-01-31T10:00:00.000Z info train: one\n"
                              "2026-01-31T10:00:02.000Z warn train: three\n"
                              "2026-01-31T10:00:02.500Z debug kv: low\n");
    runkit_put("run/engines/engine_0.log", "=== 2026-01-31 10:00:01 starting: miles serve\n"
                                           "2026-01-31T10:00:01.500Z miles: error engine: two\n"
                                           "  of two lines\n"
                                           "2026-01-31T10:00:03.000Z miles: info engine: four\n"
                                           "half a li");
    runkit_put("run/engines/notes.txt", "2026-01-31T10:00:00.000Z error no log\n");
}

static void order_and_levels(void **state)
{
    struct logmerge_opts o = {.run = runkit_at("run"), .level = LOG_INFO};
    (void)state;
    write_run();
    assert_ok(merge(&o), &e);
    assert_string_equal(said, "2026-01-31T10:00:00.000Z run       info  train: one\n"
                              "2026-01-31T10:00:01.000Z engine_0  info  starting: miles serve\n"
                              "2026-01-31T10:00:01.500Z engine_0  error engine: two\n"
                              "2026-01-31T10:00:01.500Z engine_0  error   of two lines\n"
                              "2026-01-31T10:00:02.000Z run       warn  train: three\n"
                              "2026-01-31T10:00:03.000Z engine_0  info  engine: four\n");
    o.level = LOG_WARN;
    o.grep = "t(wo|hree)$";
    assert_ok(merge(&o), &e);
    assert_string_equal(said, "2026-01-31T10:00:01.500Z engine_0  error engine: two\n"
                              "2026-01-31T10:00:02.000Z run       warn  train: three\n");
    o.level = LOG_DEBUG;
    o.grep = "low";
    assert_ok(merge(&o), &e);
    assert_non_null(strstr(said, "debug kv: low"));
    o.grep = "(";
    assert_int_equal(merge(&o), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "--grep ("));
    o.grep = NULL;
    o.run = runkit_at("none");
    assert_int_equal(merge(&o), STATUS_INPUT);
}

static void logs_elsewhere(void **state)
{
    char config[600];
    struct logmerge_opts o = {.run = runkit_at("away"), .level = LOG_INFO};
    (void)state;
    runkit_put("away/log.txt", "2026-01-31T10:00:00.000Z info train: one\n");
    runkit_put("other/engine_1.log", "2026-01-31T09:00:00.000Z miles: info engine: far\n");
    snprintf(config, sizeof config, "{\"options\":{\"sglang_log_dir\":\"%s\"}}",
             runkit_at("other"));
    runkit_put("away/config.json", config);
    assert_ok(merge(&o), &e);
    assert_string_equal(said, "2026-01-31T09:00:00.000Z engine_1  info  engine: far\n"
                              "2026-01-31T10:00:00.000Z run       info  train: one\n");
}

/* While it follows, a line is finished, one is added, and an engine starts. */
static int looks;

static int stopping(void *self)
{
    (void)self;
    if (looks == 1) {
        FILE *f = fopen(runkit_at("run/engines/engine_0.log"), "ab");
        fputs("ne\n", f);
        fclose(f);
        runkit_put("run/engines/engine_1.log",
                   "2026-01-31T11:00:00.000Z miles: info engine: new\n");
    }
    return ++looks > 4;
}

static void follows(void **state)
{
    struct world w = {.stopping = stopping};
    struct logmerge_opts o = {
        .run = runkit_at("run"), .level = LOG_INFO, .follow = 1, .world = &w, .wait_s = 0.001};
    const char *four;
    (void)state;
    write_run();
    assert_ok(merge(&o), &e);
    four = strstr(said, "engine: four\n");
    assert_non_null(four);
    assert_string_equal(four + 13, "2026-01-31T10:00:03.000Z engine_0  info  half a line\n"
                                   "2026-01-31T11:00:00.000Z engine_1  info  engine: new\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forms_of_time),
        cmocka_unit_test(order_and_levels),
        cmocka_unit_test(logs_elsewhere),
        cmocka_unit_test(follows),
    };
    int rc = cmocka_run_group_tests(tests, runkit_setup, runkit_teardown);
    free(said);
    return rc;
}
