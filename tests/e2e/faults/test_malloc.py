"""F27: the N-th allocation of sluice-server or sluice-manager fails, or the N-th of protobuf-c within them. The test
repeats this for each RPC and frame (tests/support/fault/fail_malloc.c). test_malloc_worker.py does the same for
sluice-worker. The call ends well or with RESOURCE_EXHAUSTED, the process lives, and the next call works as usual. A
change of the manager's state is whole or absent, whichever allocation failed. With SLUICE_LONG=1 (tests/long.sh
malloc), N is each number up to the count of a whole call. Otherwise N covers the first numbers and a spread of the
others."""
import contextlib
import itertools
import mmap
import os
import queue
import re
import shutil
import sqlite3
import struct
import time

import grpc
import pytest

from conftest import BIN, patience, sanitized, until
from grpc_health.v1 import health_pb2, health_pb2_grpc
from manager_program import Manager
from plumbing import Plumbing
from test_limits import Server

LONG = bool(os.environ.get("SLUICE_LONG"))
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
FIRST, SPREAD = 6, 7  # numbers of allocations in the short form
names = itertools.count()
pytestmark = pytest.mark.skipif(sanitized(), reason="sanitizers replace the allocator whose calls are made to fail")


class Control:
    def __init__(self, path):
        path.write_bytes(struct.pack("qq", -1, 0))
        self.map = mmap.mmap(os.open(path, os.O_RDWR), 16)

    def arm(self, n):
        self.map[0:16] = struct.pack("qq", n - 1, 0)

    def disarm(self):
        """Ends the failures. Returns how many allocations failed since arm."""
        failed = struct.unpack("qq", self.map[0:16])[1]
        self.map[0:16] = struct.pack("qq", -1, 0)
        return failed

    def used(self, armed):
        """Returns the number of allocations since arm(armed)."""
        return armed - 1 - struct.unpack("qq", self.map[0:16])[0]

    def count(self, call):
        """Returns how many allocations the call makes."""
        self.arm(1 << 40)
        call()
        left = struct.unpack("qq", self.map[0:16])[0]
        self.disarm()
        return (1 << 40) - 1 - left


@contextlib.contextmanager
def preloaded(folder):
    """Processes started within the context have an allocator that can fail. Yields the control of the allocator."""
    control = Control(folder / "control")
    os.environ.update(LD_PRELOAD=str(BIN / "fail_malloc.so"), SLUICE_TEST_MALLOC=str(folder / "control"))
    try:
        yield control
    finally:
        del os.environ["LD_PRELOAD"], os.environ["SLUICE_TEST_MALLOC"]


@pytest.fixture(scope="module")
def starved(tmp_path_factory, stubs):
    folder = tmp_path_factory.mktemp("malloc")
    with preloaded(folder) as control:
        p = Plumbing(folder, stubs, rate=200)
    p.control = control
    p.channel = grpc.insecure_channel(p.address)
    p.stub = stubs.inference_grpc.InferenceStub(p.channel)
    p.program = lambda: p.server
    yield p
    control.disarm()
    p.stop()


@pytest.fixture(scope="module")
def starved_text(tmp_path_factory, served, stubs):
    """A separate server in front of a real worker, which has a tokenizer and a template."""
    folder = tmp_path_factory.mktemp("malloc-text")
    with preloaded(folder) as control:
        s = Server(served)
    s.stubs, s.control, s.stub, s.program, s.text = stubs, control, s.inference, lambda: s.process, served.tail
    yield s
    control.disarm()
    s.stop()


@pytest.fixture(scope="module")
def starved_manager(tmp_path_factory, stubs):
    m = Manager(tmp_path_factory.mktemp("malloc-manager"), stubs)
    with preloaded(m.folder) as control:
        m.up()
    m.control, m.program = control, lambda: m.process
    m.script("a")
    m.register("a")
    m.done(m.load("a"))
    yield m
    control.disarm()
    m.clean()


