#!/usr/bin/env python3
"""Flips bits in the files of a run and sees what becomes of it; called by tests/live/damage.sh.

    damage.py MILES WORK SEED FLIPS
"""

import hashlib
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

MILES, WORK, SEED, FLIPS = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
TIMEOUT = 60
LAST = 3  # rollout
rng = random.Random(SEED)
count = {"flips": 0, "refused": 0, "equal": 0, "silent": 0, "crashed": 0, "refusals": 0}

REWARD = "def reward(args, sample):\n    return sum(sample.response.encode()) % 7 / 7\n"


def prepare():
    (WORK / "reward.py").write_text(REWARD)
    with open(WORK / "prompts.jsonl", "w", encoding="utf-8") as out:
        for i in range(40):
            text = f"{'the number ' * (i % 7)}{i * 37 % 101} and {i * 53 % 89} are"
            out.write(json.dumps({"prompt": text, "label": str(i)}) + "\n")


def train(folder, *more, rollouts=LAST + 1):
    """The command of a run in `folder`; with many tokens that end an answer lengths differ."""
    return [MILES, "train", "--hf-checkpoint", "model", "--prompt-data", "prompts.jsonl", "--input-key", "prompt",
            "--label-key", "label", "--rollout-shuffle", "--rollout-temperature", "1", "--custom-rm-path",
            "reward.py:reward", "--use-dynamic-batch-size", "--max-tokens-per-gpu", "2048", "--lr", "1e-4",
            "--lr-decay-style", "constant", "--rollout-batch-size", "4", "--n-samples-per-prompt", "4",
            "--rollout-max-response-len", "24", "--num-rollout", str(rollouts), "--rollout-stop-token-ids",
            *map(str, range(20, 470, 30)), "--over-sampling-batch-size", "6", "--partial-rollout",
            "--rollout-logical-concurrency", "12", "--run-dir", f"{folder}/run", *more]


def saving(folder, *more):
    return train(folder, "--save", f"{folder}/save", "--save-interval", "1", *more)


def run(command):
    """Exit code, or None for a command that did not end, and what it said."""
    try:
        p = subprocess.run(command, cwd=WORK, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIMEOUT, check=False)
        return p.returncode, p.stdout.decode(errors="replace")
    except subprocess.TimeoutExpired as x:
        return None, (x.stdout or b"").decode(errors="replace")


def fell(code):
    """Whether a command hung or was ended by a signal."""
    return code is None or code < 0 or code > 128


def result(folder):
    last = WORK / folder / "save" / f"iter_{LAST:07d}"
    return [hashlib.sha256((last / name).read_bytes()).hexdigest() for name in ("model.safetensors", "optim.safetensors")]


def fresh():
    shutil.rmtree(WORK / "half", ignore_errors=True)
    shutil.copytree(WORK / "killed", WORK / "half")


def rewards_of(folder, rollout):
    """Looked at in a copy: whoever opens a database tidies it up."""
    shutil.copytree(WORK / folder / "run", WORK / "look")
    db = sqlite3.connect(WORK / "look" / "ledger.db")
    n = db.execute("select count(*) from rewards where rollout = ?", (rollout,)).fetchone()[0]
    db.close()
    shutil.rmtree(WORK / "look")
    return n


def make_killed():
    """A run that was killed when some of its third rollout was recorded."""
    for point in range(50, 600, 9):
        shutil.rmtree(WORK / "half", ignore_errors=True)
        code, said = run(saving("half", "--debug-kill-at", str(point)))
        if code == 0:
            break
        assert code == -signal.SIGKILL, said
        saved = sorted(p.name for p in (WORK / "half" / "save").glob("iter_*")) if (WORK / "half" / "save").is_dir() else []
        if saved[-1:] == ["iter_0000001"] and rewards_of("half", 2) > 2:
            shutil.copytree(WORK / "half", WORK / "killed")
            return
    sys.exit("no kill left a rollout half done")


