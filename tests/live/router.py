"""Drives `miles router` in front of real servers: router.py MILES MODEL WORK

Starts them, ends them, and prints one line of figures; the first check that fails ends it. See router.sh.
"""
import concurrent.futures
import http.client
import json
import os
import random
import select
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import threading
import time
import urllib.parse

MILES, MODEL, WORK = sys.argv[1:4]
PROCESSES = []


def say(text):
    print(text, file=sys.stderr, flush=True)


def check(ok, what):
    if not ok:
        sys.exit(f"router.py: {what}")


class Process:
    """`miles serve` or `miles router`, with its address from the line it prints."""

    def __init__(self, name, *args):
        self.name = name
        self.err = open(f"{WORK}/{name}.err", "ab")
        self.child = subprocess.Popen([MILES, *args], stdout=subprocess.PIPE, stderr=self.err)
        PROCESSES.append(self)
        line = self.child.stdout.readline().decode()
        if not line.startswith("ready url="):
            with open(f"{WORK}/{name}.err", encoding="utf-8") as text:
                sys.exit(f"router.py: {name} does not start: {text.read()[-2000:]}")
        self.url = line.split()[1][4:]

    def end(self, how=signal.SIGTERM):
        if self.child.poll() is None:
            self.child.send_signal(how)
        code = self.child.wait(60)
        self.child.stdout.close()
        self.err.close()
        PROCESSES.remove(self)
        if code not in (0, -how):
            with open(f"{WORK}/{self.name}.err", encoding="utf-8", errors="replace") as text:
                say(f"{self.name} ended with {code}: {text.read()[-2000:]}")
        return code


def serve(name, port=0, *args):
    return Process(name, "serve", "--hf-checkpoint", MODEL, "--port", str(port),
                   "--sglang-mem-fraction-static", "0.02", "--sglang-random-seed", "1",
                   "--served-model-name", "tiny", *args)


def route(name, workers, *args):
    router = Process(name, "router", "--port", "0", "--worker-urls", *[w.url for w in workers],
                     "--router-health-check-interval-secs", "1", *args)
    wait_for(lambda: get(router.url + "/readiness")[1].get("healthy_workers") == len(workers),
             f"{name} finds its workers")
    return router


LOCAL = threading.local()


def call(url, body=None, method=None):
    """Status, headers and text, over a connection that the thread keeps."""
    parts = urllib.parse.urlsplit(url)
    pool = LOCAL.__dict__.setdefault("pool", {})
    target = parts.path + ("?" + parts.query if parts.query else "")
    data = None if body is None else json.dumps(body)
    for fresh in (False, True):
        connection = pool.pop(parts.netloc, None)
        if fresh or not connection:
            connection = http.client.HTTPConnection(parts.netloc, timeout=300)
        try:
            connection.request(method or ("GET" if body is None else "POST"), target, data,
                               {"Content-Type": "application/json"} if data else {})
            answer = connection.getresponse()
            text = answer.read()
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            if fresh:
                raise
            continue
        pool[parts.netloc] = connection
        return answer.status, answer.headers, text
    return None


def get(url, body=None, method=None):
    status, _, text = call(url, body, method)
    return status, json.loads(text)


def wait_for(ready, what, seconds=60):
    end = time.monotonic() + seconds
    while not ready():
        check(time.monotonic() < end, f"{what}: not within {seconds} s")
        time.sleep(0.02)


def metric(url, name):
    for line in call(url + "/metrics")[2].decode().split("\n"):
        if line.startswith(name + " "):
            return float(line.split()[1])
    sys.exit(f"router.py: no metric {name}")


def together(n, work, items):
    with concurrent.futures.ThreadPoolExecutor(n) as pool:
        return list(pool.map(work, items))


def prompt(seed, n):
    rng = random.Random(seed)
    return [rng.randrange(3, 500) for _ in range(n)]


def generate(url, ids, new, seed, **more):
    body = {"input_ids": ids, "return_logprob": True,
            "sampling_params": {"max_new_tokens": new, "ignore_eos": True, "temperature": 1.0,
                                "sampling_seed": seed}, **more}
    return call(url + "/generate", body)


