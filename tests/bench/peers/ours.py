"""Sluice's side: `sluice-worker bench`, `sluice bench serve` and the worker's own start."""

import json
import os
import pathlib
import subprocess
import tempfile
import time

import common
from common import Unavailable


class Sluice:
    name = "sluice"

    def __init__(self):
        self.bin = pathlib.Path(os.environ.get("SLUICE_BIN") or common.ROOT / "build/release/bin").resolve()
        # SLUICE_* are options of the programs as well.
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}

    def build(self):
        """Builds the release preset, unless SLUICE_BIN names built programs."""
        if not os.environ.get("SLUICE_BIN"):
            for line in (["cmake", "--preset", "release"], ["cmake", "--build", "build/release", "--", "--quiet"]):
                common.run(["nice", *line], 1800, cwd=common.ROOT)
        version = common.run([self.bin / "sluice-worker", "--version"], 10).split()[-1]
        if os.environ.get("SLUICE_BIN"):
            return f"{version}, the programs of SLUICE_BIN"
        return f"{version}, commit {common.run(['git', 'describe', '--always', '--dirty', '--exclude=*'], 10, cwd=common.ROOT).strip()}"

    def prepare(self, model):
        self.path = model.path
        self.numerics = ""  # numerics id that the worker reports; set by the first measurement

    def measure(self, work):
        """Tokens per second."""
        prompt, generate, depth = (work.prompt, 0, 0) if work.phase == "prefill" else (0, work.gen, work.prompt if work.prompt > 1 else 0)
        out = common.run([self.bin / "sluice-worker", "bench", self.path, "--text", "--prompt", prompt, "--generate", generate, "--depth", depth,
                          "--batch", work.batch, "--repetitions", 1, "--log-level", "error"], 600, env=self.environment)  # fmt: skip
        phase = None
        for line in out.splitlines():
            key, _, value = line.strip().partition(": ")
            if key == "numerics_id":
                self.numerics = value.strip('"')
            elif key == "phase":
                phase = value.strip('"')
            elif key == "tokens_per_second" and phase == work.phase:
                return float(value)
        raise Unavailable("sluice-worker bench printed no row of " + work.phase)

    def start(self):
        """Seconds from the worker's start until it takes requests, and its memory then."""
        with tempfile.TemporaryDirectory(prefix="sluice-peers-") as state:
            started = time.monotonic()
            process = subprocess.Popen([self.bin / "sluice-worker", "serve", "--socket", f"{state}/w.sock", "--model", self.path, "--kv-tokens",
                                        str(common.START_CONTEXT)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=self.environment)  # fmt: skip
            try:
                for line in process.stderr:
                    if " event=ready " in line:
                        seconds = time.monotonic() - started
                        resident, unbacked = common.memory_bytes(process.pid)
                        return {"ready_s": seconds, "resident_bytes": resident, "unbacked_bytes": unbacked}
                raise Unavailable("sluice-worker serve ended before it was ready")
            finally:
                common.end(process)

    def serve(self, load):
        """Manager, server and worker as `sluice serve` starts them; the load is over gRPC."""
        with tempfile.TemporaryDirectory(prefix="sluice-peers-") as state:
            address = f"127.0.0.1:{common.free_port()}"
            with open(f"{state}/out", "w") as log:
                process = subprocess.Popen([self.bin / "sluice", "serve", self.path, "--name", "m", "--state-dir", state, "--listen", address,
                                            "--http-listen", "", "--metrics", "", "--manager-metrics", ""], stdout=log, stderr=log, env=self.environment)  # fmt: skip
            try:
                self._wait_ready(process, state)
                return self._load(address, state, load)
            finally:
                common.end(process)

    def _load(self, address, state, load):
        out = common.run([self.bin / "sluice", "bench", "serve", "m", "--server", address, "--state-dir", state, "--clients", load.clients,
                          "--requests", load.requests, "--warmup", load.clients, "--prompt-tokens", load.prompt, "--max-tokens", load.gen,
                          "--ignore-eos", "--json"], 900, env=self.environment)  # fmt: skip
        said = json.loads(out)
        counts = said["requests"]
        if counts["ok"] != load.requests or counts["ended_early"]:
            raise Unavailable(f"sluice bench serve: {counts}: {said.get('first_error', 'answers are too short')}")
        times = {f"{t}_{p}_ms": said[f"{t}_ms"][p] for t in ("ttft", "itl") for p in ("p50", "p99")}
        return dict(times, tokens_per_s=said["output_tokens_per_second"], seconds=said["seconds"])

    def _wait_ready(self, process, state):
        until = time.monotonic() + 120
        while time.monotonic() < until:
            if process.poll() is not None:
                raise Unavailable("sluice serve: " + common.last_words(pathlib.Path(state, "out").read_text()))
            said = subprocess.run([self.bin / "sluice", "ps", "--json", "--state-dir", state], capture_output=True, text=True, env=self.environment)
            if said.returncode == 0 and any(r["state"] == "REPLICA_STATE_READY" for r in json.loads(said.stdout).get("replicas", [])):
                return
            time.sleep(0.1)
        raise Unavailable("sluice serve: no replica is ready after 120 s")
