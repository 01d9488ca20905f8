"""Clients of HTTP that leave or vanish. The engine's slots and KV blocks come back (F17), also over TLS and a unix socket.
The network drops every packet (F19)."""
import contextlib
import os
import random
import ssl
import statistics
import subprocess
import threading
import time

import grpc
import pytest

from cable import Cable, is_possible
from conftest import BIN, free_port, patience, sanitized, until
from http_stream import Answer, Stream, dial, leave, post, scrape
from pki import Authority, client_hello
from plumbing import Plumbing
from test_fault_suite import start
from test_http_faults import WAYS, Http

long = pytest.mark.long
LONG = bool(os.environ.get("SLUICE_LONG"))


# --- F17: the slot and the KV blocks come back together ---

N_LAYERS = 30  # of the sample model; the worker's `progress` grows by these in a step
LONG_PROMPT = "All work and no play makes Jack a dull boy. " * 250


@pytest.fixture(scope="module")
def smol(tmp_path_factory, stubs):
    """The sample model. Its KV pool holds one long prompt, and the server keeps little for a slow reader."""
    http = f"127.0.0.1:{free_port()}"
    sluice = start(tmp_path_factory.mktemp("smol"), stubs, env={"SLUICE_HTTP_LISTEN": http, "SLUICE_MAX_PENDING_BYTES": "4K", "SLUICE_STALL_TIMEOUT": "10s"},
                   load=["--kv-tokens", "4096", "--context-length", "4096", "--max-concurrent", "8"])
    sluice.http = http
    (path,) = sluice.state.glob("run/replica-*/worker.sock")
    with grpc.insecure_channel(f"unix:{path}") as channel:
        sluice.worker = sluice.stubs.worker_grpc.WorkerStub(channel)
        yield sluice
    sluice.stop()


class Load:
    """The engine's state at one moment."""

    def __init__(self, smol):
        call = smol.worker.WatchStatus(smol.stubs.worker.WatchStatusRequest(protocol_min=1, protocol_max=1), timeout=patience(10))
        load = next(call).load
        call.cancel()
        self.n_paused, self.n_queued, self.progress, self.step_ns = load.n_paused, load.n_queued, load.progress, load.step_ns
        self.n_prompt_tokens = load.queued_prompt_tokens
        self.n_sequences = load.n_running + load.n_queued + load.n_paused
        self.n_kv = load.total_kv_tokens - load.free_kv_tokens
        assert self.n_sequences or not self.n_kv, f"{self.n_kv} KV tokens belong to no sequence"


def ask(smol, prompt="Count:", n=1, receive_buffer=None):
    s = dial(smol.http, receive_buffer)
    s.sendall(post("/v1/completions", {"model": "smol", "prompt": prompt, "max_tokens": 1000, "n": n, "ignore_eos": True, "stream": True}))
    return s


def reach(smol, stage):
    """Brings requests to a stage. Returns their sockets."""
    if stage == "between tokens":
        sockets = [ask(smol, n=n) for n in (1, 2)]
        for answer in [Answer(s).head() for s in sockets]:
            assert answer.status == 200 and answer.chunk()
    elif stage == "under back-pressure":
        sockets = [ask(smol, n=4, receive_buffer=4096)]
        until(lambda: Load(smol).n_paused, 60, "its sequence pauses")
    elif stage == "queued":  # all sequences of the engine run, so the next request waits
        sockets = [ask(smol, n=8)]
        until(lambda: Load(smol).n_kv, 20, "the first runs")
        sockets.append(ask(smol, LONG_PROMPT))
        until(lambda: Load(smol).n_queued, 20, "the second is queued")
    else:
        sockets = [ask(smol, f"{random.random()} {LONG_PROMPT}")]
        until(lambda: Load(smol).n_kv and Load(smol).n_prompt_tokens, 20, "the prefill runs")
    return sockets


