"""sluice-server --takeover: the next server replaces a serving server, whose streams finish. A call meanwhile is
answered, or gets UNAVAILABLE before its first byte, so the client may try again. The servers count these refusals."""
import os
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.request

import grpc
import pytest

from conftest import BIN, free_port, names, patience, reason
from generate_stream import Stream as GenerateStream
from log_events import LOCK_FILE_RENEWED, NOT_HANDED_OVER, NOT_TAKEN_OVER, SERVING, logged
from pki import Authority
from plumbing import Plumbing

alone = pytest.mark.alone  # dozens of live streams leave little CPU to tests that run beside


class Shared(Plumbing):
    """A server with a unix socket and a metrics port as well, so that a takeover hands over all three."""

    n_takeovers = 0

    def __init__(self, folder, stubs, options=(), **kwargs):
        self.metrics = free_port()
        self.unix = folder / "server.sock"
        super().__init__(folder, stubs, options=["--metrics", f"127.0.0.1:{self.metrics}", "--listen-unix", folder / "server.sock",
                                                 "--drain-grace", "30s", *options], **kwargs)

    def start_server(self):
        super().start_server()
        self.wait(lambda: self.listens(self.unix), "and on its unix socket")  # the last socket that the server opens

    def command(self, *more):
        return [BIN / "sluice-server", "--listen", self.address, "--routes-file", self.folder / "routes.pb", *self.options, *more]

    def take_over(self, timeout="20s"):
        """Starts the next server. Returns the old server, which drains."""
        old = self.server
        self.n_takeovers += 1
        path = self.folder / f"n{self.n_takeovers}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
            heard.bind(str(path))
            heard.settimeout(patience(30))
            self.server = subprocess.Popen(self.command("--takeover", "--takeover-timeout", timeout), stdout=self.log,
                                           stderr=self.log, env={**os.environ, "NOTIFY_SOCKET": str(path)})
            said = heard.recv(600).decode()
        assert said.startswith("READY=1\nSTATUS=Serving"), said
        return old

    def n_refused(self):
        """Returns the number of refused calls over all drained servers, from their logs."""
        return sum(int(n) for n in re.findall(r"event=drained .*?refused=(\d+)", (self.folder / "log").read_text(errors="replace")))

    def scrape(self):
        return urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics", timeout=patience(10)).read().decode()


@pytest.fixture
def shared(tmp_path, stubs):
    p = Shared(tmp_path, stubs, rate=40, slots=4)
    yield p
    p.stop()


class Streams:
    """Long streams that count their tokens, and short calls one after the other, each on its own channel."""

    def __init__(self, p, stubs, credentials=None):
        self.p, self.stubs, self.credentials = p, stubs, credentials
        self.wrong, self.refused, self.answered, self.stopping = [], 0, 0, False
        self.lock = threading.Lock()
        self.threads = []

    def request(self, n_tokens):
        request = self.stubs.inference.GenerateRequest(model="echo", text="over")
        request.stopping.max_tokens = n_tokens
        return request

    def one(self, stub, n_tokens, begun=None):
        ids, ended = 0, 0
        try:
            for i, response in enumerate(stub.Generate(self.request(n_tokens), timeout=patience(60))):
                if i == 0 and begun:
                    begun.wait(patience(30))
                ids += len(response.tokens.ids)
                ended += response.WhichOneof("event") == "finished"
        except grpc.RpcError as e:
            with self.lock:
                if e.code() == grpc.StatusCode.UNAVAILABLE and ids == 0 and not begun and reason(e) == "DRAINING":
                    self.refused += 1
                else:
                    self.wrong.append((ids, e.code(), e.details()))
            return
        with self.lock:
            self.answered += 1
            if ids != n_tokens or ended != 1:
                self.wrong.append((n_tokens, ids, ended))

    def stub(self, address):
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.initial_reconnect_backoff_ms", 100),
                   ("grpc.min_reconnect_backoff_ms", 10000), ("grpc.max_reconnect_backoff_ms", 500)]
        if self.credentials and not address.startswith("unix:"):
            return self.stubs.inference_grpc.InferenceStub(grpc.secure_channel(address, self.credentials, options))
        return self.stubs.inference_grpc.InferenceStub(grpc.insecure_channel(address, options))

    def start(self, fn, *args):
        thread = threading.Thread(target=fn, args=args, daemon=True)
        thread.start()
        self.threads.append(thread)

    def short_calls(self, address, fresh):
        stub = self.stub(address)
        while not self.stopping:
            self.one(self.stub(address) if fresh else stub, 2)

    def join(self):
        for thread in self.threads:
            thread.join(patience(120))


