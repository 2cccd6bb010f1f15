/* One suite over every rollout port: in-process, `miles serve` over HTTP, SGLang over HTTP.
 *
 *     test_port_conform                          in-process and a server in this process, tiny
 * model test_port_conform KIND URL MODEL [KEY]     KIND miles or sglang at URL, serving the folder
 *                                                MODEL, beside the engine in this process
 *
 * A server of ours must give the bits of the engine in-process. Ends with
 * port_checks=N failed=M equal_samples=K. */
#include "serve/servekit.h"

#include "base/log.h"
#include "base/rng.h"
#include "rl/port_http.h"
#include "rl/port_native.h"

enum { MAX_NEW = 200, KEPT = 4096 };
enum kind { IN_PROCESS, MILES, SGLANG };

static const double patience = 600.0; /* seconds for anything; a busy machine takes long */

static const char *arg_kind, *arg_url, *arg_model, *arg_key;
static int checks, failed, equal_samples;

struct kept {
    int64_t name; /* of the question, the group and the sample */
    int n, finish;
    int32_t tokens[MAX_NEW];
    float logps[MAX_NEW];
};

static struct kept kept[KEPT];
static int nkept, comparing;

struct side {
    enum kind kind;
    const struct rollout_port *r;
    int64_t version; /* that answers must have; -1: whatever */
    int question;    /* counts, to name what is kept */
    int vocab;
};

#define CHECK(s, name, ok, ...)                                                                    \
    do {                                                                                           \
        checks++;                                                                                  \
        if (!(ok)) {                                                                               \
            failed++;                                                                              \
            fprintf(stderr, "FAILED %s: %s: ",                                                     \
                    (s)->kind == IN_PROCESS ? "in-process"                                         \
                    : (s)->kind == MILES    ? "miles"                                              \
                                            : "sglang",                                               \
                    name);                                                                         \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fprintf(stderr, "\n");                                                                 \
        }                                                                                          \
    } while (0)

/* ---- asking ---- */

static int32_t ids[2][8];

static struct port_group ask(const struct side *s, int64_t id, int n, int max_new)
{
    struct port_group g = {.id = id,
                           .tokens = ids[id % 2],
                           .ntokens = 4 + (int)(id % 3),
                           .n = n,
                           .max_new = max_new,
                           .temperature = 1.0f,
                           .top_p = 1.0f,
                           .top_k = -1,
                           .seed = 17,
                           .stream = RNG_TRAIN,
                           .sample = 1000 * s->question + 100 * id};
    return g;
}

static void submit(const struct side *s, const struct port_group *g)
{
    struct err e = {0};
    assert_ok(s->r->submit(s->r->self, g, &e), &e);
}

struct got {
    int answers, aborted, stopped, tokens, bad, versions;
    struct kept last[16]; /* by group * 4 + sample, of small questions */
};

static void keep(const struct side *s, const struct port_answer *a, struct got *g)
{
    struct kept k = {.name = (int64_t)s->question << 32 | a->group << 8 | a->sample,
                     .n = a->ntokens,
                     .finish = (int)a->finish};
    int at = (int)(a->group * 4 + a->sample);

    assert_true(a->ntokens <= MAX_NEW || a->finish == PORT_ABORT);
    for (int i = 0; i < a->ntokens && i < MAX_NEW; i++) {
        k.tokens[i] = a->tokens[i];
        k.logps[i] = a->logps[i];
    }
    if (a->sample < 4 && at < 16) {
        g->last[at] = k;
    }
    if (a->finish == PORT_ABORT || s->kind == SGLANG || s->question == 9 || s->question == 10) {
        return; /* of what is aborted it is chance how far it came */
    }
    if (!comparing) {
        assert_true(nkept < KEPT);
        kept[nkept++] = k;
        return;
    }
    for (int i = 0; i < nkept; i++) {
        if (kept[i].name == k.name) {
            CHECK(s, "bits", memcmp(&kept[i], &k, sizeof k) == 0,
                  "question %d group %lld sample %d: %d and %d tokens", s->question,
                  (long long)a->group, a->sample, kept[i].n, k.n);
            equal_samples++;
            return;
        }
    }
    CHECK(s, "bits", 0, "question %d group %lld sample %d has no counterpart", s->question,
          (long long)a->group, a->sample);
}

