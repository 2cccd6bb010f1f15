/* The pool: every task once, whatever the number of threads; results seen after the loop; FTZ. */
#include "support.h"

#include <stdatomic.h>
#include <time.h>

#include "base/thread.h"

enum { TASKS = 1000 };

struct work {
    atomic_int ran[TASKS];
    int value[TASKS]; /* plain memory: pool_run must make it visible */
    int workers, round;
    atomic_int bad_worker, not_flushed;
};

static void task(void *arg, int i, int worker)
{
    struct work *w = arg;
    volatile float tiny = 1e-38f;
    atomic_fetch_add(&w->ran[i], 1);
    w->value[i] = i * 7 + w->round;
    if (worker < 0 || worker >= w->workers) {
        atomic_store(&w->bad_worker, 1);
    }
#if defined(__x86_64__)
    tiny = tiny * 1e-5f;
    if (tiny != 0.0f) {
        atomic_store(&w->not_flushed, 1);
    }
#endif
    (void)tiny;
}

static void each_task_once(void **state)
{
    static const int sizes[] = {0, 1, 2, 3, 7, 8, 64, TASKS};
    (void)state;
    for (int n = 1; n <= 8; n++) {
        struct pool *p = pool_new(n);
        static struct work w;
        assert_int_equal(pool_size(p), n);
        w.workers = n;
        for (int s = 0; s < 8; s++) {
            memset(w.ran, 0, sizeof w.ran);
            memset(w.value, 0, sizeof w.value);
            w.round = s;
            pool_run(p, task, &w, sizes[s]);
            for (int i = 0; i < TASKS; i++) {
                assert_int_equal(atomic_load(&w.ran[i]), i < sizes[s]);
                assert_int_equal(w.value[i], i < sizes[s] ? i * 7 + s : 0);
            }
        }
        assert_false(atomic_load(&w.bad_worker));
        assert_false(atomic_load(&w.not_flushed));
        pool_free(p);
    }
}

struct tiny_work {
    int a[16];
};

static void tiny_task(void *arg, int i, int worker)
{
    struct tiny_work *w = arg;
    (void)worker;
    w->a[i] += 1;
}

/* Thousands of loops of a few tasks, some after a pause in which the workers fell asleep: a task
 * that is lost, doubled or late leaves a wrong count. */
static void tiny_loops(void **state)
{
    (void)state;
    for (int n = 1; n <= 8; n += n < 3 ? 1 : 5) {
        struct pool *p = pool_new(n);
        struct tiny_work w = {{0}};
        int want[16] = {0};
        int loops = n > 2 ? 300 : 3000;
        for (int k = 0; k < loops; k++) {
            int tasks = k % 17;
            pool_run(p, tiny_task, &w, tasks);
            for (int i = 0; i < tasks; i++) {
                want[i]++;
            }
            assert_memory_equal(w.a, want, sizeof want);
            if (k % 100 == 50) {
                struct timespec nap = {0, 2000000};
                nanosleep(&nap, NULL);
            }
        }
        pool_free(p);
    }
}

static void late_task(void *arg, int i, int worker)
{
    struct timespec nap = {0, worker ? 8000000 : 1000000};
    nanosleep(&nap, NULL);
    tiny_task(arg, i, worker);
}

/* The caller finds no more tasks and falls asleep long before the workers are done. */
static void late_workers(void **state)
{
    struct pool *p = pool_new(3);
    struct tiny_work w = {{0}};
    (void)state;
    for (int k = 1; k <= 10; k++) {
        pool_run(p, late_task, &w, 3);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(w.a[i], k);
        }
    }
    pool_free(p);
}

/* Pools come and go without a loop, and two live at once. */
static void life(void **state)
{
    struct pool *p[4];
    struct tiny_work w = {{0}};
    (void)state;
    for (int k = 0; k < 50; k++) {
        struct pool *q = pool_new(1 + k % 4);
        if (k % 2) {
            pool_run(q, tiny_task, &w, 8);
        }
        pool_free(q);
    }
    assert_int_equal(w.a[0], 25);
    for (int i = 0; i < 4; i++) {
        p[i] = pool_new(2);
    }
    for (int i = 0; i < 4; i++) {
        pool_run(p[i], tiny_task, &w, 16);
    }
    assert_int_equal(w.a[7], 29);
    assert_int_equal(w.a[15], 4);
    for (int i = 0; i < 4; i++) {
        pool_free(p[i]);
    }
    pool_free(NULL);
    assert_true(pool_cores() >= 1);
    p[0] = pool_new(0);
    assert_int_equal(pool_size(p[0]), pool_cores());
    pool_free(p[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_task_once),
        cmocka_unit_test(tiny_loops),
        cmocka_unit_test(late_workers),
        cmocka_unit_test(life),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
