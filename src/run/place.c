/* Owns the options that say where samples are drawn, and the command lines that follow from them.
 */
#include "run/place.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/thread.h"
#include "net/http_client.h"
#include "rl/agent_opts.h"
#include "rl/port_http.h"
#include "rl/train_opts.h"
#include "run/cmdline.h"
#include "run/launch.h"

#define PLACE_DRAIN_S "5"  /* when a run ends, nothing is running */
#define PLACE_QUEUE   8192 /* of `miles serve`: samples it takes at once */
#define PLACE_URL_MAX 1024 /* bytes of an engine's address */

#define O(f)    offsetof(struct place_opts, f)
#define SECONDS "(0,1e9]"
const struct conf_opt place_table[] = {
    {"rollout-backend", CONF_CHOICE, NULL, "in-process|miles|sglang",
     "who samples: the trainer's own process, `miles serve`, or SGLang; unset: in-process, but "
     "`miles` with --rollout-num-gpus and without --colocate, and `sglang` with --rollout-external",
     O(backend), "engines", NULL},
    {"rollout-num-gpus", CONF_INT, NULL, "[1,65536]",
     "GPUs of all engines together; on a machine without: equal shares of its cores", O(num_gpus),
     "engines", NULL},
    {"rollout-num-gpus-per-engine", CONF_INT, "1", "[1,65536]",
     "of one engine: there are as many engines as the quotient says", O(gpus_per_engine), "engines",
     NULL},
    {"rollout-threads-per-engine", CONF_INT, "0", "[0,4096]",
     "threads of an engine; 0: the usable cores divided by the engines", O(threads), "engines",
     NULL},
    {"rollout-external", CONF_SWITCH, NULL, NULL,
     "engines are running already: none is started or ended", O(external), "engines", NULL},
    {"rollout-external-engine-addrs", CONF_STRS, NULL, NULL,
     "their addresses: host:port, or with http:// or https://", O(addrs), "engines", NULL},
    {"sglang-command", CONF_STR,
     "python3 -m sglang.launch_server --model-path {model} --host {host} --port {port} "
     "--nccl-port {nccl_port} --tp-size {gpus} --base-gpu-id {first_gpu} --skip-server-warmup",
     NULL,
     "command of an SGLang server, without a shell; in braces: " LAUNCH_NAMES
     "; other braces are written twice",
     O(command), "engines", NULL},
    {"sglang-api-key", CONF_STR, NULL, NULL, "key that engines and router ask for", O(api_key),
     "engines", NULL},
    {"sglang-server-concurrency", CONF_INT, "512", "[1,1000000]",
     "samples at one engine at once; more wait in the trainer", O(concurrency), "engines", NULL},
    {"sglang-log-dir", CONF_STR, NULL, NULL,
     "folder for a log of each engine; unset: engines/ in the run folder", O(log_dir), "engines",
     NULL},
    {"sglang-*", CONF_PASS, NULL, NULL,
     "any other: for the servers that are started here, to SGLang without `sglang-`", O(sglang),
     "engines", "sglang_pass"},

    {"use-miles-router", CONF_SWITCH, NULL, NULL,
     "start `miles router` and send all samples through it", O(use_router), "router", NULL},
    {"sglang-router-ip", CONF_STR, NULL, NULL,
     "router that is running already: engines are added to it, samples go through it", O(router_ip),
     "router", NULL},
    {"sglang-router-port", CONF_INT, NULL, "[1,65535]", "its port", O(router_port), "router", NULL},
    {"sglang-router-policy", CONF_STR, NULL, NULL, "--router-policy of the router started here",
     O(router_policy), "router", NULL},
    {"sglang-router-request-timeout-secs", CONF_INT, "14400", "[1,1000000000]",
     "a sample may take so long, with or without a router", O(request_s), "router", NULL},
    {"router-*", CONF_PASS, NULL, NULL, "for the router that is started here", O(router), "router",
     "router_pass"},

    {"rollout-health-check-interval", CONF_FLOAT, "30", SECONDS,
     "seconds between two health checks of an engine", O(check_s), "engine loss", NULL},
    {"rollout-health-check-timeout", CONF_FLOAT, "30", SECONDS,
     "an engine that has not answered by then is lost", O(check_timeout_s), "engine loss", NULL},
    {"rollout-health-check-first-wait", CONF_FLOAT, "0", "[0,1e9]",
     "seconds without health checks when an engine has come up", O(first_wait_s), "engine loss",
     NULL},
    {"rollout-slow-engine-factor", CONF_FLOAT, "5", "[0,1e9]",
     "an engine whose answers take so many times as long as those of the others gets no samples "
     "until it "
     "is well; 0: slow engines are borne",
     O(slow_factor), "engine loss", NULL},
    {"rollout-slow-engine-wait", CONF_FLOAT, "60", SECONDS,
     "seconds that it must be slow for, and after which the samples it has are moved", O(slow_s),
     "engine loss", NULL},
    {"rollout-engines-file", CONF_STR, NULL, NULL,
     "file of further engines that are running already, an address a line; it is looked at while "
     "the run goes on, and engines are added and taken out as it changes",
     O(engines_file), "engine loss", NULL},
    {"control-server-port", CONF_INT, "0", "[0,65535]",
     "port on 127.0.0.1 where engines are shown, added and taken out; 0: none", O(control_port),
     "engine loss", NULL},
    {"rollout-start-timeout", CONF_FLOAT, "1800", SECONDS, "for an engine to come up", O(start_s),
     "engine loss", NULL},

    {"check-weight-update-equal", CONF_SWITCH, NULL, NULL,
     "before the first rollout engines forget their weights, take the trainer's, and compare",
     O(check_equal), "weight sync", NULL},
    {"weight-version-policy", CONF_CHOICE, "refuse", PORT_HTTP_POLICY_CHOICES,
     "an answer of other weights than those asked for: asked again, or taken and marked", O(policy),
     "weight sync", NULL},
    {"update-weight-disk-dir", CONF_STR, NULL, NULL,
     "folder that engines read weights from, where they do not share the trainer's memory; unset: "
     "weights/ in the run folder",
     O(disk_dir), "weight sync", NULL},
    {"update-weight-transfer-mode", CONF_CHOICE, "broadcast", "broadcast|p2p|disk-delta",
     "how weights get to engines: disk-delta: as what changed since the version before, in chunks "
     "that engines read or fetch; else from the trainer's memory, or as whole folders",
     O(transfer), "weight sync", NULL},
    {"update-weight-delta-encoding", CONF_CHOICE, "xor", "xor|overwrite",
     "disk-delta: of a changed value the xor with the one before, or the value", O(delta_encoding),
     "weight sync", NULL},
    {"update-weight-delta-checksum", CONF_CHOICE, "xxh3-128", "xxh3-128|blake3|adler32",
     "disk-delta: hash of chunks and tensors; xxh3-128 alone is done here", O(delta_checksum),
     "weight sync", NULL},
    {"update-weight-delta-url", CONF_STR, NULL, NULL,
     "disk-delta: http:// or https:// address where engines find --update-weight-disk-dir; unset: "
     "they see the folder itself",
     O(delta_url), "weight sync", NULL},
    {"update-weight-delta-full-interval", CONF_INT, "20", "[1,1000000]",
     "disk-delta: versions from one that is whole to the next", O(delta_full_every), "weight sync",
     NULL},
    {"update-weight-delta-keep-seconds", CONF_FLOAT, "60", "[0,1e9]",
     "disk-delta: a version that no engine can need any more stays so long", O(delta_keep_s),
     "weight sync", NULL},
    {"update-weight-delta-keep-bytes", CONF_INT, "0", "[0,4611686018427387904]",
     "disk-delta: such versions go earlier when all together have more bytes; 0: any number",
     O(delta_keep_bytes), "weight sync", NULL},
    {"update-weight-timeout", CONF_FLOAT, "600", SECONDS,
     "for one engine to take new weights and prove it", O(sync_s), "weight sync", NULL},
    {0}};