def replace_under_load(p, load, addresses, n_takeovers, n_tokens):
    """Runs 32 long streams and continuous calls beside the takeovers. Returns the replaced servers."""
    begun = threading.Barrier(33)
    for i in range(32):
        load.start(load.one, load.stub(addresses[i % len(addresses)]), n_tokens, begun)
    for i in range(6):
        load.start(load.short_calls, addresses[i % len(addresses)], i >= 4)
    replaced = []
    try:
        p.wait(lambda: begun.n_waiting == 32 or load.wrong, "all streams have begun", 60)
        assert load.wrong == []
        begun.wait(patience(30))
        for _ in range(n_takeovers):
            answered = load.answered
            replaced.append(p.take_over())
            assert f"pid={replaced[-1].pid}" not in p.scrape()  # the new server answered the scrape
            p.wait(lambda: load.answered > answered + 20 or load.wrong, "calls are answered by the next one")
        assert replaced[0].poll() is None, "its streams go on in it"
    finally:
        load.stopping = True
        begun.abort()
    load.join()
    assert load.wrong == []
    assert all(old.wait(patience(60)) == 0 for old in replaced)
    print(f"answered {load.answered}, refused {load.refused}, counted {p.n_refused()}")
    assert load.answered >= 32 + 20 * n_takeovers
    assert load.refused <= p.n_refused()
    return replaced


@alone
def test_a_server_is_replaced_while_it_serves(shared, stubs):
    """There are four takeovers over TCP and the unix socket, each while the earlier servers still drain. No stream
    breaks. Every refused call is refused before its first byte, and counted."""
    p, load = shared, Streams(shared, stubs)
    replace_under_load(p, load, [p.address, f"unix:{p.unix}"], 4, 240)
    # Only the last server's socket remains, and the socket file goes when that server ends.
    assert p.server.poll() is None and p.unix.exists()
    assert stubs.inference_grpc.InferenceStub(grpc.insecure_channel(f"unix:{p.unix}")).ListModels(
        stubs.inference.ListModelsRequest(), timeout=patience(10)).models
    p.server.send_signal(signal.SIGTERM)
    assert p.server.wait(patience(20)) == 0
    assert not p.unix.exists() and sockets(p) == []


def sockets(p):
    """Returns the names that a takeover makes beside the socket's own name."""
    return [path.name for path in p.folder.iterdir() if path.name.startswith(".")]


@pytest.fixture
def tls(tmp_path, stubs):
    """A server with TLS on its TCP port, and the credentials of its clients."""
    ca = Authority(tmp_path, "ca")
    cert, key = ca.issue("server", "sluice", "DNS:localhost,IP:127.0.0.1")
    p = Shared(tmp_path, stubs, options=["--tls-cert", cert, "--tls-key", key], rate=40, slots=4)
    p.credentials = grpc.ssl_channel_credentials(ca.cert.read_bytes())
    yield p
    p.stop()


