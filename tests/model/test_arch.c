/* config.json as transformers writes it, old and new, and every key that must be refused by name.
 */
#include "support.h"

#include "base/status.h"
#include "model/arch.h"

#define LLAMA_SIZES                                                                                \
    "\"hidden_size\": 576, \"num_hidden_layers\": 30, \"num_attention_heads\": 9,"                 \
    "\"num_key_value_heads\": 3, \"intermediate_size\": 1536, \"vocab_size\": 49152,"              \
    "\"max_position_embeddings\": 8192"
#define LLAMA "{\"model_type\": \"llama\", " LLAMA_SIZES

static void parse_ok(const char *text, struct arch *a)
{
    struct err e = {0};
    memset(a, 0x55, sizeof *a);
    assert_ok(arch_parse(text, a, &e), &e);
}

/* Fails with `code`, a message that has every word of `w1`, `w2`, and leaves the result alone. */
static void parse_bad(const char *text, int code, const char *w1, const char *w2)
{
    struct err e = {0};
    struct arch a;
    memset(&a, 0x55, sizeof a);
    assert_int_equal(arch_parse(text, &a, &e), code);
    assert_int_equal(e.code, code);
    if (!strstr(e.msg, w1) || !strstr(e.msg, w2)) {
        fail_msg("message \"%s\" lacks \"%s\" or \"%s\"", e.msg, w1, w2);
    }
    assert_int_equal(a.n_layers, 0x55555555);
}

static void test_llama_new(void **state)
{
    struct arch a;
    (void)state;
    parse_ok(LLAMA ", \"head_dim\": 64, \"rms_norm_eps\": 9.999999747378752e-06,"
                   "\"rope_parameters\": {\"rope_theta\": 100000.0, \"rope_type\": \"default\"},"
                   "\"hidden_act\": \"silu\", \"attention_bias\": false, \"mlp_bias\": false,"
                   "\"tie_word_embeddings\": true, \"bos_token_id\": 1, \"eos_token_id\": 2,"
                   "\"pad_token_id\": 2, \"dtype\": \"bfloat16\", \"pretraining_tp\": 1}",
             &a);
    assert_string_equal(a.family, "llama");
    assert_int_equal(a.n_layers, 30);
    assert_int_equal(a.hidden, 576);
    assert_int_equal(a.n_heads, 9);
    assert_int_equal(a.n_kv_heads, 3);
    assert_int_equal(a.head_dim, 64);
    assert_int_equal(a.intermediate, 1536);
    assert_int_equal(a.vocab, 49152);
    assert_int_equal(a.max_positions, 8192);
    assert_true(a.rms_eps == 1e-5f);
    assert_true(a.rope[0].theta == 100000.0);
    assert_int_equal(a.tie_embeddings, 1);
    assert_int_equal(a.qkv_bias, 0);
    assert_int_equal(a.qk_norm, 0);
    assert_int_equal(a.bos_id, 1);
    assert_int_equal(a.n_eos, 1);
    assert_int_equal(a.eos_id[0], 2);
}

static void test_llama_old(void **state)
{
    struct arch a;
    (void)state;
    parse_ok(LLAMA ", \"rope_theta\": 500000, \"rope_scaling\": null, \"bos_token_id\": null,"
                   "\"eos_token_id\": [7, 8, 7], \"use_sliding_window\": null}",
             &a);
    assert_true(a.rope[0].theta == 500000.0);
    assert_int_equal(a.head_dim, 64);
    assert_int_equal(a.tie_embeddings, 0);
    assert_true(a.rms_eps == 1e-6f);
    assert_int_equal(a.bos_id, -1);
    assert_int_equal(a.n_eos, 2);
    assert_int_equal(a.eos_id[0], 7);
    assert_int_equal(a.eos_id[1], 8);
    /* All heads are key-value heads, rope base and eps are transformers' defaults. */
    parse_ok("{\"model_type\": \"llama\", \"hidden_size\": 64, \"num_hidden_layers\": 1,"
             "\"num_attention_heads\": 4, \"intermediate_size\": 96, \"vocab_size\": 12,"
             "\"max_position_embeddings\": 32}",
             &a);
    assert_int_equal(a.n_kv_heads, 4);
    assert_int_equal(a.head_dim, 16);
    assert_true(a.rope[0].theta == 10000.0);
    assert_int_equal(a.n_eos, 0);
}

