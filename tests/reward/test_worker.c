/* Python reward workers against functions that are right, wrong and hostile. */
#include "support.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fsio.h"
#include "base/log.h"
#include "base/proc.h"
#include "base/status.h"
#include "reward/worker.h"

static char dir[] = "/tmp/miles_worker_XXXXXX";
static char python[1024]; /* the interpreter itself: what PATH names may be a slow wrapper */

static const char functions[] =
    "import asyncio, math, os, signal, subprocess, sys, time\n"
    "from miles.utils.types import Sample\n"
    "print('module loaded: this goes to stderr')\n"
    "def last(args, sample):\n"
    "    import re\n"
    "    r = re.findall(r'\\d+', sample.response)\n"
    "    return 1.0 if r and r[-1] == str(sample.label) else 0.0\n"
    "def fields(args, sample):\n"
    "    assert isinstance(sample, Sample)\n"
    "    assert sample.prompt == [{'role': 'user', 'content': 'hi'}], sample.prompt\n"
    "    assert sample.tokens == [1, 2, 3] and sample.response_length == 2\n"
    "    assert sample.index == 9 and sample.group_index == 4 and sample.rollout_id is None\n"
    "    assert sample.metadata == {'a': [1, None, 'x']}\n"
    "    assert sample.status is Sample.Status.TRUNCATED and sample.status.value == 'truncated'\n"
    "    assert sample.reward is None and sample.loss_mask is None\n"
    "    assert sample.rollout_log_probs == [-0.5, -1.25]\n"
    "    assert sample.extra == 'kept'\n"
    "    assert sample.response == 'caf\\u00e9 \\U0001f600 \"q\" \\\\ \\n end'\n"
    "    assert args.rm_url is None and args.n_samples_per_prompt == 8 and args.lr == 1e-6\n"
    "    for obj in (args, sample):\n"
    "        try:\n"
    "            obj.no_such_thing\n"
    "        except AttributeError:\n"
    "            pass\n"
    "        else:\n"
    "            assert False\n"
    "    return 2.5\n"
    "def kinds(args, sample):\n"
    "    return eval(sample.response)\n"
    "def forge():\n"
    "    for fd in range(100, 110):\n"
    "        try:\n"
    "            os.write(fd, b'{\"id\": 99, \"value\": 1}\\n')\n"
    "        except OSError:\n"
    "            pass\n"
    "    return 1\n"
    "class Arr:\n"
    "    def __init__(self, v): self.v = v\n"
    "    def item(self): return self.v\n"
    "    def tolist(self): return [self.v]\n"
    "opened = None\n"
    "async def gate(args, sample):\n"
    "    global opened\n"
    "    opened = opened or asyncio.Event()\n"
    "    if sample.response == 'open':\n"
    "        opened.set()\n"
    "        return 1\n"
    "    await opened.wait()\n"
    "    return 2\n"
    "async def slow(args, sample):\n"
    "    await asyncio.sleep(float(sample.response))\n"
    "    return float(sample.response)\n"
    "async def aeval(args, sample):\n"
    "    await asyncio.sleep(0.01)\n"
    "    r = eval(sample.response)\n"
    "    return await r if asyncio.iscoroutine(r) else r\n"
    "def later(args, sample):\n"
    "    return slow(args, sample)\n"
    "def raises(args, sample):\n"
    "    x = 1\n"
    "    raise ValueError('bad ' + sample.response)\n"
    "def forks(args, sample):\n"
    "    pid = os.fork()\n"
    "    if pid == 0:\n"
    "        return 0.0\n"
    "    os.waitpid(pid, 0)\n"
    "    return 1.0\n"
    "def leaves(args, sample):\n"
    "    a = subprocess.Popen(['sleep', '1000'])\n"
    "    b = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
    "    open(sample.response, 'w').write('%d %d' % (a.pid, b.pid))\n"
    "    time.sleep(1000)\n"
    "def no_children(args, sample):\n"
    "    try:\n"
    "        os.waitpid(-1, os.WNOHANG)\n"
    "    except ChildProcessError:\n"
    "        return 1.0\n"
    "    return 0.0\n"
    "def closes(args, sample):\n"
    "    os.closerange(0, 4096)\n"
    "    return 1.0\n"
    "not_a_function = 3\n";

