/* The simulated disk: what is synced stays, what is not may go, and names follow their folders. */
#include "support.h"

#include <fcntl.h>
#include <string.h>

#include "base/fsio.h"
#include "base/mem.h"
#include "base/status.h"
#include "sim/sim.h"
#include "sim/simdisk.h"

static struct err e;

struct box {
    struct sim s;
    struct simdisk *d;
};

static void box_open(struct box *b, uint64_t seed)
{
    sim_init(&b->s, seed);
    b->d = simdisk_new(&b->s);
    fsio_sys_use(simdisk_table(b->d));
    assert_ok(fsio_mkdirs("/sim/a", &e), &e);
    assert_ok(fsio_sync_dir("/sim/a", &e), &e);
}

static void box_close(struct box *b)
{
    fsio_sys_use(NULL);
    simdisk_free(b->d);
    sim_fini(&b->s);
}

/* The file's text, or "none". */
static const char *text_of(const char *path)
{
    static char out[256];
    char *p = NULL;
    size_t n = 0;

    if (fsio_read(path, sizeof out - 1, &p, &n, NULL) != STATUS_OK) {
        return "none";
    }
    memcpy(out, p, n + 1);
    mem_free(p);
    return out;
}

/* After a kill everything is there; after a loss of power at least what was synced, and at most
 * what was written; over many seeds both ends are met, and torn ones between them. */
static void synced_stays(void **state)
{
    int kept = 0, gone = 0, torn = 0;
    (void)state;
    for (uint64_t seed = 0; seed < 60; seed++) {
        struct box b;
        char big[1536];
        const char *t;
        int fd;
        memset(big, 'x', sizeof big);
        box_open(&b, seed);
        fd = fsio_sys_open("/sim/a/f", O_RDWR | O_CREAT);
        assert_true(fd >= FSIO_DISK_FD);
        assert_int_equal(fsio_sys_write(fd, "one", 3), 3);
        assert_int_equal(fsio_sys_sync(fd), 0);
        assert_int_equal(fsio_sys_write(fd, big, sizeof big), (long)sizeof big);
        assert_int_equal(fsio_sys_close(fd), 0);
        simdisk_restart(b.d, 0);
        fd = fsio_sys_open("/sim/a/f", O_RDONLY);
        assert_int_equal(fsio_sys_size(fd), 3 + (int)sizeof big);
        simdisk_restart(b.d, 1);
        fd = fsio_sys_open("/sim/a/f", O_RDONLY);
        assert_true(fsio_sys_size(fd) >= 3);
        kept += fsio_sys_size(fd) == 3 + (int)sizeof big;
        gone += fsio_sys_size(fd) == 3;
        torn += fsio_sys_size(fd) > 3 && fsio_sys_size(fd) < 3 + (int)sizeof big;
        assert_int_equal(fsio_sys_truncate(fd, 3), 0);
        t = text_of("/sim/a/f");
        assert_string_equal(t, "one");
        box_close(&b);
    }
    assert_true(kept > 5 && gone > 5 && torn > 2);
}

/* A rename is there or not, whole; with the folder's sync it is there. */
static void renames(void **state)
{
    int before = 0, after = 0;
    (void)state;
    for (uint64_t seed = 0; seed < 60; seed++) {
        struct box b;
        box_open(&b, seed);
        assert_ok(fsio_write_atomic("/sim/a/f", "old", 3, &e), &e);
        assert_ok(fsio_write_atomic("/sim/a/g", "new", 3, &e), &e);
        assert_int_equal(fsio_sys_rename("/sim/a/g", "/sim/a/f"), 0);
        simdisk_restart(b.d, 1);
        before += strcmp(text_of("/sim/a/f"), "old") == 0;
        after += strcmp(text_of("/sim/a/f"), "new") == 0;
        assert_ok(fsio_write_atomic("/sim/a/f", "last", 4, &e), &e);
        simdisk_restart(b.d, 1);
        assert_string_equal(text_of("/sim/a/f"), "last");
        box_close(&b);
    }
    assert_int_equal(before + after, 60);
    assert_true(before > 5 && after > 5);
}

static void folders(void **state)
{
    struct fsio_names l;
    struct box b;
    (void)state;
    box_open(&b, 1);
    assert_ok(fsio_mkdirs("/sim/a/x", &e), &e);
    assert_ok(fsio_write_atomic("/sim/a/x/f", "1", 1, &e), &e);
    assert_ok(fsio_mkdirs("/sim/a/y", &e), &e);
    assert_ok(fsio_write_atomic("/sim/a/y/f", "2", 1, &e), &e);
    assert_ok(fsio_replace_dir("/sim/a/x", "/sim/a/y", &e), &e);
    assert_string_equal(text_of("/sim/a/y/f"), "1");
    simdisk_restart(b.d, 1);
    assert_string_equal(text_of("/sim/a/y/f"), "1");
    assert_ok(fsio_list("/sim/a", &l, &e), &e);
    assert_true(l.n >= 1);
    assert_string_equal(l.name[l.n - 1], "y");
    fsio_names_fini(&l);
    assert_true(fsio_is_dir("/sim/a/y") && !fsio_is_file("/sim/a/y") && !fsio_is_dir("/sim/b"));
    assert_int_equal(fsio_sys_rmdir("/sim/a/y"), -1); /* not empty */
    assert_ok(fsio_remove_tree("/sim/a/y", &e), &e);
    assert_false(fsio_is_dir("/sim/a/y"));
    box_close(&b);
}

/* The controller ends at an event: from there on nothing reaches the disk. */
static void dead(void **state)
{
    struct box b;
    (void)state;
    box_open(&b, 5);
    b.s.end_at = b.s.event + 3;
    assert_true(fsio_write_atomic("/sim/a/f", "1", 1, &e) != STATUS_OK);
    assert_int_equal(b.s.dead, 1);
    assert_true(fsio_write_atomic("/sim/a/g", "1", 1, &e) != STATUS_OK);
    b.s.dead = 0;
    assert_string_equal(text_of("/sim/a/f"), "none");
    assert_string_equal(text_of("/sim/a/g"), "none");
    box_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(synced_stays),
        cmocka_unit_test(renames),
        cmocka_unit_test(folders),
        cmocka_unit_test(dead),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