def answer_of(reply):
    status, headers, text = reply
    check(status == 200, f"/generate: {status} {text[:300]}")
    answer = json.loads(text)
    return answer["output_ids"], answer["meta_info"]["output_token_logprobs"], headers, answer


# ---- the prefix caches ----

def cached_share(url):
    """500 requests, five of each of 100 prompts that differ in their tails, in mixed order."""
    heads = [prompt(1000 + i, 256) for i in range(100)]
    asks = [(i, k) for i in range(100) for k in range(5)]
    random.Random(5).shuffle(asks)

    def ask(one):
        i, k = one
        meta = answer_of(generate(url, heads[i] + prompt(9 * i + k, 12), 2, 1))[3]["meta_info"]
        return meta["cached_tokens"], meta["prompt_tokens"]

    pairs = together(8, ask, asks)
    return sum(p[0] for p in pairs) / sum(p[1] for p in pairs)


def caches(workers):
    shares = {}
    for policy in ("cache_aware", "round_robin"):
        router = route(policy, workers, "--router-policy", policy)
        status, flushed = get(router.url + "/flush_cache", {})
        check(status == 200 and len(flushed["workers"]) == 3, f"flush_cache: {flushed}")
        shares[policy] = cached_share(router.url)
        spread = [w["requests"] for w in get(router.url + "/workers")[1]["workers"]]
        check(sum(spread) == 500 and min(spread) > 50, f"{policy}: requests of the workers {spread}")
        say(f"{policy}: {shares[policy]:.3f} of the prompt tokens cached, requests {spread}")
        check(router.end() == 0, f"{policy} ends with an error")
    check(shares["cache_aware"] > shares["round_robin"] + 0.15, f"shares {shares}")
    return shares


# ---- a worker dies ----

def kill_one(workers, router, count=240, new=48):
    prompts = [prompt(i, 20 + i % 50) for i in range(count)]
    alone = together(8, lambda i: answer_of(generate(workers[0].url, prompts[i], new, i))[:2],
                     range(count))
    done = [0]
    start = threading.Barrier(2)

    def killer():
        start.wait()
        while done[0] < count // 4:
            time.sleep(0.005)
        workers[2].end(signal.SIGKILL)

    thread = threading.Thread(target=killer)
    thread.start()
    start.wait()

    def ask(i):
        reply = generate(router.url, prompts[i], new, i)
        done[0] += 1
        return reply

    replies = together(24, ask, range(count))
    thread.join()
    failed = sum(r[0] != 200 for r in replies)
    check(failed == 0, f"{failed} of {count} requests failed: {[r for r in replies if r[0] != 200][:1]}")
    different = sum(answer_of(r)[:2] != a for r, a in zip(replies, alone))
    check(different == 0, f"{different} of {count} answers are not those of a worker asked alone")
    retries = metric(router.url, "sgl_router_retries_total")
    check(retries > 0, "no request was under way at the killed worker: the test shows nothing")
    say(f"killed a worker under load: {count} answers, 0 failed, 0 different, {retries:.0f} sent again")
    return count, int(retries), prompts, alone


def back_again(workers, router):
    wait_for(lambda: get(router.url + "/readiness")[1]["healthy_workers"] == 2, "the loss is noticed")
    dead = workers[2]
    workers[2] = serve("back", int(dead.url.rsplit(":", 1)[1]))
    check(workers[2].url == dead.url, "the worker has another address")
    status, added = get(router.url + "/add_worker?url=" + urllib.parse.quote(dead.url, safe=""), {})
    check(status == 200 and added["is_healthy"], f"add_worker: {status} {added}")
    urls = get(router.url + "/list_workers")[1]["urls"]
    check(sorted(urls) == sorted(w.url for w in workers), f"list_workers: {urls}")
    seen = together(8, lambda i: generate(router.url, prompt(70 + i, 9), 2, 1)[1]["X-Miles-Worker"],
                    range(24))
    check(dead.url in seen, "the worker that is back is not asked")


