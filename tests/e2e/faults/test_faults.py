"""Processes are killed under live streams. A killed manager does not affect the streams; after the loss of a worker
they continue on another replica."""
import json
import os
import signal
import subprocess
import threading
import time

import grpc
import psutil
import pytest

from conftest import BIN, Sluice, alive, cause, model_path, names, patience, sanitized, until
from log_events import DEVICE_FAILED, logged

N_STREAMS = 8
PROMPTS = [f"Write a long story about the number {i}. It begins:" for i in range(N_STREAMS)]


def load(sluice, started=False, **kwargs):
    if not started:
        sluice.start()
    sluice.cli("register", "smol", model_path(), "--version", "1")
    sluice.cli("load", "smol", *[w for k, v in kwargs.items() for w in (f"--{k}", str(v))])
    sluice.wait(lambda: sluice.run("smol", "hi", "-n", "1", check=False).returncode == 0, 30, "the model answers")
    return sluice


class Stream(threading.Thread):
    """A generation that counts its tokens as they arrive."""

    def __init__(self, sluice, request):
        super().__init__(daemon=True)
        self.sluice, self.request = sluice, request
        self.ids, self.text, self.finished, self.error = [], "", None, None
        self.start()

    def run(self):
        try:
            for response in self.sluice.inference.Generate(self.request, timeout=patience(120)):
                kind = response.WhichOneof("event")
                if kind == "tokens":
                    self.ids += list(response.tokens.ids)
                    self.text += response.tokens.text
                elif kind == "finished":
                    self.finished = response.finished
        except grpc.RpcError as e:
            self.error = e


def requests(sluice, max_tokens):
    return [sluice.request("smol", p, max_tokens=max_tokens, temperature=0.7 * (i % 2), seed=i, ignore_eos=True)
            for i, p in enumerate(PROMPTS)]


def wait_tokens(streams, n):
    def have_come():
        assert not any(s.error for s in streams), [s.error for s in streams]
        return all(len(s.ids) >= n for s in streams)
    until(have_come, 60, f"{n} tokens of each", 0.005)


def undisturbed(sluice, max_tokens):
    """The same requests without a kill. They run together, because a batch does not change an answer (test_requests)."""
    streams = [Stream(sluice, r) for r in requests(sluice, max_tokens)]
    for s in streams:
        s.join(patience(120))
        assert s.error is None and len(s.ids) == max_tokens, s.error
    return [(s.text, s.ids, s.finished) for s in streams]


def check_equal(streams, references):
    for stream, (text, ids, _) in zip(streams, references):
        assert stream.error is None, stream.error
        assert stream.ids == ids and stream.text == text


@pytest.fixture(scope="module")
def shared(tmp_path_factory, stubs):
    """A Sluice for tests that leave the model served."""
    sluice = Sluice(tmp_path_factory.mktemp("shared"), stubs)
    try:
        yield load(sluice)
    finally:
        sluice.stop()


@pytest.fixture(scope="module")
def references(shared):
    return undisturbed(shared, 200)


def test_killed_manager_is_not_noticed_and_the_next_one_adopts(fresh, references):
    sluice = load(fresh)
    workers = sluice.children("sluice-worker")
    streams = [Stream(sluice, r) for r in requests(sluice, 200)]
    wait_tokens(streams, 50)
    (manager,) = sluice.children("sluice-manager")
    os.kill(manager, signal.SIGKILL)
    at_kill = [len(s.ids) for s in streams]
    for s in streams:
        s.join(patience(120))
    check_equal(streams, references)
    assert all(len(s.ids) - n >= 50 for s, n in zip(streams, at_kill)), "too little ran after the kill"
    sluice.wait(lambda: sluice.cli("status", check=False).returncode == 0, 10, "a new manager answers")
    sluice.wait(lambda: len(sluice.ready()) == 1, 10, "the worker is adopted")
    assert sluice.children("sluice-worker") == workers, "the worker was restarted"
    status = sluice.manager_stub().GetStatus(sluice.stubs.manager.GetStatusRequest())
    assert status.n_adopted_workers == 1
    assert sluice.generate(requests(sluice, 200)[0])[1] == references[0][1]
    sluice.cli("unload", "smol", "--grace", "5s")  # the adopted worker is managed like any other
    assert sluice.children("sluice-worker") == []


