"""TLS, client certificates and API keys on the data plane, and the ownership of requests. Most tests need no model. A
server without routes answers ListModels with an empty list to each admitted caller."""
import hashlib
import json
import os
import pathlib
import queue
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.request

import grpc
import psutil
import pytest

from conftest import BIN, Sluice, free_port, keeps, model_path, names, patience, reason, sanitized, until
from log_events import CERTIFICATE, KEYS_NOT_RELOADED, KEYS_RELOADED, SERVING, TLS_NOT_RELOADED, TLS_RELOADED, logged
from pki import Authority, client_hello

ANSWER_S = 10
MIB = 1 << 20


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    class Pki:
        pass
    p = Pki()
    p.folder = tmp_path_factory.mktemp("pki")
    p.ca, p.other = Authority(p.folder, "ca"), Authority(p.folder, "other")
    p.server = p.ca.issue("server", "sluice", "DNS:localhost,IP:127.0.0.1")
    p.server2 = p.ca.issue("server2", "sluice", "DNS:localhost,DNS:second.example,IP:127.0.0.1")
    p.expired_server = p.ca.issue("expired-server", "sluice", "DNS:localhost,IP:127.0.0.1", expired=True)
    p.alice = p.ca.issue("alice", "alice-cn", "URI:spiffe://example.org/alice,DNS:alice.example")
    p.bob = p.ca.issue("bob", "bob-cn")
    p.spaced = p.ca.issue("spaced", "two words")
    p.expired = p.ca.issue("expired", "old", expired=True)
    p.request = p.folder / "server.csr"
    p.request.chmod(0o600)
    p.stranger = p.other.issue("stranger", "alice-cn", "URI:spiffe://example.org/alice")
    return p


class Server:
    """A sluice-server without a manager."""

    def __init__(self, folder, stubs, *args):
        self.folder, self.stubs = pathlib.Path(folder), stubs
        self.port = free_port()
        self.log_path = self.folder / f"server-{self.port}.log"
        self.process = subprocess.Popen(
            [BIN / "sluice-server", "--routes-file", self.folder / "none.pb", "--listen", f"127.0.0.1:{self.port}",
             *map(str, args)], stdout=subprocess.DEVNULL, stderr=open(self.log_path, "ab"))
        until(lambda: logged(self.log(), SERVING) or self.process.poll() is not None, 15, self.log, 0.02)
        assert self.process.poll() is None, self.log()

    def log(self):
        return self.log_path.read_text()

    def wait_log(self, event, n=1, seconds=3):
        until(lambda: len(logged(self.log(), event)) >= n, seconds, lambda: f"{event!r} {n} times in: {self.log()}", 0.02)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(patience(15)) == 0, self.log()


@pytest.fixture
def server(tmp_path, stubs):
    started = []

    def start(*args):
        started.append(Server(tmp_path, stubs, *args))
        return started[-1]
    yield start
    for s in started:
        s.stop()


def secure(port, ca, cert=None, name=None):
    files = [pathlib.Path(p).read_bytes() for p in ([ca.cert, cert[1], cert[0]] if cert else [ca.cert])]
    options = [("grpc.ssl_target_name_override", name)] if name else []
    return grpc.secure_channel(f"127.0.0.1:{port}", grpc.ssl_channel_credentials(*files), options)


def lists(stubs, channel, key=None, **kwargs):
    """Calls ListModels. Returns the answer or raises the error."""
    metadata = [("authorization", f"Bearer {key}")] if key is not None else []
    stub = stubs.inference_grpc.InferenceStub(channel)
    return stub.ListModels(stubs.inference.ListModelsRequest(), metadata=metadata, timeout=ANSWER_S, **kwargs)


def refused(call):
    """(code, reason, text) of a call that must fail."""
    with pytest.raises(grpc.RpcError) as e:
        call()
    return e.value.code(), reason(e.value), e.value.details()


def no_connection(stubs, channel):
    """Checks that the handshake fails and no call succeeds."""
    with pytest.raises(grpc.RpcError) as e:
        lists(stubs, channel)
    return e.value.code() == grpc.StatusCode.UNAVAILABLE


UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED


# --- TLS ---

def test_the_port_speaks_tls_and_nothing_else(server, pki, stubs):
    s = server("--tls-cert", pki.server[0], "--tls-key", pki.server[1])
    lists(stubs, secure(s.port, pki.ca))
    assert no_connection(stubs, secure(s.port, pki.other)), "a client must not trust another CA's server"
    assert no_connection(stubs, secure(s.port, pki.ca, name="elsewhere.example")), "nor one of another name"
    with pytest.raises(grpc.RpcError):
        lists(stubs, grpc.insecure_channel(f"127.0.0.1:{s.port}"))
    lists(stubs, secure(s.port, pki.ca))  # the server still serves


