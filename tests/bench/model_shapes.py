"""Shapes of real models for make_model.py: dimensions, tensors and metadata in GGUF."""

from dataclasses import dataclass

QWEN, GEMMA = "qwen2.5-coder", "gemma3-270m"


@dataclass(frozen=True)
class Shape:
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int  # width of an expert, where there are experts
    vocab: int
    tied: bool
    context: int
    arch: str = "llama"
    head_dim: int = 0  # 0: hidden / heads
    vocabulary: str = "smollm2"  # the model of tests/models/fetch.py that gives the tokens
    experts: int = 0
    experts_used: int = 0
    window: int = 0
    rope_base: float = 10000.0
    epsilon: float = 1e-5
    # latent attention: rank of K and V, elements of a head with rope and without, elements of its values
    latent: tuple = ()
    dense: int = 0  # so many first layers have an FFN in place of experts
    dense_ffn: int = 0  # width of the FFN of these layers
    shared: int = 0  # shared experts
    # gated delta net: heads of keys, heads of values, elements of a head, taps of the convolution
    delta: tuple = ()
    conv: int = 0  # taps of the short convolution
    attention: tuple = ()  # the layers with attention, where others have a state

    @property
    def head(self):
        return self.head_dim or self.hidden // self.heads


QWEN35 = dict(arch="qwen35", vocab=248320, tied=True, context=262144, head_dim=256, vocabulary=GEMMA, rope_base=1e7, epsilon=1e-6)
QWEN3 = dict(arch="qwen3", vocab=151936, tied=True, context=40960, head_dim=128, vocabulary=QWEN, rope_base=1e6, epsilon=1e-6)
SHAPES = {
    "1.1b": Shape(2048, 22, 32, 4, 5632, 32000, False, 8192),
    "135m": Shape(576, 30, 9, 3, 1536, 49152, True, 8192),  # the sample model's
    "tiny": Shape(256, 2, 4, 2, 512, 2048, False, 2048),  # for tests of programs that read such files
    "qwen3-0.6b": Shape(1024, 28, 16, 8, 3072, **QWEN3),
    "gemma3-270m": Shape(640, 18, 4, 1, 2048, 262144, True, 32768, "gemma3", 256, GEMMA, window=512, rope_base=1e6, epsilon=1e-6),
    # 1.4 billion parameters, 0.37 of them in a step
    "qwen3-moe": Shape(1024, 12, 16, 4, 512, **QWEN3 | dict(arch="qwen3moe", experts=64, experts_used=8)),
    # DeepSeek-V2-Lite with 8 of its 27 layers: 4.6 billion parameters, 0.87 of them in a step
    "deepseek2-lite-8": Shape(2048, 8, 16, 1, 1408, 102400, False, 32768, "deepseek2", vocabulary=QWEN, experts=64, experts_used=6,
                              epsilon=1e-6, latent=(512, 64, 128, 128), dense=1, dense_ffn=10944, shared=2),
    # the first ids of Gemma's vocabulary stand for those of the real ones
    "qwen3.5-0.8b": Shape(1024, 24, 8, 2, 3584, **QWEN35, delta=(16, 16, 128, 4), attention=tuple(range(3, 24, 4))),
    # 1.7 billion parameters, 0.5 of them in a step; the layers of Qwen3.5-35B-A3B with half the hidden size
    "qwen3.5-moe": Shape(1024, 12, 8, 2, 512, **QWEN35 | dict(arch="qwen35moe", experts=64, experts_used=8, shared=1), delta=(16, 32, 128, 4),
                         attention=(3, 7, 11)),
    "lfm2-1.2b": Shape(2048, 16, 32, 8, 8192, 65536, True, 128000, "lfm2", vocabulary=GEMMA, rope_base=1e6, conv=3,
                       attention=(2, 5, 8, 10, 12, 14)),
    # for tests
    "tiny-qwen3.5": Shape(256, 4, 4, 1, 512, 2048, True, 2048, "qwen35", 96, epsilon=1e-6, delta=(2, 4, 64, 4), attention=(3,)),
    "tiny-qwen3.5-moe": Shape(256, 4, 4, 1, 256, 2048, True, 2048, "qwen35moe", 96, epsilon=1e-6, experts=8, experts_used=2, shared=1,
                              delta=(2, 4, 64, 4), attention=(3,)),
    "tiny-lfm2": Shape(256, 3, 4, 2, 512, 2048, True, 2048, "lfm2", conv=3, attention=(1,)),
    "tiny-deepseek2": Shape(256, 2, 4, 1, 128, 2048, True, 2048, "deepseek2", experts=4, experts_used=2, epsilon=1e-6,
                            latent=(64, 32, 32, 64), dense=1, dense_ffn=256, shared=1),
    "tiny-qwen3": Shape(256, 2, 4, 2, 512, 2048, arch="qwen3", tied=True, context=2048, head_dim=96),
    "tiny-gemma3": Shape(256, 6, 4, 1, 512, 2048, arch="gemma3", tied=True, context=2048, head_dim=128, window=64),
    "tiny-qwen3-moe": Shape(256, 2, 4, 2, 256, 2048, arch="qwen3moe", tied=True, context=2048, head_dim=64, experts=8, experts_used=2),
}  # fmt: skip


