"""Families with a gated delta net (families.py)."""

import gguf
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
    """Four ranks divide heads, state and FFN, none of them evenly. Neither kind of heads fills the hidden size."""
    return dict(
        vocab_size=VOCAB, hidden_size=14, intermediate_size=97, num_hidden_layers=2, num_attention_heads=7, num_key_value_heads=1,
        head_dim=16, max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=3, rms_norm_eps=1e-3,
        linear_conv_kernel_dim=4, linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=8, linear_value_head_dim=18,
        layer_types=[LINEAR, FULL], rope_parameters=rope(partial_rotary_factor=0.25),
    ) | more


def state_keys(w, c, drafts=1):
    """Layers that only draft tokens count as layers."""
    w.add_block_count(c.num_hidden_layers + drafts)
    w.add_nextn_predict_layers(drafts)
    w.add_rope_dimension_count(int(c.head_dim * c.rope_parameters["partial_rotary_factor"]))
    w.add_ssm_conv_kernel(c.linear_conv_kernel_dim)
    w.add_ssm_state_size(c.linear_key_head_dim)
    w.add_ssm_group_count(c.linear_num_key_heads)
    w.add_ssm_time_step_rank(c.linear_num_value_heads)
    w.add_ssm_inner_size(c.linear_num_value_heads * c.linear_value_head_dim)
    w.add_array(f"{w.arch}.attention.recurrent_layers", [kind == LINEAR for kind in c.layer_types] + [False] * drafts)
    w.add_full_attention_interval(4)


def qwen35_keys(w, c):
    state_keys(w, c)
    w.add_rope_dimension_sections([11, 11, 10, 0])


def tile(x, axis, c):
    """Value heads in the order of their index within a key head; a folder has those of a key head side by side."""
    n = c.linear_num_key_heads
    shape = x.shape
    x = x.reshape(*shape[:axis], n, c.linear_num_value_heads // n, -1, *shape[axis + 1 :])
    return np.ascontiguousarray(x.swapaxes(axis, axis + 1)).reshape(shape)


def tiled(name, x, c):
    """A tensor of a delta net as the converter for Qwen3.5 writes it."""
    if ".linear_attn." not in name or name.endswith("norm.weight"):
        return x
    if name.endswith("out_proj.weight"):
        return tile(x, 1, c)
    if not name.endswith(("in_proj_qkv.weight", "conv1d.weight")):
        return tile(-np.exp(x) if name.endswith("A_log") else x, 0, c)
    keys = 2 * c.linear_num_key_heads * c.linear_key_head_dim
    x = x.squeeze()
    return np.concatenate([x[:keys], tile(x[keys:], 0, c)])


def draft_layer(c):
    """A tensor of a layer that only drafts tokens."""
    return {f"blk.{c.num_hidden_layers}.nextn.enorm.weight": np.ones(c.hidden_size, np.float32)}


FAMILIES = {
    "qwen35": Family(
        "Qwen3_5ForCausalLM", hybrid(tie_word_embeddings=True), gguf.MODEL_ARCH.QWEN35, qwen35_keys, plus_one=True, transform=tiled,
        rename=lambda name: name.replace("dt_bias", "dt_proj.bias"), extra=draft_layer, edit=slow_decay, tries=8,
    ),
}
