/* The checkpoints of a run: what is removed with old ones, and what is told of one that is there.
 */
#include "fakeport.h"

#include <sys/stat.h>

#include "rl/keeper.h"
#include "rl/train_opts.h"
#include "train/ckpt.h"

static struct err e;

static int exists(const char *name)
{
    return fsio_is_dir(fakeport_path(name));
}

/* A trainer whose checkpoints are empty folders. */
static int save(void *self, const char *dir, int64_t iteration, int with_optim, const json_t *state,
                struct err *err)
{
    char name[64];
    (void)self, (void)dir, (void)with_optim, (void)state, (void)err;
    snprintf(name, sizeof name, "kept/iter_%07lld", (long long)iteration);
    assert_ok(fsio_mkdirs(fakeport_path(name), &e), &e);
    snprintf(name, sizeof name, "%lld\n", (long long)iteration);
    fakeport_text("kept/latest_checkpointed_iteration.txt", name);
    return STATUS_OK;
}

/* A checkpoint a rollout, a new reference behind every third, two checkpoints stay. */
static void references(void **state)
{
    struct fakeport f;
    struct train_opts o = {.save = (char *)(uintptr_t)fakeport_path("kept"),
                           .save_keep = 2,
                           .save_keep_bytes = CONF_UNSET,
                           .update_weights_interval = 1};
    struct trainer_port actor = {.save = save};
    struct keeper k;

    (void)state;
    o.save = mem_strdup(o.save);
    fakeport_open(&f, 0);
    keeper_init(&k, &(struct keeper_cfg){.o = &o, .actor = &actor, .world = &f.world});
    for (int64_t r = 0; r < 9; r++) {
        if (r % 3 == 2) {
            char *dir = keeper_ref(o.save, r);
            assert_ok(fsio_mkdirs(dir, &e), &e);
            mem_free(dir);
        }
        keeper_trained(&k, r, json_object());
        assert_ok(keeper_save(&k, &e), &e);
        assert_ok(keeper_poll(&k, 1, &e), &e);
        if (r == 5) { /* 4 was trained with the reference of 2, 5 has the next beside it */
            assert_true(exists("kept/ref_0000002") && exists("kept/ref_0000005"));
        }
        if (r == 6) {
            assert_true(!exists("kept/ref_0000002") && exists("kept/ref_0000005"));
        }
    }
    assert_true(exists("kept/ref_0000005") && exists("kept/ref_0000008"));
    assert_true(exists("kept/iter_0000007") && !exists("kept/iter_0000006"));
    keeper_fini(&k);
    mem_free(o.save);
    fakeport_close(&f);
}

static void event(void **state)
{
    json_t *flying = json_loads(
        "{\"stream\":{\"flight\":[{\"rollout\":6},{\"rollout\":4},{\"rollout\":5}]}}", 0, NULL);
    json_t *still = json_loads("{\"stream\":{\"flight\":[]}}", 0, NULL), *x;

    (void)state;
    x = keeper_event(6, flying);
    assert_int_equal(json_integer_value(json_object_get(x, "iteration")), 6);
    assert_int_equal(json_integer_value(json_object_get(x, "needs")), 4);
    json_decref(x);
    x = keeper_event(6, still);
    assert_int_equal(json_integer_value(json_object_get(x, "needs")), 7);
    json_decref(x);
    x = keeper_event(6, NULL);
    assert_int_equal(json_object_size(x), 1);
    json_decref(x);
    json_decref(flying);
    json_decref(still);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(references), cmocka_unit_test(event)};
    return cmocka_run_group_tests(tests, fakeport_setup, fakeport_teardown);
}
