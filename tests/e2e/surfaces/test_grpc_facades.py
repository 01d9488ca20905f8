"""KServe v2 by the stock tritonclient, and vLLM's engine interface by generated stubs, on the gRPC port of one server.
Both give the tokens and the text that Sluice's own gRPC gives."""
import asyncio
import importlib
import json
import os
import queue
import signal
import subprocess
import sys

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.utils import InferenceServerException

from conftest import BIN, ROOT, bad_field, free_port, patience, reason, until

PROMPT = "The capital of France is"
PROMPTS = [PROMPT, "Once upon a time", "Grüße \U0001f600, 1 2 3"]


@pytest.fixture(scope="module")
def client(served):
    return triton.InferenceServerClient(served.address)


@pytest.fixture(scope="module")
def operator(served):
    """The server's own user, over the unix socket."""
    return triton.InferenceServerClient(f"unix:{served.state}/run/server.sock")


@pytest.fixture(scope="module")
def vllm(served, tmp_path_factory):
    out = tmp_path_factory.mktemp("vllm")
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT / 'proto'}", f"--python_out={out}", f"--grpc_python_out={out}",
                    "vllm/grpc/engine/vllm_engine.proto"], check=True)
    sys.path.insert(0, str(out))
    messages = importlib.import_module("vllm.grpc.engine.vllm_engine_pb2")
    messages.stub = importlib.import_module("vllm.grpc.engine.vllm_engine_pb2_grpc").VllmEngineStub(served.channel)
    return messages


def tensor(name, value, datatype="BYTES", shape=None):
    kinds = {"BYTES": np.object_, "BOOL": np.bool_, "INT32": np.int32, "UINT64": np.uint64, "FP32": np.float32}
    values = value if isinstance(value, list) else [value]
    values = [v.encode() if isinstance(v, str) else v for v in values]
    shape = shape or [len(values)]
    made = triton.InferInput(name, shape, datatype)
    made.set_data_from_numpy(np.array(values, dtype=kinds[datatype]).reshape(shape))
    return made


def vllm_inputs(prompt, sampling, stream=False, **flags):
    """The tensors of Triton's vLLM backend."""
    return [tensor("text_input", prompt), tensor("stream", stream, "BOOL"), tensor("sampling_parameters", json.dumps(sampling)),
            *(tensor(name, value, "BOOL") for name, value in flags.items())]


def text_of(result, name="text_output"):
    return [b.decode() for b in result.as_numpy(name).ravel()]


def native(served, prompt, **kwargs):
    """Text, ids and end from Sluice's own RPC."""
    kwargs.setdefault("temperature", 0)
    return served.generate(served.request("smol", prompt, parse_special_tokens=True, **kwargs))


class Stream:
    """A ModelStreamInfer of tritonclient, and its responses."""

    def __init__(self, client):
        self.client, self.responses = client, queue.Queue()
        client.start_stream(callback=lambda result, error: self.responses.put((result, error)))

    def send(self, inputs, model="smol", **kwargs):
        self.client.async_stream_infer(model, inputs, **kwargs)

    def next(self):
        return self.responses.get(timeout=patience(60))

    def answer(self):
        """The responses of one request, up to the last."""
        found = []
        while True:
            result, error = self.next()
            assert error is None, error
            found.append(result)
            if result.get_response().parameters["triton_final_response"].bool_param:
                return found

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.stop_stream()


# --- KServe: a request ---

@pytest.mark.parametrize("prompt", PROMPTS)
def test_model_infer_gives_the_text_of_sluice(served, client, prompt):
    text, ids, finished = native(served, prompt, max_tokens=12)
    result = client.infer("smol", vllm_inputs(prompt, {"max_tokens": 12, "temperature": 0}, exclude_input_in_output=True, return_finish_reason=True,
                                              return_num_input_tokens=True, return_num_output_tokens=True), request_id="a 1")
    assert text_of(result) == [text] and text_of(result, "finish_reason") == ["length"]
    assert list(result.as_numpy("num_output_tokens")) == [len(ids)]
    assert list(result.as_numpy("num_input_tokens")) == [finished.usage.n_prompt_tokens]
    response = result.get_response()
    assert (response.id, response.model_name, response.model_version) == ("a 1", "smol", "1")


