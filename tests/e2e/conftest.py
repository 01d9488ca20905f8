"""End-to-end tests run the real programs on free ports in a state directory of their own.

SLUICE_BIN names the directory of the programs, SLUICE_TEST_MODEL the sample model (tests/run.sh sets both)."""
import itertools
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import time

import grpc
import psutil
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("SLUICE_BIN", ROOT / "build/dev/bin"))
TINY = ROOT / "tests/golden/checkpoints"
# Test files use helpers of test files in other folders.
sys.path[:0] = [str(folder) for folder in pathlib.Path(__file__).parent.iterdir() if folder.is_dir()]


# Programs of several tests run at once. So no program takes a default port of HTTP or metrics, unless a test names a
# port.
os.environ["SLUICE_HTTP_LISTEN"] = os.environ["SLUICE_METRICS"] = os.environ["SLUICE_MANAGER_METRICS"] = ""


# Factor for all time-outs of the tests. 1 by default; tests/long.sh sets a larger factor for programs that run ten
# times slower.
TIME_SCALE = float(os.environ.get("SLUICE_TIME_SCALE", "1"))


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def patience(seconds):
    """Returns a time-out, scaled for the build and for the number of processes that want each processor now."""
    return seconds * TIME_SCALE * max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


def until(condition, seconds, what, tick=0.01):
    """Waits for the condition and returns its value. `what`: a text, or a function that makes a text or an exception."""
    end = time.monotonic() + patience(seconds)
    while not (value := condition()):
        if time.monotonic() > end:
            said = what() if callable(what) else what
            raise said if isinstance(said, Exception) else AssertionError(f"not within {seconds} s: {said}")
        time.sleep(tick)  # between two checks of a condition
    return value


def keeps(condition, seconds, what, tick=0.02):
    """Asserts that the condition is true all the time. For states that must not change."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert condition(), what() if callable(what) else what
        time.sleep(tick)  # between two checks of a state that must not change


def steady(value, seconds=0.3, within=20):
    """Returns a value when the value has not changed for the given time."""
    seen, since = value(), time.monotonic()

    def settled():
        nonlocal seen, since
        if (now := value()) != seen:
            seen, since = now, time.monotonic()
        return time.monotonic() - since >= seconds
    until(settled, within, lambda: f"{seen} changes on and on")
    return seen


def stand_still(seconds, *pids):
    """Stops the processes for the given time, then continues them."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)  # the pause is the fault
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def sanitized():
    """True if the programs are instrumented: slower, and with extra memory."""
    text = (BIN / "sluice-server").read_bytes()
    return b"__asan_init" in text or b"__tsan_init" in text


def names(text, *values):
    """True if a text for people names each of these values: a path, a number, a flag, a field, a reason. The other
    words of the text may change."""
    return all(re.search(rf"(?<![\w]){re.escape(str(v))}(?![\w])", text) for v in values)


def details(error, kind):
    """Returns the first google.rpc detail of that kind, or an empty detail."""
    from google.rpc import status_pb2
    found = kind()
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            any(detail.Unpack(found) for detail in status_pb2.Status.FromString(value).details)
    return found


def reason(error):
    from google.rpc import error_details_pb2
    return details(error, error_details_pb2.ErrorInfo).reason


def bad_field(error):
    """Returns the request field at fault, or ""."""
    from google.rpc import error_details_pb2
    violations = details(error, error_details_pb2.BadRequest).field_violations
    return violations[0].field if violations else ""


def cause(event):
    """Returns the reason among the attributes of an event as JSON, or "". In JSON a map is a list of entries."""
    return next((a["value"] for a in event.get("attributes", []) if a["key"] == "reason"), "")


def model_path():
    path = os.environ.get("SLUICE_TEST_MODEL") or os.environ.get("SLUICE_MODEL")
    assert path and os.path.exists(path), "SLUICE_TEST_MODEL must name the sample model (etc/fetch_model.sh prints it)"
    return path


# With files side by side, the longest begin first.
LONGEST = ["resume", "gpu_park", "fault_clients", "faults", "cli_usage", "park", "serve", "devices", "bench", "gpu", "lifecycle",
           "speculate", "seeded_bugs", "speculate_model", "clients", "generate_stream", "scale", "gpu_wake", "metrics", "malloc",
           "scheduling", "traffic", "device_room"]


