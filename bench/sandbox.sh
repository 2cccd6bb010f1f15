#!/usr/bin/env bash
# How many short programs the sandbox runs in a second, each in a sandbox of its own: two workers, the
# program reads two numbers and prints their sum. Last line:
#     sandbox_per_second=N native_per_second=M
# SECONDS_EACH (10) is how long each kind runs.
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
lib_work

BUILD=${MILES_BUILD:-$ROOT/build}
cmake --build "$BUILD" --target sandbox_demo >&2
cat >"$WORK/add.py" <<'PY'
a, b = map(int, input().split())
print(a + b)
PY
cat >"$WORK/add.c" <<'C'
#include <stdio.h>
int main(void) { int a, b; return scanf("%d %d", &a, &b) != 2 || printf("%d\n", a + b) < 0; }
C
cc -O1 -o "$WORK/add" "$WORK/add.c"
PYTHON=/usr/bin/python3
[ -x $PYTHON ] || PYTHON=$(python3 -c 'import sys; print(sys.executable)')

# rate KIND FILE
rate() {
    local line
    line=$("$BUILD/sandbox_demo" --workers 2 --python "$PYTHON" --bench "${SECONDS_EACH:-10}" "$2" "$1")
    lib_say "$1: $line"
    line=${line#rate=}
    echo "${line%% *}"
}
python_rate=$(rate python "$WORK/add.py")
native_rate=$(rate native "$WORK/add")
echo "sandbox_per_second=$python_rate native_per_second=$native_rate"
