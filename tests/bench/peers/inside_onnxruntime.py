"""Runs ONNX Runtime GenAI with a checkpoint's own weights, rounded again to blocks of 32 without a minimum.

Blocks have 4 bits for formats of up to 5 bits, and 8 bits for the others and the head. Tensors of 16 or 32 bits become
f32. The package's own model builder needs PyTorch, so the graph is built here from the same operators. These are packed
QKV, and grouped-query attention with rope inside. Logits are those of the last position alone, and past and present KV
share a buffer."""

import json
import pathlib

import gguf as gguf_format
import numpy as np
import onnx
import onnxruntime_genai as genai
from checkpoint import Checkpoint
from onnx import TensorProto, helper, numpy_helper

MS = "com.microsoft"
BLOCK = 32


def bits_of(path):
    kinds = {t.tensor_type.name for t in gguf_format.GGUFReader(path).tensors if len(t.shape) == 2 and "attn_q" in t.name}
    if kinds & {"F32", "F16", "BF16"}:
        return 32
    return 8 if kinds & {"Q8_0", "Q6_K"} else 4


def quantize(w, bits):
    """(N, K) → blocks [N, K/32, 32·bits/8] of unsigned integers around the middle, and a scale each: largest weight at the range's end."""
    rows, columns = w.shape
    blocks = w.reshape(rows, columns // BLOCK, BLOCK)
    half = 1 << (bits - 1)
    at = np.abs(blocks).argmax(axis=-1, keepdims=True)
    scale = np.take_along_axis(blocks, at, -1) / -half
    inverse = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale != 0)
    q = np.clip(np.rint(blocks * inverse) + half, 0, 2 * half - 1).astype(np.uint8)
    if bits == 4:
        q = q[..., 0::2] | (q[..., 1::2] << 4)
    return q, scale.astype(np.float32).reshape(rows, -1)


class Graph:
    def __init__(self, checkpoint, bits):
        self.c, self.bits = checkpoint, bits
        self.nodes, self.weights = [], []

    def constant(self, name, array):
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def node(self, op, inputs, outputs, domain="", **attributes):
        self.nodes.append(helper.make_node(op, inputs, outputs, name=f"{op}/{outputs[0]}", domain=domain, **attributes))
        return outputs[0]

    def linear(self, x, w, name, bits=0):
        bits = bits or self.bits
        if bits == 32:
            return self.node("MatMul", [x, self.constant(name + ".w", w.T)], [name])
        q, scale = quantize(w, bits)
        return self.node("MatMulNBits", [x, self.constant(name + ".q", q), self.constant(name + ".s", scale)], [name], MS, K=w.shape[1], N=w.shape[0],
                         bits=bits, block_size=BLOCK, accuracy_level=4)  # fmt: skip

    def norm(self, x, residual, gamma, name):
        """(x + residual normalized, x + residual)."""
        g = self.constant(name + ".g", gamma)
        if residual is None:
            return self.node("SimplifiedLayerNormalization", [x, g], [name], axis=-1, epsilon=self.c.epsilon, stash_type=1), x
        self.node("SkipSimplifiedLayerNormalization", [x, residual, g], [name, "", "", name + ".sum"], MS, epsilon=self.c.epsilon)
        return name, name + ".sum"

    def layer(self, i, x, residual):
        c, p = self.c, f"l{i}."
        h, residual = self.norm(x, residual, c.layer(i, "attn_norm"), p + "norm1")
        qkv = self.linear(h, np.concatenate([c.layer(i, n) for n in ("attn_q", "attn_k", "attn_v")]), p + "qkv")
        past = [f"past_key_values.{i}.{kind}" for kind in ("key", "value")]
        present = [f"present.{i}.{kind}" for kind in ("key", "value")]
        self.node("GroupQueryAttention", [qkv, "", "", *past, "seqlens_k", "total_length", "cos", "sin"], [p + "attention", *present], MS,
                  num_heads=c.heads, kv_num_heads=c.kv_heads, do_rotary=1, rotary_interleaved=1)  # fmt: skip
        out = self.linear(p + "attention", c.layer(i, "attn_output"), p + "out")
        h, residual = self.norm(out, residual, c.layer(i, "ffn_norm"), p + "norm2")
        gate = self.linear(h, c.layer(i, "ffn_gate"), p + "gate")
        up = self.linear(h, c.layer(i, "ffn_up"), p + "up")
        act = self.node("Mul", [gate, self.node("Sigmoid", [gate], [p + "sigmoid"])], [p + "silu"])
        return self.linear(self.node("Mul", [act, up], [p + "act"]), c.layer(i, "ffn_down"), p + "down"), residual

    def build(self):
        c = self.c
        one = self.constant("one", np.array([1], dtype=np.int64))
        lengths = self.node("Sub", [self.node("ReduceSum", ["attention_mask", one], ["mask_sum"], keepdims=0), one], ["lengths"])
        self.node("Cast", [lengths], ["seqlens_k"], to=TensorProto.INT32)
        shape = self.node("Shape", ["attention_mask"], ["mask_shape"])
        total = self.node("Gather", [shape, self.constant("index1", np.array(1, dtype=np.int64))], ["total"])
        self.node("Cast", [total], ["total_length"], to=TensorProto.INT32)
        angles = np.arange(c.context)[:, None] * c.rope_base ** (-np.arange(0, c.head_dim, 2) / c.head_dim)[None, :]
        self.constant("cos", np.cos(angles).astype(np.float32))
        self.constant("sin", np.sin(angles).astype(np.float32))
        x = self.node("Gather", [self.constant("embedding", c.weight("token_embd.weight")), "input_ids"], ["embedded"])
        residual = None
        for i in range(c.layers):
            x, residual = self.layer(i, x, residual)
        x, _ = self.norm(x, residual, c.weight("output_norm.weight"), "final")
        last = self.node("Gather", [x, self.constant("last", np.array([-1], dtype=np.int64))], ["last_hidden"], axis=1)
        self.nodes.append(helper.make_node("Identity", [self.linear(last, c.head(), "head", max(self.bits, 8))], ["logits"]))
        floats = lambda name, *shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)  # noqa: E731
        ids = lambda name, *shape: helper.make_tensor_value_info(name, TensorProto.INT64, shape)  # noqa: E731
        inputs = [ids("input_ids", "batch", "new"), ids("attention_mask", "batch", "all")]
        outputs = [floats("logits", "batch", 1, c.vocab)]
        for i in range(c.layers):
            for kind in ("key", "value"):
                inputs.append(floats(f"past_key_values.{i}.{kind}", "batch", c.kv_heads, "past", c.head_dim))
                outputs.append(floats(f"present.{i}.{kind}", "batch", c.kv_heads, "all", c.head_dim))
        graph = helper.make_graph(self.nodes, "llama", inputs, outputs, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid(MS, 1)], ir_version=10)