def test_who_says_nothing_is_ended_and_counted(server, pki, stubs):
    """A connection without a handshake ends after the handshake timeout and is counted. Served connections, and
    connections that the client closes, do not count."""
    port = free_port()
    s = server("--tls-cert", pki.server[0], "--tls-key", pki.server[1], "--handshake-timeout", f"{round(patience(500))}ms", "--metrics", f"127.0.0.1:{port}")

    def counted():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=ANSWER_S) as scrape:
            found = dict(re.findall(r'^sluice_refusals_total\{limit="(handshake_timeout|keepalive)"\} (\d+)', scrape.read().decode(), re.M))
        return int(found["handshake_timeout"]), int(found["keepalive"])
    with secure(s.port, pki.ca) as channel:
        lists(stubs, channel)
        with socket.create_connection(("127.0.0.1", s.port)):
            pass
        assert counted() == (0, 0)
        with socket.create_connection(("127.0.0.1", s.port), timeout=patience(10)) as silent:
            assert silent.recv(1) == b""
        until(lambda: counted() == (1, 0), 3, counted, 0.02)
        keeps(lambda: counted() == (1, 0), 0.7, counted)
        lists(stubs, channel)
    keeps(lambda: counted() == (1, 0), 0.2, counted)


@pytest.mark.skipif(sanitized(), reason="sanitizers have an allocator of their own")
def test_what_a_flood_of_handshakes_needed_goes_back(server, pki, stubs):
    """Clients stop after the server's hello and never make a call. The server kept 60 MiB, and 125 MiB after the
    third round."""
    s = server("--tls-cert", pki.server[0], "--tls-key", pki.server[1], "--handshake-timeout", "2s")
    process = psutil.Process(s.process.pid)
    with secure(s.port, pki.ca) as channel:
        lists(stubs, channel)
        before, n_files = process.memory_info().rss, process.num_fds()
        for _ in range(2):
            silent = []
            for _ in range(400):
                silent.append(socket.create_connection(("127.0.0.1", s.port), timeout=patience(10)))
                silent[-1].sendall(client_hello())
            for connection in silent:
                assert connection.recv(1), "it answers each"
            lists(stubs, channel)  # other callers get answers too
            assert process.memory_info().rss > before + 15 * MIB, "else this shows nothing"
            until(lambda: process.num_fds() <= n_files and process.memory_info().rss <= before + 8 * MIB, 15,
                  lambda: f"{before} bytes before, {process.memory_info().rss} now; {process.num_fds()} descriptors", 0.1)
            for connection in silent:
                connection.close()
    assert s.process.poll() is None


def test_client_certificates_are_required_and_verified(server, pki, stubs):
    s = server("--tls-cert", pki.server[0], "--tls-key", pki.server[1], "--tls-client-ca", pki.ca.cert)
    lists(stubs, secure(s.port, pki.ca, pki.alice))
    for bad in (None, pki.expired, pki.stranger):
        assert no_connection(stubs, secure(s.port, pki.ca, bad)), bad
    code, why, text = refused(lambda: lists(stubs, secure(s.port, pki.ca, pki.spaced)))
    assert (code, why) == (UNAUTHENTICATED, "CERTIFICATE_NAME") and "two" not in text


def test_optional_client_certificates_must_still_be_good(server, pki, stubs):
    s = server("--tls-cert", pki.server[0], "--tls-key", pki.server[1], "--tls-client-ca", pki.ca.cert,
               "--tls-client-auth", "optional")
    lists(stubs, secure(s.port, pki.ca))
    lists(stubs, secure(s.port, pki.ca, pki.bob))
    for bad in (pki.expired, pki.stranger):
        assert no_connection(stubs, secure(s.port, pki.ca, bad)), bad


def test_changed_certificates_are_taken_up_and_live_connections_stay(server, pki, stubs, tmp_path):
    cert, key = tmp_path / "c.pem", tmp_path / "k.pem"

    def install(pair):
        for source, target in ((pair[1], key), (pair[0], cert)):
            new = target.with_suffix(".new")
            new.write_bytes(source.read_bytes())
            new.chmod(0o600)
            new.rename(target)
    install(pki.server)
    s = server("--tls-cert", cert, "--tls-key", key)
    old = secure(s.port, pki.ca)
    lists(stubs, old)
    watch = stubs  # the stream is open across the change
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    stream = health_pb2_grpc.HealthStub(old).Watch(health_pb2.HealthCheckRequest())
    next(stream)
    assert no_connection(watch, secure(s.port, pki.ca, name="second.example"))
    install(pki.server2)
    s.wait_log(TLS_RELOADED)
    lists(stubs, secure(s.port, pki.ca, name="second.example"))
    assert stream.is_active()
    lists(stubs, old)
    # After a change to bad files the server keeps the good files, and logs the error once per change.
    cert.write_text("-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")
    s.wait_log(TLS_NOT_RELOADED)
    assert names(logged(s.log(), TLS_NOT_RELOADED)[0]["message"], cert)
    lists(stubs, secure(s.port, pki.ca, name="second.example"))
    keeps(lambda: len(logged(s.log(), TLS_NOT_RELOADED)) == 1, 1.2, "it is told once")
    install(pki.server)
    s.wait_log(TLS_RELOADED, 2)
    s.process.send_signal(signal.SIGHUP)
    s.wait_log(TLS_RELOADED, 3)
    assert stream.is_active()
    stream.cancel()


