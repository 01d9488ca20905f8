"""Register, load, watch, unload, remove; device groups; operations; bad files."""
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import threading

import grpc
import psutil
import pytest

from conftest import BIN, ROOT, alive, bad_field, cause, model_path, names, patience, until


def test_life_of_a_version(fresh):
    sluice = fresh.start()
    out = json.loads(sluice.cli("register", "smol", model_path(), "--json").stdout)
    assert out["version"]["version"] == "1" and len(out["version"]["info"]["weights_digest"]) == 64
    assert json.loads(sluice.cli("register", "smol", model_path(), "--version", "1", "--json").stdout)["existed"]
    plan = json.loads(sluice.cli("load", "smol", "--validate-only", "--json").stdout)["plan"]
    assert plan["fits"] and plan["packed_bytes"] > 50 << 20
    assert sluice.children("sluice-worker") == []

    manager, m = sluice.manager_stub(), sluice.stubs.manager
    operation = manager.LoadModelVersion(m.LoadModelVersionRequest(model="smol", request_id="once")).operation
    seen = [r.operation for r in manager.WatchOperation(m.WatchOperationRequest(id=operation.id))]
    assert seen[-1].state == sluice.stubs.types.OPERATION_STATE_DONE, seen[-1]
    assert len({o.bytes_done for o in seen}) >= 5, [o.bytes_done for o in seen]
    assert all(a.bytes_done <= b.bytes_done for a, b in zip(seen, seen[1:]) if b.bytes_total)
    again = manager.LoadModelVersion(m.LoadModelVersionRequest(model="smol", request_id="once")).operation
    assert again.id == operation.id and len(sluice.children("sluice-worker")) == 1
    assert manager.WaitOperation(m.WaitOperationRequest(id=operation.id)).operation.state == seen[-1].state
    assert manager.GetOperation(m.GetOperationRequest(id=operation.id)).operation.id == operation.id
    assert [o.id for o in manager.ListOperations(m.ListOperationsRequest()).operations] == [operation.id]

    refused = sluice.cli("rm", "smol", "1", check=False)
    assert refused.returncode == 1 and names(refused.stderr, "FAILED_PRECONDITION")
    receipt = json.loads(sluice.cli("unload", "smol", "--json").stdout)["operation"]["result"]
    memory = receipt["memory"][0]
    assert memory["before_bytes"] > memory["after_bytes"]
    assert sluice.children("sluice-worker") == []
    with pytest.raises(grpc.RpcError) as e:
        sluice.generate(sluice.request("smol", "x"))
    assert e.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    sluice.cli("rm", "smol", "1")
    assert json.loads(sluice.cli("ls", "--json").stdout).get("models", []) == []


def test_verify_tells_contents_apart_that_the_digest_does_not(fresh, tmp_path):
    sluice = fresh.start()
    file = tmp_path / "model.gguf"
    contents = bytearray(open(model_path(), "rb").read())
    file.write_bytes(contents)
    register = ["register", "smol", file, "--version", "1", "--json"]
    assert not json.loads(sluice.cli(*register).stdout)["version"].get("content_sha256")
    verified = json.loads(sluice.cli(*register, "--verify").stdout)
    assert verified["existed"] and verified["version"]["content_sha256"] == hashlib.sha256(contents).hexdigest()
    assert verified["version"]["content_sha256"] in sluice.cli("show", "smol").stdout
    sluice.cli(*register, "--verify")
    contents[-1] ^= 1  # changes a weight; header, directory and size stay the same
    file.write_bytes(contents)
    assert json.loads(sluice.cli(*register).stdout)["existed"]
    refused = sluice.cli(*register, "--verify", check=False)
    assert refused.returncode == 1 and names(refused.stderr, "CONTENT_CHANGED")


