/* Owns the sample record and its JSON form. Log-probs are written as the shortest decimal that
 * reads back as the same f32, so a dump replays bit for bit. */
#include "rl/sample.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"

static const char *const sample_names[] = {"pending", "completed", "truncated", "aborted",
                                           "failed"};

static void *sample_copy(const void *p, size_t bytes)
{
    void *out = p ? mem_alloc(bytes ? bytes : 1) : NULL;
    if (out) {
        memcpy(out, p, bytes);
    }
    return out;
}

static void sample_drop_siblings(struct sample *s)
{
    for (int i = 0; i < s->nsiblings; i++) {
        sample_free(s->siblings[i]);
    }
    mem_free(s->siblings);
    s->siblings = NULL;
    s->nsiblings = 0;
}

/* Each is a sample of s's prompt, with the response of its own. */
static void sample_take_siblings(struct sample *s, const struct sample *from)
{
    sample_drop_siblings(s);
    s->siblings = from->nsiblings ? mem_alloc(sizeof *s->siblings * (size_t)from->nsiblings) : NULL;
    s->nsiblings = from->nsiblings;
    for (int i = 0; i < s->nsiblings; i++) {
        struct sample *x = s->siblings[i] = sample_new();
        x->index = s->index;
        x->group_index = s->group_index;
        x->rollout_id = s->rollout_id;
        x->branch = i + 1;
        x->prompt = json_incref(s->prompt);
        x->label = json_incref(s->label);
        sample_take(x, from->siblings[i]);
        x->status = from->siblings[i]->status;
    }
}

void sample_take(struct sample *s, const struct sample *from)
{
    size_t r = (size_t)from->response_len;

    mem_free(s->tokens);
    mem_free(s->logps);
    mem_free(s->mask);
    mem_free(s->segments);
    mem_free(s->response);
    s->prompt_len = from->prompt_len;
    s->response_len = from->response_len;
    s->tokens = sample_copy(from->tokens, sizeof *s->tokens * ((size_t)from->prompt_len + r));
    s->logps = sample_copy(from->logps, sizeof *s->logps * r);
    s->mask = sample_copy(from->mask, r);
    s->nsegments = from->nsegments;
    s->segments = sample_copy(from->segments, sizeof *s->segments * (size_t)from->nsegments);
    s->response = mem_strdup(from->response);
    s->remove = from->remove;
    s->reward = from->reward;
    json_decref(s->raw_reward);
    s->raw_reward = json_incref(from->raw_reward);
    json_decref(s->metadata);
    s->metadata = json_incref(from->metadata);
    sample_take_siblings(s, from);
}

const char *sample_status_name(enum sample_status st)
{
    return sample_names[st];
}

struct sample *sample_new(void)
{
    struct sample *s = mem_alloc(sizeof *s);
    s->reward = NAN;
    return s;
}

void sample_free(struct sample *s)
{
    if (s) {
        json_decref(s->prompt);
        json_decref(s->label);
        json_decref(s->metadata);
        json_decref(s->raw_reward);
        mem_free(s->reason);
        mem_free(s->tokens);
        mem_free(s->mask);
        mem_free(s->logps);
        mem_free(s->segments);
        mem_free(s->response);
        sample_drop_siblings(s);
        mem_free(s);
    }
}

void sample_set(struct sample *s, const int32_t *prompt, int prompt_len, const int32_t *response,
                const float *logps, int response_len, int64_t version, int exact)
{
    mem_free(s->tokens);
    mem_free(s->logps);
    mem_free(s->segments);
    s->tokens = mem_alloc(sizeof(int32_t) * (size_t)(prompt_len + response_len));
    memcpy(s->tokens, prompt, sizeof(int32_t) * (size_t)prompt_len);
    if (response_len) {
        memcpy(s->tokens + prompt_len, response, sizeof(int32_t) * (size_t)response_len);
    }
    s->logps = NULL;
    if (logps) {
        s->logps = mem_alloc(sizeof(float) * (size_t)response_len);
        memcpy(s->logps, logps, sizeof(float) * (size_t)response_len);
    }
    s->prompt_len = prompt_len;
    s->response_len = response_len;
    s->segments = mem_alloc(sizeof *s->segments);
    s->nsegments = 1;
    s->segments[0].len = response_len;
    s->segments[0].version = version;
    s->segments[0].exact = exact;
}

