/* Options of agents and sessions: what Miles' names for them stand for, and what is refused. */
#include "support.h"

#include "base/buf.h"
#include "base/conf.h"
#include "base/status.h"
#include "cli/known_flags.h"
#include "rl/agent_opts.h"
#include "rl/train_opts.h"
#include "serve/printable.h"
#include "text/tokenizer.h"

static struct conf *c;
static struct train_opts o;
static struct err e;

static int run(const char *more)
{
    char line[1000], **argv;
    int argc, rc;

    snprintf(line, sizeof line,
             "--hf-checkpoint m --prompt-data p --num-rollout 1 --rollout-batch-size 8 "
             "--rollout-max-response-len 64 --rm-type math %s",
             more);
    argc = support_words(line, &argv);
    conf_free(c);
    memset(&o, 0x5a, sizeof o);
    memset(&e, 0, sizeof e);
    o.train_async = 0;
    c = conf_new();
    conf_add(c, train_opts_table, &o);
    conf_add_known(c, known_flags);
    rc = conf_parse(c, argc, argv, &e);
    return rc ? rc : train_opts_validate(&o, &e);
}

static void refused(const char *line, int status, const char *part)
{
    int rc = run(line);
    if (rc != status || !strstr(e.msg, part)) {
        fail_msg("%s: status %d, \"%s\" lacks \"%s\"", line, rc, e.msg, part);
    }
}

#define AGENT "--custom-agent-function-path a.run "
#define HUB   "--custom-generate-function-path miles.rollout.generate_hub."
#define TOOLS "--generate-execute-tool-function-path a.run --generate-tool-specs-path b.specs "

/* An agent's flags as Miles' own scripts write them. */
static void scripts(void **state)
{
    (void)state;
    assert_ok(run(AGENT HUB "agentic_tool_call.generate --use-session-server --tito-model qwen3"),
              &e);
    assert_null(o.custom_generate_function_path);
    assert_int_equal(o.use_session_server, 0);
    assert_int_equal(o.apply_chat_template, 1);
    assert_ok(run(TOOLS HUB "multi_turn.generate"), &e);
    assert_null(o.custom_generate_function_path);
    refused(HUB "agentic_tool_call.generate", STATUS_INPUT, "needs --custom-agent-function-path");
    refused(AGENT HUB "multi_turn.generate", STATUS_INPUT,
            "needs --generate-execute-tool-function-path");
    refused(AGENT "--custom-generate-function-path my.generate", STATUS_INPUT,
            "exclude each other");
    assert_ok(run("--custom-generate-function-path my.generate --use-session-server"), &e);
    assert_string_equal(o.custom_generate_function_path, "my.generate");
    assert_int_equal(o.apply_chat_template, 0);
}

static void sessions(void **state)
{
    (void)state;
    assert_ok(run(""), &e);
    assert_int_equal(agent_opts_sessions(&o), 0);
    assert_ok(run(AGENT), &e);
    assert_int_equal(agent_opts_sessions(&o), 1);
    assert_ok(run(TOOLS), &e);
    assert_int_equal(agent_opts_sessions(&o), 1);
    assert_ok(run("--use-session-server v2"), &e);
    assert_int_equal(agent_opts_sessions(&o), 1);
    refused(AGENT TOOLS, STATUS_INPUT, "exclude each other");
    refused(AGENT "--partial-rollout", STATUS_INPUT, "exclude each other");
    refused(AGENT "--use-session-server v2 --group-rm", STATUS_INPUT, "exclude each other");
    refused("--generate-tool-specs-path b.specs", STATUS_INPUT, "need each other");
}

static void families(void **state)
{
    struct agent_opts_family f;
    struct tokenizer *tok;
    struct buf b;

    (void)state;
    refused("--tito-model qwen3", STATUS_INPUT, "needs --use-session-server");
    refused(AGENT "--tito-model qwen3 --chat-template-path x", STATUS_INPUT, "exclude each other");
    refused(AGENT "--tito-model glm47", STATUS_UNSUPPORTED, "--tito-model glm47: the reasoning");
    refused(AGENT "--tito-model inkling", STATUS_UNSUPPORTED, "--tito-model inkling: the");
    refused(AGENT "--tito-model gpt", STATUS_INPUT, "is none of");
    assert_ok(run(AGENT "--tito-model qwennext"), &e);
    assert_ok(agent_opts_family(o.tito_model, &f, &e), &e);
    assert_true(f.tools && f.reasoning);
    assert_string_equal(f.end, "<|im_end|>");

    buf_init(&b, 1 << 20);
    printable_tokenizer(&b);
    assert_ok(tokenizer_open(b.data, &tok, &e), &e);
    buf_fini(&b);
    assert_int_equal(agent_opts_fits(&f, tok, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "has no <|im_end|>"));
    f.end = "</s>";
    assert_ok(agent_opts_fits(&f, tok, &e), &e);
    assert_ok(agent_opts_family(0, &f, &e), &e);
    assert_true(!f.end && !f.tools && !f.reasoning);
    assert_ok(agent_opts_fits(&f, tok, &e), &e);
    tokenizer_close(tok);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(scripts), cmocka_unit_test(sessions),
                                       cmocka_unit_test(families)};
    int rc = cmocka_run_group_tests(tests, NULL, NULL);

    conf_free(c);
    return rc;
}
