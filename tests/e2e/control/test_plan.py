"""A load does what its plan says, and a cancelled load frees its memory: validate_only, cancelled loads, repeated load
and unload."""
import json
import os
import signal

import psutil

from conftest import BIN, ROOT, model_path, names, patience, sanitized
from manager_program import C, fails, manager, settle  # noqa: F401 (fixtures)
from test_management import cli

TINY = ROOT / "tests/golden/tiny/q8_0.gguf"
CYCLES = 100 if os.environ.get("SLUICE_LONG") else 12
WARM = 100 if CYCLES == 100 else 4  # by then the kept history of stopped replicas is full


def up(manager, file):
    manager.up("--kill-grace", "5s", worker=BIN / "sluice-worker", env={"SLUICE_MODEL_ROOT": ""})
    (manager.models / "a").write_bytes(open(file, "rb").read())
    manager.register("a", version="1")


def test_a_load_takes_what_its_plan_says(manager):
    """The difference is at most 2 %. This also holds for the second replica, which shares the weights. This also holds
    where memory decides how many tokens the cache holds."""
    up(manager, model_path())
    config = manager.t.ModelConfig(kv_tokens=4096, n_threads=1, max_batch_tokens=64)
    request = manager.m.LoadModelVersionRequest(model="a", n_replicas=2, config=config)
    request.validate_only = True
    plan = manager.rpc.LoadModelVersion(request).plan
    assert plan.fits and not manager.workers() and not manager.replicas()
    said = sum(d.weight_bytes + d.kv_bytes + d.workspace_bytes for d in plan.devices)
    request.validate_only = False
    o = manager.end(manager.rpc.LoadModelVersion(request).operation, timeout_ms=60000)
    assert o.state == manager.t.OPERATION_STATE_DONE, o
    rows = o.result.memory
    took = sum(r.weight_bytes + r.kv_bytes + r.workspace_bytes for r in rows)
    assert abs(took - said) <= 0.02 * said, (took, said)
    shared = sum(d.weight_bytes for d in plan.devices)
    if not sanitized():  # the kernel's own count of the part allocated at the start
        shmem = psutil.Process(manager.workers()[0]).memory_info().shared
        assert abs(max(r.shared_bytes for r in manager.replicas()) - shared) <= 0.02 * shared and shmem >= 0.98 * shared


def test_a_cache_in_which_no_request_fits_is_refused(manager):
    """Symptom: 4 tokens were silently rounded to one block, and then every chat was refused as too long."""
    up(manager, TINY)
    config = manager.t.ModelConfig(kv_tokens=31, n_threads=1)
    plan = manager.rpc.LoadModelVersion
    text = fails(C.INVALID_ARGUMENT, plan, manager.m.LoadModelVersionRequest(model="a", validate_only=True, config=config))
    assert names(text, "kv_tokens", 31, 32), text
    load = manager.m.LoadModelVersionRequest(model="a", config=config)
    assert names(fails(C.INVALID_ARGUMENT, plan, load), "kv_tokens", 31, 32)
    code, _, err = cli(manager, "load", "a", "--kv-tokens", "4", "--validate-only", "--manager", f"{manager.state}/run/manager.sock")
    assert code == 1 and names(err, "--kv-tokens", 4, 32), err
    config.kv_tokens = 32
    manager.done(manager.load("a", config=config))


