"""Settings of the programs: their sources, the output of check-config and show-config, and SIGHUP."""
import os
import re
import signal
import socket
import subprocess
import time

import pytest

from conftest import BIN, ROOT, free_port, names, patience
from log_events import SETTINGS_RELOADED, logged
import setting_names
from test_management import pki  # noqa: F401 (fixture)

COMMANDS = {"server": ["--routes-file", "{d}/routes.pb", "--listen", "{a}", "--metrics", ""],
            "manager": ["--state-dir", "{d}/state", "--metrics", ""]}


class Program:
    def __init__(self, name, folder):
        self.name, self.folder = name, folder
        self.notify, self.log = folder / "notify", folder / "log"
        self.config = folder / "sluice.conf"
        self.address = f"127.0.0.1:{free_port()}"
        (folder / "conf.d").mkdir()
        self.config.write_text("log_format = json\n")

    def argv(self, *words):
        fill = {"d": self.folder, "a": self.address}
        return [BIN / f"sluice-{self.name}", *words, "--config", self.config,
                *(w.format(**fill) for w in COMMANDS[self.name])]

    def run(self, *words, **env):
        return subprocess.run(self.argv(*words), capture_output=True, text=True, timeout=patience(30), env={**os.environ, **env})

    def part(self, name, text):
        path = self.folder / "conf.d" / name
        path.write_text(text)
        return path

    def __enter__(self):
        self.heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.heard.bind(str(self.notify))
        self.heard.settimeout(patience(30))
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(self.argv(), stderr=log, env={**os.environ, "NOTIFY_SOCKET": str(self.notify)})
        assert self.hear().startswith("READY=1\nSTATUS=")
        return self

    def hear(self):
        return self.heard.recv(2000).decode()

    def reload(self):
        """Sends SIGHUP. Returns the message that systemd gets after the reload."""
        self.process.send_signal(signal.SIGHUP)
        assert self.hear().startswith("RELOADING=1\nMONOTONIC_USEC=")
        return self.hear()

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(patience(30)) == 0
        assert self.hear().startswith("STOPPING=1\nSTATUS=")
        self.heard.close()


@pytest.fixture(params=["server", "manager"])
def program(request, tmp_path):
    return Program(request.param, tmp_path)


def test_each_value_says_where_it_comes_from(program):
    """The order of precedence: flag, environment, conf.d in the order of the file names, config file, default."""
    section = f"[{program.name}]\n"
    program.config.write_text(section + "log_level = warn\ndrain_grace = 5s\n")
    program.part("10-a.conf", section + "log_level = error\n\nlog_format = json\n")
    last = program.part("20-b.conf", "# the last one wins\n" + section + "log-level = debug\n")
    program.part("30-not-read.txt", "nonsense\n")
    program.part(".hidden.conf", "nonsense\n")
    shown = program.run("show-config", "--origin", SLUICE_LOG_FORMAT="kv").stdout.splitlines()
    assert f"log_level = debug  # {last}:3" in shown
    assert "log_format = kv  # environment SLUICE_LOG_FORMAT" in shown
    assert f"drain_grace = 5s  # {program.config}:3" in shown
    assert "metrics =   # flag --metrics" in shown
    assert any(line.endswith("# default") for line in shown)
    # Without --origin the argument is a config file, which has the same effect.
    plain = program.run("show-config").stdout
    program.config.write_text(section + plain)
    for part in (program.folder / "conf.d").iterdir():
        part.unlink()
    assert program.run("show-config").stdout == plain


