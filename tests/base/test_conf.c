/* Options from every source: values, precedence, messages, dumps. */
#include "support.h"

#include <math.h>
#include <unistd.h>

#include "base/conf.h"
#include "base/mem.h"
#include "base/status.h"

struct opts {
    int64_t batch, top_k, steps, sglang_port;
    double lr, high;
    char *save, *key, *tmpl, *config;
    int colocate, norm, offload, kind, nokind, mode;
    struct conf_strs stop, pass;
    struct conf_ints ids;
    json_t *kwargs;
};
#define O(f) offsetof(struct opts, f)
static const struct conf_opt table[] = {
    {"rollout-batch-size", CONF_INT, "8", "[1,1024]", "prompts per step", O(batch), "data", NULL},
    {"rollout-top-k", CONF_INT, "-1", "[-1,inf)", "top-k", O(top_k), "rollout", NULL},
    {"num-steps", CONF_INT, NULL, NULL, "steps", O(steps), "data", NULL},
    {"lr", CONF_FLOAT, "1e-6", "(0,1]", "learning rate", O(lr), "optimizer", NULL},
    {"eps-clip-high", CONF_FLOAT, NULL, "[0,inf)", "upper clip", O(high), "algorithm", NULL},
    {"save", CONF_STR, NULL, NULL, "folder", O(save), "checkpoint", NULL},
    {"input-key", CONF_STR, "input", NULL, "column", O(key), "data", NULL},
    {"save-hf", CONF_PATH, NULL, NULL, "export", O(tmpl), "checkpoint", NULL},
    {"colocate", CONF_SWITCH, NULL, NULL, "share", O(colocate), "placement", NULL},
    {"disable-rewards-normalization", CONF_OFF, NULL, NULL, "raw", O(norm), "algorithm",
     "rewards_normalization"},
    {"offload-train", CONF_BOOL, NULL, NULL, "offload", O(offload), "placement", NULL},
    {"kl-loss-type", CONF_CHOICE, "k1", "k1|k2|k3|low_var_kl", "kl", O(kind), "algorithm", NULL},
    {"wandb-mode", CONF_CHOICE, NULL, "on|off", "x", O(nokind), "algorithm", NULL},
    {"use-server", CONF_MODE, NULL, "v1|v2", "server", O(mode), "algorithm", NULL},
    {"rollout-stop", CONF_STRS, NULL, NULL, "stops", O(stop), "rollout", NULL},
    {"rollout-stop-token-ids", CONF_INTS, NULL, "[0,inf)", "ids", O(ids), "rollout", NULL},
    {"apply-chat-template-kwargs", CONF_JSON, "{}", NULL, "kwargs", O(kwargs), "data", NULL},
    {"custom-config-path", CONF_STR, NULL, NULL, "file", O(config), "misc", NULL},
    {"sglang-port", CONF_INT, NULL, NULL, "ours", O(sglang_port), "misc", NULL},
    {"sglang-*", CONF_PASS, NULL, NULL, "for others", O(pass), "misc", "sglang_pass"},
    {0}};
static const struct conf_known known[] = {
    {"use-wandb", CONF_SWITCH, NULL, CONF_LATER, "it is planned", NULL},
    {"actor-num-nodes", CONF_INT, "1", CONF_LATER, NULL, NULL},
    {"train-backend", CONF_CHOICE, "megatron", CONF_LATER, NULL, NULL},
    {"offload-rollout", CONF_BOOL, NULL, CONF_LATER, NULL, NULL},
    {"ft-components", CONF_STRS, "rollout", CONF_LATER, NULL, NULL},
    {"router-*", CONF_STR, NULL, CONF_LATER, NULL, NULL},
    {"sglang-config", CONF_STR, NULL, CONF_LATER, NULL, NULL},
    {"fp16", CONF_BOOL, "false", CONF_NEVER, "weights are bf16", NULL},
    {"optimizer", CONF_STR, "adam", CONF_NEVER, "there is one", NULL},
    {"tp", CONF_INT, "1", CONF_NOTED, "one rank", "[1,64]"},
    {"qkv-format", CONF_CHOICE, "thd", CONF_NOTED, "packed", "thd|bshd"},
    {"offload", CONF_SWITCH, NULL, CONF_NOTED, "one copy", NULL},
    {"fsdp-cpu-offload", CONF_BOOL, "false", CONF_NOTED, "one copy", NULL},
    {"levels", CONF_STRS, "a b", CONF_NOTED, "none", NULL},
    {"moe-*", CONF_STRS, NULL, CONF_NOTED, "dense", NULL},
    {0}};

