"""The path between client and worker under load. A test worker echoes tokens, and the load client checks each
token."""
import json

import pytest

from conftest import free_port, patience
from plumbing import Plumbing

pytestmark = pytest.mark.alone


@pytest.fixture
def plumbing(tmp_path, stubs):
    made = []

    def make(**kwargs):
        made.append(Plumbing(tmp_path, stubs, **kwargs))
        return made[-1]
    yield make
    for p in made:
        p.stop()


def test_200_streams_of_20_tokens_a_second_arrive_whole(plumbing):
    p = plumbing(rate=20)
    figures = p.load(connections=4, streams=200, tokens=60, seconds=1)
    print(json.dumps(figures))
    assert figures["ok"] == 200 and figures["tokens"] == 200 * 60 and figures["errors"] == {}
    assert figures["seconds"] < patience(15)


def test_200_streams_over_http_arrive_whole(plumbing):
    """HTTP/1.1 needs a connection for each stream. gRPC with a connection for each stream is the measure of its cost."""
    http = f"127.0.0.1:{free_port()}"
    p = plumbing(rate=20, options=["--http-listen", http])
    grpc = p.load(connections=200, streams=200, tokens=20)
    figures = p.load(connections=4, streams=200, tokens=60, seconds=1, http=http)
    print(json.dumps(figures))
    assert figures["ok"] == 200 and figures["tokens"] == 200 * 60 and figures["errors"] == {}
    assert figures["seconds"] < patience(15)
    cost, measure = (f["processes"]["server"]["cpu_us_per_token"] for f in (figures, grpc))
    assert cost <= 1.5 * measure, f"{cost} us of CPU per token over HTTP, {measure} over gRPC"
