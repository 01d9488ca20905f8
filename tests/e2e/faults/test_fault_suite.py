"""Faults of the data plane, with the real programs under live load and the invariants (invariants.py) checked around
each. Faults made by clients are in test_fault_clients.py. Timers are shortened; tests/long.sh faults sets
SLUICE_LONG and keeps the real timers."""
import gc
import json
import os
import resource
import signal
import socket
import threading
import time

import grpc
import psutil
import pytest

import http_stream
from conftest import TIME_SCALE, Sluice, free_port, keeps, model_path, patience, sanitized, stand_still, until
from invariants import Load, Rest, Watch, check_all, check_books, metrics, server_books, worker_processes, worker_status
from kinds import Kinds
from plumbing import Plumbing
from rawhttp2 import GOAWAY, SETTINGS, Peer

pytestmark = pytest.mark.alone
long = pytest.mark.long

LONG = bool(os.environ.get("SLUICE_LONG"))
STALL_S = 10 if LONG else 2
N = 32 if LONG else 8  # clients of load L
# Least token rate of each stream while a fault lasts. The promise is 20 tokens a second "or what the machine gives". On
# two cores shared with the clients that is 10 to 60.
RATE = 2 if LONG else 1 / TIME_SCALE
ENV = {"SLUICE_RESTART_BACKOFF_INITIAL": "1s" if LONG else "100ms", "SLUICE_STALL_TIMEOUT": f"{STALL_S}s"}
UNAVAILABLE, EXHAUSTED = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED


def details(error):
    """(reason, retry delay in s or None, pushback in ms or None) of a refusal."""
    from google.rpc import error_details_pb2, status_pb2
    reason, retry, pushback = "", None, None
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-retry-pushback-ms":
            pushback = int(value)
        if key == "grpc-status-details-bin":
            for detail in status_pb2.Status.FromString(value).details:
                info, delay = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
                if detail.Unpack(info):
                    reason = info.reason
                if detail.Unpack(delay):
                    retry = delay.retry_delay.seconds + delay.retry_delay.nanos / 1e9
    return reason, retry, pushback


def start(folder, stubs, replicas=1, env=None, load=(), serve=()):
    sluice = Sluice(folder, stubs)
    sluice.n_replicas = replicas
    try:
        sluice.start_measured(*serve, env={**ENV, **(env or {})})
        sluice.cli("register", "smol", model_path(), "--version", "1")
        sluice.cli("load", "smol", "--replicas", str(replicas), *(["--threads", "1"] if replicas > 1 else []), *load)
        sluice.wait(lambda: sluice.run("smol", "hi", "-n", "1", check=False).returncode == 0, 30, "the model answers")
    except BaseException:
        sluice.stop()
        raise
    return sluice


@pytest.fixture(scope="module")
def one(tmp_path_factory, stubs):
    sluice = start(tmp_path_factory.mktemp("one"), stubs)
    yield sluice
    sluice.stop()


@pytest.fixture(scope="module")
def two(tmp_path_factory, stubs):
    sluice = start(tmp_path_factory.mktemp("two"), stubs, replicas=2)
    yield sluice
    sluice.stop()