static void test_qwen(void **state)
{
    struct arch a;
    (void)state;
    parse_ok("{\"model_type\": \"qwen2\", " LLAMA_SIZES
             ", \"use_sliding_window\": false, \"sliding_window\": 32768,"
             "\"layer_types\": [\"full_attention\", \"full_attention\"]}",
             &a);
    assert_string_equal(a.family, "qwen2");
    assert_int_equal(a.qkv_bias, 1);
    assert_int_equal(a.qk_norm, 0);
    assert_int_equal(a.head_dim, 64);
    parse_ok(
        "{\"model_type\": \"qwen3\", \"head_dim\": 128, \"attention_bias\": false, " LLAMA_SIZES
        "}",
        &a);
    assert_int_equal(a.qkv_bias, 0);
    assert_int_equal(a.qk_norm, 1);
    assert_int_equal(a.head_dim, 128);
    /* transformers' Qwen3 has a head of 128 where the file says nothing. */
    parse_ok("{\"model_type\": \"qwen3\", " LLAMA_SIZES "}", &a);
    assert_int_equal(a.head_dim, 128);
}

static void test_mistral(void **state)
{
    struct arch a;
    (void)state;
    parse_ok("{\"model_type\": \"mistral\", \"sliding_window\": 100, " LLAMA_SIZES "}", &a);
    assert_int_equal(a.window, 100);
    assert_int_equal(a.attn[0], ARCH_ATTN_SLIDING);
    assert_int_equal(a.attn[29], ARCH_ATTN_SLIDING);
    parse_ok("{\"model_type\": \"mistral\", \"sliding_window\": null, " LLAMA_SIZES "}", &a);
    assert_int_equal(a.window, 0);
    assert_int_equal(a.attn[0], ARCH_ATTN_FULL);
    parse_ok("{\"model_type\": \"mistral\", " LLAMA_SIZES "}", &a); /* transformers' default */
    assert_int_equal(a.window, 4096);
}

/* gemma-2-2b's file: no tie_word_embeddings, no layer_types. */
static void test_gemma2(void **state)
{
    struct arch a;
    (void)state;
    parse_ok("{\"model_type\": \"gemma2\", \"attention_bias\": false, \"head_dim\": 256,"
             "\"attn_logit_softcapping\": 50.0, \"final_logit_softcapping\": 30.0,"
             "\"hidden_act\": \"gelu_pytorch_tanh\", \"hidden_activation\": \"gelu_pytorch_tanh\","
             "\"query_pre_attn_scalar\": 224, \"rope_theta\": 10000.0, \"sliding_window\": 512,"
             "\"bos_token_id\": 2, \"eos_token_id\": [1, 107], " LLAMA_SIZES "}",
             &a);
    assert_int_equal(a.tie_embeddings, 1);
    assert_int_equal(a.norm_plus_one, 1);
    assert_int_equal(a.post_norms, 1);
    assert_int_equal(a.embed_scale, 1);
    assert_int_equal(a.act, ACT_GELU_TANH);
    assert_int_equal(a.qk_norm, 0);
    assert_true(a.attn_softcap == 50.0f && a.final_softcap == 30.0f && a.score_dim == 224.0f);
    assert_int_equal(a.window, 512);
    assert_int_equal(a.attn[0], ARCH_ATTN_SLIDING);
    assert_int_equal(a.attn[1], ARCH_ATTN_FULL);
    assert_int_equal(a.attn[2], ARCH_ATTN_SLIDING);
    parse_ok("{\"model_type\": \"gemma2\", \"final_logit_softcapping\": null, " LLAMA_SIZES "}",
             &a);
    assert_true(a.attn_softcap == 50.0f && a.final_softcap == 0.0f && a.score_dim == 256.0f);
    assert_int_equal(a.head_dim, 256);
}

