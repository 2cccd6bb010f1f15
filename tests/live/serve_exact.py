"""Exactness through `miles serve`: serve_exact.py MILES MODEL WORK REQUESTS SEED

Random requests are asked twice. First alone: one at a time, on an empty cache. Then under load: on servers
with other chunk sizes, limits, threads and small caches, beside 64 other streams, streamed or not, alone or
in one request with others, for more samples than before, while servers are killed in the middle (what was
lost is asked again) and the weights are read again under way. Tokens, texts, ends and the bits of all
log-probs must be the same. What was computed under load goes to WORK/rollout/ as files that `miles train`
reads, to be compared with the trainer's log-probs. The last line says what was done.
"""
import asyncio
import contextlib
import json
import random
import struct
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import aclient  # noqa: E402

MILES, MODEL, WORK = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
REQUESTS, SEED = int(sys.argv[4]), int(sys.argv[5])
STREAMS, WORKERS = 64, 24
CONFIG = json.loads((MODEL / "config.json").read_text())
VOCAB = CONFIG["vocab_size"]
CONTEXT = min(CONFIG["max_position_embeddings"], 2048)
SMALL = CONFIG["hidden_size"] < 256  # a tiny model: more tokens for the same time
LONGEST = 600 if SMALL else 200  # of the streams beside: samples that outgrow a small cache
TEMPERATURES = (1.0, 0.7)

# What the servers under load differ in. The last number is their cache's room in tokens.
SERVERS = [(512, 256, 2, None), (64, 96, 2, 2560), (7, 40, 1, 2048), (1000, 256, 2, 3072), (33, 128, 2, 4096),
           (256, 12, 1, None)]


def fail(text):
    sys.exit(f"serve_exact.py: {text}")


class Digits(float):
    """A number that remembers how it was written."""

    def __new__(cls, text):
        self = super().__new__(cls, text)
        self.text = text
        return self


def load(text):
    return json.loads(text, parse_float=Digits)


def f32_text(b):
    return "%.9g" % struct.unpack("<f", struct.pack("<I", b))[0]


def bits(x):
    """The bits of a log-prob, which must be written with digits enough to name one f32."""
    if x is None:
        return None
    if not isinstance(x, Digits):
        x = Digits(repr(x))
    b = struct.unpack("<I", struct.pack("<f", x))[0]
    if f32_text(b) != x.text:
        fail(f"{x.text} does not name a 32-bit float")
    return b


# ---- what is asked ----


def random_ids(rng, n):
    return [rng.randrange(3, VOCAB) for _ in range(n)]


def random_params(rng):
    p = {"temperature": rng.choice([1.0, 1.0, 1.0, 0.7, 0.7, 0.0]),
         "max_new_tokens": rng.choice([1, 2, 8, 17, 40, 64, 150 if SMALL else 64]),
         "sampling_seed": rng.randrange(1 << 62), "n": rng.choice([1, 1, 1, 1, 2, 4])}
    for chance, name, value in (
            (.25, "top_p", .9), (.2, "top_k", 20), (.15, "min_p", .05), (.1, "frequency_penalty", .5),
            (.1, "presence_penalty", -.3), (.1, "repetition_penalty", 1.1), (.6, "ignore_eos", True),
            (.1, "min_new_tokens", 1), (.15, "stop", ["e", "qz"]), (.1, "stop_token_ids", [7, 9]),
            (.1, "logit_bias", {"5": 3.0, "11": -2.5}), (.1, "no_stop_trim", True)):
        if rng.random() < chance:
            p[name] = value
    return p


