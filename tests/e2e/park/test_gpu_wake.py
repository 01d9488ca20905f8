"""Parked GPU replicas wake only where all of them can serve together, and no wake loses another version's kept weights.
GPUs and workers are fake (test_devices.py), except where a test uses the emulated GPU."""
import os
import resource
import signal
import threading
import time

import pytest

from conftest import alive, names, patience, reason, sanitized
from log_events import PACKED_NOT_TAKEN_OVER, logged
from manager_program import C, fails, manager  # noqa: F401 (fixture)
from test_device_room import G, asked, asked_to_keep, deployment, kept_in, load, machine  # noqa: F401 (fixture)
from test_devices import Card, is_held, is_ready
from test_gpu import ENV, TINY
from test_gpu_park import LIMITS, loaded, manager_of
from test_park import operation, park, wake
from test_park import parked as sleepers


def finished(manager, operation):  # noqa: F811
    """Waits for the end of an operation that waits for a copy or a load. Asserts that the operation is DONE."""
    ended = manager.end(operation, 20000)
    assert ended.state == manager.t.OPERATION_STATE_DONE, ended


def asleep(machine):  # noqa: F811
    """Returns the pids of parked workers."""
    return [r.pid for r in machine.manager.replicas() if r.state == machine.manager.t.REPLICA_STATE_PARKED]


def told(manager, model):  # noqa: F811
    """Returns the states of the version's replicas from the routes of a server."""
    stub = manager.stubs.routing_grpc.RoutingStub(manager.channel)
    watch = stub.WatchRoutes(manager.stubs.routing.WatchRoutesRequest(server_id="test"), timeout=patience(10))
    table = next(iter(watch))
    watch.cancel()
    return [replica.state for route in table.routes if route.model == model for replica in route.replicas]


def answers(calls):
    """Returns the errors of calls that were started together."""
    errors = []
    for call in calls:
        error = call.exception()
        if error:
            errors.append(error)
    return errors


@pytest.mark.parametrize("beside_a_copy", [False, True])
def test_of_two_wakes_that_have_no_room_together_one_is_refused(machine, beside_a_copy):
    m = machine.up().groups(left="cuda:0", right="cuda:1").manager
    for name, n in (("a", 40), ("b", 45)):
        m.done(load(machine, name, "left", f"load_ms=60 gpu={n * G}", n * G))
        m.done(park(m, name))
    m.done(load(machine, "c", "right", f"load_ms=60 gpu={G} keeps_held", G))
    if beside_a_copy:
        park(m, "c")
        asked_to_keep(machine, "c")
    errors = answers([m.rpc.WakeModelVersion.future(m.m.WakeModelVersionRequest(model=name)) for name in "ab"])
    assert [e.code() for e in errors] == [C.RESOURCE_EXHAUSTED], errors
    assert reason(errors[0]) == "DEVICE_MEMORY"
    m.wait(lambda: is_ready(machine)(machine.replica("a")) or is_ready(machine)(machine.replica("b")), 20, "one serves")
    assert machine.device("cuda:0").planned_bytes in (40 * G, 45 * G)
    assert sum(deployment(machine, name).parked for name in "ab") == 1, "the other stays as it was"


def test_of_three_wakes_at_once_none_takes_the_room_that_another_was_found(machine):
    """The wake of 60 GiB goes to the GPU with more free memory, the wake of 20 GiB to the other GPU. The wake of 10 GiB
    has no room. Each wake is placed anew, starting with the last GPU of its version."""
    m = machine.up().groups(both="cuda:0 cuda:1", left="cuda:0", right="cuda:1").manager
    sizes = {"a": 60, "b": 20, "c": 10}
    for name, n in sizes.items():
        m.done(load(machine, name, "both", f"load_ms=60 gpu={n * G}", n * G))
        m.done(park(m, name))
    m.done(load(machine, "f", "left", f"load_ms=60 gpu={20 * G}", 20 * G))
    m.done(load(machine, "g", "right", f"load_ms=60 gpu={60 * G}", 60 * G))
    errors = answers([m.rpc.WakeModelVersion.future(m.m.WakeModelVersionRequest(model=name)) for name in sizes])
    assert [e.code() for e in errors] == [C.RESOURCE_EXHAUSTED], errors
    m.wait(lambda: sum(is_ready(machine)(machine.replica(name)) for name in sizes) == 2, 20, "the others serve")
    assert sum(deployment(machine, name).parked for name in sizes) == 1
    assert not [r for r in m.replicas() if r.state == m.t.REPLICA_STATE_FAILED]


