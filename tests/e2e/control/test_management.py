"""Calls every RPC of the manager with every role, over the manager's socket and over TCP. The role decides which calls
succeed."""
import contextlib
import ctypes
import fcntl
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.request

import grpc
import psutil
import pytest

from conftest import BIN, ROOT, Sluice, free_port, names, patience, sanitized, until
from log_events import CALL_DENIED, KEYS_NOT_RELOADED, logged
from manager_program import Manager, manager, reason  # noqa: F401
from pki import Authority, client_hello

SERVICE, ROUTING = "/sluice.manager.v1.ModelManager/", "/sluice.manager.v1.Routing/"
ROLES = ["viewer", "operator", "admin"]

# The role that each RPC needs. This is a second copy of the manager's table: a change of the table changes this list.
VIEWER = ["GetModel", "ListModels", "GetTraffic", "ListDevices", "ListDeviceGroups", "ListReplicas", "GetOperation", "ListOperations",
          "WaitOperation", "WatchOperation", "WatchEvents", "GetStatus"]
OPERATOR = ["InspectModelVersion", "LoadModelVersion", "UnloadModelVersion", "ScaleModelVersion", "ParkModelVersion", "WakeModelVersion", "UpdateModelVersion", "SetTraffic",
            "SetVersionPolicy", "DrainReplica", "RestartReplica", "CancelOperation", "ReleaseDevice"]
ADMIN = ["RegisterModelVersion", "DeleteModelVersion", "CreateDeviceGroup", "DeleteDeviceGroup", "CreateApiKey", "ListApiKeys", "RevokeApiKey"]
NEEDED = {**{SERVICE + n: "viewer" for n in VIEWER}, **{SERVICE + n: "operator" for n in OPERATOR},
          **{SERVICE + n: "admin" for n in ADMIN}, ROUTING + "WatchRoutes": "admin",
          ROUTING + "WakeVersion": "admin"}

KEYS = {role: f"key-of-{role}" for role in [*ROLES, "inference"]}


def key_line(name, key, *rest):
    return " ".join([name, hashlib.sha256(key.encode()).hexdigest(), *rest]) + "\n"


def bearer(key):
    return [("authorization", f"Bearer {key}")] if key else None


def answer(channel, path, key, stream=False, wait=15):
    """Returns the status of an empty request, with its reason and text."""
    call = channel.unary_stream(path) if stream else channel.unary_unary(path)
    try:
        reply = call(b"", metadata=bearer(key), timeout=patience(wait))
        if stream:
            next(reply)
            reply.cancel()
        return grpc.StatusCode.OK, "", ""
    except grpc.RpcError as e:
        return e.code(), reason(e), e.details()


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    class Pki:
        pass
    p = Pki()
    folder = tmp_path_factory.mktemp("pki")
    p.ca, p.other = Authority(folder, "ca"), Authority(folder, "other")
    p.server = p.ca.issue("server", "sluice", "DNS:localhost,IP:127.0.0.1")
    p.deploy = p.ca.issue("deploy", "deploy-cn", "URI:spiffe://example.org/deploy")
    p.nobody = p.ca.issue("nobody", "nobody-cn")
    p.stranger = p.other.issue("stranger", "deploy-cn", "URI:spiffe://example.org/deploy")
    return p


@pytest.fixture(scope="module")
def managed(tmp_path_factory, stubs, pki):
    """A manager with a port, keys of every role and a certificate for each role. The fixture is shared, because no test
    here changes the manager."""
    m = Manager(tmp_path_factory.mktemp("m"), stubs)
    m.keys = m.folder / "keys"
    m.keys.write_text("".join(key_line(f"who-{r}", k, r) for r, k in KEYS.items()) + "tls:spiffe://example.org/deploy operator\n" +
                      key_line("old", "old-key", "admin", "2020-01-01T00:00:00Z"))
    m.keys.chmod(0o600)
    m.port, m.metrics = free_port(), free_port()
    m.up("--metrics", f"127.0.0.1:{m.metrics}", "--manage-listen", f"127.0.0.1:{m.port}", "--manage-tls-cert", str(pki.server[0]), "--manage-tls-key", str(pki.server[1]),
         "--manage-tls-client-ca", str(pki.ca.cert), "--manage-tls-client-auth", "optional", "--manage-keys-file", str(m.keys))
    yield m
    m.clean()


