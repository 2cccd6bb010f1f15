/* What is said to SGLang's flags by the native engine. SGLang servers that a run starts get every
 * flag as it is. */
#ifndef CLI_KNOWN_SGLANG_H
#define CLI_KNOWN_SGLANG_H

#include "base/conf.h"

#define KERNELS "there is one kernel of each kind, and it is deterministic"
#define GRAPHS  "the native engine has no graphs to capture"
#define PARTS   "an engine is one process with the whole model; no way to split it changes a bit"
#define CHUNKS  "how a prompt is cut into steps changes no bit"
#define DRAFT   "the native engine drafts nothing; drafts would change no token, only time"

/* `miles serve` has options of some of these names; the option wins there. */
static const struct conf_known known_sglang[] = {
    /* kernels and graphs */
    {"sglang-attention-backend", CONF_STR, NULL, CONF_NOTED, KERNELS, NULL},
    {"sglang-prefill-attention-backend", CONF_STR, NULL, CONF_NOTED, KERNELS, NULL},
    {"sglang-decode-attention-backend", CONF_STR, NULL, CONF_NOTED, KERNELS, NULL},
    {"sglang-sampling-backend", CONF_STR, NULL, CONF_NOTED, KERNELS, NULL},
    {"sglang-grammar-backend", CONF_STR, NULL, CONF_NOTED, KERNELS, NULL},
    {"sglang-fp8-gemm-backend", CONF_STR, NULL, CONF_NOTED, KERNELS, NULL},
    {"sglang-moe-runner-backend", CONF_STR, NULL, CONF_NOTED, KERNELS, NULL},
    {"sglang-moe-a2a-backend", CONF_STR, NULL, CONF_NOTED, KERNELS, NULL},
    {"sglang-deepep-mode", CONF_STR, NULL, CONF_NOTED, KERNELS, NULL},
    {"sglang-nsa-*", CONF_STRS, NULL, CONF_NOTED, KERNELS, NULL},
    {"sglang-cuda-graph-bs", CONF_STRS, NULL, CONF_NOTED, GRAPHS, NULL},
    {"sglang-cuda-graph-max-bs", CONF_INT, NULL, CONF_NOTED, GRAPHS, NULL},
    {"sglang-disable-cuda-graph", CONF_SWITCH, NULL, CONF_NOTED, GRAPHS, NULL},
    {"sglang-disable-cuda-graph-padding", CONF_SWITCH, NULL, CONF_NOTED, GRAPHS, NULL},
    {"sglang-disable-piecewise-cuda-graph", CONF_SWITCH, NULL, CONF_NOTED, GRAPHS, NULL},
    {"sglang-enable-torch-compile", CONF_SWITCH, NULL, CONF_NOTED, GRAPHS, NULL},
    /* layout */
    {"sglang-tp-size", CONF_INT, NULL, CONF_NOTED, PARTS, "[1,65536]"},
    {"sglang-dp-size", CONF_INT, NULL, CONF_NOTED, PARTS, "[1,65536]"},
    {"sglang-pp-size", CONF_INT, NULL, CONF_NOTED, PARTS, "[1,65536]"},
    {"sglang-ep-size", CONF_INT, NULL, CONF_NOTED, PARTS, "[1,65536]"},
    {"sglang-moe-dense-tp-size", CONF_INT, NULL, CONF_NOTED, PARTS, "[1,65536]"},
    {"sglang-enable-dp-attention", CONF_SWITCH, NULL, CONF_NOTED, PARTS, NULL},
    {"sglang-enable-dp-lm-head", CONF_SWITCH, NULL, CONF_NOTED, PARTS, NULL},
    {"sglang-enable-ep-moe", CONF_SWITCH, NULL, CONF_NOTED, PARTS, NULL},
    {"sglang-enable-deepep-moe", CONF_SWITCH, NULL, CONF_NOTED, PARTS, NULL},
    {"sglang-page-size", CONF_INT, NULL, CONF_NOTED, "pages have 64 tokens; never changes a bit",
     "[1,65536]"},
    {"sglang-max-prefill-tokens", CONF_INT, NULL, CONF_NOTED, CHUNKS, NULL},
    {"sglang-schedule-policy", CONF_STR, NULL, CONF_NOTED, "the order of samples changes no token",
     NULL},
    {"sglang-schedule-conservativeness", CONF_FLOAT, NULL, CONF_NOTED,
     "the order of samples changes no token", NULL},
    {"sglang-disable-radix-cache", CONF_SWITCH, NULL, CONF_NOTED,
     "what is cached or overlapped changes no token", NULL},
    {"sglang-disable-overlap-schedule", CONF_SWITCH, NULL, CONF_NOTED,
     "what is cached or overlapped changes no token", NULL},
    {"sglang-enable-mixed-chunk", CONF_SWITCH, NULL, CONF_NOTED,
     "what is cached or overlapped changes no token", NULL},
    /* precision */
    {"sglang-dtype", CONF_CHOICE, "bfloat16", CONF_LATER, "everything is bf16", "auto|bfloat16"},
    {"sglang-quantization", CONF_STR, NULL, CONF_LATER,
     "low precision is planned; weights and cache are bf16", NULL},
    {"sglang-kv-cache-dtype", CONF_STR, NULL, CONF_LATER,
     "low precision is planned; weights and cache are bf16", NULL},
    {"sglang-enable-deterministic-inference", CONF_SWITCH, NULL, CONF_NOTED, "always so", NULL},
    {"sglang-true-on-policy-contract", CONF_STR, NULL, CONF_NOTED,
     "always so: rollout and training call one forward pass", NULL},
    {"sglang-rl-on-policy-target", CONF_STR, NULL, CONF_NOTED,
     "always so: rollout and training call one forward pass", NULL},
    {"sglang-load-format", CONF_STR, NULL, CONF_NOTED, "weights are read as they are", NULL},
    {"sglang-enable-weights-cpu-backup", CONF_SWITCH, NULL, CONF_NOTED,
     "nothing is moved out of memory between phases", NULL},
    {"sglang-enable-draft-weights-cpu-backup", CONF_SWITCH, NULL, CONF_NOTED,
     "nothing is moved out of memory between phases", NULL},
    {"sglang-enable-memory-saver", CONF_SWITCH, NULL, CONF_NOTED,
     "nothing is moved out of memory between phases", NULL},
    /* speculation: a draft is accepted if it is the token that would have been drawn */
    {"sglang-speculative-algorithm", CONF_STR, NULL, CONF_NOTED, DRAFT, NULL},
    {"sglang-speculative-draft-model-path", CONF_STR, NULL, CONF_NOTED, DRAFT, NULL},
    {"sglang-speculative-num-steps", CONF_INT, NULL, CONF_NOTED, DRAFT, "[0,65536]"},
    {"sglang-speculative-eagle-topk", CONF_INT, NULL, CONF_NOTED, DRAFT, "[0,65536]"},
    {"sglang-speculative-num-draft-tokens", CONF_INT, NULL, CONF_NOTED, DRAFT, "[0,65536]"},
    {"sglang-speculative-*", CONF_STRS, NULL, CONF_NOTED, DRAFT, NULL},
    /* the rest */
    {"sglang-lora-backend", CONF_STRS, NULL, CONF_LATER, "LoRA is planned", NULL},
    {"sglang-lora-paths", CONF_STRS, NULL, CONF_LATER, "LoRA is planned", NULL},
    {"sglang-max-lora-rank", CONF_STRS, NULL, CONF_LATER, "LoRA is planned", NULL},
    {"sglang-max-loras-per-batch", CONF_STRS, NULL, CONF_LATER, "LoRA is planned", NULL},
    {"sglang-lora-target-modules", CONF_STRS, NULL, CONF_LATER, "LoRA is planned", NULL},
    {"sglang-custom-pull-weights-pre-read-hook", CONF_STR, NULL, CONF_LATER,
     "hooks of engines are planned", NULL},
    {"sglang-watchdog-timeout", CONF_FLOAT, NULL, CONF_NOTED,
     "a step that hangs is found by the health checks", "(0,1e9]"},
    {"sglang-decode-log-interval", CONF_INT, NULL, CONF_NOTED,
     "metrics have the figures of every rollout", NULL},
    {"sglang-enable-metrics", CONF_SWITCH, NULL, CONF_NOTED,
     "metrics have the figures of every rollout; servers have /metrics", NULL},
    {"sglang-enable-metrics-for-all-schedulers", CONF_SWITCH, NULL, CONF_NOTED,
     "metrics have the figures of every rollout; servers have /metrics", NULL},
    {"sglang-enable-cache-report", CONF_SWITCH, NULL, CONF_NOTED,
     "metrics have the figures of every rollout; servers have /metrics", NULL},
    {"sglang-log-requests", CONF_SWITCH, NULL, CONF_NOTED,
     "metrics have the figures of every rollout; servers have /metrics", NULL},
    {"sglang-show-time-cost", CONF_SWITCH, NULL, CONF_NOTED,
     "metrics have the figures of every rollout; servers have /metrics", NULL},
    {"sglang-tokenizer-worker-num", CONF_INT, NULL, CONF_NOTED,
     "prompts are tokenised by the trainer", NULL},
    {"sglang-trust-remote-code", CONF_SWITCH, NULL, CONF_NOTED, "there is no such code here", NULL},
    {"sglang-skip-server-warmup", CONF_SWITCH, NULL, CONF_NOTED, "there is no such code here",
     NULL},
    {"sglang-skip-tokenizer-init", CONF_SWITCH, NULL, CONF_NOTED, "there is no such code here",
     NULL},
    {"sglang-disable-custom-all-reduce", CONF_SWITCH, NULL, CONF_NOTED,
     "there is no such code here", NULL},
    {"sglang-enable-nccl-nvls", CONF_SWITCH, NULL, CONF_NOTED, "there is no such code here", NULL},
    {"sglang-device", CONF_STR, NULL, CONF_NOTED,
     "--device says what computes; servers that a run starts are on this host", NULL},
    {"sglang-host", CONF_STR, NULL, CONF_NOTED,
     "--device says what computes; servers that a run starts are on this host", NULL},
    {0}};

#undef KERNELS
#undef GRAPHS
#undef PARTS
#undef CHUNKS
#undef DRAFT

#endif