def test_what_could_not_be_woken_after_all_is_not_given_up(fresh, tmp_path, monkeypatch):
    """Neither version knows its size before it loads, so the manager starts both wakes. When memory is free later, the
    refused version wakes without a new read of its file."""
    card = Card(tmp_path, monkeypatch)
    card.always(f"SIMT_DEVICE_BYTES={96 << 20}")
    sizes = ("--kv-tokens", "65536", "--kv-dtype", "f32")
    loaded(fresh, *sizes, memory="80M", env=card.env)
    fresh.cli("register", "other", TINY / "q8_0.gguf", "--version", "1")
    operation(fresh, "park", "tiny")
    fresh.cli("load", "other", *LIMITS, *sizes, "--gpu-memory", "80M")
    operation(fresh, "park", "other")
    assert len(kept_in(manager_of(fresh))) == 2 and len(sleepers(fresh)) == 2
    said = {}
    calls = [threading.Thread(target=lambda name=name: said.update({name: fresh.cli("wake", name, check=False)})) for name in ("tiny", "other")]
    for call in calls:
        call.start()
    for call in calls:
        call.join()
    woken = [name for name, result in said.items() if result.returncode == 0]
    lost = ({"tiny", "other"} - set(woken)).pop()
    assert len(woken) == 1 and names(said[lost].stderr, "DEVICE_MEMORY"), said
    assert len(kept_in(manager_of(fresh))) == 1, "its weights are still kept"
    fresh.cli("unload", woken[0])
    if lost not in [r["model"] for r in sleepers(fresh)]:  # its worker started before the other version took the memory
        fresh.cli("restart", next(r["id"] for r in fresh.replicas() if r["model"] == lost and r["state"] == "REPLICA_STATE_FAILED"))
    else:
        fresh.cli("wake", lost)
    assert [r["state"] for r in fresh.replicas() if r["model"] == lost] == ["REPLICA_STATE_READY"]
    assert not kept_in(manager_of(fresh)), "who serves has them on the GPU"


def test_a_request_wakes_the_groups_that_have_room(machine):
    m = machine.up().groups(left="cuda:0", right="cuda:1").manager
    m.script("a", f"load_ms=60 gpu={40 * G}")
    m.register("a", version="1")
    config = m.t.ModelConfig(gpu_memory_bytes=40 * G, wake_on_demand=True)
    for group in ("left", "right"):
        m.done(m.load("a", device_group=group, config=config))
        m.done(m.rpc.ParkModelVersion(m.m.ParkModelVersionRequest(model="a", version="1", device_group=group)).operation)
    m.done(load(machine, "b", "left", f"load_ms=60 gpu={45 * G}", 45 * G))  # the manager checks this version first
    demand = m.stubs.routing.WakeVersionRequest(model="a", version="1")
    routing = m.stubs.routing_grpc.RoutingStub(m.channel)
    assert routing.WakeVersion(demand).n_woken == 1
    m.wait(lambda: any(r.device_group == "right" and r.state == m.t.REPLICA_STATE_READY for r in m.replicas()), 10, "it serves")
    assert machine.device("cuda:0").planned_bytes == 45 * G and machine.device("cuda:1").planned_bytes == 40 * G
    assert {r.device_group for r in m.replicas() if r.state == m.t.REPLICA_STATE_PARKED} == {"left"}
    # the parked replicas have no room, though another replica serves
    fails(C.RESOURCE_EXHAUSTED, routing.WakeVersion, demand, why="DEVICE_MEMORY")


def test_who_asks_for_what_no_request_wakes_is_told_why(machine):
    """Symptom: the answer said only that no replica was woken, so servers waited for a wake without end."""
    m = machine.up().groups(left="cuda:0", right="cuda:1").manager
    routing = m.stubs.routing_grpc.RoutingStub(m.channel)
    m.done(load(machine, "a", "left", f"load_ms=60 gpu={G}"))
    m.done(park(m))
    fails(C.FAILED_PRECONDITION, routing.WakeVersion, m.stubs.routing.WakeVersionRequest(model="a", version="1"), why="PARKED")
    m.script("b", f"load_ms=60 gpu={G} keeps_held")
    m.register("b", version="1")
    demand = m.stubs.routing.WakeVersionRequest(model="b", version="1")
    m.done(m.load("b", device_group="right", config=m.t.ModelConfig(wake_on_demand=True)))
    assert routing.WakeVersion(demand).n_woken == 0, "it serves"
    parking = park(m, "b")
    fails(C.FAILED_PRECONDITION, routing.WakeVersion, demand, why="OPERATION_IN_PROGRESS")
    m.script("b", f"load_ms=60 gpu={G}")
    finished(m, parking)
    assert routing.WakeVersion(demand).n_woken == 1


