"""OpenAI's API by its own Python package, by the bodies of JavaScript clients, and compared with gRPC token for token."""
import asyncio
import concurrent.futures
import json
import math
import os
import random
import signal
import subprocess

import openai
import pydantic
import pytest
import requests

from conftest import BIN, Sluice, free_port, model_path, patience, until
from test_reasoning import ALLOWED, make_model

CHAT = [{"role": "user", "content": "Name three colours."}]
TEXT = "The capital of France is"


@pytest.fixture(scope="module")
def api(tmp_path_factory, stubs):
    """The sample model as "smol" with two replicas, over gRPC and HTTP."""
    sluice = Sluice(tmp_path_factory.mktemp("state"), stubs)
    port = free_port()
    sluice.url = f"http://127.0.0.1:{port}"
    sluice.client = openai.OpenAI(base_url=f"{sluice.url}/v1", api_key="none", max_retries=0, timeout=patience(120))
    sluice.start(model_path(), "--name", "smol", "--replicas", "2", "--threads", "1", env={"SLUICE_HTTP_LISTEN": f"127.0.0.1:{port}"})
    try:
        sluice.wait(lambda: len(sluice.ready()) == 2, 120, "both replicas are ready")
        yield sluice
    finally:
        sluice.stop()


def post(api, path, body, **kwargs):
    return requests.post(api.url + path, json=body, timeout=patience(120), **kwargs)


def events(response):
    """The data of a stream's events, as texts."""
    response.encoding = "utf-8"
    return [line[6:] for line in response.text.split("\n\n") if line.startswith("data: ")]


def chat_request(api, messages, **kwargs):
    inference = api.stubs.inference
    request = api.request("smol", "", **kwargs)
    request.chat.messages.extend(inference.ChatMessage(role=m["role"], content=m["content"]) for m in messages)
    return request


# --- the openai package ---

def test_models_name_the_context(api):
    model = api.client.models.list().data[0]
    assert (model.id, model.object, model.owned_by) == ("smol", "model", "sluice")
    served = api.inference.GetModel(api.stubs.inference.GetModelRequest(model="smol")).model.versions[0].info
    assert model.max_model_len == model.context_length == served.context_length
    assert api.client.models.retrieve("smol:1").id == "smol:1"
    with pytest.raises(openai.NotFoundError) as error:
        api.client.models.retrieve("nobody")
    assert (error.value.code, error.value.param) == ("model_not_found", "model")


def test_a_chat_is_the_answer_of_grpc(api):
    whole = api.client.chat.completions.create(model="smol", messages=CHAT, max_tokens=12, temperature=0)
    wanted = api.inference.Complete(chat_request(api, CHAT, max_tokens=12, temperature=0))
    assert whole.choices[0].message.content == wanted.choices[0].text and whole.choices[0].finish_reason == "length"
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (wanted.usage.n_prompt_tokens, 12)
    assert whole.usage.prompt_tokens_details.cached_tokens >= 0
    assert whole.system_fingerprint == wanted.prompt_info.fingerprint


def test_a_stream_has_the_role_once_and_the_end_with_the_last_token(api):
    whole = api.client.chat.completions.create(model="smol", messages=CHAT, max_tokens=12, temperature=0)
    chunks = list(api.client.chat.completions.create(model="smol", messages=CHAT, max_tokens=12, temperature=0, stream=True,
                                                     stream_options={"include_usage": True}))
    *parts, usage = chunks
    assert [bool(c.choices[0].delta.role) for c in parts] == [True] + [False] * (len(parts) - 1)
    assert all(c.choices[0].delta.content for c in parts)  # no chunk without text: a benchmark counts each as a token
    assert [c.choices[0].finish_reason for c in parts] == [None] * (len(parts) - 1) + ["length"]
    assert "".join(c.choices[0].delta.content for c in parts) == whole.choices[0].message.content
    assert usage.choices == [] and usage.usage.completion_tokens == 12


def test_the_accumulator_gets_the_whole_answer(api):
    whole = api.client.chat.completions.create(model="smol", messages=CHAT, temperature=0, stop="e")
    with api.client.chat.completions.stream(model="smol", messages=CHAT, temperature=0, stop="e") as stream:
        final = stream.until_done().get_final_completion()
    assert final.choices[0].message.content == whole.choices[0].message.content
    assert final.choices[0].message.role == "assistant" and final.choices[0].finish_reason == "stop"


