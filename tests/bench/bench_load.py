#!/usr/bin/env python3
"""Measures the load until READY, a ready worker's memory and an idle worker's cost (docs/log/2026-11-23-start.md).

Starts `sluice-worker serve` on each model several times, with the file in the page cache, and prints medians:

- time from the program's start to READY (and its stages, from the worker's log), and CPU time until then
- anonymous, shared and file-backed resident memory
- the bound on the first two (packed weights × 1.15 + KV pool + 64 MiB)
- threads, and CPU time and context switches over idle time

tests/bench/bench_load.py --bin build/release/bin [--runs 5] [--idle-s 2] [--json] MODEL... [-- WORKER FLAGS]
"""
import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
MIB = 1 << 20


def status_kib(pid):
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) for line in lines if line.endswith(" kB")}


def cpu_and_switches(pid):
    """Returns the CPU seconds of the process, and the context switches and number of its threads."""
    stat = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    switches = 0
    n_threads = 0
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        n_threads += 1
        for line in (task / "status").read_text().splitlines():
            if "ctxt_switches" in line:
                switches += int(line.split()[1])
    return (int(stat[11]) + int(stat[12])) * TICK_S, switches, n_threads


def fields(line):
    return dict(part.split("=", 1) for part in line.split() if "=" in part)


def run(worker, model, flags, idle_s):
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        process = subprocess.Popen(
            [worker, "serve", "--model", model, "--socket", f"{folder}/w.sock", *flags],
            stderr=subprocess.PIPE, text=True)
        result = {}
        try:
            lines = []
            for line in process.stderr:
                lines.append(line)
                if "load_ms=" in line:
                    result["ready_ms"] = (time.monotonic() - begin) * 1e3
                    seen = fields(line)
                    result |= {k: float(seen[k]) for k in ("load_ms", "warm_ms")}
                    break
            else:
                sys.exit(f"{model}: the worker is not ready:\n{''.join(lines)}")
            kib = status_kib(process.pid)
            result |= {"anon_bytes": kib["RssAnon"] * 1024, "shared_bytes": kib["RssShmem"] * 1024,
                       "file_bytes": kib["RssFile"] * 1024}
            cpu, switches, n_threads = cpu_and_switches(process.pid)
            result["cpu_ms"] = cpu * 1e3
            time.sleep(idle_s)
            cpu_after, switches_after, _ = cpu_and_switches(process.pid)
            result |= {"threads": n_threads, "idle_cpu": (cpu_after - cpu) / idle_s,
                       "idle_switches": (switches_after - switches) / idle_s}
        finally:
            process.send_signal(signal.SIGTERM)
            process.stderr.read()
            process.wait()
        return result


def plan(worker, model, flags):
    out = subprocess.run([worker, "plan", "--text", model, *flags], check=True, capture_output=True, text=True).stdout
    seen = {}
    for line in out.splitlines():
        name, _, value = line.strip().partition(": ")
        if name in ("weight_bytes", "kv_bytes", "workspace_bytes"):
            seen[name] = seen.get(name, 0) + int(value)
    return seen


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--bin", default="build/release/bin")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--idle-s", type=float, default=2)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("models", nargs="+")
    arguments = sys.argv[1:]
    flags = []
    if "--" in arguments:
        at = arguments.index("--")
        arguments, flags = arguments[:at], arguments[at + 1:]
    args = parser.parse_args(arguments)
    worker = os.path.join(args.bin, "sluice-worker")
    rows = []
    for model in args.models:
        with open(model, "rb") as file:  # into the page cache
            while file.read(8 * MIB):
                pass
        sizes = plan(worker, model, flags)
        runs = [run(worker, model, flags, args.idle_s if i == 0 else 0.01) for i in range(args.runs)]
        row = {"model": pathlib.Path(model).name, "runs": args.runs, **sizes}
        for key in ("ready_ms", "cpu_ms", "load_ms", "warm_ms", "anon_bytes", "shared_bytes", "file_bytes"):
            row[key] = statistics.median(r[key] for r in runs)
        row |= {key: runs[0][key] for key in ("threads", "idle_cpu", "idle_switches")}
        row["bound_bytes"] = sizes.get("weight_bytes", 0) * 1.15 + sizes.get("kv_bytes", 0) + 64 * MIB
        row["most_ready_ms"] = max(r["ready_ms"] for r in runs)
        rows.append(row)
    if args.json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        mib = {key: value / MIB for key, value in row.items() if key.endswith("_bytes")}
        print(f"{row['model']}: ready after {row['ready_ms']:.0f} ms (most {row['most_ready_ms']:.0f}; load {row['load_ms']:.0f}, "
              f"warm {row['warm_ms']:.0f}) and {row['cpu_ms']:.0f} ms of CPU time, medians of {row['runs']}")
        print(f"  resident: anonymous {mib['anon_bytes']:.0f} + shared {mib['shared_bytes']:.0f} MiB, bound {mib['bound_bytes']:.0f} "
              f"(packed {mib['weight_bytes']:.0f} × 1.15 + KV pool {mib['kv_bytes']:.0f} + 64); file-backed {mib['file_bytes']:.0f}")
        print(f"  idle: {row['idle_cpu'] * 1e3:.0f} ms of CPU and {row['idle_switches']:.0f} context switches a second, "
              f"{row['threads']} threads")


if __name__ == "__main__":
    main()
