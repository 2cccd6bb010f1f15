/* Owns the choice of grader and the rule that a failure is never a zero. Built-in graders take
 * microseconds and run in hub_submit; their results wait in a list, so that a caller sees one kind
 * of hub whatever scores. */
#include "reward/hub.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "base/status.h"
#include "reward/mathgrade.h"
#include "reward/textgrade.h"
#include "reward/worker.h"

enum { QUEUE_MAX = 4096, TYPE_MAX = 64 };

struct done {
    struct done *next;
    struct hub_result r;
};

struct hub {
    struct worker_pool *workers; /* NULL without a custom function */
    char *rm_type, *reward_key;
    struct done *first, *last;
    int ready;
};

/* What a built-in grader sees and gives. A grader returns 0 with either reward or raw set, or a
 * status with the reason in e. */
struct task {
    int64_t id;
    const json_t *sample;
    const char *response;
    size_t n;
    const json_t *label;
    char *label_text; /* str(label); NULL for null */
    double reward;
    json_t *raw;
};

/* ---- graders ---- */

static int need_label(const struct task *t, struct err *e)
{
    if (!t->label_text) {
        return ERR(e, STATUS_INPUT, "the sample has no label");
    }
    return 0;
}

static int grade_math(struct task *t, struct err *e)
{
    (void)e;
    t->reward = mathgrade_math(t->response, t->n, t->label_text);
    return 0;
}

static int grade_deepscaler(struct task *t, struct err *e)
{
    int rc = need_label(t, e);
    t->reward = rc == 0 && mathgrade_deepscaler(t->response, t->n, t->label_text);
    return rc;
}

static int grade_gemma(struct task *t, struct err *e)
{
    int rc = need_label(t, e);
    t->reward = rc == 0 && mathgrade_gemma(t->response, t->n, t->label_text);
    return rc;
}

static int grade_dapo(struct task *t, struct err *e)
{
    int rc = need_label(t, e);
    return rc ? rc : textgrade_dapo(t->response, t->n, t->label_text, &t->raw, e);
}

static int grade_f1(struct task *t, struct err *e)
{
    int rc = need_label(t, e);
    if (rc == 0) {
        t->reward = textgrade_f1(t->response, t->label_text);
    }
    return rc;
}

/* A coin that falls the same way for the same sample. */
static int grade_random(struct task *t, struct err *e)
{
    char text[80], hex[65];
    json_int_t index = json_integer_value(json_object_get(t->sample, "index"));

    (void)e;
    snprintf(text, sizeof text, "coin %lld %lld", (long long)index, (long long)t->id);
    sha256_hex(text, strlen(text), hex);
    t->reward = hex[0] >= '8';
    return 0;
}

/* Parity of the first byte of SHA-256 over "[1, 2, 3]" (the tokens as Python prints them) and the
 * response. */
static int grade_deterministic(struct task *t, struct err *e)
{
    const json_t *tokens = json_object_get(t->sample, "tokens"), *item;
    struct sha256 s;
    uint8_t digest[32];
    size_t i;

    sha256_init(&s);
    sha256_update(&s, "[", 1);
    json_array_foreach((json_t *)tokens, i, item)
    {
        char text[32];
        if (!json_is_integer(item)) {
            return ERR(e, STATUS_INPUT, "token %zu of the sample is not an integer", i);
        }
        snprintf(text, sizeof text, "%s%lld", i ? ", " : "", (long long)json_integer_value(item));
        sha256_update(&s, text, strlen(text));
    }
    sha256_update(&s, "]", 1);
    sha256_update(&s, t->response, t->n);
    sha256_final(&s, digest);
    t->reward = digest[0] % 2;
    return 0;
}

static const struct grader {
    const char *name;
    int (*grade)(struct task *t, struct err *e);
} graders[] = {
    {"math", grade_math},
    {"deepscaler", grade_deepscaler},
    {"gemma_math", grade_gemma},
    {"dapo", grade_dapo},
    {"f1", grade_f1},
    {"random", grade_random},
    {"deterministic_random", grade_deterministic},
};

/* ---- choice ---- */

