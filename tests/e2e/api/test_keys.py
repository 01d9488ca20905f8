"""The manager's own API keys. RPCs and the command line create, list and revoke the keys. The database holds hashes
only, and each change counts at once."""
import hashlib
import json
import time

import pytest

from conftest import free_port, names, patience
from manager_program import C, fails, manager  # noqa: F401 (a fixture)
from pki import Authority
from test_management import ADMIN, KEYS, NEEDED, OPERATOR, SERVICE, VIEWER, answer, cli, key_line, refused, secure  # noqa: F401

VIEWER_ROLE, OPERATOR_ROLE, ADMIN_ROLE = 1, 2, 3


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    class Pki:
        pass
    p = Pki()
    p.ca = Authority(tmp_path_factory.mktemp("pki"), "ca")
    p.server = p.ca.issue("server", "sluice", "DNS:localhost,IP:127.0.0.1")
    return p


def create(m, name, role=VIEWER_ROLE, **kwargs):
    return m.rpc.CreateApiKey(m.m.CreateApiKeyRequest(name=name, role=role, **kwargs))


def revoke(m, name, **kwargs):
    return m.rpc.RevokeApiKey(m.m.RevokeApiKeyRequest(name=name, **kwargs)).key


def listed(m, revoked=False):
    return [(k.name, k.role, k.revoked_unix_ns > 0) for k in m.rpc.ListApiKeys(m.m.ListApiKeysRequest(include_revoked=revoked)).keys]


def everything_stored(m):
    return b"".join(p.read_bytes() for p in m.state.glob("sluice.db*"))


def test_keys_are_good_at_once_and_revoked_at_once(manager):
    manager.up()
    assert answer(manager.channel, SERVICE + "GetStatus", "slk_stray")[0] == C.OK  # while no keys exist, every caller that may open the socket is admitted
    made = {r: create(manager, r, i + 1) for i, r in enumerate(["viewer", "operator", "admin"])}
    assert listed(manager) == [("viewer", 1, False), ("operator", 2, False), ("admin", 3, False)]
    for name, one in made.items():
        assert one.secret.startswith("slk_") and one.key.sha256 == hashlib.sha256(one.secret.encode()).hexdigest()
        assert one.key.created_by.startswith("uid:") and abs(one.key.created_unix_ns / 1e9 - time.time()) < 60
        assert answer(manager.channel, SERVICE + "GetStatus", one.secret)[0] == C.OK
    for path, key, code in [("UnloadModelVersion", "viewer", C.PERMISSION_DENIED), ("UnloadModelVersion", "operator", C.INVALID_ARGUMENT),
                            ("CreateApiKey", "operator", C.PERMISSION_DENIED), ("CreateApiKey", "admin", C.INVALID_ARGUMENT)]:
        got = answer(manager.channel, SERVICE + path, made[key].secret)
        assert got[0] == code, (path, key, got)
        assert code != C.PERMISSION_DENIED or f"key:{key} has {key}" in got[2]
    assert answer(manager.channel, SERVICE + "GetStatus", "slk_stray")[:2] == (C.UNAUTHENTICATED, "API_KEY_INVALID")
    watch = manager.rpc.WatchEvents(manager.m.WatchEventsRequest(from_seq=1), metadata=[("authorization", f"Bearer {made['viewer'].secret}")])
    next(watch)
    for _ in range(20):  # every call after the answer is refused, without exception
        again = create(manager, "short", OPERATOR_ROLE).secret
        assert answer(manager.channel, SERVICE + "GetStatus", again)[0] == C.OK
        assert revoke(manager, "short").revoked_unix_ns > 0
        assert answer(manager.channel, SERVICE + "GetStatus", again)[:2] == (C.UNAUTHENTICATED, "API_KEY_INVALID")
    revoke(manager, "viewer")
    create(manager, "viewer", ADMIN_ROLE)  # the name is free again
    assert next(watch).events  # a running stream continues
    watch.cancel()
    assert listed(manager) == [("operator", 2, False), ("admin", 3, False), ("viewer", 3, False)]
    assert len(listed(manager, True)) == 24
    manager.kill()
    manager.up()
    assert listed(manager) == [("operator", 2, False), ("admin", 3, False), ("viewer", 3, False)]
    assert answer(manager.channel, SERVICE + "GetStatus", made["admin"].secret)[0] == C.OK
    assert answer(manager.channel, SERVICE + "GetStatus", made["viewer"].secret)[:2] == (C.UNAUTHENTICATED, "API_KEY_INVALID")


