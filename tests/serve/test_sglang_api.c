/* SGLang's /generate through real sockets: the engine's own tokens and log-probs, whole, streamed,
 * in batches, stopped, aborted, abandoned, malformed and many at once. */
#include "serve/servekit.h"

#include "base/rng.h"

static struct servekit kit;

static int suite_setup(void **state)
{
    struct api_opts o = {.service = {.engine = {.max_running = 8, .chunk = 48}}};
    if (servekit_setup(state) != 0) {
        return -1;
    }
    servekit_start(&kit, &o);
    return 0;
}

static int suite_teardown(void **state)
{
    servekit_stop(&kit);
    return fixture_teardown(state);
}

/* ---- the engine directly ---- */

struct direct {
    int n, finish, nprompt;
    int32_t tokens[SERVEKIT_CONTEXT];
    float logps[SERVEKIT_CONTEXT], prompt_logps[SERVEKIT_CONTEXT];
    int32_t top_ids[SERVEKIT_CONTEXT * 3];
    float top_logps[SERVEKIT_CONTEXT * 3];
};

/* The same group in an engine of its own, over the model of folder `which`. */
static void direct_run(int which, const struct engine_group *q, struct direct *out)
{
    struct tinymodel m;
    struct engine *g;
    struct engine_result r;
    struct err e = {0};

    tinymodel_open(&m, servekit_dir[which], "cpu", "auto", 1, 2, 0, 0);
    assert_ok(engine_open(m.w, &(struct engine_opts){.max_running = 4}, &g, &e), &e);
    assert_ok(engine_submit(g, q, &e), &e);
    while (engine_busy(g)) {
        int rc = engine_step(g, &e);
        assert_true(rc >= 0);
        while (engine_take(g, &r)) {
            struct direct *d = &out[r.sample];
            d->n = r.ntokens;
            d->finish = r.finish;
            memcpy(d->tokens, r.tokens, sizeof(int32_t) * (size_t)r.ntokens);
            memcpy(d->logps, r.logps, sizeof(float) * (size_t)r.ntokens);
            d->nprompt = r.nprompt;
            if (r.nprompt) {
                memcpy(d->prompt_logps, r.prompt_logps, sizeof(float) * (size_t)r.nprompt);
            }
            if (r.top) {
                size_t n = (size_t)r.ntokens * (size_t)r.top;
                memcpy(d->top_ids, r.top_ids, sizeof(int32_t) * n);
                memcpy(d->top_logps, r.top_logps, sizeof(float) * n);
            }
        }
    }
    engine_close(g);
    tinymodel_close(&m);
}

static void prompt_ids(uint64_t seed, int n, int32_t *ids, struct buf *json)
{
    buf_char(json, '[');
    for (int i = 0; i < n; i++) {
        ids[i] = 3 + tinymodel_below(&seed, SERVEKIT_VOCAB - 3);
        buf_printf(json, "%s%d", i ? "," : "", ids[i]);
    }
    buf_char(json, ']');
}

/* A triple [logp, id, text] has exactly these values. */
static void assert_triple(json_t *t, float logp, int32_t id)
{
    assert_int_equal(json_array_size(t), 3);
    assert_true((float)json_number_value(json_array_get(t, 0)) == logp);
    assert_int_equal(json_integer_value(json_array_get(t, 1)), id);
}

static void assert_answer(json_t *o, const struct direct *d)
{
    json_t *ids = servekit_at(o, "output_ids", NULL);
    json_t *lp = servekit_at(o, "meta_info", "output_token_logprobs");

    assert_int_equal(json_array_size(ids), d->n);
    assert_int_equal(json_array_size(lp), d->n);
    assert_int_equal(json_integer_value(servekit_at(o, "meta_info", "completion_tokens")), d->n);
    for (int i = 0; i < d->n; i++) {
        assert_int_equal(json_integer_value(json_array_get(ids, (size_t)i)), d->tokens[i]);
        assert_triple(json_array_get(lp, (size_t)i), d->logps[i], d->tokens[i]);
    }
    assert_string_equal(servekit_text(servekit_at(o, "meta_info", "finish_reason"), "type", NULL),
                        d->finish == ENGINE_STOP ? "stop" : "length");
}

/* A request with a seed, and the group that it stands for. */
static void make_request(struct buf *b, int32_t *ids, struct engine_group *q, uint64_t seed,
                         int ntokens, int max_new, const char *more)
{
    memset(q, 0, sizeof *q);
    buf_clear(b);
    buf_str(b, "{\"input_ids\":");
    prompt_ids(seed, ntokens, ids, b);
    buf_printf(b,
               ",\"return_logprob\":true,\"sampling_params\":{\"temperature\":0.9,\"top_p\":0.95,"
               "\"max_new_tokens\":%d,\"sampling_seed\":%d}%s}",
               max_new, (int)seed, more);
    q->tokens = ids;
    q->ntokens = ntokens;
    q->n = 1;
    q->max_new = max_new;
    q->sampling = (struct sampler_params){
        .temperature = 0.9f, .top_p = 0.95f, .top_k = -1, .repetition_penalty = 1.0f};
    q->key = (struct engine_key){.seed = seed};
}

