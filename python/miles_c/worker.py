"""The Python half of a worker process. A line of JSON each way:

    -> {"path", "source": null or text, "args": {...}, "timeout": s, "limit": bytes,
        "hook": null or flag, "modules"}                                              once
    <- {"ready": true, "async": bool}  or  {"load_error": text}
    -> {"id": n, "sample": {...}}              a reward
    <- {"id": n, "value": number or object}  or  {"id": n, "error": text}
    -> {"id": n, "group": [{...}, ...]}        rewards of a group
    <- {"id": n, "value": [number or object, ...]}  or  {"id": n, "error": text}
    -> {"id": n, "argv": [...]}                a hook (miles_c.hooks says what its arguments are)
    <- {"id": n, "value": anything}  or  {"id": n, "error": text}
    <- {"id": n, "ask": name, "argv": [...]}   while call n runs: a question back
    -> {"id": n, "reply": anything}  or  {"id": n, "refused": text}

An `async def` function gets several calls at once and keeps its own time-out; a plain function gets
one at a time. Standard library only, any Python from 3.8 on.
"""

import argparse
import importlib
import importlib.util
import inspect
import json
import math
import os
import sys
import traceback

from miles_c import shim
from miles_c.types import Sample


class State:
    """What the process knows; there is one."""

    setup = None
    lines = None
    replies = -1
    pid = 0
    asks = None  # of an async worker: answers to questions, by the id of their call
    current = None  # id of the plain call that runs


def explain(exc, lines=1):
    """The exception's own line, and where in the user's code it came from."""
    try:
        text = traceback.format_exception_only(type(exc), exc)[-1].strip()
    except BaseException:
        text = type(exc).__name__
    where, tb = [], exc.__traceback__
    while tb is not None:
        name = tb.tb_frame.f_code.co_filename
        if not name.startswith("<"):
            where.append("%s:%d" % (name, tb.tb_lineno))
        tb = tb.tb_next
    if isinstance(exc, SyntaxError) and exc.filename:
        where = ["%s:%s" % (exc.filename, exc.lineno)]
    where = " (%s)" % ", from ".join(reversed(where[-lines:])) if where else ""
    if len(text) > 1500:
        text = text[:1500] + "..."
    text = "".join(c if c.isprintable() else " " for c in text + where)
    return text.encode("utf-8", "replace").decode("utf-8")


def load(path, source, any_value=False):
    if source is not None:
        space = {"__name__": path}
        exec(compile(source, "<%s>" % path, "exec"), space)
        return space["reward"]
    if ".py:" in path:
        name, attr = path.rsplit(":", 1)
        name = os.path.abspath(name)
        if not os.path.isfile(name):
            raise FileNotFoundError("no file " + name)
        sys.path.insert(0, os.path.dirname(name))
        stem = os.path.splitext(os.path.basename(name))[0]
        if stem in sys.modules:
            stem = "reward_" + stem
        spec = importlib.util.spec_from_file_location(stem, name)
        module = importlib.util.module_from_spec(spec)
        sys.modules[stem] = module
        spec.loader.exec_module(module)
    else:
        name, _, attr = path.rpartition(".")
        if not name or not attr:
            raise ImportError("neither pkg.module.function nor FILE.py:function")
        module = importlib.import_module(name)
    if not hasattr(module, attr):
        raise AttributeError("%s has no function %s" % (name, attr))
    fn = getattr(module, attr)
    if not callable(fn) and not any_value:
        raise TypeError("%s in %s is not a function" % (attr, name))
    return fn


def send(obj):
    if os.getpid() != State.pid:
        os._exit(0)  # a process that user code forked came back here
    data = (json.dumps(obj, allow_nan=False) + "\n").encode()
    view = memoryview(data)
    while view:
        view = view[os.write(State.replies, view) :]


# ---- questions back ----


def ask(call, name, *argv):
    """Asks the main program, in the middle of call number `call`, and waits for its word."""
    if State.asks is None:
        send({"id": call, "ask": name, "argv": list(argv)})
        reply = json.loads(State.lines.readline())
    else:
        import queue

        box = State.asks.setdefault(call, queue.SimpleQueue())
        send({"id": call, "ask": name, "argv": list(argv)})
        reply = box.get()
    if "refused" in reply:
        raise RuntimeError(reply["refused"])
    return reply["reply"]


# ---- rewards ----


def unwrap(value):
    if hasattr(value, "tolist"):  # numpy, torch
        return value.tolist()
    raise TypeError("%s is not JSON" % type(value).__name__)


def small(text):
    if not -(2**63) <= int(text) < 2**63:
        raise ValueError("an integer of %d digits does not fit 64 bits" % len(text))
    return int(text)


