"""One suite over HTTP for every server that speaks SGLang's API: `miles serve` and SGLang 0.5.23 itself.

    sglang_api.py URL --kind miles|sglang [--key KEY] [--golden FILE] [--record] [--only PREFIX]

The server must serve SmolLM2-135M-Instruct and be used by nobody else meanwhile; SGLang must have been
started with --enable-metrics. Only the standard library is needed. Every check has a name. What both servers must do alike is one check for both;
what SGLang does not do is listed in KNOWN with the reason, still tried, and counted apart. With
--record the answers of a live SGLang to the requests of `golden_requests` are written to FILE, which
every other run is compared with: so a machine without SGLang compares with it too.

The last line is `conform_KIND=N failed_KIND=F`, for SGLang with `known_sglang=K`.
"""
import argparse
import http.client
import json
import os
import sys
import threading
import time
import urllib.parse

# Checks that SGLang 0.5.23 on CPU fails, and why. They are what a user should be able to rely on.
KNOWN = {
    "weights.checker.equal": "it compares on a GPU",
    "weights.disk.compare": "it compares on a GPU",
    "cache.cached_tokens": "the CPU server runs without its prefix cache (--disable-radix-cache)",
    "logprobs.score_only.no_output": "with max_new_tokens 0 it answers no token, and the log-prob of one",
}

# Of those, the ones that are not sent to SGLang.
DEADLY = {
    "errors.text_empty": "a prompt without tokens ends the scheduler, and so the server",
    "errors.ids_empty_in_batch": "a prompt without tokens ends the scheduler, and so the server",
    "errors.logprob_start_below": "a logprob_start_len below -1 ends the scheduler, and so the server",
    "errors.ids_negative": "a token outside the vocabulary ends the scheduler, and so the server",
    "errors.ids_beyond_vocabulary": "a token outside the vocabulary ends the scheduler, and so the server",
}
MEMORY_TAGS = (None, ["kv_cache"], ["weights", "kv_cache"])
for _tags in MEMORY_TAGS:
    for _what in ("release", "resume", "works_after"):
        DEADLY[f"memory.{_what}.{'_'.join(_tags or ['all'])}"] = (
            "releasing memory waits for the GPU; without one that ends the scheduler")
KNOWN.update(DEADLY)

# Log-probs are compared with SGLang's. It rounds the logits to bf16, ours are f32: at a logit of 16 to
# 32 that is up to 1/16 in each of the two that a difference is made of, and the layers before, summed
# in another order, add their share.
LOGP_MAX = 0.40
LOGP_MEAN = 0.10
# Where SGLang's two best tokens are nearer than this, either may come first.
MARGIN = 0.40

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", "sglang_api.json")
PROMPT = "The capital of France is"