/* ---- tests ---- */

static void test_equals_engine(void **state)
{
    struct engine_group q;
    struct direct d;
    int32_t ids[SERVEKIT_CONTEXT];
    struct buf b;
    int stops = 0;

    (void)state;
    buf_init(&b, 1 << 20);
    for (uint64_t seed = 1; seed <= 6; seed++) {
        json_t *o, *in, *top;
        make_request(&b, ids, &q, seed, 5 + (int)seed * 17, 40,
                     ",\"logprob_start_len\":2,"
                     "\"top_logprobs_num\":3,\"rid\":\"abc\"");
        q.prompt_logps = 1;
        q.prompt_from = 3;
        q.prompt_temperature = 1.0f;
        q.top = 3;
        direct_run(0, &q, &d);
        o = servekit_ok(&kit, "/generate", b.data);
        assert_answer(o, &d);
        stops += d.finish == ENGINE_STOP;
        assert_string_equal(servekit_text(o, "meta_info", "id"), "abc");
        assert_string_equal(servekit_text(o, "meta_info", "weight_version"), "default");
        assert_int_equal(json_integer_value(servekit_at(o, "meta_info", "prompt_tokens")),
                         q.ntokens);
        in = servekit_at(o, "meta_info", "input_token_logprobs");
        assert_int_equal(json_array_size(in), q.ntokens - 2);
        assert_int_equal(d.nprompt, q.ntokens - 3);
        assert_true(json_is_null(json_array_get(json_array_get(in, 0), 0)));
        assert_int_equal(json_integer_value(json_array_get(json_array_get(in, 0), 1)), ids[2]);
        for (int i = 0; i < d.nprompt; i++) {
            assert_triple(json_array_get(in, (size_t)i + 1), d.prompt_logps[i], ids[3 + i]);
        }
        top = servekit_at(o, "meta_info", "output_top_logprobs");
        assert_int_equal(json_array_size(top), d.n);
        for (int i = 0; i < d.n * 3; i++) {
            assert_triple(json_array_get(json_array_get(top, (size_t)i / 3), (size_t)i % 3),
                          d.top_logps[i], d.top_ids[i]);
        }
        assert_int_equal(json_array_size(servekit_at(o, "meta_info", "input_top_logprobs")),
                         q.ntokens - 2);
        json_decref(o);
    }
    assert_true(stops > 0 && stops < 6);
    buf_fini(&b);
}

/* Log-probs of asked-for tokens: of the prompt's own they are those of the prompt, of the best
 * candidates those of the candidates; asked for at every token alike, and for each its own. */
static void test_wanted(void **state)
{
    static const char form[] = "{\"input_ids\":[5,9,33,12,40],\"return_logprob\":true,"
                               "\"logprob_start_len\":1,\"top_logprobs_num\":2,"
                               "\"sampling_params\":{\"max_new_tokens\":0},"
                               "\"token_ids_logprob\":%s}";
    static const int32_t own[] = {33, 12, 40};
    char text[512], each[256] = "[";
    json_t *a, *b, *top;
    (void)state;
    snprintf(text, sizeof text, form, "[12,33,40]");
    a = servekit_ok(&kit, "/generate", text);
    top = servekit_at(a, "meta_info", "input_top_logprobs");
    for (int i = 0; i < 3; i++) {
        int best = (int)json_integer_value(
            json_array_get(json_array_get(json_array_get(top, (size_t)i + 1), 0), 1));
        size_t n = strlen(each);
        snprintf(each + n, sizeof each - n, "%s[%d,%d]", i ? "," : "", own[i], best);
    }
    strcat(each, "]");
    snprintf(text, sizeof text, form, each);
    b = servekit_ok(&kit, "/generate", text);
    for (int i = 0; i < 3; i++) {
        json_t *in =
            json_array_get(servekit_at(a, "meta_info", "input_token_logprobs"), (size_t)i + 1);
        json_t *all =
            json_array_get(servekit_at(a, "meta_info", "input_token_ids_logprobs"), (size_t)i + 1);
        json_t *two =
            json_array_get(servekit_at(b, "meta_info", "input_token_ids_logprobs"), (size_t)i + 1);
        size_t at = own[i] == 12 ? 0 : own[i] == 33 ? 1 : 2;
        assert_int_equal(json_array_size(all), 3);
        assert_int_equal(json_array_size(two), 2);
        assert_true(json_equal(json_array_get(all, at), in));
        assert_true(json_equal(json_array_get(two, 0), in));
        assert_true(json_equal(json_array_get(two, 1),
                               json_array_get(json_array_get(top, (size_t)i + 1), 0)));
    }
    assert_true(
        json_is_null(json_array_get(servekit_at(a, "meta_info", "input_token_ids_logprobs"), 0)));
    json_decref(a);
    json_decref(b);
}

/* The events tell the whole so far; the last is the answer of a request that does not stream. */
/* The key of a sample's randomness: four samples of one request, each the one that its number
 * names, also alone, in a batch, and with a seed that JSON's integers do not hold. */
