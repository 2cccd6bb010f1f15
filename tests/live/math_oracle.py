"""math_oracle.py MATH_PAIRS_PROGRAM LABEL_FOLDER PAIRS LABELS DOC [--write]: see math_verify.sh.

Three judges. Of a generated pair and of a rewritten label the truth is known by construction. Of two different
labels it is not: where the two graders disagree there, sympy computes both to 60 digits; what has no number is in
JUDGED, decided by reading. The formulas that Miles' rule would give to sympy are given to it, for comparison with
our own zero test.
"""
import collections
import json
import logging
import multiprocessing
import os
import random
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import math_pairs  # noqa: E402

logging.disable(logging.CRITICAL)

# Pairs of labels that have no number, judged by reading: (truth, given) -> equal?
JUDGED = {}

# Why the graders differ, in words for the table, by kind; what is not here is named after its kind.
CLASSES = {
    "areas": "units of area and volume",
    "bases": "numbers in another base",
    "choices": "choice letters",
    "complexes": "products of complex numbers",
    "degrees": "the sign °",
    "equations": "y = for f(x) =",
    "infinity": "the sign ∞",
    "integers": "a full stop after a number, thin spaces between thousands",
    "intervals": "inequalities for intervals",
    "label, plus zero": "a label with its unit, plus zero",
    "label, spaces": "a label with more blanks",
    "letters": "products of letters",
    "mixed": "mixed numbers in plain text",
    "money": "amounts of money",
    "percent": "a percentage without its sign",
    "pis": "pi spelt out",
    "powers": "** for a power",
    "punctured": "x ≠ a for the line without a",
    "radicals": "the sign √",
    "ratios": "ratios",
    "repeating": "repeating decimals",
    "rounded": "decimals for endless values, wrong in the last digits",
    "scientific": "1.2e5 for 1.2 times 10^5",
    "surds": "the real cube root of a negative number",
    "times": "times of day with a.m. and p.m.",
    "trig_values": "values of trigonometric functions",
    "unions": "the letter U for a union",
    "units": "units that have to be converted",
    "vectors": "a column vector against a tuple",
    "words": "a full stop after a word",
}


def labels(folder, limit):
    seen = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".jsonl"):
            with open(os.path.join(folder, name), encoding="utf-8") as f:
                for line in f:
                    seen.setdefault(str(json.loads(line)["label"]), None)
    out = list(seen)
    random.Random(5).shuffle(out)
    return out[:limit] if limit else out


def all_pairs(folder, n, limit):
    """Generated pairs, then pairs of labels; "equal" is None where it is not known."""
    out = list(math_pairs.pairs(n))
    ls = labels(folder, limit)
    for i, label in enumerate(ls):
        r = random.Random(i)
        out.append({"kind": "label, itself", "truth": label, "given": label, "equal": True})
        forms = math_pairs.rewritten(label, r)
        for name, text in r.sample(forms, min(2, len(forms))):
            out.append({"kind": f"label, {name}", "truth": label, "given": text, "equal": True})
        text = math_pairs.spoiled(label, r)
        if text:
            out.append({"kind": "label, a digit changed", "truth": label, "given": text, "equal": False})
        out.append({"kind": "label, another", "truth": label, "given": ls[i - 1], "equal": None})
    return out


def ours(program, pairs, *flags):
    text = "".join(json.dumps([p["given"], p["truth"]]) + "\n" for p in pairs)
    got = subprocess.run([program, *flags], input=text, capture_output=True, text=True, check=True).stdout.splitlines()
    if len(got) != len(pairs):
        sys.exit(f"math_oracle.py: {len(got)} verdicts for {len(pairs)} pairs")
    return [json.loads(line) for line in got]


CACHE = {}
PATIENCE = 60  # seconds: on a busy machine its own 5 are not always enough, and too late is "different"


def parsed(text):
    from math_verify import parse
    if text not in CACHE:
        if len(CACHE) > 20000:
            CACHE.clear()
        CACHE[text] = parse("\\boxed{" + text + "}", parsing_timeout=PATIENCE)
    return CACHE[text]


