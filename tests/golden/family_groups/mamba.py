"""Families with Mamba-2 or a short convolution (families.py). Their vocabulary has few rows: states and not logits fill the
files. Dimensions that ranks divide have two units of 32 for two ranks, and four for four ranks."""

import re

import numpy as np
import torch
from gguf import MODEL_ARCH as A
from gguf import ExpertGatingFuncType

from families import FULL, Family, rope

ROWS, WIDE_ROWS = 66, 100
CONV, LINEAR, MOE, MLP = "conv", "linear_attention", "moe", "mlp"


IDS = dict(bos_token_id=1, eos_token_id=2, pad_token_id=3)


def config(hidden, **more):
    return dict(vocab_size=ROWS, hidden_size=hidden, max_position_embeddings=256) | IDS | more


def kv_heads(w, c, kinds):
    """Layers without attention have no KV heads."""
    w.add_head_count_kv([c.num_key_value_heads if t == FULL else 0 for t in kinds])


def rms_eps(w, eps):
    """The eps of RMS norms, in place of the key for layer norms."""
    w.kv_data[0].pop(f"{w.arch}.attention.layer_norm_epsilon", None)
    w.add_layer_norm_rms_eps(eps)


def layer_of(name):
    return re.search(r"layers\.(\d+)\.", name)


def random(rng, shape, low, high):
    x = torch.from_numpy(rng.uniform(low, high, tuple(shape)).astype(np.float32))
    return x.to(torch.bfloat16).to(torch.float32)


def states_and_experts(model, rng):
    """Random logarithms of decays would forget a state within a few tokens; here a state keeps most of itself. Experts
    differ much in weight, and biases of their choice are not 0."""
    for name, p in model.named_parameters():
        if name.endswith("A_log"):
            p.data = random(rng, p.shape, -4, -1)
        elif name.endswith(("gate.weight", "router.weight")):
            p.data = random(rng, p.shape, -1.2, 1.2)
    for name, b in model.named_buffers():
        if name.endswith(("expert_bias", "e_score_correction_bias")):
            b.data = random(rng, b.shape, -0.3, 0.3)


# --- short convolution ---


def squeezed(name, x, c):
    """A convolution's weight [channels, 1, taps] without the 1."""
    return x.squeeze(1) if name.endswith("conv.conv.weight") else x