class Ask:
    """Prompts with one set of parameters; each prompt is a request of its own when asked alone."""

    def __init__(self, rng, prefixes):
        self.api = rng.choice(["generate"] * 8 + ["completions", "chat"])
        self.params = random_params(rng)
        self.extra = {"return_logprob": True}
        count = rng.choice([1, 1, 1, 2, 4]) if self.api != "chat" else 1
        self.prompts = [self.prompt(rng, prefixes) for _ in range(count)]
        if rng.random() < .2:
            self.extra["logprob_start_len"] = rng.choice([0, min(map(len, self.prompts)) // 2])
        if rng.random() < .2:
            self.extra["top_logprobs_num"] = 3
        if self.api != "generate":
            for name in ("logit_bias", "no_stop_trim", "min_new_tokens", "stop_token_ids"):
                self.params.pop(name, None)
            seed, new = self.params.pop("sampling_seed"), self.params.pop("max_new_tokens")
            self.params |= {"seed": seed, "max_tokens": new}
        if self.api == "chat":
            words = "".join(rng.choice("abc def ghi, jkl. mno? ") for _ in range(rng.randrange(4, 200)))
            self.prompts = [words]

    @staticmethod
    def prompt(rng, prefixes):
        kind = rng.random()
        if kind < .5:
            return rng.choice(prefixes) + random_ids(rng, rng.randrange(1, 30))
        if kind < .65:
            return list(rng.choice(prefixes))
        return random_ids(rng, rng.choice([1, 2, 63, 64, 65, rng.randrange(3, 130), 400 if SMALL else 90]))

    def body(self, prompts, stream, n):
        if self.api == "generate":
            ids = prompts if len(prompts) > 1 else prompts[0]
            return "/generate", {"input_ids": ids, "sampling_params": {**self.params, "n": n},
                                 "stream": stream, **self.extra}
        if self.api == "completions":
            return "/v1/completions", {"prompt": prompts if len(prompts) > 1 else prompts[0], **self.params,
                                       "n": n, "logprobs": 2, "stream": stream}
        return "/v1/chat/completions", {"messages": [{"role": "user", "content": prompts[0]}], **self.params,
                                        "n": n, "logprobs": True, "top_logprobs": 2, "stream": stream}

    @property
    def n(self):
        return self.params["n"]


# ---- what comes back, as comparable values ----


def triples(rows):
    return [(bits(t[0]), t[1]) for t in rows or []]


def native(o):
    m = o["meta_info"]
    if [t[1] for t in m["output_token_logprobs"]] != o["output_ids"]:
        fail("log-probs of other tokens than those of the answer")
    return {"ids": o["output_ids"], "text": o["text"], "finish": m["finish_reason"],
            "logps": [bits(t[0]) for t in m["output_token_logprobs"]],
            "input": triples(m.get("input_token_logprobs")),
            "top": [triples(t) for t in m.get("output_top_logprobs") or []],
            "input_top": [triples(t) for t in m.get("input_top_logprobs") or []]}


def chat_tokens(logprobs):
    return [(t["token"], bits(t["logprob"]), tuple(t["bytes"]),
             tuple((x["token"], bits(x["logprob"])) for x in t["top_logprobs"]))
            for t in (logprobs or {}).get("content") or []]


def text_tokens(logprobs):
    if not logprobs:
        return []
    tops = [sorted((k, bits(v)) for k, v in (t or {}).items()) for t in logprobs["top_logprobs"]]
    return list(zip(logprobs["tokens"], [bits(x) for x in logprobs["token_logprobs"]], tops))


def choice(api, c):
    if api == "chat":
        text, tokens = (c.get("message") or c.get("delta") or {}).get("content"), chat_tokens(c["logprobs"])
    else:
        text, tokens = c["text"], text_tokens(c["logprobs"])
    return c["index"], text or "", tokens, c["finish_reason"]


class Seen:
    cached = repeats = preempted = restarts = tokens = partial = asked = 0


async def ask_native(client, body, count):
    """The answers in order; of streams the last event of each."""
    if not body["stream"]:
        answer = await client.post("/generate", body)
        if answer.status != 200:
            fail(f"/generate: {answer.status} {answer.body[:400]}")
        o = load(answer.body)
        return o if isinstance(o, list) else [o]
    last, done = {}, False
    try:
        async with contextlib.aclosing(client.events("/generate", body)) as events:
            async for text in events:
                if text == "[DONE]":
                    done = True
                elif text.startswith('{"error"'):
                    fail(f"/generate: {text}")
                else:
                    last[int(text[text.rindex('"index":') + 8:-1]) if count > 1 else 0] = text
    except ConnectionError as error:
        error.partial = {i: load(t) for i, t in last.items()}
        raise
    if not done or len(last) != count:
        raise aclient.Gone("the stream is cut")
    return [load(last[i]) for i in range(count)]


async def ask_openai(client, path, api, body, count):
    out = {}
    if not body["stream"]:
        answer = await client.post(path, body)
        if answer.status != 200:
            fail(f"{path}: {answer.status} {answer.body[:400]}")
        for c in load(answer.body)["choices"]:
            i, text, tokens, finish = choice(api, c)
            out[i] = {"text": text, "tokens": tokens, "finish": finish}
    else:
        done = False
        async with contextlib.aclosing(client.events(path, body)) as events:
            async for event in events:
                if event == "[DONE]":
                    done = True
                    continue
                o = load(event)
                if "error" in o:
                    fail(f"{path}: {event}")
                for c in o["choices"]:
                    i, text, tokens, finish = choice(api, c)
                    x = out.setdefault(i, {"text": "", "tokens": [], "finish": None})
                    x["text"] += text
                    x["tokens"] += tokens
                    x["finish"] = finish or x["finish"]
        if not done:
            raise aclient.Gone("the stream is cut")
    if len(out) != count:
        fail(f"{path}: {len(out)} choices, {count} were asked for")
    return [out[i] for i in range(count)]


async def ask(client, a, which, stream, more):
    """Asks for prompts `which` in one request. A list for each prompt of its n samples."""
    n = a.n + more
    path, body = a.body([a.prompts[i] for i in which], stream, n)
    count = len(which) * n
    if a.api == "generate":
        found = await ask_native(client, body, count)
        Seen.cached += sum(o["meta_info"]["cached_tokens"] for o in found)
        Seen.tokens += sum(len(o["output_ids"]) for o in found)
        found = [native(o) for o in found]
    else:
        found = await ask_openai(client, path, a.api, body, count)
        Seen.tokens += sum(len(o["tokens"]) for o in found)
    return [found[i * n:i * n + a.n] for i in range(len(which))]


# ---- servers ----


def start(chunk, running, threads, room, seed):
    argv = [MILES, "serve", "--hf-checkpoint", str(MODEL), "--port", "0", "--threads", str(threads),
            "--sglang-chunked-prefill-size", str(chunk), "--sglang-max-running-requests", str(running),
            "--sglang-random-seed", str(seed), "--sglang-context-length", str(CONTEXT)]
    if room:
        argv += ["--sglang-max-total-tokens", str(room)]
    return aclient.Server(argv, WORK / "serve.log")


async def alone(asks):
    server = start(512, 256, 1, None, 1)
    client = aclient.Client(server.url)
    want = []
    for a in asks:
        rows = []
        for i in range(len(a.prompts)):
            await client.post("/flush_cache", None)
            rows += await ask(client, a, [i], False, 0)
        want.append(rows)
    cached = (await client.metrics())["cached_tokens_total"]
    if cached:
        fail(f"{cached} tokens came from a cache that was emptied before each request")
    if server.stop() != 0:
        fail("the server did not end well")
    return want


async def noise(client, rng, prefixes):
    """One of the streams beside the requests; some hang up before their end."""
    while True:
        params = {"max_new_tokens": rng.choice([3, 30, LONGEST]), "temperature": rng.choice([.5, 1.0]),
                  "ignore_eos": True, "n": rng.choice([1, 1, 2])}
        ids = rng.choice(prefixes)[:rng.randrange(1, 700)] + random_ids(rng, rng.randrange(1, 60))
        body = {"input_ids": ids, "sampling_params": params, "stream": rng.random() < .5}
        leave = rng.random() < .2
        try:
            if body["stream"]:
                async with contextlib.aclosing(client.events("/generate", body)) as events:
                    async for _ in events:
                        if leave:
                            break
            else:
                answer = await client.post("/generate", body)
                if answer.status != 200:
                    fail(f"a stream beside: {answer.status} {answer.body[:300]}")
        except (ConnectionError, asyncio.LimitOverrunError):
            await asyncio.sleep(.05)  # the server was killed


class Loaded:
    """One server's life under load."""

    def __init__(self, asks, want, rng, got):
        self.asks, self.want, self.rng, self.got = asks, want, rng, got
        self.differences = []

    def compare(self, at, i, found):
        if found != self.want[at][i]:
            a = self.asks[at]
            self.differences.append((at, i))
            for k, (x, y) in enumerate(zip(self.want[at][i], found)):
                keys = [key for key in x if x[key] != y[key]]
                print(f"ask {at} ({a.api}) prompt {i} sample {k}: other {keys}; parameters {a.params} {a.extra}",
                      file=sys.stderr)

    def compare_partial(self, at, which, n, partial):
        """What a killed server had told of a stream is the beginning of the whole."""
        for index, o in partial.items():
            i, k = which[index // n], index % n
            if k >= self.asks[at].n:
                continue
            w, x = self.want[at][i][k], native(o)
            m = len(x["ids"])
            Seen.partial += 1
            if w["ids"][:m] != x["ids"] or w["logps"][:m] != x["logps"]:
                self.differences.append((at, i))
                print(f"ask {at} prompt {i}: the beginning before the kill differs", file=sys.stderr)

    async def one(self, client, at, which):
        more, stream = self.rng.choice([0, 0, 0, 1]), self.rng.random() < .5
        try:
            found = await ask(client, self.asks[at], which, stream, more)
        except ConnectionError as error:
            Seen.repeats += 1
            self.compare_partial(at, which, self.asks[at].n + more, getattr(error, "partial", {}))
            return False
        for i, rows in zip(which, found):
            self.compare(at, i, rows)
            self.got[at, i] = rows
            Seen.asked += 1
        return True

    async def work(self, client, queue, dead, done_at):
        while queue and not dead.is_set():
            at, which = queue.pop()
            if not await self.one(client, at, which):
                queue.append((at, which))
                return
            if len(self.got) >= done_at:
                dead.set()

    async def run(self, queue, config, done_at, kill, reload):
        """Serves until `done_at` requests are done, then kills the server or lets it finish."""
        server = start(*config, self.rng.randrange(1 << 30))
        client = aclient.Client(server.url)
        prefixes = self.prefixes
        others = [asyncio.create_task(noise(client, random.Random(self.rng.random()), prefixes))
                  for _ in range(STREAMS)]
        await asyncio.sleep(.3)
        dead = asyncio.Event()
        workers = [asyncio.create_task(self.work(client, queue, dead, done_at)) for _ in range(WORKERS)]
        watch = asyncio.create_task(dead.wait())
        if reload:
            await asyncio.sleep(.5)
            answer = await client.post("/update_weights_from_disk", {"model_path": str(MODEL)})
            if answer.status != 200:
                fail(f"update of the weights: {answer.body}")
        await asyncio.wait([watch, asyncio.gather(*workers)], return_when=asyncio.FIRST_COMPLETED)
        Seen.preempted += int((await client.metrics())["num_retracted_requests_total"])
        if kill:
            server.kill()
            Seen.restarts += 1
        await asyncio.gather(*workers)
        watch.cancel()
        for task in others:
            task.cancel()
        for result in await asyncio.gather(*others, return_exceptions=True):
            if isinstance(result, (SystemExit, Exception)):
                raise result
        if not kill and server.stop() != 0:
            fail("the server did not end well")


async def loaded(asks, want, prefixes, rng):
    got = {}
    x = Loaded(asks, want, rng, got)
    x.prefixes = prefixes
    queue = []
    for at, a in enumerate(asks):
        every = list(range(len(a.prompts)))
        if rng.random() < .5:
            queue.append((at, every))
        else:
            queue += [(at, [i]) for i in every]
    rng.shuffle(queue)
    total = sum(len(a.prompts) for a in asks)
    for i, config in enumerate(SERVERS):
        last = i + 1 == len(SERVERS)
        before = len(got)
        await x.run(queue, config, total if last else total * (i + 1) // len(SERVERS), not last, i == 1)
        print(f"server {config}: {len(got) - before} requests, {Seen.preempted} preemptions so far",
              file=sys.stderr)
    while queue:
        await x.run(queue, SERVERS[0], total, False, False)
    if len(got) != total:
        fail(f"{len(got)} of {total} requests were answered")
    return got, x.differences


# ---- for the trainer ----


def write_rollouts(asks, got):
    """A file for each temperature: the samples, and prompts whose log-probs were asked for."""
    lines = {t: [] for t in TEMPERATURES}

    def add(t, tokens, logps):
        index = len(lines[t])
        sample = {"index": index, "group_index": index, "rollout_id": index, "prompt": "", "tokens": tokens,
                  "response": "", "response_length": len(logps), "label": None, "metadata": {},
                  "reward": float(index % 2), "reward_value": float(index % 2), "loss_mask": None,
                  "rollout_log_probs": 0, "weight_versions": ["0"], "status": "completed",
                  "remove_sample": False}
        text = json.dumps(sample).replace('"rollout_log_probs": 0',
                                          '"rollout_log_probs": [' + ",".join(map(f32_text, logps)) + "]")
        lines[t].append(text)

    for (at, i), rows in sorted(got.items()):
        a = asks[at]
        if a.api != "generate":
            continue
        for row in rows:
            add(a.params["temperature"] or 1.0, a.prompts[i] + row["ids"], row["logps"])
        scored = [b for b, _ in rows[0]["input"] if b is not None]
        if scored:
            add(1.0, a.prompts[i], scored)
    for t, samples in lines.items():
        folder = WORK / "rollout" / str(t)
        folder.mkdir(parents=True)
        head = {"format": "miles-rollout", "version": 1, "rollout_id": 0, "samples": len(samples)}
        (folder / "0.jsonl").write_text("\n".join([json.dumps(head), *samples]) + "\n")
        (folder / "count").write_text(str(len(samples)))


async def main():
    rng = random.Random(SEED)
    prefixes = [random_ids(rng, n) for n in (3, 40, 64, 130, 257, 700)]
    if not SMALL:
        prefixes = [p[:260] for p in prefixes]
    asks, count = [], 0
    while count < REQUESTS:
        a = Ask(rng, prefixes)
        a.prompts = a.prompts[:REQUESTS - count]
        asks.append(a)
        count += len(a.prompts)
    t0 = time.monotonic()
    want = await alone(asks)
    t1 = time.monotonic()
    got, differences = await loaded(asks, want, prefixes, rng)
    t2 = time.monotonic()
    write_rollouts(asks, got)
    print(f"alone {t1 - t0:.1f} s, under load {t2 - t1:.1f} s; {Seen.tokens} tokens compared; {Seen.repeats} requests "
          f"lost and repeated, {Seen.partial} beginnings of lost streams compared", file=sys.stderr)
    if not Seen.preempted or not Seen.cached or not Seen.repeats:
        fail(f"nothing was tried: preempted {Seen.preempted}, cached {Seen.cached}, repeated {Seen.repeats}")
    print(f"exact_requests={len(got)} exact_differences={len(differences)} preemptions={Seen.preempted} "
          f"cached_tokens={Seen.cached} restarts={Seen.restarts}")


asyncio.run(main())
