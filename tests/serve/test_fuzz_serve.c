/* Bodies with bytes changed, cut, doubled and put in: every request gets an answer, 200 or 400, and
 * the server goes on. The same bodies every time. */
#include "serve/servekit.h"

static const struct {
    const char *path, *body;
} seeds[] = {
    {"/generate",
     "{\"text\":[\"ab\",\"c\"],\"rid\":[\"x\",\"y\"],\"return_logprob\":true,"
     "\"logprob_start_len\":0,\"top_logprobs_num\":2,\"return_text_in_logprobs\":true,"
     "\"sampling_params\":{\"max_new_tokens\":3,\"temperature\":0.5,\"top_p\":0.9,\"top_k\":5,"
     "\"min_p\":0.1,\"stop\":[\"zz\",\"q\"],\"stop_token_ids\":[7],\"n\":2,\"logit_bias\":{\"4\":1}"
     ","
     "\"frequency_penalty\":0.1,\"sampling_seed\":1}}"},
    {"/generate", "{\"input_ids\":[[1,2,3],[4]],\"stream\":true,\"sampling_params\":{"
                  "\"max_new_tokens\":4,\"min_new_tokens\":1,\"ignore_eos\":true}}"},
    {"/v1/chat/completions",
     "{\"model\":\"tiny\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\","
     "\"text\":\"hi\"}]},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"1\","
     "\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}],"
     "\"max_tokens\":3,\"logprobs\":true,\"top_logprobs\":1,\"stream\":true,\"tools\":[{\"type\":"
     "\"function\",\"function\":{\"name\":\"f\"}}],\"stream_options\":{\"include_usage\":true}}"},
    {"/v1/completions", "{\"prompt\":[\"ab\",[3,4]],\"echo\":true,\"logprobs\":1,\"max_tokens\":2,"
                        "\"seed\":4,\"stop\":\"x\"}"},
    {"/abort_request", "{\"rid\":\"x\",\"abort_all\":false}"},
    {"/get_weights_by_name", "{\"name\":\"model.norm.weight\",\"truncate_size\":3}"},
    {"/update_weight_version", "{\"new_version\":\"v\",\"abort_all_requests\":false}"},
};

static void mutate(uint64_t *s, struct buf *b)
{
    static const char pieces[][12] = {"null", "-1",          "1e999", "[", "{",    "\"", "\\u0000",
                                      "true", "99999999999", "\xff",  ",", "[[]]", "{}", "0"};
    int times = 1 + tinymodel_below(s, 3);

    for (int i = 0; i < times && b->len > 2; i++) {
        size_t at = (size_t)tinymodel_below(s, (int)b->len), n;
        const char *piece = pieces[tinymodel_below(s, sizeof pieces / sizeof *pieces)];
        struct buf out;
        buf_init(&out, 1 << 20);
        buf_add(&out, b->data, at);
        n = (size_t)tinymodel_below(s, 6);
        n = n < b->len - at ? n : b->len - at;
        switch (tinymodel_below(s, 4)) {
        case 0: /* one byte otherwise */
            buf_char(&out, (char)(1 + tinymodel_below(s, 255)));
            buf_add(&out, b->data + at + 1, b->len - at - 1);
            break;
        case 1: /* some left out */ buf_add(&out, b->data + at + n, b->len - at - n); break;
        case 2: /* something put in, in place of some */
            buf_str(&out, piece);
            buf_add(&out, b->data + at + n, b->len - at - n);
            break;
        default: /* some said twice */
            buf_add(&out, b->data + at, n);
            buf_add(&out, b->data + at, b->len - at);
        }
        buf_fini(b);
        *b = out;
    }
}

static void test_mutated(void **state)
{
    struct api_opts o = {.service = {.engine = {.max_running = 8}}};
    struct servekit k;
    struct buf b, answer;
    uint64_t s = 1;
    int ok = 0, bad = 0, status;

    (void)state;
    servekit_start(&k, &o);
    for (int i = 0; i < 1200; i++) {
        size_t which = (size_t)i % (sizeof seeds / sizeof *seeds);
        buf_init(&b, 1 << 20);
        buf_init(&answer, 64 << 20);
        buf_str(&b, seeds[which].body);
        if (i >= (int)(sizeof seeds / sizeof *seeds)) {
            mutate(&s, &b);
        }
        if (strlen(b.data) == b.len) {
            status =
                servekit_answer(servekit_ask(k.port, "POST", seeds[which].path, b.data), &answer);
            if (status != 200 && status != 400) {
                fail_msg("%s %s: %d %s", seeds[which].path, b.data, status, answer.data);
            }
            ok += status == 200;
            bad += status == 400;
        }
        buf_fini(&b);
        buf_fini(&answer);
    }
    assert_true(ok > 50 && bad > 500);
    json_decref(servekit_get(&k, "/health_generate", &status));
    assert_int_equal(status, 200);
    servekit_stop(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_mutated)};
    return cmocka_run_group_tests(tests, servekit_setup, fixture_teardown);
}