def test_device_groups(fresh):
    sluice = fresh.start()
    manager, m = sluice.manager_stub(), sluice.stubs.manager
    devices = manager.ListDevices(m.ListDevicesRequest())
    assert any(d.device.name.startswith("cpu") for d in devices.devices)
    assert [g.name for g in manager.ListDeviceGroups(m.ListDeviceGroupsRequest()).groups] == ["cpu"]
    manager.CreateDeviceGroup(m.CreateDeviceGroupRequest(name="half", devices=["cpu:0"]))
    assert {g.name for g in manager.ListDeviceGroups(m.ListDeviceGroupsRequest()).groups} == {"cpu", "half"}
    with pytest.raises(grpc.RpcError) as e:
        manager.CreateDeviceGroup(m.CreateDeviceGroupRequest(name="bad", devices=["cuda:99"]))
    assert e.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
    manager.DeleteDeviceGroup(m.DeleteDeviceGroupRequest(name="half"))
    assert [g.name for g in manager.ListDeviceGroups(m.ListDeviceGroupsRequest()).groups] == ["cpu"]


def hostile_files(folder):
    good = open(model_path(), "rb").read(4 << 20)
    cases = {
        "empty": b"",
        "seven": b"GGUF\x03\x00\x00",
        "magic": b"FUGG" + good[4:4096],
        "version": b"GGUF" + struct.pack("<I", 99) + good[8:4096],
        "tensors": good[:8] + struct.pack("<Q", 2**63) + good[16:4096],
        "keys": good[:16] + struct.pack("<Q", 2**63) + good[24:4096],
        "string": good[:24] + struct.pack("<Q", 2**64 - 1) + good[32:4096],
        "cut": good,
    }
    for name, data in cases.items():
        path = folder / f"{name}.gguf"
        path.write_bytes(data)
        yield name, path
    os.mkfifo(folder / "fifo.gguf")
    yield "fifo", folder / "fifo.gguf"
    yield "directory", folder
    yield "absent", folder / "nothing.gguf"


def test_bad_model_files_are_refused_precisely(fresh, tmp_path_factory):
    sluice = fresh.start()
    for name, path in hostile_files(tmp_path_factory.mktemp("files")):
        result = sluice.cli("register", "bad", path, check=False, timeout=patience(30))
        assert result.returncode == 1, name
        assert any(s in result.stderr for s in ("INVALID_ARGUMENT", "FAILED_PRECONDITION", "NOT_FOUND")), result.stderr
        if name in ("magic", "version", "tensors", "keys", "string", "cut", "seven", "empty"):
            assert "MODEL_FILE_INVALID" in result.stderr, (name, result.stderr)
    assert sluice.cli("status").returncode == 0


def test_memory_promised_to_one_replica_is_not_promised_again(fresh):
    """KV pages are allocated at their first use, so free memory may already be promised to a replica."""
    sluice = fresh.start()
    manager, m = sluice.manager_stub(), sluice.stubs.manager
    with open("/proc/meminfo") as lines:
        available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))

    def plan(**kwargs):
        request = m.LoadModelVersionRequest(model="smol", validate_only=True, **kwargs)
        return manager.LoadModelVersion(request).plan

    def planned(p):
        return sum(d.weight_bytes + d.kv_bytes + d.workspace_bytes for d in p.devices)

    sluice.cli("register", "smol", model_path(), "--version", "1")
    assert plan(n_replicas=3).fits and planned(plan(n_replicas=3)) <= available
    operation = manager.LoadModelVersion(m.LoadModelVersionRequest(model="smol", n_replicas=3)).operation
    list(manager.WatchOperation(m.WatchOperationRequest(id=operation.id)))
    replicas = manager.ListReplicas(m.ListReplicasRequest()).replicas
    promised = [sum(d.expected_bytes for d in r.memory) for r in replicas]
    assert len(promised) == 3 and min(promised) > 0 and sum(promised) <= available, (promised, available)
    resident = sum(r.resident_bytes for r in replicas)
    manager.CreateDeviceGroup(m.CreateDeviceGroupRequest(name="other", devices=["cpu:0"]))
    later = plan(device_group="other")
    assert later.devices[0].free_bytes < available - (sum(promised) - resident) * 0.9
    assert later.promised_bytes > 0 and later.notes
    tight = sluice.stubs.types.ModelConfig(kv_bytes=later.devices[0].free_bytes + (64 << 20))
    refused = plan(device_group="other", config=tight)
    assert not refused.fits and refused.devices[0].missing_bytes > 0
    sluice.cli("unload", "smol")
    huge = sluice.stubs.types.ModelConfig(kv_bytes=4 * available)
    operation = manager.LoadModelVersion(m.LoadModelVersionRequest(model="smol", config=huge)).operation
    ended = [r.operation for r in manager.WatchOperation(m.WatchOperationRequest(id=operation.id))][-1]
    assert ended.state == sluice.stubs.types.OPERATION_STATE_FAILED
    assert ended.error.reason == "DEVICE_MEMORY" and names(ended.error.message, "kv_tokens"), ended.error
    sluice.cli("load", "smol")  # nothing of that load runs, so another configuration may follow