def test_the_async_client_streams_several_answers_at_once(api):
    async def one(client, seed):
        text = ""
        async for chunk in await client.chat.completions.create(model="smol", messages=CHAT, max_tokens=8, seed=seed, stream=True):
            text += chunk.choices[0].delta.content or ""
        return text

    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key="none", timeout=patience(120)) as client:
            return await asyncio.gather(*(one(client, seed) for seed in range(4)))
    for seed, text in enumerate(asyncio.run(all_of_them())):
        assert text == api.inference.Complete(chat_request(api, CHAT, max_tokens=8, seed=seed)).choices[0].text


class Colours(pydantic.BaseModel):
    names: list[str]


@pytest.mark.parametrize("call, status, param, code", [
    (lambda c: c.chat.completions.parse(model="smol", messages=CHAT, response_format=Colours), 400, "response_format", "field_not_built"),
    (lambda c: c.chat.completions.create(model="x", messages=CHAT), 404, "model", "model_not_found"),
    (lambda c: c.chat.completions.create(model="smol", messages=CHAT, top_p=2), 400, "top_p", None),
    (lambda c: c.chat.completions.create(model="smol", messages=CHAT, tool_choice="required"), 400, "tool_choice", "field_not_built"),
    (lambda c: c.completions.create(model="smol", prompt="a", suffix="b"), 400, "suffix", None),
    (lambda c: c.completions.create(model="smol", prompt=[[999999]]), 400, "prompt[0]", None),
    (lambda c: c.completions.create(model="smol", prompt="a " * 9000), 400, "prompt", "context_length_exceeded"),
    (lambda c: c.completions.create(model="smol", prompt="a " * 9000, stream=True), 400, "prompt", "context_length_exceeded"),
    (lambda c: c.chat.completions.create(model="smol", messages=[{"role": "user", "content": "a " * 9000}]), 400, "messages",
     "context_length_exceeded"),
    (lambda c: c.chat.completions.create(model="smol", messages=CHAT, extra_body={"chat_template": "{{ x("}), 400, "chat_template", None),
], ids=["parse", "model", "range", "tools", "suffix", "vocabulary", "context", "context-stream", "context-chat", "template"])
def test_errors_are_those_of_the_api(api, call, status, param, code):
    with pytest.raises(openai.APIStatusError) as error:
        call(api.client)
    assert (error.value.status_code, error.value.param) == (status, param)
    assert code is None or error.value.code == code
    if code == "context_length_exceeded":  # LiteLLM and others search for these words
        assert "maximum context length is 8192 tokens" in error.value.message


def test_max_tokens_beyond_the_context_is_clipped(api):
    whole = api.client.completions.create(model="smol", prompt=TEXT, max_tokens=10**6, temperature=0, stop=["."])
    assert whole.choices[0].finish_reason == "stop"


# --- completions ---

def test_max_tokens_beyond_the_limit_of_an_operator_is_clipped(api):
    """Symptom: max_tokens above max_total_tokens answered 400. The answer of an overlong prompt lacked the words that clients search for."""
    api.cli("register", "short", model_path(), "--version", "1")
    api.cli("load", "short", "--max-total-tokens", "40", "--threads", "1")
    try:
        n = len(post(api, "/tokenize", {"model": "short", "prompt": TEXT}).json()["tokens"])
        body = {"model": "short", "prompt": TEXT, "max_tokens": 39, "ignore_eos": True, "temperature": 0}
        for stream in (False, True):
            answer = post(api, "/v1/completions", {**body, "stream": stream, "stream_options": {"include_usage": True} if stream else None})
            assert answer.status_code == 200 and "X-Sluice-Changed" in answer.headers, answer.text
            last = json.loads(events(answer)[-2]) if stream else answer.json()
            assert last["usage"]["completion_tokens"] == 40 - n, last
        answer = post(api, "/v1/completions", {**body, "prompt": [5] * 41})
        assert answer.status_code == 400 and answer.json()["error"]["code"] == "context_length_exceeded", answer.text
        assert "maximum context length is 40 tokens" in answer.json()["error"]["message"]
    finally:
        api.cli("unload", "short")


