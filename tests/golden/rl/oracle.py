#!/usr/bin/env python3
"""Random cases of the RL mathematics with their expected results, one JSON object a line.

    oracle.py [--cases N] [--seed S] [--only KIND] [--part I/N] > cases.jsonl

An independent implementation in float64 torch, written from the formulas, gradients by autograd;
it shares nothing with the C code. golden_rl reads the lines, computes the same in C and compares.

Inputs are exact float32 numbers. Token arrays are strings of numbers parted by blanks, so that nan
and inf can be written. A comparison (clip bounds, rejection, a sign) that float32 might decide
otherwise than float64 makes a case ambiguous; such a draw is thrown away and drawn again, except
for exact ties, which both decide alike. `scale` beside an expected array holds, per element, the
sum of the sizes of the terms that were added up in it: rounding errors are relative to those.
"""
import argparse
import itertools
import json
import math
import random
import sys
from fractions import Fraction

import torch

torch.set_num_threads(1)
F64 = torch.float64
F32_MAX = 3.4028234663852886e38
NAN, INF = math.nan, math.inf
ESTIMATORS = ["grpo", "gspo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "ppo",
              "dr_grpo", "rloo", "cispo"]
KLS = ["k1", "k2", "k3", "low_var_kl"]


class Ambiguous(Exception):
    """A comparison too close to call in float32."""


def f32(x):
    """The nearest float32, as a Python float."""
    return torch.tensor(float(x), dtype=torch.float32).item()


def text(xs):
    if xs is None:
        return None
    if torch.is_tensor(xs):
        xs = xs.tolist()
    return " ".join(repr(float(x)) for x in xs)


def tens(xs):
    return torch.tensor([float(x) for x in xs], dtype=F64)


def apart(x, bound, ties=True, wide=1.0):
    """Raises when x is near bound but not equal to it; wide: how much worse it may be rounded."""
    for v in x.detach().reshape(-1).tolist() if torch.is_tensor(x) else [float(x)]:
        if not math.isfinite(v):
            continue
        d = abs(v - bound)
        if d == 0 and ties:
            continue
        if d < 1e-4 * max(1e-2, abs(bound)) * wide:
            raise Ambiguous


def clamp(x, lo, hi):
    """With a gradient at the bounds themselves, which torch's own has or has not by its version."""
    return torch.where(x < lo, torch.full_like(x, lo), torch.where(x > hi, torch.full_like(x, hi), x))


def over_exp(x):
    """exp as float32 has it, which libraries give up at somewhere between 88 and 88.73."""
    if any(87.9 < v < 88.8 for v in x.detach().reshape(-1).tolist()):
        raise Ambiguous
    return over(torch.exp(x))


def over(x):
    """What float32 cannot hold is infinite."""
    return torch.where(x.abs() > F32_MAX, torch.sign(x) * INF, x)


# --- section 4 --------------------------------------------------------------------------------

def kl_value(kind, d, w):
    """The estimate at log-ratio d, times importance ratio w (None: none)."""
    if kind == "low_var_kl":
        u = clamp(torch.nan_to_num(-d, nan=0.0, posinf=20.0, neginf=-20.0), -20.0, 20.0)
        k = torch.exp(u) - 1 - u
    else:
        k = {"k1": d, "k2": d * d / 2, "k3": torch.exp(-d) - 1 + d}[kind]
    if w is not None:
        k = w * k
    if kind == "low_var_kl":
        apart(k, 10.0)
        k = clamp(k, -10.0, 10.0)
    return k


def kl_safe(kind, new, base, active, old=None):
    """kl_value where active and finite in float32, else 0 without a gradient."""
    with torch.no_grad():
        w = None if old is None else over_exp(new - old)
        d = new - base
        if kind == "k3":
            good = torch.isfinite(over_exp(-d))
            raw = torch.where(good, kl_value(kind, d, w), torch.full_like(d, INF))
        else:
            raw = kl_value(kind, d, w)
        ok = active & torch.isfinite(over(raw))
    # Where it is not finite the inputs are exchanged before any function sees them.
    dd = torch.where(ok, new - base, torch.zeros_like(new))
    ww = None
    if old is not None:
        # e^300 is beyond float32; what it multiplies then stands at a bound without a gradient.
        ww = torch.exp(torch.where(ok, new - old, torch.zeros_like(new)).clamp(max=300.0))
    if kind == "low_var_kl":  # inf and nan have values there, but no gradient
        far = ok & ~torch.isfinite(new - base)
        dd = torch.where(far, torch.nan_to_num((new - base).detach(), nan=0.0, posinf=30.0,
                                               neginf=-30.0), dd)
    return torch.where(ok, kl_value(kind, dd, ww), torch.zeros_like(new))


# --- section 5 --------------------------------------------------------------------------------

def exact_mean(xs):
    return sum((Fraction(x) for x in xs), Fraction(0)) / len(xs)


