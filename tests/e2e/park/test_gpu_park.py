"""Parking on a GPU: other versions get the GPU memory while the weights stay in host memory. A wake loads the weights
from there. The GPU is emulated (tests/simt); everything else is real."""
import json
import os
import pathlib
import signal
import threading

import psutil
import pytest

from conftest import BIN, alive, keeps, names, patience
from log_events import WEIGHTS_KEPT, WEIGHTS_MAPPED, WOKEN, logged
from test_devices import Card
from test_gpu import ENV, LONG, SIMT, TINY
from test_park import operation, parked

pytestmark = [
    pytest.mark.emulated,
    pytest.mark.skipif(not SIMT.exists(), reason="the emulated GPU needs the CUDA toolkit's headers"),
]
LIMITS = ("--devices", "cuda:0", "--max-concurrent", "8")


def loaded(sluice, *flags, file="q4_1.gguf", memory="64M", env=None):
    sluice.start(env={**ENV, **(env or {})})
    sluice.cli("register", "tiny", TINY / file, "--version", "1")
    sluice.cli("load", "tiny", *LIMITS, "--gpu-memory", memory, *flags)
    sluice.wait(lambda: sluice.run("tiny", "a", "-n", "1", check=False).returncode == 0, 30, "the model answers")
    return sluice.ready()


def ask(sluice, n=16, prompt=LONG):
    return sluice.request("tiny", prompt, max_tokens=n, ignore_eos=True, temperature=0)


def answers(sluice, request):
    """Waits until the server can reach the model, and returns the answer to the request."""
    sluice.wait(lambda: sluice.run("tiny", "a", "-n", "1", check=False).returncode == 0, 30, "the model answers")
    return sluice.generate(request)[1]


def by_device(memory):
    return {m["device"]: m for m in memory}


def kept_in(pid):
    """Returns the descriptors of kept weights that a process has open."""
    return [fd.name for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir() if fd.is_symlink() and "sluice-weights" in os.readlink(fd)]


def manager_of(sluice):
    (pid,) = sluice.children("sluice-manager")
    return pid


@pytest.mark.parametrize("file, flags", [("q4_1.gguf", ()), ("bf16.gguf", ()), ("q8_0.gguf", ("--gpu-layers", "1")),
                                         ("bf16.gguf", ("--weight-format", "int8"))], ids=["quantized", "dense", "layers on the CPU", "packed smaller"])
def test_a_parked_version_has_nothing_on_its_gpu_and_answers_as_before_once_woken(fresh, file, flags):
    (serving,) = loaded(fresh, *flags, file=file)
    before = answers(fresh, ask(fresh))
    plan = json.loads(fresh.cli("park", "tiny", "--validate-only", "--json").stdout)["plan"]
    gpu = by_device(plan["devices"])["cuda:0"]
    assert plan["fits"] and int(gpu["weight_bytes"]) == int(plan["packed_bytes"]) > 0 and int(gpu["kv_bytes"]) > 0, plan
    assert plan["notes"] and [r["pid"] for r in fresh.ready()] == [serving["pid"]]

    o = operation(fresh, "park", "tiny")
    assert (o["kind"], o["state"], o["stage"]) == ("OPERATION_KIND_PARK", "OPERATION_STATE_DONE", "done"), o
    memory = by_device(o["result"]["memory"])
    assert int(memory["cuda:0"]["before_bytes"]) > 20e6 and int(memory["cuda:0"]["after_bytes"]) == 0 == int(memory["cuda:0"]["expected_bytes"]), memory
    (keeper,) = parked(fresh)
    assert keeper["id"] == serving["id"] and keeper["pid"] != serving["pid"] and not alive(serving["pid"])
    assert [m["device"] for m in keeper["memory"]] == ["cpu"] and int(keeper["shared_bytes"]) >= int(plan["packed_bytes"]), keeper
    assert len(kept_in(keeper["pid"])) == (2 if "--gpu-layers" in flags else 1)
    assert not any("libsluice_cuda" in m.path for m in psutil.Process(keeper["pid"]).memory_maps()), "it has the backend open"

    o = operation(fresh, "wake", "tiny")
    assert o["state"] == "OPERATION_STATE_DONE", o
    (woken,) = fresh.ready()
    assert woken["pid"] == keeper["pid"] and "cuda:0" in by_device(woken["memory"])
    assert answers(fresh, ask(fresh)) == before
    log = (fresh.state / f"run/replica-{woken['id']}/log").read_text()
    assert logged(log.split(f"event={WOKEN}")[1], WEIGHTS_MAPPED), log
    fresh.wait(lambda: not kept_in(manager_of(fresh)), 10, "the copy is let go of")
    if "--gpu-layers" not in flags:
        fresh.wait(lambda: not kept_in(woken["pid"]), 10, "by both")
    again = operation(fresh, "park", "tiny")
    assert again["state"] == "OPERATION_STATE_DONE" and operation(fresh, "wake", "tiny")["state"] == "OPERATION_STATE_DONE"
    assert answers(fresh, ask(fresh)) == before