def pytest_configure(config):
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker and os.environ.get("SLUICE_TEST_PIN"):  # compute threads that share their cores with others mostly wait for each other
        cpus = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cpus[int(worker[2:]) % len(cpus)]})
    config.addinivalue_line("markers", "alone: measures time or the machine, so nothing may run beside it (tests/run.sh)")
    config.addinivalue_line("markers", "long(but=[]): measures times at length, or another test holds the same promise; with SLUICE_LONG alone "
                                       "(tests/long.sh). `but`: these parameters are always on")
    config.addinivalue_line("markers", "emulated: on the emulated GPU, which is built with the CUDA toolkit's headers")


# Most seconds of a test. A test that hangs fails, and the others run on.
MOST_SECONDS = 15 * 60


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    def give_up(number, frame):
        pytest.fail(f"the test hangs: {patience(MOST_SECONDS):.0f} s are over")
    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, patience(MOST_SECONDS))
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def pytest_collection_modifyitems(config, items):
    if not os.environ.get("SLUICE_LONG"):
        left = [item for item in items for mark in item.iter_markers("long") if not mark.kwargs or item.callspec.id not in mark.kwargs["but"]]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]
    rank = {f"test_{name}": i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))


@pytest.fixture(scope="session")
def stubs(tmp_path_factory):
    """Python modules that grpcio-tools generates from proto/: a foreign client."""
    out = tmp_path_factory.mktemp("stubs")
    protos = [str(p.relative_to(ROOT / "proto")) for p in (ROOT / "proto/sluice").rglob("*.proto")]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT / 'proto'}", f"--python_out={out}",
                    f"--grpc_python_out={out}", *protos], check=True)
    sys.path.insert(0, str(out))
    import importlib
    names = {"inference": "sluice.v1.inference", "manager": "sluice.manager.v1.manager",
             "types": "sluice.manager.v1.types", "routing": "sluice.manager.v1.routing",
             "worker": "sluice.worker.v1.worker", "report": "sluice.worker.v1.report", "common": "sluice.v1.common"}
    class Stubs:
        pass
    stubs = Stubs()
    for short, full in names.items():
        setattr(stubs, short, importlib.import_module(full + "_pb2"))
        setattr(stubs, short + "_grpc", importlib.import_module(full + "_pb2_grpc"))
    return stubs


def launch_record(pid, stubs):
    """The launch record that a worker inherited; None for a worker that was started by flags."""
    folder = pathlib.Path(f"/proc/{pid}/fd")
    for fd in sorted(folder.iterdir(), key=lambda fd: int(fd.name)):
        try:
            if os.readlink(fd).startswith("/memfd:sluice-launch"):
                return stubs.worker.Launch.FromString(fd.read_bytes())
        except FileNotFoundError:  # the worker has closed it meanwhile
            pass
    return None


PORTS = range(10000, 32000)  # below the ports that the kernel gives to outgoing connections
BLOCK = 100
_block = None  # the socket that holds this process's block of ports, and the ports in the order of their use


def free_port():
    """Returns a port that no other process of the tests gets. Each process owns a block of ports. An abstract socket's
    name marks the block, and the kernel frees the name with the process. A process uses its ports in order, so a
    recently used port comes last."""
    global _block
    if _block is None:
        first = list(range(PORTS.start, PORTS.stop, BLOCK))
        random.SystemRandom().shuffle(first)
        for port in first:
            held = socket.socket(socket.AF_UNIX)
            try:
                held.bind(f"\0sluice-test-ports-{port}")
            except OSError:
                held.close()
                continue
            _block = held, itertools.cycle(range(port, port + BLOCK))
            break
        assert _block, "every block of ports is taken by tests that run"
    for port in itertools.islice(_block[1], BLOCK):
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue  # another process holds this block
            return port
    raise AssertionError("no free port")


