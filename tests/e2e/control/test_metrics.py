"""Metrics and log events, compared with what clients saw. The foreign parser prometheus_client reads the text. The
documentation, alert rules and dashboard must agree with a live scrape."""
import concurrent.futures
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time

import grpc
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from conftest import BIN, ROOT, Sluice, free_port, model_path, names, patience, sanitized, until
from log_events import REQUEST, REQUEST_REFUSED


class Scrape:
    """The parsed text of a /metrics response."""

    def __init__(self, port, path="/metrics"):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=patience(10))
        connection.request("GET", path)
        response = connection.getresponse()
        self.status, self.type, self.text = response.status, response.getheader("Content-Type"), response.read().decode()
        connection.close()
        self.families = {f.name: f for f in text_string_to_metric_families(self.text)} if path == "/metrics" and self.status == 200 else {}

    def samples(self, name, **labels):
        return [s for f in self.families.values() for s in f.samples
                if s.name == name and all(s.labels.get(k) == v for k, v in labels.items())]

    def sum(self, name, **labels):
        return sum(s.value for s in self.samples(name, **labels))


@pytest.fixture(scope="module")
def measured(tmp_path_factory, stubs):
    """The sample model as "smol", with /metrics of server and manager, vLLM's metric names and JSON logs."""
    sluice = Sluice(tmp_path_factory.mktemp("state"), stubs)
    sluice.metrics_port, sluice.manager_metrics_port = free_port(), free_port()
    sluice.start("--metrics", f"127.0.0.1:{sluice.metrics_port}", "--metrics-aliases", "vllm",
                 "--manager-metrics", f"127.0.0.1:{sluice.manager_metrics_port}")
    try:
        sluice.cli("register", "smol", model_path(), "--version", "1")
        sluice.cli("load", "smol")
        sluice.wait(lambda: sluice.run("smol", "hi", "-n", "1", check=False).returncode == 0, 30, "the model answers")
        yield sluice
    finally:
        sluice.stop()


def balance(scrape):
    """I8: the request counters of a scrape balance."""
    for s in scrape.samples("sluice_requests_accepted_total"):
        finished = scrape.sum("sluice_requests_finished_total", **s.labels)
        in_flight = scrape.sum("sluice_requests_in_flight", **s.labels)
        assert s.value == finished + in_flight, (s, finished, in_flight)


def settle(sluice, in_flight=0):
    def at_rest():
        return Scrape(sluice.metrics_port).sum("sluice_requests_in_flight") == in_flight
    sluice.wait(at_rest, 10, f"{in_flight} requests in flight")
    return Scrape(sluice.metrics_port)


def test_counts_are_what_clients_saw(measured):
    before = settle(measured)
    request = measured.request("smol", "Once upon a time", max_tokens=24, ignore_eos=True)
    _, ids, finished = measured.generate(request)
    measured.inference.Complete(measured.request("smol", "Once upon a time", max_tokens=8, ignore_eos=True))
    call = measured.inference.Generate(measured.request("smol", "One two three", max_tokens=400, ignore_eos=True))
    for _ in range(3):
        next(call)
    running = Scrape(measured.metrics_port)
    balance(running)
    assert running.sum("sluice_requests_in_flight", model="smol") == 1
    call.cancel()
    for bad in (measured.request("nobody", "x"), measured.request("smol", "x", temperature=-1)):
        with pytest.raises(grpc.RpcError):
            list(measured.inference.Generate(bad))
    after = settle(measured)
    balance(after)

    def grew(name, **labels):
        return after.sum(name, **labels) - before.sum(name, **labels)
    done = "sluice_requests_finished_total"
    assert grew("sluice_requests_accepted_total") == 5
    assert grew(done, code="OK", finish_reason="length", model="smol", version="1") == 2
    assert grew(done, code="CANCELLED", model="smol") == 1
    assert grew(done, code="NOT_FOUND", model="") == 1 and grew(done, code="INVALID_ARGUMENT", model="") == 1
    assert grew("sluice_prompt_tokens_total", model="smol") >= 2 * finished.usage.n_prompt_tokens
    assert grew("sluice_generated_tokens_total", model="smol") >= len(ids) + 8
    assert grew("sluice_time_to_first_token_seconds_count", model="smol", version="1") == 3
    assert grew("sluice_request_seconds_count", model="smol", version="1") == 3
    assert grew("sluice_request_queue_seconds_count", model="smol", version="1") == 3
    gaps = grew("sluice_inter_token_seconds_count", model="smol")
    assert gaps == grew("sluice_generated_tokens_total", model="smol") - 3, "a gap for each token but the first"
    assert grew("sluice_grpc_calls_total", code="INVALID_ARGUMENT") == 1
    assert grew("sluice_grpc_bytes_total", direction="out") > 0


