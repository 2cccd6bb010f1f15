/* Owns the table of reward types and the small graders: what each takes from a sample, what it
 * gives, and the reason it tells. The larger graders have files of their own; here they are wrapped
 * so that the hub sees one kind of function. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "base/status.h"
#include "reward/gpqa.h"
#include "reward/hub_int.h"
#include "reward/mathequal.h"
#include "reward/mathgrade.h"
#include "reward/textgrade.h"

enum { TYPE_MAX = 64 };

/* ---- reasons ---- */

const char *hub_class_name(enum hub_class c)
{
    static const char *const names[HUB_NCLASSES] = {"right",  "wrong",      "partial",  "no_answer",
                                                    "scored", "bad_sample", "bad_type", "bad_value",
                                                    "late",   "broken"};

    return names[c];
}

void hub_line(char *out, size_t size, const char *s, size_t n)
{
    const uint8_t *p = (const uint8_t *)s, *end = p + n;
    size_t at = 0, keep = 0; /* keep: where "..." still fits */

    while (p < end) {
        utf8proc_int32_t c;
        utf8proc_ssize_t k = utf8proc_iterate(p, end - p, &c);
        char one = k <= 0 ? '?' : c < ' ' || (c >= 0x7f && c < 0xa0) ? ' ' : 0;
        size_t len = one ? 1 : (size_t)k;
        if (at + len >= size) {
            memcpy(out + keep, "...", 4);
            return;
        }
        memcpy(out + at, one ? (const void *)&one : p, len);
        at += len;
        keep = at + 4 <= size ? at : keep;
        p += k > 0 ? k : 1;
    }
    out[at] = 0;
}

void hub_say(struct hub_task *t, enum hub_class why, const char *fmt, ...)
{
    char text[1024];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    hub_line(t->reason, sizeof t->reason, text, strlen(text));
    t->why = why;
}

void hub_failed(struct hub_result *r, enum hub_class why, const char *reason)
{
    hub_line(r->reason, sizeof r->reason, reason, strlen(reason));
    r->failed = 1;
    r->reward = 0;
    r->why = why;
}

/* ---- mathematics ---- */

/* Takes a verdict over. Where only algebra decides, the question is left in the task. */
static int take_verdict(struct hub_task *t, const char *type, struct mathverdict *v, struct err *e)
{
    static const char *const missing[] = {"no closed \\boxed{} in the answer", "neither </think>",
                                          "no \\boxed{}", "the last \\boxed{",
                                          "the answer is empty"};
    enum hub_class why = v->right ? HUB_RIGHT : HUB_WRONG;

    for (size_t i = 0; !v->right && i < sizeof missing / sizeof *missing; i++) {
        if (strncmp(v->reason, missing[i], strlen(missing[i])) == 0) {
            why = HUB_NO_ANSWER;
        }
    }
    hub_say(t, why, "%s: %s", type, v->reason);
    t->reward = v->right == 1;
    if (v->right < 0 && v->ask) {
        t->ask = v->ask;
        return STATUS_AGAIN;
    }
    return v->right < 0 ? ERR(e, STATUS_INPUT, "%s", t->reason) : STATUS_OK;
}

static int grade_math(struct hub_task *t, struct err *e)
{
    struct mathverdict v;

    mathgrade_math_why(t->response, t->n, t->label_text, &v);
    return take_verdict(t, "math", &v, e);
}

static int grade_deepscaler(struct hub_task *t, struct err *e)
{
    struct mathverdict v;

    mathgrade_deepscaler_why(t->response, t->n, t->label_text, &v);
    return take_verdict(t, "deepscaler", &v, e);
}

static int grade_gemma(struct hub_task *t, struct err *e)
{
    struct mathverdict v;

    mathgrade_gemma_why(t->response, t->n, t->label_text, &v);
    return take_verdict(t, "gemma_math", &v, e);
}

static int grade_equal(struct hub_task *t, struct err *e)
{
    struct mathverdict v;

    mathequal_grade(t->response, t->n, t->label_text, &v);
    return take_verdict(t, "math_equal", &v, e);
}

/* ---- text ---- */

static int grade_dapo(struct hub_task *t, struct err *e)
{
    int rc = textgrade_dapo(t->response, t->n, t->label_text, &t->raw, e);
    char given[HUB_TEXT / 2], truth[HUB_TEXT / 2];
    const char *pred;

    if (rc != 0) {
        return rc;
    }
    pred = json_string_value(json_object_get(t->raw, "pred"));
    hub_line(given, sizeof given, pred, strlen(pred));
    hub_line(truth, sizeof truth, t->label_text, strlen(t->label_text));
    if (json_is_true(json_object_get(t->raw, "acc"))) {
        hub_say(t, HUB_RIGHT, "dapo: %s is %s", given, truth);
    } else if (strcmp(pred, "[INVALID]") == 0) {
        hub_say(t, HUB_NO_ANSWER, "dapo: no \"Answer: ...\" in the last 300 characters");
    } else {
        hub_say(t, HUB_WRONG, "dapo: %s is not %s", given, truth);
    }
    return 0;
}

static int grade_f1(struct hub_task *t, struct err *e)
{
    struct textgrade_words w;

    (void)e;
    t->reward = textgrade_f1(t->response, t->label_text, &w);
    if (w.contradicts) {
        hub_say(t, HUB_WRONG, "f1: yes, no and noanswer must be met exactly");
    } else if (w.answer == 0) {
        hub_say(t, HUB_NO_ANSWER, "f1: no words in the response");
    } else {
        hub_say(t,
                t->reward == 1  ? HUB_RIGHT
                : t->reward > 0 ? HUB_PARTIAL
                                : HUB_WRONG,
                "f1: %zu words in common, of %zu in the response and %zu in the label", w.common,
                w.answer, w.truth);
    }
    return 0;
}

