#!/usr/bin/env bash
# A training step and a prefill in torch + transformers and in miles, in one run: bench/vs_torch.sh
#
# SmolLM2-135M, bf16, two threads. Training: 8 sequences of 256 random tokens, forward, cross-entropy,
# backward, AdamW. Prefill: 8 sequences of 512, logits of the last token. Both sides take turns, ROUNDS
# times (default 3), STEPS steps each after one that warms up; a side's figure is its fastest step, so
# that work beside it on the machine counts for neither.

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

ROUNDS=${ROUNDS:-3}
STEPS=${STEPS:-3}
THREADS=2

lib_binary
lib_model
lib_python
lib_work
export OMP_NUM_THREADS=$THREADS

# torch_turn WHAT BATCH LENGTH: adds its steps, one number a line, to $WORK/torch.WHAT.
torch_turn() {
    "$PYTHON" "$ROOT/bench/torch_step.py" "$MODEL" "$1" "$2" "$3" "$STEPS" \
        >"$WORK/out" 2>"$WORK/err" || {
        tail -n 20 "$WORK/err" >&2
        lib_die "torch failed in $1"
    }
    awk '$1 == "step" { print $2 }' "$WORK/out" >>"$WORK/torch.$1"
}

# miles_turn WHAT BATCH LENGTH: the same for $WORK/miles.WHAT; the program prints its fastest step.
miles_turn() {
    "$MILES" bench model --hf-checkpoint "$MODEL" --run "$1" --batch "$2" --length "$3" \
        --rounds "$STEPS" --threads "$THREADS" >"$WORK/out" 2>"$WORK/err" || {
        tail -n 20 "$WORK/err" >&2
        lib_die "miles failed in $1"
    }
    sed -n "s/^$1_s=\([0-9.]*\) .*/\1/p" "$WORK/out" >>"$WORK/miles.$1"
}

best() {
    sort -g "$1" | head -n 1
}

for round in $(seq "$ROUNDS"); do
    torch_turn train 8 256
    miles_turn train 8 256
    torch_turn prefill 8 512
    miles_turn prefill 8 512
    lib_say "round $round: train torch $(best "$WORK/torch.train") s, miles $(best "$WORK/miles.train") s;" \
        "prefill torch $(best "$WORK/torch.prefill") s, miles $(best "$WORK/miles.prefill") s"
done

for what in train prefill; do
    [ "$(wc -l <"$WORK/torch.$what")" = $((ROUNDS * STEPS)) ] || lib_die "torch did not report all steps"
    [ "$(wc -l <"$WORK/miles.$what")" = "$ROUNDS" ] || lib_die "miles did not report all turns"
done
awk -v tt="$(best "$WORK/torch.train")" -v mt="$(best "$WORK/miles.train")" \
    -v tp="$(best "$WORK/torch.prefill")" -v mp="$(best "$WORK/miles.prefill")" 'BEGIN {
    printf "torch_train_tok_s=%.0f miles_train_tok_s=%.0f torch_prefill_tok_s=%.0f ", 2048 / tt, 2048 / mt, 4096 / tp
    printf "miles_prefill_tok_s=%.0f train_speedup=%.2f prefill_speedup=%.2f\n", 4096 / mp, tt / mt, tp / mp
}'
