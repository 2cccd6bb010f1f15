"""Compares our policy loss with one written in torch: mis_parity.py TEST_MIS WORK CASES (see mis_parity.sh).

Each case is one optimizer step: random options, a few responses with masks, some of them empty, some with
log-probs that are infinite or no numbers. Torch computes in float64 from the same float32 inputs and takes
gradients by autograd; weights and rejections are constants in it, as in the specification. The last line is
name=value pairs; the exit status is 1 when anything differs more than the bounds.
"""
import json
import math
import random
import subprocess
import sys
from pathlib import Path

import torch

VALUE_BOUND = 3e-6  # of 1 + |value|
METRIC_BOUND = 2e-6
GRAD_BOUND = 1e-6
TIS_OFF, TIS_TRUNCATE, TIS_ICEPOP, TIS_MIS = range(4)
LEVELS = TOKEN, SEQUENCE, GEOMETRIC = range(3)
MODES = TRUNCATE, CLIP, MASK = range(3)
FLT_MAX = torch.finfo(torch.float32).max
MAX_TOKENS, MAX_SAMPLES = 24, 8

torch.set_default_dtype(torch.float64)


def f32(x):
    """The nearest float32, as a float."""
    return torch.tensor(x, dtype=torch.float32).double().item()


# ---- cases ----


def random_opts(rng):
    tis = rng.choice([TIS_OFF, TIS_TRUNCATE, TIS_ICEPOP, TIS_MIS, TIS_MIS, TIS_MIS, TIS_MIS])
    level = rng.choice(LEVELS)
    ratio = rng.choice(["token", "gspo", "cispo"])
    o = {
        "gspo": int(ratio == "gspo"),
        "cispo": int(ratio == "cispo"),
        "divisor": rng.choice([0, 0, 24.0]),
        "eps_clip": 0.2,
        "eps_clip_high": rng.choice([0.2, 0.28]),
        "eps_clip_c": rng.choice([0, 0, 3.0]),
        "use_kl_loss": rng.randint(0, 1),
        "kl_loss_coef": 0.1,
        "kl_loss_type": rng.randint(0, 3),
        "unbiased_kl": rng.randint(0, 1),
        "entropy_coef": rng.choice([0, 0.01]),
        "per_token": rng.randint(0, 1),
        "tis": tis,
        "tis_observe": int(tis != TIS_OFF and rng.random() < 0.1),
        "tis_clip": rng.choice([1.2, 2.0]),
        "tis_clip_low": rng.choice([0, 0.8]),
        "opsm": rng.randint(0, 1),
        "opsm_delta": 0.05,
        "mis": {
            "level": level,
            "mode": rng.choice(MODES),
            "lo": rng.choice([0.5, 0.9]),
            "hi": rng.choice([1.1, 2.0]),
            "rs": rng.randint(0, 1),
            "rs_level": rng.choice(LEVELS),
            "rs_lo": rng.choice([0.3, 0.9]),
            "rs_hi": rng.choice([1.2, 3.0]),
            "veto": rng.choice([0, 1e-4, 0.3]),
            "normalize": int(level != GEOMETRIC and rng.random() < 0.5),
        },
    }
    return json.loads(json.dumps(o), parse_float=lambda t: f32(float(t)))


def random_sample(rng, spread, odd):
    n = rng.choice([0, rng.randint(1, MAX_TOKENS), rng.randint(1, MAX_TOKENS)])
    s = {"mask": [int(rng.random() < 0.75) for _ in range(n)], "denom": 0}
    s["logp"] = [f32(rng.uniform(-4, -0.1)) for _ in range(n)]
    s["old"] = [f32(x + rng.uniform(-0.4, 0.4)) for x in s["logp"]]
    s["roll"] = [f32(x + rng.gauss(0, spread)) for x in s["old"]]
    s["ref"] = [f32(x + rng.uniform(-1, 1)) for x in s["logp"]]
    s["adv"] = [f32(rng.choice([0, rng.uniform(-2, 2), rng.uniform(-2, 2)])) for _ in range(n)]
    s["ent"] = [f32(rng.uniform(0, 3)) for _ in range(n)]
    if odd and n:
        for name in rng.choice([["roll"], ["old"], ["roll", "old"], ["adv"], ["logp"]]):
            s[name][rng.randrange(n)] = rng.choice([math.inf, -math.inf, math.nan])
    if rng.random() < 0.5:
        s["denom"] = sum(s["mask"]) + rng.randint(0, 5)
    return s


