"""Families with a gated delta net (families.py)."""

import numpy as np
import torch

from families import FULL, VOCAB, Family, rope

LINEAR = "linear_attention"


def slow_decay(model, rng):
    """Random logarithms of decays would forget a state within a few tokens. Here a state keeps 0.7 to 0.99 of itself."""
    for name, p in model.named_parameters():
        if name.endswith("A_log"):
            p.data = torch.from_numpy(rng.uniform(-4, -1, tuple(p.shape)).astype(np.float32)).to(torch.bfloat16).to(torch.float32)


def hybrid(**more):
    """Neither the heads of attention nor those of the state fill the hidden size."""
    return dict(
        vocab_size=VOCAB, hidden_size=30, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=3, rms_norm_eps=1e-3,
        linear_conv_kernel_dim=4, linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=8, linear_value_head_dim=24,
        layer_types=[LINEAR, FULL, LINEAR], rope_parameters=rope(partial_rotary_factor=0.25),
    ) | more


FAMILIES = {
    "qwen35": Family("Qwen3_5ForCausalLM", hybrid(tie_word_embeddings=True), plus_one=True, edit=slow_decay),
}
