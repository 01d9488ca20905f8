"""Writes dequant.bin: random blocks of every block format and the gguf package's f32 values. Layout: README.md.

The bytes are random, so every bit of every field counts. f16 scales are drawn again until they are finite.
Some scales are extreme (zero, subnormal, the largest, negative)."""

import pathlib
import struct

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q

HERE = pathlib.Path(__file__).parent
# type: byte offsets of its f16 fields in a block
TYPES = {
    Q.F16: None, Q.BF16: None,
    Q.Q8_0: [0], Q.Q4_0: [0], Q.Q4_1: [0, 2], Q.Q5_0: [0], Q.Q5_1: [0, 2],
    Q.Q2_K: [80, 82], Q.Q3_K: [108], Q.Q4_K: [0, 2], Q.Q5_K: [0, 2], Q.Q6_K: [208],
    Q.IQ4_NL: [0], Q.IQ4_XS: [0], Q.MXFP4: [],
}
EXTREME = np.array([0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x3C00], dtype=np.uint16)


def blocks(kind, rng):
    n_blocks = 12 if gguf.GGML_QUANT_SIZES[kind][0] == 256 else 24
    if TYPES[kind] is None:  # plain halves: 32 a row
        n = n_blocks * 32
        bits = rng.integers(0, 1 << 16, n).astype(np.uint16)
        mask = 0x7C00 if kind == Q.F16 else 0x7F80
        bits[(bits & mask) == mask] ^= 0x4000
        bits[: len(EXTREME)] = EXTREME if kind == Q.F16 else [0, 0x8000, 1, 0x807F, 0x80, 0x7F7F, 0xFF7F, 0x3F80]
        return bits.view(np.uint8).reshape(n_blocks, 64)
    size = gguf.GGML_QUANT_SIZES[kind][1]
    raw = rng.integers(0, 256, (n_blocks, size)).astype(np.uint8)
    if kind == Q.MXFP4:  # E8M0: every exponent whose largest value is finite
        raw[:, 0] = rng.integers(0, 253, n_blocks)
        raw[: 4, 0] = [0, 1, 2, 252]
    for offset in TYPES[kind]:
        scale = (rng.standard_normal(n_blocks) * 0.02).astype(np.float16).view(np.uint16)
        wild = rng.integers(0, 1 << 16, n_blocks).astype(np.uint16)
        wild[(wild & 0x7C00) == 0x7C00] ^= 0x4000
        scale[n_blocks // 2 :] = wild[n_blocks // 2 :]
        scale[: len(EXTREME)] = rng.permutation(EXTREME)
        raw[:, offset : offset + 2] = scale.view(np.uint8).reshape(n_blocks, 2)
    return raw


def main():
    rng = np.random.default_rng(1)
    with open(HERE / "dequant.bin", "wb") as f:
        f.write(b"SLDQ" + struct.pack("<I", len(TYPES)))
        for kind in TYPES:
            raw = blocks(kind, rng)
            n = len(raw)
            if kind == Q.BF16:  # the widening is a shift; the package's is the same
                values = gguf.dequantize(raw.view(np.uint16).view(np.uint8), kind).astype(np.float32).reshape(n, -1)
            elif kind == Q.F16:
                values = raw.view(np.float16).astype(np.float32)
            else:
                values = gguf.dequantize(raw, kind).astype(np.float32)
            assert np.isfinite(values).all(), kind
            f.write(struct.pack("<IIII", int(kind), n, raw.shape[1], values.shape[1]) + raw.tobytes() + values.tobytes())
            print(kind.name, raw.shape, values.shape, float(np.abs(values).max()))


if __name__ == "__main__":
    main()
