/* `miles reward`: the reward hub without a training run. `score` grades a file, `serve` answers
 * over HTTP. */
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/conf.h"
#include "base/fsio.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/thread.h"
#include "cli/cmd.h"
#include "cli/listen.h"
#include "reward/hub.h"
#include "reward/scorefile.h"
#include "serve/rewardapi.h"

enum { EXIT_UNSCORED = 3 };

/* ---- options of both ---- */

struct reward_set {
    char *rm_type, *custom_rm_path, *reward_key, *python, *rm_url;
    int64_t workers, inflight, threads;
    double timeout_s, code_timeout, code_memory;
    int rm_metadata, group, code_share;
};

#define O(f) offsetof(struct reward_set, f)
static const struct conf_opt set_table[] = {
    {"rm-type", CONF_STR, NULL, NULL,
     "built-in reward; unset: each sample names its own in metadata.rm_type", O(rm_type), "reward",
     NULL},
    {"custom-rm-path", CONF_STR, NULL, NULL, "reward function: pkg.module.fn or FILE.py:fn",
     O(custom_rm_path), "reward", NULL},
    {"reward-key", CONF_STR, NULL, NULL, "key of the reward when the function returns an object",
     O(reward_key), "reward", NULL},
    {"group-rm", CONF_SWITCH, NULL, NULL,
     "the reward function gets all samples of a group at once and returns a list", O(group),
     "reward", NULL},
    {"rm-url", CONF_STR, NULL, NULL, "service that --rm-type remote_rm asks", O(rm_url), "reward",
     NULL},
    {"rm-max-inflight", CONF_INT, "64", "[1,4096]", "calls of remote_rm at once", O(inflight),
     "reward", NULL},
    {"rm-send-metadata", CONF_SWITCH, NULL, NULL, "remote_rm also sends the sample's metadata",
     O(rm_metadata), "reward", NULL},
    {"reward-workers", CONF_INT, "0", "[0,128]",
     "processes for Python rewards; 0: one for each core", O(workers), "reward", NULL},
    {"reward-timeout", CONF_FLOAT, "30", "(0,86400]", "seconds for one reward call", O(timeout_s),
     "reward", NULL},
    {"reward-python", CONF_STR, "python3", NULL, "interpreter of Python rewards", O(python),
     "reward", NULL},
    {"code-share", CONF_SWITCH, NULL, NULL,
     "--rm-type code gives the share of passed cases, not 1 or 0", O(code_share), "reward", NULL},
    {"code-timeout", CONF_FLOAT, "6", "(0,3600]", "cpu seconds of a case of --rm-type code",
     O(code_timeout), "reward", NULL},
    {"code-memory", CONF_FLOAT, "1024", "[16,1048576]", "megabytes of a case of --rm-type code",
     O(code_memory), "reward", NULL},
    {"threads", CONF_INT, "0", "[0,256]", "threads of built-in rewards; 0: one for each core",
     O(threads), "reward", NULL},
    {0}};
#undef O

static void fill_hub(const struct reward_set *s, const json_t *args, struct hub_opts *h)
{
    memset(h, 0, sizeof *h);
    h->rm_type = s->rm_type;
    h->custom_rm_path = s->custom_rm_path;
    h->reward_key = s->reward_key;
    h->python = s->python;
    h->rm_url = s->rm_url;
    h->rm_inflight = (int)s->inflight;
    h->rm_metadata = s->rm_metadata;
    h->workers = s->workers > 0 ? (int)s->workers : pool_cores() < 128 ? pool_cores() : 128;
    h->threads = s->threads > 0 ? (int)s->threads : pool_cores() < 256 ? pool_cores() : 256;
    h->timeout_s = s->timeout_s;
    h->code_share = s->code_share;
    h->code_timeout_s = s->code_timeout;
    h->code_memory_mb = s->code_memory;
    h->args = args;
}

/* ---- score ---- */

struct score_opts {
    struct reward_set set;
    char *prompt_key, *response_key, *label_key, *metadata_key, *out;
    int sample_functions;
};

#define O(f) offsetof(struct score_opts, f)
static const struct conf_opt score_table[] = {
    {"input-key", CONF_STR, "prompt", NULL, "field of the prompt", O(prompt_key), "data", NULL},
    {"response-key", CONF_STR, "response", NULL, "field of the response", O(response_key), "data",
     NULL},
    {"label-key", CONF_STR, "label", NULL, "field of the label", O(label_key), "data", NULL},
    {"metadata-key", CONF_STR, "metadata", NULL, "field of the metadata", O(metadata_key), "data",
     NULL},
    {"out", CONF_STR, NULL, NULL,
     "file for the scored rows; - is the standard output, with the figures on the error output",
     O(out), "data", NULL},
    {"allow-sample-functions", CONF_SWITCH, NULL, NULL,
     "rows may name Python functions to run, in reward_spec.custom_rm_path", O(sample_functions),
     "reward", NULL},
    {0}};
