"""Faults by their numbers in the list of faults, with live streams beside them. Other tests check causes and texts.
Crash loops, full and failing disks, schema changes, damaged databases, second managers, stray processes, ports in
use. Also clock changes, pauses of all programs, SIGTERM while loading, broken settings. Most tests share one
manager, one server and their streams. tests/long.sh faults sets SLUICE_LONG."""
import contextlib
import mmap
import os
import resource
import signal
import sqlite3
import struct
import subprocess
import time
import types

import grpc
import pytest

from conftest import BIN, free_port, keeps, names, patience, stand_still
from echo_load import EchoLoad, Server
from log_events import SETTINGS_NOT_RELOADED, SETTINGS_RELOADED, logged
from manager_program import C, Manager, reason, settle
from test_fault_control import events, live_pids
from test_state_file import damage_pages, make_older

LONG = bool(os.environ.get("SLUICE_LONG"))
STALL_S = 10 if LONG else 1
PAUSE_S = 300 if LONG else 2.5
N, RATE, MAX_TOKENS = (32, 20, 60) if LONG else (4, 40, 20)  # few slow streams, because other tests run beside


def serve(manager, *options, env=None, up=None):
    """Starts a manager, a server, a worker that no fault touches, and clients with streams from that worker."""
    (up or manager.up)()
    manager.script("live", f"load_ms=60 rate={RATE}")
    manager.register("live")
    manager.done(manager.load("live"))
    server = Server(manager, *options, env=env)
    load = EchoLoad(server, manager.stubs, n=N, max_tokens=MAX_TOKENS, timeout=PAUSE_S + 60)
    try:
        return server, load.begin()
    except BaseException:
        clean(manager, server, load)
        raise


def clean(manager, server, load):
    if load:
        load.over.set()
    if server:
        server.stop()
    manager.clean()


@pytest.fixture(scope="module")
def live(tmp_path_factory, stubs):
    manager = Manager(tmp_path_factory.mktemp("b"), stubs)
    config, metrics = manager.folder / "sluice.conf", f"127.0.0.1:{free_port()}"
    config.write_text("[manager]\ndrain_grace = 2s\n[server]\ndrain_grace = 50s\n")

    def up():
        return manager.up("--config", config, "--metrics", metrics)

    server, load = serve(manager, "--config", config, up=up)
    yield types.SimpleNamespace(manager=manager, server=server, load=load, up=up, config=config, metrics=metrics)
    clean(manager, server, load)


@contextlib.contextmanager
def undisturbed(live, n=20):
    """Asserts that tokens come before, during and after the fault, without a wrong token, and that the worker stays the
    same."""
    live.load.more(n)
    workers, whole = live_pids(live.manager), live.load.n_whole
    yield
    live.load.more(n)
    assert live_pids(live.manager) == workers, "the worker of the live streams was restarted"
    assert live.server.process.poll() is None
    live.load.more(MAX_TOKENS * N)  # wait for answers that began before or during the fault
    assert live.load.n_whole >= whole + N // 2


def offline(manager, word, *args):
    return subprocess.run([BIN / "sluice-manager", word, *args, "--state-dir", manager.state], capture_output=True, text=True, timeout=patience(60))


def refused(*command):
    """Runs a program that must end at once, and returns its result."""
    began = time.monotonic()
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=patience(20))
    assert time.monotonic() - began < patience(5), done
    return done


def test_f6_a_version_that_dies_at_its_start_is_given_up_and_others_serve_on(live):
    manager = live.manager
    manager.script("bad", "load_ms=5000 crash_ms=20")
    manager.register("bad")
    with undisturbed(live):
        load = manager.load("bad")
        failed = manager.end(load)
        live.load.more(20)
        assert failed.state == manager.t.OPERATION_STATE_FAILED and failed.error.reason == "CRASH_LOOP", failed
        (replica,) = manager.replicas(model="bad")
        assert (replica.state, replica.reason, replica.epoch) == (manager.t.REPLICA_STATE_FAILED, "CRASH_LOOP", 5)
        assert names(replica.last_error.message, 6) and not replica.memory and not replica.resident_bytes  # SIGABRT
        # The back-off starts at 20 ms (--restart-backoff-initial) and doubles up to 100 ms.
        died = [e.time_unix_ns for e in events(manager, "replica.died", model="bad")]
        starting = [e.time_unix_ns for e in events(manager, "replica.starting", model="bad")]
        assert len(starting) == 5 and len(died) == 4
        for began, ended, ms in zip(starting[1:], died, (20, 40, 80, 100)):
            assert began - ended >= 0.9e6 * ms, (starting, died)
        assert set(manager.workers()) == live_pids(manager)
    manager.done(manager.unload("bad"))


