/* How a rollout is cut into steps: whole rollouts, in order, the rest left out or a smaller step.
 */
#include "support.h"

#include "base/mem.h"
#include "base/status.h"
#include "rl/steps.h"

static struct arena mem;
static struct steps s;
static struct err e;

static int cut(struct steps_opts o, const int64_t *rollout, int n)
{
    arena_fini(&mem);
    arena_init(&mem, 1 << 16);
    memset(&s, 0, sizeof s);
    return steps_cut(&o, rollout, n, &mem, &s, &e);
}

static void same(const int *got, const int *want, int n)
{
    for (int i = 0; i < n; i++) {
        assert_int_equal(got[i], want[i]);
    }
}

static void by_rollouts(void **state)
{
    static const int64_t plain[] = {5, 6, 7, 8, 9}, parts[] = {3, 4, 3, 5, 4, 6};
    (void)state;
    assert_ok(cut((struct steps_opts){2, 0, 0}, plain, 5), &e);
    assert_int_equal(s.n, 2);
    assert_int_equal(s.left, 1);
    same(s.start, (int[]){0, 2, 4}, 3);
    same(s.order, (int[]){0, 1, 2, 3, 4}, 5);
    assert_ok(cut((struct steps_opts){2, 0, 1}, plain, 5), &e);
    assert_int_equal(s.n, 3);
    assert_int_equal(s.left, 0);
    same(s.start, (int[]){0, 2, 4, 5}, 4);
    assert_ok(cut((struct steps_opts){2, 1, 0}, plain, 5), &e);
    assert_int_equal(s.n, 1);
    same(s.start, (int[]){0, 5}, 2);
    /* four rollouts of six samples: those of one are together */
    assert_ok(cut((struct steps_opts){2, 0, 0}, parts, 6), &e);
    assert_int_equal(s.n, 2);
    same(s.start, (int[]){0, 4, 6}, 3);
    same(s.order, (int[]){0, 2, 1, 4, 3, 5}, 6);
}

static void too_few(void **state)
{
    static const int64_t one[] = {1, 1};
    (void)state;
    assert_int_equal(cut((struct steps_opts){2, 0, 0}, one, 2), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "1 rollouts do not fill a global batch of 2"));
    assert_int_equal(cut((struct steps_opts){2, 1, 0}, one, 0), STATUS_INPUT);
    assert_ok(cut((struct steps_opts){2, 0, 1}, one, 2), &e);
    assert_int_equal(s.n, 1);
    arena_fini(&mem);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(by_rollouts), cmocka_unit_test(too_few)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