def test_the_prompt_comes_back_unless_it_is_excluded(served, client):
    text, _, _ = native(served, PROMPT, max_tokens=4)
    assert text_of(client.infer("smol", vllm_inputs(PROMPT, {"max_tokens": 4, "temperature": 0}))) == [PROMPT + text]


def test_the_tensors_of_an_ensemble_and_texts_for_numbers(served, client):
    """TensorRT-LLM's tensors have a batch dimension. Values of sampling_parameters may be texts."""
    text, _, _ = native(served, PROMPT, max_tokens=10, temperature=0.75, top_k=20, top_p=0.5, seed=11)
    ensemble = [tensor("text_input", PROMPT, shape=[1, 1]), tensor("max_tokens", 10, "INT32", [1, 1]), tensor("top_k", 20, "INT32", [1, 1]),
                tensor("temperature", 0.75, "FP32", [1, 1]), tensor("top_p", 0.5, "FP32", [1, 1]), tensor("random_seed", 11, "UINT64", [1, 1]),
                tensor("exclude_input_in_output", True, "BOOL", [1, 1])]
    assert text_of(client.infer("smol", ensemble)) == [text]
    sampling = {"max_tokens": "10", "temperature": "0.75", "top_k": "20", "top_p": "0.5", "seed": "11"}
    assert text_of(client.infer("smol", vllm_inputs(PROMPT, sampling, exclude_input_in_output=True))) == [text]
    parameters = {"max_tokens": 10, "temperature": "0.75", "top_k": 20, "top_p": "0.5", "seed": 11, "exclude_input_in_output": True}
    assert text_of(client.infer("smol", [tensor("text_input", PROMPT)], parameters=parameters)) == [text]


def test_stop_words_end_the_text(served, client):
    text, _, finished = native(served, "1 2 3 4 5", max_tokens=24, stop=[" 8"])
    assert finished.stop == " 8"
    result = client.infer("smol", [tensor("text_input", "1 2 3 4 5"), tensor("max_tokens", 24, "INT32"), tensor("stop_words", [" 8", ""], shape=[1, 2]),
                                   tensor("temperature", 0.0, "FP32"), tensor("exclude_input_in_output", True, "BOOL"), tensor("return_finish_reason", True, "BOOL")])
    assert text_of(result) == [text] and text_of(result, "finish_reason") == ["stop"]


def test_several_answers_and_log_probabilities(served, client):
    inference = served.stubs.inference
    request = served.request("smol", PROMPT, max_tokens=5, temperature=1, seed=3, n=3)
    request.output.CopyFrom(inference.Output(logprobs=True, top_n=2))
    whole = served.inference.Complete(request)
    result = client.infer("smol", vllm_inputs(PROMPT, {"max_tokens": 5, "temperature": 1, "seed": 3, "n": 3, "logprobs": 2}, exclude_input_in_output=True,
                                              return_logprobs=True, return_cumulative_logprob=True))
    assert text_of(result) == [c.text for c in whole.choices]
    assert np.allclose(result.as_numpy("cumulative_logprob"), [sum(t.logprob for t in c.logprobs) for c in whole.choices], rtol=1e-6)
    for given, choice in zip(text_of(result, "logprobs"), whole.choices):
        for token, want in zip(json.loads(given), choice.logprobs, strict=True):
            assert np.isclose(token[str(want.id)]["logprob"], want.logprob)
            assert {int(k) for k in token} == {want.id, *(t.id for t in want.top)}
    one = client.infer("smol", [tensor("text_input", PROMPT), tensor("max_tokens", 5, "INT32"), tensor("return_log_probs", True, "BOOL")])
    assert one.as_numpy("output_log_probs").shape == (1, 5)
    assert np.isclose(one.as_numpy("output_log_probs").sum(), one.as_numpy("cum_log_probs")[0], rtol=1e-5)