static int setup(void **state)
{
    (void)state;
    char path[300];
    struct err e = {0};
    FILE *f = popen("python3 -c 'import sys; print(sys.executable)'", "r");
    if (!f || !fgets(python, sizeof python, f) || pclose(f) != 0) {
        return -1;
    }
    python[strcspn(python, "\n")] = 0;
    if (!mkdtemp(dir)) {
        return -1;
    }
    snprintf(path, sizeof path, "%s/fns.py", dir);
    if (fsio_write_atomic(path, functions, strlen(functions), &e) != 0) {
        return -1;
    }
    snprintf(path, sizeof path, "%s/broken.py", dir);
    const char *broken = "import os\ndef f(:\n    pass\n";
    fsio_write_atomic(path, broken, strlen(broken), &e);
    snprintf(path, sizeof path, "%s/json.py", dir); /* shadows a module the worker itself needs */
    const char *shadow = "def f(args, sample):\n    return 4\n";
    fsio_write_atomic(path, shadow, strlen(shadow), &e);
    snprintf(path, sizeof path, "%s/quits.py", dir);
    const char *quits = "import sys\nsys.exit('no licence')\ndef f(a, s):\n    return 1\n";
    fsio_write_atomic(path, quits, strlen(quits), &e);
    snprintf(path, sizeof path, "%s/pkg", dir);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/pkg/mod.py", dir);
    const char *mod = "def f(args, sample):\n    return len(sample.response)\n";
    fsio_write_atomic(path, mod, strlen(mod), &e);
    log_set_level(LOG_ERROR);
    return chdir(dir);
}

static int teardown(void **state)
{
    (void)state;
    struct err e = {0};
    return fsio_remove_tree(dir, &e);
}