@contextlib.contextmanager
def secure(m, pki, pair=None):
    credentials = grpc.ssl_channel_credentials(pki.ca.cert.read_bytes(), *([pair[1].read_bytes(), pair[0].read_bytes()] if pair else []))
    with grpc.secure_channel(f"127.0.0.1:{m.port}", credentials, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        yield channel


def methods(stubs):
    for service in [s for file in (stubs.manager, stubs.routing) for s in file.DESCRIPTOR.services_by_name.values()]:
        for method in service.methods:
            yield f"/{service.full_name}/{method.name}", method.server_streaming


def test_every_rpc_is_in_the_table_of_this_test(stubs):
    assert {path for path, _ in methods(stubs)} == set(NEEDED)


@pytest.mark.parametrize("over", ["socket", "tls"])
def test_every_rpc_with_every_role(managed, stubs, pki, over):
    with contextlib.ExitStack() as stack:
        channel = managed.channel if over == "socket" else stack.enter_context(secure(managed, pki))
        for path, stream in methods(stubs):
            for role in ROLES:
                allowed = ROLES.index(role) >= ROLES.index(NEEDED[path])
                code, why, text = answer(channel, path, KEYS[role], stream, 0.3 if stream and allowed else 15)
                if allowed:
                    assert code not in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED), (path, role, text)
                else:
                    assert (code, why) == (grpc.StatusCode.PERMISSION_DENIED, "ROLE_REQUIRED"), (path, role, code, text)
                    assert names(text, NEEDED[path], f"who-{role}", role)
            assert answer(channel, path, KEYS["inference"], stream)[:2] == (grpc.StatusCode.PERMISSION_DENIED, "ROLE_REQUIRED"), path
            assert answer(channel, path, "wrong", stream)[:2] == (grpc.StatusCode.UNAUTHENTICATED, "API_KEY_INVALID"), path
            if over == "tls":
                assert answer(channel, path, None, stream)[:2] == (grpc.StatusCode.UNAUTHENTICATED, "API_KEY_MISSING"), path
    lines = logged((managed.folder / "log").read_text(), CALL_DENIED)
    assert any("who-viewer" in line.values() for line in lines), lines
    assert len(lines) <= 10 * (1 + len({line["ts"].split(".")[0] for line in lines})), "more than ten in a second"
    text = urllib.request.urlopen(f"http://127.0.0.1:{managed.metrics}/metrics", timeout=patience(10)).read().decode()
    n = {r: int(float(v)) for r, v in re.findall(r'^sluice_access_refusals_total{reason="(\w+)"} (\S+)$', text, re.M)}
    assert n["ROLE_REQUIRED"] > len(lines) and n["API_KEY_INVALID"] > 0, n


def test_an_expired_key_is_told(managed):
    assert answer(managed.channel, SERVICE + "GetStatus", "old-key")[:2] == (grpc.StatusCode.UNAUTHENTICATED, "API_KEY_EXPIRED")


def test_health_is_open_and_reflection_is_not(managed, pki):
    reflection = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    with secure(managed, pki) as channel:
        assert answer(channel, "/grpc.health.v1.Health/Check", None)[0] == grpc.StatusCode.OK
        for key, code in [(None, grpc.StatusCode.UNAUTHENTICATED), (KEYS["viewer"], grpc.StatusCode.OK)]:
            call = channel.stream_stream(reflection)(iter([b""]), metadata=bearer(key), timeout=patience(15))
            try:
                next(call)
                got = grpc.StatusCode.OK
            except grpc.RpcError as e:
                got = e.code()
            assert got == code


