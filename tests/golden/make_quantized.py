"""Writes quantized GGUF files tiny/NAME.gguf, one or two for each group of families. The files tiny/NAME.bin have the logits
of transformers for the dequantized weights. Layouts: README.md.

    make_quantized.py [NAME ...]     all of them without a name

The models are those of families.py and make_experts.py with other numbers. Widths hold whole blocks, and four ranks can
divide heads and FFNs. Rows are quantized in the order of transformers, because every order of GGUF permutes whole rows. The
contract's activations have 8 bits, and a near tie between keys or experts turns a rounding into another answer. So the
script makes some models, and takes the one that rounding changes the least."""

import copy
import dataclasses
import sys

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Q

import families
import greedy
import make_experts
import make_families
from families import square
from make_tiny import HERE

BLOCK = {Q.Q8_0: 32, Q.IQ4_NL: 32, Q.MXFP4: 32, Q.Q4_K: 256}


@dataclasses.dataclass
class Row:
    family: str  # a row of families.py or of make_experts.py
    kind: Q
    config: dict  # settings of the family that change
    peak: float = 1.0
    experts: Q | None = None  # format of the experts; None: kind
    calm: int = 2  # divides what is added to the residual, so that rounding is not amplified from layer to layer
    seeds: int = 8


def heads(hidden=96, ffn=160, **more):
    """Six heads of 32, which four ranks divide unevenly."""
    return dict(hidden_size=hidden, intermediate_size=ffn, num_attention_heads=6, num_key_value_heads=2, head_dim=32) | more


def filling(ffn=160, **more):
    """Families whose heads fill the hidden size."""
    return square(hidden_size=160, intermediate_size=ffn, num_attention_heads=5, **more)


def narrow(**more):
    """Four heads of 32: the least that four ranks divide."""
    return dict(hidden_size=32, intermediate_size=128, num_attention_heads=4, num_key_value_heads=2, head_dim=32) | more


ROWS = {
    "llama3_q8_0": Row("llama3", Q.Q8_0, heads(num_hidden_layers=1)),
    "stablelm_iq4_nl": Row("stablelm", Q.IQ4_NL, filling(num_key_value_heads=1, num_hidden_layers=1)),
    "gpt2_iq4_nl": Row("gpt2", Q.IQ4_NL, dict(n_embd=160, n_head=5, n_inner=160, n_layer=1, n_positions=64)),
    "gemma2_q8_0": Row("gemma2", Q.Q8_0, narrow()),
    "qwen3moe_iq4_nl": Row("qwen3moe", Q.IQ4_NL, narrow(moe_intermediate_size=128, num_experts=4, num_hidden_layers=1), calm=8, seeds=16),
    "gpt_oss_gguf_mxfp4": Row(
        "gpt_oss", Q.Q8_0, narrow(num_local_experts=4, num_experts_per_tok=2, num_hidden_layers=1, layer_types=[make_experts.SLIDING]),
        experts=Q.MXFP4, calm=8, seeds=16),
    "qwen35_q8_0": Row("qwen35", Q.Q8_0, dict(
        vocab_size=100, hidden_size=32, intermediate_size=128, num_attention_heads=4, head_dim=32, linear_num_value_heads=4,
        linear_value_head_dim=32)),
    "mamba2_q8_0": Row("mamba2", Q.Q8_0, dict(hidden_size=32, num_hidden_layers=1, expand=4, num_heads=8, head_dim=16), calm=4, seeds=16),
    "deepseek_v2_q8_0": Row("deepseek_v2_lite", Q.Q8_0, dict(
        hidden_size=32, intermediate_size=128, num_hidden_layers=1, num_attention_heads=8, num_key_value_heads=8, v_head_dim=16)),
}  # fmt: skip


# --- quantizers that the package does not have ---


def half(x):
    return x.astype(np.float16).view(np.uint8)


