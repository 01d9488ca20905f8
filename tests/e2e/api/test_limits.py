"""Servers with small limits next to the supervised server, on the same workers. A request beyond a limit is refused
or ended with the right status, and other clients are unharmed."""
import os
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.request

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from conftest import BIN, free_port, keeps, names, patience, until
from kinds import Kinds
from rawhttp2 import Peer, message
from test_stall import Health

alone, long = pytest.mark.alone, pytest.mark.long


def limited(what, most):
    """The prefix that runs a command under this limit. Popen's preexec_fn is no choice: gRPC's fork handlers
    sometimes end the child."""
    return ["/usr/bin/prlimit", f"--{what}={most}:{most}", "--"]


class Server:
    """A separate sluice-server, which gets its routes from a running Sluice."""

    def __init__(self, sluice, *args, files=None):
        self.port, self.metrics_port = free_port(), free_port()
        self.address = f"127.0.0.1:{self.port}"
        limit = limited("nofile", files) if files else []
        self.process = subprocess.Popen(
            [*limit, BIN / "sluice-server", "--manager", sluice.state / "run/manager.sock", "--listen", self.address,
             "--metrics", f"127.0.0.1:{self.metrics_port}", *args], stderr=subprocess.DEVNULL)
        self.sluice = sluice
        self.channel = self.connect()
        self.inference = sluice.stubs.inference_grpc.InferenceStub(self.channel)
        Health(self, "model/smol/1").wait(True, 10)

    def connect(self, **options):
        return grpc.insecure_channel(self.address, [(k.replace("__", "."), v) for k, v in options.items()])

    def metrics(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=patience(5)) as reply:
            return reply.read().decode()

    def refusals(self, limit):
        """The number of refusals by this limit, from /metrics."""
        return sum(float(m.group(2)) for m in re.finditer(r'^sluice_\w*refus\w*_total\{([^}]*)\} (\S+)$', self.metrics(), re.M)
                   if f'limit="{limit}"' in m.group(1))

    def connections(self):
        return float(re.search(r"^sluice_connections (\S+)$", self.metrics(), re.M).group(1))

    def stop(self):
        self.channel.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@pytest.fixture
def server(served):
    started = []

    def start(*args, **kwargs):
        started.append(Server(served, *args, **kwargs))
        return started[-1]
    yield start
    for s in started:
        s.stop()


def request(sluice, i, max_tokens, **kwargs):
    return sluice.request("smol", f"Count on from {i}:", max_tokens=max_tokens, ignore_eos=True, **kwargs)


class Reader(threading.Thread):
    def __init__(self, server, req, **kwargs):
        super().__init__(daemon=True)
        self.ids, self.times, self.error, self.finished = [], [], None, None
        self.call = server.inference.Generate(req, **kwargs)
        self.start()

    def run(self):
        try:
            for response in self.call:
                if response.WhichOneof("event") == "tokens":
                    self.ids += response.tokens.ids
                    self.times.append(time.monotonic())
                elif response.WhichOneof("event") == "finished":
                    self.finished = response.finished
        except grpc.RpcError as e:
            self.error = e



def details(error):
    """{reason, retry in s, pushback in ms} of a refused call."""
    trailers = dict(error.trailing_metadata())
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    for any_detail in status.details:
        any_detail.Unpack(info)
        any_detail.Unpack(retry)
    return info.reason, retry.retry_delay.ToTimedelta().total_seconds(), trailers.get("grpc-retry-pushback-ms")


class Worker:
    """The status of the worker, read from the worker's own socket."""

    def __init__(self, sluice):
        (path,) = sluice.state.glob("run/replica-*/worker.sock")
        self.stub = sluice.stubs.worker_grpc.WorkerStub(grpc.insecure_channel(f"unix:{path}"))
        self.request = sluice.stubs.worker.WatchStatusRequest(interval_ms=50)

    def load(self):
        call = self.stub.WatchStatus(self.request, timeout=patience(10))
        status = next(call)
        call.cancel()
        return status.load

    def wait_idle(self, seconds):
        until(lambda: self.load().n_running + self.load().n_queued == 0, seconds, "the worker is idle")


