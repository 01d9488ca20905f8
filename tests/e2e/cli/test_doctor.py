"""`sluice doctor` finds faults and prints the fault and the remedy. `sluice top` shows the true activity of
replicas."""
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

import grpc
import pytest

from conftest import BIN, free_port, model_path, names, patience, until
from manager_program import manager  # noqa: F401 (fixture)


def run(*args, state, check=None, program=BIN / "sluice", **kwargs):
    env = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
    env.update(HOME=str(state))
    result = subprocess.run([program, *map(str, args), "--state-dir", str(state)], capture_output=True, text=True,
                            timeout=patience(60), env=env, **kwargs)
    assert check is None or result.returncode == check, (result.stdout, result.stderr)
    return result


class Doctor:
    """The findings of a doctor run, on separate ports."""

    def __init__(self, state, *args, ports=None, **kwargs):
        self.ports = ports or [free_port() for _ in range(3)]
        flags = zip(("--listen", "--metrics", "--manager-metrics"), self.ports, strict=True)
        result = run("doctor", "--json", *(f"{flag}=127.0.0.1:{port}" for flag, port in flags), *args, state=state, **kwargs)
        self.answer = json.loads(result.stdout)
        self.findings = self.answer["findings"]
        levels = [f["level"] for f in self.findings]
        assert [self.answer["n_ok"], self.answer["n_warn"], self.answer["n_fail"]] == [levels.count(x) for x in ("ok", "warn", "fail")]
        assert result.returncode == (1 if "fail" in levels else 0)
        for finding in self.findings:  # each fault comes with a remedy
            assert bool(finding["remedy"]) == (finding["level"] != "ok"), finding
            command = finding["remedy"].split("   # ")[0]
            if command.split(" ")[0] in ("sluice", "sluice-server", "sudo", "chmod", "ps", "lsof", "du", "df", "echo", "ulimit"):
                subprocess.run(["bash", "-n", "-c", finding["remedy"]], check=True)
                assert "`" not in command, finding

    def of(self, check, level=None):
        found = [f for f in self.findings if f["check"] == check]
        assert found, (check, self.findings)
        assert level is None or {f["level"] for f in found} == {level}, found
        return found[0]["message"], found[0]["remedy"]


@pytest.fixture
def state(tmp_path):
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    return folder


def test_a_machine_where_nothing_runs(state):
    doctor = Doctor(state)
    probe = subprocess.run([BIN / "sluice-worker", "probe", "--text"], capture_output=True, text=True, check=True).stdout
    kernels = re.match(r'"(\w+)" .*\d', doctor.of("kernels")[0])
    assert kernels and kernels[1] in probe
    for check in ("openat2", "pidfd", "memfd sealing", "seccomp", "clock", "database", "database lock", "server lock", "data plane",
                  "server metrics", "manager metrics", "state"):
        doctor.of(check, "ok")
    for check in ("cuda", "huge pages", "open files", "locked memory", "disk"):
        doctor.of(check)
    message, remedy = doctor.of("manager", "fail")
    assert "manager.sock" in message and "sluice serve" in remedy
    assert list(state.iterdir()) == []  # the doctor changes nothing


def test_plain_lines_tell_the_same(state):
    result = run("doctor", state=state, check=1)
    assert re.search(r"^fail  manager  .*\n +-> sluice serve --state-dir /", result.stdout, re.M), result.stdout
    assert re.search(r"^\d+ ok, \d+ .*, \d+ ", result.stdout, re.M) and "\033" not in result.stdout


def test_a_state_directory_that_is_not_there_or_cannot_be_used(state, tmp_path):
    message, remedy = Doctor(tmp_path / "none").of("state", "warn")
    assert names(message, tmp_path / "none") and "--state-dir" in remedy
    (tmp_path / "file").write_text("")
    assert names(Doctor(tmp_path / "file").of("state", "fail")[0], tmp_path / "file")
    state.chmod(0o777)
    assert Doctor(state).of("state", "warn")[1] == f"chmod go-w {state}"


