#!/usr/bin/env bash
# math_equal against the math-verify package: pairs of answers whose equality is known by construction, and all
# labels of the math sets against themselves, rewritten, and against each other. Each disagreement is judged; the
# table of them is docs/math-grading.md, which `math_verify.sh --write` renews. Last line:
#     pairs=N agree=M disagree=D we_wrong=W we_unknown=U they_wrong=T undecided=0 \
#         miles_formulas=F miles_asked=A miles_wrong=0
# The last three: formulas that Miles would give to sympy's simplify, how many of them our own zero test leaves to
# sympy, and in how many it differs from sympy.
# MATH_PAIRS (5000) and MATH_LABELS (all) bound the work; CI takes less of both. MATH_CACHE names a file that
# keeps what math-verify said between runs.
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
lib_data
lib_python
lib_work

BUILD=${MILES_BUILD:-$ROOT/build}
cmake --build "$BUILD" --target math_pairs >&2
if [ "${CI:-}" = true ]; then
    MATH_PAIRS=${MATH_PAIRS:-460}
    MATH_LABELS=${MATH_LABELS:-150}
fi
"$PYTHON" "$ROOT/tests/live/math_oracle.py" "$BUILD/math_pairs" "$DATA/math" "${MATH_PAIRS:-5000}" \
    "${MATH_LABELS:-0}" "$ROOT/docs/math-grading.md" "$@"
