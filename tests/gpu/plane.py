#!/usr/bin/env python3
"""Tests the whole of Sluice on a GPU machine without other software: manager, server, worker and CLI as users start them.

Prints each check as a line "- ok", and fails at the first check that does not hold. Needs Python's standard library and
the programs.

tests/gpu/plane.py --bin DIR --model FILE [--device cuda:0] [--memory 1G] [--streams 32] [--cycles 20] [--tokens 480]
"""
import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

PORT = 18001


class Failed(Exception):
    pass


def check(holds, what):
    if not holds:
        raise Failed(what)


class Sluice:
    """`sluice serve` with a state folder of its own."""

    def __init__(self, args, folder):
        self.bin, self.device, self.folder = os.path.abspath(args.bin), args.device, folder
        self.env = {**os.environ, "SLUICE_STATE_DIR": f"{folder}/s", "SLUICE_SERVER": f"127.0.0.1:{PORT}"}
        self.log = open(f"{folder}/log", "wb")
        self.process = subprocess.Popen([f"{self.bin}/sluice", "serve", "--listen", f"127.0.0.1:{PORT}", "--http-listen", "", "--metrics", "", "--manager-metrics", ""],
                                        env=self.env, stdout=self.log, stderr=self.log)
        self.until(lambda: not self.run("status").returncode, 30, "the server is up")

    def run(self, *words):
        return subprocess.run([f"{self.bin}/sluice", *map(str, words)], env=self.env, capture_output=True, text=True, timeout=300)

    def cli(self, *words):
        done = self.run(*words)
        check(done.returncode == 0, f"sluice {' '.join(map(str, words))}: {done.stderr}{done.stdout}")
        return done.stdout

    def operation(self, *words):
        o = json.loads(self.cli(*words, "--json").splitlines()[-1])["operation"]
        check(o["state"] == "OPERATION_STATE_DONE", o)
        return o

    def until(self, holds, seconds, what):
        end = time.monotonic() + seconds
        while not holds():
            check(time.monotonic() < end and self.process.poll() is None, f"{what}: not within {seconds} s")
            time.sleep(0.02)

    def replicas(self):
        return json.loads(self.cli("ps", "--json"))["replicas"]

    def ready(self, model):
        return [r for r in self.replicas() if r["model"] == model and r["state"] == "REPLICA_STATE_READY"]

    def answer(self, model, prompt, n=64):
        """Ids of a greedy answer, the version that gave it and how often it was resumed."""
        done = self.run("run", model, prompt, "--raw", "-n", n, "--ignore-eos", "--json", "--timeout", "120s")
        check(done.returncode == 0, f"an answer: {done.stderr}")
        lines = [json.loads(line) for line in done.stdout.split("\n") if line]  # text may have other ends of lines
        ids = [i for line in lines if "tokens" in line for i in line["tokens"]["ids"]]
        (finished,) = [line["finished"] for line in lines if "finished" in line]
        check(len(ids) == n == finished["n_tokens"], f"{len(ids)} ids of {n}")
        return ids, finished["receipt"]["version"], finished["receipt"]["n_resumes"]

    def load(self, model, memory, *flags):
        return self.operation("load", model, "--devices", self.device, "--gpu-memory", memory, *flags)

    def used(self):
        """The device's memory that is taken, as its driver says, bytes; None where there is none."""
        if not shutil.which("nvidia-smi"):
            return None
        said = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", self.device.split(":")[1]], capture_output=True, text=True)
        return int(said.stdout) << 20

    def pid(self, program):
        found = subprocess.run(["pgrep", "-f", f"^{self.bin}/{program}"], capture_output=True, text=True).stdout.split()
        check(len(found) == 1, f"{len(found)} processes of {program}")
        return int(found[0])

    def end(self):
        self.run("stop")
        self.process.wait(60)


def growth(before, after):
    return "the driver tells nothing here" if before is None else f"the driver tells {(after - before) / 1e6:+.0f} MB"


PROMPTS = [f"abc defg hi {i}" for i in range(32)]


def plan_and_load(s, args):
    plan = json.loads(s.cli("load", "tiny", "--version", 1, "--devices", s.device, "--gpu-memory", args.memory, "--validate-only", "--json"))["plan"]
    (of,) = [d for d in plan["devices"] if d["device"] == s.device]
    planned = sum(int(of[k]) for k in ("weight_bytes", "kv_bytes", "workspace_bytes"))
    before = s.used()
    o = s.load("tiny", args.memory, "--version", 1)
    (m,) = [m for m in o["result"]["memory"] if m["device"] == s.device]
    parts = [int(m[k]) for k in ("weight_bytes", "kv_bytes", "workspace_bytes")]
    check(parts == [int(of[k]) for k in ("weight_bytes", "kv_bytes", "workspace_bytes")], f"planned {of}, has {m}")
    return f"plan {planned / 1e6:.1f} MB, as loaded the same, in {o['result']['elapsed_ms']} ms; {growth(before, s.used())} with the driver's context"


def alone_and_together(s, args):
    s.alone = {p: s.answer("tiny", p)[0] for p in PROMPTS[:8]}
    with ThreadPoolExecutor(args.streams) as pool:
        for prompt, (ids, *_) in zip(PROMPTS[:8] * 4, pool.map(lambda p: s.answer("tiny", p), PROMPTS[:8] * 4)):
            check(ids == s.alone[prompt], f"{prompt}: other ids among others")
    return f"8 prompts alone and 32 at once: the same {8 * 64} ids"