def theirs(pair):
    """What math-verify says, and the numbers of both sides to 60 digits where sympy has them."""
    from math_verify import verify
    truth, given, want_numbers = pair
    logging.disable(logging.CRITICAL)
    try:
        a, b = parsed(truth), parsed(given)
        verdict = bool(verify(a, b, timeout_seconds=PATIENCE))
    except Exception:
        return False, None
    numbers = None
    if want_numbers:
        try:
            x, y = complex_number(a), complex_number(b)
            if x is not None and y is not None:
                numbers = [str(x), str(y), bool(abs(x - y) < abs(x) * 10 ** -40 + 10 ** -50)]
        except Exception:
            pass
    return verdict, numbers


def remembered(asked, path):
    """Verdicts of math-verify, which takes a tenth of a second for one; MATH_CACHE keeps them between runs."""
    known = {}
    if path and os.path.exists(path):
        with open(path, encoding="utf-8") as f:
            known = {tuple(k): v for k, v in json.load(f)}
    new = [a for a in dict.fromkeys(asked) if a not in known]
    with multiprocessing.get_context("spawn").Pool(int(os.environ.get("MATH_PROCESSES", "2"))) as pool:
        for i, (a, v) in enumerate(zip(new, pool.imap(theirs, new, chunksize=20))):
            known[a] = v
            if path and (i + 1 == len(new) or i % 1000 == 999):
                with open(path + ".new", "w", encoding="utf-8") as f:
                    json.dump([[list(k), v] for k, v in known.items()], f)
                os.replace(path + ".new", path)
    return [known[a] for a in asked]


def simplified(text):
    """1 or 0: what sympy's simplify says of a formula of Miles' rule; None when it takes too long."""
    import signal
    import warnings
    import sympy
    from sympy.parsing import sympy_parser
    warnings.simplefilter("ignore")

    def late(*_):
        raise TimeoutError
    read = sympy_parser.standard_transformations + (sympy_parser.implicit_multiplication_application,)
    signal.signal(signal.SIGALRM, late)
    signal.alarm(20)
    try:
        return int(sympy.simplify(sympy_parser.parse_expr(text.replace("^", "**"), transformations=read)) == 0)
    except TimeoutError:
        return None
    except Exception:
        return 0
    finally:
        signal.alarm(0)


def miles_formulas(program, pairs):
    """Our zero test against sympy, on the formulas that Miles would give to it: how many, asked, different."""
    formulas = {}
    for row in ours(program, pairs, "--miles"):
        text = row[0] if row else ""
        letters = {c for c in text.replace("sqrt", "").replace("frac", "") if c.isalpha()}
        if text and "," not in text and len(letters) <= 2 and not re.search(r"\^[{(]|\^\d+\^|\^\d\d", text):
            formulas[text] = row[1]
    with multiprocessing.get_context("spawn").Pool(int(os.environ.get("MATH_PROCESSES", "2"))) as pool:
        said = pool.map(simplified, list(formulas), chunksize=20)
    wrong = [(f, z, s) for (f, z), s in zip(formulas.items(), said) if z >= 0 and s is not None and z != s]
    for f, z, s in wrong:
        print(f"MILES: {f}: we {z}, sympy {s}", file=sys.stderr)
    return len(formulas), sum(z < 0 for z in formulas.values()), len(wrong)


def complex_number(side):
    import sympy
    if not side or not isinstance(side[0], sympy.Expr) or side[0].free_symbols:
        return None
    v = sympy.nsimplify(side[0], rational=True) if side[0].has(sympy.Float) else side[0]
    return sympy.N(v, 60)


def judge(pair, numbers):
    """1, 0, or None: nobody knows."""
    if pair["equal"] is not None:
        return int(pair["equal"])
    key = (pair["truth"], pair["given"])
    if key in JUDGED:
        return int(JUDGED[key])
    return int(numbers[2]) if numbers else None


