"""Talks to a running `miles serve` with urllib and with the openai package: serve_api.py URL KEY MODEL

Prints checks=N at the end; the first check that fails ends it.
"""
import json
import sys
import threading
import urllib.error
import urllib.request

URL, KEY, FOLDER = sys.argv[1:4]
CHECKS = 0


def check(ok, what):
    global CHECKS
    if not ok:
        sys.exit(f"serve_api.py: {what}")
    CHECKS += 1


def call(path, body=None, key=KEY, raw=False):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(URL + path, data, {"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            text = answer.read().decode()
            return answer.status, text if raw else json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read().decode() or "null")


def generate(body):
    status, answer = call("/generate", body)
    check(status == 200, f"/generate {body}: {status} {answer}")
    return answer


def events(path, body):
    status, text = call(path, body, raw=True)
    check(status == 200, f"{path}: {status}")
    lines = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
    check(lines[-1] == "[DONE]", f"{path}: the stream ends with {lines[-1]}")
    return [json.loads(line) for line in lines[:-1]]


def native():
    for path in ("/health", "/health_generate"):
        check(call(path)[0] == 200, path)
    status, info = call("/get_model_info")
    check(status == 200 and info["weight_version"] == "default", f"model info {info}")
    check(call("/get_model_info", key="wrong")[0] == 401, "a wrong key is let in")
    status, info = call("/get_server_info")
    check(status == 200 and info["context_length"] == 8192, "server info")
    check("api_key" not in info and KEY not in json.dumps(info), "the key is shown")

    prompt = "The three primary colours are"
    ask = {"text": prompt, "return_logprob": True, "logprob_start_len": 0,
           "sampling_params": {"temperature": 0.8, "max_new_tokens": 16, "sampling_seed": 3}}
    one = generate(ask)
    two = generate(ask)
    check(one["output_ids"] == two["output_ids"], "two answers with one seed differ")
    check(one["meta_info"]["output_token_logprobs"] == two["meta_info"]["output_token_logprobs"],
          "their log-probs differ")
    check([t[1] for t in one["meta_info"]["output_token_logprobs"]] == one["output_ids"],
          "log-probs of other tokens")
    given = one["meta_info"]["input_token_logprobs"]
    check(given[0][0] is None and all(t[0] < 0 for t in given[1:]), "the prompt's log-probs")
    ids = [t[1] for t in given]
    again = generate({**ask, "text": None, "input_ids": ids})
    check(again["output_ids"] == one["output_ids"], "text and its tokens give other answers")

    # Scoring the response as a prompt gives its log-probs at temperature 1.
    flat = {"input_ids": ids, "return_logprob": True,
            "sampling_params": {"temperature": 1.0, "max_new_tokens": 8, "sampling_seed": 4}}
    said = generate(flat)
    score = generate({"input_ids": ids + said["output_ids"], "return_logprob": True,
                      "logprob_start_len": 0, "sampling_params": {"max_new_tokens": 0}})
    check(score["output_ids"] == [], "tokens although none were asked for")
    check([t[0] for t in score["meta_info"]["input_token_logprobs"][len(ids):]]
          == [t[0] for t in said["meta_info"]["output_token_logprobs"]],
          "a response scored as a prompt has other log-probs")

    stream = events("/generate", {**ask, "stream": True})
    check(stream[-1]["output_ids"] == one["output_ids"], "the stream ends otherwise")
    check(stream[-1]["text"] == one["text"], "the stream's text")
    batch = generate({**ask, "text": [prompt, "One, two,"],
                      "sampling_params": {**ask["sampling_params"], "n": 2}})
    check(len(batch) == 4 and batch[0]["output_ids"] == one["output_ids"], "batch")

    status, answer = call("/generate", {"text": "a", "sampling_params": {"temperature": "x"}})
    check(status == 400 and "temperature" in answer["error"]["message"], "no reason for the 400")


def weights():
    name = "model.norm.weight"
    before = generate({"text": "Once upon", "sampling_params": {"temperature": 0,
                                                                  "max_new_tokens": 8}})
    check(call("/weights_checker", {"action": "snapshot"})[1]["success"], "snapshot")
    status, values = call("/get_weights_by_name", {"name": name, "truncate_size": 576})
    check(status == 200 and len(values) == 576, "get_weights_by_name")
    check(call("/weights_checker", {"action": "reset_tensors"})[1]["success"], "reset")
    check(call("/weights_checker", {"action": "compare"})[0] == 400, "a reset goes unnoticed")
    check(call("/pause_generation", {"mode": "retract"})[0] == 200, "pause")
    check(call("/flush_cache", raw=True)[0] == 200, "flush")
    status, answer = call("/update_weights_from_disk",
                          {"model_path": FOLDER, "weight_version": "7"})
    check(status == 200 and answer["success"], f"update {answer}")
    check(call("/continue_generation", {})[0] == 200, "continue")
    check(call("/weights_checker", {"action": "compare"})[1]["success"], "not the same weights")
    after = generate({"text": "Once upon", "sampling_params": {"temperature": 0,
                                                                 "max_new_tokens": 8}})
    check(after["output_ids"] == before["output_ids"], "other tokens after the update")
    check(after["meta_info"]["weight_version"] == "7", "weight version")
    check(call("/release_memory_occupation", {})[0] == 200, "release")
    check(call("/resume_memory_occupation", {})[0] == 200, "resume")
    status, text = call("/metrics", raw=True)
    check("sglang:generation_tokens_total" in text, "metrics")


def openai_client():
    try:
        import openai
    except ImportError:
        print("serve_api.py: no openai package, its part is left out", file=sys.stderr)
        return
    client = openai.OpenAI(base_url=URL + "/v1", api_key=KEY, max_retries=0)
    model = client.models.list().data[0].id
    messages = [{"role": "user", "content": "Name a fruit."}]
    ask = {"model": model, "messages": messages, "max_tokens": 12, "seed": 1, "temperature": 0.7}
    whole = client.chat.completions.create(**ask, logprobs=True, top_logprobs=2, n=2)
    check(len(whole.choices) == 2 and whole.usage.completion_tokens > 0, "chat")
    first = whole.choices[0]
    check(len(first.logprobs.content) > 0 and len(first.logprobs.content[0].top_logprobs) == 2,
          "chat log-probs")
    text, usage = "", None
    for chunk in client.chat.completions.create(**ask, stream=True,
                                                stream_options={"include_usage": True}):
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
        usage = chunk.usage or usage
    check(text == first.message.content, f"streamed {text!r}, whole {first.message.content!r}")
    check(usage is not None and usage.prompt_tokens == whole.usage.prompt_tokens, "usage")
    tool = {"type": "function", "function": {"name": "weather", "description": "of a city",
                                             "parameters": {"type": "object", "properties": {}}}}
    client.chat.completions.create(**ask, tools=[tool])
    done = client.completions.create(model=model, prompt="A list of animals: cat, dog,",
                                     max_tokens=10, logprobs=1, temperature=0, stop=["\n"])
    check(len(done.choices[0].logprobs.tokens) == done.usage.completion_tokens, "completions")
    try:
        client.chat.completions.create(model=model, messages=[])
        check(False, "no messages are an answer")
    except openai.BadRequestError as error:
        check("messages" in str(error), "the reason of an error")


def many():
    """Requests alone and among 16 others: equal tokens and log-probs."""
    asks = [{"text": f"Question {i}: what is {i} plus {i}? Answer:", "return_logprob": True,
             "sampling_params": {"temperature": 1.0, "max_new_tokens": 12, "sampling_seed": i}}
            for i in range(16)]
    alone = [generate(a)["meta_info"]["output_token_logprobs"] for a in asks]
    call("/flush_cache", {}, raw=True)
    together = [None] * len(asks)

    def run(i):
        together[i] = call("/generate", asks[i])[1]["meta_info"]["output_token_logprobs"]

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(asks))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    check(alone == together, "answers differ under load")


native()
weights()
openai_client()
many()
print(f"checks={CHECKS}")
