/* Where samples are drawn: what follows from the options, what is refused, and the commands. */
#include "support.h"

#include "base/buf.h"
#include "base/conf.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/thread.h"
#include "cli/known_flags.h"
#include "model/weights.h"
#include "rl/train_opts.h"
#include "run/cmdline.h"
#include "run/engines.h"
#include "run/place.h"
#include "run/secret.h"

static struct train_opts t;
static struct place_opts p;
static struct conf *c;
static struct err e;

static int run(const char *line)
{
    char text[4096], **argv;
    int argc, rc;

    snprintf(text, sizeof text, "--hf-checkpoint /m %s", line);
    argc = support_words(text, &argv);
    conf_free(c);
    memset(&e, 0, sizeof e);
    memset(&p, 0, sizeof p);
    c = conf_new();
    conf_add(c, train_opts_table, &t);
    conf_add(c, place_table, &p);
    conf_add_known(c, known_flags);
    rc = conf_parse(c, argc, argv, &e);
    return rc ? rc : place_resolve(&p, &t, &e);
}

static void refused(const char *line, const char *part)
{
    int rc = run(line);
    if (rc >= 0 || !strstr(e.msg, part)) {
        fail_msg("%s: status %d, message \"%s\" lacks \"%s\"", line, rc, e.msg, part);
    }
}

static void chosen(const char *line, int backend, int engines)
{
    assert_ok(run(line), &e);
    assert_int_equal(p.backend, backend);
    assert_int_equal(p.nengines, engines);
}

static int shares(const char *line)
{
    assert_ok(run(line), &e);
    return engines_use(&p, &t);
}

/* Only engines that always sample with the newest weights can read the trainer's memory. */
static void sharing(void **state)
{
    (void)state;
    assert_int_equal(shares("--rollout-num-gpus 2"), WEIGHTS_SHARED);
    assert_int_equal(shares("--rollout-num-gpus 2 --update-weights-interval 2"), 0);
    assert_int_equal(shares("--rollout-num-gpus 2 --update-weight-transfer-mode disk-delta"), 0);
    assert_int_equal(shares("--rollout-num-gpus 2 --update-weight-transfer-mode p2p"),
                     WEIGHTS_SHARED);
    assert_int_equal(shares("--rollout-num-gpus 2 --rollout-backend sglang"), 0);
    assert_int_equal(shares("--rollout-external --rollout-external-engine-addrs 127.0.0.1:1"), 0);
    assert_int_equal(shares("--rollout-num-gpus 2 --rollout-engines-file f"), 0);
    assert_int_equal(shares("--rollout-num-gpus 2 --control-server-port 9"), WEIGHTS_SHARED);
}

static void backends(void **state)
{
    (void)state;
    chosen("", PLACE_IN_PROCESS, 0);
    chosen("--colocate --rollout-num-gpus 8", PLACE_IN_PROCESS, 0);
    chosen("--rollout-num-gpus 4", PLACE_MILES, 4);
    chosen("--rollout-num-gpus 4 --rollout-num-gpus-per-engine 2", PLACE_MILES, 2);
    chosen("--rollout-num-gpus 4 --rollout-backend in-process", PLACE_IN_PROCESS, 0);
    chosen("--rollout-backend miles", PLACE_MILES, 1);
    chosen("--rollout-backend sglang --rollout-num-gpus-per-engine 8", PLACE_SGLANG, 1);
    chosen("--rollout-external --rollout-external-engine-addrs a:1 b:2", PLACE_SGLANG, 2);
    chosen("--rollout-external --rollout-external-engine-addrs a:1 --rollout-backend miles",
           PLACE_MILES, 1);
    chosen("--use-fault-tolerance --rollout-health-check-interval 5", PLACE_IN_PROCESS, 0);
    chosen("--use-miles-router --router-policy random --sglang-attention-backend fa3",
           PLACE_IN_PROCESS, 0); /* told in the log; SGLang's flags are judged by the caller */
    assert_int_equal(p.sglang.n, 2);
    chosen("--use-fault-tolerance --rollout-health-check-interval 5", PLACE_IN_PROCESS, 0);
    assert_true(p.check_s == 5 && p.check_timeout_s == 30 && p.concurrency == 512);
    assert_int_equal(p.request_s, 14400);
    chosen("--rollout-num-gpus 2 --rollout-threads-per-engine 3", PLACE_MILES, 2);
    assert_int_equal(p.engine_threads, 3);
    chosen("--rollout-num-gpus 60000", PLACE_MILES, 60000);
    assert_int_equal(p.engine_threads, 1);
    chosen("--rollout-external --rollout-engines-file f --rollout-backend miles", PLACE_MILES, 0);
    chosen("--rollout-num-gpus 2 --rollout-engines-file f --control-server-port 9", PLACE_MILES, 2);
    chosen("--colocate --control-server-port 9", PLACE_IN_PROCESS, 0); /* told in the log */
    chosen("--rollout-num-gpus 1", PLACE_MILES, 1);
    assert_int_equal(p.engine_threads, pool_cores());
}

