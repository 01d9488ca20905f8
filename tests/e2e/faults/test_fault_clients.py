"""Faults that clients make, F17 to F22, beside load L with the invariants checked, and F18 beside 63 readers. Timers are shortened;
tests/long.sh faults sets SLUICE_LONG: real timers, and the figures of FAULTS as the median of interleaved runs."""
import contextlib
import copy
import os
import signal
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time

import grpc
import psutil
import pytest

import http_stream
from conftest import free_port, keeps, names, patience, sanitized, stand_still, steady, until
from generate_stream import Stream
from invariants import metrics
from rawhttp2 import DATA, END_STREAM, HEADERS, RST_STREAM, WINDOW_UPDATE, Closed, Peer, frame, message, raw_reason
from test_fault_suite import EXHAUSTED, LONG, UnderLoad, plumbing, start  # noqa: F401 (a fixture)
from test_wire import LIST, OK, STREAM, Proxy, connections, reset_flood

long = pytest.mark.long
SLOW_S = 30 if LONG else 3
KEEPALIVE_S, HANDSHAKE_S = (80, 10) if LONG else (6, 1)
CLIENTS = 8 if sanitized() else 32
GENERATE = "/sluice.v1.Inference/Generate"
ENV = {"SLUICE_MAX_CONNECTIONS": "128"}
if not LONG:
    ENV |= {"SLUICE_KEEPALIVE_TIME": "1s", "SLUICE_KEEPALIVE_TIMEOUT": "5s", "SLUICE_HANDSHAKE_TIMEOUT": "1s", "SLUICE_MAX_RESETS": "2000"}


@pytest.fixture(scope="module")
def one(tmp_path_factory, stubs):
    http = f"127.0.0.1:{free_port()}"
    sluice = start(tmp_path_factory.mktemp("one"), stubs, env={**ENV, "SLUICE_HTTP_LISTEN": http})
    sluice.http = http
    yield sluice
    sluice.stop()


class Port:
    """The server of a Sluice in the form that the raw clients of test_wire.py need."""

    def __init__(self, sluice):
        self.port, self.server = sluice.port, psutil.Process(sluice.children("sluice-server")[0])


# --- F17: clients leave ---

WATCHER = ("import grpc, sys, time; sys.path.insert(0, sys.argv[1]); from sluice.worker.v1 import worker_pb2 as p, worker_pb2_grpc as g\n"
           "for s in g.WorkerStub(grpc.insecure_channel(sys.argv[2])).WatchStatus(p.WatchStatusRequest(protocol_min=1, protocol_max=1, interval_ms=10)):\n"
           "    print(time.monotonic(), s.counters.n_cancelled_requests + s.counters.n_refused_requests, s.counters.n_steps,\n"
           "          str(s.counters).replace(chr(10), \", \"), str(s.load).replace(chr(10), \", \"), sep=chr(9), flush=True)\n")


def stubs_folder(sluice):
    return os.path.dirname(os.path.dirname(os.path.dirname(sluice.stubs.inference.__file__)))


class Cancelled(threading.Thread):
    """Records when the worker reported how many cancelled requests, and how long the engine's steps took. The worker counts
    a request as refused if its client leaves before the engine has the request. A separate process takes the times: the
    threads of load L in this process would delay them."""

    def __init__(self, sluice):
        super().__init__(daemon=True)
        (path,) = sluice.state.glob("run/replica-*/worker.sock")
        self.process = subprocess.Popen([sys.executable, "-c", WATCHER, stubs_folder(sluice), f"unix:{path}"], stdout=subprocess.PIPE, text=True)
        self.seen = [self.read(self.process.stdout.readline())]  # (when, cancelled, steps, all counters)
        self.start()

    @staticmethod
    def read(line):
        at, cancelled, steps, *rest = line.split("\t")
        return float(at), int(cancelled), int(steps), rest

    def run(self):
        for line in self.process.stdout:
            self.seen.append(self.read(line))

    def step_s(self):
        """Mean step time of the engine since the start, in seconds. The engine had work all the time."""
        (begin, _, first, _), (end, _, last, _) = self.seen[0], self.seen[-1]
        return (end - begin) / max(1, last - first)

    def n(self):
        return self.seen[-1][1]

    def when(self, n, within):
        """Returns the first time at which n requests were cancelled."""
        until(lambda: self.n() >= n, within, lambda: f"{n - self.n()} requests were not cancelled: {self.seen[-1]}", 0.005)
        return next(at for at, seen, *_ in self.seen if seen >= n)

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.join(5)


