"""The C, Python and Go clients against the real server. Each client runs as the example program that ships with
it."""
import concurrent.futures
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import grpc
import pytest

import pki
from conftest import BIN, ROOT, free_port, keeps, model_path, names, patience

LANGUAGES = ["c", "python", "go"]


@pytest.fixture(scope="session")
def python_package(tmp_path_factory):
    """The package clients/python as `pip install` leaves the package, with the stubs that the build generated."""
    source, target = tmp_path_factory.mktemp("source") / "python", tmp_path_factory.mktemp("target")
    shutil.copytree(ROOT / "clients/python", source)  # a build writes files next to its sources
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-build-isolation",
                    "--no-deps", "--no-index", "--target", target, source], check=True, timeout=patience(120),
                   env={**os.environ, "SLUICE_SOURCE": str(ROOT)})
    return target


@pytest.fixture(scope="session")
def go_program():
    """The Go program is built next to the other programs and kept there. Go's own cache makes the next build
    quick."""
    gopath = BIN.parent / "go"
    env = {**os.environ, "GO111MODULE": "off", "GOPATH": f"{gopath}:/usr/share/gocode", "GOCACHE": str(gopath / "cache"),
           "GOFLAGS": "-p=2", "TMPDIR": str(gopath)}  # programs under TSan get no TMPDIR (tests/long.sh)
    subprocess.run([ROOT / "clients/go/generate.sh", gopath, BIN.parent], check=True, timeout=patience(60))
    subprocess.run(["go", "vet", "sluice", "sluice/example"], check=True, timeout=patience(600), env=env, cwd="/")
    subprocess.run(["go", "build", "-o", gopath / "example", "sluice/example"], check=True, timeout=patience(600), env=env, cwd="/")
    return gopath / "example"


@pytest.fixture
def client(request, served):
    """command(mode, prompt, n) starts the example program of the language under test."""
    def start(mode, prompt, n, address=None, ids=True, **more):
        if request.param == "c":
            command, env = [BIN / "sluice-c-example"], {}
        elif request.param == "python":
            command = [sys.executable, ROOT / "clients/python/example.py"]
            env = {"PYTHONPATH": str(request.getfixturevalue("python_package"))}
        else:
            command, env = [request.getfixturevalue("go_program")], {}
        clean = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
        return subprocess.Popen([*map(str, command), address or served.address, "smol", mode, prompt, str(n)],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env={**clean, **({"SLUICE_EXAMPLE_IDS": "1"} if ids else {}), **env, **more})
    return start


def finish(process, seconds=60):
    out, err = process.communicate(timeout=seconds)
    return out, err, process.returncode


every_language = pytest.mark.parametrize("client", LANGUAGES, indirect=True)


def running(served):
    models = served.inference.ListModels(served.stubs.inference.ListModelsRequest()).models
    return sum(v.n_running + v.n_queued for m in models for v in m.versions)


def listens(address):
    host, port = address.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=patience(1)).close()
        return True
    except OSError:
        return False


def reference(served, prompt, n):
    return served.generate(served.request("smol", prompt, max_tokens=n))[1]


@every_language
def test_streams_the_tokens_that_grpcio_gets(served, client):
    out, err, code = finish(client("generate", "The capital of France is", 24))
    assert code == 0, err
    assert list(map(int, out.split())) == reference(served, "The capital of France is", 24)
    out, err, code = finish(client("generate", "Grüße \U0001f600", 16, ids=False))
    assert code == 0 and out == served.generate(served.request("smol", "Grüße \U0001f600", max_tokens=16))[0] + "\n", err


@every_language
@pytest.mark.parametrize("where", ["tcp", "unix"])
def test_loopback_and_sockets_never_go_to_a_proxy(served, client, where):
    """With http_proxy set, a client's call to 127.0.0.1 went to the proxy."""
    address = served.address if where == "tcp" else f"unix:{served.state}/run/server.sock"
    with socket.socket() as proxy:
        proxy.bind(("127.0.0.1", 0))
        proxy.listen(8)
        names = [name for base in ("http", "https", "grpc", "all") for name in (f"{base}_proxy", f"{base}_proxy".upper())]
        env = dict.fromkeys(names, "http://127.0.0.1:%d" % proxy.getsockname()[1])
        out, err, code = finish(client("generate", "The capital of France is", 4, address=address, no_proxy="", NO_PROXY="", **env))
        assert code == 0, err
        proxy.setblocking(False)
        with pytest.raises(BlockingIOError):
            proxy.accept()


@every_language
def test_a_socket_s_path_is_a_path(served, client, tmp_path):
    """gRPC parses the text after "unix:" as a URI: "#" ended the path, and "%20" became a space."""
    folder = tmp_path / "a#b?c%20d e"
    folder.mkdir()
    (folder / "server.sock").symlink_to(served.state / "run/server.sock")
    out, err, code = finish(client("generate", "The capital of France is", 4, address=f"unix:{folder}/server.sock"))
    assert code == 0, err


