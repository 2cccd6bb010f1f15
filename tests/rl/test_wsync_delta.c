/* Versions of weights as changes: what a trainer publishes makes every engine's weights its own, by
 * every way from what the engine has; files come and go as agreed; wrong bases and damage change
 * nothing. */
#include "model/sharedmodel.h"

#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>

#include "base/patience.h"
#include "base/world.h"
#include "model/wpatch.h"
#include "rl/wsync_delta.h"
#include "serve/pull.h"

static const struct tinymodel_spec spec = {"llama", 1, 2, 64, 2, 1, 32, 64, 40, 64, 0};
static struct err e;

struct kit {
    struct sharedmodel t; /* the trainer */
    struct wsync_delta *s;
    const struct wsync *sync;
    char *dir;
    const char *model;
};

struct engine {
    struct tinymodel m;
    struct wpatch_held held;
    int versions; /* taken by the last pull */
};

static void kit_open(struct kit *k, enum wdelta_encoding how, int full_every, double keep_s)
{
    static int number;
    char name[32];
    struct wsync_delta_opts o = {.encoding = how, .full_every = full_every};

    memset(k, 0, sizeof *k);
    snprintf(name, sizeof name, "store-%d", number++);
    k->dir = mem_strdup(fixture_path(name));
    k->model = tinymodel_write(&spec);
    sharedmodel_open(&k->t, k->model, 1);
    o.w = k->t.m.w;
    o.store = (struct wstore_opts){.dir = k->dir, .keep_s = keep_s};
    assert_ok(wsync_delta_open(&o, &k->s, &e), &e);
    k->sync = wsync_delta_sync(k->s);
}

static void kit_close(struct kit *k)
{
    wsync_delta_close(k->s);
    sharedmodel_close(&k->t);
    mem_free(k->dir);
}

static void publish(struct kit *k)
{
    int64_t v = k->t.m.w->version;
    assert_ok(k->sync->prepare(k->sync->self, v, &e), &e);
    k->sync->settled(k->sync->self, v);
}

/* A few values move a little, as with a small learning rate. */
static void nudge(struct kit *k)
{
    struct weights *w = k->t.m.w;
    weights_writing(w, 1);
    for (int i = 0; i < w->nparams; i++) {
        struct param *p = &w->params[i];
        for (int r = 0; p->w16.data && r < p->rows; r += 3) {
            ((uint16_t *)p->w16.data)[(int64_t)r * p->w16.ld] ^= 1;
        }
    }
    weights_writing(w, 0);
    assert_ok(weights_publish(w, &e), &e);
}

static void engine_open(struct engine *g, const char *model)
{
    memset(g, 0, sizeof *g);
    tinymodel_open(&g->m, model, "cpu", "auto", 2, 1, 0, 0);
}

static void engine_close(struct engine *g)
{
    wpatch_held_fini(&g->held);
    tinymodel_close(&g->m);
}

static int take(struct engine *g, const char *source, int64_t version, int only)
{
    struct pull_opts o = {
        .source = source, .version = version, .held_name = "mine", .only = only, .timeout_s = 20};
    const struct wpatch_layer *l;
    struct wpatch *p = NULL;
    struct pull *x = NULL;
    int rc;

    memset(&e, 0, sizeof e);
    rc = wpatch_hold(g->m.w, &g->held, &e);
    o.held = g->held.m;
    rc = rc ? rc : pull_open(&o, &x, &e);
    l = rc ? NULL : pull_layers(x, &g->versions);
    if (rc == STATUS_OK && g->versions > 0) {
        rc = wpatch_open(g->m.w, &g->held, l, g->versions, &p, &e);
        rc = rc ? rc : wpatch_verify(p, &e);
        rc = rc ? rc : wpatch_commit(p, &e);
    }
    wpatch_close(p);
    pull_close(x);
    return rc;
}

