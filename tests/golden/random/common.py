"""Random sizes, and changes of config classes, for the table of compare.py (cases.py, expert_cases.py).

A change names the key that a refusal must name, if Sluice may refuse the change. Sizes are small: odd numbers of heads, any
vocabulary. The head dimension is not hidden size / heads where the class has a key for it."""

from dataclasses import dataclass, field
from typing import Any, Callable

SLIDING, FULL, LINEAR = "sliding_attention", "full_attention", "linear_attention"
ACTIVATIONS = ("silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_python", "relu", "relu2")


@dataclass
class Change:
    settings: Any  # a dictionary, or a function of the random generator and the config that returns one
    refused: str = ""  # a key that the refusal names; empty: the model must be served


@dataclass
class Case:
    model: str  # class of transformers
    sizes: Callable  # takes the random generator
    changes: dict = field(default_factory=dict)
    golden: str = ""  # the row of families.py that knows how llama.cpp's converter writes the family
    gguf: tuple = ()  # changes that a GGUF states, too
    plus_one: bool = False
    longest: int = 48  # tokens
    edit: Callable = lambda model, rng: None  # changes the random weights
    wide: dict = field(default_factory=dict)  # settings of the wide model, beyond those of widen()


def pick(rng, *values):
    return values[rng.integers(len(values))]


def tokens(rng):
    return dict(vocab_size=283 + int(rng.integers(0, 40)), bos_token_id=1, eos_token_id=[2, 3], pad_token_id=3)


def rope(theta=None, kind="default", **more):
    return {"rope_type": kind, "rope_theta": theta or 10000.0} | more


def random_rope(rng, **more):
    return rope(float(pick(rng, 300, 10000, 500000)), **more)


def heads(rng):
    kv = int(pick(rng, 1, 2, 3, 5))
    return dict(num_attention_heads=kv * int(pick(rng, 1, 2, 3)), num_key_value_heads=kv)


def widen(config):
    """Eight heads of 32, which four ranks divide."""
    if "text_config" in config:
        widen(config["text_config"])
        if "out_hidden_size" in config["vision_config"]:
            config["vision_config"]["out_hidden_size"] = config["text_config"]["hidden_size"]
        return
    def put(value, *keys):
        config.update({key: value for key in keys if config.get(key) is not None})
    put(8, "num_attention_heads", "n_head", "n_heads")
    put(4, "num_key_value_heads")
    put(128, "moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size")
    put(160, "intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner")
    put(72 if "head_dim" in config else 256, "hidden_size", "n_embd", "d_model")
    put(32, "head_dim")
    put(16, "rotary_dim")
    put(4, "linear_num_key_heads")
    put(8, "linear_num_value_heads")
    put(20, "linear_value_head_dim")
    put([LINEAR, FULL], "layer_types") if "linear_num_key_heads" in config else None
    put(2, "num_hidden_layers", "n_layer", "n_layers")
    if "kv_lora_rank" in config:
        config.update(num_key_value_heads=8, v_head_dim=32)
    rope = config.get("rope_parameters") or {}
    if "mrope_section" in rope:
        rope["mrope_section"] = [6, 5, 5]


def free(rng, **more):
    """Families whose head dimension is a key of its own."""
    out = tokens(rng) | heads(rng)
    return out | dict(
        hidden_size=out["num_attention_heads"] * int(rng.integers(3, 13)), intermediate_size=int(rng.integers(7, 130)), num_hidden_layers=int(rng.integers(1, 5)),
        head_dim=int(pick(rng, 4, 6, 10, 16, 26)), max_position_embeddings=int(rng.integers(64, 300)),
        rope_parameters=random_rope(rng),
    ) | more


def square(rng, **more):
    """Families whose heads fill the hidden size."""
    out = free(rng)
    out["hidden_size"] = out["num_attention_heads"] * out.pop("head_dim")
    return out | more


def rms(rng):
    return dict(rms_norm_eps=float(pick(rng, 1e-6, 1e-5, 1e-3)))


def dense(rng):
    return free(rng) | rms(rng)


def dense_square(rng):
    return square(rng) | rms(rng)


def layer_norm(key, **more):
    return lambda rng: square(rng) | {key: float(pick(rng, 1e-6, 1e-5, 1e-3))} | more


def with_rope(**more):
    """Keeps the base, and the share of rotating dimensions."""
    return lambda rng, c: dict(rope_parameters=dict(c["rope_parameters"]) | more)


