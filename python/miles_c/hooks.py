"""How each hook is called: from the plain data of the main program to the call that the function
was written for, and back. One class for each kind of call; TARGETS names it by the flag."""

import inspect
import json
import math
from types import SimpleNamespace

from miles_c import worker
from miles_c.types import (
    DynamicFilterOutput,
    EvalSkip,
    GenerateFnInput,
    GenerateFnOutput,
    RolloutFnConstructorInput,
    RolloutFnEvalInput,
    RolloutFnEvalOutput,
    RolloutFnTrainInput,
    RolloutFnTrainOutput,
    Sample,
)


# ---- data ----


def sample_in(data):
    return Sample.from_dict(data)


def group_in(data):
    return [Sample.from_dict(s) for s in data]


def groups_in(data):
    """Groups, or a plain list of samples."""
    return [group_in(g) if isinstance(g, list) else sample_in(g) for g in data]


def sample_out(sample):
    if not isinstance(sample, Sample) and not hasattr(sample, "to_dict"):
        raise TypeError("%s is no Sample" % type(sample).__name__)
    return clean(sample.to_dict())


def groups_out(groups):
    return [
        [sample_out(s) for s in g] if isinstance(g, (list, tuple)) else sample_out(g)
        for g in groups
    ]


def default(value):
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if hasattr(value, "__dict__"):
        return value.__dict__
    raise TypeError("%s is not plain data" % type(value).__name__)


def clean(value):
    """Plain data: numbers, text, lists and dicts, without infinities."""
    text = json.dumps(value, default=default, allow_nan=False, ensure_ascii=False)
    text.encode()
    return json.loads(text, parse_int=worker.small)


def numbers(metrics):
    """Metrics as numbers; what is none is refused by name."""
    out = {}
    for name, value in (metrics or {}).items():
        value = value.item() if hasattr(value, "item") else value
        if not isinstance(value, (bool, int, float)):
            raise TypeError("metric %s is %s, not a number" % (name, type(value).__name__))
        value = float(value)
        out[str(name)] = value if math.isfinite(value) else None
    return out


# ---- signatures ----


def positional(fn):
    """(least, most) positional arguments that fn takes; None where it cannot be known."""
    try:
        params = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return None
    least = most = 0
    for p in params:
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
            most += 1
            least += p.default is p.empty
        elif p.kind == p.VAR_POSITIONAL:
            most = 1 << 20
    return least, most


def check_arity(fn, n, call):
    span = positional(fn)
    if span and not span[0] <= n <= span[1]:
        raise TypeError(
            "%s takes %d positional arguments, the call has %d: %s"
            % (getattr(fn, "__name__", "it"), span[0], n, call)
        )


class DataSourceProxy:
    """The run's own data source, asked over the pipe."""

    def __call__(self, num_samples):
        return self.get_samples(num_samples)

    def get_samples(self, num_samples):
        return groups_in(worker.ask(worker.State.current, "get_samples", int(num_samples)))

    def add_samples(self, samples):
        worker.ask(worker.State.current, "add_samples", groups_out(samples))

    def get_buffer_length(self):
        return worker.ask(worker.State.current, "get_buffer_length")


# ---- calls ----


class Hook:
    """A function that takes `args` and the plain values of the call."""

    n, signature = 1, "fn(args)"
    concurrent = False

    def __init__(self, fn, args):
        self.fn, self.args = fn, args
        self.check()

    def check(self):
        check_arity(self.fn, self.n, self.signature)

    def call(self, req):
        worker.State.current = req["id"]
        return self.run(*req["argv"])

    def run(self, *argv):
        return self.fn(self.args, *argv)

    def value(self, req, value):
        return clean(value)


class Init(Hook):
    """The result is nobody's."""

    def value(self, req, value):
        return None


class Filter(Hook):
    n, signature = 2, "fn(args, samples)"

    def run(self, group):
        return self.fn(self.args, group_in(group))

    def value(self, req, value):
        if isinstance(value, tuple) and len(value) == 2:
            value = DynamicFilterOutput(*value)
        elif isinstance(value, bool) or hasattr(value, "item"):
            value = DynamicFilterOutput(bool(value))
        if not hasattr(value, "keep"):
            raise TypeError(
                "it returned %s, not a DynamicFilterOutput or a bool" % type(value).__name__
            )
        reason = getattr(value, "reason", None)
        return {"keep": bool(value.keep), "reason": None if reason is None else str(reason)}