def remove_one(workers, router, prompts, alone):
    """Takes a worker out while it computes: what it has, it finishes."""
    name = workers[1].url
    asked = concurrent.futures.ThreadPoolExecutor(16)
    replies = [asked.submit(generate, router.url, prompts[i], 48, i) for i in range(60)]
    wait_for(lambda: any(w["url"] == name and w["load"] > 1
                         for w in get(router.url + "/workers")[1]["workers"]), "it has requests")
    status, removed = get(router.url + "/remove_worker?url=" + name, {})
    check(status == 200, f"remove_worker: {status} {removed}")
    check(name not in get(router.url + "/list_workers")[1]["urls"], "it is still listed")
    wait_for(lambda: call(router.url + "/workers/" + removed["id"])[0] == 404, "it is done")
    before = metric(name, 'sglang:num_requests_total{model_name="tiny"}')
    for i, reply in enumerate(replies):
        check(answer_of(reply.result())[:2] == alone[i], f"request {i} of a removed worker differs")
    asked.shutdown()
    check(metric(name, 'sglang:num_requests_total{model_name="tiny"}') == before,
          "a removed worker was asked again")
    status, added = get(router.url + "/workers", {"url": name, "worker_type": "regular"})
    check(status == 202, f"/workers: {status} {added}")
    wait_for(lambda: get(router.url + "/readiness")[1]["healthy_workers"] == 3, "it is back")
    return removed["load"]


# ---- streams ----

def stream(url, ids, new, seed):
    """The pieces of a streamed answer, by their order."""
    _, headers, text = generate(url, ids, new, seed, stream=True)
    check(headers["Content-Type"].startswith("text/event-stream"), f"not a stream: {text[:200]}")
    lines = [line[6:] for line in text.decode().split("\n") if line.startswith("data: ")]
    check(lines[-1] == "[DONE]", f"a stream ends with {lines[-1]}")
    return [json.loads(line) for line in lines[:-1]]


def streams(router, prompts, alone):
    def ask(i):
        pieces = stream(router.url, prompts[i], 48, i)
        return len(pieces) > 10 and (pieces[-1]["output_ids"],
                                     pieces[-1]["meta_info"]["output_token_logprobs"]) == alone[i]

    whole = together(16, ask, range(64))
    check(all(whole), f"{whole.count(False)} of 64 streams differ")


def leave(workers, router):
    """A client that leaves in the middle of a stream: its worker stops computing."""
    host = urllib.parse.urlsplit(router.url)
    body = json.dumps({"input_ids": [5, 6, 7], "stream": True,
                       "sampling_params": {"max_new_tokens": 1900, "ignore_eos": True}})
    running = 'sglang:num_running_reqs{model_name="tiny"}'
    clients = []
    for _ in range(6):
        client = socket.create_connection((host.hostname, host.port))
        client.sendall(f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
                       .encode() + body.encode())
        clients.append(client)
    for client in clients:
        check(b"data: " in client.recv(65536) + client.recv(65536), "no stream began")
    check(sum(metric(w.url, running) for w in workers) > 0, "nothing runs")
    for client in clients:
        client.close()
    wait_for(lambda: sum(metric(w.url, running) for w in workers) == 0, "the workers stop", 20)
    aborted = sum(metric(w.url, 'sglang:num_aborted_requests_total{model_name="tiny"}')
                  for w in workers)
    check(aborted >= 6, f"{aborted} requests were aborted")


def openai_client(router):
    import openai

    client = openai.OpenAI(base_url=router.url + "/v1", api_key="none")
    check([m.id for m in client.models.list()] == ["tiny"], "models")
    ask = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12, "seed": 4}
    whole = client.chat.completions.create(**ask).choices[0].message.content
    parts = "".join(p.choices[0].delta.content or "" for p in
                    client.chat.completions.create(**ask, stream=True) if p.choices)
    check(whole == parts, f"chat: {whole!r} and {parts!r}")


