"""--custom-agent-function-path: an agent with the `openai` client and a sandboxed Python tool.

The policy is asked for a Python expression, the sandbox computes it, and the policy reads the result and
answers. Everything that it writes is trained; what the tool says is not."""

import re

import openai

from miles_c.sandbox import Sandbox

ASK = ("{question}\nFirst write the calculation as a Python expression, and nothing else. "
       "Example: for 'What is 3 times 4?' write 3*4")
TELL = "The result is {result}\nNow answer the question with the number only."
SAFE = re.compile(r"[0-9+\-*/%(). ]{1,40}")

box = client = None  # one of each for the process


def expression(text):
    """The longest piece of the answer that is arithmetic; None when there is none."""
    pieces = [p.strip() for p in SAFE.findall(text or "") if re.search(r"\d\s*[+\-*/%]", p)]
    return max(pieces, key=len) if pieces else None


async def calculate(args, text):
    """What the sandbox makes of it: a number, or the words for an error."""
    global box
    box = box or Sandbox(args.miles_program, "--workers", "2")
    piece = expression(text)
    if piece is None:
        return "error: no expression"
    out = (await box.run("print(%s)" % piece)).strip().splitlines()
    return out[-1][:40] if out else "error: nothing was printed"


def policy(base_url):
    """The session's endpoint. All sessions share the connections: a client of its own for each would
    load the certificates each time."""
    global client
    client = client or openai.DefaultAsyncHttpxClient(timeout=120.0)
    return openai.AsyncOpenAI(base_url=base_url + "/v1", api_key="none", max_retries=0,
                              timeout=120.0, http_client=client).chat.completions


async def run(base_url, prompt, request_kwargs, metadata, label, args, evaluation=False):
    """One sample: two answers of the policy with the tool between them. In training, a right
    calculation is worth something by itself; an evaluation counts right answers."""
    ask = policy(base_url).create
    kwargs = dict(request_kwargs, model="policy", max_tokens=24)
    messages = [{"role": "user", "content": ASK.format(question=prompt[-1]["content"])}]
    first = (await ask(messages=messages, **kwargs)).choices[0]
    if first.finish_reason != "stop":
        return {"reward": 0.0, "tool": None}
    result = await calculate(args, first.message.content)
    messages += [first.message.model_dump(exclude_none=True),
                 {"role": "user", "content": TELL.format(result=result)}]
    second = (await ask(messages=messages, **kwargs)).choices[0]
    numbers = re.findall(r"-?\d+", second.message.content or "")
    right = bool(numbers) and numbers[-1] == str(label)
    step = 0.0 if evaluation else 0.25 * (result == str(label))
    return {"reward": float(right) + step, "tool": result}