def test_tokens_that_come_at_once_are_a_gap_each(measured):
    """Many tokens are released together when a possible stop string does not complete. Each choice has its own first
    token."""
    def ask(n, stop=()):
        request = measured.request("smol", "Once upon a time", max_tokens=40, ignore_eos=True, stop=stop, n=n,
                                   **(dict(temperature=0.8, seed=5) if n > 1 else {}))
        messages = [(r.tokens.choice, list(r.tokens.ids), r.tokens.text) for r in measured.inference.Generate(request)
                    if r.WhichOneof("event") == "tokens"]
        return messages, sum(len(ids) for _, ids, _ in messages)

    text = "".join(m[2] for m in ask(1)[0])
    stop = text[20:90] + "\N{SNOWMAN}"  # starts like the model's text and ends differently
    for n in (1, 3):
        before = settle(measured)
        messages, n_tokens = ask(n, [stop])
        after = settle(measured)

        def grew(name):
            return after.sum(name, model="smol") - before.sum(name, model="smol")
        if n == 1:
            assert "".join(m[2] for m in messages) == text and max(len(m[1]) for m in messages) > 5, "nothing came at once"
        assert grew("sluice_generated_tokens_total") == n_tokens == 40 * n
        first = {}  # further tokens with a choice's first token are no gap either; a message may hold several batches
        for choice, ids, _ in messages:
            first.setdefault(choice, len(ids))
        assert n_tokens - sum(first.values()) <= grew("sluice_inter_token_seconds_count") <= n_tokens - n
        assert grew("sluice_time_to_first_token_seconds_count") == 1


def test_what_the_prefix_cache_held_is_counted(measured):
    before = settle(measured)
    request = measured.request("smol", "The prefix cache holds what was computed before. " * 20, max_tokens=2, ignore_eos=True)
    cached = sum(measured.generate(request)[2].usage.n_cached_tokens for _ in range(2))
    assert cached > 0
    counted = []

    def all_told():  # the worker reports its cache hits with its load
        after = settle(measured)
        counted[:] = [after.sum(name, model="smol") - before.sum(name, model="smol")
                      for name in ("sluice_cached_prompt_tokens_total", "sluice_prefix_hit_tokens_total")]
        return counted == [cached, cached]
    until(all_told, 5, lambda: f"{counted} of {cached}")


def test_books_balance_at_every_scrape_under_load(measured):
    stop = threading.Event()
    scrapes = []

    def scrape_on():
        while not stop.is_set():
            scrapes.append(Scrape(measured.metrics_port))
            stop.wait(0.01)

    def one(i):
        try:
            if i % 7 == 0:
                call = measured.inference.Generate(measured.request("smol", f"Count {i}", max_tokens=64, ignore_eos=True))
                next(call)
                call.cancel()
            elif i % 5 == 0:
                list(measured.inference.Generate(measured.request("smol", "x", top_p=7)))
            else:
                measured.generate(measured.request("smol", f"Count {i}", max_tokens=4), timeout=0.05 if i % 11 == 0 else 60)
        except grpc.RpcError:
            pass
    thread = threading.Thread(target=scrape_on)
    thread.start()
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        list(pool.map(one, range(120)))
    stop.set()
    thread.join()
    assert len(scrapes) >= 20
    for scrape in scrapes:
        balance(scrape)
    assert max(s.sum("sluice_requests_in_flight") for s in scrapes) >= 8, "there was a load"
    totals = [s.sum("sluice_requests_accepted_total") for s in scrapes]
    assert totals == sorted(totals) and totals[-1] >= totals[0] + 100


