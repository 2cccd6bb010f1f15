/* `miles router`: one address in front of many servers, until SIGTERM or SIGINT. */
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/conf.h"
#include "base/log.h"
#include "base/status.h"
#include "cli/cmd.h"
#include "cli/listen.h"
#include "serve/router.h"

struct route_opts {
    struct listen_opts listen;
    char *worker_key, *ca, *health_path;
    struct conf_strs urls;
    int policy, assign, no_retries, no_checks, no_breaker, log_level;
    int64_t balance_abs, tree, payload, running, queue, retries;
    int64_t health_failures, health_successes, cb_failures, cb_successes;
    double cache_threshold, balance_rel, idle_s, startup_s, startup_check_s, request_s, connect_s;
    double grace_s, queue_s, backoff_ms, backoff_max_ms, backoff_factor, jitter;
    double check_s, check_timeout_s, cb_open_s, cb_window_s;
};

#define O(f)    offsetof(struct route_opts, f)
#define SECONDS "(0,1e9]"
#define COUNT   "[1,1000000]"
const struct conf_opt cmd_router_table[] = {
    {"router-max-payload-size", CONF_INT, "536870912", "[1024,17179869184]",
     "largest request in bytes", O(payload), "network", NULL},
    {"router-request-timeout-secs", CONF_FLOAT, "1800", SECONDS,
     "a request may take so long, retries included", O(request_s), "network", NULL},
    {"router-connect-timeout-secs", CONF_FLOAT, "10", SECONDS, "to connect to a worker",
     O(connect_s), "network", NULL},
    {"router-shutdown-grace-period-secs", CONF_FLOAT, "180", "[0,1e9]",
     "after SIGTERM, running requests may take so long", O(grace_s), "network", NULL},
    {"router-max-concurrent-requests", CONF_INT, "-1", "[-1,1000000]",
     "requests forwarded at once; -1: no limit", O(running), "network", NULL},
    {"router-queue-size", CONF_INT, "100", "[0,1000000]",
     "requests that wait beyond that limit; more are answered with 429", O(queue), "network", NULL},
    {"router-queue-timeout-secs", CONF_FLOAT, "60", SECONDS, "they wait so long at most, then 408",
     O(queue_s), "network", NULL},
    {"router-log-level", CONF_CHOICE, "info", "debug|info|warn|error", "lines from here on",
     O(log_level), "network", NULL},
    {"worker-urls", CONF_STRS, NULL, NULL, "servers to begin with; /add_worker adds more", O(urls),
     "workers", NULL},
    {"router-api-key", CONF_STR, NULL, NULL,
     "key that the workers ask for; unset: the client's is passed on", O(worker_key), "workers",
     NULL},
    {"router-ca-cert-path", CONF_STR, NULL, NULL,
     "PEM certificates for workers with https; unset: the system's", O(ca), "workers", NULL},
    {"router-worker-startup-timeout-secs", CONF_FLOAT, "1800", SECONDS,
     "a worker that is not healthy by then is removed", O(startup_s), "workers", NULL},
    {"router-worker-startup-check-interval", CONF_FLOAT, "1", SECONDS,
     "seconds between checks until then", O(startup_check_s), "workers", NULL},
    {"router-policy", CONF_CHOICE, "cache_aware", ROUTER_POLICY_CHOICES,
     "which worker gets a request", O(policy), "policy", NULL},
    {"router-cache-threshold", CONF_FLOAT, "0.3", "[0,1]",
     "cache_aware: share of a prompt that must be known at a worker", O(cache_threshold), "policy",
     NULL},
    {"router-balance-abs-threshold", CONF_INT, "64", "[0,1000000]",
     "loads further apart than this, and", O(balance_abs), "policy", NULL},
    {"router-balance-rel-threshold", CONF_FLOAT, "1.5", "[1,1e9]",
     "by more than this factor, are balanced first", O(balance_rel), "policy", NULL},
    {"router-max-tree-size", CONF_INT, "67108864", "[128,68719476736]",
     "cache_aware: bytes of prompts remembered", O(tree), "policy", NULL},
    {"router-assignment-mode", CONF_CHOICE, "random", "random|min_load|min_group",
     "manual: where a new session goes", O(assign), "policy", NULL},
    {"router-max-idle-secs", CONF_FLOAT, "14400", SECONDS,
     "manual: a session not seen for so long is forgotten", O(idle_s), "policy", NULL},
    {"router-retry-max-retries", CONF_INT, "5", "[0,1000]",
     "times a request that can be repeated is sent again", O(retries), "retries", NULL},
    {"router-retry-initial-backoff-ms", CONF_FLOAT, "50", "[0,1e9]", "first pause", O(backoff_ms),
     "retries", NULL},
    {"router-retry-max-backoff-ms", CONF_FLOAT, "30000", "[0,1e9]", "longest pause",
     O(backoff_max_ms), "retries", NULL},
    {"router-retry-backoff-multiplier", CONF_FLOAT, "1.5", "[1,1000]", "from one pause to the next",
     O(backoff_factor), "retries", NULL},
    {"router-retry-jitter-factor", CONF_FLOAT, "0.2", "[0,1]", "pauses vary by this share",
     O(jitter), "retries", NULL},
    {"router-disable-retries", CONF_SWITCH, NULL, NULL, "every request is sent once", O(no_retries),
     "retries", NULL},
    {"router-health-check-endpoint", CONF_STR, "/health", NULL, "path of the workers",
     O(health_path), "health", NULL},
    {"router-health-check-interval-secs", CONF_FLOAT, "60", SECONDS, "between two checks",
     O(check_s), "health", NULL},
    {"router-health-check-timeout-secs", CONF_FLOAT, "5", SECONDS, "for the answer",
     O(check_timeout_s), "health", NULL},
    {"router-health-failure-threshold", CONF_INT, "3", COUNT,
     "failed checks in a row that take a worker out", O(health_failures), "health", NULL},
    {"router-health-success-threshold", CONF_INT, "2", COUNT,
     "good checks in a row that take it back", O(health_successes), "health", NULL},
    {"router-disable-health-check", CONF_SWITCH, NULL, NULL, "workers are taken for healthy",
     O(no_checks), "health", NULL},
    {"router-cb-failure-threshold", CONF_INT, "10", COUNT,
     "failed requests in a row that open a worker's circuit breaker", O(cb_failures),
     "circuit breaker", NULL},
    {"router-cb-success-threshold", CONF_INT, "3", COUNT, "good ones that close it again",
     O(cb_successes), "circuit breaker", NULL},
    {"router-cb-timeout-duration-secs", CONF_FLOAT, "60", SECONDS,
     "open for so long, then a few requests try", O(cb_open_s), "circuit breaker", NULL},
    {"router-cb-window-duration-secs", CONF_FLOAT, "120", SECONDS,
     "failures further apart do not count together", O(cb_window_s), "circuit breaker", NULL},
    {"router-disable-circuit-breaker", CONF_SWITCH, NULL, NULL, "it never opens", O(no_breaker),
     "circuit breaker", NULL},
    {0}};