@every_language
def test_cancel_ends_the_request_on_the_server(served, client):
    out, err, code = finish(client("cancel", "Count to a million.", 1500))
    ids = list(map(int, out.splitlines()[0].split()))
    assert code == 1 and out.splitlines()[-1].startswith("CANCELLED") and 3 <= len(ids) < 1500
    assert ids == reference(served, "Count to a million.", len(ids))
    served.wait(lambda: running(served) == 0, 5, "the request has gone")


@every_language
def test_a_deadline_ends_it_too(served, client):
    started = time.monotonic()
    out, err, code = finish(client("deadline", "Count to a million.", 400))
    assert code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0] and out.splitlines()[-1].startswith("DEADLINE_EXCEEDED")
    assert time.monotonic() - started < patience(20)
    served.wait(lambda: running(served) == 0, 5, "the request has gone")


@every_language
def test_errors_carry_the_field(served, client):
    out, err, code = finish(client("bad", "x", 1))
    assert code == 3 and out.splitlines()[-1] == "INVALID_ARGUMENT sampling.temperature"
    assert names(err, "sampling.temperature", "-1")


@every_language
def test_eight_requests_share_a_stream(served, client):
    """Eight requests share a stream. The client of one request works with credit, and one request is cancelled. Each
    request gets the same ids as when it runs alone."""
    out, err, code = finish(client("many", "Write about the number", 8))
    assert code == 0, err
    lines = {line.split()[0]: line.split()[1:] for line in out.splitlines()}
    assert set(lines) == {f"r{i}" for i in range(8)}
    for i in range(7):
        outcome, ids = lines[f"r{i}"][0], list(map(int, lines[f"r{i}"][1:]))
        assert outcome == "ok" and ids == reference(served, f"Write about the number {i}", 24), i
    outcome, ids = lines["r7"][0], list(map(int, lines["r7"][1:]))
    assert outcome == "CANCELLED" and 1 <= len(ids) < 512
    assert ids == reference(served, "Write about the number 7", len(ids))
    served.wait(lambda: running(served) == 0, 5, "the requests have gone")


@every_language
def test_a_lost_stream_is_taken_up_again(served, client):
    out, err, code = finish(client("lost", "The capital of France is", 48))
    assert code == 0, err
    assert list(map(int, out.split())) == reference(served, "The capital of France is", 48)


def test_python_frames_say_what_was_asked(python_package):
    """A field that the caller does not set is absent, so the server uses its default. An empty list of stop strings
    differs from an absent list."""
    ask = ("import types\n"
           "from sluice import inference_pb2 as pb\n"
           "from sluice.client import Stream\n"
           "stream = Stream(types.SimpleNamespace(GenerateStream=lambda frames: frames))\n"
           "stream.update('a', max_tokens=7)\n"
           "stream.update('b', priority=-3, stop=['x', 'y'])\n"
           "stream.update('c', stop=[])\n"
           "stream.reattach('d', {0: 5, 2: 0})\n"
           "stream.reattach('e', {})\n"
           "stream.finish()\n"
           "F, U, R = pb.GenerateStreamRequest, pb.UpdateFrame, pb.ReceivedTokens\n"
           "assert list(stream) == [\n"
           "    F(request_id='a', update=U(max_tokens=7)),\n"
           "    F(request_id='b', update=U(priority=-3, stop=['x', 'y'], replace_stop=True)),\n"
           "    F(request_id='c', update=U(replace_stop=True)),\n"
           "    F(request_id='d', reattach=pb.ReattachFrame(received=[R(n_tokens=5), R(choice=2)])),\n"
           "    F(request_id='e', reattach=pb.ReattachFrame())]\n")
    subprocess.run([sys.executable, "-c", ask], timeout=patience(60), check=True, env={**os.environ, "PYTHONPATH": str(python_package)})


@every_language
def test_a_call_lives_through_a_restart_of_the_server(served, client):
    """The client retries for at least three seconds while the server is away. If a busy machine keeps the server away
    for longer, the client may fail, and the test tries again."""
    expected = reference(served, "The capital of France is", 8)
    for _ in range(5):
        before = served.children("sluice-server")
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        process = client("generate", "The capital of France is", 8)
        served.wait(lambda: served.children("sluice-server") not in ([], before) and listens(served.address), 20, "the server is back")
        away = time.monotonic() - killed
        out, err, code = finish(process)
        served.wait(lambda: served.run("smol", "hi", "-n", "1", check=False).returncode == 0, 20, "it answers")
        if code == 0 or away < 2:
            break
    assert code == 0, f"{out} {err}"
    assert list(map(int, out.split())) == expected


