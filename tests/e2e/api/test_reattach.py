"""Lost connections: which requests a client can continue with the real programs, token for token, and which not."""
import socket
import threading

import grpc
import pytest

from conftest import names
from generate_stream import PROMPTS, Answer, Stream, alone, rest


class Proxy:
    """A TCP proxy whose connections the test can cut."""

    def __init__(self, port):
        self.target = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.pairs = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.target))
            self.pairs.append((client, server))
            for a, b in ((client, server), (server, client)):
                threading.Thread(target=self.pump, args=(a, b), daemon=True).start()

    def pump(self, a, b):
        try:
            while data := a.recv(65536):
                b.sendall(data)
        except OSError:
            pass
        for s in (a, b):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def channel(self):
        """A channel with a connection of its own. By default gRPC channels of one target share connections, also a
        connection that was just cut."""
        return grpc.insecure_channel(f"127.0.0.1:{self.port}", options=[("grpc.use_local_subchannel_pool", 1)])

    def cut(self):
        for pair in self.pairs:
            for s in pair:
                try:
                    s.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
        self.pairs = []

    def close(self):
        self.listener.close()
        self.cut()


def test_a_lost_connection_cancels_what_has_no_window(served):
    proxy = Proxy(served.port)
    try:
        with proxy.channel() as channel:
            stream = Stream(served, channel)
            for i in range(4):
                stream.start(f"l{i}", served.request("smol", "Once upon a time", max_tokens=8000, ignore_eos=True))
            stream.wait_tokens("l3", 3)
            proxy.cut()
            stream.wait(lambda: stream.over, "the end")
    finally:
        proxy.close()
    rest(served)  # the server has noticed the loss
    again = Stream(served)
    again.reattach("l0", {0: 0})
    assert again.wait_error("l0").reason == "REQUEST_NOT_FOUND"
    again.end()
    rest(served)


@pytest.mark.parametrize("kind", ["Generate", "GenerateStream"])
def test_reattach_at_every_index(served, kind):
    proxy = Proxy(served.port)
    reference = alone(served, served.request("smol", PROMPTS[7], max_tokens=24, ignore_eos=True, seed=3, temperature=1.0))
    try:
        for cut_at in range(25):
            name = f"{kind}-{cut_at}"
            request = served.request("smol", PROMPTS[7], max_tokens=24, ignore_eos=True, seed=3, temperature=1.0,
                                     reattach_window_ms=10000, request_id=name)
            answer = Answer()
            with proxy.channel() as channel:
                if kind == "Generate":
                    call = served.stubs.inference_grpc.InferenceStub(channel).Generate(request)
                    for response in call:
                        if response.WhichOneof("event") == "tokens":
                            answer.ids.setdefault(0, []).extend(response.tokens.ids)
                        if answer.tokens() >= cut_at:
                            break
                    proxy.cut()
                else:
                    stream = Stream(served, channel)
                    stream.start(name, request)
                    if cut_at:
                        stream.wait_tokens(name, cut_at)
                    else:
                        stream.wait(lambda: name in stream.answers, "prompt_info")
                    proxy.cut()
                    stream.wait(lambda: stream.over, "the end")
                    answer.ids = {0: list(stream.answers[name].ids.get(0, []))}
            # The connection may have delivered more tokens than the client processed. The client reports the tokens
            # that it kept.
            have = answer.ids.get(0, [])[:cut_at]
            assert have == reference[1][:cut_at]
            again = Stream(served)
            kept = Answer()
            kept.ids = {0: list(have)} if have else {}
            again.reattach(name, kept)
            again.wait_finished(name)
            assert kept.ids[0] == reference[1]
            assert reference[0].endswith(kept.text.get(0, "")) and kept.info.request_id == name
            if not have:
                assert kept.text[0] == reference[0]
            again.end()
    finally:
        proxy.close()


def test_reattach_says_what_cannot_be(served):
    proxy = Proxy(served.port)
    request = served.request("smol", "Once upon a time", max_tokens=100, ignore_eos=True, reattach_window_ms=30000)
    try:
        with proxy.channel() as channel:
            stream = Stream(served, channel)
            stream.start("a", request)
            stream.wait_tokens("a", 10)
            proxy.cut()
            stream.wait(lambda: stream.over, "the end")
    finally:
        proxy.close()
    again = Stream(served)
    for received, status, field in (({0: 301}, 3, "reattach.received[0].n_tokens"), ({1: 0}, 3, "reattach.received[0].choice")):
        again.answers.pop("a", None)
        again.reattach("a", received)
        error = again.wait_error("a")
        assert (error.code, error.field) == (status, field), error
    reference = alone(served, served.request("smol", "Once upon a time", max_tokens=100, ignore_eos=True))
    kept = Answer()
    kept.ids = {0: reference[1][:10]}
    again.reattach("a", kept)  # the server drops the first ten tokens at this point
    again.wait_tokens("a", 11)
    other = Stream(served)
    other.reattach("a", {0: 9})
    error = other.wait_error("a")
    assert (error.code, error.reason) == (9, "REPLAY_GONE") and names(error.message, 10)
    # The newer connection takes over. The older connection gets the error REATTACHED.
    other.answers.pop("a")
    kept = Answer()
    kept.ids = {0: reference[1][:10]}
    other.reattach("a", kept)
    other.wait_finished("a")
    assert kept.ids[0] == reference[1]
    assert [e.error.reason for e in again.answers["a"].errors] in ([], ["REATTACHED"])
    other.end()
    again.call.cancel()


def test_the_newest_connection_wins_over_a_half_open_one(served):
    request = served.request("smol", "Once upon a time", max_tokens=120, ignore_eos=True, reattach_window_ms=30000)
    old, new = Stream(served), None
    old.start("t", request)
    old.wait_tokens("t", 20)
    new = Stream(served)
    kept = Answer()
    kept.ids, kept.text = {0: list(old.answers["t"].ids[0])}, {0: old.answers["t"].text[0]}
    # The old stream may receive more tokens meanwhile. Only the count that the new stream reports matters.
    n = len(kept.ids[0])
    kept.ids[0] = kept.ids[0][:n]
    kept.text = {}
    new.reattach("t", kept)
    assert old.wait_error("t").reason == "REATTACHED"
    new.wait_finished("t")
    assert kept.ids[0] == alone(served, request)[1]
    new.end()
    old.end()


def test_the_window_ends(served):
    request = served.request("smol", "Once upon a time", max_tokens=8000, ignore_eos=True, reattach_window_ms=1000)
    with grpc.insecure_channel(served.address) as channel:
        stream = Stream(served, channel)
        stream.start("w", request)
        stream.wait_tokens("w", 3)
        stream.call.cancel()
        stream.wait(lambda: stream.over, "the end")
    rest(served)
    again = Stream(served)
    again.reattach("w", {0: 0})
    assert again.wait_error("w").reason == "REQUEST_NOT_FOUND"
    again.end()
