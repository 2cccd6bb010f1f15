/* Weight sync as the port sees it: requests, folders on disk and their number, and answers that
 * prove something or do not. */
#include "model/sharedmodel.h"

#include <dirent.h>
#include <limits.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/map.h"
#include "base/patience.h"
#include "base/world.h"
#include "model/wsum.h"
#include "rl/port_native.h"
#include "rl/wsync_folder.h"
#include "rl/wsync_shared.h"

static const struct tinymodel_spec spec = {"llama", 1, 2, 64, 2, 1, 32, 64, 40, 64, 0};
static struct err e;

/* What an engine of so many ranks answers that holds w. */
static json_t *answer_ranks(struct weights *w, const struct wsum_opts *opts, int ranks)
{
    json_t *list = json_array();

    for (int i = 0; i < ranks; i++) {
        struct wsum_opts o = *opts;
        json_t *sums = json_object();
        struct map m;
        map_init(&m);
        o.tp_rank = o.tp_size > 1 ? i : 0;
        assert_ok(wsum_take(w, &o, &m, &e), &e);
        for (size_t k = 0; k < m.count; k++) {
            char hex[17];
            snprintf(hex, sizeof hex, "%016llx", (unsigned long long)m.entries[k].value);
            json_object_set_new(sums, m.entries[k].key, json_string(hex));
        }
        map_fini(&m);
        json_array_append_new(list, json_pack("{s:o,s:[{s:i,s:i}]}", "checksums", sums,
                                              "parallelism_info", "tp_rank", o.tp_rank, "tp_size",
                                              o.tp_size > 1 ? o.tp_size : 1));
    }
    return json_pack("{s:b,s:o}", "success", 1, "ranks", list);
}

static json_t *answer(struct weights *w, enum wsum_kind kind, int pad, int ranks)
{
    return answer_ranks(w, &(struct wsum_opts){.kind = kind, .pad = pad}, ranks);
}

static json_t *sums_of(json_t *a, size_t rank)
{
    return json_object_get(json_array_get(json_object_get(a, "ranks"), rank), "checksums");
}

static void refused(const struct wsync *s, int64_t version, json_t *a, const char *why)
{
    memset(&e, 0, sizeof e);
    if (s->judge(s->self, version, 0, a, &e) >= 0 || !strstr(e.msg, why)) {
        fail_msg("\"%s\" says nothing of \"%s\"", e.msg, why);
    }
}

static void judged(const struct wsync *s, struct weights *w, int pad)
{
    json_t *a = answer(w, WSUM_SHA256, pad, 2), *sums = sums_of(a, 1);

    assert_ok(s->judge(s->self, w->version, 0, a, &e), &e);
    json_object_set_new(sums, "model.vision.weight", json_string("00"));
    assert_ok(s->judge(s->self, w->version, 0, a, &e), &e);
    json_object_set_new(sums, "model.layers.1.mlp.gate_up_proj.weight",
                        json_string("0123456789abcdef"));
    refused(s, w->version, a,
            "tensor model.layers.1.mlp.gate_up_proj.weight: the engine's sum is "
            "0123456789abcdef, the trainer's ");
    json_object_del(sums, "model.layers.1.mlp.gate_up_proj.weight");
    refused(s, w->version, a, "gate_up_proj.weight: the engine has none");
    json_decref(a);
    a = json_pack("{s:b,s:s}", "success", 0, "message", "no such thing");
    refused(s, w->version, a, "no such thing");
    json_decref(a);
    a = json_pack("{s:b,s:[{}]}", "success", 1, "ranks");
    refused(s, w->version, a, "no checksums");
    json_decref(a);
    /* ranks with some of the layers each: all of them together have all */
    a = answer(w, WSUM_SHA256, pad, 2);
    json_object_set_new(json_array_get(json_object_get(a, "ranks"), 1), "checksums",
                        json_deep_copy(sums_of(a, 0)));
    for (size_t i = 0; i < 2; i++) {
        json_t *rank = json_array_get(json_object_get(a, "ranks"), i);
        json_object_set_new(rank, "parallelism_info", json_pack("[{s:i}]", "pp_size", 2));
        json_object_del(sums_of(a, i), i ? "model.norm.weight" : "model.embed_tokens.weight");
    }
    assert_ok(s->judge(s->self, w->version, 0, a, &e), &e);
    json_object_del(sums_of(a, 1), "model.embed_tokens.weight");
    refused(s, w->version, a, "model.embed_tokens.weight: no rank of the engine has it");
    json_decref(a);
}

