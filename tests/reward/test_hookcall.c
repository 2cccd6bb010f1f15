/* Calls of hooks: Python functions, shared objects, services. */
#include "support.h"

#include <unistd.h>

#include "base/fsio.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "reward/hookcall.h"

static char dir[] = "/tmp/miles_hookcall_XXXXXX";
static const char functions[] =
    "import time\n"
    "from miles.utils.types import Sample\n"
    "from miles.rollout.filter_hub.base_types import DynamicFilterOutput\n"
    "def keep(args, samples):\n"
    "    assert isinstance(samples[0], Sample)\n"
    "    return DynamicFilterOutput(samples[0].reward > args.limit, 'low')\n"
    "def plain(args, samples):\n"
    "    return samples[0].reward > args.limit\n"
    "def wrong(args, samples):\n"
    "    return 'yes'\n"
    "def inner():\n"
    "    raise ValueError('no luck')\n"
    "def boom(args, samples):\n"
    "    inner()\n"
    "def slow(args, samples):\n"
    "    time.sleep(60)\n"
    "def one(args):\n"
    "    pass\n"
    "number = 3\n"
    "def pop(args, rollout_id, buffer, n):\n"
    "    return [buffer.pop() for _ in range(n)]\n"
    "def foreign(args, rollout_id, buffer, n):\n"
    "    return [[Sample()]]\n"
    "def ask(args, samples, data_source):\n"
    "    g = data_source.get_samples(2)\n"
    "    assert g[1][0].prompt == 'from outside', g\n"
    "    data_source.add_samples(g)\n"
    "    try:\n"
    "        data_source.get_buffer_length()\n"
    "    except RuntimeError as e:\n"
    "        assert 'empty' in str(e), e\n"
    "    else:\n"
    "        assert False\n"
    "async def generate(args, sample, sampling_params):\n"
    "    import asyncio\n"
    "    await asyncio.sleep(0.2)\n"
    "    sample.append_response([7, 8], 'x', [-1.0, -2.0])\n"
    "    sample.append_response([9], trained=False)\n"
    "    return [sample, sample]\n"
    "def bad_lengths(args, sample, sampling_params):\n"
    "    sample.response_length = 2\n"
    "    sample.loss_mask = [1]\n"
    "    sample.tokens = [1, 2, 3]\n"
    "    return sample\n"
    "class Source:\n"
    "    def __init__(self, args):\n"
    "        self.n = 0\n"
    "    def get_samples(self, n):\n"
    "        self.n += n\n"
    "        return [[Sample(index=self.n)] for _ in range(n)]\n"
    "    def save(self, rollout_id):\n"
    "        return {'n': self.n}\n";

static int setup(void **state)
{
    char *path;
    int rc;
    (void)state;
    log_set_level(LOG_ERROR);
    if (!mkdtemp(dir)) {
        return -1;
    }
    path = fsio_join(dir, "fns.py");
    rc = fsio_write_atomic(path, functions, sizeof functions - 1, NULL);
    mem_free(path);
    return rc;
}

static int teardown(void **state)
{
    (void)state;
    return fsio_remove_tree(dir, NULL);
}

static int open_fn(const char *flag, const char *fn, double timeout_s, struct hookcall **out,
                   struct err *e)
{
    char path[512];
    json_t *args = json_pack("{s:f}", "limit", 0.5);
    struct hookcall_opts o = {.flag = flag, .path = path, .args = args, .timeout_s = timeout_s};
    int rc;
    snprintf(path, sizeof path, strchr(fn, '/') ? "%.0s%s" : "%s/fns.py:%s", dir, fn);
    rc = hookcall_open(&o, out, e);
    json_decref(args);
    return rc;
}

static json_t *sample(double reward)
{
    return json_pack("{s:s,s:f,s:s,s:[i,i],s:s,s:i}", "prompt", "q", "reward", reward, "status",
                     "completed", "tokens", 1, 2, "response", "a1b2", "response_length", 0);
}

static json_t *run(struct hookcall *h, json_t *argv, struct err *e)
{
    json_t *out = NULL;
    int rc = hookcall_run(h, argv, &out, e);
    json_decref(argv);
    return rc == STATUS_OK ? out : NULL;
}

