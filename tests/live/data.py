"""Data files against Python: every format and variant gives the rows that pyarrow and json give, in the
order of a model of Miles' data source (random.Random). Run by data.sh.

    data.py MILES WORK DATA
"""
import datetime
import decimal
import gzip
import json
import random
import subprocess
import sys
import uuid
from pathlib import Path

import datasets
import pandas
import pyarrow as pa
import pyarrow.parquet as pq

MILES, WORK, DATA = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
files = rows_seen = mismatched = orders = messages = 0


def complain(text):
    global mismatched
    mismatched += 1
    if mismatched <= 20:
        print(f"MISMATCH {text}"[:600], file=sys.stderr)


def run(*args):
    return subprocess.run([MILES, "data", *map(str, args)], capture_output=True, text=True)


def plain(v):
    """A Python value as JSON shows it."""
    if isinstance(v, (datetime.date, datetime.time, pandas.Timestamp)):
        return v.isoformat()
    if isinstance(v, decimal.Decimal):
        return format(v, "f")
    if isinstance(v, uuid.UUID):
        return str(v)
    if isinstance(v, bytes):
        return v.decode()
    if isinstance(v, dict):
        return {k: plain(x) for k, x in v.items()}
    if isinstance(v, (list, tuple)):
        return [plain(x) for x in v]
    return v


def compare(path, want, keys=("prompt", "label", "metadata", "tools"), flags=()):
    """Rows of the file as `miles data` serves them, against dicts."""
    global files, rows_seen
    files += 1
    got = run("--prompt-data", path, "--input-key", keys[0], "--label-key", keys[1], "--metadata-key",
              keys[2], "--tool-key", keys[3], "--show", len(want), *flags)
    if got.returncode != 0:
        complain(f"{path}: {got.stderr.strip()}")
        return
    lines = got.stdout.split("\n")[:-1]
    if f"rows={len(want)} " not in got.stderr or len(lines) != len(want):
        complain(f"{path}: {len(want)} rows wanted, {got.stderr}")
        return
    for i, (line, row) in enumerate(zip(lines, want)):
        rows_seen += 1
        have = json.loads(line)
        expect = {"prompt": row[keys[0]], "label": row[keys[1]], "metadata": row.get(keys[2]) or {}}
        if row.get(keys[3]) is not None:
            expect["tools"] = row[keys[3]]
        have = {k: have[k] for k in ("prompt", "label", "metadata", "tools") if k in have}
        if have != plain(expect):
            complain(f"{path} row {i}: {have} is not {plain(expect)}")
            return


# ---- generated tables --------------------------------------------------------------------------

WORDS = ["", "a", "é", "日本語 テキスト", 'quote " and \\ back', "tab\tnew\nline", "😀" * 3, "x" * 300, "naïve", "zero"]


def some(r, v, nulls):
    return None if r.random() < nulls else v


def word(r):
    return r.choice(WORDS) + str(r.randrange(50))


def make_rows(seed, n, nulls):
    r = random.Random(seed)
    out = []
    for i in range(n):
        out.append({
            "prompt": [{"role": r.choice(["user", "system"]), "content": some(r, word(r), nulls), "n": some(r, j, nulls)}
                       for j in range(1 + r.randrange(3))],
            "label": some(r, word(r), nulls),
            "tools": some(r, [{"name": word(r), "args": [word(r) for _ in range(r.randrange(3))]}
                              for _ in range(r.randrange(3))], nulls),
            "metadata": some(r, {
                "i": some(r, r.randrange(-10**12, 10**12), nulls), "i8": r.randrange(-128, 128), "u16": r.randrange(65536),
                "u32": some(r, r.randrange(2**32), nulls), "i32": r.randrange(-2**31, 2**31),
                "f": some(r, r.uniform(-1e6, 1e6), nulls), "g": float(pa.scalar(r.random(), pa.float32()).as_py()),
                "b": some(r, r.random() < 0.5, nulls), "d": some(r, datetime.date.fromordinal(r.randrange(1, 3650000)), nulls),
                "t": datetime.datetime(1, 1, 1) + datetime.timedelta(microseconds=r.randrange(3 * 10**17)),
                "tz": datetime.datetime(1990, 1, 1, tzinfo=datetime.timezone.utc) + datetime.timedelta(milliseconds=r.randrange(10**12)),
                "c": datetime.time(r.randrange(24), r.randrange(60), r.randrange(60), r.choice([0, r.randrange(10**6)])),
                "m": decimal.Decimal(r.randrange(-10**9, 10**9)).scaleb(-3), "big": decimal.Decimal(r.randrange(-10**30, 10**30)).scaleb(-8),
                "deep": [[some(r, word(r), nulls) for _ in range(r.randrange(3))] if r.random() > nulls else None
                         for _ in range(r.randrange(4))],
                "map": [(word(r), some(r, k, nulls)) for k in range(r.randrange(3))],
                "in": some(r, {"x": some(r, [some(r, k, nulls) for k in range(r.randrange(3))], nulls), "y": {"z": word(r)}}, nulls),
                "h": float(pa.scalar(r.uniform(-100, 100), pa.float16()).as_py()),
                "none": None,
            }, nulls),
            "raw": bytes(r.randrange(256) for _ in range(r.randrange(20))),
        })
    return out


MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string()), ("n", pa.int32())])
META = pa.struct([
    ("i", pa.int64()), ("i8", pa.int8()), ("u16", pa.uint16()), ("u32", pa.uint32()), ("i32", pa.int32()), ("f", pa.float64()),
    ("g", pa.float32()), ("b", pa.bool_()), ("d", pa.date32()), ("t", pa.timestamp("us")), ("tz", pa.timestamp("ms", tz="UTC")),
    ("c", pa.time64("us")), ("m", pa.decimal128(12, 3)), ("big", pa.decimal128(38, 8)), ("deep", pa.list_(pa.list_(pa.string()))),
    ("map", pa.map_(pa.string(), pa.int64())), ("in", pa.struct([("x", pa.list_(pa.int64())), ("y", pa.struct([("z", pa.large_string())]))])),
    ("h", pa.float16()), ("none", pa.null())])
SCHEMA = pa.schema([
    ("raw", pa.binary()), ("prompt", pa.list_(MESSAGE)), ("label", pa.string()),
    ("tools", pa.list_(pa.struct([("name", pa.string()), ("args", pa.list_(pa.string()))]))), ("metadata", META)])

STRINGS = ["label", "prompt.list.element.role", "prompt.list.element.content", "metadata.deep.list.element.list.element"]
INTS = ["metadata.i", "metadata.i32", "metadata.u32", "metadata.i8", "metadata.d", "metadata.t", "prompt.list.element.n"]
VARIANTS = [
    {"compression": c, "data_page_version": v, "use_dictionary": d, "row_group_size": g, "data_page_size": p}
    for c in ("none", "snappy", "gzip", "zstd") for v in ("1.0", "2.0") for d in (True, False)
    for g, p in ((10**6, 1 << 20), (37, 200))
] + [
    {"data_page_version": v, "compression": c, "use_dictionary": False, "data_page_size": p,
     "column_encoding": {**{k: s for k in STRINGS}, **{k: "DELTA_BINARY_PACKED" for k in INTS},
                         "metadata.f": "BYTE_STREAM_SPLIT", "metadata.g": "BYTE_STREAM_SPLIT", "metadata.b": "RLE"}}
    for v in ("1.0", "2.0") for c in ("snappy", "zstd") for s in ("DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY") for p in (100, 1 << 20)
] + [
    {"write_page_checksum": True}, {"version": "1.0"}, {"version": "2.4"}, {"use_compliant_nested_type": False},
    {"store_decimal_as_integer": True}, {"use_byte_stream_split": ["metadata.f", "metadata.g"], "use_dictionary": False},
    {"write_page_index": True}, {"use_dictionary": ["label"]}, {"dictionary_pagesize_limit": 64}, {"store_schema": False},
]


def parquet_variants():
    for k, opts in enumerate(VARIANTS):
        nulls = (0, 0.3, 0.9)[k % 3]
        table = pa.Table.from_pylist(make_rows(k, 200, nulls), schema=SCHEMA)
        path = WORK / f"v{k}.parquet"
        pq.write_table(table, path, **opts)
        want = pq.read_table(path).to_pylist()
        compare(path, want)
        compare(f"{path}@[50:-20]", want[50:-20])
        path.unlink()


