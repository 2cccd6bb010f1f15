# The judge of test code. It runs the tests in a sandbox where the program is not: the program's
# functions are stand-ins that ask sandbox_serve.py over a socket. Descriptor 3 is that socket, 4
# takes the outcome as one line of JSON:
#     {"passed": p, "total": n, "why": text}   or   {"failed": text}: the tests cannot be run so
# `source` is the test code; words[0] may name the tested function.
#
# What the program can do here is answer with values. An answer that is not plain data is a Remote,
# which equals nothing but what its own class says of two Remotes; names that Python has already
# (set, len, math...) are never taken from the program, so it cannot replace what tests measure with.
import ast
import builtins
import json
import os
import symtable
import sys

MOST = 64 << 20


class Broken(BaseException):
    """The program's side is gone or talks nonsense."""


class Unable(BaseException):
    """The tests need something that cannot cross."""


def read(n):
    data = b""
    while len(data) < n:
        more = os.read(3, min(n - len(data), 1 << 20))
        if not more:
            raise Broken("the program ended before its tests")
        data += more
    return data


def unpack(value, depth=0):
    if depth > 250:
        raise Broken("the program's value is nested too deeply")
    if isinstance(value, list):
        return [unpack(item, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    mark, held = next(iter(value.items()))
    if mark == "t":
        return tuple(unpack(item, depth + 1) for item in held)
    if mark == "s":
        return {unpack(item, depth + 1) for item in held}
    if mark == "f":
        return frozenset(unpack(item, depth + 1) for item in held)
    if mark == "d":
        return {unpack(k, depth + 1): unpack(v, depth + 1) for k, v in held}
    if mark == "c":
        return complex(float(held[0]), float(held[1]))
    if mark == "b":
        return bytes.fromhex(held)
    if mark == "g":
        return range(*held)
    if mark == "r":
        return Remote(int(held[0]), str(held[1]))
    raise Broken("the program's value has no known form")


def pack(value):
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Remote):
        return {"r": [object.__getattribute__(value, "_at"), ""]}
    if isinstance(value, complex):
        return {"c": [value.real, value.imag]}
    if isinstance(value, (bytes, bytearray)):
        return {"b": bytes(value).hex()}
    if isinstance(value, range):
        return {"g": [value.start, value.stop, value.step]}
    if isinstance(value, list):
        return [pack(item) for item in value]
    for kind, mark in ((tuple, "t"), (set, "s"), (frozenset, "f")):
        if isinstance(value, kind):
            return {mark: [pack(item) for item in value]}
    if isinstance(value, dict):
        return {"d": [[pack(k), pack(v)] for k, v in value.items()]}
    raise Unable("the tests give the program a " + type(value).__name__
                 + ", which cannot be given by value")


def hear():
    n = int.from_bytes(read(4), "big")
    if n > MOST:
        raise Broken("the program's answer is too long")
    try:
        reply = json.loads(read(n))
        if "v" in reply:
            return unpack(reply["v"])
        kind, text = str(reply["x"][0]), str(reply["x"][1])
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        raise Broken("the program's side sent no answer") from None
    known = getattr(builtins, kind, None)
    if not (isinstance(known, type) and issubclass(known, Exception)):
        known = RuntimeError
    try:
        error = known(text)
    except TypeError:
        error = RuntimeError(text)
    raise error


def ask(what, at, args=(), names=None):
    data = json.dumps({"do": what, "at": at, "args": [pack(v) for v in args],
                       "names": {k: pack(v) for k, v in (names or {}).items()}}).encode()
    data = len(data).to_bytes(4, "big") + data
    try:
        while data:
            data = data[os.write(3, data):]
    except OSError:
        raise Broken("the program ended before its tests") from None
    return hear()


class Remote:
    __slots__ = ("_at", "_kind")

    def __init__(self, at, kind):
        object.__setattr__(self, "_at", at)
        object.__setattr__(self, "_kind", kind)

    def __call__(self, *args, **names):
        return ask("call", self._at, args, names)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return ask("get", self._at, (name,))

    def __iter__(self):
        return iter(ask("iter", self._at))

    def __len__(self):
        n = ask("len", self._at)
        return n if isinstance(n, int) else 0

    def __getitem__(self, key):
        return ask("item", self._at, (key,))

    def __contains__(self, item):
        return ask("in", self._at, (item,)) is True

    def __str__(self):
        return str(ask("str", self._at))

    def __repr__(self):
        return str(ask("repr", self._at))

    def __bool__(self):
        return ask("bool", self._at) is True

    def __eq__(self, other):
        return isinstance(other, Remote) and ask("eq", self._at, (other,)) is True

    def __hash__(self):
        return hash(self._at)


def globals_of(table, used, made):
    """Names of the module's level that a scope and those in it use, and those that they make."""
    module = table.get_type() == "module"
    for symbol in table.get_symbols():
        if module or symbol.is_global():
            if symbol.is_referenced():
                used.add(symbol.get_name())
            if symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace():
                made.add(symbol.get_name())
    for inner in table.get_children():
        globals_of(inner, used, made)


def foreign(tree):
    """The names that the program has to give: used and not made by the tests, not Python's own; and
    the modules that the tests use without importing them."""
    used, made = set(), set()
    globals_of(symtable.symtable(source, "tests", "exec"), used, made)
    known = getattr(sys, "stdlib_module_names", ("math", "re", "collections", "itertools"))
    modules = {node.value.id for node in ast.walk(tree)
               if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)}
    modules = {name for name in modules if name in used and name in known and name not in made}
    names = {name for name in used - made - modules if not hasattr(builtins, name)}
    if not names:
        # The tested function has the name of one of Python's: it is the one that is called first.
        calls = [node for node in ast.walk(tree)
                 if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
                 and node.func.id not in made]
        first = min(calls, key=lambda c: (c.lineno, c.col_offset), default=None)
        names = {first.func.id} if first else set()
    return names, modules