def test_the_secret_is_kept_nowhere(manager):
    manager.up()
    one = create(manager, "ops", OPERATOR_ROLE, request_id="r1")
    again = create(manager, "ops", OPERATOR_ROLE, request_id="r1")
    assert again.key == one.key and again.secret == ""  # a single effect; the secret is shown once only
    admin = create(manager, "root", ADMIN_ROLE).secret
    revoked = manager.rpc.RevokeApiKey(manager.m.RevokeApiKeyRequest(name="ops", request_id="r2"), metadata=[("authorization", f"Bearer {admin}")])
    assert revoke(manager, "ops", request_id="r2") == revoked.key
    events = []
    for batch in manager.rpc.WatchEvents(manager.m.WatchEventsRequest(from_seq=1), timeout=patience(10)):
        events += [e for e in batch.events if e.type.startswith("audit.")]
        if len(events) == 3:
            break
    first, _, last = events
    assert first.type == "audit.CreateApiKey" and first.attributes["caller"].startswith("uid:") and first.attributes["request_id"] == "r1"
    assert 'name="ops" role=MANAGEMENT_ROLE_OPERATOR' in first.attributes["after"]
    assert last.type == "audit.RevokeApiKey" and last.attributes["caller"] == "key:root" and last.attributes["role"] == "admin"
    assert last.attributes["before"] == 'api_key k1: name="ops"', last.attributes
    assert last.attributes["after"] == 'api_key k1: name="ops" revoked_by="key:root"', last.attributes
    for text in [manager.text(), str(events)]:
        assert one.secret not in text and one.key.sha256 not in text and admin not in text
    manager.term()
    stored = everything_stored(manager)
    assert one.key.sha256.encode() in stored and one.secret.encode() not in stored and admin.encode() not in stored
    assert one.secret[4:].encode() not in stored and bytes.fromhex(one.secret[4:]) not in stored


def test_what_cannot_be_made_or_revoked(manager):
    manager.up()
    create(manager, "ops")
    fails(C.ALREADY_EXISTS, create, manager, "ops", why="KEY_EXISTS")
    for name in ("", "a b", "key:x", "../x", "x" * 65, "anonymous"):
        fails(C.INVALID_ARGUMENT, create, manager, name, field="name")
    for role in (0, 4, 77):
        assert names(fails(C.INVALID_ARGUMENT, create, manager, "b", role, field="role"), "viewer", "operator", "admin")
    for past in (1, time.time_ns() - 10**9):
        fails(C.INVALID_ARGUMENT, create, manager, "b", expires_unix_ns=past, field="expires_unix_ns")
    # A time past 2262 is negative in this field. The manager refused such a time as "past".
    assert names(fails(C.INVALID_ARGUMENT, create, manager, "b", expires_unix_ns=2**63 + 5 - 2**64, field="expires_unix_ns"), "2262-04-11")
    fails(C.NOT_FOUND, revoke, manager, "nobody", why="KEY_NOT_FOUND")
    fails(C.INVALID_ARGUMENT, revoke, manager, "", field="name")
    soon = create(manager, "soon", expires_unix_ns=time.time_ns() + int(2e9)).secret
    assert answer(manager.channel, SERVICE + "GetStatus", soon)[0] == C.OK
    manager.wait(lambda: answer(manager.channel, SERVICE + "GetStatus", soon)[:2] == (C.UNAUTHENTICATED, "API_KEY_EXPIRED"), 10, "it expires")


