"""What the manager tells of its operations and events, and to whom: the stage at which one failed, readers that do not read,
memory that is not what it should be. Fake workers first (tests/support/fake_worker.c), the real ones at the end."""
import json
import os
import subprocess

import pytest

from conftest import BIN
from test_manager import C, Manager, fails, manager  # noqa: F401 (fixtures)
from test_scale import cancel, scale, watch_events


def cli(manager, *args):
    result = subprocess.run([BIN / "sluice", *args, "--manager", str(manager.state / "run/manager.sock")], capture_output=True,
                            text=True, timeout=30)
    return result.stdout + result.stderr


@pytest.mark.parametrize("script,stage", [
    ("silent crash_ms=20", "start"),
    ("load_ms=1000 fail=8 fail_ms=300", "pack"),
    ("load_ms=2000 fail=8 fail_ms=1900", "warm"),
    ("load_ms=1000 crash_ms=300", "pack"),
])
def test_a_failed_operation_says_at_which_stage(manager, script, stage):
    """It said "done"."""
    manager.up()
    manager.script("a", script)
    manager.register("a")
    failed = manager.end(manager.load("a"))
    assert (failed.state, failed.stage) == (manager.t.OPERATION_STATE_FAILED, stage)
    (event,) = [e for m in first(watch_events(manager, 1), manager.status().last_event_seq) for e in m
                if e.type == "operation.failed"]
    assert event.stage == stage
    assert f"stage      {stage}\n" in cli(manager, "ops", "show", failed.id)
    assert json.loads(cli(manager, "ops", "show", failed.id, "--json"))["operation"]["stage"] == stage
    row = next(line for line in cli(manager, "ops").splitlines() if failed.id in line)
    assert stage in row.split() and "done" not in row.split()
    assert f"at {stage}" in next(line for line in cli(manager, "events", "--from", "1").splitlines() if "operation.failed" in line)
    manager.kill()
    manager.up()
    assert manager.end(failed).stage == stage
    assert next(watch(manager, failed)).operation.stage == stage


def watch(manager, operation):
    return manager.rpc.WatchOperation(manager.m.WatchOperationRequest(id=operation.id), timeout=20)


def first(call, last):
    """The messages' events up to number `last`."""
    for message in call:
        yield message.events
        if message.events[-1].seq >= last:
            call.cancel()
            return


def test_a_failed_scaling_names_the_failed_replicas_stage_and_a_cancelled_one_stop(manager):
    manager.up()
    manager.script("a", "load_ms=30")
    manager.register("a")
    done = manager.done(manager.load("a"))
    assert done.stage == "done"
    manager.script("a", "load_ms=1000 fail=8 fail_ms=400")
    failed = manager.end(scale(manager, "a", 2))
    assert (failed.state, failed.stage) == (manager.t.OPERATION_STATE_FAILED, "pack")
    manager.script("b", "load_ms=20000")
    manager.register("b")
    operation = manager.load("b")
    manager.wait(lambda: manager.workers(), 5, "it loads")
    cancel(manager, operation)
    ended = manager.end(operation)
    assert (ended.state, ended.stage) == (manager.t.OPERATION_STATE_CANCELLED, "stop")
