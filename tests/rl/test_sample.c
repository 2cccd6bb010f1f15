/* Samples: their JSON form and back, bit for bit, and what a malformed one is told. */
#include "support.h"

#include <float.h>
#include <math.h>

#include "base/mem.h"
#include "base/status.h"
#include "rl/sample.h"

static struct err e;

static struct sample *make(void)
{
    static const int32_t prompt[] = {5, 6, 7}, response[] = {1, 2, 3, 49151};
    static const float logps[] = {-0.1f, -1.17549435e-38f, -88.72284f, 0.0f};
    struct sample *s = sample_new();
    sample_set(s, prompt, 3, response, logps, 4, 12, 1);
    s->index = 9007199254740993;
    s->group_index = 31;
    s->rollout_id = 4;
    s->prompt = json_pack("[{s:s,s:s}]", "role", "user", "content", "caf\xc3\xa9 \"q\"\n");
    s->label = json_string("42");
    s->metadata = json_pack("{s:[i,n]}", "a", 1);
    s->response = mem_strdup("line\nline \xf0\x9f\x98\x80");
    s->reward = 0.1;
    s->status = SAMPLE_TRUNCATED;
    s->remove = 1;
    s->mask = mem_alloc(4);
    s->mask[1] = 1;
    return s;
}

/* Through text, as a dump does. */
static struct sample *through(const struct sample *s)
{
    json_t *j = sample_to_json(s), *k;
    char *text = json_dumps(j, JSON_COMPACT);
    struct sample *out = NULL;
    assert_non_null(text);
    k = json_loads(text, 0, NULL);
    assert_non_null(k);
    assert_ok(sample_from_json(k, &out, &e), &e);
    free(text);
    json_decref(j);
    json_decref(k);
    return out;
}

/* All but what there is one of for each token. */
static void brief(void **state)
{
    static const char *const arrays[] = {"tokens", "loss_mask", "rollout_log_probs"};
    struct sample *s = make();
    json_t *whole = sample_to_json(s), *j = sample_brief_json(s);
    (void)state;

    for (int i = 0; i < 3; i++) {
        assert_non_null(json_object_get(whole, arrays[i]));
        json_object_del(whole, arrays[i]);
    }
    assert_true(json_equal(whole, j));
    json_decref(whole);
    json_decref(j);
    sample_free(s);
}

/* Parts of several versions, cut and gone on: all of it comes back. */
static void segments(void **state)
{
    static const int32_t more[] = {8, 9};
    static const float logps[] = {-0.3f, -0.4f};
    struct sample *s = make(), *t, *u = NULL;
    json_t *j;
    (void)state;
    sample_append(s, more, logps, 2, 13, 0);
    assert_int_equal(s->response_len, 6);
    assert_int_equal(s->tokens[7], 8);
    assert_true(s->logps[5] == -0.4f);
    assert_int_equal(s->mask[0] + s->mask[1] + s->mask[4] + s->mask[5], 3);
    t = through(s);
    assert_int_equal(t->nsegments, 2);
    assert_memory_equal(t->segments, s->segments, 2 * sizeof *s->segments);
    sample_cut(t, 5);
    assert_int_equal(t->nsegments, 2);
    assert_int_equal(t->segments[1].len, 1);
    assert_true(isnan(t->reward));
    sample_cut(t, 4);
    assert_int_equal(t->nsegments, 1);
    assert_int_equal(t->segments[0].len, 4);
    sample_cut(t, 0);
    assert_int_equal(t->nsegments, 0);
    assert_int_equal(t->response_len, 0);
    sample_append(t, more, logps, 2, 14, 1);
    assert_int_equal(t->nsegments, 1);
    assert_int_equal(t->segments[0].start, 0);
    assert_int_equal(t->tokens[3], 8);
    j = sample_to_json(s);
    json_object_set_new(j, "segments", json_pack("[{s:i,s:i}]", "start", 0, "len", 5));
    assert_int_equal(sample_from_json(j, &u, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "segments of 5 tokens for a response of 6"));
    json_object_set_new(j, "segments", json_pack("[{s:i,s:i}]", "start", 1, "len", 6));
    assert_int_equal(sample_from_json(j, &u, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "does not follow"));
    json_decref(j);
    sample_free(s);
    sample_free(t);
}