def chain(folder, cert, follows, n=1, cut=0):
    """Writes a file with a certificate, followed by n copies of another. The last copy lacks its last `cut` bytes."""
    text = cert.read_bytes() + n * follows.read_bytes()
    (folder / "chain.pem").write_bytes(text[:len(text) - cut])
    return folder / "chain.pem"


@pytest.mark.parametrize("make, named", [
    (lambda p, f: ["--tls-cert", f / "absent.pem", "--tls-key", p.server[1]], lambda p, f: [f / "absent.pem"]),
    (lambda p, f: ["--tls-cert", p.server[0]], lambda p, f: ["--tls-key"]),
    (lambda p, f: ["--tls-cert", p.server[0], "--tls-key", p.alice[1]], lambda p, f: [p.server[0], p.alice[1]]),
    (lambda p, f: ["--tls-cert", p.server[1], "--tls-key", p.server[1]], lambda p, f: [p.server[1]]),
    (lambda p, f: ["--tls-cert", chain(f, p.server[0], p.ca.cert, n=300), "--tls-key", p.server[1]], lambda p, f: [f / "chain.pem", 102400]),
    (lambda p, f: ["--tls-cert", chain(f, p.server[0], p.ca.cert, cut=100), "--tls-key", p.server[1]], lambda p, f: [f / "chain.pem", 2]),
    (lambda p, f: ["--tls-cert", p.server[0], "--tls-key", p.request], lambda p, f: [p.request]),
    (lambda p, f: ["--tls-cert", p.server[0], "--tls-key", f], lambda p, f: [f]),
    (lambda p, f: ["--tls-client-ca", p.ca.cert], lambda p, f: ["--tls-cert"]),
    (lambda p, f: ["--tls-cert", p.server[0], "--tls-key", p.server[1], "--tls-client-ca", p.server[1]], lambda p, f: [p.server[1]]),
    (lambda p, f: ["--tls-cert", p.server[0], "--tls-key", p.server[1], "--tls-client-auth", "maybe"], lambda p, f: ["require", "optional"]),
    (lambda p, f: ["--tls-cert", p.server[0], "--tls-key", p.server[1], "--tls-client-auth", "require"], lambda p, f: ["--tls-client-ca"]),
])
def test_bad_tls_files_end_the_start_with_their_name(pki, tmp_path, make, named):
    result = subprocess.run([BIN / "sluice-server", "--routes-file", tmp_path / "none.pb", "--listen", "127.0.0.1:0",
                             *map(str, make(pki, tmp_path))], capture_output=True, text=True, timeout=patience(20))
    assert result.returncode == 78 and names(result.stderr, *named(pki, tmp_path)), result.stderr


def test_a_private_key_that_others_may_read_is_refused(pki, tmp_path):
    key = tmp_path / "k.pem"
    key.write_bytes(pki.server[1].read_bytes())
    key.chmod(0o644)
    result = subprocess.run([BIN / "sluice-server", "--routes-file", tmp_path / "none.pb", "--listen", "127.0.0.1:0",
                             "--tls-cert", pki.server[0], "--tls-key", key], capture_output=True, text=True, timeout=patience(20))
    assert result.returncode == 78 and names(result.stderr, key, "0644"), result.stderr


def test_an_expired_certificate_is_told_and_can_be_replaced(server, pki, stubs, tmp_path):
    cert, key = tmp_path / "c.pem", tmp_path / "k.pem"
    for source, target in ((pki.expired_server[0], cert), (pki.expired_server[1], key)):
        target.write_bytes(source.read_bytes())
        target.chmod(0o600)
    s = server("--tls-cert", cert, "--tls-key", key)
    assert names(logged(s.log(), CERTIFICATE)[0]["message"], cert)
    assert no_connection(stubs, secure(s.port, pki.ca))
    key.write_bytes(pki.server[1].read_bytes())
    cert.write_bytes(pki.server[0].read_bytes())
    s.wait_log(TLS_RELOADED)
    lists(stubs, secure(s.port, pki.ca))