/* ---- rules ---- */

/* What a script says of routers cannot change what the engine of this process samples. */
static int place_in_process(const struct place_opts *p, struct err *e)
{
    static const char why[] = "no effect here: samples are drawn in the trainer's process";

    if (p->router_ip) {
        return ERR(e, STATUS_UNSUPPORTED,
                   "--sglang-router-ip is for engines in processes of their own: give "
                   "--rollout-num-gpus and no --colocate, or --rollout-backend");
    }
    if (p->engines_file) {
        return ERR(e, STATUS_INPUT,
                   "--rollout-engines-file is for engines in processes of their own: give "
                   "--rollout-num-gpus and no --colocate, or --rollout-external");
    }
    if (p->control_port > 0) {
        log_info(place, "--control-server-port %lld: %s", (long long)p->control_port, why);
    }
    if (p->use_router) {
        log_info(place, "--use-miles-router: %s", why);
    }
    if (p->transfer != PLACE_BROADCAST) {
        log_info(place, "--update-weight-transfer-mode: %s", why);
    }
    if (p->router_policy) {
        log_info(place, "--sglang-router-policy %s: %s", p->router_policy, why);
    }
    for (int64_t i = 0; i < p->router.n; i++) {
        if (strncmp(p->router.v[i], "--", 2) == 0) {
            log_info(place, "%s: %s", p->router.v[i], why);
        }
    }
    return STATUS_OK;
}

