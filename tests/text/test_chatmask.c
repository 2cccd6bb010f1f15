/* Loss masks of conversations. With --mask the program is a filter for tests/live/templates.py:
 * lines in {"tokenizer": PATH, "template": TEXT, "kind", "messages", "tools", "special"}, lines out
 * {"ids", "mask", "response", "differs"} or {"error"}. */
#include "support.h"

#include <jansson.h>

#include "base/fsio.h"
#include "base/mem.h"
#include "text/chat.h"
#include "text/chatmask.h"
#include "text/tokenizer.h"

static const char chatml[] =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' "
    "}}{% endif %}";

static const char marked[] =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n'}}"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}<|im_end|>"
    "{% endgeneration %}{% else %}{{ message.content }}<|im_end|>{% endif %}\n\n{% endfor %}";

/* Drops the thinking of all turns but the last, as Qwen3 does. */
static const char forgetful[] =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' }}"
    "{% if message.role == 'assistant' and loop.last %}<think>x</think>{% endif %}"
    "{{ message['content'] + '<|im_end|>\n'}}{% endfor %}{% if add_generation_prompt %}{{ "
    "'<|im_start|>assistant\n' }}{% endif %}";

static int kind_of(const char *name)
{
    static const char *const names[] = {"auto", "marks", "prefix", "qwen", "qwen3", "distill_qwen"};
    for (int i = 0; i < 6; i++) {
        if (strcmp(names[i], name) == 0) {
            return i;
        }
    }
    return -1;
}

/* ---- the filter ---- */

static json_t *mask_line(const json_t *in, const struct tokenizer *tok)
{
    struct chat_opts o = {.tools = json_object_get(in, "tools"),
                          .special = json_object_get(in, "special")};
    int kind = kind_of(json_string_value(json_object_get(in, "kind")));
    struct chat_template *t = NULL;
    struct chatmask m = {0};
    struct err e = {0};
    json_t *out, *ids = json_array(), *mask = json_array();
    int rc = chat_template_new(json_string_value(json_object_get(in, "template")), &t, &e);

    if (rc == 0) {
        rc = chatmask_make(t, tok, (enum chatmask_kind)kind, json_object_get(in, "messages"), &o,
                           &m, &e);
    }
    for (size_t i = 0; i < m.n; i++) {
        json_array_append_new(ids, json_integer(m.ids[i]));
        json_array_append_new(mask, json_integer(m.mask[i]));
    }
    out = rc ? json_pack("{s:s, s:s}", "error", e.msg, "status", status_name(rc))
             : json_pack("{s:O, s:O, s:I, s:I}", "ids", ids, "mask", mask, "response",
                         (json_int_t)m.response, "differs", (json_int_t)m.differs);
    json_decref(ids);
    json_decref(mask);
    chatmask_fini(&m);
    chat_template_free(t);
    return out;
}

static struct tokenizer *open_tokenizer(const char *path)
{
    struct tokenizer *tok = NULL;
    struct err e = {0};
    char *json = NULL;
    size_t len;
    int rc = fsio_read(path, 1 << 26, &json, &len, &e);

    if (rc == 0) {
        rc = tokenizer_open(json, &tok, &e);
    }
    if (rc) {
        fprintf(stderr, "%s: %s\n", path, e.msg);
    }
    mem_free(json);
    return tok;
}

static int mask_filter(void)
{
    struct tokenizer *tok = NULL;
    char *line = NULL, *path = NULL;
    size_t cap = 0;
    ssize_t n;
    int rc = 0;

    while (rc == 0 && (n = getline(&line, &cap, stdin)) > 0) {
        json_t *in = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, NULL), *out;
        const char *want = json_string_value(json_object_get(in, "tokenizer"));
        if (want && (!path || strcmp(path, want) != 0)) {
            tokenizer_close(tok);
            mem_free(path);
            path = mem_strdup(want);
            tok = open_tokenizer(want);
        }
        rc = in && tok ? 0 : 2;
        if (rc == 0) {
            out = mask_line(in, tok);
            json_dumpf(out, stdout, JSON_COMPACT | JSON_ENSURE_ASCII);
            putchar('\n');
            json_decref(out);
        }
        json_decref(in);
    }
    free(line);
    mem_free(path);
    tokenizer_close(tok);
    return rc;
}

/* ---- tests ---- */

static struct tokenizer *tok;

static int setup(void **state)
{
    (void)state;
    tok = open_tokenizer(support_data("tokenizers/qwen3/tokenizer.json"));
    return tok ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    tokenizer_close(tok);
    return 0;
}

static int make(const char *tmpl, const char *kind, const char *messages, struct chatmask *m,
                struct err *e)
{
    json_t *j = json_loads(messages, 0, NULL);
    struct chat_template *t = NULL;
    int rc;

    memset(m, 0, sizeof *m);
    memset(e, 0, sizeof *e);
    assert_non_null(j);
    assert_ok(chat_template_new(tmpl, &t, e), e);
    rc = chatmask_make(t, tok, (enum chatmask_kind)kind_of(kind), j, NULL, m, e);
    chat_template_free(t);
    json_decref(j);
    return rc;
}