def test_the_guard_reads_along_inside_tls(server, pki, stubs):
    """Input that ends a plain-text connection (test_wire.py) ends a TLS connection too, and harms no other
    connection."""
    import ssl
    from rawhttp2 import (CONTINUATION, DATA, HEADERS, PING, RST_STREAM, END_HEADERS, Closed, Peer, block, frame, literal, message,
                          request_headers)
    from test_wire import polite
    context = ssl.create_default_context(cafile=pki.ca.cert)
    context.set_alpn_protocols(["h2"])
    s = server("--tls-cert", pki.server[0], "--tls-key", pki.server[1], "--max-resets", "100")
    path = "/sluice.v1.Inference/ListModels"
    good = secure(s.port, pki.ca)
    lists(stubs, good)
    with Peer(s.port, tls=context) as peer:
        stream = peer.open(path)
        peer.data(stream, b"\0\0\0\0\0")
        assert peer.answer(stream)["grpc-status"] == "0"
        polite(peer)
    head = block(request_headers(path, scheme="https"))
    floods = {"a block without an end": frame(HEADERS, 0, 1, head) + frame(CONTINUATION, 0, 1, literal("x", "v" * 15000)) * 20,
              "resets": b"".join(frame(HEADERS, END_HEADERS, i, head) + frame(RST_STREAM, 0, i, b"\0\0\0\x08")
                                 for i in range(1, 12001, 2)),
              "pings": frame(PING, 0, 0, b"x" * 8) * 1000,
              "a message of 300 MiB": frame(HEADERS, END_HEADERS, 1, head) + frame(DATA, 0, 1, message(b"", length=300 << 20))}
    for data in floods.values():
        with Peer(s.port, tls=context) as peer:
            # The server ends the whole connection, and not only the stream.
            with pytest.raises(Closed):
                for at in range(0, len(data), 65536):
                    peer.send(data[at:at + 65536])
                while True:
                    peer.read_frame(3)
    lists(stubs, good)


# --- API keys ---

def new_key(tenant, *args):
    result = subprocess.run([BIN / "sluice", "key", "new", tenant, *args], capture_output=True, text=True, timeout=patience(20))
    assert result.returncode == 0, result.stderr
    key, line = result.stdout.splitlines()
    assert line.split()[1] == hashlib.sha256(key.encode()).hexdigest()
    return key, line


def write_keys(path, *lines):
    new = path.with_suffix(".new")
    new.write_text("# keys\n\n" + "".join(line + "\n" for line in lines))
    new.chmod(0o600)
    new.rename(path)


def test_every_reason_for_which_a_key_is_refused(server, stubs, tmp_path):
    good, line = new_key("acme")
    old, old_line = new_key("acme", "--expires", "2020-01-01T00:00:00Z")
    keys = tmp_path / "keys"
    write_keys(keys, line + "  # the first", old_line)
    port = free_port()
    s = server("--keys-file", keys, "--metrics", f"127.0.0.1:{port}")
    channel = grpc.insecure_channel(f"127.0.0.1:{s.port}")
    lists(stubs, channel, good)
    stub = stubs.inference_grpc.InferenceStub(channel)
    request = stubs.inference.ListModelsRequest()

    def with_metadata(*metadata):
        return refused(lambda: stub.ListModels(request, metadata=metadata, timeout=ANSWER_S))[:2]
    assert with_metadata() == (UNAUTHENTICATED, "API_KEY_MISSING")
    unknown = (UNAUTHENTICATED, "API_KEY_INVALID")
    for value in (f"Bearer {good}x", f"Bearer {good[:-1]}", "Bearer ", "Bearer", good, f"Basic {good}", "Bearer " + "x" * 5000):
        assert with_metadata(("authorization", value)) == unknown, value
    assert with_metadata(("authorization", f"Bearer {good}"), ("authorization", f"Bearer {good}")) == unknown
    assert with_metadata(("authorization", f"Bearer {old}")) == (UNAUTHENTICATED, "API_KEY_EXPIRED")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=ANSWER_S) as scrape:
        counted = dict(re.findall(r'^sluice_access_refusals_total\{[^}]*"(\w+)"\} (\d+)', scrape.read().decode(), re.M))
    assert {k: int(counted[k]) for k in ("API_KEY_MISSING", "API_KEY_INVALID", "API_KEY_EXPIRED")} == {
        "API_KEY_MISSING": 1, "API_KEY_INVALID": 8, "API_KEY_EXPIRED": 1}
    # The text does not repeat the bytes that the client sent, and the log contains no key.
    assert good not in s.log() and old not in s.log()
    # Health needs no key, reflection needs a key.
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=ANSWER_S)
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
    ask = reflection_pb2.ServerReflectionRequest(list_services="")
    reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
    code, reason, _ = refused(lambda: list(reflection.ServerReflectionInfo(iter([ask]), timeout=ANSWER_S)))
    assert (code, reason) == (UNAUTHENTICATED, "API_KEY_MISSING")
    answers = list(reflection.ServerReflectionInfo(iter([ask]), timeout=ANSWER_S,
                                                   metadata=[("authorization", f"bearer {good}")]))
    assert any(x.name == "sluice.v1.Inference" for x in answers[0].list_services_response.service)


