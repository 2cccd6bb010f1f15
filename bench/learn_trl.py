"""The addition recipe in TRL: learn_trl.py MODEL DATA_DIR METRICS.jsonl STEPS SEED

As recipes/add-smollm2.sh: 16 prompts x 8 samples a step, 20 new tokens, lr 3e-5 that falls to nothing
over 150 steps, no KL; f32 weights under bf16 autocast, two threads. Every ten steps (--every) the held-out
pairs are answered greedily. With --save DIR the last step is kept there, and a run with more STEPS goes on
from it. Metrics are written under the names that `miles train` uses, so that tools/plot_curve.py draws
both.
"""
import argparse
import json
import os
import re
import sys
import tempfile
import time

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from datasets import Dataset
from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint
from trl import GRPOConfig, GRPOTrainer

NEW_TOKENS = 20
ALL_STEPS = 150  # of the recipe


def read_rows(path):
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def is_right(text, label):
    numbers = re.findall(r"\d+", text)
    return bool(numbers) and numbers[-1] == label


def reward(completions, label, **_):
    return [float(is_right(c[0]["content"], expected)) for c, expected in zip(completions, label)]


def accuracy(model, tokenizer, rows):
    """Share of the rows whose greedy answer ends in the right number."""
    tokenizer.padding_side = "left"
    texts = [
        tokenizer.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True)
        for row in rows
    ]
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    model.eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        out = model.generate(**batch, max_new_tokens=NEW_TOKENS, do_sample=False)
    model.train()
    answers = tokenizer.batch_decode(out[:, batch.input_ids.shape[1] :], skip_special_tokens=True)
    return sum(is_right(a, row["label"]) for a, row in zip(answers, rows)) / len(rows)


class Recorder(TrainerCallback):
    """Times the steps, evaluates between them, writes both down, and ends the run."""

    def __init__(self, out, args, evaluate):
        self.out, self.args, self.evaluate = out, args, evaluate
        self.seconds, self.accuracy = 0.0, float("nan")

    def record(self, **metrics):
        line = json.dumps({key.replace("__", "/"): value for key, value in metrics.items()})
        self.out.write(line + "\n")
        self.out.flush()
        print(line, file=sys.stderr, flush=True)

    def record_eval(self, step):
        self.accuracy = self.evaluate()
        self.record(eval__step=step, eval__add=self.accuracy)

    def on_step_begin(self, args, state, control, **_):
        self.start = time.perf_counter()

    def on_step_end(self, args, state, control, **_):
        seconds = time.perf_counter() - self.start
        self.seconds += seconds
        self.record(train__step=state.global_step, perf__step_time=seconds)
        if state.global_step % self.args.every == 0:
            self.record_eval(state.global_step)
        if state.global_step >= self.args.steps:
            control.should_training_stop = True
            control.should_save = self.args.save is not None

    def on_log(self, args, state, control, logs=None, **_):
        if logs and "reward" in logs:
            self.record(rollout__step=state.global_step, rollout__raw_reward=logs["reward"])


def keep_rows(path, step):
    """Of an attempt that did not come to its checkpoint the rows behind the last one go."""
    def step_of(row):
        return next(v for k, v in row.items() if k.endswith("/step"))

    rows = [row for row in read_rows(path) if step_of(row) <= step]
    with open(path, "w", encoding="utf-8") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)


def arguments():
    p = argparse.ArgumentParser()
    for name in ("model", "data", "metrics"):
        p.add_argument(name)
    p.add_argument("steps", type=int)
    p.add_argument("seed", type=int)
    p.add_argument("--every", type=int, default=10)
    p.add_argument("--save")
    return p.parse_args()


def main():
    args = arguments()
    torch.set_num_threads(2)
    train = read_rows(os.path.join(args.data, "train.jsonl"))
    test = read_rows(os.path.join(args.data, "test.jsonl"))
    last = get_last_checkpoint(args.save) if args.save and os.path.isdir(args.save) else None
    if last:
        keep_rows(args.metrics, int(last.rsplit("-", 1)[1]))
    with tempfile.TemporaryDirectory() as scratch, open(
        args.metrics, "a" if last else "w", encoding="utf-8"
    ) as out:
        config = GRPOConfig(
            output_dir=args.save or scratch,
            use_cpu=True,
            bf16=True,
            seed=args.seed,
            per_device_train_batch_size=64,
            gradient_accumulation_steps=2,
            num_generations=8,
            max_completion_length=NEW_TOKENS,
            max_steps=ALL_STEPS,
            learning_rate=3e-5,
            lr_scheduler_type="linear",
            adam_beta2=0.99,
            loss_type="grpo",
            beta=0.0,
            gradient_checkpointing=False,
            model_init_kwargs={"dtype": "float32"},
            logging_steps=1,
            report_to="none",
            save_strategy="no",
            save_total_limit=1,
            disable_tqdm=True,
        )
        trainer = GRPOTrainer(
            args.model, reward_funcs=reward, args=config, train_dataset=Dataset.from_list(train)
        )
        recorder = Recorder(
            out, args, lambda: accuracy(trainer.model, trainer.processing_class, test)
        )
        trainer.add_callback(recorder)
        if not last:
            recorder.record_eval(0)
        trainer.train(resume_from_checkpoint=last)
        print(f"trl_accuracy={recorder.accuracy:.2f} trl_train_s={recorder.seconds:.0f}")


if __name__ == "__main__":
    main()
