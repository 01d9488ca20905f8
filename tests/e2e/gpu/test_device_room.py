"""The manager plans GPU memory by the claims of replicas, and not by the free memory of the moment. Workers start,
die and come back, and foreign processes hold memory. GPUs and workers are fake (test_devices.py)."""
import json
import os
import signal
import time
from pathlib import Path

import pytest

from conftest import alive, keeps, launch_record, names, patience
from manager_program import C, fails, manager, retry, settle  # noqa: F401 (fixture)
from test_devices import GPU, Machine, is_ready
from test_park import park, wake

G = 1_000_000_000


@pytest.fixture
def machine(manager):  # noqa: F811
    return Machine(manager)


def told(machine, name):
    """The GPU settings of a model's worker: device, bytes promised to other workers, bytes held by other workers."""
    record = launch_record(machine.replica(name).pid, machine.manager.stubs)
    return record.devices, record.gpu_promised, record.gpu_held


def load(machine, name, group, text, budget=None):
    machine.manager.script(name, text)
    machine.manager.register(name)
    config = machine.manager.m.LoadModelVersionRequest().config
    if budget:
        config.gpu_memory_bytes = budget
    return machine.manager.load(name, device_group=group, config=config)


def test_second_load_waits_until_the_first_has_taken_its_memory_and_is_told_of_it(machine):
    """Both workers got the same figure of free memory, before either had allocated."""
    machine.up().groups(left="cuda:0")
    first = load(machine, "a", "left", f"load_ms=4000 gpu={20 * G} taking_ms=1500")
    second = load(machine, "b", "left", f"load_ms=60 gpu={5 * G}")
    machine.wait_replica("a", lambda r: r.pid)
    since = time.monotonic()
    machine.wait_replica("b", lambda r: r.pid)
    assert time.monotonic() - since > 0.8, "the second was started while the first had yet to take its memory"
    assert told(machine, "a") == ("cuda:0", 0, 0)
    assert told(machine, "b") == ("cuda:0", 20 * G, 20 * G)
    machine.manager.done(second)
    assert not is_ready(machine)(machine.replica("a")), "nothing more was waited for"
    machine.manager.done(first)
    assert machine.device("cuda:0").planned_bytes == 25 * G


def test_replica_that_died_keeps_what_it_was_promised(machine):
    machine.up("--restart-backoff-initial", "60s", "--restart-backoff-max", "60s").groups(left="cuda:0")
    machine.manager.done(load(machine, "a", "left", f"load_ms=60 gpu={20 * G}"))
    machine.manager.done(load(machine, "b", "left", f"load_ms=60 gpu={3 * G}"))
    os.kill(machine.replica("a").pid, signal.SIGKILL)
    machine.wait_replica("a", lambda r: r.state == machine.manager.t.REPLICA_STATE_PENDING)
    machine.manager.done(load(machine, "c", "left", "load_ms=60"))
    assert told(machine, "c") == ("cuda:0", 23 * G, 3 * G)
    machine.manager.done(machine.manager.unload("a"))
    machine.manager.done(load(machine, "d", "left", "load_ms=60"))
    assert told(machine, "d") == ("cuda:0", 3 * G + 1_000_000, 3 * G + 1_000_000), "of an unloaded one nothing is promised"


def test_replica_goes_where_there_is_room(machine):
    """cuda:0 comes first, but a foreign process leaves it too little room. Later each GPU has a replica, and only
    cuda:1 has enough room."""
    machine.lines[0] = "gpu 0 " + GPU.format(i=0).replace("used=30000000000", "used=75000000000")
    machine.write()
    machine.up().groups(both="cuda:0 cuda:1")
    machine.manager.done(load(machine, "a", "both", f"load_ms=60 gpu={40 * G}", 40 * G))
    assert told(machine, "a") == ("cuda:1", 0, 0)
    machine.manager.done(load(machine, "b", "both", f"load_ms=60 gpu={G}", G))
    assert told(machine, "b") == ("cuda:0", 0, 0), "fewer processes, and it fits"
    machine.manager.done(load(machine, "c", "both", f"load_ms=60 gpu={6 * G}", 6 * G))
    assert told(machine, "c") == ("cuda:1", 40 * G, 40 * G), "only there it fits"


