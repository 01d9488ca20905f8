"""Faults of the control plane, by their numbers in the list of faults, with live streams beside them. A real manager
and a real server run with fake workers that echo (echo_load.py). The tests that need a model are in
test_fault_manager.py. tests/long.sh faults sets SLUICE_LONG."""
import os
import random
import shutil
import signal
import subprocess
import threading
import time

import grpc
import psutil
import pytest

from conftest import BIN, ROOT, TIME_SCALE, names, patience, sanitized
from echo_load import EchoLoad, Server
from manager_program import C, manager, reason, retry, settle  # noqa: F401 (fixtures)
from plumbing import Plumbing
from test_manager import POINTS_LOAD, POINTS_UNLOAD
from test_scale import POINTS_DOWN, POINTS_SCALE, check_settled, deployed, scale, watch_slots
from watchdog import ServiceManager, hold_thread

alone, long = pytest.mark.alone, pytest.mark.long

LONG = bool(os.environ.get("SLUICE_LONG"))
LIVE = "load_ms=60 rate=100"


@pytest.fixture
def front(manager):
    made = []

    def make(script=LIVE, n=4, replicas=1):
        """Starts a manager, serves the model "live", and starts clients of this model."""
        manager.script("live", script)
        manager.register("live")
        manager.done(manager.load("live", n_replicas=replicas))
        made.append(Server(manager))
        made.append(EchoLoad(made[0], manager.stubs, n=n).begin())
        return made[-1]
    yield make
    if len(made) > 1:
        made[1].over.set()
    if made:
        made[0].stop()


def live_pids(manager):
    return {r.pid for r in manager.replicas(model="live")}


def events(manager, kind, **fields):
    """Returns all events so far."""
    found, last = [], manager.status().last_event_seq
    for message in manager.rpc.WatchEvents(manager.m.WatchEventsRequest(from_seq=1), timeout=patience(10)):
        found += [e for e in message.events if e.type == kind and all(getattr(e, k) == v for k, v in fields.items())]
        if message.events[-1].seq >= last:
            return found


def routed(manager, model):
    """Returns the model's route as a server gets it: the loaded flag and the number of replicas."""
    stub = manager.stubs.routing_grpc.RoutingStub(manager.channel)
    watch = stub.WatchRoutes(manager.stubs.routing.WatchRoutesRequest(server_id="test"), timeout=patience(10))
    (route,) = [r for r in next(iter(watch)).routes if r.model == model]
    watch.cancel()
    return route.loaded, len(route.replicas)


# --- F2, F3: the manager is killed at each step of a command ---

REGISTER = [("register", p) for p in ("register.before_write", "register.before_commit", "change.after_commit")]
SOME = REGISTER + [("load", p) for p in ("load.before_commit", "spawn.after", "ready.before_record")] + \
    [("scale", "change.after_commit"), ("unload", "drain.after_record")]
# The points of records are left out. An adoption writes records too, so they would count in a later test.
EVERY = REGISTER + [(kind, p) for kind, points in (("load", POINTS_LOAD), ("scale", POINTS_SCALE), ("less", POINTS_DOWN), ("unload", POINTS_UNLOAD))
                    for p in [*points, "change.after_commit"] if not p.startswith("record")]


def test_f2_f3_streams_notice_nothing_of_a_manager_killed_at_any_step(manager, front):
    """The manager dies at each point of register, load, scale and unload, and 32 tokens arrive without a manager. The
    next manager has the acknowledged rows, completes the command once, and restarts no worker."""
    manager.up()
    load = front()
    live, back = live_pids(manager), []
    for i, (kind, point) in enumerate(EVERY if LONG else SOME):
        model = manager.script(f"m{i}", f"load_ms={1000 if point.startswith('state') else 60}")
        if kind != "register":
            manager.register(model)
        if kind in ("scale", "less", "unload"):
            manager.done(manager.load(model, n_replicas=2))
        manager.term()
        manager.up(env={"SLUICE_FAILPOINT": point})
        ask = {"register": lambda: manager.register(model, request_id=f"once{i}"),
               "load": lambda: manager.load(model, request_id=f"once{i}"),
               "scale": lambda: scale(manager, model, 3, request_id=f"once{i}"),
               "less": lambda: scale(manager, model, 1, request_id=f"once{i}"),
               "unload": lambda: manager.unload(model, request_id=f"once{i}")}[kind]
        answer = retry(manager, ask)
        assert manager.process.wait(patience(10)) == -signal.SIGKILL, (kind, point)
        load.more(32)
        began = time.monotonic()
        manager.up()
        back.append(time.monotonic() - began)
        again = ask()
        if kind == "register":
            assert not answer and not again.existed
            versions = manager.rpc.GetModel(manager.m.GetModelRequest(model=model)).model.versions
            assert [v.version for v in versions] == [again.version.version] == ["1"], (point, versions)
            assert len(events(manager, "model.registered", model=model)) == 1
        else:
            assert not answer or again.id == answer.id
            manager.done(again)
            n = {"load": 1, "scale": 3, "less": 1, "unload": 0}[kind]
            assert len(manager.replicas(model=model)) == n and deployed(manager, model) == [n] * (n > 0)
        settle(manager)
        assert routed(manager, model) == {"register": (False, 0), "load": (True, 1), "scale": (True, 3), "less": (True, 1),
                                          "unload": (False, 0)}[kind], (kind, point)
        assert live_pids(manager) == live, "the worker of the live streams was restarted"
        if kind in ("load", "scale", "less"):
            manager.done(manager.unload(model))
    assert set(manager.workers()) == live
    load.more(32)
    load.stop()
    print(f"\n{len(back)} points; the manager is back within {1e3 * max(back):.0f} ms of its start")
    assert max(back) <= (2 if LONG and TIME_SCALE == 1 else patience(10))


