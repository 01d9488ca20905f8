"""GPUs that fail (F31, F32, F33): NVML's reports, the effect of each Xid, devices that are put aside and
released. The GPUs are those of fake_worker.c and fake_nvml.c. The last tests use the real worker on an emulated GPU,
if the emulation is built."""
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time

import pytest

import conftest
from conftest import BIN, ROOT, alive, cause, keeps, names, patience, sanitized
from log_events import DEVICE_FAILED, NO_GPU_FIGURES, logged
from manager_program import C, fails, manager  # noqa: F401 (fixtures)
from test_faults import Stream

GPU = ("uuid=GPU-{i} bus=00000000:0{i}:00.0 name=Fake total=80000000000 used=30000000000 busy=42 membusy=7 heat=61 power=312500 "
       "limit=700000 sm=1500 mem=2600 throttle=0x44 ecc1=5 ecc2=1")
SIMT = BIN.parent / "simt/libsluice_cuda_simt.so"


class Machine:
    """A manager on a machine with GPUs. The scenario file holds the reports of the driver."""

    def __init__(self, manager, n_gpus=2):
        self.manager, self.n_gpus, self.n_told = manager, n_gpus, 0
        self.scenario = manager.folder / "nvml"
        self.lines = [f"gpu {i} " + GPU.format(i=i) for i in range(n_gpus)]
        self.write()
        self.env = {"SLUICE_FAKE_GPUS": str(n_gpus), "SLUICE_NVML_LIBRARY": str(BIN / "fake_nvml.so"),
                    "SLUICE_FAKE_NVML": str(self.scenario)}

    def write(self):
        temporary = self.scenario.with_suffix(".new")
        temporary.write_text("".join(line + "\n" for line in self.lines))
        temporary.rename(self.scenario)

    def told(self):
        """Waits until NVML, polled once a second, has reported the present scenario."""
        heat = 20 + len(self.lines) + self.n_told
        self.n_told += 1
        self.lines[0] = re.sub(r"heat=\d+", f"heat={heat}", self.lines[0])
        self.write()
        self.manager.wait(lambda: self.device("cuda:0").device.figures.temperature_celsius == heat, 10, "NVML has told")

    def up(self, *args):
        self.manager.up("--metrics", f"unix:{self.manager.folder}/metrics.sock", *args, env=self.env)
        self.manager.wait(lambda: self.device("cuda:0").device.HasField("figures"), 10, "NVML tells of the GPUs")
        return self

    def groups(self, **groups):
        for name, devices in groups.items():
            self.manager.rpc.CreateDeviceGroup(self.manager.m.CreateDeviceGroupRequest(name=name, devices=devices.split()))
        return self

    def xid(self, gpu, xid):
        self.lines.append(f"xid {gpu} {xid}")
        self.write()

    def devices(self):
        return {d.device.name: d for d in self.manager.rpc.ListDevices(self.manager.m.ListDevicesRequest()).devices}

    def device(self, name):
        return self.devices()[name]

    def state(self, name):
        return self.manager.t.DeviceState.Name(self.device(name).state).removeprefix("DEVICE_STATE_").lower()

    def wait_state(self, name, state):
        self.manager.wait(lambda: self.state(name) == state, 5, f"{name} is {state}")

    def release(self, name, **kwargs):
        return self.manager.rpc.ReleaseDevice(self.manager.m.ReleaseDeviceRequest(device=name, **kwargs)).hold

    def load(self, name, group, text="load_ms=60", wait=True):
        self.manager.script(name, text)
        self.manager.register(name)
        operation = self.manager.load(name, device_group=group)
        return self.manager.done(operation) if wait else operation

    def replica(self, model):
        return next(r for r in self.manager.replicas(include_stopped=True) if r.model == model)

    def wait_replica(self, model, what):
        self.manager.wait(lambda: what(self.replica(model)), 8, f"replica of {model}: {self.replica(model)}")
        return self.replica(model)

    def events(self, *types):
        found = []
        stream = self.manager.rpc.WatchEvents(self.manager.m.WatchEventsRequest(from_seq=1))
        last = self.manager.status().last_event_seq
        for answer in stream:
            found += [e for e in answer.events if e.type in types]
            if answer.events[-1].seq >= last:
                stream.cancel()
                return found

    def metrics(self):
        text = subprocess.run(["curl", "-s", "--unix-socket", self.manager.folder / "metrics.sock", "http://m/metrics"],
                              capture_output=True, text=True, check=True).stdout
        return dict(line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))

    def cli(self, *args):
        return subprocess.run([BIN / "sluice", *args, "--state-dir", self.manager.state], capture_output=True, text=True,
                              timeout=patience(20))


