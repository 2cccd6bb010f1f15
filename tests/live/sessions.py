"""Agents against a session server: sessions.py V1_URL V2_URL DEAD_URL ENGINE_URL

V1_URL and V2_URL are session servers in front of the engine at ENGINE_URL, DEAD_URL one in front of
nothing. AGENTS (64) agents talk until there were TURNS (600) turns. Of every session the tokens that are
to be trained are compared with those that the answers told, and the log-probs of all of them with what
the engine gives for the whole conversation at once: had a prompt been tokenised anew, they would differ.
Then every error, input that is meant to break something, requests at the same time, and clients that
leave. Prints agents=... turns=... differences=... checks=...
"""
import http.client
import json
import os
import random
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
from miles_c.agent import tensors  # noqa: E402

V1, V2, DEAD, ENGINE = sys.argv[1:5]
AGENTS, TURNS = int(os.environ.get("AGENTS", 64)), int(os.environ.get("TURNS", 600))
LOCK = threading.Lock()
TALK = {"temperature": 1, "logit_bias": {"2": 5.0}}  # answers that end: a bias is not in log-probs
COUNT = {"turns": 0, "differences": 0, "checks": 0, "sessions": 0, "mismatched": 0}
WORDS = "the a Number <|im_start|> naive\u0301 \u00fc\u20ac 12345 \n\n  {\"a\": 1} ``` end. \U0001f600".split(" ")


def check(ok, what):
    if not ok:
        sys.exit(f"sessions.py: {what}")
    with LOCK:
        COUNT["checks"] += 1


class Peer:
    """A connection that is kept."""

    def __init__(self, url):
        self.at = urlsplit(url)
        self.conn = None

    def ask(self, method, path, body=None, headers=None):
        """(status, bytes of the answer)"""
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        for attempt in (0, 1):
            try:
                if self.conn is None:
                    self.conn = http.client.HTTPConnection(self.at.hostname, self.at.port, timeout=120)
                self.conn.request(method, path, data, headers or {"Content-Type": "application/json"})
                answer = self.conn.getresponse()
                return answer.status, answer.read()
            except (http.client.HTTPException, OSError):
                self.conn = None
                if attempt:
                    raise
        return None

    def json(self, method, path, body=None, status=200):
        got, raw = self.ask(method, path, body)
        check(got == status, f"{method} {path}: {got}, not {status}: {raw[:300]}")
        return json.loads(raw) if raw else None


def floats(values):
    """The bits of 32-bit floats."""
    return struct.pack(f"{len(values)}f", *values)


def user(text):
    return {"role": "user", "content": text}


def chat(peer, session, messages, status=200, **more):
    return peer.json("POST", f"/sessions/{session}/v1/chat/completions",
                     dict({"model": "any", "messages": messages}, **more), status)


def opened(peer, **body):
    return peer.json("POST", "/sessions", body)["session_id"]


def compare(peer, engine, session, told):
    """The samples of a session against what its answers told: {id: [(token, log-prob), ...]}."""
    status, blob = peer.ask("POST", f"/sessions/{session}/samples", b"")
    check(status == 200, f"samples: {status}")
    parts, wrong, seen = tensors(blob), 0, set()
    for i, meta in enumerate(parts["_samples_meta"]["samples"]):
        tokens, mask = parts[f"{i}.tokens"], parts[f"{i}.loss_mask"]
        logps, prompt = parts[f"{i}.rollout_log_probs"], meta["prompt_length"]
        trained = [(t, p) for t, m, p in zip(tokens[prompt:], mask, logps) if m]
        fresh = [k for k in meta["response_ids"] if k not in seen]
        seen.update(fresh)
        want = [pair for k in fresh for pair in told[k]]
        wrong += [t for t, _ in trained] != [t for t, _ in want]
        wrong += floats([p for _, p in trained]) != floats([p for _, p in want])
        # what the engine makes of the whole, read at once
        whole = engine.json("POST", "/generate", {
            "input_ids": tokens, "return_logprob": True, "logprob_start_len": 0,
            "sampling_params": {"max_new_tokens": 1, "temperature": 1}})
        again = [p for p, *_ in whole["meta_info"]["input_token_logprobs"]][prompt:]
        segments = [g for g in meta["segments"] if g["origin"] == 0]
        for g in segments:
            span = slice(g["start"], g["start"] + g["len"])
            wrong += floats(again[span]) != floats(logps[span])
        COUNT["mismatched"] += meta["mismatch"] is not None
    return wrong


def turn(peer, session, messages, told, rng, **more):
    answer = chat(peer, session, messages, max_tokens=rng.randint(1, 12), **more)
    choice = answer["choices"][0]
    told[answer["id"]] = [(c["token_id"], c["logprob"]) for c in choice["logprobs"]["content"]]
    return choice["message"], choice["finish_reason"]