/* Value by value, not by sums. */
static int same(struct weights *a, struct weights *b)
{
    int equal = 1;
    for (int i = 0; i < a->nparams; i++) {
        for (int j = 0; j < a->params[i].nparts; j++) {
            int64_t n = weights_part_count(&a->params[i], j);
            uint16_t *x = mem_alloc(2 * (size_t)n), *y = mem_alloc(2 * (size_t)n);
            assert_ok(weights_read_bf16(a, a->params[i].part[j].name, x, n, &e), &e);
            assert_ok(weights_read_bf16(b, a->params[i].part[j].name, y, n, &e), &e);
            equal &= memcmp(x, y, 2 * (size_t)n) == 0;
            mem_free(x);
            mem_free(y);
        }
    }
    return equal;
}

static int files(const char *dir, const char *end)
{
    DIR *d = opendir(dir);
    struct dirent *de;
    int n = 0;
    assert_non_null(d);
    while ((de = readdir(d))) {
        size_t len = strlen(de->d_name), tail = strlen(end);
        n += de->d_name[0] != '.' && len >= tail && strcmp(de->d_name + len - tail, end) == 0;
    }
    closedir(d);
    return n;
}

static void versions(enum wdelta_encoding how)
{
    struct kit k;
    struct engine near, far, late;

    kit_open(&k, how, 4, 1e9);
    engine_open(&near, k.model);
    engine_open(&far, k.model);
    for (int64_t v = 0; v <= 9; v++) {
        publish(&k);
        assert_ok(take(&near, k.dir, v, v > 0), &e); /* one at a time */
        assert_int_equal(near.versions, v ? 1 : 0);  /* the first it had */
        assert_true(same(near.m.w, k.t.m.w));
        if (v == 2 || v == 7 || v == 9) { /* 1, 2; then from the whole one 4 on; then 8, 9 */
            assert_ok(take(&far, k.dir, v, 0), &e);
            assert_int_equal(far.versions, v == 2 ? 2 : v == 7 ? 4 : 2);
            assert_true(same(far.m.w, k.t.m.w));
        }
        if (v & 1) {
            sharedmodel_step(&k.t);
        } else {
            nudge(&k);
        }
    }
    assert_false(same(near.m.w, k.t.m.w));      /* the trainer has gone on */
    engine_open(&late, tinymodel_write(&spec)); /* other weights: from the whole one on */
    assert_ok(take(&late, k.dir, 9, 0), &e);
    assert_int_equal(late.versions, 2);
    assert_true(same(late.m.w, near.m.w));
    engine_close(&near);
    engine_close(&far);
    engine_close(&late);
    kit_close(&k);
}

static void test_xor(void **state)
{
    (void)state;
    versions(WDELTA_XOR);
}

static void test_overwrite(void **state)
{
    (void)state;
    versions(WDELTA_OVERWRITE);
}

static void test_wrong_base(void **state)
{
    struct kit k;
    struct engine g;
    int64_t before;

    (void)state;
    kit_open(&k, WDELTA_XOR, 10, 0);
    engine_open(&g, k.model);
    for (int v = 0; v < 4; v++) {
        publish(&k);
        sharedmodel_step(&k.t);
    }
    assert_ok(take(&g, k.dir, 1, 0), &e);
    before = g.m.w->version;
    assert_int_equal(take(&g, k.dir, 3, 1), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "version 3 changes version 2 with sum "));
    assert_non_null(strstr(e.msg, "this engine has version mine with sum "));
    assert_int_equal(g.m.w->version, before); /* nothing was touched */
    assert_int_equal(take(&g, k.dir, 7, 0), STATUS_NOTFOUND);
    assert_ok(take(&g, k.dir, 3, 0), &e);
    assert_int_equal(g.versions, 2);
    engine_close(&g);
    kit_close(&k);
}

/* A chunk or a manifest that is not what its hash says: nothing changes, and the right file later
 * makes it good. */