/* The trained text, runs of it parted by '|'; the caller frees. */
static char *trained(const struct chatmask *m)
{
    char *out = mem_alloc(1 << 16), *text;
    size_t at = 0, len, i, k;
    struct err e = {0};

    for (i = 0; i < m->n; i = k) {
        for (k = i; k < m->n && m->mask[k]; k++) {
        }
        if (k > i) {
            assert_ok(tokenizer_decode(tok, m->ids + i, k - i, 0, &text, &len, &e), &e);
            memcpy(out + at, text, len);
            at += len;
            out[at++] = '|';
            mem_free(text);
        }
        k = k > i ? k : i + 1;
    }
    return out;
}

static void expect(const char *tmpl, const char *kind, const char *messages, const char *want,
                   long differs)
{
    struct chatmask m;
    struct err e;
    char *got;
    size_t first = 0;

    assert_ok(make(tmpl, kind, messages, &m, &e), &e);
    got = trained(&m);
    if (strcmp(got, want) != 0 || m.differs != differs) {
        fail_msg("%s %s\n  trains %s\n  wanted %s\n  differs at %ld", kind, messages, got, want,
                 m.differs);
    }
    while (first < m.n && !m.mask[first]) {
        first++;
    }
    assert_int_equal(m.response, m.n - first);
    mem_free(got);
    chatmask_fini(&m);
}

#define USER(x) "{\"role\": \"user\", \"content\": \"" x "\"}"
#define BOT(x)  "{\"role\": \"assistant\", \"content\": \"" x "\"}"
#define OFF(x)  "{\"role\": \"assistant\", \"step_loss_mask\": 0, \"content\": \"" x "\"}"

static void test_kinds_agree(void **state)
{
    static const char chat[] =
        "[" USER("Hi") ", " BOT("Yes \\ud83d\\ude42") ", " USER("And?") ", " BOT("e\\u0301nd") "]";
    static const char want[] = "Yes \xf0\x9f\x99\x82<|im_end|>\n|\xc3\xa9nd<|im_end|>\n|";

    (void)state;
    expect(chatml, "prefix", chat, want, -1);
    expect(chatml, "auto", chat, want, -1);
    expect(chatml, "qwen", chat, want, -1);
    expect(chatml, "qwen3", chat, want, -1);
    expect(marked, "auto", chat, "Yes \xf0\x9f\x99\x82<|im_end|>|\xc3\xa9nd<|im_end|>|", -1);
}

static void test_one_turn_left_out(void **state)
{
    static const char chat[] = "[" USER("a") ", " OFF("b") ", " USER("c") ", " BOT("d") "]";

    (void)state;
    expect(chatml, "prefix", chat, "d<|im_end|>\n|", -1);
    expect(chatml, "qwen", chat, "d<|im_end|>\n|", -1);
    expect(chatml, "qwen", "[" USER("a") ", " OFF("b") "]", "", -1); /* nothing: response is 0 */
}

static void test_distill(void **state)
{
    (void)state;
    /* the end of the turn is not in the answer: here the whole has more tokens */
    expect(chatml, "distill_qwen", "[" USER("a") ", " BOT("b c") "]", "b c|", 11);
}

/* A template that forgets: the message-wise mask says where it departs, prefix refuses. */
static void test_forgetful(void **state)
{
    static const char chat[] = "[" USER("a") ", " BOT("b") ", " USER("c") ", " BOT("d") "]";
    struct chatmask m;
    struct err e;

    (void)state;
    assert_int_equal(make(forgetful, "prefix", chat, &m, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "message 1 is rendered otherwise"));
    expect(forgetful, "qwen3", chat, "<think>x</think>b<|im_end|>\n|<think>x</think>d<|im_end|>\n|",
           9);
}

static void test_refused(void **state)
{
    struct chatmask m;
    struct err e;

    (void)state;
    assert_int_equal(make(chatml, "marks", "[" USER("a") "]", &m, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "generation"));
    assert_int_equal(make(chatml, "auto", "[]", &m, &e), STATUS_INPUT);
    assert_int_equal(make(chatml, "auto", "[" BOT("a") "]", &m, &e), STATUS_INPUT);
    assert_int_equal(make("x", "qwen", "[" USER("a") "]", &m, &e), STATUS_INPUT);
    assert_int_equal(make("{{ raise_exception('no') }}", "qwen3", "[" USER("a") "]", &m, &e),
                     STATUS_INPUT);
    assert_string_equal(e.msg, "no");
    assert_int_equal(make(chatml, "distill_qwen", "[" USER("a") ", {\"role\": \"x\"}]", &m, &e),
                     STATUS_INPUT);
    assert_null(m.ids);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds_agree), cmocka_unit_test(test_one_turn_left_out),
        cmocka_unit_test(test_distill),     cmocka_unit_test(test_forgetful),
        cmocka_unit_test(test_refused),
    };

    if (argc > 1 && strcmp(argv[1], "--mask") == 0) {
        return mask_filter();
    }
    return cmocka_run_group_tests(tests, setup, teardown);
}
