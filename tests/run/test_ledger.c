/* The ledger: what was committed is found again after any crash, what was not is gone whole; torn
 * and damaged segments; one writer; pruning; full and failing disks, in both journal modes. */
#include "rl/fakeport.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/patience.h"
#include "run/ledger.h"
#include "run/runlock.h"
#include "run/segfile.h"

static struct err e;

static struct ledger *open_mode(const char *name, enum ledger_mode mode, int64_t kill_at)
{
    struct ledger *l = NULL;
    json_t *command = json_pack("{s:[s]}", "words", "train");
    json_t *options = json_pack("{s:f}", "lr", 0.5);
    struct ledger_opts o = {.dir = fakeport_path(name),
                            .mode = mode,
                            .command = command,
                            .options = options,
                            .kill_at = kill_at};
    assert_ok(ledger_open(&o, &l, &e), &e);
    json_decref(command);
    json_decref(options);
    return l;
}

static struct journal_key key_of(int i)
{
    return (struct journal_key){.rollout = i / 10,
                                .sample = i,
                                .version = 3,
                                .ask = 0xfedcba9876543210ull ^ (uint64_t)i,
                                .set = i % 2,
                                .start = i % 3};
}

/* The bytes of answer i: a pure function of i, some long, one empty. */
static size_t bytes_of(int i, unsigned char out[4096])
{
    size_t n = (size_t)(i * 37 % 4096);
    for (size_t k = 0; k < n; k++) {
        out[k] = (unsigned char)(fakeport_mix((uint64_t)i * 5000 + k) & 255);
    }
    return n;
}

static void put_answer(struct journal *j, int i)
{
    unsigned char b[4096];
    struct journal_key k = key_of(i);
    size_t n = bytes_of(i, b);
    char text[64];
    assert_ok(j->put(j->self, JOURNAL_ANSWER, &k, b, n, &e), &e);
    snprintf(text, sizeof text, "{\"reward\":%d}", i);
    assert_ok(j->put(j->self, JOURNAL_REWARD, &k, text, strlen(text), &e), &e);
}

/* 1: both entries of i are there, whole; 0: neither is. */
static int has(struct journal *j, int i)
{
    unsigned char want[4096];
    struct journal_key k = key_of(i);
    size_t n, m = bytes_of(i, want);
    void *got;
    char text[64];
    int rc = j->find(j->self, JOURNAL_ANSWER, &k, &got, &n, &e);

    if (rc == STATUS_NOTFOUND) {
        assert_int_equal(j->find(j->self, JOURNAL_REWARD, &k, &got, &n, &e), STATUS_NOTFOUND);
        return 0;
    }
    assert_ok(rc, &e);
    assert_int_equal(n, m);
    assert_memory_equal(got, want, m);
    mem_free(got);
    assert_ok(j->find(j->self, JOURNAL_REWARD, &k, &got, &n, &e), &e);
    snprintf(text, sizeof text, "{\"reward\":%d}", i);
    assert_int_equal(n, strlen(text));
    assert_memory_equal(got, text, n);
    mem_free(got);
    return 1;
}

static int event(struct journal *j, enum journal_event ev, int64_t rollout, int value)
{
    json_t *d = json_pack("{s:i}", "v", value);
    int rc = j->record(j->self, ev, rollout, d, &e);
    json_decref(d);
    return rc;
}