static void test_key(void **state)
{
    static const char form[] = "{\"input_ids\":[[5,9,33],[5,9,33]],\"return_logprob\":true,"
                               "\"sampling_params\":{\"temperature\":0.9,\"top_p\":0.95,"
                               "\"max_new_tokens\":24%s},\"miles_ids_only\":%s,"
                               "\"miles_forget\":true,\"miles_key\":[%s,%s]}";
    static const char keys[2][80] = {
        "{\"seed\":\"18446744073709551557\",\"stream\":1,\"sample\":40}",
        "{\"seed\":\"18446744073709551557\",\"stream\":1,\"sample\":\"42\"}"};
    int32_t ids[3] = {5, 9, 33};
    struct engine_group q = {.tokens = ids, .ntokens = 3, .n = 4, .max_new = 24};
    struct direct d[4];
    char text[1024];

    (void)state;
    q.sampling = (struct sampler_params){
        .temperature = 0.9f, .top_p = 0.95f, .top_k = -1, .repetition_penalty = 1.0f};
    q.key = (struct engine_key){.seed = 18446744073709551557ull, .stream = 1, .sample = 40};
    direct_run(0, &q, d);
    for (int only = 0; only < 2; only++) {
        json_t *o;
        snprintf(text, sizeof text, form, ",\"n\":2", only ? "true" : "false", keys[0], keys[1]);
        o = servekit_ok(&kit, "/generate", text);
        assert_int_equal(json_array_size(o), 4);
        for (int i = 0; i < 4; i++) {
            json_t *one = json_array_get(o, (size_t)i);
            assert_answer(one, &d[i]);
            assert_int_equal(json_object_get(one, "text") == NULL, only);
            assert_null(json_object_get(json_object_get(one, "meta_info"), "miles_mixed_tokens"));
        }
        json_decref(o);
        snprintf(text, sizeof text, form, "", only ? "true" : "false", keys[1], keys[0]);
        o = servekit_ok(&kit, "/generate", text);
        assert_answer(json_array_get(o, 0), &d[2]);
        assert_answer(json_array_get(o, 1), &d[0]);
        json_decref(o);
    }
    /* a stop string needs the text, though nobody reads it */
    {
        json_t *o = servekit_ok(&kit, "/generate",
                                "{\"input_ids\":[5,9,33],\"miles_ids_only\":true,"
                                "\"sampling_params\":{\"max_new_tokens\":200,\"stop\":[\"a\",\"e\","
                                "\"i\",\"o\",\"u\",\"t\",\"n\"],\"ignore_eos\":true}}");
        json_t *why = servekit_at(o, "meta_info", "finish_reason");
        assert_string_equal(servekit_text(why, "type", NULL), "stop");
        assert_null(json_object_get(o, "text"));
        json_decref(o);
    }
}

static void test_bad_key(void **state)
{
    static const char *const bad[] = {
        "{\"input_ids\":[1],\"miles_key\":5}",
        "{\"input_ids\":[1],\"miles_key\":[{\"seed\":1,\"sample\":1}]}",
        "{\"input_ids\":[[1],[2]],\"miles_key\":{\"seed\":1,\"sample\":1}}",
        "{\"input_ids\":[[1],[2]],\"miles_key\":[{\"seed\":1,\"sample\":1}]}",
        "{\"input_ids\":[1],\"miles_key\":{\"seed\":1}}",
        "{\"input_ids\":[1],\"miles_key\":{\"sample\":1}}",
        "{\"input_ids\":[1],\"miles_key\":{\"seed\":-1,\"sample\":1}}",
        "{\"input_ids\":[1],\"miles_key\":{\"seed\":\"-1\",\"sample\":1}}",
        "{\"input_ids\":[1],\"miles_key\":{\"seed\":\"18446744073709551616\",\"sample\":1}}",
        "{\"input_ids\":[1],\"miles_key\":{\"seed\":\"1x\",\"sample\":1}}",
        "{\"input_ids\":[1],\"miles_key\":{\"seed\":1.5,\"sample\":1}}",
        "{\"input_ids\":[1],\"miles_key\":{\"seed\":1,\"sample\":1,\"stream\":2}}",
        "{\"input_ids\":[1],\"miles_key\":{\"seed\":1,\"sample\":1,\"sead\":2}}",
        "{\"input_ids\":[1],\"miles_ids_only\":1}",
        "{\"input_ids\":[1],\"miles_forget\":\"yes\"}",
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int status;
        json_t *o = servekit_post(&kit, "/generate", bad[i], &status);
        if (status != 400 || !strstr(servekit_text(o, "message", NULL), "miles_")) {
            fail_msg("%s: %d", bad[i], status);
        }
        json_decref(o);
    }
}