static void test_damage(void **state)
{
    struct kit k;
    struct engine g;
    char path[512], *data;
    struct wmanifest *m;
    int64_t before;
    size_t n;

    (void)state;
    kit_open(&k, WDELTA_XOR, 10, 0);
    engine_open(&g, k.model);
    publish(&k);
    assert_ok(take(&g, k.dir, 0, 0), &e);
    sharedmodel_step(&k.t);
    publish(&k);
    snprintf(path, sizeof path, "%s/weight_v000001.json", k.dir);
    assert_ok(fsio_read(path, 1 << 20, &data, &n, &e), &e);
    assert_ok(wmanifest_read(data, n, &m, &e), &e);
    assert_true(m->nchunks == 1 && m->base == 0);
    for (size_t cut = 1; cut < n; cut += 7) {
        struct wmanifest *bad;
        assert_int_not_equal(wmanifest_read(data, n - cut - 1, &bad, &e), STATUS_OK);
    }
    memcpy(strstr(data, "\"xor\""), "\"nor\"", 5); /* no encoding that is known */
    assert_int_equal(wmanifest_read(data, n, &(struct wmanifest *){NULL}, &e), STATUS_FORMAT);
    mem_free(data);
    snprintf(path, sizeof path, "%s/chunks/%s", k.dir, m->chunks[0].hash);
    wmanifest_free(m);
    assert_ok(fsio_read(path, 1 << 24, &data, &n, &e), &e);
    data[n / 2] ^= 4;
    fixture_write(path, data, n);
    before = g.m.w->version;
    assert_int_equal(take(&g, k.dir, 1, 0), STATUS_FAIL);
    assert_non_null(strstr(e.msg, "has hash "));
    assert_int_equal(g.m.w->version, before);
    data[n / 2] ^= 4;
    fixture_write(path, data, n);
    assert_ok(take(&g, k.dir, 1, 0), &e);
    assert_true(same(g.m.w, k.t.m.w));
    mem_free(data);
    engine_close(&g);
    kit_close(&k);
}

/* Flips a bit in a file of the version: its manifest, or else its first chunk. */
static void spoil(const struct kit *k, int version, int manifest)
{
    char path[512], *data;
    struct wmanifest *m;
    size_t n;

    snprintf(path, sizeof path, "%s/weight_v%06d.json", k->dir, version);
    assert_ok(fsio_read(path, 1 << 20, &data, &n, &e), &e);
    if (!manifest) {
        assert_ok(wmanifest_read(data, n, &m, &e), &e);
        snprintf(path, sizeof path, "%s/chunks/%s", k->dir, m->chunks[0].hash);
        wmanifest_free(m);
        mem_free(data);
        assert_ok(fsio_read(path, 1 << 24, &data, &n, &e), &e);
    }
    data[n / 2] ^= 4;
    fixture_write(path, data, n);
    mem_free(data);
}

/* An engine from nothing: versions that it took, 0 when it did not. */
static int from_nothing(const struct kit *k, int version)
{
    struct engine g;
    int n = 0;

    engine_open(&g, tinymodel_write(&spec));
    if (take(&g, k->dir, version, 0) == STATUS_OK) {
        assert_true(same(g.m.w, k->t.m.w));
        n = g.versions;
    }
    engine_close(&g);
    return n;
}

/* Files that were damaged after they were written: when an engine complains, the newest version is
 * written again, whole, and those who have it go on from there. */
static void test_doubt(void **state)
{
    struct kit k;
    struct engine near;

    (void)state;
    kit_open(&k, WDELTA_XOR, 10, 1e9);
    engine_open(&near, k.model);
    publish(&k);
    for (int v = 1; v <= 3; v++) {
        sharedmodel_step(&k.t);
        publish(&k);
        assert_ok(take(&near, k.dir, v, 1), &e);
        assert_int_equal(from_nothing(&k, v), 2);
        spoil(&k, v - (v == 3), v == 1); /* a manifest; the newest chunk; one further down */
        assert_int_equal(from_nothing(&k, v), 0);
        k.sync->doubt(k.sync->self, v - 1); /* not the one in force: nothing is done */
        assert_int_equal(from_nothing(&k, v), 0);
        k.sync->doubt(k.sync->self, v);
        assert_int_equal(from_nothing(&k, v), 1);
        if (v == 2) { /* a chunk of a whole version is written again under its name */
            spoil(&k, v, 0);
            assert_int_equal(from_nothing(&k, v), 0);
            k.sync->doubt(k.sync->self, v);
            assert_int_equal(from_nothing(&k, v), 1);
        }
    }
    sharedmodel_step(&k.t);
    publish(&k);
    k.sync->doubt(k.sync->self, 4); /* nothing is damaged: it stays as it is */
    assert_int_equal(from_nothing(&k, 4), 2);
    assert_ok(take(&near, k.dir, 4, 1), &e);
    assert_true(same(near.m.w, k.t.m.w));
    engine_close(&near);
    kit_close(&k);
}