def test_a_key_begins_with_a_letter_or_a_digit(manager):
    """A command line could not revoke a key name that begins with '-'. A log reader could not tell such a name from a
    flag."""
    manager.up()
    for first in ".-_":
        for name in (first, first + "a"):
            fails(C.INVALID_ARGUMENT, create, manager, name, field="name")
    for name in ("a.-_", "0", "Z-"):
        create(manager, name)
        assert revoke(manager, name).name == name
    assert listed(manager) == []


def test_the_same_request_after_the_key_has_expired_makes_no_other_key(manager):
    manager.up()
    socket = ["--manager", f"{manager.state}/run/manager.sock"]
    until = int(time.time()) + 3
    day = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(until))
    command = ["keys", "create", "brief", "--role", "viewer", "--expires", day, "--request-id", "once", *socket]
    code, secret, err = cli(manager, *command)
    assert code == 0 and secret.startswith("slk_"), err
    code, out, err = cli(manager, *command)
    assert (code, out) == (1, "") and names(err, "brief"), err
    (key,) = manager.rpc.ListApiKeys(manager.m.ListApiKeysRequest()).keys
    manager.wait(lambda: answer(manager.channel, SERVICE + "GetStatus", secret.strip())[:2] == (C.UNAUTHENTICATED, "API_KEY_EXPIRED"), 10, "it expires")
    again = create(manager, "brief", VIEWER_ROLE, expires_unix_ns=until * 10**9, request_id="once")
    assert again.key == key and again.secret == ""
    code, out, err = cli(manager, *command)
    assert (code, out) == (1, "") and names(err, day), err
    assert list(manager.rpc.ListApiKeys(manager.m.ListApiKeysRequest(include_revoked=True)).keys) == [key]
    fails(C.INVALID_ARGUMENT, create, manager, "brief", VIEWER_ROLE, request_id="once")  # the request id belongs to a different request
    assert cli(manager, "keys", "revoke", "brief", *socket)[0] == 0


def test_a_key_for_longer_than_times_go_is_refused_with_what_to_write(manager):
    manager.up()
    for day in ("2262-04-12T00:00:00Z", "9999-12-31T23:59:59Z"):
        code, out, err = cli(manager, "keys", "create", "long", "--role", "viewer", "--expires", day, "--manager", f"{manager.state}/run/manager.sock")
        assert (code, out) == (2, "") and names(err, "--expires", "2262-04-11"), err
    assert cli(manager, "keys", "create", "long", "--role", "viewer", "--expires", "2262-04-11T00:00:00Z", "--manager", f"{manager.state}/run/manager.sock")[0] == 0
    assert listed(manager) == [("long", VIEWER_ROLE, False)]


def test_over_tls_beside_a_file_and_alone(manager, pki, tmp_path):
    manager.port = free_port()
    port = ["--manage-listen", f"127.0.0.1:{manager.port}", "--manage-tls-cert", str(pki.server[0]), "--manage-tls-key", str(pki.server[1])]
    code, text = refused(tmp_path, *port)  # no caller could be admitted
    assert code == 78 and names(text, "sluice keys create")
    keys = manager.folder / "keys"
    keys.write_text(key_line("who-viewer", KEYS["viewer"], "viewer"))
    keys.chmod(0o600)
    manager.up(*port, "--manage-keys-file", str(keys))
    ops = create(manager, "ops", OPERATOR_ROLE).secret
    with secure(manager, pki) as channel:
        for key, code in [(KEYS["viewer"], C.PERMISSION_DENIED), (ops, C.INVALID_ARGUMENT), ("wrong", C.UNAUTHENTICATED), (None, C.UNAUTHENTICATED)]:
            assert answer(channel, SERVICE + "UnloadModelVersion", key)[0] == code, key
    assert manager.term() == 0
    manager.up(*port)  # the keys of the database are enough
    with secure(manager, pki) as channel:
        assert answer(channel, SERVICE + "GetStatus", ops)[0] == C.OK
        assert answer(channel, SERVICE + "GetStatus", KEYS["viewer"])[:2] == (C.UNAUTHENTICATED, "API_KEY_INVALID")
        assert answer(channel, SERVICE + "GetStatus", None)[:2] == (C.UNAUTHENTICATED, "API_KEY_MISSING")
    revoke(manager, "ops")
    assert manager.term() == 0
    manager.up(*port)  # after the last key is revoked, the manager starts, and the port admits no caller
    with secure(manager, pki) as channel:
        assert answer(channel, SERVICE + "GetStatus", ops)[:2] == (C.UNAUTHENTICATED, "API_KEY_INVALID")