static void test_stream(void **state)
{
    struct engine_group q;
    int32_t ids[SERVEKIT_CONTEXT];
    struct buf b;

    (void)state;
    buf_init(&b, 1 << 20);
    for (uint64_t seed = 11; seed <= 14; seed++) {
        json_t *whole, *list, *last;
        size_t before = 0;
        make_request(&b, ids, &q, seed, 20, 30, ",\"rid\":\"r\"");
        whole = servekit_ok(&kit, "/generate", b.data);
        make_request(&b, ids, &q, seed, 20, 30, ",\"rid\":\"r\",\"stream\":true");
        list = servekit_stream(&kit, "/generate", b.data);
        assert_true(json_array_size(list) >= 1);
        for (size_t i = 0; i < json_array_size(list); i++) {
            json_t *ev = json_array_get(list, i);
            json_t *out = servekit_at(ev, "output_ids", NULL);
            const char *text = servekit_text(ev, "text", NULL);
            assert_true(json_array_size(out) > before);
            before = json_array_size(out);
            assert_memory_equal(text, servekit_text(whole, "text", NULL), strlen(text));
            assert_int_equal(json_is_null(servekit_at(ev, "meta_info", "finish_reason")),
                             i + 1 < json_array_size(list));
        }
        last = json_array_get(list, json_array_size(list) - 1);
        for (json_t *o = whole; o; o = o == whole ? last : NULL) {
            json_object_del(json_object_get(o, "meta_info"), "e2e_latency");
            json_object_del(json_object_get(o, "meta_info"), "cached_tokens");
        }
        assert_true(json_equal(whole, last));
        json_decref(whole);
        json_decref(list);
    }
    buf_fini(&b);
}

static void test_batch(void **state)
{
    struct engine_group q;
    struct direct d[2];
    int32_t ids[3][SERVEKIT_CONTEXT];
    struct buf b;
    json_t *o, *list;
    int seen[6] = {0};

    (void)state;
    buf_init(&b, 1 << 20);
    buf_str(&b, "{\"input_ids\":[");
    for (int i = 0; i < 3; i++) {
        buf_str(&b, i ? "," : "");
        prompt_ids((uint64_t)i + 50, 10 + 30 * i, ids[i], &b);
    }
    buf_str(&b, "],\"rid\":[\"a\",\"b\",\"c\"],\"return_logprob\":true,\"sampling_params\":{"
                "\"n\":2,\"max_new_tokens\":12,\"sampling_seed\":9}");
    buf_char(&b, '}');
    o = servekit_ok(&kit, "/generate", b.data);
    assert_int_equal(json_array_size(o), 6);
    for (int i = 0; i < 3; i++) {
        memset(&q, 0, sizeof q);
        q.tokens = ids[i];
        q.ntokens = 10 + 30 * i;
        q.n = 2;
        q.max_new = 12;
        q.sampling = (struct sampler_params){.temperature = 1.0f, .top_p = 1.0f, .top_k = -1};
        q.key.seed = 9;
        direct_run(0, &q, d);
        assert_answer(json_array_get(o, (size_t)i * 2), &d[0]);
        assert_answer(json_array_get(o, (size_t)i * 2 + 1), &d[1]);
    }
    assert_string_equal(servekit_text(json_array_get(o, 3), "meta_info", "id"), "b_1");
    b.data[b.len - 1] = ',';
    buf_str(&b, "\"stream\":true}");
    list = servekit_stream(&kit, "/generate", b.data);
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *ev = json_array_get(list, i);
        size_t index = (size_t)json_integer_value(servekit_at(ev, "index", NULL));
        assert_true(index < 6 && !seen[index]);
        if (!json_is_null(servekit_at(ev, "meta_info", "finish_reason"))) {
            seen[index] = 1;
            assert_true(json_equal(servekit_at(ev, "output_ids", NULL),
                                   servekit_at(json_array_get(o, index), "output_ids", NULL)));
        }
    }
    for (int i = 0; i < 6; i++) {
        assert_int_equal(seen[i], 1);
    }
    json_decref(o);
    json_decref(list);
    buf_fini(&b);
}