static void assert_no_children(void)
{
    errno = 0;
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

static struct worker_pool *open_pool(const char *path, int count, double timeout)
{
    struct worker_opts o = {.path = path, .python = python, .count = count, .timeout_s = timeout};
    struct worker_pool *w = NULL;
    struct err e = {0};
    assert_ok(worker_open(&o, &w, &e), &e);
    return w;
}

static void submit(struct worker_pool *w, int64_t id, const char *response, const char *label)
{
    json_t *s = json_pack("{s:s, s:s}", "response", response, "label", label);
    struct err e = {0};
    assert_non_null(s);
    assert_ok(worker_submit(w, id, s, &e), &e);
    json_decref(s);
}

static struct worker_result get(struct worker_pool *w)
{
    struct worker_result r;
    struct err e = {0};
    memset(&r, 0, sizeof r);
    assert_ok(worker_poll(w, 120, &r, &e), &e);
    return r;
}

static void gives_value(struct worker_pool *w, const char *response, double want)
{
    submit(w, 5, response, "x");
    struct worker_result r = get(w);
    if (r.failed) {
        fail_msg("%s: %s", response, r.reason);
    }
    assert_int_equal(r.id, 5);
    assert_true(json_is_number(r.value));
    assert_true(json_number_value(r.value) == want);
    assert_string_equal(r.reason, "");
    json_decref(r.value);
}

static void gives_failure(struct worker_pool *w, const char *response, const char *reason)
{
    submit(w, 6, response, "x");
    struct worker_result r = get(w);
    assert_int_equal(r.id, 6);
    assert_int_equal(r.failed, 1);
    assert_null(r.value);
    if (!strstr(r.reason, reason)) {
        fail_msg("%s: reason is \"%s\", not \"%s\"", response, r.reason, reason);
    }
}

static void test_recipe(void **state)
{
    (void)state;
    struct worker_pool *w = open_pool(TEST_SOURCE_DIR "/recipes/add_reward.py:last_integer", 2, 10);
    static const struct {
        const char *response, *label;
        double want;
    } cases[] = {{"12", "12", 1},     {"3+4 = 7.", "7", 1}, {"7 then 8", "7", 0}, {"", "7", 0},
                 {"none", "none", 0}, {"012", "12", 0},     {"1,234", "234", 1}};
    enum { N = sizeof cases / sizeof *cases };
    int seen[N] = {0};

    for (int i = 0; i < N; i++) {
        submit(w, i, cases[i].response, cases[i].label);
    }
    assert_int_equal(worker_pending(w), N);
    for (int i = 0; i < N; i++) {
        struct worker_result r = get(w);
        assert_int_equal(r.failed, 0);
        assert_false(seen[r.id]);
        seen[r.id] = 1;
        assert_true(json_real_value(r.value) == cases[r.id].want);
        json_decref(r.value);
    }
    assert_int_equal(worker_pending(w), 0);
    struct worker_result r;
    double t0 = proc_now();
    assert_int_equal(worker_poll(w, 5, &r, NULL), STATUS_AGAIN);
    assert_true(proc_now() - t0 < 1); /* nothing is pending: no wait */
    worker_close(w);
    assert_no_children();
}

/* A label that is a number in the data is compared as its text. */
static void test_numeric_label(void **state)
{
    (void)state;
    struct worker_pool *w = open_pool(TEST_SOURCE_DIR "/recipes/add_reward.py:last_integer", 1, 10);
    json_t *s = json_pack("{s:s, s:i}", "response", "it is 31", "label", 31);
    struct err e = {0};
    assert_ok(worker_submit(w, 1, s, &e), &e);
    struct worker_result r = get(w);
    assert_true(json_real_value(r.value) == 1.0);
    json_decref(r.value);
    json_decref(s);
    worker_close(w);
}

static void test_fields(void **state)
{
    (void)state;
    json_t *args = json_pack("{s:n, s:i, s:f}", "rm_url", "n_samples_per_prompt", 8, "lr", 1e-6);
    struct worker_opts o = {
        .path = "fns.py:fields", .python = python, .count = 1, .timeout_s = 10, .args = args};
    struct worker_pool *w;
    struct err e = {0};
    assert_ok(worker_open(&o, &w, &e), &e);
    json_t *s = json_pack("{s:[{s:s,s:s}], s:[i,i,i], s:i, s:i, s:i, s:{s:[i,n,s]}, s:s, s:[f,f], "
                          "s:s, s:s}",
                          "prompt", "role", "user", "content", "hi", "tokens", 1, 2, 3,
                          "response_length", 2, "index", 9, "group_index", 4, "metadata", "a", 1,
                          "x", "status", "truncated", "rollout_log_probs", -0.5, -1.25, "extra",
                          "kept", "response", "caf\xc3\xa9 \xf0\x9f\x98\x80 \"q\" \\ \n end");
    assert_non_null(s);
    assert_ok(worker_submit(w, 1, s, &e), &e);
    struct worker_result r = get(w);
    assert_string_equal(r.reason, "");
    assert_true(json_real_value(r.value) == 2.5);
    json_decref(r.value);
    json_object_set_new(s, "status", json_string("sleeping"));
    assert_ok(worker_submit(w, 1, s, &e), &e);
    r = get(w);
    assert_int_equal(r.failed, 1);
    assert_non_null(strstr(r.reason, "ValueError: 'sleeping' is not a valid"));
    json_decref(s);
    json_decref(args);
    worker_close(w);
}

static void test_kinds(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct worker_pool *w = open_pool(i ? "fns.aeval" : "fns.kinds", 1, 10);
        gives_value(w, "True", 1);
        gives_value(w, "False", 0);
        gives_value(w, "-3", -3);
        gives_value(w, "0.1 + 0.2", 0.1 + 0.2);
        gives_value(w, "10**20", 1e20);
        gives_value(w, "Arr(2.5)", 2.5);
        gives_failure(w, "None", "the reward is None");
        gives_failure(w, "'1.0'", "of type str");
        gives_failure(w, "[1.0]", "of type list");
        gives_failure(w, "float('nan')", "the reward is nan");
        gives_failure(w, "float('-inf')", "the reward is -inf");
        gives_failure(w, "10**400", "OverflowError");
        gives_failure(w, "{'a': float('nan')}", "ValueError");
        gives_failure(w, "{'a': 2**70}", "does not fit 64 bits");
        gives_failure(w, "{'a': '\\ud800'}", "UnicodeEncodeError");
        gives_failure(w, "{'a': {1, 2}}", "set is not JSON");
        gives_failure(w, "{(1, 2): 3}", "TypeError");
        gives_failure(w, "{'a': 'x' * 10**7}", "bytes of JSON, over");
        gives_failure(w, "(lambda d: [d.append(d) for _ in '1'] and {'a': d})([])",
                      "Circular reference");
        gives_failure(w, "sys.exit(3)", "SystemExit: 3");
        gives_failure(w, "[][1]", "IndexError: list index out of range");
        gives_failure(w, "(_ for _ in ()).throw(KeyboardInterrupt)", "KeyboardInterrupt");
        submit(w, 7, "{'score': -1.0, 'acc': False, 'pred': None, 'n': [Arr(1)], 'z': '\\0'}", "");
        struct worker_result r = get(w);
        assert_string_equal(r.reason, "");
        assert_true(json_real_value(json_object_get(r.value, "score")) == -1.0);
        assert_true(json_is_false(json_object_get(r.value, "acc")));
        assert_true(json_is_null(json_object_get(r.value, "pred")));
        assert_int_equal(json_array_size(json_object_get(r.value, "n")), 1);
        assert_int_equal(json_string_length(json_object_get(r.value, "z")), 1);
        json_decref(r.value);
        assert_int_equal(worker_restarts(w), 0);
        worker_close(w);
    }
    assert_no_children();
}

