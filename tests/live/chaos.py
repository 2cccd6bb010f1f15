"""Disturbs a training run in all ways while it goes on, and compares it with one left alone: called by
tests/live/chaos.sh.

    chaos.py WORK SEED SECONDS MODE MODEL -- miles train ARGS...

MODE: how weights get to the engines, `full` (a folder of each version) or `delta` (what changed).

The run starts two engines itself; two others are started here, behind a proxy of ours, and the run finds
them in its file of engines. Faults come one after the other, often before the last is over. What is done,
to whom and for how long is drawn from SEED and written to WORK/faults.log with the instant and what came
of it.
"""
import asyncio
import hashlib
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

WORK, SEED, SECONDS = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
MODE, MODEL = sys.argv[4:6]
COMMAND = sys.argv[sys.argv.index("--") + 1 :]
OWN_ENGINES, OUTSIDE = 2, 2
HANG_S = 240  # without a new answer in the ledger, whatever was done meanwhile
BACK_S = 120  # for the victim of a fault to be back after it is over
# Clock and attempt columns.
OWN = re.compile(r"^perf/|^eval/duration_seconds$|^rollout/engine|^rollout/wrong_version_answers$")


def say(text):
    print(text, file=sys.stderr, flush=True)


def now():
    return time.monotonic()


def prune(directory):
    """Old checkpoints go, and what the ledger has of them stays."""
    for p in sorted(directory.glob("iter_???????"))[:-4]:
        shutil.rmtree(p, ignore_errors=True)


class Proxy:
    """A TCP proxy in a thread of its own whose connections can be refused, silenced, slowed and cut."""

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    def __init__(self):
        self.target, self.mode, self.server, self.rng = 0, "pass", None, random.Random(SEED)
        self.port, self.writers = 0, set()
        self.call(self.listen())

    def call(self, work):
        return asyncio.run_coroutine_threadsafe(work, Proxy.loop).result(30)

    async def listen(self):
        if not self.server:
            self.server = await asyncio.start_server(self.serve, "127.0.0.1", self.port, limit=1 << 16)
            self.port = self.server.sockets[0].getsockname()[1]

    async def close(self):
        if self.server:
            self.server.close()
            self.server = None
        self.cut()

    def cut(self):
        for w in list(self.writers):
            w.transport.abort()

    def set(self, mode):
        async def change():
            self.mode = mode
            if mode in ("cut", "refuse", "silent"):
                self.cut()
            await (self.close() if mode == "refuse" else self.listen())

        self.call(change())

    async def pump(self, reader, writer, left):
        while True:
            data = await reader.read(1 << 14)
            while self.mode == "silent":
                await asyncio.sleep(0.05)
            if self.mode == "slow":
                for i in range(0, len(data), 256):
                    if self.mode == "slow":
                        await asyncio.sleep(0.05)
                    writer.write(data[i : i + 256])
                    await writer.drain()
            elif self.mode == "cut" and len(data) >= left:
                writer.write(data[:left])
                await writer.drain()
                raise ConnectionError
            else:
                writer.write(data)
            left -= len(data)
            if not data:
                writer.write_eof()
                return
            await writer.drain()

    async def serve(self, reader, writer):
        self.writers.add(writer)
        to = None
        try:
            far, to = await asyncio.open_connection("127.0.0.1", self.target)
            self.writers.add(to)
            left = self.rng.randint(1, 3000)
            both = [asyncio.ensure_future(self.pump(reader, to, 1 << 60)),
                    asyncio.ensure_future(self.pump(far, writer, left))]
            done, rest = await asyncio.wait(both, return_when=asyncio.FIRST_EXCEPTION)
            for t in rest:
                t.cancel()
            for t in done:
                t.exception()
        except OSError:
            pass
        for w in (writer, to):
            self.writers.discard(w)
            if w:
                w.transport.abort()


