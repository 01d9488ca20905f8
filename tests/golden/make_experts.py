"""Writes a random checkpoint per family of models with experts. The folder tiny/NAME/ is by transformers. The file
tiny/NAME.gguf has the same weights with the names of llama.cpp's converter. The logits in tiny/NAME.bin are by transformers
(eager attention, f32). Layout: README.md.

    make_experts.py [NAME ...]     all families without a name

Norms spread over 0.4…1.6, biases over ±0.4. Q and K are scaled until attention is peaked, routers until experts differ
much in weight. Weights are rounded to bf16, so that both files hold the same numbers. A near tie between experts turns a
rounding into another answer. So the script makes some models, and takes the one that rounding changes the least."""

import copy
import dataclasses
import json
import re
import shutil
import sys
from typing import Any, Callable

import gguf
import numpy as np
import safetensors.torch
import torch
import transformers
from gguf import GGMLQuantizationType as Q
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

import make_families
from expert_groups import delta, latent
from torch_models.logits_file import LogitsFile
from make_tiny import CHAT, HERE, SPECIALS, tokenizer, write_vocabulary

VOCAB, CONTEXT = 283, 200
HIDDEN, WHOLE = 20, 32  # rows of some families are whole vectors
PROMPT, STEPS, SECOND, SEEDS = 20, 32, 45, 24
SEQUENCE_SEED = 5
MATRICES = Q.BF16  # the type of matrices in GGUF, but of routers
SLIDING, FULL = "sliding_attention", "full_attention"

BLOCK = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp",
}  # fmt: skip


def halves(x, axis=1):
    return np.split(x, 2, axis)


@dataclasses.dataclass
class Family:
    make: Any
    config: dict
    arch: str | None = None  # the GGUF's architecture; None: a folder only
    names: dict = dataclasses.field(default_factory=dict)  # the module in transformers -> the GGUF's name, beyond BLOCK
    keys: Callable = lambda w, c: None
    permuted: bool = False  # the GGUF has Q and K in the order of interleaved rope
    split: bool = False  # the GGUF has a tensor per expert, as old files
    fused: bool = False  # the folder has the experts of a layer in one tensor
    peak: float = 1.5
    seeds: int = 0  # another number gives other weights
    chosen: bool = True  # False: the first model is taken, whatever rounding does to it
    tries: int = SEEDS  # models among which the best is chosen
    weights: Callable = lambda model, rng: None  # changes the random weights
    edit: Callable = lambda folder, doc, model: None  # changes config.json and the folder
    extra: dict = dataclasses.field(default_factory=dict)  # GGUF: tensors beyond those of the model
    # the values in the GGUF, or the tensors for a parameter that becomes several
    change: Callable = lambda rest, x, c: x


def config(**more):
    """Three heads of 16 with one KV head: neither even, nor hidden / heads. Two ranks divide an FFN of 40 unevenly."""
    return dict(
        vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=40, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1,
        head_dim=16, max_position_embeddings=CONTEXT, rms_norm_eps=1e-3, bos_token_id=1, eos_token_id=2, pad_token_id=3,
        rope_parameters={"rope_type": "default", "rope_theta": 700.0},
    ) | more  # fmt: skip


def expert_keys(w, c):
    w.add_expert_count(c.num_local_experts)
    w.add_expert_used_count(c.num_experts_per_tok)


def moe_keys(w, c):
    expert_keys(w, c)
    w.add_expert_feed_forward_length(c.moe_intermediate_size)


def gpt_oss_keys(w, c):
    expert_keys(w, c)
    w.add_expert_feed_forward_length(c.intermediate_size)
    w.add_sliding_window(c.sliding_window)
    r = c.rope_parameters
    w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    w.add_rope_scaling_factor(r["factor"])
    w.add_rope_scaling_orig_ctx_len(r["original_max_position_embeddings"])
    w.add_rope_scaling_yarn_beta_fast(r["beta_fast"])
    w.add_rope_scaling_yarn_beta_slow(r["beta_slow"])


def qwen2moe_keys(w, c):
    w.add_expert_count(c.num_experts)
    w.add_expert_used_count(c.num_experts_per_tok)
    w.add_expert_feed_forward_length(c.moe_intermediate_size)
    w.add_expert_shared_feed_forward_length(c.shared_expert_intermediate_size)