static void filters(void **state)
{
    static const char *const fns[] = {"keep", "plain"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct hookcall *h = NULL;
        struct err e = {0};
        json_t *out;
        assert_int_equal(open_fn("dynamic-sampling-filter-path", fns[i], 0, &h, &e), 0);
        out = run(h, json_pack("[[o]]", sample(1.0)), &e);
        assert_true(json_is_true(json_object_get(out, "keep")));
        json_decref(out);
        out = run(h, json_pack("[[o]]", sample(0.0)), &e);
        assert_true(json_is_false(json_object_get(out, "keep")));
        json_decref(out);
        hookcall_close(h);
    }
}

static void failures(void **state)
{
    static const struct {
        const char *flag, *fn, *says;
        int opens;
    } t[] = {
        {"dynamic-sampling-filter-path", "wrong", "returned str, not a DynamicFilterOutput", 1},
        {"dynamic-sampling-filter-path", "boom", "ValueError: no luck", 1},
        {"dynamic-sampling-filter-path", "boom", "fns.py:12, from ", 1},
        {"dynamic-sampling-filter-path", "slow", "no answer within 1 s", 1},
        {"dynamic-sampling-filter-path", "one", "takes 1 positional arguments, the call has 2", 0},
        {"dynamic-sampling-filter-path", "number", "is not a function", 0},
        {"dynamic-sampling-filter-path", "none", "has no function none", 0},
        {"dynamic-sampling-filter-path", "/no/such.py:fn", "no file /no/such.py", 0},
        {"data-source-path", "one", "not a class", 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct hookcall *h = NULL;
        struct err e = {0};
        int rc = open_fn(t[i].flag, t[i].fn, 1, &h, &e);
        assert_int_equal(rc == 0, t[i].opens);
        if (rc == 0) {
            assert_null(run(h, json_pack("[[o]]", sample(1.0)), &e));
        }
        if (!strstr(e.msg, t[i].says) || !strstr(e.msg, t[i].flag)) {
            fail_msg("%s: %s", t[i].fn, e.msg);
        }
        hookcall_close(h);
    }
}

static void buffers(void **state)
{
    struct hookcall *h;
    struct err e = {0};
    json_t *out;
    (void)state;
    assert_int_equal(open_fn("buffer-filter-path", "pop", 0, &h, &e), 0);
    out = run(h, json_pack("[i,[[o],[o],[o]],i]", 3, sample(0), sample(1), sample(2), 2), &e);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(out, "take"), 0)), 2);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(out, "take"), 1)), 1);
    assert_int_equal(json_array_size(json_object_get(out, "rest")), 1);
    json_decref(out);
    hookcall_close(h);
    assert_int_equal(open_fn("buffer-filter-path", "foreign", 0, &h, &e), 0);
    assert_null(run(h, json_pack("[i,[[o]],i]", 3, sample(0), 1), &e));
    assert_non_null(strstr(e.msg, "was not in the buffer"));
    hookcall_close(h);
}

static int asked;

static int answer(void *arg, int64_t id, const char *what, const json_t *argv, json_t **out,
                  struct err *e)
{
    (void)arg, (void)id;
    asked++;
    if (strcmp(what, "get_samples") == 0) {
        assert_int_equal(json_integer_value(json_array_get(argv, 0)), 2);
        *out = json_pack("[[{s:s}],[{s:s}]]", "prompt", "first", "prompt", "from outside");
        return STATUS_OK;
    }
    if (strcmp(what, "add_samples") == 0) {
        assert_int_equal(json_array_size(json_array_get(argv, 0)), 2);
        return STATUS_OK;
    }
    return ERR(e, STATUS_INPUT, "the buffer is empty");
}

static void questions(void **state)
{
    char path[256];
    struct hookcall_opts o = {
        .flag = "rollout-all-samples-process-path", .path = path, .ask = answer};
    struct hookcall *h;
    struct err e = {0};
    json_t *out;
    (void)state;
    snprintf(path, sizeof path, "%s/fns.py:ask", dir);
    assert_int_equal(hookcall_open(&o, &h, &e), 0);
    out = run(h, json_pack("[[[o]]]", sample(0)), &e);
    if (!out) {
        fail_msg("%s", e.msg);
    }
    assert_true(json_is_null(out));
    assert_int_equal(asked, 3);
    hookcall_close(h);
}