def agent(number):
    rng = random.Random(number)
    peers, engine = {0: Peer(V1), 1: Peer(V2)}, Peer(ENGINE)
    while COUNT["turns"] < TURNS:
        tree, told = rng.random() < 0.3, {}
        peer = peers[tree]
        session = opened(peer, seed=rng.getrandbits(40), sampling_params=TALK)
        line, turns = [user(" ".join(rng.choices(WORDS, k=rng.randint(1, 8))))], 0
        for _ in range(rng.randint(1, 6)):
            message, finish = turn(peer, session, line, told, rng)
            turns += 1
            if rng.random() < 0.15:  # the last answer is not wanted: once more
                if not tree:
                    told.popitem()
                message, finish = turn(peer, session, line, told, rng)
                turns += 1
            if finish == "length":  # it has no end to go on from
                break
            line = line + [message, user(" ".join(rng.choices(WORDS, k=rng.randint(1, 8))))]
        wrong = compare(peer, engine, session, told)
        check(peer.ask("DELETE", f"/sessions/{session}")[0] == 204, "delete")
        with LOCK:
            COUNT["turns"] += turns
            COUNT["sessions"] += 1
            COUNT["differences"] += wrong


def parallel():
    failed = []

    def run(i):
        try:
            agent(i)
        except BaseException as exc:
            failed.append(f"agent {i}: {exc!r}")

    threads = [threading.Thread(target=run, args=(i,)) for i in range(AGENTS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    check(not failed, "; ".join(failed[:3]))


def errors():
    peer = Peer(V1)
    path = "/v1/chat/completions"
    for method, what in (("GET", ""), ("POST", path), ("POST", "/samples")):
        error = peer.json(method, "/sessions/nobody" + what, {"messages": [user("x")]}, 404)
        check("no such session" in error["error"]["message"], "404 says so")
    s = opened(peer, seed=1)
    for body, word in (({}, "messages"), ({"messages": []}, "messages"), ({"messages": 3}, "messages"),
                       ({"messages": [{"role": "alien", "content": "x"}]}, "alien"),
                       ({"messages": [user("x")], "n": 2}, "n "),
                       ({"messages": [user("x")], "max_tokens": 0}, "max_tokens"),
                       ({"messages": [user("x")], "temperature": "hot"}, "temperature"),
                       ({"messages": [user("x")], "tools": 1}, "tools"),
                       ({"messages": [user("x")], "tool_choice": "required"}, "tool_choice"),
                       ({"messages": [user("x")], "response_format": {"type": "json_object"}},
                        "response_format"),
                       ({"messages": [user("x"), {"role": "assistant", "content": "y"}]}, "assistant"),
                       ({"messages": [user("long " * 5000)]}, "room")):
        error = peer.json("POST", f"/sessions/{s}{path}", body, 400)
        check(word in error["error"]["message"], f"400 names {word}: {error['error']['message']}")
    for raw in (b"", b"{", b"[]", b"\xff\xfe", b"[" * 100000, b'{"a":' * 50000,
                b'{"messages": [{"role": "user", "content": "\xed\xa0\x80"}]}'):
        check(peer.ask("POST", f"/sessions/{s}{path}", raw)[0] == 400, f"hostile body {raw[:20]}")
    check(peer.ask("POST", "/sessions", b"x" * 70000)[0] == 400, "a huge POST /sessions")
    check(peer.ask("POST", f"/sessions/{s}{path}", b" " * (17 << 20))[0] == 413, "a huge body")
    check(peer.ask("POST", "/sessions/" + "x" * 200, b"")[0] == 404, "a long name")
    check(peer.ask("GET", "/sessions/%00%2e%2e/x")[0] in (400, 404), "an odd name")
    check(peer.ask("PUT", f"/sessions/{s}")[0] == 405, "a method that is none")
    error = peer.json("POST", f"/sessions/{s}{path}",
                      {"messages": [user("x")], "chat_template_kwargs": {"tokenize": True}}, 422)
    check("tokenize" in error["error"]["message"], "422 of the template")
    # the history: one turn back, no more
    told, rng = {}, random.Random(0)
    stop = {"logit_bias": {"2": 100.0}}  # ends at once
    first, _ = turn(peer, s, [user("a")], told, rng, **stop)
    second, _ = turn(peer, s, [user("a"), first, user("b")], told, rng, **stop)
    chat(peer, s, [user("other")], 409)
    chat(peer, s, [user("a")], 409)
    chat(peer, s, [user("a"), dict(first, content="changed"), user("b")], 409)
    turn(peer, s, [user("a"), first, user("b")], told, rng)
    shown = peer.json("GET", f"/sessions/{s}")
    check(len(shown["turns"]) == 2 and shown["version"] == "v1", "GET shows the turns")
    peer.json("DELETE", f"/sessions/{s}", status=204)
    chat(peer, s, [user("a")], 404)
    # the engines
    dead = Peer(DEAD)
    s = opened(dead)
    error = chat(dead, s, [user("x")], 502)
    check("engines" in error["error"]["message"], "502 says so")
    check(dead.json("GET", f"/sessions/{s}")["turns"] == [], "a turn without an answer is none")
    check(dead.ask("GET", "/v1/models")[0] == 502, "502 of the proxy")
    check(peer.json("GET", "/v1/models")["object"] == "list", "other paths reach the engine")
    s = opened(peer)
    check(peer.json("GET", f"/sessions/{s}/v1/models")["object"] == "list", "also below a session")
    peer.json("DELETE", f"/sessions/{s}", status=204)


def streams():
    peer = Peer(V1)
    s = opened(peer, seed=5)
    status, raw = peer.ask("POST", f"/sessions/{s}/v1/chat/completions",
                           {"messages": [user("x")], "stream": True, "max_tokens": 4,
                            "stream_options": {"include_usage": True}})
    events = [e[6:] for e in raw.decode().split("\n\n") if e]
    check(status == 200 and len(events) == 2 and events[1] == "[DONE]", "a stream of one event")
    event = json.loads(events[0])
    check(event["object"] == "chat.completion.chunk" and event["usage"]["completion_tokens"] >= 1,
          "which is the whole answer")
    check(event["choices"][0]["delta"]["role"] == "assistant", "as a delta")
    peer.json("DELETE", f"/sessions/{s}", status=204)
    # the same seed, the same conversation
    said = []
    for _ in range(2):
        s = opened(peer, seed=99)
        said.append(chat(peer, s, [user("x")], max_tokens=8)["choices"][0]["message"])
        peer.json("DELETE", f"/sessions/{s}", status=204)
    check(said[0] == said[1], "a session's seed decides")


def at_once():
    """Requests of one session at the same time: one is answered, the others are told of it."""
    peer = Peer(V1)
    s, got = opened(peer, seed=1), []

    def one():
        got.append(Peer(V1).ask("POST", f"/sessions/{s}/v1/chat/completions",
                                {"messages": [user("x")], "max_tokens": 200, "ignore_eos": True})[0])

    threads = [threading.Thread(target=one) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    check(set(got) <= {200, 409} and 200 in got and 409 in got, f"one line, eight requests: {got}")
    check(len(peer.json("GET", f"/sessions/{s}")["turns"]) == 1, "one turn came of them")
    peer.json("DELETE", f"/sessions/{s}", status=204)
    two = Peer(V2)
    s = opened(two, seed=1)
    path = f"/sessions/{s}/v1/chat/completions"
    got, body = [], {"messages": [user("x")], "max_tokens": 50, "ignore_eos": True}
    threads = [threading.Thread(target=lambda: got.append(Peer(V2).ask("POST", path, body)[0]))
               for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    check(got == [200] * 8 and len(two.json("GET", f"/sessions/{s}")["turns"]) == 8, f"branches: {got}")
    two.json("DELETE", f"/sessions/{s}", status=204)


def leave():
    """Clients that vanish in the middle: the engine stops, and the session can be used."""
    peer, engine = Peer(V1), Peer(ENGINE)
    s = opened(peer, seed=1)
    body = json.dumps({"messages": [user("x")], "max_tokens": 400, "ignore_eos": True}).encode()
    at = urlsplit(V1)
    for _ in range(5):
        with socket.create_connection((at.hostname, at.port)) as sock:
            sock.sendall(b"POST /sessions/%s/v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: "
                         b"%d\r\n\r\n" % (s.encode(), len(body)) + body)
            time.sleep(0.05)
    for _ in range(100):
        status, _ = peer.ask("POST", f"/sessions/{s}/v1/chat/completions",
                             {"messages": [user("x")], "max_tokens": 2})
        if status == 200:
            break
        time.sleep(0.1)
    check(status == 200, f"the session is free again: {status}")
    peer.json("DELETE", f"/sessions/{s}", status=204)
    check(engine.json("POST", "/generate", {"input_ids": [5], "sampling_params": {
        "max_new_tokens": 1}})["meta_info"]["completion_tokens"] == 1, "the engine works")


def main():
    parallel()
    errors()
    streams()
    at_once()
    leave()
    for url in (V1, V2, DEAD):  # nothing is left: the one session of DEAD is forgotten
        for _ in range(100):
            left = Peer(url).json("GET", "/health")["sessions"]
            if left == 0:
                break
            time.sleep(0.1)
        check(left == 0, f"{left} sessions are left")
    print(f"agents={AGENTS} turns={COUNT['turns']} sessions={COUNT['sessions']} "
          f"differences={COUNT['differences']} mismatched={COUNT['mismatched']} checks={COUNT['checks']}")
    sys.exit(COUNT["differences"] != 0)


main()
