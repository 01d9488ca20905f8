"""The table of make_families.py: for each family the classes and settings of a small checkpoint, and how llama.cpp's
converter writes it. The facts are those of docs and of public converters; numbers are chosen so that each one shows.

Windows are 16 positions and original contexts 32, so that both prompt and decode cross them."""

import importlib
import pathlib
from dataclasses import dataclass
from typing import Any, Callable

import gguf
import numpy as np
from gguf import MODEL_ARCH as A
from gguf.constants import RopeScalingType

VOCAB = 283
SLIDING, FULL = "sliding_attention", "full_attention"


@dataclass
class Family:
    model: str  # class of transformers
    config: dict
    arch: Any = None  # None: llama.cpp has no such model, so there is no GGUF
    keys: Callable = lambda w, c: None  # keys beyond the common ones
    plus_one: bool = False  # norms lack their 1 in the checkpoint
    permuted: bool = False  # GGUF has Q and K in the order of interleaved rope
    transform: Callable = lambda name, x, c: x
    rename: Callable = lambda name: name  # to the name that the gguf package knows
    pieces: Callable = lambda name, x: [(name, x)]  # names and values of a parameter in GGUF, before their names there
    has_folder: bool = True
    extra: Callable = lambda c: {}  # tensors that only GGUF has
    joined: bool = False  # GGUF has Q, K and V in one tensor
    old_config: bool = False  # config.json in the spelling of transformers 4
    tokens: int = VOCAB  # rows beyond are padding
    peak: float = 1.8  # gain of Q and K
    answers: tuple = ()  # lengths of prompts whose greedy answers are written, too
    attention: str = "eager"  # implementation in transformers
    edit: Callable = lambda model, rng: None  # changes random weights
    parts: Callable = lambda name, x, c: None  # GGUF tensors by name, in place of the converter's map
    spell: Callable = lambda doc: doc  # changes config.json
    exact: str = "conv1d"  # GGUF tensors beside vectors and norms that are f32
    tries: int = 1  # models of which one is taken


def llama_like(hidden=18, layers=2, **more):
    """Five heads of 32 with one KV head: neither even, nor hidden / heads. The classes of Llama and Gemma 2 want a
    hidden size that the heads divide."""
    return dict(
        vocab_size=VOCAB, hidden_size=hidden, intermediate_size=100, num_hidden_layers=layers, num_attention_heads=5,
        num_key_value_heads=1, head_dim=32, max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=3,
    ) | more


def square(**more):
    """Families whose heads always fill the hidden size."""
    return dict(
        vocab_size=VOCAB, hidden_size=48, intermediate_size=104, num_hidden_layers=2, num_attention_heads=3,
        max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=3,
    ) | more


def rope(theta=700.0, kind="default", **more):
    return {"rope_type": kind, "rope_theta": theta} | more


LLAMA3 = rope(kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)


def llama3_divisors(c):
    """The converter stores Llama 3's scaling as a divisor for each frequency."""
    r = c.rope_parameters
    freqs = r["rope_theta"] ** -(np.arange(0, c.head_dim, 2) / c.head_dim)
    turns = r["original_max_position_embeddings"] * freqs / (2 * np.pi)
    low, high = r["low_freq_factor"], r["high_freq_factor"]
    keep = np.clip((turns - low) / (high - low), 0, 1)
    return {"rope_freqs.weight": (1 / ((1 - keep) / r["factor"] + keep)).astype(np.float32)}


def longrope_factors(c):
    r = c.rope_parameters
    f = lambda name: np.array(r[name], np.float32)
    return {"rope_factors_long.weight": f("long_factor"), "rope_factors_short.weight": f("short_factor")}


def dims_of_llama(w, c):
    w.add_rope_dimension_count(head_dim(c))


def dynamic_keys(w, c):
    """GGUF has no such scaling, and the converter leaves it out: it counts beyond the context only."""
    dims_of_llama(w, c)
    w.add_rope_freq_base(c.rope_parameters["rope_theta"])


def partial_dims(w, c):
    w.add_rope_dimension_count(int(c.rope_parameters["partial_rotary_factor"] * head_dim(c)))


def head_dim(c):
    return getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads


def window(w, c):
    w.add_sliding_window(c.sliding_window)


