"""Writes tiny/NAME.gguf, random llama checkpoints of every kind of weight, and tiny/NAME.bin, their logits by
transformers (f32, weights dequantized from the file). Layout: README.md.

No parameter is near zero or one by default, so that a wrong constant shows. Norm weights spread over 0.4…1.6.
Q and K are scaled until attention is peaked. eps and the rope base are unusual."""

import pathlib

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Q
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from torch_models import hf_llama
from torch_models.gguf_model import Model
from torch_models.logits_file import LogitsFile

HERE = pathlib.Path(__file__).parent
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"]
VOCAB = 288
CHAT = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# name: matrix type, tied, layers, hidden, ffn, heads, kv heads, rope base, eps
SPECS = {
    "f32": (Q.F32, True, 2, 64, 32, 4, 2, 500.0, 1e-2),
    "f16": (Q.F16, False, 2, 64, 64, 8, 2, 1000.0, 1e-5),
    "bf16": (Q.BF16, True, 2, 64, 64, 4, 2, 10000.0, 1e-5),
    "q8_0": (Q.Q8_0, False, 2, 96, 128, 6, 2, 10000.0, 1e-3),
    "q4_0": (Q.Q4_0, True, 3, 96, 160, 6, 2, 10000.0, 1e-5),
    "q4_1": (Q.Q4_1, False, 2, 96, 96, 6, 2, 100000.0, 1e-5),
    "q5_0": (Q.Q5_0, True, 2, 64, 96, 4, 2, 10000.0, 1e-5),
    "q5_1": (Q.Q5_1, True, 2, 96, 128, 6, 2, 10000.0, 1e-5),
    "q4_k": (Q.Q4_K, True, 1, 256, 256, 8, 2, 10000.0, 1e-5),  # embedding and down are Q6_K, as in mixed files
}
ROWS = (0, 1, 31, 32, 63, 126, 127, 128, 129)  # the last row, too
LENGTHS = (5, 33, 150)


def tokenizer(n_tokens=VOCAB):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=n_tokens, special_tokens=SPECIALS, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    t.train([str(HERE / "perplexity.txt")], trainer)
    import json

    doc = json.loads(t.to_str())["model"]
    tokens = [s for s, _ in sorted(doc["vocab"].items(), key=lambda p: p[1])]
    assert len(tokens) == n_tokens
    return tokens, [m if isinstance(m, str) else " ".join(m) for m in doc["merges"]]


