"""sluice-manager alone, with fake workers (tests/support/fake/fake_worker.c) that load, crash and hang as a text file
says. Idempotency, generations, crash loops, kills at every named point, full disks, two managers, drains that never
end."""
import os
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import time

import grpc
import psutil
import pytest

from google.rpc import error_details_pb2

from conftest import BIN, bad_field, details, launch_record, names, patience, sanitized, steady, until
from manager_program import C, fails, manager, reason, retry, settle  # noqa: F401 (fixtures)


def test_register_reads_once_per_request_id_and_checks_everything(manager):
    manager.up()
    manager.script("a")
    first = manager.register("a", request_id="r1")
    assert first.version.version == "1" and first.version.info.architecture == "fake" and not first.existed
    (manager.models / "a").unlink()
    assert manager.register("a", request_id="r1").version == first.version  # answered from the record, without the file
    fails(C.INVALID_ARGUMENT, manager.register, "b", request_id="r1", why="REQUEST_ID_REUSED", field="request_id")
    manager.script("a")
    assert manager.register("a").existed
    manager.script("a", "load_ms=61")
    assert manager.register("a").version.version == "2"
    fails(C.ALREADY_EXISTS, manager.register, "a", version="1", why="VERSION_EXISTS")
    fails(C.ABORTED, manager.register, "a", version="9", expected_generation=0, why="STALE_GENERATION")
    assert manager.register("new", "a", expected_generation=0).version.version == "1"
    manager.script("broken", "bad")
    assert names(fails(C.INVALID_ARGUMENT, manager.register, "broken", why="MODEL_FILE_INVALID"), "offset 8")
    manager.script("hostile", "crash_tool")
    fails(C.INTERNAL, manager.register, "hostile", why="TOOL_CRASHED")
    fails(C.FAILED_PRECONDITION, manager.register, "a", version="7", expected_digest="00" * 32, why="DIGEST_MISMATCH")
    for digest in ("00" * 31, "00" * 33, "zz" * 32, "../" * 21 + "x", "AA" * 32):
        fails(C.INVALID_ARGUMENT, manager.register, "a", version="7", expected_digest=digest, field="expected_digest")
    os.symlink("/etc/hostname", manager.models / "link")
    text = fails(C.PERMISSION_DENIED, manager.register, "x", "link", why="OUTSIDE_MODEL_ROOT")
    assert "hostname" not in text
    for field, kwargs in {"model": dict(model="../x"), "version": dict(model="x", version="a/b"),
                          "path": dict(model="x", path=""), "config.kernels": dict(model="x", path="a", config=dict(kernels="mmx")),
                          "config.context_length": dict(model="x", path="a", config=dict(context_length=4096))}.items():
        kwargs = {"path": "a", **kwargs}
        fails(C.INVALID_ARGUMENT, manager.rpc.RegisterModelVersion, manager.m.RegisterModelVersionRequest(**kwargs), field=field)
    fails(C.INVALID_ARGUMENT, manager.register, "x", "a", config=dict(weight_format="int4"), field="config.weight_format")
    models = manager.rpc.ListModels(manager.m.ListModelsRequest(page_size=1))
    assert [m.name for m in models.models] == ["a"] and models.next_page_token
    models = manager.rpc.ListModels(manager.m.ListModelsRequest(page_size=1, page_token=models.next_page_token))
    assert [m.name for m in models.models] == ["new"] and not models.next_page_token


def test_tool_that_hangs_is_ended(manager):
    manager.up("--tool-timeout", "300ms")
    manager.script("slow", "slow_tool")
    fails(C.DEADLINE_EXCEEDED, manager.register, "slow")


