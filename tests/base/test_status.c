/* Error records: what they hold, what a prefix does to them, and that nothing overflows. */
#include "support.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/status.h"

static void fills(void **state)
{
    struct err e;
    int line;
    char where[64];
    (void)state;
    memset(&e, 0x55, sizeof e);
    line = __LINE__ + 1;
    assert_int_equal(ERR(&e, STATUS_IO, "cannot read %s: %d", "x", 7), STATUS_IO);
    snprintf(where, sizeof where, "test_status.c:%d", line);
    assert_int_equal(e.code, STATUS_IO);
    assert_string_equal(e.msg, "cannot read x: 7");
    assert_non_null(strstr(e.where, where));
    assert_int_equal(ERR(NULL, STATUS_FORMAT, "nobody listens"), STATUS_FORMAT);
}

static void prefixes(void **state)
{
    struct err e;
    (void)state;
    ERR(&e, STATUS_INPUT, "no such key");
    assert_int_equal(err_prefix(&e, "%s line %d", "a.json", 3), STATUS_INPUT);
    assert_string_equal(e.msg, "a.json line 3: no such key");
    assert_int_equal(err_prefix(&e, "run"), STATUS_INPUT);
    assert_string_equal(e.msg, "run: a.json line 3: no such key");
    assert_true(err_prefix(NULL, "x") < 0);
}

/* Texts longer than the record are cut, and what stands after the record is not touched. */
static void bounds(void **state)
{
    struct {
        struct err e;
        char guard[32];
    } r;
    char big[4096];
    (void)state;
    memset(&r, 0x5a, sizeof r);
    memset(big, 'y', sizeof big - 1);
    big[sizeof big - 1] = 0;
    ERR(&r.e, STATUS_FAIL, "%s", big);
    assert_int_equal(strlen(r.e.msg), sizeof r.e.msg - 1);
    err_prefix(&r.e, "%s", "head");
    assert_true(strlen(r.e.msg) > 400 && strlen(r.e.msg) < sizeof r.e.msg);
    assert_memory_equal(r.e.msg, "head: yyyy", 10);
    memset(big, 'z', sizeof big - 1);
    err_prefix(&r.e, "%s", big);
    assert_true(strlen(r.e.msg) > 400 && strlen(r.e.msg) < sizeof r.e.msg);
    assert_int_equal(r.e.msg[0], 'z');
    for (size_t i = 0; i < sizeof r.guard; i++) {
        assert_int_equal(r.guard[i], 0x5a);
    }
}

static void names(void **state)
{
    static const int codes[] = {STATUS_OK,      STATUS_AGAIN, STATUS_END,         STATUS_FAIL,
                                STATUS_NOMEM,   STATUS_IO,    STATUS_INPUT,       STATUS_FORMAT,
                                STATUS_TIMEOUT, STATUS_CHILD, STATUS_UNSUPPORTED, STATUS_NOTFOUND,
                                STATUS_NUMERIC};
    int n = (int)(sizeof codes / sizeof codes[0]);
    (void)state;
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < i; j++) {
            assert_int_not_equal(codes[i], codes[j]);
            assert_string_not_equal(status_name(codes[i]), status_name(codes[j]));
        }
    }
    assert_string_equal(status_name(STATUS_INPUT), "input");
    assert_string_equal(status_name(-9999), "failed");
}

/* An assertion that does not hold names its place and ends the process by SIGABRT. */
static void asserts(void **state)
{
    int pipes[2], status;
    char text[256];
    ssize_t n;
    pid_t pid;
    (void)state;
    ASSERT(1 + 1 == 2);
    assert_int_equal(pipe(pipes), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(pipes[1], STDERR_FILENO);
        signal(SIGABRT, SIG_DFL);
        ASSERT(text == NULL);
        _exit(0);
    }
    close(pipes[1]);
    n = read(pipes[0], text, sizeof text - 1);
    close(pipes[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    text[n > 0 ? n : 0] = 0;
    assert_non_null(strstr(text, "text == NULL"));
    assert_non_null(strstr(text, "test_status.c"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fills), cmocka_unit_test(prefixes), cmocka_unit_test(bounds),
        cmocka_unit_test(names), cmocka_unit_test(asserts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
