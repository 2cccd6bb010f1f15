#!/usr/bin/env python3
"""What a run of tests/live/engines_sglang.sh has, and what is left of it.

    engines_sglang.py watch PID SEEN [LOG]   until process PID has ended: notes into SEEN every process that
                                             came from it and the shared memory that they mapped. With LOG:
                                             kills SGLang when the log says that it has weights
    engines_sglang.py left SEEN              prints what of it is still there; else how much there was

Processes are found by their parents and told apart by the time they started: SGLang's overwrite their
environment when they give themselves a name.
"""
import json
import os
import re
import signal
import sys
import time


def stat(pid):
    """State, parent and start time; None when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            text = f.read()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return fields[0], int(fields[1]), fields[19]


def tree(root):
    """Process number -> start time of all that come from root, root included."""
    every = {int(p): stat(p) for p in os.listdir("/proc") if p.isdigit()}
    every = {p: s for p, s in every.items() if s}
    found = {root} & set(every)
    while True:
        more = {p for p, s in every.items() if s[1] in found} - found
        if not more:
            return {p: every[p][2] for p in found}
        found |= more


def mapped(pid):
    try:
        with open(f"/proc/{pid}/maps") as f:
            return set(re.findall(r" (/dev/shm/\S+)$", f.read(), re.M))
    except OSError:
        return set()


def kill_engine(log):
    """Kills the command that the guard of engine 0 holds; False while it has no weights."""
    with open(log) as f:
        text = f.read()
    if "weight_sync: the engines have" not in text:
        return False
    guard = int(re.findall(r"engine 0 is process (\d+),", text)[-1])
    for pid, _ in sorted(tree(guard).items()):
        if stat(pid) and stat(pid)[1] == guard:
            os.kill(pid, signal.SIGKILL)
            return True
    return False


def watch(pid, seen_path, log=None):
    seen, shm, killed = {}, set(), log is None
    while (s := stat(pid)) and s[0] != "Z":
        now = tree(pid)
        seen.update(now)
        for p in now:
            shm |= mapped(p)
        for _ in range(20):  # the log is looked at often: a step of a tiny model is over in a second
            killed = killed or kill_engine(log)
            time.sleep(0.1)
    if not killed:
        sys.exit("the run was over before SGLang could be killed")
    with open(seen_path, "w") as f:
        json.dump({"processes": seen, "shm": sorted(shm), "trainer": pid}, f)


def left(seen_path):
    with open(seen_path) as f:
        seen = json.load(f)
    there = [p for p, start in seen["processes"].items() if (s := stat(p)) and s[2] == start]
    there += [path for path in seen["shm"] if os.path.exists(path)]
    if there:
        sys.exit("left: " + " ".join(there))
    print(len(seen["processes"]), len(seen["shm"]))


if sys.argv[1] == "watch":
    watch(int(sys.argv[2]), *sys.argv[3:])
else:
    left(sys.argv[2])
