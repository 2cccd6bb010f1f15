# shellcheck shell=bash
# What the scripts of tests/live share, on top of bench/lib.sh (read its head for the environment).
#
#     . "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
#     lib_binary; lib_python; lib_work
#     live_tiny "$WORK/model" --family llama --vocab 512

# shellcheck source=../../bench/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../../bench/lib.sh"

# live_tiny DIR ARGS...: a tiny random model in DIR, made by tools/tiny_model.py. Needs lib_python.
live_tiny() {
    local dir=$1
    shift
    "$PYTHON" "$ROOT/tools/tiny_model.py" "$dir" "$@" >&2
}

# live_equal WHAT A B: ends the script when A and B differ.
live_equal() {
    [ "$2" = "$3" ] || lib_die "$1: $2 and $3 differ"
}