@pytest.mark.parametrize("stage", ["queued", "in prefill", "between tokens", "under back-pressure"])
def test_f17_slot_and_kv_blocks_come_back_together(smol, stage):
    """The engine's report never has a KV token in use without a sequence. The steps from the departure to the last block
    are counted; only tests/long.sh asserts the figure."""
    steps = []
    for how in WAYS * (5 if LONG else 1):
        sockets = reach(smol, stage)
        before = Load(smol)
        assert before.n_sequences and before.n_kv
        for s in sockets:
            leave(s, how)
        until(lambda: Load(smol).n_sequences == 0, 20, "the places are free")
        after = Load(smol)
        assert after.n_kv == 0
        steps.append((after.progress - before.progress) / N_LAYERS)
        until(lambda: kv_metric(smol) == 0, 10, "the server's metric says so")
    print(f"{stage}: {statistics.median(steps)} steps after the client left")
    assert not LONG or sanitized() or statistics.median(steps) <= max(2, 1e8 / after.step_ns), steps


def kv_metric(smol):
    return sum(value for key, value in scrape(smol.http).items() if key.startswith("sluice_replica_kv_tokens{") and 'state="used"' in key)


@long
def test_f17_a_thousand_random_departures_lose_no_kv_block(smol):
    """Eight clients leave at random moments, by FIN or RST. The engine's pool is too small for all of them."""
    def visit(seed):
        dice = random.Random(seed)
        for _ in range(125):
            stalls = dice.random() < 0.1
            s = ask(smol, f"{dice.random()} " + LONG_PROMPT[:dice.choice([20, 200, 2000, 6000])], dice.choice([1, 1, 4]),
                    4096 if stalls else None)
            s.settimeout(dice.random() * 2)
            with contextlib.suppress(OSError):
                while not stalls and s.recv(4096) and dice.random() < 0.9:
                    pass
            leave(s, dice.choice(WAYS))
    threads = [threading.Thread(target=visit, args=(i,)) for i in range(8)]
    [t.start() for t in threads]
    while any(t.is_alive() for t in threads):
        Load(smol)  # asserts
        [t.join(0.02) for t in threads]
    until(lambda: Load(smol).n_sequences == 0, 20, "all are gone")
    assert Load(smol).n_kv == 0
    until(lambda: kv_metric(smol) == 0, 10, "the server's metric says so")


# --- F17, F18 over TLS and over a unix socket ---

class Doors(Plumbing):
    """A server with TLS and a unix socket for HTTP. The test reads its metrics over the unix socket."""

    def __init__(self, folder, stubs):
        ca = Authority(folder, "ca")
        cert, key = ca.issue("server", "localhost", "DNS:localhost")
        self.context = ssl.create_default_context(cafile=str(ca.cert))
        self.tls, self.http = f"127.0.0.1:{free_port()}", f"unix:{folder}/http.sock"
        super().__init__(folder, stubs, rate=500, options=[
            "--http-listen", f"{self.tls},{self.http}", "--tls-cert", cert, "--tls-key", key, "--handshake-timeout", "1s"])
        self.wait(lambda: self.listens(self.http[5:]) and self.metric("sluice_replica_usable{") == 1, "it serves")

    metric, worker_load, n_at_worker, refused = Http.metric, Http.worker_load, Http.n_at_worker, Http.refused

    def stream(self, door, **kwargs):
        s = dial(self.tls if door == "tls" else self.http, 4096)
        return Stream("", n_tokens=10**6, socket=self.context.wrap_socket(s, server_hostname="localhost") if door == "tls" else s, **kwargs)


@pytest.fixture(scope="module")
def doors(tmp_path_factory, stubs):
    p = Doors(tmp_path_factory.mktemp("doors"), stubs)
    yield p
    p.stop()


def say_goodbye(s):
    """The client sends close_notify, and does not wait for the server's."""
    s.settimeout(0)
    with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLError):
        s.unwrap()


@pytest.mark.parametrize("stage", ["in its body", "between tokens", "under back-pressure"])
@pytest.mark.parametrize("door, how", [("tls", "close_notify"), ("tls", "close"), ("tls", "reset"), ("unix", "close")])
def test_f17_f18_a_client_of_each_door_leaves(doors, door, how, stage):
    """With close_notify, or without as the process dies. The bytes that the client did not read hide no departure."""
    p, half = doors, stage == "in its body"
    s = p.stream(door, n=8, send=not half)
    if half:
        s.socket.sendall(s.request[:-20])
        p.wait(lambda: p.metric("sluice_http_requests_live") == 2, "its head is there, beside the scrape")
    else:
        s.begin().wait_tokens(5)
        if stage == "under back-pressure":
            p.wait(lambda: p.worker_load().n_paused == 1, "its sequence pauses")
        assert s.is_right()
    if how == "close_notify":
        say_goodbye(s.socket)
        p.wait(lambda: p.n_at_worker() == 0 and p.metric("sluice_http_connections") == 1, "it is gone before its socket closes")
    leave(s.socket, how)
    p.wait(lambda: p.n_at_worker() == 0 and p.metric("sluice_http_connections") == 1, "it is gone")
    assert p.metric("sluice_requests_in_flight") == 0


