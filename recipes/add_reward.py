"""Reward of the addition recipe: --custom-rm-path recipes/add_reward.py:last_integer"""
import re


def last_integer(args, sample):
    """1.0 if the last run of digits in the answer is the label, else 0.0."""
    numbers = re.findall(r"\d+", sample.response)
    return 1.0 if numbers and numbers[-1] == str(sample.label) else 0.0
