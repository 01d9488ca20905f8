#!/usr/bin/env python3
"""Loads a Hugging Face folder and a GGUF file with the same tensors in turn. Prints time to ready, memory and bytes read.

build/venv/bin/python tests/bench/load_time.py --bin build/release/bin

The model has random weights in BF16 (make_model.py). Both files have the same tokenizer. Before each load the files are
brought into the page cache, or dropped from it with --cold.

Goals: a folder takes at most 1.2 times the time of GGUF. The peak of anonymous and shared memory is at most packed bytes
× 1.15 + KV + 64 MiB. The bytes read are at most 1.1 times those that all ranks pack. The ranks of a tied embedding pack
the embedding whole, and the head's rows again. The script exits with 1 where a goal is missed."""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

import gguf
import model_shapes

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "sluice/models"
KV_TOKENS = 4096
MIB = 1 << 20
NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
TYPES = {gguf.GGMLQuantizationType.F32: "F32", gguf.GGMLQuantizationType.BF16: "BF16"}
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
         r"\s+(?!\S)|\s+")  # fmt: skip


def hf_name(name):
    if name in ("token_embd.weight", "output_norm.weight"):
        return {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}[name]
    _, layer, slot, _ = name.split(".")
    return f"model.layers.{layer}.{NAMES[slot]}.weight"


def write_safetensors(path, reader):
    header, at = {}, 0
    for t in reader.tensors:
        header[hf_name(t.name)] = {"dtype": TYPES[t.tensor_type], "shape": [int(n) for n in reversed(t.shape)],
                                   "data_offsets": [at, at + int(t.n_bytes)]}  # fmt: skip
        at += int(t.n_bytes)
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for t in reader.tensors:
            f.write(t.data.tobytes())


def write_tokenizer(folder, reader):
    get = lambda key: reader.fields[f"tokenizer.ggml.{key}"].contents()  # noqa: E731
    tokens = get("tokens")
    special = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
               for i, (t, kind) in enumerate(zip(tokens, get("token_type"))) if kind == gguf.TokenType.CONTROL]  # fmt: skip
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False}
    whole = {
        "version": "1.0", "added_tokens": special, "normalizer": {"type": "NFC"}, "post_processor": level, "decoder": level,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
        "model": {"type": "BPE", "vocab": {t: i for i, t in enumerate(tokens)}, "merges": get("merges")},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": tokens[get("eos_token_id")], "tokenizer_class": "Qwen2Tokenizer"}))


def write_config(folder, s):
    config = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "dtype": "bfloat16", "hidden_size": s.hidden, "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads, "num_key_value_heads": s.kv_heads, "head_dim": s.head, "intermediate_size": s.ffn,
        "vocab_size": s.vocab, "tie_word_embeddings": s.tied, "max_position_embeddings": s.context, "rms_norm_eps": s.epsilon,
        "rope_theta": s.rope_base, "hidden_act": "silu",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))


def bring(shape):
    """Returns the paths of the GGUF file and of the folder. A folder is complete when it has a config.json."""
    line = [sys.executable, pathlib.Path(__file__).with_name("make_model.py"), "--shape", shape, "--format", "BF16"]
    path = pathlib.Path(subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True).stdout.strip())
    folder = CACHE / f"random-{shape}-BF16"
    if not (folder / "config.json").exists():
        folder.mkdir(exist_ok=True)
        reader = gguf.GGUFReader(path)
        write_safetensors(folder / "model.safetensors", reader)
        write_tokenizer(folder, reader)
        write_config(folder, model_shapes.SHAPES[shape])
    return path, folder


def files(path):
    return sorted(path.iterdir()) if path.is_dir() else [path]


def set_cache(path, cold):
    """Drops the files from the page cache, or reads them into it."""
    for file in files(path):
        with open(file, "rb") as f:
            if cold:
                os.fsync(f.fileno())
                os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            else:
                while f.read(1 << 24):
                    pass


def fields(path):
    with open(path) as f:
        pairs = [line.split(":", 1) for line in f if ":" in line]
    return {key: value.split() for key, value in pairs}


def own_memory(pid):
    status = fields(f"/proc/{pid}/status")
    return sum(int(status[key][0]) for key in ("RssAnon", "RssShmem")) * 1024