def main():
    program, folder, n, limit, doc = sys.argv[1:6]
    pairs = all_pairs(folder, int(n), int(limit))
    mine = ours(program, pairs)
    other = remembered([(p["truth"], p["given"], p["equal"] is None) for p in pairs], os.environ.get("MATH_CACHE"))
    agree = 0
    counts = collections.Counter()
    rows = collections.defaultdict(list)
    slow = max(m[2] for m in mine)
    for p, m, (verdict, numbers) in zip(pairs, mine, other):
        truth = judge(p, numbers)
        right = m[0]
        if p["equal"] is not None and right != truth:
            counts["we_unknown" if right < 0 else "we_wrong"] += 1
            print(f"WE: {p['kind']}: {p['given']!r} against {p['truth']!r}: {right}, {m[1]}", file=sys.stderr)
        if right == int(verdict):
            agree += 1
            continue
        counts["disagree"] += 1
        if truth is None:
            counts["undecided"] += 1
            print(f"UNDECIDED: {p['given']!r} against {p['truth']!r}: we {right} ({m[1]}), they {verdict}", file=sys.stderr)
        elif p["equal"] is None and right != truth:
            counts["we_unknown" if right < 0 else "we_wrong"] += 1
        if truth is not None and int(verdict) != truth:
            counts["they_wrong"] += 1
        who = "?" if truth is None else "we" if right == truth else "they" if int(verdict) == truth else "neither"
        rows[(p["kind"], who, right, verdict)].append((p, m))
    if "--write" in sys.argv:
        write(doc, rows, len(pairs), agree, counts)
    for key in sorted(rows, key=str):
        print(f"{len(rows[key]):5d} {key}: {rows[key][0][0]['given']!r} against {rows[key][0][0]['truth']!r}: "
              f"{rows[key][0][1][1]}", file=sys.stderr)
    print(f"slowest verdict of ours: {slow:.1f} ms", file=sys.stderr)
    formulas, asked, differ = miles_formulas(program, [p for p in pairs if p["equal"] is not None][:int(n)])
    print(f"pairs={len(pairs)} agree={agree} disagree={counts['disagree']} we_wrong={counts['we_wrong']} "
          f"we_unknown={counts['we_unknown']} they_wrong={counts['they_wrong']} undecided={counts['undecided']} miles_formulas={formulas} miles_asked={asked} miles_wrong={differ}")
    sys.exit(1 if counts["we_wrong"] or counts["undecided"] or slow > 100 or differ else 0)


def cell(text):
    return "`" + text.replace("\n", " ").replace("|", "\\|").replace("`", "'")[:70] + "`"


def write(doc, rows, total, agree, counts):
    """Puts the table between the marks of the document."""
    begin, end = "<!-- table: tests/live/math_verify.sh --write -->", "<!-- end of table -->"
    with open(doc, encoding="utf-8") as f:
        text = f.read()
    say = {1: "equal", 0: "different", -1: "unknown"}
    lines = [f"{total} pairs, {agree} alike, {counts['disagree']} not: math-verify is wrong in {counts['they_wrong']} of these, "
             f"math_equal in {counts['we_wrong']}, and says unknown in {counts['we_unknown']}.", "",
             "| Class | Pairs | math_equal | math-verify | Right | Example: answer, label |", "|---|---:|---|---|---|---|"]
    for (kind, who, right, verdict), found in sorted(rows.items(), key=lambda x: (x[0][1] == "we", -len(x[1]), str(x[0]))):
        p = min((f[0] for f in found), key=lambda p: len(p["given"]) + len(p["truth"]))
        name = {"we": "math_equal", "they": "math-verify", "neither": "neither", "?": "not decided"}[who]
        lines.append(f"| {CLASSES.get(kind, kind.replace('_', ' '))} | {len(found)} | {say[right]} | {'equal' if verdict else 'different'} | "
                     f"{name} | {cell(p['given'])}, {cell(p['truth'])} |")
    a, b = text.index(begin) + len(begin), text.index(end)
    with open(doc, "w", encoding="utf-8") as f:
        f.write(text[:a] + "\n" + "\n".join(lines) + "\n" + text[b:])


if __name__ == "__main__":
    main()
