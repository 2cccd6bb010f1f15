"""Rewards: --custom-rm-path and --custom-reward-post-process-path."""

import asyncio

from miles.utils.types import Sample


async def digits(args, sample: Sample) -> float:
    """The share of digits in the response; async, so that a slow service would not hold others."""
    await asyncio.sleep(0)
    text = sample.response.encode()
    return sum(b"0"[0] <= c <= b"9"[0] for c in text) / max(len(text), 1)


def best_of_group(args, samples):
    """With --group-rm: 1 for the shortest response of the group, else 0."""
    shortest = min(s.response_length for s in samples)
    return [1.0 if s.response_length == shortest else 0.0 for s in samples]


def centre(args, samples):
    """--custom-reward-post-process-path: (raw, shaped); here each reward minus its group's mean."""
    groups = {}
    for s in samples:
        groups.setdefault(s.group_index, []).append(s.reward)
    shaped = [s.reward - sum(groups[s.group_index]) / len(groups[s.group_index]) for s in samples]
    return [s.reward for s in samples], shaped