def test_streams_that_run_as_it_is_parked_finish_whole(fresh):
    loaded(fresh)
    reference = answers(fresh, ask(fresh, 200))
    got = []
    threads = [threading.Thread(target=lambda: got.append(fresh.generate(ask(fresh, 200))[1])) for _ in range(4)]
    for t in threads:
        t.start()
    fresh.wait(lambda: any(int(r.get("n_running", 0)) for r in fresh.ready()) or got, 20, "they run")
    # a long grace, for slow machines
    assert operation(fresh, "park", "tiny", "--grace", "120s")["state"] == "OPERATION_STATE_DONE"
    for t in threads:
        t.join(patience(60))
    assert got == [reference] * 4 and parked(fresh)


def test_another_takes_the_gpu_meanwhile_and_the_wake_waits_until_it_has_gone(fresh, tmp_path, monkeypatch):
    card = Card(tmp_path, monkeypatch)
    card.always(f"SIMT_DEVICE_BYTES={96 << 20}")  # room for one at a time
    sizes = ("--kv-tokens", "65536", "--kv-dtype", "f32")
    loaded(fresh, *sizes, memory="80M", env=card.env)
    before = answers(fresh, ask(fresh))
    fresh.cli("register", "other", TINY / "q8_0.gguf", "--version", "1")
    full = fresh.cli("load", "other", *LIMITS, *sizes, "--gpu-memory", "80M", check=False)
    assert full.returncode and names(full.stderr, "cuda:0", "DEVICE_MEMORY"), full
    operation(fresh, "park", "tiny")
    fresh.cli("load", "other", *LIMITS, *sizes, "--gpu-memory", "80M")
    refused = fresh.cli("wake", "tiny", check=False)
    assert refused.returncode and names(refused.stderr, "cuda:0", "DEVICE_MEMORY"), refused
    (keeper,) = parked(fresh)
    operation(fresh, "park", "other")
    assert len(parked(fresh)) == 2
    assert operation(fresh, "wake", "tiny")["state"] == "OPERATION_STATE_DONE"
    assert [r["id"] for r in fresh.ready()] == [keeper["id"]] and answers(fresh, ask(fresh)) == before


def test_where_the_machine_has_no_room_for_the_weights_it_serves_on_and_is_not_parked(fresh):
    (serving,) = loaded(fresh, file="bf16.gguf", env={"SLUICE_MEMORY_BUDGET": "48K"})
    before = answers(fresh, ask(fresh))
    plan = fresh.cli("park", "tiny", "--validate-only", "--json", check=False)
    assert plan.returncode == 1 and not json.loads(plan.stdout)["plan"]["fits"], plan
    refused = fresh.cli("park", "tiny", check=False)
    assert refused.returncode and names(refused.stderr, "HOST_MEMORY"), refused
    assert [(r["pid"], r["epoch"]) for r in fresh.ready()] == [(serving["pid"], serving["epoch"])]
    version = json.loads(fresh.cli("show", "tiny", "--json").stdout)["model"]["versions"][0]
    assert not version["deployments"][0].get("parked") and not kept_in(serving["pid"])
    assert answers(fresh, ask(fresh)) == before
    fresh.cli("scale", "tiny", "1")  # a parked version refuses this command


