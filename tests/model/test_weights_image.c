/* Weights in shared memory: another process's forward pass has the same bits, without a copy and
 * without files; changes are seen and told; what does not fit is refused with both values. */
#include "engine/jobs.h"

#include <sys/wait.h>
#include <unistd.h>

#include "base/map.h"
#include "base/region.h"
#include "model/sharedmodel.h"
#include "model/wshare.h"
#include "model/wsum.h"

static struct err e;

static void jobs(struct batch *b)
{
    memset(b, 0, sizeof *b);
    job_add(b, 100, 2, 30, 1);
    job_add(b, 7, 3, 20, 2)->q.prompt_logps = 1;
    job_add(b, 64, 1, 40, 3);
}

static const struct engine_opts opts = {.max_running = 4, .chunk = 32};

static int sums_differ(struct weights *a, struct weights *b)
{
    struct map x, y;
    char hx[65], hy[65];

    map_init(&x);
    map_init(&y);
    assert_ok(wsum_take(a, &(struct wsum_opts){0}, &x, &e), &e);
    assert_ok(wsum_take(b, &(struct wsum_opts){0}, &y, &e), &e);
    assert_int_equal(x.count, a->nparams);
    wsum_total(&x, hx);
    wsum_total(&y, hy);
    map_fini(&x);
    map_fini(&y);
    return strcmp(hx, hy);
}

/* Private, shared and attached weights give the same bits on every instruction set; after the
 * optimizer's step, too, and those are others than before. */
static void test_same_bits(void **state)
{
    static const char *const isas[] = {"scalar", "avx2", "avx512", "amx"};
    struct batch *want = mem_alloc(sizeof *want), *got = mem_alloc(sizeof *got);
    struct sharedmodel t;

    (void)state;
    sharedmodel_open(&t, folder, 2);
    jobs(want);
    jobs(got);
    batch_run(want, model.w, &opts, NULL);
    batch_run(got, t.m.w, &opts, NULL);
    assert_same_answers(want, got, "shared");
    for (int i = 0; i < 4; i++) {
        struct tinymodel m;
        if (!device_has_isa(isas[i])) {
            continue;
        }
        sharedmodel_attach(&m, folder, weights_share_fd(t.m.w), isas[i], 2);
        assert_int_equal(m.w->positions, t.m.w->positions);
        assert_int_equal(m.w->version, t.m.w->version);
        batch_run(want, t.m.w, &opts, NULL);
        batch_run(got, m.w, &opts, NULL);
        assert_same_answers(want, got, isas[i]);
        assert_int_equal(sums_differ(t.m.w, m.w), 0);
        sharedmodel_step(&t);
        assert_int_equal(sums_differ(t.m.w, m.w), 0); /* the same memory */
        assert_int_equal(weights_steady(m.w), 0);
        assert_ok(weights_follow(m.w, t.m.w->version, &e), &e);
        batch_run(got, m.w, &opts, NULL);
        assert_int_not_equal(memcmp(want->job[0].answer[0].logps, got->job[0].answer[0].logps, 4),
                             0);
        batch_run(want, t.m.w, &opts, NULL);
        assert_same_answers(want, got, isas[i]);
        tinymodel_close(&m);
    }
    sharedmodel_close(&t);
    mem_free(want);
    mem_free(got);
}

/* Nothing is computed with values that nobody vouches for. */
static void test_following(void **state)
{
    struct sharedmodel t;
    struct tinymodel m;
    struct engine *g;
    struct job *j;
    struct batch *b = mem_alloc(sizeof *b);

    (void)state;
    sharedmodel_open(&t, folder, 2);
    sharedmodel_attach(&m, folder, weights_share_fd(t.m.w), "auto", 2);
    assert_ok(engine_open(m.w, &opts, &g, &e), &e);
    j = job_add(b, 20, 1, 30, 5);
    assert_ok(engine_submit(g, &j->q, &e), &e);
    assert_ok(engine_step(g, &e), &e);
    weights_writing(t.m.w, 1);
    assert_int_equal(engine_step(g, &e), STATUS_AGAIN);
    assert_int_equal(weights_follow(m.w, 0, &e), STATUS_AGAIN);
    assert_non_null(strstr(e.msg, "being written"));
    sharedmodel_step(&t); /* brackets may be nested */
    assert_int_equal(weights_follow(m.w, 1, &e), STATUS_AGAIN);
    weights_writing(t.m.w, 0);
    assert_int_equal(engine_step(g, &e), STATUS_AGAIN);
    assert_int_equal(weights_follow(m.w, 7, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "version 1, not 7"));
    assert_int_equal(m.w->version, 0);
    engine_pause(g, ENGINE_PAUSE_RETRACT);
    assert_ok(weights_follow(m.w, 1, &e), &e);
    engine_resume(g);
    assert_ok(engine_step(g, &e), &e);
    engine_close(g);

    assert_int_equal(weights_reload(m.w, NULL, NULL, &e), STATUS_UNSUPPORTED);
    assert_int_equal(weights_drop(m.w, &e), STATUS_UNSUPPORTED);
    assert_int_equal(weights_follow(t.m.w, 1, &e), STATUS_INPUT);
    assert_int_equal(weights_share_fd(m.w), -1);
    assert_int_equal(weights_share_fd(model.w), -1);
    weights_writing(model.w, 1); /* nobody to tell */
    weights_writing(model.w, 0);
    tinymodel_close(&m);
    sharedmodel_close(&t);
    mem_free(b);
}

