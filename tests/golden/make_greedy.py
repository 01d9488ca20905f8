"""Adds the greedy answer of each folder in tiny/ to greedy.bin. The folders are loaded by transformers in f32. So the
script also shows that transformers reads what Sluice reads: the logits of tiny/NAME.bin come out again.

    make_greedy.py [NAME ...]     all folders without a name

Quantized GGUF files have no folder: make_quantized.py adds their answers."""

import json
import sys

import numpy as np
import torch
import transformers

import greedy
import make_families
from torch_models import logits_file
from families import FAMILIES
from make_tiny import HERE

TINY = HERE / "tiny"
LONGEST = {"phi3_long": 32}  # behind the original context an engine computes the sequence again


# transformers itself cannot read this config: it lacks the kinds of layers, as the model's first files did
FROM_TABLE = ("exaone4_small",)


def load(folder):
    if folder.name in FROM_TABLE:
        return make_families.make_model(FAMILIES[folder.name], list(folder.name.encode()))
    name = json.loads((folder / "config.json").read_text())["architectures"][0]
    cls = getattr(transformers, name)
    attention = getattr(FAMILIES.get(folder.name), "attention", "eager")
    more = {"quantization_config": transformers.Mxfp4Config(dequantize=True)} if folder.name.endswith("mxfp4") else {}
    return cls.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention, **more).eval()


def difference(name, model):
    """In the listed columns of the first sequence's last row in tiny/NAME.bin."""
    _, columns, sequences = logits_file.read(TINY / f"{name}.bin")
    ids, rows = sequences[0]
    row = list(rows)[-1]
    scale, _, expected = rows[row]
    with torch.no_grad():
        got = model(torch.from_numpy(ids)[None], use_cache=False).logits[0, row].numpy()[columns]
    return np.abs(got - expected).max() / scale


def main():
    transformers.logging.set_verbosity_error()
    names = sys.argv[1:] or sorted(p.parent.name for p in TINY.glob("*/config.json"))
    for name in names:
        model = load(TINY / name)
        error = difference(name, model)
        if not error < 1e-5:
            raise SystemExit(f"{name}: differs from its logits by {error:.1e}")
        vocab = min(greedy.VOCAB, model.get_output_embeddings().weight.shape[0])
        longest = LONGEST.get(name, greedy.PROMPT + greedy.STEPS)
        margin = greedy.write(name, model, vocab, longest)
        print(f"{name:20} differs from its logits by {error:.1e}, least margin {margin:.4f}", flush=True)


if __name__ == "__main__":
    main()
