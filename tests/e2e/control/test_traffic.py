"""Several versions of a model: weights, sticky sessions, rolling updates that roll back on their own, and streams that
continue undisturbed. The first tests use fake workers (tests/support/fake/fake_worker.c), the last ones the real
programs."""
import json
import os
import random
import re
import shutil
import signal
import threading
import time

import grpc
import pytest

from conftest import ROOT, names, patience, until
from manager_program import C, fails, manager, retry, settle  # noqa: F401 (fixtures)
from test_management import cli

TINY = ROOT / "tests/golden/tiny"


def set_traffic(manager, weights, **kwargs):
    rows = [manager.t.TrafficWeight(version=v, weight=w) for v, w in weights.items()]
    return manager.rpc.SetTraffic(manager.m.SetTrafficRequest(model="a", weights=rows, **kwargs)).traffic


def traffic(manager):
    rule = manager.rpc.GetTraffic(manager.m.GetTrafficRequest(model="a")).traffic
    return {w.version: w.weight for w in rule.weights}


def two_versions(manager, second="load_ms=60", load=("1", "2")):
    manager.script("one")
    manager.script("two", second)
    manager.register("a", "one", version="1")
    manager.register("a", "two", version="2")
    for version in load:
        manager.done(manager.load("a", version=version))


def routes(manager):
    """Returns the current routes by version, as a server gets them."""
    stub = manager.stubs.routing_grpc.RoutingStub(manager.channel)
    watch = stub.WatchRoutes(manager.stubs.routing.WatchRoutesRequest(server_id="test"), timeout=patience(10))
    table = next(iter(watch))
    watch.cancel()
    return {r.version: r for r in table.routes}


def events(manager, kind):
    found = []
    last = manager.status().last_event_seq
    for message in manager.rpc.WatchEvents(manager.m.WatchEventsRequest(from_seq=1), timeout=patience(10)):
        found += [e for e in message.events if e.type == kind]
        if message.events[-1].seq >= last:
            return found


# -- the rule


def test_traffic_is_a_rule_of_the_model_set_once_per_request_id(manager):
    manager.up()
    two_versions(manager)
    assert traffic(manager) == {}
    first = set_traffic(manager, {"1": 90, "2": 10}, sticky=True, request_id="x", expected_generation=0)
    assert first.generation == 1 and first.sticky
    assert set_traffic(manager, {"1": 90, "2": 10}, sticky=True, request_id="x", expected_generation=0) == first
    assert len(events(manager, "traffic.set")) == 1  # the request has an effect only once
    fails(C.ABORTED, set_traffic, manager, {"1": 1}, expected_generation=7, why="STALE_GENERATION")
    fails(C.INVALID_ARGUMENT, set_traffic, manager, {"1": 1}, request_id="x", why="REQUEST_ID_REUSED")
    assert routes(manager)["1"].traffic_weight == 90 and routes(manager)["2"].sticky
    manager.kill()
    manager.up()
    assert traffic(manager) == {"1": 90, "2": 10}
    manager.wait(lambda: routes(manager)["2"].traffic_weight == 10, 5, "the next manager's routes have it too")
    set_traffic(manager, {}, expected_generation=1)
    assert traffic(manager) == {} and routes(manager)["1"].traffic_weight == 0


def test_traffic_that_could_not_be_served_is_refused(manager):
    manager.up()
    two_versions(manager, load=("1",))
    assert names(fails(C.NOT_FOUND, set_traffic, manager, {"1": 1, "3": 1}, why="VERSION_NOT_FOUND"), 3)
    fails(C.FAILED_PRECONDITION, set_traffic, manager, {"1": 0, "2": 1}, why="NOT_LOADED")
    fails(C.INVALID_ARGUMENT, set_traffic, manager, {"1": 0}, field="weights")
    assert names(fails(C.INVALID_ARGUMENT, set_traffic, manager, {"1": 1000001}), 1000000)
    row = manager.t.TrafficWeight(version="1", weight=1)
    assert "weights" in fails(C.INVALID_ARGUMENT, manager.rpc.SetTraffic,
                            manager.m.SetTrafficRequest(model="a", weights=[row, row]))
    fails(C.NOT_FOUND, manager.rpc.SetTraffic, manager.m.SetTrafficRequest(model="b"), why="MODEL_NOT_FOUND")
    fails(C.NOT_FOUND, manager.rpc.GetTraffic, manager.m.GetTrafficRequest(model="b"), why="MODEL_NOT_FOUND")
    assert traffic(manager) == {}
    set_traffic(manager, {"1": 1, "2": 1})  # a version without replicas gets its share after its load
    manager.rpc.DeleteModelVersion(manager.m.DeleteModelVersionRequest(model="a", version="2"))
    assert traffic(manager) == {"1": 1}  # an unloaded version has no share
    manager.register("a", "two", version="3")
    manager.done(manager.load("a", version="3"))
    set_traffic(manager, {"1": 0, "3": 1})
    manager.done(manager.unload("a", version="3"))
    manager.rpc.DeleteModelVersion(manager.m.DeleteModelVersionRequest(model="a", version="3"))
    assert traffic(manager) == {}  # weights of 0 only would mean no traffic