static void test_exceptions(void **state)
{
    (void)state;
    struct worker_pool *w = open_pool("fns.py:raises", 1, 10);
    gives_failure(w, "luck", "ValueError: bad luck (");
    gives_failure(w, "luck", "/fns.py:61)");
    /* newlines and control characters become blanks, text that is too long is cut whole */
    char longer[2000] = "a\nb\001c ";
    for (size_t i = strlen(longer); i + 2 < sizeof longer; i += 2) {
        memcpy(longer + i, "\xc3\xa9", 3);
    }
    submit(w, 1, longer, "");
    struct worker_result r = get(w);
    assert_int_equal(r.failed, 1);
    assert_memory_equal(r.reason, "ValueError: b \xc3\xa9", 13);
    assert_true(strlen(r.reason) >= 250);
    json_t *text = json_string(r.reason);
    assert_non_null(text); /* valid UTF-8 */
    json_decref(text);
    worker_close(w);
}

static void open_fails(const char *path, int code, const char *text)
{
    struct worker_opts o = {.path = path, .python = python, .count = 1, .timeout_s = 10};
    struct worker_pool *w = NULL;
    struct err e = {0};
    assert_int_equal(worker_open(&o, &w, &e), code);
    assert_null(w);
    if (!strstr(e.msg, text)) {
        fail_msg("%s: message is \"%s\", not \"%s\"", path, e.msg, text);
    }
    assert_no_children();
}