static struct opts o;
static struct conf *c;
static struct err e;

/* Parses a blank-separated command line. */
static int parse(const char *line)
{
    char **argv;
    int argc = support_words(line, &argv);
    conf_free(c);
    memset(&o, 0x5a, sizeof o); /* nothing may depend on what was there */
    memset(&e, 0, sizeof e);
    c = conf_new();
    conf_add(c, table, &o);
    conf_add_known(c, known);
    return conf_parse(c, argc, argv, &e);
}

#define assert_refused(line, text)                                                                 \
    do {                                                                                           \
        int rc_ = parse(line);                                                                     \
        if (rc_ >= 0 || !strstr(e.msg, text)) {                                                    \
            fail_msg("%s: status %d, message \"%s\" lacks \"%s\"", line, rc_, e.msg, text);        \
        }                                                                                          \
    } while (0)

static void defaults(void **state)
{
    (void)state;
    assert_ok(parse(""), &e);
    assert_int_equal(o.batch, 8);
    assert_int_equal(o.top_k, -1);
    assert_true(o.steps == CONF_UNSET);
    assert_true(o.lr == 1e-6);
    assert_true(isnan(o.high));
    assert_null(o.save);
    assert_string_equal(o.key, "input");
    assert_int_equal(o.colocate, 0);
    assert_int_equal(o.norm, 1);
    assert_int_equal(o.offload, -1);
    assert_int_equal(o.kind, 0);
    assert_int_equal(o.nokind, -1);
    assert_int_equal(o.stop.n, 0);
    assert_true(json_is_object(o.kwargs));
    assert_false(conf_is_set(c, "lr"));
}

static void flags(void **state)
{
    (void)state;
    assert_ok(parse("--rollout-batch-size 32 --lr=3e-5 --save a/b --colocate --rollout-stop x y z "
                    "--disable-rewards-normalization --rollout-top-k -1 --no-offload-train "
                    "--kl-loss-type low_var_kl --rollout-stop-token-ids 1 2 "
                    "--save-hf out/{rollout_id} --apply-chat-template-kwargs {\"a\":1}"),
              &e);
    assert_int_equal(o.batch, 32);
    assert_true(o.lr == 3e-5);
    assert_string_equal(o.save, "a/b");
    assert_int_equal(o.colocate, 1);
    assert_int_equal(o.norm, 0);
    assert_int_equal(o.offload, 0);
    assert_int_equal(o.kind, 3);
    assert_int_equal(o.stop.n, 3);
    assert_string_equal(o.stop.v[2], "z");
    assert_int_equal(o.ids.n, 2);
    assert_int_equal(o.ids.v[1], 2);
    assert_int_equal(json_integer_value(json_object_get(o.kwargs, "a")), 1);
    assert_int_equal(conf_source(c, "lr"), CONF_FROM_FLAG);
    assert_int_equal(conf_source(c, "input-key"), CONF_FROM_DEFAULT);
}

/* A choice whose flag may stand alone. */
static void modes(void **state)
{
    json_t *d;

    (void)state;
    assert_ok(parse(""), &e);
    assert_int_equal(o.mode, -1);
    assert_ok(parse("--use-server --colocate"), &e);
    assert_int_equal(o.mode, 0);
    assert_int_equal(conf_source(c, "use-server"), CONF_FROM_FLAG);
    assert_ok(parse("--colocate --use-server"), &e);
    assert_int_equal(o.mode, 0);
    assert_ok(parse("--use-server v2"), &e);
    assert_int_equal(o.mode, 1);
    d = conf_dump_json(c);
    assert_string_equal(json_string_value(json_object_get(d, "use_server")), "v2");
    json_decref(d);
    assert_ok(parse("--use-server v2 --use-server"), &e);
    assert_int_equal(o.mode, 0);
    assert_refused("--use-server v3", "is none of v1|v2");
    assert_refused("--kl-loss-type --colocate", "needs a value");
}

