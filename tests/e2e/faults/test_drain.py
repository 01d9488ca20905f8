"""SIGTERM for a server whose clients have streams that end just now, or send new calls."""
import collections
import concurrent.futures
import contextlib
import itertools
import random
import signal
import socket
import ssl
import struct
import threading
import time
import urllib.request

import grpc
import pytest

from conftest import free_port, patience
from pki import Authority
from plumbing import Plumbing
from rawhttp2 import (ACK, END_HEADERS, END_STREAM, DATA, GOAWAY, HEADERS, PING, PREFACE, SETTINGS, WINDOW_UPDATE, Closed, Peer, block,
                      frame, message, request_headers)


def test_streams_that_end_while_the_server_drains_lose_nothing(tmp_path, stubs):
    """Many short streams end while the server drains. The last stream of a connection ends together with the
    connection, as GOAWAY requires. The client still gets the last tokens, the end and the status."""
    p = Plumbing(tmp_path, stubs, rate=50)
    inference = stubs.inference
    n_channels, n_streams, n_rounds = 16, 6, 4
    try:
        for _ in range(n_rounds):
            channels = [grpc.insecure_channel(p.address, [("grpc.use_local_subchannel_pool", 1)]) for _ in range(n_channels)]
            begun, wrong = threading.Barrier(n_channels * n_streams + 1), []

            def run(channel, n_tokens):
                request = inference.GenerateRequest(model="echo", text="drain")
                request.stopping.max_tokens = n_tokens
                ids, ended = [], 0
                try:
                    call = stubs.inference_grpc.InferenceStub(channel).Generate(request, timeout=patience(60))
                    for i, response in enumerate(call):
                        if i == 0:
                            begun.wait(patience(30))
                        ids += response.tokens.ids
                        ended += response.WhichOneof("event") == "finished"
                except grpc.RpcError as e:
                    wrong.append((n_tokens, len(ids), ended, e.code(), e.details()))
                else:
                    if len(ids) != n_tokens or ended != 1:
                        wrong.append((n_tokens, len(ids), ended))
            threads = [threading.Thread(target=run, args=(channel, 5 + 7 * i + k)) for k, channel in enumerate(channels)
                       for i in range(n_streams)]
            for thread in threads:
                thread.start()
            begun.wait(patience(30))
            p.server.send_signal(signal.SIGTERM)
            for thread in threads:
                thread.join(patience(90))
            assert wrong == []
            assert p.server.wait(patience(20)) == 0
            for channel in channels:
                channel.close()
            p.start_server()
    finally:
        p.stop()


@pytest.mark.long  # the test above drains beside live streams in every run
@pytest.mark.alone  # the server's last counters are read before its last stream ends
def test_nobody_is_told_that_a_call_was_cancelled(tmp_path, stubs):
    """Clients call all the time while a server drains. Each call is answered, or gets UNAVAILABLE before its first
    byte, and the server counts the refusal. Symptom: in several of a hundred drains, calls that met gRPC's GOAWAY
    got CANCELLED."""
    metrics = free_port()
    p = Plumbing(tmp_path, stubs, rate=200, options=["--metrics", f"127.0.0.1:{metrics}"])
    try:
        for _ in range(5):
            stop, lock, ends = threading.Event(), threading.Lock(), {}
            channels = [grpc.insecure_channel(p.address, [("grpc.use_local_subchannel_pool", 1)]) for _ in range(6)]
            request = stubs.inference.GenerateRequest(model="echo", text="drain")
            request.stopping.max_tokens = 2
            long = stubs.inference.GenerateRequest(model="echo", text="drain")
            long.stopping.max_tokens = 300

            def run(channel):
                stub = stubs.inference_grpc.InferenceStub(channel)
                while not stop.is_set():
                    n = 0
                    try:
                        for _ in stub.Generate(request, timeout=patience(60)):
                            n += 1
                        end = "answered"
                    except grpc.RpcError as e:
                        end = "refused" if e.code() == grpc.StatusCode.UNAVAILABLE and n == 0 else (n, e.code(), e.details())
                    with lock:
                        ends[end] = ends.get(end, 0) + 1
            threads = [threading.Thread(target=run, args=(channel,)) for channel in channels]
            for thread in threads:
                thread.start()
            p.wait(lambda: ends.get("answered", 0) > 60, "calls are answered")
            stream = stubs.inference_grpc.InferenceStub(channels[0]).Generate(long, timeout=patience(60))
            next(stream)
            p.server.send_signal(signal.SIGTERM)
            p.wait(lambda: ends.get("refused", 0) > 0, "calls are refused")
            try:
                text = urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=patience(10)).read().decode()
            except OSError:
                text = None  # the last stream has already ended, and the server with it
            assert sum(1 for _ in stream) > 0  # the stream runs to its end
            assert p.server.wait(patience(30)) == 0
            stop.set()
            for thread in threads:
                thread.join(patience(90))
            assert set(ends) == {"answered", "refused"}, ends
            assert text is None or 'sluice_refusals_total{limit="draining"}' in text
            for channel in channels:
                channel.close()
            p.start_server()
    finally:
        p.stop()


def tls_server(tmp_path, stubs):
    ca = Authority(tmp_path, "ca")
    cert, key = ca.issue("server", "sluice", "DNS:localhost,IP:127.0.0.1")
    return Plumbing(tmp_path, stubs, rate=200, options=["--tls-cert", cert, "--tls-key", key]), ca