static void test_found_again(void **state)
{
    (void)state;
    for (int mode = LEDGER_WAL; mode <= LEDGER_ROLLBACK; mode++) {
        const char *name = mode == LEDGER_WAL ? "again-wal" : "again-rollback";
        struct ledger *l = open_mode(name, mode, 0);
        struct journal *j = ledger_journal(l);
        struct ledger_counts n;
        int64_t it;

        assert_int_equal(ledger_attempt(l), 1);
        assert_int_equal(ledger_saved(l, &it, &e), STATUS_NOTFOUND);
        for (int i = 0; i < 40; i++) {
            assert_int_equal(has(j, i), 0);
            put_answer(j, i);
            if (i % 7 == 6) {
                assert_ok(j->commit(j->self, &e), &e);
                assert_int_equal(has(j, i), 1);
            }
        }
        assert_int_equal(event(j, JOURNAL_SAVED, 3, 1), 0); /* commits */
        put_answer(j, 99);                                  /* the end commits */
        ledger_close(l, "done");

        l = open_mode(name, mode, 0);
        j = ledger_journal(l);
        assert_int_equal(ledger_attempt(l), 2);
        for (int i = 0; i < 45; i++) {
            assert_int_equal(has(j, i), i < 40);
        }
        assert_int_equal(has(j, 99), 1);
        assert_ok(ledger_saved(l, &it, &e), &e);
        assert_int_equal(it, 3);
        assert_ok(ledger_count(l, &n, &e), &e);
        assert_int_equal(n.answers, 41);
        assert_int_equal(n.rewards, 41);
        assert_int_equal(n.events, 1);
        ledger_close(l, "done");
    }
}

/* Killed at every point of its commits: what the child was told is on disk is found, and the
 * unfinished commit is there whole or not at all. */
static void test_killed_anywhere(void **state)
{
    int kills = 0;
    (void)state;
    for (int mode = LEDGER_WAL; mode <= LEDGER_ROLLBACK; mode++) {
        int ended = 0;
        for (int k = 1; !ended; k++) {
            char name[64];
            int told[2], status, sure = 0;
            char c;
            pid_t child;
            struct ledger *l;
            struct journal *j;

            snprintf(name, sizeof name, "kill-%d-%d", mode, k);
            assert_int_equal(pipe(told), 0);
            child = fork();
            if (child == 0) {
                l = open_mode(name, mode, k);
                j = ledger_journal(l);
                for (int i = 0; i < 12; i++) {
                    put_answer(j, i);
                    if (i % 3 == 2) {
                        assert_ok(j->commit(j->self, &e), &e);
                        assert_int_equal(write(told[1], "x", 1), 1);
                    }
                }
                ledger_close(l, "done");
                _exit(0);
            }
            close(told[1]);
            while (read(told[0], &c, 1) == 1) {
                sure++;
            }
            close(told[0]);
            assert_int_equal(waitpid(child, &status, 0), child);
            ended = WIFEXITED(status);
            kills += !ended;
            assert_true(ended || WTERMSIG(status) == SIGKILL);
            l = open_mode(name, mode, 0);
            j = ledger_journal(l);
            for (int commit = 0; commit < 4; commit++) {
                int n = 0;
                for (int i = 0; i < 3; i++) {
                    n += has(j, commit * 3 + i);
                }
                assert_true(n == 0 || n == 3);
                assert_true(n == 3 || commit >= sure);
                assert_true(n == 0 || commit <= sure);
            }
            put_answer(j, 77); /* and it goes on */
            assert_ok(j->commit(j->self, &e), &e);
            assert_int_equal(has(j, 77), 1);
            ledger_close(l, "done");
        }
    }
    assert_int_equal(kills, 2 * 4 * 4); /* points of a commit, commits, modes */
}

static const char *segment(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/segments/0000.seg", fakeport_path(name));
    return path;
}

/* A torn tail is cut, a damaged piece is asked again, a segment that lost committed bytes loses
 * only those. */