def parquet_types():
    """Each type as the label, alone, required and optional."""
    r = random.Random(5)
    u64 = 2**63 - 1
    cases = {
        "bool": (pa.bool_(), lambda: r.random() < 0.5), "i16": (pa.int16(), lambda: r.randrange(-2**15, 2**15)),
        "i64": (pa.int64(), lambda: r.choice([0, 1, -1, u64, -u64, r.randrange(-u64, u64)])), "u8": (pa.uint8(), lambda: r.randrange(256)),
        "u64": (pa.uint64(), lambda: r.randrange(u64)), "f64": (pa.float64(), lambda: r.choice([0.0, 1e300, 5e-324, 0.1, r.random()])),
        "f32": (pa.float32(), r.random), "str": (pa.string(), lambda: word(r)), "lstr": (pa.large_string(), lambda: word(r)),
        "bin": (pa.binary(), lambda: word(r).encode()), "dict": (pa.dictionary(pa.int32(), pa.string()), lambda: word(r)),
        "date": (pa.date32(), lambda: datetime.date.fromordinal(r.randrange(1, 3652059))),
        "date64": (pa.date64(), lambda: datetime.date.fromordinal(r.randrange(1, 3652059))),
        "ts_s": (pa.timestamp("s"), lambda: datetime.datetime(1900, 1, 1) + datetime.timedelta(seconds=r.randrange(10**9))),
        "ts_ns": (pa.timestamp("ns"), lambda: datetime.datetime(1990, 1, 1) + datetime.timedelta(microseconds=r.randrange(10**15))),
        "time_ms": (pa.time32("ms"), lambda: datetime.time(r.randrange(24), 1, 2, 1000 * r.randrange(1000))),
        "time_ns": (pa.time64("ns"), lambda: datetime.time(3, r.randrange(60), 2, r.randrange(10**6))),
        "dec": (pa.decimal128(7, 2), lambda: decimal.Decimal(r.randrange(-10**7, 10**7)).scaleb(-2)),
        "dec256": (pa.decimal256(70, 20), lambda: decimal.Decimal(r.randrange(-10**50, 10**50)).scaleb(-20)),
        "list": (pa.list_(pa.int64()), lambda: [r.randrange(9) for _ in range(r.randrange(5))]),
        "fixed": (pa.list_(pa.float64(), 3), lambda: [r.random() for _ in range(3)]),
        "struct": (pa.struct([("a", pa.string()), ("b", pa.list_(pa.struct([("c", pa.bool_())])))]),
                   lambda: {"a": word(r), "b": [{"c": True}] * r.randrange(3)}),
        "big": (pa.string(), lambda: "y" * r.randrange(100000)),
    }
    if hasattr(pa, "uuid"):
        cases["uuid"] = (pa.uuid(), lambda: uuid.UUID(int=r.randrange(2**128)).bytes)
    with decimal.localcontext(prec=80):
        for name, (kind, draw) in cases.items():
            for nulls in (None, 0, 0.5):
                values = [some(r, draw(), nulls or 0) for _ in range(300)]
                schema = pa.schema([("prompt", pa.string()), pa.field("label", kind, nullable=nulls is not None)])
                storage = pa.array(values, kind.storage_type) if name == "uuid" else pa.array(values, kind)
                label = pa.ExtensionArray.from_storage(kind, storage) if name == "uuid" else storage
                table = pa.Table.from_arrays([pa.array([f"p{i}" for i in range(300)]), label], schema=schema)
                path = WORK / f"type_{name}.parquet"
                pq.write_table(table, path, compression=r.choice(["snappy", "zstd"]), data_page_version=r.choice(["1.0", "2.0"]),
                               row_group_size=r.choice([100, 1000]))
                compare(path, pq.read_table(path).to_pylist())
                if name.startswith("ts_"):
                    pq.write_table(table, path, use_deprecated_int96_timestamps=True)
                    compare(path, pq.read_table(path).to_pylist())
                path.unlink()


