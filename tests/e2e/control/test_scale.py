"""The replicas of a version: scaling, draining, restarting, cancelling, hangs, shared weights, and the events that
report these steps. The first tests use fake workers (tests/support/fake/fake_worker.c), the last ones real workers."""
import json
import os
import random
import signal
import sqlite3
import subprocess
import threading
import time

import grpc
import psutil
import pytest

from conftest import BIN, keeps, launch_record, names, patience, stand_still, until
from log_events import CPUS_SHARED, logged
from manager_program import C, fails, manager, retry, settle  # noqa: F401 (fixtures)
from test_faults import Stream, check_equal, load, requests, undisturbed, wait_tokens


def watch_events(manager, from_seq=0, timeout=patience(20)):
    return manager.rpc.WatchEvents(manager.m.WatchEventsRequest(from_seq=from_seq), timeout=timeout)


class Events:
    """Follows the events from a number on, over restarts of the manager, as a client should: from the last event
    received + 1."""

    def __init__(self, manager, from_seq=1):
        self.manager, self.seen, self.next = manager, [], from_seq
        self.lock = threading.Condition()
        self.over = False
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.over:
            try:
                for message in watch_events(self.manager, self.next):
                    with self.lock:
                        for event in message.events:
                            assert event.seq == self.next, (event.seq, self.next)
                            self.seen.append(event)
                            self.next += 1
                        self.lock.notify_all()
            except (grpc.RpcError, ValueError):
                with self.lock:
                    self.lock.wait(0.02)

    def wait(self, kind, count=1, seconds=8, **fields):
        def matching():
            return [e for e in self.seen if e.type == kind and all(getattr(e, k) == v for k, v in fields.items())]
        with self.lock:
            assert self.lock.wait_for(lambda: len(matching()) >= count, patience(seconds)), (kind, fields, [e.type for e in self.seen])
            return matching()[-1]


# -- events


def test_events_are_gapless_over_restarts_of_the_manager(manager):
    manager.up()
    manager.script("a", "load_ms=30")
    manager.register("a")
    events = Events(manager)
    manager.done(manager.load("a"))
    events.wait("operation.done")
    manager.kill()
    manager.up()
    manager.done(manager.unload("a"))
    manager.term()
    manager.up()
    manager.done(manager.load("a"))
    events.wait("operation.done", 3)
    last = manager.status().last_event_seq
    manager.wait(lambda: events.next == last + 1, 5, "all have come")
    assert [e.seq for e in events.seen] == list(range(1, last + 1))
    assert events.seen[0].type == "model.registered" or events.seen[0].type.startswith("device"), events.seen[0]
    many = [watch_events(manager, 1) for _ in range(40)]  # each watcher gets the same events, the older part from the store
    for watch in many:
        seqs = []
        for message in watch:
            seqs += [e.seq for e in message.events]
            if seqs[-1] >= last:
                break
        assert seqs == list(range(1, len(seqs) + 1))
        watch.cancel()
    live = watch_events(manager)
    time.sleep(0.2)  # gives the watch time to start: no message reports the start before the first event
    manager.unload("a")
    assert next(live).events[0].seq > last
    events.over = True


def test_events_that_are_not_kept_are_out_of_range(manager):
    manager.up()
    manager.script("a", "load_ms=30")
    manager.register("a")
    manager.done(manager.load("a"))
    last = manager.status().last_event_seq
    assert manager.status().first_event_seq == 1
    fails(C.OUT_OF_RANGE, lambda: next(watch_events(manager, last + 100)), why="EVENTS_TO_COME")
    manager.term()
    with sqlite3.connect(manager.state / "sluice.db") as db:
        db.execute("DELETE FROM event WHERE seq < 4")
    db.close()
    manager.up()
    assert manager.status().first_event_seq == 4
    assert names(fails(C.OUT_OF_RANGE, lambda: next(watch_events(manager, 3)), why="EVENTS_GONE"), 4)
    assert next(watch_events(manager, 4)).events[0].seq == 4


# -- scale, drain, restart, cancel


def scale(manager, model, n, **kwargs):
    return manager.rpc.ScaleModelVersion(manager.m.ScaleModelVersionRequest(model=model, n_replicas=n, **kwargs)).operation


def cancel(manager, operation, **kwargs):
    return manager.rpc.CancelOperation(manager.m.CancelOperationRequest(id=operation.id, **kwargs)).operation


def own_cpus(manager):
    """Returns by replica the CPUs of its worker alone, from the launch records."""
    records = [launch_record(worker, manager.stubs) for worker in manager.workers()]
    return {record.replica: record.config.cpus for record in records}