/* An engine that splits its tensors. */
static void judged_split(const struct wsync *s, struct weights *w)
{
    json_t *a = answer_ranks(w, &(struct wsum_opts){.pad = 64, .tp_size = 2}, 2);

    assert_ok(s->judge(s->self, w->version, 0, a, &e), &e);
    json_object_set_new(sums_of(a, 1), "model.layers.0.mlp.down_proj.weight",
                        json_incref(json_object_get(sums_of(a, 0), "model.layers.0.mlp.down_proj."
                                                                   "weight")));
    refused(s, w->version, a, "model.layers.0.mlp.down_proj.weight: the engine's sum is");
    json_decref(a);
}

static void test_shared(void **state)
{
    struct sharedmodel t;
    struct wsync_shared *s;
    const struct wsync *sync;
    struct wsync_request r;
    int64_t bytes = -1, all = 1;
    struct tinymodel plain;
    const char *dir = tinymodel_write(&spec);

    (void)state;
    sharedmodel_open(&t, dir, 1);
    assert_ok(wsync_shared_open(&(struct wsync_shared_opts){.w = t.m.w}, &s, &e), &e);
    assert_int_equal(wsync_shared_fd(s), weights_share_fd(t.m.w));
    sync = wsync_shared_sync(s);
    assert_int_equal(sync->prepare(sync->self, 3, &e), STATUS_FAIL);
    assert_non_null(strstr(e.msg, "version 3 is to be published, the trainer has 0"));
    for (int64_t v = 0; v < 2; v++) {
        assert_ok(sync->prepare(sync->self, v, &e), &e);
        assert_ok(sync->take(sync->self, v, &r, &e), &e);
        assert_string_equal(r.path, "/update_weights_from_shared");
        assert_string_equal(json_string_value(json_object_get(r.body, "weight_version")),
                            v ? "1" : "0");
        json_decref(r.body);
        assert_ok(sync->check(sync->self, v, 0, &r, &e), &e);
        assert_string_equal(r.path, "/weights_checker");
        assert_int_equal(json_unpack(r.body, "{s:{s:I}}", "miles_draw", "bytes", &bytes), 0);
        assert_true(v ? bytes > 0 : bytes == 0); /* the first is whole */
        json_decref(r.body);
        assert_int_equal(sync->check(sync->self, v, 1, &r, &e), STATUS_END);
        judged(sync, t.m.w, 0);
        sync->settled(sync->self, v);
        sharedmodel_step(&t);
    }
    wsync_shared_close(s);
    assert_ok(wsync_shared_open(&(struct wsync_shared_opts){.w = t.m.w, .all = 1}, &s, &e), &e);
    sync = wsync_shared_sync(s);
    for (int64_t v = 2; v < 4; v++) {
        assert_ok(sync->prepare(sync->self, v, &e), &e);
        assert_ok(sync->check(sync->self, v, 0, &r, &e), &e);
        assert_int_equal(json_unpack(r.body, "{s:{s:I}}", "miles_draw", "bytes", &bytes), 0);
        all &= bytes == 0;
        json_decref(r.body);
        sharedmodel_step(&t);
    }
    assert_true(all);
    wsync_shared_close(s);
    wsync_shared_close(NULL);
    sharedmodel_close(&t);
    tinymodel_open(&plain, dir, "cpu", "auto", 1, 1, 0, 1);
    assert_int_equal(wsync_shared_open(&(struct wsync_shared_opts){.w = plain.w}, &s, &e),
                     STATUS_INPUT);
    tinymodel_close(&plain);
}

