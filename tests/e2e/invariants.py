"""The invariants: checkers that any test can use around a running Sluice (conftest.Sluice):

    load = Load(sluice).learn()             I9 needs traffic: clients that ask again and again, references from an undisturbed run
    watch = Watch(sluice)                   I6, I7, I8 sample all the time
    rest = Rest(sluice)                     I5 remembers the state at rest
    load.start(); ...; load.mark("fault"); ...; load.mark("after"); ...
    check_all(sluice, load, watch, rest)

Each checker raises Violation with the invariant's number, or Void (I9) where too little ran to prove anything.
For each checker, tests/e2e/faults/test_seeded_bugs.py plants a bug and requires that the checker detects it (I10)."""
import contextlib
import http.client
import os
import re
import threading
import time
import urllib.request

import grpc
import psutil

from conftest import TIME_SCALE, patience, sanitized, until

CANARY_WORDS = "zebra kettle mango violet copper lantern walnut falcon marble ginger pepper saddle velvet anchor thimble juniper".split()
N_REPEATS = 6
KV_POOL_BYTES = 256 << 20  # no other mapping is as large


class Violation(AssertionError):
    def __init__(self, invariant, text):
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant


class Void(AssertionError):
    """I9: the run did too little; it proves nothing, so it fails."""

    invariant = "I9"


def canary(k):
    return f"{CANARY_WORDS[k % len(CANARY_WORDS)]}{1000 + 37 * k}"


def prompt(k):
    """A text that the model continues by a repeat of its canary, so that foreign tokens show."""
    return " ".join([canary(k)] * N_REPEATS)


class Run:
    """A generation as its client saw the messages."""

    def __init__(self, k):
        self.k, self.ids, self.times, self.text, self.finished = k, [], [], "", []
        self.started, self.ended, self.code, self.details = time.monotonic(), None, None, ""

    def __repr__(self):
        return f"stream {self.k}: {len(self.ids)} tokens, {self.code}, {self.details!r}"