def test_what_is_pending_for_good_does_not_keep_who_asks_from_an_answer(machine):
    """Symptom: the route listed the replica as starting, and servers waited without end."""
    m = machine.up().groups(left="cuda:0", right="cuda:1").manager
    routing = m.stubs.routing_grpc.RoutingStub(m.channel)
    m.done(load(machine, "a", "left", f"load_ms=60 gpu={G}"))
    m.done(park(m))
    m.done(m.load("a", device_group="right", config=m.t.ModelConfig(wake_on_demand=True)))
    demand = m.stubs.routing.WakeVersionRequest(model="a", version="1")
    assert routing.WakeVersion(demand).n_woken == 0, "it serves"
    machine.xid(1, 48)
    machine.wait_state("cuda:1", "quarantined")
    m.wait(lambda: sorted(r.state for r in m.replicas()) == sorted([m.t.REPLICA_STATE_PARKED, m.t.REPLICA_STATE_PENDING]), 20, "the other waits for its GPU")
    fails(C.FAILED_PRECONDITION, routing.WakeVersion, demand, why="PARKED")


def test_a_device_that_is_quarantined_wakes_nobody_and_costs_nothing_that_is_kept(machine):
    m = machine.up().groups(left="cuda:0").manager
    m.done(load(machine, "a", "left", f"load_ms=60 gpu={5 * G}"))
    m.done(park(m))
    keeper = machine.replica("a").pid
    assert not machine.device("cuda:0").replica_ids, "it is on no GPU"
    machine.xid(0, 48)
    machine.wait_state("cuda:0", "quarantined")
    fails(C.FAILED_PRECONDITION, wake, m, why="DEVICE_QUARANTINED")
    assert asleep(machine) == [keeper] and deployment(machine).parked
    os.kill(keeper, signal.SIGKILL)  # the manager starts another parked worker, which opens no device either
    machine.wait_replica("a", lambda r: r.state == m.t.REPLICA_STATE_PARKED and r.pid not in (0, keeper))
    m.kill()
    m.up(env=machine.env)
    assert len(asleep(machine)) == 1
    m.wait(lambda: kept_in(m.process.pid), 5, "the manager has them again")


def test_room_on_a_quarantined_gpu_is_none(machine):
    m = machine.up().groups(both="cuda:0 cuda:1", right="cuda:1").manager
    m.done(load(machine, "a", "both", f"load_ms=60 gpu={40 * G}", 40 * G))
    m.done(park(m))
    m.done(load(machine, "b", "right", f"load_ms=60 gpu={45 * G}", 45 * G))
    machine.xid(0, 48)
    machine.wait_state("cuda:0", "quarantined")
    fails(C.RESOURCE_EXHAUSTED, wake, m, why="DEVICE_MEMORY")
    assert machine.device("cuda:1").planned_bytes == 45 * G and len(asleep(machine)) == 1


def test_a_park_does_not_wait_for_who_cannot_start_on_another_gpu(machine):
    m = machine.up().groups(left="cuda:0", right="cuda:1").manager
    m.done(load(machine, "a", "left", f"load_ms=60 gpu={5 * G} keeps_held"))
    m.done(load(machine, "b", "right", f"load_ms=60 gpu={5 * G}"))
    machine.xid(1, 48)
    machine.wait_replica("b", is_held(machine))
    running = park(m)
    asked_to_keep(machine, "a")
    os.kill(machine.replica("a").pid, signal.SIGKILL)  # the worker loads again, and is parked after that
    m.script("a", f"load_ms=60 gpu={5 * G}")
    finished(m, running)
    assert len(asleep(machine)) == 1