def with_two_keys(server, tmp_path):
    """Starts a server whose keys file has the first of two keys. Returns server, channel, file, and each key with its
    line."""
    first, second = new_key("acme"), new_key("acme")
    keys = tmp_path / "keys"
    write_keys(keys, first[1])
    s = server("--keys-file", keys)
    return s, grpc.insecure_channel(f"127.0.0.1:{s.port}"), keys, first, second


def test_changed_keys_are_taken_up_within_a_second_and_broken_files_are_not(server, stubs, tmp_path):
    s, channel, keys, (first, first_line), (second, second_line) = with_two_keys(server, tmp_path)
    write_keys(keys, second_line)
    def taken_up():
        try:
            return lists(stubs, channel, second) is not None
        except grpc.RpcError:
            return False
    until(taken_up, 1.0, s.log, 0.02)
    assert refused(lambda: lists(stubs, channel, first))[1] == "API_KEY_INVALID"
    n = 0
    for bad, values in (([second_line, "acme nothex"], (f"{keys}:4", "hash")), ([], (keys,)),
                        ([second_line, second_line], (f"{keys}:4", "hash")),
                        (["a b " + second_line], (f"{keys}:3", "hash")),
                        ([second_line + " 2027-02-30T00:00:00Z"], (f"{keys}:3", "expiry")),
                        (["anonymous " + second_line.split()[1]], (f"{keys}:3", "tenant")),
                        (["te\x1bnant " + second_line.split()[1]], (f"{keys}:3", "byte 3"))):
        write_keys(keys, *bad)
        s.wait_log(KEYS_NOT_RELOADED, n := n + 1)
        assert names(logged(s.log(), KEYS_NOT_RELOADED)[-1]["message"], *values), s.log()
        assert second_line.split()[1] not in s.log()
        lists(stubs, channel, second)
    keys.chmod(0o644)
    s.wait_log(KEYS_NOT_RELOADED, n + 1)
    assert names(logged(s.log(), KEYS_NOT_RELOADED)[-1]["message"], keys, "0644"), s.log()
    lists(stubs, channel, second)
    keys.unlink()
    s.wait_log(KEYS_NOT_RELOADED, n + 2)
    lists(stubs, channel, second)
    write_keys(keys, first_line)
    s.process.send_signal(signal.SIGHUP)
    s.wait_log(KEYS_RELOADED, 2)
    lists(stubs, channel, first)


def test_changed_keys_that_could_not_be_read_are_read_later(server, stubs, tmp_path):
    """The server had no free descriptor to read the keys file, and never read that version again. A revoked key
    stayed valid."""
    s, channel, keys, (first, first_line), (second, second_line) = with_two_keys(server, tmp_path)
    lists(stubs, channel, first)
    process = psutil.Process(s.process.pid)
    limits = process.rlimit(psutil.RLIMIT_NOFILE)
    process.rlimit(psutil.RLIMIT_NOFILE, (3, limits[1]))
    write_keys(keys, second_line)
    s.wait_log(KEYS_NOT_RELOADED)
    keeps(lambda: len(logged(s.log(), KEYS_NOT_RELOADED)) == 1, 1.2, "it is told once")
    process.rlimit(psutil.RLIMIT_NOFILE, limits)
    s.wait_log(KEYS_RELOADED)
    lists(stubs, channel, second)
    assert refused(lambda: lists(stubs, channel, first))[1] == "API_KEY_INVALID"


def test_a_key_ends_at_its_time_not_at_the_next_reload(server, stubs, tmp_path):
    at = time.time() + patience(3)
    key, line = new_key("acme", "--expires", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)))
    keys = tmp_path / "keys"
    write_keys(keys, line)
    s = server("--keys-file", keys)
    channel = grpc.insecure_channel(f"127.0.0.1:{s.port}")
    lists(stubs, channel, key)
    def expired():
        try:
            lists(stubs, channel, key)
            return False
        except grpc.RpcError as e:
            return reason(e) == "API_KEY_EXPIRED"
    until(expired, 5, "the key expires")
    assert time.time() >= int(at)