static void last_wins(void **state)
{
    (void)state;
    assert_ok(parse("--lr 0.1 --rollout-stop a b --lr 0.2 --rollout-stop c --save x --save y"), &e);
    assert_true(o.lr == 0.2);
    assert_int_equal(o.stop.n, 1);
    assert_string_equal(o.stop.v[0], "c");
    assert_string_equal(o.save, "y");
}

static void refusals(void **state)
{
    (void)state;
    assert_refused("--rollout-bach-size 3", "nearest known one is --rollout-batch-size");
    assert_refused("--rollout_batch_size 3", "nearest known one is --rollout-batch-size");
    assert_refused("--use-wand", "--use-wandb");
    assert_refused("--rollout-batch-size", "--rollout-batch-size needs a value");
    assert_refused("--rollout-batch-size --lr 1", "--rollout-batch-size needs a value");
    assert_refused("--rollout-batch-size 3x", "\"3x\" is not a whole number");
    assert_refused("--rollout-batch-size 3.0", "not a whole number");
    assert_refused("--rollout-batch-size=", "not a whole number");
    assert_refused("--rollout-batch-size 99999999999999999999", "not a whole number");
    assert_refused("--rollout-batch-size 0", "--rollout-batch-size: 0 is outside [1,1024]");
    assert_refused("--rollout-batch-size 1025", "outside [1,1024]");
    assert_refused("--lr 0", "--lr: 0 is outside (0,1]");
    assert_refused("--lr nan", "not a finite number");
    assert_refused("--lr inf", "not a finite number");
    assert_refused("--lr 0x1p-3", "not a finite number");
    assert_refused("--lr 1e999", "not a finite number");
    assert_refused("--lr 1e-5-", "not a finite number");
    assert_refused("--kl-loss-type k4", "\"k4\" is none of k1|k2|k3|low_var_kl");
    assert_refused("--kl-loss-type k", "is none of");
    assert_refused("--colocate=1", "takes no value");
    assert_refused("--rollout-stop-token-ids 1 x", "\"x\" is not a whole number");
    assert_refused("--save-hf a/{step}", "{rollout_id}");
    assert_refused("--apply-chat-template-kwargs {a", "not JSON");
    assert_refused("--colocate stray", "\"stray\" stands where no argument belongs");
    assert_refused("-x", "unknown option -x");
    assert_refused("--custom-config-path /nonexistent/x.yaml", "--custom-config-path");
    assert_int_equal(parse("--lr 1 --help"), STATUS_END);
}

static void known_flags(void **state)
{
    (void)state;
    assert_refused("--use-wandb", "--use-wandb is known, not supported yet");
    assert_refused("--actor-num-nodes 2", "--actor-num-nodes is known, not supported yet");
    assert_refused("--train-backend fsdp", "only its default, megatron, is");
    assert_refused("--router-policy x", "--router-policy is known");
    assert_refused("--offload-rollout", "known");
    assert_refused("--no-offload-rollout", "known");
    assert_refused("--ft-components rollout train", "known");
    assert_int_equal(parse("--use-wandb"), STATUS_UNSUPPORTED);
    assert_ok(parse("--actor-num-nodes 1 --train-backend megatron --ft-components rollout --lr 1"),
              &e);
    assert_true(o.lr == 1);
}

static void environment(void **state)
{
    (void)state;
    setenv("MILES_ROLLOUT_BATCH_SIZE", "16", 1);
    setenv("MILES_COLOCATE", "true", 1);
    setenv("MILES_ROLLOUT_STOP", "a  b", 1);
    setenv("MILES_REWARDS_NORMALIZATION", "0", 1);
    setenv("MILES_LR", "", 1); /* empty is unset */
    assert_ok(parse("--rollout-batch-size 64"), &e);
    assert_int_equal(o.batch, 64);
    assert_ok(parse(""), &e);
    assert_int_equal(o.batch, 16);
    assert_int_equal(o.colocate, 1);
    assert_int_equal(o.norm, 0);
    assert_int_equal(o.stop.n, 2);
    assert_string_equal(o.stop.v[1], "b");
    assert_int_equal(conf_source(c, "rollout-batch-size"), CONF_FROM_ENV);
    assert_int_equal(conf_source(c, "lr"), CONF_FROM_DEFAULT);
    unsetenv("MILES_REWARDS_NORMALIZATION");
    setenv("MILES_DISABLE_REWARDS_NORMALIZATION", "false", 1);
    assert_ok(parse(""), &e);
    assert_int_equal(o.norm, 1);
    setenv("MILES_ROLLOUT_BATCH_SIZE", "many", 1);
    assert_refused("", "MILES_ROLLOUT_BATCH_SIZE: \"many\" is not a whole number");
    unsetenv("MILES_ROLLOUT_BATCH_SIZE");
    setenv("MILES_USE_WANDB", "1", 1);
    assert_refused("", "MILES_USE_WANDB is known, not supported yet");
    setenv("MILES_USE_WANDB", "0", 1);
    assert_ok(parse(""), &e);
    unsetenv("MILES_USE_WANDB");
    unsetenv("MILES_COLOCATE");
    unsetenv("MILES_ROLLOUT_STOP");
    unsetenv("MILES_DISABLE_REWARDS_NORMALIZATION");
    unsetenv("MILES_LR");
}

