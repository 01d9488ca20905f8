"""Parking: only a version's weights stay in memory. Also the wake of a parked version."""
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import time

import grpc
import psutil
import pytest

from conftest import BIN, ROOT, alive, keeps, launch_record, model_path, names, patience, sanitized
from manager_program import C, fails, manager, reason, retry, settle  # noqa: F401 (fixtures)

TINY = ROOT / "tests/golden/tiny/q8_0.gguf"


def parked(sluice):
    return [r for r in sluice.replicas() if r["state"] == "REPLICA_STATE_PARKED"]


def memory(pid):
    """Returns the (private, shared) bytes of the process in memory."""
    text = open(f"/proc/{pid}/status").read()
    kib = {line.split(":")[0]: int(line.split()[1]) for line in text.splitlines() if line.startswith("Rss")}
    return kib["RssAnon"] * 1024, kib["RssShmem"] * 1024


def operation(sluice, *args):
    return json.loads(sluice.cli(*args, "--json").stdout.splitlines()[-1])["operation"]


def events(sluice, since=1):
    """Returns the types of the events from a number on, and the number of the next event."""
    status = sluice.manager_stub().GetStatus(sluice.stubs.manager.GetStatusRequest())
    seen = []
    for message in sluice.manager_stub().WatchEvents(sluice.stubs.manager.WatchEventsRequest(from_seq=since), timeout=patience(20)):
        seen += [e.type for e in message.events]
        if message.events[-1].seq >= status.last_event_seq:
            return seen, message.events[-1].seq + 1


def test_a_parked_version_keeps_its_weights_alone_and_answers_as_before_once_woken(fresh):
    fresh.start()
    fresh.cli("register", "smol", model_path(), "--version", "1")
    fresh.cli("load", "smol", "--kv-tokens", "8192")
    request = fresh.request("smol", "The capital of France is", max_tokens=24, ignore_eos=True)
    fresh.wait(lambda: fresh.run("smol", "hi", "-n", "1", check=False).returncode == 0, 30, "the model answers")
    before = fresh.generate(request)[1]
    serving = fresh.ready()[0]

    plan = json.loads(fresh.cli("park", "smol", "--validate-only", "--json").stdout)["plan"]
    assert plan["fits"] and int(plan["devices"][0]["weight_bytes"]) == 0 and int(plan["devices"][0]["kv_bytes"]) > 0, plan
    assert [r["id"] for r in fresh.ready()] == [serving["id"]]  # the refused command changed nothing

    o = operation(fresh, "park", "smol")
    assert (o["kind"], o["state"], o["stage"]) == ("OPERATION_KIND_PARK", "OPERATION_STATE_DONE", "done")
    m = o["result"]["memory"][0]
    (replica,) = parked(fresh)
    weights = int(replica["shared_bytes"])
    assert weights > 90e6 and int(m["before_bytes"]) > int(m["after_bytes"]) >= weights, m
    # 15 MB apart: the part of the file that the parked worker has read
    assert abs(int(m["after_bytes"]) - int(m["expected_bytes"])) < 2 << 20, m
    assert replica["id"] == serving["id"] and replica["pid"] != serving["pid"] and not alive(serving["pid"])
    private, shared = memory(replica["pid"])
    assert weights <= shared <= weights + (4 << 20)
    if not sanitized():
        assert private < 16 << 20, private
        assert psutil.Process(replica["pid"]).num_threads() <= 24
    version = json.loads(fresh.cli("show", "smol", "--json").stdout)["model"]["versions"][0]
    assert version["state"] == "MODEL_VERSION_STATE_PARKED" and version["deployments"][0]["parked"]

    fresh.wait(lambda: fails_parked(fresh, request), 10, "the server has heard that it is parked")
    for command in (["scale", "smol", "2"], ["load", "smol", "--kv-tokens", "8192"]):
        refused = fresh.cli(*command, check=False)
        # The remedy stood there twice, in the error and in the advice.
        assert refused.returncode and names(refused.stderr, "PARKED") and refused.stderr.count("sluice wake") == 1, refused.stderr
    again = operation(fresh, "park", "smol")  # the version is already parked
    assert again["state"] == "OPERATION_STATE_DONE" and [r["pid"] for r in parked(fresh)] == [replica["pid"]]

    plan = json.loads(fresh.cli("wake", "smol", "--validate-only", "--json").stdout)["plan"]
    assert plan["fits"] and int(plan["devices"][0].get("weight_bytes", 0)) == 0 and int(plan["devices"][0]["kv_bytes"]) > 0
    o = operation(fresh, "wake", "smol")
    assert (o["kind"], o["state"], o["stage"]) == ("OPERATION_KIND_WAKE", "OPERATION_STATE_DONE", "done")
    (woken,) = fresh.ready()
    assert woken["id"] == serving["id"] and int(woken["shared_id"]) == int(replica["shared_id"])  # the same memory
    assert (woken["pid"], woken["epoch"]) == (replica["pid"], replica["epoch"])  # and the same process
    assert memory(woken["pid"])[1] <= weights + (4 << 20)  # mapped once
    fresh.wait(lambda: fresh.run("smol", "hi", "-n", "1", check=False).returncode == 0, 30, "it answers")
    assert fresh.generate(request)[1] == before
    types, _ = events(fresh)
    order = ["operation.park", "replica.draining", "replica.parking", "replica.parked", "operation.done", "operation.wake",
             "replica.waking", "replica.ready", "operation.done"]
    at = types.index("operation.park")
    for kind in order:
        at = types.index(kind, at) + 1
    o = operation(fresh, "unload", "smol")
    assert int(o["result"]["memory"][0].get("after_bytes", 0)) == 0


