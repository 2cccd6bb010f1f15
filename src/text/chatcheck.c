/* Owns the examination of a chat template: small conversations are rendered as a run would render
 * them, and text and tokens of one turn are looked for in the next. */
#include "text/chatcheck.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/status.h"
#include "text/chat.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

#define CHECK_ANSWER "The answer is 4."

struct checker {
    const struct chatcheck_in *in;
    json_t *checks;
    int single, multi;
    int several;   /* a conversation of several turns renders */
    char end[256]; /* text of the token that ends an answer, "" while unknown */
    int32_t end_id;
    struct err *e;
};

struct ids {
    int32_t *v;
    size_t n;
};

/* ---- report ---- */

static void say(struct checker *c, const char *check, const char *result, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static void say(struct checker *c, const char *check, const char *result, const char *fmt, ...)
{
    char detail[1200];
    size_t n;
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(detail, sizeof detail, fmt, ap);
    va_end(ap);
    n = unicode_valid_prefix(detail, strlen(detail)); /* a cut may fall into a character */
    detail[n] = 0;
    json_array_append_new(c->checks, json_pack("{s:s, s:s, s:s}", "check", check, "result", result,
                                               "detail", detail));
}

/* Up to 24 characters of text as they would stand in JSON, for messages; static, four at a time. */
static const char *shown(const char *p, size_t n)
{
    static _Thread_local char out[4][256];
    static _Thread_local int turn;
    size_t len = 0, k;
    uint32_t cp;
    json_t *s;
    char *text;

    for (k = 0; k < 24 && len < n; k++) {
        len += unicode_next(p + len, &cp);
    }
    s = json_stringn(p, len);
    text = s ? json_dumps(s, JSON_ENCODE_ANY) : NULL;
    turn = (turn + 1) % 4;
    snprintf(out[turn], sizeof out[turn], "%s%s", text ? text : "?", len < n ? "..." : "");
    free(text); /* jansson's */
    json_decref(s);
    return out[turn];
}

/* ---- renders and tokens ---- */

static int render(struct checker *c, const json_t *messages, const json_t *tools, int generate,
                  struct chat_text *out, struct err *e)
{
    struct chat_opts o = {.tools = tools,
                          .kwargs = c->in->kwargs,
                          .special = c->in->special,
                          .add_generation_prompt = generate};

    memset(out, 0, sizeof *out);
    return chat_apply(tools && c->in->tooled ? c->in->tooled : c->in->chat, messages, &o, out, e);
}

static int encode(struct checker *c, const char *text, size_t len, struct ids *out)
{
    return tokenizer_encode(c->in->tok, text, len, 0, &out->v, &out->n, c->e);
}

static size_t common(const char *a, size_t na, const char *b, size_t nb)
{
    size_t i = 0;

    while (i < na && i < nb && a[i] == b[i]) {
        i++;
    }
    while (i > 0 && i < na && ((unsigned char)a[i] & 0xc0) == 0x80) {
        i--; /* to a character's beginning */
    }
    return i;
}

static json_t *parsed(const char *text)
{
    json_t *j = json_loads(text, 0, NULL);
    ASSERT(j);
    return j;
}

static json_t *with(const json_t *messages, const char *more)
{
    json_t *all = json_deep_copy(messages), *m = parsed(more);

    json_array_extend(all, m);
    json_decref(m);
    return all;
}

/* ---- conversations a template takes ---- */

#define SYSTEM "{\"role\": \"system\", \"content\": \"Be brief.\"}"
#define USER   "{\"role\": \"user\", \"content\": \"What is 2+2?\"}"
#define BOT    "{\"role\": \"assistant\", \"content\": \"" CHECK_ANSWER "\"}"
#define MORE   "{\"role\": \"user\", \"content\": \"Are you sure?\"}"
#define THINK                                                                                      \
    "{\"role\": \"assistant\", \"content\": \"" CHECK_ANSWER                                       \
    "\", \"reasoning_content\": \"Two and "                                                        \
    "two.\"}"
#define CALL                                                                                       \
    "{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"id\": \"call00001\", "       \
    "\"type\": \"function\", \"function\": {\"name\": \"add\", \"arguments\": {\"a\": 2}}}]}"
#define RESULT                                                                                     \
    "{\"role\": \"tool\", \"tool_call_id\": \"call00001\", \"name\": \"add\", \"content\": "       \
    "\"sum: 4\"}"

static const char check_tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"add\", \"description\": \"Adds.\", "
    "\"parameters\": {\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\", "
    "\"description\": \"first\"}}, \"required\": [\"a\"]}}}]";

static const struct {
    const char *name, *messages;
    int tools;
    const char *shows; /* what should be in the text, or NULL */
    int needed;        /* 1: for single turns, 2: for several */
} kinds[] = {
    {"user", "[" USER "]", 0, "What is 2+2?", 1},
    {"system prompt", "[" SYSTEM ", " USER "]", 0, "Be brief.", 0},
    {"several turns", "[" USER ", " BOT ", " MORE "]", 0, CHECK_ANSWER, 2},
    {"tools offered", "[" USER "]", 1, "add", 0},
    {"tool call and result", "[" USER ", " CALL ", " RESULT "]", 1, "sum: 4", 0},
    {"reasoning", "[" USER ", " THINK "]", 0, "Two and two.", 0},
    {"parts",
     "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"What is 2+2?\"}]}]", 0,
     "What is 2+2?", 0},
};

static void check_kinds(struct checker *c)
{
    json_t *tools = parsed(check_tools);

    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        json_t *m = parsed(kinds[i].messages);
        struct chat_text x;
        struct err e = {0};
        char name[64];
        int rc = render(c, m, kinds[i].tools ? tools : NULL, 1, &x, &e);
        snprintf(name, sizeof name, "renders: %s", kinds[i].name);
        if (rc != STATUS_OK) {
            say(c, name, kinds[i].needed ? "fails" : "refused", "%s", e.msg);
            c->single &= kinds[i].needed != 1;
            c->multi &= !kinds[i].needed;
        } else if (!memmem(x.text, x.len, kinds[i].shows, strlen(kinds[i].shows))) {
            say(c, name, kinds[i].needed ? "fails" : "note", "%s is not in the text",
                shown(kinds[i].shows, strlen(kinds[i].shows)));
            c->single &= kinds[i].needed != 1;
            c->multi &= !kinds[i].needed;
        } else {
            say(c, name, "ok", "%zu bytes", x.len);
        }
        chat_text_fini(&x);
        json_decref(m);
    }
    json_decref(tools);
}