def test_vllm_names_say_the_same(measured):
    for _ in range(2):
        measured.generate(measured.request("smol", "Once upon a time", max_tokens=2, ignore_eos=True))
    call = measured.inference.Generate(measured.request("smol", "One two three", max_tokens=400, ignore_eos=True))
    next(call)
    call.cancel()
    scrape = settle(measured)
    same = {"vllm:time_to_first_token_seconds_count": "sluice_time_to_first_token_seconds_count",
            "vllm:inter_token_latency_seconds_sum": "sluice_inter_token_seconds_sum",
            "vllm:time_per_output_token_seconds_count": "sluice_inter_token_seconds_count",
            "vllm:e2e_request_latency_seconds_count": "sluice_request_seconds_count",
            "vllm:request_queue_time_seconds_count": "sluice_request_queue_seconds_count",
            "vllm:prompt_tokens_total": "sluice_prompt_tokens_total",
            "vllm:generation_tokens_total": "sluice_generated_tokens_total",
            "vllm:num_preemptions_total": "sluice_preemptions_total",
            "vllm:prefix_cache_queries_total": "sluice_prefix_query_tokens_total",
            "vllm:prefix_cache_hits_total": "sluice_prefix_hit_tokens_total"}
    for theirs, ours in same.items():
        assert scrape.sum(theirs, model_name="smol") == scrape.sum(ours, model="smol"), theirs
        assert len(scrape.samples(theirs, model_name="smol")) == 1, theirs
    assert scrape.sum("vllm:prefix_cache_queries_total") > 0
    success = {s.labels["finished_reason"]: s.value for s in scrape.samples("vllm:request_success_total")}
    assert set(success) == {"stop", "length", "abort"} and success["length"] >= 2 and success["abort"] >= 1
    call = measured.inference.Generate(measured.request("smol", "One two three", max_tokens=400, ignore_eos=True))
    for _ in range(3):
        next(call)
    measured.wait(lambda: Scrape(measured.metrics_port).sum("vllm:num_requests_running", model_name="smol") == 1, 5, "1 runs")
    assert 0 < Scrape(measured.metrics_port).sum("vllm:kv_cache_usage_perc", model_name="smol") <= 1
    (blocks,) = scrape.samples("vllm:cache_config_info", model_name="smol")
    assert blocks.value == 1 and int(blocks.labels["block_size"]) * int(blocks.labels["num_gpu_blocks"]) == sum(kv(measured).values())
    call.cancel()
    settle(measured)


def running(measured):
    (sample,) = Scrape(measured.metrics_port).samples("sluice_replica_requests", model="smol", version="1", state="running")
    return sample.value


def kv(measured):
    return {s.labels["state"]: s.value for s in Scrape(measured.metrics_port).samples("sluice_replica_kv_tokens", model="smol")}


def test_what_a_replica_runs_and_holds_is_told(measured):
    settle(measured)
    measured.wait(lambda: running(measured) == 0 and kv(measured)["used"] == 0, 5, "it is at rest")
    whole = sum(kv(measured).values())
    measured.generate(measured.request("smol", "What is computed is kept for who asks it again. " * 20, max_tokens=2, ignore_eos=True))
    measured.wait(lambda: kv(measured)["used"] == 0 and kv(measured)["cached"] > 0, 5, "its blocks are kept")
    calls = [measured.inference.Generate(measured.request("smol", f"Count {i}", max_tokens=1500, ignore_eos=True)) for i in range(3)]
    for call in calls:
        for _ in range(3):
            next(call)
    measured.wait(lambda: running(measured) == 3 and kv(measured)["used"] > 0, 5, "three run, and hold blocks")
    busy = kv(measured)
    assert set(busy) == {"used", "cached", "free"} and sum(busy.values()) == whole > 0
    [call.cancel() for call in calls]
    measured.wait(lambda: running(measured) == 0 and kv(measured)["used"] == 0, 5, "it is at rest again")
    settle(measured)


def scrape_ms(pid, scrape, n=100):
    """CPU time of the process per scrape, in ms. The least of three runs of n scrapes: other programs on the machine
    can only add time."""
    process, best = psutil.Process(pid), float("inf")
    scrape()
    for _ in range(3):
        before = sum(process.cpu_times()[:2])
        for _ in range(n):
            scrape()
        best = min(best, (sum(process.cpu_times()[:2]) - before) * 1000 / n)
    return best


def test_a_scrape_costs_little(measured):
    (pid,) = measured.children("sluice-server")
    settle(measured)

    def scrape():
        connection = http.client.HTTPConnection("127.0.0.1", measured.metrics_port, timeout=patience(10))
        connection.request("GET", "/metrics")
        assert len(connection.getresponse().read()) > 1000
        connection.close()
    ms = scrape_ms(pid, scrape)
    print(f"server: {ms:.3f} ms CPU per scrape")
    assert sanitized() or ms <= 1


def test_health_over_http(measured):
    assert Scrape(measured.metrics_port, "/healthz").status == 200
    assert Scrape(measured.metrics_port, "/healthz").text == "ok\n"
    assert Scrape(measured.metrics_port, "/nothing").status == 404
    assert Scrape(measured.metrics_port).type.startswith("text/plain; version=0.0.4")


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=patience(10))
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(10)
        self.sock.connect(self.path)


def worker_scrape(sluice):
    """Scrapes the worker on its private socket."""
    (path,) = sluice.state.glob("run/replica-*/metrics.sock")
    assert path.stat().st_mode & 0o777 == 0o600
    connection = UnixConnection(path)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return {f.name: f for f in text_string_to_metric_families(text)}, text


def values(families):
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for f in families.values() for s in f.samples
            if s.name.startswith("sluice_worker_")}