def k_quant(kind, rows, columns, std, rng):
    """Random blocks of the wanted deviation; the package reads K-quants but does not make them."""
    n = rows * columns // 256
    size = gguf.GGML_QUANT_SIZES[kind][1]
    raw = rng.integers(0, 256, (n, size)).astype(np.uint8)
    if kind == Q.Q6_K:  # d · i8 · (−32…31)
        d = (std / (74 * 18.5) * rng.uniform(0.5, 1.5, n)).astype(np.float16)
        raw[:, 208:210] = d.view(np.uint8).reshape(n, 2)
    else:  # d · u6 · (0…15) − dmin · u6; dmin = 7.5 d centres it
        d = (std / (36 * 8.5) * rng.uniform(0.5, 1.5, n)).astype(np.float16)
        raw[:, 0:2] = d.view(np.uint8).reshape(n, 2)
        raw[:, 2:4] = (d * np.float16(7.5)).astype(np.float16).view(np.uint8).reshape(n, 2)
        raw[:, 4:8] = (raw[:, 8:12] & 0x3F) | (raw[:, 4:8] & 0xC0)  # makes most minima close to their scale
    return raw.reshape(rows, columns // 256 * size)


def write_vocabulary(w, tokens, merges):
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("smollm")
    w.add_token_list(tokens)
    w.add_token_types([3 if t in SPECIALS else 1 for t in tokens])
    w.add_token_merges(merges)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_pad_token_id(3)
    w.add_add_bos_token(False)
    w.add_chat_template(CHAT)


def write_gguf(name, spec, tokens, merges):
    kind, tied, layers, hidden, ffn, heads, kv, base, eps = spec
    rng = np.random.default_rng(list(name.encode()))
    w = gguf.GGUFWriter(HERE / "tiny" / f"{name}.gguf", "llama")
    w.add_name(f"Sluice tiny {name}")
    w.add_context_length(512)
    w.add_embedding_length(hidden)
    w.add_block_count(layers)
    w.add_feed_forward_length(ffn)
    w.add_head_count(heads)
    w.add_head_count_kv(kv)
    w.add_layer_norm_rms_eps(eps)
    w.add_rope_freq_base(base)
    w.add_rope_dimension_count(hidden // heads)
    w.add_vocab_size(VOCAB)
    write_vocabulary(w, tokens, merges)

    def matrix(tensor, rows, columns, gain, as_kind=None):
        std = gain / np.sqrt(columns)
        k = as_kind or kind
        if k in (Q.Q4_K, Q.Q6_K):
            w.add_tensor(tensor, k_quant(k, rows, columns, std, rng), raw_dtype=k)
            return
        # a few heavy columns and rows, as real weights have
        x = rng.standard_normal((rows, columns)) * std * rng.uniform(0.5, 1.5, (rows, 1))
        x[:, rng.integers(0, columns, 2)] *= 3
        x = x.astype(np.float32)
        if k == Q.F32:
            w.add_tensor(tensor, x)
        elif k == Q.F16:
            w.add_tensor(tensor, x.astype(np.float16))
        else:
            w.add_tensor(tensor, gguf.quantize(x, k), raw_dtype=k)

    def vector(tensor, n):
        w.add_tensor(tensor, rng.uniform(0.4, 1.6, n).astype(np.float32))

    head_dim = hidden // heads
    peak = 3.2 if kind == Q.Q4_K else 1.8
    wide = Q.Q6_K if kind == Q.Q4_K else None
    matrix("token_embd.weight", VOCAB, hidden, 2.5, wide)
    for layer in range(layers):
        p = f"blk.{layer}."
        vector(p + "attn_norm.weight", hidden)
        matrix(p + "attn_q.weight", heads * head_dim, hidden, peak)
        matrix(p + "attn_k.weight", kv * head_dim, hidden, peak)
        matrix(p + "attn_v.weight", kv * head_dim, hidden, 1.5)
        matrix(p + "attn_output.weight", hidden, heads * head_dim, 1.5)
        vector(p + "ffn_norm.weight", hidden)
        matrix(p + "ffn_gate.weight", ffn, hidden, 1.5)
        matrix(p + "ffn_up.weight", ffn, hidden, 1.5)
        matrix(p + "ffn_down.weight", hidden, ffn, 1.5, wide)
    vector("output_norm.weight", hidden)
    if not tied:
        matrix("output.weight", VOCAB, hidden, 2.5)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def write_logits(name, hf, vocab=VOCAB):
    rng = np.random.default_rng(5)
    with torch.no_grad(), LogitsFile(HERE / "tiny" / f"{name}.bin", len(LENGTHS), vocab) as f:
        for n in LENGTHS:
            ids = rng.integers(0, vocab, n)
            r = hf(torch.from_numpy(ids)[None], output_attentions=True)
            logits = r.logits[0]
            rows = sorted({i for i in ROWS if i < n} | {n - 1})
            f.begin(ids, len(rows))
            for row in rows:
                f.row(row, logits[row].numpy())
        peak = np.mean([a[0, :, n // 2 :].amax(-1).mean() for a in r.attentions])
        gap = logits.topk(2, dim=1).values
        print(f"{name:5} {(HERE / 'tiny' / f'{name}.gguf').stat().st_size:7} bytes, logits deviate {logits.std():.2f}, "
              f"mean largest attention weight {peak:.2f}, smallest top-2 margin {(gap[:, 0] - gap[:, 1]).min():.4f}")


def main():
    (HERE / "tiny").mkdir(exist_ok=True)
    tokens, merges = tokenizer()
    for name, spec in SPECS.items():
        write_gguf(name, spec, tokens, merges)
        write_logits(name, hf_llama.load(Model(HERE / "tiny" / f"{name}.gguf")))


if __name__ == "__main__":
    main()