# --- F8: the manager hangs ---

WATCHDOG_S = 30 if LONG else 2  # the WatchdogSec of the unit, and a shorter time


@alone
@pytest.mark.parametrize("how", ["stopped", pytest.param("its loop hangs", marks=pytest.mark.long)])
def test_f8_a_manager_that_hangs_is_ended_by_the_watchdog_and_its_successor_adopts(manager, front, how):
    def begin(env):
        return manager.start(env=env).process

    service = ServiceManager(manager.folder / "notify", begin, WATCHDOG_S * TIME_SCALE)
    try:
        manager.wait(lambda: service.ready_at, 20, "it is ready")
        manager.connect()
        load = front()
        workers, first = manager.workers(), manager.process
        # half as long again as the watchdog's time: four streams give 400 tokens a second
        load.more(600 * WATCHDOG_S, 10 * WATCHDOG_S)
        manager.wait(lambda: service.n_alive >= 4, 3 * WATCHDOG_S, "it says that it lives")
        assert not service.barked_at and manager.process is first
        if how == "stopped":
            os.kill(first.pid, signal.SIGSTOP)
        else:
            hold_thread(first.pid)  # the main thread runs the loop
        hung = time.monotonic()
        load.more(100 * WATCHDOG_S)
        manager.wait(lambda: len(service.ready_at) == 2, 3 * WATCHDOG_S + 10, "its successor is ready")
        took = service.ready_at[1] - service.barked_at[0]
        print(f"\nhung, {how}: ended {service.barked_at[0] - hung:.1f} s later, another ready {took:.2f} s after that")
        assert WATCHDOG_S * TIME_SCALE * 0.5 < service.barked_at[0] - hung < patience(WATCHDOG_S + 5)
        assert took <= (2 if LONG and TIME_SCALE == 1 else patience(10)), "it did not end by SIGABRT" * (took >= 5)
        assert first.returncode == -signal.SIGABRT
        manager.connect()
        manager.wait(lambda: manager.status().n_ready_replicas == 1, 10, "the worker is adopted")
        assert manager.workers() == workers and manager.status().n_adopted_workers == 1
        load.more(100)
        load.stop()
        assert len(service.barked_at) == 1
    finally:
        service.stop()


# --- F26: memory runs out ---

def oom_score(pid):
    with open(f"/proc/{pid}/oom_score_adj") as f:
        return int(f.read())


@pytest.mark.parametrize("inherited", [0, *(pytest.param(n, marks=long) for n in (300, 700))])
def test_f26_a_worker_goes_before_who_started_it(manager, inherited):
    """The worker's score is 500 of 1,000 points above the manager's, which equals half of all memory. The test `faults`
    of tests/long.sh shows which process the kernel kills."""
    shutil.copy(ROOT / "tests/golden/tiny/q8_0.gguf", manager.models / "tiny")
    manager.start(worker=BIN / "sluice-worker")
    with open(f"/proc/{manager.process.pid}/oom_score_adj", "w") as f:
        f.write(str(inherited))
    manager.connect()
    manager.register("tiny")
    manager.done(manager.load("tiny"))
    (worker,) = manager.workers()
    server = Server(manager)
    try:
        assert oom_score(manager.process.pid) == inherited and oom_score(server.process.pid) == oom_score("self")
        assert oom_score(worker) == min(inherited + 500, 1000)
    finally:
        server.stop()


# --- F36: many clients change many things at once ---

CHANGERS, MODELS, SECONDS = 20, [f"m{i}" for i in range(5)], 60 if LONG else 3


def rest_of(process):
    with process.oneshot():
        return process.num_fds(), process.num_threads(), process.memory_info().rss, len(process.children())