class Engine:
    """An engine that the run did not start: `miles serve` behind a proxy, started again when it ends."""

    def __init__(self, i):
        self.i, self.name, self.proxy = i, f"outside{i}", Proxy()
        self.log, self.out = WORK / f"outside{i}.log", WORK / f"outside{i}.out"
        self.up_at = 0.0
        self.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.proxy.port}"

    def start(self):
        self.out.write_text("")
        words = [COMMAND[0], "serve", "--hf-checkpoint", MODEL, "--threads", "1", "--port", "0"]
        self.process = subprocess.Popen(words, stdout=open(self.out, "wb"), stderr=open(self.log, "ab"))
        self.ready = False

    def tend(self):
        """Started again when its pause is over; the proxy learns where it listens. 0: it has ended by itself."""
        if self.process.poll() is not None and self.up_at and now() >= self.up_at:
            self.up_at = 0.0
            self.start()
        if not self.ready:
            found = re.search(r"ready url=http://127.0.0.1:(\d+)", self.out.read_text())
            if found:
                self.proxy.target, self.ready = int(found[1]), True
        return self.up_at or self.process.poll() is None

    def end(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()


class Run:
    """The disturbed run, started as often as it takes."""

    def __init__(self, engines):
        self.dir, self.log, self.file = WORK / "chaos", WORK / "chaos.log", WORK / "engines.txt"
        self.file.write_text("# those outside\n" + "".join(f"{e.url}\n" for e in engines))
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.starts, self.begun = 0, 0.0

    def start(self, steps="1000000"):
        words = COMMAND + ["--save", str(self.dir), "--num-rollout", steps, "--save-hf", str(WORK / "chaos-hf")]
        words += ["--rollout-num-gpus", str(OWN_ENGINES), "--rollout-threads-per-engine", "1"]
        words += ["--rollout-engines-file", str(self.file), "--control-server-port", str(self.port)]
        words += ["--rollout-health-check-interval", "0.5", "--rollout-health-check-timeout", "3"]
        words += ["--rollout-slow-engine-wait", "3", "--update-weight-timeout", "20", "--disk-wait", "600"]
        words += ["--debug-weight-sync", "1"]
        if MODE == "delta":
            words += ["--update-weight-transfer-mode", "disk-delta", "--update-weight-delta-full-interval", "4"]
        out = open(self.log, "ab")
        self.from_byte = self.log.stat().st_size
        self.process = subprocess.Popen(words, stdout=out, stderr=out, env={**os.environ, "MILES_LOG_TIMES": "1"})
        self.starts, self.begun = self.starts + 1, now()
        self.weights = Weights(self)

    def said(self):
        with open(self.log, "rb") as f:
            f.seek(self.from_byte)
            return f.read().decode(errors="replace")

    def engine(self, i):
        """Process of its own engine i, None while there is none."""
        pids = re.findall(rf"engine {i} is process (\d+)", self.said())
        try:
            return int(pids[-1]) if b"serve" in Path(f"/proc/{pids[-1]}/cmdline").read_bytes() else None
        except (IndexError, OSError):
            return None

    def list(self, add=None, drop=None):
        """Changes the file of engines."""
        lines = [x for x in self.file.read_text().splitlines() if x not in (add, drop)] + ([add] if add else [])
        new = self.file.with_suffix(".new")
        new.write_text("".join(f"{x}\n" for x in lines))
        new.rename(self.file)

    def ask(self, method, path, body=None, timeout=2):
        req = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", method=method,
                                     data=json.dumps(body).encode() if body else None)
        with urllib.request.urlopen(req, timeout=timeout) as r:
            return json.load(r)

    def answers(self):
        try:
            db = sqlite3.connect(f"file:{self.dir}/run/ledger.db?mode=ro", uri=True, timeout=1)
            n = db.execute("select count(*) from answers").fetchone()[0]
            db.close()
            return n
        except sqlite3.Error:
            return None

    def latest(self):
        p = self.dir / "latest_checkpointed_iteration.txt"
        return int(p.read_text()) if p.exists() else -1