def test_the_asynchronous_clients(served, client):
    texts = {p: native(served, p, max_tokens=6)[0] for p in PROMPTS}
    done = queue.Queue()
    for prompt in PROMPTS:
        client.async_infer("smol", vllm_inputs(prompt, {"max_tokens": 6, "temperature": 0}), callback=lambda result, error: done.put((result, error)),
                           request_id=str(PROMPTS.index(prompt)))
    for _ in PROMPTS:
        result, error = done.get(timeout=patience(60))
        prompt = PROMPTS[int(result.get_response().id)]
        assert error is None and text_of(result) == [prompt + texts[prompt]]

    async def with_asyncio():
        async with triton_aio.InferenceServerClient(served.address) as aio:
            async def requests():
                for prompt in PROMPTS:
                    yield {"model_name": "smol", "inputs": vllm_inputs(prompt, {"max_tokens": 6, "temperature": 0}, stream=True), "request_id": prompt}
            found, ended = dict.fromkeys(PROMPTS, ""), 0
            responses = aio.stream_infer(requests())
            async for result, error in responses:
                assert error is None
                found[result.get_response().id] += text_of(result)[0]
                ended += result.get_response().parameters["triton_final_response"].bool_param
                if ended == len(PROMPTS):
                    return found
    assert asyncio.run(asyncio.wait_for(with_asyncio(), patience(60))) == texts


# --- KServe: a stream ---

def test_a_stream_carries_many_requests_and_survives_errors(served, client):
    text, ids, _ = native(served, PROMPT, max_tokens=16)
    with Stream(client) as stream:
        stream.send(vllm_inputs(PROMPT, {"max_tokens": 16, "temperature": 0}, stream=True, return_num_output_tokens=True), request_id="7")
        answer = stream.answer()
        assert "".join(text_of(r)[0] for r in answer) == text and len(answer) > 2
        assert sum(int(r.as_numpy("num_output_tokens")[0]) for r in answer) == len(ids)
        assert {r.get_response().id for r in answer} == {"7"}
        stream.send(vllm_inputs(PROMPT, {"max_tokens": 16, "top_p": 7}, stream=True), request_id="8")
        result, error = stream.next()
        assert result is None and "top_p" in error.message()
        stream.send([tensor("text_input", PROMPT), tensor("colour", "red")])
        assert "colour" in stream.next()[1].message()
        stream.send(vllm_inputs(PROMPT, {}), model="nobody")
        assert "nobody" in stream.next()[1].message()
        stream.send(vllm_inputs(PROMPT, {"max_tokens": 16, "temperature": 0}))  # a whole answer on the stream
        (whole,) = stream.answer()
        assert text_of(whole) == [PROMPT + text]


def test_the_empty_final_response(served, client):
    with Stream(client) as stream:
        stream.send(vllm_inputs(PROMPT, {"max_tokens": 3, "temperature": 0}, stream=True), enable_empty_final_response=True)
        assert not stream.answer()[-1].get_response().outputs
        stream.send(vllm_inputs(PROMPT, {"max_tokens": 3, "temperature": 0}, stream=True, return_finish_reason=True), enable_empty_final_response=True)
        answer = stream.answer()
        assert [text_of(r, "finish_reason")[0] for r in answer] == ["None"] * (len(answer) - 1) + ["length"]


def running(served):
    models = served.inference.ListModels(served.stubs.inference.ListModelsRequest()).models
    return sum(v.n_running + v.n_queued for m in models for v in m.versions)


def test_a_client_that_leaves_frees_its_slot(served, client, vllm):
    """Each request has 2,000 tokens to go when its client leaves."""
    until(lambda: running(served) == 0, 30, "the server is idle")
    with Stream(triton.InferenceServerClient(served.address)) as stream:
        for i in range(3):
            stream.send(vllm_inputs(PROMPT, {"max_tokens": 2000, "ignore_eos": True}, stream=True), request_id=str(i))
        stream.next()
        until(lambda: running(served) == 3, 30, "three requests run")
        stream.client.stop_stream(cancel_requests=True)
    until(lambda: running(served) == 0, 10, "the cancelled stream's slots are free")
    call = vllm.stub.Generate(vllm.GenerateRequest(text=PROMPT, stream=True, sampling_params=vllm.SamplingParams(max_tokens=2000, ignore_eos=True)))
    next(call)
    call.cancel()
    until(lambda: running(served) == 0, 10, "the cancelled call's slot is free")


# --- KServe: bad input ---

