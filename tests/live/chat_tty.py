"""`miles chat` in a terminal: chat_tty.py MILES MODEL

Prints in how many pieces an answer came; fails when an answer does not come in pieces, when Ctrl-C does
not end it or ends more than it, or when Ctrl-D does not end the conversation.
"""

import os
import pty
import select
import sys
import time

LIMIT = 300  # seconds for each thing awaited


def main():
    pid, fd = pty.fork()
    if pid == 0:
        os.execv(sys.argv[1], [sys.argv[1], "chat", "--hf-checkpoint", sys.argv[2], "--temperature", "1",
                               "--max-tokens", "8000"])
    seen = b""

    def read(until, what):
        """Reads until `until(text)`; returns the text and how many pieces it came in."""
        nonlocal seen
        end = time.monotonic() + LIMIT
        pieces = 0
        while not until(seen):
            if not select.select([fd], [], [], max(0, end - time.monotonic()))[0]:
                sys.exit(f"chat_tty: waited {LIMIT} s for {what}; so far: {seen[-200:]!r}")
            try:
                got = os.read(fd, 65536)
            except OSError:
                got = b""
            if not got:
                sys.exit(f"chat_tty: the program ended while it was to show {what}: {seen[-200:]!r}")
            seen += got
            pieces += 1
        text, seen = seen, b""
        return text, pieces

    def prompt(text):
        return text.endswith(b"> ")

    read(prompt, "a prompt")
    os.write(fd, b"Write a very long story, as long as you can.\n")
    _, pieces = read(lambda t: len(t) > 150, "an answer")
    os.write(fd, b"\x03")
    text, _ = read(prompt, "a prompt after Ctrl-C")
    os.write(fd, b"\x03")  # where there is no answer: another prompt
    read(prompt, "a prompt after Ctrl-C without an answer")
    os.write(fd, b"/reset\n")
    read(prompt, "a prompt after /reset")
    os.write(fd, b"\xff\n")
    text, _ = read(prompt, "a prompt after bytes that are no text")
    if b"not UTF-8" not in text:
        sys.exit(f"chat_tty: bytes that are no text: {text!r}")
    os.write(fd, b"\x04")
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        try:
            if not os.read(fd, 65536):
                break
        except OSError:
            break
    _, status = os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        sys.exit(f"chat_tty: exit status {status}")
    if pieces < 5:
        sys.exit(f"chat_tty: {pieces} pieces")
    print(pieces)


main()
