/* The flags of Miles, Megatron and their launchers that are no option of `miles train`, each with
 * its answer: refused with the sentence that says why or what to give instead, or accepted with
 * that sentence in the log where it cannot change what a run computes. A flag that gets built moves
 * from here into its module's option table; docs/miles-flags.tsv is made from both
 * (tools/flags_doc.sh).
 */
#ifndef CLI_KNOWN_FLAGS_H
#define CLI_KNOWN_FLAGS_H

#include "base/conf.h"

#define ONE_HOST   "one process on this host trains; how many ranks there are changes no bit"
#define LAYOUT     "one process holds the whole model; no way to split it changes a bit"
#define ONE_KERNEL "there is one kernel of each kind, and it is deterministic"
#define NO_RAY     "there is no Ray: trainer, rollout and buffers are this process"
#define NO_LINEAR  "no model with linear attention is computed yet"
#define NO_SPARSE  "no model with sparse attention is computed yet"
#define DENSE      "no model with experts is computed yet; in a dense one nothing is routed"
#define DEAD       "Miles itself reads it nowhere"
#define FT         "always so: lost engines are started again, a killed run goes on from its checkpoint"
#define WSYNC                                                                                      \
    "engines read the trainer's memory, or a folder (--update-weight-disk-dir), and prove by "     \
    "checksums what they have"
#define EVAL_HERE "evaluation runs on the run's own engines at the same weights: the same answers"
#define DUMPER                                                                                     \
    "it compares the passes of engine and trainer by their activations: here both are one pass, "  \
    "and a log-prob that differs is an error"
#define PROFILER "torch's profiler has nothing to see here; metrics have the seconds of each phase"
#define HASHES                                                                                     \
    "hashes.jsonl in the run folder has the hash of every tensor after every step; `miles diff` "  \
    "compares two runs"
#define HF_STEP "a Hugging Face folder holds one state: give the folder of the one that is meant"
#define HOOKS   "hooks of the trainer are planned"
#define PLUGINS "this extension point is planned"

