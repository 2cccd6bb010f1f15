/* Checkpoints: a run that goes on from one has the bits of a run that never stopped; what is
 * damaged, foreign or half written is refused; a full disk or a kill at any moment leaves the
 * checkpoint before it whole. */
#include "model/tinymodel.h"

#include <dirent.h>
#include <jansson.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "base/log.h"
#include "train/ckpt.h"
#include "train/optim.h"

/* qwen2, not tied: biases of three parts, an output layer of its own. */
static const struct tinymodel_spec spec = {"qwen2", 0, 1, 64, 2, 1, 32, 64, 50, 128, 0};
static const struct optim_hyper hyper = {1e-2, 0.9, 0.98, 1e-8, 0.1, 1.0};
static char model_dir[300];
static struct err e;

/* ---- an optimizer over a fresh copy of the model ---- */

struct side {
    struct tinymodel m;
    struct optim *o;
    struct tensor *g;
};

static void side_open_as(struct side *s, int leaves, const struct optim_opts *form)
{
    tinymodel_open(&s->m, model_dir, "cpu", "auto", 1, leaves, 0, 1);
    assert_ok(optim_open(s->m.w, form, &s->o, &e), &e);
    s->g = mem_alloc(sizeof *s->g * (size_t)s->m.w->nparams);
    for (int i = 0; i < s->m.w->nparams; i++) {
        assert_ok(device_tensor(s->m.dev, &s->g[i], DTYPE_I64, s->m.w->params[i].rows,
                                s->m.w->params[i].cols, &e),
                  &e);
    }
}

static void side_open_leaves(struct side *s, int leaves)
{
    side_open_as(s, leaves, NULL);
}

static void side_open(struct side *s)
{
    side_open_leaves(s, 2);
}

static void side_close(struct side *s)
{
    for (int i = 0; i < s->m.w->nparams; i++) {
        device_tensor_free(&s->g[i]);
    }
    mem_free(s->g);
    optim_close(s->o);
    tinymodel_close(&s->m);
}

/* n steps with gradients that depend on the step's number alone. */
static void side_train(struct side *s, int n)
{
    for (int k = 0; k < n; k++) {
        uint64_t seed = (uint64_t)s->o->step + 100;
        double norm;
        for (int i = 0; i < s->m.w->nparams; i++) {
            for (int64_t r = 0; r < s->g[i].rows; r++) {
                for (int64_t c = 0; c < s->g[i].cols; c++) {
                    ((int64_t *)s->g[i].data)[r * s->g[i].ld + c] =
                        (int64_t)(tinymodel_value(&seed) * 0x1p38f);
                }
            }
        }
        assert_ok(optim_step(s->o, s->g, &hyper, &norm, &e), &e);
    }
}

/* Masters, moments, rounded weights: all of it, bit for bit. */
static int side_equal(const struct side *a, const struct side *b)
{
    static float x[OPTIM_ROWS * 4096], y[OPTIM_ROWS * 4096];
    int equal = a->o->step == b->o->step;
    for (int i = 0; i < a->m.w->nparams; i++) {
        const struct param *p = &a->m.w->params[i];
        for (int k = 0; k < 4; k++) {
            for (int64_t r = 0; r < p->rows; r += OPTIM_ROWS) {
                int64_t n = p->rows - r < OPTIM_ROWS ? p->rows - r : OPTIM_ROWS;
                assert_ok(optim_read(a->o, (enum optim_part)k, i, r, n, x, &e), &e);
                assert_ok(optim_read(b->o, (enum optim_part)k, i, r, n, y, &e), &e);
                equal = equal && memcmp(x, y, 4 * (size_t)(n * p->cols)) == 0;
            }
        }
    }
    return equal;
}

static int save(struct side *s, const char *dir, int64_t iteration, int with_optim)
{
    json_t *state = json_pack("{s:I,s:s}", "cursor", (json_int_t)s->o->step * 10, "name", "x");
    int rc = ckpt_save(dir, iteration, s->o, with_optim, state, &e);
    json_decref(state);
    return rc;
}

