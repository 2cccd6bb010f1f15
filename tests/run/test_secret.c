/* What is taken out of texts and options, and what is not. */
#include "support.h"

#include "base/buf.h"
#include "run/secret.h"

static void expect(const char *text, const char *want)
{
    struct buf b;
    buf_init(&b, 1 << 16);
    secret_text(text, strlen(text), &b);
    assert_string_equal(b.data, want);
    buf_fini(&b);
}

static void texts(void **state)
{
    (void)state;
    expect("GET https://user:pw@host:80/x?a=1", "GET https://...@host:80/x?a=1");
    expect("https://host/x?token=abc&b=2", "https://host/x?token=...&b=2");
    expect("https://host/x@y", "https://host/x@y");
    expect("miles train --wandb-key 0123abc --lr 1e-6", "miles train --wandb-key ... --lr 1e-6");
    expect("--sglang-api-key=zzz next", "--sglang-api-key=... next");
    expect("HF_TOKEN=xyz WANDB_API_KEY=q", "HF_TOKEN=... WANDB_API_KEY=...");
    expect("Authorization: Bearer abc.def-ghi end", "Authorization: Bearer ... end");
    expect("{\"api_key\": \"abc\", \"n\": 1}", "{\"api_key\": \"...\", \"n\": 1}");
    expect("[\"--api-key\", \"abc\"]", "[\"--api-key\", \"...\"]");
    expect("key sk-abcdefghijklmnopqrstuvwx.", "key ....");
    expect("a hf_abcdefghijklmnopqrst b", "a ... b");
    /* ordinary words */
    expect("--label-key answer --input-key q", "--label-key answer --input-key q");
    expect("12 tokens: 34, token 5 of it", "12 tokens: 34, token 5 of it");
    expect("max_tokens_per_gpu=4096", "max_tokens_per_gpu=4096");
    expect("sk-short hf_x", "sk-short hf_x");
    expect("password", "password");
    expect("", "");
}

static void options(void **state)
{
    json_t *j = json_loads("{\"wandb_key\": \"a\", \"label_key\": \"answer\", \"n\": 3,"
                           " \"rm_url\": \"http://u:p@h/\", \"sglang_pass\":"
                           " [\"--api-key\", \"b\", \"--x\", \"c\"],"
                           " \"deep\": {\"hf_token\": \"d\", \"max_tokens\": 5}}",
                           0, NULL);
    char *text;
    (void)state;
    secret_hide(j);
    text = json_dumps(j, JSON_COMPACT | JSON_SORT_KEYS);
    assert_string_equal(text, "{\"deep\":{\"hf_token\":\"...\",\"max_tokens\":5},"
                              "\"label_key\":\"answer\",\"n\":3,\"rm_url\":\"http://...@h/\","
                              "\"sglang_pass\":[\"--api-key\",\"...\",\"--x\",\"c\"],"
                              "\"wandb_key\":\"...\"}");
    free(text);
    json_decref(j);
    secret_hide(NULL);
}

/* What the user's functions get: all but what is named a secret. */
static void named(void **state)
{
    json_t *j = json_loads("{\"wandb_key\": \"a\", \"rm_url\": \"http://u:p@h/?api_key=k\","
                           " \"sglang_pass\": [\"--api-key\", \"b\", \"--x\", \"http://u:p@h/\"]}",
                           0, NULL);
    char *text;
    (void)state;
    secret_hide_named(j);
    text = json_dumps(j, JSON_COMPACT | JSON_SORT_KEYS);
    assert_string_equal(text, "{\"rm_url\":\"http://u:p@h/?api_key=k\","
                              "\"sglang_pass\":[\"--api-key\",\"...\",\"--x\","
                              "\"http://u:p@h/\"],\"wandb_key\":\"...\"}");
    free(text);
    json_decref(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(texts), cmocka_unit_test(options),
                                       cmocka_unit_test(named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