def drain(manager, replica, **kwargs):
    return manager.rpc.DrainReplica(manager.m.DrainReplicaRequest(replica_id=replica, **kwargs)).operation


def restart(manager, replica, **kwargs):
    return manager.rpc.RestartReplica(manager.m.RestartReplicaRequest(replica_id=replica, **kwargs)).operation


def ready(manager):
    return sorted(r.id for r in manager.replicas() if r.state == manager.t.REPLICA_STATE_READY)


def deployed(manager, model="a"):
    return [d.n_replicas for v in manager.rpc.GetModel(manager.m.GetModelRequest(model=model)).model.versions for d in v.deployments]


def loaded(manager, text="load_ms=30", n=1, model="a"):
    manager.script(model, text)
    manager.register(model)
    return manager.done(manager.load(model, n_replicas=n))


def test_scale_up_and_down_once_per_request_id(manager):
    manager.up()
    loaded(manager)
    generation = manager.rpc.GetModel(manager.m.GetModelRequest(model="a")).model.versions[0].generation
    up = manager.done(scale(manager, "a", 3, request_id="s1", expected_generation=generation))
    assert ready(manager) == ["r1", "r2", "r3"] and up.result.n_ready_replicas == 3 and deployed(manager) == [3]
    assert up.n_replicas_before == 1 and up.n_replicas == 3 and list(up.new_replica_ids) == ["r2", "r3"]
    assert scale(manager, "a", 3, request_id="s1", expected_generation=generation).id == up.id
    fails(C.ABORTED, scale, manager, "a", 2, expected_generation=generation, why="STALE_GENERATION")
    fails(C.INVALID_ARGUMENT, scale, manager, "a", 2, request_id="s1", why="REQUEST_ID_REUSED")
    assert names(fails(C.INVALID_ARGUMENT, scale, manager, "a", 0, field="n_replicas"), "UnloadModelVersion")
    assert names(fails(C.INVALID_ARGUMENT, scale, manager, "a", 65, field="n_replicas"), 64)
    fails(C.INVALID_ARGUMENT, scale, manager, "a", 1, grace_ms=90000000, field="grace_ms")
    fails(C.NOT_FOUND, scale, manager, "nobody", 1, why="MODEL_NOT_FOUND")
    manager.script("b")
    manager.register("b")
    assert names(fails(C.FAILED_PRECONDITION, scale, manager, "b", 2, why="NOT_LOADED"), "LoadModelVersion")
    plan = manager.rpc.ScaleModelVersion(manager.m.ScaleModelVersionRequest(model="a", n_replicas=1, validate_only=True)).plan
    assert plan.n_replicas == 2 and plan.fits
    plan = manager.rpc.ScaleModelVersion(manager.m.ScaleModelVersionRequest(model="a", n_replicas=5, validate_only=True)).plan
    assert plan.packed_bytes == 1000000
    assert ready(manager) == ["r1", "r2", "r3"]  # a plan changes nothing
    down = manager.done(scale(manager, "a", 1))
    assert sorted(down.replica_ids) == ["r2", "r3"] and ready(manager) == ["r1"]  # if all are equally busy, the newest go
    assert down.result.n_finished == 6 and len(manager.workers()) == 1 and deployed(manager) == [1]
    manager.done(scale(manager, "a", 1))  # the number does not change
    assert ready(manager) == ["r1"]
    manager.kill()
    manager.up()
    settle(manager)
    assert ready(manager) == ["r1"]


def test_scale_where_some_fail_keeps_the_others(manager):
    manager.up("--crash-limit", "2")
    loaded(manager, n=2)
    manager.script("a", "load_ms=20 fail=8")
    failed = manager.end(scale(manager, "a", 4))
    assert failed.state == manager.t.OPERATION_STATE_FAILED and names(failed.error.message, 5000000)
    assert failed.result.n_ready_replicas == 2 and ready(manager) == ["r1", "r2"]
    states = {r.id: r.state for r in manager.replicas()}
    assert states["r3"] == states["r4"] == manager.t.REPLICA_STATE_FAILED
    manager.script("a", "load_ms=20")
    manager.done(restart(manager, "r3"))
    assert ready(manager) == ["r1", "r2", "r3"]
    manager.done(scale(manager, "a", 4))  # the failed one gives way to a new one
    assert ready(manager) == ["r1", "r2", "r3", "r5"]
    manager.script("a", "load_ms=20 fail=8")
    manager.end(scale(manager, "a", 5))
    manager.done(scale(manager, "a", 3))  # failed replicas go first
    assert ready(manager) == ["r1", "r2", "r3"] and len(manager.replicas()) == 3