static int place_count(struct place_opts *p, struct err *e)
{
    int64_t gpus = p->num_gpus != CONF_UNSET ? p->num_gpus : p->gpus_per_engine;

    if (p->external) {
        p->nengines = (int)p->addrs.n;
        if (p->num_gpus != CONF_UNSET && gpus != p->addrs.n * p->gpus_per_engine) {
            return ERR(e, STATUS_INPUT,
                       "--rollout-num-gpus %lld are not %lld for each of %lld external engines",
                       (long long)gpus, (long long)p->gpus_per_engine, (long long)p->addrs.n);
        }
        return STATUS_OK;
    }
    if (gpus % p->gpus_per_engine != 0) {
        return ERR(e, STATUS_INPUT,
                   "--rollout-num-gpus %lld is no multiple of --rollout-num-gpus-per-engine %lld",
                   (long long)gpus, (long long)p->gpus_per_engine);
    }
    p->nengines = (int)(gpus / p->gpus_per_engine);
    return STATUS_OK;
}

static int place_check_external(const struct place_opts *p, struct err *e)
{
    if (!p->external) {
        return p->addrs.n == 0 ? STATUS_OK
                               : ERR(e, STATUS_INPUT,
                                     "--rollout-external-engine-addrs needs --rollout-external");
    }
    if (p->addrs.n == 0 && !p->engines_file) {
        return ERR(e, STATUS_INPUT,
                   "--rollout-external needs --rollout-external-engine-addrs or "
                   "--rollout-engines-file");
    }
    if (p->sglang.n) {
        return ERR(e, STATUS_INPUT,
                   "%.100s is for servers that are started here; with --rollout-external somebody "
                   "else starts them",
                   p->sglang.v[0]);
    }
    for (int64_t i = 0; i < p->addrs.n; i++) {
        const char *a = p->addrs.v[i];
        char *url = NULL;
        if (place_engine_url(a, &url, e) != STATUS_OK) {
            return err_prefix(e, "--rollout-external-engine-addrs");
        }
        mem_free(url);
        for (int64_t j = 0; j < i; j++) {
            if (strcmp(a, p->addrs.v[j]) == 0) {
                return ERR(e, STATUS_INPUT, "--rollout-external-engine-addrs names %.200s twice",
                           a);
            }
        }
    }
    return STATUS_OK;
}

static int place_check_router(const struct place_opts *p, struct err *e)
{
    if ((p->router_ip != NULL) != (p->router_port != CONF_UNSET)) {
        return ERR(e, STATUS_INPUT, "--sglang-router-ip and --sglang-router-port go together");
    }
    if (p->router_ip && p->use_router) {
        return ERR(e, STATUS_INPUT,
                   "--use-miles-router starts a router, --sglang-router-ip names one: choose");
    }
    if (!p->use_router && (p->router.n || p->router_policy)) {
        return ERR(e, STATUS_INPUT,
                   "%.100s is for a router that is started here: --use-miles-router",
                   p->router.n ? p->router.v[0] : "--sglang-router-policy");
    }
    return STATUS_OK;
}

