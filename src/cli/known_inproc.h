/* Options of `miles serve` that mean nothing where samples are drawn in the trainer's process. */
#ifndef CLI_KNOWN_INPROC_H
#define CLI_KNOWN_INPROC_H

#include "base/conf.h"

#define IN_PROCESS "of a server; samples are drawn in the trainer's process"

static const struct conf_known known_inproc[] = {
    {"sglang-max-queued-requests", CONF_INT, NULL, CONF_NOTED, IN_PROCESS, NULL},
    {"sglang-random-seed", CONF_INT, NULL, CONF_NOTED, "samples are drawn by --rollout-seed", NULL},
    {"sglang-sampling-defaults", CONF_STR, NULL, CONF_NOTED, "a run says how it samples", NULL},
    {"sglang-stream-interval", CONF_INT, NULL, CONF_NOTED, IN_PROCESS, NULL},
    {"sglang-log-level", CONF_STR, NULL, CONF_NOTED, IN_PROCESS, NULL},
    {"sglang-weight-version", CONF_STR, NULL, CONF_NOTED, IN_PROCESS, NULL},
    {"sglang-tool-call-parser", CONF_STR, NULL, CONF_NOTED, IN_PROCESS, NULL},
    {"sglang-reasoning-parser", CONF_STR, NULL, CONF_NOTED, IN_PROCESS, NULL},
    {"sglang-chunked-prefill-size", CONF_INT, NULL, CONF_NOTED,
     "how a prompt is cut into steps changes no bit", NULL},
    {"sglang-max-total-tokens", CONF_INT, NULL, CONF_NOTED,
     "the cache is sized by --sglang-mem-fraction-static, or by what the samples need",
     "[1,1073741824]"},
    {0}};

#undef IN_PROCESS

#endif