def random_case(rng):
    spread = rng.choice([1e-4, 0.01, 0.1, 0.1, 0.5, 8])
    odd = rng.random() < 0.2
    samples = [random_sample(rng, spread, odd and rng.random() < 0.5) for _ in range(rng.randint(1, MAX_SAMPLES))]
    if rng.random() < 0.1:
        for s in samples:
            del s["old"]
    return {"opts": random_opts(rng), "rollouts": len(samples), "samples": samples}


def encode(case):
    text = lambda v: " ".join(repr(x) for x in v)  # noqa: E731
    samples = [{k: v if k == "denom" else text(v) for k, v in s.items()} for s in case["samples"]]
    return {**case, "samples": samples}


# ---- the specification ----


def k3(x):
    # series where e^x - 1 - x cancels
    direct = torch.exp(x) - 1 - x
    series = x * x / 2 + x**3 / 6 + x**4 / 24 + x**5 / 120
    return torch.where(x.abs() < 1e-3, series, direct)


def kl_values(kind, d, logw):
    if kind == 3:
        low_var = lambda d, w: torch.exp(w) * (torch.exp(torch.clamp(-d, -20, 20)) - 1 - torch.clamp(-d, -20, 20))  # noqa: E731
        raw = low_var(torch.nan_to_num(d.detach(), nan=0.0), logw.detach())
        # where the bound of 10 holds there is no gradient, not even one of an infinite input
        inside = raw.abs() <= 10
        value = low_var(torch.where(inside, d, 0.0), torch.where(inside, logw, 0.0))
        return torch.where(inside, value, torch.clamp(raw, -10, 10))
    w = torch.exp(logw)
    return w * (d, d * d / 2, torch.exp(-d) - 1 + d)[kind]


def bounded_ratio(x):
    return torch.exp(torch.clamp(x, -20, 20))  # keeps a NaN


def level_of(level, x, m):
    if level == TOKEN:
        return x
    total = x[m].sum()
    return (total if level == SEQUENCE else total / max(int(m.sum()), 1)).expand_as(x)


def kl_terms(o, s, lp, m):
    """KL to the reference at the tokens of m."""
    logw = lp[m] - s["base"][m] if o["unbiased_kl"] else torch.zeros(int(m.sum()))
    return kl_values(o["kl_loss_type"], lp[m] - s["ref"][m], logw)


class Sums:
    """Sums of metrics over tokens, by the divisor of each sample."""

    def __init__(self):
        self.values = {}

    def add(self, name, tokens, m, divisor):
        """Tokens that are no numbers are left out, what no float32 holds counts as its largest value."""
        v = tokens[m]
        v = torch.clamp(v[~torch.isnan(v)], -FLT_MAX, FLT_MAX)
        self.values.setdefault(name, []).extend((v / divisor).tolist())

    def put(self, name, value):
        self.values.setdefault(name, []).append(value)

    def means(self, norm):
        return {name: math.fsum(v) / norm for name, v in self.values.items()}


