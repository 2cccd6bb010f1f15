/* tokenizer.json made from GGUF metadata against the vendors' own files: the structure around the
 * vocabulary must be theirs. */
#include "fixture.h"

#include <jansson.h>

#include "model/gguf.h"
#include "model/gguf_text.h"

static void make_texts(const char *pre, struct gguf_text *t)
{
    const char *path = fixture_path("t.gguf");
    struct buf b;
    struct gguf *g = NULL;
    struct err e = {0};
    buf_init(&b, 1 << 20);
    fixture_llama_gguf(&b, pre);
    fixture_write(path, b.data, b.len);
    assert_ok(gguf_open(path, &g, &e), &e);
    assert_ok(gguf_text_make(g, t, &e), &e);
    gguf_close(g);
    buf_fini(&b);
}

static void test_structures(void **state)
{
    static const struct {
        const char *pre, *folder;
    } cases[] = {
        {"smollm", "smollm2"}, {"qwen2", "qwen2.5"}, {"gpt-2", "gpt2"}, {"llama-bpe", "llama-3.1"}};
    static const char *const keys[] = {"normalizer", "pre_tokenizer", "decoder", "post_processor"};
    (void)state;

    for (int i = 0; i < 4; i++) {
        struct gguf_text t;
        char rel[64];
        json_t *ours, *real;
        make_texts(cases[i].pre, &t);
        snprintf(rel, sizeof rel, "tokenizers/%s/tokenizer.json", cases[i].folder);
        ours = json_loads(t.tokenizer, JSON_REJECT_DUPLICATES, NULL);
        assert_non_null(ours);
        real = json_load_file(support_data(rel), 0, NULL);
        assert_non_null(real);
        for (int k = 0; k < 4; k++) {
            json_t *a = json_object_get(ours, keys[k]), *b = json_object_get(real, keys[k]);
            if (k == 3 && i == 3) {
                /* The template names another bos; its first step is the same. */
                a = json_array_get(json_object_get(a, "processors"), 0);
                b = json_array_get(json_object_get(b, "processors"), 0);
            }
            if (!a || !json_equal(a, b)) {
                fail_msg("%s of %s differs", keys[k], cases[i].pre);
            }
        }
        assert_int_equal(
            json_is_true(json_object_get(json_object_get(ours, "model"), "ignore_merges")), i == 3);
        json_decref(ours);
        json_decref(real);
        gguf_text_fini(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_structures),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
