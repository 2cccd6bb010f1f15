/* Owns the statistics of samples. Sums are exact, so they do not depend on the order of samples. */
#include "rl/rollmetric.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/metric.h"
#include "num/exact.h"
#include "rl/sample.h"

static int rollmetric_by_value(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

static void rollmetric_name(json_t *row, const char *prefix, const char *name, double v)
{
    char full[160];
    snprintf(full, sizeof full, "%s/%s", prefix, name);
    metric_put(row, full, v);
}

void rollmetric_lengths(json_t *row, const char *prefix, struct sample *const *s, int n)
{
    int *len = mem_alloc(sizeof *len * (size_t)(n + 1));
    double sum = 0.0;
    int truncated = 0;
    for (int i = 0; i < n; i++) {
        len[i] = s[i]->response_len;
        sum += len[i];
        truncated += s[i]->status == SAMPLE_TRUNCATED;
    }
    qsort(len, (size_t)n, sizeof *len, rollmetric_by_value);
    if (n) {
        rollmetric_name(row, prefix, "response_len/mean", sum / n);
        rollmetric_name(row, prefix, "response_len/median",
                        n % 2 ? len[n / 2] : (len[n / 2 - 1] + len[n / 2]) / 2.0);
        rollmetric_name(row, prefix, "response_len/max", len[n - 1]);
        rollmetric_name(row, prefix, "response_len/min", len[0]);
        rollmetric_name(row, prefix, "truncated_ratio", (double)truncated / n);
    }
    mem_free(len);
}

void rollmetric_zero_std(json_t *row, struct sample *const *s, int n)
{
    int groups = 0, zero = 0, zeros = 0, ones = 0;
    for (int i = 0; i < n;) {
        int j = i + 1, same = 1;
        while (j < n && s[j]->group_index == s[i]->group_index) {
            same &= s[j]->reward == s[i]->reward;
            j++;
        }
        groups++;
        if (same) {
            char name[64];
            json_t *old;
            snprintf(name, sizeof name, "rollout/zero_std/count_%.1f", s[i]->reward);
            old = json_object_get(row, name);
            metric_put_int(row, name, json_integer_value(old) + 1);
            zero++;
            zeros += s[i]->reward == 0.0;
            ones += s[i]->reward == 1.0;
        }
        i = j;
    }
    if (groups) {
        metric_put(row, "rollout/zero_std/all_zero_percentage", 100.0 * zeros / groups);
        metric_put(row, "rollout/zero_std/all_one_percentage", 100.0 * ones / groups);
    }
    (void)zero;
}

void rollmetric_category(json_t *row, const char *key, struct sample *const *s, int n)
{
    for (int i = 0; i < n; i++) {
        const json_t *v = json_object_get(s[i]->raw_reward, key);
        char value[64], name[96];

        if (json_is_string(v)) {
            snprintf(value, sizeof value, "%.60s", json_string_value(v));
        } else if (json_is_boolean(v)) {
            snprintf(value, sizeof value, "%s", json_is_true(v) ? "true" : "false");
        } else if (json_is_number(v)) {
            snprintf(value, sizeof value, "%g", json_number_value(v));
        } else {
            continue; /* none, or no name */
        }
        snprintf(name, sizeof name, "rollout/error_cat/%s", value);
        metric_put(row, name, json_number_value(json_object_get(row, name)) + 1.0 / n);
    }
}

/* PREFIX_mean, _max and _min of v (n), which is sorted. */
static void rollmetric_span(json_t *row, const char *prefix, int *v, int n)
{
    static const char *const names[] = {"mean", "max", "min"};
    double sum = 0.0;

    qsort(v, (size_t)n, sizeof *v, rollmetric_by_value);
    for (int i = 0; i < n; i++) {
        sum += v[i];
    }
    for (int i = 0; n && i < 3; i++) {
        char name[160];
        snprintf(name, sizeof name, "multi_turn/%s_%s", prefix, names[i]);
        metric_put(row, name, i == 0 ? sum / n : i == 1 ? v[n - 1] : v[0]);
    }
}

void rollmetric_turns(json_t *row, struct sample *const *s, int n, int64_t most)
{
    int *v[3], k = 0, over = 0;

    for (int i = 0; i < 3; i++) {
        v[i] = mem_alloc(sizeof **v * (size_t)(n + 1));
    }
    for (int i = 0; i < n; i++) {
        const json_t *rounds = json_object_get(s[i]->metadata, "round_number");
        v[0][i] = s[i]->response_len;
        v[1][i] = s[i]->mask ? 0 : s[i]->response_len;
        for (int j = 0; s[i]->mask && j < s[i]->response_len; j++) {
            v[1][i] += s[i]->mask[j];
        }
        over += s[i]->response_len > most;
        if (json_is_integer(rounds)) {
            v[2][k++] = (int)json_integer_value(rounds);
        }
    }
    rollmetric_span(row, "raw_response_length/response_length", v[0], n);
    rollmetric_span(row, "wo_obs_response_length/response_length", v[1], n);
    rollmetric_span(row, "multi_turn_metric/round_number", v[2], k);
    if (n) {
        metric_put(row, "multi_turn/raw_response_length/response_length_clip_ratio",
                   (double)over / n);
    }
    for (int i = 0; i < 3; i++) {
        mem_free(v[i]);
    }
}

void rollmetric_sessions(json_t *row, const char *version, struct sample *const *s, int n)
{
    int all = 0;

    for (int i = 0; i < n; i++) {
        all += json_object_get(s[i]->metadata, "tito_session_mismatch") != NULL;
    }
    for (int i = 0; i < n && all; i++) {
        const char *why =
            json_string_value(json_object_get(s[i]->metadata, "tito_session_mismatch"));
        char name[160];
        double old;
        snprintf(name, sizeof name, "rollout/tito_session_mismatch_rate/%s", version);
        old = json_number_value(json_object_get(row, name));
        metric_put(row, name, old + (why ? 1.0 / all : 0.0));
        if (why) {
            snprintf(name, sizeof name, "rollout/tito_session_mismatch_rate/%s/%.40s", version,
                     why);
            metric_put(row, name, json_number_value(json_object_get(row, name)) + 1.0 / all);
        }
    }
}

void rollmetric_rollout(json_t *row, struct sample *const *s, int n, const float *shaped)
{
    struct exact raw, norm, logp;
    double total = 0.0, response = 0.0;
    int truncated = 0, mixed = 0;
    int64_t lo = INT64_MAX, hi = INT64_MIN;
    double versions = 0.0;

    exact_init(&raw);
    exact_init(&norm);
    exact_init(&logp);
    for (int i = 0; i < n; i++) {
        exact_add(&raw, s[i]->reward);
        exact_add_f32(&norm, shaped[i]);
        total += s[i]->prompt_len + s[i]->response_len;
        response += s[i]->response_len;
        truncated += s[i]->status == SAMPLE_TRUNCATED;
        if (s[i]->logps) {
            struct exact one;
            exact_init(&one);
            exact_add_f32v(&one, s[i]->logps, (size_t)s[i]->response_len);
            exact_add(&logp, exact_value(&one) / (s[i]->response_len ? s[i]->response_len : 1));
        }
        if (s[i]->nsegments) {
            int64_t v = s[i]->segments[0].version;
            lo = v < lo ? v : lo;
            hi = v > hi ? v : hi;
            versions += (double)v;
            mixed += s[i]->segments[s[i]->nsegments - 1].version != v;
        }
    }
    if (!n) {
        return;
    }
    metric_put(row, "rollout/raw_reward", exact_value(&raw) / n);
    metric_put(row, "rollout/rewards", exact_value(&norm) / n);
    metric_put(row, "rollout/response_lengths", response / n);
    metric_put(row, "rollout/total_lengths", total / n);
    metric_put(row, "rollout/truncated", (double)truncated / n);
    metric_put(row, "rollout/rollout_log_probs", exact_value(&logp) / n);
    metric_put(row, "rollout/weight_version/mean", versions / n);
    metric_put_int(row, "rollout/weight_version/min", lo);
    metric_put_int(row, "rollout/weight_version/max", hi);
    metric_put(row, "rollout/weight_version/mixed_version_ratio", (double)mixed / n);
}

/* The chance that k of n answers, of which c are right, have a right one among them. */
static double rollmetric_pass(int n, int c, int k)
{
    double miss = 1.0;
    if (n - c < k) {
        return 1.0;
    }
    for (int i = n - c + 1; i <= n; i++) {
        miss *= 1.0 - (double)k / i;
    }
    return 1.0 - miss;
}

void rollmetric_passrate(json_t *row, const char *prefix, struct sample *const *s, int n, int group)
{
    for (int k = 1; k <= group; k *= 2) {
        struct exact sum;
        char name[200];
        int groups = 0;
        exact_init(&sum);
        for (int i = 0, j; i < n; i = j) {
            int right = 0, scored = 0;
            for (j = i; j < n && s[j]->group_index == s[i]->group_index; j++) {
                right += s[j]->reward == 1.0;
                scored += isfinite(s[j]->reward) != 0;
            }
            if (scored == group) {
                exact_add(&sum, rollmetric_pass(group, right, k));
                groups++;
            }
        }
        if (groups) {
            snprintf(name, sizeof name, "%spass@%d", prefix, k);
            metric_put(row, name, exact_value(&sum) / groups);
        }
    }
}

double rollmetric_eval(json_t *row, const char *name, struct sample *const *s, int n)
{
    struct exact sum;
    char full[160];
    int none = 0, truncated = 0;
    double mean;

    exact_init(&sum);
    for (int i = 0; i < n; i++) {
        if (isfinite(s[i]->reward)) {
            exact_add(&sum, s[i]->reward);
        } else {
            none++;
        }
        truncated += s[i]->status == SAMPLE_TRUNCATED;
    }
    mean = n > none ? exact_value(&sum) / (n - none) : NAN;
    snprintf(full, sizeof full, "eval/%s", name);
    metric_put(row, full, mean);
    rollmetric_lengths(row, full, s, n);
    snprintf(full, sizeof full, "eval/%s-none_reward_ratio", name);
    metric_put(row, full, n ? (double)none / n : 0.0);
    snprintf(full, sizeof full, "eval/%s-truncated_ratio", name);
    metric_put(row, full, n ? (double)truncated / n : 0.0);
    return mean;
}