def test_a_certificate_has_the_role_of_its_line(managed, pki):
    with secure(managed, pki, pki.deploy) as channel:
        assert answer(channel, SERVICE + "GetStatus", None)[0] == grpc.StatusCode.OK
        assert answer(channel, SERVICE + "UnloadModelVersion", None)[0] == grpc.StatusCode.INVALID_ARGUMENT
        code, why, text = answer(channel, SERVICE + "DeleteModelVersion", None)
        assert (code, why) == (grpc.StatusCode.PERMISSION_DENIED, "ROLE_REQUIRED")
        assert names(text, "admin", "tls:spiffe://example.org/deploy", "operator")
        # If the client sends a key, the key counts instead of the certificate.
        assert answer(channel, SERVICE + "DeleteModelVersion", KEYS["admin"])[0] == grpc.StatusCode.INVALID_ARGUMENT
    with secure(managed, pki, pki.nobody) as channel:
        code, why, text = answer(channel, SERVICE + "GetStatus", None)
        assert (code, why) == (grpc.StatusCode.PERMISSION_DENIED, "NO_ROLE") and "tls:nobody-cn" in text
    with secure(managed, pki, pki.stranger) as channel:
        assert answer(channel, SERVICE + "GetStatus", None, wait=3)[0] in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def test_what_handshakes_at_the_port_needed_goes_back_and_they_are_counted(managed, pki):
    """Clients stop after the server's hello. Symptom: 70 MiB stayed in the manager, and no metric counted these
    clients."""
    process = psutil.Process(managed.process.pid)

    def figure(name):
        with urllib.request.urlopen(f"http://127.0.0.1:{managed.metrics}/metrics", timeout=patience(10)) as scrape:
            return float(re.search(rf"^{re.escape(name)} (\S+)$", scrape.read().decode(), re.M).group(1))
    timeouts = 'sluice_manager_refusals_total{limit="handshake_timeout"}'
    managed.wait(lambda: figure("sluice_manager_connections") == 0, 10, "earlier clients are gone")
    before, n_files, n_refused = process.memory_info().rss, process.num_fds(), figure(timeouts)
    silent = []
    for _ in range(400):
        silent.append(socket.create_connection(("127.0.0.1", managed.port), timeout=patience(10)))
        silent[-1].sendall(client_hello())
    for connection in silent:
        assert connection.recv(1), "it answers each"
    assert figure("sluice_manager_connections") == 400
    with secure(managed, pki, pki.deploy) as channel:
        assert answer(channel, SERVICE + "GetStatus", None)[0] == grpc.StatusCode.OK
    assert sanitized() or process.memory_info().rss > before + (15 << 20), "else this shows nothing"
    managed.wait(lambda: figure(timeouts) == n_refused + 400 and process.num_fds() <= n_files, 20, "all are ended, and counted")
    managed.wait(lambda: sanitized() or process.memory_info().rss <= before + (8 << 20), 10, "their memory is back")
    for connection in silent:
        connection.close()