def controls(workers, router):
    for path, body in (("/pause_generation", {"mode": "retract"}), ("/continue_generation", {}),
                       ("/update_weight_version", {"new_version": "v7"}),
                       ("/update_weights_from_disk", {"model_path": MODEL, "weight_version": "v8"}),
                       ("/abort_request", {"abort_all": True})):
        status, answer = get(router.url + path, body)
        check(status == 200 and answer["success"] and len(answer["workers"]) == 3,
              f"{path}: {status} {answer}")
    for worker in workers:
        version = get(worker.url + "/get_model_info")[1]["weight_version"]
        check(version == "v8", f"{worker.name} has version {version}")
    info = get(router.url + "/get_server_info")[1]
    check(len(info["internal_states"]) == 3 and info["router"]["router_policy"] == "cache_aware",
          "get_server_info")
    metrics = call(router.url + "/engine_metrics")[2].decode()
    for worker in workers:
        check(f'sglang:num_running_reqs{{worker="{worker.url}",' in metrics, "engine_metrics")


def tls():
    """TLS and keys on both sides: the client's of the router, the router's of its worker."""
    cert, key = f"{WORK}/cert.pem", f"{WORK}/key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
                    "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
                   check=True, capture_output=True)
    secure = ["--ssl-certfile", cert, "--ssl-keyfile", key]
    worker = serve("secure", 0, "--api-key", "behind", *secure)
    check(worker.url.startswith("https://"), worker.url)
    for trusted, want in ((["--router-ca-cert-path", cert], 200), ([], 503)):
        router = Process("tls", "router", "--port", "0", "--worker-urls", worker.url, "--api-key", "front",
                         "--router-api-key", "behind", "--router-retry-initial-backoff-ms", "200", *secure, *trusted)
        host = urllib.parse.urlsplit(router.url)
        for bearer, status in (("front", want), ("behind", 401)):
            client = http.client.HTTPSConnection(host.hostname, host.port, timeout=60,
                                                 context=ssl.create_default_context(cafile=cert))
            client.request("GET", "/get_model_info", None, {"Authorization": f"Bearer {bearer}"})
            answer = client.getresponse()
            check(answer.status == status, f"TLS, key {bearer}, {trusted}: {answer.status} {answer.read()}")
            client.close()
        check(router.end() == 0, "the router with TLS ends with an error")
    check(worker.end() == 0, "the server with TLS ends with an error")


# ---- cost ----

def rate(url, seconds, connections=32):
    """Requests a second of GET /get_model_info over that many connections, from one thread."""
    host = urllib.parse.urlsplit(url)
    ask = b"GET /get_model_info HTTP/1.1\r\nHost: x\r\n\r\n"
    poll = select.epoll()
    open_ = {}
    for _ in range(connections):
        s = socket.create_connection((host.hostname, host.port))
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        open_[s.fileno()] = [s, b""]
        poll.register(s.fileno(), select.EPOLLIN)
        s.sendall(ask)
    n, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        for fd, _ in poll.poll(1):
            entry = open_[fd]
            entry[1] += entry[0].recv(65536)
            head = entry[1].find(b"\r\n\r\n")
            if head < 0:
                continue
            at = entry[1].lower().find(b"content-length:")
            length = int(entry[1][at + 15:entry[1].find(b"\r", at)])
            if len(entry[1]) >= head + 4 + length:
                check(entry[1].startswith(b"HTTP/1.1 200"), f"{entry[1][:100]}")
                entry[1] = b""
                n += 1
                entry[0].sendall(ask)
    for s, _ in open_.values():
        s.close()
    poll.close()
    return n / seconds


def cost(worker):
    """The router against its one worker asked directly, in turns: seconds a request more, and requests a second."""
    router = route("cost", [worker])
    times = {worker.url: [], router.url: []}
    for i in range(600):
        for url in (worker.url, router.url) if i % 2 else (router.url, worker.url):
            t = time.perf_counter()
            call(url + "/get_model_info")
            times[url].append(time.perf_counter() - t)
    rates = {worker.url: [], router.url: []}
    for i in range(6):
        for url in (worker.url, router.url) if i % 2 else (router.url, worker.url):
            rates[url].append(rate(url, 1.0))
    check(router.end() == 0, "the router ends with an error")
    added = [statistics.median(times[u]) * 1e6 for u in (worker.url, router.url)]
    best = [max(rates[u]) for u in (worker.url, router.url)]
    say(f"median of a request alone: {added[0]:.0f} us directly, {added[1]:.0f} us through the router; "
        f"32 connections: {best[0]:.0f}/s directly, {best[1]:.0f}/s through it")
    return added[1] - added[0], best[1], best[1] / best[0]