static const struct conf_known known_flags[] = {
    /* Cluster, placement, offload */
    {"actor-num-nodes", CONF_INT, "1", CONF_NOTED, ONE_HOST, "[1,65536]"},
    {"actor-num-gpus-per-node", CONF_INT, "8", CONF_NOTED, ONE_HOST, "[1,65536]"},
    {"critic-num-nodes", CONF_INT, NULL, CONF_NOTED, ONE_HOST, "[1,65536]"},
    {"critic-num-gpus-per-node", CONF_INT, NULL, CONF_NOTED, ONE_HOST, "[1,65536]"},
    {"num-gpus-per-node", CONF_INT, "8", CONF_NOTED, ONE_HOST, "[1,65536]"},
    {"offload", CONF_SWITCH, NULL, CONF_NOTED,
     "trainer and engine work on one copy of the weights in the host's memory: nothing is moved "
     "out",
     NULL},
    {"offload-train", CONF_BOOL, NULL, CONF_NOTED,
     "trainer and engine work on one copy of the weights in the host's memory: nothing is moved "
     "out",
     NULL},
    {"offload-rollout", CONF_BOOL, NULL, CONF_NOTED,
     "trainer and engine work on one copy of the weights in the host's memory: nothing is moved "
     "out",
     NULL},
    {"offload-rollout-level", CONF_STRS, "kv_cache weight", CONF_NOTED,
     "nothing is moved out of memory between phases", NULL},
    {"offload-train-target", CONF_CHOICE, "cpu", CONF_NOTED,
     "nothing is moved out of memory between phases", "cpu|disk"},
    {"stream-optimizer-state-to-disk", CONF_SWITCH, NULL, CONF_NOTED,
     "the optimizer's state stays in memory; --use-precision-aware-optimizer with bf16 moments "
     "takes half",
     NULL},
    {"stream-optimizer-state-moment-dtype", CONF_STR, "fp32", CONF_NEVER,
     "moments are not streamed: give --use-precision-aware-optimizer with --exp-avg-dtype and "
     "--exp-avg-sq-dtype",
     NULL},
    {"offload-train-disk-dir", CONF_STR, NULL, CONF_NOTED,
     "nothing is moved to disk between phases", NULL},
    {"offload-train-disk-chunk-mb", CONF_INT, "256", CONF_NOTED,
     "nothing is moved to disk between phases", NULL},
    {"distributed-backend", CONF_STR, "nccl", CONF_NOTED,
     "one process trains: there are no collectives", NULL},
    {"distributed-timeout-minutes", CONF_INT, "10", CONF_NOTED,
     "one process trains: there are no collectives", "[1,1000000]"},
    {"pin-rollout-manager-to-head", CONF_SWITCH, NULL, CONF_NOTED, NO_RAY, NULL},
    {"object-store-backend", CONF_CHOICE, "ray", CONF_NOTED, NO_RAY, "ray|mooncake"},
    {"mooncake-store-init-kwargs", CONF_JSON, NULL, CONF_NOTED, NO_RAY, NULL},
    {"mooncake-replica-num", CONF_INT, "1", CONF_NOTED, NO_RAY, NULL},
    {"use-distributed-post", CONF_SWITCH, NULL, CONF_NOTED,
     "one event loop of libcurl sends all requests", NULL},
    {"http-proxy", CONF_STR, NULL, CONF_NOTED,
     "Miles reads it nowhere either; proxies come from http_proxy and https_proxy in the "
     "environment",
     NULL},
    /* Train backend */
    {"qkv-format", CONF_CHOICE, "thd", CONF_NOTED,
     "rows are packed; padding would compute the same bits", "thd|bshd"},
    {"linear-attention-backend", CONF_CHOICE, "fla", CONF_NOTED, NO_LINEAR, "fla|flashqla"},
    {"miles-dsa-topk-backend", CONF_CHOICE, "torch", CONF_NOTED, NO_SPARSE, "torch|flashinfer"},
    {"dsa-attention-backend", CONF_CHOICE, "tilelang", CONF_NOTED, NO_SPARSE, "megatron|tilelang"},
    {"train-env-vars", CONF_JSON, "{}", CONF_NOTED,
     "the trainer is this process: its environment is the one it was started with", NULL},
    {"train-memory-margin-bytes", CONF_INT, "1073741824", CONF_NOTED,
     "memory is planned before the first step and shown; there is no caching allocator to leave a "
     "margin",
     NULL},
    {"rematerialize-param-from-master-weight", CONF_SWITCH, NULL, CONF_NOTED,
     "a weight and its master are one value: bf16 and the 16 bits it lacks", NULL},
    {"check-rematerialize-param-from-master-weight", CONF_SWITCH, NULL, CONF_NOTED,
     "a weight and its master are one value: bf16 and the 16 bits it lacks", NULL},
    {"megatron-to-hf-mode", CONF_CHOICE, "raw", CONF_NOTED,
     "weights have Hugging Face's names and layout from the start: nothing is converted",
     "raw|bridge"},
    {"extra-high-precision-layers-hf", CONF_STRS, NULL, CONF_NOTED,
     "every layer is bf16: none is quantised", NULL},
    {"extra-high-precision-layers-megatron", CONF_STRS, NULL, CONF_NOTED,
     "every layer is bf16: none is quantised", NULL},
    {"recompute-loss-function", CONF_SWITCH, NULL, CONF_NOTED,
     "the loss keeps no logits between the passes", NULL},
    {"indep-dp", CONF_SWITCH, NULL, CONF_NOTED, ONE_HOST, NULL},
    {"delay-split-train-data-by-dp", CONF_SWITCH, NULL, CONF_NOTED, ONE_HOST, NULL},
    {"allgather-cp", CONF_SWITCH, NULL, CONF_NOTED, ONE_HOST, NULL},
    {"low-memory-resume", CONF_SWITCH, NULL, CONF_NOTED,
     "a checkpoint is read into the memory it stays in", NULL},
    {"mfu-peak-tflops", CONF_FLOAT, NULL, CONF_NOTED, "no share of a peak is reported", NULL},
    {"model-name", CONF_STR, NULL, CONF_NOTED, "the family is read from config.json", NULL},
    {"padded-vocab-size", CONF_INT, NULL, CONF_NOTED,
     "the vocabulary is not padded: sums run over the real one", NULL},
    {"freeze-indexer", CONF_SWITCH, NULL, CONF_NOTED, NO_SPARSE, NULL},
    {"config", CONF_STR, NULL, CONF_NEVER,
     "give the file as --custom-config-path: it takes the same keys", NULL},
    {"optimizer", CONF_STR, "adam", CONF_NEVER, "AdamW is the optimizer", NULL},
    {"use-checkpoint-lr-scheduler", CONF_BOOL, "true", CONF_NEVER,
     "a resumed run always goes on at its place in the schedule; --finetune begins anew", NULL},
    {"override-lr-scheduler", CONF_BOOL, "false", CONF_NEVER,
     "the schedule's shape always comes from the flags, the place in it from the checkpoint; "
     "--finetune begins anew",
     NULL},
    {"warmup-ratio", CONF_FLOAT, "0.03", CONF_NEVER, "give --lr-warmup-fraction", NULL},
    {"attn-implementation", CONF_STR, "flash_attention_2", CONF_NOTED, ONE_KERNEL, NULL},
    {"fp16", CONF_BOOL, "false", CONF_NEVER, "weights and activations are bf16", NULL},
    {"keep-fp32-master", CONF_BOOL, "true", CONF_NEVER, "masters always have 32 bits", NULL},
    {"fsdp-state-dict-cpu-offload", CONF_BOOL, "true", CONF_NOTED, ONE_HOST, NULL},
    {"fsdp-cpu-offload", CONF_BOOL, "false", CONF_NOTED, ONE_HOST, NULL},
    {"fsdp-cpu-backend", CONF_STR, "gloo", CONF_NOTED, ONE_HOST, NULL},
    {"dp-replicate-size", CONF_INT, "1", CONF_NOTED, ONE_HOST, "[1,65536]"},
    {"deterministic-mode", CONF_BOOL, "false", CONF_NOTED,
     "always so: the same run gives the same bits", NULL},
    {"context-parallel-size", CONF_INT, "1", CONF_NOTED, LAYOUT, "[1,65536]"},
    {"record-memory-history", CONF_SWITCH, NULL, CONF_NOTED,
     "the log has a plan of the memory before the first step, metrics the peak of every step",
     NULL},
    {"memory-snapshot-path", CONF_STR, "snapshot.pickle", CONF_NOTED,
     "the log has a plan of the memory before the first step, metrics the peak of every step",
     NULL},
    {"use-pytorch-profiler", CONF_SWITCH, NULL, CONF_NOTED, PROFILER, NULL},
    {"profile-step-start", CONF_INT, "10", CONF_NOTED, PROFILER, NULL},
    {"profile-step-end", CONF_INT, "12", CONF_NOTED, PROFILER, NULL},
    /* Rollout */
    {"custom-async-data-buffer-path", CONF_STR, NULL, CONF_LATER, PLUGINS, NULL},
    {"update-weight-buffer-size", CONF_INT, "536870912", CONF_NOTED, WSYNC, NULL},
    {"pause-generation-mode", CONF_STR, "retract", CONF_NEVER,
     "a sample that runs when weights change computes its beginning again: rows of two versions "
     "are never mixed, and nothing is thrown away",
     NULL},
    {"update-weight-local-checkpoint-dir", CONF_STR, NULL, CONF_NOTED,
     "engines change their weights in memory, not in a folder of their host", NULL},
    {"custom-update-weight-post-write-path", CONF_STR, NULL, CONF_NEVER,
     "engines are told of weights when all of them are there: no files are patched in between",
     NULL},
    {"p2p-transfer-num-workers", CONF_INT, "4", CONF_NOTED, WSYNC, NULL},
    {"p2p-transfer-timeout", CONF_FLOAT, "30", CONF_NOTED, WSYNC, NULL},
    {"prefill-num-servers", CONF_INT, NULL, CONF_NOTED,
     "every engine computes prompts and decodes; splitting that changes no bit", NULL},
    {"data-pad-size-multiplier", CONF_INT, "128", CONF_NOTED, "nothing is padded", NULL},
    {"rollout-buffer-url", CONF_STR, NULL, CONF_NOTED, DEAD, NULL},
    {"fetch-trajectory-retry-times", CONF_INT, "-1", CONF_NOTED, DEAD, NULL},
    {"min-batch-collection-ratio", CONF_FLOAT, "1", CONF_NOTED, DEAD, NULL},
    {"rollout-task-type", CONF_STR, "math", CONF_NOTED, DEAD, NULL},
    /* Data and batching */
    {"multimodal-keys", CONF_JSON, NULL, CONF_LATER, "models that see are planned", NULL},
    /* Evaluation */
    {"eval-min-new-tokens", CONF_INT, NULL, CONF_NOTED, DEAD, NULL},
    {"eval-max-context-len", CONF_INT, NULL, CONF_NOTED, DEAD, NULL},
    {"eval-num-gpus", CONF_INT, "0", CONF_NOTED, EVAL_HERE, NULL},
    {"eval-num-gpus-per-engine", CONF_INT, "1", CONF_NOTED, EVAL_HERE, NULL},
    {"eval-hf-dir", CONF_STR, NULL, CONF_NOTED, EVAL_HERE, NULL},
    {"eval-max-in-flight", CONF_INT, "2", CONF_NOTED, EVAL_HERE, NULL},
    {"eval-overflow-policy", CONF_CHOICE, "backpressure", CONF_NOTED, EVAL_HERE,
     "backpressure|skip"},
    {"eval-keep-snapshots", CONF_INT, "2", CONF_NOTED, EVAL_HERE, NULL},
    /* RL algorithm */
    /* Replay (R3 and indexer) */
    {"use-routing-replay", CONF_SWITCH, NULL, CONF_NOTED, DENSE, NULL},
    {"use-rollout-routing-replay", CONF_SWITCH, NULL, CONF_NOTED, DENSE, NULL},
    {"use-indexer-replay", CONF_SWITCH, NULL, CONF_NOTED, NO_SPARSE, NULL},
    {"use-rollout-indexer-replay", CONF_SWITCH, NULL, CONF_NOTED, NO_SPARSE, NULL},
    /* On-policy distillation (OPD) */
    {"opd-teacher-ckpt-step", CONF_INT, NULL, CONF_NEVER, HF_STEP, NULL},
    /* LoRA and multi-LoRA */
    {"lora-rank", CONF_INT, "0", CONF_LATER, "LoRA is planned; all weights are trained", NULL},
    {"lora-alpha", CONF_INT, "16", CONF_LATER, "LoRA is planned; all weights are trained", NULL},
    {"lora-dropout", CONF_FLOAT, "0", CONF_LATER, "LoRA is planned; all weights are trained", NULL},
    {"lora-type", CONF_STR, "lora", CONF_LATER, "LoRA is planned; all weights are trained", NULL},
    {"target-modules", CONF_STR, NULL, CONF_LATER, "LoRA is planned; all weights are trained",
     NULL},
    {"exclude-modules", CONF_STR, NULL, CONF_LATER, "LoRA is planned; all weights are trained",
     NULL},
    {"lora-adapter-path", CONF_STR, NULL, CONF_LATER, "LoRA is planned; all weights are trained",
     NULL},
    {"lora-sync-from-tensor", CONF_SWITCH, NULL, CONF_NOTED, DEAD, NULL},
    {"lora-base-cpu-backup", CONF_SWITCH, NULL, CONF_LATER,
     "LoRA is planned; all weights are trained", NULL},
    {"lora-train-only", CONF_SWITCH, NULL, CONF_LATER, "LoRA is planned; all weights are trained",
     NULL},
    {"experts-shared-outer-loras", CONF_SWITCH, NULL, CONF_LATER,
     "LoRA is planned; all weights are trained", NULL},
    {"no-sglang-lora-use-virtual-experts", CONF_SWITCH, NULL, CONF_LATER,
     "LoRA is planned; all weights are trained", NULL},
    {"check-lora-weight-equal", CONF_SWITCH, NULL, CONF_LATER,
     "LoRA is planned; all weights are trained", NULL},
    {"multi-lora-n-adapters", CONF_INT, "0", CONF_LATER, "many adapters in one run are planned",
     NULL},
    {"multi-lora-adapter", CONF_STRS, NULL, CONF_LATER, "many adapters in one run are planned",
     NULL},
    {"multi-lora-idle-poll-s", CONF_FLOAT, "5", CONF_LATER, "many adapters in one run are planned",
     NULL},
    {"multi-lora-http-server-path", CONF_STR, NULL, CONF_LATER,
     "many adapters in one run are planned", NULL},
    {"multi-lora-backend-path", CONF_STR, NULL, CONF_LATER, "many adapters in one run are planned",
     NULL},
    {"multi-lora-api-port", CONF_INT, "8068", CONF_LATER, "many adapters in one run are planned",
     NULL},
    {"multi-lora-disable-service-mode", CONF_SWITCH, NULL, CONF_LATER,
     "many adapters in one run are planned", NULL},
    {"multi-lora-max-adapter-global-batch-size", CONF_INT, NULL, CONF_LATER,
     "many adapters in one run are planned", NULL},
    {"multi-lora-max-coalesce-wait-s", CONF_FLOAT, "0.5", CONF_LATER,
     "many adapters in one run are planned", NULL},
    {"multi-lora-max-empty-wait-s", CONF_FLOAT, "30", CONF_LATER,
     "many adapters in one run are planned", NULL},
    /* Reward */
    /* Checkpoint */
    {"ref-ckpt-step", CONF_INT, NULL, CONF_NEVER, HF_STEP, NULL},
    /* MTP / speculative decoding */
    {"mtp-num-layers", CONF_INT, NULL, CONF_LATER, "multi-token prediction is planned", NULL},
    {"mtp-loss-scaling-factor", CONF_FLOAT, "0.2", CONF_LATER, "multi-token prediction is planned",
     NULL},
    {"enable-mtp-training", CONF_SWITCH, NULL, CONF_LATER, "multi-token prediction is planned",
     NULL},
    /* Fault tolerance */
    {"use-fault-tolerance", CONF_SWITCH, NULL, CONF_NOTED, FT, NULL},
    {"ft-components", CONF_STRS, "rollout", CONF_NOTED, FT, NULL},
    {"trainer-heartbeat-checker-interval", CONF_FLOAT, "10", CONF_NOTED,
     "the trainer is this process: who starts it sees it end", NULL},
    {"trainer-heartbeat-checker-timeout", CONF_FLOAT, "10", CONF_NOTED,
     "the trainer is this process: who starts it sees it end", NULL},
    {"trainer-heartbeat-checker-first-wait", CONF_FLOAT, "300", CONF_NOTED,
     "the trainer is this process: who starts it sees it end", NULL},
    {"trainer-heartbeat-checker-failure-threshold", CONF_INT, "3", CONF_NOTED,
     "the trainer is this process: who starts it sees it end", NULL},
    {"mini-ft-controller-enable", CONF_SWITCH, NULL, CONF_NOTED, FT, NULL},
    {"mini-ft-controller-poll-interval", CONF_FLOAT, "10", CONF_NOTED, FT, NULL},
    {"mini-ft-controller-resume-delay", CONF_FLOAT, "10", CONF_NOTED, FT, NULL},
    /* Observability */
    {"log-correct-samples", CONF_SWITCH, NULL, CONF_LATER,
     "these figures are planned; saved samples have rewards and lengths", NULL},
    {"use-prometheus", CONF_SWITCH, NULL, CONF_LATER,
     "a Prometheus endpoint of a run is planned; servers and router have /metrics", NULL},
    {"prometheus-port", CONF_INT, NULL, CONF_LATER,
     "a Prometheus endpoint of a run is planned; servers and router have /metrics", NULL},
    {"prometheus-run-name", CONF_STR, NULL, CONF_LATER,
     "a Prometheus endpoint of a run is planned; servers and router have /metrics", NULL},
    {"use-miles-dashboard", CONF_SWITCH, NULL, CONF_LATER, "a dashboard is planned", NULL},
    {"dashboard-flush-interval", CONF_FLOAT, "5", CONF_LATER, "a dashboard is planned", NULL},
    {"dashboard-gpu-sample-interval", CONF_FLOAT, "1", CONF_LATER, "a dashboard is planned", NULL},
    {"dashboard-sglang-scrape-interval", CONF_FLOAT, "2", CONF_LATER, "a dashboard is planned",
     NULL},
    {"dashboard-sglang-scrape-mode", CONF_STR, "auto", CONF_LATER, "a dashboard is planned", NULL},
    {"dashboard-sglang-metrics", CONF_STR, NULL, CONF_LATER, "a dashboard is planned", NULL},
    {"dashboard-forward-prometheus", CONF_SWITCH, NULL, CONF_LATER, "a dashboard is planned", NULL},
    /* Debug, reproduction, CI */
    {"save-debug-event-data", CONF_STR, NULL, CONF_NEVER,
     "events are in the ledger of the run folder, ledger.db: an SQLite file", NULL},
    {"dumper-enable", CONF_SWITCH, NULL, CONF_NEVER, DUMPER, NULL},
    {"dumper-dir", CONF_STR, NULL, CONF_NEVER, DUMPER, NULL},
    {"dumper-inference", CONF_STRS, NULL, CONF_NEVER, DUMPER, NULL},
    {"dumper-fwd-only", CONF_STRS, NULL, CONF_NEVER, DUMPER, NULL},
    {"dumper-fwd-bwd", CONF_STRS, NULL, CONF_NEVER, DUMPER, NULL},
    {"dumper-source-patcher-config-inference", CONF_STR, NULL, CONF_NEVER, DUMPER, NULL},
    {"dumper-source-patcher-config-train", CONF_STR, NULL, CONF_NEVER, DUMPER, NULL},
    {"memory-snapshot-dir", CONF_STR, ".", CONF_NOTED,
     "the log has a plan of the memory before the first step, metrics the peak of every step",
     NULL},
    {"memory-snapshot-num-steps", CONF_INT, NULL, CONF_NOTED,
     "the log has a plan of the memory before the first step, metrics the peak of every step",
     NULL},
    {"memory-recorder", CONF_CHOICE, "torch", CONF_NOTED,
     "the log has a plan of the memory before the first step, metrics the peak of every step",
     "torch|memray"},
    {"profile-target", CONF_STRS, "train_overall", CONF_NOTED, PROFILER, NULL},
    {"check-weight-update-selector", CONF_CHOICE, "all", CONF_NOTED,
     "there are no draft weights: all are compared", "all|target|draft"},
    {"check-weight-update-skip-list", CONF_STRS, NULL, CONF_NOTED, "all tensors are compared",
     NULL},
    {"check-weight-update-allow-quant-error", CONF_SWITCH, NULL, CONF_NOTED,
     "nothing is quantised: weights must be equal", NULL},
    {"save-local-weight-checksum", CONF_SWITCH, NULL, CONF_NOTED, HASHES, NULL},
    {"enable-event-analyzer", CONF_SWITCH, NULL, CONF_NOTED,
     "the ledger of a run has every answer and reward that it trained on; `miles replay` holds the "
     "run against it",
     NULL},
    {"enable-witness", CONF_SWITCH, NULL, CONF_NOTED,
     "the ledger of a run has every answer and reward that it trained on; `miles replay` holds the "
     "run against it",
     NULL},
    {"witness-buffer-size", CONF_INT, "1048576", CONF_NOTED,
     "the ledger of a run has every answer and reward that it trained on; `miles replay` holds the "
     "run against it",
     NULL},
    {"env-report", CONF_JSON, NULL, CONF_NOTED,
     "`miles report` packs what a bug report needs: configuration, manifest, machine, logs", NULL},
    {"debug-deterministic-collective", CONF_SWITCH, NULL, CONF_NOTED,
     "always so: sums are exact in any order", NULL},
    {"ci-disable-weight-update-checker", CONF_SWITCH, NULL, CONF_NOTED,
     "every weight transfer is proven by checksums", NULL},
    {"ci-save-model-hash", CONF_SWITCH, NULL, CONF_NOTED, HASHES, NULL},
    {"ci-check-model-hash", CONF_SWITCH, NULL, CONF_NOTED, HASHES, NULL},
    {"ci-ft-test-actions", CONF_JSON, NULL, CONF_NEVER,
     "faults are made by this project's own tests", NULL},
    {"ci-inject-rollout-data-path", CONF_STR, NULL, CONF_NEVER,
     "give --load-debug-rollout-data: a run draws the same samples again, so there is nothing to "
     "hold them against",
     NULL},
    {"ci-inject-rollout-data-start-rollout-id", CONF_INT, NULL, CONF_NEVER,
     "give --load-debug-rollout-data: a run draws the same samples again, so there is nothing to "
     "hold them against",
     NULL},
    {"ci-inject-rollout-data-min-match-ratio", CONF_FLOAT, "0.9", CONF_NEVER,
     "give --load-debug-rollout-data: a run draws the same samples again, so there is nothing to "
     "hold them against",
     NULL},
    /* Misc */
    {"miles-router-timeout", CONF_FLOAT, NULL, CONF_NEVER,
     "give --sglang-router-request-timeout-secs", NULL},
    {"miles-router-max-connections", CONF_INT, NULL, CONF_NOTED,
     "the router opens connections as requests need them", NULL},
    {"miles-router-health-check-failure-threshold", CONF_INT, "3", CONF_NEVER,
     "give --router-health-failure-threshold", NULL},
    /* Engine and router */
    {"sglang-config", CONF_STR, NULL, CONF_LATER,
     "several models and kinds of engines in one run are planned", NULL},
    /* Megatron */
    {"no-rope-fusion", CONF_SWITCH, NULL, CONF_NOTED, ONE_KERNEL, NULL},
    {"no-masked-softmax-fusion", CONF_SWITCH, NULL, CONF_NOTED, ONE_KERNEL, NULL},
    {"no-bias-swiglu-fusion", CONF_SWITCH, NULL, CONF_NOTED, ONE_KERNEL, NULL},
    {"no-bias-dropout-fusion", CONF_SWITCH, NULL, CONF_NOTED, ONE_KERNEL, NULL},
    {"no-gradient-accumulation-fusion", CONF_SWITCH, NULL, CONF_NOTED, ONE_KERNEL, NULL},
    {"use-distributed-optimizer", CONF_SWITCH, NULL, CONF_NOTED, LAYOUT, NULL},
    {"overlap-grad-reduce", CONF_SWITCH, NULL, CONF_NOTED, LAYOUT, NULL},
    {"overlap-param-gather", CONF_SWITCH, NULL, CONF_NOTED, LAYOUT, NULL},
    {"bf16", CONF_SWITCH, NULL, CONF_NOTED, "always so", NULL},
    {"use-flash-attn", CONF_SWITCH, NULL, CONF_NOTED, ONE_KERNEL, NULL},
    {"seq-length", CONF_INT, NULL, CONF_NOTED,
     "the context comes from config.json, or --sglang-context-length", "[1,1073741824]"},
    {"max-position-embeddings", CONF_INT, NULL, CONF_NOTED,
     "the context comes from config.json, or --sglang-context-length", "[1,1073741824]"},
    {"num-workers", CONF_INT, "2", CONF_NOTED, "prompts are read by the threads that tokenise them",
     NULL},
    {"tokenizer-type", CONF_STR, NULL, CONF_NOTED, "the tokenizer is the one of --hf-checkpoint",
     NULL},
    {"tensor-model-parallel-size", CONF_INT, "1", CONF_NOTED, LAYOUT, "[1,65536]"},
    {"pipeline-model-parallel-size", CONF_INT, "1", CONF_NOTED, LAYOUT, "[1,65536]"},
    {"expert-model-parallel-size", CONF_INT, "1", CONF_NOTED, LAYOUT, "[1,65536]"},
    {"expert-tensor-parallel-size", CONF_INT, "1", CONF_NOTED, LAYOUT, "[1,65536]"},
    {"sequence-parallel", CONF_SWITCH, NULL, CONF_NOTED, LAYOUT, NULL},
    {"attention-dropout", CONF_FLOAT, "0", CONF_NEVER,
     "nothing is dropped out: post-training is without", NULL},
    {"hidden-dropout", CONF_FLOAT, "0", CONF_NEVER,
     "nothing is dropped out: post-training is without", NULL},
    {"attention-softmax-in-fp32", CONF_SWITCH, NULL, CONF_NOTED, "always so", NULL},
    {"attention-backend", CONF_CHOICE, NULL, CONF_NOTED, ONE_KERNEL,
     "flash|fused|unfused|local|auto"},
    {"transformer-impl", CONF_STR, NULL, CONF_NOTED, ONE_KERNEL, NULL},
    {"spec", CONF_STRS, NULL, CONF_LATER,
     "models come from config.json; specs of one's own are planned as plugins", NULL},
    {"make-vocab-size-divisible-by", CONF_INT, NULL, CONF_NOTED,
     "the vocabulary is not padded: sums run over the real one", "[1,1073741824]"},
    {"accumulate-allreduce-grads-in-fp32", CONF_SWITCH, NULL, CONF_NOTED,
     "always more than that: gradients are summed exactly", NULL},
    {"main-params-dtype", CONF_STR, "fp32", CONF_NEVER, "masters always have 32 bits", NULL},
    {"main-grads-dtype", CONF_STR, "fp32", CONF_NEVER, "gradients are summed exactly", NULL},
    {"optimizer-cpu-offload", CONF_SWITCH, NULL, CONF_NOTED,
     "the optimizer's state is in the host's memory", NULL},
    {"overlap-cpu-optimizer-d2h-h2d", CONF_SWITCH, NULL, CONF_NOTED,
     "the optimizer's state is in the host's memory", NULL},
    {"fp8-format", CONF_STR, NULL, CONF_LATER, "low precision is planned; everything is bf16",
     NULL},
    {"fp8-recipe", CONF_STR, NULL, CONF_LATER, "low precision is planned; everything is bf16",
     NULL},
    {"no-check-for-nan-in-loss-and-grad", CONF_SWITCH, NULL, CONF_NEVER,
     "a loss or gradient that is no number ends the run", NULL},
    {"no-load-rng", CONF_SWITCH, NULL, CONF_NOTED,
     "there is no generator's state: random numbers are counted", NULL},
    /* whole families; last, so that exact names win */
    {"moe-*", CONF_STRS, NULL, CONF_NOTED, DENSE, NULL},
    {"fp4-*", CONF_STRS, NULL, CONF_LATER, "low precision is planned; everything is bf16", NULL},
    {"eval-sglang-*", CONF_STRS, NULL, CONF_NOTED, EVAL_HERE, NULL},
    {0}};

#undef ONE_HOST
#undef LAYOUT
#undef ONE_KERNEL
#undef NO_RAY
#undef NO_LINEAR
#undef NO_SPARSE
#undef DENSE
#undef DEAD
#undef FT
#undef WSYNC
#undef EVAL_HERE
#undef DUMPER
#undef PROFILER
#undef HASHES
#undef HF_STEP
#undef HOOKS
#undef PLUGINS

#endif