def test_killed_worker_comes_back_and_its_streams_go_on(shared, references):
    sluice = shared
    streams = [Stream(sluice, r) for r in requests(sluice, 200)]
    wait_tokens(streams, 20)
    (worker,) = sluice.children("sluice-worker")
    os.kill(worker, signal.SIGKILL)
    sluice.wait(lambda: len(sluice.ready()) == 0, 5, "the death is seen")
    assert sluice.generate(requests(sluice, 200)[0])[1] == references[0][1]  # a request sent meanwhile waits for the replica
    for s in streams:
        s.join(patience(120))
    check_equal(streams, references)
    assert all(s.finished.receipt.n_resumes == 1 for s in streams if s.finished.HasField("receipt"))
    sluice.wait(lambda: len(sluice.ready()) == 1, 20, "the replica is ready again")
    assert sluice.children("sluice-worker") != [worker]


@pytest.mark.parametrize("code, reason, status", [(700, "DEVICE_ILLEGAL_ACCESS", 83),
                                                  pytest.param(214, "DEVICE_ECC", 86, marks=pytest.mark.long)])
def test_worker_whose_device_fails_ends_at_once_and_its_streams_go_on(fresh, references, tmp_path, code, reason, status):
    """Needs a build with checks: a step fails as a device would let it fail (kernels/device_failpoint.h)."""
    fault = tmp_path / "fault"
    fresh.start(env={"SLUICE_DEVICE_FAULT": str(fault)})
    sluice = load(fresh, started=True)
    streams = [Stream(sluice, r) for r in requests(sluice, 200)]
    wait_tokens(streams, 20)
    (worker,) = sluice.children("sluice-worker")
    temporary = fault.with_suffix(".new")
    temporary.write_text(str(code))
    temporary.rename(fault)
    sluice.wait(lambda: not alive(worker), 5, "the worker ends")
    for s in streams:
        s.join(patience(120))
    check_equal(streams, references)
    assert all(s.finished.receipt.n_resumes == 1 for s in streams if s.finished.HasField("receipt"))
    sluice.wait(lambda: len(sluice.ready()) == 1, 20, "the replica is ready again")
    (replica,) = sluice.ready()
    assert replica["epoch"] == 2 and sluice.children("sluice-worker") != [worker]
    log = (sluice.state / f"run/replica-{replica['id']}/log").read_text()
    assert logged(log, DEVICE_FAILED, reason=reason, status=status), log
    events = [json.loads(line) for line in sluice.cli("events", "--json", "--from", "1").stdout.splitlines()]
    (event,) = [e for e in events if e["type"] == "device.fault"]
    assert cause(event) == reason, event


def test_killed_server_comes_back_and_serves(shared):
    sluice = shared
    (server,) = sluice.children("sluice-server")
    os.kill(server, signal.SIGKILL)
    sluice.wait(lambda: sluice.children("sluice-server") not in ([], [server]), 5, "a new server")
    sluice.wait(lambda: sluice.run("smol", "hi", "-n", "1", check=False).returncode == 0, 10, "it serves")


def test_cancelled_and_abandoned_requests_free_the_worker(shared):
    sluice = shared
    streams = [Stream(sluice, r) for r in requests(sluice, 2000)]
    wait_tokens(streams, 5)
    inference = sluice.stubs.inference
    request = sluice.request("smol", "Count.", max_tokens=2000, ignore_eos=True, request_id="mine")
    mine = Stream(sluice, request)
    wait_tokens([mine], 3)
    with pytest.raises(grpc.RpcError) as e:
        list(sluice.inference.Generate(request))
    assert e.value.code() == grpc.StatusCode.ALREADY_EXISTS
    assert sluice.inference.Cancel(inference.CancelRequest(request_id="mine")).n_tokens_sent >= 3
    mine.join(patience(5))
    assert mine.error.code() == grpc.StatusCode.CANCELLED
    sluice.channel.close()  # closes the client of every stream
    for s in streams:
        s.join(patience(5))
    sluice.channel = grpc.insecure_channel(sluice.address)
    sluice.inference = sluice.stubs.inference_grpc.InferenceStub(sluice.channel)

    def idle():
        version = sluice.inference.GetModel(inference.GetModelRequest(model="smol")).model.versions[0]
        if version.n_running + version.n_queued:  # load figures come with step messages, so the test makes a step
            sluice.generate(sluice.request("smol", "x", max_tokens=1))
        return version.n_running + version.n_queued == 0

    sluice.wait(idle, 10, "no request runs for a client that is gone")


