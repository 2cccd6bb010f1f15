#!/usr/bin/env python3
"""Draws learning curves from metrics files: plot_curve.py OUT.png LABEL=METRICS.jsonl ...

The vertical axis is the held-out score (eval/add, or the name given with --key) in percent, the
horizontal one the minutes of training before it, evaluation not counted; with --steps the number of
steps before it. --raw draws the numbers as they are, on a logarithmic axis with the label --ylabel.
Labels that are equal up to a trailing "#n" share a colour:
`miles#1=a.jsonl miles#2=b.jsonl trl=c.jsonl`. Needs matplotlib.
"""
import argparse
import json

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def read_curve(path, key, steps):
    """(places, values): a value stands at the training time, or the steps, spent before its line."""
    seconds, done, places, values = 0.0, 0, [], []
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            seconds += record.get("perf/step_time", 0.0)
            done += "perf/step_time" in record
            if key in record:
                places.append(done if steps else seconds / 60)
                values.append(record[key])
    if not values:
        raise SystemExit(f"{path}: no {key}")
    return places, values


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("curves", nargs="+", metavar="LABEL=METRICS.jsonl")
    parser.add_argument("--key", default="eval/add")
    parser.add_argument("--title", default="Held-out accuracy, two CPU cores")
    parser.add_argument("--steps", action="store_true")
    parser.add_argument("--raw", action="store_true")
    parser.add_argument("--ylabel")
    args = parser.parse_args()

    colours = {}
    plt.figure(figsize=(7, 4.2), dpi=120)
    for curve in args.curves:
        label, separator, path = curve.partition("=")
        if not separator:
            parser.error(f"{curve}: not LABEL=METRICS.jsonl")
        family = label.partition("#")[0]
        seen = family in colours
        colour = colours.setdefault(family, f"C{len(colours)}")
        places, values = read_curve(path, args.key, args.steps)
        if not args.raw:
            values = [100 * v for v in values]
        plt.plot(places, values, "o-", ms=3, color=colour, label=None if seen else family)
    plt.xlabel("steps" if args.steps else "minutes of training (evaluation not counted)")
    plt.ylabel(args.ylabel or (args.key if args.raw else "percent right"))
    if args.raw:
        plt.yscale("log")
    else:
        plt.ylim(0, 100)
    plt.xlim(left=0)
    plt.grid(alpha=0.3)
    plt.title(args.title)
    plt.legend(loc="upper right" if args.raw else "lower right")
    plt.tight_layout()
    # No date or version in the file: the same curves give the same bytes.
    plt.savefig(args.out, metadata={"Software": None})


if __name__ == "__main__":
    main()