def test_who_is_silent_over_tls_is_told_to_go_before_anything_else(tmp_path, stubs):
    """A raw client sees, with either TLS version, GOAWAY with the highest stream number and two PINGs before gRPC's own
    GOAWAY. Symptom: gRPC's GOAWAY came first."""
    p, ca = tls_server(tmp_path, stubs)
    try:
        peers = []
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context = ssl.create_default_context(cafile=ca.cert)
            context.minimum_version = context.maximum_version = version
            context.set_alpn_protocols(["h2"])
            peers.append(Peer(p.port, tls=context))
        for peer in peers:
            with pytest.raises(TimeoutError):
                while True:
                    peer.read_frame(0.3)
        p.server.send_signal(signal.SIGTERM)

        def said(peer):
            """Collects GOAWAYs and PINGs, and answers each PING. The connection ends with an alert."""
            with contextlib.suppress(Closed):
                while True:
                    kind, flags, _, payload = peer.read_frame()
                    if kind in (GOAWAY, PING) and not flags & ACK:
                        yield kind, payload
        with concurrent.futures.ThreadPoolExecutor(len(peers)) as pool:
            heard = list(pool.map(lambda peer: list(itertools.islice(said(peer), 4)), peers))
        for peer, first in zip(peers, heard):
            assert [kind for kind, _ in first] == [GOAWAY, PING, PING, GOAWAY], (peer.socket.version(), first)
            assert first[0][1] == b"\x7f\xff\xff\xff\0\0\0\0" and all(body.startswith(b"leaving") for _, body in first[1:3]), first
        for peer in peers:
            peer.socket.close()
        assert p.server.wait(patience(20)) == 0
    finally:
        p.stop()


def test_nobody_who_was_silent_over_tls_is_told_that_a_call_was_cancelled(tmp_path, stubs):
    """Clients with TLS, idle for a while, call just as the server drains. Each call is refused, or finds no server.
    Symptom: an idle client heard of the drain only through the next bytes sent to that client. Those bytes were
    gRPC's own GOAWAY. A fifth of the calls got CANCELLED; some hung until their deadline."""
    p, ca = tls_server(tmp_path, stubs)
    request = stubs.inference.GenerateRequest(model="echo", text="drain")
    request.stopping.max_tokens = 2
    ends, rng = collections.Counter(), random.Random(6)

    def run(channel, go, delay):
        go.wait(patience(30))
        time.sleep(delay)  # calls must come at every moment of the drain
        try:
            n = sum(1 for _ in stubs.inference_grpc.InferenceStub(channel).Generate(request, timeout=patience(20)))
            ends["answered", n > 0] += 1
        except grpc.RpcError as e:
            ends[e.code()] += 1
    try:
        for _ in range(4):
            channels = [grpc.secure_channel(p.address, grpc.ssl_channel_credentials(ca.cert.read_bytes()),
                                            [("grpc.use_local_subchannel_pool", 1)]) for _ in range(24)]
            for channel in channels:
                grpc.channel_ready_future(channel).result(patience(20))
            go = threading.Event()
            threads = [threading.Thread(target=run, args=(channel, go, rng.uniform(0.025, 0.075))) for channel in channels]
            for thread in threads:
                thread.start()
            p.server.send_signal(signal.SIGTERM)
            go.set()
            for thread in threads:
                thread.join(patience(60))
            assert p.server.wait(patience(20)) == 0
            for channel in channels:
                channel.close()
            p.start_server()
    finally:
        p.stop()
    assert sum(ends.values()) == 4 * 24
    assert set(ends) <= {grpc.StatusCode.UNAVAILABLE, ("answered", True)}, ends


def test_who_reads_nothing_does_not_keep_the_server(tmp_path, stubs):
    """Clients ask for twenty long answers over a port with TLS, and for twenty over a unix socket. They open the
    largest HTTP/2 window and read no byte. The server ends all the same. Symptom: gRPC closed a connection only
    after the client took the bytes already begun, on a unix socket never. A replaced or stopping server then never
    ended."""
    ca = Authority(tmp_path, "ca")
    cert, key = ca.issue("server", "sluice", "DNS:localhost,IP:127.0.0.1")
    metrics, path = free_port(), tmp_path / "server.sock"
    p = Plumbing(tmp_path, stubs, rate=1000, options=["--tls-cert", cert, "--tls-key", key, "--listen-unix", path, "--drain-grace", "0s",
                                                      "--max-pending-tokens", "64", "--metrics", f"127.0.0.1:{metrics}"])
    request = stubs.inference.GenerateRequest(model="echo", text="drain")
    request.stopping.max_tokens = 1000000
    wants = [frame(HEADERS, END_HEADERS, stream, block(request_headers("/sluice.v1.Inference/Generate")))
             + frame(DATA, END_STREAM, stream, message(request.SerializeToString())) for stream in range(1, 40, 2)]
    room = frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 0x7fff0000 - 65535))
    settings = struct.pack(">HI", 4, 0x7fffffff)

    def pauses():
        text = urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=patience(10)).read().decode()
        return int(next(line for line in text.splitlines() if line.startswith("sluice_stream_pauses_total")).split()[-1])
    context = ssl.create_default_context(cafile=ca.cert)
    context.set_alpn_protocols(["h2"])
    try:
        with Peer(p.port, tls=context, settings=settings) as far, socket.socket(socket.AF_UNIX) as near:
            p.wait(lambda: p.listens(path), "its unix socket")
            near.connect(str(path))
            far.send(room + b"".join(wants))
            near.sendall(PREFACE + frame(SETTINGS, 0, 0, settings) + room + b"".join(wants))
            p.wait(lambda: pauses() >= 40, "nothing more is taken", 60)
            p.server.send_signal(signal.SIGTERM)
            assert p.server.wait(patience(20)) == 0
    finally:
        p.stop()
