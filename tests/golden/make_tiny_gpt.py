"""Writes tiny/gpt2_KIND.gguf and tiny/bloom_KIND.gguf, random checkpoints, and their logits by transformers.

Tensors, keys and the order of Q, K and V are those of llama.cpp's converter. make_tiny.py has the shared parts."""

import json

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from torch_models import hf_gpt
from torch_models.gguf_model import Model
from make_tiny import HERE, VOCAB, write_logits

GPT2_SPECIALS = ["<|endoftext|>"]
BLOOM_SPECIALS = ["<unk>", "<s>", "</s>", "<pad>"]
BLOOM_WORDS = r" ?[^(\s|[.,!?…。，、।۔،])]+" # from BLOOM's tokenizer.json
# name: matrix type, tied, layers, hidden, ffn, heads, eps
SPECS = {
    "gpt2_f32": (Q.F32, True, 2, 32, 96, 4, 1e-2),
    "gpt2_f16": (Q.F16, False, 1, 64, 96, 2, 1e-5),
    "gpt2_q8_0": (Q.Q8_0, True, 2, 96, 160, 6, 1e-5),
    "gpt2_q4_0": (Q.Q4_0, False, 2, 96, 96, 6, 1e-3),
    "bloom_f32": (Q.F32, True, 1, 48, 192, 6, 1e-2),  # six heads: slopes of four, two between them
    "bloom_bf16": (Q.BF16, False, 1, 64, 256, 2, 1e-5),
    "bloom_q4_1": (Q.Q4_1, True, 1, 96, 384, 6, 1e-5),
}
CONTEXT = 200


def tokenizer(words, specials):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = words
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=specials, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    t.train([str(HERE / "perplexity.txt")], trainer)
    doc = json.loads(t.to_str())["model"]
    tokens = [s for s, _ in sorted(doc["vocab"].items(), key=lambda p: p[1])]
    assert len(tokens) == VOCAB
    return tokens, [m if isinstance(m, str) else " ".join(m) for m in doc["merges"]]


def write_vocabulary(w, arch):
    w.add_tokenizer_model("gpt2")
    if arch == "gpt2":
        specials = GPT2_SPECIALS
        tokens, merges = tokenizer(pre_tokenizers.ByteLevel(add_prefix_space=False), specials)
        w.add_tokenizer_pre("gpt-2")
    else:
        specials = BLOOM_SPECIALS
        words = pre_tokenizers.Split(Regex(BLOOM_WORDS), "isolated")
        bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokens, merges = tokenizer(pre_tokenizers.Sequence([words, bytes_of]), specials)
        w.add_tokenizer_pre("bloom")
    w.add_token_list(tokens)
    w.add_token_types([3 if t in specials else 1 for t in tokens])
    w.add_token_merges(merges)
    w.add_bos_token_id(len(specials) // 3)
    w.add_eos_token_id(len(specials) // 2)


def write_gguf(name, spec):
    kind, tied, layers, hidden, ffn, heads, eps = spec
    arch = name.split("_")[0]
    rng = np.random.default_rng(list(name.encode()))
    w = gguf.GGUFWriter(HERE / "tiny" / f"{name}.gguf", arch)
    w.add_name(f"Sluice tiny {name}")
    w.add_block_count(layers)
    w.add_context_length(CONTEXT)
    w.add_embedding_length(hidden)
    w.add_feed_forward_length(ffn)
    w.add_head_count(heads)
    if arch == "bloom":
        w.add_head_count_kv(heads)
    w.add_layer_norm_eps(eps)
    write_vocabulary(w, arch)

    def matrix(tensor, rows, columns, gain, as_kind=None):
        x = rng.standard_normal((rows, columns)) * gain / np.sqrt(columns) * rng.uniform(0.5, 1.5, (rows, 1))
        x[:, rng.integers(0, columns, 2)] *= 3
        x, k = x.astype(np.float32), as_kind or kind
        if k == Q.F32:
            w.add_tensor(tensor, x)
        elif k == Q.F16:
            w.add_tensor(tensor, x.astype(np.float16))
        else:
            w.add_tensor(tensor, gguf.quantize(x, k), raw_dtype=k)

    def bias(tensor, n):
        w.add_tensor(tensor, rng.uniform(-0.4, 0.4, n).astype(np.float32))

    def norm(tensor):
        w.add_tensor(tensor + ".weight", rng.uniform(0.4, 1.6, hidden).astype(np.float32))
        bias(tensor + ".bias", hidden)

    def linear(tensor, rows, columns, gain):
        matrix(tensor + ".weight", rows, columns, gain)
        bias(tensor + ".bias", rows)

    matrix("token_embd.weight", VOCAB, hidden, 2.5)
    if arch == "gpt2":
        matrix("position_embd.weight", CONTEXT, hidden, 2.0, Q.F32)  # converters do not quantize it
    else:
        norm("token_embd_norm")
    for layer in range(layers):
        p = f"blk.{layer}."
        norm(p + "attn_norm")
        linear(p + "attn_qkv", 3 * hidden, hidden, 1.8)
        linear(p + "attn_output", hidden, hidden, 1.5)
        norm(p + "ffn_norm")
        linear(p + "ffn_up", ffn, hidden, 1.5)
        linear(p + "ffn_down", hidden, ffn, 1.5)
    norm("output_norm")
    if not tied:
        matrix("output.weight", VOCAB, hidden, 2.5)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    for name, spec in SPECS.items():
        write_gguf(name, spec)
        model = Model(HERE / "tiny" / f"{name}.gguf")
        write_logits(name, hf_gpt.load_gpt2(model) if name.startswith("gpt2") else hf_gpt.load_bloom(model))


if __name__ == "__main__":
    main()