class Load:
    """`n` clients; client k sends request k again and again and keeps the answers. Half of the clients are greedy, half
    are seeded."""

    def __init__(self, sluice, n=8, max_tokens=48, timeout=patience(60.0), model="smol", pause=0.0):
        self.sluice, self.n, self.max_tokens, self.timeout, self.model, self.pause = sluice, n, max_tokens, timeout, model, pause
        self.runs, self.marks, self.references = [], [], {}
        self.lock, self.stopping, self.threads = threading.Lock(), threading.Event(), []
        self.ok_before = 0  # counts of servers that have ended since; None: unknown
        self.books = None  # the server's counters at start()
        self.others = {}  # other callers' requests after start(): {"ok" | "errors" | "cancelled": (at least, at most)}

    def request(self, k):
        return self.sluice.request(self.model, prompt(k), max_tokens=self.max_tokens, temperature=0.6 * (k % 2), seed=k, ignore_eos=True)

    def stub(self):
        # min_reconnect_backoff is also the time-out of a connection attempt. On a busy machine 50 ms are too short.
        channel = grpc.insecure_channel(self.sluice.address, options=[
            ("grpc.use_local_subchannel_pool", 1), ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.min_reconnect_backoff_ms", 5000), ("grpc.max_reconnect_backoff_ms", 200)])
        return channel, self.sluice.stubs.inference_grpc.InferenceStub(channel)

    def one(self, stub, k):
        run = Run(k)
        with self.lock:
            self.runs.append(run)
        try:
            for response in stub.Generate(self.request(k), timeout=self.timeout):
                kind = response.WhichOneof("event")
                if kind == "tokens":
                    if response.tokens.first_index != len(run.ids):
                        run.details += f"[index {response.tokens.first_index} after {len(run.ids)} tokens]"
                    run.times += [time.monotonic()] * len(response.tokens.ids)
                    run.ids += list(response.tokens.ids)
                    run.text += response.tokens.text
                elif kind == "finished":
                    run.finished.append(response.finished)
            run.code = grpc.StatusCode.OK
        except grpc.RpcError as e:
            run.code, run.details = e.code(), run.details + e.details()
        run.ended = time.monotonic()
        return run

    def learn(self):
        """Runs the same requests undisturbed, as references for the answers."""
        channel, stub = self.stub()
        threads = [threading.Thread(target=self.one, args=(stub, k)) for k in range(self.n)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        channel.close()
        for run in self.runs:
            assert run.code == grpc.StatusCode.OK and len(run.ids) == self.max_tokens, run
            self.references[run.k] = run
        self.runs = []
        return self

    def client(self, k):
        channel, stub = self.stub()
        while not self.stopping.is_set():
            run = self.one(stub, k)
            if run.code != grpc.StatusCode.OK:
                self.stopping.wait(0.05)
            self.stopping.wait(self.pause)
        channel.close()

    def start(self):
        self.books = resting_books(self.sluice)
        self.mark("before")
        self.threads = [threading.Thread(target=self.client, args=(k,), daemon=True) for k in range(self.n)]
        [t.start() for t in self.threads]
        return self

    def mark(self, name):
        self.marks.append((name, time.monotonic()))

    def wait_tokens(self, n, seconds=60):
        """Waits until n more tokens have come."""
        target = self.n_tokens() + n
        until(lambda: self.n_tokens() >= target, seconds,
              lambda: f"{self.n_tokens()} of {target} tokens: {self.outcomes()}\n{self.sluice.tail()}")

    def n_tokens(self):
        with self.lock:
            return sum(len(r.ids) for r in self.runs)

    def outcomes(self):
        counts = {}
        for r in self.runs:
            name = r.code.name if r.code else "RUNNING"
            counts[name] = counts.get(name, 0) + 1
        return counts

    def stop(self):
        self.stopping.set()
        for t in self.threads:
            t.join(self.timeout + 2)
        self.marks.append(("end", time.monotonic()))
        return self

    # --- I3, I4, I9 ---

    def check_one_ending(self, allowed=()):
        """I3. `allowed`: status codes besides OK with which a call may end here."""
        for run in self.runs:
            reference = self.references[run.k]
            if run.ended is None or run.ended - run.started > self.timeout + 1:
                raise Violation("I3", f"no end within the deadline and a second: {run}")
            if run.ids != reference.ids[:len(run.ids)] or not reference.text.startswith(run.text) or run.details.startswith("["):
                at = next((i for i, (a, b) in enumerate(zip(run.ids, reference.ids)) if a != b), len(run.ids))
                raise Violation("I3", f"{run}: not what an undisturbed run gives, from token {at} on")
            if run.code == grpc.StatusCode.OK:
                if len(run.finished) != 1 or run.finished[0].n_tokens != len(run.ids):
                    raise Violation("I3", f"{run}: OK with {len(run.finished)} endings")
                if run.ids != reference.ids or run.text != reference.text:
                    raise Violation("I3", f"{run}: cut short without an error")
            elif run.code not in allowed:
                raise Violation("I3", f"{run}: a status that nothing here explains")
            elif run.finished:
                raise Violation("I3", f"{run}: finished and failed")

    def check_canaries(self, logs=()):
        """I4: no answer, error text or log contains a canary of another client."""
        own = sum(canary(r.k) in r.text for r in self.runs if r.code == grpc.StatusCode.OK)
        if own * 2 < sum(r.code == grpc.StatusCode.OK for r in self.runs):
            raise Void("I9: the model does not repeat its canaries, so that strays would not show")
        for run in self.runs:
            for k in range(self.n):
                if k != run.k and (canary(k) in run.text or canary(k) in run.details):
                    raise Violation("I4", f"stream {run.k} got what belongs to stream {k}: {run.text!r} {run.details!r}")
                if canary(k) in run.details:
                    raise Violation("I4", f"an error repeats the prompt: {run.details!r}")
        for path in logs:
            text = path.read_text(errors="replace")
            for k in range(self.n):
                if canary(k) in text:
                    raise Violation("I4", f"{path.name} has the prompt of stream {k}")

    def phases(self):
        """Returns (name, tokens, seconds) of the phase that starts with each mark."""
        ends = [at for _, at in self.marks[1:]] + [time.monotonic()]
        return [(name, sum(start <= t < end for r in self.runs for t in r.times), end - start)
                for (name, start), end in zip(self.marks, ends)]

    def require(self, **minimum):
        """I9: the phase that starts with each mark has at least this many tokens: require(before=100, fault=20,
        after=100)."""
        for name, n, _ in self.phases():
            if n < minimum.get(name, 0):
                raise Void(f"I9: {n} tokens in phase {name!r}, {minimum[name]} are needed: {self.outcomes()}")
        missing = set(minimum) - {name for name, _ in self.marks}
        if missing:
            raise Void(f"I9: no phase {missing}")


# --- processes ---

def worker_processes(sluice):
    """Returns (replica, epoch, pid, status) of live workers, from their command lines."""
    found = []
    for p in psutil.process_iter(["pid", "cmdline", "status"]):
        line = p.info["cmdline"] or []
        if len(line) > 1 and line[1] == "serve" and os.path.basename(line[0]) in ("sluice-worker", "fake_worker") and \
                any(str(sluice.state) in w for w in line) and p.info["status"] not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            options = dict(zip(line[2:], line[3:]))
            found.append((options.get("--replica"), options.get("--epoch"), p.info["pid"], p.info["status"]))
    return found


def metrics(sluice):
    """Returns the server's /metrics as {name{labels}: value}, or None where the instance serves none."""
    address = getattr(sluice, "metrics_address", None)
    if not address:
        return None
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=patience(5)) as answer:
        text = answer.read().decode()
    return {m[1]: float(m[2]) for m in re.finditer(r"^([^#\n]+?)\s+(\S+)$", text, re.M)}


def worker_status(sluice, pid=None):
    """Returns the first status that a worker reports on its socket."""
    sockets = sorted(sluice.state.glob("run/replica-*/worker.sock"))
    for path in sockets:
        with grpc.insecure_channel(f"unix:{path}") as channel:
            stub = sluice.stubs.worker_grpc.WorkerStub(channel)
            try:
                status = next(iter(stub.WatchStatus(sluice.stubs.worker.WatchStatusRequest(protocol_min=1, protocol_max=1), timeout=patience(5))))
            except grpc.RpcError:
                continue
            if pid is None or status.pid == pid:
                yield status


class Watch(threading.Thread):
    """Samples I6, I7 and I8 during a test, 20 times a second: live processes, health, the balance of counters. The
    checks come after stop(). A watch with too few samples is void (I9)."""

    MIN_RATE = 1.0  # samples a second on average: the watch shares the machine and this process with the load

    def __init__(self, sluice, model="smol", version="1", stall_timeout=10.0):
        super().__init__(daemon=True)
        self.sluice, self.names = sluice, ("", "sluice.v1.Inference", f"model/{model}/{version}")
        self.stall_timeout = stall_timeout
        self.violations, self.samples, self.n_books, self.stopping = [], [], 0, threading.Event()
        self.broke_off, self.began, self.ended = None, time.monotonic(), None
        self.start()
        with contextlib.suppress(AssertionError):  # the caller's next step must be a change from the observed state
            until(lambda: not self.is_alive() or (self.n_books and all(self.samples[-1][2].values())), 10, "it has seen all serve")

    def health(self, stub):
        from grpc_health.v1 import health_pb2
        said = {}
        for name in self.names:
            try:
                said[name] = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=patience(1)).status == 1
            except grpc.RpcError:
                said[name] = False
        return said

    def run(self):
        try:
            self.look()
        except Exception as e:  # after any exception the watch has no further samples
            self.broke_off = e

    def look(self):
        from grpc_health.v1 import health_pb2_grpc
        channel = grpc.insecure_channel(self.sluice.address, options=[
            ("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 100), ("grpc.initial_reconnect_backoff_ms", 50)])
        stub = health_pb2_grpc.HealthStub(channel)
        while not self.stopping.is_set():
            at, workers = time.monotonic(), worker_processes(self.sluice)
            self.samples.append((at, workers, self.health(stub)))
            slots = {}
            for replica, epoch, pid, _ in workers:
                slots.setdefault(replica, []).append((epoch, pid))
            for replica, owners in slots.items():
                if len(owners) > 1:
                    self.violations.append(Violation("I6", f"{len(owners)} live workers on replica {replica}: {owners}"))
            try:
                check_books(self.sluice)
                self.n_books += 1
            except Violation as e:
                self.n_books += 1
                self.violations.append(e)
            except (OSError, http.client.HTTPException):
                pass  # the server is down, or went down during the scrape: not counted
            self.stopping.wait(0.05)
        channel.close()

    def stop(self):
        self.ended = time.monotonic()
        self.stopping.set()
        self.join(patience(20))
        return self

    def wait_lost(self, seconds):
        """Waits until the watch has seen no worker for the given time."""
        def lost_for():
            since = None
            for at, workers, _ in self.samples:
                since = (since or at) if not workers else None
            return at - since if since else 0
        until(lambda: self.samples and lost_for() > seconds, 30 + seconds, "no worker is seen for long")

    def require(self, what, n):
        """I9: the watch ran until stop() and has at least n samples."""
        if self.broke_off or self.ended is None or self.is_alive():
            raise Void(f"I9: the watch broke off or never ended: {self.broke_off!r}") from self.broke_off
        needed = max(2, self.MIN_RATE / TIME_SCALE * (self.ended - self.began))
        if n < needed:
            raise Void(f"I9: {n} looks at {what} in {self.ended - self.began:.1f} s, {needed:.0f} are needed")

    def check_owners(self):
        """I6: a slot never has two live workers."""
        self.require("the workers", sum(bool(workers) for _, workers, _ in self.samples))
        for v in self.violations:
            if v.invariant == "I6":
                raise v

    def check_health(self, slack=0.4):
        """I7: health is never SERVING later than a second after the loss of the last worker. The same holds
        `stall_timeout` and a second after the last moving worker was stopped. Returns the number of samples late
        enough to test that."""
        self.require("health", len(self.samples))
        if not any(all(said.values()) for _, _, said in self.samples):
            raise Void("I9: health never said SERVING, so that its saying otherwise is no news")
        lost, stood, n_late = None, None, 0
        for at, workers, said in self.samples:
            lost = (lost or at) if not workers else None
            moving = [w for w in workers if w[3] != psutil.STATUS_STOPPED]
            stood = (stood or at) if workers and not moving else None
            for since, allowed, what in ((lost, 0, "was lost"), (stood, self.stall_timeout, "stood still")):
                if since is None or at <= since + allowed + patience(1) + slack:
                    continue
                n_late += 1
                for name, serving in said.items():
                    if serving:
                        raise Violation("I7", f'"{name}" is SERVING {at - since:.1f} s after the last worker {what}')
        return n_late

    def check_books(self):
        """I8, at every sample."""
        self.require("the books", self.n_books)
        for v in self.violations:
            if v.invariant == "I8":
                raise v


def check_books(sluice, load=None):
    """I8: accepted = ok + errors + cancelled + in flight on the server, in one scrape. `load` adds a check at rest. The
    server's counts since its start() then equal those of the clients and other callers (load.others)."""
    books = server_books(sluice) if load is None else resting_books(sluice)
    if books["accepted"] != books["ok"] + books["errors"] + books["cancelled"] + books["live"]:
        raise Violation("I8", f"accepted is not ok + errors + cancelled + in flight: {books}")
    if load is None or load.ok_before is None:
        return
    if load.ok_before:  # another server's counters since then: the count of the earlier server is unknown
        ok = sum(r.code == grpc.StatusCode.OK for r in load.runs) + len(load.references)
        if books["ok"] + load.ok_before < ok:
            raise Violation("I8", f"clients saw {ok} requests end well: {books}")
        return
    codes = [r.code for r in load.runs]
    # The client's own library may produce these two codes, for a call that the server never got or counted as
    # cancelled.
    unsure = sum(code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED) for code in codes)
    ok, cancelled = codes.count(grpc.StatusCode.OK), codes.count(grpc.StatusCode.CANCELLED)
    errors = len(codes) - ok - cancelled
    seen = {"ok": (ok, ok), "errors": (errors - unsure, errors), "cancelled": (cancelled, cancelled + unsure)}
    for kind, (least, most) in seen.items():
        more = load.others.get(kind, (0, 0))
        n = books[kind] - load.books[kind]
        if not least + more[0] <= n <= most + more[1]:
            raise Violation("I8", f"clients saw {least} to {most} end as {kind}, others {more}, the server counts {n}: {load.outcomes()}, "
                                  f"{load.books} became {books}")


def resting_books(sluice, within=10.0):
    """Returns the counters at rest: a client gets its status before the server has counted the call."""
    def rest():
        books = server_books(sluice)
        return books if books["live"] == 0 else None
    return until(rest, within, lambda: Violation("I8", f"{within:.0f} s after the last call ended: {server_books(sluice)}"), 0.05)


def server_books(sluice):
    samples = metrics(sluice)
    if samples is None:
        raise Void("I9: the server shows no books (start_measured)")
    books = {"accepted": 0, "ok": 0, "errors": 0, "cancelled": 0, "live": 0}
    for name, value in samples.items():
        if name.startswith("sluice_requests_accepted_total"):
            books["accepted"] += value
        elif name.startswith("sluice_requests_in_flight"):
            books["live"] += value
        elif name.startswith("sluice_requests_finished_total"):
            code = re.search(r'code="([^"]*)"', name)[1]
            books[{"OK": "ok", "CANCELLED": "cancelled"}.get(code, "errors")] += value
    return books


# --- I5 ---

def resident(pid):
    """Resident bytes without the KV pool. The pool is one huge mapping whose pages stay after their first use; the
    pool's tokens are counted separately."""
    total, size = 0, 0
    for line in open(f"/proc/{pid}/smaps"):
        if line.startswith("Size:"):
            size = int(line.split()[1]) << 10
        elif line.startswith("Rss:") and size < KV_POOL_BYTES:
            total += int(line.split()[1]) << 10
    return total


class Rest:
    """Resources that the processes hold when nothing runs, after a warm-up. `check` waits until they hold no more than
    that."""

    THREADS_SLACK = 8  # gRPC adds threads to its pools and keeps them: up to twice the processors, for two kinds
    FDS_SLACK = 4      # connections that linger

    def __init__(self, sluice):
        self.sluice = sluice
        self.before = self.look()

    def look(self):
        seen = {}
        for name in ("sluice-manager", "sluice-server", "sluice-worker"):
            for i, pid in enumerate(sorted(self.sluice.children(name))):
                p = psutil.Process(pid)
                with p.oneshot():
                    seen[f"{name}.{i}"] = (resident(pid), p.num_fds(), p.num_threads(), len(p.children()))
        return seen

    def complaint(self, rss):
        statuses = list(worker_status(self.sluice))
        if not statuses:
            return "no worker answers"
        for status in statuses:
            load = status.load
            if load.n_running or load.n_queued or load.n_paused:
                return f"{status.replica_id}: {load.n_running} run, {load.n_queued} wait, {load.n_paused} are paused"
            if load.free_kv_tokens != load.total_kv_tokens:
                return f"{status.replica_id}: {load.total_kv_tokens - load.free_kv_tokens} KV tokens are in use"
        version = self.sluice.inference.GetModel(self.sluice.stubs.inference.GetModelRequest(model="smol"), timeout=patience(5)).model.versions[0]
        if version.n_running or version.n_queued:
            return f"the server counts {version.n_running} running, {version.n_queued} queued"
        for name, now in self.look().items():
            then = self.before.get(name)
            if then is None:
                return f"{name} was not there"
            if rss and not sanitized() and now[0] > then[0] * 1.01 + (8 << 20):
                return f"{name}: {then[0] >> 10} KiB resident grew to {now[0] >> 10}"
            if now[1] > then[1] + self.FDS_SLACK or now[2] > then[2] + self.THREADS_SLACK or now[3] > then[3]:
                return f"{name}: descriptors, threads, children {then[1:]} grew to {now[1:]}"
        return None

    def check(self, within=10.0, rss=True):
        until(lambda: self.complaint(rss) is None, within,
              lambda: Violation("I5", f"not at rest {within:.0f} s after the load: {self.complaint(rss)}"), 0.2)


# --- I1, I2 ---

class Acknowledged:
    """I1: changes that the manager has acknowledged. They must be there after any restart."""

    def __init__(self, sluice):
        self.sluice, self.models, self.replicas = sluice, set(), {}

    def registered(self, name):
        self.models.add(name)

    def loaded(self, name, replicas=1):
        self.replicas[name] = replicas

    def check(self):
        manager = self.sluice.stubs.manager
        rpc = self.sluice.manager_stub()
        known = {m.name for m in rpc.ListModels(manager.ListModelsRequest(), timeout=patience(10)).models}
        if not self.models <= known:
            raise Violation("I1", f"acknowledged and gone: {sorted(self.models - known)}")
        have = {}
        for r in rpc.ListReplicas(manager.ListReplicasRequest(), timeout=patience(10)).replicas:
            have[r.model] = have.get(r.model, 0) + 1
        for name, n in self.replicas.items():
            if have.get(name, 0) != n:
                raise Violation("I2", f"{name}: {n} replicas were acknowledged, {have.get(name, 0)} are on record")


def check_no_half_state(sluice, within=5.0):
    """I2: every replica is in one legal state, and the records equal the live processes."""
    types = sluice.stubs.types
    settled = {types.REPLICA_STATE_READY, types.REPLICA_STATE_STOPPED, types.REPLICA_STATE_FAILED, types.REPLICA_STATE_PARKED}
    replicas, running = [], []

    def whole():
        listed = sluice.manager_stub().ListReplicas(sluice.stubs.manager.ListReplicasRequest(), timeout=patience(10)).replicas
        replicas[:] = [(r.id, r.state, r.pid) for r in listed]
        running[:] = sorted(pid for _, _, pid, _ in worker_processes(sluice))
        recorded = sorted(pid for _, state, pid in replicas if state == types.REPLICA_STATE_READY)
        return all(state in settled for _, state, _ in replicas) and recorded == running
    until(whole, within, lambda: Violation("I2", f"after {within:.0f} s: on record {replicas}, running {running}"), 0.05)


def logs(sluice):
    return [p for p in [sluice.state / "serve.out", *sluice.state.glob("log/*.log"), *sluice.state.glob("run/replica-*/log")] if p.exists()]


def check_all(sluice, load, watch=None, rest=None, allowed=(), minimum=None, rss=True):
    """Checks every invariant, after load.stop()."""
    load.require(**(minimum or {"before": 20, "fault": 20, "after": 20}))
    load.check_one_ending(allowed)
    load.check_canaries(logs(sluice))
    check_no_half_state(sluice)
    if watch:
        watch.stop()
        watch.check_owners()
        watch.check_health()
        watch.check_books()
    if rest:
        rest.check(rss=rss)
    check_books(sluice, load)