def test_what_was_loaded_comes_back_after_a_restart(fresh):
    sluice = fresh.start()
    sluice.cli("register", "smol", model_path(), "--version", "1")
    sluice.cli("load", "smol")
    first = sluice.generate(sluice.request("smol", "Hello", max_tokens=8))
    sluice.stop()
    assert not sluice.announced("restoring")
    sluice.start()
    sluice.wait(lambda: len(sluice.ready()) == 1, 30, "the replica is back")
    sluice.wait(lambda: sluice.run("smol", "hi", "-n", "1", check=False).returncode == 0, 20, "it serves")
    assert sluice.generate(sluice.request("smol", "Hello", max_tokens=8))[1] == first[1]
    sluice.wait(lambda: len(sluice.announced("ready", model="smol")) == 1, 10, "it is said to be ready")
    assert len(sluice.announced("restoring", model="smol", version="1", replicas=1)) == 1


def test_what_is_loaded_beside_the_start_does_not_come_back(fresh):
    """The load comes while the manager answers and the server does not yet. `serve` has not read the list of models to
    restore."""
    def stop_server():
        os.kill(until(lambda: fresh.children("sluice-server"), 20, "the server is there", 0.005)[0], signal.SIGSTOP)

    stopper = threading.Thread(target=stop_server)
    stopper.start()
    sluice = fresh.start()
    stopper.join()
    sluice.cli("register", "tiny", ROOT / "tests/golden/tiny/q8_0.gguf", "--version", "1")
    sluice.cli("load", "tiny")
    os.kill(fresh.children("sluice-server")[0], signal.SIGCONT)
    sluice.wait(lambda: sluice.run("tiny", "hi", "-n", "1", check=False).returncode == 0, 20, "it serves")
    sluice.stop()
    assert not sluice.announced("restoring") and not sluice.announced("ready")


def test_what_cannot_come_back_is_named(fresh, tmp_path):
    file = tmp_path / "gone.gguf"
    shutil.copy(model_path(), file)
    sluice = fresh.start()
    sluice.cli("register", "gone", file, "--version", "1")
    sluice.cli("load", "gone")
    sluice.cli("register", "smol", model_path(), "--version", "1")
    sluice.cli("load", "smol")
    sluice.stop()
    file.unlink()
    sluice.start()
    sluice.wait(lambda: sluice.announced("restore_failed", model="gone", version="1"), 60, "it is said not to come back")
    sluice.wait(lambda: sluice.announced("ready", model="smol"), 20, "the other does")
    assert names(sluice.announced("restore_failed")[0]["message"], "gone.gguf") and not sluice.announced("ready", model="gone")
    (replica,) = [r["id"] for r in sluice.replicas() if r["model"] == "gone"]
    assert names(sluice.cli("show", "gone").stdout, replica, "gone.gguf", f"sluice restart {replica}")
    assert names(sluice.cli("ps").stderr, replica, "gone.gguf", f"sluice restart {replica}")
    shutil.copy(model_path(), file)
    sluice.stop()
    sluice.start()
    sluice.wait(lambda: len(sluice.announced("ready", model="smol")) == 2, 60, "the other comes back")
    replica = next(r["id"] for r in sluice.replicas() if r["model"] == "gone")
    (told,) = sluice.announced("not_restored", model="gone", version="1", replica=replica)
    assert names(told["message"], "gone.gguf"), told