def generate_request(stubs, **kwargs):
    inference = stubs.inference
    return inference.GenerateRequest(model="echo", text="abcdef", stopping=inference.Stopping(max_tokens=5), **kwargs)


class Refused(Exception):
    """An error frame of a GenerateStream."""

    def __init__(self, error):
        super().__init__(error.message)
        self.error = error

    def code(self):
        return next(c for c in grpc.StatusCode if c.value[0] == self.error.code)

    def details(self):
        return self.error.message


def text_of(responses):
    text = ""
    for r in responses:
        text += r.tokens.text
        if getattr(r, "error", None) is not None and r.HasField("error"):
            raise Refused(r.error)
    return text


CALLS = {
    "Generate": lambda s, i: text_of(s.stub.Generate(generate_request(s.stubs), timeout=patience(10))),
    "Complete": lambda s, i: s.stub.Complete(generate_request(s.stubs), timeout=patience(10)).choices[0].text,
    "GenerateStream": lambda s, i: text_of(s.stub.GenerateStream(iter([i.GenerateStreamRequest(
        request_id="a", start=generate_request(s.stubs))]), timeout=patience(10))),
    "Tokenize": lambda s, i: tuple(s.stub.Tokenize(i.TokenizeRequest(model="echo", text="abc"), timeout=patience(10)).ids),
    "ListModels": lambda s, i: s.stub.ListModels(i.ListModelsRequest(), timeout=patience(10)).models[0].name,
    "GetModel": lambda s, i: s.stub.GetModel(i.GetModelRequest(model="echo"), timeout=patience(10)).model.name,
}


class Frames:
    """A GenerateStream call, frame by frame."""

    def __init__(self, s):
        self.inference, self.out = s.stubs.inference, queue.Queue()
        self.call = s.stub.GenerateStream(iter(self.out.get, None), timeout=10)

    def send(self, request_id="a", **frame):
        self.out.put(self.inference.GenerateStreamRequest(request_id=request_id, **frame))

    def next(self):
        response = next(self.call)
        if response.HasField("error"):
            self.call.cancel()
            raise Refused(response.error)
        return response

    def until_tokens(self):
        while not (response := self.next()).HasField("tokens"):
            pass
        return response.tokens

    def rest(self, text=""):
        """Returns all text up to the request's end, and checks that there is no gap."""
        while not (response := self.next()).HasField("finished"):
            text += response.tokens.text
        self.out.put(None)
        return text


def long_request(s, n=20, **kwargs):
    inference = s.stubs.inference
    return inference.GenerateRequest(model="echo", text="abcdef", stopping=inference.Stopping(max_tokens=n), **kwargs)


def changed(s, i):
    """Sends each frame that changes a running request. None of them changes its text."""
    stream = Frames(s)
    stream.send(start=long_request(s, 30, credit_tokens=5))
    text = stream.until_tokens().text
    stream.send(pause=i.PauseFrame())
    stream.send(update=i.UpdateFrame(max_tokens=20, priority=3))
    stream.send(resume=i.ResumeFrame())
    stream.send(credit=i.CreditFrame(n_tokens=1000))
    return stream.rest(text)


def cancelled(s, i):
    """Cancels one request of a stream and leaves the other."""
    stream = Frames(s)
    stream.send("b", start=long_request(s, 5))
    stream.send("a", start=long_request(s, 10000))
    text, over = "", set()
    while over != {"a", "b"}:
        response = next(stream.call)
        if response.request_id == "b":
            text += response.tokens.text
            over |= {"b"} if response.HasField("finished") else set()
        if response.HasField("tokens") and response.request_id == "a" and response.tokens.first_index == 0:
            stream.send("a", cancel=i.CancelFrame())
        if response.HasField("error"):
            if (response.request_id, response.error.code) != ("a", 1):
                stream.call.cancel()
                raise Refused(response.error)
            over |= {"a"}
    stream.out.put(None)
    return text


