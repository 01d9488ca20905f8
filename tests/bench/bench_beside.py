#!/usr/bin/env python3
"""Measures how much time gRPC's and other threads take from the compute threads (docs/log/2026-11-23-threads.md).

Starts `sluice serve` on a model for each number of compute threads, with and without CPUs of their own. A closed loop
of clients (`sluice bench serve`) is the load. Prints for each process and kind of thread, per second of the load:
number, CPU time, time ready but without a CPU, and involuntary context switches.

tests/bench/bench_beside.py --bin build/release/bin MODEL [--threads 1,2] [--clients 16] [--requests 64] [--cpus 0-1]
"""
import argparse
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import time

COMPUTE = ("sluice-engine", "sluice-compute")


def threads(pid):
    """Returns by (program, kind): [threads, CPU ns, ns of waiting for a CPU, context switches, involuntary ones of these]."""
    found = {}
    program = pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        try:
            name = (task / "comm").read_text().strip()
            cpu, waiting, _ = map(int, (task / "schedstat").read_text().split())
            status = (task / "status").read_text()
        except FileNotFoundError:
            continue
        wanted, unwanted = (int(n) for n in re.findall(r"ctxt_switches:\s+(\d+)", status))
        row = found.setdefault((program, "compute" if name in COMPUTE else "other"), [0] * 5)
        for i, value in enumerate((1, cpu, waiting, wanted + unwanted, unwanted)):
            row[i] += value
    return found


def family(root):
    """Returns `root` and all processes below it."""
    pids, seen = [root], []
    while pids:
        pid = pids.pop()
        seen.append(pid)
        for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
            pids += map(int, (task / "children").read_text().split())
    return seen


def sample(pids):
    found = {}
    for pid in pids:
        found |= threads(pid)
    return found


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def measure(args, n_threads, cpus):
    bin_dir = pathlib.Path(args.bin)
    with tempfile.TemporaryDirectory(prefix="sl", dir="/tmp") as folder:
        common = ["--state-dir", f"{folder}/state"]
        port = free_port()
        serve = subprocess.Popen(
            [bin_dir / "sluice", "serve", args.model, "--name", "m", "--listen", f"127.0.0.1:{port}", "--threads", str(n_threads),
             "--http-listen", "", "--metrics", "", "--manager-metrics", "", *(["--cpus", cpus] if cpus else []), *common], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True)
        try:
            until = time.monotonic() + 60
            while subprocess.run([bin_dir / "sluice", "run", "m", "x", "-n", "1", *common], capture_output=True).returncode:
                assert time.monotonic() < until and serve.poll() is None, "not ready"
            pids = family(serve.pid)
            load = [bin_dir / "sluice", "bench", "serve", "m", "--clients", str(args.clients), "--prompt-tokens", "64",
                    "--max-tokens", "64", "--json", *common, "--requests"]
            subprocess.run([*load, str(args.clients)], check=True, capture_output=True)
            before, begin = sample(pids), time.monotonic()
            out = subprocess.run([*load, str(args.requests)], check=True, capture_output=True, text=True).stdout
            seconds, after = time.monotonic() - begin, sample(pids)
        finally:
            serve.send_signal(signal.SIGTERM)
            serve.wait(60)
        rows = {key: [after[key][0]] + [(b - a) / seconds for a, b in zip(before.get(key, [0] * 5)[1:], after[key][1:])] for key in after}
        return json.loads(out), rows


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--bin", default="build/release/bin")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--cpus", default=f"0-{os.cpu_count() - 1}", help="also measured as the worker's own; empty: not")
    parser.add_argument("model")
    args = parser.parse_args()
    for n_threads in map(int, args.threads.split(",")):
        for cpus in [""] + ([args.cpus] if args.cpus else []):
            report, rows = measure(args, n_threads, cpus)
            print(f"{n_threads} compute threads{f', CPUs {cpus} their own' if cpus else ''}: {report['output_tokens_per_second']:.0f} tokens/s")
            for (program, kind), (n, cpu, waiting, switches, unwanted) in sorted(rows.items()):
                print(f"  {program:16} {kind:8} {n:3} threads: {cpu / 1e7:6.1f} % CPU, waited {waiting / 1e7:6.1f} %, "
                      f"{switches:7.0f} switches/s, {unwanted:6.0f} of them not asked for")


if __name__ == "__main__":
    main()
