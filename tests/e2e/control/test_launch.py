"""The launch record that a worker gets from the manager, and workers that were started without one."""
import fcntl
import os
import subprocess
import sys

import grpc
import pytest

from conftest import BIN, ROOT, launch_record, names, patience
from manager_program import manager  # noqa: F401 (fixture)
from test_park import answer_of, park, states, wake

TINY = ROOT / "tests/golden/tiny/q8_0.gguf"
SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE

# Starts the real worker by flags, as an older manager does. The flags have the names of the record's fields.
BY_FLAGS = """#!{python}
import os, sys
sys.path.insert(0, {stubs!r})
from sluice.worker.v1.worker_pb2 import Launch
args = sys.argv[1:]
if args[0] == "serve":
    at = args.index("--launch-fd")
    with open("/proc/self/fd/" + args[at + 1], "rb") as f:
        record = Launch.FromString(f.read())
    args = ["serve", "--packed-fds", str(len(record.packed_fds))]
    for field, value in record.ListFields():
        name = "--" + field.name.replace("_", "-")
        if field.name == "config":
            flags = {{"kv_tokens": "--kv-tokens", "n_threads": "--threads"}}
            args += [w for f, v in value.ListFields() for w in (flags[f.name], str(v))]
        elif field.name != "packed_fds":
            args += [name + "=true"] if value is True else [name, str(value)]
os.execv({worker!r}, ["sluice-worker", *args])
"""


def program_by_flags(manager):  # noqa: F811
    stubs = next(p for p in sys.path if os.path.exists(f"{p}/sluice/worker/v1/worker_pb2.py"))
    program = manager.folder / "by_flags"
    program.write_text(BY_FLAGS.format(python=sys.executable, stubs=stubs, worker=str(BIN / "sluice-worker")))
    program.chmod(0o755)
    return program


def loaded(manager, n=1, **config):  # noqa: F811
    (manager.models / "a").write_bytes(TINY.read_bytes())
    manager.register("a", version="1")
    manager.done(manager.load("a", n_replicas=n, config=manager.t.ModelConfig(kv_tokens=512, n_threads=1, **config)))


def words(pid):
    return open(f"/proc/{pid}/cmdline").read().split("\0")[:-1]


def test_a_record_has_all_that_the_manager_knows_and_the_command_line_what_finds_the_worker(manager):  # noqa: F811
    """The test goes through the fields of the message, so a field that the manager forgets shows."""
    manager.up("--memory-budget", "200G", "--log-level", "debug", "--log-format", "json", env={"SLUICE_FAKE_GPUS": "1"})
    manager.rpc.CreateDeviceGroup(manager.m.CreateDeviceGroupRequest(name="left", devices=["cuda:0"]))
    for name in "ab":
        manager.script(name, "load_ms=60 gpu=5000000")
        manager.register(name, version="1")
    config = manager.t.ModelConfig(max_concurrent_requests=7, gpu_memory_bytes=6000000, chat_template="{{ x }}", draft_model="a")
    manager.done(manager.load("a", device_group="left"))
    manager.done(manager.load("b", device_group="left", config=config))
    replica = next(r for r in manager.replicas() if r.model == "b")
    folder = manager.state / f"run/replica-{replica.id}"
    record = launch_record(replica.pid, manager.stubs)
    assert words(replica.pid)[1:] == ["serve", "--socket", str(folder / "worker.sock"), "--replica", replica.id, "--epoch",
                                      str(replica.epoch), "--launch-fd", str(3 + len(record.packed_fds))]
    config.draft_model = f"{manager.models}/./a"  # the worker opens the rest below the root
    version = manager.rpc.GetModel(manager.m.GetModelRequest(model="b")).model.versions[0]
    wanted = {"replica": replica.id, "epoch": replica.epoch, "name": "b", "version_id": "1", "device_group": "left",
              "model": f"{manager.models}/./b", "digest": version.info.weights_digest, "socket": str(folder / "worker.sock"),
              "exit_report": str(folder / "exit.pb"), "metrics": f"unix:{folder}/metrics.sock", "devices": "cuda:0", "tp": 1, "pp": 1,
              "config": config, "replicas": 1, "memory_limit": record.memory_limit, "gpu_promised": 5000000, "gpu_held": 5000000,
              "log_level": "debug", "log_format": "json"}
    unset = {"weights_held", "weights_shared", "memory_promised", "packed_fds", "parked"}  # for a plan, for a CPU, for a parked worker
    for field in record.DESCRIPTOR.fields:
        assert field.name in unset or getattr(record, field.name) == wanted[field.name], field.name
    assert 199 << 30 < record.memory_limit < 200 << 30  # the other worker uses some of the budget