# ---- a live SGLang ----

def sglang(workers):
    """With $SGLANG_URL: one more worker, which speaks the same API."""
    url = os.environ.get("SGLANG_URL")
    if not url:
        return "skipped"
    router = Process("sglang", "router", "--port", "0", "--worker-urls", url)
    wait_for(lambda: call(router.url + "/health")[0] == 200, "SGLang is healthy")
    status, answer = get(router.url + "/generate",
                         {"text": "The capital of France is", "return_logprob": True,
                          "sampling_params": {"max_new_tokens": 8, "temperature": 0}})
    check(status == 200 and answer["meta_info"]["completion_tokens"] == 8, f"SGLang: {answer}")
    _, _, text = call(router.url + "/generate",
                      {"text": "The capital of France is", "stream": True,
                       "sampling_params": {"max_new_tokens": 8, "temperature": 0}})
    pieces = [line[6:] for line in text.decode().split("\n") if line.startswith("data: ")]
    check(pieces[-1] == "[DONE]" and json.loads(pieces[-2])["text"] == answer["text"], "its stream")
    status, chat = get(router.url + "/v1/chat/completions",
                       {"model": "default", "max_tokens": 8, "temperature": 0,
                        "messages": [{"role": "user", "content": "Hello"}]})
    check(status == 200 and chat["choices"][0]["message"]["content"], f"its chat: {chat}")
    for path in ("/get_model_info", "/get_server_info", "/v1/models"):
        check(call(router.url + path)[0] == 200, f"SGLang {path}")
    for path, body in (("/flush_cache", {}), ("/abort_request", {"abort_all": True}),
                       ("/pause_generation", {}), ("/continue_generation", {})):
        status, answer = get(router.url + path, body)
        check(status == 200 and answer["success"], f"SGLang {path}: {status} {answer}")
    # Beside a miles server, each gets its share.
    status, added = get(router.url + "/add_worker", {"url": workers[0].url})
    check(status == 200 and added["is_healthy"], f"add_worker: {added}")
    seen = set(together(4, lambda i: call(router.url + "/generate",
                                          {"input_ids": prompt(i, 30), "sampling_params": {"max_new_tokens": 4}}
                                          )[1]["X-Miles-Worker"], range(16)))
    check(seen == {url, workers[0].url}, f"asked were {seen}")
    check(router.end() == 0, "the router ends with an error")
    return "ok"


def main():
    workers = [serve(f"serve{i}") for i in range(3)]
    shares = caches(workers)
    router = route("router", workers)
    count, retries, prompts, alone = kill_one(workers, router)
    back_again(workers, router)
    drained = remove_one(workers, router, prompts, alone)
    streams(router, prompts, alone)
    leave(workers, router)
    openai_client(router)
    controls(workers, router)
    # SIGTERM while requests run: they are answered.
    late = concurrent.futures.ThreadPoolExecutor(8)
    replies = [late.submit(generate, router.url, prompts[i], 1200, i) for i in range(8)]
    wait_for(lambda: metric(router.url, "sgl_router_active_requests") == 8, "requests run")
    router.child.send_signal(signal.SIGTERM)
    for i, reply in enumerate(replies):
        ids, logprobs = answer_of(reply.result())[:2]
        check(len(ids) == 1200 and (ids[:48], logprobs[:48]) == alone[i], "an answer after SIGTERM")
    check(router.end() == 0, "the router ends with an error")
    tls()
    added_us, rate_, ratio = cost(workers[0])
    live = sglang(workers)
    for worker in workers:
        check(worker.end() == 0, f"{worker.name} ends with an error")
    print(f"cached_cache_aware={shares['cache_aware']:.3f} cached_round_robin={shares['round_robin']:.3f} "
          f"killed_requests={count} failed=0 different=0 retries={retries} drained={drained} "
          f"added_us={added_us:.0f} requests_per_s={rate_:.0f} of_direct={ratio:.2f} sglang={live}")


if __name__ == "__main__":
    try:
        main()
    finally:
        for process in list(PROCESSES):
            process.child.kill()
            process.child.wait()