def test_the_table_of_all_settings_is_the_programs_own():
    """A name that the table lacks is refused before any section. A name that is only in the table is accepted without
    effect. The flags of loads come from base/settings/load_settings.c, where a row names its programs."""
    found = setting_names.settings(BIN)
    table = dict(re.findall(r'{"([a-z0-9-]+)", ([A-Z |]+)}', (ROOT / "base/settings/setting_names.c").read_text()))
    table = {name: set(p.lower().split(" | ")) for name, p in table.items()}
    rows = re.findall(r'\.flag = "([a-z0-9-]+)",.*?\.users = ([A-Z_ |]+),', (ROOT / "base/settings/load_settings.c").read_text(), re.S)
    assert len(rows) > 20
    for flag, users in rows:
        of_load = {program for program in ("cli", "worker") if f"LOAD_{program.upper()}" in users or users == "BENCH_TOO"}
        assert of_load - table.get(flag, set()), f"{flag}: setting_names.c repeats a row of load_settings.c"
        table.setdefault(flag, set()).update(of_load)
    assert table == {name: set(programs) for name, programs in found.items()}


def test_a_misspelt_key_before_any_section_is_refused(program):
    """The program took the key for a setting of another program. The key had no effect."""
    program.config.write_text("# all\n\nlog_levle = debug\n\n[server]\n")
    checked, started = program.run("check-config"), program.run()
    assert checked.returncode == started.returncode == 2 and checked.stderr == started.stderr
    assert names(checked.stderr, f"{program.config}:3", "log_levle", "log_level")
    program.config.write_text("crash_limit = 3\nmax_calls = 100\nreplicas = 1\n")  # each is a setting of another program
    assert program.run("check-config").returncode == 0


@pytest.mark.parametrize("key", ["help", "man", "version", "origin"])
def test_a_flag_that_is_no_setting_is_no_key(program, key):
    """The program accepted such a key, printed its help or version, and ended. Each start beneath `sluice serve`
    ended in the same way."""
    program.config.write_text(f"\n[{program.name}]\n{key} = true\n")
    checked, started = program.run("check-config"), program.run()
    assert checked.returncode == started.returncode == 2 and checked.stderr == started.stderr and not started.stdout
    assert names(checked.stderr, f"{program.config}:3: [{program.name}] {key}")
    program.config.write_text("version = 3\n")  # the option of a model, for `sluice`
    assert program.run("check-config").returncode == 0
    program.config.write_text("help = true\n")
    assert names(program.run("check-config").stderr, f"{program.config}:1: help")


def test_check_config_says_what_a_start_would(program):
    assert program.run("check-config").returncode == 0
    bad = program.part("90-bad.conf", f"\n[{program.name}]\ndrain_grace = soon\n")
    checked, started = program.run("check-config"), program.run()
    assert checked.returncode == started.returncode == 2
    assert names(checked.stderr, f"{bad}:3", "--drain-grace", '"soon"')
    assert checked.stderr == started.stderr
    bad.write_text(f"[{program.name}]\ndrain_grace = 5s\n\ndrain-grace = 6s\n")
    checked, started = program.run("check-config"), program.run()
    assert checked.returncode == started.returncode == 2 and checked.stderr == started.stderr
    assert names(checked.stderr, f"{bad}:4: [{program.name}] drain-grace", 2, "5s")
    bad.write_text("log_level = loud\n")
    checked, started = program.run("check-config"), program.run()
    assert checked.returncode == started.returncode == 2
    assert names(checked.stderr, f"{bad}:1: --log-level", '"loud"', "debug", "info", "warn", "error")
    assert checked.stderr == started.stderr
    bad.unlink()
    assert program.run("check-config", "--metrics", "nowhere").returncode == 0  # argv() appends a later --metrics flag, which wins
    assert program.run("chck-config").returncode == 2


