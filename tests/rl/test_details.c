/* --dump-details: the names it gives, what is in the files, and which groups a share keeps. */
#include "fakeport.h"

#include <math.h>

#include "rl/details.h"
#include "rl/sample.h"
#include "rl/train_opts.h"

static struct err e;

static struct sample *sample_at(int64_t index, int64_t group)
{
    struct sample *s = sample_new();
    int32_t ids[4] = {1, 2, 3, 4};
    float logps[2] = {-1, -2};
    sample_set(s, ids, 2, ids + 2, logps, 2, 0, 1);
    s->index = index;
    s->group_index = group;
    s->reward = 0.5;
    s->prompt = json_string("how many?");
    s->label = json_string("7");
    s->response = mem_strdup("seven");
    s->status = SAMPLE_TRUNCATED;
    return s;
}

static void names(void **state)
{
    struct train_opts o;
    (void)state;
    memset(&o, 0, sizeof o);
    details_derive(&o);
    assert_null(o.save_debug_rollout_data);
    o.dump_details = mem_strdup("d");
    o.save_debug_rollout_data = mem_strdup("mine/{rollout_id}");
    details_derive(&o);
    assert_string_equal(o.save_debug_rollout_data, "mine/{rollout_id}");
    assert_string_equal(o.save_debug_train_data, "d/train_data/{rollout_id}_{rank}.jsonl");
    assert_string_equal(o.save_debug_trajectory_data, "d/trajectory/{rollout_id}.jsonl");
    mem_free(o.dump_details);
    mem_free(o.save_debug_rollout_data);
    mem_free(o.save_debug_train_data);
    mem_free(o.save_debug_trajectory_data);
}

/* Line k of a file. */
static json_t *line(const char *path, int k)
{
    char *data, *at;
    size_t len;
    json_t *j;
    assert_ok(fsio_read(path, 1 << 20, &data, &len, &e), &e);
    for (at = data; k > 0; k--) {
        at = strchr(at, '\n') + 1;
    }
    *strchr(at, '\n') = 0;
    j = json_loads(at, 0, NULL);
    assert_non_null(j);
    mem_free(data);
    return j;
}

static void files(void **state)
{
    struct train_opts o;
    struct sample *s[2] = {sample_at(0, 0), sample_at(1, 0)};
    float old[2] = {-1, -2}, adv[2] = {0.5, NAN}, ret[2] = {3, 4}, raw[2] = {0.5, 0.5};
    float shaped[2] = {1, -1};
    uint8_t mask[2] = {1, 0};
    struct train_sample t[2] = {{.prompt = 2, .response = 2, .old = old, .adv = adv, .mask = mask},
                                {.prompt = 2, .response = 2, .old = old, .adv = adv}};
    struct train_sample v[2] = {{.old = old, .adv = ret}, {.old = old, .adv = ret}};
    struct details_train d = {
        .rollout = 7, .s = s, .t = t, .value = v, .raw = raw, .shaped = shaped, .n = 2};
    json_t *j, *m;
    char *text;
    (void)state;
    memset(&o, 0, sizeof o);
    assert_ok(details_train(&o, &d, &e), &e); /* nobody asked */
    assert_ok(details_trajectory(&o, 7, s, 2, &e), &e);
    o.save_debug_train_data = mem_strdup(fakeport_path("deep/t_{rollout_id}_{rank}.jsonl"));
    o.save_debug_trajectory_data = mem_strdup(fakeport_path("deep/j_{rollout_id}.jsonl"));
    assert_ok(details_train(&o, &d, &e), &e);
    assert_ok(details_trajectory(&o, 7, s, 2, &e), &e);
    j = line(fakeport_path("deep/t_7_0.jsonl"), 0);
    assert_string_equal(json_string_value(json_object_get(j, "format")), "miles-train");
    json_decref(j);
    j = line(fakeport_path("deep/t_7_0.jsonl"), 1);
    text = json_dumps(j, JSON_COMPACT | JSON_SORT_KEYS);
    assert_string_equal(text,
                        "{\"advantages\":[0.5,null],\"exact\":false,\"group_index\":0,\"index\":0,"
                        "\"log_probs\":[-1.0,-2.0],\"loss_masks\":[1,0],\"on_policy\":false,"
                        "\"raw_reward\":0.5,\"response_length\":2,\"returns\":[3.0,4.0],"
                        "\"reward\":1.0,\"total_length\":4,\"truncated\":1,"
                        "\"values\":[-1.0,-2.0]}");
    free(text);
    json_decref(j);
    j = line(fakeport_path("deep/j_7.jsonl"), 1);
    m = json_object_get(j, "messages");
    assert_int_equal(json_array_size(m), 2);
    assert_string_equal(json_string_value(json_object_get(json_array_get(m, 1), "content")),
                        "seven");
    assert_int_equal(json_integer_value(json_object_get(j, "index")), 1);
    json_decref(j);
    mem_free(o.save_debug_train_data);
    mem_free(o.save_debug_trajectory_data);
    sample_free(s[0]);
    sample_free(s[1]);
}

static void shares(void **state)
{
    static const struct {
        double share;
        const char *want;
    } g[] = {{1, "0 0 1 1 2 2 3 3 4 4 "},
             {0.5, "0 0 4 4 "},
             {0.6, "0 0 1 1 4 4 "},
             {0.01, "0 0 "},
             {0.99, "0 0 1 1 3 3 4 4 "}};
    (void)state;
    for (size_t k = 0; k < sizeof g / sizeof *g; k++) {
        struct sample *s[10];
        char text[100] = "";
        int n;
        for (int i = 0; i < 10; i++) {
            s[i] = sample_at(i, i / 2);
        }
        n = details_subsample(s, 10, g[k].share);
        for (int i = 0; i < n; i++) {
            snprintf(text + strlen(text), sizeof text - strlen(text), "%d ",
                     (int)s[i]->group_index);
            sample_free(s[i]);
        }
        assert_string_equal(text, g[k].want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),
        cmocka_unit_test(files),
        cmocka_unit_test(shares),
    };
    return cmocka_run_group_tests(tests, fakeport_setup, fakeport_teardown);
}