def test_a_version_that_is_parked_here_and_had_failed_there_is_not_waited_for(fresh):
    """Symptom: the version was reported as loading again, and the models after that version were not reported."""
    sluice = fresh
    sluice.start(env={"SLUICE_CRASH_LIMIT": "1"})
    tiny = ROOT / "tests/golden/tiny/q8_0.gguf"
    sluice.cli("groups", "create", "two", "cpu:0")
    for name in ("a", "b"):
        sluice.cli("register", name, tiny, "--version", "1")
    sluice.cli("load", "a", "--kv-tokens", "512")
    sluice.cli("park", "a")
    sluice.cli("load", "a", "--group", "two", "--kv-tokens", "512", "--replicas", "2")
    for replica in sluice.ready():
        os.kill(replica["pid"], signal.SIGKILL)
    failed = lambda: [r["id"] for r in sluice.replicas() if r["state"] == "REPLICA_STATE_FAILED"]  # noqa: E731
    sluice.wait(lambda: len(failed()) == 2, 20, "they have failed")
    sluice.cli("restart", failed()[0])
    (other,) = failed()
    sluice.cli("load", "b", "--kv-tokens", "512")
    sluice.stop()
    sluice.start(env={"SLUICE_CRASH_LIMIT": "1"})
    sluice.wait(lambda: sluice.announced("ready", model="b"), 30, "both are told of")
    assert sluice.announced("not_restored", model="a", version="1", failed=1, replicas=2, replica=other)
    assert sluice.announced("restoring", model="a", version="1", replicas=1) and sluice.announced("ready", model="a")
    (serving,) = [r for r in sluice.ready() if r["model"] == "a"]
    os.kill(serving["pid"], signal.SIGKILL)
    sluice.wait(lambda: len(failed()) == 2, 20, "both have failed")
    sluice.stop()
    sluice.start(env={"SLUICE_CRASH_LIMIT": "1"})
    sluice.wait(lambda: len(sluice.announced("ready", model="b")) == 2, 30, "the other comes back")
    assert sluice.announced("not_restored", model="a", version="1", failed=2, replicas=2)
    assert len(sluice.announced("restoring", model="a")) == 1 and not sluice.announced("restore_failed")


def test_serve_takes_up_what_an_earlier_one_left(fresh):
    fresh.start(model_path(), "--name", "smol")
    fresh.wait(lambda: [r for r in fresh.replicas() if r["state"] == "REPLICA_STATE_LOADING"], 20, "it loads")
    pids = [p for n in ("manager", "server", "worker") for p in fresh.children(f"sluice-{n}")]
    for pid in [fresh.process.pid, *pids]:
        os.kill(pid, signal.SIGKILL)  # kills all at once, in the middle of the load
    fresh.process.wait()
    until(lambda: not any(map(alive, pids)), 10, "all are gone, of which large ones take their time")
    (fresh.state / "serve.out").unlink()
    fresh.start(model_path(), "--name", "smol")  # waits for that load instead of starting another
    fresh.wait(lambda: fresh.announced("ready"), 20, "it is loaded")
    fresh.stop()
    (fresh.state / "serve.out").unlink()
    # The settings of the command line replace those of the running load.
    fresh.start(model_path(), "--name", "smol", "--threads", "1", "--context-length", "512")
    fresh.wait(lambda: fresh.announced("ready"), 20, "it is loaded again")
    assert fresh.announced("reloading", model="smol")
    long = fresh.request("smol", "word " * 600, max_tokens=1)
    with pytest.raises(grpc.RpcError) as error:
        fresh.generate(long)
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT and names(error.value.details(), 512)
    fresh.stop()


def test_serve_loads_anew_only_the_version_that_it_means(fresh):
    """Symptom: every version of the name was unloaded, and one version was loaded."""
    file = ROOT / "tests/golden/tiny/q8_0.gguf"
    fresh.start()
    for version, threads in ("1", "1"), ("2", "2"):
        fresh.cli("register", "tiny", file, "--version", version)
        fresh.cli("load", "tiny", "--version", version, "--threads", threads)
    fresh.stop()
    (fresh.state / "serve.out").unlink()
    fresh.start(file, "--name", "tiny", "--threads", "1")
    fresh.wait(lambda: fresh.announced("ready"), 30, "what it means is loaded again")
    operations = map(json.loads, fresh.cli("ops", "list", "--json").stdout.splitlines())
    assert [o.get("version") for o in operations if o["kind"] == "OPERATION_KIND_UNLOAD"] == ["2"]
    fresh.wait(lambda: sorted(r["version"] for r in fresh.ready()) == ["1", "2"], 20, "both are loaded")
    assert len(fresh.announced("reloading", model="tiny", version="2")) == 1