static int load(struct side *s, const char *dir, int64_t iteration, int *with_optim,
                json_int_t *cursor)
{
    json_t *state = NULL;
    int rc;
    memset(&e, 0, sizeof e);
    rc = ckpt_load(dir, iteration, s->o, with_optim, &state, &e);
    if (rc == STATUS_OK) {
        assert_non_null(state);
        *cursor = json_integer_value(json_object_get(state, "cursor"));
    } else {
        assert_null(state);
        assert_int_equal(e.code, rc);
        assert_true(e.msg[0] != 0);
    }
    json_decref(state);
    return rc;
}

/* Names in a folder that end in .tmp, or all of them. */
static int count(const char *dir, int only_tmp)
{
    DIR *d = opendir(dir);
    struct dirent *de;
    int n = 0;
    assert_non_null(d);
    while ((de = readdir(d))) {
        size_t k = strlen(de->d_name);
        n += de->d_name[0] != '.' &&
             (!only_tmp || (k > 4 && strcmp(de->d_name + k - 4, ".tmp") == 0));
    }
    closedir(d);
    return n;
}

static char *scratch(const char *name)
{
    static char path[16][300];
    static int next;
    next = (next + 1) % 16;
    snprintf(path[next], sizeof path[next], "%s/%s", fixture_dir, name);
    return path[next];
}

/* ---- tests ---- */

static void continues(void **state)
{
    const char *dir = scratch("deep/er/save");
    struct side a, b;
    int with_optim = 0;
    int64_t it = -1;
    json_int_t cursor = 0;
    (void)state;
    side_open(&a);
    side_open(&b);
    assert_int_equal(ckpt_latest(dir, &it, &e), STATUS_NOTFOUND);
    side_train(&a, 2);
    assert_ok(save(&a, dir, 12, 1), &e);
    assert_ok(ckpt_latest(dir, &it, &e), &e);
    assert_int_equal(it, 12);
    assert_true(fsio_is_file(scratch("deep/er/save/iter_0000012/model.safetensors")));
    assert_int_equal(count(dir, 0), 2);
    assert_int_equal(count(scratch("deep/er/save/iter_0000012"), 0), 4);
    assert_false(side_equal(&a, &b));
    assert_ok(load(&b, dir, 12, &with_optim, &cursor), &e);
    assert_int_equal(with_optim, 1);
    assert_int_equal(cursor, 20);
    assert_true(side_equal(&a, &b));
    side_train(&a, 2);
    side_train(&b, 2);
    assert_true(side_equal(&a, &b));
    /* a later one and an overwritten one */
    assert_ok(save(&a, dir, 13, 1), &e);
    side_train(&a, 1);
    assert_ok(save(&a, dir, 13, 1), &e);
    assert_ok(ckpt_latest(dir, &it, &e), &e);
    assert_int_equal(it, 13);
    assert_ok(load(&b, dir, 13, &with_optim, &cursor), &e);
    assert_int_equal(cursor, 50);
    assert_true(side_equal(&a, &b));
    assert_int_equal(count(dir, 1), 0);
    side_close(&a);
    side_close(&b);
}

/* Without moments in the checkpoint they start at zero, also in an optimizer that had some. */
static void without_moments(void **state)
{
    const char *dir = scratch("light");
    struct side a, b, c;
    int with_optim = 1;
    json_int_t cursor;
    (void)state;
    side_open(&a);
    side_open(&b);
    side_open(&c);
    side_train(&a, 2);
    assert_ok(save(&a, dir, 0, 0), &e);
    assert_int_equal(count(scratch("light/iter_0000000"), 0), 3);
    assert_ok(load(&b, dir, 0, &with_optim, &cursor), &e);
    assert_int_equal(with_optim, 0);
    assert_int_equal(b.o->step, 0);
    side_train(&c, 3);
    assert_ok(load(&c, dir, 0, &with_optim, &cursor), &e);
    assert_int_equal(with_optim, 0);
    assert_true(side_equal(&b, &c));
    side_close(&a);
    side_close(&b);
    side_close(&c);
}

