"""Losses, corrections and reducers that users write with torch. The main program computes the
log-probs and entropies of all response tokens of an optimizer step; the function makes a loss of
them, autograd differentiates it, and the gradients go back. One call for each optimizer step, over
whole samples in their order: how samples are cut into micro-batches cannot be seen here."""

import inspect

from miles_c import hooks
from miles_c.memory import Memory


def torch_module():
    try:
        import torch
    except ImportError as exc:
        raise ImportError(
            "a Python loss needs torch in the interpreter of --reward-python: %s" % exc
        ) from None
    torch.set_num_threads(1)  # sums of one order on every machine
    return torch


class Logits:
    """Stands where Miles' losses get logits: it knows the log-probs and entropies of the response
    tokens, lists with a tensor for each sample that gradients flow through. The logits themselves
    stay in the main program; a loss that needs them is written in C (include/miles_plugin.h)."""

    def __init__(self, log_probs, entropy):
        self.log_probs, self.entropy = log_probs, entropy

    def __getattr__(self, name):
        raise AttributeError(
            "logits.%s: the logits are not here, only logits.log_probs and logits.entropy; "
            "a loss over all logits is a .so with the function `row`" % name
        )


def get_log_probs_and_entropy(logits, *args, with_entropy=False, **kwargs):
    """As in Miles: (nothing, {"log_probs": [...], "entropy": [...]})."""
    if not isinstance(logits, Logits):
        raise TypeError("get_log_probs_and_entropy takes the `logits` that the loss was given")
    out = {"log_probs": logits.log_probs}
    if with_entropy:
        if logits.entropy is None:
            raise ValueError("entropies are not computed in this run")
        out["entropy"] = logits.entropy
    return torch_module().empty(0), out


def get_responses(logits, *args, **kwargs):
    raise RuntimeError(
        "get_responses: the logits stay in the main program; a loss over all logits is a .so with "
        "the function `row`"
    )


def compute_approx_kl(log_probs, log_probs_base, kl_loss_type, importance_ratio=None):
    """k1, k2, k3 or low_var_kl of each token."""
    torch = torch_module()
    log_ratio = log_probs.float() - log_probs_base.float()
    if kl_loss_type == "k1":
        kl = log_ratio
    elif kl_loss_type == "k2":
        kl = log_ratio**2 / 2
    elif kl_loss_type in ("k3", "low_var_kl"):
        minus = -log_ratio
        if kl_loss_type == "low_var_kl":
            minus = torch.clamp(minus, -20.0, 20.0)
        kl = minus.exp() - 1 - minus
    else:
        raise ValueError("no kl_loss_type %s" % kl_loss_type)
    if importance_ratio is not None:
        kl = importance_ratio * kl
    return torch.clamp(kl, -10.0, 10.0) if kl_loss_type == "low_var_kl" else kl


def compute_policy_loss(ppo_kl, advantages, eps_clip, eps_clip_high, eps_clip_c=None):
    """The clipped objective of each token, and whether it was clipped; ppo_kl is old - new."""
    torch = torch_module()
    ratio = torch.clamp(-ppo_kl, -20.0, 20.0).exp()
    plain = -ratio * advantages
    clipped = -ratio.clamp(1 - eps_clip, 1 + eps_clip_high) * advantages
    loss = torch.maximum(plain, clipped)
    if eps_clip_c is not None:
        loss = torch.where(
            advantages < 0, torch.minimum(loss, -eps_clip_c * advantages), loss
        )
    return loss, torch.gt(clipped, plain).float()