@pytest.mark.parametrize("point", ["traffic.before_write", "traffic.before_commit"])
def test_killed_in_the_middle_of_setting_traffic(manager, point):
    manager.up()
    two_versions(manager)
    manager.term()
    manager.up(env={"SLUICE_FAILPOINT": point})
    answer = retry(manager, lambda: set_traffic(manager, {"1": 1, "2": 3}, request_id="once"))
    assert not answer and manager.process.wait(patience(10)) == -signal.SIGKILL
    manager.up()
    assert traffic(manager) == {}
    again = set_traffic(manager, {"1": 1, "2": 3}, request_id="once")
    assert again.generation == 1 and traffic(manager) == {"1": 1, "2": 3}


# -- rolling updates


def update(manager, version="2", step_ms=50, gates=None, **kwargs):
    gates = manager.t.UpdateGates(**gates) if gates is not None else None
    return manager.rpc.UpdateModelVersion(manager.m.UpdateModelVersionRequest(
        model="a", version=version, step_ms=step_ms, gates=gates, **kwargs)).operation


def loaded_versions(manager):
    return sorted({r.version for r in manager.replicas()})


def test_update_loads_beside_shifts_and_unloads_the_old(manager):
    manager.up()
    two_versions(manager, load=())
    manager.done(manager.load("a", version="1", n_replicas=2))
    operation = update(manager, request_id="u")
    assert update(manager, request_id="u").id == operation.id
    # The shares must not change meanwhile, and the new version gets no traffic before it is ready.
    assert traffic(manager) == {"1": 100, "2": 0}
    fails(C.FAILED_PRECONDITION, set_traffic, manager, {"1": 1}, why="OPERATION_IN_PROGRESS")
    fails(C.FAILED_PRECONDITION, manager.unload, "a", version="1", why="OPERATION_IN_PROGRESS")
    fails(C.FAILED_PRECONDITION, manager.load, "a", version="1", n_replicas=3, why="OPERATION_IN_PROGRESS")
    fails(C.FAILED_PRECONDITION, update, manager, why="OPERATION_IN_PROGRESS")
    manager.register("a", "one", version="3")  # an update sends traffic only to loaded versions, also after a rollback
    fails(C.FAILED_PRECONDITION, manager.rpc.DeleteModelVersion,
          manager.m.DeleteModelVersionRequest(model="a", version="3"), why="OPERATION_IN_PROGRESS")
    done = manager.done(operation)
    assert loaded_versions(manager) == ["2"] and len(manager.replicas()) == len(manager.workers()) == 2
    assert [int(re.search(r"\d+", e.message)[0]) for e in events(manager, "update.shift")] == [10, 50, 100]
    assert traffic(manager) == {} and done.update.phase == manager.t.UPDATE_PHASE_END  # no rule, as before the update
    assert done.result.memory and len(done.replica_ids) == 4
    settle(manager)


def test_update_keeps_the_shares_of_other_versions(manager):
    manager.up()
    two_versions(manager, load=("1",))
    manager.register("a", "one", version="9")
    manager.done(manager.load("a", version="9"))
    set_traffic(manager, {"1": 3, "9": 1})
    fails(C.INVALID_ARGUMENT, update, manager, field="from_version")
    manager.done(update(manager, from_version="1"))
    assert traffic(manager) == {"9": 1, "2": 3} and loaded_versions(manager) == ["2", "9"]