class Weights:
    """What one start of the run publishes: spoiled here, and what its log says of that, and of slow engines."""

    LINE = re.compile(r"version (?P<asked>\d+): engine (?P<who>\d+) .* is asked /update_weights_from_"
                      r"|weight_sync: (?:\S*weights_v|version )(?P<mended>\d+) is damaged and"
                      r"|WorkerCrashed: engine (?P<lost>\d+) .*?: (?P<bad>it does not (?:take|hold) weight version "
                      r"\d+: .*\b(?:sum|hash) )?"
                      r"|engine (?P<back>\d+) .* is back .* with weight version (?P<with>\d+)"
                      r"|engine (?P<slow>\d+) \((?P<url>\S*)\) is slow: ")
    read, refused = 0, 0  # spoiled versions that engines were to take, of all starts; and did not

    def __init__(self, run):
        self.run, self.dir, self.at = run, run.dir / "run" / "weights", run.from_byte
        self.spoiled = {}  # version: bytes of the log when it was done
        self.mended = set()  # versions that the run writes again, or has: they are left alone
        self.victims, self.taking = set(), {}  # who was killed after that; the spoiled version it reads
        self.slow = set()  # engines found to be so: numbers and addresses
        self.unseen = ""

    def newest(self):
        """Number and files of the newest version; -1: none is there."""
        names = self.dir.glob("weight_v*.json" if MODE == "delta" else "weights_v*")
        found = [(int(re.findall(r"\d+", p.name)[0]), p) for p in names if p.suffix != ".tmp"]
        version, path = max(found, default=(-1, None))
        if version < 0:
            return -1, []
        if MODE == "delta":
            return version, [self.dir / "chunks" / c["hash"] for c in json.loads(path.read_text())["chunks"]]
        return version, sorted(path.glob("*.safetensors"))

    def spoil(self, rng):
        """Flips a bit in the newest version: of a chunk, or of the exponent of a late value. False: there is none
        that an engine which starts must read."""
        try:
            version, files = self.newest()
            if version in self.spoiled:
                return True
            if not files or version in self.mended or (MODE == "delta" and version == 0):
                return False
            path = rng.choice(files)
            size = path.stat().st_size
            with open(path, "r+b") as f:
                at = rng.randrange(size) if MODE == "delta" else size - 1 - 2 * rng.randrange(500)
                f.seek(at)
                byte = f.read(1)[0]
                f.seek(at)
                f.write(bytes([byte ^ 64]))
        except (OSError, ValueError):  # gone meanwhile
            return False
        self.spoiled[version] = self.run.log.stat().st_size
        return True

    def listen(self):
        """Reads on in the log."""
        with open(self.run.log, "rb") as f:
            f.seek(self.at)
            for line in f:
                if not line.endswith(b"\n"):
                    break
                m = self.LINE.search(line.decode(errors="replace"))
                if m:
                    self.hear(m, self.at)
                self.at += len(line)

    def hear(self, m, at):
        who = int(m["who"] or m["lost"] or m["back"] or m["slow"] or -1)
        if m["asked"]:
            self.taking.pop(who, None)
            if who in self.victims and at >= self.spoiled.get(int(m["asked"]), at + 1):
                self.taking[who] = int(m["asked"])
        elif m["mended"]:
            version = int(m["mended"])
            self.mended.add(version)
            self.spoiled.pop(version, None)
            self.taking = {k: v for k, v in self.taking.items() if v != version}  # it may read what is good
        elif m["lost"]:
            self.taking.pop(who, None)
            Weights.read += bool(m["bad"])
            Weights.refused += bool(m["bad"])
        elif m["back"] and self.taking.pop(who, None) == int(m["with"]):
            Weights.read += 1
            self.unseen = f"engine {who} took version {m['with']}, in which a bit is flipped"
        elif m["slow"]:
            self.slow |= {who, m["url"]}


class Watcher(threading.Thread):
    """Asks the control server for the engines, again and again."""

    def __init__(self, run):
        super().__init__(daemon=True)
        self.run_, self.seen = run, None  # (asked at, engines)
        self.start()

    def run(self):
        while True:
            asked = now()
            try:
                self.seen = (asked, self.run_.ask("GET", "/engines", timeout=60)["engines"])
            except (OSError, ValueError, urllib.error.HTTPError):
                pass
            time.sleep(0.1)

    def ready_since(self, who):
        """Since when the engine is ready, as far as is known: an instant, or None."""
        asked, engines = self.seen or (0, [])
        for e in engines:
            name = e["engine"] if e["own"] else e["url"]
            if name == who and e["state"] == "ready" and not e["leaving"]:
                return asked - e["since_s"]
        return None

    def well(self, who, t):
        """Whether the engine may have all samples it can take, seen after t."""
        asked, engines = self.seen or (0, [])
        return asked > t and any((e["engine"] if e["own"] else e["url"]) == who and e["state"] == "ready" and
                                 e["breaker"] == "closed" for e in engines)

    def sampling_since(self, t):
        asked, engines = self.seen or (0, [])
        return asked > t and any(e["state"] == "ready" for e in engines)