static char file_path[] = "/tmp/test_conf_XXXXXX";

static int parse_with_file(const char *text, const char *flags)
{
    char line[512];
    FILE *f = fopen(file_path, "w");
    fputs(text, f);
    fclose(f);
    snprintf(line, sizeof line, "%s --custom-config-path %s", flags, file_path);
    return parse(line);
}

#define assert_file_refused(text, part)                                                            \
    do {                                                                                           \
        int rc_ = parse_with_file(text, "");                                                       \
        if (rc_ >= 0 || !strstr(e.msg, part)) {                                                    \
            fail_msg("%s: status %d, message \"%s\" lacks \"%s\"", text, rc_, e.msg, part);        \
        }                                                                                          \
    } while (0)

static void yaml_file(void **state)
{
    (void)state;
    assert_ok(parse_with_file("---\n"
                              "# a comment\n"
                              "rollout_batch_size: 24   # trailing\n"
                              "lr: 1.0e-5\n"
                              "save: 'it''s # no comment'\r\n"
                              "input-key: \"a\\\"b\"\n"
                              "colocate: yes\n"
                              "rewards_normalization: false\n"
                              "rollout_stop:\n"
                              "  - one\n"
                              "  - \"two three\"\n"
                              "rollout_stop_token_ids: [1, 2,3]\n"
                              "apply_chat_template_kwargs: {\"x\": [1]}\n"
                              "eps_clip_high: null\n"
                              "kl_loss_type: k3\n"
                              "actor_num_nodes: 1\n"
                              "use_wandb: false\n",
                              "--rollout-batch-size 3 --eps-clip-high 0.3"),
              &e);
    assert_int_equal(o.batch, 24); /* the file is merged over the flags, as in Miles */
    assert_int_equal(conf_source(c, "rollout-batch-size"), CONF_FROM_FILE);
    assert_true(o.lr == 1e-5);
    assert_string_equal(o.save, "it's # no comment");
    assert_string_equal(o.key, "a\"b");
    assert_int_equal(o.colocate, 1);
    assert_int_equal(o.norm, 0);
    assert_int_equal(o.stop.n, 2);
    assert_string_equal(o.stop.v[1], "two three");
    assert_int_equal(o.ids.n, 3);
    assert_int_equal(o.ids.v[2], 3);
    assert_int_equal(json_array_size(json_object_get(o.kwargs, "x")), 1);
    assert_true(isnan(o.high));
    assert_int_equal(o.kind, 2);
}

/* Nested mappings are values with types of their own; blocks, folds and lists as YAML has them. */
static void nested_yaml(void **state)
{
    (void)state;
    assert_ok(parse_with_file("apply_chat_template_kwargs:\n"
                              "  enable_thinking: false   # a comment\n"
                              "  depth: 3\n"
                              "  share: 2.5e-1\n"
                              "  quoted: \"3\"\n"
                              "  on: yes\n"
                              "  none: ~\n"
                              "  list:\n"
                              "    - a\n"
                              "    - {b: [1, 'x']}\n"
                              "  text: |\n"
                              "    two\n"
                              "    lines\n"
                              "rollout_stop:\n"
                              "- \"\\n\"\n"
                              "- 7\n"
                              "lr: 1e-3\n",
                              ""),
              &e);
    char *text = json_dumps(o.kwargs, JSON_SORT_KEYS | JSON_COMPACT);
    assert_string_equal(text,
                        "{\"depth\":3,\"enable_thinking\":false,\"list\":[\"a\",{\"b\":[1,\"x\"]}],"
                        "\"none\":null,\"on\":true,\"quoted\":\"3\",\"share\":0.25,"
                        "\"text\":\"two\\nlines\\n\"}");
    free(text);
    assert_int_equal(o.stop.n, 2);
    assert_string_equal(o.stop.v[0], "\n");
    assert_string_equal(o.stop.v[1], "7");
    assert_true(o.lr == 1e-3);
    assert_ok(parse_with_file("", "--lr 1"), &e);
    assert_ok(parse_with_file("# nothing\n---\n", "--lr 1"), &e);
    char deep[512] = "apply_chat_template_kwargs: ";
    for (int i = 0; i < 100; i++) {
        strcat(deep, "[");
    }
    assert_file_refused(deep, "nested too deeply");
}