@pytest.fixture
def machine(manager):  # noqa: F811
    return Machine(manager)


def is_ready(machine):
    return lambda replica: replica.state == machine.manager.t.REPLICA_STATE_READY


def is_held(machine):
    return lambda replica: (replica.state, replica.reason, replica.pid) == (machine.manager.t.REPLICA_STATE_PENDING, "DEVICE_QUARANTINED", 0)


def test_figures_are_listed_and_measured(machine):
    machine.up()
    figures = machine.device("cuda:1").device.figures
    assert (figures.utilization_percent, figures.memory_utilization_percent, figures.temperature_celsius) == (42, 7, 61)
    assert (figures.power_milliwatts, figures.power_limit_milliwatts, figures.sm_clock_mhz) == (312500, 700000, 1500)
    assert (figures.memory_used_bytes, figures.memory_total_bytes) == (30_000_000_000, 80_000_000_000)
    assert sorted(figures.throttle_reasons) == ["hw_thermal", "power_cap"]
    assert (figures.ecc_corrected, figures.ecc_uncorrected, figures.n_xids) == (5, 1, 0)
    assert time.time() - figures.sampled_unix_ns / 1e9 < patience(5)
    assert not machine.device("cpu:0").device.HasField("figures")
    metrics = machine.metrics()
    for name, value in {"sluice_device_nvml_up": 1, 'sluice_device_utilization_ratio{device="cuda:0"}': 0.42,
                        'sluice_device_memory_used_bytes{device="cuda:0"}': 3e10,
                        'sluice_device_temperature_celsius{device="cuda:1"}': 61,
                        'sluice_device_power_watts{device="cuda:1"}': 312.5,
                        'sluice_device_clock_hertz{device="cuda:0",clock="sm"}': 1.5e9,
                        'sluice_device_throttled{device="cuda:0",reason="hw_thermal"}': 1,
                        'sluice_device_throttled{device="cuda:0",reason="hw_slowdown"}': 0,
                        'sluice_device_ecc_errors_total{device="cuda:0",kind="uncorrected"}': 1,
                        'sluice_device_state{device="cuda:0",state="usable"}': 1,
                        'sluice_device_state{device="cpu:0",state="usable"}': 1}.items():
        assert float(metrics[name]) == value, name
    listed = json.loads(machine.cli("devices", "--json").stdout)
    assert listed["devices"][-1]["device"]["figures"]["temperature_celsius"] == 61
    shown = machine.cli("devices").stdout
    assert "61 C" in shown and "hw_thermal" in shown and "42%" in shown, shown
    machine.lines[0] = "gpu 0 uuid=GPU-0 gone=15"
    machine.write()
    machine.manager.wait(lambda: machine.device("cuda:0").device.figures.error, 5, "it is told that one is lost")
    assert not machine.device("cuda:0").device.figures.HasField("temperature_celsius")
    assert machine.device("cuda:1").device.figures.temperature_celsius == 61
    assert float(machine.metrics()['sluice_device_answers{device="cuda:0"}']) == 0


@pytest.mark.parametrize("library, named", [("/nonexistent/libnvidia-ml.so", "libnvidia-ml.so"),
                                            ("fake_nvml_broken.so", "nvmlDeviceGetHandleByIndex_v2")])
def test_without_nvml_it_is_said_once_and_all_goes_on(machine, library, named):
    machine.env["SLUICE_NVML_LIBRARY"] = library if library[0] == "/" else str(BIN / library)
    m = machine.manager
    m.up("--metrics", f"unix:{m.folder}/metrics.sock", env=machine.env)
    machine.groups(left="cuda:0").load("a", "left")
    listed = m.rpc.ListDevices(m.m.ListDevicesRequest())
    assert names(listed.nvml_unusable_reason, named), listed.nvml_unusable_reason
    assert float(machine.metrics()["sluice_device_nvml_up"]) == 0
    assert len(logged((m.folder / "log").read_text(), NO_GPU_FIGURES)) == 1
    assert not machine.device("cuda:0").device.HasField("figures")


