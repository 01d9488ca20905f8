"""The NUMA node that a replica takes, and how much each node may hold. The manager runs with fake workers on a fake
machine of two nodes."""
import subprocess

import pytest

from conftest import BIN, launch_record, names, sanitized
from manager_program import C, fails, manager  # noqa: F401 (fixture)

M = 1_000_000


def told(manager, pid):  # noqa: F811
    """Returns (devices, memory limit) from the worker's launch record."""
    record = launch_record(pid, manager.stubs)
    return record.devices, record.memory_limit


@pytest.fixture(autouse=True)
def two_nodes(tmp_path_factory, monkeypatch):
    """Writes the /sys tree of the machine that the fake worker's probe reports."""
    tree = tmp_path_factory.mktemp("sys")
    for node in range(2):
        folder = tree / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{node}\n")
    (tree / "devices/system/cpu").mkdir()
    (tree / "devices/system/cpu/online").write_text("0-1\n")
    (tree / "devices/system/node/online").write_text("0-1\n")
    monkeypatch.setenv("SLUICE_SYS_TREE", str(tree))


def load(manager, name, n_bytes, **kwargs):  # noqa: F811
    """Loads a version whose size is known before the start. Returns the launch record of the worker."""
    manager.script(name, f"load_ms=60 bytes={n_bytes}")
    manager.register(name, version="1")
    config = manager.t.ModelConfig(kv_bytes=n_bytes, **kwargs)
    manager.done(manager.load(name, config=config))
    (replica,) = [r for r in manager.replicas() if r.model == name]
    return told(manager, replica.pid)


def test_without_a_policy_a_replica_takes_every_node(manager):  # noqa: F811
    manager.up()
    assert load(manager, "a", 10 * M) == ("cpu:0,cpu:1", 0)


@pytest.mark.skipif(sanitized(), reason="sanitizers have memory of their own")
def test_spread_takes_the_nodes_in_turn_and_a_load_may_ask_for_another_policy(manager):  # noqa: F811
    manager.up("--placement", "spread", "--memory-budget", f"node:0={100 * M},node:1={300 * M}")
    assert load(manager, "a", 50 * M) == ("cpu:1", 300 * M), "none has a process: the one with more room"
    assert load(manager, "b", 50 * M) == ("cpu:0", 100 * M), "the other has none yet"
    assert load(manager, "c", 80 * M) == ("cpu:1", 250 * M), "as many processes each; only there it fits"
    assert load(manager, "d", 40 * M, placement="pack") == ("cpu:0", 50 * M), "the fullest that has room"
    assert load(manager, "e", 10 * M, placement="auto") == ("cpu:0,cpu:1", 20 * M), "twice what the node with less leaves"
    # The node of an unloaded version is free again.
    manager.done(manager.unload("d"))
    manager.done(manager.unload("b"))
    assert load(manager, "f", 60 * M)[0] == "cpu:0"


@pytest.mark.skipif(sanitized(), reason="sanitizers have memory of their own")
def test_pack_fills_a_node_before_it_takes_the_next_and_a_new_manager_knows_who_is_where(manager):  # noqa: F811
    manager.up("--placement", "pack", "--memory-budget", f"{1000 * M},node:0={100 * M},node:1={120 * M}")
    assert load(manager, "a", 40 * M) == ("cpu:0", 100 * M)
    assert load(manager, "b", 40 * M) == ("cpu:0", 60 * M)
    assert load(manager, "c", 40 * M) == ("cpu:1", 120 * M)
    manager.kill()
    manager.up("--placement", "pack", "--memory-budget", f"{1000 * M},node:0={100 * M},node:1={120 * M}")
    manager.wait(lambda: all(r.adopted and r.memory for r in manager.replicas()), 10, "all have said what they are")
    assert load(manager, "d", 40 * M) == ("cpu:1", 80 * M)
    assert load(manager, "e", 10 * M) == ("cpu:0", 20 * M)


def test_a_group_of_one_node_pins_to_it(manager):  # noqa: F811
    manager.up("--placement", "spread")
    manager.rpc.CreateDeviceGroup(manager.m.CreateDeviceGroupRequest(name="second", devices=["cpu:1"]))
    for name in ("a", "b"):
        manager.script(name, "load_ms=60")
        manager.register(name, version="1")
        manager.done(manager.load(name, device_group="second"))
    assert {told(manager, r.pid)[0] for r in manager.replicas()} == {"cpu:1"}


def test_what_is_no_policy_and_no_budget_is_refused(manager):  # noqa: F811
    manager.up()
    manager.script("a")
    manager.register("a", version="1")
    fails(C.INVALID_ARGUMENT, manager.load, "a", config=manager.t.ModelConfig(placement="left"), field="config.placement")
    for flags, values in ((["--placement", "left"], ("auto", "spread", "pack")), (["--memory-budget", "node:x=1G"], ("node:x=1G",)),
                          (["--memory-budget", "8G,node:0=1G,node:2=1G"], ("node:2", "node:0", "node:1"))):
        for words in (["check-config"], []):
            run = subprocess.run([BIN / "sluice-manager", *words, "--state-dir", manager.folder / "t", *flags], capture_output=True, text=True)
            assert run.returncode == 2 and names(run.stderr, flags[0], *values), run


def test_a_budget_of_a_node_that_is_not_there_is_refused_on_this_machine_too(manager, monkeypatch):  # noqa: F811
    monkeypatch.delenv("SLUICE_SYS_TREE")
    for words, spec, code in (["check-config"], "node:63=1G", 2), ([], "node:63=1G", 2), (["check-config"], "node:0=1G", 0):
        run = subprocess.run([BIN / "sluice-manager", *words, "--state-dir", manager.folder / "t", "--memory-budget", spec], capture_output=True, text=True)
        assert run.returncode == code and (code == 0 or names(run.stderr, "--memory-budget", "node:63")), run