static void round_trip(void **state)
{
    struct sample *s = make(), *t = through(s);
    (void)state;
    assert_int_equal(t->index, s->index);
    assert_int_equal(t->group_index, 31);
    assert_int_equal(t->rollout_id, 4);
    assert_int_equal(t->prompt_len, 3);
    assert_int_equal(t->response_len, 4);
    assert_memory_equal(t->tokens, s->tokens, 7 * 4);
    assert_memory_equal(t->logps, s->logps, 4 * 4);
    assert_memory_equal(t->mask, s->mask, 4);
    assert_true(json_equal(t->prompt, s->prompt));
    assert_true(json_equal(t->label, s->label));
    assert_true(json_equal(t->metadata, s->metadata));
    assert_string_equal(t->response, s->response);
    assert_true(t->reward == 0.1);
    assert_int_equal(t->status, SAMPLE_TRUNCATED);
    assert_int_equal(t->remove, 1);
    assert_int_equal(t->nsegments, 1);
    assert_int_equal(t->segments[0].version, 12);
    assert_int_equal(t->segments[0].len, 4);
    assert_int_equal(t->segments[0].exact, 0); /* nobody can vouch for numbers out of a file */
    sample_free(s);
    sample_free(t);
    sample_free(NULL);
}

/* Every kind of float comes back as itself. */
static void floats(void **state)
{
    enum { N = 4000 };
    static float logps[N];
    static int32_t tokens[N];
    int32_t one = 1;
    uint64_t x = 3;
    struct sample *s = sample_new(), *t;
    (void)state;
    for (int i = 0; i < N; i++) {
        uint32_t u;
        x = x * 6364136223846793005ull + 1442695040888963407ull;
        u = (uint32_t)(x >> 32);
        if ((u & 0x7f800000u) == 0x7f800000u) {
            u ^= 0x40000000u;
        }
        memcpy(&logps[i], &u, 4);
    }
    sample_set(s, &one, 1, tokens, logps, N, 0, 1);
    t = through(s);
    assert_memory_equal(t->logps, logps, sizeof logps);
    sample_free(s);
    sample_free(t);
}

static void bare(void **state)
{
    struct sample *s = sample_new(), *t;
    int32_t one = 1;
    json_t *j;
    (void)state;
    sample_set(s, &one, 1, NULL, NULL, 0, 3, 0);
    j = sample_to_json(s);
    assert_true(json_is_null(json_object_get(j, "reward")));
    assert_true(json_is_null(json_object_get(j, "loss_mask")));
    assert_true(json_is_null(json_object_get(j, "rollout_log_probs")));
    assert_string_equal(json_string_value(json_object_get(j, "status")), "pending");
    assert_string_equal(json_string_value(json_object_get(j, "response")), "");
    json_decref(j);
    t = through(s);
    assert_true(isnan(t->reward));
    assert_null(t->mask);
    assert_null(t->logps);
    assert_int_equal(t->prompt_len, 1);
    assert_int_equal(t->response_len, 0);
    sample_free(s);
    sample_free(t);
    assert_string_equal(sample_status_name(SAMPLE_FAILED), "failed");
}

/* A reward function that returned an object: the number that was taken from it survives. */
static void object_reward(void **state)
{
    struct sample *s = make(), *t;
    json_t *j;
    (void)state;
    s->raw_reward = json_pack("{s:f,s:s}", "score", 0.1, "why", "because");
    j = sample_to_json(s);
    assert_true(json_equal(json_object_get(j, "reward"), s->raw_reward)); /* as Miles has it */
    json_decref(j);
    t = through(s);
    assert_non_null(t->raw_reward);
    assert_true(json_equal(t->raw_reward, s->raw_reward));
    assert_true(t->reward == 0.1);
    sample_free(s);
    sample_free(t);
}

static void refused(const char *text, const char *why)
{
    json_t *j = json_loads(text, JSON_DECODE_ANY, NULL);
    struct sample *s = (struct sample *)1;
    int rc;
    assert_non_null(j);
    memset(&e, 0, sizeof e);
    rc = sample_from_json(j, &s, &e);
    if (rc != STATUS_INPUT || !strstr(e.msg, why)) {
        if (rc == STATUS_OK) {
            sample_free(s);
        }
        json_decref(j);
        fail_msg("%s: status %d \"%s\", \"%s\" was expected", text, rc, e.msg, why);
    }
    assert_true(s == (struct sample *)1);
    json_decref(j);
}

