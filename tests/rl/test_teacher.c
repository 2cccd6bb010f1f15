/* A teacher behind HTTP: what it says of samples is told, recorded, and not asked for again. */
#include "fakeport.h"

#include <stdatomic.h>

#include "net/http_req.h"
#include "net/http_server.h"
#include "rl/sample.h"
#include "rl/teacher.h"
#include "run/ledger.h"

static struct err e;

enum { N = 100, K = 2, PROMPT = 3, RESPONSE = 4, FIRST_BATCH = 64 };

/* ---- the server ---- */

static atomic_int asked;
static atomic_int fails_from; /* the k-th question and those behind it are refused; 0: none */

static double says(json_int_t id, size_t at)
{
    return -0.25 * (double)id - 0.5 * (double)at;
}

static json_t *entry(json_int_t id, size_t at)
{
    return json_pack("[f,I,n]", says(id, at), id);
}

/* Of every position: its own token; the two best, which are 7 and 8; those that are asked for. */
static void on_generate(void *arg, struct http_req *r)
{
    size_t len, i;
    const char *body = http_req_body(r, &len);
    json_t *o = json_loadb(body, len, 0, NULL), *id;
    const json_t *want = json_object_get(o, "token_ids_logprob");
    json_t *own = json_array(), *top = json_array(), *ids = json_array(), *all;
    int k = atomic_fetch_add(&asked, 1) + 1, from = atomic_load(&fails_from);
    char *text;

    (void)arg;
    json_array_foreach(json_object_get(o, "input_ids"), i, id)
    {
        json_t *list = json_array();
        size_t c;
        json_t *w;
        json_array_append_new(own, entry(json_integer_value(id), i));
        json_array_append_new(top, json_pack("[o,o]", entry(7, i), entry(8, i)));
        json_array_foreach(want, c, w)
        {
            json_array_append_new(list, entry(json_integer_value(w), i));
        }
        json_array_append_new(ids, list);
    }
    all = json_pack("{s:{s:o,s:o,s:o}}", "meta_info", "input_token_logprobs", own,
                    "input_top_logprobs", top, "input_token_ids_logprobs", ids);
    text = json_dumps(all, JSON_COMPACT);
    if (from && k >= from) {
        http_req_reply(r, 400, "text/plain", "no", 2);
    } else {
        http_req_reply(r, 200, "application/json", text, strlen(text));
    }
    free(text);
    json_decref(all);
    json_decref(o);
}

static struct http_server *server;
static char *url;

static int setup(void **state)
{
    static const struct http_server_route routes[] = {{"POST", "/generate", on_generate, 0}};
    static char text[64];
    struct http_server_opts o = {.routes = routes, .nroutes = 1};

    assert_ok(http_server_start(&server, &o, &e), &e);
    snprintf(text, sizeof text, "default=http://127.0.0.1:%d", http_server_port(server));
    url = text;
    return fakeport_setup(state);
}

static int teardown(void **state)
{
    http_server_free(server);
    return fakeport_teardown(state);
}

/* ---- a run ---- */

static struct sample *samples[N];

static void make_samples(void)
{
    for (int i = 0; i < N; i++) {
        int32_t prompt[PROMPT] = {1, 2, i}, response[RESPONSE] = {i % 9, 4, 5, 6};
        float logps[RESPONSE] = {0};
        samples[i] = sample_new();
        samples[i]->index = i;
        sample_set(samples[i], prompt, PROMPT, response, logps, i == 5 ? 0 : RESPONSE, 0, 1);
    }
}

static void free_samples(void)
{
    for (int i = 0; i < N; i++) {
        sample_free(samples[i]);
    }
}

/* Asks for all in rollout 3, over the ledger `name`; how it ended. asked is how often a server was.
 */