/* Text in, text out; a stop string taken from what the model says ends it there. */
static void test_stop_strings(void **state)
{
    static const char body[] =
        "{\"text\":\"hello world\",\"sampling_params\":{\"max_new_tokens\":60,\"ignore_eos\":true,"
        "\"sampling_seed\":5%s}%s}";
    char q[1024], more[128], stop[8], tail[32];
    json_t *o, *list;
    char *text;
    int checked = 0;

    (void)state;
    snprintf(q, sizeof q, body, "", "");
    o = servekit_ok(&kit, "/generate", q);
    text = mem_strdup(servekit_text(o, "text", NULL));
    assert_int_equal(json_integer_value(servekit_at(o, "meta_info", "prompt_tokens")), 11);
    json_decref(o);
    for (size_t at = 5; at + 4 < strlen(text); at += 7) {
        const char *first;
        snprintf(stop, sizeof stop, "%.3s", text + at);
        if (strpbrk(stop, "\"\\")) {
            continue;
        }
        first = strstr(text, stop);
        snprintf(more, sizeof more, ",\"stop\":[\"never\",\"%s\"]", stop);
        for (int trim = 0; trim < 2; trim++) {
            snprintf(tail, sizeof tail, "%s", trim ? "" : ",\"no_stop_trim\":true");
            strcat(more, tail);
            snprintf(q, sizeof q, body, more, "");
            o = servekit_ok(&kit, "/generate", q);
            assert_string_equal(
                servekit_text(servekit_at(o, "meta_info", "finish_reason"), "matched", NULL), stop);
            more[strlen(more) - strlen(tail)] = 0;
            if (trim) {
                assert_int_equal(strlen(servekit_text(o, "text", NULL)), first - text);
                assert_memory_equal(servekit_text(o, "text", NULL), text, (size_t)(first - text));
            } else {
                assert_int_equal(strlen(servekit_text(o, "text", NULL)), first - text + 3);
            }
            json_decref(o);
        }
        /* no event shows a part of it */
        snprintf(q, sizeof q, body, more, ",\"stream\":true");
        list = servekit_stream(&kit, "/generate", q);
        for (size_t i = 0; i < json_array_size(list); i++) {
            const char *s = servekit_text(json_array_get(list, i), "text", NULL);
            assert_true(strlen(s) <= (size_t)(first - text));
            assert_memory_equal(s, text, strlen(s));
        }
        json_decref(list);
        checked++;
    }
    assert_true(checked >= 3);
    mem_free(text);
}

/* Each prompt of a batch may have parameters of its own: it is answered as alone. */
static void test_lists(void **state)
{
    static const char *const prompts[] = {"abc", "the quick", "xyzzy"};
    static const char *const params[] = {
        "{\"max_new_tokens\":9,\"sampling_seed\":3,\"ignore_eos\":true}",
        ("{\"max_new_tokens\":30,\"temperature\":0,\"stop\":[\"e\",\"o\",\"5\"],\"logit_bias\":{"
         "\"70\":3}}"),
        "{\"max_new_tokens\":5,\"min_new_tokens\":5,\"stop_token_ids\":[50],\"sampling_seed\":-7}"};
    static const char *const logps[] = {"true", "false", "true"};
    static const int starts[] = {0, -1, 3}, tops[] = {0, 3, 2};
    char all[2048], one[1024];
    json_t *o, *alone, *m;

    (void)state;
    snprintf(all, sizeof all,
             "{\"text\":[\"%s\",\"%s\",\"%s\"],\"sampling_params\":[%s,%s,%s],\"unknown\":1,"
             "\"return_logprob\":[%s,%s,%s],\"logprob_start_len\":[%d,%d,%d],"
             "\"top_logprobs_num\":[%d,%d,%d]}",
             prompts[0], prompts[1], prompts[2], params[0], params[1], params[2], logps[0],
             logps[1], logps[2], starts[0], starts[1], starts[2], tops[0], tops[1], tops[2]);
    o = servekit_ok(&kit, "/generate", all);
    assert_int_equal(json_array_size(o), 3);
    for (size_t i = 0; i < 3; i++) {
        snprintf(one, sizeof one,
                 "{\"text\":\"%s\",\"sampling_params\":%s,\"return_logprob\":%s,"
                 "\"logprob_start_len\":%d,\"top_logprobs_num\":%d}",
                 prompts[i], params[i], logps[i], starts[i], tops[i]);
        alone = servekit_ok(&kit, "/generate", one);
        m = json_array_get(o, i);
        assert_true(
            json_equal(servekit_at(m, "output_ids", NULL), servekit_at(alone, "output_ids", NULL)));
        assert_string_equal(servekit_text(m, "text", NULL), servekit_text(alone, "text", NULL));
        m = json_object_get(m, "meta_info");
        for (int k = 0; k < 5; k++) {
            static const char *const keys[] = {"finish_reason", "input_token_logprobs",
                                               "output_token_logprobs", "input_top_logprobs",
                                               "output_top_logprobs"};
            json_t *a = json_object_get(m, keys[k]);
            json_t *b = json_object_get(json_object_get(alone, "meta_info"), keys[k]);
            assert_true(!a == !b && (!a || json_equal(a, b)));
        }
        json_decref(alone);
    }
    assert_null(json_object_get(servekit_at(json_array_get(o, 1), "meta_info", NULL),
                                "output_token_logprobs"));
    json_decref(o);
}