def rewards(opt, raw, group, rollout):
    """Shaped rewards and the sizes that they came from, or None for an error."""
    n = len(raw)
    if opt["estimator"] in ("reinforce_plus_plus", "ppo") or not opt["normalize"]:
        return list(raw), [abs(r) for r in raw]
    if group is None:
        if n == opt["n_samples"] * opt["batch"]:
            group = [i // opt["n_samples"] for i in range(n)]
        else:
            group = [0] * n
    out, scale = [0.0] * n, [0.0] * n
    for g in dict.fromkeys(group):
        rows = [i for i in range(n) if group[i] == g]
        keys = {}
        for i in rows:
            key = i if rollout is None else rollout[i]
            if key in keys and keys[key] != raw[i]:
                return None
            keys.setdefault(key, raw[i])
        rs = list(keys.values())
        mu = exact_mean(rs)
        for key, r in keys.items():
            c, size = Fraction(r) - mu, 2 * max(abs(x) for x in rs)
            if opt["estimator"] == "rloo":
                # r minus the mean of the others is the deviation stretched; alone there is none.
                c = c * Fraction(len(rs), len(rs) - 1) if len(rs) > 1 else Fraction(0)
            elif opt["estimator"] in ("grpo", "gspo", "cispo") and opt["std"] and len(rs) > 1:
                s = math.sqrt(float(sum((Fraction(x) - mu) ** 2 for x in rs) / (len(rs) - 1)))
                if s > 0:
                    c = Fraction(float(c) / (s + 1e-6))
                    size = size / (s + 1e-6) * (1 + abs(float(c)))
            for i in rows:
                if (i if rollout is None else rollout[i]) == key:
                    out[i], scale[i] = float(c), size
    return out, scale


def overlong(length, longest, buffer, factor):
    past = length - (longest - buffer)
    if past <= 0:
        return 0.0
    return -factor * min(past / buffer, 1.0)


# --- section 6 --------------------------------------------------------------------------------

def advantages(opt, reward, mask, kl, values):
    """(advantages, returns, scale) of one response, or None for an error."""
    est, n = opt["estimator"], len(mask)
    coef, gamma, lam = opt["kl_coef"], opt["gamma"], opt["lambd"]
    if est == "reinforce_plus_plus":
        if not any(mask):
            return None
        last = max(t for t in range(n) if mask[t])
        out, size, run, mag = [0.0] * n, [0.0] * n, 0.0, 0.0
        for t in reversed(range(n)):
            q = -coef * kl[t] + (reward if t == last else 0.0)
            run = q + gamma * run
            mag = abs(coef * kl[t]) + (abs(reward) if t == last else 0.0) + gamma * mag
            out[t], size[t] = run, mag
        return out, list(out), size
    if est == "reinforce_plus_plus_baseline":
        out = [reward - coef * k for k in kl]
        return out, list(out), [abs(reward) + abs(coef * k) for k in kl]
    if est == "ppo":
        adv, ret, size = [0.0] * n, [0.0] * n, [0.0] * n
        idx = [t for t in range(n) if mask[t]]
        run, mag = 0.0, 0.0
        for j in reversed(range(len(idx))):
            t = idx[j]
            last = j + 1 == len(idx)
            q = -coef * kl[t] + (reward if last else 0.0)
            nxt = 0.0 if last else values[idx[j + 1]]
            run = q + gamma * nxt - values[t] + gamma * lam * run
            mag = (abs(coef * kl[t]) + (abs(reward) if last else 0.0) + abs(gamma * nxt)
                   + abs(values[t]) + gamma * lam * mag)
            adv[t], ret[t], size[t] = run, run + values[t], mag
        return adv, ret, size
    return [reward] * n, [reward] * n, [abs(reward)] * n


def whiten(advs, masks, scales):
    """(whitened, scale), None for an error."""
    n = sum(sum(m) for m in masks)
    if n == 0:
        return None
    act = [Fraction(a) for adv, m in zip(advs, masks) for a, on in zip(adv, m) if on]
    mu = sum(act, Fraction(0)) / n
    var = sum(((a - mu) ** 2 for a in act), Fraction(0)) / n
    if n >= 2:
        var = var * n / (n - 1)
    sd = math.sqrt(float(var) + 1e-8)
    if sd < 1e-3 and float(var) != 0:
        raise Ambiguous  # a spread made of rounding errors
    big = max(itertools.chain(*scales), default=0.0) + abs(float(mu))
    out = [[float(Fraction(a) - mu) / sd for a in adv] for adv in advs]
    return out, [[(big * (1 + abs(x))) / sd for x in o] for o in out]


def topk_delta(strategy, weighting, student, teacher, cross_s, cross_t):
    """Top-k distillation at one position: lists of (id, logp); cross maps hold the other's score
    of ids outside its own list. None for a token that lacks a score."""
    s_map, t_map = dict(student), dict(teacher)
    if strategy == "only-student":
        ids = [i for i, _ in student]
    elif strategy == "only-teacher":
        ids = [i for i, _ in teacher]
    elif strategy == "intersection":
        ids = [i for i, _ in student if i in t_map]
    elif strategy == "union":
        ids = [i for i, _ in student] + [i for i, _ in teacher if i not in s_map]
    else:
        ids = [i for i, _ in student if i not in t_map] + \
              [i for i, _ in teacher if i not in s_map]
    if not ids:
        return 0.0, 0.0
    rows = []
    for i in ids:
        s = s_map.get(i, cross_s.get(i))
        t = t_map.get(i, cross_t.get(i))
        if s is None or t is None:
            return None
        rows.append((s, t))
    if weighting == "none":
        w = [1.0 if strategy == "xor" else 1.0 / len(rows)] * len(rows)
    else:
        x = [r[0] if weighting == "student_p" else r[1] for r in rows]
        if strategy == "xor":
            w = [math.exp(v) for v in x]
        else:
            top = max(x)
            z = sum(math.exp(v - top) for v in x)
            w = [math.exp(v - top) / z for v in x]
    return (sum(wi * (s - t) for wi, (s, t) in zip(w, rows)),
            sum(wi * (abs(s) + abs(t)) for wi, (s, t) in zip(w, rows)))


# --- section 10 -------------------------------------------------------------------------------

def level_weight(level, x, m):
    """exp of the clamped log-ratio of a token, the response, or its geometric mean."""
    if level == "token":
        lam = x
    else:
        total = torch.where(m, x, torch.zeros_like(x)).sum()
        if level == "geometric":
            total = total / max(int(m.sum()), 1)
        lam = total.expand_as(x)
    return torch.exp(torch.clamp(lam, -20, 20))  # clamp keeps nan


def level_size(level, x, m):
    """What was added up in the log-ratio of that level."""
    size = torch.where(m, torch.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0).abs(),
                       torch.zeros_like(x))
    if level == "token":
        return size
    total = size.sum() / (max(int(m.sum()), 1) if level == "geometric" else 1)
    return total.expand_as(x)


def mis_sequence(o, x, m):
    """Bounded weights and kept mask of one response, before batch normalisation."""
    zero = torch.zeros_like(x)
    raw = level_weight(o["level"], x, m)
    wide = 1 + max([float(v) for v in level_size("sequence", x, m)] + [0.0]) / 100
    undef = torch.isnan(raw)
    apart(raw[m], o["hi"], wide=wide)
    if o["mode"] != "truncate":
        apart(raw[m], o["lo"], wide=wide)
    keep = m & ~undef
    if o["mode"] == "truncate":
        w = raw.clamp(0, o["hi"])
    elif o["mode"] == "clip":
        w = raw.clamp(o["lo"], o["hi"])
    else:
        w = raw
        keep = keep & (raw >= o["lo"]) & (raw <= o["hi"])
    w = torch.where(m & ~undef, w, zero)
    rs_raw = None
    if o["rs"]:
        rs_raw = level_weight(o["rs_level"], x, m)
        apart(rs_raw[m], o["rs_lo"], wide=wide)
        apart(rs_raw[m], o["rs_hi"], wide=wide)
        keep = keep & (rs_raw >= o["rs_lo"]) & (rs_raw <= o["rs_hi"])  # nan: rejected
        if o["veto"] > 0:
            apart(x[m], math.log(o["veto"]))
            if bool((x[m] < math.log(o["veto"])).any()):
                keep = torch.zeros_like(keep)
    return w, keep, raw, rs_raw


