/* Owns what agents and sessions cannot be joined with, and what Miles' names for them stand for:
 * the functions of its generate hub, which are built in, and the families of --tito-model. */
#include "rl/agent_opts.h"

#include <string.h>

#include "base/mem.h"
#include "base/plugin.h"
#include "base/status.h"
#include "rl/train_opts.h"
#include "text/tokenizer.h"

/* The flag that says what a sample's conversation is held by; NULL: there is none. */
static const char *agent_flag(const struct train_opts *o)
{
    return o->custom_agent_function_path            ? "--custom-agent-function-path"
           : o->generate_execute_tool_function_path ? "--generate-execute-tool-function-path"
                                                    : NULL;
}

int agent_opts_sessions(const struct train_opts *o)
{
    return o->use_session_server >= 0 || agent_flag(o);
}

/* Miles' scripts name the function that runs an agent, or the loop of tools, too. */
static int take_hub_name(struct train_opts *o, struct err *e)
{
    const char *path = o->custom_generate_function_path, *name = "", *given, *flag;
    struct plugin_ref r;

    if (path &&
        plugin_resolve(plugin_hook("custom-generate-function-path"), path, &r, NULL) == STATUS_OK) {
        name = r.kind == PLUGIN_BUILTIN ? r.builtin : "";
        plugin_ref_fini(&r);
    }
    if (strcmp(name, "agent") == 0) {
        given = o->custom_agent_function_path;
        flag = "--custom-agent-function-path";
    } else if (strcmp(name, "tools") == 0) {
        given = o->generate_execute_tool_function_path;
        flag = "--generate-execute-tool-function-path";
    } else {
        return STATUS_OK;
    }
    if (!given) {
        return ERR(e, STATUS_INPUT, "--custom-generate-function-path %.200s needs %s", path, flag);
    }
    mem_free(o->custom_generate_function_path);
    o->custom_generate_function_path = NULL;
    return STATUS_OK;
}

static int check_tito(const struct train_opts *o, struct err *e)
{
    struct agent_opts_family f;

    if (o->tito_model && !agent_opts_sessions(o)) {
        return ERR(e, STATUS_INPUT, "--tito-model needs --use-session-server");
    }
    if (o->tito_model && o->chat_template_path) {
        return ERR(e, STATUS_INPUT, "--tito-model and --chat-template-path exclude each other");
    }
    return agent_opts_family(o->tito_model, &f, e);
}

int agent_opts_check(struct train_opts *o, struct err *e)
{
    const char *tools = o->generate_execute_tool_function_path, *agent = agent_flag(o), *other;
    int branches = o->use_session_server == 1;
    int rc = take_hub_name(o, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    other = agent && o->custom_generate_function_path ? "--custom-generate-function-path"
            : o->custom_agent_function_path && tools  ? "--generate-execute-tool-function-path"
            : agent && o->partial_rollout             ? "--partial-rollout"
                                                      : NULL;
    if (other) {
        return ERR(e, STATUS_INPUT, "%s and %s exclude each other", agent, other);
    }
    other = !branches                           ? NULL
            : o->group_rm                       ? "--group-rm"
            : o->partial_rollout                ? "--partial-rollout"
            : o->recompute_logprobs_via_prefill ? "--recompute-logprobs-via-prefill"
            : o->fully_async                    ? "--fully-async"
                                                : NULL;
    if (other) {
        return ERR(e, STATUS_INPUT, "--use-session-server v2 and %s exclude each other", other);
    }
    if (!tools != !o->generate_tool_specs_path) {
        return ERR(e, STATUS_INPUT,
                   "--generate-execute-tool-function-path and "
                   "--generate-tool-specs-path need each other");
    }
    if (agent) {
        o->apply_chat_template = 1; /* they speak in messages */
    }
    return check_tito(o, e);
}

/* ---- families ---- */

int agent_opts_family(int index, struct agent_opts_family *out, struct err *e)
{
    static const struct {
        const char *name;
        struct agent_opts_family f;
    } here[] = {{"default", {NULL, 0, 0}},
                {"qwen3", {"<|im_end|>", 1, 1}},
                {"qwennext", {"<|im_end|>", 1, 1}}};
    const char *name = AGENT_OPTS_FAMILIES;
    size_t len;

    for (; index > 0; index--) {
        name = strchr(name, '|') + 1;
    }
    len = strcspn(name, "|");
    for (size_t i = 0; i < sizeof here / sizeof *here; i++) {
        if (strlen(here[i].name) == len && memcmp(here[i].name, name, len) == 0) {
            *out = here[i].f;
            return STATUS_OK;
        }
    }
    return ERR(e, STATUS_UNSUPPORTED,
               "--tito-model %.*s: the reasoning and tool calls of this family are not taken apart "
               "here: give --tito-model default, which finds what stands between turns in the chat "
               "template, and have the agent read them in the text of answers",
               (int)len, name);
}

int agent_opts_fits(const struct agent_opts_family *f, const struct tokenizer *tok, struct err *e)
{
    if (f->end && tokenizer_id(tok, f->end) < 0) {
        return ERR(e, STATUS_INPUT,
                   "--tito-model: the model's tokenizer has no %s, which turns of this family end "
                   "with: name the model's family, or default",
                   f->end);
    }
    return STATUS_OK;
}
