"""F27 in sluice-worker: the N-th allocation fails, of the worker itself or of protobuf-c. The test repeats this for
each RPC (tests/support/fault/fail_malloc.c). The call ends well or with RESOURCE_EXHAUSTED, the worker lives, and
the next call works as usual. No sequence and no KV block stays in use. The docstring of test_malloc.py says how N is
chosen."""
import subprocess

import grpc
import pytest

from conftest import BIN, free_port, model_path, patience, sanitized, until
from test_malloc import chat, preloaded, starve
from test_worker_alone import Worker, idle

pytestmark = pytest.mark.skipif(sanitized(), reason="sanitizers replace the allocator whose calls are made to fail")


@pytest.fixture(scope="module")
def starved_worker(tmp_path_factory, stubs):
    """A worker with the sample model, whose allocations can fail. The server in front has all memory and reads routes
    from a file."""
    folder = tmp_path_factory.mktemp("malloc-worker")
    with preloaded(folder) as control:
        worker = Worker(folder, stubs, model=model_path())
    routing, types = stubs.routing, stubs.types
    table = routing.RouteTable(generation=1, routes=[routing.Route(
        model="smol", version="1", is_default=True, loaded=True, sequence=1, replicas=[routing.RouteReplica(
            id="r1", epoch=7, socket_path=str(worker.socket), state=types.REPLICA_STATE_READY,
            numerics_id=worker.status().numerics_id, max_concurrent_requests=64)])])
    table.routes[0].info.CopyFrom(worker.status().info)
    (folder / "routes.pb").write_bytes(table.SerializeToString())
    address = f"127.0.0.1:{free_port()}"
    server = subprocess.Popen([BIN / "sluice-server", "--listen", address, "--routes-file", folder / "routes.pb"],
                              stdout=worker.log, stderr=worker.log)
    worker.stubs, worker.control, worker.program = stubs, control, lambda: worker.process
    worker.stub = stubs.inference_grpc.InferenceStub(grpc.insecure_channel(address))
    worker.stub.Complete(generate(stubs.inference), timeout=patience(20), wait_for_ready=True)
    yield worker
    control.disarm()
    server.kill()
    server.wait()
    worker.stop()


def generate(i, n=1, max_tokens=6, **kwargs):
    return i.GenerateRequest(model="smol", text="Once upon a time", sampling=i.Sampling(n=n, temperature=0.7, seed=5),
                             stopping=i.Stopping(max_tokens=max_tokens, ignore_eos=True), **kwargs)


def demanding(i):
    """A request with its own memory in the engine: penalties, biases, words, stop strings, alternatives,
    log-probabilities of the prompt."""
    request = generate(i, n=2)
    request.sampling.repetition_penalty = 1.1
    request.sampling.logit_bias.add(token_id=100, bias=1)
    request.sampling.bad_words.append("zebra")
    request.stopping.stop.append("qwertz")
    request.output.logprobs = request.output.prompt_logprobs = True
    request.output.top_n = 2
    return request


def tokens_of(responses):
    """{(request, choice): [ids, text, reason]}, with no gap in any of them."""
    given = {}
    for r in responses:
        name = getattr(r, "request_id", "")
        if r.HasField("tokens"):
            ids, text, _ = given.setdefault((name, r.tokens.choice), [[], "", None])
            assert r.tokens.first_index == len(ids), "a gap"
            given[name, r.tokens.choice] = [ids + list(r.tokens.ids), text + r.tokens.text, None]
        elif r.HasField("finished"):
            given[name, r.finished.choice][2] = r.finished.reason
        elif name and r.HasField("error"):
            assert r.error.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], r.error
            given[name, "error"] = [[], "", r.error.code]
    return given


def completed(reply):
    return [(list(c.ids), c.text, [round(p.logprob, 3) for p in c.logprobs], c.finished.reason) for c in reply.choices], \
        len(reply.prompt_info.prompt_logprobs)


def two_on_a_stream(s, i):
    """Either request may be refused by itself; the other request must be whole."""
    given = tokens_of(s.stub.GenerateStream(iter([i.GenerateStreamRequest(request_id=name, start=generate(i)) for name in "ab"]),
                                            timeout=patience(20)))
    whole = {(name, 0): given.get((name, 0)) for name in "ab" if (name, "error") not in given}
    assert all(w and len(w[0]) == 6 and w[2] for w in whole.values()), given
    if len(whole) < 2:
        raise Refusal()
    return given


class Refusal(grpc.RpcError):
    """The refusal of a single request of a stream."""

    def code(self):
        return grpc.StatusCode.RESOURCE_EXHAUSTED

    def details(self):
        return "an error frame"


CALLS = {
    "Generate": lambda s, i: tokens_of(s.stub.Generate(generate(i, n=2), timeout=patience(20))),
    "Complete, all that has memory": lambda s, i: completed(s.stub.Complete(demanding(i), timeout=patience(20))),
    "GenerateStream": two_on_a_stream,
    "Tokenize": lambda s, i: [(list(t.ids), list(t.pieces), t.version) for t in [s.stub.Tokenize(i.TokenizeRequest(
        model="smol", text="Once upon a time, in a land far away", with_pieces=True), timeout=patience(20))]],
    "Tokenize of a chat": lambda s, i: [(list(t.ids), list(t.pieces), t.version) for t in [s.stub.Tokenize(i.TokenizeRequest(
        model="smol", chat=chat(i)), timeout=patience(20))]],
    "Detokenize": lambda s, i: [(t.text, t.version) for t in [s.stub.Detokenize(i.DetokenizeRequest(
        model="smol", ids=range(100, 140)), timeout=patience(20))]],
    "ApplyChatTemplate": lambda s, i: [(t.text, list(t.ids), t.version) for t in [s.stub.ApplyChatTemplate(i.ApplyChatTemplateRequest(
        model="smol", chat=chat(i)), timeout=patience(20))]],
    "Complete of a chat": lambda s, i: completed(s.stub.Complete(i.GenerateRequest(
        model="smol", chat=chat(i), stopping=i.Stopping(max_tokens=3, ignore_eos=True)), timeout=patience(20))),
}


@pytest.mark.parametrize("rpc", CALLS)
def test_f27_a_failed_allocation_of_the_worker_fails_the_call_alone(starved_worker, rpc):
    def at_rest(nth):
        until(lambda: idle(starved_worker), 5, lambda: f"allocation {nth}: all is free again: {starved_worker.status().load}", 0.02)

    starve(starved_worker, starved_worker.stubs.inference, rpc, CALLS[rpc], at_rest)