class Fault:
    """What is done to whom: begin() does it, end() undoes it `seconds` later."""

    def __init__(self, chaos, kind, seconds, victim):
        self.c, self.kind, self.seconds, self.victim = chaos, kind, seconds, victim
        self.began = self.over = self.back = None

    @property
    def key(self):
        """As the run names the victim."""
        return self.victim.url if isinstance(self.victim, Engine) else self.victim

    def pid(self):
        return self.victim.process.pid if isinstance(self.victim, Engine) else self.c.run.engine(self.victim)

    def hit(self):
        """False: it cannot be done just now."""
        c, v, run = self.c, self.victim, self.c.run
        if self.kind in ("kill_own", "stop_own", "corrupt_weights", "slow_engine"):
            self.process = self.pid()
            if not self.process:
                return False
        if self.kind == "kill_own":
            os.kill(self.process, signal.SIGKILL)
        elif self.kind == "stop_own":
            os.kill(self.process, signal.SIGSTOP)
        elif self.kind == "kill_outside":
            v.process.kill()
            v.up_at = now() + self.seconds
        elif self.kind == "stop_outside":
            v.process.send_signal(signal.SIGSTOP)
        elif self.kind in ("refuse", "slow", "cut", "silent"):
            v.proxy.set(self.kind)
        elif self.kind == "corrupt_weights":
            # Who is killed must read what was spoiled before. Another engine is stopped: with samples in its
            # hands, or while a version is published, the version stays in force meanwhile.
            if not run.weights.spoil(c.rng):
                return False
            self.other, self.refused = c.rng.choice(c.engines), Weights.refused
            self.other.process.send_signal(signal.SIGSTOP)
            self.strike()
        elif self.kind == "slow_engine":
            run.weights.slow.discard(self.key)
            threading.Thread(target=self.slow_down, daemon=True).start()
        elif self.kind == "full_disk_engine":
            resource.prlimit(v.process.pid, resource.RLIMIT_FSIZE, (0, -1))
        elif self.kind == "full_disk_run":
            resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE, (4096, -1))
        elif self.kind == "kill_run":
            run.process.kill()
            run.process.wait()
        elif self.kind == "stop_run":
            run.process.terminate()
            run.process.wait(120)
        elif self.kind == "leave_and_join":
            number = [e["engine"] for e in run.ask("GET", "/engines")["engines"]
                      if e["url"] == v.url and not e["leaving"]]
            if not number:
                return False
            try:
                run.ask("DELETE", f"/engines/{number[0]}")
            except TimeoutError:  # nobody knows whether it was heard
                pass
        elif self.kind == "file_edited":
            run.list(drop=v.url)
        return True

    def strike(self):
        self.struck = now()
        self.c.run.weights.victims.add(self.victim)
        os.kill(self.process, signal.SIGKILL)

    def slow_down(self):
        """It runs a twentieth of the time."""
        while self.over is None:
            for sig, seconds in ((signal.SIGSTOP, 0.38), (signal.SIGCONT, 0.02)):
                pid = self.pid()
                try:
                    if pid:
                        os.kill(pid, sig)
                except ProcessLookupError:
                    pass
                time.sleep(seconds)

    def is_over(self):
        """Told every few hundredths of a second while it is active."""
        if self.kind == "slow_engine":
            return self.key in self.c.run.weights.slow
        if self.kind != "corrupt_weights":
            return now() >= self.began + self.seconds
        if Weights.refused > self.refused:
            return True
        if now() >= self.began + self.seconds:
            self.other.process.send_signal(signal.SIGCONT)
        # Until it is read: each version that comes, and who was ready before it was done is killed once more.
        weights, since = self.c.run.weights, self.c.watcher.ready_since(self.victim)
        if weights.spoil(self.c.rng) and since is not None and since > self.struck and self.pid():
            self.process = self.pid()
            self.strike()
        return False

    def lift(self):
        v, run = self.victim, self.c.run
        try:
            if self.kind == "stop_own":
                os.kill(self.process, signal.SIGCONT)
            elif self.kind == "stop_outside":
                v.process.send_signal(signal.SIGCONT)
            elif self.kind == "corrupt_weights":
                self.other.process.send_signal(signal.SIGCONT)
            elif self.kind in ("refuse", "slow", "cut", "silent"):
                v.proxy.set("pass")
            elif self.kind == "full_disk_engine":
                resource.prlimit(v.process.pid, resource.RLIMIT_FSIZE, (-1, -1))
            elif self.kind == "full_disk_run":
                resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE, (-1, -1))
        except ProcessLookupError:
            pass
        if self.kind in ("kill_run", "stop_run"):
            run.start()
        elif self.kind == "leave_and_join":
            try:
                run.ask("POST", "/engines", {"url": v.url})
            except urllib.error.HTTPError as e:
                if e.code != 400:  # it has heard that before
                    raise
        elif self.kind == "file_edited":
            run.list(add=v.url)

    def who(self):
        if self.victim is None:
            return "run"
        return self.victim.name if isinstance(self.victim, Engine) else f"own{self.victim}"

    def is_back(self, watcher):
        if self.victim is None:
            return watcher.sampling_since(self.over)
        if self.kind == "slow_engine":
            return watcher.well(self.key, self.over)
        since = watcher.ready_since(self.key)
        return since is not None and since > (self.struck if self.kind == "corrupt_weights" else self.over)