def test_the_text_of_a_python_error_ends_with_its_reason(python_package, served):
    """Symptom: str() of a SluiceError lacked the reason, so a log line did not have it."""
    ask = ("import sys, sluice\n"
           "from sluice import inference_pb2 as pb\n"
           "with sluice.Client(sys.argv[1]) as client:\n"
           "    try:\n"
           "        client.complete(pb.GenerateRequest(model='none', text='x'), timeout=30)\n"
           "    except sluice.SluiceError as error:\n"
           "        print(str(error))\n")
    out = subprocess.run([sys.executable, "-c", ask, served.address], capture_output=True, text=True, timeout=patience(60), check=True,
                         env={**os.environ, "PYTHONPATH": str(python_package)}).stdout
    assert out.endswith(" (MODEL_NOT_FOUND)\n"), out


def test_a_key_goes_in_plain_text_to_this_machine_only(python_package):
    """A host name that only begins like loopback is a foreign host. A target with a foreign address next to a
    loopback address is refused too."""
    ask = ("import sys, sluice\n"
           "for target in sys.argv[1:]:\n"
           "    try:\n"
           "        sluice.Client(target, api_key='slk_x').close()\n"
           "        print('sent')\n"
           "    except ValueError:\n"
           "        print('kept')\n")
    near = ["127.0.0.1:1", "localhost:1", "dns:///127.0.0.9:1", "ipv6:[::1]:1", "unix:/tmp/x"]
    far = ["127.example.com:1", "127.0.0.1.example.com:1", "ipv4:127.0.0.1:1,192.0.2.1:1", "10.0.0.1:1", "[2001:db8::1]:1"]
    out = subprocess.run([sys.executable, "-c", ask, *near, *far], capture_output=True, text=True, timeout=patience(60), check=True,
                         env={**os.environ, "PYTHONPATH": str(python_package)}).stdout.split()
    assert out == ["sent"] * len(near) + ["kept"] * len(far)


class Moody:
    """A server that answers each Generate with the next scripted failure (code, pushback), and then with tokens."""

    def __init__(self, stubs, port, moods):
        self.n_calls, self.break_after_tokens, outer, pb = 0, False, self, stubs.inference

        class Servicer(stubs.inference_grpc.InferenceServicer):
            def Generate(self, request, context):
                outer.n_calls += 1
                if outer.n_calls <= len(moods):
                    code, pushback = moods[outer.n_calls - 1]
                    if pushback is not None:
                        context.set_trailing_metadata((("grpc-retry-pushback-ms", str(pushback)),))
                    context.abort(code, "not in the mood")
                yield pb.GenerateResponse(tokens=pb.Tokens(ids=[7, 8], text="ab"))
                if outer.break_after_tokens:
                    context.abort(grpc.StatusCode.UNAVAILABLE, "lost")
                yield pb.GenerateResponse(finished=pb.Finished(n_tokens=2))

        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
        stubs.inference_grpc.add_InferenceServicer_to_server(Servicer(), self.server)
        assert self.server.add_insecure_port(f"127.0.0.1:{port}") == port
        self.server.start()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.server.stop(0).wait()


UNAVAILABLE, EXHAUSTED = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED


@every_language
@pytest.mark.parametrize("moods, n_calls, outcome", [
    ([(UNAVAILABLE, None), (EXHAUSTED, 30)], 3, "7 8"),  # both codes, with and without pushback
    ([(UNAVAILABLE, 10)] * 4, 5, "7 8"),                 # as many failures as the retry policy allows
    ([(UNAVAILABLE, 10)] * 5, 5, "UNAVAILABLE"),         # a failure more than the retry policy allows
    ([(EXHAUSTED, -1)], 1, "RESOURCE_EXHAUSTED"),        # the server's pushback forbids a retry
    ([(grpc.StatusCode.INVALID_ARGUMENT, None)], 1, "INVALID_ARGUMENT"),
], ids=["twice", "four-times", "too-often", "never", "not-that-code"])
def test_what_fails_before_its_first_answer_is_repeated_as_the_policy_says(served, stubs, client, moods, n_calls, outcome):
    port = free_port()
    with Moody(stubs, port, moods) as moody:
        out, err, code = finish(client("generate", "x", 8, address=f"127.0.0.1:{port}"))
        assert out.split("\n")[0 if code == 0 else 1].strip() == outcome, err
        assert moody.n_calls == n_calls


@every_language
def test_pushback_goes_before_the_backoff(served, stubs, client):
    port = free_port()
    with Moody(stubs, port, [(UNAVAILABLE, 1500)]) as moody:
        started = time.monotonic()
        out, err, code = finish(client("generate", "x", 8, address=f"127.0.0.1:{port}"))
        assert code == 0 and moody.n_calls == 2 and time.monotonic() - started >= 1.5