def test_replica_goes_to_a_gpu_that_is_there(machine):
    """A group outlives its GPUs. An absent GPU has no processes and no memory limit, so placement must skip such a
    GPU."""
    machine.up().groups(both="cuda:0 cuda:1")
    machine.manager.done(load(machine, "a", "both", "load_ms=60"))
    first, _, _ = told(machine, "a")
    assert first == "cuda:0"
    machine.manager.kill()
    machine.lines = machine.lines[:1]
    machine.write()
    machine.env["SLUICE_FAKE_GPUS"] = "1"
    machine.up()
    machine.manager.wait(lambda: "cuda:1" not in machine.devices(), 10, "the devices have been looked at")
    machine.manager.done(load(machine, "b", "both", "load_ms=60"))
    assert told(machine, "b")[0] == "cuda:0"
    assert {name: list(d.replica_ids) for name, d in machine.devices().items() if name.startswith("cuda")} == {
        "cuda:0": [machine.replica("a").id, machine.replica("b").id]}


def test_devices_that_are_named_are_those_that_are_taken(machine):
    machine.up().groups(**{"cuda-0": "cuda:1"})
    machine.manager.script("a", "load_ms=60")
    machine.manager.register("a")
    refused = machine.cli("load", "a", "--devices", "cuda:0")
    assert refused.returncode == 1 and names(refused.stderr, "DEVICE_GROUP_DIFFERS", "cuda-0", "cuda:1"), refused
    assert not machine.manager.replicas()
    assert machine.cli("load", "a", "--devices", "cuda:0,1").returncode == 0
    assert machine.replica("a").device_group == "cuda-0.1"
    assert machine.cli("load", "a", "--devices", "cuda:0,1").returncode == 0, "the group that there is"
    for text in ("cuda:0;x", " cuda:0"):
        bad = machine.cli("load", "a", "--devices", text)
        assert bad.returncode == 1 and names(bad.stderr, "--devices"), bad.stderr


def test_a_plan_leaves_no_device_group(machine):
    machine.up()
    machine.manager.script("a", "load_ms=60")
    machine.manager.register("a")
    before = machine.cli("groups", "list", "--json").stdout
    machine.cli("load", "a", "--devices", "cuda:1", "--validate-only")
    assert machine.events("device_group.created")[-1].device_group == "cuda-1", "it was there for the plan"
    assert machine.cli("groups", "list", "--json").stdout == before


def test_memory_of_both_is_shown(machine):
    """`ps` and the receipt of an unload showed the process's memory as memory of the GPU."""
    machine.up().groups(left="cuda:0")
    machine.manager.done(load(machine, "a", "left", f"load_ms=60 gpu={20 << 30}"))
    header, row = machine.cli("ps").stdout.splitlines()
    at = header.index("GPU")
    assert row[at:].startswith("20.0 GiB"), row
    (replica,) = json.loads(machine.cli("ps", "--json").stdout)["replicas"]
    assert replica["gpu_bytes"] == 20 << 30 and 0 < replica["resident_bytes"] < 1 << 30, replica
    pid = machine.replica("a").pid
    shown = machine.cli("unload", "a")
    assert shown.returncode == 0 and not alive(pid), shown
    assert names(shown.stdout, "cuda:0", "20.0 GiB", "0 B", "cpu"), shown.stdout
    operations = machine.manager.rpc.ListOperations(machine.manager.m.ListOperationsRequest()).operations
    (unload,) = [o for o in operations if o.kind == machine.manager.t.OPERATION_KIND_UNLOAD]
    memory = {m.device: m for m in unload.result.memory}
    assert (memory["cuda:0"].total_bytes, memory["cuda:0"].free_bytes) == (80 * G, 50 * G), memory