# kind: seconds it lasts, whom it is done to. Weights stay spoiled until an engine has refused them, and an engine
# is slow until the run drains it.
KINDS = {
    "kill_own": (0, 0, "own"),
    "stop_own": (1, 5, "own"),
    "kill_outside": (0.2, 2, "outside"),
    "stop_outside": (1, 5, "outside"),
    "refuse": (0.5, 4, "outside"),
    "slow": (2, 6, "outside"),
    "cut": (0.5, 4, "outside"),
    "silent": (1, 5, "outside"),
    "corrupt_weights": (4, 5, "own"),
    "slow_engine": (0, 0, "any"),
    "full_disk_engine": (1, 4, "outside"),
    "full_disk_run": (1, 3, "run"),
    "kill_run": (0.1, 1, "run"),
    "stop_run": (0.1, 1, "run"),
    "leave_and_join": (1, 3, "outside"),
    "file_edited": (1.5, 3, "outside"),
}


class Chaos:
    def __init__(self):
        self.rng = random.Random(SEED)
        self.engines = [Engine(i) for i in range(OUTSIDE)]
        self.run = Run(self.engines)
        self.log = open(WORK / "faults.log", "w")
        self.active, self.waiting, self.done, self.deck = [], [], [], []
        self.hangs, self.answers, self.progress = 0, -1, now()

    def note(self, text):
        self.log.write(f"{now() - self.t0:9.3f} {text}\n")
        self.log.flush()

    def draw(self):
        """The next fault that can be begun now; None: there is none. Every kind comes once before one comes again."""
        if not self.deck:
            self.deck = [self.make(kind) for kind in KINDS]
            self.rng.shuffle(self.deck)
        return next((f for f in self.deck if not self.busy(f)), None)

    def make(self, kind):
        low, high, whom = KINDS[kind]
        own, outside = self.rng.randrange(OWN_ENGINES), self.rng.choice(self.engines)
        victim = {"own": own, "outside": outside, "any": self.rng.choice((own, outside)), "run": None}[whom]
        return Fault(self, kind, self.rng.uniform(low, high), victim)

    def busy(self, f):
        """An engine has one fault at a time, and none after it was slow until it has all samples again; a run that does
        not run has none, and the file one who writes it. A run that starts on a full disk ends with an error that
        says so: its disk is full once it samples."""
        edits = ("leave_and_join", "file_edited")
        if any(x.kind == "slow_engine" and x.victim == f.victim for x in self.waiting):
            return True
        if f.kind == "full_disk_run" and any(x.victim is None for x in self.waiting):
            return True
        return any(x.kind in ("kill_run", "stop_run") or x.victim == f.victim or
                   (x.kind in edits and f.kind in edits) for x in self.active)

    def begin(self, f):
        try:
            f.began = now()
            if not f.hit():
                return False
        except (OSError, ValueError) as e:
            self.note(f"{f.kind} {f.who()} not possible: {e}")
            return False
        self.note(f"{f.kind} {f.who()} for {f.seconds:.2f} s")
        self.deck.remove(f)
        self.active.append(f)
        return True

    def end(self, f):
        try:
            f.lift()
        except (OSError, ValueError):  # the run is busy with another: once more soon
            f.seconds += 0.1
            return
        f.over = now()
        self.active.remove(f)
        self.waiting.append(f)
        self.note(f"{f.kind} {f.who()} is over")

    def tend(self):
        for e in self.engines:
            if not e.tend():
                self.fail(f"{e.name} ended by itself, exit code {e.process.returncode}")
        if self.run.process.poll() is not None and not any(f.kind in ("kill_run", "stop_run") for f in self.active):
            self.fail(f"the run ended by itself, exit code {self.run.process.returncode}")
        self.run.weights.listen()
        if self.run.weights.unseen:
            self.fail(self.run.weights.unseen)
        for f in [f for f in self.active if f.is_over()]:
            self.end(f)
        for f in self.active:
            if now() - f.began > f.seconds + BACK_S:
                self.fail(f"{f.kind} {f.who()} is not seen {BACK_S} s after it began")
        for f in self.waiting[:]:
            if f.is_back(self.watcher):
                f.back = now()
                self.waiting.remove(f)
                self.done.append(f)
                self.note(f"{f.kind} {f.who()} back after {f.back - f.over:.3f} s")
            elif now() - f.over > BACK_S and not any(x.victim == f.victim for x in self.active):
                self.fail(f"{f.kind} {f.who()} is not back {BACK_S} s after it was over")
        n = self.run.answers()
        if n is not None and n != self.answers:
            self.answers, self.progress = n, now()
        if now() - self.progress > HANG_S:
            self.hangs += 1
            self.fail(f"no new answer for {HANG_S} s")
        prune(self.run.dir)

    def fail(self, why):
        say("".join(open(WORK / "faults.log").readlines()[-30:]))
        lines = self.run.log.read_text(errors="replace").splitlines()
        say("\n".join(x for x in lines if not re.search(r" is asked /| answers the ", x))[-6000:])
        say(json.dumps(self.watcher.seen, indent=1))
        self.stop()
        keep = os.environ.get("CHAOS_KEEP")
        if keep:
            shutil.copytree(WORK, keep, dirs_exist_ok=True, ignore=shutil.ignore_patterns("model", "iter_*"))
        sys.exit(f"chaos.py: {why} (SEED={SEED} hangs={self.hangs})")

    def stop(self):
        for e in self.engines:
            e.end()
        self.run.process.kill()
        self.run.process.wait()

    def disturb(self):
        self.t0 = now()
        self.run.start()
        self.watcher = Watcher(self.run)
        while not self.watcher.sampling_since(0):
            self.tend()
            time.sleep(0.1)
        begun, gap = now(), max(0.3, min(2.5, SECONDS / 30))
        due = begun
        while now() - begun < SECONDS:
            if now() >= due:
                f = self.draw()
                begun_now = f and self.begin(f)
                due = now() + (self.rng.expovariate(1 / gap) if begun_now else 0.2)
                if f and not begun_now:
                    self.deck.append(self.deck.pop(self.deck.index(f)))
            self.tend()
            time.sleep(0.05)
        while self.active or self.waiting:
            self.tend()
            time.sleep(0.05)

    def finish(self):
        """Two steps more, undisturbed, and the end."""
        self.run.process.terminate()
        if self.run.process.wait(120) != 0:
            self.fail("SIGTERM made it fail")
        steps = self.run.latest() + 3
        self.run.start(str(steps))
        try:
            rc = self.run.process.wait(HANG_S)
        except subprocess.TimeoutExpired:
            self.hangs += 1
            self.fail("the last start does not end")
        if rc != 0:
            self.fail(f"the last start failed, exit code {rc}")
        for e in self.engines:
            e.end()
        return steps