def test_a_record_names_the_memory_that_replicas_share(manager):  # noqa: F811
    manager.up()
    manager.script("a", "load_ms=60 packs=1000000")
    manager.register("a", version="1")
    manager.done(manager.load("a", n_replicas=2, tp=2))
    for replica in manager.replicas():
        record = launch_record(replica.pid, manager.stubs)
        assert list(record.packed_fds) == [3, 4] and record.tp == 2 and not record.parked
    manager.done(park(manager))
    assert all(launch_record(r.pid, manager.stubs).parked for r in manager.replicas())


def test_a_worker_that_was_started_by_flags_is_adopted_and_gives_way_to_a_wake(manager):  # noqa: F811
    """The worker of an older manager. The new manager adopts it, and parks and wakes its version."""
    manager.up(worker=program_by_flags(manager))
    loaded(manager)
    (replica,) = manager.replicas()
    assert "--kv-tokens" in words(replica.pid) and "--launch-fd" not in words(replica.pid)
    before = answer_of(manager)
    manager.kill()
    manager.up(worker=program_by_flags(manager))
    assert manager.status().n_adopted_workers == 1 and manager.replicas()[0].pid == replica.pid
    assert answer_of(manager) == before
    manager.done(park(manager))  # the parked worker is started by flags too
    (parked,) = manager.replicas()
    assert states(manager) == ["PARKED"] and "--parked=true" in words(parked.pid)
    manager.kill()
    manager.up(worker=BIN / "sluice-worker")
    assert states(manager) == ["PARKED"] and manager.replicas()[0].pid == parked.pid
    manager.done(wake(manager))
    (woken,) = manager.replicas()
    assert states(manager) == ["READY"] and woken.pid != parked.pid and woken.shared_id == parked.shared_id
    assert launch_record(woken.pid, manager.stubs).config.kv_tokens == 512
    assert answer_of(manager) == before


def test_a_chat_template_travels_in_the_record(manager):  # noqa: F811
    manager.up(worker=BIN / "sluice-worker")
    loaded(manager, chat_template="{% for m in messages %}<{{ m.content }}>é{% endfor %}")
    (replica,) = manager.replicas()
    assert not (manager.state / f"run/replica-{replica.id}/chat_template.jinja").exists()
    i = manager.stubs.inference
    with grpc.insecure_channel(f"unix:{manager.state}/run/{replica.socket}") as channel:
        stub = manager.stubs.worker_grpc.WorkerStub(channel)
        messages = [i.ChatMessage(role="user", content="hi")]
        reply = stub.ApplyChatTemplate(i.ApplyChatTemplateRequest(chat=i.Chat(messages=messages)), timeout=patience(10))
    assert reply.text == "<hi>é"


def memfd(content, seals=SEALS):
    fd = os.memfd_create("sluice-launch", os.MFD_ALLOW_SEALING)
    os.write(fd, content)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