def mis_weights(o, sample, train, roll, m, sums, divisor):
    """Weights before normalisation and the mask that is left."""
    mis = o["mis"]
    x = (train.float() - roll.float()).double()
    n = max(int(m.sum()), 1)
    put = lambda name, v: sums.add("mis_" + name, v.expand_as(x) + torch.zeros_like(x), m, divisor)  # noqa: E731
    tm, rm = train[m].sum() / n, roll[m].sum() / n
    put("training_log_ppl", -tm)
    put("training_ppl", torch.exp(-tm))
    put("rollout_log_ppl", -rm)
    put("rollout_ppl", torch.exp(-rm))
    put("kl", -x)
    put("k3_kl", torch.where(x > 709, math.inf, k3(x)))
    put("log_ppl_diff", rm - tm)
    put("log_ppl_abs_diff", (rm - tm).abs())
    put("ppl_ratio", torch.exp(rm - tm))
    rho2 = bounded_ratio(x[m]) ** 2 - 1
    put("chi2_token", rho2[~torch.isnan(rho2)].sum() / n)
    put("chi2_seq", torch.exp(2 * torch.clamp(x[m].sum(), -20, 20)) - 1)
    if o["tis_observe"]:
        return torch.ones_like(x), m
    ratio = bounded_ratio(level_of(mis["level"], x, m))
    put("tis_weight_before_bound", ratio)
    kept = m & ~torch.isnan(ratio)
    low, high = (ratio < mis["lo"]).double(), (ratio > mis["hi"]).double()
    if mis["mode"] == TRUNCATE:
        put("tis_truncate_fraction", high)
        w = torch.clamp(ratio, max=mis["hi"])
    elif mis["mode"] == CLIP:
        put("tis_clip_fraction_low", low)
        put("tis_clip_fraction_high", high)
        w = torch.clamp(ratio, mis["lo"], mis["hi"])
    else:
        put("tis_mask_fraction_low", low)
        put("tis_mask_fraction_high", high)
        w = ratio
        kept = kept & (low == 0) & (high == 0)
    w = torch.where(torch.isnan(w), 0.0, w)
    put("tis_weight_after_bound", w)
    put("is_ratio_mean_after_tis_rs", w)
    if mis["rs"]:
        rs = bounded_ratio(level_of(mis["rs_level"], x, m))
        put("rs_mask_fraction_low", (rs < mis["rs_lo"]).double())
        put("rs_mask_fraction_high", (rs > mis["rs_hi"]).double())
        kept = kept & (rs >= mis["rs_lo"]) & (rs <= mis["rs_hi"])
        if mis["veto"] > 0:
            bad = (x < math.log(mis["veto"])) & m
            put("rs_catastrophic_token_fraction", bad.double())
            put("rs_catastrophic_seq_fraction", bad.any().double())
            kept = kept & ~bad.any()
    return w, kept


def mis_mean(o, weights, masks):
    if o["mis"]["level"] == TOKEN:
        mean = sum(w[m].sum() for w, m in zip(weights, masks)) / max(sum(int(m.sum()) for m in masks), 1)
    else:
        mean = sum(w[m].sum() / max(int(m.sum()), 1) for w, m in zip(weights, masks)) / len(weights)
    return float(mean) if mean > 1e-8 else 1.0


def tis_weights(o, train, roll, m, sums, divisor):
    x = (train.float() - roll.float()).double()
    q = torch.where(x > 88, math.inf, torch.exp(x))  # as far as a float32 goes
    inside = (q >= o["tis_clip_low"]) & (q <= o["tis_clip"])
    w = torch.clamp(q, o["tis_clip_low"], o["tis_clip"])
    if o["tis"] == TIS_ICEPOP:
        w = torch.where(inside, q, 0.0)
    sums.add("tis", q, m, divisor)
    sums.add("tis_abs", (q - 1).abs(), m, divisor)
    sums.add("tis_clipfrac", torch.where(torch.isnan(q), math.nan, (w != q).double()), m, divisor)
    w = torch.where(torch.isnan(q), 0.0, w)
    return torch.ones_like(w) if o["tis_observe"] else w


def finite(x, keep):
    """x where it is finite, 0 with no gradient elsewhere."""
    return torch.where(keep, torch.where(keep, x, torch.zeros_like(x)), torch.zeros_like(x))


