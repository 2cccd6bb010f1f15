/* `miles session serve`: an endpoint for each conversation of an agent that records its tokens,
 * until SIGTERM or SIGINT. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "cli/cmd.h"
#include "cli/listen.h"
#include "model/wfile.h"
#include "rl/agent_opts.h"
#include "rl/promptenc.h"
#include "serve/outparse.h"
#include "serve/session_api.h"

struct session_opts {
    struct listen_opts listen;
    char *hf_checkpoint, *template_path, *upstream, *upstream_key, *name;
    json_t *kwargs;
    int version, matcher, tool_parser, reasoning_parser, family;
    int64_t max_sessions, max_tokens, max_body;
    double idle_s, request_s, drain_s;
};

#define O(f) offsetof(struct session_opts, f)
static const struct conf_opt session_table[] = {
    {"upstream", CONF_STR, NULL, NULL, "address of the engine or router: http://host:port",
     O(upstream), "engines", NULL},
    {"upstream-api-key", CONF_STR, NULL, NULL, "key that it asks for", O(upstream_key), "engines",
     NULL},
    {"request-timeout-s", CONF_FLOAT, "600", "(0,1e9]", "its answer may take so long", O(request_s),
     "engines", NULL},
    {"hf-checkpoint", CONF_STR, NULL, NULL,
     "model: a Hugging Face folder (its tokenizer files are enough) or a GGUF file",
     O(hf_checkpoint), "model", NULL},
    {"chat-template-path", CONF_STR, NULL, NULL, "template file instead of the model's",
     O(template_path), "model", NULL},
    {"apply-chat-template-kwargs", CONF_JSON, "{}", NULL, "variables for the template, as JSON",
     O(kwargs), "model", NULL},
    {"served-model-name", CONF_STR, "default", NULL, "the name that answers have", O(name), "model",
     NULL},
    {"tool-call-parser", CONF_CHOICE, NULL, OUTPARSE_TOOLS,
     "<tool_call> in answers becomes tool_calls", O(tool_parser), "model", NULL},
    {"reasoning-parser", CONF_CHOICE, NULL, OUTPARSE_REASONING,
     "<think> in answers becomes reasoning_content", O(reasoning_parser), "model", NULL},
    {"tito-model", CONF_CHOICE, "default", AGENT_OPTS_FAMILIES,
     "family of the model: qwen3 and qwennext are both parsers", O(family), "model", NULL},
    {"use-session-server", CONF_MODE, "v1", "v1|v2",
     "v1: one line of turns, the last of which may be taken back; v2: branches", O(version),
     "sessions", NULL},
    {"session-message-matcher", CONF_CHOICE, "strict", SESSION_MATCHERS,
     "how messages that are sent again are compared", O(matcher), "sessions", NULL},
    {"max-seq-len", CONF_INT, "1048576", "[1,1073741824]", "tokens of a conversation",
     O(max_tokens), "sessions", NULL},
    {"max-sessions", CONF_INT, "4096", "[1,1000000]", "sessions at once; more are answered 503",
     O(max_sessions), "sessions", NULL},
    {"session-idle-s", CONF_FLOAT, "3600", "(0,1e9]",
     "a session that nobody used for so long is forgotten", O(idle_s), "sessions", NULL},
    {"max-body-mb", CONF_INT, "16", "[1,4096]", "largest request", O(max_body), "network", NULL},
    {"drain-s", CONF_FLOAT, "5", "[0,1e9]", "after SIGTERM, running requests may take so long",
     O(drain_s), "network", NULL},
    {0}};

static int session_check(const struct session_opts *o, struct err *e)
{
    if (!o->hf_checkpoint || !o->upstream) {
        return ERR(e, STATUS_INPUT, "--%s is needed", o->upstream ? "hf-checkpoint" : "upstream");
    }
    return STATUS_OK;
}

static int session_run(const struct session_opts *o, const struct promptenc *enc,
                       const struct agent_opts_family *family, const sigset_t *signals,
                       struct err *e)
{
    struct session_api_opts so = {.env = {.tok = enc->tok,
                                          .chat = enc->chat,
                                          .tooled = enc->tooled,
                                          .special = enc->special,
                                          .kwargs = o->kwargs,
                                          .match = (enum session_match)o->matcher,
                                          .tree = o->version == 1,
                                          .max_tokens = (int)o->max_tokens},
                                  .upstream = o->upstream,
                                  .upstream_key = o->upstream_key,
                                  .model = o->name,
                                  .max_sessions = (int)o->max_sessions,
                                  .idle_s = o->idle_s,
                                  .request_s = o->request_s,
                                  .tool_parser = o->tool_parser >= 0 || family->tools,
                                  .reasoning_parser =
                                      o->reasoning_parser >= 0 || family->reasoning};
    struct session_api *a = NULL;
    int rc;

    listen_fill(&o->listen, &so.http);
    so.http.max_body = (size_t)o->max_body << 20;
    rc = session_api_start(&so, &a, e);
    if (rc != STATUS_OK) {
        return rc;
    }
    printf("ready url=%s://%s:%d upstream=%s\n", listen_scheme(&o->listen), o->listen.host,
           session_api_port(a), o->upstream);
    fflush(stdout);
    log_info(SERVE, "signal %d: finishing what runs", listen_wait(signals));
    if (session_api_drain(a, o->drain_s) != STATUS_OK) {
        log_warn(SERVE, "requests were cut after %g seconds", o->drain_s);
    }
    session_api_stop(a);
    return STATUS_OK;
}

static int session_serve(int argc, char **argv)
{
    struct session_opts o;
    struct conf *c = conf_new();
    struct wfile *file = NULL;
    struct promptenc enc = {0};
    struct agent_opts_family family;
    sigset_t signals;
    struct err e = {0};
    int rc;

    conf_add(c, listen_table, &o.listen);
    conf_add(c, session_table, &o);
    rc = conf_parse(c, argc - 1, argv + 1, &e);
    if (rc == STATUS_END) {
        cmd_help("miles session serve --upstream URL --hf-checkpoint DIR [--flag value ...]", c);
        conf_free(c);
        return CMD_OK;
    }
    listen_prepare(&signals);
    rc = rc == STATUS_OK ? session_check(&o, &e) : rc;
    rc = rc == STATUS_OK ? agent_opts_family(o.family, &family, &e) : rc;
    rc = rc == STATUS_OK ? wfile_open_texts(o.hf_checkpoint, &file, &e) : rc;
    if (rc == STATUS_OK && !o.template_path && !wfile_chat_template(file)) {
        rc = ERR(&e, STATUS_INPUT, "%s has no chat template; give --chat-template-path",
                 o.hf_checkpoint);
    }
    rc = rc == STATUS_OK ? promptenc_open(&enc, file, o.template_path, 1, o.kwargs, &e) : rc;
    rc = rc == STATUS_OK ? agent_opts_fits(&family, enc.tok, &e) : rc;
    rc = rc == STATUS_OK ? session_run(&o, &enc, &family, &signals, &e) : rc;
    promptenc_close(&enc);
    wfile_close(file);
    conf_free(c);
    return rc == STATUS_OK ? CMD_OK : cmd_fail(rc, &e);
}

int cmd_session(int argc, char **argv)
{
    static const char usage[] =
        "usage: miles session serve --upstream URL --hf-checkpoint DIR [--flag value ...]\n\n"
        "An OpenAI-compatible endpoint for each conversation of an agent, which records the\n"
        "tokens that were sampled. `miles session serve --help` lists the flags.\n";

    if (argc >= 2 && strcmp(argv[1], "serve") == 0) {
        return session_serve(argc - 1, argv + 1);
    }
    if (argc >= 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        fputs(usage, stdout);
        return CMD_OK;
    }
    fputs(usage, stderr);
    return CMD_USAGE;
}