class Batch:
    """The samples of a step as tensors."""

    def __init__(self, layout):
        self.torch = torch_module()
        self.m = Memory(layout)
        self.layout = layout
        self.start = self.m.torch("start").tolist()
        self.total = self.m.torch("total_lengths").tolist()
        self.denom = self.m.torch("denom").tolist()
        self.per_token = layout["per_token"]
        self.masks = self.cut("loss_mask", float)

    def cut(self, name, as_float=None):
        """A list with the part of each sample; None where the run has no such array."""
        if name not in self.m:
            return None
        x = self.m.torch(name)
        x = x.to(self.torch.float32) if as_float else x
        return self.parts(x)

    def parts(self, x):
        return [x[a:b] for a, b in zip(self.start, self.start[1:])]

    def sequences(self):
        x, at, out = self.m.torch("tokens"), 0, []
        for n in self.total:
            out.append(x[at : at + n].long())
            at += n
        return out

    def response_lengths(self):
        return [b - a for a, b in zip(self.start, self.start[1:])]

    def reducer(self, masks=None):
        """Sum over samples of their masked means; of masked sums with per_token."""
        masks = self.masks if masks is None else masks

        def sum_of_sample_mean(x):
            if x.shape[0] != self.start[-1]:
                raise ValueError("%d values for %d tokens" % (x.shape[0], self.start[-1]))
            terms = [
                (v * m).sum() / (1 if self.per_token else max(d, 1))
                for v, m, d in zip(self.parts(x), masks, self.denom)
            ]
            return self.torch.stack(terms).sum() if terms else x.sum()

        return sum_of_sample_mean

    def scalars(self, metrics, reducer):
        """Metrics of a function: one value for each token is reduced as the loss is, and a loss's
        own reduced value stays as it is."""
        out = {}
        for name, value in (metrics or {}).items():
            if isinstance(value, self.torch.Tensor):
                value = value.detach()
                if value.dim() == 1 and value.shape[0] == self.start[-1] and value.numel() != 1:
                    value = reducer(value)
            out[name] = value
        return hooks.numbers(out)


def finite(torch, name, x):
    bad = int((~torch.isfinite(x)).sum())
    if bad:
        raise ValueError("%s is not finite at %d of %d tokens" % (name, bad, x.numel()))


class TorchHook(hooks.Hook):
    """A function that is called with tensors: torch must be there."""

    def check(self):
        torch_module()
        hooks.Hook.check(self)


class Loss(TorchHook):
    n, signature = 4, "fn(args, batch, logits, sum_of_sample_mean)"

    def run(self, layout):
        b = Batch(layout)
        torch = b.torch
        leaves = {"dlog_probs": b.m.torch("log_probs").clone().requires_grad_()}
        entropy = None
        if "entropy" in b.m:
            leaves["dentropy"] = b.m.torch("entropy").clone().requires_grad_()
            entropy = b.parts(leaves["dentropy"])
        batch = {
            "unconcat_tokens": b.sequences(),
            "total_lengths": b.total,
            "response_lengths": b.response_lengths(),
            "loss_masks": b.masks,
            "rollout_mask_sums": b.denom,
            "rollout_ids": b.m.torch("rollout_ids").tolist(),
            "log_probs": b.cut("old_log_probs"),
            "ref_log_probs": b.cut("ref_log_probs"),
            "rollout_log_probs": b.cut("rollout_log_probs"),
            "advantages": b.cut("advantages"),
        }
        batch = {k: v for k, v in batch.items() if v is not None}
        reducer = b.reducer()
        logits = Logits(b.parts(leaves["dlog_probs"]), entropy)
        out = self.fn(self.args, batch, logits, reducer)
        if not isinstance(out, (tuple, list)) or len(out) != 2:
            raise TypeError("it did not return (loss, metrics)")
        loss, metrics = out
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise TypeError("its loss is no tensor of one value")
        if not loss.requires_grad:
            raise ValueError("its loss depends on neither log-probs nor entropies")
        finite(torch, "the loss", loss.detach())
        grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        for (name, leaf), g in zip(leaves.items(), grads):
            g = torch.zeros_like(leaf) if g is None else g
            finite(torch, "d loss / d " + name[1:], g)
            b.m.torch(name).copy_(g)
        return {"loss": float(loss.detach()), "metrics": b.scalars(metrics, reducer)}


