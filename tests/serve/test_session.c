/* Sessions: where a request goes on from, tokens that are never made twice, samples and masks, the
 * audit, and matchers. */
#include "serve/servekit.h"

#include "serve/session.h"
#include "text/chat.h"

static struct tokenizer *tok;
static struct chat_template *chat;

static const char template_text[] =
    "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>|{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}";

static int setup(void **state)
{
    struct buf b;
    struct err e;

    (void)state;
    buf_init(&b, 1 << 20);
    printable_tokenizer(&b);
    assert_int_equal(tokenizer_open(b.data, &tok, &e), 0);
    assert_int_equal(chat_template_new(template_text, &chat, &e), 0);
    buf_fini(&b);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    chat_template_free(chat);
    tokenizer_close(tok);
    return 0;
}

static struct session_env env_of(int tree)
{
    return (struct session_env){
        .tok = tok, .chat = chat, .tree = tree, .max_tokens = 4096, .max_bytes = 1 << 20};
}

/* A conversation: alternating user and assistant, from the first. */
static json_t *talk(const char *const *texts, int n)
{
    json_t *out = json_array();
    for (int i = 0; i < n; i++) {
        json_array_append_new(
            out, json_pack("{s:s,s:s}", "role", i % 2 ? "assistant" : "user", "content", texts[i]));
    }
    return out;
}

/* The policy says `text`, whose tokens end with </s> unless it is cut. */
static int say(struct session *s, struct session_ask *q, const char *text, int cut, struct err *e)
{
    int32_t *ids, sampled[64];
    size_t n;
    float logps[64];
    struct session_answer a = {.finish = cut ? SESSION_LENGTH : SESSION_STOP, .version = 3};
    int http;

    assert_int_equal(tokenizer_encode(tok, text, strlen(text), 0, &ids, &n, e), 0);
    assert_true(n < 64);
    memcpy(sampled, ids, sizeof *ids * n);
    sampled[n] = 2;
    for (size_t i = 0; i <= n; i++) {
        logps[i] = -0.5f - (float)i;
    }
    a.ids = sampled;
    a.logps = logps;
    a.n = (int)n + !cut;
    a.id = text;
    a.message = json_pack("{s:s,s:s}", "role", "assistant", "content", text);
    http = session_commit(s, q, &a, e);
    json_decref(a.message);
    mem_free(ids);
    session_ask_fini(q);
    return http;
}

static int ask(struct session *s, const char *const *texts, int n, struct session_ask *q,
               struct err *e)
{
    json_t *m = talk(texts, n);
    int http = session_ask(s, m, NULL, NULL, q, e);
    json_decref(m);
    return http;
}

static void expect_text(const struct session_ask *q, const char *want)
{
    char *text;
    size_t len;
    struct err e;

    assert_int_equal(tokenizer_decode(tok, q->ids, (size_t)q->n, 0, &text, &len, &e), 0);
    assert_string_equal(text, want);
    mem_free(text);
}

/* Two turns: the second prompt is the first with its answer as sampled, then what is new. The
 * policy's own end of turn is not written twice. */
static void test_line(void **state)
{
    static const char *const t[] = {"hi", "yo", "more"};
    struct session_env env = env_of(0);
    struct session *s = session_new(&env);
    struct session_sample *list;
    struct session_ask q;
    struct err e = {0};
    int n, first;

    (void)state;
    assert_int_equal(ask(s, t, 1, &q, &e), 200);
    expect_text(&q, "<s>user: hi</s>|<s>assistant: ");
    first = q.n;
    assert_int_equal(say(s, &q, "yo", 0, &e), 200);
    assert_int_equal(ask(s, t, 3, &q, &e), 200);
    expect_text(&q, "<s>user: hi</s>|<s>assistant: yo</s>|<s>user: more</s>|<s>assistant: ");
    assert_int_equal(q.from, first + 3);
    assert_int_equal(say(s, &q, "ok", 0, &e), 200);
    assert_int_equal(session_samples(s, 0, &list, &n, &e), 200);
    assert_int_equal(n, 1);
    assert_int_equal(list[0].prompt, first);
    for (int i = 0, sampled = 0; i < list[0].response; i++) {
        int last = list[0].response - 3;
        assert_int_equal(list[0].mask[i], i < 3 || i >= last);
        assert_true(list[0].logps[i] == (list[0].mask[i] ? -0.5f - (float)(sampled % 3) : 0.0f));
        sampled += list[0].mask[i];
    }
    assert_string_equal(json_string_value(json_object_get(list[0].meta, "status")), "completed");
    assert_int_equal(json_array_size(json_object_get(list[0].meta, "segments")), 3);
    assert_true(json_is_null(json_object_get(list[0].meta, "mismatch")));
    session_samples_free(list, n);
    session_free(s);
}