def mis_mean(o, seqs):
    """What all weights of the step are divided by: (w, m) of each response."""
    if not o["normalize"]:
        return 1.0
    if o["level"] == "token":
        total = sum(float(w[m].sum()) for w, m in seqs)
        mean = total / max(sum(int(m.sum()) for _, m in seqs), 1)
    else:
        mean = sum(float(w[m].sum()) / max(int(m.sum()), 1) for w, m in seqs) / len(seqs)
    apart(mean, 1e-8)
    return mean if mean > 1e-8 else 1.0


# --- sections 7 and 8 -------------------------------------------------------------------------

def clean(x, m):
    """Active and finite, else 0 (7.3)."""
    return torch.where(m, torch.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0), torch.zeros_like(x))


def policy(opt, samples, rollouts, tokens):
    """J with autograd; metrics as [value, size of what was added up]; sizes of each gradient."""
    o = opt
    metrics, loss, sizes = {}, torch.zeros((), dtype=F64), []
    if o["tis"] == "mis":
        pre = [mis_sequence(o["mis"], s["train_"] - s["roll"], s["m"]) for s in samples]
        mean = mis_mean(o["mis"], [(p[0], s["m"]) for p, s in zip(pre, samples)])

    def red(x, m, s, div=None):
        t = torch.where(m, x, torch.zeros_like(x)).sum()
        if o["per_token"]:
            return t / tokens
        return t / (div if div else max(s["denom"], 1)) / rollouts

    def put(name, x, m, s, size=None, div=None):
        """Adds the reduced x to a metric and gives it back."""
        v = red(x, m, s, div)
        with torch.no_grad():
            mag = red(x.detach().abs() if size is None else size, m, s, div)
        cell = metrics.setdefault(name, [0.0, 0.0])
        cell[0] += float(v.detach())
        cell[1] += float(mag)
        return v

    def raw_put(name, v):
        cell = metrics.setdefault(name, [0.0, 0.0])
        cell[0] += v / (tokens if o["per_token"] else rollouts)
        cell[1] = abs(cell[0])

    for j, s in enumerate(samples):
        th, old, m, A0 = s["th"], s["old_"], s["m"], s["adv"]
        n = int(m.sum())
        zero = torch.zeros_like(th)
        seq = torch.where(m, old - th, zero).sum() / max(n, 1)
        k = seq.expand_as(th) if o["gspo"] else old - th
        kc, A = clean(k, m), clean(A0, m)
        ksize = kc.detach().abs()
        if o["gspo"]:  # large differences may cancel
            ksize = clean(old - th, m).detach().abs().sum().expand_as(th) / max(n, 1)
        r = torch.exp(clamp(-kc, -20.0, 20.0))
        lo, hi = 1 - o["eps_clip"], 1 + o["eps_clip_high"]
        apart(r[m], lo)
        apart(r[m], hi)
        apart(kc[m].abs(), 20.0, ties=False)
        if o["cispo"]:
            rc = r.detach().clamp(lo, hi)
            # A token whose inputs are not finite takes no part, as in the clipped objective.
            fine = m & torch.isfinite(k.detach()) & torch.isfinite(A0)
            L = -rc * A * clean(th, fine)
            clip = (rc != r.detach()).to(F64)
            size = rc * A.abs()
            value_size = size * (1 + clean(th.detach(), fine).abs())
        else:
            L1, L2 = -r * A, -clamp(r, lo, hi) * A
            L = torch.where(L1 >= L2, L1, L2)  # torch.maximum halves the gradient of a tie
            clip = (L2 > L1).to(F64)
            if o["eps_clip_c"] > 0:
                apart(r[m & (A < 0)], o["eps_clip_c"])
                bound = -o["eps_clip_c"] * A
                L = torch.where((A < 0) & (bound < L), bound, L)
            size = value_size = r.detach() * A.abs() * (1 + ksize)
        mk = m
        if o["opsm"]:
            K = float(seq.detach())
            apart(K, o["opsm_delta"], ties=False)
            drop = (A0 < 0) & (K > o["opsm_delta"])
            L = torch.where(drop, zero, L)
            raw_put("opsm_clipfrac", float(drop.sum()) / max(n, 1))
        wt = torch.ones_like(th)
        x = s["train_"] - s["roll"] if s["roll"] is not None else None
        if o["tis"] in ("truncate", "icepop"):
            q = over_exp(x)
            apart(q[m], o["tis_clip"])
            apart(q[m], o["tis_clip_low"])
            if o["tis"] == "truncate":
                w = q.clamp(o["tis_clip_low"], o["tis_clip"])
            else:
                w = torch.where((q >= o["tis_clip_low"]) & (q <= o["tis_clip"]), q, zero)
            put("tis", q, m, s)
            put("tis_clipfrac", (w != q).to(F64), m, s)
            put("tis_abs", (q - 1).abs(), m, s, q + 1)
            if not o["observe"]:
                wt = w
        elif o["tis"] == "mis":
            w, keep, raw, rs_raw = pre[j]
            mis_metrics(o, s, x, raw, w, w / mean, rs_raw, mean, put)
            if not o["observe"]:
                wt, mk = w / mean, keep
                wide = 1 + level_size(o["mis"]["level"], x, m)
                size, value_size = size * wide, value_size * wide
        if s["weight"] is not None:
            wt, mk = s["weight"], s["weight_mask"]
        wt = torch.where(mk, wt, zero)
        L = torch.where(mk, L, zero) * wt
        size, value_size = size * wt, value_size * wt
        total = put("pg_loss", L, mk, s, value_size, o["divisor"])
        mags = float(red(value_size, mk, s, o["divisor"]))
        put("pg_clipfrac", clip, mk, s)
        put("ppo_kl", kc.detach(), mk, s, ksize)
        if s["ent"] is not None:
            H = put("entropy_loss", torch.where(mk, s["ent"], zero), mk, s)
            if o["entropy_coef"] != 0:
                total = total - o["entropy_coef"] * H
                mags += abs(o["entropy_coef"]) * float(H.detach())
        if o["use_kl_loss"]:
            kl = kl_safe(o["kl_type"], th, s["ref"], m, old if o["unbiased"] else None)
            d = torch.nan_to_num(th.detach() - s["ref"], nan=0.0, posinf=20.0, neginf=-20.0)
            if o["kl_type"] == "low_var_kl":
                d = d.clamp(-20, 20)
            big = 1 + d.abs() + torch.exp((-d).clamp(-80, 80)) * (1 + d.abs())
            if o["kl_type"] == "k2":
                big = 1 + d * d
            if o["kl_type"] == "k1":
                big = 1 + d.abs()
            if o["unbiased"]:
                dw = torch.nan_to_num((th - old).detach(), nan=0.0, posinf=0.0, neginf=0.0)
                big = big * (1 + torch.exp(dw.clamp(-80, 80)) * (1 + dw.abs()))
            # A token whose estimate counts as 0 has no rounding either.
            big = torch.where((kl.detach() == 0) & (d != 0), zero, big)
            total = total + o["kl_loss_coef"] * put("kl_loss", kl, mk, s, big)
            mags += o["kl_loss_coef"] * float(red(big, mk, s))
        cell = metrics.setdefault("loss", [0.0, 0.0])
        cell[0] += float(total.detach())
        cell[1] += mags
        loss = loss + total
        rr = torch.where(m, r.detach(), zero)
        ess = float(rr.sum()) ** 2 / (max(n, 1) * max(float((rr * rr).sum()), 1e-8))
        raw_put("ess_ratio", ess * (max(n, 1) if o["per_token"] else 1))
        if s["roll"] is not None and s["tame"]:
            diff = old - s["roll"]
            put("train_rollout_logprob_abs_diff", diff.abs(), mk, s)
            put("train_rollout_kl", kl_value("low_var_kl", -diff, None), mk, s,
                diff.abs() * torch.exp(diff))
        if x is not None and s["tame"] and o["tis"] != "off":
            put("ois", torch.exp(-kc.detach()), m, s)
        pg_div = 1 / tokens if o["per_token"] else \
            1 / rollouts / (o["divisor"] or max(s["denom"], 1))
        kl_div = 1 / tokens if o["per_token"] else 1 / rollouts / max(s["denom"], 1)
        size = torch.where(mk, size, zero) * pg_div
        if o["gspo"]:
            size = torch.where(m, size.sum().expand_as(th) / max(n, 1), zero)
        if o["use_kl_loss"]:
            size = size + torch.where(mk, o["kl_loss_coef"] * big, zero) * kl_div
        sizes.append(size)
    return loss, metrics, sizes


