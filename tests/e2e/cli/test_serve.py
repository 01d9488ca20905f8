"""`sluice serve` and its two programs: their settings, SIGHUP, and a successor of serve's server."""
import ctypes
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import urllib.request

import psutil
import pytest

from conftest import BIN, ROOT, Sluice, free_port, names, patience, until
from log_events import NOT_HANDED_OVER, REPLICA_ENDED, REPLICA_LINKED, REPLICA_LOST, SETTINGS_NOT_RELOADED, SETTINGS_RELOADED, SIGNAL, logged


class Serving(Sluice):
    """A serve with settings from a file and the environment only."""

    def __init__(self, folder, stubs):
        super().__init__(folder, stubs)
        self.config = folder / "sluice.conf"
        self.at = {name: f"127.0.0.1:{free_port()}" for name in "abcdef"}

    def start(self, text, *args, env=None):
        self.config.write_text(text.format(**self.at))
        unset = ("SLUICE_METRICS", "SLUICE_MANAGER_METRICS")
        env = {**{k: v for k, v in os.environ.items() if k not in unset}, **{k: v.format(**self.at) for k, v in (env or {}).items()}}
        self.log = open(self.state / "serve.out", "ab")
        self.process = subprocess.Popen([BIN / "sluice", "serve", "--json", "--state-dir", self.state, "--config", self.config,
                                         *(str(a).format(**self.at) for a in args)], stdout=self.log, stderr=self.log, env=env)
        self.wait(lambda: self.announced("serving"), 20, "it serves")
        return self

    def said(self):
        return (self.state / "serve.out").read_text()

    def logged(self, name):
        return (self.state / f"log/{name}.log").read_text()

    def has(self, name, page):
        """Returns true if the address serves the /metrics of that program."""
        try:
            text = urllib.request.urlopen(f"http://{self.at[name]}/metrics", timeout=patience(5)).read().decode()
        except OSError:
            return False
        return re.search(f"^{page}", text, re.M) is not None

    def serves(self, name):
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", int(self.at[name].split(":")[1]))) == 0


@pytest.fixture
def serving(tmp_path, stubs):
    s = Serving(tmp_path, stubs)
    yield s
    s.stop()


PR_SET_CHILD_SUBREAPER = 36
SERVER, MANAGER = "sluice_server_", "sluice_manager_"


def test_the_sections_of_its_programs_hold_beneath_serve(serving):
    """serve passed its own defaults as flags, which overrode the sections of the file."""
    s = serving.start("[server]\nlisten = {a}\nmetrics = {b}\ndrain_grace = 7s\nlog_format = json\n"
                      "[manager]\nmetrics = {c}\nlog_level = warn\n")
    assert s.announced("serving", address=s.at["a"])
    assert s.serves("a") and s.has("b", SERVER) and s.has("c", MANAGER)
    assert '"level":"info"' in s.logged("server") and " level=info " not in s.logged("manager")
    for name in ("sluice-server", "sluice-manager"):
        words = open(f"/proc/{s.children(name)[0]}/cmdline").read().split("\0")
        assert not {"--listen", "--metrics", "--drain-grace", "--log-level", "--log-format"} & set(words), words
    server = s.children("sluice-server")[0]
    os.kill(server, signal.SIGSTOP)
    s.process.send_signal(signal.SIGTERM)
    try:
        s.wait(lambda: s.announced("draining", grace_ms=7000), 20, "it tells the grace that the server has")
    finally:
        os.kill(server, signal.SIGCONT)
    assert s.process.wait(patience(20)) == 0


def test_flag_before_environment_before_file_also_beneath_serve(serving):
    s = serving.start("log_level = warn\n[cli]\nmetrics = {d}\n[server]\nlisten = {a}\nmetrics = {b}\nlog_format = json\n"
                      "[manager]\nmetrics = {c}\n", "--listen", "{f}", "--log-level", "info",
                      env={"SLUICE_MANAGER_METRICS": "{e}", "SLUICE_LOG_FORMAT": "kv"})
    assert s.announced("serving", address=s.at["f"])
    assert s.serves("f") and s.has("d", SERVER) and s.has("e", MANAGER)
    assert not any(s.serves(name) for name in "abc")
    assert " level=info " in s.logged("server") and " level=info " in s.logged("manager")