def config(c, threads):
    return {
        "model": {
            "type": "llama", "bos_token_id": c["bos"], "eos_token_id": 0, "pad_token_id": 0,
            "vocab_size": c["vocab"], "context_length": c["context"],
            "decoder": {
                "session_options": {"log_id": "onnxruntime-genai", "intra_op_num_threads": threads, "provider_options": []},
                "filename": "model.onnx", "head_size": c["head_dim"], "hidden_size": c["hidden"], "num_attention_heads": c["heads"],
                "num_hidden_layers": c["layers"], "num_key_value_heads": c["kv_heads"],
                "inputs": {"input_ids": "input_ids", "attention_mask": "attention_mask", "past_key_names": "past_key_values.%d.key",
                           "past_value_names": "past_key_values.%d.value"},
                "outputs": {"logits": "logits", "present_key_names": "present.%d.key", "present_value_names": "present.%d.value"},
            },
        },
        "search": {"max_length": c["context"], "past_present_share_buffer": True, "do_sample": False, "num_beams": 1, "top_k": 1},
    }  # fmt: skip


def prepare(gguf, folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    c, bits = Checkpoint(gguf), bits_of(gguf)
    onnx.save_model(Graph(c, bits).build(), folder / "model.onnx", save_as_external_data=True, location="model.onnx.data", size_threshold=1024)
    names = ("bos", "vocab", "context", "head_dim", "hidden", "heads", "layers", "kv_heads")
    (folder / "dimensions.json").write_text(json.dumps({n: int(getattr(c, n)) for n in names}))
    return "f32" if bits == 32 else f"int{bits} weights in blocks of 32{', head int8' if bits == 4 else ''}, int8 activations, f32 KV"


class Engine:
    def __init__(self, _gguf, folder, setting):
        path = pathlib.Path(folder) / f"threads-{setting['threads']}"  # a folder for each, as its configuration is a file in it
        path.mkdir(exist_ok=True)
        for name in ("model.onnx", "model.onnx.data"):
            if not (path / name).exists():
                (path / name).hardlink_to(pathlib.Path(folder) / name)
        dimensions = json.loads((pathlib.Path(folder) / "dimensions.json").read_text())
        (path / "genai_config.json").write_text(json.dumps(config(dimensions, setting["threads"])))
        self.model = genai.Model(str(path))

    def generate(self, prompts, n):
        length = len(prompts[0])
        params = genai.GeneratorParams(self.model)
        params.set_search_options(do_sample=False, max_length=length + n, min_length=length + n, batch_size=len(prompts))
        generator = genai.Generator(self.model, params)
        generator.append_tokens(np.array(prompts, dtype=np.int32))
        for _ in range(n):
            generator.generate_next_token()
        return [[int(t) for t in generator.get_sequence(i)[length:]] for i in range(len(prompts))]
