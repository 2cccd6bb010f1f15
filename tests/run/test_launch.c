/* Engines as processes: addresses, logs, why they ended, restarts, the router, and that nothing is
 * left. The test's own program stands in for `miles`: it is called with "serve", "router" or
 * "guard". */
#include "support.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fsio.h"
#include "base/mem.h"
#include "base/proc.h"
#include "base/status.h"
#include "run/cmdline.h"
#include "run/guard.h"
#include "run/launch.h"

static char dir[64];
static struct err e;
static struct launch *l;
static const struct port_http_host *host;

/* ---- the program that is started ---- */

static const char *after(int argc, char **argv, const char *flag)
{
    for (int i = 1; i + 1 < argc; i++) {
        if (strcmp(argv[i], flag) == 0) {
            return argv[i + 1];
        }
    }
    return NULL;
}

/* "serve --how X" and "router": says where it listens (a number that tells what it was given), then
 * does as told. */
static int play(int argc, char **argv)
{
    const char *how = after(argc, argv, "--how"), *port = after(argc, argv, "--port");
    char text[16] = {0};

    int falls = strcmp(argv[1], "fall") == 0;

    if (falls || strcmp(argv[1], "hold") == 0) { /* maps files in /dev/shm and leaves them */
        for (int i = 2; i + 1 < argc; i++) {     /* the last is the port */
            int fd = shm_open(argv[i], O_RDWR | O_CREAT, 0600);
            if (fd < 0 || ftruncate(fd, 100) ||
                mmap(NULL, 100, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED) {
                return 6;
            }
        }
        fprintf(stderr, "held\n");
        if (falls) { /* as if killed from outside, soon after */
            usleep(500000);
            raise(SIGKILL);
        }
        pause();
    }
    if (strcmp(argv[1], "guard") == 0) {
        struct guard_opts g = {(const char *const *)argv + 6, 3, 1};
        int status;
        if (guard_run(&g, &status, &e) != STATUS_OK) {
            fprintf(stderr, "%s\n", e.msg);
            return 9;
        }
        if (WIFSIGNALED(status)) {
            kill(getpid(), WTERMSIG(status));
        }
        return WEXITSTATUS(status);
    }
    fprintf(stderr, "a line of %s\n", argv[1]);
    if (how && strcmp(how, "die") == 0) {
        fprintf(stderr, "one\n\ntwo\ncannot do it: no reason\n");
        return 3;
    }
    if (how && strcmp(how, "once") == 0 && strcmp(port, "0") != 0) {
        return 5;
    }
    if (how && strcmp(how, "deaf") == 0) {
        signal(SIGTERM, SIG_IGN);
    }
    if (how && strcmp(how, "shared") == 0) {
        if (pread(LAUNCH_SHARE_FD, text, 15, 0) < 1) {
            return 4;
        }
        port = text;
    }
    if (strcmp(argv[1], "router") == 0) {
        fprintf(stderr, "process %d\n", (int)getpid());
        port = strcmp(port, "0") == 0 ? "4711" : port;
    }
    printf("a word\nready url=http://127.0.0.1:%s context=3\n", port);
    fflush(stdout);
    for (;;) {
        pause();
    }
}

/* ---- helpers ---- */

static void put_words(struct cmdline *w, const char *text)
{
    assert_ok(cmdline_split(w, text, &e), &e);
}

static void open_with(struct launch_opts *o, const char *words)
{
    struct cmdline w;

    put_words(&w, words);
    o->words = &w;
    o->log_dir = dir;
    o->nengines = o->nengines ? o->nengines : 2;
    memset(&e, 0, sizeof e);
    assert_ok(launch_open(o, &l, &e), &e);
    host = launch_host(l);
    cmdline_fini(&w);
}

static int wait_url(int i)
{
    char why[500];
    for (int k = 0; k < 1000 && !host->url(host->self, i); k++) {
        if (!host->alive(host->self, i, why, sizeof why)) {
            return 0;
        }
        usleep(10000);
    }
    return host->url(host->self, i) != NULL;
}

/* Waits until it has ended, with how. */
static void wait_end(int i, char *why, size_t size)
{
    for (int k = 0; host->alive(host->self, i, why, size); k++) {
        assert_true(k < 1000);
        usleep(10000);
    }
}

static char *text_of(const char *name)
{
    char *path = fsio_join(dir, name), *data = NULL;
    size_t len;
    assert_ok(fsio_read(path, 1 << 24, &data, &len, &e), &e);
    mem_free(path);
    return data;
}

static int number_in(const char *name)
{
    char *text = text_of(name);
    int n = atoi(text);
    mem_free(text);
    return n;
}

static int gone(int pid)
{
    for (int i = 0; i < 3000; i++) {
        while (waitpid(-1, NULL, WNOHANG) > 0) {
        }
        if (kill(pid, 0) != 0 && errno == ESRCH) {
            return 1;
        }
        usleep(1000);
    }
    return 0;
}

static void close_all(void)
{
    launch_close(l);
    l = NULL;
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

static int setup(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/miles-test-launch-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return fsio_remove_tree(dir, NULL);
}

/* ---- tests ---- */

static void starts_and_ends(void **state)
{
    struct launch_opts o = {.kind = PORT_HTTP_MILES, .share_fd = -1};
    char why[500], *log;
    (void)state;

    open_with(&o, "serve --how well --api-key secret");
    assert_false(host->alive(host->self, 0, why, sizeof why));
    assert_string_equal(why, "was not started");
    for (int i = 0; i < 2; i++) {
        assert_ok(host->start(host->self, i, &e), &e);
    }
    assert_true(wait_url(0) && wait_url(1));
    assert_string_equal(host->url(host->self, 1), "http://127.0.0.1:0");
    assert_true(host->alive(host->self, 0, why, sizeof why));
    log = text_of("engine_1.log");
    assert_non_null(strstr(log, "starting: miles serve --how well --api-key ... --host 127.0.0.1 "
                                "--port 0\n"));
    assert_non_null(strstr(log, "a line of serve\n"));
    assert_null(strstr(log, "secret"));
    mem_free(log);
    host->kill(host->self, 0);
    assert_false(host->alive(host->self, 0, why, sizeof why));
    assert_ok(host->start(host->self, 0, &e), &e);
    assert_true(wait_url(0));
    double t0 = proc_now();
    close_all();
    assert_true(proc_now() - t0 < 10); /* SIGTERM was enough */
}

static void tells_why(void **state)
{
    struct launch_opts o = {.kind = PORT_HTTP_MILES, .share_fd = -1, .nengines = 1};
    char why[500], small[40], line[100];
    (void)state;

    open_with(&o, "serve --how die");
    for (int k = 0; k < 2; k++) { /* the second start speaks of its own lines only */
        assert_ok(host->start(host->self, 0, &e), &e);
        wait_end(0, why, sizeof why);
        assert_string_equal(why, "exit status 3; the last it said: a line of serve | one | two | "
                                 "cannot do it: no reason");
        assert_null(host->url(host->self, 0));
        launch_last_line(l, 0, line, sizeof line);
        assert_string_equal(line, "cannot do it: no reason");
        assert_false(host->alive(host->self, 0, small, sizeof small));
        assert_int_equal(strlen(small), sizeof small - 1);
    }
    close_all();
    o = (struct launch_opts){
        .kind = PORT_HTTP_MILES, .share_fd = -1, .nengines = 1, .program = "/nonexistent/miles"};
    open_with(&o, "serve");
    assert_int_equal(host->start(host->self, 0, &e), STATUS_NOTFOUND);
    assert_non_null(strstr(e.msg, "engine 0: cannot start /nonexistent/miles"));
    close_all();
}

static void shares(void **state)
{
    char path[100];
    struct launch_opts o = {.kind = PORT_HTTP_MILES, .nengines = 1};
    FILE *f;
    (void)state;

    snprintf(path, sizeof path, "%s/shared", dir);
    f = fopen(path, "w+");
    fputs("777", f);
    fflush(f);
    o.share_fd = fileno(f);
    open_with(&o, "serve --how shared");
    assert_ok(host->start(host->self, 0, &e), &e);
    assert_true(wait_url(0));
    assert_string_equal(host->url(host->self, 0), "http://127.0.0.1:777");
    close_all();
    fclose(f);
}

/* One that does not hear SIGTERM, and one that is stopped. */
static void ends_the_deaf(void **state)
{
    struct launch_opts o = {.kind = PORT_HTTP_MILES, .share_fd = -1, .nengines = 1, .end_s = 0.3};
    double t0;
    (void)state;

    open_with(&o, "serve --how deaf");
    assert_ok(host->start(host->self, 0, &e), &e);
    assert_true(wait_url(0));
    t0 = proc_now();
    close_all();
    assert_true(proc_now() - t0 >= 0.3);
}

static const char tree[] = /* one in the group, one in a session of its own without a parent */
    "sh -c 'echo $$ >%s/leader; (setsid sh -c \"echo \\$\\$ >%s/far; exec sleep 1000\" &); "
    "echo $TMPDIR >%s/tmp; touch $TMPDIR/left; echo {port} {nccl_port} {model} {gpus} {first_gpu} "
    "{threads} {engine}; sleep 1001 & echo $! >%s/near; wait' 0 {port}";

static void put_tree(struct launch_opts *o)
{
    static const char *const marks[] = {"leader", "near", "far", "tmp"};
    char words[800], mark[100];
    for (int i = 0; i < 4; i++) {
        snprintf(mark, sizeof mark, "%s/%s", dir, marks[i]);
        unlink(mark);
    }
    snprintf(words, sizeof words, tree, dir, dir, dir, dir);
    o->kind = PORT_HTTP_SGLANG;
    o->nengines = 1;
    o->share_fd = -1;
    o->model = "a {b}";
    o->gpus = 2;
    o->threads = 5;
    open_with(o, words);
    assert_ok(host->start(host->self, 0, &e), &e);
    for (int k = 0; k < 1000; k++) {
        char near[100], far[100];
        snprintf(near, sizeof near, "%s/near", dir);
        snprintf(far, sizeof far, "%s/far", dir);
        if (fsio_is_file(near) && fsio_is_file(far) && number_in("near") && number_in("far")) {
            return;
        }
        usleep(10000);
    }
    fail_msg("it does not start");
}

static void check_tree_gone(void)
{
    char *tmp = text_of("tmp");
    tmp[strcspn(tmp, "\n")] = 0;
    assert_true(gone(number_in("leader")));
    assert_true(gone(number_in("near")));
    assert_true(gone(number_in("far")));
    assert_non_null(strstr(tmp, "miles-"));
    for (int k = 0; k < 500 && fsio_is_dir(tmp); k++) {
        usleep(10000);
    }
    assert_false(fsio_is_dir(tmp));
    mem_free(tmp);
}

static void holds_a_tree(void **state)
{
    struct launch_opts o = {0};
    char why[500], *log, want[100];
    int port;
    (void)state;

    put_tree(&o);
    assert_int_equal(sscanf(host->url(host->self, 0), "http://127.0.0.1:%d", &port), 1);
    assert_true(port >= 15000 && port < 32768);
    log = text_of("engine_0.log");
    snprintf(want, sizeof want, "\n%d ", port);
    assert_non_null(strstr(log, want));
    assert_non_null(strstr(log, " a {b} 2 0 5 0\n"));
    mem_free(log);
    assert_true(host->alive(host->self, 0, why, sizeof why));
    close_all();
    check_tree_gone();
}

static void kills_a_tree(void **state)
{
    struct launch_opts o = {0};
    char why[500];
    (void)state;

    put_tree(&o);
    host->kill(host->self, 0);
    check_tree_gone();
    close_all();
    put_tree(&o); /* its leader alone is killed: the rest goes, and the cause is told */
    kill(number_in("leader"), SIGKILL);
    wait_end(0, why, sizeof why);
    assert_non_null(strstr(why, "killed by signal 9"));
    check_tree_gone();
    close_all();
}

/* Shared memory of the names that engines use is removed when they mapped it, and no other. */
static void tidies_shared_memory(void **state)
{
    struct launch_opts o = {.kind = PORT_HTTP_SGLANG, .share_fd = -1, .nengines = 1};
    char words[400], self[200], line[100], left[64], kept[64], other[64];
    struct stat st;
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    int fd;
    (void)state;

    self[n > 0 ? n : 0] = 0;
    snprintf(left, sizeof left, "/sglang_test_%d", getpid());
    snprintf(kept, sizeof kept, "/miles_test_%d", getpid());
    snprintf(other, sizeof other, "/sglang_test_other_%d", getpid()); /* somebody else's */
    fd = shm_open(other, O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0);
    close(fd);
    snprintf(words, sizeof words, "%s hold %s %s {port}", self, left, kept);
    open_with(&o, words);
    assert_ok(host->start(host->self, 0, &e), &e);
    for (int k = 0; k < 1000; k++) {
        launch_last_line(l, 0, line, sizeof line);
        if (strcmp(line, "held") == 0) {
            break;
        }
        usleep(10000);
    }
    snprintf(words, sizeof words, "/dev/shm%s", left);
    assert_int_equal(stat(words, &st), 0);
    close_all();
    assert_int_equal(stat(words, &st), -1);
    assert_int_equal(shm_unlink(kept), 0);
    assert_int_equal(shm_unlink(other), 0);
}

/* The same when the one who mapped it is killed before a guard would look by itself. */
static void tidies_after_a_kill(void **state)
{
    struct launch_opts o = {.kind = PORT_HTTP_SGLANG, .share_fd = -1, .nengines = 1};
    char words[400], self[200], left[64];
    struct stat st;
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    int seen = 0, gone = 0;
    (void)state;

    self[n > 0 ? n : 0] = 0;
    snprintf(left, sizeof left, "/sglang_test_fall_%d", getpid());
    snprintf(words, sizeof words, "%s fall %s {port}", self, left);
    open_with(&o, words);
    assert_ok(host->start(host->self, 0, &e), &e);
    snprintf(words, sizeof words, "/dev/shm%s", left);
    for (int k = 0; k < 2000 && !(seen && gone); k++) {
        gone = stat(words, &st) != 0;
        seen |= !gone;
        usleep(5000);
    }
    assert_true(seen && gone);
    close_all();
}

/* The one who started them is killed: nothing of the engines is left. */
static void dies_with_us(void **state)
{
    int status;
    pid_t mid;
    (void)state;

    prctl(PR_SET_CHILD_SUBREAPER, 1);
    mid = fork();
    if (mid == 0) {
        struct launch_opts o = {0};
        put_tree(&o);
        kill(getpid(), SIGKILL);
    }
    assert_int_equal(waitpid(mid, &status, 0), mid);
    assert_int_equal(WTERMSIG(status), SIGKILL);
    check_tree_gone();
    while (waitpid(-1, NULL, 0) > 0) {
    }
}

static void router(void **state)
{
    struct launch_opts o = {.kind = PORT_HTTP_MILES, .share_fd = -1};
    struct cmdline w;
    char why[500], *log, *at;
    int pid;
    (void)state;

    put_words(&w, "router --how well");
    o.router = &w;
    open_with(&o, "serve --how well");
    assert_null(launch_router_url(l));
    assert_ok(launch_router_start(l, &e), &e);
    assert_string_equal(launch_router_url(l), "http://127.0.0.1:4711");
    assert_ok(host->start(host->self, 1, &e), &e);
    assert_true(wait_url(1));
    /* It is killed: the next one has its port and knows the engine that is there. */
    log = text_of("router.log");
    assert_non_null(strstr(log, "--port 0\n"));
    assert_int_equal(sscanf(strstr(log, "process "), "process %d", &pid), 1);
    mem_free(log);
    kill(pid, SIGKILL);
    for (int k = 0; k < 1000; k++) {
        host->alive(host->self, 1, why, sizeof why);
        log = text_of("router.log");
        at = strstr(log, "--port 4711 --worker-urls http://127.0.0.1:0\n");
        mem_free(log);
        if (at) {
            break;
        }
        usleep(10000);
    }
    assert_non_null(at);
    assert_true(host->alive(host->self, 1, why, sizeof why));
    close_all();
    cmdline_fini(&w);
}

/* A router that cannot be had back: no engine counts as alive or can be started, with the cause. */
static void lost_router(void **state)
{
    struct launch_opts o = {.kind = PORT_HTTP_MILES, .share_fd = -1, .nengines = 1};
    struct cmdline w;
    char why[500], *log;
    int pid;
    (void)state;

    put_words(&w, "router --how once");
    o.router = &w;
    open_with(&o, "serve --how well");
    assert_ok(launch_router_start(l, &e), &e);
    assert_ok(host->start(host->self, 0, &e), &e);
    assert_true(wait_url(0));
    log = text_of("router.log");
    assert_int_equal(sscanf(strstr(log, "process "), "process %d", &pid), 1);
    mem_free(log);
    kill(pid, SIGKILL);
    wait_end(0, why, sizeof why);
    assert_non_null(strstr(why, "the router ended: exit status 5"));
    assert_int_equal(host->start(host->self, 0, &e), STATUS_CHILD);
    assert_non_null(strstr(e.msg, "the router ended 5 times in a row: exit status 5"));
    close_all();
    cmdline_fini(&w);
}

/* A router that never lives: its cause is told. */
static void bad_router(void **state)
{
    struct launch_opts o = {.kind = PORT_HTTP_MILES, .share_fd = -1, .nengines = 1};
    struct cmdline w;
    (void)state;

    put_words(&w, "router --how die");
    o.router = &w;
    open_with(&o, "serve --how well");
    assert_int_equal(launch_router_start(l, &e), STATUS_CHILD);
    assert_non_null(strstr(e.msg, "the router: exit status 3"));
    assert_non_null(strstr(e.msg, "cannot do it: no reason"));
    close_all();
    cmdline_fini(&w);
}

static void refusals(void **state)
{
    struct launch_opts o = {.kind = PORT_HTTP_SGLANG, .share_fd = -1, .nengines = 1};
    struct cmdline w;
    (void)state;

    put_words(&w, "sglang {prot}");
    o.words = &w;
    o.log_dir = dir;
    assert_int_equal(launch_open(&o, &l, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "{prot}"));
    o.log_dir = "/proc/nothing/here";
    assert_true(launch_open(&o, &l, &e) < 0);
    cmdline_fini(&w);
    launch_close(NULL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(starts_and_ends, setup, teardown),
        cmocka_unit_test_setup_teardown(tells_why, setup, teardown),
        cmocka_unit_test_setup_teardown(shares, setup, teardown),
        cmocka_unit_test_setup_teardown(ends_the_deaf, setup, teardown),
        cmocka_unit_test_setup_teardown(holds_a_tree, setup, teardown),
        cmocka_unit_test_setup_teardown(kills_a_tree, setup, teardown),
        cmocka_unit_test_setup_teardown(tidies_shared_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(tidies_after_a_kill, setup, teardown),
        cmocka_unit_test_setup_teardown(dies_with_us, setup, teardown),
        cmocka_unit_test_setup_teardown(router, setup, teardown),
        cmocka_unit_test_setup_teardown(lost_router, setup, teardown),
        cmocka_unit_test_setup_teardown(bad_router, setup, teardown),
        cmocka_unit_test_setup_teardown(refusals, setup, teardown),
    };
    if (argc > 1) {
        return play(argc, argv);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