XIDS = {13: "RESTART", 31: "RESTART", 46: "QUARANTINE", 48: "QUARANTINE", 63: "NOTE", 64: "QUARANTINE", 79: "DRAIN_NODE", 94: "RESTART",
        95: "QUARANTINE", 119: "QUARANTINE"}


def test_each_xid_leads_to_what_the_table_says(machine):
    machine.up()
    for xid, action in XIDS.items():
        machine.xid(0, xid)
        machine.manager.wait(lambda: machine.events("device.xid")[-1:] and
                             machine.events("device.xid")[-1].attributes["reason"] == f"XID_{xid}", 5, f"Xid {xid} is told")
        event = machine.events("device.xid")[-1]
        assert (event.stage, event.device) == (action, "cuda:0"), xid
        aside = action in ("QUARANTINE", "DRAIN_NODE")
        machine.wait_state("cuda:0", "quarantined" if aside else "usable")
        machine.wait_state("cuda:1", "cordoned" if action == "DRAIN_NODE" else "usable")
        assert float(machine.metrics()[f'sluice_device_xids_total{{device="cuda:0",xid="{xid}"}}']) == 1
        for name in ("cuda:0", "cuda:1"):
            if machine.state(name) == "usable":
                fails(C.FAILED_PRECONDITION, machine.release, name, why="DEVICE_NOT_HELD")
            else:
                hold = machine.device(name).hold
                assert (hold.reason, hold.n_reports, hold.key) == (f"XID_{xid}", 1, f"GPU-{name[-1]}")
                assert hold.resolution in ("RESET_GPU", "WORKFLOW_XID_48", "RESTART_BM") and hold.message
                assert time.time() - hold.since_unix_ns / 1e9 < patience(10)
                assert machine.release(name) == hold
    figures = machine.device("cuda:0").device.figures
    assert (figures.n_xids, figures.last_xid) == (len(XIDS), 119)
    assert machine.device("cuda:1").device.figures.n_xids == 0
    assert machine.events("device.released") and machine.events("device.cordoned")


def test_quarantined_device_is_left_survives_a_restart_and_is_used_again_once_released(machine):
    manager = machine.manager
    machine.up().groups(left="cuda:0", right="cuda:1")
    machine.load("a", "left")
    machine.load("b", "right")
    pid, other = machine.replica("a").pid, machine.replica("b").pid
    machine.xid(0, 48)
    machine.wait_state("cuda:0", "quarantined")
    assert machine.wait_replica("a", is_held(machine)).n_restarts == 0
    assert not alive(pid) and manager.workers() == [other]
    assert machine.events("replica.held") and not machine.events("replica.died")
    refused = fails(C.FAILED_PRECONDITION, machine.load, "c", "left", why="DEVICE_QUARANTINED")
    assert names(refused, "XID_48", "sluice devices release cuda:0")
    fails(C.FAILED_PRECONDITION, manager.rpc.LoadModelVersion,
          manager.m.LoadModelVersionRequest(model="c", device_group="left", validate_only=True), why="DEVICE_QUARANTINED")
    fails(C.FAILED_PRECONDITION, manager.rpc.ScaleModelVersion, manager.m.ScaleModelVersionRequest(model="a", n_replicas=2),
          why="DEVICE_QUARANTINED")
    shown = machine.cli("devices").stdout
    assert names(shown, "cuda:0", "quarantined", "XID_48", "WORKFLOW_XID_48", "sluice devices release cuda:0"), shown
    since = machine.device("cuda:0").hold.since_unix_ns
    machine.xid(0, 95)  # a worse Xid of the same device changes nothing
    manager.wait(lambda: machine.device("cuda:0").hold.n_reports == 2, 5, "the second report is counted")
    manager.kill()
    machine.up()
    assert machine.state("cuda:0") == "quarantined" and machine.device("cuda:0").hold.since_unix_ns == since
    assert machine.device("cuda:0").hold.reason == "XID_48"
    keeps(lambda: manager.workers() == [other], 0.5, "something was placed on the quarantined device")
    result = machine.cli("devices", "release", "cuda:0")
    assert result.returncode == 0 and names(result.stdout, "cuda:0", "XID_48"), result
    assert machine.wait_replica("a", is_ready(machine)).n_restarts == 1
    assert machine.state("cuda:0") == "usable" and not machine.device("cuda:0").HasField("hold")
    manager.done(manager.load("c", device_group="left"))
    assert machine.replica("b").pid == other and machine.replica("b").epoch == 1
    again = machine.cli("devices", "release", "cuda:0")
    assert again.returncode == 1 and names(again.stderr, "DEVICE_NOT_HELD"), again
    assert names(machine.cli("devices", "release", "cuda:9").stderr, "DEVICE_NOT_FOUND")