/* ---- folders ---- */

static int entries(const char *dir)
{
    DIR *d = opendir(dir);
    int n = 0;

    assert_non_null(d);
    while (readdir(d)) {
        n++;
    }
    closedir(d);
    return n - 2;
}

static int stands(const char *dir, const char *name)
{
    char *path = fsio_join(dir, name);
    int is = fsio_is_dir(path);
    mem_free(path);
    return is;
}

static void leftover(const char *dir, const char *name)
{
    char *path = fsio_join(dir, name);
    assert_ok(fsio_mkdirs(path, &e), &e);
    fixture_text(path, "x", "y");
    mem_free(path);
}

struct folder_kit {
    struct sharedmodel t;
    struct port_native p;
    struct wsync_folder *s;
    const struct wsync *sync;
};

static void kit_open(struct folder_kit *k, const char *dir, int keep, int spoil)
{
    struct wsync_folder_opts o = {dir, NULL, NULL, keep, spoil};

    sharedmodel_open(&k->t, tinymodel_write(&spec), 1);
    assert_ok(port_native_open(&k->p, k->t.m.w, NULL, k->t.m.file, NULL, NULL, &e), &e);
    o.w = k->t.m.w;
    o.train = &k->p.train;
    assert_ok(wsync_folder_open(&o, &k->s, &e), &e);
    k->sync = wsync_folder_sync(k->s);
}

static void kit_close(struct folder_kit *k)
{
    wsync_folder_close(k->s);
    port_native_close(&k->p);
    sharedmodel_close(&k->t);
}

/* An engine that reads what the request names holds what the trainer has. */
static void engine_takes(struct folder_kit *k, int64_t version)
{
    struct wsync_request r;
    struct tinymodel m;
    json_t *a;
    char label[24];

    assert_ok(k->sync->take(k->sync->self, version, &r, &e), &e);
    assert_string_equal(r.path, "/update_weights_from_disk");
    snprintf(label, sizeof label, "%lld", (long long)version);
    assert_string_equal(json_string_value(json_object_get(r.body, "weight_version")), label);
    tinymodel_open(&m, json_string_value(json_object_get(r.body, "model_path")), "cpu", "auto", 1,
                   1, 0, 0);
    json_decref(r.body);
    assert_ok(k->sync->check(k->sync->self, version, 0, &r, &e), &e);
    assert_string_equal(r.path, "/weights_checker");
    json_decref(r.body);
    assert_int_equal(k->sync->check(k->sync->self, version, 1, &r, &e), STATUS_END);
    m.w->version = version;
    judged(k->sync, m.w, 64);
    judged_split(k->sync, m.w);
    a = answer(m.w, WSUM_SHA256, 0, 1);
    assert_ok(k->sync->judge(k->sync->self, version, 0, a, &e), &e);
    json_decref(a);
    a = answer(m.w, WSUM_GPU, 64, 1);
    assert_ok(k->sync->judge(k->sync->self, version, 0, a, &e), &e);
    json_decref(a);
    tinymodel_close(&m);
}

static void test_folder(void **state)
{
    char *dir = mem_strdup(fixture_path("a/weights"));
    struct folder_kit k;
    struct wsync_request r;
    struct stat st;

    (void)state;
    leftover(dir, "weights_v3");
    leftover(dir, "weights_v41.tmp");
    leftover(dir, "weights_vx"); /* not ours */
    leftover(dir, "mine");
    kit_open(&k, dir, 2, 1);
    assert_int_equal(entries(dir), 2);
    for (int64_t v = 0; v < 5; v++) {
        assert_ok(k.sync->prepare(k.sync->self, v, &e), &e);
        assert_ok(k.sync->prepare(k.sync->self, v, &e), &e); /* once */
        if (v == 0) {
            assert_ok(k.sync->before(k.sync->self, v, 0, &r, &e), &e);
            assert_string_equal(json_string_value(json_object_get(r.body, "action")),
                                "reset_tensors");
            json_decref(r.body);
        }
        assert_int_equal(k.sync->before(k.sync->self, v, v == 0, &r, &e), STATUS_END);
        engine_takes(&k, v);
        k.sync->settled(k.sync->self, v);
        assert_true(entries(dir) <= 2 + 2);
        assert_int_equal(stands(dir, "weights_v2"), v == 2 || v == 3);
        sharedmodel_step(&k.t);
    }
    engine_takes(&k, 4); /* one that comes back when training has gone on */
    refused(k.sync, 2, NULL, "version 2 is to be proven, and its folder is gone");
    assert_true(wsync_folder_bytes(k.s) > 2 * 2 * weights_count(k.t.m.w));
    assert_int_equal(stat(dir, &st), 0);
    kit_close(&k);
    assert_int_equal(entries(dir), 2); /* nothing of ours stays */
    mem_free(dir);
}