void sample_append(struct sample *s, const int32_t *response, const float *logps, int n,
                   int64_t version, int exact)
{
    size_t len = (size_t)s->prompt_len, had = (size_t)s->response_len, more = (size_t)n;
    struct sample_segment seg = {s->response_len, n, version, SAMPLE_SAMPLED, exact};

    s->tokens =
        mem_realloc(s->tokens, sizeof(int32_t) * (len + had), sizeof(int32_t) * (len + had + more));
    s->logps =
        mem_realloc(s->logps, s->logps ? sizeof(float) * had : 0, sizeof(float) * (had + more + 1));
    if (n) {
        memcpy(s->tokens + len + had, response, sizeof(int32_t) * more);
        memcpy(s->logps + had, logps, sizeof(float) * more);
    }
    if (s->mask) {
        s->mask = mem_realloc(s->mask, had, had + more + 1);
        memset(s->mask + had, 1, more);
    }
    if (!had) {
        s->nsegments = 0;
    }
    s->segments = mem_realloc(s->segments, sizeof seg * (size_t)s->nsegments,
                              sizeof seg * (size_t)(s->nsegments + 1));
    s->segments[s->nsegments++] = seg;
    s->response_len += n;
}

void sample_cut(struct sample *s, int n)
{
    s->response_len = n < s->response_len ? n : s->response_len;
    while (s->nsegments && s->segments[s->nsegments - 1].start >= n) {
        s->nsegments--;
    }
    if (s->nsegments) {
        struct sample_segment *g = &s->segments[s->nsegments - 1];
        g->len = g->start + g->len > n ? n - g->start : g->len;
    }
    mem_free(s->reason);
    json_decref(s->raw_reward);
    s->reason = NULL;
    s->raw_reward = NULL;
    s->reward = NAN;
}

json_t *sample_segments_json(const struct sample *s)
{
    json_t *a = json_array();
    for (int i = 0; i < s->nsegments; i++) {
        const struct sample_segment *g = &s->segments[i];
        json_array_append_new(a, json_pack("{s:i,s:i,s:I,s:i,s:b}", "start", g->start, "len",
                                           g->len, "version", (json_int_t)g->version, "origin",
                                           (int)g->origin, "exact", g->exact));
    }
    return a;
}

static json_t *ints(const int32_t *v, int n)
{
    json_t *a = json_array();
    for (int i = 0; i < n; i++) {
        json_array_append_new(a, json_integer(v[i]));
    }
    return a;
}

/* whole 0: without what there is one of for each token. */
static json_t *sample_json(const struct sample *s, int whole)
{
    json_t *j = json_object(), *a;
    int finite = isfinite(s->reward);

    json_object_set_new(j, "group_index", json_integer(s->group_index));
    json_object_set_new(j, "index", json_integer(s->index));
    json_object_set_new(j, "rollout_id", json_integer(s->rollout_id));
    json_object_set_new(j, "prompt", s->prompt ? json_incref(s->prompt) : json_null());
    if (whole) {
        json_object_set_new(j, "tokens", ints(s->tokens, s->prompt_len + s->response_len));
    }
    json_object_set_new(j, "response", json_string(s->response ? s->response : ""));
    json_object_set_new(j, "response_length", json_integer(s->response_len));
    json_object_set_new(j, "label", s->label ? json_incref(s->label) : json_null());
    json_object_set_new(j, "reward",
                        s->raw_reward ? json_incref(s->raw_reward)
                        : finite      ? json_real(s->reward)
                                      : json_null());
    if (s->raw_reward && finite) { /* the number that was taken from it */
        json_object_set_new(j, "reward_value", json_real(s->reward));
    }
    if (s->reason) {
        json_object_set_new(j, "reward_reason", json_string(s->reason));
    }
    if (s->mask && whole) {
        a = json_array();
        for (int i = 0; i < s->response_len; i++) {
            json_array_append_new(a, json_integer(s->mask[i]));
        }
        json_object_set_new(j, "loss_mask", a);
    } else if (whole) {
        json_object_set_new(j, "loss_mask", json_null());
    }
    a = json_array();
    for (int i = 0; i < s->nsegments; i++) {
        char v[24];
        snprintf(v, sizeof v, "%lld", (long long)s->segments[i].version);
        json_array_append_new(a, json_string(v));
    }
    json_object_set_new(j, "weight_versions", a);
    if (s->nsegments > 1) {
        json_object_set_new(j, "segments", sample_segments_json(s));
    }
    if (s->logps && whole) {
        a = json_array();
        for (int i = 0; i < s->response_len; i++) {
            /* JSON has no infinity: the smallest float stands for it */
            double v = s->logps[i] < -FLT_MAX ? -(double)FLT_MAX : (double)s->logps[i];
            json_array_append_new(a, isfinite(v) ? json_real(v) : json_null());
        }
        json_object_set_new(j, "rollout_log_probs", a);
    } else if (whole) {
        json_object_set_new(j, "rollout_log_probs", json_null());
    }
    json_object_set_new(j, "remove_sample", json_boolean(s->remove));
    json_object_set_new(j, "status", json_string(sample_status_name(s->status)));
    json_object_set_new(j, "metadata", s->metadata ? json_incref(s->metadata) : json_object());
    return j;
}