def test_queue_overflow_is_refused_at_once_and_the_accepted_are_answered(served, server):
    """F24: ten times more requests than fit. test_fault_suite.py measures how soon the server refuses."""
    s = server("--max-concurrent", "4", "--max-queued", "4")
    tokens = min(1600, int(patience(200)))  # the accepted requests run until all others are refused
    calls = [Reader(s, request(served, i, tokens)) for i in range(4)]
    until(lambda: all(c.ids for c in calls), 30, "four run")  # the requests wait like all others until a replica starts them
    calls += [Reader(s, request(served, i, tokens)) for i in range(4, 80)]
    until(lambda: sum(c.error is not None for c in calls) == 72, 30, "all but eight are refused")
    reason, retry_s, pushback = details(next(c.error for c in calls if c.error))
    assert reason == "QUEUE_FULL"
    assert 0.05 <= retry_s <= 30 and int(pushback) == round(retry_s * 1000)
    for c in calls:
        if c.error is None:
            c.join(patience(120))
            assert c.error is None and len(c.ids) == tokens
        else:
            assert c.error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert sum(c.finished is not None for c in calls) == 8
    assert s.refusals("queued") == 72


@alone
def test_deadline_storm_leaves_nothing_behind(served, server):
    """F23: 1,000 calls with a deadline of 1 ms, next to long streams."""
    s = server()
    worker = Worker(served)
    worker.wait_idle(10)
    free = worker.load().free_kv_tokens
    steady = [Reader(s, request(served, i, 200)) for i in range(4)]
    until(lambda: all(len(r.ids) > 5 for r in steady), 30, "the steady streams run")
    storm = [s.inference.Complete.future(request(served, i, 4), timeout=0.001) for i in range(1000)]
    assert {call.code() for call in storm} == {grpc.StatusCode.DEADLINE_EXCEEDED}
    for r in steady:
        r.join(patience(120))
        assert r.error is None and len(r.ids) == 200
    worker.wait_idle(10)
    until(lambda: worker.load().free_kv_tokens == free, 5, "its KV blocks are free again")


def test_more_live_calls_than_the_limit_are_refused_and_a_place_comes_free(served, server):
    """--max-calls does not count health calls. The server's helper watches health all the while."""
    s = server("--max-calls", "3")
    live = [Reader(s, request(served, i, 2000)) for i in range(3)]
    until(lambda: all(len(r.ids) > 2 for r in live), 30, "three streams run")
    for i in range(5):
        with pytest.raises(grpc.RpcError) as refused:
            s.inference.Complete(request(served, i, 2), timeout=patience(10))
        assert (refused.value.code(), details(refused.value)[0]) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_CALLS")
    assert s.refusals("calls") == 5 and all(r.error is None for r in live)
    assert Health(s, "").wait(True, 5)
    live[0].call.cancel()

    def again():
        try:
            return len(s.inference.Complete(request(served, 9, 2), timeout=patience(10)).choices[0].ids) == 2
        except grpc.RpcError as e:
            assert e.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            return False
    until(again, 5, "a place is free again")
    for r in live[1:]:
        r.call.cancel()


@alone
@long  # the test of F18 in test_fault_clients.py always runs
def test_slow_reader_is_paused_and_ended_and_nobody_else_is(served, server):
    """F18. The messages are large, so the client's flow-control window is soon full."""
    s = server("--slow-reader-timeout", "5s", "--max-pending-bytes", "8K")
    others = [Reader(s, request(served, i, 300)) for i in range(4)]
    channel = s.connect(grpc__http2__bdp_probe=0)
    stub = served.stubs.inference_grpc.InferenceStub(channel)
    fat = request(served, 99, 4000)
    fat.output.logprobs = True
    fat.output.top_n = 20
    stalled = stub.Generate(fat)
    next(stalled)  # the client reads no further message
    worker = Worker(served)
    until(lambda: worker.load().n_paused == 1, 120, "its sequence pauses")
    until(lambda: s.refusals("slow_reader") == 1, 10, "it is ended")
    assert s.refusals("pending_bytes") >= 1
    with pytest.raises(grpc.RpcError) as ended:
        for _ in stalled:
            pass
    assert ended.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert names(ended.value.details(), "SLOW_READER")
    for r in others:
        r.join(patience(120))
        assert r.error is None and len(r.ids) == 300
    worker.wait_idle(10)
    channel.close()


def test_without_descriptors_the_old_go_on_and_the_port_comes_back(served, server):
    """F28: the server has no free file descriptor."""
    s = server(files=64)
    old = Reader(s, request(served, 1, 600))
    until(lambda: len(old.ids) > 5, 30, "the stream runs")
    sockets = []
    for _ in range(200):
        c = socket.socket()
        c.settimeout(1)
        try:
            c.connect(("127.0.0.1", s.port))
            sockets.append(c)
        except OSError:
            c.close()
    keeps(lambda: s.process.poll() is None, 0.5, "it lives")
    for c in sockets:
        c.close()
    old.join(patience(120))
    assert old.error is None and len(old.ids) == 600
    channel = s.connect(grpc__use_local_subchannel_pool=1)
    fresh = served.stubs.inference_grpc.InferenceStub(channel)
    reply = fresh.Complete(request(served, 2, 2), timeout=patience(30), wait_for_ready=True)
    assert len(reply.choices[0].ids) == 2
    channel.close()