def test_every_rpc_with_a_stored_key_of_every_role(manager, stubs):
    """Expected results: the table of test_management.py."""
    manager.up()
    secrets = {r: create(manager, r, i + 1).secret for i, r in enumerate(["viewer", "operator", "admin"])}
    for path, needed in NEEDED.items():
        for role in list(secrets)[:list(secrets).index(needed)]:
            stream = "Watch" in path
            assert answer(manager.channel, path, secrets[role], stream)[:2] == (C.PERMISSION_DENIED, "ROLE_REQUIRED"), (path, role)


def test_the_command_line_makes_lists_and_revokes(manager, pki):
    manager.port = free_port()
    socket = ["--manager", f"{manager.state}/run/manager.sock"]
    manager.up()
    code, out, err = cli(manager, "keys", "create", "ops", "--role", "operator", "--expires", "2099-01-01T00:00:00Z", *socket)
    key = out.strip()
    assert code == 0 and key.startswith("slk_") and len(key) == 68, (code, out, err)
    code, out, err = cli(manager, "keys", "create", "ops", "--role", "viewer", *socket)
    assert code == 1 and names(err, "KEY_EXISTS")
    code, out, err = cli(manager, "keys", "create", "x", "--role", "inference", *socket)
    assert code == 2 and names(err, "sluice key new")
    code, out, err = cli(manager, "keys", "create", "x", *socket)
    assert code == 2 and names(err, "--role", "viewer")
    for words in (["keys"], ["keys", "list"]):
        code, out, err = cli(manager, *words, *socket)
        assert code == 0 and out.splitlines()[1].split()[:4] == ["ops", "operator", "good", "2099-01-01T00:00:00Z"], out
    assert manager.term() == 0
    manager.up("--manage-listen", f"127.0.0.1:{manager.port}", "--manage-tls-cert", str(pki.server[0]), "--manage-tls-key", str(pki.server[1]))
    there = ["--manager", f"127.0.0.1:{manager.port}", "--tls-ca", str(pki.ca.cert)]
    code, out, err = cli(manager, "ls", *there, SLUICE_API_KEY=key)
    assert code == 0, err
    code, out, err = cli(manager, "keys", "list", *there, SLUICE_API_KEY=key)
    assert code == 1 and names(err, "ROLE_REQUIRED", "admin", "key:ops", "operator")
    code, out, err = cli(manager, "keys", "revoke", "ops", *socket)
    assert code == 0 and names(out, "ops"), err
    code, out, err = cli(manager, "ls", *there, SLUICE_API_KEY=key)
    assert code == 1 and names(err, "API_KEY_INVALID")
    code, out, err = cli(manager, "keys", "list", "--all", "--json", *socket)
    (row,) = json.loads(out)["keys"]
    assert row["name"] == "ops" and row["role"] == "MANAGEMENT_ROLE_OPERATOR" and int(row["revoked_unix_ns"] if "revoked_unix_ns" in row else row["revokedUnixNs"]) > 0
    assert cli(manager, "keys", *socket)[1].splitlines()[1:] == []