def table(directory, query):
    return list(sqlite3.connect(directory / "run" / "ledger.db").execute(query))


def answered_version(directory, segment, offset):
    """Version that a recorded answer was drawn with, and its tokens (rl/port_record.c)."""
    with open(directory / "run" / "segments" / f"{segment:04d}.seg", "rb") as f:
        f.seek(offset + 16)
        data = f.read(24)
    return int.from_bytes(data[16:24], "little", signed=True), int.from_bytes(data[4:8], "little")


def kept(directory):
    rows = table(directory, "select data from events where kind='kept' order by rollout, seq")
    return [s for (data,) in rows for s in json.loads(data)["samples"]]


def rows(directory):
    lines = (directory / "run" / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(x).items() if not OWN.search(k)} for x in lines]


def sums(folder):
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir()) if p.is_file()}


def compare(got, want):
    """What became of the samples: lost, trained twice, and tokens of weights that were not asked for."""
    a, b = kept(got), kept(want)
    lost = len(set(b) - set(a)) + (len(a) - len(set(a)))
    stale, mine = 0, set(a)
    for sample, version, segment, offset in table(
            got, "select sample, version, segment, offset from answers where eval_set = 0"):
        drawn, tokens = answered_version(got, segment, offset)
        stale += tokens if sample in mine and drawn != version else 0
    return lost, stale, a == b


