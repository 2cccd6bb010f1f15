/* The sandbox pool: verdicts, bounds, what is left behind, and the rules of comparison. What
 * hostile programs try is in tests/live/sandbox.sh. */
#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/proc.h"
#include "base/status.h"
#include "reward/sandbox.h"
#include "reward/sandbox_int.h"

static struct sandbox *pool;

static int open_pool(void **state)
{
    struct sandbox_opts o = {.workers = 2};
    struct err e = {0};
    int rc = sandbox_open(&o, &pool, &e);

    (void)state;
    if (rc != 0) {
        fprintf(stderr, "skipped: %s\n", e.msg);
        /* No bubblewrap, or a machine that forbids it: everything else is a failure. */
        _exit(rc == STATUS_NOTFOUND || rc == STATUS_UNSUPPORTED ? 77 : 1);
    }
    return 0;
}

static int close_pool(void **state)
{
    (void)state;
    sandbox_close(pool);
    return proc_sweep(0.5) == 0 ? 0 : -1;
}

/* Runs one job to its end. */
static struct sandbox_result run(struct sandbox *s, const struct sandbox_job *j)
{
    struct sandbox_result r;
    struct err e = {0};
    double limit = proc_now() + 60;
    int rc = sandbox_submit(s, j, &e);

    assert_int_equal(rc, 0);
    while ((rc = sandbox_poll(s, 1, &r, &e)) == STATUS_AGAIN) {
        assert_true(proc_now() < limit);
    }
    assert_int_equal(rc, 0);
    assert_int_equal(sandbox_pending(s), 0);
    return r;
}

static struct sandbox_result run_python(const char *source, const char *in, const char *want)
{
    struct sandbox_case c = {
        .input = in, .input_len = strlen(in), .expected = want, .expected_len = strlen(want)};
    struct sandbox_job j = {.id = 5,
                            .source = source,
                            .source_len = strlen(source),
                            .cases = &c,
                            .ncases = 1,
                            .limits = {.wall_s = 20, .cpu_s = 2}};
    return run(pool, &j);
}

static void expect(const char *source, enum sandbox_verdict v, const char *in_reason)
{
    struct sandbox_result r = run_python(source, "3 4\n", "7\n");

    if (r.failed || r.verdict != v || !strstr(r.reason, in_reason)) {
        print_error("%s\n-> failed %d, %s: %s\n", source, r.failed, sandbox_verdict_name(r.verdict),
                    r.reason);
    }
    assert_false(r.failed);
    assert_int_equal(r.id, 5);
    assert_int_equal(r.verdict, v);
    assert_int_equal(r.cases[0].verdict, v);
    assert_int_equal(r.passed, v == SANDBOX_PASSED);
    assert_int_equal(r.first_bad, v == SANDBOX_PASSED ? -1 : 0);
    assert_non_null(strstr(r.reason, in_reason));
    sandbox_result_fini(&r);
}

