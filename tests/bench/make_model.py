#!/usr/bin/env python3
"""Writes a checkpoint of a real shape with random weights, for benchmarks. model_shapes.py has the shapes.

The cost of a step depends on shapes and formats, not on the values of the weights. The vocabulary has the first entries
of a real model's, so that every program tokenizes real text alike.

build/venv/bin/python tests/bench/make_model.py --shape 1.1b --format Q4_K_M      # prints the file's path

Formats mix as llama-quantize mixes them. Q4_0 … Q5_1 and the K-quants keep `output` in Q6_K, the _M mixes also part of
`attn_v` and `ffn_down`. Rows that 256 does not divide fall back to blocks of 32. With --pure every matrix has one
format. The same arguments give the same bytes; an existing file is used unchanged. Needs the packages of
tests/support/requirements.txt."""

import argparse
import os
import pathlib
import subprocess
import sys
import time

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q
from model_shapes import SHAPES, add_metadata, tensors

ROOT = pathlib.Path(__file__).resolve().parents[2]
FORMATS = {
    "F32": Q.F32, "F16": Q.F16, "BF16": Q.BF16, "Q8_0": Q.Q8_0, "Q4_0": Q.Q4_0, "Q4_1": Q.Q4_1, "Q5_0": Q.Q5_0, "Q5_1": Q.Q5_1,
    "Q2_K": Q.Q2_K, "Q3_K": Q.Q3_K, "Q4_K": Q.Q4_K, "Q5_K": Q.Q5_K, "Q6_K": Q.Q6_K, "Q4_K_M": Q.Q4_K, "Q5_K_M": Q.Q5_K,
}  # fmt: skip
FALLBACK = {Q.Q4_K: Q.Q5_0, Q.Q5_K: Q.Q5_1, Q.Q6_K: Q.Q8_0, Q.Q2_K: Q.Q4_0, Q.Q3_K: Q.Q4_0}
# llama-quantize names the whole file so in general.file_type
FILE_TYPES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K": 12, "Q4_K": 14, "Q4_K_M": 15,
    "Q5_K": 16, "Q5_K_M": 17, "Q6_K": 18, "BF16": 32,
}  # fmt: skip
# Offsets of a block's scale and minimum, the deviation of weights at scale 1, and the minimum, in scales, that centres
# them.
BLOCKS = {
    Q.Q4_0: (0, None, 4.64, 0), Q.Q4_1: (0, 2, 4.61, -7.5), Q.Q5_0: (0, None, 9.25, 0), Q.Q5_1: (0, 2, 9.23, -15.5),
    Q.Q8_0: (0, None, 73.9, 0), Q.Q2_K: (80, 82, 9.84, 1.5), Q.Q3_K: (108, None, 43.4, 0), Q.Q4_K: (0, 2, 168.0, 7.5),
    Q.Q5_K: (0, 2, 337.0, 15.5), Q.Q6_K: (208, None, 1370.0, 0),
}  # fmt: skip
CHUNK = 1 << 24  # elements made at once


def random_blocks(kind, n_elements, std, rng):
    """Bytes of random blocks whose weights have the deviation std and a mean near zero."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    n = n_elements // elements
    raw = np.frombuffer(rng.bytes(n * size), dtype=np.uint8).reshape(n, size).copy()
    at, at_min, unit, centre = BLOCKS[kind]
    scale = (std / unit * rng.uniform(0.7, 1.3, n)).astype(np.float16)
    raw[:, at : at + 2] = scale.view(np.uint8).reshape(n, 2)
    if at_min is not None:
        raw[:, at_min : at_min + 2] = (scale * np.float16(centre)).astype(np.float16).view(np.uint8).reshape(n, 2)
    if kind == Q.Q2_K:  # each sub-block's minimum is its scale
        raw[:, 0:16] = (raw[:, 0:16] & 15) * 17
    elif kind in (Q.Q4_K, Q.Q5_K):
        raw[:, 8:12] = raw[:, 4:8]
        raw[:, 12:16] = (raw[:, 12:16] & 15) * 17
    return raw


def random_floats(kind, n_elements, std, rng):
    x = rng.standard_normal(n_elements, dtype=np.float32) * np.float32(std)
    if kind == Q.F16:
        return x.astype(np.float16)
    if kind == Q.BF16:
        bits = x.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return x


def more_bits(layer, layers):
    """The layers of a _M mix whose attn_v and ffn_down get Q6_K: the first and last eighth, and every third between."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def kind_of(name, dims, args, shape):
    """The format of a tensor. Vectors, routers and convolutions stay in f32."""
    kind, columns = FORMATS[args.format], dims[-1]
    if len(dims) == 1 or name.endswith(("ffn_gate_inp.weight", "conv1d.weight", "conv.weight")):
        return Q.F32
    if kind in (Q.F32, Q.F16, Q.BF16):
        return kind
    is_output = name == "output.weight" or (shape.tied and name == "token_embd.weight")
    if not args.pure and is_output and kind != Q.Q8_0:
        kind = Q.Q6_K if columns % 256 == 0 else Q.Q8_0
    elif not args.pure and args.format.endswith("_M") and name.endswith(("attn_v.weight", "ffn_down.weight", "ffn_down_exps.weight")):
        kind = Q.Q6_K if more_bits(int(name.split(".")[1]), shape.layers) else kind
    elif not args.pure and args.format.endswith("_M") and name.endswith("attn_qkv.weight"):
        kind = {Q.Q4_K: Q.Q5_K, Q.Q5_K: Q.Q6_K}[kind]
    return FALLBACK[kind] if columns % gguf.GGML_QUANT_SIZES[kind][0] else kind