def fails_parked(sluice, request):
    with pytest.raises(grpc.RpcError) as caught:
        sluice.generate(request)
    return (caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION and reason(caught.value) == "MODEL_PARKED" and
            names(caught.value.details(), "WakeModelVersion"))


def test_parked_weights_outlive_kills_of_the_manager_and_of_their_keeper(fresh):
    fresh.start(env={"SLUICE_RESTART_BACKOFF_INITIAL": "50ms"})
    fresh.cli("register", "tiny", TINY, "--version", "1")
    fresh.cli("load", "tiny", "--replicas", "2", "--kv-tokens", "512", "--threads", "1")
    fresh.wait(lambda: fresh.run("tiny", "ab", "-n", "1", "--raw", check=False).returncode == 0, 30, "the model answers")
    request = fresh.request("tiny", "ab", max_tokens=12, ignore_eos=True)
    before = fresh.generate(request)[1]
    fresh.cli("park", "tiny")
    keepers = parked(fresh)
    memory_id = {r["shared_id"] for r in keepers}
    assert len(keepers) == 2 and len(memory_id) == 1

    (manager,) = fresh.children("sluice-manager")
    os.kill(manager, signal.SIGKILL)
    fresh.wait(lambda: fresh.children("sluice-manager") not in ([], [manager]) and
               fresh.cli("status", check=False).returncode == 0, 20, "another manager")
    pids = [r["pid"] for r in keepers]

    def kept(condition):
        now = parked(fresh)  # read once: the states may change between two reads
        return len(now) == 2 and condition(now)
    fresh.wait(lambda: kept(lambda now: [r["pid"] for r in now] == pids and all(r.get("adopted") for r in now)), 20, "they are adopted")

    for keeper in keepers:  # the manager also holds the memory that it took over from the workers
        os.kill(keeper["pid"], signal.SIGKILL)
    fresh.wait(lambda: kept(lambda now: not {r["pid"] for r in now} & set(pids) and all(r.get("shared_id") for r in now)), 20,
               "others keep them")
    assert {r["shared_id"] for r in parked(fresh)} == memory_id
    fresh.cli("wake", "tiny")
    assert {r["shared_id"] for r in fresh.ready()} == memory_id
    fresh.wait(lambda: fresh.run("tiny", "ab", "-n", "1", "--raw", check=False).returncode == 0, 30, "it answers")
    assert fresh.generate(request)[1] == before


def test_a_request_wakes_a_parked_version_that_may_be_woken_so(fresh):
    fresh.start()
    fresh.cli("register", "tiny", TINY, "--version", "1")
    fresh.cli("load", "tiny", "--kv-tokens", "512", "--threads", "1", "--wake-on-demand")
    fresh.wait(lambda: fresh.run("tiny", "ab", "-n", "1", "--raw", check=False).returncode == 0, 30, "the model answers")
    request = fresh.request("tiny", "ab", max_tokens=12, ignore_eos=True)
    before = fresh.generate(request)[1]
    fresh.cli("park", "tiny")
    assert len(parked(fresh)) == 1
    assert fresh.generate(request)[1] == before
    (replica,) = fresh.ready()
    assert int(replica["shared_bytes"]) > 0
    types, _ = events(fresh)
    assert types.count("version.demanded") == 1 and types.index("version.demanded") < types.index("operation.wake"), types


# -- with fake workers


def park(manager, model="a", **kwargs):
    return manager.rpc.ParkModelVersion(manager.m.ParkModelVersionRequest(model=model, **kwargs)).operation


def wake(manager, model="a", **kwargs):
    return manager.rpc.WakeModelVersion(manager.m.WakeModelVersionRequest(model=model, **kwargs)).operation


def loaded(manager, n=1, script="load_ms=60"):
    manager.script("a", script)
    manager.register("a", version="1")
    manager.done(manager.load("a", n_replicas=n))


def states(manager):
    return sorted(manager.t.ReplicaState.Name(r.state)[len("REPLICA_STATE_"):] for r in manager.replicas())


POINTS_PARK = ["park.before_write", "park.before_commit", "drain.before_record", "drain.after_record", "start.before_record",
               "start.after_record", "spawn.after", "state.before_record", "state.after_record",
               "finish.before_record", "finish.after_commit"]
POINTS_WAKE = ["wake.before_write", "wake.before_commit", "wake.before_record", "wake.after_record", "ready.before_record",
               "ready.after_record", "finish.before_commit"]
POINTS_WAKE_ANEW = ["wake.after_record", "drain.after_record", "start.after_record", "spawn.after", "ready.before_record"]


@pytest.mark.parametrize("point", POINTS_PARK)
def test_killed_in_the_middle_of_parking(manager, point):
    """Every operation ends and every process has an owner. Weights lost with the manager are packed again."""
    manager.up()
    loaded(manager, 2)
    manager.term()
    manager.up(env={"SLUICE_FAILPOINT": point})
    operation = retry(manager, lambda: park(manager, request_id="once"))
    assert manager.process.wait(patience(10)) == -signal.SIGKILL
    manager.up()
    again = park(manager, request_id="once")
    assert not operation or again.id == operation.id
    manager.done(again)
    settle(manager)
    assert states(manager) == ["PARKED", "PARKED"] and len(manager.workers()) == 2