def test_load_shows_progress_and_is_done_once(manager):
    manager.up()
    manager.script("a", "load_ms=500 bytes=777000")
    manager.register("a")
    operation = manager.load("a", n_replicas=2, request_id="l1")
    seen = [r.operation for r in manager.rpc.WatchOperation(manager.m.WatchOperationRequest(id=operation.id))]
    assert seen[-1].state == manager.t.OPERATION_STATE_DONE, seen[-1]
    assert len({o.bytes_done for o in seen}) >= 5 and seen[-1].bytes_done == seen[-1].bytes_total == 2 * 777000
    assert all(a.revision < b.revision for a, b in zip(seen, seen[1:]))
    assert {"pack", "done"} <= {o.stage for o in seen}  # a busy manager may tell of "warm" and "done" at once
    assert manager.load("a", n_replicas=2, request_id="l1").id == operation.id
    assert len(manager.workers()) == 2
    again = manager.done(manager.load("a", n_replicas=2))  # the version is already loaded: no action
    assert set(again.replica_ids) == set(operation.replica_ids) and len(manager.workers()) == 2
    assert len(manager.done(manager.load("a", n_replicas=3)).replica_ids) == 3
    with pytest.raises(grpc.RpcError) as fewer:  # the command line advises by the field and the version
        manager.load("a", n_replicas=1)
    assert reason(fewer.value) == "ALREADY_LOADED" and bad_field(fewer.value) == "n_replicas"
    assert details(fewer.value, error_details_pb2.ErrorInfo).metadata == {"version": "1"}
    fails(C.FAILED_PRECONDITION, manager.load, "a", n_replicas=3, tp=2, why="ALREADY_LOADED", field="")
    fails(C.INVALID_ARGUMENT, manager.load, "a", tp=3)
    fails(C.INVALID_ARGUMENT, manager.load, "a", pp=9)
    fails(C.INVALID_ARGUMENT, manager.load, "a", tp=8, pp=8)
    fails(C.NOT_FOUND, manager.load, "nobody", why="MODEL_NOT_FOUND")
    fails(C.NOT_FOUND, manager.load, "a", device_group="none", why="DEVICE_GROUP_NOT_FOUND")
    fails(C.ABORTED, manager.load, "a", expected_generation=77, why="STALE_GENERATION")
    fails(C.ABORTED, manager.load, "a", expected_generation=77, validate_only=True, why="STALE_GENERATION")
    fails(C.ABORTED, manager.unload, "a", version="1", expected_generation=77, validate_only=True, why="STALE_GENERATION")
    for name, value in {"kv_dtype": "fp8", "gpu_layers": 1, "gpu_memory_bytes": 1 << 30, "weight_format": "int8",
                        "deterministic": False}.items():  # on the CPU
        config = manager.t.ModelConfig(**{name: value})
        fails(C.INVALID_ARGUMENT, manager.load, "a", config=config, field=f"config.{name}")
    assert manager.rpc.LoadModelVersion(manager.m.LoadModelVersionRequest(
        model="a", n_replicas=3, validate_only=True)).plan.packed_bytes == 777000
    fails(C.FAILED_PRECONDITION, manager.rpc.DeleteModelVersion,
          manager.m.DeleteModelVersionRequest(model="a", version="1"), why="VERSION_LOADED")
    receipt = manager.done(manager.unload("a")).result
    assert receipt.n_finished == 9 and receipt.memory[0].before_bytes > receipt.memory[0].after_bytes == 0
    assert manager.workers() == []
    fails(C.FAILED_PRECONDITION, manager.unload, "a", why="NOT_LOADED")
    assert [o.id for o in manager.rpc.ListOperations(manager.m.ListOperationsRequest(page_size=1)).operations] == ["o4"]
    manager.rpc.DeleteModelVersion(manager.m.DeleteModelVersionRequest(model="a", version="1"))
    fails(C.NOT_FOUND, manager.rpc.GetModel, manager.m.GetModelRequest(model="a"))


def test_load_that_cannot_work_tells_the_workers_own_error(manager):
    manager.up()
    manager.script("a", "fail=8")
    manager.register("a")
    failed = manager.end(manager.load("a"))
    assert failed.state == manager.t.OPERATION_STATE_FAILED
    assert failed.error.code == 8 and names(failed.error.message, 5000000)
    (replica,) = manager.replicas()
    assert replica.state == manager.t.REPLICA_STATE_FAILED and replica.reason == "LOAD_FAILED"
    model = manager.rpc.GetModel(manager.m.GetModelRequest(model="a")).model
    assert model.versions[0].state == manager.t.MODEL_VERSION_STATE_FAILED and names(model.versions[0].last_error.message, 5000000)
    manager.script("a", "load_ms=50")  # a load again makes new replicas of the failed ones
    manager.done(manager.load("a"))
    assert manager.rpc.GetModel(manager.m.GetModelRequest(model="a")).model.versions[0].last_error.code == 0
    assert len(manager.workers()) == 1


