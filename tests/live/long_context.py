"""Long prompts to two servers: long_context.py TOKENS URL PID OTHER_URL (see long_context.sh)"""

import json
import random
import sys
import time
import urllib.request

TOKENS, URL, PID, OTHER = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
NEW = 64


def ask(url, path, body=None):
    request = urllib.request.Request(url + path, json.dumps(body).encode() if body is not None else None)
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


def generate(url, ids, n=1):
    out = ask(url, "/generate", {"input_ids": ids, "return_logprob": True, "logprob_start_len": len(ids) - 1,
                                 "sampling_params": {"max_new_tokens": NEW, "ignore_eos": True, "n": n,
                                                     "temperature": 1.0, "sampling_seed": 7}})
    return out if n > 1 else [out]


def what(outs):
    """Tokens and log-probs as the server wrote them."""
    return [(o["output_ids"], o["meta_info"]["output_token_logprobs"]) for o in outs]


def resident():
    with open(f"/proc/{PID}/status", encoding="ascii") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS")) / 1024


def equal(a, b, text):
    if a != b:
        sys.exit(f"long_context.py: {text} differ")


rng = random.Random(1)
checks = 0
before = resident()
seconds = 0.0
for length in (TOKENS - NEW, TOKENS // 2 + 17):
    ids = [rng.randrange(512) for _ in range(length)]
    start = time.monotonic()
    first = generate(URL, ids)
    seconds = seconds or time.monotonic() - start
    if first[0]["meta_info"]["completion_tokens"] != NEW:
        sys.exit(f"long_context.py: {first[0]['meta_info']}")
    again = generate(URL, ids)
    if again[0]["meta_info"]["cached_tokens"] < length - 64:
        sys.exit(f"long_context.py: {again[0]['meta_info']['cached_tokens']} of {length} tokens were cached")
    group = generate(URL, ids, 4) if length + 4 * NEW <= TOKENS else generate(URL, ids)
    equal(what(first), what(again), f"{length} tokens, computed and cached,")
    equal(what(first)[0], what(group)[0], f"{length} tokens, alone and as one of several,")
    equal(what(first), what(generate(OTHER, ids)), f"{length} tokens, two threads and one, other chunks,")
    checks += 4
grown = resident() - before
# 4 layers x 2 x 2 heads x 64 values of 2 bytes a token, twice the context; the rest is a chunk and the JSON.
bound = 2 * TOKENS * 4 * 2 * 2 * 64 * 2 / 1048576 + 96
if grown > bound:
    sys.exit(f"long_context.py: memory grew by {grown:.0f} MiB, more than {bound:.0f}")
try:
    ask(URL, "/generate", {"input_ids": [1] * (TOKENS + 1), "sampling_params": {"max_new_tokens": 1}})
    sys.exit("long_context.py: a prompt beyond the context was taken")
except urllib.error.HTTPError as error:
    if error.code != 400:
        sys.exit(f"long_context.py: a prompt beyond the context: {error.code}")
print(f"tokens={TOKENS} checks={checks} first_answer_s={seconds:.1f} grown_mib={grown:.0f} bound_mib={bound:.0f}")