def test_restart_that_was_asked_for_is_none_that_nobody_asked_for_also_where_it_waits_for_its_device(machine):
    m = machine.up().groups(left="cuda:0").manager
    machine.load("a", "left")
    replica = machine.replica("a")
    os.kill(replica.pid, signal.SIGSTOP)  # the replica must not end before its device is put aside
    m.rpc.RestartReplica(m.m.RestartReplicaRequest(replica_id=replica.id))
    machine.wait_replica("a", lambda r: r.state == m.t.REPLICA_STATE_DRAINING)
    machine.xid(0, 48)
    machine.wait_state("cuda:0", "quarantined")
    os.kill(replica.pid, signal.SIGCONT)
    machine.wait_replica("a", is_held(machine))
    machine.release("cuda:0")
    again = machine.wait_replica("a", is_ready(machine))
    assert (again.epoch, again.n_restarts) == (2, 0)


def test_load_under_way_on_a_device_that_fails_ends_and_comes_back_with_the_release(machine):
    machine.up().groups(left="cuda:0")
    operation = machine.load("a", "left", "load_ms=60000", wait=False)
    machine.manager.wait(lambda: len(machine.manager.workers()) == 1, 5, "the load is under way")
    machine.xid(0, 119)
    ended = machine.manager.end(operation)
    assert ended.state == machine.manager.t.OPERATION_STATE_FAILED and ended.error.reason == "DEVICE_QUARANTINED", ended
    assert names(ended.error.message, "XID_119"), ended
    machine.wait_replica("a", is_held(machine))
    machine.manager.script("a", "load_ms=60000 ")  # the test finds the worker by the words of its script
    machine.release("cuda:0", request_id="once")
    assert machine.release("cuda:0", request_id="once").reason == "XID_119", "a release is idempotent"
    machine.manager.wait(lambda: len(machine.manager.workers()) == 1, 5, "it is started again")


def test_group_with_a_sound_device_left_moves_there(machine):
    machine.up().groups(both="cuda:0 cuda:1")
    machine.load("a", "both")
    assert machine.device("cuda:0").planned_bytes and not machine.device("cuda:1").planned_bytes
    epoch = machine.replica("a").epoch
    machine.xid(0, 64)
    machine.wait_state("cuda:0", "quarantined")
    machine.wait_replica("a", lambda r: r.epoch == epoch + 1 and is_ready(machine)(r))
    assert machine.device("cuda:1").planned_bytes and not machine.device("cuda:0").planned_bytes
    assert not machine.events("replica.died")


def test_gpu_off_the_bus_leaves_the_others_running_and_places_nothing_on_them(machine):
    machine.up().groups(left="cuda:0", right="cuda:1")
    machine.load("a", "left")
    machine.load("b", "right")
    other = machine.replica("b").pid
    machine.xid(0, 79)
    machine.wait_replica("a", is_held(machine))
    machine.wait_state("cuda:1", "cordoned")
    keeps(lambda: alive(other) and is_ready(machine)(machine.replica("b")), 0.3, "it serves on")
    fails(C.FAILED_PRECONDITION, machine.load, "c", "right", why="DEVICE_QUARANTINED")
    os.kill(other, signal.SIGKILL)
    machine.wait_replica("b", is_held(machine))
    machine.release("cuda:1")
    machine.wait_replica("b", is_ready(machine))
    assert machine.state("cuda:0") == "quarantined"


def test_xid_of_an_application_ends_the_worker_that_does_not_end_by_itself(machine):
    machine.up().groups(left="cuda:0", right="cuda:1")
    machine.load("a", "left")
    machine.load("b", "right")
    first, other = machine.replica("a").pid, machine.replica("b").pid
    machine.xid(0, 31)
    replica = machine.wait_replica("a", lambda r: r.pid not in (0, first) and is_ready(machine)(r))
    assert names(machine.events("replica.died")[0].message, 31) and replica.epoch == 2
    assert machine.replica("b").pid == other and machine.state("cuda:0") == "usable"


