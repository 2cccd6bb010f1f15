"""What the prefix cache spares, to the token: prefix_cache.py URL MODEL

Expects a fresh `miles serve` with chunks of 512. Every `cached_tokens` is compared with a number that is
worked out here, and the rows that the server has computed with the sum of what was not cached.
"""
import asyncio
import json
import random
import sys
import time
from pathlib import Path

import jinja2
import tokenizers

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import aclient  # noqa: E402

MODEL = Path(sys.argv[2])
CLIENT = aclient.Client(sys.argv[1])
CHUNK, PAGE, LENGTH, SAMPLES = 512, 64, 2000, 64
CHECKS = 0


def check(what, found, expected):
    global CHECKS
    if found != expected:
        sys.exit(f"prefix_cache.py: {what}: {found}, expected {expected}")
    CHECKS += 1


async def generate(ids, new=4, n=1, **more):
    params = {"max_new_tokens": new, "n": n, "temperature": 1.0, "ignore_eos": True}
    answer = await CLIENT.post("/generate", {"input_ids": ids, "sampling_params": params, **more})
    if answer.status != 200:
        sys.exit(f"prefix_cache.py: {answer.status} {answer.body}")
    o = answer.json()
    return o if isinstance(o, list) else [o]


def cached(answers):
    return [o["meta_info"]["cached_tokens"] for o in answers]


async def flush():
    check("flush", (await CLIENT.post("/flush_cache", None)).status, 200)


async def rows():
    m = await settled(lambda m: m["num_running_reqs"] == 0)
    return int(m["prompt_rows_total"] + m["decode_rows_total"])


async def settled(ready):
    """The metrics, once they say what is waited for: they are told after each step."""
    for _ in range(3000):
        m = await CLIENT.metrics()
        if ready(m):
            return m
        await asyncio.sleep(.01)
    sys.exit(f"prefix_cache.py: waited in vain: {m}")


def cost(answers):
    """Rows that the answers must have needed: a new token's row is computed when the next is wanted."""
    return sum(o["meta_info"]["prompt_tokens"] - o["meta_info"]["cached_tokens"] + len(o["output_ids"]) - 1
               for o in answers)


async def separate(ids, new):
    """As many requests with one prompt, all of them there before the first is begun."""
    await CLIENT.post("/pause_generation", {"mode": "in_place"})
    asked = [asyncio.create_task(generate(ids, new)) for _ in range(SAMPLES)]
    await settled(lambda m: m["num_queue_reqs"] == SAMPLES)
    start = time.monotonic()
    await CLIENT.post("/continue_generation", {})
    answers = [o for one in await asyncio.gather(*asked) for o in one]
    return answers, time.monotonic() - start


def expect_separate():
    """The first request computes the prompt. What its last step leaves of a chunk goes to others, who find its
    whole pages, though not yet the rest; those after them find everything but the last row."""
    whole, room, out = (LENGTH - 1) // PAGE * PAGE, -LENGTH % CHUNK, [0]
    while room > 0:
        out.append(whole)
        room -= LENGTH - whole
    return sorted(out + [LENGTH - 1] * (SAMPLES - len(out)))


async def samples(ids):
    """64 samples of one prompt, in one request and in 64."""
    await flush()
    before = await rows()
    one = await generate(ids)
    check("a new prompt", cached(one), [0])
    check("rows of one sample", await rows() - before, LENGTH + 3)
    check("the same prompt", cached(await generate(ids)), [LENGTH - 1])

    await flush()
    before = await rows()
    group = await generate(ids, n=SAMPLES)
    check("samples of a group", cached(group), [0] + [LENGTH - 1] * (SAMPLES - 1))
    check("rows of a group", await rows() - before, LENGTH + (SAMPLES - 1) + 3 * SAMPLES)
    check("what a group says of its cost", cost(group), LENGTH + (SAMPLES - 1) + 3 * SAMPLES)

    await flush()
    before = await rows()
    answers, _ = await separate(ids, 4)
    check("separate requests", sorted(cached(answers)), expect_separate())
    check("rows of separate requests", await rows() - before, cost(answers))


async def times(ids):
    """Ratios of minima, measured by turns: the group and the separate requests over one sample."""
    best = {"one": 1e9, "group": 1e9, "separate": 1e9}
    for _ in range(3):
        for name in best:
            await flush()
            start = time.monotonic()
            if name == "separate":
                spent = (await separate(ids, 1))[1]
            else:
                await generate(ids, new=1, n=SAMPLES if name == "group" else 1)
                spent = time.monotonic() - start
            best[name] = min(best[name], spent)
    print(f"seconds: {best}", file=sys.stderr)
    return best["group"] / best["one"], best["separate"] / best["one"]