def load(args, path, tp):
    """Starts a worker. Returns seconds to ready, the peak of its memory, bytes read by calls and from the disk."""
    set_cache(path, args.cold)
    with tempfile.TemporaryDirectory(prefix="sluice-load-") as state, open(f"{state}/log", "w+") as log:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
        started = time.monotonic()
        worker = subprocess.Popen([args.bin / "sluice-worker", "serve", "--socket", f"{state}/w.sock", "--model", path, "--tp", str(tp),
                                   "--kv-tokens", str(KV_TOKENS)], stdout=subprocess.DEVNULL, stderr=log, env=environment)  # fmt: skip
        peak = 0
        try:
            while " event=ready " not in (text := pathlib.Path(log.name).read_text()):
                if worker.poll() is not None:
                    sys.exit(f"load_time: the worker ended: {text}")
                peak = max(peak, own_memory(worker.pid))
                time.sleep(0.005)
            seconds = time.monotonic() - started
            io = fields(f"/proc/{worker.pid}/io")
            return seconds, max(peak, own_memory(worker.pid)), int(io["rchar"][0]), int(io["read_bytes"][0])
        finally:
            worker.terminate()
            worker.wait()


def plan(args, path, tp):
    """The packed bytes of all ranks, and the bytes of the KV pool."""
    out = subprocess.run([args.bin / "sluice-worker", "plan", path, "--text", "--tp", str(tp), "--kv-tokens", str(KV_TOKENS)], check=True,
                         stdout=subprocess.PIPE, text=True).stdout  # fmt: skip
    total = lambda key: sum(int(n) for n in re.findall(rf"^ *{key}: (\d+)", out, re.M))  # noqa: E731
    return total("weight_bytes"), total("kv_bytes")


def packed_of_file(shape, size, tp):
    """Bytes of the file that all ranks together pack. Several ranks each pack a tied embedding whole, and the head's rows
    once more."""
    s = model_shapes.SHAPES[shape]
    return size + (tp * s.vocab * s.hidden * 2 if s.tied and tp > 1 else 0)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin", help="folder of the programs (default: the release preset's)")
    p.add_argument("--shape", choices=["qwen3-0.6b"], default="qwen3-0.6b", help="default: %(default)s")
    p.add_argument("--tp", default="1,2", help="numbers of ranks, by commas (default: %(default)s)")
    p.add_argument("--runs", type=int, default=5, help="of each, in turn (default: %(default)s)")
    p.add_argument("--cold", action="store_true", help="drop the files from the page cache before each load")
    args = p.parse_args()
    paths = dict(zip(("GGUF", "folder"), bring(args.shape)))
    good, ratios = True, []
    print(f"{args.shape} in BF16, {'cold' if args.cold else 'warm'} page cache, load {os.getloadavg()[0]:.1f}; medians of {args.runs} in turn\n")
    print("| source | ranks | seconds (smallest–largest) | peak, MiB | bound, MiB | packed / file | read by calls / file | read from disk / file |")
    print("| --- " * 8 + "|")
    for tp in (int(n) for n in args.tp.split(",")):
        runs = {name: [] for name in paths}
        for _ in range(args.runs):
            for name, path in paths.items():
                runs[name].append(load(args, path, tp))
        for name, path in paths.items():
            weights, kv = plan(args, path, tp)
            bound, size = weights * 1.15 + kv + 64 * MIB, sum(file.stat().st_size for file in files(path))
            seconds = [run[0] for run in runs[name]]
            peak, calls, disk = (statistics.median(run[i] for run in runs[name]) for i in (1, 2, 3))
            packed = packed_of_file(args.shape, size, tp)
            good &= peak <= bound and max(calls, disk) <= 1.1 * packed
            print(f"| {name} | {tp} | {statistics.median(seconds):.2f} ({min(seconds):.2f}–{max(seconds):.2f}) | {peak / MIB:,.0f} | "
                  f"{bound / MIB:,.0f} | {packed / size:.2f} | {calls / size:.2f} | {disk / size:.2f} |")  # fmt: skip
        ratio = statistics.median(f[0] / g[0] for f, g in zip(runs["folder"], runs["GGUF"]))
        good &= ratio <= 1.2
        ratios.append(f"{ratio:.2f} with {tp} rank{'s' if tp > 1 else ''}")
    print(f"\nA folder takes these times the time of GGUF, medians of pairs: {', '.join(ratios)}.")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