def test_serve_tells_at_once_that_its_address_is_taken(fresh):
    """Symptom: `serve` printed "serving on", loaded the model and printed "ready". Then `serve` reported five times
    that the server had ended."""
    with socket.create_server(("127.0.0.1", fresh.port)):
        result = subprocess.run([BIN / "sluice", "serve", "--json", model_path(), "--state-dir", fresh.state, "--listen",
                                 fresh.address], capture_output=True, text=True, timeout=patience(10))
    assert result.returncode == 1 and names(result.stderr, fresh.address), result.stderr
    assert {json.loads(line)["event"] for line in result.stdout.splitlines()} <= {"stopping"}, result.stdout
    assert not any(fresh.children(f"sluice-{n}") for n in ("manager", "server", "worker"))


def test_a_manager_that_is_killed_as_soon_as_it_runs_takes_nobody_with_it(fresh):
    """The manager is killed six times within its first seconds. A manager that answered once shows that it can run, so
    `serve` goes on restarting it."""
    fresh.start()
    fresh.cli("register", "tiny", ROOT / "tests/golden/tiny/q8_0.gguf")
    fresh.cli("load", "tiny")
    fresh.wait(lambda: fresh.run("tiny", "x", "-n", "1", check=False).returncode == 0, 20, "the model answers")
    server, workers, killed = fresh.children("sluice-server"), fresh.children("sluice-worker"), set()

    def started():  # processes started by serve: a child of a killed manager has the manager's name until its exec
        mine = {p.pid for p in psutil.Process(fresh.process.pid).children()}
        return [p for p in fresh.children("sluice-manager") if p in mine - killed]

    while len(killed) < 6:
        fresh.wait(started, 10, "the manager is started again")
        pid = started()[0]
        os.kill(pid, signal.SIGKILL)
        killed.add(pid)
        assert fresh.generate(fresh.request("tiny", "x", max_tokens=4), timeout=patience(10))[2] is not None
    fresh.wait(lambda: fresh.cli("status", check=False).returncode == 0, 10, "the manager answers")
    assert fresh.children("sluice-server") == server and fresh.children("sluice-worker") == workers
    assert len(fresh.announced("restarted", program="manager")) == 6


@pytest.mark.parametrize("flag", ["--metrics", "--manager-metrics"])
def test_serve_names_its_own_flag_for_metrics_that_are_taken(fresh, flag):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = "127.0.0.1:%d" % taken.getsockname()[1]
        result = subprocess.run([BIN / "sluice", "serve", "--state-dir", fresh.state, "--listen", fresh.address, flag, address],
                                capture_output=True, text=True, timeout=patience(10))
    assert result.returncode == 1 and names(result.stderr, flag, address), result.stderr


def test_serve_says_whom_an_open_port_lets_in(fresh):
    fresh.address = f"0.0.0.0:{fresh.port}"
    fresh.start()
    fresh.wait(lambda: fresh.announced("open_to_network", address=fresh.address), 20, "the warning")


def test_ready_means_that_it_answers(fresh):
    fresh.start(model_path(), "--name", "smol")
    fresh.wait(lambda: fresh.announced("ready"), 30, "it is ready")
    assert fresh.announced("ready")[0]["command"] == f"sluice run smol --server {fresh.address}"
    assert fresh.run("smol", "hi", "-n", "1").returncode == 0
    refused = fresh.cli("serve", check=False).stderr
    assert names(refused, "ALREADY_SERVING", f"sluice stop --state-dir {fresh.state}"), refused