static int place_check_transfer(const struct place_opts *p, struct err *e)
{
    if (p->transfer == PLACE_P2P) {
        log_info(place, "--update-weight-transfer-mode p2p: no effect here: engines read the "
                        "trainer's memory, or a folder");
    }
    if (p->transfer != PLACE_DISK_DELTA) {
        return p->delta_url ? ERR(e, STATUS_INPUT,
                                  "--update-weight-delta-url needs --update-weight-transfer-mode "
                                  "disk-delta")
                            : STATUS_OK;
    }
    if (p->backend == PLACE_SGLANG) {
        return ERR(e, STATUS_UNSUPPORTED,
                   "--update-weight-transfer-mode disk-delta is for engines of `miles serve` "
                   "(--rollout-backend miles): an SGLang server cannot fetch changes");
    }
    if (p->delta_checksum != 0) {
        return ERR(e, STATUS_UNSUPPORTED,
                   "--update-weight-delta-checksum: only xxh3-128 is done here");
    }
    if (p->delta_url && strncmp(p->delta_url, "http://", 7) != 0 &&
        strncmp(p->delta_url, "https://", 8) != 0) {
        return ERR(e, STATUS_INPUT,
                   "--update-weight-delta-url %.200s is no address: http:// or https:// is needed",
                   p->delta_url);
    }
    return STATUS_OK;
}

static int place_check_command(const struct place_opts *p, struct err *e)
{
    struct cmdline c;
    int rc = STATUS_OK;

    if (p->backend != PLACE_SGLANG || p->external) {
        return STATUS_OK;
    }
    rc = cmdline_split(&c, p->command, e);
    if (rc == STATUS_OK && c.n == 0) {
        rc = ERR(e, STATUS_INPUT, "it is empty");
    } else if (rc == STATUS_OK && !cmdline_uses(&c, "port")) {
        rc = ERR(e, STATUS_INPUT, "it must use {port}: engines get a free one each");
    }
    if (rc == STATUS_OK) {
        cmdline_fini(&c);
        return rc;
    }
    cmdline_fini(&c);
    return err_prefix(e, "--sglang-command");
}

int place_resolve(struct place_opts *p, const struct train_opts *t, struct err *e)
{
    int rc;

    if (p->backend < 0) {
        p->backend = p->external                                 ? PLACE_SGLANG
                     : p->num_gpus != CONF_UNSET && !t->colocate ? PLACE_MILES
                                                                 : PLACE_IN_PROCESS;
    } else if (p->backend != PLACE_IN_PROCESS && t->colocate) {
        return ERR(e, STATUS_INPUT,
                   "--colocate is one process for trainer and engine, --rollout-backend %s is not: "
                   "choose one",
                   p->backend == PLACE_MILES ? "miles" : "sglang");
    }
    if (p->external && (t->colocate || p->backend == PLACE_IN_PROCESS)) {
        return ERR(e, STATUS_INPUT, "--rollout-external and %s exclude each other",
                   t->colocate ? "--colocate" : "--rollout-backend in-process");
    }
    rc = place_check_external(p, e);
    if (rc != STATUS_OK) {
        return rc;
    }
    if (p->backend == PLACE_IN_PROCESS) {
        return place_in_process(p, e);
    }
    p->sessions = agent_opts_sessions(t);
    rc = place_check_router(p, e);
    rc = rc ? rc : place_check_command(p, e);
    rc = rc ? rc : place_check_transfer(p, e);
    rc = rc ? rc : place_count(p, e);
    if (rc == STATUS_OK) {
        p->engine_threads = p->threads > 0    ? (int)p->threads
                            : p->nengines > 0 ? pool_cores() / p->nengines
                                              : 1;
        p->engine_threads = p->engine_threads > 0 ? p->engine_threads : 1;
    }
    return rc;
}