ORIGINAL = dict(original_max_position_embeddings=32)
ROPES = {
    "linear": Change(with_rope(rope_type="linear", factor=2.5)),
    "dynamic": Change(with_rope(rope_type="dynamic", factor=2.0)),
    "yarn": Change(with_rope(rope_type="yarn", factor=4.0, **ORIGINAL)),
    "yarn attention": Change(with_rope(rope_type="yarn", factor=4.0, attention_factor=0.9, beta_fast=16.0, beta_slow=2.0, **ORIGINAL)),
    "yarn mscale": Change(with_rope(rope_type="yarn", factor=3.0, mscale=0.6, mscale_all_dim=1.1, **ORIGINAL)),
    "yarn one mscale": Change(with_rope(rope_type="yarn", factor=3.0, mscale=0.6, **ORIGINAL)),
    "yarn fractions": Change(with_rope(rope_type="yarn", factor=3.0, truncate=False, beta_fast=8.0, beta_slow=1.5, **ORIGINAL)),
    "llama3": Change(with_rope(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, **ORIGINAL)),
}
UNSTATED_SHARE = {"partial rope": Change(with_rope(partial_rotary_factor=0.5), "partial_rotary_factor")}
PARTIAL = {
    "half rope": Change(with_rope(partial_rotary_factor=0.5)),
    "whole rope": Change(with_rope(partial_rotary_factor=1.0)),
}


def activations(key, refused="mish"):
    out = {f"{key} {name}": Change({key: name}) for name in ACTIVATIONS}
    return out | {f"{key} {refused}": Change({key: refused}, key)}


def flags(*keys, value=True):
    return {f"{key} {value}": Change({key: value}) for key in keys}


TIED = {"tied": Change(dict(tie_word_embeddings=True)), "untied": Change(dict(tie_word_embeddings=False))}
NO_KV = {"no kv heads": Change(lambda rng, c: dict(num_key_value_heads=None))}
GELU = activations("hidden_act")
LLAMA = TIED | ROPES | GELU


def kinds(rng, c):
    """A kind for each layer, without order."""
    return dict(layer_types=[pick(rng, SLIDING, FULL) for _ in range(c["num_hidden_layers"])])


def window(rng, c):
    return dict(sliding_window=int(pick(rng, 5, 16, 33)))


def windowed(sizes, n_layers=6, **more):
    return lambda rng: sizes(rng) | dict(sliding_window=int(pick(rng, 8, 16)), num_hidden_layers=n_layers) | more


def unlike(sizes, *keys, **more):
    """Without some keys of the sizes."""
    return lambda rng: {k: v for k, v in sizes(rng).items() if k not in keys} | more


def by_type(full, sliding):
    return lambda rng, c: dict(rope_parameters={FULL: full, SLIDING: sliding})


TYPED = {
    "kinds": Change(kinds),
    "rope by kind": Change(by_type(rope(9000.0, "linear", factor=3.0), rope(300.0))),
    "rope of windows scaled": Change(by_type(rope(9000.0), rope(300.0, "linear", factor=2.0)), "sliding_attention"),
}


BIAS = flags("attention_bias")


def delta(rng, c):
    """Sizes of a gated delta net, and of attention whose heads turn in part. Layers have either, in any order."""
    keys = int(pick(rng, 1, 2, 3))
    return c | dict(
        head_dim=int(pick(rng, 8, 16, 24)), rope_parameters=c["rope_parameters"] | dict(partial_rotary_factor=0.25),
        linear_num_key_heads=keys, linear_num_value_heads=keys * int(pick(rng, 1, 2, 3)), linear_key_head_dim=int(pick(rng, 4, 7, 16)),
        linear_value_head_dim=int(pick(rng, 5, 12, 24)), linear_conv_kernel_dim=int(pick(rng, 2, 3, 4, 7)),
        layer_types=[LINEAR, *(pick(rng, LINEAR, FULL) for _ in range(c["num_hidden_layers"]))], num_hidden_layers=c["num_hidden_layers"] + 1)


STATES = {
    "interval": Change(dict(layer_types=None, num_hidden_layers=5)), "attention alone": Change(lambda rng, c: dict(
        layer_types=[FULL] * c["num_hidden_layers"])), "no attention": Change(lambda rng, c: dict(layer_types=[LINEAR] * c["num_hidden_layers"])),
    "one key head": Change(dict(linear_num_key_heads=1, linear_num_value_heads=5)), "act": Change(dict(hidden_act="gelu"), "hidden_act"),
    "biases": Change(dict(attention_bias=True), "attention_bias"),
}
