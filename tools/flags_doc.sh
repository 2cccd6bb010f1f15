#!/usr/bin/env bash
# Writes docs/flags.md, and the answers in docs/miles-flags.tsv, from the program's tables: tools/flags_doc.sh
#
# With --check it writes nothing and fails when a document is not what the program says. The binary is
# ${MILES_BUILD}/miles, by default build/miles.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
MILES=${MILES_BUILD:-$ROOT/build}/miles

flags() {
    echo "<!-- Made by tools/flags_doc.sh from the option tables: do not edit. -->"
    for command in train replay generate chat serve router "session serve" data diff audit logs report simulate "reward score" "reward serve" sandbox \
        "template render" "template check"; do
        # shellcheck disable=SC2086 # a command may be two words
        "$MILES" $command --help-markdown
        echo
    done | sed '$d'
}

if [ "${1:-}" = --check ]; then
    diff -u "$ROOT/docs/flags.md" <(flags) || {
        echo "docs/flags.md is not current: run tools/flags_doc.sh" >&2
        exit 1
    }
    "$MILES" flags --check "$ROOT/docs/miles-flags.tsv" >/dev/null
else
    flags >"$ROOT/docs/flags.md"
    answers=$("$MILES" flags --tsv "$ROOT/docs/miles-flags.tsv")
    printf '%s\n' "$answers" >"$ROOT/docs/miles-flags.tsv"
fi