static void malformed(void **state)
{
    (void)state;
    refused("[]", "object");
    refused("null", "object");
    refused("{}", "tokens");
    refused("{\"index\": 7, \"tokens\": [], \"response_length\": 0}", "sample 7");
    refused("{\"tokens\": [1], \"response_length\": 1}", "tokens");
    refused("{\"tokens\": [1, 2], \"response_length\": -1}", "response_length");
    refused("{\"tokens\": \"1 2\", \"response_length\": 1}", "tokens");
    refused("{\"tokens\": [1, \"2\"], \"response_length\": 1}", "token 1");
    refused("{\"tokens\": [1, -2], \"response_length\": 1}", "token 1");
    refused("{\"tokens\": [1, 2147483648], \"response_length\": 1}", "token 1");
    refused("{\"tokens\": [1, 1.5], \"response_length\": 1}", "token 1");
    refused("{\"tokens\": [1, 2], \"response_length\": 1, \"loss_mask\": [1, 1]}", "loss_mask");
    refused("{\"tokens\": [1, 2], \"response_length\": 1, \"rollout_log_probs\": []}",
            "rollout_log_probs");
}

/* Values of the wrong kind are an error, not a zero (contract C7). */
static void malformed_values(void **state)
{
    (void)state;
    refused("{\"tokens\": [1, 2], \"response_length\": 1, \"rollout_log_probs\": [null]}",
            "rollout_log_probs");
    refused("{\"tokens\": [1, 2], \"response_length\": 1, \"rollout_log_probs\": [\"-1\"]}",
            "rollout_log_probs");
    refused("{\"tokens\": [1, 2], \"response_length\": 1, \"rollout_log_probs\": \"x\"}",
            "rollout_log_probs");
    refused("{\"tokens\": [1, 2], \"response_length\": 1, \"loss_mask\": [\"1\"]}", "loss_mask");
    refused("{\"tokens\": [1, 2], \"response_length\": 1, \"loss_mask\": {}}", "loss_mask");
    refused("{\"tokens\": [1, 2], \"response_length\": 4294967297}", "response_length");
    refused("{\"tokens\": [1, 2], \"response_length\": \"1\"}", "response_length");
    refused("{\"tokens\": [1, 2], \"response_length\": 1, \"status\": \"complete\"}", "status");
}

/* What our own numbers can be is written whole: a log-prob of -inf makes no shorter list. */
static void infinite_log_prob(void **state)
{
    static const int32_t tokens[] = {1, 2, 3};
    static const float logps[] = {-1.0f, -INFINITY};
    struct sample *s = sample_new();
    json_t *j;
    (void)state;
    sample_set(s, tokens, 1, tokens + 1, logps, 2, 0, 1);
    j = sample_to_json(s);
    assert_int_equal(json_array_size(json_object_get(j, "rollout_log_probs")), 2);
    json_decref(j);
    sample_free(s);
}

/* Branches of a session come along, by JSON and when a sample is taken. */
static void siblings(void **state)
{
    struct sample *s = make(), *back, *took = sample_new();
    json_t *j;

    (void)state;
    s->reward = 0.25;
    j = sample_to_json(s);
    json_object_set_new(j, "siblings", json_pack("[o]", sample_to_json(s)));
    assert_int_equal(sample_from_json(j, &back, &e), 0);
    took->index = 77;
    took->rollout_id = 78;
    sample_take(took, back);
    assert_int_equal(took->nsiblings, 1);
    assert_int_equal(took->siblings[0]->index, 77);
    assert_int_equal(took->siblings[0]->rollout_id, 78);
    assert_int_equal(took->siblings[0]->branch, 1);
    assert_true(took->siblings[0]->reward == 0.25);
    assert_memory_equal(took->siblings[0]->logps, s->logps, sizeof(float) * 4);
    json_decref(j);
    sample_free(s);
    sample_free(back);
    sample_free(took);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(siblings),
        cmocka_unit_test(round_trip),
        cmocka_unit_test(segments),
        cmocka_unit_test(floats),
        cmocka_unit_test(bare),
        cmocka_unit_test(object_reward),
        cmocka_unit_test(malformed),
        cmocka_unit_test(malformed_values),
        cmocka_unit_test(infinite_log_prob),
        cmocka_unit_test(brief),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
