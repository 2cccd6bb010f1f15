#!/usr/bin/env python3
"""Turns rollout dumps of Miles (--save-debug-rollout-data, DIR/rollout_data/*.pt of --dump-details) into
the JSON lines that `miles` reads (docs/rollout-data.md).

    tools/import_dump.py data_0.pt data_1.pt ... --out 'DIR/{rollout_id}.jsonl'
    miles audit DIR/0.jsonl --hf-checkpoint MODEL
    miles train --load-debug-rollout-data 'DIR/{rollout_id}.jsonl' ...

A .pt file is a pickle, and a pickle is a program. Nothing of it is run here: only plain values, torch
tensors, numpy arrays and Miles' own Sample are understood, each by a small reader of this file, and a
file that asks for anything else is refused with what it asked for (exit 3). Neither torch nor numpy nor
Miles is needed.
"""
import argparse
import array
import collections
import json
import math
import pickle
import struct
import sys
import zipfile
from pathlib import Path

MAX_PICKLE = 1 << 32  # bytes of the pickle itself
MAX_STORAGE = 1 << 34  # bytes of all tensors
MAX_DEPTH = 64
FLT_MAX = 3.4028234663852886e38
STATUSES = ("pending", "completed", "truncated", "aborted", "failed")


class Refused(Exception):
    """The file asks for something that is no data."""


class Bad(Exception):
    """The file is data, but no rollout."""


# ---- torch ----------------------------------------------------------------------------------------

def halves(data):
    return [struct.unpack("<e", data[i:i + 2])[0] for i in range(0, len(data), 2)]


def bfloats(data):
    words = array.array("H", data)
    return list(array.array("f", array.array("I", [w << 16 for w in words]).tobytes()))


def plain(code):
    return lambda data: array.array(code, data).tolist()


# Name of a storage's class: bytes of an element, and how they are read.
STORAGES = {
    "FloatStorage": (4, plain("f")), "DoubleStorage": (8, plain("d")), "LongStorage": (8, plain("q")),
    "IntStorage": (4, plain("i")), "ShortStorage": (2, plain("h")), "CharStorage": (1, plain("b")),
    "ByteStorage": (1, plain("B")), "HalfStorage": (2, halves), "BFloat16Storage": (2, bfloats),
    "BoolStorage": (1, lambda data: [bool(b) for b in data]),
}


class Storage:
    def __init__(self, values):
        self.values = values


class StorageType:
    """Stands for torch.FloatStorage and its kind; is never called."""

    def __init__(self, name):
        self.name = name


def rebuild_tensor(storage, offset, size, stride, *_):
    """torch._utils._rebuild_tensor_v2: a tensor as nested lists."""
    if not isinstance(storage, Storage):
        raise Refused("a tensor without a storage")

    def build(at, dim):
        if dim == len(size):
            return storage.values[at]
        return [build(at + i * stride[dim], dim + 1) for i in range(size[dim])]

    count = math.prod(size)
    if count > len(storage.values) or offset < 0 or any(s < 0 for s in (*size, *stride)):
        raise Refused("a tensor larger than its storage")
    return build(offset, 0)


# ---- numpy ----------------------------------------------------------------------------------------

class NumpyType:
    """numpy.dtype: only numbers and texts of a fixed kind."""

    def __init__(self, spec, *_):
        self.spec = str(spec)
        self.order = "<"

    def __setstate__(self, state):
        self.order = {"|": "<", "=": "<"}.get(state[1], state[1])

    def read(self, data):
        kind = {"f8": "d", "f4": "f", "f2": "e", "i8": "q", "i4": "i", "i2": "h", "i1": "b", "u8": "Q",
                "u4": "I", "u2": "H", "u1": "B", "b1": "?"}.get(self.spec)
        if not kind:
            raise Refused(f"a numpy array of type {self.spec!r}")
        return [v for (v,) in struct.iter_unpack(self.order + kind, data)]


class NumpyArray:
    def __init__(self, *_):
        self.value = []

    def __setstate__(self, state):
        _, shape, dtype, fortran, data = state
        if not isinstance(dtype, NumpyType) or not isinstance(data, bytes):
            raise Refused("a numpy array of objects")
        flat = dtype.read(data)
        if math.prod(shape) != len(flat):
            raise Refused("a numpy array of another size than it says")
        strides, step = [0] * len(shape), 1
        order = range(len(shape)) if fortran else reversed(range(len(shape)))
        for i in order:
            strides[i], step = step, step * shape[i]

        def build(at, dim):
            if dim == len(shape):
                return flat[at]
            return [build(at + i * strides[dim], dim + 1) for i in range(shape[dim])]

        self.value = build(0, 0)


