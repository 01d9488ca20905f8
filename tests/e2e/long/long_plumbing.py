"""Plumbing for tests/long.sh: 1,000 streams for ten minutes, then 10,000 idle streams. The script prints figures and
asserts the promises."""
import json
import os

import pytest

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
    p = make(rate=0, options=["--max-calls", "20000", "--max-concurrent", "20000"])
    figures = p.load(connections=110, streams=10000, idle=30, timeout=300)
    print("\n" + json.dumps(figures))
    server = figures["processes"]["server"]
    assert figures["errors"] == {}
    assert server["bytes_per_stream"] <= MAX_BYTES_PER_IDLE_STREAM
    assert server["fds_after"] <= server["fds_before"] and server["threads_after"] <= server["threads_before"] + 4