static void refusals(void **state)
{
    (void)state;
    refused("--rollout-num-gpus 5 --rollout-num-gpus-per-engine 2", "is no multiple of");
    refused("--colocate --rollout-backend miles", "choose one");
    refused("--rollout-backend sglang --update-weight-transfer-mode disk-delta",
            "an SGLang server cannot fetch changes");
    refused("--rollout-num-gpus 2 --update-weight-delta-url http://a/b", "disk-delta");
    refused("--rollout-num-gpus 2 --update-weight-transfer-mode disk-delta "
            "--update-weight-delta-url ftp://a/b",
            "is no address");
    refused("--rollout-num-gpus 2 --update-weight-transfer-mode disk-delta "
            "--update-weight-delta-checksum blake3",
            "only xxh3-128");
    refused("--colocate --rollout-external --rollout-external-engine-addrs a:1", "exclude");
    refused("--rollout-backend in-process --rollout-external --rollout-external-engine-addrs a:1",
            "exclude");
    refused("--rollout-external", "needs --rollout-external-engine-addrs");
    refused("--rollout-external-engine-addrs a:1", "needs --rollout-external");
    refused("--rollout-engines-file f", "--rollout-engines-file is for engines in processes of");
    refused("--colocate --rollout-engines-file f", "is for engines in processes of");
    refused("--rollout-external --rollout-external-engine-addrs a", "a has no port");
    refused("--rollout-external --rollout-external-engine-addrs http://a", "has no port");
    refused("--rollout-external --rollout-external-engine-addrs a:1 a:1", "twice");
    refused("--rollout-external --rollout-external-engine-addrs a:1 --rollout-num-gpus 2",
            "are not 1 for each of 1 external engines");
    refused("--rollout-external --rollout-external-engine-addrs a:1 --sglang-dtype x",
            "--sglang-dtype is for servers that are started here");
    refused("--sglang-router-ip 1.2.3.4", "--sglang-router-ip is for engines in processes of");
    refused("--rollout-num-gpus 2 --router-policy random", "--use-miles-router");
    refused("--rollout-num-gpus 2 --sglang-router-policy random", "--use-miles-router");
    refused("--rollout-num-gpus 2 --sglang-router-ip 1.2.3.4", "go together");
    refused("--rollout-num-gpus 2 --sglang-router-port 4", "go together");
    refused("--rollout-num-gpus 2 --use-miles-router --sglang-router-ip h --sglang-router-port 4",
            "choose");
    refused("--rollout-backend sglang --sglang-command x", "--sglang-command: it must use {port}");
    refused("--rollout-backend sglang --sglang-command x'{port}", "quote does not end");
    refused("--sglang-config f", "--sglang-config is known");
    refused("--rollout-backend vllm", "is none of in-process|miles|sglang");
}

static const char *joined(const struct cmdline *w)
{
    static char text[4000];
    size_t n = 0;
    text[0] = 0;
    for (int i = 0; i < w->n; i++) {
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", i ? " " : "", w->v[i]);
    }
    return text;
}

