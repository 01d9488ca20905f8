"""`sluice serve` above its two programs: settings that are theirs, SIGHUP, and a server that took the place of its own."""
import os
import re
import signal
import socket
import subprocess
import urllib.request

import pytest

from conftest import BIN, Sluice, free_port, patience


class Serving(Sluice):
    """With settings from a file and the environment alone."""

    def __init__(self, folder, stubs):
        super().__init__(folder, stubs)
        self.config = folder / "sluice.conf"
        self.at = {name: f"127.0.0.1:{free_port()}" for name in "abcdef"}

    def start(self, text, *args, env=None):
        self.config.write_text(text.format(**self.at))
        unset = ("SLUICE_METRICS", "SLUICE_MANAGER_METRICS")
        env = {**{k: v for k, v in os.environ.items() if k not in unset}, **{k: v.format(**self.at) for k, v in (env or {}).items()}}
        self.log = open(self.state / "serve.out", "ab")
        self.process = subprocess.Popen([BIN / "sluice", "serve", "--state-dir", self.state, "--config", self.config,
                                         *(a.format(**self.at) for a in args)], stdout=self.log, stderr=self.log, env=env)
        self.wait(lambda: "serving on" in self.said(), 20, "it serves")
        return self

    def said(self):
        return (self.state / "serve.out").read_text()

    def logged(self, name):
        return (self.state / f"log/{name}.log").read_text()

    def has(self, name, page):
        """Whether that address has the /metrics of that program."""
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


SERVER, MANAGER = "sluice_server_", "sluice_manager_"


def test_the_sections_of_its_programs_hold_beneath_serve(serving):
    """Its own defaults went before them, as flags."""
    s = serving.start("[server]\nlisten = {a}\nmetrics = {b}\ndrain_grace = 7s\nlog_format = json\n"
                      "[manager]\nmetrics = {c}\nlog_level = warn\n")
    assert f"serving on {s.at['a']}, " in s.said()
    assert s.serves("a") and s.has("b", SERVER) and s.has("c", MANAGER)
    assert '"level":"info"' in s.logged("server") and " level=info " not in s.logged("manager")
    for name in ("sluice-server", "sluice-manager"):
        words = open(f"/proc/{s.children(name)[0]}/cmdline").read().split("\0")
        assert not {"--listen", "--metrics", "--drain-grace", "--log-level", "--log-format"} & set(words), words
    server = s.children("sluice-server")[0]
    os.kill(server, signal.SIGSTOP)
    s.process.send_signal(signal.SIGTERM)
    try:
        s.wait(lambda: "draining requests, up to 7" in s.said(), 20, "it tells the grace that the server has")
    finally:
        os.kill(server, signal.SIGCONT)
    assert s.process.wait(patience(20)) == 0


def test_flag_before_environment_before_file_also_beneath_serve(serving):
    s = serving.start("log_level = warn\n[cli]\nmetrics = {d}\n[server]\nlisten = {a}\nmetrics = {b}\nlog_format = json\n[manager]\nmetrics = {c}\n",
                      "--listen", "{f}", "--log-level", "info", env={"SLUICE_MANAGER_METRICS": "{e}", "SLUICE_LOG_FORMAT": "kv"})
    assert f"serving on {s.at['f']}, " in s.said()
    assert s.serves("f") and s.has("d", SERVER) and s.has("e", MANAGER)
    assert not any(s.serves(name) for name in "abc")
    assert " level=info " in s.logged("server") and " level=info " in s.logged("manager")


@pytest.mark.parametrize("env, shared", [({"SLUICE_METRICS": "{b}"}, ""), ({}, "metrics = {b}\n")], ids=["environment", "shared"])
@pytest.mark.parametrize("own", [True, False])
def test_metrics_that_name_no_program_are_the_servers(serving, env, shared, own):
    """Both would have had the one address."""
    section = "[manager]\nmetrics = {c}\n" if own else "[cli]\nmanager_metrics = {c}\n"
    s = serving.start(shared + "[server]\nlisten = {a}\n" + section, env=env)
    assert s.has("b", SERVER) and s.has("c", MANAGER)


def test_a_listener_of_a_section_is_checked_against_the_others(serving):
    serving.config.write_text("[server]\nlisten = 127.0.0.1:1\n[manager]\nmetrics = 127.0.0.1:1\n")
    result = subprocess.run([BIN / "sluice", "serve", "--state-dir", serving.state / "s", "--config", serving.config], capture_output=True,
                            text=True, timeout=patience(20), env={k: v for k, v in os.environ.items() if not k.endswith("METRICS")})
    assert result.returncode == 1 and "--manager-metrics: 127.0.0.1:1 and --listen, 127.0.0.1:1, cannot both be had" in result.stderr
    assert not (serving.state / "s").exists()
    serving.config.write_text("[server]\n\ndrain_grace = soon\n")
    result = subprocess.run([BIN / "sluice", "serve", "--state-dir", serving.state / "s", "--config", serving.config], capture_output=True,
                            text=True, timeout=patience(20))
    assert f'{serving.config}:3: --drain-grace: "soon" is not a time' in result.stderr
