"""Gemma 4 and Llama 4 (families.py)."""

import numpy as np
import torch
from gguf import MODEL_ARCH as A

from families import FULL, LLAMA3, SLIDING, VOCAB, Family, llama3_divisors, rope

# --- Gemma 4 ---


def layer_scale(i):
    return 0.75 + 0.125 * i


def scale_layers(model, rng):
    """The factor of a layer's output is a buffer, so it is not among the random weights. Per-layer inputs have so few elements that
    they would amplify rounding, so they add little."""
    for i, layer in enumerate(model.model.layers):
        layer.layer_scalar = torch.full((1,), layer_scale(i))
        if layer.hidden_size_per_layer_input:
            layer.post_per_layer_input_norm.weight.data *= 0.25


def gemma4(**more):
    """The last two layers read the K and V of layers 1 and 2. Full layers have wider heads, a single KV head, and no values. Norms
    of a few elements would amplify rounding, so their epsilon is large."""
    return dict(
        vocab_size=VOCAB, vocab_size_per_layer_input=VOCAB, hidden_size=12, hidden_size_per_layer_input=3, intermediate_size=34,
        num_hidden_layers=5, num_attention_heads=4, num_key_value_heads=2, num_global_key_value_heads=1, head_dim=16, global_head_dim=32,
        max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=3, rms_norm_eps=0.05, sliding_window=16,
        layer_types=[SLIDING, SLIDING, FULL, SLIDING, FULL], attention_k_eq_v=True, num_kv_shared_layers=2, use_double_wide_mlp=True,
        final_logit_softcapping=10.0,
        rope_parameters={SLIDING: rope(70.0), FULL: rope(kind="proportional", partial_rotary_factor=0.5)},
    ) | more


def gemma4_full(c):
    """Heads and KV heads of the full layers, and the number of layers with K and V of their own."""
    full = c.per_layer_config[FULL]
    return full.head_dim, full.num_key_value_heads, c.num_hidden_layers - c.num_kv_shared_layers


def gemma4_keys(w, c):
    dim, kv_heads, n_own = gemma4_full(c)
    sliding = c.per_layer_config[SLIDING]
    is_sliding = [t == SLIDING for t in c.layer_types]
    w.add_sliding_window(c.sliding_window)
    w.add_sliding_window_pattern(is_sliding)
    w.add_shared_kv_layers(c.num_kv_shared_layers)
    w.add_embedding_length_per_layer_input(c.hidden_size_per_layer_input or 0)
    w.add_head_count_kv([sliding.num_key_value_heads if s else kv_heads for s in is_sliding])
    w.add_key_length(dim)
    w.add_value_length(dim)
    w.add_key_length_swa(sliding.head_dim)
    w.add_value_length_swa(sliding.head_dim)
    w.add_rope_dimension_count(dim)
    w.add_rope_dimension_count_swa(sliding.head_dim)
    w.add_rope_freq_base_swa(c.rope_parameters[SLIDING]["rope_theta"])
    w.add_final_logit_softcapping(c.final_logit_softcapping)
    if c.use_double_wide_mlp:
        w.add_feed_forward_length([c.intermediate_size * (1 if i < n_own else 2) for i in range(c.num_hidden_layers)])


def gemma4_extra(c):
    """The converter stores the pairs that do not turn as frequencies with a huge divisor."""
    pairs = gemma4_full(c)[0] // 2
    turning = int(c.rope_parameters[FULL]["partial_rotary_factor"] * pairs)
    scales = {f"blk.{i}.layer_output_scale.weight": np.array([layer_scale(i)], np.float32) for i in range(c.num_hidden_layers)}
    return {"rope_freqs.weight": np.array([1.0] * turning + [1e30] * (pairs - turning), np.float32)} | scales


def gemma4_moe_keys(w, c):
    gemma4_keys(w, c)
    w.add_expert_count(c.num_experts)
    w.add_expert_used_count(c.top_k_experts)
    w.add_expert_feed_forward_length(c.moe_intermediate_size)


def with_suffix(name, x):
    """The converter's names of experts and of the router's vectors."""
    if name.endswith("router.scale"):
        return [(name.replace("router.scale", "router.proj.scale"), x)]
    if name.endswith("router.per_expert_scale"):
        return [(name.replace("router.per_expert_scale", "experts.down_proj.scale"), x)]
    return [(name if name.endswith("weight") else name + ".weight", x)]


def scale_experts(model, rng):
    """Random vectors that are far from 1, but positive."""
    scale_layers(model, rng)
    for layer in model.model.layers:
        for p in (layer.router.scale, layer.router.per_expert_scale):
            p.data = torch.from_numpy(rng.uniform(0.5, 1.5, tuple(p.shape)).astype(np.float32)).to(torch.bfloat16).to(torch.float32)
        layer.router.scale.data *= 4


# --- Llama 4 ---


def llama4(**more):
    """Every second layer has experts; the fourth one has no rope. Heads do not fill the hidden size."""
    return dict(
        vocab_size=VOCAB, hidden_size=12, intermediate_size=6, intermediate_size_mlp=10, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=3, rms_norm_eps=1e-3,
        num_local_experts=4, num_experts_per_tok=1, interleave_moe_layer_step=2, tie_word_embeddings=True, rope_parameters=LLAMA3,
    ) | more


def llama4_keys(w, c):
    w.add_feed_forward_length(c.intermediate_size_mlp)
    w.add_expert_feed_forward_length(c.intermediate_size)
    w.add_expert_count(c.num_local_experts)
    w.add_expert_used_count(c.num_experts_per_tok)
    w.add_interleave_moe_layer_step(c.interleave_moe_layer_step)
    w.add_rope_dimension_count(c.head_dim)


def llama4_pieces(name, x):
    """The checkpoint has the experts' matrices transposed, and gate and up in one."""
    if name.endswith("experts.gate_up_proj"):
        gate, up = np.split(x.swapaxes(1, 2), 2, axis=1)
        return [(name.replace("gate_up_proj", "gate_proj.weight"), gate), (name.replace("gate_up_proj", "up_proj.weight"), up)]
    return [(name + ".weight", x.swapaxes(1, 2))] if name.endswith("experts.down_proj") else [(name, x)]


FAMILIES = {
    "gemma4": Family("Gemma4ForCausalLM", gemma4(), A.GEMMA4, gemma4_keys, extra=gemma4_extra, edit=scale_layers, peak=0.7, tries=16),
    "gemma4_moe": Family(
        "Gemma4ForCausalLM",
        gemma4(num_hidden_layers=2, layer_types=[SLIDING, FULL], num_kv_shared_layers=0, use_double_wide_mlp=False,
               hidden_size_per_layer_input=0, enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=36),
        A.GEMMA4, gemma4_moe_keys, extra=gemma4_extra, edit=scale_experts, peak=0.7, pieces=with_suffix, tries=16),
    # chunks and the steps of the temperature end within a prompt
    "llama4": Family(
        "Llama4ForCausalLM",
        llama4(attention_chunk_size=16, floor_scale=8, attn_scale=0.4, head_dim=16, intermediate_size=36, intermediate_size_mlp=34),
        peak=1.4),
    # GGUF lacks these numbers, so its model has those of all real ones
    "llama4_8192": Family("Llama4ForCausalLM", llama4(), A.LLAMA4, llama4_keys, extra=llama3_divisors, peak=1.4, pieces=llama4_pieces,
                          has_folder=False),
}