static void look(const struct side *s, const struct port_answer *a, struct got *g)
{
    g->answers++;
    g->aborted += a->finish == PORT_ABORT;
    g->stopped += a->finish == PORT_STOP;
    g->tokens += a->ntokens;
    for (int i = 0; i < a->ntokens; i++) {
        g->bad += !isfinite(a->logps[i]) || a->logps[i] > 1e-4f || a->tokens[i] < 0 ||
                  a->tokens[i] >= s->vocab;
    }
    g->versions += s->version >= 0 && a->ntokens && a->version != s->version;
    keep(s, a, g);
}

/* Polls for at most `seconds`, or until nothing runs (1). */
static int drain(const struct side *s, double seconds, struct got *g)
{
    double end = proc_now() + seconds;
    struct port_answer a;
    struct err e = {0};
    int rc;

    while ((rc = s->r->poll(s->r->self, &a, &e)) != STATUS_END) {
        if (rc < 0) {
            fail_msg("poll: %s", e.msg);
        }
        if (rc == STATUS_OK) {
            look(s, &a, g);
        } else if (proc_now() > end) {
            return 0;
        }
    }
    return 1;
}

static int control(const struct side *s, enum port_control what)
{
    double end = proc_now() + patience;
    struct err e = {0};
    int rc;
    while ((rc = s->r->control(s->r->self, what, &e)) == STATUS_AGAIN && proc_now() < end) {
    }
    if (rc != STATUS_OK) {
        fprintf(stderr, "control %d: %s\n", (int)what, e.msg);
    }
    return rc;
}

static void publish(struct side *s, int64_t version)
{
    double end = proc_now() + patience;
    struct err e = {0};
    int rc = STATUS_OK;

    if (!s->r->publish) {
        return;
    }
    while ((rc = s->r->publish(s->r->self, version, &e)) == STATUS_AGAIN && proc_now() < end) {
    }
    CHECK(s, "publish", rc == STATUS_OK, "version %lld: %s", (long long)version, e.msg);
    s->version = version;
}

/* ---- the suite ---- */

static void check_sampling(struct side *s)
{
    struct got g = {0};

    s->question = 1;
    for (int i = 0; i < 3; i++) {
        struct port_group q = ask(s, i, 4, 12);
        submit(s, &q);
    }
    CHECK(s, "sampling.ends", drain(s, patience, &g), "%d of 12 answers", g.answers);
    CHECK(s, "sampling.all", g.answers == 12 && !g.aborted, "%d answers, %d aborted", g.answers,
          g.aborted);
    CHECK(s, "sampling.logps", !g.bad, "%d tokens without a log-prob", g.bad);
    CHECK(s, "sampling.version", !g.versions, "%d answers of other versions", g.versions);
    for (int i = 0; i < 12; i++) {
        CHECK(s, "sampling.length",
              g.last[i].n >= 1 && g.last[i].n <= 12 &&
                  (g.last[i].finish != PORT_LENGTH || g.last[i].n == 12),
              "%d tokens, finish %d", g.last[i].n, g.last[i].finish);
    }
    CHECK(s, "sampling.differ",
          memcmp(g.last[0].tokens, g.last[1].tokens, sizeof g.last[0].tokens) != 0 ||
              memcmp(g.last[0].tokens, g.last[2].tokens, sizeof g.last[0].tokens) != 0,
          "samples of one prompt are all the same");
}

static void check_max_new(struct side *s)
{
    struct port_group q;
    struct got g = {0};

    s->question = 2;
    q = ask(s, 0, 4, 1);
    submit(s, &q);
    drain(s, patience, &g);
    CHECK(s, "max_new", g.answers == 4 && g.tokens == 4, "%d answers, %d tokens", g.answers,
          g.tokens);
    memset(&g, 0, sizeof g);
    s->question = 3;
    q = ask(s, 1, 4, 40);
    q.ignore_eos = 1;
    q.nstop = 1;
    q.stop[0] = g.last[4].tokens[0];
    submit(s, &q);
    drain(s, patience, &g);
    CHECK(s, "ignore_eos", g.answers == 4 && g.tokens == 160 && !g.stopped,
          "%d answers, %d tokens, %d stopped", g.answers, g.tokens, g.stopped);
}

static void check_stop(struct side *s)
{
    struct port_group q;
    struct got g = {0}, h = {0};
    const struct kept *a = &g.last[0], *b = &h.last[0];
    int at = 0;

    s->question = 4;
    q = ask(s, 0, 1, 16);
    q.temperature = 0.0f;
    q.ignore_eos = 1;
    submit(s, &q);
    drain(s, patience, &g);
    q.ignore_eos = 0;
    q.nstop = 2;
    q.stop[0] = s->vocab - 1;
    q.stop[1] = a->tokens[6];
    while (a->tokens[at] != q.stop[1] && a->tokens[at] != q.stop[0]) {
        at++;
    }
    s->question = 5;
    submit(s, &q);
    drain(s, patience, &h);
    CHECK(s, "stop.token", b->finish == PORT_STOP && b->n <= at + 1 && b->n >= 1,
          "finish %d after %d tokens, not %d", b->finish, b->n, at + 1);
    CHECK(s, "stop.same", memcmp(a->tokens, b->tokens, sizeof(int32_t) * (size_t)b->n) == 0,
          "other tokens before the stop token");
}