def test_an_unload_has_failed_where_the_driver_still_counts_memory_for_the_process(machine):
    """For the GPU, only NVML's figure for the worker's own process counts. Other processes may allocate and free at
    will."""
    machine.up().groups(left="cuda:0")
    m = machine.manager
    m.done(load(machine, "a", "left", f"load_ms=60 gpu={20 * G}"))
    pid = machine.replica("a").pid
    machine.lines += [f"process 0 {pid} {20 * G}", f"process 0 1 {3 * G}"]
    machine.told()
    o = m.end(m.unload("a"))
    assert o.state == m.t.OPERATION_STATE_FAILED and o.error.reason == "MEMORY_NOT_RELEASED", o
    assert names(o.error.message, "cuda:0", 20 * G, 0, 1 << 20), o.error
    assert not m.replicas() and not m.workers()
    machine.lines = [line for line in machine.lines if not line.startswith(f"process 0 {pid}")]
    machine.write()
    m.done(m.load("a", device_group="left"))
    machine.lines.append(f"process 0 {machine.replica('a').pid} {20 * G}")
    machine.told()
    operation = m.unload("a")
    m.wait(lambda: not m.workers(), 10, "the worker has ended")
    machine.lines.pop()
    machine.write()
    o = m.done(operation)
    assert {r.device: r.after_bytes for r in o.result.memory}["cuda:0"] == 0


def test_scaling_down_has_failed_where_the_driver_still_counts_memory_for_the_process(machine):
    machine.up().groups(left="cuda:0")
    m = machine.manager
    m.done(load(machine, "a", "left", f"load_ms=60 gpu={20 * G}"))
    m.done(m.rpc.ScaleModelVersion(m.m.ScaleModelVersionRequest(model="a", n_replicas=2)).operation)
    for r in m.replicas():
        machine.lines.append(f"process 0 {r.pid} {20 * G}")
    machine.told()
    o = m.end(m.rpc.ScaleModelVersion(m.m.ScaleModelVersionRequest(model="a", n_replicas=1)).operation)
    assert o.state == m.t.OPERATION_STATE_FAILED and o.error.reason == "MEMORY_NOT_RELEASED" and o.stage == "stop", o
    assert names(o.error.message, "cuda:0", 40 * G, 20 * G), o.error
    assert len(m.replicas()) == len(m.workers()) == 1
    version = m.rpc.GetModel(m.m.GetModelRequest(model="a")).model.versions[0]
    assert not version.HasField("last_error"), version  # that field is for failed loads
    (stays,) = m.replicas()
    m.done(m.rpc.ScaleModelVersion(m.m.ScaleModelVersionRequest(model="a", n_replicas=2)).operation)
    o = m.done(m.rpc.ScaleModelVersion(m.m.ScaleModelVersionRequest(model="a", n_replicas=1)).operation)  # the memory of the other replica does not count
    assert {r.device: (r.after_bytes, r.expected_bytes) for r in o.result.memory}["cuda:0"] == (20 * G, 20 * G), o.result


# -- parking: the weights go to host memory, and the GPU becomes free for other replicas


def asked(machine, model):
    """The replicas of a model that received a park, in order (tests/support/fake/fake_worker.c)."""
    path = machine.manager.models / f"{model}.asked"
    return path.read_text().split() if path.exists() else []


def asked_to_keep(machine, model, n=1):
    machine.manager.wait(lambda: len(asked(machine, model)) >= n, 20, f"{model} is asked to keep its weights")


def parked(machine):
    return lambda replica: replica.state == machine.manager.t.REPLICA_STATE_PARKED


def deployment(machine, model="a"):
    (version,) = machine.manager.rpc.GetModel(machine.manager.m.GetModelRequest(model=model)).model.versions
    return version.deployments[0]


def kept_in(pid):
    """Open file descriptors of a process for packed weights."""
    return [fd.name for fd in Path(f"/proc/{pid}/fd").iterdir() if fd.is_symlink() and "sluice-weights" in os.readlink(fd)]


def refused_park(machine, model="a"):
    """The error of a park that fails. The operation expects no memory back."""
    o = machine.manager.end(park(machine.manager, model))
    assert o.state == machine.manager.t.OPERATION_STATE_FAILED and o.error.reason == "HOST_MEMORY" and o.stage == "drain", o
    assert not o.result.HasField("unreleased") and not machine.events("memory.not_released"), o
    return o.error.message


