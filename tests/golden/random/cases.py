"""The table of compare.py: for each family random sizes, and changes of its config class one by one."""

from common import *  # noqa: F403
from expert_cases import EXPERT_CASES
from newer_cases import NEWER_CASES
from state_cases import STATE_CASES


def gpt2_sizes(rng):
    c = square(rng)
    return dict(vocab_size=c["vocab_size"], n_positions=c["max_position_embeddings"], n_embd=c["hidden_size"], n_layer=c["num_hidden_layers"],
                n_head=c["num_attention_heads"], n_inner=c["intermediate_size"], layer_norm_epsilon=1e-4, bos_token_id=1, eos_token_id=2)


def gptj_sizes(rng):
    c = gpt2_sizes(rng)
    dim = c["n_embd"] // c["n_head"]
    return c | dict(rotary_dim=int(pick(rng, 2, dim)))


def bloom_sizes(rng):
    c = square(rng)
    return dict(vocab_size=c["vocab_size"], hidden_size=c["hidden_size"], n_layer=c["num_hidden_layers"], n_head=c["num_attention_heads"],
                layer_norm_epsilon=1e-4, bos_token_id=1, eos_token_id=2, pad_token_id=3)


def mpt_sizes(rng):
    c = square(rng)
    return dict(vocab_size=c["vocab_size"], d_model=c["hidden_size"], n_layers=c["num_hidden_layers"], n_heads=c["num_attention_heads"],
                max_seq_len=c["max_position_embeddings"], layer_norm_epsilon=1e-4, bos_token_id=1, eos_token_id=2, pad_token_id=3)


def falcon_sizes(rng):
    c = square(rng)
    c["ffn_hidden_size"] = c.pop("intermediate_size")
    del c["num_key_value_heads"]
    return c | dict(num_kv_heads=1, layer_norm_epsilon=1e-4)


def falcon_40b(**more):
    def settings(rng, c):
        n = c["num_attention_heads"]
        return dict(new_decoder_architecture=True, num_kv_heads=int(pick(rng, *(k for k in range(1, n + 1) if n % k == 0)))) | more
    return settings