static int grade_gpqa(struct hub_task *t, struct err *e)
{
    struct gpqa_verdict v;
    int rc = gpqa_grade(t->response, t->n, t->label, t->metadata, &v, e);

    if (rc == 0) {
        t->reward = v.right;
        hub_say(t,
                v.right      ? HUB_RIGHT
                : v.answered ? HUB_WRONG
                             : HUB_NO_ANSWER,
                "gpqa: %s", v.reason);
    }
    return rc;
}

/* ---- coins ---- */

/* Falls the same way for the same sample. */
static int grade_random(struct hub_task *t, struct err *e)
{
    char text[80], hex[65];
    json_int_t index = json_integer_value(json_object_get(t->sample, "index"));

    (void)e;
    snprintf(text, sizeof text, "coin %lld %lld", (long long)index, (long long)t->id);
    sha256_hex(text, strlen(text), hex);
    t->reward = hex[0] >= '8';
    hub_say(t, HUB_SCORED, "random: a coin");
    return 0;
}

/* Parity of the first byte of SHA-256 over "[1, 2, 3]" (the tokens as Python prints them) and the
 * response. */
static int grade_deterministic(struct hub_task *t, struct err *e)
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
    hub_say(t, HUB_SCORED, "deterministic_random: the hash begins with byte %d", digest[0]);
    return 0;
}

/* ---- the table ---- */

static const struct hub_type types[] = {
    {.name = "math", .grade = grade_math, .needs = HUB_NO_LABEL},
    {.name = "deepscaler", .grade = grade_deepscaler},
    {.name = "gemma_math", .grade = grade_gemma},
    {.name = "math_equal", .grade = grade_equal, .needs = HUB_SLOW},
    {.name = "dapo", .grade = grade_dapo},
    {.name = "f1", .grade = grade_f1},
    {.name = "gpqa", .grade = grade_gpqa, .needs = HUB_NO_LABEL},
    {.name = "ifbench", .open = hub_calls_open_ifbench, .send = hub_calls_ifbench},
    {.name = "code", .open = hub_code_open, .send = hub_code_send},
    {.name = "random", .grade = grade_random, .needs = HUB_NO_LABEL},
    {.name = "deterministic_random",
     .grade = grade_deterministic,
     .needs = HUB_TOKENS | HUB_NO_LABEL},
    {.name = "remote_rm", .open = hub_calls_open_remote, .send = hub_calls_remote},
};

enum { NTYPES = sizeof types / sizeof *types };

void hub_type_list(struct buf *out)
{
    for (int i = 0; i < NTYPES; i++) {
        buf_printf(out, "%s%s", i ? ", " : "", types[i].name);
    }
}

const struct hub_type *hub_type_find(const char *type, int *boxed, struct err *e)
{
    static const char prefix[] = "boxed_";
    char name[TYPE_MAX];
    struct buf known;
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
    for (int i = 0; i < NTYPES; i++) {
        if (strlen(types[i].name) == n && memcmp(types[i].name, type, n) == 0) {
            return &types[i];
        }
    }
    hub_line(name, sizeof name, type, n);
    buf_init(&known, 4096);
    hub_type_list(&known);
    ERR(e, STATUS_INPUT, "unknown reward type \"%s\"; known are %s (each also with boxed_ before)",
        name, known.data);
    buf_fini(&known);
    return NULL;
}

int hub_type_check(const char *type, struct err *e)
{
    int boxed;

    return hub_type_find(type, &boxed, e) ? 0 : STATUS_INPUT;
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

static int make_label(struct hub_task *t, struct err *e)
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

/* ---- scoring ---- */

static int run_grader(const struct hub_type *g, int boxed, struct hub_task *t, struct err *e)
{
    const json_t *response = json_object_get(t->sample, "response");
    char *content = NULL;
    int rc;

    if (!json_is_string(response)) {
        return ERR(e, STATUS_INPUT, "the sample has no response");
    }
    t->response = json_string_value(response);
    t->n = json_string_length(response);
    t->label = json_object_get(t->sample, "label");
    t->metadata = json_object_get(t->sample, "metadata");
    rc = make_label(t, e);
    if (rc == 0 && !t->label_text && !(g->needs & HUB_NO_LABEL)) {
        rc = ERR(e, STATUS_INPUT, "the sample has no label");
    }
    if (rc == 0 && boxed) {
        const char *in = "";
        size_t n = 0;
        mathgrade_box(t->response, t->n, &in, &n);
        t->response = content = mem_strndup(in, n);
        t->n = n;
    }
    rc = rc == 0 ? g->grade(t, e) : rc;
    mem_free(content);
    mem_free(t->label_text);
    t->label_text = NULL;
    return rc;
}

void hub_type_grade(const struct hub_type *g, int boxed, struct hub_task *t, struct hub_result *out)
{
    struct err e = {0};
    int rc = run_grader(g, boxed, t, &e);

    if (rc != STATUS_OK && rc != STATUS_AGAIN) {
        json_decref(t->raw);
        hub_failed(out,
                   rc == STATUS_INPUT     ? HUB_BAD_SAMPLE
                   : rc == STATUS_TIMEOUT ? HUB_LATE
                                          : HUB_BROKEN,
                   e.msg);
        return;
    }
    out->reward = t->reward;
    out->raw = t->raw;
    out->why = t->why;
    memcpy(out->reason, t->reason, sizeof out->reason);
}
