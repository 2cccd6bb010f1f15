#!/usr/bin/env bash
# recipes/add-smollm2.sh in one process and with engines behind a router: tests/live/recipe_router.sh
#
# STEPS steps (default 2; 40 and more by hand) of the addition recipe with SmolLM2, once with the engine in the
# process and once with two `miles serve` engines behind `miles router`. In every step rollout and trainer must differ
# by exactly 0, and the two exports must be the same bytes. Ends with one line of figures.

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

STEPS=${STEPS:-2}

lib_binary
lib_model
lib_work

# recipe NAME FLAGS...: a run of the recipe in $WORK/NAME.
recipe() {
    local name=$1
    shift
    SAVE=$WORK/$name "$ROOT/recipes/add-smollm2.sh" --num-rollout "$STEPS" --save-interval "$STEPS" \
        --skip-eval-before-train "$@" >"$WORK/$name.out" 2>&1 &
    lib_ends $!
    wait $! || {
        tail -n 40 "$WORK/$name.out" >&2
        lib_die "the recipe failed: $name"
    }
}

recipe in-process
recipe router --rollout-num-gpus 2 --use-miles-router --sglang-router-policy round_robin

for name in in-process router; do
    live_equal "steps of $name with a difference of 0" \
        "$(lib_metric "$WORK/$name/run" train/forward_logp_max_diff | grep -cE '^0(\.0*)?$')" "$STEPS"
done
sha() {
    sha256sum "$WORK/$1/hf/model.safetensors" | cut -d ' ' -f 1
}
live_equal "weights with a router" "$(sha router)" "$(sha in-process)"
accuracy() {
    lib_metric "$WORK/router/run" eval/add | tail -n 1
}
live_equal "accuracy at the end" "$(accuracy)" "$(lib_metric "$WORK/in-process/run" eval/add | tail -n 1)"
echo "steps=$STEPS forward_logp_max_diff=0 weights_equal=1 accuracy=$(accuracy) sha=$(sha router | cut -c 1-12)"