def reattached(s, i):
    """Leaves a request after its first tokens, and reattaches on another stream. A failed allocation may end the request
    while it has no stream. The reattach then finds no request, and the server's log has the true code."""
    name, text, n = f"r{next(names)}", "", 0
    first = Frames(s)
    first.send(name, start=long_request(s, 20, reattach_window_ms=3000))
    tokens = first.until_tokens()
    text, n = tokens.text, len(tokens.ids)
    first.call.cancel()
    second = Frames(s)
    second.send(name, reattach=i.ReattachFrame(received=[i.ReceivedTokens(choice=0, n_tokens=n)]))
    try:
        return second.rest(text)
    except Refused as e:
        if e.code() != grpc.StatusCode.NOT_FOUND:
            raise
        until(lambda: re.search(rf"event=request request_id={name} .*code=RESOURCE_EXHAUSTED", s.text()), 5, f"the end of {name}")
        raise Refused(type(e.error)(code=EXHAUSTED.value[0], message=f"{name} ended between its streams")) from e


def cancel(s, i):
    """Cancels a running request. If the failed allocation ended the request, there is nothing to cancel."""
    name = f"c{next(names)}"
    running = s.stub.Generate(long_request(s, 10000, request_id=name), timeout=10)
    next(running)
    try:
        s.stub.Cancel(i.CancelRequest(request_id=name), timeout=10)
    except grpc.RpcError as e:
        if e.code() != grpc.StatusCode.NOT_FOUND:
            running.cancel()
            raise
    with pytest.raises(grpc.RpcError) as e:
        list(running)
    if e.value.code() == EXHAUSTED:
        raise e.value
    assert e.value.code() == grpc.StatusCode.CANCELLED, e.value
    return True


def health(s, i):
    """If the failed allocation broke the link to the worker, NOT_SERVING is correct until there is another link."""
    stub = health_pb2_grpc.HealthStub(s.channel)
    watch = stub.Watch(health_pb2.HealthCheckRequest(service=""), timeout=10)
    said = {next(watch).status, stub.Check(health_pb2.HealthCheckRequest(service="sluice.v1.Inference"), timeout=10).status}
    watch.cancel()
    return said <= {health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING}


CALLS |= {"GenerateStream: pause, update, resume, credit": changed, "GenerateStream: cancel": cancelled,
          "GenerateStream: reattach": reattached, "Cancel": cancel, "Health": health}


def chat(i):
    return i.Chat(messages=[i.ChatMessage(role="user", content="hello")])


TEXT_CALLS = {
    "Tokenize": lambda s, i: tuple(s.stub.Tokenize(i.TokenizeRequest(model="smol", text="Once upon a time"), timeout=10).ids),
    "Detokenize": lambda s, i: s.stub.Detokenize(i.DetokenizeRequest(model="smol", ids=[100, 200, 300]), timeout=10).text,
    "ApplyChatTemplate": lambda s, i: s.stub.ApplyChatTemplate(i.ApplyChatTemplateRequest(model="smol", chat=chat(i)), timeout=10).text,
    "Complete of a chat": lambda s, i: s.stub.Complete(i.GenerateRequest(
        model="smol", chat=chat(i), stopping=i.Stopping(max_tokens=3, ignore_eos=True)), timeout=10).choices[0].text,
}


def register(m, i):
    """Registers with a request id, so the second try after a failure is the same change. The row has all given fields,
    or there is no row."""
    name = f"v{next(names)}"
    request = i.RegisterModelVersionRequest(request_id=name, model="b", version=name, path="a", labels={"k": "v"},
                                            config=m.t.ModelConfig(context_length=128, kernels="f32"))

    def rows():
        return database(m, f"SELECT path, detail FROM model_version WHERE model = 'b' AND version = '{name}'")

    def check(version):
        assert version.config == request.config and version.labels == {"k": "v"} and len(version.info.weights_digest) == 64, version
    try:
        version = m.rpc.RegisterModelVersion(request, timeout=10).version
    except grpc.RpcError:
        for _, detail in rows():  # only the answer failed
            check(m.t.ModelVersion.FromString(detail))
        raise
    ((path, detail),) = rows()
    check(version)
    check(m.t.ModelVersion.FromString(detail))
    return (path, version.path, version.version == name)