def total(of, name, **labels):
    return sum(v for (n, l), v in of.items() if n == name and labels.items() <= dict(l).items())


def test_workers_are_told_by_themselves_and_by_the_manager(measured):
    settle(measured)

    def at_rest():
        now = values(worker_scrape(measured)[0])
        return total(now, "sluice_worker_requests_accepted_total") == total(now, "sluice_worker_requests_finished_total")
    measured.wait(at_rest, 5, "the worker is at rest")
    before = values(worker_scrape(measured)[0])
    _, ids, finished = measured.generate(measured.request("smol", "Sing of the sea", max_tokens=16, ignore_eos=True))
    settle(measured)
    own = values(worker_scrape(measured)[0])

    def grew(name, **labels):
        return total(own, name, **labels) - total(before, name, **labels)
    replica = finished.receipt.replica_id
    assert grew("sluice_worker_generated_tokens_total", replica=replica, model="smol", version="1") == len(ids) == 16
    assert grew("sluice_worker_requests_finished_total", outcome="ok") == 1
    assert grew("sluice_worker_request_decode_seconds_count", replica=replica) == 1
    assert grew("sluice_worker_request_prompt_tokens_sum") == finished.usage.n_prompt_tokens
    assert grew("sluice_worker_request_generated_tokens_sum") == 16
    # the model does not compute the last token
    assert grew("sluice_worker_path_rows_total", path="d") == 15 and grew("sluice_worker_mixed_steps_total") == 0
    assert grew("sluice_worker_path_rows_total", path="p") == finished.usage.n_prompt_tokens - grew("sluice_worker_prefix_hit_tokens_total")
    assert total(own, "sluice_worker_requests_accepted_total") == total(own, "sluice_worker_requests_finished_total")
    steady = {k: v for k, v in own.items() if "memory" not in k[0] and "step_seconds" not in k[0]}
    assert len(steady) > 60

    def same():
        told = values(Scrape(measured.manager_metrics_port).families)
        return {k: told.get(k) for k in steady} == steady
    measured.wait(same, 5, "the manager says the same")
    manager = Scrape(measured.manager_metrics_port)
    assert manager.sum("sluice_manager_replica_state", replica=replica, state="ready") == 1
    assert manager.sum("sluice_worker_state", replica=replica, state="ready") == 1
    assert manager.sum("sluice_worker_memory_bytes", kind="weights") > 50 << 20


def test_a_scrape_of_manager_and_worker_costs_little(measured):
    (manager,), (worker,) = measured.children("sluice-manager"), measured.children("sluice-worker")
    for name, pid, scrape in (("manager", manager, lambda: Scrape(measured.manager_metrics_port, "/metrics")),
                              ("worker", worker, lambda: worker_scrape(measured))):
        ms = scrape_ms(pid, scrape)
        print(f"{name}: {ms:.3f} ms CPU per scrape")
        assert sanitized() or ms <= 5  # 0.3 ms on a quiet machine


def test_scrapes_do_not_wait_for_the_engine(measured):
    call = measured.inference.Generate(measured.request("smol", "One two three", max_tokens=400, ignore_eos=True))
    next(call)
    worst = 0
    for _ in range(20):
        began = time.monotonic()
        assert Scrape(measured.manager_metrics_port).status == 200
        worker_scrape(measured)
        worst = max(worst, time.monotonic() - began)
    call.cancel()
    assert worst < patience(2)
    settle(measured)


# --- hostile HTTP ---

