#!/usr/bin/env python3
"""Publishes weights into running engines and checks what they hold; called by tests/live/wsync.sh.

    wsync.py MILES WSYNC_DEMO MODEL WORK SGLANG_URL

SGLANG_URL may be empty. Prints each failure; the last line is a list of figures.
"""
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request

VERSIONS = 3
ENGINES = 2
LONG_S = 600

checks = 0
failed = []
figures = {}


def check(name, right, what=""):
    global checks
    checks += 1
    if not right:
        failed.append(name)
        print(f"FAIL {name}: {str(what)[:600]}", file=sys.stderr)


def call(url, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=LONG_S) as answer:
            return answer.status, json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as e:
        text = e.read()
        try:
            return e.code, json.loads(text)
        except ValueError:
            return e.code, text.decode(errors="replace")


class Trainer:
    def __init__(self, program, model, folder):
        self.process = subprocess.Popen([program, model, folder, "0"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.fd = int(fields(self.process.stdout.readline())["fd"])
        self.folder = folder

    def say(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().rstrip("\n")

    def must(self, line):
        answer = self.say(line)
        if answer.startswith("error") or not answer:
            raise SystemExit(f"{line}: {answer}")
        return answer

    def request(self, line):
        """(path, body), or None when there is no such request."""
        answer = self.must(line)
        if answer == "end":
            return None
        path, body = answer.split(" ", 1)
        return path, json.loads(body)

    def end(self):
        self.process.stdin.close()
        return self.process.wait(timeout=60)


def fields(line):
    return dict(word.split("=", 1) for word in line.split() if "=" in word)


def serve(miles, model, trainer, work, i):
    """A server over the trainer's memory: its descriptor is opened read-only and passed on."""
    fd = os.open(f"/proc/{trainer.process.pid}/fd/{trainer.fd}", os.O_RDONLY)
    start = time.monotonic()
    with open(f"{work}/engine_{i}.err", "w") as log:
        process = subprocess.Popen(
            [miles, "serve", "--hf-checkpoint", model, "--port", "0", "--weights-fd", str(fd),
             "--sglang-max-total-tokens", "16384"],
            pass_fds=[fd], stdout=subprocess.PIPE, stderr=log, text=True)
    os.close(fd)
    line = process.stdout.readline()
    if "url" not in fields(line):
        raise SystemExit(f"miles serve: {open(log.name).read()}")
    figures[f"start_s_{i}"] = round(time.monotonic() - start, 3)
    return process, fields(line)["url"]


def publish(trainer, kind, urls, version):
    """As a port does it; the seconds of taking and proving on all engines."""
    start = time.monotonic()
    trainer.must(f"{kind} prepare")
    prepared = time.monotonic()
    for url in urls:
        k = 0
        while (request := trainer.request(f"{kind} before {k}")) is not None:
            status, answer = call(url, *request)
            check(f"{kind}.before.{version}", status == 200 and answer.get("success"), answer)
            if status == 200 and kind == "folder":
                checksum = call(url, *trainer.request(f"{kind} check 0"))[1]
                said = trainer.say(f"{kind} judge 0 {json.dumps(checksum)}")
                check(f"{kind}.spoiled", said.startswith("error tensor"), said)
            k += 1
        status, answer = call(url, *trainer.request(f"{kind} take"))
        check(f"{kind}.take.{version}", status == 200 and answer.get("success", True), (status, answer))
    taken = time.monotonic()
    for url in urls:
        k = 0
        while (request := trainer.request(f"{kind} check {k}")) is not None:
            status, answer = call(url, *request)
            said = trainer.say(f"{kind} judge {k} {json.dumps(answer)}")
            check(f"{kind}.proof.{version}", status == 200 and said.startswith("ok"), (status, said))
            k += 1
        check(f"{kind}.proofs.{version}", k > 0)
        info = call(url, "/model_info")[1]
        check(f"{kind}.label.{version}", info["weight_version"] == str(version), info)
    proven = time.monotonic()
    trainer.must(f"{kind} settled")
    figures[f"{kind}_prepare_s"] = round(prepared - start, 3)
    figures[f"{kind}_take_s"] = round(taken - prepared, 3)
    figures[f"{kind}_proof_s"] = round(proven - taken, 3)


def generate(url, seed=5):
    body = {"text": "The capital of France is", "return_logprob": True,
            "sampling_params": {"max_new_tokens": 12, "ignore_eos": True, "temperature": 1.0,
                                "sampling_seed": seed}}
    status, answer = call(url, "/generate", body)
    check("generate", status == 200, answer)
    return answer["meta_info"]["output_token_logprobs"], answer["meta_info"]["weight_version"]


def memory(pid):
    """Bytes of a process: proportional set size, and that of the shared weights alone."""
    whole = weights = 0
    mapping = ""
    for line in open(f"/proc/{pid}/smaps"):
        if "-" in line.split(" ", 1)[0]:
            mapping = line
        elif line.startswith("Pss:"):
            size = int(line.split()[1]) * 1024
            whole += size
            weights += size if "memfd:miles-weights" in mapping else 0
    return whole, weights


def refusals(trainer, urls, version):
    url = urls[0]
    status, answer = call(url, "/update_weights_from_shared", {"weight_version": str(version + 5)})
    check("refused.version", status == 400 and f"version {version}, not {version + 5}" in answer["message"],
          answer)
    status, answer = call(url, "/update_weights_from_disk", {"model_path": "/nowhere"})
    check("refused.disk", status == 400 and "--weights-fd" in answer["message"], answer)
    trainer.must("write 1")
    status, answer = call(url, "/update_weights_from_shared", {"weight_version": str(version)})
    check("refused.writing", status == 503 and "being written" in answer["message"], answer)
    trainer.must("write 0")
    publish(trainer, "shared", urls, version)


def main():
    miles, demo, model, work, sglang = sys.argv[1:6]
    trainer = Trainer(demo, model, f"{work}/weights")
    engines = []
    try:
        engines = [serve(miles, model, trainer, work, i) for i in range(ENGINES)]
        urls = [url for _, url in engines]
        seen = []
        for version in range(VERSIONS + 1):
            publish(trainer, "shared", urls, version)
            if version == 0:
                figures["shared_proof_all_s"] = figures["shared_proof_s"]
            answers = [generate(url) for url in urls]
            check(f"bits.{version}", answers[0] == answers[1], answers)
            check(f"answer.label.{version}", answers[0][1] == str(version), answers[0])
            check(f"new.{version}", answers[0][0] not in seen, "the answer of an earlier version")
            seen.append(answers[0][0])
            if sglang:
                publish(trainer, "folder", [sglang], version)
                check(f"sglang.label.{version}", generate(sglang)[1] == str(version))
                theirs, ours = (call(u, "/weights_checker", {"action": "checksum"})[1]
                                for u in (sglang, urls[0]))
                check(f"sglang.same_sum.{version}",
                      theirs.get("per_engine_checksum") == ours.get("per_engine_checksum"),
                      (theirs.get("per_engine_checksum"), ours.get("per_engine_checksum")))
            if version < VERSIONS:
                trainer.must("step")
        refusals(trainer, urls, VERSIONS)
        sizes = [memory(trainer.process.pid)] + [memory(p.pid) for p, _ in engines]
        figures["weights_pss_mb"] = round(sum(w for _, w in sizes) / 1e6, 1)
        figures["engine_pss_mb"] = round(sizes[1][0] / 1e6, 1)
        figures["engine_weights_pss_mb"] = round(sizes[1][1] / 1e6, 1)
        for process, _ in engines:
            process.terminate()
        for process, _ in engines:
            check("engine.end", process.wait(timeout=60) == 0, process.returncode)
        check("trainer.end", trainer.end() == 0)
        check("nothing.left", not os.listdir(trainer.folder), os.listdir(trainer.folder))
    finally:
        for process in [trainer.process] + [p for p, _ in engines]:
            if process.poll() is None:
                process.kill()
                process.wait()
    print(f"versions={VERSIONS} checks={checks} failed={len(failed)} "
          + " ".join(f"{k}={v}" for k, v in figures.items()))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
