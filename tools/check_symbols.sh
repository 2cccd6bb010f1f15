#!/usr/bin/env bash
# Checks the global symbols of a build: tools/check_symbols.sh BUILD_DIR
#
# Every global symbol of an object made from src/<folder>/<stem>.c is `<stem>` or starts with
# `<stem>_`, and has hidden visibility; the program exports none of them to the dynamic linker. Where
# a module is spread over files that share `<module>_int.h`, the prefix of `<module>_part.c` is
# `<module>_`. Prints each violation and exits 1.
set -euo pipefail

# stem: further prefixes (ending in _) and whole names that its object may define.
EXCEPTIONS='
status: err_ assert_failed
mem: arena_
thread: pool_
main: main cmd_fail cmd_help
cmd_bench: bench_main bench_now bench_pin
'

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${1:?usage: tools/check_symbols.sh BUILD_DIR}

shopt -s nullglob
objects=("$build"/libmiles_*.a "$build"/CMakeFiles/miles.dir/src/cli/*.o)
if [ ${#objects[@]} = 0 ]; then
    echo "check_symbols.sh: nothing is built in $build" >&2
    exit 1
fi

# Lines "stem visibility name" of all defined global symbols. readelf names an archive's members as
# "File: libmiles_base.a(mem.c.o)" and a lone object's file as "File: .../main.c.o". The empty file
# makes it print the name even when there is only one object.
list_symbols() {
    readelf -sW /dev/null "${objects[@]}" 2>/dev/null | awk '
        /^File: / {
            stem = $2
            sub(/\)$/, "", stem)
            sub(/.*[(\/]/, "", stem)
            sub(/\.c\.o$/, "", stem)
        }
        # Num: Value Size Type Bind Vis Ndx Name
        $1 ~ /^[0-9]+:$/ && ($5 == "GLOBAL" || $5 == "WEAK") && $7 != "UND" && NF >= 8 {
            print stem, $6, $8
        }' | grep -v -E ' _*(odr_)?(asan|ubsan|sanitizer|gcov|llvm)[._]' || true
}

# What the program offers to the dynamic linker, with versions cut off.
list_exports() {
    readelf --dyn-syms -W "$1" | awk '
        $1 ~ /^[0-9]+:$/ && $7 != "UND" && NF >= 8 { sub(/@.*/, "", $8); print $8 }'
}

# The modules that are spread over several files, one a line.
list_modules() {
    find "$root/src" -name '*_int.h' -exec basename {} _int.h ';'
}

symbols=$(list_symbols)
if [ -z "$symbols" ]; then
    echo "check_symbols.sh: no symbols found in $build" >&2
    exit 1
fi
exports=
if [ -x "$build/miles" ]; then
    exports=$(list_exports "$build/miles")
fi

EXCEPTIONS=$EXCEPTIONS EXPORTS=$exports MODULES=$(list_modules) awk '
    function fail(text) {
        print text
        failed = 1
    }
    # True when the name carries the prefix of its file, or of the module that its file is part of.
    function has_prefix(stem, name,    i) {
        if (name == stem || index(name, stem "_") == 1) {
            return 1
        }
        for (i = 1; i <= n_modules; i++) {
            if (index(stem, module[i] "_") == 1 && index(name, module[i] "_") == 1) {
                return 1
            }
        }
        return 0
    }
    BEGIN {
        n_modules = split(ENVIRON["MODULES"], module, "\n")
        n = split(ENVIRON["EXCEPTIONS"], line, "\n")
        for (i = 1; i <= n; i++) {
            m = split(line[i], word, /:? +/)
            for (j = 2; j <= m; j++) {
                allowed[word[1], word[j]] = 1
            }
        }
        n = split(ENVIRON["EXPORTS"], name, "\n")
        for (i = 1; i <= n; i++) {
            exported[name[i]] = 1
        }
    }
    {
        stem = $1
        prefix = $3
        sub(/_.*/, "_", prefix)
        if (!has_prefix(stem, $3) && !((stem, prefix) in allowed) && !((stem, $3) in allowed)) {
            fail(stem ".c: global symbol " $3 " does not start with " stem "_")
        }
        if ($2 != "HIDDEN") {
            fail(stem ".c: global symbol " $3 " is visible outside (" $2 ")")
        }
        if ($3 in exported) {
            fail(stem ".c: the program exports " $3)
        }
    }
    END { exit failed }
' <<<"$symbols"