class BufferFilter(Hook):
    """It takes groups out of the buffer and returns them: told by their places."""

    n, signature = 4, "fn(args, rollout_id, buffer, num_samples)"

    def run(self, rollout_id, buffer, num_samples):
        self.groups = groups_in(buffer)
        self.left = list(self.groups)
        return self.fn(self.args, rollout_id, self.left, num_samples)

    def value(self, req, taken):
        places = {id(g): i for i, g in enumerate(self.groups)}
        if not isinstance(taken, (list, tuple)):
            raise TypeError("it returned %s, not a list of groups" % type(taken).__name__)
        for g in list(taken) + self.left:
            if id(g) not in places:
                raise ValueError("a group came back that was not in the buffer")
        take, rest = [places[id(g)] for g in taken], [places[id(g)] for g in self.left]
        if len(set(take)) != len(take):
            raise ValueError("a group was taken twice")
        return {"take": take, "rest": [i for i in rest if i not in set(take)]}


class SampleFilter(Hook):
    n, signature = 2, "fn(args, groups)"

    def run(self, groups):
        self.groups = groups_in(groups)
        return self.fn(self.args, self.groups)

    def value(self, req, value):
        flat = [s for g in self.groups for s in (g if isinstance(g, list) else [g])]
        return {"remove": [bool(s.remove_sample) for s in flat]}


class AllSamples(Hook):
    n, signature = 3, "fn(args, all_samples, data_source)"

    def run(self, groups):
        return self.fn(self.args, groups_in(groups), DataSourceProxy())

    def value(self, req, value):
        return None


class Convert(Hook):
    n, signature = 2, "fn(args, samples)"

    def run(self, samples):
        return self.fn(self.args, group_in(samples))

    def value(self, req, value):
        if not isinstance(value, dict):
            raise TypeError("it returned %s, not a dict of lists" % type(value).__name__)
        return clean(value)


class PostProcess(Hook):
    """Raw and shaped rewards of all samples."""

    n, signature = 2, "fn(args, samples)"

    def run(self, samples):
        return self.fn(self.args, group_in(samples))

    def value(self, req, value):
        if not isinstance(value, (list, tuple)) or len(value) != 2:
            raise TypeError("it did not return raw and shaped rewards")
        req = {"group": req["argv"][0]}
        raw, shaped = worker.listed(req, value[0]), worker.listed(req, value[1])
        return [{"raw": r, "reward": s} for r, s in zip(raw, shaped)]


class RolloutLog(Hook):
    n, signature = 5, "fn(rollout_id, args, samples, rollout_extra_metrics, rollout_time)"

    def run(self, rollout_id, samples, metrics, seconds):
        return self.fn(rollout_id, self.args, groups_in(samples), metrics, seconds)

    def value(self, req, value):
        return bool(value)


class EvalLog(Hook):
    n, signature = 4, "fn(rollout_id, args, data, extra_metrics)"

    def run(self, rollout_id, data, metrics):
        for one in data.values():
            if "samples" in one:
                one["samples"] = groups_in(one["samples"])
        return self.fn(rollout_id, self.args, data, metrics)

    def value(self, req, value):
        return bool(value)


class Generate(Hook):
    """One sample, or several made of it."""

    signature = "fn(args, sample, sampling_params) or fn(input)"

    def check(self):
        span = positional(self.fn) or (3, 3)
        self.concurrent = worker.is_async(self.fn)
        self.form = 1 if span[0] <= 1 and span[1] < 3 else 3
        if self.form == 3:
            check_arity(self.fn, 3, self.signature)
        names = ()
        try:
            names = inspect.signature(self.fn).parameters
        except (TypeError, ValueError):
            pass
        self.tell_eval = "evaluation" in names
        self.state = SimpleNamespace(args=self.args)

    def run(self, sample, sampling_params, evaluation):
        sample = sample_in(sample)
        if self.form == 1:
            one = GenerateFnInput(self.state, sample, sampling_params, evaluation)
            return self.fn(one)
        if self.tell_eval:
            return self.fn(self.args, sample, sampling_params, evaluation=evaluation)
        return self.fn(self.args, sample, sampling_params)

    def value(self, req, value):
        if isinstance(value, GenerateFnOutput):
            value = value.samples
        several = isinstance(value, (list, tuple))
        out = [sample_out(s) for s in (value if several else [value])]
        if not out:
            raise ValueError("it returned no sample")
        for s in out:
            check_sample(s)
        return out


def check_sample(s):
    """The lengths of a sample fit each other."""
    n = s.get("response_length", 0)
    if len(s.get("tokens") or []) < n:
        raise ValueError("%d tokens, of which %d are the response" % (len(s["tokens"] or []), n))
    for key in ("loss_mask", "rollout_log_probs"):
        if s.get(key) is not None and len(s[key]) != n:
            raise ValueError("%d values of %s for %d response tokens" % (len(s[key]), key, n))


