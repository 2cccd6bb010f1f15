"""Many clients of all sorts against a running `miles serve`: load_client.py URL PID SECONDS CLIENTS SEED VOCAB

Each client asks one thing after the other: short requests over three APIs, streamed or not; prompts of 7,000
tokens; streams that are hung up on; bodies that are not JSON or make no sense; readers that take minutes for
what others take at once; requests that are aborted from another connection; and a request whose answer is
known, which must never change. Counts every answer that is not the intended one. When the time is over, what
runs is waited for, and those who still wait after that hang up; then no page of the key-value cache may be held.
"""
import asyncio
import collections
import contextlib
import json
import random
import sys
import time

import aclient

URL, PID, SECONDS, CLIENTS = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
SEED, VOCAB = int(sys.argv[5]), int(sys.argv[6])
CLIENT = aclient.Client(URL)
LONG = 7000
LEFT_S = 120  # to finish what runs when the time is over; then the clients that are left hang up

KINDS = {"short": 50, "long": 3, "hangup": 12, "malformed": 12, "slow": 5, "abort": 10, "known": 8}

BROKEN = [b"", b"{", b"[1,2", b'{"text": "a"', b"\xff\xfe\x00", b'{"text": "a"} x', b'"text"', b"null", b"[]",
          # objects, and no requests
          b'{"text": 5}', b'{"input_ids": ["a"]}', b'{"input_ids": []}', b'{"input_ids": [-1]}', b'{"input_ids": [[1], 2]}',
          b'{"text": "a", "sampling_params": {"temperature": "hot"}}', b'{"text": "a", "sampling_params": 7}',
          b'{"text": "a", "sampling_params": {"max_new_tokens": -4}}', b'{"text": "a", "sampling_params": {"top_p": 2}}',
          b'{"text": "a", "sampling_params": {"n": 0}}', b'{"text": "a", "sampling_params": {"top_k": -7}}', b"[" * 100000,
          b'{"text": "' + b"a" * 200000 + b'"}', b'{"text": "\xc3"}', b'{"text": "\\ud800"}']

NO_OBJECT = 9  # so many of these are no objects


class Errors:
    count = 0
    shown = collections.Counter()

    @classmethod
    def add(cls, kind, what):
        cls.count += 1
        cls.shown[kind] += 1
        if cls.shown[kind] <= 5:
            print(f"load_client.py: {kind}: {what}", file=sys.stderr)


class Stats:
    first, between = [], []
    done = collections.Counter()
    tokens = 0
    running = 0
    peak_running = 0


def ids(rng, n):
    return [rng.randrange(3, VOCAB) for _ in range(n)]


async def stream(kind, path, body, timed=True, **how):
    """Reads a stream to its end. The last event but [DONE], or None after an error."""
    start = time.monotonic()
    last, at, done = None, None, False
    async with contextlib.aclosing(CLIENT.events(path, body, **how)) as events:
        async for text in events:
            now = time.monotonic()
            if timed:
                (Stats.between if at else Stats.first).append(now - (at or start))
            at = now
            if text == "[DONE]":
                done = True
            else:
                last = text
    if not done or last is None or last.startswith('{"error"'):
        Errors.add(kind, f"a stream ends with {last and last[:200]}")
        return None
    return json.loads(last)


async def short(rng, shared):
    new = rng.randrange(4, 64)
    api = rng.choice(["generate", "generate", "completions", "chat"])
    streamed = rng.random() < .6
    prompt = (rng.choice(shared) if rng.random() < .5 else []) + ids(rng, rng.randrange(1, 120))
    if api == "generate":
        params = {"max_new_tokens": new, "ignore_eos": True, "n": rng.choice([1, 1, 1, 2])}
        path, body = "/generate", {"input_ids": prompt, "sampling_params": params,
                                   "return_logprob": rng.random() < .3, "stream": streamed}
    elif api == "completions":
        path, body = "/v1/completions", {"prompt": prompt, "max_tokens": new, "stream": streamed}
    else:
        words = " ".join(rng.choice(["sun", "rain", "why", "how", "seven", "river"]) for _ in range(rng.randrange(1, 80)))
        path, body = "/v1/chat/completions", {"messages": [{"role": "user", "content": words}], "max_tokens": new,
                                              "stream": streamed}
    if streamed:
        await stream("short", path, body, timed=body.get("sampling_params", {}).get("n", 1) == 1)
        return
    answer = await CLIENT.post(path, body)
    if answer.status != 200:
        Errors.add("short", f"{path}: {answer.status} {answer.body[:200]}")
        return
    if api == "generate":
        o = answer.json()
        for one in o if isinstance(o, list) else [o]:
            if len(one["output_ids"]) != new:
                Errors.add("short", f"{len(one['output_ids'])} tokens, {new} were asked for")
            Stats.tokens += len(one["output_ids"])


