"""Greedy answers of the models in tiny/: greedy.bin (README.md). Each step is a whole forward pass of transformers. So rope
that depends on the length has the table of the whole sequence."""

import pathlib
import struct

import numpy as np
import torch

FILE = pathlib.Path(__file__).parent / "greedy.bin"
VOCAB, PROMPT, STEPS = 283, 20, 32
LEAST_MARGIN = 2e-3  # of the row's largest magnitude: a hundred times the bound of the f32 kernels
TRIES = 200


def read():
    if not FILE.exists():
        return {}
    data, at, entries = FILE.read_bytes(), 8, {}
    for _ in range(struct.unpack_from("<I", data, 4)[0]):
        n_name, n_prompt, n_steps = struct.unpack_from("<III", data, at)
        n = n_name + 4 * (n_prompt + n_steps)
        entries[data[at + 12 : at + 12 + n_name].decode()] = data[at : at + 12 + n]
        at += 12 + n
    return entries


def answer(model, prompt, vocab, steps):
    """The generated ids, and the least margin of a step; None where a margin is too small."""
    ids, least = list(prompt), np.inf
    for _ in range(steps):
        row = model(torch.tensor(ids)[None], use_cache=False).logits[0, -1, :vocab].float()
        (best, second), (token, _) = (x.tolist() for x in row.topk(2))
        margin = (best - second) / row.abs().max().item()
        if margin < LEAST_MARGIN:
            return None
        least = min(least, margin)
        ids.append(token)
    return ids[len(prompt) :], least


def write(name, model, vocab=VOCAB, longest=PROMPT + STEPS):
    """Draws prompts until no step is a near tie, and adds the answer to the file. Returns the least margin."""
    rng = np.random.default_rng([7, *name.encode()])
    with torch.no_grad():
        for _ in range(TRIES):
            prompt = rng.integers(4, vocab, PROMPT)
            found = answer(model, prompt, vocab, longest - PROMPT)
            if found:
                break
        else:
            raise SystemExit(f"{name}: each of {TRIES} prompts has a near tie")
    ids = np.array([*prompt, *found[0]], "<u4")
    entries = read()
    entries[name] = struct.pack("<III", len(name), PROMPT, longest - PROMPT) + name.encode() + ids.tobytes()
    FILE.write_bytes(b"SLGT" + struct.pack("<I", len(entries)) + b"".join(entries[k] for k in sorted(entries)))
    return found[1]