def test_a_copy_that_was_let_go_of_is_taken_over_when_it_is_told_of_again(machine):
    m = machine.up().groups(left="cuda:0").manager
    m.done(load(machine, "a", "left", f"load_ms=60 gpu={5 * G}"))
    m.done(park(m))
    keeper = machine.replica("a").pid
    m.script("a", f"load_ms=60 gpu={5 * G} keeps_held")
    m.kill()
    # as after a restart of the machine: the worker loads, and copies its weights without an operation
    os.kill(keeper, signal.SIGKILL)
    n_asked = len(asked(machine, "a"))
    m.up(env=machine.env)
    serving = machine.wait_replica("a", lambda r: is_ready(machine)(r) and r.pid != keeper)
    asked_to_keep(machine, "a", n_asked + 1)
    m.done(wake(m))
    m.script("a", f"load_ms=60 gpu={5 * G} keeps_for=3000")
    m.wait(lambda: kept_in(serving.pid), 20, "it has the copy, which nobody needs")
    m.wait(lambda: not kept_in(serving.pid), 20, "it has let go of the copy")
    finished(m, park(m))
    assert len(asleep(machine)) == 1


def test_a_copy_that_could_not_be_taken_over_once_is_the_next_time(machine):
    m = machine.up().groups(left="cuda:0").manager
    m.done(load(machine, "a", "left", f"load_ms=60 gpu={5 * G} keeps_held"))
    pid = m.process.pid
    running = park(m)
    asked_to_keep(machine, "a")
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (64, before[1]))  # the descriptors of the copies have higher numbers
    m.script("a", f"load_ms=60 gpu={5 * G}")
    m.wait(lambda: logged((m.folder / "log").read_text(), PACKED_NOT_TAKEN_OVER), 10, "it cannot")
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    finished(m, running)
    assert len(asleep(machine)) == 1


def test_a_copy_holds_up_nobody_else(machine):
    m = machine.up().groups(left="cuda:0").manager
    m.done(load(machine, "a", "left", f"load_ms=60 gpu={5 * G} keeps_held"))
    m.script("b")
    m.register("b")
    m.done(m.load("b"))
    running = park(m)
    asked_to_keep(machine, "a")
    died = machine.replica("b").pid
    os.kill(died, signal.SIGKILL)
    m.wait(lambda: is_ready(machine)(machine.replica("b")) and machine.replica("b").pid != died, patience(4), "another serves again")
    assert alive(machine.replica("a").pid) and not asleep(machine)
    m.script("a", f"load_ms=60 gpu={5 * G}")
    finished(m, running)


@pytest.mark.skipif(sanitized(), reason="sanitizers have memory of their own")
def test_layers_on_the_cpu_are_counted_once_in_a_budget(fresh):
    """The budget counts the image of the GPU weights once. The weights of the layers without room on the GPU count
    beside the image."""
    fresh.start(env={**ENV, "SLUICE_MEMORY_BUDGET": "300M"})
    fresh.cli("register", "smol", os.environ["SLUICE_TEST_MODEL"], "--version", "1")
    fresh.cli("load", "smol", "--devices", "cuda:0", "--max-concurrent", "1", "--gpu-memory", "128M", "--gpu-layers", "1", "--kv-tokens", "512",
              "--context-length", "512")
    operation(fresh, "park", "smol")
    keeper = sleepers(fresh)[0]["pid"]
    operation(fresh, "wake", "smol")
    assert [(r["state"], r["pid"]) for r in fresh.replicas()] == [("REPLICA_STATE_READY", keeper)], "in place"


def test_replicas_that_have_stopped_need_no_room(machine):
    m = machine.up().groups(left="cuda:0").manager
    for _ in range(2):
        m.done(load(machine, "a", "left", f"load_ms=60 gpu={50 * G}"))
        m.done(m.unload("a"))
    m.done(m.load("a", device_group="left"))
    m.done(park(m))
    m.done(wake(m))


@pytest.mark.parametrize("killed", ["the manager", "all"])
def test_what_it_took_is_known_to_a_manager_that_is_started_after_it(machine, killed):
    """The load names no gpu_memory, so only the report of the serving worker gives the size."""
    m = machine.up().groups(left="cuda:0").manager
    m.done(load(machine, "a", "left", f"load_ms=60 gpu={40 * G}"))
    assert machine.replica("a").served.gpu_bytes == 40 * G and machine.replica("a").served.gpu == "cuda:0"
    m.done(park(m))
    m.done(load(machine, "b", "left", f"load_ms=60 gpu={45 * G}", 45 * G))
    before = asleep(machine)
    gone = m.workers() if killed == "all" else []
    m.kill()
    for pid in gone:
        os.kill(pid, signal.SIGKILL)
    m.up(env=machine.env)
    machine.wait_replica("b", lambda r: is_ready(machine)(r) and r.pid not in gone)
    m.wait(lambda: not set(asleep(machine)) & set(gone), 10, "its end is recorded")
    fails(C.RESOURCE_EXHAUSTED, wake, m, why="DEVICE_MEMORY")
    assert asleep(machine) == ([] if killed == "all" else before), "it takes nothing from who serves"
    assert deployment(machine).parked
    m.wait(lambda: machine.device("cuda:0").planned_bytes == 45 * G, 10, "who serves has said what it takes")
    m.done(m.unload("b"))
    m.wait(lambda: asleep(machine), 10, "there is room to load it, and it is kept again")
    m.done(wake(m))