/* ---- how a prompt begins and an answer ends ---- */

static int check_generation(struct checker *c)
{
    json_t *m = parsed("[" USER "]");
    struct chat_text on = {0}, off = {0};
    size_t same;
    int rc = render(c, m, NULL, 1, &on, c->e);

    if (rc == STATUS_OK) {
        rc = render(c, m, NULL, 0, &off, c->e);
    }
    if (rc == STATUS_OK) {
        same = common(off.text, off.len, on.text, on.len);
        if (same < off.len) {
            say(c, "generation prompt", "note",
                "with it the text differs already at byte %zu: %s, without it %s", same,
                shown(on.text + same, on.len - same), shown(off.text + same, off.len - same));
        } else if (on.len == off.len) {
            say(c, "generation prompt", "note",
                "there is none: the prompt ends with the user's turn");
        } else {
            say(c, "generation prompt", "ok", "%s", shown(on.text + same, on.len - same));
        }
    }
    chat_text_fini(&on);
    chat_text_fini(&off);
    json_decref(m);
    return rc;
}

static int32_t check_special_id(const struct checker *c, const char *name)
{
    const char *text = json_string_value(json_object_get(c->in->special, name));
    return text ? tokenizer_id(c->in->tok, text) : -1;
}

static int check_bos(struct checker *c)
{
    int32_t bos = check_special_id(c, "bos_token");
    json_t *m = parsed("[" USER "]");
    struct chat_text x = {0};
    struct ids plain = {0}, added = {0};
    int rc = render(c, m, NULL, 1, &x, c->e);

    if (rc == STATUS_OK && (rc = encode(c, x.text, x.len, &plain)) == STATUS_OK) {
        rc = tokenizer_encode(c->in->tok, x.text, x.len, 1, &added.v, &added.n, c->e);
    }
    if (rc == STATUS_OK && plain.n > 1 && bos >= 0 && plain.v[0] == bos && plain.v[1] == bos) {
        say(c, "bos", "fails", "the prompt begins with it twice");
        c->single = c->multi = 0;
    } else if (rc == STATUS_OK && plain.n && bos >= 0 && plain.v[0] == bos) {
        say(c, "bos", added.n > plain.n ? "note" : "ok",
            added.n > plain.n
                ? "the template writes it, and the tokenizer would add it once more: rendered text "
                  "must be tokenised without special tokens, as it is here"
                : "the template writes it, once");
    } else if (rc == STATUS_OK && added.n > plain.n && bos >= 0 && added.v[0] == bos) {
        say(c, "bos", "note",
            "the tokenizer puts it before every text, but the template does not write it: prompts "
            "have none");
    } else if (rc == STATUS_OK) {
        say(c, "bos", "ok", "none, as the tokenizer has it");
    }
    mem_free(plain.v);
    mem_free(added.v);
    chat_text_fini(&x);
    json_decref(m);
    return rc;
}