/* The grader of a type, without its blanks and its boxed_ prefix. */
static const struct grader *find_grader(const char *type, int *boxed, struct err *e)
{
    static const char prefix[] = "boxed_";
    char name[TYPE_MAX], known[256] = "";
    size_t n;

    type += strspn(type, " \t\r\n");
    n = strlen(type);
    while (n && strchr(" \t\r\n", type[n - 1])) {
        n--;
    }
    if (n == 0) {
        ERR(e, STATUS_INPUT, "no reward is named: give --rm-type or --custom-rm-path");
        return NULL;
    }
    *boxed = n > sizeof prefix - 1 && memcmp(type, prefix, sizeof prefix - 1) == 0;
    if (*boxed) {
        type += sizeof prefix - 1;
        n -= sizeof prefix - 1;
    }
    snprintf(name, sizeof name, "%.*s", (int)(n < TYPE_MAX ? n : TYPE_MAX - 1), type);
    for (size_t i = 0; i < sizeof graders / sizeof *graders; i++) {
        size_t at = strlen(known);
        if (strlen(graders[i].name) == n && strcmp(graders[i].name, name) == 0) {
            return &graders[i];
        }
        snprintf(known + at, sizeof known - at, "%s%s", i ? ", " : "", graders[i].name);
    }
    ERR(e, STATUS_INPUT, "unknown reward type \"%s\"; known are %s (each also with boxed_ before)",
        name, known);
    return NULL;
}

/* The type for a sample: its own, else the run's. "" when there is none. */
static const char *sample_type(const struct hub *h, const json_t *sample)
{
    static const char *const places[] = {"reward_spec", "metadata"};

    for (int i = 0; i < 2; i++) {
        const char *s =
            json_string_value(json_object_get(json_object_get(sample, places[i]), "rm_type"));
        if (s && *s) {
            return s;
        }
    }
    return h->rm_type ? h->rm_type : "";
}

/* ---- labels as Python prints them ---- */

/* repr(float): the shortest digits that give x back, with a point or an exponent. */
static char *float_text(double x)
{
    char digits[40], out[64];
    int prec = 0, exp10;
    char *e;

    do {
        snprintf(digits, sizeof digits, "%.*e", prec++, x);
    } while (prec < 17 && strtod(digits, NULL) != x);
    e = strchr(digits, 'e');
    exp10 = atoi(e + 1);
    if (exp10 < -4 || exp10 >= 16) {
        *e = 0;
        snprintf(out, sizeof out, "%se%c%02d", digits, exp10 < 0 ? '-' : '+', abs(exp10));
    } else {
        int after = prec - 1 - exp10;
        snprintf(out, sizeof out, "%.*f", after > 1 ? after : 1, x);
    }
    return mem_strdup(out);
}

static int make_label(struct task *t, struct err *e)
{
    const json_t *l = t->label;
    char text[32];

    if (json_is_string(l)) {
        if (strlen(json_string_value(l)) != json_string_length(l)) {
            return ERR(e, STATUS_INPUT, "the label has a NUL character");
        }
        t->label_text = mem_strdup(json_string_value(l));
    } else if (json_is_integer(l)) {
        snprintf(text, sizeof text, "%lld", (long long)json_integer_value(l));
        t->label_text = mem_strdup(text);
    } else if (json_is_real(l)) {
        t->label_text = float_text(json_real_value(l));
    } else if (json_is_boolean(l)) {
        t->label_text = mem_strdup(json_is_true(l) ? "True" : "False");
    } else if (l && !json_is_null(l)) {
        return ERR(e, STATUS_INPUT, "the label is neither text nor a number");
    }
    return 0;
}

/* ---- results ---- */

static void push(struct hub *h, const struct hub_result *r)
{
    struct done *d = mem_alloc(sizeof *d);

    d->r = *r;
    if (h->last) {
        h->last->next = d;
    } else {
        h->first = d;
    }
    h->last = d;
    h->ready++;
}

static void set_failed(struct hub_result *r, const char *why)
{
    size_t n = strlen(why);

    if (n >= sizeof r->reason) {
        n = sizeof r->reason - 1;
        while (n && ((unsigned char)why[n] & 0xc0) == 0x80) {
            n--;
        }
    }
    memcpy(r->reason, why, n);
    r->reason[n] = 0;
    r->failed = 1;
    r->reward = 0;
}

/* Takes the number out of a value (which is taken over): itself, or what lies under the key. */
static void set_value(const struct hub *h, struct hub_result *r, json_t *value)
{
    const json_t *v = value;
    char why[256];

    if (json_is_object(value)) {
        v = h->reward_key ? json_object_get(value, h->reward_key) : NULL;
        if (!h->reward_key) {
            set_failed(r, "the reward is a dict: give --reward-key");
        } else if (!json_is_number(v) && !json_is_boolean(v)) {
            snprintf(why, sizeof why, "the reward is a dict with no number under the key %.100s",
                     h->reward_key);
            set_failed(r, why);
        }
        r->raw = value;
    }
    if (!r->failed) {
        r->reward = json_is_boolean(v) ? json_is_true(v) : json_number_value(v);
    }
    if (r->raw != value) {
        json_decref(value);
    }
}

