"""A manager starts on a full disk. The manager reads, adopts workers and serves routes, refuses changes, and recovers
on its own."""
import contextlib
import os
import re
import resource
import signal
import sqlite3
import subprocess
import threading
import urllib.request

import pytest

from conftest import BIN, free_port, names, patience
from log_events import KEY_REVOKED_UNSAVED, UNSAVED_ROWS_LOST, logged
from manager_program import C, FAST, fails, manager  # noqa: F401 (a fixture)
from test_keys import create
from test_management import SERVICE, answer, cli


@contextlib.contextmanager
def small_disk(folder):
    """A file system of 2 MiB at `folder`. Yields true if this machine allows the mount."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=0700", "tmpfs", folder], capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", folder], check=True)


def adopts_and_serves_on_a_full_disk(manager, start, make_room, before):
    """Starts the manager on a full disk: reads, adoption and routes work, changes are refused. The manager recovers
    when there is room."""
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
    os.kill(before, signal.SIGKILL)  # the manager restarts the worker without a write to disk
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


def start_where_no_file_may_grow(manager, *args):
    """The log is a pipe, because log lines must not need the disk. manager.said collects them."""
    manager.process = subprocess.Popen(
        ["bash", "-c", 'ulimit -S -f 0; exec "$@"', "-", BIN / "sluice-manager", "--state-dir", manager.state, "--worker", BIN / "fake_worker",
         "--model-root", manager.models, *FAST, *args], stderr=subprocess.PIPE)
    manager.said = []
    pipe = manager.process.stderr
    threading.Thread(target=lambda: manager.said.extend(line.decode() for line in pipe), daemon=True).start()


def let_files_grow(manager):
    resource.prlimit(manager.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def first_start(manager, *prefix):
    return subprocess.run([*prefix, BIN / "sluice-manager", "--state-dir", manager.state, "--worker", BIN / "fake_worker", "--metrics", ""],
                          capture_output=True, text=True, timeout=patience(30))


def test_a_first_start_on_a_full_disk_says_so_and_leaves_nothing(manager):
    """Symptom: the error named a change of the schema, and half a database took the little room there was."""
    with small_disk(manager.state) as mounted:
        if not mounted:
            pytest.skip("only root mounts a small disk")
        filler = manager.state / "filler"
        for n_kib in (12, 72, 160):  # room for no file, for the first pages only, for the log but not for the database
            with open(filler, "wb") as f:
                f.truncate(0)
                os.posix_fallocate(f.fileno(), 0, (2048 - n_kib) << 10)
            refused = first_start(manager)
            assert refused.returncode == 74, refused
            (said,) = (line for line in refused.stderr.splitlines() if line.startswith("sluice-manager: "))
            assert names(said, manager.state, "1 MiB") and re.search(r"\b\d+ KiB\b", said), said
            assert sorted(p.name for p in manager.state.iterdir()) == ["filler", "run", "sluice.lock"]
        filler.unlink()
        manager.up()
        manager.register(manager.script("a"))
        assert manager.term() == 0


def test_a_first_start_says_where_not_the_disk_is_what_is_full(manager):
    refused = first_start(manager, "bash", "-c", 'ulimit -S -f 40; exec "$@"', "-")
    assert refused.returncode == 74 and names(refused.stderr, "ulimit -f"), refused
    assert sorted(p.name for p in manager.state.iterdir()) == ["run", "sluice.lock"]
    manager.up()


def test_a_manager_starts_where_no_file_may_grow(manager):
    before = loaded_once(manager)
    epoch = manager.status().manager_epoch
    assert manager.term() == 0

    adopts_and_serves_on_a_full_disk(manager, lambda: start_where_no_file_may_grow(manager), lambda: let_files_grow(manager), before)
    manager.up()
    assert manager.status().manager_epoch == epoch + 2


def test_a_stolen_key_is_refused_at_once_where_nothing_can_be_written(manager):
    """Symptom: the revoked key stayed valid until there was room. The answer's claim must hold: now, after a restart
    that forgets the revocation, and after the write to disk."""
    manager.up()
    made = {name: create(manager, name, role).secret for name, role in (("thief", 2), ("other", 3))}
    revoke = manager.rpc.RevokeApiKey
    assert not revoke(manager.m.RevokeApiKeyRequest(name=create(manager, "idle").key.name)).in_memory_only
    assert manager.term() == 0

    def state(name):
        return answer(manager.channel, SERVICE + "GetStatus", made[name])[:2]

    good, refused = C.OK, (C.UNAUTHENTICATED, "API_KEY_INVALID")
    port = free_port()
    socket = ["--manager", f"{manager.state}/run/manager.sock"]
    for again in (False, True):
        start_where_no_file_may_grow(manager, "--metrics", f"127.0.0.1:{port}")
        manager.connect()
        assert manager.status().store_reason == "STATE_STORE_FULL"
        # the second time too: a restart forgets a revocation that is only in memory, as the answer said
        assert state("thief")[0] == state("other")[0] == good
        fails(C.RESOURCE_EXHAUSTED, create, manager, "new", why="STATE_STORE_FULL")
        one = manager.rpc.RevokeApiKey(manager.m.RevokeApiKeyRequest(name="thief", request_id=f"r{again}"))
        assert one.in_memory_only and one.key.revoked_unix_ns > 0 and one.key.revoked_by.startswith("uid:")
        assert state("thief") == refused and state("other")[0] == good
        assert manager.rpc.RevokeApiKey(manager.m.RevokeApiKeyRequest(name="thief", request_id=f"r{again}")) == one
        fails(C.NOT_FOUND, manager.rpc.RevokeApiKey, manager.m.RevokeApiKeyRequest(name="thief"), why="KEY_NOT_FOUND")
        code, out, err = cli(manager, "keys", "revoke", "other", "--request-id", "r-cli", *socket)
        assert code == 1 and names(out, "other") and names(err, "sluice keys revoke other --request-id r-cli"), (code, out, err)
        assert state("other") == refused and manager.status().store_reason == "STATE_STORE_FULL"
        assert "\nsluice_manager_store_unsaved_rows 2\n" in urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
        manager.wait(lambda: len(logged("".join(manager.said), KEY_REVOKED_UNSAVED)) >= 2, 5, "the log tells")
        if not again:
            assert manager.term() == 0
            manager.wait(lambda: logged("".join(manager.said), UNSAVED_ROWS_LOST, rows=2), 5, "the log tells")
    let_files_grow(manager)
    manager.wait(lambda: manager.status().store_reason == "", 5, "there is room again")
    assert state("thief") == state("other") == refused
    manager.kill()  # from here on the revocation is on disk
    manager.up()
    assert state("thief") == state("other") == refused
    now = manager.rpc.RevokeApiKey(manager.m.RevokeApiKeyRequest(name="thief", request_id="rTrue"))
    assert not now.in_memory_only and now.key == one.key
    code, out, err = cli(manager, "keys", "revoke", "other", "--request-id", "r-cli", *socket)
    assert code == 0 and names(out, "other") and err == "", (code, out, err)
    create(manager, "thief")  # the name is free, and a repeat of the old request revokes no other key
    assert manager.rpc.RevokeApiKey(manager.m.RevokeApiKeyRequest(name="thief", request_id="rTrue")) == now
    told = []
    for batch in manager.rpc.WatchEvents(manager.m.WatchEventsRequest(from_seq=1), timeout=patience(10)):
        told += [(e.attributes["request_id"], e.attributes["caller"], e.attributes["after"].split(":")[0]) for e in batch.events if e.type == "audit.RevokeApiKey"]
        if len(told) >= 3:
            break
    assert sorted(told[1:]) == [("r-cli", one.key.revoked_by, "api_key k2"), ("rTrue", one.key.revoked_by, "api_key k1")], told


def test_a_manager_that_was_killed_on_a_full_disk_starts_there_again(manager):
    """The log of the killed manager remains on the disk, and there is no room for another log."""
    with small_disk(manager.state) as mounted:
        if not mounted:  # only root can mount, and not in every container; the test above runs everywhere
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
        for _ in range(2):  # killed again before the disk could take a record
            manager.up()
            table = next(manager.stubs.routing_grpc.RoutingStub(manager.channel).WatchRoutes(manager.stubs.routing.WatchRoutesRequest()))
            assert [r.model for r in table.routes] == ["a"]
            generations.append((table.manager_epoch, table.generation))
            manager.kill()
        adopts_and_serves_on_a_full_disk(manager, manager.start, ballast.unlink, before)
        assert generations[0][0] == generations[1][0] and generations[0][1] < generations[1][1]
        manager.clean()
