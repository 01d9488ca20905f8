"""Plumbing for tests/long.sh: 1,000 streams for ten minutes, then 10,000 idle streams. The script prints figures and
asserts the promises."""
import json
import os
import resource

import psutil
import pytest

from conftest import free_port
from plumbing import Plumbing

MAX_CPU_US_PER_TOKEN = 10
MAX_BYTES_PER_IDLE_STREAM = 32 << 10
SECONDS = int(os.environ.get("SLUICE_PLUMBING_SECONDS", "600"))


@pytest.fixture
def make(tmp_path, stubs):
    made = []

    def one(**kwargs):
        made.append(Plumbing(tmp_path, stubs, **kwargs))
        return made[-1]
    yield one
    for p in made:
        p.stop()


def test_1000_streams_of_20_tokens_a_second(make):
    p = make(rate=20, options=["--max-calls", "2000", "--max-concurrent", "2000"])
    figures = p.load(connections=10, streams=1000, tokens=1000, seconds=SECONDS, timeout=SECONDS + 300)
    print("\n" + json.dumps(figures))
    assert figures["errors"] == {} and figures["ok"] >= 1000 * (SECONDS // 52)
    assert figures["tokens_per_second"] >= 0.95 * 1000 * 20, "below the load that was promised: the run is void"
    assert figures["cpu_us_per_token"] <= MAX_CPU_US_PER_TOKEN


def test_10000_idle_streams(make):
    """The client resets all streams in the end. On a busy machine that looked like a flood of resets, and connections were closed."""
    p = make(rate=0, options=["--max-calls", "20000", "--max-concurrent", "20000", "--max-resets", "20000"])
    figures = p.load(connections=110, streams=10000, idle=30, timeout=300)
    print("\n" + json.dumps(figures))
    server = figures["processes"]["server"]
    assert figures["errors"] == {}
    assert server["bytes_per_stream"] <= MAX_BYTES_PER_IDLE_STREAM
    assert server["fds_after"] <= server["fds_before"] and server["threads_after"] <= server["threads_before"] + 4


def test_1000_streams_of_20_tokens_a_second_over_http(make):
    """With HTTP/1.1 each stream has a connection, and each token a write. The HTTP part has its own threads: they write the
    chunks and send them."""
    http = f"127.0.0.1:{free_port()}"
    p = make(rate=20, options=["--http-listen", http, "--max-connections", "2000", "--max-calls", "2000", "--max-concurrent", "2000"])
    grpc = [p.load(connections=connections, streams=1000, tokens=200, timeout=300) for connections in (10, 1000)]
    figures = p.load(connections=4, streams=1000, tokens=1000, seconds=SECONDS, timeout=SECONDS + 300, http=http)
    print("\n" + json.dumps(figures))
    cost, few, many = (f["processes"]["server"]["cpu_us_per_token"] for f in (figures, *grpc))
    print(f"{cost} us of CPU per token; gRPC {few} on 10 connections, {many} on 1,000")
    assert figures["errors"] == {} and figures["ok"] >= 1000 * (SECONDS // 52)
    assert figures["tokens_per_second"] >= 0.95 * 1000 * 20, "below the load that was promised: the run is void"
    assert figures["http_cpu_us_per_token"] <= MAX_CPU_US_PER_TOKEN
    assert cost <= 1.5 * many


def test_10000_idle_streams_over_http(make):
    """The worker stays silent, so the streams begin with their first comment after 15 seconds. Each stream is a connection
    of its own, so client and server need that many descriptors."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    http = f"127.0.0.1:{free_port()}"
    p = make(rate=0, options=["--http-listen", http, "--max-connections", "12000", "--max-calls", "20000", "--max-concurrent", "20000"])
    figures = p.load(connections=4, streams=10000, idle=30, timeout=300, http=http)
    print("\n" + json.dumps(figures))
    server = figures["processes"]["server"]
    assert figures["errors"] == {}
    assert server["bytes_per_stream"] <= MAX_BYTES_PER_IDLE_STREAM
    assert server["fds_after"] <= server["fds_before"] + 2 and server["threads_after"] <= server["threads_before"] + 4

    def rests():
        return psutil.Process(p.server.pid).memory_info().rss <= server["rss_before"] * 1.01 + (8 << 20)
    p.wait(rests, "the memory goes back", 20)