def flip(path, at, bit):
    with open(path, "r+b") as f:
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 1 << bit]))


def judge(what, want):
    """The same command goes on."""
    code, said = run(saving("half"))
    count["flips"] += 1
    if fell(code):
        count["crashed"] += 1
        print(f"{what}: exit {code}: {said[-600:]}", file=sys.stderr)
    elif code != 0:
        count["refused"] += 1
        if "error" not in said:
            sys.exit(f"{what}: refused without a word: {said[-600:]}")
    elif result("half") == want:
        count["equal"] += 1
    else:
        count["silent"] += 1
        print(f"{what}: other weights, and not a word", file=sys.stderr)
    return code, said


def every_file(want):
    for path in sorted(p for p in (WORK / "killed").rglob("*") if p.is_file() and p.stat().st_size):
        name = path.relative_to(WORK / "killed")
        for _ in range(FLIPS):
            at, bit = rng.randrange(path.stat().st_size), rng.randrange(8)
            fresh()
            flip(WORK / "half" / name, at, bit)
            what = f"bit {bit} of byte {at} of {name}"
            for tool in (["report", "half/run", "--out", "report.tar.gz"], ["logs", "half/run"],
                         ["diff", "good/run", "half/run"], ["audit", "half/run"], ["replay", "half/run"]):
                code, said = run([MILES, *tool])
                if fell(code):
                    count["crashed"] += 1
                    print(f"miles {tool[0]}, {what}: exit {code}: {said[-600:]}", file=sys.stderr)
            judge(what, want)


def places(path, text):
    data, found, at = path.read_bytes(), [], -1
    while (at := data.find(text, at + 1)) >= 0:
        found.append(at + len(text))
    return found