/* Of SGLang's router, and not done here. */
const struct conf_known cmd_router_known[] = {
    {"router-eviction-interval-secs", CONF_INT, "60", CONF_NOTED,
     "what is old goes from the tree when room is needed", "[1,1000000000]"},
    {"router-bucket-adjust-interval-secs", CONF_INT, "5", CONF_NOTED,
     "there is no policy of buckets", "[1,1000000000]"},
    {"router-dp-aware", CONF_SWITCH, NULL, CONF_LATER,
     "an engine is one worker: it has no ranks to choose from", NULL},
    {"router-enable-igw", CONF_SWITCH, NULL, CONF_NEVER, "a router stands before one model", NULL},
    {"router-mini-lb", CONF_SWITCH, NULL, CONF_NOTED, "there is one router, and it is small", NULL},
    {"router-pd-disaggregation", CONF_SWITCH, NULL, CONF_NEVER,
     "every worker computes prompts and decodes", NULL},
    {"router-prefill", CONF_STRS, NULL, CONF_NEVER, "every worker computes prompts and decodes",
     NULL},
    {"router-decode", CONF_STRS, NULL, CONF_NEVER, "every worker computes prompts and decodes",
     NULL},
    {"router-prefill-policy", CONF_STR, NULL, CONF_NEVER,
     "every worker computes prompts and decodes: give --router-policy", NULL},
    {"router-decode-policy", CONF_STR, NULL, CONF_NEVER,
     "every worker computes prompts and decodes: give --router-policy", NULL},
    {"router-redis-url", CONF_STR, NULL, CONF_LATER, "sessions are kept in the router's memory",
     NULL},
    {"router-redis-key-prefix", CONF_STR, NULL, CONF_LATER,
     "sessions are kept in the router's memory", NULL},
    {"router-log-dir", CONF_STR, NULL, CONF_NOTED,
     "lines go to stderr; a router of a run has a file in the run folder", NULL},
    {"router-request-id-headers", CONF_STRS, NULL, CONF_NOTED,
     "requests are passed on with the headers they came with", NULL},
    {"router-rate-limit-tokens-per-second", CONF_INT, NULL, CONF_LATER,
     "--router-max-concurrent-requests and --router-queue-size bound what is taken", NULL},
    {"router-cors-allowed-origins", CONF_STRS, NULL, CONF_LATER, "browsers are not served", NULL},
    {"router-model-path", CONF_STR, NULL, CONF_NOTED, "the router reads no tokens: workers do",
     NULL},
    {"router-tokenizer-path", CONF_STR, NULL, CONF_NOTED, "the router reads no tokens: workers do",
     NULL},
    {"router-chat-template", CONF_STR, NULL, CONF_NEVER,
     "templates are the workers': give --chat-template there", NULL},
    {"router-tokenizer-cache-*", CONF_STRS, NULL, CONF_NOTED,
     "the router reads no tokens: workers do", NULL},
    {"router-reasoning-parser", CONF_STR, NULL, CONF_NEVER,
     "answers are parsed by the workers: give --sglang-reasoning-parser", NULL},
    {"router-tool-call-parser", CONF_STR, NULL, CONF_NEVER,
     "answers are parsed by the workers: give --sglang-tool-call-parser", NULL},
    {"router-mcp-config-path", CONF_STR, NULL, CONF_NEVER, "the router calls no tools", NULL},
    {"router-backend", CONF_STR, "sglang", CONF_NEVER, "workers speak SGLang's API", NULL},
    {"router-history-backend", CONF_STR, NULL, CONF_NEVER, "the router keeps no conversations",
     NULL},
    {"router-service-discovery*", CONF_STRS, NULL, CONF_LATER,
     "workers are given by --worker-urls or added by /add_worker", NULL},
    {"router-prometheus-*", CONF_STRS, NULL, CONF_NEVER, "/metrics is at the router's own address",
     NULL},
    {"router-*", CONF_STRS, NULL, CONF_LATER, "this part of SGLang's router is not done here",
     NULL},
    {0}};