static void other_manifest(void **state)
{
    const char *dir = scratch("leaves");
    struct side a, b;
    struct optim *o;
    int with_optim;
    json_int_t cursor;
    json_t *m;
    (void)state;
    side_open(&a);
    assert_ok(save(&a, dir, 1, 1), &e);
    side_open_leaves(&b, 4);
    side_train(&b, 1);
    assert_int_equal(load(&b, dir, 1, &with_optim, &cursor), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "leaves = 2"));
    assert_non_null(strstr(e.msg, "has 4"));
    assert_int_equal(b.o->step, 1);
    /* a value that the checkpoint does not name is refused too */
    o = a.o;
    m = plan_manifest(&o->w->dev->plan);
    assert_int_equal(json_object_size(m), 8);
    assert_int_equal(json_integer_value(json_object_get(m, "leaves")), 2);
    assert_string_equal(json_string_value(json_object_get(m, "weights_dtype")), "bfloat16");
    json_decref(m);
    side_close(&a);
    side_close(&b);
}

/* Another model's checkpoint: the tensors that are missing or differ in size are named. */
static void other_model(void **state)
{
    static const struct tinymodel_spec wide = {"llama", 1, 1, 96, 3, 1, 32, 64, 50, 128, 0};
    const char *dir = scratch("other");
    char saved[300];
    struct side a, b;
    int with_optim;
    json_int_t cursor;
    (void)state;
    side_open(&a);
    assert_ok(save(&a, dir, 1, 1), &e);
    snprintf(saved, sizeof saved, "%s", model_dir);
    snprintf(model_dir, sizeof model_dir, "%s", tinymodel_write(&wide));
    side_open(&b);
    snprintf(model_dir, sizeof model_dir, "%s", saved);
    assert_int_equal(load(&b, dir, 1, &with_optim, &cursor), STATUS_FORMAT);
    assert_non_null(strstr(e.msg, "model.safetensors"));
    side_close(&a);
    side_close(&b);
}

/* Cuts each file at many lengths, flips bits, then breaks the texts: never a crash, never accepted.
 */
static void damaged(void **state)
{
    static const char *const names[] = {"model.safetensors", "optim.safetensors", "state.json",
                                        "sums.json"};
    static const char *const texts[] = {
        "",
        "{",
        "[]",
        "null",
        "{\"state\": 3}",
        "{\"state\": {}}",
        "{\"state\": {}, \"manifest\": []}",
        "{\"state\": {}, \"manifest\": {\"leaves\": 2}}",
    };
    const char *dir = scratch("damaged");
    struct side a, b;
    int with_optim;
    json_int_t cursor;
    (void)state;
    side_open(&a);
    side_open(&b);
    side_train(&a, 1);
    assert_ok(save(&a, dir, 3, 1), &e);
    assert_int_equal(load(&b, dir, 4, &with_optim, &cursor), STATUS_NOTFOUND);
    for (int f = 0; f < 4; f++) {
        char path[600];
        char *data;
        size_t len;
        snprintf(path, sizeof path, "%s/iter_0000003/%s", dir, names[f]);
        assert_ok(fsio_read(path, 1 << 26, &data, &len, &e), &e);
        for (int k = 0; k < 12; k++) {
            size_t cut = k < 4 ? (size_t)k * 4 : k < 11 ? len * (size_t)(k - 3) / 8 : len - 1;
            fixture_write(path, data, cut);
            assert_int_not_equal(load(&b, dir, 3, &with_optim, &cursor), STATUS_OK);
            assert_non_null(strstr(e.msg, names[f]));
        }
        unlink(path); /* checkpoints of earlier versions have no sums */
        assert_int_equal(load(&b, dir, 3, &with_optim, &cursor) == STATUS_OK, f == 3);
        for (size_t k = 0; k < len; k += k < 256 ? 3 : 1 + len / 97) { /* header and values */
            data[k] ^= 1 << k % 8;
            fixture_write(path, data, len);
            assert_int_not_equal(load(&b, dir, 3, &with_optim, &cursor), STATUS_OK);
            assert_non_null(strstr(e.msg, "iter_0000003/"));
            data[k] ^= 1 << k % 8;
        }
        for (int k = 0; f == 2 && k < 8; k++) {
            fixture_write(path, texts[k], strlen(texts[k]));
            assert_int_not_equal(load(&b, dir, 3, &with_optim, &cursor), STATUS_OK);
        }
        fixture_write(path, data, len);
        mem_free(data);
    }
    assert_ok(load(&b, dir, 3, &with_optim, &cursor), &e);
    assert_true(side_equal(&a, &b));
    side_close(&a);
    side_close(&b);
}