def policy_terms(o, s, lp, old, m):
    """Loss of each token, and which are sound."""
    n = max(int(m.sum()), 1)
    raw = old - lp
    if o["gspo"] or o["opsm"]:
        seq = raw[m].sum() / n
        drift = seq.detach()  # as it is: an infinite one is above every bound, an undefined one above none
        seq_sound = bool(torch.isfinite(seq))
        seq = seq if seq_sound else torch.zeros(())
    if o["gspo"]:
        k, sound = seq.expand_as(raw), torch.full_like(m, seq_sound)
    else:
        sound = torch.isfinite(raw.detach())
        k = finite(raw, sound)
    good = torch.isfinite(s["adv"])
    adv = torch.where(good, s["adv"], 0.0)
    sound = sound & good
    ratio = torch.exp(torch.clamp(-k, -20, 20))
    a, b = -ratio * adv, -torch.clamp(ratio, 1 - o["eps_clip"], 1 + o["eps_clip_high"]) * adv
    loss = torch.maximum(a, b)
    if o["eps_clip_c"] > 0:
        loss = torch.where(adv < 0, torch.minimum(loss, -o["eps_clip_c"] * adv), loss)
    clipped = b > a
    if o["cispo"]:  # the weight is a constant, the token's log-prob what is learnt
        weight = torch.clamp(ratio, 1 - o["eps_clip"], 1 + o["eps_clip_high"]).detach()
        loss, clipped = -weight * adv * finite(lp, sound), weight != ratio
    drop = torch.zeros_like(m)
    if o["opsm"]:
        drop = (s["adv"] < 0) & (drift > o["opsm_delta"])
    return loss, k, clipped.double(), drop, sound


def reference(case):
    o = case["opts"]
    tensors = [{k: v if k == "denom" else torch.tensor(v) for k, v in s.items()} for s in case["samples"]]
    sums, left, weights, masks, divisors = Sums(), [], [], [], []
    for s in tensors:
        m = s["mask"] != 0
        s["lp"] = s["logp"].clone().requires_grad_(True)
        s["h"] = s["ent"].clone().requires_grad_(True)
        s["base"] = s.get("old", s["logp"])
        divisor = 1 if o["per_token"] else s["denom"] or max(int(m.sum()), 1)
        kept, w = m, torch.ones_like(s["logp"])
        if o["tis"] == TIS_MIS:
            w, kept = mis_weights(o, s, s["base"], s["roll"], m, sums, divisor)
        elif o["tis"] != TIS_OFF:
            w = tis_weights(o, s["base"], s["roll"], m, sums, divisor)
        left.append(kept)
        weights.append(w)
        masks.append(m)
        divisors.append(divisor)
    if o["tis"] == TIS_MIS and not o["tis_observe"]:
        mean = mis_mean(o, weights, masks) if o["mis"]["normalize"] else 1.0
        for i, (m, divisor) in enumerate(zip(masks, divisors)):
            w = weights[i] = weights[i] / mean
            if not m.any():
                continue
            each = lambda name, v: sums.add("mis_" + name, torch.full_like(w, float(v)), m, divisor)  # noqa: B023,E731
            if o["mis"]["normalize"]:
                each("batch_norm_factor", mean)
            each("is_ratio_mean_final", w[m].mean())
            each("is_ratio_min_final", w[m].min())
            each("is_ratio_max_final", w[m].max())
    total, compared, kl_sum, largest = torch.zeros(()), 0, 0.0, 0.0
    for s, m, kept, w, divisor in zip(tensors, masks, left, weights, divisors):
        loss, k, clipped, drop, sound = policy_terms(o, s, s["lp"], s["base"], m)
        w = torch.where(drop, 0.0, w)
        pg = torch.where(sound, loss, loss.detach()) * w
        pg_divisor = o["divisor"] if o["divisor"] and not o["per_token"] else divisor
        total = total + (pg[kept] / pg_divisor).sum()
        put = lambda name, v, mask: sums.add(name, v.detach(), mask, divisor)  # noqa: B023,E731
        sums.add("pg_loss", pg.detach(), kept, pg_divisor)
        put("pg_clipfrac", clipped, kept)
        put("ppo_kl", k, kept)
        put("entropy_loss", s["ent"], kept)
        total = total - o["entropy_coef"] * (s["h"][kept] / divisor).sum()
        x = (s["base"].float() - s["roll"].float()).double()
        put("train_rollout_logprob_abs_diff", x.abs(), kept)
        roll_kl = torch.clamp(k3(torch.clamp(torch.nan_to_num(x, 0.0, 20.0, -20.0), -20, 20)), max=10)
        put("train_rollout_kl", roll_kl, kept)
        compared += int(m.sum())
        kl_sum += roll_kl[m].sum().item()
        largest = max([largest] + torch.nan_to_num(x[m].abs(), nan=math.inf, posinf=math.inf).tolist())
        if o["tis"] != TIS_OFF:
            put("ois", torch.exp(-k), m)
        if o["use_kl_loss"]:
            good = torch.isfinite(kl_terms(o, s, s["logp"], kept.new_ones(kept.shape))) & kept
            v = kl_terms(o, s, s["lp"], good)
            total = total + o["kl_loss_coef"] * (v / divisor).sum()
            put("kl_loss", v, torch.ones_like(v, dtype=torch.bool))
        if o["opsm"]:
            sums.put("opsm_clipfrac", drop.sum().item() / max(int(m.sum()), 1))
        e = torch.exp(torch.clamp(-k.detach(), -20, 20))[m]
        n = max(int(m.sum()), 1)
        ess = (e.sum() ** 2 / (n * max(float((e * e).sum()), 1e-8))).item()
        sums.put("ess_ratio", ess * (n if o["per_token"] else 1))
    norm = sum(max(int(m.sum()), 1) for m in masks) if o["per_token"] else case["rollouts"]
    total = total / norm
    if total.requires_grad:
        total.backward()
    out = sums.means(norm)
    out["loss"] = total.item()
    if compared:
        out["mismatch_kl"] = kl_sum / compared
        out["forward_logp_max_diff_inexact"] = largest
    grads = [torch.zeros_like(s["logp"]) if s["lp"].grad is None else s["lp"].grad for s in tensors]
    ent = [torch.zeros_like(s["logp"]) if s["h"].grad is None else s["h"].grad for s in tensors]
    return out, grads, ent