def test_certificates_without_a_line_have_the_role_of_the_option(manager, pki):
    manager.port = free_port()
    manager.up("--manage-listen", f"127.0.0.1:{manager.port}", "--manage-tls-cert", pki.server[0], "--manage-tls-key", pki.server[1],
               "--manage-tls-client-ca", pki.ca.cert, "--manage-tls-client-role", "viewer")
    with secure(manager, pki, pki.nobody) as channel:
        assert answer(channel, SERVICE + "GetStatus", None)[0] == grpc.StatusCode.OK
        assert answer(channel, SERVICE + "LoadModelVersion", None)[0] == grpc.StatusCode.PERMISSION_DENIED
    with secure(manager, pki) as channel:  # without a client certificate there is no connection
        assert answer(channel, SERVICE + "GetStatus", None, wait=3)[0] in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def test_a_changed_keys_file_is_taken_up_and_a_bad_one_is_not(manager):
    keys = manager.folder / "keys"
    keys.write_text(key_line("ops", "first", "viewer"))
    keys.chmod(0o600)
    manager.up("--manage-keys-file", keys)
    assert answer(manager.channel, SERVICE + "LoadModelVersion", "first")[0] == grpc.StatusCode.PERMISSION_DENIED
    keys.write_text(key_line("ops", "first", "operator"))
    manager.wait(lambda: answer(manager.channel, SERVICE + "LoadModelVersion", "first")[0] == grpc.StatusCode.INVALID_ARGUMENT, 10,
                 "the new role counts")
    keys.write_text("ops nonsense\n")
    manager.wait(lambda: logged(manager.text(), KEYS_NOT_RELOADED), 10, "it is refused")
    assert answer(manager.channel, SERVICE + "LoadModelVersion", "first")[0] == grpc.StatusCode.INVALID_ARGUMENT


def cli(m, *args, **env):
    done = subprocess.run([BIN / "sluice", *map(str, args)], capture_output=True, text=True, timeout=patience(60),
                          env=dict(os.environ, HOME=str(m.folder), **env))
    return done.returncode, done.stdout, done.stderr


def test_the_command_line_reaches_a_port(managed, pki):
    there = ["--manager", f"127.0.0.1:{managed.port}", "--tls-ca", pki.ca.cert]
    code, out, err = cli(managed, "ls", *there, "--json", SLUICE_API_KEY=KEYS["viewer"])
    assert code == 0, err
    code, out, err = cli(managed, "rm", "smol", "1", *there, SLUICE_API_KEY=KEYS["operator"])
    assert code == 1 and names(err, "admin", "who-operator", "operator", "PERMISSION_DENIED", "ROLE_REQUIRED"), err
    code, out, err = cli(managed, "status", *there, "--tls-client-cert", pki.deploy[0], "--tls-client-key", pki.deploy[1])
    assert code == 0, err
    code, out, err = cli(managed, "ls", *there)
    assert code == 1 and names(err, "API_KEY_MISSING", "--api-key-file"), err
    code, out, err = cli(managed, "ls", *there[:2], SLUICE_API_KEY=KEYS["viewer"])
    assert code == 2 and names(err, "--tls-ca", "--tls"), err
    # Over the socket the command sends no key, and works as before.
    code, out, err = cli(managed, "ls", "--manager", f"{managed.state}/run/manager.sock", SLUICE_API_KEY="of the data plane")
    assert code == 0, err


def test_a_new_key_has_its_role(managed):
    code, out, err = cli(managed, "key", "new", "deploy", "--role", "operator", "--expires", "2099-01-01T00:00:00Z")
    key, line = out.splitlines()
    assert code == 0 and line == key_line("deploy", key, "operator", "2099-01-01T00:00:00Z").strip()
    code, out, err = cli(managed, "key", "new", "deploy", "--role", "root")
    assert code == 2 and names(err, "role", "inference", "viewer", "operator", "admin")


def refused(tmp_path, *args):
    done = subprocess.run([BIN / "sluice-manager", "--state-dir", tmp_path / "s", "--worker", BIN / "fake_worker", *map(str, args)],
                          capture_output=True, text=True, timeout=patience(30))
    return done.returncode, done.stderr