class Correction(hooks.Hook):
    """What the function makes of the policy loss is a weight for each token: the derivative of its
    result in the loss that it was given."""

    signature = "fn(args, *, pg_loss, train_log_probs, rollout_log_probs, loss_masks, ...)"

    def check(self):
        torch_module()
        params = inspect.signature(self.fn).parameters
        open_end = any(p.kind == p.VAR_KEYWORD for p in params.values())
        missing = [
            n
            for n in ("pg_loss", "train_log_probs", "rollout_log_probs", "loss_masks")
            if n not in params and not open_end
        ]
        if missing:
            raise TypeError("it has no parameter %s: %s" % (missing[0], self.signature))
        self.names = None if open_end else set(params)

    def run(self, layout):
        b = Batch(layout)
        torch = b.torch
        pg_loss = b.m.torch("pg_loss").clone().requires_grad_()
        given = {
            "pg_loss": pg_loss,
            "train_log_probs": b.cut("train_log_probs"),
            "rollout_log_probs": b.cut("rollout_log_probs"),
            "loss_masks": b.masks,
            "total_lengths": b.total,
            "response_lengths": b.response_lengths(),
        }
        given = {k: v for k, v in given.items() if self.names is None or k in self.names}
        out = self.fn(self.args, **given)
        if not isinstance(out, (tuple, list)) or len(out) != 3:
            raise TypeError("it did not return (pg_loss, loss_masks, metrics)")
        loss, masks, metrics = out
        if not isinstance(loss, torch.Tensor) or loss.shape != pg_loss.shape:
            raise TypeError("its pg_loss is no tensor of one value for each token")
        if loss.requires_grad:
            (weight,) = torch.autograd.grad(loss.sum(), [pg_loss], allow_unused=True)
        else:
            weight = None
        weight = torch.zeros_like(pg_loss) if weight is None else weight
        finite(torch, "a weight", weight)
        keep = torch.cat([m.flatten() for m in masks]) if len(masks) else b.m.torch("keep")
        if keep.numel() != pg_loss.numel():
            raise ValueError("%d masks for %d tokens" % (keep.numel(), pg_loss.numel()))
        b.m.torch("weight").copy_(weight.detach())
        b.m.torch("keep").copy_((keep.detach() != 0).to(torch.uint8))
        return {"loss": 0.0, "metrics": b.scalars(metrics, b.reducer())}


class Reducer(TorchHook):
    """A reducer is a weighted sum over tokens; its weights are its derivative."""

    n = 4
    signature = "fn(total_lengths, response_lengths, loss_masks, calculate_per_token_loss)"

    def run(self, layout):
        b = Batch(layout)
        torch = b.torch
        masks = b.cut("keep", float) if "keep" in b.m else b.masks
        reducer = self.fn(b.total, b.response_lengths(), masks, b.per_token)
        if not callable(reducer):
            raise TypeError("it returned %s, not a function" % type(reducer).__name__)
        gen = torch.Generator().manual_seed(1)
        x = torch.randn(b.start[-1], generator=gen, dtype=torch.float32).requires_grad_()
        y = reducer(x)
        if not isinstance(y, torch.Tensor) or y.numel() != 1 or not y.requires_grad:
            raise TypeError("the reducer's value is no tensor of one value that depends on its input")
        (coef,) = torch.autograd.grad(y, [x])
        finite(torch, "a weight of the reducer", coef)
        double = float((coef.double() * x.detach().double()).sum())
        size = float((coef.double() * x.detach().double()).abs().sum())
        if abs(double - float(y.detach())) > 1e-4 * (size + 1e-12):
            raise ValueError(
                "the reducer is not a weighted sum of its values (%g, its weights give %g)"
                % (float(y.detach()), double)
            )
        b.m.torch("coef").copy_(coef)
        return {"loss": 0.0, "metrics": {}}


TARGETS = {
    "custom-loss-function-path": Loss,
    "custom-tis-function-path": Correction,
    "custom-pg-loss-reducer-function-path": Reducer,
}