static void test_verdicts(void **state)
{
    (void)state;
    expect("a, b = map(int, input().split())\nprint(a + b)", SANDBOX_PASSED, "passed 1 of 1");
    expect("print(8)", SANDBOX_WRONG, "line 1 is \"8\", expected \"7\"");
    expect("1 / 0", SANDBOX_EXITED, "ZeroDivisionError: division by zero");
    expect("def", SANDBOX_EXITED, "SyntaxError");
    expect("import sys\nprint(7)\nsys.exit(3)", SANDBOX_EXITED, "exit status 3");
    expect("import sys\nprint(7)\nsys.exit('no')", SANDBOX_EXITED, "no");
    expect("print(7)\nraise SystemExit", SANDBOX_PASSED, "passed");
    expect("import os\nos.abort()", SANDBOX_CRASHED, "signal 6");
    expect("import os\nos.kill(os.getpid(), 9)", SANDBOX_CRASHED, "signal 9");
    expect("x = bytearray(8 << 30)", SANDBOX_MEMORY, "MemoryError");
    expect("while True: print('x' * 4096)", SANDBOX_OUTPUT, "more than");
    expect("while True: pass", SANDBOX_TIMEOUT, "cpu seconds");
    expect("import atexit\natexit.register(print, 7)", SANDBOX_PASSED, "passed");
    expect("import threading, time\n"
           "threading.Thread(target=lambda: (time.sleep(0.1), print(7))).start()",
           SANDBOX_PASSED, "passed");
    expect("print(open('/dev/stdin').read().count(' ') + 6)", SANDBOX_PASSED, "passed");
    expect("import sys\nprint(7 if sys.argv == ['main.py'] and __name__ == '__main__' else 0)",
           SANDBOX_PASSED, "passed");
    expect("import subprocess\nprint(subprocess.run(['echo', '7'], capture_output=True, text=True)"
           ".stdout)",
           SANDBOX_PASSED, "passed");
    expect("from multiprocessing.pool import ThreadPool\nprint(sum(ThreadPool(4).map(int, '133')))",
           SANDBOX_PASSED, "passed");
}

/* What ordinary programs use works: the list of permitted calls is long enough. */
static void test_ordinary(void **state)
{
    static const char *const sources[] = {
        "import asyncio\nasync def m():\n await asyncio.sleep(0.01)\n print(7)\nasyncio.run(m())",
        "from multiprocessing import Pool\ndef f(x): return x\nwith Pool(2) as p:\n"
        " print(sum(p.map(f, [1, 2, 4])))",
        "import sys\nsys.setrecursionlimit(10**6)\ndef f(n): return n and 1 + f(n - 1)\n"
        "print(f(30000) - 29993)",
        "import threading\nthreading.stack_size(1 << 27)\nt = threading.Thread(target=print, "
        "args=(7,))\nt.start()\nt.join()",
        "import tempfile, os, shutil\nd = tempfile.mkdtemp()\nopen(d + '/x', 'w').write('7')\n"
        "shutil.copy2(d + '/x', d + '/y')\nprint(open(d + '/y').read())",
        "import pickle, dataclasses\n@dataclasses.dataclass\nclass A:\n x: int\n"
        "print(pickle.loads(pickle.dumps(A(7))).x)",
        "import sqlite3, random, uuid, datetime, decimal, fractions, statistics, typing, re, json\n"
        "c = sqlite3.connect(':memory:')\nprint(c.execute('select 7').fetchone()[0])",
        "import sys\nprint(len(sys.stdin.buffer.read()) + 3)",
        "import signal, time\nsignal.signal(signal.SIGALRM, lambda *a: print(7))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.05)\ntime.sleep(0.3)",
        "from concurrent.futures import ThreadPoolExecutor as T\nprint(sum(T(4).map(int, '1123')))",
        "import select, socket\na, b = socket.socketpair()\na.send(b'7')\n"
        "select.select([b], [], [], 1)\nprint(b.recv(1).decode())",
    };

    (void)state;
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        expect(sources[i], SANDBOX_PASSED, "passed");
    }
}

static void test_wall_clock(void **state)
{
    static const char source[] = "import time\ntime.sleep(60)";
    struct sandbox_case c = {0};
    struct sandbox_job j = {.source = source,
                            .source_len = sizeof source - 1,
                            .cases = &c,
                            .ncases = 1,
                            .limits = {.wall_s = 0.3}};
    struct sandbox_result r = run(pool, &j);

    (void)state;
    assert_int_equal(r.verdict, SANDBOX_TIMEOUT);
    assert_non_null(strstr(r.reason, "not done after 0.3 s"));
    assert_true(r.cases[0].seconds >= 0.3 && r.cases[0].seconds < 10);
    sandbox_result_fini(&r);
}

