"""Memory limited by a cgroup: plans, loads, devices and doctor count the memory that the cgroup leaves, not the
machine's."""
import json
import os
import subprocess

from conftest import BIN, Sluice, model_path, sanitized, until
from manager_program import manager  # noqa: F401 (fixture)
from memory_group import MemoryGroup

M = 1 << 20
LIMIT = 500 * M


def device(manager):  # noqa: F811
    (use,) = [d for d in manager.rpc.ListDevices(manager.m.ListDevicesRequest()).devices if d.device.name == "cpu:0"]
    return use


def printed(state, *words):
    """Returns the JSON that a command prints."""
    return json.loads(subprocess.run([BIN / "sluice", *words, "--json", "--state-dir", state], capture_output=True, text=True).stdout)


def memory_finding(state):
    (finding,) = [f for f in printed(state, "doctor")["findings"] if f["check"] == "memory"]
    return finding


def memory_of_devices(state):
    """The memory and the free memory of all CPU devices together, as `sluice devices` prints them."""
    devices = [use["device"] for use in printed(state, "devices")["devices"] if use["device"]["name"].startswith("cpu")]
    return [sum(int(d[name]) for d in devices) for name in ("memory_total_bytes", "memory_free_bytes")]


def start_with_model(manager):  # noqa: F811
    manager.up("--kill-grace", "5s", worker=BIN / "sluice-worker", env={"SLUICE_MODEL_ROOT": ""})
    (manager.models / "a").write_bytes(open(model_path(), "rb").read())
    manager.register("a", version="1")
    manager.rpc.CreateDeviceGroup(manager.m.CreateDeviceGroupRequest(name="again", devices=["cpu:0"]))


def check_figures(manager, model):  # noqa: F811
    """`sluice devices`, `sluice doctor` and the plan of a load agree. Other programs take and free memory meanwhile.
    So all figures must lie between two figures of `sluice devices`, and the test tries until they do."""
    tries = []
    room = (64 if sanitized() else 8) * M  # a sanitized doctor takes memory of the group itself

    def agree():
        total, before = memory_of_devices(manager.state)
        doctor = printed(manager.state, "doctor")["memory"]
        plan = manager.rpc.LoadModelVersion(manager.m.LoadModelVersionRequest(
            model=model, validate_only=True, config=config(manager), device_group="again")).plan
        after = memory_of_devices(manager.state)[1]
        planned = plan.devices[0].free_bytes + plan.promised_bytes
        tries.append((before, doctor, planned, after))
        lowest, highest = min(before, after) - room, max(before, after) + room
        return total == doctor["total_bytes"] and lowest <= doctor["free_bytes"] <= highest and lowest <= planned <= highest

    until(agree, 60, lambda: f"the figures agree: {tries[-5:]}\n{manager.text()}")


def config(manager, **kwargs):  # noqa: F811
    return manager.t.ModelConfig(n_threads=1, **kwargs)


def test_a_pool_fits_into_the_memory_cgroup_or_its_load_is_refused(manager):  # noqa: F811
    """Symptom: the plan took a pool of 11.1 GiB from the machine's memory within a cgroup of 500 MB. The kernel killed
    the worker."""
    with MemoryGroup() as group:
        manager.up("--kill-grace", "5s", worker=BIN / "sluice-worker", env={"SLUICE_MODEL_ROOT": ""})
        group.leave()
        group.limit(LIMIT)
        (manager.models / "a").write_bytes(open(model_path(), "rb").read())
        manager.register("a", version="1")
        m = manager.m
        before = device(manager)
        assert before.device.memory_total_bytes == LIMIT and 0 < before.device.memory_free_bytes < LIMIT, before
        plan = manager.rpc.LoadModelVersion(m.LoadModelVersionRequest(model="a", validate_only=True, config=config(manager))).plan
        assert plan.fits and 0 < plan.devices[0].free_bytes < LIMIT, plan
        assert sum(d.weight_bytes + d.kv_bytes + d.workspace_bytes for d in plan.devices) < LIMIT, plan
        too_much = manager.end(manager.load("a", config=config(manager, kv_bytes=LIMIT)), timeout_ms=60000)
        assert (too_much.state, too_much.error.reason) == (manager.t.OPERATION_STATE_FAILED, "DEVICE_MEMORY"), too_much
        manager.done(manager.load("a", config=config(manager)))
        use = device(manager)
        assert 0 < use.planned_bytes < LIMIT and use.promised_bytes < use.device.memory_free_bytes, use
        assert memory_finding(manager.state)["level"] == "warn"  # 500 MB hold few models
        assert group.kills() == 0
        manager.done(manager.unload("a", grace_ms=0))
        manager.term()


def test_devices_are_read_when_they_are_asked_for(manager):  # noqa: F811
    """Symptom: in a virtual machine with a memory balloon, FREE was as old as the manager's start, and PLANNED exceeded
    FREE."""
    with MemoryGroup() as group:
        manager.up()
        group.leave()
        machine = device(manager).device
        assert machine.memory_total_bytes > 2 * LIMIT
        manager.script("a", f"load_ms=60 bytes={200 * M}")
        manager.register("a", version="1")
        manager.done(manager.load("a"))
        roomy = device(manager)
        assert roomy.planned_bytes == 200 * M >= roomy.promised_bytes > 0, roomy
        group.limit(group.used() + 60 * M)  # the balloon grows
        full = device(manager)
        assert full.device.memory_total_bytes < LIMIT and full.device.memory_free_bytes < 90 * M, full
        assert full.planned_bytes == roomy.planned_bytes and full.promised_bytes > full.device.memory_free_bytes, full
        group.limit(None)
        assert device(manager).device.memory_total_bytes == machine.memory_total_bytes
        manager.done(manager.unload("a", grace_ms=0))
        manager.term()


def test_devices_doctor_and_plans_count_the_same_free_memory(manager):  # noqa: F811
    """Symptom: in a virtual machine FREE of `sluice devices` was 17.0 GiB, by the files of the NUMA node. Doctor and the
    plans counted the 23.5 GiB of MemAvailable."""
    start_with_model(manager)
    check_figures(manager, "a")
    manager.done(manager.load("a", config=config(manager)))
    check_figures(manager, "a")
    use = device(manager)
    assert 0 < use.promised_bytes <= use.planned_bytes, use
    assert use.promised_bytes <= use.device.memory_free_bytes, use  # the rest of the promise fits
    manager.done(manager.unload("a", grace_ms=0))
    manager.term()


def test_devices_doctor_and_plans_count_the_same_free_memory_in_a_cgroup(manager):  # noqa: F811
    with MemoryGroup() as group:
        start_with_model(manager)
        group.leave()
        group.limit(LIMIT)
        check_figures(manager, "a")
        assert memory_of_devices(manager.state)[0] == LIMIT
        manager.term()


if os.environ.get("SLUICE_LONG"):
    def test_64_prompts_of_2k_tokens_are_answered_within_500_mb(tmp_path, stubs):
        """Symptom: the kernel killed the worker three times, and 52 of 64 requests ended UNAVAILABLE."""
        with MemoryGroup() as group:
            group.limit(LIMIT)
            sluice = Sluice(tmp_path, stubs).start(model_path(), "--name", "smol")
            group.leave()
            try:
                sluice.wait(sluice.ready, 60, "the model is loaded")
                result = sluice.cli("bench", "serve", "smol", "--server", sluice.address, "-r", "64", "-c", "64", "-p", "2000",
                                    "-n", "4", "--json", timeout=1800)
                assert json.loads(result.stdout)["requests"]["ok"] == 64, result.stdout
                assert group.kills() == 0
            finally:
                sluice.stop()