def test_an_unload_gives_back_what_its_plan_says(manager):
    """Symptom: weights shared by two replicas were counted twice."""
    up(manager, TINY)
    manager.done(manager.load("a", n_replicas=2, config=manager.t.ModelConfig(kv_tokens=512, n_threads=1)))
    plan = manager.rpc.UnloadModelVersion(manager.m.UnloadModelVersionRequest(model="a", validate_only=True)).plan
    shared = {r.shared_id: r.shared_bytes for r in manager.replicas()}
    (weights,) = shared.values()
    assert plan.n_replicas == len(plan.devices) == 2 == len(manager.workers())
    assert abs(sum(d.weight_bytes for d in plan.devices) - weights) <= 0.02 * weights, (plan, weights)
    (row,) = manager.done(manager.unload("a", grace_ms=0)).result.memory
    said = sum(d.weight_bytes + d.kv_bytes + d.workspace_bytes for d in plan.devices)
    planned = manager.rpc.LoadModelVersion(manager.m.LoadModelVersionRequest(
        model="a", n_replicas=2, validate_only=True, config=manager.t.ModelConfig(kv_tokens=512, n_threads=1))).plan
    # the size of a load
    assert abs(said - sum(d.weight_bytes + d.kv_bytes + d.workspace_bytes for d in planned.devices)) <= 0.02 * said
    assert row.before_bytes > row.after_bytes == row.expected_bytes == 0


def taken(rows):
    return sum(r.weight_bytes + r.kv_bytes + r.workspace_bytes for r in rows)


def test_an_update_takes_beside_the_old_version_what_its_plan_says(manager):
    """The difference is at most 2 %, also with another configuration and number of replicas. The plan changes nothing,
    and a plan is refused wherever the update would be refused."""
    up(manager, TINY)
    config = manager.t.ModelConfig(kv_tokens=512, n_threads=1)
    manager.register("a", version="2")
    m = manager.m

    def ask(**kwargs):
        return manager.rpc.UpdateModelVersion(m.UpdateModelVersionRequest(
            model="a", version="2", n_replicas=2, config=manager.t.ModelConfig(kv_tokens=2048, n_threads=1), step_ms=50, **kwargs))

    fails(C.FAILED_PRECONDITION, ask, validate_only=True, why="NOT_LOADED")
    manager.done(manager.load("a", version="1", config=config))
    fails(C.ABORTED, ask, validate_only=True, expected_generation=99, why="STALE_GENERATION")
    (old,) = manager.replicas()
    generation = manager.status().generation
    plan = ask(validate_only=True, request_id="u").plan
    assert plan.fits and (plan.model, plan.version, plan.n_replicas) == ("a", "2", 2), plan
    assert [d.device for d in plan.devices] and all(d.device.startswith("cpu") for d in plan.devices)
    assert any(names(note, "version 1", "cpu", "1 replica") for note in plan.notes), plan.notes
    assert [r.id for r in manager.replicas()] == [old.id] and len(manager.workers()) == 1 and manager.status().n_open_operations == 0
    assert manager.status().generation == generation
    o = manager.done(ask(request_id="u").operation)  # a plan takes no request id
    assert sorted(o.replica_ids) == sorted([old.id] + [r.id for r in manager.replicas()]) and len(manager.workers()) == 2
    # the version's own memory
    back = manager.rpc.UnloadModelVersion(m.UnloadModelVersionRequest(model="a", version="2", validate_only=True)).plan
    assert abs(taken(back.devices) - taken(plan.devices)) <= 0.02 * taken(plan.devices) > 0, (plan, back)
    fails(C.FAILED_PRECONDITION, ask, validate_only=True, why="NOT_LOADED")  # no other version is loaded any more


