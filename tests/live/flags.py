"""What tests/live/flags.sh asks of the program: every flag of Miles gets an answer, none is taken in
silence, and every combination of docs/miles-rules.tsv does what its row says.

    flags.py MILES DOCS WORK MODEL DATA [REFERENCE]
"""
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MILES, DOCS, WORK, MODEL, DATA = sys.argv[1:6]
REFERENCE = Path(sys.argv[6]) if len(sys.argv) > 6 else None
BASE = ["--hf-checkpoint", MODEL, "--prompt-data", DATA, "--num-rollout", "1", "--rollout-batch-size", "8",
        "--rollout-max-response-len", "16", "--input-key", "question", "--label-key", "answer"]
REWARD = ["--rm-type", "math"]

# Words of the documents that look like flags of the program and are others': of docker, torchrun, SGLang
# itself; and words that a page has run together.
NOT_FLAGS = set("""rm gpus ipc shm-size nnodes nproc-per-node tp-size model-path no- sglang- router- eval-sglang-
    extra-high-precision-layers-* rollout-num-gpus-per-engine--model-path use-kl-lossalways use-tisis
    use-dynamic-batch-sizeoverrides--micro-batch-size advantage-estimatorcovers
    calculate-per-token-lossto""".split())

problems = []


def complain(text):
    problems.append(text)
    print(text, file=sys.stderr)


def table(name):
    lines = Path(DOCS, name).read_text().splitlines()
    head = lines[0].split("\t")
    return [dict(zip(head, line.split("\t"))) for line in lines[1:]]


def run(*words):
    p = subprocess.run([MILES, *words], capture_output=True, text=True, timeout=60)
    return p.returncode, p.stdout + p.stderr


def check_names(rows):
    """Every flag that the documents name is in the list."""
    if not REFERENCE or not REFERENCE.is_dir():
        print("no reference documents: the names of the list are not held against them", file=sys.stderr)
        return 0
    text = (REFERENCE / "miles-features.md").read_text()
    texts = [text[text.index("\n## 2. Command line"):text.index("\n## 3. ")]]
    texts += [p.read_text() for p in sorted((REFERENCE / "seeds").glob("*.txt"))]
    found = set()
    for t in texts:
        found |= set(re.findall(r"--([a-z][a-z0-9-]*\*?)", t))
    have = {r["name"] for r in rows}
    for name in sorted(found - NOT_FLAGS - have):
        complain(f"--{name} is in the documents and not in the list")
    return len(found - NOT_FLAGS)


# With the FSDP backend, which has defaults of its own (--train-backend).
FSDP_DEFAULTS = {"adam-beta2", "weight-decay"}


def check_defaults(rows):
    """Numbers that the documents give as defaults are the program's."""
    if not REFERENCE or not REFERENCE.is_dir():
        return 0
    text = (REFERENCE / "miles-features.md").read_text()
    text = text[text.index("\n## 2. Command line"):text.index("\n## 3. ")].translate(
        {0x2011: "-", 0x2212: "-", 0x2013: "-"})
    have = {r["name"]: r["default"] for r in rows}
    found = 0
    for line in text.splitlines():
        cells = [c.strip() for c in line.split("|")[1:-1]]
        names = re.findall(r"`--([a-z0-9-]+)`", cells[0]) if cells else []
        given = cells[-2].strip("`") if len(cells) in (3, 4) else ""
        if len(names) != 1 or not re.fullmatch(r"-?[0-9.]+(e-?[0-9]+)?", given):
            continue
        found += 1
        mine = have.get(names[0], "")
        if names[0] not in FSDP_DEFAULTS and (mine in ("", "-") or float(mine) != float(given)):
            complain(f"--{names[0]} has the default {given} in the documents and {mine} here")
    return found


def other_value(kind, default):
    """Words for a flag of this kind that are not its default."""
    if kind.startswith("switch"):
        return []
    if kind == "int":
        return ["4" if default != "4" else "2"]
    if kind == "float":
        return ["0.25" if default != "0.25" else "0.5"]
    if kind == "json":
        return ['{"a": 1}']
    if kind == "list of ints":
        return ["5"]
    if "|" in kind:
        return [next(c for c in kind.split("|") if c != default)]
    return ["other"]


def check_heard(row):
    """A flag that does nothing here is refused or told, with its sentence; returns which."""
    name, sentence = row["name"], row["sentence"]
    words = other_value(row["kind"], row["default"])
    flag = f"--{name}".replace("*", "anything")
    if row["kind"] == "switch with a --no- twin" and row["default"] == "true":
        flag = f"--no-{name}"
    if name.startswith("router-"):
        args = ["--rollout-num-gpus", "2", "--use-miles-router"]
    else:
        args = []
    code, said = run("train", "--dry-run", *BASE, *REWARD, *args, flag, *words)
    if code != 0 and "unknown option" in said and row["section"] in ("2.17 observability", "2.21 launchers"):
        return "refused"
    if sentence not in said:
        complain(f"{flag} {' '.join(words)}: exit {code}, its sentence is not said: {said[-400:]}")
        return "silent"
    if code != 0:
        if "no effect here" in said:
            complain(f"{flag} {' '.join(words)}: told, and then: {said[-400:]}")
        return "refused"
    if "no effect here" not in said or row["state"] != "inapplicable":
        complain(f"{flag}: accepted although it is {row['state']}")
    return "told"


def fill(word):
    return {"MODEL": MODEL, "DATA": DATA}.get(word, word.replace("OUT", f"{WORK}/out"))


def check_rule(row):
    flags = [fill(w) for w in row["flags"].split()]
    command = "train" if not flags or flags[0].startswith("--") else flags.pop(0)
    reward = [] if "--custom-rm-path" in flags else REWARD
    # the last one wins, so a rule may give another size
    code, said = run(command, "--dry-run", *BASE, *reward, "--n-samples-per-prompt", "2", *flags)
    where = f"{row['combination']} ({row['flags']})"
    if row["here"] == "refused":
        if code == 0:
            complain(f"{where}: is not refused")
    elif code != 0 or "dry_run=ok" not in said:
        complain(f"{where}: exit {code}: {said[-400:]}")
    if row["says"] not in said:
        complain(f"{where}: \"{row['says']}\" is not said: {said[-400:]}")
    return row["here"]


def main():
    flags = table("miles-flags.tsv")
    rules = table("miles-rules.tsv")
    names = check_names(flags)
    defaults = check_defaults(flags)
    others = [r for r in flags if r["state"] != "works"]
    with ThreadPoolExecutor(2) as pool:
        heard = list(pool.map(check_heard, others))
        ruled = list(pool.map(check_rule, rules))
    print(json.dumps({k: heard.count(k) for k in ("refused", "told", "silent")}), file=sys.stderr)
    print(f"names={names} defaults={defaults} flags={len(flags)} refused={heard.count('refused')} told={heard.count('told')} "
          f"silent={heard.count('silent')} rules={len(rules)} rules_refused={ruled.count('refused')} "
          f"rules_lifted={ruled.count('works')} failed={len(problems)}")
    return 1 if problems else 0


sys.exit(main())
