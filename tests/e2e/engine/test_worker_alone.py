"""sluice-worker without the other programs; the test acts as its server. A server is lost while no memory is free
(F27). Some signals must end none of the programs."""
import errno
import fcntl
import json
import mmap
import os
import queue
import signal
import struct
import subprocess
import time

import grpc
import psutil
import pytest

from conftest import BIN, ROOT, names, patience, sanitized, until
from log_events import LOAD_FAILED, WEIGHTS_NOT_SHARED, logged
from test_malloc import Control

TINY_MODEL = ROOT / "tests/golden/tiny/q4_1.gguf"


class Worker:
    def __init__(self, folder, stubs, env=None, packed_fd=None, wait=True, model=TINY_MODEL):
        """packed_fd: memory of packed weights, handed down as the manager does."""
        self.w, self.i, self.folder = stubs.worker, stubs.inference, folder
        self.socket = folder / "w.sock"
        self.log = open(folder / "log", "ab")
        handed = [] if packed_fd is None else ["--packed-fds", "1"]
        shell = [] if packed_fd is None else ["bash", "-c", f'exec "$@" 3<&{packed_fd}', "sh"]
        self.process = subprocess.Popen(
            [*shell, BIN / "sluice-worker", "serve", "--socket", self.socket, "--exit-report", folder / "exit.pb", "--model", model,
             "--replica", "r1", "--epoch", "7", "--name", "tiny", "--version-id", "1", "--device-group", "cpu", "--threads", "1",
             "--metrics", "", *handed], stdout=self.log, stderr=self.log, env=dict(os.environ, **(env or {})),
            pass_fds=() if packed_fd is None else (packed_fd,))
        if not wait:
            return
        self.rpc = stubs.worker_grpc.WorkerStub(grpc.insecure_channel(f"unix:{self.socket}"))
        until(lambda: self.process.poll() is not None or self.status().state == self.w.WORKER_STATE_READY, 20, self.text, 0.02)
        assert self.process.poll() is None, self.text()

    def text(self):
        return (self.folder / "log").read_text(errors="replace")[-3000:]

    def status(self):
        call = self.rpc.WatchStatus(self.w.WatchStatusRequest(interval_ms=50), timeout=20, wait_for_ready=True)
        try:
            return next(call)
        finally:
            call.cancel()

    def open(self):
        """Opens a Serve stream and waits for the greeting. Returns (queue of frames to send, the call)."""
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


def idle(worker):
    load = worker.status().load
    return not load.n_running and not load.n_queued and load.free_kv_tokens == load.total_kv_tokens


@pytest.mark.skipif(sanitized(), reason="sanitizers replace the allocator whose calls are made to fail")
def test_f27_a_lost_servers_sequences_end_whatever_allocation_fails(tmp_path, stubs):
    """The first allocation after the loss failed. The sequences ran on without a client and kept their slots and KV
    blocks. The loss itself needs no memory now, so chance decides which allocation of the worker fails. The end of
    the test shows that an allocation does fail."""
    control = Control(tmp_path / "control")
    worker = Worker(tmp_path, stubs, {"LD_PRELOAD": str(BIN / "fail_malloc.so"), "SLUICE_TEST_MALLOC": str(tmp_path / "control")})
    clean = 0
    try:
        for n in range(1, 200):
            frames, call = worker.open()
            for number in range(4):
                worker.submit(frames, number, credit_tokens=1)  # each sequence waits for credit after a token, so nothing else runs
            seen = 0
            while seen < 4:
                frame = next(call)
                seen += sum(len(item.token_ids) > 0 for item in frame.step.items)
            control.arm(n)
            call.cancel()
            frames.put(None)
            time.sleep(0.15)  # the worker notices the loss; a status call would allocate memory itself
            failed = control.disarm()
            until(lambda: idle(worker), 5, lambda: f"allocation {n}: all is free again: {worker.status().load}\n{worker.text()}", 0.02)
            assert worker.process.poll() is None, worker.text()
            clean = 0 if failed else clean + 1
            if clean >= 3:
                break
        assert clean >= 3
        control.arm(1)
        with pytest.raises(grpc.RpcError) as refused:
            worker.open()
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and control.disarm() == 1
    finally:
        worker.stop()


def tokens(worker):
    frames, call = worker.open()
    worker.submit(frames, 1, credit_tokens=20)
    ids = []
    while len(ids) < 20:
        ids += [t for item in next(call).step.items for t in item.token_ids]
    call.cancel()
    frames.put(None)
    return ids[:20]


def memory(content=b"", sealed=True):
    fd = os.memfd_create("packed", os.MFD_ALLOW_SEALING)
    os.write(fd, content)
    if sealed:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)
    return fd


def changed(content, at, value):
    return content[:at] + value + content[at + len(value):]


