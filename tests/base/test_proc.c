/* Child processes: pipes, deadlines, death of either side, nothing left behind. */
#include "support.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/proc.h"
#include "base/status.h"

static void spawn_sh(struct proc *p, const char *script, int life)
{
    const char *argv[] = {"sh", "-c", script, NULL};
    struct proc_opts o = {.argv = argv, .request_fd = 3, .reply_fd = 4, .life_fd = life};
    struct err e = {0};
    assert_ok(proc_spawn(p, &o, &e), &e);
    assert_true(p->pid > 0);
}

static void read_line(struct proc *p, struct buf *b, const char *want)
{
    struct err e = {0};
    size_t len = 0;
    assert_ok(proc_read_line(p, b, proc_now() + 10, &len, &e), &e);
    assert_int_equal(len, strlen(want) + 1);
    assert_memory_equal(b->data, want, strlen(want));
    buf_shift(b, len);
}

static int gone(pid_t pid)
{
    for (int i = 0; i < 2000; i++) {
        if (kill(pid, 0) != 0 && errno == ESRCH) {
            return 1;
        }
        usleep(1000);
    }
    return 0;
}

/* No child of ours, dead or alive. */
static void assert_no_children(void)
{
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

static void test_echo(void **state)
{
    (void)state;
    struct proc p;
    struct buf b;
    struct err e = {0};
    size_t done = 0;

    buf_init(&b, 1000);
    spawn_sh(&p, "while read x <&3; do echo \"got $x\" >&4; done; echo bye >&4; exit 7", -1);
    assert_ok(proc_write(&p, "one\ntwo\n", 8, &done, &e), &e);
    assert_int_equal(done, 8);
    read_line(&p, &b, "got one");
    read_line(&p, &b, "got two");
    close(p.to);
    p.to = -1;
    read_line(&p, &b, "bye");
    int status = 0, want = PROC_READ, got = 0;
    struct proc *one = &p;
    while (!proc_ended(&p, &status)) {
        proc_poll(&one, &want, &got, 1, 1.0);
    }
    char text[100];
    proc_describe(status, text, sizeof text);
    assert_string_equal(text, "exit status 7");
    assert_int_equal(proc_read(&p, &b, &e), STATUS_END);
    proc_end(&p);
    assert_int_equal(p.pid, 0);
    proc_end(&p);
    proc_end(NULL);
    assert_no_children();
    buf_fini(&b);
}

static void test_not_found(void **state)
{
    (void)state;
    const char *argv[] = {"/nonexistent/python3", NULL};
    struct proc_opts o = {.argv = argv, .request_fd = 3, .reply_fd = 4, .life_fd = 5};
    struct proc p;
    struct err e = {0};
    assert_int_equal(proc_spawn(&p, &o, &e), STATUS_NOTFOUND);
    assert_non_null(strstr(e.msg, "/nonexistent/python3"));
    assert_int_equal(p.pid, 0);
    argv[0] = "/dev/null";
    assert_int_equal(proc_spawn(&p, &o, &e), STATUS_CHILD);
    proc_end(&p);
    assert_no_children();
}

static void test_deadline(void **state)
{
    (void)state;
    struct proc p;
    struct buf b;
    struct err e = {0};
    size_t len;
    double t0 = proc_now();

    buf_init(&b, 100);
    spawn_sh(&p, "printf part >&4; sleep 100", -1);
    assert_int_equal(proc_read_line(&p, &b, t0 + 0.2, &len, &e), STATUS_TIMEOUT);
    assert_true(proc_now() - t0 >= 0.2 && proc_now() - t0 < 5);
    assert_string_equal(b.data, "part");
    t0 = proc_now();
    proc_end(&p);
    assert_true(proc_now() - t0 < 2);
    assert_no_children();
    buf_fini(&b);
}

static void test_ceiling(void **state)
{
    (void)state;
    struct proc p;
    struct buf b;
    struct err e = {0};
    size_t len;

    buf_init(&b, 5000);
    spawn_sh(&p, "while :; do printf xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx >&4; done", -1);
    assert_int_equal(proc_read_line(&p, &b, proc_now() + 10, &len, &e), STATUS_NOMEM);
    proc_end(&p);
    buf_fini(&b);
}

/* A child that does not read: the pipe fills, AGAIN comes, nothing blocks; then it dies: CHILD. */
static void test_write_full_and_broken(void **state)
{
    (void)state;
    struct proc p, *one = &p;
    struct err e = {0};
    char block[4096] = {0};
    size_t done, total = 0;
    int rc, want = PROC_WRITE, got;

    spawn_sh(&p, "exec sleep 100 3<&3", -1);
    while ((rc = proc_write(&p, block, sizeof block, &done, &e)) == 0) {
        total += done;
        assert_true(total < (16u << 20));
    }
    assert_int_equal(rc, STATUS_AGAIN);
    assert_true(total > 0);
    assert_int_equal(proc_poll(&one, &want, &got, 1, 0.05), 0);
    kill(p.pid, SIGSEGV);
    int status;
    while (!proc_ended(&p, &status)) {
        assert_int_equal(proc_poll(&one, &want, &got, 1, 5.0), 1);
    }
    char text[100];
    proc_describe(status, text, sizeof text);
    assert_non_null(strstr(text, "killed by signal 11"));
    assert_int_equal(proc_write(&p, block, sizeof block, &done, &e), STATUS_CHILD);
    proc_end(&p);
    assert_no_children();
}

/* Children in the group, in another session, and a stopped one: all go. */
static void test_descendants(void **state)
{
    (void)state;
    struct proc p;
    struct buf b;
    struct err e = {0};
    size_t len;
    int a = 0, c = 0;

    buf_init(&b, 1000);
    spawn_sh(&p, "sleep 100 & a=$!; setsid sleep 101 & c=$!; echo $a $c >&4; wait", -1);
    assert_ok(proc_read_line(&p, &b, proc_now() + 10, &len, &e), &e);
    assert_int_equal(sscanf(b.data, "%d %d", &a, &c), 2);
    usleep(50000);
    assert_int_equal(kill(a, 0), 0);
    assert_int_equal(kill(c, 0), 0);
    proc_end(&p);
    assert_true(gone(a));
    assert_true(gone(c));
    assert_no_children();
    buf_fini(&b);
}

/* The leader exits by itself and leaves a child in its group, which holds the reply pipe open: the
 * end is still seen, and the child goes with proc_end. */
static void test_leader_exits_first(void **state)
{
    (void)state;
    struct proc p, *one = &p;
    struct buf b;
    struct err e = {0};
    size_t len;
    int a = 0, want = PROC_READ, got = 0;

    buf_init(&b, 1000);
    spawn_sh(&p, "sleep 100 & echo $! >&4; exit 0", -1);
    assert_ok(proc_read_line(&p, &b, proc_now() + 10, &len, &e), &e);
    a = atoi(b.data);
    buf_shift(&b, len);
    double t0 = proc_now();
    assert_int_equal(proc_read_line(&p, &b, proc_now() + 10, &len, &e), STATUS_END);
    assert_true(proc_now() - t0 < 5);
    assert_int_equal(proc_poll(&one, &want, &got, 1, 0), 1);
    assert_true(got & PROC_ENDED);
    proc_end(&p);
    assert_true(gone(a));
    assert_no_children();
    buf_fini(&b);
}

/* Without pidfd the end is found by looking again. */
static void test_no_pidfd(void **state)
{
    (void)state;
    struct proc p, *one = &p;
    int want = 0, got = 0, status;

    spawn_sh(&p, "sleep 0.1; exit 3", -1);
    if (p.pidfd >= 0) {
        close(p.pidfd);
        p.pidfd = -1;
    }
    assert_int_equal(proc_poll(&one, &want, &got, 1, 10), 1);
    assert_int_equal(got, PROC_ENDED);
    assert_int_equal(proc_ended(&p, &status), 1);
    assert_int_equal(WEXITSTATUS(status), 3);
    proc_end(&p);
}

static int count_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;
    while (readdir(d)) {
        n++;
    }
    closedir(d);
    return n;
}