def test_errors_of_a_call_name_the_tensor(served, client):
    bad = [
        ([], "text_input"),
        ([tensor("text_input", ["a", "b"])], "text_input"),
        ([tensor("text_input", ["a", "b"], shape=[2, 1])], "text_input"),
        ([tensor("text_input", PROMPT), tensor("max_tokens", 3, "INT32"), tensor("max_tokens", 4, "INT32")], "max_tokens"),
        ([tensor("text_input", PROMPT), tensor("max_tokens", "many")], "max_tokens"),
        ([tensor("text_input", PROMPT), tensor("top_p", 1.5, "FP32")], "top_p"),
        ([tensor("text_input", PROMPT), tensor("stop_words", [str(i) for i in range(9)])], "stop_words"),
        ([tensor("text_input", PROMPT), tensor("stream", True, "BOOL")], "stream"),
        (vllm_inputs(PROMPT, {"max_tokens": 3, "sauce": 1}), "sampling_parameters.sauce"),
        (vllm_inputs(PROMPT, {"temperature": [1, 2]}), "sampling_parameters.temperature"),
        ([tensor("text_input", PROMPT), tensor("sampling_parameters", "{\"max_tokens\"")], "sampling_parameters"),
    ]
    for inputs, field in bad:
        with pytest.raises(InferenceServerException) as e:
            client.infer("smol", inputs)
        assert e.value.status() == "StatusCode.INVALID_ARGUMENT", e.value
        assert e.value.message().startswith(f"{field}:"), e.value  # the client shows no details
    with pytest.raises(InferenceServerException) as e:
        client.infer("smol", vllm_inputs(PROMPT, {"guided_decoding": {"json": "{}"}}))
    assert e.value.status() == "StatusCode.UNIMPLEMENTED"
    with pytest.raises(InferenceServerException) as e:
        client.infer("smol", vllm_inputs(PROMPT, {"max_tokens": 2}), compression_algorithm="gzip")
    assert e.value.status() == "StatusCode.UNIMPLEMENTED"
    with pytest.raises(InferenceServerException) as e:
        client.infer("smol", vllm_inputs(PROMPT, {"max_tokens": 2000, "ignore_eos": True}), timeout=200000)
    assert e.value.status() == "StatusCode.DEADLINE_EXCEEDED"


# --- KServe: facts ---

def test_facts_about_server_and_model(served, client):
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("smol") and client.is_model_ready("smol", "1")
    assert not client.is_model_ready("smol", "2") and not client.is_model_ready("nobody")
    assert {"model_repository", "model_repository(unload_dependents)", "statistics"} <= set(client.get_server_metadata().extensions)
    metadata = client.get_model_metadata("smol")
    assert list(metadata.versions) == ["1"]
    inputs = {t.name: (t.datatype, list(t.shape)) for t in metadata.inputs}
    assert inputs["text_input"] == ("BYTES", [1]) and inputs["max_tokens"] == ("INT32", [1]) and inputs["stop_words"] == ("BYTES", [-1])
    config = client.get_model_config("smol").config
    assert config.model_transaction_policy.decoupled and config.max_batch_size == 0
    assert [i.name for i in config.input if not i.optional] == ["text_input"]
    before = client.get_inference_statistics("smol").model_stats[0].inference_stats
    client.infer("smol", vllm_inputs(PROMPT, {"max_tokens": 2}))
    after = until(lambda: (now := client.get_inference_statistics("smol").model_stats[0].inference_stats).success.count > before.success.count and now,
                  10, "the request is counted")
    assert after.success.ns > before.success.ns and after.queue.count > before.queue.count
    for call in (client.get_model_metadata, client.get_model_config, client.get_inference_statistics):
        with pytest.raises(InferenceServerException) as e:
            call("nobody")
        assert e.value.status() == "StatusCode.NOT_FOUND"
    for call in (client.get_system_shared_memory_status, client.get_trace_settings, client.get_log_settings):
        with pytest.raises(InferenceServerException) as e:
            call()
        assert e.value.status() == "StatusCode.UNIMPLEMENTED"


def test_reflection_and_health_name_the_services(served):
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
    wanted = {"inference.GRPCInferenceService", "vllm.grpc.engine.VllmEngine"}
    database = ProtoReflectionDescriptorDatabase(served.channel)
    assert wanted <= set(database.get_services())
    assert database.FindFileContainingSymbol("vllm.grpc.engine.VllmEngine").package == "vllm.grpc.engine"
    health = health_pb2_grpc.HealthStub(served.channel)
    for name in wanted:
        assert health.Check(health_pb2.HealthCheckRequest(service=name)).status == health_pb2.HealthCheckResponse.SERVING


# --- KServe: the repository ---

