#!/usr/bin/env python3
"""Checks the rules that keep the source tree one-way and readable. Prints each violation as
`file:line: cause` and exits 1; prints nothing and exits 0 when there is none.

    tools/layers.py [ROOT]

The rules: a folder of src/ includes only the folders listed for it below; `<stem>_int.h` stays in
its folder; stems are unique and no libc header's name; getenv is called in base/conf.c only, exit
in cli/main.c only; a file has at most 1,500 lines.
"""
import re
import sys
from pathlib import Path

# What each folder lists. A folder marked "+" may also use whatever its listed folders may use.
LISTED = {
    "base": "",
    "num": "base",
    "net": "base",
    "text": "base",
    "comm": "base num",
    "model": "base num comm",
    "engine": "+ model text",
    "train": "+ model",
    "reward": "base text net",
    "rl": "+ engine train reward net",
    "serve": "+ engine net reward",
    "run": "+ rl",
    "sim": "+ run",
    "cli": "+ run serve sim",
}

LIBC_HEADERS = set(
    "assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal "
    "stdalign stdarg stdatomic stdbool stddef stdint stdio stdlib stdnoreturn string tgmath "
    "threads time uchar wchar wctype fcntl poll pthread sched search semaphore spawn strings "
    "syslog termios unistd utime regex glob dirent dlfcn grp pwd netdb".split()
)

MAX_LINES = 1500
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"')
# Comments, strings and character constants, so that words inside them are not taken for calls.
NOISE = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL
)
CALLS = (
    (re.compile(r"(?<![\w.>])(?:secure_)?getenv\s*\("), "base/conf.c", "getenv"),
    (re.compile(r"(?<![\w.>])exit\s*\("), "cli/main.c", "exit"),
)


def allowed(folder):
    """The folders that `folder` may include, itself among them."""
    words = LISTED[folder].split()
    result = {folder, *words} - {"+"}
    if "+" in words:
        for other in words[1:]:
            result |= allowed(other)
    return result


def blank(match):
    """Whitespace in place of a match, with its newlines, so that line numbers stay."""
    return re.sub(r"[^\n]", " ", match.group())


def check_includes(root, path, folder, text):
    for number, line in enumerate(text.split("\n"), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        target = match.group(1)
        where = f"{path.relative_to(root)}:{number}"
        if (root / "include" / target).is_file():
            continue
        other = target.split("/")[0]
        if "/" not in target or other not in LISTED:
            yield f'{where}: "{target}" is not written as folder/file.h from src'
        elif other not in allowed(folder):
            yield f"{where}: folder {folder} may not include {other}"
        elif target.endswith("_int.h") and other != folder:
            yield f"{where}: {target} is internal to {other}"
        elif not (root / "src" / target).is_file():
            yield f"{where}: {target} does not exist"


def check_calls(root, path, text):
    code = NOISE.sub(blank, text)
    inside = path.relative_to(root / "src").as_posix()
    for pattern, home, name in CALLS:
        if inside == home:
            continue
        for match in pattern.finditer(code):
            number = code.count("\n", 0, match.start()) + 1
            yield f"{path.relative_to(root)}:{number}: {name} may only be called in src/{home}"


def check_stem(root, path, seen):
    stem = path.stem.removesuffix("_int")
    where = f"{path.relative_to(root)}:1"
    first = seen.setdefault(stem, path)
    if first.parent != path.parent:
        yield f"{where}: stem {stem} is taken by {first.relative_to(root)}"
    if stem in LIBC_HEADERS:
        yield f"{where}: stem {stem} is the name of a libc header"


def check(root):
    seen = {}
    for path in sorted((root / "src").rglob("*")):
        if path.suffix not in (".c", ".h") or not path.is_file():
            continue
        folder = path.relative_to(root / "src").parts[0]
        if folder not in LISTED:
            yield f"{path.relative_to(root)}:1: folder {folder} is not in the table of layers"
            continue
        text = path.read_text(encoding="utf-8")
        lines = text.count("\n")
        if lines > MAX_LINES:
            yield f"{path.relative_to(root)}:{MAX_LINES + 1}: {lines} lines, {MAX_LINES} at most"
        yield from check_includes(root, path, folder, text)
        yield from check_calls(root, path, text)
        yield from check_stem(root, path, seen)


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)
    violations = list(check(root.resolve()))
    for violation in violations:
        print(violation)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