@pytest.mark.alone  # with test files side by side each process has only one CPU
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_replicas_have_cpus_of_their_own_while_there_are_enough(manager):
    first, second = sorted(os.sched_getaffinity(0))[:2]
    both, each = f"{first},{second}", {str(first), str(second)}
    manager.up()
    manager.script("a", "load_ms=30")
    manager.register("a")
    manager.done(manager.load("a", n_replicas=2, config=manager.t.ModelConfig(cpus=both)))
    before = own_cpus(manager)
    assert set(before.values()) == each  # no thread count is set: each replica has half of the CPUs
    manager.done(restart(manager, "r1"))
    assert own_cpus(manager) == before  # the new process takes the CPUs of its old process: the other replica has the rest
    manager.kill()  # the next manager adopts the workers and asks for their CPUs
    manager.up()
    manager.wait(lambda: len(ready(manager)) == 2, patience(10), "both adopted")
    manager.done(restart(manager, "r2"))
    assert own_cpus(manager) == before
    manager.done(scale(manager, "a", 3))  # more replicas than CPUs: the third shares
    assert own_cpus(manager)["r3"] in each and logged(manager.text(), CPUS_SHARED)
    manager.script("b", "load_ms=30")
    manager.register("b")
    manager.done(manager.load("b"))
    assert list(own_cpus(manager).values()).count("") == 1  # the third worker has no CPUs of its own
    for text, values in (("7-3", ('"7-3"', 7, 3)), ("4000", (4000,)), ("node:63", (63,)), ("1" * 4097, (4096,))):
        assert names(fails(C.INVALID_ARGUMENT, manager.load, "b", config=manager.t.ModelConfig(cpus=text), field="config.cpus"), *values)


def test_drained_replica_is_replaced_and_never_one_too_many_lives(manager):
    manager.up()
    loaded(manager, "load_ms=60 drain_ms=250", n=2)
    operation = drain(manager, "r1", request_id="d1", grace_ms=2000)
    seen = set()

    def ended():
        seen.add(len(manager.workers()))
        return manager.rpc.GetOperation(manager.m.GetOperationRequest(id=operation.id)).operation.state == 3
    manager.wait(ended, 8, "the drain ends")
    assert seen <= {1, 2} and ready(manager) == ["r2", "r3"] and deployed(manager) == [2]
    stopped = {r.id: r for r in manager.replicas(include_stopped=True)}["r1"]
    assert stopped.state == manager.t.REPLICA_STATE_STOPPED
    assert drain(manager, "r1", request_id="d1", grace_ms=2000).id == operation.id
    fails(C.FAILED_PRECONDITION, drain, manager, "r1", why="REPLICA_STOPPED")
    fails(C.NOT_FOUND, drain, manager, "r77", why="REPLICA_NOT_FOUND")
    fails(C.INVALID_ARGUMENT, drain, manager, "")
    fails(C.ABORTED, drain, manager, "r2", expected_generation=77, why="STALE_GENERATION")


def test_restart_gives_a_larger_epoch_and_leaves_failed(manager):
    manager.up("--crash-limit", "1")
    loaded(manager)
    (before,) = manager.replicas()
    manager.done(restart(manager, "r1", request_id="x"))
    (after,) = manager.replicas()
    assert after.epoch == before.epoch + 1 and after.pid != before.pid and ready(manager) == ["r1"]
    assert restart(manager, "r1", request_id="x").id and manager.replicas()[0].epoch == after.epoch
    manager.script("a", "load_ms=20 crash_ms=1")
    failed = manager.end(restart(manager, "r1"))
    assert failed.state == manager.t.OPERATION_STATE_FAILED and failed.error.reason == "CRASH_LOOP"
    manager.script("a", "load_ms=20")
    manager.done(restart(manager, "r1"))
    assert ready(manager) == ["r1"] and manager.replicas()[0].last_error.code == 0


