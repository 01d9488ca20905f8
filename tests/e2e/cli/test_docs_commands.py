"""The commands of README.md and docs/use. Each command runs here against a cluster, or is an exception with a
reason."""
import json
import os
import re
import shlex
import signal
import subprocess
import sys

import pytest
from google.protobuf import descriptor_pool, json_format, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from conftest import BIN, ROOT, Sluice, free_port, model_path, patience, until
from test_clients import python_package  # noqa: F401 (a fixture)

PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs/use").glob("*.md"))]

# Prefixes of commands that do not run here, with the reason or the test that runs them. "$" marks the end of a
# command.
EXCEPTIONS = {
    "etc/quickstart.sh": "tests/e2e/quickstart.sh runs it",
    "tests/run.sh": "runs this test",
    "cmake ": "tests/e2e/package.sh and tests/e2e/static.sh build and install",
    "(cd build/release && cpack": "tests/e2e/package.sh builds and installs the package",
    "cp model.gguf /srv/models/": "needs the installed package (tests/e2e/package.sh)",
    "install -": "writes to the machine's folders (tests/e2e/package.sh)",
    "apt install": "writes to the machine's folders (tests/e2e/package.sh)",
    "systemctl ": "needs systemd (tests/e2e/systemd.sh)",
    "sudo ": "needs the account of the installed package (tests/e2e/systemd.sh)",
    "python3 -m venv": "downloads packages; test_clients.py installs the client without a network",
    "~/sluice-venv/bin/pip": "downloads packages; test_clients.py installs the client without a network",
    "nvidia-modprobe": "needs a GPU",
    "sluice serve ./model.gguf --devices cuda:0": "needs a GPU",
    "sluice load smol --devices cuda:0": "needs a GPU",
    "sluice devices release cuda:0": "needs a GPU; tests/e2e/gpu runs it on an emulated one",
    "sluice-manager --placement": "names NUMA nodes that few machines have (test_nodes.py)",
    "sluice serve ./model.gguf --tls-cert": "needs certificates (test_tls.py)",
    "sluice ps --manager sluice.example.org": "needs a manager's port with TLS (test_management.py)",
    "sluice-server --config": "needs a server with that configuration (test_takeover.py)",
    "sluice-server --takeover": "needs a server with that configuration (test_takeover.py)",
    "xdg-open ": "opens a browser (tests/e2e/long/long_page.py)",
    "kubectl ": "needs a cluster (tests/e2e/kubernetes checks the manifests)",
    "sluice run coder ": "needs a model with fill-in-the-middle tokens (test_suffix.py)",
    "sluice bench": "takes minutes (test_bench.py)",
    "sluice man run | man": "man is not on every machine (test_cli.py checks the pages)",
    "sluice update smol --to 2$": "three steps of 30 s each; the command with --steps runs",
}
# Commands whose exit status depends on the machine.
STATUSES = {"sluice doctor": (0, 1)}


def blocks(page):
    """(language, lines) of a page's code blocks."""
    language, lines = None, []
    for line in (ROOT / page).read_text().splitlines():
        if line.startswith("```"):
            if language is None:
                language, lines = line[3:], []
            else:
                yield language, lines
                language = None
        elif language is not None:
            lines.append(line)


def commands(page):
    """The commands of a page in order, each with its continuation lines or here document."""
    for language, lines in blocks(page):
        if language or any("──" in line for line in lines):  # a diagram
            continue
        command, end = [], None
        for line in lines:
            command.append(line if command else line.removeprefix("$ "))
            here = re.search(r"<<'?(\w+)'?", line)
            if here and not end:
                end = here[1]
            if line.endswith("\\") or (end and line != end) or not line:
                continue
            yield "\n".join(command)
            command, end = [], None


def plain(command):
    """The command without its trailing comment."""
    return command if "<<" in command else re.sub(r"\s+#.*", "", command)


def exception(command):
    """The prefix in EXCEPTIONS that the command begins with, or None."""
    return next((e for e in EXCEPTIONS if (plain(command) + "$").startswith(e)), None)