def test_f20_handshakes_that_stop_are_ended(doors):
    """The handshakes stop at each byte of the first message, with garbage behind, or in the last message."""
    p, before = doors, doors.refused("handshake_timeout")
    hello, sockets = client_hello("http/1.1"), []
    cuts = range(0, len(hello), 20)
    for cut in cuts:
        sockets.append(dial(p.tls))
        sockets[-1].sendall(hello[:cut])
    garbage = dial(p.tls)
    garbage.sendall(hello[:100] + bytes(1000))
    p.wait(lambda: p.refused("handshake_timeout") == before + len(cuts) and p.metric("sluice_http_connections") == 1, "all are ended", 20)
    p.stream("tls").begin().wait_tokens(3).socket.close()
    p.wait(lambda: p.n_at_worker() == 0, "its place is free")
    for s in [*sockets, garbage]:
        s.close()


# --- F19: clients that vanish ---

class HttpCable(Plumbing):
    """A server at the near end of a cable. The test reads its metrics over a unix socket."""

    def __init__(self, folder, stubs, cable, options=(), **kwargs):
        self.cable, self.http_port, self.http = cable, free_port(), f"unix:{folder}/http.sock"
        super().__init__(folder, stubs, options=["--http-listen", f"{cable.ADDRESS}:{self.http_port},{self.http}", *options], **kwargs)

    def start_server(self):
        self.server = subprocess.Popen([*self.cable.prefix, BIN / "sluice-server", "--listen", self.address, "--routes-file",
                                        self.folder / "routes.pb", *self.options], stdout=self.log, stderr=self.log)
        self.wait(lambda: self.listens(self.http[5:]), "the server listens")

    metric, worker_load, n_at_worker = Http.metric, Http.worker_load, Http.n_at_worker


@pytest.mark.skipif(not is_possible(), reason="no network namespaces with veth devices here")
@pytest.mark.parametrize("busy", [False, True])
def test_f19_clients_whose_packets_are_dropped_are_found(tmp_path, stubs, busy):
    """No FIN and no reset comes from these clients: the network drops every packet. Keepalive finds the clients, with
    bytes under way or without, and frees connections, slots and waiting requests."""
    cable = Cable()
    keepalive = ["--keepalive-time", "1s", "--keepalive-timeout", "2s"]
    p = HttpCable(tmp_path, stubs, cable, rate=50 if busy else 0, options=[*keepalive, "--max-concurrent", "2"])
    try:
        p.wait(lambda: p.metric("sluice_replica_usable{") == 1, "the replica is linked")
        streams = []
        for n_running, n_waiting in ((1, 0), (2, 0), (2, 1)):
            streams.append(Stream("", n_tokens=10**6, socket=cable.dial(p.http_port, patience(20))))
            p.wait(lambda: p.n_at_worker() == n_running and p.metric("sluice_requests_waiting_for_replica") == n_waiting, "it is there")
        if busy:
            [s.begin().wait_tokens(3) for s in streams[:2]]
        idle = cable.dial(p.http_port, patience(20))
        idle.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert Answer(idle).head().status == 200
        assert p.metric("sluice_http_connections") == 5  # with the scrape's
        cable.cut()
        began = time.monotonic()
        p.wait(lambda: p.metric("sluice_http_connections") == 1, "the clients are found", 15)
        print(f"found after {time.monotonic() - began:.1f} s")
        assert time.monotonic() - began > 1
        p.wait(lambda: p.n_at_worker() == 0, "the places are free")
        assert p.metric("sluice_requests_in_flight") == p.metric("sluice_requests_waiting_for_replica") == 0
        if busy:
            assert all(s.is_right() for s in streams[:2])
        assert p.server.poll() is None
    finally:
        p.stop()
        cable.close()
