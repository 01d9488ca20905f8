"""Workers that live but make no progress (F7), and the health that the server reports (I7). The stall time is short
here."""
import os
import signal
import threading
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from conftest import Sluice, model_path, patience, stand_still, until
from test_faults import Stream, load, requests, undisturbed, wait_tokens, check_equal

pytestmark = pytest.mark.alone

STALL_S = 3
N_TOKENS = 150


class Health(threading.Thread):
    """Follows the health of one name and records its changes."""

    def __init__(self, sluice, name):
        super().__init__(daemon=True)
        self.changes = []
        self.stub = health_pb2_grpc.HealthStub(sluice.channel)
        self.call = self.stub.Watch(health_pb2.HealthCheckRequest(service=name), wait_for_ready=True)
        self.start()

    def run(self):
        try:
            for response in self.call:
                self.changes.append((time.monotonic(), response.status == health_pb2.HealthCheckResponse.SERVING))
        except grpc.RpcError:
            pass

    def wait(self, serving, seconds):
        until(lambda: self.changes and self.changes[-1][1] == serving, seconds, lambda: f"health becomes {serving}: {self.changes}")
        return self.changes[-1][0]


@pytest.fixture(scope="module")
def shared(tmp_path_factory, stubs):
    sluice = Sluice(tmp_path_factory.mktemp("stalling"), stubs)
    try:
        sluice.start(env={"SLUICE_STALL_TIMEOUT": f"{STALL_S}s"})
        yield load(sluice, started=True)
    finally:
        sluice.stop()


@pytest.fixture
def stalling(shared):
    yield shared
    for pid in shared.children("sluice-worker"):
        os.kill(pid, signal.SIGCONT)


def stop_worker(sluice):
    (worker,) = sluice.children("sluice-worker")
    os.kill(worker, signal.SIGSTOP)
    return worker, time.monotonic()


@pytest.mark.long
def test_short_stop_loses_nothing(stalling):
    sluice = stalling
    references = undisturbed(sluice, N_TOKENS)
    health = Health(sluice, "model/smol/1")
    streams = [Stream(sluice, r) for r in requests(sluice, N_TOKENS)]
    wait_tokens(streams, 10)
    stand_still(1, *sluice.children("sluice-worker"))
    for s in streams:
        s.join(patience(120))
    check_equal(streams, references)
    assert all(s.finished.receipt.n_resumes == 0 for s in streams)
    assert [serving for _, serving in health.changes] == [True]


def test_stopped_worker_is_not_serving_and_its_streams_go_on_when_it_is_back(stalling):
    sluice = stalling
    references = undisturbed(sluice, N_TOKENS)
    names = ["", "sluice.v1.Inference", "model/smol/1"]
    watched = [Health(sluice, name) for name in names]
    streams = [Stream(sluice, r) for r in requests(sluice, N_TOKENS)]
    wait_tokens(streams, 10)
    for health in watched:
        health.wait(True, 1)
    worker, stopped = stop_worker(sluice)
    for health in watched:
        assert STALL_S - 1 <= health.wait(False, STALL_S + 5) - stopped <= STALL_S + patience(1)
    late = Stream(sluice, requests(sluice, N_TOKENS)[0])  # waits for a replica
    try:
        os.kill(worker, signal.SIGCONT)
    except ProcessLookupError:
        pass  # the worker was already replaced
    for health in watched:
        health.wait(True, 30)
    for s in [*streams, late]:
        s.join(patience(120))
    check_equal([*streams, late], [*references, references[0]])
    assert all(s.finished.receipt.n_resumes == 1 for s in streams)


def test_idle_worker_that_stops_is_not_serving(stalling):
    sluice = stalling
    health = Health(sluice, "model/smol/1")
    health.wait(True, 5)
    worker, stopped = stop_worker(sluice)
    assert health.wait(False, STALL_S + 5) - stopped <= STALL_S + patience(1)
    os.kill(worker, signal.SIGCONT)
    health.wait(True, 30)


@pytest.mark.long
def test_long_prefill_is_not_a_stall(stalling):
    """The first token takes longer than the stall time, while the engine completes layers all the time."""
    sluice = stalling
    health = Health(sluice, "model/smol/1")
    health.wait(True, 5)
    n_words = 700
    while True:
        words = " ".join(str(i) for i in range(n_words))
        begin = time.monotonic()
        _, ids, finished = sluice.generate(sluice.request("smol", f"{n_words} {words}", max_tokens=1), timeout=patience(120))
        assert len(ids) == 1 and finished.receipt.n_resumes == 0
        if time.monotonic() - begin > STALL_S + 1 or n_words >= 1700:
            break
        n_words += 500
    assert [serving for _, serving in health.changes] == [True]


class Crowd:
    """Streams of a model that run until the test ends them."""

    def __init__(self, sluice, model, n):
        self.n_tokens, self.errors = 0, []
        self.calls = [sluice.inference.Generate(sluice.request(model, f"Count up from {i}:", max_tokens=7000, ignore_eos=True)) for i in range(n)]
        self.threads = [threading.Thread(target=self.read, args=(call,), daemon=True) for call in self.calls]
        [t.start() for t in self.threads]

    def read(self, call):
        try:
            for response in call:
                self.n_tokens += len(response.tokens.ids)
        except grpc.RpcError as e:
            if e.code() != grpc.StatusCode.CANCELLED:
                self.errors.append(e)

    def end(self):
        [call.cancel() for call in self.calls]
        [t.join(patience(10)) for t in self.threads]


@pytest.mark.long
def test_another_models_load_makes_no_stall_and_hides_none(stalling):
    """A busy model takes the whole machine. The other model's health stays SERVING while its worker makes progress or
    is idle. That health changes within a second of the stall time when its worker is stopped. The busy model's
    health does not change."""
    sluice = stalling
    sluice.cli("register", "quiet", model_path(), "--version", "1")
    sluice.cli("load", "quiet")
    other, busy, server = Health(sluice, "model/quiet/1"), Health(sluice, "model/smol/1"), Health(sluice, "")
    for health in (other, busy, server):
        health.wait(True, 20)
        del health.changes[:-1]  # the server links to a replica just after `load` has ended
    crowd = Crowd(sluice, "smol", 24)
    try:
        sluice.wait(lambda: crowd.n_tokens > 200, 60, "the machine is busy")
        until = time.monotonic() + STALL_S + 2
        while time.monotonic() < until:  # the worker has some work, and a Check is answered at once
            assert len(sluice.generate(sluice.request("quiet", "One two", max_tokens=4, ignore_eos=True), timeout=patience(30))[1]) == 4
            asked = time.monotonic()
            assert other.stub.Check(health_pb2.HealthCheckRequest(service="model/quiet/1"), timeout=patience(5)).status == 1
            assert time.monotonic() - asked < patience(1)
            time.sleep(0.5)  # the worker has work sometimes, not all the time
        for health in (other, busy, server):
            assert [serving for _, serving in health.changes] == [True]
        (worker,) = [r["pid"] for r in sluice.ready() if r["model"] == "quiet"]
        n_before = crowd.n_tokens
        os.kill(int(worker), signal.SIGSTOP)
        stopped = time.monotonic()
        assert STALL_S - 1 <= other.wait(False, STALL_S + 5) - stopped <= STALL_S + patience(1)
        assert crowd.n_tokens > n_before and not crowd.errors
        other.wait(True, 30)  # either another worker, or this one that the manager ends
        assert [serving for _, serving in busy.changes] == [True] == [serving for _, serving in server.changes]
        assert not crowd.errors
    finally:
        crowd.end()