def test_echo_has_the_log_probabilities_of_the_prompt(api):
    """lm-eval's local-completions: ids, echo, one more token. Sums of the prompt's log-probabilities are those of gRPC."""
    ids = list(api.inference.Tokenize(api.stubs.inference.TokenizeRequest(model="smol", text=TEXT)).ids)
    whole = api.client.completions.create(model="smol", prompt=[ids, ids[:3]], max_tokens=1, temperature=0, echo=True, logprobs=1)
    for choice, prompt in zip(whole.choices, [ids, ids[:3]]):
        request = api.request("smol", "", max_tokens=1, temperature=0)
        request.token_ids.ids.extend(prompt)
        request.output.logprobs = request.output.prompt_logprobs = request.output.return_full_text = True
        request.output.top_n = 1
        wanted = api.inference.Complete(request)
        lists = choice.logprobs
        assert choice.text == wanted.choices[0].text and "".join(lists.tokens) == choice.text
        assert lists.token_logprobs[0] is None and lists.top_logprobs[0] is None
        entries = list(wanted.prompt_info.prompt_logprobs) + list(wanted.choices[0].logprobs)
        assert lists.token_logprobs[1:] == pytest.approx([e.logprob for e in entries[1:]], abs=1e-6)
        for value, top, entry in zip(lists.token_logprobs[1:], lists.top_logprobs[1:], entries[1:]):
            assert max(top.values()) == pytest.approx(entry.top[0].logprob, abs=1e-6)
            assert (value == max(top.values())) == (entry.top[0].id == entry.id)  # how lm-eval finds greedy tokens
        assert lists.text_offset == [len("".join(lists.tokens[:i])) for i in range(len(lists.tokens))]


def test_offsets_lie_in_the_text_of_a_stream(api):
    chunks = list(api.client.completions.create(model="smol", prompt="Emoji: \U0001f642\U0001f680 \u00e9", max_tokens=24, temperature=1, seed=5,
                                                logprobs=2, echo=True, stream=True))
    text = "".join(c.choices[0].text for c in chunks)
    offsets = [o for c in chunks if c.choices[0].logprobs for o in c.choices[0].logprobs.text_offset]
    assert offsets[0] == 0 and offsets == sorted(offsets) and offsets[-1] <= len(text)
    tokens = [t for c in chunks if c.choices[0].logprobs for t in c.choices[0].logprobs.tokens]
    for token, offset in zip(tokens, offsets):
        assert token.startswith("bytes:") or token.startswith("<|") or text[offset:offset + len(token)] == token


def test_tokens_go_there_and_back(api):
    inference = api.stubs.inference
    answer = post(api, "/tokenize", {"model": "smol", "prompt": TEXT, "return_token_strs": True}).json()
    assert answer["tokens"] == list(api.inference.Tokenize(inference.TokenizeRequest(model="smol", text=TEXT)).ids)
    assert answer["count"] == len(answer["tokens"]) and "".join(answer["token_strs"]) == TEXT and answer["max_model_len"] == 8192
    assert post(api, "/detokenize", {"model": "smol", "tokens": answer["tokens"]}).json() == {"prompt": TEXT}
    chat = post(api, "/tokenize", {"model": "smol", "messages": CHAT}).json()
    usage = api.client.chat.completions.create(model="smol", messages=CHAT, max_tokens=1).usage
    assert chat["count"] == usage.prompt_tokens


# --- the same as gRPC ---

def random_request(draw):
    """A body of OpenAI's API, and the sampling and stopping of the same request over gRPC."""
    body = {"model": "smol", "max_tokens": draw.randint(1, 8), "seed": draw.getrandbits(63), "return_token_ids": True}
    body["temperature"] = draw.choice([0, 0.7, 1.3])
    for field, values in (("n", [1, 2, 3]), ("top_p", [0.5, 0.9]), ("top_k", [1, 40]), ("min_p", [0.05]), ("presence_penalty", [0.5]),
                          ("frequency_penalty", [-0.5]), ("repetition_penalty", [1.2]), ("stop", [["e"], [" a", "\n"], ["."]]),
                          ("ignore_eos", [True]), ("min_tokens", [1]), ("logit_bias", [{"28": -5.0, "30": 2.0}])):
        if draw.random() < 0.4:
            body[field] = draw.choice(values)
    if draw.random() < 0.2:
        body["best_of"] = body.get("n", 1) + 1
    is_chat = draw.random() < 0.5
    if draw.random() < 0.5:
        body.update({"logprobs": True, "top_logprobs": 2} if is_chat else {"logprobs": 2})
    words = " ".join(draw.choice(["sun", "r\u00e9sum\u00e9", "\U0001f642", "42", "the", "x=1;"]) for _ in range(draw.randint(1, 20)))
    body.update({"messages": [{"role": "user", "content": words}]} if is_chat else {"prompt": words})
    return body, is_chat