@pytest.mark.parametrize("env, shared", [({"SLUICE_METRICS": "{b}"}, ""), ({}, "metrics = {b}\n")], ids=["environment", "shared"])
@pytest.mark.parametrize("own", [True, False])
def test_metrics_that_name_no_program_are_the_servers(serving, env, shared, own):
    """Both programs would have used the same address."""
    section = "[manager]\nmetrics = {c}\n" if own else "[cli]\nmanager_metrics = {c}\n"
    s = serving.start(shared + "[server]\nlisten = {a}\n" + section, env=env)
    assert s.has("b", SERVER) and s.has("c", MANAGER)


def test_a_port_that_the_kernel_chose_is_told(serving):
    """serve printed "serving on 127.0.0.1:0". The command that serve suggested used the default port."""
    s = serving.start("[server]\nlisten = 127.0.0.1:0\nmetrics =\n[manager]\nmetrics =\n", ROOT / "tests/golden/tiny/q8_0.gguf",
                      "--name", "tiny")
    s.wait(lambda: s.announced("ready"), 30, "it is ready")
    port = int(s.announced("serving")[0]["address"].removeprefix("127.0.0.1:"))
    assert port and s.announced("ready", command=f"sluice run tiny --server 127.0.0.1:{port}"), s.said()
    assert s.cli("run", "tiny", "x", "-n", "1", "--server", f"127.0.0.1:{port}").returncode == 0


def test_a_listener_of_a_section_is_checked_against_the_others(serving):
    serving.config.write_text("[server]\nlisten = 127.0.0.1:1\n[manager]\nmetrics = 127.0.0.1:1\n")
    result = subprocess.run([BIN / "sluice", "serve", "--state-dir", serving.state / "s", "--config", serving.config], capture_output=True,
                            text=True, timeout=patience(20), env={k: v for k, v in os.environ.items() if not k.endswith("METRICS")})
    assert result.returncode == 2 and names(result.stderr, "--manager-metrics", "--listen", "127.0.0.1:1")
    assert not (serving.state / "s").exists()
    serving.config.write_text("[server]\n\ndrain_grace = soon\n")
    result = subprocess.run([BIN / "sluice", "serve", "--state-dir", serving.state / "s", "--config", serving.config], capture_output=True,
                            text=True, timeout=patience(20))
    assert result.returncode == 2 and names(result.stderr, f"{serving.config}:3", "--drain-grace", '"soon"')


def hang_up(s, event, *values):
    """Sends SIGHUP and returns serve's next event of this name. The message or the settings of the event contain the
    values."""
    n = len(s.announced(event))
    s.process.send_signal(signal.SIGHUP)
    s.wait(lambda: len(s.announced(event)) > n, 20, event)
    told = s.announced(event)[-1]
    assert names(told.get("message", told.get("settings", "")), *values), told
    return told


def grace_told(s):
    """Ends serve and returns the grace in ms that serve reports. The server is stopped meanwhile, so serve must know
    the grace itself."""
    server = s.children("sluice-server")[0]
    os.kill(server, signal.SIGSTOP)
    s.process.send_signal(signal.SIGTERM)
    try:
        s.wait(lambda: s.announced("draining"), 20, "it tells the grace that the server has")
        s.process.send_signal(signal.SIGHUP)  # the SIGHUP must not shorten the drain
    finally:
        os.kill(server, signal.SIGCONT)
    assert s.process.wait(patience(20)) == 0 and not s.announced("stopping_now")
    return s.announced("draining")[0]["grace_ms"]