@pytest.mark.parametrize("script, gates, why", [
    ("load_ms=30 fail=13", None, "LOAD_FAILED"),
    ("load_ms=30 answers=1000 failing=200", None, "ERROR_RATE"),
    ("load_ms=30 answers=1000 ttft_ms=900", {"max_ttft_ms": 500}, "TTFT"),
    ("load_ms=30 answers=1000 ttft_ms=40", None, "TTFT"),  # 3 times the old version's time to first token
])
def test_update_goes_back_by_itself(manager, script, gates, why):
    manager.up()
    manager.script("one", "load_ms=30 answers=1000 ttft_ms=10")
    manager.script("two", script)
    manager.register("a", "one", version="1")
    manager.register("a", "two", version="2")
    manager.done(manager.load("a", version="1", n_replicas=2))
    pids = set(manager.workers())
    ended = manager.end(update(manager, step_ms=60000, gates=gates), 20000)
    assert ended.state == manager.t.OPERATION_STATE_FAILED, ended
    assert why in (ended.error.reason, ended.update.error.reason) or (why == "LOAD_FAILED" and ended.error.message), ended
    assert ended.stage == ("shift" if why != "LOAD_FAILED" else ended.update.failed_stage) and ended.stage
    assert set(manager.workers()) == pids and loaded_versions(manager) == ["1"]  # nothing has changed
    assert traffic(manager) == {} and len(events(manager, "update.rollback")) == 1
    version = next(v for v in manager.rpc.GetModel(manager.m.GetModelRequest(model="a")).model.versions if v.version == "2")
    assert version.last_error.message and not version.deployments
    settle(manager)


SLOW = "load_ms=30 answers=1000 ttft_ms=10 slow_percent=20 slow_ms=300"  # the mean is 68 ms, and two of ten answers wait 300 ms


@pytest.mark.parametrize("new, gates, good", [
    (SLOW, {"max_ttft_ms": 100}, False),
    (SLOW, {"max_ttft_ms": 100, "ttft_quantile": 0}, True),
    ("load_ms=30 answers=1000 ttft_ms=10 slow_percent=20 slow_ms=60", {"max_ttft_ratio": 3}, False),  # twice the old mean
])
def test_the_gate_looks_at_a_quantile_of_the_first_tokens(manager, new, gates, good):
    manager.up()
    manager.script("one", "load_ms=30 answers=1000 ttft_ms=10 slow_percent=0")
    manager.script("two", new)
    manager.register("a", "one", version="1")
    manager.register("a", "two", version="2")
    manager.done(manager.load("a", version="1"))
    ended = manager.end(update(manager, step_ms=300, gates=gates), 20000)
    if good:
        assert ended.state == manager.t.OPERATION_STATE_DONE, ended
    else:
        assert ended.error.reason == "TTFT", ended
        assert ended.update.new_figures.ttft_ms > 1000 * 0.032, ended.update


def test_a_step_without_answers_is_held_and_then_told(manager):
    manager.up()
    two_versions(manager, load=("1",))
    begin = time.monotonic()
    done = manager.done(update(manager, step_ms=50, gates={"max_error_rate": 0.1, "max_wait_ms": 300}))
    assert time.monotonic() - begin > 3 * 0.3 and done.update.new_figures.n_ok == 0
    told = events(manager, "update.unmeasured")
    assert len(told) == 3 and names(told[0].message, 0, 20), told
    assert [(s.percent, s.n_answers, s.n_old_answers, s.n_wanted_answers, list(s.unmeasured_gates)) for s in done.update.ended_steps] == [
        (p, 0, 0, 20, ["max_error_rate"]) for p in done.update.steps]
    there = ["--manager", f"{manager.state}/run/manager.sock"]
    # symptom: the command printed "done"
    for said in [cli(manager, "ops", "show", done.id, *there), cli(manager, "ops", "watch", done.id, *there)]:
        assert said[0] == 0 and all(re.search(rf"{p} %.*--max-error-rate.*\b0\b.*\b20\b", said[1]) for p in done.update.steps), said
    assert names(said[1], "--require-answers"), said
    # the update is not held up either
    manager.done(update(manager, "1", step_ms=50, gates={"max_error_rate": 0.1, "max_wait_ms": 0}))
    manager.done(update(manager, "2", step_ms=50, gates={}))  # without a gate the update waits for nothing
    assert len(events(manager, "update.unmeasured")) == 6
    ended = manager.end(update(manager, "1", step_ms=50, gates={"max_error_rate": 0.1, "max_wait_ms": 300, "require_answers": True}))
    assert ended.state == manager.t.OPERATION_STATE_FAILED and ended.error.reason == "TOO_FEW_ANSWERS", ended
    assert loaded_versions(manager) == ["2"] and traffic(manager) == {}