def test_a_port_without_tls_or_known_callers_is_refused_at_the_start(tmp_path, pki):
    listen = ["--manage-listen", f"127.0.0.1:{free_port()}"]
    tls = ["--manage-tls-cert", pki.server[0], "--manage-tls-key", pki.server[1]]
    keys, open_keys = tmp_path / "keys", tmp_path / "open"
    keys.write_text(key_line("a", "b", "admin"))
    keys.chmod(0o600)
    open_keys.write_text(key_line("a", "b", "admin"))
    open_keys.chmod(0o644)
    for args, values in [
        (listen, ["--manage-listen", "TLS"]),
        ([*listen, "--manage-keys-file", keys], ["--manage-listen", "TLS"]),
        ([*listen, *tls], ["--manage-listen", "sluice keys create"]),
        ([*listen, *tls, "--manage-keys-file", open_keys], [open_keys, "0644"]),
        ([*listen, *tls, "--manage-keys-file", tmp_path / "none"], [tmp_path / "none"]),
        ([*listen, *tls[:2]], ["--manage-tls-key"]),
        ([*listen, *tls, "--manage-tls-client-role", "viewer"], ["--manage-tls-client-ca"]),
        ([*listen, *tls, "--manage-tls-client-ca", pki.ca.cert, "--manage-tls-client-role", "root"], ["--manage-tls-client-role", "root", "viewer"]),
        (["--manage-group", "no-such-group"], ["--manage-group", "no-such-group"]),
    ]:
        code, stderr = refused(tmp_path, *args)
        assert code == 78 and names(stderr, *values), (args, code, stderr)


@contextlib.contextmanager
def as_user(uid, path, gid=65534):
    """A socket whose connections arrive at `path` as another user's. A thread of that user relays them."""
    folder = tempfile.mkdtemp(dir="/tmp")
    front = socket.socket(socket.AF_UNIX)
    front.bind(f"{folder}/s")
    front.listen()
    failed = []

    def pump(a, b):
        with contextlib.suppress(OSError):
            while data := a.recv(65536):
                b.sendall(data)
        with contextlib.suppress(OSError):
            b.shutdown(socket.SHUT_WR)

    def serve():
        libc = ctypes.CDLL(None, use_errno=True)
        if uid is not None:  # changes this thread only: the C library's function would change all threads
            for number, args in [(116, (0, None)), (119, (gid, gid, gid)), (117, (uid, uid, uid))]:  # setgroups, setresgid, setresuid
                if libc.syscall(number, *args) != 0:
                    failed.append(f"system call {number}: errno {ctypes.get_errno()}")
        while True:
            try:
                client, _ = front.accept()
            except OSError:
                return
            back = socket.socket(socket.AF_UNIX)
            try:
                back.connect(path)
            except OSError as e:
                failed.append(str(e))
                client.close()
                continue
            for pair in [(client, back), (back, client)]:
                threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    with grpc.insecure_channel(f"unix:{folder}/s", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        channel.failed = failed
        yield channel
    front.close()


def test_the_socket_knows_who_is_there(manager):
    """The kernel reports the user at the other end of the socket. Only root can connect as another user; otherwise the
    test uses its own user."""
    keys = manager.folder / "keys"
    keys.write_text("uid:65533 viewer\n")
    keys.chmod(0o600)
    manager.up("--manage-keys-file", keys)
    path = f"{manager.state}/run/manager.sock"
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert answer(manager.channel, SERVICE + "DeleteModelVersion", None)[0] == grpc.StatusCode.INVALID_ARGUMENT  # the owner is admin
    if os.geteuid() != 0:
        return
    with as_user(65534, path) as channel:
        assert answer(channel, SERVICE + "GetStatus", None, wait=3)[0] == grpc.StatusCode.UNAVAILABLE
        assert any("Permission denied" in f for f in channel.failed), channel.failed
    # If the file system admits more users, the user id decides.
    shared = tempfile.mkdtemp(dir="/tmp")
    os.chmod(shared, 0o755)
    manager.term()
    path = f"{shared}/r/manager.sock"
    manager.start("--manage-keys-file", keys, "--run-dir", f"{shared}/r", "--manage-group", "65534")
    manager.wait(lambda: os.path.exists(path) and os.stat(path).st_mode & 0o777 == 0o660, 10, "it listens")
    manager.wait(lambda: os.stat(f"{shared}/r").st_mode & 0o777 == 0o710, 10, "its folder is open to the group")
    assert os.stat(path).st_gid == os.stat(f"{shared}/r").st_gid == 65534
    with as_user(65532, path, gid=65532) as channel:
        assert answer(channel, SERVICE + "GetStatus", None, wait=3)[0] == grpc.StatusCode.UNAVAILABLE
        assert any("Permission denied" in f for f in channel.failed), channel.failed
    with as_user(65534, path) as channel:
        code, why, text = answer(channel, SERVICE + "GetStatus", None)
        assert (code, why) == (grpc.StatusCode.PERMISSION_DENIED, "NO_ROLE") and names(text, "uid:65534"), (text, channel.failed)
    with as_user(65533, path) as channel:
        assert answer(channel, SERVICE + "GetStatus", None)[0] == grpc.StatusCode.OK, channel.failed
        code, why, text = answer(channel, SERVICE + "LoadModelVersion", None)
        assert (code, why) == (grpc.StatusCode.PERMISSION_DENIED, "ROLE_REQUIRED") and names(text, "uid:65533", "viewer")


# Runs a program under a kernel that seems to lack a system call.
WITHOUT = """
import ctypes, errno, os, sys
lib = ctypes.CDLL("libseccomp.so.2")
lib.seccomp_init.restype = ctypes.c_void_p
ctx = ctypes.c_void_p(lib.seccomp_init(0x7fff0000))
assert lib.seccomp_rule_add_array(ctx, 0x00050000 | errno.ENOSYS, lib.seccomp_syscall_resolve_name(sys.argv[1].encode()), 0, None) == 0
assert lib.seccomp_load(ctx) == 0
os.execv(sys.argv[2], sys.argv[2:])
"""


def test_a_kernel_without_openat2_is_named_at_the_start(tmp_path):
    """Only openat2 keeps a path below the root. Without that call a manager with a model root does not start; a manager
    without a root starts."""
    (tmp_path / "models").mkdir()
    command = [sys.executable, "-c", WITHOUT, "openat2", str(BIN / "sluice-manager"), "--state-dir", str(tmp_path / "s"), "--worker",
               str(BIN / "fake_worker")]
    done = subprocess.run([*command, "--model-root", str(tmp_path / "models")], capture_output=True, text=True, timeout=patience(30))
    assert done.returncode == 78 and names(done.stderr, "openat2"), done
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: (tmp_path / "s/run/manager.sock").exists(), 20, "it listens", 0.02)
    process.terminate()
    assert process.wait(patience(15)) == 0