class UnderLoad:
    """`with UnderLoad(sluice) as load:` surrounds the fault. Load L runs before, during and after the fault; at the end
    every invariant is checked."""

    def __init__(self, sluice, allowed=(), during=5, rate=RATE, warm=None, n=N, rss=True, **kwargs):
        """`during`, `rate`: mean tokens and tokens a second that each stream must get while the fault lasts (I9).
        `warm`: the work that the fault causes besides load L, done once before the memory is measured. `rss`: True
        if resident memory must be as before at the end. Where the fault may cost more, the test states the amount."""
        self.sluice, self.allowed, self.during, self.rate, self.warm, self.n, self.rss = sluice, allowed, during, rate, warm, n, rss
        self.load = Load(sluice, n=n, **kwargs)

    def __enter__(self):
        s = self.sluice
        s.wait(lambda: len(s.ready()) == s.n_replicas, 30, "the replicas are ready")
        self.load.learn()
        if self.warm:
            self.warm()
        self.rest = Rest(s)
        self.watch = Watch(s, stall_timeout=STALL_S)
        self.load.start().wait_tokens(self.n * 15)
        self.load.mark("fault")
        return self.load  # the caller sets .others for the fault's own requests to the server (I8)

    def __exit__(self, kind, *_):
        if kind is None:
            self.load.mark("after")
            self.load.wait_tokens(self.n * 30)
        self.load.stop()
        if kind is None:
            s = self.sluice
            s.wait(lambda: len(s.ready()) == s.n_replicas, 30, "the replicas are ready")
            phases = self.load.phases()[:3]
            print("load L, tokens/s:", ", ".join(f"{n / seconds:.0f} {name} ({n} in {seconds:.1f} s)" for name, n, seconds in phases))
            during = self.n * max(self.during, self.rate * phases[1][2])
            check_all(s, self.load, self.watch, self.rest, self.allowed,
                      minimum={"before": self.n * 15, "fault": int(during), "after": self.n * 30}, rss=self.rss)
            print(f"{len(self.watch.samples)} looks in {self.watch.ended - self.watch.began:.1f} s")
        else:
            self.watch.stop()


def long_prompt(sluice, i=0, **kwargs):
    return sluice.request("smol", f"[{i}] " + "All work and no play makes Jack a dull boy. " * 60, **kwargs)


# --- F4, F5: a worker is killed ---

@long  # test_gateway_faults.c and test_resume.py move requests in every run
def test_f4_killed_before_the_first_token_it_moves(two):
    def ask(kill):
        outcomes = {}
        calls = [threading.Thread(target=lambda i=i: outcomes.__setitem__(i, two.generate(long_prompt(two, i, max_tokens=4), timeout=patience(60))[:2]))
                 for i in range(6)]
        [c.start() for c in calls]
        if kill:
            until(lambda: server_books(two)["live"] > N, 20, "some of them are there, beside the load's own")
            assert len(outcomes) < 6, "all had ended before the kill"
            os.kill(worker_processes(two)[0][2], signal.SIGKILL)
        [c.join(patience(60)) for c in calls]
        return outcomes

    references = ask(False)
    with UnderLoad(two, warm=lambda: ask(False)) as load:
        load.others["ok"] = (6, 6)
        assert ask(True) == references
        load.wait_tokens(N * 5)


@pytest.mark.long  # test_gateway_faults.c has the statuses
def test_f4_f5_without_a_replica_in_time_it_is_told(tmp_path, stubs):
    """The manager is stopped, so no process starts a replica. After the resume time the client gets REPLICA_LOST with
    the number of tokens sent, and health reports the loss."""
    sluice = start(tmp_path, stubs, env={"SLUICE_RESUME_TIMEOUT": "1500ms", "SLUICE_REPLICA_WAIT": "500ms"})
    try:
        load = Load(sluice, n=4, max_tokens=2000)
        load.references = {}
        watch = Watch(sluice, stall_timeout=STALL_S)
        channel, stub = load.stub()
        fresh = stub.Generate(long_prompt(sluice, max_tokens=4), timeout=patience(60))
        runs = [threading.Thread(target=load.one, args=(stub, k)) for k in range(4)]
        [r.start() for r in runs]
        sluice.wait(lambda: len(load.runs) == 4 and all(len(run.ids) >= 10 for run in load.runs), 60, "each stream has tokens")
        (manager,), ((_, _, worker, _),) = sluice.children("sluice-manager"), worker_processes(sluice)
        os.kill(manager, signal.SIGSTOP)
        late = stub.Generate(long_prompt(sluice, 1, max_tokens=4), timeout=patience(60))
        killed = time.monotonic()
        os.kill(worker, signal.SIGKILL)
        try:
            [r.join(patience(10)) for r in runs]
            assert time.monotonic() - killed < patience(5)
            for run in load.runs:
                assert run.code == UNAVAILABLE and run.ids and f"{len(run.ids)}" in run.details, run
            with pytest.raises(grpc.RpcError) as e:
                list(late)
            assert e.value.code() == UNAVAILABLE
            # The second reason comes if the call came after the loss, as on a slow server.
            assert details(e.value)[0] in ("REPLICA_LOST", "NO_REPLICA_READY") and details(e.value)[1] is not None
            with pytest.raises(grpc.RpcError) as e:
                list(fresh)
                list(stub.Generate(long_prompt(sluice, 2, max_tokens=4), timeout=patience(60)))
            assert e.value.code() == UNAVAILABLE
            watch.wait_lost(patience(1) + 0.5)
        finally:
            os.kill(manager, signal.SIGCONT)
        watch.stop().check_books()
        assert watch.check_health() > 0, "nobody looked after the second that health has"
        channel.close()
        sluice.wait(lambda: len(sluice.ready()) == 1, 20, "the worker is back")
    finally:
        sluice.stop()