def test_a_parked_version_leaves_its_gpu_to_another_and_comes_back_in_place(machine):
    m = machine.up().groups(left="cuda:0").manager
    m.done(load(machine, "a", "left", f"load_ms=60 gpu={40 * G}", 40 * G))
    serving = machine.replica("a")
    assert not kept_in(serving.pid) and not kept_in(m.process.pid), "what lies on a GPU is nowhere else"
    o = m.done(park(m))
    assert {r.device: (r.before_bytes, r.after_bytes, r.expected_bytes) for r in o.result.memory}["cuda:0"] == (40 * G, 0, 0), o.result
    keeper = machine.replica("a")
    assert parked(machine)(keeper) and keeper.id == serving.id and keeper.pid != serving.pid and not alive(serving.pid)
    assert keeper.shared_id and len(kept_in(keeper.pid)) == len(kept_in(m.process.pid)) == 1 and m.workers() == [keeper.pid]
    assert machine.device("cuda:0").planned_bytes == 0

    m.done(load(machine, "b", "left", f"load_ms=60 gpu={45 * G}", 45 * G))
    assert told(machine, "b") == ("cuda:0", 0, 0), "nothing of it is promised to the one that is parked"
    said = fails(C.RESOURCE_EXHAUSTED, wake, m, why="DEVICE_MEMORY")
    assert names(said, "a/1", "37.3 GiB", "cuda:0", "32.6 GiB"), said
    settle(m)
    assert parked(machine)(machine.replica("a")) and machine.replica("a").pid == keeper.pid and deployment(machine).parked
    m.done(park(m, "b"))
    assert machine.device("cuda:0").planned_bytes == 0 and len(kept_in(m.process.pid)) == 2
    m.done(wake(m))
    woken = machine.replica("a")
    assert is_ready(machine)(woken) and (woken.pid, woken.epoch, woken.n_restarts) == (keeper.pid, keeper.epoch, 0)
    assert machine.device("cuda:0").planned_bytes == 40 * G and [r.device for r in woken.memory] == ["cuda:0"]
    m.wait(lambda: len(kept_in(m.process.pid)) == 1 and not kept_in(woken.pid), 5, "what is on the GPU again is let go of")
    fails(C.RESOURCE_EXHAUSTED, wake, m, "b", why="DEVICE_MEMORY")
    m.done(m.unload("a"))
    m.done(wake(m, "b"))


@pytest.mark.parametrize("budget", [40 * G, None])
def test_it_is_woken_on_the_gpu_that_has_room_by_then(machine, budget):
    """A parked worker has no GPU open, so the GPU of its earlier service does not matter. Without a budget in the
    load, the memory of that service is what the wake needs."""
    m = machine.up().groups(both="cuda:0 cuda:1", left="cuda:0", right="cuda:1").manager
    m.done(load(machine, "a", "both", f"load_ms=60 gpu={40 * G}", budget))
    assert told(machine, "a")[0] == "cuda:0"
    m.done(park(m))
    keeper = machine.replica("a")
    m.done(load(machine, "b", "left", f"load_ms=60 gpu={45 * G}", 45 * G))
    for name in ("c", "d"):  # more processes, and more room
        m.done(load(machine, name, "right", f"load_ms=60 gpu={G}", G))
    m.done(wake(m))
    woken = machine.replica("a")
    assert woken.pid == keeper.pid and [r.device for r in woken.memory] == ["cuda:1"], woken
    assert {name: machine.device(name).planned_bytes for name in ("cuda:0", "cuda:1")} == {"cuda:0": 45 * G, "cuda:1": 42 * G}
    assert woken.id in machine.device("cuda:1").replica_ids and woken.id not in machine.device("cuda:0").replica_ids


def test_replicas_are_kept_once_and_come_back_one_after_the_other(machine):
    m = machine.up().groups(both="cuda:0 cuda:1").manager
    machine.manager.script("a", f"load_ms=60 gpu={40 * G} keeps_slow=300")
    m.register("a")
    m.done(m.load("a", device_group="both", n_replicas=2))
    m.done(park(m))
    assert len({r.shared_id for r in m.replicas()}) == 1 and len(kept_in(m.process.pid)) == 1
    keepers = {r.id: r.pid for r in m.replicas()}
    m.done(wake(m))
    assert {r.id: r.pid for r in m.replicas()} == keepers and sorted(r.memory[0].device for r in m.replicas()) == ["cuda:0", "cuda:1"]