def add_vocabulary(w, args, shape, source):
    w.add_name(f"random {shape.arch} {args.shape}")
    w.add_file_type(FILE_TYPES[args.format])
    fields = {k.removeprefix("tokenizer."): f for k, f in gguf.GGUFReader(source).fields.items() if k.startswith("tokenizer.")}
    tokens = fields["ggml.tokens"].contents()
    if len(tokens) < shape.vocab:
        sys.exit(f"make_model: {source} has {len(tokens)} tokens, the shape {args.shape} wants {shape.vocab}")
    kept = set(tokens[: shape.vocab])
    for key, field in fields.items():
        value = field.contents()
        if key in ("ggml.tokens", "ggml.token_type", "ggml.scores"):
            value = value[: shape.vocab]
        elif key == "ggml.merges":
            value = [m for m in value if m.replace(" ", "") in kept]
        elif key.endswith("_token_id") and value >= shape.vocab:
            continue
        w.add_key_value(f"tokenizer.{key}", value, field.types[0], field.types[-1] if len(field.types) > 1 else None)


def write_tensor(w, kind, dims, gain, rng):
    n = int(np.prod(dims))
    if len(dims) == 1:
        w.write_tensor_data((rng.uniform(0.8, 1.2, n) * (gain or 1)).astype(np.float32))
        return
    make = random_floats if kind in (Q.F32, Q.F16, Q.BF16) else random_blocks
    std = gain / dims[-1] ** 0.5
    parts = [make(kind, min(CHUNK, n - at), std, rng) for at in range(0, n, CHUNK)]
    w.write_tensor_data(np.concatenate(parts))


def write(path, args, shape, vocabulary):
    rng = np.random.default_rng([args.seed, *f"{args.shape} {args.format} {args.pure}".encode()])
    w = gguf.GGUFWriter(path, shape.arch)
    add_vocabulary(w, args, shape, vocabulary)
    add_metadata(w, shape)
    plan = []
    for name, dims, gain in tensors(shape):
        kind = kind_of(name, dims, args, shape)
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        n_bytes = int(np.prod(dims)) // elements * size
        w.add_tensor_info(name, dims, np.dtype(np.float32), n_bytes, raw_dtype=kind)
        plan.append((kind, dims, gain))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    for kind, dims, gain in plan:
        write_tensor(w, kind, dims, gain, rng)
    w.close()


def vocabulary_path(shape):
    line = [sys.executable, ROOT / "tests/models/fetch.py", shape.vocabulary]
    return subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--shape", choices=SHAPES, default="1.1b", help="default: %(default)s")
    p.add_argument("--format", choices=FORMATS, default="Q4_K_M", help="default: %(default)s")
    p.add_argument("--pure", action="store_true", help="one format for every matrix, output too")
    p.add_argument("--seed", type=int, default=1, help="of the weights (default: %(default)s)")
    p.add_argument("--vocab-from", metavar="GGUF", help="whose vocabulary to take (default: that of the shape's real model)")
    p.add_argument("--output", metavar="PATH", help="default: random-SHAPE.FORMAT.gguf in the model cache")
    args = p.parse_args()
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "sluice/models"
    seed = f"-{args.seed}" if args.seed != 1 else ""
    default = cache / f"random-{args.shape}{seed}.{args.format}{'-pure' if args.pure else ''}.gguf"
    path = pathlib.Path(args.output) if args.output else default
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            write(part, args, SHAPES[args.shape], args.vocab_from or vocabulary_path(SHAPES[args.shape]))
            part.rename(path)
        finally:
            part.unlink(missing_ok=True)
        print(f"make_model: {path.stat().st_size / 2**20:.0f} MiB in {time.monotonic() - started:.0f} s", file=sys.stderr)
    print(path)


if __name__ == "__main__":
    main()