@long  # test_faults.py and test_resume.py run in every run
def test_f5_killed_mid_stream_goes_on_on_another_replica(two):
    with UnderLoad(two) as load:
        os.kill(worker_processes(two)[0][2], signal.SIGKILL)
        load.wait_tokens(N * 5)
    assert any(r.finished and r.finished[0].receipt.n_resumes for r in load.runs), "nothing was moved"


@pytest.mark.long  # test_faults.py also kills a lone worker
def test_f5_killed_mid_stream_goes_on_on_the_restarted_one(one):
    with UnderLoad(one, rate=0) as load:  # no worker makes tokens until the new worker is ready
        _, _, worker, _ = worker_processes(one)[0]
        killed = time.monotonic()
        os.kill(worker, signal.SIGKILL)
        one.wait(lambda: len(one.ready()) == 1 and [w[2] for w in worker_processes(one)] not in ([], [worker]), 20, "a new worker is ready")
        assert sanitized() or time.monotonic() - killed < patience(5) + 2, "READY within the time of a load and two seconds"
        load.wait_tokens(N * 5)
    assert any(r.finished and r.finished[0].receipt.n_resumes for r in load.runs), "nothing was moved"


# --- F7: a worker hangs ---

@pytest.mark.long  # test_stall.py also stops workers
def test_f7_a_short_stop_loses_nothing(one):
    # a stopped worker makes no tokens: the counted tokens come from the same streams after SIGCONT
    with UnderLoad(one, rate=0) as load:
        _, epoch, worker, _ = worker_processes(one)[0]
        stand_still(STALL_S / 2, worker)
        load.wait_tokens(N * 5)
        assert [w[:3] for w in worker_processes(one)] == [(worker_processes(one)[0][0], epoch, worker)], "it was restarted"
    assert not any(r.finished and r.finished[0].receipt.n_resumes for r in load.runs)


@pytest.mark.long  # test_stall.py also stops workers
def test_f7_a_long_stop_moves_the_streams_and_ends_the_worker(two):
    with UnderLoad(two) as load:
        replica, epoch, worker, _ = worker_processes(two)[0]
        os.kill(worker, signal.SIGSTOP)
        stopped = time.monotonic()
        two.wait(lambda: worker not in [w[2] for w in worker_processes(two)], 3 * STALL_S + 5, "the hung worker is killed")
        assert time.monotonic() - stopped >= STALL_S
        load.wait_tokens(N * 5)
        two.wait(lambda: any(w[0] == replica and int(w[1]) > int(epoch) for w in worker_processes(two)), 20, "its successor has a newer epoch")


def counters(sluice):
    return next(worker_status(sluice)).counters


@pytest.fixture
def plumbing(tmp_path, stubs):
    made = []

    def make(**kwargs):
        made.append(Plumbing(tmp_path, stubs, **kwargs))
        return made[-1]
    yield make
    for p in made:
        p.stop()


# --- F23: a storm of deadlines ---

