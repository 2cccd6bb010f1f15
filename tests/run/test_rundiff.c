/* `miles diff` over made-up runs: which step, phase, tensor and element it names, and what it says
 * when the runs did not keep them. */
#include "runkit.h"

#include "base/buf.h"
#include "model/safetensors.h"
#include "rl/dump.h"
#include "rl/sample.h"
#include "run/rundiff.h"

static struct err e;
static char *said;

/* A run of three steps; `odd` is a field that differs in step 1. */
static void run(const char *name, const char *odd, const char *options, int steps)
{
    static const char *const fields[] = {"prompts", "tokens",        "rollout_log_probs",
                                         "rewards", "old_log_probs", "advantages"};
    struct buf b;
    char path[200];
    buf_init(&b, 1 << 20);
    buf_printf(
        &b,
        "{\"format\":\"miles-hashes\",\"version\":1,\"rollout\":0,\"tensors\":[\"t0\",\"t1\","
        "\"m.k_proj.weight\"],\"weights\":[\"%s\",\"2\",\"3\"]}\n",
        strcmp(odd, "start") == 0 ? "9" : "1");
    for (int i = 0; i < steps; i++) {
        buf_printf(&b, "{\"rollout\":%d,\"step\":0,\"samples\":2%s", i,
                   i == 0 ? ",\"gradients\":[\"t0\",\"t1\",\"m.qkv_proj.weight\"]" : "");
        for (int k = 0; k < 6; k++) {
            buf_printf(&b, ",\"%s\":\"%d%s\"", fields[k], i + k,
                       i == 1 && strcmp(odd, fields[k]) == 0 ? "x" : "");
        }
        buf_printf(&b, ",\"gradient\":[\"1\",\"%s\",\"%s\"],\"weights\":[\"4\",\"5\",\"%s\"]}\n",
                   i == 1 && strcmp(odd, "gradient t1") == 0 ? "x" : "2",
                   i == 1 && strcmp(odd, "gradient qkv") == 0 ? "x" : "2",
                   i == 1 && strcmp(odd, "weights") == 0 ? "x" : "6");
    }
    snprintf(path, sizeof path, "%s/hashes.jsonl", name);
    runkit_put(path, b.data);
    buf_fini(&b);
    snprintf(path, sizeof path, "%s/config.json", name);
    runkit_put(path, options);
}

/* Runs the comparison; its output is in `said`, -1 for an error. */
static int diff(const char *a, const char *b, int64_t steps)
{
    struct rundiff_opts o = {runkit_at(a), runkit_at(b), steps};
    FILE *f;
    int rc, equal;
    size_t n;
    free(said);
    said = NULL;
    memset(&e, 0, sizeof e);
    f = open_memstream(&said, &n);
    rc = rundiff_run(&o, f, &equal, &e);
    fclose(f);
    return rc == STATUS_OK ? equal : -1;
}

static void says(const char *what)
{
    if (!strstr(said, what)) {
        fail_msg("'%s' is not in: %s", what, said);
    }
}

static void equal_runs(void **state)
{
    (void)state;
    run("a", "", "{\"options\":{}}", 3);
    run("b", "", "{\"options\":{}}", 3);
    assert_int_equal(diff("a", "b", 0), 1);
    assert_string_equal(said, "equal=1 steps=3\n");
    run("c", "", "{\"options\":{}}", 2);
    assert_int_equal(diff("a", "c", 0), 0);
    says("equal in 2 steps; only ");
    assert_int_equal(diff("a", "c", 2), 1);
    assert_int_equal(diff("a/hashes.jsonl", "b/hashes.jsonl", 0), 1);
}

static void every_phase(void **state)
{
    static const char *const odd[][2] = {
        {"prompts", "data"},    {"tokens", "tokens"},           {"rollout_log_probs", "tokens"},
        {"rewards", "rewards"}, {"old_log_probs", "log_probs"}, {"advantages", "advantages"}};
    char want[100];
    (void)state;
    run("a", "", "{\"options\":{\"lr\":1e-6,\"save\":\"x\"}}", 3);
    for (int i = 0; i < 6; i++) {
        run("b", odd[i][0], "{\"options\":{\"lr\":2e-6,\"save\":\"y\"}}", 3);
        assert_int_equal(diff("a", "b", 0), 0);
        snprintf(want, sizeof want, "equal=0 rollout=1 step=0 phase=%s tensor=- element=-\n",
                 odd[i][1]);
        says(want);
        says("options that differ: lr 1e-6 and 2e-6");
        says(i < 4 ? "--save-debug-rollout-data" : "--debug-determinism");
        assert_int_equal(diff("a", "b", 1), 1);
    }
    run("b", "start", "{}", 3);
    assert_int_equal(diff("a", "b", 0), 0);
    says("before the first step");
    says("equal=0 rollout=0 step=- phase=weights tensor=t0 element=-");
}

static void tensor(const char *dir, const char *file, const char *name, float odd)
{
    struct safetensors_writer *w;
    float v[6] = {1, 2, 3, 4, odd, 6};
    char path[300];
    snprintf(path, sizeof path, "%s/iter_0000001/%s", dir, file);
    runkit_put(path, "");
    assert_ok(safetensors_writer_open(runkit_at(path), &w, &e), &e);
    assert_ok(safetensors_writer_add(w, name, SAFETENSORS_F32, 2, (int64_t[]){2, 3}, &e), &e);
    assert_ok(safetensors_writer_begin(w, &e), &e);
    assert_ok(safetensors_writer_write(w, v, sizeof v, &e), &e);
    assert_ok(safetensors_writer_commit(w, &e), &e);
}