static void assert_passed(const char *want)
{
    char text[512] = "";
    for (int64_t i = 0; i < o.pass.n; i++) {
        size_t n = strlen(text);
        snprintf(text + n, sizeof text - n, "%s%s", i ? " " : "", o.pass.v[i]);
    }
    assert_string_equal(text, want);
}

static void passed_on(void **state)
{
    json_t *d;
    (void)state;
    assert_ok(parse(""), &e);
    assert_int_equal(o.pass.n, 0);
    assert_ok(parse("--sglang-a --lr 0.5 --sglang-b-c 1 -2 --sglang-port 3 --sglang-d=x=y "
                    "--sglang-a z"),
              &e);
    assert_true(o.lr == 0.5);
    assert_int_equal(o.sglang_port, 3);
    assert_passed("--sglang-a --sglang-b-c 1 -2 --sglang-d x=y --sglang-a z");
    d = conf_dump_json(c);
    assert_int_equal(json_array_size(json_object_get(d, "sglang_pass")), 8);
    json_decref(d);
    assert_refused("--sglang-config x", "--sglang-config is known, not supported yet");
    assert_refused("--sglan-a", "unknown option --sglan-a");
    assert_refused("--sglang_a", "unknown option");
    assert_ok(parse("--sglang-* x"), &e);
    assert_passed("--sglang-* x");
    assert_ok(parse_with_file("sglang_a_b: 3\nsglang_c: true\nsglang_d: false\nsglang_e: null\n"
                              "sglang_f: [1, two]\nsglang_port: 9\n",
                              "--sglang-z"),
              &e);
    assert_passed("--sglang-z --sglang-a-b 3 --sglang-c --sglang-f 1 two");
    assert_int_equal(o.sglang_port, 9);
    assert_int_equal(parse_with_file("{\"sglang_a\": {\"x\": 1}}", ""), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "does not fit a flag"));
}

/* Accepted flags go nowhere, but must be well formed, and are told. */
static void noted_flags(void **state)
{
    json_t *d;
    (void)state;
    assert_refused("--use-wandb", "not supported yet: it is planned");
    assert_refused("--fp16", "--fp16 does not apply here: weights are bf16");
    assert_ok(parse("--no-fp16 --optimizer adam"), &e);
    assert_refused("--optimizer sgd", "--optimizer does not apply here: there is one");
    assert_ok(parse("--tp 4 --qkv-format bshd --offload --fsdp-cpu-offload --levels x y "
                    "--moe-permute-fusion --moe-router-topk 8 --lr 1"),
              &e);
    assert_true(o.lr == 1);
    assert_string_equal(conf_noted(c, "tp"), "4");
    assert_string_equal(conf_noted(c, "offload"), "true");
    assert_string_equal(conf_noted(c, "levels"), "x y");
    assert_string_equal(conf_noted(c, "moe-permute-fusion"), "");
    assert_string_equal(conf_noted(c, "moe-router-topk"), "8");
    assert_null(conf_noted(c, "use-wandb"));
    d = conf_dump_noted(c);
    assert_int_equal(json_object_size(d), 7);
    json_decref(d);
    assert_ok(parse("--tp 4 --tp 2 --levels a b --no-fsdp-cpu-offload"), &e);
    assert_string_equal(conf_noted(c, "tp"), "2"); /* the last wins */
    assert_null(conf_noted(c, "levels"));          /* at its default */
    assert_null(conf_noted(c, "fsdp-cpu-offload"));
    assert_refused("--tp 0", "--tp: 0 is outside [1,64]");
    assert_refused("--tp two", "is not a whole number");
    assert_refused("--tp --lr 1", "--tp needs a value");
    assert_refused("--qkv-format sbhd", "is none of thd|bshd");
    assert_refused("--offload=1", "is a switch and takes no value");
    assert_ok(parse_with_file("tp: 8\noffload: true\nmoe_x: [1, 2]\n", ""), &e);
    assert_string_equal(conf_noted(c, "tp"), "8");
    assert_string_equal(conf_noted(c, "moe-x"), "1 2");
    assert_file_refused("tp: 0\n", "tp: 0 is outside");
    assert_file_refused("fp16: true\n", "does not apply here");
    setenv("MILES_TP", "16", 1);
    assert_ok(parse(""), &e);
    assert_string_equal(conf_noted(c, "tp"), "16");
    unsetenv("MILES_TP");
}