MANAGER_CANNOT_START = [
    (["--manage-listen", "127.0.0.1:{port}"], 78, ["TLS"]),
    (["--manage-listen", "127.0.0.1:{port}", "--manage-tls-cert", "{cert}", "--manage-tls-key", "{key}"], 78, ["sluice keys create"]),
    (["--manage-listen", "nowhere", "--manage-tls-cert", "{cert}", "--manage-tls-key", "{key}", "--manage-tls-client-ca", "{ca}"], 78,
     ["--manage-listen", "nowhere"]),
    (["--manage-tls-cert", "/none", "--manage-tls-key", "/none"], 78, ["/none"]),
    (["--manage-tls-client-role", "viewer"], 78, ["--manage-tls-client-ca"]),
    (["--manage-keys-file", "/none"], 78, ["--manage-keys-file"]),
    (["--manage-group", "no such group"], 78, ["no such group"]),
    (["--model-root", "/none"], 1, ["--model-root", "/none"]),
    (["--worker", "/none"], 1, ["--worker", "/none"]),
    (["--worker", "/etc"], 2, ["--worker", "/etc"]),
    (["--socket", "relative"], 2, ["--socket", "relative"]),
    (["--run-dir", "/dev/null"], 2, ["--run-dir", "/dev/null"]),
    (["--run-dir", "/tmp/" + "x" * 100], 2, [107]),
    (["--memory-budget", "lots"], 2, ["sluice-manager", "--memory-budget"]),
    (["--metrics", "unix:{d}/s/run/manager.sock"], 78, ["--metrics", "--socket"]),  # the path of the default socket
    (["--metrics", "unix:"], 78, ["--metrics", 107]),
    (["--metrics", "127.0.0.1:{port}", "--manage-listen", "0.0.0.0:{port}", "--manage-tls-cert", "{cert}", "--manage-tls-key", "{key}",
      "--manage-tls-client-ca", "{ca}"], 78, ["--metrics", "--manage-listen"]),
]


@pytest.mark.parametrize("args, code, values", MANAGER_CANNOT_START, ids=lambda v: v[0] if isinstance(v, list) else "")
def test_check_config_finds_what_would_keep_a_manager_from_starting(tmp_path, pki, args, code, values):
    """check-config accepted all of these settings."""
    fill = {"d": tmp_path, "port": free_port(), "cert": pki.server[0], "key": pki.server[1], "ca": pki.ca.cert}
    argv = ["--state-dir", tmp_path / "s", "--metrics", "", *(a.format(**fill) for a in args)]

    def run(*words):
        return subprocess.run([BIN / "sluice-manager", *words, *argv], capture_output=True, text=True, timeout=patience(30))

    checked = run("check-config")
    assert (checked.returncode, checked.stdout) == (code, "") and names(checked.stderr, *values), checked
    assert not (tmp_path / "s").exists(), "it has made something"
    started = run()
    assert started.returncode == code, started
    assert [line for line in started.stderr.splitlines() if line.startswith("sluice-manager: ")] == checked.stderr.splitlines()
    if args[0] == "--run-dir" and args[1].startswith("/tmp/x"):
        os.rmdir(args[1])


def test_check_config_leaves_what_only_the_database_knows_to_the_start(tmp_path, pki):
    """The API keys of the database may be enough for a port, and check-config does not open the database. The
    command changes no file."""
    argv = ["--state-dir", tmp_path, "--metrics", "", "--manage-listen", f"127.0.0.1:{free_port()}", "--manage-tls-cert", pki.server[0],
            "--manage-tls-key", pki.server[1]]
    (tmp_path / "sluice.db").write_bytes(b"")
    checked = subprocess.run([BIN / "sluice-manager", "check-config", *argv], capture_output=True, text=True, timeout=patience(30))
    assert checked.returncode == 0, checked
    assert os.listdir(tmp_path) == ["sluice.db"]


def test_a_bad_file_leaves_all_as_it_was(program):
    """F39: SIGHUP with a broken file keeps the current settings and names the line. A repaired file takes effect, and
    the reload names settings that need a restart."""
    with program:
        bad = program.part("50.conf", f"[{program.name}]\nlog_level = debug\ndrain_graze = 1s\n")
        text = f"{bad}:3: [{program.name}] drain_graze"
        said = program.reload()
        assert said.startswith("READY=1\n") and text in said
        assert text in program.log.read_text() and text in program.run("check-config").stderr
        bad.write_text(f"[{program.name}]\nlog_level = debug\ndrain_grace = 7s\n"
                       + ("rpc_threads = 5\n" if program.name == "server" else "tool_timeout = 5s\n"))
        said = program.reload()
        row = "rpc-threads" if program.name == "server" else "tool-timeout"
        assert row in said
        (line,) = logged(program.log.read_text(), SETTINGS_RELOADED)
        assert sorted(line["set"].split()) == ["drain-grace", "log-level"] and any(names(line[k], row) for k in line if k != "set"), line
        said = program.reload()  # the setting still needs a restart, and no other setting changed
        assert row in said
        bad.unlink()
        said = program.reload()
        assert row not in said
        assert program.process.poll() is None