def main():
    chaos = Chaos()
    try:
        chaos.disturb()
        steps = chaos.finish()
    finally:
        chaos.stop()
    plain = WORK / "plain"
    words = COMMAND + ["--save", str(plain), "--num-rollout", str(steps), "--save-hf", str(WORK / "plain-hf")]
    words += ["--colocate"]
    with open(WORK / "plain.log", "wb") as out:
        process = subprocess.Popen(words, stdout=out, stderr=out)
    while process.poll() is None:
        prune(plain)
        time.sleep(0.2)
    if process.returncode:
        sys.exit(f"chaos.py: the undisturbed run failed: {(WORK / 'plain.log').read_text()[-2000:]}")
    got = chaos.run.dir
    lost, stale, same = compare(got, plain)
    last = f"iter_{chaos.run.latest():07d}"
    equal = int(same and sums(WORK / "chaos-hf") == sums(WORK / "plain-hf") and sums(got / last) == sums(plain / last))
    if rows(got) != rows(plain):
        equal = 0
        say("the rows of the metrics differ")
    took = sorted(f.back - f.over for f in chaos.done)
    pick = lambda q: took[min(len(took) - 1, int(q * len(took)))]
    by_kind = {}
    for f in chaos.done:
        by_kind.setdefault(f.kind, []).append(f.back - f.over)
    log = chaos.run.log.read_text(errors="replace")
    drained = log.count(" is slow: ")
    say(f"the log has {log.count('WorkerCrashed')} losses, {log.count(' is back ')} returns, {drained} slow "
        f"engines, {log.count('gets none for')} open breakers, {log.count('is damaged and')} damaged folders, "
        f"{log.count(': going on')} pauses for a full disk, {log.count('is added as engine')} engines added")
    for kind, t in sorted(by_kind.items()):
        say(f"{kind:18} {len(t):4} times, back after {sorted(t)[len(t) // 2]:6.2f} s, {max(t):6.2f} s at most")
    print(f"seed={SEED} mode={MODE} steps={steps} starts={chaos.run.starts} faults={len(took)} kinds={len(by_kind)} "
          f"corruptions={Weights.read} refused={Weights.refused} drained={drained} "
          f"readmitted={log.count(' is well: ')} hangs={chaos.hangs} stale_tokens={stale} "
          f"lost_samples={lost} recovery_p50_s={pick(0.5):.2f} "
          f"recovery_p99_s={pick(0.99):.2f} weights_equal={equal}")
    seen = Weights.read == Weights.refused and drained >= len(by_kind.get("slow_engine", []))
    sys.exit(0 if equal and not lost and not stale and seen else 1)


main()