def test_xid_of_an_application_spares_those_whose_worker_did_not_fail(machine):
    machine.up().groups(left="cuda:0")
    machine.load("a", "left", "load_ms=60 fault=1500 fault_class=2")
    machine.load("b", "left")
    first, other = machine.replica("a").pid, machine.replica("b").pid
    machine.manager.wait(lambda: not alive(first), 5, "the worker ends of its device")
    machine.xid(0, 13)
    machine.wait_replica("a", lambda r: r.pid not in (0, first) and is_ready(machine)(r))
    # Longer than the time that suspected workers have to end by themselves.
    keeps(lambda: machine.replica("b").pid == other and alive(other), 2.5, "it serves on")


def test_xid_of_an_application_spares_a_worker_that_gets_on_with_its_work(machine):
    machine.up().groups(left="cuda:0")
    machine.load("a", "left", "load_ms=60 queued moves")
    machine.load("b", "left")
    busy, idle = machine.replica("a").pid, machine.replica("b").pid
    machine.xid(0, 31)  # perhaps the Xid of a foreign process
    machine.wait_replica("b", lambda r: r.pid not in (0, idle) and is_ready(machine)(r))
    assert machine.replica("a").pid == busy and alive(busy)


@pytest.mark.parametrize("fault, name, aside", [(2, "DEVICE_ILLEGAL_ACCESS", False), (4, "DEVICE_CONTAINED", False),
                                                (5, "DEVICE_ECC", True), (6, "DEVICE_NVLINK", True)])
def test_worker_that_ends_of_its_device_leads_to_what_the_table_says(machine, fault, name, aside):
    machine.up().groups(left="cuda:0")
    machine.load("a", "left", f"load_ms=60 fault=1000 fault_class={fault}")
    if aside:
        machine.wait_state("cuda:0", "quarantined")
        machine.wait_replica("a", is_held(machine))
        assert machine.device("cuda:0").hold.reason == name
        machine.release("cuda:0")
    replica = machine.wait_replica("a", lambda r: r.epoch == 2 and is_ready(machine)(r))
    assert machine.state("cuda:0") == "usable" and replica.n_restarts == 1
    (event,) = machine.events("device.fault")
    assert (event.device, event.replica_id, event.attributes["reason"]) == ("cuda:0", replica.id, name), event


def test_worker_that_ended_of_its_device_while_no_manager_looked_is_found_out(machine):
    machine.up().groups(left="cuda:0")
    machine.load("a", "left", "load_ms=60 fault=1500 fault_class=5")
    pid = machine.replica("a").pid
    machine.manager.kill()
    machine.manager.wait(lambda: not alive(pid), 5, "the worker ends")
    machine.up()
    machine.wait_state("cuda:0", "quarantined")
    machine.wait_replica("a", is_held(machine))
    assert machine.manager.workers() == []


@pytest.mark.parametrize("point", ["hold.before_commit", "hold.after_commit"])
def test_device_is_quarantined_also_where_the_manager_is_killed_as_it_records_that(machine, point):
    manager = machine.manager
    machine.env["SLUICE_FAILPOINT"] = point
    machine.up().groups(left="cuda:0")
    machine.load("a", "left", "load_ms=60 fault=300 fault_class=5", wait=False)
    manager.process.wait(patience(10))
    assert manager.process.returncode == -signal.SIGKILL
    del machine.env["SLUICE_FAILPOINT"]
    machine.up()
    machine.wait_state("cuda:0", "quarantined")
    machine.wait_replica("a", is_held(machine))
    assert manager.workers() == []


# The real worker on an emulated GPU (tests/simt), if the emulation is built. Settings in a file make the GPU fail;
# the next worker reads the file.

def emulated(test):
    needs = pytest.mark.skipif(not SIMT.exists() or sanitized(), reason="the emulated GPU was not built")
    return pytest.mark.emulated(needs(test))


class Card:
    """A folder of the programs whose worker gets a failing GPU."""

    def __init__(self, folder, monkeypatch):
        self.folder = folder
        for name in ("sluice", "sluice-manager", "sluice-server"):
            shutil.copy(BIN / name, folder / name)
        worker = folder / "sluice-worker"
        worker.write_text(f"""#!/bin/sh
[ -e {folder}/always ] && export $(cat {folder}/always)
[ "$1" = serve ] && mv {folder}/once {folder}/taken 2>/dev/null && export $(cat {folder}/taken)
exec {BIN}/sluice-worker "$@"
""")
        worker.chmod(0o755)
        monkeypatch.setattr(conftest, "BIN", folder)
        self.env = {"SLUICE_CUDA_MODULE": str(SIMT)}

    def once(self, words):
        (self.folder / "once").write_text(words)

    def always(self, words):
        (self.folder / "always").write_text(words)