static void latest_text(void **state)
{
    static const char *const bad[] = {"", "release\n", "abc", "-1", "iter_0000003"};
    const char *dir = scratch("latest");
    int64_t it = 77;
    (void)state;
    assert_ok(fsio_mkdirs(dir, &e), &e);
    assert_int_equal(ckpt_latest(dir, &it, &e), STATUS_NOTFOUND);
    for (int i = 0; i < 5; i++) {
        fixture_text(dir, "latest_checkpointed_iteration.txt", bad[i]);
        assert_int_equal(ckpt_latest(dir, &it, &e), STATUS_FORMAT);
        assert_non_null(strstr(e.msg, "latest_checkpointed_iteration.txt"));
    }
    assert_int_equal(it, 77);
    fixture_text(dir, "latest_checkpointed_iteration.txt", "41\n");
    assert_ok(ckpt_latest(dir, &it, &e), &e);
    assert_int_equal(it, 41);
}

static void leftovers(void **state)
{
    const char *dir = scratch("left");
    (void)state;
    assert_ok(ckpt_clean(scratch("nowhere"), &e), &e);
    assert_ok(fsio_mkdirs(scratch("left/iter_0000001/sub"), &e), &e);
    assert_ok(fsio_mkdirs(scratch("left/iter_0000002.tmp/sub"), &e), &e);
    assert_ok(fsio_mkdirs(scratch("left/iter_0000003.tmp"), &e), &e);
    assert_ok(fsio_mkdirs(scratch("left/mine.tmp"), &e), &e);
    fixture_text(scratch("left/iter_0000002.tmp"), "model.safetensors", "half");
    fixture_text(dir, "notes.tmp", "mine");
    log_set_level(LOG_ERROR);
    assert_ok(ckpt_clean(dir, &e), &e);
    log_set_level(LOG_INFO);
    assert_int_equal(count(dir, 0), 3);
    assert_true(fsio_is_dir(scratch("left/iter_0000001/sub")));
    assert_true(fsio_is_dir(scratch("left/mine.tmp")));
    assert_true(fsio_is_file(scratch("left/notes.tmp")));
}

/* Files may grow to n bytes only, as on a disk that is full; RLIM_INFINITY lifts it. */
static void disk_limit(rlim_t n)
{
    struct rlimit r;
    getrlimit(RLIMIT_FSIZE, &r);
    r.rlim_cur = n < r.rlim_max ? n : r.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &r), 0);
}

static void full_disk(void **state)
{
    static const rlim_t limits[] = {0, 100, 5000, 60000, 150000, 300000};
    const char *dir = scratch("full");
    struct side a, b, want;
    struct stat st;
    int with_optim, failed = 0;
    int64_t it;
    json_int_t cursor;
    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    side_open(&a);
    side_open(&b);
    side_open(&want);
    side_train(&a, 1);
    side_train(&want, 1);
    assert_ok(save(&a, dir, 5, 1), &e);
    assert_int_equal(stat(scratch("full/iter_0000005/optim.safetensors"), &st), 0);
    side_train(&a, 1);
    for (int k = 0; k < 12; k++) {
        int64_t iteration = k % 2 ? 5 : 6; /* a new one, and the same again */
        int rc;
        if ((off_t)limits[k / 2] >= st.st_size) {
            continue;
        }
        disk_limit(limits[k / 2]);
        rc = save(&a, dir, iteration, 1);
        disk_limit(RLIM_INFINITY);
        assert_int_equal(rc, STATUS_IO);
        failed++;
        assert_int_equal(count(dir, 0), 2); /* nothing half written is left */
        assert_ok(ckpt_latest(dir, &it, &e), &e);
        assert_int_equal(it, 5);
        assert_ok(load(&b, dir, 5, &with_optim, &cursor), &e);
        assert_true(side_equal(&b, &want));
    }
    assert_true(failed >= 8);
    assert_ok(save(&a, dir, 6, 1), &e);
    assert_ok(load(&b, dir, 6, &with_optim, &cursor), &e);
    assert_true(side_equal(&b, &a));
    /* a folder that cannot be */
    fixture_text(dir, "file", "x");
    assert_int_equal(save(&a, scratch("full/file/sub"), 1, 1), STATUS_IO);
    side_close(&a);
    side_close(&b);
    side_close(&want);
}