def test_serve_hands_its_file_to_the_programs_and_takes_a_relative_directory(fresh):
    """Symptom: the sections of sluice-server and sluice-manager had no effect, and a relative directory was refused."""
    command = [BIN / "sluice", "serve", "--state-dir", "./here", "--listen", fresh.address, "--config", "all.ini"]
    config = fresh.state / "all.ini"
    config.write_text("[server]\nmax_stop_strings = 2\n[manager]\nnothing = 3\n")
    result = subprocess.run(command, cwd=fresh.state, capture_output=True, text=True, timeout=patience(10))
    assert result.returncode == 1 and names(result.stderr, "all.ini:4", "[manager] nothing"), result.stderr
    config.write_text("[server]\nmax_stop_strings = 2\n[manager]\nmax_replicas = 3\n")
    with open(fresh.state / "serve.out", "ab") as log:
        fresh.process = subprocess.Popen(command, cwd=fresh.state, stdout=log, stderr=log)
    fresh.state = fresh.state / "here"
    fresh.wait(lambda: '"server_id"' in fresh.cli("status", "--json", check=False).stdout, 20, "the server is up")
    pb = fresh.stubs.inference
    request = pb.GenerateRequest(model="any", text="x", stopping=pb.Stopping(stop=["a", "b", "c"]))
    with pytest.raises(grpc.RpcError) as error:
        fresh.inference.Complete(request, timeout=patience(10))
    assert bad_field(error.value) == "stopping.stop" and names(error.value.details(), 3, 2)
    fresh.stop()


def test_a_load_that_fails_is_not_said_to_be_done(fresh):
    fresh.start()
    fresh.cli("register", "smol", model_path())
    result = fresh.cli("load", "smol", "--kv-tokens", "1000000000", check=False)
    assert result.returncode == 1 and names(result.stderr, "DEVICE_MEMORY") and "done" not in result.stderr, result.stderr


def test_what_would_go_is_told_and_a_failure_without_a_reason_has_its_code(fresh):
    """Symptom: plans of an unload printed "tp 0: fits", `unload` printed no plan, and `ops` printed a dash for a failed
    load."""
    fresh.start(ROOT / "tests/golden/tiny/q8_0.gguf", "--name", "tiny", "--threads", "1", "--kv-tokens", "512")
    fresh.wait(lambda: len(fresh.ready()) == 1, 30, "ready")
    for command in (["unload", "tiny"], ["unload", "tiny", "--group", "cpu"], ["park", "tiny"]):
        out = fresh.cli(*command, "--validate-only").stdout
        assert names(out, "cpu:0", "128.0 KiB") and "fits" not in out, out
    assert len(fresh.ready()) == 1
    none = fresh.cli("unload", "tiny", "--group", "none", check=False)
    assert none.returncode == 1 and names(none.stderr, "NOT_LOADED"), none
    fresh.cli("unload", "tiny")
    assert fresh.cli("load", "tiny", "--tp", "8", check=False).returncode == 1  # only the worker knows the shapes
    line = next(line for line in fresh.cli("ops").stdout.splitlines() if " failed " in line)
    assert line.split()[-1] == "INVALID_ARGUMENT", line
    assert "(INVALID_ARGUMENT)" in fresh.cli("ops", "show", line.split()[0]).stdout
    none = fresh.cli("groups", "create", "g", "cpu:99", check=False)
    assert names(none.stderr, "cpu:99", "NOT_FOUND"), none.stderr


def test_scaling_what_is_not_loaded_names_the_command_that_loads_it(fresh):
    """Symptom: the error named only the manager's RPC. An unload of the same version needs no such advice."""
    fresh.start()
    fresh.cli("register", "tiny", ROOT / "tests/golden/tiny/q8_0.gguf", "--version", "7")
    hint = "sluice load tiny%s --state-dir " + str(fresh.state) + "\n"
    assert hint % "" in fresh.cli("scale", "tiny", "2", check=False).stderr
    assert hint % " --version 7" in fresh.cli("scale", "tiny:7", "2", check=False).stderr
    refused = fresh.cli("unload", "tiny", check=False).stderr
    assert names(refused, "NOT_LOADED") and "sluice load" not in refused, refused