def gpu_device(sluice):
    devices = json.loads(sluice.cli("devices", "--json", "--refresh").stdout)["devices"]
    return next(d for d in devices if d["device"]["name"] == "cuda:0")


def driver_none(folder):
    pass


def driver_broken(folder):
    (folder / "libcuda.so.1").write_text("no library")


def driver_old(folder):
    shutil.copy(BIN / "fake_cuda_old.so", folder / "libcuda.so.1")


@pytest.mark.emulated  # needs the emulated GPU and a build with CUDA
@pytest.mark.skipif(not (BIN / "libsluice_cuda.so").exists() or os.path.exists("/dev/nvidiactl"), reason="no CUDA backend, or a driver for it")
@pytest.mark.parametrize("driver, value", [(driver_none, "libcuda.so.1"), (driver_broken, "libcuda.so.1"), (driver_old, "11.4")])
def test_without_a_driver_that_works_devices_say_why_and_the_cpu_serves(fresh, tmp_path, driver, value):
    driver(tmp_path)
    fresh.start(env={"LD_LIBRARY_PATH": str(tmp_path), "SLUICE_CUDA_MODULE": ""})
    shown = fresh.cli("devices").stdout
    assert names(shown, value, "cpu:0") and "cuda:0" not in shown, shown
    fresh.cli("register", "tiny", ROOT / "tests/golden/tiny/bf16.gguf", "--version", "1")
    refused = fresh.cli("load", "tiny", "--devices", "cuda:0", check=False)
    assert refused.returncode == 1 and names(refused.stderr, value), refused
    fresh.cli("load", "tiny")
    (replica,) = fresh.ready()
    assert replica["device_group"].startswith("cpu"), replica


@emulated
@pytest.mark.parametrize("code, name, aside", [(700, "DEVICE_ILLEGAL_ACCESS", False), (214, "DEVICE_ECC", True)])
def test_emulated_gpu_that_fails_under_a_load_leaves_what_serves_alone(fresh, tmp_path, monkeypatch, code, name, aside):
    card = Card(tmp_path, monkeypatch)
    fresh.start(env=card.env)
    device = gpu_device(fresh)["device"]
    assert device["uuid"].startswith("GPU-") and device["compute_capability"] and device["memory_total_bytes"] > 0, device
    fresh.cli("register", "tiny", ROOT / "tests/golden/tiny/bf16.gguf", "--version", "1")
    fresh.cli("load", "tiny")
    fresh.cli("groups", "create", "gpu", "cuda:0")
    (old,) = fresh.ready()
    fresh.wait(lambda: fresh.run("tiny", "a", "-n", "1", check=False).returncode == 0, 30, "the model answers")
    answer = fresh.generate(fresh.request("tiny", "a", max_tokens=4, ignore_eos=True))[1]
    card.once(f"SIMT_FAIL=1:{code}")
    fresh.cli("load", "tiny", "--group", "gpu", "--no-wait")
    fresh.wait(lambda: (tmp_path / "taken").exists(), 10, "the load has begun")

    def told():
        lines = fresh.cli("events", "--json", "--from", "1").stdout.splitlines()
        return [e for e in map(json.loads, lines) if e["type"] == "device.fault"]
    fresh.wait(told, 10, "the fault is told")
    (event,) = told()
    assert (event["device"], cause(event)) == ("cuda:0", name) and names(event["message"], code), event
    if aside:
        fresh.wait(lambda: gpu_device(fresh)["state"] == "DEVICE_STATE_QUARANTINED", 5, "the GPU is quarantined")
        assert gpu_device(fresh)["hold"]["key"] == device["uuid"]
        fresh.wait(lambda: [r["reason"] for r in fresh.replicas() if r["device_group"] == "gpu"] == ["DEVICE_QUARANTINED"], 5, "held")
        assert len(fresh.children("sluice-worker")) == 1, "a worker is left on the quarantined GPU"
    else:
        assert gpu_device(fresh)["state"] == "DEVICE_STATE_USABLE"
    assert [r["pid"] for r in fresh.ready() if r["id"] == old["id"]] == [old["pid"]]
    assert fresh.generate(fresh.request("tiny", "a", max_tokens=4, ignore_eos=True))[1] == answer