@pytest.mark.parametrize("script, point", [("", p) for p in POINTS_WAKE] + [(" wakes=no", p) for p in POINTS_WAKE_ANEW])
def test_killed_in_the_middle_of_waking(manager, script, point):
    manager.up()
    loaded(manager, 2, "load_ms=60" + script)
    manager.done(park(manager))
    manager.term()
    manager.up(env={"SLUICE_FAILPOINT": point})
    operation = retry(manager, lambda: wake(manager, request_id="once"))
    assert manager.process.wait(patience(10)) == -signal.SIGKILL
    manager.up()
    again = wake(manager, request_id="once")
    assert not operation or again.id == operation.id
    manager.done(again)
    settle(manager)
    assert states(manager) == ["READY", "READY"] and len(manager.workers()) == 2


def test_a_keeper_serves_itself_once_woken(manager):
    manager.up()
    loaded(manager, 2)
    manager.done(park(manager))
    keepers = {r.id: (r.pid, r.epoch, r.n_restarts) for r in manager.replicas()}
    manager.kill()
    manager.up()  # a wake also works for workers that an earlier manager parked
    manager.wait(lambda: states(manager) == ["PARKED", "PARKED"], 10, "they are adopted")
    manager.done(wake(manager))
    assert states(manager) == ["READY", "READY"]
    assert {r.id: (r.pid, r.epoch, r.n_restarts) for r in manager.replicas()} == keepers
    manager.done(park(manager))  # a new park starts new processes, as always
    again = {r.id: (r.pid, r.epoch) for r in manager.replicas()}
    assert all(again[id][0] != pid and again[id][1] == epoch + 1 for id, (pid, epoch, _) in keepers.items())


def test_only_deaths_that_nobody_asked_for_are_restarts(manager):
    """Symptom: `sluice ps` printed RESTARTS 1 after a park, and the alert on restarts fired for parked and woken
    versions."""
    manager.up()
    loaded(manager)

    def restarts():
        (replica,) = manager.replicas()
        return replica.epoch, replica.n_restarts

    for _ in range(2):
        manager.done(park(manager))
        manager.done(wake(manager))
    epoch, n = restarts()
    assert n == 0 and epoch >= 3
    (replica,) = manager.replicas()
    manager.done(manager.rpc.RestartReplica(manager.m.RestartReplicaRequest(replica_id=replica.id)).operation)
    assert restarts() == (epoch + 1, 0)
    manager.kill()
    manager.up()  # the count of restarts is in the database
    os.kill(manager.replicas()[0].pid, signal.SIGKILL)
    manager.wait(lambda: restarts() == (epoch + 2, 1) and states(manager) == ["READY"], 10, "it is ready again")
    manager.done(park(manager))
    assert restarts() == (epoch + 3, 1)


@pytest.mark.parametrize("script", ["wakes=no", "wakes=never", "wakes=dies"])
def test_where_a_keeper_does_not_wake_another_process_does(manager, script):
    manager.up()
    loaded(manager, script="load_ms=60 " + script)
    manager.done(park(manager))
    (keeper,) = manager.replicas()
    manager.done(wake(manager))
    (woken,) = manager.replicas()
    assert states(manager) == ["READY"] and woken.pid != keeper.pid and woken.epoch > keeper.epoch and woken.shared_id == keeper.shared_id
    settle(manager)
    assert manager.workers() == [woken.pid]


def test_a_keeper_of_an_older_program_gives_way_to_one_of_the_new(manager):
    program = manager.folder / "worker"
    shutil.copy(BIN / "fake_worker", program)
    manager.up(worker=program)
    loaded(manager)
    manager.done(park(manager))
    (keeper,) = manager.replicas()
    shutil.copy(BIN / "fake_worker", manager.folder / "new")
    os.rename(manager.folder / "new", program)  # replaces the program as a package upgrade does
    manager.done(wake(manager))
    (woken,) = manager.replicas()
    assert states(manager) == ["READY"] and woken.pid != keeper.pid and woken.epoch == keeper.epoch + 1
    assert os.path.samefile(f"/proc/{woken.pid}/exe", program)


def may_run_on(pid):
    """Returns the CPUs that each thread of a process may use."""
    sets = set()
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        sets.add(frozenset(os.sched_getaffinity(int(task.name))))
    return sets


def tiny_parked(manager, **config):
    """Parks a version with a real worker. Returns the parked replica and its answer before the park."""
    manager.up(worker=BIN / "sluice-worker")
    (manager.models / "a").write_bytes(TINY.read_bytes())
    manager.register("a", version="1")
    manager.done(manager.load("a", config=manager.t.ModelConfig(kv_tokens=512, n_threads=1, **config)))
    before = answer_of(manager)
    manager.done(park(manager))
    return manager.replicas()[0], before