static void test_gemma3(void **state)
{
    struct arch a;
    (void)state;
    /* gemma-3-4b's file says little about its text part */
    parse_ok("{\"model_type\": \"gemma3\", \"eos_token_id\": [1, 106], \"text_config\": {"
             "\"hidden_size\": 2560, \"intermediate_size\": 10240, \"model_type\": \"gemma3_text\","
             "\"num_hidden_layers\": 34, \"rope_scaling\": {\"factor\": 8.0,"
             "\"rope_type\": \"linear\"}, \"sliding_window\": 1024}, \"vision_config\": {}}",
             &a);
    assert_string_equal(a.prefix, "model.language_model.");
    assert_int_equal(a.vocab, 262208);
    assert_int_equal(a.n_heads, 8);
    assert_int_equal(a.n_kv_heads, 4);
    assert_int_equal(a.head_dim, 256);
    assert_int_equal(a.max_positions, 131072);
    assert_int_equal(a.qk_norm, 1);
    assert_int_equal(a.n_eos, 2);
    assert_int_equal(a.eos_id[1], 106);
    assert_int_equal(a.rope[0].kind, ARCH_ROPE_LINEAR);
    assert_true(a.rope[0].factor == 8.0 && a.rope[0].theta == 1e6);
    assert_int_equal(a.rope[1].kind, ARCH_ROPE_DEFAULT);
    assert_true(a.rope[1].theta == 1e4);
    assert_int_equal(a.attn[4], ARCH_ATTN_SLIDING);
    assert_int_equal(a.attn[5], ARCH_ATTN_FULL);
    assert_int_equal(arch_spelling(&a, 1), 1);
    assert_string_equal(a.prefix, "language_model.model.");
    assert_int_equal(arch_spelling(&a, 2), 0);
    /* as transformers 5 writes it, and its own old form */
    parse_ok("{\"model_type\": \"gemma3_text\", \"layer_types\": [\"full_attention\","
             "\"sliding_attention\"], \"rope_parameters\": {\"full_attention\": {\"rope_type\":"
             "\"default\", \"rope_theta\": 50.0}, \"sliding_attention\": {\"rope_theta\": "
             "7.0}}, " LLAMA_SIZES "}",
             &a);
    assert_string_equal(a.prefix, "model.");
    assert_true(a.rope[0].theta == 50.0 && a.rope[1].theta == 7.0);
    assert_int_equal(a.attn[0], ARCH_ATTN_FULL);
    assert_int_equal(a.attn[1], ARCH_ATTN_SLIDING);
    parse_ok("{\"model_type\": \"gemma3_text\", \"sliding_window_pattern\": 3, \"rope_theta\": 9.0,"
             "\"rope_local_base_freq\": 8.0, " LLAMA_SIZES "}",
             &a);
    assert_true(a.rope[0].theta == 9.0 && a.rope[1].theta == 8.0);
    assert_int_equal(a.attn[1], ARCH_ATTN_SLIDING);
    assert_int_equal(a.attn[2], ARCH_ATTN_FULL);
    parse_bad("{\"model_type\": \"gemma3\"}", STATUS_FORMAT, "text_config", "missing");
}

static void test_glm4(void **state)
{
    struct arch a;
    (void)state;
    parse_ok("{\"model_type\": \"glm4\", \"partial_rotary_factor\": 0.25, \"head_dim\": "
             "128, " LLAMA_SIZES "}",
             &a);
    assert_int_equal(a.rot, 32);
    assert_int_equal(a.interleaved, 1);
    assert_int_equal(a.post_norms, 1);
    assert_int_equal(a.norm_plus_one, 0);
    assert_int_equal(a.fused_gate_up, 1);
    assert_int_equal(a.qkv_bias, 1);
    assert_int_equal(a.o_bias, 0);
    assert_true(a.rms_eps == 1.5625e-07f);
    parse_ok("{\"model_type\": \"glm4\", \"attention_bias\": false, " LLAMA_SIZES "}", &a);
    assert_int_equal(a.rot, 64);
    assert_int_equal(a.head_dim, 128);
    assert_int_equal(a.qkv_bias, 0);
    parse_bad("{\"model_type\": \"glm4\", \"partial_rotary_factor\": 1.5, " LLAMA_SIZES "}",
              STATUS_FORMAT, "partial_rotary_factor", "1.5");
}