static void route_fill(const struct route_opts *o, struct router_opts *r, long files)
{
    memset(r, 0, sizeof *r);
    listen_fill(&o->listen, &r->http);
    r->http.max_body = (size_t)o->payload;
    r->http.max_bodies =
        (size_t)o->payload > (size_t)1 << 30 ? (size_t)o->payload : (size_t)1 << 30;
    r->http.request_s = o->request_s + o->queue_s + 5;
    /* Each needs one descriptor here and one towards a worker. */
    r->http.max_connections = (int)(files > 2048 ? (files - 512) / 2 : files / 2);
    r->http.max_connections = r->http.max_connections < 32768 ? r->http.max_connections : 32768;
    r->worker = (struct router_worker_opts){.no_checks = o->no_checks,
                                            .health_failures = (int)o->health_failures,
                                            .health_successes = (int)o->health_successes,
                                            .check_s = o->check_s,
                                            .startup_check_s = o->startup_check_s,
                                            .startup_s = o->startup_s,
                                            .no_breaker = o->no_breaker,
                                            .cb_failures = (int)o->cb_failures,
                                            .cb_successes = (int)o->cb_successes,
                                            .cb_open_s = o->cb_open_s,
                                            .cb_window_s = o->cb_window_s};
    r->policy = (struct router_policy_opts){.kind = (enum router_policy_kind)o->policy,
                                            .assign = (enum router_policy_assign)o->assign,
                                            .cache_threshold = o->cache_threshold,
                                            .balance_rel = o->balance_rel,
                                            .balance_abs = o->balance_abs,
                                            .max_bytes = (size_t)o->tree,
                                            .max_idle_s = o->idle_s};
    r->urls = (const char *const *)o->urls.v;
    r->nurls = (int)o->urls.n;
    r->worker_key = o->worker_key;
    r->health_path = o->health_path;
    r->ca_file = o->ca;
    r->check_timeout_s = o->check_timeout_s;
    r->connect_s = o->connect_s;
    r->request_s = o->request_s;
    r->max_running = (int)o->running;
    r->queue_size = (int)o->queue;
    r->queue_s = o->queue_s;
    r->max_retries = o->no_retries ? 0 : (int)o->retries;
    r->backoff_s = o->backoff_ms * 1e-3;
    r->backoff_max_s = o->backoff_max_ms * 1e-3;
    r->backoff_factor = o->backoff_factor;
    r->jitter = o->jitter;
}