def test_a_fifo_among_the_settings_stops_nobody(program):
    """At SIGHUP the manager blocked forever on a FIFO. check-config blocked too."""
    with program:
        fifo = program.folder / "conf.d" / "60.conf"
        os.mkfifo(fifo)
        assert names(program.reload(), "--config", fifo)
        assert names(program.run("check-config").stderr, "--config", fifo)


def test_a_reloaded_grace_holds(tmp_path, stubs):
    """A running server reloads drain-grace. With the old 60 s, an endless stream would delay the end."""
    from plumbing import Plumbing
    config = tmp_path / "sluice.conf"
    config.write_text("[server]\ndrain_grace = 60s\n")
    p = Plumbing(tmp_path, stubs, rate=5, options=["--config", config])
    try:
        import grpc
        request = stubs.inference.GenerateRequest(model="echo", text="long")
        request.stopping.max_tokens = 100000
        call = stubs.inference_grpc.InferenceStub(grpc.insecure_channel(p.address)).Generate(request)
        next(call)
        config.write_text("[server]\ndrain_grace = 200ms\n")
        p.server.send_signal(signal.SIGHUP)
        p.wait(lambda: logged(p.text(), SETTINGS_RELOADED), "it is read")
        began = time.monotonic()
        p.server.send_signal(signal.SIGTERM)
        assert p.server.wait(patience(30)) == 0
        assert time.monotonic() - began < patience(20)
        with pytest.raises(grpc.RpcError) as refused:
            list(call)
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
    finally:
        p.stop()


@pytest.mark.parametrize("one, other", [
    (["--listen", "127.0.0.1:{port}"], ["--metrics", "127.0.0.1:{port}"]),
    (["--listen", "[::]:{port}"], ["--metrics", "127.0.0.1:{port}"]),
    (["--listen-unix", "{d}/x.sock"], ["--metrics", "unix:{link}/x.sock"]),
], ids=["the same", "one is all of the machine", "a path by another name"])
@pytest.mark.parametrize("takeover", [[], ["--takeover"]], ids=["", "takeover"])
def test_two_listeners_of_one_address_are_refused(tmp_path, one, other, takeover):
    """With --takeover both listeners shared the address. Each listener got connections that belonged to the other."""
    (tmp_path / "link").symlink_to(tmp_path)
    fill = {"d": tmp_path, "link": tmp_path / "link", "port": free_port()}
    args = [a.format(**fill) for a in [*one, *other]]
    argv = ["--routes-file", tmp_path / "routes.pb", "--listen", "", "--metrics", "", *args, *takeover]
    for words in (["check-config"], []):
        result = subprocess.run([BIN / "sluice-server", *words, *argv], capture_output=True, text=True, timeout=patience(30))
        assert result.returncode == 78 and names(result.stderr, one[0], args[1], other[0], args[3]), result
    free = ["--metrics", "127.0.0.1:0", "--listen", "127.0.0.1:0"]  # the kernel gives each listener a port of its own
    assert subprocess.run([BIN / "sluice-server", "check-config", *argv, *free]).returncode == 0


def test_serve_refuses_two_listeners_of_one_address(tmp_path):
    """serve restarted one of its programs again and again."""
    port = free_port()
    result = subprocess.run([BIN / "sluice", "serve", "--state-dir", tmp_path / "s", "--listen", f"127.0.0.1:{port}", "--metrics", "",
                             "--manager-metrics", f"localhost:{port}"], capture_output=True, text=True, timeout=patience(30))
    assert result.returncode == 2 and names(result.stderr, "--manager-metrics", f"localhost:{port}", "--listen", f"127.0.0.1:{port}"), result
    assert not (tmp_path / "s/run").exists()