def test_a_load_of_which_nothing_lives_takes_another_configuration(manager):
    manager.up()
    manager.script("a", "fail=8")
    manager.register("a")
    config = manager.t.ModelConfig
    failed = manager.end(manager.load("a", n_replicas=2, config=config(kv_tokens=1 << 30)))
    assert failed.state == manager.t.OPERATION_STATE_FAILED
    manager.wait(lambda: all(r.state == manager.t.REPLICA_STATE_FAILED for r in manager.replicas()), 5, "none lives")
    generation = manager.rpc.GetModel(manager.m.GetModelRequest(model="a")).model.versions[0].deployments[0].generation
    manager.script("a", "load_ms=50")
    manager.done(manager.load("a", tp=2, config=config(kv_tokens=4096)))
    (row,) = manager.rpc.GetModel(manager.m.GetModelRequest(model="a")).model.versions[0].deployments
    assert (row.n_replicas, row.tp, row.config.kv_tokens, row.generation) == (1, 2, 4096, generation + 1)
    (pid,) = manager.workers()
    assert launch_record(pid, manager.stubs).config.kv_tokens == 4096
    fails(C.FAILED_PRECONDITION, manager.load, "a", tp=2, config=config(kv_tokens=8192), why="ALREADY_LOADED")


def test_crash_loop_ends_failed_and_others_go_on(manager):
    manager.up()
    manager.script("good")
    manager.script("bad_one", "load_ms=5000 crash_ms=20")
    manager.register("good")
    manager.done(manager.load("good"))
    (good,) = manager.workers()
    manager.register("bad_one")
    failed = manager.end(manager.load("bad_one"))
    assert failed.state == manager.t.OPERATION_STATE_FAILED and names(failed.error.message, 6)  # SIGABRT
    (replica,) = manager.replicas(model="bad_one")
    assert replica.reason == "CRASH_LOOP" and replica.epoch == 5 and replica.n_restarts == 4
    assert manager.workers() == [good]


def test_dead_worker_comes_back_with_a_larger_epoch(manager):
    manager.up()
    manager.script("a")
    manager.register("a")
    manager.done(manager.load("a"))
    (before,) = manager.replicas()
    os.kill(before.pid, signal.SIGKILL)
    manager.wait(lambda: manager.replicas()[0].state == manager.t.REPLICA_STATE_READY and
                 manager.replicas()[0].epoch == before.epoch + 1, 5, "it is ready again")
    (after,) = manager.replicas()
    assert after.id == before.id and after.pid != before.pid and after.n_restarts == 1
    assert manager.workers() == [after.pid]


def test_silent_worker_is_killed_and_counts_as_dead(manager):
    manager.up("--connect-timeout", "100ms")
    manager.script("a", "silent")
    manager.register("a")
    failed = manager.end(manager.load("a"))
    assert failed.error.reason == "CRASH_LOOP" and names(failed.error.message, "CONNECT_TIMEOUT")
    assert manager.workers() == []


def test_worker_that_will_not_end_is_killed_after_the_grace(manager):
    manager.up()
    manager.script("a", "load_ms=20 stubborn")
    manager.register("a")
    manager.done(manager.load("a"))
    began = time.monotonic()
    manager.done(manager.unload("a", grace_ms=200))
    assert 0.4 < time.monotonic() - began < patience(3)
    assert manager.workers() == []


def test_unload_while_loading_cancels_the_load(manager):
    manager.up()
    manager.script("a", "load_ms=60000")
    manager.register("a")
    load = manager.load("a")
    manager.wait(lambda: manager.workers(), 5, "it loads")
    manager.done(manager.unload("a"))
    ended = manager.end(load)
    assert ended.state == manager.t.OPERATION_STATE_CANCELLED and ended.error.reason == "UNLOADED"
    assert manager.workers() == []


