"""What tests/live/delta.sh needs beside the program.

    delta.py relay NGINX_SOCKET STATE SEED    a relay on a free port that passes connections on to nginx, cuts
                                              20% of them in the middle of the answer and damages 5%; its port
                                              and its counts are in the file STATE
    delta.py engine URL OTHER STORE      two engines take versions from the folder STORE by different ways
"""
import json
import os
import random
import shutil
import socket
import sys
import threading
import urllib.error
import urllib.request

CUT, DAMAGE = 0.20, 0.05


# ---- the relay ----

def answer(upstream):
    """The whole answer of a server that closes behind it: head and body."""
    data = b""
    while part := upstream.recv(1 << 16):
        data += part
    head, sep, body = data.partition(b"\r\n\r\n")
    return head + sep, body


class Relay:
    def __init__(self, target, state, seed):
        self.target, self.state, self.rng = target, state, random.Random(seed)
        self.counts = {"connections": 0, "cut": 0, "damaged": 0, "ranges": 0, "port": 0}
        self.lock = threading.Lock()

    def save(self):
        with open(self.state + ".tmp", "w") as out:
            json.dump(self.counts, out)
        os.replace(self.state + ".tmp", self.state)

    def one(self, client):
        request = b""
        while b"\r\n\r\n" not in request:
            part = client.recv(1 << 16)
            if not part:
                return
            request += part
        with socket.socket(socket.AF_UNIX) as upstream:
            upstream.connect(self.target)
            upstream.sendall(request)
            head, body = answer(upstream)
        with self.lock:
            luck = self.rng.random()
            at = self.rng.randrange(len(body)) if body else 0
            self.counts["connections"] += 1
            self.counts["ranges"] += b" 206 " in head.split(b"\r\n")[0]
            self.counts["cut"] += luck < CUT
            self.counts["damaged"] += CUT <= luck < CUT + DAMAGE and bool(body)
            self.save()
        if luck < CUT:
            body = body[:at]
        elif luck < CUT + DAMAGE and body:
            body = body[:at] + bytes([body[at] ^ 16]) + body[at + 1:]
        client.sendall(head + body)

    def handle(self, client):
        try:
            with client:
                self.one(client)
        except OSError:
            pass

    def run(self):
        server = socket.create_server(("127.0.0.1", 0))
        self.counts["port"] = server.getsockname()[1]
        self.save()
        while True:
            client, _ = server.accept()
            threading.Thread(target=self.handle, args=(client,), daemon=True).start()


# ---- engines ----

def post(url, path, body):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as e:
        return e.code, json.load(e)


def label(url):
    with urllib.request.urlopen(url + "/get_weight_version", timeout=60) as reply:
        return json.load(reply)["weight_version"]


def sums(url):
    status, reply = post(url, "/weights_checker", {"action": "checksum"})
    assert status == 200, reply
    return reply["per_engine_checksum"]


def take(url, store, version, **more):
    return post(url, "/update_weights_from_delta", {"source": store, "weight_version": str(version), **more})


def expect(what, ok, said=""):
    if not ok:
        sys.exit(f"delta.py: {what}: {said}")


def manifest(store, version):
    with open(f"{store}/weight_v{version:06d}.json") as text:
        return json.load(text)


def chunk(store, version):
    return f"{store}/chunks/{manifest(store, version)['chunks'][0]['hash']}"


def flip(path):
    with open(path, "r+b") as f:
        f.seek(os.path.getsize(path) // 2)
        byte = f.read(1)[0]
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte ^ 1]))


def stays(url, before, reply, words):
    """The engine refused, says why, and has what it had."""
    status, body = reply
    expect("not refused", status != 200, body)
    expect("the cause", all(w in body["message"] for w in words), body)
    expect("the version after a refusal", (label(url), sums(url)) == before, (label(url), before))


def newest(store):
    """The last version of an unbroken row that has all its chunks: the copy may have come too late for one."""
    v = -1
    while os.path.exists(f"{store}/weight_v{v + 1:06d}.json") and all(
            os.path.exists(f"{store}/chunks/{c['hash']}") for c in manifest(store, v + 1)["chunks"]):
        v += 1
    return v


def engines(one, two, store):
    last = newest(store)
    refused = again = 0
    seen = {}
    # one version after the other
    for v in range(last + 1):
        status, reply = take(one, store, v, only=v > 0)
        expect(f"version {v}", status == 200 and label(one) == str(v), reply)
        expect(f"steps to version {v}", reply["versions"] == (v > 0), reply)
        seen[v] = sums(one)
    expect("versions differ", len(set(seen.values())) == last + 1, seen)
    # another engine by leaps, forward and back: from what it has, or from the whole one below
    full = max(v for v in range(last) if manifest(store, v)["kind"] == "full")
    expect("a whole version behind the first", full > 0, full)
    take(two, store, 1)
    before = (label(two), sums(two))
    stays(two, before, take(two, store, last, only=True),
          [f"version {last} changes version {last - 1}", "has version 1"])
    refused += 1
    for v in [2, last, 0, full - 1, full, last]:
        status, reply = take(two, store, v)
        expect(f"leap to version {v}", status == 200 and sums(two) == seen[v], reply)
    take(two, store, full)
    before = (label(two), sums(two))
    # a damaged chunk: refused; repaired while the engine looks again: taken
    path = chunk(store, full + 1)
    flip(path)
    stays(two, before, take(two, store, full + 1), ["has hash"])
    refused += 1
    repair = threading.Timer(0.1, flip, [path])
    repair.start()
    status, reply = take(two, store, full + 1)
    repair.join()
    expect("a repaired chunk", status == 200 and reply["fetched_again"] > 0 and sums(two) == seen[full + 1], reply)
    again += reply["fetched_again"]
    # a chunk that is gone, a manifest that is not the one announced, no such version, no such model
    before = (label(two), sums(two))
    shutil.move(path, path + ".away")
    take(two, store, 0)
    before = (label(two), sums(two))
    stays(two, before, take(two, store, full + 1), ["chunks"])
    shutil.move(path + ".away", path)
    stays(two, before, take(two, store, 1, manifest="0" * 32), ["hash"])
    stays(two, before, take(two, store, last + 1000), [f"weight_v{last + 1000:06d}"])
    stays(two, before, take(two, store, "x"), ["weight_version"])
    refused += 4
    status, reply = take(two, store, last)
    expect("the last version", status == 200 and sums(two) == sums(one) == seen[last], reply)
    print(f"refused={refused} repaired={again}")


if __name__ == "__main__":
    if sys.argv[1] == "relay":
        Relay(sys.argv[2], sys.argv[3], int(sys.argv[4])).run()
    else:
        engines(*sys.argv[2:])
