"""Agents: a function that talks to the policy through an OpenAI-compatible endpoint of its own, and
what becomes of the conversation. The session server keeps the tokens; here a session is opened, the
agent is run, and the samples are fetched."""

import asyncio
import http.client
import inspect
import json
import struct
import sys
from array import array
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from miles_c import worker
from miles_c.types import Sample

SIZES = {"I32": ("i", 4), "F32": ("f", 4), "U8": ("B", 1)}


class SessionError(RuntimeError):
    """What the session server refused."""


def call(url, method, path, body=None, timeout=600.0):
    """One request to the session server: the bytes of its answer."""
    at = urlsplit(url)
    conn = http.client.HTTPConnection(at.hostname, at.port, timeout=timeout)
    try:
        data = None if body is None else json.dumps(body).encode()
        conn.request(method, at.path.rstrip("/") + path, data, {"Content-Type": "application/json"})
        answer = conn.getresponse()
        raw = answer.read()
        if answer.status >= 300:
            text = raw.decode("utf-8", "replace")
            try:
                text = json.loads(text)["error"]["message"]
            except (ValueError, KeyError, TypeError):
                pass
            raise SessionError("%s %s: %d: %s" % (method, path, answer.status, text[:300]))
        return raw
    finally:
        conn.close()


def tensors(blob):
    """The tensors of a safetensors file as lists; `_samples_meta` as the object it holds."""
    (size,) = struct.unpack("<Q", blob[:8])
    header, base, out = json.loads(blob[8 : 8 + size]), 8 + size, {}
    for name, t in header.items():
        if name == "__metadata__":
            continue
        start, end = t["data_offsets"]
        raw = blob[base + start : base + end]
        if name == "_samples_meta":
            out[name] = json.loads(raw)
            continue
        values = array(SIZES[t["dtype"]][0])
        values.frombytes(raw)
        if sys.byteorder == "big":
            values.byteswap()
        out[name] = values.tolist()
    return out


def samples_of(blob, sample):
    """The samples of a session, made of the one that was to be filled."""
    parts, out = tensors(blob), []
    for i, meta in enumerate(parts["_samples_meta"]["samples"]):
        one = Sample.from_dict(dict(sample.to_dict(), metadata=dict(sample.metadata or {})))
        one.tokens = parts["%d.tokens" % i]
        one.loss_mask = parts["%d.loss_mask" % i]
        one.rollout_log_probs = parts["%d.rollout_log_probs" % i]
        one.response_length = meta["response_length"]
        one.response = meta["response"]
        one.status = Sample.Status(meta["status"])
        one.weight_versions = meta["weight_versions"]
        one.segments = meta["segments"]
        one.metadata["messages"] = meta["messages"]
        one.metadata["round_number"] = meta["turns"]
        one.metadata["response_ids"] = meta["response_ids"]
        one.metadata["tito_session_mismatch"] = meta["mismatch"]
        out.append(one)
    return out


def request_kwargs(params):
    """Sampling parameters by the names of OpenAI's clients. The session has all of them already: an
    agent that does not hand these on samples in the same way."""
    names = {"max_new_tokens": "max_tokens", "temperature": "temperature", "top_p": "top_p"}
    return {names[k]: v for k, v in params.items() if k in names}


def take_result(samples, result):
    """What the agent returned: nothing, a reward, or a dict with `reward` and further facts. The
    samples of a session are one rollout, and have one reward."""
    if result is None:
        return
    facts = result if isinstance(result, dict) else {"reward": result}
    reward = facts.get("reward")
    for one in samples:
        one.reward = None if reward is None else worker.plain(reward)
        one.metadata.update({k: v for k, v in facts.items() if k != "reward"})
        metrics = facts.get("agent_metrics") or {}
        one.non_generation_time = float(metrics.get("total_tool_time", 0.0))


