"""The openai package against `miles serve`, unchanged: openai_client.py URL KEY SCRIPTED_URL

URL serves SmolLM2, SCRIPTED_URL the model of scripted_model.py with parsers for tools and reasoning. Prints
openai=VERSION openai_checks=N at the end; the first check that fails ends it.
"""
import asyncio
import json
import math
import sys
import time

import openai
import pydantic

URL, KEY, SCRIPTED = sys.argv[1:4]
CHECKS = 0


def check(ok, what):
    global CHECKS
    if not ok:
        sys.exit(f"openai_client.py: {what}")
    CHECKS += 1


def raises(kind, what, call):
    try:
        call()
    except kind as error:
        check(type(error) is kind, f"{what}: {type(error).__name__}")
        return error
    return check(False, f"{what}: no error")


def chat(client, model):
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    ask = {"model": model, "messages": messages, "max_tokens": 16, "temperature": 0}
    whole = client.chat.completions.create(**ask)
    choice = whole.choices[0]
    check(whole.object == "chat.completion" and whole.model == model, "chat: head")
    check(choice.message.content and choice.message.role == "assistant", choice)
    check(choice.finish_reason in ("stop", "length"), choice.finish_reason)
    check(whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens, whole.usage)
    check(whole.usage.prompt_tokens_details.cached_tokens >= 0, "cached tokens")
    again = client.chat.completions.create(**ask)
    check(again.choices[0].message.content == choice.message.content, "greedy answers differ")
    check(again.usage.prompt_tokens_details.cached_tokens > 0, "the prompt was not found in the cache")

    # A conversation goes on.
    more = messages + [choice.message, {"role": "user", "content": "And of Italy?"}]
    second = client.chat.completions.create(**{**ask, "messages": more})
    check(second.usage.prompt_tokens > whole.usage.prompt_tokens, "the second turn's prompt")
    check(second.usage.prompt_tokens_details.cached_tokens > whole.usage.prompt_tokens // 2,
          "the history was not found in the cache")

    # Streams: deltas add up, the usage comes last.
    text, roles, finish, usage = "", [], [], None
    for chunk in client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}):
        check(chunk.object == "chat.completion.chunk", chunk)
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
            roles += [chunk.choices[0].delta.role] if chunk.choices[0].delta.role else []
            finish += [chunk.choices[0].finish_reason] if chunk.choices[0].finish_reason else []
        usage = chunk.usage or usage
    check(text == choice.message.content, f"streamed {text!r}, whole {choice.message.content!r}")
    check(roles == ["assistant"] and finish == [choice.finish_reason], (roles, finish))
    check(usage.total_tokens == whole.usage.total_tokens, usage)
    word = text[len(text) // 2:][:3]  # the helper raises when the length ends an answer
    with client.chat.completions.stream(**ask, stop=[word]) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    check("content.delta" in kinds and "content.done" in kinds, kinds)
    check(final.choices[0].message.content == text[:text.index(word)], "the helper's final answer")

    # Who stops reading stops the request.
    stream = client.chat.completions.create(**{**ask, "max_tokens": 4000}, stream=True,
                                            extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    begun = time.monotonic()
    client.chat.completions.create(**{**ask, "max_tokens": 1})
    check(time.monotonic() - begun < 60, "a stream that nobody reads goes on")


def sampled(client, model):
    ask = {"model": model, "messages": [{"role": "user", "content": "Invent a name."}], "max_tokens": 8}
    hot = client.chat.completions.create(**ask, n=4, temperature=1.5, seed=7)
    check([c.index for c in hot.choices] == [0, 1, 2, 3], "indices")
    check(len({c.message.content for c in hot.choices}) > 1, "four samples are one")
    again = client.chat.completions.create(**ask, n=4, temperature=1.5, seed=7)
    check([c.message.content for c in again.choices] == [c.message.content for c in hot.choices],
          "a seed gives other samples")
    cut = client.chat.completions.create(**{**ask, "max_tokens": 32}, temperature=0, stop=["e"])
    check(cut.choices[0].finish_reason == "stop" and "e" not in cut.choices[0].message.content, cut)
    forced = client.chat.completions.create(**ask, logit_bias={"28": 100})
    check(set(forced.choices[0].message.content) == {","}, forced.choices[0].message.content)
    parts = client.chat.completions.create(model=model, max_tokens=2, messages=[
        {"role": "user", "content": [{"type": "text", "text": "Hello"}, {"type": "text", "text": "there"}]}])
    check(parts.usage.completion_tokens <= 2, parts)
    check(client.chat.completions.create(**ask, user="me", store=False, metadata={"a": "b"},
                                         service_tier="auto").choices, "fields without a meaning here")


def log_probs(client, model):
    ask = {"model": model, "messages": [{"role": "user", "content": "Name a fruit."}], "max_tokens": 8,
           "temperature": 0, "logprobs": True, "top_logprobs": 4}
    whole = client.chat.completions.create(**ask)
    content = whole.choices[0].logprobs.content
    check(len(content) == whole.usage.completion_tokens, "one for each token")
    for t in content:
        check(t.logprob <= 0 and len(t.top_logprobs) == 4, t)
        check(bytes(t.bytes).decode(errors="replace") == t.token, t)
        check(abs(t.top_logprobs[0].logprob - t.logprob) < 1e-6 and t.top_logprobs[0].token == t.token, t)
        check(sum(math.exp(x.logprob) for x in t.top_logprobs) < 1.0001, t)
    streamed = []
    for chunk in client.chat.completions.create(**ask, stream=True):
        if chunk.choices and chunk.choices[0].logprobs:
            streamed += chunk.choices[0].logprobs.content
    check([(t.token, t.logprob) for t in streamed] == [(t.token, t.logprob) for t in content],
          "streamed log-probs are others")


def completions(client, model):
    ask = {"model": model, "prompt": "One, two, three,", "max_tokens": 8, "temperature": 0}
    done = client.completions.create(**ask, logprobs=2)
    lp = done.choices[0].logprobs
    check("four" in done.choices[0].text and done.usage.completion_tokens == 8, done)
    check(len(lp.tokens) == len(lp.token_logprobs) == len(lp.top_logprobs) == len(lp.text_offset) == 8, lp)
    check("".join(lp.tokens) == done.choices[0].text, lp.tokens)
    check(lp.text_offset == [len("".join(lp.tokens[:i])) for i in range(8)], lp.text_offset)
    echo = client.completions.create(**ask, logprobs=0, echo=True)
    check(echo.choices[0].text == ask["prompt"] + done.choices[0].text, echo.choices[0].text)
    check(echo.choices[0].logprobs.token_logprobs[0] is None, "the first token has no log-prob")
    check(all(x < 0 for x in echo.choices[0].logprobs.token_logprobs[1:6]), "log-probs of the prompt")
    text = "".join(c.choices[0].text for c in client.completions.create(**ask, stream=True) if c.choices)
    check(text == done.choices[0].text, f"streamed {text!r}")
    many = client.completions.create(model=model, prompt=["A", "B"], n=2, max_tokens=2)
    check([c.index for c in many.choices] == [0, 1, 2, 3], many)
    ids = client.completions.create(**{**ask, "prompt": [2705, 28, 827, 28, 1296, 28]})
    check(ids.choices[0].text == done.choices[0].text, "tokens as a prompt")
    check(client.completions.create(**ask, stop="five").choices[0].text == " four, ", "stop")


def models(client):
    cards = client.models.list().data
    check(len(cards) == 1 and cards[0].object == "model", cards)
    check(client.models.retrieve(cards[0].id).id == cards[0].id, "retrieve")
    raises(openai.NotFoundError, "an unknown model", lambda: client.models.retrieve("no-such"))
    return cards[0].id


def errors(client, model):
    user = [{"role": "user", "content": "Hi"}]
    create = client.chat.completions.create
    error = raises(openai.BadRequestError, "no messages", lambda: create(model=model, messages=[]))
    check(error.status_code == 400 and str(error.code) == "400" and "messages" in error.message, error)
    error = raises(openai.BadRequestError, "a bad temperature",
                   lambda: create(model=model, messages=user, temperature=-1))
    check("temperature" in error.message and error.type == "invalid_request_error", error)
    raises(openai.BadRequestError, "too many tokens", lambda: create(model=model, messages=user, max_tokens=10**6))
    raises(openai.BadRequestError, "a grammar", lambda: create(
        model=model, messages=user, response_format={"type": "json_object"}))
    raises(openai.BadRequestError, "an error before a stream", lambda: list(create(
        model=model, messages=user, top_p=7, stream=True)))
    raises(openai.BadRequestError, "an image", lambda: create(model=model, messages=[
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]}]))
    raises(openai.NotFoundError, "an unknown path", lambda: client.embeddings.create(model=model, input="a"))
    wrong = openai.OpenAI(base_url=URL + "/v1", api_key="wrong", max_retries=0)
    error = raises(openai.AuthenticationError, "a wrong key", lambda: wrong.models.list())
    check(error.status_code == 401, error)
    hurry = client.with_options(timeout=0.3)
    raises(openai.APITimeoutError, "a client in a hurry", lambda: hurry.chat.completions.create(
        model=model, messages=user, max_tokens=4000, extra_body={"ignore_eos": True}))
    raw = client.with_raw_response.models.list() if hasattr(client, "with_raw_response") else None
    check(raw is None or raw.headers["content-type"].startswith("application/json"), "content type")
    gone = openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="x", max_retries=0)
    raises(openai.APIConnectionError, "no server", lambda: gone.models.list())