def talk(port, data, seconds=15):
    """Returns everything that the peer sends until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as s:
        try:
            s.sendall(data)
            answer = b""
            while chunk := s.recv(65536):
                answer += chunk
        except (ConnectionResetError, BrokenPipeError):
            pass
        return answer


SMUGGLED = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
HOSTILE = {
    "length_and_chunked": b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked_twice": b"POST /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "two_lengths": b"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nContent-Length: 44\r\n\r\n",
    "length_too_long": b"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n",
    "length_too_short": b"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabcdef",
    "space_before_colon": b"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length : 44\r\n\r\n",
    "length_not_a_number": b"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0x10\r\n\r\n",
    "big_header": b"GET /metrics HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 65536 + b"\r\n\r\n",
    "big_line": b"GET /" + b"a" * 65536 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "many_headers": b"GET /metrics HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 10000 + b"\r\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_http_is_refused_and_nothing_after_it_is_read(measured, name):
    (pid,) = measured.children("sluice-server")
    before = psutil.Process(pid).memory_info().rss
    for _ in range(20):
        answer = talk(measured.metrics_port, HOSTILE[name] + SMUGGLED)
        assert b"200 OK" not in answer and b"# HELP" not in answer
        assert answer == b"" or re.match(rb"HTTP/1\.1 4\d\d ", answer), answer[:200]
    assert Scrape(measured.metrics_port).status == 200
    assert sanitized() or psutil.Process(pid).memory_info().rss - before < 8 << 20
    assert measured.children("sluice-server") == [pid]


def test_slow_and_silent_connections_do_not_keep_others_out(measured):
    """Slowloris: the server ends 30 slow connections within their time-out. Scrapes and streams continue."""
    (pid,) = measured.children("sluice-server")
    fds = psutil.Process(pid).num_fds()
    slow = [socket.create_connection(("127.0.0.1", measured.metrics_port)) for _ in range(30)]
    for s in slow:
        s.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nX: ")
        s.setblocking(False)
    left = list(slow)

    def all_ended():
        assert Scrape(measured.metrics_port).status == 200
        for s in list(left):
            try:
                s.send(b"a")
                if s.recv(1024) == b"":
                    left.remove(s)
            except BlockingIOError:
                pass
            except OSError:
                left.remove(s)
        return not left
    until(all_ended, 30, "all are ended", 0.25)
    for s in slow:
        s.close()
    measured.wait(lambda: psutil.Process(pid).num_fds() <= fds + 2, 5, "descriptors are back")


def test_a_port_in_use_is_told(measured, tmp_path):
    (pid,) = measured.children("sluice-server")
    result = subprocess.run([BIN / "sluice", "serve", "--state-dir", tmp_path, "--listen", f"127.0.0.1:{free_port()}",
                             "--metrics", f"127.0.0.1:{measured.metrics_port}"], capture_output=True, text=True, timeout=patience(30))
    assert result.returncode == 1
    assert names(result.stderr, "--metrics", f"127.0.0.1:{measured.metrics_port}", pid), result.stderr
    (pid,) = measured.children("sluice-manager")
    result = subprocess.run([BIN / "sluice", "serve", "--state-dir", tmp_path, "--listen", f"127.0.0.1:{free_port()}",
                             "--manager-metrics", f"127.0.0.1:{measured.manager_metrics_port}"],
                            capture_output=True, text=True, timeout=patience(30))
    assert result.returncode == 1
    assert names(result.stderr, "--manager-metrics", f"127.0.0.1:{measured.manager_metrics_port}", pid), result.stderr


# --- logs ---

def log_lines(path, event):
    found = []
    for line in path.read_text().splitlines():
        if f"event={event} " in line or f'event="{event}" ' in line:
            found.append(dict(re.findall(r'(\w+)=("(?:[^"\\]|\\.)*"|\S*)', line)))
    return [{k: json.loads(v) if v.startswith('"') else v for k, v in f.items()} for f in found]


TRACE = "0af7651916cd43dd8448eb211c80319c"


def request_line(sluice, request_id):
    path = sluice.state / "log/server.log"
    sluice.wait(lambda: any(x["request_id"] == request_id for x in log_lines(path, "request")), 5, "a line")
    return [x for x in log_lines(path, "request") if x["request_id"] == request_id][-1]


def test_each_request_leaves_one_line_without_its_text(measured):
    secret = "The canary 7f3d9 sings of nightfall"
    request = measured.request("smol", secret, max_tokens=12, ignore_eos=True, request_id="logged-1")
    text, ids, finished = measured.generate(request, metadata=[("traceparent", f"00-{TRACE}-b7ad6b7169203331-01")])
    line = request_line(measured, "logged-1")
    assert line["model"] == "smol" and line["version"] == "1" and line["code"] == "OK" and line["reason"] == "length"
    assert int(line["generated_tokens"]) == len(ids) == 12
    assert int(line["prompt_tokens"]) == finished.usage.n_prompt_tokens
    assert 0 < float(line["ttft_ms"]) <= float(line["duration_ms"])
    assert line["replica"] == finished.receipt.replica_id and line["caller"] == "anonymous"
    assert line["trace_id"] == TRACE and line["parent_span_id"] == "b7ad6b7169203331" and line["sampled"] == "1"
    everything = "".join(p.read_text() for p in [*measured.state.glob("log/*.log"), *measured.state.glob("run/replica-*/log")])
    assert "canary" not in everything and "nightfall" not in everything
    assert text.strip() and text.strip() not in everything


def test_workers_lines_name_the_same_request_and_trace(measured):
    measured.generate(measured.request("smol", "x", max_tokens=3, request_id="logged-2"),
                      metadata=[("traceparent", f"00-{TRACE}-b7ad6b7169203331-00")])
    server = request_line(measured, "logged-2")
    (path,) = measured.state.glob("run/replica-*/log")
    measured.wait(lambda: any(x["request_id"] == "logged-2" for x in log_lines(path, "request")), 5, "the worker's line")
    (worker,) = [x for x in log_lines(path, "request") if x["request_id"] == "logged-2"]
    assert worker["trace_id"] == server["trace_id"] == TRACE and worker["parent_span_id"] == server["span_id"]
    assert worker["sampled"] == server["sampled"] == "0"
    assert worker["outcome"] == "ok" and worker["generated_tokens"] == "3" and server["replica"] in str(path)


@pytest.mark.parametrize("bad", [f"00-{TRACE}-b7ad6b7169203331", f"00-{TRACE.upper()}-b7ad6b7169203331-01", "00-0-0-0",
                                 f"ff-{TRACE}-b7ad6b7169203331-01", f"00-{'0' * 32}-b7ad6b7169203331-01", "x" * 2000])
def test_a_traceparent_that_is_not_valid_counts_as_absent(measured, bad):
    request_id = f"trace-{hash(bad) & 0xffffff}"
    measured.generate(measured.request("smol", "x", max_tokens=1, request_id=request_id), metadata=[("traceparent", bad)])
    line = request_line(measured, request_id)
    assert re.fullmatch("[0-9a-f]{32}", line["trace_id"]) and line["trace_id"] != TRACE
    assert line["parent_span_id"] == "" and line["sampled"] == "0"


HOSTILE_TEXT = ["a\nlevel=error event=forged", "\x1b[2J\x1b]0;owned\x07", "\x9b31m", "\u202etxt.exe", "\u2028", "a\r\n\r\nb",
                '"},{"event":"forged', "\\", "%s%n", "x" * 5000, "\U0001f600" * 1500]


def test_no_clients_text_breaks_a_json_log(fresh):
    """Without a model: every field from a client that may reach a line of a JSON log."""
    fresh.start("--log-format", "json")
    inference = fresh.stubs.inference

    def send(**fields):
        request = inference.GenerateRequest(text="The canary sings", **{"model": "nobody", **fields})
        with pytest.raises(grpc.RpcError):
            list(fresh.inference.Generate(request, timeout=patience(10)))
    for text in HOSTILE_TEXT:
        send(request_id=text)
        send(model=text)
        send(version=text)
        send(request_id="ok", cache_salt=text, session_key=text)
        send(stopping=inference.Stopping(stop=[text] * 100))
    for value in ("a\x7fb", "\t", "x" * 3000, "00-" + TRACE):
        try:
            list(fresh.inference.Generate(inference.GenerateRequest(model="nobody", text="x", request_id="traced"),
                                          metadata=[("traceparent", value)], timeout=patience(10)))
        except (grpc.RpcError, ValueError):
            pass
    path = fresh.state / "log/server.log"
    fresh.wait(lambda: path.read_text().count("request") >= 5 * len(HOSTILE_TEXT), 10, "a line for each")
    data = path.read_bytes()
    assert b"canary" not in data
    lines = [json.loads(line) for line in data.decode().splitlines()]
    requests = [x for x in lines if x["event"] in (REQUEST, REQUEST_REFUSED)]
    assert len(requests) >= 5 * len(HOSTILE_TEXT)
    assert not any(x["event"] == "forged" or x["level"] == "error" for x in lines)
    for line in data.decode().split("\n"):
        assert line == "" or (line.startswith("{") and line.endswith("}") and line.isprintable() or "\U0001f600" in line), line
    for path in (fresh.state / "log").glob("*.log"):
        for line in path.read_text().splitlines():
            json.loads(line)


# --- faults ---

def test_books_go_on_over_a_dead_worker_and_a_dead_server(fresh):
    sluice = fresh
    sluice.metrics_port, manager_port = free_port(), free_port()
    sluice.start("--metrics", f"127.0.0.1:{sluice.metrics_port}", "--manager-metrics", f"127.0.0.1:{manager_port}")
    sluice.cli("register", "smol", model_path(), "--version", "1")
    sluice.cli("load", "smol")
    sluice.wait(lambda: Scrape(sluice.metrics_port).sum("sluice_serving", model="smol") == 1, 30, "it serves")
    sluice.generate(sluice.request("smol", "One", max_tokens=4, ignore_eos=True))
    calls = [sluice.inference.Generate(sluice.request("smol", f"Count from {i}", max_tokens=200, ignore_eos=True))
             for i in range(4)]
    for call in calls:
        for _ in range(3):
            next(call)
    (worker,) = sluice.children("sluice-worker")
    os.kill(worker, signal.SIGKILL)
    sluice.wait(lambda: Scrape(sluice.metrics_port).sum("sluice_serving", model="smol") == 0, 5, "it says so")
    away = Scrape(sluice.metrics_port)
    balance(away)
    assert away.sum("sluice_requests_accepted_total", model="smol") == 5, "the counts are not set back"
    assert away.sum("sluice_requests_in_flight", model="smol") == 4
    for call in calls:
        assert list(call)[-1].finished.receipt.n_resumes == 1
    after = settle(sluice)
    balance(after)
    assert after.sum("sluice_requests_finished_total", code="OK", model="smol") == 5
    assert after.sum("sluice_resumes_total") == 4 and after.sum("sluice_replica_losses_total", model="smol") == 1
    assert after.sum("sluice_time_to_first_token_seconds_count", model="smol") == 5, "one first token each"
    assert after.sum("sluice_generated_tokens_total", model="smol") == 4 + 4 * 200, "none twice"
    sluice.wait(lambda: Scrape(manager_port).sum("sluice_manager_replica_restarts_total", model="smol") == 1, 5, "a restart")
    assert Scrape(manager_port, "/healthz").status == 200
    (server,) = sluice.children("sluice-server")
    os.kill(server, signal.SIGKILL)
    sluice.wait(lambda: sluice.children("sluice-server") not in ([], [server]), 5, "a new server")

    def scraped():
        try:
            return Scrape(sluice.metrics_port).sum("sluice_serving", model="smol") == 1
        except OSError:
            return False
    sluice.wait(scraped, 5, "its /metrics")
    sluice.generate(sluice.request("smol", "One", max_tokens=4, ignore_eos=True), wait_for_ready=True)
    again = settle(sluice)
    balance(again)
    assert again.sum("sluice_requests_accepted_total") == 1 and again.sum("sluice_preemptions_total") == 0


def test_a_version_leaves_with_its_unload(fresh):
    sluice = fresh
    sluice.metrics_port, manager_port = free_port(), free_port()
    sluice.start("--metrics", f"127.0.0.1:{sluice.metrics_port}", "--manager-metrics", f"127.0.0.1:{manager_port}")
    tiny = ROOT / "tests/golden/tiny/q8_0.gguf"
    for i in range(3):
        sluice.cli("register", f"tiny{i}", tiny)
        sluice.cli("load", f"tiny{i}")
        sluice.wait(lambda i=i: Scrape(sluice.metrics_port).sum("sluice_serving", model=f"tiny{i}") == 1, 10, "it serves")
        sluice.generate(sluice.request(f"tiny{i}", "x", max_tokens=2), timeout=patience(30))
        sluice.cli("unload", f"tiny{i}")
        gone = lambda port, i=i: f'"tiny{i}"' not in Scrape(port).text
        sluice.wait(lambda: gone(sluice.metrics_port) and gone(manager_port), 10, "no series of it")


# --- documentation, alert rules and dashboard ---

def described(text):
    """Returns (name, type) → help of a scrape's text."""
    found, helped = {}, {}
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name, text = line[7:].split(" ", 1)
            helped[name] = text
        elif line.startswith("# TYPE "):
            name, kind = line[7:].split(" ")
            found[name] = (kind, helped[name])
    return found