def test_cancelled_load_is_rolled_back_whole(manager):
    manager.up()
    manager.script("a", "load_ms=60000")
    manager.register("a")
    load = manager.load("a", n_replicas=2)
    manager.wait(lambda: manager.workers(), 5, "it loads")
    assert cancel(manager, load, request_id="c1").cancelling
    assert cancel(manager, load).cancelling or cancel(manager, load).state == manager.t.OPERATION_STATE_CANCELLED
    ended = manager.end(load)
    assert ended.state == manager.t.OPERATION_STATE_CANCELLED and ended.error.reason == "CANCELLED"
    assert manager.workers() == [] and manager.replicas() == [] and deployed(manager) == []
    assert cancel(manager, load).state == manager.t.OPERATION_STATE_CANCELLED  # a repeated cancel gives the same answer
    assert cancel(manager, load, request_id="c1").id == load.id
    manager.script("a", "load_ms=30")
    done = manager.done(manager.load("a", n_replicas=2))
    fails(C.FAILED_PRECONDITION, cancel, manager, done, why="OPERATION_ENDED")
    fails(C.NOT_FOUND, lambda: manager.rpc.CancelOperation(manager.m.CancelOperationRequest(id="o99")), why="OPERATION_NOT_FOUND")
    manager.script("a", "load_ms=60000")
    up = scale(manager, "a", 5)
    manager.wait(lambda: len(manager.workers()) >= 3, 5, "more load")
    cancel(manager, up)
    assert manager.end(up).state == manager.t.OPERATION_STATE_CANCELLED
    assert deployed(manager) == [2] and len(ready(manager)) == 2 and len(manager.workers()) == 2


def test_what_removes_replicas_cannot_be_cancelled(manager):
    manager.up()
    loaded(manager, "load_ms=20 stubborn", n=2)
    grace = int(patience(2) * 1000)  # the drain lasts long enough for the call
    for begin in (lambda: scale(manager, "a", 1, grace_ms=grace), lambda: restart(manager, "r1", grace_ms=grace),
                  lambda: manager.unload("a", grace_ms=grace)):
        operation = begin()
        assert names(fails(C.FAILED_PRECONDITION, cancel, manager, operation, why="CANNOT_CANCEL"), '"drain"')
        manager.done(operation)


POINTS_SCALE = ["scale.before_write", "scale.before_commit", "start.before_record", "start.after_record", "spawn.after",
                "pid.after_record", "ready.before_record", "finish.before_record", "finish.after_commit"]
POINTS_DOWN = ["scale.before_commit", "drain.before_record", "drain.after_record", "stop.before_record", "finish.before_commit"]


@pytest.mark.parametrize("n, point", [(3, p) for p in POINTS_SCALE] + [(1, p) for p in POINTS_DOWN])
def test_killed_in_the_middle_of_a_scale(manager, n, point):
    manager.up()
    loaded(manager, n=2)
    manager.term()
    manager.up(env={"SLUICE_FAILPOINT": point})
    operation = retry(manager, lambda: scale(manager, "a", n, request_id="once"))
    assert manager.process.wait(patience(10)) == -signal.SIGKILL
    manager.up()
    again = scale(manager, "a", n, request_id="once")
    assert not operation or again.id == operation.id
    manager.done(again)
    settle(manager)
    assert len(manager.workers()) == len(ready(manager)) == n and deployed(manager) == [n]


@pytest.mark.parametrize("point", ["replace.before_write", "replace.before_commit", "drain.after_record", "stop.before_record",
                                   "start.after_record", "spawn.after"])
def test_killed_in_the_middle_of_a_drain(manager, point):
    manager.up()
    loaded(manager)
    manager.term()
    manager.up(env={"SLUICE_FAILPOINT": point})
    retry(manager, lambda: drain(manager, "r1", request_id="once"))
    assert manager.process.wait(patience(10)) == -signal.SIGKILL
    manager.up()
    manager.done(drain(manager, "r1", request_id="once"))
    settle(manager)
    assert ready(manager) == ["r2"] and len(manager.workers()) == 1


@pytest.mark.parametrize("point", ["cancel.before_commit", "drain.after_record", "stop.before_record", "finish.before_record"])
def test_killed_in_the_middle_of_a_cancel(manager, point):
    manager.up()
    loaded(manager)
    manager.script("a", "load_ms=60000")
    up = scale(manager, "a", 2)
    manager.wait(lambda: len(manager.workers()) == 2, 5, "it loads")
    manager.term()
    manager.up(env={"SLUICE_FAILPOINT": point})
    retry(manager, lambda: cancel(manager, up, request_id="once"))
    assert manager.process.wait(patience(10)) == -signal.SIGKILL
    manager.up()
    retry(manager, lambda: cancel(manager, up, request_id="once"))
    assert manager.end(up).state == manager.t.OPERATION_STATE_CANCELLED
    settle(manager)
    assert ready(manager) == ["r1"] and deployed(manager) == [1]


# -- shared weights


def memory(manager):
    """Returns for each replica which memory holds its packed weights, as its worker reports."""
    return {r.id: r.shared_id for r in manager.replicas()}


