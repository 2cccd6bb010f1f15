"""Python programs in sandboxes, for the tools of agents: one `miles sandbox` for the process.

    box = Sandbox(args.miles_program)
    text = await box.run("print(6 * 7)")         # "42\\n", or what went wrong

Nothing that a program does reaches the machine: no network, no files, bounded time and memory."""

import asyncio
import itertools
import json
import subprocess
import threading


class Sandbox:
    def __init__(self, program="miles", *flags):
        self.program, self.flags = program, flags
        self.lock, self.ids = threading.Lock(), itertools.count(1)
        self.process, self.waiting = None, {}

    def start(self):
        self.process = subprocess.Popen([self.program, "sandbox", *self.flags], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self.read, args=(self.process,), daemon=True).start()

    def read(self, process):
        for line in process.stdout:
            answer = json.loads(line)
            with self.lock:
                done = self.waiting.pop(answer["id"], None)
            if done:
                done(answer)
        with self.lock:
            left, self.waiting = list(self.waiting.values()), {}
            self.process = None
        for done in left:
            done({"verdict": "failed", "output": "", "reason": "the sandbox has ended"})

    def submit(self, code, done):
        with self.lock:
            if self.process is None:
                self.start()
            n = next(self.ids)
            self.waiting[n] = done
            self.process.stdin.write(json.dumps({"id": n, "code": code}) + "\n")
            self.process.stdin.flush()

    async def run(self, code):
        """What the program printed; behind it the reason, when it did not end well."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()

        def done(answer):
            loop.call_soon_threadsafe(lambda: future.done() or future.set_result(answer))

        self.submit(code, done)
        answer = await future
        if answer["verdict"] == "failed":
            raise RuntimeError("sandbox: " + answer["reason"])
        if answer["verdict"] == "passed":
            return answer["output"]
        return answer["output"] + answer["reason"]
