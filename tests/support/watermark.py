"""Finds the watermark of sampling.watermark in token ids, from its definition in docs/use/sampling.md alone.

    watermark.py VOCAB_SIZE FILE    ids separated by blanks or newlines
"""
import math
import sys

import numpy as np

GAMMA = 0.5
KEY, TAG = 0x0EC6AA8D, 0x67726565
MASK = np.uint64(0xFFFFFFFF)


def philox(counters, keys):
    """Philox4x32-10 over arrays: counters [n, 4], keys [n, 2] of uint64 that hold 32 bits each."""
    a, b, c, d = (counters[:, i].copy() for i in range(4))
    k, l = keys[:, 0].copy(), keys[:, 1].copy()
    for _ in range(10):
        first, second = np.uint64(0xD2511F53) * a, np.uint64(0xCD9E8D57) * c
        a, b = (second >> np.uint64(32)) ^ b ^ k, second & MASK
        c, d = (first >> np.uint64(32)) ^ d ^ l, first & MASK
        k, l = (k + np.uint64(0x9E3779B9)) & MASK, (l + np.uint64(0xBB67AE85)) & MASK
    return np.stack([a, b, c, d], axis=1)


def green(previous, tokens):
    """Returns for each token whether the token is green after its predecessor."""
    previous, tokens = np.asarray(previous, np.uint64), np.asarray(tokens, np.uint64)
    zero = np.zeros_like(tokens)
    counters = np.stack([tokens // np.uint64(4), zero, zero, zero + np.uint64(TAG)], axis=1)
    words = philox(counters, np.stack([previous, zero + np.uint64(KEY)], axis=1))
    return words[np.arange(len(tokens)), (tokens % np.uint64(4)).astype(np.int64)] < 2**31


def z_score(ids):
    """Standard deviations by which green tokens exceed chance. A pair of tokens counts once: repeats are not new evidence."""
    pairs = sorted(set(zip(ids[:-1], ids[1:])))
    if not pairs:
        return 0.0, 0
    n_green = int(green([p for p, _ in pairs], [t for _, t in pairs]).sum())
    return (n_green - GAMMA * len(pairs)) / math.sqrt(len(pairs) * GAMMA * (1 - GAMMA)), len(pairs)


def main():
    ids = [int(word) for word in open(sys.argv[2], encoding="ascii").read().split()]
    if any(i >= int(sys.argv[1]) for i in ids):
        sys.exit("an id is not below the vocabulary size")
    z, n = z_score(ids)
    print(f"z {z:.2f} over {n} pairs: {'watermarked' if z > 4 else 'not found'}")


if __name__ == "__main__":
    main()