def hugging_face():
    """What datasets and pandas write on their own account."""
    rows = [{"prompt": [{"role": "user", "content": word(random.Random(i))}], "label": str(i), "metadata": {"k": i, "s": None if i % 3 else "x"}}
            for i in range(2500)]
    path = WORK / "hf.parquet"
    datasets.disable_progress_bars()
    datasets.Dataset.from_list(rows).to_parquet(path)
    compare(path, pq.read_table(path).to_pylist())
    pandas.DataFrame(rows).to_parquet(path)
    compare(path, pq.read_table(path).to_pylist())
    pandas.DataFrame(rows).to_parquet(path, compression="gzip", index=True)
    compare(path, pq.read_table(path).to_pylist())
    path.unlink()


def named_sets():
    """The sets of the test data in every format."""
    names = sorted(DATA.glob("gsm8k/*_rl.jsonl")) + sorted(DATA.glob("math/*.jsonl"))
    for source in names:
        text = source.read_text()
        want = [json.loads(line) for line in text.split("\n") if line]
        compare(source, want)
        array, packed, zst, table = (WORK / f"{source.stem}{end}" for end in (".json", ".jsonl.gz", ".jsonl.zst", ".parquet"))
        array.write_text(json.dumps(want, indent=2 if len(want) % 2 else None, ensure_ascii=len(want) % 3 == 0))
        compare(array, want)
        packed.write_bytes(gzip.compress(text.encode()))
        compare(packed, want)
        with pa.CompressedOutputStream(str(zst), "zstd") as out:
            out.write(text.encode())
        compare(zst, want)
        # metadata differs from row to row, which Parquet cannot say: prompt and label
        two = [{"prompt": row["prompt"], "label": row["label"]} for row in want]
        pq.write_table(pa.Table.from_pylist(two), table)
        compare(table, two)
        compare(f"{array}@[3:9],{packed}@[-4:],{zst}@[:2],{table}@[1:3]", [*want[3:9], *want[-4:], *want[:2], *two[1:3]])
        for path in (array, packed, zst, table):
            path.unlink()


# ---- order -------------------------------------------------------------------------------------


def model(n, seed, shuffle, count):
    """Row indexes and epochs as Miles serves them."""
    out, epoch = [], 0
    while len(out) < count:
        order = list(range(n))
        if shuffle:
            random.Random(seed + epoch).shuffle(order)
        out += [(i, epoch) for i in order]
        epoch += 1
    return out[:count]