def test_only_an_operator_controls_the_repository(served, client):
    for call in (client.get_model_repository_index, lambda: client.load_model("smol"), lambda: client.unload_model("smol")):
        with pytest.raises(InferenceServerException) as e:
            call()
        assert e.value.status() == "StatusCode.PERMISSION_DENIED"
    for name in ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"):
        with pytest.raises(grpc.RpcError) as e:
            served.channel.unary_unary(f"/inference.GRPCInferenceService/{name}")(b"")
        assert reason(e.value) == "ROLE_REQUIRED"
    assert client.is_model_ready("smol")


def test_an_operators_key_opens_the_repository_alone(served, tmp_path):
    """A second server of the same manager, with keys of three roles."""
    roles = {"acme": "inference", "looker": "viewer", "ops": "operator"}
    keys, lines = {}, []
    for tenant, role in roles.items():
        key, line = served.cli("key", "new", tenant, "--role", role).stdout.splitlines()
        keys[tenant] = {"authorization": f"Bearer {key}"}
        lines.append(line)
    (tmp_path / "keys").write_text("\n".join(lines) + "\n")
    (tmp_path / "keys").chmod(0o600)
    address = f"127.0.0.1:{free_port()}"
    server = subprocess.Popen([BIN / "sluice-server", "--manager", served.state / "run/manager.sock", "--listen", address,
                               "--keys-file", tmp_path / "keys"], stderr=subprocess.DEVNULL)
    try:
        with triton.InferenceServerClient(address) as client:
            def answers(call, tenant):
                try:
                    call(headers=keys[tenant])
                    return "OK"
                except InferenceServerException as e:
                    return e.status().split(".")[-1]
            until(lambda: answers(client.get_model_repository_index, "ops") == "OK", 30, "the server knows the manager")
            assert [answers(client.get_model_repository_index, t) for t in roles] == ["PERMISSION_DENIED", "PERMISSION_DENIED", "OK"]
            assert [answers(client.get_server_metadata, t) for t in roles] == ["OK", "PERMISSION_DENIED", "PERMISSION_DENIED"]
            client.load_model("smol", headers=keys["ops"])  # loaded already
    finally:
        server.kill()
        server.wait()


def index(client):
    return {(m.name, m.version): m.state for m in client.get_model_repository_index().models}


def test_load_and_unload_block_until_they_are_done(served, client, operator):
    served.cli("register", "second", ROOT / "tests/golden/tiny/bf16.gguf", "--version", "7")
    assert index(operator) == {("smol", "1"): "READY", ("second", "7"): "UNAVAILABLE"}
    operator.load_model("second", config=json.dumps({"n_replicas": 1}))
    assert client.is_model_ready("second") and index(operator)[("second", "7")] == "READY"
    assert client.infer("second", [tensor("text_input", "a"), tensor("max_tokens", 2, "INT32")]).as_numpy("text_output").shape == (1,)
    operator.load_model("second:7")  # a load again changes nothing
    assert client.is_model_ready("second", "7") and client.is_server_ready()
    events = [json.loads(line) for line in served.cli("events", "--type", "audit.Load", "--from", "1", "--json").stdout.splitlines()]
    assert "kserve/uid:" in json.dumps(events)
    operator.unload_model("second")
    assert not client.is_model_ready("second") and index(operator)[("second", "7")] == "UNAVAILABLE"
    assert not [r for r in served.replicas() if r["model"] == "second" and r["state"] != "REPLICA_STATE_STOPPED"]
    for call, code in [(lambda: operator.load_model("nobody"), "NOT_FOUND"), (lambda: operator.unload_model("second"), "FAILED_PRECONDITION"),
                       (lambda: operator.load_model("second", config="{\"backend\": \"x\"}"), "INVALID_ARGUMENT"),
                       (lambda: operator.load_model("second", config="{}", files={"file:1/model": b"x"}), "INVALID_ARGUMENT")]:
        with pytest.raises(InferenceServerException) as e:
            call()
        assert e.value.status() == f"StatusCode.{code}", e.value


# --- VllmEngine ---