def test_one_whose_weights_cannot_be_kept_serves_on_and_is_parked_once_they_can(machine):
    m = machine.up().groups(left="cuda:0").manager
    m.done(load(machine, "a", "left", f"load_ms=60 gpu={5 * G} keeps_not"))
    serving = machine.replica("a")
    for _ in range(2):
        assert names(refused_park(machine), 5000000)
        now = machine.replica("a")
        assert is_ready(machine)(now) and (now.pid, now.epoch) == (serving.pid, serving.epoch) and not deployment(machine).parked
    (version,) = m.rpc.GetModel(m.m.GetModelRequest(model="a")).model.versions
    assert not version.HasField("last_error"), version  # that field is for failed loads
    m.done(m.rpc.ScaleModelVersion(m.m.ScaleModelVersionRequest(model="a", n_replicas=1)).operation)  # other commands are not refused
    assert not machine.events("replica.draining"), "no request was turned away"
    m.script("a", f"load_ms=60 gpu={5 * G}")
    m.done(park(m))
    assert parked(machine)(machine.replica("a")) and machine.device("cuda:0").planned_bytes == 0


def test_where_one_replica_cannot_keep_them_another_does(machine):
    """The same holds while the first replica takes long to end. Its drain continues, and the operation does not fail
    because of it."""
    m = machine.up("--drain-grace", "20s").groups(both="cuda:0 cuda:1").manager
    m.script("a", "load_ms=60 keeps_slow=1000")
    m.register("a")
    m.done(m.load("a", device_group="both", n_replicas=2))
    first, second = sorted(m.replicas(), key=lambda r: int(r.id[1:]))
    m.script("a", f"load_ms=60 keeps_slow=1000 keeps_not={first.id}")
    operation = park(m)
    asked_to_keep(machine, "a", 2)  # the other replica received the park too
    os.kill(first.pid, signal.SIGSTOP)
    try:
        m.wait(lambda: any(map(parked(machine), m.replicas())), 8, "the other is parked")
        keeps(lambda: m.rpc.GetOperation(m.m.GetOperationRequest(id=operation.id)).operation.state == m.t.OPERATION_STATE_RUNNING, 2.5,
              "what is to come back is waited for for two seconds")
        open_yet = m.rpc.GetOperation(m.m.GetOperationRequest(id=operation.id)).operation
    finally:
        os.kill(first.pid, signal.SIGCONT)
    assert open_yet.state == m.t.OPERATION_STATE_RUNNING, open_yet
    m.done(operation)
    assert all(map(parked(machine), m.replicas())) and len({r.shared_id for r in m.replicas()}) == 1


def test_a_manager_that_dies_as_weights_are_copied_is_followed_by_one_that_parks(machine):
    m = machine.up().groups(left="cuda:0").manager
    m.done(load(machine, "a", "left", f"load_ms=60 gpu={5 * G} keeps_held"))
    serving = machine.replica("a")
    operation = park(m, request_id="once")
    asked_to_keep(machine, "a")
    m.kill()
    assert alive(serving.pid)
    m.up(env=machine.env)
    assert machine.replica("a").pid == serving.pid and is_ready(machine)(machine.replica("a")), "it serves meanwhile"
    assert park(m, request_id="once").id == operation.id
    m.script("a", f"load_ms=60 gpu={5 * G}")
    m.done(operation)
    keeper = machine.replica("a")
    assert parked(machine)(keeper) and keeper.epoch == serving.epoch + 1 and m.workers() == [keeper.pid]


@pytest.mark.parametrize("point", ["park.before_commit", "drain.before_record", "drain.after_record", "start.before_record", "start.after_record",
                                   "spawn.after", "state.after_record", "finish.before_record"])
def test_killed_in_the_middle_of_parking_on_gpus(machine, point):
    m = machine.up().groups(both="cuda:0 cuda:1").manager
    m.script("a")
    m.register("a")
    m.done(m.load("a", device_group="both", n_replicas=2))
    m.term()
    m.up(env=dict(machine.env, SLUICE_FAILPOINT=point))
    operation = retry(m, lambda: park(m, request_id="once"))
    assert m.process.wait(patience(10)) == -signal.SIGKILL
    machine.up()
    again = park(m, request_id="once")
    assert not operation or again.id == operation.id
    m.done(again)
    settle(m)
    assert len(m.replicas()) == len(m.workers()) == 2 and all(map(parked(machine), m.replicas()))