def window_and_pattern(w, c):
    window(w, c)
    w.add_sliding_window_pattern([t == SLIDING for t in c.layer_types])


def gemma2_keys(w, c):
    window(w, c)
    w.add_attn_logit_softcapping(c.attn_logit_softcapping)
    w.add_final_logit_softcapping(c.final_logit_softcapping)


def phi3_keys(w, c):
    r = c.rope_parameters
    w.add_sliding_window(c.sliding_window or 0)
    w.add_rope_dimension_count(int(r["partial_rotary_factor"] * head_dim(c)))
    if r["rope_type"] == "longrope":
        scale = c.max_position_embeddings / c.original_max_position_embeddings
        w.add_rope_scaling_orig_ctx_len(c.original_max_position_embeddings)
        w.add_rope_scaling_attn_factors(float(np.sqrt(1 + np.log(scale) / np.log(c.original_max_position_embeddings))))
    else:
        w.add_rope_scaling_orig_ctx_len(c.max_position_embeddings)


def granite_keys(w, c):
    dims_of_llama(w, c)
    w.add_attention_scale(c.attention_multiplier)
    w.add_embedding_scale(c.embedding_multiplier)
    w.add_residual_scale(c.residual_multiplier)
    w.add_logit_scale(c.logits_scaling)


def cohere_keys(w, c):
    w.add_logit_scale(c.logit_scale)
    w.add_rope_scaling_type(RopeScalingType.NONE)
    if c.model_type == "cohere2":
        window(w, c)
        w.add_rope_dimension_count(c.head_dim)


def nemotron_keys(w, c):
    partial_dims(w, c)
    w.add_rope_scaling_type(RopeScalingType.NONE)


def neox_keys(w, c):
    partial_dims(w, c)
    w.add_parallel_residual(c.use_parallel_residual)


def stablelm_keys(w, c):
    partial_dims(w, c)
    w.add_parallel_residual(c.use_parallel_residual)


def mpt_keys(w, c):
    w.add_max_alibi_bias(c.attn_config.alibi_bias_max)


def qwen3vl_keys(w, c):
    w.add_rope_dimension_sections([*c.rope_parameters["mrope_section"], 0])
    w.add_num_deepstack_layers(1)


def hunyuan_keys(w, c):
    r, d = c.rope_parameters, head_dim(c)
    if r["rope_type"] == "dynamic":
        w.add_rope_freq_base(r["rope_theta"] * r["alpha"] ** (d / (d - 2)))
        w.add_rope_scaling_type(RopeScalingType.NONE)
        w.add_rope_scaling_factor(1)
        w.add_rope_scaling_orig_ctx_len(c.max_position_embeddings)


def mistral3_keys(w, c):
    r = c.rope_parameters
    dims_of_llama(w, c)
    w.add_rope_scaling_yarn_log_mul(r["mscale_all_dim"])
    w.add_attn_temperature_scale(r["llama_4_scaling_beta"])


def split_qkv_by_head(name, x, c):
    """Q, K and V of a head, then of the next → all of Q, all of K, all of V."""
    if "query_key_value" not in name:
        return x
    heads = getattr(c, "num_attention_heads", None) or c.n_head
    parts = x.reshape(heads, 3, -1, *x.shape[1:])
    return np.concatenate([parts[:, i].reshape(-1, *x.shape[1:]) for i in range(3)])


