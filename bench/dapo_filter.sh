#!/usr/bin/env bash
# Does dynamic sampling pay? bench/dapo_filter.sh: tokens that the addition recipe samples until it knows
# TARGET percent of the held-out sums, with DAPO's filter of groups without a gradient and without it.
#
# With the filter every prompt that is trained on teaches something, and groups that do not are sampled and
# left out; counted are all tokens sampled for training, also those (as the ledger has them), up to the first
# evaluation that has TARGET percent. Environment:
#     SEEDS          seeds; the figures are sums over them      default: 1 2 3
#     TARGET         percent of the 100 held-out sums           default: 80
#     EVERY          rollouts between evaluations               default: 5
#     LIMIT          rollouts at most, up to the recipe's 150   default: 150
#     FILTER         flags of the filtered run                  default: DAPO's filter, partial rollouts
#     DAPO_OUT       folder of the runs                         default: runs/dapo_filter
# Stopped and started again it goes on. Ends with
#     rollouts_filter=.. rollouts_none=.. tokens_filter=.. tokens_none=.. ratio=..   (filter / none)

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

SEEDS=${SEEDS:-1 2 3}
TARGET=${TARGET:-80}
EVERY=${EVERY:-5}
LIMIT=${LIMIT:-150}
OUT=${DAPO_OUT:-runs/dapo_filter}
CHUNK=10 # rollouts of an attempt
read -ra FILTER <<<"${FILTER:---dynamic-sampling-filter-path check_reward_nonzero_std --partial-rollout}"

lib_binary
lib_model

# Sets steps, tokens, score and reached of a run.
look() {
    local run=$OUT/$1-$2/run
    read -r steps _ tokens score reached < <(python3 "$ROOT/bench/until.py" "$run/metrics.jsonl" "$TARGET" \
        "$run/ledger.db")
}

for seed in $SEEDS; do
    for side in none filter; do
        flags=()
        [ $side = none ] || flags=("${FILTER[@]}")
        look $side "$seed"
        while [ "$reached" = 0 ]; do
            [ "$steps" -lt "$LIMIT" ] || lib_die "$side, seed $seed: $score% after $steps rollouts, $tokens tokens"
            SEED=$seed SAVE=$OUT/$side-$seed "$ROOT/recipes/add-smollm2.sh" --eval-interval "$EVERY" \
                --save-interval $CHUNK --debug-exit-after-rollout $((LIMIT - steps < CHUNK ? LIMIT - steps : CHUNK)) \
                "${flags[@]}" >&2
            look $side "$seed"
            lib_say "$side, seed $seed: $score% after $steps rollouts, $tokens tokens"
        done
    done
done

declare -A rollouts_of=([none]=0 [filter]=0) tokens_of=([none]=0 [filter]=0)
for seed in $SEEDS; do
    for side in none filter; do
        look $side "$seed"
        rollouts_of[$side]=$((rollouts_of[$side] + steps))
        tokens_of[$side]=$((tokens_of[$side] + tokens))
    done
done
echo "rollouts_filter=${rollouts_of[filter]} rollouts_none=${rollouts_of[none]}" \
    "tokens_filter=${tokens_of[filter]} tokens_none=${tokens_of[none]}" \
    "ratio=$(awk -v a="${tokens_of[filter]}" -v b="${tokens_of[none]}" 'BEGIN { printf "%.3f", a / b }')"
