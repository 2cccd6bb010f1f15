"""What tests/live/sessions_sglang.sh does around a live SGLang.

    sessions_sglang.py record URL LOG          a proxy in front of the engine at URL, until it is killed: writes every
                                               /generate with its answer into LOG. Prints ready url=...
    sessions_sglang.py talk URL LOG            AGENTS (6) agents at once, SESSIONS (2) conversations each of up to TURNS
                                               (4) turns, through the session server at URL; then as below
    sessions_sglang.py trained LOG DUMP...     compares saved rollouts with what LOG has since it was read last

Compared are tokens with mask 1, in the place where they stand: there must be one request whose prompt was all the
tokens before them, and whose answer were these tokens with these log-probs, bit for bit; and every answer of the engine
must be found once. Prints turns=... generated=... trained=... differences=...
"""
import http.client
import http.server
import json
import os
import random
import struct
import sys
import threading
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
from miles_c.agent import call, tensors  # noqa: E402

AGENTS, SESSIONS, TURNS = (int(os.environ.get(k, v)) for k, v in (("AGENTS", 6), ("SESSIONS", 2), ("TURNS", 4)))
WORDS = "the a Number <|im_start|> naive\u0301 \u00fc\u20ac 12345 \n\n  {\"a\": 1} ``` end. \U0001f600".split(" ")


def record(url, log):
    upstream, lock = urlsplit(url), threading.Lock()

    class Proxy(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            conn = http.client.HTTPConnection(upstream.hostname, upstream.port, timeout=600)
            conn.request(self.command, self.path, body, {"Content-Type": "application/json"})
            answer = conn.getresponse()
            raw = answer.read()
            conn.close()
            if self.path == "/generate" and answer.status == 200 and not json.loads(body).get("stream"):
                with lock, open(log, "a") as out:
                    out.write(json.dumps({"asked": json.loads(body), "said": json.loads(raw)}) + "\n")
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.headers.get("Content-Type", "application/json"))
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        do_POST = do_GET

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    server.daemon_threads = True
    print(f"ready url=http://127.0.0.1:{server.server_port} upstream={url}", flush=True)
    server.serve_forever()


def bits(values):
    return struct.pack(f"{len(values)}f", *values)


def answers(log):
    """The engine's answers since the last time: Counter of (prompt, tokens, bits of log-probs)."""
    seen, at = Counter(), Path(log + ".at")
    with open(log) as lines:
        lines.seek(int(at.read_text()) if at.exists() else 0)
        for line in iter(lines.readline, ""):
            row = json.loads(line)
            told = row["said"]["meta_info"]["output_token_logprobs"]
            seen[tuple(row["asked"]["input_ids"]), tuple(t for _, t, *_ in told), bits([p for p, *_ in told])] += 1
        at.write_text(str(lines.tell()))
    return seen


def compare(samples, log):
    """samples: (tokens, mask, log-probs) each, the last two of the response."""
    left = answers(log)
    turns, generated = sum(left.values()), sum(len(key[1]) * n for key, n in left.items())
    trained = differences = 0
    for tokens, mask, logps in samples:
        prompt, at = len(tokens) - len(mask), 0
        trained += sum(mask)
        while at < len(mask):
            end = at
            while end < len(mask) and mask[end]:
                end += 1
            if end > at:
                key = tuple(tokens[: prompt + at]), tuple(tokens[prompt + at : prompt + end]), bits(logps[at:end])
                differences += left[key] < 1
                left[key] -= 1
            at = max(end, at + 1)
    differences += sum(n for n in left.values() if n > 0)  # said by the engine, and in no sample
    if differences or not trained or trained != generated:
        sys.exit(f"{differences} differences, {generated} tokens generated, {trained} trained")
    print(f"turns={turns} generated={generated} trained={trained} differences={differences}")


def user(rng):
    return {"role": "user", "content": " ".join(rng.choices(WORDS, k=rng.randint(1, 8)))}


def agent(url, number, samples):
    rng = random.Random(number)
    for _ in range(SESSIONS):
        params = {"temperature": 1, "logit_bias": {"2": 5.0}}  # answers that end
        opened = call(url, "POST", "/sessions", {"seed": rng.getrandbits(40), "sampling_params": params})
        session = "/sessions/" + json.loads(opened)["session_id"]
        line = [user(rng)]
        for _ in range(TURNS):
            body = {"model": "any", "messages": line, "max_tokens": rng.randint(4, 16)}
            choice = json.loads(call(url, "POST", session + "/v1/chat/completions", body))["choices"][0]
            line += [choice["message"], user(rng)]
            if choice["finish_reason"] == "length":  # it has no end to go on from
                break
        parts = tensors(call(url, "POST", session + "/samples"))
        samples.append((parts["0.tokens"], parts["0.loss_mask"], parts["0.rollout_log_probs"]))
        call(url, "DELETE", session)


def talk(url, log):
    samples, failed = [], []

    def run(number):
        try:
            agent(url, number, samples)
        except Exception as exc:
            failed.append(f"agent {number}: {exc!r}")

    threads = [threading.Thread(target=run, args=(i,)) for i in range(AGENTS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if failed or len(samples) != AGENTS * SESSIONS:
        sys.exit(f"{len(samples)} conversations; {'; '.join(failed[:3])}")
    compare(samples, log)


def trained(log, *dumps):
    samples = []
    for name in dumps:
        with open(name) as rows:
            for row in map(json.loads, rows):
                if "index" in row:
                    samples.append((row["tokens"], row["loss_mask"], row["rollout_log_probs"]))
    compare(samples, log)


{"record": record, "talk": talk, "trained": trained}[sys.argv[1]](*sys.argv[2:])