#undef O

static void print_figures(FILE *out, const struct scorefile_stats *st)
{
    fprintf(out, "rows=%lld graded=%lld failed=%lld bad_rows=%lld", (long long)st->rows,
            (long long)st->graded, (long long)st->failed, (long long)st->bad);
    if (st->graded) {
        fprintf(out, " mean=%.6f", st->sum / (double)st->graded);
    }
    for (int i = 0; i < HUB_NCLASSES; i++) {
        if (st->classes[i]) {
            fprintf(out, " %s=%lld", hub_class_name((enum hub_class)i), (long long)st->classes[i]);
        }
    }
    fprintf(out, " seconds=%.3f rows_per_second=%.0f\n", st->seconds,
            st->seconds > 0 ? (double)st->rows / st->seconds : 0.0);
}

static volatile sig_atomic_t score_stop;

static void on_stop(int sig)
{
    score_stop = sig;
}

/* The first signal ends the reading, so that nothing is left behind; a second one ends us. */
static void catch_signals(void)
{
    struct sigaction a = {.sa_handler = on_stop, .sa_flags = (int)SA_RESETHAND};

    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
}

/* Rows go to a file beside the named one, which takes its name when all are written. */
static int run_score(const struct score_opts *o, struct hub *h, const char *path,
                     struct scorefile_stats *st, struct err *e)
{
    int to_stdout = o->out && strcmp(o->out, "-") == 0;
    FILE *in = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    FILE *out = NULL;
    struct scorefile_opts so = {.prompt_key = o->prompt_key,
                                .response_key = o->response_key,
                                .label_key = o->label_key,
                                .metadata_key = o->metadata_key,
                                .group = o->set.group,
                                .stop = &score_stop};
    char *part = NULL;
    int rc = in ? STATUS_OK : ERR(e, STATUS_INPUT, "%s: %s", path, strerror(errno));

    if (rc == STATUS_OK && to_stdout) {
        out = stdout;
    } else if (rc == STATUS_OK && o->out) {
        part = mem_alloc(strlen(o->out) + 8);
        snprintf(part, strlen(o->out) + 8, "%s.part", o->out);
        out = fopen(part, "wb");
        rc = out ? STATUS_OK : ERR(e, STATUS_IO, "%s: %s", part, strerror(errno));
    }
    if (rc == STATUS_OK) {
        so.out = out;
        catch_signals();
        rc = scorefile_run(h, in, path, &so, st, e);
    }
    if (rc == STATUS_OK && score_stop) {
        rc = ERR(e, STATUS_FAIL, "stopped by signal %d after %lld rows", (int)score_stop,
                 (long long)st->rows);
    }
    if (part && out && fclose(out) != 0 && rc == STATUS_OK) {
        rc = ERR(e, STATUS_IO, "%s: %s", part, strerror(errno));
    }
    if (part && rc == STATUS_OK && rename(part, o->out) != 0) {
        rc = ERR(e, STATUS_IO, "%s: %s", o->out, strerror(errno));
    }
    if (part && out && rc != STATUS_OK) {
        remove(part);
    }
    if (in && in != stdin) {
        fclose(in);
    }
    mem_free(part);
    return rc;
}

static int reward_score(int argc, char **argv)
{
    struct score_opts o;
    struct scorefile_stats st = {0};
    struct conf *c = conf_new();
    struct hub_opts ho;
    struct hub *h = NULL;
    json_t *args = NULL;
    struct err e = {0};
    int rc, unscored = 0;

    conf_add(c, score_table, &o);
    conf_add(c, set_table, &o.set);
    conf_positional(c, 1, 1);
    rc = conf_parse(c, argc - 1, argv + 1, &e);
    if (rc == STATUS_END) {
        cmd_help("miles reward score FILE.jsonl [--rm-type TYPE] [--flag value ...]", c);
        conf_free(c);
        return CMD_OK;
    }
    if (rc == STATUS_OK) {
        args = conf_dump_json(c);
        fill_hub(&o.set, args, &ho);
        ho.sample_functions = o.sample_functions;
        rc = hub_open(&ho, &h, &e);
    }
    if (rc == STATUS_OK) {
        rc = run_score(&o, h, conf_arg(c, 0), &st, &e);
    }
    if (rc == STATUS_OK) {
        print_figures(o.out && strcmp(o.out, "-") == 0 ? stderr : stdout, &st);
        unscored = st.failed + st.bad > 0;
    }
    hub_close(h);
    json_decref(args);
    conf_free(c);
    return rc != STATUS_OK ? cmd_fail(rc, &e) : unscored ? EXIT_UNSCORED : CMD_OK;
}