static void test_no_fd_leak(void **state)
{
    (void)state;
    struct proc p;
    struct buf b;
    int before = count_fds();
    int leaky = fcntl(2, F_DUPFD, 50); /* without CLOEXEC, on purpose */

    assert_int_equal(leaky, 50);
    buf_init(&b, 10000);
    for (int i = 0; i < 20; i++) {
        size_t len;
        struct err e = {0};
        char *at;
        int seen = 0;
        spawn_sh(&p, "cat <&3; ls /proc/$$/fd | tr '\\n' ' ' >&4; echo >&4", 5);
        close(p.to);
        p.to = -1;
        assert_ok(proc_read_line(&p, &b, proc_now() + 10, &len, &e), &e);
        /* 0 to 5 are meant; a shell opens a few of its own, far below 50 */
        at = b.data;
        for (long fd; at < b.data + len - 2; seen++) {
            fd = strtol(at, &at, 10);
            at++;
            assert_true(fd >= 0 && fd < 16);
        }
        assert_true(seen >= 6);
        buf_shift(&b, len);
        proc_end(&p);
    }
    close(leaky);
    assert_int_equal(count_fds(), before);
    buf_fini(&b);
}

/* We are killed by SIGKILL: the child dies by PDEATHSIG, and what it started by a watcher of the
 * life line. */