static void test_ropes(void **state)
{
    struct arch a;
    (void)state;
    parse_ok(LLAMA ", \"rope_scaling\": {\"factor\": 32.0, \"high_freq_factor\": 4.0,"
                   "\"low_freq_factor\": 1.0, \"original_max_position_embeddings\": 4096,"
                   "\"rope_type\": \"llama3\"}, \"rope_theta\": 500000.0}",
             &a);
    assert_int_equal(a.rope[0].kind, ARCH_ROPE_LLAMA3);
    assert_int_equal(a.rope[0].original, 4096);
    assert_true(a.rope[0].theta == 5e5 && a.rope[0].factor == 32 && a.rope[0].low_freq == 1 &&
                a.rope[0].high_freq == 4);
    assert_memory_equal(&a.rope[0], &a.rope[1], sizeof a.rope[0]);
    parse_ok(LLAMA ", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4.0,"
                   "\"original_max_position_embeddings\": 2048}}",
             &a);
    assert_int_equal(a.rope[0].kind, ARCH_ROPE_YARN);
    assert_true(a.rope[0].beta_fast == 32 && a.rope[0].beta_slow == 1 && a.rope[0].truncate);
    assert_true(a.rope[0].attention_factor > 1.1386 && a.rope[0].attention_factor < 1.1387);
    parse_ok(LLAMA ", \"rope_parameters\": {\"rope_type\": \"dynamic\", \"factor\": 2.0}}", &a);
    assert_int_equal(a.rope[0].kind, ARCH_ROPE_DYNAMIC);
    assert_int_equal(a.rope[0].original, 8192);
    parse_ok(LLAMA ", \"attention_bias\": true, \"mlp_bias\": true}", &a);
    assert_int_equal(a.qkv_bias && a.o_bias && a.mlp_bias, 1);
    parse_bad(LLAMA ", \"rope_scaling\": {\"type\": \"linear\"}}", STATUS_FORMAT, "factor",
              "missing");
    parse_bad(LLAMA ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 0.5}}", STATUS_FORMAT,
              "factor", "below 1");
    parse_bad(LLAMA ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0}}",
              STATUS_FORMAT, "low_freq_factor", "missing");
}

static void test_refusals(void **state)
{
    static const struct {
        const char *tail, *key, *value;
    } bad[] = {
        {", \"hidden_act\": \"gelu\"}", "hidden_act", "gelu"},
        {", \"use_sliding_window\": true}", "use_sliding_window", "true"},
        {", \"rope_scaling\": {\"type\": \"su\", \"factor\": 2}}", "rope_scaling.type", "su"},
        {", \"rope_parameters\": {\"rope_type\": \"longrope\"}}", "rope_parameters.rope_type",
         "longrope"},
        {", \"rope_parameters\": {\"factor\": 2.0}}", "rope_parameters.factor", "2.0"},
        {", \"attn_logit_softcapping\": 50.0}", "attn_logit_softcapping", "50.0"},
        {", \"use_bidirectional_attention\": true}", "use_bidirectional_attention", "true"},
        {", \"rope_parameters\": {\"partial_rotary_factor\": 0.5}}", "partial_rotary_factor",
         "0.5"},
        {", \"partial_rotary_factor\": 0.25}", "partial_rotary_factor", "0.25"},
        {", \"quantization_config\": {\"quant_method\": \"gptq\"}}", "quantization_config", "gptq"},
        {", \"layer_types\": [\"sliding_attention\"]}", "layer_types", "sliding_attention"},
    };
    char text[1024];
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        snprintf(text, sizeof text, "%s%s", LLAMA, bad[i].tail);
        parse_bad(text, STATUS_UNSUPPORTED, bad[i].key, bad[i].value);
    }
    parse_bad("{\"model_type\": \"mamba\"}", STATUS_UNSUPPORTED, "model_type", "mamba");
    parse_bad("{\"model_type\": \"mixtral\"}", STATUS_UNSUPPORTED, "mixtral", "experts");
    parse_bad("{\"model_type\": \"deepseek_v3\"}", STATUS_UNSUPPORTED, "latent attention",
              "experts");
    parse_bad("{\"model_type\": \"qwen3_next\"}", STATUS_UNSUPPORTED, "linear attention",
              "experts");
    parse_bad("{\"model_type\": \"mistral\", \"attention_bias\": true, " LLAMA_SIZES "}",
              STATUS_UNSUPPORTED, "attention_bias", "true");
    parse_bad("{\"model_type\": \"qwen3\", \"mlp_bias\": true, " LLAMA_SIZES "}",
              STATUS_UNSUPPORTED, "mlp_bias", "true");
    parse_bad("{\"model_type\": \"gemma2\", \"hidden_activation\": \"gelu\", " LLAMA_SIZES "}",
              STATUS_UNSUPPORTED, "hidden_activation", "gelu");
    parse_bad("{\"model_type\": \"gemma3_text\", \"attn_logit_softcapping\": 5, " LLAMA_SIZES "}",
              STATUS_UNSUPPORTED, "attn_logit_softcapping", "5");
    parse_bad(
        "{\"model_type\": \"gemma3_text\", \"rope_parameters\": {\"rope_theta\": 5.0}, " LLAMA_SIZES
        "}",
        STATUS_UNSUPPORTED, "rope_parameters", "each kind");
    parse_bad("{\"model_type\": \"mistral\", \"sliding_window\": null, \"layer_types\": "
              "[\"sliding_attention\"], " LLAMA_SIZES "}",
              STATUS_UNSUPPORTED, "layer_types", "sliding_window");
    parse_bad("{\"model_type\": 3}", STATUS_UNSUPPORTED, "model_type", "3");
}

