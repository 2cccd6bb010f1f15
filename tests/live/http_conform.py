"""A real client against the HTTP server of src/net: Python's http.client and raw sockets.

    http_conform.py PORT TLS_PORT CERT

Prints each failure; the last line is `checks=N failed=M`. The server is tests/net/http_demo.c.
"""
import concurrent.futures
import http.client
import json
import socket
import ssl
import sys
import time

PORT, TLS_PORT, CERT = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
KEY = {"Authorization": "Bearer sesame"}
checks = failed = 0


def check(name, got, want):
    global checks, failed
    checks += 1
    if got != want:
        failed += 1
        print(f"FAIL {name}: got {got!r}, want {want!r}", file=sys.stderr)


def connect(tls=False):
    if tls:
        return http.client.HTTPSConnection(
            "127.0.0.1", TLS_PORT, timeout=20, context=ssl.create_default_context(cafile=CERT)
        )
    return http.client.HTTPConnection("127.0.0.1", PORT, timeout=20)


def ask(conn, method, path, body=None, headers=KEY, **kw):
    conn.request(method, path, body=body, headers=headers, **kw)
    r = conn.getresponse()
    return r.status, r.read(), r


def basics(tls):
    name = "tls" if tls else "plain"
    c = connect(tls)
    for i in range(5):  # one connection
        status, data, r = ask(c, "GET", "/health", headers={})
        check(f"{name} health", (status, data), (200, b"ok"))
    check(f"{name} kept alive", r.will_close, False)
    status, data, r = ask(c, "HEAD", "/health", headers={})
    check(f"{name} head", (status, data, r.getheader("Content-Length")), (200, b"", "2"))
    for n in (0, 1, 1000, 100_000, 1_000_000):
        body = bytes(i * 7 % 251 for i in range(n))
        check(f"{name} echo {n}", ask(c, "POST", "/echo", body)[:2], (200, body))
        chunks = [body[i : i + 7777] for i in range(0, n, 7777)]
        got = ask(c, "POST", "/echo", iter(chunks), encode_chunked=True,
                  headers={**KEY, "Transfer-Encoding": "chunked"})[:2]
        check(f"{name} chunked {n}", got, (200, body))
    check(f"{name} no key", ask(c, "POST", "/echo", b"x", headers={})[0], 401)
    check(f"{name} wrong key", ask(c, "POST", "/echo", b"x", {"Authorization": "Bearer no"})[0], 401)
    status, data, r = ask(c, "GET", "/none")
    check(f"{name} none", (status, json.loads(data)["error"]["code"]), (404, 404))
    status, _, r = ask(c, "GET", "/echo")
    check(f"{name} method", (status, r.getheader("Allow")), (405, "POST"))
    c.close()
    c = connect(tls)
    check(f"{name} too large", ask(c, "POST", "/echo", bytes(3_000_000))[0], 413)
    c.close()


def stream(tls, n):
    c = connect(tls)
    c.request("POST", "/stream", body=str(n), headers=KEY)
    r = c.getresponse()
    lines = r.read().decode().split("\n\n")
    c.close()
    want = [f'data: {{"token":{i}}}' for i in range(n)] + ["data: [DONE]", ""]
    return r.status, r.getheader("Content-Type"), lines == want


def streams(tls):
    name = "tls" if tls else "plain"
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        for i, got in enumerate(pool.map(lambda i: stream(tls, 20 + i % 50), range(256))):
            check(f"{name} stream {i}", got, (200, "text/event-stream", True))


def raw(data, wait=3.0):
    """What comes back for these bytes, until the server closes or `wait` is over."""
    s = socket.create_connection(("127.0.0.1", PORT), timeout=wait)
    out = b""
    try:
        s.sendall(data)
        while True:
            piece = s.recv(65536)
            if not piece:
                break
            out += piece
    except OSError:
        pass
    s.close()
    return out


def raws():
    old = raw(b"GET /health HTTP/1.0\r\n\r\n")
    check("HTTP/1.0 closes", (old[:12], old[-2:]), (b"HTTP/1.1 200", b"ok"))
    old = raw(b"POST /stream HTTP/1.0\r\nAuthorization: Bearer sesame\r\nContent-Length: 1\r\n\r\n2")
    check("HTTP/1.0 stream is not chunked", (b"chunked" in old.lower(), old[-14:]),
          (False, b"data: [DONE]\n\n"))
    close = raw(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    check("closes when asked", (close[:12], close[-2:]), (b"HTTP/1.1 200", b"ok"))
    two = raw(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 9 +
              b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    check("pipelined", two.count(b"HTTP/1.1 200"), 10)
    go = raw(b"POST /echo HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sesame\r\n"
             b"Expect: 100-continue\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc")
    check("told to go on", (go[:21], go[-3:]), (b"HTTP/1.1 100 Continue", b"abc"))
    for bad in (b"\r\n", b"GARBAGE\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n",
                b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
                b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked"
                b"\r\n\r\n0\r\n\r\n"):
        got = raw(bad, 1.0)
        check(f"refused {bad[:30]!r}", got[:10] in (b"", b"HTTP/1.1 4", b"HTTP/1.0 4"), True)


def gone():
    """Clients that leave in the middle are noticed: the server's count of running streams falls."""
    held = []
    for _ in range(20):
        c = connect()
        c.request("POST", "/stream", body="1000000", headers=KEY)
        r = c.getresponse()
        r.read(10)
        held.append((c, r))
    running = json.loads(ask(connect(), "GET", "/stats")[1])["active"]
    check("streams run", running, 21)  # this very request is one
    for c, r in held:
        r.close()
        c.close()
    end = time.time() + 5
    while running > 1 and time.time() < end:
        running = json.loads(ask(connect(), "GET", "/stats")[1])["active"]
    check("streams ended", running, 1)


for tls in (False, True):
    basics(tls)
    streams(tls)
raws()
gone()
print(f"checks={checks} failed={failed}")
sys.exit(1 if failed else 0)