/* Cases go on after a failure only when told so, also where the failure cost the sandbox. */
static void test_cases(void **state)
{
    static const char source[] = "import time\nn = int(input())\n"
                                 "if n == 2: time.sleep(60)\nprint(n)";
    struct sandbox_case c[4] = {{"1", 1, "1", 1, NULL},
                                {"2", 1, "2", 1, NULL},
                                {"3", 1, "x", 1, NULL},
                                {"4", 1, "4", 1, NULL}};
    struct sandbox_job j = {.source = source,
                            .source_len = sizeof source - 1,
                            .cases = c,
                            .ncases = 4,
                            .limits = {.wall_s = 1}};
    struct sandbox_result r = run(pool, &j);

    (void)state;
    assert_int_equal(r.passed, 1);
    assert_int_equal(r.total, 4);
    assert_int_equal(r.first_bad, 1);
    assert_int_equal(r.cases[1].verdict, SANDBOX_TIMEOUT);
    assert_int_equal(r.cases[2].verdict, SANDBOX_SKIPPED);
    assert_int_equal(r.cases[3].verdict, SANDBOX_SKIPPED);
    sandbox_result_fini(&r);
    j.go_on = 1;
    r = run(pool, &j);
    assert_int_equal(r.passed, 2);
    assert_int_equal(r.first_bad, 1);
    assert_int_equal(r.cases[1].verdict, SANDBOX_TIMEOUT);
    assert_int_equal(r.cases[2].verdict, SANDBOX_WRONG);
    assert_int_equal(r.cases[3].verdict, SANDBOX_PASSED);
    sandbox_result_fini(&r);
}

static void test_native(void **state)
{
    static const char script[] = "#!/bin/sh\nread a b\necho $((a + b)) \"$@\"\n";
    const char *args[] = {"one", "two words", NULL};
    struct sandbox_case c[2] = {{"3 4\n", 4, "7\n", 2, NULL},
                                {"1 1\n", 4, "2 one two words\n", 16, args}};
    struct sandbox_job j = {.language = SANDBOX_NATIVE,
                            .source = script,
                            .source_len = sizeof script - 1,
                            .cases = c,
                            .ncases = 2,
                            .keep_output = 1};
    struct sandbox_result r = run(pool, &j);

    (void)state;
    assert_int_equal(r.passed, 2);
    assert_string_equal(r.cases[0].output, "7\n");
    assert_int_equal(r.cases[0].output_len, 2);
    assert_true(r.cases[0].peak > 0);
    sandbox_result_fini(&r);
    j.source = NULL;
    j.path = "/bin/cat";
    j.compare = SANDBOX_EXACT;
    c[0].expected = c[0].input;
    c[0].expected_len = c[0].input_len;
    j.ncases = 1;
    r = run(pool, &j);
    assert_int_equal(r.passed, 1);
    sandbox_result_fini(&r);
    j.path = NULL;
    j.source = "not a program";
    j.source_len = 13;
    r = run(pool, &j);
    assert_int_equal(r.failed, 0);
    assert_int_equal(r.verdict, SANDBOX_EXITED);
    assert_non_null(strstr(r.reason, "cannot be run"));
    sandbox_result_fini(&r);
}

static struct sandbox_result call(const char *source, const char *in, const char *want)
{
    struct sandbox_case c = {
        .input = in, .input_len = strlen(in), .expected = want, .expected_len = strlen(want)};
    struct sandbox_job j = {.style = SANDBOX_CALL,
                            .entry = "f",
                            .source = source,
                            .source_len = strlen(source),
                            .cases = &c,
                            .ncases = 1};
    return run(pool, &j);
}