static void words(void **state)
{
    struct place_run r = {64, 300, 3};
    struct cmdline w;
    (void)state;

    assert_ok(run("--rollout-num-gpus 2 --rollout-threads-per-engine 1 --isa avx2 "
                  "--sglang-chunked-prefill-size 128 --sglang-mem-fraction-static 0.5 "
                  "--sglang-api-key K --sglang-server-concurrency 9000"),
              &e);
    assert_ok(place_engine_words(&p, &t, &r, &w, &e), &e);
    assert_string_equal(
        joined(&w),
        "serve --hf-checkpoint /m --threads 1 --device cpu --isa avx2 --numeric-leaves 0 "
        "--request-timeout-s 14400 --drain-timeout-s 5 --sglang-max-queued-requests 9000 "
        "--sglang-context-length 300 --sglang-max-running-requests 64 "
        "--sglang-mem-fraction-static 0.5 --weights-fd 3 --api-key K "
        "--sglang-chunked-prefill-size 128");
    cmdline_fini(&w);
    r = (struct place_run){0, 0, -1};
    assert_ok(run("--rollout-num-gpus 1 --rollout-threads-per-engine 1"), &e);
    assert_ok(place_engine_words(&p, &t, &r, &w, &e), &e);
    assert_string_equal(joined(&w),
                        "serve --hf-checkpoint /m --threads 1 --device cpu --isa auto "
                        "--numeric-leaves 0 --request-timeout-s 14400 --drain-timeout-s 5");
    cmdline_fini(&w);
    assert_ok(run("--rollout-backend sglang --sglang-dtype bfloat16 --sglang-x {\"a\":1} "
                  "--sglang-context-length 99 --sglang-max-running-requests 7"),
              &e);
    assert_ok(place_engine_words(&p, &t, &r, &w, &e), &e);
    assert_non_null(strstr(joined(&w), "python3 -m sglang.launch_server --model-path {model} "));
    assert_non_null(strstr(joined(&w), " --context-length 99 --max-running-requests 7 --dtype "
                                       "bfloat16 --x {{\"a\":1}}"));
    cmdline_fini(&w);
    assert_ok(run("--rollout-num-gpus 2 --use-miles-router --sglang-router-policy random "
                  "--router-queue-size 9 --sglang-api-key K"),
              &e);
    place_router_words(&p, &w);
    assert_string_equal(joined(&w),
                        "router --router-request-timeout-secs 14400 "
                        "--router-health-check-interval-secs 30 --router-policy random --api-key K "
                        "--router-api-key K --router-queue-size 9");
    cmdline_fini(&w);
}

static void expect_router(const char *flags, const char *want)
{
    char line[1000], all[1000];
    struct cmdline w;

    snprintf(line, sizeof line, "--rollout-num-gpus 2 --use-miles-router %s", flags);
    assert_ok(run(line), &e);
    place_router_words(&p, &w);
    snprintf(all, sizeof all,
             "router --router-request-timeout-secs 14400 --router-health-check-interval-secs 30%s",
             want);
    assert_string_equal(joined(&w), all);
    cmdline_fini(&w);
}

/* Requests of a session go to the engine that has its prefix, unless a policy was chosen. */
static void sessions_stay(void **state)
{
    static const char agent[] = "--custom-agent-function-path a.b";
    char line[200];

    (void)state;
    expect_router("", "");
    expect_router(agent, " --router-policy manual --router-assignment-mode min_load");
    expect_router("--use-session-server",
                  " --router-policy manual --router-assignment-mode min_load");
    snprintf(line, sizeof line, "%s --router-assignment-mode random", agent);
    expect_router(line, " --router-policy manual --router-assignment-mode random");
    snprintf(line, sizeof line, "%s --router-policy consistent_hashing", agent);
    expect_router(line, " --router-policy consistent_hashing");
    snprintf(line, sizeof line, "%s --sglang-router-policy cache_aware", agent);
    expect_router(line, " --router-policy cache_aware");
    assert_ok(run("--rollout-num-gpus 1 --sglang-tool-call-parser x --sglang-tool-call-parser y "
                  "--sglang-enable-metrics"),
              &e);
    assert_string_equal(place_sglang_flag(&p, "--sglang-tool-call-parser"), "y");
    assert_null(place_sglang_flag(&p, "--sglang-reasoning-parser"));
    assert_null(place_sglang_flag(&p, "--sglang-enable-metrics"));
}

