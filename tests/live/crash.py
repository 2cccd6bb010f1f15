"""Kills a training run in all ways and compares what comes out: called by tests/live/crash.sh.

    crash.py WORK SEED KILLS FAULTS [teacher] -- miles train ARGS...

With `teacher` it answers questions about samples itself.
"""
import array
import hashlib
import json
import os
import random
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import xxhash

WORK, SEED, KILLS, FAULTS = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
COMMAND = sys.argv[sys.argv.index("--") + 1 :]
MODES = ["wal", "rollback"]
LIMIT_S = 600  # of one start
START_ROOM = 4000  # bytes of a file: fewer than a page of the ledger
KEY = "rollout, eval_set, sample, start, version, ask"
# Clock and attempt columns.
OWN = re.compile(r"^perf/|^eval/duration_seconds$|^rollout/engine|^rollout/wrong_version_answers$")

counts = dict(kills=0, terms=0, faults=0, full_disks=0, runs=0, starts=0, diverged=0, lost_samples=0)
counts.update(recorded_answers_asked_again=0, recorded_rewards_asked_again=0, recorded_teachers_asked_again=0)
counts.update(recorded_rollouts_asked_again=0)
counts.update(forced_ends=0, pauses=0, stop_s_max=0.0, replays=0)
TEACHER_SET = -1  # of answers that a teacher gave
WHOLE = -1  # the sample of what a function made: a whole rollout or evaluation


def say(text):
    print(text, file=sys.stderr, flush=True)


def signed(hash64):
    """As SQLite has it."""
    return hash64 - (1 << 64 if hash64 >> 63 else 0)


class Teacher(BaseHTTPRequestHandler):
    """Says something about tokens, and remembers what it was asked."""

    asked = []
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        Teacher.asked.append(signed(xxhash.xxh3_64_intdigest(body)))
        ask = json.loads(body)
        ids, own = ask["input_ids"], ask.get("token_ids_logprob", [])

        def entry(token, at):
            return [-((token * 31 + at * 7) % 97) / 40 - 0.1, token, None]

        meta = dict(input_token_logprobs=[entry(t, i) for i, t in enumerate(ids)],
                    input_top_logprobs=[[entry(5, i), entry(6, i)] for i in range(len(ids))],
                    input_token_ids_logprobs=[[entry(t, i) for t in own] for i in range(len(ids))])
        data = json.dumps(dict(text="", meta_info=meta)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def start_teacher():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Teacher)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    COMMAND.extend(["--opd-teacher-urls", f"default=http://127.0.0.1:{server.server_port}"])