static int is_stop(const struct checker *c, int32_t id)
{
    for (size_t i = 0; i < c->in->nstops; i++) {
        if (c->in->stops[i] == id) {
            return 1;
        }
    }
    return id == check_special_id(c, "eos_token");
}

static void list_stops(const struct checker *c, char *out, size_t size)
{
    size_t at = 0;

    out[0] = 0;
    for (size_t i = 0; i < c->in->nstops && at + 16 < size; i++) {
        at += (size_t)snprintf(out + at, size - at, "%s%d", i ? ", " : "", c->in->stops[i]);
    }
}

/* Sets c->end: the first token behind the answer's text. */
static int check_stop(struct checker *c)
{
    json_t *m = parsed("[" USER ", " BOT "]");
    struct chat_text x = {0};
    struct ids tail = {0};
    const char *at = NULL, *p, *bytes = NULL;
    size_t len, size = 0;
    char stops[256];
    struct err refusal = {0};
    int rc = render(c, m, NULL, 0, &x, &refusal);

    list_stops(c, stops, sizeof stops);
    if (rc != STATUS_OK) {
        say(c, "stop token", "note", "unknown, because an answer cannot be rendered: %s",
            refusal.msg);
        c->multi = 0;
        rc = STATUS_OK;
        goto out;
    }
    for (p = x.text; (p = strstr(p, CHECK_ANSWER)); p++) {
        at = p;
    }
    if (!at) {
        say(c, "stop token", "fails", "the answer's text is not in the rendered conversation");
        c->single = c->multi = 0;
        goto out;
    }
    at += sizeof CHECK_ANSWER - 1;
    len = x.len - (size_t)(at - x.text);
    rc = encode(c, at, len, &tail);
    if (rc != STATUS_OK) {
        goto out;
    }
    if (tail.n) {
        bytes = tokenizer_token_bytes(c->in->tok, tail.v[0], &size);
    }
    if (!bytes || size >= sizeof c->end ||
        (!tokenizer_is_special(c->in->tok, tail.v[0]) && !is_stop(c, tail.v[0]))) {
        say(c, "stop token", "fails",
            "an answer ends with %s, which is no special token: nothing says where to stop",
            shown(at, len));
        c->single = c->multi = 0;
        goto out;
    }
    memcpy(c->end, bytes, size);
    c->end[size] = 0;
    c->end_id = tail.v[0];
    if (is_stop(c, c->end_id)) {
        say(c, "stop token", "ok", "%s (%d)", c->end, c->end_id);
    } else {
        say(c, "stop token", "fails",
            "an answer ends with %s (%d), but generation stops at %s%s: answers would run on; name "
            "it "
            "in generation_config.json or with --rollout-stop-token-ids",
            c->end, c->end_id, stops[0] ? stops : "no token", stops[0] ? " only" : "");
        c->single = c->multi = 0;
    }
out:
    mem_free(tail.v);
    chat_text_fini(&x);
    json_decref(m);
    return rc;
}

