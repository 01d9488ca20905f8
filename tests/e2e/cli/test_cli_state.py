"""The command line's state: a history shared by several chats, and the server of a state directory. The end of a
terminal, model lists of several pages, and `sluice stop`."""
import fcntl
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import termios
import threading

import psutil
import pytest

from conftest import BIN, Sluice, keeps, model_path, names, patience, until
from manager_program import Manager, manager  # noqa: F401 (fixture)
from test_cli import cut, environment, terminal  # noqa: F401 (fixture)


@pytest.mark.parametrize("name", ["a#b", "a?b", "a,b", "a%20b", "a b", "a:b;c&d=e,f#g"])
def test_a_state_folder_may_have_any_name(tmp_path, stubs, name):
    """gRPC parses a socket's path as a URI. The programs of a folder with such a name could not reach their own
    sockets."""
    state = tmp_path / name
    state.mkdir()
    sluice = Sluice(state, stubs)
    try:
        sluice.start()
        sluice.cli("register", "smol", model_path(), "--version", "1")
        sluice.cli("load", "smol")
        assert sluice.cli("run", "smol", "hi", "-n", "2").stdout  # the command uses the sockets of the folder
        assert sluice.ready()
        sluice.cli("stop")
        assert sluice.process.wait(patience(20)) == 0
    finally:
        sluice.stop()


def say(chat, text):
    chat.expect(">>> ")
    chat.send(text + "\r")
    chat.expect(cut(2), 30)


def entries(served):
    text = (served.state / "xdg/sluice/chat_history").read_text()
    return re.findall(r"^[a-z]+-\d+", text, re.M)