def mis_metrics(o, s, x, raw, bounded, final, rs_raw, mean, put):
    """The figures of section 10.3, each a mean over tokens, reduced like a loss."""
    m, mo = s["m"], o["mis"]
    n = max(int(m.sum()), 1)
    one = torch.ones_like(x)
    if not s["tame"]:
        return

    def tok(name, v, size=None):
        put("mis_" + name, v, m, s, size)

    def seqm(name, v, size=None):
        tok(name, one * v, None if size is None else one * size)

    lt, lr = float(s["train_"][m].sum()) / n, float(s["roll"][m].sum()) / n
    seqm("training_log_ppl", -lt)
    seqm("training_ppl", math.exp(-lt))
    seqm("rollout_log_ppl", -lr)
    seqm("rollout_ppl", math.exp(-lr))
    tok("kl", -x)
    tok("k3_kl", torch.exp(x) - x - 1, x.abs() * (1 + torch.exp(x)))
    seqm("log_ppl_diff", lr - lt, abs(lr) + abs(lt))
    seqm("log_ppl_abs_diff", abs(lr - lt), abs(lr) + abs(lt))
    seqm("ppl_ratio", math.exp(lr - lt))
    chi = float(torch.exp(2 * x[m].clamp(-20, 20)).sum()) / n
    seqm("chi2_token", chi - 1 if int(m.sum()) else 0.0, (chi + 1) * (1 + float(x[m].abs().sum())))
    tot = float(x[m].sum())
    chi = math.exp(2 * min(max(tot, -20), 20))
    seqm("chi2_seq", chi - 1, (chi + 1) * (1 + abs(tot)))
    if o["observe"]:
        return
    wide = 1 + x[m].abs().sum()
    tok("tis_weight_before_bound", raw, raw * wide)
    if mo["mode"] == "truncate":
        tok("tis_truncate_fraction", (raw > mo["hi"]).to(F64))
    elif mo["mode"] == "clip":
        tok("tis_clip_fraction_low", (raw < mo["lo"]).to(F64))
        tok("tis_clip_fraction_high", (raw > mo["hi"]).to(F64))
    else:
        tok("tis_mask_fraction_low", (raw < mo["lo"]).to(F64))
        tok("tis_mask_fraction_high", (raw > mo["hi"]).to(F64))
    tok("tis_weight_after_bound", bounded, bounded * wide)
    if mo["rs"]:
        tok("rs_mask_fraction_low", (rs_raw < mo["rs_lo"]).to(F64))
        tok("rs_mask_fraction_high", (rs_raw > mo["rs_hi"]).to(F64))
        if mo["veto"] > 0:
            bad = m & (x < math.log(mo["veto"]))
            tok("rs_catastrophic_token_fraction", bad.to(F64))
            seqm("rs_catastrophic_seq_fraction", float(bad.any()))
    if mo["normalize"]:
        seqm("batch_norm_factor", mean)
    if int(m.sum()):
        tok("is_ratio_mean_final", final, final * wide)
        seqm("is_ratio_min_final", float(final[m].min()))
        seqm("is_ratio_max_final", float(final[m].max()))


# --- drawing ----------------------------------------------------------------------------------

class Draw:
    def __init__(self, rng):
        self.r = rng

    def pick(self, *xs):
        return self.r.choice(xs)

    def yes(self, p=0.5):
        return self.r.random() < p

    def num(self, lo, hi):
        return f32(self.r.uniform(lo, hi))

    def gauss(self, s=1.0):
        return f32(self.r.gauss(0, s))

    def logps(self, n):
        return [f32(-abs(self.r.gauss(0, 2))) for _ in range(n)]

    def near(self, xs, s):
        return [f32(x + self.r.gauss(0, s)) for x in xs]

    def length(self):
        return self.pick(0, 1, 1, 2, 3, 4, 5, 7, 9, 12, 17)

    def mask(self, n):
        kind = self.r.random()
        if kind < 0.3:
            return None
        if kind < 0.4:
            return [0] * n
        p = self.pick(0.2, 0.5, 0.8)
        return [int(self.r.random() < p) for _ in range(n)]

    def spread(self):
        return self.pick(0.0, 0.02, 0.1, 0.4, 1.5)

    def wild(self, xs, p):
        return [self.pick(NAN, INF, -INF, 1000.0, -1000.0) if self.r.random() < p else x
                for x in xs]