@alone
@long  # test_scale.py has random changes by many clients in every run
def test_f36_twenty_at_once_load_unload_and_scale(manager, front):
    """Every call gets an answer, also at the end. Nothing remains, and the streams of an untouched model continue."""
    manager.up("--restart-backoff-initial", "10ms", "--restart-backoff-max", "100ms", "--drain-grace", "50ms")
    load = front()
    for model in MODELS:
        manager.script(model, "load_ms=20")
        manager.register(model)
    live = live_pids(manager)
    counts, wrong, slowest = {}, [], [0.0]
    over = threading.Event()

    def change(draw):
        kind, model = draw.choice(["load"] * 4 + ["unload"] + ["scale"] * 15), draw.choice(MODELS)
        if kind == "scale":
            manager.rpc.ScaleModelVersion(manager.m.ScaleModelVersionRequest(model=model, n_replicas=draw.randint(1, 3), grace_ms=20),
                                          timeout=patience(20))
        elif kind == "load":
            manager.rpc.LoadModelVersion(manager.m.LoadModelVersionRequest(model=model, n_replicas=draw.randint(1, 3)), timeout=patience(20))
        else:
            manager.rpc.UnloadModelVersion(manager.m.UnloadModelVersionRequest(model=model, grace_ms=20), timeout=patience(20))
        return kind

    def changer(seed):
        draw = random.Random(seed)
        while not over.is_set():
            began, name = time.monotonic(), ""
            try:
                name = change(draw)
            except grpc.RpcError as e:  # an impossible command is refused, with no other error
                name = reason(e) or e.code().name
                if e.code() not in (C.FAILED_PRECONDITION, C.RESOURCE_EXHAUSTED):
                    wrong.append((e.code(), e.details()))
            counts[name] = counts.get(name, 0) + 1
            slowest[0] = max(slowest[0], time.monotonic() - began)
            over.wait(draw.random() * 0.1)

    def enough():
        done = [counts.get(kind, 0) for kind in ("load", "unload", "scale")]
        return min(done) >= 3 and sum(done) >= 10 * SECONDS / TIME_SCALE

    def run(seconds):
        over.clear()
        threads = [threading.Thread(target=changer, args=(seed,), daemon=True) for seed in range(CHANGERS)]
        [t.start() for t in threads]
        watch_slots(manager, seconds)
        until = time.monotonic() + patience(30)  # on a busy machine few scale commands arrive while no other operation runs
        while not enough() and time.monotonic() < until:
            watch_slots(manager, 1)
        over.set()
        for t in threads:
            t.join(patience(25))
            assert not t.is_alive(), "a call is never answered"
        assert not wrong, wrong[:5]
        for model in MODELS:
            manager.wait(lambda: manager.status().n_open_operations == 0, 30, "operations end")
            if deployed(manager, model):
                manager.done(manager.unload(model, grace_ms=20))
        check_settled(manager)

    process = psutil.Process(manager.process.pid)
    run(SECONDS / 4)  # a warm-up
    counts.clear()
    before = rest_of(process)
    n_before = load.n_tokens
    run(SECONDS)
    print(f"\n{counts}; slowest answer {1e3 * slowest[0]:.0f} ms; {load.n_tokens - n_before} tokens meanwhile")
    assert enough(), f"void: {counts}"
    assert slowest[0] <= patience(10), "a call waited for others"
    assert load.n_tokens - n_before >= 20 * SECONDS / TIME_SCALE, "too little ran beside it: void"
    assert set(manager.workers()) == live == live_pids(manager)
    load.stop()
    manager.wait(lambda: rest_of(process)[3] == 1, 10, "no child is left but the live one")
    after = rest_of(process)
    assert after[0] <= before[0] + 4 and after[1] <= before[1] + 4, (before, after)
    assert sanitized() or after[2] <= before[2] * 1.01 + (8 << 20), (before, after)


# --- F38: SIGTERM during an unload ---