def test_what_is_advised_for_one_version_leaves_the_others_alone(fresh):
    """Symptom: the advice was `sluice unload NAME`, which ends every version."""
    fresh.start()
    for version in ("1", "2"):
        fresh.cli("register", "tiny", ROOT / "tests/golden/tiny/q8_0.gguf", "--version", version)
        fresh.cli("load", "tiny", "--version", version, "--kv-tokens", "512", "--threads", version)
    for command in (["update", "tiny", "--to", "2"], ["rm", "tiny", "2"], ["load", "tiny", "--version", "2", "--kv-tokens", "1024"],
                    ["load", "tiny", "--kv-tokens", "1024"]):
        refused = fresh.cli(*command, check=False)
        assert refused.returncode == 1 and names(refused.stderr, f"sluice unload tiny --version 2 --state-dir {fresh.state}"), refused
    assert len(fresh.ready()) == 2
    fresh.cli("scale", "tiny:1", "2")
    fewer = fresh.cli("load", "tiny", "--version", "1", "--replicas", "1", "--kv-tokens", "512", "--threads", "1", check=False)
    assert fewer.returncode == 1 and names(fewer.stderr, f"sluice scale tiny N --version 1 --state-dir {fresh.state}"), fewer


def test_without_a_home_the_directory_must_be_given():
    """Symptom: the state directory was created in the root of the file system."""
    bare = {k: v for k, v in os.environ.items() if k not in ("HOME", "XDG_STATE_HOME")}
    for command in ("serve", "ps", "stop"):
        result = subprocess.run([BIN / "sluice", command], env=bare, capture_output=True, text=True, timeout=patience(10))
        assert result.returncode == 2 and names(result.stderr, "--state-dir"), result.stderr


def test_without_a_port_the_socket_serves(fresh):
    fresh.address = ""
    fresh.start(model_path(), "--name", "smol")
    fresh.wait(lambda: fresh.announced("ready"), 30, "it is ready")
    target = f"unix:{fresh.state}/run/server.sock"
    assert fresh.announced("serving", address=target) and fresh.announced("ready", command=f"sluice run smol --server {target}")
    assert not fresh.announced("open_to_network")
    assert fresh.cli("run", "smol", "hi", "-n", "1", "--server", target).returncode == 0


def test_an_answer_that_is_cut_off_says_so_on_a_line_of_its_own(fresh):
    """Symptom: the error followed the answer's last word on the same line, and asked whether a server runs."""
    fresh.start(model_path(), "--name", "smol")
    fresh.wait(lambda: fresh.announced("ready"), 30, "it is ready")
    process = subprocess.Popen([BIN / "sluice", "run", "smol", "hi", "-n", "3000", "--ignore-eos", "--server", fresh.address],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    begin = process.stdout.read(20)
    os.kill(fresh.children("sluice-server")[0], signal.SIGKILL)
    text = begin + process.communicate(timeout=patience(20))[0]
    assert process.returncode == 1 and re.search(r"^sluice run: .*\(UNAVAILABLE, CONNECTION_LOST\)$", text, re.M) and "sluice serve" not in text, text


def test_while_a_server_is_away_the_command_line_asks_no_other(fresh):
    """Symptom: the command sent the prompt to the default address and reported that nothing runs. The command waits for
    a lost server."""
    fresh.start(model_path(), "--name", "smol", "--drain-grace", "20s")
    fresh.wait(lambda: fresh.announced("ready"), 30, "it is ready")
    (server,) = fresh.children("sluice-server")
    os.kill(server, signal.SIGKILL)
    fresh.wait(lambda: not alive(server), 10, "it is gone")  # until the server has ended it may still accept a connection
    assert fresh.cli("run", "smol", "hi", "-n", "1").returncode == 0
    live = fresh.inference.Generate(fresh.request("smol", "Without end:", max_tokens=8000, ignore_eos=True), wait_for_ready=True)
    next(live), next(live)
    fresh.process.terminate()
    fresh.wait(lambda: fresh.announced("draining"), 10, "it drains")
    result = fresh.cli("run", "smol", "hi", "-n", "1", check=False)
    assert result.returncode == 1 and names(result.stderr, fresh.state), result.stderr
    assert "8001" not in result.stderr
    next(live)  # the stream still runs
    live.cancel()


def test_output_that_is_lost_is_an_error(fresh):
    fresh.start(model_path(), "--name", "smol")
    fresh.wait(lambda: fresh.announced("ready"), 30, "it is ready")
    for args in (["ls", "--json"], ["ls"], ["run", "smol", "hi", "-n", "2000", "--server", fresh.address], ["--help"]):
        command = [BIN / "sluice", *args, *(["--state-dir", fresh.state] if args[0] != "--help" else [])]
        with open("/dev/full", "w") as full:
            result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=patience(10))
        assert result.returncode == 1 and result.stderr.count("stdout") == 1, (args, result)


