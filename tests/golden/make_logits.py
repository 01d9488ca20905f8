"""Writes sample_logits.bin and sample_greedy.bin from transformers on the sample model's dequantized weights."""

import json
import pathlib
import struct

import numpy as np
import torch

from torch_models import rows as rows_20
from torch_models import hf_llama
from torch_models.gguf_model import Model, sample_path

HERE = pathlib.Path(__file__).parent
TOP = 64
STEPS = 64

SHORT = "The capital of France is"
MIDDLE = (
    "Once upon a time, in a village between two rivers, there lived a clockmaker who had never owned a watch. "
    "Every morning he asked the baker for the time, and every morning"
)
LONG = """A heap is a tree kept in an array. The children of the element at index i stand at 2i + 1 and 2i + 2, and no
child is larger than its parent. To insert, append the new element and swap it upward while it is larger than its parent.
To remove the largest, move the last element to the front and swap it downward with the larger child until it fits.

def push(heap, item):
    heap.append(item)
    i = len(heap) - 1
    while i > 0:
        parent = (i - 1) // 2
        if heap[parent] >= heap[i]:
            break
        heap[parent], heap[i] = heap[i], heap[parent]
        i = parent

def pop(heap):
    """
QUESTIONS = [
    "Why is the sky blue?", "Write a haiku about the sea.", "What is 17 times 6?", "Name three rivers in Europe.",
    "Explain recursion to a child.", "Translate 'good morning' into French.", "Who wrote Hamlet?",
    "Give me a recipe for pancakes.", "What is the difference between TCP and UDP?", "Write a Python function that reverses a string.",
]
TEXTS = [
    SHORT, MIDDLE, "1, 2, 3, 4, 5,", "#include <stdio.h>\n\nint main(void)\n{\n", "Dear Sir or Madam,\n\nI am writing to",
    "Water boils at 100 degrees because", "SELECT name, age FROM users WHERE", "The three laws of motion are:\n1.",
    "It was a dark and stormy night;", "E = mc^2 means that",
]


def chat(question):
    return (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    )


def main():
    torch.set_num_threads(2)
    model = Model(sample_path())
    hf = hf_llama.load(model)
    tok = model.tokenizer(parse_special=True)
    encode = lambda s: tok.encode(s, add_special_tokens=False).ids

    with torch.no_grad(), open(HERE / "sample_logits.bin", "wb") as f:
        prompts = [(SHORT, False), (MIDDLE, False), (LONG, False), (chat(QUESTIONS[0]), True)]
        f.write(b"SLLR" + struct.pack("<II", len(prompts), TOP))
        for text, whole in prompts:
            ids = encode(text)
            logits = hf(torch.tensor([ids])).logits[0]
            top = logits.topk(TOP, dim=1)
            lse = torch.logsumexp(logits.double(), 1).float()
            absmax = logits.abs().amax(1)
            data = text.encode()
            f.write(struct.pack("<IIII", len(data), len(ids), logits.shape[1], int(whole)) + data)
            f.write(struct.pack(f"<{len(ids)}I", *ids))
            for r in range(len(ids)):
                f.write(struct.pack("<ff", float(lse[r]), float(absmax[r])))
                f.write(top.indices[r].numpy().astype("<u2").tobytes() + top.values[r].numpy().astype("<f4").tobytes())
            if whole:
                f.write(rows_20.pack(logits[-1].numpy()))
            print(f"{len(ids)} tokens, next {tok.decode([int(top.indices[-1][0])])!r}")

    with torch.no_grad(), open(HERE / "sample_greedy.bin", "wb") as f:
        texts = TEXTS + [chat(q) for q in QUESTIONS]
        f.write(b"SLGR" + struct.pack("<II", len(texts), STEPS))
        for text in texts:
            ids, past, feed = encode(text), None, None
            out, margins = [], []
            feed = torch.tensor([ids])
            for _ in range(STEPS):
                r = hf(feed, past_key_values=past, use_cache=True)
                past = r.past_key_values
                best = r.logits[0, -1].topk(2)
                out.append(int(best.indices[0]))
                margins.append(float(best.values[0] - best.values[1]))
                feed = torch.tensor([[out[-1]]])
            data = text.encode()
            f.write(struct.pack("<II", len(data), len(ids)) + data + struct.pack(f"<{len(ids)}I", *ids))
            f.write(struct.pack(f"<{STEPS}I", *out) + struct.pack(f"<{STEPS}f", *margins))
            print(f"{min(margins):.2g}", json.dumps(tok.decode(out)[:110]), flush=True)


if __name__ == "__main__":
    main()