static void test_dies_with_parent(void **state)
{
    (void)state;
    int out[2];
    assert_int_equal(pipe(out), 0);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    pid_t mid = fork();
    if (mid == 0) {
        struct proc p;
        struct buf b;
        size_t len;
        buf_init(&b, 1000);
        spawn_sh(&p, "sleep 100 & s=$!; (read x <&5; kill -9 -$$) & echo $$ $s >&4; wait", 5);
        if (proc_read_line(&p, &b, proc_now() + 10, &len, NULL) != 0) {
            _exit(1);
        }
        if (write(out[1], b.data, len) < 0) {
            _exit(1);
        }
        pause();
        _exit(1);
    }
    char text[100] = {0};
    int a = 0, c = 0;
    assert_true(read(out[0], text, sizeof text - 1) > 0);
    assert_int_equal(sscanf(text, "%d %d", &a, &c), 2);
    assert_int_equal(kill(a, 0), 0);
    kill(mid, SIGKILL);
    while (waitpid(mid, NULL, 0) < 0 && errno == EINTR) {
    }
    for (int i = 0; i < 2000; i++) {
        while (waitpid(-1, NULL, WNOHANG) > 0) {
        }
        if (kill(a, 0) != 0 && kill(c, 0) != 0) {
            break;
        }
        usleep(1000);
    }
    assert_true(gone(a));
    assert_true(gone(c));
    close(out[0]);
    close(out[1]);
}

/* Another file than argv[0] says, a log, and a descriptor of ours under a number of its own. */
static void test_log_and_share(void **state)
{
    (void)state;
    static char log[] = "/tmp/test_proc_XXXXXX";
    const char *argv[] = {"odd", "-c", "echo $0; echo to-out; echo to-err >&2; cat <&3", "odd",
                          NULL};
    struct proc_opts o = {.argv = argv,
                          .request_fd = -1,
                          .reply_fd = -1,
                          .life_fd = -1,
                          .path = "/bin/sh",
                          .share_as = 3};
    int ends[2], want = 0, got, status;
    struct proc p, *one = &p;
    struct err e = {0};
    char text[200] = {0};

    o.log_fd = mkstemp(log);
    assert_true(o.log_fd > 0);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], "shared\n", 7), 7);
    close(ends[1]);
    o.share_fd = ends[0];
    assert_ok(proc_spawn(&p, &o, &e), &e);
    assert_int_equal(proc_poll(&one, &want, &got, 1, 10), 1);
    assert_int_equal(proc_ended(&p, &status), 1);
    assert_int_equal(status, 0);
    proc_end(&p);
    assert_true(pread(o.log_fd, text, sizeof text - 1, 0) > 0);
    assert_string_equal(text, "odd\nto-out\nto-err\nshared\n");
    close(o.log_fd);
    close(ends[0]);
    o.share_fd = 9999;
    o.log_fd = 0;
    assert_int_equal(proc_spawn(&p, &o, &e), STATUS_IO);
    unlink(log);
    assert_no_children();
}