static int ask(const char *name, int closed, float out[N][RESPONSE])
{
    struct ledger_opts o = {.dir = fakeport_path(name), .mode = LEDGER_WAL, .closed = closed};
    struct teacher_opts to = {.urls = &url, .nurls = 1, .key = "teacher", .timeout_s = 20};
    struct ledger *l;
    struct teacher *t;
    float *list[N];
    int rc;

    assert_ok(ledger_open(&o, &l, &e), &e);
    to.journal = ledger_journal(l);
    assert_ok(teacher_open(&to, &t, &e), &e);
    for (int i = 0; i < N; i++) {
        list[i] = out[i];
    }
    atomic_store(&asked, 0);
    memset(out, 0, sizeof(float) * N * RESPONSE);
    teacher_now(t, 3);
    rc = teacher_score(t, samples, N, list, &e);
    teacher_close(t);
    ledger_close(l, NULL);
    return rc;
}

static void expect_scores(float out[N][RESPONSE])
{
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < samples[i]->response_len; k++) {
            float want = (float)says(samples[i]->tokens[PROMPT + k], (size_t)(PROMPT + k));
            assert_true(out[i][k] == want);
        }
    }
}

static void asks_once(void **state)
{
    static float out[N][RESPONSE];
    (void)state;
    make_samples();
    assert_int_equal(ask("none", 0, out), STATUS_OK);
    expect_scores(out);
    assert_int_equal(atomic_load(&asked), N - 1); /* an empty response is no question */
    assert_int_equal(ask("none", 0, out), STATUS_OK);
    expect_scores(out);
    assert_int_equal(atomic_load(&asked), 0);
    assert_int_equal(ask("none", 1, out), STATUS_OK); /* a replay */
    expect_scores(out);
    assert_int_equal(atomic_load(&asked), 0);
    samples[8]->tokens[PROMPT]++; /* another question */
    assert_int_equal(ask("none", 1, out), STATUS_END);
    assert_non_null(strstr(e.msg, "sample 8 in rollout 3"));
    assert_int_equal(ask("none", 0, out), STATUS_OK);
    assert_int_equal(atomic_load(&asked), 1);
    expect_scores(out);
    free_samples();
}

/* The server fails on the way: what it had said before is not asked for again. */
static void goes_on(void **state)
{
    static float out[N][RESPONSE];
    int again;
    (void)state;
    make_samples();
    atomic_store(&fails_from, N - 5);
    assert_int_equal(ask("half", 0, out), STATUS_CHILD);
    assert_non_null(strstr(e.msg, "the server answers 400"));
    atomic_store(&fails_from, 0);
    assert_int_equal(ask("half", 0, out), STATUS_OK);
    again = atomic_load(&asked);
    assert_true(again >= 5 && again <= N - 1 - FIRST_BATCH);
    expect_scores(out);
    free_samples();
}

/* Lists of candidates, both kinds, in one entry. */
static void lists(void **state)
{
    struct ledger_opts o = {.dir = fakeport_path("lists"), .mode = LEDGER_WAL};
    struct teacher_opts to = {.urls = &url, .nurls = 1, .key = "teacher", .timeout_s = 20};
    struct ledger *l;

    (void)state;
    make_samples();
    assert_ok(ledger_open(&o, &l, &e), &e);
    to.journal = ledger_journal(l);
    for (int round = 0; round < 2; round++) {
        int32_t own[RESPONSE * K] = {10, 11, 12, 13, 14, 15, 16, 17}, top[RESPONSE * K] = {0};
        float own_logp[RESPONSE * K] = {0}, top_logp[RESPONSE * K] = {0};
        struct teacher_lists one = {
            .k = K, .own = own, .own_logp = own_logp, .top = top, .top_logp = top_logp};
        struct teacher *t;
        atomic_store(&asked, 0);
        assert_ok(teacher_open(&to, &t, &e), &e);
        teacher_now(t, 0);
        assert_ok(teacher_top(t, samples, 1, &one, &e), &e);
        teacher_close(t);
        assert_int_equal(atomic_load(&asked), round == 0);
        for (int i = 0; i < RESPONSE * K; i++) {
            assert_int_equal(top[i], 7 + i % K);
            assert_true(top_logp[i] == (float)says(7 + i % K, (size_t)(PROMPT + i / K)));
            assert_true(own_logp[i] == (float)says(own[i], (size_t)(PROMPT + i / K)));
        }
    }
    ledger_close(l, NULL);
    free_samples();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(asks_once), cmocka_unit_test(goes_on),
                                       cmocka_unit_test(lists)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