/* What the text file names can be loaded and has the right bits. */
static void check_latest(struct side *want, struct side *into, const char *dir, int k)
{
    int with_optim;
    int64_t it;
    json_int_t cursor = -1;
    assert_ok(ckpt_latest(dir, &it, &e), &e);
    if (load(into, dir, it, &with_optim, &cursor) != STATUS_OK) {
        fail_msg("stop %d: iteration %lld: %s", k, (long long)it, e.msg);
    }
    assert_int_equal(cursor, 10);
    assert_true(side_equal(want, into));
}

/* A process that saves over and over is stopped at 60 moments and killed at the last: what the
 * text file names can always be loaded, also where the same iteration is written again. */
static void killed(void **state)
{
    struct side a, b;
    uint64_t seed = 5;
    (void)state;
    side_open(&a);
    side_open(&b);
    side_train(&a, 1);
    for (int again = 0; again < 2; again++) {
        const char *dir = scratch(again ? "again" : "new");
        int status;
        pid_t pid;
        assert_ok(save(&a, dir, 1, 1), &e);
        pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (int64_t i = 1;; i++) {
                if (save(&a, dir, again ? 1 : i % 4, 1) != STATUS_OK) {
                    _exit(1);
                }
            }
        }
        for (int k = 0; k < 60; k++) {
            struct timespec nap = {0, 20000 + (long)(tinymodel_rand(&seed) % 2000000)};
            nanosleep(&nap, NULL);
            assert_int_equal(kill(pid, k < 59 ? SIGSTOP : SIGKILL), 0);
            assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
            assert_true(k < 59 ? WIFSTOPPED(status) : WIFSIGNALED(status));
            check_latest(&a, &b, dir, k);
            kill(pid, SIGCONT);
        }
        log_set_level(LOG_ERROR);
        assert_ok(ckpt_clean(dir, &e), &e);
        log_set_level(LOG_INFO);
        check_latest(&a, &b, dir, 60);
        assert_int_equal(count(dir, 1), fsio_is_file(scratch(
                                            again ? "again/latest_checkpointed_iteration.txt.tmp"
                                                  : "new/latest_checkpointed_iteration.txt.tmp")));
    }
    side_close(&a);
    side_close(&b);
}

/* Every form of the state goes on from its own checkpoint in the same bits; masters split and whole
 * read each other's; bf16 moments can go on as f32, the other way round is refused by name. */
static void forms(void **state)
{
    static const struct optim_opts form[] = {{0, 0, 0}, {0, 0, 1}, {1, 1, 0}, {0, 1, 0}, {1, 1, 1}};
    static const char loads[5][5] = {/* from row to column; 2: the same bits after more steps */
                                     {2, 2, 0, 0, 0},
                                     {2, 2, 0, 0, 0},
                                     {1, 1, 2, 1, 2},
                                     {1, 1, 0, 2, 0},
                                     {1, 1, 2, 1, 2}};
    (void)state;
    for (int i = 0; i < 5; i++) {
        char dir[32];
        struct side a;
        snprintf(dir, sizeof dir, "form%d", i);
        side_open_as(&a, 2, &form[i]);
        side_train(&a, 3);
        assert_ok(save(&a, scratch(dir), 1, 1), &e);
        side_train(&a, 2);
        for (int j = 0; j < 5; j++) {
            struct side b;
            int with_optim, rc;
            json_int_t cursor;
            side_open_as(&b, 2, &form[j]);
            rc = load(&b, scratch(dir), 1, &with_optim, &cursor);
            if (!loads[i][j]) {
                assert_int_equal(rc, STATUS_INPUT);
                assert_non_null(strstr(e.msg, "exp_avg"));
                assert_non_null(strstr(e.msg, "--exp-avg-dtype"));
            } else {
                assert_ok(rc, &e);
                side_train(&b, 2);
                assert_int_equal(side_equal(&a, &b), loads[i][j] == 2);
            }
            side_close(&b);
        }
        side_close(&a);
    }
}

/* ---- beside other work, and which are kept ---- */