/* ---- words ---- */

static void place_add(struct cmdline *c, const char *flag, const char *value)
{
    cmdline_add(c, flag);
    cmdline_add(c, value);
}

static void place_add_int(struct cmdline *c, const char *flag, int64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    place_add(c, flag, text);
}

static void place_add_float(struct cmdline *c, const char *flag, double value)
{
    char text[32];
    snprintf(text, sizeof text, "%.17g", value);
    place_add(c, flag, text);
}

static void place_serve_words(const struct place_opts *p, const struct train_opts *t,
                              const struct place_run *r, struct cmdline *c)
{
    static const char *const isas[] = {"auto", "scalar", "avx2", "avx512", "amx"};

    cmdline_add(c, "serve");
    place_add(c, "--hf-checkpoint", t->hf_checkpoint);
    place_add_int(c, "--threads", p->engine_threads);
    place_add(c, "--device", t->device);
    if (t->libtorch) {
        place_add(c, "--libtorch", t->libtorch);
    }
    place_add(c, "--isa", isas[t->isa]);
    place_add_int(c, "--numeric-leaves", t->numeric_leaves);
    place_add_int(c, "--request-timeout-s", p->request_s);
    place_add(c, "--drain-timeout-s", PLACE_DRAIN_S);
    if (p->concurrency > PLACE_QUEUE) {
        place_add_int(c, "--sglang-max-queued-requests", p->concurrency);
    }
    if (r->max_context) {
        place_add_int(c, "--sglang-context-length", r->max_context);
    }
    if (r->max_running) {
        place_add_int(c, "--sglang-max-running-requests", r->max_running);
    }
    if (!isnan(t->sglang_mem_fraction_static)) {
        place_add_float(c, "--sglang-mem-fraction-static", t->sglang_mem_fraction_static);
    }
    if (r->weights_fd >= 0) {
        place_add_int(c, "--weights-fd", r->weights_fd);
    }
    if (p->api_key) {
        place_add(c, "--api-key", p->api_key);
    }
    for (int64_t i = 0; i < p->sglang.n; i++) {
        cmdline_add(c, p->sglang.v[i]);
    }
}

/* A word of the user's is text: braces in it are no names. */
static void place_add_plain(struct cmdline *c, const char *word)
{
    struct buf b;

    buf_init(&b, 1 << 21);
    for (const char *p = word; *p; p++) {
        buf_char(&b, *p);
        if (*p == '{' || *p == '}') {
            buf_char(&b, *p);
        }
    }
    cmdline_add(c, b.data);
    buf_fini(&b);
}

static void place_sglang_words(const struct place_opts *p, const struct train_opts *t,
                               struct cmdline *c)
{
    static const char prefix[] = "--sglang-";

    if (t->sglang_context_length != CONF_UNSET) {
        place_add_int(c, "--context-length", t->sglang_context_length);
    }
    if (t->sglang_max_running_requests != CONF_UNSET) {
        place_add_int(c, "--max-running-requests", t->sglang_max_running_requests);
    }
    if (!isnan(t->sglang_mem_fraction_static)) {
        place_add_float(c, "--mem-fraction-static", t->sglang_mem_fraction_static);
    }
    if (p->api_key) {
        cmdline_add(c, "--api-key");
        place_add_plain(c, p->api_key);
    }
    for (int64_t i = 0; i < p->sglang.n; i++) {
        const char *w = p->sglang.v[i];
        if (strncmp(w, prefix, sizeof prefix - 1) == 0) {
            struct buf b;
            buf_init(&b, 4096);
            buf_printf(&b, "--%s", w + sizeof prefix - 1);
            place_add_plain(c, b.data);
            buf_fini(&b);
        } else {
            place_add_plain(c, w);
        }
    }
}

int place_engine_words(const struct place_opts *p, const struct train_opts *t,
                       const struct place_run *r, struct cmdline *words, struct err *e)
{
    int rc = STATUS_OK;

    memset(words, 0, sizeof *words);
    if (p->backend == PLACE_MILES) {
        place_serve_words(p, t, r, words);
    } else {
        rc = cmdline_split(words, p->command, e);
        if (rc == STATUS_OK) {
            place_sglang_words(p, t, words);
        }
    }
    return rc;
}

