"""Tiny tokenizers of the kinds that no vendor's file in the test data has, trained with the package.

write(folder, data) writes them and gives {name: path of a tokenizer.json}.
"""


def write(folder, data):
    return {}