@every_language
def test_a_server_that_is_not_there_yet_is_waited_for(served, stubs, client):
    port = free_port()
    process = client("generate", "x", 8, address=f"127.0.0.1:{port}")
    keeps(lambda: process.poll() is None, 0.4, "it waits")
    with Moody(stubs, port, []) as moody:
        out, err, code = finish(process)
        assert code == 0 and out.strip() == "7 8" and moody.n_calls == 1, err


@every_language
def test_a_stream_that_has_begun_is_not_repeated(served, stubs, client):
    port = free_port()
    with Moody(stubs, port, []) as moody:
        moody.break_after_tokens = True
        out, err, code = finish(client("generate", "x", 8, address=f"127.0.0.1:{port}"))
        assert code == UNAVAILABLE.value[0] and out.startswith("7 8") and moody.n_calls == 1


def test_tls_and_api_keys(fresh, request, tmp_path, python_package, go_program):
    authority = pki.Authority(tmp_path, "ca")
    cert, key = authority.issue("server", "localhost", "IP:127.0.0.1,DNS:localhost")
    made = subprocess.run([BIN / "sluice", "key", "new", "acme"], capture_output=True, text=True, check=True)
    api_key, line = made.stdout.splitlines()
    keys = tmp_path / "keys"
    keys.write_text(line + "\n")
    keys.chmod(0o600)
    fresh.start("--tls-cert", cert, "--tls-key", key, "--keys-file", keys)
    fresh.cli("register", "smol", model_path(), "--version", "1")
    fresh.cli("load", "smol")
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
    programs = {"c": [BIN / "sluice-c-example"], "python": [sys.executable, ROOT / "clients/python/example.py"],
                "go": [go_program]}

    def ask(language, **env):
        return subprocess.run([*map(str, programs[language]), fresh.address, "smol", "generate", "The capital of France is",
                               "4"], capture_output=True, text=True, timeout=patience(60),
                              env={**clean, "PYTHONPATH": str(python_package), **env})
    for language in LANGUAGES:
        good = ask(language, SLUICE_TLS_CA=str(authority.cert), SLUICE_API_KEY=api_key)
        assert good.returncode == 0 and "Paris" in good.stdout, good.stderr
        for bad in ({"SLUICE_API_KEY": api_key[:-1] + "x"}, {}):
            refused = ask(language, SLUICE_TLS_CA=str(authority.cert), **bad)
            assert refused.returncode == grpc.StatusCode.UNAUTHENTICATED.value[0], refused.stderr
        plain = ask(language, SLUICE_API_KEY=api_key)
        assert plain.returncode != 0 and "Paris" not in plain.stdout


def test_the_c_library_is_usable_where_it_is_installed(served, tmp_path):
    """The program of the README compiles against an installed tree, with the commands of the README."""
    readme = (ROOT / "clients/c/README.md").read_text()
    source = readme.split("```c\n")[1].split("```")[0].replace("127.0.0.1:8001", served.address)
    (tmp_path / "ask.c").write_text(source)
    subprocess.run(["cmake", "--install", BIN.parent, "--prefix", tmp_path / "usr"], check=True, capture_output=True,
                   timeout=patience(120))
    pc = next((tmp_path / "usr").rglob("sluice.pc")).parent
    command = readme.split("```\ncc ")[1].split("\n")[0]
    library = (BIN.parent / "lib/libsluice.so").read_bytes()
    for sign, sanitizer in ((b"__asan_init", "address"), (b"__tsan_init", "thread")):  # the program needs the sanitizer that the library needs
        command = f"-fsanitize={sanitizer} {command}" if sign in library else command
    env = {**os.environ, "PKG_CONFIG_PATH": str(pc), "LD_LIBRARY_PATH": str(pc.parent), "TMPDIR": str(tmp_path)}
    subprocess.run(f"cc -std=c11 -Wall -Wextra -Werror {command}", shell=True, check=True, cwd=tmp_path, env=env, timeout=patience(60))
    result = subprocess.run([tmp_path / "ask"], capture_output=True, text=True, env=env, timeout=patience(60))
    assert result.returncode == 0 and "Paris" in result.stdout, result.stderr
    assert (tmp_path / "usr/share/man/man1/sluice-run.1").exists()
    assert (tmp_path / "usr/share/bash-completion/completions/sluice").exists()


def test_the_service_config_is_one_and_the_same(python_package, go_program):
    text = (ROOT / "clients/service_config.json").read_text()
    assert (python_package / "sluice/service_config.json").read_text() == text
    assert text in (BIN.parent / "go/src/sluicepb/service_config.go").read_text()
    assert text.replace("\n", "").encode() in (BIN.parent / "lib/libsluice.so").read_bytes()