def sandbox_of(pid):
    """Returns (the mode of the system call filter, the no-new-privileges flag, the core file limit in bytes). Mode 2 is
    an active filter."""
    status = dict(line.split(":\t", 1) for line in open(f"/proc/{pid}/status").read().splitlines() if ":\t" in line)
    core = next(line.split()[4] for line in open(f"/proc/{pid}/limits") if line.startswith("Max core file size"))
    return status["Seccomp"], status["NoNewPrivs"], core


@pytest.mark.parametrize("mode", ["inspect", "generate"])
def test_every_mode_of_the_worker_is_in_the_sandbox(mode):
    """The worker's standard output is a full pipe, so the worker blocks while the test reads its state."""
    model = ROOT / "tests/golden/tiny/q8_0.gguf"
    args = {"inspect": ["--model", model, "--text", "--tensors", "--metadata"],
            "generate": [model, "x", "--max-tokens", "200", "--temperature", "1"]}[mode]
    r, w = os.pipe()
    fcntl.fcntl(w, 1031, 4096)  # F_SETPIPE_SZ
    os.set_blocking(w, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(w, b"x")
    os.set_blocking(w, True)
    for extra, filtered in [([], "2"), (["--no-sandbox"], "0")]:
        process = subprocess.Popen([BIN / "sluice-worker", mode, *map(str, args), *extra], stdout=w, stderr=subprocess.DEVNULL)
        try:
            until(lambda: sandbox_of(process.pid)[:2] == (filtered, "1"), 20, lambda: (mode, sandbox_of(process.pid)))
        finally:
            process.kill()
            process.wait()
    os.close(r)
    os.close(w)


def test_a_model_lies_below_the_root_or_nowhere(manager):
    """Neither the manager nor later the worker follows a link out of the root. A file outside is not even looked up."""
    manager.up("--crash-limit", "2", worker=BIN / "sluice-worker")
    inside, outside = manager.models / "dir" / "a.gguf", manager.folder / "outside.gguf"
    inside.parent.mkdir()
    shutil.copy(ROOT / "tests/golden/tiny/q8_0.gguf", inside)
    shutil.copy(inside, outside)
    (manager.models / "out").symlink_to(outside)
    (manager.models / "loop").symlink_to("loop")
    (manager.models / "up").symlink_to("..")
    (manager.models / "absolute").symlink_to(inside)
    (manager.models / "empty").mkdir()
    for path in ["out", "loop", "up/outside.gguf", "../outside.gguf", "../none", str(outside), "/none", "dir/../../outside.gguf", "absolute"]:
        for field, kwargs in [("path", dict(path=path)), ("config.draft_model", dict(path="dir/a.gguf", config=dict(draft_model=path)))]:
            with pytest.raises(grpc.RpcError) as e:
                manager.rpc.RegisterModelVersion(manager.m.RegisterModelVersionRequest(model="x", **kwargs))
            assert (e.value.code(), reason(e.value)) == (grpc.StatusCode.PERMISSION_DENIED, "OUTSIDE_MODEL_ROOT"), (path, e.value.details())
            assert names(e.value.details(), field) and (path.startswith("/") or str(manager.folder) not in e.value.details())
    for path in ["none", "empty", "."]:
        with pytest.raises(grpc.RpcError) as e:
            manager.register("x", path)
        assert e.value.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT), e.value
    assert manager.register("a", "./dir/../dir//a.gguf").version.path == "dir/a.gguf"
    assert manager.register("a", str(inside)).existed
    (manager.models / "in").symlink_to("dir/a.gguf")
    assert manager.register("a", "in").version.path == "dir/a.gguf"
    manager.done(manager.load("a"))
    assert [sandbox_of(pid) for pid in manager.workers()] == [("2", "1", "0")]
    manager.done(manager.unload("a"))
    inside.unlink()
    inside.symlink_to(outside)  # the link leads to a file with the same bytes
    o = manager.end(manager.load("a"))
    assert o.state == manager.t.OPERATION_STATE_FAILED and o.error.reason == "OUTSIDE_MODEL_ROOT", o


