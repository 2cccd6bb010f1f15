/* A server over the weights of a trainer: what is published is what it samples with, proven by
 * sums; versions that are not there, changes that belong to the trainer and changes under running
 * samples are refused. */
#include "serve/servekit.h"

#include "rl/wsync_shared.h"

static struct servekit kit;
static struct sharedmodel trainer;

static int setup(void **state)
{
    struct api_opts o = {.service = {.engine = {.max_running = 4}, .max_queued = 64}};
    (void)state;
    sharedmodel_open(&trainer, servekit_dir[0], 2);
    servekit_fd = weights_share_fd(trainer.m.w);
    servekit_start(&kit, &o);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    servekit_stop(&kit);
    sharedmodel_close(&trainer);
    return 0;
}

#define ASK                                                                                        \
    "{\"input_ids\":[9,8,7,6],\"return_logprob\":true,\"sampling_params\":{"                       \
    "\"max_new_tokens\":20,\"ignore_eos\":true,\"sampling_seed\":4}}"

static json_t *logps(json_t *o)
{
    return servekit_at(o, "meta_info", "output_token_logprobs");
}

/* What a server says that read the trainer's values from nowhere but its memory: of its own
 * weights, a copy of them. */
static int copied(void *arg, const char *name, uint16_t *dst, int64_t count, struct err *e)
{
    return weights_read_bf16(arg, name, dst, count, e);
}

static json_t *private_answer(void)
{
    struct servekit k;
    struct weights *own;
    struct err e = {0};
    json_t *o;

    servekit_fd = -1;
    servekit_start(&k, NULL);
    own = k.api->m.served.w;
    assert_ok(weights_reload(own, copied, trainer.m.w, &e), &e);
    o = servekit_ok(&k, "/generate", ASK);
    servekit_stop(&k);
    servekit_fd = weights_share_fd(trainer.m.w);
    return o;
}

static json_t *ask_for(const struct wsync_request *r, int *status)
{
    char *text = json_dumps(r->body, 0);
    json_t *o = servekit_post(&kit, r->path, text, status);
    free(text);
    json_decref(r->body);
    return o;
}

/* As the port does it. */
static void publish(const struct wsync *s, int64_t version)
{
    struct wsync_request r;
    struct err e = {0};
    json_t *o;
    int status, k;

    assert_ok(s->prepare(s->self, version, &e), &e);
    assert_ok(s->take(s->self, version, &r, &e), &e);
    o = ask_for(&r, &status);
    assert_int_equal(status, 200);
    assert_true(json_is_true(servekit_at(o, "success", NULL)));
    json_decref(o);
    for (k = 0; s->check(s->self, version, k, &r, &e) == STATUS_OK; k++) {
        o = ask_for(&r, &status);
        assert_int_equal(status, 200);
        assert_ok(s->judge(s->self, version, k, o, &e), &e);
        json_decref(o);
    }
    assert_true(k > 0);
    s->settled(s->self, version);
}

static void test_publish(void **state)
{
    struct wsync_shared_opts so = {.w = trainer.m.w, .bytes = 30000};
    struct wsync_shared *s;
    struct err e = {0};
    json_t *last = NULL;

    (void)state;
    assert_ok(wsync_shared_open(&so, &s, &e), &e);
    for (int i = 0; i < 4; i++) {
        json_t *o, *want;
        char label[24];
        publish(wsync_shared_sync(s), trainer.m.w->version);
        snprintf(label, sizeof label, "%lld", (long long)trainer.m.w->version);
        o = servekit_ok(&kit, "/generate", ASK);
        want = private_answer();
        assert_true(json_equal(logps(o), logps(want)));
        assert_string_equal(servekit_text(o, "meta_info", "weight_version"), label);
        assert_true(!last || !json_equal(logps(o), logps(last)));
        json_decref(want);
        json_decref(last);
        last = o;
        sharedmodel_step(&trainer);
    }
    json_decref(last);
    wsync_shared_close(s);
}

static void refused(const char *path, const char *body, int want, const char *why)
{
    int status;
    json_t *o = servekit_post(&kit, path, body, &status);
    char *text = json_dumps(o, 0);

    if (status != want || !strstr(text, why)) {
        fail_msg("%s %s: %d %s", path, body, status, text);
    }
    free(text);
    json_decref(o);
}

static void test_refused(void **state)
{
    static const char path[] = "/update_weights_from_shared";
    char q[512];

    (void)state;
    snprintf(q, sizeof q, "the shared weights are version %lld, not 999",
             (long long)trainer.m.w->version);
    refused(path, "{\"weight_version\":\"999\"}", 400, q);
    refused(path, "{}", 400, "weight_version");
    refused(path, "{\"weight_version\":\"seven\"}", 400, "weight_version");
    refused(path, "{\"weight_version\":\"-1\"}", 400, "weight_version");
    weights_writing(trainer.m.w, 1);
    refused(path, "{\"weight_version\":\"4\"}", 503, "being written");
    refused("/weights_checker", "{\"action\":\"checksum\"}", 503, "changed");
    weights_writing(trainer.m.w, 0);
    snprintf(q, sizeof q, "{\"model_path\":\"%s\"}", servekit_dir[1]);
    refused("/update_weights_from_disk", q, 400, "--weights-fd");
    refused("/weights_checker", "{\"action\":\"reset_tensors\"}", 400, "--weights-fd");
    refused("/release_memory_occupation", "{\"tags\":[\"weights\"]}", 400, "--weights-fd");
    refused("/weights_checker", "{\"miles_draw\":3}", 400, "miles_draw");
    json_decref(servekit_ok(&kit, "/release_memory_occupation", "")); /* what is its own */
    json_decref(servekit_ok(&kit, "/resume_memory_occupation", ""));
    snprintf(q, sizeof q, "{\"weight_version\":\"%lld\"}", (long long)trainer.m.w->version);
    json_decref(servekit_ok(&kit, path, q));
    json_decref(servekit_ok(&kit, "/generate", ASK));
}