/* A stop token that is none of the model's own ends the response and is not in its text. */
static void test_stop_token(void **state)
{
    static const char body[] = "{\"text\":\"abc\",\"sampling_params\":{\"max_new_tokens\":40,"
                               "\"ignore_eos\":%s,\"sampling_seed\":3%s}}";
    char q[512], more[64];
    json_t *o, *whole;
    int id;
    size_t first = 0;

    (void)state;
    snprintf(q, sizeof q, body, "true", "");
    whole = servekit_ok(&kit, "/generate", q);
    id = (int)json_integer_value(json_array_get(servekit_at(whole, "output_ids", NULL), 10));
    while (json_integer_value(json_array_get(servekit_at(whole, "output_ids", NULL), first)) !=
           id) {
        first++;
    }
    snprintf(more, sizeof more, ",\"stop_token_ids\":[%d]", id);
    /* who ignores end tokens ignores all of them */
    snprintf(q, sizeof q, body, "true", more);
    o = servekit_ok(&kit, "/generate", q);
    assert_true(
        json_equal(servekit_at(o, "output_ids", NULL), servekit_at(whole, "output_ids", NULL)));
    json_decref(o);
    snprintf(q, sizeof q, body, "false", more);
    o = servekit_ok(&kit, "/generate", q);
    assert_int_equal(json_array_size(servekit_at(o, "output_ids", NULL)), first + 1);
    assert_int_equal(json_integer_value(servekit_at(servekit_at(o, "meta_info", "finish_reason"),
                                                    "matched", NULL)),
                     id);
    assert_memory_equal(servekit_text(o, "text", NULL), servekit_text(whole, "text", NULL),
                        strlen(servekit_text(o, "text", NULL)));
    assert_true(strlen(servekit_text(o, "text", NULL)) <= first);
    json_decref(o);
    json_decref(whole);
}

#define LONG                                                                                       \
    "{\"input_ids\":[5,6,7],\"rid\":\"%s\",\"stream\":%s,\"sampling_params\":{"                    \
    "\"max_new_tokens\":200,\"ignore_eos\":true}}"

static void wait_load(int n)
{
    struct service_stats st;
    for (double end = proc_now() + 20; proc_now() < end;) {
        service_get_stats(kit.api->service, &st);
        if (st.load == n) {
            break;
        }
        netpeer_sleep(0.002);
    }
    assert_int_equal(st.load, n);
}

static void test_abort(void **state)
{
    char q[512];
    json_t *o;
    int fd[2], status;

    (void)state;
    json_decref(servekit_ok(&kit, "/pause_generation", "{\"mode\":\"in_place\"}"));
    snprintf(q, sizeof q, LONG, "one-1", "false");
    fd[0] = servekit_ask(kit.port, "POST", "/generate", q);
    snprintf(q, sizeof q, LONG, "two-1", "false");
    fd[1] = servekit_ask(kit.port, "POST", "/generate", q);
    wait_load(2);
    /* names that are not whole, and none at all, mean nobody */
    json_decref(servekit_ok(&kit, "/abort_request", "{\"rid\":\"one\"}"));
    json_decref(servekit_ok(&kit, "/abort_request", "{\"rid\":\"one-12\"}"));
    json_decref(servekit_ok(&kit, "/abort_request", "{\"rid\":\"\"}"));
    json_decref(servekit_ok(&kit, "/abort_request", "{}"));
    wait_load(2);
    json_decref(servekit_ok(&kit, "/abort_request", "{\"rid\":\"one-1\"}"));
    o = servekit_json(fd[0], &status);
    assert_int_equal(status, 200);
    assert_string_equal(servekit_text(servekit_at(o, "meta_info", "finish_reason"), "type", NULL),
                        "abort");
    json_decref(o);
    wait_load(1);
    json_decref(servekit_ok(&kit, "/continue_generation", "{}"));
    o = servekit_json(fd[1], &status);
    assert_int_equal(json_integer_value(servekit_at(o, "meta_info", "completion_tokens")), 200);
    json_decref(o);
    /* a pause that ends what runs */
    json_decref(servekit_ok(&kit, "/pause_generation", "{\"mode\":\"retract\"}"));
    fd[0] = servekit_ask(kit.port, "POST", "/generate", q);
    wait_load(1);
    json_decref(servekit_ok(&kit, "/pause_generation", "{}"));
    o = servekit_json(fd[0], &status);
    assert_string_equal(servekit_text(servekit_at(o, "meta_info", "finish_reason"), "type", NULL),
                        "abort");
    json_decref(o);
    json_decref(servekit_ok(&kit, "/continue_generation", ""));
    /* the name of a batch means all its prompts */
    json_decref(servekit_ok(&kit, "/pause_generation", "{\"mode\":\"in_place\"}"));
    fd[0] =
        servekit_ask(kit.port, "POST", "/generate", "{\"input_ids\":[[5],[6]],\"rid\":\"both\"}");
    wait_load(2);
    json_decref(servekit_ok(&kit, "/abort_request", "{\"rid\":\"both\"}"));
    json_decref(servekit_json(fd[0], &status));
    assert_int_equal(status, 200);
    wait_load(0);
    json_decref(servekit_ok(&kit, "/continue_generation", "{}"));
}

/* Clients that go away leave nothing behind, whether they wait, stream or have not been begun. */
static void test_disconnect(void **state)
{
    char q[512], some[256];
    int fd;

    (void)state;
    for (int round = 0; round < 12; round++) {
        snprintf(q, sizeof q, LONG, "gone", round % 2 ? "true" : "false");
        if (round % 3 == 0) {
            json_decref(servekit_ok(&kit, "/pause_generation", "{\"mode\":\"in_place\"}"));
        }
        fd = servekit_ask(kit.port, "POST", "/generate", q);
        if (round % 3 == 0) {
            wait_load(1);
        } else if (round % 2) {
            assert_true(recv(fd, some, sizeof some, 0) > 0);
        }
        close(fd);
        wait_load(0);
        if (round % 3 == 0) {
            json_decref(servekit_ok(&kit, "/continue_generation", "{}"));
        }
    }
    servekit_idle(&kit);
}