/* Right bytes of a version that is not the manifest's: the sums tell before anything changes. */
static void test_sums(void **state)
{
    struct kit k;
    struct engine g;
    char path[512];
    const uint8_t *data;
    struct wmanifest *m;
    struct wpatch *p = NULL;
    size_t n;

    (void)state;
    kit_open(&k, WDELTA_XOR, 10, 0);
    engine_open(&g, k.model);
    publish(&k);
    sharedmodel_step(&k.t);
    publish(&k);
    assert_ok(wpatch_hold(g.m.w, &g.held, &e), &e);
    snprintf(path, sizeof path, "%s/weight_v000001.json", k.dir);
    assert_ok(fsio_map(path, &data, &n, &e), &e);
    assert_ok(wmanifest_read((const char *)data, n, &m, &e), &e);
    fsio_unmap(data, n);
    snprintf(path, sizeof path, "%s/chunks/%s", k.dir, m->chunks[0].hash);
    assert_ok(fsio_map(path, &data, &n, &e), &e);
    m->tensors[2].sum[0] ^= 1;
    assert_ok(wpatch_open(g.m.w, &g.held, &(struct wpatch_layer){m, &data}, 1, &p, &e), &e);
    assert_int_equal(wpatch_verify(p, &e), STATUS_FAIL);
    assert_non_null(strstr(e.msg, m->tensors[2].name));
    assert_int_equal(g.m.w->version, 0);
    wpatch_close(p);
    m->base = -1; /* as if it were whole */
    assert_int_equal(wpatch_open(g.m.w, &g.held, &(struct wpatch_layer){m, &data}, 1, &p, &e),
                     STATUS_FORMAT);
    m->base = 0;
    m->base_sum[0] ^= 1;
    assert_int_equal(wpatch_open(g.m.w, &g.held, &(struct wpatch_layer){m, &data}, 1, &p, &e),
                     STATUS_INPUT);
    fsio_unmap(data, n);
    wmanifest_free(m);
    engine_close(&g);
    kit_close(&k);
}

/* What goes and what stays. */
static void test_collect(void **state)
{
    struct kit k;
    struct engine g;
    char *chunks;

    (void)state;
    kit_open(&k, WDELTA_XOR, 3, 0);
    chunks = fsio_join(k.dir, "chunks");
    for (int v = 0; v <= 7; v++) {
        publish(&k);
        /* from the newest whole one on: 0, 3, 6 */
        assert_int_equal(files(k.dir, ".json"), v % 3 + 1);
        assert_int_equal(files(chunks, ""), v % 3 + 1);
        sharedmodel_step(&k.t);
    }
    assert_ok(k.sync->prepare(k.sync->self, 8, &e), &e);
    sharedmodel_step(&k.t);
    assert_ok(k.sync->prepare(k.sync->self, 9, &e), &e); /* whole, but nobody has it yet */
    assert_int_equal(files(k.dir, ".json"), 4);
    engine_open(&g, k.model);
    assert_ok(take(&g, k.dir, 8, 0), &e);
    k.sync->settled(k.sync->self, 9);
    assert_int_equal(files(k.dir, ".json"), 1);
    engine_close(&g);
    wsync_delta_close(k.s);
    assert_int_equal(files(k.dir, ""), 0);
    assert_false(fsio_is_dir(chunks));
    k.s = NULL;
    /* what others put there stays */
    assert_ok(fsio_mkdirs(chunks, &e), &e);
    fixture_text(chunks, "mine.txt", "x");
    fixture_text(chunks, "00000000000000000000000000000000", "left by a killed run");
    fixture_text(chunks, "00000000000000000000000000000000.tmp", "and this");
    assert_ok(
        wsync_delta_open(
            &(struct wsync_delta_opts){.w = k.t.m.w, .full_every = 1, .store = {.dir = k.dir}},
            &k.s, &e),
        &e);
    assert_int_equal(files(chunks, ""), 1);
    assert_int_equal(files(chunks, "mine.txt"), 1);
    mem_free(chunks);
    kit_close(&k);
}