def test_killed_manager_adopts_and_restarts_none(manager):
    manager.up()
    manager.script("a")
    manager.register("a")
    manager.done(manager.load("a", n_replicas=3))
    before = {r.id: (r.pid, r.epoch) for r in manager.replicas()}
    for _ in range(3):
        manager.kill()
        manager.up()
        assert {r.id: (r.pid, r.epoch) for r in manager.replicas()} == before
        status = manager.status()
        assert status.n_adopted_workers == 3 and status.n_ready_replicas == 3
    until(lambda: all(r.adopted for r in manager.replicas()), 10, "the rows of the replicas tell of the adoption")
    manager.kill()
    dead, _ = before["r2"]
    os.kill(dead, signal.SIGKILL)  # dies while no manager runs
    manager.up()
    epoch = {"r2": 1}  # the row says READY until the manager has checked the process
    manager.wait(lambda: epoch.update({r.id: r.epoch for r in manager.replicas()}) or epoch["r2"] == 2, 5, "it starts again")
    manager.wait(lambda: manager.status().n_ready_replicas == 3, 5, "the dead one is back")
    after = {r.id: (r.pid, r.epoch) for r in manager.replicas()}
    assert after["r1"] == before["r1"] and after["r3"] == before["r3"] and after["r2"][1] == before["r2"][1] + 1


def test_terminated_manager_leaves_workers_unless_told(manager):
    manager.up()
    manager.script("a")
    manager.register("a")
    manager.done(manager.load("a"))
    (worker,) = manager.workers()
    assert manager.term() == 0
    assert manager.workers() == [worker]
    manager.up("--stop-workers-on-exit")
    assert manager.workers() == [worker] and manager.status().n_adopted_workers == 1
    assert manager.term() == 0
    assert manager.workers() == []
    manager.up()
    manager.wait(lambda: manager.status().n_ready_replicas == 1, 5, "it is wanted still")


def test_a_key_of_whoever_started_it_is_not_the_workers(manager):
    manager.up(env={"SLUICE_API_KEY": "slk_secret"})
    manager.script("a")
    manager.register("a")
    manager.done(manager.load("a"))
    (worker,) = manager.workers()
    with open(f"/proc/{worker}/environ") as environment:
        assert "PATH=" in (text := environment.read()) and "slk_secret" not in text


def test_workers_nobody_owns_are_killed(manager):
    manager.up()
    manager.script("a")
    manager.register("a")
    manager.done(manager.load("a"))
    manager.kill()
    state = manager.state / "run"
    (state / "replica-r99").mkdir()
    for left in ("metrics.sock", "log"):  # files as a killed worker leaves them
        (state / "replica-r99" / left).touch()
    stranger = subprocess.Popen([BIN / "fake_worker", "serve", "--socket", state / "replica-r99/worker.sock", "--exit-report",
                                 state / "replica-r99/exit.pb", "--replica", "r99", "--epoch", "1", "--model",
                                 manager.models / "a"])
    old = subprocess.Popen([BIN / "fake_worker", "serve", "--socket", state / "replica-r1/old.sock", "--exit-report",
                            state / "replica-r1/old.pb", "--replica", "r1", "--epoch", "0", "--model", manager.models / "a"])
    until((state / "replica-r99/worker.sock").exists, 10, "one listens")
    until((state / "replica-r1/old.sock").exists, 10, "the other does")
    manager.up()
    assert stranger.wait(patience(5)) == -signal.SIGKILL and old.wait(patience(5)) == -signal.SIGKILL
    assert len(manager.workers()) == 1 and manager.status().n_adopted_workers == 1
    assert not (state / "replica-r99").exists()


def test_second_manager_is_refused_at_once(manager):
    manager.up()
    began = time.monotonic()
    second = subprocess.run([BIN / "sluice-manager", "--state-dir", manager.state, "--worker", BIN / "fake_worker"],
                            capture_output=True, text=True, timeout=patience(5))
    assert second.returncode == 75 and names(second.stderr, manager.process.pid)
    assert time.monotonic() - began < patience(1)
    assert manager.status().pid == manager.process.pid