def test_second_serve_and_second_manager_are_refused(fresh):
    fresh.start()
    second = fresh.cli("serve", check=False, timeout=patience(20))
    assert second.returncode == 1 and names(second.stderr, "ALREADY_SERVING", fresh.process.pid)
    started = time.monotonic()
    manager = subprocess.run([BIN / "sluice-manager", "--state-dir", fresh.state, "--worker", BIN / "sluice-worker"],
                             capture_output=True, text=True, timeout=patience(10))
    assert manager.returncode == 75 and names(manager.stderr, fresh.children("sluice-manager")[0])
    assert time.monotonic() - started < patience(5)


def test_what_a_killed_serve_leaves_can_be_stopped(fresh):
    """Symptom: manager and server ran on, `serve` could not start again, and `stop` found nothing to stop."""
    sluice = load(fresh)
    left = [p for name in ("sluice-manager", "sluice-server", "sluice-worker") for p in sluice.children(name)]
    assert len(left) == 3
    sluice.process.kill()
    sluice.process.wait()
    refused = sluice.cli("serve", check=False, timeout=patience(20))
    assert refused.returncode == 1 and names(refused.stderr, "MANAGER_RUNS", "sluice stop", left[0])
    sluice.cli("stop", timeout=patience(60))
    assert not any(psutil.pid_exists(p) and psutil.Process(p).status() != "zombie" for p in left)
    sluice.start()
    sluice.wait(lambda: len(sluice.ready()) == 1, 20, "what was loaded is back")


def n_running(sluice):
    models = sluice.inference.ListModels(sluice.stubs.inference.ListModelsRequest(), timeout=patience(5)).models
    return sum(v.n_running + v.n_queued for m in models for v in m.versions)


@pytest.mark.parametrize("manager", ["works", "is stuck"])
def test_a_second_signal_ends_serve_at_once(fresh, manager):
    """The first signal drains, and serve reports the drain. Symptom: serve was silent as long as the streams ran."""
    fresh.start(model_path(), "--name", "smol", "--drain-grace", "60s")
    fresh.wait(lambda: fresh.announced("ready"), 30, "it is ready")
    streams = [Stream(fresh, fresh.request("smol", p, max_tokens=7000, ignore_eos=True)) for p in PROMPTS]
    wait_tokens(streams, 5)
    programs = [p for n in ("manager", "server", "worker") for p in fresh.children(f"sluice-{n}")]
    assert len(programs) == 3
    fresh.wait(lambda: n_running(fresh) == N_STREAMS, 10, "the worker has told of all")
    fresh.process.send_signal(signal.SIGINT)
    fresh.wait(lambda: fresh.announced("draining", requests=N_STREAMS, grace_ms=60000), 5, "it says that it drains")
    wait_tokens(streams, 1 + max(len(s.ids) for s in streams))  # draining streams continue
    if manager == "is stuck":
        os.kill(fresh.children("sluice-manager")[0], signal.SIGSTOP)
    started = time.monotonic()
    fresh.process.send_signal(signal.SIGINT)
    assert fresh.process.wait(patience(30)) == 0
    assert time.monotonic() - started < patience(15), "long before the 60 s"
    until(lambda: not any(alive(p) for p in programs), 10, "a killed program is gone, whose memory takes its time")
    assert not any(fresh.children(f"sluice-{n}") for n in ("manager", "server", "worker"))


def test_serve_that_loads_ends_as_soon_as_asked(fresh):
    """Symptom: for ten seconds the loader of serve retried calls to a manager that had ended."""
    fresh.start(model_path(), "--name", "smol")
    fresh.wait(lambda: fresh.announced("loading"), 20, "it loads")
    started = time.monotonic()
    fresh.process.send_signal(signal.SIGTERM)
    assert fresh.process.wait(patience(20)) == 0
    assert time.monotonic() - started < patience(5)


def test_no_process_is_left_and_memory_is_flat(shared):
    sluice = shared
    (worker,) = sluice.children("sluice-worker")
    for _ in range(3):
        sluice.generate(sluice.request("smol", "Hello", max_tokens=16))
    before = psutil.Process(worker).memory_info().rss
    for i in range(100):
        sluice.generate(sluice.request("smol", f"Hello {i}", max_tokens=2))
    assert sanitized() or psutil.Process(worker).memory_info().rss - before < before // 100 + (8 << 20)