def test_a_keeper_or_manager_that_dies_costs_no_weights(fresh):
    loaded(fresh)
    before = answers(fresh, ask(fresh))
    operation(fresh, "park", "tiny")
    (keeper,) = parked(fresh)
    os.kill(keeper["pid"], signal.SIGKILL)
    fresh.wait(lambda: [r["pid"] for r in parked(fresh)] not in ([], [keeper["pid"]]), 20, "another keeps them")
    log = (fresh.state / f"run/replica-{keeper['id']}/log").read_text()
    assert 'event=ready' not in log.split("event=parked")[1], "it was loaded anew"
    os.kill(manager_of(fresh), signal.SIGKILL)
    fresh.wait(lambda: fresh.cli("status", check=False).returncode == 0 and len(parked(fresh)) == 1, 20, "the next manager has it")
    (adopted,) = parked(fresh)
    os.kill(adopted["pid"], signal.SIGKILL)  # the manager also supervises the parked worker that it adopted
    fresh.wait(lambda: [r["pid"] for r in parked(fresh)] not in ([], [adopted["pid"]]), 20, "another keeps them")
    assert operation(fresh, "wake", "tiny")["state"] == "OPERATION_STATE_DONE"
    assert answers(fresh, ask(fresh)) == before


def test_after_a_reboot_one_that_is_to_be_parked_takes_nothing_from_who_serves(fresh, tmp_path, monkeypatch):
    """After a reboot the parked version is loaded only to be parked again. Symptom: that version came first, and the
    serving version was FAILED for lack of memory."""
    card = Card(tmp_path, monkeypatch)
    card.always(f"SIMT_DEVICE_BYTES={96 << 20}")  # room for one at a time
    sizes = ("--kv-tokens", "65536", "--kv-dtype", "f32")
    loaded(fresh, *sizes, memory="80M", env=card.env)
    before = answers(fresh, ask(fresh))
    fresh.cli("register", "other", TINY / "q8_0.gguf", "--version", "1")
    operation(fresh, "park", "tiny")
    fresh.cli("load", "other", *LIMITS, *sizes, "--gpu-memory", "80M")
    manager, workers = manager_of(fresh), [r["pid"] for r in parked(fresh) + fresh.ready()]
    os.kill(manager, signal.SIGSTOP)  # a running manager would restart the workers
    for pid in (*workers, manager):
        os.kill(pid, signal.SIGKILL)
    fresh.wait(lambda: fresh.cli("status", check=False).returncode == 0
               and [(r["model"], r["pid"] in workers) for r in fresh.ready()] == [("other", False)], 30, "who serves is back")
    keeps(lambda: [r["model"] for r in fresh.ready()] == ["other"] and parked(fresh) == [], 2, lambda: (fresh.ready(), parked(fresh)), 0.2)
    refused = fresh.cli("wake", "tiny", check=False)
    assert refused.returncode and names(refused.stderr, "DEVICE_MEMORY"), refused
    operation(fresh, "unload", "other")
    fresh.wait(lambda: [r["model"] for r in parked(fresh)] == ["tiny"], 30, "its turn has come")
    operation(fresh, "wake", "tiny")
    assert answers(fresh, ask(fresh)) == before


def test_a_worker_that_dies_as_it_is_to_keep_them_comes_back_and_is_parked(fresh):
    (serving,) = loaded(fresh)
    before = answers(fresh, ask(fresh))
    os.kill(serving["pid"], signal.SIGSTOP)
    fresh.cli("park", "tiny", "--no-wait")
    os.kill(serving["pid"], signal.SIGKILL)
    fresh.wait(lambda: [r["id"] for r in parked(fresh)] == [serving["id"]], 30, "it is parked")
    assert operation(fresh, "wake", "tiny")["state"] == "OPERATION_STATE_DONE" and answers(fresh, ask(fresh)) == before