/* Tags of the shape <|name|> that the template writes, and that are no tokens here. */
static int check_tags(struct checker *c)
{
    json_t *m = parsed("[" USER "]");
    struct chat_text x = {0};
    char tag[64];
    int rc = render(c, m, NULL, 1, &x, c->e), strange = 0;

    for (const char *p = rc == STATUS_OK ? strstr(x.text, "<|") : NULL; p;
         p = strstr(p + 2, "<|")) {
        const char *end = strstr(p, "|>");
        size_t n = end ? (size_t)(end + 2 - p) : 0;
        if (!n || n >= sizeof tag || strange) {
            continue;
        }
        memcpy(tag, p, n);
        tag[n] = 0;
        if (tokenizer_id(c->in->tok, tag) < 0) {
            say(c, "tags", "note",
                "%s is no token of this tokenizer: is the template that of another model?", tag);
            strange = 1;
        }
    }
    if (rc == STATUS_OK && !strange) {
        say(c, "tags", "ok", "each <|tag|> is one token");
    }
    chat_text_fini(&x);
    json_decref(m);
    return rc;
}

/* ---- one turn after another ---- */

/* What was sampled after `before`. raw: that text. Else it is read off how the template renders the
 * answer when it is the last: what stands behind the prompt, up to the end of turn; NULL when the
 * answer does not continue the prompt, and *at says from which byte on. */
static char *sampled_of(const struct checker *c, const struct chat_text *before,
                        const struct chat_text *last, const char *raw, size_t *at)
{
    const char *p, *end = NULL;
    struct buf b;

    if (raw) {
        buf_init(&b, 1 << 20);
        buf_str(&b, raw);
        buf_str(&b, c->end);
        return buf_take(&b, NULL);
    }
    *at = common(before->text, before->len, last->text, last->len);
    if (*at < before->len) {
        return NULL;
    }
    for (p = last->text + *at; (p = strstr(p, c->end)); p++) {
        end = p + strlen(c->end);
    }
    return end ? mem_strndup(last->text + *at, (size_t)(end - last->text) - *at)
               : mem_strndup(last->text + *at, last->len - *at);
}

/* prompt + sampled + rest, tokenised piece by piece, against `next` tokenised whole. */
static int tokens_equal(struct checker *c, const struct chat_text *before, const char *sampled,
                        const struct chat_text *next, char *why, size_t size)
{
    size_t cut = before->len + strlen(sampled), i, at = 0;
    struct ids part[3] = {{0}, {0}, {0}}, whole = {0};
    int rc;

    why[0] = 0;
    if ((rc = encode(c, before->text, before->len, &part[0])) ||
        (rc = encode(c, sampled, strlen(sampled), &part[1])) ||
        (rc = encode(c, next->text + cut, next->len - cut, &part[2])) ||
        (rc = encode(c, next->text, next->len, &whole))) {
        goto out;
    }
    for (i = 0; i < 3 && !why[0]; i++) {
        for (size_t k = 0; k < part[i].n && !why[0]; k++, at++) {
            if (at >= whole.n || whole.v[at] != part[i].v[k]) {
                size_t na = 0, nb = 0;
                const char *a = tokenizer_token_bytes(c->in->tok, part[i].v[k], &na);
                const char *b =
                    at < whole.n ? tokenizer_token_bytes(c->in->tok, whole.v[at], &nb) : NULL;
                snprintf(why, size, "token %zu is %d %s when kept and %d %s when tokenised anew",
                         at, part[i].v[k], a ? shown(a, na) : "", b ? whole.v[at] : -1,
                         b ? shown(b, nb) : "(none)");
            }
        }
    }
    if (!why[0] && at != whole.n) {
        snprintf(why, size, "%zu tokens when kept and %zu when tokenised anew", at, whole.n);
    }
out:
    for (i = 0; i < 3; i++) {
        mem_free(part[i].v);
    }
    mem_free(whole.v);
    return rc;
}

