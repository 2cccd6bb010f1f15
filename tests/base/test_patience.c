/* Waiting for a disk: how long, what for, and what is not waited for. */
#include "support.h"

#include <sys/stat.h>

#include "base/fsio.h"
#include "base/mem.h"
#include "base/patience.h"
#include "base/status.h"
#include "base/world.h"

static struct err e;
static double now;
static int stop;

static double clock_now(void *self)
{
    (void)self;
    return now;
}
static int clock_stop(void *self)
{
    (void)self;
    return stop;
}
static void clock_sleep(void *self, double seconds)
{
    (void)self;
    now += seconds;
}
static const struct world w = {.now = clock_now, .stopping = clock_stop, .sleep = clock_sleep};

/* Tries until a write that fails `fails` times is done or given up; the tries. */
static int tries(int fails, int rc, double most)
{
    struct patience p = {0};
    int n = 0, got;

    now = 1000;
    patience_set(&w, most);
    do {
        got = n++ < fails ? rc : STATUS_OK;
    } while (patience_again(&p, got, "/tmp", &e));
    patience_set(NULL, 0);
    return n;
}

static void waits(void **state)
{
    (void)state;
    assert_int_equal(tries(0, STATUS_IO, 100), 1);
    assert_true(now == 1000);
    assert_int_equal(tries(1, STATUS_IO, 100), 2);
    assert_in_range((int)(now * 10), 10004, 10006); /* the first try comes sooner */
    assert_int_equal(tries(3, STATUS_IO, 100), 4);
    assert_in_range((int)(now * 10), 10044, 10047);
}

static void ends(void **state)
{
    (void)state;
    assert_in_range(tries(1000, STATUS_IO, 21), 10, 13);
    assert_in_range((int)now, 1020, 1023);
    assert_int_equal(tries(1000, STATUS_INPUT, 21), 1);
    assert_int_equal(tries(1000, STATUS_IO, 0), 1);
    stop = 1;
    assert_int_equal(tries(1000, STATUS_IO, 21), 1);
    stop = 0;
}

/* A folder is made when it can be; a place that is none is refused at once. */
static void folders(void **state)
{
    char dir[] = "/tmp/miles-test-patience-XXXXXX", *deep, *file, *below;
    struct err why = {0};
    (void)state;

    assert_non_null(mkdtemp(dir));
    deep = fsio_join(dir, "a/b");
    file = fsio_join(dir, "file");
    below = fsio_join(file, "c");
    patience_set(&w, 100);
    assert_ok(patience_mkdirs(deep, &e), &e);
    assert_true(fsio_is_dir(deep));
    assert_ok(fsio_write_atomic(file, "x", 1, &e), &e);
    now = 1000;
    assert_int_equal(patience_mkdirs(below, &why), STATUS_INPUT);
    assert_non_null(strstr(why.msg, "Not a directory"));
    assert_int_equal(patience_mkdirs(file, &why), STATUS_INPUT);
    assert_true(now == 1000);
    patience_set(NULL, 0);
    fsio_remove_tree(dir, NULL);
    mem_free(deep);
    mem_free(file);
    mem_free(below);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waits),
        cmocka_unit_test(ends),
        cmocka_unit_test(folders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