def watch_events(m, i):
    events = m.rpc.WatchEvents(i.WatchEventsRequest(from_seq=1), timeout=10)
    first = next(events).events[0].seq
    events.cancel()
    return first


MANAGER_CALLS = {
    "GetStatus": lambda m, i: m.rpc.GetStatus(i.GetStatusRequest(), timeout=10).ByteSize() > 0,
    "GetModel": lambda m, i: m.rpc.GetModel(i.GetModelRequest(model="a"), timeout=10).model.name,
    "ListModels": lambda m, i: m.rpc.ListModels(i.ListModelsRequest(), timeout=10).models[0].name,
    "ListReplicas": lambda m, i: m.rpc.ListReplicas(i.ListReplicasRequest(), timeout=10).replicas[0].id,
    "ListOperations": lambda m, i: len(m.rpc.ListOperations(i.ListOperationsRequest(), timeout=10).operations),
    "ListDevices": lambda m, i: m.rpc.ListDevices(i.ListDevicesRequest(), timeout=10).ByteSize() > 0,
    "RegisterModelVersion": register,
    "WatchEvents": watch_events,
}


def numbers(n):
    """Returns the allocations that fail: all or some of the n that a call makes, and the first number after them."""
    some = range(1, n + 1) if LONG else {*range(1, min(FIRST, n) + 1), *range(FIRST, n + 1, max(1, (n - FIRST) // SPREAD))}
    return sorted(some) + [n + n // 4 + 10]


def starve(s, messages, what, call, at_rest=lambda nth: None):
    reference = call(s, messages)
    outcomes, n_failed = {"OK": 0, "RESOURCE_EXHAUSTED": 0}, 0
    n = s.control.count(lambda: call(s, messages))
    for nth in numbers(n):
        s.control.arm(nth)
        try:
            assert call(s, messages) == reference, f"allocation {nth}: another answer"
            outcomes["OK"] += 1
        except (grpc.RpcError, Refused) as e:
            assert e.code() == EXHAUSTED, f"allocation {nth}: {e.code()} {e.details()}\n{s.text()}"
            outcomes["RESOURCE_EXHAUSTED"] += 1
        n_failed += s.control.disarm()
        assert s.program().poll() is None, f"allocation {nth}: it died\n{s.text()}"
        def answers():
            try:
                assert call(s, messages) == reference, f"after allocation {nth}"
                return True
            except (grpc.RpcError, Refused):  # the failed allocation may have broken the link to the worker
                return False
        until(answers, 5, f"an answer after allocation {nth}", 0.05)
        at_rest(nth)
    print(f"{what}: {n} allocations, {n_failed} made to fail, {outcomes}")
    assert n > 5 and n_failed >= min(n, FIRST) - 1 and outcomes["RESOURCE_EXHAUSTED"] > 0, (n, n_failed, outcomes)


@pytest.mark.parametrize("rpc", CALLS)
def test_f27_a_failed_allocation_fails_the_call_alone(starved, rpc):
    starve(starved, starved.stubs.inference, rpc, CALLS[rpc])


@pytest.mark.parametrize("rpc", TEXT_CALLS)
def test_f27_before_a_real_worker(starved_text, rpc):
    starve(starved_text, starved_text.stubs.inference, rpc, TEXT_CALLS[rpc])


@pytest.mark.parametrize("rpc", MANAGER_CALLS)
def test_f27_in_the_manager(starved_manager, rpc):
    starve(starved_manager, starved_manager.stubs.manager, rpc, MANAGER_CALLS[rpc])


# --- changes of the manager's state ---

def asked(m, i):
    """The settings of a load of model "l": every field that a row could lose."""
    return dict(model="l", version="1", device_group="cpu", n_replicas=1, tp=1,
                config=m.t.ModelConfig(context_length=256, kv_dtype="f32", kernels="f32", max_queued_requests=7, chat_template="x"))


class Change:
    """An RPC of the manager. `settle` reverts its change, so that the RPC can be repeated."""

    def __init__(self, rpc, request, settle, kind, n_before, n_after):
        self.rpc, self.request, self.settle, self.kind, self.n_before, self.n_after = rpc, request, settle, kind, n_before, n_after


def patient(call):
    """Repeats a call that a failed allocation refused."""
    answers = []

    def accepted():
        try:
            answers.append(call())
        except grpc.RpcError as e:
            assert e.code() == EXHAUSTED, e
        return answers
    return until(accepted, 20, "it is accepted", 0.02)[0]


def load_l(m, i, n=1):
    patient(lambda: m.done(m.load(**{**asked(m, i), "n_replicas": n})))


def unload_l(m, i):
    patient(lambda: m.done(m.unload("l", version="1", device_group="cpu", grace_ms=0)))


def scale_l(m, i, n):
    patient(lambda: m.done(m.rpc.ScaleModelVersion(i.ScaleModelVersionRequest(model="l", n_replicas=n, grace_ms=0)).operation))


CHANGES = {
    "LoadModelVersion": Change("LoadModelVersion", lambda m, i: i.LoadModelVersionRequest(**asked(m, i)), unload_l, "LOAD", 0, 1),
    "UnloadModelVersion": Change("UnloadModelVersion", lambda m, i: i.UnloadModelVersionRequest(
        model="l", version="1", device_group="cpu", grace_ms=0), load_l, "UNLOAD", 1, 0),
    "ScaleModelVersion, up": Change("ScaleModelVersion", lambda m, i: i.ScaleModelVersionRequest(
        model="l", version="1", device_group="cpu", n_replicas=2, grace_ms=0), lambda m, i: scale_l(m, i, 1), "SCALE", 1, 2),
    "ScaleModelVersion, down": Change("ScaleModelVersion", lambda m, i: i.ScaleModelVersionRequest(
        model="l", version="1", device_group="cpu", n_replicas=1, grace_ms=0), lambda m, i: scale_l(m, i, 2), "SCALE", 2, 1),
}


def database(m, query):
    """Reads a copy of the database, as after a power cut: the manager keeps the original locked."""
    until = time.monotonic() + patience(10)
    while True:
        for end in ("", "-wal"):
            shutil.copy(f"{m.state}/sluice.db{end}", m.folder / f"copy.db{end}")
        try:
            with contextlib.closing(sqlite3.connect(m.folder / "copy.db")) as db:
                return db.execute(query).fetchall()
        except sqlite3.DatabaseError as e:  # the copy was made during a write
            assert time.monotonic() < until, e


def wanted_rows(m):
    """Returns all rows that a change writes, without the rows that the manager writes on its own."""
    return {table: database(m, f"SELECT * FROM {table} ORDER BY 1, 2")
            for table in ("deployment", "operation", "model_version", "model")}


def check_whole(m, i, change, request, operation, n_replicas):
    """Asserts that every field of the request stands in each row, each view and each event."""
    o = patient(lambda: m.rpc.GetOperation(i.GetOperationRequest(id=operation))).operation
    assert (o.model, o.version, o.device_group, o.request_id, o.stage) == ("l", "1", "cpu", request.request_id, "done"), o
    assert o.kind == m.t.OperationKind.Value(f"OPERATION_KIND_{change.kind}") and o.HasField("result") and not o.HasField("error"), o
    assert len(o.replica_ids) == max(change.n_before, change.n_after) - (change.kind == "SCALE" and change.n_after < change.n_before), o
    assert len(o.new_replica_ids) == max(0, change.n_after - change.n_before), o
    (version,) = patient(lambda: m.rpc.GetModel(i.GetModelRequest(model="l"))).model.versions
    assert version.path == "l" and len(version.info.weights_digest) == 64 and version.config.n_threads == 3 and version.labels == {"a": "b"}
    if n_replicas:
        (deployment,) = version.deployments
        want = asked(m, i)
        assert (deployment.model, deployment.version, deployment.device_group, deployment.n_replicas, deployment.tp, deployment.pp) \
            == ("l", "1", "cpu", n_replicas, 1, 1) and deployment.config == want["config"], deployment
    else:
        assert not version.deployments
    replicas = patient(lambda: m.replicas(model="l"))
    assert len(replicas) == n_replicas
    for r in replicas:
        assert (r.version, r.device_group, r.socket) == ("1", "cpu", f"replica-{r.id}/worker.sock") and r.numerics_id and r.pid, r
    for table, columns in {"deployment": ("model", "version", "device_group"), "replica": ("id", "model", "version", "device_group"),
                           "operation": ("id", "model", "version", "stage"), "event": ("type",),
                           "model_version": ("model", "version", "path"), "model": ("name",)}.items():
        for column in columns:
            assert database(m, f"SELECT * FROM {table} WHERE {column} = ''") == [], (table, column)
    for kind in ("replica", "operation"):
        assert database(m, f"SELECT * FROM event WHERE type LIKE '{kind}.%' AND ({kind}_id = '' OR model = '')") == []


@pytest.fixture(scope="module")
def changing(starved_manager):
    m = starved_manager
    m.script("l", "load_ms=1")
    m.register("l", version="1", config=m.t.ModelConfig(n_threads=3), labels={"a": "b"})
    yield m
    m.control.disarm()


@pytest.mark.parametrize("name", CHANGES)
def test_f27_a_change_is_whole_or_none(changing, name):
    """Each allocation up to the answer fails, or a spread of them. Then a spread of the allocations in the rest of the
    operation fails."""
    m, i, change = changing, changing.stubs.manager, CHANGES[name]
    n_now = len(m.replicas(model="l"))
    if n_now and not change.n_before:
        unload_l(m, i)
    elif n_now != change.n_before:
        (scale_l if n_now else load_l)(m, i, change.n_before)

    def once(request, nth=None):
        """(n allocations to the answer, n to the operation's end, refused?)"""
        call = getattr(m.rpc, change.rpc)
        before = wanted_rows(m)
        m.control.arm(nth or 1 << 40)
        refused, operation = False, None
        try:
            operation = call(request, timeout=patience(10)).operation
        except grpc.RpcError as e:
            assert e.code() == EXHAUSTED, f"allocation {nth}: {e.code()} {e.details()}\n{m.text()}"
            assert e.details(), e
            refused = True
        n_call = m.control.used(nth or 1 << 40)
        assert m.process.poll() is None, f"allocation {nth}: it died\n{m.text()}"
        if refused:
            now = wanted_rows(m)  # if only the answer failed, the durable change is there whole
            assert now == before or any(request.request_id in row for row in now["operation"]), f"allocation {nth}: half of it is written"
            operation = call(request, timeout=patience(10)).operation  # repeats the same change
        assert patient(lambda: call(request, timeout=patience(10))).operation.id == operation.id, f"allocation {nth}: done twice"
        patient(lambda: m.done(operation))
        n_all = m.control.used(nth or 1 << 40)
        failed = m.control.disarm()
        assert m.process.poll() is None, f"allocation {nth}: it died\n{m.text()}"
        check_whole(m, i, change, request, operation.id, change.n_after)
        change.settle(m, i)
        return n_call, n_all, refused, failed

    def fresh():
        request = change.request(m, i)
        request.request_id = f"{change.kind}{next(names)}"
        return request
    once(fresh())
    n_call, n_all, *_ = once(fresh())
    ns = sorted({*(range(1, n_call + 1) if LONG else numbers(n_call)), *range(n_call, n_all, max(1, (n_all - n_call) // (SPREAD * (4 if LONG else 1))))})
    tried = [once(fresh(), nth) for nth in ns]
    n_refused, n_failed = sum(t[2] for t in tried), sum(t[3] for t in tried)
    print(f"{name}: {n_call} allocations to the answer, {n_all} to the end; {len(tried)} tried, {n_failed} failed, {n_refused} refused")
    assert n_call > 50 and n_refused >= FIRST // 2 and n_failed >= len(ns) * 2 // 3, (n_call, n_refused, n_failed, len(ns))