class Run:
    """One run in WORK/name, started as often as it takes."""

    def __init__(self, name, mode):
        self.dir, self.name, self.mode, self.starts = WORK / name, name, mode, 0
        self.log = WORK / f"{name}.log"
        self.known = {"answers": set(), "rewards": set()}
        counts["runs"] += 1

    def start(self, *more, before=None, slow=-1):
        self.starts += 1
        counts["starts"] += 1
        self.asked = WORK / f"{self.name}.asked"
        self.calls = WORK / f"{self.name}.calls"
        self.rolled = WORK / f"{self.name}.calls.rolled"
        for p in (self.asked, self.calls, self.rolled):
            p.write_text("")
        Teacher.asked.clear()
        words = COMMAND + ["--save", str(self.dir), "--ledger-mode", self.mode]
        words += ["--debug-asked-log", str(self.asked), *more]
        out = open(self.log, "ab")
        self.process = subprocess.Popen(words, stdout=out, stderr=out, preexec_fn=before,
                                        env={**os.environ, "CRASH_CALLS": str(self.calls), "CRASH_SLOW": str(slow)})
        self.began = time.monotonic()

    def wait(self):
        try:
            rc = self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            self.fail(f"did not end within {LIMIT_S} s")
        self.check_asked()
        return rc

    def fail(self, why):
        say(self.log.read_text()[-4000:])
        sys.exit(f"crash.py: {self.name}: {why} (SEED={SEED})")

    def ledger(self):
        """A copy of the ledger, so that looking at it repairs nothing."""
        copy = WORK / "look"
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        for p in (self.dir / "run").glob("ledger.db*"):
            shutil.copy(p, copy)
        return sqlite3.connect(copy / "ledger.db")

    def check_asked(self):
        """Nothing that was on disk when this start began may have been asked for in it."""
        asked = {tuple(map(int, line.split())) for line in self.asked.read_text().splitlines()}
        again = asked & {(s, r, e, start) for r, e, s, start, _, _ in self.known["answers"]}
        counts["recorded_answers_asked_again"] += len(again)
        # An evaluation scores the same answer again in the next one; its prompts are its own.
        known = {(s, ask) for _, e, s, _, _, ask in self.known["rewards"] if e == 0}
        for line in self.calls.read_text().splitlines():
            index, *tokens = map(int, line.split())
            ask = signed(xxhash.xxh3_64_intdigest(array.array("i", tokens).tobytes()))
            counts["recorded_rewards_asked_again"] += (index, ask) in known
        known = {(r, e) for r, e, s, *_ in self.known["answers"] if s == WHOLE}
        for line in self.rolled.read_text().splitlines():
            counts["recorded_rollouts_asked_again"] += tuple(map(int, line.split())) in known
        known = {ask for _, e, _, _, _, ask in self.known["answers"] if e == TEACHER_SET}
        counts["recorded_teachers_asked_again"] += sum(ask in known for ask in Teacher.asked)
        if not (self.dir / "run" / "ledger.db").exists():
            return
        db = self.ledger()
        for table in self.known:
            try:
                self.known[table] = set(db.execute(f"select {KEY} from {table}"))
            except sqlite3.OperationalError:  # killed before the tables were made
                pass

    def finish(self, *more):
        """Started until it ends by itself."""
        for _ in range(3):
            self.start(*more)
            if self.wait() == 0:
                return
        self.fail("does not end")


def result(run):
    """Everything of a run that must not depend on how it went."""
    latest = int((run.dir / "latest_checkpointed_iteration.txt").read_text())
    files = {}
    for p in sorted((run.dir / f"iter_{latest:07d}").iterdir()):
        files[p.name] = hashlib.sha256(p.read_bytes()).hexdigest()
    rows = []
    for line in (run.dir / "run" / "metrics.jsonl").read_text().splitlines():
        rows.append({k: v for k, v in json.loads(line).items() if not OWN.search(k)})
    db = run.ledger()
    events = list(db.execute("select rollout, kind, seq, data from events order by 1, 2, 3"))
    answers = {}
    for row in db.execute(f"select {KEY}, segment, offset, length from answers"):
        answers[row[:6]] = row[6:]
    rewards = {row[:6]: row[6] for row in db.execute(f"select {KEY}, value from rewards")}
    return dict(latest=latest, files=files, rows=rows, events=events, answers=answers, rewards=rewards)


def piece(run, key, at):
    """The answer at a place of the segments: finish, was its end asked for, tokens and log-probs; of a
    teacher or a function: all of it."""
    segment, offset, length = at
    with open(run.dir / "run" / "segments" / f"{segment:04d}.seg", "rb") as f:
        f.seek(offset)
        head, data = f.read(16), f.read(length)
    assert head[:4] == b"MSEG" and xxhash.xxh3_64_intdigest(data) == int.from_bytes(head[8:], "little")
    if key[1] == TEACHER_SET or key[2] < 0 or data[:4] == b"AMN2":
        return 0, 0, data, b""
    n, finish, asked_end = int.from_bytes(data[4:8], "little"), data[8], data[10]
    return finish, asked_end, data[24 : 24 + 4 * n], data[24 + 4 * n : 24 + 8 * n]


def kept(events):
    """The samples that were trained on."""
    return [s for _, kind, _, data in events if kind == "kept" for s in json.loads(data)["samples"]]