def over_grpc(api, body):
    inference = api.stubs.inference
    request = inference.GenerateRequest(model="smol")
    if "prompt" in body:
        request.text, request.parse_special_tokens = body["prompt"], True
    else:
        request.chat.messages.extend(inference.ChatMessage(**m) for m in body["messages"])
    for field in ("n", "best_of", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed", "temperature"):
        if field in body:
            setattr(request.sampling, field, body[field])
    request.sampling.logit_bias.extend(inference.LogitBias(token_id=int(k), bias=v) for k, v in body.get("logit_bias", {}).items())
    request.stopping.max_tokens = body["max_tokens"]
    request.stopping.stop.extend(body.get("stop", []))
    if body.get("ignore_eos"):
        request.stopping.ignore_eos = True
    if "min_tokens" in body:
        request.stopping.min_tokens = body["min_tokens"]
    if "logprobs" in body:
        request.output.logprobs, request.output.top_n = True, 2
    return api.inference.Complete(request, timeout=patience(120))


def logprobs_of(choice, is_chat):
    if not choice.get("logprobs"):
        return []
    return [e["logprob"] for e in choice["logprobs"]["content"]] if is_chat else choice["logprobs"]["token_logprobs"]


def joined(chunks, is_chat):
    """The choices that the chunks of a stream add up to."""
    choices = {}
    for chunk in chunks:
        for part in chunk["choices"]:
            whole = choices.setdefault(part["index"], {"text": "", "ids": [], "logprobs": [], "finish": None})
            assert whole["finish"] is None, "a choice went on after its end"
            whole["text"] += (part["delta"].get("content", "") if is_chat else part["text"])
            whole["ids"] += part["token_ids"]
            whole["logprobs"] += logprobs_of(part, is_chat)
            whole["finish"] = part["finish_reason"]
    return choices


def test_200_random_requests_have_the_tokens_of_grpc(api):
    draw = random.Random(26)

    def compare(body, is_chat, streams):
        path = "/v1/chat/completions" if is_chat else "/v1/completions"
        response = post(api, path, {**body, "stream": streams})
        assert response.status_code == 200, (body, response.text)
        wanted = over_grpc(api, body)
        if streams:
            *chunks, end = events(response)
            assert end == "[DONE]"
            got = joined(map(json.loads, chunks), is_chat)
        else:
            got = {c["index"]: {"text": c["message"]["content"] if is_chat else c["text"], "ids": c["token_ids"],
                                "logprobs": logprobs_of(c, is_chat), "finish": c["finish_reason"]} for c in response.json()["choices"]}
        assert len(got) == len(wanted.choices) == body.get("n", 1)
        for choice in wanted.choices:
            mine = got[choice.index]
            ends = {api.stubs.inference.FINISH_REASON_LENGTH: "length", api.stubs.inference.FINISH_REASON_CONTEXT_LENGTH: "length"}
            assert (mine["ids"], mine["text"]) == (list(choice.ids), choice.text), body
            assert mine["finish"] == ends.get(choice.finished.reason, "stop"), body
            assert mine["logprobs"] == pytest.approx([e.logprob for e in choice.logprobs], rel=1e-6), body

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        jobs = [pool.submit(compare, *random_request(draw), draw.random() < 0.5) for _ in range(200)]
        for job in jobs:
            job.result()


def test_a_killed_worker_leaves_no_trace_in_the_stream(api):
    """The stream goes on byte for byte: all but id, date and the cuts between frames."""
    body = {"model": "smol", "prompt": TEXT, "max_tokens": 400, "seed": 3, "temperature": 1, "logprobs": 1, "return_token_ids": True,
            "ignore_eos": True, "stream": True}
    whole = joined(map(json.loads, events(post(api, "/v1/completions", body))[:-1]), False)
    with post(api, "/v1/completions", body, stream=True) as response:
        lines = response.iter_lines()
        got = [next(lines)]
        busy = until(lambda: [r["pid"] for r in api.replicas() if r["n_running"]], 30, "a worker runs the request")
        os.kill(busy[0], signal.SIGKILL)
        got += lines
    data = [line[6:].decode() for line in got if line.startswith(b"data: ")]
    assert data[-1] == "[DONE]" and data.count("[DONE]") == 1
    assert joined(map(json.loads, data[:-1]), False) == whole
    api.wait(lambda: len(api.ready()) == 2, 120, "the killed replica is back")


# --- other clients ---

# The bodies that these clients send for a chat, as their sources build them.
BODIES = {
    "ai-sdk": {"model": "smol", "max_tokens": 6, "temperature": 0, "messages": [
        {"role": "system", "content": "Be short."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
        "stream": True, "stream_options": {"include_usage": True}},
    "open-webui": {"stream": True, "model": "smol", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 6,
                   "metadata": {"user_id": "u", "chat_id": "c"}, "stream_options": {"include_usage": True}},
    "cline": {"model": "smol", "messages": [
        {"role": "system", "content": "You are Cline."},
        {"role": "user", "content": [{"type": "text", "text": "<task>Hi</task>"}, {"type": "text", "text": "<environment_details/>"}]},
        {"role": "assistant", "content": "Hello"}, {"role": "user", "content": [{"type": "text", "text": "Go on"}]}],
        "temperature": 0, "max_completion_tokens": 6, "stream": True, "stream_options": {"include_usage": True}},
    "continue": {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "Hi"},
                              {"role": "assistant", "content": "", "tool_calls": [
                                  {"id": "call_1", "type": "function", "function": {"name": "ls", "arguments": "{\"dir\": \".\"}"}}]},
                              {"role": "tool", "content": "a.c", "tool_call_id": "call_1"}],
                 "model": "smol", "max_tokens": 6, "temperature": 0, "stream": True, "tools": [
                     {"type": "function", "function": {"name": "ls", "description": "lists", "parameters": {
                         "type": "object", "properties": {"dir": {"type": "string"}}}}}], "parallel_tool_calls": False},
    "vllm-bench": {"model": "smol", "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "temperature": 0.0,
                   "repetition_penalty": 1.0, "max_completion_tokens": 6, "stream": True, "ignore_eos": True,
                   "stream_options": {"include_usage": True}},
    "guidellm": {"model": "smol", "messages": [{"role": "user", "content": "Hi"}], "stream": True, "stop": None, "ignore_eos": True,
                 "max_completion_tokens": 6, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
}


@pytest.mark.parametrize("client", BODIES)
def test_the_bodies_of_other_clients_are_answered(api, client):
    body = BODIES[client]
    response = post(api, "/v1/chat/completions", body, headers={"x-request-id": f"test-{client}"})
    assert response.status_code == 200, response.text
    assert response.headers["x-request-id"] == f"test-{client}"
    assert response.headers.get("x-sluice-ignored") == ("metadata" if client == "open-webui" else None)
    *chunks, end = events(response)
    chunks = list(map(json.loads, chunks))
    assert end == "[DONE]" and all("finish_reason" in choice for chunk in chunks for choice in chunk["choices"])
    usage = [chunk for chunk in chunks if not chunk["choices"]]
    assert len(usage) == bool(body.get("stream_options")) and [c["usage"]["completion_tokens"] > 0 for c in usage] == [True] * len(usage)
    assert [c["choices"][0]["finish_reason"] for c in chunks if c["choices"]][-1] in ("length", "stop")


def test_a_late_system_message_moves_to_the_front_if_the_template_refuses_it(api):
    template = ("{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('system must come first') }}"
                "{% endif %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    messages = [{"role": "user", "content": "Hi"}, {"role": "system", "content": "A"}, {"role": "system", "content": "B"}]
    body = {"model": "smol", "max_tokens": 4, "temperature": 0, "chat_template": template}
    for streams in (False, True):
        late = post(api, "/v1/chat/completions", {**body, "messages": messages, "stream": streams})
        assert late.status_code == 200 and late.headers["x-sluice-changed"]
    first = post(api, "/v1/chat/completions", {**body, "messages": [{"role": "system", "content": "A\n\nB"}, messages[0]]})
    whole = post(api, "/v1/chat/completions", {**body, "messages": messages})
    assert "x-sluice-changed" not in first.headers
    assert whole.json()["choices"][0]["message"] == first.json()["choices"][0]["message"]
    kept = post(api, "/v1/chat/completions", {**body, "messages": messages, "chat_template": template.replace("raise_exception", "str")})
    assert "x-sluice-changed" not in kept.headers


def test_reasoning_comes_apart_under_both_names(api, tmp_path):
    """The model's tokens are bytes, so thoughts and characters of four bytes are cut anywhere."""
    api.cli("register", "thinker", make_model(tmp_path / "Thinker"), "--version", "1")
    api.cli("load", "thinker", "--kv-tokens", "4096")
    n_thoughts = 0
    for seed in range(8):
        body = {"model": "thinker", "messages": [{"role": "user", "content": f"question {seed}"}], "seed": seed, "temperature": 1, "max_tokens": 60,
                "ignore_eos": True, "allowed_token_ids": ALLOWED, "chat_template_kwargs": {"thinks": seed % 2 == 1}}
        request = chat_request(api, body["messages"], seed=seed, temperature=1, max_tokens=60, ignore_eos=True)
        request.model, request.chat.template_variables_json = "thinker", json.dumps(body["chat_template_kwargs"])
        request.sampling.allowed_token_ids.extend(ALLOWED)
        wanted = api.inference.Complete(request, timeout=patience(60))
        whole = post(api, "/v1/chat/completions", body).json()
        message = whole["choices"][0]["message"]
        thought, text = wanted.choices[0].reasoning_text, wanted.choices[0].text
        assert (message.get("reasoning_content", ""), message.get("reasoning", ""), message["content"]) == (thought, thought, text)
        assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == wanted.usage.n_reasoning_tokens
        *chunks, _ = map(json.loads, events(post(api, "/v1/chat/completions", {**body, "stream": True, "stream_options": {"include_usage": True}}))[:-1])
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        for name, part in (("reasoning_content", thought), ("reasoning", thought), ("content", text)):
            assert "".join(d.get(name) or "" for d in deltas) == part
        hidden = post(api, "/v1/chat/completions", {**body, "include_reasoning": False}).json()["choices"][0]["message"]
        assert "reasoning" not in hidden and hidden["content"] == text
        n_thoughts += bool(thought)
    assert n_thoughts > 2


def test_clients_that_leave_free_their_places(api):
    """Clients close while their requests wait, in prefill, and between tokens, with one and several choices."""
    draw = random.Random(1)
    for _ in range(40):
        body = {"model": "smol", "prompt": "word " * draw.choice([1, 50, 1500]), "max_tokens": 5000, "ignore_eos": True,
                "n": draw.choice([1, 3]), "stream": draw.random() < 0.7}
        try:
            with requests.post(f"{api.url}/v1/completions", json=body, stream=True, timeout=(patience(30), draw.choice([0.01, 0.05, 0.2]))) as response:
                for _ in range(draw.randint(0, 3)):
                    next(response.iter_lines())
        except (requests.Timeout, requests.ConnectionError, StopIteration):
            pass
    version = api.stubs.inference.GetModelRequest(model="smol")

    def at_rest():
        v = api.inference.GetModel(version).model.versions[0]
        return not v.n_running and not v.n_queued
    until(at_rest, 30, "no request is left")


def test_a_strict_server_names_unknown_fields(tmp_path):
    port = free_port()
    command = [BIN / "sluice-server", "--listen", f"127.0.0.1:{free_port()}", "--routes-file", tmp_path / "routes.pb", "--http-strict",
               "--http-listen", f"127.0.0.1:{port}", "--metrics", ""]
    with open(tmp_path / "log", "wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            def answer():
                try:
                    return [requests.post(f"http://127.0.0.1:{port}/v1/chat/completions", json={"model": "m", "foo": 1}, timeout=patience(30))]
                except requests.ConnectionError:
                    return None
            refusal, = until(answer, 30, "the server answers")
            assert refusal.status_code == 400 and refusal.json()["error"]["param"] == "foo"
        finally:
            server.terminate()