def test_a_run_directory_is_one_managers(manager, tmp_path):
    """Symptom: a manager of another state directory took the workers for stray processes and killed them."""
    manager.up()
    manager.script("a")
    manager.register("a")
    manager.done(manager.load("a"))
    workers = manager.workers()
    began = time.monotonic()
    second = subprocess.run([BIN / "sluice-manager", "--state-dir", tmp_path / "other", "--run-dir", manager.state / "run", "--worker",
                             BIN / "fake_worker", "--metrics", ""], capture_output=True, text=True, timeout=patience(5))
    assert second.returncode == 75 and names(second.stderr, "run-dir", f"{manager.state}/run/manager.lock", manager.process.pid), second
    assert time.monotonic() - began < patience(1)
    assert manager.workers() == workers and manager.status().pid == manager.process.pid


@pytest.mark.parametrize("args, code, value", [
    (["--state-dir", "/tmp/" + "x" * 120], 2, 107),
    (["--state-dir", "/dev/null"], 2, "/dev/null"),
    (["--worker", "/nonexistent"], 1, "--worker"),
    (["--log-level", "loud"], 2, "--log-level"),
    (["--drain-grace", "never"], 2, "--drain-grace"),
    (["--surprise"], 2, "surprise"),
])
def test_wrong_settings_are_refused_with_the_options_name(tmp_path, args, code, value):
    result = subprocess.run([BIN / "sluice-manager", "--state-dir", tmp_path / "s", *args], capture_output=True, text=True,
                            timeout=patience(10))
    assert result.returncode == code and names(result.stderr, value), result
    if len(args) > 1 and args[1].startswith("/tmp/x"):
        shutil.rmtree(args[1], ignore_errors=True)


def test_newer_state_is_refused(manager):
    manager.up()
    assert manager.term() == 0
    with sqlite3.connect(manager.state / "sluice.db") as db:
        db.execute("PRAGMA user_version = 4711")
    db.close()
    manager.start()
    assert manager.process.wait(patience(5)) == 1
    assert names(manager.text(), 4711)