def manager_memfds(manager):
    """Returns the inodes of the memfds that the manager itself holds."""
    found = set()
    for fd in os.listdir(f"/proc/{manager.process.pid}/fd"):
        try:
            if "memfd:sluice-weights" in os.readlink(f"/proc/{manager.process.pid}/fd/{fd}"):
                found.add(os.stat(f"/proc/{manager.process.pid}/fd/{fd}").st_ino)
        except FileNotFoundError:
            pass
    return found


def memfd_sizes(manager):
    sizes, folder = [], f"/proc/{manager.process.pid}/fd"
    for fd in os.listdir(folder):
        try:
            if "memfd:sluice-weights" in os.readlink(f"{folder}/{fd}"):
                sizes.append(os.stat(f"{folder}/{fd}").st_size)
        except FileNotFoundError:
            pass
    return sizes


def test_replicas_share_one_memory_which_goes_with_the_last(manager):
    manager.up()
    loaded(manager, "load_ms=100", n=3)
    shared = set(memory(manager).values())
    assert len(shared) == 1 and 0 not in shared and manager_memfds(manager) == shared
    uses = {d.device.name: d.planned_bytes for d in manager.rpc.ListDevices(manager.m.ListDevicesRequest()).devices}
    assert uses["cpu:0"] == 1000000  # counted once, not three times
    manager.done(scale(manager, "a", 5))
    os.kill(manager.replicas()[0].pid, signal.SIGKILL)
    manager.wait(lambda: manager.replicas()[0].epoch == 2 and len(ready(manager)) == 5, 8, "the first is back")
    assert set(memory(manager).values()) == shared
    manager.kill()
    manager.up()
    manager.wait(lambda: manager_memfds(manager) == shared, 5, "the memory is taken over")
    manager.done(restart(manager, "r2"))
    assert set(memory(manager).values()) == shared
    manager.done(scale(manager, "a", 1))
    assert manager_memfds(manager) == shared
    manager.done(manager.unload("a"))
    assert manager_memfds(manager) == set()


def test_a_filler_that_dies_half_way_leaves_nothing(manager):
    manager.up()
    manager.script("a", "load_ms=1500")
    manager.register("a")
    operation = manager.load("a", n_replicas=2)
    manager.wait(lambda: any(memfd_sizes(manager)), 5, "half of it is there")
    (first,) = manager.workers()  # the other worker waits for the weights
    (poisoned,) = manager_memfds(manager)
    os.kill(first, signal.SIGKILL)
    manager.done(operation)
    (shared,) = set(memory(manager).values())
    assert shared != poisoned and manager_memfds(manager) == {shared}


def test_a_manager_that_comes_back_while_one_fills_waits_for_it(manager):
    manager.up()
    manager.script("a", "load_ms=700")
    manager.register("a")
    operation = manager.load("a", n_replicas=2)
    manager.wait(lambda: manager.workers(), 5, "the first fills")
    manager.kill()
    manager.up()
    manager.done(operation)
    assert len(set(memory(manager).values())) == 1 and len(manager.workers()) == 2


def test_memory_of_another_packing_is_not_used(manager):
    manager.up()
    loaded(manager, "load_ms=50", n=2)
    (old,) = set(memory(manager).values())
    manager.script("a", "load_ms=51")  # packs in another layout, as another program version would
    manager.done(restart(manager, "r2"))
    new = memory(manager)["r2"]
    assert new not in (0, old) and memory(manager)["r1"] == old
    manager.done(restart(manager, "r1"))  # the manager hands the newer weights to the new process
    assert set(memory(manager).values()) == {new} and manager_memfds(manager) == {new}


def test_workers_that_share_nothing_start_all_the_same(manager):
    manager.up()
    loaded(manager, "load_ms=50 packs_not", n=3)
    assert set(memory(manager).values()) == {0} and len(ready(manager)) == 3


def test_failed_replicas_hold_no_memory(manager):
    manager.up("--crash-limit", "1")
    loaded(manager, "load_ms=50 crash_ms=1000")
    manager.wait(lambda: manager.replicas()[0].state == manager.t.REPLICA_STATE_FAILED, 5, "it has failed")
    manager.wait(lambda: manager_memfds(manager) == set(), 5, "the memory is let go")


# -- standing still, and fencing