def answer_of(manager):
    (replica,) = manager.replicas()
    with grpc.insecure_channel(f"unix:{manager.state}/run/{replica.socket}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        return ask(manager.stubs.worker, manager.stubs, channel, replica)


@pytest.mark.parametrize("what", ["nothing", "its times", "removed"])
def test_what_befell_the_file_while_parked_does_not_change_an_answer(manager, what):
    keeper, before = tiny_parked(manager)
    if what == "its times":
        os.utime(manager.models / "a", (1, 1))  # the worker reads the file again, and its digest matches the pinned digest
    elif what == "removed":
        os.unlink(manager.models / "a")  # the weights and the file's header are in memory
    manager.done(wake(manager))
    (woken,) = manager.replicas()
    assert states(manager) == ["READY"] and woken.pid == keeper.pid
    assert answer_of(manager) == before


def test_a_file_that_was_overwritten_while_parked_does_not_load(manager):
    tiny_parked(manager)
    with open(manager.models / "a", "r+b") as f:
        f.seek(200)
        f.write(b"\xff" * 64)
    o = manager.end(wake(manager))
    assert o.state == manager.t.OPERATION_STATE_FAILED, o
    assert states(manager) == ["FAILED"]


def changed(message, **fields):
    """Returns a copy of the message with other values of these fields."""
    copy = type(message)()
    copy.CopyFrom(message)
    for name, value in fields.items():
        if isinstance(value, list):
            getattr(copy, name)[:] = value
        elif hasattr(value, "CopyFrom"):
            getattr(copy, name).CopyFrom(value)
        else:
            setattr(copy, name, value)
    return copy


def test_a_worker_says_why_it_does_not_wake(manager):
    keeper, before = tiny_parked(manager)
    worker = manager.stubs.worker
    record = launch_record(keeper.pid, manager.stubs)
    record.parked = False

    def told(**changes):
        try:
            stub.Wake(worker.WakeRequest(launch=changed(record, **changes)), timeout=patience(10))
        except grpc.RpcError as e:
            return e.code(), reason(e)
        return None
    with grpc.insecure_channel(f"unix:{manager.state}/run/{keeper.socket}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub = manager.stubs.worker_grpc.WorkerStub(channel)
        assert told(epoch=keeper.epoch + 1) == (C.FAILED_PRECONDITION, "STALE_EPOCH")
        assert told(config=changed(record.config, n_threads=2)) == (C.FAILED_PRECONDITION, "NEEDS_A_START")
        assert told(replica="r77") == (C.FAILED_PRECONDITION, "NEEDS_A_START")
        assert told(parked=True) == (C.FAILED_PRECONDITION, "NEEDS_A_START")
        for changes in ({"tp": 9}, {"log_level": "loud"}, {"packed_fds": [1]}, {"packed_fds": [3] * 9}, {"weights_held": True},
                        {"config": changed(record.config, n_threads=5000)}, {"model": ""}):
            assert told(**changes)[0] == C.INVALID_ARGUMENT, changes
        with pytest.raises(grpc.RpcError) as refused:  # a manager without launch records; it starts a new process then
            stub.Wake(worker.WakeRequest(flags=["--socket", "s", "--model", "m"]), timeout=patience(10))
        assert (refused.value.code(), reason(refused.value)) == (C.FAILED_PRECONDITION, "NEEDS_A_START")
        assert states(manager) == ["PARKED"] and [r.pid for r in manager.replicas()] == [keeper.pid]
        manager.done(wake(manager))
        assert told() == (C.FAILED_PRECONDITION, "NOT_PARKED")
    assert answer_of(manager) == before


@pytest.mark.alone  # with test files side by side each process has only one CPU
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_one_that_is_to_have_cpus_of_its_own_gets_them_as_it_wakes(manager):
    """The threads of the parked worker, which had no CPUs of their own, move to the new CPUs too."""
    mine = os.sched_getaffinity(0)  # the CPUs of this process, and so of the manager
    cpu = min(mine)
    keeper, before = tiny_parked(manager, cpus=str(cpu))
    assert may_run_on(keeper.pid) == {frozenset(mine)}
    manager.done(wake(manager))
    (woken,) = manager.replicas()
    assert states(manager) == ["READY"] and woken.pid == keeper.pid
    assert may_run_on(woken.pid) == {frozenset({cpu})}
    assert answer_of(manager) == before
    manager.kill()
    manager.up(worker=BIN / "sluice-worker")  # the next manager asks the worker for its CPUs
    assert manager.replicas()[0].pid == keeper.pid
    manager.done(park(manager))
    assert may_run_on(manager.replicas()[0].pid) == {frozenset(mine)}


@pytest.mark.alone  # with test files side by side each process has only one CPU
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_a_wake_to_cpus_that_are_gone_is_refused_and_it_stays_parked(manager):
    """Symptom: the parked worker ended in favour of a process that could not start, and the weights were packed again."""
    mine = sorted(os.sched_getaffinity(0))
    keeper, before = tiny_parked(manager, cpus=str(mine[-1]))
    manager.kill()
    os.sched_setaffinity(0, mine[:1])
    try:
        manager.up(worker=BIN / "sluice-worker")
        assert "config.cpus" in fails(C.INVALID_ARGUMENT, wake, manager)
        assert states(manager) == ["PARKED"] and manager.replicas()[0].pid == keeper.pid
        manager.kill()
    finally:
        os.sched_setaffinity(0, mine)
    manager.up(worker=BIN / "sluice-worker")
    manager.done(wake(manager))
    assert states(manager) == ["READY"] and answer_of(manager) == before


def test_cpus_that_cannot_be_had_leave_a_keeper_as_it_was(manager):
    keeper, before = tiny_parked(manager)
    worker = manager.stubs.worker
    was = may_run_on(keeper.pid)
    record = changed(launch_record(keeper.pid, manager.stubs), parked=False)
    with grpc.insecure_channel(f"unix:{manager.state}/run/{keeper.socket}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub = manager.stubs.worker_grpc.WorkerStub(channel)
        for cpus in ("8000", "node:63", "junk"):
            fails(C.INVALID_ARGUMENT, stub.Wake, worker.WakeRequest(launch=changed(record, config=changed(record.config, cpus=cpus))), timeout=patience(10))
    assert may_run_on(keeper.pid) == was and states(manager) == ["PARKED"]
    manager.done(wake(manager))
    assert manager.replicas()[0].pid == keeper.pid and answer_of(manager) == before


@pytest.mark.parametrize("first", ["Wake", "Shutdown"])
def test_who_is_told_to_serve_and_to_end_ends(manager, first):
    """Wake and Shutdown arrive before the stopped worker reads either. The worker ends at once, so no process serves
    without a request of the manager."""
    keeper, before = tiny_parked(manager)
    worker = manager.stubs.worker
    record = changed(launch_record(keeper.pid, manager.stubs), parked=False)
    with grpc.insecure_channel(f"unix:{manager.state}/run/{keeper.socket}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        grpc.channel_ready_future(channel).result(patience(10))
        stub = manager.stubs.worker_grpc.WorkerStub(channel)
        calls = {"Wake": lambda: stub.Wake.future(worker.WakeRequest(launch=record), timeout=patience(20)),
                 "Shutdown": lambda: stub.Shutdown.future(worker.ShutdownRequest(grace_ms=60000), timeout=patience(20))}
        os.kill(keeper.pid, signal.SIGSTOP)
        waiting = [calls[name]() for name in sorted(calls, key=lambda name: name != first)]
        time.sleep(0.1)  # time to send both: no message confirms the arrival, because the stopped worker reads nothing
        os.kill(keeper.pid, signal.SIGCONT)
        manager.wait(lambda: not psutil.pid_exists(keeper.pid) or psutil.Process(keeper.pid).status() == psutil.STATUS_ZOMBIE, 10, "it ends")
        assert len(waiting) == 2
    manager.wait(lambda: states(manager) == ["PARKED"] and manager.replicas()[0].pid != keeper.pid, 20, "another keeps the weights")
    manager.done(wake(manager))
    assert answer_of(manager) == before


def test_a_park_whose_weights_cannot_be_taken_over_fails_and_the_version_serves_on(manager):
    """Symptom: with few descriptors left, a park loaded, served and ended worker after worker and never ended itself."""
    manager.up(worker=BIN / "sluice-worker")
    _, hard = resource.prlimit(manager.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(manager.process.pid, resource.RLIMIT_NOFILE, (64, hard))
    shutil.copy(TINY, manager.models / "tiny.gguf")
    manager.register("tiny", "tiny.gguf", version="1")
    manager.done(manager.load("tiny", config=manager.t.ModelConfig(kv_tokens=512, n_threads=1)))
    (serving,) = manager.replicas()
    failed = manager.end(park(manager, "tiny"))
    assert (failed.state, failed.error.reason) == (manager.t.OPERATION_STATE_FAILED, "WEIGHTS_NOT_KEPT"), failed
    assert states(manager) == ["READY"] and manager.replicas()[0].pid == serving.pid
    assert not manager.rpc.GetModel(manager.m.GetModelRequest(model="tiny")).model.versions[0].deployments[0].parked
    resource.prlimit(manager.process.pid, resource.RLIMIT_NOFILE, (hard, hard))
    manager.done(park(manager, "tiny"))  # a new command opens the memory of the same worker
    assert states(manager) == ["PARKED"]
    manager.done(wake(manager, "tiny"))


def test_parking_what_cannot_be_parked_says_why(manager):
    manager.up()
    m = manager.m
    manager.script("a")
    fails(C.NOT_FOUND, park, manager, why="MODEL_NOT_FOUND")
    manager.register("a", version="1")
    fails(C.FAILED_PRECONDITION, park, manager, why="NOT_LOADED")
    operation = manager.load("a")
    fails(C.FAILED_PRECONDITION, park, manager, why="OPERATION_IN_PROGRESS")
    manager.done(operation)
    fails(C.ABORTED, park, manager, version="1", expected_generation=99, why="STALE_GENERATION")
    fails(C.INVALID_ARGUMENT, park, manager, grace_ms=10**9)
    operation = park(manager, request_id="x")
    assert park(manager, request_id="x").id == operation.id
    fails(C.FAILED_PRECONDITION, manager.rpc.CancelOperation, m.CancelOperationRequest(id=operation.id), why="CANNOT_CANCEL")
    manager.done(operation)
    assert states(manager) == ["PARKED"]
    fails(C.FAILED_PRECONDITION, manager.load, "a", why="PARKED")
    fails(C.FAILED_PRECONDITION, manager.rpc.ScaleModelVersion, m.ScaleModelVersionRequest(model="a", n_replicas=2), why="PARKED")
    fails(C.FAILED_PRECONDITION, manager.rpc.DeleteModelVersion, m.DeleteModelVersionRequest(model="a", version="1"))
    manager.done(manager.unload("a"))  # an unload also works on a parked version
    settle(manager)
    assert states(manager) == [] and not manager.workers()
    manager.done(manager.load("a"))  # after the load the version is not parked any more
    assert states(manager) == ["READY"]


def test_a_restarted_and_a_drained_keeper_keep(manager):
    manager.up()
    loaded(manager)
    manager.done(park(manager))
    (keeper,) = manager.replicas()
    manager.done(manager.rpc.RestartReplica(manager.m.RestartReplicaRequest(replica_id=keeper.id)).operation)
    (again,) = manager.replicas()
    assert again.pid != keeper.pid and again.shared_id == keeper.shared_id and states(manager) == ["PARKED"]
    manager.done(manager.rpc.DrainReplica(manager.m.DrainReplicaRequest(replica_id=keeper.id)).operation)
    (other,) = [r for r in manager.replicas()]
    assert other.id != keeper.id and other.shared_id == keeper.shared_id and states(manager) == ["PARKED"]


# -- idle policy


def test_what_nobody_asks_for_is_parked_or_unloaded_and_what_serves_is_not(manager):
    manager.up()
    config = manager.m.LoadModelVersionRequest().config
    names = {"parks": ("", ""), "unloads": ("unload", ""), "busy": ("park", " queued moves"), "stays": (None, "")}
    for name, (action, script) in names.items():
        manager.script(name, "load_ms=60" + script)
        manager.register(name, version="1")
        config.Clear()
        if action is not None:
            config.idle_after_ms = 1000
            config.idle_action = action
        manager.done(manager.load(name, config=config))
    loaded = {r.model: r.pid for r in manager.replicas()}
    assert len(loaded) == 4
    t = manager.t

    def state():
        return {r.model: t.ReplicaState.Name(r.state)[len("REPLICA_STATE_"):] for r in manager.replicas()}
    expected = {"parks": "PARKED", "busy": "READY", "stays": "READY"}
    manager.wait(lambda: state() == expected, 20, f"{expected}")
    settle(manager)
    kept = {r.model: r.pid for r in manager.replicas()}
    assert kept["busy"] == loaded["busy"] and kept["stays"] == loaded["stays"]
    seen = []
    for message in manager.rpc.WatchEvents(manager.m.WatchEventsRequest(from_seq=1), timeout=patience(10)):
        seen += [(e.model, e.attributes["reason"]) for e in message.events if e.type == "version.idle"]
        if len(seen) >= 2:
            break
    assert sorted(seen) == [("parks", "PARK"), ("unloads", "UNLOAD")]
    manager.done(wake(manager, "parks"))  # the version is idle again only after the same time
    assert state()["parks"] == "READY"
    manager.wait(lambda: state()["parks"] == "PARKED", 20, "it is parked again")


def test_one_that_is_woken_in_a_moment_is_idle_from_then_on(manager):
    """The version was idle long enough while it was parked. Its load is over before the manager checks for idle
    versions."""
    manager.up(worker=BIN / "sluice-worker")
    (manager.models / "a").write_bytes(TINY.read_bytes())
    manager.register("a", version="1")
    manager.done(manager.load("a", config=manager.t.ModelConfig(kv_tokens=512, n_threads=1, idle_after_ms=2000)))
    for _ in range(3):
        manager.wait(lambda: states(manager) == ["PARKED"], 20, "it is parked")
        settle(manager)
        keeps(lambda: states(manager) == ["PARKED"], 2.2, "it stays parked")
        manager.done(wake(manager))
        keeps(lambda: states(manager) == ["READY"], 1.2, "it is parked again too soon")


@pytest.mark.parametrize("config, field, values", [({"idle_after_ms": 999}, "config.idle_after_ms", (1000,)),
                                                   ({"idle_after_ms": 10**9}, "config.idle_after_ms", (10**9, 86400000)),
                                                   ({"idle_action": "park"}, "config.idle_action", ("idle_after_ms",)),
                                                   ({"idle_after_ms": 1000, "idle_action": "sleep"}, "config.idle_action", ("park", "unload"))],
                         ids=["too short", "too long", "action alone", "another action"])
def test_idle_settings_that_make_no_sense_are_refused(manager, config, field, values):
    manager.up()
    manager.script("a")
    manager.register("a", version="1")
    assert names(fails(C.INVALID_ARGUMENT, manager.load, "a", config=manager.t.ModelConfig(**config), field=field), *values)


# -- a memory budget, and which version is evicted


KV_TOKENS = 400_000  # 100 MB of the tiny model's KV cache


def config_of(manager, **kwargs):
    return manager.t.ModelConfig(kv_tokens=KV_TOKENS, n_threads=1, **kwargs)


def budgeted(manager, n_bytes, *args):
    manager.up("--memory-budget", str(n_bytes), *args, worker=BIN / "sluice-worker")
    for name in ("a", "b", "c", "d"):
        (manager.models / name).write_bytes(TINY.read_bytes())
        manager.register(name, version="1")


def models(manager):
    return sorted(r.model for r in manager.replicas() if r.state == manager.t.REPLICA_STATE_READY)


def test_a_load_beyond_the_budget_takes_nothing_and_one_that_may_evict_takes_the_least_recently_used(manager):
    budgeted(manager, 260_000_000)
    m = manager.m
    for name, evictable in (("a", True), ("b", False)):
        manager.done(manager.load(name, config=config_of(manager, evictable=evictable)))
    plan = manager.rpc.LoadModelVersion(m.LoadModelVersionRequest(model="c", validate_only=True, config=config_of(manager))).plan
    assert not plan.fits and plan.devices[0].missing_bytes > 40_000_000, plan
    o = manager.end(manager.load("c", config=config_of(manager)))
    assert o.state == manager.t.OPERATION_STATE_FAILED and names(o.error.message, "memory_budget"), o
    assert models(manager) == ["a", "b"]
    manager.done(manager.unload("c"))

    def evictions():
        plan = manager.rpc.LoadModelVersion(m.LoadModelVersionRequest(model="c", validate_only=True, config=config_of(manager))).plan
        assert not plan.fits
        return [(e.model, e.version) for e in plan.evictions]
    # an eviction of b would free as much, but b must stay
    manager.wait(lambda: evictions() == [("a", "1")], 15, "a is idle, and named by the plan")
    for flags, status in ((["--evict"], 0), ([], 1)):
        done = subprocess.run([BIN / "sluice", "load", "c", "--validate-only", "--kv-tokens", str(KV_TOKENS), "--threads", "1", *flags,
                               "--manager", manager.state / "run/manager.sock"], capture_output=True, text=True, timeout=patience(20))
        assert done.returncode == status and (flags or names(done.stdout, "--evict")), (flags, done)
    assert models(manager) == ["a", "b"]  # the plan changed nothing else
    o = manager.load("c", config=config_of(manager), evict=True, request_id="once")
    assert manager.load("c", config=config_of(manager), evict=True, request_id="once").id == o.id
    assert len(o.evicted_replica_ids) == 1
    manager.done(o)
    settle(manager)
    assert models(manager) == ["b", "c"]
    operations = manager.rpc.ListOperations(manager.m.ListOperationsRequest()).operations
    unloads = [x for x in operations if x.kind == manager.t.OPERATION_KIND_UNLOAD]
    gone = max(unloads, key=lambda x: x.created_unix_ns)  # the evicted version has its own receipt
    assert (gone.model, gone.state) == ("a", manager.t.OPERATION_STATE_DONE) and sum(m.before_bytes for m in gone.result.memory) > 0, gone
    assert all(m.after_bytes - m.expected_bytes < 1 << 20 for m in gone.result.memory), gone.result

    # the policy allows neither version to go
    fails(C.RESOURCE_EXHAUSTED, manager.load, "d", config=config_of(manager), evict=True, why="DEVICE_MEMORY")
    settle(manager)
    assert models(manager) == ["b", "c"] and len(manager.workers()) == 2


@pytest.mark.parametrize("restarted", [None, "manager", "keeper"])
def test_one_that_is_woken_counts_with_all_that_it_will_take_before_it_says_so(manager, restarted):
    """Symptom: a plan said "fits" beside a waking version. That version counted with its weights alone until its
    worker's next report. After a restart of the parked worker, the plan used the draining worker's own size for the
    serving replica."""
    if sanitized():
        pytest.skip("what a keeper has in memory is mostly the sanitizer's")
    budgeted(manager, 260_000_000)
    for name in ("a", "b"):
        manager.done(manager.load(name, config=config_of(manager)))

    def plan():
        return manager.rpc.LoadModelVersion(manager.m.LoadModelVersionRequest(model="c", validate_only=True, config=config_of(manager))).plan
    missing = plan().devices[0].missing_bytes
    assert missing > 40_000_000
    manager.done(park(manager, "b"))
    assert plan().fits
    if restarted == "manager":
        manager.kill()
        budget = ["--memory-budget", "260000000"]
        manager.up(*budget, worker=BIN / "sluice-worker")
        settle(manager)
        manager.wait(lambda: plan().promised_bytes > 40_000_000, 5, "the other has told what it takes")
    if restarted == "keeper":
        (keeper,) = manager.replicas(model="b")
        manager.done(manager.rpc.RestartReplica(manager.m.RestartReplicaRequest(replica_id=keeper.id)).operation)
    (keeper,) = manager.replicas(model="b")
    os.kill(keeper.pid, signal.SIGSTOP)  # a stopped parked worker sends no report
    try:
        o = wake(manager, "b")
        manager.wait(lambda: manager.replicas(model="b")[0].state == manager.t.REPLICA_STATE_LOADING, 5, "it is told to serve")
        said = plan()
        assert not said.fits and abs(said.devices[0].missing_bytes - missing) < 16 << 20, (said, missing)
    finally:
        os.kill(keeper.pid, signal.SIGCONT)
    manager.done(o)
    assert [(r.pid, r.state) for r in manager.replicas(model="b")] == [(keeper.pid, manager.t.REPLICA_STATE_READY)]
    assert abs(plan().devices[0].missing_bytes - missing) < 16 << 20


def test_one_that_waits_for_its_turn_to_be_woken_counts_in_plans(manager):
    """Wakes are sent one after the other. Symptom: a plan said "fits" until the second wake was sent."""
    budgeted(manager, 400_000_000)
    for name in ("a", "b"):
        manager.done(manager.load(name, config=config_of(manager)))
    missing = plan_of(manager, "c", 2).devices[0].missing_bytes
    assert missing > 0
    keepers = []
    for name in ("a", "b"):
        manager.done(park(manager, name))
        keepers += [r.pid for r in manager.replicas(model=name)]
    assert plan_of(manager, "c", 2).fits
    os.kill(keepers[0], signal.SIGSTOP)  # the stopped worker sends no report, and the other wake waits
    try:
        first = wake(manager, "a")
        manager.wait(lambda: manager.replicas(model="a")[0].state == manager.t.REPLICA_STATE_LOADING, 5, "it is told to serve")
        second = wake(manager, "b")
        said = plan_of(manager, "c", 2)
        assert manager.replicas(model="b")[0].state == manager.t.REPLICA_STATE_PARKED
        assert not said.fits and abs(said.devices[0].missing_bytes - missing) < 16 << 20, (said, missing)
    finally:
        os.kill(keepers[0], signal.SIGCONT)
    manager.done(first)
    manager.done(second)
    assert abs(plan_of(manager, "c", 2).devices[0].missing_bytes - missing) < 16 << 20


@pytest.mark.skipif(sanitized(), reason="sanitizers have memory of their own")
@pytest.mark.parametrize("how", ["asked", "on demand"])
def test_a_wake_beyond_the_budget_is_refused_and_it_stays_parked(manager, how):
    """Symptom: the plan said that the wake does not fit, but the manager woke the version. The kept weights of a waking
    replica counted for nothing."""
    budgeted(manager, 260_000_000)
    for name in ("a", "b"):
        manager.done(manager.load(name, config=config_of(manager, wake_on_demand=how == "on demand")))
    manager.done(park(manager, "b"))
    (keeper,) = manager.replicas(model="b")
    manager.done(manager.load("c", config=config_of(manager)))
    if how == "asked":
        told = fails(C.RESOURCE_EXHAUSTED, wake, manager, "b", why="DEVICE_MEMORY")
    else:
        routing = manager.stubs.routing_grpc.RoutingStub(manager.channel)
        told = fails(C.RESOURCE_EXHAUSTED, routing.WakeVersion, manager.stubs.routing.WakeVersionRequest(model="b", version="1"), why="DEVICE_MEMORY")
    assert names(told, "memory_budget"), told
    assert [(r.pid, r.state) for r in manager.replicas(model="b")] == [(keeper.pid, manager.t.REPLICA_STATE_PARKED)]
    manager.done(manager.unload("c"))
    manager.done(wake(manager, "b"))
    assert manager.replicas(model="b")[0].pid == keeper.pid and models(manager) == ["a", "b"]


@pytest.mark.skipif(sanitized(), reason="sanitizers have memory of their own")
def test_the_weights_that_are_kept_count_as_it_is_woken(manager):
    """Symptom: the kept weights were already in memory and counted for nothing. After the wake the versions exceeded
    the budget by these weights."""
    budgeted(manager, 230 << 20)
    shutil.copy(model_path(), manager.models / "s")
    manager.register("s", version="1")
    manager.done(manager.load("s", config=manager.t.ModelConfig(kv_tokens=512, n_threads=1)))
    serving = manager.replicas(model="s")[0]
    manager.done(park(manager, "s"))
    manager.done(manager.load("a", config=config_of(manager)))  # fits beside the kept weights of 90 MB
    assert names(fails(C.RESOURCE_EXHAUSTED, wake, manager, "s", why="DEVICE_MEMORY"), "memory_budget")
    manager.done(manager.unload("a"))
    manager.done(wake(manager, "s"))
    assert serving.id == manager.replicas(model="s")[0].id and models(manager) == ["s"]


def test_what_one_that_crashed_comes_back_to_is_not_given_away(manager):
    """Symptom: a crashed replica counted for nothing during its back-off. Another version took the room, and both
    exceeded the budget or the replica failed for good."""
    budgeted(manager, 260_000_000, "--restart-backoff-initial", "3s", "--restart-backoff-max", "3s")
    for name in ("a", "b"):
        manager.done(manager.load(name, config=config_of(manager)))
    (victim,) = manager.replicas(model="b")
    os.kill(victim.pid, signal.SIGKILL)
    manager.wait(lambda: manager.replicas(model="b")[0].state == manager.t.REPLICA_STATE_PENDING, 5, "it waits for its start")
    assert not plan_of(manager, "c").fits
    o = manager.end(manager.load("c", config=config_of(manager)))
    assert manager.replicas(model="b")[0].state == manager.t.REPLICA_STATE_PENDING, "void: it is back already"
    assert o.state == manager.t.OPERATION_STATE_FAILED and names(o.error.message, "memory_budget"), o
    manager.wait(lambda: models(manager) == ["a", "b"], 20, "it is back")
    assert len(manager.workers()) == 2


def test_the_one_that_served_last_stays(manager):
    """If either of two versions may be evicted, the version with the latest request stays, whichever was loaded first.
    A serving version is no candidate."""
    budgeted(manager, 260_000_000)
    for name in ("a", "b"):
        manager.done(manager.load(name, config=config_of(manager, evictable=True)))
    replica = next(r for r in manager.replicas() if r.model == "a")
    worker = manager.stubs.worker
    path = f"unix:{manager.state}/run/{replica.socket}"
    with grpc.insecure_channel(path) as channel:
        ask(worker, manager.stubs, channel, replica)
    # If both must go, both are idle by now. The version idle for longer goes first, and goes alone where that is
    # enough.
    manager.wait(lambda: len(plan_of(manager, "c", 2).evictions) == 2, 15, "both are idle")
    assert [e.model for e in plan_of(manager, "c", 2).evictions] == ["b", "a"]
    assert [e.model for e in plan_of(manager, "c").evictions] == ["b"]
    manager.done(manager.load("c", config=config_of(manager), evict=True))
    settle(manager)
    assert models(manager) == ["a", "c"]


def plan_of(manager, name, times=1):
    config = manager.t.ModelConfig(kv_tokens=KV_TOKENS * times, n_threads=1)
    return manager.rpc.LoadModelVersion(manager.m.LoadModelVersionRequest(model=name, validate_only=True, config=config)).plan


def ask(worker, stubs, channel, replica):
    """Returns the ids that answer one request, over the stream that a server would use."""
    import queue
    frames = queue.Queue()
    frames.put(worker.ServeRequest(hello=worker.Hello(protocol_min=1, protocol_max=1, server_id="t", expected_epoch=replica.epoch)))
    frames.put(worker.ServeRequest(submit=worker.Submit(id=1, request=stubs.inference.GenerateRequest(
        model=replica.model, text="ab", stopping=stubs.inference.Stopping(max_tokens=4, ignore_eos=True)), version="1", seed=1)))
    ids = []
    for response in stubs.worker_grpc.WorkerStub(channel).Serve(iter(frames.get, None), timeout=patience(20)):
        ids += [id for item in response.step.items for id in item.token_ids]
        if any(item.HasField("finished") for item in response.step.items):
            frames.put(None)
            return ids
    raise AssertionError("no answer")