static void same_file(const char *a, const char *b, const char *name)
{
    char *p = fsio_join(a, name), *q = fsio_join(b, name), *x, *y;
    size_t n, m;
    assert_ok(fsio_read(p, 1 << 28, &x, &n, &e), &e);
    assert_ok(fsio_read(q, 1 << 28, &y, &m, &e), &e);
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    mem_free(x);
    mem_free(y);
    mem_free(p);
    mem_free(q);
}

static int save_beside(struct side *s, const char *dir, int64_t iteration, int wait)
{
    json_t *state = json_pack("{s:I,s:s}", "cursor", (json_int_t)s->o->step * 10, "name", "x");
    struct ckpt_writer *w;
    int rc;
    assert_ok(ckpt_begin(dir, iteration, s->o, 1, state, &w, &e), &e);
    json_decref(state);
    while ((rc = ckpt_poll(w, wait, &e)) == STATUS_AGAIN) {
    }
    return rc;
}

/* The bytes are those of a save that everybody waits for, in each form of the state. */
static void beside(void **state)
{
    const struct optim_opts form[] = {{0, 0, 0}, {1, 1, 0}, {0, 0, 1}};
    char one[320], two[320];
    (void)state;
    for (int f = 0; f < 3; f++) {
        struct side a;
        side_open_as(&a, 2, &form[f]);
        side_train(&a, 2);
        snprintf(one, sizeof one, "%s/one%d", fixture_dir, f);
        snprintf(two, sizeof two, "%s/two%d", fixture_dir, f);
        assert_ok(save(&a, one, 5, 1), &e);
        assert_ok(save_beside(&a, two, 5, f % 2), &e);
        strcat(one, "/iter_0000005");
        strcat(two, "/iter_0000005");
        same_file(one, two, "model.safetensors");
        same_file(one, two, "optim.safetensors");
        same_file(one, two, "state.json");
        side_close(&a);
    }
}

/* Any write, sync or rename that fails is told, and leaves the checkpoint before it the newest. */
static void failing_calls(void **state)
{
    struct side a, b;
    char dir[320];
    int failed = 0, with_optim;
    json_int_t cursor;
    int64_t it;
    (void)state;
    side_open(&a);
    side_open(&b);
    snprintf(dir, sizeof dir, "%s/failing", fixture_dir);
    side_train(&a, 1);
    assert_ok(save(&a, dir, 1, 1), &e);
    for (int op = FSIO_WRITE; op < FSIO_NOPS; op++) {
        int rc = STATUS_IO;
        for (int k = 1; rc != STATUS_OK; k++) {
            fsio_fail_at((enum fsio_op)op, k, 1);
            rc = save_beside(&a, dir, 2, 1);
            fsio_fail_at((enum fsio_op)op, 0, 0);
            assert_ok(ckpt_latest(dir, &it, &e), &e);
            if (rc != STATUS_OK) {
                failed++;
                assert_int_equal(rc, STATUS_IO);
                assert_true(it == 1 || it == 2); /* 2: the very last sync has failed */
                assert_ok(load(&b, dir, it, &with_optim, &cursor), &e);
                assert_true(side_equal(&a, &b));
                assert_ok(ckpt_compare(dir, it, a.o, &e), &e);
            } else {
                assert_int_equal(it, 2);
            }
            assert_ok(ckpt_clean(dir, &e), &e);
            assert_int_equal(count(dir, 1), 0);
        }
        assert_ok(save(&a, dir, 1, 1), &e);
    }
    assert_true(failed >= 12);
    side_close(&a);
    side_close(&b);
}