def test_streams_over_tls_end_well_at_the_old_server_and_the_new_one_answers(tls, stubs):
    """A paused request needs the old server until the test lets the request go on. The other streams end by themselves."""
    p, load = tls, Streams(tls, stubs, tls.credentials)
    begun = threading.Barrier(4)
    for _ in range(3):
        load.start(load.one, load.stub(p.address), 120, begun)
    channel = grpc.secure_channel(p.address, tls.credentials, [("grpc.use_local_subchannel_pool", 1)])
    held = GenerateStream(p, channel)
    held.start("held", load.request(10**6))
    answer = held.wait_tokens("held", 5)
    held.pause("held")
    p.wait(lambda: begun.n_waiting == 3 or load.wrong, "the streams have begun", 30)
    begun.wait(patience(30))
    old = p.take_over()
    load.one(load.stub(p.address), 20)  # a stream of the new server
    assert load.wrong == [] and f"pid={old.pid}" not in p.scrape()
    with pytest.raises(grpc.RpcError) as e:
        stubs.inference_grpc.InferenceStub(grpc.insecure_channel(p.address)).ListModels(
            stubs.inference.ListModelsRequest(), timeout=patience(30))
    assert e.value.code() == grpc.StatusCode.UNAVAILABLE  # the new server wants TLS too
    assert old.poll() is None and not answer.finished
    n_tokens = answer.tokens() + 60
    held.update("held", max_tokens=n_tokens)
    held.resume("held")
    held.wait_finished("held")
    assert answer.tokens() == n_tokens and answer.errors == []
    held.half_close()
    load.join()
    assert load.wrong == [] and load.answered == 4
    assert old.wait(patience(60)) == 0 and p.server.poll() is None
    channel.close()


@pytest.mark.long
@alone
def test_a_server_with_tls_is_replaced_while_it_serves(tls, stubs):
    """With TLS, a client hears of the drain with the next bytes sent to that client."""
    replace_under_load(tls, Streams(tls, stubs, tls.credentials), [tls.address], 2, 150)


def test_one_server_per_lock_file(shared):
    """A server started without --takeover refuses to start and names the holder of the lock. The lock of a killed
    server is free."""
    other = [BIN / "sluice-server", "--listen", f"127.0.0.1:{free_port()}", "--routes-file", shared.folder / "routes.pb", "--metrics", ""]
    result = subprocess.run(other, capture_output=True, text=True, timeout=patience(20))
    assert result.returncode == 75 and names(result.stderr, shared.server.pid, "--takeover"), result.stderr
    assert shared.server.poll() is None
    # Another lock file does not help: the port is in use.
    result = subprocess.run(shared.command("--lock-file", shared.folder / "other.lock"), capture_output=True, text=True,
                            timeout=patience(20))
    assert result.returncode == 78 and names(result.stderr, shared.server.pid), result.stderr
    shared.server.kill()
    shared.server.wait()
    shared.start_server()


def models(p, stubs, address):
    """Returns the models over a new connection."""
    with grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        return [m.name for m in stubs.inference_grpc.InferenceStub(channel).ListModels(
            stubs.inference.ListModelsRequest(), timeout=patience(10)).models]


def test_a_takeover_that_cannot_be_leaves_the_old_one_serving(shared, stubs):
    """The next server does not reach a replica, or the old server is stopped and answers late. In both cases the old
    server keeps its unix socket and serves."""
    p = shared
    os.kill(p.workers[0].pid, signal.SIGSTOP)
    result = subprocess.run(p.command("--takeover", "--takeover-timeout", "300ms"), capture_output=True, text=True, timeout=patience(30))
    os.kill(p.workers[0].pid, signal.SIGCONT)
    assert result.returncode == 1 and names(result.stderr, 300), result.stderr
    file = p.unix.stat().st_ino
    os.kill(p.server.pid, signal.SIGSTOP)
    result = subprocess.run(p.command("--takeover", "--takeover-timeout", "1s"), capture_output=True, text=True, timeout=patience(60))
    os.kill(p.server.pid, signal.SIGCONT)
    assert result.returncode == 1 and names(result.stderr, p.server.pid, 1000), result.stderr
    assert p.unix.stat().st_ino == file and sockets(p) == []
    p.wait(lambda: logged(p.text(), NOT_HANDED_OVER), "it hears of it")
    for address in (p.address, f"unix:{p.unix}"):
        assert models(p, stubs, address) == ["echo"], address
    assert p.server.poll() is None
    # Then a server that can reach every replica takes over.
    old = p.take_over()
    assert old.wait(patience(30)) == 0
    assert models(p, stubs, f"unix:{p.unix}") == ["echo"]


