"""Faults around the manager that need a model, by their numbers in the list of faults. Load L runs beside each fault
that can touch streams, and the test checks the invariants. The file test_fault_control.py has the tests with fake
workers. The script tests/long.sh sets SLUICE_LONG for its part `faults`."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import grpc
import pytest

from conftest import TIME_SCALE, alive, cause, model_path, names, patience, until
from invariants import worker_processes
from log_events import SETTINGS_RELOADED, logged
from memory_group import MemoryGroup
from test_fault_suite import N, UnderLoad, start
from test_traffic import TINY, Load as Replies, start_tiny

alone = pytest.mark.alone
LONG = bool(os.environ.get("SLUICE_LONG"))


@pytest.fixture(scope="module")
def one(tmp_path_factory, stubs):
    sluice = start(tmp_path_factory.mktemp("one"), stubs)
    yield sluice
    sluice.stop()


def status(sluice, timeout=0.2):
    """Returns the manager's status, or None while no manager answers."""
    with grpc.insecure_channel(f"unix:{sluice.state}/run/manager.sock", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        try:
            stub = sluice.stubs.manager_grpc.ModelManagerStub(channel)
            return stub.GetStatus(sluice.stubs.manager.GetStatusRequest(), timeout=timeout)
        except grpc.RpcError:
            return None


def events(sluice, kind):
    lines = sluice.cli("events", "--json", "--from", "1").stdout.splitlines()
    return [e for e in map(json.loads, lines) if e["type"] == kind]


# --- F1: the manager is killed while it is idle ---

@alone
def test_f1_a_killed_manager_is_back_within_two_seconds_and_streams_notice_nothing(one):
    """`sluice serve` restarts the manager 100 ms later. The test kills three times: the later restarts wait longer, 200
    and 400 ms."""
    took = []
    with UnderLoad(one) as load:
        workers = [w[:3] for w in worker_processes(one)]
        for _ in range(3 if LONG else 1):
            (manager,) = one.children("sluice-manager")
            killed = time.monotonic()
            os.kill(manager, signal.SIGKILL)
            until(lambda: (now := status(one)) and now.pid != manager and now.n_adopted_workers == len(workers), 30, one.tail, 0.005)
            took.append(time.monotonic() - killed)
            load.wait_tokens(N * 5)
        assert [w[:3] for w in worker_processes(one)] == workers, "a worker was restarted"
    assert not any(r.finished and r.finished[0].receipt.n_resumes for r in load.runs), "a stream noticed"
    print("back, its worker adopted, within " + ", ".join(f"{1e3 * t:.0f}" for t in took) + " ms of the kill")
    assert max(took) <= (2 if LONG and TIME_SCALE == 1 else patience(10))


# --- F35: versions replace each other again and again ---

def hup(sluice, names):
    for name in names:
        for pid in sluice.children(name):
            os.kill(pid, signal.SIGHUP)


def n_reloads(sluice):
    return sum(len(logged(path.read_text(errors="replace"), SETTINGS_RELOADED)) for path in sluice.state.glob("log/*.log"))


@pytest.fixture
def configured(tmp_path, fresh):
    """Starts `sluice serve` with a file of settings."""
    fresh.config = tmp_path / "sluice.conf"
    fresh.config.write_text("drain_grace = 30s\n")
    begin = fresh.start
    fresh.start = lambda *args, **kwargs: begin("--config", fresh.config, *args, **kwargs)
    return fresh


@alone
@pytest.mark.long  # test_traffic.py also reloads versions under load
def test_f35_versions_and_settings_are_reloaded_over_and_over_under_load(configured):
    """Alternates between v1 and v2: load the other version, shift the traffic to that version, unload the first. Each
    round sends SIGHUP to manager and server in the middle. Some rounds load a version that cannot start. No call
    fails, and each reply comes from one version, to the token."""
    sluice, n, n_clients = configured, 100 if LONG else 20, 32 if LONG else 8
    references = start_tiny(sluice, 24)
    sluice.cli("register", "tiny", TINY / "q8_0.gguf", "--version", "3")
    rpc, m, t = sluice.manager_stub(), sluice.stubs.manager, sluice.stubs.types
    workers, before = set(sluice.children("sluice-worker")), n_reloads(sluice)

    def end(operation):
        return rpc.WaitOperation(m.WaitOperationRequest(id=operation.id, timeout_ms=int(patience(60000)))).operation

    load, n_failed = Replies(sluice, n_clients, references, 24), 0
    load.go_on(n_clients)
    for i in range(n):
        old, new = ("1", "2") if i % 2 == 0 else ("2", "1")
        config = t.ModelConfig(n_threads=1)
        ended = end(rpc.LoadModelVersion(m.LoadModelVersionRequest(model="tiny", version=new, config=config)).operation)
        assert ended.state == t.OPERATION_STATE_DONE, ended
        sluice.config.write_text(f"drain_grace = {30 + i % 2 + 1}s\n")
        hup(sluice, ("sluice-manager", "sluice-server"))
        rpc.SetTraffic(m.SetTrafficRequest(model="tiny", weights=[t.TrafficWeight(version=new, weight=1)]))
        load.only(new, n_clients)
        ended = end(rpc.UnloadModelVersion(m.UnloadModelVersionRequest(model="tiny", version=old)).operation)
        assert ended.state == t.OPERATION_STATE_DONE and ended.result.n_ended == 0, ended
        if i % 4 == 3:
            ended = end(rpc.LoadModelVersion(m.LoadModelVersionRequest(
                model="tiny", version="3", config=t.ModelConfig(kv_tokens=1000000000))).operation)
            assert ended.state == t.OPERATION_STATE_FAILED, ended
            n_failed += 1
            load.only(new, n_clients)
            end(rpc.UnloadModelVersion(m.UnloadModelVersionRequest(model="tiny", version="3")).operation)
    load.stop()
    assert n_failed and len(load.replies) >= n * n_clients and {v for v, _ in load.replies} == {"1", "2"}, len(load.replies)
    sluice.wait(lambda: n_reloads(sluice) == before + 2 * n, 10, "each SIGHUP was heeded")
    left = set(sluice.children("sluice-worker"))
    assert len(left) == 1 and not left & workers
    print(f"\n{n} reloads of the version and of settings, {n_failed} of a version that cannot be: {len(load.replies)} replies, 0 errors")


# --- F40: the model's file changes while it is in use ---

def changeable(sluice, folder, name="copy"):
    """Returns a copy of the sample model that the test may spoil, registered and known to the server."""
    path = folder / f"{name}.gguf"
    shutil.copy(model_path(), path)
    sluice.cli("register", name, path, "--version", "1")
    return path


def replica_of(sluice, model):
    rpc, m = sluice.manager_stub(), sluice.stubs.manager
    return list(rpc.ListReplicas(m.ListReplicasRequest(model=model)).replicas)


def load_operation(sluice, model):
    rpc, m = sluice.manager_stub(), sluice.stubs.manager
    operation = rpc.LoadModelVersion(m.LoadModelVersionRequest(model=model)).operation
    return lambda: rpc.WaitOperation(m.WaitOperationRequest(id=operation.id, timeout_ms=int(patience(60000)))).operation


def worker_of(sluice, model):
    """Returns the pid of the version's worker, or None before the start."""
    for replica in replica_of(sluice, model):
        if replica.pid and alive(replica.pid):
            return replica.pid
    return None


def has_open(pid, path):
    try:
        return any(os.readlink(fd) == str(path) for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def truncate(path):
    os.truncate(path, path.stat().st_size // 3)


def replace(path):
    """Renames another file with another digest, the tiny model, to the same name."""
    new = path.with_suffix(".new")
    shutil.copy(TINY / "q8_0.gguf", new)
    new.rename(path)


def overwrite(path):
    """Leaves the file as an upload in place would: another model name in the header, other bytes at the end. A worker
    that opened the file but has not read it yet cannot detect a change of the end alone. SECURITY.md says what the
    digest covers."""
    with open(path, "r+b") as f:
        at = f.read(1 << 16).index(b"general.name") + len("general.name") + 12  # the type of the value and the length of its text
        f.seek(at)
        f.write(b"X")
        f.seek(-4096, os.SEEK_END)
        f.write(b"\0" * 4096)


CHANGED = ("MODEL_FILE_CHANGED", "MODEL_FILE_INVALID")  # invalid: the file was truncated before a slow worker read its header



def check_failed(sluice, model):
    (replica,) = replica_of(sluice, model)
    assert replica.state == sluice.stubs.types.REPLICA_STATE_FAILED and replica.pid == 0, replica
    error = replica.last_error
    assert error.reason in CHANGED, error
    assert error.message in [e["message"] for e in events(sluice, "replica.failed") if cause(e) == error.reason], "the cause is not recorded"
    assert replica.epoch <= 2, "it was tried over and over"


def spoil_while_it_loads(sluice, path, how):
    """Stops the worker in the middle of its reads while the file changes. Returns the ended operation and the worker's
    pid."""
    model = path.stem
    ended = load_operation(sluice, model)
    until = time.monotonic() + patience(20)
    while not ((pid := worker_of(sluice, model)) and has_open(pid, path)):
        assert time.monotonic() < until, sluice.tail()
    os.kill(pid, signal.SIGSTOP)
    try:
        assert has_open(pid, path), "it had read all: void"
        how(path)
    finally:
        os.kill(pid, signal.SIGCONT)
    return ended(), pid


@alone
def test_f40_a_file_that_changes_while_it_is_loaded_fails_the_load_with_its_cause(one, tmp_path):
    """The file is truncated or overwritten while the worker reads it. A file that another file replaced by name may be
    read whole: the open file is the registered one."""
    t = one.stubs.types
    with UnderLoad(one, rate=0) as load:
        for how in (truncate, overwrite, replace):
            path = changeable(one, tmp_path, how.__name__)
            operation, pid = spoil_while_it_loads(one, path, how)
            if how is replace and operation.state == t.OPERATION_STATE_DONE:
                texts = [one.generate(one.request(name, "Once", max_tokens=8, ignore_eos=True))[0] for name in ("smol", how.__name__)]
                assert texts[0] == texts[1]
                load.others["ok"] = (1, 2)  # the unload removes the version's counters
            else:
                assert operation.state == t.OPERATION_STATE_FAILED and not alive(pid), operation
                check_failed(one, how.__name__)
            one.cli("unload", how.__name__)
            load.wait_tokens(N * 5)


@pytest.mark.parametrize("how", [replace, *(pytest.param(how, marks=pytest.mark.long) for how in (truncate, os.unlink))], ids=lambda f: f.__name__)
def test_f40_a_file_that_changes_after_the_load_is_not_missed_until_a_worker_must_read_it(fresh, tmp_path, how):
    """The running worker needs no more of the file: it gives the same tokens as before. A restarted worker reads the
    file and reports the fault."""
    fresh.start(env={"SLUICE_RESTART_BACKOFF_INITIAL": "100ms"})
    path = changeable(fresh, tmp_path)
    fresh.cli("load", "copy")
    request = fresh.request("copy", "Once upon a time", max_tokens=40, ignore_eos=True)
    fresh.wait(lambda: fresh.run("copy", "hi", "-n", "1", check=False).returncode == 0, 30, "the model answers")
    reference = fresh.generate(request)[:2]
    worker = worker_of(fresh, "copy")
    how(path)
    assert fresh.generate(request)[:2] == reference and worker_of(fresh, "copy") == worker
    # template and tokenizer are those of the loaded file too
    chat = fresh.cli("run", "copy", "Hello", "-n", "8", "--server", fresh.address)
    assert chat.returncode == 0
    os.kill(worker, signal.SIGKILL)
    failed = fresh.stubs.types.REPLICA_STATE_FAILED
    if how is os.unlink:
        fresh.wait(lambda: any(names(e["message"], path.name) for e in events(fresh, "replica.died") + events(fresh, "replica.failed")), 30,
                   "the file that is gone is recorded")
    else:
        fresh.wait(lambda: replica_of(fresh, "copy")[0].state == failed, 30, "it is given up")
        (replica,) = replica_of(fresh, "copy")
        assert replica.last_error.reason in CHANGED, replica
        assert replica.last_error.reason in [cause(e) for e in events(fresh, "replica.failed")]
    with pytest.raises(grpc.RpcError) as e:
        fresh.generate(request, timeout=patience(30))
    assert e.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION), e.value
    fresh.cli("unload", "copy")
    shutil.copy(model_path(), path)  # the file is back
    fresh.cli("load", "copy")
    fresh.wait(lambda: fresh.generate(request)[:2] == reference, 30, "as before")


# --- F26: memory runs out, in the test's own control group (as root, so not on every commit) ---

# A foreign program that takes more and more memory, so that the kernel must choose a process to kill.
BALLOON = """
import time
kept = []
while True:
    kept.append(b"x" * (1 << 20))
    time.sleep(0.001)  # so that the kernel can reclaim memory and choose a process in time
"""


def resident_bytes(pid):
    return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def let_memory_run_out(group, room):
    """Waits until the kernel has killed one process of the group, or the test fails. Returns the process that took the
    memory."""
    balloon = subprocess.Popen([sys.executable, "-c", BALLOON])
    group.leave()
    group.limit(group.used() + room)
    until(lambda: group.kills() or balloon.poll() is not None, 60, group.used, 0.001)
    assert balloon.poll() is None, group.used()
    group.limit(None)  # otherwise the kernel kills another process next
    return balloon


if LONG:  # only in tests/long.sh faults
    @alone
    def test_f26_where_memory_runs_out_the_worker_goes_and_its_streams_go_on(tmp_path, stubs):
        with MemoryGroup() as group:
            sluice = start(tmp_path, stubs)
            try:
                with UnderLoad(sluice, rate=0) as load:
                    ((_, epoch, worker, _),) = worker_processes(sluice)
                    others = sluice.children("sluice-manager") + sluice.children("sluice-server")
                    (group.path / "cgroup.procs").write_text(str(os.getpid()))
                    # The balloon has twice the worker's memory: without the worker's score the kernel would choose the
                    # balloon.
                    had = resident_bytes(worker)
                    balloon = let_memory_run_out(group, 2 * had)
                    size = resident_bytes(balloon.pid)
                    assert size > 1.5 * had, "void: it would have been chosen in any case"
                    balloon.send_signal(signal.SIGSTOP)
                    try:
                        assert group.kills() == 1 and balloon.poll() is None, "another was chosen"
                        sluice.wait(lambda: [w[1] for w in worker_processes(sluice)] not in ([], [epoch]), 20, "another worker runs")
                        assert not alive(worker)
                    finally:
                        balloon.kill()
                        balloon.wait()
                    load.wait_tokens(N * 5)
                    assert sluice.children("sluice-manager") + sluice.children("sluice-server") == others
                assert any(r.finished and r.finished[0].receipt.n_resumes for r in load.runs), "nothing was moved"
                (event,) = events(sluice, "replica.died")
                assert cause(event) == "OUT_OF_MEMORY", event
                print(f"\nended beside a process of {size >> 20} MiB: a worker of {had >> 20} MiB")
            finally:
                sluice.stop()
