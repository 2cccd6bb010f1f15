#!/usr/bin/env bash
# Data files: tests/live/data.sh
#
# tests/live/data.py: Parquet in all variants that pyarrow, datasets and pandas write, JSON lines and
# arrays, gzip and zstd, lists and slices, against Python; orders, epochs and cursors against a model of
# Miles' data source; what is said about bad files. Then a training run that is killed again and again in
# the middle of epochs serves the prompts of one that was not. Last, the time and memory in which
# DATA_ROWS rows (200000 by default; 10000000 needs 3 GB of disk) are opened with shuffling: memory beyond
# that of a small file must stay below 16 bytes a row and 64 MiB. Last line:
#     data_files=N rows=M orders=K messages=J mismatched=0 kills=3 open_rows=R open_s=S open_mib=B

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

DATA_ROWS=${DATA_ROWS:-200000}
ROLLOUTS=12

lib_binary
lib_data
lib_python
lib_work

result=$("$PYTHON" "$ROOT/tests/live/data.py" "$MILES" "$WORK" "$DATA")
lib_say "$result"

# ---- killed in the middle of an epoch ---------------------------------------------------------------

live_tiny "$WORK/model" --family llama --vocab 512
"$PYTHON" - "$WORK/prompts.parquet" <<'PY'
import sys
import pyarrow as pa, pyarrow.parquet as pq

rows = [{"prompt": f"number {i * 37 % 101} and", "label": f"row {i}"} for i in range(30)]
pq.write_table(pa.Table.from_pylist(rows), sys.argv[1], row_group_size=7)
PY

# arguments NAME: sets ARGS for a run whose prompts are kept in NAME.d, one file a rollout.
arguments() {
    mkdir -p "$WORK/$1.d"
    ARGS=(--hf-checkpoint "$WORK/model" --prompt-data "$WORK/prompts.parquet" --input-key prompt --label-key label
        --rollout-shuffle --num-rollout "$ROLLOUTS" --rollout-batch-size 7 --n-samples-per-prompt 2
        --rollout-max-response-len 4 --rm-type f1 --use-dynamic-batch-size --max-tokens-per-gpu 512
        --save "$WORK/$1.ckpt" --load "$WORK/$1.ckpt" --save-interval 1
        --save-debug-rollout-data "$WORK/$1.d/{rollout_id}.jsonl")
}

# prompts_of NAME: numbers, labels and tokens of all samples of the run.
prompts_of() {
    "$PYTHON" - "$WORK/$1.d" $ROLLOUTS <<'PY'
import json, sys

for k in range(int(sys.argv[2])):
    for line in open(f"{sys.argv[1]}/{k}.jsonl"):
        s = json.loads(line)
        if "index" in s:
            print(k, s["group_index"], s["index"], s["label"], s["tokens"])
PY
}

arguments whole
lib_train "$WORK/whole.run" "${ARGS[@]}"
arguments cut
kills=0
for after in 2 5 9; do
    "$MILES" train --run-dir "$WORK/cut.run" "${ARGS[@]}" >"$WORK/cut.log" 2>&1 &
    pid=$!
    lib_ends $pid
    for _ in $(seq 3000); do
        [ ! -f "$WORK/cut.d/$after.jsonl" ] || break
        kill -0 $pid 2>/dev/null || break
        sleep 0.02
    done
    kill -KILL $pid 2>/dev/null || { tail -n 20 "$WORK/cut.log" >&2 && lib_die "the run ends too early"; }
    wait $pid 2>/dev/null || true
    kills=$((kills + 1))
done
lib_train "$WORK/cut.run" "${ARGS[@]}"
live_equal "prompts of the killed run" "$(prompts_of whole | sha256sum)" "$(prompts_of cut | sha256sum)"
[ "$(prompts_of whole | wc -l)" = $((ROLLOUTS * 14)) ] || lib_die "samples are missing"

# ---- many rows --------------------------------------------------------------------------------------

"$PYTHON" - "$DATA/gsm8k/train_rl.jsonl" "$WORK/many.jsonl" "$DATA_ROWS" <<'PY'
import sys

lines = open(sys.argv[1]).readlines()
left = int(sys.argv[3])
with open(sys.argv[2], "w") as out:
    while left > 0:
        out.writelines(lines[:left])
        left -= len(lines[:left])
PY

# opened FILE: seconds and MiB.
opened() {
    "$MILES" data --prompt-data "$1" --input-key prompt --label-key label --rollout-shuffle --show 100 --brief \
        2>&1 >/dev/null | sed -n 's/.*rows=\([0-9]*\) .*seconds=\([0-9.]*\) resident_mib=\([0-9.]*\).*/\1 \2 \3/p'
}

read -r _ _ base <<<"$(opened "$WORK/many.jsonl@[:1000]")"
read -r rows seconds mib <<<"$(opened "$WORK/many.jsonl")"
live_equal "rows" "$rows" "$DATA_ROWS"
python3 -c 'import sys; r, b, m = map(float, sys.argv[1:]); sys.exit(m - b > 16 * r / 1048576 + 64)' \
    "$rows" "$base" "$mib" || lib_die "$rows rows take $mib MiB, a few take $base"
echo "$result kills=$kills open_rows=$rows open_s=$seconds open_mib=$mib"
