"""sluice-worker by itself, with the test as its server: a server that is lost while no memory is to be had (F27), and the
signals that must end none of the programs."""
import os
import queue
import signal
import subprocess
import time

import grpc
import psutil
import pytest

from conftest import BIN, ROOT, sanitized
from test_malloc import Control

TINY_MODEL = ROOT / "tests/golden/tiny/q4_1.gguf"


class Worker:
    def __init__(self, folder, stubs, env=None):
        self.w, self.i, self.folder = stubs.worker, stubs.inference, folder
        self.socket = folder / "w.sock"
        self.log = open(folder / "log", "ab")
        self.process = subprocess.Popen(
            [BIN / "sluice-worker", "serve", "--socket", self.socket, "--exit-report", folder / "exit.pb", "--model", TINY_MODEL,
             "--replica", "r1", "--epoch", "7", "--name", "tiny", "--version-id", "1", "--device-group", "cpu", "--threads", "1",
             "--metrics", ""], stdout=self.log, stderr=self.log, env=dict(os.environ, **(env or {})))
        until = time.monotonic() + 20
        self.rpc = stubs.worker_grpc.WorkerStub(grpc.insecure_channel(f"unix:{self.socket}"))
        while self.status().state != self.w.WORKER_STATE_READY:
            assert time.monotonic() < until and self.process.poll() is None, self.text()
            time.sleep(0.02)

    def text(self):
        return (self.folder / "log").read_text(errors="replace")[-3000:]

    def status(self):
        call = self.rpc.WatchStatus(self.w.WatchStatusRequest(interval_ms=50), timeout=20, wait_for_ready=True)
        try:
            return next(call)
        finally:
            call.cancel()

    def open(self):
        """A Serve stream that was greeted: (frames to send, the call)."""
        frames = queue.Queue()
        frames.put(self.w.ServeRequest(hello=self.w.Hello(protocol_min=1, protocol_max=1, server_id="test",
                                                          server_epoch=time.monotonic_ns(), expected_epoch=7)))
        call = self.rpc.Serve(iter(frames.get, None))
        assert next(call).WhichOneof("frame") == "hello"
        return frames, call

    def submit(self, frames, number, **kwargs):
        request = self.i.GenerateRequest(text="abc", stopping=self.i.Stopping(max_tokens=400, ignore_eos=True))
        frames.put(self.w.ServeRequest(submit=self.w.Submit(id=number, request=request, version="1", seed=1, **kwargs)))

    def stop(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@pytest.mark.skipif(sanitized(), reason="sanitizers replace the allocator whose calls are made to fail")
def test_f27_a_lost_servers_sequences_end_whatever_allocation_fails(tmp_path, stubs):
    """With the first allocation after the loss failing, they ran on for nobody, their slots and KV with them."""
    control = Control(tmp_path / "control")
    worker = Worker(tmp_path, stubs, {"LD_PRELOAD": str(BIN / "fail_malloc.so"), "SLUICE_TEST_MALLOC": str(tmp_path / "control")})
    n_failed, clean = 0, 0
    try:
        for n in range(1, 200):
            frames, call = worker.open()
            for number in range(4):
                worker.submit(frames, number, credit_tokens=1)  # each waits for credit after one token: nothing else runs
            seen = 0
            while seen < 4:
                frame = next(call)
                seen += sum(len(item.token_ids) > 0 for item in frame.step.items)
            control.arm(n)
            call.cancel()
            frames.put(None)
            time.sleep(0.15)
            failed = control.disarm()
            until = time.monotonic() + 5
            while True:
                load = worker.status().load
                if not load.n_running and not load.n_queued and load.free_kv_tokens == load.total_kv_tokens:
                    break
                assert time.monotonic() < until, f"allocation {n}: {load.n_running} sequences run on\n{worker.text()}"
                time.sleep(0.02)
            assert worker.process.poll() is None, worker.text()
            n_failed += failed
            clean = 0 if failed else clean + 1
            if clean >= 3:
                break
        assert n_failed > 0 and clean >= 3
    finally:
        worker.stop()


def answers(sluice):
    return sluice.run("smol", "hi", "-n", "2", check=False).returncode == 0


@pytest.mark.parametrize("program", ["sluice-server", "sluice-manager", "sluice-worker"])
@pytest.mark.parametrize("name", ["SIGPIPE", "SIGXFSZ", "SIGHUP"])
def test_a_signal_of_the_surroundings_ends_nobody(served, program, name):
    (pid,) = served.children(program)
    os.kill(pid, getattr(signal, name))
    assert answers(served)
    assert served.children(program) == [pid] and psutil.Process(pid).status() != "zombie"


def test_a_worker_whose_files_may_not_grow_serves_and_ends_well(served):
    """SIGXFSZ ended it at its first line of log."""
    (pid,) = served.children("sluice-worker")
    last = served.manager_stub().GetStatus(served.stubs.manager.GetStatusRequest()).last_event_seq
    subprocess.run(["prlimit", "--pid", str(pid), "--fsize=0"], check=True)
    os.kill(pid, signal.SIGTERM)  # it has more to log now, and a report to write
    psutil.Process(pid).wait(15)
    served.wait(lambda: served.children("sluice-worker") not in ([], [pid]) and answers(served), 20, "another one serves")
    events = served.cli("events", "--from", str(last + 1)).stdout
    assert "signal 25" not in events, events
