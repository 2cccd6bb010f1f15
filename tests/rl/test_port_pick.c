/* The heap of engines against a plain search, over random changes. */
#include "support.h"

#include "base/rng.h"
#include "rl/port_pick.h"

enum { ENGINES = 57, CHANGES = 200000 };

static void check(const struct port_pick *k, const int *load, int n)
{
    int least = -1, count = 0, idle = 0;

    for (int i = 0; i < n; i++) {
        count += load[i] >= 0;
        idle += load[i] == 0;
        if (load[i] >= 0 && (least < 0 || load[i] < load[least])) {
            least = i;
        }
    }
    assert_int_equal(port_pick_least(k), least);
    assert_int_equal(k->count, count);
    assert_int_equal(k->idle, idle);
}

static void test_random(void **state)
{
    const uint32_t key[2] = {3, 4};
    struct port_pick k;
    int load[ENGINES], n = 20;
    (void)state;

    memset(load, -1, sizeof load);
    port_pick_init(&k, n);
    check(&k, load, n);
    for (uint32_t i = 0; i < CHANGES; i++) {
        uint32_t r[4], ctr[4] = {i, 0, 0, 0};
        int e;
        rng_philox(ctr, key, r);
        if (i == CHANGES / 2) {
            n = ENGINES;
            port_pick_grow(&k, n);
        }
        e = (int)(r[0] % (uint32_t)n);
        load[e] = r[1] % 4 == 0 ? -1 : (int)(r[2] % 9);
        port_pick_set(&k, e, load[e]);
        check(&k, load, n);
    }
    port_pick_fini(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