/* Routes until a signal says otherwise. */
static int route_run(const struct route_opts *o, const json_t *args, const sigset_t *signals,
                     long files, struct err *e)
{
    struct router_opts ro;
    struct router *rt = NULL;
    int rc;

    route_fill(o, &ro, files);
    ro.args = args;
    if (getrandom(&ro.policy.seed, sizeof ro.policy.seed, 0) != sizeof ro.policy.seed) {
        log_warn(ROUTER, "the system gave no random seed: 0 is taken");
        ro.policy.seed = 0;
    }
    rc = router_start(&ro, &rt, e);
    if (rc != STATUS_OK) {
        return rc;
    }
    printf("ready url=%s://%s:%d workers=%d\n", listen_scheme(&o->listen), o->listen.host,
           router_port(rt), ro.nurls);
    fflush(stdout);
    log_info(ROUTER, "signal %d: finishing what runs", listen_wait(signals));
    if (router_drain(rt, o->grace_s) != STATUS_OK) {
        log_warn(ROUTER, "requests were cut after %g seconds", o->grace_s);
    }
    router_stop(rt);
    return STATUS_OK;
}

static struct conf *route_conf(struct route_opts *o)
{
    struct conf *c = conf_new();

    conf_add(c, listen_table, &o->listen);
    conf_add(c, cmd_router_table, o);
    conf_add_known(c, cmd_router_known);
    return c;
}

static int route_check(const struct route_opts *o, struct err *e)
{
    return *o->health_path == '/'
               ? STATUS_OK
               : ERR(e, STATUS_INPUT, "--router-health-check-endpoint must begin with /");
}

int cmd_router_check(int argc, char *const *argv, struct err *e)
{
    struct route_opts o;
    struct conf *c = route_conf(&o);
    int rc = conf_parse(c, argc - 1, argv + 1, e);

    rc = rc == STATUS_OK ? route_check(&o, e) : rc;
    conf_free(c);
    return rc;
}

int cmd_router(int argc, char **argv)
{
    struct route_opts o;
    struct err e = {0};
    struct conf *c = route_conf(&o);
    json_t *args;
    sigset_t signals;
    long files;
    int rc;

    rc = conf_parse(c, argc - 1, argv + 1, &e);
    if (rc == STATUS_END) {
        cmd_help("miles router --worker-urls URL ... [--flag value ...]", c);
        conf_free(c);
        return CMD_OK;
    }
    files = listen_prepare(&signals);
    rc = rc == STATUS_OK ? route_check(&o, &e) : rc;
    if (rc == STATUS_OK) {
        log_set_level((enum log_level)o.log_level);
        args = conf_dump_json(c);
        json_object_del(args, "api_key");
        json_object_del(args, "router_api_key");
        json_object_del(args, "ssl_keyfile");
        rc = route_run(&o, args, &signals, files, &e);
        json_decref(args);
    }
    conf_free(c);
    return rc == STATUS_OK ? CMD_OK : cmd_fail(rc, &e);
}
