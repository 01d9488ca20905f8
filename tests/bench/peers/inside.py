"""Runs in a peer's own venv: loads a model, times one piece of work, prints one line of JSON.

    python inside.py PEER prepare GGUF FOLDER                     converts the model, prints {"precision": …}
    python inside.py PEER measure GGUF FOLDER '{"threads": 2}' '{"phase": "decode", "prompt": 1, "gen": 128, "batch": 1}'
    python inside.py PEER answer GGUF FOLDER '{"threads": 2}' '[1, 2, 3]' 16     token ids that follow greedily

PEER is a module of this folder, inside_PEER.py, with prepare(gguf, folder) and a class Engine(gguf, folder, setting).
The engine's generate(prompts, n) generates n tokens after each of the prompts, which are equally long lists of ids. The
tokens are greedy and go past any end of text."""

import importlib
import json
import os
import sys
import time

import common
from prompts import Prompts


def seconds_of(engine, prompts, n):
    started = time.perf_counter()
    made = engine.generate(prompts, n)
    seconds = time.perf_counter() - started
    if [len(m) for m in made] != [n] * len(prompts):
        raise RuntimeError(f"{[len(m) for m in made]} tokens instead of {n} each")
    return seconds


def measure(engine, work):
    """Tokens per second. Decoding is what n tokens take more than one: each call reads the prompts as well."""
    source = Prompts(work["prompt"])
    prompts = lambda: [source.next() for _ in range(work["batch"])]  # noqa: E731
    engine.generate(prompts(), 2)  # warms up
    first = seconds_of(engine, prompts(), 1)
    if work["phase"] == "prefill":
        return work["batch"] * work["prompt"] / first
    rest = seconds_of(engine, prompts(), work["gen"]) - first
    return work["batch"] * (work["gen"] - 1) / rest


def main():
    peer, verb, gguf, folder, *rest = sys.argv[1:]
    module = importlib.import_module(f"inside_{peer}")
    if verb == "prepare":
        print(json.dumps({"precision": module.prepare(gguf, folder)}))
        return
    started = time.perf_counter()
    engine = module.Engine(gguf, folder, json.loads(rest[0]))
    ready = time.perf_counter() - started
    if verb == "answer":
        print(json.dumps(engine.generate([json.loads(rest[1])], int(rest[2]))[0]))
        return
    resident, unbacked = common.memory_bytes(os.getpid())
    result = {"ready_s": ready, "resident_bytes": resident, "unbacked_bytes": unbacked}
    work = json.loads(rest[1])
    if work:
        result["tokens_per_s"] = measure(engine, work)
    print(json.dumps(result))


main()