static void test_damage(void **state)
{
    struct ledger *l = open_mode("damage", LEDGER_WAL, 0);
    struct journal *j = ledger_journal(l);
    struct stat st;
    int fd;
    (void)state;
    log_set_level(LOG_ERROR + 1);
    for (int i = 0; i < 10; i++) {
        put_answer(j, i);
    }
    ledger_close(l, "done");
    assert_int_equal(stat(segment("damage"), &st), 0);

    fd = open(segment("damage"), O_WRONLY | O_APPEND);
    assert_int_equal(write(fd, "MSEG torn", 9), 9);
    close(fd);
    l = open_mode("damage", LEDGER_WAL, 0);
    j = ledger_journal(l);
    put_answer(j, 10);
    assert_ok(j->commit(j->self, &e), &e);
    for (int i = 0; i < 11; i++) {
        assert_int_equal(has(j, i), 1);
    }
    ledger_close(l, "done");

    assert_int_equal(truncate(segment("damage"), st.st_size - 1), 0); /* the tail of answer 9 */
    l = open_mode("damage", LEDGER_WAL, 0);
    j = ledger_journal(l);
    for (int i = 0; i < 11; i++) {
        struct journal_key k = key_of(i);
        void *p = NULL;
        size_t n;
        int rc = j->find(j->self, JOURNAL_ANSWER, &k, &p, &n, &e);
        assert_int_equal(rc, i < 9 ? STATUS_OK : STATUS_NOTFOUND);
        mem_free(p);
    }
    put_answer(j, 9);
    assert_ok(j->commit(j->self, &e), &e);
    assert_int_equal(has(j, 9), 1);
    ledger_close(l, "done");

    fd = open(segment("damage"), O_RDWR); /* one bit of answer 5 */
    {
        unsigned char want[4096], c;
        off_t at = 0;
        for (int i = 0; i < 5; i++) {
            at += 16 + (off_t)bytes_of(i, want);
        }
        assert_int_equal(pread(fd, &c, 1, at + 20), 1);
        c ^= 4;
        assert_int_equal(pwrite(fd, &c, 1, at + 20), 1);
    }
    close(fd);
    l = open_mode("damage", LEDGER_WAL, 0);
    j = ledger_journal(l);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(has(j, i), 1);
    }
    {
        struct journal_key k = key_of(5);
        void *p;
        size_t n;
        assert_int_equal(j->find(j->self, JOURNAL_ANSWER, &k, &p, &n, &e), STATUS_NOTFOUND);
    }
    ledger_close(l, "done");
    log_set_level(LOG_ERROR);
}

/* The one place of the file that has the text: a bit of its last byte. */
static void flip_in_file(const char *path, const char *text)
{
    char *data, *at;
    size_t n;

    assert_ok(fsio_read(path, 1 << 24, &data, &n, &e), &e);
    at = memmem(data, n, text, strlen(text));
    assert_non_null(at);
    at[strlen(text) - 1] ^= 8;
    assert_ok(fsio_write_atomic(path, data, n, &e), &e);
    mem_free(data);
}

/* SQLite does not see what changed in a value. A reward is asked again; a decision cannot be. */
static void test_damaged_values(void **state)
{
    struct ledger *l = open_mode("values", LEDGER_ROLLBACK, 0);
    struct journal *j = ledger_journal(l);
    struct journal_key k = key_of(1), other = key_of(2);
    void *p = NULL;
    size_t n;
    (void)state;
    log_set_level(LOG_ERROR + 1);
    assert_ok(j->put(j->self, JOURNAL_REWARD, &k, "{\"reward\":0.25}", 15, &e), &e);
    assert_ok(j->put(j->self, JOURNAL_REWARD, &other, "{\"reward\":1}", 12, &e), &e);
    assert_ok(j->put(j->self, JOURNAL_DECISION, &k, "arrived 3", 9, &e), &e);
    ledger_close(l, "done");
    flip_in_file(fakeport_path("values/ledger.db"), "reward\":0");
    flip_in_file(fakeport_path("values/ledger.db"), "arrived 3");
    l = open_mode("values", LEDGER_ROLLBACK, 0);
    j = ledger_journal(l);
    assert_ok(j->find(j->self, JOURNAL_REWARD, &other, &p, &n, &e), &e);
    assert_string_equal(p, "{\"reward\":1}");
    mem_free(p);
    assert_int_equal(j->find(j->self, JOURNAL_REWARD, &k, &p, &n, &e), STATUS_NOTFOUND);
    assert_int_equal(j->find(j->self, JOURNAL_DECISION, &k, &p, &n, &e), STATUS_FORMAT);
    assert_non_null(strstr(e.msg, "values/ledger.db: a decision of rollout"));
    assert_ok(j->put(j->self, JOURNAL_REWARD, &k, "{\"reward\":0.25}", 15, &e), &e);
    assert_ok(j->commit(j->self, &e), &e);
    assert_ok(j->find(j->self, JOURNAL_REWARD, &k, &p, &n, &e), &e);
    mem_free(p);
    ledger_close(l, "done");
    log_set_level(LOG_ERROR);
}