/* The beginning of the tag that byte `at` stands in, so that a message shows it whole. */
static size_t tag_of(const char *text, size_t at)
{
    for (size_t k = at; k > 0 && at - k < 24 && text[k - 1] != '>'; k--) {
        if (text[k - 1] == '<') {
            return k - 1;
        }
    }
    return at;
}

/* One step of a conversation. */
struct turn {
    struct chat_text prompt; /* what the answer was sampled from */
    struct chat_text last;   /* the answer as the last message */
    struct chat_text next;   /* the next prompt */
    char why[900];           /* what is not kept, "" when all is */
};

/* Fills x->why. raw as for sampled_of. */
static int turn_judge(struct checker *c, struct turn *x, const char *raw)
{
    size_t same = 0, tag;
    struct buf want;
    char *sampled = sampled_of(c, &x->prompt, &x->last, raw, &same);
    int rc = STATUS_OK;

    x->why[0] = 0;
    if (!sampled) {
        tag = tag_of(x->prompt.text, same);
        snprintf(x->why, sizeof x->why,
                 "an answer in the conversation does not continue the prompt it was sampled from: "
                 "byte %zu of the prompt is %s, there it is %s",
                 tag, shown(x->prompt.text + tag, x->prompt.len - tag),
                 shown(x->last.text + tag, x->last.len - tag));
        return rc;
    }
    buf_init(&want, 1 << 26);
    buf_add(&want, x->prompt.text, x->prompt.len);
    buf_str(&want, sampled);
    same = common(want.data, want.len, x->next.text, x->next.len);
    if (same < want.len) {
        tag = tag_of(want.data, same);
        snprintf(
            x->why, sizeof x->why,
            "the next prompt does not keep the answer: at byte %zu it has %s where %s was sampled",
            tag, shown(x->next.text + tag, x->next.len - tag),
            shown(want.data + tag, want.len - tag));
    } else {
        rc = tokens_equal(c, &x->prompt, sampled, &x->next, x->why, sizeof x->why);
    }
    buf_fini(&want);
    mem_free(sampled);
    return rc;
}

/* The prompt `before`, an answer, and what follows it. raw: the answer's text as it may be sampled,
 * NULL for as the template writes it; where raw text is not kept and `hard` is 0, the template's
 * own writing is tried, since its models may sample that. hard: differences are notes, because few
 * templates keep such answers. *kept (may be NULL): whether raw was. */
static int check_turn(struct checker *c, const char *name, const json_t *before, const char *answer,
                      const char *raw, const char *after, const json_t *tools, int hard, int *kept)
{
    json_t *with_answer = with(before, answer), *all = with(with_answer, after);
    struct turn x = {.why = ""};
    struct err refusal = {0};
    int rc;

    if (render(c, before, tools, 1, &x.prompt, &refusal) ||
        render(c, with_answer, tools, 0, &x.last, &refusal) ||
        render(c, all, tools, 1, &x.next, &refusal)) {
        say(c, name, "refused", "%s", refusal.msg);
        rc = STATUS_OK;
        goto out;
    }
    rc = turn_judge(c, &x, raw);
    if (kept) {
        *kept = rc == STATUS_OK && !x.why[0];
    }
    if (rc == STATUS_OK && x.why[0] && raw && !hard) {
        rc = turn_judge(c, &x, NULL);
    }
    if (rc == STATUS_OK && x.why[0]) {
        say(c, name, hard ? "note" : "fails", "%s", x.why);
        c->multi &= hard;
    } else if (rc == STATUS_OK) {
        say(c, name, "ok", "kept in text and tokens");
    }
out:
    chat_text_fini(&x.prompt);
    chat_text_fini(&x.last);
    chat_text_fini(&x.next);
    json_decref(with_answer);
    json_decref(all);
    return rc;
}

/* Whether the template writes a message's reasoning at all. */
static int shows_reasoning(struct checker *c)
{
    json_t *m = parsed("[" USER ", " THINK "]");
    struct chat_text x = {0};
    struct err e = {0};
    int yes = render(c, m, NULL, 0, &x, &e) == STATUS_OK && strstr(x.text, "Two and two.");

    chat_text_fini(&x);
    json_decref(m);
    return yes;
}

