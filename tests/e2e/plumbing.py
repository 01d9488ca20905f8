"""A real sluice-server in front of echoing workers (tests/support/load/echo_serve.h), with routes from a file and no
manager."""
import json
import pathlib
import signal
import socket
import subprocess

from conftest import BIN, free_port, patience, until


class Plumbing:
    """A server and some workers that echo. `load` runs tests/support/load/load_client.c against them."""

    def __init__(self, folder, stubs, workers=1, rate=20, slots=1, options=(), max_concurrent=100000):
        self.folder = pathlib.Path(folder)
        self.stubs = stubs
        self.script = self.folder / "script"
        self.script.write_text(f"load_ms=10 rate={rate} slots={slots}")
        self.max_concurrent = max_concurrent
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.log = open(self.folder / "log", "ab")
        self.epochs = [0] * workers
        self.workers = [None] * workers
        for i in range(workers):
            self.start_worker(i)
        self.options = options
        self.start_server()

    def socket_path(self, i):
        return self.folder / f"w{i}.{self.epochs[i]}.sock"

    def start_worker(self, i):
        """Starts the next process of replica r<i>, with the next epoch, and updates the routes."""
        self.epochs[i] += 1
        self.workers[i] = subprocess.Popen(
            [BIN / "fake_worker", "serve", "--socket", self.socket_path(i), "--exit-report", self.folder / f"exit{i}.pb",
             "--replica", f"r{i}", "--epoch", str(self.epochs[i]), "--model", self.script], stdout=self.log, stderr=self.log)
        self.wait(lambda: self.listens(self.socket_path(i)), f"worker {i} listens")
        self.write_routes()

    def listens(self, path):
        with socket.socket(socket.AF_UNIX) as s:
            return s.connect_ex(str(path)) == 0

    def write_routes(self):
        routing, types = self.stubs.routing, self.stubs.types
        replicas = [routing.RouteReplica(id=f"r{i}", epoch=self.epochs[i], socket_path=str(self.socket_path(i)),
                                         state=types.REPLICA_STATE_READY, numerics_id="fake/1",
                                         max_concurrent_requests=self.max_concurrent)
                    for i in range(len(self.workers)) if self.workers[i]]
        table = routing.RouteTable(generation=sum(self.epochs), routes=[routing.Route(
            model="echo", version="1", is_default=True, loaded=True, sequence=1, replicas=replicas)])
        table.routes[0].info.context_length = 1 << 20
        (self.folder / "routes.pb").write_bytes(table.SerializeToString())

    def start_server(self):
        self.server = subprocess.Popen([BIN / "sluice-server", "--listen", self.address, "--routes-file",
                                        self.folder / "routes.pb", *self.options], stdout=self.log, stderr=self.log)

        def up():
            with socket.socket() as s:
                return s.connect_ex(("127.0.0.1", self.port)) == 0
        self.wait(up, "the server listens")

    def wait(self, condition, what, seconds=10):
        until(condition, seconds, lambda: f"{what}\n{self.text()}")

    def text(self):
        return (self.folder / "log").read_text(errors="replace")[-4000:]

    def http_cpu_us(self):
        """CPU time of the server's threads of HTTP since their start."""
        total_ns = 0
        for thread in pathlib.Path(f"/proc/{self.server.pid}/task").iterdir():
            try:
                if (thread / "comm").read_text() == "sluice-http\n":
                    total_ns += int((thread / "schedstat").read_text().split()[0])
            except FileNotFoundError:  # a thread of gRPC has ended meanwhile
                pass
        return total_ns / 1000

    def load_command(self, **kwargs):
        args = [BIN / "load_client", "--server", self.address, "--model", "echo", "--pid", f"server={self.server.pid}"]
        for i, worker in enumerate(self.workers):
            args += ["--pid", f"worker{i}={worker.pid}"]
        for name, value in kwargs.items():
            args += ["--" + name.replace("_", "-"), str(value)]
        return args

    def load(self, timeout=120, http=None, **kwargs):
        """Returns the figures of the load client. Fails and shows the figures if a stream was not whole. `http`: the
        address of HTTP, for streams of /v1/completions. The figures then name the CPU of the HTTP part alone."""
        command = self.load_command(**kwargs)
        if http:
            command = [http if word == self.address else word for word in command] + ["--http"]
        before_us = self.http_cpu_us() if http else 0
        result = subprocess.run(command, capture_output=True, text=True, timeout=patience(timeout))
        assert result.stdout, result.stderr + self.text()
        figures = json.loads(result.stdout)
        assert result.returncode == 0, f"{figures}\n{self.text()}"
        if http and figures["tokens"]:
            figures["http_cpu_us_per_token"] = round((self.http_cpu_us() - before_us) / figures["tokens"], 2)
        return figures

    def stop(self):
        for process in [self.server, *self.workers]:
            if process and process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.send_signal(signal.SIGTERM)
        for process in [self.server, *self.workers]:
            try:
                process.wait(patience(10))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.log.close()