def falcon_qkv(name, x, c):
    """The query heads of a KV head, its key, its value, then those of the next KV head."""
    if "query_key_value" not in name:
        return x
    kv = c.num_kv_heads if c.new_decoder_architecture or not c.multi_query else 1
    parts = x.reshape(kv, c.num_attention_heads // kv + 2, -1, *x.shape[1:])
    flat = lambda p: p.reshape(-1, *x.shape[1:])
    return np.concatenate([flat(parts[:, :-2]), flat(parts[:, -2]), flat(parts[:, -1])])


def transpose_conv1d(name, x, c):
    return x.T if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")) else x


FOUR = [SLIDING, SLIDING, SLIDING, FULL]
SIX = [SLIDING] * 5 + [FULL]
YARN = rope(kind="yarn", factor=4.0, original_max_position_embeddings=32)
FAMILIES = {
    "llama3": Family(
        "LlamaForCausalLM", llama_like(20, attention_bias=True, mlp_bias=True, rms_norm_eps=1e-3, rope_parameters=LLAMA3),
        A.LLAMA, dims_of_llama, permuted=True, extra=llama3_divisors),
    "llama_linear": Family(
        "LlamaForCausalLM",
        llama_like(20, num_key_value_heads=5, head_dim=32, rms_norm_eps=1e-5, tie_word_embeddings=True,
                   rope_parameters=rope(kind="linear", factor=3.0)),
        A.LLAMA, dims_of_llama, permuted=True, old_config=True, tries=8),
    # the two mscale factors differ, and the ramp's ends are fractions
    "llama_yarn": Family(
        "LlamaForCausalLM",
        llama_like(20, num_attention_heads=4, num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-5,
                   rope_parameters=rope(kind="yarn", factor=4.0, original_max_position_embeddings=32, beta_fast=4.0, beta_slow=0.5,
                                        mscale=0.7, mscale_all_dim=1.2, truncate=False))),
    # the factor counts beyond the configured context only
    "llama_dynamic": Family(
        "LlamaForCausalLM",
        llama_like(20, num_attention_heads=4, num_key_value_heads=4, head_dim=8, tie_word_embeddings=True, rms_norm_eps=1e-5,
                   rope_parameters=rope(kind="dynamic", factor=2.0)),
        A.LLAMA, dynamic_keys, permuted=True, old_config=True, tries=8),
    "mistral": Family("MistralForCausalLM", llama_like(sliding_window=16, rms_norm_eps=1e-3, rope_parameters=rope()), peak=1.5, tries=8),
    # three query heads per KV head, a KV head that two ranks share
    "qwen3": Family(
        "Qwen3ForCausalLM",
        llama_like(num_attention_heads=9, num_key_value_heads=3, head_dim=16, hidden_size=36, rms_norm_eps=1e-2,
                   tie_word_embeddings=True, max_position_embeddings=200, rope_parameters=rope(500.0)),
        A.QWEN3, old_config=True),
    "qwen3vl": Family(
        "Qwen3VLForConditionalGeneration",
        dict(text_config=llama_like(num_attention_heads=6, num_key_value_heads=2, head_dim=16, intermediate_size=68, rms_norm_eps=1e-2,
                                    rope_parameters=rope(500.0, mrope_section=[4, 2, 2], mrope_interleaved=True)),
             vision_config=dict(hidden_size=16, intermediate_size=16, depth=1, num_heads=2, patch_size=4, out_hidden_size=18,
                                num_position_embeddings=16, deepstack_visual_indexes=[0]),
             tie_word_embeddings=False),
        A.QWEN3VL, qwen3vl_keys),
    "qwen2": Family(
        "Qwen2ForCausalLM",
        llama_like(use_sliding_window=False, sliding_window=8, max_window_layers=1, rms_norm_eps=1e-3, rope_parameters=YARN,
                   tie_word_embeddings=True),
        A.QWEN2, old_config=True),
    "qwen2_window": Family(
        "Qwen2ForCausalLM",
        llama_like(use_sliding_window=True, sliding_window=16, max_window_layers=1, rms_norm_eps=1e-3, rope_parameters=rope()), tries=8),
    "smollm3": Family(
        "SmolLM3ForCausalLM",
        llama_like(layers=4, no_rope_layer_interval=4, rms_norm_eps=1e-3, tie_word_embeddings=True, rope_parameters=rope()),
        A.SMOLLM3, dims_of_llama, permuted=True, peak=1.4, tries=8),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        llama_like(20, query_pre_attn_scalar=32, sliding_window=16, attn_logit_softcapping=6.0, final_logit_softcapping=5.0,
                   rms_norm_eps=1e-3, tie_word_embeddings=True, hidden_activation="gelu_pytorch_tanh",
                   rope_parameters=rope(10000.0)),
        A.GEMMA2, gemma2_keys, plus_one=True, tries=8),
    "gemma2_scale": Family(
        "Gemma2ForCausalLM",
        llama_like(20, query_pre_attn_scalar=20, sliding_window=16, attn_logit_softcapping=None, final_logit_softcapping=None,
                   rms_norm_eps=1e-3, tie_word_embeddings=True, hidden_activation="gelu_pytorch_tanh",
                   rope_parameters=rope()),
        plus_one=True, old_config=True),
    "gemma3": Family(
        "Gemma3ForCausalLM",
        llama_like(layers=6, vocab_size=288, num_attention_heads=3, head_dim=16, intermediate_size=72, query_pre_attn_scalar=16,
                   sliding_window=16,
                   rms_norm_eps=1e-3, tie_word_embeddings=True, hidden_activation="gelu_pytorch_tanh", layer_types=SIX,
                   rope_parameters={SLIDING: rope(10000.0), FULL: rope(900.0, "linear", factor=4.0)}),
        A.GEMMA3, window, plus_one=True),
    "gemma3_images": Family(
        "Gemma3ForConditionalGeneration",
        dict(text_config=llama_like(num_attention_heads=3, head_dim=16, hidden_size=24, intermediate_size=72,
                                    query_pre_attn_scalar=20, sliding_window=16, rms_norm_eps=1e-3,
                                    hidden_activation="gelu_pytorch_tanh", layer_types=[SLIDING, FULL],
                                    rope_parameters={SLIDING: rope(500.0), FULL: rope(900.0)}),
             vision_config=dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28,
                                patch_size=14, num_channels=3),
             mm_tokens_per_image=4, tie_word_embeddings=True),
        plus_one=True),
    "phi3": Family(
        "Phi3ForCausalLM",
        square(num_key_value_heads=1, rms_norm_eps=1e-3, sliding_window=16, original_max_position_embeddings=256,
               rope_parameters=rope()),
        A.PHI3, phi3_keys, old_config=True),
    "phi3_long": Family(
        "Phi3ForCausalLM",
        square(num_key_value_heads=1, rms_norm_eps=1e-3, sliding_window=48, original_max_position_embeddings=32,
               rope_parameters=rope(kind="longrope", partial_rotary_factor=0.75, short_factor=[1.0, 1.1, 1.2, 1.3, 1.5, 2.0],
                                    long_factor=[1.0, 1.5, 2.0, 3.0, 5.0, 8.0], original_max_position_embeddings=32)),
        A.PHI3, phi3_keys, extra=longrope_factors, answers=(20, 31, 32, 33, 45)),
    "granite": Family(
        "GraniteForCausalLM",
        llama_like(attention_bias=True, mlp_bias=True, embedding_multiplier=1.7, logits_scaling=3.0, residual_multiplier=0.6,
                   attention_multiplier=0.11, rms_norm_eps=1e-3, tie_word_embeddings=True, rope_parameters=rope()),
        A.GRANITE, granite_keys, permuted=True),
    "olmo2": Family(
        "Olmo2ForCausalLM", llama_like(rms_norm_eps=1e-3, rope_parameters=rope()), A.OLMO2, old_config=True),
    "olmo3": Family(
        "Olmo3ForCausalLM",
        llama_like(layers=4, sliding_window=16, layer_types=FOUR, rms_norm_eps=1e-3, tie_word_embeddings=True,
                   rope_parameters={SLIDING: rope(), FULL: YARN | {"attention_factor": 1.3}}),
        A.OLMO2, window_and_pattern, peak=1.2),
    "cohere": Family(
        "CohereForCausalLM",
        square(num_key_value_heads=1, logit_scale=0.4, layer_norm_eps=1e-3, rope_parameters=rope()),
        A.COMMAND_R, cohere_keys),
    "cohere_norms": Family(
        "CohereForCausalLM",
        square(num_key_value_heads=3, logit_scale=0.4, use_qk_norm=True, layer_norm_eps=1e-3, rope_parameters=rope()),
        A.COMMAND_R, cohere_keys, old_config=True),
    "cohere2": Family(
        "Cohere2ForCausalLM",
        llama_like(layers=4, sliding_window=16, layer_types=FOUR, logit_scale=0.4, layer_norm_eps=1e-3, rope_parameters=rope()),
        A.COHERE2, cohere_keys),
    "glm4": Family(
        "Glm4ForCausalLM",
        llama_like(attention_bias=True, rms_norm_eps=1e-3, rope_parameters=rope(partial_rotary_factor=0.5)),
        A.GLM4, partial_dims),
    "starcoder2": Family(
        "Starcoder2ForCausalLM",
        square(num_key_value_heads=1, norm_epsilon=1e-3, sliding_window=None, use_bias=True, tie_word_embeddings=True,
               rope_parameters=rope()),
        A.STARCODER2),
    "starcoder2_window": Family(
        "Starcoder2ForCausalLM",
        square(num_key_value_heads=1, norm_epsilon=1e-3, sliding_window=16, use_bias=True, rope_parameters=rope())),
    "gptneox": Family(
        "GPTNeoXForCausalLM",
        square(layer_norm_eps=1e-3, use_parallel_residual=True, rope_parameters=rope(partial_rotary_factor=0.5)),
        A.GPTNEOX, neox_keys, transform=split_qkv_by_head),
    "gptneox_sequential": Family(
        "GPTNeoXForCausalLM",
        square(layer_norm_eps=1e-3, use_parallel_residual=False, hidden_act="gelu", rope_parameters=rope(partial_rotary_factor=0.25)),
        A.GPTNEOX, neox_keys, transform=split_qkv_by_head, old_config=True),
    "phi2": Family(
        "PhiForCausalLM",
        square(layer_norm_eps=1e-3, rope_parameters=rope(10000.0, partial_rotary_factor=0.5)),
        A.PHI2, partial_dims),
    "phi2_joined": Family(
        "PhiForCausalLM",
        square(hidden_size=40, num_attention_heads=5, layer_norm_eps=1e-3, intermediate_size=160, tie_word_embeddings=True,
               rope_parameters=rope(10000.0, partial_rotary_factor=0.5)),
        A.PHI2, partial_dims, joined=True, old_config=True),
    "phi2_norms": Family(
        "PhiForCausalLM",
        square(hidden_size=40, num_attention_heads=5, num_key_value_heads=1, layer_norm_eps=1e-3, intermediate_size=100,
               qk_layernorm=True, rope_parameters=rope(partial_rotary_factor=0.75))),
    "nemotron": Family(
        "NemotronForCausalLM",
        llama_like(norm_eps=1e-3, hidden_act="relu2", rope_parameters=rope(partial_rotary_factor=0.5)),
        A.NEMOTRON, nemotron_keys, plus_one=True, tries=8),
    "ernie4_5": Family(
        "Ernie4_5ForCausalLM", llama_like(use_bias=True, rms_norm_eps=1e-3, tie_word_embeddings=True, rope_parameters=rope()),
        A.ERNIE4_5, tries=8),
    "hunyuan": Family(
        "HunYuanDenseV1ForCausalLM",
        llama_like(rms_norm_eps=1e-3, attention_bias=True, tie_word_embeddings=True,
                   rope_parameters=rope(kind="dynamic", alpha=50.0, factor=1.0)),
        A.HUNYUAN_DENSE, hunyuan_keys),
    "exaone4": Family(
        "Exaone4ForCausalLM",
        llama_like(layers=4, sliding_window=16, layer_types=FOUR, rms_norm_eps=1e-3, rope_parameters=LLAMA3,
                   tie_word_embeddings=True),
        A.EXAONE4, window_and_pattern, extra=llama3_divisors),
    "exaone4_small": Family(
        "Exaone4ForCausalLM",
        llama_like(sliding_window=None, layer_types=[FULL, FULL], rms_norm_eps=1e-3, rope_parameters=rope()),
        A.EXAONE4, old_config=True),
    "seed_oss": Family(
        "SeedOssForCausalLM", llama_like(attention_bias=True, rms_norm_eps=1e-3, rope_parameters=rope()), A.SEED_OSS, tries=8),
    "ministral3": Family(
        "Ministral3ForCausalLM",
        llama_like(rms_norm_eps=1e-3, tie_word_embeddings=True,
                   rope_parameters=rope(kind="yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=32.0,
                                        beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.3)),
        A.MISTRAL3, mistral3_keys, permuted=True, peak=1.3),
    "mistral3_images": Family(
        "Mistral3ForConditionalGeneration",
        dict(text_config=llama_like(model_type="mistral", sliding_window=None, rms_norm_eps=1e-3, rope_parameters=rope()),
             vision_config=dict(model_type="pixtral", hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                                num_attention_heads=2, head_dim=8, image_size=28, patch_size=14, num_channels=3),
             tie_word_embeddings=False),
        peak=1.4),
    "gpt2": Family(
        "GPT2LMHeadModel",
        dict(vocab_size=VOCAB, n_positions=200, n_embd=48, n_layer=2, n_head=3, n_inner=104, layer_norm_epsilon=1e-3,
             bos_token_id=1, eos_token_id=2),
        A.GPT2, transform=transpose_conv1d),
    "bloom": Family(
        "BloomForCausalLM",
        dict(vocab_size=VOCAB, hidden_size=48, n_layer=2, n_head=3, layer_norm_epsilon=1e-3, bos_token_id=1, eos_token_id=2,
             pad_token_id=3),
        A.BLOOM, transform=split_qkv_by_head),
    "falcon": Family(
        "FalconForCausalLM",
        square(num_kv_heads=1, multi_query=True, parallel_attn=True, bias=False, alibi=False, layer_norm_epsilon=1e-3,
               new_decoder_architecture=False, ffn_hidden_size=192, rope_parameters=rope(10000.0)),
        A.FALCON, transform=falcon_qkv),
    "falcon_40b": Family(
        "FalconForCausalLM",
        square(num_attention_heads=6, num_kv_heads=3, new_decoder_architecture=True, multi_query=True, parallel_attn=True, bias=False,
               layer_norm_epsilon=1e-3, ffn_hidden_size=104, rope_parameters=rope(10000.0)),
        A.FALCON, transform=falcon_qkv),
    "falcon_one_norm": Family(
        "FalconForCausalLM",
        square(num_attention_heads=6, num_kv_heads=2, new_decoder_architecture=True, num_ln_in_parallel_attn=1, bias=False,
               layer_norm_epsilon=1e-3, ffn_hidden_size=104, tie_word_embeddings=False, rope_parameters=rope(700.0)),
        A.FALCON, transform=falcon_qkv, old_config=True),
    # ALiBi of five heads is exact in bf16, as transformers computes it; its eager attention adds the biases twice
    "falcon_rw": Family(
        "FalconForCausalLM",
        square(hidden_size=40, num_attention_heads=5, alibi=True, multi_query=False, parallel_attn=False, bias=True,
               layer_norm_epsilon=1e-3, ffn_hidden_size=104),
        attention="sdpa"),
    "opt": Family(
        "OPTForCausalLM",
        dict(vocab_size=VOCAB, hidden_size=40, ffn_dim=104, num_hidden_layers=2, num_attention_heads=5, max_position_embeddings=100,
             bos_token_id=1, eos_token_id=2, pad_token_id=3)),
    "gptj": Family(
        "GPTJForCausalLM",
        dict(vocab_size=VOCAB, n_positions=256, n_embd=48, n_layer=2, n_head=3, n_inner=104, rotary_dim=8,
             layer_norm_epsilon=1e-3, bos_token_id=1, eos_token_id=2)),
    "mpt": Family(
        "MptForCausalLM",
        dict(vocab_size=VOCAB, d_model=48, n_heads=3, n_layers=2, expansion_ratio=4, max_seq_len=256, bos_token_id=1,
             eos_token_id=2, pad_token_id=3),
        A.MPT, mpt_keys),
    "stablelm": Family(
        "StableLmForCausalLM",
        square(num_key_value_heads=1, layer_norm_eps=1e-3, use_qkv_bias=True, rope_parameters=rope(partial_rotary_factor=0.5)),
        A.STABLELM, stablelm_keys),
    "stablelm_norms": Family(
        "StableLmForCausalLM",
        square(num_attention_heads=6, num_key_value_heads=3, layer_norm_eps=1e-3, qk_layernorm=True, use_parallel_residual=True,
               tie_word_embeddings=True, rope_parameters=rope(partial_rotary_factor=0.25)),
        A.STABLELM, stablelm_keys),
}

# A group of families with mixers of its own has a module of its own in family_groups/, with a table FAMILIES.
for module in sorted((pathlib.Path(__file__).parent / "family_groups").glob("*.py")):
    FAMILIES |= importlib.import_module(f"family_groups.{module.stem}").FAMILIES