def compare(run, base, want):
    got, bad = result(run), []
    for key in ("latest", "files", "rows", "events"):
        if got[key] != want[key]:
            bad.append(key)
            if isinstance(got[key], dict):
                say(f"{run.name}: {[k for k in want[key] if got[key].get(k) != want[key][k]]} differ")
            if isinstance(got[key], list):
                for a, b in zip(got[key], want[key]):
                    if a != b:
                        say(f"{run.name}: {key}: {a}\n    and not {b}")
                        break
                say(f"{run.name}: {len(got[key])} {key}, not {len(want[key])}")
    trained = kept(got["events"])
    if len(set(trained)) != len(trained):
        bad.append("samples trained twice")
    answered = {s for _, e, s, *_ in got["answers"] if e == 0}
    for k, at in got["answers"].items():
        if k[1] == 0 and k[2] == WHOLE:
            groups = json.loads(piece(run, k, at)[2])["answer"]["samples"]
            answered |= {s["index"] for g in groups for s in g}
    lost = [x for x in kept(want["events"]) if x not in answered]
    for k in got["answers"].keys() & want["answers"].keys():
        a, b = piece(run, k, got["answers"][k]), piece(base, k, want["answers"][k])
        n = min(len(a[2]), len(b[2])) if a[1] or b[1] else max(len(a[2]), len(b[2]))
        if a[2][:n] != b[2][:n] or a[3][:n] != b[3][:n]:
            lost.append(k)
    for k in got["rewards"].keys() & want["rewards"].keys():
        if got["rewards"][k] != want["rewards"][k]:
            bad.append(f"reward {k}: {got['rewards'][k]} and not {want['rewards'][k]}")
    if "--over-sampling-batch-size" not in COMMAND:
        for table in ("answers", "rewards"):  # nothing surplus: the very same entries
            if got[table].keys() != want[table].keys():
                bad.append(f"keys of {table}")
    counts["lost_samples"] += len(lost)
    counts["diverged"] += bool(bad)
    left = [p for p in run.dir.rglob("*.tmp")]
    if bad or lost or left:
        say(f"{run.name}: differs in {bad}, lost {lost[:5]}, left {left}")
    counts["pauses"] += run.log.read_text(errors="replace").count("; paused:")
    if not bad:
        shutil.rmtree(run.dir)


def compare_replay(run):
    """Where the order of arrival decides, a run equals the replay of its own ledger."""
    done = subprocess.run([COMMAND[0], "replay", str(run.dir / "run")], capture_output=True, text=True,
                          timeout=LIMIT_S, env={**os.environ, "CRASH_CALLS": os.devnull})
    if done.returncode or "replay=equal" not in done.stdout:
        counts["diverged"] += 1
        say(f"{run.name}: {done.stdout}{done.stderr[-1500:]}")
        return
    counts["replays"] += 1
    shutil.rmtree(run.dir)


def killed_run(rng, name, mode, left, seconds, points):
    """A run that is killed up to three times, `left` in all."""
    run = Run(name, mode)
    for _ in range(min(left, rng.randint(1, 4))):
        how = rng.random()
        if how < 0.5:
            run.start("--debug-kill-at", str(rng.randint(1, points)))
        else:
            run.start()
            time.sleep(rng.uniform(0.0, seconds))
            run.process.send_signal(signal.SIGTERM if how > 0.9 else signal.SIGKILL)
        asked = time.monotonic()
        rc = run.wait()
        if how > 0.9:
            counts["stop_s_max"] = max(counts["stop_s_max"], round(time.monotonic() - asked, 1))
        if rc == -signal.SIGKILL:
            counts["kills"] += 1
        elif how > 0.9 and (rc in (0, -signal.SIGTERM) or "asked to stop" in run.log.read_text()[-300:]):
            # before its handler is there it just ends; while engines start there is nothing to save
            counts["terms"] += 1
        elif rc != 0:
            run.fail(f"exit code {rc}")
    run.finish()
    return run