static void test_load_errors(void **state)
{
    (void)state;
    open_fails("no.such.module", STATUS_INPUT,
               "no.such.module: ModuleNotFoundError: No module named 'no'");
    open_fails("fns.missing", STATUS_INPUT, "fns has no function missing");
    open_fails("fns.py:missing", STATUS_INPUT, "fns.py has no function missing");
    open_fails("nofile.py:f", STATUS_INPUT, "nofile.py");
    open_fails("fns.py:not_a_function", STATUS_INPUT, "is not a function");
    open_fails("plainname", STATUS_INPUT, "neither pkg.module.function nor FILE.py:fun");
    open_fails("broken.py:f", STATUS_INPUT, "broken.py:2)");
    open_fails("quits.f", STATUS_INPUT, "SystemExit: no licence");
    open_fails("", STATUS_INPUT, "no reward function");
    struct worker_opts o = {.path = "fns.kinds", .python = "/no/such/python", .count = 1};
    struct worker_pool *w = NULL;
    struct err e = {0};
    assert_int_equal(worker_open(&o, &w, &e), STATUS_NOTFOUND);
    assert_non_null(strstr(e.msg, "/no/such/python"));
    o.python = "false";
    assert_int_equal(worker_open(&o, &w, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "exit status 1"));
    o.python = "sleep"; /* "sleep -u": ends with an error too, but not at once everywhere */
    o.start_timeout_s = 1;
    assert_int_equal(worker_open(&o, &w, &e), STATUS_INPUT);
    assert_no_children();
}

static void test_paths(void **state)
{
    (void)state;
    struct worker_pool *w = open_pool("json.py:f", 1, 10);
    gives_value(w, "x", 4);
    worker_close(w);
    w = open_pool("pkg.mod.f", 1, 10);
    gives_value(w, "12345", 5);
    char big[100000];
    memset(big, 'y', sizeof big - 1);
    big[sizeof big - 1] = 0;
    gives_value(w, big, sizeof big - 1);
    worker_close(w);
}

/* Every way to lose a worker: the call fails, the next one works, nothing is left. */
static void test_lost_workers(void **state)
{
    (void)state;
    struct worker_pool *w = open_pool("fns.kinds", 1, 2.0);
    gives_failure(w, "time.sleep(1000)", "no reward within 2 s");
    gives_value(w, "1", 1);
    gives_failure(w, "exec('while True: pass')", "no reward within 2 s");
    gives_failure(w, "os._exit(3)", "the worker process died: exit status 3");
    gives_value(w, "1", 1);
    gives_failure(w, "os.kill(os.getpid(), signal.SIGSEGV)", "killed by signal 11");
    gives_failure(w, "os.kill(os.getpid(), signal.SIGSTOP)", "no reward within 2 s");
    gives_failure(w,
                  "signal.signal(signal.SIGTERM, signal.SIG_IGN) and None or "
                  "os.killpg(0, signal.SIGKILL)",
                  "killed by signal 9");
    gives_failure(w, "exec('import ctypes; ctypes.string_at(0)')", "killed by signal 11");
    gives_failure(w, "os.execvp('true', ['true'])", "the worker process died: exit status 0");
    gives_failure(w, "os.closerange(3, 4096)", "the worker process");
    gives_value(w, "2", 2);
    gives_failure(w, "forge()", "the worker process answered a call it was not given");
    gives_value(w, "3", 3);
    assert_true(worker_restarts(w) >= 10);
    worker_close(w);
    assert_no_children();
}

static void test_noise(void **state)
{
    (void)state;
    /* a reader of our stderr is not always there: send it to /dev/null for the megabytes */
    int keep = dup(2);
    assert_non_null(freopen("/dev/null", "w", stderr));
    struct worker_pool *w = open_pool("fns.kinds", 1, 20);
    gives_value(w, "print('x' * 5000000) or 1", 1);
    gives_value(w, "sys.stderr.write('y' * 5000000) and 1", 1);
    gives_value(w, "os.write(1, b'{\"id\": 1, \"value\": 9}\\n') and 1", 1);
    gives_value(w, "os.system('echo from a shell') or 1", 1);
    gives_value(w, "os.close(1) or os.close(2) or 1", 1);
    gives_value(w, "len(sys.stdin.read())", 0);
    assert_int_equal(worker_restarts(w), 0);
    worker_close(w);
    fflush(stderr);
    dup2(keep, 2);
    close(keep);
}