def chunks_of(vllm, metadata=(), **kwargs):
    responses = list(vllm.stub.Generate(vllm.GenerateRequest(**kwargs), metadata=metadata))
    return [r.chunk for r in responses if r.WhichOneof("response") == "chunk"], [r.complete for r in responses if r.WhichOneof("response") == "complete"]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_vllm_generate_gives_the_tokens_of_sluice(served, vllm, prompt):
    inference = served.stubs.inference
    _, ids, finished = native(served, prompt, max_tokens=12)
    prompt_ids = served.inference.Tokenize(inference.TokenizeRequest(model="smol", text=prompt, parse_special_tokens=True)).ids
    params = vllm.SamplingParams(max_tokens=12, temperature=0)
    for source in ({"text": prompt}, {"tokenized": vllm.TokenizedInput(input_ids=prompt_ids)}):
        chunks, (complete,) = chunks_of(vllm, stream=True, sampling_params=params, **source)
        assert [i for c in chunks for i in c.token_ids] == ids == list(complete.output_ids)
        assert all(c.completion_tokens == len(c.token_ids) and c.prompt_tokens == finished.usage.n_prompt_tokens for c in chunks)
        assert (complete.finish_reason, complete.completion_tokens, complete.prompt_tokens) == ("length", len(ids), finished.usage.n_prompt_tokens)
        chunks, (complete,) = chunks_of(vllm, sampling_params=params, **source)
        assert not chunks and list(complete.output_ids) == ids


def test_vllm_several_answers_stops_and_log_probabilities(served, vllm):
    inference = served.stubs.inference
    request = served.request("smol", PROMPT, max_tokens=5, temperature=1, seed=3, n=2)
    request.output.CopyFrom(inference.Output(logprobs=True, prompt_logprobs=True, top_n=2))
    whole = served.inference.Complete(request)
    params = vllm.SamplingParams(max_tokens=5, temperature=1, seed=3, n=2, logprobs=2, prompt_logprobs=1)
    for stream in (False, True):
        chunks, completes = chunks_of(vllm, text=PROMPT, stream=stream, sampling_params=params)
        assert {c.index: list(c.output_ids) for c in completes} == {c.index: list(c.ids) for c in whole.choices}
        parts = chunks if stream else completes
        for choice in whole.choices:
            own = [c.output_logprobs for c in parts if c.index == choice.index]
            assert [v for o in own for v in o.token_logprobs] == [t.logprob for t in choice.logprobs]
            assert [list(t.token_ids) for o in own for t in o.top_logprobs] == [[p.id for p in t.top] for t in choice.logprobs]
        want = whole.prompt_info.prompt_logprobs
        for given in [c.input_logprobs for c in parts if c.HasField("input_logprobs")]:
            assert not given.token_logprobs[0].HasField("value") and [t.value for t in given.token_logprobs[1:]] == [t.logprob for t in want[1:]]
            assert all(len(t.token_ids) <= 1 for t in given.top_logprobs)
        assert sorted(c.index for c in parts if c.HasField("input_logprobs")) == [0, 1]
    _, (complete,) = chunks_of(vllm, text="1 2 3 4 5", sampling_params=vllm.SamplingParams(max_tokens=24, temperature=0, stop=[" 8"]))
    assert (complete.finish_reason, complete.matched_stop_str) == ("stop", " 8")


def test_vllm_refuses_by_name(served, vllm):
    C, params = grpc.StatusCode, vllm.SamplingParams
    for kwargs, code, field in [
            ({}, C.INVALID_ARGUMENT, "input"),
            ({"tokenized": vllm.TokenizedInput()}, C.INVALID_ARGUMENT, "tokenized.input_ids"),
            ({"tokenized": vllm.TokenizedInput(input_ids=[1, 99999999])}, C.INVALID_ARGUMENT, "tokenized.input_ids[1]"),
            ({"text": "a", "sampling_params": params(top_p=1.5)}, C.INVALID_ARGUMENT, "sampling_params.top_p"),
            ({"text": "a", "sampling_params": params(stop=["x"] * 9)}, C.INVALID_ARGUMENT, "sampling_params.stop"),
            ({"text": "a", "sampling_params": params(logprobs=-1)}, C.INVALID_ARGUMENT, "sampling_params.logprobs"),
            ({"text": "a", "sampling_params": params(logprobs=21)}, C.INVALID_ARGUMENT, "sampling_params.logprobs"),
            ({"text": "a", "sampling_params": params(truncate_prompt_tokens=-1)}, C.INVALID_ARGUMENT, "sampling_params.truncate_prompt_tokens"),
            ({"text": "a", "data_parallel_rank": 1}, C.INVALID_ARGUMENT, "data_parallel_rank"),
            ({"text": "a", "mm_inputs": vllm.MultimodalInputs()}, C.UNIMPLEMENTED, "mm_inputs"),
            ({"text": "a", "kv_transfer_params_json": "{}"}, C.UNIMPLEMENTED, "kv_transfer_params_json"),
            *(({"text": "a", "sampling_params": params(**{kind: value})}, C.UNIMPLEMENTED, f"sampling_params.{kind}") for kind, value in
              [("json_schema", "{}"), ("regex", "a"), ("grammar", "a"), ("structural_tag", "{}"), ("json_object", True),
               ("choice", vllm.ChoiceConstraint(choices=["a"]))])]:
        with pytest.raises(grpc.RpcError) as e:
            chunks_of(vllm, **kwargs)
        assert (e.value.code(), bad_field(e.value) if code == C.INVALID_ARGUMENT else e.value.details().split(":")[0]) == (code, field), e.value
    with pytest.raises(grpc.RpcError) as e:
        vllm.stub.Embed(vllm.EmbedRequest(tokenized=vllm.TokenizedInput(input_ids=[1])))
    assert e.value.code() == C.UNIMPLEMENTED