@pytest.fixture(scope="module")
def filled(tmp_path_factory, stubs):
    """The first replica: the memory that it packed, and 20 of its tokens."""
    fd = memory(sealed=False)
    worker = Worker(tmp_path_factory.mktemp("filler"), stubs, packed_fd=fd)
    (packed,) = worker.status().packed
    assert packed.inode == os.fstat(fd).st_ino and packed.sealed and not packed.mapped
    yield fd, os.pread(fd, packed.bytes, 0), tokens(worker)
    worker.stop()


def test_a_second_replica_maps_what_the_first_packed(filled, tmp_path, stubs):
    fd, content, expected = filled
    worker = Worker(tmp_path, stubs, packed_fd=fd)
    try:
        (packed,) = worker.status().packed
        assert packed.inode == os.fstat(fd).st_ino and packed.mapped and worker.status().packed_note == ""
        assert tokens(worker) == expected
    finally:
        worker.stop()


# Header: magic[8], version, number of weights, total bytes, SHA-256 of checkpoint, kernel set, layout and rank.
# Each entry: a function that makes a faulty memory, and the values that the worker's note about the fault names.
HOSTILE = {
    "shorter": (lambda c: memory(c[:-1]), lambda c: (len(c) - 1, len(c))),
    "longer": (lambda c: memory(c + b"x"), lambda c: (len(c) + 1, len(c))),
    "a header alone": (lambda c: memory(c[:48]), lambda c: (48, len(c))),
    "nothing, for good": (lambda c: memory(b""), lambda c: (0, len(c))),
    "not sealed": (lambda c: memory(c, sealed=False), lambda c: ("0x0",)),
    "half of it": (lambda c: memory(c[:len(c) // 2], sealed=False), lambda c: ("0x0",)),
    "other magic": (lambda c: memory(changed(c, 0, b"GGUF")), lambda c: ()),
    "other layout": (lambda c: memory(changed(c, 8, struct.pack("I", 2))), lambda c: (2, 1)),
    "other weights": (lambda c: memory(changed(c, 12, struct.pack("I", 1))), lambda c: (1,)),
    "other sum": (lambda c: memory(changed(c, 16, struct.pack("Q", 1 << 62))), lambda c: (1 << 62,)),
    "other digest": (lambda c: memory(changed(c, 24, b"\0" * 32)), lambda c: ()),
    "zeros": (lambda c: memory(bytes(len(c))), lambda c: ()),
    "a file": (lambda c: os.open("/dev/null", os.O_RDWR), lambda c: ()),
    "a pipe": (lambda c: os.pipe()[0], lambda c: ()),
    "a folder": (lambda c: os.open("/", os.O_RDONLY), lambda c: ()),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_memory_that_is_not_right_is_named_and_not_used(filled, tmp_path, stubs, what):
    _, content, expected = filled
    make, values = HOSTILE[what]
    fd = make(content)
    worker = Worker(tmp_path, stubs, packed_fd=fd)
    try:
        status = worker.status()
        assert status.packed_note and names(status.packed_note, *values(content)), status.packed_note
        assert logged(worker.text(), WEIGHTS_NOT_SHARED)
        assert [p.inode for p in status.packed] != [os.fstat(fd).st_ino] and not any(p.mapped for p in status.packed)
        assert tokens(worker) == expected  # from the weights that the worker packed itself
    finally:
        worker.stop()
        os.close(fd)


def test_memory_that_another_can_still_write_is_not_served_from(filled, tmp_path, stubs):
    """Memory cannot be sealed while another process maps it for writing."""
    fd = memory(sealed=False)
    os.ftruncate(fd, len(filled[1]))
    hold = mmap.mmap(fd, len(filled[1]))
    os.ftruncate(fd, 0)
    worker = Worker(tmp_path, stubs, packed_fd=fd, wait=False)
    try:
        assert worker.process.wait(patience(20)) == 1
        (failed,) = logged(worker.text(), LOAD_FAILED)
        assert os.strerror(errno.EBUSY) in failed["message"], failed
    finally:
        worker.stop()
        hold.close()
        os.close(fd)


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
    """SIGXFSZ ended the worker at its first log line."""
    (pid,) = served.children("sluice-worker")
    last = served.manager_stub().GetStatus(served.stubs.manager.GetStatusRequest()).last_event_seq
    subprocess.run(["prlimit", "--pid", str(pid), "--fsize=0"], check=True)
    os.kill(pid, signal.SIGTERM)  # the worker must log its end and write a report
    psutil.Process(pid).wait(patience(15))
    served.wait(lambda: served.children("sluice-worker") not in ([], [pid]) and answers(served), 20, "another one serves")
    events = map(json.loads, served.cli("events", "--json", "--from", str(last + 1)).stdout.splitlines())
    died = [e for e in events if e["type"] == "replica.died"]
    assert not any(names(e.get("message", ""), signal.SIGXFSZ.value) for e in died), died