def test_stopped_worker_is_marked_then_killed_and_replaced(manager):
    manager.up("--stall-timeout", "600ms")
    loaded(manager, n=2)
    events = Events(manager)
    (one, two) = [r.pid for r in manager.replicas()]
    os.kill(one, signal.SIGSTOP)
    manager.wait(lambda: manager.replicas()[0].stalled, 3, "it is marked")
    os.kill(one, signal.SIGCONT)
    manager.wait(lambda: not manager.replicas()[0].stalled, 3, "it moves again")
    events.wait("replica.moving", replica_id="r1")
    assert sorted(manager.workers()) == sorted([one, two])  # a short stop costs nothing
    os.kill(one, signal.SIGSTOP)
    stopped = time.monotonic()
    manager.wait(lambda: one not in manager.workers(), 5, "it is killed")
    assert time.monotonic() - stopped > 1.1  # the manager waits twice the time-out, and ends the worker no earlier
    manager.wait(lambda: {r.id: r.epoch for r in manager.replicas()} == {"r1": 2, "r2": 1} and len(ready(manager)) == 2, 5, "it is back")
    assert two in manager.workers()
    assert events.wait("replica.died", replica_id="r1").attributes["reason"] == "STALLED"
    events.over = True


def test_worker_whose_work_does_not_move_is_killed_and_others_are_not(manager):
    manager.up("--stall-timeout", "500ms", "--crash-limit", "2")
    loaded(manager, "load_ms=30 queued", model="stuck")
    loaded(manager, "load_ms=30 queued moves", model="busy")
    loaded(manager, "load_ms=30", model="idle")
    manager.script("slow", "load_ms=1800")
    manager.register("slow")
    load = manager.load("slow")  # a loading worker does not count as hung
    manager.wait(lambda: any(r.reason == "CRASH_LOOP" for r in manager.replicas(model="stuck")), 8, "it is given up")
    assert manager.replicas(model="stuck")[0].last_error.reason == "STALLED"
    manager.done(load)
    for model in ("busy", "idle", "slow"):
        (replica,) = manager.replicas(model=model)
        assert replica.epoch == 1 and not replica.stalled and replica.state == manager.t.REPLICA_STATE_READY


def test_a_manager_that_did_not_run_kills_nobody_for_its_own_silence(manager):
    manager.up("--stall-timeout", "400ms", "--connect-timeout", "1s", "--load-timeout", "2s")
    loaded(manager, "load_ms=30 queued moves", n=2)
    manager.script("b", "load_ms=1200")
    manager.register("b")
    load = manager.load("b")
    manager.wait(lambda: len(manager.workers()) == 3, 5, "b loads")
    workers = sorted(manager.workers())
    for everybody in (False, True):
        pids = [manager.process.pid] + (workers if everybody else [])
        stand_still(1.6, *pids)
        manager.done(load)
        keeps(lambda: sorted(manager.workers()) == workers and len(ready(manager)) == 3, 0.6, "all serve on")
        assert {r.epoch for r in manager.replicas()} == {1}


def test_worker_that_never_gets_ready_is_not_left_loading(manager):
    """The manager ends the worker after --load-timeout, tries again and gives up. No replica stays LOADING, and the
    version can be loaded again."""
    manager.up("--load-timeout", "400ms", "--crash-limit", "2")
    manager.script("a", "load_ms=600000")
    manager.register("a")
    failed = manager.end(manager.load("a"))
    assert failed.state == manager.t.OPERATION_STATE_FAILED and names(failed.error.message, "LOAD_TIMEOUT"), failed
    (replica,) = manager.replicas()
    assert (replica.state, replica.reason, replica.epoch) == (manager.t.REPLICA_STATE_FAILED, "CRASH_LOOP", 2)
    assert manager.workers() == []
    version = manager.rpc.GetModel(manager.m.GetModelRequest(model="a")).model.versions[0]
    assert version.state == manager.t.MODEL_VERSION_STATE_FAILED and names(version.last_error.message, "LOAD_TIMEOUT")
    manager.script("a", "load_ms=30")
    manager.done(manager.load("a"))


def test_worker_that_says_failed_and_stays_is_killed_soon(manager):
    manager.up("--load-timeout", "30s")
    manager.script("a", "load_ms=30 fails_and_stays")
    manager.register("a")
    began = time.monotonic()
    assert manager.end(manager.load("a")).state == manager.t.OPERATION_STATE_FAILED
    assert time.monotonic() - began < patience(5) and manager.workers() == []