def test_connections_leave_descriptors_to_others_and_to_those_that_linger(served, server):
    files = 512
    s = server(files=files)
    sockets = [socket.create_connection(("127.0.0.1", s.port), timeout=5) for _ in range(files - 100)]
    until(lambda: s.refusals("connections") > 0, 10, "some are too many")
    n = s.connections()
    assert 200 <= n <= files - files // 8 - 192, n
    [c.close() for c in sockets]


@alone
def test_sigterm_lets_streams_finish_and_a_second_one_does_not(served, server):
    """F37: two servers, one after the other, each with requests of every kind. The first ends after a single SIGTERM,
    the second gets two."""
    reference = Kinds(served, served.inference, 150).start().join()
    for hurried in (False, True):
        s = server("--drain-grace", "60s")
        health = Health(s, "")
        health.wait(True, 5)
        kinds = Kinds(served, s.inference, 1500 if hurried else 150).start()
        sent = time.monotonic()
        s.process.send_signal(signal.SIGTERM)
        assert health.wait(False, 5) - sent < patience(1)
        assert not kinds.failed, kinds.failed
        code = grpc.StatusCode.CANCELLED  # gRPC 1.51 reports CANCELLED for a call that crosses the GOAWAY (docs/use/limits.md)
        while code == grpc.StatusCode.CANCELLED and time.monotonic() - sent < patience(1):
            with pytest.raises(grpc.RpcError) as refused:
                s.inference.Complete(request(served, 6, 2), timeout=patience(5))
            code = refused.value.code()
        assert code == grpc.StatusCode.UNAVAILABLE
        if hurried:
            sent = time.monotonic()
            s.process.send_signal(signal.SIGTERM)
        kinds.join()
        if hurried:
            kinds.check_failed(reference, grpc.StatusCode.UNAVAILABLE, "DRAINING")
        else:
            kinds.check_whole(reference)
        assert s.process.wait(patience(10)) == 0
        if hurried:
            assert time.monotonic() - sent < patience(3)


@alone
def test_killed_server_is_back_within_a_second_and_its_sequences_are_cancelled(served):
    """The manager does not answer, so the server reads the routes from the disk."""
    worker = Worker(served)
    worker.wait_idle(10)
    free = worker.load().free_kv_tokens
    streams = [Reader(served, request(served, i, 3000, request_id=f"held-{i}", reattach_window_ms=30000)) for i in range(4)]
    until(lambda: all(len(r.ids) > 5 for r in streams), 30, "the streams run")
    (manager,) = served.children("sluice-manager")
    (server,) = served.children("sluice-server")
    os.kill(manager, signal.SIGSTOP)
    try:
        killed = time.monotonic()
        os.kill(server, signal.SIGKILL)
        worker.wait_idle(2)
        idle_s = time.monotonic() - killed
        channel = grpc.insecure_channel(served.address, [("grpc.initial_reconnect_backoff_ms", 50),
                                                         ("grpc.max_reconnect_backoff_ms", 50),
                                                         ("grpc.use_local_subchannel_pool", 1)])
        stub = served.stubs.inference_grpc.InferenceStub(channel)
        stub.ListModels(served.stubs.inference.ListModelsRequest(), timeout=patience(10), wait_for_ready=True)
        back_s = time.monotonic() - killed
        reply = stub.Complete(request(served, 7, 5), timeout=patience(30))
        assert len(reply.choices[0].ids) == 5
        inference = served.stubs.inference  # requests that were kept for reattaching clients are lost with the server
        again = inference.GenerateStreamRequest(request_id="held-0", reattach=inference.ReattachFrame(
            received=[inference.ReceivedTokens(choice=0, n_tokens=len(streams[0].ids))]))
        (answer,) = stub.GenerateStream(iter([again]), timeout=patience(10))
        assert (answer.error.code, answer.error.reason) == (grpc.StatusCode.NOT_FOUND.value[0], "REQUEST_NOT_FOUND")
        channel.close()
    finally:
        os.kill(manager, signal.SIGCONT)
    for r in streams:
        r.join(patience(10))
        assert r.error is not None and r.error.code() == grpc.StatusCode.UNAVAILABLE
    assert back_s <= patience(1), f"the server was away for {back_s:.2f} s"
    assert idle_s <= patience(1), f"its sequences ran on for {idle_s:.2f} s"
    until(lambda: worker.load().free_kv_tokens == free, 5, "its KV blocks are free again")