def to_iq4_nl(x):
    """x[blocks, 32]: the value of largest magnitude becomes −127 or 113 of the table, whichever is nearer in scale."""
    table = np.array(gguf.quants.IQ4_NL.kvalues, np.float32)
    top = np.take_along_axis(x, np.abs(x).argmax(1)[:, None], 1)
    d = (top / -127).astype(np.float16)
    codes = np.abs(x[:, :, None] - d.astype(np.float32)[:, :, None] * table).argmin(2).astype(np.uint8)
    return np.hstack([half(d), codes[:, :16] | codes[:, 16:] << 4])


def to_q4_k(x):
    """x[blocks, 256]: eight runs of 32, each with a scale and a minimum of six bits."""
    runs = x.reshape(-1, 8, 32)
    low = np.minimum(runs.min(2), 0)
    step = (runs.max(2) - low) / 15
    d, dmin = (step.max(1, keepdims=True) / 63).astype(np.float16), (-low.min(1, keepdims=True) / 63).astype(np.float16)
    share = lambda a, b: np.clip(np.round(a / np.where(b > 0, b, 1).astype(np.float32)), 0, 63).astype(np.uint8)
    scale, low = share(step, d), share(-low, dmin)
    real = lambda a, b: (a.astype(np.float32) * b.astype(np.float32))[:, :, None]
    width = real(scale, d)
    codes = np.clip(np.round((runs + real(low, dmin)) / np.where(width > 0, width, 1)), 0, 15).astype(np.uint8)
    packed = np.hstack([
        scale[:, :4] | (scale[:, 4:] >> 4) << 6, low[:, :4] | (low[:, 4:] >> 4) << 6, scale[:, 4:] & 15 | (low[:, 4:] & 15) << 4,
    ])  # fmt: skip
    nibbles = codes.reshape(-1, 4, 2, 32)
    return np.hstack([half(d), half(dmin), packed, (nibbles[:, :, 0] | nibbles[:, :, 1] << 4).reshape(-1, 128)])


def to_blocks(x, kind):
    """Rows of weights as rows of bytes."""
    x = np.ascontiguousarray(x, np.float32)
    own = {Q.IQ4_NL: to_iq4_nl, Q.Q4_K: to_q4_k}.get(kind)
    if own is None:
        return gguf.quantize(x, kind)
    return own(x.reshape(-1, BLOCK[kind])).reshape(*x.shape[:-1], -1)


# --- models ---

WRITES = ("o_proj.", "out_proj.", "c_proj.", "down_proj", "fc2.", "dense_4h_to_h.", "attention.dense.", "self_attn.dense.", "output_linear.")


def calm(model, divisor):
    for name, p in model.named_parameters():
        if any(s in name for s in WRITES):
            p.data = p.data / divisor



def is_matrix(name, p):
    """Embeddings of positions, norms, convolutions and routers keep their bits."""
    other = ("norm", "ln_", "router", "mlp.gate.", "shared_expert_gate", "wpe", "conv1d")
    return p.dim() > 1 and not name.endswith("bias") and not any(s in name for s in other)


def is_transposed(model, name):
    """True where the weight is [in, out], as GGUF has none."""
    conv1d = isinstance(model, transformers.GPT2LMHeadModel) and ".h." in name
    return conv1d or (isinstance(model, transformers.GptOssForCausalLM) and "experts." in name)


def kind_of(row, name, columns):
    kind = row.experts if row.experts and "experts." in name else row.kind
    if columns % BLOCK[kind] == 0:
        return kind
    if columns % 32:
        raise SystemExit(f"{name}: rows of {columns} hold no whole blocks")
    return Q.Q8_0  # as llama.cpp falls back