def test_vllm_names_a_model_by_metadata(served, vllm):
    key = "x-sluice-model"
    _, (complete,) = chunks_of(vllm, [(key, "smol:1")], text="a", sampling_params=vllm.SamplingParams(max_tokens=1))
    assert len(complete.output_ids) == 1
    for name, code in [("nobody", grpc.StatusCode.NOT_FOUND), ("smol:9", grpc.StatusCode.NOT_FOUND), (":", grpc.StatusCode.INVALID_ARGUMENT)]:
        with pytest.raises(grpc.RpcError) as e:
            chunks_of(vllm, [(key, name)], text="a")
        assert e.value.code() == code


def test_vllm_abort_and_facts(served, vllm):
    running_call = vllm.stub.Generate(vllm.GenerateRequest(request_id="mine", text=PROMPT, stream=True,
                                                          sampling_params=vllm.SamplingParams(max_tokens=2000, ignore_eos=True)))
    next(running_call)
    assert vllm.stub.GetServerInfo(vllm.GetServerInfoRequest()).active_requests >= 1
    with pytest.raises(grpc.RpcError) as e:
        chunks_of(vllm, request_id="mine", text="a")
    assert e.value.code() == grpc.StatusCode.ALREADY_EXISTS
    vllm.stub.Abort(vllm.AbortRequest(request_ids=["mine", "nobody"]))
    with pytest.raises(grpc.RpcError) as e:
        list(running_call)
    assert e.value.code() == grpc.StatusCode.CANCELLED
    until(lambda: running(served) == 0, 10, "the aborted request's slot is free")
    assert vllm.stub.HealthCheck(vllm.HealthCheckRequest()).healthy
    assert not vllm.stub.HealthCheck(vllm.HealthCheckRequest(), metadata=[("x-sluice-model", "nobody")]).healthy
    info = vllm.stub.GetModelInfo(vllm.GetModelInfoRequest())
    assert (info.served_model_name, info.model_path, info.is_generation, info.vocab_size) == ("smol", "smol:1", True, 49152)
    assert info.max_context_length and json.loads(info.default_sampling_params_json) == {}
    server = vllm.stub.GetServerInfo(vllm.GetServerInfoRequest())
    assert server.server_type == "sluice" and server.uptime_seconds > 0 and server.last_receive_timestamp > 1e9


def test_a_lost_worker_ends_no_stream_of_a_facade(served, client, vllm):
    """Both streams continue on the restarted worker. Every token comes once."""
    text, ids, _ = native(served, PROMPT, max_tokens=300, ignore_eos=True)
    params = vllm.SamplingParams(max_tokens=300, temperature=0, ignore_eos=True)
    with Stream(triton.InferenceServerClient(served.address)) as stream:
        stream.send(vllm_inputs(PROMPT, {"max_tokens": 300, "temperature": 0, "ignore_eos": True}, stream=True))
        call = vllm.stub.Generate(vllm.GenerateRequest(text=PROMPT, stream=True, sampling_params=params))
        first, got = stream.next()[0], list(next(call).chunk.token_ids)
        for pid in served.children("sluice-worker"):
            os.kill(pid, signal.SIGKILL)
        assert "".join(text_of(r)[0] for r in [first, *stream.answer()]) == text
        assert got + [i for r in call if r.WhichOneof("response") == "chunk" for i in r.chunk.token_ids] == ids