@pytest.fixture(scope="module")
def shown(measured):
    """Returns the metrics of all programs: name → (type, help), and name → labels as far as there are samples."""
    measured.generate(measured.request("smol", "x", max_tokens=2))
    with pytest.raises(grpc.RpcError):
        list(measured.inference.Generate(measured.request("smol", "x", stop=["a"] * 100)))
    server, manager = Scrape(measured.metrics_port), Scrape(measured.manager_metrics_port)
    families, worker_text = worker_scrape(measured)
    descriptions, labels = {}, {}
    for text in (server.text, manager.text, worker_text):
        for name, what in described(text).items():
            assert descriptions.setdefault(name, what) == what, f"{name} means two things"
    for family in [*server.families.values(), *manager.families.values(), *families.values()]:
        for sample in family.samples:
            labels.setdefault(sample.name, set(sample.labels)).update(sample.labels)
    return descriptions, labels


def test_docs_tell_every_metric_and_no_other(shown):
    rows = {}
    for line in (ROOT / "docs/use/metrics.md").read_text().splitlines():
        cells = [c.strip() for c in line.strip("|").split(" | ")] if line.startswith("| `") else []
        if len(cells) == 4 and re.fullmatch(r"`[a-z_:0-9]+`", cells[0]):
            rows[cells[0].strip("`")] = (cells[1], cells[3], {x.strip() for x in cells[2].split(",")} - {""})
    descriptions, labels = shown
    assert set(rows) == set(descriptions), set(rows) ^ set(descriptions)
    for name, (kind, text) in descriptions.items():
        assert rows[name][:2] == (kind, text.replace("\\\\", "\\")), name
        seen = labels.get(name, labels.get(name + "_count"))
        assert seen is None or seen - {"le"} == rows[name][2], (name, seen)