class Source(Hook):
    """A class: one object, whose methods are called by name."""

    signature = "class(args)"

    def check(self):
        if not inspect.isclass(self.fn):
            raise TypeError("it is a function, not a class(args)")
        self.object = self.fn(self.args)

    def run(self, method, *argv):
        if method == "get_samples":
            return groups_out(self.object.get_samples(*argv))
        if method == "add_samples":
            return self.object.add_samples(groups_in(argv[0]))
        if method == "length":
            return len(self.object) if hasattr(self.object, "__len__") else None
        if not hasattr(self.object, method):
            return None
        return getattr(self.object, method)(*argv)


class Rollout(Hook):
    """A class(input) or class(args, data_source) whose object is called with an input, or a
    function fn(args, rollout_id, data_source, evaluation)."""

    signature = "class(input), or fn(args, rollout_id, data_source, evaluation=False)"

    def check(self):
        self.object, source = None, DataSourceProxy()
        if inspect.isclass(self.fn):
            span = positional(self.fn) or (1, 1)
            if span[0] <= 1 and span[1] < 2:
                self.object = self.fn(RolloutFnConstructorInput(self.args, source))
            else:
                self.object = self.fn(self.args, source)
            if not callable(self.object):
                raise TypeError("its objects cannot be called")
        else:
            check_arity(self.fn, 3, self.signature)
        self.source = source

    def run(self, rollout_id, evaluation):
        try:
            if self.object is not None:
                kind = RolloutFnEvalInput if evaluation else RolloutFnTrainInput
                value = self.object(kind(rollout_id))
            else:
                value = self.fn(self.args, rollout_id, self.source, evaluation=evaluation)
        except EvalSkip as skip:
            return {"skip": str(skip)}
        return skipping(value)

    def value(self, req, value):
        if isinstance(value, dict) and "skip" in value:
            return value
        evaluation = req["argv"][1]
        if evaluation:
            data = value.data if isinstance(value, RolloutFnEvalOutput) else value
            if not isinstance(data, dict):
                raise TypeError("it returned %s, not a RolloutFnEvalOutput" % type(data).__name__)
            sets = {}
            for name, one in data.items():
                sets[name] = clean({k: v for k, v in one.items() if k != "samples"})
                sets[name]["samples"] = groups_out(one.get("samples") or [])
            return {"data": sets, "metrics": numbers(getattr(value, "metrics", None))}
        samples = value.samples if isinstance(value, RolloutFnTrainOutput) else value
        if not isinstance(samples, (list, tuple)):
            raise TypeError("it returned %s, not a RolloutFnTrainOutput" % type(samples).__name__)
        groups = groups_out(samples)
        for g in groups:
            for s in g if isinstance(g, list) else [g]:
                check_sample(s)
        return {"samples": groups, "metrics": numbers(getattr(value, "metrics", None))}


def skipping(value):
    """EvalSkip is an answer, not an error; an awaitable is awaited first."""
    if not inspect.isawaitable(value):
        return value

    async def wait():
        try:
            return await value
        except EvalSkip as skip:
            return {"skip": str(skip)}

    return wait()


class PostSave(Hook):
    n, signature = 4, "fn(args, rollout_id, ckpt_dir, hf_dir)"

    def value(self, req, value):
        return None


class PostWrite(Hook):
    n, signature = 3, "fn(args, version_dir, engines)"

    def value(self, req, value):
        return None


TARGETS = {
    "custom-reward-post-process-path": PostProcess,
    "dynamic-sampling-filter-path": Filter,
    "buffer-filter-path": BufferFilter,
    "rollout-sample-filter-path": SampleFilter,
    "rollout-all-samples-process-path": AllSamples,
    "rollout-data-postprocess-path": Init,
    "custom-convert-samples-to-train-data-path": Convert,
    "custom-rollout-log-function-path": RolloutLog,
    "custom-eval-rollout-log-function-path": EvalLog,
    "custom-generate-function-path": Generate,
    "data-source-path": Source,
    "custom-async-data-buffer-path": Source,
    "rollout-function-path": Rollout,
    "eval-function-path": Rollout,
    "custom-megatron-init-path": Init,
    "custom-megatron-post-save-hook-path": PostSave,
    "custom-update-weight-post-write-path": PostWrite,
}


def target(hook, fn, args):
    if hook in ("custom-loss-function-path", "custom-tis-function-path",
                "custom-pg-loss-reducer-function-path"):
        from miles_c import loss

        return loss.TARGETS[hook](fn, args)
    if hook.startswith("custom-megatron-before-"):
        from miles_c import params

        return params.TARGETS[hook](fn, args)
    if hook in ("custom-agent-function-path", "generate-execute-tool-function-path"):
        from miles_c import agent

        return (agent.agent if hook.startswith("custom-agent") else agent.tool_loop)(fn, args)
    return TARGETS[hook](fn, args)
