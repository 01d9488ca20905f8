"""A load of several replicas starts all of them or none. Each replica alone would fit in the memory budget, so the
manager must plan them together."""
import os
import shutil
import signal

import pytest

from conftest import BIN, model_path, names, sanitized
from manager_program import C, fails, manager  # noqa: F401 (fixture)
from test_park import budgeted, config_of, models

pytestmark = pytest.mark.skipif(sanitized(), reason="sanitizers have memory of their own")


def load(manager, n, **kwargs):  # noqa: F811
    request = manager.m.LoadModelVersionRequest(model="a", version="1", n_replicas=n, config=config_of(manager), **kwargs)
    return manager.rpc.LoadModelVersion(request)


def scale(manager, n, **kwargs):  # noqa: F811
    return manager.rpc.ScaleModelVersion(manager.m.ScaleModelVersionRequest(model="a", version="1", n_replicas=n, **kwargs))


def test_a_load_of_several_that_do_not_all_fit_loads_none(manager):  # noqa: F811
    budgeted(manager, 260_000_000)
    assert not load(manager, 4, validate_only=True).plan.fits and load(manager, 2, validate_only=True).plan.fits
    said = fails(C.RESOURCE_EXHAUSTED, load, manager, 4, request_id="once", why="DEVICE_MEMORY")
    assert names(said, "a/1"), said
    assert not manager.replicas() and not manager.workers()
    fails(C.RESOURCE_EXHAUSTED, load, manager, 4, request_id="once", why="DEVICE_MEMORY")
    assert not manager.replicas()
    manager.done(load(manager, 2, request_id="twice").operation)
    manager.done(load(manager, 2, request_id="twice").operation)
    assert models(manager) == ["a", "a"]


def test_a_version_that_cannot_grow_so_far_stays_as_it_is(manager):  # noqa: F811
    budgeted(manager, 260_000_000)
    manager.done(load(manager, 1).operation)
    (pid,) = manager.workers()
    fails(C.RESOURCE_EXHAUSTED, scale, manager, 6, why="DEVICE_MEMORY")
    assert manager.workers() == [pid] and len(manager.replicas()) == 1
    assert manager.rpc.GetModel(manager.m.GetModelRequest(model="a")).model.versions[0].deployments[0].n_replicas == 1
    manager.done(scale(manager, 2).operation)
    assert models(manager) == ["a", "a"]


def test_those_that_share_their_weights_all_come_back_after_all_were_killed(manager):  # noqa: F811
    """The memory that each replica held when it last served includes the weights. The replicas share these weights, so
    they count once."""
    manager.up(worker=BIN / "sluice-worker")
    shutil.copy(model_path(), manager.models / "s")
    manager.register("s", version="1")
    request = manager.m.LoadModelVersionRequest(model="s", version="1", n_replicas=2, config=config_of(manager))
    manager.done(manager.rpc.LoadModelVersion(request).operation)
    (one, two) = manager.replicas()
    assert one.shared_id and one.shared_id == two.shared_id
    (memory,) = one.memory
    budget = 2 * memory.expected_bytes - memory.weight_bytes + (24 << 20)
    assert memory.weight_bytes > 64 << 20
    gone = manager.workers()
    manager.kill()
    for pid in gone:
        os.kill(pid, signal.SIGKILL)
    manager.up("--memory-budget", str(budget), worker=BIN / "sluice-worker")
    manager.wait(lambda: [r.pid not in gone and r.state == manager.t.REPLICA_STATE_READY for r in manager.replicas()] == [True, True], 60,
                 "both serve again")