static void test_malformed(void **state)
{
    static const char *const bodies[] = {
        "",
        "{",
        "[]",
        "null",
        "{}",
        "{\"text\":1}",
        "{\"text\":[]}",
        "{\"text\":[\"a\",1]}",
        "{\"text\":\"\"}",
        "{\"input_ids\":[]}",
        "{\"input_ids\":[[]]}",
        "{\"input_ids\":[1,-1]}",
        "{\"input_ids\":[97]}",
        "{\"input_ids\":[1.5]}",
        "{\"input_ids\":[\"a\"]}",
        "{\"input_ids\":[[1],2]}",
        "{\"input_ids\":[9223372036854775807]}",
        "{\"text\":\"a\",\"image_data\":[\"x\"]}",
        "{\"text\":\"a\",\"stream\":1}",
        "{\"text\":\"a\",\"rid\":5}",
        "{\"text\":[\"a\",\"b\"],\"rid\":[\"x\"]}",
        "{\"text\":[\"a\",\"b\"],\"rid\":[\"x\",\"x\"]}",
        "{\"text\":[\"a\",\"b\"],\"sampling_params\":[{}]}",
        "{\"text\":[\"a\",\"b\"],\"sampling_params\":[{},5]}",
        "{\"text\":[\"a\",\"b\"],\"sampling_params\":[{},{\"n\":2}]}",
        "{\"text\":[\"a\",\"b\"],\"sampling_params\":[{},{\"temperature\":-1}]}",
        "{\"text\":[\"a\",\"b\"],\"return_logprob\":[true]}",
        "{\"text\":[\"a\",\"b\"],\"return_logprob\":[true,1]}",
        "{\"text\":[\"a\",\"b\"],\"sampling_params\":{\"n\":2},\"return_logprob\":[true,true]}",
        "{\"text\":\"a\",\"sampling_params\":[{}]}",
        "{\"text\":\"a\",\"return_logprob\":[true]}",
        "{\"text\":\"a\",\"return_logprob\":true,\"logprob_start_len\":5}",
        "{\"text\":\"a\",\"return_logprob\":true,\"top_logprobs_num\":98}",
        "{\"input_ids\":[5,9,33],\"return_logprob\":true,\"logprob_start_len\":0,\"sampling_"
        "params\":{\"max_new_tokens\":0},\"token_ids_logprob\":[97]}",
        "{\"input_ids\":[5,9,33],\"return_logprob\":true,\"logprob_start_len\":0,\"sampling_"
        "params\":{\"max_new_tokens\":0},\"token_ids_logprob\":[-1]}",
        "{\"input_ids\":[5,9,33],\"return_logprob\":true,\"logprob_start_len\":0,\"sampling_"
        "params\":{\"max_new_tokens\":0},\"token_ids_logprob\":[\"a\"]}",
        "{\"input_ids\":[5,9,33],\"return_logprob\":true,\"logprob_start_len\":0,\"sampling_"
        "params\":{\"max_new_tokens\":0},\"token_ids_logprob\":5}",
        "{\"input_ids\":[5,9,33],\"return_logprob\":true,\"logprob_start_len\":0,\"sampling_"
        "params\":{\"max_new_tokens\":0},\"token_ids_logprob\":[[1]]}",
        "{\"input_ids\":[5,9,33],\"return_logprob\":true,\"logprob_start_len\":0,\"sampling_"
        "params\":{\"max_new_tokens\":0},\"token_ids_logprob\":[[1],[2,3]]}",
        "{\"input_ids\":[5,9,33],\"return_logprob\":true,\"logprob_start_len\":0,\"sampling_"
        "params\":{\"max_new_tokens\":0},\"token_ids_logprob\":[[1],2]}",
        "{\"input_ids\":[5,9,33],\"return_logprob\":true,\"logprob_start_len\":0,\"sampling_"
        "params\":{\"max_new_tokens\":4},\"token_ids_logprob\":[1]}",
        "{\"input_ids\":[[5],[9]],\"return_logprob\":true,\"logprob_start_len\":0,\"sampling_"
        "params\":{\"max_new_tokens\":0},\"token_ids_logprob\":[1]}",
        "{\"text\":\"a\",\"sampling_params\":{\"max_new_tokens\":0},\"token_ids_logprob\":[1]}",
        "{\"text\":\"a\",\"sampling_params\":[]}",
        "{\"text\":\"a\",\"sampling_params\":{\"temprature\":1}}",
        "{\"text\":\"a\",\"sampling_params\":{\"temperature\":-1}}",
        "{\"text\":\"a\",\"sampling_params\":{\"temperature\":\"hot\"}}",
        "{\"text\":\"a\",\"sampling_params\":{\"top_p\":0}}",
        "{\"text\":\"a\",\"sampling_params\":{\"top_k\":-2}}",
        "{\"text\":\"a\",\"sampling_params\":{\"top_k\":0}}",
        "{\"text\":\"a\",\"sampling_params\":{\"repetition_penalty\":0}}",
        "{\"text\":\"a\",\"sampling_params\":{\"beam_width\":2}}",
        "{\"text\":\"a\",\"sampling_params\":{\"n\":0}}",
        "{\"text\":\"a\",\"sampling_params\":{\"n\":100000}}",
        "{\"text\":\"a\",\"sampling_params\":{\"max_new_tokens\":1000}}",
        "{\"text\":\"a\",\"sampling_params\":{\"max_new_tokens\":-1}}",
        "{\"text\":\"a\",\"sampling_params\":{\"min_new_tokens\":5,\"max_new_tokens\":2}}",
        "{\"text\":\"a\",\"sampling_params\":{\"stop\":[\"\"]}}",
        "{\"text\":\"a\",\"sampling_params\":{\"stop\":[1]}}",
        "{\"text\":\"a\",\"sampling_params\":{\"stop_token_ids\":[99999]}}",
        "{\"text\":\"a\",\"sampling_params\":{\"logit_bias\":{\"x\":1}}}",
        "{\"text\":\"a\",\"sampling_params\":{\"regex\":\"a+\"}}",
        "{\"text\":\"a\xff\"}",
        "{\"text\":\"a\",\"text\":\"b\"}",
    };
    struct buf deep;
    int status;
    json_t *o;

    (void)state;
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        o = servekit_post(&kit, "/generate", bodies[i], &status);
        if (status != 400) {
            fail_msg("%s: %d", bodies[i], status);
        }
        assert_true(strlen(servekit_text(servekit_at(o, "error", NULL), "message", NULL)) > 0);
        assert_string_equal(servekit_text(o, "message", NULL),
                            servekit_text(o, "error", "message"));
        json_decref(o);
    }
    buf_init(&deep, 1 << 20);
    for (int i = 0; i < 100000; i++) {
        buf_char(&deep, '[');
    }
    json_decref(servekit_post(&kit, "/generate", deep.data, &status));
    assert_int_equal(status, 400);
    buf_fini(&deep);
    json_decref(servekit_get(&kit, "/health_generate", &status));
    assert_int_equal(status, 200);
    servekit_idle(&kit);
}

