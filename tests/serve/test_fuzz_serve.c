/* Spoiled bodies (fuzz/fuzz_body.h) against the server: every request gets an answer that says what
 * it is, 200 or 400 (503 while memory is released or the queue is full), and the server goes on.
 * Many are under way at once. The same bodies every time; MILES_FUZZ_SECONDS and MILES_FUZZ_SEED
 * for more of them. */
#include "serve/servekit.h"

#include "fuzz/fuzz_body.h"

enum { FUZZ_AT_ONCE = 6, FUZZ_ROUNDS = 1500 };

struct fuzz_sent {
    const char *path;
    struct buf body;
    int fd;
};

static struct {
    int ok, bad, busy;
} fuzz_seen;

static void fuzz_read(struct fuzz_sent *x)
{
    struct buf answer;
    int status;

    buf_init(&answer, 256 << 20);
    status = servekit_answer(x->fd, &answer);
    if (status != 200 && status != 400 && status != 503) {
        fail_msg("%s %.*s: %d %.*s", x->path, (int)x->body.len, x->body.data, status,
                 (int)answer.len, answer.data);
    }
    fuzz_seen.ok += status == 200;
    fuzz_seen.bad += status == 400;
    fuzz_seen.busy += status == 503;
    buf_fini(&answer);
    x->fd = -1;
}

static int fuzz_generates(const char *path)
{
    return strcmp(path, "/generate") == 0 || strncmp(path, "/v1/", 4) == 0;
}

/* Some requests at once. Those that pause or release are answered first and undone, so that the
 * others can end. */
static void fuzz_round(const struct servekit *k, uint64_t *s)
{
    struct fuzz_sent sent[FUZZ_AT_ONCE];
    int n = 1 + (int)fuzz_body_below(s, FUZZ_AT_ONCE);

    for (int i = 0; i < n; i++) {
        buf_init(&sent[i].body, FUZZ_BODY_MAX * 2);
        sent[i].path = fuzz_body_make(s, &sent[i].body);
        sent[i].fd = fuzz_body_open(k->port, sent[i].path, &sent[i].body);
        if (fuzz_generates(sent[i].path) && fuzz_body_below(s, 8) == 0) { /* hung up on */
            close(sent[i].fd);
            sent[i].fd = -1;
        }
    }
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < n; i++) {
            if (sent[i].fd >= 0 && fuzz_generates(sent[i].path) == pass) {
                fuzz_read(&sent[i]);
            }
        }
        if (pass == 0) {
            servekit_undo(k);
        }
    }
    for (int i = 0; i < n; i++) {
        buf_fini(&sent[i].body);
    }
}

static void test_spoiled(void **state)
{
    struct api_opts o = {
        .service = {.engine = {.max_running = 8, .max_context = 64, .kv_tokens = 512},
                    .max_queued = 48}};
    const char *seconds = getenv("MILES_FUZZ_SECONDS"), *seed = getenv("MILES_FUZZ_SEED");
    double end = seconds ? proc_now() + atof(seconds) : 0;
    uint64_t s = seed ? strtoull(seed, NULL, 10) : 1;
    struct servekit k;
    int status, rounds = 0;

    (void)state;
    servekit_start(&k, &o);
    for (size_t i = 0; i < FUZZ_BODY_SEEDS; i++) { /* as they are */
        struct fuzz_sent x = {.path = fuzz_body_seeds[i].path};
        buf_init(&x.body, FUZZ_BODY_MAX);
        buf_str(&x.body, fuzz_body_seeds[i].body);
        x.fd = fuzz_body_open(k.port, x.path, &x.body);
        fuzz_read(&x);
        buf_fini(&x.body);
        servekit_undo(&k);
    }
    assert_true(fuzz_seen.ok >= (int)FUZZ_BODY_SEEDS - 2); /* no folder to read weights from */
    while (rounds < FUZZ_ROUNDS || proc_now() < end) {
        fuzz_round(&k, &s);
        rounds++;
    }
    print_message("%d rounds: %d ok, %d bad, %d busy\n", rounds, fuzz_seen.ok, fuzz_seen.bad,
                  fuzz_seen.busy);
    assert_true(fuzz_seen.ok > 500 && fuzz_seen.bad > 1500);
    json_decref(servekit_get(&k, "/health_generate", &status));
    assert_int_equal(status, 200);
    servekit_stop(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_spoiled)};
    return cmocka_run_group_tests(tests, servekit_setup, fixture_teardown);
}