static void test_forks(void **state)
{
    (void)state;
    struct worker_pool *w = open_pool("fns.forks", 1, 10);
    for (int i = 0; i < 3; i++) {
        gives_value(w, "", 1);
    }
    assert_int_equal(worker_restarts(w), 0);
    worker_close(w);
    w = open_pool("fns.no_children", 1, 10);
    gives_value(w, "", 1);
    worker_close(w);
    w = open_pool("fns.closes", 1, 10);
    gives_failure(w, "", "the worker process");
    worker_close(w);
    assert_no_children();
}

static int gone(int pid)
{
    for (int i = 0; i < 3000; i++) {
        if (kill(pid, 0) != 0) {
            return 1;
        }
        usleep(1000);
    }
    return 0;
}

static void read_pids(const char *name, int *a, int *b)
{
    for (int i = 0; i < 10000; i++) {
        FILE *f = fopen(name, "r");
        int n = f ? fscanf(f, "%d %d", a, b) : 0;
        if (f) {
            fclose(f);
        }
        if (n == 2) {
            return;
        }
        usleep(1000);
    }
    fail_msg("%s never came", name);
}

/* What the function started goes too: after a time-out, on close, and when we are killed. */
static void test_leftovers(void **state)
{
    (void)state;
    int a = 0, b = 0;
    struct worker_pool *w = open_pool("fns.leaves", 1, 1.0);
    gives_failure(w, "pids1", "no reward within 1 s");
    read_pids("pids1", &a, &b);
    assert_true(gone(a) && gone(b));
    submit(w, 1, "pids2", "");
    struct worker_result r;
    assert_int_equal(worker_poll(w, 0.01, &r, NULL), STATUS_AGAIN);
    while (access("pids2", R_OK) != 0) {
        assert_int_equal(worker_poll(w, 0.01, &r, NULL), STATUS_AGAIN);
    }
    read_pids("pids2", &a, &b);
    worker_close(w);
    assert_true(gone(a) && gone(b));
    assert_no_children();

    prctl(PR_SET_CHILD_SUBREAPER, 1);
    pid_t mid = fork();
    if (mid == 0) {
        w = open_pool("fns.leaves", 1, 100);
        submit(w, 1, "pids3", "");
        worker_poll(w, 50, &r, NULL);
        _exit(1);
    }
    read_pids("pids3", &a, &b);
    assert_int_equal(kill(a, 0), 0);
    kill(mid, SIGKILL);
    for (int i = 0; i < 3000 && kill(a, 0) == 0; i++) {
        while (waitpid(-1, NULL, WNOHANG) > 0) {
        }
        usleep(1000);
    }
    assert_int_equal(kill(a, 0), -1);
    kill(b, SIGKILL); /* it left the group: nobody can know it after SIGKILL */
    while (waitpid(-1, NULL, 0) > 0) {
    }
    assert_no_children();
}

static void test_queue_limit(void **state)
{
    (void)state;
    struct worker_opts o = {
        .path = "fns.kinds", .python = python, .count = 1, .timeout_s = 10, .queue_max = 3};
    struct worker_pool *w;
    struct err e = {0};
    assert_ok(worker_open(&o, &w, &e), &e);
    json_t *s = json_pack("{s:s}", "response", "1");
    for (int i = 0; i < 3; i++) {
        assert_ok(worker_submit(w, i, s, &e), &e);
    }
    assert_int_equal(worker_submit(w, 3, s, &e), STATUS_AGAIN);
    assert_int_equal(worker_pending(w), 3);
    json_decref(get(w).value);
    assert_ok(worker_submit(w, 3, s, &e), &e);
    assert_int_equal(worker_submit(w, 4, s, &e), STATUS_AGAIN);
    for (int i = 0; i < 3; i++) {
        json_decref(get(w).value);
    }
    json_t *list = json_array();
    assert_int_equal(worker_submit(w, 5, list, &e), STATUS_INPUT);
    assert_int_equal(worker_pending(w), 0);
    json_decref(list);
    json_decref(s);
    worker_close(w);
    worker_close(NULL);
}