def test_a_park_whose_worker_died_without_room_to_load_it_again_ends(machine):
    m = machine.up("--restart-backoff-initial", "8s", "--restart-backoff-max", "8s").groups(left="cuda:0").manager
    m.done(load(machine, "a", "left", f"load_ms=60 gpu={40 * G} keeps_held"))
    running = park(m)
    asked_to_keep(machine, "a")
    os.kill(machine.replica("a").pid, signal.SIGKILL)
    m.done(load(machine, "b", "left", f"load_ms=60 gpu={45 * G}", 45 * G))
    ended = m.end(running, 20000)
    assert ended.state == m.t.OPERATION_STATE_FAILED and ended.error.reason == "NOTHING_KEPT", f"{ended}\n{m.text()}"
    assert names(ended.error.message, "a/1"), ended
    assert deployment(machine).parked and not asleep(machine)
    assert told(m, "a") == [m.t.REPLICA_STATE_PARKED], "servers let no request wait for it as for one that comes up"
    fails(C.RESOURCE_EXHAUSTED, wake, m, why="DEVICE_MEMORY")
    m.script("a", f"load_ms=60 gpu={40 * G}")
    m.done(m.unload("b"))
    m.wait(lambda: asleep(machine), 30, "it is loaded, and kept")


def test_a_request_that_cannot_wake_its_version_is_told_why(fresh, tmp_path, monkeypatch):
    """Symptom: the request waited for its deadline, or for ever."""
    card = Card(tmp_path, monkeypatch)
    card.always(f"SIMT_DEVICE_BYTES={96 << 20}")
    sizes = ("--kv-tokens", "65536", "--kv-dtype", "f32", "--gpu-memory", "80M")
    fresh.start(env=card.env)
    for name in ("tiny", "other"):
        fresh.cli("register", name, TINY / "q8_0.gguf", "--version", "1")
    fresh.cli("load", "tiny", *LIMITS, *sizes, "--wake-on-demand")
    operation(fresh, "park", "tiny")
    fresh.cli("load", "other", *LIMITS, *sizes)
    since = time.monotonic()
    refused = fresh.run("tiny", "ab", "-n", "1", "--raw", check=False)
    assert refused.returncode == 1 and names(refused.stderr, "DEVICE_MEMORY", '"tiny"', '"1"', "tiny/1"), refused
    assert 3 < time.monotonic() - since < patience(30), "as long as for a replica that comes up"
    assert [r["model"] for r in sleepers(fresh)] == ["tiny"]
    fresh.cli("unload", "other")
    assert fresh.run("tiny", "ab", "-n", "1", "--raw").returncode == 0


def test_a_wake_counts_where_it_found_room(machine):
    """The replica served on one GPU of its group and will wake on the other GPU. The wake waits for its place in the
    order of wakes. No other wake gets the memory planned for it there."""
    m = machine.up().groups(both="cuda:0 cuda:1", left="cuda:0", right="cuda:1").manager
    m.done(load(machine, "a", "both", f"load_ms=60 gpu={40 * G}"))
    assert machine.replica("a").served.gpu == "cuda:0"
    m.done(park(m, "a"))
    m.done(load(machine, "f", "left", f"load_ms=60 gpu={45 * G}", 45 * G))
    m.done(load(machine, "b", "right", f"load_ms=60 gpu={45 * G}", 45 * G))
    m.done(park(m, "b"))
    slow = load(machine, "c", "right", f"load_ms=3000 gpu={G} taking_ms=2500", G)
    machine.wait_replica("c", lambda r: r.pid)
    woken = wake(m, "a")
    m.wait(lambda: machine.device("cuda:1").planned_bytes > 40 * G, 20, "it is to go to the other GPU")
    fails(C.RESOURCE_EXHAUSTED, wake, m, "b", why="DEVICE_MEMORY")
    finished(m, slow)
    finished(m, woken)
    assert machine.device("cuda:0").planned_bytes == 45 * G and machine.device("cuda:1").planned_bytes == 41 * G
    assert deployment(machine, "b").parked