def lfm2_keys(w, c):
    rms_eps(w, c.norm_eps)
    kv_heads(w, c, c.layer_types)
    w.add_vocab_size(c.vocab_size)
    w.add_shortconv_l_cache(c.conv_L_cache)
    if getattr(c, "block_auto_adjust_ff_dim", False):
        width = int(c.block_ffn_dim_multiplier * int(2 * c.intermediate_size / 3))
        w.add_feed_forward_length(-(-width // c.block_multiple_of) * c.block_multiple_of)


def lfm2moe_keys(w, c):
    lfm2_keys(w, c)
    w.add_expert_count(c.num_experts)
    w.add_expert_used_count(c.num_experts_per_tok)
    w.add_expert_feed_forward_length(c.moe_intermediate_size)
    w.add_leading_dense_block_count(c.num_dense_layers)
    w.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)


def lfm2moe_parts(name, x, c):
    i = layer_of(name) and layer_of(name)[1]
    if name.endswith("gate_up_proj"):
        gate, up = np.split(x, 2, axis=1)
        return {f"blk.{i}.ffn_gate_exps.weight": gate, f"blk.{i}.ffn_up_exps.weight": up}
    if name.endswith("experts.down_proj"):
        return {f"blk.{i}.ffn_down_exps.weight": x}
    if name.endswith("expert_bias"):
        return {f"blk.{i}.exp_probs_b.bias": x}
    return None


# --- Mamba-2 ---


def mamba_parts(name, x, c):
    """The converter gives numbers per head a column, and norms a row per group."""
    i = layer_of(name) and layer_of(name)[1]
    if name.endswith("A_log"):
        return {f"blk.{i}.ssm_a": -np.exp(x)[:, None]}
    if name.endswith((".mixer.D", ".mamba.D")):
        return {f"blk.{i}.ssm_d": x[:, None]}
    if name.endswith("dt_bias"):
        return {f"blk.{i}.ssm_dt.bias": x}
    if name.endswith("conv1d.weight"):
        return {f"blk.{i}.ssm_conv1d.weight": x.squeeze(1)}
    if name.endswith(("mixer.norm.weight", "mamba.norm.weight")):
        return {f"blk.{i}.ssm_norm.weight": x.reshape(getattr(c, "n_groups", None) or c.mamba_n_groups, -1)}
    return None


def ssm_keys(w, width, state, n_heads, head_dim, n_groups):
    w.add_ssm_conv_kernel(width)
    w.add_ssm_state_size(state)
    w.add_ssm_inner_size(n_heads * head_dim)
    w.add_ssm_time_step_rank(n_heads)
    w.add_ssm_group_count(n_groups)


def mamba2_keys(w, c):
    w.add_context_length(2**20)
    w.add_feed_forward_length(0)
    rms_eps(w, c.layer_norm_epsilon)
    ssm_keys(w, c.conv_kernel, c.state_size, c.num_heads, c.head_dim, c.n_groups)


def granite_keys(w, c):
    kv_heads(w, c, c.layer_types)
    ssm_keys(w, c.mamba_d_conv, c.mamba_d_state, c.mamba_n_heads, c.mamba_d_head, c.mamba_n_groups)
    w.add_expert_shared_feed_forward_length(c.shared_intermediate_size)
    w.add_rope_dimension_count(c.head_dim)
    w.add_rope_scaling_finetuned(c.position_embedding_type == "rope")
    w.add_attention_scale(c.attention_multiplier)
    w.add_embedding_scale(c.embedding_multiplier)
    w.add_residual_scale(c.residual_multiplier)
    w.add_logit_scale(c.logits_scaling)
    if c.num_local_experts:
        w.add_expert_count(c.num_local_experts)
        w.add_expert_used_count(c.num_experts_per_tok)


def granite_parts(name, x, c):
    i = layer_of(name) and layer_of(name)[1]
    shared = "_shexp" if c.num_local_experts else ""
    if name.endswith("shared_mlp.input_linear.weight"):
        gate, up = np.split(x, 2)
        return {f"blk.{i}.ffn_gate{shared}.weight": gate, f"blk.{i}.ffn_up{shared}.weight": up}
    if name.endswith("shared_mlp.output_linear.weight"):
        return {f"blk.{i}.ffn_down{shared}.weight": x}
    if name.endswith("router.weight"):
        return {f"blk.{i}.ffn_gate_inp.weight": x}
    return lfm2moe_parts(name, x, c) or mamba_parts(name, x, c)


def nemotron_keys(w, c):
    kinds = c.layers_block_type
    rms_eps(w, c.layer_norm_epsilon)
    kv_heads(w, c, kinds)
    w.add_key_length(c.head_dim)
    w.add_value_length(c.head_dim)
    ssm_keys(w, c.conv_kernel, c.ssm_state_size, c.mamba_num_heads, c.mamba_head_dim, c.n_groups)
    width = c.moe_intermediate_size if MOE in kinds else c.intermediate_size
    w.add_feed_forward_length([width if t in (MOE, MLP) else 0 for t in kinds])
    if MOE in kinds:
        w.add_expert_count(c.n_routed_experts)
        w.add_expert_used_count(c.num_experts_per_tok)
        w.add_expert_feed_forward_length(c.moe_intermediate_size)
        w.add_expert_shared_feed_forward_length(c.moe_shared_expert_intermediate_size)
        w.add_expert_shared_count(c.n_shared_experts)
        w.add_expert_weights_norm(c.norm_topk_prob)
        w.add_expert_weights_scale(c.routed_scaling_factor)
        w.add_expert_group_count(c.n_group)


NEMOTRON_NAMES = {"norm.weight": "attn_norm", "q_proj.weight": "attn_q", "k_proj.weight": "attn_k", "v_proj.weight": "attn_v",
                  "o_proj.weight": "attn_output", "up_proj.weight": "ffn_up", "down_proj.weight": "ffn_down", "in_proj.weight": "ssm_in",
                  "out_proj.weight": "ssm_out", "gate.weight": "ffn_gate_inp", "experts.up_proj": "ffn_up_exps",
                  "experts.down_proj": "ffn_down_exps", "shared_experts.up_proj.weight": "ffn_up_shexp",
                  "shared_experts.down_proj.weight": "ffn_down_shexp"}
NEMOTRON_GLOBALS = {"embeddings.weight": "token_embd", "norm_f.weight": "output_norm", "lm_head.weight": "output"}


def nemotron_parts(name, x, c):
    """A block's names do not tell its kind."""
    found = layer_of(name)
    if not found:
        return {f"{NEMOTRON_GLOBALS[re.sub(r'^(model|backbone)[.]', '', name)]}.weight": x}
    tail = name[found.end() :].removeprefix("mixer.")
    if tail == "gate.e_score_correction_bias":
        return {f"blk.{found[1]}.exp_probs_b.bias": x}
    if tail == "conv1d.bias":
        return {f"blk.{found[1]}.ssm_conv1d.bias": x}
    return mamba_parts(name, x, c) or {f"blk.{found[1]}.{NEMOTRON_NAMES[tail]}.weight": x}


def letters(doc):
    """The kinds of layers as the first configs have them."""
    kinds = doc.pop("layers_block_type")
    letter = {LINEAR: "M", FULL: "*", MLP: "-", MOE: "E"}
    return doc | {"hybrid_override_pattern": "".join(letter[k] for k in kinds), "num_hidden_layers": len(kinds)}


def falcon_keys(w, c):
    w.add_vocab_size(c.vocab_size)
    w.add_key_length(c.head_dim)
    w.add_value_length(c.head_dim)
    ssm_keys(w, c.mamba_d_conv, c.mamba_d_state, c.mamba_n_heads, c.mamba_d_head, c.mamba_n_groups)


def falcon_scaled(name, x, c):
    """The converter multiplies weights by the factors of the config. Those here are powers of two, so bf16 holds the products."""
    if name.endswith("mamba.in_proj.weight"):
        keys = c.mamba_n_groups * c.mamba_d_state
        lengths = [c.mamba_d_ssm, c.mamba_d_ssm, keys, keys, c.mamba_n_heads]
        return x * c.ssm_in_multiplier * np.repeat(np.float32(c.ssm_multipliers), lengths)[:, None]
    factors = {
        "down_proj": c.mlp_multipliers[1], "gate_proj": c.mlp_multipliers[0], "k_proj": c.key_multiplier * c.attention_in_multiplier,
        "q_proj": c.attention_in_multiplier, "v_proj": c.attention_in_multiplier, "o_proj": c.attention_out_multiplier,
        "mamba.out_proj": c.ssm_out_multiplier, "lm_head": c.lm_head_multiplier, "embed_tokens": c.embedding_multiplier}
    for part, factor in factors.items():
        if name.endswith(f"{part}.weight"):
            return x * np.float32(factor)
    return x


GRANITE = dict(
    rms_norm_eps=1e-3, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1, head_dim=16, layer_types=[LINEAR, FULL],
    mamba_d_conv=4, mamba_d_state=8, mamba_n_groups=1, mamba_n_heads=3, mamba_d_head=12, embedding_multiplier=1.7, logits_scaling=3.0,
    residual_multiplier=0.6, attention_multiplier=0.3, tie_word_embeddings=True, rope_parameters=rope())
NEMOTRON = dict(layer_norm_epsilon=1e-3, num_key_value_heads=1, head_dim=16, conv_kernel=4)
FALCON = dict(
    intermediate_size=36, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1, head_dim=16, rms_norm_eps=1e-3,
    mamba_d_ssm=36, mamba_n_heads=6, mamba_d_head=6, mamba_n_groups=2, mamba_d_state=6, rope_parameters=rope(), lm_head_multiplier=0.5,
    embedding_multiplier=2.0, mlp_multipliers=[0.5, 2.0], key_multiplier=2.0, attention_out_multiplier=0.5, attention_in_multiplier=0.5,
    ssm_multipliers=[0.5, 2.0, 0.25, 4.0, 0.5], ssm_in_multiplier=2.0, ssm_out_multiplier=0.25)
EXACT = r"ssm_(a|d|conv1d)\b|ffn_gate_inp"
STATE = dict(parts=mamba_parts, edit=states_and_experts, exact=EXACT)
FAMILIES = {
    # the FFN's width is ⌈⌊1.25 · ⌊2 · 40 / 3⌋⌋ / 3⌉ · 3 = 33
    "lfm2": Family(
        "Lfm2ForCausalLM",
        config(34, intermediate_size=40, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1, head_dim=16, norm_eps=1e-3,
               conv_L_cache=3, block_auto_adjust_ff_dim=True, block_ffn_dim_multiplier=1.25, block_multiple_of=3,
               layer_types=[CONV, FULL], rope_parameters=rope()),
        A.LFM2, lfm2_keys, transform=squeezed),
    "lfm2moe": Family(
        "Lfm2MoeForCausalLM",
        config(24, intermediate_size=20, moe_intermediate_size=16, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1,
               head_dim=16, norm_eps=1e-3, conv_L_cache=3, num_dense_layers=1, num_experts=4, num_experts_per_tok=2,
               layer_types=[CONV, FULL], rope_parameters=rope()),
        A.LFM2MOE, lfm2moe_keys, transform=squeezed, parts=lfm2moe_parts, edit=states_and_experts, exact=EXACT, tries=24),
    "mamba2": Family(
        "Mamba2ForCausalLM",
        dict(vocab_size=WIDE_ROWS, hidden_size=16, num_hidden_layers=2, layer_norm_epsilon=1e-3, expand=7, num_heads=14, head_dim=8,
             n_groups=2, state_size=8, conv_kernel=4) | IDS,
        A.MAMBA2, mamba2_keys, **STATE),
    "granitehybrid": Family(
        "GraniteMoeHybridForCausalLM",
        config(18, intermediate_size=36, shared_intermediate_size=36, mamba_expand=2, num_local_experts=0, **GRANITE),
        A.GRANITE_HYBRID, granite_keys, permuted=True, **STATE | dict(parts=granite_parts)),
    # rope, experts, and a shared MLP of another width
    "granitehybrid_moe": Family(
        "GraniteMoeHybridForCausalLM",
        config(12, intermediate_size=36, shared_intermediate_size=40, mamba_expand=3, num_local_experts=4, num_experts_per_tok=2,
               position_embedding_type="rope", **GRANITE),
        A.GRANITE_HYBRID, granite_keys, permuted=True, tries=24, **STATE | dict(parts=granite_parts)),
    "nemotron_h": Family(
        "NemotronHForCausalLM",
        config(16, vocab_size=WIDE_ROWS, intermediate_size=100, num_attention_heads=7, layers_block_type=[LINEAR, FULL, MLP], n_groups=4,
               mamba_num_heads=16, mamba_head_dim=7, ssm_state_size=6, **NEMOTRON),
        A.NEMOTRON_H, nemotron_keys, spell=letters, **STATE | dict(parts=nemotron_parts)),
    "nemotron_h_moe": Family(
        "NemotronHForCausalLM",
        config(16, num_attention_heads=3, layers_block_type=[LINEAR, MOE, FULL], n_groups=2, mamba_num_heads=6, mamba_head_dim=6,
               ssm_state_size=6, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=36, n_group=1, topk_group=1,
               moe_shared_expert_intermediate_size=40, routed_scaling_factor=1.4, **NEMOTRON),
        A.NEMOTRON_H_MOE, nemotron_keys, tries=24, **STATE | dict(parts=nemotron_parts)),
    # a norm of the state's output after the gate, before the gate, and none
    "falcon_h1": Family(
        "FalconH1ForCausalLM", config(16, **FALCON, mamba_rms_norm=True, mamba_norm_before_gate=False), A.FALCON_H1, falcon_keys,
        transform=falcon_scaled, **STATE),
    "falcon_h1_norm": Family("FalconH1ForCausalLM", config(16, **FALCON | dict(num_hidden_layers=1), mamba_rms_norm=True), **STATE),
    "falcon_h1_bare": Family("FalconH1ForCausalLM", config(16, **FALCON | dict(num_hidden_layers=1)), **STATE),
}