static void test_one_writer(void **state)
{
    struct ledger *l = open_mode("lock", LEDGER_AUTO, 0), *other = NULL;
    struct ledger_opts o = {.dir = fakeport_path("lock")};
    char pid[32];
    (void)state;
    snprintf(pid, sizeof pid, "process %ld on", (long)getpid());
    assert_int_equal(ledger_open(&o, &other, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, pid));
    ledger_close(l, "done");
    assert_ok(ledger_open(&o, &other, &e), &e);
    ledger_close(other, "done");
}

/* Decisions are bytes, whatever is in them. */
static void test_decisions(void **state)
{
    struct ledger *l = open_mode("decisions", LEDGER_WAL, 0);
    (void)state;
    for (int turn = 0; turn < 2; turn++) {
        struct journal *j = ledger_journal(l);
        for (int64_t i = 0; i < 300; i += 7) {
            struct journal_key k = {.rollout = 1, .sample = i};
            int64_t event = i << 20;
            void *got = NULL;
            size_t n = 0;
            if (turn == 0) {
                assert_ok(j->put(j->self, JOURNAL_DECISION, &k, &event, i ? sizeof event : 0, &e),
                          &e);
                assert_ok(j->commit(j->self, &e), &e);
            }
            assert_ok(j->find(j->self, JOURNAL_DECISION, &k, &got, &n, &e), &e);
            assert_int_equal(n, i ? sizeof event : 0);
            assert_memory_equal(got, &event, n);
            mem_free(got);
        }
        ledger_close(l, "done");
        l = turn ? NULL : open_mode("decisions", LEDGER_ROLLBACK, 0);
    }
}

/* Events of a run that goes on are the recorded ones; a replay is held to them. */
static void test_events(void **state)
{
    struct ledger *l = open_mode("events", LEDGER_WAL, 0);
    struct journal *j = ledger_journal(l);
    struct ledger_counts n;
    struct ledger_opts o = {.dir = fakeport_path("events"), .closed = 1};
    json_t *command = NULL, *options = NULL;
    (void)state;
    for (int i = 0; i < 6; i++) {
        assert_int_equal(event(j, i % 2 ? JOURNAL_STEP : JOURNAL_PROMPTS, i / 4, i), 0);
    }
    ledger_close(l, "killed");

    log_set_level(LOG_ERROR);
    l = open_mode("events", LEDGER_WAL, 0);
    j = ledger_journal(l);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(event(j, i % 2 ? JOURNAL_STEP : JOURNAL_PROMPTS, i / 4, i), 0);
    }
    assert_int_equal(event(j, JOURNAL_PROMPTS, 1, 4), 0);
    assert_int_equal(event(j, JOURNAL_STEP, 1, 50), 0); /* was 5: the later one is kept */
    assert_ok(j->commit(j->self, &e), &e);
    assert_ok(ledger_count(l, &n, &e), &e);
    assert_int_equal(n.events, 6);
    assert_ok(ledger_last(l, &command, &options, &e), &e);
    assert_string_equal(json_string_value(json_array_get(json_object_get(command, "words"), 0)),
                        "train");
    assert_true(json_real_value(json_object_get(options, "lr")) == 0.5);
    json_decref(command);
    json_decref(options);
    ledger_close(l, "done");

    assert_ok(ledger_open(&o, &l, &e), &e);
    j = ledger_journal(l);
    assert_int_equal(event(j, JOURNAL_PROMPTS, 1, 4), 0);
    assert_int_equal(event(j, JOURNAL_STEP, 1, 5), STATUS_NUMERIC);
    assert_non_null(strstr(e.msg, "step 0"));
    assert_non_null(strstr(e.msg, "50"));
    assert_int_equal(event(j, JOURNAL_STEP, 1, 5), STATUS_NUMERIC); /* none was recorded */
    ledger_close(l, NULL);
    o.dir = fakeport_path("nothing");
    assert_int_equal(ledger_open(&o, &l, &e), STATUS_NOTFOUND);
}