@emulated
def test_gpu_without_room_refuses_the_load_with_figures_and_the_old_version_serves_on(fresh, tmp_path, monkeypatch):
    card = Card(tmp_path, monkeypatch)
    card.always("SIMT_DEVICE_BYTES=1000000")  # the memory that other processes leave
    fresh.start(env=card.env)
    before = gpu_device(fresh)["device"]["memory_free_bytes"]
    assert 0 < before <= 1000000
    fresh.cli("register", "tiny", ROOT / "tests/golden/tiny/bf16.gguf", "--version", "1")
    fresh.cli("register", "tiny", ROOT / "tests/golden/tiny/f16.gguf", "--version", "2")
    fresh.cli("load", "tiny", "--version", "1")
    fresh.cli("groups", "create", "gpu", "cuda:0")
    (old,) = fresh.ready()
    fresh.wait(lambda: fresh.run("tiny", "a", "-n", "1", check=False).returncode == 0, 30, "the model answers")
    request = fresh.request("tiny", "a", version="1", max_tokens=4, ignore_eos=True)
    answer = fresh.generate(request)[1]
    failures, over = [], threading.Event()

    def keep_asking():
        while not over.is_set():
            try:
                assert fresh.generate(request)[1] == answer
            except Exception as e:  # noqa: BLE001
                failures.append(e)
    asking = threading.Thread(target=keep_asking)
    asking.start()
    try:
        result = fresh.cli("load", "tiny", "--version", "2", "--group", "gpu", check=False)
    finally:
        over.set()
        asking.join(patience(30))
    assert result.returncode == 1 and names(result.stderr, "DEVICE_MEMORY", "cuda:0"), result
    assert not failures, failures
    fresh.wait(lambda: fresh.children("sluice-worker") == [old["pid"]], 5, "nothing of the load is left")
    assert gpu_device(fresh)["device"]["memory_free_bytes"] == before
    assert gpu_device(fresh)["state"] == "DEVICE_STATE_USABLE"
    fresh.cli("unload", "tiny", "--version", "2")
    assert [r["id"] for r in fresh.replicas()] == [old["id"]]
    assert fresh.generate(request)[1] == answer


@emulated
@pytest.mark.parametrize("code, name, aside", [(719, "DEVICE_ILLEGAL_ACCESS", False), (214, "DEVICE_ECC", True)])
def test_emulated_gpu_that_fails_under_streams_and_they_go_on(fresh, tmp_path, monkeypatch, code, name, aside):
    """The tokens equal those of a GPU that does not fail. A quarantined GPU is released within the wait for a
    replica."""
    card = Card(tmp_path, monkeypatch)
    fresh.start(env=card.env)
    fresh.cli("register", "tiny", ROOT / "tests/golden/tiny/bf16.gguf", "--version", "1")
    fresh.cli("groups", "create", "gpu", "cuda:0")
    card.once(f"SIMT_FAIL=2500:{code}")  # the first steps take some hundred kernel launches
    fresh.cli("load", "tiny", "--group", "gpu")
    (old,) = fresh.ready()
    fresh.wait(lambda: fresh.run("tiny", "a", "-n", "1", check=False).returncode == 0, 30, "the model answers")
    requests = [fresh.request("tiny", "a" * (i + 1), max_tokens=150, temperature=0.7 * (i % 2), seed=i, ignore_eos=True) for i in range(4)]
    streams = [Stream(fresh, r) for r in requests]
    fresh.wait(lambda: not alive(old["pid"]), 60, "the worker ends of its GPU")
    assert not any(s.finished for s in streams), "too little ran when the GPU failed"
    if aside:
        fresh.wait(lambda: gpu_device(fresh)["state"] == "DEVICE_STATE_QUARANTINED", 5, "the GPU is quarantined")
        assert fresh.children("sluice-worker") == []
        fresh.cli("devices", "release", "cuda:0")
    for s in streams:
        s.join(patience(60))
        assert s.error is None, s.error
    log = (fresh.state / f"run/replica-{old['id']}/log").read_text()
    assert logged(log, DEVICE_FAILED, reason=name) and names(log, code), log
    again = [Stream(fresh, r) for r in requests]
    for stream, reference in zip(streams, again):
        reference.join(patience(60))
        assert len(stream.ids) == 150 and (stream.ids, stream.text) == (reference.ids, reference.text)
    assert any(s.finished.receipt.n_resumes == 1 for s in streams)
