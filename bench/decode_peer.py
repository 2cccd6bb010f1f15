"""Sampling speed of another system and of miles, by turns: decode_peer.py KIND ARGS

Both sides get the same prompts (chat template applied), make the same number of new tokens for each at
temperature 1 with log-probs, past end tokens, and keep their model loaded; a turn is one call for N
prompts, text in and text out. Nobody may use the processor while another is measured: before each turn
all processes must be at rest, and what the resting side used meanwhile is printed. A third kind of turn is
the limit: the weights read or the bare products of the same turn, by `miles bench decode`.

    decode_peer.py vllm MILES MODEL               vLLM in this process
    decode_peer.py llamacpp MILES MODEL GGUF      llama.cpp in this process
    decode_peer.py sglang MILES MODEL URL PID MILES_URL MILES_PID      two servers, asked over HTTP

ROUNDS (3) turns of each size are taken after one that warms up; a figure is the median over rounds, for
speed-ups and shares the median of each round's ratio. The last line is decode_speedup_b1=... b8=...
"""

import concurrent.futures
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

NEW = int(os.environ.get("NEW_TOKENS", 128))
ROUNDS = int(os.environ.get("ROUNDS", 3))
BATCHES = [int(n) for n in os.environ.get("BATCHES", "1 8 32 128").split()]
THREADS = 2
QUESTION = (
    "Natalia sold clips to %d of her friends in April, and then she sold half as many clips in May. "
    "How many clips did Natalia sell altogether in April and May?"
)
QUESTIONS = [QUESTION % (40 + i) for i in range(max(BATCHES))]


def say(text):
    print(text, file=sys.stderr, flush=True)


# ---- processes ---------------------------------------------------------------------------------------


def stat_of(pid):
    """(parent, ticks of processor time) of a process; None when it is gone."""
    try:
        with open("/proc/%d/stat" % pid) as f:
            fields = f.read().rpartition(")")[2].split()
        return int(fields[1]), int(fields[11]) + int(fields[12])
    except (OSError, IndexError):
        return None


def family(root, without=()):
    """A process and all below it, but for those in `without` and what is below them."""
    below = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            stat = stat_of(int(name))
            if stat:
                below.setdefault(stat[0], []).append(int(name))
    found, left = [], [root]
    while left:
        pid = left.pop()
        if pid not in without:
            found.append(pid)
            left += below.get(pid, [])
    return found


def used(pids):
    """Seconds of processor time."""
    return sum(stat[1] for stat in map(stat_of, pids) if stat) / os.sysconf("SC_CLK_TCK")


def wait_idle(pids, name, limit=60.0):
    """Waits until the processes together use less than a twentieth of a core."""
    end = time.monotonic() + limit
    while True:
        before = used(pids)
        time.sleep(0.4)
        if used(pids) - before <= 0.02:
            return
        if time.monotonic() > end:
            sys.exit("%s does not come to rest: a turn beside it would not count" % name)


# ---- our side ----------------------------------------------------------------------------------------


class Bench:
    """`miles bench decode`, which takes its turns from a pipe."""

    name = "miles"

    def __init__(self, program, model, prompts):
        self.child = subprocess.Popen(
            [program, "bench", "decode", "--hf-checkpoint", model, "--prompts", prompts]
            + ["--max-tokens", str(NEW), "--threads", str(THREADS), "--stdin"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        say(self.line("ready"))

    def line(self, begin):
        line = self.child.stdout.readline()
        if not line.startswith(begin + " "):
            sys.exit("miles bench decode: %r where %r was due" % (line, begin))
        return line.strip()

    def ask(self, what, *args):
        self.child.stdin.write(" ".join([what, *map(str, args)]) + "\n")
        self.child.stdin.flush()
        return dict(field.split("=") for field in self.line(what).split()[1:])

    def pids(self):
        return family(self.child.pid)

    def turn(self, n, seed):
        r = self.ask("turn", n, seed)
        return int(r["tokens"]), int(r["prompt_tokens"]), float(r["seconds"])

    def limit(self, n):
        return float(self.ask("limit", n)["seconds"])

    def close(self):
        self.child.stdin.close()
        self.child.wait(30)


# ---- the others --------------------------------------------------------------------------------------


def rendered(model):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": q}], tokenize=False, add_generation_prompt=True
        )
        for q in QUESTIONS
    ]


class Here:
    """What runs in this process, and those below it that are not our side's."""

    def __init__(self, apart):
        self.apart = set(apart)

    def pids(self):
        return family(os.getpid(), self.apart)


class Vllm(Here):
    name = "vllm"

    def __init__(self, apart, model):
        super().__init__(apart)
        from vllm import LLM, SamplingParams

        self.params = SamplingParams
        self.prompts = rendered(model)
        self.llm = LLM(model, dtype="bfloat16", max_model_len=2048, max_num_seqs=256)

    def turn(self, n, seed):
        want = self.params(temperature=1.0, max_tokens=NEW, ignore_eos=True, logprobs=0)
        self.llm.reset_prefix_cache()
        t0 = time.monotonic()
        out = self.llm.generate(self.prompts[:n], want, use_tqdm=False)
        seconds = time.monotonic() - t0
        tokens = sum(len(o.outputs[0].token_ids) for o in out)
        return tokens, sum(len(o.prompt_token_ids) for o in out), seconds


