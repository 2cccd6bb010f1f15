/* The run folder: what is written where, what a resumed run keeps of the metrics, and that a full
 * disk is seen. */
#include "support.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/fsio.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/metric.h"
#include "base/patience.h"
#include "base/status.h"
#include "base/world.h"
#include "run/runfolder.h"

static char dir[64];
static struct err e;

static const char *at(const char *name)
{
    static char path[8][300];
    static int next;
    next = (next + 1) % 8;
    snprintf(path[next], sizeof path[next], "%s/%s", dir, name);
    return path[next];
}

static int setup(void **state)
{
    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    strcpy(dir, "/dev/shm/miles-test-run-XXXXXX"); /* syncing costs nothing there */
    if (mkdtemp(dir)) {
        return 0;
    }
    strcpy(dir, "/tmp/miles-test-run-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return fsio_remove_tree(dir, NULL);
}

static char *text_of(const char *name)
{
    char *data = NULL;
    size_t len;
    assert_ok(fsio_read(at(name), 1 << 24, &data, &len, &e), &e);
    return data;
}

static void expect(const char *name, const char *want)
{
    char *got = text_of(name);
    assert_string_equal(got, want);
    mem_free(got);
}

static void put(const char *name, const char *text)
{
    FILE *f = fopen(at(name), "wb");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static struct runfolder *open_at(const char *name, int64_t from)
{
    json_t *config = json_pack("{s:{s:f},s:{s:s}}", "options", "lr", 0.5, "sources", "lr", "flag");
    json_t *manifest = json_pack("{s:i}", "leaves", 4);
    struct runfolder *r = NULL;
    memset(&e, 0, sizeof e);
    assert_ok(runfolder_open(at(name), config, manifest, from, &r, &e), &e);
    json_decref(config);
    json_decref(manifest);
    return r;
}

static void emit(const char *key, int64_t step)
{
    json_t *row = json_object();
    metric_put_int(row, key, step);
    metric_put(row, "x", 0.1);
    metric_emit(row);
}

/* Log lines go to stderr as well: away with them while a test makes some. */
static void quiet(int on)
{
    static int saved;
    fflush(stderr);
    if (on) {
        int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
        saved = dup(STDERR_FILENO);
        dup2(null, STDERR_FILENO);
        close(null);
    } else {
        dup2(saved, STDERR_FILENO);
        close(saved);
    }
}

/* Somebody removes the folder of a run that goes on: the run is told. */
static void removed(void **state)
{
    struct runfolder *r = open_at("gone", 0);
    (void)state;
    emit("rollout/step", 0);
    assert_int_equal(runfolder_status(r, &e), STATUS_OK);
    assert_ok(fsio_remove_tree(at("gone"), &e), &e);
    emit("rollout/step", 1);
    assert_int_equal(runfolder_status(r, &e), STATUS_NOTFOUND);
    assert_non_null(strstr(e.msg, "gone/metrics.jsonl was removed"));
    runfolder_close(r);
}

static void files(void **state)
{
    struct runfolder *r = open_at("deep/run", 0);
    json_t *j;
    char *text;
    (void)state;
    emit("rollout/step", 0);
    emit("eval/step", 1);
    expect("deep/run/metrics.jsonl",
           "{\"rollout/step\":0,\"x\":0.1}\n{\"eval/step\":1,\"x\":0.1}\n");
    quiet(1);
    log_warn(KV, "a line of %d", 7);
    log_debug(KV, "too low");
    assert_int_equal(runfolder_status(r, &e), STATUS_OK);
    runfolder_close(r);
    log_warn(KV, "after the end");
    quiet(0);
    emit("rollout/step", 1); /* nobody listens any more */
    text = text_of("deep/run/log.txt");
    assert_non_null(strstr(text, " warn kv: a line of 7\n"));
    assert_null(strchr(strchr(text, '\n') + 1, '\n'));
    mem_free(text);
    expect("deep/run/metrics.jsonl",
           "{\"rollout/step\":0,\"x\":0.1}\n{\"eval/step\":1,\"x\":0.1}\n");
    j = json_load_file(at("deep/run/config.json"), 0, NULL);
    assert_true(json_real_value(json_object_get(json_object_get(j, "options"), "lr")) == 0.5);
    json_decref(j);
    j = json_load_file(at("deep/run/manifest.json"), 0, NULL);
    assert_int_equal(json_integer_value(json_object_get(j, "leaves")), 4);
    json_decref(j);
    runfolder_close(NULL);
    text = runfolder_default();
    assert_memory_equal(text, "runs/20", 7);
    assert_int_equal(strlen(text), strlen("runs/20260131-235959"));
    mem_free(text);
}

#define ROW(key, step) "{\"" key "/step\":" #step ",\"x\":0.1}\n"

/* A resumed run goes on after the rows of the rollouts that its checkpoint holds. */
static void trims(void **state)
{
    struct runfolder *r;
    (void)state;
    fsio_mkdirs(at("t"), NULL);
    put("t/metrics.jsonl",
        ROW("eval", 0) ROW("rollout", 0) ROW("rollout", 1) ROW("eval", 2) ROW("rollout", 2)
            ROW("rollout", 3) ROW("eval", 4) ROW("rollout", 4) "{\"rollout/step\":5,\"x\"");
    r = open_at("t", 3);
    expect("t/metrics.jsonl",
           ROW("eval", 0) ROW("rollout", 0) ROW("rollout", 1) ROW("eval", 2) ROW("rollout", 2));
    emit("rollout/step", 3);
    runfolder_close(r);
    expect("t/metrics.jsonl", ROW("eval", 0) ROW("rollout", 0) ROW("rollout", 1) ROW("eval", 2)
                                  ROW("rollout", 2) ROW("rollout", 3));
    /* a fresh run starts the file anew; one without a file starts it */
    runfolder_close(open_at("t", 0));
    expect("t/metrics.jsonl", "");
    runfolder_close(open_at("u", 7));
    expect("u/metrics.jsonl", "");
    /* lines that are none of ours, and bytes that are no text */
    put("t/metrics.jsonl", "garbage\n\n[1]\n{\"x\":1}\n" ROW("rollout", 0) "\xff\xfe\n" ROW(
                               "rollout", 9) "{\"rollout/step\":0");
    runfolder_close(open_at("t", 1));
    expect("t/metrics.jsonl", ROW("rollout", 0));
}

/* The evaluation that is due before rollout `from` is made again by the resumed run, so its old row
 * goes: no step is there twice. */
static void trims_evaluations(void **state)
{
    (void)state;
    fsio_mkdirs(at("v"), NULL);
    put("v/metrics.jsonl", ROW("rollout", 0) ROW("rollout", 1) ROW("eval", 2));
    runfolder_close(open_at("v", 2));
    expect("v/metrics.jsonl", ROW("rollout", 0) ROW("rollout", 1));
}

static void limit(rlim_t n)
{
    struct rlimit r;
    getrlimit(RLIMIT_FSIZE, &r);
    r.rlim_cur = n < r.rlim_max ? n : r.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &r), 0);
}