/* ---- many at once ---- */

enum { CLIENTS = 8, ROUNDS = 12 };
static struct direct expected[CLIENTS];

static void *client(void *arg)
{
    int me = (int)(intptr_t)arg;
    struct engine_group q;
    int32_t ids[SERVEKIT_CONTEXT];
    intptr_t wrong = 0;
    struct buf b;

    buf_init(&b, 1 << 20);
    for (int i = 0; i < ROUNDS; i++) {
        int which = (me + i) % CLIENTS, status;
        json_t *o, *out;
        make_request(&b, ids, &q, (uint64_t)which + 100, 8 + which * 9, 24, "");
        o = servekit_post(&kit, "/generate", b.data, &status);
        out = json_object_get(json_object_get(o, "meta_info"), "output_token_logprobs");
        wrong += status != 200 || (int)json_array_size(out) != expected[which].n;
        for (int k = 0; k < (int)json_array_size(out); k++) {
            json_t *t = json_array_get(out, (size_t)k);
            wrong += (float)json_number_value(json_array_get(t, 0)) != expected[which].logps[k] ||
                     json_integer_value(json_array_get(t, 1)) != expected[which].tokens[k];
        }
        json_decref(o);
    }
    buf_fini(&b);
    return (void *)wrong;
}

static void test_concurrent(void **state)
{
    struct engine_group q;
    int32_t ids[SERVEKIT_CONTEXT];
    pthread_t t[CLIENTS];
    struct buf b;

    (void)state;
    buf_init(&b, 1 << 20);
    for (int i = 0; i < CLIENTS; i++) {
        make_request(&b, ids, &q, (uint64_t)i + 100, 8 + i * 9, 24, "");
        direct_run(0, &q, &expected[i]);
    }
    buf_fini(&b);
    for (int i = 0; i < CLIENTS; i++) {
        assert_int_equal(pthread_create(&t[i], NULL, client, (void *)(intptr_t)i), 0);
    }
    for (int i = 0; i < CLIENTS; i++) {
        void *wrong;
        pthread_join(t[i], &wrong);
        assert_int_equal((intptr_t)wrong, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_engine), cmocka_unit_test(test_wanted),
        cmocka_unit_test(test_stream),        cmocka_unit_test(test_batch),
        cmocka_unit_test(test_stop_strings),  cmocka_unit_test(test_stop_token),
        cmocka_unit_test(test_abort),         cmocka_unit_test(test_disconnect),
        cmocka_unit_test(test_malformed),     cmocka_unit_test(test_lists),
        cmocka_unit_test(test_concurrent),    cmocka_unit_test(test_key),
        cmocka_unit_test(test_bad_key),
    };
    return cmocka_run_group_tests(tests, suite_setup, suite_teardown);
}