class Suite:
    def __init__(self, args):
        self.kind = args.kind
        self.only = args.only
        self.key = args.key
        self.passed, self.failed, self.known = [], [], []
        self.seen = set()
        at = urllib.parse.urlsplit(args.url)
        self.host, self.port = at.hostname, at.port

    # ---- checks ----

    def check(self, name, ok, detail=""):
        if name in self.seen:
            raise RuntimeError(f"two checks are named {name}")
        self.seen.add(name)
        if ok:
            self.passed.append(name)
            if self.kind == "sglang" and name in KNOWN:
                print(f"  passes now: {name}", file=sys.stderr)
        elif self.kind == "sglang" and name in KNOWN:
            self.known.append(name)
        else:
            self.failed.append(name)
            print(f"  FAILED {name}: {str(detail)[:600]}", file=sys.stderr)
        return ok

    def spares(self, name):
        """True, and counted as known, when trying it would end SGLang."""
        if self.kind != "sglang" or name not in DEADLY:
            return False
        self.seen.add(name)
        self.known.append(name)
        return True

    def section(self, name, function):
        if self.only and not name.startswith(self.only):
            return
        begun = time.monotonic()
        try:
            function(self)
        except Exception as error:  # a section that breaks off has failed, the others go on
            import traceback

            traceback.print_exc()
            self.check(f"{name}.completes", False, repr(error))
        print(f"{name}: {time.monotonic() - begun:.1f} s", file=sys.stderr)

    # ---- HTTP ----

    def send(self, path, body=None, method=None, headers=None, timeout=600):
        """The connection after the request; body: bytes as they are, anything else as JSON."""
        c = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        head = {} if data is None else {"Content-Type": "application/json"}
        if self.key:
            head["Authorization"] = f"Bearer {self.key}"
        head.update(headers or {})
        c.request(method or ("GET" if data is None else "POST"), path, data, head)
        return c

    def call(self, path, body=None, method=None, headers=None):
        c = self.send(path, body, method, headers)
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        try:
            return r.status, json.loads(text)
        except ValueError:
            return r.status, text

    def gen(self, body):
        status, answer = self.call("/generate", body)
        if status != 200:
            raise RuntimeError(f"/generate {json.dumps(body)[:300]}: {status} {str(answer)[:300]}")
        return answer

    def stream(self, path, body):
        """status, content type, events as they came (bytes between two blank lines)."""
        c = self.send(path, body)
        r = c.getresponse()
        raw = r.read()
        c.close()
        return r.status, r.headers.get("Content-Type", ""), raw

    def many(self, bodies):
        """Answers of requests sent at once: SGLang needs as long for eight as for one."""
        out = [None] * len(bodies)

        def one(i):
            out[i] = self.call("/generate", bodies[i])

        threads = [threading.Thread(target=one, args=(i,)) for i in range(len(bodies))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for body, (status, answer) in zip(bodies, out):
            if status != 200:
                raise RuntimeError(f"{json.dumps(body)[:300]}: {status} {str(answer)[:300]}")
        return [answer for _, answer in out]


def greedy(tokens=6, **more):
    return {"temperature": 0, "max_new_tokens": tokens, **more}


def message(answer):
    """The reason in an error's body: flat, as SGLang's OpenAI part has it, or inside "error"."""
    if not isinstance(answer, dict):
        return None
    error = answer.get("error", answer)
    if isinstance(error, dict):
        error = error.get("message")
    return error if isinstance(error, str) and error else None


def is_int(v):
    return isinstance(v, int) and not isinstance(v, bool)


def events(raw):
    """The data of server-sent events and whether each is `data: X` and a blank line."""
    text = raw.decode()
    parts = text.split("\n\n")
    framed = parts[-1] == "" and all(p.startswith("data: ") and "\n" not in p for p in parts[:-1])
    return framed, [p[6:] for p in parts[:-1]]


def is_triple(t):
    return (isinstance(t, list) and len(t) == 3 and (t[0] is None or isinstance(t[0], float) or t[0] == 0)
            and is_int(t[1]) and (t[2] is None or isinstance(t[2], str)))


# ---- health and information ----

def info(s):
    for path in ("/health", "/health_generate", "/ping"):
        status, body = s.call(path)
        s.check(f"info{path.replace('/', '.')}", status == 200 and body == "", (status, body))
    status, a = s.call("/get_model_info")
    s.check("info.model.status", status == 200, status)
    _, b = s.call("/model_info")
    s.check("info.model.both_paths", a == b, (a, b))
    s.check("info.model.model_path", isinstance(a.get("model_path"), str) and a["model_path"], a)
    s.check("info.model.tokenizer_path", isinstance(a.get("tokenizer_path"), str), a)
    s.check("info.model.served_model_name", isinstance(a.get("served_model_name"), str), a)
    s.check("info.model.is_generation", a.get("is_generation") is True, a)
    s.check("info.model.weight_version", a.get("weight_version") == "default", a)
    s.check("info.model.preferred_sampling_params",
            a.get("preferred_sampling_params", 0) is None, a)
    s.check("info.model.type", a.get("model_type") == "llama", a)
    s.check("info.model.architectures", a.get("architectures") == ["LlamaForCausalLM"], a)
    s.check("info.model.no_images", a.get("has_image_understanding") is False, a)
    s.check("info.model.no_audio", a.get("has_audio_understanding") is False, a)
    status, a = s.call("/get_server_info")
    s.check("info.server.status", status == 200, status)
    s.check("info.server.other_path", s.call("/server_info")[0] == 200)
    s.check("info.server.version", isinstance(a.get("version"), str), list(a)[:5])
    s.check("info.server.model_path", isinstance(a.get("model_path"), str))
    s.check("info.server.served_model_name", isinstance(a.get("served_model_name"), str))
    s.check("info.server.tp_size", a.get("tp_size") == 1, a.get("tp_size"))
    s.check("info.server.dp_size", a.get("dp_size") == 1, a.get("dp_size"))
    s.check("info.server.max_total_num_tokens", is_int(a.get("max_total_num_tokens")))
    s.check("info.server.max_req_input_len", is_int(a.get("max_req_input_len")))
    states = a.get("internal_states")
    s.check("info.server.internal_states", isinstance(states, list) and len(states) == 1
            and isinstance(states[0], dict), states)
    s.check("info.server.throughput",
            isinstance(states[0].get("last_gen_throughput"), (int, float)), list(states[0])[:9])
    status, body = s.call("/no_such_path")
    s.check("info.unknown_path", status == 404, (status, body))
    status, body = s.call("/generate", method="GET")
    s.check("info.wrong_method", status == 405, (status, body))


# ---- one prompt ----

def single(s):
    # Without a number of tokens there are 128; they come while other checks go on.
    s.default = Background(s, {"text": "Once upon a time", "sampling_params": {"temperature": 0}})
    body = {"text": PROMPT, "sampling_params": greedy()}
    a = s.gen(body)
    m = a["meta_info"]
    s.check("single.fields", {"text", "output_ids", "meta_info"} <= set(a), list(a))
    s.check("single.text", isinstance(a["text"], str) and a["text"], a["text"])
    s.check("single.paris", " Paris" in a["text"], a["text"])
    s.check("single.output_ids", len(a["output_ids"]) == 6 and all(map(is_int, a["output_ids"])), a)
    s.check("single.meta.id", isinstance(m["id"], str) and len(m["id"]) == 32, m["id"])
    s.check("single.meta.finish", m["finish_reason"] == {"type": "length", "length": 6}, m)
    s.check("single.meta.prompt_tokens", m["prompt_tokens"] == 5, m)
    s.check("single.meta.completion_tokens", m["completion_tokens"] == 6, m)
    s.check("single.meta.cached_tokens", is_int(m["cached_tokens"]) and 0 <= m["cached_tokens"] < 5, m)
    s.check("single.meta.weight_version", m["weight_version"] == "default", m)
    s.check("single.meta.e2e_latency", isinstance(m["e2e_latency"], float) and m["e2e_latency"] > 0, m)
    s.check("single.meta.num_retractions", m.get("num_retractions") == 0, m)
    s.check("single.meta.reasoning_tokens", m.get("reasoning_tokens") == 0, m)
    s.check("single.meta.weight_versions", m.get("weight_versions")
            == [{"version": "default", "start": 0, "end": 6}], m)
    s.check("single.meta.no_logprobs", "output_token_logprobs" not in m
            and "input_token_logprobs" not in m, list(m))
    ids = [504, 3575, 282, 4649, 314]
    b, c, d, e, f = s.many([
        body,
        {"input_ids": ids, "sampling_params": greedy()},
        {**body, "rid": "my-name"},
        {"text": PROMPT, "sampling_params": greedy(), "unheard_of": {"a": [1]}, "stream": False},
        {"text": PROMPT, "input_ids": ids, "sampling_params": greedy()},
    ])
    s.check("single.greedy_again", b["output_ids"] == a["output_ids"] and b["text"] == a["text"], b)
    s.check("single.other_id", b["meta_info"]["id"] != m["id"])
    s.check("single.ids_as_text", c["output_ids"] == a["output_ids"] and c["text"] == a["text"], c)
    s.check("single.ids_prompt_tokens", c["meta_info"]["prompt_tokens"] == 5, c)
    s.check("single.own_rid", d["meta_info"]["id"] == "my-name", d["meta_info"]["id"])
    s.check("single.unknown_field", e["output_ids"] == a["output_ids"], e)
    s.check("single.text_and_ids", f["output_ids"] == a["output_ids"], f)
    status, b = s.call("/generate", body, method="PUT")
    s.check("single.put", status == 200 and b["text"] == a["text"], (status, b))
    status, b = s.call("/generate", body, headers={"Content-Type": "application/json; charset=utf-8"})
    s.check("single.charset", status == 200, (status, b))

    a, b, c, d = s.many([
        {"text": PROMPT, "sampling_params": {**greedy(), "top_p": None, "top_k": None, "min_p": None,
                                             "stop": None, "repetition_penalty": None, "ignore_eos": None,
                                             "skip_special_tokens": None}},
        {"text": PROMPT, "sampling_params": {"max_new_tokens": 4, "temperature": 1.0, "top_k": 1}},
        {"text": PROMPT, "sampling_params": {"max_new_tokens": 4, "temperature": 1e-9}},
        {"text": PROMPT, "sampling_params": {"max_new_tokens": 4, "temperature": 1.0, "top_p": 1e-6}},
    ])
    first = c["output_ids"]
    s.check("single.nulls_are_defaults", a["output_ids"][:4] == first, a)
    s.check("single.top_k_1_is_greedy", b["output_ids"] == first, (b, first))
    s.check("single.tiny_temperature_is_greedy", len(first) == 4, first)
    s.check("single.tiny_top_p_is_greedy", d["output_ids"] == first, (d, first))
    a, b, c, d = s.many([
        {"text": PROMPT, "sampling_params": {"max_new_tokens": 4, "temperature": 1.0, "min_p": 1.0}},
        {"text": PROMPT, "sampling_params": greedy(4, logit_bias={"17": 100.0})},
        {"text": PROMPT, "sampling_params": greedy(1, logit_bias={str(first[0]): -1000.0})},
        {"text": PROMPT, "sampling_params": {"max_new_tokens": 0, "temperature": 0}},
    ])
    s.check("single.min_p_1_is_greedy", a["output_ids"] == first, (a, first))
    s.check("single.logit_bias_forces", b["output_ids"] == [17] * 4, b)
    s.check("single.logit_bias_bans", c["output_ids"] != first[:1], c)
    s.check("single.no_new_tokens", d["meta_info"]["completion_tokens"] == 0 and d["output_ids"] == []
            and d["text"] == "", d)
    s.check("single.no_new_tokens.finish",
            d["meta_info"]["finish_reason"] == {"type": "length", "length": 0}, d["meta_info"])


# ---- log-probs ----

def logprobs(s):
    base = {"text": PROMPT, "sampling_params": greedy(4), "return_logprob": True}
    a, b, c, d, e, f, g = (x["meta_info"] for x in s.many([
        base,
        {**base, "logprob_start_len": 0},
        {**base, "logprob_start_len": 2, "top_logprobs_num": 3},
        {**base, "return_text_in_logprobs": True, "logprob_start_len": 0, "top_logprobs_num": 2},
        {**base, "logprob_start_len": 5},
        {**base, "logprob_start_len": 4},
        {**base, "logprob_start_len": 0, "sampling_params": {"max_new_tokens": 0}},
    ]))
    ids = [504, 3575, 282, 4649, 314]
    out = a["output_token_logprobs"]
    s.check("logprobs.output.length", len(out) == 4 and a["output_token_logprobs_length"] == 4, a)
    s.check("logprobs.output.triples", all(map(is_triple, out)) and all(t[2] is None for t in out), out)
    s.check("logprobs.output.range", all(t[0] <= 0 for t in out), out)
    s.check("logprobs.input.absent_by_default", a["input_token_logprobs"] == [], a)
    s.check("logprobs.top.absent_by_default", "output_top_logprobs" not in a, list(a))
    whole = b["input_token_logprobs"]
    s.check("logprobs.input.all", [t[1] for t in whole] == ids, whole)
    s.check("logprobs.input.first_is_null", whole[0][0] is None, whole)
    s.check("logprobs.input.rest", all(isinstance(t[0], float) and t[0] < 0 for t in whole[1:]), whole)
    s.check("logprobs.input.triples", all(map(is_triple, whole)), whole)
    part = c["input_token_logprobs"]
    s.check("logprobs.input.from_2", [t[1] for t in part] == ids[2:], part)
    s.check("logprobs.input.from_2.first_is_null", part[0][0] is None, part)
    s.check("logprobs.input.from_2.values",
            all(abs(x[0] - y[0]) < 0.02 for x, y in zip(part[1:], whole[3:])), (part, whole))
    top = c["input_top_logprobs"]
    s.check("logprobs.input.top.length", len(top) == 3, top)
    s.check("logprobs.input.top.first_is_null", top[0] is None, top)
    s.check("logprobs.input.top.shape", all(len(x) == 3 and all(map(is_triple, x)) for x in top[1:]), top)
    s.check("logprobs.input.top.sorted",
            all(x[0][0] >= x[1][0] >= x[2][0] for x in top[1:]), top)
    top = c["output_top_logprobs"]
    s.check("logprobs.output.top.length", len(top) == 4, top)
    s.check("logprobs.output.top.shape", all(len(x) == 3 and all(map(is_triple, x)) for x in top), top)
    s.check("logprobs.output.top.sorted", all(x[0][0] >= x[1][0] >= x[2][0] for x in top), top)
    s.check("logprobs.output.top.first_is_greedy",
            [x[0][1] for x in top] == [t[1] for t in c["output_token_logprobs"]], c)
    s.check("logprobs.output.top.same_value",
            all(abs(x[0][0] - t[0]) < 1e-3 for x, t in zip(top, c["output_token_logprobs"])), c)
    texts = [t[2] for t in d["input_token_logprobs"]]
    s.check("logprobs.text.input", texts == ["The", " capital", " of", " France", " is"], texts)
    s.check("logprobs.text.output",
            all(isinstance(t[2], str) for t in d["output_token_logprobs"]), d["output_token_logprobs"])
    s.check("logprobs.text.top", all(isinstance(t[2], str) for x in d["output_top_logprobs"] for t in x))
    s.check("logprobs.start_at_end", e["input_token_logprobs"] == [], e)
    s.check("logprobs.start_at_end.output", len(e["output_token_logprobs"]) == 4, e)
    s.check("logprobs.start_at_last", len(f["input_token_logprobs"]) == 1
            and f["input_token_logprobs"][0][:2] == [None, 314], f)
    s.check("logprobs.score_only", [t[1] for t in g["input_token_logprobs"]] == ids, g)
    s.check("logprobs.score_only.no_output", g["output_token_logprobs"] == [], g)
    status, x = s.call("/generate", {**base, "logprob_start_len": 6})
    s.check("logprobs.start_beyond", status == 400 and message(x), (status, x))
    off = s.gen({**base, "return_logprob": False, "logprob_start_len": 0, "top_logprobs_num": 3})
    s.check("logprobs.off", "input_token_logprobs" not in off["meta_info"]
            and "output_top_logprobs" not in off["meta_info"], list(off["meta_info"]))

    # A response scored as a prompt has the log-probs that it was sampled with.
    x = s.gen({"text": PROMPT, "return_logprob": True,
               "sampling_params": {"temperature": 1.0, "max_new_tokens": 6, "sampling_seed": 5}})
    y = s.gen({"input_ids": ids + x["output_ids"], "return_logprob": True, "logprob_start_len": 4,
               "sampling_params": {"max_new_tokens": 0}})
    p = [t[0] for t in x["meta_info"]["output_token_logprobs"]]
    q = [t[0] for t in y["meta_info"]["input_token_logprobs"][1:]]
    s.check("logprobs.scored_again", len(p) == len(q)
            and all(abs(u - v) < LOGP_MAX for u, v in zip(p, q)), (p, q))
    # At another temperature they are those of the scaled logits.
    cold, warm = s.many([
        {"text": PROMPT, "return_logprob": True, "top_logprobs_num": 2,
         "sampling_params": {"temperature": t, "max_new_tokens": 1}} for t in (0.5, 1.0)])
    gap = [x["meta_info"]["output_top_logprobs"][0][0][0] - x["meta_info"]["output_top_logprobs"][0][1][0]
           for x in (cold, warm)]
    s.check("logprobs.temperature", abs(gap[0] - 2 * gap[1]) < 0.02, gap)


# ---- several prompts ----

def batch(s):
    two = [PROMPT, "One, two, three,"]
    ids = [[504, 3575, 282, 4649, 314], [2705, 28, 827, 28, 1296, 28]]
    a, b, c = s.many([
        {"text": two, "sampling_params": greedy(4)},
        {"input_ids": ids, "sampling_params": greedy(4)},
        {"text": two, "sampling_params": [greedy(2), greedy(5)], "rid": ["first", "second"],
         "return_logprob": [True, False], "logprob_start_len": [0, -1], "top_logprobs_num": [2, 0]},
    ])
    s.check("batch.is_list", isinstance(a, list) and len(a) == 2, a)
    s.check("batch.order", " Paris" in a[0]["text"] and "four" in a[1]["text"], a)
    s.check("batch.ids", [x["output_ids"] for x in b] == [x["output_ids"] for x in a], (a, b))
    s.check("batch.different_ids", a[0]["meta_info"]["id"] != a[1]["meta_info"]["id"])
    s.check("batch.params_list", [x["meta_info"]["completion_tokens"] for x in c] == [2, 5], c)
    s.check("batch.params_list.text", c[1]["output_ids"][:4] == a[1]["output_ids"], (c, a))
    s.check("batch.rid_list", [x["meta_info"]["id"] for x in c] == ["first", "second"], c)
    s.check("batch.logprob_list", "output_token_logprobs" in c[0]["meta_info"]
            and "output_token_logprobs" not in c[1]["meta_info"], c)
    s.check("batch.start_list", len(c[0]["meta_info"].get("input_token_logprobs", [])) == 5, c[0])
    s.check("batch.top_list", len(c[0]["meta_info"].get("output_top_logprobs", [[]])[0]) == 2, c[0])
    a, b, c, d = s.many([
        {"text": [PROMPT], "sampling_params": greedy(2)},
        {"text": PROMPT, "sampling_params": greedy(3, n=3)},
        {"text": two, "sampling_params": greedy(3, n=2)},
        {"text": two, "sampling_params": greedy(1), "rid": "both"},
    ])
    s.check("batch.of_one", isinstance(a, list) and len(a) == 1, a)
    s.check("batch.n_is_list", isinstance(b, list) and len(b) == 3, b)
    s.check("batch.n_greedy_equal", len({tuple(x["output_ids"]) for x in b}) == 1, b)
    s.check("batch.n_ids_differ", len({x["meta_info"]["id"] for x in b}) == 3, b)
    s.check("batch.n_by_prompt", len(c) == 4 and c[0]["text"] == c[1]["text"]
            and c[2]["text"] == c[3]["text"] and c[0]["text"] != c[2]["text"], c)
    s.check("batch.rid_prefix", [x["meta_info"]["id"] for x in d] == ["both_0", "both_1"], d)
    a = s.gen({"text": PROMPT, "sampling_params": {"temperature": 1.5, "max_new_tokens": 12, "n": 4}})
    s.check("batch.n_samples_differ", len({tuple(x["output_ids"]) for x in a}) > 1, a)
    for name, body in (
            ("rid_length", {"text": two, "rid": ["one"], "sampling_params": greedy(1)}),
            ("rid_twice", {"text": two, "rid": ["one", "one"], "sampling_params": greedy(1)}),
            ("n_differs", {"text": two, "sampling_params": [greedy(1, n=1), greedy(1, n=2)]}),
            ("bad_member", {"text": two, "sampling_params": [greedy(1), greedy(1, temperature=-1)]})):
        status, x = s.call("/generate", body)
        s.check(f"batch.{name}", status == 400 and message(x), (status, x))


# ---- streams ----

def streams(s):
    body = {"text": PROMPT, "sampling_params": greedy(6), "stream": True}
    status, kind, raw = s.stream("/generate", body)
    framed, data = events(raw)
    s.check("stream.status", status == 200, status)
    s.check("stream.type", kind.split(";")[0] == "text/event-stream", kind)
    s.check("stream.framing", framed, raw[:200])
    s.check("stream.done", data[-1] == "[DONE]" and data.count("[DONE]") == 1, data[-1])
    parts = [json.loads(x) for x in data[:-1]]
    whole = s.gen({**body, "stream": False})
    s.check("stream.several", 2 <= len(parts) <= 6, len(parts))
    s.check("stream.cumulative", all(b["text"].startswith(a["text"])
                                     for a, b in zip(parts, parts[1:])), parts)
    s.check("stream.ids_cumulative", all(b["output_ids"][:len(a["output_ids"])] == a["output_ids"]
                                         for a, b in zip(parts, parts[1:])), parts)
    s.check("stream.ends_as_whole", parts[-1]["text"] == whole["text"]
            and parts[-1]["output_ids"] == whole["output_ids"], (parts[-1], whole))
    s.check("stream.finish", all(p["meta_info"]["finish_reason"] is None for p in parts[:-1])
            and parts[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 6}, parts)
    s.check("stream.one_id", len({p["meta_info"]["id"] for p in parts}) == 1)
    s.check("stream.no_index", "index" not in parts[0], parts[0])
    s.check("stream.completion_tokens", [p["meta_info"]["completion_tokens"] for p in parts]
            == [len(p["output_ids"]) for p in parts], parts)
    _, _, raw = s.stream("/generate", {**body, "return_logprob": True, "logprob_start_len": 0,
                                       "top_logprobs_num": 2})
    parts = [json.loads(x) for x in events(raw)[1][:-1]]
    s.check("stream.logprobs", all(len(p["meta_info"]["output_token_logprobs"]) == len(p["output_ids"])
                                   for p in parts), parts[-1])
    s.check("stream.input_logprobs", all(len(p["meta_info"]["input_token_logprobs"]) == 5
                                         for p in parts), parts[0])
    s.check("stream.top_logprobs", len(parts[-1]["meta_info"]["output_top_logprobs"]) == 6, parts[-1])
    _, _, raw = s.stream("/generate", {**body, "text": [PROMPT, "One, two, three,"]})
    framed, data = events(raw)
    parts = [json.loads(x) for x in data[:-1]]
    s.check("stream.batch.index", {p["index"] for p in parts} == {0, 1}, parts[:2])
    last = {p["index"]: p for p in parts}
    s.check("stream.batch.ends", last[0]["text"] == whole["text"] and "four" in last[1]["text"], last)
    s.check("stream.batch.one_done", data[-1] == "[DONE]" and data.count("[DONE]") == 1, data[-1])
    status, _, raw = s.stream("/generate", {**body, "sampling_params": {"temperature": -1}})
    framed, data = events(raw) if status == 200 else (True, [])
    s.check("stream.error", status == 400 or (data[-1] == "[DONE]" and "error" in json.loads(data[0])),
            (status, raw))
    # A client that leaves ends its request: the server is free for the next.
    c = s.send("/generate", {**body, "sampling_params": greedy(2000, ignore_eos=True), "rid": "leaver"})
    c.getresponse().read(20)
    c.close()
    begun = time.monotonic()
    s.gen({**body, "stream": False, "sampling_params": greedy(1)})
    s.check("stream.after_leaving", time.monotonic() - begun < 60)


# ---- what ends a response ----

def stops(s):
    base = {"text": "One, two, three,"}
    plain = s.gen({**base, "sampling_params": greedy(8)})
    ids = plain["output_ids"]
    end = ids[3]
    a, b, c, d, e, f, g, h = s.many([
        {**base, "sampling_params": greedy(8, stop="five")},
        {**base, "sampling_params": greedy(8, stop=["nowhere", " five"])},
        {**base, "sampling_params": greedy(8, stop="five", no_stop_trim=True)},
        {**base, "sampling_params": greedy(8, stop_token_ids=[end])},
        {**base, "sampling_params": greedy(8, stop_token_ids=[end], no_stop_trim=True)},
        {**base, "sampling_params": greedy(8, stop_token_ids=[end], ignore_eos=True)},
        {**base, "sampling_params": greedy(8, stop_token_ids=[end], min_new_tokens=6)},
        {**base, "sampling_params": greedy(8, stop=["ve,", "five,"])},
    ])
    m = a["meta_info"]
    s.check("stop.string.finish", m["finish_reason"] == {"type": "stop", "matched": "five"}, m)
    s.check("stop.string.trimmed", "five" not in a["text"] and a["text"] == " four, ", a)
    s.check("stop.string.ids_kept", a["output_ids"] == ids[:len(a["output_ids"])]
            and m["completion_tokens"] == len(a["output_ids"]), a)
    s.check("stop.list.matched", b["meta_info"]["finish_reason"].get("matched") == " five", b)
    s.check("stop.list.trimmed", b["text"] == " four,", b["text"])
    s.check("stop.no_trim", c["text"].endswith("five"), c["text"])
    s.check("stop.token.finish", d["meta_info"]["finish_reason"] == {"type": "stop", "matched": end}, d)
    s.check("stop.token.ids_kept", d["output_ids"] == ids[:ids.index(end) + 1], (d, ids))
    s.check("stop.token.text_trimmed", plain["text"].startswith(d["text"])
            and len(d["text"]) < len(e["text"]), (d["text"], e["text"]))
    s.check("stop.token.no_trim", plain["text"].startswith(e["text"]), e["text"])
    s.check("stop.ignore_eos_ignores_tokens", f["meta_info"]["completion_tokens"] == 8
            and f["meta_info"]["finish_reason"]["type"] == "length", f["meta_info"])
    s.check("stop.min_new_tokens", g["meta_info"]["completion_tokens"] >= 6
            and end not in g["output_ids"][:6], g)
    s.check("stop.two_that_overlap", h["meta_info"]["finish_reason"]["type"] == "stop"
            and "five," not in h["text"], h)

    # The model's own end: a chat turn of SmolLM2 ends with <|im_end|>, token 2.
    chat = "<|im_start|>user\nSay yes.<|im_end|>\n<|im_start|>assistant\n"
    a, b, c = s.many([
        {"text": chat, "sampling_params": greedy(24)},
        {"text": chat, "sampling_params": greedy(24, ignore_eos=True)},
        {"text": chat, "sampling_params": greedy(24, skip_special_tokens=False)},
    ])
    s.check("stop.eos.finish", a["meta_info"]["finish_reason"] == {"type": "stop", "matched": 2}, a)
    s.check("stop.eos.last_id", a["output_ids"][-1] == 2, a["output_ids"])
    s.check("stop.eos.not_in_text", "<|im_end|>" not in a["text"], a["text"])
    s.check("stop.eos.ignored", b["meta_info"]["completion_tokens"] == 24, b["meta_info"])
    s.check("stop.eos.trimmed_when_special_shown", "<|im_end|>" not in c["text"], c["text"])


# ---- parameters whose effect SGLang's answers show ----

def golden_requests():
    """name -> request. Greedy, so that the answers can be compared token by token."""
    lp = {"return_logprob": True, "top_logprobs_num": 2}
    text = {"plain.france": PROMPT, "plain.count": "One, two, three,",
            "plain.code": "def fibonacci(n):\n    if n",
            "plain.story": "Once upon a time, in a small village by the sea,"}
    out = {k: {"text": v, "logprob_start_len": 0, **lp, "sampling_params": greedy(12)}
           for k, v in text.items()}
    # Texts that the model would go on repeating, with two logits between the first two tokens of
    # "zeros", and four of "ones".
    zeros, ones = "0 0 0 0 0 0 0 0 0 0 0 0 0 0", "1, 1, 1, 1, 1, 1, 1, 1, 1, 1,"
    for name, prompt, params in (
            ("none_zeros", zeros, {}),
            ("none_ones", ones, {}),
            ("repetition_ones", ones, {"repetition_penalty": 1.6}),
            ("repetition_below_1_zeros", zeros, {"repetition_penalty": 0.8}),
            ("frequency_ones", ones, {"frequency_penalty": 1.5}),
            ("frequency_negative_zeros", zeros, {"frequency_penalty": -1.0}),
            ("presence_ones", ones, {"presence_penalty": 2.0}),
            ("both_zeros", zeros, {"presence_penalty": 2.0, "frequency_penalty": 1.0}),
            ("bias_zeros", zeros, {"logit_bias": {"216": -6.0}}),
            ("bias_and_presence_ones", ones, {"logit_bias": {"33": -2.0}, "presence_penalty": 2.0})):
        out[f"penalty.{name}"] = {"text": prompt, **lp, "sampling_params": greedy(12, **params)}
    return out


def golden_answers(s):
    names = golden_requests()
    out = {}
    for part in (list(names)[:7], list(names)[7:]):
        for name, a in zip(part, s.many([names[n] for n in part])):
            m = a["meta_info"]
            top = m["output_top_logprobs"]
            out[name] = {"ids": a["output_ids"],
                         "logp": [t[0] for t in m["output_token_logprobs"]],
                         "gap": [x[0][0] - x[1][0] for x in top],
                         "input": [t[0] for t in m["input_token_logprobs"]]}
    return out


def compare(s, name, mine, theirs):
    """Tokens up to the first that SGLang itself is unsure of, then log-probs of those."""
    n = next((i for i, g in enumerate(theirs["gap"]) if g < MARGIN), len(theirs["ids"]))
    s.check(f"golden.{name}.tokens", mine["ids"][:n] == theirs["ids"][:n],
            (mine["ids"], theirs["ids"], theirs["gap"]))
    if not name.startswith("plain"):  # with penalties and bias the log-probs are other ones
        return n
    same = [i for i in range(min(n + 1, len(theirs["ids"]))) if mine["ids"][i] == theirs["ids"][i]]
    d = [abs(mine["logp"][i] - theirs["logp"][i]) for i in same]
    s.check(f"golden.{name}.logprobs", d and max(d) <= LOGP_MAX and sum(d) / len(d) <= LOGP_MEAN, d)
    d = [abs(a - b) for a, b in zip(mine["input"][1:], theirs["input"][1:])]
    s.check(f"golden.{name}.input_logprobs",
            len(mine["input"]) == len(theirs["input"]) and max(d) <= LOGP_MAX
            and sum(d) / len(d) <= LOGP_MEAN, d)
    return n


def golden(s):
    mine = golden_answers(s)
    if s.record:
        with open(s.golden, "w") as f:
            f.write("{\n" + ",\n".join(f'  "{k}": {json.dumps(v)}' for k, v in mine.items()) + "\n}\n")
        print(f"recorded {s.golden}", file=sys.stderr)
    with open(s.golden) as f:
        theirs = json.load(f)
    s.check("golden.same_requests", set(theirs) == set(mine), set(theirs) ^ set(mine))
    compared = sum(compare(s, name, mine[name], theirs[name]) for name in mine)
    total = sum(len(theirs[name]["ids"]) for name in mine)
    s.check("golden.enough_tokens", compared >= total // 2, (compared, total))
    ids = {k.split(".")[1]: v["ids"] for k, v in mine.items() if k.startswith("penalty.")}
    for name in ("repetition_ones", "frequency_ones", "both_zeros", "bias_zeros", "bias_and_presence_ones"):
        s.check(f"golden.{name}.acts", ids[name] != ids["none_" + name.split("_")[-1]], ids)
    # What the prompt says is not punished: the first token is as without penalties.
    s.check("golden.prompt_not_counted",
            all(x[0] == ids["none_" + name.split("_")[-1]][0] for name, x in ids.items()
                if name != "bias_zeros"), ids)


# ---- what is refused ----

def errors(s):
    ok = {"text": PROMPT}
    raw = {"not_json": b"{", "empty": b"", "list": b"[]", "number": b"5", "null": b"null",
           "bad_utf8": b'{"text": "\xff"}', "two_objects": b'{"text": "a"} {"text": "b"}'}
    for name, body in raw.items():
        status, x = s.call("/generate", body)
        s.check(f"errors.body.{name}", status == 400 and message(x), (status, x))
    for name, body in {
            "no_prompt": {},
            "null_prompt": {"text": None},
            "text_number": {"text": 5},
            "text_list_number": {"text": [5]},
            "ids_text": {"input_ids": "abc"},
            "ids_float": {"input_ids": [1.5]},
            "ids_nested_text": {"input_ids": [["a"]]},
            "ids_empty": {"input_ids": []},
            "ids_negative": {"input_ids": [-1]},
            "text_empty": {"text": ""},
            "ids_empty_in_batch": {"input_ids": [[5], []]},
            "logprob_start_below": {**ok, "return_logprob": True, "logprob_start_len": -2},
            "ids_beyond_vocabulary": {"input_ids": [49152]},
            "params_text": {**ok, "sampling_params": "hot"},
            "params_list_for_one": {**ok, "sampling_params": 5},
            "stream_text": {**ok, "stream": "perhaps"},
            "logprob_start_text": {**ok, "logprob_start_len": "zero"},
            "rid_number": {**ok, "rid": 5},
            "prompt_too_long": {"input_ids": [17] * 8200},
            "too_many_new": {**ok, "sampling_params": {"max_new_tokens": 8192}}}.items():
        if not s.spares(f"errors.{name}"):
            status, x = s.call("/generate", body)
            s.check(f"errors.{name}", status == 400 and message(x), (status, x))
    for name, params in {
            "temperature_negative": {"temperature": -0.1},
            "temperature_text": {"temperature": "hot"},
            "top_p_zero": {"top_p": 0}, "top_p_above_1": {"top_p": 1.1}, "top_p_text": {"top_p": "x"},
            "top_k_zero": {"top_k": 0}, "top_k_minus_2": {"top_k": -2}, "top_k_float": {"top_k": 1.5},
            "min_p_negative": {"min_p": -0.1}, "min_p_above_1": {"min_p": 1.1},
            "max_new_negative": {"max_new_tokens": -1}, "max_new_text": {"max_new_tokens": "9"},
            "min_new_negative": {"min_new_tokens": -1},
            "min_above_max": {"min_new_tokens": 9, "max_new_tokens": 8},
            "frequency_above": {"frequency_penalty": 2.1}, "frequency_below": {"frequency_penalty": -2.1},
            "presence_above": {"presence_penalty": 2.1}, "presence_below": {"presence_penalty": -2.1},
            "repetition_zero": {"repetition_penalty": 0}, "repetition_above": {"repetition_penalty": 2.1},
            "stop_number": {"stop": 5}, "stop_list_number": {"stop": [5]},
            "stop_ids_text": {"stop_token_ids": "a"}, "stop_ids_list_text": {"stop_token_ids": ["a"]},
            "bias_list": {"logit_bias": [1]}, "bias_beyond": {"logit_bias": {"49152": 1.0}},
            "bias_text": {"logit_bias": {"17": "much"}}, "bias_name": {"logit_bias": {"a": 1.0}},
            "ignore_eos_text": {"ignore_eos": "x"}, "seed_text": {"sampling_seed": "x"},
            "unknown_param": {"temprature": 0.5}}.items():
        status, x = s.call("/generate", {**ok, "sampling_params": {"max_new_tokens": 1, **params}})
        s.check(f"errors.params.{name}", status == 400 and message(x), (status, x))
    a = s.gen({"text": PROMPT, "sampling_params": greedy(1)})
    s.check("errors.server_lives", a["meta_info"]["completion_tokens"] == 1, a)


def defaults(s):
    status, a = s.default.wait()
    s.check("default.tokens", status == 200 and a["meta_info"]["completion_tokens"] == 128
            and a["meta_info"]["finish_reason"] == {"type": "length", "length": 128}, (status, a))


# ---- aborting, pausing, weights, memory ----

class Background:
    """A request in a thread of its own."""

    def __init__(self, s, body):
        self.out = None

        def run():
            self.out = s.call("/generate", body)

        self.thread = threading.Thread(target=run)
        self.thread.start()

    def wait(self, seconds=None):
        self.thread.join(seconds)
        return self.out


def running(s, body, tokens=2):
    """A streamed request that is known to run: its connection after the first events."""
    c = s.send("/generate", {**body, "stream": True})
    r = c.getresponse()
    for _ in range(tokens):
        while not r.readline().startswith(b"data: "):
            pass
    return c, r


def rest(c, r):
    lines = [x for x in r.read().decode().split("\n") if x.startswith("data: ")]
    c.close()
    return [json.loads(x[6:]) for x in lines if x != "data: [DONE]"]


def aborts(s):
    long = {"text": PROMPT, "sampling_params": greedy(4000, ignore_eos=True)}
    c, r = running(s, {**long, "rid": "abort-me"})
    status, body = s.call("/abort_request", {"rid": "abort-me"})
    s.check("abort.status", status == 200 and body == "", (status, body))
    last = rest(c, r)[-1]["meta_info"]
    s.check("abort.finish", last["finish_reason"]["type"] == "abort", last["finish_reason"])
    s.check("abort.message", isinstance(last["finish_reason"].get("message"), str), last["finish_reason"])
    s.check("abort.tokens_so_far", 1 <= last["completion_tokens"] < 4000, last["completion_tokens"])
    status, body = s.call("/abort_request", {"rid": "nobody"})
    s.check("abort.unknown", status == 200, (status, body))
    c, r = running(s, {**long, "rid": "stay-10", "sampling_params": greedy(10, ignore_eos=True)})
    status, body = s.call("/abort_request", {"rid": "stay-1"})
    s.check("abort.other_with_that_prefix.status", status == 200, (status, body))
    status, body = s.call("/abort_request", {"rid": "", "abort_all": False})
    s.check("abort.nobody_named", status == 200, (status, body))
    last = rest(c, r)[-1]["meta_info"]
    s.check("abort.other_with_that_prefix.lives", last["finish_reason"]["type"] == "length", last)
    whole = Background(s, {**long, "rid": "whole"})
    c, r = running(s, long)
    status, body = s.call("/abort_request", {"abort_all": True})
    s.check("abort.all.status", status == 200, (status, body))
    last = rest(c, r)[-1]["meta_info"]
    s.check("abort.all.finish", last["finish_reason"]["type"] == "abort", last)
    status, x = whole.wait(120)
    s.check("abort.all.not_streamed", status == 200
            and x["meta_info"]["finish_reason"]["type"] == "abort", (status, str(x)[:300]))
    for name, body in (("rid_number", {"rid": 5}), ("all_text", {"abort_all": "perhaps"})):
        status, x = s.call("/abort_request", body)
        s.check(f"abort.{name}", status == 400 and message(x), (status, x))
    status, x = s.call("/abort_request", b"{")
    s.check("abort.not_json", status == 400 and message(x), (status, x))


def pauses(s):
    body = {"text": PROMPT, "sampling_params": greedy(6)}
    before = s.gen(body)
    for mode in ("retract", "in_place"):
        status, x = s.call("/pause_generation", {"mode": mode})
        s.check(f"pause.{mode}.status", status == 200, (status, x))
        s.check(f"pause.{mode}.answer", x.get("status") == "ok" and isinstance(x.get("message"), str), x)
        waiting = Background(s, body)
        s.check(f"pause.{mode}.waits", waiting.wait(1.0) is None, waiting.out)
        status, x = s.call("/continue_generation", {})
        s.check(f"pause.{mode}.continue", status == 200 and x.get("status") == "ok", (status, x))
        status, x = waiting.wait(120)
        s.check(f"pause.{mode}.goes_on", status == 200 and x["output_ids"] == before["output_ids"], x)
    c, r = running(s, {**body, "sampling_params": greedy(10, ignore_eos=True)})
    s.call("/pause_generation", {"mode": "retract"})
    s.call("/continue_generation", {})
    last = rest(c, r)[-1]
    s.check("pause.retract.middle", last["meta_info"]["completion_tokens"] == 10
            and last["output_ids"][:6] == before["output_ids"], last)
    c, r = running(s, {**body, "sampling_params": greedy(4000, ignore_eos=True)})
    status, x = s.call("/pause_generation", {})
    s.check("pause.default_aborts.status", status == 200, (status, x))
    last = rest(c, r)[-1]["meta_info"]
    s.check("pause.default_aborts", last["finish_reason"]["type"] == "abort", last)
    status, x = s.call("/continue_generation", {})
    s.check("pause.continue_after_abort", status == 200, (status, x))
    status, x = s.call("/continue_generation", {})
    s.check("pause.continue_twice", status == 200, (status, x))
    status, x = s.call("/pause_generation", {"mode": "sleep"})
    s.check("pause.unknown_mode", status == 400 and message(x), (status, x))
    if status == 200:
        s.call("/continue_generation", {})
    s.check("pause.works_after", s.gen(body)["output_ids"] == before["output_ids"])


def cache(s):
    for method in ("GET", "POST"):
        status, x = s.call("/flush_cache", method=method)
        s.check(f"cache.flush.{method.lower()}", status == 200 and isinstance(x, str)
                and x.startswith("Cache flushed."), (status, x))
    body = {"input_ids": [17 + i % 7 for i in range(400)], "sampling_params": greedy(2)}
    a = s.gen(body)
    b = s.gen(body)
    s.check("cache.first_is_not_cached", a["meta_info"]["cached_tokens"] == 0, a["meta_info"])
    s.check("cache.same_answer", b["output_ids"] == a["output_ids"], (a, b))
    s.check("cache.cached_tokens", 256 <= b["meta_info"]["cached_tokens"] < 400, b["meta_info"])
    s.call("/flush_cache", method="POST")
    c = s.gen(body)
    s.check("cache.flushed", c["meta_info"]["cached_tokens"] == 0, c["meta_info"])


def weights(s):
    path = s.call("/get_model_info")[1]["model_path"]
    body = {"text": PROMPT, "sampling_params": greedy(6)}
    before = s.gen(body)
    status, x = s.call("/update_weight_version", {"new_version": "seven"})
    s.check("weights.version", status == 200 and x.get("success") is True
            and x.get("new_version") == "seven", (status, x))
    s.check("weights.version.info", s.call("/get_model_info")[1]["weight_version"] == "seven")
    s.check("weights.version.meta", s.gen(body)["meta_info"]["weight_version"] == "seven")
    status, x = s.call("/update_weight_version", {})
    s.check("weights.version.missing", status == 400 and message(x), (status, x))

    status, x = s.call("/get_weights_by_name", {"name": "model.norm.weight"})
    s.check("weights.by_name", status == 200 and len(x) == 100
            and all(isinstance(v, (int, float)) for v in x), (status, str(x)[:200]))
    norm = x
    status, x = s.call("/get_weights_by_name", {"name": "model.norm.weight", "truncate_size": 10})
    s.check("weights.by_name.truncated", status == 200 and x == norm[:10], (status, str(x)[:200]))
    status, x = s.call("/get_weights_by_name", {"name": "model.layers.0.self_attn.o_proj.weight",
                                                "truncate_size": 3})
    s.check("weights.by_name.matrix", status == 200 and len(x) == 3 and len(x[0]) == 576,
            (status, str(x)[:200]))
    status, x = s.call("/get_weights_by_name", {"name": "model.layers.0.self_attn.q_proj.weight",
                                                "truncate_size": 2})
    s.check("weights.by_name.of_a_fused_one", status == 200 and len(x) == 2 and len(x[0]) == 576,
            (status, str(x)[:200]))
    status, x = s.call("/get_weights_by_name", {"name": "nothing.weight"})
    s.check("weights.by_name.unknown", status == 400, (status, str(x)[:200]))
    status, x = s.call("/get_weights_by_name", {})
    s.check("weights.by_name.missing", status == 400 and message(x), (status, x))

    status, x = s.call("/weights_checker", {"action": "snapshot"})
    s.check("weights.checker.snapshot", status == 200 and x["success"] is True, (status, x))
    status, x = s.call("/weights_checker", {"action": "compare"})
    s.check("weights.checker.equal", status == 200 and x["success"] is True, (status, x))
    status, x = s.call("/weights_checker", {"action": "checksum"})
    s.check("weights.checker.checksum", status == 200 and x["success"] is True, (status, str(x)[:300]))
    s.check("weights.checker.checksum.ranks", isinstance(x.get("ranks"), list)
            and isinstance(x["ranks"][0].get("checksums"), dict), str(x)[:300])
    s.check("weights.checker.checksum.whole", isinstance(x.get("per_engine_checksum"), str),
            [k for k in x])
    status, x = s.call("/weights_checker", method="POST")
    s.check("weights.checker.default", status == 200 and x["success"] is True, (status, str(x)[:300]))
    status, x = s.call("/weights_checker", {"action": "reset_tensors"})
    s.check("weights.checker.reset", status == 200 and x["success"] is True, (status, x))
    status, x = s.call("/weights_checker", {"action": "compare"})
    s.check("weights.checker.differs", status == 400 and x.get("success") is False
            and isinstance(x.get("message"), str), (status, str(x)[:300]))
    status, x = s.call("/weights_checker", {"action": "dance"})
    s.check("weights.checker.unknown", status == 400 and x.get("success") is False, (status, str(x)[:300]))

    status, x = s.call("/update_weights_from_disk", {"model_path": path, "weight_version": "8"})
    s.check("weights.disk", status == 200 and x["success"] is True, (status, x))
    s.check("weights.disk.answer", isinstance(x["message"], str)
            and is_int(x.get("num_paused_requests")), x)
    after = s.gen(body)
    s.check("weights.disk.restores", after["output_ids"] == before["output_ids"], (after, before))
    s.check("weights.disk.version", after["meta_info"]["weight_version"] == "8", after["meta_info"])
    status, x = s.call("/weights_checker", {"action": "compare"})
    s.check("weights.disk.compare", status == 200 and x["success"] is True, (status, x))
    status, x = s.call("/update_weights_from_disk", {"model_path": path})
    s.check("weights.disk.version_kept", status == 200
            and s.call("/get_model_info")[1]["weight_version"] == "8", (status, x))
    status, x = s.call("/update_weights_from_disk", {"model_path": "/nonexistent/model"})
    s.check("weights.disk.bad_path", status == 400 and x.get("success") is False
            and isinstance(x.get("message"), str), (status, x))
    status, x = s.call("/update_weights_from_disk", {})
    s.check("weights.disk.missing", status == 400 and message(x), (status, x))
    s.check("weights.disk.still_works", s.gen(body)["output_ids"] == before["output_ids"])

    # A weight update between a pause and a continue, as a training loop does it.
    c, r = running(s, {**body, "sampling_params": greedy(10, ignore_eos=True)})
    s.call("/pause_generation", {"mode": "retract"})
    status, x = s.call("/flush_cache", method="POST")
    s.check("weights.loop.flush", status == 200, (status, x))
    status, x = s.call("/update_weights_from_disk", {"model_path": path, "weight_version": "9"})
    s.check("weights.loop.update", status == 200 and x["success"] is True, (status, x))
    status, x = s.call("/continue_generation", {})
    s.check("weights.loop.continue", status == 200, (status, x))
    last = rest(c, r)[-1]
    s.check("weights.loop.finishes", last["meta_info"]["completion_tokens"] == 10, last["meta_info"])
    s.check("weights.loop.version", last["meta_info"]["weight_version"] == "9", last["meta_info"])
    spans = last["meta_info"].get("weight_versions")
    s.check("weights.loop.versions", [v["version"] for v in spans] == ["8", "9"]
            and spans[0]["start"] == 0 and spans[0]["end"] == spans[1]["start"] and spans[1]["end"] == 10,
            spans)
    s.call("/update_weight_version", {"new_version": "default"})


def memory(s):
    body = {"text": PROMPT, "sampling_params": greedy(6)}
    before = s.gen(body)
    for tags in MEMORY_TAGS:
        name = "_".join(tags or ["all"])
        more = {} if tags is None else {"tags": tags}
        if all([s.spares(f"memory.{what}.{name}") for what in ("release", "resume", "works_after")]):
            continue
        status, x = s.call("/release_memory_occupation", more)
        s.check(f"memory.release.{name}", status == 200, (status, x))
        status, x = s.call("/resume_memory_occupation", more)
        s.check(f"memory.resume.{name}", status == 200, (status, x))
        if tags and "weights" in tags:  # what they hold afterwards is the client's to give
            s.call("/update_weights_from_disk", {"model_path": s.call("/get_model_info")[1]["model_path"]})
        s.check(f"memory.works_after.{name}", s.gen(body)["output_ids"] == before["output_ids"])


# ---- figures for Prometheus ----

def metric(text, name):
    """The sum of a metric's samples over its labels, or None."""
    values = [float(line.rsplit(" ", 1)[1]) for line in text.split("\n")
              if line.startswith((name + "{", name + " "))]
    return sum(values) if values else None


def metrics(s):
    status, before = s.call("/metrics")
    s.check("metrics.status", status == 200 and isinstance(before, str), (status, str(before)[:200]))
    for name in ("num_running_reqs", "num_queue_reqs", "num_used_tokens", "token_usage", "gen_throughput",
                 "cache_hit_rate", "prompt_tokens_total", "generation_tokens_total", "num_requests_total",
                 "num_aborted_requests_total", "time_to_first_token_seconds_count",
                 "inter_token_latency_seconds_count", "e2e_request_latency_seconds_sum"):
        value = metric(before, f"sglang:{name}")
        s.check(f"metrics.{name}", value is not None and value >= 0, value)
    s.check("metrics.labels", "sglang:num_running_reqs{" in before and 'model_name="' in before)
    s.check("metrics.types", "# TYPE sglang:num_running_reqs gauge" in before
            and "# TYPE sglang:prompt_tokens_total counter" in before
            and "# TYPE sglang:e2e_request_latency_seconds histogram" in before)
    s.gen({"text": PROMPT, "sampling_params": greedy(3)})
    after = before
    for _ in range(100):
        after = s.call("/metrics")[1]
        if metric(after, "sglang:num_requests_total") > metric(before, "sglang:num_requests_total"):
            break
        time.sleep(0.1)
    for name, by in (("num_requests_total", 1), ("prompt_tokens_total", 5), ("generation_tokens_total", 3)):
        grown = metric(after, f"sglang:{name}") - metric(before, f"sglang:{name}")
        s.check(f"metrics.{name}.grows", grown == by, grown)


# ---- who may ask ----

def keys(s):
    for name, head in (("no_key", {"Authorization": ""}), ("wrong_key", {"Authorization": "Bearer wrong"}),
                       ("not_bearer", {"Authorization": s.key})):
        status, x = s.call("/generate", {"text": PROMPT, "sampling_params": greedy(1)}, headers=head)
        s.check(f"keys.{name}", status == 401 and message(x), (status, x))
    none = {"Authorization": ""}
    for path in ("/get_model_info", "/get_server_info", "/v1/models", "/flush_cache"):
        status, x = s.call(path, headers=none)
        s.check(f"keys.needed{path.replace('/', '.')}", status == 401, (status, x))
    for path in ("/health", "/health_generate", "/metrics"):
        status, x = s.call(path, headers=none)
        s.check(f"keys.open{path.replace('/', '.')}", status == 200, (status, str(x)[:200]))


# ---- OpenAI's API ----

def models(s):
    status, x = s.call("/v1/models")
    s.check("models.list", status == 200 and x["object"] == "list" and len(x["data"]) == 1, (status, x))
    card = x["data"][0]
    s.check("models.card", card["object"] == "model" and is_int(card["created"])
            and isinstance(card["owned_by"], str), card)
    s.check("models.root", card.get("root") == card["id"], card)
    s.check("models.max_model_len", card.get("max_model_len") == 8192, card)
    status, y = s.call("/v1/models/" + card["id"])
    s.check("models.one", status == 200 and y["id"] == card["id"], (status, y))
    status, y = s.call("/v1/models/none-such")
    s.check("models.unknown", status == 404 and message(y), (status, y))
    s.check("models.unknown.code", y.get("error", {}).get("code") == "model_not_found", y)
    return card["id"]


def completions(s):
    path = "/v1/completions"
    model = s.call("/v1/models")[1]["data"][0]["id"]
    base = {"model": model, "prompt": PROMPT, "temperature": 0, "max_tokens": 6}
    status, x = s.call(path, base)
    s.check("completions.status", status == 200, (status, x))
    s.check("completions.head", x["object"] == "text_completion" and isinstance(x["id"], str)
            and is_int(x["created"]) and x["model"] == model, x)
    choice = x["choices"][0]
    s.check("completions.choice", len(x["choices"]) == 1 and choice["index"] == 0
            and " Paris" in choice["text"], x)
    s.check("completions.finish", choice["finish_reason"] == "length", choice)
    s.check("completions.no_logprobs", choice["logprobs"] is None, choice)
    s.check("completions.matched_stop", choice.get("matched_stop", 0) is None, choice)
    u = x["usage"]
    s.check("completions.usage", (u["prompt_tokens"], u["completion_tokens"], u["total_tokens"])
            == (5, 6, 11), u)
    s.check("completions.weight_version", x["metadata"]["weight_version"] == "default", x)
    text = choice["text"]
    native = s.gen({"text": PROMPT, "sampling_params": greedy()})
    s.check("completions.as_native", native["text"] == text, (native, text))
    status, x = s.call(path, {**base, "prompt": [504, 3575, 282, 4649, 314]})
    s.check("completions.ids", status == 200 and x["choices"][0]["text"] == text, (status, x))
    status, x = s.call(path, {**base, "prompt": [PROMPT, "One, two, three,"], "max_tokens": 3})
    s.check("completions.list", status == 200 and [c["index"] for c in x["choices"]] == [0, 1]
            and "four" in x["choices"][1]["text"], (status, x))
    s.check("completions.list.usage", x["usage"]["prompt_tokens"] == 11, x["usage"])
    status, x = s.call(path, {**base, "prompt": [[504, 3575], [282]], "max_tokens": 1})
    s.check("completions.list_of_ids", status == 200 and len(x["choices"]) == 2, (status, x))
    status, x = s.call(path, {**base, "n": 2, "max_tokens": 3})
    s.check("completions.n", status == 200 and len(x["choices"]) == 2
            and x["usage"]["completion_tokens"] == 6 and x["usage"]["prompt_tokens"] == 5, (status, x))
    status, x = s.call(path, {**base, "echo": True})
    s.check("completions.echo", status == 200 and x["choices"][0]["text"] == PROMPT + text, (status, x))
    status, x = s.call(path, {**base, "prompt": "One, two, three,", "stop": ["five"]})
    c = x["choices"][0]
    s.check("completions.stop", c["text"] == " four, " and c["finish_reason"] == "stop"
            and c["matched_stop"] == "five", c)
    status, x = s.call(path, {"prompt": "Once upon a time", "temperature": 0})
    s.check("completions.default_16", status == 200 and x["usage"]["completion_tokens"] == 16, (status, x))
    s.check("completions.model_optional", status == 200 and isinstance(x["model"], str), x)

    status, x = s.call(path, {**base, "logprobs": 2})
    lp = x["choices"][0]["logprobs"]
    s.check("completions.logprobs.fields",
            {"tokens", "token_logprobs", "top_logprobs", "text_offset"} <= set(lp), lp)
    s.check("completions.logprobs.lengths", {len(lp[k]) for k in (
        "tokens", "token_logprobs", "top_logprobs", "text_offset")} == {6}, lp)
    s.check("completions.logprobs.tokens", "".join(lp["tokens"]) == text, lp)
    s.check("completions.logprobs.top", all(len(t) == 2 for t in lp["top_logprobs"]), lp)
    s.check("completions.logprobs.best", all(abs(max(t.values()) - v) < 1e-3 for t, v in
                                             zip(lp["top_logprobs"], lp["token_logprobs"])), lp)
    status, x = s.call(path, {**base, "logprobs": 1, "echo": True, "max_tokens": 2})
    lp = x["choices"][0]["logprobs"]
    s.check("completions.logprobs.echo", status == 200 and len(lp["tokens"]) == 7
            and lp["token_logprobs"][0] is None, lp)

    status, kind, raw = s.stream(path, {**base, "stream": True, "stream_options": {"include_usage": True}})
    framed, data = events(raw)
    s.check("completions.stream.framing", status == 200 and framed
            and kind.split(";")[0] == "text/event-stream" and data[-1] == "[DONE]", (status, raw[:200]))
    parts = [json.loads(d) for d in data[:-1]]
    s.check("completions.stream.object", all(p["object"] == "text_completion" for p in parts), parts[0])
    s.check("completions.stream.text", "".join(p["choices"][0]["text"] for p in parts if p["choices"])
            == text, parts)
    s.check("completions.stream.finish", [p["choices"][0]["finish_reason"] for p in parts
                                          if p["choices"]][-1] == "length", parts[-2])
    s.check("completions.stream.usage", parts[-1]["choices"] == []
            and parts[-1]["usage"]["total_tokens"] == 11, parts[-1])
    _, _, raw = s.stream(path, {**base, "stream": True})
    parts = [json.loads(d) for d in events(raw)[1][:-1]]
    s.check("completions.stream.no_usage", all(p.get("usage") is None for p in parts), parts[-1])
    for name, body in {
            "no_prompt": {"model": model}, "empty_prompt": {**base, "prompt": ""},
            "empty_list": {**base, "prompt": []},
            "max_tokens_zero": {**base, "max_tokens": 0}, "max_tokens_text": {**base, "max_tokens": "x"},
            "temperature": {**base, "temperature": -1}, "top_p": {**base, "top_p": 2},
            "logprobs_text": {**base, "logprobs": "yes"}, "stream_text": {**base, "stream": "perhaps"},
            "too_long": {**base, "max_tokens": 8192}}.items():
        status, x = s.call(path, body)
        s.check(f"completions.error.{name}", status == 400 and message(x), (status, x))
    status, x = s.call(path, b"{")
    s.check("completions.error.not_json", status == 400 and message(x), (status, x))
    status, x = s.call(path, {**base, "temperature": -1})
    s.check("completions.error.shape", x.get("object") == "error" and x.get("code") == 400
            and isinstance(x.get("message"), str) and isinstance(x.get("type"), str)
            and "param" in x, x)
    status, x = s.call(path, {**base, "unheard_of": 1, "user": "me", "best_of": 1, "suffix": None})
    s.check("completions.unknown_field", status == 200, (status, x))


WEATHER = {"type": "function",
           "function": {"name": "weather", "description": "The weather of a city",
                        "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
                                       "required": ["city"]}}}


def chat(s):
    path = "/v1/chat/completions"
    model = s.call("/v1/models")[1]["data"][0]["id"]
    messages = [{"role": "user", "content": "Name a fruit."}]
    base = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 8}
    status, x = s.call(path, base)
    s.check("chat.status", status == 200, (status, x))
    s.check("chat.head", x["object"] == "chat.completion" and isinstance(x["id"], str)
            and is_int(x["created"]) and x["model"] == model, x)
    c = x["choices"][0]
    s.check("chat.message", c["message"]["role"] == "assistant"
            and isinstance(c["message"]["content"], str) and c["message"]["content"], c)
    s.check("chat.no_reasoning", c["message"].get("reasoning_content", 0) is None, c)
    s.check("chat.no_tool_calls", c["message"].get("tool_calls") is None, c)
    s.check("chat.choice", c["index"] == 0 and c["logprobs"] is None, c)
    s.check("chat.finish", c["finish_reason"] in ("length", "stop"), c)
    u = x["usage"]
    s.check("chat.usage", u["total_tokens"] == u["prompt_tokens"] + u["completion_tokens"]
            and u["completion_tokens"] <= 8, u)
    s.check("chat.weight_version", x["metadata"]["weight_version"] == "default", x)
    # SmolLM2's template puts a system message of its own before the user's.
    s.check("chat.prompt_tokens", u["prompt_tokens"] == 34, u)
    text = c["message"]["content"]
    native = s.gen({"text": "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by "
                            "Hugging Face<|im_end|>\n<|im_start|>user\nName a fruit.<|im_end|>\n"
                            "<|im_start|>assistant\n", "sampling_params": greedy(8)})
    s.check("chat.as_native", native["text"] == text, (native["text"], text))
    for name, content in (("parts", [{"type": "text", "text": "Name a fruit."}]),):
        status, x = s.call(path, {**base, "messages": [{"role": "user", "content": content}]})
        s.check(f"chat.{name}", status == 200 and x["choices"][0]["message"]["content"] == text, (status, x))
    status, x = s.call(path, {**base, "max_completion_tokens": 3})
    s.check("chat.max_completion_tokens", x["usage"]["completion_tokens"] == 3, x)
    status, x = s.call(path, {**base, "messages": [{"role": "system", "content": "Be brief."}, *messages,
                                                   {"role": "assistant", "content": "Apple."},
                                                   {"role": "user", "content": "Another."}]})
    s.check("chat.turns", status == 200, (status, x))
    status, x = s.call(path, {**base, "n": 2})
    s.check("chat.n", [c["index"] for c in x["choices"]] == [0, 1]
            and all(c["message"]["content"] == text for c in x["choices"]), x)
    status, x = s.call(path, {**base, "logprobs": True, "top_logprobs": 3})
    content = x["choices"][0]["logprobs"]["content"]
    s.check("chat.logprobs.length", len(content) == x["usage"]["completion_tokens"], content)
    s.check("chat.logprobs.fields", all({"token", "logprob", "bytes", "top_logprobs"} <= set(t)
                                        for t in content), content[0])
    s.check("chat.logprobs.bytes", all(bytes(t["bytes"]).decode() == t["token"] for t in content), content)
    s.check("chat.logprobs.top", all(len(t["top_logprobs"]) == 3 and
                                     {"token", "logprob", "bytes"} <= set(t["top_logprobs"][0])
                                     for t in content), content[0])
    s.check("chat.logprobs.text", "".join(t["token"] for t in content).startswith(text), content)
    status, x = s.call(path, {**base, "logprobs": True})
    s.check("chat.logprobs.without_top", status == 200
            and all(t["top_logprobs"] == [] for t in x["choices"][0]["logprobs"]["content"]), x)
    status, x = s.call(path, {**base, "messages": [{"role": "system", "content": "Answer in one word."},
                                                   {"role": "user", "content": "Say yes."}],
                              "max_tokens": 24})
    c = x["choices"][0]
    s.check("chat.eos", c["finish_reason"] == "stop" and c["matched_stop"] == 2, c)
    status, x = s.call(path, {**base, "stop": text[2:5]})
    c = x["choices"][0]
    s.check("chat.stop", c["finish_reason"] == "stop" and c["matched_stop"] == text[2:5]
            and c["message"]["content"] == text[:text.index(text[2:5])], c)
    status, x = s.call(path, {"messages": messages, "max_tokens": 1})
    s.check("chat.model_optional", status == 200, (status, x))
    status, x = s.call(path, {**base, "unheard_of": 1, "user": "me", "store": False, "metadata": {"a": "b"},
                              "parallel_tool_calls": True, "seed": 5, "max_tokens": 1})
    s.check("chat.unknown_field", status == 200, (status, x))

    stream = {**base, "stream": True}
    status, kind, raw = s.stream(path, {**stream, "stream_options": {"include_usage": True}})
    framed, data = events(raw)
    s.check("chat.stream.framing", status == 200 and framed and data[-1] == "[DONE]"
            and kind.split(";")[0] == "text/event-stream", (status, raw[:200]))
    parts = [json.loads(d) for d in data[:-1]]
    s.check("chat.stream.object", all(p["object"] == "chat.completion.chunk" for p in parts), parts[0])
    s.check("chat.stream.one_id", len({p["id"] for p in parts}) == 1)
    s.check("chat.stream.role", parts[0]["choices"][0]["delta"].get("role") == "assistant", parts[0])
    said = [p["choices"][0] for p in parts if p["choices"]]
    s.check("chat.stream.text", "".join(c["delta"].get("content") or "" for c in said) == text, said)
    finishes = [c.get("finish_reason") for c in said]
    s.check("chat.stream.finish", finishes[-1] in ("length", "stop")
            and all(f is None for f in finishes[:-1]), finishes)
    s.check("chat.stream.usage", parts[-1]["choices"] == []
            and parts[-1]["usage"]["total_tokens"] == u["total_tokens"], parts[-1])
    _, _, raw = s.stream(path, {**stream, "stream_options": {"continuous_usage_stats": True}})
    counts = [x["usage"]["completion_tokens"] for x in map(json.loads, events(raw)[1][:-1])
              if x.get("usage") and x["choices"]]
    s.check("chat.stream.continuous_usage", counts and counts == sorted(counts)
            and counts[-1] == u["completion_tokens"], counts)
    _, _, raw = s.stream(path, {**stream, "logprobs": True, "top_logprobs": 2})
    said = [json.loads(d)["choices"][0] for d in events(raw)[1][:-1]]
    tokens = [t for c in said if c.get("logprobs") for t in c["logprobs"]["content"]]
    s.check("chat.stream.logprobs", len(tokens) == u["completion_tokens"]
            and all(len(t["top_logprobs"]) == 2 for t in tokens), tokens)
    _, _, raw = s.stream(path, {**stream, "n": 2})
    said = [json.loads(d)["choices"][0] for d in events(raw)[1][:-1]]
    s.check("chat.stream.n", all("".join(c["delta"].get("content") or "" for c in said if c["index"] == i)
                                 == text for i in (0, 1)), said)

    for effort in ("none", "high", 0.5):
        status, x = s.call(path, {**base, "reasoning_effort": effort, "max_tokens": 1})
        s.check(f"chat.reasoning_effort.{effort}", status == 200, (status, x))
    status, x = s.call(path, {**base, "tools": [WEATHER]})
    s.check("chat.tools", status == 200 and x["choices"][0]["message"]["role"] == "assistant", (status, x))
    status, x = s.call(path, {**base, "tools": [WEATHER], "tool_choice": "none"})
    s.check("chat.tools.none", status == 200 and x["choices"][0]["message"].get("tool_calls") is None,
            (status, x))
    status, x = s.call(path, {**base, "messages": messages + [
        {"role": "assistant", "content": None,
         "tool_calls": [{"id": "call_1", "type": "function",
                         "function": {"name": "weather", "arguments": "{\"city\": \"Rome\"}"}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Sunny."}], "tools": [WEATHER]})
    s.check("chat.tools.history", status == 200, (status, x))
    for name, body in {
            "no_messages": {"model": model}, "empty_messages": {**base, "messages": []},
            "messages_text": {**base, "messages": "hi"}, "no_role": {**base, "messages": [{"content": "a"}]},
            "unknown_role": {**base, "messages": [{"role": "wizard", "content": "a"}]},
            "content_number": {**base, "messages": [{"role": "user", "content": 5}]},
            "no_content": {**base, "messages": [{"role": "user"}]},
            "part_type": {**base, "messages": [{"role": "user", "content": [{"type": "smell"}]}]},
            "temperature": {**base, "temperature": -1}, "top_p": {**base, "top_p": 2},
            "penalty": {**base, "presence_penalty": 9}, "max_tokens_text": {**base, "max_tokens": "x"},
            "n_text": {**base, "n": "two"}, "tools_text": {**base, "tools": "all"},
            "tool_without_name": {**base, "tools": [{"type": "function", "function": {}}]},
            "tool_choice": {**base, "tools": [WEATHER], "tool_choice": "perhaps"},
            "unknown_tool": {**base, "tools": [WEATHER],
                             "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "required_without_tools": {**base, "tool_choice": "required"},
            "reasoning_effort": {**base, "reasoning_effort": "extreme"},
            "reasoning_effort_bool": {**base, "reasoning_effort": True},
            "template_kwargs": {**base, "chat_template_kwargs": 3},
            "stream_options": {**base, "stream": True, "stream_options": 3},
            "too_long": {**base, "max_tokens": 8192}}.items():
        status, x = s.call(path, body)
        s.check(f"chat.error.{name}", status == 400 and message(x), (status, x))
    status, x = s.call(path, b"nothing")
    s.check("chat.error.not_json", status == 400 and message(x), (status, x))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("url")
    p.add_argument("--kind", choices=("miles", "sglang"), required=True)
    p.add_argument("--key", help="the server's API key")
    p.add_argument("--golden", default=GOLDEN)
    p.add_argument("--record", action="store_true")
    p.add_argument("--only", help="run the sections whose name begins so")
    args = p.parse_args()
    s = Suite(args)
    s.golden, s.record = args.golden, args.record
    for name, function in (("info", info), ("single", single), ("logprobs", logprobs), ("batch", batch),
                           ("stream", streams), ("stop", stops), ("golden", golden), ("errors", errors),
                           ("default", defaults),
                           ("models", models), ("completions", completions), ("chat", chat),
                           ("cache", cache), ("abort", aborts), ("pause", pauses), ("weights", weights),
                           ("memory", memory), ("metrics", metrics), ("keys", keys)):
        if name != "keys" or args.key:
            s.section(name, function)
    unused = set(KNOWN) - s.seen
    if unused and not args.only:
        s.check("known.names", False, unused)
    if s.known:
        print(f"SGLang fails {len(s.known)} checks:", file=sys.stderr)
        for name in s.known:
            print(f"  {name}: {KNOWN[name]}", file=sys.stderr)
    line = f"conform_{s.kind}={len(s.passed)} failed_{s.kind}={len(s.failed)}"
    print(line + (f" known_sglang={len(s.known)}" if s.kind == "sglang" else ""))
    return 1 if s.failed else 0


if __name__ == "__main__":
    sys.exit(main())
