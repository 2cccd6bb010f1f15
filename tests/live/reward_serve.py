"""Clients of `miles reward serve`: reward_serve.py PART URL ARGS...

Each part prints one number, how many checks it made, or ends with an error.
"""
import asyncio
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from urllib.parse import urlparse

checks = 0


def check(ok, what):
    global checks
    checks += 1
    if not ok:
        sys.exit("reward_serve.py: " + what)


def post(url, data, timeout=60):
    """(status, parsed body) of a POST of bytes, or of an object as JSON."""
    if not isinstance(data, bytes):
        data = json.dumps(data).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as r:
            return r.status, json.loads(r.read())
    except urllib.error.HTTPError as e:
        body = e.read()
        try:
            return e.code, json.loads(body)
        except ValueError:
            return e.code, body


def figures(url):
    text = urllib.request.urlopen(url + "/metrics", timeout=20).read().decode()
    return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))


# ---- the way Miles calls a remote reward model ----

async def remote_rm(session, url, sample):
    payload = {"prompt": sample["prompt"], "response": sample["response"], "label": sample["label"]}
    async with session.post(url, json=payload) as resp:
        resp.raise_for_status()
        return await resp.json()


async def miles_clients(url, n):
    import aiohttp

    rng = random.Random(1)
    samples = []
    for i in range(n):
        right = rng.random() < 0.5
        samples.append({"prompt": [{"role": "user", "content": "number %d, please \u00e9" % i}],
                        "response": "so it is \\boxed{%d}" % (i if right else i + 1),
                        "label": str(i), "want": float(right)})
    async with aiohttp.ClientSession() as session:
        got = await asyncio.gather(*(remote_rm(session, url, s) for s in samples))
    for s, g in zip(samples, got):
        check(isinstance(g, float) and g == s["want"], "%s gives %r" % (s, g))


def clients(url):
    for path in ("", "/", "/reward"):
        asyncio.run(miles_clients(url + path, 300))
    status, body = post(url + "/batch", [{"response": "\\boxed{%d}" % (i % 5), "label": 3}
                                         for i in range(1000)])
    check(status == 200 and len(body["results"]) == 1000, "batch: %s" % status)
    for i, r in enumerate(body["results"]):
        check(r["reward"] == (i % 5 == 3) and not r["failed"] and r["reason"], "batch: %s" % r)
    status, body = post(url, {"response": "a cat", "label": "cat", "metadata": {"rm_type": "f1"}})
    check((status, body) == (200, 1.0), "f1: %s %s" % (status, body))


def types(url):
    """Every type that needs nothing from outside, each asked for by its samples, all at once."""
    program = "```python\nprint(int(input()) + %d)\n```"
    tests = {"inputs": ["1\n", "41\n"], "outputs": ["2\n", "42\n"]}
    cases = [
        ("math", "\\boxed{\\frac{1}{2}}", "0.5", 1.0),
        ("math", "\\boxed{x*(x-1)!}", "x!", 1.0),  # by sympy
        ("math_equal", "so \\boxed{\\{2, 1\\}}", "\\{1, 2\\}", 1.0),
        ("deepscaler", "<think>?</think>\\boxed{4}", 4, 1.0),
        ("gemma_math", "x<channel|>\\boxed{4}", 4, 1.0),
        ("dapo", "Answer: 5", 4, {"score": -1.0, "acc": False, "pred": "5"}),
        ("f1", "the cat sat", "a cat", 2 / 3),
        ("boxed_f1", "the \\boxed{cat}", "a cat", 1.0),
        ("gpqa", "The answer is (C).", "C", 1.0),
        ("deterministic_random", "hello", None, None),
        ("random", "hello", None, None),
        ("code", program % 1, tests, 1.0),
        ("code", program % 2, tests, 0.0),
    ]
    samples = [{"prompt": "p", "response": r, "label": l, "metadata": {"rm_type": t}}
               for t, r, l, _ in cases * 20]
    status, body = post(url + "/batch", samples, timeout=300)
    check(status == 200, "types: %s" % status)
    for (kind, _, _, want), got in zip(cases * 20, body["results"]):
        check(not got["failed"] and got["reason"], "%s: %s" % (kind, got))
        check(got["reward"] == want or (want is None and got["reward"] in (0.0, 1.0)),
              "%s: %s" % (kind, got))


# ---- hostile bodies ----

def raw(url, data, wait=5):
    """What comes back for these bytes on a connection of their own."""
    at = urlparse(url)
    with socket.create_connection((at.hostname, at.port), timeout=wait) as s:
        try:
            s.sendall(data)
            s.shutdown(socket.SHUT_WR)
            out = b""
            while True:
                piece = s.recv(65536)
                if not piece:
                    return out
                out += piece
        except OSError:
            return b""