def ones(mask, n):
    return [1] * n if mask is None else mask


def draw_batch(d, small=False):
    """Rows of a rollout: prompts x rollouts x sibling samples."""
    rows = []
    prompts, per = d.pick(1, 2, 3), d.pick(1, 2, 4) if small else d.pick(1, 1, 2, 3, 4, 6)
    rid = d.r.randrange(5)
    for g in range(prompts):
        for _ in range(per):
            for _ in range(d.pick(1, 1, 1, 1, 2, 3)):
                n = d.length()
                rows.append({"group": g * 3 + 1, "rollout": rid, "n": n, "mask": d.mask(n)})
            rid += 1 + d.r.randrange(2)
    if d.yes(0.3):
        d.r.shuffle(rows)
    return rows, prompts, per


def reward_of(d, rows, kind):
    by = {}
    for s in rows:
        if kind == "binary":
            v = float(d.r.randrange(2))
        elif kind == "same":
            v = f32(0.1)
        elif kind == "signed":
            v = float(d.pick(-1, 1))
        elif kind == "tiny":  # a spread that 1e-6 beside it shows
            v = d.pick(0.0, 2.0 ** -10, 2.0 ** -9)
        else:
            v = d.gauss(2.0)
        s["raw"] = by.setdefault(s["rollout"], v)


def mis_opts(d, level=None, mode=None):
    hi = d.pick(1.0, 1.05, 1.5, 2.0, 4.0)
    level = level or d.pick("token", "sequence", "geometric")
    rs_hi = d.pick(1.0, 1.2, 2.0, 5.0)
    return {"level": level, "mode": mode or d.pick("truncate", "clip", "mask"),
            "lo": f32(d.pick(1 / hi, 0.5, 0.9, 1.0)), "hi": f32(hi), "rs": int(d.yes()),
            "rs_level": d.pick("token", "sequence", "geometric"), "rs_lo": f32(1 / rs_hi),
            "rs_hi": f32(rs_hi), "veto": f32(d.pick(0, 0, 1e-4, 0.3, 0.9)),
            "normalize": int(level != "geometric" and d.yes(0.4))}


def loss_opts(d, est, combo):
    corr, kl = combo
    o = {"gspo": int(est == "gspo"), "cispo": int(est == "cispo"),
         "eps_clip": f32(d.pick(0.2, 0.1, 0.0, 0.003)), "eps_clip_c": f32(d.pick(0, 0, 1.5, 3.0)),
         "use_kl_loss": int(kl is not None), "kl_loss_coef": f32(d.pick(0, 0.001, 0.5, 1.0)),
         "kl_type": (kl or ("k1", 0))[0], "unbiased": (kl or ("k1", 0))[1],
         "entropy_coef": f32(d.pick(0, 0, 0.01, 1.0, -0.3)), "entropy": int(d.yes(0.3)),
         "per_token": int(d.yes(0.3)), "divisor": 0.0, "tis": "off", "observe": 0,
         "tis_clip": 2.0, "tis_clip_low": 0.0, "opsm": 0, "opsm_delta": f32(1e-4),
         "mis": None}
    o["eps_clip_high"] = f32(d.pick(o["eps_clip"], 0.28, 3.0))
    if not o["per_token"] and d.yes(0.3):
        o["divisor"] = d.pick(10.0, 1000.0, 3.0)
    if corr in ("truncate", "icepop"):
        o["tis"] = corr
        o["tis_clip"] = f32(d.pick(2.0, 1.0, 1.2))
        o["tis_clip_low"] = f32(d.pick(0, 0.5, 1.0))
    elif corr.startswith("mis"):
        _, level, mode = corr.split("-")
        o["tis"], o["mis"] = "mis", mis_opts(d, level, mode)
    elif corr == "opsm":
        o["opsm"], o["opsm_delta"] = 1, f32(d.pick(1e-4, 0.05, -0.05))
    if o["tis"] != "off" and d.yes(0.1):
        o["observe"] = 1
    if corr not in ("opsm", "off") and d.yes(0.15):
        o["opsm"], o["opsm_delta"] = 1, f32(d.pick(1e-4, 0.05))
    return o


def step_of(rows):
    """Denominators N_i, the number of rollouts and of normalising tokens."""
    act = [sum(ones(s["mask"], s["n"])) for s in rows]
    total = {}
    for s, a in zip(rows, act):
        total[s["rollout"]] = total.get(s["rollout"], 0) + a
    for s in rows:
        s["denom"] = total[s["rollout"]]
    return len(total), sum(max(a, 1) for a in act)