static int shows_calls(struct checker *c, const json_t *tools)
{
    json_t *m = parsed("[" USER ", " CALL "]");
    struct chat_text x = {0}, without = {0};
    json_t *before = parsed("[" USER "]");
    struct err e = {0};
    int yes = render(c, m, tools, 0, &x, &e) == STATUS_OK &&
              render(c, before, tools, 0, &without, &e) == STATUS_OK && x.len > without.len &&
              strstr(x.text + common(without.text, without.len, x.text, x.len), "add");

    chat_text_fini(&x);
    chat_text_fini(&without);
    json_decref(m);
    json_decref(before);
    return yes;
}

static int check_hard(struct checker *c, const json_t *before)
{
    static const struct {
        const char *name, *text;
    } hard[] = {
        {"answer beginning with a newline", "\nFour"},
        {"answer beginning with a blank", " Four"},
        {"answer ending with white space", "Four \n"},
        {"answer with odd characters", "e\u0301 \U0001f642 \u00a0x"},
    };
    int rc = STATUS_OK;

    for (size_t i = 0; i < sizeof hard / sizeof *hard && rc == STATUS_OK; i++) {
        json_t *m = json_pack("[{s:s, s:s}]", "role", "assistant", "content", hard[i].text);
        char *answer = json_dumps(m, 0);
        rc = check_turn(c, hard[i].name, before, answer, hard[i].text, "[" MORE "]", NULL, 1, NULL);
        free(answer); /* jansson's */
        json_decref(m);
    }
    return rc;
}

static int check_turns(struct checker *c)
{
    json_t *one = parsed("[" USER "]"), *two = parsed("[" USER ", " BOT ", " MORE "]");
    json_t *tools = parsed(check_tools);
    int rc, raw = 0;

    if ((rc = check_turn(c, "keeps: first answer", one, "[" BOT "]", CHECK_ANSWER, "[" MORE "]",
                         NULL, 0, &raw)) ||
        (rc = check_turn(c, "keeps: second answer", two, "[" BOT "]", CHECK_ANSWER, "[" MORE "]",
                         NULL, 0, NULL))) {
        goto out;
    }
    if (shows_reasoning(c)) {
        rc = check_turn(c, "keeps: reasoning", one, "[" THINK "]", NULL, "[" MORE "]", NULL, 0,
                        NULL);
    } else {
        say(c, "keeps: reasoning", "note", "the template does not write reasoning_content");
    }
    if (rc == STATUS_OK && shows_calls(c, tools)) {
        rc = check_turn(c, "keeps: tool call", one, "[" CALL "]", NULL, "[" RESULT "]", tools, 0,
                        NULL);
    } else if (rc == STATUS_OK) {
        say(c, "keeps: tool call", "note", "the template does not write tool calls");
    }
    if (rc == STATUS_OK && raw) {
        rc = check_hard(c, one);
    }
out:
    json_decref(one);
    json_decref(two);
    json_decref(tools);
    return rc;
}

int chatcheck_run(const struct chatcheck_in *in, json_t **report, struct err *e)
{
    struct checker c = {.in = in, .single = 1, .multi = 1, .end_id = -1, .e = e};
    json_t *end;
    int rc = STATUS_OK;

    c.checks = json_array();
    check_kinds(&c);
    c.several = c.multi;
    if (c.single && (rc = check_generation(&c)) == STATUS_OK && (rc = check_bos(&c)) == STATUS_OK &&
        (rc = check_tags(&c)) == STATUS_OK) {
        rc = check_stop(&c);
    }
    if (rc == STATUS_OK && c.several && c.end[0]) {
        rc = check_turns(&c);
    }
    if (rc != STATUS_OK) {
        json_decref(c.checks);
        return rc;
    }
    end = c.end[0] ? json_pack("{s:s, s:i}", "text", c.end, "id", (int)c.end_id) : json_null();
    *report = json_pack("{s:b, s:b, s:o, s:o}", "single_turn", c.single, "multi_turn", c.multi,
                        "end_of_turn", end, "checks", c.checks);
    return STATUS_OK;
}