@long  # test_limits.py runs in every run
def test_f23_a_storm_of_deadlines_reaches_no_batch(one):
    # accepts the connection and stays silent: a storm there costs only its client
    nowhere = socket.create_server(("127.0.0.1", 0))

    def storm(address=one.address):
        channel = grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        stub = one.stubs.inference_grpc.InferenceStub(channel)
        ended = threading.Semaphore(0)
        calls = [stub.Generate(long_prompt(one, i, max_tokens=5), timeout=0.001) for i in range(1000)]
        for call in calls:
            if not call.add_callback(ended.release):  # the call has ended
                ended.release()
        until = time.monotonic() + patience(20)
        all(ended.acquire(timeout=max(0, until - time.monotonic())) for _ in calls)
        # This client's own library never ends some calls, against its own deadline. The test counts them as CANCELLED
        # here, and closing their channel would wait for ever. There is one in some storms, and dozens on a busy
        # machine.
        codes = [call.code() if call.done() else grpc.StatusCode.CANCELLED for call in calls]
        closer = threading.Thread(target=channel.close, daemon=True)
        closer.start()
        closer.join(patience(20))
        return codes

    # For each kind of round: [seconds, the engine's steps, processor seconds of worker, server and this client]. The
    # engine always has work.
    took = {"quiet": [0] * 5, "elsewhere": [0] * 5, "here": [0] * 5}
    (server,), (worker,) = one.children("sluice-server"), [w[2] for w in worker_processes(one)]

    def meter():
        used = [sum(psutil.Process(pid).cpu_times()[:2]) for pid in (worker, server, os.getpid())]
        return [time.monotonic(), counters(one).n_steps, *used]

    def take(kind, of):
        before, result = meter(), of()
        took[kind] = [sum_ + b - a for sum_, a, b in zip(took[kind], before, meter())]
        return result

    n_storms = 24 if LONG else 1
    with UnderLoad(one, warm=storm) as load:
        load.others = {"errors": (0, 1000 * n_storms), "cancelled": (0, 1000 * n_storms)}  # the calls that reached the server
        for _ in range(n_storms):
            take("quiet", lambda: time.sleep(1))  # the server counts resets per second: this pause prevents a flood (F22)
            take("elsewhere", lambda: storm(f"127.0.0.1:{nowhere.getsockname()[1]}"))
            before = counters(one)
            codes = take("here", storm)
            # The server's counters are checked below.
            lost = codes.count(grpc.StatusCode.CANCELLED)
            assert lost <= 100 and codes.count(grpc.StatusCode.DEADLINE_EXCEEDED) == 1000 - lost, {c: codes.count(c) for c in set(codes)}
            # Each of the thousand prompts has some 600 tokens; load L's own are short and mostly cached.
            assert counters(one).n_prefill_tokens - before.n_prefill_tokens < 20000, "expired requests were prefilled"
        load.wait_tokens(N * 5)
    nowhere.close()
    for kind, (seconds, n, *cpus) in took.items():
        print(f"{kind}: {n} steps of {1e3 * seconds / max(1, n):.1f} ms, {1e3 * cpus[0] / max(1, n):.1f} ms of the worker's processor time each; "
              f"of one processor the worker had {cpus[0] / seconds:.2f}, the server {cpus[1] / seconds:.2f}, this client {cpus[2] / seconds:.2f}")
    print(f"the server took {1e3 * took['here'][3] / n_storms:.0f} us of processor time per call of a storm")

    # A step may take a tenth longer. On two processors shared by engine, server and clients, gRPC's cost of receiving
    # the calls adds to that. The scheduler does not cause that cost (docs/log/2026-11-23-long-faults.md).
    seconds_per_step = {kind: of[0] / max(1, of[1]) for kind, of in took.items()}
    assert not LONG or seconds_per_step["here"] <= 2 * seconds_per_step["elsewhere"], "a storm holds the scheduler up"


# --- F24: the queue overflows ---