def granite_keys(w, c):
    expert_keys(w, c)
    if getattr(c, "shared_intermediate_size", 0):
        w.add_expert_shared_feed_forward_length(c.shared_intermediate_size)
    w.add_rope_dimension_count(c.head_dim)
    w.add_attention_scale(c.attention_multiplier)
    w.add_embedding_scale(c.embedding_multiplier)
    w.add_residual_scale(c.residual_multiplier)
    w.add_logit_scale(c.logits_scaling)


def partial_dims(w, c):
    w.add_rope_dimension_count(int(c.rope_parameters["partial_rotary_factor"] * c.head_dim))


def glm_keys(w, c, n_drafts=1):
    w.add_block_count(c.num_hidden_layers + n_drafts)
    w.add_nextn_predict_layers(n_drafts)
    w.add_expert_count(c.n_routed_experts)
    w.add_expert_used_count(c.num_experts_per_tok)
    w.add_expert_feed_forward_length(c.moe_intermediate_size)
    w.add_expert_shared_count(c.n_shared_experts)
    w.add_expert_group_count(c.n_group)
    w.add_expert_group_used_count(c.topk_group)
    w.add_expert_weights_scale(c.routed_scaling_factor)
    w.add_expert_weights_norm(c.norm_topk_prob)
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    w.add_leading_dense_block_count(c.first_k_dense_replace)
    partial_dims(w, c)