static void expect_url(int i, const char *want)
{
    char *url = place_url(&p, i);
    if (want) {
        assert_string_equal(url, want);
    } else {
        assert_null(url);
    }
    mem_free(url);
}

static void urls(void **state)
{
    (void)state;
    assert_ok(run("--rollout-external --rollout-external-engine-addrs a:1 https://b:2/ "
                  "--sglang-router-ip ::1 --sglang-router-port 5"),
              &e);
    expect_url(0, "http://a:1");
    expect_url(1, "https://b:2");
    expect_url(-1, "http://[::1]:5");
    assert_ok(run("--rollout-num-gpus 1 --sglang-router-ip 10.0.0.1 --sglang-router-port 5"), &e);
    expect_url(-1, "http://10.0.0.1:5");
    assert_ok(run("--rollout-external --rollout-external-engine-addrs [::1]:65535 http://c:9/d/"),
              &e);
    expect_url(0, "http://[::1]:65535");
    expect_url(1, "http://c:9/d");
    assert_ok(run(""), &e);
    expect_url(-1, NULL);
}

static void no_urls(void **state)
{
    static const char *const none[] = {"",
                                       "a",
                                       ":",
                                       ":1",
                                       "a:",
                                       "a:0",
                                       "a:65536",
                                       "a:-1",
                                       "a:1x",
                                       "a:b",
                                       "a:99999999999",
                                       "a/b:1",
                                       "[::1]",
                                       "http://a",
                                       "http://:80",
                                       "ftp://a:1",
                                       "a:1\nb:2",
                                       "a:1 b:2",
                                       "a:1#there",
                                       "u:p@a:1",
                                       "a[b:1",
                                       "[zz]:1",
                                       "a:1?x=1",
                                       "\ta:1"};
    char far[1200] = {0};
    (void)state;
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        char *url = NULL;
        if (place_engine_url(none[i], &url, &e) != STATUS_INPUT) {
            fail_msg("%s is taken as %s", none[i], url);
        }
    }
    memset(far, 'a', sizeof far - 3);
    memcpy(far + sizeof far - 4, ":1", 2);
    assert_int_equal(place_engine_url(far, &(char *){NULL}, &e), STATUS_INPUT);
}

static void keys_are_hidden(void **state)
{
    json_t *d;
    char *text;
    (void)state;
    assert_ok(run("--rollout-num-gpus 1 --use-miles-router --sglang-api-key SECRET "
                  "--sglang-admin-api-key SECRET --router-api-key SECRET --router-queue-size 9"),
              &e);
    d = conf_dump_json(c);
    secret_hide_named(d);
    text = json_dumps(d, 0);
    assert_null(strstr(text, "SECRET"));
    assert_non_null(strstr(text, "\"--router-queue-size\", \"9\""));
    free(text);
    json_decref(d);
}

/* A name is an option of one table or a known one, never two of them. */
static void tables_agree(void **state)
{
    (void)state;
    for (const struct conf_opt *o = place_table; o->type != CONF_END; o++) {
        assert_non_null(o->doc);
        assert_non_null(o->group);
    }
}

static int cleanup(void **state)
{
    (void)state;
    conf_free(c);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(backends),        cmocka_unit_test(sharing),
        cmocka_unit_test(refusals),        cmocka_unit_test(words),
        cmocka_unit_test(sessions_stay),   cmocka_unit_test(urls),
        cmocka_unit_test(no_urls),         cmocka_unit_test(tables_agree),
        cmocka_unit_test(keys_are_hidden),
    };
    return cmocka_run_group_tests(tests, NULL, cleanup);
}