def test_a_revived_worker_of_an_old_epoch_never_holds_the_slot(manager):
    manager.up("--connect-timeout", "3s")
    loaded(manager)
    (old,) = manager.workers()
    os.kill(old, signal.SIGSTOP)  # stopped, so it cannot see that its manager died
    manager.kill()
    run = manager.state / "run/replica-r1"
    stale = subprocess.Popen([BIN / "fake_worker", "serve", "--socket", run / "stale.sock", "--exit-report", run / "stale.pb",
                              "--replica", "r1", "--epoch", "0", "--model", manager.models / "a"])
    os.kill(stale.pid, signal.SIGSTOP)
    together = set()
    manager.start("--connect-timeout", "3s")
    def listens():
        together.add(len(manager.workers()))
        return (run / "worker.sock").exists()
    until(listens, 15, "the new one listens", 0.005)
    manager.connect()
    manager.wait(lambda: ready(manager) == ["r1"] and manager.replicas()[0].epoch == 2, 20, "a new one serves")
    assert stale.wait(patience(5)) == -signal.SIGKILL
    for pid in (old, stale.pid):  # revived too late
        with pytest.raises(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
            os.kill(pid, 0)
            raise ProcessLookupError if psutil.Process(pid).status() == "zombie" else AssertionError(pid)
    assert len(manager.workers()) == 1 and manager.replicas()[0].pid == manager.workers()[0]


# -- all at once


def check_settled(manager):
    """I2 and I6: every recorded replica runs, no slot has two processes, no deployment has more replicas than desired."""
    manager.wait(lambda: manager.status().n_open_operations == 0, 30, "operations end")  # some operations have just started
    settle(manager)
    final = (manager.t.REPLICA_STATE_READY, manager.t.REPLICA_STATE_FAILED)
    manager.wait(lambda: all(r.state in final for r in manager.replicas()), 10, "everything is settled")
    replicas = manager.replicas()
    assert sorted(r.pid for r in replicas if r.state == manager.t.REPLICA_STATE_READY) == sorted(manager.workers())
    wanted = {}
    for model in manager.rpc.ListModels(manager.m.ListModelsRequest()).models:
        for version in model.versions:
            for d in version.deployments:
                wanted[d.model] = wanted.get(d.model, 0) + d.n_replicas
    for model in {r.model for r in replicas} | set(wanted):
        assert sum(r.model == model for r in replicas) == wanted.get(model, 0), (model, wanted, replicas)


def watch_slots(manager, seconds):
    """I6: never two live processes on one slot."""
    slots = []

    def apart():
        slots.clear()
        for pid in manager.workers():
            try:
                words = open(f"/proc/{pid}/cmdline").read().split("\0")
                if psutil.Process(pid).status() not in ("zombie", "dead"):
                    slots.append(words[words.index("--replica") + 1])
            except (OSError, ValueError, psutil.NoSuchProcess):
                pass
        return len(slots) == len(set(slots))
    keeps(apart, seconds, lambda: slots)


def test_random_changes_by_many_at_once_settle_also_over_kills(manager):
    manager.up("--restart-backoff-initial", "10ms", "--restart-backoff-max", "200ms", "--drain-grace", "50ms", "--crash-limit", "60")
    models = ["a", "b", "c"]
    for model in models:
        manager.script(model, "load_ms=25")
        manager.register(model)
    events = Events(manager)
    over, calm, counts = threading.Event(), threading.Event(), {}

    def change(seed):
        draw = random.Random(seed)
        while not over.is_set():
            kinds = ["load"] * 3 + ["scale", "drain", "restart"] * 3 + ["unload", "cancel", "kill"] * (not calm.is_set())
            model, kind = draw.choice(models), draw.choice(kinds)
            try:
                if kind == "load":
                    manager.load(model, n_replicas=draw.randint(1, 3))
                elif kind == "scale":
                    scale(manager, model, draw.randint(1, 4), grace_ms=20)
                elif kind == "unload":
                    manager.unload(model, grace_ms=20)
                elif kind == "cancel":
                    cancel(manager, draw.choice(manager.rpc.ListOperations(manager.m.ListOperationsRequest(page_size=8)).operations))
                elif kind == "kill":
                    os.kill(draw.choice(manager.workers()), signal.SIGKILL)
                else:
                    replica = draw.choice(manager.replicas()).id
                    (drain if kind == "drain" else restart)(manager, replica, grace_ms=20)
                counts[kind] = counts.get(kind, 0) + 1
            except grpc.RpcError as e:
                assert e.code() in (C.FAILED_PRECONDITION, C.NOT_FOUND, C.UNAVAILABLE, C.CANCELLED, C.RESOURCE_EXHAUSTED), e
            except (IndexError, ProcessLookupError, ValueError):
                pass  # nothing to choose from, or already gone
            time.sleep(draw.random() * 0.08)  # changes must come at random moments relative to each other

    threads = [threading.Thread(target=change, args=(seed,), daemon=True) for seed in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(2):
        watch_slots(manager, 1.5)
        manager.kill()
        manager.up("--restart-backoff-initial", "10ms", "--restart-backoff-max", "200ms", "--drain-grace", "50ms", "--crash-limit", "60")
    for i in range(40):  # the kills end after a few rounds: on a slow disk they would come before any load
        watch_slots(manager, 1)
        if i == 3:
            calm.set()
        if len(counts) == 7 and sum(counts.values()) > 40:
            break
    over.set()
    for thread in threads:
        thread.join(patience(20))
    assert len(counts) >= 5 and sum(counts.values()) > 40, counts
    check_settled(manager)
    for model in models:
        retry_unload = [o for o in [deployed(manager, model)] if o]
        if retry_unload:
            manager.done(manager.unload(model, grace_ms=20))
    manager.wait(lambda: manager.workers() == [] and manager.replicas() == [], 5, "nothing is left")
    manager.wait(lambda: manager_memfds(manager) == set(), 3, "no memory is held")
    manager.wait(lambda: events.next == manager.status().last_event_seq + 1, 5, "all events have come")
    events.over = True


# -- the real programs


def shmem(pid):
    """Returns resident, shared-memory and proportional bytes of a process."""
    status = {line.split(":")[0]: line.split()[1] for line in open(f"/proc/{pid}/status") if ":" in line and line.split()[1:]}
    pss = next(int(line.split()[1]) for line in open(f"/proc/{pid}/smaps_rollup") if line.startswith("Pss:"))
    return {"anon": int(status["RssAnon"]) * 1024, "shmem": int(status["RssShmem"]) * 1024, "pss": pss * 1024}


def real_scale(rpc, m, t, model, n, **kwargs):
    operation = rpc.ScaleModelVersion(m.ScaleModelVersionRequest(model=model, n_replicas=n, **kwargs)).operation
    ended = rpc.WaitOperation(m.WaitOperationRequest(id=operation.id, timeout_ms=60000)).operation
    assert ended.state == t.OPERATION_STATE_DONE, ended
    return ended


def test_streams_live_through_scaling_up_and_down_and_a_restart(fresh):
    sluice, n = load(fresh), int(patience(160))
    rpc, m, t = sluice.manager_stub(), sluice.stubs.manager, sluice.stubs.types
    wanted = undisturbed(sluice, n)
    before = [shmem(p) for p in sluice.children("sluice-worker")]
    streams = [Stream(sluice, r) for r in requests(sluice, n)[:4]]
    wait_tokens(streams, 5)
    real_scale(rpc, m, t, "smol", 3)
    replicas = rpc.ListReplicas(m.ListReplicasRequest()).replicas
    assert len({r.shared_id for r in replicas}) == 1 and replicas[0].shared_id
    after = [shmem(r.pid) for r in replicas]
    weights = replicas[0].shared_bytes
    assert all(a["shmem"] >= weights for a in after)  # each process has mapped the weights ...
    assert sum(a["pss"] for a in after) < 3 * before[0]["pss"] - weights  # ... and they are in memory once
    plan = rpc.ScaleModelVersion(m.ScaleModelVersionRequest(model="smol", n_replicas=5, validate_only=True)).plan
    assert plan.packed_bytes == weights and all(d.weight_bytes == 0 and d.kv_bytes > 0 for d in plan.devices)
    more = [Stream(sluice, r) for r in requests(sluice, n)[:4]]
    wait_tokens(more, 2)
    down = real_scale(rpc, m, t, "smol", 1, grace_ms=200)
    assert len(sluice.children("sluice-worker")) == 1 and len(down.replica_ids) == 2
    (left,) = rpc.ListReplicas(m.ListReplicasRequest()).replicas
    assert any(not s.finished for s in streams + more)  # otherwise the fault disturbed nothing
    operation = rpc.RestartReplica(m.RestartReplicaRequest(replica_id=left.id, grace_ms=100)).operation
    assert rpc.WaitOperation(m.WaitOperationRequest(id=operation.id, timeout_ms=60000)).operation.state == 3
    (again,) = rpc.ListReplicas(m.ListReplicasRequest()).replicas
    assert again.epoch == left.epoch + 1 and again.shared_id == left.shared_id
    for stream in streams + more:
        stream.join(patience(90))
    check_equal(streams, wanted)
    check_equal(more, wanted)
    receipt = json.loads(sluice.cli("unload", "smol", "--json").stdout)
    assert sluice.children("sluice-worker") == [], receipt