def policy_case(d, opt, rows, advs, wild=0.0):
    """The loss of drawn log-probs with the given advantages: (samples as written, expectations)."""
    rollouts, tokens = step_of(rows)
    no_old = d.yes(0.15)
    second = d.yes(0.2)  # what the trainer computed is not the old policy
    custom = opt["tis"] == "off" and d.yes(0.1)
    spread, gap = d.spread(), d.spread()
    live, lines = [], []
    for s, adv in zip(rows, advs):
        n = s["n"]
        logp = d.logps(n)
        old = d.near(logp, spread)
        ref = d.near(logp, d.pick(0.0, 0.1, 1.0, 4.0, 40.0)) if opt["use_kl_loss"] else None
        has_roll = opt["tis"] != "off" or d.yes(0.5)
        roll = d.near(old, gap) if has_roll else None
        train = d.near(old, gap) if second and has_roll else None
        ent = [f32(abs(d.gauss(1))) for _ in range(n)] \
            if opt["entropy"] or opt["entropy_coef"] != 0 else None
        m = ones(s["mask"], n)
        if wild:
            logp, old = d.wild(logp, wild), d.wild(old, wild)
            adv = d.wild(adv, wild)
            ref = d.wild(ref, wild) if ref else ref
            if opt["tis"] == "mis":
                roll = d.wild(roll, wild)
            # What does not train may hold anything.
            if roll and opt["tis"] != "mis":
                roll = [x if on else NAN for x, on in zip(roll, m)]
            if ent:
                ent = [x if on else NAN for x, on in zip(ent, m)]
        weight = wmask = None
        if custom:
            weight = [f32(abs(d.gauss(1))) for _ in range(n)]
            wmask = [int(on and d.yes(0.7)) for on in m]
        th = tens(logp).requires_grad_(True)
        lv = {"th": th, "old_": th.detach() if no_old else tens(old),
              "m": torch.tensor(m, dtype=torch.bool), "adv": tens(adv), "denom": s["denom"],
              "ref": tens(ref) if ref is not None else None,
              "roll": tens(roll) if roll is not None else None,
              "ent": tens(ent).requires_grad_(True) if ent is not None else None,
              "weight": tens(weight) if custom else None,
              "weight_mask": torch.tensor(wmask, dtype=torch.bool) if custom else None,
              "tame": not wild}
        lv["train_"] = tens(train) if train is not None else lv["old_"]
        if wild and opt["tis"] in ("truncate", "icepop"):
            # Built-in correction of numbers that are none is not defined; draw them finite.
            t = [x if math.isfinite(x) else 0.0 for x in (train or old)]
            lv["train_"], train = tens(t), t
        live.append(lv)
        lines.append({"len": n, "mask": text(s["mask"]), "denom": s["denom"], "logp": text(logp),
                      "old": None if no_old else text(old), "ref": text(ref), "roll": text(roll),
                      "train": text(train), "adv": text(adv), "entropy": text(ent),
                      "weight": text(weight), "weight_mask": text(wmask)})
    loss, metrics, sizes = policy(opt, live, rollouts, tokens)
    if loss.requires_grad:
        loss.backward()
    for lv, line, size in zip(live, lines, sizes):
        g = lv["th"].grad
        g = torch.zeros_like(lv["th"]) if g is None else g
        if not bool(torch.isfinite(g).all()):
            raise RuntimeError("the oracle's own gradient is not finite")
        line["dlogp"], line["scale"] = text(g), text(size)
        if lv["ent"] is not None and opt["entropy_coef"] != 0:
            h = lv["ent"].grad
            line["dentropy"] = text(torch.zeros_like(lv["ent"]) if h is None else h)
    return {"rollouts": rollouts, "tokens": tokens}, lines, metrics


CORRECTIONS = ["off", "opsm", "truncate", "icepop"] + \
    [f"mis-{a}-{b}" for a in ("token", "sequence", "geometric")
     for b in ("truncate", "clip", "mask")]
KL_CHOICES = [None] + [(k, u) for k in KLS for u in (0, 1)]


def chain(d, est, combo):
    """Rewards to advantages to loss, as a rollout goes."""
    rows, prompts, per = draw_batch(d)
    reward_of(d, rows, d.pick("binary", "gauss", "gauss", "same", "signed", "tiny"))
    n = len(rows)
    ro = {"estimator": est, "normalize": int(d.yes(0.85)), "std": int(d.yes(0.7)),
          "n_samples": per, "batch": prompts}
    grouped, rolled = d.yes(0.75), True
    if d.yes(0.2):  # without names: blocks, or one group
        rolled = False
        for i, s in enumerate(rows):
            s["rollout"] = i
            s["raw"] = d.gauss(1.0)
    if rolled and d.yes(0.05) and n > 1:
        rows[0]["raw"] = f32(rows[0]["raw"] + 1)  # perhaps a sibling with another reward
    group = [s["group"] for s in rows] if grouped else None
    rollout = [s["rollout"] for s in rows] if rolled else None
    case = {"kind": "chain", "reward": ro, "group": group, "rollout": rollout}
    shape = None
    raw = [s["raw"] for s in rows]
    if d.yes(0.25):
        longest = d.pick(9, 12, 17, 20)
        shape = {"max": longest, "buffer": d.pick(1, 4, 9), "factor": f32(d.pick(1.0, 0.5))}
        punish = [overlong(s["n"], longest, shape["buffer"], shape["factor"]) for s in rows]
        case["overlong_want"] = text(punish)
        # Siblings must agree on their reward: the longest speaks.
        worst = {}
        for s, p in zip(rows, punish):
            worst[s["rollout"]] = min(worst.get(s["rollout"], 0.0), p)
        raw = [f32(r + worst[s["rollout"]]) for r, s in zip(raw, rows)]
    case["overlong"] = shape
    case["raw"] = text(raw)
    shaped = rewards(ro, raw, group, rollout)
    ao = {"estimator": est, "kl_coef": f32(d.pick(0, 0.1, 1.0)), "gamma": f32(d.pick(1, 0.99, 0.9, 0)),
          "lambd": f32(d.pick(1, 0.95, 0.5)), "kl_type": d.pick(*KLS),
          "whiten": int(d.yes(0.4)), "opd_coef": f32(d.pick(0, 0, 0, 1.0, 0.5))}
    case["advantage"] = ao
    case["want"] = want = {"error": ""}
    if shaped is None:
        want["error"] = "rewards"
        return case | {"rows": [{"len": s["n"], "mask": text(s["mask"])} for s in rows]}
    shaped, sizes = shaped
    want["rewards"], want["rewards_scale"] = text(shaped), text(sizes)
    case["rows"] = lines = []
    advs, masks, scales = [], [], []
    for s, r, base in zip(rows, shaped, sizes):
        size = s["n"]
        m = ones(s["mask"], size)
        own = d.logps(size)
        ref = d.near(own, d.pick(0.0, 0.1, 1.0))
        teacher = d.near(own, d.pick(0.1, 2.0))
        values = [d.gauss(1.0) for _ in range(size)]
        kl = kl_value(ao["kl_type"], tens(own) - tens(ref), None).tolist() \
            if ao["kl_coef"] != 0 else [0.0] * size
        got = advantages(ao, r, m, kl, values)
        line = {"len": size, "mask": text(s["mask"]), "own": text(own), "ref": text(ref),
                "teacher": text(teacher), "values": text(values)}
        lines.append(line)
        if got is None:
            want["error"] = "advantages"
            return case
        adv, ret, big = got
        wide = max((2 + abs(a - c) + math.exp(-min(a - c, 0)) for a, c in zip(own, ref)), default=0)
        big = [b + base + ao["kl_coef"] * wide * (size if ao["gamma"] > 0 else 1) for b in big]
        line["returns_want"], line["returns_scale"] = text(ret), text(big)
        if ao["opd_coef"] != 0:
            delta = [a - b for a, b in zip(own, teacher)]
            act = [x for x, on in zip(delta, m) if on]
            line["opd_want"] = sum(act) / len(act) if act else 0.0
            adv = [a - ao["opd_coef"] * x for a, x in zip(adv, delta)]
            big = [b + ao["opd_coef"] * (abs(o) + abs(t)) for b, o, t in zip(big, own, teacher)]
        line["adv_want"], line["adv_scale"] = text(adv), text(big)
        advs.append(adv)
        masks.append(m)
        scales.append(big)
    if ao["whiten"]:
        got = whiten(advs, masks, scales)
        if got is None:
            want["error"] = "whiten"
            return case
        advs, wide = got
        for line, a, b in zip(lines, advs, wide):
            line["white_want"], line["white_scale"] = text(a), text(b)
    # The loss goes on with what float32 keeps of them.
    advs = [[f32(a) for a in adv] for adv in advs]
    opt = loss_opts(d, est, combo)
    case["loss"] = opt
    case["step"], case["samples"], want["metrics"] = policy_case(d, opt, rows, advs)
    return case