def park_and_wake(s, args):
    served = s.used()
    park = s.operation("park", "tiny")
    (m,) = [m for m in park["result"]["memory"] if m["device"] == s.device]
    check(int(m["after_bytes"]) == 0 == int(m["expected_bytes"]), m)
    parked = s.used()
    wake = s.operation("wake", "tiny")
    s.until(lambda: not s.run("run", "tiny", "a", "--raw", "-n", "1").returncode, 30, "it answers")
    check(s.answer("tiny", PROMPTS[0])[0] == s.alone[PROMPTS[0]], "another answer once woken")
    return f"parked in {park['result']['elapsed_ms']} ms: {growth(served, parked)}; woken in {wake['result']['elapsed_ms']} ms, the same answer"


def ask_beside(s, args, do, n):
    """Answers that STREAMS clients get, one after the other, until do() is done: (version, resumes) of each. All must be the first one's."""
    first, got, over = {}, [], threading.Event()

    def ask(i):
        prompt = PROMPTS[i % 8]
        while not over.is_set() or not got:
            ids, version, n_resumes = s.answer("tiny", prompt, n)
            check(ids[:64] == s.alone[prompt], f"{prompt}: an answer of version {version}, resumed {n_resumes} times, has other ids")
            check(ids == first.setdefault(prompt, ids), f"{prompt}: an answer of version {version}, resumed {n_resumes} times, ends otherwise")
            got.append((version, n_resumes))

    with ThreadPoolExecutor(args.streams) as pool:
        running = [pool.submit(ask, i) for i in range(args.streams)]
        try:
            time.sleep(1)
            do()
        finally:
            over.set()
        for f in running:
            f.result()
    return got


def worker_killed(s, args):
    (replica,) = s.ready("tiny")

    def kill():
        os.kill(int(replica["pid"]), signal.SIGKILL)
        s.until(lambda: any(r["pid"] != replica["pid"] for r in s.ready("tiny")), 60, "another comes up")

    got = ask_beside(s, args, kill, args.tokens)
    resumed = sum(n > 0 for _, n in got)
    check(resumed > 0, "no stream was under way")
    return f"kill -9 of the worker under {args.streams} streams: {len(got)} answers, 0 errors, {resumed} resumed, no id differs"


def manager_killed(s, args):
    (before,) = s.ready("tiny")

    def kill():
        os.kill(s.pid("sluice-manager"), signal.SIGKILL)
        s.until(lambda: not s.run("status").returncode, 30, "the manager is back")
        s.until(lambda: [r["pid"] for r in s.ready("tiny")] == [before["pid"]], 10, "the worker is adopted")

    got = ask_beside(s, args, kill, args.tokens)
    check(not any(n for _, n in got), "a stream was resumed")
    return f"kill -9 of the manager under {args.streams} streams: {len(got)} answers, none noticed, the worker was adopted"


def updated(s, args):
    got = ask_beside(s, args, lambda: s.operation("update", "tiny", "--to", "2", "--step", "1s", "--max-ttft-ratio", "100", "--max-wait", "2s"), 64)
    check({version for version, _ in got} == {"1", "2"}, got[-1])
    check([r["version"] for r in s.ready("tiny")] == ["2"], "version 2 serves alone")
    return f"update to another version under {args.streams} streams: {len(got)} answers, 0 errors, of both versions"


def memory_returns(s, args):
    s.operation("unload", "tiny")
    seen = []
    for _ in range(args.cycles):
        s.load("tiny", args.memory)
        s.operation("unload", "tiny")
        seen.append(s.used())
    check(None in seen or max(seen) - seen[0] < 1 << 20, seen)
    return f"{args.cycles} loads and unloads: {growth(seen[0], seen[-1])} from the first to the last"


def refused(s, args):
    done = s.run("load", "tiny", "--devices", s.device, "--kv-tokens", "1000000000")
    check(done.returncode == 1 and "RESOURCE_EXHAUSTED" in done.stderr and not s.ready("tiny"), done.stderr)
    return "more than the device has: " + re.sub(r"\s+", " ", done.stderr.split(" (RESOURCE")[0])[:200]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--memory", default="1G")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--cycles", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=480, help="of an answer beside which something ends")
    args = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="plane", dir="/tmp")
    s = Sluice(args, folder)
    failed = True
    try:
        for version in (1, 2): # the same weights: an answer of both is the same
            s.cli("register", "tiny", os.path.abspath(args.model), "--version", version)
        for step in (plan_and_load, alone_and_together, park_and_wake, worker_killed, manager_killed, updated, memory_returns, refused):
            began = time.monotonic()
            print(f"- ok    {step(s, args)} ({time.monotonic() - began:.1f} s)", flush=True)
        failed = False
    except Exception as e:
        print(f"- FAIL  {step.__name__}: {e!r}", flush=True)
    finally:
        s.end()
        s.log.close()
        if failed:
            with open(f"{folder}/log", errors="replace") as log:
                print(log.read()[-6000:])
        shutil.rmtree(folder)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