CHILD = ("import grpc, sys, threading; sys.path.insert(0, sys.argv[1]); from sluice.v1 import inference_pb2 as p, inference_pb2_grpc as g\n"
         "stub = g.InferenceStub(grpc.insecure_channel(sys.argv[2]))\n"
         "def run(i):\n"
         "    for r in stub.Generate(p.GenerateRequest(model='smol', text=f'Count from {i}:', stopping=p.Stopping(max_tokens=5000, ignore_eos=True))):\n"
         "        print(i, flush=True)\n"
         "[threading.Thread(target=run, args=(i,)).start() for i in range(6)]\n")


def leave_http(sluice, how):
    """Six requests over HTTP. Their clients close or reset the connections during the prefill, or after the first token."""
    connections = []
    for i in range(6):
        prompt = f"[{i}] " + ("All work and no play makes Jack a dull boy. " * 60 if how == "http in prefill" else "Count:")
        connections.append(http_stream.dial(sluice.http))
        connections[-1].sendall(http_stream.post("/v1/completions", {
            "model": "smol", "prompt": prompt, "max_tokens": 5000, "ignore_eos": True, "stream": True, "n": 1 + (how == "http n")}))
    if how == "http in prefill":
        until(lambda: metrics(sluice)["sluice_http_requests_live"] == 6, 5, "they are there")
    else:
        for connection in connections:
            answer = http_stream.Answer(connection).head()
            assert answer.status == 200 and answer.chunk()
    left = time.monotonic()
    for connection in connections:
        http_stream.leave(connection, "reset" if how == "http reset" else "close")
    return left


def leave(sluice, how):
    """Six streams whose client leaves after their first token. Returns the time of the departure."""
    if how.startswith("http"):
        return leave_http(sluice, how)
    if how == "kill":
        process = subprocess.Popen([sys.executable, "-c", CHILD, stubs_folder(sluice), sluice.address], stdout=subprocess.PIPE)
        seen = set()
        while len(seen) < 6:
            seen.add(process.stdout.readline())
        left = time.monotonic()
        process.kill()
        process.wait()
        return left
    channel = grpc.insecure_channel(sluice.address, options=[("grpc.use_local_subchannel_pool", 1)])
    stub = sluice.stubs.inference_grpc.InferenceStub(channel)
    calls = [stub.Generate(sluice.request("smol", f"Count down from {i}:", max_tokens=5000, ignore_eos=True)) for i in range(6)]
    for call in calls:
        next(call), next(call)
    if how == "reset":  # RST instead of FIN: a linger time of zero
        mine = [c for c in psutil.Process().net_connections("tcp") if c.raddr and c.raddr.port == sluice.port and c.status == "ESTABLISHED"]
        for connection in mine[-1:]:
            s = socket.socket(fileno=os.dup(connection.fd))
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            s.close()
    left = time.monotonic()
    if how == "cancel":
        [call.cancel() for call in calls]
    channel.close()
    return left


def test_f17_abandoned_streams_are_cancelled_at_once(one):
    """A cancel takes effect within a step, by the worker's own report. With load L and its clients on two cores a step
    takes longer than its usual 100 ms at most. Only tests/long.sh asserts the bound: at most that step and the step
    before."""
    took = {"kill": [], "close": [], "cancel": [], "reset": [], "http close": [], "http reset": [], "http n": [], "http in prefill": []}
    watch = Cancelled(one)
    with UnderLoad(one) as load:
        for how in list(took) * (5 if LONG else 1):
            base = watch.n()
            left = leave(one, how)
            took[how].append(watch.when(base + 6, patience(20)) - left)
        n_left = 6 * sum(len(times) for times in took.values())
        load.others["cancelled"] = (n_left, n_left)
    watch.stop()
    print("cancelled in the engine after " + ", ".join(f"{how} {1e3 * statistics.median(t):.0f} ms" for how, t in took.items()) +
          f"; a step took {1e3 * watch.step_s():.0f} ms")
    bound = max(0.1, 2 * watch.step_s()) if LONG else patience(20)
    assert sanitized() or all(statistics.median(t) <= bound for t in took.values()), took


# --- F18: a reader that does not read ---