def quantize(model, row):
    """Replaces the matrices by their dequantized values. Returns their bytes, in the order of the model."""
    files = {}
    for name, p in model.named_parameters():
        if not is_matrix(name, p):
            continue
        turned = is_transposed(model, name)
        x = p.detach().numpy()
        x = x.swapaxes(-1, -2) if turned else x
        kind = kind_of(row, name, x.shape[-1])
        raw = to_blocks(x, kind)
        back = gguf.dequantize(raw, kind).reshape(x.shape)
        p.data = torch.from_numpy(np.ascontiguousarray(back.swapaxes(-1, -2) if turned else back))
        files[name] = kind, raw.swapaxes(-1, -2) if turned else raw
    model.tie_weights()
    return files


def rounded(x, levels):
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-30) / levels
    return (x / scale).round() * scale


def logits_of(model):
    """Logits of two sequences, whose ids the vocabulary has."""
    with torch.no_grad():
        ids = [ids % model.config.vocab_size for ids, _ in make_experts.sequences(make_experts.SEQUENCE_SEED)]
        return [model(torch.from_numpy(x)[None], use_cache=False).logits[0].float() for x in ids]


def rounded_logits(model, levels):
    """Logits where linears and experts read about 8 bits a token. Routers stay exact."""
    linear, n_experts = torch.nn.functional.linear, getattr(model.config, "num_experts", getattr(model.config, "num_local_experts", -1))
    is_router = lambda w: w.shape[0] in (n_experts, getattr(model.config, "n_routed_experts", -1), getattr(model.config, "moe_num_experts", -1))
    model = copy.deepcopy(model)
    for module in model.modules():
        if type(module).__name__ in ("Conv1D", "GptOssExperts"):
            module.register_forward_pre_hook(lambda m, args: (rounded(args[0], levels), *args[1:]))
    torch.nn.functional.linear = lambda x, w, b=None: linear(x if is_router(w) else rounded(x, levels), w, b)
    try:
        return logits_of(model)
    finally:
        torch.nn.functional.linear = linear


def draw(row, name, seed):
    """A random model, its family, and the bytes of its matrices."""
    is_dense = row.family in families.FAMILIES
    family = (families.FAMILIES if is_dense else make_experts.FAMILIES)[row.family]
    config = family.config | row.config
    family = dataclasses.replace(family, config=config, peak=row.peak, tries=1)
    seeds = [*name.encode(), seed]
    if is_dense:
        model = make_families.make_model(family, seeds)
    else:
        torch.manual_seed(0)
        c = family.make.config_class(**config)
        c._attn_implementation = "eager"
        model = family.make(c).float().eval()
        make_experts.randomize(model, family, np.random.default_rng(seeds))
    calm(model, row.calm)
    return is_dense, family, model, quantize(model, row)


def least_changed(row, name):
    best, least = None, np.inf
    for seed in range(row.seeds):
        drawn = draw(row, name, seed)
        exact, change = logits_of(drawn[2]), 0
        for levels in [127] if drawn[0] else [127, 115, 100]:  # several roundings show a near tie of experts
            pairs = zip(exact, rounded_logits(drawn[2], levels))
            change = max(change, *(((a - b).abs().amax(1) / a.abs().amax(1)).max().item() for a, b in pairs))
        if change < least:
            best, least = drawn, change
    return *best, least


def make(name):
    row = ROWS[name]
    is_dense, family, model, files, change = least_changed(row, name)
    if is_dense:
        _, tokens, merges = make_families.tokenizer()
        make_families.write_gguf(name, family, model, tokens, merges, files)
        make_families.write_logits(name, family, model, list(name.encode()))
    else:
        make_experts.write_gguf(name, family, model, files)
        make_experts.write_logits(name, model)
    margin = greedy.write(name, model, min(greedy.VOCAB, model.config.vocab_size))
    size = (HERE / "tiny" / f"{name}.gguf").stat().st_size // 1000
    kinds = sorted({kind.name for kind, _ in files.values()})
    print(f"{name:24} {size:4} KB of {', '.join(kinds)}; changed by 8 bits {change:.4f}, least margin {margin:.4f}", flush=True)


def main():
    transformers.logging.set_verbosity_error()
    for name in sys.argv[1:] or ROWS:
        make(name)


if __name__ == "__main__":
    main()
