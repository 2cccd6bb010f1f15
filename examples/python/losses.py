"""Losses with torch: the log-probs and entropies that they get carry gradients."""

import torch

from miles.backends.training_utils.loss import get_log_probs_and_entropy
from miles.utils.ppo_utils import compute_policy_loss


def ppo(args, batch, logits, sum_of_sample_mean):
    """--custom-loss-function-path: the clipped policy loss, as the built-in one has it."""
    _, out = get_log_probs_and_entropy(logits, with_entropy=True)
    log_probs = torch.cat(out["log_probs"])
    old = torch.cat(batch["log_probs"])
    advantages = torch.cat(batch["advantages"])
    pg_loss, clipped = compute_policy_loss(old - log_probs, advantages, args.eps_clip,
                                           args.eps_clip_high)
    pg_loss = sum_of_sample_mean(pg_loss)
    entropy = sum_of_sample_mean(torch.cat(out["entropy"]))
    loss = pg_loss - args.entropy_coef * entropy
    return loss, {"pg_loss": pg_loss.detach(), "entropy_loss": entropy.detach(),
                  "pg_clipfrac": sum_of_sample_mean(clipped)}


def soft_tis(args, *, pg_loss, train_log_probs, rollout_log_probs, loss_masks, **kwargs):
    """--custom-tis-function-path: weights between 1/2 and 2, and tokens that the trainer holds
    for very unlikely are left out."""
    train, rollout = torch.cat(train_log_probs), torch.cat(rollout_log_probs)
    ratio = torch.exp(train - rollout)
    weight = ratio.clamp(0.5, 2.0)
    keep = torch.exp(train) > 1e-6
    masks, at = [], 0
    for mask in loss_masks:
        masks.append(mask * keep[at : at + len(mask)])
        at += len(mask)
    return pg_loss * weight, masks, {"soft_tis": weight}


def sum_over_longest(total_lengths, response_lengths, loss_masks, calculate_per_token_loss=False):
    """--custom-pg-loss-reducer-function-path: every response is divided by the longest one's
    length, so that long ones do not weigh less for each token."""
    longest = max(max(response_lengths), 1)

    def reducer(x):
        parts = x.split(list(response_lengths))
        return sum((p * m).sum() for p, m in zip(parts, loss_masks)) / longest

    return reducer