def test_what_a_call_is_refused_for_its_plan_is_refused_for(manager):
    """Symptom: a plan said "fits" for a load that was then refused. The version was loaded differently, or an operation
    was under way."""
    manager.up("--max-replicas", "3")
    manager.script("a")
    manager.script("slow", "load_ms=60000")
    m, t, rpc = manager.m, manager.t, manager.rpc
    calls = {"load": (rpc.LoadModelVersion, m.LoadModelVersionRequest), "unload": (rpc.UnloadModelVersion, m.UnloadModelVersionRequest),
             "scale": (rpc.ScaleModelVersion, m.ScaleModelVersionRequest), "park": (rpc.ParkModelVersion, m.ParkModelVersionRequest),
             "wake": (rpc.WakeModelVersion, m.WakeModelVersionRequest), "update": (rpc.UpdateModelVersion, m.UpdateModelVersionRequest)}

    def refused(what, code, why, **kwargs):
        call, request = calls[what]
        texts = [fails(code, call, request(validate_only=planned, **kwargs), why=why) for planned in (True, False)]
        assert texts[0] == texts[1], (what, texts)
        return texts[0]

    manager.register("a", version="1")
    manager.register("a", version="2")
    manager.done(manager.load("a", version="1", n_replicas=2, config=t.ModelConfig(kv_tokens=512, n_threads=1)))
    text = refused("load", C.FAILED_PRECONDITION, "ALREADY_LOADED", model="a", version="1", n_replicas=2, tp=2,
                   config=t.ModelConfig(kv_tokens=4096, n_threads=1, kernels="f32"))
    assert names(text, "tp", 1, 2, "config.kv_tokens", 512, 4096, "config.kernels", '"f32"'), text
    assert "n_threads" not in text, text
    text = refused("load", C.FAILED_PRECONDITION, "ALREADY_LOADED", model="a", version="1", config=t.ModelConfig(kv_tokens=512, n_threads=1))
    assert names(text, 2, 1), text
    said, there = ["--manager", f"{manager.state}/run/manager.sock"], ["--kv-tokens", "512", "--threads", "1"]
    code, _, err = cli(manager, "load", "a", "--version", "1", "--kv-tokens", "4096", "--validate-only", *said)
    assert code and names(err, "--kv-tokens", 512, 4096, "--threads", 1, "sluice unload a --version 1"), err
    code, _, err = cli(manager, "load", "a", "--version", "1", "--validate-only", *there, *said)
    assert code and names(err, "sluice scale a N --version 1") and "sluice unload" not in err, err
    for what in ["scale", "load"]:
        more = {"config": t.ModelConfig(kv_tokens=512, n_threads=1)} if what == "load" else {}
        refused(what, C.RESOURCE_EXHAUSTED, "TOO_MANY_REPLICAS", model="a", version="1", n_replicas=4, **more)
    refused("update", C.RESOURCE_EXHAUSTED, "TOO_MANY_REPLICAS", model="a", version="2")
    manager.register("slow", version="1")
    o = manager.load("slow")
    for what, more in {"load": {}, "scale": {"n_replicas": 2}, "park": {}, "wake": {}}.items():
        assert o.id in refused(what, C.FAILED_PRECONDITION, "OPERATION_IN_PROGRESS", model="slow", **more)
    rpc.CancelOperation(m.CancelOperationRequest(id=o.id))
    manager.end(o)
    rpc.SetVersionPolicy(m.SetVersionPolicyRequest(model="a", policy=t.VersionPolicy(specific=t.SpecificVersions(versions=["1"]))))
    refused("unload", C.FAILED_PRECONDITION, "VERSION_POLICY", model="a", version="1")
    refused("load", C.FAILED_PRECONDITION, "VERSION_POLICY", model="a", version="2")


def test_an_update_that_does_not_fit_beside_the_old_version_is_told_before(manager):
    up(manager, TINY)
    manager.register("a", version="2")
    manager.done(manager.load("a", version="1", config=manager.t.ModelConfig(kv_tokens=512, n_threads=1)))
    ask = ["update", "a", "--to", "2", "--manager", f"{manager.state}/run/manager.sock", "--validate-only"]
    code, out, err = cli(manager, *ask)
    assert code == 0 and names(out, "a version 2", "version 1", "cpu"), (code, out, err)
    assert manager.term() == 0
    manager.up("--kill-grace", "5s", "--memory-budget", "100K", worker=BIN / "sluice-worker", env={"SLUICE_MODEL_ROOT": ""})
    code, out, err = cli(manager, *ask, "--json")
    plan = json.loads(out)["plan"]
    assert code == 1 and not plan["fits"] and int(plan["devices"][0]["missing_bytes"]) > 0, (code, out, err)
    assert names(cli(manager, *ask)[1], "memory_budget") and len(manager.workers()) == 1