def test_two_chats_at_once_keep_both_histories(served, terminal):  # noqa: F811
    """Each chat wrote the history of its start plus its own lines. The last chat to end overwrote the other's
    lines."""
    one, two = terminal("chat", "smol", "-n", "2"), terminal("chat", "smol", "-n", "2")
    say(one, "one-1")
    say(two, "two-1")
    say(one, "one-2")
    say(two, "two-2")
    assert entries(served) == ["one-1", "two-1", "one-2", "two-2"]
    history = served.state / "xdg/sluice/chat_history"
    assert history.stat().st_mode & 0o777 == 0o600 and [p.name for p in history.parent.iterdir()] == ["chat_history"]
    many = [terminal("chat", "smol", "-n", "2") for _ in range(6)]
    threads = [threading.Thread(target=say, args=(chat, f"many-{i}")) for i, chat in enumerate(many)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(entries(served)[4:]) == [f"many-{i}" for i in range(6)]


def run_in(served, *args, **more):
    env = {**environment(served), **more}
    del env["SLUICE_SERVER"], env["SLUICE_STATE_DIR"]
    return subprocess.run([BIN / "sluice", *map(str, args)], capture_output=True, text=True, timeout=60, env=env)


def test_the_state_directory_names_its_server(served, tmp_path):
    """`--state-dir` selected the manager only. The command looked for the server on the default port."""
    result = run_in(served, "run", "smol", "hi", "-n", "2", "--state-dir", served.state)
    assert result.returncode == 0 and result.stdout.strip(), result.stderr
    assert run_in(served, "tokenize", "smol", "hi", "--state-dir", served.state).returncode == 0
    link = tmp_path / "xdg"
    link.mkdir()
    (link / "sluice").symlink_to(served.state)
    assert run_in(served, "run", "smol", "hi", "-n", "2", XDG_STATE_HOME=str(link)).returncode == 0  # the default state directory works too
    asked = run_in(served, "run", "smol", "hi", "--state-dir", served.state, "--server", "127.0.0.1:1")
    assert asked.returncode == 1 and names(asked.stderr, "127.0.0.1:1")  # an explicit --server wins over the state directory
    keyed = run_in(served, "run", "smol", "hi", "--state-dir", served.state, "--tls-ca", "/nonexistent")
    assert keyed.returncode == 1  # a request for TLS must not end on a plain-text socket


@pytest.mark.parametrize("nohup", [False, True])
def test_the_end_of_its_terminal_drains_serve_unless_told_otherwise(fresh, nohup):
    """A closed terminal ended serve at once. Manager, server and workers ran on."""
    ours, its = os.openpty()
    was = signal.signal(signal.SIGHUP, signal.SIG_IGN if nohup else signal.SIG_DFL)  # the test itself may run under nohup
    try:
        fresh.start(start_new_session=True, preexec_fn=lambda: fcntl.ioctl(its, termios.TIOCSCTTY, 0))
    finally:
        signal.signal(signal.SIGHUP, was)
        os.close(its)
    os.close(ours)
    if nohup:
        keeps(lambda: fresh.process.poll() is None and fresh.children("sluice-manager"), 1, "it runs on", 0.1)
        return
    assert fresh.process.wait(15) == 0
    assert fresh.children("sluice-manager") == fresh.children("sluice-server") == []


SERVER = """#!{python}
import concurrent.futures, os, signal, sys, time
import grpc
sys.path.insert(0, {stubs!r})
from sluice.v1 import inference_pb2 as i, inference_pb2_grpc as g

class Inference(g.InferenceServicer):
    def ListModels(self, request, context):
        page = int(request.page_token or 0)
        models = [i.ServedModel(name=f"m{{page}}{{k}}", versions=[i.ServedVersion(n_running=1, n_queued=2)]) for k in range(2)]
        return i.ListModelsResponse(models=models, next_page_token=str(page + 1) if page < 2 else "")

server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
g.add_InferenceServicer_to_server(Inference(), server)
server.add_insecure_port("unix:" + sys.argv[sys.argv.index("--listen-unix") + 1])
server.start()
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), os._exit(0)))  # the time that its drain takes
open({flag!r}, "w").close()
server.wait_for_termination()
"""


def test_what_drains_is_counted_over_every_page_of_models(tmp_path, stubs):
    """The fake server lists two models a page; the real server lists a thousand. The count missed twelve of eighteen
    requests."""
    for name in ("sluice-manager", "sluice-worker"):
        (tmp_path / name).symlink_to(BIN / name)
    shutil.copy(BIN / "sluice", tmp_path / "sluice")
    folder = pathlib.Path(stubs.inference.__file__).parents[2]
    (tmp_path / "sluice-server").write_text(SERVER.format(python=sys.executable, stubs=str(folder), flag=str(tmp_path / "up")))
    (tmp_path / "sluice-server").chmod(0o755)
    process = subprocess.Popen([tmp_path / "sluice", "serve", "--json", "--state-dir", tmp_path / "s", "--listen", "127.0.0.1:1"],
                               stdout=subprocess.PIPE, text=True)
    until(lambda: (tmp_path / "up").exists() or process.poll() is not None, 20, "the server is up", 0.05)
    assert process.poll() is None, process.communicate(timeout=5)
    process.send_signal(signal.SIGTERM)
    told = map(json.loads, process.communicate(timeout=patience(30))[0].splitlines())
    assert [e["requests"] for e in told if e["event"] == "draining"] == [18]


def test_a_key_is_shown_to_the_server_of_the_state_directory(fresh, tmp_path):
    """The command must use the server of the state directory, whatever its port. The command sent the key to the server on the default port, so a wrong key
    seemed to work."""
    made = subprocess.run([BIN / "sluice", "key", "new", "acme"], capture_output=True, text=True, check=True).stdout.splitlines()
    keys = tmp_path / "keys"
    keys.write_text(made[1] + "\n")
    keys.chmod(0o600)
    fresh.start(model_path(), "--name", "smol", "--keys-file", keys)
    env = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_") or k == "SLUICE_METRICS"}

    def run(*args):
        return subprocess.run([BIN / "sluice", *map(str, args), "--state-dir", fresh.state], capture_output=True, text=True, env=env,
                              timeout=patience(60))
    fresh.wait(lambda: run("run", "smol", "hi", "-n", "1").returncode == 0, 30, "it answers on its socket")
    assert run("run", "smol", "hi", "-n", "1", "--api-key", made[0]).returncode == 0
    wrong = run("run", "smol", "hi", "-n", "1", "--api-key", made[0][:-1] + ("0" if made[0][-1] != "0" else "1"))
    assert wrong.returncode != 0 and names(wrong.stderr, "UNAUTHENTICATED") and "8001" not in wrong.stderr, wrong


# --- stop ---

def stop(manager, *args):  # noqa: F811
    env = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
    return subprocess.run([BIN / "sluice", "stop", "--json", "--state-dir", manager.state, *args], capture_output=True, text=True, env=env,
                          timeout=patience(60))


def ended(stopped, **counts):
    """Returns true if the stop succeeded and reported these counts of ended processes."""
    return stopped.returncode == 0 and json.loads(stopped.stdout).items() >= {"stopped": True, **counts}.items()


def nothing_served(stopped):
    return stopped.returncode == 1 and json.loads(stopped.stderr)["error"]["reason"] == "NOT_SERVING"


def by_hand(manager, folder, *args, n=1, **kwargs):  # noqa: F811
    """Starts a manager as people start it in a shell. Starts n replicas with workers that carry the name of the real
    program."""
    worker = folder / "sluice-worker"
    if not worker.exists():
        shutil.copy(BIN / "fake_worker", worker)
    manager.up(*args, worker=worker, **kwargs)
    for i in range(n):
        manager.register(manager.script(f"m{i}"))
        manager.done(manager.load(f"m{i}"))
    return [r.pid for r in manager.replicas()]


def lives(pid):
    try:
        return psutil.Process(pid).status() != "zombie"
    except psutil.NoSuchProcess:
        return False


def test_stop_ends_what_was_started_without_serve(manager, tmp_path):  # noqa: F811
    """The workers ran on with all their memory, and the command printed "stopped"."""
    workers = by_hand(manager, tmp_path, n=2)
    server = subprocess.Popen([BIN / "sluice-server", "--manager", manager.state / "run/manager.sock", "--listen", "127.0.0.1:0",
                               "--metrics", ""], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    manager.wait(lambda: len(manager.status().servers) == 1, 10, "the server is known")
    os.kill(workers[0], signal.SIGSTOP)  # a worker that hangs is killed
    stopped = stop(manager)
    assert ended(stopped, managers=1, servers=1, workers=2), stopped
    assert not any(lives(p) for p in workers) and manager.process.wait(1) == 0 and server.wait(1) == 0
    assert nothing_served(stop(manager))
    manager.up(worker=tmp_path / "sluice-worker")
    ready = manager.t.REPLICA_STATE_READY
    manager.wait(lambda: [r.state for r in manager.replicas()] == [ready] * 2, 10, "what was loaded is back")


def test_stop_ends_workers_whose_manager_is_gone(manager, tmp_path):  # noqa: F811
    """Workers outlive their manager by design. The command did not find such workers."""
    workers = by_hand(manager, tmp_path)
    assert manager.term() == 0 and lives(workers[0])
    stopped = stop(manager)
    assert ended(stopped, servers=0, workers=1) and not lives(workers[0]), stopped


def test_stop_ends_workers_of_a_run_directory_elsewhere(manager, tmp_path):  # noqa: F811
    run = tmp_path / "elsewhere"
    socket = manager.state / "run/manager.sock"
    (manager.state / "run").mkdir(parents=True)
    workers = by_hand(manager, tmp_path, "--run-dir", run, "--socket", socket)
    assert ended(stop(manager)) and not lives(workers[0])


def test_stop_leaves_what_lies_below_its_state_directory_alone(manager, tmp_path):  # noqa: F811
    """The given state directory contains the manager's one. The command ended that manager's worker, because the
    socket's path has the same prefix."""
    workers = by_hand(manager, tmp_path)
    for upper in (manager.folder, tmp_path / "link"):
        if upper != manager.folder:
            upper.symlink_to(manager.folder)
        stopped = subprocess.run([BIN / "sluice", "stop", "--json", "--state-dir", upper], capture_output=True, text=True, timeout=patience(30))
        assert nothing_served(stopped) and lives(workers[0]), stopped


def test_stop_asks_the_manager_where_it_was_told_to_be(manager, tmp_path):  # noqa: F811
    """The manager runs with --run-dir. The command left the manager's workers running and did not mention them."""
    run = tmp_path / "r"
    (tmp_path / "w").mkdir()
    manager.state.mkdir(exist_ok=True)
    (manager.state / "run").symlink_to(run)  # the test's own client connects there
    workers = by_hand(manager, tmp_path / "w", "--run-dir", run)
    (manager.state / "run").unlink()
    stopped = stop(manager)
    assert ended(stopped, managers=1, servers=0, workers=1) and not lives(workers[0]), stopped


def test_stop_leaves_the_workers_of_another_manager_alone(manager, tmp_path):  # noqa: F811
    """The command's config file names another manager's run_dir and state_dir. The command read the run_dir only, and
    killed the workers of the running manager."""
    run = tmp_path / "elsewhere"
    (manager.state / "run").mkdir(parents=True)
    workers = by_hand(manager, tmp_path, "--run-dir", run, "--socket", manager.state / "run/manager.sock")
    settings = tmp_path / "settings"
    settings.write_text(f"[manager]\nstate_dir = {manager.state}\nrun_dir = {run}\n")
    (tmp_path / "nothing").mkdir()
    stopped = subprocess.run([BIN / "sluice", "stop", "--json", "--state-dir", tmp_path / "nothing", "--config", settings], capture_output=True,
                             text=True, timeout=patience(30))
    assert nothing_served(stopped) and lives(workers[0]), stopped
    assert manager.process.poll() is None
    assert stop(manager).returncode == 0 and not lives(workers[0])


def test_stop_asks_no_other_manager_what_to_end(manager, tmp_path_factory, stubs):  # noqa: F811
    """SLUICE_MANAGER names another manager for the other commands. `sluice stop` ended the servers and workers of
    that manager."""
    workers = by_hand(manager, tmp_path_factory.mktemp("w"))
    other = Manager(tmp_path_factory.mktemp("o"), stubs)
    try:
        theirs = by_hand(other, tmp_path_factory.mktemp("w"))
        stopped = subprocess.run([BIN / "sluice", "stop", "--json", "--state-dir", manager.state], capture_output=True, text=True,
                                 timeout=patience(30), env=dict(os.environ, SLUICE_MANAGER=f"{other.state}/run/manager.sock"))
        assert ended(stopped, workers=1) and not lives(workers[0]), stopped
        assert lives(theirs[0]) and other.process.poll() is None
    finally:
        other.clean()


def test_stop_leaves_a_unit_to_systemctl(manager, tmp_path):  # noqa: F811
    """The command ended a manager that systemd supervises. systemd restarted the manager a second later."""
    script = tmp_path / "unit"
    script.write_text(f'#!/bin/sh\nSYSTEMD_EXEC_PID=$$ exec {BIN}/sluice-manager --state-dir {manager.state} --metrics ""\n')
    script.chmod(0o755)
    manager.process = subprocess.Popen([script])
    manager.connect()
    refused = stop(manager)
    assert refused.returncode == 1 and names(refused.stderr, manager.process.pid, "systemctl stop"), refused
    assert manager.process.poll() is None


def test_stop_ends_a_server_whose_manager_is_gone(manager, tmp_path):  # noqa: F811
    """The server reads its settings from a file, so its command line names no state directory. The server kept the
    port and the lock, and the command reported 0 servers."""
    settings = tmp_path / "settings"
    settings.write_text(f"[server]\nmanager = {manager.state}/run/manager.sock\nroutes_file = {manager.state}/routes.pb\n"
                        "listen = 127.0.0.1:0\nmetrics =\n")
    workers = by_hand(manager, tmp_path)
    server = subprocess.Popen([BIN / "sluice-server", "--config", settings], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    manager.wait(lambda: len(manager.status().servers) == 1, 10, "the server is known")
    assert manager.term() == 0
    stopped = stop(manager)
    assert ended(stopped, servers=1, workers=1), stopped
    assert server.wait(5) == 0 and not lives(workers[0])


def test_stop_leaves_a_servers_unit_to_systemctl(manager, tmp_path):  # noqa: F811
    """The manager's unit is stopped already, as `sluice stop` advised. systemd would restart the server of the
    server's unit."""
    script = tmp_path / "unit"
    script.write_text(f'#!/bin/sh\nSYSTEMD_EXEC_PID=$$ exec {BIN}/sluice-server --manager {manager.state}/run/manager.sock '
                      '--listen 127.0.0.1:0 --metrics ""\n')
    script.chmod(0o755)
    server = subprocess.Popen([script])
    try:
        manager.wait(lambda: "sluice-server" in "".join(psutil.Process(server.pid).cmdline()[:1]), 10, "it runs")  # the command line is empty during exec
        refused = stop(manager)
        assert refused.returncode == 1 and names(refused.stderr, server.pid, "systemctl stop"), refused
        assert server.poll() is None
    finally:
        server.kill()
        server.wait()


def test_the_last_events_are_the_last_of_those_that_are_wanted(manager):  # noqa: F811
    """The command filtered the last 20 events of all types. For a rare type it printed nothing."""
    manager.up("--metrics", "")
    m = manager.m
    for i in range(25):
        manager.rpc.CreateDeviceGroup(m.CreateDeviceGroupRequest(name=f"g{i}", devices=["cpu:0"]))
    for _ in range(700):  # more events than the first read covers
        manager.rpc.CreateDeviceGroup(m.CreateDeviceGroupRequest(name="other", devices=["cpu:0"]))
        manager.rpc.DeleteDeviceGroup(m.DeleteDeviceGroupRequest(name="other"))

    def groups(*args):
        result = subprocess.run([BIN / "sluice", "events", *args, "--state-dir", manager.state, "--json"], capture_output=True, text=True,
                                timeout=patience(60), check=True)
        return [json.loads(line) for line in result.stdout.splitlines()]
    everything = groups("--from", "1")
    assert len(everything) > 1400
    for kind in ("device_group.deleted", "audit.CreateDeviceGroup", "no.such"):
        assert groups("--type", kind) == [e for e in everything if e["type"].startswith(kind)][-20:], kind
    seldom = everything[0]["type"]
    assert len(groups("--type", seldom)) == min(20, sum(e["type"] == seldom for e in everything))
    assert groups() == everything[-20:]


def failed(*args, state):
    """Runs a command that cannot connect. Returns its error as text and as an object."""
    env = {**{k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}, "HOME": str(state)}
    run = [BIN / "sluice", *map(str, args), "--state-dir", state]
    text, object_ = (subprocess.run([*run, *json_flag], capture_output=True, text=True, env=env, timeout=patience(30))
                     for json_flag in ([], ["--json"]))
    assert text.returncode == object_.returncode == 1
    assert "last error" not in text.stderr, text.stderr  # gRPC core's text
    return text.stderr, json.loads(object_.stderr)["error"]


def test_a_failed_connection_names_the_peer_in_plain_words(fresh, tmp_path):
    """The error was gRPC core's text, with a guess after it. The guess was to start a server, even while serve restarted
    the manager or a web server had the port."""
    text, error = failed("ls", state=tmp_path / "none")
    assert error["reason"] == "NOT_CONNECTED" and names(text, tmp_path / "none/run/manager.sock") and "sluice serve MODEL.gguf" in text
    with subprocess.Popen([sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"], stdout=subprocess.PIPE, text=True) as web:
        try:
            port = re.search(r"port (\d+)", web.stdout.readline())[1]
            text, error = failed("run", "smol", "hi", "--server", f"127.0.0.1:{port}", state=tmp_path / "none")
            assert error["reason"] == "HTTP1_PORT" and names(text, f"127.0.0.1:{port}", web.pid), text
            assert "sluice serve MODEL" not in text
        finally:
            web.kill()
    fresh.start()
    (manager,) = fresh.children("sluice-manager")
    fresh.process.send_signal(signal.SIGSTOP)  # serve starts the manager again after the assertions
    try:
        psutil.Process(manager).kill()
        until(lambda: psutil.Process(manager).status() == psutil.STATUS_ZOMBIE, 10, "the manager ends")
        text, error = failed("ls", state=fresh.state)
        assert error["reason"] == "NOT_CONNECTED" and "sluice serve MODEL" not in text, text
    finally:
        fresh.process.send_signal(signal.SIGCONT)