class Sluice:
    """A `sluice serve` with helpers around it."""

    def __init__(self, state, stubs):
        self.state = pathlib.Path(state)
        self.stubs = stubs
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.process = None
        self.channel = grpc.insecure_channel(self.address)
        self.inference = stubs.inference_grpc.InferenceStub(self.channel)

    def start_measured(self, *args, **kwargs):
        """Starts `sluice serve` with the server's /metrics at metrics_address."""
        self.metrics_address = f"127.0.0.1:{free_port()}"
        return self.start("--metrics", self.metrics_address, *args, **kwargs)

    def start(self, *args, env=None, **kwargs):
        """Starts `sluice serve`. `env`: options of the three programs, for example SLUICE_STALL_TIMEOUT="2s". The other
        arguments are Popen's."""
        self.log = open(self.state / "serve.out", "ab")
        self.process = subprocess.Popen([BIN / "sluice", "serve", "--json", "--state-dir", self.state, "--listen", self.address,
                                         "--drain-grace", "5s", *args], stdout=self.log, stderr=self.log,
                                        env=dict(os.environ, **(env or {})), **kwargs)
        self.wait(lambda: self.cli("status", check=False).returncode == 0, 20, "the manager answers")
        return self

    def cli(self, *args, check=True, timeout=120):
        result = subprocess.run([BIN / "sluice", *args, "--state-dir", self.state], capture_output=True, text=True,
                                timeout=patience(timeout))
        if check and result.returncode != 0:
            raise AssertionError(f"sluice {' '.join(map(str, args))}: {result.stderr}\n{self.tail()}")
        return result

    def run(self, *args, **kwargs):
        return self.cli("run", *args, "--server", self.address, **kwargs)

    def announced(self, event, **fields):
        """Returns the events of that name from `sluice serve --json` whose fields have these values."""
        told = [json.loads(line) for line in (self.state / "serve.out").read_text().splitlines() if line.startswith('{"')]
        return [e for e in told if e.get("event") == event and all(e.get(k) == v for k, v in fields.items())]

    def tail(self):
        text = ""
        for path in [self.state / "serve.out", *sorted(self.state.glob("log/*.log")),
                     *sorted(self.state.glob("run/replica-*/log"))]:
            if path.exists():
                text += f"--- {path.name}\n" + path.read_text(errors="replace")[-3000:]
        return text

    def wait(self, condition, seconds, what):
        def true():
            assert self.process.poll() is None, f"sluice serve ended: {self.tail()}"
            return condition()
        until(true, seconds, lambda: f"{what}\n{self.tail()}", 0.05)

    def children(self, name):
        """Returns the pids of this instance's programs by name, from their command lines."""
        found = []
        for p in psutil.process_iter(["pid", "cmdline"]):
            line = p.info["cmdline"] or []
            if line and os.path.basename(line[0]) == name and any(str(self.state) in w for w in line):
                found.append(p.info["pid"])
        return found

    def replicas(self):
        return json.loads(self.cli("ps", "--json").stdout).get("replicas", [])

    def ready(self):
        return [r for r in self.replicas() if r["state"] == "REPLICA_STATE_READY"]

    def manager_stub(self):
        channel = grpc.insecure_channel(f"unix:{self.state}/run/manager.sock")
        return self.stubs.manager_grpc.ModelManagerStub(channel)

    def request(self, model, prompt, **kwargs):
        inference = self.stubs.inference
        sampling = {k: kwargs.pop(k) for k in list(kwargs) if k in ("temperature", "top_k", "top_p", "min_p", "seed", "n")}
        max_tokens = kwargs.pop("max_tokens", 32)
        stopping = inference.Stopping(max_tokens=max_tokens, **{k: kwargs.pop(k) for k in list(kwargs)
                                                               if k in ("stop", "ignore_eos", "min_tokens")})
        return inference.GenerateRequest(model=model, text=prompt, sampling=inference.Sampling(**sampling),
                                         stopping=stopping, **kwargs)

    def generate(self, request, **kwargs):
        """Returns (text, ids, finished) of choice 0 over the stream."""
        text, ids, finished = "", [], None
        for response in self.inference.Generate(request, **kwargs):
            kind = response.WhichOneof("event")
            if kind == "tokens" and response.tokens.choice == 0:
                text += response.tokens.text
                ids += list(response.tokens.ids)
            elif kind == "finished":
                finished = response.finished
        return text, ids, finished

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(patience(30))
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise AssertionError(f"sluice serve did not stop: {self.tail()}")
        for name in ("sluice-manager", "sluice-server", "sluice-worker"):
            left = self.children(name)
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            assert not left, f"{name} outlived sluice serve: {left}"


@pytest.fixture
def fresh(tmp_path, stubs):
    sluice = Sluice(tmp_path, stubs)
    yield sluice
    sluice.stop()


@pytest.fixture(scope="module")
def served(tmp_path_factory, stubs):
    """The sample model, loaded once per test file as "smol"."""
    sluice = Sluice(tmp_path_factory.mktemp("state"), stubs)
    sluice.start()
    try:
        sluice.cli("register", "smol", model_path(), "--version", "1")
        sluice.cli("load", "smol")
        sluice.wait(lambda: sluice.run("smol", "hi", "-n", "1", check=False).returncode == 0, 30, "the model answers")
        yield sluice
    finally:
        sluice.stop()