async def parts(ids, rng):
    """Other prompts that begin alike, and responses that are gone on with."""
    await flush()
    first = await generate(ids, new=8)
    said = first[0]["output_ids"]
    check("what a response leaves", cached(await generate(ids + said + [5, 6, 7])), [LENGTH + len(said) - 1])
    for n in (1000, 1024, 63, 64, 65, 1):
        tail = [(t + 1) % 40000 + 3 for t in ids[n:n + 5]] + [rng.randrange(3, 40000) for _ in range(20)]
        check(f"{n} tokens in common", cached(await generate(ids[:n] + tail)), [n])
    for start in (700, 0, LENGTH - 1):
        # the rows from `start` on give log-probs, so they are computed
        check(f"log-probs from {start} on",
              cached(await generate(ids, return_logprob=True, logprob_start_len=start)), [start])


async def chat():
    """A conversation: each turn finds the turns before it. The history's tokens are made with other programs."""
    tokenizer = tokenizers.Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    config = json.loads((MODEL / "tokenizer_config.json").read_text())
    file = MODEL / "chat_template.jinja"
    template = jinja2.Environment().from_string(file.read_text() if file.exists() else config["chat_template"])
    questions = ["Name three rivers of Europe.", "Which of them is the longest?", "Where does it begin?",
                 "And where does it end?", "Say that in one word.", "Thank you."]
    messages, known, last = [], [], 0
    await flush()
    for turn, question in enumerate(questions):
        messages.append({"role": "user", "content": question})
        text = template.render(messages=messages, add_generation_prompt=True)
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        body = {"messages": messages, "temperature": 0, "max_tokens": 40}
        answer = (await CLIENT.post("/v1/chat/completions", body)).json()
        usage = answer["usage"]
        check(f"tokens of turn {turn}", usage["prompt_tokens"], len(ids))
        found = usage["prompt_tokens_details"]["cached_tokens"]
        check(f"cached in turn {turn}", found, min(common(ids, known), len(ids) - 1))
        if turn and found <= last:
            sys.exit(f"prefix_cache.py: turn {turn} found {found} tokens, the one before {last}")
        last = found
        # The same tokens once more, to know them: greedy answers are the same.
        asked = {"input_ids": ids, "sampling_params": {"temperature": 0, "max_new_tokens": 40}}
        said = (await CLIENT.post("/generate", asked)).json()
        known.append((ids + said["output_ids"])[:-1])
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
    return len(questions), last


def common(ids, known):
    best = 0
    for other in known:
        n = 0
        while n < min(len(ids), len(other)) and ids[n] == other[n]:
            n += 1
        best = max(best, n)
    return best


async def emptied(ids):
    """What empties the cache."""
    await generate(ids)
    check("before the flush", cached(await generate(ids)), [LENGTH - 1])
    await flush()
    m = await settled(lambda m: m["num_running_reqs"] == 0 and m["kv_pages_cached"] == 0)
    check("pages free after the flush", m["kv_pages_free"], m["kv_pages"])
    check("after the flush", cached(await generate(ids)), [0])
    check("before the update", cached(await generate(ids)), [LENGTH - 1])
    answer = await CLIENT.post("/update_weights_from_disk", {"model_path": str(MODEL), "weight_version": "2"})
    check("update", answer.status, 200)
    check("after the update", cached(await generate(ids)), [0])
    check("again", cached(await generate(ids)), [LENGTH - 1])
    check("version", (await generate(ids))[0]["meta_info"]["weight_version"], "2")


async def main():
    rng = random.Random(1)
    ids = [rng.randrange(3, 40000) for _ in range(LENGTH)]
    await samples(ids)
    group, apart = await times(ids)
    await parts(ids, rng)
    turns, history = await chat()
    await emptied(ids)
    if group > 2 or apart > 2:
        sys.exit(f"prefix_cache.py: {SAMPLES} samples take {group:.2f} and {apart:.2f} times as long as one")
    print(f"cached_checks={CHECKS} chat_turns={turns} chat_cached={history} group_time_ratio={group:.2f} "
          f"separate_time_ratio={apart:.2f}")


asyncio.run(main())
