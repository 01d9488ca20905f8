"""The CPUs of a worker's threads, the CPU time of an idle worker, and the worker's memory, seen from outside."""
import os
import pathlib
import re
import signal
import subprocess
import time

import pytest

from conftest import BIN, ROOT, model_path, names, patience, sanitized, steady, until
from log_events import READY, logged

TINY_MODEL = ROOT / "tests/golden/tiny/q4_1.gguf"
ALLOWED = sorted(os.sched_getaffinity(0))
MIB = 1 << 20
pytestmark = pytest.mark.skipif(sanitized(), reason="sanitizers have threads and memory of their own")


class Replica:
    """`sluice-worker serve`; the constructor waits until the worker is ready."""

    def __init__(self, folder, model, *flags):
        self.log = folder / "log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([BIN / "sluice-worker", "serve", "--socket", folder / "w.sock", "--model", model, *flags],
                                            stdout=log, stderr=log)
        until(lambda: logged(self.log.read_text(), READY) or self.process.poll() is not None, 30, self.log.read_text, 0.02)
        assert self.process.poll() is None, self.log.read_text()
        self.proc = pathlib.Path(f"/proc/{self.process.pid}")

    def threads(self):
        """(name, CPUs that the thread may use) of each thread."""
        for task in (self.proc / "task").iterdir():
            status = (task / "status").read_text()
            yield (task / "comm").read_text().strip(), re.search(r"Cpus_allowed_list:\t(.*)", status)[1]

    def cpu_s(self):
        fields = (self.proc / "stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident(self):
        kib = dict(re.findall(r"(Rss\w+):\s+(\d+) kB", (self.proc / "status").read_text()))
        return (int(kib["RssAnon"]) + int(kib["RssShmem"])) * 1024

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(patience(20)) == 0


@pytest.fixture
def replica(tmp_path):
    started = []

    def start(model, *flags):
        started.append(Replica(tmp_path, model, *flags))
        return started[-1]
    yield start
    for one in started:
        one.end()


@pytest.mark.alone  # conftest.py pins parallel test processes to a single CPU each; this test needs two
@pytest.mark.skipif(len(ALLOWED) < 2, reason="needs two CPUs")
def test_compute_threads_have_a_cpu_each_of_those_that_are_the_workers_own(replica):
    first, second = ALLOWED[:2]
    worker = replica(TINY_MODEL, "--cpus", f"{first},{second}", "--threads", "2")
    seen = sorted(worker.threads())
    engine = [cpus for name, cpus in seen if name == "sluice-engine"]
    others = [cpus for name, cpus in seen if name != "sluice-engine"]
    both = f"{first}-{second}" if second == first + 1 else f"{first},{second}"
    assert engine == [str(first)]
    assert others.count(str(second)) == 1  # the other thread of the team
    assert set(others) == {str(second), both}  # and no thread may use another CPU
    assert f'thread_cpus="{first} {second}"' in worker.log.read_text()


@pytest.mark.alone  # conftest.py pins parallel test processes to a single CPU each; this test needs two
@pytest.mark.skipif(len(ALLOWED) < 2, reason="needs two CPUs")
def test_a_worker_that_is_told_one_cpu_has_one_thread_on_it(replica):
    worker = replica(TINY_MODEL, "--cpus", str(ALLOWED[1]))
    assert {cpus for _, cpus in worker.threads()} == {str(ALLOWED[1])}
    assert "threads=1 " in worker.log.read_text()


def test_cpus_that_there_are_not_end_the_start_with_a_reason(tmp_path):
    for flags, values in ((["--cpus", "4000"], (4000,)), (["--cpus", "1-"], ("1-", "byte 2")), (["--devices", "cpu:63"], ("cpu:63",))):
        run = subprocess.run([BIN / "sluice-worker", "serve", "--socket", tmp_path / "w.sock", "--model", TINY_MODEL, *flags],
                             capture_output=True, text=True, timeout=patience(20))
        assert run.returncode == 1 and names(run.stderr, flags[0]) and all(str(v) in run.stderr for v in values), run.stderr


def test_an_idle_worker_burns_no_core(replica):
    """Team threads sleep and gRPC's threads wait: they use at most 40 ms of two seconds. A spinning thread would use
    all the time."""
    worker = replica(TINY_MODEL, "--threads", "2")
    before = steady(worker.cpu_s, 0.5)
    time.sleep(2)  # the interval over which the CPU time is measured
    assert worker.cpu_s() - before <= 0.04


def test_resident_memory_is_weights_kv_and_little_else(replica):
    """Anonymous and shared memory is at most packed weights × 1.15 + KV pool + 64 MiB. The pool is small here, so the
    test sees the rest."""
    flags = ["--kv-tokens", "2048"]
    plan = subprocess.run([BIN / "sluice-worker", "plan", "--text", model_path(), *flags], capture_output=True, text=True, check=True).stdout
    weights, kv = (int(re.search(rf"^ *{name}: (\d+)", plan, re.M)[1]) for name in ("weight_bytes", "kv_bytes"))
    worker = replica(model_path(), *flags)
    assert weights + 4 * MIB < worker.resident() <= weights * 1.15 + kv + 64 * MIB