def stalled_reader(p, max_tokens=10**6):
    """A client that opens no window. The tokens of all eight choices, 800 a second, stay in the server."""
    inference = p.stubs.inference
    peer = Peer(p.port, settings=struct.pack(">HI", 4, 0))
    stream = peer.open(GENERATE)
    peer.data(stream, message(inference.GenerateRequest(
        model="echo", text="never read", sampling=inference.Sampling(n=8),
        stopping=inference.Stopping(max_tokens=max_tokens)).SerializeToString()))
    return peer, stream


def slow(plumbing, rate=100, *options):
    metrics_port = free_port()
    p = plumbing(rate=rate, options=["--metrics", f"127.0.0.1:{metrics_port}", *options])
    p.metrics_address = f"127.0.0.1:{metrics_port}"

    def measured():
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", metrics_port)) == 0
    p.wait(measured, "its metrics answer")  # the client port is bound before the metrics port
    worker = p.stubs.worker
    p.worker = p.stubs.worker_grpc.WorkerStub(grpc.insecure_channel(f"unix:{p.socket_path(0)}"))

    def load():
        call = p.worker.WatchStatus(worker.WatchStatusRequest(protocol_min=1, protocol_max=1, interval_ms=20), timeout=10)
        status = next(call)
        call.cancel()
        return status.load
    p.worker_load = load
    return p


def refused(p, limit):
    return metrics(p)[f'sluice_refusals_total{{limit="{limit}"}}']


def generated(p):
    return int(sum(v for name, v in metrics(p).items() if name.startswith("sluice_generated_tokens_total")))


def take(p, peer, stream, n_tokens, seconds=20):
    """Reads until n_tokens have come. Returns the bytes of text and of ids."""
    peer.send(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 24)) + frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", 1 << 24)))
    until, data, n, n_bytes = time.monotonic() + seconds, b"", 0, 0
    while n < n_tokens:
        kind, _, at, payload = peer.read_frame(max(0.01, until - time.monotonic()))
        assert kind != RST_STREAM, "it was ended"
        data += payload if kind == DATA and at == stream else b""
        while n < n_tokens and len(data) >= 5 and len(data) >= 5 + int.from_bytes(data[1:5], "big"):
            size = 5 + int.from_bytes(data[1:5], "big")
            tokens = p.stubs.inference.GenerateResponse.FromString(data[5:size]).tokens
            n, n_bytes, data = n + len(tokens.ids), n_bytes + len(tokens.text) + 4 * len(tokens.ids), data[size:]
    return n_bytes


