/* What `miles template check` says of templates that are fit, and of each thing that can be wrong.
 */
#include "support.h"

#include <jansson.h>

#include "base/fsio.h"
#include "base/mem.h"
#include "base/status.h"
#include "text/chat.h"
#include "text/chatcheck.h"
#include "text/tokenizer.h"

#define HEAD      "{% for m in messages %}<|im_start|>{{ m.role }}\n\n"
#define TAIL      "<|im_end|>\n\n{% endfor %}"
#define GENERATE  "{% if add_generation_prompt %}<|im_start|>assistant\n\n{% endif %}"
#define PLAIN     HEAD "{{ m.content }}" TAIL GENERATE
#define TRIMMING  HEAD "{{ m.content|trim }}" TAIL GENERATE
#define TWO_BOS   "{{ bos_token }}{{ bos_token }}" PLAIN
#define ENDLESS   HEAD "{{ m.content }}\n\n{% endfor %}" GENERATE
#define NO_TAGS   "{% for m in messages %}<|nobody|>{{ m.content }}" TAIL GENERATE
#define ONE_TURN  "{% if messages|length > 1 %}{{ raise_exception('one only') }}{% endif %}" PLAIN
#define REFUSING  "{{ raise_exception('never') }}"
#define THINK_OFF PLAIN "{% if add_generation_prompt %}<think>\n\n</think>{% endif %}"
/* keeps the reasoning of the last message only */
#define FORGETS                                                                                    \
    HEAD "{% if m.reasoning_content and loop.last %}<think>{{ m.reasoning_content }}</think>"      \
         "{% endif %}{{ m.content }}" TAIL GENERATE
#define REMEMBERS                                                                                  \
    HEAD "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"         \
         "{{ m.content }}" TAIL GENERATE

static struct tokenizer *tok;

static int setup(void **state)
{
    struct err e = {0};
    char *json = NULL;
    size_t len;
    int rc = fsio_read(support_data("tokenizers/qwen3/tokenizer.json"), 1 << 26, &json, &len, &e);

    (void)state;
    rc = rc ? rc : tokenizer_open(json, &tok, &e);
    mem_free(json);
    return rc;
}

static int teardown(void **state)
{
    (void)state;
    tokenizer_close(tok);
    return 0;
}

static json_t *check(const char *tmpl, const int32_t *stops, size_t nstops)
{
    json_t *special = json_pack("{s:s}", "bos_token", "<|endoftext|>"), *report = NULL;
    struct chatcheck_in in = {.tok = tok, .special = special, .stops = stops, .nstops = nstops};
    struct chat_template *t = NULL;
    struct err e = {0};

    assert_ok(chat_template_new(tmpl, &t, &e), &e);
    in.chat = t;
    assert_ok(chatcheck_run(&in, &report, &e), &e);
    chat_template_free(t);
    json_decref(special);
    return report;
}

/* The item of that name: its result is `result`, and its detail holds `words`. */
static void has(const json_t *report, const char *name, const char *result, const char *words)
{
    const json_t *item;
    size_t i;

    json_array_foreach(json_object_get(report, "checks"), i, item)
    {
        if (strcmp(json_string_value(json_object_get(item, "check")), name) == 0) {
            const char *r = json_string_value(json_object_get(item, "result"));
            const char *d = json_string_value(json_object_get(item, "detail"));
            if (strcmp(r, result) != 0 || !strstr(d, words)) {
                fail_msg("%s: %s %s, wanted %s %s", name, r, d, result, words);
            }
            return;
        }
    }
    fail_msg("no check %s", name);
}

static void fit(const json_t *report, int single, int multi)
{
    assert_int_equal(json_is_true(json_object_get(report, "single_turn")), single);
    assert_int_equal(json_is_true(json_object_get(report, "multi_turn")), multi);
}

static const int32_t im_end[] = {151645};

static void test_fit(void **state)
{
    json_t *r = check(PLAIN, im_end, 1);
    const json_t *end = json_object_get(r, "end_of_turn");

    (void)state;
    fit(r, 1, 1);
    has(r, "stop token", "ok", "<|im_end|> (151645)");
    has(r, "keeps: second answer", "ok", "");
    has(r, "keeps: reasoning", "note", "does not write");
    has(r, "answer beginning with a newline", "note", "when kept and 1406");
    has(r, "tags", "ok", "");
    assert_string_equal(json_string_value(json_object_get(end, "text")), "<|im_end|>");
    assert_int_equal(json_integer_value(json_object_get(end, "id")), 151645);
    json_decref(r);
    r = check(REMEMBERS, im_end, 1);
    fit(r, 1, 1);
    has(r, "keeps: reasoning", "ok", "");
    json_decref(r);
}

static void test_stops(void **state)
{
    static const int32_t other[] = {7, 8};
    json_t *r = check(PLAIN, other, 2);

    (void)state;
    fit(r, 0, 0);
    has(r, "stop token", "fails", "generation stops at 7, 8 only");
    json_decref(r);
    r = check(PLAIN, NULL, 0);
    fit(r, 0, 0);
    has(r, "stop token", "fails", "stops at no token");
    json_decref(r);
    r = check(ENDLESS, im_end, 1);
    fit(r, 0, 0);
    has(r, "stop token", "fails", "no special token");
    json_decref(r);
}

static void test_turns(void **state)
{
    json_t *r = check(FORGETS, im_end, 1);

    (void)state;
    fit(r, 1, 0);
    has(r, "keeps: first answer", "ok", "");
    has(r, "keeps: reasoning", "fails", "where \"<think>Two and two.</thi\"... was sampled");
    json_decref(r);
    r = check(THINK_OFF, im_end, 1);
    fit(r, 1, 0);
    has(r, "keeps: first answer", "fails", "does not continue the prompt");
    json_decref(r);
    r = check(TRIMMING, im_end, 1);
    fit(r, 1, 1);
    has(r, "answer beginning with a blank", "note", "does not keep the answer");
    json_decref(r);
    r = check(ONE_TURN, im_end, 1);
    fit(r, 1, 0);
    has(r, "renders: several turns", "fails", "one only");
    json_decref(r);
}

static void test_prompts(void **state)
{
    json_t *r = check(REFUSING, im_end, 1);

    (void)state;
    fit(r, 0, 0);
    has(r, "renders: user", "fails", "never");
    assert_true(json_is_null(json_object_get(r, "end_of_turn")));
    json_decref(r);
    r = check(TWO_BOS, im_end, 1);
    fit(r, 0, 0);
    has(r, "bos", "fails", "twice");
    json_decref(r);
    r = check(NO_TAGS, im_end, 1);
    has(r, "tags", "note", "<|nobody|>");
    json_decref(r);
    r = check("{{ messages[0].role }}<|im_end|>", im_end, 1);
    fit(r, 0, 0);
    has(r, "renders: user", "fails", "is not in the text");
    json_decref(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fit),
        cmocka_unit_test(test_stops),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_prompts),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