def numpy_reconstruct(_, *__):
    return NumpyArray()


def numpy_scalar(dtype, data):
    if not isinstance(dtype, NumpyType) or not isinstance(data, bytes):
        raise Refused("a numpy scalar of objects")
    return dtype.read(data)[0]


# ---- the pickle -----------------------------------------------------------------------------------

class Record:
    """Miles' Sample, or any dataclass of the same shape: its fields."""

    def __init__(self, *_):
        self.fields = {}

    def __setstate__(self, state):
        if isinstance(state, tuple):  # of a class with slots: (None, fields)
            state = state[-1]
        if not isinstance(state, dict):
            raise Refused("an object whose state is no dict")
        self.fields = dict(state)


def encode(text, codec):
    """_codecs.encode: how pickles of protocol 2 write bytes."""
    if not isinstance(text, str) or codec not in ("latin1", "latin-1"):
        raise Refused("bytes in another code than latin1")
    return text.encode("latin-1")


def new_record(*_):
    return Record()


def status(value):
    return value


KNOWN = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): rebuild_tensor,
    ("numpy", "dtype"): NumpyType,
    ("numpy", "ndarray"): NumpyArray,
    ("numpy.core.multiarray", "_reconstruct"): numpy_reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): numpy_reconstruct,
    ("numpy.core.multiarray", "scalar"): numpy_scalar,
    ("numpy._core.multiarray", "scalar"): numpy_scalar,
    ("_codecs", "encode"): encode,
    ("builtins", "set"): set,
    ("__builtin__", "set"): set,
    ("copyreg", "_reconstructor"): new_record,
    ("copy_reg", "_reconstructor"): new_record,
    ("__builtin__", "object"): Record,
    ("copyreg", "__newobj__"): new_record,
    ("builtins", "object"): Record,
    ("miles.utils.types", "Sample"): Record,
    ("miles.utils.types", "Sample.Status"): status,
    ("slime.utils.types", "Sample"): Record,
    ("slime.utils.types", "Sample.Status"): status,
}


class Reader(pickle.Unpickler):
    def __init__(self, file, storage):
        super().__init__(file)
        self.storage = storage

    def find_class(self, module, name):
        if (module, name) in KNOWN:
            return KNOWN[module, name]
        if module in ("torch", "torch.storage") and name in STORAGES:
            return StorageType(name)
        raise Refused(f"it asks for {module}.{name}")

    def persistent_load(self, pid):
        if not isinstance(pid, tuple) or len(pid) < 5 or pid[0] != "storage" or \
                not isinstance(pid[1], StorageType):
            raise Refused("it asks for something that is stored elsewhere")
        return self.storage(pid[1].name, str(pid[2]), int(pid[4]))


def load(path):
    """The value in a file, in plain lists and dicts. torch's archives and bare pickles."""
    if not zipfile.is_zipfile(path):
        with open(path, "rb") as file:
            def none(*_):
                raise Refused("tensors outside an archive: a file of torch before 1.6, save it again")

            return Reader(file, none).load()
    with zipfile.ZipFile(path) as archive:
        names = [n for n in archive.namelist() if n.endswith("data.pkl")]
        if len(names) != 1:
            raise Bad("not an archive of torch.save")
        root = names[0][: -len("data.pkl")]
        if sum(i.file_size for i in archive.infolist()) > MAX_STORAGE or \
                archive.getinfo(names[0]).file_size > MAX_PICKLE:
            raise Bad("too large")
        if f"{root}byteorder" in archive.namelist() and archive.read(f"{root}byteorder") != b"little":
            raise Bad("numbers in another byte order")
        cache = {}

        def storage(kind, key, count):
            if key not in cache:
                if not key.isdigit():
                    raise Refused(f"a storage named {key!r}")
                size, read = STORAGES[kind]
                data = archive.read(f"{root}data/{key}")
                if len(data) < count * size:
                    raise Refused("a storage smaller than it says")
                cache[key] = Storage(read(data[: count * size]))
            return cache[key]

        with archive.open(names[0]) as file:
            return Reader(file, storage).load()


