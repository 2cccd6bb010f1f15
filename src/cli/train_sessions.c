/* Owns the session server that a training run starts for its agents: in the run's own process, so
 * that it ends with the run, in front of the run's engines. */
#include <stdio.h>

#include "base/log.h"
#include "base/status.h"
#include "cli/train_int.h"
#include "num/device.h"
#include "serve/session_api.h"

/* 1: what the engines sample has the trainer's own log-probs (contract C2). */
static int sessions_exact(const struct train *t)
{
    return t->place.backend == PLACE_MILES && (t->dev->caps & DEVICE_ROW_EXACT) != 0;
}

static int sessions_wanted(const struct train_opts *o)
{
    return o->use_session_server >= 0 || o->custom_agent_function_path ||
           o->generate_execute_tool_function_path;
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
        .tool_parser = o->generate_tool_call_parser >= 0,
        .exact = sessions_exact(t)};
    int rc;

    if (!sessions_wanted(o)) {
        return STATUS_OK;
    }
    if (!t->enc.chat) {
        return ERR(e, STATUS_INPUT,
                   "sessions need the model's chat template: give --apply-chat-template");
    }
    if (o->max_seq_len != CONF_UNSET && o->max_seq_len < s.env.max_tokens) {
        s.env.max_tokens = (int)o->max_seq_len;
    }
    rc = session_api_start(&s, &t->sessions, e);
    if (rc == STATUS_OK) {
        json_object_set_new(args, "session_server_ip", json_string(o->session_server_ip));
        json_object_set_new(args, "session_server_port",
                            json_integer(session_api_port(t->sessions)));
        log_info(TRAIN, "sessions of agents at http://%s:%d", o->session_server_ip,
                 session_api_port(t->sessions));
    }
    return rc;
}
