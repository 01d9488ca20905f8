"""F27: the N-th allocation of sluice-server or of protobuf-c in it fails, N = 1, 2, … until a whole call does with fewer, for each RPC
(tests/support/fail_malloc.c). The call ends well or RESOURCE_EXHAUSTED, the process lives, and the next call is as ever."""
import mmap
import os
import struct
import time

import grpc
import pytest

from conftest import BIN, patience, sanitized
from plumbing import Plumbing

EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
pytestmark = pytest.mark.skipif(sanitized(), reason="sanitizers replace the allocator whose calls are made to fail")


class Control:
    def __init__(self, path):
        path.write_bytes(struct.pack("qq", -1, 0))
        self.map = mmap.mmap(os.open(path, os.O_RDWR), 16)

    def arm(self, n):
        self.map[0:16] = struct.pack("qq", n - 1, 0)

    def disarm(self):
        """How many failed since arm."""
        failed = struct.unpack("qq", self.map[0:16])[1]
        self.map[0:16] = struct.pack("qq", -1, 0)
        return failed


@pytest.fixture(scope="module")
def starved(tmp_path_factory, stubs):
    folder = tmp_path_factory.mktemp("malloc")
    control = Control(folder / "control")
    os.environ.update(LD_PRELOAD=str(BIN / "fail_malloc.so"), SLUICE_TEST_MALLOC=str(folder / "control"))
    try:
        p = Plumbing(folder, stubs, rate=200)
    finally:
        del os.environ["LD_PRELOAD"], os.environ["SLUICE_TEST_MALLOC"]
    p.control = control
    p.stub = stubs.inference_grpc.InferenceStub(grpc.insecure_channel(p.address))
    yield p
    control.disarm()
    p.stop()


def generate_request(stubs, **kwargs):
    inference = stubs.inference
    return inference.GenerateRequest(model="echo", text="abcdef", stopping=inference.Stopping(max_tokens=5), **kwargs)


class Refused(Exception):
    """An error frame of a GenerateStream."""

    def __init__(self, error):
        super().__init__(error.message)
        self.error = error

    def code(self):
        return next(c for c in grpc.StatusCode if c.value[0] == self.error.code)

    def details(self):
        return self.error.message


def text_of(responses):
    text = ""
    for r in responses:
        text += r.tokens.text
        if getattr(r, "error", None) is not None and r.HasField("error"):
            raise Refused(r.error)
    return text


CALLS = {
    "Generate": lambda s, i: text_of(s.stub.Generate(generate_request(s.stubs), timeout=patience(10))),
    "Complete": lambda s, i: s.stub.Complete(generate_request(s.stubs), timeout=patience(10)).choices[0].text,
    "GenerateStream": lambda s, i: text_of(s.stub.GenerateStream(iter([i.GenerateStreamRequest(
        request_id="a", start=generate_request(s.stubs))]), timeout=patience(10))),
    "Tokenize": lambda s, i: tuple(s.stub.Tokenize(i.TokenizeRequest(model="echo", text="abc"), timeout=patience(10)).ids),
    "ListModels": lambda s, i: s.stub.ListModels(i.ListModelsRequest(), timeout=patience(10)).models[0].name,
    "GetModel": lambda s, i: s.stub.GetModel(i.GetModelRequest(model="echo"), timeout=patience(10)).model.name,
}


@pytest.mark.parametrize("rpc", CALLS)
def test_f27_a_failed_allocation_fails_the_call_alone(starved, rpc):
    call, inference = CALLS[rpc], starved.stubs.inference
    reference = call(starved, inference)
    outcomes = {"OK": 0, "RESOURCE_EXHAUSTED": 0}
    for n in range(1, 400):
        starved.control.arm(n)
        try:
            assert call(starved, inference) == reference, f"allocation {n}: another answer"
            outcomes["OK"] += 1
        except (grpc.RpcError, Refused) as e:
            assert e.code() == EXHAUSTED, f"allocation {n}: {e.code()} {e.details()}\n{starved.text()}"
            outcomes["RESOURCE_EXHAUSTED"] += 1
        failed = starved.control.disarm()
        assert starved.server.poll() is None, f"allocation {n}: the server died\n{starved.text()}"
        until = time.monotonic() + patience(5)
        while True:
            try:
                assert call(starved, inference) == reference, f"after allocation {n}"
                break
            except (grpc.RpcError, Refused) as e:  # its link to the worker may have been what failed
                assert time.monotonic() < until, f"after allocation {n}: {e}"
                time.sleep(0.05)
        if not failed:
            break
    assert not failed, "no end"
    print(f"{rpc}: {n - 1} allocations, {outcomes}")
    assert n > 5 and outcomes["RESOURCE_EXHAUSTED"] > 0
