"""The rows of cases.py for Gemma 4 and Llama 4."""

from common import BIAS, FULL, GELU, ORIGINAL, ROPES, SLIDING, TIED, Case, Change, activations, dense, heads, pick, random_rope, rope, tokens, unlike
from family_groups.newer import scale_experts, scale_layers


def gemma4_sizes(rng):
    """The first two layers have either kind, so that any number of the others may share K and V."""
    c = tokens(rng) | heads(rng)
    layers = [SLIDING, FULL, *(pick(rng, SLIDING, FULL) for _ in range(int(rng.integers(1, 4)))), FULL]
    n = c["num_attention_heads"]
    return c | dict(
        vocab_size_per_layer_input=c["vocab_size"], hidden_size=n * int(rng.integers(3, 9)), hidden_size_per_layer_input=int(rng.integers(3, 12)),
        intermediate_size=int(rng.integers(7, 100)), head_dim=int(pick(rng, 8, 16, 26)), global_head_dim=int(pick(rng, 16, 24, 40)),
        num_global_key_value_heads=int(pick(rng, *(k for k in range(1, n + 1) if n % k == 0))), max_position_embeddings=int(rng.integers(64, 300)),
        rms_norm_eps=float(pick(rng, 1e-3, 0.05)), sliding_window=int(pick(rng, 8, 16)), layer_types=layers, num_hidden_layers=len(layers),
        attention_k_eq_v=bool(rng.integers(2)), num_kv_shared_layers=int(rng.integers(0, len(layers) - 1)),
        use_double_wide_mlp=bool(rng.integers(2)), final_logit_softcapping=4.0,
        rope_parameters={SLIDING: random_rope(rng), FULL: random_rope(rng, kind="proportional", partial_rotary_factor=float(pick(rng, 0.25, 0.5, 1)))})


def full_rope(**more):
    return lambda rng, c: dict(rope_parameters=dict(c["rope_parameters"]) | {FULL: rope(9000.0, **more)})


def with_experts(**more):
    def settings(rng, c):
        n = int(rng.integers(3, 8))
        return dict(enable_moe_block=True, num_experts=n, top_k_experts=int(rng.integers(1, n)), moe_intermediate_size=int(rng.integers(5, 60)),
                    hidden_size_per_layer_input=0, num_kv_shared_layers=0, use_double_wide_mlp=False) | more
    return settings


GEMMA4 = {
    "untied": TIED["untied"], "K as V": Change(dict(attention_k_eq_v=True)), "values": Change(dict(attention_k_eq_v=False)),
    "own K and V": Change(dict(num_kv_shared_layers=0)), "most shared": Change(lambda rng, c: dict(num_kv_shared_layers=c["num_hidden_layers"] - 2)),
    "double": Change(dict(use_double_wide_mlp=True, num_kv_shared_layers=1)), "not double": Change(dict(use_double_wide_mlp=False)),
    "no inputs": Change(dict(hidden_size_per_layer_input=0, num_kv_shared_layers=0)), "no softcap": Change(dict(final_logit_softcapping=None)),
    "all full": Change(lambda rng, c: dict(layer_types=[FULL] * c["num_hidden_layers"])),
    "one KV head": Change(dict(num_key_value_heads=1)), "full heads alike": Change(dict(num_global_key_value_heads=None)),
    "equal heads": Change(lambda rng, c: dict(global_head_dim=c["head_dim"])),
    "whole rope": Change(full_rope(kind="default")), "linear": Change(full_rope(kind="linear", factor=2.0)),
    "yarn": Change(full_rope(kind="yarn", factor=3.0, **ORIGINAL)),
    "rope of windows scaled": Change(lambda rng, c: dict(rope_parameters=dict(c["rope_parameters"]) | {
        SLIDING: rope(300.0, "linear", factor=2.0)}), "sliding_attention"),
    "both ways": Change(dict(use_bidirectional_attention="all"), "use_bidirectional_attention|is_causal"),
} | BIAS | activations("hidden_activation")
GEMMA4_MOE = {
    name: GEMMA4[name] for name in ("untied", "K as V", "values", "no softcap", "one KV head", "whole rope", "hidden_activation silu")} | {
    "all experts": Change(lambda rng, c: dict(top_k_experts=c["num_experts"])),
    "inputs": Change(dict(hidden_size_per_layer_input=4))}


def llama4_sizes(rng, **more):
    n = int(rng.integers(3, 9))
    c = dense(rng)
    return c | dict(
        num_hidden_layers=int(rng.integers(2, 7)), head_dim=int(pick(rng, 4, 8, 16)), intermediate_size_mlp=int(rng.integers(7, 100)),
        num_local_experts=n, num_experts_per_tok=1, interleave_moe_layer_step=int(pick(rng, 1, 2)), attention_chunk_size=int(pick(rng, 8, 16)),
        floor_scale=8, attn_scale=0.4) | more


def llama4_8192_sizes(rng):
    """The numbers that a GGUF lacks are those of all real models."""
    return unlike(llama4_sizes, "attention_chunk_size", "floor_scale", "attn_scale", rope_parameters=rope(
        700.0, "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, **ORIGINAL))(rng)


LLAMA4 = TIED | ROPES | GELU | {
    "no temperature": Change(dict(attn_temperature_tuning=False)), "no norms": Change(dict(use_qk_norm=False)),
    "every second": Change(dict(no_rope_layer_interval=2)), "all rope": Change(lambda rng, c: dict(no_rope_layers=[1] * c["num_hidden_layers"])),
    "no rope": Change(lambda rng, c: dict(no_rope_layers=[0] * c["num_hidden_layers"])),
    "listed": Change(lambda rng, c: dict(no_rope_layers=[int(rng.integers(2)) for _ in range(c["num_hidden_layers"])])),
    "all sparse": Change(dict(interleave_moe_layer_step=1)), "every third sparse": Change(dict(interleave_moe_layer_step=3)),
    "listed sparse": Change(lambda rng, c: dict(moe_layers=[c["num_hidden_layers"] - 1])), "none sparse": Change(dict(moe_layers=[])),
    "two experts": Change(dict(num_experts_per_tok=2)), "chunks of 5": Change(dict(attention_chunk_size=5)),
    "kinds": Change(lambda rng, c: dict(layer_types=["full_attention"] * c["num_hidden_layers"]), "layer_types"),
} | BIAS

NEWER_CASES = {
    "gemma4": Case("Gemma4ForCausalLM", gemma4_sizes, GEMMA4, "gemma4", ("K as V", "values", "own K and V", "double", "no inputs"), edit=scale_layers,
                   wide=dict(layer_types=[SLIDING, FULL, FULL], num_hidden_layers=3, num_kv_shared_layers=1, global_head_dim=64,
                             num_global_key_value_heads=4)),
    "gemma4_moe": Case("Gemma4ForCausalLM", lambda rng: (lambda c: c | with_experts()(rng, c))(gemma4_sizes(rng)), GEMMA4_MOE, "gemma4_moe",
                       ("K as V", "values"), edit=scale_experts,
                       wide=dict(layer_types=[SLIDING, FULL], num_hidden_layers=2, global_head_dim=64, num_global_key_value_heads=4)),
    "llama4": Case("Llama4ForCausalLM", llama4_sizes, LLAMA4, wide=dict(intermediate_size_mlp=160)),
    "llama4_8192": Case("Llama4ForCausalLM", llama4_8192_sizes, {"all sparse": LLAMA4["all sparse"], "tied": TIED["tied"]}, "llama4_8192",
                        ("all sparse", "tied"), wide=dict(intermediate_size_mlp=160)),
}
