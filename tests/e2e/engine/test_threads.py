"""F28: the system refuses new processes and threads. The limit is a real RLIMIT_NPROC, which counts a user's tasks
and does not hold for root. The programs therefore run under a separate user id. The limit is the number of tasks that
the user has at that moment."""
import contextlib
import os
import pathlib
import resource
import shutil
import subprocess
import tempfile

import grpc
import psutil
import pytest

import manager_program
import plumbing
from conftest import BIN, free_port, names, patience, sanitized
from manager_program import reason

UID = 54321
HARD = resource.getrlimit(resource.RLIMIT_NPROC)[1]
pytestmark = [pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to start programs under another user id"),
              pytest.mark.skipif(sanitized(), reason="sanitizers have threads of their own")]


def as_another(*args):
    """The command that runs as the other user. Popen's own options fork, and gRPC's fork handlers sometimes end the
    child."""
    return ["/usr/bin/setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--", *args]


def limited(n, *args):
    """The command that runs as the other user, with at most n tasks."""
    return as_another("/usr/bin/prlimit", f"--nproc={n}:{n}", *args)


def n_tasks():
    """The user's number of tasks, as the kernel counts."""
    return sum(p.info["num_threads"] for p in psutil.process_iter(["uids", "num_threads"]) if p.info["uids"] and p.info["uids"].real == UID)


def allow(pid, n):
    """Sets the task limit of a process. The command runs as that process's user, since a foreign limit needs a
    capability that containers lack."""
    subprocess.run(as_another("/usr/bin/prlimit", "--pid", str(pid), f"--nproc={n}:"), check=True)


def assert_nothing_more_can_be_made():
    result = subprocess.run(limited(n_tasks(), "/bin/sh", "-c", "/bin/true & wait"), capture_output=True, text=True)
    assert "fork" in result.stderr, result


@pytest.fixture
def home(monkeypatch):
    """A folder that belongs to the other user and contains the programs."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="sl", dir="/tmp"))
    for name in ("sluice-manager", "sluice-server", "fake_worker"):
        shutil.copy2(BIN / name, folder / name)
    for module in (manager_program, plumbing):
        monkeypatch.setattr(module, "BIN", folder)
    popen = subprocess.Popen

    def start(args, **kwargs):
        return popen(as_another(*args) if str(args[0]).startswith(str(folder)) else args, **kwargs)
    monkeypatch.setattr(subprocess, "Popen", start)
    folder.chmod(0o755)
    os.chown(folder, UID, UID)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_the_manager_refuses_what_needs_a_process_and_goes_on_by_itself(home, stubs):
    m = manager_program.Manager(home, stubs)
    os.chown(m.models, UID, UID)
    try:
        m.up("--restart-backoff-initial", "200ms", "--restart-backoff-max", "500ms", "--crash-limit", "64")
        for name in ("a", "b"):
            m.script(name)
            m.register(name)
        m.done(m.load("a"))
        before = m.workers()
        allow(m.process.pid, n_tasks())
        assert_nothing_more_can_be_made()
        loading = m.load("b", request_id="b1")
        m.wait(lambda: [r for r in m.replicas(model="b") if r.last_error.reason == "TOO_MANY_PROCESSES"], 10, "it says why b does not start")
        with pytest.raises(grpc.RpcError) as refused:  # reading a model file needs a process too
            m.register("c", file="a")
        assert (refused.value.code(), reason(refused.value)) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_PROCESSES")
        for _ in range(30):  # each call opens a connection
            with grpc.insecure_channel(f"unix:{m.state}/run/manager.sock", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
                assert m.stubs.manager_grpc.ModelManagerStub(channel).GetStatus(m.m.GetStatusRequest(), timeout=patience(5)).n_models == 2
        assert m.workers() == before and [r.state for r in m.replicas(model="a")] == [m.t.REPLICA_STATE_READY]
        allow(m.process.pid, HARD)
        m.done(loading)
        assert len(m.workers()) == 2
        m.register("c", file="a")
        assert m.done(m.unload("a")).result.n_finished == 3  # the worker lived long enough to answer Shutdown
        assert m.term() == 0
    finally:
        m.clean()


def test_the_servers_old_streams_go_on_and_new_ones_come(home, stubs):
    p = plumbing.Plumbing(home, stubs, rate=100)
    inference = stubs.inference
    request = inference.GenerateRequest(model="echo", text="abcdef", stopping=inference.Stopping(max_tokens=300))
    short = inference.GenerateRequest(model="echo", text="abcdef", stopping=inference.Stopping(max_tokens=3))
    channel = grpc.insecure_channel(p.address)
    stub = stubs.inference_grpc.InferenceStub(channel)
    try:
        reference = [i for r in stub.Generate(request, timeout=patience(30)) for i in r.tokens.ids]
        old = [stub.Generate(request, timeout=patience(60)) for _ in range(8)]
        got = [list(next(r.tokens.ids for r in call if r.tokens.ids)) for call in old]
        for process in (p.server, *p.workers):
            allow(process.pid, n_tasks())
        assert_nothing_more_can_be_made()
        answered = 0
        for _ in range(40):  # new connections: each may be refused, and none may hang
            with grpc.insecure_channel(p.address, options=[("grpc.use_local_subchannel_pool", 1)]) as fresh:
                try:
                    answered += len(stubs.inference_grpc.InferenceStub(fresh).Complete(short, timeout=patience(10)).choices[0].ids) == 3
                except grpc.RpcError as e:
                    assert e.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE), e
        for ids, call in zip(got, old):
            ids += [i for r in call for i in r.tokens.ids]
        assert got == [reference] * 8
        assert p.server.poll() is None and all(w.poll() is None for w in p.workers)
        for process in (p.server, *p.workers):
            allow(process.pid, HARD)
        assert len(stub.Complete(short, timeout=patience(10)).choices[0].ids) == 3
        print(f"{answered} of 40 new calls were answered without a new thread")
    finally:
        channel.close()
        p.stop()


@pytest.mark.parametrize("program", ["sluice-server", "sluice-manager"])
def test_a_program_that_may_make_few_threads_says_so_or_runs_and_ends(home, program, tmp_path):
    """With some of its threads missing, gRPC started and never shut down."""
    state = home / "state"
    state.mkdir()
    os.chown(state, UID, UID)
    args = {"sluice-server": ["--listen", f"127.0.0.1:{free_port()}", "--routes-file", state / "routes", "--metrics", ""],
            "sluice-manager": ["--state-dir", state, "--worker", home / "fake_worker", "--metrics", ""]}[program]
    refused = ran = 0
    for n in [*range(1, 24), 64]:
        log = open(home / "log", "w+")
        process = subprocess.Popen(limited(n, home / program, *args), stdout=log, stderr=log)
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience(0.4))
            ran += process.poll() is None
            process.terminate()
            code = process.wait(patience(10))
            log.seek(0)
            text = log.read()
            if code:
                refused += names(text, "RLIMIT_NPROC")
                assert text or code == -15, (n, code)
        finally:
            process.kill()
            process.wait()
            log.close()
    assert refused >= 8 and ran >= 1, (refused, ran)
