"""The manager's database for an operator: check, backup and restore without a manager, damaged files while workers
serve. Also the history of changes over the restarts between."""
import datetime
import fcntl
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import time

import pytest

from conftest import BIN, names, patience
from manager_program import C, fails, manager, settle  # noqa: F401 (fixtures)


def offline(manager, *args):
    return subprocess.run([BIN / "sluice-manager", *args, "--state-dir", manager.state], capture_output=True, text=True,
                          timeout=patience(30))


def loaded(manager):
    manager.up()
    manager.script("a")
    manager.register("a")
    manager.done(manager.load("a"))
    (worker,) = manager.workers()
    return worker


def change(manager, sql):
    with sqlite3.connect(manager.state / "sluice.db") as db:
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute(sql)
    db.close()


def test_check_backup_and_restore(manager, tmp_path):
    worker = loaded(manager)
    held = offline(manager, "check")
    assert held.returncode == 75 and names(held.stderr, manager.process.pid)
    manager.kill()  # leaves a log beside the database
    good = offline(manager, "check")
    assert good.returncode == 0 and names(good.stdout, "schema", 1), good
    report = json.loads(offline(manager, "check", "--json").stdout)
    assert report["ok"] and report["problems"] == [] and report["replicas"] == 1 and report["schema"] == report["schema_known"]
    copy = tmp_path / "copy.db"
    done = offline(manager, "backup", copy)
    assert done.returncode == 0 and str(copy) in done.stdout, done
    assert not list(tmp_path.glob("copy.db-*")) and copy.stat().st_mode & 0o777 == 0o600
    there = offline(manager, "backup", copy)
    assert there.returncode and names(there.stderr, copy), there
    assert offline(manager, "backup").returncode == 0
    (named,) = (manager.state / "backup").iterdir()
    manager.up()
    manager.register("late", "a")
    assert manager.term() == 0
    done = json.loads(offline(manager, "restore", copy, "--json").stdout)
    assert done["ok"] and done["last_event_seq"] == report["last_event_seq"]
    with sqlite3.connect(done["kept"]) as db:
        assert db.execute("SELECT count(*) FROM model").fetchone() == (2,)
    db.close()
    manager.up()
    assert [m.name for m in manager.rpc.ListModels(manager.m.ListModelsRequest()).models] == ["a"]
    assert manager.workers() == [worker] and manager.status().n_adopted_workers == 1
    assert named.exists() and copy.exists()


def test_nothing_is_done_beside_a_manager_whose_lock_file_was_removed(manager, tmp_path):
    """Someone takes the lock file for stale and removes it. Symptom: a restore replaced the database under the running
    manager, and acknowledged changes were lost."""
    loaded(manager)
    assert manager.term() == 0
    copy = tmp_path / "copy.db"
    assert offline(manager, "backup", copy).returncode == 0
    manager.up()
    manager.register("late", "a")
    (manager.state / "sluice.lock").unlink()
    for words in (["restore", copy], ["check"], ["backup", tmp_path / "other.db"], []):
        refused = offline(manager, *words, *([] if words else ["--worker", BIN / "fake_worker"]))
        assert refused.returncode == 75 and names(refused.stderr, "sluice.db", manager.process.pid), (words, refused)
    manager.register("later", "a")
    manager.kill()
    manager.up()
    assert {m.name for m in manager.rpc.ListModels(manager.m.ListModelsRequest()).models} == {"a", "late", "later"}


def test_nothing_is_done_beside_a_holder_of_another_pid_namespace(manager):
    """A manager in another container uses the same volume. The kernel reports that the database is locked, but knows no
    process id of the holder."""
    loaded(manager)
    assert manager.term() == 0
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    with open(manager.state / "sluice.db", "r+b") as db:
        fcntl.lockf(db, fcntl.LOCK_EX)
        refused = subprocess.run(["unshare", *user, "--pid", "--fork", BIN / "sluice-manager", "check", "--state-dir", manager.state],
                                 capture_output=True, text=True, timeout=patience(30))
    assert refused.returncode == 75 and names(refused.stderr, "sluice.db"), refused


