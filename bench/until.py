"""How far a run of the addition recipe is on its way to a score: until.py METRICS TARGET [LEDGER]

Prints steps, seconds, tokens, score and 1 or 0: whether an evaluation behind the first step has TARGET
percent. Then the figures are those up to it, else those of all steps so far. Seconds are of the steps,
without evaluations and exports; tokens are all that were sampled for training, as the ledger has them.
"""
import json
import os
import sqlite3
import sys

HEAD_BYTES, TOKEN_BYTES = 24, 8  # of an answer in the ledger


def figures(path, target):
    steps, seconds, score = 0, 0.0, 0.0
    with open(path, encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            if "perf/step_time" in row:
                steps += 1
                seconds += row["perf/step_time"] - row.get("perf/export_hf_time", 0.0)
            if "eval/add" in row:
                score = 100 * row["eval/add"]
                if steps and score >= target:
                    return steps, seconds, score, 1
    return steps, seconds, score, 0


def tokens(path, rollouts):
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    answers = db.execute("select sum(length - ?) from answers where eval_set = 0 and rollout < ?",
                         (HEAD_BYTES, rollouts))
    return (answers.fetchone()[0] or 0) // TOKEN_BYTES


def main():
    metrics, target = sys.argv[1], float(sys.argv[2])
    if not os.path.exists(metrics):
        print("0 0 0 0 0")
        return
    steps, seconds, score, reached = figures(metrics, target)
    sampled = tokens(sys.argv[3], steps) if len(sys.argv) > 3 else 0
    print(f"{steps} {seconds:.1f} {sampled} {score:.0f} {reached}")


main()
