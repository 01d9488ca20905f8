"""Families with a gated delta net and experts (make_experts.py)."""

import numpy as np
import safetensors.torch
import torch
import transformers

from family_groups.delta import FULL, LINEAR, slow_decay, state_keys, tile

HIDDEN = 12
NAMES = {f"mlp.shared_expert.{p}_proj": f"ffn_{p}_shexp" for p in ("gate", "up", "down")} | {
    "post_attention_layernorm": "post_attention_norm", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate", "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha", "linear_attn.in_proj_ba": "ssm_ba", "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.dt_bias": "ssm_dt.bias", "linear_attn.A_log": "ssm_a", "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out",
}  # fmt: skip


def weights(model, rng):
    """Norms lack their 1, and states decay slowly."""
    slow_decay(model, rng)
    for name, p in model.named_parameters():
        if name.endswith("norm.weight") and ".linear_attn." not in name and ".visual." not in name:
            p.data = (p.data - 1).bfloat16().float()


def keys(w, c):
    state_keys(w, c)
    w.add_expert_count(c.num_experts)
    w.add_expert_used_count(c.num_experts_per_tok)
    w.add_expert_feed_forward_length(c.moe_intermediate_size)
    w.add_expert_shared_feed_forward_length(c.shared_expert_intermediate_size)


def qwen35_keys(w, c):
    keys(w, c)
    w.add_rope_dimension_sections([11, 11, 10, 0])


def plain(rest, x, c):
    """Values that the converter changes in each family."""
    if rest.endswith("norm.weight") and "linear_attn" not in rest:
        return x + np.float32(1)
    if rest.endswith("A_log"):
        return -np.exp(x)
    return x.squeeze() if rest.endswith("conv1d.weight") else x


def tiled(rest, x, c):
    """Value heads in the order of GGUF: those of a key head lie apart."""
    x = plain(rest, x, c)
    n = 2 * c.linear_num_key_heads * c.linear_key_head_dim
    if "linear_attn" not in rest or rest.endswith("norm.weight"):
        return x
    if rest.endswith(("in_proj_qkv.weight", "conv1d.weight")):
        return np.concatenate([x[:n], tile(x[n:], 0, c)])
    return tile(x, 1 if rest.endswith("out_proj.weight") else 0, c)


def by_key_head(rest, x, c):
    """The rows of Q, K, V and gate of a key head lie side by side. GGUF has those of each kind together."""
    x = plain(rest, x, c)
    if not rest.endswith("in_proj_qkvz.weight"):
        return x
    n, dim = c.linear_num_key_heads, c.linear_key_head_dim
    values = c.linear_num_value_heads // n * c.linear_value_head_dim
    q, k, v, z = (part.reshape(-1, x.shape[1]) for part in np.split(x.reshape(n, -1, x.shape[1]), [dim, 2 * dim, 2 * dim + values], 1))
    return {"attn_qkv.weight": np.concatenate([q, k, v]), "attn_gate.weight": z}


def keep_a_part(folder, doc, model):
    """The part for images has a single tensor, and a layer that only drafts tokens another."""
    file = folder / "model.safetensors"
    tensors = {k: x for k, x in safetensors.torch.load_file(file).items() if ".visual." not in k or k.endswith("patch_embed.proj.bias")}
    tensors["mtp.norm.weight"] = torch.ones(HIDDEN, dtype=torch.bfloat16)
    safetensors.torch.save_file(tensors, file, {"format": "pt"})


def families(family, config):
    def text(**more):
        """Two ranks divide heads, state and experts."""
        shape = config(
            hidden_size=HIDDEN, num_experts_per_tok=2, moe_intermediate_size=36, shared_expert_intermediate_size=34,
            linear_conv_kernel_dim=4, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=12,
            layer_types=[LINEAR, FULL], tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 700.0, "partial_rotary_factor": 0.25}, **more,
        )  # fmt: skip
        del shape["intermediate_size"]
        return shape

    images = dict(hidden_size=16, intermediate_size=16, depth=1, num_heads=2, patch_size=4, out_hidden_size=HIDDEN, num_position_embeddings=16)
    return {
        "qwen35moe": family(
            transformers.Qwen3_5MoeForConditionalGeneration,
            dict(text_config=text(num_experts=4), vision_config=images, tie_word_embeddings=True), "qwen35moe", NAMES, qwen35_keys,
            weights=weights, change=tiled, edit=keep_a_part, tries=8, extra={"blk.2.nextn.enorm.weight": np.ones(HIDDEN)},
        ),
        "qwen3next": family(
            transformers.Qwen3NextForCausalLM, text(num_experts=3), "qwen3next", NAMES, keys, weights=weights, change=by_key_head, seeds=1, tries=16,
            extra={"blk.2.nextn.enorm.weight": np.ones(HIDDEN)},
        ),
    }  # fmt: skip