/* ---- public ---- */

int hub_open(const struct hub_opts *o, struct hub **out, struct err *e)
{
    struct hub *h;
    int boxed, rc = 0;

    if (!(o->custom_rm_path && *o->custom_rm_path) && o->rm_type && *o->rm_type &&
        !find_grader(o->rm_type, &boxed, e)) {
        return STATUS_INPUT;
    }
    h = mem_alloc(sizeof *h);
    h->rm_type = mem_strdup(o->rm_type);
    h->reward_key = o->reward_key && *o->reward_key ? mem_strdup(o->reward_key) : NULL;
    if (o->custom_rm_path && *o->custom_rm_path) {
        struct worker_opts w = {.path = o->custom_rm_path,
                                .python = o->python,
                                .count = o->workers,
                                .timeout_s = o->timeout_s,
                                .queue_max = QUEUE_MAX,
                                .args = o->args};
        rc = worker_open(&w, &h->workers, e);
    }
    if (rc != 0) {
        hub_close(h);
        return rc;
    }
    *out = h;
    return 0;
}

/* Scores with a built-in grader. */
static int grade(const struct hub *h, struct task *t, struct err *e)
{
    const json_t *response = json_object_get(t->sample, "response");
    const struct grader *g;
    int boxed = 0, rc;

    if (json_object_get(json_object_get(t->sample, "reward_spec"), "custom_rm_path") &&
        !json_is_null(
            json_object_get(json_object_get(t->sample, "reward_spec"), "custom_rm_path"))) {
        return ERR(e, STATUS_UNSUPPORTED, "a reward function of a single sample is not supported");
    }
    g = find_grader(sample_type(h, t->sample), &boxed, e);
    if (!g) {
        return STATUS_INPUT;
    }
    if (!json_is_string(response)) {
        return ERR(e, STATUS_INPUT, "the sample has no response");
    }
    t->response = json_string_value(response);
    t->n = json_string_length(response);
    t->label = json_object_get(t->sample, "label");
    rc = make_label(t, e);
    if (rc != 0) {
        return rc;
    }
    if (boxed) {
        const char *content = "";
        size_t n = 0;
        char *copy;
        mathgrade_box(t->response, t->n, &content, &n);
        copy = mem_strndup(content, n);
        t->response = copy;
        t->n = n;
        rc = g->grade(t, e);
        mem_free(copy);
        return rc;
    }
    return g->grade(t, e);
}

int hub_submit(struct hub *h, const struct hub_request *r, struct err *e)
{
    struct task t = {.id = r->id, .sample = r->sample};
    struct hub_result res = {.id = r->id};
    struct err why = {0};

    if (h->workers) {
        return worker_submit(h->workers, r->id, r->sample, e);
    }
    if (!json_is_object(r->sample)) {
        return ERR(e, STATUS_INPUT, "the sample of a reward call is not a JSON object");
    }
    if (h->ready >= QUEUE_MAX) {
        return STATUS_AGAIN;
    }
    if (grade(h, &t, &why) != 0) {
        set_failed(&res, why.msg);
    } else if (t.raw) {
        set_value(h, &res, t.raw);
    } else {
        res.reward = t.reward;
    }
    mem_free(t.label_text);
    push(h, &res);
    return 0;
}

int hub_poll(struct hub *h, double wait_s, struct hub_result *out, struct err *e)
{
    struct done *d = h->first;

    if (h->workers) {
        struct worker_result w;
        int rc = worker_poll(h->workers, wait_s, &w, e);
        if (rc != 0) {
            return rc;
        }
        memset(out, 0, sizeof *out);
        out->id = w.id;
        if (w.failed) {
            set_failed(out, w.reason);
        } else {
            set_value(h, out, w.value);
        }
        return 0;
    }
    if (!d) {
        return STATUS_AGAIN;
    }
    h->first = d->next;
    if (!h->first) {
        h->last = NULL;
    }
    h->ready--;
    *out = d->r;
    mem_free(d);
    return 0;
}

int hub_pending(const struct hub *h)
{
    return h->workers ? worker_pending(h->workers) : h->ready;
}

void hub_close(struct hub *h)
{
    if (!h) {
        return;
    }
    worker_close(h->workers);
    while (h->first) {
        struct done *d = h->first;
        h->first = d->next;
        json_decref(d->r.raw);
        mem_free(d);
    }
    mem_free(h->rm_type);
    mem_free(h->reward_key);
    mem_free(h);
}