def falcon_rw(rng, c):
    """So many heads have slopes that bf16 holds; transformers rounds slopes to bf16."""
    n = int(pick(rng, 1, 2, 3, 4, 5, 6, 8))
    return dict(alibi=True, multi_query=False, parallel_attn=False, bias=True, num_attention_heads=n, num_kv_heads=n,
                hidden_size=n * c["hidden_size"] // c["num_attention_heads"])


def opt_sizes(rng):
    c = square(rng)
    c["ffn_dim"] = c.pop("intermediate_size")
    for key in ("num_key_value_heads", "rope_parameters"):
        del c[key]
    return c


def wrapped(text, **vision):
    return lambda rng: dict(text_config=text(rng), vision_config=vision, tie_word_embeddings=bool(rng.integers(2)))


def qwen3vl_sizes(rng):
    c = dense(rng)
    half = c["head_dim"] // 2
    c["rope_parameters"] |= dict(mrope_section=[half - half // 3 * 2, half // 3, half // 3], mrope_interleaved=True)
    return dict(text_config=c, tie_word_embeddings=bool(rng.integers(2)),
                vision_config=dict(hidden_size=16, intermediate_size=16, depth=1, num_heads=2, patch_size=4, out_hidden_size=c["hidden_size"],
                                   num_position_embeddings=16, deepstack_visual_indexes=[0]))


def text(change):
    """A change of the text model of a wrapper."""
    f = change.settings if callable(change.settings) else lambda rng, c: change.settings
    return Change(lambda rng, c: dict(text_config=c["text_config"] | f(rng, c["text_config"])), change.refused)


def glm4_sizes(rng):
    c = dense(rng)
    c["head_dim"] = int(pick(rng, 4, 8, 12, 20))
    c["rope_parameters"] |= dict(partial_rotary_factor=0.5)
    return c


def partial_sizes(key, share, eps):
    def sizes(rng):
        c = square(rng)
        c["hidden_size"] = c["num_attention_heads"] * int(pick(rng, 8, 16, 24))
        c["rope_parameters"] |= dict(partial_rotary_factor=share)
        return c | {key: eps}
    return sizes


def nemotron_sizes(rng):
    c = free(rng, norm_eps=1e-4)
    c["head_dim"] = int(pick(rng, 4, 8, 12))
    c["rope_parameters"] |= dict(partial_rotary_factor=0.5)
    return c


def gemma_sizes(rng):
    return free(rng) | rms(rng) | dict(query_pre_attn_scalar=int(pick(rng, 9, 16)), sliding_window=int(pick(rng, 8, 16)),
                                       num_hidden_layers=int(rng.integers(2, 8)))


def gemma3_sizes(rng):
    return gemma_sizes(rng) | dict(rope_parameters={SLIDING: random_rope(rng), FULL: random_rope(rng)})


def olmo3_sizes(rng):
    return windowed(dense_square, 5)(rng) | dict(rope_parameters={SLIDING: random_rope(rng), FULL: random_rope(rng)})


def phi3_sizes(rng):
    c = dense_square(rng)
    return c | dict(original_max_position_embeddings=c["max_position_embeddings"])


CASES = {
    "qwen35": Case("Qwen3_5ForCausalLM", lambda rng: delta(rng, dense(rng)), TIED | STATES | {
        "yarn": ROPES["yarn"], "linear": ROPES["linear"]}, "qwen35", ("tied", "untied", "one key head"), plus_one=True),
    "llama": Case("LlamaForCausalLM", dense, LLAMA | NO_KV | UNSTATED_SHARE | flags("attention_bias", "mlp_bias") | {
        "both biases": Change(dict(attention_bias=True, mlp_bias=True)), "no head_dim": Change(lambda rng, c: dict(
            head_dim=None, hidden_size=c["num_attention_heads"] * 6)), "pretraining_tp": Change(dict(pretraining_tp=2))},
        "llama_linear", ("tied", "untied", "linear")),
    "mistral": Case("MistralForCausalLM", windowed(dense, 2), LLAMA | {"no window": Change(dict(sliding_window=None)), "window": Change(window)}),
    "qwen2": Case("Qwen2ForCausalLM", unlike(dense_square), LLAMA | UNSTATED_SHARE | {
        "window": Change(lambda rng, c: window(rng, c) | dict(use_sliding_window=True, max_window_layers=1)),
        "unused window": Change(lambda rng, c: window(rng, c) | dict(use_sliding_window=False)),
        "kinds": Change(lambda rng, c: kinds(rng, c) | dict(use_sliding_window=True, sliding_window=9))},
        "qwen2", ("tied", "untied", "linear", "yarn")),
    "qwen3": Case("Qwen3ForCausalLM", dense, LLAMA | BIAS | {
        "window": Change(lambda rng, c: window(rng, c) | dict(use_sliding_window=True, max_window_layers=1), "use_sliding_window|layer_types")},
        "qwen3", ("tied", "untied", "linear", "yarn")),
    "qwen3vl": Case("Qwen3VLForConditionalGeneration", qwen3vl_sizes, {
        name: text(change) for name, change in (ROPES | GELU | BIAS | NO_KV).items()}, "qwen3vl"),
    "smollm3": Case("SmolLM3ForCausalLM", unlike(dense_square), LLAMA | flags("attention_bias", "mlp_bias") | {
        "every second": Change(dict(no_rope_layer_interval=2)), "no rope": Change(lambda rng, c: dict(no_rope_layers=[0] * c["num_hidden_layers"])),
        "listed": Change(lambda rng, c: dict(no_rope_layers=[int(rng.integers(2)) for _ in range(c["num_hidden_layers"])])),
        "window": Change(dict(use_sliding_window=True, sliding_window=9), "use_sliding_window|layer_types")},
        "smollm3", ("tied", "untied")),
    "gemma2": Case("Gemma2ForCausalLM", gemma_sizes, ROPES | BIAS | {
        "kinds": Change(kinds), "no softcaps": Change(dict(attn_logit_softcapping=None, final_logit_softcapping=None)),
        "softcaps": Change(dict(attn_logit_softcapping=3.0, final_logit_softcapping=4.0)), "untied": TIED["untied"],
        "both ways": Change(dict(use_bidirectional_attention=True), "use_bidirectional_attention")} | activations("hidden_activation"),
        plus_one=True),
    "gemma3": Case("Gemma3ForCausalLM", gemma3_sizes, BIAS | TYPED | {
        "softcap": Change(dict(final_logit_softcapping=4.0), "final_logit_softcapping"), "untied": TIED["untied"],
        # transformers has the key, and does not read it
        "softcap of scores": Change(dict(attn_logit_softcapping=3.0), "attn_logit_softcapping"),
        "yarn": Change(by_type(rope(9000.0, "yarn", factor=3.0, **ORIGINAL), rope(300.0))),
        "yarn in windows": Change(by_type(rope(9000.0), rope(300.0, "yarn", factor=3.0, **ORIGINAL)), "sliding_attention"),
        "both ways": Change(dict(use_bidirectional_attention=True), "use_bidirectional_attention")} | activations("hidden_activation"),
        plus_one=True),
    "gemma3_images": Case("Gemma3ForConditionalGeneration", lambda rng: dict(
        text_config=gemma3_sizes(rng), mm_tokens_per_image=4, vision_config=dict(
            hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14, num_channels=3)),
        {name: text(change) for name, change in (TYPED | BIAS).items()}, plus_one=True),
    "phi3": Case("Phi3ForCausalLM", phi3_sizes, TIED | GELU | {
        "window": Change(window), "linear": Change(with_rope(rope_type="linear", factor=2.0, partial_rotary_factor=1.0), "rope_type"),
        "half rope": Change(lambda rng, c: dict(hidden_size=8 * c["num_attention_heads"], rope_parameters=c["rope_parameters"] | dict(
            partial_rotary_factor=0.5)))}, "phi3", ("tied", "untied")),
    "granite": Case("GraniteForCausalLM", unlike(dense_square, embedding_multiplier=2.5, logits_scaling=4.0, residual_multiplier=0.3,
                                                  attention_multiplier=0.2), LLAMA | flags("attention_bias", "mlp_bias") | {
        "no factors": Change(dict(embedding_multiplier=1.0, logits_scaling=1.0, residual_multiplier=1.0, attention_multiplier=1.0))},
        "granite", ("tied", "untied")),
    "olmo2": Case("Olmo2ForCausalLM", dense_square, LLAMA | BIAS, "olmo2", ("tied", "untied")),
    "olmo3": Case("Olmo3ForCausalLM", olmo3_sizes, TIED | BIAS | TYPED | GELU),
    "cohere": Case("CohereForCausalLM", layer_norm("layer_norm_eps", logit_scale=0.3), LLAMA | BIAS | {
        "norms": Change(dict(use_qk_norm=True)), "logits": Change(dict(logit_scale=1.7))}, "cohere", ("tied", "norms")),
    "cohere2": Case("Cohere2ForCausalLM", windowed(layer_norm("layer_norm_eps", logit_scale=0.3)), TIED | BIAS | ROPES | {
        "kinds": Change(kinds)} | GELU),
    "glm4": Case("Glm4ForCausalLM", glm4_sizes, LLAMA | PARTIAL | flags("attention_bias", value=False), "glm4", ("tied", "untied")),
    "starcoder2": Case("Starcoder2ForCausalLM", layer_norm("norm_epsilon"), LLAMA | {
        "window": Change(window), "no biases": Change(dict(use_bias=False))}, "starcoder2", ("tied", "untied")),
    "gptneox": Case("GPTNeoXForCausalLM", unlike(partial_sizes("layer_norm_eps", 0.25, 1e-4), "num_key_value_heads"), TIED | GELU | PARTIAL | ROPES | {
        "one after the other": Change(dict(use_parallel_residual=False)), "no biases": Change(dict(attention_bias=False))},
        "gptneox", ("one after the other", "half rope")),
    "phi2": Case("PhiForCausalLM", partial_sizes("layer_norm_eps", 0.5, 1e-4), LLAMA | PARTIAL | {"norms": Change(dict(qk_layernorm=True))},
                 "phi2", ("untied",)),
    "nemotron": Case("NemotronForCausalLM", nemotron_sizes, LLAMA | PARTIAL | flags("attention_bias", "mlp_bias"), "nemotron",
                     ("tied", "untied"), plus_one=True),
    "ernie4_5": Case("Ernie4_5ForCausalLM", dense, LLAMA | flags("use_bias"), "ernie4_5", ("tied", "untied")),
    "hunyuan": Case("HunYuanDenseV1ForCausalLM", dense, LLAMA | BIAS | {
        "alpha": Change(with_rope(rope_type="dynamic", alpha=20.0, factor=1.0))}, "hunyuan", ("tied", "untied", "alpha")),
    "exaone4": Case("Exaone4ForCausalLM", windowed(dense), TIED | ROPES | GELU | {
        "kinds": Change(kinds), "no window": Change(dict(sliding_window=None, sliding_window_pattern=None)),
        "all windows": Change(lambda rng, c: dict(layer_types=[SLIDING] * c["num_hidden_layers"]))}),
    "seed_oss": Case("SeedOssForCausalLM", dense, LLAMA | flags("attention_out_bias", "mlp_bias") | flags("attention_bias", value=False),
                     "seed_oss", ("tied", "untied")),
    "ministral3": Case("Ministral3ForCausalLM", unlike(dense, rope_parameters=rope(
        900.0, "yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0,
        llama_4_scaling_beta=0.2)), TIED | GELU | {
            "window": Change(window, "sliding_window"), "mscale": Change(with_rope(mscale=0.8)),
            "no temperature": Change(with_rope(llama_4_scaling_beta=0.0))}, "ministral3", ("tied", "untied")),
    "gpt2": Case("GPT2LMHeadModel", gpt2_sizes, TIED | activations("activation_function") | {
        "wide": Change(dict(n_inner=None)), "upcast": Change(dict(reorder_and_upcast_attn=True)),
        "layer scale": Change(dict(scale_attn_by_inverse_layer_idx=True), "scale_attn_by_inverse_layer_idx"),
        "no scale": Change(dict(scale_attn_weights=False), "scale_attn_weights")}, "gpt2", ("tied", "untied")),
    "bloom": Case("BloomForCausalLM", bloom_sizes, TIED | {
        "norm's residual": Change(dict(apply_residual_connection_post_layernorm=True), "apply_residual_connection_post_layernorm"),
        "exact": Change(dict(slow_but_exact=True))}, "bloom", ("tied", "untied")),
    "falcon": Case("FalconForCausalLM", falcon_sizes, TIED | activations("activation") | flags("bias") | {
        "sequential": Change(dict(parallel_attn=False), "parallel_attn"), "40b": Change(falcon_40b()),
        "one norm": Change(falcon_40b(num_ln_in_parallel_attn=1)), "rw": Change(falcon_rw),
        "rw parallel": Change(lambda rng, c: falcon_rw(rng, c) | dict(parallel_attn=True)),
        "40b biases": Change(falcon_40b(bias=True)),
        "heads of their own": Change(lambda rng, c: dict(multi_query=False, num_kv_heads=c["num_attention_heads"]), "multi_query"),
        "alibi, one head": Change(dict(alibi=True), "multi_query"),
        "alibi 40b": Change(falcon_40b(alibi=True), "alibi"),
    } | {name: Change(change.settings, "rope_parameters|rope_scaling") for name, change in ROPES.items() if "yarn" not in name or name == "yarn"}, "falcon", ("40b", "one norm", "tied", "untied")),
    "opt": Case("OPTForCausalLM", opt_sizes, TIED | activations("activation_function") | {
        "no biases": Change(dict(enable_bias=False)), "norm behind": Change(dict(do_layer_norm_before=False), "do_layer_norm_before"),
        "bare norms": Change(dict(layer_norm_elementwise_affine=False), "layer_norm_elementwise_affine"),
        "no last norm": Change(dict(_remove_final_layer_norm=True), "_remove_final_layer_norm"),
        "narrow embedding": Change(dict(word_embed_proj_dim=8), "word_embed_proj_dim")}),
    "gptj": Case("GPTJForCausalLM", gptj_sizes, {
        "tied": Change(dict(tie_word_embeddings=True), "lm_head.weight"), "untied": TIED["untied"]} | activations("activation_function") | {"wide": Change(dict(n_inner=None))}),
    "mpt": Case("MptForCausalLM", mpt_sizes, TIED | {
        # alibi_bias_max is not here: transformers has the key and does not read it; the authors' code does
        "scale": Change(dict(attn_config=dict(softmax_scale=0.3))),
        "clip": Change(dict(attn_config=dict(clip_qkv=2.0)), "clip_qkv"), "norms": Change(dict(attn_config=dict(qk_ln=True)), "qk_ln"),
        "wide": Change(dict(expansion_ratio=3), "expansion_ratio"), "biases": Change(dict(no_bias=False), "no_bias"),
        "logits": Change(dict(logit_scale=0.5), "logit_scale")}, "mpt", ("tied",)),
    "stablelm": Case("StableLmForCausalLM", partial_sizes("layer_norm_eps", 0.25, 1e-4), LLAMA | PARTIAL | flags("use_qkv_bias") | {
        "parallel": Change(dict(use_parallel_residual=True)), "norms": Change(dict(qk_layernorm=True)),
        "12b": Change(dict(use_parallel_residual=True, qk_layernorm=True))}, "stablelm", ("tied", "norms", "12b")),
}
CASES |= EXPERT_CASES | STATE_CASES | NEWER_CASES