@pytest.mark.long  # test_limits.py also fills the queue
def test_f24_overflow_is_refused_at_once(tmp_path, stubs):
    sluice = start(tmp_path, stubs, env={"SLUICE_MAX_CONCURRENT": "8", "SLUICE_MAX_QUEUED": "16"})
    try:
        load = Load(sluice, n=8, max_tokens=120)
        load.learn()
        load.start().wait_tokens(80)
        channel, stub = load.stub()
        refusals, accepted = [], []  # and the time that each refusal took

        def ask(i):
            asked = time.monotonic()
            try:
                list(stub.Generate(sluice.request("smol", f"Say {i}", max_tokens=2, ignore_eos=True), timeout=patience(60)))
                accepted.append(time.monotonic() - asked)
            except grpc.RpcError as e:
                refusals.append((time.monotonic() - asked, e))

        def ask_at_once(n):
            threads = [threading.Thread(target=ask, args=(i,)) for i in range(n)]
            [t.start() for t in threads]
            [t.join(patience(60)) for t in threads]

        ask_at_once(8)  # the queue accepts these requests
        assert len(accepted) == 8, refusals
        usual, accepted = sorted(accepted), []
        load.mark("fault")
        ask_at_once(240)
        assert len(refusals) >= 100 and len(accepted) >= 8, (len(refusals), len(accepted))
        for _, e in refusals:
            reason, retry, pushback = details(e)
            assert e.code() == EXHAUSTED and retry and pushback, (e.code(), e.details(), reason, retry, pushback)
        quick = sorted(t for t, _ in refusals)
        print(f"refused within {1e3 * quick[0]:.1f} (first), {1e3 * quick[len(quick) // 2]:.1f} ms (median) beside 240 Python threads")
        accepted.sort()
        print(f"accepted and answered: {usual[4]:.2f} s usually (median of {usual[0]:.2f} to {usual[-1]:.2f}), "
              f"{accepted[len(accepted) // 2]:.2f} s in the overflow ({accepted[0]:.2f} to {accepted[-1]:.2f})")
        assert accepted[len(accepted) // 2] <= max(patience(1), 5 * usual[4]), "accepted, and left to wait"
        load.wait_tokens(80)
        load.mark("after")
        load.wait_tokens(80)
        load.stop().require(before=80, fault=80, after=80)
        load.check_one_ending(allowed=(EXHAUSTED,))
        load.others = {"ok": (8 + len(accepted),) * 2, "errors": (len(refusals),) * 2}
        check_books(sluice, load)
        # A connection without other work sends one call at a time to a full queue. The test times the refusal itself.
        # the queue refuses half of them
        fill = [stub.Generate(sluice.request("smol", f"Fill {i}", max_tokens=3000, ignore_eos=True)) for i in range(48)]
        until(lambda: any(c.done() for c in fill), 20, "the queue is full: one is refused")
        quiet_channel, quiet = load.stub()
        quiet.ListModels(sluice.stubs.inference.ListModelsRequest(), timeout=10)
        times, n = [], 200 if LONG else 40
        gc.disable()  # a collection over the objects of pytest and gRPC takes tenths of a second
        for i in range(2 * n):
            asked = time.monotonic()
            with pytest.raises(grpc.RpcError) as e:
                list(quiet.Generate(sluice.request("smol", f"Over {i}", max_tokens=3000, ignore_eos=True), timeout=1))
            took = time.monotonic() - asked
            if e.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED:  # a queued request has ended: fill its place
                fill.append(stub.Generate(sluice.request("smol", f"Fill again {i}", max_tokens=3000, ignore_eos=True)))
                continue
            times.append(took)
            reason, retry, pushback = details(e.value)
            # (A call with a second left may be refused because its wait would be longer than that.)
            assert e.value.code() == EXHAUSTED and reason in ("QUEUE_FULL", "DEADLINE_UNREACHABLE"), (
                i, e.value, [c.code() for c in fill if c.done()])
            assert retry >= 0.05 and pushback == round(1000 * retry), (retry, pushback)
            if len(times) == n:
                break
        assert len(times) == n, "the queue was not full"
        times.sort()
        p50, p99 = times[n // 2], times[n * 99 // 100]
        print(f"one refusal of {n}: p50 {1e3 * p50:.2f} ms, p99 {1e3 * p99:.2f} ms, slowest {1e3 * times[-1]:.2f} ms")
        # On a busy machine the client itself waits for a processor. Then the fastest calls show how long a refusal
        # takes.
        assert sanitized() or (p50 <= 0.005 if LONG else times[4] <= 0.005 and p50 <= 0.050)
        quiet_channel.close()
        [call.cancel() for call in fill]
        channel.close()
    finally:
        gc.enable()
        sluice.stop()


# --- F25: the KV pool is exhausted ---

@long  # test_gpu.py and the tests of the scheduler preempt in every run
def test_f25_an_exhausted_pool_preempts_and_changes_nothing(tmp_path, stubs, one):
    """Load L's own four streams fit in the pool. With six long streams beside them none of them fits, and still every
    stream gets its own tokens. Two of the six come over HTTP."""
    http = f"127.0.0.1:{free_port()}"
    sluice = start(tmp_path, stubs, load=("--kv-tokens", "640", "--context-length", "512"), env={"SLUICE_HTTP_LISTEN": http})

    def make(target, i):
        return target.request("smol", f"Item {i}: " + "a long list of things to do today, " * 6, max_tokens=100, ignore_eos=True,
                              temperature=0.5 * (i % 2), seed=i)

    def ask_http(request):
        """Returns (status, body) of the same request over HTTP."""
        with http_stream.dial(http, seconds=120) as s:
            s.sendall(http_stream.post("/v1/completions", {
                "model": "smol", "prompt": request.text, "max_tokens": request.stopping.max_tokens, "ignore_eos": True,
                "temperature": request.sampling.temperature, "seed": request.sampling.seed, "return_token_ids": True}))
            answer = http_stream.Answer(s).head()
            return answer.status, json.loads(answer.body())

    def ask(i):
        if i % 3:
            return sluice.generate(make(sluice, i), timeout=patience(120))[:2]
        status, body = ask_http(make(sluice, i))
        assert status == 200, body
        return body["choices"][0]["text"], body["choices"][0]["token_ids"]

    def all_at_once():
        outcomes, threads = {}, []
        for i in range(6):
            threads.append(threading.Thread(target=lambda i=i: outcomes.__setitem__(i, ask(i))))
        [t.start() for t in threads]
        [t.join(patience(120)) for t in threads]
        return outcomes

    try:
        references = {i: one.generate(make(one, i), timeout=patience(120))[:2] for i in range(6)}
        with UnderLoad(sluice, n=4, warm=all_at_once) as load:
            load.others = {"ok": (6 * (5 if LONG else 1),) * 2, "errors": (0, 2)}
            before = counters(sluice).n_preemptions
            for _ in range(5 if LONG else 1):
                assert all_at_once() == references
            assert counters(sluice).n_preemptions > before, "the pool was never exhausted: the run is void"
            with pytest.raises(grpc.RpcError) as e:
                sluice.generate(long_prompt(sluice, max_tokens=10))
            assert e.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, EXHAUSTED), e.value
            assert ask_http(long_prompt(sluice, max_tokens=10))[0] in (400, 429)
            load.wait_tokens(4 * 5)
        told = 'sluice_preemptions_total{model="smol",version="1"}'
        sluice.wait(lambda: metrics(sluice)[told] == counters(sluice).n_preemptions, 5, "the server tells as many")
    finally:
        sluice.stop()


# --- F28: descriptors run out ---

@pytest.mark.long  # test_limits.py also uses up the descriptors
def test_f28_without_descriptors_the_old_goes_on_and_the_new_waits(one):
    (server,) = one.children("sluice-server")
    process = psutil.Process(server)
    old = process.rlimit(resource.RLIMIT_NOFILE)
    sockets = []
    with UnderLoad(one) as load:
        process.rlimit(resource.RLIMIT_NOFILE, (process.num_fds() + 12, old[1]))
        try:
            for _ in range(60):
                s = socket.socket()
                s.settimeout(1)
                sockets.append(s)
                s.connect(("127.0.0.1", one.port))
            load.wait_tokens(N * 10)  # the earlier streams continue
        finally:
            [s.close() for s in sockets]
            process.rlimit(resource.RLIMIT_NOFILE, old)
        codes = []

        def recovered():
            codes.append(one.run("smol", "hi", "-n", "1", check=False).returncode)
            return codes[-1] == 0
        until(recovered, 10, "it does not recover", 0.1)
        n = len(codes)
        load.others = {"ok": (1, n), "errors": (0, n), "cancelled": (0, n)}


# --- F37: SIGTERM with live streams ---

GRACE_S = 60 if LONG else 8


@pytest.fixture(scope="module")
def leaving(tmp_path_factory, stubs):
    sluice = start(tmp_path_factory.mktemp("leaving"), stubs, serve=("--drain-grace", f"{int(patience(GRACE_S))}s"))
    yield sluice
    sluice.stop()


def own_connection(sluice):
    return Load(sluice).stub()


def kinds_alone(sluice, n_tokens):
    channel, stub = own_connection(sluice)
    reference = Kinds(sluice, stub, n_tokens).start().join()
    channel.close()
    assert not reference.failed, reference.failed
    return reference


def running(load):
    """Returns the requests of load L that have tokens and no end, which means that they are accepted."""
    return [r for r in load.runs if r.ids and r.ended is None]


def wait_ended(runs, seconds):
    until(lambda: all(r.ended is not None for r in runs), seconds, lambda: [r for r in runs if r.ended is None])


# A draining server answers new calls with UNAVAILABLE. gRPC 1.51 answers calls that cross the GOAWAY with CANCELLED
# (docs/use/limits.md).
REFUSED = (UNAVAILABLE, grpc.StatusCode.CANCELLED)


@long  # test_limits.py runs in every run
def test_f37_a_server_told_to_end_finishes_what_it_has_beside_live_load(leaving):
    """The server drains under load L and every kind of request. Every accepted request ends whole, or the server
    reports that the grace is over. New calls are refused until `sluice serve` has started another server. Then all
    of load L continues on that server, with the same worker throughout."""
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    reference = kinds_alone(leaving, 60)
    with UnderLoad(leaving, allowed=REFUSED, rate=0, warm=lambda: kinds_alone(leaving, 60)) as load:
        (server,), workers = leaving.children("sluice-server"), [w[:3] for w in worker_processes(leaving)]
        channel, stub = own_connection(leaving)
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=""), timeout=patience(2 * GRACE_S + 60))
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        endless = stub.Generate(leaving.request("smol", "Without end:", max_tokens=8000, ignore_eos=True))
        next(endless), next(endless)
        kinds = Kinds(leaving, stub, 60).start()
        accepted = running(load)
        os.kill(server, signal.SIGTERM)
        told = time.monotonic()
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert time.monotonic() - told < patience(1)
        fresh_channel, fresh = own_connection(leaving)
        with pytest.raises(grpc.RpcError) as e:
            # Beside load L, whose clients share less than a processor, even a refused connection takes seconds.
            list(fresh.Generate(leaving.request("smol", "hi", max_tokens=1), timeout=patience(GRACE_S)))
        assert e.value.code() in REFUSED, e.value
        kinds.join().check_whole(reference)
        wait_ended(accepted, GRACE_S)
        assert len(accepted) >= N // 2 and all(r.code == grpc.StatusCode.OK for r in accepted), accepted
        # Only the endless request remains, so these counters are final (I8 over the restart).
        books = server_books(leaving)
        assert books["live"] == 1, books
        load.ok_before = books["ok"]
        with pytest.raises(grpc.RpcError) as e:
            list(endless)
        assert (e.value.code(), details(e.value)[0]) == (UNAVAILABLE, "DRAINING"), e.value
        assert GRACE_S - 0.5 < time.monotonic() - told < patience(GRACE_S + 3)
        leaving.wait(lambda: leaving.children("sluice-server") not in ([], [server]), 5, "there is another server")
        load.wait_tokens(N * 5)
        assert [w[:3] for w in worker_processes(leaving)] == workers
        channel.close(), fresh_channel.close()
    late = [r for r in load.runs if r.code in REFUSED]
    assert late and not any(r.ids for r in late), "a stream that had begun was not finished"


