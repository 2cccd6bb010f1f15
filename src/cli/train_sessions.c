/* Owns the session server that a training run starts for its agents: in the run's own process, so
 * that it ends with the run, in front of the run's engines. */
#include <stdio.h>

#include "base/log.h"
#include "base/status.h"
#include "cli/train_int.h"
#include "num/device.h"
#include "rl/agent_opts.h"
#include "serve/outparse.h"
#include "serve/session_api.h"

/* 1: what the engines sample has the trainer's own log-probs (contract C2). */
static int sessions_exact(const struct train *t)
{
    return t->place.backend == PLACE_MILES && (t->dev->caps & DEVICE_ROW_EXACT) != 0;
}

/* SGLang's flags for its own parsers hold for sessions, which read answers before agents do. */
static const struct {
    const char *flag, *names;
} sessions_parsers[] = {{"--sglang-tool-call-parser", OUTPARSE_TOOLS},
                        {"--sglang-reasoning-parser", OUTPARSE_REASONING}};

int train_check_sessions(const struct train *t, struct err *e)
{
    for (int i = 0; i < 2 && agent_opts_sessions(&t->o); i++) {
        const char *value = place_sglang_flag(&t->place, sessions_parsers[i].flag);
        if (value && !outparse_named(sessions_parsers[i].names, value)) {
            return ERR(e, STATUS_UNSUPPORTED,
                       "%s %.100s: sessions take answers apart as %s do: leave the flag out, and "
                       "have the agent read the text of answers",
                       sessions_parsers[i].flag, value, sessions_parsers[i].names);
        }
    }
    return STATUS_OK;
}

/* What is taken out of answers for agents. */
static int sessions_parse(const struct train *t, struct session_api_opts *s, struct err *e)
{
    struct agent_opts_family f;
    int rc = agent_opts_family(t->o.tito_model, &f, e);

    rc = rc == STATUS_OK ? agent_opts_fits(&f, t->enc.tok, e) : rc;
    if (rc == STATUS_OK) {
        s->tool_parser = f.tools || t->o.generate_tool_call_parser >= 0 ||
                         place_sglang_flag(&t->place, sessions_parsers[0].flag);
        s->reasoning_parser = f.reasoning || place_sglang_flag(&t->place, sessions_parsers[1].flag);
    }
    return rc;
}

int train_open_sessions(struct train *t, const char *url, json_t *args, struct err *e)
{
    const struct train_opts *o = &t->o;
    struct session_api_opts s = {
        .http = {.host = o->session_server_ip,
                 .port = o->session_server_port.n ? (int)o->session_server_port.v[0] : 0},
        .env = {.tok = t->enc.tok,
                .chat = t->enc.chat,
                .tooled = t->enc.tooled,
                .special = t->enc.special,
                .kwargs = t->enc.kwargs,
                .match = (enum session_match)o->session_message_matcher,
                .tree = o->use_session_server == 1,
                .max_tokens = t->engine.max_context > 0 ? t->engine.max_context : t->positions,
                .max_response = (int)o->rollout_max_response_len},
        .upstream = url,
        .model = o->hf_checkpoint,
        .request_s = o->hook_timeout,
        .exact = sessions_exact(t)};
    int rc;

    if (!agent_opts_sessions(o)) {
        return STATUS_OK;
    }
    if (!t->enc.chat) {
        return ERR(e, STATUS_INPUT,
                   "sessions need the model's chat template: give --apply-chat-template");
    }
    if (o->max_seq_len != CONF_UNSET && o->max_seq_len < s.env.max_tokens) {
        s.env.max_tokens = (int)o->max_seq_len;
    }
    rc = sessions_parse(t, &s, e);
    rc = rc == STATUS_OK ? session_api_start(&s, &t->sessions, e) : rc;
    if (rc == STATUS_OK) {
        json_object_set_new(args, "session_server_ip", json_string(o->session_server_ip));
        json_object_set_new(args, "session_server_port",
                            json_integer(session_api_port(t->sessions)));
        log_info(TRAIN, "sessions of agents at http://%s:%d", o->session_server_ip,
                 session_api_port(t->sessions));
    }
    return rc;
}
