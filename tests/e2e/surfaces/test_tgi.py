"""The API of text-generation-inference, by clients that are not part of the project: huggingface-hub and text-generation.
KServe's generate extension, at the same server."""
import asyncio
import json
import random

import pytest
import requests
import text_generation
from huggingface_hub import InferenceClient
from huggingface_hub.errors import ValidationError
from text_generation import errors

from conftest import Sluice, free_port, model_path, patience, until

PARIS = "The capital of France is"
ENDS = "The end."  # the sample model's answer has an end token


@pytest.fixture(scope="module")
def tgi(tmp_path_factory, stubs):
    """The sample model as "smol", over gRPC and HTTP."""
    sluice = Sluice(tmp_path_factory.mktemp("state"), stubs)
    port = free_port()
    sluice.url = f"http://127.0.0.1:{port}"
    sluice.start(env={"SLUICE_HTTP_LISTEN": f"127.0.0.1:{port}"})
    try:
        early = requests.post(f"{sluice.url}/generate", json={"inputs": "x"}, timeout=patience(30))
        assert (early.status_code, early.json()["error_type"]) == (503, "overloaded") and early.headers["retry-after"]
        sluice.cli("register", "smol", model_path(), "--version", "1")
        sluice.cli("load", "smol")
        sluice.wait(lambda: requests.get(f"{sluice.url}/info", timeout=patience(30)).status_code == 200, 60, "the model is loaded")
        sluice.hub = InferenceClient(sluice.url, timeout=patience(60))
        yield sluice
    finally:
        sluice.stop()


def complete(tgi, prompt, **kwargs):
    """The answer to the same request over gRPC."""
    sampling = kwargs.pop("sampling", {"temperature": 0})
    stop = kwargs.pop("stop", [])
    request = tgi.request("smol", prompt, parse_special_tokens=True, **kwargs)
    for field, value in sampling.items():
        setattr(request.sampling, field, value)
    request.stopping.stop.extend(stop)
    request.stopping.include_stop = True
    request.output.logprobs = True
    return tgi.inference.Complete(request, timeout=patience(60))


def post(tgi, path, body, **kwargs):
    return requests.post(tgi.url + path, json=body, timeout=patience(60), **kwargs)


# --- huggingface-hub ---

def test_the_hub_client_gets_the_text_of_grpc(tgi):
    wanted = complete(tgi, PARIS, max_tokens=12).choices[0].text
    assert tgi.hub.text_generation(PARIS, max_new_tokens=12) == PARIS + wanted  # POST / gives the full text by default
    assert tgi.hub.text_generation(PARIS, max_new_tokens=12, return_full_text=False) == wanted


@pytest.mark.parametrize("prompt,reason", [(PARIS, "length"), (ENDS, "eos_token"), ("Write an emoji: 😀😁😂🤣", "length")])
def test_details_have_each_token_of_grpc(tgi, prompt, reason):
    choice = complete(tgi, prompt, max_tokens=24).choices[0]
    answer = tgi.hub.text_generation(prompt, max_new_tokens=24, details=True, return_full_text=False, decoder_input_details=True)
    details = answer.details
    assert answer.generated_text == choice.text
    assert [t.id for t in details.tokens] == choice.ids
    assert [t.logprob for t in details.tokens] == pytest.approx([p.logprob for p in choice.logprobs])
    assert "".join(t.text for t in details.tokens if not t.special) == choice.text
    assert [t.special for t in details.tokens] == [False] * (len(choice.ids) - 1) + [reason == "eos_token"]
    assert (details.finish_reason, details.generated_tokens, details.seed) == (reason, len(choice.ids), None)
    assert details.prefill[0].logprob is None and all(t.logprob <= 0 for t in details.prefill[1:])
    assert prompt.isascii() is False or "".join(t.text for t in details.prefill) == prompt


