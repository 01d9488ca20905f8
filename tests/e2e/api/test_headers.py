"""Response headers: a request that was accepted has them while it waits, a refusal comes as trailers alone.

A proxy with a read timeout (nginx's grpc_read_timeout, say) ended requests that queued: their headers came with the first token.
"""
import time

import pytest

from conftest import model_path, patience
from generate_stream import Stream
from rawhttp2 import DATA, END_STREAM, HEADERS, Peer, message

SERVICE = "/sluice.v1.Inference/"


def first_headers(peer, stream):
    """Returns (fields, True if the answer ends with them) of the first HEADERS frame of a stream."""
    until = time.monotonic() + patience(30)
    while True:
        kind, flags, at, payload = peer.read_frame(max(0.001, until - time.monotonic()))
        assert kind != DATA or at != stream, "a message came before the headers"
        if kind == HEADERS:
            fields = dict(peer.decoder.decode(payload))
            if at == stream:
                return fields, bool(flags & END_STREAM)


def begin(peer, method, request):
    stream = peer.open(SERVICE + method)
    peer.data(stream, message(request.SerializeToString()))
    return stream


@pytest.mark.parametrize("queue", ["the replica's", "the server's"])
def test_headers_come_when_a_request_queues_and_a_refusal_is_trailers_only(fresh, queue):
    config = fresh.state / "sluice.conf"
    config.write_text("[server]\nmax_queued = 2\n" + ("max_concurrent = 1\n" if queue == "the server's" else ""))
    fresh.start("--config", config)
    fresh.cli("register", "smol", model_path(), "--version", "1")
    fresh.cli("load", "smol", "--max-concurrent", "2" if queue == "the server's" else "1", "--max-input-tokens", "64")

    def request(prompt="Count on:", **kwargs):
        return fresh.request("smol", prompt, ignore_eos=True, **kwargs)
    running = Stream(fresh)
    running.start("a", request(max_tokens=1800))
    running.wait_tokens("a", 1)
    with Peer(fresh.port) as peer:
        for method in ("Generate", "Complete"):
            fields, ended = first_headers(peer, begin(peer, method, request(max_tokens=2)))
            assert fields[":status"] == "200" and "grpc-status" not in fields and not ended, (method, fields)
        fields, ended = first_headers(peer, begin(peer, "Generate", request(max_tokens=2)))
        assert fields["grpc-status"] == "8" and ended, "RESOURCE_EXHAUSTED: two wait"
        assert not running.answers["a"].finished, "the request that runs was to outlast the test"
    running.cancel("a")
    with Peer(fresh.port) as peer:
        fresh.wait(lambda: peer.call(SERVICE + "Complete", request(max_tokens=1).SerializeToString()).get("grpc-status") == "0",
                   30, "the queue is empty")
        fields, ended = first_headers(peer, begin(peer, "Generate", request("word " * 200, max_tokens=2)))
        assert fields["grpc-status"] == "3" and ended, "INVALID_ARGUMENT: the replica refuses the prompt's length"


def test_headers_of_a_stream_come_before_its_first_frame(served):
    with Peer(served.port) as peer:
        fields, ended = first_headers(peer, peer.open(SERVICE + "GenerateStream"))
        assert fields[":status"] == "200" and "grpc-status" not in fields and not ended, fields