/* The same key again, and another. */
static void check_keys(struct side *s)
{
    struct got g = {0}, h = {0};
    struct port_group q;

    s->question = 6;
    q = ask(s, 0, 4, 12);
    submit(s, &q);
    drain(s, patience, &g);
    s->question = 7;
    q.n = 2;
    q.sample += 2; /* the last two of the four */
    submit(s, &q);
    drain(s, patience, &h);
    if (s->kind != SGLANG) {
        CHECK(s, "keys.same",
              memcmp(g.last[2].tokens, h.last[0].tokens, sizeof h.last[0].tokens) == 0 &&
                  memcmp(g.last[3].logps, h.last[1].logps, sizeof h.last[1].logps) == 0,
              "a key gives other tokens the second time");
        memset(&h, 0, sizeof h);
        s->question = 8;
        q.stream = RNG_EVAL;
        submit(s, &q);
        drain(s, patience, &h);
        CHECK(s, "keys.stream",
              memcmp(g.last[2].tokens, h.last[0].tokens, sizeof h.last[0].tokens) != 0,
              "training and evaluation draw the same numbers");
    }
}

/* A sample that was cut after three tokens goes on as if it had not been. */
static void check_goes_on(struct side *s)
{
    struct got g = {0}, h = {0};
    int32_t longer[16];
    struct port_group q;

    if (s->kind == SGLANG) {
        return;
    }
    s->question = 90;
    q = ask(s, 0, 4, 12);
    q.ignore_eos = 1;
    submit(s, &q);
    drain(s, patience, &g);
    s->question = 91;
    memcpy(longer, q.tokens, sizeof(int32_t) * (size_t)q.ntokens);
    memcpy(longer + q.ntokens, g.last[2].tokens, 3 * sizeof(int32_t));
    q.tokens = longer;
    q.ntokens += 3;
    q.position = 3;
    q.max_new -= 3;
    q.n = 1;
    q.sample += 2;
    submit(s, &q);
    drain(s, patience, &h);
    CHECK(s, "goes_on",
          h.last[0].n == 9 &&
              memcmp(g.last[2].tokens + 3, h.last[0].tokens, 9 * sizeof(int32_t)) == 0 &&
              memcmp(g.last[2].logps + 3, h.last[0].logps, 9 * sizeof(float)) == 0,
          "other tokens or log-probs behind the cut");
    CHECK(s, "progress", !s->r->progress || s->r->progress(s->r->self, 0, 0) <= 0,
          "a sample that is gone has tokens");
}

static void check_abort(struct side *s)
{
    struct got g = {0};
    struct port_group q;
    int n = s->kind == SGLANG ? 2 : 32;
    int rest = s->kind != SGLANG; /* a fast engine would be done before: it pauses meanwhile */

    CHECK(s, "abort.pause", !rest || control(s, PORT_PAUSE) == STATUS_OK, "refused");
    s->question = 9;
    for (int i = 0; i < 3; i++) {
        q = ask(s, i, i == 1 ? 2 : n, i == 1 ? 16 : 200);
        q.ignore_eos = 1;
        submit(s, &q);
    }
    drain(s, s->kind == SGLANG ? 2.0 : 0.0, &g);
    s->r->abort(s->r->self, 0);
    s->r->abort(s->r->self, 2);
    CHECK(s, "abort.continue", !rest || control(s, PORT_CONTINUE) == STATUS_OK, "refused");
    CHECK(s, "abort.ends", drain(s, patience, &g), "%d of %d answers", g.answers, 2 * n + 2);
    CHECK(s, "abort.group", g.answers == 2 * n + 2 && g.aborted > n, "%d answers, %d aborted",
          g.answers, g.aborted);
    CHECK(s, "abort.others", g.last[4].n == 16 && g.last[5].n == 16, "%d and %d tokens",
          g.last[4].n, g.last[5].n);
    memset(&g, 0, sizeof g);
    CHECK(s, "abort.pause", !rest || control(s, PORT_PAUSE) == STATUS_OK, "refused");
    s->question = 10;
    for (int i = 0; i < 3; i++) {
        q = ask(s, i, n, 200);
        q.ignore_eos = 1;
        submit(s, &q);
    }
    drain(s, 0.0, &g);
    s->r->abort(s->r->self, -1);
    CHECK(s, "abort.continue", !rest || control(s, PORT_CONTINUE) == STATUS_OK, "refused");
    CHECK(s, "abort.all", drain(s, patience, &g) && g.answers == 3 * n && g.aborted > n,
          "%d answers, %d aborted", g.answers, g.aborted);
    s->r->abort(s->r->self, 5); /* nobody there */
    memset(&g, 0, sizeof g);
    s->question = 11;
    q = ask(s, 0, 2, 8);
    submit(s, &q);
    CHECK(s, "abort.after", drain(s, patience, &g) && g.answers == 2 && !g.aborted,
          "%d answers, %d aborted", g.answers, g.aborted);
}