static void elements_of_checkpoints(void **state)
{
    char a[300], b[300];
    (void)state;
    snprintf(a, sizeof a, "{\"options\":{\"save\":\"%s\"}}", runkit_at("ckpt_a"));
    snprintf(b, sizeof b, "{\"options\":{\"save\":\"%s\"}}", runkit_at("ckpt_b"));
    run("a", "", a, 3);
    run("b", "weights", b, 3);
    assert_int_equal(diff("a", "b", 0), 0);
    says("1 of 3 tensors, the first is m.k_proj.weight");
    says("--save DIR --save-interval 1");
    tensor("ckpt_a", "model.safetensors", "m.k_proj.weight", 5);
    tensor("ckpt_b", "model.safetensors", "m.k_proj.weight", 5.5);
    assert_int_equal(diff("a", "b", 0), 0);
    says("m.k_proj.weight [1, 1] is 5 and 5.5; 1 of its 6 values differ");
    says("equal=0 rollout=1 step=0 phase=weights tensor=m.k_proj.weight element=1,1\n");
    /* a gradient goes into the first moment, and a fused one into those of its parts */
    run("b", "gradient qkv", b, 3);
    tensor("ckpt_a", "optim.safetensors", "exp_avg.m.k_proj.weight", 5);
    tensor("ckpt_b", "optim.safetensors", "exp_avg.m.k_proj.weight", -5);
    assert_int_equal(diff("a", "b", 0), 0);
    says("exp_avg.m.k_proj.weight, which the gradient went into, [1, 1] is 5 and -5");
    says("phase=gradient tensor=m.qkv_proj.weight element=1,1");
    run("b", "gradient t1", b, 3);
    assert_int_equal(diff("a", "b", 0), 0);
    says("tensor=t1 element=-");
}

static void dump(const char *name, int32_t token, float logp, double reward, int64_t index)
{
    struct sample *s[2];
    int32_t prompt[2] = {1, 2}, response[3] = {7, 8, 9};
    float logps[3] = {-1, -2, -3};
    for (int i = 0; i < 2; i++) {
        s[i] = sample_new();
        response[1] = i ? token : 8;
        logps[2] = i ? logp : -3;
        sample_set(s[i], prompt, 2, response, logps, 3, 0, 1);
        s[i]->reward = i ? reward : 0;
        s[i]->index = i ? index : 0;
    }
    assert_ok(dump_write(runkit_at(name), 1, s, 2, &e), &e);
    sample_free(s[0]);
    sample_free(s[1]);
}

static void elements_of_dumps(void **state)
{
    char a[300], b[300];
    (void)state;
    snprintf(a, sizeof a, "{\"options\":{\"save_debug_rollout_data\":\"%s/{rollout_id}.jsonl\"}}",
             runkit_at("da"));
    snprintf(b, sizeof b, "{\"options\":{\"dump_details\":\"%s\"}}", runkit_at("db"));
    run("a", "", a, 3);
    dump("da/1.jsonl", 8, -3, 1, 1);
    run("b", "tokens", b, 3);
    dump("db/rollout_data/1.jsonl", 5, -3, 1, 1);
    assert_int_equal(diff("a", "b", 0), 0);
    says("sample 1 (index 1): token 1 of the response is 8 and 5");
    says("phase=tokens tensor=- element=1:1\n");
    run("b", "rollout_log_probs", b, 3);
    dump("db/rollout_data/1.jsonl", 8, -3.5f, 1, 1);
    assert_int_equal(diff("a", "b", 0), 0);
    says("sample 1 (index 1): log-prob 2 is -3 and -3.5");
    run("b", "rewards", b, 3);
    dump("db/rollout_data/1.jsonl", 8, -3, 0.5, 1);
    assert_int_equal(diff("a", "b", 0), 0);
    says("sample 1 (index 1): reward 1 and 0.5");
    run("b", "prompts", b, 3);
    dump("db/rollout_data/1.jsonl", 8, -3, 1, 4);
    assert_int_equal(diff("a", "b", 0), 0);
    says("sample 1: index 1 and 4");
}

static void refusals(void **state)
{
    (void)state;
    run("a", "", "{}", 3);
    assert_int_equal(diff("a", "missing", 0), -1);
    assert_non_null(strstr(e.msg, "missing"));
    runkit_put("bad/hashes.jsonl", "{\"format\":\"else\"}\n");
    assert_int_equal(diff("a", "bad", 0), -1);
    assert_non_null(strstr(e.msg, "line 1: not a miles-hashes file"));
    runkit_put("bad/hashes.jsonl", "");
    assert_int_equal(diff("a", "bad", 0), -1);
    assert_non_null(strstr(e.msg, "came to no step"));
    runkit_put("bad/hashes.jsonl", "{\"format\":\"miles-hashes\",\"version\":1}\nnonsense\n");
    assert_int_equal(diff("bad", "a", 0), 0); /* no tensors */
    runkit_put("bad/hashes.jsonl",
               "{\"format\":\"miles-hashes\",\"version\":1,\"tensors\":[\"t0\",\"t1\","
               "\"m.k_proj.weight\"]}\nnonsense\n");
    assert_int_equal(diff("bad", "a", 0), -1);
    assert_non_null(strstr(e.msg, "line 2"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_runs),
        cmocka_unit_test(every_phase),
        cmocka_unit_test(elements_of_checkpoints),
        cmocka_unit_test(elements_of_dumps),
        cmocka_unit_test(refusals),
    };
    int rc = cmocka_run_group_tests(tests, runkit_setup, runkit_teardown);
    free(said);
    return rc;
}