static void full_disk(void **state)
{
    struct runfolder *r = open_at("f", 0);
    char *text;
    int64_t rows = 0;
    (void)state;
    limit(1000);
    while (runfolder_status(r, &e) == STATUS_OK && rows < 1000) {
        emit("rollout/step", rows++);
    }
    emit("rollout/step", 1000);
    limit(RLIM_INFINITY);
    assert_in_range(rows, 30, 50);
    memset(&e, 0, sizeof e);
    assert_int_equal(runfolder_status(r, &e), STATUS_IO);
    assert_int_equal(e.code, STATUS_IO);
    assert_non_null(strstr(e.msg, "metrics.jsonl"));
    assert_int_equal(runfolder_status(r, NULL), STATUS_IO);
    runfolder_close(r);
    /* what stood before is whole, and a resumed run drops the line that was cut */
    runfolder_close(open_at("f", 1000));
    text = text_of("f/metrics.jsonl");
    assert_int_equal(text[strlen(text) - 1], '\n');
    for (char *s = strtok(text, "\n"); s; s = strtok(NULL, "\n")) {
        json_t *j = json_loads(s, 0, NULL);
        assert_non_null(j);
        json_decref(j);
    }
    mem_free(text);
}

/* A clock on which waiting takes no time. */
static double jumping(void *self)
{
    static double now;
    (void)self;
    return now += 1.0;
}

static int never(void *self)
{
    (void)self;
    return 0;
}

/* Whatever the disk refuses while the folder is made, it is there when there is room. */
static void starts_on_full_disk(void **state)
{
    static const struct world w = {.now = jumping, .stopping = never};
    int failures = 0;
    (void)state;
    patience_set(&w, 1000);
    quiet(1);
    for (int op = FSIO_WRITE; op <= FSIO_RENAME; op++) {
        for (int k = 1; k <= 8; k++) {
            char name[32];
            snprintf(name, sizeof name, "full-%d-%d", op, k);
            fsio_fail_at(op, k, 1 + k % 3);
            runfolder_close(open_at(name, 0));
            failures += fsio_fails(op) ? 0 : 1;
            fsio_fail_at(op, 0, 0);
            snprintf(name, sizeof name, "full-%d-%d/manifest.json", op, k);
            expect(name, "{\n  \"leaves\": 4\n}");
        }
    }
    quiet(0);
    patience_set(NULL, 0);
    assert_in_range(failures, 6, 23);
}

static void cannot_open(void **state)
{
    static const char *const names[] = {"file/run", "g"};
    json_t *j = json_object();
    struct runfolder *r = NULL;
    (void)state;
    put("file", "x");
    fsio_mkdirs(at("g/metrics.jsonl"), NULL); /* a folder where the file should be */
    for (int i = 0; i < 2; i++) {
        memset(&e, 0, sizeof e);
        assert_int_not_equal(runfolder_open(at(names[i]), j, j, 0, &r, &e), STATUS_OK);
        assert_null(r);
        assert_non_null(strstr(e.msg, i ? names[i] : "file"));
    }
    limit(0);
    assert_int_equal(runfolder_open(at("h"), j, j, 0, &r, &e), STATUS_IO);
    limit(RLIM_INFINITY);
    assert_null(r);
    json_decref(j);
    emit("rollout/step", 0); /* no sink of a run that did not open is left */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files),
        cmocka_unit_test(removed),
        cmocka_unit_test(trims),
        cmocka_unit_test(trims_evaluations),
        cmocka_unit_test(full_disk),
        cmocka_unit_test(cannot_open),
        cmocka_unit_test(starts_on_full_disk),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