def takes_no_change(manager):
    """Returns true if a full disk refuses a change."""
    try:
        manager.register("small", "a")
    except grpc.RpcError as e:
        return reason(e) == "STATE_STORE_FULL"
    return False


def test_f9_a_full_disk_refuses_changes_and_streams_go_on(live):
    manager = live.manager
    manager.script("a")
    with undisturbed(live):
        size = max((manager.state / f).stat().st_size for f in ("sluice.db", "sluice.db-wal"))
        old = resource.prlimit(manager.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(manager.process.pid, resource.RLIMIT_FSIZE, (size + 20000, old[1]))
        acknowledged = 0
        with pytest.raises(grpc.RpcError) as e:
            for i in range(300):
                manager.register(f"full{i}", "a", labels={"x": "y" * 250})
                acknowledged += 1
        assert e.value.code() == C.RESOURCE_EXHAUSTED and reason(e.value) == "STATE_STORE_FULL"
        # The manager's trial write is smaller than the refused change and may have found room. The new limit leaves no
        # room for that write.
        resource.prlimit(manager.process.pid, resource.RLIMIT_FSIZE, (4096, old[1]))
        manager.wait(lambda: takes_no_change(manager), 5, "the disk is full")
        live.load.more(20)
        assert manager.status().store_reason == "STATE_STORE_FULL" and manager.status().n_ready_replicas == 1
        assert "live" in [m.name for m in manager.rpc.ListModels(manager.m.ListModelsRequest()).models]  # reads still work
        resource.prlimit(manager.process.pid, resource.RLIMIT_FSIZE, old)
        manager.wait(lambda: manager.status().store_reason == "", 5, "there is room again")
        manager.register("after", "a")
        assert manager.term() == 0
        checked = offline(manager, "check")
        live.up()
        assert checked.returncode == 0, checked
        names = {m.name for m in manager.rpc.ListModels(manager.m.ListModelsRequest()).models}
        assert {f"full{i}" for i in range(acknowledged)} | {"after"} <= names  # I1


class Disk:
    """The failing disk of a manager that is started with `env` (tests/support/fault/fail_disk.c)."""

    def __init__(self, folder):
        (folder / "disk").write_bytes(struct.pack("qqq", -1, 0, 0))
        self.memory = mmap.mmap(os.open(folder / "disk", os.O_RDWR), 24)
        self.env = {"LD_PRELOAD": str(BIN / "fail_disk.so"), "SLUICE_TEST_DISK": str(folder / "disk"),
                    "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"}

    def fail(self, nth, more):
        self.memory[:] = struct.pack("qqq", nth, more, 0)

    def well(self):
        """Ends the failures. Returns how many operations have failed."""
        failed = struct.unpack("qqq", self.memory[:])[2]
        self.memory[:] = struct.pack("qqq", -1, 0, 0)
        return failed


@pytest.mark.parametrize("more", [0, 5])
def test_f10_a_change_on_a_disk_that_fails_is_refused_or_done_and_never_both(tmp_path_factory, stubs, more):
    """Each read, write and sync of a registration fails in turn, alone or with all later ones. Beside other tests only
    some of them fail."""
    manager = Manager(tmp_path_factory.mktemp("d"), stubs)
    disk, server, load = Disk(manager.folder), None, None

    def versions(model):
        try:
            return [v.version for v in manager.rpc.GetModel(manager.m.GetModelRequest(model=model)).model.versions]
        except grpc.RpcError as e:
            assert e.code() == C.NOT_FOUND, e
            return []

    try:
        server, load = serve(manager, up=lambda: manager.up(env=disk.env))
        manager.script("a")
        seen, nth = [], 0
        with undisturbed(types.SimpleNamespace(manager=manager, server=server, load=load)):
            while True:
                model, why = f"m{nth}", None
                disk.fail(nth, more)
                try:
                    manager.register(model, "a", request_id=model)
                except grpc.RpcError as e:
                    why = reason(e)
                    assert (e.code(), why) in ((C.UNAVAILABLE, "STATE_STORE_IO"), (C.UNAVAILABLE, "STATE_STORE_UNKNOWN")), e
                n_failed = disk.well()
                assert why == "STATE_STORE_UNKNOWN" or versions(model) == [] + ["1"] * (why is None), (nth, why)
                load.more(4)
                manager.wait(lambda: manager.status().store_reason == "", 10, "it is well by itself")
                # done once: the repeat gives the first answer, or does the change now
                again = manager.register(model, "a", request_id=model)
                assert not again.existed and again.version.version == "1" and versions(model) == ["1"], (nth, why, again)
                seen.append(why)
                if not n_failed:
                    break
                nth += 1 if LONG else 7
            assert len(seen) >= 3 and any(seen) and seen[-1] is None, f"void: {seen}"
            assert len(events(manager, "model.registered")) == 1 + len(seen)
            assert manager.term() == 0
            checked = offline(manager, "check")
            assert checked.returncode == 0, checked
            manager.up()
        print(f"\n{len(seen)} places: {seen}")
        load.stop()
    finally:
        clean(manager, server, load)


def set_version(manager, version):
    with contextlib.closing(sqlite3.connect(manager.state / "sluice.db")) as db:
        (before,) = db.execute("PRAGMA user_version").fetchone()
        if version:
            db.execute(f"PRAGMA user_version = {version}")
    return before


def test_f12_the_schema_is_the_old_or_the_new_one_and_a_newer_one_is_refused(live):
    manager = live.manager
    with undisturbed(live):
        assert manager.term() == 0
        version = make_older(manager)
        for point, after in (("migrate.between", 1), ("migrate.after_commit", version)):
            manager.start(env={"SLUICE_FAILPOINT": point})
            assert manager.process.wait(patience(10)) == -signal.SIGKILL
            live.load.more(20)
            assert set_version(manager, None) == after and offline(manager, "check").returncode == 0, point
        assert list((manager.state / "backup").glob("schema1-*.db"))
        set_version(manager, 4711)
        manager.start()
        assert manager.process.wait(patience(10)) == 1 and names(manager.text(), 4711)
        live.load.more(20)
        set_version(manager, version)
        live.up()
        assert manager.status().n_adopted_workers == 1 and manager.status().store_schema_version == version


def test_f13_a_damaged_database_starts_no_manager_and_streams_go_on(live, tmp_path):
    manager = live.manager
    with undisturbed(live):
        assert manager.term() == 0
        assert offline(manager, "backup", tmp_path / "copy.db").returncode == 0
        damage_pages(manager.state / "sluice.db")
        manager.start()
        assert manager.process.wait(patience(10)) == 1 and names(manager.text(), f"sluice-manager check --state-dir {manager.state}")
        live.load.more(40)
        assert offline(manager, "restore", tmp_path / "copy.db").returncode == 0
        live.up()
        assert manager.status().n_adopted_workers == 1


def test_f14_a_second_manager_says_who_holds_the_state_and_leaves(live):
    manager = live.manager
    with undisturbed(live):
        for _ in range(2):
            began = time.monotonic()
            second = refused(BIN / "sluice-manager", "--state-dir", manager.state, "--worker", BIN / "fake_worker")
            assert time.monotonic() - began < patience(1)
            assert second.returncode == 75 and names(second.stderr, manager.process.pid)
            assert manager.status().pid == manager.process.pid
            live.load.more(20)
            manager.kill()  # the kernel releases the lock too
            live.up()


def test_f15_what_a_killed_manager_leaves_is_replaced_and_what_is_alive_is_not(live, tmp_path):
    manager = live.manager
    shm = set(os.listdir("/dev/shm"))
    with undisturbed(live):
        path = manager.state / "run/manager.sock"
        manager.kill()
        assert path.exists() and not manager.listens()
        live.up()
        other = refused(BIN / "sluice-manager", "--state-dir", tmp_path / "s", "--worker", BIN / "fake_worker", "--socket", path, "--metrics", "")
        assert other.returncode == 78 and names(other.stderr, path), other
        assert manager.listens() and manager.status().pid == manager.process.pid
    assert set(os.listdir("/dev/shm")) <= shm


def test_f16_a_port_in_use_is_named_with_its_holder_and_nothing_half_is_left(live, tmp_path):
    manager, server = live.manager, live.server
    with undisturbed(live):
        second = refused(BIN / "sluice-server", "--listen", server.address, "--manager", manager.state / "run/manager.sock", "--routes-file",
                         tmp_path / "routes.pb", "--metrics", "")
        assert second.returncode == 78 and names(second.stderr, server.address, server.process.pid), second
        second = refused(BIN / "sluice-manager", "--state-dir", tmp_path / "s", "--worker", BIN / "fake_worker", "--metrics", live.metrics)
        assert second.returncode == 78 and names(second.stderr, live.metrics, manager.process.pid), second
        assert not list((tmp_path / "s").glob("run/*.sock")) and live_pids(manager) == set(manager.workers())


@pytest.mark.long  # test_fault_clients.py pauses a server in every run
@pytest.mark.alone  # beside other tests a process may get no CPU for a second, which counts as a stall
def test_f30_after_a_pause_of_everything_nobody_is_killed(tmp_path_factory, stubs):
    """Manager, server and worker pause for longer than the time after which a stalled process is killed."""
    manager = Manager(tmp_path_factory.mktemp("p"), stubs)
    server, load = None, None
    try:
        server, load = serve(manager, "--stall-timeout", f"{STALL_S}s", up=lambda: manager.up("--stall-timeout", f"{STALL_S}s"))
        with undisturbed(types.SimpleNamespace(manager=manager, server=server, load=load)):
            pids = [manager.process.pid, server.process.pid, *manager.workers()]
            stand_still(PAUSE_S, *pids)
            load.more(20)
            keeps(lambda: not events(manager, "replica.died") and not events(manager, "replica.failed"), 1.5 * STALL_S, "they are seen as they are")
            load.more(20)
        load.stop()
    finally:
        clean(manager, server, load)


def test_f38_terminated_while_loading_ends_soon_and_the_load_is_done_after(live):
    manager = live.manager
    manager.script("slow", "load_ms=1500")
    manager.register("slow")
    with undisturbed(live):
        operation = manager.load("slow", request_id="slowly")
        manager.wait(lambda: len(manager.workers()) == 2, 5, "it loads")
        (worker,) = set(manager.workers()) - live_pids(manager)
        assert manager.term() == 0  # the manager ends within ten seconds
        checked = offline(manager, "check")
        live.load.more(20)
        live.up()
        assert checked.returncode == 0, checked
        assert manager.load("slow", request_id="slowly").id == operation.id
        manager.done(operation)
        assert worker in manager.workers()
    manager.done(manager.unload("slow"))
    settle(manager)


def test_f39_broken_settings_leave_what_is_in_force(live):
    manager, config, good = live.manager, live.config, live.config.read_text()
    broken = good + "[manager]\ndrain_graze = 1s\n[server]\nmax_queued = many\n"
    try:
        with undisturbed(live):
            for text, event in ((broken, SETTINGS_NOT_RELOADED), (good, SETTINGS_RELOADED)):
                config.write_text(text)
                programs = [("sluice-manager", manager.process, manager.folder / "log"), ("sluice-server", live.server.process,
                                                                                          manager.folder / "server.log")]
                for name, process, log in programs:
                    before = len(logged(log.read_text(), event))
                    process.send_signal(signal.SIGHUP)
                    manager.wait(lambda: len(logged(log.read_text(), event)) > before, 10, f"{name} has read it")
                    checked = refused(BIN / name, "check-config", "--config", config, "--routes-file=x" if "server" in name else "--metrics=")
                    assert checked.returncode == (2 if text is broken else 0), checked
                    if text is broken:
                        told, said = logged(log.read_text(), event)[-1]["message"], checked.stderr.split(": ", 1)[1].strip()
                        assert names(said, f"{config}:{6 if 'manager' in name else 8}") and said == told, (said, told)
                live.load.more(20)
    finally:
        config.write_text(good)


# --- F29: the wall clock is set ---

HOUR_S, DAY_S = 3600, 86400


class Clock:
    """Shifts the wall clock of programs that are started with `env` (tests/support/fault/shift_clock.c)."""

    def __init__(self, folder):
        (folder / "clock").write_bytes(bytes(8))
        self.memory = mmap.mmap(os.open(folder / "clock", os.O_RDWR), 8)
        self.env = {"LD_PRELOAD": str(BIN / "shift_clock.so"), "SLUICE_TEST_CLOCK": str(folder / "clock"),
                    "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"}

    def set(self, seconds):
        self.memory[:] = struct.pack("q", int(seconds * 1e9))


def test_f29_nobody_is_late_or_early_for_a_clock_that_is_set(tmp_path_factory, stubs):
    """The clock moves an hour and a day, back and forth, and ten times in a row. Streams, stalls, deadlines, backoffs
    and operations use the monotonic clock."""
    manager = Manager(tmp_path_factory.mktemp("c"), stubs)
    clock, server, load = Clock(manager.folder), None, None

    def up():
        return manager.up("--restart-backoff-initial", "200ms", "--restart-backoff-max", "200ms", env=clock.env)

    try:
        server, load = serve(manager, env=clock.env, up=up)
        live = types.SimpleNamespace(manager=manager, server=server, load=load)
        manager.script("b", "load_ms=400")
        manager.register("b")
        with undisturbed(live):
            long_call = load.ask("a long one", timeout=patience(60))
            next(iter(long_call))
            for shift in (HOUR_S, -HOUR_S, DAY_S, -DAY_S, 0) if LONG else (HOUR_S, -DAY_S, 0):
                operation = manager.load("b")
                manager.wait(lambda: len(manager.workers()) == 2, 10, "it loads")
                clock.set(shift)
                wall = manager.rpc.GetOperation(manager.m.GetOperationRequest(id=operation.id)).operation
                assert wall.state == manager.t.OPERATION_STATE_RUNNING
                load.more(20)
                done = manager.done(operation)
                assert 300 <= done.result.elapsed_ms < patience(30000), (shift, done.result.elapsed_ms)
                (other,) = manager.replicas(model="b")
                os.kill(other.pid, signal.SIGKILL)  # the worker restarts 200 ms later, by the monotonic clock
                manager.wait(lambda: manager.replicas(model="b")[0].epoch == other.epoch + 1 and manager.status().n_ready_replicas == 2, 15,
                             "it is back")
                began = time.monotonic()
                with pytest.raises(grpc.RpcError) as e:  # all tokens of the call take longer than its deadline
                    list(load.ask("late", timeout=0.3))
                assert e.value.code() == C.DEADLINE_EXCEEDED and 0.2 < time.monotonic() - began < patience(5), (shift, e.value)
                manager.done(manager.unload("b"))
            for i in range(10):
                clock.set(HOUR_S * (-1) ** i)
                load.more(4)
            list(long_call)  # the call did not end early
            last = manager.status().last_event_seq
            clock.set(-DAY_S)  # the next manager is newer by its start number, not by its clock
            manager.kill()
            up()
            assert manager.status().n_adopted_workers == 1 and manager.status().last_event_seq >= last
            manager.done(manager.load("b"))
            load.more(20)
            assert not events(manager, "replica.stalled", model="live") and not events(manager, "replica.died", model="live")
        load.stop()
    finally:
        clean(manager, server, load)
