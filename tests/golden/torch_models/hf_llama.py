"""A GGUF of the llama architecture as a transformers model in f32, eager attention."""

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM


def unpermute(w, n_heads):
    """GGUF keeps the rows of Q and K in interleaved rope order, transformers in halves."""
    rows = w.shape[0]
    return w.reshape(n_heads, rows // n_heads // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def load(model):
    f = lambda key, default=None: model.field("llama." + key, default)
    n_heads, hidden = f("attention.head_count"), f("embedding_length")
    n_kv = f("attention.head_count_kv", n_heads)
    tied = "output.weight" not in model.tensors
    config = LlamaConfig(
        vocab_size=int(model.tensors["token_embd.weight"].shape[1]),
        hidden_size=hidden,
        intermediate_size=f("feed_forward_length"),
        num_hidden_layers=f("block_count"),
        num_attention_heads=n_heads,
        num_key_value_heads=n_kv,
        head_dim=f("rope.dimension_count"),
        rms_norm_eps=f("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": f("rope.freq_base")},
        max_position_embeddings=f("context_length"),
        tie_word_embeddings=tied,
        attention_bias="blk.0.attn_q.bias" in model.tensors,
        attn_implementation="eager",
    )
    get = model.dequantized
    state = {"model.embed_tokens.weight": get("token_embd.weight"), "model.norm.weight": get("output_norm.weight")}
    state["lm_head.weight"] = get("token_embd.weight" if tied else "output.weight")
    names = {
        "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    }
    for layer in range(config.num_hidden_layers):
        for ours, theirs in names.items():
            w = get(f"blk.{layer}.{ours}.weight")
            if ours in ("attn_q", "attn_k"):
                w = unpermute(w, n_heads if ours == "attn_q" else n_kv)
            state[f"model.layers.{layer}.{theirs}.weight"] = w
    with torch.device("meta"):
        hf = LlamaForCausalLM(config)
    hf.to_empty(device="cpu")
    hf.load_state_dict({k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in state.items()}, strict=True)
    # to_empty() leaves non-persistent buffers (rope frequencies) undefined: build them anew
    hf.model.rotary_emb = type(hf.model.rotary_emb)(config)
    if tied:
        hf.tie_weights()
    return hf.float().eval()
