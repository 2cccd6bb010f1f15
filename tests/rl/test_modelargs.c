/* The flags that repeat a model's shape, against what config.json says. */
#include "support.h"

#include "base/conf.h"
#include "base/status.h"
#include "model/arch.h"
#include "rl/modelargs.h"

static const char glm4[] =
    "{\"model_type\": \"glm4\", \"architectures\": [\"Glm4ForCausalLM\"], \"hidden_size\": 256, "
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
    "\"head_dim\": 64, \"intermediate_size\": 512, \"vocab_size\": 512, \"rms_norm_eps\": 1e-05, "
    "\"rope_theta\": 10000.0, \"partial_rotary_factor\": 0.5, \"attention_bias\": true, "
    "\"hidden_act\": \"silu\", \"max_position_embeddings\": 4096, \"tie_word_embeddings\": false}";

#define RIGHT                                                                                      \
    "--num-layers 2 --hidden-size 256 --ffn-hidden-size 512 --num-attention-heads 4 "              \
    "--group-query-attention --num-query-groups 2 --kv-channels 64 --vocab-size 512 "              \
    "--normalization RMSNorm --norm-epsilon 1e-5 --swiglu --disable-bias-linear --add-qkv-bias "   \
    "--untie-embeddings-and-output-weights --position-embedding-type rope --rotary-base 10000 "    \
    "--rotary-percent 0.5 --rotary-interleaved --use-rotary-position-embeddings "                  \
    "--post-self-attn-layernorm --post-mlp-layernorm "

static struct conf *c;
static struct modelargs m;
static struct err e;

static int run(const char *line)
{
    struct arch a;
    char **argv;
    int argc = support_words(line, &argv), rc;

    conf_free(c);
    memset(&e, 0, sizeof e);
    c = conf_new();
    conf_add(c, modelargs_table, &m);
    assert_ok(conf_parse(c, argc, argv, &e), &e);
    rc = arch_parse(glm4, &a, &e);
    assert_ok(rc, &e);
    return modelargs_check(&m, &a, &e);
}

static void refused(const char *line, const char *part)
{
    int rc = run(line);
    if (rc != STATUS_INPUT || !strstr(e.msg, part)) {
        fail_msg("%s: status %d, \"%s\" lacks \"%s\"", line, rc, e.msg, part);
    }
}

static void agrees(void **state)
{
    (void)state;
    assert_ok(run(""), &e);
    assert_ok(run(RIGHT), &e);
}

/* Every flag of the table can be wrong. */
static void differs(void **state)
{
    (void)state;
    refused(RIGHT "--num-layers 40", "--num-layers 40, but the model's config.json has 2");
    refused(RIGHT "--hidden-size 4096", "has 256");
    refused(RIGHT "--ffn-hidden-size 1", "has 512");
    refused(RIGHT "--num-attention-heads 8", "has 4");
    refused(RIGHT "--num-query-groups 8", "has 2");
    refused(RIGHT "--kv-channels 128", "has 64");
    refused(RIGHT "--vocab-size 151552", "has 512");
    refused(RIGHT "--normalization LayerNorm", "has RMSNorm");
    refused(RIGHT "--norm-epsilon 1e-6", "has 1e-05");
    refused(RIGHT "--qk-layernorm", "--qk-layernorm, but the model's config.json has it otherwise");
    refused(RIGHT "--position-embedding-type learned_absolute", "has rope");
    refused(RIGHT "--rotary-base 1000000", "has 10000");
    refused(RIGHT "--rotary-percent 1", "has 0.5");
    refused(RIGHT "--multi-latent-attention", "--multi-latent-attention");
    refused(RIGHT "--q-lora-rank 1536", "has 0");
    refused(RIGHT "--kv-lora-rank 512", "has 0");
    refused(RIGHT "--qk-head-dim 128", "has 0");
    refused(RIGHT "--v-head-dim 128", "has 0");
    refused(RIGHT "--qk-pos-emb-head-dim 64", "has 0");
    refused(RIGHT "--num-experts 128", "has 0");
    assert_ok(run(RIGHT "--num-layers 40 --num-experts 8 --model-args-mismatch note"), &e);
}

static int cleanup(void **state)
{
    (void)state;
    conf_free(c);
    c = NULL;
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(agrees), cmocka_unit_test(differs)};
    return cmocka_run_group_tests(tests, NULL, cleanup);
}