async def long(rng, shared):
    head = shared[0] * 40 if rng.random() < .3 else []
    prompt = (head + ids(rng, LONG))[:LONG]
    body = {"input_ids": prompt, "stream": True, "sampling_params": {"max_new_tokens": 16, "ignore_eos": True}}
    o = await stream("long", "/generate", body)
    if o and (o["meta_info"]["prompt_tokens"] != LONG or len(o["output_ids"]) != 16):
        Errors.add("long", f"{o['meta_info']}")


async def hangup(rng, shared):
    body = {"input_ids": rng.choice(shared) + ids(rng, rng.randrange(1, 500)), "stream": rng.random() < .8,
            "sampling_params": {"max_new_tokens": 200, "ignore_eos": True, "n": rng.choice([1, 2])}}
    left = rng.randrange(0, 20)
    if not body["stream"] or left == 0:  # before anything has come
        _, writer = await CLIENT.open("POST", "/generate", body)
        await asyncio.sleep(rng.random() * .5)
        writer.close()
        return
    async with contextlib.aclosing(CLIENT.events("/generate", body)) as events:
        async for _ in events:
            left -= 1
            if left <= 0:
                break


async def malformed(rng, shared):
    path = rng.choice(["/generate", "/v1/completions", "/v1/chat/completions", "/abort_request",
                       "/update_weights_from_disk"])
    body = rng.choice(BROKEN if path.startswith(("/generate", "/v1/")) else BROKEN[1:NO_OBJECT])
    if rng.random() < .1:  # part of a request, and gone
        _, writer = await CLIENT.open("POST", path, b"")
        writer.write(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{\"te")
        await asyncio.sleep(rng.random())
        writer.close()
        return
    answer = await CLIENT.post(path, body)
    if answer.status != 400 or not answer.body:
        Errors.add("malformed", f"{path} {body[:60]}: {answer.status} {answer.body[:200]}")


async def slow(rng, shared):
    body = {"input_ids": ids(rng, 20), "stream": True, "return_logprob": True, "top_logprobs_num": 20,
            "sampling_params": {"max_new_tokens": 64, "ignore_eos": True, "n": 3}}
    await stream("slow", "/generate", body, timed=False, rcvbuf=4096, pause=.02 + .1 * rng.random())


async def abort(rng, shared):
    rid = f"load-{rng.randrange(1 << 60):x}"
    body = {"input_ids": rng.choice(shared) + ids(rng, 30), "rid": rid, "stream": rng.random() < .5,
            "sampling_params": {"max_new_tokens": 400, "ignore_eos": True}}

    async def stop():
        await asyncio.sleep(rng.random() * 2)
        answer = await CLIENT.post("/abort_request", {"rid": rid})
        if answer.status != 200:
            Errors.add("abort", f"{answer.status} {answer.body[:200]}")

    stopping = asyncio.create_task(stop())
    if body["stream"]:
        o = await stream("abort", "/generate", body, timed=False)
    else:
        answer = await CLIENT.post("/generate", body)
        o = answer.json() if answer.status == 200 else None
        if o is None:
            Errors.add("abort", f"{answer.status} {answer.body[:200]}")
    await stopping
    if o and o["meta_info"]["finish_reason"]["type"] not in ("abort", "length"):
        Errors.add("abort", f"{o['meta_info']['finish_reason']}")


KNOWN = {"text": "The history of the river is", "return_logprob": True,
         "sampling_params": {"temperature": 1.0, "max_new_tokens": 12, "sampling_seed": 77, "ignore_eos": True}}
ANSWER = []


async def known(rng, shared):
    answer = await CLIENT.post("/generate", KNOWN)
    o = answer.json() if answer.status == 200 else {}
    found = (o.get("output_ids"), o.get("meta_info", {}).get("output_token_logprobs"))
    if not ANSWER:
        ANSWER.append(found)
    if found != ANSWER[0]:
        Errors.add("known", f"another answer: {answer.status} {answer.body[:300]}")


async def client(rng, shared, end):
    names, weights = list(KINDS), list(KINDS.values())
    while time.monotonic() < end:
        kind = rng.choices(names, weights)[0]
        try:
            await globals()[kind](rng, shared)
        except (OSError, aclient.Refused, asyncio.LimitOverrunError, ValueError) as error:
            Errors.add(kind, f"{type(error).__name__} {error}")
        Stats.done[kind] += 1


def resident_mb():
    with open(f"/proc/{PID}/status") as lines:
        for line in lines:
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
    return 0.0


async def sample_memory(out, start):
    while True:
        out.append((time.monotonic() - start, resident_mb()))
        with contextlib.suppress(OSError, KeyError):
            m = await CLIENT.metrics()
            Stats.peak_running = max(Stats.peak_running, int(m["num_running_reqs"]))
        await asyncio.sleep(1)


async def warm(shared):
    """Every page of the cache is touched once, and every sort of answer made, before memory is looked at."""
    room = (await CLIENT.get("/get_server_info")).json()["max_total_num_tokens"]
    rng = random.Random(0)
    prompts = [ids(rng, LONG) for _ in range(room // LONG + 1)]
    for prompt in prompts:
        body = {"input_ids": prompt, "sampling_params": {"max_new_tokens": 1}}
        if (await CLIENT.post("/generate", body)).status != 200:
            sys.exit("load_client.py: the server does not answer")
    await known(rng, shared)


def growth(samples):
    """Largest resident size in the last fifth of the time, less that in the second fifth."""
    if not samples:
        return 0.0
    end = samples[-1][0]
    early = [mb for t, mb in samples if .2 * end <= t < .4 * end]
    late = [mb for t, mb in samples if t >= .8 * end]
    return max(late) - max(early) if early and late else 0.0


def percentile(values, p):
    values = sorted(values)
    return 1e3 * values[min(len(values) - 1, int(p * len(values)))] if values else float("nan")


async def leaked():
    """Pages that somebody holds although nobody is there."""
    await CLIENT.post("/flush_cache", None)
    for _ in range(1200):
        m = await CLIENT.metrics()
        if m["num_running_reqs"] == m["num_queue_reqs"] == 0 and m["kv_pages_free"] == m["kv_pages"]:
            break
        await asyncio.sleep(.05)
    print(f"finished {m['num_requests_total']:.0f} samples, {m['num_aborted_requests_total']:.0f} of them aborted, "
          f"{m['num_retracted_requests_total']:.0f} preemptions, {m['cached_tokens_total']:.0f} cached tokens, "
          f"{m['evicted_pages_total']:.0f} pages evicted, {m['generation_tokens_total']:.0f} new tokens",
          file=sys.stderr)
    if m["num_running_reqs"] or m["num_queue_reqs"]:
        Errors.add("end", f"{m['num_running_reqs']} samples run and {m['num_queue_reqs']} wait for nobody")
    return int(m["kv_pages"] - m["kv_pages_free"])


async def main():
    aclient.raise_files()
    rng = random.Random(SEED)
    shared = [ids(rng, n) for n in (64, 90, 200, 300)]
    await warm(shared)
    start = time.monotonic()
    samples = []
    memory = asyncio.create_task(sample_memory(samples, start))
    tasks = [asyncio.create_task(client(random.Random(rng.random()), shared, start + SECONDS)) for _ in range(CLIENTS)]
    done, late = await asyncio.wait(tasks, timeout=SECONDS + LEFT_S)
    memory.cancel()
    for task in done:
        task.result()
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    pages = await leaked()
    mb = growth(samples)
    print(f"by kind: {dict(Stats.done)}; errors {dict(Errors.shown)}; memory MB "
          f"{[round(m) for _, m in samples[::max(1, len(samples) // 12)]]}; {Stats.peak_running} ran at once at most; "
          f"{len(late)} hung up at the end; "
          f"{time.monotonic() - start:.0f} s", file=sys.stderr)
    print(f"load_requests={sum(Stats.done.values())} load_errors={Errors.count} "
          f"ttft_p50_ms={percentile(Stats.first, .5):.1f} ttft_p99_ms={percentile(Stats.first, .99):.1f} "
          f"itl_p50_ms={percentile(Stats.between, .5):.1f} itl_p99_ms={percentile(Stats.between, .99):.1f} "
          f"rss_growth_mb={mb:.1f} kv_leaked={pages}")


asyncio.run(main())