def forced_run(name, mode, slow):
    """A run that is asked to stop and is too busy to hear: it ends by --stop-timeout, and goes on."""
    run = Run(name, mode)
    run.start("--stop-timeout", "1", "--custom-rollout-log-function-path", f"{WORK}/reward.py:slow_log", slow=slow)
    busy = Path(f"{run.calls}.slow")
    while run.process.poll() is None and not busy.exists():
        time.sleep(0.05)
    run.process.send_signal(signal.SIGTERM)
    if run.wait() != 1 or "not ended within --stop-timeout" not in run.log.read_text()[-300:]:
        run.fail("was not ended by --stop-timeout")
    counts["forced_ends"] += 1
    run.finish()
    return run


def faulty_run(rng, name, mode, i):
    op = ["write", "sync", "rename"][i % 3]
    most = {"write": 60, "sync": 60, "rename": 12}[op]
    run = Run(name, mode)
    run.start("--debug-fail-io", f"{op}:{rng.randint(1, most)}:{rng.randint(1, 2)}", "--disk-wait", "120")
    if run.wait() != 0:
        run.fail("did not wait for the disk")
    counts["faults"] += 1
    return run


def full_disk_run(name, mode, size):
    """No file may be longer than `size` until the run says that it waits. START_ROOM: not even the ledger
    can be made."""
    run = Run(name, mode)
    run.start("--disk-wait", "300", before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, -1)))
    while run.process.poll() is None and "; paused:" not in run.log.read_text(errors="replace"):
        time.sleep(0.05)
    if run.process.poll() is not None:
        run.fail("ended on a full disk")
    started = "run folder" in run.log.read_text(errors="replace")
    if started == (size == START_ROOM):
        run.fail("was started when it paused" if started else "paused while it was started")
    time.sleep(0.7)
    resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE, (-1, -1))
    if run.wait() != 0:
        run.fail("did not go on when there was room")
    if "going on" not in run.log.read_text(errors="replace"):
        run.fail("did not say that it goes on")
    counts["full_disks"] += 1
    return run


def main():
    rng = random.Random(SEED)
    if "teacher" in sys.argv[5 : sys.argv.index("--")]:
        start_teacher()
    base = Run("base", "wal")
    base.start()
    if base.wait() != 0:
        base.fail("the undisturbed run failed")
    seconds = time.monotonic() - base.began
    want = result(base)
    db = base.ledger()
    commits = db.execute("select count(*) from events").fetchone()[0] + len(want["answers"])
    points = max(8, min(400, 2 * commits))
    say(f"undisturbed: {seconds:.1f} s, {len(want['answers'])} answers, {len(want['rewards'])} rewards, "
        f"{len(want['events'])} events")
    i = 0
    while counts["kills"] < KILLS:
        run = killed_run(rng, f"killed-{i}", MODES[i % 2], KILLS - counts["kills"], seconds, points)
        if "--fully-async" in COMMAND:
            compare_replay(run)
        else:
            compare(run, base, want)
        i += 1
        if i > 20 * KILLS + 20:
            sys.exit("crash.py: the runs end before they are killed")
    forced = forced_run("forced", MODES[SEED % 2], rng.randint(0, want["latest"]))
    compare_replay(forced) if "--fully-async" in COMMAND else compare(forced, base, want)
    for i in range(FAULTS):
        compare(faulty_run(rng, f"faulty-{i}", MODES[i // 3 % 2], i), base, want)
    size = max(p.stat().st_size for p in (base.dir / f"iter_{want['latest']:07d}").iterdir())
    for i, mode in enumerate(MODES if FAULTS else []):
        compare(full_disk_run(f"full-{i}", mode, size // 2), base, want)
        compare(full_disk_run(f"start-{i}", mode, START_ROOM), base, want)
    compare_replay(base)
    print(f"seed={SEED} " + " ".join(f"{k}={v}" for k, v in counts.items()))
    bad = [k for k in counts if k in ("diverged", "lost_samples") or k.endswith("asked_again")]
    sys.exit(any(counts[k] for k in bad))


main()