def chosen(want):
    """What parses as before: only a sum tells."""
    for name in ("ledger.db", "ledger.db-wal"):
        if (WORK / "killed" / "run" / name).is_file():
            for at in rng.sample(found := places(WORK / "killed" / "run" / name, b'"reward":0.'), min(3, len(found))):
                fresh()
                flip(WORK / "half" / "run" / name, at, 0)
                judge(f"a reward in {name}", want)
    for name in ("model", "optim"):
        fresh()
        path = WORK / "half" / "save" / "iter_0000001" / f"{name}.safetensors"
        flip(path, path.stat().st_size - 4, 0)  # the last bit of a value
        code, said = judge(f"a value of {name}", want)
        if code != 1 or f"{name}.safetensors is damaged" not in said:
            sys.exit(f"a damaged {name}.safetensors is not refused: exit {code}: {said[-600:]}")
    # a checkpoint before it takes its place
    (WORK / "half" / "save" / "latest_checkpointed_iteration.txt").write_text("0\n")
    judge("the checkpoint before", want)
    fresh()
    rows = (WORK / "half" / "run" / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (WORK / "half" / "run" / "metrics.jsonl").write_bytes(b"".join(rows[:-1]) + rows[-1].replace(b":", b"\0", 1))
    refused("a row of metrics", [MILES, "replay", "half/run"], f"line {len(rows)} is damaged")


def without_ledger(want):
    """Who took it away is told what the checkpoints are good for, and goes on from them."""
    for more, words, same in ([], "has checkpoints of another run, up to rollout 1", 0), (["--load", "half/save"], "", 1):
        fresh()
        for path in (WORK / "half" / "run").glob("ledger.db*"):
            path.unlink()
        code, said = run(saving("half", *more))
        if code != 0 or words not in said or (same and result("half") != want):
            sys.exit(f"without a ledger: exit {code}, and no '{words}', or other weights: {said[-600:]}")


def refused(what, command, words):
    code, said = run(command)
    if code not in (1, 2) or words not in said:
        sys.exit(f"{what}: exit {code}, and no '{words}': {said[-600:]}")
    count["refusals"] += 1


class Beside:
    """A run that goes on, until it is left."""

    def __init__(self, name, *more):
        self.log = WORK / f"{name}.log"
        with open(self.log, "wb") as out:
            self.p = subprocess.Popen(train(name, *more, rollouts=10**6), cwd=WORK, stdout=out, stderr=subprocess.STDOUT)

    def __enter__(self):
        self.until("step 2/")
        return self

    def until(self, words):
        end = time.monotonic() + TIMEOUT
        while words not in self.log.read_text(errors="replace"):
            if time.monotonic() > end or (self.p.poll() is not None and words not in self.log.read_text(errors="replace")):
                sys.exit(f"no '{words}': {self.log.read_text(errors='replace')[-600:]}")
            time.sleep(0.05)

    def __exit__(self, *_):
        self.p.terminate()
        try:
            self.p.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            self.p.kill()
            sys.exit(f"{self.log}: it does not end")


def two_runs():
    delta = ["--rollout-num-gpus", "1", "--update-weight-transfer-mode", "disk-delta", "--update-weight-disk-dir", "weights"]
    (WORK / "weights" / "chunks").mkdir(parents=True)
    (WORK / "weights" / "chunks" / "mine.txt").write_text("not of miles")
    with Beside("one", *delta, "--save", "checkpoints"):
        refused("a second run in the folder", train("one"), "two runs cannot write one folder")
        refused("a second run with the checkpoints", train("three", "--save", "checkpoints"), "two runs cannot write one folder")
        refused("a second run with the weights", train("two", *delta), "two runs cannot write one folder")
    left = sorted(str(p.relative_to(WORK / "weights")) for p in (WORK / "weights").rglob("*") if p.is_file())
    if left != ["chunks/mine.txt", "lock"]:
        sys.exit(f"in the folder of weights are {left}")
    with Beside("gone") as b:
        shutil.rmtree(WORK / "gone")
        b.until("gone/run/metrics.jsonl was removed")
        count["refusals"] += 1


def pipe_as_weights():
    """Nobody writes into the pipe: an engine that waits for it never takes weights again, nor ends."""
    (WORK / "store").mkdir()
    os.mkfifo(WORK / "store" / "weight_v000001.json")
    with open(WORK / "serve.log", "wb") as out:
        p = subprocess.Popen([MILES, "serve", "--hf-checkpoint", "model", "--port", "0"], cwd=WORK, stdout=out, stderr=subprocess.STDOUT)
    try:
        end, words = time.monotonic() + TIMEOUT, []
        while not words:
            if time.monotonic() > end or p.poll() is not None:
                sys.exit(f"miles serve: {(WORK / 'serve.log').read_text()[-600:]}")
            words = (WORK / "serve.log").read_text().split(" on port ")[1:]
            time.sleep(0.05)
        body = json.dumps({"source": str(WORK / "store"), "weight_version": "1"}).encode()
        url = f"http://127.0.0.1:{int(words[0].split(',')[0])}/update_weights_from_delta"
        try:
            urllib.request.urlopen(urllib.request.Request(url, data=body), timeout=TIMEOUT).close()
            sys.exit("weights were taken from a pipe")
        except urllib.error.HTTPError as x:
            if b"not a regular file" not in (said := x.read()):
                sys.exit(f"a pipe as weights: {said}")
            count["refusals"] += 1
    finally:
        p.terminate()
        p.wait(TIMEOUT)


def main():
    prepare()
    code, said = run(saving("good"))
    assert code == 0, said
    want = result("good")
    make_killed()
    fresh()
    judge("nothing", want)
    count["flips"] = 0
    if count.pop("equal") != 1:
        sys.exit("the killed run does not go on to the same bits")
    count["equal"] = 0
    every_file(want)
    chosen(want)
    without_ledger(want)
    two_runs()
    pipe_as_weights()
    names = ("flips", "refused", "equal", "silent", "crashed", "refusals")
    print(" ".join(f"{name}={count[name]}" for name in names))
    return 1 if count["silent"] or count["crashed"] else 0


sys.exit(main())