static double time_is = 1000.0;

static double clock_now(void *self)
{
    (void)self;
    return time_is;
}

static int goes_on(void *self)
{
    (void)self;
    return 0;
}

/* Who waits finds room afterwards. */
static void make_room(void *self, double seconds)
{
    time_is += seconds;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, self), 0);
}

/* No room for a version: an error that names the file, and the next one is whole. */
static void test_no_room(void **state)
{
    struct rlimit old, small;
    struct kit k;
    struct engine g;
    int rc;

    (void)state;
    kit_open(&k, WDELTA_XOR, 10, 0);
    publish(&k);
    sharedmodel_step(&k.t);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 100;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    memset(&e, 0, sizeof e);
    rc = k.sync->prepare(k.sync->self, 1, &e);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(rc, STATUS_IO);
    assert_non_null(strstr(e.msg, k.dir));
    publish(&k);
    engine_open(&g, tinymodel_write(&spec));
    assert_ok(take(&g, k.dir, 1, 0), &e);
    assert_int_equal(g.versions, 1);
    assert_true(same(g.m.w, k.t.m.w));
    /* in a run that may wait, it is waited for */
    sharedmodel_step(&k.t);
    patience_set(&(struct world){clock_now, goes_on, &old, make_room, NULL}, 30.0);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    rc = k.sync->prepare(k.sync->self, 2, &e);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    patience_set(NULL, 0);
    assert_ok(rc, &e);
    assert_ok(take(&g, k.dir, 2, 0), &e);
    assert_true(same(g.m.w, k.t.m.w));
    engine_close(&g);
    kit_close(&k);
}

/* What the port sends, and the figures of a run. */
static void test_requests(void **state)
{
    struct kit k;
    struct wsync_request r;
    json_t *row = json_object();

    (void)state;
    kit_open(&k, WDELTA_XOR, 10, 0);
    publish(&k);
    assert_ok(k.sync->take(k.sync->self, 0, &r, &e), &e);
    assert_string_equal(r.path, "/update_weights_from_delta");
    assert_string_equal(json_string_value(json_object_get(r.body, "weight_version")), "0");
    assert_true(wdelta_is_hash(json_string_value(json_object_get(r.body, "manifest"))));
    json_decref(r.body);
    assert_int_equal(k.sync->take(k.sync->self, 1, &r, &e), STATUS_NOTFOUND);
    assert_int_equal(k.sync->prepare(k.sync->self, 5, &e), STATUS_FAIL);
    k.sync->report(k.sync->self, row);
    assert_int_equal(json_integer_value(json_object_get(row, "perf/delta_full")), 1);
    assert_true(json_number_value(json_object_get(row, "perf/delta_changed")) == 1.0);
    json_object_clear(row);
    k.sync->report(k.sync->self, row);
    assert_int_equal(json_object_size(row), 0);
    json_decref(row);
    kit_close(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_xor),        cmocka_unit_test(test_overwrite),
        cmocka_unit_test(test_wrong_base), cmocka_unit_test(test_damage),
        cmocka_unit_test(test_doubt),      cmocka_unit_test(test_sums),
        cmocka_unit_test(test_collect),    cmocka_unit_test(test_no_room),
        cmocka_unit_test(test_requests),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