def test_service_manager_hears_of_the_server(served, tmp_path):
    """The server notifies systemd: READY when it serves, WATCHDOG while it runs, STOPPING at SIGTERM. Each message
    has a STATUS for people. The manager does the same."""
    programs = {
        "server": [BIN / "sluice-server", "--manager", served.state / "run/manager.sock", "--listen",
                   f"127.0.0.1:{free_port()}", "--metrics", ""],
        "manager": [BIN / "sluice-manager", "--state-dir", tmp_path / "m", "--metrics", ""],
    }
    for name, argv in programs.items():
        path = tmp_path / f"{name}.notify"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
            heard.bind(str(path))
            heard.settimeout(patience(20))
            process = subprocess.Popen(argv, env={**os.environ, "NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "600000"},
                                       stderr=subprocess.DEVNULL)
            said, states = [], []

            def hear():
                lines = heard.recv(600).decode().splitlines()
                said.append(lines[0])
                states.extend(line[len("STATUS="):] for line in lines if line.startswith("STATUS="))
            for _ in range(5):
                hear()
            process.send_signal(signal.SIGTERM)
            while "STOPPING=1" not in said:
                hear()
            assert process.wait(patience(20)) == 0
            assert len(states) == 2 and all(states), (name, states)
        assert said.count("READY=1") == 1 and said.count("WATCHDOG=1") >= 3, (name, said)


def test_a_server_that_may_write_no_file_serves_on(tmp_path, stubs):
    """RLIMIT_FSIZE acts like a full disk: the server can write neither the log nor the copy of the routes."""
    port = free_port()
    (tmp_path / "log").write_bytes(b"x")
    (tmp_path / "routes.pb").write_bytes(b"")
    with open(tmp_path / "log", "ab") as log:
        server = subprocess.Popen([*limited("fsize", 0), BIN / "sluice-server", "--listen", f"127.0.0.1:{port}", "--routes-file",
                                   tmp_path / "routes.pb"], stdout=log, stderr=log)
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = stubs.inference_grpc.InferenceStub(channel)
            stub.ListModels(stubs.inference.ListModelsRequest(), timeout=patience(10), wait_for_ready=True)
        assert server.poll() is None and (tmp_path / "log").read_bytes() == b"x"
    finally:
        server.terminate()
        assert server.wait(patience(10)) == 0


def test_what_a_call_may_bring_and_how_long_it_may_take_are_counted(served, server):
    """Each refusal counts under the name of its limit: metadata, message, connections, late request, impossible
    deadline. An answer beyond its limit and an absent replica count too."""
    s = server("--max-metadata-bytes", "2K", "--max-message-bytes", "32K", "--request-timeout", "300ms", "--max-answer-bytes", "2K",
               "--max-connections", "8")

    def refused(code, call):
        with pytest.raises(grpc.RpcError) as e:
            call()
        assert e.value.code() == code, e.value
    exhausted = grpc.StatusCode.RESOURCE_EXHAUSTED
    refused(exhausted, lambda: s.inference.Complete(request(served, 1, 1), metadata=[("x-a", "v" * 3000)], timeout=patience(10)))
    assert s.refusals("metadata_bytes") == 1
    refused(exhausted, lambda: s.inference.Complete(served.request("smol", "word " * 8000), timeout=patience(10)))
    assert s.refusals("message_bytes") == 1
    refused(exhausted, lambda: s.inference.Complete(request(served, 1, 900), timeout=patience(60)))
    assert s.refusals("answer_bytes") == 1
    with Peer(s.port) as peer:
        stream = peer.open("/sluice.v1.Inference/ListModels")
        peer.data(stream, message(b"x" * 100)[:20], end=False)
        assert peer.answer(stream)["grpc-status"] == "4"
    assert s.refusals("request_timeout") == 1
    assert s.refusals("deadline_unreachable") == 0
    s.inference.Complete(served.request("smol", "How long a prompt takes. " * 60, max_tokens=4), timeout=patience(60))  # the server learns the prefill speed
    with pytest.raises(grpc.RpcError) as e:  # the prefill takes some seconds
        s.inference.Complete(served.request("smol", "It takes too long, whatever comes. " * 800, max_tokens=4), timeout=patience(0.5))
    assert e.value.code() in (exhausted, grpc.StatusCode.DEADLINE_EXCEEDED), e.value
    until(lambda: s.refusals("deadline_unreachable") == 1, 5, "it is known beforehand")
    silent = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(20)]
    until(lambda: s.refusals("connections") >= 12, 5, "those over the limit are closed")
    [c.close() for c in silent]