def test_one_takeover_at_a_time(shared):
    """The second takeover fails and names the first, which continues."""
    p = shared
    os.kill(p.server.pid, signal.SIGSTOP)
    first = subprocess.Popen(p.command("--takeover", "--takeover-timeout", "60s"), stdout=p.log, stderr=p.log)
    try:
        next_lock = p.folder / "routes.pb.lock.next"
        p.wait(lambda: next_lock.exists() and next_lock.read_text() == f"{first.pid}\n", "the first one is at it")
        result = subprocess.run(p.command("--takeover"), capture_output=True, text=True, timeout=patience(30))
        assert result.returncode == 75 and names(result.stderr, first.pid), result.stderr
    finally:
        os.kill(p.server.pid, signal.SIGCONT)
    old, p.server = p.server, first
    assert old.wait(patience(30)) == 0
    assert first.poll() is None


def test_takeover_without_anybody_is_a_start(shared):
    shared.server.send_signal(signal.SIGTERM)
    assert shared.server.wait(patience(20)) == 0
    shared.server = None
    began = time.monotonic()
    shared.server = subprocess.Popen(shared.command("--takeover"), stdout=shared.log, stderr=shared.log)

    def up():
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", shared.port)) == 0
    shared.wait(up, "it listens")
    assert time.monotonic() - began < patience(10)


def test_a_successor_that_gives_up_hands_back_what_is_new(shared, stubs):
    """The successor's own streams finish there. New calls go to the old server from then on, and none of them sees a
    drain."""
    p, load = shared, Streams(shared, stubs)
    file = p.unix.stat().st_ino
    os.kill(p.server.pid, signal.SIGSTOP)
    successor = subprocess.Popen(p.command("--takeover", "--takeover-timeout", "2s"), stdout=p.log, stderr=p.log)
    try:
        p.wait(lambda: p.unix.stat().st_ino != file, "it listens")
        begun = threading.Barrier(5)
        for _ in range(4):
            load.start(load.one, load.stub(p.address), 150, begun)
        p.wait(lambda: begun.n_waiting == 4 or load.wrong, "streams have begun in the successor")
        begun.wait(patience(30))
        p.wait(lambda: logged(p.text(), NOT_TAKEN_OVER), "it gives up")
    finally:
        os.kill(p.server.pid, signal.SIGCONT)
    until, n_calls = time.monotonic() + 1, 0
    while time.monotonic() < until:
        assert models(p, stubs, p.address) == ["echo"]
        n_calls += 1
    assert n_calls > 20 and successor.poll() is None, "while its streams live"
    load.join()
    assert load.wrong == [] and load.answered == 4
    assert successor.wait(patience(30)) == 1 and p.n_refused() == 0


def test_a_successor_that_is_killed_leaves_the_old_one_its_socket(shared, stubs):
    """The successor is killed while it waits for the old server, with its socket file in the old one's place. Streams
    continue, the old server takes its socket name back, and the next takeover succeeds."""
    p, load = shared, Streams(shared, stubs)
    begun = threading.Barrier(9)
    for i in range(8):
        load.start(load.one, load.stub(f"unix:{p.unix}" if i % 2 else p.address), 150, begun)
    p.wait(lambda: begun.n_waiting == 8 or load.wrong, "all streams have begun")
    file = p.unix.stat().st_ino
    os.kill(p.server.pid, signal.SIGSTOP)
    successor = subprocess.Popen(p.command("--takeover", "--takeover-timeout", "60s"), stdout=p.log, stderr=p.log)
    try:
        p.wait(lambda: p.unix.stat().st_ino != file, "its socket is there")
        successor.kill()
        successor.wait()
    finally:
        os.kill(p.server.pid, signal.SIGCONT)
    begun.wait(patience(30))
    p.wait(lambda: p.unix.stat().st_ino == file, "the old one's is there again")
    assert models(p, stubs, f"unix:{p.unix}") == models(p, stubs, p.address) == ["echo"] and sockets(p) == []
    load.join()
    assert load.wrong == [] and load.answered == 8
    old = p.take_over()
    assert old.wait(patience(30)) == 0 and models(p, stubs, f"unix:{p.unix}") == ["echo"]


