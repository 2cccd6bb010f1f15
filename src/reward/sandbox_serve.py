# The program's half of test code: runs the program, then does what the judge (sandbox_judge.py, in
# another sandbox) asks of its functions. Descriptor 3 is the line to the judge: a length of four
# bytes and JSON, both ways. Values cross as plain data; what is not plain stays here and crosses as
# a number, so that no object of the program's own making ever takes part in a comparison.
import json
import os

kept = []


def pack(value, depth=0):
    if depth > 200:
        raise ValueError("a value is nested too deeply")
    if type(value) is Ready:
        return {"d": value.names}
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return str.__str__(value) if type(value) is not str else value
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, complex):
        return {"c": [value.real, value.imag]}
    if isinstance(value, (bytes, bytearray)):
        return {"b": bytes(value).hex()}
    if isinstance(value, range):
        return {"g": [value.start, value.stop, value.step]}
    for kind, mark in ((list, None), (tuple, "t"), (set, "s"), (frozenset, "f")):
        if isinstance(value, kind):
            items = [pack(item, depth + 1) for item in kind.__iter__(value)]
            return items if mark is None else {mark: items}
    if isinstance(value, dict):
        return {"d": [[pack(k, depth + 1), pack(v, depth + 1)] for k, v in dict.items(value)]}
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return pack(value.tolist(), depth + 1)
    kept.append(value)
    return {"r": [len(kept) - 1, type(value).__name__]}


def unpack(value):
    if isinstance(value, list):
        return [unpack(item) for item in value]
    if not isinstance(value, dict):
        return value
    mark, held = next(iter(value.items()))
    if mark == "t":
        return tuple(unpack(item) for item in held)
    if mark == "s":
        return {unpack(item) for item in held}
    if mark == "f":
        return frozenset(unpack(item) for item in held)
    if mark == "d":
        return {unpack(k): unpack(v) for k, v in held}
    if mark == "c":
        return complex(*held)
    if mark == "b":
        return bytes.fromhex(held)
    if mark == "g":
        return range(*held)
    return kept[held[0]]


def write(value):
    data = json.dumps(value).encode()
    data = len(data).to_bytes(4, "big") + data
    while data:
        data = data[os.write(3, data):]


def read(n):
    data = b""
    while len(data) < n:
        more = os.read(3, n - len(data))
        if not more:
            os._exit(0)
        data += more
    return data


def do(what, target, args, names):
    if what == "call":
        return target(*args, **names)
    if what == "get":
        return getattr(target, args[0])
    if what == "iter":
        return list(target)
    if what == "len":
        return len(target)
    if what == "item":
        return target[args[0]]
    if what == "in":
        return args[0] in target
    if what == "str":
        return str(target)
    if what == "repr":
        return repr(target)
    if what == "bool":
        return bool(target)
    return target == args[0]


def answer(make):
    try:
        write({"v": pack(make())})
    except SystemExit as stop:
        write({"x": ["SystemExit", str(stop.code)]})
    except BaseException as why:
        names = [base.__name__ for base in type(why).__mro__ if base.__module__ == "builtins"]
        write({"x": [names[0] if names else "Exception", type(why).__name__ + ": " + str(why)]})


def keep(value):
    try:
        return pack(value)
    except Exception:
        kept.append(value)
        return {"r": [len(kept) - 1, type(value).__name__]}


class Ready:
    """The program's names, as what pack makes of them."""

    def __init__(self):
        exec(compile(source, "main.py", "exec", dont_inherit=True), module.__dict__)
        self.names = [[name, keep(value)] for name, value in list(module.__dict__.items())
                      if not name.startswith("__") and type(value) is not type(os)]


module.__dict__["__name__"] = "solution"  # what a program does as a main program is not wanted
answer(Ready)
while True:
    ask = json.loads(read(int.from_bytes(read(4), "big")))
    answer(lambda: do(ask["do"], kept[ask["at"]], [unpack(v) for v in ask["args"]],
                      {k: unpack(v) for k, v in ask["names"].items()}))
