"""Which groups and samples are trained on."""

from miles.rollout.filter_hub.base_types import DynamicFilterOutput


def spread(args, samples):
    """--dynamic-sampling-filter-path: a group whose rewards are all equal teaches nothing."""
    rewards = [s.get_reward_value(args) for s in samples]
    keep = max(rewards) > min(rewards)
    return DynamicFilterOutput(keep=keep, reason=None if keep else f"all_{rewards[0]:g}")


def newest_first(args, rollout_id, buffer, num_samples):
    """--buffer-filter-path: takes groups out of the buffer, the last that came in first."""
    return [buffer.pop() for _ in range(min(num_samples, len(buffer)))]


def drop_truncated(args, groups):
    """--rollout-sample-filter-path: cut-off responses stay in the batch and have no loss."""
    for group in groups:
        for sample in group:
            sample.remove_sample = sample.status.value == "truncated"


def count(args, all_samples, data_source):
    """--rollout-all-samples-process-path: sees every sample, also those that were filtered out."""
    print(f"{sum(len(g) for g in all_samples)} samples")