def test_without_traffic_a_step_takes_its_time_and_goes_on(manager):
    """Symptom: the update of a version without requests waited for answers that could not come. The wait was five times
    the length of each step."""
    manager.up()
    two_versions(manager, load=("1",))
    step_ms = 1000
    done = manager.end(update(manager, step_ms=step_ms, gates={"max_error_rate": 0.1, "max_ttft_ratio": 3}), 60000)
    assert done.state == manager.t.OPERATION_STATE_DONE and loaded_versions(manager) == ["2"], done
    assert len(events(manager, "update.unmeasured")) == 3
    assert [(s.n_answers, s.n_old_answers, list(s.unmeasured_gates)) for s in done.update.ended_steps] == [
        (0, 0, ["max_error_rate", "max_ttft_ratio"])] * 3
    shifts = [e.time_unix_ns for e in events(manager, "update.shift")]  # times between the steps, by the manager's clock
    assert all(step_ms / 1e3 <= (b - a) / 1e9 < 5 * step_ms / 1e3 for a, b in zip(shifts, shifts[1:])), shifts


def test_a_ratio_without_answers_of_the_old_version_is_told_without_a_flag_that_would_not_help(manager):
    manager.up()
    manager.script("one", "load_ms=30")
    manager.script("two", "load_ms=30 answers=1000 ttft_ms=10")
    manager.register("a", "one", version="1")
    manager.register("a", "two", version="2")
    manager.done(manager.load("a", version="1"))
    done = manager.done(update(manager, step_ms=300, steps=[100], gates={"max_ttft_ratio": 3}))
    said = cli(manager, "ops", "watch", done.id, "--manager", f"{manager.state}/run/manager.sock")
    assert names(said[1], "100 %", "--max-ttft-ratio") and "--require-answers" not in said[1], said


def shifting(manager, operation):
    def look():
        row = manager.rpc.GetOperation(manager.m.GetOperationRequest(id=operation.id)).operation
        return row.update.phase == manager.t.UPDATE_PHASE_SHIFT and row.stage == "shift"
    manager.wait(look, 8, "traffic moves")


def test_update_goes_back_where_a_new_replica_dies(manager):
    manager.up()
    two_versions(manager, load=("1",))
    operation = update(manager, step_ms=60000)
    shifting(manager, operation)
    (new,) = manager.replicas(version="2")
    os.kill(new.pid, signal.SIGKILL)
    ended = manager.end(operation)
    assert ended.error.reason == "REPLICA_LOST" and loaded_versions(manager) == ["1"], ended
    assert traffic(manager) == {}


def test_cancelled_update_goes_back_until_the_old_one_drains(manager):
    manager.up()
    two_versions(manager, load=("1",))
    set_traffic(manager, {"1": 5})
    cancel = lambda o: manager.rpc.CancelOperation(manager.m.CancelOperationRequest(id=o.id))  # noqa: E731
    operation = update(manager, step_ms=60000)
    shifting(manager, operation)
    assert traffic(manager) == {"1": 450, "2": 50}
    cancel(operation)
    ended = manager.end(operation)
    assert ended.state == manager.t.OPERATION_STATE_CANCELLED and loaded_versions(manager) == ["1"], ended
    assert traffic(manager) == {"1": 5}
    manager.script("one", "load_ms=60 drain_ms=1500")
    manager.done(manager.unload("a"))
    manager.done(manager.load("a", version="1"))
    operation = update(manager, step_ms=1, grace_ms=5000)
    row = lambda: manager.rpc.GetOperation(manager.m.GetOperationRequest(id=operation.id)).operation  # noqa: E731
    manager.wait(lambda: row().stage == "drain", 8, "the old one drains")
    fails(C.FAILED_PRECONDITION, cancel, operation, why="CANNOT_CANCEL")
    manager.done(operation)
    assert loaded_versions(manager) == ["2"] and traffic(manager) == {"2": 5}


LONG = bool(os.environ.get("SLUICE_LONG"))
POINTS = ["update.before_commit", "update.before_commit:3", "update.after_commit:4", "stop.before_record", "finish.before_record"]
MORE = ["update.before_commit:2", "update.before_commit:4", "update.before_write:4", "update.after_commit", "update.after_commit:3",
        "traffic.before_commit:3", "drain.before_record", "finish.before_commit", "finish.after_commit"]