/* The word behind a flag, the last one of that name; NULL: it was not given. */
static const char *place_value(const struct conf_strs *words, const char *flag)
{
    for (int64_t i = words->n - 1; i > 0; i--) {
        if (strcmp(words->v[i - 1], flag) == 0) {
            return words->v[i];
        }
    }
    return NULL;
}

const char *place_sglang_flag(const struct place_opts *p, const char *flag)
{
    return place_value(&p->sglang, flag);
}

void place_router_words(const struct place_opts *p, struct cmdline *words)
{
    memset(words, 0, sizeof *words);
    cmdline_add(words, "router");
    place_add_int(words, "--router-request-timeout-secs", p->request_s);
    place_add_float(words, "--router-health-check-interval-secs", p->check_s);
    if (p->router_policy) {
        place_add(words, "--router-policy", p->router_policy);
    } else if (p->sessions && !place_value(&p->router, "--router-policy")) {
        place_add(words, "--router-policy", "manual"); /* a session stays where its prefix is */
        if (!place_value(&p->router, "--router-assignment-mode")) {
            place_add(words, "--router-assignment-mode", "min_load");
        }
    }
    if (p->api_key) {
        place_add(words, "--api-key", p->api_key);
        place_add(words, "--router-api-key", p->api_key);
    }
    for (int64_t i = 0; i < p->router.n; i++) {
        cmdline_add(words, p->router.v[i]);
    }
}

/* With http:// in front where it has no such thing, and without slashes behind. */
static void place_put_url(struct buf *b, const char *host, int six)
{
    buf_printf(b, strstr(host, "://") ? "%s" : six ? "http://[%s]" : "http://%s", host);
    while (b->len && b->data[b->len - 1] == '/') {
        b->data[--b->len] = 0;
    }
}

/* A colon and a number behind the host's name or its [number]. */
static int place_has_port(const char *host)
{
    const char *end = host + strcspn(host, "/"), *colon = end;
    int port = 0;

    while (colon > host && *colon != ':' && *colon != ']') {
        colon--;
    }
    for (const char *c = colon + 1; c < end && port <= 65535; c++) {
        port = *c >= '0' && *c <= '9' ? 10 * port + *c - '0' : 65536;
    }
    return colon > host && *colon == ':' && port > 0 && port <= 65535;
}

int place_engine_url(const char *addr, char **url, struct err *e)
{
    const char *host = strstr(addr, "://");
    size_t n = strlen(addr);
    struct buf b;
    int rc = STATUS_OK;

    host = host ? host + 3 : addr;
    for (size_t i = 0; rc == STATUS_OK && i < n; i++) {
        if ((unsigned char)addr[i] <= ' ' || strchr("#?@", addr[i]) || i == PLACE_URL_MAX) {
            rc = ERR(e, STATUS_INPUT, "%.200s is no address of an engine: host:port", addr);
        }
    }
    if (rc == STATUS_OK && !place_has_port(host)) {
        rc = ERR(e, STATUS_INPUT, "%.200s has no port, or one that is none", addr);
    }
    buf_init(&b, 1 << 16);
    place_put_url(&b, addr, 0);
    rc = rc ? rc : http_client_check(b.data, e);
    if (rc == STATUS_OK) {
        *url = mem_strdup(b.data);
    }
    buf_fini(&b);
    return rc;
}

char *place_url(const struct place_opts *p, int i)
{
    const char *host = p->router_ip;
    char *url = NULL;
    struct buf b;

    if (i >= 0) {
        (void)place_engine_url(p->addrs.v[i], &url, NULL); /* place_resolve has looked */
        return url;
    }
    if (host) {
        buf_init(&b, 1 << 16);
        place_put_url(&b, host, strchr(host, ':') && *host != '['); /* an IPv6 address */
        buf_printf(&b, ":%lld", (long long)p->router_port);
        url = mem_strdup(b.data);
        buf_fini(&b);
    }
    return url;
}
