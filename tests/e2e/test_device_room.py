"""A GPU's memory is planned by what is promised, not by what is free at the moment: workers that start, that died and come back, and processes
that are not ours. GPUs and workers are fake (test_devices.py)."""
import json
import os
import signal
import time
from pathlib import Path

import pytest

from conftest import alive
from manager_program import C, fails, manager  # noqa: F401 (fixture)
from test_devices import GPU, Machine, is_ready

G = 1_000_000_000


@pytest.fixture
def machine(manager):  # noqa: F811
    return Machine(manager)


def told(pid):
    """What a worker was told of its GPU: device, promised to others, held by them."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    value = dict(zip(words, words[1:]))
    return value["--devices"], int(value.get("--gpu-promised", 0)), int(value.get("--gpu-held", 0))


def load(machine, name, group, text, budget=None):
    machine.manager.script(name, text)
    machine.manager.register(name)
    config = machine.manager.m.LoadModelVersionRequest().config
    if budget:
        config.gpu_memory_bytes = budget
    return machine.manager.load(name, device_group=group, config=config)


def test_second_load_waits_until_the_first_has_taken_its_memory_and_is_told_of_it(machine):
    """Both were told what was free before either had taken any of it."""
    machine.up().groups(left="cuda:0")
    first = load(machine, "a", "left", f"load_ms=4000 gpu={20 * G} taking_ms=1500")
    second = load(machine, "b", "left", f"load_ms=60 gpu={5 * G}")
    machine.wait_replica("a", lambda r: r.pid)
    since = time.monotonic()
    machine.wait_replica("b", lambda r: r.pid)
    assert time.monotonic() - since > 0.8, "the second was started while the first had yet to take its memory"
    assert told(machine.replica("a").pid) == ("cuda:0", 0, 0)
    assert told(machine.replica("b").pid) == ("cuda:0", 20 * G, 20 * G)
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
    assert told(machine.replica("c").pid) == ("cuda:0", 23 * G, 3 * G)
    machine.manager.done(machine.manager.unload("a"))
    machine.manager.done(load(machine, "d", "left", "load_ms=60"))
    assert told(machine.replica("d").pid) == ("cuda:0", 3 * G + 1_000_000, 3 * G + 1_000_000), "of an unloaded one nothing is promised"


def test_replica_goes_where_there_is_room(machine):
    """cuda:0 has more room but for a process that is not ours; then each GPU has a replica, and only one has room for what is asked."""
    machine.lines[0] = "gpu 0 " + GPU.format(i=0).replace("used=30000000000", "used=75000000000")
    machine.write()
    machine.up().groups(both="cuda:0 cuda:1")
    machine.manager.done(load(machine, "a", "both", f"load_ms=60 gpu={40 * G}", 40 * G))
    assert told(machine.replica("a").pid) == ("cuda:1", 0, 0)
    machine.manager.done(load(machine, "b", "both", f"load_ms=60 gpu={G}", G))
    assert told(machine.replica("b").pid) == ("cuda:0", 0, 0), "fewer processes, and it fits"
    machine.manager.done(load(machine, "c", "both", f"load_ms=60 gpu={6 * G}", 6 * G))
    assert told(machine.replica("c").pid) == ("cuda:1", 40 * G, 40 * G), "only there it fits"


def test_replica_goes_to_a_gpu_that_is_there(machine):
    """A group outlives its GPUs: one that is gone has no process and nothing to refuse."""
    machine.up().groups(both="cuda:0 cuda:1")
    machine.manager.done(load(machine, "a", "both", "load_ms=60"))
    first, _, _ = told(machine.replica("a").pid)
    assert first == "cuda:0"
    machine.manager.kill()
    machine.lines = machine.lines[:1]
    machine.write()
    machine.env["SLUICE_FAKE_GPUS"] = "1"
    machine.up()
    machine.manager.done(load(machine, "b", "both", "load_ms=60"))
    assert told(machine.replica("b").pid)[0] == "cuda:0"
    assert {name: list(d.replica_ids) for name, d in machine.devices().items() if name.startswith("cuda")} == {
        "cuda:0": [machine.replica("a").id, machine.replica("b").id]}


def test_devices_that_are_named_are_those_that_are_taken(machine):
    machine.up().groups(**{"cuda-0": "cuda:1"})
    machine.manager.script("a", "load_ms=60")
    machine.manager.register("a")
    refused = machine.cli("load", "a", "--devices", "cuda:0")
    assert refused.returncode == 1 and "device group cuda-0 exists, of other devices: cuda:1" in refused.stderr
    assert not machine.manager.replicas()
    assert machine.cli("load", "a", "--devices", "cuda:0,1").returncode == 0
    assert machine.replica("a").device_group == "cuda-0.1"
    assert machine.cli("load", "a", "--devices", "cuda:0,1").returncode == 0, "the group that there is"
    for text in ("cuda:0;x", " cuda:0"):
        bad = machine.cli("load", "a", "--devices", text)
        assert bad.returncode == 1 and "devices: " in bad.stderr and "name:" not in bad.stderr, bad.stderr


def test_a_plan_leaves_no_device_group(machine):
    machine.up()
    machine.manager.script("a", "load_ms=60")
    machine.manager.register("a")
    before = machine.cli("groups", "list", "--json").stdout
    machine.cli("load", "a", "--devices", "cuda:1", "--validate-only")
    assert machine.events("device_group.created")[-1].device_group == "cuda-1", "it was there for the plan"
    assert machine.cli("groups", "list", "--json").stdout == before


def test_memory_of_both_is_shown(machine):
    """`ps` and the receipt of an unload told the process's memory as the GPU's."""
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
    assert "cuda:0: before 20.0 GiB, after 0 B, expected 0 B" in shown.stdout and "cpu: before " in shown.stdout, shown.stdout
    operations = machine.manager.rpc.ListOperations(machine.manager.m.ListOperationsRequest()).operations
    (unload,) = [o for o in operations if o.kind == machine.manager.t.OPERATION_KIND_UNLOAD]
    memory = {m.device: m for m in unload.result.memory}
    assert (memory["cuda:0"].total_bytes, memory["cuda:0"].free_bytes) == (80 * G, 50 * G), memory


def test_an_unload_has_failed_where_the_driver_still_counts_memory_for_the_process(machine):
    """Of the GPU only what NVML tells of the worker's own process is looked at: others take and give back what they like."""
    machine.up().groups(left="cuda:0")
    m = machine.manager
    m.done(load(machine, "a", "left", f"load_ms=60 gpu={20 * G}"))
    pid = machine.replica("a").pid
    machine.lines += [f"process 0 {pid} {20 * G}", f"process 0 1 {3 * G}"]
    machine.write()
    time.sleep(1.2)  # NVML is asked once a second
    o = m.end(m.unload("a"))
    assert o.state == m.t.OPERATION_STATE_FAILED and o.error.reason == "MEMORY_NOT_RELEASED", o
    assert f"cuda:0: memory has not come back: before {20 * G} bytes, after {20 * G}, expected 0, tolerance {1 << 20}" in o.error.message
    assert not m.replicas() and not m.workers()
    machine.lines = [line for line in machine.lines if not line.startswith(f"process 0 {pid}")]
    machine.write()
    m.done(m.load("a", device_group="left"))
    machine.lines.append(f"process 0 {machine.replica('a').pid} {20 * G}")
    machine.write()
    time.sleep(1.2)
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
    machine.write()
    time.sleep(1.2)  # NVML is asked once a second
    o = m.end(m.rpc.ScaleModelVersion(m.m.ScaleModelVersionRequest(model="a", n_replicas=1)).operation)
    assert o.state == m.t.OPERATION_STATE_FAILED and o.error.reason == "MEMORY_NOT_RELEASED" and o.stage == "stop", o
    assert f"cuda:0: memory has not come back: before {40 * G} bytes, after {40 * G}, expected {20 * G}, tolerance" in o.error.message, o.error
    assert o.error.message.endswith("the replicas have ended") and len(m.replicas()) == len(m.workers()) == 1
    version = m.rpc.GetModel(m.m.GetModelRequest(model="a")).model.versions[0]
    assert not version.HasField("last_error"), version  # that is of loads
    (stays,) = m.replicas()
    m.done(m.rpc.ScaleModelVersion(m.m.ScaleModelVersionRequest(model="a", n_replicas=2)).operation)
    o = m.done(m.rpc.ScaleModelVersion(m.m.ScaleModelVersionRequest(model="a", n_replicas=1)).operation)  # the other's is not its own
    assert {r.device: (r.after_bytes, r.expected_bytes) for r in o.result.memory}["cuda:0"] == (20 * G, 20 * G), o.result


def test_replicas_on_gpus_are_not_parked_yet_and_that_is_said(machine):
    m = machine.up().groups(left="cuda:0").manager
    m.done(load(machine, "a", "left", f"load_ms=60 gpu={5 * G}"))
    pid = machine.replica("a").pid
    assert "device_group" in fails(C.UNIMPLEMENTED, m.rpc.ParkModelVersion, m.m.ParkModelVersionRequest(model="a"))
    config = m.t.ModelConfig(idle_after_ms=1000)
    m.script("b")
    m.register("b")
    assert "idle_action" in fails(C.UNIMPLEMENTED, m.load, "b", device_group="left", config=config)
    assert machine.replica("a").pid == pid