def hard(d, est, combo):
    """The loss alone, on inputs with nan, inf and numbers out of all bounds."""
    rows, _, _ = draw_batch(d, small=True)
    opt = loss_opts(d, est, combo)
    advs = [[d.gauss(1.0) if d.yes(0.9) else 0.0 for _ in range(s["n"])] for s in rows]
    case = {"kind": "loss", "loss": opt, "want": {}}
    case["step"], case["samples"], want = policy_case(d, opt, rows, advs, d.pick(0.05, 0.2, 0.5))
    keep = ("loss", "pg_loss", "kl_loss", "entropy_loss", "pg_clipfrac", "ppo_kl")
    case["want"]["metrics"] = {k: v for k, v in want.items() if k in keep}
    return case


def value(d):
    """The critic's loss."""
    rows, _, _ = draw_batch(d)
    rollouts, tokens = step_of(rows)
    clip, per_token = f32(d.pick(0.2, 0.5, 0.05)), int(d.yes(0.3))
    total, frac = torch.zeros((), dtype=F64), 0.0
    lines, live = [], []
    for s in rows:
        n = s["n"]
        m = torch.tensor(ones(s["mask"], n), dtype=torch.bool)
        u = [d.gauss(1.0) for _ in range(n)]
        v0 = d.near(u, d.pick(0.0, 0.1, 1.0))
        g = [d.gauss(1.5) for _ in range(n)]
        v, uu, gg = tens(v0).requires_grad_(True), tens(u), tens(g)
        apart((v - uu).abs()[m], clip)
        near = uu + clamp(v - uu, -clip, clip)
        a, b = (near - gg) ** 2, (v - gg) ** 2
        same = ((v - uu).abs() <= clip).detach()
        apart(torch.where(same, torch.ones_like(a), a - b)[m], 0.0, ties=False)
        # Where the clip does not act both squares are one and the same.
        L = torch.where(same, b, torch.maximum(a, b))
        weight = 1.0 / tokens if per_token else 1.0 / rollouts / max(s["denom"], 1)
        zero = torch.zeros_like(v)
        total = total + weight * torch.where(m, L, zero).sum()
        frac += weight * float(torch.where(m, ((v - uu).abs() > clip).to(F64), zero).sum())
        live.append((v, gg, m, weight))
        lines.append({"len": n, "mask": text(s["mask"]), "denom": s["denom"], "logp": text(v0),
                      "old": text(u), "adv": text(g)})
    total.backward()
    for (v, g, m, weight), line in zip(live, lines):
        grad = torch.zeros_like(v) if v.grad is None else v.grad
        line["dlogp"] = text(grad)
        line["scale"] = text(torch.where(m, 2 * weight * (v.abs() + g.abs()), torch.zeros_like(v)))
    return {"kind": "value", "value_clip": clip, "per_token": per_token, "samples": lines,
            "step": {"rollouts": rollouts, "tokens": tokens},
            "want": {"metrics": {"value_loss": float(total.detach()), "value_clipfrac": frac}}}


def sft(d):
    """Log-likelihood of given answers."""
    rows, _, _ = draw_batch(d)
    rollouts, tokens = step_of(rows)
    per_token = int(d.yes())
    total, lines = 0.0, []
    for s in rows:
        logp = d.logps(s["n"])
        m = ones(s["mask"], s["n"])
        weight = 1.0 / tokens if per_token else 1.0 / rollouts / max(s["denom"], 1)
        total -= weight * sum(x for x, on in zip(logp, m) if on)
        lines.append({"len": s["n"], "mask": text(s["mask"]), "denom": s["denom"],
                      "logp": text(logp if d.yes(0.7) else
                                   [x if on else NAN for x, on in zip(logp, m)]),
                      "dlogp": text([-weight * on for on in m]),
                      "scale": text([weight * on for on in m])})
    return {"kind": "sft", "per_token": per_token, "samples": lines,
            "step": {"rollouts": rollouts, "tokens": tokens}, "want": {"metrics": {"loss": total}}}


def estimate(d):
    """Section 4's table on single numbers, derivative included."""
    kind = d.pick(*KLS)
    diff = f32(d.pick(0.0, 0.1, -0.1, 2.0, -2.0, 25.0, -25.0, d.gauss(1.0), d.gauss(10.0)))
    base = d.gauss(1.0)
    new = f32(base + diff)
    x = torch.tensor(new, dtype=F64, requires_grad=True)
    k = kl_value(kind, x - base, None)
    apart((x - base).abs(), 20.0, ties=False)
    if not math.isfinite(float(over(k.detach()))):
        raise Ambiguous
    k.backward()
    e = math.exp(-(new - base))
    return {"kind": "kl", "type": kind, "new": repr(new), "base": repr(base),
            "want": {"value": repr(float(k.detach())), "slope": repr(float(x.grad)),
                     "scale": repr(1 + abs(new - base) * (1 + e) + e + abs(new) + abs(base))}}


def topk(d):
    """Top-k distillation at one position."""
    k = d.pick(1, 2, 3, 5)
    ids = d.r.sample(range(20), 12)

    def top():
        return [(i, f32(-abs(d.r.gauss(0, 3)) - 0.01)) for i in d.r.sample(ids, k)]

    student, teacher = top(), top()
    missing = d.yes(0.1)
    s_map, t_map = dict(student), dict(teacher)
    cross_s = {i: f32(-abs(d.r.gauss(0, 4)) - 1) for i in t_map if i not in s_map}
    cross_t = {i: f32(-abs(d.r.gauss(0, 4)) - 1) for i in s_map if i not in t_map}
    if missing:
        cross_s = {}
    strategy = d.pick("only-student", "only-teacher", "intersection", "union", "xor")
    mode = d.pick("student_p", "teacher_p", "none")
    got = topk_delta(strategy, mode, student, teacher, cross_s, cross_t)

    def flat(pairs):
        return {"ids": text([i for i, _ in pairs]), "logp": text([v for _, v in pairs])}

    return {"kind": "topk", "strategy": strategy, "weight": mode, "student": flat(student),
            "teacher": flat(teacher), "cross_student": flat(cross_s.items()),
            "cross_teacher": flat(cross_t.items()),
            "want": {"error": "topk" if got is None else "",
                     "delta": None if got is None else repr(got[0]),
                     "scale": None if got is None else repr(got[1] + 1)}}