async def together(model):
    """Sixteen requests of the asynchronous client at once are answered as alone."""
    async with openai.AsyncOpenAI(base_url=URL + "/v1", api_key=KEY, max_retries=0) as client:
        def ask(i):
            return client.chat.completions.create(
                model=model, max_tokens=8, seed=i, temperature=1,
                messages=[{"role": "user", "content": f"Count to {i}."}])

        alone = [(await ask(i)).choices[0].message.content for i in range(16)]
        crowd = [r.choices[0].message.content for r in await asyncio.gather(*map(ask, range(16)))]
        check(alone == crowd, "answers differ under load")
        stream = await client.chat.completions.create(model=model, max_tokens=4, stream=True, messages=[
            {"role": "user", "content": "Hello"}])
        check([c async for c in stream][-1].choices[0].finish_reason, "an asynchronous stream")


class Weather(pydantic.BaseModel):
    """The weather of a city"""
    city: str
    days: int = 1


def tools():
    """The whole round of a tool: asked for, called, its answer given, told. The model is scripted; the
    server's template, parsers and streams are those of every model."""
    client = openai.OpenAI(base_url=SCRIPTED + "/v1", api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    tool = openai.pydantic_function_tool(Weather, name="weather")
    ask = {"model": model, "messages": [{"role": "user", "content": "How is the weather?"}], "tools": [tool]}
    whole = client.chat.completions.create(**ask, temperature=1)
    choice = whole.choices[0]
    check(choice.finish_reason == "tool_calls", choice)
    check(choice.message.content.strip() == "Let me look.", repr(choice.message.content))
    calls = choice.message.tool_calls
    check([c.function.name for c in calls] == ["weather", "weather"], calls)
    check([json.loads(c.function.arguments) for c in calls]
          == [{"city": "Paris", "days": 2}, {"city": "Rome"}], calls)
    check(all(c.type == "function" and c.id for c in calls) and calls[0].id != calls[1].id, calls)

    text, parts = "", {}
    for chunk in client.chat.completions.create(**ask, stream=True):
        delta = chunk.choices[0].delta
        text += delta.content or ""
        for c in delta.tool_calls or []:
            part = parts.setdefault(c.index, {"id": c.id, "name": c.function.name, "arguments": ""})
            part["arguments"] += c.function.arguments or ""
        finish = chunk.choices[0].finish_reason
    check(finish == "tool_calls" and "<tool_call>" not in text and text.strip() == "Let me look.", text)
    check([parts[i]["name"] for i in (0, 1)] == ["weather"] * 2, parts)
    check([json.loads(parts[i]["arguments"]) for i in (0, 1)]
          == [{"city": "Paris", "days": 2}, {"city": "Rome"}], parts)
    with client.chat.completions.stream(**ask) as stream:
        done = [e for e in stream if e.type == "tool_calls.function.arguments.done"]
        final = stream.get_final_completion()
    check(len(done) == 2 and done[0].name == "weather", done)
    check(final.choices[0].message.tool_calls[0].function.parsed_arguments == Weather(city="Paris", days=2),
          final.choices[0].message)

    answers = [{"role": "tool", "tool_call_id": c.id, "content": "Sunny."} for c in calls]
    told = client.chat.completions.create(**{**ask, "messages": ask["messages"] + [choice.message] + answers})
    check(told.choices[0].message.content == "It is sunny in Paris and Rome.", told.choices[0].message)
    check(told.choices[0].finish_reason == "stop" and not told.choices[0].message.tool_calls, told.choices[0])
    off = client.chat.completions.create(**ask, tool_choice="none")
    check(not off.choices[0].message.tool_calls, off.choices[0])
    raises(openai.BadRequestError, "a tool that must be called",
           lambda: client.chat.completions.create(**ask, tool_choice="required"))

    # Without tools it thinks first.
    ask = {"model": model, "messages": [{"role": "user", "content": "Hello"}]}
    said = client.chat.completions.create(**ask).choices[0].message
    check(said.reasoning_content.strip() == "The user greets me.", said)
    check(said.content.strip() == "Good day to you.", said)
    thought, text = "", ""
    for chunk in client.chat.completions.create(**ask, stream=True):
        thought += getattr(chunk.choices[0].delta, "reasoning_content", None) or ""
        text += chunk.choices[0].delta.content or ""
    check(thought.strip() == "The user greets me." and text.strip() == "Good day to you.", (thought, text))


def main():
    client = openai.OpenAI(base_url=URL + "/v1", api_key=KEY, max_retries=0)
    model = models(client)
    chat(client, model)
    sampled(client, model)
    log_probs(client, model)
    completions(client, model)
    errors(client, model)
    asyncio.run(together(model))
    tools()
    print(f"openai={openai.__version__} openai_checks={CHECKS}")


main()