def test_an_open_stream_begins_nothing_with_a_key_that_is_gone(server, stubs, tmp_path):
    key, line = new_key("acme")
    other, other_line = new_key("acme")
    keys = tmp_path / "keys"
    write_keys(keys, line)
    s = server("--keys-file", keys)
    frames = queue.Queue()
    with grpc.insecure_channel(f"127.0.0.1:{s.port}") as channel:
        stub = stubs.inference_grpc.InferenceStub(channel)
        answers = stub.GenerateStream(iter(frames.get, None), metadata=[("authorization", f"Bearer {key}")], timeout=patience(30))

        def error(**frame):
            frames.put(stubs.inference.GenerateStreamRequest(request_id="x", **frame))
            return next(answers).error

        start = {"start": stubs.inference.GenerateRequest(model="nobody", text="hi")}
        assert error(**start).reason == "MODEL_NOT_FOUND"
        write_keys(keys, other_line)
        s.wait_log(KEYS_RELOADED)
        for frame in (start, {"reattach": stubs.inference.ReattachFrame()}):
            refusal = error(**frame)
            assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAUTHENTICATED.value[0], "API_KEY_INVALID")
        frames.put(None)
        assert list(answers) == []


def test_a_key_file_that_is_wrong_at_the_start_ends_it(tmp_path):
    keys = tmp_path / "keys"
    for content, mode, values in (("acme 12\n", 0o600, (f"{keys}:1", "hash")), ("", 0o600, (keys,)),
                                  ("x" * 600 + "\n", 0o600, (f"{keys}:1", 600, 512)),
                                  ("#\n" * 600000, 0o600, (keys, 1048576)),
                                  (new_key("acme")[1] + "\n", 0o604, (keys, "0604"))):
        keys.write_text(content)
        keys.chmod(mode)
        result = subprocess.run([BIN / "sluice-server", "--routes-file", tmp_path / "none.pb", "--listen", "127.0.0.1:0",
                                 "--keys-file", keys], capture_output=True, text=True, timeout=patience(20))
        assert result.returncode == 78 and names(result.stderr, *values), result.stderr


def test_keys_do_not_cross_a_network_in_plain_text_unless_told(tmp_path):
    key, line = new_key("acme")
    keys = tmp_path / "keys"
    write_keys(keys, line)
    command = [BIN / "sluice-server", "--routes-file", tmp_path / "none.pb", "--listen", f"0.0.0.0:{free_port()}",
               "--keys-file", keys]
    result = subprocess.run(command, capture_output=True, text=True, timeout=patience(20))
    assert result.returncode == 78 and names(result.stderr, "--allow-plaintext-keys"), result.stderr
    log = open(tmp_path / "log", "w+")
    process = subprocess.Popen([*command, "--allow-plaintext-keys"], stderr=log)
    until(lambda: logged((tmp_path / "log").read_text(), SERVING), 10, (tmp_path / "log").read_text, 0.02)
    process.terminate()
    assert process.wait(patience(15)) == 0
    # The client refuses to send a key in plain text across a network too.
    result = subprocess.run([BIN / "sluice", "run", "m", "x", "--server", "192.0.2.1:8001"], capture_output=True, text=True,
                            env={**os.environ, "SLUICE_API_KEY": key}, timeout=patience(20))
    assert result.returncode == 2 and names(result.stderr, "192.0.2.1:8001") and key not in result.stderr, result.stderr


def test_a_certificate_stands_in_for_a_key_but_a_shown_key_must_be_good(server, pki, stubs, tmp_path):
    key, line = new_key("acme")
    keys = tmp_path / "keys"
    write_keys(keys, line)
    s = server("--tls-cert", pki.server[0], "--tls-key", pki.server[1], "--tls-client-ca", pki.ca.cert, "--tls-client-auth",
               "optional", "--keys-file", keys)
    assert refused(lambda: lists(stubs, secure(s.port, pki.ca)))[1] == "API_KEY_MISSING"
    lists(stubs, secure(s.port, pki.ca), key)
    lists(stubs, secure(s.port, pki.ca, pki.alice))
    assert refused(lambda: lists(stubs, secure(s.port, pki.ca, pki.alice), "wrong"))[1] == "API_KEY_INVALID"


@pytest.mark.parametrize("args, value", [
    (["new", "two words"], "tenant"), (["new", "anonymous"], "anonymous"), (["new", "x" * 65], 65),
    (["new", "acme", "--expires", "tomorrow"], "expiry"),
    (["new", "acme", "--expires", "2027-01-31T00:00:00+01:00"], "expiry")])
def test_key_new_refuses_what_the_file_would(args, value):
    result = subprocess.run([BIN / "sluice", "key", *args], capture_output=True, text=True, timeout=patience(20))
    assert result.returncode == 2 and names(result.stderr, value) and not result.stdout, result


# --- the owner of a request, with a model ---