# --- section 13 -------------------------------------------------------------------------------

def first_fit(lens, cap, decreasing=True):
    order = sorted(range(len(lens)), key=lambda i: -lens[i]) if decreasing else range(len(lens))
    bins, sums = [], []
    for i in order:
        for b, total in enumerate(sums):
            if total + lens[i] <= cap:
                bins[b].append(i)
                sums[b] += lens[i]
                break
        else:
            bins.append([i])
            sums.append(lens[i])
    return bins


def differencing(weights, k, equal):
    """Largest differencing, sets kept sorted by (sum, count, items) from large to small."""
    def key(s):
        return (sum(w for _, w in s), len(s), s)

    def order(sets):
        return sorted(sets, key=key, reverse=True)

    def spread(st):
        return (sum(w for _, w in st[0]) - sum(w for _, w in st[-1]), key(st[0]))

    if equal:
        if len(weights) % k:
            return None
        by = sorted(range(len(weights)), key=lambda i: (weights[i], i))
        states = [order([[(i, weights[i])] for i in by[a:a + k]]) for a in range(0, len(by), k)]
    else:
        states = [order([[(i, w)]] + [[] for _ in range(k - 1)]) for i, w in enumerate(weights)]
    while len(states) > 1:
        states.sort(key=spread, reverse=True)
        a, b = states.pop(0), states.pop(0)
        states.append(order([a[i] + b[k - 1 - i] for i in range(k)]))
    sets = [sorted(i for i, _ in s) for s in states[0]]
    return None if any(not s for s in sets) else sets


def split(lens, bins, target):
    bins = [list(b) for b in bins]
    while len(bins) < target:
        many = [(sum(lens[i] for i in b), j) for j, b in enumerate(bins) if len(b) > 1]
        if not many:
            return None
        _, j = max(many)
        halves, sums = [[], []], [0, 0]
        for i in sorted(bins[j], key=lambda i: -lens[i]):
            h = 0 if sums[0] <= sums[1] else 1
            halves[h].append(i)
            sums[h] += lens[i]
        bins[j] = halves[0]
        bins.append(halves[1])
    return bins


def pack(d):
    n = d.r.randrange(1, 14)
    lens = [d.r.randrange(1, 40) for _ in range(n)]
    if d.yes(0.2):
        lens = [d.pick(3, 5) for _ in range(n)]
    what = d.pick("ffd", "kk", "kk", "kkeq", "split")
    case = {"kind": "pack", "what": what, "lens": text(lens)}
    if what == "ffd":
        case["cap"] = d.r.randrange(5, 60)
        bins = first_fit(lens, case["cap"])
    elif what in ("kk", "kkeq"):
        case["k"] = d.r.randrange(1, 6)
        if what == "kkeq":
            n = case["k"] * d.r.randrange(1, 4)
            lens = [d.r.randrange(1, 30) for _ in range(n)]
            case["lens"] = text(lens)
        bins = differencing(lens, case["k"], what == "kkeq")
    else:
        case["cap"] = d.r.randrange(10, 60)
        bins = first_fit(lens, case["cap"])
        case["target"] = len(bins) + d.r.randrange(0, 5)
        bins = split(lens, bins, case["target"])
    case["want"] = {"bins": None if bins is None else ["%s" % " ".join(map(str, b)) for b in bins]}
    return case


def logsoftmax(d):
    """Section 3: a row of logits to a log-prob and an entropy, with their gradients."""
    v = d.pick(2, 4, 7, 33, 64)
    x = [d.gauss(d.pick(0.5, 3.0)) for _ in range(v)]
    y, tau = d.r.randrange(v), f32(d.pick(1.0, 1.0, 0.7, 1.3))
    t = tens(x).requires_grad_(True)
    z = t / tau
    lp = z[y] - torch.logsumexp(z, 0)
    p = torch.softmax(z, 0)
    h = torch.logsumexp(z, 0) - (p * z).sum()
    (g,) = torch.autograd.grad(lp, t, retain_graph=True)
    (gh,) = torch.autograd.grad(h, t)
    return {"kind": "logp", "logits": text(x), "target": y, "tau": repr(tau),
            "want": {"logp": repr(float(lp.detach())), "entropy": repr(float(h.detach())), "dlogp": text(g),
                     "dentropy": text(gh)}}


def plan(n):
    """Kinds of n cases: every estimator with every correction and KL, then the others in turn."""
    grid = list(itertools.product(ESTIMATORS, CORRECTIONS, KL_CHOICES))
    random.Random(7).shuffle(grid)
    i = 0
    for c in range(n):
        est, corr, kl = grid[i % len(grid)]
        slot = c % 20
        if slot < 12:
            i += 1
            yield lambda d, e=est, k=(corr, kl): chain(d, e, k)
        elif slot < 15:
            est, corr, kl = grid[(i * 7 + slot) % len(grid)]
            yield lambda d, e=est, k=(corr, kl): hard(d, e, k)
        else:
            turn = (slot - 15 + c // 20) % 7
            yield [value, sft, estimate, topk, pack, logsoftmax, value][turn]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--cases", type=int, default=2200)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--only")
    ap.add_argument("--part", default="0/1", help="every N-th case from I on")
    args = ap.parse_args()
    part, parts = map(int, args.part.split("/"))
    redrawn = 0
    for i, make in enumerate(plan(args.cases)):
        if i % parts != part:
            continue
        for attempt in range(200):
            d = Draw(random.Random((args.seed * 1000003 + i) * 1009 + attempt))
            try:
                case = make(d)
                break
            except Ambiguous:
                redrawn += 1
        else:
            sys.exit(f"case {i}: every draw was ambiguous")
        case["id"] = i
        if not args.only or case["kind"] == args.only:
            print(json.dumps(case))
    print(f"drawn again: {redrawn}", file=sys.stderr)


if __name__ == "__main__":
    main()
