#!/usr/bin/env python3
"""Compares the predictions of `sluice plan` with measured ranks of the CPU: tp 1 and 2, pp 1 and 2, on two cores.

Measures the constants first, then every split in turn, and prints measured / predicted. Constants:

- read: packed bytes per second of decoding on one core (tp 1, one thread)
- shared: the same of two processes at once, together
- compute: operations per second of prompts on one core
- latency, link: build/dev/bin/bench_comm
- step: decoding of the golden model of a few kilobytes

usage: bench_split_cost.py [--bin build/dev/bin] [--rounds 5] MODEL"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SPLITS = [(1, 1), (2, 1), (1, 2)]
BATCHES, PROMPT, TOKENS = (1, 8), 256, 64


def bench(bin_dir, model, tp=1, pp=1, threads=1, start=False):
    command = [bin_dir / "sluice", "bench", "engine", model, "--json", "--threads", threads, "--tp", tp, "--pp", pp, "--repetitions", 1,
               "--prompt", PROMPT, "--generate", TOKENS, "--batch", ",".join(map(str, BATCHES))]
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return process if start else finish(process)


def finish(process):
    """{"decode 1": tokens/s, "decode 8": ..., "prefill 1": ...}"""
    rows = json.loads(process.communicate()[0])["rows"]
    return {f"{row['phase']} {row['batch']}": row["tokens_per_second"] for row in rows}


def plan(bin_dir, model, group, requests=1, **split):
    flags = [text for name, value in split.items() for text in (f"--{name}", str(value))]
    command = [bin_dir / "sluice", "plan", model, "--json", "--groups", group, "--requests", requests, "--depth", TOKENS // 2, *flags]
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    return {(s["tp"], s["pp"]): s for s in json.loads(result.stdout)["groups"][0]["splits"]}


def work(bin_dir, model):
    """Seconds of a decode step and of a prompt of 256 rows, with 1 GB/s and 1 Gop/s."""
    unit = "1xcpu:read=1G:compute=1000T:shared=1000G:step=0:latency=0"
    reads = plan(bin_dir, model, unit)[1, 1]["prediction"]["tokens_per_second_alone"]
    unit = "1xcpu:read=1000T:compute=1G:shared=1000T:step=0:latency=0"
    computes = plan(bin_dir, model, unit)[1, 1]["prediction"]["prompt_tokens_per_second"]
    return 1 / reads, 1 / computes


def median(rounds, name):
    return statistics.median(r[name] for r in rounds)


def constants(args):
    comm = subprocess.run([args.bin / "bench_comm"], capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    tiny = ROOT / "tests/golden/tiny/q4_1.gguf"
    step = 1 / median([bench(args.bin, tiny) for _ in range(args.rounds)], "decode 1")
    alone, both = [], []
    for _ in range(args.rounds):
        alone.append(bench(args.bin, args.model))
        two = [bench(args.bin, args.model, start=True) for _ in range(2)]
        both.append({"decode 1": sum(finish(p)["decode 1"] for p in two)})
    token_gb, row_gop = work(args.bin, args.model)
    read = token_gb / (1 / median(alone, "decode 1") - step) * 1e9
    shared = token_gb * median(both, "decode 1") * 1e9
    compute = row_gop * median(alone, "prefill 1") * 1e9
    return f"2xcpu:read={read / 1e6:.0f}M:shared={shared / 1e6:.0f}M:compute={compute / 1e6:.0f}M:step={step * 1e6:.0f}:{comm}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/dev/bin")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--group", help="a description with constants that were measured before")
    args = parser.parse_args()
    group = args.group or constants(args)
    print(f"constants: {group}")
    measured = {split: [] for split in SPLITS}
    for _ in range(args.rounds):
        for tp, pp in SPLITS:
            measured[tp, pp].append(bench(args.bin, args.model, tp, pp, threads=2))
    print(f"{'split':12} {'what':12} {'measured':>10} {'predicted':>10} {'ratio':>6}")
    worst = 1.0
    for batch in BATCHES:
        predicted = plan(args.bin, args.model, group, requests=batch)
        for tp, pp in SPLITS:
            p = predicted[tp, pp]["prediction"]
            pairs = [(f"decode {batch}", p["tokens_per_second"])]
            if batch == 1:
                pairs.append(("prefill 1", p["prompt_tokens_per_second"]))
            for name, expected in pairs:
                found = median(measured[tp, pp], name)
                ratio = found / expected
                worst = max(worst, ratio, 1 / ratio)
                print(f"tp {tp} x pp {pp} {name:>14} {found:10.1f} {expected:10.1f} {ratio:6.2f}")
    print(f"largest factor: {worst:.2f} (within 15 %: {'yes' if worst <= 1.15 else 'no'})")


if __name__ == "__main__":
    sys.exit(main())