@pytest.mark.parametrize("point", POINTS + MORE * LONG)
def test_killed_in_the_middle_of_an_update(manager, point):
    manager.up()
    two_versions(manager, load=("1",))
    manager.term()
    manager.up(env={"SLUICE_FAILPOINT": point})
    operation = retry(manager, lambda: update(manager, request_id="once", steps=[50, 100]))
    assert manager.process.wait(patience(10)) == -signal.SIGKILL
    manager.up()
    again = update(manager, request_id="once", steps=[50, 100])
    assert not operation or again.id == operation.id
    manager.done(again)
    settle(manager)
    assert loaded_versions(manager) == ["2"] and len(manager.workers()) == 1 and traffic(manager) == {}


@pytest.mark.parametrize("point", ["cancel.before_commit", "update.before_commit"] +
                         ["drain.after_record", "stop.before_record", "finish.before_commit"] * LONG)
def test_killed_in_the_middle_of_a_rollback(manager, point):
    manager.up()
    two_versions(manager, load=("1",))
    operation = update(manager, step_ms=60000)
    shifting(manager, operation)
    manager.term()
    manager.up(env={"SLUICE_FAILPOINT": point})
    cancel = lambda: manager.rpc.CancelOperation(manager.m.CancelOperationRequest(id=operation.id, request_id="c"))  # noqa: E731
    retry(manager, cancel)
    assert manager.process.wait(patience(10)) == -signal.SIGKILL
    manager.up()
    cancel()
    ended = manager.end(operation)
    assert ended.state == manager.t.OPERATION_STATE_CANCELLED, ended
    settle(manager)
    assert loaded_versions(manager) == ["1"] and len(manager.workers()) == 1 and traffic(manager) == {}


def test_update_that_cannot_be_is_refused(manager):
    manager.up()
    two_versions(manager, load=())
    fails(C.FAILED_PRECONDITION, update, manager, why="NOT_LOADED")
    manager.done(manager.load("a", version="1"))
    fails(C.NOT_FOUND, update, manager, "7", why="VERSION_NOT_FOUND")
    # no other version is loaded that the update could replace
    fails(C.FAILED_PRECONDITION, update, manager, "1", why="NOT_LOADED")
    fails(C.INVALID_ARGUMENT, update, manager, "1", from_version="1", field="version")
    for refused in ({"steps": [10, 50]}, {"steps": [50, 50, 100]}, {"gates": {"max_error_rate": 2}}, {"gates": {"ttft_quantile": 1}},
                    {"gates": {"max_wait_ms": 10**10}}, {"gates": {"max_ttft_ratio": float("nan")}}):
        ((name, value),) = refused.items()
        assert names(fails(C.INVALID_ARGUMENT, update, manager, **refused), name if name == "steps" else next(iter(value)))
    fails(C.ABORTED, update, manager, expected_generation=99, why="STALE_GENERATION")
    assert loaded_versions(manager) == ["1"] and traffic(manager) == {}


# -- version policies


def set_policy(manager, specific=None, **kwargs):
    t, fields = manager.t, {k: kwargs.pop(k) for k in ("latest", "all") if k in kwargs}
    if specific is not None:
        fields["specific"] = t.SpecificVersions(versions=specific)
    return manager.rpc.SetVersionPolicy(manager.m.SetVersionPolicyRequest(model="a", policy=t.VersionPolicy(**fields), **kwargs)).model


def comes_to(manager, *versions):
    manager.wait(lambda: manager.status().n_open_operations == 0 and loaded_versions(manager) == sorted(versions) and
                 all(r.state == manager.t.REPLICA_STATE_READY for r in manager.replicas()), 10, f"{versions} are loaded")
    settle(manager)


def test_policies_load_what_they_want_and_unload_the_rest(manager):
    manager.up()
    two_versions(manager, load=())
    set_policy(manager, latest=1)
    manager.register("a", "one", version="3")
    assert loaded_versions(manager) == []  # no version is loaded whose settings the policy could copy
    manager.done(manager.load("a", version="3", n_replicas=2))
    manager.register("a", "two", version="4")  # loads with the same settings, then replaces the older version
    comes_to(manager, "4")
    assert len(manager.replicas()) == 2
    fails(C.FAILED_PRECONDITION, manager.load, "a", version="3", why="VERSION_POLICY")
    fails(C.FAILED_PRECONDITION, manager.unload, "a", version="4", why="VERSION_POLICY")
    set_policy(manager, latest=2)
    comes_to(manager, "3", "4")
    set_policy(manager, specific=["1", "4"])
    comes_to(manager, "1", "4")
    set_policy(manager, all=True)
    comes_to(manager, "1", "2", "3", "4")
    fails(C.FAILED_PRECONDITION, update, manager, "2", from_version="1", why="VERSION_POLICY")
    manager.done(manager.unload("a"))  # an unload of the whole model is allowed, and the policy does not load it again
    manager.register("a", "one", version="5")
    comes_to(manager)
    set_policy(manager, all=False)
    manager.done(manager.load("a", version="1"))
    manager.register("a", "one", version="6")
    comes_to(manager, "1")


