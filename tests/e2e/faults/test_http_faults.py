"""Faults over HTTP, in front of echoing workers. Clients leave (F17), read slowly (F18), flood (F20 to F22) or fill the queue
(F24). Workers are killed or stopped (F5, F7). Servers drain (F37) and are replaced."""
import contextlib
import os
import random
import signal
import socket
import ssl
import subprocess
import threading
import time

import grpc
import pytest

from conftest import free_port, patience, sanitized, stand_still, steady, until
from http_stream import Answer, Stream, dial, echoed, leave, post, scrape
from pki import Authority
from plumbing import Plumbing
from test_takeover import Shared

long = pytest.mark.long
WAYS = ["close", "reset"]


class Http(Plumbing):
    """Workers that echo, behind a server with an address of HTTP."""

    def __init__(self, folder, stubs, options=(), **kwargs):
        self.http = f"127.0.0.1:{free_port()}"
        super().__init__(folder, stubs, options=["--http-listen", self.http, *options], **kwargs)
        self.wait(lambda: socket.socket().connect_ex(("127.0.0.1", int(self.http.rsplit(":")[1]))) == 0, "HTTP listens")
        self.wait(lambda: self.metric("sluice_replica_usable{") == len(self.workers), "the replicas are linked")

    def metric(self, name):
        """The sum of all samples whose name begins so, from a scrape over HTTP."""
        return sum(value for key, value in scrape(self.http).items() if key.startswith(name))

    def worker_load(self, i=0):
        worker = self.stubs.worker
        with grpc.insecure_channel(f"unix:{self.socket_path(i)}") as channel:
            call = self.stubs.worker_grpc.WorkerStub(channel).WatchStatus(
                worker.WatchStatusRequest(protocol_min=1, protocol_max=1, interval_ms=20), timeout=patience(10))
            status = next(call)
            call.cancel()
        return status.load

    def n_at_worker(self):
        load = self.worker_load()
        return load.n_running + load.n_paused

    def refused(self, limit):
        return self.metric(f'sluice_refusals_total{{limit="{limit}"}}')

    def http_load(self, **kwargs):
        """Starts the load client over HTTP."""
        command = [self.http if word == self.address else str(word) for word in self.load_command(**kwargs)] + ["--http"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextlib.contextmanager
def serving(folder, stubs, **kwargs):
    p = Http(folder, stubs, **kwargs)
    try:
        yield p
    finally:
        p.stop()


# --- F17: clients leave ---

@pytest.fixture(scope="module")
def silent(tmp_path_factory, stubs):
    """A worker that accepts two requests and never answers; further requests wait at the server."""
    with serving(tmp_path_factory.mktemp("silent"), stubs, rate=0, options=["--max-concurrent", "2"]) as p:
        yield p


@pytest.fixture(scope="module")
def fast(tmp_path_factory, stubs):
    with serving(tmp_path_factory.mktemp("fast"), stubs, rate=500, options=["--slow-reader-timeout", "2s"]) as p:
        yield p


@pytest.mark.parametrize("how", WAYS)
def test_f17_a_client_leaves_in_its_body_before_its_turn_and_before_its_first_token(silent, how):
    """The server forgets the request at once, at each of these stages, and the worker's place is free."""
    p = silent
    half = Stream(p.http, send=False)
    half.socket.sendall(half.request[:-20])
    p.wait(lambda: p.metric("sluice_http_requests_live") == 2, "its head is there, beside the scrape")
    leave(half.socket, how)
    p.wait(lambda: p.metric("sluice_http_connections") == 1, "it is forgotten")

    streams = [Stream(p.http) for _ in range(2)]
    p.wait(lambda: p.n_at_worker() == 2, "two are at the worker")
    streams.append(Stream(p.http))
    p.wait(lambda: p.metric("sluice_requests_waiting_for_replica") == 1, "the third waits")
    leave(streams.pop().socket, how)
    p.wait(lambda: p.metric("sluice_requests_waiting_for_replica") == 0, "the waiting request is forgotten")
    assert p.n_at_worker() == 2
    for s in streams:
        leave(s.socket, how)
    p.wait(lambda: p.n_at_worker() == 0, "the places are free")
    assert p.metric("sluice_requests_in_flight") == 0


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("n", [1, 4])
def test_f17_a_client_leaves_between_tokens(fast, how, n):
    s = Stream(fast.http, n_tokens=10**6, n=n).begin().wait_tokens(5)
    left = time.monotonic()
    leave(s.socket, how)
    until(lambda: fast.n_at_worker() == 0, 5, "its place is free", 0.001)
    assert time.monotonic() - left < patience(1)
    fast.wait(lambda: fast.metric("sluice_requests_in_flight") == 0, "it is counted")


@long
def test_f17_a_thousand_clients_leave_at_random(fast):
    """Each client sends some or all of its request, reads for a while, and leaves by FIN or RST."""
    p, wrong = fast, []

    def visit(seed):
        dice = random.Random(seed)
        for _ in range(125):
            s = Stream(p.http, n_tokens=10**6, n=dice.choice([1, 4]), send=False)
            n_bytes = dice.choice([dice.randrange(len(s.request)), len(s.request)])
            s.socket.sendall(s.request[:n_bytes])
            if n_bytes == len(s.request) and dice.random() < 0.7:
                s.begin()
                for _ in range(dice.randrange(20)):
                    s.read()
                if not s.is_right():
                    wrong.append(s.text)
            leave(s.socket, dice.choice(WAYS))
    threads = [threading.Thread(target=visit, args=(i,)) for i in range(8)]
    [t.start() for t in threads]
    [t.join(patience(120)) for t in threads]
    p.wait(lambda: p.metric("sluice_http_connections") == 1 and p.n_at_worker() == 0, "all are gone")
    samples = scrape(p.http)
    books = [sum(v for k, v in samples.items() if k.startswith(f"sluice_requests_{name}_total")) for name in ("accepted", "finished")]
    assert wrong == [] and books[0] == books[1]


def test_f17_a_client_that_only_half_closes_has_left(fast):
    """Documented: the answer of a client that closes its sending half is lost."""
    s = Stream(fast.http, n_tokens=10**6).begin().wait_tokens(5)
    s.socket.shutdown(socket.SHUT_WR)
    fast.wait(lambda: fast.n_at_worker() == 0, "its place is free")
    with pytest.raises((EOFError, ConnectionResetError)):
        s.finish()


@pytest.mark.parametrize("how", WAYS)
def test_f17_f18_a_stalled_reader_pauses_and_leaves(fast, how):
    """The sequence pauses before much is kept for it. The sequence goes on where it was, pauses again, and ends with its client."""
    p = fast
    s = Stream(p.http, n_tokens=10**6, n=8, receive_buffer=4096).begin()
    p.wait(lambda: p.worker_load().n_paused == 1, "its sequence pauses")
    n = steady(lambda: p.metric("sluice_generated_tokens_total"))
    while p.worker_load().n_paused:  # the reader reads until the sequence goes on
        s.read()
    p.wait(lambda: p.metric("sluice_generated_tokens_total") > n, "it goes on")
    p.wait(lambda: p.worker_load().n_paused == 1, "it pauses again")
    assert s.is_right() and not s.error
    leave(s.socket, how)
    p.wait(lambda: p.n_at_worker() == 0, "its place is free")


# --- F18: slow readers are ended ---

def test_f18_a_stalled_reader_is_cut_off_and_others_do_not_notice(fast):
    p = fast
    before = p.refused("slow_reader")
    s = Stream(p.http, n_tokens=10**6, n=8, receive_buffer=4096).begin()
    began = time.monotonic()
    p.wait(lambda: p.worker_load().n_paused == 1, "its sequence pauses")
    others = p.http_load(connections=2, streams=16, tokens=500)
    p.wait(lambda: p.refused("slow_reader") == before + 1, "it is ended", 20)
    assert time.monotonic() - began >= 1.5
    p.wait(lambda: p.worker_load().n_paused == 0, "its sequence is ended")
    out, err = others.communicate(timeout=patience(60))
    assert others.returncode == 0, (out, err, p.text())
    with pytest.raises((EOFError, ConnectionResetError)):
        s.finish()  # the tokens before come whole, and no end
    assert s.is_right() and not s.done


def test_f18_a_whole_answer_that_is_not_read_is_cut_off(fast):
    p = fast
    before = p.refused("slow_reader")
    with dial(p.http, receive_buffer=4096) as s:
        s.sendall(post("/v1/completions", {"model": "echo", "prompt": "x" * 100, "max_tokens": 1000, "n": 8, "ignore_eos": True,
                                           "logprobs": 5, "return_token_ids": True}) * 60)
        p.wait(lambda: p.refused("slow_reader") == before + 1, "it is ended", 40)
    p.wait(lambda: p.metric("sluice_requests_in_flight") == 0, "it is forgotten")


# --- F20, F21, F22, F24: floods ---

def test_f21_requests_ahead_on_a_connection_wait_and_others_are_answered(fast):
    """HTTP/1.1 has no streams that share a connection. The nearest form is a client that sends many requests ahead. The
    worker has a single request of that client, the server keeps few, and other clients are answered."""
    import psutil
    p, process = fast, psutil.Process(fast.server.pid)
    [s.socket.close() for s in [Stream(p.http, n_tokens=2).begin().finish() for _ in range(3)]]
    p.wait(lambda: p.metric("sluice_http_connections") == 1, "only the scrape is there")
    rss = process.memory_info().rss
    ahead = Stream(p.http, n_tokens=10**6, n=4)
    ahead.socket.settimeout(0.2)
    n_bytes = 0
    with contextlib.suppress(TimeoutError):
        while n_bytes < 10_000 * len(ahead.request):
            n_bytes += ahead.socket.send(ahead.request * 100)
    ahead.socket.settimeout(patience(20))
    good = [Stream(p.http, n_tokens=50).begin().finish() for _ in range(5)]
    assert all(g.done and g.is_right() for g in good)
    assert p.n_at_worker() == 1 and p.metric("sluice_http_requests_live") == 2
    assert sanitized() or process.memory_info().rss - rss <= 8 << 20
    for g in good:
        g.socket.close()
    leave(ahead.socket, "close")
    p.wait(lambda: p.n_at_worker() == 0, "its place is free")


def test_f20_silent_connections_are_closed_and_counted(tmp_path, stubs):
    with serving(tmp_path, stubs, options=["--max-connections", "20", "--handshake-timeout", "1s"]) as p:
        before = p.refused("handshake_timeout")
        silent = [dial(p.http) for _ in range(15)]
        p.wait(lambda: p.refused("handshake_timeout") >= before + 15, "the silent are closed", 10)
        assert all(s.recv(1) == b"" for s in silent)
        held = [Stream(p.http, n_tokens=10**6).begin() for _ in range(19)]
        p.wait(lambda: p.metric("sluice_http_connections") == 20, "all places but this scrape's are taken")
        n_over = 0
        for _ in range(50):  # with the scrape's place these are one too many, and one place is free
            s = dial(p.http)
            s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            with contextlib.suppress(OSError):
                n_over += s.recv(100) == b""
            held.append(s)
        for s in held:
            (s.socket if isinstance(s, Stream) else s).close()

        def one_is_left():  # until the server has seen the clients leave, there may be no place for the scrape
            with contextlib.suppress(OSError, EOFError):
                return p.metric("sluice_http_connections") == 1
        p.wait(one_is_left, "the places are free")
        assert p.refused("connections") >= 1 and p.server.poll() is None


def test_f22_f23_clients_that_leave_at_once_leave_nothing(fast):
    """2,000 requests whose clients reset the connection within a millisecond. Books balance and memory stays."""
    import psutil
    p, process = fast, psutil.Process(fast.server.pid)
    n = 200 if sanitized() else 2000

    def storm(count):
        for _ in range(count):
            s = Stream(p.http, n_tokens=10**6)
            leave(s.socket, "reset")
    storm(200)
    p.wait(lambda: p.metric("sluice_http_connections") == 1 and p.n_at_worker() == 0, "all are gone")
    rss, fds = process.memory_info().rss, process.num_fds()
    threads = [threading.Thread(target=storm, args=(n // 4,)) for _ in range(4)]
    [t.start() for t in threads]
    good = [Stream(p.http, n_tokens=200).begin().finish() for _ in range(3)]
    [t.join(patience(60)) for t in threads]
    assert all(g.done and g.is_right() for g in good)
    [g.socket.close() for g in good]
    p.wait(lambda: p.metric("sluice_http_connections") == 1 and p.n_at_worker() == 0, "all are gone")
    samples = scrape(p.http)
    accepted = sum(v for k, v in samples.items() if k.startswith("sluice_requests_accepted_total"))
    ended = sum(v for k, v in samples.items() if k.startswith("sluice_requests_finished_total"))
    assert accepted == ended
    assert sanitized() or process.memory_info().rss - rss <= 32 << 20
    assert process.num_fds() <= fds + 4


def test_f24_a_full_queue_answers_429_with_a_time(tmp_path, stubs):
    with serving(tmp_path, stubs, rate=0, options=["--max-concurrent", "1", "--max-queued", "2"]) as p:
        held = [Stream(p.http) for _ in range(1)]
        p.wait(lambda: p.n_at_worker() == 1, "one is at the worker")
        held += [Stream(p.http) for _ in range(2)]
        p.wait(lambda: p.metric("sluice_requests_waiting_for_replica") == 2, "two wait")
        for _ in range(20):
            s = Stream(p.http)
            answer = s.answer.head()
            assert answer.status == 429 and int(answer.headers["retry-after"]) >= 1 and int(answer.headers["retry-after-ms"]) >= 1
            assert b"queue_full" in answer.body()
            s.socket.close()
        assert p.refused("queued") == 20
        for s in held:
            s.socket.close()


# --- F5, F7: workers that are killed or stopped ---

def finish_load(p, load):
    out, err = load.communicate(timeout=patience(60))
    assert load.returncode == 0, (out, err, p.text())


@pytest.mark.parametrize("fault", ["kill", pytest.param("stop shortly", marks=long), pytest.param("stop for long", marks=long)])
def test_f5_f7_streams_outlive_their_worker(tmp_path, stubs, fault):
    """Each stream continues where it was, byte for byte: the load client checks every token."""
    with serving(tmp_path, stubs, rate=50, workers=2, options=["--stall-timeout", "3s" if fault == "stop shortly" else "1s"]) as p:
        load = p.http_load(connections=2, streams=16, tokens=100)
        p.wait(lambda: p.metric("sluice_generated_tokens_total") > 16 * 30, "tokens come")
        if fault == "kill":
            p.workers[0].kill()
            p.workers[0].wait()
            p.start_worker(0)
        elif fault == "stop shortly":
            stand_still(1, p.workers[0].pid)
        else:
            os.kill(p.workers[0].pid, signal.SIGSTOP)
        finish_load(p, load)
        resumed = p.metric("sluice_resumes_total")
        assert resumed == 0 if fault == "stop shortly" else resumed > 0


# --- F37: drain ---

def test_f37_a_drain_finishes_streams_and_refuses_requests(tmp_path, stubs):
    with serving(tmp_path, stubs, rate=50, options=["--drain-grace", "30s"]) as p:
        streams = [Stream(p.http, n_tokens=100).begin() for _ in range(8)]
        idle, probe = dial(p.http), dial(p.http)
        for s in (idle, probe):
            s.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answers = [Answer(idle), Answer(probe)]
        assert [a.head().status for a in answers] == [200, 200] and [a.body() for a in answers] == [b"ok\n"] * 2
        p.server.send_signal(signal.SIGTERM)
        p.wait(lambda: socket.socket().connect_ex(("127.0.0.1", int(p.http.rsplit(":")[1]))) != 0, "the address is closed")
        idle.sendall(post("/v1/completions", {"model": "echo", "prompt": "x"}))
        probe.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        refused, unready = answers[0].head(), answers[1].head()
        assert refused.status == 503 and refused.headers["retry-after"] and refused.headers["connection"] == "close"
        assert b'"draining"' in refused.body()
        assert unready.status == 503 and unready.body() == b"not serving\n"
        for s in streams:
            s.finish()
            assert s.done and not s.error and s.is_right() and len(s.text[0]) == 400
        assert p.server.wait(patience(20)) == 0
        p.start_server()


@pytest.mark.parametrize("hurried", [False, True])
def test_f37_streams_past_the_grace_get_an_error_frame(tmp_path, stubs, hurried):
    with serving(tmp_path, stubs, rate=20, options=["--drain-grace", "60s" if hurried else "1s"]) as p:
        s = Stream(p.http, n_tokens=10**6).begin().wait_tokens(3)
        p.server.send_signal(signal.SIGTERM)
        if hurried:
            p.wait(lambda: socket.socket().connect_ex(("127.0.0.1", int(p.http.rsplit(":")[1]))) != 0, "the address is closed")
            p.server.send_signal(signal.SIGTERM)
        s.finish()
        assert s.error["code"] == "draining" and s.done and s.is_right()
        assert p.server.wait(patience(20)) == 0
        p.start_server()


# --- takeover ---

class HttpShared(Shared):
    def __init__(self, folder, stubs, tls, **kwargs):
        self.http, self.http_unix, self.context = f"127.0.0.1:{free_port()}", f"unix:{folder}/http.sock", None
        options = ["--http-listen", f"{self.http},{self.http_unix}"]
        if tls:
            ca = Authority(folder, "ca")
            cert, key = ca.issue("server", "localhost", "DNS:localhost")
            self.context = ssl.create_default_context(cafile=str(ca.cert))
            options += ["--tls-cert", cert, "--tls-key", key]
        super().__init__(folder, stubs, options=options, **kwargs)

    def dial(self, address):
        s = dial(address)
        return self.context.wrap_socket(s, server_hostname="localhost") if self.context and address == self.http else s


@pytest.mark.alone  # many clients connect all the time
@pytest.mark.parametrize("tls", [False, pytest.param(True, marks=long)], ids=["plain", "tls"])
def test_a_takeover_refuses_no_connection_of_http(tmp_path, stubs, tls):
    """Streams finish at the old server. Clients with new and with open connections never see an error meanwhile."""
    p = HttpShared(tmp_path, stubs, tls, rate=40, slots=4)
    wrong, answered, stopping = [], [0], threading.Event()

    def ask(address, fresh):
        s = None
        while not stopping.is_set():
            try:
                s = s or p.dial(address)
                s.sendall(post("/v1/completions", {"model": "echo", "prompt": "abc", "max_tokens": 2, "ignore_eos": True}))
                answer = Answer(s).head()
                body = answer.body()
                if answer.status != 200 or echoed("abc", 2).encode() not in body:
                    wrong.append((answer.status, body))
                answered[0] += 1
                if fresh or answer.headers.get("connection") == "close":
                    s.close()
                    s = None
            except (OSError, EOFError) as e:
                wrong.append((address, fresh, repr(e)))
                s = None
    threads = [threading.Thread(target=ask, args=(address, fresh)) for address in (p.http, p.http_unix) for fresh in (True, True, False)]
    try:
        streams = [Stream("", n_tokens=240, socket=p.dial(address)).begin() for address in (p.http, p.http_unix) for _ in range(8)]
        [t.start() for t in threads]
        replaced = []
        for _ in range(3):
            before = answered[0]
            p.wait(lambda: answered[0] > before + 20 or wrong, "requests are answered")
            replaced.append(p.take_over())
            before = answered[0]
            p.wait(lambda: answered[0] > before + 20 or wrong, "requests are answered by the next server")
        stopping.set()
        [t.join(patience(30)) for t in threads]
        for s in streams:
            s.finish()
            assert s.done and s.is_right() and len(s.text[0]) == 960
        assert wrong == [], wrong[:5]
        assert all(old.wait(patience(60)) == 0 for old in replaced)
        assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == []
    finally:
        stopping.set()
        p.stop()