/* ---- serve ---- */

struct serve_reward_opts {
    struct reward_set set;
    struct listen_opts listen;
    int64_t max_body, max_queued;
    double request_s, drain_s;
};

#define O(f) offsetof(struct serve_reward_opts, f)
static const struct conf_opt serve_reward_table[] = {
    {"max-body-mb", CONF_INT, "16", "[1,4096]", "largest request in MiB", O(max_body), "network",
     NULL},
    {"max-queued", CONF_INT, "1024", "[1,4096]",
     "samples waiting or being scored; more are answered with 503", O(max_queued), "network", NULL},
    {"request-timeout-s", CONF_FLOAT, "600", "(0,1e9]", "a request may take so long", O(request_s),
     "network", NULL},
    {"drain-timeout-s", CONF_FLOAT, "60", "[0,1e9]",
     "after SIGTERM, running requests may take so long", O(drain_s), "network", NULL},
    {0}};
#undef O

static int run_serve(const struct serve_reward_opts *o, const json_t *args, const sigset_t *signals,
                     struct err *e)
{
    struct rewardapi_opts ro;
    struct rewardapi *a = NULL;
    int rc;

    memset(&ro, 0, sizeof ro);
    listen_fill(&o->listen, &ro.http);
    ro.http.max_body = (size_t)o->max_body << 20;
    ro.http.request_s = o->request_s;
    ro.max_queued = (int)o->max_queued;
    ro.group = o->set.group;
    fill_hub(&o->set, args, &ro.hub);
    rc = rewardapi_start(&ro, &a, e);
    if (rc != STATUS_OK) {
        return rc;
    }
    printf("ready url=%s://%s:%d reward=%s\n", listen_scheme(&o->listen), o->listen.host,
           rewardapi_port(a),
           o->set.custom_rm_path ? o->set.custom_rm_path
           : o->set.rm_type      ? o->set.rm_type
                                 : "metadata.rm_type");
    fflush(stdout);
    log_info(REWARD, "signal %d: finishing what runs", listen_wait(signals));
    if (rewardapi_drain(a, o->drain_s) != STATUS_OK) {
        log_warn(REWARD, "requests were cut after %g seconds", o->drain_s);
    }
    rewardapi_stop(a);
    return STATUS_OK;
}

static int reward_serve(int argc, char **argv)
{
    struct serve_reward_opts o;
    struct conf *c = conf_new();
    json_t *args = NULL;
    sigset_t signals;
    struct err e = {0};
    int rc;

    conf_add(c, listen_table, &o.listen);
    conf_add(c, serve_reward_table, &o);
    conf_add(c, set_table, &o.set);
    rc = conf_parse(c, argc - 1, argv + 1, &e);
    if (rc == STATUS_END) {
        cmd_help("miles reward serve --port PORT [--rm-type TYPE] [--flag value ...]", c);
        conf_free(c);
        return CMD_OK;
    }
    listen_prepare(&signals);
    if (rc == STATUS_OK) {
        args = conf_dump_json(c);
        json_object_del(args, "api_key");
        json_object_del(args, "ssl_keyfile");
        rc = run_serve(&o, args, &signals, &e);
    }
    json_decref(args);
    conf_free(c);
    return rc == STATUS_OK ? CMD_OK : cmd_fail(rc, &e);
}

/* ---- the command ---- */

static void usage(FILE *out)
{
    struct buf b;

    buf_init(&b, 4096);
    hub_type_list(&b);
    fprintf(out,
            "usage: miles reward COMMAND [--flag value ...]\n\n"
            "  score FILE.jsonl   score the answers of a file\n"
            "  serve              answer over HTTP, in the protocol of remote_rm\n\n"
            "Types of reward (--rm-type): %s.\n"
            "`miles reward COMMAND --help` lists the flags of a command.\n",
            b.data);
    buf_fini(&b);
}

int cmd_reward(int argc, char **argv)
{
    if (argc < 2) {
        usage(stderr);
        return CMD_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        usage(stdout);
        return CMD_OK;
    }
    if (strcmp(argv[1], "score") == 0) {
        return reward_score(argc - 1, argv + 1);
    }
    if (strcmp(argv[1], "serve") == 0) {
        return reward_serve(argc - 1, argv + 1);
    }
    fprintf(stderr, "miles: unknown command reward %s\n\n", argv[1]);
    usage(stderr);
    return CMD_USAGE;
}