static void check_pause(struct side *s, int64_t version)
{
    struct got g = {0};
    struct port_group q;
    int before, max_new = s->kind == SGLANG ? 24 : 60;

    s->question = 12;
    for (int i = 0; i < 2; i++) {
        q = ask(s, i, 2, max_new);
        q.ignore_eos = 1;
        submit(s, &q);
    }
    drain(s, s->kind == SGLANG ? 1.0 : 0.0, &g);
    CHECK(s, "pause", control(s, PORT_PAUSE) == STATUS_OK, "refused");
    drain(s, 0.3, &g);
    before = g.answers;
    drain(s, 0.5, &g);
    CHECK(s, "pause.rests", g.answers == before, "%d answers came while paused",
          g.answers - before);
    publish(s, version);
    CHECK(s, "continue", control(s, PORT_CONTINUE) == STATUS_OK, "refused");
    CHECK(s, "continue.ends", drain(s, patience, &g) && g.answers == 4, "%d of 4", g.answers);
    CHECK(s, "continue.whole", g.tokens == 4 * max_new && !g.bad && !g.aborted, "%d tokens",
          g.tokens);
}

static void check_release(struct side *s)
{
    struct got g = {0};
    struct port_group q;

    CHECK(s, "release", control(s, PORT_RELEASE) == STATUS_OK, "refused");
    CHECK(s, "restore", control(s, PORT_RESTORE) == STATUS_OK, "refused");
    s->question = 13;
    q = ask(s, 0, 2, 8);
    submit(s, &q);
    CHECK(s, "restore.works", drain(s, patience, &g) && g.answers == 2 && !g.bad, "%d answers",
          g.answers);
}

static void check_many(struct side *s)
{
    int groups = s->kind == SGLANG ? 24 : 80, n = s->kind == SGLANG ? 2 : 4;
    struct got g = {0};

    s->question = 14;
    for (int i = 0; i < groups; i++) {
        struct port_group q = ask(s, i, n, 8);
        submit(s, &q);
    }
    CHECK(s, "many", drain(s, patience, &g) && g.answers == groups * n, "%d of %d answers",
          g.answers, groups * n);
    CHECK(s, "many.logps", !g.bad && !g.aborted && !g.versions, "%d bad, %d aborted, %d versions",
          g.bad, g.aborted, g.versions);
}

/* A prompt that never fits is refused, by submit or by poll, and not waited for. Last: a port may
 * end with it. */
static void check_too_long(struct side *s)
{
    int n = 1 << 17, rc;
    int32_t *prompt = mem_alloc(sizeof *prompt * (size_t)n);
    struct port_group q = ask(s, 0, 1, 8);
    struct port_answer a;
    struct err e = {0};
    double end = proc_now() + patience;

    for (int i = 0; i < n; i++) {
        prompt[i] = 3;
    }
    q.tokens = prompt;
    q.ntokens = n;
    rc = s->r->submit(s->r->self, &q, &e);
    while (rc >= 0 && proc_now() < end) {
        rc = s->r->poll(s->r->self, &a, &e);
        if (rc == STATUS_OK || rc == STATUS_END) {
            break;
        }
    }
    CHECK(s, "too_long", rc == STATUS_INPUT && e.msg[0], "status %d: %s", rc, e.msg);
    mem_free(prompt);
}

