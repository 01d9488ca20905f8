"""A manager that starts where nothing can be written: it reads, adopts and serves routes, refuses changes, and is well again by itself."""
import contextlib
import os
import resource
import signal
import sqlite3
import subprocess
import threading

from conftest import BIN
from manager_program import C, FAST, fails, manager  # noqa: F401 (a fixture)


@contextlib.contextmanager
def small_disk(folder):
    """A file system of 2 MiB at `folder`; yields whether this machine lets us mount one."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=0700", "tmpfs", folder], capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", folder], check=True)


def adopts_and_serves_on_a_full_disk(manager, start, make_room, before):
    """A manager that was started where nothing can be written: reads, adoption and routes; no change; and all is well once there is room."""
    start()
    manager.connect()
    status = manager.status()
    assert status.store_reason == "STATE_STORE_FULL" and status.n_ready_replicas == 1
    assert [(r.pid, r.adopted, r.epoch) for r in manager.replicas()] == [(before, True, 1)] and manager.workers() == [before]
    routing = manager.stubs.routing_grpc.RoutingStub(manager.channel)
    watch = routing.WatchRoutes(manager.stubs.routing.WatchRoutesRequest())
    first = next(watch)
    assert [r.model for r in first.routes] == ["a"] and first.manager_epoch == status.manager_epoch
    watch.cancel()
    fails(C.RESOURCE_EXHAUSTED, manager.register, "d", "a", why="STATE_STORE_FULL")
    fails(C.RESOURCE_EXHAUSTED, manager.unload, "a", why="STATE_STORE_FULL")
    os.kill(before, signal.SIGKILL)  # it is started again all the same
    manager.wait(lambda: manager.status().n_ready_replicas == 1 and manager.replicas()[0].epoch == 2, 5, "it is back")
    (after,) = manager.workers()
    make_room()
    manager.wait(lambda: manager.status().store_reason == "", 5, "there is room again")
    assert manager.status().manager_epoch == status.manager_epoch
    manager.register("c", "a")
    assert manager.term() == 0
    with sqlite3.connect(manager.state / "sluice.db") as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert db.execute("SELECT value FROM meta WHERE name = 'manager_epoch'").fetchone() == (status.manager_epoch,)
        assert db.execute("SELECT epoch, pid FROM replica").fetchall() == [(2, after)]
    db.close()


def loaded_once(manager):
    manager.up()
    manager.script("a")
    manager.register("a")
    manager.done(manager.load("a"))
    (before,) = manager.workers()
    return before


def test_a_manager_starts_where_no_file_may_grow(manager):
    before = loaded_once(manager)
    epoch = manager.status().manager_epoch
    assert manager.term() == 0

    def start():  # its log is a pipe: what it says must not need the disk
        manager.process = subprocess.Popen(
            ["bash", "-c", 'ulimit -S -f 0; exec "$@"', "-", BIN / "sluice-manager", "--state-dir", manager.state, "--worker", BIN / "fake_worker",
             "--model-root", manager.models, *FAST], stderr=subprocess.PIPE)
        threading.Thread(target=manager.process.stderr.read, daemon=True).start()

    none = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    adopts_and_serves_on_a_full_disk(manager, start, lambda: resource.prlimit(manager.process.pid, resource.RLIMIT_FSIZE, none), before)
    manager.up()
    assert manager.status().manager_epoch == epoch + 2


def test_a_manager_that_was_killed_on_a_full_disk_starts_there_again(manager):
    """The log of the one that was killed lies there, and there is no room for another."""
    with small_disk(manager.state) as mounted:
        if not mounted:  # only root can, and not in every container; the test above goes everywhere
            return
        before = loaded_once(manager)
        ballast = manager.state / "ballast"

        def fill():
            with open(ballast, "ab", buffering=0) as file:
                for size in (65536, 4096, 512):
                    with contextlib.suppress(OSError):
                        while file.write(b"x" * size):
                            pass

        manager.kill()
        assert (manager.state / "sluice.db-wal").stat().st_size > 0
        fill()
        generations = []
        for _ in range(2):  # killed again before anything could be written down
            manager.up()
            table = next(manager.stubs.routing_grpc.RoutingStub(manager.channel).WatchRoutes(manager.stubs.routing.WatchRoutesRequest()))
            assert [r.model for r in table.routes] == ["a"]
            generations.append((table.manager_epoch, table.generation))
            manager.kill()
        adopts_and_serves_on_a_full_disk(manager, manager.start, ballast.unlink, before)
        assert generations[0][0] == generations[1][0] and generations[0][1] < generations[1][1]
        manager.clean()