/* Async calls run together: sixteen of a fifth of a second take no three seconds. */
static void generates(void **state)
{
    struct hookcall *h;
    struct err e = {0};
    struct worker_result r;
    int done = 0, rounds = 0;
    (void)state;
    assert_int_equal(open_fn("custom-generate-function-path", "generate", 5, &h, &e), 0);
    for (int i = 0; i < 16; i++) {
        json_t *argv = json_pack("[o,{},b]", sample(0), 0);
        assert_int_equal(hookcall_submit(h, i, argv, &e), 0);
        json_decref(argv);
    }
    assert_int_equal(hookcall_pending(h), 16);
    while (done < 16 && rounds++ < 30) {
        while (hookcall_poll(h, 0.1, &r, &e) == 0) {
            const json_t *s = json_array_get(r.value, 0);
            assert_false(r.failed);
            assert_int_equal(json_array_size(r.value), 2);
            assert_int_equal(json_array_size(json_object_get(s, "tokens")), 5);
            assert_int_equal(json_integer_value(json_object_get(s, "response_length")), 3);
            assert_int_equal(json_integer_value(json_array_get(json_object_get(s, "loss_mask"), 2)),
                             0);
            json_decref(r.value);
            done++;
        }
    }
    assert_int_equal(done, 16);
    hookcall_close(h);
    assert_int_equal(open_fn("custom-generate-function-path", "bad_lengths", 5, &h, &e), 0);
    assert_null(run(h, json_pack("[o,{},b]", sample(0), 0), &e));
    assert_non_null(strstr(e.msg, "1 values of loss_mask for 2 response tokens"));
    hookcall_close(h);
}

static void classes(void **state)
{
    struct hookcall *h;
    struct err e = {0};
    json_t *out;
    (void)state;
    assert_int_equal(open_fn("data-source-path", "Source", 0, &h, &e), 0);
    out = run(h, json_pack("[s,i]", "get_samples", 3), &e);
    assert_int_equal(json_array_size(out), 3);
    json_decref(out);
    out = run(h, json_pack("[s,i]", "save", 1), &e);
    assert_int_equal(json_integer_value(json_object_get(out, "n")), 3);
    json_decref(out);
    out = run(h, json_pack("[s,i]", "load", 1), &e); /* it has none: nothing to do */
    assert_true(json_is_null(out));
    hookcall_close(h);
}

static void objects(void **state)
{
    struct hookcall *h;
    struct err e = {0};
    json_t *out;
    (void)state;
    assert_int_equal(open_fn("dynamic-sampling-filter-path",
                             TEST_BUILD_DIR "/plugin_hooks.so:keep_all", 0, &h, &e),
                     0);
    out = run(h, json_pack("[[o]]", sample(0)), &e);
    assert_true(json_is_true(json_object_get(out, "keep")));
    json_decref(out);
    hookcall_close(h);
    assert_int_equal(
        open_fn("custom-rm-path", TEST_BUILD_DIR "/plugin_reward.so:digits", 0, &h, &e), 0);
    out = run(h, json_pack("[o]", sample(0)), &e);
    assert_true(json_number_value(out) == 0.5);
    json_decref(out);
    out = run(h, json_pack("[[o,o]]", sample(0), sample(0)), &e);
    assert_int_equal(json_array_size(out), 2);
    json_decref(out);
    hookcall_close(h);
    assert_int_equal(open_fn("custom-reward-post-process-path",
                             TEST_BUILD_DIR "/plugin_reward.so:digits", 0, &h, &e),
                     0);
    out = run(h, json_pack("[[o,o]]", sample(1), sample(3)), &e);
    assert_true(json_number_value(json_object_get(json_array_get(out, 0), "reward")) == -1.0);
    assert_true(json_number_value(json_object_get(json_array_get(out, 1), "raw")) == 3.0);
    json_decref(out);
    hookcall_close(h);
    assert_int_equal(open_fn("custom-megatron-init-path",
                             TEST_BUILD_DIR "/plugin_broken_plugin.so:broken", 0, &h, &e),
                     0);
    assert_null(run(h, json_array(), &e));
    assert_non_null(strstr(e.msg, "it is broken"));
    hookcall_close(h);
}

static void services(void **state)
{
    struct hookcall *h;
    struct err e = {0};
    (void)state;
    assert_int_equal(open_fn("dynamic-sampling-filter-path", "http://127.0.0.1:9/", 0.5, &h, &e),
                     0);
    assert_null(run(h, json_pack("[[o]]", sample(0)), &e));
    assert_non_null(strstr(e.msg, "no answer within 0.5 s"));
    hookcall_close(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(filters),   cmocka_unit_test(failures),
                                       cmocka_unit_test(buffers),   cmocka_unit_test(questions),
                                       cmocka_unit_test(generates), cmocka_unit_test(classes),
                                       cmocka_unit_test(objects),   cmocka_unit_test(services)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