static void suite(struct side *s)
{
    s->version = s->r->publish ? -1 : 0;
    publish(s, 1);
    check_sampling(s);
    check_max_new(s);
    check_stop(s);
    check_keys(s);
    check_goes_on(s);
    check_abort(s);
    check_pause(s, 2);
    if (s->kind != SGLANG) { /* without a GPU that ends SGLang's scheduler */
        check_release(s);
    }
    check_many(s);
    publish(s, 3);
    check_max_new(s);
    if (s->r->report) {
        json_t *row = json_object();
        s->r->report(s->r->self, row);
        CHECK(s, "report",
              json_integer_value(json_object_get(row, "rollout/engine_requests")) > 0 &&
                  json_integer_value(json_object_get(row, "rollout/engines_lost")) == 0 &&
                  json_integer_value(json_object_get(row, "rollout/wrong_version_answers")) == 0,
              "its figures");
        json_decref(row);
    }
    check_too_long(s);
}

/* ---- the ports ---- */

/* Nothing but the name of the version is sent; every answer tells it. */
static int label_prepare(void *self, int64_t version, struct err *e)
{
    (void)self;
    (void)version;
    (void)e;
    return STATUS_OK;
}

static int label_take(void *self, int64_t version, struct wsync_request *r, struct err *e)
{
    (void)self;
    (void)e;
    snprintf(r->path, sizeof r->path, "/update_weight_version");
    r->body = json_pack("{s:o,s:b}", "new_version", json_sprintf("%lld", (long long)version),
                        "abort_all_requests", 0);
    return STATUS_OK;
}

static void label_settled(void *self, int64_t version)
{
    (void)self;
    (void)version;
}

static const struct wsync label = {
    .prepare = label_prepare, .take = label_take, .settled = label_settled};

static void run_native(const char *dir, int leaves)
{
    struct tinymodel m;
    struct port_native p;
    struct engine_opts eo = {.max_running = 32, .max_context = 0, .kv_tokens = 65536};
    struct err e = {0};
    struct side s = {.kind = IN_PROCESS};

    tinymodel_open(&m, dir, "cpu", "auto", 2, leaves, 0, 0);
    assert_ok(port_native_open(&p, m.w, NULL, m.file, &eo, NULL, &e), &e);
    s.r = &p.rollout;
    s.vocab = m.w->arch.vocab;
    comparing = 0;
    suite(&s);
    port_native_close(&p);
    tinymodel_close(&m);
}

static void run_http(enum kind kind, const char *url, const char *key, int vocab)
{
    struct port_http_opts o = {.kind = kind == MILES ? PORT_HTTP_MILES : PORT_HTTP_SGLANG,
                               .nengines = 1,
                               .urls = &url,
                               .api_key = key,
                               .sync = &label,
                               .check_s = 2.0};
    struct port_http *p;
    struct err e = {0};
    struct side s = {.kind = kind, .vocab = vocab};
    int rc;

    assert_ok(port_http_open(&o, &p, &e), &e);
    while ((rc = port_http_start(p, &e)) == STATUS_AGAIN) {
    }
    assert_ok(rc, &e);
    s.r = port_http_port(p);
    comparing = 1;
    suite(&s);
    port_http_close(p);
}

static void test_ports(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < 8; i++) {
            ids[k][i] = 5 + 11 * k + 7 * i;
        }
    }
    if (arg_kind) {
        struct wfile *f;
        struct err e = {0};
        int vocab;
        assert_ok(wfile_open(arg_model, &f, &e), &e);
        vocab = wfile_arch(f)->vocab;
        wfile_close(f);
        run_native(arg_model, 0);
        run_http(strcmp(arg_kind, "miles") == 0 ? MILES : SGLANG, arg_url, arg_key, vocab);
    } else {
        struct api_opts o = {.service = {.engine = {.max_running = 8, .chunk = 48}}};
        struct servekit k;
        char url[64];
        run_native(servekit_dir[0], 2);
        servekit_start(&k, &o);
        snprintf(url, sizeof url, "http://127.0.0.1:%d", k.port);
        run_http(MILES, url, NULL, SERVEKIT_VOCAB);
        servekit_stop(&k);
    }
    printf("port_checks=%d failed=%d equal_samples=%d\n", checks, failed, equal_samples);
    assert_int_equal(failed, 0);
    assert_true(checks > 50);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ports)};

    if (argc != 1 && (argc < 4 || argc > 5)) {
        fprintf(stderr, "usage: test_port_conform [miles|sglang URL MODEL [KEY]]\n");
        return 2;
    }
    arg_kind = argc > 3 ? argv[1] : NULL;
    arg_url = argc > 3 ? argv[2] : NULL;
    arg_model = argc > 3 ? argv[3] : NULL;
    arg_key = argc > 4 ? argv[4] : NULL;
    log_set_level(LOG_WARN);
    return cmocka_run_group_tests(tests, servekit_setup, fixture_teardown);
}