def test_a_model_of_the_hub_cache_is_served_below_the_root(manager):
    """The Hub cache keeps contents in blobs/ without names, and a link per file in snapshots/."""
    manager.up(worker=BIN / "sluice-worker")
    blob, link = manager.models / "models--o--m/blobs/4f2a", manager.models / "models--o--m/snapshots/c1/tiny.gguf"
    blob.parent.mkdir(parents=True)
    link.parent.mkdir(parents=True)
    shutil.copy(ROOT / "tests/golden/tiny/q8_0.gguf", blob)
    link.symlink_to("../../blobs/4f2a")
    version = manager.register("a", str(link)).version
    assert version.path == "models--o--m/snapshots/c1/tiny.gguf"
    assert manager.register("b", "models--o--m/snapshots/c1").version.info.weights_digest == version.info.weights_digest
    manager.done(manager.load("a"))
    assert len(manager.workers()) == 1


def shard(path, tensor):
    """Writes a safetensors file with a tensor of two floats."""
    header = json.dumps({tensor: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))


def test_a_folder_is_read_with_all_its_shards(manager):
    """Symptom: the process that inspects had 64 files, so it failed on a model of 100 shards."""
    manager.up(worker=BIN / "sluice-worker")
    folder = manager.models / "many"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": ["OfNoFamily"], "hidden_size": 2}))
    shards = {f"t{i}": f"model-{i:05}-of-00100.safetensors" for i in range(100)}
    for tensor, name in shards.items():
        shard(folder / name, tensor)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))

    def refusal(path="many"):
        with pytest.raises(grpc.RpcError) as e:
            manager.register("x", path)
        return reason(e.value), e.value.details()

    why, text = refusal()  # the files are read, and the model lacks a tokenizer and a known architecture
    assert why in ("MODEL_UNSUPPORTED", "MODEL_FILE_INVALID") and not any(names(text, name) for name in shards.values()), text
    (folder / shards["t7"]).write_bytes(b"")
    why, text = refusal()
    assert why == "MODEL_FILE_INVALID" and names(text, shards["t7"])
    (folder / shards["t7"]).unlink()
    why, text = refusal()
    assert why == "MODEL_FILE_INVALID" and names(text, shards["t7"])
    (folder / shards["t7"]).symlink_to("/etc/hostname")
    why, text = refusal()
    assert why == "OUTSIDE_MODEL_ROOT" and names(text, shards["t7"])