/* Beginnings of names are not completed, but named; so are the names next to a slip. */
static void nearest_names(void **state)
{
    (void)state;
    assert_refused("--rollout-stop-tok 1", "nearest known one is --rollout-stop-token-ids");
    assert_refused("--rollout-st 1", "nearest known ones are --rollout-stop, "
                                     "--rollout-stop-token-ids");
    assert_refused("--qkv-fromat x", "nearest known one is --qkv-format");
}

static void json_file(void **state)
{
    (void)state;
    assert_ok(parse_with_file("{\"rollout-batch-size\": 5, \"lr\": 0.25, \"rollout_stop\": [\"a\"],"
                              " \"disable_rewards_normalization\": true, \"offload_train\": true}",
                              ""),
              &e);
    assert_int_equal(o.batch, 5);
    assert_true(o.lr == 0.25);
    assert_int_equal(o.stop.n, 1);
    assert_int_equal(o.norm, 0);
    assert_int_equal(o.offload, 1);
    /* {"lr": 0.5} */
    assert_ok(parse("--custom-config-path base64:eyJsciI6IDAuNX0="), &e);
    assert_true(o.lr == 0.5);
}

static void file_refusals(void **state)
{
    (void)state;
    assert_file_refused("rollout_bach_size: 2\n", "nearest known one is --rollout-batch-size");
    assert_file_refused("lr: 2\n", "lr: 2 is outside (0,1]");
    assert_file_refused("{\"lr\": 2}", "lr: 2 is outside (0,1]");
    assert_file_refused("lr: 1\nlr: 1\n", ":2:1: key lr is given twice");
    assert_file_refused("lr: 1\n\nlearning: 1\n", ":3:1: learning");
    assert_file_refused("lr:\n  b: 1\n", ":1:1: lr: this kind of value does not fit");
    assert_file_refused("apply_chat_template_kwargs:\n  b: 1\n  b: 2\n", ":3:3: key b");
    assert_file_refused("- a\n", ":1:1: not `key: value`");
    assert_file_refused("just text\n", ":1:1: not `key: value`");
    assert_file_refused("save: 'open\n", ":2:1: found unexpected end of stream");
    assert_file_refused("rollout_stop: [a, b\n", ":2:1: did not find expected ',' or ']'");
    assert_file_refused("lr: 1\n---\nlr: 1\n", ":2:1: a second document");
    assert_file_refused("? [a]\n: 1\n", ":1:3: this key is not a plain name");
    assert_file_refused("<<: 1\n", "merged mappings");
    assert_file_refused("save: !!python/object x\n", ":1:7: tags are not supported");
    assert_file_refused("save: *x\n", ":1:7: anchors are not supported");
    assert_file_refused("lr: 1\n\tsave: x\n", ":2:");
    assert_file_refused("{\"lr\": }", ":1:");
    assert_file_refused("{\"lr\": 0.1, \"lr\": 0.2}", "duplicate");
    assert_file_refused("rollout_batch_size: [1, 2]\n", "takes one value, not a list");
    assert_file_refused("colocate: null\n", "null is not true or false");
    assert_file_refused("colocate: maybe\n", "is not true or false");
    assert_file_refused("use_wandb: true\n", "use_wandb is known, not supported yet");
    assert_file_refused("save: &anchor x\n", "anchors are not supported");
    assert_file_refused("custom_config_path: x\n", "cannot name another");
    assert_refused("--custom-config-path base64:ey*", "is not base64");
}