class LlamaCpp(Here):
    name = "llamacpp"

    def __init__(self, apart, gguf):
        super().__init__(apart)
        import xllamacpp

        p = xllamacpp.CommonParams()
        p.model.path = gguf
        p.n_parallel = max(BATCHES)
        p.n_ctx = max(BATCHES) * 256
        p.cpuparams.n_threads = p.cpuparams_batch.n_threads = THREADS
        p.cont_batching = True
        p.verbosity = 1
        self.server = xllamacpp.Server(p)

    def one(self, i, seed):
        return self.server.handle_chat_completions(
            {
                "messages": [{"role": "user", "content": QUESTIONS[i]}],
                "max_tokens": NEW,
                "temperature": 1.0,
                "top_k": 0,
                "top_p": 1.0,
                "min_p": 0.0,
                "seed": seed,
                "ignore_eos": True,
                "logprobs": True,
                "top_logprobs": 0,
                "cache_prompt": False,
            }
        )

    def turn(self, n, seed):
        t0 = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(n) as pool:
            out = list(pool.map(lambda i: self.one(i, seed), range(n)))
        seconds = time.monotonic() - t0
        use = [(json.loads(o) if isinstance(o, (str, bytes)) else o)["usage"] for o in out]
        return (
            sum(u["completion_tokens"] for u in use),
            sum(u["prompt_tokens"] for u in use),
            seconds,
        )


class Server:
    """A server that speaks SGLang's /generate: SGLang itself, or miles."""

    def __init__(self, name, prompts, url, pid):
        self.name, self.prompts, self.url, self.pid = name, prompts, url, pid

    def pids(self):
        return family(self.pid)

    def post(self, path, body):
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=1800) as answer:
            return answer.read()

    def turn(self, n, seed):
        want = {"max_new_tokens": NEW, "temperature": 1.0, "ignore_eos": True}
        self.post("/flush_cache", {})
        t0 = time.monotonic()
        out = json.loads(
            self.post(
                "/generate",
                {"text": self.prompts[:n], "sampling_params": want, "return_logprob": True},
            )
        )
        seconds = time.monotonic() - t0
        meta = [o["meta_info"] for o in out]
        return (
            sum(m["completion_tokens"] for m in meta),
            sum(m["prompt_tokens"] for m in meta),
            seconds,
        )


# ---- turns -------------------------------------------------------------------------------------------


def measure(side, n, seed, others):
    """Tokens per second of a turn, while the others rest."""
    for other in others:
        wait_idle(other.pids(), other.name)
    resting = [pid for other in others for pid in other.pids() if pid not in side.pids()]
    before = used(resting)
    tokens, prompt, seconds = side.turn(n, seed)
    beside = used(resting) - before
    if tokens != n * NEW:
        sys.exit("%s made %d tokens of %d" % (side.name, tokens, n * NEW))
    say(
        "%-8s batch %3d: %7.1f tok/s, %d prompt tokens, %.1f s; the resting side used %.2f s"
        % (side.name, n, tokens / seconds, prompt, seconds, beside)
    )
    return tokens / seconds, prompt


def rounds(ours, theirs, bench, n):
    """(theirs, ours, limit) in tokens per second, of each round."""
    found, limit_sides = [], [theirs] if ours is bench else [theirs, ours]
    everyone = limit_sides + [bench]
    for i in range(ROUNDS + 1):
        speed = {}
        for side in (theirs, ours) if i % 2 else (ours, theirs):
            speed[side] = measure(side, n, i, [s for s in everyone if s is not side])
        if speed[ours][1] != speed[theirs][1]:
            sys.exit("prompts of %d tokens and of %d" % (speed[ours][1], speed[theirs][1]))
        if i == 0:
            if ours is not bench:
                bench.turn(n, 0)  # its limit is that of a turn
            continue
        for side in limit_sides:
            wait_idle(side.pids(), side.name)
        seconds = bench.limit(n)
        say("limit    batch %3d: %7.1f tok/s, %.1f s" % (n, n * NEW / seconds, seconds))
        found.append((speed[theirs][0], speed[ours][0], n * NEW / seconds))
    return found


def report(name, value):
    print(name + "_" + " ".join("b%d=%s" % (n, value(n)) for n in BATCHES), flush=True)


def main():
    kind, program, model = sys.argv[1:4]
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as prompts:
        prompts.write("".join(json.dumps(q) + "\n" for q in QUESTIONS))
        prompts.flush()
        bench = Bench(program, model, prompts.name)
    ours, t0 = bench, time.monotonic()
    if kind == "vllm":
        theirs = Vllm(bench.pids(), model)
    elif kind == "llamacpp":
        theirs = LlamaCpp(bench.pids(), sys.argv[4])
    elif kind == "sglang":
        text = rendered(model)
        theirs = Server("sglang", text, sys.argv[4], int(sys.argv[5]))
        ours = Server("miles", text, sys.argv[6], int(sys.argv[7]))
    else:
        sys.exit(__doc__)
    say("%s started in %.0f s" % (theirs.name, time.monotonic() - t0))
    found = {n: rounds(ours, theirs, bench, n) for n in BATCHES}
    bench.close()
    middle = statistics.median
    for at, name in enumerate((theirs.name, "miles", "limit")):
        report(name + "_tok_s", lambda n: "%.1f" % middle(r[at] for r in found[n]))
    report("limit_share", lambda n: "%.3f" % middle(r[1] / r[2] for r in found[n]))
    report("decode_speedup", lambda n: "%.2f" % middle(r[1] / r[0] for r in found[n]))


if __name__ == "__main__":
    main()