def test_policies_wait_for_an_operation_on_the_model(manager):
    manager.up()
    two_versions(manager, load=("1",))
    operation = update(manager, step_ms=60000)
    shifting(manager, operation)
    # the store makes changes in order: an unload caused by the first policy would be visible after the others
    for n in (2, 1, 1):
        set_policy(manager, latest=n)
    assert not events(manager, "policy.unload") and loaded_versions(manager) == ["1", "2"]
    manager.rpc.CancelOperation(manager.m.CancelOperationRequest(id=operation.id))
    manager.end(operation)
    comes_to(manager, "2")
    assert len(events(manager, "policy.load")) == len(events(manager, "policy.unload")) == 1


def test_policies_keep_what_serves_where_the_new_version_fails(manager):
    manager.up()
    two_versions(manager, second="load_ms=30 fail=13", load=())
    manager.rpc.DeleteModelVersion(manager.m.DeleteModelVersionRequest(model="a", version="2"))
    manager.done(manager.load("a", version="1"))
    set_policy(manager, latest=1, request_id="p")
    assert set_policy(manager, latest=1, request_id="p").policy.latest == 1
    manager.register("a", "two", version="2")
    manager.wait(lambda: any(r.version == "2" and r.state == manager.t.REPLICA_STATE_FAILED for r in manager.replicas()), 10, "it fails")
    manager.wait(lambda: manager.status().n_open_operations == 0, 10, "its load has ended")
    manager.kill()
    manager.up()
    settle(manager)
    # no second load, and no version goes
    assert len(events(manager, "policy.load")) == 1 and not events(manager, "policy.unload")
    assert [r.version for r in manager.replicas() if r.state == manager.t.REPLICA_STATE_READY] == ["1"]


@pytest.mark.parametrize("point", ["policy.before_write", "load.before_commit", "unload.before_commit"])
def test_killed_while_a_policy_is_followed(manager, point):
    manager.up()
    two_versions(manager, load=("1",))
    manager.term()
    manager.up(env={"SLUICE_FAILPOINT": point})
    retry(manager, lambda: set_policy(manager, latest=1))
    assert manager.process.wait(patience(10)) == -signal.SIGKILL
    manager.up()
    comes_to(manager, "2")


def test_policies_that_say_nothing_sensible_are_refused(manager):
    manager.up()
    two_versions(manager, load=())
    assert names(fails(C.INVALID_ARGUMENT, set_policy, manager, latest=0), "latest")
    assert names(fails(C.INVALID_ARGUMENT, set_policy, manager, specific=[]), "specific")
    fails(C.NOT_FOUND, set_policy, manager, specific=["1", "9"], why="VERSION_NOT_FOUND")
    fails(C.ABORTED, set_policy, manager, latest=1, expected_generation=99, why="STALE_GENERATION")
    model = manager.rpc.GetModel(manager.m.GetModelRequest(model="a")).model
    assert not model.HasField("policy")


# -- the real programs under live streams


PROMPTS = ["The capital of France is", "Once upon a time", "To be or not", "Seven of nine", "In a hole in the ground",
           "Call me", "It was the best", "All happy"]