@pytest.mark.parametrize("workers", ["stay", pytest.param("are stopped too", marks=long)])
def test_f38_terminated_while_unloading_ends_soon_and_goes_on_after(manager, front, workers):
    manager.up(*["--stop-workers-on-exit"] * (workers != "stay"))
    load = front() if workers == "stay" else None  # otherwise their worker ends with the manager
    manager.script("a", "load_ms=30 drain_ms=2500")
    manager.register("a")
    manager.done(manager.load("a", n_replicas=2))
    others = set(manager.workers()) - {r.pid for r in manager.replicas(model="a")}
    operation = manager.unload("a", grace_ms=4000, request_id="once")
    draining = manager.t.REPLICA_STATE_DRAINING
    manager.wait(lambda: [r.state for r in manager.replicas(model="a")] == [draining] * 2, 5, "both drain")
    began = time.monotonic()
    assert manager.term() == 0
    took = time.monotonic() - began
    print(f"\nended {took:.2f} s after SIGTERM")
    assert took <= patience(10)
    if load:
        load.more(50)
    checked = subprocess.run([BIN / "sluice-manager", "check", "--state-dir", manager.state], capture_output=True, text=True,
                             timeout=patience(20))
    assert checked.returncode == 0, checked
    assert not list((manager.state / "run").glob("*.sock")), "its sockets are gone"
    if workers != "stay":
        assert manager.workers() == []
    manager.up()
    assert manager.status().n_adopted_workers == (3 if workers == "stay" else 0), "they were not let drain"
    assert manager.unload("a", grace_ms=4000, request_id="once").id == operation.id
    manager.done(operation)
    settle(manager)
    assert manager.replicas(model="a") == [] and set(manager.workers()) == others and deployed(manager) == []
    if load:
        load.more(50)
        load.stop()


# --- F41: manager, server and workers of several versions ---

def test_f41_a_worker_of_another_protocol_is_refused_with_both_versions_named(manager, front):
    """The refusal comes at once, not after a connect time-out. The manager reads nothing further from a worker of
    another protocol, even if the worker does not check the version itself."""
    manager.up()
    load = front()
    for name, script in (("newer", "load_ms=30 protocol=2"), ("blind", "load_ms=30 protocol=2 looks_not")):
        manager.script(name, script)
        manager.register(name)
        began = time.monotonic()
        failed = manager.end(manager.load(name))
        assert failed.state == manager.t.OPERATION_STATE_FAILED and time.monotonic() - began < patience(5)
        (replica,) = manager.replicas(model=name)
        assert replica.state == manager.t.REPLICA_STATE_FAILED and replica.epoch == 1, "it was tried again"
        error = replica.last_error
        assert error.reason == "PROTOCOL_MISMATCH" and names(error.message, 1, 2), error
        (event,) = events(manager, "replica.failed", model=name)
        assert event.attributes["reason"] == error.reason and event.message == error.message
        manager.script(name, "load_ms=30")  # back to a good worker
        manager.done(manager.load(name))
    load.more(50)
    load.stop()


def test_f41_an_adopted_worker_of_another_protocol_gives_way_and_its_streams_go_on(manager, front):
    """A manager of another version replaces the first manager. The new manager does not read from the running worker,
    and another process takes its place."""
    manager.up()
    load = front("load_ms=60 rate=100 protocol=2 protocol_ms=2500")
    (before,) = manager.replicas(model="live")
    manager.kill()
    began = time.monotonic()  # the worker's process grows older
    while time.monotonic() < began + 2.6:
        load.more(10)
    manager.up()
    manager.wait(lambda: manager.replicas()[0].epoch == before.epoch + 1 and manager.status().n_ready_replicas == 1, 10, "another serves")
    (after,) = manager.replicas(model="live")
    assert after.id == before.id and manager.workers() == [after.pid] != [before.pid]
    (event,) = events(manager, "replica.died", model="live")
    assert event.attributes["reason"] == "PROTOCOL_MISMATCH", event
    load.more(100)
    load.stop()


@pytest.mark.parametrize("script", ["protocol=2", "protocol=2 looks_not"])
def test_f41_a_server_refuses_a_worker_of_another_protocol_and_serves_one_of_its_own(tmp_path, stubs, script):
    p = Plumbing(tmp_path, stubs, rate=100, options=["--replica-wait", "500ms"])
    pb = stubs.inference
    request = pb.GenerateRequest(model="echo", text="abcd", stopping=pb.Stopping(max_tokens=20))

    def ask():
        with grpc.insecure_channel(p.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            return [i for r in stubs.inference_grpc.InferenceStub(channel).Generate(request, timeout=patience(20)) for i in r.tokens.ids]

    def again(text):
        """Restarts both: without a manager, a server reads its routes from the file at the start."""
        p.script.write_text(f"load_ms=10 rate=100 slots=1 {text}")
        for process in (p.server, p.workers[0]):
            process.kill()
            process.wait()
        p.start_worker(0)
        p.start_server()

    try:
        whole = [ord("abcd"[i % 4]) for i in range(20)]
        assert ask() == whole
        again(script)
        with pytest.raises(grpc.RpcError) as refused:
            ask()
        assert refused.value.code() == C.UNAVAILABLE, refused.value
        assert p.server.poll() is None
        again("")

        def served():
            try:
                return ask() == whole
            except grpc.RpcError as e:
                assert e.code() == C.UNAVAILABLE, e
                return False
        p.wait(served, "its own version is served")
    finally:
        p.stop()
