"""Times GRPO steps in TRL: trl_step.py MODEL PROMPTS.jsonl STEPS

32 samples of 4 prompts, 64 new tokens each, bf16, two threads. Prints one line `step SECONDS` for
each optimizer step, generation, reward, loss, backward and update included.
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

NEW_TOKENS = 64


def reward(completions, label, **_):
    """1 where the last integer of the answer is the label, as recipes/add_reward.py scores it."""
    scores = []
    for completion, expected in zip(completions, label):
        numbers = re.findall(r"\d+", completion[0]["content"])
        scores.append(float(bool(numbers) and numbers[-1] == expected))
    return scores


class StepTimer(TrainerCallback):
    def on_step_begin(self, args, state, control, **_):
        self.start = time.perf_counter()

    def on_step_end(self, args, state, control, **_):
        print("step", time.perf_counter() - self.start, flush=True)


def main():
    model, prompts, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    torch.set_num_threads(2)
    with open(prompts, encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    with tempfile.TemporaryDirectory() as out:
        config = GRPOConfig(
            output_dir=out,
            use_cpu=True,
            bf16=True,
            per_device_train_batch_size=32,
            num_generations=8,
            max_completion_length=NEW_TOKENS,
            generation_kwargs={"min_new_tokens": NEW_TOKENS},
            max_steps=steps,
            learning_rate=1e-6,
            lr_scheduler_type="constant",
            beta=0.0,
            gradient_checkpointing=False,
            model_init_kwargs={"dtype": "bfloat16"},
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = GRPOTrainer(
            model,
            reward_funcs=reward,
            args=config,
            train_dataset=Dataset.from_list(rows),
            callbacks=[StepTimer()],
        )
        trainer.train()


if __name__ == "__main__":
    main()