@pytest.mark.parametrize("sql, kind, values", [
    ("UPDATE replica SET device_group = 'gone'", "reference", ("replica r1", "gone")),
    ("UPDATE replica SET model = 'gone'", "reference", ("model_version",)),
    ("UPDATE operation SET state = 2", "state", ("operation o1", "RUNNING")),
    ("UPDATE meta SET value = 0 WHERE name = 'replica'", "counter", ("replica r1", 0)),
    ("DELETE FROM event WHERE seq = 3", "event", (1,)),
    ("UPDATE replica SET detail = x'ffff'", "row", ("replica",)),
    ("ALTER TABLE traffic ADD COLUMN more TEXT", "schema", ("traffic",)),
    ("CREATE TABLE stranger (x)", "schema", ("stranger",)),
    ("DROP TABLE traffic", "schema", ("traffic",)),
])
def test_check_says_what_is_wrong(manager, sql, kind, values):
    loaded(manager)
    manager.kill()
    change(manager, sql)
    result = offline(manager, "check", "--json")
    report = json.loads(result.stdout)
    assert result.returncode == 65 and not report["ok"] and report["n_problems"] >= 1
    assert any(p["kind"] == kind and names(p["text"], *values) for p in report["problems"]), report
    refused = offline(manager, "backup", manager.state / "no.db")
    assert refused.returncode == 65 and not (manager.state / "no.db").exists()


def damage_pages(path):
    data = bytearray(path.read_bytes())
    for at in range(4096, len(data), 4096):
        data[at:at + 64] = b"\xa5" * 64
    path.write_bytes(data)