class Load:
    """Clients that send requests one after the other, without a version, until stop. Each reply must equal, to the
    token, the undisturbed reply of the version in its receipt."""

    def __init__(self, sluice, n, references, max_tokens):
        self.sluice, self.references, self.max_tokens = sluice, references, max_tokens
        self.lock, self.over = threading.Condition(), False
        self.replies, self.errors, self.wrong = [], [], []  # replies: (version, session)
        self.threads = [threading.Thread(target=self.run, args=(i,), daemon=True) for i in range(n)]
        for thread in self.threads:
            thread.start()

    def run(self, i):
        draw = random.Random(i)
        while not self.over:
            prompt = draw.choice(PROMPTS)
            request = self.sluice.request("tiny", prompt, max_tokens=self.max_tokens, ignore_eos=True, session_key=f"s{i}")
            try:
                _, ids, finished = self.sluice.generate(request, timeout=patience(60))
            except grpc.RpcError as e:
                with self.lock:
                    self.errors.append((e.code(), e.details()))
                    self.lock.notify_all()
                    self.lock.wait(0.1)
                continue
            version = finished.receipt.version
            with self.lock:
                self.replies.append((version, i))
                if ids != self.references[version][prompt]:
                    self.wrong.append((version, prompt))
                self.lock.notify_all()

    def go_on(self, n, seconds=60):
        """Waits until n more replies have come."""
        with self.lock:
            wanted = len(self.replies) + n
            assert self.lock.wait_for(lambda: len(self.replies) >= wanted or self.errors, patience(seconds)), len(self.replies)
            assert not self.errors, self.errors[:3]

    def only(self, version, n):
        """Asserts that n further replies all come from this version, after the server has the new rule. A client may
        still wait for a reply of an old version while other clients have many replies. So first every client must
        have a reply of this version as its latest."""
        def settled():
            latest = {i: v for v, i in self.replies[begin:]}
            return len(latest) == len(self.threads) and set(latest.values()) == {version}

        with self.lock:
            begin = len(self.replies)
            assert self.lock.wait_for(lambda: self.errors or settled(), patience(60))
            begin = len(self.replies)
        self.go_on(n)
        with self.lock:
            assert {v for v, _ in self.replies[begin:]} == {version}, version

    def stop(self):
        self.over = True
        for thread in self.threads:
            thread.join(patience(60))
            assert not thread.is_alive()
        assert not self.errors and not self.wrong, (self.errors[:5], self.wrong[:5])


def answers(sluice, version):
    try:
        return sluice.generate(sluice.request("tiny", "x", max_tokens=1, version=version), timeout=patience(60))
    except grpc.RpcError as e:
        assert e.code() in (C.NOT_FOUND, C.FAILED_PRECONDITION, C.UNAVAILABLE), e
        return None


def start_tiny(sluice, max_tokens):
    """Starts with version 1 served and version 2 registered. Returns each version's answers to every prompt."""
    sluice.start()
    sluice.cli("register", "tiny", TINY / "f32.gguf", "--version", "1")
    sluice.cli("register", "tiny", TINY / "gpt2_f32.gguf", "--version", "2")
    references = {}
    for version in ("2", "1"):
        sluice.cli("load", "tiny", "--version", version, "--threads", "1")
        sluice.wait(lambda: answers(sluice, version), 30, f"the server knows version {version}")
        references[version] = {p: sluice.generate(sluice.request("tiny", p, max_tokens=max_tokens, ignore_eos=True,
                                                                 version=version), timeout=patience(60))[1] for p in PROMPTS}
    assert all(references["1"][p] != references["2"][p] for p in PROMPTS)
    assert all(len(r[p]) == max_tokens for r in references.values() for p in PROMPTS)
    sluice.cli("unload", "tiny", "--version", "2")
    return references


def change_under_load(sluice, load, n_switches, n_replies):
    """Scales up and down, updates to a version that cannot start, does a rolling update, switches, rolls back, unloads.
    At least n_replies replies lie between any two of these steps."""
    load.go_on(n_replies)
    for n in ("3", "1"):
        sluice.cli("scale", "tiny", n, "--grace", "30s")
        assert len(sluice.children("sluice-worker")) == int(n)
        load.go_on(n_replies)
    shutil.copy(TINY / "q8_0.gguf", sluice.state / "bad.gguf")
    sluice.cli("register", "tiny", sluice.state / "bad.gguf", "--version", "3")
    os.truncate(sluice.state / "bad.gguf", 100000)
    failed = sluice.cli("update", "tiny", "--to", "3", check=False)
    assert failed.returncode == 1 and re.search("MODEL_FILE_(CHANGED|INVALID)", failed.stderr), failed
    load.go_on(n_replies)
    sluice.cli("rm", "tiny", "3")
    assert {v for v, _ in list(load.replies)} == {"1"}
    out = sluice.cli("update", "tiny", "--to", "2", "--steps", "50,100", "--step", "500ms", "--max-ttft-ms", "60000", "--grace", "30s")
    assert out.returncode == 0 and names(out.stderr, "shift 50 %"), out
    load.only("2", n_replies)
    sluice.cli("traffic", "tiny", "2=1")  # otherwise the next load would change the default
    sluice.cli("load", "tiny", "--version", "1", "--threads", "1")
    for i in range(n_switches):
        weights = [("1=1",), ("1=1", "2=1"), ("2=1",), ("1=9", "2=1")][i % 4]
        sluice.cli("traffic", "tiny", *weights, "--sticky")
        if len(weights) == 1:
            load.only(weights[0][0], n_replies)
        else:
            load.go_on(n_replies)
    sluice.cli("traffic", "tiny", "2=1")
    load.go_on(n_replies)
    sluice.cli("unload", "tiny", "--version", "1", "--grace", "30s")
    failed = sluice.cli("update", "tiny", "--to", "1", "--step", "60s", "--steps", "50,100", "--max-ttft-ms", "0.0001",
                        "--min-answers", "5", check=False)
    assert failed.returncode == 1 and names(failed.stderr, "TTFT"), failed
    load.only("2", n_replies)
    assert json.loads(sluice.cli("traffic", "tiny", "--json").stdout)["traffic"]["weights"] == [{"version": "2", "weight": 1}]


