"""Families with latent attention (make_experts.py). The GGUF of V3 has a tensor of up projections for
keys and one for values, by head. That of V2-Lite has both in one tensor, as old files."""

import gguf
import numpy as np
import torch
import transformers

VOCAB, CONTEXT = 283, 200
NAMES = {
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm", "self_attn.kv_b_proj": "attn_kv_b",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp", "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp", "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
}  # fmt: skip


def config(**more):
    """Three heads of 6 + 4 elements with values of 8. The cache has 14 + 4: no width is a multiple of 16."""
    return dict(
        vocab_size=VOCAB, hidden_size=16, intermediate_size=20, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3,
        max_position_embeddings=CONTEXT, rms_norm_eps=1e-3, bos_token_id=1, eos_token_id=2, pad_token_id=3, tie_word_embeddings=True,
        q_lora_rank=10, kv_lora_rank=14, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=8, n_shared_experts=1,
        moe_intermediate_size=8, rope_parameters={"rope_type": "default", "rope_theta": 700.0},
    ) | more  # fmt: skip


def yarn(**more):
    """The factor of cos and sin is that of mscale over that of mscale_all_dim; the latter also scales the scores."""
    return {"rope_type": "yarn", "rope_theta": 700.0, "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 4.0,
            "beta_slow": 1.0} | more  # fmt: skip


def peaked(model, rng):
    """The scores are products of several matrices; these make them differ enough."""
    for name, p in model.named_parameters():
        if name.endswith(("q_b_proj.weight", "kv_a_proj_with_mqa.weight")):
            p.data = (p.data * 1.3).bfloat16().float()
        if name.endswith("mlp.gate.weight") and "V2" not in type(model).__name__:
            p.data = (p.data * 0.4).bfloat16().float()  # sigmoids near 0 or 1 would be near ties


def eighths(model, rng):
    """As peaked(); and blocks of 32 up projections are whole numbers up to 127 times a power of two, so Q8_0 holds them."""
    peaked(model, rng)
    for name, p in model.named_parameters():
        if name.endswith("kv_b_proj.weight"):
            blocks = p.data.reshape(p.shape[0], -1, 32)
            step = 2.0 ** torch.ceil(torch.log2(blocks.abs().amax(-1, keepdim=True) / 127))
            whole = torch.clamp(torch.round(blocks / step), -126, 126)
            whole[..., :1] = 127
            p.data = (whole * step).reshape(p.shape)


def keys(w, c):
    """As llama.cpp's converter writes them."""
    w.add_head_count_kv(1)
    w.add_key_length(c.kv_lora_rank + c.qk_rope_head_dim)
    w.add_value_length(c.kv_lora_rank)
    w.add_key_length_mla(c.qk_nope_head_dim + c.qk_rope_head_dim)
    w.add_value_length_mla(c.v_head_dim)
    common_keys(w, c)


def old_keys(w, c):
    """As it wrote them before. Files of V2 do not name the router's score."""
    w.add_head_count_kv(c.num_attention_heads)
    w.add_key_length(c.qk_nope_head_dim + c.qk_rope_head_dim)
    w.add_value_length(c.v_head_dim)
    common_keys(w, c)


def common_keys(w, c):
    rope = c.rope_parameters
    if c.q_lora_rank:
        w.add_q_lora_rank(c.q_lora_rank)
    w.add_kv_lora_rank(c.kv_lora_rank)
    w.add_rope_dimension_count(c.qk_rope_head_dim)
    w.add_leading_dense_block_count(c.first_k_dense_replace)
    w.add_expert_count(c.n_routed_experts)
    w.add_expert_used_count(c.num_experts_per_tok)
    w.add_expert_feed_forward_length(c.moe_intermediate_size)
    w.add_expert_shared_count(c.n_shared_experts)
    w.add_expert_group_count(c.n_group)
    w.add_expert_group_used_count(c.topk_group)
    w.add_expert_weights_scale(c.routed_scaling_factor)
    if c.norm_topk_prob:
        w.add_expert_weights_norm(True)
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if rope["rope_type"] == "yarn":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(rope["factor"])
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        w.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        w.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
        w.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])


def split_up(rest, x, c):
    """The up projections of a head: that of keys goes from a query to latent values, so it is transposed."""
    if rest != "self_attn.kv_b_proj.weight":
        return x
    heads = x.reshape(c.num_attention_heads, -1, x.shape[1])
    k, v = heads[:, : c.qk_nope_head_dim], heads[:, c.qk_nope_head_dim :]
    return {"attn_k_b.weight": np.ascontiguousarray(k.swapaxes(1, 2)), "attn_v_b.weight": np.ascontiguousarray(v)}


def add_draft_layer(folder, doc, model):
    """A layer behind those of the model. Nothing reads its tensors."""
    import safetensors.torch

    file = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    n, h = doc["num_hidden_layers"], doc["hidden_size"]
    tensors[f"model.layers.{n}.eh_proj.weight"] = torch.ones(h, 2 * h, dtype=torch.bfloat16)
    safetensors.torch.save_file(tensors, file, metadata={"format": "pt"})
    doc["num_nextn_predict_layers"] = 1


def families(family):
    return {
        # queries of full rank, and groups with the score of their best expert
        "deepseek_v2_lite": family(
            transformers.DeepseekV2ForCausalLM,
            config(num_attention_heads=4, num_key_value_heads=4, q_lora_rank=None, kv_lora_rank=32, qk_rope_head_dim=8,
                   n_routed_experts=4, num_experts_per_tok=2, first_k_dense_replace=1, routed_scaling_factor=1.4, n_group=2, topk_group=1,
                   topk_method="group_limited_greedy", norm_topk_prob=False, rope_parameters=yarn(mscale=0.9, mscale_all_dim=0.9)),
            "deepseek2", NAMES, keys=old_keys, weights=eighths,
        ),
        # four ranks with unequal numbers of heads; dense, because others show experts over four ranks
        "deepseek_v2_wide": family(
            transformers.DeepseekV2ForCausalLM,
            config(hidden_size=20, num_attention_heads=10, num_key_value_heads=10, intermediate_size=104, num_hidden_layers=1,
                   v_head_dim=16, n_routed_experts=2, num_experts_per_tok=1, first_k_dense_replace=1, topk_method="greedy", n_group=1,
                   topk_group=1, rope_parameters=yarn(mscale=0.7, mscale_all_dim=0.9)),
            weights=peaked, chosen=False,
        ),
        # queries of low rank, and groups with the sum of their two best scores
        "deepseek_v3": family(
            transformers.DeepseekV3ForCausalLM,
            config(n_routed_experts=6, num_experts_per_tok=3, first_k_dense_replace=1, routed_scaling_factor=2.5, n_group=3, topk_group=2,
                   norm_topk_prob=True, rope_parameters=yarn(mscale=0.8, mscale_all_dim=0.8)),
            "deepseek2", NAMES, keys=keys, change=split_up, weights=peaked, seeds=9,
        ),
        # GLM-4.7-Flash: V3 with a list of layer types
        "glm4_moe_lite": family(
            transformers.Glm4MoeLiteForCausalLM,
            config(n_routed_experts=4, num_experts_per_tok=2, routed_scaling_factor=1.8, n_group=1, topk_group=1, norm_topk_prob=True,
                   mlp_layer_types=["dense", "sparse"]),
            weights=peaked, edit=add_draft_layer,
        ),
    }  # fmt: skip