static void test_prune(void **state)
{
    struct ledger *l = open_mode("prune", LEDGER_WAL, 0);
    struct journal *j = ledger_journal(l);
    static unsigned char big[5 << 20];
    char path[512];
    (void)state;
    for (int i = 0; i < 20; i++) { /* more than two segments, rollouts 0 and 1 */
        struct journal_key k = key_of(i);
        assert_ok(j->put(j->self, JOURNAL_ANSWER, &k, big, sizeof big, &e), &e);
        assert_ok(j->commit(j->self, &e), &e);
        assert_int_equal(event(j, JOURNAL_STEP, i / 10, i), 0);
    }
    snprintf(path, sizeof path, "%s/segments/0002.seg", fakeport_path("prune"));
    assert_true(fsio_is_file(path));
    assert_true(fsio_is_file(segment("prune")));
    assert_ok(j->prune(j->self, 0, &e), &e);
    assert_false(fsio_is_file(segment("prune")));
    assert_true(fsio_is_file(path));
    for (int i = 0; i < 20; i++) {
        struct journal_key k = key_of(i);
        void *p = NULL;
        size_t n;
        int rc = j->find(j->self, JOURNAL_ANSWER, &k, &p, &n, &e);
        assert_int_equal(rc, i < 10 ? STATUS_NOTFOUND : STATUS_OK);
        mem_free(p);
    }
    ledger_close(l, "done");
}

/* Samples that were in flight at a checkpoint keep their answers; all else of its rollout goes. */
static void test_prune_but_what_flies(void **state)
{
    struct ledger *l = open_mode("flies", LEDGER_WAL, 0);
    struct journal *j = ledger_journal(l);
    json_t *saved = json_pack("{s:i,s:i}", "iteration", 2, "needs", 1);
    (void)state;
    for (int i = 0; i < 40; i++) { /* rollouts 0 to 3 */
        struct journal_key k = {.rollout = i / 10, .sample = 1000 + i};
        put_answer(j, i);
        assert_ok(j->put(j->self, JOURNAL_DECISION, &k, "1", 1, &e), &e);
    }
    assert_ok(j->commit(j->self, &e), &e);
    assert_ok(j->record(j->self, JOURNAL_SAVED, 2, saved, &e), &e);
    assert_ok(j->prune(j->self, 2, &e), &e);
    for (int i = 0; i < 40; i++) {
        struct journal_key k = {.rollout = i / 10, .sample = 1000 + i};
        void *p = NULL;
        size_t n;
        assert_int_equal(has(j, i), i >= 10);
        assert_int_equal(j->find(j->self, JOURNAL_DECISION, &k, &p, &n, &e),
                         i >= 30 ? STATUS_OK : STATUS_NOTFOUND);
        mem_free(p);
    }
    json_decref(saved);
    ledger_close(l, "done");
}

/* ---- disks ---- */

/* A clock on which waiting takes no time. */
static double jump;
static int stop;
static double jumping(void *self)
{
    (void)self;
    return jump += 1.0;
}
static int stopping(void *self)
{
    (void)self;
    return stop;
}
static const struct world quick = {.now = jumping, .stopping = stopping};

/* Every write and every sync fails once, or some times in a row: the run waits and loses nothing.
 */
static void test_failing_disk(void **state)
{
    int failures = 0;
    (void)state;
    patience_set(&quick, 1000);
    for (int mode = LEDGER_WAL; mode <= LEDGER_ROLLBACK; mode++) {
        for (int op = FSIO_WRITE; op <= FSIO_SYNC; op++) {
            for (int k = 1; k <= 30; k++) {
                char name[64];
                struct ledger *l;
                struct journal *j;
                snprintf(name, sizeof name, "disk-%d-%d-%d", mode, op, k);
                fsio_fail_at(op, 0, 0); /* the layer is in from the start */
                l = open_mode(name, mode, 0);
                j = ledger_journal(l);
                fsio_fail_at(op, k, 1 + k % 3);
                for (int i = 0; i < 9; i++) {
                    put_answer(j, i);
                    if (i % 3 == 2) {
                        assert_ok(j->commit(j->self, &e), &e);
                    }
                }
                failures += fsio_fails(op) ? 0 : 1;
                fsio_fail_at(op, 0, 0);
                ledger_close(l, "done");
                l = open_mode(name, mode, 0);
                for (int i = 0; i < 9; i++) {
                    assert_int_equal(has(ledger_journal(l), i), 1);
                }
                ledger_close(l, "done");
            }
        }
    }
    assert_true(failures > 20);
    patience_set(NULL, 0);
}