def is_asked(server):
    """Returns true if the stopped server has the signal with which its successor requests the takeover."""
    pending = next(line for line in open(f"/proc/{server.pid}/status") if line.startswith("ShdPnd:"))
    return int(pending.split()[1], 16) >> (signal.SIGUSR2 - 1) & 1


def test_a_successor_that_is_killed_later_leaves_no_name_behind(shared):
    """The old server has given up the lock by then and ends as requested. Its saved socket file is removed with it."""
    p = shared
    file = p.unix.stat().st_ino
    os.kill(p.server.pid, signal.SIGSTOP)
    successor = subprocess.Popen(p.command("--takeover", "--takeover-timeout", "60s"), stdout=p.log, stderr=p.log)
    try:
        p.wait(lambda: p.unix.stat().st_ino != file, "its socket is there")
        p.wait(lambda: is_asked(p.server), "it has asked the old one, and waits for it")
        os.kill(successor.pid, signal.SIGSTOP)
    finally:
        os.kill(p.server.pid, signal.SIGCONT)
    assert p.server.wait(patience(30)) == 0
    successor.kill()
    successor.wait()
    assert sockets(p) == []
    p.start_server()


def test_the_lock_between_two_servers_is_nobody_elses(shared):
    """The old server has released the lock and its successor has not yet taken it. Symptom: a third server took the
    lock, the successor gave up, and no server served."""
    p = shared
    next_lock = p.folder / "routes.pb.lock.next"
    file = p.unix.stat().st_ino
    os.kill(p.server.pid, signal.SIGSTOP)
    successor = subprocess.Popen(p.command("--takeover", "--takeover-timeout", "60s"), stdout=p.log, stderr=p.log)
    try:
        p.wait(lambda: p.unix.stat().st_ino != file, "it listens")
        p.wait(lambda: is_asked(p.server), "it has asked the old one")
        os.kill(successor.pid, signal.SIGSTOP)
        os.kill(p.server.pid, signal.SIGCONT)
        assert p.server.wait(patience(30)) == 0
        third = [BIN / "sluice-server", "--listen", f"127.0.0.1:{free_port()}", "--routes-file", p.folder / "routes.pb", "--metrics", ""]
        for more in ([], ["--takeover"]):
            result = subprocess.run([*third, *more], capture_output=True, text=True, timeout=patience(20))
            assert result.returncode == 75 and names(result.stderr, successor.pid), result.stderr
    finally:
        os.kill(p.server.pid, signal.SIGCONT) if p.server.poll() is None else None
        os.kill(successor.pid, signal.SIGCONT)
        p.server = successor
    p.wait(lambda: logged(p.text(), SERVING, pid=successor.pid), "the successor serves")
    assert next_lock.exists() and successor.poll() is None


@pytest.mark.parametrize("what", ["gone", "another"])
def test_a_lock_file_that_was_removed_is_made_again(shared, what):
    """Someone takes the lock file for stale and removes it. Symptom: takeovers failed until the next start, because the
    lock was free and the port was not."""
    p, lock = shared, shared.folder / "routes.pb.lock"
    lock.unlink()
    if what == "another":
        lock.write_text("1\n")
    p.wait(lambda: logged(p.text(), LOCK_FILE_RENEWED), "it has its lock again")
    assert lock.read_text() == f"{p.server.pid}\n"
    old = p.take_over()
    assert old.wait(patience(30)) == 0 and p.server.poll() is None