static void retention(void **state)
{
    struct side a;
    char dir[320], path[400];
    int64_t oldest = 7, bytes;
    (void)state;
    side_open(&a);
    snprintf(dir, sizeof dir, "%s/retained", fixture_dir);
    assert_ok(ckpt_retain(dir, 1, 0, 1, &oldest, &e), &e);
    assert_int_equal(oldest, -1);
    for (int i = 0; i < 7; i++) {
        assert_ok(save(&a, dir, i * 2, 1), &e);
    }
    assert_ok(ckpt_retain(dir, 0, 0, 1, &oldest, &e), &e);
    assert_int_equal(oldest, 0);
    assert_ok(ckpt_retain(dir, 4, 0, 1, &oldest, &e), &e);
    assert_int_equal(oldest, 6);
    assert_int_equal(count(dir, 0), 4 + 1);
    snprintf(path, sizeof path, "%s/iter_0000006/model.safetensors", dir);
    {
        struct stat st, so;
        assert_int_equal(stat(path, &st), 0);
        snprintf(path, sizeof path, "%s/iter_0000006/optim.safetensors", dir);
        assert_int_equal(stat(path, &so), 0);
        bytes = st.st_size + so.st_size;
    }
    assert_ok(ckpt_retain(dir, 0, bytes * 5 / 2, 1, &oldest, &e), &e);
    assert_int_equal(oldest, 10);
    assert_ok(ckpt_retain(dir, 0, 1, 1, &oldest, &e), &e); /* the newest stays */
    assert_int_equal(oldest, 12);
    snprintf(path, sizeof path, "%s/latest_checkpointed_iteration.txt", dir);
    assert_ok(save(&a, dir, 14, 1), &e);
    assert_ok(fsio_write_atomic(path, "12\n", 3, &e), &e); /* 14 is not known to be whole */
    assert_ok(ckpt_retain(dir, 1, 0, 1, &oldest, &e), &e);
    assert_int_equal(oldest, 12);
    assert_int_equal(count(dir, 0), 2 + 1);
    side_close(&a);
}

/* Where a run can go on from every third only, the newest such stays with all behind it. */
static void retention_by_stride(void **state)
{
    struct side a;
    char dir[320];
    int64_t oldest, it = -7;
    (void)state;
    side_open(&a);
    snprintf(dir, sizeof dir, "%s/strides", fixture_dir);
    assert_int_equal(ckpt_latest_of(dir, 3, &it, &e), STATUS_NOTFOUND);
    for (int i = 0; i < 2; i++) {
        assert_ok(save(&a, dir, i, 1), &e);
    }
    assert_int_equal(ckpt_latest_of(dir, 3, &it, &e), STATUS_NOTFOUND);
    assert_ok(ckpt_retain(dir, 1, 0, 3, &oldest, &e), &e);
    assert_int_equal(oldest, -1);
    assert_int_equal(count(dir, 0), 2 + 1);
    for (int i = 2; i < 8; i++) {
        assert_ok(save(&a, dir, i, 1), &e);
    }
    assert_ok(ckpt_latest_of(dir, 3, &it, &e), &e);
    assert_int_equal(it, 5);
    assert_ok(ckpt_retain(dir, 4, 0, 3, &oldest, &e), &e); /* 7 6 5 4 */
    assert_int_equal(oldest, 5);
    assert_int_equal(count(dir, 0), 4 + 1);
    assert_ok(ckpt_retain(dir, 1, 0, 3, &oldest, &e), &e); /* 7 6 5 */
    assert_int_equal(oldest, 5);
    assert_int_equal(count(dir, 0), 3 + 1);
    assert_ok(save(&a, dir, 8, 1), &e);
    assert_ok(ckpt_latest_of(dir, 3, &it, &e), &e);
    assert_int_equal(it, 8);
    assert_ok(ckpt_retain(dir, 1, 0, 3, &oldest, &e), &e);
    assert_int_equal(oldest, 8);
    assert_int_equal(count(dir, 0), 1 + 1);
    side_close(&a);
}

static int setup(void **state)
{
    int rc;
    /* syncing is what these tests do most: in memory it costs nothing */
    strcpy(fixture_dir, "/dev/shm/miles-test-ckpt-XXXXXX");
    rc = mkdtemp(fixture_dir) ? 0 : fixture_setup(state);
    if (rc == 0) {
        snprintf(model_dir, sizeof model_dir, "%s", tinymodel_write(&spec));
    }
    return rc;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(continues),      cmocka_unit_test(without_moments),
        cmocka_unit_test(other_manifest), cmocka_unit_test(other_model),
        cmocka_unit_test(damaged),        cmocka_unit_test(latest_text),
        cmocka_unit_test(leftovers),      cmocka_unit_test(full_disk),
        cmocka_unit_test(killed),         cmocka_unit_test(forms),
        cmocka_unit_test(beside),         cmocka_unit_test(failing_calls),
        cmocka_unit_test(retention),      cmocka_unit_test(retention_by_stride),
    };
    return cmocka_run_group_tests(tests, setup, fixture_teardown);
}
