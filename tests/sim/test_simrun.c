/* Seeds: a seed is the same run each time, most kinds of fault are met, and a planted bug is found.
 */
#include "support.h"

#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "sim/simrun.h"

static struct simrun_shared sh;
static struct simrun_result a, b;

static void same_again(void **state)
{
    int64_t samples = 0;
    (void)state;
    for (uint64_t seed = 100; seed < 110; seed++) {
        simrun_seed(&sh, seed, SIM_PLANT_NONE, 0, &a);
        simrun_seed(&sh, seed, SIM_PLANT_NONE, 0, &b);
        assert_string_equal(a.broken, "");
        assert_memory_equal(&a, &b, sizeof a);
        samples += a.samples;
    }
    assert_true(samples > 50);
}

static void faults_are_met(void **state)
{
    int64_t hits[SIM_NFAULTS] = {0};
    int kinds = 0;
    (void)state;
    for (uint64_t seed = 200; seed < 260; seed++) {
        simrun_seed(&sh, seed, SIM_PLANT_NONE, 0, &a);
        assert_string_equal(a.broken, "");
        for (int i = 0; i < SIM_NFAULTS; i++) {
            hits[i] += a.hits[i];
        }
    }
    for (int i = 0; i < SIM_NFAULTS; i++) {
        kinds += hits[i] > 0;
    }
    assert_true(kinds >= 30);
}

/* It tells what is broken, where, and what came before, and does so again. */
static void find(enum sim_plant plant)
{
    uint64_t seed = 0;
    do {
        assert_true(seed < 1000);
        simrun_seed(&sh, seed++, plant, 0, &a);
    } while (!a.broken[0]);
    simrun_seed(&sh, seed - 1, plant, 0, &b);
    assert_memory_equal(&a, &b, sizeof a);
    assert_true(a.event > 0 && a.last[0][0]);
    simrun_seed(&sh, seed - 1, SIM_PLANT_NONE, 0, &b);
    assert_string_equal(b.broken, "");
}

static void plants_are_found(void **state)
{
    static const enum sim_plant plants[] = {SIM_PLANT_TWICE, SIM_PLANT_GONE, SIM_PLANT_CRAWL,
                                            SIM_PLANT_EVAL,  SIM_PLANT_ROOM, SIM_PLANT_DELTA};
    (void)state;
    for (size_t i = 0; i < sizeof plants / sizeof plants[0]; i++) {
        find(plants[i]);
    }
}

static int setup(void **state)
{
    struct err e = {0};
    (void)state;
    log_set_level(LOG_NONE);
    return simrun_share(&sh, &e);
}

static int teardown(void **state)
{
    (void)state;
    simrun_unshare(&sh);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_again),
        cmocka_unit_test(faults_are_met),
        cmocka_unit_test(plants_are_found),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