class Agent:
    """--custom-agent-function-path: run(base_url, prompt, request_kwargs, metadata, **kwargs)."""

    concurrent = True

    def __init__(self, fn, args):
        self.fn, self.args = fn, args
        self.url = "http://%s:%d" % (args.session_server_ip, args.session_server_port)
        self.pool = ThreadPoolExecutor(max_workers=128)
        self.pick = self.named("session_sample_picker_path", "drop_retries")
        self.finish = self.named("session_sample_postprocessor_path", "default_postprocess")
        try:
            params = inspect.signature(fn).parameters.values()
        except (TypeError, ValueError):
            params = ()
        self.every = any(p.kind == p.VAR_KEYWORD for p in params)
        self.names = {p.name for p in params}

    def named(self, option, builtin):
        path = getattr(self.args, option, None)
        if not path or path.rpartition(".")[2] == builtin:
            return None
        return worker.load(path, None)

    def kwargs(self, **all):
        """Those that the function takes."""
        return {k: v for k, v in all.items() if self.every or k in self.names}

    async def ask(self, method, path, body=None):
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.pool, call, self.url, method, path, body)

    async def talk(self, session, sample, params, evaluation):
        """Runs the agent; a plain function runs in a thread."""
        kwargs = self.kwargs(base_url="%s/sessions/%s" % (self.url, session), prompt=sample.prompt,
                             request_kwargs=request_kwargs(params), metadata=sample.metadata,
                             label=sample.label, args=self.args, evaluation=evaluation)
        if worker.is_async(self.fn):
            return await self.fn(**kwargs)
        loop = asyncio.get_running_loop()
        result = await loop.run_in_executor(self.pool, lambda: self.fn(**kwargs))
        return await result if inspect.isawaitable(result) else result

    async def run(self, sample, params, evaluation):
        sample, params = Sample.from_dict(sample), dict(params)
        seed = params.pop("sampling_seed")
        params.pop("skip_special_tokens", None)
        opened = await self.ask("POST", "/sessions", {"seed": seed, "sampling_params": params})
        session = json.loads(opened)["session_id"]
        try:
            result = await self.talk(session, sample, params, evaluation)
            blob = await self.ask("POST", "/sessions/%s/samples" % session,
                                  {"all": self.pick is not None})
        finally:
            # also of a call that took too long: what its agent still asks is refused
            self.pool.submit(quietly, self.url, session)
        samples = samples_of(blob, sample)
        if not samples:
            raise RuntimeError("the agent ended without an answer of the policy")
        take_result(samples, result)
        if self.pick:
            samples = list(self.pick(self.args, samples))
        if self.finish:
            samples = list(self.finish(self.args, samples))
        return samples

    def call(self, req):
        return self.run(*req["argv"])

    def value(self, req, value):
        from miles_c import hooks

        out = [hooks.sample_out(s) for s in value]
        if not out:
            raise ValueError("no sample was left of the session")
        for s in out:
            hooks.check_sample(s)
        return out


def quietly(url, session):
    try:
        call(url, "DELETE", "/sessions/" + session, timeout=10.0)
    except (OSError, SessionError, http.client.HTTPException):
        pass


# ---- the tool loop ----


def tool_specs(path):
    """A list of tool schemas: a JSON file, or a list or function by its path."""
    if path.endswith(".json"):
        with open(path) as f:
            return json.load(f)
    specs = worker.load(path, None, any_value=True)
    return specs() if callable(specs) else specs


class ToolLoop:
    """The built-in agent: answers of the policy that call tools are followed by the tools' results,
    until one calls none, or --generate-max-turns."""

    def __init__(self, execute, args):
        self.execute, self.turns = execute, args.generate_max_turns
        self.specs = tool_specs(args.generate_tool_specs_path)

    async def run_tool(self, name, arguments):
        try:
            text = self.execute(name, json.loads(arguments))
            text = await text if inspect.isawaitable(text) else text
            return text if isinstance(text, str) else json.dumps(text)
        except Exception as exc:  # the policy reads what went wrong
            return "error: %s" % exc

    async def __call__(self, base_url, prompt, request_kwargs, metadata):
        loop, spent = asyncio.get_running_loop(), 0.0
        messages = list(prompt) if isinstance(prompt, list) else [
            {"role": "user", "content": prompt}]
        for _ in range(self.turns):
            body = dict(request_kwargs, messages=messages, tools=self.specs)
            raw = await loop.run_in_executor(None, call, base_url, "POST", "/v1/chat/completions",
                                             body)
            choice = json.loads(raw)["choices"][0]
            messages.append(choice["message"])
            calls = choice["message"].get("tool_calls") or []
            if choice["finish_reason"] != "tool_calls" or not calls:
                break
            begun = loop.time()
            for c in calls:
                text = await self.run_tool(c["function"]["name"], c["function"]["arguments"])
                messages.append({"role": "tool", "tool_call_id": c["id"], "content": text})
            spent += loop.time() - begun
        return {"agent_metrics": {"total_tool_time": spent}}


def agent(fn, args):
    return Agent(fn, args)


def tool_loop(fn, args):
    return Agent(ToolLoop(fn, args), args)
