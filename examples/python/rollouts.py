"""How samples are made: --custom-generate-function-path, --data-source-path,
--rollout-function-path and --eval-function-path."""

import asyncio
import json
import os
import random

from miles.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput
from miles.rollout.data_source import DataSource
from miles.utils.http_utils import post
from miles.utils.types import Sample


async def generate(args, sample, sampling_params):
    """--custom-generate-function-path: two calls of the engine, with a hint between them that the
    policy did not write and does not learn."""
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    half = dict(sampling_params, max_new_tokens=(sampling_params["max_new_tokens"] - 1) // 2)
    for turn in range(2):
        answer = await post(url, {"input_ids": sample.tokens, "sampling_params": half,
                                  "return_logprob": True})
        pairs = answer["meta_info"]["output_token_logprobs"]
        sample.append_response([p[1] for p in pairs], answer["text"], [p[0] for p in pairs])
        if turn == 0:
            sample.append_response(sample.tokens[:1], trained=False)
    sample.update_from_meta_info(args, answer["meta_info"])
    return sample


class Sums(DataSource):
    """--data-source-path: prompts that are made up as they are needed. It keeps its place beside the
    checkpoints, so that a run that goes on gets the prompts that follow."""

    def __init__(self, args):
        super().__init__(args)
        self.groups = self.samples = 0
        self.kept = []

    def get_samples(self, num_samples):
        out = [self.kept.pop(0) for _ in range(min(num_samples, len(self.kept)))]
        while len(out) < num_samples:
            rng = random.Random(self.groups)
            a, b = rng.randint(0, 99), rng.randint(0, 99)
            group = []
            for _ in range(self.args.n_samples_per_prompt):
                group.append(Sample(group_index=self.groups, index=self.samples,
                                    prompt=f"{a}+{b}=", label=str(a + b)))
                self.samples += 1
            self.groups += 1
            out.append(group)
        return out

    def add_samples(self, samples):
        self.kept += samples

    def place(self, rollout_id):
        return os.path.join(self.args.save, f"sums_{rollout_id}.json")

    def save(self, rollout_id):
        with open(self.place(rollout_id), "w") as out:
            json.dump([self.groups, self.samples], out)

    def load(self, rollout_id=None):
        with open(self.place(rollout_id)) as f:
            self.groups, self.samples = json.load(f)


async def one(args, sample, sampling_params):
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    answer = await post(url, {"input_ids": sample.tokens, "sampling_params": sampling_params,
                              "return_logprob": True})
    pairs = answer["meta_info"]["output_token_logprobs"]
    sample.append_response([p[1] for p in pairs], answer["text"], [p[0] for p in pairs])
    sample.update_from_meta_info(args, answer["meta_info"])
    sample.reward = float(len(set(sample.tokens[-sample.response_length:])))
    return sample


class Rollout:
    """--rollout-function-path: whole rollouts, rewards included. Calls the engines with a seed for
    each sample, so that the run can be repeated."""

    def __init__(self, input):
        self.args, self.data_source = input.args, input.data_source

    async def __call__(self, input):
        groups = self.data_source.get_samples(self.args.rollout_batch_size)
        for group in groups:
            await asyncio.gather(*(one(self.args, s, self.params(s.index)) for s in group))
        return RolloutFnTrainOutput(samples=groups, metrics={"groups": len(groups)})

    def params(self, seed):
        return {"temperature": self.args.rollout_temperature, "sampling_seed": seed,
                "max_new_tokens": self.args.rollout_max_response_len}


class Evaluate(Rollout):
    """--eval-function-path: a mean reward for each set of prompts."""

    async def __call__(self, input):
        samples = [Sample(index=i, prompt="", tokens=[1 + i], label=None) for i in range(4)]
        await asyncio.gather(*(one(self.args, s, self.params(s.index)) for s in samples))
        return RolloutFnEvalOutput(data={"mine": {
            "rewards": [s.reward for s in samples],
            "truncated": [s.status == Sample.Status.TRUNCATED for s in samples],
            "samples": samples}})
