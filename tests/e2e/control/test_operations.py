"""Operations and events of the manager: the stage of a failure, clients that do not read, wrong memory reports. The
first tests use fake workers (tests/support/fake/fake_worker.c), the last ones real workers."""
import json
import sqlite3
import subprocess
import time

import grpc
import psutil
import pytest

from conftest import BIN, names, patience, sanitized
from log_events import SLOW_READER_ENDED, logged
from manager_program import C, manager  # noqa: F401 (fixtures)
from test_malloc import Control
from test_scale import cancel, scale, watch_events
from test_traffic import events, shifting, two_versions, update


def cli(manager, *args):
    result = subprocess.run([BIN / "sluice", *args, "--manager", str(manager.state / "run/manager.sock")], capture_output=True,
                            text=True, timeout=30)
    return result.stdout + result.stderr


@pytest.mark.parametrize("script,stage", [
    ("silent crash_ms=20", "start"),
    ("load_ms=1000 fail=8 fail_ms=300", "pack"),
    ("load_ms=2000 fail=8 fail_ms=1900", "warm"),
    ("load_ms=1000 crash_ms=300", "pack"),
])
def test_a_failed_operation_says_at_which_stage(manager, script, stage):
    """Symptom: the failed operation reported the stage "done"."""
    manager.up()
    manager.script("a", script)
    manager.register("a")
    failed = manager.end(manager.load("a"))
    assert (failed.state, failed.stage) == (manager.t.OPERATION_STATE_FAILED, stage)
    (event,) = [e for m in first(watch_events(manager, 1), manager.status().last_event_seq) for e in m
                if e.type == "operation.failed"]
    assert event.stage == stage
    assert f"stage      {stage}\n" in cli(manager, "ops", "show", failed.id)
    assert json.loads(cli(manager, "ops", "show", failed.id, "--json"))["operation"]["stage"] == stage
    row = next(line for line in cli(manager, "ops").splitlines() if failed.id in line)
    assert stage in row.split() and "done" not in row.split()
    assert f"at {stage}" in next(line for line in cli(manager, "events", "--from", "1").splitlines() if "operation.failed" in line)
    manager.kill()
    manager.up()
    assert manager.end(failed).stage == stage
    assert next(watch(manager, failed)).operation.stage == stage


def watch(manager, operation):
    return manager.rpc.WatchOperation(manager.m.WatchOperationRequest(id=operation.id), timeout=20)


def first(call, last):
    """Returns the events of the messages up to number `last`."""
    for message in call:
        yield message.events
        if message.events[-1].seq >= last:
            call.cancel()
            return


def test_a_failed_scaling_names_the_failed_replicas_stage_and_a_cancelled_one_stop(manager):
    manager.up()
    manager.script("a", "load_ms=30")
    manager.register("a")
    done = manager.done(manager.load("a"))
    assert done.stage == "done"
    manager.script("a", "load_ms=1000 fail=8 fail_ms=400")
    failed = manager.end(scale(manager, "a", 2))
    assert (failed.state, failed.stage) == (manager.t.OPERATION_STATE_FAILED, "pack")
    manager.script("b", "load_ms=20000")
    manager.register("b")
    operation = manager.load("b")
    manager.wait(lambda: manager.workers(), 5, "it loads")
    cancel(manager, operation)
    ended = manager.end(operation)
    assert (ended.state, ended.stage) == (manager.t.OPERATION_STATE_CANCELLED, "stop")


N_EVENTS = 12000


def with_many_events(manager, *args):
    """Makes some megabytes of events, more than a window of HTTP/2 takes."""
    manager.up(*args)
    manager.script("a", "load_ms=30")
    manager.register("a")
    last = manager.status().last_event_seq
    manager.term()
    with sqlite3.connect(manager.state / "sluice.db") as db:
        db.executemany("INSERT INTO event VALUES (?, 1, 'test.event', 'a', '1', '', '', '', ?, x'')",
                       ((last + 1 + i, "x" * 400) for i in range(N_EVENTS)))
    db.close()
    manager.up(*args)
    return last + N_EVENTS


def test_a_cancelled_operation_is_said_to_be_cancelling_and_its_audit_says_where_it_was(manager):
    """Symptom: the audit row said "place", the stage at the start, and `ops cancel` printed "running"."""
    manager.up()
    two_versions(manager, second=f"load_ms=3000 drain_ms={int(patience(1.5) * 1000)}", load=("1",))
    stage = lambda o: manager.rpc.GetOperation(manager.m.GetOperationRequest(id=o.id)).operation.stage  # noqa: E731
    loading = manager.load("a", version="2")
    manager.wait(lambda: stage(loading) == "pack", 8, "it is being packed")
    cancel(manager, loading)
    assert manager.end(loading).state == manager.t.OPERATION_STATE_CANCELLED
    moving = update(manager, step_ms=60000)
    shifting(manager, moving)
    shown = cli(manager, "ops", "show", moving.id)
    assert names(shown, "a 1", "60.0 s"), shown
    for _ in range(2):
        assert names(cli(manager, "ops", "cancel", moving.id), moving.id, "cancelling")
    assert names(cli(manager, "ops", "show", moving.id), "cancelling", "rollback")
    assert "cancelling" in next(line for line in cli(manager, "ops").splitlines() if moving.id in line).split()
    assert manager.end(moving).state == manager.t.OPERATION_STATE_CANCELLED
    assert names(cli(manager, "ops", "cancel", moving.id), moving.id, "cancelled")
    told = {e.operation_id: (e.attributes["before"], e.attributes["after"]) for e in events(manager, "audit.CancelOperation")}
    for operation, was, goes in ((loading, "pack", "stop"), (moving, "shift", "rollback")):
        before, after = told[operation.id]
        assert f'operation {operation.id}: stage="{was}"' in before, before
        assert f'operation {operation.id}: stage="{goes}" cancelling=1' in after, after