json_t *sample_to_json(const struct sample *s)
{
    return sample_json(s, 1);
}

json_t *sample_brief_json(const struct sample *s)
{
    return sample_json(s, 0);
}

/* Segments must follow each other and fill the response. */
static int sample_segments(const json_t *list, struct sample *s, struct err *e)
{
    size_t n = json_array_size(list);
    int at = 0;

    s->segments = mem_alloc(sizeof *s->segments * (n + 1));
    for (size_t i = 0; i < n; i++) {
        const json_t *o = json_array_get(list, i);
        struct sample_segment *g = &s->segments[s->nsegments++];
        int64_t start = json_integer_value(json_object_get(o, "start"));
        int64_t len = json_integer_value(json_object_get(o, "len"));
        if (start != at || len < 0 || len > s->response_len - at) {
            return ERR(e, STATUS_INPUT, "sample %lld: segment %zu does not follow the one before",
                       (long long)s->index, i);
        }
        g->start = at;
        g->len = (int)len;
        g->version = json_integer_value(json_object_get(o, "version"));
        g->origin =
            json_integer_value(json_object_get(o, "origin")) ? SAMPLE_INSERTED : SAMPLE_SAMPLED;
        g->exact = json_is_true(json_object_get(o, "exact"));
        at += g->len;
    }
    if (!json_is_array(list) || at != s->response_len) {
        return ERR(e, STATUS_INPUT, "sample %lld: segments of %d tokens for a response of %d",
                   (long long)s->index, at, s->response_len);
    }
    return STATUS_OK;
}

static int sample_arrays(const json_t *j, struct sample *s, struct err *e)
{
    json_t *t = json_object_get(j, "tokens"), *m = json_object_get(j, "loss_mask");
    json_t *l = json_object_get(j, "rollout_log_probs"), *v = json_object_get(j, "weight_versions");
    size_t n = json_array_size(t), r = (size_t)s->response_len;

    if (!json_is_array(t) || s->response_len < 0 || n < r + 1) {
        return ERR(e, STATUS_INPUT,
                   "sample %lld: tokens must be a list with at least one prompt token before "
                   "response_length",
                   (long long)s->index);
    }
    s->prompt_len = (int)(n - r);
    s->tokens = mem_alloc(sizeof(int32_t) * n);
    for (size_t i = 0; i < n; i++) {
        json_t *x = json_array_get(t, i);
        if (!json_is_integer(x) || json_integer_value(x) < 0 || json_integer_value(x) > INT32_MAX) {
            return ERR(e, STATUS_INPUT, "sample %lld: token %zu is no token id",
                       (long long)s->index, i);
        }
        s->tokens[i] = (int32_t)json_integer_value(x);
    }
    if (m && !json_is_null(m)) {
        if (!json_is_array(m) || json_array_size(m) != r) {
            return ERR(e, STATUS_INPUT, "sample %lld: loss_mask has %zu entries for %zu tokens",
                       (long long)s->index, json_array_size(m), r);
        }
        s->mask = mem_alloc(r);
        for (size_t i = 0; i < r; i++) {
            json_t *x = json_array_get(m, i);
            if (!json_is_integer(x) && !json_is_boolean(x)) {
                return ERR(e, STATUS_INPUT, "sample %lld: loss_mask[%zu] is neither 0 nor 1",
                           (long long)s->index, i);
            }
            s->mask[i] = json_is_true(x) || json_integer_value(x) != 0;
        }
    }
    if (l && !json_is_null(l)) {
        if (!json_is_array(l) || json_array_size(l) != r) {
            return ERR(e, STATUS_INPUT,
                       "sample %lld: rollout_log_probs has %zu entries for %zu tokens",
                       (long long)s->index, json_array_size(l), r);
        }
        s->logps = mem_alloc(sizeof(float) * (r ? r : 1));
        for (size_t i = 0; i < r; i++) {
            if (!json_is_number(json_array_get(l, i))) {
                return ERR(e, STATUS_INPUT, "sample %lld: rollout_log_probs[%zu] is no number",
                           (long long)s->index, i);
            }
            s->logps[i] = (float)json_number_value(json_array_get(l, i));
        }
    }
    if (json_object_get(j, "segments")) {
        return sample_segments(json_object_get(j, "segments"), s, e);
    }
    s->segments = mem_alloc(sizeof *s->segments);
    s->nsegments = 1;
    s->segments[0].len = (int)r;
    s->segments[0].version = -1;
    if (json_array_size(v)) {
        json_t *x = json_array_get(v, 0);
        long long ver;
        if (json_is_string(x) && sscanf(json_string_value(x), "%lld", &ver) == 1) {
            s->segments[0].version = ver;
        }
    }
    return STATUS_OK;
}