def tensors(s):
    """Yields each tensor's name, its shape (…, rows, columns) or (n,), and its weights' standard deviation times √columns. For a vector the
    last is its mean, or 0 for a mean of 1."""
    yield "token_embd.weight", (s.vocab, s.hidden), s.hidden**0.5 * 0.05
    for i in range(s.layers):
        p = f"blk.{i}."
        yield p + "attn_norm.weight", (s.hidden,), 0
        yield from mixer(s, i)(s, p)
        if s.arch == "gemma3":
            yield p + "post_attention_norm.weight", (s.hidden,), 0
            yield p + "post_ffw_norm.weight", (s.hidden,), 0
        yield p + ("post_attention_norm.weight" if s.delta else "ffn_norm.weight"), (s.hidden,), 0
        yield from ffn(s, p, i)
    yield "token_embd_norm.weight" if s.conv else "output_norm.weight", (s.hidden,), 0
    if not s.tied:
        yield "output.weight", (s.vocab, s.hidden), 2.0


def mixer(s, layer):
    if s.latent:
        return latent
    if layer in s.attention or not s.attention:
        return attention
    return delta if s.delta else short_conv


def attention(s, p):
    rows = s.heads * s.head
    yield p + "attn_q.weight", (2 * rows if s.delta else rows, s.hidden), 1.6  # with a gate beside each head
    yield p + "attn_k.weight", (s.kv_heads * s.head, s.hidden), 1.6
    yield p + "attn_v.weight", (s.kv_heads * s.head, s.hidden), 1.0
    yield p + "attn_output.weight", (s.hidden, s.heads * s.head), 0.5
    if s.arch != "llama":
        yield p + "attn_q_norm.weight", (s.head,), 0
        yield p + "attn_k_norm.weight", (s.head,), 0


def delta(s, p):
    key_heads, heads, dim, taps = s.delta
    rows = (2 * key_heads + heads) * dim
    yield p + "attn_qkv.weight", (rows, s.hidden), 1.0
    yield p + "attn_gate.weight", (heads * dim, s.hidden), 1.0
    yield p + "ssm_conv1d.weight", (rows, taps), 1.0
    yield p + "ssm_dt.bias", (heads,), 0
    yield p + "ssm_a", (heads,), -0.1
    yield p + "ssm_beta.weight", (heads, s.hidden), 1.0
    yield p + "ssm_alpha.weight", (heads, s.hidden), 1.0
    yield p + "ssm_norm.weight", (dim,), 0
    yield p + "ssm_out.weight", (s.hidden, heads * dim), 0.5


def short_conv(s, p):
    yield p + "shortconv.conv.weight", (s.hidden, s.conv), 1.0
    yield p + "shortconv.in_proj.weight", (3 * s.hidden, s.hidden), 1.0
    yield p + "shortconv.out_proj.weight", (s.hidden, s.hidden), 0.5