DAMAGES = {"flipped": damage_pages, "cut": lambda p: os.truncate(p, p.stat().st_size // 2), "empty": lambda p: os.truncate(p, 0),
           "text": lambda p: p.write_text("this is not a database\n" * 1000), "gone": lambda p: p.unlink()}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_refused_and_kept_while_workers_serve_on(manager, tmp_path, name):
    worker = loaded(manager)
    assert manager.term() == 0
    assert offline(manager, "backup", tmp_path / "copy.db").returncode == 0
    path = manager.state / "sluice.db"
    DAMAGES[name](path)
    if name == "gone":
        (manager.state / "sluice.db-wal").write_bytes(b"what is left of it")
    before = path.read_bytes() if path.exists() else None
    manager.start()
    assert manager.process.wait(patience(10)) == 1
    assert names(manager.text(), "sluice.db-wal" if name == "gone" else f"sluice-manager check --state-dir {manager.state}")
    assert (path.read_bytes() if path.exists() else None) == before  # not a byte of it was changed
    assert manager.workers() == [worker]
    if name == "gone":
        for words in (["check"], ["backup"]):
            told = offline(manager, *words)
            assert told.returncode == 65 and names(told.stderr, path, "sluice.db-wal"), told
            assert f"mv {path}-wal {manager.state}/damaged-" in told.stderr and "sluice-manager restore /" not in told.stderr, told
    else:
        none = offline(manager, "check")  # symptom: `check` advised the other command, and that command advised `check`
        assert none.returncode == 65 and names(none.stderr, f"{manager.state}/backup", f"mv {path}"), none
        assert "sluice-manager restore /" not in none.stderr and "`sluice-manager check`" not in none.stderr, none
        folder = manager.state / "backup"
        folder.mkdir(exist_ok=True)
        copy = shutil.copy(tmp_path / "copy.db", folder / "sluice-1.db")
        (folder / "sluice-2.db").write_bytes(before)
        (folder / "replaced-3.db").write_bytes(before)
        for words in (["check"], ["restore", folder / "sluice-2.db"], ["backup"], ["restore"]):
            told = offline(manager, *words)
            assert told.returncode == (2 if words == ["restore"] else 65), told
            assert names(told.stderr, f"sluice-manager restore {copy} --state-dir {manager.state}"), told
            assert f"{copy} (" in told.stderr and "replaced-3" not in told.stderr, told
            assert ("sluice-2.db (" in told.stderr) == (words != ["restore", folder / "sluice-2.db"]), told
            assert "`sluice-manager check`" not in told.stderr, told
        shutil.rmtree(folder)
        (tmp_path / "bad.db").write_bytes(before)
        # the database is damaged: the result does not depend on the output file
        for words in (["backup", tmp_path / "new.db"], ["check"]):
            assert names(offline(manager, *words).stderr, f"mv {path}"), words
        bad = offline(manager, "restore", tmp_path / "bad.db")
        assert bad.returncode == 65 and (path.read_bytes() == before), bad
    good = offline(manager, "restore", tmp_path / "copy.db")
    assert good.returncode == 0, good
    if before is not None:
        (kept,) = (manager.state / "backup").glob("replaced-*.db")
        assert kept.read_bytes() == before
    manager.up()
    assert manager.workers() == [worker] and manager.status().n_adopted_workers == 1


def test_a_bad_backup_is_no_reason_to_replace_a_database_that_is_good(manager, tmp_path):
    loaded(manager)
    assert manager.term() == 0
    assert offline(manager, "backup").returncode == 0
    (tmp_path / "bad.db").write_bytes(b"no database at all" * 100)
    bad = offline(manager, "check", tmp_path / "bad.db")
    assert bad.returncode == 65 and "sluice-manager restore" not in bad.stderr and "mv " not in bad.stderr, bad
    (good,) = (manager.state / "backup").iterdir()
    bad = offline(manager, "restore", tmp_path / "bad.db")  # the error names a good backup
    assert bad.returncode == 65 and names(bad.stderr, f"sluice-manager restore {good}"), bad


def test_what_a_command_is_given_to_write_or_to_read(manager, tmp_path):
    loaded(manager)
    beside = offline(manager, "check", manager.state / "sluice.db")  # a manager has this file open
    assert beside.returncode == 75, beside
    assert manager.term() == 0
    for name in ("sluice.db-wal", "sluice.db-journal", "sluice.db.2"):  # SQLite would take the file for its own
        refused = offline(manager, "backup", manager.state / name)
        assert refused.returncode == 2 and names(refused.stderr, name) and not (manager.state / name).exists(), refused
    refused = offline(manager, "backup", tmp_path / "none" / "x.db")
    assert refused.returncode == 1 and names(refused.stderr, f"{tmp_path}/none"), refused
    copy = tmp_path / "sluice.db"
    assert offline(manager, "backup", copy).returncode == 0
    alone = subprocess.run([BIN / "sluice-manager", "check", copy, "--state-dir", tmp_path / "none"], capture_output=True, text=True)
    assert alone.returncode == 0, alone  # a backup may be checked at any path
    (manager.state / "sluice.db").rename(tmp_path / "kept.db")
    new = offline(manager, "check")
    assert new.returncode == 1 and names(new.stderr, manager.state), new
    shutil.copytree(tmp_path, manager.state / "backup")
    lost = offline(manager, "check")
    assert lost.returncode == 65 and names(lost.stderr, manager.state / "sluice.db", "sluice-manager restore"), lost
    os.mkfifo(manager.state / "sluice.db")
    fifo = offline(manager, "check")
    assert fifo.returncode == 65 and names(fifo.stderr, manager.state / "sluice.db"), fifo


def test_the_newest_good_backup_is_found_among_many(manager, tmp_path):
    """Symptom: only the five backups that the folder happened to list first were checked."""
    loaded(manager)
    assert manager.term() == 0
    folder = manager.state / "backup"
    folder.mkdir(exist_ok=True)
    assert offline(manager, "backup", folder / "good.db").returncode == 0
    now = time.time()
    for i in range(100):
        old = folder / f"old-{i}.db"
        shutil.copy(folder / "good.db", old)
        os.utime(old, (now - 1000 - i, now - 1000 - i))
    os.utime(folder / "good.db", (now - 100, now - 100))
    for i in range(6):
        (folder / f"bad-{i}.db").write_bytes(b"no database at all" * 100)
        os.utime(folder / f"bad-{i}.db", (now - i, now - i))
    (manager.state / "sluice.db").write_bytes(b"damaged" * 1000)
    told = offline(manager, "check")
    assert told.returncode == 65 and names(told.stderr, f"sluice-manager restore {folder}/good.db --state-dir {manager.state}"), told
    lines = [line.split(" (")[0].strip() for line in told.stderr.splitlines() if " (" in line and line.strip().startswith(str(folder))]
    assert lines == [*(f"{folder}/bad-{i}.db" for i in range(5)), f"{folder}/good.db"], told
    assert names(told.stderr, 101), told
    (folder / "good.db").unlink()
    for i in range(100):
        (folder / f"old-{i}.db").write_bytes(b"no database at all" * 100)
    none = offline(manager, "check")
    assert names(none.stderr, 64) and "sluice-manager restore /" not in none.stderr, none


def test_a_backup_of_a_newer_program_is_refused(manager, tmp_path):
    loaded(manager)
    assert manager.term() == 0
    assert offline(manager, "backup", tmp_path / "copy.db").returncode == 0
    with sqlite3.connect(tmp_path / "copy.db") as db:
        db.execute("PRAGMA user_version = 4711")
    db.close()
    for command in ("check", "restore"):
        refused = offline(manager, command, tmp_path / "copy.db")
        assert refused.returncode == 65 and names(refused.stderr, 4711), refused
    assert offline(manager, "check").returncode == 0


def make_older(manager):
    """Turns the database of this program into one of schema 1: without device_hold and without any later table. Returns
    the schema version of this program."""
    known = {"meta", "model", "model_version", "device", "device_group", "deployment", "replica", "traffic", "operation", "event",
             "api_key", "idempotency"}
    with sqlite3.connect(manager.state / "sluice.db") as db:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        for (table,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'").fetchall():
            if table not in known:
                db.execute(f"DROP TABLE {table}")
        db.execute("DROP TABLE api_key")
        db.execute("CREATE TABLE api_key (hash BLOB PRIMARY KEY CHECK (length(hash) = 32), name TEXT NOT NULL, role TEXT NOT NULL,"
                   " created_unix_ns INTEGER NOT NULL) STRICT")
        db.execute("PRAGMA user_version = 1")
    db.close()
    return version


def test_an_older_schema_is_copied_before_it_is_changed(manager):
    loaded(manager)
    assert manager.term() == 0
    version = make_older(manager)
    report = json.loads(offline(manager, "check", "--json").stdout)
    assert report["ok"] and report["schema"] == 1 < report["schema_known"] == version, report
    manager.up()
    assert manager.status().store_schema_version == version and manager.status().n_adopted_workers == 1
    manager.rpc.CreateApiKey(manager.m.CreateApiKeyRequest(name="ops", role=1))  # writes into a table that has another layout now
    (copy,) = (manager.state / "backup").glob("schema1-*.db")
    db = sqlite3.connect(copy)
    assert db.execute("PRAGMA user_version").fetchone() == (1,) and db.execute("SELECT id FROM replica").fetchall() == [("r1",)]
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()


@pytest.mark.parametrize("args, code, value", [
    (["restore"], 2, "restore"), (["check", "a", "b"], 2, "check"), (["backup", "--surprise"], 2, "surprise"),
    (["check", "/nonexistent/sluice.db"], 1, "/nonexistent/sluice.db"), (["check", "/tmp"], 2, "/tmp"), (["check", "--help"], 0, "--json"),
])
def test_usage(manager, args, code, value):
    manager.state.mkdir(exist_ok=True)
    result = offline(manager, *args)
    assert result.returncode == code and names(result.stdout + result.stderr, value), result
    missing = subprocess.run([BIN / "sluice-manager", "check", "--state-dir", manager.state / "nowhere"], capture_output=True, text=True)
    assert missing.returncode == 1 and not (manager.state / "nowhere").exists()


def events_of(manager):
    """Returns the events from the first on, and asserts that their numbers have no gap."""
    stream = manager.rpc.WatchEvents(manager.m.WatchEventsRequest(from_seq=1), timeout=patience(10))
    last, events = manager.status().last_event_seq, []
    for batch in stream:
        events += batch.events
        if events[-1].seq >= last:
            break
    stream.cancel()
    assert [e.seq for e in events] == list(range(1, len(events) + 1))
    return events


def audits(manager):
    return [e for e in events_of(manager) if e.type.startswith("audit.")]


def test_audit_says_who_did_what_with_before_and_after(manager):
    worker = loaded(manager)
    manager.done(manager.rpc.ScaleModelVersion(manager.m.ScaleModelVersionRequest(model="a", n_replicas=2, request_id="s1")).operation)
    again = manager.rpc.ScaleModelVersion(manager.m.ScaleModelVersionRequest(model="a", n_replicas=2, request_id="s1"))
    assert again.operation.id  # answered from the record: nothing changed, so there is only one event
    fails(C.NOT_FOUND, manager.unload, "nobody")
    manager.kill()
    manager.up()  # also after a restart
    manager.done(manager.unload("a"))
    manager.rpc.DeleteModelVersion(manager.m.DeleteModelVersionRequest(model="a", version="1"))
    seen = audits(manager)
    assert [e.type for e in seen] == ["audit." + n for n in ("RegisterModelVersion", "LoadModelVersion", "ScaleModelVersion",
                                                             "UnloadModelVersion", "DeleteModelVersion")]
    scale = seen[2]
    facts = dict(scale.attributes)
    assert facts["caller"] == f"uid:{os.getuid()}" and facts["role"] == "admin" and facts["rpc"] == "ScaleModelVersion"
    assert facts["request_id"] == "s1" and scale.operation_id and (scale.model, scale.version) == ("a", "1")
    assert "deployment a 1 cpu: n_replicas=1" in facts["before"] and "deployment a 1 cpu: n_replicas=2" in facts["after"]
    assert "replica r2" in facts["after"] and "replica r2" not in facts["before"] and str(manager.state) not in facts["after"]
    gone = dict(seen[4].attributes)
    assert "model_version a 1" in gone["before"] and "after" not in gone
    assert scale.time_unix_ns > seen[0].time_unix_ns and worker not in manager.workers()
    text = subprocess.run([BIN / "sluice", "events", "--state-dir", manager.state, "--type", "audit.", "--from", "1"],
                          capture_output=True, text=True, timeout=patience(10))
    assert names(text.stdout, f"uid:{os.getuid()}", "admin", "before"), text
    # Symptom: `sluice events` had lines of 300 to 500 characters, and times of an unnamed zone.
    for verbose in ([], ["--verbose"]):
        text = subprocess.run([BIN / "sluice", "events", "--state-dir", manager.state, "--from", "1", *verbose], capture_output=True,
                              text=True, timeout=patience(10), env={**os.environ, "TZ": "Asia/Tokyo"}).stdout
        line = next(line for line in text.splitlines() if "audit.ScaleModelVersion" in line)
        assert ("before:" in line) == bool(verbose), line
        when = datetime.datetime.strptime(" ".join(line.split()[1:3]), "%Y-%m-%d %H:%M:%SZ").replace(tzinfo=datetime.timezone.utc)
        assert when.timestamp() == scale.time_unix_ns // 10**9, line


def test_audit_tells_what_was_set_also_of_what_no_column_has(manager):
    """Symptom: the audit row read "traffic a: sticky=1" for weights and "model a: ..." for a policy. The requested
    values were missing."""
    t, m, rpc = manager.t, manager.m, manager.up()
    manager.script("a")
    manager.register("a", version="1", config=t.ModelConfig(context_length=512), labels={"team": "x"})
    manager.register("a", version="2", config=t.ModelConfig(chat_template="é" * 3000))
    rpc.CreateDeviceGroup(m.CreateDeviceGroupRequest(name="one", devices=["cpu:0"]))
    manager.done(manager.load("a", version="1", config=t.ModelConfig(n_threads=1, idle_after_ms=5000, placement="pack")))
    for weights in ({"1": 90, "2": 10}, {"1": 3}):
        rpc.SetTraffic(m.SetTrafficRequest(model="a", sticky=len(weights) > 1,
                                           weights=[t.TrafficWeight(version=v, weight=w) for v, w in weights.items()]))
    for policy in (t.VersionPolicy(specific=t.SpecificVersions(versions=["1"])), t.VersionPolicy(latest=2), t.VersionPolicy()):
        rpc.SetVersionPolicy(m.SetVersionPolicyRequest(model="a", policy=policy))
        manager.wait(lambda: manager.status().n_open_operations == 0, 10, "what it wants is loaded")
    rpc.DrainReplica(m.DrainReplicaRequest(replica_id="r1", grace_ms=0))
    seen = {}
    for e in audits(manager):
        facts = dict(e.attributes)
        seen.setdefault(facts["rpc"], []).append((facts.get("before", ""), facts.get("after", "")))
    registered = seen["RegisterModelVersion"]
    assert 'config={context_length=512}' in registered[0][1] and 'labels=[{key="team" value="x"}]' in registered[0][1]
    assert "info.weights_digest=" in registered[0][1]
    assert 'chat_template="' + "é" * 80 + '..."' in registered[1][1], registered
    assert 'device_group one: devices=["cpu:0"]' in seen["CreateDeviceGroup"][0][1]
    assert 'config={n_threads=1 idle_after_ms=5000 placement="pack"}' in seen["LoadModelVersion"][0][1], seen
    first, second = seen["SetTraffic"]
    assert "traffic" not in first[0] and 'weights=[{version="1" weight=90}, {version="2" weight=10}]' in first[1] and "sticky=1" in first[1]
    assert 'sticky=1 weights=[{version="1" weight=90}, {version="2" weight=10}]' in second[0], second
    assert 'sticky=0 weights=[{version="1" weight=3}]' in second[1], second
    policies = seen["SetVersionPolicy"]
    assert "policy" not in policies[0][0] and 'policy={specific={versions=["1"]}}' in policies[0][1]
    assert 'policy={specific={versions=["1"]}}' in policies[1][0] and "policy={latest=2}" in policies[1][1]
    assert "policy={latest=2}" in policies[2][0] and "policy" not in policies[2][1]
    assert "retiring=1" in seen["DrainReplica"][0][1] and "retiring" not in seen["DrainReplica"][0][0]
    assert len([e for e in events_of(manager) if e.type == "policy.set"]) == 3


@pytest.mark.parametrize("point", ["migrate.before", "migrate.between", "migrate.before_commit", "migrate.after_commit"])
def test_killed_while_the_schema_is_changed(manager, point):
    worker = loaded(manager)
    assert manager.term() == 0
    version = make_older(manager)
    manager.start(env={"SLUICE_FAILPOINT": point})
    assert manager.process.wait(patience(10)) == -signal.SIGKILL
    with sqlite3.connect(manager.state / "sluice.db") as db:
        assert db.execute("PRAGMA user_version").fetchone() == (version if point == "migrate.after_commit" else 1,)
        n_tables = db.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'device_hold'").fetchone()[0]
    db.close()
    assert n_tables == (point == "migrate.after_commit")
    assert offline(manager, "check").returncode == 0
    manager.up()
    assert manager.status().store_schema_version == version and manager.workers() == [worker]
    assert list((manager.state / "backup").glob("schema1-*.db"))