def test_full_disk_refuses_changes_and_recovers(manager):
    manager.start()
    manager.connect()
    manager.script("a")
    manager.register("a")
    manager.done(manager.load("a"))
    size = max((manager.state / f).stat().st_size for f in ("sluice.db", "sluice.db-wal"))
    old = resource.prlimit(manager.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(manager.process.pid, resource.RLIMIT_FSIZE, (size + 20000, old[1]))
    with pytest.raises(grpc.RpcError) as e:
        for i in range(200):
            manager.register(f"b{i}", "a", labels={"x": "y" * 250})
    assert e.value.code() == C.RESOURCE_EXHAUSTED and reason(e.value) == "STATE_STORE_FULL"
    assert manager.status().store_reason == "STATE_STORE_FULL" and manager.status().n_ready_replicas == 1
    (before,) = manager.workers()
    os.kill(before, signal.SIGKILL)  # the manager restarts the worker although the disk takes no record
    manager.wait(lambda: manager.status().n_ready_replicas == 1 and manager.replicas()[0].epoch == 2, 5, "it is back")
    (after,) = manager.workers()
    assert after != before and manager.status().store_reason == "STATE_STORE_FULL"
    fails(C.RESOURCE_EXHAUSTED, manager.register, "d", "a", why="STATE_STORE_FULL")
    resource.prlimit(manager.process.pid, resource.RLIMIT_FSIZE, old)
    manager.wait(lambda: manager.status().store_reason == "", 5, "there is room again")
    manager.register("c", "a")
    assert manager.status().store_reason == ""
    assert manager.term() == 0
    with sqlite3.connect(manager.state / "sluice.db") as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert db.execute("SELECT epoch, pid FROM replica").fetchall() == [(2, after)]  # recorded later
        assert db.execute("SELECT count(*) FROM event WHERE type = 'replica.recorded'").fetchone() == (1,)
        seqs = [r[0] for r in db.execute("SELECT seq FROM event ORDER BY seq")]
    db.close()
    assert seqs == list(range(1, len(seqs) + 1))


POINTS_LOAD = ["load.before_write", "load.before_commit", "start.before_record", "start.after_record", "spawn.before",
               "spawn.after", "pid.after_record", "state.before_record", "state.after_record", "ready.before_record",
               "ready.after_record", "record.before_commit:1", "record.before_commit:2", "record.before_commit:3",
               "finish.before_record", "finish.before_commit", "finish.after_commit"]
POINTS_UNLOAD = ["unload.before_write", "unload.before_commit", "drain.before_record", "drain.after_record",
                 "stop.before_record", "stop.after_record", "record.before_commit:1", "record.before_commit:2",
                 "finish.before_record", "finish.before_commit", "finish.after_commit"]


@pytest.mark.parametrize("point", POINTS_LOAD)
def test_killed_in_the_middle_of_a_load(manager, point):
    manager.up()
    manager.script("a", f"load_ms={3000 if point.startswith('state') else 150}")  # the test must observe the load while it runs
    manager.register("a")
    manager.term()
    manager.up(env={"SLUICE_FAILPOINT": point})
    operation = retry(manager, lambda: manager.load("a", request_id="once"))
    assert manager.process.wait(patience(60)) == -signal.SIGKILL
    manager.up()
    again = manager.load("a", request_id="once")
    if operation:
        assert again.id == operation.id  # the acknowledged load is in the database
    assert manager.done(again).id == again.id
    settle(manager)
    assert len(manager.workers()) == 1 and manager.status().n_ready_replicas == 1
    assert len(manager.rpc.ListOperations(manager.m.ListOperationsRequest()).operations) == 1


@pytest.mark.parametrize("point", POINTS_UNLOAD)
def test_killed_in_the_middle_of_an_unload(manager, point):
    manager.up()
    manager.script("a", "load_ms=30")
    manager.register("a")
    manager.done(manager.load("a"))
    manager.term()
    env = {"SLUICE_FAILPOINT": point}
    if point.startswith("record"):  # the adoption is the first record
        env["SLUICE_FAILPOINT"] = f"record.before_commit:{int(point[-1]) + 1}"
    manager.up(env=env)
    operation = retry(manager, lambda: manager.unload("a", request_id="once"))
    assert manager.process.wait(patience(60)) == -signal.SIGKILL
    manager.up()
    again = manager.unload("a", request_id="once")
    if operation:
        assert again.id == operation.id
    manager.done(again)
    settle(manager)
    assert manager.workers() == [] and manager.replicas() == []


def test_routes_follow_and_their_generation_grows_over_restarts(manager):
    from sluice.manager.v1 import routing_pb2, routing_pb2_grpc
    manager.up()
    manager.script("a")

    def watch():
        stub = routing_pb2_grpc.RoutingStub(manager.channel)
        return stub.WatchRoutes(routing_pb2.WatchRoutesRequest(server_id="s1", pid=7, addresses=["127.0.0.1:1"], http_addresses=["127.0.0.1:2"]), timeout=patience(20))

    tables = watch()
    assert len(next(tables).routes) == 0
    manager.register("a")
    table = next(tables)
    assert table.routes[0].model == "a" and not table.routes[0].loaded and table.routes[0].info.architecture == "fake"
    manager.load("a")
    seen = []  # requests may wait for a starting replica: the route lists the replica without a socket
    while not table.routes[0].replicas or table.routes[0].replicas[0].state != manager.t.REPLICA_STATE_READY:
        seen += [(r.state, r.socket_path) for r in table.routes[0].replicas]
        table = next(tables)
    assert (manager.t.REPLICA_STATE_LOADING, "") in seen and not any(path for _, path in seen)
    (replica,) = table.routes[0].replicas
    assert replica.state == manager.t.REPLICA_STATE_READY and replica.epoch == 1 and table.routes[0].is_default
    assert os.path.exists(replica.socket_path) and replica.numerics_id == "fake/1"
    (server,) = manager.status().servers
    assert server.server_id == "s1" and list(server.addresses) == ["127.0.0.1:1"]
    assert list(server.http_addresses) == ["127.0.0.1:2"]
    manager.kill()
    manager.up()
    table2 = next(watch())
    assert table2.generation > table.generation and table2.routes[0].replicas[0] == replica
    manager.term()
    manager.up()
    tables = watch()
    next(tables)
    manager.unload("a")
    states = []
    while True:
        table = next(tables)
        states.append([r.state for r in table.routes[0].replicas])
        if not states[-1]:
            break
    assert [manager.t.REPLICA_STATE_DRAINING] in states and not table.routes[0].loaded


def test_device_groups(manager):
    manager.up()
    m = manager.m
    (cpu,) = manager.rpc.ListDeviceGroups(m.ListDeviceGroupsRequest()).groups
    assert cpu.name == "cpu" and cpu.built_in and list(cpu.devices) == ["cpu:0", "cpu:1"]
    group = manager.rpc.CreateDeviceGroup(m.CreateDeviceGroupRequest(name="one", devices=["cpu:1"], expected_generation=0)).group
    assert list(group.devices) == ["cpu:1"] and group.generation == 1
    create = manager.rpc.CreateDeviceGroup
    fails(C.ALREADY_EXISTS, create, m.CreateDeviceGroupRequest(name="one", devices=["cpu:0"]))
    fails(C.FAILED_PRECONDITION, create, m.CreateDeviceGroupRequest(name="g", devices=["cuda:0"]), why="DEVICE_UNUSABLE")
    fails(C.NOT_FOUND, create, m.CreateDeviceGroupRequest(name="g", devices=["cpu:7"]), why="DEVICE_NOT_FOUND")
    for devices in ([], ["cpu"], ["cpu:1-0"], ["cpu:0,0"], ["cpu:0", "cuda:0"], ["gpu:0"], ["cpu:0-9999"], ["cpu:0x"]):
        assert names(fails(C.INVALID_ARGUMENT, create, m.CreateDeviceGroupRequest(name="g", devices=devices)), "devices")
    manager.script("a")
    manager.register("a")
    manager.done(manager.load("a", device_group="one"))
    uses = {d.device.name: d for d in manager.rpc.ListDevices(m.ListDevicesRequest(refresh=True)).devices}
    assert list(uses["cpu:1"].replica_ids) == ["r1"] and list(uses["cpu:0"].replica_ids) == []
    fails(C.FAILED_PRECONDITION, manager.rpc.DeleteDeviceGroup, m.DeleteDeviceGroupRequest(name="one"), why="DEVICE_GROUP_IN_USE")
    manager.done(manager.unload("a"))
    manager.rpc.DeleteDeviceGroup(m.DeleteDeviceGroupRequest(name="one"))
    fails(C.FAILED_PRECONDITION, manager.rpc.DeleteDeviceGroup, m.DeleteDeviceGroupRequest(name="cpu"), why="DEVICE_GROUP_BUILT_IN")


def test_ready_is_told_to_the_service_manager(manager):
    path = str(manager.folder / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.bind(path)
        s.settimeout(10)
        manager.up(env={"NOTIFY_SOCKET": path})
        assert s.recv(200).startswith(b"READY=1\nSTATUS=Managing")
        assert manager.term() == 0
        assert s.recv(200).startswith(b"STOPPING=1\nSTATUS=")
    assert not (manager.state / "run/manager.sock").exists()


def test_terminated_while_loading_ends_soon_and_goes_on_after(manager):
    manager.up()
    manager.script("a", "load_ms=1000")
    manager.register("a")
    operation = manager.load("a")
    manager.wait(lambda: manager.workers(), 5, "it loads")
    (worker,) = manager.workers()
    began = time.monotonic()
    assert manager.term() == 0
    assert time.monotonic() - began < patience(3)
    manager.up()
    assert manager.done(operation).id == operation.id
    assert manager.workers() == [worker]  # the same process, adopted while it loaded


def test_children_and_descriptors_return_to_rest(manager):
    manager.up()
    manager.script("a", "load_ms=10")
    manager.register("a")
    process = psutil.Process(manager.process.pid)
    manager.done(manager.load("a"))
    manager.done(manager.unload("a"))
    fds, threads = steady(lambda: (process.num_fds(), process.num_threads()))
    rss = process.memory_info().rss
    for _ in range(20):
        manager.done(manager.load("a", n_replicas=2))
        manager.done(manager.unload("a"))
    until(lambda: process.num_fds() <= fds + 2 and process.num_threads() <= threads + 2, 5,
          lambda: f"{process.num_fds()} descriptors, {process.num_threads()} threads; {fds} and {threads} before")
    # AddressSanitizer keeps up to 256 MiB of freed memory; ThreadSanitizer keeps a shadow of all used memory.
    room = 256 << 20 if sanitized() else 0
    assert process.memory_info().rss <= rss * 1.01 + (8 << 20) + room
    assert process.children() == []
    assert len(manager.replicas(include_stopped=True)) == 41