/* The disk is full while the ledger is made: the start waits like the run, and is one start. */
static void test_starts_on_full_disk(void **state)
{
    int failures = 0;
    (void)state;
    patience_set(&quick, 1000);
    for (int mode = LEDGER_WAL; mode <= LEDGER_ROLLBACK; mode++) {
        for (int op = FSIO_WRITE; op <= FSIO_SYNC; op++) {
            for (int k = 1; k <= 40; k++) {
                char name[64], *value;
                struct ledger *l;
                snprintf(name, sizeof name, "start-%d-%d-%d", mode, op, k);
                fsio_fail_at(op, k, 1 + k % 3);
                l = open_mode(name, mode, 0);
                assert_ok(ledger_set(l, "foreign_checkpoint", "-1", &e), &e);
                assert_ok(ledger_started(l, 7, &e), &e);
                failures += fsio_fails(op) ? 0 : 1;
                fsio_fail_at(op, 0, 0);
                assert_int_equal(ledger_attempt(l), 1);
                value = ledger_get(l, "foreign_checkpoint");
                assert_string_equal(value, "-1");
                mem_free(value);
                ledger_close(l, "done");
                l = open_mode(name, mode, 0);
                assert_int_equal(ledger_attempt(l), 2);
                ledger_close(l, "done");
            }
        }
    }
    assert_true(failures > 20);
    patience_set(NULL, 0);
}

/* A place where nobody may write is told at once. */
static void test_no_place(void **state)
{
    const char *file = fakeport_path("a-file");
    char *dir = fsio_join(file, "run");
    struct ledger_opts o = {.dir = dir};
    struct ledger *l = NULL;
    (void)state;
    assert_ok(fsio_write_atomic(file, "x", 1, &e), &e);
    patience_set(&quick, 1000);
    jump = 0;
    assert_int_equal(ledger_open(&o, &l, &e), STATUS_INPUT);
    assert_true(jump == 0);
    assert_non_null(strstr(e.msg, "a-file"));
    patience_set(NULL, 0);
    mem_free(dir);
}

/* The wait has an end, and a stop signal ends it. */
static void test_patience_ends(void **state)
{
    struct ledger *l;
    struct journal *j;
    (void)state;
    fsio_fail_at(FSIO_WRITE, 0, 0);
    for (int how = 0; how < 3; how++) {
        char name[32];
        snprintf(name, sizeof name, "ends-%d", how);
        l = open_mode(name, LEDGER_WAL, 0);
        j = ledger_journal(l);
        put_answer(j, 1);
        patience_set(how ? &quick : NULL, how ? 50 : 0);
        stop = how == 2;
        fsio_fail_at(FSIO_WRITE, 1, 1000000);
        assert_int_equal(j->commit(j->self, &e), STATUS_IO);
        assert_non_null(strstr(e.msg, "0000.seg"));
        assert_non_null(strstr(e.msg, "No space left"));
        fsio_fail_at(FSIO_WRITE, 0, 0);
        assert_ok(j->commit(j->self, &e), &e); /* nothing of it was lost */
        assert_int_equal(has(j, 1), 1);
        ledger_close(l, "done");
        stop = 0;
        patience_set(NULL, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_found_again),
        cmocka_unit_test(test_killed_anywhere),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_damaged_values),
        cmocka_unit_test(test_one_writer),
        cmocka_unit_test(test_decisions),
        cmocka_unit_test(test_events),
        cmocka_unit_test(test_prune),
        cmocka_unit_test(test_prune_but_what_flies),
        cmocka_unit_test(test_failing_disk),
        cmocka_unit_test(test_patience_ends),
        cmocka_unit_test(test_starts_on_full_disk),
        cmocka_unit_test(test_no_place),
    };
    return cmocka_run_group_tests(tests, fakeport_setup, fakeport_teardown);
}