def test_a_state_directory_that_is_another_users():
    """If this process is root, the doctor runs as another user, because no file mode stops root."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        shutil.copy(BIN / "sluice", folder)
        (folder / "state").mkdir(mode=0)
        other = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
        message, remedy = Doctor(folder / "state", program=folder / "sluice", **other).of("state", "fail")
        (folder / "state").chmod(0o700)
    assert names(message, "000") and names(remedy, "chmod u+rwx")


def test_a_lock_that_no_manager_holds(state):
    with open(state / "sluice.lock", "w") as lock:
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        message, remedy = Doctor(state).of("database lock", "fail")
    assert names(message, os.getpid()) and remedy.startswith(f"lsof {state}/sluice.lock ")
    with open(state / "routes.pb.lock", "w") as lock:
        lock.write("1\n")  # a pid other than this process
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert names(Doctor(state).of("server lock", "fail")[0], f"{state}/routes.pb.lock")


def test_what_is_no_file_is_named(state):
    """The doctor reported each of these as free."""
    for name, check in (("sluice.lock", "database lock"), ("routes.pb.lock", "server lock"), ("sluice.db", "database")):
        os.mkfifo(state / name)
        message, remedy = Doctor(state).of(check, "fail")
        assert names(message, state / name) and remedy.startswith("ls -l"), (message, remedy)


def test_a_log_without_its_database_is_wrong(state):
    """The doctor reported "none yet", but no manager starts in this directory."""
    (state / "sluice.db-wal").write_bytes(b"what is left of it")
    message, remedy = Doctor(state).of("database", "fail")
    assert names(message, f"{state}/sluice.db") and remedy == f"sluice-manager check --state-dir {state}", (message, remedy)
    assert pasted(remedy, state).returncode == 65


def pasted(remedy, state):
    """Runs the remedy in a shell, from another folder."""
    env = {"PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(state)}
    return subprocess.run(["bash", "-c", remedy], cwd="/", env=env, capture_output=True, text=True, timeout=patience(60))


def test_a_server_that_holds_the_folder_without_a_manager(tmp_path):
    """Only the check of the default port found such a server. `sluice serve` does not start next to the server."""
    folder = tmp_path / "it's here"
    folder.mkdir(mode=0o700)
    lock = folder / "routes.pb.lock"
    ports = [free_port() for _ in range(4)]
    listen, metrics, _, http = (f"127.0.0.1:{port}" for port in ports)
    server = subprocess.Popen([BIN / "sluice-server", "--routes-file", folder / "routes.pb", "--metrics", metrics, "--listen", listen,
                               "--http-listen", http], stderr=subprocess.DEVNULL)
    try:
        until(lambda: lock.exists() and lock.read_text() == f"{server.pid}\n", 20, "it has the lock")
        until(lambda: socket.socket().connect_ex(("127.0.0.1", ports[1])) == 0, 20, "it listens")
        doctor = Doctor(folder, "--http-listen", http, ports=ports[:3])
        message, remedy = doctor.of("server lock", "warn")
        assert names(message, lock, "sluice-server", server.pid), message
        # the ports of this very server were reported as failures, with the advice to stop the process
        for check, address in (("data plane", listen), ("HTTP", http), ("server metrics", metrics)):
            assert names(doctor.of(check, "ok")[0], address, server.pid)
        result = pasted(remedy, tmp_path)
        assert result.returncode == 0 and server.wait(patience(20)) == 0, (remedy, result)
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()
    Doctor(folder).of("server lock", "ok")
    config = tmp_path / "sluice.conf"
    config.write_text(f"[server]\nlock_file = {tmp_path}/elsewhere\n")
    with open(tmp_path / "elsewhere", "w") as held:  # the server's own settings name this lock file
        held.write(f"{os.getpid()}\n")
        held.flush()
        fcntl.flock(held, fcntl.LOCK_EX)
        assert names(Doctor(folder, "--config", config).of("server lock", "fail")[0], tmp_path / "elsewhere", os.getpid())
    with open(lock, "w") as held:
        held.write(f"{os.getpid()}\n")
        held.flush()
        fcntl.flock(held, fcntl.LOCK_EX)
        message, remedy = Doctor(folder).of("server lock", "fail")
    assert names(message, os.getpid()) and remedy.startswith("lsof '")


def test_ports_that_others_have(state):
    with socket.create_server(("127.0.0.1", 0)) as a, socket.create_server(("127.0.0.1", 0)) as b:
        ports = [a.getsockname()[1], free_port(), b.getsockname()[1]]
        doctor = Doctor(state, ports=ports)
        for check, flag, port in (("data plane", "--listen", ports[0]), ("manager metrics", "--manager-metrics", ports[2])):
            message, remedy = doctor.of(check, "fail")
            assert names(message, f"127.0.0.1:{port}", os.getpid()) and "python" in message and names(remedy, flag)
            assert str(os.getpid()) in pasted(remedy, state).stdout
        doctor.of("server metrics", "ok")
    assert names(Doctor(state, "--metrics", "here").of("server metrics", "fail")[0], "here")


def test_files_that_are_no_models(state, tmp_path):
    bad, cut = tmp_path / "bad.gguf", tmp_path / "cut.gguf"
    bad.write_text("no model at all")
    with open(model_path(), "rb") as whole:
        cut.write_bytes(whole.read(100000))
    remedies = {}
    for path, value in ((bad, "GGUF"), (cut, cut), (tmp_path / "none", tmp_path / "none"), ("/dev/null", "/dev/null"), (tmp_path, tmp_path)):
        message, remedies[path] = Doctor(state, path).of("model", "fail")
        assert value == "GGUF" and value in message or names(message, value), message
    assert remedies[bad] == remedies[cut] and remedies[bad] not in [remedies[path] for path in remedies if path not in (bad, cut)], remedies
    assert "llama" in Doctor(state, model_path()).of("model", "ok")[0]
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/a.gguf").symlink_to(model_path())
    assert "llama" in Doctor(state, tmp_path / "folder").of("model", "ok")[0]


def test_without_its_worker_program(state, tmp_path):
    alone = tmp_path / "sluice"
    alone.write_bytes((BIN / "sluice").read_bytes())
    alone.chmod(0o755)
    result = subprocess.run([alone, "doctor", "--json", "--state-dir", state], capture_output=True, text=True)
    (worker,) = [f for f in json.loads(result.stdout)["findings"] if f["check"] == "worker"]
    assert worker["level"] == "fail" and names(worker["message"], "sluice-worker") and worker["remedy"]


def test_a_manager_without_a_server_and_one_that_hangs(manager):  # noqa: F811
    metrics = free_port()
    manager.up("--metrics", f"127.0.0.1:{metrics}")
    ports = [free_port(), free_port(), metrics]
    pid = manager.process.pid
    doctor = Doctor(manager.state, ports=ports)
    for check in ("manager", "database lock", "manager metrics"):
        assert names(doctor.of(check, "ok")[0], "sluice-manager", pid)
    doctor.of("server", "fail")
    os.kill(pid, signal.SIGSTOP)
    try:
        message, remedy = Doctor(manager.state, ports=ports).of("manager", "fail")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert message and names(remedy, f"sluice stop --state-dir {manager.state}"), (message, remedy)


def test_everything_runs(served):
    result = run("doctor", "--json", "--listen", served.address, "--metrics", "", "--manager-metrics", "", state=served.state)
    findings = json.loads(result.stdout)["findings"]
    (server,) = served.children("sluice-server")
    text = {f["check"]: f for f in findings}
    assert not [f for f in findings if f["level"] == "fail"] and result.returncode == 0, findings
    for check in ("server", "server lock", "data plane"):
        assert names(text[check]["message"], "sluice-server", server), text[check]


# --- top ---

def test_top_tells_the_rate_the_cache_and_the_requests(served):
    """The rate of a replica is about the number of messages that the stream got: a message per token."""
    call = served.inference.Generate(served.request("smol", "Count on", max_tokens=8000, ignore_eos=True))
    got, kept = [], {}

    def read():
        try:
            got.extend(1 for _ in call)
        except grpc.RpcError:
            pass

    def told():
        (kept["row"],) = json.loads(run("top", "--once", "-i", "1200ms", "--json", state=served.state, check=0).stdout)["replicas"]
        return kept["row"]["tokens_per_second"] and kept["row"]["n_running"] == 1
    reader = threading.Thread(target=read)
    reader.start()
    try:
        served.wait(lambda: len(got) > 5, 20, "it streams")
        since, n = time.monotonic(), len(got)
        served.wait(told, 20, "top tells of it")
        rate = (len(got) - n) / (time.monotonic() - since)
        table = run("ps", state=served.state, check=0).stdout
    finally:
        call.cancel()
        reader.join()
    row = kept["row"]
    assert rate / 4 < row["tokens_per_second"] < rate * 4, (rate, row)
    assert row["state"] == "ready" and row["n_queued"] == 0 and 0 < row["kv_used_ratio"] <= 1 and row["resident_bytes"] > 50e6
    assert re.search(r"QUEUED +KV +MEMORY", table) and re.search(r" (<1|\d+) %", table), table


def test_top_in_a_pipe_and_on_a_terminal(served):
    result = run("top", "--once", "--interval", "100ms", state=served.state, check=0)
    assert "\033" not in result.stdout and result.stdout.startswith("1 replicas, 1 ready: ")
    assert re.search(r"^REPLICA +MODEL +VERSION +STATE +TOK/S +KV +RUNNING +QUEUED +MEMORY", result.stdout, re.M)
    args = [str(BIN / "sluice"), "top", "--interval", "100ms", "--state-dir", str(served.state)]
    with subprocess.Popen(args, stdout=subprocess.PIPE, text=True) as piped:  # table, empty line, table
        lines = [piped.stdout.readline() for _ in range(7)]
        piped.stdout.close()  # the reader has closed the pipe, so SIGPIPE ends the program
        assert piped.wait(timeout=patience(10)) == -signal.SIGPIPE
    assert lines[0].startswith("1 replicas") and lines[3] == "\n" and lines[4].startswith("1 replicas")
    pid, fd = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a background shell ignores SIGINT, and child processes inherit that
        os.execve(args[0], args, {**os.environ, "TERM": "xterm"})
    seen, until = b"", time.monotonic() + patience(10)
    while seen.count(b"\033[H\033[2J") < 2 and time.monotonic() < until:
        if select.select([fd], [], [], 0.1)[0]:
            seen += os.read(fd, 65536)
    os.write(fd, b"\003")
    os.waitpid(pid, 0)
    os.close(fd)
    assert seen.count(b"\033[H\033[2J") >= 2


def test_top_says_that_no_manager_is_there(state):
    result = run("top", "--once", state=state, check=1)
    assert names(result.stderr, "sluice top", "UNAVAILABLE") and not result.stdout


def test_programs_that_a_killed_serve_left_are_a_warning(fresh):
    """After a kill -9 of serve nothing started manager and server again, and doctor found nothing."""
    fresh.start()
    assert "supervision" not in [f["check"] for f in Doctor(fresh.state).findings]
    fresh.process.kill()
    fresh.process.wait()
    try:
        assert "sluice stop" in Doctor(fresh.state).of("supervision", "warn")[1]
    finally:
        fresh.cli("stop")
