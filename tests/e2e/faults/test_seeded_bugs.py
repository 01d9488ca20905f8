"""I10: the checker of each invariant detects a bug planted for it (base/seeded_bug.h), and reports nothing without a
planted bug. Needs a build with SLUICE_SEEDED_BUGS, for example the development preset."""
import os
import signal

import psutil
import pytest

import invariants
from conftest import BIN, TIME_SCALE, Sluice, model_path, patience, until
from invariants import Acknowledged, Load, Rest, Violation, Void, Watch, check_books, check_no_half_state, logs

FAST = {"SLUICE_RESTART_BACKOFF_INITIAL": "100ms", "SLUICE_STALL_TIMEOUT": "2s"}


def up(sluice, bug, **env):
    sluice.start_measured(env={**FAST, "SLUICE_SEEDED_BUG": bug, **env})
    sluice.cli("register", "smol", model_path(), "--version", "1")
    sluice.cli("load", "smol")
    sluice.wait(lambda: sluice.run("smol", "hi", "-n", "1", check=False).returncode == 0, 30, "the model answers")
    return sluice


def kill(sluice, name):
    (pid,) = sluice.children(name)
    os.kill(pid, signal.SIGKILL)


def end_at_once(sluice):
    """A Sluice with a planted bug need not end well."""
    sluice.process.kill()
    sluice.process.wait()
    for name in ("sluice-manager", "sluice-server", "sluice-worker"):
        for pid in sluice.children(name):
            psutil.Process(pid).kill()
    until(lambda: not any(sluice.children(name) for name in ("sluice-manager", "sluice-server", "sluice-worker")), 10,
          "a killed process is still there")


def wait_manager(sluice):
    sluice.wait(lambda: sluice.cli("status", check=False).returncode == 0, 15, "a new manager answers")


def worker_is_killed(sluice):
    load = Load(sluice, n=4, max_tokens=64).learn().start()
    load.wait_tokens(60)
    load.mark("fault")
    kill(sluice, "sluice-worker")
    load.wait_tokens(60)
    load.stop().check_one_ending()


def texts_are_compared(sluice):
    load = Load(sluice, n=4).start()
    load.wait_tokens(300)
    load.stop().check_canaries(logs(sluice))


def load_ends(sluice):
    load = Load(sluice, n=4).learn()
    rest = Rest(sluice)
    load.start().wait_tokens(200)
    load.stop()
    rest.check(within=5)


def manager_is_killed(sluice):
    watch = Watch(sluice)
    kill(sluice, "sluice-manager")
    wait_manager(sluice)
    seen = len(watch.samples)
    until(lambda: len(watch.samples) >= seen + 10, 20, "it has looked again and again")
    watch.stop().check_owners()


def last_worker_is_lost(sluice):
    watch = Watch(sluice)
    (worker,) = sluice.children("sluice-worker")
    (manager,) = sluice.children("sluice-manager")
    os.kill(manager, signal.SIGSTOP)  # no process starts another worker
    os.kill(worker, signal.SIGKILL)
    watch.wait_lost(patience(1) + 0.5)
    os.kill(manager, signal.SIGCONT)
    assert watch.stop().check_health() > 0, "nobody looked after the second that health has"


def acknowledged_is_there(sluice):
    acknowledged = Acknowledged(sluice)
    acknowledged.registered("smol")
    sluice.cli("register", "other", model_path(), "--version", "1")
    acknowledged.registered("other")
    kill(sluice, "sluice-manager")
    wait_manager(sluice)
    acknowledged.check()


def replicas_are_there(sluice):
    acknowledged = Acknowledged(sluice)
    acknowledged.loaded("smol")
    kill(sluice, "sluice-manager")
    wait_manager(sluice)
    acknowledged.check()
    check_no_half_state(sluice)


def counts_are_compared(sluice):
    load = Load(sluice, n=4, max_tokens=8).learn()
    load.start().wait_tokens(200)
    load.stop()
    check_books(sluice, load)


def cancelled_is_counted(sluice):
    load = Load(sluice, n=2, max_tokens=8).learn().start()
    calls = [sluice.inference.Generate(sluice.request("smol", "Count:", max_tokens=2000, ignore_eos=True)) for _ in range(3)]
    for call in calls:
        next(call)
        call.cancel()
    load.wait_tokens(40)
    load.stop()
    load.others["cancelled"] = (3, 3)
    check_books(sluice, load)


def too_little_runs(sluice):
    load = Load(sluice, n=1, max_tokens=2, pause=1.0).learn().start()
    load.wait_tokens(2)
    load.mark("fault")
    load.stop().require(before=20, fault=20)


CASES = {"I1_acknowledges_before_commit": acknowledged_is_there, "I2_forgets_replica": replicas_are_there,
         "I3_repeats_a_token": worker_is_killed, "I4_swaps_texts": texts_are_compared, "I5_leaks_a_block": load_ends,
         "I6_starts_a_second_worker": manager_is_killed, "I7_always_serving": last_worker_is_lost,
         "I8_miscounts": counts_are_compared, "I8_counts_twice": counts_are_compared, "I8_cancelled_is_ok": cancelled_is_counted}


@pytest.fixture(scope="module")
def clean(tmp_path_factory, stubs):
    """A Sluice without a planted bug: one cluster for all tests of this kind."""
    sluice = Sluice(tmp_path_factory.mktemp("clean"), stubs)
    try:
        yield up(sluice, "")
    finally:
        sluice.stop()


# The longer tests of an invariant that another bug also covers run only in tests/long.sh faults.
@pytest.mark.parametrize("bug", [pytest.param(bug, marks=pytest.mark.long) if bug in ("I8_counts_twice", "I8_cancelled_is_ok") else bug for bug in CASES])
def test_a_planted_bug_is_caught_by_its_checker(fresh, bug):
    assert b"SLUICE_SEEDED_BUG" in (BIN / "sluice-server").read_bytes(), "this build has no planted bugs; use the preset dev"
    up(fresh, bug)
    with pytest.raises(Violation) as e:
        CASES[bug](fresh)
    assert e.value.invariant == bug[:2], e.value
    end_at_once(fresh)


@pytest.mark.parametrize("case", dict.fromkeys(CASES.values()))
def test_nothing_is_seen_where_nothing_is_planted(clean, case):
    clean.wait(lambda: clean.run("smol", "hi", "-n", "1", check=False).returncode == 0, 30, "what an earlier case killed is back")
    case(clean)


def test_a_run_with_too_little_traffic_is_void(clean):
    with pytest.raises(Void):
        too_little_runs(clean)


def checks(watch):
    return watch.check_owners, watch.check_health, watch.check_books


def test_a_watch_that_broke_off_is_void(clean, monkeypatch):
    """A watch that broke off is void, whatever ended it and however many samples it has."""
    watch = Watch(clean)
    clean.wait(lambda: watch.n_books >= 20, 20, "it looks")

    def unreadable(_):
        raise ValueError("no number")
    monkeypatch.setattr(invariants, "metrics", unreadable)
    watch.join(patience(10))
    watch.stop()
    for check in checks(watch):
        with pytest.raises(Void, match="no number"):
            check()


def test_a_watch_that_hardly_looked_is_void(clean, monkeypatch):
    watch = Watch(clean).stop()
    watch.ended = watch.began + 60 * TIME_SCALE  # claims to have run for a minute
    for check in checks(watch):
        with pytest.raises(Void, match="looks"):
            check()
