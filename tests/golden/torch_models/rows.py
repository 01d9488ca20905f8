"""Rows of logits in 20 bits a number, for the golden files (README.md). A number is a share of the row's largest magnitude.
The error is 1e-6 of this magnitude: a twentieth of what the f32 kernels may deviate."""

import numpy as np

TOP = (1 << 19) - 1


def n_bytes(n):
    return 4 + (n + 1) // 2 * 5


def pack(row, scale=None):
    """f32 scale, and five bytes for each two numbers: the first in the low 20 bits. Without a scale: the row's."""
    x = np.asarray(row, np.float64)
    scale = np.float32(np.abs(x).max() if scale is None else scale)
    codes = np.round(x / (float(scale) or 1) * TOP).astype(np.int64) & 0xFFFFF
    codes = np.append(codes, np.zeros(len(codes) % 2, np.int64))
    pairs = codes[0::2] | codes[1::2] << 20
    return scale.astype("<f4").tobytes() + pairs.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :5].tobytes()


def unpack(data, at, n):
    scale = np.frombuffer(data, "<f4", 1, at)[0]
    raw = np.frombuffer(data, np.uint8, n_bytes(n) - 4, at + 4).reshape(-1, 5)
    pairs = np.pad(raw, ((0, 0), (0, 3))).view("<u8").astype(np.int64)[:, 0]
    codes = np.stack([pairs & 0xFFFFF, pairs >> 20], 1).reshape(-1)[:n]
    codes -= (codes >> 19) << 20
    return (codes * (float(scale) / TOP)).astype(np.float32)
