"""The sample model's GGUF as the reference libraries see it: dequantized weights and its tokenizer."""

import subprocess
import pathlib

import gguf
import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

ROOT = pathlib.Path(__file__).resolve().parents[3]
CONTROL, USER_DEFINED = 3, 4  # tokenizer.ggml.token_type


def sample_path():
    out = subprocess.run([ROOT / "etc/fetch_model.sh"], check=True, capture_output=True, text=True).stdout
    return out.splitlines()[-1]


class Model:
    def __init__(self, path):
        self.reader = gguf.GGUFReader(path)
        self.tensors = {t.name: t for t in self.reader.tensors}

    def field(self, key, default=None):
        field = self.reader.fields.get(key)
        return default if field is None else field.contents()

    def dequantized(self, name):
        """f32 [rows, columns], or a vector"""
        t = self.tensors[name]
        shape = [int(n) for n in reversed(t.shape)]
        return gguf.dequantize(np.array(t.data), t.tensor_type).astype(np.float32).reshape(shape)

    def tokenizer(self, parse_special):
        """Byte-level BPE of the GGUF's vocabulary and merges behind the pre-tokenizer named `smollm`: digits one by
        one, then GPT-2's pattern. With parse_special the control tokens are matched in the text first."""
        vocab = self.field("tokenizer.ggml.tokens")
        merges = [tuple(m.split(" ")) for m in self.field("tokenizer.ggml.merges")]
        pre = self.field("tokenizer.ggml.pre")
        if pre != "smollm":
            raise SystemExit(f"no reference for pre-tokenizer {pre}")
        t = Tokenizer(models.BPE({s: i for i, s in enumerate(vocab)}, merges))
        t.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        t.decoder = decoders.ByteLevel()
        if parse_special:
            types = self.field("tokenizer.ggml.token_type")
            t.add_special_tokens(
                [AddedToken(s, special=True, normalized=False) for s, k in zip(vocab, types) if k in (CONTROL, USER_DEFINED)]
            )
        return t