@pytest.fixture(scope="module")
def tenants(tmp_path_factory, stubs, pki):
    """`sluice serve` with TLS and keys, started like a user starts it, and the channels of three callers."""
    state = tmp_path_factory.mktemp("state")
    sluice = Sluice(state, stubs)
    sluice.keys = {name: new_key(name) for name in ("acme", "globex")}
    keys = state / "keys"
    write_keys(keys, *(line for _, line in sluice.keys.values()))
    sluice.start("--tls-cert", pki.server[0], "--tls-key", pki.server[1], "--tls-client-ca", pki.ca.cert,
                 "--tls-client-auth", "optional", "--keys-file", keys, model_path(), "--name", "smol")
    sluice.pki = pki
    channel = secure(sluice.port, pki.ca)
    sluice.inference = stubs.inference_grpc.InferenceStub(channel)
    sluice.alice = stubs.inference_grpc.InferenceStub(secure(sluice.port, pki.ca, pki.alice))
    try:
        sluice.wait(lambda: sluice.announced("ready", model="smol"), 60, "ready")
        yield sluice
    finally:
        sluice.stop()


def bearer(sluice, tenant):
    return [("authorization", f"Bearer {sluice.keys[tenant][0]}")]


def test_the_cli_reaches_a_server_with_tls_and_keys(tenants, tmp_path):
    key_file = tmp_path / "acme.key"
    key_file.write_text(tenants.keys["acme"][0] + "\n")
    tls = ["--tls-ca", tenants.pki.ca.cert]
    assert "Paris" in tenants.run("smol", "The capital of France is", "--raw", "-n", "8", *tls, "--api-key-file", key_file).stdout
    failed = tenants.run("smol", "x", "-n", "1", *tls, check=False)
    assert failed.returncode == 1 and names(failed.stderr, "API_KEY_MISSING")
    cert, key = tenants.pki.alice
    tenants.run("smol", "x", "-n", "1", *tls, "--tls-client-cert", cert, "--tls-client-key", key)
    failed = tenants.run("smol", "x", "-n", "1", *tls, "--tls-client-cert", cert, check=False)
    assert failed.returncode == 1 and names(failed.stderr, "INVALID_ARGUMENT")
    failed = tenants.run("smol", "x", "-n", "1", "--tls-ca", tenants.pki.other.cert, "--api-key-file", key_file, check=False)
    assert failed.returncode == 1
    environment = {**os.environ, "SLUICE_API_KEY": tenants.keys["acme"][0], "SLUICE_TLS_CA": str(tenants.pki.ca.cert)}
    result = subprocess.run([BIN / "sluice", "run", "smol", "x", "-n", "1", "--server", f"localhost:{tenants.port}"],
                            capture_output=True, text=True, env=environment, timeout=patience(60))
    assert result.returncode == 0, result.stderr
    # The load client opens more than one connection: a connection carries at most 64 requests at once.
    load = ["bench", "serve", "smol", "--clients", "65", "--requests", "70", "--prompt-tokens", "2", "--max-tokens", "1", "--json",
            "--server", tenants.address, *tls]
    report = json.loads(tenants.cli(*load, "--api-key-file", key_file).stdout)
    assert report["requests"]["ok"] == 70 and report["connections"] == 2 and 32 < report["max_in_flight"] <= 65  # the first requests end soon
    refused = tenants.cli(*load, check=False)
    assert refused.returncode == 1 and names(refused.stderr, "API_KEY_MISSING")


def test_a_key_given_as_a_flag_does_not_stay_in_the_process_list(tenants):
    key = tenants.keys["acme"][0]
    process = subprocess.Popen([BIN / "sluice", "run", "smol", "Once upon a time", "-n", "400", "--server", tenants.address,
                                "--tls-ca", tenants.pki.ca.cert, "--api-key", key], stdout=subprocess.PIPE)
    process.stdout.read(1)
    line = pathlib.Path(f"/proc/{process.pid}/cmdline").read_text()
    process.terminate()
    process.wait()
    assert "--api-key" in line and key not in line


class Live:
    """A request that runs until the test cancels it."""

    def __init__(self, tenants, stub, request_id, metadata):
        request = tenants.request("smol", "Once upon a time", max_tokens=1500, ignore_eos=True, request_id=request_id)
        self.call = stub.Generate(request, metadata=metadata)
        self.first, self.end = threading.Event(), None
        self.thread = threading.Thread(target=self.read)
        self.thread.start()
        assert self.first.wait(patience(60))

    def read(self):
        try:
            for response in self.call:
                if response.WhichOneof("event") == "tokens":
                    self.first.set()
            self.end = grpc.StatusCode.OK
        except grpc.RpcError as e:
            self.end = e.code()
        self.first.set()


