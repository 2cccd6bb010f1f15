/* Owns the calls of shared objects whose arguments are data: samples as the views of
 * include/miles_plugin.h, everything else as JSON text. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/plugin.h"
#include "miles_plugin.h"
#include "reward/hookcall_int.h"

/* ---- views ---- */

/* JSON text in the arena. */
static const char *text_of(struct arena *mem, const json_t *j)
{
    char *s = j ? json_dumps(j, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    const char *out = arena_strdup(mem, s ? s : "null");
    free(s);
    return out;
}

static int status_of(const json_t *j)
{
    static const char *const names[] = {"pending", "completed", "truncated", "aborted", "failed"};
    const char *s = json_string_value(j);
    for (int i = 0; s && i < 5; i++) {
        if (strcmp(s, names[i]) == 0) {
            return i;
        }
    }
    return MILES_PENDING;
}

static int64_t number_of(const json_t *sample, const char *key)
{
    const json_t *j = json_object_get(sample, key);
    return json_is_integer(j) ? json_integer_value(j) : -1;
}

static void view_arrays(struct arena *mem, const json_t *j, struct miles_sample *s)
{
    const json_t *t = json_object_get(j, "tokens"), *m = json_object_get(j, "loss_mask");
    const json_t *l = json_object_get(j, "rollout_log_probs");
    size_t n = json_array_size(t), r = json_array_size(l), k = json_array_size(m);
    int32_t *tokens = arena_alloc(mem, 4 * (n + 1));
    float *logps = arena_alloc(mem, 4 * (r + 1));
    uint8_t *mask = arena_alloc(mem, k + 1);

    for (size_t i = 0; i < n; i++) {
        tokens[i] = (int32_t)json_integer_value(json_array_get(t, i));
    }
    for (size_t i = 0; i < r; i++) {
        logps[i] = (float)json_number_value(json_array_get(l, i));
    }
    for (size_t i = 0; i < k; i++) {
        mask[i] = json_integer_value(json_array_get(m, i)) != 0;
    }
    s->tokens = tokens;
    s->ntokens = (int32_t)n;
    s->rollout_log_probs = r && r == (size_t)s->response_length ? logps : NULL;
    s->loss_mask = k && k == (size_t)s->response_length ? mask : NULL;
}

static void view_sample(struct arena *mem, const json_t *j, struct miles_sample *s)
{
    const json_t *prompt = json_object_get(j, "prompt"), *reward = json_object_get(j, "reward");
    const char *response = json_string_value(json_object_get(j, "response"));

    *s = (struct miles_sample){
        .size = sizeof *s,
        .status = status_of(json_object_get(j, "status")),
        .index = number_of(j, "index"),
        .group_index = number_of(j, "group_index"),
        .rollout_id = number_of(j, "rollout_id"),
        .prompt = json_is_string(prompt) ? json_string_value(prompt) : text_of(mem, prompt),
        .response = response ? response : "",
        .label = text_of(mem, json_object_get(j, "label")),
        .metadata = text_of(mem, json_object_get(j, "metadata")),
        .response_length = (int32_t)json_integer_value(json_object_get(j, "response_length")),
        .reward = json_is_number(reward) ? json_number_value(reward) : NAN};
    view_arrays(mem, j, s);
}

/* ---- calls ---- */

static json_t *call_reward(struct plugin *p, const json_t *argv, struct miles_why *why)
{
    const json_t *arg = json_array_get(argv, 0);
    int group = json_is_array(arg), n = group ? (int)json_array_size(arg) : 1;
    struct miles_sample *s;
    double *out;
    json_t *value = NULL;
    struct arena mem;

    arena_init(&mem, 1 << 16);
    s = arena_alloc(&mem, sizeof *s * (size_t)(n + 1));
    out = arena_alloc(&mem, sizeof *out * (size_t)(n + 1));
    for (int i = 0; i < n; i++) {
        view_sample(&mem, group ? json_array_get(arg, (size_t)i) : arg, &s[i]);
        out[i] = NAN;
    }
    if (plugin_table(p)->reward(plugin_self(p), s, n, out, why) == 0) {
        value = group ? json_array() : NULL;
        for (int i = 0; i < n; i++) {
            /* jansson has no NaN: a reward that was not given shows as null */
            json_t *one = isfinite(out[i]) ? json_real(out[i]) : json_null();
            if (group) {
                json_array_append_new(value, one);
            } else {
                value = one;
            }
        }
    }
    arena_fini(&mem);
    return value;
}

static json_t *call_shape(struct plugin *p, const json_t *argv, struct miles_why *why)
{
    const json_t *list = json_array_get(argv, 0);
    int n = (int)json_array_size(list);
    struct miles_sample *s;
    double *raw, *shaped;
    json_t *value = NULL;
    struct arena mem;

    arena_init(&mem, 1 << 16);
    s = arena_alloc(&mem, sizeof *s * (size_t)(n + 1));
    raw = arena_alloc(&mem, sizeof *raw * (size_t)(n + 1));
    shaped = arena_alloc(&mem, sizeof *shaped * (size_t)(n + 1));
    for (int i = 0; i < n; i++) {
        view_sample(&mem, json_array_get(list, (size_t)i), &s[i]);
        raw[i] = shaped[i] = s[i].reward;
    }
    if (plugin_table(p)->shape(plugin_self(p), s, n, raw, shaped, why) == 0) {
        value = json_array();
        for (int i = 0; i < n; i++) {
            json_array_append_new(
                value,
                json_pack("{s:o,s:o}", "raw", isfinite(raw[i]) ? json_real(raw[i]) : json_null(),
                          "reward", isfinite(shaped[i]) ? json_real(shaped[i]) : json_null()));
        }
    }
    arena_fini(&mem);
    return value;
}

static json_t *call_text(struct plugin *p, const json_t *argv, struct miles_why *why)
{
    char *text = json_dumps(argv, JSON_COMPACT), *answer = NULL;
    json_t *value = NULL;
    json_error_t je;

    if (!text) {
        snprintf(why->text, sizeof why->text, "no memory for the arguments");
        return NULL;
    }
    if (plugin_table(p)->call(plugin_self(p), text, &answer, why) == 0) {
        value = answer ? json_loads(answer, JSON_DECODE_ANY, &je) : json_null();
        if (!value) {
            snprintf(why->text, sizeof why->text, "its answer is not JSON: %.200s", je.text);
        }
    }
    free(answer);
    free(text);
    return value;
}

json_t *hookcall_so(struct plugin *p, const struct plugin_hook *h, const json_t *argv,
                    struct miles_why *why)
{
    return strcmp(h->slot, "reward") == 0  ? call_reward(p, argv, why)
           : strcmp(h->slot, "shape") == 0 ? call_shape(p, argv, why)
                                           : call_text(p, argv, why);
}
