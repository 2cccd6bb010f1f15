"""The addition recipe in TRL: learn_trl.py MODEL DATA_DIR METRICS.jsonl STEPS SEED

8 prompts x 16 samples a step, 20 new tokens, lr 2e-5, no KL, f32 weights under bf16 autocast, two
threads. Every ten steps the held-out pairs are answered greedily. Metrics are written under the
names that `miles train` uses, so that tools/plot_curve.py draws both.
"""
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
from trl import GRPOConfig, GRPOTrainer

NEW_TOKENS = 20
EVAL_INTERVAL = 10


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
    """Times the steps, evaluates between them and writes both down."""

    def __init__(self, out, evaluate):
        self.out = out
        self.evaluate = evaluate
        self.seconds = 0.0

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
        if state.global_step % EVAL_INTERVAL == 0:
            self.record_eval(state.global_step)

    def on_log(self, args, state, control, logs=None, **_):
        if logs and "reward" in logs:
            self.record(rollout__step=state.global_step, rollout__raw_reward=logs["reward"])


def main():
    model, data, metrics, steps, seed = sys.argv[1:6]
    torch.set_num_threads(2)
    train = read_rows(os.path.join(data, "train.jsonl"))
    test = read_rows(os.path.join(data, "test.jsonl"))
    with tempfile.TemporaryDirectory() as scratch, open(metrics, "w", encoding="utf-8") as out:
        config = GRPOConfig(
            output_dir=scratch,
            use_cpu=True,
            bf16=True,
            seed=int(seed),
            per_device_train_batch_size=64,
            gradient_accumulation_steps=2,
            num_generations=16,
            max_completion_length=NEW_TOKENS,
            max_steps=int(steps),
            learning_rate=2e-5,
            lr_scheduler_type="constant",
            beta=0.0,
            gradient_checkpointing=False,
            model_init_kwargs={"dtype": "float32"},
            logging_steps=1,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = GRPOTrainer(
            model, reward_funcs=reward, args=config, train_dataset=Dataset.from_list(train)
        )
        recorder = Recorder(
            out, lambda: accuracy(trainer.model, trainer.processing_class, test)
        )
        trainer.add_callback(recorder)
        recorder.record_eval(0)
        trainer.train()
        print(f"trl_accuracy={recorder.accuracy:.2f} trl_train_s={recorder.seconds:.0f}")


if __name__ == "__main__":
    main()