/* One line: the last turn may be taken back, no more. */
static void test_rollback(void **state)
{
    static const char *const t[] = {"a", "b", "c", "d", "e"};
    static const char *const other[] = {"z", "b", "c"};
    struct session_env env = env_of(0);
    struct session *s = session_new(&env);
    struct session_sample *list;
    struct session_ask q;
    struct err e = {0};
    int n;

    (void)state;
    assert_int_equal(ask(s, t, 1, &q, &e), 200);
    assert_int_equal(say(s, &q, "b", 0, &e), 200);
    assert_int_equal(ask(s, t, 3, &q, &e), 200);
    assert_int_equal(say(s, &q, "wrong", 0, &e), 200);
    assert_int_equal(ask(s, t, 1, &q, &e), 409); /* two turns back */
    assert_int_equal(ask(s, other, 3, &q, &e), 409);
    assert_non_null(strstr(e.msg, "history"));
    assert_int_equal(ask(s, t, 2, &q, &e), 400); /* ends with an answer */
    assert_int_equal(ask(s, t, 3, &q, &e), 200);
    assert_int_equal(q.drop, 1);
    assert_int_equal(say(s, &q, "d", 0, &e), 200);
    assert_int_equal(session_turns(s), 2);
    assert_int_equal(ask(s, t, 5, &q, &e), 200);
    assert_int_equal(say(s, &q, "cut", 1, &e), 200);
    assert_int_equal(session_samples(s, 0, &list, &n, &e), 200);
    assert_int_equal(n, 1);
    assert_string_equal(json_string_value(json_object_get(list[0].meta, "status")), "truncated");
    session_samples_free(list, n);
    session_free(s);
}

/* A turn that was cut cannot be gone on from; one that a stop text ended gets the template's end.
 */
static void test_ends(void **state)
{
    static const char *const t[] = {"a", "cut", "c"};
    struct session_env env = env_of(0);
    struct session *s = session_new(&env);
    struct session_answer a = {.finish = SESSION_STOP, .id = "x"};
    int32_t ids[] = {70, 71};
    float logps[] = {-1, -2};
    struct session_ask q;
    struct err e = {0};
    char *text;
    size_t len;

    (void)state;
    assert_int_equal(ask(s, t, 1, &q, &e), 200);
    assert_int_equal(say(s, &q, "cut", 1, &e), 200);
    assert_int_equal(ask(s, t, 3, &q, &e), 409);
    assert_int_equal(ask(s, t, 1, &q, &e), 200);
    assert_int_equal(tokenizer_decode(tok, ids, 2, 0, &text, &len, &e), 0);
    a.ids = ids;
    a.logps = logps;
    a.n = 2;
    a.message = json_pack("{s:s,s:s}", "role", "assistant", "content", "cut");
    assert_int_equal(session_commit(s, &q, &a, &e), 200);
    session_ask_fini(&q);
    assert_int_equal(ask(s, t, 3, &q, &e), 200);
    assert_int_equal(q.ids[q.from - 1], 71);
    assert_int_equal(q.ids[q.from], 2); /* </s> is inserted */
    session_ask_fini(&q);
    json_decref(a.message);
    mem_free(text);
    session_free(s);
}

/* Branches: two lines of one first turn, which is trained once; a turn asked for again is left out.
 */
static void test_tree(void **state)
{
    static const char *const left[] = {"a", "b", "left"}, *const right[] = {"a", "b", "right"};
    struct session_env env = env_of(1);
    struct session *s = session_new(&env);
    struct session_sample *list;
    struct session_ask q;
    struct err e = {0};
    int n, trained = 0;

    (void)state;
    assert_int_equal(ask(s, left, 1, &q, &e), 200);
    assert_int_equal(say(s, &q, "b", 0, &e), 200);
    assert_int_equal(ask(s, left, 3, &q, &e), 200);
    assert_int_equal(say(s, &q, "bad", 0, &e), 200);
    assert_int_equal(ask(s, right, 3, &q, &e), 200);
    assert_int_equal(say(s, &q, "rr", 0, &e), 200);
    assert_int_equal(ask(s, left, 3, &q, &e), 200); /* once more */
    assert_int_equal(say(s, &q, "ll", 0, &e), 200);
    assert_int_equal(session_samples(s, 1, &list, &n, &e), 200);
    assert_int_equal(n, 3);
    session_samples_free(list, n);
    assert_int_equal(session_samples(s, 0, &list, &n, &e), 200);
    assert_int_equal(n, 2);
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < list[i].response; k++) {
            trained += list[i].mask[k];
        }
    }
    assert_int_equal(trained, 2 + 3 + 3); /* "b", "rr", "ll", each with its end */
    assert_int_equal(list[1].mask[0], 0);
    assert_true(json_is_null(json_object_get(list[1].meta, "mismatch")));
    session_samples_free(list, n);
    session_free(s);
}

