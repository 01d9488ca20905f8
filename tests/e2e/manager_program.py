"""sluice-manager in its own folder, with fake workers (tests/support/fake/fake_worker.c), and helpers for its calls."""
import os
import pathlib
import re
import signal
import socket
import subprocess

import grpc
import psutil
import pytest

from conftest import BIN, bad_field, patience, reason, until

FAST = ["--restart-backoff-initial", "20ms", "--restart-backoff-max", "100ms", "--kill-grace", "300ms", "--drain-grace",
        "300ms", "--connect-timeout", "10s"]


class Manager:
    def __init__(self, folder, stubs):
        self.folder = pathlib.Path(folder)
        self.state = self.folder / "s"
        self.models = self.folder / "m"
        self.models.mkdir()
        self.stubs = stubs
        self.m = stubs.manager
        self.t = stubs.types
        self.process = None
        self.channel = None

    def start(self, *args, env=None, worker=None):
        self.log = open(self.folder / "log", "ab")
        self.process = subprocess.Popen(
            [BIN / "sluice-manager", "--state-dir", self.state, "--worker", worker or BIN / "fake_worker", "--model-root",
             self.models, *FAST, *args], stdout=self.log, stderr=self.log, env=dict(os.environ, **(env or {})))
        return self

    def connect(self):
        if self.channel:
            self.channel.close()
        self.wait(self.listens, 10, "it listens")  # a channel that fails once waits long before the next attempt
        self.channel = grpc.insecure_channel(f"unix:{self.state}/run/manager.sock",
                                             options=[("grpc.use_local_subchannel_pool", 1)])
        grpc.channel_ready_future(self.channel).result(timeout=patience(10))
        self.rpc = self.stubs.manager_grpc.ModelManagerStub(self.channel)
        assert self.rpc.ListDeviceGroups(self.m.ListDeviceGroupsRequest()).groups  # the group cpu exists from the first answer on
        return self.rpc

    def up(self, *args, **kwargs):
        self.start(*args, **kwargs)
        return self.connect()

    def listens(self):
        with socket.socket(socket.AF_UNIX) as s:
            return s.connect_ex(str(self.state / "run/manager.sock")) == 0

    def text(self):
        return (self.folder / "log").read_text(errors="replace")[-4000:]

    def wait(self, condition, seconds, what):
        until(condition, seconds, lambda: f"{what}\n{self.text()}")

    def workers(self):
        """Returns the pids of live workers of this manager's run directory."""
        found = []
        for p in psutil.process_iter(["pid", "cmdline", "status"]):
            line = p.info["cmdline"] or []
            if "serve" in line[1:2] and any(str(self.state / "run") in w for w in line) and p.info["status"] != "zombie":
                found.append(p.info["pid"])
        return found

    def script(self, name, text="load_ms=60"):
        (self.models / name).write_text(text)
        return name

    def register(self, model, file=None, **kwargs):
        return self.rpc.RegisterModelVersion(self.m.RegisterModelVersionRequest(model=model, path=file or model, **kwargs))

    def load(self, model, **kwargs):
        return self.rpc.LoadModelVersion(self.m.LoadModelVersionRequest(model=model, **kwargs)).operation

    def unload(self, model, **kwargs):
        return self.rpc.UnloadModelVersion(self.m.UnloadModelVersionRequest(model=model, **kwargs)).operation

    def end(self, operation, timeout_ms=8000):
        o = self.rpc.WaitOperation(self.m.WaitOperationRequest(id=operation.id, timeout_ms=int(patience(timeout_ms)))).operation
        assert o.state > self.t.OPERATION_STATE_RUNNING, f"{o}\n{self.processes()}\n{self.text()}"
        return o

    def processes(self):
        """Returns each replica with the state of its process, for the text of a failure."""
        def state(pid):
            try:
                status = pathlib.Path(f"/proc/{pid}/status").read_text()
                return re.search(r"State:\t(.*)", status)[1] + ", in " + pathlib.Path(f"/proc/{pid}/wchan").read_text()
            except OSError as e:
                return str(e)
        return "\n".join(f"{r}process: {state(r.pid)}" for r in self.replicas())

    def done(self, operation):
        o = self.end(operation)
        assert o.state == self.t.OPERATION_STATE_DONE, f"{o}\n{self.text()}"
        return o

    def replicas(self, **kwargs):
        return list(self.rpc.ListReplicas(self.m.ListReplicasRequest(**kwargs)).replicas)

    def status(self):
        return self.rpc.GetStatus(self.m.GetStatusRequest())

    def kill(self):
        self.process.kill()
        self.process.wait()

    def term(self, timeout=10):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(patience(timeout))

    def clean(self):
        if self.channel:
            self.channel.close()
        if self.process and self.process.poll() is None:
            self.kill()
        for pid in self.workers():
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def manager(tmp_path_factory, stubs):
    manager = Manager(tmp_path_factory.mktemp("m"), stubs)
    yield manager
    manager.clean()


def fails(code, call, *args, why=None, field=None, **kwargs):
    """Asserts that the call ends with this status, reason and field, and returns its text. Tests compare only named
    values of the text (conftest.names)."""
    with pytest.raises(grpc.RpcError) as e:
        call(*args, **kwargs)
    assert e.value.code() == code, e.value
    if why is not None:
        assert reason(e.value) == why, e.value
    if field is not None:
        assert bad_field(e.value) == field, e.value
    return e.value.details()


C = grpc.StatusCode


def retry(manager, call):
    try:
        return call()
    except grpc.RpcError as e:
        assert e.code() in (C.UNAVAILABLE, C.CANCELLED), e
        return None


def settle(manager):
    """Waits until the records equal the live processes, and every operation has ended."""
    manager.wait(lambda: manager.status().n_open_operations == 0, 8, "operations end")
    manager.wait(lambda: {r.pid for r in manager.replicas() if r.pid} == set(manager.workers()), 5, "records are true")