def hostile(url):
    rng = random.Random(2)
    good = json.dumps({"prompt": "p", "response": "\\boxed{4}", "label": "4"}).encode()

    def alive():
        status, body = post(url, good)
        check((status, body) == (200, 1.0), "after a hostile body: %s %s" % (status, body))

    bodies = [
        b"", b"null", b"[]", b"{}", b"1", b'"x"', b"{", b"\x00" * 1000, b"\xff\xfe{}", b"[" * 100000,
        b'{"a":' * 100000, b'{"response": "x", "label": ' + b"9" * 100000 + b"}",
        b'{"response": ' + b'"' + b"\\u0000" * 100 + b'"}', b'{"response": "\\ud800"}',
        b'{"response": null}', b'{"response": {"a": 1}}', b'{"response": "x", "metadata": 7}',
        b'{"response": "x", "metadata": {"rm_type": 7}}',
        b'{"response": "x", "metadata": {"rm_type": "' + b"a" * 100000 + b'"}}',
        b'{"response": "x", "reward_spec": {"custom_rm_path": "os.abort"}}',
        b'{"response": "x", "reward_spec": "x", "metadata": []}',
        json.dumps({"response": "\\boxed{" * 20000, "label": "4"}).encode(),
        json.dumps({"response": "\\boxed{" + "(" * 50000 + "}", "label": "4"}).encode(),
        json.dumps({"response": "\\boxed{" + "9^" * 5000 + "9}", "label": "10^10^10"}).encode(),
        json.dumps({"response": "x" * 2000000, "label": "4"}).encode(),
        json.dumps({"response": "\\boxed{4}", "label": "\\frac{" * 5000}).encode(),
    ]
    for body in bodies:
        t = time.time()
        status, answer = post(url, body)
        check(status in (200, 400, 422), "%r: %s" % (body[:60], status))
        check(status == 200 or isinstance(answer, dict), "%r: no reason" % body[:60])
        check(status != 200 or answer in (0.0, 1.0), "%r: %s" % (body[:60], answer))
        check(time.time() - t < 20, "%r took %.1f s" % (body[:60], time.time() - t))
    alive()
    for _ in range(300):  # a good body with a few bytes changed
        body = bytearray(good)
        for _ in range(rng.randrange(1, 6)):
            body[rng.randrange(len(body))] = rng.randrange(256)
        status, answer = post(url, bytes(body))
        check(status in (200, 400, 422), "%r: %s" % (bytes(body), status))
    alive()
    status, _ = post(url, b" " * (17 << 20))
    check(status == 413, "17 MiB: %s" % status)
    status, _ = post(url, b'{"response": "x", "metadata": [' + b"0," * 8000000 + b"0]}")
    check(status == 200, "a list of 8,000,000: %s" % status)
    status, _ = post(url + "/batch", json.dumps([{"response": "x"}] * 5000).encode())
    check(status == 400, "a batch of 5000: %s" % status)
    for data in (b"\x16\x03\x01", b"GET\r\n\r\n", b"POST / HTTP/1.1\r\n\r\n", b"A" * 100000,
                 b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{",
                 b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n{}",
                 b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"):
        out = raw(url, data)
        check(b" 200 " not in out[:20], "%r was answered %r" % (data[:40], out[:60]))
    for method in ("GET", "PUT", "DELETE"):
        c = http.client.HTTPConnection(urlparse(url).netloc, timeout=20)
        c.request(method, "/reward", good)
        check(c.getresponse().status in (404, 405), method + " /reward")
        c.close()
    alive()


# ---- workers die in the middle ----

def below(pid):
    out = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(pid)], capture_output=True,
                         text=True).stdout
    return [int(line.split()[0]) for line in out.splitlines() if "python" in line]


async def killed(url, pid, n):
    import aiohttp

    kills, rng, seen = 0, random.Random(3), {200: 0, 500: 0}
    done = asyncio.Event()

    async def killer():
        nonlocal kills
        while not done.is_set():
            workers = below(pid)
            if workers:
                try:
                    os.kill(rng.choice(workers), signal.SIGKILL)
                    kills += 1
                except ProcessLookupError:
                    pass
            await asyncio.sleep(0.3)

    async def one(session, i):
        sample = {"prompt": "p", "response": "x" * (i % 50), "label": None}
        async with session.post(url, json=sample) as r:
            body = await r.json()
            check(r.status in (200, 500), "%s: %s" % (r.status, body))
            seen[r.status] += 1
            if r.status == 200:
                check(body == (i % 50) / 7, "%d gives %r" % (i, body))
            else:
                check(body["failed"] is True and "worker process" in body["reason"], str(body))

    task = asyncio.create_task(killer())
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=16)) as session:
        await asyncio.gather(*(one(session, i) for i in range(n)))
    done.set()
    await task
    for _ in range(100):  # workers that were killed while they started rest for a few seconds
        status, body = post(url, {"response": "xx"})
        if status == 200:
            break
        time.sleep(0.1)
    check((status, body) == (200, 2 / 7), "after the kills: %s %s" % (status, body))
    check(kills > 3 and seen[200] > n / 2 and seen[500] > 0, "%d kills, %s" % (kills, seen))
    print("%d kills: %d rewards, %d told as failed" % (kills, seen[200], seen[500]),
          file=sys.stderr)


def kills(url, pid):
    asyncio.run(killed(url, int(pid), 2000))
    check(int(figures(url)["miles_reward_worker_restarts_total"]) > 3, "no restarts are counted")


# ---- too much at once ----

def full(url):
    """A server with --max-queued 8 and a function that takes 50 ms: all are answered in the end by
    clients that do as Retry-After says, and none waits in a queue without a bound."""
    async def run():
        import aiohttp

        refused = 0

        async def one(session):
            nonlocal refused
            for _ in range(600):
                async with session.post(url, json={"response": "slow", "label": 1}) as r:
                    if r.status == 200:
                        return await r.json()
                    check(r.status == 503 and r.headers["Retry-After"] == "1", str(r.status))
                    refused += 1
                await asyncio.sleep(random.uniform(0.02, 0.1))
            return None

        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=64)) as session:
            got = await asyncio.gather(*(one(session) for _ in range(64)))
        check(got == [0.5] * 64, "%s" % got)
        check(refused > 0, "nothing was refused")

    asyncio.run(run())
    check(figures(url)["miles_reward_queued"] == "0", "something is left in the queue")


if __name__ == "__main__":
    parts = {"clients": clients, "types": types, "hostile": hostile, "kills": kills, "full": full}
    parts[sys.argv[1]](*sys.argv[2:])
    print(checks)