/* In another process, by the inherited descriptor, after the maker is gone. */
static void test_process(void **state)
{
    struct sharedmodel t;
    struct batch *want = mem_alloc(sizeof *want);
    int pipes[2], fd, status;
    pid_t pid;
    char c = 0;

    (void)state;
    sharedmodel_open(&t, folder, 2);
    sharedmodel_step(&t);
    jobs(want);
    batch_run(want, t.m.w, &opts, NULL);
    assert_int_equal(pipe(pipes), 0);
    fd = dup(weights_share_fd(t.m.w));
    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        struct batch *got = mem_alloc(sizeof *got);
        struct tinymodel m;
        close(pipes[1]);
        (void)!read(pipes[0], &c, 1); /* until the parent has let go */
        sharedmodel_attach(&m, folder, fd, "scalar", 2);
        jobs(got);
        batch_run(got, m.w, &opts, NULL);
        assert_same_answers(want, got, "another process");
        _exit(m.w->version == 1 ? 0 : 3);
    }
    close(fd);
    sharedmodel_close(&t);
    close(pipes[0]);
    close(pipes[1]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    mem_free(want);
}

/* ---- what is refused ---- */

static int attach(const struct arch *a, const char *device, int leaves, int fd)
{
    struct plan plan;
    struct device *d;
    struct weights *w = NULL;
    int rc;

    plan_init(&plan, leaves, 0);
    assert_ok(device_open(device, "scalar", 1, &plan, &d, &e), &e);
    memset(&e, 0, sizeof e);
    rc = weights_attach(fd, a, d, &w, &e);
    weights_release(w);
    device_close(d);
    return rc;
}

static void refused(const struct arch *a, const char *device, int leaves, int fd, const char *why)
{
    assert_int_equal(attach(a, device, leaves, fd), STATUS_INPUT);
    if (!strstr(e.msg, why)) {
        fail_msg("\"%s\" says nothing of \"%s\"", e.msg, why);
    }
}

static void test_refused(void **state)
{
    struct sharedmodel t;
    struct region r;
    struct wshare *s;
    struct arch *a = mem_alloc(sizeof *a);
    int fd;

    (void)state;
    sharedmodel_open(&t, folder, 2);
    fd = weights_share_fd(t.m.w);
    *a = *wfile_arch(t.m.file);
    assert_ok(attach(a, "cpu", 2, fd), &e);
    refused(a, "cpu", 1, fd, "leaves 2, this program 1");
    refused(a, "ref", 2, fd, "for device cpu, this is ref");
    refused(a, "cpu", 2, 12345, "descriptor 12345");
    a->rms_eps = 2e-5f;
    refused(a, "cpu", 2, fd, "another model: layout");
    *a = *wfile_arch(t.m.file);
    a->vocab += 1 << 20;
    refused(a, "cpu", 2, fd, "a smaller model");
    *a = *wfile_arch(t.m.file);
    a->n_layers = 1;
    refused(a, "cpu", 2, fd, "another model: layout");
    *a = *wfile_arch(t.m.file);
    strcpy(a->prefix, "other.");
    refused(a, "cpu", 2, fd, "another model: layout");
    *a = *wfile_arch(t.m.file);
    assert_ok(attach(a, "cpu", 2, fd), &e);

    assert_ok(region_create(&r, "test", 1 << 20, &e), &e);
    refused(a, "cpu", 2, r.fd, "no weights of ours");
    strcpy(r.base, "MILESWTS");
    refused(a, "cpu", 2, r.fd, "layout 0, this program reads");
    r.base[8] = 1;
    refused(a, "cpu", 2, r.fd, "those of miles , this is " MILES_VERSION);
    region_close(&r);
    assert_ok(wshare_create(1 << 20, &s, &e), &e); /* not described yet */
    refused(a, "cpu", 2, wshare_fd(s), "no weights of ours");
    wshare_close(s);
    sharedmodel_close(&t);
    mem_free(a);
}

/* Nothing that stays lies outside the image, and the plan for memory knows its size. */
static void test_all_inside(void **state)
{
    struct sharedmodel t;
    const struct region *r;

    (void)state;
    sharedmodel_open(&t, folder, 2);
    r = wshare_region(t.m.w->share);
    for (int i = 0; i < t.m.w->nparams; i++) {
        const struct param *p = &t.m.w->params[i];
        const void *const at[] = {p->w16.data, p->view.fwd, p->view.bwd};
        assert_true(p->w16.data || p->view.fwd);
        for (int k = 0; k < 3; k++) {
            const char *x = at[k];
            assert_true(!x || (x >= r->base + 4096 && x < r->base + r->size));
        }
        assert_true(!p->view.bwd || (char *)p->view.bwd > (char *)p->view.fwd);
    }
    assert_true((int64_t)(r->low + r->size - r->high) >= weights_bytes(t.m.w, 0));
    assert_true((int64_t)(r->low + r->size - r->high) <= weights_bytes(t.m.w, 0) + (1 << 16));
    sharedmodel_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),  cmocka_unit_test(test_following),
        cmocka_unit_test(test_process),    cmocka_unit_test(test_refused),
        cmocka_unit_test(test_all_inside),
    };
    return cmocka_run_group_tests(tests, jobs_setup, jobs_teardown);
}