/* A plain server has nobody to follow. */
static void test_plain(void **state)
{
    struct servekit k;
    int status;

    (void)state;
    servekit_fd = -1;
    servekit_start(&k, NULL);
    json_decref(
        servekit_post(&k, "/update_weights_from_shared", "{\"weight_version\":\"1\"}", &status));
    assert_int_equal(status, 400);
    json_decref(servekit_ok(&k, "/generate", ASK));
    servekit_stop(&k);
    servekit_fd = weights_share_fd(trainer.m.w);
}

/* Requests come all the time. Between a pause and a continue the trainer writes; every answer is
 * wholly of the version it names. */
enum { CLIENTS = 3, ROUNDS = 5 };

struct client {
    pthread_t thread;
    atomic_int *stop, *done;
    int answers, wrong;
    json_t *const *want; /* of each version, or NULL */
    int64_t first;
};

static void *client_run(void *arg)
{
    struct client *c = arg;

    while (!atomic_load(c->stop)) {
        int status;
        json_t *o = servekit_post(&kit, "/generate", ASK, &status);
        json_t *versions = json_object_get(json_object_get(o, "meta_info"), "weight_versions");
        if (status == 200 && json_array_size(versions) < 2) {
            int64_t v = atoll(servekit_text(o, "meta_info", "weight_version")) - c->first;
            c->answers++;
            c->wrong += v < 0 || v >= ROUNDS || !json_equal(logps(o), logps(c->want[v]));
        } else {
            c->wrong += status != 200;
        }
        json_decref(o);
        atomic_fetch_add(c->done, 1);
    }
    return NULL;
}

/* Until every client has had an answer that it asked for after this. */
static void wait_for_answers(atomic_int *done)
{
    int want = atomic_load(done) + 2 * CLIENTS;

    for (double end = proc_now() + 120; proc_now() < end && atomic_load(done) < want;) {
        netpeer_sleep(0.01);
    }
    assert_true(atomic_load(done) >= want);
}

static void test_under_load(void **state)
{
    struct wsync_shared_opts so = {.w = trainer.m.w, .bytes = 30000};
    struct wsync_shared *s;
    struct client c[CLIENTS];
    json_t *want[ROUNDS];
    int64_t first = trainer.m.w->version;
    atomic_int stop = 0, done = 0;
    struct err e = {0};
    int answers = 0;

    (void)state;
    assert_ok(wsync_shared_open(&so, &s, &e), &e);
    publish(wsync_shared_sync(s), first);
    want[0] = private_answer();
    for (int i = 0; i < CLIENTS; i++) {
        c[i] = (struct client){.stop = &stop, .done = &done, .want = want, .first = first};
        assert_int_equal(pthread_create(&c[i].thread, NULL, client_run, &c[i]), 0);
    }
    for (int i = 1; i < ROUNDS; i++) {
        wait_for_answers(&done);
        json_decref(servekit_ok(&kit, "/pause_generation", "{\"mode\":\"retract\"}"));
        sharedmodel_step(&trainer);
        want[i] = private_answer();
        publish(wsync_shared_sync(s), first + i);
        json_decref(servekit_ok(&kit, "/continue_generation", "{}"));
    }
    wait_for_answers(&done);
    atomic_store(&stop, 1);
    for (int i = 0; i < CLIENTS; i++) {
        pthread_join(c[i].thread, NULL);
        assert_int_equal(c[i].wrong, 0);
        answers += c[i].answers;
    }
    assert_true(answers > ROUNDS);
    for (int i = 0; i < ROUNDS; i++) {
        json_decref(want[i]);
    }
    wsync_shared_close(s);
}

/* Values that change while nobody paused: what comes later waits for the word that they are right
 * again. */
static void test_held(void **state)
{
    char q[64], some[16];
    json_t *o, *want;
    int fd, status;

    (void)state;
    sharedmodel_step(&trainer);
    fd = servekit_ask(kit.port, "POST", "/generate", ASK);
    netpeer_sleep(0.2);
    assert_int_equal(recv(fd, some, sizeof some, MSG_PEEK | MSG_DONTWAIT), -1);
    json_decref(servekit_ok(&kit, "/flush_cache", "")); /* it is awake */
    assert_int_equal(recv(fd, some, sizeof some, MSG_PEEK | MSG_DONTWAIT), -1);
    snprintf(q, sizeof q, "{\"weight_version\":\"%lld\"}", (long long)trainer.m.w->version);
    json_decref(servekit_ok(&kit, "/update_weights_from_shared", q));
    o = servekit_json(fd, &status);
    assert_int_equal(status, 200);
    want = private_answer();
    assert_true(json_equal(logps(o), logps(want)));
    json_decref(o);
    json_decref(want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_publish, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_plain, setup, teardown),
        cmocka_unit_test_setup_teardown(test_under_load, setup, teardown),
        cmocka_unit_test_setup_teardown(test_held, setup, teardown),
    };
    return cmocka_run_group_tests(tests, servekit_setup, fixture_teardown);
}