/* A folder that somebody spoils is written again when an engine complains, and not otherwise. */
static void test_damaged(void **state)
{
    char *dir = mem_strdup(fixture_path("c")), path[PATH_MAX];
    struct folder_kit k;
    struct stat before, after;
    FILE *f;

    (void)state;
    kit_open(&k, dir, 1, 0);
    assert_ok(k.sync->prepare(k.sync->self, 0, &e), &e);
    snprintf(path, sizeof path, "%s/weights_v0/model.safetensors", dir);
    assert_int_equal(stat(path, &before), 0);
    k.sync->doubt(k.sync->self, 0);
    assert_int_equal(stat(path, &after), 0);
    assert_true(before.st_ino == after.st_ino); /* it is whole: the engine is to blame */
    for (int round = 0; round < 2; round++) {
        if (round == 0) { /* a byte of the last tensor */
            f = fopen(path, "r+b");
            assert_non_null(f);
            assert_int_equal(fseek(f, -3, SEEK_END), 0);
            assert_int_equal(fputc(0x5a, f), 0x5a);
            fclose(f);
        } else {
            assert_int_equal(truncate(path, before.st_size / 2), 0);
        }
        k.sync->doubt(k.sync->self, 0);
        engine_takes(&k, 0);
        assert_int_equal(entries(dir), 1);
    }
    sharedmodel_step(&k.t); /* the trainer has these weights no more: nothing can be done */
    assert_int_equal(truncate(path, before.st_size / 2), 0);
    k.sync->doubt(k.sync->self, 0);
    assert_int_equal(stat(path, &after), 0);
    assert_int_equal(after.st_size, before.st_size / 2);
    kit_close(&k);
    mem_free(dir);
}

static double time_is;

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

/* A disk that takes no more, and places that cannot be folders. */
static void test_no_room(void **state)
{
    char *dir = mem_strdup(fixture_path("b"));
    struct rlimit old, small;
    struct folder_kit k;
    struct wsync_folder *s;
    struct wsync_folder_opts o = {.dir = "/dev/null/weights"};
    int rc;

    (void)state;
    assert_int_equal(wsync_folder_open(&o, &s, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "/dev/null"));
    kit_open(&k, dir, 1, 0);
    assert_ok(k.sync->prepare(k.sync->self, 0, &e), &e);
    sharedmodel_step(&k.t);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 20000;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    memset(&e, 0, sizeof e);
    rc = k.sync->prepare(k.sync->self, 1, &e);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(rc, STATUS_IO);
    assert_non_null(strstr(e.msg, dir));
    assert_int_equal(entries(dir), 0); /* not half of it, and not the one before */
    assert_ok(k.sync->prepare(k.sync->self, 1, &e), &e);
    engine_takes(&k, 1);
    /* in a run that may wait, it is waited for */
    sharedmodel_step(&k.t);
    patience_set(&(struct world){clock_now, goes_on, &old, make_room, NULL}, 30.0);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    rc = k.sync->prepare(k.sync->self, 2, &e);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    patience_set(NULL, 0);
    assert_ok(rc, &e);
    engine_takes(&k, 2);
    kit_close(&k);
    mem_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared),
        cmocka_unit_test(test_folder),
        cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_no_room),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