STAGES = ["place", "start", "pack", "warm", "drain", "stop", "done"]


def test_parking_and_waking_go_forward_only(manager):
    """Symptom: progress began at 100 % of an old load, then went to the stages "drain", "place", "start"."""
    manager.up()
    manager.script("a", "load_ms=300 drain_ms=200")
    manager.register("a")
    manager.done(manager.load("a"))
    for call in (lambda: manager.rpc.ParkModelVersion(manager.m.ParkModelVersionRequest(model="a")),
                 lambda: manager.rpc.WakeModelVersion(manager.m.WakeModelVersionRequest(model="a"))):
        seen = [m.operation for m in watch(manager, call().operation)]
        order = [STAGES.index(o.stage) for o in seen]
        assert order == sorted(order) and seen[-1].stage == "done", [o.stage for o in seen]
        parks = seen[-1].kind == manager.t.OPERATION_KIND_PARK
        assert not parks or not any(o.bytes_total for o in seen), seen
        assert not parks or {"drain", "stop"} <= {o.stage for o in seen}, [o.stage for o in seen]


def test_readers_of_events_that_do_not_read_are_bounded_ended_and_nobody_elses_loss(manager):
    last = with_many_events(manager, "--slow-reader-timeout", "2s")
    process = psutil.Process(manager.process.pid)
    seen = [e.seq for events in first(watch_events(manager, 1), last) for e in events]  # a client that reads gets every event
    assert seen == list(range(1, last + 1))
    before = process.memory_info().rss
    live = watch_events(manager, last + 1)
    begun = time.monotonic()
    # Each watch has its own channel, so that no two share a window.
    channels = [grpc.insecure_channel(f"unix:{manager.state}/run/manager.sock",
                                      options=[("grpc.use_local_subchannel_pool", 1)]) for _ in range(30)]
    slow = [manager.stubs.manager_grpc.ModelManagerStub(c).WatchEvents(manager.m.WatchEventsRequest(from_seq=1), timeout=20)
            for c in channels]
    manager.wait(lambda: not logged(manager.text(), SLOW_READER_ENDED) and time.monotonic() > begun + 1, 3, "all are behind")
    growth = process.memory_info().rss - before
    assert sanitized() or growth < len(slow) * (256 << 10) + (8 << 20), growth
    for _ in range(3):  # the loop, the store and other watchers are not affected
        asked = time.monotonic()
        manager.done(manager.load("a"))
        assert next(live).events[-1].seq > last
        assert time.monotonic() - asked < 5
        manager.done(manager.unload("a"))
    manager.wait(lambda: len(logged((manager.folder / "log").read_text(), SLOW_READER_ENDED)) == len(slow), 10, "all are ended")
    assert 2 <= time.monotonic() - begun < 15
    for call in slow:  # the events sent before can still be read
        with pytest.raises(grpc.RpcError) as e:
            for message in call:
                assert message.events[-1].seq < last
        assert e.value.code() == C.RESOURCE_EXHAUSTED, e.value
        assert names(e.value.details(), 2000)
    again = watch_events(manager, 1)  # the client may also read all events again
    assert next(again).events[0].seq == 1
    again.cancel()
    live.cancel()
    for c in channels:
        c.close()


def test_a_reader_that_takes_its_time_is_behind_and_loses_nothing(manager):
    last = with_many_events(manager, "--slow-reader-timeout", "2s")
    seen, begun = [], time.monotonic()
    for message in watch_events(manager, 1):
        seen += [e.seq for e in message.events]
        if time.monotonic() < begun + 5:
            time.sleep(0.1)  # the test needs a slow reader
        if seen[-1] >= last:
            break
    assert seen == list(range(1, last + 1)) and time.monotonic() - begun > 4


@pytest.mark.skipif(sanitized(), reason="sanitizers replace the allocator whose calls are made to fail")
@pytest.mark.parametrize("rpc", ["LoadModelVersion", "ListModels", "CreateDeviceGroup"])
def test_f27_a_failed_allocation_of_the_manager_fails_the_call_alone(manager, rpc):
    """Symptom: a failed copy of the version's settings in a load ended the manager."""
    control = Control(manager.folder / "control")
    manager.up(env={"LD_PRELOAD": str(BIN / "fail_malloc.so"), "SLUICE_TEST_MALLOC": str(manager.folder / "control")})
    m, refused = manager.m, 0
    manager.script("a", "load_ms=20")
    manager.register("a")
    # The call itself makes only the first allocations of a load; the rest belong to the background work.
    for n in range(1, 24 if rpc == "LoadModelVersion" else 80):
        call = {"LoadModelVersion": lambda: manager.load("a"),
                "ListModels": lambda: manager.rpc.ListModels(m.ListModelsRequest(), timeout=5),
                "CreateDeviceGroup": lambda: manager.rpc.CreateDeviceGroup(m.CreateDeviceGroupRequest(
                    name=f"g{n}", devices=["cpu:0"]), timeout=5)}[rpc]
        control.arm(n)
        try:
            operation = call()
        except grpc.RpcError as e:
            # if the lookup of a row fails, the row counts as absent
            assert e.code() in (C.RESOURCE_EXHAUSTED, C.NOT_FOUND), f"allocation {n}: {e}"
            operation, refused = None, refused + 1
        failed = control.disarm()
        assert manager.process.poll() is None, f"allocation {n}: the manager died\n{manager.text()}"
        if rpc == "LoadModelVersion" and operation:
            manager.end(operation)
            manager.end(manager.unload("a"))
        if not failed:
            break
    assert refused > 5