def test_weights_that_are_lost_are_loaded_and_kept_again(machine):
    """A loaded replica receives the park as soon as it reports READY, and has a park copy by its next report."""
    m = machine.up().groups(left="cuda:0").manager
    m.done(load(machine, "a", "left", f"load_ms=60 gpu={5 * G}"))
    m.done(park(m))
    keeper = machine.replica("a")
    m.kill()
    os.kill(keeper.pid, signal.SIGKILL)
    m.up(env=machine.env)
    again = machine.wait_replica("a", lambda r: parked(machine)(r) and r.pid != keeper.pid)
    assert again.shared_id and machine.device("cuda:0").planned_bytes == 0
    m.done(wake(m))
    assert machine.replica("a").pid == again.pid


def test_weights_that_are_lost_take_nothing_of_a_gpu_from_one_that_serves(machine):
    """The load of lost weights serves only the park, so it must not take GPU memory from a serving replica."""
    m = machine.up().groups(left="cuda:0").manager
    m.done(load(machine, "a", "left", f"load_ms=60 gpu={40 * G}", 40 * G))
    m.done(park(m))
    m.done(load(machine, "b", "left", f"load_ms=60 gpu={45 * G}", 45 * G))
    keeper = machine.replica("a")
    m.kill()
    os.kill(keeper.pid, signal.SIGKILL)
    machine.up()
    machine.wait_replica("a", lambda r: r.state == m.t.REPLICA_STATE_PENDING)
    keeps(lambda: m.workers() == [machine.replica("b").pid] and machine.replica("a").state == m.t.REPLICA_STATE_PENDING, 1, "it waits")
    m.done(m.unload("b"))
    machine.wait_replica("a", parked(machine))


def test_a_manager_that_was_started_since_refuses_a_wake_without_room_as_well(machine):
    """A parked worker does not report the GPU memory that it needs after a wake."""
    m = machine.up().groups(left="cuda:0").manager
    m.done(load(machine, "a", "left", f"load_ms=60 gpu={40 * G}", 40 * G))
    m.done(park(m))
    keeper = machine.replica("a")
    m.done(load(machine, "b", "left", f"load_ms=60 gpu={45 * G}", 45 * G))
    m.kill()
    machine.up()
    settle(m)
    fails(C.RESOURCE_EXHAUSTED, wake, m, why="DEVICE_MEMORY")
    assert parked(machine)(machine.replica("a")) and machine.replica("a").pid == keeper.pid
    m.done(m.unload("b"))
    m.done(wake(m))


def test_one_that_is_woken_as_it_is_copied_can_be_parked_again(machine):
    """The manager and the parked worker died, so the weights are lost. A new worker takes a park copy again without an open
    operation. The manager never took over that copy."""
    m = machine.up().groups(left="cuda:0").manager
    m.done(load(machine, "a", "left", f"load_ms=60 gpu={5 * G}"))
    m.done(park(m))
    keeper = machine.replica("a")
    m.script("a", f"load_ms=60 gpu={5 * G} keeps_held keeps_for=1000")
    m.kill()
    os.kill(keeper.pid, signal.SIGKILL)
    n_asked = len(asked(machine, "a"))
    m.up(env=machine.env)
    serving = machine.wait_replica("a", lambda r: is_ready(machine)(r) and r.pid != keeper.pid)
    asked_to_keep(machine, "a", n_asked + 1)
    m.done(wake(m))
    assert is_ready(machine)(machine.replica("a")) and machine.replica("a").pid == serving.pid and not kept_in(serving.pid)
    m.script("a", f"load_ms=60 gpu={5 * G} keeps_for=1000")
    m.wait(lambda: kept_in(serving.pid), 8, "it has a copy")
    m.wait(lambda: not kept_in(serving.pid), 8, "and lets go of it")
    assert not kept_in(m.process.pid) and is_ready(machine)(machine.replica("a"))
    m.done(park(m))


def test_an_idle_one_is_parked(machine):
    m = machine.up().groups(left="cuda:0").manager
    m.script("a")
    m.register("a")
    m.done(m.load("a", device_group="left", config=m.t.ModelConfig(idle_after_ms=1000)))
    machine.wait_replica("a", parked(machine))
    assert machine.events("version.idle")[0].attributes["reason"] == "PARK"