def latent(s, p):
    rank, rot, nope, values = s.latent
    yield p + "attn_q.weight", (s.heads * (nope + rot), s.hidden), 1.6
    yield p + "attn_kv_a_mqa.weight", (rank + rot, s.hidden), 1.6
    yield p + "attn_kv_a_norm.weight", (rank,), 0
    yield p + "attn_k_b.weight", (s.heads, rank, nope), 1.0
    yield p + "attn_v_b.weight", (s.heads, values, rank), 1.0
    yield p + "attn_output.weight", (s.hidden, s.heads * values), 0.5


def ffn(s, p, layer):
    if not s.experts or layer < s.dense:
        width = s.dense_ffn or s.ffn
        yield p + "ffn_gate.weight", (width, s.hidden), 1.0
        yield p + "ffn_up.weight", (width, s.hidden), 1.0
        yield p + "ffn_down.weight", (s.hidden, width), 0.5
        return
    if s.shared:
        yield p + "ffn_gate_shexp.weight", (s.shared * s.ffn, s.hidden), 1.0
        yield p + "ffn_up_shexp.weight", (s.shared * s.ffn, s.hidden), 1.0
        yield p + "ffn_down_shexp.weight", (s.hidden, s.shared * s.ffn), 0.5
    if s.shared and s.delta:
        yield p + "ffn_gate_inp_shexp.weight", (s.hidden,), 0
    yield p + "ffn_gate_inp.weight", (s.experts, s.hidden), 1.0
    yield p + "ffn_gate_exps.weight", (s.experts, s.ffn, s.hidden), 1.0
    yield p + "ffn_up_exps.weight", (s.experts, s.ffn, s.hidden), 1.0
    yield p + "ffn_down_exps.weight", (s.experts, s.hidden, s.ffn), 0.5


def add_metadata(w, s):
    """The keys of the shape, as llama.cpp's converter writes them."""
    w.add_context_length(s.context)
    w.add_embedding_length(s.hidden)
    w.add_block_count(s.layers)
    w.add_feed_forward_length(s.dense_ffn or s.ffn)
    w.add_head_count(s.heads)
    w.add_head_count_kv([s.kv_heads if i in s.attention else 0 for i in range(s.layers)] if s.conv else s.kv_heads)
    w.add_layer_norm_rms_eps(s.epsilon)
    w.add_rope_freq_base(s.rope_base)
    w.add_vocab_size(s.vocab)
    if s.latent:
        add_latent(w, s)
    elif s.arch == "llama":
        w.add_rope_dimension_count(s.head)
    elif s.conv:
        w.add_shortconv_l_cache(s.conv)
    else:
        w.add_key_length(s.head)
        w.add_value_length(s.head)
    if s.delta:
        add_delta(w, s)
    if s.window:
        w.add_sliding_window(s.window)
    if s.experts:
        w.add_expert_count(s.experts)
        w.add_expert_used_count(s.experts_used)
        w.add_expert_feed_forward_length(s.ffn)


def add_delta(w, s):
    key_heads, heads, dim, taps = s.delta
    turning = s.head // 4
    w.add_rope_dimension_count(turning)
    w.add_rope_dimension_sections([turning // 6 + 1, turning // 6 + 1, turning // 2 - 2 * (turning // 6 + 1), 0])
    w.add_ssm_conv_kernel(taps)
    w.add_ssm_state_size(dim)
    w.add_ssm_group_count(key_heads)
    w.add_ssm_time_step_rank(heads)
    w.add_ssm_inner_size(heads * dim)
    w.add_full_attention_interval(4)
    if s.shared:
        w.add_expert_shared_feed_forward_length(s.shared * s.ffn)


def add_latent(w, s):
    """llama.cpp takes a rank of queries for granted unless the model has the layers of V2-Lite. 0 says that there is none."""
    rank, rot, nope, values = s.latent
    w.add_q_lora_rank(0)
    w.add_kv_lora_rank(rank)
    w.add_key_length(rank + rot)
    w.add_value_length(rank)
    w.add_key_length_mla(nope + rot)
    w.add_value_length_mla(values)
    w.add_rope_dimension_count(rot)
    w.add_leading_dense_block_count(s.dense)
    w.add_expert_shared_count(s.shared)
    w.add_expert_weights_scale(1.0)