/* 40 async calls in one worker, of which 39 wait for the last: they run together. A call that takes
 * too long is cancelled, not killed. */
static void test_async(void **state)
{
    (void)state;
    struct worker_pool *w = open_pool("fns.gate", 1, 60.0);
    int seen[40] = {0};
    for (int i = 0; i < 40; i++) {
        submit(w, i, i == 39 ? "open" : "wait", "");
    }
    for (int i = 0; i < 40; i++) {
        struct worker_result r = get(w);
        assert_string_equal(r.reason, "");
        assert_false(seen[r.id]);
        seen[r.id] = 1;
        assert_int_equal(json_integer_value(r.value), r.id == 39 ? 1 : 2);
        json_decref(r.value);
    }
    worker_close(w);
    w = open_pool("fns.later", 1, 10.0); /* a plain function that gives something to await */
    gives_value(w, "0.01", 0.01);
    gives_value(w, "0.02", 0.02);
    gives_failure(w, "never", "could not convert string to float");
    worker_close(w);
    w = open_pool("fns.slow", 1, 1.0);
    gives_failure(w, "1000", "no reward within 1 s");
    gives_value(w, "0", 0);
    assert_int_equal(worker_restarts(w), 0);
    worker_close(w);
    assert_no_children();
}

/* Among many async calls one kills the worker, one blocks its event loop: only these two fail. */
static void test_async_culprit(void **state)
{
    (void)state;
    struct worker_pool *w = open_pool("fns.aeval", 2, 3.0);
    int failed = 0;
    for (int i = 0; i < 12; i++) {
        submit(w, i,
               i == 3   ? "os._exit(4)"
               : i == 7 ? "time.sleep(1000)"
                        : "asyncio.sleep(0.1, 8)",
               "");
    }
    for (int i = 0; i < 12; i++) {
        struct worker_result r = get(w);
        failed += r.failed;
        if (r.id == 3) {
            assert_string_equal(r.reason, "the worker process died: exit status 4");
        } else if (r.id == 7) {
            assert_string_equal(r.reason, "no reward within 3 s");
        } else {
            assert_string_equal(r.reason, "");
            assert_int_equal(json_integer_value(r.value), 8);
        }
        json_decref(r.value);
    }
    assert_int_equal(failed, 2);
    worker_close(w);
    assert_no_children();
}

/* The module breaks while the run goes on: calls fail with Python's reason, nothing hangs. */
static void test_broken_later(void **state)
{
    (void)state;
    struct err e = {0};
    const char *good = "import os\ndef f(a, s):\n    os._exit(1)\n";
    const char *bad = "raise RuntimeError('gone bad')\n";
    fsio_write_atomic("later.py", good, strlen(good), &e);
    struct worker_pool *w = open_pool("later.py:f", 2, 5);
    fsio_write_atomic("later.py", bad, strlen(bad), &e);
    for (int i = 0; i < 6; i++) {
        submit(w, i, "", "");
    }
    int died = 0, refused = 0;
    for (int i = 0; i < 6; i++) {
        struct worker_result r = get(w);
        assert_int_equal(r.failed, 1);
        died += strstr(r.reason, "exit status 1") != NULL;
        refused += strstr(r.reason, "RuntimeError: gone bad") != NULL;
    }
    assert_int_equal(died, 2);
    assert_int_equal(refused, 4);
    worker_close(w);
    assert_no_children();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recipe),       cmocka_unit_test(test_numeric_label),
        cmocka_unit_test(test_fields),       cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_exceptions),   cmocka_unit_test(test_load_errors),
        cmocka_unit_test(test_paths),        cmocka_unit_test(test_lost_workers),
        cmocka_unit_test(test_noise),        cmocka_unit_test(test_forks),
        cmocka_unit_test(test_leftovers),    cmocka_unit_test(test_queue_limit),
        cmocka_unit_test(test_async),        cmocka_unit_test(test_async_culprit),
        cmocka_unit_test(test_broken_later),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