FUNCTIONS = {"rate", "increase", "sum", "by", "histogram_quantile", "ignoring", "group_left", "label_values", "up", "job",
             "instance", "le", "on", "and", "or"}


def names_and_labels(expression):
    """Returns the metric names and label names of an expression."""
    bare = re.sub(r'"[^"]*"', '""', expression)
    bare = re.sub(r"\[[^\]]*\]|\$\w+", "", bare)
    used = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"\"", bare))
    for group in re.findall(r"(?:by|ignoring|on)\s*\(([^)]*)\)", bare):
        used |= {x.strip() for x in group.split(",")}
    if bare.startswith("label_values"):
        used.add(bare.rstrip(")").rsplit(",", 1)[1].strip())
    bare = re.sub(r"\{[^}]*\}", "", bare)
    bare = re.sub(r"(?:by|ignoring|on)\s*\([^)]*\)", "", bare)
    return set(re.findall(r"[a-z_:]{3,}[a-z_:0-9]*", bare)) - FUNCTIONS - used, used - {"job", "instance", "le"}


def expressions():
    for line in re.sub(r">-\n\s+", "", (ROOT / "etc/prometheus/alerts.yml").read_text()).replace("\n          ", " ").splitlines():
        if line.strip().startswith("expr: "):
            yield "alerts.yml", line.strip()[6:]
    board = json.loads((ROOT / "etc/grafana/sluice.json").read_text())
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["definition"]