# ---- the comparison ----


def close(got, want, bound):
    if math.isinf(want) or math.isinf(got):
        return got == want
    return abs(got - want) <= bound * (1 + abs(want))


def gap(got, want):
    return 0.0 if got == want else abs(got - want) / (1 + abs(want))


def main():
    binary, work, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    rng = random.Random(10)
    cases = [random_case(rng) for _ in range(count)]
    (work / "cases.json").write_text(json.dumps([encode(c) for c in cases]))
    subprocess.run([binary, "--dump", work / "cases.json", work / "out.json"], check=True)
    ours = json.loads((work / "out.json").read_text())
    failures, worst_value, worst_grad, compared, tokens, rejected = 0, 0.0, 0.0, 0, 0, 0
    for i, (case, got) in enumerate(zip(cases, ours)):
        want, grads, ent = reference(case)
        bad = []
        for name, v in want.items():
            g = got["metrics"].get(name)
            # a metric of nothing but empty responses is 0 or not there
            if g is None:
                if v != 0:
                    bad.append(f"{name} is missing")
                continue
            bound = METRIC_BOUND if name.startswith(("mis_", "mismatch", "train_")) else VALUE_BOUND
            worst_value = max(worst_value, gap(float(g), v))
            compared += 1
            if not close(float(g), v, bound):
                bad.append(f"{name} is {g}, not {v}")
        bad += [f"{name} is not expected" for name in got["metrics"].keys() - want.keys()
                if float(got["metrics"][name]) != 0]
        for what, a, b in [("dlogp", got["dlogp"], grads), ("dentropy", got["dentropy"], ent)]:
            for j, (x, y) in enumerate(zip(a, b)):
                for t, (p, q) in enumerate(zip(map(float, x), y.tolist())):
                    tokens += 1
                    rejected += q == 0
                    worst_grad = max(worst_grad, gap(p, q))
                    if not close(p, q, GRAD_BOUND):
                        bad.append(f"{what} of sample {j}, token {t} is {p}, not {q}")
        if bad:
            failures += 1
            print(f"FAIL: case {i}: {case['opts']}", *bad[:5], sep="\n    ", file=sys.stderr)
    print(f"mis_parity_cases={len(cases)} values={compared} gradients={tokens} zero_gradients={rejected} "
          f"value_max_rel={worst_value:.3g} grad_max_rel={worst_grad:.3g} failures={failures}")
    return bool(failures) or len(cases) < 1


if __name__ == "__main__":
    sys.exit(main())