def judge():
    try:
        tree = ast.parse(source)
        compile(tree, "tests", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError) as why:
        return {"failed": "the tests do not compile: %s" % why}
    names, modules = foreign(tree)
    names.update(words[:1])
    defined = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    if words and "check" in defined and not any(
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
            and getattr(node.value.func, "id", "") == "check" for node in tree.body):
        tree.body += ast.parse("check(candidate)").body
    space = {"__name__": "__main__", "__builtins__": builtins}
    tests = [node for node in tree.body if isinstance(node, (ast.Assert, ast.Expr))]
    passed, why = 0, ""
    try:
        given = hear()
    except Exception as error:
        return {"passed": 0, "total": len(tests), "why": "the program ends with " + str(error)}
    if not isinstance(given, dict):
        raise Broken("the program's side sent no names")
    for name in modules:
        space[name] = __import__(name)
    space.update((name, given[name]) for name in names if name in given)
    if words and words[0] in given:
        space.setdefault("candidate", given[words[0]])
    for node in tree.body:
        counts = isinstance(node, (ast.Assert, ast.Expr))
        block = ast.Module(body=[node], type_ignores=[])
        try:
            exec(compile(block, "tests", "exec", dont_inherit=True), space)
            passed += counts
        except Exception as error:
            if not why:
                text = " ".join(ast.unparse(node).split())
                said = str(error)
                why = "%s: %s%s" % (text[:120], type(error).__name__, said and ": " + said[:100])
            if not counts:
                break
    return {"passed": passed, "total": len(tests), "why": why}


try:
    outcome = judge()
except Unable as why:
    outcome = {"failed": str(why)}
except Broken as why:
    outcome = {"passed": 0, "total": 0, "why": str(why)}
except BaseException as why:
    outcome = {"passed": 0, "total": 0, "why": "the tests end with " + type(why).__name__}
line = json.dumps(outcome).encode() + b"\n"
while line:
    line = line[os.write(4, line):]
