/* Answers of functions in the ledger: short ones, ones of several pieces, and none. */
#include "fakeport.h"

#include "rl/memo.h"
#include "run/ledger.h"

#define PIECE (16 << 20)

static struct err e;

static struct ledger *open_at(const char *name, int closed)
{
    struct ledger_opts o = {.dir = fakeport_path(name), .closed = closed};
    struct ledger *l = NULL;
    assert_ok(ledger_open(&o, &l, &e), &e);
    return l;
}

/* A string whose JSON has so many bytes. */
static json_t *text_of(size_t n)
{
    char *s = mem_alloc(n);
    json_t *j;
    for (size_t i = 0; i + 2 < n; i++) {
        s[i] = (char)('a' + (i / 7 + i) % 26);
    }
    j = json_string(s);
    mem_free(s);
    return j;
}

static void test_kept(void **state)
{
    static const size_t sizes[] = {3, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 5};
    struct journal_key k = {.rollout = 4, .sample = JOURNAL_WHOLE, .version = 2};
    struct ledger *l = open_at("a", 0);
    (void)state;
    for (int i = 0; i < 5; i++) {
        json_t *j = text_of(sizes[i]);
        k.ask = (uint64_t)i;
        assert_ok(memo_put(ledger_journal(l), &k, j, &e), &e);
        json_decref(j);
    }
    ledger_close(l, "done");
    l = open_at("a", 0);
    for (int i = 0; i < 5; i++) {
        json_t *want = text_of(sizes[i]), *got = NULL;
        k.ask = (uint64_t)i;
        assert_ok(memo_find(ledger_journal(l), &k, &got, &e), &e);
        assert_true(json_equal(got, want));
        json_decref(want);
        json_decref(got);
    }
    ledger_close(l, "done");
}

/* Numbers come back as they were. */
static void test_numbers(void **state)
{
    json_t *was = json_pack("{s:f,s:f,s:I,s:n,s:[b,s]}", "a", 0.1, "b", 1e-300, "c",
                            (json_int_t)INT64_MAX, "d", "e", 1, "\xc3\xa4\x01");
    const struct journal_key k = {.rollout = 1, .sample = JOURNAL_GROUPS};
    struct ledger *l = open_at("b", 0);
    json_t *got = NULL;
    (void)state;
    assert_ok(memo_put(ledger_journal(l), &k, was, &e), &e);
    assert_ok(memo_find(ledger_journal(l), &k, &got, &e), &e);
    assert_true(json_equal(got, was));
    json_decref(got);
    json_decref(was);
    ledger_close(l, "done");
}

static void test_none(void **state)
{
    const struct journal_key k = {.rollout = 9, .sample = JOURNAL_WHOLE};
    struct ledger *l = open_at("c", 0);
    json_t *got = NULL;
    (void)state;
    assert_int_equal(memo_find(NULL, &k, &got, &e), STATUS_NOTFOUND);
    assert_ok(memo_put(NULL, &k, got, &e), &e);
    memset(&e, 0, sizeof e);
    assert_int_equal(memo_find(ledger_journal(l), &k, &got, &e), STATUS_NOTFOUND);
    assert_int_equal(e.code, 0);
    ledger_close(l, "done");
    l = open_at("c", 1);
    assert_int_equal(memo_find(ledger_journal(l), &k, &got, &e), STATUS_NOTFOUND);
    assert_non_null(strstr(e.msg, "rollout 9 is not recorded"));
    assert_null(got);
    ledger_close(l, "done");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kept),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_none),
    };
    return cmocka_run_group_tests(tests, fakeport_setup, fakeport_teardown);
}