@pytest.mark.long  # test_limits.py also sends a second signal
def test_f37_a_second_signal_ends_every_stream_at_once_beside_live_load(leaving):
    """Each stream ends with an error and a prefix of its undisturbed text. No scrape can say how many streams of load L
    ended well between the two signals. So the test checks only the part of I8 that concerns each server's own
    counters."""
    reference = kinds_alone(leaving, 60)
    with UnderLoad(leaving, allowed=REFUSED, rate=0, warm=lambda: kinds_alone(leaving, 60)) as load:
        load.ok_before = None
        (server,), workers = leaving.children("sluice-server"), [w[:3] for w in worker_processes(leaving)]
        channel, stub = own_connection(leaving)
        kinds = Kinds(leaving, stub, 1500).start()
        accepted = running(load)
        os.kill(server, signal.SIGTERM)
        keeps(lambda: leaving.children("sluice-server") == [server] and not kinds.failed, 0.3, lambda: kinds.failed)
        os.kill(server, signal.SIGTERM)
        told = time.monotonic()
        kinds.join().check_failed(reference, UNAVAILABLE, "DRAINING")
        wait_ended(accepted, 2)
        assert time.monotonic() - told < patience(2)
        leaving.wait(lambda: leaving.children("sluice-server") not in ([], [server]), 5, "there is another server")
        load.wait_tokens(N * 5)
        assert [w[:3] for w in worker_processes(leaving)] == workers
        channel.close()
    assert len(accepted) >= N // 2


