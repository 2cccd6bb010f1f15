/* Assertions over metrics: what holds, what breaks, and what is told. */
#include "support.h"

#include <unistd.h>

#include "base/conf.h"
#include "base/metric.h"
#include "base/status.h"
#include "run/metriccheck.h"

static struct metriccheck_opts o;
static struct metriccheck *m;
static struct conf *c;
static struct err e;

static int begin(const char *line)
{
    char **argv;
    int argc = support_words(line, &argv);

    metriccheck_close(m);
    conf_free(c);
    memset(&e, 0, sizeof e);
    c = conf_new();
    conf_add(c, metriccheck_table, &o);
    assert_ok(conf_parse(c, argc, argv, &e), &e);
    return metriccheck_open(&o, &m, &e);
}

static void step(double kl, double diff, double norm, double reward)
{
    json_t *row = json_object();
    metric_put(row, "train/ppo_kl", kl);
    metric_put(row, "train/train_rollout_logprob_abs_diff", diff);
    metric_put(row, "train/grad_norm", norm);
    metric_put(row, "rollout/raw_reward", reward);
    metric_emit(row);
}

static void ends(int status, const char *part)
{
    int rc;
    memset(&e, 0, sizeof e);
    rc = metriccheck_end(m, &e);
    if (rc != status || (part && !strstr(e.msg, part))) {
        fail_msg("status %d, \"%s\" lacks \"%s\"", rc, e.msg, part ? part : "");
    }
}

static void policies(void **state)
{
    (void)state;
    assert_ok(begin(""), &e);
    assert_null(m);
    ends(STATUS_OK, NULL);
    assert_ok(begin("--ci-test"), &e);
    step(0, 0, 1, 0);
    step(0.5, 0, 1, 0); /* later steps may differ from the old policy */
    ends(STATUS_OK, NULL);
    assert_ok(begin("--ci-test"), &e);
    step(1e-6, 0, 1, 0);
    ends(STATUS_FAIL, "train/ppo_kl is 1e-06 in step 0");
    assert_ok(begin("--ci-test --ci-disable-kl-checker"), &e);
    step(1e-6, 0.02, 1, 0);
    ends(STATUS_OK, NULL);
    step(0, 0.04, 1, 0);
    ends(STATUS_FAIL, "abs_diff is 0.04 in step 1");
    assert_ok(begin("--ci-test --ci-disable-logprobs-checker"), &e);
    step(0, 0.04, 1, 0);
    ends(STATUS_OK, NULL);
}

static void reached(void **state)
{
    (void)state;
    assert_int_equal(begin("--ci-metric-checker-key a"), STATUS_INPUT);
    assert_int_equal(begin("--ci-metric-checker-threshold 1"), STATUS_INPUT);
#define KEY "--ci-metric-checker-threshold 0.55 --ci-metric-checker-key "
    assert_ok(begin(KEY "rollout/raw_reward"), &e);
    step(0, 0, 1, 0.5);
    step(0, 0, 1, 0.6);
    step(0, 0, 1, 0.1); /* once is enough */
    ends(STATUS_OK, NULL);
    assert_ok(begin(KEY "rollout/raw_reward"), &e);
    step(0, 0, 1, 0.5);
    ends(STATUS_FAIL, "rollout/raw_reward came to 0.5 at most, not 0.55");
    assert_ok(begin(KEY "eval/none"), &e);
    step(0, 0, 1, 0.5);
    ends(STATUS_FAIL, "no metric eval/none was reported");
#undef KEY
}

static void norms(void **state)
{
    char path[] = "/tmp/test_metriccheck.XXXXXX", line[128];
    int fd = mkstemp(path);
    (void)state;
    assert_true(fd >= 0);
    close(fd);
    snprintf(line, sizeof line, "--ci-save-grad-norm %s", path);
    assert_ok(begin(line), &e);
    step(0, 0, 1.0, 0);
    step(0, 0, 2.0, 0);
    ends(STATUS_OK, NULL);
    snprintf(line, sizeof line, "--ci-load-grad-norm %s", path);
    assert_ok(begin(line), &e);
    step(0, 0, 1.02, 0);
    step(0, 0, 1.95, 0);
    ends(STATUS_OK, NULL);
    step(0, 0, 1, 0);
    ends(STATUS_FAIL, "has no such step");
    assert_ok(begin(line), &e);
    step(0, 0, 1.04, 0);
    ends(STATUS_FAIL, "train/grad_norm is 1.04 in step 0: --ci-load-grad-norm has 1");
    unlink(path);
    assert_true(begin(line) < 0);
}

static int cleanup(void **state)
{
    (void)state;
    metriccheck_close(m);
    conf_free(c);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(policies), cmocka_unit_test(reached),
                                       cmocka_unit_test(norms)};
    return cmocka_run_group_tests(tests, NULL, cleanup);
}