static int sample_siblings(const json_t *list, struct sample *s, struct err *e)
{
    size_t n = json_array_size(list);
    int rc = STATUS_OK;

    s->siblings = n ? mem_alloc(sizeof *s->siblings * n) : NULL;
    for (size_t i = 0; rc == STATUS_OK && i < n; i++) {
        rc = sample_from_json(json_array_get(list, i), &s->siblings[i], e);
        if (rc == STATUS_OK) {
            s->siblings[i]->branch = (int)i + 1;
            s->nsiblings++;
        }
    }
    return rc;
}

int sample_from_json(const json_t *j, struct sample **out, struct err *e)
{
    struct sample *s;
    json_t *x;
    const char *st;
    int rc;

    if (!json_is_object(j)) {
        return ERR(e, STATUS_INPUT, "a sample must be an object");
    }
    s = sample_new();
    s->index = json_integer_value(json_object_get(j, "index"));
    s->group_index = json_integer_value(json_object_get(j, "group_index"));
    x = json_object_get(j, "rollout_id");
    s->rollout_id = json_is_integer(x) ? json_integer_value(x) : s->index;
    x = json_object_get(j, "response_length");
    s->response_len =
        json_is_integer(x) && json_integer_value(x) >= 0 && json_integer_value(x) < INT32_MAX
            ? (int)json_integer_value(x)
            : -1;
    s->remove = json_is_true(json_object_get(j, "remove_sample"));
    s->prompt = json_incref(json_object_get(j, "prompt"));
    s->label = json_incref(json_object_get(j, "label"));
    s->metadata = json_incref(json_object_get(j, "metadata"));
    s->response = mem_strdup(json_string_value(json_object_get(j, "response")));
    x = json_object_get(j, "reward");
    if (json_is_number(x)) {
        s->reward = json_number_value(x);
    } else if (x && !json_is_null(x)) {
        s->raw_reward = json_incref(x);
        x = json_object_get(j, "reward_value");
        s->reward = json_is_number(x) ? json_number_value(x) : NAN;
    }
    s->reason = mem_strdup(json_string_value(json_object_get(j, "reward_reason")));
    s->status = SAMPLE_COMPLETED;
    st = json_string_value(json_object_get(j, "status"));
    rc = st ? STATUS_INPUT : STATUS_OK;
    for (int i = 0; st && i < 5; i++) {
        if (strcmp(st, sample_names[i]) == 0) {
            s->status = (enum sample_status)i;
            rc = STATUS_OK;
        }
    }
    rc = rc == STATUS_OK
             ? sample_arrays(j, s, e)
             : ERR(e, STATUS_INPUT, "sample %lld: unknown status %s", (long long)s->index, st);
    rc = rc == STATUS_OK ? sample_siblings(json_object_get(j, "siblings"), s, e) : rc;
    if (rc != STATUS_OK) {
        sample_free(s);
        return rc;
    }
    *out = s;
    return STATUS_OK;
}
