/* Log lines in a file: time, level and text, after what is there; errors name the cause. */
#include "support.h"

#include <unistd.h>

#include "base/fsio.h"
#include "base/log.h"
#include "base/logfile.h"
#include "base/mem.h"
#include "base/status.h"

static char dir[64];

static int setup(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/miles-test-logfile-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static void test_lines(void **state)
{
    char sub[128], path[160], *text;
    struct logfile *f;
    struct err e = {0};
    size_t n;
    int year, month, day, hour, minute, second, milli, at = 0;

    (void)state;
    snprintf(sub, sizeof sub, "%s/a/b", dir);
    snprintf(path, sizeof path, "%s/serve-%ld.log", sub, (long)getpid());
    for (int i = 0; i < 2; i++) { /* the second time it goes on */
        assert_ok(logfile_open(sub, "serve", &f, &e), &e);
        assert_string_equal(logfile_path(f), path);
        log_info(KV, "evicted %d pages", 3 + i);
        log_debug(KV, "below the level");
        logfile_close(f);
        log_info(KV, "after the end");
    }
    assert_ok(fsio_read(path, 1 << 16, &text, &n, &e), &e);
    assert_int_equal(sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2d.%3dZ info kv: evicted 3 pages\n%n",
                            &year, &month, &day, &hour, &minute, &second, &milli, &at),
                     7);
    assert_true(year >= 2024 && month >= 1 && month <= 12 && at > 0);
    assert_non_null(strstr(text + at, "Z info kv: evicted 4 pages\n"));
    assert_null(strstr(text, "level"));
    assert_null(strstr(text, "after"));
    mem_free(text);
    unlink(path);
    rmdir(sub);
}

static void test_errors(void **state)
{
    char file[128];
    struct logfile *f = NULL;
    struct err e = {0};

    (void)state;
    snprintf(file, sizeof file, "%s/file", dir);
    assert_ok(fsio_write_atomic(file, "x", 1, &e), &e);
    assert_int_not_equal(logfile_open(file, "serve", &f, &e), STATUS_OK);
    assert_non_null(strstr(e.msg, "file"));
    assert_null(f);
    unlink(file);
    logfile_close(NULL);
}

static int teardown(void **state)
{
    char sub[128];
    (void)state;
    snprintf(sub, sizeof sub, "%s/a", dir);
    rmdir(sub);
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lines), cmocka_unit_test(test_errors)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
