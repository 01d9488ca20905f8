"""A llama GGUF file as other programs want it: its dimensions, and its weights in f32 by their names. Needs gguf and numpy."""

import gguf
import numpy as np


class Checkpoint:
    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self._tensors = {t.name: t for t in reader.tensors}
        get = lambda key, otherwise=None: reader.fields[key].contents() if key in reader.fields else otherwise  # noqa: E731
        if get("general.architecture") != "llama":
            raise SystemExit(f"{path}: architecture {get('general.architecture')}, not llama")
        self.layers = get("llama.block_count")
        self.hidden = get("llama.embedding_length")
        self.heads = get("llama.attention.head_count")
        self.kv_heads = get("llama.attention.head_count_kv", self.heads)
        self.ffn = get("llama.feed_forward_length")
        self.epsilon = get("llama.attention.layer_norm_rms_epsilon")
        self.rope_base = get("llama.rope.freq_base", 10000.0)
        self.context = get("llama.context_length")
        self.tokens = get("tokenizer.ggml.tokens")
        self.bos, self.eos = get("tokenizer.ggml.bos_token_id"), get("tokenizer.ggml.eos_token_id")
        self.vocab = len(self.tokens)
        self.head_dim = self.hidden // self.heads
        self.tied = "output.weight" not in self._tensors

    def weight(self, name):
        """f32, (rows, columns) as in y = W x. Rows of Q and K are in GGUF's order: rope turns neighbouring pairs."""
        tensor = self._tensors[name]
        return np.ascontiguousarray(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)

    def layer(self, i, name):
        return self.weight(f"blk.{i}.{name}.weight")

    def head(self):
        return self.weight("token_embd.weight" if self.tied else "output.weight")