@pytest.mark.parametrize("told", [False, True], ids=["", "NVML still tells of the dead"])
def test_a_stream_of_a_worker_that_dies_as_it_is_to_keep_them_goes_on(fresh, tmp_path, told):
    """The replica restarts and serves until its weights are kept. Servers do not see the version as parked before that.
    NVML's last report before the end counts the memory of the dead process."""
    (tmp_path / "nvml").write_text(f"gpu 0 uuid=GPU-73000000-0000-0000-0000-000000000000 bus=00000000:00:00.0 total={1 << 30} used={(1 << 30) - (32 << 20)}\n")
    (serving,) = loaded(fresh, env={"SLUICE_NVML_LIBRARY": str(BIN / "fake_nvml.so"), "SLUICE_FAKE_NVML": str(tmp_path / "nvml")} if told else None)
    if told:
        fresh.wait(lambda: "figures" in json.loads(fresh.cli("devices", "--json").stdout)["devices"][1]["device"], 10, "NVML tells of it")
    reference = answers(fresh, ask(fresh, 200))
    if told:
        with open(tmp_path / "nvml", "a") as scenario:
            scenario.write("hangs\n")  # NVML reports no new figures
        fresh.wait(lambda: json.loads(fresh.cli("devices", "--json").stdout)["devices"][1]["device"]["figures"].get("error"), 20, "NVML hangs")
    got = []
    stream = threading.Thread(target=lambda: got.append(fresh.generate(ask(fresh, 200))[1]))
    stream.start()
    fresh.wait(lambda: any(int(r.get("n_running", 0)) for r in fresh.ready()) or got, 20, "it runs")
    os.kill(serving["pid"], signal.SIGSTOP)
    fresh.cli("park", "tiny", "--no-wait", "--grace", "120s")
    os.kill(serving["pid"], signal.SIGKILL)
    stream.join(patience(60))
    assert got == [reference]
    fresh.wait(lambda: [r["id"] for r in parked(fresh)] == [serving["id"]], 30, "it is parked")


def test_replicas_share_one_copy_and_unloading_gives_it_back(fresh):
    loaded(fresh, memory="32M")
    fresh.cli("scale", "tiny", "2")
    operation(fresh, "park", "tiny")
    keepers = parked(fresh)
    assert len(keepers) == 2 and len({os.stat(f"/proc/{r['pid']}/fd/3").st_ino for r in keepers}) == 1
    logs = "".join((fresh.state / f"run/replica-{r['id']}/log").read_text() for r in keepers)
    assert len(logged(logs, WEIGHTS_KEPT)) == 1
    o = operation(fresh, "unload", "tiny")
    assert o["state"] == "OPERATION_STATE_DONE" and int(by_device(o["result"]["memory"])["cpu"]["after_bytes"]) == 0, o
    assert not kept_in(manager_of(fresh))


def test_an_idle_one_is_parked_and_a_request_wakes_it(fresh):
    (serving,) = loaded(fresh, "--idle-after", "1s", "--wake-on-demand")
    before = answers(fresh, ask(fresh))
    fresh.wait(lambda: len(parked(fresh)) == 1, 20, "it is parked for being idle")
    # The request waits for the wake. On a busy machine the replica may be parked again before the next line.
    assert fresh.generate(ask(fresh))[1] == before
    assert not alive(serving["pid"])


def test_one_that_cannot_be_kept_is_not_tried_again_and_again_for_being_idle(fresh):
    (serving,) = loaded(fresh, "--idle-after", "1s", file="bf16.gguf", env={"SLUICE_MEMORY_BUDGET": "48K"})

    def failures():
        return [line for line in fresh.cli("events", "--json").stdout.splitlines() if '"operation.failed"' in line]
    fresh.wait(failures, 20, "it was tried")
    keeps(lambda: len(failures()) == 1 and [r["pid"] for r in fresh.ready()] == [serving["pid"]], 3, failures, 0.2)
