/* pass@k against its definition: of all ways to choose k of n answers, the share that has a right
 * one. */
#include "support.h"

#include <math.h>

#include "base/mem.h"
#include "base/metric.h"
#include "rl/rollmetric.h"
#include "rl/sample.h"

static double by_counting(int n, int c, int k)
{
    int hit = 0, all = 0;
    for (int mask = 0; mask < 1 << n; mask++) {
        int bits = 0;
        for (int i = 0; i < n; i++) {
            bits += mask >> i & 1;
        }
        if (bits == k) {
            all++;
            hit += (mask & ((1 << c) - 1)) != 0;
        }
    }
    return (double)hit / all;
}

static void pass_at_k(void **state)
{
    (void)state;
    for (int n = 1; n <= 9; n++) {
        for (int c = 0; c <= n; c++) {
            struct sample *s[27];
            json_t *row = json_object();
            for (int i = 0; i < 3 * n; i++) {
                s[i] = sample_new();
                s[i]->group_index = i / n;
                s[i]->index = i;
                /* the second group has none right, the third is incomplete */
                s[i]->reward = i < n ? (i < c ? 1.0 : 0.25) : i < 2 * n ? 0.5 : 1.0;
            }
            s[3 * n - 1]->reward = NAN;
            rollmetric_passrate(row, "p/", s, 3 * n, n);
            for (int k = 1; k <= n; k *= 2) {
                char name[32];
                snprintf(name, sizeof name, "p/pass@%d", k);
                assert_true(fabs(json_number_value(json_object_get(row, name)) -
                                 by_counting(n, c, k) / 2) < 1e-12);
            }
            for (int i = 0; i < 3 * n; i++) {
                sample_free(s[i]);
            }
            json_decref(row);
        }
    }
}

static void expect(const json_t *row, const char *name, double want)
{
    const json_t *v = json_object_get(row, name);
    assert_non_null(v);
    assert_true(fabs(json_number_value(v) - want) < 1e-12);
}

/* Lengths with and without what was not sampled, rounds, and mismatches of sessions. */
static void turns(void **state)
{
    static const char *const why[] = {NULL, "assistant_text", NULL, "special_token_count"};
    struct sample *s[4];
    json_t *row = json_object();

    (void)state;
    for (int i = 0; i < 4; i++) {
        s[i] = sample_new();
        s[i]->response_len = 4 + 2 * i;
        s[i]->mask = mem_alloc(16);
        memset(s[i]->mask, 1, 4);
        s[i]->metadata =
            json_pack("{s:i,s:s?}", "round_number", i + 1, "tito_session_mismatch", why[i]);
    }
    rollmetric_turns(row, s, 4, 8);
    rollmetric_sessions(row, "v1", s, 4);
    expect(row, "multi_turn/raw_response_length/response_length_mean", 7);
    expect(row, "multi_turn/raw_response_length/response_length_max", 10);
    expect(row, "multi_turn/raw_response_length/response_length_clip_ratio", 0.25);
    expect(row, "multi_turn/wo_obs_response_length/response_length_max", 4);
    expect(row, "multi_turn/multi_turn_metric/round_number_mean", 2.5);
    expect(row, "rollout/tito_session_mismatch_rate/v1", 0.5);
    expect(row, "rollout/tito_session_mismatch_rate/v1/assistant_text", 0.25);
    for (int i = 0; i < 4; i++) {
        sample_free(s[i]);
    }
    json_decref(row);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(pass_at_k), cmocka_unit_test(turns)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
