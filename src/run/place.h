/* Where samples are drawn: in this process, by servers that a run starts, or by somebody else's.
 *
 *     conf_add(c, place_table, &p);
 *     ... conf_parse ...
 *     place_resolve(&p, &train_opts, &e);         defaults and contradictions
 *     if (p.backend != PLACE_IN_PROCESS && !p.external) {
 *         place_engine_words(&p, &train_opts, &ctx, &words, &e);   what run/launch.h starts
 *     }
 *
 * Names and defaults are those of Miles where it has them. What it calls a GPU is here an equal
 * share of the machine that engines run on. */
#ifndef RUN_PLACE_H
#define RUN_PLACE_H

#include "base/conf.h"

struct cmdline;
struct err;
struct train_opts;

enum place_transfer { PLACE_BROADCAST, PLACE_P2P, PLACE_DISK_DELTA };

enum place_backend { PLACE_IN_PROCESS, PLACE_MILES, PLACE_SGLANG };

struct place_opts {
    int backend; /* enum place_backend; -1 until resolved when not given */
    int64_t num_gpus, gpus_per_engine, threads;
    int external;
    struct conf_strs addrs;
    char *command; /* of an SGLang server */
    char *api_key;
    int64_t concurrency;
    struct conf_strs sglang; /* flags for the servers, as --sglang-... */
    char *router_ip;
    int64_t router_port;
    char *router_policy;
    int64_t request_s;
    int use_router;
    struct conf_strs router; /* flags for the router, as --router-... */
    double check_s, check_timeout_s, first_wait_s, start_s, sync_s;
    double slow_factor, slow_s;
    char *engines_file; /* of engines that come and go */
    int64_t control_port;
    int check_equal, policy;
    char *disk_dir, *log_dir;
    int transfer; /* enum place_transfer */
    int delta_encoding, delta_checksum;
    char *delta_url;
    int64_t delta_full_every, delta_keep_bytes;
    double delta_keep_s;
    /* Made by place_resolve; zero before. */
    int nengines;
    int engine_threads;
    int sessions; /* 1: requests belong to sessions */
};
extern const struct conf_opt place_table[];

/* Fills backend, nengines and engine_threads. Where samples are drawn in this process, what is in
 * `sglang` is left to the caller to judge. */
int place_resolve(struct place_opts *p, const struct train_opts *t, struct err *e);

/* Of a run, what engines are told beside the options. */
struct place_run {
    int max_running, max_context; /* 0: the engine's own */
    int weights_fd;               /* number that the engine finds the weights under; -1: none */
};

/* The words that start an engine: "serve" and its flags, or SGLang's command with names in braces.
 * words need not be initialised; cmdline_fini frees them. */
int place_engine_words(const struct place_opts *p, const struct train_opts *t,
                       const struct place_run *r, struct cmdline *words, struct err *e);
/* What --sglang-NAME was given for the servers; NULL: nothing. */
const char *place_sglang_flag(const struct place_opts *p, const char *flag);
/* "router" and its flags. */
void place_router_words(const struct place_opts *p, struct cmdline *words);
/* "host:port", or that with http:// or https://, as a URL; free with mem_free. STATUS_INPUT when it
 * is another thing, or has no port. */
int place_engine_url(const char *addr, char **url, struct err *e);
/* Address i of --rollout-external-engine-addrs as a URL, or of the router that is somebody else's
 * (i -1; NULL: there is none). Free with mem_free. */
char *place_url(const struct place_opts *p, int i);

#endif
