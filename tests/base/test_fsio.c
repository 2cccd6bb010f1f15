/* Files: whole reads and their limits, all-or-nothing writes also when the disk is full, folders.
 */
#include "support.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fsio.h"
#include "base/mem.h"
#include "base/status.h"

static char dir[64];
static struct err e;

static const char *at(const char *name)
{
    static char path[4][512];
    static int next;
    next = (next + 1) % 4;
    snprintf(path[next], sizeof path[next], "%s/%s", dir, name);
    return path[next];
}

static int setup(void **state)
{
    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    strcpy(dir, "/dev/shm/miles-test-fsio-XXXXXX"); /* syncing costs nothing there */
    if (mkdtemp(dir)) {
        return 0;
    }
    strcpy(dir, "/tmp/miles-test-fsio-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return fsio_remove_tree(dir, NULL);
}

static void put(const char *path, const char *text)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static void expect_text(const char *path, const char *want)
{
    char *data = NULL;
    size_t len = 0;
    assert_ok(fsio_read(path, 1 << 20, &data, &len, &e), &e);
    assert_int_equal(len, strlen(want));
    assert_string_equal(data, want);
    mem_free(data);
}

/* Entries of the scratch folder. */
static int entries(void)
{
    DIR *d = opendir(dir);
    int n = 0;
    while (readdir(d)) {
        n++;
    }
    closedir(d);
    return n - 2;
}

/* From here on files may grow to n bytes only, as on a disk that is full. */
static void disk_full(rlim_t n)
{
    struct rlimit r;
    getrlimit(RLIMIT_FSIZE, &r);
    r.rlim_cur = n;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &r), 0);
}

static void disk_free(void)
{
    struct rlimit r;
    getrlimit(RLIMIT_FSIZE, &r);
    r.rlim_cur = r.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &r), 0);
}

static void reads(void **state)
{
    char *data = (char *)1;
    size_t len = 7;
    const uint8_t *map;
    (void)state;
    assert_int_equal(fsio_read(at("none"), 10, &data, &len, &e), STATUS_NOTFOUND);
    assert_non_null(strstr(e.msg, at("none")));
    assert_int_equal(fsio_read(at("none"), 10, &data, &len, NULL), STATUS_NOTFOUND);
    put(at("a"), "0123456789");
    assert_int_equal(fsio_read(at("a"), 9, &data, &len, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "10 bytes"));
    assert_int_equal(fsio_read(dir, 9, &data, &len, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "folder"));
    assert_int_equal(fsio_read(at("a/b"), 9, &data, &len, &e), STATUS_IO);
    assert_true(data == (char *)1 && len == 7); /* set only on success */
    assert_ok(fsio_read(at("a"), 10, &data, &len, &e), &e);
    assert_memory_equal(data, "0123456789", 11);
    mem_free(data);
    assert_ok(fsio_map(at("a"), &map, &len, &e), &e);
    assert_int_equal(len, 10);
    assert_memory_equal(map, "0123456789", 10);
    fsio_unmap(map, len);
    put(at("a"), "");
    assert_ok(fsio_read(at("a"), 0, &data, &len, &e), &e);
    assert_true(len == 0 && data[0] == 0);
    mem_free(data);
    assert_ok(fsio_map(at("a"), &map, &len, &e), &e);
    assert_true(len == 0 && map[0] == 0);
    fsio_unmap(map, len);
    assert_int_equal(fsio_map(dir, &map, &len, &e), STATUS_INPUT);
    assert_int_equal(fsio_map(at("none"), &map, &len, &e), STATUS_NOTFOUND);
    unlink(at("a"));
}

