"""GGUFs of the architectures gpt2 and bloom as transformers models in f32, eager attention."""

import numpy as np
import torch
from transformers import BloomConfig, BloomForCausalLM, GPT2Config, GPT2LMHeadModel


def build(make, config, state):
    with torch.device("meta"):
        hf = make(config)
    hf.to_empty(device="cpu")
    hf.load_state_dict({k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in state.items()}, strict=True)
    if config.tie_word_embeddings:
        hf.tie_weights()
    return hf.float().eval()


def rename(model, names, n_layers, state):
    """names: our name -> (their name, function applied to the weight, function applied to the bias)"""
    for layer in range(n_layers):
        for ours, (theirs, on_weight, on_bias) in names.items():
            for part, change in (("weight", on_weight), ("bias", on_bias)):
                state[f"transformer.h.{layer}.{theirs}.{part}"] = change(model.dequantized(f"blk.{layer}.{ours}.{part}"))


def load_gpt2(model):
    f = lambda key: model.field("gpt2." + key)
    tied = "output.weight" not in model.tensors
    get, same, turned = model.dequantized, lambda w: w, lambda w: w.T
    config = GPT2Config(
        vocab_size=int(model.tensors["token_embd.weight"].shape[1]),
        n_positions=f("context_length"),
        n_embd=f("embedding_length"),
        n_inner=f("feed_forward_length"),
        n_layer=f("block_count"),
        n_head=f("attention.head_count"),
        layer_norm_epsilon=f("attention.layer_norm_epsilon"),
        activation_function="gelu_new",
        tie_word_embeddings=tied,
        attn_implementation="eager",
    )
    state = {
        "transformer.wte.weight": get("token_embd.weight"),
        "transformer.wpe.weight": get("position_embd.weight"),
        "transformer.ln_f.weight": get("output_norm.weight"),
        "transformer.ln_f.bias": get("output_norm.bias"),
        "lm_head.weight": get("token_embd.weight" if tied else "output.weight"),
    }
    rename(model, {
        "attn_norm": ("ln_1", same, same), "attn_qkv": ("attn.c_attn", turned, same),
        "attn_output": ("attn.c_proj", turned, same), "ffn_norm": ("ln_2", same, same),
        "ffn_up": ("mlp.c_fc", turned, same), "ffn_down": ("mlp.c_proj", turned, same),
    }, config.n_layer, state)
    return build(GPT2LMHeadModel, config, state)


def load_bloom(model):
    f = lambda key: model.field("bloom." + key)
    tied = "output.weight" not in model.tensors
    get, same, n_heads = model.dequantized, lambda w: w, f("attention.head_count")
    config = BloomConfig(
        vocab_size=int(model.tensors["token_embd.weight"].shape[1]),
        hidden_size=f("embedding_length"),
        n_layer=f("block_count"),
        n_head=n_heads,
        layer_norm_epsilon=f("attention.layer_norm_epsilon"),
        tie_word_embeddings=tied,
        attn_implementation="eager",
    )
    assert f("feed_forward_length") == 4 * config.hidden_size

    def by_head(w):
        """GGUF keeps all of Q, all of K, all of V; transformers Q, K and V of one head after the other."""
        return w.reshape(3, n_heads, w.shape[0] // 3 // n_heads, *w.shape[1:]).swapaxes(0, 1).reshape(w.shape)

    state = {
        "transformer.word_embeddings.weight": get("token_embd.weight"),
        "transformer.word_embeddings_layernorm.weight": get("token_embd_norm.weight"),
        "transformer.word_embeddings_layernorm.bias": get("token_embd_norm.bias"),
        "transformer.ln_f.weight": get("output_norm.weight"),
        "transformer.ln_f.bias": get("output_norm.bias"),
        "lm_head.weight": get("token_embd.weight" if tied else "output.weight"),
    }
    rename(model, {
        "attn_norm": ("input_layernorm", same, same), "attn_qkv": ("self_attention.query_key_value", by_head, by_head),
        "attn_output": ("self_attention.dense", same, same), "ffn_norm": ("post_attention_layernorm", same, same),
        "ffn_up": ("mlp.dense_h_to_4h", same, same), "ffn_down": ("mlp.dense_4h_to_h", same, same),
    }, config.n_layer, state)
    return build(BloomForCausalLM, config, state)