def plain(value):
    if not isinstance(value, (bool, int, float, dict)) and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, dict):
        text = json.dumps(value, allow_nan=False, default=unwrap, ensure_ascii=False)
        text.encode()
        return json.loads(text, parse_int=small)
    if not isinstance(value, (bool, int, float)):
        kind = "None" if value is None else "of type " + type(value).__name__
        raise TypeError("the reward is %s, not a number or a dict" % kind)
    if isinstance(value, int):
        return int(value) if abs(value) < 2**53 else float(value)
    if not math.isfinite(value):
        raise ValueError("the reward is %r" % value)
    return float(value)


def listed(req, value):
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, (list, tuple)):
        kind = "None" if value is None else "of type " + type(value).__name__
        raise TypeError("the reward of a group is %s, not a list" % kind)
    if len(value) != len(req["group"]):
        raise ValueError(
            "%d rewards for a group of %d samples" % (len(value), len(req["group"]))
        )
    return [plain(v) for v in value]


class Reward:
    """fn(args, sample) or, of a group, fn(args, samples)."""

    def __init__(self, fn, args):
        self.fn, self.args = fn, args

    def call(self, req):
        if "group" in req:
            return self.fn(self.args, [Sample.from_dict(s) for s in req["group"]])
        return self.fn(self.args, Sample.from_dict(req["sample"]))

    def value(self, req, value):
        if "group" not in req:
            return plain(value)
        return listed(req, value)


# ---- the loop ----


def answer(target, req, value):
    try:
        out = {"id": req["id"], "value": target.value(req, value)}
        size = len(json.dumps(out))
        limit = State.setup["limit"]
        if size > limit:
            what = "answer" if State.setup["hook"] else "reward"
            raise ValueError("the %s has %d bytes of JSON, over %d" % (what, size, limit))
    except BaseException as exc:
        out = {"id": req["id"], "error": explain(exc)}
    send(out)


# asyncio is half of the start-up time: it comes when it is needed.
def serve(target, lines):
    loop = None
    for line in lines:
        req = json.loads(line)
        try:
            State.current = req["id"]
            value = target.call(req)
            if inspect.isawaitable(value):
                if loop is None:
                    import asyncio

                    loop = asyncio.new_event_loop()
                    asyncio.set_event_loop(loop)

                async def wait(value=value):
                    return await value

                value = loop.run_until_complete(wait())
        except BaseException as exc:
            send({"id": req["id"], "error": explain(exc, 3)})
        else:
            answer(target, req, value)


async def serve_async(asyncio, target, lines):
    import threading

    loop, tasks, closed = asyncio.get_running_loop(), set(), asyncio.Event()
    timeout = State.setup["timeout"]
    State.asks = {}

    # Errors are told as text: SystemExit inside a task would stop the event loop.
    async def guarded(req):
        try:
            return await target.call(req), None
        except asyncio.CancelledError:
            raise
        except BaseException as exc:
            return None, explain(exc, 3)

    async def one(req):
        try:
            value, error = await asyncio.wait_for(guarded(req), timeout)
        except asyncio.TimeoutError:
            what = "answer" if State.setup["hook"] else "reward"
            error = "no %s within %g s" % (what, timeout)
        except BaseException as exc:
            error = explain(exc)
        if error is None:
            answer(target, req, value)
        else:
            send({"id": req["id"], "error": error})

    def begin(req):
        task = loop.create_task(one(req))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def read():
        for line in lines:
            req = json.loads(line)
            if "reply" in req or "refused" in req:
                State.asks[req["id"]].put(req)
            else:
                loop.call_soon_threadsafe(begin, req)
        loop.call_soon_threadsafe(closed.set)

    threading.Thread(target=read, daemon=True).start()
    await closed.wait()


def is_async(fn):
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(
        getattr(fn, "__call__", None)
    )


def main(setup, lines, replies):
    State.setup, State.lines, State.replies, State.pid = setup, lines, replies, os.getpid()
    args = argparse.Namespace(**setup["args"])
    shim.install()
    try:
        sys.path.insert(0, os.getcwd())
        fn = load(setup["path"], setup.get("source"))
        if setup.get("hook"):
            from miles_c import hooks

            target = hooks.target(setup["hook"], fn, args)
            concurrent = target.concurrent
        else:
            target = Reward(fn, args)
            concurrent = is_async(fn)
    except BaseException as exc:
        send({"load_error": explain(exc)})
        os._exit(1)
    send({"ready": True, "async": concurrent})
    if concurrent:
        import asyncio

        asyncio.run(serve_async(asyncio, target, lines))
    else:
        serve(target, lines)
