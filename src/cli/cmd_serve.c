/* `miles serve`: a model behind HTTP, until SIGTERM or SIGINT. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/fsio.h"
#include "base/log.h"
#include "base/logfile.h"
#include "base/mem.h"
#include "base/status.h"
#include "cli/cmd.h"
#include "cli/genmodel.h"
#include "cli/known_sglang.h"
#include "cli/listen.h"
#include "model/weights.h"
#include "model/wfile.h"
#include "serve/api.h"
#include "serve/outparse.h"

struct serve_opts {
    struct genmodel_opts model;
    struct listen_opts listen;
    char *name, *chat_template, *weight_version;
    char *tool_parser, *reasoning_parser, *log_dir;
    int log_level;
    int64_t weights_fd, context, max_running, max_queued, chunk, seed, interval, max_body,
        kv_tokens;
    double mem_fraction, drain_s, request_s;
    int defaults; /* 0: the model's, 1: OpenAI's */
};

#define O(f)   offsetof(struct serve_opts, f)
#define TOKENS "[1,16777216]"
const struct conf_opt cmd_serve_table[] = {
    {"max-body-mb", CONF_INT, "64", "[1,4096]", "largest request in MiB", O(max_body), "network",
     NULL},
    {"request-timeout-s", CONF_FLOAT, "3600", "(0,1e9]", "a request may take so long", O(request_s),
     "network", NULL},
    {"drain-timeout-s", CONF_FLOAT, "60", "[0,1e9]",
     "after SIGTERM, running requests may take so long", O(drain_s), "network", NULL},
    {"served-model-name", CONF_STR, NULL, NULL, "name in OpenAI's API; unset: the model's path",
     O(name), "model", NULL},
    {"chat-template", CONF_STR, NULL, NULL, "template file instead of the model's",
     O(chat_template), "model", NULL},
    {"weights-fd", CONF_INT, NULL, "[0,1048576]",
     "the weights are those of the run that starts this server, which passes their shared memory "
     "as "
     "this descriptor; --hf-checkpoint gives the rest",
     O(weights_fd), "model", NULL},
    {"sglang-context-length", CONF_INT, NULL, TOKENS,
     "tokens of prompt and response; the model's when unset", O(context), "engine", NULL},
    {"sglang-max-running-requests", CONF_INT, "256", "[1,65536]", "samples decoded together",
     O(max_running), "engine", NULL},
    {"sglang-max-queued-requests", CONF_INT, "8192", "[1,1000000]",
     "samples waiting or running; more are answered with 503", O(max_queued), "engine", NULL},
    {"sglang-mem-fraction-static", CONF_FLOAT, NULL, "(0,1)",
     "share of free memory for the key-value cache", O(mem_fraction), "engine", NULL},
    {"sglang-max-total-tokens", CONF_INT, NULL, "[64,1073741824]",
     "tokens that the key-value cache has room for, instead of a share of memory", O(kv_tokens),
     "engine", NULL},
    {"sglang-chunked-prefill-size", CONF_INT, "512", "[1,1048576]",
     "prompt tokens computed in one step", O(chunk), "engine", NULL},
    {"sglang-random-seed", CONF_INT, NULL, "[0,9223372036854775807]",
     "of requests that bring none; unset: from the system", O(seed), "engine", NULL},
    {"sglang-sampling-defaults", CONF_CHOICE, "model", "model|openai",
     "where chats take temperature, top_p, ... from that do not say: generation_config.json, or "
     "OpenAI's",
     O(defaults), "engine", NULL},
    {"sglang-stream-interval", CONF_INT, "1", "[1,1048576]", "tokens between events of a stream",
     O(interval), "engine", NULL},
    {"sglang-log-dir", CONF_STR, NULL, NULL,
     "folder for a file of log lines, serve-PID.log, beside stderr", O(log_dir), "engine", NULL},
    {"sglang-log-level", CONF_CHOICE, "info", "debug|info|warn|error",
     "lines from here on; debug has one for each request", O(log_level), "engine", NULL},
    {"sglang-weight-version", CONF_STR, "default", NULL, "name of the weights", O(weight_version),
     "engine", NULL},
    {"sglang-tool-call-parser", CONF_STR, NULL, NULL,
     "hermes, qwen or qwen25: <tool_call> in chat answers becomes tool_calls", O(tool_parser),
     "engine", NULL},
    {"sglang-reasoning-parser", CONF_STR, NULL, NULL,
     "qwen3 or deepseek-r1: <think> in chat answers becomes reasoning_content", O(reasoning_parser),
     "engine", NULL},
    {0}};

static int serve_parser(const char *flag, const char *value, const char *names, struct err *e)
{
    return value && !outparse_named(names, value)
               ? ERR(e, STATUS_INPUT, "--%s: \"%.100s\" is none of %s", flag, value, names)
               : STATUS_OK;
}

static int serve_check(const struct serve_opts *o, struct err *e)
{
    int rc = STATUS_OK;

    if (!o->model.hf_checkpoint) {
        rc = ERR(e, STATUS_INPUT, "--hf-checkpoint is needed");
    }
    if (rc == STATUS_OK) {
        rc = serve_parser("sglang-tool-call-parser", o->tool_parser, OUTPARSE_TOOLS, e);
    }
    if (rc == STATUS_OK) {
        rc = serve_parser("sglang-reasoning-parser", o->reasoning_parser, OUTPARSE_REASONING, e);
    }
    return rc;
}