# ---- our form -------------------------------------------------------------------------------------

def simple(value, depth=0):
    """Only what JSON has."""
    if depth > MAX_DEPTH:
        raise Bad("nested too deeply")
    if isinstance(value, Record):
        value = value.fields
    if isinstance(value, NumpyArray):
        value = value.value
    if isinstance(value, dict):
        return {str(k): simple(v, depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [simple(v, depth + 1) for v in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def numbers(value, name, length):
    """A list of `length` numbers, or None."""
    if isinstance(value, NumpyArray):
        value = value.value
    if value is None:
        return None
    out = []
    for v in value:
        if isinstance(v, bool) or not isinstance(v, (int, float)):
            raise Bad(f"{name} has {v!r}, which is no number")
        if isinstance(v, float) and math.isnan(v):
            raise Bad(f"{name} has a NaN")
        out.append(-FLT_MAX if v == -math.inf else v)
    if length is not None and len(out) != length:
        raise Bad(f"{name} has {len(out)} entries for {length} tokens")
    return out


def convert(sample, number):
    fields = sample.fields if isinstance(sample, Record) else sample
    if not isinstance(fields, dict):
        raise Bad(f"it is a {type(fields).__name__}, not a dict")
    tokens = numbers(fields.get("tokens"), "tokens", None)
    length = int(fields.get("response_length") or 0)
    if not tokens or length < 0 or len(tokens) <= length:
        raise Bad(f"{len(tokens or [])} tokens for a prompt and a response of {length}")
    state = fields.get("status") or "completed"
    state = state[0] if isinstance(state, tuple) else state
    if state not in STATUSES:
        raise Bad(f"status {state!r}")
    index = fields.get("index")
    group = fields.get("group_index")
    reward = fields.get("reward")
    versions = fields.get("weight_versions") or []
    out = {
        "group_index": number if group is None else int(group),
        "index": number if index is None else int(index),
        "prompt": simple(fields.get("prompt")),
        "tokens": [int(t) for t in tokens],
        "response": str(fields.get("response") or ""),
        "response_length": length,
        "label": simple(fields.get("label")),
        "reward": simple(reward),
        "loss_mask": numbers(fields.get("loss_mask"), "loss_mask", length),
        "weight_versions": [str(v) for v in versions],
        "rollout_log_probs": numbers(fields.get("rollout_log_probs"), "rollout_log_probs", length),
        "remove_sample": bool(fields.get("remove_sample", False)),
        "status": state,
        "metadata": simple(fields.get("metadata") or {}),
    }
    if fields.get("rollout_id") is not None:
        out["rollout_id"] = int(fields["rollout_id"])
    return out


def convert_file(path, pattern):
    data = load(path)
    if not isinstance(data, dict) or not isinstance(data.get("samples"), list):
        raise Bad("no dict with a list of samples")
    rollout = int(data.get("rollout_id") or 0)
    rows = []
    for i, sample in enumerate(data["samples"]):
        try:
            rows.append(convert(sample, i))
        except (Bad, TypeError, ValueError, OverflowError) as exc:
            raise Bad(f"sample {i}: {exc}") from None
    target = Path(pattern.replace("{rollout_id}", str(rollout)))
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(target.name + ".tmp")
    with open(temporary, "w", encoding="utf-8") as out:
        head = {"format": "miles-rollout", "version": 1, "rollout_id": rollout, "samples": len(rows)}
        for row in [head, *rows]:
            out.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
    temporary.replace(target)
    return target, len(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", default="{rollout_id}.jsonl", help="file for each, {rollout_id} in the name")
    args = parser.parse_args()
    files = samples = 0
    for path in args.files:
        try:
            target, count = convert_file(path, args.out)
        except Refused as exc:
            print(f"import_dump.py: {path}: refused: {exc}; nothing of it was run", file=sys.stderr)
            return 3
        except (Bad, OSError, KeyError, EOFError, IndexError, AttributeError, TypeError, ValueError,
                RecursionError, MemoryError, struct.error, pickle.UnpicklingError,
                zipfile.BadZipFile) as exc:
            print(f"import_dump.py: {path}: {type(exc).__name__}: {exc}", file=sys.stderr)
            return 1
        print(f"{path}: {count} samples to {target}", file=sys.stderr)
        files += 1
        samples += count
    print(f"files={files} samples={samples}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