def order_cases():
    global orders
    golden = {(10, 42): [7, 3, 2, 8, 5, 6, 9, 4, 0, 1], (5, 42): [3, 1, 2, 4, 0], (10, 43): [8, 1, 5, 6, 9, 7, 3, 2, 4, 0]}
    r = random.Random(1)
    state = WORK / "cursor.json"
    cases = [(n, seed, True) for n, seed in golden] + [(n, r.randrange(2**40), k % 4 > 0) for k, n in
                                                       enumerate([1, 2, 3, 7, 64, 100, 1000, 4097, 30000])]
    for n, seed, shuffle in cases:
        path = WORK / "order.jsonl"
        path.write_text("".join(f'{{"input": "{i}"}}\n' for i in range(n)))
        count, group = 3 * n + n // 2 + 2, r.randrange(1, 9)
        flags = ["--prompt-data", path, "--rollout-seed", seed, "--brief", "--n-samples-per-prompt", group]
        flags += ["--rollout-shuffle"] if shuffle else []
        want = model(n, seed, shuffle, count)
        if (n, seed) in golden and [i for i, _ in want[:n]] != golden[n, seed]:
            complain(f"the model itself: n={n} seed={seed}")
        got, state_flags, left = [], [], count
        while left > 0:  # a new process after each piece, in the middle of epochs too
            piece = min(left, 1 + r.randrange(max(2, count // 4)))
            out = run(*flags, "--show", piece, "--save-state", state, *state_flags)
            if out.returncode != 0:
                complain(f"order n={n}: {out.stderr}")
                break
            got += [json.loads(line) for line in out.stdout.splitlines()]
            state_flags, left = ["--load-state", state], left - piece
        for k, (row, (index, epoch)) in enumerate(zip(got, want)):
            orders += 1
            if (row["row"], row["epoch"], row["group_index"], row["index"], row["line"]) != (index, epoch, k, k * group, index + 1):
                complain(f"order n={n} seed={seed} at {k}: {row}, {index} of epoch {epoch} wanted")
                break


# ---- errors ------------------------------------------------------------------------------------


def expect_error(path, parts, *flags, code=2):
    global messages
    messages += 1
    got = run("--prompt-data", path, "--label-key", "label", *flags)
    if got.returncode != code or any(p not in got.stderr for p in parts):
        complain(f"{path}: exit {got.returncode}, {got.stderr.strip()!r} lacks one of {parts}")


def error_cases():
    good = '{"input": "a", "label": 1}\n'
    bad = WORK / "bad.jsonl"
    for text, parts in [
        (good + '{"input": "b", "label": }\n', ["bad.jsonl:2:25:"]),
        (good * 1000 + '\n\n{"input": "b" "label": 1}\n', ["bad.jsonl:1003:"]),
        (good * 70000 + '{"input": "b", "label": 1\n', ["bad.jsonl:70001:"]),
        (good + '{"input": "b"}\n', ["bad.jsonl:2:", '"label"', "--label-key"]),
        (good + '{"input": [], "label": 1}\n', ["bad.jsonl:2:", "neither text nor a list"]),
        ("[" + good.strip() + ",\n" + good.strip() + "\n" + good + "]", ["bad.jsonl:3:1:", "',' or ']'"]),
        ('[\n{"input": "b",\n "label" 1}]', ["bad.jsonl:3:"]),
        ("", ["no prompts are left"]),
    ]:
        bad.write_text(text)
        expect_error(bad, parts)
    bad.write_text(good + "x\n" + good + '{"input": 1, "label": 2}\n' + good)
    out = run("--prompt-data", bad, "--label-key", "label", "--skip-bad-lines", "--show", 3, "--brief")
    if out.returncode or "skipped=2" not in out.stderr or "bad.jsonl:2:1:" not in out.stderr or \
            [json.loads(x)["line"] for x in out.stdout.splitlines()] != [1, 3, 5]:
        complain(f"--skip-bad-lines: {out.stderr} {out.stdout}")
    packed = WORK / "cut.jsonl.gz"
    packed.write_bytes(gzip.compress((good * 5000).encode())[:-20])
    expect_error(packed, ["cut.jsonl.gz", "ends too early"], code=1)
    table = WORK / "bad.parquet"
    pq.write_table(pa.table({"input": ["a", "b"], "label": [1.0, float("nan")]}), table)
    expect_error(table, ["bad.parquet: row group 0, column label, row 2: NaN"])
    pq.write_table(pa.table({"question": ["a"], "label": [1]}), table)
    expect_error(table, ["row 1: no key \"input\" (--input-key)"])
    pq.write_table(pa.table({"question": ["a"], "answer": [1]}), table)
    expect_error(table, ["no column is named input", "the file has question, answer"])
    pq.write_table(pa.table({"input": ["a"], "label": [1]}), table, compression="lz4")
    expect_error(table, ["LZ4", "not understood"], code=1)
    pq.write_table(pa.table({"input": [b"\xff\xfe"], "label": [1]}), table)
    expect_error(table, ["column input, row 1", "not UTF-8"])
    pq.write_table(pa.table({"input": ["abc" * 100], "label": [1]}), table, compression="none", use_dictionary=False, write_page_checksum=True,
                   write_statistics=False)
    data = bytearray(table.read_bytes())
    data[data.index(b"abcabc") + 3] ^= 1
    table.write_bytes(data)
    expect_error(table, ["checksum is wrong"], code=1)
    table.write_bytes(data[: len(data) // 2])
    expect_error(table, ["footer is missing"], code=1)
    expect_error(WORK / "none.jsonl", ["none.jsonl", "No such file"], code=1)
    expect_error(f"{bad}@[1:x]", ["slice"])


parquet_variants()
parquet_types()
hugging_face()
named_sets()
order_cases()
error_cases()
print(f"data_files={files} rows={rows_seen} orders={orders} messages={messages} mismatched={mismatched}")
sys.exit(1 if mismatched else 0)
