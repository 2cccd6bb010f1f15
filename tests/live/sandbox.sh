#!/usr/bin/env bash
# Hostile programs against the sandbox (sandbox.py): the network, system calls, files, processes,
# memory, time, the harness; each held for the right reason, with the same program outside as a control
# where that does no harm. As root everything runs a second time as an ordinary user. Last line:
#     escapes=0 attempts=N controls=C left=0
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
lib_work

BUILD=${MILES_BUILD:-$ROOT/build}
cmake --build "$BUILD" --target sandbox_demo >&2
command -v bwrap >/dev/null || lib_die "no bubblewrap: tools/setup.sh build"
PYTHON=/usr/bin/python3
[ -x $PYTHON ] || PYTHON=$(python3 -c 'import sys; print(sys.executable)')
# The other user must be able to reach what it runs.
chmod 755 "$WORK"
install -m 755 "$BUILD/sandbox_demo" "$WORK/demo"

total_attempts=0
total_controls=0
# attack UID: all attempts as that user, in a folder of its own.
attack() {
    local dir=$WORK/as-$1 line
    mkdir -m 777 "$dir"
    chmod 777 "$dir"
    if ! line=$(timeout 800 python3 "$ROOT/tests/live/sandbox.py" "$WORK/demo" "$PYTHON" "$dir" "$1"); then
        lib_die "as user $1: $line"
    fi
    lib_say "as user $1: $line"
    [[ $line =~ ^escapes=0\ attempts=([0-9]+)\ controls=([0-9]+)\ left=0$ ]] || lib_die "unexpected: $line"
    total_attempts=$((total_attempts + BASH_REMATCH[1]))
    total_controls=$((total_controls + BASH_REMATCH[2]))
}

attack "$(id -u)"
if [ "$(id -u)" = 0 ]; then
    attack 12345
fi
[ $total_attempts -ge 40 ] || lib_die "only $total_attempts attempts"
echo "escapes=0 attempts=$total_attempts controls=$total_controls left=0"