/* What was sampled is kept although it would be tokenised otherwise: told by the audit. */
static void test_audit(void **state)
{
    static const char *const t[] = {"a"};
    static const char *const says[] = {"same", "other", "b"};
    static const char *const want[] = {NULL, "assistant_text", "special_token_count"};
    struct session_env env = env_of(0);
    struct session_sample *list;
    struct session_ask q;
    struct err e = {0};
    int n;

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct session *s = session_new(&env);
        int32_t ids[] = {50, 1, 2}, plain[] = {50, 2};
        float logps[] = {-1, -1, -1};
        struct session_answer a = {.ids = i == 2 ? ids : plain,
                                   .logps = logps,
                                   .n = i == 2 ? 3 : 2,
                                   .id = "x",
                                   .finish = SESSION_STOP};
        const char *got;
        char *text;
        size_t len;
        assert_int_equal(tokenizer_decode(tok, ids, 1, 0, &text, &len, &e), 0);
        a.message = json_pack("{s:s,s:s}", "role", "assistant", "content", i ? says[i] : text);
        assert_int_equal(ask(s, t, 1, &q, &e), 200);
        assert_int_equal(session_commit(s, &q, &a, &e), 200);
        session_ask_fini(&q);
        assert_int_equal(session_samples(s, 0, &list, &n, &e), 200);
        got = json_string_value(json_object_get(list[0].meta, "mismatch"));
        assert_true((got == NULL) == (want[i] == NULL));
        if (got) {
            assert_string_equal(got, want[i]);
        }
        session_samples_free(list, n);
        json_decref(a.message);
        mem_free(text);
        session_free(s);
    }
}

static void test_matchers(void **state)
{
    static const struct {
        const char *a, *b;
        int same[3]; /* strict, loose, role and content */
    } cases[] = {
        {"{'role':'user','content':'x'}", "{'role':'user','content':'x','name':null}", {1, 1, 1}},
        {"{'role':'user','content':'x'}", "{'role':'user','content':'y'}", {0, 0, 0}},
        {"{'role':'user','content':'x'}", "{'role':'tool','content':'x'}", {0, 0, 0}},
        {"{'role':'user','content':'x'}", "{'role':'user','content':'x','name':'n'}", {0, 1, 1}},
        {"{'role':'assistant','content':null,'tool_calls':[{'id':'1','function':{'name':'f',"
         "'arguments':{'a':1}}}]}",
         "{'role':'assistant','content':'','tool_calls':[{'id':'2','function':{'name':'f',"
         "'arguments':{'a':1}}}]}",
         {0, 1, 1}},
        {"{'role':'assistant','content':'','tool_calls':[{'id':'1','function':{'name':'f',"
         "'arguments':{'a':1}}}]}",
         "{'role':'assistant','content':'','tool_calls':[{'id':'1','function':{'name':'f',"
         "'arguments':{'a':2}}}]}",
         {0, 0, 1}}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char x[512], y[512];
        json_t *a, *b;
        snprintf(x, sizeof x, "%s", cases[i].a);
        snprintf(y, sizeof y, "%s", cases[i].b);
        for (char *p = x; *p; p++) {
            *p = *p == '\'' ? '"' : *p;
        }
        for (char *p = y; *p; p++) {
            *p = *p == '\'' ? '"' : *p;
        }
        a = json_loads(x, 0, NULL);
        b = json_loads(y, 0, NULL);
        assert_non_null(a);
        assert_non_null(b);
        for (int k = 0; k < 3; k++) {
            assert_int_equal(session_same((enum session_match)k, a, b), cases[i].same[k]);
            assert_int_equal(session_same((enum session_match)k, b, a), cases[i].same[k]);
        }
        json_decref(a);
        json_decref(b);
    }
}