# These tests see what the others cannot: the GOAWAY on the wire, and the status that ends the stream.

@pytest.mark.long  # the test above does the same beside live load
def test_f37_a_server_told_to_end_drains(plumbing):
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    p = plumbing(rate=20, options=["--drain-grace", "3s"])
    inference = p.stubs.inference
    channel = grpc.insecure_channel(p.address)
    stub, health = p.stubs.inference_grpc.InferenceStub(channel), health_pb2_grpc.HealthStub(channel)

    def make(n):
        return inference.GenerateRequest(model="echo", text="abcdefgh", stopping=inference.Stopping(max_tokens=n))

    watch = health.Watch(health_pb2.HealthCheckRequest(service=""), timeout=patience(60))
    assert any(state.status == health_pb2.HealthCheckResponse.SERVING for state in watch)  # the server has a link to the worker
    short, long = stub.Generate(make(30)), stub.Generate(make(10000))
    next(short), next(long)
    peer = Peer(p.port)
    peer.open("/grpc.health.v1.Health/Watch")
    until = time.monotonic() + patience(5)
    while peer.read_frame(patience(5))[0] != SETTINGS:
        assert time.monotonic() < until
    p.server.send_signal(signal.SIGTERM)
    told = time.monotonic()
    while peer.read_frame(patience(1))[0] != GOAWAY:
        assert time.monotonic() - told < patience(1), "no GOAWAY"
    peer.close()
    assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert time.monotonic() - told < patience(1)
    fresh = p.stubs.inference_grpc.InferenceStub(grpc.insecure_channel(p.address, options=[("grpc.use_local_subchannel_pool", 1)]))
    with pytest.raises(grpc.RpcError) as e:
        list(fresh.Generate(make(1), timeout=patience(5)))
    assert e.value.code() == UNAVAILABLE
    assert sum(len(r.tokens.ids) for r in short) >= 28, "an accepted stream ends well"
    with pytest.raises(grpc.RpcError) as e:
        list(long)
    assert e.value.code() == UNAVAILABLE and details(e.value)[0] == "DRAINING", e.value
    assert 2.5 < time.monotonic() - told < patience(6)
    assert p.server.wait(patience(5)) == 0


@pytest.mark.long  # test_limits.py also sends a second signal
def test_f37_a_second_signal_ends_it_at_once(plumbing):
    p = plumbing(rate=20, options=["--drain-grace", "60s"])
    inference = p.stubs.inference
    call = p.stubs.inference_grpc.InferenceStub(grpc.insecure_channel(p.address)).Generate(
        inference.GenerateRequest(model="echo", text="abc", stopping=inference.Stopping(max_tokens=10000)))
    next(call), next(call)
    p.server.send_signal(signal.SIGTERM)
    keeps(lambda: p.server.poll() is None, 0.5, "it drains")
    p.server.send_signal(signal.SIGTERM)
    p.server.wait(patience(2))
    with pytest.raises(grpc.RpcError):
        list(call)
