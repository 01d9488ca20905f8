"""Writes a random checkpoint per family of models: tiny/NAME/ (a Hugging Face folder, by transformers), tiny/NAME.gguf
with the same weights, and tiny/NAME.bin, the logits by transformers (eager attention, f32). Layout: README.md.

No parameter is near zero or one by default, so that a wrong constant shows. Norm weights spread over 0.4…1.6, biases
over ±0.4. Q and K are scaled until attention is peaked. Weights are rounded to bf16, so that both files hold the same
numbers. A new family is an entry of FAMILIES."""

import dataclasses
import shutil
from typing import Any, Callable

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Q

from make_tiny import HERE, tokenizer, write_logits, write_vocabulary

VOCAB = 291  # no multiple of 32
CONTEXT = 200

BLOCK = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head", "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


@dataclasses.dataclass
class Family:
    arch: str  # of the GGUF
    config: Any
    make: Any
    names: dict[str, str]  # the GGUF's name -> that of transformers, without layer and ".weight"
    keys: Callable  # (writer, config): adds the architecture's own keys
    peak: float = 1.8  # gain of Q and K, or of their norms
    tensors: dict[str, Callable] = dataclasses.field(default_factory=dict)  # the GGUF's name -> change of the weight


def block_keys(w, c):
    w.add_block_count(c.num_hidden_layers)
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_key_length(c.head_dim)
    w.add_value_length(c.head_dim)
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_rope_freq_base(c.rope_parameters["rope_theta"])
    w.add_vocab_size(c.vocab_size)


FAMILIES = {
    # heads · head_dim != hidden, three query heads per KV head, a KV head that two ranks share
    "qwen3": Family(
        "qwen3",
        transformers.Qwen3Config(
            vocab_size=VOCAB, hidden_size=32, intermediate_size=128, num_hidden_layers=2, num_attention_heads=9,
            num_key_value_heads=3, head_dim=16, max_position_embeddings=CONTEXT, rms_norm_eps=1e-2, tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        ),
        transformers.Qwen3ForCausalLM,
        {**BLOCK, "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"},
        block_keys,
    ),
}  # fmt: skip


def randomize(model, family, rng):
    for name, p in model.named_parameters():
        shape = tuple(p.shape)
        is_attention = any(s in name for s in ("q_proj", "k_proj", "q_norm", "k_norm"))
        peak = family.peak if is_attention else 1.0
        if "norm" in name and name.endswith("weight"):
            x = rng.uniform(0.4, 1.6, shape) * peak
        elif p.dim() < 2:
            x = rng.uniform(-0.4, 0.4, shape)
        else:
            gain = 2.5 if "embed" in name or "lm_head" in name else peak if is_attention else 1.5
            x = rng.standard_normal(shape) * gain / np.sqrt(shape[-1]) * rng.uniform(0.5, 1.5, (shape[0], 1))
            x[:, rng.integers(0, shape[-1], 2)] *= 3
        p.data = torch.from_numpy(x.astype(np.float32)).bfloat16().float()


def write_folder(name, family):
    rng = np.random.default_rng(list(name.encode()))
    folder = HERE / "tiny" / name
    shutil.rmtree(folder, ignore_errors=True)
    model = family.make(family.config)
    randomize(model, family, rng)
    model.tie_weights()
    model.bfloat16().save_pretrained(folder)
    for file in folder.iterdir():
        file.chmod(0o644)
    return family.make.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def write_gguf(name, family, model):
    w = gguf.GGUFWriter(HERE / "tiny" / f"{name}.gguf", family.arch)
    w.add_name(f"Sluice tiny {name}")
    family.keys(w, family.config)
    write_vocabulary(w, *tokenizer(VOCAB))
    state = model.state_dict()
    for ours, theirs in family.names.items():
        for part in ("weight", "bias"):
            for layer in range(family.config.num_hidden_layers):
                key, to = f"model.layers.{layer}.{theirs}.{part}", f"blk.{layer}.{ours}.{part}"
                if "." in theirs and theirs.startswith("model.") or theirs == "lm_head":
                    key, to = f"{theirs}.{part}", f"{ours}.{part}"
                if key not in state or (layer and to.startswith(ours)):
                    continue
                if theirs == "lm_head" and family.config.tie_word_embeddings:
                    continue
                x = family.tensors.get(ours, lambda x: x)(state[key].numpy())
                if x.ndim < 2:
                    w.add_tensor(to, np.ascontiguousarray(x))
                else:
                    w.add_tensor(to, gguf.quantize(np.ascontiguousarray(x), Q.BF16), raw_dtype=Q.BF16)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    for name, family in FAMILIES.items():
        model = write_folder(name, family)
        write_gguf(name, family, model)
        write_logits(name, model, VOCAB)


if __name__ == "__main__":
    main()