def test_streams_live_through_switches_updates_and_a_rollback(fresh):
    references = start_tiny(fresh, 24)
    load = Load(fresh, 32, references, 24)
    change_under_load(fresh, load, 4, 40)
    load.stop()
    # The run proves nothing with fewer replies: 32 clients, and replies of both versions.
    assert len(load.replies) >= 400 and {v for v, _ in load.replies} == {"1", "2"}, len(load.replies)


def test_sessions_stay_with_their_version_over_a_dead_manager_and_server(fresh):
    """The server keeps the weights in a file. Another server without any manager distributes the requests like the one
    before."""
    sluice = fresh
    start_tiny(sluice, 8)
    sluice.cli("load", "tiny", "--version", "2", "--threads", "1")
    out = sluice.cli("traffic", "tiny", "1=1", "2=1", "--sticky").stdout
    assert "50.0 %" in out and "sticky" in out

    def version_of(session, **kwargs):
        request = sluice.request("tiny", PROMPTS[0], max_tokens=8, ignore_eos=True, session_key=session, **kwargs)
        def version():
            try:
                return sluice.generate(request, timeout=patience(60))[2].receipt.version
            except grpc.RpcError as e:
                assert e.code() == C.UNAVAILABLE, e
        return until(version, 10, sluice.tail, 0.1)

    keys = [f"k{i}" for i in range(24)]
    sluice.wait(lambda: {version_of(k) for k in keys} == {"1", "2"}, 20, "the server has the rule")
    before = {k: version_of(k) for k in keys}
    assert {version_of("k0", version=v) for v in "12"} == {"1", "2"}  # a request that names a version gets that version
    (manager,), (server,) = sluice.children("sluice-manager"), sluice.children("sluice-server")
    stub, m = sluice.manager_stub(), sluice.stubs.manager
    (replica,) = stub.ListReplicas(m.ListReplicasRequest(model="tiny", version="2")).replicas
    home = next(k for k, v in before.items() if v == "2")
    seen, threads = [], []

    def ask():  # the first requests may still go to the dead replica and wait for its return
        threads.append(threading.Thread(target=lambda: seen.append(version_of(home)), daemon=True))
        threads[-1].start()
        return "1" in seen

    os.kill(manager, signal.SIGSTOP)  # otherwise the manager would restart the worker
    try:
        os.kill(server, signal.SIGKILL)
        sluice.wait(lambda: sluice.children("sluice-server") not in ([], [server]), 20, "another server")
        assert {k: version_of(k) for k in before} == before
        # Requests do not wait for a version whose only worker is dead, whatever the route table says. Its sessions
        # return with the version.
        os.kill(replica.pid, signal.SIGKILL)
        sluice.wait(ask, 10, "the other serves")
    finally:
        os.kill(manager, signal.SIGCONT)
    for thread in threads:
        thread.join(patience(60))
    sluice.wait(lambda: len(sluice.ready()) == 2, 30, "its worker is back")
    sluice.wait(lambda: {k: version_of(k) for k in before} == before, 10, "and its sessions")


if LONG:  # takes minutes: only in tests/long.sh faults
    def test_twenty_switches_with_500_streams(fresh):
        references = start_tiny(fresh, 48)
        load = Load(fresh, 500, references, 48)
        change_under_load(fresh, load, 20, 1000)
        load.stop()
        assert len(load.replies) >= 20000 and {v for v, _ in load.replies} == {"1", "2"}, len(load.replies)
        print(f"\n500 clients, 20 switches, an update, a rollback: {len(load.replies)} replies, 0 errors")