class Cluster(Sluice):
    """A cluster that the commands of all pages share. Version 1 of smol is loaded, except while a command changes
    that."""

    def begin(self, tmp, package):
        self.home, self.offline = tmp, tmp / "offline"
        self.changed, self.ruled = False, False  # changed: versions are loaded differently; ruled: traffic, a policy or an operation may be left
        for name in ("model.gguf", "draft.gguf"):
            (tmp / name).symlink_to(model_path())
        (tmp / "clients").symlink_to(ROOT / "clients")
        self.manager_metrics = f"127.0.0.1:{free_port()}"
        self.environment = {**{k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}, "HOME": str(tmp), "LC_ALL": "C",
                            "SLUICE_STATE_DIR": str(self.state), "SLUICE_HTTP_LISTEN": "", "SLUICE_METRICS": "", "SLUICE_MANAGER_METRICS": "",
                            "PYTHONPATH": str(package), "PATH": f"{BIN}:{os.environ['PATH']}"}
        self.http = f"127.0.0.1:{free_port()}"
        self.start_measured("--http-listen", self.http, "--manager-metrics", self.manager_metrics)
        self.only("1")

    def json(self, *words):
        return [json.loads(line) for line in self.cli(*words, "--json").stdout.splitlines() if line]

    def registered(self):
        """Maps each version of smol to its row. Versions of other models have the key (model, version)."""
        rows = [v for model in self.json("ls")[0].get("models", []) for v in model.get("versions", [])]
        return {v["version"] if v["model"] == "smol" else (v["model"], v["version"]): v for v in rows}

    def open_operations(self):
        return [o["id"] for o in self.json("ops", "list") if o["state"] not in ("OPERATION_STATE_DONE", "OPERATION_STATE_FAILED",
                                                                                "OPERATION_STATE_CANCELLED")]

    def only(self, *loaded):
        """Ensures that smol has versions 1 and 2. Ensures that exactly `loaded` are loaded, on the group cpu, without
        settings of their own."""
        if self.ruled:
            self.cli("policy", "smol", "--clear")
            for operation in self.open_operations():
                self.cli("ops", "cancel", operation, check=False)
            self.wait(lambda: not self.open_operations(), 30, "operations end")
            self.cli("traffic", "smol", "--clear")
            self.ruled = False
        for key, row in self.registered().items():
            model, version = ("smol", key) if isinstance(key, str) else key
            for deployment in row.get("deployments", []):
                plain = key in loaded and deployment["device_group"] == "cpu" and not deployment["parked"] and not self.changed
                if not plain:
                    self.cli("unload", model, "--version", version, "--group", deployment["device_group"])
            if key not in ("1", "2"):
                self.cli("rm", model, version)
        rows = self.registered()
        for version in {"1", "2"} - set(rows):
            self.cli("register", "smol", self.home / "model.gguf", "--version", version)
        for version in loaded:
            if not rows.get(version, {}).get("deployments"):
                self.cli("load", "smol", "--version", version, "--kv-tokens", "8192")
        self.changed = False

    def latest_operation(self, state):
        return next(o["id"] for o in self.json("ops", "list") if o["state"] == state)

    def translated(self, command):
        """The command with the addresses, folders and ids of this cluster."""
        for old, new in {"127.0.0.1:8000": self.http, "127.0.0.1:8001": self.address, "127.0.0.1:8002": self.metrics_address, "127.0.0.1:8004": self.manager_metrics,
                         "STATE/": f"{self.state}/", "unix:/run/sluice/": f"unix:{self.home}/", "/etc/sluice/sluice.conf": str(ROOT / "etc/sluice.conf"),
                         "~/.cache/sluice/models/SmolLM2-135M-Instruct.Q4_1.gguf": "./model.gguf",
                         "/var/lib/sluice": str(self.offline), "/backup/": f"{self.home}/", "PID": str(self.process.pid),
                         "~/sluice-venv/bin/python": sys.executable,
                         "--cpus 0-1": "--cpus " + ",".join(map(str, sorted(os.sched_getaffinity(0))))}.items():
            command = command.replace(old, new)
        if re.search(r"\br1\b", command):
            self.wait(self.ready, 30, "a replica is ready")
            command = re.sub(r"\br1\b", self.ready()[0]["id"], command)
        if "OPERATION" in command:
            state = "OPERATION_STATE_DONE" if "watch" in command else "OPERATION_STATE_RUNNING"
            command = command.replace("OPERATION", self.latest_operation(state))
        return command

    def shell(self, command, statuses=(0,), stdin=""):
        result = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=self.home, env=self.environment, input=stdin,
                                capture_output=True, text=True, timeout=patience(60))
        assert result.returncode in statuses, f"{command}: {result.returncode}: {result.stdout[-500:]}{result.stderr[-500:]}\n{self.tail()}"
        return result.stdout

    def prepare(self, command):
        """Creates the state that a command needs."""
        words = shlex.split(command, comments=True)
        verb = words[1] if words[0] == "sluice" and len(words) > 1 else ""
        version = re.search(r"smol:(\d)|--version (\d)|rm smol (\d)", command)
        version = next(filter(None, version.groups())) if version else "1"
        if verb == "load":
            self.only(*({"1"} - {version}))
        elif verb == "register" and "--version 2" in command:
            self.only("1")
            self.cli("rm", "smol", "2")
        elif verb in ("unload", "scale", "park", "wake"):
            self.only(version)
            if verb == "wake":
                self.cli("park", "smol", "--version", version)
        elif verb == "rm":
            self.only(*({"1", "2"} - {version}))
        elif verb in ("update", "traffic", "policy"):
            self.only("1")
        elif words[:3] == ["sluice", "ops", "cancel"]:
            self.only("1")
            self.cli("update", "smol", "--to", "2", "--no-wait")
        elif self.changed:
            self.only("1")
        if words[:2] in (["sluice", "groups"], ["sluice", "keys"]) and len(words) > 3:
            undo, do = ("delete", "create") if verb == "groups" else ("revoke", "create")
            self.cli(verb, undo, words[3], check=False)
            if words[2] == undo:
                self.cli(verb, do, words[3], *(["cpu:0"] if verb == "groups" else ["--role", "viewer"]))
        if words[0] == "sluice-manager" and words[1] in ("check", "backup", "restore") or str(self.offline) in command:
            if not (self.offline / "sluice.db").exists():
                self.serve("sluice serve")
            if words[1] == "backup":
                (self.home / "sluice.db").unlink(missing_ok=True)
            elif words[1] == "restore" and not (self.home / "sluice.db").exists():
                self.shell(f"sluice-manager backup {self.home}/sluice.db --state-dir {self.offline}")
        self.ruled = self.ruled or verb in ("traffic", "policy", "update") or words[:3] == ["sluice", "ops", "cancel"]
        self.changed = self.changed or self.ruled or (verb in ("load", "unload", "scale", "park", "wake", "rm", "update", "policy")
                                        and "--validate-only" not in command) or command.startswith("sluice run ./")

    def serve(self, command):
        """Runs a separate `sluice serve` until it serves the model that the command names. `sluice stop` ends that
        serve."""
        command = re.sub(r"(--(?:listen|http-listen|metrics|manager-metrics)) \S+:\d+", lambda m: f"{m[1]} 127.0.0.1:{free_port()}", command)
        if "--listen" not in command:
            command += f" --listen 127.0.0.1:{free_port()}"
        self.offline.mkdir(exist_ok=True)
        out = self.home / "serve.out"
        with open(out, "w") as file:
            serve = subprocess.Popen(["bash", "-c", f"exec {command} --json --state-dir {self.offline}"], cwd=self.home, env=self.environment,
                                     stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        event = "ready" if ".gguf" in command else "serving"
        try:
            until(lambda: f'"event":"{event}"' in out.read_text() or serve.poll() is not None, 60, out.read_text)
            assert serve.poll() is None, f"{command}: {out.read_text()}"
        finally:
            self.shell(f"sluice stop --state-dir {self.offline}")
        assert serve.wait(patience(30)) == 0, f"{command}: {out.read_text()}"

    def follow(self, command):
        """Runs a command that continues until Ctrl-C, which a run in the background ignores otherwise. Changes of the cluster make it print."""
        with subprocess.Popen(["bash", "-c", f"exec env --default-signal=INT {command}"], cwd=self.home, env=self.environment, stdout=subprocess.PIPE, text=True) as program:
            os.set_blocking(program.stdout.fileno(), False)

            def printed():
                self.cli("groups", "create", "left", "cpu:0", check=False)
                self.cli("groups", "delete", "left", check=False)
                return program.stdout.read()
            until(printed, 30, f"{command} prints nothing")
            program.send_signal(signal.SIGINT)
            program.wait(patience(30))

    def grpcurl(self, command):
        """Does with grpcio what grpcurl does with reflection."""
        words = shlex.split(command.replace("\\\n", " "))
        data = words[words.index("-d") + 1] if "-d" in words else "{}"
        words = [w for w in words[1:] if w not in ("-plaintext", "-d", data)]
        assert words[0] == self.address, command
        reflected = ProtoReflectionDescriptorDatabase(self.channel)
        pool = descriptor_pool.DescriptorPool(reflected)
        if words[1] == "list":
            assert "sluice.v1.Inference" in reflected.get_services()
        elif words[1] == "describe":
            assert pool.FindMessageTypeByName(words[2]).fields
        else:
            service, _, name = words[1].rpartition("/")
            method = pool.FindServiceByName(service).FindMethodByName(name)
            kinds = [message_factory.GetMessageClass(t) for t in (method.input_type, method.output_type)]
            path = f"/{service}/{name}"
            make = self.channel.unary_stream if name == "Generate" else self.channel.unary_unary
            call = make(path, request_serializer=kinds[0].SerializeToString, response_deserializer=kinds[1].FromString)
            answer = call(json_format.Parse(data, kinds[0]()), timeout=patience(30))
            assert list(answer) if name == "Generate" else answer.ByteSize()

    def run_command(self, command):
        self.prepare(command.replace("/var/lib/sluice", str(self.offline)))
        bare = self.translated(command)
        if re.match(r"sluice (serve|stop)\b", bare):
            self.serve(bare if bare.startswith("sluice serve") else "sluice serve")
        elif re.match(r"sluice (top$|events --follow)", bare):
            self.follow(bare)
        elif bare.startswith("grpcurl "):
            self.grpcurl(bare)
        else:
            self.shell(bare, next((s for c, s in STATUSES.items() if bare.startswith(c)), (0,)))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, stubs, python_package):  # noqa: F811
    cluster = Cluster(tmp_path_factory.mktemp("state"), stubs)
    try:
        cluster.begin(tmp_path_factory.mktemp("home"), python_package)
        yield cluster
    finally:
        cluster.stop()


DONE = set()


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_a_page_run(cluster, page):
    """The test fails for a command of the docs that no program accepts, such as a renamed option or a removed
    command."""
    for command in commands(page):
        if not exception(command) and plain(command) not in DONE:
            cluster.run_command(plain(command))
            DONE.add(plain(command))


@pytest.mark.parametrize("page", [page for page in PAGES if any(language == "python" for language, _ in blocks(page))])
def test_python_programs_of_a_page_run(cluster, page):
    for language, lines in blocks(page):
        if language == "python":
            source = "\n".join(lines)
            assert cluster.shell(f"{sys.executable} -", stdin=cluster.translated(source)), source


def test_each_exception_is_a_command_of_the_docs():
    used = {exception(command) for page in PAGES for command in commands(page)}
    assert set(EXCEPTIONS) <= used, set(EXCEPTIONS) - used
    tests = {path.name for path in (ROOT / "tests").rglob("*") if path.is_file()}
    named = set(re.findall(r"[\w/]+\.(?:py|sh)\b", " ".join(EXCEPTIONS.values())))
    assert all(name.rsplit("/", 1)[-1] in tests for name in named), named
