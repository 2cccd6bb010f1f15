"""A small HTTP/1.1 client over asyncio, for tests that need many connections and odd behaviour.

    c = aclient.Client("http://127.0.0.1:30000")
    answer = await c.post("/generate", {...})          answer.status, answer.body, answer.json()
    async for event in c.events("/generate", {...}):   text of each server-sent event; break to hang up

and what scripts need to run a server of their own:

    s = aclient.Server([miles, "serve", ...], log)     s.url; s.kill() is SIGKILL, s.stop() SIGTERM

One connection a request: whoever closes it has hung up. Only the standard library.
"""
import asyncio
import atexit
import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import time
import urllib.parse


class Refused(Exception):
    """The answer to a streamed request was no stream."""

    def __init__(self, status, body):
        super().__init__(f"{status} {body[:300]!r}")
        self.status, self.body = status, body


class Gone(ConnectionError):
    """The connection ended before the answer did."""


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)


def raise_files():
    """As many open files as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard > 0 else 65536, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class Client:
    def __init__(self, url, key=None, limit=1 << 26):
        at = urllib.parse.urlsplit(url)
        self.host, self.port, self.key, self.limit = at.hostname, at.port, key, limit

    def head(self, method, path, size, extra=""):
        auth = f"Authorization: Bearer {self.key}\r\n" if self.key else ""
        return (f"{method} {path} HTTP/1.1\r\nHost: {self.host}\r\nConnection: close\r\n{auth}"
                f"Content-Type: application/json\r\nContent-Length: {size}\r\n{extra}\r\n").encode()

    async def open(self, method, path, body, rcvbuf=0):
        """Sends a request; the connection's reader and writer."""
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        if rcvbuf:
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, (self.host, self.port))
            reader, writer = await asyncio.open_connection(sock=sock, limit=4096)
        else:
            reader, writer = await asyncio.open_connection(self.host, self.port, limit=self.limit)
        try:
            writer.write(self.head(method, path, len(data)) + data)
            await writer.drain()
        except BaseException:
            writer.close()
            raise
        return reader, writer

    @staticmethod
    async def answer_head(reader):
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            raise Gone("no answer") from error
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        return int(first.split()[1]), headers

    @staticmethod
    async def pieces(reader, headers):
        """The body as it comes."""
        try:
            if headers.get("transfer-encoding", "").lower() == "chunked":
                while True:
                    size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
                    data = await reader.readexactly(size + 2)
                    if size == 0:
                        return
                    yield data[:-2]
            else:
                left = int(headers.get("content-length", "0"))
                while left > 0:
                    data = await reader.read(min(left, 1 << 16))
                    if not data:
                        raise Gone("the body is cut")
                    left -= len(data)
                    yield data
        except asyncio.IncompleteReadError as error:
            raise Gone("the body is cut") from error

    async def request(self, method, path, body=None):
        reader, writer = await self.open(method, path, body)
        try:
            status, headers = await self.answer_head(reader)
            parts = [p async for p in self.pieces(reader, headers)]
            return Answer(status, headers, b"".join(parts))
        finally:
            writer.close()

    async def get(self, path):
        return await self.request("GET", path)

    async def post(self, path, body):
        return await self.request("POST", path, body)

    async def events(self, path, body, rcvbuf=0, pause=0.0):
        """Texts of the events, [DONE] included. pause: seconds that a slow reader takes for each read."""
        reader, writer = await self.open("POST", path, body, rcvbuf)
        try:
            status, headers = await self.answer_head(reader)
            if not headers.get("content-type", "").startswith("text/event-stream"):
                parts = [p async for p in self.pieces(reader, headers)]
                raise Refused(status, b"".join(parts))
            rest = b""
            async for piece in self.pieces(reader, headers):
                rest += piece
                while b"\n\n" in rest:
                    event, rest = rest.split(b"\n\n", 1)
                    if event.startswith(b"data: "):
                        yield event[6:].decode()
                if pause:
                    await asyncio.sleep(pause)
        finally:
            writer.close()

    async def metrics(self):
        """Values of /metrics by name, without histograms' buckets."""
        out = {}
        for line in (await self.get("/metrics")).body.decode().splitlines():
            if not line.startswith("#") and "le=" not in line:
                name, _, value = line.rpartition(" ")
                out[name.split("{")[0].removeprefix("sglang:")] = float(value)
        return out


class Server:
    """A `miles serve` of this script's own; its log is appended to the file."""

    def __init__(self, argv, log, wait_s=300):
        self.log = open(log, "ab")
        self.child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=self.log)
        self.url = None
        atexit.register(self.kill)
        end = time.monotonic() + wait_s
        os.set_blocking(self.child.stdout.fileno(), False)
        said = b""
        while self.url is None:
            said += self.child.stdout.read() or b""
            for line in said.decode().splitlines():
                if line.startswith("ready url=") and "context=" in line:
                    self.url = line.split()[1].removeprefix("url=")
            if self.child.poll() is not None or time.monotonic() > end:
                self.kill()
                raise SystemExit(f"the server does not start: {open(log).read()[-2000:]}")
            time.sleep(0.02)

    @property
    def pid(self):
        return self.child.pid

    def end(self, how):
        if self.child.poll() is None:
            self.child.send_signal(how)
        return self.child.wait(120)

    def kill(self):
        return self.end(signal.SIGKILL)

    def stop(self):
        return self.end(signal.SIGTERM)
