"""Families with Mamba-2 or a short convolution (families.py). Their vocabulary has few rows: states and not logits fill the
files."""

from gguf import MODEL_ARCH as A

from families import FULL, Family, rope

ROWS = 66
CONV = "conv"


def config(hidden, **more):
    return dict(vocab_size=ROWS, hidden_size=hidden, max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=3) | more


def attends(kind):
    return kind in (FULL, "attention")


def kv_heads(w, c, kinds):
    """Layers without attention have no KV heads."""
    w.add_head_count_kv([c.num_key_value_heads if attends(t) else 0 for t in kinds])


def rms_eps(w, eps):
    """The eps of RMS norms, in place of the key for layer norms."""
    w.kv_data[0].pop(f"{w.arch}.attention.layer_norm_epsilon", None)
    w.add_layer_norm_rms_eps(eps)


def squeezed(name, x, c):
    """A convolution's weight [channels, 1, taps] without the 1."""
    return x.squeeze(1) if name.endswith(("conv.conv.weight", "conv1d.weight")) else x


# --- short convolution ---


def lfm2_keys(w, c):
    rms_eps(w, c.norm_eps)
    kv_heads(w, c, c.layer_types)
    w.add_vocab_size(c.vocab_size)
    w.add_shortconv_l_cache(c.conv_L_cache)
    if c.block_auto_adjust_ff_dim:
        width = int(c.block_ffn_dim_multiplier * int(2 * c.intermediate_size / 3))
        w.add_feed_forward_length(-(-width // c.block_multiple_of) * c.block_multiple_of)


FAMILIES = {
    # the FFN's width is ⌈⌊1.25 · ⌊2 · 40 / 3⌋⌋ / 3⌉ · 3 = 33
    "lfm2": Family(
        "Lfm2ForCausalLM",
        config(34, intermediate_size=40, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1, head_dim=16, norm_eps=1e-3,
               conv_L_cache=3, block_auto_adjust_ff_dim=True, block_ffn_dim_multiplier=1.25, block_multiple_of=3,
               layer_types=[CONV, FULL], rope_parameters=rope()),
        A.LFM2, lfm2_keys, transform=squeezed),
}
