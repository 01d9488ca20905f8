"""llama.cpp: its own llama-bench, llama-batched-bench and llama-server on the same GGUF file."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import time
import urllib.error
import urllib.request

import common
import http_load
from common import Unavailable


class LlamaCpp:
    name = "llama.cpp"
    serves = True

    def install(self, cache):
        process = subprocess.Popen([common.HERE / "llama_cpp.sh", cache], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        last = "llama_cpp.sh fails"
        for line in process.stderr:
            sys.stderr.write(line)
            last = line.strip() or last
        folder = process.stdout.read().strip()
        if process.wait() != 0:
            raise Unavailable(last)
        self.bin = pathlib.Path(folder)
        release = self.bin.parent.parent.name.rpartition("-")[2]
        said = subprocess.run([self.bin / "llama-bench", "--version"], capture_output=True, text=True)
        version = next((w for w in (said.stdout + said.stderr).split() if w[:1].isdigit()), "?")
        return f"{version} (in llama-cpp-python {release}), -march=native"

    def prepare(self, model):
        self.path = model.path
        return f"{model.format}, the same file; KV f16"

    def settings(self, cpus):
        return [{"threads": t, "flash": f} for t in sorted({1, cpus}) for f in ("on", "off")]

    def measure(self, work, setting, timeout=600):
        """Tokens per second."""
        t = str(setting["threads"])
        if work.batch == 1:
            line = [self.bin / "llama-bench", "-m", self.path, "-t", t, "-fa", setting["flash"], "-r", "1", "-o", "json"]
            if work.phase == "prefill":
                line += ["-p", str(work.prompt), "-n", "0"]
            else:
                line += ["-p", "0", "-n", str(work.gen), "-d", str(work.prompt if work.prompt > 1 else 0)]
            rows = json.loads(common.run(line, timeout))
            return rows[0]["avg_ts"]
        context = str(work.batch * (work.prompt + work.gen))
        line = [self.bin / "llama-batched-bench", "-m", self.path, "-t", t, "-tb", t, "-fa", setting["flash"], "-c", context,
                "-npp", str(work.prompt), "-ntg", str(work.gen), "-npl", str(work.batch), "--output-format", "jsonl"]  # fmt: skip
        for row in common.run(line, timeout).splitlines():
            if row.startswith("{") and json.loads(row).get("pl") == work.batch:
                return json.loads(row)["speed_tg"]
        raise Unavailable("llama-batched-bench printed no result")

    def served_settings(self, load, settings):
        """Each of the settings with as many slots as clients and, where these are many, with half and a quarter."""
        slots = sorted({load.clients, max(1, load.clients // 2), max(1, load.clients // 4)}, reverse=True) if load.clients > 8 else [load.clients]
        return [dict(s, slots=n) for s in settings for n in slots]

    @contextlib.contextmanager
    def server(self, load, setting):
        """A server that is ready, with slots as long as the load's sequences: (port, seconds to ready, process)."""
        port = common.free_port()
        t = str(setting["threads"])
        slots = setting.get("slots", 1)
        context = slots * (load.prompt + load.gen + 64) if load else common.START_CONTEXT
        line = [self.bin / "llama-server", "-m", self.path, "--host", "127.0.0.1", "--port", str(port), "-t", t, "-tb", t, "-fa", setting["flash"],
                "-np", str(slots), "-c", str(context), "--threads-http", "40", "--no-webui", "--cache-ram", "0", "--log-disable"]  # fmt: skip
        started = time.monotonic()
        process = subprocess.Popen([str(w) for w in line], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ))
        try:
            while not self._healthy(port):
                if process.poll() is not None:
                    raise Unavailable(f"llama-server ended with status {process.returncode}")
                if time.monotonic() - started > 120:
                    raise Unavailable("llama-server: not ready after 120 s")
                time.sleep(0.005)
            yield port, time.monotonic() - started, process
        finally:
            common.end(process)

    @staticmethod
    def _healthy(port):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as r:
                return r.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def serve(self, load, setting):
        with self.server(load, setting) as (port, _, _process):
            http_load.run(port, load.clients, load.clients, load.prompt, 8, seed=2)  # warms up
            return http_load.run(port, load.clients, load.requests, load.prompt, load.gen)

    def start(self, setting):
        """Seconds from the program's start until it takes requests, and its memory then."""
        with self.server(None, setting) as (_, seconds, process):
            resident, unbacked = common.memory_bytes(process.pid)
            return {"ready_s": seconds, "resident_bytes": resident, "unbacked_bytes": unbacked}