static void test_malformed(void **state)
{
    (void)state;
    parse_bad("", STATUS_FORMAT, "config.json", "line");
    parse_bad("[]", STATUS_FORMAT, "config.json", "object");
    parse_bad("{}", STATUS_FORMAT, "model_type", "missing");
    parse_bad("{\"model_type\": \"llama\"}", STATUS_FORMAT, "num_hidden_layers", "missing");
    parse_bad(LLAMA ", \"vocab_size\": -3}", STATUS_FORMAT, "vocab_size", "-3");
    parse_bad(LLAMA ", \"vocab_size\": 99999999999}", STATUS_FORMAT, "vocab_size", "99999999999");
    parse_bad(LLAMA ", \"hidden_size\": \"576\"}", STATUS_FORMAT, "hidden_size", "576");
    parse_bad(LLAMA ", \"hidden_size\": 577}", STATUS_FORMAT, "hidden_size 577", "9");
    parse_bad(LLAMA ", \"num_key_value_heads\": 2}", STATUS_FORMAT, "num_key_value_heads 2", "9");
    parse_bad(LLAMA ", \"head_dim\": 63}", STATUS_FORMAT, "head_dim 63", "odd");
    parse_bad(LLAMA ", \"rms_norm_eps\": 0}", STATUS_FORMAT, "rms_norm_eps", "0");
    parse_bad(LLAMA ", \"rope_theta\": -1.0}", STATUS_FORMAT, "rope_theta", "-1");
    parse_bad(LLAMA ", \"tie_word_embeddings\": 1}", STATUS_FORMAT, "tie_word_embeddings", "1");
    parse_bad(LLAMA ", \"eos_token_id\": 49152}", STATUS_FORMAT, "eos_token_id", "49152");
    parse_bad(LLAMA ", \"eos_token_id\": [1, \"x\"]}", STATUS_FORMAT, "eos_token_id", "x");
    parse_bad(LLAMA ", \"eos_token_id\": [1,2,3,4,5,6,7,8,9]}", STATUS_UNSUPPORTED, "eos_token_id",
              "8");
    parse_bad(LLAMA ", \"bos_token_id\": -1}", STATUS_FORMAT, "bos_token_id", "-1");
}

static void test_generation(void **state)
{
    struct err e = {0};
    struct arch a, before;
    (void)state;
    parse_ok(LLAMA ", \"eos_token_id\": 2}", &a);
    assert_ok(arch_merge_generation("{\"temperature\": 0.6}", &a, &e), &e);
    assert_int_equal(a.n_eos, 1);
    assert_int_equal(a.eos_id[0], 2);
    assert_ok(arch_merge_generation("{\"eos_token_id\": [5, 0]}", &a, &e), &e);
    assert_int_equal(a.n_eos, 2);
    assert_int_equal(a.eos_id[0], 5);
    assert_int_equal(a.eos_id[1], 0);
    assert_ok(arch_merge_generation("{\"eos_token_id\": 3}", &a, &e), &e);
    assert_int_equal(a.n_eos, 1);
    assert_int_equal(a.eos_id[0], 3);
    before = a;
    assert_int_equal(arch_merge_generation("{\"eos_token_id\": 99999}", &a, &e), STATUS_FORMAT);
    assert_non_null(strstr(e.msg, "generation_config.json"));
    assert_int_equal(arch_merge_generation("{", &a, &e), STATUS_FORMAT);
    assert_memory_equal(&a, &before, sizeof a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama_new), cmocka_unit_test(test_llama_old),
        cmocka_unit_test(test_qwen),      cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_malformed), cmocka_unit_test(test_generation),
        cmocka_unit_test(test_mistral),   cmocka_unit_test(test_gemma2),
        cmocka_unit_test(test_gemma3),    cmocka_unit_test(test_glm4),
        cmocka_unit_test(test_ropes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
