/* Shared memory: places are the same for maker and reader, the reader sees what is written and
 * cannot write, sizes are fixed, other descriptors are refused. */
#include "support.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/region.h"
#include "base/status.h"

static struct err e;

static void test_places(void **state)
{
    struct region r;
    char *a, *b, *top;

    (void)state;
    assert_ok(region_create(&r, "test", 3 << 20, &e), &e);
    assert_int_equal(r.size, 4 << 20);
    a = region_take(&r, 100);
    b = region_take(&r, 1);
    top = region_take_top(&r, 65);
    assert_ptr_equal(b, a + 128);
    assert_ptr_equal(top, r.base + r.size - 128);
    for (size_t i = 0; i < r.size; i++) {
        assert_int_equal(r.base[i], 0);
    }
    assert_null(region_take(&r, r.size));
    assert_null(region_take(&r, SIZE_MAX));
    assert_null(region_take_top(&r, SIZE_MAX - 10));
    assert_non_null(region_take(&r, r.high - r.low)); /* to the last byte */
    assert_null(region_take(&r, 1));
    assert_null(region_take_top(&r, 1));
    region_close(&r);
    region_close(&r);
}

static void test_attach(void **state)
{
    struct region r, x;
    char *p, *q;
    int fd, status;
    pid_t pid;

    (void)state;
    assert_ok(region_create(&r, "test", 1, &e), &e);
    p = region_take(&r, 4096);
    strcpy(p, "one");
    fd = dup(r.fd);
    assert_ok(region_attach(&x, fd, &e), &e);
    close(fd);
    q = region_take(&x, 4096);
    assert_ptr_not_equal(p, q);
    assert_string_equal(q, "one");
    strcpy(p, "two");
    assert_string_equal(q, "two");
    fflush(NULL);
    pid = fork();
    if (pid == 0) { /* a reader that writes ends by a signal */
        signal(SIGSEGV, SIG_DFL);
        q[0] = 'x';
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) != 0);
    assert_string_equal(p, "two");
    region_close(&r); /* the memory lives as long as a reader has it */
    assert_string_equal(q, "two");
    region_close(&x);
}

static void test_fixed(void **state)
{
    struct region r;

    (void)state;
    assert_ok(region_create(&r, "test", 1, &e), &e);
    assert_int_not_equal(ftruncate(r.fd, 0), 0);
    assert_int_not_equal(ftruncate(r.fd, 64 << 20), 0);
    assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, r.fd, 0), MAP_FAILED);
    assert_int_not_equal(pwrite(r.fd, "x", 1, 0), 1);
    assert_true(fcntl(r.fd, F_GETFD) & FD_CLOEXEC);
    region_close(&r);
}

static void test_refused(void **state)
{
    struct region r;
    int fd = open("/dev/null", O_RDONLY), pipes[2];

    (void)state;
    assert_int_equal(region_attach(&r, fd, &e), STATUS_INPUT);
    close(fd);
    assert_int_equal(region_attach(&r, fd, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "descriptor"));
    assert_int_equal(pipe(pipes), 0);
    assert_int_equal(region_attach(&r, pipes[0], &e), STATUS_INPUT);
    close(pipes[0]);
    close(pipes[1]);
    fd = memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING); /* its size may change */
    assert_int_equal(ftruncate(fd, 2 << 20), 0);
    assert_int_equal(region_attach(&r, fd, &e), STATUS_INPUT);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    assert_ok(region_attach(&r, fd, &e), &e);
    region_close(&r);
    close(fd);
    fd = memfd_create("small", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(fd, 4096), 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    assert_int_equal(region_attach(&r, fd, &e), STATUS_INPUT);
    close(fd);
}

static void test_too_large(void **state)
{
    struct region r;

    (void)state;
    assert_int_equal(region_create(&r, "test", (size_t)1 << 62, &e), STATUS_NOMEM);
    assert_null(r.base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places),    cmocka_unit_test(test_attach),
        cmocka_unit_test(test_fixed),     cmocka_unit_test(test_refused),
        cmocka_unit_test(test_too_large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