static void dumps(void **state)
{
    json_t *d, *s;
    (void)state;
    assert_ok(parse("--rollout-stop a --lr 0.5 --save x --kl-loss-type k2"), &e);
    o.steps = 7; /* derived after parsing */
    d = conf_dump_json(c);
    s = conf_dump_sources(c);
    assert_int_equal(json_object_size(d), 20);
    assert_true(json_real_value(json_object_get(d, "lr")) == 0.5);
    assert_int_equal(json_integer_value(json_object_get(d, "rollout_batch_size")), 8);
    assert_int_equal(json_integer_value(json_object_get(d, "num_steps")), 7);
    assert_true(json_is_null(json_object_get(d, "eps_clip_high")));
    assert_true(json_is_null(json_object_get(d, "offload_train")));
    assert_true(json_is_null(json_object_get(d, "rollout_stop_token_ids")));
    assert_true(json_is_true(json_object_get(d, "rewards_normalization")));
    assert_true(json_is_false(json_object_get(d, "colocate")));
    assert_string_equal(json_string_value(json_object_get(d, "kl_loss_type")), "k2");
    assert_true(json_is_null(json_object_get(d, "wandb_mode")));
    assert_int_equal(json_array_size(json_object_get(d, "rollout_stop")), 1);
    assert_string_equal(json_string_value(json_object_get(s, "lr")), "flag");
    assert_string_equal(json_string_value(json_object_get(s, "input_key")), "default");
    json_decref(d);
    json_decref(s);
}

static void help_and_reference(void **state)
{
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);
    (void)state;
    assert_ok(parse(""), &e);
    conf_help(c, f);
    fflush(f);
    assert_non_null(strstr(text, "\ndata:\n"));
    assert_non_null(strstr(text, "  --rollout-batch-size INT"));
    assert_non_null(strstr(text, "prompts per step (default 8, in [1,1024])"));
    assert_non_null(strstr(text, "{k1|k2|k3|low_var_kl}"));
    fclose(f);
    free(text);
    f = open_memstream(&text, &len);
    conf_markdown(c, f);
    fflush(f);
    assert_non_null(strstr(text, "| `--lr` | float in (0,1] | `1e-6` | learning rate |\n"));
    assert_non_null(strstr(text, "| `--kl-loss-type` | k1\\|k2\\|k3\\|low_var_kl | `k1` | kl |\n"));
    fclose(f);
    free(text);
}

static void positionals(void **state)
{
    struct conf *p = conf_new();
    struct opts q;
    char *argv[] = {"in.gguf", "--lr", "0.5", "--", "--odd"};
    (void)state;
    memset(&e, 0, sizeof e);
    conf_add(p, table, &q);
    conf_positional(p, 2, 2);
    assert_ok(conf_parse(p, 5, argv, &e), &e);
    assert_int_equal(conf_nargs(p), 2);
    assert_string_equal(conf_arg(p, 0), "in.gguf");
    assert_string_equal(conf_arg(p, 1), "--odd");
    assert_true(q.lr == 0.5);
    assert_int_equal(conf_parse(p, 1, argv, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "2 arguments are needed, 1 were given"));
    conf_free(p);
}

static void templates(void **state)
{
    char *s = conf_expand("a/{rollout_id}/{{x}}_{rollout_id}.json", "eval_12");
    (void)state;
    assert_string_equal(s, "a/eval_12/{x}_eval_12.json");
    mem_free(s);
}

static int cleanup(void **state)
{
    (void)state;
    conf_free(c);
    c = NULL;
    unlink(file_path);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),      cmocka_unit_test(flags),
        cmocka_unit_test(last_wins),     cmocka_unit_test(refusals),
        cmocka_unit_test(modes),         cmocka_unit_test(passed_on),
        cmocka_unit_test(known_flags),   cmocka_unit_test(noted_flags),
        cmocka_unit_test(nearest_names), cmocka_unit_test(environment),
        cmocka_unit_test(yaml_file),     cmocka_unit_test(nested_yaml),
        cmocka_unit_test(json_file),     cmocka_unit_test(file_refusals),
        cmocka_unit_test(dumps),         cmocka_unit_test(help_and_reference),
        cmocka_unit_test(positionals),   cmocka_unit_test(templates),
    };
    close(mkstemp(file_path));
    return cmocka_run_group_tests(tests, NULL, cleanup);
}