def test_a_request_id_belongs_to_its_tenant(tenants):
    inference = tenants.stubs.inference
    callers = {"acme": (tenants.inference, bearer(tenants, "acme")), "globex": (tenants.inference, bearer(tenants, "globex")),
               "alice": (tenants.alice, None)}
    live = {name: Live(tenants, stub, "same-id", metadata) for name, (stub, metadata) in callers.items()}
    for stub, metadata in callers.values():
        with pytest.raises(grpc.RpcError) as e:
            list(stub.Generate(tenants.request("smol", "x", request_id="same-id"), metadata=metadata))
        assert e.value.code() == grpc.StatusCode.ALREADY_EXISTS
    only = Live(tenants, tenants.inference, "only-acme", bearer(tenants, "acme"))
    for stub, metadata in (callers["globex"], callers["alice"]):
        with pytest.raises(grpc.RpcError) as e:
            stub.Cancel(inference.CancelRequest(request_id="only-acme"), metadata=metadata)
        assert e.value.code() == grpc.StatusCode.NOT_FOUND
    assert only.end is None and only.thread.is_alive()
    tenants.inference.Cancel(inference.CancelRequest(request_id="same-id"), metadata=bearer(tenants, "globex"))
    live["globex"].thread.join(patience(10))
    assert live["globex"].end == grpc.StatusCode.CANCELLED
    assert live["acme"].thread.is_alive() and live["alice"].thread.is_alive(), "another tenant's request was cancelled"
    for stub, metadata, request_id, who in ((*callers["acme"], "same-id", live["acme"]), (*callers["alice"], "same-id", live["alice"]),
                                            (*callers["acme"], "only-acme", only)):
        stub.Cancel(inference.CancelRequest(request_id=request_id), metadata=metadata)
        who.thread.join(patience(10))
        assert who.end == grpc.StatusCode.CANCELLED


def test_a_request_is_reattached_by_its_tenant_alone(tenants):
    """Another tenant that knows the id gets the same error as for an unknown id. The owner's stream is
    undisturbed."""
    inference = tenants.stubs.inference
    owner = bearer(tenants, "acme")

    def stream(stub, metadata, request_id, **frame):
        sent = queue.Queue()
        sent.put(inference.GenerateStreamRequest(request_id=request_id, **frame))
        return sent, stub.GenerateStream(iter(sent.get, None), metadata=metadata, timeout=patience(120))

    def request(request_id):
        return tenants.request("smol", "Once upon a time", max_tokens=120, ignore_eos=True, request_id=request_id,
                               reattach_window_ms=20000)
    want = [i for r in tenants.inference.Generate(request("other"), metadata=owner) for i in r.tokens.ids]
    sent, answers = stream(tenants.inference, owner, "mine", start=request("mine"))
    ids = list(next(a for a in answers if a.WhichOneof("frame") == "tokens").tokens.ids)
    for stub, metadata in ((tenants.inference, bearer(tenants, "globex")), (tenants.alice, None)):
        for n_tokens in (None, 1, 999):
            received = [] if n_tokens is None else [inference.ReceivedTokens(choice=0, n_tokens=n_tokens)]
            told = []
            for request_id in ("mine", "nobody's"):
                theirs, replies = stream(stub, metadata, request_id, reattach=inference.ReattachFrame(received=received))
                theirs.put(None)
                reply, = replies
                assert (reply.error.code, reply.error.reason) == (grpc.StatusCode.NOT_FOUND.value[0], "REQUEST_NOT_FOUND")
                told.append(str(reply).replace(request_id, "ID").replace("nobody\\'s", "ID"))
            assert told[0] == told[1]
    sent.put(None)
    for answer in answers:
        assert answer.WhichOneof("frame") != "error"
        ids += answer.tokens.ids
    assert ids == want


def test_the_prefix_cache_is_found_by_its_tenant_alone(tenants):
    prompt = "The rain in Spain stays mainly in the plain, and so do we. " * 12

    def cached(stub, metadata, salt=""):
        request = tenants.request("smol", prompt, max_tokens=2, cache_salt=salt)
        finished = [r.finished for r in stub.Generate(request, metadata=metadata) if r.WhichOneof("event") == "finished"]
        return finished[-1].receipt.n_cached_tokens
    acme = (tenants.inference, bearer(tenants, "acme"))
    globex = (tenants.inference, bearer(tenants, "globex"))
    assert cached(*acme) == 0
    assert cached(*acme) > 0, "its own"
    assert cached(*globex) == 0, "another tenant's key"
    assert cached(tenants.alice, None) == 0, "another tenant's certificate"
    assert cached(*globex) > 0
    assert cached(*acme, salt="x") == 0, "another salt of the same tenant"
    assert cached(tenants.alice, None) > 0