/* Nobody writes into the pipe: an open that waits for that would wait for ever. */
static void no_files(void **state)
{
    char path[300];
    const uint8_t *map;
    char *data;
    size_t n;
    (void)state;
    snprintf(path, sizeof path, "%s/pipe", dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(fsio_read(path, 100, &data, &n, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "is a pipe or a device"));
    assert_int_equal(fsio_map(path, &map, &n, &e), STATUS_INPUT);
    assert_int_equal(fsio_read("/dev/zero", 100, &data, &n, &e), STATUS_INPUT);
    assert_int_equal(unlink(path), 0);
}

static void writes(void **state)
{
    (void)state;
    assert_ok(fsio_write_atomic(at("w"), "first", 5, &e), &e);
    expect_text(at("w"), "first");
    assert_ok(fsio_write_atomic(at("w"), "", 0, &e), &e);
    expect_text(at("w"), "");
    put(at("w.tmp"), "left by a killed run, longer than what comes");
    assert_ok(fsio_write_atomic(at("w"), "second", 6, &e), &e);
    expect_text(at("w"), "second");
    assert_int_equal(entries(), 1);
    assert_int_equal(fsio_write_atomic(at("no/such/file"), "x", 1, &e), STATUS_NOTFOUND);
    assert_int_equal(fsio_write_atomic(at("w/x"), "x", 1, &e), STATUS_IO);
    assert_int_equal(mkdir(at("folder"), 0777), 0);
    assert_int_equal(fsio_write_atomic(at("folder"), "x", 1, &e), STATUS_IO);
    assert_non_null(strstr(e.msg, "folder"));
    assert_int_equal(entries(), 2); /* no temporary file is left */
    rmdir(at("folder"));
    unlink(at("w"));
}

/* Many pieces, larger and smaller than the internal buffer, give exactly the bytes written. */
static void pieces(void **state)
{
    struct fsio_out o;
    size_t total = 0, len;
    static char big[(2 << 20) + 5];
    char *data;
    (void)state;
    for (size_t i = 0; i < sizeof big; i++) {
        big[i] = (char)(i * 2654435761u >> 24);
    }
    assert_ok(fsio_out_open(&o, at("p"), &e), &e);
    for (int i = 0; i < 40; i++) {
        size_t n = i % 7 == 3 ? sizeof big : (size_t)(i * 31337) % 500000;
        assert_ok(fsio_out_write(&o, big, n, &e), &e);
        total += n;
    }
    assert_int_equal(o.written, total);
    assert_false(fsio_is_file(at("p")));
    assert_ok(fsio_out_commit(&o, &e), &e);
    assert_ok(fsio_read(at("p"), total, &data, &len, &e), &e);
    assert_int_equal(len, total);
    total = 0;
    for (int i = 0; i < 40; i++) {
        size_t n = i % 7 == 3 ? sizeof big : (size_t)(i * 31337) % 500000;
        assert_memory_equal(data + total, big, n);
        total += n;
    }
    mem_free(data);
    assert_ok(fsio_out_open(&o, at("p"), &e), &e);
    assert_ok(fsio_out_write(&o, "short", 5, &e), &e);
    fsio_out_abort(&o);
    fsio_out_abort(&o); /* and again does nothing */
    assert_int_equal(entries(), 1);
    unlink(at("p"));
}

/* A write that fails at any byte leaves the old file as it was, and no temporary one. */
static void full_disk(void **state)
{
    static char big[3 << 20];
    static const rlim_t limits[] = {0, 1, 4095, 1 << 20, (2 << 20) + 1, (3 << 20) - 1};
    (void)state;
    memset(big, 'x', sizeof big);
    assert_ok(fsio_write_atomic(at("f"), "the old text", 12, &e), &e);
    for (int i = 0; i < 6; i++) {
        int rc;
        memset(&e, 0, sizeof e);
        disk_full(limits[i]);
        rc = fsio_write_atomic(at("f"), big, sizeof big, &e);
        disk_free();
        assert_int_equal(rc, STATUS_IO);
        assert_non_null(strstr(e.msg, at("f")));
        assert_non_null(strstr(e.msg, strerror(EFBIG)));
        expect_text(at("f"), "the old text");
        assert_int_equal(entries(), 1);
    }
    disk_full(0);
    assert_int_equal(fsio_write_atomic(at("f"), "tiny", 4, &e), STATUS_IO); /* met at commit */
    disk_free();
    expect_text(at("f"), "the old text");
    assert_int_equal(entries(), 1);
    assert_ok(fsio_write_atomic(at("f"), "new", 3, &e), &e);
    expect_text(at("f"), "new");
    unlink(at("f"));
}

/* A disk that answers ENOSPC: the temporary name leads to /dev/full. */
static void no_space(void **state)
{
    struct fsio_out o;
    int rc;
    (void)state;
    if (access("/dev/full", W_OK) != 0) {
        skip();
    }
    put(at("g"), "old");
    assert_int_equal(symlink("/dev/full", at("g.tmp")), 0);
    assert_ok(fsio_out_open(&o, at("g"), &e), &e);
    assert_ok(fsio_out_write(&o, "abc", 3, &e), &e);
    rc = fsio_out_commit(&o, &e);
    assert_int_equal(rc, STATUS_IO);
    assert_non_null(strstr(e.msg, strerror(ENOSPC)));
    expect_text(at("g"), "old");
    assert_int_equal(entries(), 1);
    unlink(at("g"));
}

static void folders(void **state)
{
    char *j;
    (void)state;
    assert_ok(fsio_mkdirs(at("a/b//c/"), &e), &e);
    assert_true(fsio_is_dir(at("a/b/c")));
    assert_ok(fsio_mkdirs(at("a/b/c"), &e), &e);
    put(at("a/file"), "x");
    assert_int_equal(fsio_mkdirs(at("a/file"), &e), STATUS_IO);
    assert_non_null(strstr(e.msg, "not a folder"));
    assert_int_equal(fsio_mkdirs(at("a/file/sub/sub"), &e), STATUS_IO);
    assert_true(fsio_is_file(at("a/file")) && !fsio_is_dir(at("a/file")));
    assert_false(fsio_is_file(at("a")) || fsio_is_dir(at("nothing")));

    assert_ok(fsio_rename_dir(at("a/b"), at("z"), &e), &e);
    assert_true(fsio_is_dir(at("z/c")) && !fsio_is_dir(at("a/b")));
    assert_int_equal(fsio_rename_dir(at("gone"), at("y"), &e), STATUS_IO);
    assert_non_null(strstr(e.msg, "gone"));
    assert_int_equal(fsio_rename_dir(at("z"), at("a"), &e), STATUS_IO); /* not empty */
    assert_true(fsio_is_dir(at("z/c")) && fsio_is_file(at("a/file")));
    assert_int_equal(fsio_sync_dir(at("gone"), &e), STATUS_NOTFOUND);

    j = fsio_join("x", "y");
    assert_string_equal(j, "x/y");
    mem_free(j);
    j = fsio_join("x/", "y");
    assert_string_equal(j, "x/y");
    mem_free(j);
    j = fsio_join("", "y");
    assert_string_equal(j, "y");
    mem_free(j);
}

/* Removing a tree does not follow links out of it. */
static void removal(void **state)
{
    (void)state;
    assert_ok(fsio_mkdirs(at("keep"), &e), &e);
    put(at("keep/precious"), "stay");
    assert_ok(fsio_mkdirs(at("tree/deep/er"), &e), &e);
    put(at("tree/deep/x"), "x");
    assert_int_equal(symlink(at("keep"), at("tree/link")), 0);
    assert_int_equal(symlink("/nowhere", at("tree/dangling")), 0);
    assert_ok(fsio_remove_tree(at("tree"), &e), &e);
    assert_int_not_equal(access(at("tree"), F_OK), 0);
    expect_text(at("keep/precious"), "stay");
    assert_ok(fsio_remove_tree(at("tree"), &e), &e);
    assert_ok(fsio_remove_tree(at("keep/precious"), &e), &e);
    assert_int_equal(fsio_remove_tree("/proc/self/status", &e), STATUS_IO);
}

/* The k-th call fails, as often as it is told to, and what was there stays. */
static void chosen_failures(void **state)
{
    static const char *const texts[] = {"write:1", "sync:1", "sync:2", "rename:1:2"};
    (void)state;
    put(at("chosen"), "old");
    for (int i = 0; i < 4; i++) {
        assert_ok(fsio_fail_parse(texts[i], &e), &e);
        assert_true(fsio_may_fail());
        assert_int_equal(fsio_write_atomic(at("chosen"), "new", 3, &e), STATUS_IO);
        assert_non_null(strstr(e.msg, i == 2 ? "sync folder" : at("chosen")));
        if (i == 2) {
            put(at("chosen"), "old"); /* the folder's sync came behind the rename */
        }
        expect_text(at("chosen"), "old");
        assert_int_not_equal(access(at("chosen.tmp"), F_OK), 0);
        assert_int_equal(fsio_write_atomic(at("chosen"), "new", 3, &e),
                         i == 3 ? STATUS_IO : STATUS_OK);
        put(at("chosen"), "old");
    }
    assert_int_equal(fsio_fail_parse("write", &e), STATUS_INPUT);
    assert_int_equal(fsio_fail_parse("writ:1", &e), STATUS_INPUT);
    assert_int_equal(fsio_fail_parse("write:x", &e), STATUS_INPUT);
    assert_int_equal(fsio_fail_parse("write:1:2:3", &e), STATUS_INPUT);
    assert_true(fsio_room(at("chosen")) > 0);
    assert_true(fsio_room(at("missing")) < 0);
    assert_int_equal(fsio_is_remote("/proc/self"), 0);
}

static int keep_long(void *arg, const char *line, size_t n)
{
    ++*(int *)arg;
    return n > 2 && !memchr(line, '\n', n);
}

/* Lines that go and stay, one without an end, none; a write that fails leaves the file. */
static void lines(void **state)
{
    int seen = 0;
    (void)state;
    put(at("lines"), "one\n\n2\nthree\nhalf");
    assert_ok(fsio_keep_lines(at("lines"), keep_long, &seen, &e), &e);
    assert_int_equal(seen, 4);
    expect_text(at("lines"), "one\nthree\n");
    assert_ok(fsio_fail_parse("write:1", &e), &e);
    assert_int_equal(fsio_keep_lines(at("lines"), keep_long, &seen, &e), STATUS_IO);
    expect_text(at("lines"), "one\nthree\n");
    assert_int_not_equal(access(at("lines.tmp"), F_OK), 0);
    put(at("lines"), "");
    assert_ok(fsio_keep_lines(at("lines"), keep_long, &seen, &e), &e);
    expect_text(at("lines"), "");
    assert_int_equal(fsio_keep_lines(at("no lines"), keep_long, &seen, &e), STATUS_NOTFOUND);
}

/* Sums of folders, and where a path begins to be missing. */
static void around(void **state)
{
    struct err why = {0};
    char *p;
    (void)state;
    assert_ok(fsio_mkdirs(at("sum/below"), &e), &e);
    put(at("sum/a"), "123");
    put(at("sum/b"), "4567");
    put(at("sum/below/c"), "89");
    assert_int_equal(symlink("a", at("sum/link")), 0);
    assert_int_equal(fsio_folder_bytes(at("sum")), 7);
    assert_int_equal(fsio_folder_bytes(at("none")), 0);
    p = fsio_nearest(at("sum/none/at/all"));
    assert_string_equal(p, at("sum"));
    mem_free(p);
    p = fsio_nearest("none-of-this/at/all");
    assert_string_equal(p, ".");
    mem_free(p);
    p = fsio_nearest("/none-of-this/at/all");
    assert_string_equal(p, "/");
    mem_free(p);
    assert_ok(fsio_may_write(at("sum/none/at/all"), &e), &e);
    assert_int_equal(fsio_may_write(at("sum/a/run"), &why), STATUS_INPUT);
    assert_non_null(strstr(why.msg, "sum/a/run: Not a directory"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads),   cmocka_unit_test(no_files),  cmocka_unit_test(writes),
        cmocka_unit_test(pieces),  cmocka_unit_test(full_disk), cmocka_unit_test(no_space),
        cmocka_unit_test(folders), cmocka_unit_test(removal),   cmocka_unit_test(chosen_failures),
        cmocka_unit_test(lines),   cmocka_unit_test(around),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