def test_stop_says_what_it_waits_for_and_how_to_end_it(serving):
    """Symptom: `sluice stop` was mute for the whole drain of up to a minute. The server is stopped here, so the drain
    lasts until a second `sluice stop`."""
    s = serving.start("[server]\nlisten = {a}\nmetrics =\n[manager]\nmetrics =\n")
    stop = [BIN / "sluice", "stop", "--state-dir", s.state]
    server = s.children("sluice-server")[0]
    os.kill(server, signal.SIGSTOP)
    waiting = subprocess.Popen(stop, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert names(waiting.stderr.readline(), "--drain-grace", "sluice stop")
        s.wait(lambda: s.announced("draining"), 20, "serve drains")
        again = subprocess.run(stop, capture_output=True, text=True, timeout=patience(30))
        assert again.returncode == 0, again
        assert waiting.wait(patience(30)) == 0 and s.process.wait(patience(20)) == 0
    finally:
        waiting.kill()
        waiting.communicate()


def test_a_hangup_has_both_programs_read_their_settings_again(serving):
    """SIGHUP ended serve. A repaired file takes effect, also for the grace that serve reports."""
    text = "[server]\nlisten = {a}\nmetrics =\ndrain_grace = 5s\n[manager]\nmetrics =\n"
    s = serving.start(text)
    pids = s.children("sluice-server"), s.children("sluice-manager")
    s.config.write_text(text.format(**s.at) + "[server]\ndrain_graze = 7s\n[manager]\nkill_grace = soon\n")
    hang_up(s, "settings_refused", "manager", f"{s.config}:10", "--kill-grace", '"soon"')
    s.config.write_text(text.format(**s.at) + "[server]\ndrain_graze = 7s\n")
    hang_up(s, "settings_refused", "server", f"{s.config}:8", "[server] drain_graze", "drain_grace")
    s.config.write_text(text.format(**s.at).replace("5s", "7s"))
    hang_up(s, "settings_passed_on")
    s.wait(lambda: logged(s.logged("server"), SETTINGS_RELOADED, set="drain-grace"), 10, "the server takes it up")
    s.wait(lambda: logged(s.logged("manager"), SETTINGS_RELOADED), 10, "so does the manager")
    assert not logged(s.logged("server") + s.logged("manager"), SETTINGS_NOT_RELOADED)
    assert (s.children("sluice-server"), s.children("sluice-manager")) == pids and s.process.poll() is None
    assert grace_told(s) == 7000


@pytest.mark.parametrize("bad, line, values", [
    ("[server]\nlisten_unx = 5\n", 7, ("server", "[server] listen_unx", "listen_unix")),
    ("[manager]\nmemory_budget = lots\n", None, ("manager", "--memory-budget")),
    ("[cli]\ndrain_graze = 2s\n", 7, ("[cli] drain_graze", "drain_grace")),
    (None, None, ("--manager-metrics", "--metrics", "127.0.0.1:1")),
    ("[server]\ntls_cert = /nope.pem\ntls_key = /nope.key\n", None, ("server", "/nope.pem")),
    ("[manager]\nworker = /nope/worker\n", None, ("manager", "/nope/worker")),
], ids=["server", "manager", "cli", "two at one address", "no certificate", "no worker"])
def test_a_hangup_takes_a_file_whole_or_not_at_all(serving, bad, line, values):
    """serve took the grace from a file that the server had refused. At its end serve killed the server before the
    server's own grace was over. The command also ignored an invalid key of [cli]."""
    text = "drain_grace = {}s\n[server]\nlisten = {}\n[manager]\nkill_grace = 4s\n"
    if bad is None:  # both addresses are in the file, since the environment would hide them
        text += "[server]\nmetrics = {}\n[manager]\nmetrics = {}\n"
        s = serving.start(text.format(60, "{a}", "{b}", "{c}"))
        wrong = text.format(1, s.at["a"], "127.0.0.1:1", "127.0.0.1:1")
    else:
        s = serving.start(text.format(60, "{a}"), env={"SLUICE_METRICS": "{b}", "SLUICE_MANAGER_METRICS": "{c}"})
        wrong = text.format(1, s.at["a"]) + bad
    values = (*values, f"{s.config}:{line}") if line else values
    s.config.write_text(wrong)
    hang_up(s, "settings_refused", *values)
    s.config.write_text(text.format(60, s.at["a"], s.at["b"], s.at["c"]))
    hang_up(s, "settings_passed_on")
    for name in ("server", "manager"):
        s.wait(lambda: logged(s.logged(name), SETTINGS_RELOADED), 10, f"the {name} has read it")
        assert "set=drain-grace" not in s.logged(name), "it had not taken the other one"
    s.config.write_text(wrong)
    hang_up(s, "settings_refused", *values)
    assert grace_told(s) == 60000


def test_a_hangup_names_what_waits_for_another_start(serving):
    """Some settings of serve become flags of its programs. serve ignored a change of such a setting silently."""
    text = "[server]\nlisten = {a}\nmetrics =\n[manager]\nmetrics =\n[cli]\nreplicas = 1\n"
    s = serving.start(text + "drain_grace = 9s\n")
    hang_up(s, "settings_passed_on")
    s.config.write_text(text.format(**s.at).replace("replicas = 1", "replicas = 2") + "drain_grace = 1s\nlog_level = warn\n")
    assert set(hang_up(s, "settings_wait")["settings"].split()) == {"drain-grace", "log-level", "replicas"}
    assert grace_told(s) == 9000


def test_a_child_that_does_not_come_back_says_why(serving):
    """After a bad edit serve restarted the server every few seconds, and named only the server's log."""
    text = "[server]\nlisten = {a}\nmetrics =\n[manager]\nmetrics =\n"
    s = serving.start(text)
    s.config.write_text(text.format(**s.at) + "[server]\nlisten_unx = 5\n")
    os.kill(s.children("sluice-server")[0], signal.SIGKILL)
    s.wait(lambda: [e for e in s.announced("ended", program="server", exit_status=2) if names(e["message"], f"{s.config}:7", "[server] listen_unx")], 20,
           "file and line")
    assert s.announced("ended", program="server", signal=signal.SIGKILL, log=f"{s.state}/log/server.log"), s.said()
    s.config.write_text(text.format(**s.at))
    s.wait(lambda: s.serves("a"), 20, "it comes back by itself")


def test_hangups_while_its_programs_start_end_none(serving):
    serving.config.write_text("[server]\nlisten = {a}\nmetrics =\n[manager]\nmetrics =\n".format(**serving.at))
    serving.process = subprocess.Popen([BIN / "sluice", "serve", "--json", "--state-dir", serving.state, "--config", serving.config],
                                       stdout=open(serving.state / "serve.out", "ab"))

    def serves():
        if (serving.state / "log/server.log").exists():
            serving.process.send_signal(signal.SIGHUP)
        return serving.announced("serving")
    serving.wait(serves, 20, "it serves")
    assert not serving.announced("ended"), serving.said()


def take_over(s, *args):
    """Starts another server that takes over from serve's server."""
    command = [BIN / "sluice-server", "--takeover", "--manager", s.state / "run/manager.sock", "--routes-file", s.state / "routes.pb",
               "--listen-unix", s.state / "run/server.sock", "--config", s.config, *args]
    return subprocess.Popen(command, stdout=s.log, stderr=s.log)


@pytest.mark.parametrize("end", ["successor", "serve", "serve at once"])
def test_a_server_that_took_over_is_watched_in_its_place(serving, end):
    """serve started another server again and again, and each found the lock taken. At its end serve left the
    successor running."""
    s = serving.start("[server]\nlisten = {a}\nmetrics =\n[manager]\nmetrics =\n")
    first = s.children("sluice-server")[0]
    if end == "serve at once":
        os.kill(s.process.pid, signal.SIGSTOP)
    successor = take_over(s)
    try:
        if end == "serve at once":
            s.wait(lambda: (s.state / "routes.pb.lock").read_text() == f"{successor.pid}\n", 20, "it has taken over")
            s.process.send_signal(signal.SIGTERM)
            s.process.send_signal(signal.SIGCONT)
        else:
            s.wait(lambda: s.announced("server_taken_over", pid=successor.pid, before=first), 20, "serve has seen it")
        if end == "successor":
            successor.kill()
            s.wait(lambda: s.children("sluice-server") not in ([], [successor.pid]), 20, "serve starts one of its own again")
            s.wait(lambda: s.serves("a"), 20, "and it serves")
            assert s.announced("successor_ended", pid=successor.pid) and s.announced("restarted", program="server")
            s.process.send_signal(signal.SIGTERM)
        elif end == "serve":
            assert s.serves("a") and not s.announced("restarted")
            s.process.send_signal(signal.SIGTERM)
        assert successor.wait(patience(20)) == (-signal.SIGKILL if end == "successor" else 0)
        assert s.process.wait(patience(20)) == 0
        assert s.children("sluice-server") == []
    finally:
        if successor.poll() is None:
            successor.kill()
            successor.wait()


def test_a_server_that_comes_before_the_restart_is_watched(serving):
    """serve checked for a successor only when its server ended. The command started a third server, which found the lock
    taken."""
    s = serving.start("[server]\nlisten = {a}\nmetrics =\n[manager]\nmetrics =\n")
    s.wait(lambda: s.serves("a"), 20, "it serves")
    n_kills, pid = 6, 0
    for i in range(n_kills):  # each early end doubles the pause before the restart: 3.2 s after the last end
        s.wait(lambda: s.children("sluice-server") not in ([], [pid]), 20, "a server runs")
        pid = s.children("sluice-server")[0]
        s.wait(lambda: (s.state / "routes.pb.lock").read_text() == f"{pid}\n", 20, "and has its lock")
        os.kill(pid, signal.SIGKILL)
    s.wait(lambda: len(s.announced("ended", program="server")) == n_kills, 20, "serve has seen the last end")
    other = take_over(s)
    try:
        s.wait(lambda: s.announced("server_taken_over", pid=other.pid), 20, "serve watches it")
        assert len(s.announced("restarted", program="server")) == n_kills - 1
        s.process.send_signal(signal.SIGTERM)
        assert s.process.wait(patience(20)) == 0 and other.wait(patience(20)) == 0
    finally:
        if other.poll() is None:
            other.kill()
            other.wait()


def test_a_hangup_reaches_a_server_that_has_just_taken_over(serving):
    """The old server drains and ignores SIGHUP. serve sent no SIGHUP to the server that had taken over."""
    s = serving.start("[server]\nlisten = {a}\nmetrics =\n[manager]\nmetrics =\n")
    os.kill(s.process.pid, signal.SIGSTOP)  # serve sees the end of its own server after the SIGHUP
    successor = take_over(s)
    try:
        s.wait(lambda: (s.state / "routes.pb.lock").read_text() == f"{successor.pid}\n", 20, "it has taken over")
        s.process.send_signal(signal.SIGHUP)
        os.kill(s.process.pid, signal.SIGCONT)
        s.wait(lambda: logged(s.said(), SETTINGS_RELOADED, pid=successor.pid), 20, "it reads its settings")
        s.process.send_signal(signal.SIGTERM)
        assert s.process.wait(patience(20)) == 0 and successor.wait(patience(20)) == 0
    finally:
        if successor.poll() is None:
            successor.kill()
            successor.wait()


def test_a_server_without_a_manager_is_named_before_anything_starts(serving, tmp_path):
    """serve printed "The server cannot run: locked by pid", but only after it had started the manager."""
    serving.config.write_text("[server]\nlisten = {a}\nmetrics =\n".format(**serving.at))
    alone = subprocess.Popen([BIN / "sluice-server", "--routes-file", serving.state / "routes.pb", "--config", serving.config],
                             stderr=subprocess.DEVNULL)
    try:
        lock = serving.state / "routes.pb.lock"
        serving.process = alone
        serving.log = None
        while not (lock.exists() and lock.read_text() == f"{alone.pid}\n"):
            assert alone.poll() is None
        result = subprocess.run([BIN / "sluice", "serve", "--state-dir", serving.state, "--config", serving.config], capture_output=True,
                                text=True, timeout=patience(20))
        assert result.returncode == 1 and names(result.stderr, "SERVER_RUNS", alone.pid, lock)
        stopped = re.search(r"sluice (stop [^(]*) \(", result.stderr)[1]
        subprocess.run([BIN / "sluice", *stopped.split()], check=True, timeout=patience(20))
        assert alone.wait(patience(20)) == 0
    finally:
        if alone.poll() is None:
            alone.kill()
            alone.wait()


def test_why_a_program_cannot_run_is_told_to_its_end(tmp_path):
    """serve cut the remedy for a damaged state file in the middle of a word."""
    (tmp_path / "sluice.db").write_text("this is no database\n" * 1000)
    result = subprocess.run([BIN / "sluice", "serve", "--state-dir", tmp_path, "--listen", "127.0.0.1:0", "--metrics", "", "--manager-metrics",
                             ""], capture_output=True, text=True, timeout=patience(20))
    assert result.returncode == 1 and names(result.stderr, f"sluice-manager check --state-dir {tmp_path}", f"{tmp_path}/log/manager.log"), result.stderr


@pytest.fixture
def bystander(tmp_path_factory):
    """A server of another state directory, on ports of its own."""
    folder = tmp_path_factory.mktemp("other")
    server = subprocess.Popen([BIN / "sluice-server", "--routes-file", folder / "routes.pb", "--metrics", "", "--listen",
                               f"127.0.0.1:{free_port()}"], stderr=open(folder / "log", "ab"))
    until((folder / "routes.pb.lock").exists, 20, "it has its lock")
    yield server
    server.kill()
    server.wait()
    text = (folder / "log").read_text()
    assert not logged(text, SIGNAL) and not logged(text, NOT_HANDED_OVER), text


def test_what_a_lock_file_says_has_no_other_server_signalled(serving, bystander):
    """At its end serve signalled the pid in the lock file, which was a foreign server. A takeover sent SIGUSR2 to
    that server."""
    s = serving.start("[server]\nlisten = {a}\nmetrics =\n[manager]\nmetrics =\n")
    lock = s.state / "routes.pb.lock"
    lock.write_text(f"{bystander.pid}\n")
    successor = take_over(s)
    assert successor.wait(patience(20)) == 1 and names(s.said(), lock), s.said()
    result = s.cli("stop", check=False)
    assert result.returncode == 0, result.stderr
    assert s.process.wait(patience(20)) == 0 and s.children("sluice-server") == []
    assert bystander.poll() is None


@pytest.mark.parametrize("name", ["serve.lock", "sluice.lock", "routes.pb.lock"])
def test_stop_leaves_alone_what_a_lock_file_names_and_what_has_it(tmp_path, bystander, name):
    with open(tmp_path / name, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(f"{bystander.pid}\n")
        lock.flush()
        result = subprocess.run([BIN / "sluice", "stop", "--state-dir", tmp_path], capture_output=True, text=True, timeout=patience(20))
        assert result.returncode == 1 and names(result.stderr, tmp_path / name) and not names(result.stderr, bystander.pid), result.stderr
        if name == "serve.lock":
            return
        lock.seek(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        result = subprocess.run([BIN / "sluice", "stop", "--state-dir", tmp_path], capture_output=True, text=True, timeout=patience(20))
        assert result.returncode == 1 and names(result.stderr, tmp_path / name, os.getpid()), result.stderr
        # serve must not suggest a stop command that would end nothing.
        result = subprocess.run([BIN / "sluice", "serve", "--state-dir", tmp_path, "--listen", "127.0.0.1:0", "--metrics", "",
                                 "--manager-metrics", ""], capture_output=True, text=True, timeout=patience(20))
        assert result.returncode == 1 and names(result.stderr, tmp_path / name, os.getpid()), result.stderr
        assert "sluice stop" not in result.stderr


@pytest.mark.parametrize("what", ["a FIFO", "a link"])
@pytest.mark.parametrize("name", ["serve.lock", "sluice.lock", "routes.pb.lock"])
def test_lock_files_that_are_none_are_named_at_once(tmp_path, name, what):
    """Both commands waited forever on a FIFO. Through a link, serve truncated the link's target and wrote its pid
    there."""
    state, precious = tmp_path / "s", tmp_path / "precious"
    state.mkdir(mode=0o700)
    precious.write_text("precious")
    if what == "a FIFO":
        os.mkfifo(state / name)
    else:
        (state / name).symlink_to(precious)
    serve = ("serve", "--listen", "127.0.0.1:0", "--metrics", "", "--manager-metrics", "")
    for command in (("stop",), serve) if name != "routes.pb.lock" else (("stop",),):
        result = subprocess.run([BIN / "sluice", *command, "--state-dir", state], capture_output=True, text=True, timeout=patience(20))
        assert result.returncode == 1 and names(result.stderr, state / name), (command, result.stderr)
    assert precious.read_text() == "precious"


TINY = ROOT / "tests/golden/tiny/q8_0.gguf"
QUIET = "[server]\nlisten = {a}\nmetrics =\n[manager]\nmetrics =\n"


def gone(pids):
    """Returns true if no process lives. A zombie counts as ended, since only the machine's first process may reap
    it."""
    return not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids)


def is_worker_of(s, process):
    words = process.info["cmdline"] or []
    return "serve" in words[1:2] and any(f"{s.state}/run/replica-" in w for w in words) and process.status() != psutil.STATUS_ZOMBIE


def ready_replica(s):
    return next(r["id"] for r in s.replicas() if r["state"] == "REPLICA_STATE_READY")


def ready_pids(s):
    """The pids of ready replicas; empty while no manager answers."""
    result = s.cli("ps", "--json", check=False)
    rows = json.loads(result.stdout).get("replicas", []) if result.returncode == 0 else []
    return [r["pid"] for r in rows if r["state"] == "REPLICA_STATE_READY"]


@pytest.fixture
def workers(serving):
    """The list of workers to kill at the end if the test failed."""
    pids = []
    yield pids
    for pid in pids:
        if not gone([pid]):
            os.kill(pid, signal.SIGKILL)


def test_workers_of_a_manager_that_died_just_before_the_stop_end_too(serving, workers):
    """No process ended the workers, and serve ended with 0."""
    s = serving.start(QUIET, TINY, "--name", "tiny")
    s.wait(lambda: s.announced("ready"), 30, "it is ready")
    workers += [p.pid for p in psutil.Process(s.children("sluice-manager")[0]).children()]
    os.kill(s.process.pid, signal.SIGSTOP)
    os.kill(s.children("sluice-manager")[0], signal.SIGKILL)
    s.process.send_signal(signal.SIGTERM)
    s.process.send_signal(signal.SIGCONT)
    assert s.process.wait(patience(30)) == 0
    assert workers and gone(workers)


@pytest.mark.parametrize("how", ["serve", "stop"])
def test_workers_whose_sockets_are_elsewhere_are_found(serving, workers, tmp_path_factory, how):
    """[manager] run_dir moves the sockets. The workers ran on with their memory, and `sluice stop` reported that
    nothing serves."""
    run_dir = tmp_path_factory.mktemp("run")
    s = serving.start(QUIET + f"run_dir = {run_dir}\n", TINY, "--name", "tiny")
    s.wait(lambda: s.announced("ready"), 30, "it is ready")
    workers += [p.pid for p in psutil.Process(s.children("sluice-manager")[0]).children()]
    others = s.children("sluice-manager") + s.children("sluice-server")
    if how == "serve":
        os.kill(s.process.pid, signal.SIGSTOP)
        os.kill(s.children("sluice-manager")[0], signal.SIGKILL)
        s.process.send_signal(signal.SIGTERM)
        s.process.send_signal(signal.SIGCONT)
        assert s.process.wait(patience(30)) == 0
    else:
        for pid in [s.process.pid, *others]:
            os.kill(pid, signal.SIGKILL)
        s.process.wait()
        result = subprocess.run([BIN / "sluice", "stop", "--json", "--state-dir", s.state, "--config", s.config], capture_output=True, text=True,
                                timeout=patience(30))
        assert result.returncode == 0 and json.loads(result.stdout)["workers"] == 1, result
    assert workers and gone(workers)


def test_adopted_workers_are_reaped_by_serve(serving, workers):
    """In a container whose first process reaps no children, serve left each adopted worker as a zombie. This process
    plays the first process, and reaps none."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    try:
        s = serving.start(QUIET, TINY, "--name", "tiny")
        s.wait(lambda: s.announced("ready"), 30, "it is ready")
        for _ in range(2):  # first the worker of the old manager, which the new manager adopts; then the worker of the new manager
            (manager,) = s.children("sluice-manager")
            (worker,) = [p.pid for p in psutil.process_iter(["cmdline"]) if is_worker_of(s, p)]
            workers.append(worker)
            os.kill(manager, signal.SIGKILL)
            s.wait(lambda: s.children("sluice-manager") not in ([], [manager]) and ready_pids(s) == [worker], 30, "it is adopted")
            assert psutil.Process(worker).ppid() == s.process.pid
            os.kill(worker, signal.SIGKILL)
            s.wait(lambda: not psutil.pid_exists(worker), 30, "it is reaped")
            s.wait(lambda: ready_pids(s) not in ([], [worker]), 30, "another worker is ready")
        assert not [p for p in psutil.Process(s.process.pid).children(recursive=True) if p.status() == psutil.STATUS_ZOMBIE]
    finally:
        assert libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) == 0


def test_an_end_that_was_asked_for_is_no_loss(serving):
    """An unload was logged as a warning, "replica lost", and counted as a loss. The end of serve was logged as
    "manager lost"."""
    s = serving.start("[server]\nlisten = {a}\nmetrics = {b}\n[manager]\nmetrics =\n", TINY, "--name", "tiny", "--threads", "1", "--kv-tokens", "512")
    s.wait(lambda: s.announced("ready"), 30, "it is ready")

    def losses():
        text = urllib.request.urlopen(f"http://{s.at['b']}/metrics", timeout=patience(5)).read().decode()
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("sluice_replica_losses_total{"))

    asked = [("scale", "tiny", "2"), ("scale", "tiny", "1"), ("restart", ready_replica), ("drain", ready_replica), ("park", "tiny"), ("wake", "tiny"),
             ("unload", "tiny", "--grace", "0s"), ("load", "tiny", "--threads", "1", "--kv-tokens", "512")]
    for command in asked:
        s.cli(*(word(s) if callable(word) else word for word in command))
    s.wait(lambda: len(logged(s.logged("server"), REPLICA_ENDED, level="info")) >= 5, 10, "their ends are logged")
    assert losses() == 0 and not logged(s.logged("server"), REPLICA_LOST)
    s.wait(lambda: logged(s.logged("server"), REPLICA_LINKED, replica=ready_replica(s)), 10, "the server has a link, which it can lose")
    (worker,) = ready_pids(s)
    os.kill(worker, signal.SIGKILL)
    s.wait(lambda: losses() == 1, 10, "a death is a loss")
    s.wait(lambda: ready_pids(s) not in ([], [worker]), 30, "another worker is ready")
    s.process.send_signal(signal.SIGTERM)
    assert s.process.wait(patience(30)) == 0
    assert [line for line in s.logged("server").splitlines() if " level=warn " in line] == [
        line for line in s.logged("server").splitlines() if f'event="{REPLICA_LOST}"' in line]
    assert len(logged(s.logged("server"), REPLICA_LOST, level="warn", epoch=1)) == 1


def test_serve_has_its_own_manager_whatever_others_are_told(serving):
    """SLUICE_MANAGER is for the other commands. serve waited 15 s for that manager and stopped its programs."""
    s = serving.start(QUIET, env={"SLUICE_MANAGER": "/nowhere/manager.sock"})
    assert s.announced("serving")


def test_a_lock_file_that_changes_in_the_file_waits_for_a_restart(serving, tmp_path):
    """A restarted server took the new lock file. serve looked for a successor at the old lock file."""
    s = serving.start(QUIET)
    s.config.write_text(QUIET.format(**s.at) + f"[server]\nlock_file = {tmp_path}/other.lock\n")
    assert hang_up(s, "settings_wait")["settings"] == "lock-file"
    first = s.children("sluice-server")[0]
    os.kill(first, signal.SIGKILL)
    lock = s.state / "routes.pb.lock"
    s.wait(lambda: lock.read_text() not in ("", f"{first}\n"), 20, "it has the lock that it had")
    assert not (tmp_path / "other.lock").exists() and [int(lock.read_text())] == s.children("sluice-server")


def test_all_busy_ports_are_named_at_once(serving, tmp_path):
    """A second serve named one busy port per start, in two wordings. The error did not say that another Sluice had it."""
    s = serving.start("[cli]\nlisten = {a}\nmetrics = {b}\nmanager_metrics = {c}\n", env={"SLUICE_HTTP_LISTEN": "{d}"})
    other = tmp_path / "other"
    run = [BIN / "sluice", "serve", "--state-dir", other, "--config", s.config]
    env = {k: v for k, v in os.environ.items() if k not in ("SLUICE_METRICS", "SLUICE_MANAGER_METRICS")}
    env["SLUICE_HTTP_LISTEN"] = s.at["d"]
    result = subprocess.run(run, capture_output=True, text=True, timeout=patience(20), env=env)
    assert result.returncode == 1 and names(result.stderr, "ADDRESS_IN_USE"), result.stderr
    pids = {name: s.children(f"sluice-{name}")[0] for name in ("server", "manager")}
    for address, flag, name in (("a", "--listen", "server"), ("b", "--metrics", "server"), ("c", "--manager-metrics", "manager"),
                                ("d", "--http-listen", "server")):
        assert names(result.stderr, s.at[address], flag, f"sluice-{name}", str(pids[name])), result.stderr
    assert f"sluice stop --state-dir {s.state}" in result.stderr
    assert not (other / "log/manager.log").exists()
    error = json.loads(subprocess.run([*run, "--json"], capture_output=True, text=True, timeout=patience(20), env=env).stderr)["error"]
    assert (error["code"], error["reason"]) == ("ALREADY_EXISTS", "ADDRESS_IN_USE")


def test_a_file_that_cannot_be_served_ends_serve_before_anything_starts(tmp_path):
    """serve started manager and server, printed the address, and ended then. Its error lacked the advice that
    `sluice register` gives."""
    (tmp_path / "folder").mkdir()
    for file, wanted in ((tmp_path / "none.gguf", "NOT_FOUND"), (tmp_path / "folder", "MODEL_FILE_INVALID")):
        result = subprocess.run([BIN / "sluice", "serve", file, "--state-dir", tmp_path / "state"], capture_output=True, text=True,
                                timeout=patience(20))
        assert result.returncode == 1 and names(result.stderr, file, wanted), result.stderr
        assert (wanted == "NOT_FOUND") == ("sluice doctor" not in result.stderr), result.stderr
    assert not (tmp_path / "state").exists()


def test_a_worker_that_dies_is_announced(serving, workers):
    """The terminal of serve was silent about a worker that died, unlike about a manager or a server that died."""
    s = serving.start(QUIET)
    s.cli("register", "tiny", TINY, "--version", "1")
    s.cli("load", "tiny", "--kv-tokens", "512", "--threads", "1")
    replica, (pid,) = ready_replica(s), ready_pids(s)
    workers.append(pid)
    os.kill(pid, signal.SIGKILL)
    s.wait(lambda: s.announced("replica_ended", replica=replica, model="tiny", version="1"), 20, "the death is announced")
    s.wait(lambda: s.announced("replica_restarted", replica=replica), 30, "the new start is announced")