/* Ended by a request that it can refuse, also when it is stopped. */
static void test_term(void **state)
{
    (void)state;
    struct proc p, *one = &p;
    struct buf b;
    int want = 0, got, status;

    buf_init(&b, 1000);
    spawn_sh(&p, "trap 'exit 7' TERM; echo up >&4; while :; do sleep 0.01; done", -1);
    read_line(&p, &b, "up");
    kill(p.pid, SIGSTOP);
    proc_term(&p);
    assert_int_equal(proc_poll(&one, &want, &got, 1, 10), 1);
    assert_int_equal(proc_ended(&p, &status), 1);
    assert_int_equal(WEXITSTATUS(status), 7);
    proc_end(&p);
    proc_term(&p); /* nobody */
    assert_no_children();
    buf_fini(&b);
}

/* In a process of its own: everything that came from it goes, also what has lost its parents and
 * left group and session. */
static void test_sweep(void **state)
{
    (void)state;
    int out[2], a = 0, c = 0;
    char text[100] = {0};
    pid_t mid;

    assert_int_equal(pipe(out), 0);
    mid = fork();
    if (mid == 0) {
        struct proc p;
        struct buf b;
        size_t len;
        buf_init(&b, 1000);
        prctl(PR_SET_CHILD_SUBREAPER, 1);
        spawn_sh(&p,
                 "(setsid sh -c 'sleep 100 & echo $! $$ >&4; exec sleep 101' &); sleep 0.2; exit 0",
                 -1);
        if (proc_read_line(&p, &b, proc_now() + 10, &len, NULL) != 0 ||
            write(out[1], b.data, len) < 0) {
            _exit(1);
        }
        usleep(400000);
        proc_end(&p);
        _exit(proc_sweep(10.0) == 0 && waitpid(-1, NULL, 0) < 0 && errno == ECHILD ? 0 : 2);
    }
    int status = -1;
    assert_int_equal(waitpid(mid, &status, 0), mid);
    assert_int_equal(status, 0);
    assert_true(read(out[0], text, sizeof text - 1) > 0);
    assert_int_equal(sscanf(text, "%d %d", &a, &c), 2);
    assert_true(gone(a));
    assert_true(gone(c));
    close(out[0]);
    close(out[1]);
}

static void test_raise_files(void **state)
{
    struct rlimit was, now;
    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
    now = was;
    now.rlim_cur = 100;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &now), 0);
    assert_int_equal(proc_raise_files(300), 300);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &now), 0);
    assert_int_equal(now.rlim_cur, 300);
    assert_int_equal(proc_raise_files(200), 300); /* never lowered */
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &now), 0);
    assert_int_equal(now.rlim_cur, 300);
    assert_true(proc_raise_files(1l << 40) >= 300);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
}

/* Too few files: said so, in a process of its own, which cannot have more again. */
static void test_few_files(void **state)
{
    pid_t pid = fork();
    int status;
    (void)state;
    if (pid == 0) {
        const char *argv[] = {"/bin/true", NULL};
        struct proc_opts o = {.argv = argv, .request_fd = 3, .reply_fd = 4, .life_fd = 5};
        struct proc p;
        struct err e = {0};
        int rc, said;
        setrlimit(RLIMIT_NOFILE, &(struct rlimit){64, 64});
        rc = proc_spawn(&p, &o, &e);
        said = strstr(e.msg, "/bin/true") && strstr(e.msg, "the limit is 64 (ulimit -n)");
        _exit(rc == STATUS_CHILD && said && p.pid == 0 ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_echo),
        cmocka_unit_test(test_not_found),
        cmocka_unit_test(test_deadline),
        cmocka_unit_test(test_ceiling),
        cmocka_unit_test(test_write_full_and_broken),
        cmocka_unit_test(test_descendants),
        cmocka_unit_test(test_leader_exits_first),
        cmocka_unit_test(test_no_pidfd),
        cmocka_unit_test(test_no_fd_leak),
        cmocka_unit_test(test_dies_with_parent),
        cmocka_unit_test(test_log_and_share),
        cmocka_unit_test(test_term),
        cmocka_unit_test(test_sweep),
        cmocka_unit_test(test_raise_files),
        cmocka_unit_test(test_few_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