@pytest.mark.parametrize("prompt", [PARIS, ENDS])
def test_a_stream_has_the_tokens_of_the_whole_answer(tgi, prompt):
    whole = tgi.hub.text_generation(prompt, max_new_tokens=24, details=True)
    events = list(tgi.hub.text_generation(prompt, max_new_tokens=24, details=True, stream=True))
    assert [e.index for e in events] == list(range(1, len(events) + 1))
    assert [(e.token.id, e.token.text, e.token.special) for e in events] == [(t.id, t.text, t.special) for t in whole.details.tokens]
    assert [e.generated_text for e in events] == [None] * (len(events) - 1) + [whole.generated_text]
    last = events[-1].details
    assert (last.finish_reason, last.generated_tokens) == (whole.details.finish_reason, len(events)) and last.input_length > 0
    texts = list(tgi.hub.text_generation(prompt, max_new_tokens=24, stream=True))
    assert texts == [e.token.text for e in events]


def test_a_stop_text_is_part_of_the_answer(tgi):
    answer = tgi.hub.text_generation(PARIS, max_new_tokens=24, stop=["Paris", "\n"], details=True, return_full_text=False)
    assert (answer.generated_text, answer.details.finish_reason) == (" Paris", "stop_sequence")


def test_sampled_answers_follow_the_seed(tgi):
    one = [tgi.hub.text_generation(PARIS, max_new_tokens=16, seed=seed, do_sample=True, details=True) for seed in (7, 7, 8)]
    assert one[0].generated_text == one[1].generated_text != one[2].generated_text
    assert one[0].details.seed == 7
    free = tgi.hub.text_generation(PARIS, max_new_tokens=16, temperature=0.9, details=True)  # the server draws a seed and reports it
    again = tgi.hub.text_generation(PARIS, max_new_tokens=16, temperature=0.9, seed=free.details.seed)
    assert free.generated_text == again


@pytest.mark.parametrize("parameters", [{"typical_p": 1.5}, {"watermark": True}, {"grammar": {"type": "regex", "value": "a"}},
                                        {"adapter_id": "a"}, {"temperature": -1.0}, {"top_p": 3.0}, {"best_of": 2}, {"truncate": 0},
                                        {"max_new_tokens": 0}, {"stop": list("abcde")}, {"top_n_tokens": 99}], ids=lambda p: next(iter(p)))
@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_parameter_is_a_validation_error_with_its_name(tgi, parameters, stream):
    with pytest.raises(ValidationError) as e:
        list(tgi.hub.text_generation("x", stream=stream, **parameters))
    assert next(iter(parameters)) in str(e.value)


# --- text-generation ---

def test_the_client_of_text_generation_inference(tgi):
    client = text_generation.Client(tgi.url, timeout=patience(60))
    answer = client.generate(PARIS, max_new_tokens=8, best_of=3, do_sample=True, top_n_tokens=2, decoder_input_details=True)
    details = answer.details
    means = [sum(t.logprob for t in s.tokens) / len(s.tokens) for s in (details, *details.best_of_sequences)]
    assert len(means) == 3 and means[0] == max(means)
    assert all(len(top) == 2 and top[0].logprob >= top[1].logprob for top in details.top_tokens)
    assert [p.id for p in details.prefill] and details.prefill[0].logprob is None
    events = list(client.generate_stream(PARIS, max_new_tokens=8))
    assert "".join(e.token.text for e in events if not e.token.special) == events[-1].generated_text
    with pytest.raises(errors.ValidationError):
        client.generate(PARIS, truncate=2**31)


def test_its_asynchronous_client(tgi):
    async def both():
        client = text_generation.AsyncClient(tgi.url, timeout=patience(60))
        whole = await client.generate(PARIS, max_new_tokens=8)
        return whole.generated_text, [e async for e in client.generate_stream(PARIS, max_new_tokens=8)]
    text, events = asyncio.run(both())
    assert events[-1].generated_text == text == complete(tgi, PARIS, max_tokens=8).choices[0].text


# --- the wire ---