@pytest.mark.parametrize("case", ["closed", "a file", "empty", "cut", "unsealed", "too large", "no model", "another replica", "a word"])
@pytest.mark.parametrize("mode", ["serve", "plan"])
def test_what_is_no_record_ends_with_2_as_bad_flags_do(tmp_path, stubs, case, mode):
    record = stubs.worker.Launch(model=str(TINY))
    if mode == "serve":
        record.MergeFrom(stubs.worker.Launch(replica="r1", socket=str(tmp_path / "s")))
    good = record.SerializeToString()
    opened, more, named = None, [], ["--launch-fd"]
    if case == "a file":
        opened = os.open(TINY, os.O_RDONLY)
    elif case == "empty":
        opened = memfd(b"")
    elif case == "cut":
        opened, named = memfd(good[:-1]), ["--launch-fd", "sluice.worker.v1.Launch"]
    elif case == "unsealed":
        opened = memfd(good, 0)
    elif case == "too large":
        opened, named = memfd(good + bytes(4 << 20)), ["--launch-fd", 4 << 20]
    elif case == "no model":
        record = stubs.worker.Launch(devices="cpu:0")
        opened, named = memfd(record.SerializeToString()), ["--model"]
    elif case == "another replica":
        record.replica = "r2"
        opened, more, named = memfd(record.SerializeToString()), ["--replica", "r1"] * (mode == "serve"), ["replica"]
    elif case == "a word":
        opened, more, named = memfd(good), ["model.gguf"], ["model.gguf"]
    fd = 900 if opened is None else opened
    run = subprocess.run([BIN / "sluice-worker", mode, "--launch-fd", str(fd), *more], capture_output=True, text=True,
                         timeout=patience(20), pass_fds=() if opened is None else (opened,))
    if opened is not None:
        os.close(opened)
    assert run.returncode == 2 and run.stdout == "" and run.stderr.count("\n") == 1, run
    assert names(run.stderr, *named), run.stderr


def test_a_field_that_this_worker_does_not_know_changes_nothing(tmp_path, stubs):
    """A newer manager may set fields that the worker does not have."""
    later = bytes([0xFA, 0x3E, 3]) + b"new"  # field 1007
    fd = memfd(stubs.worker.Launch(model=str(TINY), devices="cpu:0").SerializeToString() + later)
    run = subprocess.run([BIN / "sluice-worker", "plan", "--text", "--launch-fd", str(fd)], capture_output=True, text=True,
                         timeout=patience(20), pass_fds=(fd,))
    os.close(fd)
    assert run.returncode == 0 and names(run.stdout, "fits", "true"), run


def test_a_worker_with_a_record_is_as_confined_as_one_with_flags(manager):  # noqa: F811
    manager.up(worker=BIN / "sluice-worker")
    loaded(manager)
    (replica,) = manager.replicas()
    status = dict(line.split(":\t") for line in open(f"/proc/{replica.pid}/status").read().splitlines() if ":\t" in line)
    assert status["Seccomp"] == "2" and status["NoNewPrivs"] == "1"
    opened = {os.readlink(f"/proc/{replica.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{replica.pid}/fd")}
    assert not [path for path in opened if "sluice.db" in path or "manager.lock" in path]


def test_a_program_that_knows_no_records_is_named_with_its_log(manager):  # noqa: F811
    """Symptom: after a downgrade of the worker's program alone, replicas failed with "ended with status 2" and no hint."""
    program = manager.folder / "older"
    program.write_text(f"""#!{sys.executable}
import os, sys
if "--launch-fd" in sys.argv and sys.argv[1] == "serve":
    sys.exit(2)
os.execv({str(BIN / "sluice-worker")!r}, ["sluice-worker", *sys.argv[1:]])
""")
    program.chmod(0o755)
    manager.up("--crash-limit", "2", worker=program)
    (manager.models / "a").write_bytes(TINY.read_bytes())
    manager.register("a", version="1")
    operation = manager.end(manager.load("a"))
    (replica,) = manager.replicas()
    assert operation.error.reason == "CRASH_LOOP"
    assert names(operation.error.message, 2, manager.state / f"run/replica-{replica.id}/log"), operation.error