def listening(pids):
    """Returns the TCP ports that the processes listen on, from /proc/net/tcp, /proc/net/tcp6 and their descriptors."""
    inodes = {}
    for pid in pids:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                link = os.readlink(f"/proc/{pid}/fd/{fd}")
                if link.startswith("socket:["):
                    inodes[link[8:-1]] = pid
    found = {pid: set() for pid in pids}
    others = {pid: set() for pid in pids}
    for table in ["tcp", "tcp6", "udp", "udp6", "raw", "raw6"]:
        with open(f"/proc/net/{table}") as f:
            for words in map(str.split, f.readlines()[1:]):
                if words[9] in inodes and (words[3] == "0A" or not table.startswith("tcp")):
                    (found if table.startswith("tcp") else others)[inodes[words[9]]].add(
                        (words[1].split(":")[0].removeprefix("0000000000000000FFFF0000"), int(words[1][-4:], 16)))  # IPv4, mapped
    assert not any(others.values()), others
    return found


def test_each_program_listens_where_it_was_told_and_nowhere_else(managed, pki, tmp_path, stubs):
    loopback = "0100007F"
    manager_metrics, port, server_metrics = free_port(), free_port(), free_port()
    sluice = Sluice(tmp_path, stubs)
    sluice.start(ROOT / "tests/golden/tiny/q8_0.gguf", "--name", "tiny", "--metrics", f"127.0.0.1:{server_metrics}", "--manager-metrics",
                 f"127.0.0.1:{manager_metrics}", "--threads", "1",
                 env={"SLUICE_MANAGE_LISTEN": f"127.0.0.1:{port}", "SLUICE_MANAGE_TLS_CERT": str(pki.server[0]),
                      "SLUICE_MANAGE_TLS_KEY": str(pki.server[1]), "SLUICE_MANAGE_TLS_CLIENT_CA": str(pki.ca.cert)})
    try:
        sluice.wait(lambda: len(sluice.ready()) == 1, 30, "ready")
        manager, server, worker = (sluice.children(f"sluice-{n}") for n in ("manager", "server", "worker"))
        assert [len(manager), len(server), len(worker)] == [1, 1, 1]
        assert listening([*manager, *server, *worker, sluice.process.pid]) == {
            manager[0]: {(loopback, manager_metrics), (loopback, port)}, server[0]: {(loopback, sluice.port), (loopback, server_metrics)},
            worker[0]: set(), sluice.process.pid: set()}
    finally:
        sluice.stop()
    assert listening([managed.process.pid]) == {managed.process.pid: {(loopback, managed.port), (loopback, managed.metrics)}}
    managed.term()  # a manager without a port and a metrics address listens nowhere
    managed.up()
    assert listening([managed.process.pid]) == {managed.process.pid: set()}