def test_alerts_and_board_use_what_there_is(shown):
    descriptions, labels = shown
    samples = set(descriptions)
    for name, (kind, _) in descriptions.items():
        if kind == "histogram":
            samples |= {name + "_bucket", name + "_count", name + "_sum"}
    seen, all_names = 0, set()
    for where, expression in expressions():
        names, used = names_and_labels(expression)
        assert names or expression.startswith("up"), (where, expression)
        assert names <= samples, (where, names - samples)
        known = set().union(*(labels.get(n, set()) for n in names))
        missing = {n for n in names if n not in labels}
        assert missing or not names or used <= known, (where, expression, used - known)
        seen += 1
        all_names |= names
    assert seen >= 52
    shown_to_operators = {  # replicas, parked ones among them; traffic; changes and their audit; refused callers
        "sluice_manager_replica_state", "sluice_manager_idle_actions_total", "sluice_requests_accepted_total",
        "sluice_manager_event_sequence", "sluice_access_refusals_total", "sluice_access_reloads_total", "sluice_replica_kv_tokens",
        "sluice_replica_requests", "sluice_generated_tokens_total", "sluice_manager_store_writable"}
    assert shown_to_operators <= all_names, shown_to_operators - all_names
    limits = set(re.findall(r'\] = \{"(\w+)"', (ROOT / "server/gateway/base/limits.c").read_text()))
    (named,) = re.findall(r'limit=~"([a-z|_]+)"', (ROOT / "etc/prometheus/alerts.yml").read_text())
    assert set(named.split("|")) <= limits
    ports = re.findall(r'targets: \["127.0.0.1:(\d+)"\]', (ROOT / "etc/prometheus/prometheus.yml").read_text())
    for port, program in zip(ports, ("sluice-server", "sluice-manager"), strict=True):
        text = subprocess.run([BIN / program, "--help"], capture_output=True, text=True,
                              env={k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}).stdout
        assert f"127.0.0.1:{port}" in text


def test_a_replica_that_is_away_runs_and_holds_nothing(measured):
    """Symptom: the lost replica's last figures stayed, while the same requests waited for another replica."""
    def usable():
        return Scrape(measured.metrics_port).sum("sluice_replica_usable", model="smol")
    (manager,), (worker,) = measured.children("sluice-manager"), measured.children("sluice-worker")
    call = measured.inference.Generate(measured.request("smol", "Count on", max_tokens=1500, ignore_eos=True))
    next(call)
    measured.wait(lambda: running(measured) == 1 and kv(measured)["used"] > 0, 5, "it runs")
    os.kill(manager, signal.SIGSTOP)  # no other process starts a replica meanwhile
    try:
        os.kill(worker, signal.SIGKILL)
        measured.wait(lambda: usable() == 0, 5, "it is away")
        assert running(measured) == 0 and sum(kv(measured).values()) == 0
    finally:
        os.kill(manager, signal.SIGCONT)
    measured.wait(lambda: usable() == 1 and running(measured) == 1, 20, "it is back, and the stream with it")
    call.cancel()
