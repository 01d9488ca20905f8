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

    @property
    def head(self):
        return self.head_dim or self.hidden // self.heads


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
    # for tests
    "tiny-deepseek2": Shape(256, 2, 4, 1, 128, 2048, True, 2048, "deepseek2", experts=4, experts_used=2, epsilon=1e-6,
                            latent=(64, 32, 32, 64), dense=1, dense_ffn=256, shared=1),
    "tiny-qwen3": Shape(256, 2, 4, 2, 512, 2048, arch="qwen3", tied=True, context=2048, head_dim=96),
    "tiny-gemma3": Shape(256, 6, 4, 1, 512, 2048, arch="gemma3", tied=True, context=2048, head_dim=128, window=64),
    "tiny-qwen3-moe": Shape(256, 2, 4, 2, 256, 2048, arch="qwen3moe", tied=True, context=2048, head_dim=64, experts=8, experts_used=2),
}  # fmt: skip


def tensors(s):
    """Yields each tensor's name, its shape (…, rows, columns) or (n,), and its weights' standard deviation times √columns."""
    yield "token_embd.weight", (s.vocab, s.hidden), s.hidden**0.5 * 0.05
    for i in range(s.layers):
        p = f"blk.{i}."
        yield p + "attn_norm.weight", (s.hidden,), 0
        yield from latent(s, p) if s.latent else attention(s, p)
        if s.arch == "gemma3":
            yield p + "post_attention_norm.weight", (s.hidden,), 0
            yield p + "post_ffw_norm.weight", (s.hidden,), 0
        yield p + "ffn_norm.weight", (s.hidden,), 0
        yield from ffn(s, p, i)
    yield "output_norm.weight", (s.hidden,), 0
    if not s.tied:
        yield "output.weight", (s.vocab, s.hidden), 2.0


def attention(s, p):
    yield p + "attn_q.weight", (s.heads * s.head, s.hidden), 1.6
    yield p + "attn_k.weight", (s.kv_heads * s.head, s.hidden), 1.6
    yield p + "attn_v.weight", (s.kv_heads * s.head, s.hidden), 1.0
    yield p + "attn_output.weight", (s.hidden, s.heads * s.head), 0.5
    if s.arch != "llama":
        yield p + "attn_q_norm.weight", (s.head,), 0
        yield p + "attn_k_norm.weight", (s.head,), 0


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
    w.add_head_count_kv(s.kv_heads)
    w.add_layer_norm_rms_eps(s.epsilon)
    w.add_rope_freq_base(s.rope_base)
    w.add_vocab_size(s.vocab)
    if s.latent:
        add_latent(w, s)
    elif s.arch == "llama":
        w.add_rope_dimension_count(s.head)
    else:
        w.add_key_length(s.head)
        w.add_value_length(s.head)
    if s.window:
        w.add_sliding_window(s.window)
    if s.experts:
        w.add_expert_count(s.experts)
        w.add_expert_used_count(s.experts_used)
        w.add_expert_feed_forward_length(s.ffn)


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