def test_help_and_wrong_usage(fresh):
    for command in ("serve", "stop", "run", "register", "load", "unload", "rm", "ls", "ps", "show", "status", "version"):
        out = fresh.cli(command, "--help").stdout
        assert "usage: sluice " + command in out and "examples:" in out
    assert fresh.cli("load", check=False).returncode == 2
    assert fresh.cli("load", "x", "--tp", "17", check=False).returncode == 2
    hint = fresh.cli("ls", check=False).stderr
    assert names(hint, "UNAVAILABLE", f"sluice serve MODEL.gguf --state-dir {fresh.state}")
    assert f"--listen {fresh.address} --state-dir" in fresh.run("smol", "hi", check=False).stderr


def test_errors_name_what_is_wrong_and_are_json_where_asked(fresh):
    def error(*args):
        result = fresh.cli(*args, "--json", check=False)
        assert result.returncode in (1, 2) and result.stdout == "", result
        return json.loads(result.stderr)["error"]

    assert error("load")["code"] == "INVALID_ARGUMENT"
    assert names(error("load", "x", "--tp", "17")["message"], 17)
    assert names(error("run", "smol", "hi", "--server", "127.0.0.1")["message"], "ADDR:PORT")
    lost = error("run", "/nonexistent.gguf", "hi")
    assert (lost["code"], lost["reason"]) == ("NOT_FOUND", "") and names(lost["message"], "/nonexistent.gguf"), lost
    fresh.start(model_path(), "--name", "smol")
    fresh.wait(lambda: fresh.announced("ready"), 30, "it is ready")
    assert error("show", "none")["reason"] == "MODEL_NOT_FOUND"
    refused = fresh.run("none", "hi", check=False)
    assert refused.returncode == 1 and refused.stdout == "" and refused.stderr.startswith("sluice run: ")
    command = [BIN / "sluice", "run", "smol", "--server", fresh.address, "-n", "4"]
    typed = subprocess.run([*command, "-"], input="Say hello.\n", capture_output=True, text=True, timeout=patience(20))
    assert typed.stdout == fresh.run("smol", "Say hello.", "-n", "4").stdout
    assert subprocess.run([*command, "-"], input="", capture_output=True, text=True, timeout=patience(20)).returncode
    assert names(fresh.cli("unload", "smol").stdout, "smol")
    plan = fresh.cli("load", "smol", "--validate-only", "--kv-tokens", "900000000", "--json", check=False)
    assert plan.returncode == 1 and not json.loads(plan.stdout)["plan"]["fits"]
    assert names(fresh.cli("load", "smol").stdout, "smol 1")
    assert json.loads(fresh.cli("stop", "--json").stdout) == {"stopped": True, "managers": 0, "servers": 0, "workers": 0}
    assert error("stop")["code"] == "FAILED_PRECONDITION"


def test_what_a_stop_ended_comes_back_without_having_died(fresh):
    """Symptom: the next start reported a dead replica and a back-off."""
    def told_since(seq):
        events = map(json.loads, fresh.cli("events", "--json", "--from", str(seq + 1)).stdout.splitlines())
        return {(e["type"], cause(e)) for e in events if e["type"] in ("replica.died", "replica.restarting")}

    def last():
        return json.loads(fresh.cli("status", "--json").stdout)["last_event_seq"]

    def start(*args):
        fresh.start(*args)
        fresh.wait(lambda: [r["pid"] for r in fresh.ready()] == fresh.children("sluice-worker") != [], 30, "the replica is ready")

    start(model_path(), "--name", "smol")
    seq = last()
    fresh.cli("stop")
    fresh.process.wait(patience(20))
    start()
    assert told_since(seq) == {("replica.restarting", "RESTART")}
    seq = last()
    left = [pid for name in ("sluice-manager", "sluice-server", "sluice-worker") for pid in fresh.children(name)]
    fresh.process.kill()
    fresh.process.wait()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not any(map(alive, left)), 20, "all are gone")
    start()
    assert {kind for kind, _ in told_since(seq)} == {"replica.died"}