static void serve_fill(const struct serve_opts *o, struct api_opts *a)
{
    uint64_t seed = 0;

    if (o->seed == CONF_UNSET && getrandom(&seed, sizeof seed, 0) != sizeof seed) {
        log_warn(SERVE, "the system gave no random seed: 0 is taken");
    }
    memset(a, 0, sizeof *a);
    listen_fill(&o->listen, &a->http);
    a->http.max_body = (size_t)o->max_body << 20;
    a->http.request_s = o->request_s;
    a->service.engine.max_running = (int)o->max_running;
    a->service.engine.max_context = o->context == CONF_UNSET ? 0 : (int)o->context;
    a->service.engine.chunk = (int)o->chunk;
    a->service.engine.kv_tokens = o->kv_tokens == CONF_UNSET ? 0 : o->kv_tokens;
    a->service.engine.mem_fraction = isnan(o->mem_fraction) ? 0.0 : o->mem_fraction;
    a->service.max_queued = (int)o->max_queued;
    a->service.seed = o->seed == CONF_UNSET ? seed : (uint64_t)o->seed;
    a->service.weight_version = o->weight_version;
    a->stream_interval = (int)o->interval;
    a->tool_parser = o->tool_parser;
    a->reasoning_parser = o->reasoning_parser;
}

/* Serves until a signal says otherwise. */
static int serve_run(const struct serve_opts *o, struct genmodel *m, const json_t *args,
                     const sigset_t *signals, struct err *e)
{
    struct api_model am = {.served = {m->w, m->enc.tok},
                           .tmpl = m->enc.tmpl,
                           .bos = m->enc.bos,
                           .eos = m->enc.eos,
                           .path = o->model.hf_checkpoint,
                           .name = o->name,
                           .config_json = wfile_config_json(m->file),
                           .generation_json =
                               o->defaults == 0 ? wfile_generation_config_json(m->file) : NULL};
    struct api_opts ao;
    struct api *a = NULL;
    int rc;

    serve_fill(o, &ao);
    ao.args = args;
    rc = api_start(&am, &ao, &a, e);
    if (rc != STATUS_OK) {
        return rc;
    }
    log_info(SERVE, "%s on port %d, %d tokens of context", o->model.hf_checkpoint, api_port(a),
             service_context(a->service));
    printf("ready url=%s://%s:%d context=%d\n", listen_scheme(&o->listen), o->listen.host,
           api_port(a), service_context(a->service));
    fflush(stdout);
    log_info(SERVE, "signal %d: finishing what runs", listen_wait(signals));
    if (api_drain(a, o->drain_s) != STATUS_OK) {
        log_warn(SERVE, "requests were cut after %g seconds", o->drain_s);
    }
    api_stop(a);
    return STATUS_OK;
}

static struct conf *serve_conf(struct serve_opts *o)
{
    struct conf *c = conf_new();

    conf_add(c, genmodel_table, &o->model);
    conf_add(c, listen_table, &o->listen);
    conf_add(c, cmd_serve_table, o);
    conf_add_known(c, known_sglang);
    return c;
}

int cmd_serve_check(int argc, char *const *argv, struct err *e)
{
    struct serve_opts o;
    struct conf *c = serve_conf(&o);
    int rc = conf_parse(c, argc - 1, argv + 1, e);

    rc = rc == STATUS_OK ? serve_check(&o, e) : rc;
    conf_free(c);
    return rc;
}

int cmd_serve(int argc, char **argv)
{
    struct serve_opts o;
    struct genmodel m;
    struct err e = {0};
    struct conf *c = serve_conf(&o);
    json_t *args = NULL;
    struct logfile *log = NULL;
    sigset_t signals;
    size_t len;
    int rc;

    memset(&m, 0, sizeof m);
    rc = conf_parse(c, argc - 1, argv + 1, &e);
    if (rc == STATUS_END) {
        cmd_help("miles serve --hf-checkpoint DIR [--flag value ...]", c);
        conf_free(c);
        return CMD_OK;
    }
    listen_prepare(&signals);
    if (rc == STATUS_OK) {
        rc = serve_check(&o, &e);
    }
    if (rc == STATUS_OK) {
        log_set_level((enum log_level)o.log_level);
        rc = o.log_dir ? logfile_open(o.log_dir, "serve", &log, &e) : STATUS_OK;
    }
    if (rc == STATUS_OK) {
        rc = o.weights_fd == CONF_UNSET ? genmodel_open(&m, &o.model, NULL, 0, &e)
                                        : genmodel_attach(&m, &o.model, (int)o.weights_fd, &e);
    }
    if (rc == STATUS_OK && o.chat_template) {
        mem_free(m.enc.tmpl);
        m.enc.tmpl = NULL;
        rc = fsio_read(o.chat_template, 4 << 20, &m.enc.tmpl, &len, &e);
    }
    if (rc == STATUS_OK) {
        args = conf_dump_json(c);
        json_object_del(args, "api_key");
        json_object_del(args, "ssl_keyfile");
        rc = serve_run(&o, &m, args, &signals, &e);
    }
    json_decref(args);
    genmodel_close(&m);
    if (rc != STATUS_OK && log) {
        log_error(SERVE, "%s", e.msg);
    }
    logfile_close(log);
    conf_free(c);
    return rc == STATUS_OK ? CMD_OK : cmd_fail(rc, &e);
}