def mimo_keys(w, c):
    moe_keys(w, c)
    slides = [kind == SLIDING for kind in c.layer_types]
    ropes = c.rope_parameters
    w.add_head_count_kv([c.num_key_value_heads * (2 if s else 1) for s in slides])
    w.add_sliding_window(c.sliding_window)
    w.add_sliding_window_pattern(slides)
    w.add_rope_dimension_count(int(c.head_dim * ropes[FULL]["partial_rotary_factor"]))
    w.add_float32("mimo2.rope.freq_base_swa", ropes[SLIDING]["rope_theta"])
    w.add_float32("mimo2.attention.value_scale", c.attention_value_scale)
    w.add_expert_group_count(c.n_group)
    w.add_expert_group_used_count(c.topk_group)
    w.add_expert_weights_scale(c.routed_scaling_factor)
    w.add_expert_weights_norm(c.norm_topk_prob)
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def draw_mxfp4(model, rng):
    """Experts that MXFP4 can hold: random codes, and scales around 2^-3."""
    model.packed = {}
    for layer, block in enumerate(model.model.layers):
        for name in ("gate_up_proj", "down_proj"):
            p = getattr(block.mlp.experts, name)
            n, k, rows = p.shape
            blocks = torch.from_numpy(rng.integers(0, 256, (n, rows, k // 32, 16)).astype(np.uint8))
            scales = torch.from_numpy(rng.integers(122, 125, (n, rows, k // 32)).astype(np.uint8))
            p.data = convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16).float().contiguous()
            model.packed[f"model.layers.{layer}.mlp.experts.{name}"] = blocks, scales


def pack_mxfp4(folder, doc, model):
    file = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    for name, (blocks, scales) in model.packed.items():
        del tensors[name]
        tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = blocks, scales
    safetensors.torch.save_file(tensors, file, {"format": "pt"})
    doc["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}


def add_draft_layer(folder, doc, model):
    file = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    tensors["model.layers.2.input_layernorm.weight"] = torch.ones(WHOLE, dtype=torch.bfloat16)
    tensors["model.layers.2.eh_proj.weight"] = torch.ones(WHOLE, 2 * WHOLE, dtype=torch.bfloat16)
    safetensors.torch.save_file(tensors, file, {"format": "pt"})
    doc["num_nextn_predict_layers"] = 1


def ernie_keys(w, c):
    w.add_expert_count(c.moe_num_experts)
    w.add_expert_used_count(c.moe_k)
    w.add_interleave_moe_layer_step(c.moe_layer_interval)
    w.add_leading_dense_block_count(c.moe_layer_start_index)
    w.add_expert_feed_forward_length(c.moe_intermediate_size)
    w.add_expert_shared_count(c.moe_num_shared_experts)
    w.add_expert_shared_feed_forward_length(c.intermediate_size // c.num_key_value_heads)


def minimax_keys(w, c):
    expert_keys(w, c)
    w.add_expert_feed_forward_length(c.intermediate_size)
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    partial_dims(w, c)


SHARED = {f"mlp.shared_expert{s}.{p}_proj": f"ffn_{p}_shexp" for s in ("", "s") for p in ("gate", "up", "down")}
ERNIE = dict(moe_num_experts=4, moe_k=2, moe_intermediate_size=36, moe_num_shared_experts=2, num_hidden_layers=3)
YARN = {"rope_type": "yarn", "rope_theta": 700.0, "factor": 4.0, "beta_fast": 4.0, "beta_slow": 1.0, "truncate": False,
        "original_max_position_embeddings": 32}  # fmt: skip
GRANITE = dict(embedding_multiplier=1.7, logits_scaling=3.0, residual_multiplier=0.6, attention_multiplier=0.3)
FAMILIES = {
    "qwen3moe": Family(
        transformers.Qwen3MoeForCausalLM,
        config(hidden_size=WHOLE, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=40, norm_topk_prob=True),
        "qwen3moe", keys=moe_keys, seeds=1,
    ),
    "mixtral": Family(
        transformers.MixtralForCausalLM, config(hidden_size=WHOLE, num_local_experts=5, num_experts_per_tok=2), "llama", keys=expert_keys,
        permuted=True, split=True,
    ),
    # rope's original context and the window end within the prompt
    "gpt_oss": Family(
        transformers.GptOssForCausalLM,
        config(num_local_experts=5, num_experts_per_tok=3, sliding_window=16, layer_types=[SLIDING, FULL],
               rope_parameters=YARN),
        "gpt-oss", {"post_attention_layernorm": "post_attention_norm", "self_attn.sinks": "attn_sinks.weight",
                    "mlp.router": "ffn_gate_inp", "mlp.experts.down_proj_bias": "ffn_down_exps.bias"},
        keys=gpt_oss_keys,
    ),
    # experts as the published folders have them
    "gpt_oss_mxfp4": Family(
        transformers.GptOssForCausalLM,
        config(hidden_size=WHOLE, num_local_experts=6, num_experts_per_tok=3, intermediate_size=64, sliding_window=16,
               layer_types=[SLIDING, FULL], rope_parameters=YARN),
        weights=draw_mxfp4, edit=pack_mxfp4,
    ),
    # a shared expert of another width
    "qwen2moe": Family(
        transformers.Qwen2MoeForCausalLM,
        config(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=36, shared_expert_intermediate_size=48),
        "qwen2moe", SHARED | {"mlp.shared_expert_gate": "ffn_gate_inp_shexp"}, keys=qwen2moe_keys,
    ),
    "qwen2moe_dense": Family(
        transformers.Qwen2MoeForCausalLM,
        config(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=36, shared_expert_intermediate_size=44, intermediate_size=56,
               decoder_sparse_step=2, tie_word_embeddings=True),
    ),
    "granitemoe": Family(
        transformers.GraniteMoeForCausalLM,
        config(num_local_experts=5, num_experts_per_tok=2, **GRANITE), "granitemoe",
        {"block_sparse_moe.router": "ffn_gate_inp"}, keys=granite_keys, permuted=True,
    ),
    "granitemoe_shared": Family(
        transformers.GraniteMoeSharedForCausalLM,
        config(num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=44, attention_bias=True, **GRANITE), "granitemoe",
        {"block_sparse_moe.router": "ffn_gate_inp", "shared_mlp.output_linear": "ffn_down_shexp"}, keys=granite_keys, permuted=True, seeds=1,
    ),
    # groups of experts, a dense layer, and a layer that only drafts
    "glm4moe": Family(
        transformers.Glm4MoeForCausalLM,
        config(hidden_size=WHOLE, n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=36, intermediate_size=56,
               n_shared_experts=2, n_group=2, topk_group=1, routed_scaling_factor=1.4, norm_topk_prob=True, first_k_dense_replace=1, use_qk_norm=True,
               attention_bias=True, rope_parameters={"rope_type": "default", "rope_theta": 700.0, "partial_rotary_factor": 0.5}),
        "glm4moe", SHARED | {"post_attention_layernorm": "post_attention_norm", "mlp.gate.e_score_correction_bias": "exp_probs_b.bias"},
        keys=glm_keys, seeds=6, edit=add_draft_layer,
        extra={"blk.2.attn_norm.weight": np.ones(WHOLE), "blk.2.nextn.eh_proj.weight": np.ones((WHOLE, 2 * WHOLE))},
    ),
    # a layer of experts between dense layers, by interval or by the last layer's number
    "ernie4_5_moe": Family(
        transformers.Ernie4_5_MoeForCausalLM,
        config(**ERNIE, moe_layer_start_index=1, moe_layer_end_index=2, moe_layer_interval=2), "ernie4_5-moe",
        SHARED | {"mlp.gate.moe_statics.e_score_correction_bias": "exp_probs_b.bias"}, keys=ernie_keys,
    ),
    "ernie4_5_moe_end": Family(
        transformers.Ernie4_5_MoeForCausalLM,
        config(**ERNIE, moe_layer_start_index=1, moe_layer_end_index=1, moe_layer_interval=1, tie_word_embeddings=True), fused=True,
    ),
    "minimax_m2": Family(
        transformers.MiniMaxM2ForCausalLM,
        config(num_local_experts=5, num_experts_per_tok=2, rope_parameters={"rope_type": "default", "rope_theta": 700.0,
               "partial_rotary_factor": 0.5}),
        "minimax-m2", {"mlp.e_score_correction_bias": "exp_probs_b.bias"}, keys=minimax_keys, seeds=2,
    ),
    # keys wider than values, and twice the KV heads, a rope and sinks of its own in the layer with a window
    "mimo2": Family(
        transformers.MiMoV2FlashForCausalLM,
        config(hidden_size=24, num_attention_heads=8, head_dim=24, v_head_dim=16, n_routed_experts=6, num_experts_per_tok=3,
               moe_intermediate_size=36, n_group=3, topk_group=2, routed_scaling_factor=1.4, attention_value_scale=0.707,
               sliding_window=16, layer_types=[FULL, SLIDING], mlp_layer_types=["dense", "sparse"],
               rope_parameters={FULL: {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.334},
                                SLIDING: {"rope_type": "default", "rope_theta": 700.0, "partial_rotary_factor": 0.334}}),
        "mimo2", {"self_attn.sinks": "attn_sinks.weight", "mlp.gate.e_score_correction_bias": "exp_probs_b.bias"}, keys=mimo_keys, seeds=4,
    ),
    # weights that are not renormalised, a dense layer between layers of experts, and experts in one tensor
    "qwen3moe_fused": Family(
        transformers.Qwen3MoeForCausalLM,
        config(hidden_size=WHOLE, num_experts=5, num_experts_per_tok=3, moe_intermediate_size=36, intermediate_size=56, norm_topk_prob=False,
               num_hidden_layers=3, mlp_only_layers=[1], tie_word_embeddings=True),
        fused=True,
    ),
}  # fmt: skip


def wide(family, **more):
    """A model that four ranks divide: 8 heads of 16, and an FFN of four units of 32. The ranks share two KV heads. The
    weights are the first that come, so the router may have near ties. The folder alone is kept: the tree stays small."""
    shape = dict(hidden_size=HIDDEN, num_attention_heads=8, num_key_value_heads=2, intermediate_size=104, num_hidden_layers=1) | more
    return dataclasses.replace(family, config=family.config | shape, chosen=False, arch=None)


MOE = dict(moe_intermediate_size=104)
FAMILIES |= {
    "qwen3moe_wide": wide(FAMILIES["qwen3moe"], num_experts=4, **MOE),
    "mixtral_wide": wide(FAMILIES["mixtral"], num_local_experts=4),
    "gpt_oss_wide": wide(FAMILIES["gpt_oss"], num_local_experts=4, layer_types=[SLIDING]),
    "qwen2moe_wide": wide(FAMILIES["qwen2moe"], shared_expert_intermediate_size=136, **MOE),
    "granitemoe_wide": wide(FAMILIES["granitemoe_shared"], shared_intermediate_size=136),
    "glm4moe_wide": dataclasses.replace(wide(FAMILIES["glm4moe"], num_hidden_layers=2, n_routed_experts=4, **MOE), edit=lambda *_: None,
                                        keys=lambda w, c: glm_keys(w, c, 0), extra={}),
    "ernie4_5_moe_wide": wide(FAMILIES["ernie4_5_moe"], num_hidden_layers=2, moe_layer_end_index=1, moe_layer_interval=1, **MOE),
    "minimax_m2_wide": wide(FAMILIES["minimax_m2"], num_local_experts=4),
    # both kinds of attention layer; dense, because others show experts over four ranks
    "mimo2_wide": wide(FAMILIES["mimo2"], head_dim=32, num_hidden_layers=2, mlp_layer_types=["dense", "dense"]),
}  # fmt: skip
FAMILIES |= delta.families(Family, config) | latent.families(Family)


# --- weights ---


def bf16(x):
    return x.bfloat16().float()


def randomize(model, family, rng):
    for name, p in list(model.named_parameters()) + list(model.named_buffers()):
        if ".rotary_" in name:
            continue
        shape = tuple(p.shape)
        peak = family.peak if any(s in name for s in ("q_proj", "k_proj", "q_norm", "k_norm")) else 1.0
        if "norm" in name and name.endswith("weight"):
            x = rng.uniform(0.4, 1.6, shape) * peak
        elif name.endswith("e_score_correction_bias"):
            x = rng.uniform(-0.3, 0.3, shape)
        elif p.dim() < 2 or name.endswith("bias"):
            x = rng.uniform(-0.4, 0.4, shape)
        elif p.dim() == 3:
            x = rng.standard_normal(shape) * 1.4 / np.sqrt(shape[-1]) * rng.uniform(0.5, 1.5, (shape[0], 1, 1))
        else:
            gain = 2.5 if "embed" in name or "lm_head" in name else max(peak, 1.3)
            gain = 4.0 if "router" in name or "mlp.gate." in name else gain
            x = rng.standard_normal(shape) * gain / np.sqrt(shape[-1]) * rng.uniform(0.5, 1.5, (shape[0], *[1] * (len(shape) - 1)))
        p.data = bf16(torch.from_numpy(np.asarray(x, np.float32)))
    model.tie_weights()


def sequences(seed):
    rng = np.random.default_rng(seed)
    return [
        (rng.integers(0, VOCAB, PROMPT + STEPS), [0, 15, 16, *range(PROMPT - 1, PROMPT + STEPS)]),
        (rng.integers(0, VOCAB, SECOND), [15, 16, 31, 32, SECOND - 1]),
    ]


def logits_of(model):
    with torch.no_grad():
        return [model(torch.from_numpy(ids)[None], use_cache=False).logits[0].float() for ids, _ in sequences(SEQUENCE_SEED)]


def round_inputs(model):
    """Rounds what linears and experts read to bf16. Routers stay exact."""
    for module in model.modules():
        if type(module).__name__.endswith(("Linear", "Experts")):
            module.register_forward_pre_hook(lambda m, args: (bf16(args[0]), *args[1:]))
    return model


def make_model(family, name):
    """The model that rounding of activations to bf16 changes the least, and the change."""
    cls = family.make
    torch.manual_seed(0)
    c = cls.config_class(**family.config)
    c._attn_implementation = "eager"
    best, least = None, np.inf
    for seed in range(family.tries if family.chosen else 1):
        model = cls(c).float().eval()
        rng = np.random.default_rng([*name.encode(), family.seeds, seed])
        randomize(model, family, rng)
        family.weights(model, rng)
        exact, rounded = logits_of(model), logits_of(round_inputs(copy.deepcopy(model)))
        change = max(((a - b).abs().amax(1) / a.abs().amax(1)).max().item() for a, b in zip(exact, rounded))
        if change < least:
            best, least = model, change
    return best, least


# --- files ---


def write_folder(name, family, model):
    folder = HERE / "tiny" / name
    shutil.rmtree(folder, ignore_errors=True)
    # a copy, because buffers are rounded, too
    copy.deepcopy(model).bfloat16().save_pretrained(folder, save_original_format=not family.fused)
    for file in folder.iterdir():
        file.chmod(0o644)
    doc = json.loads((folder / "config.json").read_text())
    family.edit(folder, doc, model)
    (folder / "config.json").write_text(json.dumps(doc, indent=2) + "\n")
    make_families.link_tokenizer(folder, make_families.tokenizer()[0])
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": SPECIALS[1], "eos_token": SPECIALS[2],
                "pad_token": SPECIALS[3], "chat_template": CHAT}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def permute(x, n_heads):
    """Rows of each head from halves to pairs."""
    return x.reshape(n_heads, 2, x.shape[0] // n_heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def block_keys(w, c):
    w.add_block_count(c.num_hidden_layers)
    w.add_context_length(CONTEXT)
    w.add_embedding_length(c.hidden_size)
    if hasattr(c, "intermediate_size"):
        w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_key_length(c.head_dim)
    w.add_value_length(getattr(c, "v_head_dim", c.head_dim))
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_rope_freq_base(c.rope_parameters.get("full_attention", c.rope_parameters)["rope_theta"])
    w.add_vocab_size(c.vocab_size)


def parts_of(family, c, rest, x):
    """The GGUF's tensors, without layer, of a parameter of transformers."""
    x = family.change(rest, x, c)
    if isinstance(x, dict):
        return x
    if rest.endswith("experts.gate_up_proj"):
        gate, up = halves(x) if family.arch != "gpt-oss" else (x[..., 0::2].swapaxes(1, 2), x[..., 1::2].swapaxes(1, 2))
        return {"ffn_gate_exps.weight": gate, "ffn_up_exps.weight": up}
    if rest.endswith("experts.down_proj"):
        return {"ffn_down_exps.weight": x if family.arch != "gpt-oss" else x.swapaxes(1, 2)}
    if rest.endswith("experts.gate_up_proj_bias"):
        return {"ffn_gate_exps.bias": x[:, 0::2], "ffn_up_exps.bias": x[:, 1::2]}
    if rest.endswith("shared_mlp.input_linear.weight"):
        gate, up = halves(x, 0)
        return {"ffn_gate_shexp.weight": gate, "ffn_up_shexp.weight": up}
    names = BLOCK | family.names
    if rest in names:
        return {names[rest]: x.squeeze()}
    module, _, kind = rest.rpartition(".")
    if family.permuted and module in ("self_attn.q_proj", "self_attn.k_proj"):
        x = permute(x, c.num_attention_heads if "q_proj" in module else c.num_key_value_heads)
    return {f"{names[module]}.{kind}": x.squeeze() if "shexp" in names[module] else x}


def write_gguf(name, family, model, files={}):
    """`files` has the format and the bytes of matrices that are not written as bf16."""
    w = gguf.GGUFWriter(HERE / "tiny" / f"{name}.gguf", family.arch)
    w.add_name(f"Sluice tiny {name}")
    c = model.config.get_text_config()
    block_keys(w, c)
    family.keys(w, c)
    write_vocabulary(w, *tokenizer(VOCAB))
    tied = model.config.tie_word_embeddings
    for key, value in model.state_dict().items():
        if ".visual." in key or (tied and key.startswith("lm_head")):
            continue
        key = key.replace(".language_model.", ".")
        layer = re.match(r"model\.layers\.(\d+)\.", key)
        rest = key[layer.end() :] if layer else key
        kind, value = files.get(key, (None, value.numpy()))
        for to, x in parts_of(family, c, rest, value).items():
            to = f"blk.{layer[1]}.{to}" if layer else to
            if family.split and "_exps." in to:
                for i, expert in enumerate(x):
                    add_tensor(w, to.replace("_exps.", f".{i}."), expert, kind)
            else:
                add_tensor(w, to, x, kind)
    for to, x in family.extra.items():
        add_tensor(w, to, x)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def add_tensor(w, name, x, kind=None):
    if kind is not None:
        w.add_tensor(name, np.ascontiguousarray(x), raw_dtype=kind)
        return
    x = np.ascontiguousarray(x, np.float32)
    if x.ndim < 2 or name.endswith(".bias") or "conv1d" in name:
        w.add_tensor(name, x)
    else:
        kind = MATRICES if x.shape[-1] % 32 == 0 and "_inp" not in name else Q.BF16
        kind = Q.Q8_0 if "attn_kv_b" in name else kind  # old files have it quantized; its values fit exactly
        w.add_tensor(name, gguf.quantize(x, kind), raw_dtype=kind)


def write_logits(name, model):
    all_of_them = sequences(SEQUENCE_SEED)
    with torch.no_grad(), LogitsFile(HERE / "tiny" / f"{name}.bin", len(all_of_them), VOCAB) as f:
        for ids, rows in all_of_them:
            r = model(torch.from_numpy(ids)[None], use_cache=False, output_attentions=True)
            f.begin(ids, len(rows))
            for row in rows:
                f.row(row, r.logits[0, row].numpy())
    return r.logits.std(), np.mean([a[0, :, SECOND // 2 :].amax(-1).mean() for a in r.attentions if a is not None])


def make(name):
    family = FAMILIES[name]
    model, change = make_model(family, name)
    write_folder(name, family, model)
    if family.arch:
        write_gguf(name, family, model)
    deviation, peak = write_logits(name, model)
    size = lambda p: p.stat().st_size // 1000 if p.exists() else 0
    tiny = HERE / "tiny"
    print(f"{name:16} folder {size(tiny / name / 'model.safetensors'):4} KB, GGUF {size(tiny / f'{name}.gguf'):4} KB, logits deviate "
          f"{deviation:.2f}, mean largest attention weight {peak:.2f}, changed by bf16 {change:.4f}", flush=True)


def main():
    transformers.logging.set_verbosity_error()
    for name in sys.argv[1:] or FAMILIES:
        make(name)


if __name__ == "__main__":
    main()