static void test_call(void **state)
{
    static const struct {
        const char *source, *in, *want;
        int right;
    } t[] = {
        {"def f(a, b): return a + b", "[1, 2]", "3", 1},
        {"def f(a, b): return a + b", "[1, 2]", "4", 0},
        {"def f(a): return tuple(a)", "[[1, 2]]", "[1, 2]", 1},
        {"def f(a): return 0.1 + 0.2", "[0]", "0.3", 1},
        {"def f(a): return 3", "[0]", "[3]", 1},
        {"def f(a): return 10**18 + 1", "[0]", "1000000000000000000", 0},
        {"class Solution:\n def f(self, x: List[int]) -> int: return max(x)", "[[1, 9]]", "9", 1},
        {"def g(): pass", "[]", "0", 0},
        {"def f(a): print('noise'); return a", "[\"x\"]", "\"x\"", 1},
        {"import os\ndef f(a):\n os.write(4, b'3'); os._exit(0)", "[0]", "4", 0},
        {"def f(a): return a\nif __name__ == '__main__': input()", "[1]", "1", 1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct sandbox_result r = call(t[i].source, t[i].in, t[i].want);
        if (r.failed || r.passed != t[i].right) {
            print_error("case %zu: %s\n", i, r.reason);
        }
        assert_false(r.failed);
        assert_int_equal(r.passed, t[i].right);
        sandbox_result_fini(&r);
    }
}

static struct sandbox_result tests(const char *source, const char *code, const char *entry)
{
    struct sandbox_case c = {.input = code, .input_len = strlen(code)};
    struct sandbox_job j = {.style = SANDBOX_ASSERT,
                            .entry = entry,
                            .source = source,
                            .source_len = strlen(source),
                            .cases = &c,
                            .ncases = 1};
    return run(pool, &j);
}

static void test_asserts(void **state)
{
    static const struct {
        const char *source, *code, *entry;
        int passed, total;
    } t[] = {
        {"def f(a, b): return a + b", "assert f(1, 2) == 3\nassert f('a', 'b') == 'ab'", NULL, 2,
         2},
        {"def f(a): return a", "assert f(1) == 2\nassert f(1) == 1", NULL, 1, 2},
        {"def f(x): return {1: (2, {3}), 'k': None}",
         "assert f(0) == {1: (2, {3}), 'k': None}\nassert f(0) != {1: [2, {3}], 'k': None}", NULL,
         2, 2},
        {"def f(x): return 2.0", "import math\nassert math.isclose(f(0), 2)", NULL, 1, 1},
        {"def f(x): return 2.0", "assert math.isclose(f(0), 2)", NULL, 1, 1},
        {"def sum(a, b): return 6", "assert sum(10, 15) == 6", NULL, 1, 1},
        {"def f(n):\n for i in range(n): yield i", "assert list(f(3)) == [0, 1, 2]", NULL, 1, 1},
        {"class P:\n def __init__(s, x): s.x = x\n def up(s): return s.x + 1",
         "p = P(4)\nassert p.up() == 5\nassert p.x == 4", NULL, 2, 2},
        {"def f(x):\n raise ValueError('no')",
         "try:\n f(1)\nexcept ValueError:\n ok = True\nassert ok", NULL, 1, 1},
        {"def f(x): return x + 1",
         "def check(candidate):\n assert candidate(1) == 2\n assert candidate(2) == 3", "f", 1, 1},
        {"def f(x): return x", "def check(c):\n assert c(1) == 2\ncheck(f)", "f", 0, 1},
        {"def f(x): return x + 1", "def check(f):\n assert f(1) == 2\ncheck(f)", NULL, 1, 1},
        {"def f(x): return x + 1",
         "def same(a, b):\n return f(a) == b\nassert same(1, 2)\nassert [f(f) for f in ()] == []",
         NULL, 2, 2},
        {"def f(", "assert f(1) == 1", NULL, 0, 1},
        {"import sys\nsys.exit(0)", "assert f(1) == 1", NULL, 0, 1},
        {"import os\nos._exit(0)", "assert f(1) == 1", NULL, 0, 1},
        {"import os\ndef f(x): os._exit(0)", "assert f(1) == 1", NULL, 0, 1},
        {"import os\ndef f(x): os.kill(os.getpid(), 9)", "assert f(1) == 1", NULL, 0, 1},
        /* deceivers */
        {"class E:\n def __eq__(s, o): return True\ndef f(x): return E()", "assert f(1) == 1", NULL,
         0, 1},
        {"class I(int):\n def __eq__(s, o): return True\ndef f(x): return I(9)", "assert f(1) == 1",
         NULL, 0, 1},
        {"def set(x): return 0\ndef f(x): return [5]", "assert set(f(1)) == set([1])", NULL, 0, 1},
        {"class math:\n isclose = staticmethod(lambda a, b: True)\ndef f(x): return 9",
         "assert math.isclose(f(1), 1)", NULL, 0, 1},
        {"import builtins\nbuiltins.AssertionError = Exception\nbuiltins.all = lambda x: True\n"
         "def f(x): return 9",
         "assert all(f(i) == i for i in range(3))", NULL, 0, 1},
        {"import os\nos.write(4, b'{\"passed\": 1, \"total\": 1, \"why\": \"\"}\\n')\n"
         "def f(x): return 9",
         "assert f(1) == 1", NULL, 0, 1},
        {"import os\nos.write(3, b'\\xff\\xff\\xff\\xff' * 9)\ndef f(x): return 9",
         "assert f(1) == 1", NULL, 0, 1},
        {"def f(x): raise AssertionError", "assert f(1) == 1", NULL, 0, 1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct sandbox_result r = tests(t[i].source, t[i].code, t[i].entry);
        if (r.failed || r.passed != t[i].passed || (r.total != t[i].total)) {
            print_error("case %zu: %d %d/%d %s\n", i, r.failed, r.passed, r.total, r.reason);
        }
        assert_false(r.failed);
        assert_int_equal(r.passed, t[i].passed);
        assert_int_equal(r.total, t[i].total);
        assert_int_equal(r.first_bad, r.passed == r.total ? -1 : 0);
        sandbox_result_fini(&r);
    }
}

/* Tests that cannot be run are nobody's zero. */
static void test_bad_tests(void **state)
{
    struct sandbox_result r = tests("def f(x): return 1", "assert f(1) ==", NULL);

    (void)state;
    assert_true(r.failed);
    assert_non_null(strstr(r.reason, "the tests do not compile"));
    sandbox_result_fini(&r);
    r = tests("def f(g): return g(1)", "assert f(lambda x: x) == 1", NULL);
    assert_true(r.failed);
    assert_non_null(strstr(r.reason, "cannot be given by value"));
    sandbox_result_fini(&r);
}

static void test_refusals(void **state)
{
    struct sandbox_case c = {0};
    struct sandbox_job j = {.source = "", .cases = &c, .ncases = 0};
    struct err e = {0};
    struct sandbox_opts o = {.bwrap = "/nonexistent/bwrap"};
    struct sandbox *s = NULL;

    (void)state;
    assert_int_equal(sandbox_submit(pool, &j, &e), STATUS_INPUT);
    j.ncases = 1;
    j.language = SANDBOX_NATIVE;
    j.style = SANDBOX_CALL;
    assert_int_equal(sandbox_submit(pool, &j, &e), STATUS_INPUT);
    j.style = SANDBOX_STDIO;
    j.path = "/nonexistent/program";
    assert_int_equal(sandbox_submit(pool, &j, &e) < 0, 1);
    assert_int_equal(sandbox_pending(pool), 0);
    assert_int_equal(sandbox_open(&o, &s, &e), STATUS_NOTFOUND);
    assert_non_null(strstr(e.msg, "install"));
    o.bwrap = NULL;
    o.python = "/nonexistent/python";
    assert_int_equal(sandbox_open(&o, &s, &e), STATUS_NOTFOUND);
    assert_non_null(strstr(e.msg, "interpreter"));
    o.python = NULL;
    o.bwrap = "/bin/false";
    assert_int_equal(sandbox_open(&o, &s, &e), STATUS_CHILD);
    assert_null(s);
}

static int count_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;

    while (d && readdir(d)) {
        n++;
    }
    closedir(d);
    return n;
}

/* Many jobs at once, a pool closed with jobs in it: no descriptor and no process stays. */
static void test_nothing_left(void **state)
{
    static const char slow[] = "import os, time\nos.fork()\ntime.sleep(60)";
    struct sandbox_case c = {.input = "3 4\n", .input_len = 4, .expected = "7", .expected_len = 1};
    struct sandbox_job j = {.source = "print(7)", .source_len = 8, .cases = &c, .ncases = 1};
    struct sandbox_opts o = {.workers = 3};
    struct sandbox_result r;
    struct sandbox *s = NULL;
    struct err e = {0};
    int before = count_fds(), pids[64], below = (int)proc_below(getpid(), pids, 64), got = 0;

    (void)state;
    assert_int_equal(sandbox_open(&o, &s, &e), 0);
    for (int i = 0; i < 20; i++) {
        j.id = i;
        assert_int_equal(sandbox_submit(s, &j, &e), 0);
    }
    while (sandbox_pending(s)) {
        if (sandbox_poll(s, 1, &r, &e) == 0) {
            assert_int_equal(r.passed, 1);
            got |= 1 << r.id;
            sandbox_result_fini(&r);
        }
    }
    assert_int_equal(got, (1 << 20) - 1);
    j.source = slow;
    j.source_len = sizeof slow - 1;
    for (int i = 0; i < 6; i++) {
        assert_int_equal(sandbox_submit(s, &j, &e), 0);
    }
    assert_int_equal(sandbox_poll(s, 0.5, &r, &e), STATUS_AGAIN);
    assert_true((int)proc_below(getpid(), pids, 64) > below);
    sandbox_close(s);
    assert_int_equal(count_fds(), before);
    assert_int_equal(proc_below(getpid(), pids, 64), below);
}

/* A killed spare is replaced and nobody notices. */
static void test_spare_killed(void **state)
{
    int pids[64];
    size_t n = proc_below(getpid(), pids, 64);

    (void)state;
    for (size_t i = 0; i < n; i++) {
        kill(pids[i], SIGKILL);
    }
    expect("print(7)", SANDBOX_PASSED, "passed");
}

/* A program that somebody else kills (the kernel for want of memory) is not wrong: it runs again.
 */
static void test_program_killed(void **state)
{
    static const char source[] = "import time\ntime.sleep(1.5)\nprint(7)";
    struct sandbox_case c = {.expected = "7", .expected_len = 1};
    struct sandbox_job j = {
        .source = source, .source_len = sizeof source - 1, .cases = &c, .ncases = 1};
    struct sandbox_opts o = {.workers = 1, .spares = -1};
    struct sandbox *s = NULL;
    struct sandbox_result r;
    struct err e = {0};
    int pids[64], last = 0, rc, others[64];
    size_t n, nothers = proc_below(getpid(), others, 64);

    (void)state;
    assert_int_equal(sandbox_open(&o, &s, &e), 0);
    assert_int_equal(sandbox_submit(s, &j, &e), 0);
    assert_int_equal(sandbox_poll(s, 0.7, &r, &e), STATUS_AGAIN);
    n = proc_below(getpid(), pids, 64);
    for (size_t i = 0; i < n; i++) {
        int mine = 1;
        for (size_t k = 0; k < nothers; k++) {
            mine &= pids[i] != others[k];
        }
        last = mine && pids[i] > last ? pids[i] : last; /* the youngest is the program */
    }
    assert_true(last > 0);
    assert_int_equal(kill(last, SIGKILL), 0);
    while ((rc = sandbox_poll(s, 1, &r, &e)) == STATUS_AGAIN) {
    }
    assert_int_equal(rc, 0);
    assert_string_equal(r.reason, "passed 1 of 1");
    assert_true(r.seconds > 1.7);
    sandbox_result_fini(&r);
    sandbox_close(s);
}

static void test_spawn(void **state)
{
    const char *argv[] = {"/usr/bin/env", "sh", "-c",
                          "read x; echo $x$(id -u)$(cat /etc/passwd 2>/dev/null); sleep 60", NULL};
    struct proc_opts o = {.argv = argv, .request_fd = 0, .reply_fd = 1, .life_fd = -1};
    struct sandbox_opts so = {.limits = {.memory = 256 << 20}};
    struct proc p;
    struct err e = {0};
    struct buf b;
    size_t n = 0;

    (void)state;
    assert_int_equal(sandbox_spawn(&so, &o, &p, &e), 0);
    assert_int_equal(proc_write(&p, "hi\n", 3, &n, &e), 0);
    buf_init(&b, 4096);
    assert_int_equal(proc_read_line(&p, &b, proc_now() + 30, &n, &e), 0);
    assert_string_equal(b.data, "hi1000\n");
    proc_end(&p);
    buf_fini(&b);
}

static void test_compare(void **state)
{
    static const struct {
        enum sandbox_compare rule;
        const char *got, *want;
        int right;
    } t[] = {
        {SANDBOX_LINES, "a\nb\n", "a\nb", 1},
        {SANDBOX_LINES, "a  \nb\n\n\n", "a\nb", 1},
        {SANDBOX_LINES, "a\r\nb\r\n", "a\nb\n", 1},
        {SANDBOX_LINES, " a", "a", 0},
        {SANDBOX_LINES, "a\n\nb", "a\nb", 0},
        {SANDBOX_LINES, "a", "a\nb", 0},
        {SANDBOX_LINES, "", "", 1},
        {SANDBOX_LINES, "1.0", "1.00", 0},
        {SANDBOX_EXACT, "a\n", "a", 0},
        {SANDBOX_EXACT, "a\n", "a\n", 1},
        {SANDBOX_NUMBERS, "1.0000001  x", "1.00 x", 1},
        {SANDBOX_NUMBERS, "1.1", "1.0", 0},
        {SANDBOX_NUMBERS, "1000000008", "1000000007", 0},
        {SANDBOX_NUMBERS, "100000000000000000001", "100000000000000000002", 0},
        {SANDBOX_NUMBERS, "3.0", "3", 1},
        {SANDBOX_NUMBERS, "nan", "1.0", 0},
        {SANDBOX_NUMBERS, "1 2", "1 2 3", 0},
        {SANDBOX_NOTHING, "x", "y", 1},
    };
    char why[200];

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        int right = sandbox_compare_text(t[i].rule, t[i].got, strlen(t[i].got), t[i].want,
                                         strlen(t[i].want), why, sizeof why);
        if (right != t[i].right) {
            print_error("case %zu: %s\n", i, why);
        }
        assert_int_equal(right, t[i].right);
    }
    sandbox_compare_quote(why, 20, "a\xff\n\xc3\xa4\xed\xa0\x80z", 9);
    assert_string_equal(why, "a? \xc3\xa4???z");
    sandbox_compare_quote(why, 12, "\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4", 12);
    assert_true(strlen(why) <= 11 && strlen(why) % 2 == 0);
}

int main(void)
{
    const struct CMUnitTest all[] = {
        cmocka_unit_test(test_compare),        cmocka_unit_test(test_verdicts),
        cmocka_unit_test(test_ordinary),       cmocka_unit_test(test_wall_clock),
        cmocka_unit_test(test_cases),          cmocka_unit_test(test_native),
        cmocka_unit_test(test_call),           cmocka_unit_test(test_asserts),
        cmocka_unit_test(test_bad_tests),      cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_nothing_left),   cmocka_unit_test(test_spare_killed),
        cmocka_unit_test(test_program_killed), cmocka_unit_test(test_spawn),
    };
    return cmocka_run_group_tests(all, open_pool, close_pool);
}