/* Bounds: tokens, tokens behind the first prompt, bytes. */
static void test_bounds(void **state)
{
    static const char *const t[] = {"hi", "yo", "more"};
    struct session_env env = env_of(0);
    struct session *s;
    struct session_ask q;
    struct err e = {0};
    int first;

    (void)state;
    env.max_response = 8;
    s = session_new(&env);
    assert_int_equal(ask(s, t, 1, &q, &e), 200);
    assert_int_equal(q.room, 8);
    first = q.n;
    assert_int_equal(say(s, &q, "yo", 0, &e), 200);
    assert_int_equal(ask(s, t, 3, &q, &e), 400);
    assert_non_null(strstr(e.msg, "no room"));
    env.max_response = 0;
    env.max_tokens = first + 3;
    assert_int_equal(ask(s, t, 3, &q, &e), 400);
    env.max_tokens = 4096;
    env.max_bytes = 40;
    assert_int_equal(ask(s, t, 3, &q, &e), 400);
    assert_non_null(strstr(e.msg, "bytes"));
    session_free(s);
}

/* A template whose answers end with the opening of what comes: the one that was sampled stays where
 * that is what came, else it is taken out, also in a line that goes on. */
static void test_openings(void **state)
{
    static const char opening[] =
        "{% for m in messages %}{{ '<s>' if m.role == 'user' else '</s>' if m.role == 'tool' else "
        "'' }}{{ m.role }}: {{ m.content }}{% endfor %}{% if add_generation_prompt %}assistant: "
        "{% endif %}";
    struct session_env env = env_of(1);
    struct chat_template *tmpl;
    struct session *s;
    struct session_sample *list;
    struct session_ask q;
    struct err e = {0};
    json_t *m = json_pack("[{s:s,s:s},{s:s,s:s},{s:s,s:s}]", "role", "user", "content", "hi",
                          "role", "assistant", "content", "yo", "role", "tool", "content", "7");
    static const char *const t[] = {"hi", "yo", "no", "yo", "so"};
    int n;

    (void)state;
    assert_ok(chat_template_new(opening, &tmpl, &e), &e);
    env.chat = tmpl;
    s = session_new(&env);
    assert_int_equal(ask(s, t, 1, &q, &e), 200);
    assert_int_equal(say(s, &q, "yo", 0, &e), 200);
    assert_int_equal(session_ask(s, m, NULL, NULL, &q, &e), 200); /* </s> opens a tool's message */
    expect_text(&q, "<s>user: hiassistant: yo</s>tool: 7assistant: ");
    assert_int_equal(q.trim, 0);
    session_ask_fini(&q);
    assert_int_equal(ask(s, t, 3, &q, &e), 200); /* not a user's */
    expect_text(&q, "<s>user: hiassistant: yo<s>user: noassistant: ");
    assert_int_equal(q.trim, 1);
    assert_int_equal(say(s, &q, "yo", 0, &e), 200);
    assert_int_equal(ask(s, t, 5, &q, &e), 200);
    expect_text(&q, "<s>user: hiassistant: yo<s>user: noassistant: yo<s>user: soassistant: ");
    assert_int_equal(say(s, &q, "ok", 0, &e), 200);

    assert_int_equal(session_samples(s, 0, &list, &n, &e), 200);
    assert_int_equal(n, 1);
    for (int i = 0, sampled = 0; i < list[0].response; i++) {
        const json_t *segments = json_object_get(list[0].meta, "segments");
        int here = 0;
        for (size_t k = 0; k < json_array_size(segments); k++) {
            const json_t *g = json_array_get(segments, k);
            int at = i - (int)json_integer_value(json_object_get(g, "start"));
            here |= at >= 0 && at < json_integer_value(json_object_get(g, "len")) &&
                    json_integer_value(json_object_get(g, "origin")) == 0;
        }
        assert_int_equal(list[0].mask[i], here);
        /* two of the first answers, three of the last */
        assert_true(list[0].logps[i] ==
                    (here ? -0.5f - (float)(sampled < 4 ? sampled % 2 : sampled - 4) : 0.0f));
        sampled += here;
    }
    {
        struct session_ask all = {.ids = list[0].ids, .n = list[0].prompt + list[0].response};
        expect_text(&all,
                    "<s>user: hiassistant: yo<s>user: noassistant: yo<s>user: soassistant: ok</s>");
    }
    session_samples_free(list, n);
    json_decref(m);
    session_free(s);
    chat_template_free(tmpl);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_line),   cmocka_unit_test(test_rollback),
        cmocka_unit_test(test_ends),   cmocka_unit_test(test_tree),
        cmocka_unit_test(test_audit),  cmocka_unit_test(test_matchers),
        cmocka_unit_test(test_bounds), cmocka_unit_test(test_openings),
    };
    return cmocka_run_group_tests_name("session", tests, setup, teardown);
}
