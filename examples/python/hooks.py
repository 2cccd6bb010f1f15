"""Hooks around the trainer and its logs."""

import json
import os


def init(args):
    """--custom-megatron-init-path"""
    print(f"training {args.hf_checkpoint}")


def zero_bias(args, model, store_prefix):
    """--custom-megatron-before-log-prob-hook-path: parameters by their Hugging Face names."""
    for name, parameter in model.named_parameters():
        if name.endswith(".bias"):
            parameter.data.zero_()


def watch_norm(args, rollout_id, step_id, model, optimizer, opt_param_scheduler):
    """--custom-megatron-before-train-step-hook-path: a dict that it returns goes into the
    metrics, under train/."""
    square = sum(float((p.data.double() ** 2).sum()) for p in model.parameters())
    return {"weight_norm": square**0.5}


def shrink(args, rollout_id, step_id, model, optimizer, opt_param_scheduler):
    """The same, writing: what is written here is the model that the step updates."""
    model["model.norm.weight"].data.mul_(0.999)


def saved(args, rollout_id, ckpt_dir, hf_dir):
    """--custom-megatron-post-save-hook-path"""
    with open(os.path.join(os.path.dirname(ckpt_dir), "saved.jsonl"), "a") as out:
        out.write(json.dumps({"rollout_id": rollout_id, "ckpt": ckpt_dir, "hf": hf_dir}) + "\n")


def before_training(args):
    """--rollout-data-postprocess-path"""
    print("a rollout is about to be trained on")


def log_rollout(rollout_id, args, samples, rollout_extra_metrics, rollout_time):
    """--custom-rollout-log-function-path: True leaves the built-in rollout/ metrics out."""
    longest = max(samples, key=lambda s: s.response_length)
    print(f"rollout {rollout_id}: longest response {longest.response_length} tokens")
    return False


def log_eval(rollout_id, args, data, extra_metrics):
    """--custom-eval-rollout-log-function-path"""
    for name, one in data.items():
        print(f"evaluation {rollout_id}: {name} {sum(one['rewards']) / len(one['rewards']):.3f}")
    return False


def convert(args, samples):
    """--custom-convert-samples-to-train-data-path: the training data as Miles' trainer takes it;
    `rewards` are what advantages are made of."""
    mean = sum(s.reward for s in samples) / len(samples)
    return {
        "tokens": [s.tokens for s in samples],
        "response_lengths": [s.response_length for s in samples],
        "rewards": [s.reward - mean for s in samples],
        "raw_reward": [s.reward for s in samples],
        "loss_masks": [s.loss_mask or [1] * s.response_length for s in samples],
        "rollout_log_probs": [s.rollout_log_probs for s in samples],
        "sample_indices": [s.index for s in samples],
    }
