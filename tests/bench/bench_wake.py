#!/usr/bin/env python3
"""Compares the wake of a parked version with a cold load (docs/log/2026-11-25-wake.md).

Starts `sluice-manager` in its own folder with real workers. Loads, parks, wakes and unloads each model several times in
turns, with the file in the page cache. With `--evict` the file leaves the cache before each load and each wake. Prints
medians:

- milliseconds of a cold load, of a park and of a wake, from the operations' receipts, and the ratio of wake to load
- CPU time of the worker that each started, which other load on the machine changes less
- stages of load and wake: times of the events (ms since the operation began), and durations from the worker's log

With `--upgrade` the worker's program is replaced before each wake, as a package does: a new process wakes the version.

tests/bench/bench_wake.py --bin build/release/bin [--runs 5] [--evict] [--upgrade] [--json] MODEL... [-- LOAD FLAGS]
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time


class Manager:
    def __init__(self, bin_folder, folder):
        self.bin, self.folder = bin_folder, folder
        self.log = open(f"{folder}/log", "wb")
        self.worker = f"{folder}/sluice-worker"
        self.upgrade()
        self.process = subprocess.Popen([f"{bin_folder}/sluice-manager", "--state-dir", f"{folder}/s", "--metrics", "", "--stop-workers-on-exit",
                                         "--worker", self.worker],
                                        stdout=self.log, stderr=self.log)
        until = time.monotonic() + 20
        while subprocess.run([f"{bin_folder}/sluice", "status", "--state-dir", f"{folder}/s"], capture_output=True).returncode:
            if time.monotonic() > until or self.process.poll() is not None:
                sys.exit(pathlib.Path(f"{folder}/log").read_text())
            time.sleep(0.05)

    def upgrade(self):
        """Replaces the worker's file by a copy, as an update of the package does."""
        shutil.copy(f"{self.bin}/sluice-worker", f"{self.worker}.new")
        os.rename(f"{self.worker}.new", self.worker)

    def cli(self, *args):
        run = subprocess.run([f"{self.bin}/sluice", *args, "--state-dir", f"{self.folder}/s"], capture_output=True, text=True)
        if run.returncode:
            sys.exit(f"sluice {' '.join(args)}: {run.stderr}{run.stdout}")
        return run.stdout

    def operation(self, *args):
        o = json.loads(self.cli(*args, "--json").splitlines()[-1])["operation"]
        if o["state"] != "OPERATION_STATE_DONE":
            sys.exit(f"{args}: {o}")
        return o

    def stages(self, begun_ns):
        """Events of this operation, and ms since it began."""
        lines = [json.loads(line) for line in self.cli("events", "--from", "1", "--json").splitlines()]
        found = {}
        for e in lines:
            at = int(e["time_unix_ns"])
            if at >= begun_ns:
                found.setdefault(e["type"].removeprefix("replica."), (at - begun_ns) / 1e6)
        return found

    def worker_times(self, replica_id):
        """Returns the worker's log record of the time it became ready."""
        log = pathlib.Path(f"{self.folder}/s/run/replica-{replica_id}/log").read_text(errors="replace")
        load, warm = re.findall(r"load_ms=(\d+) warm_ms=(\d+)", log)[-1]
        return {"worker_load": float(load), "worker_warm": float(warm)}

    def cpu_ms(self, replica_id):
        """Returns the CPU time of the replica's process since its start, in ms."""
        replicas = json.loads(self.cli("ps", "--json"))["replicas"]
        (pid,) = [r["pid"] for r in replicas if r["id"] == replica_id]
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(stat[11]) + int(stat[12])) * 1e3 / os.sysconf("SC_CLK_TCK")

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)


def evict(path):
    """Drops the file's pages from the page cache. While a version is parked for hours, the kernel drops these, too."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def measure(manager, name, flags, path, upgrade):
    times, stages, cpu = {}, {}, {}
    for what, args in (("load", ["load", name, *flags]), ("park", ["park", name]), ("wake", ["wake", name])):
        if path:
            evict(path)
        if upgrade and what == "wake":
            manager.upgrade()
        o = manager.operation(*args)
        times[what] = float(o["result"]["elapsed_ms"])
        cpu[what] = manager.cpu_ms(o["replica_ids"][0])
        if what != "park":
            stages[what] = manager.stages(int(o["created_unix_ns"])) | manager.worker_times(o["replica_ids"][0])
    manager.operation("unload", name)
    return times, stages, cpu


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--evict", action="store_true")
    parser.add_argument("--upgrade", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("models", nargs="+")
    argv, flags = sys.argv[1:], []
    if "--" in argv:
        argv, flags = argv[:argv.index("--")], argv[argv.index("--") + 1:]
    args = parser.parse_args(argv)
    rows = []
    with tempfile.TemporaryDirectory(prefix="wake", dir="/tmp") as folder:
        manager = Manager(os.path.abspath(args.bin), folder)
        try:
            for i, model in enumerate(args.models):
                manager.cli("register", f"m{i}", os.path.abspath(model), "--version", "1")
                manager.operation("load", f"m{i}", *flags)  # the file is read once
                manager.operation("unload", f"m{i}")
            seen = [[measure(manager, f"m{i}", flags, args.models[i] if args.evict else None, args.upgrade) for i in range(len(args.models))] for _ in range(args.runs)]
        finally:
            manager.end()
    for i, model in enumerate(args.models):
        row = {"model": os.path.basename(model), "file_bytes": os.path.getsize(model)}
        for what in ("load", "park", "wake"):
            row[f"{what}_ms"] = statistics.median(run[i][0][what] for run in seen)
        row |= {f"{what}_cpu_ms": statistics.median(run[i][2][what] for run in seen) for what in ("load", "wake")}
        row["wake_of_load"] = row["wake_ms"] / row["load_ms"]
        for what in ("load", "wake"):
            names = list(seen[0][i][1][what])
            row[f"{what}_stages"] = {n: round(statistics.median(run[i][1][what].get(n, 0) for run in seen), 1) for n in names}
        rows.append(row)
    for row in rows:
        if args.json:
            print(json.dumps(row))
            continue
        print(f"{row['model']}: {row['file_bytes'] / 1e6:.0f} MB; load {row['load_ms']:.0f} ms, park {row['park_ms']:.0f} ms, "
              f"wake {row['wake_ms']:.0f} ms, {row['wake_of_load']:.0%} of a load; CPU time of the worker {row['load_cpu_ms']:.0f} and {row['wake_cpu_ms']:.0f} ms, "
              f"{row['wake_cpu_ms'] / row['load_cpu_ms']:.0%}")
        for what in ("load", "wake"):
            print(f"  {what}: " + ", ".join(f"{name} {ms:g}" for name, ms in row[f"{what}_stages"].items()))


if __name__ == "__main__":
    main()