def test_a_load_tells_bytes_of_each_rank_and_how_long_it_still_takes(manager):
    """SIGSTOP holds the load half way, so that the test can read its progress."""
    up(manager, model_path())
    operation = manager.load("a", tp=2, config=manager.t.ModelConfig(kv_tokens=4096, n_threads=2))
    held, seen = [], []
    for o in (r.operation for r in manager.rpc.WatchOperation(manager.m.WatchOperationRequest(id=operation.id), timeout=patience(60))):
        seen.append(o)
        if not held and o.eta_ms and 0 < o.bytes_done < o.bytes_total:
            held = manager.workers()
            os.kill(held[0], signal.SIGSTOP)
            looked = manager.rpc.GetOperation(manager.m.GetOperationRequest(id=operation.id)).operation
            os.kill(held[0], signal.SIGCONT)
            assert looked.eta_ms > 0 and looked.stage == "pack" and looked.state == manager.t.OPERATION_STATE_RUNNING, looked
            seen.append(looked)
    assert held, "void: it was never seen half way"
    assert seen[-1].state == manager.t.OPERATION_STATE_DONE and seen[-1].eta_ms == 0
    for o in seen:
        assert sum(r.progress.bytes_done for r in o.ranks) == o.bytes_done and sum(r.progress.bytes_total for r in o.ranks) == o.bytes_total
    (replica,) = manager.replicas()
    ranks = [(r.replica_id, r.progress.rank) for r in seen[-1].ranks]
    assert ranks == [(replica.id, 0), (replica.id, 1)]
    assert all(r.progress.bytes_done == r.progress.bytes_total > 40e6 for r in seen[-1].ranks), seen[-1].ranks


def test_a_cancelled_load_gives_everything_back(manager):
    manager.up()
    manager.script("a", "load_ms=20000")
    manager.register("a", version="1")
    operation = manager.load("a", n_replicas=2)
    manager.wait(lambda: manager.workers(), 10, "it loads")
    manager.rpc.CancelOperation(manager.m.CancelOperationRequest(id=operation.id))
    o = manager.end(operation)
    assert o.state == manager.t.OPERATION_STATE_CANCELLED
    settle(manager)
    assert not manager.workers() and not manager.replicas()
    assert all(r.after_bytes == r.expected_bytes == 0 for r in o.result.memory), o.result
    assert not weights(manager)  # the manager holds no weights either


def weights(manager):
    folder = f"/proc/{manager.process.pid}/fd"
    return [f for f in os.listdir(folder) if "sluice-weights" in os.readlink(f"{folder}/{f}")]


def private(pid):
    text = open(f"/proc/{pid}/status").read()
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith("RssAnon"))) * 1024


def test_loads_and_unloads_over_and_over_leave_nothing_behind(manager):
    """With SLUICE_LONG=1 100 rounds: the manager grows by less than 1 MiB, and each receipt says that all memory is
    free."""
    up(manager, TINY)
    config = manager.t.ModelConfig(kv_tokens=512, n_threads=1)
    settled = None
    for i in range(WARM + CYCLES):
        if i == WARM:
            settled = private(manager.process.pid)
            fds = len(os.listdir(f"/proc/{manager.process.pid}/fd"))
        assert manager.end(manager.load("a", config=config), timeout_ms=30000).state == manager.t.OPERATION_STATE_DONE
        o = manager.done(manager.unload("a", grace_ms=0))
        (row,) = o.result.memory
        assert row.before_bytes > 0 and row.after_bytes == row.expected_bytes == 0, o.result
        assert not manager.workers()
    manager.wait(lambda: not weights(manager), 5, "no packed weights are held")
    manager.wait(lambda: len(os.listdir(f"/proc/{manager.process.pid}/fd")) <= fds, 5, "no descriptor stays open")
    if not sanitized():
        assert private(manager.process.pid) - settled < 1 << 20, (settled, private(manager.process.pid))