def test_f30_a_server_that_stood_still_finds_nobody_slow(plumbing):  # noqa: F811
    """Data in flight when the server was stopped does not count as older because of the stop."""
    p = slow(plumbing, 100, "--slow-reader-timeout", "1s")
    load = subprocess.Popen(p.load_command(connections=2, streams=32, tokens=600), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    n_pauses = 0
    try:
        for _ in range(3):
            before = generated(p)
            p.wait(lambda: load.poll() is not None or generated(p) > before + 32 * 20, "tokens come")
            if load.poll() is None:
                stand_still(1.5, p.server.pid)
                n_pauses += 1
        out, err = load.communicate(timeout=patience(60))
    finally:
        p.server.send_signal(signal.SIGCONT)
        load.kill()
    assert load.returncode == 0, (out, err, p.text())
    assert n_pauses and refused(p, "slow_reader") == 0


def replicas_ready(p):
    return sum(value for name, value in metrics(p).items() if name.startswith("sluice_replica_usable{"))


def stand_idle(p, seconds):
    stand_still(seconds, p.server.pid)
    keeps(lambda: p.server.poll() is None, 0.3, "it looks at what is over")


def test_f30_a_server_that_stood_still_waits_for_a_request_no_shorter(plumbing):  # noqa: F811
    """Symptom: the time-out of a call ran on while the stopped server could not read the request."""
    p = slow(plumbing, 100, "--request-timeout", "3s")
    with Peer(p.port) as peer:
        stream = peer.open(LIST)
        p.wait(lambda: metrics(p)["sluice_grpc_calls_live"] == 1, "it is there")
        stand_idle(p, 3.5)
        peer.data(stream, message(b""))
        assert peer.answer(stream)["grpc-status"] == "0"
        assert raw_reason(peer.answer(peer.open(LIST), patience(10))) == "REQUEST_TIMEOUT"


@long
def test_f30_a_server_that_stood_still_waits_for_its_clients_to_come_back(plumbing):  # noqa: F811
    """Symptom: the reattach window was over before the stopped server could hear of its clients."""
    p = slow(plumbing, 100)
    inference = p.stubs.inference
    start = inference.GenerateRequest(model="echo", text="x", reattach_window_ms=3000, stopping=inference.Stopping(max_tokens=100))
    channels = [grpc.insecure_channel(p.address, options=[("grpc.use_local_subchannel_pool", 1)]) for _ in range(2)]
    streams = [Stream(p, channel) for channel in channels]
    streams[0].start("r", start)
    streams[0].wait_tokens("r", 3)
    channels[0].close()
    p.wait(lambda: metrics(p)["sluice_connections"] == 1, "it is lost")
    stand_idle(p, 3.5)
    streams[1].reattach("r", streams[0].answers["r"])
    streams[1].wait_finished("r")
    assert streams[1].answers["r"].tokens() == 100
    channels[1].close()


@long
def test_f30_a_server_that_stood_still_waits_for_a_lost_replica_no_shorter(plumbing):  # noqa: F811
    p = slow(plumbing, 100, "--resume-timeout", "3s")
    inference = p.stubs.inference
    with grpc.insecure_channel(p.address) as channel:
        stub = p.stubs.inference_grpc.InferenceStub(channel)
        call = stub.Generate(inference.GenerateRequest(model="echo", text="x", stopping=inference.Stopping(max_tokens=100)))
        [next(call) for _ in range(3)]
        p.workers[0].kill()
        p.workers[0].wait()
        p.wait(lambda: replicas_ready(p) == 0, "the server knows")
        stand_idle(p, 3.5)
        p.epochs[0] -= 1
        p.start_worker(0)
        assert [f for f in call][-1].finished.reason


def test_what_was_taken_over_is_not_said_to_go_on(plumbing):  # noqa: F811
    """Symptom: a frame was refused while another stream took over its request. The later answer for the frame claimed
    goes_on."""
    p = slow(plumbing, 20)
    inference = p.stubs.inference
    channels = [grpc.insecure_channel(p.address, options=[("grpc.use_local_subchannel_pool", 1)]) for _ in range(2)]
    here, there = [Stream(p, channel) for channel in channels]
    here.start("r", inference.GenerateRequest(model="echo", text="x", reattach_window_ms=30000, stopping=inference.Stopping(max_tokens=10**6)))
    here.wait_tokens("r", 1)
    for _ in range(100):
        for _ in range(200):
            here.update("r", max_tokens=0)
        seen = len(here.answers["r"].errors)
        here.wait(lambda: len(here.answers["r"].errors) > seen, "an answer has come, and others are on their way")
        answer = copy.copy(here.answers["r"])
        answer.errors, answer.ids = [], {c: list(ids) for c, ids in answer.ids.items()}
        there.reattach("r", answer)
        errors = here.answers["r"].errors
        here.wait(lambda: len(errors) == 201, "each is told, and that it was taken over")
        at = [e.error.reason for e in errors].index("REATTACHED")
        assert not any(e.goes_on for e in errors[at:]), errors[at:]
        here, there = there, here


@long
def test_f30_a_server_that_stood_still_waits_for_a_replica_that_comes_up(plumbing):  # noqa: F811
    """Symptom: the wait of a text call counted the time while the server was stopped. The server refused the call as
    soon as it ran again."""
    p = slow(plumbing, 100, "--replica-wait", "3s")
    p.workers[0].kill()
    p.workers[0].wait()
    p.wait(lambda: replicas_ready(p) == 0, "the server knows")
    with grpc.insecure_channel(p.address) as channel:
        stub = p.stubs.inference_grpc.InferenceStub(channel)
        call = stub.Tokenize.future(p.stubs.inference.TokenizeRequest(model="echo", text="abc"))
        p.wait(lambda: metrics(p)["sluice_grpc_calls_live"] == 1, "it waits")
        stand_idle(p, 3.5)
        p.epochs[0] -= 1
        p.start_worker(0)
        assert call.result(patience(10)).ids


def test_f18_calls_of_one_answer_do_not_wait_for_a_window_for_ever(plumbing):  # noqa: F811
    """Health and reflection calls do not wait for a window either. Otherwise a few connections that open no window
    occupy every call slot and block a drain."""
    p = slow(plumbing, 100, "--slow-reader-timeout", "1s", "--max-calls", "30")
    inference = p.stubs.inference
    calls = {"/sluice.v1.Inference/ListModels": b"", "/grpc.health.v1.Health/Check": b"",
             "/sluice.v1.Inference/GetModel": inference.GetModelRequest(model="echo").SerializeToString()}
    began = time.monotonic()
    with Peer(p.port, settings=struct.pack(">HI", 4, 0)) as peer:
        streams = [peer.open(path) for path in calls for _ in range(10)]
        for i, stream in enumerate(streams):
            peer.data(stream, message(list(calls.values())[i // 10]))
        ends = {}
        while len(ends) < len(streams):
            kind, flags, at, payload = peer.read_frame(patience(10))
            fields = dict(peer.decoder.decode(payload)) if kind == HEADERS else {}
            if flags & END_STREAM and kind == HEADERS:
                ends[at] = fields
        assert set(ends) == set(streams)
        assert all(e["grpc-status"] == "8" and e["grpc-message"].startswith("SLOW_READER") for e in ends.values()), ends
    assert 1 <= time.monotonic() - began < patience(10)
    p.wait(lambda: refused(p, "slow_reader") == len(streams), "they are counted")
    with grpc.insecure_channel(p.address) as channel:
        assert p.stubs.inference_grpc.InferenceStub(channel).ListModels(inference.ListModelsRequest(), timeout=patience(5)).models


def test_f18_a_cancel_tells_the_tokens_that_its_slow_reader_gets(plumbing):  # noqa: F811
    """Symptom: the cancel reported the tokens sent by then. The tokens that waited for the slow reader were missing,
    though the reader got them before the end."""
    p = slow(plumbing, 1000, "--slow-reader-timeout", "30s")
    inference = p.stubs.inference
    with Peer(p.port, settings=struct.pack(">HI", 4, 0)) as peer:
        stream = peer.open(GENERATE)
        peer.data(stream, message(inference.GenerateRequest(model="echo", text="x", request_id="unread",
                                                            stopping=inference.Stopping(max_tokens=10**6)).SerializeToString()))
        p.wait(lambda: generated(p) > 50, "tokens wait")
        with grpc.insecure_channel(p.address) as channel:
            stub = p.stubs.inference_grpc.InferenceStub(channel)
            told = stub.Cancel(inference.CancelRequest(request_id="unread"), timeout=patience(5)).n_tokens_sent
        peer.send(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 24)) + frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", 1 << 24)))
        data, n, flags = b"", 0, 0
        while not flags & END_STREAM:
            kind, flags, _, payload = peer.read_frame(patience(10))
            data += payload if kind == DATA else b""
            flags = flags if kind == HEADERS else 0
        while data:
            size = 5 + int.from_bytes(data[1:5], "big")
            n, data = n + len(inference.GenerateResponse.FromString(data[5:size]).tokens.ids), data[size:]
    assert told == n > 50


@pytest.mark.parametrize("what", ["bytes", "tokens"])
def test_f18_what_a_stalled_reader_leaves_unread_is_bounded(plumbing, what):  # noqa: F811
    """The sequence of a stalled reader pauses before 64 KiB or 1,024 tokens are kept for the reader. A paused sequence
    generates nothing, and continues when the client reads again."""
    p = slow(plumbing, 1000, *(["--max-pending-tokens", "1000000"] if what == "bytes" else []))
    peer, stream = stalled_reader(p)
    p.wait(lambda: p.worker_load().n_paused == 1, "its sequence pauses", 20)
    n, at = steady(lambda: generated(p)), time.monotonic()
    assert refused(p, f"pending_{what}") == 1 == refused(p, "pending_bytes") + refused(p, "pending_tokens")
    keeps(lambda: generated(p) == n and p.worker_load().n_paused == 1, 1, "a paused sequence goes on")
    n_bytes = take(p, peer, stream, n)
    print(f"{n} tokens in {n_bytes} bytes were kept for it, read {time.monotonic() - at:.1f} s later")
    if what == "tokens":
        assert 768 <= n <= 1024
    else:
        assert 32 << 10 <= n_bytes <= (64 << 10) + (1 << 10 if LONG else 8 << 10)  # plus the bytes in flight at the pause
    p.wait(lambda: generated(p) > n + 100, "it goes on once it reads")
    peer.close()
    p.wait(lambda: p.worker_load().n_running == 0, "it is cancelled")


def test_f18_a_stalled_reader_pauses_alone_and_is_ended(plumbing):  # noqa: F811
    """There are 63 readers and a stalled reader. The server ends the stalled reader after the time-out for slow
    readers, and no sooner. The other readers' tokens do not slow down and the server does not grow."""
    p = slow(plumbing, 100, "--slow-reader-timeout", f"{SLOW_S}s", *([] if LONG else ["--max-pending-bytes", "8K"]))
    tokens, rounds = (1500, 6) if LONG else (200, 1)
    p.load(connections=4, streams=63, tokens=200)
    p99, highest = {"alone": [], "beside": []}, {"alone": 0, "beside": 0}
    stopping = threading.Event()
    phase = ["alone"]

    def watch():
        process = psutil.Process(p.server.pid)
        while not stopping.wait(0.02):
            highest[phase[0]] = max(highest[phase[0]], process.memory_info().rss)
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for i in range(rounds):
            for phase[0] in list(p99)[::-1 if i % 2 else 1]:  # alternate the order: load of the machine affects both phases
                reader = stalled_reader(p) if phase[0] == "beside" else None
                if reader:  # until its sequence pauses, the stalled reader uses its share of the engine
                    p.wait(lambda: p.worker_load().n_paused == 1, "its sequence pauses", SLOW_S)
                p99[phase[0]].append(p.load(connections=4, streams=63, tokens=tokens)["itl_ms"]["p99"])
                if reader:
                    assert not LONG or p.worker_load().n_paused == 1, "it was not stalled all the time"
                    reader[0].close()
                    p.wait(lambda: p.worker_load().n_paused == 0, "it is cancelled")
        p.wait(lambda: p.worker_load().n_paused == 0 and p.worker_load().n_running == 0, "those who left are cancelled")
        # Now a stalled reader stays until the server ends it, beside streams that run all the time.
        ended, began, peer = refused(p, "slow_reader"), time.monotonic(), stalled_reader(p)[0]
        others = subprocess.Popen(p.load_command(connections=4, streams=62, tokens=(SLOW_S + 8) * 100), stdout=subprocess.PIPE, text=True)
        p.wait(lambda: p.worker_load().n_paused == 1, "its sequence pauses", SLOW_S)
        p.wait(lambda: refused(p, "slow_reader") == ended + 1, "it is ended", SLOW_S + 10)
        lived = time.monotonic() - began
        p.wait(lambda: p.worker_load().n_paused == 0, "its sequence is ended")
        others.communicate(timeout=120)
        assert others.returncode == 0, p.text()
        peer.close()
    finally:
        stopping.set()
        watcher.join()
    alone, beside = statistics.median(p99["alone"]), statistics.median(p99["beside"])
    print(f"p99 between tokens: {alone:.2f} ms alone, {beside:.2f} ms beside it ({100 * (beside / alone - 1):+.1f} %), of {p99}; "
          f"at most {highest['alone'] >> 10} KiB resident alone, {highest['beside'] >> 10} KiB beside it; ended after {lived:.1f} s")
    assert SLOW_S - 0.5 <= lived <= SLOW_S + (2 if LONG else 5), lived  # the server checks once a second
    assert sanitized() or highest["beside"] <= highest["alone"] * 1.01 + (8 << 20), "it is kept for"
    assert sanitized() or beside <= (alone * 1.10 if LONG else alone * 2 + 500), "the others noticed"


def test_f18_the_status_of_a_reader_that_was_too_slow(plumbing):  # noqa: F811
    """A stalled reader takes no trailers, so the status text carries the reason when the client reads again. The tokens
    before the end are complete."""
    p = slow(plumbing, 100, "--slow-reader-timeout", f"{SLOW_S}s")
    inference = p.stubs.inference
    channel = grpc.insecure_channel(p.address, options=[("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024)])
    stalled = p.stubs.inference_grpc.InferenceStub(channel).Generate(inference.GenerateRequest(
        model="echo", text="never read", sampling=inference.Sampling(n=8), stopping=inference.Stopping(max_tokens=10**6)))
    next(stalled), next(stalled)
    p.wait(lambda: refused(p, "slow_reader") == 1, "it is ended", SLOW_S + 30)
    indices = {}
    with pytest.raises(grpc.RpcError) as e:
        for response in stalled:
            tokens = response.tokens
            assert tokens.first_index == indices.setdefault(tokens.choice, tokens.first_index), "a hole"
            indices[tokens.choice] += len(tokens.ids)
    assert e.value.code() == EXHAUSTED and e.value.details().startswith("SLOW_READER: "), e.value
    channel.close()


class Drip(Proxy):
    """Passes the server's first 2 KiB, then one byte a second until the test opens the flow."""

    def __init__(self, port):
        self.pouring, self.dripped = threading.Event(), 0
        super().__init__(port)

    def pump(self, source, target):
        if source.getpeername()[1] != self.target:
            return super().pump(source, target)
        left = 2048
        source.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with contextlib.suppress(OSError):
            while data := source.recv(65536 if self.pouring.is_set() else max(1, left)):
                target.sendall(data)
                left -= len(data)
                if left < 0:
                    self.dripped += 1
                    self.pouring.wait(1)


@long
def test_f18_a_reader_of_a_byte_a_second_is_ended_as_one_that_stalls(plumbing):  # noqa: F811
    """The reader reads slowly all the time and never completes a message. Its sequence pauses, the data kept for it is
    bounded, and the server ends it. Other readers get every token. The bound is the pending limit plus HTTP/2's
    window of 64 KiB."""
    pending = (64 << 10) if LONG else (8 << 10)
    p = slow(plumbing, 100, "--slow-reader-timeout", f"{SLOW_S}s", "--max-pending-bytes", str(pending))
    p.load(connections=2, streams=16, tokens=50)
    inference, proxy = p.stubs.inference, Drip(p.port)
    channel = grpc.insecure_channel(f"127.0.0.1:{proxy.port}", options=[("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)])
    rss = psutil.Process(p.server.pid).memory_info().rss
    call = p.stubs.inference_grpc.InferenceStub(channel).Generate(inference.GenerateRequest(
        model="echo", text="drips", sampling=inference.Sampling(n=8), stopping=inference.Stopping(max_tokens=10**6)))
    indices, n_bytes, ended = {}, [0], []

    def read():
        try:
            for response in call:
                if not response.HasField("tokens"):
                    continue
                tokens = response.tokens
                assert tokens.first_index == indices.get(tokens.choice, 0), "a hole"
                indices[tokens.choice] = tokens.first_index + len(tokens.ids)
                n_bytes[0] += len(tokens.text) + 4 * len(tokens.ids)
        except (grpc.RpcError, AssertionError) as e:
            ended.append(e)

    began, reader = time.monotonic(), threading.Thread(target=read)
    reader.start()
    others = subprocess.Popen(p.load_command(connections=2, streams=16, tokens=(2 * SLOW_S + 10) * 100), stdout=subprocess.PIPE, text=True)
    try:
        p.wait(lambda: p.worker_load().n_paused == 1, "its sequence pauses", SLOW_S + 10)
        p.wait(lambda: refused(p, "slow_reader") == 1, "it is ended", SLOW_S + 10)
        lived, dripped = time.monotonic() - began, proxy.dripped
        grew = psutil.Process(p.server.pid).memory_info().rss - rss
        p.wait(lambda: p.worker_load().n_paused == 0, "its sequence is ended")
        others.communicate(timeout=patience(2 * SLOW_S + 60))
        assert others.returncode == 0, p.text()
        proxy.pouring.set()
        reader.join(patience(20))
    finally:
        others.kill()
        proxy.pouring.set()
        proxy.close()
        channel.close()
    print(f"ended after {lived:.1f} s and {dripped} bytes; {n_bytes[0]} bytes of tokens were on their way to it, {grew >> 10} KiB more resident")
    assert SLOW_S - 0.5 <= lived <= patience(2 * SLOW_S + 10) and dripped >= SLOW_S - 1, (lived, dripped)
    assert all(isinstance(e, grpc.RpcError) for e in ended), ended
    # Into so small a window the server's kernel sends rarely: half a minute apart in the long form. There the client
    # does not get the reason in time, and the test reads the server's counter instead.
    assert LONG or (len(ended) == 1 and ended[0].code() == EXHAUSTED), ended
    assert LONG or ended[0].details().startswith("SLOW_READER: ") and names(ended[0].details(), 1000 * SLOW_S), ended[0]
    assert len(indices) == 8 and n_bytes[0] <= (64 << 10) + pending + (16 << 10), n_bytes
    assert sanitized() or grew <= 8 << 20


# --- F19 to F22: clients that break the rules, beside 32 that do not ---

@long  # test_wire.py has F19 to F22 without live streams of a model
def test_f19_a_half_open_peer_is_found_beside_live_streams(one):
    def half_open():
        proxy, target = Proxy(one.port), Port(one)
        channel = grpc.insecure_channel(f"127.0.0.1:{proxy.port}", options=[("grpc.use_local_subchannel_pool", 1)])
        before = connections(target)
        stream = one.stubs.inference_grpc.InferenceStub(channel).Generate(
            one.request("smol", "Without end:", max_tokens=8000, ignore_eos=True, request_id="half-open"))
        next(stream), next(stream)
        assert connections(target) == before + 1
        proxy.frozen.set()
        frozen = time.monotonic()
        until(lambda: connections(target) <= before, KEEPALIVE_S + 3, "a dead peer's connection is still there", 0.05)
        took = time.monotonic() - frozen
        with pytest.raises(grpc.RpcError) as e:  # the connection's requests have ended too
            one.inference.Cancel(one.stubs.inference.CancelRequest(request_id="half-open"), timeout=5)
        assert e.value.code() == grpc.StatusCode.NOT_FOUND
        stream.cancel()
        proxy.close()
        channel.close()
        return took

    with UnderLoad(one, n=CLIENTS, warm=half_open) as load:
        load.others["cancelled"] = (1, 1)
        print(f"a half-open peer is gone after {half_open():.1f} s")


@long
def test_f20_silent_connections_beside_live_streams(one):
    def flood(n):
        silent = []
        for _ in range(n):
            s = socket.socket()
            s.connect(("127.0.0.1", one.port))
            silent.append(s)
        return silent

    def gone(silent):
        [s.close() for s in silent]
        until = time.monotonic() + HANDSHAKE_S + 5
        while True:
            with contextlib.suppress(Closed, TimeoutError), Peer(one.port, timeout=1) as peer:
                if peer.call(LIST, b"").get("grpc-status") == OK:
                    return
            assert time.monotonic() < until, "the port does not come back"

    with UnderLoad(one, n=CLIENTS, warm=lambda: gone(flood(200))) as load:
        silent, target = flood(5000 if LONG else 1000), Port(one)
        asked = time.monotonic()
        one.manager_stub().ListModels(one.stubs.manager.ListModelsRequest(), timeout=1)
        print(f"the manager's socket answers in {1e3 * (time.monotonic() - asked):.0f} ms")
        assert connections(target) <= 128 + 2  # each accepting thread may hold a refused connection for a moment
        until(lambda: connections(target) <= CLIENTS + 8, HANDSHAKE_S + 1, "silent connections stay past the handshake's time", 0.1)
        load.wait_tokens(CLIENTS * 5)
        gone(silent)


@long
def test_f21_a_thousand_streams_on_a_connection_beside_live_ones(one):
    """A client ignores the limit and opens ten times as many streams. The server keeps nothing for the excess, and no
    other client waits."""
    body = message(one.stubs.inference.GenerateStreamRequest(request_id="x").SerializeToString())

    def pile():
        with Peer(one.port) as peer, contextlib.suppress(Closed):
            for _ in range(1000):
                stream = peer.open(STREAM)
                peer.data(stream, body[:3], end=False)
        with Peer(one.port) as peer:
            assert peer.call(LIST, b"")["grpc-status"] == OK

    with UnderLoad(one, n=CLIENTS, warm=pile) as load:
        for _ in range(10 if LONG else 3):
            pile()
        load.wait_tokens(CLIENTS * 5)


@long
def test_f22_rapid_reset_beside_live_streams(one):
    seconds = 60 if LONG else 4
    with UnderLoad(one, n=CLIENTS, rss=False, warm=lambda: reset_flood(Port(one), 2)) as load:
        target = Port(one)
        before, began, rss = sum(target.server.cpu_times()[:2]), time.monotonic(), target.server.memory_info().rss
        sent, cut = reset_flood(target, seconds)
        cores = (sum(target.server.cpu_times()[:2]) - before) / (time.monotonic() - began)
        grew = lambda: target.server.memory_info().rss - rss
        print(f"{sent / seconds:.0f} resets/s, {cut} connections cut, {cores:.2f} cores, {grew() >> 10} KiB more")
        # The goal is 10,000 a second. Their single thread shares two processors with everything else.
        assert sent >= (8000 if LONG else 500) * seconds, "the flood was none"
        assert cut > 0 or LONG, "nobody stopped it"
        assert cores <= 1
        load.wait_tokens(CLIENTS * 5)
    assert sanitized() or grew() <= 32 << 20
