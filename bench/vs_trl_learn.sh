#!/usr/bin/env bash
# Who can add first? bench/vs_trl_learn.sh: time to 70% of the held-out sums, here and in TRL.
#
# Both train the addition recipe (recipes/add-smollm2.sh): 16 prompts x 8 samples a step, GRPO, the same
# learning rate, two threads, and evaluate every EVERY steps. They take turns of CHUNK steps, so that what
# else the machine does hits both. Counted are the seconds of the steps up to the first evaluation that has
# TARGET percent; starts, evaluations and checkpoints are not. Environment:
#     SEEDS            seeds; the figures are medians over them    default: 1 2 3
#     TARGET           percent of the 100 held-out sums            default: 70
#     EVERY, CHUNK     steps between evaluations; of a turn        default: 1, 5
#     LIMIT            steps at most, up to the recipe's 150       default: 150
#     VS_TRL_OUT       folder of the runs                          default: runs/vs_trl_learn
# Stopped and started again it goes on with the turn that it was in. Ends with
#     trl_to_70_s=.. miles_to_70_s=.. trl_steps=.. miles_steps=.. time_to_70_speedup=N

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

SEEDS=${SEEDS:-1 2 3}
TARGET=${TARGET:-70}
EVERY=${EVERY:-1}
CHUNK=${CHUNK:-5}
LIMIT=${LIMIT:-150}
OUT=${VS_TRL_OUT:-runs/vs_trl_learn}

lib_binary
lib_model
lib_python
export OMP_NUM_THREADS=2

# turn SIDE SEED STEPS: trains SIDE up to that many steps.
turn() {
    local dir=$OUT/$1-$2
    mkdir -p "$dir"
    case $1 in
    trl)
        python3 "$ROOT/recipes/add_data.py" "$dir/data"
        "$PYTHON" "$ROOT/bench/learn_trl.py" "$MODEL" "$dir/data" "$dir/metrics.jsonl" "$3" "$2" \
            --every "$EVERY" --save "$dir/checkpoint" >>"$dir/log" 2>&1 || {
            tail -n 20 "$dir/log" >&2
            lib_die "TRL failed"
        }
        ;;
    miles)
        SEED=$2 SAVE=$dir "$ROOT/recipes/add-smollm2.sh" --threads 2 --eval-interval "$EVERY" \
            --save-interval "$CHUNK" --save-keep 1 --debug-exit-after-rollout "$CHUNK" >&2
        ln -sf run/metrics.jsonl "$dir/metrics.jsonl"
        ;;
    esac
}

# Sets steps, seconds, score and reached of a side.
look() {
    read -r steps seconds _ score reached < <(python3 "$ROOT/bench/until.py" "$OUT/$1-$2/metrics.jsonl" "$TARGET")
}

for seed in $SEEDS; do
    open=1
    while [ $open = 1 ]; do
        open=0
        for side in trl miles; do
            look "$side" "$seed"
            if [ "$reached" = 0 ]; then
                [ "$steps" -lt "$LIMIT" ] || lib_die "$side, seed $seed: $score% after $steps steps in $seconds s"
                turn "$side" "$seed" $((steps + CHUNK))
                look "$side" "$seed"
                lib_say "$side, seed $seed: $score% after $steps steps in $seconds s"
                open=1
            fi
        done
    done
done

# of SIDE COLUMN: the median over the seeds.
of() {
    for seed in $SEEDS; do
        look "$1" "$seed"
        echo "${!2}"
    done | lib_median
}
trl=$(of trl seconds)
miles=$(of miles seconds)
echo "trl_to_${TARGET}_s=$trl miles_to_${TARGET}_s=$miles trl_steps=$(of trl steps) miles_steps=$(of miles steps)" \
    "time_to_${TARGET}_speedup=$(awk -v a="$trl" -v b="$miles" 'BEGIN { printf "%.2f", a / b }')"
