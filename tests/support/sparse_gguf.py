"""Writes a Llama's GGUF header and no weights: the file has a hole of their size. For plans of models that no test
machine could hold."""
import struct

# ggml's number of a type, elements of a block, bytes of a block
TYPES = {"F32": (0, 1, 4), "BF16": (30, 1, 2), "Q8_0": (8, 32, 34), "Q4_K": (12, 256, 144)}
# layers, hidden, MLP, heads, KV heads, vocabulary
SHAPES = {
    "8b": (32, 4096, 14336, 32, 8, 128256),
    "70b": (80, 8192, 28672, 64, 8, 128256),
    "405b": (126, 16384, 53248, 128, 8, 128256),
}
ALIGN, U32, F32, STRING = 32, 4, 6, 8


def text(value):
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def key(name, value):
    if isinstance(value, str):
        return text(name) + struct.pack("<I", STRING) + text(value)
    if isinstance(value, float):
        return text(name) + struct.pack("<If", F32, value)
    return text(name) + struct.pack("<II", U32, value)


def tensors(shape, kind):
    layers, hidden, ffn, heads, kv_heads, vocab = shape
    kv = hidden // heads * kv_heads
    yield "token_embd.weight", (hidden, vocab), kind
    yield "output.weight", (hidden, vocab), kind
    yield "output_norm.weight", (hidden,), "F32"
    for i in range(layers):
        for name, dims in (("attn_q", (hidden, hidden)), ("attn_k", (hidden, kv)), ("attn_v", (hidden, kv)), ("attn_output", (hidden, hidden)),
                           ("ffn_gate", (hidden, ffn)), ("ffn_up", (hidden, ffn)), ("ffn_down", (ffn, hidden))):
            yield f"blk.{i}.{name}.weight", dims, kind
        yield f"blk.{i}.attn_norm.weight", (hidden,), "F32"
        yield f"blk.{i}.ffn_norm.weight", (hidden,), "F32"


def write_llama(path, shape, kind="BF16", context=131072):
    """`shape`: a name of SHAPES, or six numbers."""
    shape = SHAPES.get(shape, shape)
    layers, hidden, ffn, heads, kv_heads, vocab = shape
    keys = {"general.architecture": "llama", "llama.block_count": layers, "llama.context_length": context,
            "llama.embedding_length": hidden, "llama.feed_forward_length": ffn, "llama.attention.head_count": heads,
            "llama.attention.head_count_kv": kv_heads, "llama.rope.dimension_count": hidden // heads, "llama.rope.freq_base": 500000.0,
            "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.vocab_size": vocab}
    infos, at, n = b"", 0, 0
    for name, dims, of in tensors(shape, kind):
        number, elements, size = TYPES[of]
        infos += text(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<IQ", number, at)
        count = dims[0] * (dims[1] if len(dims) > 1 else 1)
        at += -(-count // elements * size // ALIGN) * ALIGN
        n += 1
    head = b"GGUF" + struct.pack("<IQQ", 3, n, len(keys)) + b"".join(key(k, v) for k, v in keys.items()) + infos
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(-(-len(head) // ALIGN) * ALIGN + at)
    return path