def random_request(rng):
    """A body, and the same request for gRPC."""
    body, parameters = {"inputs": rng.choice([PARIS, ENDS, "def f(", "<|im_start|>user\nHi<|im_end|>\n", "Ünïcode 😀"])}, {}
    sampling = {"temperature": 0}
    if rng.random() < 0.7:
        parameters["seed"] = sampling["seed"] = rng.getrandbits(64)
        parameters["do_sample"] = True
        sampling["temperature"] = 1
        for name, value in (("temperature", 0.75), ("top_k", 20), ("top_p", 0.5), ("repetition_penalty", 1.5), ("frequency_penalty", 0.5)):
            if rng.random() < 0.4:
                parameters[name] = sampling[name] = value
    stop = rng.choice([[], [], ["."], ["e ", "\n"]])
    parameters["max_new_tokens"] = rng.randint(1, 20)
    body["parameters"] = dict(parameters, stop=stop, details=True)
    return body, {"sampling": sampling, "stop": stop, "max_tokens": parameters["max_new_tokens"]}


def test_http_gives_the_tokens_of_grpc(tgi):
    rng = random.Random(20)
    for i in range(40):
        body, same = random_request(rng)
        choice = complete(tgi, body["inputs"], **same).choices[0]
        if i % 2:
            details = post(tgi, "/generate", body).json()
            text, ids = details["generated_text"], [t["id"] for t in details["details"]["tokens"]]
        else:
            with post(tgi, "/generate_stream", body, stream=True) as answer:
                events = [json.loads(line[5:]) for line in answer.iter_lines() if line]
            text, ids = events[-1]["generated_text"], [e["token"]["id"] for e in events]
            assert "".join(e["token"]["text"] for e in events if not e["token"]["special"]) == text
        assert (text, ids) == (choice.text, choice.ids), body


def test_a_stream_is_events_of_one_line(tgi):
    with post(tgi, "/", {"inputs": PARIS, "stream": True, "parameters": {"max_new_tokens": 3}, "options": {}}, stream=True) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream") and answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-sluice-ignored"] == "options"
        parts = answer.content.split(b"\n\n")
    assert len(parts) == 4 and parts[-1] == b"" and all(p.startswith(b'data:{"index":') and b"\n" not in p for p in parts[:-1])


def test_a_header_names_the_model(tgi):
    body = {"inputs": PARIS, "parameters": {"max_new_tokens": 2}}
    for name, status, kind in (("smol", 200, None), ("smol:1", 200, None), ("other", 404, "model_not_found"),
                               ("smol:2", 404, "model_not_found"), (":", 422, "validation")):
        answer = post(tgi, "/generate", body, headers={"X-Sluice-Model": name})
        assert (answer.status_code, answer.json().get("error_type")) == (status, kind), name


def test_info_tells_the_model_and_its_limits(tgi):
    info = requests.get(f"{tgi.url}/info", timeout=patience(30)).json()
    served = tgi.inference.GetModel(tgi.stubs.inference.GetModelRequest(model="smol")).model.versions[0].info
    assert (info["model_id"], info["model_sha"]) == ("smol", served.weights_digest)
    assert (info["max_total_tokens"], info["max_input_tokens"]) == (served.context_length, served.limits.max_prompt_tokens)
    assert (info["max_best_of"], info["max_stop_sequences"]) == (served.limits.max_choices, served.limits.max_stop_strings)


def test_a_prompt_over_the_context_is_a_validation_error(tgi):
    answer = post(tgi, "/generate", {"inputs": "word " * 9000})
    assert (answer.status_code, answer.json()["error_type"]) == (422, "validation")
    assert post(tgi, "/generate", {"inputs": "word " * 9000, "parameters": {"truncate": 4, "max_new_tokens": 1}}).status_code == 200


def test_a_client_that_leaves_frees_its_place(tgi):
    def running():
        versions = tgi.inference.GetModel(tgi.stubs.inference.GetModelRequest(model="smol")).model.versions
        return sum(v.n_running + v.n_queued for v in versions)
    with post(tgi, "/generate_stream", {"inputs": PARIS, "parameters": {"max_new_tokens": 8000, "ignore_eos_token": True}},
              stream=True) as answer:
        # A stream that is not read pauses, and then does not run.
        assert any(running() for _ in answer.iter_lines())
    until(lambda: not running(), 20, "the place is free")


# --- KServe's generate extension ---

