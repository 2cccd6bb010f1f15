#!/usr/bin/env bash
# The controller against simulated worlds: tests/live/simulate.sh
#
# SEEDS seeds (default 2000) from FROM (default 0) on keep every promise. Then each bug that can be
# planted is found within 1,000 seeds, and the seed that found it finds it again at the same event.
#
# Ends with one line of figures.

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

SEEDS=${SEEDS:-2000}
FROM=${FROM:-0}
PLANTS=(requeue fsync staleness twice stale gone crawl eval room delta)

lib_binary
lib_work

"$MILES" simulate --seeds "$FROM:$((FROM + SEEDS))" >"$WORK/seeds" || {
    cat "$WORK/seeds"
    lib_die "a seed is broken"
}
tail -n 62 "$WORK/seeds"
read -r seeds violations kinds < <(sed -n 's/^seeds=\([0-9]*\) violations=\([0-9]*\) kinds=\([0-9]*\)$/\1 \2 \3/p' "$WORK/seeds")
[ "$kinds" -ge 20 ] || lib_die "only $kinds kinds of fault were met"

found=0
for plant in "${PLANTS[@]}"; do
    if "$MILES" simulate --seeds 0:1000 --most 1 --plant "$plant" >"$WORK/$plant"; then
        lib_die "the planted bug $plant is not found"
    fi
    line=$(grep -m 1 '^seed ' "$WORK/$plant")
    echo "$plant: $line"
    seed=$(sed -n 's/^seed \([0-9]*\) .*/\1/p' <<<"$line")
    again=$("$MILES" simulate --seed "$seed" --plant "$plant" | grep -m 1 "^seed $seed (" || true)
    [ "$again" = "$line" ] || lib_die "seed $seed does not repeat: $again"
    found=$((found + 1))
done

echo "seeds=$seeds violations=$violations kinds=$kinds planted=${#PLANTS[@]} found=$found"