def generate_events(tgi, body, path="/v2/models/smol/generate_stream"):
    with post(tgi, path, body, stream=True) as answer:
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
        parts = answer.content.split(b"\n\n")
    assert parts[-1] == b"" and all(p.startswith(b"data: {") and b"\n" not in p for p in parts[:-1])
    return [json.loads(p[6:]) for p in parts[:-1]]


@pytest.mark.parametrize("body", [
    {"max_tokens": 12, "temperature": 0},
    {"parameters": {"max_tokens": 12, "temperature": "0"}},
    {"sampling_parameters": {"max_tokens": 12, "temperature": 0}},
    {"sampling_parameters": '{"max_tokens": "12", "temperature": 0}'},
], ids=["flat", "parameters", "object", "text"])
def test_generate_gives_the_text_of_grpc(tgi, body):
    wanted = complete(tgi, PARIS, max_tokens=12).choices[0].text
    body = dict(body, text_input=PARIS)
    answer = post(tgi, "/v2/models/smol/generate", body).json()
    assert answer == {"model_name": "smol", "model_version": "1", "text_output": PARIS + wanted}  # Triton's vLLM backend echoes, too
    answer = post(tgi, "/v2/models/smol/versions/1/generate", dict(body, exclude_input_in_output=True, id="7")).json()
    assert (answer["text_output"], answer["id"]) == (wanted, "7")
    events = generate_events(tgi, body)
    assert "".join(e["text_output"] for e in events) == wanted


def test_generate_tells_reason_tokens_and_logprobs(tgi):
    choice = complete(tgi, PARIS, max_tokens=6).choices[0]
    asked = {"text_input": PARIS, "max_tokens": 6, "temperature": 0, "return_finish_reason": True, "return_num_input_tokens": True,
             "return_num_output_tokens": True, "return_cumulative_logprob": True}
    answer = post(tgi, "/v2/models/smol/generate", asked).json()
    assert (answer["finish_reason"], answer["num_input_tokens"], answer["num_output_tokens"]) == ("length", 5, 6)
    assert answer["cumulative_logprob"] == pytest.approx(sum(p.logprob for p in choice.logprobs), abs=1e-4)
    events = generate_events(tgi, dict(asked, parameters={"stream": True}))
    assert [e["finish_reason"] for e in events[:-1]] == ["None"] * (len(events) - 1) and events[-1]["finish_reason"] == "length"
    assert sum(e["num_output_tokens"] for e in events) == 6


@pytest.mark.parametrize("path,body,status", [
    ("smol/generate", {}, 400), ("smol/generate", {"text_input": "x", "temperature": -1}, 400),
    ("smol/generate", {"text_input": "x", "stream": True}, 400), ("smol/generate_stream", {"text_input": "x", "max_tokens": 0}, 400),
    ("smol/infer", {"inputs": []}, 400), ("smol/versions/1/infer", {"inputs": []}, 400), ("none/generate", {"text_input": "x"}, 404), ("smol/versions/7/generate_stream", {"text_input": "x"}, 404),
])
def test_generate_refuses_with_a_text(tgi, path, body, status):
    answer = post(tgi, f"/v2/models/{path}", body)
    assert answer.status_code == status and set(answer.json()) == {"error"}


def test_probes_and_metadata_of_kserve(tgi):
    def get(path):
        return requests.get(f"{tgi.url}/v2{path}", timeout=patience(30))
    until(lambda: get("/models/smol/ready").status_code == 200, 20, "the model is ready")
    statuses = [get(p).status_code for p in ("/health/live", "/health/ready", "/models/smol/versions/1/ready", "/models/smol/versions/2/ready",
                                             "/models/none/ready", "/models/none")]
    # a model or version that does not exist was a 503, so a probe waited for a misspelt name for ever
    assert statuses == [200, 200, 200, 404, 404, 404]
    model = get("/models/smol").json()
    assert (model["name"], model["versions"]) == ("smol", ["1"]) and "generate" in get("").json()["extensions"]
    assert {"text_input", "max_tokens"} <= {t["name"] for t in model["inputs"]} and "text_output" in {t["name"] for t in model["outputs"]}
